"""How a part's numbers become a word."""

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import interp
from interp.interventions.patching import PatchingResult
from interp.interventions.sites import resolve_site
from interp.stats.intervals import Interval
from interp.tasks import experts
from reports.blocks import cell, claim
from reports.part import Context
from reports.parts import interchange, patching
from reports.tasks import experts as report_on_experts

NAN = float("nan")


def row(
    variable: str, score: float, width: float, random: float, control: bool = False
) -> dict[str, Any]:
    """A claim of ``interp.interventions.interchange``."""
    bounds = {"score_low": score - width, "score_high": score + width, "noun": f"the {variable}"}
    columns = {"variable": variable, "outcome": "state", "control": control, "random_score": random}
    return {**columns, "score": score, **bounds}


def test_interchange() -> None:
    """By the best place of each variable, beside the best of its controls; a variable without a claim has no line."""
    rows = [
        row("carried", 0.1, 0.05, 0.0),
        row("carried", 0.9, 0.05, 0.1),
        row("absent", 0.2, 0.1, 0.3),
        row("astride", 0.5, 0.2, 0.0),
        row("everywhere", 0.9, 0.05, 0.1),
        row("everywhere", 0.88, 0.05, NAN, control=True),
        row("unseen", NAN, NAN, NAN),
        row("elsewhere", 0.0, 0.0, 0.0, control=True),
    ]
    measures = interchange.INTERCHANGE.summary((pd.DataFrame(rows), None), None)  # type: ignore[arg-type]
    assert [(measure.verdict, measure.claim.rpartition(": ")[2]) for measure in measures] == [
        ("yes", "the carried"),
        ("no", "the absent"),
        ("undecided", "the astride, the everywhere, the unseen"),
    ]
    assert measures[0].yes == "updates its state by the carried"
    assert measures[0].strongest.startswith("a random direction")
    assert "chosen on the same episodes" in measures[0].caution


@pytest.mark.parametrize(
    ("scores", "moved", "random", "word"),
    [
        ((0.9, 0.8), (0.5, 0.4), 0.0, "yes"),
        (
            (0.9, 0.3),
            (0.5, 0.4),
            0.0,
            "no",
        ),  # one dose is half missed: the worst decides, not the largest move
        ((0.2, 0.9), (0.4, 0.5), 0.0, "no"),
        ((0.9, 0.52), (0.5, 0.4), 0.0, "undecided"),
        ((0.9, 0.8), (0.5, 0.4), 0.78, "undecided"),
        (
            (0.9, 0.1),
            (0.5, 0.01),
            0.0,
            "yes",
        ),  # a dose that hardly moves the algorithm asks for nothing
        ((0.9, 0.9), (0.01, 0.01), 0.0, "undecided"),
    ],
)
def test_steering(
    scores: tuple[float, float], moved: tuple[float, float], random: float, word: str
) -> None:
    """The dose that is worst of those that move the algorithm decides, against half of its move."""
    frame = pd.DataFrame(
        {"dose": [-4.0, 0.0, 4.0], "algorithm": [0.3 - moved[0], 0.3, 0.3 + moved[1]]}
    )
    score = np.array([scores[0], NAN, scores[1]])
    frame = frame.assign(
        score=score, score_low=score - 0.05, score_high=score + 0.05, random_score=random
    )
    measures = interchange.STEERING.summary(frame, None)  # type: ignore[arg-type]
    assert [measure.verdict for measure in measures] == [word]
    if word in ("yes", "no"):
        assert measures[0].number.estimate == min(
            value for value, change in zip(scores, moved, strict=True) if change > 0.02
        )


@pytest.mark.parametrize(
    ("size", "kept", "random", "word"),
    [
        (3, 1.0, 0.2, "yes"),
        (80, 1.0, 0.2, "no"),
        (3, 0.9, 0.88, "undecided"),
        (3, 0.1, 0.6, "no"),
    ],
)
def test_edges(size: int, kept: float, random: float, word: str) -> None:
    """Few edges that beat as many at random."""
    circuit = {
        "size": size,
        "of": 100,
        "faithfulness": kept,
        "low": kept - 0.01,
        "high": kept + 0.01,
        "random_max": random,
    }
    measures = patching.EDGES.summary({"circuit": pd.DataFrame([circuit])}, None)  # type: ignore[arg-type]
    assert [measure.verdict for measure in measures] == [word]


