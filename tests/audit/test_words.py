"""Which numbers decide which claim, and beside which controls: on made numbers, and with copies in the place."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import interp
from interp.audit import Budget, audit, shortcuts, used
from interp.audit.trial import ALL, Trial
from interp.results.measure import UNTRAINED, Control
from interp.stats.intervals import mean_interval
from tests.audit.planted import PLANTED, SMALL, cached

N = 40


def copied(copy):
    """The control of one untrained copy."""

    def untrained(number):
        return {UNTRAINED: Control(number(copy).estimate)}

    return untrained


def test_a_worth_is_the_share_of_the_loss_that_the_own_state_takes_away():
    """Held against even predictions, whose expected mistakes are 1/2 whatever the truth; by hand."""
    trial = Trial.of(PLANTED["pause"].make(), SMALL)
    own_predictions = np.clip(trial.run.predictions.numpy(), 0.01, 0.99)
    trial.run = replace(trial.run, predictions=torch.from_numpy(own_predictions))
    truth = trial.episodes.labels
    even = torch.full_like(trial.run.predictions, 0.5)

    def lost_by(truth):
        return np.abs(truth - own_predictions)[:, 1:].sum()

    whole = 0.5 * truth[:, 1:].size
    share = 1 - lost_by(truth) / whole
    compared = used.share_of_loss(trial, even, used.Change.INITIAL, slice(1, None))
    assert compared.share.estimate == pytest.approx(share)
    assert compared.effect.estimate == pytest.approx(np.abs(own_predictions - 0.5)[:, 1:].mean())

    circles = [used.draw_donors(len(truth), seed) for seed in range(1, 9)]
    others = np.mean([1 - lost_by(truth[np.argsort(circle)]) / whole for circle in circles])
    content = used.share_of_loss(trial, even, used.Change.MEAN, slice(1, None))
    assert content.share.estimate == pytest.approx(share - others)
    assert others != 0


def test_a_machine_without_its_state_is_run_round_by_round():
    """The worth of the cache, by another route: every round alone, from an empty one."""
    trial = Trial.of(cached(), SMALL)
    predictions = used.predict_with(trial, used.Change.INITIAL)
    for t in range(1, trial.shape[1]):
        alone = trial.rerun(trial.run.latents[:, :1].transpose(0, 1), [t], horizon=1)[0, :, t]
        assert torch.allclose(predictions[:, t], alone)
    assert torch.equal(predictions[:, 0], trial.run.predictions[:, 0])


def test_a_channel_that_nobody_reads_is_worth_nothing():
    trial = Trial.of(cached(), SMALL)
    whole = used.measure_worth_of_state(trial)
    thought = used.measure_worth_of_state(trial, "thought")
    assert whole.share.low > 0.02
    assert (thought.share.low, thought.share.high) == (0, 0)
    table = used.without(trial).set_index(["channel", "change"])
    assert table.loc[("cache", whole.change), "worth"] == pytest.approx(whole.share.estimate)
    assert len(trial.copies) == SMALL.copies
    for measure in (
        used.check_use(trial, ALL),
        used.check_content(trial),
        used.check_duration(trial),
    ):
        assert set(measure.controls) == {UNTRAINED}


def test_predictions_that_move_and_are_no_better_are_not_said_to_be_unmoved():
    """A machine that follows one expert after the other by its count of rounds, and one that carries idle weights."""
    trial = Trial.of(PLANTED["reads the round number"].make(), SMALL)
    turns = used.check_use(trial, ALL)
    assert (turns.verdict, turns.phrase) == ("no", "predicts no better for what it carries")
    # From the initial state the first expert is followed in every round: half of the time another vote, by .5.
    votes = trial.episodes.advice
    changes = [0.5 * np.abs(votes[:, t, t % 4] - 1.0 * votes[:, t, 0]) for t in range(1, 8)]
    assert used.measure_worth_of_state(trial).effect.estimate == pytest.approx(np.mean(changes))
    idle = used.check_use(Trial.of(PLANTED["idle weights"].make(), SMALL), ALL)
    assert (idle.verdict, idle.phrase) == ("no", "does not use what it carries")


def test_a_state_whose_use_is_presence_alone_is_used():
    """A pause is in the state and says nothing of the episode: compared with the initial state it pays."""
    trial = Trial.of(PLANTED["pause"].make(), SMALL)
    measure = used.check_use(trial, ALL)
    assert measure.verdict == "yes"
    assert "compared with the initial state" in measure.unit
    assert "in rounds 1 to 7" in measure.unit
    assert used.check_content(trial).note.endswith("other states do not.")


@pytest.mark.parametrize(
    ("sides", "word"),
    [
        ({"a": 1.0, "b": 1.0}, "yes"),
        ({"a": 1.0, "b": 0.0}, "no"),
        ({"a": 1.0, "b": 0.5}, "undecided"),
        ({}, "not applicable"),
    ],
)
def test_the_side_that_is_taken_is_by_the_worst_heuristic(monkeypatch, sides, word):
    def adversarial(key, side):
        taken = lambda model=None: mean_interval(np.full(N, side if model is None else 0.4))  # noqa: E731
        return SimpleNamespace(
            name=f"rule {key}", side=taken, algorithm_losses=np.zeros(N), drawn=99
        )

    verdicts = {key: adversarial(key, side) for key, side in sides.items()} | {"none": None}
    monkeypatch.setattr(shortcuts, "adversarial_by_heuristic", lambda trial: verdicts)
    copy = SimpleNamespace(model="blank")
    measure = shortcuts.check_side(SimpleNamespace(score_copies=copied(copy)))
    assert measure.verdict == word
    if sides:
        worst = min(sides, key=lambda key: sides[key])
        assert f"is rule {worst}, on {N} of 99" in measure.note
        assert measure.number.estimate == sides[worst]
        assert measure.controls[UNTRAINED].number == pytest.approx(0.4)


def none_is_yes(name, seeds, budget):
    for seed in seeds:
        verdicts = audit(interp.load(name).untrained(seed), budget=budget)
        assert [claim.key for claim in verdicts if claim.verdict == "yes"] == [], verdicts


def test_an_untrained_copy_in_the_models_place_is_never_yes():
    none_is_yes("wma-gru", (5,), Budget.quick())


@pytest.mark.slow(reason="six audits of transformers")
@pytest.mark.parametrize("name", ["wma-learned-additive", "wma-gru", "reachability-learned"])
def test_untrained_copies_of_learned_models_are_never_yes(name):
    none_is_yes(name, (5, 6, 7), Budget.quick())


def test_less_work_is_less():
    for name in ("episodes", "rounds", "writes", "copies"):
        assert getattr(Budget.quick(), name) < getattr(Budget(), name)
    with pytest.raises(TypeError):
        Budget(16, 4, 2)
