"""Find the learning algorithms that explain how language models predict with expert advice.

:func:`~interp.choices.explain.explain_choices` is called for each group of recorded runs of the
experts task.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from interp.choices.explain import ChoiceExplanation, explain_choices
from interp.choices.fitting import predictor
from interp.core.machine import Machine
from interp.llm.runs import LLMRun, episodes_of, group_runs
from interp.results.measure import Result
from interp.stats.intervals import NO_NUMBER, Interval, ratio_interval
from interp.support.checks import checked, checked_result
from interp.support.errors import require
from interp.tasks.experts.players import player_families

FEWEST_RUNS = 8
"""Fewest runs for which algorithms are fitted: an interval over fewer runs says little."""


@dataclass(frozen=True, repr=False)
@checked_result
class PlayerBehaviour(Result):
    """Which algorithms explain the choices of one group of runs of the experts task. A group has
    one language model, one condition and one regime.

    Attributes:
        model: name of the language model.
        condition: name of the wording and protocol of the runs, such as "online-note".
        regime: name of the distribution that the episodes were sampled from.
        n: number of runs.
        found: the explanation of the choices in these runs; None if there are fewer than 8 runs
            (:data:`FEWEST_RUNS`).
        repeated: share of rounds in which two runs of the same episode make the same choice, with
            its interval; NaN if no episode was run twice.
    """

    model: str
    condition: str
    regime: str
    n: int
    found: ChoiceExplanation | None
    repeated: Interval = NO_NUMBER

    @property
    def sentence(self) -> str:
        """A sentence that names the language model, its condition and regime, and the algorithms
        that explain its choices.
        """
        group_words = ", ".join(self.group.values())
        answer = self.found.sentence if self.found else self.answer
        return f"{group_words}: {answer}"

    @property
    def group(self) -> dict[str, str]:
        """The group as a mapping with the keys "model", "condition" and "regime", which are also
        columns of the tables.
        """
        return {"model": self.model, "condition": self.condition, "regime": self.regime}

    @property
    def ceiling(self) -> Interval:
        """The largest share of the language model's choices that any algorithm could predict, with
        its interval.

        It is ``(1 + sqrt(2 r - 1)) / 2``, where r is the share of rounds in which two runs of the
        same episode make the same choice (:attr:`repeated`).
        """
        agreement = np.array([self.repeated.estimate, self.repeated.low, self.repeated.high])
        # A choice with probability c of its usual outcome agrees with its repetition with
        # probability r = c^2 + (1 - c)^2, so 2 c - 1 = sqrt(2 r - 1).
        above_even = np.sqrt(np.maximum(0.0, 2 * agreement - 1))
        ceilings = (1 + above_even) / 2
        return Interval(*ceilings.tolist())

    @property
    def answer(self) -> str:
        """A phrase that names the families of algorithms that explain the choices
        (:attr:`~interp.choices.explain.ChoiceExplanation.answer`), or says that there are too few
        runs.
        """
        return self.found.answer if self.found else f"undecided: fewer than {FEWEST_RUNS} instances"

    def to_frame(self) -> pd.DataFrame:
        """Return a table with one row for the group of runs.

        The columns are:

        * model, condition, regime, and n (number of runs);
        * verdict: "undecided" if there are fewer than 8 runs, otherwise the verdict of
          :attr:`~interp.choices.explain.ChoiceExplanation.verdict`, such as "named" (one family of
          algorithms explains the choices);
        * plays_like: a phrase that names the families that explain the choices.

        With at least 8 runs (:data:`FEWEST_RUNS`), there are also:

        * closest: key of the family with the lowest cross-validated loss;
        * set: keys of all families with a loss that the data cannot distinguish from the lowest;
        * parameters (as text), lapse (share of uniform guesses) and temperature of the closest
          family, fitted to all choices;
        * nats and floor_nats: cross-validated loss per choice of the closest family, and of the
          best family that ignores earlier rounds; with bounds, such as nats_low and nats_high;
        * agreement: share of choices that are the closest family's likeliest outcome.

        If an episode was run twice, there are also two columns with bounds:

        * repeated: share of rounds in which two runs make the same choice;
        * ceiling: largest share of choices that any algorithm could predict.
        """
        row: dict[str, Any] = {
            **self.group,
            "n": self.n,
            "verdict": "undecided",
            "plays_like": self.answer,
        }
        if self.found:
            row |= _describe_explanation(self.found)
        if not np.isnan(self.repeated.estimate):
            row |= self.repeated.columns("repeated") | self.ceiling.columns("ceiling")
        return pd.DataFrame([row])


def _describe_explanation(explanation: ChoiceExplanation) -> dict[str, Any]:
    """Return the columns of a table that describe an explanation, by name: the verdict, the closest
    family with its parameters, and losses.
    """
    link = explanation.scores[explanation.closest].link
    # An interval replaces the value of its parameter; both are formatted by `str` below.
    shown = {**explanation.parameters, **explanation.intervals}
    parameters = [f"{name} {value}" for name, value in shown.items()]
    return {
        "verdict": explanation.verdict,
        "closest": explanation.closest,
        "set": ", ".join(explanation.confidence_set),
        "parameters": ", ".join(parameters),
        "lapse": link.lapse,
        "temperature": link.temperature,
        **explanation.nats.columns("nats"),
        **explanation.floor_nats.columns("floor_nats"),
        "agreement": explanation.agreement,
    }


@checked
def behaviour(
    runs: Sequence[LLMRun], seed: int = 0, machines: Sequence[Machine] = ()
) -> list[PlayerBehaviour]:
    """Find the algorithms that explain the choices of each group of runs. A group has one language
    model, one condition and one regime (distribution of the episodes).

    An algorithm explains a group's choices if its cross-validated loss is the lowest, or if the
    data cannot tell its loss from the lowest.

    Runs without any prediction are left out.

    Args:
        runs: runs of language models.
        seed: seed of the bootstraps and of the untrained copies of ``machines``.
        machines: models of the experts task. Each group's choices are also compared with the
            predictions of each model, and with those of a copy with random weights.

    Returns:
        One result per group.
    """
    require(runs, "no runs to analyse")
    for machine in machines:
        task = machine.layout.task
        require(
            task == "experts",
            f"{machine.name!r} is a model of {task}; runs of language models are of experts",
        )
    played = [run for run in runs if run.rounds and not run.missing.all()]
    return [_explain_group(members, seed, machines) for members in group_runs(played).values()]


def behaviour_tables(acts: Sequence[PlayerBehaviour]) -> dict[str, pd.DataFrame]:
    """Return the tables that ``interp llm score`` writes about the players' algorithms.

    Args:
        acts: the list that :func:`behaviour` returns: one result per group of runs.

    Returns:
        Name -> table; empty if ``acts`` is empty. The tables "families" and "machines" leave out
        groups with fewer than :data:`FEWEST_RUNS` runs.

        * "behaviour" has one row per group (:meth:`PlayerBehaviour.to_frame`).
        * "families" has one row per group and family of algorithms. The columns are those of
          :meth:`~interp.choices.explain.ChoiceExplanation.to_frame`, and model, condition and
          regime.
        * "machines" has one row per group and machine (a model that was passed to
          :func:`behaviour`). It measures the claim that the group chooses as the machine does. The
          columns are model, condition, regime, n (number of runs), machine (its name), and those of
          :meth:`interp.results.measure.Measure.row`, such as number, low, high and verdict.
    """
    if not acts:
        return {}
    families = [pd.DataFrame()]  # so that `concat` works if all groups are small
    machines = []
    for group_result in acts:
        if group_result.found is None:
            continue
        families.append(group_result.found.to_frame().assign(**group_result.group))
        for name, beside in group_result.found.beside.items():
            row = beside.measure.row()
            machines.append({**group_result.group, "n": group_result.n, "machine": name, **row})
    rows = [group_result.to_frame() for group_result in acts]
    return {
        "behaviour": pd.concat(rows, ignore_index=True),
        "families": pd.concat(families, ignore_index=True),
        "machines": pd.DataFrame(machines),
    }


def _explain_group(
    members: Sequence[LLMRun], seed: int, machines: Sequence[Machine]
) -> PlayerBehaviour:
    """Find the algorithms that explain the choices of one group of runs, and measure how often
    repeated runs agree. Groups with fewer than :data:`FEWEST_RUNS` runs get no algorithms.

    Args:
        members: the runs of the group.
        seed: seed of the bootstraps and of the untrained copies of ``machines``.
        machines: models with which the group's choices are compared.
    """
    model, condition, regime = members[0].group  # which all members share
    explained = None
    if len(members) >= FEWEST_RUNS:
        explained = _explain_runs(members, regime, seed, machines)
    return PlayerBehaviour(
        model=model,
        condition=condition,
        regime=regime,
        n=len(members),
        found=explained,
        repeated=_measure_agreement(members, seed),
    )


def _explain_runs(
    members: Sequence[LLMRun], regime: str, seed: int, machines: Sequence[Machine]
) -> ChoiceExplanation:
    """Find the families of algorithms that explain the predictions of one group of runs.

    Args:
        members: the runs of the group, one per instance (episode to play).
        regime: regime of their episodes.
        seed: seed of the bootstrap and of the untrained copies of ``machines``.
        machines: models with which the group is compared.
    """
    episodes = episodes_of(members, regime)
    choices = np.full((len(episodes), episodes.n_rounds), np.nan)
    # `episodes_of` sorts the runs by their index, too. Rounds that were not played stay NaN.
    for row, run in enumerate(sorted(members, key=lambda run: run.index)):
        choices[row, : run.rounds] = run.predictions
    # Name of a machine -> (its predictions, those of a copy with random weights). The copy is the
    # control: what it predicts equally well is not due to the machine's training.
    beside = {}
    for machine in machines:
        untrained = machine.untrained(seed)
        beside[machine.name] = (predictor(machine)(episodes), predictor(untrained)(episodes))
    families = player_families(episodes.n_experts)
    return explain_choices(episodes, choices, families=families, beside=beside, seed=seed)


def _measure_agreement(members: Sequence[LLMRun], seed: int) -> Interval:
    """Return how often repeated runs of an episode agree: the share of rounds in which a further
    run makes the same choice as the scored run.

    Args:
        members: the scored runs of one group, each with the predictions of further runs.
        seed: seed of the bootstrap over episodes.
    """
    equal_by_episode, known_by_episode = [], []
    for run in members:
        n_equal, n_known = 0, 0
        for further in run.again:  # the predictions of one further run, by round
            # One of the two may have ended earlier: only rounds that both played are compared.
            first = run.predictions[: len(further)]
            second = further[: run.rounds]
            n_equal += int((first == second).sum())
            is_known = ~np.isnan(first) & ~np.isnan(second)
            n_known += int(is_known.sum())
        equal_by_episode.append(n_equal)
        known_by_episode.append(n_known)
    return ratio_interval(
        np.array(equal_by_episode, float), np.array(known_by_episode, float), seed=seed
    )
