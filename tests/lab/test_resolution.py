"""The resolution is the smallest size from which on enough runs see a deviation; machines of size nothing are none."""

import json

import numpy as np
import pandas as pd
import pytest

import interp
from lab import known, resolution
from reports import comparison


def rows(words, question="behaviour", key="experts: lag"):
    """One row a size and seed; ``words``: size to the words of its runs."""
    others = dict.fromkeys(("behaviour", "state", "update", "circuit"), "yes") | {
        "circuit": "not applicable"
    }
    return pd.DataFrame(
        {"deviation": key, "size": size, "seed": seed, **others, question: word, "cpu_seconds": 1.0}
        for size, several in words.items()
        for seed, word in enumerate(several)
    )


D, S, U = "no", "yes", "undecided"


@pytest.mark.parametrize(
    ("words", "half", "most"),
    [
        ({1: [D] * 4, 2: [D] * 4, 3: [D] * 4}, 1, 1),
        ({1: [S, S, S, D], 2: [S, U, D, D], 3: [D] * 4}, 2, 3),
        ({1: [D] * 4, 2: [S] * 4, 3: [D, D, D, S]}, 3, None),
        ({1: [U] * 4, 2: [U] * 4, 3: [S, U, U, D]}, None, None),
    ],
)
def test_the_smallest_size_from_which_on_runs_see_it(words, half, most):
    """A size that is seen below one that is not does not count."""
    found = {one.question: one for one in resolution.resolutions(rows(words))}
    assert (found["behaviour"].half, found["behaviour"].most, found["behaviour"].runs) == (
        half,
        most,
        4,
    )
    assert found["state"].half is None and "circuit" not in found


def test_sizes_are_in_the_deviations_order_and_not_in_that_of_numbers():
    """Of a leak, .99 is less than .9."""
    found = resolution.resolutions(rows({0.99: [S], 0.95: [D], 0.9: [D]}, key="experts: leak"))
    assert found[0].half == 0.95


def test_the_sentence_says_what_would_have_been_seen(tmp_path, monkeypatch):
    """The question that sees a deviation best is named; nothing is said where nothing was measured."""
    frame = pd.concat(
        [
            rows({1: [S], 2: [D], 3: [D]}),
            rows({0.99: [D], 0.95: [D], 0.9: [D]}, "update", "experts: leak"),
        ]
    )
    frame.loc[frame["deviation"].eq("experts: lag"), "update"] = D
    frame.to_csv(tmp_path / "resolution-quick.csv", index=False)
    monkeypatch.setattr(resolution, "__file__", str(tmp_path / "resolution.py"))
    told = resolution.sentence("experts", quick=True)
    assert "one run of each size" in told
    assert told.endswith(
        "would have seen a lag, in rounds, of 1 (update), a leak of 0.99 (update)."
    )
    pd.concat([frame, frame]).to_csv(tmp_path / "resolution-quick.csv", index=False)
    assert "2 runs of each size" in resolution.sentence("experts", quick=True)
    assert (
        resolution.sentence("experts", quick=False)
        == resolution.sentence("qlearning", quick=True)
        == ""
    )
    text = resolution.summary(frame)
    assert "9" not in text.splitlines()[0].split("(")[0] and "6 comparisons, 6 CPU seconds" in text
    assert resolution.sentence("a task of their own", quick=True) == ""  # pages of any task ask


def test_deviations_grow_with_their_size():
    """Each is farther from the reference the larger it is, in its predictions, and no size is the reference."""
    for key, one in resolution.deviations().items():
        reference = known.reference(one.task)
        episodes = interp.tasks.of(reference).sample_for(reference, 20, 20, seed=0)
        plain = interp.rollout(reference, episodes, commit="target").predictions
        runs = [
            interp.rollout(one.make(size), episodes, commit="target").predictions
            for size in one.sizes[::2]
        ]
        gaps = [float((run - plain).abs().mean()) for run in runs]
        assert gaps[-1] > gaps[0] >= 0 and np.all(np.diff(gaps) >= 0), (key, gaps)


def test_pages_say_what_was_measured():
    """The sentences that reports ship are those of the tables beside the lab's module."""
    efforts = {"quick": True, "full": False}
    measured = {
        task: {
            effort: said
            for effort, quick in efforts.items()
            if (said := resolution.sentence(task, quick))
        }
        for task in ("experts", "qlearning")
    }
    assert json.loads(comparison._RESOLUTION.read_text("utf-8")) == measured
