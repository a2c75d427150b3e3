"""Interchange interventions against an algorithm: does this place in the network carry that variable?

The base is run with the activation at some places set to its value on the source, and compared with the algorithm's own
counterfactual: the base with the variable set to its value in the source. Accuracy (IIA) is the share of pairs whose
outcome, "prediction" or "state", is the counterfactual's; the column ``chance`` is the accuracy of doing nothing, and
``iia_informative`` counts only the pairs whose counterfactual differs from the algorithm's own outcome on the base. The
``score`` says how much of the counterfactual effect there is: 1 is all of it in every pair, 0 is no better than no
effect. :func:`carriers` tests many claims of what lives where, each beside a random subspace. A basis that was
*learned* needs the controls of :mod:`interp.interventions.alignment`.

How effects are scored, and what an accuracy of 1 says: docs/method/interchange.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float
from numpy.typing import NDArray
from torch import Tensor

from interp.core import catalog
from interp.core.algorithm import Algorithm, Episodes, Values, participants_of
from interp.core.machine import Machine
from interp.interventions.experiment import Edit, Experiment, Outcome, Rows, named, passed, run
from interp.interventions.pairs import paired_runs
from interp.interventions.sites import Place, Places, Site, carried_mask, resolve_places
from interp.model.run import Rollout, Rounds, select_rounds
from interp.results.measure import Result
from interp.stats.intervals import Interval, ratio_interval, resample_weights
from interp.support.checks import checked, checked_fields, non_empty
from interp.support.errors import require, require_known
from interp.support.provenance import provenance


@dataclass(frozen=True)
@checked
class InterchangeResult(Result):
    """Hits and effects of the interchange of one variable on an outcome, "prediction" or "state".

    Attributes:
        correct, unpatched: is the outcome the counterfactual's, with the intervention and without.
        informative: does the algorithm's counterfactual differ from its outcome on the base.
        error: largest difference from the counterfactual's probabilities, or state.
        effect, wanted: how far the intervention moves each number of the outcome, and setting the variable the
            algorithm's.
        participants: whose the episodes are, over whom intervals are.
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
    participants: Any = None

    @property
    def iia(self) -> float:
        """Interchange intervention accuracy: the share of pairs whose outcome is the algorithm's, from 0 to 1."""
        return float(self.correct.mean())

    @property
    def iia_informative(self) -> float:
        """Accuracy over informative pairs; NaN when there is none."""
        return self.interval().estimate

    def interval(self, seed: int = 0) -> Interval:
        """Accuracy over informative pairs with its 95 % bootstrap interval over episodes."""
        sums = (self.correct & self.informative).sum(1), self.informative.sum(1)
        return ratio_interval(*sums, seed=seed, participants=self.participants)

    def score(self, seed: int = 0) -> Interval:
        """``1 - |effect - wanted|^2 / |wanted|^2`` with its 95 % interval over episodes; NaN if nothing is wanted."""
        return ratio_interval(*self._sums, seed=seed, participants=self.participants).complement

    def slope(self, seed: int = 0) -> Interval:
        """The least-squares slope of the effect on the wanted one: 1 where it has the wanted size."""
        along = np.einsum("btk,btk->b", self.effect, self.wanted)
        return ratio_interval(along, self._sums[1], seed=seed, participants=self.participants)

    @property
    def sentence(self) -> str:
        """How often the outcome is the algorithm's, and how often it is without the intervention."""
        if not self.informative.any():
            return f"Setting {self.variable} changes no outcome of the algorithm: there is nothing to tell."
        where, chance = " + ".join(self.places), self.unpatched[self.informative].mean()
        return (
            f"With {self.variable} set at {where}, the {self.outcome} is the algorithm's in {self.iia_informative:.0%} "
            f"of the pairs in which that differs ({chance:.0%} without)."
        )

    def _draw(self, figures: Any) -> Any:
        """Accuracy over informative pairs, and how much of the wanted move is made, with their intervals."""
        rows = {"accuracy": self.interval(), "score": self.score(), "slope": self.slope()}
        return figures.intervals(
            named(rows), xlabel=f"{self.variable}: share that is the algorithm's"
        )

    def to_frame(self) -> pd.DataFrame:
        """One row: score, slope and accuracies with intervals, chance, numbers of pairs."""
        interval, asked = self.interval(), self.informative.any()
        row = {
            "variable": self.variable,
            "places": " + ".join(self.places),
            "outcome": self.outcome,
            "iia": self.iia,
            "chance": float(self.unpatched.mean()),  # of doing nothing
            "iia_informative": interval.estimate,
            "low": interval.low,
            "high": interval.high,
            "chance_informative": float(self.unpatched[self.informative].mean())
            if asked
            else float("nan"),
            "n_pairs": self.correct.size,
            "n_informative": int(self.informative.sum()),
            "max_error": float(self.error.max()),
            **self.score().columns("score"),
            **self.slope().columns("slope"),
        }
        return pd.DataFrame([row])

    @property
    def _sums(self) -> list[NDArray[np.float64]]:
        """Per episode, what is missed and what is asked, squared: of the score, one less their ratio."""
        return [np.einsum("btk,btk->b", x, x) for x in (self.effect - self.wanted, self.wanted)]


