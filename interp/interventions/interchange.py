"""Interchange interventions: does a site of the model carry a variable of an algorithm?

The model runs the base episode with the activation at a site set to its value in the source
episode. The result is compared with the algorithm's *counterfactual*: the algorithm on the base
with the variable set to its value in the source. The interchange intervention accuracy (IIA) is the
share of pairs with an outcome equal to the counterfactual's. The outcome is the round's prediction
or the state that it writes. The column ``chance`` is the accuracy without an intervention. A pair
is *informative* if the counterfactual differs from the algorithm's outcome on the base;
``iia_informative`` counts only these. The ``score`` compares sizes of effects: 1 means that every
effect equals the counterfactual one, and 0 is no better than no effect.

:func:`carriers` tests many claims about sites, each with a random subspace as the control. A
subspace that was *learned* needs the controls of :mod:`interp.interventions.alignment`.

docs/method/interchange.md says how effects are scored, and what an accuracy of 1 means.
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
from interp.interventions.experiment import (
    Edit,
    Experiment,
    Outcome,
    Rows,
    make_interval_table,
    run,
    run_one_round,
)
from interp.interventions.pairs import paired_runs
from interp.interventions.sites import (
    VECTOR_AXES,
    Place,
    Places,
    Site,
    carried_mask,
    resolve_places,
)
from interp.model.run import Rollout, Rounds, select_rounds
from interp.results.measure import Result
from interp.stats.intervals import Interval, ratio_interval, share_interval
from interp.support.checks import checked, checked_fields, checked_result, non_empty
from interp.support.errors import require, require_known
from interp.support.provenance import provenance


@dataclass(frozen=True)
@checked_result
@checked
class InterchangeResult(Result):
    """Result of interchange interventions. The model runs base episodes with some of its
    activations taken from source episodes. The algorithm does the same with one of its variables.
    Their outcomes are compared.

    A pair is a base episode and its source episode, in one round. The *counterfactual* is the
    algorithm's outcome on the base with the variable set to its value in the source. Arrays have
    one entry per pair, ``[episode, round]``; ``effect`` and ``wanted`` are
    ``[episode, round, number]``, with one number per outcome or element of the state.

    Attributes:
        variable: key of the variable.
        places: the sites (or subspaces of activations) that were interchanged, as texts.
        outcome: the compared outcome, "prediction" or "state".
        correct: whether the model's outcome with the intervention equals the counterfactual.
            Predicted distributions count as equal if the same outcome is most probable, other
            numbers if they agree within a tolerance (docs/method/interchange.md).
        unpatched: whether the model's outcome without the intervention equals the counterfactual.
        informative: whether setting the variable matters: the counterfactual differs from the
            algorithm's outcome on the base.
        error: largest absolute difference, over the numbers of the outcome, between the model's
            outcome with the intervention and the counterfactual. For decoded states, and for real
            numbers that a learned model predicts, ``effect`` and ``wanted`` are compared instead.
        effect: the model's outcome with the intervention minus its outcome without it.
        wanted: the counterfactual minus the algorithm's outcome on the base.
        settings: settings of the analysis, name and digest of the model, versions of packages.
        participants: index of the participant who played each episode, ``[episode]``; intervals
            resample participants. Without recorded participants, every episode counts as one.
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
        """Interchange intervention accuracy over all pairs (a base and its source episode, in one
        round).

        It is the share of pairs in which the model's outcome with the intervention equals the
        counterfactual. The counterfactual is the algorithm's outcome on the base with the variable
        set to its value in the source.
        """
        return float(self.correct.mean())

    @property
    def iia_informative(self) -> float:
        """Interchange intervention accuracy (:attr:`iia`) over the informative pairs only: those in
        which setting the variable changes the algorithm's outcome. NaN if there are none.
        """
        return self.interval().estimate

    def interval(self, seed: int = 0) -> Interval:
        """Return the interchange intervention accuracy over informative pairs
        (:attr:`iia_informative`), with its 95 % bootstrap interval over episodes. In informative
        pairs, setting the variable changes the algorithm's outcome.
        """
        hits = (self.correct & self.informative).sum(1)
        pairs = self.informative.sum(1)
        return share_interval(hits, pairs, seed=seed, participants=self.participants)

    def score(self, seed: int = 0) -> Interval:
        """Return a score for the sizes of effects,
        ``1 - sum |effect - wanted|^2 / sum |wanted|^2``, with its 95 % interval. Sums are over all
        episodes and rounds.

        ``effect`` is the change of the model's outcome by the intervention, and ``wanted`` the
        change of the algorithm's outcome when its variable is set. If they are always equal, the
        score is 1. A model without any effect has 0. The score is NaN if the algorithm's outcome
        never changes.
        """
        missed, wanted = self._sums_of_squares
        return ratio_interval(missed, wanted, seed=seed, participants=self.participants).complement

    def slope(self, seed: int = 0) -> Interval:
        """Return the size of the model's effects relative to the algorithm's, with its 95 %
        interval. It is the least-squares slope of :attr:`effect` over :attr:`wanted`, without
        intercept, so that effects of the same size have 1.
        """
        along = _sum_products(self.effect, self.wanted)
        _, wanted = self._sums_of_squares
        return ratio_interval(along, wanted, seed=seed, participants=self.participants)

    @property
    def sentence(self) -> str:
        """The finding in a sentence: how often the model's outcome equals the algorithm's
        counterfactual, with and without the intervention.
        """
        variable, informative = self.variable, self.informative
        if not informative.any():
            return (
                f"Setting {variable} changes no outcome of the algorithm: there is nothing to tell."
            )
        places = " + ".join(self.places)
        chance = self.unpatched[informative].mean()
        return (
            f"With {variable} set at {places}, the {self.outcome} is the algorithm's in "
            f"{self.iia_informative:.0%} of the pairs in which that differs ({chance:.0%} without)."
        )

    def _draw(self, figures: Any) -> Any:
        """Draw with 95 % intervals: the accuracy over informative pairs, the score (1 minus the
        relative squared error of the effects) and the slope (the relative size of the effects).
        """
        rows = {"accuracy": self.interval(), "score": self.score(), "slope": self.slope()}
        return figures.intervals(
            make_interval_table(rows), xlabel=f"{self.variable}: share that is the algorithm's"
        )

    def to_frame(self, *, seed: int = 0) -> pd.DataFrame:
        """Return a table with one row. ``seed`` is that of the bootstrap.

        ``iia`` is the share of pairs in which the model's outcome with the intervention equals the
        algorithm's with the variable set. ``chance`` is this share without an intervention in the
        model. ``iia_informative`` (with its 95 % interval ``low`` to ``high``) and
        ``chance_informative`` are the same over informative pairs, in which setting the variable
        changes the algorithm's outcome.

        ``score`` and ``slope`` compare the sizes of effects (:meth:`score`, :meth:`slope`), and
        have intervals as well (``score_low``, ...). ``n_pairs`` and ``n_informative`` are numbers
        of pairs. ``max_error`` is the largest absolute difference between the two outcomes. The
        other columns are ``variable``, ``places`` and ``outcome``.
        """
        interval = self.interval(seed)
        informative, unpatched = self.informative, self.unpatched
        n_informative = int(informative.sum())
        chance_informative = float("nan")
        if n_informative:
            chance_informative = float(unpatched[informative].mean())
        places = " + ".join(self.places)
        chance_over_all = float(unpatched.mean())
        n_pairs = self.correct.size
        max_error = float(self.error.max())
        row: dict[str, Any] = {
            "variable": self.variable,
            "places": places,
            "outcome": self.outcome,
            "iia": self.iia,
            "chance": chance_over_all,
            "iia_informative": interval.estimate,
            "low": interval.low,
            "high": interval.high,
            "chance_informative": chance_informative,
            "n_pairs": n_pairs,
            "n_informative": n_informative,
            "max_error": max_error,
        }
        row |= self.score(seed).columns("score") | self.slope(seed).columns("slope")
        return pd.DataFrame([row])

    @property
    def _sums_of_squares(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Two sums of squares, ``[episode]`` each: of ``effect - wanted`` and of ``wanted``. The
        score is 1 minus the ratio of their sums over episodes.
        """
        missed = self.effect - self.wanted
        return _sum_products(missed, missed), _sum_products(self.wanted, self.wanted)


def _sum_products(x: NDArray[Any], y: NDArray[Any]) -> NDArray[np.float64]:
    """Return the sum of ``x * y`` over rounds and the last axis, ``[episode]``. Both arrays are
    ``[episode, round, number]``.
    """
    return np.einsum("btk,btk->b", x, y)


def require_comparable(model: Machine, algorithm: Algorithm, outcome: str) -> None:
    """Raise an error if the algorithm's outcome cannot be compared with the model's: if the
    algorithm is of another task, or if the outcome is "state" and the algorithm does not define
    what a round writes into its state.

    Args:
        model: the model.
        algorithm: the algorithm.
        outcome: "prediction" or "state".
    """
    require_known("outcome", outcome, ("prediction", "state"))
    task = model.layout.task
    require(
        algorithm.task == task,
        f"{algorithm.name} is an algorithm of {algorithm.task}, not of {task} rounds",
    )
    require(
        outcome != "state" or algorithm.written,
        f"{algorithm.name} does not say what a round writes into the state; give the algorithm written=...",
    )


def variables_in_rounds(algorithm: Algorithm, episodes: Episodes, rounds: Sequence[int]) -> Values:
    """Run an algorithm, and return the values of its variables in some rounds.

    Args:
        algorithm: the algorithm.
        episodes: the episodes.
        rounds: indices of the rounds.

    Returns:
        Key of every variable -> its values, ``[episode, round, ...]``, with only these rounds.
    """
    by_key = algorithm.run(episodes)
    return {key: values[:, list(rounds)] for key, values in by_key.items()}


_EXACT_TOLERANCE = 1e-6  # largest error of a state with an exact readout that counts as equal


@dataclass(frozen=True)
class _Grades:
    """The comparison of a model's outcomes with the algorithm's counterfactual, in each episode and
    round.

    The fields are those of :class:`InterchangeResult` with the same names.

    Attributes:
        correct, unpatched: whether the outcome with and without the intervention equals the
            counterfactual, ``[episode, round]``.
        informative: whether the counterfactual differs from the algorithm's unchanged outcome,
            ``[episode, round]``.
        error: largest absolute difference from the counterfactual, ``[episode, round]``.
        effect, wanted: change of the model's and of the algorithm's outcome, ``[episode, round,
            number]``.
    """

    correct: NDArray[np.bool_]
    unpatched: NDArray[np.bool_]
    informative: NDArray[np.bool_]
    error: NDArray[np.float64]
    effect: NDArray[np.float64]
    wanted: NDArray[np.float64]


def _grade_choices(
    patched: NDArray[Any], plain: NDArray[Any], before: NDArray[Any], goal: NDArray[Any]
) -> _Grades:
    """Grade the model's choices (most probable outcomes): compare them with the choice of the
    algorithm after its variable is set.

    Args:
        patched, plain: the model's probabilities with and without the intervention, ``[episode,
            round, outcome]``.
        before, goal: the algorithm's probabilities before and after its variable is set,
            ``[episode, round, outcome]``.
    """
    counterfactual = _find_most_probable(goal)
    return _Grades(
        correct=_find_most_probable(patched) == counterfactual,
        unpatched=_find_most_probable(plain) == counterfactual,
        informative=_find_most_probable(before) != counterfactual,
        error=np.abs(patched - goal).max(-1),
        effect=patched - plain,
        wanted=goal - before,
    )


def _find_most_probable(probabilities: NDArray[Any]) -> NDArray[np.int_]:
    """Return the index of the most probable outcome, ``[...]``; the lowest index if several are
    tied up to rounding.
    """
    largest = probabilities.max(-1, keepdims=True)
    is_largest = probabilities >= largest - 1e-9
    return is_largest.argmax(-1)  # of booleans, argmax is the first True


def _grade_numbers(
    patched: NDArray[Any],
    plain: NDArray[Any],
    before: NDArray[Any],
    goal: NDArray[Any],
    *,
    by_moves: bool,
) -> _Grades:
    """Grade real numbers of the model: compare them with those of the algorithm after its variable
    is set. Close ones count as equal.

    Args:
        patched, plain: the model's numbers with and without the intervention, ``[episode, round,
            number]``.
        before, goal: the algorithm's numbers before and after its variable is set, ``[episode,
            round, number]``.
        by_moves: whether to compare the model's change with the algorithm's change. An error of up
            to half of the algorithm's change is then accepted. This is for decoded numbers and for
            learned models, which are not exactly the algorithm's. False accepts an error of 1e-6.
    """
    effect = patched - plain
    wanted = goal - before
    if by_moves:
        # The algorithm's number plus the model's change. The model's number without the
        # intervention cancels, and may differ from the algorithm's.
        patched = before + patched - plain
        plain = before
    # [episode, round]
    error = np.abs(patched - goal).max(-1)
    error_unpatched = np.abs(plain - goal).max(-1)
    wanted_size = np.abs(wanted).max(-1)
    informative = wanted_size > _EXACT_TOLERANCE
    tolerance: Any = _EXACT_TOLERANCE
    if by_moves and informative.any():
        # Where the algorithm does not change, half of its typical change is accepted.
        typical = np.median(wanted_size[informative])
        tolerance = np.where(informative, wanted_size, typical) / 2
    return _Grades(
        correct=error <= tolerance,
        unpatched=error_unpatched <= tolerance,
        informative=informative,
        error=error,
        effect=effect,
        wanted=wanted,
    )


def compare_outcomes(
    model: Machine,
    base: Rollout,
    edits: Mapping[str, Sequence[Edit]],
    rounds: Sequence[int],
    outcome: Outcome,
    algorithm: Algorithm,
    counterfactual: tuple[Values, Values],
    **settings: Any,
) -> InterchangeResult:
    """Set one variable in the model by edits, and compare the model's outcome with the algorithm's
    outcome after its variable is set.

    Args:
        model: the model.
        base: the model's rollout, in which the edits are made.
        edits: a mapping with one entry: key of the variable -> the edits that set it, which are
            made together.
        rounds: indices of the edited rounds.
        outcome: the compared outcome, "prediction" or "state".
        algorithm: the algorithm.
        counterfactual: the algorithm's variables in these rounds, before and after the variable is
            set: two mappings key -> values ``[episode, round, ...]``.
        **settings: further settings to record in the result.
    """
    is_state, layout = outcome.key == "state", model.layout
    experiment = Experiment(
        model,
        base,
        edits,
        rounds,
        readout=outcome,
        commit="target",  # the recorded choice, also if the edited model would choose otherwise
        update=is_state,  # not needed for the prediction
    )
    effects = run(experiment).require_all_edits("an interchange")
    patched = effects.values[0].numpy(force=True)  # of the only edit, [episode, round, number]
    plain = effects.unpatched.numpy(force=True)
    values_before, values_goal = counterfactual
    if is_state:
        written = algorithm.written
        grades = _grade_numbers(
            patched,
            plain,
            before=flatten_elements(values_before[written]),
            goal=flatten_elements(values_goal[written]),
            by_moves=outcome.decode is not None,
        )
    else:
        before = np.asarray(algorithm.distribution(values_before), np.float64)
        goal = np.asarray(algorithm.distribution(values_goal), np.float64)
        if layout.kind == "classes":
            grades = _grade_choices(patched, plain, before, goal)
        else:
            shape, wanted_shape = before.shape, patched.shape
            require(
                shape == goal.shape == wanted_shape,
                f"{algorithm.name} must predict {', '.join(layout.outcomes)} as [episode, round, number] "
                f"{wanted_shape}, got shape {shape}",
            )
            by_moves = not model.is_handwired
            grades = _grade_numbers(patched, plain, before, goal, by_moves=by_moves)
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


def flatten_elements(x: NDArray[Any]) -> NDArray[np.float64]:
    """Return ``x``, an array ``[episode, round, ...]``, as float64 ``[episode, round, element]``:
    all axes after the round are flattened into one.
    """
    n_numbers = int(np.prod(x.shape[2:]))
    numbers = np.asarray(x, dtype=np.float64)
    return numbers.reshape(*x.shape[:2], n_numbers)


def _parse_variable(variable: str) -> tuple[str, tuple[int, ...] | None]:
    """Return the key of a variable, and the index of the named element; None for the whole
    variable.

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
        f"{variable!r} is neither a variable nor an element of one; write it as votes[0] or table[0, 1], "
        "with indices in the order of the variable's labels, counted from 0",
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
    """Test whether some sites of a model carry a variable of an algorithm. The sites are set to
    their values in another episode, and so is the algorithm's variable. Measure how often the two
    then have the same outcome.

    The model runs the i-th episode of ``base`` with the sites set to their values in the i-th
    episode of ``source``. The *counterfactual* is the algorithm's outcome on the base episode, with
    the variable set to its value in the source episode.

    Everything else comes from the base: the state before the round, and the round's inputs. If the
    tokens of a round contain a choice (such as an action), the model reads the choice of the base
    run, even if its new prediction favours another one. The algorithm, however, recomputes all
    variables that depend on the one that is set, including its choice.

    Args:
        model: the model.
        base, source: episodes of the same sizes, or the model's rollouts of them.
        algorithm: the algorithm.
        variable: key of a variable ("votes"), or of one element of it ("votes[0]"), by its index.
        sites: the sites that are interchanged together, or places (subspaces of the activations at
            sites).
        outcome: what is compared: "prediction" (the predicted distribution), "state" (what the
            round writes into the algorithm's state), or an
            :class:`~interp.interventions.experiment.Outcome` with a decoder of a learned model's
            state.
        round: an int, a slice, a list or "all": rounds in which the sites are set, each separately.

    Returns:
        For each episode and round, whether the model's outcome equals the counterfactual, and by
        how much both changed.
    """
    outcome = Outcome.from_key(outcome)
    require_comparable(model, algorithm, outcome.key)
    base_run, source_run = paired_runs(model, base, source, "interchange")
    rounds = select_rounds(round, base_run.n_rounds)
    before = variables_in_rounds(algorithm, base_run.episodes, rounds)
    in_source = variables_in_rounds(algorithm, source_run.episodes, rounds)
    key, element = _parse_variable(variable)
    wanted = algorithm.interchange(before, in_source, key, element)
    places = resolve_places(sites, model, base_run)
    return compare_outcomes(
        model,
        base_run,
        edits={variable: [Edit(place, source_run) for place in places]},
        rounds=rounds,
        outcome=outcome,
        algorithm=algorithm,
        counterfactual=(before, wanted),
        commit=base_run.commit,
        tolerance=_EXACT_TOLERANCE,
    )


