"""Cells of a few units, fitted to recorded choices and held out by participant."""

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import interp
from interp.choices.recorded import _compute_logits, _read_inputs, fit_cell
from interp.tasks import bandit
from interp.tasks.bandit.algorithms import win_stay
from tests.refusals import refuses
from tests.shell import answer, printed, refusal


@pytest.fixture(scope="module")
def played():
    """Six participants of two episodes each, who stay after a win and shift after a loss."""
    episodes = bandit.sample(12, 25, 2, "reversal", 0, win_stay(0.95, 0.95))
    return replace(episodes, participants=np.arange(12) // 2)


def score(fitted, episodes):
    """Return the logits of a fitted cell in all rounds, as the fit computes them."""
    inputs = _read_inputs(fitted.machine.layout, episodes)
    with torch.no_grad():
        return _compute_logits([fitted.machine.module], inputs)[0]


@pytest.mark.long
def test_a_cell_learns_what_other_participants_do(played):
    fitted = fit_cell(played, units=2, n_folds=2, steps=50)
    assert fitted.nats.high < np.log(2) - 0.1
    assert fitted.held_out.sum(-1) == pytest.approx(1, abs=1e-6)
    one_by_one = interp.rollout(fitted.machine, played).predictions.numpy()
    np.testing.assert_allclose(one_by_one, score(fitted, played).softmax(-1), atol=1e-5)


@pytest.mark.parametrize("kind", ["gru", "lstm"])
def test_a_fold_predicts_as_a_cell_that_was_trained_without_it(played, kind):
    """Cells of all folds are trained side by side; each must be what training it alone gives."""
    fitted = fit_cell(played, kind, units=3, n_folds=2, steps=20)
    fold = np.random.default_rng(0).permutation(6) % 2
    is_first = np.repeat(fold == 0, 2)
    alone = fit_cell(played.select(~is_first), kind, units=3, n_folds=2, steps=20)
    predicted = score(alone, played.select(is_first)).softmax(-1)
    np.testing.assert_allclose(fitted.held_out[is_first], predicted, atol=1e-4)


def test_a_participant_without_a_free_choice_leaves_the_mean_of_the_others(played):
    forced = np.zeros((12, 25), bool)
    forced[-2:] = True
    fitted = fit_cell(replace(played, forced=forced), n_folds=2, steps=3)
    *scored, unscored = fitted.participants.to_dict("records")
    assert unscored["rounds"] == 0
    assert np.isnan(unscored["nats"])
    mean = np.mean([participant["nats"] for participant in scored])
    assert fitted.nats.estimate == pytest.approx(mean)
    assert fitted.sentence.startswith("Of 5 participants")


def test_what_is_held_out_of_a_participant_knows_none_of_that_ones_choices(played):
    """Choices of one participant that are turned round change what is predicted of the others alone."""
    turned = played.choices.copy()
    turned[-2:] = 1 - turned[-2:]
    held_out = fit_cell(played, n_folds=6, steps=3).held_out
    turned_round = replace(played, choices=turned)
    held_out_of_turned = fit_cell(turned_round, n_folds=6, steps=3).held_out
    assert np.array_equal(held_out[-2:, 0], held_out_of_turned[-2:, 0])
    assert not np.array_equal(held_out[:-2, 0], held_out_of_turned[:-2, 0])


def test_a_missing_round_leaves_the_state_as_it_is(played):
    missing = np.zeros((12, 25), bool)
    missing[:, [3, 4, 11]] = True
    whole = replace(played, missing=missing)
    present = np.flatnonzero(~missing[0])
    shortened = bandit.BanditEpisodes(played.choices[:, present], played.rewards[:, present])
    fitted = fit_cell(shortened, n_folds=2, steps=1)
    scores = score(fitted, shortened)
    torch.testing.assert_close(score(fitted, whole)[:, present], scores)
    predictions = interp.rollout(fitted.machine, whole).predictions[:, present]
    torch.testing.assert_close(predictions, scores.softmax(-1), atol=1e-5, rtol=0)


def test_more_folds_than_participants_are_refused(played):
    refuses("7 folds need as many participants, got 6", fit_cell, played, n_folds=7)
    refuses("unknown kind of cell 'loop'", fit_cell, played, "loop")
    refuses("steps must be an integer >= 1, got 0", fit_cell, played, steps=0)


def test_a_cell_that_memory_cannot_hold_is_refused_before_work(played):
    refuses("a gru of 1000000000 units, .* would take about", fit_cell, played, units=10**9)


@pytest.mark.long
def test_the_shell_fits_a_cell_to_a_table_and_other_commands_take_both(played, tmp_path):
    played = played.select(slice(0, 12, 2)).first(8)
    table = tmp_path / "people.csv"
    columns = {
        "who": np.repeat(played.participants, played.n_rounds),
        "key": played.choices.ravel(),
        "paid": played.rewards.ravel(),
    }
    pd.DataFrame(columns).to_csv(table, index=False)
    recorded = ("--recorded", table, "participant=who", "choice=key", "reward=paid")
    trained = printed(
        *f"train bandit --machine gru steps=20 n_folds=2 --units 2 --name mine --out {tmp_path}".split(),
        *recorded,
    )
    assert "6 episodes of 8 rounds, 6 participants, 2 arms" in trained
    assert re.search(
        r"Of 6 participants, held out, it loses 0.* an even guess loses 0.6931", trained
    )
    model = interp.load(tmp_path / "mine" / "model")
    assert [channel.shape for channel in model.channels] == [(2,)]
    held_out = pd.read_csv(tmp_path / "mine" / "held_out.csv")
    assert held_out["rounds"].tolist() == [8] * 6
    probe_options = (
        "--targets",
        "last_paid",
        "--hypothesis",
        "win_stay",
        "stays=0.9",
        "--out",
        tmp_path / "probes",
    )
    probed = answer("probe", tmp_path / "mine" / "model", *recorded, *probe_options)
    assert probed["n_episodes"] == 6
    assert probed["recorded"]["participants"] == 6
    assert probed["recorded"]["algorithm"] == "win-stay lose-shift (stays 0.9, shifts 0.9)"
    (folder,) = probed["files"]
    settings_of_targets = json.loads((Path(folder) / "probes.json").read_text())
    settings = settings_of_targets["last_paid"]
    assert settings["n_groups"] == 6
    assert settings["recorded"]["bandit"] == probed["recorded"]
    for command, options, message in (
        ("train", ("bandit", "--machine", "gru", "--set", "lr=1"), "leave --set out"),
        ("train", ("bandit", "--machine", "gru", "--processes", "2"), "leave --processes out"),
        (
            "train",
            ("bandit", "--machine", "gru", "--name", "mine", "--out", tmp_path),
            "exists already; give another --name",
        ),
        ("train", ("bandit",), "give --machine gru or lstm, got 'none'"),
        (
            "train",
            ("experts", "--machine", "gru"),
            "unknown column 'choice'. Valid: advice, order, outcome, participant, session",
        ),
        (
            "probe",
            (tmp_path / "mine" / "model", "--rounds", 5),
            "leave --episodes, --rounds and --regime out",
        ),
    ):
        assert message in refusal(command, *options, *recorded)


def test_an_even_guess_is_among_what_is_offered():
    """Two of four arms on offer leave a guess log 2 to lose."""
    played = bandit.sample(4, 10, 4, "reversal", seed=0)
    offers = np.stack([played.choices, (played.choices + 1) % 4], -1)
    fitted = fit_cell(replace(played, offers=offers), n_folds=2, steps=1)
    assert fitted.even == pytest.approx(np.log(2)) and "loses 0.6931." in fitted.sentence