@checked
def score_difference(
    result: InterchangeResult, rival: InterchangeResult, seed: int = 0
) -> Interval:
    """The score less the score that the same pairs get under a rival algorithm; the bootstrap is paired.

    An algorithm in which setting the variable changes nothing wants no effect and has no score. The rival is then held
    to the other's scale: it misses the whole effect, ``1 - |effect|^2 / |wanted|^2``.
    """
    paired = result.effect.shape == rival.effect.shape
    require(
        paired,
        f"the two results are of different pairs: effects {result.effect.shape} and {rival.effect.shape}",
    )
    (missed, asked), (rival_missed, rival_asked) = result._sums, rival._sums
    require(
        bool(asked.sum()),
        f"setting {result.variable!r} changes no outcome of the algorithm: no score",
    )
    weights = resample_weights(
        len(result.effect), seed=seed, plain_first=True, participants=result.participants
    )
    with np.errstate(
        divide="ignore", invalid="ignore"
    ):  # draws in which nothing is wanted are left out
        score = 1 - (weights @ missed) / (weights @ asked)
        rivals = 1 - (weights @ rival_missed) / (
            weights @ (rival_asked if rival_asked.sum() else asked)
        )
    return Interval.of_samples((score - rivals)[1:], float((score - rivals)[0]))


def require_comparable(model: Machine, algorithm: Algorithm, outcome: str) -> None:
    """Raise unless the algorithm's ``outcome`` can be compared with the model's."""
    require_known("outcome", outcome, ("prediction", "state"))
    same = algorithm.task == model.layout.task
    require(
        same,
        f"{algorithm.name} is an algorithm of {algorithm.task}, not of {model.layout.task} rounds",
    )
    says = outcome != "state" or bool(algorithm.written)
    require(
        says,
        f"{algorithm.name} does not say what a round writes into the state; give the algorithm written=...",
    )


def of_rounds(algorithm: Algorithm, episodes: Episodes, rounds: Sequence[int]) -> Values:
    """Every variable at some rounds, ``[episode, round, ...]``."""
    return {key: values[:, list(rounds)] for key, values in algorithm.run(episodes).items()}


