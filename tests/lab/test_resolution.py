"""The resolution is the smallest size from which on enough runs see a deviation; machines of size nothing are none."""

import json
from functools import cache
from pathlib import Path

import pandas as pd
import pytest

import interp
from lab import known, resolution
from reports import comparison


def rows(words, question="behaviour", key="experts: lag"):
    """One row a size and seed.

    Args:
        words: size to the words of its runs on the question.
        question: the question; others are answered with "yes", but for the circuit.
        key: of the deviation.
    """
    table = []
    for size, runs in words.items():
        for seed, word in enumerate(runs):
            row = {"deviation": key, "size": size, "seed": seed, "cpu_seconds": 1.0}
            row |= {"behaviour": "yes", "state": "yes", "update": "yes"}
            row |= {"circuit": "not applicable", question: word}
            table.append(row)
    return pd.DataFrame(table)


NO, YES, UNDECIDED = "no", "yes", "undecided"


@pytest.mark.parametrize(
    ("words", "half", "most"),
    [
        ({1: [NO] * 4, 2: [NO] * 4, 3: [NO] * 4}, 1, 1),
        ({1: [YES, YES, YES, NO], 2: [YES, UNDECIDED, NO, NO], 3: [NO] * 4}, 2, 3),
        ({1: [NO] * 4, 2: [YES] * 4, 3: [NO, NO, NO, YES]}, 3, None),
        (
            {1: [UNDECIDED] * 4, 2: [UNDECIDED] * 4, 3: [YES, UNDECIDED, UNDECIDED, NO]},
            None,
            None,
        ),
    ],
    ids=["all", "from 2 and 3 on", "a gap below 3", "never"],
)
def test_the_smallest_size_from_which_on_runs_see_it(words, half, most):
    """A size that is seen below one that is not does not count."""
    by_question = {row.question: row for row in resolution.resolutions(rows(words))}
    behaviour = by_question["behaviour"]
    assert behaviour.half == half
    assert behaviour.most == most
    assert behaviour.runs == 4
    assert by_question["state"].half is None
    assert "circuit" not in by_question


def test_sizes_are_in_the_deviations_order_and_not_in_that_of_numbers():
    """Of a leak, .99 is less than .9."""
    table = rows({0.99: [YES], 0.95: [NO], 0.9: [NO]}, key="experts: leak")
    assert resolution.resolutions(table)[0].half == 0.95


def test_the_sentence_says_what_would_have_been_seen(tmp_path, monkeypatch):
    """The question that sees a deviation best is named; nothing is said where nothing was measured."""
    lag = rows({1: [YES], 2: [NO], 3: [NO]})
    lag["update"] = NO
    leak = rows({0.99: [NO], 0.95: [NO], 0.9: [NO]}, "update", "experts: leak")
    frame = pd.concat([lag, leak])
    path = tmp_path / "resolution-quick.csv"
    frame.to_csv(path, index=False)
    monkeypatch.setattr(resolution, "__file__", str(tmp_path / "resolution.py"))
    sentence = resolution.sentence("experts", quick=True)
    assert "one run of each size" in sentence
    assert sentence.endswith(
        "would have seen a lag, in rounds, of 1 (update), a leak of 0.99 (update)."
    )
    assert resolution.sentence("experts", quick=False) == ""
    assert resolution.sentence("qlearning", quick=True) == ""
    assert resolution.sentence("a task of their own", quick=True) == ""  # pages of any task ask
    assert "(6 comparisons, 6 CPU seconds)" in resolution.summary(frame)
    pd.concat([frame, frame]).to_csv(path, index=False)
    assert "2 runs of each size" in resolution.sentence("experts", quick=True)


@cache
def expect(key):
    """Draw episodes of a task, and what its reference predicts on them."""
    reference = known.reference(key)
    episodes = interp.tasks.of(reference).sample_for(reference, 20, 16, seed=0)
    return episodes, interp.rollout(reference, episodes, commit="target").predictions


@pytest.mark.parametrize("deviation", resolution.deviations().values(), ids=lambda d: d.key)
def test_deviations_grow_with_their_size(deviation):
    """Each is farther from the reference the larger it is, in its predictions, and no size is the reference."""
    episodes, expected = expect(deviation.task)
    gaps = []
    for size in deviation.sizes[::2]:
        run = interp.rollout(deviation.make(size), episodes, commit="target")
        gaps.append((run.predictions - expected).abs().mean().item())
    assert gaps == sorted(gaps)
    assert gaps[-1] > gaps[0]


@pytest.mark.parametrize("task", ["experts", "qlearning"])
def test_pages_say_what_was_measured(task):
    """The sentences that reports ship are those of the tables beside the lab's module."""
    shipped = json.loads(Path(comparison.__file__).with_name("resolution.json").read_text("utf-8"))
    assert set(shipped) == {"experts", "qlearning"}
    assert shipped[task].get("quick", "") == resolution.sentence(task, quick=True)
    assert shipped[task].get("full", "") == resolution.sentence(task, quick=False)
