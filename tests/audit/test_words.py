"""Which numbers give which word: every question's rule on numbers that are made, without a machine."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from interp.audit import content, dynamics, shortcuts, timing, used
from interp.audit.changes import DONOR, INITIAL, SAME
from interp.audit.subject import ALL
from interp.audit.used import Influence
from interp.audit.verdicts import NOT_APPLICABLE, UNDECIDED, Threshold
from interp.statistics import Interval

N = 40
SPREAD = np.linspace(-1, 1, N)
"""Episodes differ by so much; their mean is 0, and its interval about .19 on either side."""


def changed(now, later=None, cost=0.5, blind=0.0, noise=0.0, spread=0.0):
    """What a change does, written in rounds 1 and 2 of three: ``now`` in the round itself, ``later`` a round on.

    Episodes differ in cost by ``noise``, and in effect and chance by ``spread``.
    """
    values = np.full((2, N, 3), np.nan)
    values[0, :, 1], values[1, :, 2] = now / 2, now
    values[0, :, 2] = now / 2 if later is None else later
    parts = {}
    for name, each in (("effect", values), ("cost", values * 0 + cost / 1.5), ("blind", values * 0 + blind / 1.5)):
        parts[name] = each + (noise if name == "cost" else spread) * SPREAD[:, None]
    return Influence(ALL, "", (1, 2), **parts, counts=np.ones((2, N), bool))


def said(of):
    """The words of the questions on all that is carried, where another episode's state and the initial one do this."""
    return [used.used(of, ALL).word, used.content(of).word, used.lasts(of).word]


@pytest.fixture
def influences(monkeypatch):
    """Sets what each change does."""

    def set_to(**by):
        named = {DONOR: by["donor"], INITIAL: by["initial"], SAME: by.get("same", changed(0.0))}
        monkeypatch.setattr(used, "influence", lambda subject, channel, change: named[change])
        monkeypatch.setattr(used, "put_back", lambda subject: 1e-7)

    return set_to


@pytest.mark.parametrize(
    ("donor", "initial", "word"),
    [
        (changed(0.5), changed(0.0), "used"),
        (changed(0.0), changed(0.5), "used"),
        (changed(0.03), changed(0.0), "used"),
        (changed(0.015), changed(0.01), "not used"),
        (changed(0.5, cost=0.0), changed(0.0), UNDECIDED),  # predictions move, and are worth no less
        (changed(0.5, cost=0.5, blind=0.6), changed(0.0), UNDECIDED),  # by chance the loss rises as much
        (changed(0.5, cost=0.1, noise=1.0), changed(0.0), UNDECIDED),
        (changed(0.5, cost=-0.1, blind=-0.2), changed(0.0), UNDECIDED),
        (changed(0.5, cost=0.5, blind=0.55, spread=0.3), changed(0.0), UNDECIDED),  # chance itself, not its low end
    ],
)
def test_used(influences, donor, initial, word):
    influences(donor=donor, initial=initial)
    line = used.used(None, ALL)
    assert line.word == word
    larger = max(donor, initial, key=lambda found: found.effect[1, :, 2].mean())
    assert line.number.estimate == pytest.approx(larger.effect[1, :, 2].mean())  # the peak: written and read in round 2
    assert line.control == pytest.approx(np.nansum(larger.blind, -1).mean())
    assert line.threshold == 0.02
    assert ("no use shows" in line.note) == (word == UNDECIDED)
    rounds = [t for t, i in ((1, 0), (2, 1)) if donor.effect[i, :, t].mean() > 0.02]
    assert f"reads it: {', '.join(map(str, rounds)) or 'none'} of 1, 2" in line.note


@pytest.mark.parametrize(
    ("donor", "initial", "word"),
    [(0.5, 0.5, "content"), (0.0, 0.5, "pause"), (0.0, 0.01, "neither"), (0.5, 0.0, "content")],
)
def test_content_or_pause(influences, donor, initial, word):
    influences(donor=changed(donor), initial=changed(initial), same=changed(0.25))
    line = used.content(None)
    assert (line.word, line.control) == (word, 1e-7) and "same answer: 0.1875" in line.note