def graded(
    model: Machine,
    base: Rollout,
    edits: Mapping[str, Sequence[Edit]],
    rounds: Sequence[int],
    outcome: Outcome,
    algorithm: Algorithm,
    counterfactual: tuple[Values, Values],
    **settings: Any,
) -> InterchangeResult:
    """Hits and effects of the only edit, of a variable's name, held against an algorithm's counterfactual.

    ``counterfactual`` holds the algorithm's variables on the base, and with one of them set, ``[episode, round, ...]``.
    """
    of_state = outcome.key == "state"
    found = run(
        Experiment(model, base, edits, rounds, readout=outcome, commit="target", update=of_state)
    )
    patched, plain = found.values[0].numpy(force=True), found.unpatched.numpy(force=True)
    if of_state:
        before, goal = (values[algorithm.written] for values in counterfactual)
    else:
        before, goal = (
            np.asarray(algorithm.distribution(values), np.float64) for values in counterfactual
        )
    if not of_state and model.layout.kind == "classes":
        # The most probable outcomes; the lowest index within rounding of the maximum.
        wanted, *made = [
            (p >= p.max(-1, keepdims=True) - 1e-9).argmax(-1)
            for p in (goal, patched, plain, before)
        ]
        correct, unpatched, informative = (choice == wanted for choice in made)
        informative, error = ~informative, np.abs(patched - goal).max(-1)
        effect, asked = patched - plain, goal - before
    else:
        require(
            of_state or before.shape == goal.shape == patched.shape,
            f"{algorithm.name} must predict {', '.join(model.layout.outcomes)} as [episode, round, number] "
            f"{patched.shape}, got shape {before.shape}",
        )
        before, goal, patched, plain = (
            x.reshape(*x.shape[:2], -1) for x in (before, goal, patched, plain)
        )
        effect, asked = patched - plain, np.asarray(goal - before, dtype=np.float64)
        # What was decoded, or a learned model predicts, is held against the move that is asked, and may be off by half.
        moves = outcome.decode is not None if of_state else not model.is_handwired
        if moves:
            patched, plain = before + patched - plain, before
        error, missed, moved = (np.abs(x - goal).max(-1) for x in (patched, plain, before))
        informative, near = moved > _EXACT, np.full(moved.shape, _EXACT)
        if moves and informative.any():
            near = np.where(informative, moved, np.median(moved[informative])) / 2
        correct, unpatched = error <= near, missed <= near
    ((variable, together),) = edits.items()
    places, grades = (
        tuple(str(of.place) for of in together),
        (correct, unpatched, informative, error, effect, asked),
    )
    chosen = {
        "algorithm": algorithm.key,
        "parameters": dict(algorithm.parameters),
        "rounds": list(rounds),
        **settings,
    }
    about = provenance(model, **chosen), participants_of(base.episodes)
    return InterchangeResult(variable, places, outcome.key, *grades, *about)


_EXACT = 1e-6  # how near an exactly read state must be to count as equal


@checked
def interchange(
    model: Machine,
    base: Episodes | Rollout,
    source: Episodes | Rollout,
    algorithm: Algorithm,
    variable: str,
    sites: Places,
    *,
    outcome: str | Outcome = "prediction",
    round: Rounds = "all",
) -> InterchangeResult:
    """Interchange accuracy of ``variable`` at ``sites``, over every pair (episode i of base, episode i of source).

    Args:
        base, source: episodes of the same sizes, or their rollouts; each is run through its own history.
        variable: a variable's key ("votes"), or one element of it ("votes[0]").
        sites: what is interchanged in the network, all at once: sites, or places with a subspace each.
        outcome: what is compared, "prediction" or "state"; an :class:`~interp.interventions.experiment.Outcome` says
            how a learned model's state is decoded.
        round: an int, a slice, a list or "all": the rounds in which the places are set, each apart from the others.
            The choice token of a round stays the base's.
    """
    outcome = Outcome.named(outcome)
    require_comparable(model, algorithm, outcome.key)
    runs = paired_runs(model, base, source, "interchange")
    at = select_rounds(round, runs[0].n_rounds)
    before, theirs = (of_rounds(algorithm, run.episodes, at) for run in runs)
    key, bracket, inside = variable.partition("[")
    numbers = inside.removesuffix("]").split(",") if bracket else []
    good = inside.endswith("]") == bool(bracket) and all(
        number.strip().isdigit() for number in numbers
    )
    require(
        good,
        f"{variable!r} is neither a variable nor an element of one; write it as votes[0] or table[0, 1]",
    )
    wanted = algorithm.interchange(before, theirs, key, tuple(map(int, numbers)) or None)
    edits = {variable: [Edit(place, runs[1]) for place in resolve_places(sites, model, runs[0])]}
    settings = {"commit": runs[0].commit, "tolerance": _EXACT}
    return graded(model, runs[0], edits, at, outcome, algorithm, (before, wanted), **settings)


