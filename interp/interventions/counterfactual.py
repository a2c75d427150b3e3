"""How near an intervened model comes to an algorithm's counterfactual: hits, and graded effects.

An algorithm whose variable is set gives another outcome than it did; a model in which the place that carries this
variable is changed should give the same other outcome. Two measures of that:

* *hits*: is the choice (or the real number that is predicted, or the state that the round writes) the
  counterfactual's? Interchange accuracy (IIA) is their share. It is blind to how far a probability moved, and many
  hits come without an intervention;
* *effects*: how far did the outcome move (``effect``), and how far should it have moved (``wanted``)?

      score = 1 - sum |effect - wanted|^2 / sum |wanted|^2        slope = sum effect wanted / sum wanted^2

  A score of 1 is the whole counterfactual effect in every pair, 0 is no better than no effect, and it is negative
  where the model moves elsewhere; the slope says whether the direction is right though the size is not.

Effects tell algorithms apart that choose alike: the same intervention has a score under each of them
(:func:`score_difference`). Sums are over pairs; intervals resample episodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float
from numpy.typing import NDArray

from interp.algorithm import Algorithm, Values
from interp.checks import checked
from interp.display import Tabled
from interp.errors import require, require_known
from interp.interventions.experiment import Outcome
from interp.interventions.results import Effects, curves
from interp.machine import Machine
from interp.provenance import provenance
from interp.statistics import Interval, ratio_interval, resample_weights


@dataclass(frozen=True)
class InterchangeResult(Tabled):
    """Interchange of one variable at some places: hits and effects on an outcome, "prediction" or "state".

    Attributes:
        correct, unpatched: is the outcome the counterfactual's, with the intervention and without.
        informative: does the algorithm's counterfactual differ from its outcome on the base.
        error: largest difference from the counterfactual's probabilities, or state.
        effect: how far the intervention moved the probability of each outcome, or each number that the round writes.
        wanted: how far setting the variable moves the algorithm's.
    """

    variable: str
    places: tuple[str, ...]
    outcome: str
    correct: Bool[np.ndarray, "episode round"]
    unpatched: Bool[np.ndarray, "episode round"]
    informative: Bool[np.ndarray, "episode round"]
    error: Float[np.ndarray, "episode round"]
    effect: Float[np.ndarray, "episode round number"]
    wanted: Float[np.ndarray, "episode round number"]
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def iia(self) -> float:
        """Interchange intervention accuracy: the share of pairs whose outcome is the algorithm's, from 0 to 1."""
        return float(self.correct.mean())

    @property
    def chance(self) -> float:
        """The accuracy of doing nothing."""
        return float(self.unpatched.mean())

    @property
    def chance_informative(self) -> float:
        """The accuracy of doing nothing over informative pairs; NaN when there is none."""
        return float(self.unpatched[self.informative].mean()) if self.informative.any() else float("nan")

    @property
    def iia_informative(self) -> float:
        """Accuracy over informative pairs; NaN when there is none."""
        return self.interval().estimate

    @property
    def max_error(self) -> float:
        """The largest error of any pair, in the units of the outcome."""
        return float(self.error.max())

    @checked
    def interval(self, seed: int = 0) -> Interval:
        """Accuracy over informative pairs with its 95 % bootstrap interval over episodes."""
        return ratio_interval((self.correct & self.informative).sum(1), self.informative.sum(1), seed=seed)

    @checked
    def score(self, seed: int = 0) -> Interval:
        """``1 - |effect - wanted|^2 / |wanted|^2`` with its 95 % interval over episodes; NaN if nothing is wanted."""
        return ratio_interval(self._missed, self._asked, seed=seed).complement

    @checked
    def slope(self, seed: int = 0) -> Interval:
        """The least-squares slope of the effect on the wanted one: 1 where it has the wanted size."""
        return ratio_interval(np.einsum("btk,btk->b", self.effect, self.wanted), self._asked, seed=seed)

    @checked
    def by_magnitude(self, n_parts: int = 4) -> pd.DataFrame:
        """Score and slope of pairs with small to large wanted effects, in parts of equally many pairs."""
        size = np.abs(self.wanted).max(-1)
        asked = size[size > 0]
        require(
            1 <= n_parts <= len(asked),
            f"{len(asked)} pairs have a wanted effect; n_parts must be 1 to {len(asked)}, got {n_parts}",
        )
        edges = np.quantile(asked, np.linspace(0, 1, n_parts + 1))
        part = np.clip(np.searchsorted(edges, size, side="left") - 1, 0, n_parts - 1)
        rows = []
        for i in range(n_parts):
            chosen = (part == i) & (size > 0)
            effect, wanted = self.effect[chosen], self.wanted[chosen]
            total = float((wanted**2).sum()) or float("nan")
            score = 1 - float(((effect - wanted) ** 2).sum()) / total
            slope = float((effect * wanted).sum()) / total
            rows.append((edges[i], edges[i + 1], score, slope, int(chosen.sum())))
        return pd.DataFrame(rows, columns=["wanted_from", "wanted_to", "score", "slope", "n_pairs"])

    @property
    def finding(self) -> str:
        """How often the outcome is the algorithm's, and how often it is without the intervention."""
        if not self.informative.any():
            return f"Setting {self.variable} changes no outcome of the algorithm: there is nothing to tell."
        where, share = " + ".join(self.places), f"{self.iia_informative:.0%} of the pairs in which that differs"
        return (
            f"With {self.variable} set at {where}, the {self.outcome} is the algorithm's in {share} "
            f"({self.chance_informative:.0%} without)."
        )

    def plot(self) -> Any:
        """How much of the wanted move is made, by its size, in parts of equally many pairs; 1 is the whole move."""
        n = int((np.abs(self.wanted).max(-1) > 0).sum())
        frame = self.by_magnitude(min(8, n))
        lines = {"score": frame["score"], "slope": frame["slope"]}
        return curves(frame["wanted_to"], lines, xlabel="wanted effect", ylabel="share made", title=self.variable)

    def to_frame(self) -> pd.DataFrame:
        """One row: score, slope and accuracies with intervals, chance, numbers of pairs."""
        interval = self.interval()
        row = {
            "variable": self.variable,
            "places": " + ".join(self.places),
            "outcome": self.outcome,
            "iia": self.iia,
            "chance": self.chance,
            "iia_informative": interval.estimate,
            "low": interval.low,
            "high": interval.high,
            "chance_informative": self.chance_informative,
            "n_pairs": self.correct.size,
            "n_informative": int(self.informative.sum()),
            "max_error": self.max_error,
            **self.score().columns("score"),
            **self.slope().columns("slope"),
        }
        return pd.DataFrame([row])

    @property
    def _asked(self) -> NDArray[np.float64]:
        return np.einsum("btk,btk->b", self.wanted, self.wanted)

    @property
    def _missed(self) -> NDArray[np.float64]:
        off = self.effect - self.wanted
        return np.einsum("btk,btk->b", off, off)


