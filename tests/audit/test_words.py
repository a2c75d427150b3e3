"""Which numbers decide which claim, and beside which controls: on made numbers, and with copies in the place."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch

import interp
from interp.audit import FULL, QUICK, audit, dynamics, shortcuts, timing, used
from interp.audit.trial import ALL, Trial
from interp.results.measure import UNTRAINED, Control
from interp.stats.intervals import Interval, mean_interval
from tests.audit.planted import SMALL, cached
from tests.cases import by_cases

N = 40
SPREAD = np.linspace(-1, 1, N)
"""Episodes differ by so much; their mean is 0, and its interval about .19 on either side."""


def copied(copy):
    """What a trial says of one untrained copy: 0, or 1 for a claim of little, where the claim does not apply to it."""

    def untrained(number, side="above"):
        of = number(copy)
        return {UNTRAINED: Control(float(side == "below") if of is None else of.estimate)}

    return untrained


def constant(curve, noise=0.0):
    """Losses ``[state, episode]``."""
    return np.outer(curve, np.ones(N)) + noise * SPREAD


class Predictions(str):
    """Predictions of a name; some rows of them are the name and the rows."""

    def __getitem__(self, rows):
        return str(self), np.array_equal(rows, np.arange(N))


def losing(**by):
    """A trial of two rounds: name of predictions -> the loss in the second by the own truth, and by every other."""

    def losses(predictions):
        name, mine = predictions if isinstance(predictions, tuple) else (str(predictions), True)
        return np.tile([0.0, by[name][0 if mine else 1]], (N, 1))

    run = SimpleNamespace(predictions=Predictions("own"))
    return SimpleNamespace(
        run=run, shape=(N, 2), effort=SimpleNamespace(seed=0), losses=losses, whose=np.arange(N)
    )


@by_cases("own, without, share, chance")
def test_a_worth_is_the_share_of_the_loss_beyond_that_by_other_truths(own, without, share, chance):
    trial = losing(own=own, without=without)
    number, found = used.shares(trial, Predictions("without"), slice(1, None))
    assert (number.estimate, found) == (pytest.approx(share), pytest.approx(chance))


def test_a_machine_without_its_state_is_run_round_by_round():
    """The worth of the cache, by another route: every round alone, from an empty one."""
    trial = Trial.of(cached(), SMALL)
    found = used.replaced(trial, used.Change.INITIAL)
    for t in range(1, trial.shape[1]):
        alone = trial.continued(trial.run.latents[:, :1].transpose(0, 1), [t], horizon=1)[0, :, t]
        assert torch.allclose(found[:, t], alone)
    assert torch.equal(found[:, 0], trial.run.predictions[:, 0])
    (whole, _), (thought, _) = (
        used.worth(trial, used._OF_EACH),
        used.worth(trial, used._OF_EACH, "thought"),
    )
    assert whole.low > 0.02 and (thought.low, thought.high) == (0, 0)
    table = used.without(trial).set_index(["channel", "change"])
    assert whole.estimate == table["worth"].groupby("channel").max()["all that is carried"]
    assert len(trial.copies) == SMALL.copies
    for measure in (used.used(trial, ALL), used.content(trial), used.lasts(trial)):
        assert set(measure.controls) == {UNTRAINED, "the truth of other episodes"}


@pytest.mark.parametrize(
    ("model", "algorithm", "word", "number"),
    [
        (constant((1.0, 0.5, 0.01)), constant((1.0, 0.5, 0.0)), "yes", 0.01),
        (constant((1.0, 0.58, 0.0)), constant((1.0, 0.5, 0.0)), "yes", 0.08),
        (constant((1.0, 0.7, 0.0)), constant((1.0, 0.5, 0.0)), "no", 0.2),
        (constant((1.0, 0.3, 0.0)), constant((1.0, 0.5, 0.0)), "yes", 0.0),
        (constant((1.0, 0.3, 0.3)), constant((1.0, 0.5, 0.0)), "no", 0.3),
        (constant((1.0, 0.55, 0.0), noise=0.3), constant((1.0, 0.5, 0.0)), "undecided", 0.05),
        (
            constant((1.0, 0.38, 0.0), noise=0.2),
            constant((1.0, 0.5, 0.0)),
            "yes",
            0.0,
        ),  # that it is early is not sure
        (constant((1.0, 0.5, 0.0)), constant((1.0, 0.99, 0.96)), "not applicable", np.nan),
    ],
)
def test_in_time(monkeypatch, model, algorithm, word, number):
    copy, whose = SimpleNamespace(), np.arange(N)
    own = SimpleNamespace(
        algorithm=SimpleNamespace(name="search"), untrained=copied(copy), whose=whose
    )
    monkeypatch.setattr(
        timing, "_readouts", lambda of: model if of is own else constant((1.0, 1.0, 1.0))
    )
    monkeypatch.setattr(timing, "of_algorithm", lambda of, _: algorithm)
    measure = timing.in_time(own)
    assert measure.verdict == word and measure.number.estimate == pytest.approx(
        number, abs=1e-9, nan_ok=True
    )
    assert (
        ("It is ahead by" in measure.note)
        == ("It is ahead by 0.2" in measure.note)
        == (model[1, 0] == 0.3)
    )
    if word != "not applicable":
        assert measure.controls[UNTRAINED].number == pytest.approx(1.0)
        leak = timing.in_time(own, leaks=True)  # of a machine that sees the truth of its round
        is_leak = word == "yes" and model[1, 0] == 0.3
        assert (leak.verdict, "a leak" in leak.reason) == (
            "undecided" if is_leak else word,
            is_leak,
        )
    own.algorithm = None
    assert timing.in_time(own).verdict == "not applicable"


@by_cases("losses, word, number")
def test_kept_over_more_rounds(losses, word, number):
    def running(curve):
        data = SimpleNamespace(first_asked=1)
        run, task = SimpleNamespace(predictions=None), SimpleNamespace(data=data)
        about = {"run": run, "task": task, "shape": (N, len(curve)), "whose": np.arange(N)}
        return SimpleNamespace(losses=lambda of: constant(curve).T, **about)

    trial, copy = running(losses), running((2.0, 2.0, 1.99, 2.0))
    trial.untrained = copied(copy)
    measure = timing.longer(trial, 3)
    assert measure.verdict == word and measure.number.estimate == pytest.approx(number, nan_ok=True)
    assert measure.controls == ({} if word == "not applicable" else {UNTRAINED: Control(0.0)})


def rested(moved, before=0.5, since=3, n=N):
    """Episodes whose predictions move so far after rest; the row of the last round counts."""
    rows = [{"rounds_since": 1, "moved": 0.9}, {"rounds_since": since, "moved": moved}]
    common = {"apart": 0.3, "before": before}
    return pd.DataFrame(
        [{"episode": e, "whose": e, **row, **common} for e in range(n) for row in rows]
    )


@pytest.mark.parametrize(
    ("frames", "word", "regime"),
    [
        ({"a": rested(0.0)}, "yes", "a"),
        ({"a": rested(0.04)}, "yes", "a"),
        ({"a": rested(0.0), "b": rested(0.3)}, "no", "b"),
        ({"a": rested(0.0, before=0.05)}, "not applicable", ""),  # it never moves
        ({"a": rested(0.0, before=0.05), "b": rested(0.01, before=0.2)}, "yes", "b"),
        ({"a": rested(0.3, since=1)}, "not applicable", ""),
        ({"a": rested(0.3, n=7)}, "not applicable", ""),
        ({"a": rested(0.3, since=2, n=8)}, "no", "a"),
        ({"a": None}, "not applicable", ""),
    ],
)
def test_stays_at_rest(monkeypatch, frames, word, regime):
    monkeypatch.setattr(timing, "_after_rest", lambda trial: trial.frame)
    copy = SimpleNamespace(frame=rested(0.02, before=0.02))
    trials = {
        name: SimpleNamespace(frame=frame, untrained=copied(copy)) for name, frame in frames.items()
    }
    measure = timing.stays(trials)
    assert measure.verdict == word
    if regime:
        assert f"Regime '{regime}'" in measure.note and measure.controls == {
            UNTRAINED: Control(1.0)
        }
        last = frames[regime].iloc[-1]
        assert measure.number.estimate == pytest.approx(last["moved"] / last["before"])


@by_cases("sides, is_used, word")
def test_the_side_that_is_taken_is_by_the_worst_heuristic(monkeypatch, sides, is_used, word):
    def adversarial(key, side):
        taken = lambda model=None: mean_interval(np.full(N, side if model is None else 0.4))  # noqa: E731
        return SimpleNamespace(name=f"rule {key}", side=taken, algorithm=np.zeros(N), drawn=99)

    found = {key: adversarial(key, side) for key, side in sides.items()} | {"none": None}
    monkeypatch.setattr(shortcuts, "_found_for", lambda trial: found)
    copy = SimpleNamespace(model="blank")
    measure = shortcuts.side(SimpleNamespace(untrained=copied(copy)), is_used)
    assert measure.verdict == word
    if sides:
        worst = min(sides, key=lambda key: sides[key])
        assert (
            f"is rule {worst}, on {N} of 99" in measure.note
            and measure.number.estimate == sides[worst]
        )
        assert measure.controls[UNTRAINED].number == pytest.approx(0.4)
        assert ("another way through the inputs" in measure.note) == (not is_used)


def test_movement_says_what_it_is_and_what_an_untrained_copy_does(monkeypatch):
    effort = SimpleNamespace(held=20)
    own = SimpleNamespace(grows="", effort=effort, kind=("drifts", 0.3))
    monkeypatch.setattr(dynamics, "orbit", lambda trial: trial.kind)
    monkeypatch.setattr(
        dynamics, "kind", lambda found: (found[0], Interval(*[found[1]] * 3), "So.")
    )
    own.untrained = copied(SimpleNamespace(kind=("settles", 1e-4)))
    measure = dynamics.settles(own)
    assert (measure.verdict, measure.phrase, measure.note) == (
        "no",
        "drifts when inputs are held",
        "It drifts. So.",
    )
    own.kind = ("settles", 5e-5)
    assert dynamics.settles(own).reason.startswith("an untrained copy comes too near")
    own.kind = ("settles", 0.0)
    assert dynamics.settles(own).verdict == "yes"
    own.grows = "cache"
    assert dynamics.settles(own).verdict == "not applicable"


@pytest.mark.parametrize(("sees_from", "word"), [(99, "yes"), (7, "no"), (3, "no")])
def test_the_truth_is_looked_for_in_every_round(sees_from, word):
    """A machine that answers by the truth of its round, from the last of eight rounds on, or earlier."""
    trial = Trial.of(cached(sees_from=sees_from), SMALL)
    measure = timing.unseen(trial, is_used=True)
    assert measure.verdict == word and (measure.number.estimate == 0) == (word == "yes")
    assert measure.controls["the truth of the round before"].number > 0.01
    unused = timing.unseen(trial, is_used=False)
    assert unused.verdict == (
        "no" if word == "no" else "undecided"
    ) and "an untrained copy does as well" in (unused.reason or "an untrained copy does as well")


def none_is_yes(name, seeds, effort):
    for seed in seeds:
        found = audit(interp.load(name).untrained(seed), effort=effort)
        assert [one.key for one in found if one.verdict == "yes"] == [], found


def test_an_untrained_copy_in_the_models_place_is_never_yes():
    none_is_yes("wma-gru", (5,), replace(QUICK, away=0))


@pytest.mark.slow(reason="six audits of transformers")
@pytest.mark.parametrize("name", ["wma-learned", "wma-gru", "reachability-learned"])
def test_untrained_copies_of_learned_models_are_never_yes(name):
    none_is_yes(name, (5, 6, 7), QUICK)


def test_less_work_is_less():
    for name in ("episodes", "rounds", "writes", "away", "held", "jacobians", "along", "copies"):
        assert getattr(QUICK, name) < getattr(FULL, name)
    with pytest.raises(TypeError):
        type(FULL)(16, 4, 2)