@pytest.mark.parametrize(
    ("now", "later", "word", "number"),
    [
        (0.5, 0.2, "carried on", 0.8),
        (0.5, 0.03, "carried on", 0.12),
        (0.5, 0.02, "made anew", 0.08),
        (0.015, 0.0, NOT_APPLICABLE, None),
    ],
)
def test_carried_on_or_made_anew(influences, now, later, word, number):
    influences(donor=changed(now, later), initial=changed(0.0))
    line = used.lasts(None)
    assert line.word == word and (line.number is None) == (number is None)
    assert number is None or line.number.estimate == pytest.approx(number)


def test_what_is_carried_to_the_end_is_written_in_the_first_round(influences):
    influences(donor=changed(0.5, 0.2), initial=changed(0.0))
    assert "At the end of the episode, written in round 1: 0.2 [" in used.lasts(None).note


def test_numbers_that_differ_between_episodes_decide_with_the_low_or_high_end_of_their_interval(influences):
    """Means of .015 and .025 beside a threshold of .02, with intervals that hold it."""
    for now in (0.015, 0.025):
        unsure = changed(now, spread=0.1)
        influences(donor=unsure, initial=unsure)
        words = said(None)
        assert words[:2] == [UNDECIDED, UNDECIDED] and words[2] != NOT_APPLICABLE
        assert used.rounds_used(unsure) == []
    influences(donor=changed(0.0), initial=changed(0.03, spread=0.1))
    assert used.content(None).word == "neither"  # a pause that is not sure is none


def test_a_number_that_is_the_threshold_is_not_above_it(influences, monkeypatch):
    at = {name: Threshold(0.25, "a number without rounding") for name in ("effect", "lasts", "kept")}
    for module in (used, content):
        monkeypatch.setattr(module, "THRESHOLDS", at)
    influences(donor=changed(0.25), initial=changed(0.25))
    assert said(None) == [UNDECIDED, UNDECIDED, "carried on"] and used.rounds_used(changed(0.25)) == []
    influences(donor=changed(0.0), initial=changed(0.25))
    assert used.content(None).word == "neither"
    line = ranked(monkeypatch, (0.25, 0.25, 0.25), np.full(N, 0.5))
    assert line.word == UNDECIDED and ranked(monkeypatch, (0.5, 0.5, 1.0), np.full(N, 0.25)).word == NOT_APPLICABLE


def ranked(monkeypatch, shares, whole, noise=0.0):
    """How few directions, of which 1, 2 and 4 have such shares of the effect, and random ones a quarter of that."""
    parts = np.outer(shares, whole) + noise * SPREAD
    by_rank = ([1, 2, 4], parts, 0.25 * np.outer(shares, whole) + noise * SPREAD, whole)
    monkeypatch.setattr(content, "by_rank", lambda subject, t: by_rank if t == 3 else None)
    return content.few(SimpleNamespace(writes=(1, 2, 3)))


@pytest.mark.parametrize(
    ("shares", "whole", "word"),
    [
        ((0.2, 0.95, 1.0), 0.5, "2 of 4"),
        ((0.95, 0.95, 1.0), 0.5, "1 of 4"),
        ((0.2, 0.85, 1.0), 0.5, "4 of 4"),
        ((0.2, 0.3, 0.5), 0.5, UNDECIDED),
        ((0.2, 0.95, 1.0), 0.01, NOT_APPLICABLE),
    ],
)
def test_how_few_directions(monkeypatch, shares, whole, word):
    line = ranked(monkeypatch, shares, np.full(N, whole))
    assert line.word == word
    unsure = ranked(monkeypatch, shares, np.full(N, whole), noise=0.5)
    if line.number is not None:
        assert line.control == pytest.approx(line.number.estimate / 4)
        assert unsure.word == UNDECIDED and unsure.control == pytest.approx(0.25 * shares[-1])


def asked(curve, noise=0.0):
    """Losses by state and episode."""
    return np.outer(curve, np.ones(N)) + noise * SPREAD