@checked
def score_difference(result: InterchangeResult, rival: InterchangeResult, seed: int = 0) -> Interval:
    """The score less the score that the same pairs get under a rival algorithm; the bootstrap is paired.

    An algorithm in which setting the variable changes nothing wants no effect and has no score. The rival is then held
    to the other's scale: it misses the whole effect, ``1 - |effect|^2 / |wanted|^2``.
    """
    require(
        result.effect.shape == rival.effect.shape,
        f"the two results are of different pairs: effects {result.effect.shape} and {rival.effect.shape}",
    )
    require(bool(result._asked.sum()), f"setting {result.variable!r} changes no outcome of the algorithm: no score")
    silent = rival._asked.sum() == 0
    weights = resample_weights(len(result.effect), seed=seed, plain_first=True)
    with np.errstate(divide="ignore", invalid="ignore"):  # draws in which nothing is wanted are left out
        score = 1 - (weights @ result._missed) / (weights @ result._asked)
        rivals = 1 - (weights @ rival._missed) / (weights @ (result if silent else rival)._asked)
    return Interval.of_samples((score - rivals)[1:], float((score - rivals)[0]))


def require_comparable(model: Machine, algorithm: Algorithm, outcome: str) -> None:
    """Raise unless the algorithm's ``outcome`` can be compared with the model's."""
    require_known("outcome", outcome, ("prediction", "state"))
    require(
        algorithm.task == model.layout.task,
        f"{algorithm.name} is an algorithm of {algorithm.task}, not of {model.layout.task} rounds",
    )
    require(
        outcome != "state" or bool(algorithm.written),
        f"{algorithm.name} does not say what a round writes into the state; give the algorithm written=...",
    )