@pytest.mark.parametrize(
    ("size", "kept", "phrase"),
    [
        (80, 1.0, "needs more than half of its edges"),
        (3, 0.1, "preserves no more with its best-scored edges than with random ones"),
    ],
)
def test_a_page_says_which_part_of_the_claim_on_edges_is_false(
    size: int, kept: float, phrase: str
) -> None:
    """Three of 100 edges that preserve less than random ones are not said to be more than half."""
    numbers = {"faithfulness": kept, "low": kept - 0.01, "high": kept + 0.01}
    circuit = {"size": size, "of": 100, "random_max": 0.6, **numbers}
    (measure,) = patching.EDGES.summary({"circuit": pd.DataFrame([circuit])}, None)  # type: ignore[arg-type]
    assert measure.phrase == phrase


def captions_of(shares: dict[str, float], gap: float = 1.0) -> str:
    """What the section on patching says of sites that restore these shares of a gap."""
    model = interp.load("wma-handwired", n_experts=2)
    sites = [resolve_site(site, model, model.layout) for site in shares]
    restored = gap * torch.tensor(list(shares.values()))
    result = PatchingResult(
        sites=tuple(sites),
        values=restored[:, None].repeat(1, 3),
        base=torch.zeros(3),
        source=gap * torch.ones(3),
        metric="logit_diff",
        unit="nats",
        direction="denoising",
        round=5,
        read_round=5,
        propagate=True,
        settings={"counted": "", "model": model.name},
    )
    context = Context(model, "", n_episodes=8, n_rounds=10, seed=0)
    blocks = patching.part().draw([("A vote is flipped", result)], context)
    return "\n".join(
        getattr(block, "caption", "") or getattr(block, "text", "") for block in blocks
    )


def test_the_head_that_restores_most_is_none_that_reverses_more() -> None:
    captions = captions_of({"resid_pre[0]@p?": 0.2, "L0H0@p?": -0.6, "L0H1@p?": 0.3})
    assert re.search(r"Head L0H1\b.* at p\? restores most \(30%\)", captions)
    assert "3 of 3 cells" in captions


def test_runs_that_differ_by_rounding_leave_nothing_to_restore() -> None:
    """Shares of such a difference are refused, so that the whole section was lost."""
    assert "nothing to restore" in captions_of({"resid_pre[0]@p?": 0.2, "L0H0@p?": 0.6}, gap=1e-15)


@pytest.mark.parametrize(
    ("key", "low", "phrase"),
    [
        ("learns", -6.0, "makes more mistakes than a majority vote"),
        ("steering", -0.9, "does not follow every state that is written into its latent"),
    ],
)
def test_a_false_claim_is_called_no_better_than_its_number(
    key: str, low: float, phrase: str
) -> None:
    """A "no" needs an interval below 0 mistakes fewer, or a dose below half of the algorithm's change."""
    measure = claim(key, Interval(low + 0.2, low, low + 0.4), {"n_rounds": 20})
    assert measure.verdict == "no"
    assert measure.phrase == phrase


def test_a_small_number_without_an_interval_stands_alone() -> None:
    assert cell(Interval(0.0005, NAN, NAN)) == "5.0e−4"


def test_digits_are_those_that_the_interval_leaves() -> None:
    """Two digits of the width; no negative zero; powers of ten where all is small."""
    shown = [
        cell(Interval(*x))
        for x in ((-1e-9, -0.2, 0.2), (12.345, 10.1, 14.6), (3e-5, 1e-5, 5e-5), (1.0, 1.0, 1.0))
    ]
    assert shown == [
        "0.00 [−0.20, 0.20]",
        "12.3 [10.1, 14.6]",
        "3.0e−5 [1.0e−5, 5.0e−5]",
        "1.000 [1.000, 1.000]",
    ]
    assert cell(np.float64(-0.001), ".2f") == "0.00"


def test_regret_of_recorded_rounds_resamples_participants() -> None:
    """Four copies of each of four episodes by one participant say no more than the four."""
    once = experts.sample(4, 12, 2, seed=0)
    four_times = replace(once.select([0, 1, 2, 3] * 4), participants=[0, 1, 2, 3] * 4)
    model = interp.load("wma-handwired", n_experts=2)
    (part,) = [part for part in report_on_experts.parts() if part.key == "regret"]
    widths = []
    for episodes in (replace(once, participants=[0, 1, 2, 3]), four_times):
        with interp.tasks.using(episodes):
            scored = part.compute(Context(model, "", len(episodes), 12, 0))
        beyond = scored["majority_vote"].beyond_model
        curve = scored["majority_vote"].curve
        last = curve.iloc[-1]
        widths.append([beyond.high - beyond.low, last["high"] - last["low"]])
    assert widths[1] == pytest.approx(widths[0], rel=0.3)