@pytest.mark.parametrize(
    ("model", "algorithm", "word", "number"),
    [
        (asked((1.0, 0.5, 0.01)), asked((1.0, 0.5, 0.0)), "in time", 0.01),
        (asked((1.0, 0.58, 0.0)), asked((1.0, 0.5, 0.0)), "in time", 0.08),
        (asked((1.0, 0.7, 0.0)), asked((1.0, 0.5, 0.0)), "late", 0.2),
        (asked((1.0, 0.3, 0.0)), asked((1.0, 0.5, 0.0)), "early", 0.2),
        (asked((1.0, 0.3, 0.3)), asked((1.0, 0.5, 0.0)), "late", 0.3),
        (asked((1.0, 0.55, 0.0), noise=0.3), asked((1.0, 0.5, 0.0)), UNDECIDED, 0.05),
        (asked((1.0, 0.5, 0.0)), asked((1.0, 0.99, 0.96)), NOT_APPLICABLE, None),
    ],
)
def test_in_time(monkeypatch, model, algorithm, word, number):
    own, blank = (SimpleNamespace(algorithm=SimpleNamespace(name="search")) for _ in range(2))
    monkeypatch.setattr(timing, "readouts", lambda of: model if of is own else asked((1.0, 1.0, 1.0)))
    monkeypatch.setattr(timing, "of_algorithm", lambda of, _: algorithm)
    line = timing.in_time(own, blank)
    assert line.word == word and (line.number is None) == (number is None)
    if number is not None:
        assert line.number.estimate == pytest.approx(number, abs=1e-9) and line.control == pytest.approx(1.0)
        assert "ahead of" in line.what if word == "early" else "behind" in line.what
    if word == "in time":
        assert timing.in_time(own, None).word == UNDECIDED
    own.algorithm = None
    assert timing.in_time(own, blank).word == NOT_APPLICABLE


def running(losses, algorithm):
    """A subject whose losses by round are these, and those of its algorithm."""
    table = {"model": asked(losses).T, "algorithm": asked(algorithm).T}
    layout = SimpleNamespace(prediction=lambda told: "algorithm")
    return SimpleNamespace(
        run=SimpleNamespace(predictions="model", layout=layout),
        losses=lambda of: table[of],
        told=lambda algorithm: np.zeros(1),
        algorithm="search",
        task=SimpleNamespace(data=SimpleNamespace(first_asked=1)),
    )


@pytest.mark.parametrize(
    ("losses", "word", "number"),
    [
        ((2.0, 1.0, 0.2, 0.2), "kept", 0.0),
        ((2.0, 1.0, 0.2, 0.6), "lost", 0.5),
        ((2.0, 1.0, 0.2, 0.26), "kept", 0.075),
        ((2.0, 1.0, 0.97, 2.0), NOT_APPLICABLE, None),
        ((2.0, 1.0, 0.2), NOT_APPLICABLE, None),
    ],
)
def test_kept_over_more_rounds(losses, word, number):
    subject = running(losses, (2.0, 1.0, 0.0, 0.1)[: len(losses)])
    line = timing.longer(subject, 3)
    assert line.word == word and (line.number is None) == (number is None)
    if number is not None:
        assert line.number.estimate == pytest.approx(number) and line.control == pytest.approx(0.1 / 0.8)
        subject.algorithm = None
        assert timing.longer(subject, 3).word == UNDECIDED


def rested(moved, before=0.5, since=3, n=N):
    """Episodes whose predictions move so far after rest; the row of the last round counts."""
    rows = [{"rounds_since": 1, "moved": 0.9}, {"rounds_since": since, "moved": moved}]
    common = {"apart": 0.3, "before": before}
    return pd.DataFrame([{"episode": e, **row, **common} for e in range(n) for row in rows])


@pytest.mark.parametrize(
    ("frames", "word", "regime"),
    [
        ({"a": rested(0.0)}, "stays", "a"),
        ({"a": rested(0.08)}, "stays", "a"),
        ({"a": rested(0.0), "b": rested(0.3)}, "goes on", "b"),
        ({"a": rested(0.0, before=0.05)}, UNDECIDED, "a"),  # it never moves
        ({"a": rested(0.0, before=0.05), "b": rested(0.01, before=0.2)}, "stays", "b"),
        ({"a": rested(0.3, since=1)}, NOT_APPLICABLE, ""),
        ({"a": rested(0.3, n=7)}, NOT_APPLICABLE, ""),
        ({"a": rested(0.3, since=2, n=8)}, "goes on", "a"),
        ({"a": None}, NOT_APPLICABLE, ""),
    ],
)
def test_stays_at_rest(monkeypatch, frames, word, regime):
    monkeypatch.setattr(timing, "after_rest", lambda subject: subject)
    line = timing.stays(frames)
    assert line.word == word
    if regime:
        assert f"Regime '{regime}'" in line.note
        assert line.control == max(frame["before"].iloc[0] for frame in frames.values())