@dataclass(frozen=True)
@checked_fields
class Claim:
    """The claim that these places together hold ``variable``, and that ``outcome`` ("prediction" or "state") shows it.

    Places of a ``control`` cannot hold it: there the accuracy must be that of doing nothing.

    >>> Claim.at("log_weights", ["latent@<z>"], "state").places[0].site
    Site(component='latent', layer=None, head=None, position='<z>')
    """

    variable: str
    places: tuple[Place, ...]
    outcome: str = "prediction"
    control: bool = False

    @classmethod
    def at(
        cls,
        variable: str,
        sites: Sequence[str],
        outcome: str = "prediction",
        control: bool = False,
        model: Machine | None = None,
    ) -> Claim:
        """A claim about whole activations, at sites of any transformer, or of ``model``."""
        return cls(
            variable, tuple(Place(Site.parse(site, model)) for site in sites), outcome, control
        )

    @classmethod
    def carried(
        cls, model: Machine, variable: str, outcome: str = "prediction"
    ) -> tuple[Claim, ...]:
        """Claims that what a machine carries holds a variable: all of it, and each channel where there are several."""
        channels = (
            [f"latent@{channel.name}" for channel in model.channels]
            if len(model.channels) > 1
            else []
        )
        return tuple(
            cls.at(variable, [site], outcome, model=model) for site in ("latent", *channels)
        )

    @classmethod
    def of(cls, model: Machine) -> list[Claim]:
        """What a model's task claims of it, which names places as texts: tasks stand below this room."""
        rows = catalog.of(model).analysis.claims(model)
        made = [
            cls.carried(model, key, *how[:1]) if at is None else (cls.at(key, at, *how),)
            for key, at, *how in rows
        ]
        return [claim for claims in made for claim in claims]


@checked
def carriers(
    model: Machine,
    base: Episodes | Rollout,
    source: Episodes | Rollout,
    algorithm: Algorithm,
    claims: Sequence[Claim],
    *,
    round: Rounds = "all",
    decode: Callable[[Tensor], Tensor] | None = None,
    seed: int = 0,
) -> pd.DataFrame:
    """A row per claim: accuracy over informative pairs and graded score with intervals, and those of its controls.

    ``decode`` maps latents to the state where a claim's outcome is "state" and the model has no exact readout. A single
    number can move in no other direction: ``random`` is NaN there, and ``no_random``, a column of tables with such a
    claim, says so.
    """
    claims, runs = (
        non_empty("claims", claims, "at least one claim"),
        paired_runs(model, base, source, "interchange"),
    )

    def test(claim: Claim, places: Sequence[Place]) -> InterchangeResult:
        outcome = Outcome(claim.outcome, decode)
        return interchange(
            model, *runs, algorithm, claim.variable, places, outcome=outcome, round=round
        )

    rows = []
    for claim in claims:
        elsewhere = _placebos(model, runs[0], resolve_places(claim.places, model, runs[0]), seed)
        random = test(claim, elsewhere) if elsewhere else None
        wholes = [
            place.basis is None and place.site.kind.axes in ("pos", "latent", "")
            for place in claim.places
        ]
        both = (
            (random.iia_informative, random.score().estimate)
            if random
            else (float("nan"), float("nan"))
        )
        frame = test(claim, claim.places).to_frame()
        frame = frame.assign(random=both[0], random_score=both[1], control=claim.control)
        rows.append(
            frame.assign(no_random="no other direction") if all(wholes) and not elsewhere else frame
        )
    return pd.concat(rows, ignore_index=True)


def _placebos(model: Machine, run: Rollout, places: Sequence[Place], seed: int) -> list[Place]:
    """The control of each place that has one (:meth:`Place.placebo`), as wide as the activation there is in ``run``."""
    _, seen = passed(
        model,
        Rows.of(run, [0]).part(slice(1)),
        run.layout,
        watched=[place.site for place in places],
    )
    controls: list[Place] = []
    for place in places:
        size = width = seen[place.site].shape[-1]
        if place.site.kind.axes == "latent":
            width = int(carried_mask(model)[place.site.index(run.layout)[1]].sum(-1).max())
        control = place.placebo(width, seed, size - width) if width else None
        controls += [] if control is None else [control]
    return controls
