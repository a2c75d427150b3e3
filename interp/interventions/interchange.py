"""Interchange interventions against an algorithm: does this place in the network carry that
variable?

The base is run with the activation at some places set to its value on the source, and compared with
the algorithm's counterfactual: the base with the variable set to its value in the source. Accuracy
(IIA) is the share of pairs with the counterfactual's outcome, "prediction" or "state". The column
``chance`` is the accuracy without an intervention, and ``iia_informative`` counts only the pairs
where the counterfactual differs from the algorithm's outcome on the base. The ``score`` is the
share of the counterfactual effect: 1 is all of it in every pair, 0 is no better than no effect.
:func:`carriers` tests many claims of what lives where, each with a random subspace as control. A
basis that was *learned* needs the controls of :mod:`interp.interventions.alignment`.

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
from interp.stats.intervals import Interval, ratio_interval
from interp.support.checks import checked, checked_fields, checked_result, non_empty
from interp.support.errors import require, require_known
from interp.support.provenance import provenance


@dataclass(frozen=True)
@checked_result
@checked
class InterchangeResult(Result):
    """Hits and effects of the interchange of one variable on an outcome, "prediction" or "state".

    Attributes:
        correct, unpatched: is the outcome the counterfactual's, with the intervention and without.
        informative: does the algorithm's counterfactual differ from its outcome on the base.
        error: largest difference from the counterfactual's probabilities, or state.
        effect, wanted: how far the intervention moves each number of the outcome, and how far
            setting the variable moves the algorithm's.
        participants: who played each episode; intervals are over them.
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
        """Interchange intervention accuracy: the share of pairs with the algorithm's outcome, from
        0 to 1.
        """
        return float(self.correct.mean())

    @property
    def iia_informative(self) -> float:
        """Accuracy over informative pairs; NaN when there is none."""
        return self.interval().estimate

    def interval(self, seed: int = 0) -> Interval:
        """Return the accuracy over informative pairs with its 95 % bootstrap interval over episodes."""
        hits = (self.correct & self.informative).sum(1)
        pairs = self.informative.sum(1)
        return ratio_interval(hits, pairs, seed=seed, participants=self.participants)

    def score(self, seed: int = 0) -> Interval:
        """Return ``1 - |effect - wanted|^2 / |wanted|^2`` with its 95 % interval; NaN if no effect
        is wanted.
        """
        missed, wanted = self._sums
        return ratio_interval(missed, wanted, seed=seed, participants=self.participants).complement

    def slope(self, seed: int = 0) -> Interval:
        """Return the least-squares slope of the effect on the wanted one: 1 where it has the wanted size."""
        along = _sum_products(self.effect, self.wanted)
        _, wanted = self._sums
        return ratio_interval(along, wanted, seed=seed, participants=self.participants)

    @property
    def sentence(self) -> str:
        """How often the outcome is the algorithm's, and how often it is without the intervention."""
        if not self.informative.any():
            return f"Setting {self.variable} changes no outcome of the algorithm: there is nothing to tell."
        where = " + ".join(self.places)
        chance = self.unpatched[self.informative].mean()
        accuracy = f"{self.iia_informative:.0%} of the pairs in which that differs"
        return (
            f"With {self.variable} set at {where}, the {self.outcome} is the algorithm's in {accuracy} "
            f"({chance:.0%} without)."
        )

    def _draw(self, figures: Any) -> Any:
        """Draw accuracy over informative pairs, and how much of the wanted move is made, with their intervals."""
        rows = {"accuracy": self.interval(), "score": self.score(), "slope": self.slope()}
        return figures.intervals(
            named(rows), xlabel=f"{self.variable}: share that is the algorithm's"
        )

    def to_frame(self) -> pd.DataFrame:
        """Return one row: score, slope and accuracies with intervals, chance, numbers of pairs."""
        interval = self.interval()
        chance = float("nan")
        if self.informative.any():
            chance = float(self.unpatched[self.informative].mean())
        places = " + ".join(self.places)
        of_nothing = float(self.unpatched.mean())
        row: dict[str, Any] = {"variable": self.variable, "places": places}
        row |= {"outcome": self.outcome, "iia": self.iia, "chance": of_nothing}
        row |= {
            "iia_informative": interval.estimate,
            "low": interval.low,
            "high": interval.high,
            "chance_informative": chance,
        }
        row["n_pairs"] = self.correct.size
        row["n_informative"] = int(self.informative.sum())
        row["max_error"] = float(self.error.max())
        row |= self.score().columns("score") | self.slope().columns("slope")
        return pd.DataFrame([row])

    @property
    def _sums(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Squares of what is missed and of what is wanted, per episode: the score is one less their ratio."""
        missed = self.effect - self.wanted
        return _sum_products(missed, missed), _sum_products(self.wanted, self.wanted)


def _sum_products(x: NDArray[Any], y: NDArray[Any]) -> NDArray[np.float64]:
    """Return the sum over rounds and numbers of products, per episode."""
    return np.asarray(np.einsum("btk,btk->b", x, y))


def require_comparable(model: Machine, algorithm: Algorithm, outcome: str) -> None:
    """Raise unless the algorithm's outcome can be compared with the model's.

    Args:
        model: the model.
        algorithm: of the same task.
        outcome: "prediction" or "state".
    """
    require_known("outcome", outcome, ("prediction", "state"))
    task = model.layout.task
    require(
        algorithm.task == task,
        f"{algorithm.name} is an algorithm of {algorithm.task}, not of {task} rounds",
    )
    require(
        outcome != "state" or bool(algorithm.written),
        f"{algorithm.name} does not say what a round writes into the state; give the algorithm written=...",
    )


def of_rounds(algorithm: Algorithm, episodes: Episodes, rounds: Sequence[int]) -> Values:
    """Return every variable at some rounds, ``[episode, round, ...]``.

    Args:
        algorithm: the algorithm.
        episodes: what it runs on.
        rounds: indices.
    """
    values = algorithm.run(episodes)
    return {key: of_key[:, list(rounds)] for key, of_key in values.items()}


_EXACT = 1e-6  # how near an exactly read state must be to count as equal


@dataclass(frozen=True)
class _Grades:
    """Hits and effects of an intervention, as :class:`InterchangeResult` holds them."""

    correct: NDArray[np.bool_]
    unpatched: NDArray[np.bool_]
    informative: NDArray[np.bool_]
    error: NDArray[np.float64]
    effect: NDArray[np.float64]
    wanted: NDArray[np.float64]


def _grade_choices(
    patched: NDArray[Any], plain: NDArray[Any], before: NDArray[Any], goal: NDArray[Any]
) -> _Grades:
    """Score predictions of one of several outcomes by the most probable one.

    Args:
        patched, plain: the model's probabilities with and without the intervention, ``[episode,
            round, outcome]``.
        before, goal: the algorithm's, without and with the variable set.
    """
    wanted = _most_probable(goal)
    correct = _most_probable(patched) == wanted
    unpatched = _most_probable(plain) == wanted
    informative = _most_probable(before) != wanted
    return _Grades(
        correct=correct,
        unpatched=unpatched,
        informative=informative,
        error=np.abs(patched - goal).max(-1),
        effect=patched - plain,
        wanted=goal - before,
    )


def _most_probable(probabilities: NDArray[Any]) -> NDArray[np.int_]:
    """Return the most probable outcomes; the lowest index within rounding of the maximum."""
    largest = probabilities.max(-1, keepdims=True)
    is_largest = probabilities >= largest - 1e-9
    return np.asarray(is_largest.argmax(-1))


def _grade_numbers(
    patched: NDArray[Any],
    plain: NDArray[Any],
    before: NDArray[Any],
    goal: NDArray[Any],
    *,
    by_moves: bool,
) -> _Grades:
    """Score real numbers by their distance from the algorithm's.

    Args:
        patched, plain, before, goal: as in :func:`_grade_choices`, ``[episode, round, number]``.
        by_moves: compare the model's move with the wanted one, and allow an error of half: decoded
            numbers and predictions of learned models are not exactly the algorithm's.
    """
    effect = patched - plain
    wanted = np.asarray(goal - before, dtype=np.float64)
    if by_moves:
        patched = before + patched - plain
        plain = before
    error = np.abs(patched - goal).max(-1)
    missed = np.abs(plain - goal).max(-1)
    distance = np.abs(before - goal).max(-1)
    informative = distance > _EXACT
    tolerance = np.full(distance.shape, _EXACT)
    if by_moves and informative.any():
        typical = np.median(distance[informative])
        tolerance = np.where(informative, distance, typical) / 2
    return _Grades(
        correct=error <= tolerance,
        unpatched=missed <= tolerance,
        informative=informative,
        error=error,
        effect=effect,
        wanted=wanted,
    )


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
    """Score the only edit, of a variable's name, against an algorithm's counterfactual.

    Args:
        model: the model.
        base: the rollout that is edited.
        edits: one, by the variable's name.
        rounds: in which it is made.
        outcome: what is compared.
        algorithm: gives the counterfactual.
        counterfactual: the algorithm's variables on the base, and with one of them set, ``[episode,
            round, ...]``.
        **settings: of the result.
    """
    of_state = outcome.key == "state"
    effects = run(
        Experiment(model, base, edits, rounds, readout=outcome, commit="target", update=of_state)
    ).require_taken("an interchange")
    patched, plain = effects.values[0].numpy(force=True), effects.unpatched.numpy(force=True)
    values_before, values_goal = counterfactual
    if of_state:
        before, goal = values_before[algorithm.written], values_goal[algorithm.written]
    else:
        before = np.asarray(algorithm.distribution(values_before), np.float64)
        goal = np.asarray(algorithm.distribution(values_goal), np.float64)
    if not of_state and model.layout.kind == "classes":
        grades = _grade_choices(patched, plain, before, goal)
    else:
        names = ", ".join(model.layout.outcomes)
        wanted_shape, shape = patched.shape, before.shape
        require(
            of_state or shape == goal.shape == wanted_shape,
            f"{algorithm.name} must predict {names} as [episode, round, number] "
            f"{wanted_shape}, got shape {shape}",
        )
        by_moves = not model.is_handwired
        if of_state:
            by_moves = outcome.decode is not None
        grades = _grade_numbers(
            _flatten(patched),
            _flatten(plain),
            _flatten(before),
            _flatten(goal),
            by_moves=by_moves,
        )
    ((variable, together),) = edits.items()
    places = tuple(str(edit.place) for edit in together)
    settings = provenance(
        model,
        algorithm=algorithm.key,
        parameters=dict(algorithm.parameters),
        rounds=list(rounds),
        **settings,
    )
    return InterchangeResult(
        variable=variable,
        places=places,
        outcome=outcome.key,
        **vars(grades),
        settings=settings,
        participants=participants_of(base.episodes),
    )


def _flatten(numbers: NDArray[Any]) -> NDArray[Any]:
    """Return numbers ``[episode, round, ...]`` with all that follow in one axis."""
    return numbers.reshape(*numbers.shape[:2], -1)


def _parse_variable(variable: str) -> tuple[str, tuple[int, ...] | None]:
    """Return a variable's key and the index of its element, None for all of it.

    >>> _parse_variable("votes"), _parse_variable("table[0, 1]")
    (('votes', None), ('table', (0, 1)))
    """
    key, bracket, inside = variable.partition("[")
    if not bracket:
        return key, None
    numbers = inside.removesuffix("]").split(",")
    is_index = all(number.strip().isdigit() for number in numbers)
    require(
        inside.endswith("]") and is_index,
        f"{variable!r} is neither a variable nor an element of one; write it as votes[0] or table[0, 1]",
    )
    return key, tuple(map(int, numbers))


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
    """Measure the interchange accuracy of ``variable`` at ``sites`` over pairs of episodes (i of
    base, i of source).

    Args:
        model: the model.
        base, source: episodes of the same sizes, or their rollouts; each is run through its
            history.
        algorithm: gives the counterfactual.
        variable: a variable's key ("votes"), or one element of it ("votes[0]").
        sites: what is interchanged in the network, all at once: sites, or places with a subspace
            each.
        outcome: what is compared, "prediction" or "state"; an
            :class:`~interp.interventions.experiment.Outcome` also has the decoder of a learned
            model's state.
        round: an int, a slice, a list or "all": the rounds in which the places are set, each
            separately. The choice token of a round stays the base's.
    """
    outcome = Outcome.named(outcome)
    require_comparable(model, algorithm, outcome.key)
    base_run, source_run = paired_runs(model, base, source, "interchange")
    rounds = select_rounds(round, base_run.n_rounds)
    before = of_rounds(algorithm, base_run.episodes, rounds)
    in_source = of_rounds(algorithm, source_run.episodes, rounds)
    key, element = _parse_variable(variable)
    wanted = algorithm.interchange(before, in_source, key, element)
    places = resolve_places(sites, model, base_run)
    return graded(
        model,
        base_run,
        edits={variable: [Edit(place, source_run) for place in places]},
        rounds=rounds,
        outcome=outcome,
        algorithm=algorithm,
        counterfactual=(before, wanted),
        commit=base_run.commit,
        tolerance=_EXACT,
    )


@dataclass(frozen=True)
@checked_fields
class Claim:
    """The claim that these places together hold ``variable``, and that ``outcome`` ("prediction" or
    "state") shows it.

    Places of a ``control`` cannot hold it: there the accuracy must be that without an intervention.

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
        """Make a claim about whole activations.

        Args:
            variable: its key.
            sites: as texts, all of them together.
            outcome: "prediction" or "state".
            control: True for places that cannot hold the variable.
            model: has the sites; any transformer when None.
        """
        places = tuple(Place(Site.parse(site, model)) for site in sites)
        return cls(variable, places, outcome=outcome, control=control)

    @classmethod
    def carried(
        cls, model: Machine, variable: str, outcome: str = "prediction"
    ) -> tuple[Claim, ...]:
        """Make claims that what a machine carries holds a variable: all of it, and each channel
        where there are several.

        Args:
            model: the machine.
            variable: its key.
            outcome: "prediction" or "state".
        """
        sites = ["latent"]
        if len(model.channels) > 1:
            sites += [f"latent@{channel.name}" for channel in model.channels]
        return tuple(cls.at(variable, [site], outcome, model=model) for site in sites)

    @classmethod
    def of(cls, model: Machine) -> list[Claim]:
        """List what a model's task claims of it, which names places as texts: tasks stand below this room."""
        claims: list[Claim] = []
        for key, sites, *how in catalog.of(model).analysis.claims(model):
            if sites is None:
                claims += cls.carried(model, key, *how[:1])
            else:
                claims.append(cls.at(key, sites, *how))
        return claims


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
    """Test claims of what lives where, each with a random subspace as control.

    Args:
        model, base, source, algorithm, round: as in :func:`interchange`.
        claims: at least one.
        decode: latents to the state, where a claim's outcome is "state" and the model has no exact
            readout.
        seed: seed of the random subspaces and of the bootstrap.

    Returns:
        A row per claim: accuracy over informative pairs and graded score with intervals, and those of its
        controls. A single number can move in no other direction: ``random`` is NaN there, and
        ``no_random``, a column of tables with such a claim, says so.
    """
    claims = non_empty("claims", claims, "at least one claim")
    runs = paired_runs(model, base, source, "interchange")

    def test(claim: Claim, places: Sequence[Place]) -> InterchangeResult:
        outcome = Outcome(claim.outcome, decode)
        return interchange(
            model, *runs, algorithm, claim.variable, places, outcome=outcome, round=round
        )

    rows = []
    for claim in claims:
        places = resolve_places(claim.places, model, runs[0])
        placebos = list_placebos(model, runs[0], places, seed)
        accuracy = score = float("nan")
        if placebos:
            random = test(claim, placebos)
            accuracy, score = random.iia_informative, random.score().estimate
        row = test(claim, claim.places).to_frame()
        row = row.assign(random=accuracy, random_score=score, control=claim.control)
        if not placebos and all(_is_plain_vector(place) for place in claim.places):
            row = row.assign(no_random="no other direction")
        rows.append(row)
    return pd.concat(rows, ignore_index=True)


def _is_plain_vector(place: Place) -> bool:
    """Return whether a place is a whole activation in which another direction could be drawn."""
    axes = place.site.kind.axes
    return place.basis is None and axes in ("pos", "latent", "")


def list_placebos(model: Machine, run: Rollout, places: Sequence[Place], seed: int) -> list[Place]:
    """List the control of each place that has one (:meth:`Place.placebo`), as wide as the
    activation there.

    Args:
        model: the model.
        run: its rollout, for the widths.
        places: the places.
        seed: seed of the directions.
    """
    first_row = Rows.of(run, [0]).part(slice(1))
    sites = [place.site for place in places]
    _, activations = passed(model, first_row, run.layout, watched=sites)
    controls: list[Place] = []
    for place in places:
        size = width = activations[place.site].shape[-1]
        if place.site.kind.axes == "latent":
            mask = carried_mask(model)[place.site.index(run.layout)[1]]
            width = int(mask.sum(-1).max())
        control = place.placebo(width, seed, size - width) if width else None
        if control is not None:
            controls.append(control)
    return controls