def test_rest_is_judged_in_the_regime_of_the_largest_mean_and_the_others_are_told(monkeypatch):
    monkeypatch.setattr(timing, "after_rest", lambda subject: subject)
    wide = rested(0.4)
    wide["moved"] += np.repeat(0.9 * SPREAD, 2)  # a larger mean, a lower low end
    line = timing.stays({"even": rested(0.3), "wide": wide})
    assert "Regime 'wide'" in line.note and line.note.count("wide") == 1
    assert "Elsewhere: even 0.3 [0.3, 0.3]." in line.note
    assert "Elsewhere" not in timing.stays({"even": rested(0.3)}).note
    at = {"stays": Threshold(0.25, "a number without rounding")}
    monkeypatch.setattr(timing, "THRESHOLDS", at)
    assert timing.stays({"a": rested(0.0, before=0.25)}).word == UNDECIDED


def test_movement_says_what_an_untrained_copy_does(monkeypatch):
    channels = SimpleNamespace(channels=())
    own, blank = (
        SimpleNamespace(model=channels, effort=SimpleNamespace(held=20), said=x) for x in ("drifts", "settles")
    )
    monkeypatch.setattr(dynamics, "orbit", lambda subject: subject.said)
    monkeypatch.setattr(dynamics, "kind", lambda orbit: (orbit, Interval(float(len(orbit)), 0, 9), ""))
    line = dynamics.moves(own, blank)
    assert (line.word, line.number.estimate, line.control) == ("drifts", 6, 7) and "copy settles" in line.note
    assert dynamics.moves(own, None).control is None
    own.model = SimpleNamespace(channels=(SimpleNamespace(name="cache", grows=1),))
    assert dynamics.moves(own, blank).word == NOT_APPLICABLE


@pytest.mark.parametrize(
    ("sides", "is_used", "word"),
    [
        ({"a": 1.0, "b": 1.0}, "used", "state"),
        ({"a": 1.0, "b": 0.0}, "used", "shortcut"),
        ({"a": 1.0, "b": 0.5}, "used", UNDECIDED),
        ({"a": 1.0, "b": 1.0}, "not used", "inputs"),
        ({}, "used", NOT_APPLICABLE),
    ],
)
def test_the_side_that_is_taken_is_by_the_worst_heuristic(monkeypatch, sides, is_used, word):
    def adversarial(key, side):
        taken = lambda model=None: np.full(N, side if model is None else 0.4)  # noqa: E731
        return SimpleNamespace(name=f"rule {key}", sides=taken, algorithm=np.zeros(N), drawn=99)

    found = {key: adversarial(key, side) for key, side in sides.items()} | {"none": None}
    monkeypatch.setattr(shortcuts, "found_for", lambda subject: found)
    line = shortcuts.side(SimpleNamespace(heuristics={"none": 1}), SimpleNamespace(model="blank"), is_used)
    assert line.word == word
    if sides:
        worst = min(sides, key=lambda key: sides[key])
        assert f"Against rule {worst}, on {N} of 99" in line.note and line.control == pytest.approx(0.4)
        assert line.number.estimate == sides[worst]
        others = line.note.partition("Others: ")[2]
        assert f"rule {worst}" not in others and all(f"rule {key}" in others for key in sides if key != worst)
        assert ("without its state" in line.note) == (word == "inputs")
        assert shortcuts.side(SimpleNamespace(heuristics={"none": 1}), None, is_used).word == UNDECIDED


@pytest.mark.parametrize("number", [(0.8, 0.7, 0.9), (0.2, 0.1, 0.3), (0.75, 0.75, 0.75), (0.25, 0.25, 0.25)])
def test_no_side_is_taken_where_the_interval_holds_the_threshold(number):
    assert shortcuts._word(Interval(*number), 0.75, "used", 0.5) == UNDECIDED


def test_a_shortcut_is_not_asked_without_heuristics(monkeypatch):
    monkeypatch.setattr(shortcuts, "found_for", lambda subject: {})
    line = shortcuts.side(SimpleNamespace(heuristics={}), None, "used")
    assert line.word == NOT_APPLICABLE and "names no heuristic" in line.note
