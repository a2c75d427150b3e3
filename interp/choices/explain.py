"""Find the algorithms that explain a player's choices, from the choices alone.

:func:`explain_choices` compares families of algorithms by their cross-validated loss, the loss on
held-out choices (:mod:`interp.choices.scoring`). Its answer is the model confidence set of Hansen,
Lunde and Nason: all families with a loss that the data cannot distinguish from the lowest loss. If
the set has one family, that family is named as the answer. ``docs/method/choices.md`` describes the
method and what it is not evidence of.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import special

from interp import tasks
from interp.choices.fitting import Array, checked_distributions
from interp.choices.offers import offers_of
from interp.choices.predictive import PredictiveCheck, check_predictions, successes_of
from interp.choices.scoring import (
    ChoiceData,
    FamilyScore,
    add_intervals,
    score_families,
    score_guess,
    score_predictions,
)
from interp.core.algorithm import Algorithm, Family, format_parameters
from interp.results.measure import NOT_RUN, Measure, Result, conjoin, join_words
from interp.stats.confidence_set import model_confidence_set
from interp.stats.intervals import NO_NUMBER, Interval
from interp.support.checks import array_of, checked, checked_result, index_by_key
from interp.support.errors import InputError, require
from interp.tasks.trials import usual_size

LEVEL = 0.95
"""Probability that the confidence set contains the family that predicts best."""
FEWEST_CHOICES = 32
"""Fewest choices that a fit needs."""
_MOST_LEFT = 0.02
"""Most nats per choice by which the best family may beat a machine that "chooses as the player"."""
_ROUNDING = 1e-9
"""Nats per choice; smaller differences are rounding errors, and count as 0."""
Verdict = Literal["named", "several", "no memory", "none"]


@dataclass(frozen=True)
@checked_result
class BesideMachine:
    """Comparison of a player's choices with the predictions of a machine, such as a network.

    The loss of a machine is minus the log of the probability that it gives to the player's choice,
    in nats. It is cross-validated: the temperature and the lapse rate (share of uniform guesses)
    that map the machine's predictions to choices are fitted to other choices than those scored.

    Attributes:
        over_floor: loss per choice of the best memoryless family of algorithms (its predictions do
            not depend on earlier rounds), minus the machine's loss.
        over_untrained: loss per choice of an untrained copy of the machine, minus the machine's
            loss; NaN without a copy.
        left: the machine's loss per choice, minus that of the best family of algorithms.
        check: statistics of the player's choices, compared with those of simulated players who
            choose by the machine's predictions.
    """

    over_floor: Interval
    over_untrained: Interval
    left: Interval
    check: PredictiveCheck

    @property
    def measure(self) -> Measure:
        """The claim that the player chooses as the machine does, with its number and verdict.

        It is true if all of these conditions are true:

        * the best memoryless family loses more than the machine (:attr:`over_floor` is above 0);
        * an untrained copy loses more than the machine (:attr:`over_untrained` is above 0);
        * the machine loses less than .02 nats per choice more than the best family (:attr:`left`).

        One condition supplies the number and the verdict: the first that is false; otherwise, the
        first that is undecided; otherwise, the first of the list.
        """
        # The three have no claims of their own; `conjoin` gives them one together. They need no
        # controls, since the first two numbers are differences from the controls.
        over_memoryless = Measure(
            key="beside",
            claim="",
            number=self.over_floor,
            threshold=_ROUNDING,
            about="saved over the best family without a memory",
            unit="nats a choice",
            is_share=False,
            needs_control=False,
        )
        not_run = f"{NOT_RUN}: give an untrained copy's predictions"
        has_untrained = not np.isnan(self.over_untrained.low)
        over_untrained = Measure(
            key="beside",
            claim="",
            number=self.over_untrained,
            threshold=_ROUNDING,
            about="saved over an untrained copy",
            unit="nats a choice",
            is_share=False,
            needs_control=False,
            # Without a copy the number is NaN, so the verdict is "undecided"; this is its reason.
            unless={} if has_untrained else {"undecided": not_run},
        )
        remaining = Measure(
            key="beside",
            claim="",
            number=self.left,
            threshold=_MOST_LEFT,
            side="below",
            about="left to the best family",
            unit="nats a choice",
            is_share=False,
            needs_control=False,
        )
        return conjoin(
            [over_memoryless, over_untrained, remaining],
            claim="The player chooses as the machine does",
            yes="chooses as the machine does",
            no="chooses differently than the machine",
        )


@dataclass(frozen=True, repr=False)
@checked_result
class ChoiceExplanation(Result):
    """Which families of algorithms explain a player's choices.

    The loss of a family is minus the log of the probability that it gives to a choice, in nats. It
    is cross-validated: the family's parameters are fitted to three quarters of the player's data,
    and the choices in the other quarter are scored. A unit is an independent part of the data: a
    participant, an episode or a block of trials. All choices of a unit are in the same quarter.

    Attributes:
        scores: key of a family -> its score; the family with the lowest loss is first.
        units: loss summed over the choices of each unit, ``[unit, family]``. Families are in the
            order of ``scores``.
        p_values: key of a family -> p-value of the hypothesis that it predicts as well as the best
            family. The confidence set contains the families with a p-value of at least .05 (1 -
            :data:`LEVEL`).
        checks: key of a family -> posterior-predictive check, for each family in the confidence
            set.
        n_choices: number of choices.
        agreement: share of choices that are the likeliest outcome of the best family, with
            parameters that were fitted to other choices. Choices where several outcomes are
            likeliest are left out.
        algorithm: the best family's algorithm with the parameters that were fitted to all choices;
            None if the best family is a constant guess.
        beside: name of a machine -> comparison of the player's choices with its predictions.
    """

    scores: Mapping[str, FamilyScore]
    units: Array = field(repr=False)
    p_values: Mapping[str, float]
    checks: Mapping[str, PredictiveCheck] = field(repr=False)
    n_choices: int
    agreement: float
    algorithm: Algorithm | None = field(default=None, repr=False)
    beside: Mapping[str, BesideMachine] = field(default_factory=dict)

    @property
    def closest(self) -> str:
        """The key of the family of algorithms with the lowest cross-validated loss, whether or not
        it explains the choices.
        """
        return next(iter(self.scores))

    @property
    def confidence_set(self) -> tuple[str, ...]:
        """The keys of all families of algorithms with a cross-validated loss that the data cannot
        distinguish from the lowest one. The family with the lowest loss is first.
        """
        least_p = 1 - LEVEL
        return tuple(key for key in self.scores if self.p_values[key] >= least_p)

    @property
    def floor(self) -> str:
        """The key of the memoryless family with the lowest cross-validated loss. The predictions of
        a memoryless family do not depend on earlier rounds.
        """
        return next(key for key, score in self.scores.items() if score.memoryless)

    @property
    def _closest_score(self) -> FamilyScore:
        return self.scores[self.closest]

    @property
    def parameters(self) -> Mapping[str, float]:
        """Name of a parameter -> its value, fitted to all choices, for the closest family (lowest
        cross-validated loss).
        """
        return self._closest_score.parameters

    @property
    def intervals(self) -> Mapping[str, Interval]:
        """Name of a real-valued parameter -> its 95 % profile likelihood interval, for the closest
        family (lowest cross-validated loss).
        """
        return self._closest_score.intervals

    @property
    def bound_sentence(self) -> str:
        """A sentence that names the parameters of the closest family (lowest cross-validated loss)
        that lie at an end of the searched range, with their values; "" if there are none.
        """
        score = self._closest_score
        at_bound = {name: score.parameters[name] for name in score.at_bound}
        if not at_bound:
            return ""
        return f"At an end of its search, so that only a bound is known: {format_parameters(at_bound)}."

    @property
    def nats(self) -> Interval:
        """The lowest cross-validated loss of all families of algorithms, in nats per choice, with
        its 95 % confidence interval.
        """
        return _average_per_choice(self.units[:, 0], self.n_choices)

    @property
    def floor_nats(self) -> Interval:
        """The cross-validated loss of the best memoryless family (its predictions do not depend on
        earlier rounds), in nats per choice, with its 95 % confidence interval.
        """
        return _average_per_choice(self._losses_of(self.floor), self.n_choices)

    @property
    def over_floor(self) -> Interval:
        """Cross-validated loss of the best memoryless family (its predictions do not depend on
        earlier rounds) minus that of the best family, in nats per choice, with its 95 % confidence
        interval.
        """
        return self.behind(self.floor)

    def behind(self, key: str) -> Interval:
        """Return the cross-validated loss of a family minus the lowest loss of all families, in
        nats per choice, with the 95 % confidence interval of this difference.

        Args:
            key: key of the family.
        """
        return _average_per_choice(self._losses_of(key) - self.units[:, 0], self.n_choices)

    def _losses_of(self, key: str) -> Array:
        """Return the cross-validated loss of the family ``key``, summed over each unit's choices,
        ``[unit]``.
        """
        return self.units[:, list(self.scores).index(key)]

    @property
    def verdict(self) -> Verdict:
        """How many families explain the choices: the first of these words that applies.

        * "none": no family in the confidence set (those that may have the lowest loss) passes its
          posterior-predictive check;
        * "no memory": a family that ignores earlier rounds is in the set;
        * "named": the set has only one family;
        * "several": the set has more than one family.
        """
        if not any(check.passes for check in self.checks.values()):
            return "none"
        if any(self.scores[key].memoryless for key in self.confidence_set):
            return "no memory"
        return "named" if len(self.confidence_set) == 1 else "several"

    @property
    def family(self) -> str | None:
        """The key of the only family that explains the choices; None unless the verdict is "named"."""
        return self.closest if self.verdict == "named" else None

    @property
    def measure(self) -> Measure:
        """The claim that the choices depend on earlier rounds.

        Its number is :attr:`over_floor`: the loss of the best family that ignores earlier rounds,
        minus the loss of the best family, in nats per choice. The claim holds if the number is
        above 0.
        """
        return Measure(
            key="memory",
            claim="The choices depend on earlier rounds",
            number=self.over_floor,
            threshold=_ROUNDING,
            about=f"{self._closest_score.name}, over the best family without a memory",
            unit="nats a choice",
            is_share=False,
            needs_control=False,  # the number is a difference from the control
            yes="chooses by what it saw before",
        )

    @property
    def answer(self) -> str:
        """A phrase that names the families of algorithms that explain the choices, such as
        "Rescorla-Wagner or win-stay lose-shift". It says instead that no memory shows, if one of
        these families ignores earlier rounds; or that no family explains the choices.
        """
        names = [self.scores[key].name for key in self.confidence_set]
        closest = self._closest_score.name
        by_verdict = {
            "named": names[0],
            "several": " or ".join(names),
            "no memory": "no memory shows",
            "none": f"none of these; closest {closest}",
        }
        return by_verdict[self.verdict]

    @property
    def sentence(self) -> str:
        """A sentence that says which families of algorithms explain the choices, with the
        parameters of the family with the lowest cross-validated loss.
        """
        score = self._closest_score
        parameters = format_parameters(score.parameters)
        closest = f"{score.name} ({parameters})" if parameters else score.name
        names = [self.scores[key].name for key in self.confidence_set]
        if self.verdict == "none":
            failures = ", ".join(self.checks[self.closest].failures)
            return (
                "None of these families explains the choices: "
                f"players of {closest}, the closest, differ in {failures}."
            )
        if self.verdict == "no memory":
            floor = self.scores[self.floor].name
            return f"No memory shows in these choices: no family predicts them significantly better than {floor}."
        if self.verdict == "named":
            return f"These choices are predicted best by {closest}; every other family predicts them worse."
        return (
            f"The losses of {len(names)} families do not differ significantly on these choices: "
            f"{join_words(names)}. The best is {closest}."
        )

    def _draw(self, figures: Any) -> Any:
        """Draw how much each family's cross-validated loss exceeds the lowest loss of all families;
        families without a memory are grey.

        Args:
            figures: module with the package's plotting functions.
        """
        frame = self.to_frame()
        # `figures.intervals` needs the columns "estimate", "low" and "high", and draws rows with a
        # true "control" in grey.
        drawn = frame.rename(columns={"behind": "estimate", "memoryless": "control"})
        drawn["low"] = frame["behind_low"]
        drawn["high"] = frame["behind_high"]
        return figures.intervals(drawn, xlabel="nats a choice lost beyond the best, held out")

    def to_frame(self) -> pd.DataFrame:
        """Return a table with one row per family, the one with the lowest cross-validated loss
        first.

        The columns are:

        * family (its key) and name;
        * memoryless: True if its predictions do not depend on earlier rounds;
        * parameters (in words), lapse (share of uniform guesses) and temperature, fitted to all
          choices;
        * at_bound: names of the parameters that lie at an end of the searched range;
        * nats: cross-validated loss per choice;
        * behind: nats minus that of the first family;
        * behind_low, behind_high and standard_error: the 95 % interval and the standard error of
          this difference, over units (participants, episodes or blocks of trials);
        * p: p-value of the hypothesis that the family predicts as well as the best one;
        * in_set: True if p is at least .05, so that the family is in the confidence set;
        * passes: whether it passes its posterior-predictive check; None if it is not in the set.
        """
        return pd.DataFrame([self._row(key) for key in self.scores])

    def _row(self, key: str) -> dict[str, Any]:
        """Return one family's row of the table of :meth:`to_frame`: name of a column -> value.

        Args:
            key: key of the family.
        """
        score = self.scores[key]
        losses = self._losses_of(key)  # [unit]
        difference = losses - self.units[:, 0]  # column 0 is the family with the lowest loss
        check = self.checks.get(key)
        n_choices = self.n_choices
        nats = float(losses.sum()) / n_choices
        # Columns "behind", "behind_low" and "behind_high": loss per choice minus that of the best
        # family, and the bounds of its interval.
        behind = _average_per_choice(difference, n_choices).columns("behind")
        passes = check.passes if check else None
        link = score.link
        return {
            "family": key,
            "name": score.name,
            "nats": nats,
            **behind,
            "standard_error": _standard_error(difference, n_choices),
            "in_set": key in self.confidence_set,
            "p": self.p_values[key],
            "passes": passes,
            "memoryless": score.memoryless,
            "lapse": link.lapse,
            "temperature": link.temperature,
            "parameters": format_parameters(score.parameters),
            "at_bound": ", ".join(score.at_bound),
        }

    def check_frame(self) -> pd.DataFrame:
        """Return a table of the posterior-predictive checks, with one row per statistic of each
        family in the confidence set.

        The columns are family (its key) and those of
        :meth:`~interp.choices.predictive.PredictiveCheck.to_frame`: statistic, observed, expected,
        spread, n_choices and z.
        """
        frames = {key: check.to_frame() for key, check in self.checks.items()}
        # The keys become an index level, and this the column "family"; rows keep their own index.
        return pd.concat(frames, names=["family", None]).reset_index("family")


def _average_per_choice(sums: Array, n_choices: int) -> Interval:
    """Return the mean of a quantity per choice, such as the loss, with its 95 % confidence interval
    from Student's t distribution.

    Args:
        sums: sum of the quantity over the choices of each independent unit (such as a participant),
            ``[unit]``.
        n_choices: number of choices of all units together.
    """
    mean = float(sums.sum()) / n_choices
    quantile = float(special.stdtrit(len(sums) - 1, 0.975))
    half_width = quantile * _standard_error(sums, n_choices)
    return Interval(mean, mean - half_width, mean + half_width)


def _standard_error(sums: Array, n_choices: int) -> float:
    """Return the standard error of the mean of a quantity per choice, such as the loss.

    Args:
        sums: sum of the quantity over the choices of each independent unit (such as a participant),
            ``[unit]``.
        n_choices: number of choices of all units together.
    """
    # Units are independent, so the variance of their total is the sum of their variances.
    error_of_total = sums.std(ddof=1) * np.sqrt(len(sums))
    return float(error_of_total) / n_choices


@checked
def explain_choices(
    episodes: Any,
    choices: Any,
    *,
    families: Sequence[Family] | None = None,
    beside: Mapping[str, tuple[Any, Any]] | None = None,
    seed: int = 0,
) -> ChoiceExplanation:
    """Find the families of algorithms that explain a player's choices. A family is an algorithm
    with free parameters, which are fitted to the choices. The families that explain the choices are
    those with a cross-validated loss that the data cannot distinguish from the lowest. If none of
    these passes a check against simulated players, no family explains the choices.

    Args:
        episodes: episodes of one task, such as :class:`~interp.tasks.bandit.BanditEpisodes`, with
            what the player saw.
        choices: index of the chosen outcome, ``[episode, round]``; NaN where no choice was made. At
            least 32 choices.
        families: the candidate families; by default all of the task's.
        beside: machines to compare the player with: name -> (predictions of the machine,
            predictions of an untrained copy or None). Predictions are probabilities on the same
            episodes, ``[episode, round, outcome]``.
        seed: seed of the bootstrap over units (participants, episodes or blocks of trials).

    Returns:
        The families with their cross-validated losses, those of them that explain the choices, and
        the comparison with each machine.

    Raises:
        InputError: if choices have another shape, are not indices of outcomes, or are fewer than
            32.
    """
    task = tasks.of(episodes)
    chosen = checked_choices(episodes, choices)
    rows = np.flatnonzero(~np.isnan(chosen).all(1))  # the episodes with a choice
    chosen_families = select_families(episodes, families)
    data = ChoiceData(episodes.select(rows), chosen[rows], task.data.first_asked)
    # The data were made without players, so all choices are those of one player.
    (scores,) = scores_of_players(data, chosen_families)
    machines = {}
    for name, (trained, untrained) in (beside or {}).items():
        if trained is None:
            raise InputError(
                f"{name!r} has no predictions; only those of its untrained copy may be None"
            )
        machines[name] = _compare_with_machine(data, scores, episodes, rows, trained, untrained)
    return explanation_of(
        data, player=0, scores=scores, families=chosen_families, seed=seed, beside=machines
    )


def scores_of_players(data: ChoiceData, families: Mapping[str, Family]) -> list[list[FamilyScore]]:
    """Score every family, and a constant guess, on the choices of each player. Confidence intervals
    of the parameters are added for each player's best family.

    Args:
        data: the choices of all players.
        families: key -> candidate family.

    Returns:
        For each player a list of scores: one for each family, in the order of ``families``, then
        that of the guess.
    """
    by_family = score_families(data, families)  # key -> [player]
    any_score = next(iter(by_family.values()))[0]
    guesses = score_guess(data, n_outcomes=any_score.fitted.shape[-1])  # [player]
    columns = [*by_family.values(), guesses]  # [family, the guess last][player]
    by_player = [list(scores) for scores in zip(*columns, strict=True)]  # [player][family]
    # Index of each player's best score: that of a family, or the last one, which is the guess's.
    best_indices = []
    for scores in by_player:
        held_out_losses = [score.losses.sum() for score in scores]
        best_indices.append(int(np.argmin(held_out_losses)))
    for index, family in enumerate(families.values()):
        best_scores = {}  # player -> score, for the players whose best family is this one
        for player, best_index in enumerate(best_indices):
            if best_index == index:
                best_scores[player] = by_player[player][index]
        # One call per family, because a vectorised family is profiled for all players at once.
        for player, score in add_intervals(data, family, best_scores).items():
            by_player[player][index] = score
    return by_player


def checked_choices(episodes: Any, choices: Any) -> Array:
    """Check choices, and return them as floats, ``[episode, round]``. Choices in rounds that the
    task does not score become NaN.

    Args:
        episodes: episodes of one task, such as :class:`~interp.tasks.bandit.BanditEpisodes`, with
            what the player saw.
        choices: index of the chosen outcome, ``[episode, round]``; NaN where no choice was made.

    Raises:
        InputError: if choices have another shape, are not indices of outcomes, were not offered, or
            are fewer than 32 (:data:`FEWEST_CHOICES`), or if the task predicts real numbers.
    """
    task = tasks.of(episodes)
    chosen = array_of("choices", choices).astype(np.float64)
    expected_shape = (len(episodes), episodes.n_rounds)
    require(
        chosen.shape == expected_shape,
        f"choices must be [episode, round] = {expected_shape}, got shape {chosen.shape}",
    )
    require(task.kind == "classes", f"{task.name} predicts real numbers; choices are of outcomes")
    chosen = np.where(episodes.scored, chosen, np.nan)
    known = chosen[~np.isnan(chosen)]
    are_outcomes = (known == np.floor(known)) & (known >= 0)
    require(
        known.size > 0 and are_outcomes.all(),
        "choices must be outcomes 0, 1, ..., or NaN, and not all of them NaN",
    )
    require(
        known.size >= FEWEST_CHOICES,
        f"a fit needs at least {FEWEST_CHOICES} choices, got {known.size}; play more",
    )
    offers = offers_of(episodes)
    if offers is not None:
        was_offered = (offers == chosen[..., None]).any(-1)
        is_right = was_offered | np.isnan(chosen)
        require(is_right.all(), "choices must be among the offers of their round, or NaN")
    return chosen


def select_families(episodes: Any, families: Sequence[Family] | None) -> Mapping[str, Family]:
    """Return the candidate families, with the ranges of their parameters converted to the scale of
    the data, such as the usual size of rewards.

    Args:
        episodes: episodes of one task, such as :class:`~interp.tasks.bandit.BanditEpisodes`, with
            what the player saw.
        families: the candidate families; None for all of the task's.

    Returns:
        Key of a family -> family.
    """
    chosen_families = (
        tasks.of(episodes).rivals() if families is None else index_by_key(families, "family")
    )
    require(
        chosen_families,
        "no family of algorithms to ask; give families=None for all of the task's",
    )
    return {key: _scale_to_data(family, episodes) for key, family in chosen_families.items()}


def _scale_to_data(family: Family, episodes: Any) -> Family:
    """Return the family with the ranges of its parameters in the units of the data.

    A parameter may be per unit of a quantity, such as an inverse temperature per unit of reward.
    The values of its grid are then divided by the usual size of this quantity in the episodes. So a
    family explains rewards in cents as well as rewards in euros.

    Args:
        family: the family.
        episodes: episodes of one task, such as :class:`~interp.tasks.bandit.BanditEpisodes`, with
            what the player saw.
    """
    searched = []
    for parameter in family.searched:
        if parameter.unit:  # the name of an array of the episodes, such as "rewards"
            counted = getattr(episodes, parameter.unit)[episodes.counted]
            size = usual_size(pd.Series(counted, dtype=float))
            grid = tuple(float(value) / size for value in parameter.grid)
            parameter = replace(parameter, grid=grid)
        searched.append(parameter)
    return replace(family, searched=tuple(searched))


def explanation_of(
    data: ChoiceData,
    player: int,
    scores: Sequence[FamilyScore],
    families: Mapping[str, Family],
    *,
    seed: int,
    beside: Mapping[str, BesideMachine] | None = None,
) -> ChoiceExplanation:
    """Combine the scores of one player into an explanation: confidence set, checks and best
    algorithm.

    Args:
        data: the choices of all players.
        player: index of the player.
        scores: the player's score of every family, and of a constant guess.
        families: key -> candidate family.
        seed: seed of the bootstrap over units (participants, episodes or blocks of trials).
        beside: name of a machine -> comparison of the player with it; stored in the result.

    Returns:
        Which families explain the player's choices, with the p-value of each family.
    """
    rows = data.rows(player)
    known = data.known[rows]
    choices = data.choices[rows]
    # The lowest loss comes first. If losses are equal, a memoryless family precedes the others,
    # because it explains the choices by less.
    ranked = sorted(scores, key=lambda score: (float(score.losses.sum()), not score.memoryless))
    by_family = [sum_units(score.losses, data.units[rows], known) for score in ranked]
    units = np.stack(by_family, axis=1)  # [unit, family]
    confidence = model_confidence_set(units, LEVEL, seed=seed)
    p_values = {score.key: float(p) for score, p in zip(ranked, confidence.p_values, strict=True)}
    checks = {}
    for score in ranked:
        if p_values[score.key] >= 1 - LEVEL:  # the family is in the confidence set
            checks[score.key] = check_player(data, player, score.fitted)
    closest = ranked[0]
    algorithm = None
    if closest.key in families:  # not the constant guess
        algorithm = families[closest.key].make(**closest.parameters)
    has_likeliest = known & (closest.prefers >= 0)  # -1 marks several outcomes that are likeliest
    agrees = (closest.prefers == choices)[has_likeliest]
    agreement = float(agrees.mean()) if agrees.size else float("nan")
    return ChoiceExplanation(
        scores={score.key: score for score in ranked},
        units=units,
        p_values=p_values,
        checks=checks,
        n_choices=int(known.sum()),
        agreement=agreement,
        algorithm=algorithm,
        beside=beside or {},
    )


def sum_units(
    losses: Array, units: NDArray[np.int64], known: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """Add up the losses of the choices of each independent unit (participant, episode or block of
    trials).

    Args:
        losses: loss of each choice, ``[episode, round]``.
        units: index of the unit of each choice, ``[episode, round]``
            (:func:`~interp.choices.scoring.number_units`).
        known: True where a choice was made, ``[episode, round]``.

    Returns:
        The sums, ``[unit]``.
    """
    return np.bincount(units[known], losses[known]).astype(np.float64)


def check_player(data: ChoiceData, player: int, q: Array) -> PredictiveCheck:
    """Compare the statistics of a player's choices with those of simulated players who choose by a
    fitted family's probabilities.

    Args:
        data: the choices of all players.
        player: index of the player.
        q: the family's probability of each outcome, ``[episode, round, outcome]``; only the
            player's episodes, and only their scored rounds: those from index ``data.first_asked``
            on. ``data`` has the choices of these rounds, too.

    Returns:
        Statistics, such as how often a choice is repeated after a success, of the player and of
        simulated players.
    """
    rows = data.rows(player)
    known = data.known[rows]
    choices = data.choices[rows]
    episodes = data.episodes.select(rows)
    # The episodes have all rounds; `successes_of` leaves out those before the first scored one.
    successes = successes_of(episodes, choices, data.first_asked)
    # "Player" may stand for several participants whose choices are fitted together. The check then
    # accounts for differences between them.
    participants = None
    if episodes.participants is not None:
        _, indices = np.unique(episodes.participants, return_inverse=True)
        participants = indices if indices.max() > 0 else None
    return check_predictions(q, choices, known, successes, participants, data.offers_in(rows))


def _compare_with_machine(
    data: ChoiceData,
    scores: Sequence[FamilyScore],
    episodes: Any,
    rows: NDArray[np.int64],
    trained: Any,
    untrained: Any,
) -> BesideMachine:
    """Compare a player with a machine, by the predictions of the machine and of an untrained copy.

    Args:
        data: the choices, which are all of one player.
        scores: the player's score of every family.
        episodes: episodes of one task, such as :class:`~interp.tasks.bandit.BanditEpisodes`, with
            what the player saw.
        rows: indices of the episodes that have choices.
        trained: the machine's predictions, ``[episode, round, outcome]``.
        untrained: the predictions of the untrained copy, in the same shape, or None.

    Returns:
        How much lower the machine's loss is than that of the best memoryless family and than that
        of the copy; how much lower the best family's loss is than the machine's; and a
        posterior-predictive check of the machine.
    """
    ranked = sorted(scores, key=lambda score: float(score.losses.sum()))
    floor = next(score for score in ranked if score.memoryless)

    n_expected = floor.fitted.shape[-1]  # outcomes (or slots) in a family's predictions

    def score_machine(predictions: Any) -> FamilyScore:
        """Score the predictions of the machine or of its untrained copy on the player's choices.
        Nothing is fitted but the temperature and the lapse rate, which map predictions to choices.

        Args:
            predictions: probabilities on all episodes, ``[episode, round, outcome]``. Wrong numbers
                of episodes or rounds are refused. So is a wrong number of outcomes, unless rounds
                offer different options.
        """
        p = checked_distributions(predictions, episodes)[rows]
        n_outcomes = p.shape[-1]
        # With offers, the last axis of a family's predictions has offered options, not outcomes, so
        # the numbers cannot be compared.
        require(
            data.offers is not None or n_outcomes == n_expected,
            f"predictions of a machine must be of the task's {n_expected} outcomes, got {n_outcomes}",
        )
        return score_predictions(data, key="machine", p=p)

    machine = score_machine(trained)
    over_untrained = NO_NUMBER
    if untrained is not None:
        copy = score_machine(untrained)
        over_untrained = _measure_gain(data, copy, machine)
    return BesideMachine(
        over_floor=_measure_gain(data, floor, machine),
        over_untrained=over_untrained,
        left=_measure_gain(data, machine, ranked[0]),
        check=check_player(data, player=0, q=machine.fitted),
    )


def _measure_gain(data: ChoiceData, baseline: FamilyScore, score: FamilyScore) -> Interval:
    """Return the cross-validated loss of ``baseline`` minus that of ``score``, in nats per choice,
    with its 95 % confidence interval over units (participants, episodes or blocks of trials).

    Args:
        data: the player's choices.
        baseline: the score of one predictor (a family or a machine), usually with the larger loss.
        score: the score of another predictor, usually with the smaller loss.
    """
    sums = sum_units(baseline.losses - score.losses, data.units, data.known)
    return _average_per_choice(sums, int(data.known.sum()))