def of_rounds(algorithm: Algorithm, episodes: Any, rounds: Sequence[int]) -> Values:
    """Every variable at some rounds, ``[episode, round, ...]``."""
    return {key: values[:, list(rounds)] for key, values in algorithm.run(episodes).items()}


def graded(
    found: Effects,
    model: Machine,
    algorithm: Algorithm,
    outcome: Outcome,
    counterfactual: tuple[Values, Values],
    variable: str,
    places: Iterable[object],
) -> InterchangeResult:
    """Hits and effects of an experiment's only edit, held against an algorithm's counterfactual.

    ``counterfactual`` holds the algorithm's variables on the base, and with one of them set, ``[episode, round, ...]``.
    """
    after, plain = found.values[0].numpy(force=True), found.unpatched.numpy(force=True)
    if outcome.key == "state":
        before, goal = (values[algorithm.written] for values in counterfactual)
        decoded = outcome.decode is not None
    else:
        before, goal = (np.asarray(algorithm.distribution(values), np.float64) for values in counterfactual)
        decoded = not model.is_handwired
    if outcome.key == "prediction" and model.layout.kind == "classes":
        grades = _of_predictions(before, goal, after, plain)
    else:
        require(
            outcome.key == "state" or before.shape == goal.shape == after.shape,
            f"{algorithm.name} must predict {', '.join(model.layout.outcomes)} as [episode, round, number] "
            f"{after.shape}, got shape {before.shape}",
        )
        grades = _of_numbers(before, goal, after, plain, tolerance=outcome.tolerance, decoded=decoded)
    settings = provenance(
        model,
        algorithm=algorithm.key,
        parameters=dict(algorithm.parameters),
        rounds=[edited for edited, _ in found.rounds],
        **found.settings,
    )
    return InterchangeResult(variable, tuple(map(str, places)), outcome.key, **grades, settings=settings)


def _of_predictions(
    before: NDArray[Any], goal: NDArray[Any], patched: NDArray[Any], plain: NDArray[Any]
) -> dict[str, NDArray[Any]]:
    """Whether the choice is the counterfactual's: patched, unpatched and by the algorithm on the base."""
    wanted = _choice(goal)
    return {
        "correct": _choice(patched) == wanted,
        "unpatched": _choice(plain) == wanted,
        "informative": _choice(before) != wanted,
        "error": np.abs(patched - goal).max(-1),
        "effect": patched - plain,
        "wanted": goal - before,
    }


def _of_numbers(
    before: NDArray, goal: NDArray, patched: NDArray, plain: NDArray, *, tolerance: float, decoded: bool
) -> dict[str, NDArray[Any]]:
    """Whether what the round wrote, or the real number that it predicted, is the counterfactual's.

    A change that was decoded, or that a learned model predicts, may be off by half of what is asked.
    """
    before, goal, patched, plain = (x.reshape(*x.shape[:2], -1) for x in (before, goal, patched, plain))
    effect, asked = patched - plain, np.asarray(goal - before, dtype=np.float64)
    if decoded:
        patched, plain = before + patched - plain, before
    error, missed, moved = (np.abs(x - goal).max(-1) for x in (patched, plain, before))
    informative = moved > tolerance
    near: Any = tolerance
    if decoded and informative.any():
        near = np.where(informative, moved, np.median(moved[informative])) / 2
    return {
        "correct": error <= near,
        "unpatched": missed <= near,
        "informative": informative,
        "error": error,
        "effect": effect,
        "wanted": asked,
    }


def _choice(p: NDArray[Any]) -> NDArray[np.int64]:
    """The most probable outcome; the lowest index within rounding of the maximum."""
    return (p >= p.max(-1, keepdims=True) - 1e-9).argmax(-1)