@dataclass(frozen=True)
@checked_fields
class Claim:
    """The claim that some places in a model together carry a variable of an algorithm. If it is
    true, replacing their activations by those of another episode changes the model's outcome in the
    same way as replacing the variable changes the algorithm's.

    >>> Claim.at("log_weights", ["latent@<z>"], "state").places[0].site
    Site(component='latent', layer=None, head=None, position='<z>')

    Attributes:
        variable: key of the variable.
        places: the places: sites, each with its whole activation or a subspace of it.
        outcome: the outcome that must change, "prediction" or "state".
        control: True if the places cannot carry the variable. Replacing their activations should
            then change nothing.
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
        """Make the claim that the activations at some sites, taken whole (not a subspace), carry a
        variable.

        The claim holds if the model behaves as if the variable had its value in another run, once
        these activations are replaced by those of the other run.

        Args:
            variable: key of the variable.
            sites: names of the sites, such as "latent@<z>"; all are replaced at the same time.
            outcome: what is compared with the algorithm after the replacement: the model's
                "prediction", or the decoded "state" that the round writes.
            control: True if the sites cannot carry the variable, so that the replacement should
                have no effect.
            model: the model that has the sites; None reads the names as sites of a transformer.

        Returns:
            The claim, which :func:`carriers` tests.
        """
        places = tuple(Place(Site.parse(site, model)) for site in sites)
        return cls(variable, places, outcome=outcome, control=control)

    @classmethod
    def make_for_state(
        cls, model: Machine, variable: str, outcome: str = "prediction"
    ) -> tuple[Claim, ...]:
        """Make claims that a model's carried state contains a variable. One claim is about the
        whole state. If the state has several channels (named parts, such as an LSTM's ``h`` and
        ``c``), there is also one for each channel.

        Args:
            model: the model.
            variable: key of the variable.
            outcome: what must change if the state is replaced: the model's "prediction", or the
                decoded "state" that the round writes.
        """
        sites = ["latent"]
        if len(model.channels) > 1:
            sites += [f"latent@{channel.name}" for channel in model.channels]
        return tuple(cls.at(variable, [site], outcome, model=model) for site in sites)

    @classmethod
    def of(cls, model: Machine) -> list[Claim]:
        """Return the claims that the model's task defines (``task.analysis.claims``): which sites
        of the model carry which variables.
        """
        claims: list[Claim] = []
        # A task's claim is (variable, sites, outcome, control); the last two may be missing.
        for key, sites, *outcome_and_control in catalog.of(model).analysis.claims(model):
            if sites is None:  # anywhere in the carried state
                outcome = outcome_and_control[:1]
                claims += cls.make_for_state(model, key, *outcome)
            else:
                claims.append(cls.at(key, sites, *outcome_and_control))
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
    """Test claims that some sites of a model carry a variable of an algorithm. The control of each
    claim is a random subspace at the same sites.

    A pair is a base episode and the source episode at the same index, in one round. The model runs
    the base episode with the claim's sites set to their values in the source. Its outcome is
    compared with the *counterfactual*: the algorithm's outcome on the base episode with the
    variable set to its value in the source.

    Args:
        model: the model.
        base, source: episodes of the same sizes, or the model's rollouts of them.
        algorithm: the algorithm with the variables.
        claims: the claims, at least one.
        round: rounds in which sites are set, each separately: an int, a slice, a list or "all".
        decode: function from latents ``[..., row, width]`` to the algorithm's state, for claims
            about the "state" of a model without an exact readout.
        seed: seed of the random subspaces and of the bootstrap.

    Returns:
        A table with one row per claim. ``iia_informative`` is the share of pairs in which the
        model's outcome equals the counterfactual. Only pairs count in which setting the variable
        changes the algorithm's outcome. Its 95 % interval is ``low`` to ``high``. ``score``
        compares sizes of effects (:meth:`InterchangeResult.score`): 1 means that all effects equal
        the algorithm's, 0 is no better than no effect.

        ``random`` and ``random_score`` are the same accuracy and score if a random subspace of the
        same sites is replaced instead. They are NaN if no random subspace is replaced: at heads, at
        attention scores, and where the activation is a single number. In the last case, the column
        ``no_random`` is "no other direction". ``control`` is True for claims that should fail
        (:attr:`Claim.control`). Other columns are those of :meth:`InterchangeResult.to_frame`.
    """
    claims = non_empty("claims", claims, "at least one claim")
    base_run, source_run = paired_runs(model, base, source, "interchange")

    def test(claim: Claim, places: Sequence[Place]) -> InterchangeResult:
        """Interchange a claim's variable at some places: its own, or those of the control."""
        return interchange(
            model,
            base_run,
            source_run,
            algorithm,
            claim.variable,
            places,
            outcome=Outcome(claim.outcome, decode),
            round=round,
        )

    rows = []
    for claim in claims:
        places = resolve_places(claim.places, model, base_run)
        placebos = list_placebos(model, base_run, places, seed)
        random_accuracy, random_score = float("nan"), float("nan")
        if placebos:
            random = test(claim, placebos)
            random_accuracy, random_score = random.iia_informative, random.score().estimate
        row = test(claim, places).to_frame(seed=seed)
        row = row.assign(random=random_accuracy, random_score=random_score, control=claim.control)
        # No control at a plain vector: it is a single number. At heads, controls are not defined.
        if not placebos and all(_is_plain_vector(place) for place in places):
            row = row.assign(no_random="no other direction")
        rows.append(row)
    return pd.concat(rows, ignore_index=True)


def _is_plain_vector(place: Place) -> bool:
    """Return whether a place is a whole vector: not a subspace, nor inside a head. Its control is a
    random direction.
    """
    return place.basis is None and place.site.kind.axes in VECTOR_AXES


def list_placebos(model: Machine, run: Rollout, places: Sequence[Place], seed: int) -> list[Place]:
    """Return controls for some places: the same sites, each with a random subspace of the
    activation (:meth:`Place.placebo`). Places without a possible control are left out.

    Args:
        model: the model.
        run: the model's rollout, which determines the widths.
        places: the places.
        seed: seed of the random directions.
    """
    # One row, round 0 of the first episode, suffices to see the widths.
    rows_of_round_0 = Rows.of(run, rounds=[0])  # one row per episode
    first_row = rows_of_round_0.part(slice(1))
    sites = [place.site for place in places]
    _, activations = run_one_round(model, first_row, run.layout, watched=sites)
    controls: list[Place] = []
    for place, site in zip(places, sites, strict=True):
        padded_width = activations[site].shape[-1]
        width = padded_width
        if site.kind.axes == "latent":
            _, rows = site.index(run.layout)
            mask = carried_mask(model)[rows]  # [row, width], or [width] for one row
            width = int(mask.sum(-1).max())  # of the widest row, without padding
        control = place.placebo(width, seed, padding=padded_width - width) if width else None
        if control is not None:
            controls.append(control)
    return controls
