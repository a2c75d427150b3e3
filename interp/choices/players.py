"""Explain each participant's choices separately: which families, and at which parameters.

    >>> from interp.tasks import bandit
    >>> played = bandit.sample(3, 60, 2, "reversal", seed=0)
    >>> found = fit_participants(bandit.TASK.rivals()["rescorla_wagner"], played, played.choices)
    >>> list(found)[:6], len(found)
    (['participant', 'rounds', 'nats', 'rate', 'rate_low', 'rate_high'], 3)

``docs/method/choices.md`` describes the fits and how to read them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from interp import tasks
from interp.choices.explain import (
    FEWEST_CHOICES,
    ChoiceExplanation,
    checked_choices,
    explanation_of,
    scores_of_players,
    select_families,
)
from interp.choices.optimum import ALL_CHOICES
from interp.choices.scoring import ChoiceData, FamilyScore, add_intervals, score_families
from interp.core.algorithm import Episodes, Family
from interp.results.measure import Result, join_words
from interp.support.checks import check_type, checked, checked_result
from interp.support.errors import require

CHOICES_A_PART = 40_000
"""Approximate number of choices in one part of the participants; each part is fitted at once."""
MOST_TOGETHER = 20_000
"""Most choices that are fitted as those of one player; if there are more, participants are drawn
(:func:`draw_people`).
"""


def participants_of(episodes: Any) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Return the names of the participants, and the participant of each episode.

    If the episodes name no participants, each episode counts as a participant.

    Returns:
        The distinct names, ``[participant]``, and for each episode the index of its participant,
        ``[episode]``.
    """
    names = episodes.participants
    if names is None:
        names = np.arange(len(episodes))
    people, person_of_episode = np.unique(names, return_inverse=True)
    return people, person_of_episode


def _count_choices(episodes: Any, choices: Any) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """Count the choices of each participant in scored rounds (:attr:`episodes.scored`, the rounds
    that count in fits); rounds without a choice are left out.

    Args:
        episodes: episodes of one task, such as :class:`~interp.tasks.bandit.BanditEpisodes`, with
            what the participants saw.
        choices: index of the chosen outcome, ``[episode, round]``; NaN where no choice was made.

    Returns:
        The index of each episode's participant, ``[episode]``, and the numbers of choices,
        ``[participant]``.
    """
    _, person_of_episode = participants_of(episodes)
    has_choice = episodes.scored & ~np.isnan(choices)
    return person_of_episode, np.bincount(person_of_episode, has_choice.sum(1))


@checked
def fit_participants(family: Family, episodes: Any, choices: Any) -> pd.DataFrame:
    """Fit one family of algorithms to each participant, or to each episode if the episodes name no
    participants.

    Args:
        family: a family with ``vectorised=True``, such as those of the bandit task.
        episodes: episodes of one task, such as :class:`~interp.tasks.bandit.BanditEpisodes`, with
            what the participants saw.
        choices: index of the chosen outcome, ``[episode, round]``; NaN where no choice was made.

    Returns:
        One row per participant, with the columns:

        * participant: its name;
        * rounds: number of its choices;
        * nats: loss per choice (minus the log of its probability), on the choices that the
          parameters were fitted to. A lapse rate (share of uniform guesses) above 0 adds a penalty
          of 1.92 nats to the sum over choices;
        * for each parameter, such as rate: rate, rate_low and rate_high, the fitted value with its
          95 % profile likelihood interval.
    """
    chosen = checked_choices(episodes, choices)
    require(
        family.vectorised,
        f"{family.name} is fitted to one player at a time; give one of a bandit's families",
    )
    people, person_of_episode = participants_of(episodes)
    data = ChoiceData(episodes, chosen, tasks.of(episodes).data.first_asked, person_of_episode)
    rows = []
    scaled = select_families(episodes, [family])  # ranges of parameters in the units of the data
    scores = score_families(data, scaled)[family.key]
    with_intervals = add_intervals(data, scaled[family.key], dict(enumerate(scores)))
    for player, score in with_intervals.items():
        n_choices = int(data.n_choices[player, ALL_CHOICES])
        row = {"participant": people[player], "rounds": n_choices, "nats": score.nats}
        rows.append({**row, **_list_parameters(score)})
    return pd.DataFrame(rows)


def _list_parameters(score: FamilyScore) -> dict[str, float]:
    """Return the columns of a table with a family's fitted parameters: name of a column -> value.
    Each parameter has a column and, if there is an interval, columns for the interval's ends.
    """
    columns: dict[str, float] = {}
    for name, value in score.parameters.items():
        interval = score.intervals.get(name)
        columns |= interval.columns(name) if interval else {name: value}
    return columns


@dataclass(frozen=True, repr=False)
@checked_result
class EachParticipant(Result):
    """Which families of algorithms explain the choices of each participant: those with a
    cross-validated loss that the data cannot distinguish from the lowest.

    Attributes:
        table: one row per participant, with the columns of :meth:`to_frame`.
        names: key of a family -> its name.
        found: name of a participant -> its explanation; empty if the result was joined from parts.
    """

    table: pd.DataFrame
    names: Mapping[str, str]
    found: Mapping[str, ChoiceExplanation] = field(default_factory=dict)

    @classmethod
    def of(cls, found: Mapping[str, ChoiceExplanation]) -> EachParticipant:
        """Make the result for all participants from the explanation of each participant.

        Args:
            found: name of a participant -> the explanation of its choices.
        """
        names: dict[str, str] = {}
        for explanation in found.values():
            names |= {key: score.name for key, score in explanation.scores.items()}
        rows = [_make_row(name, explanation) for name, explanation in found.items()]
        return cls(pd.DataFrame(rows), names, found)

    @classmethod
    def join(cls, parts: Sequence[Mapping[str, Any]]) -> EachParticipant:
        """Make the result for all participants from the results for groups of participants, which
        several commands computed.

        Args:
            parts: for each group, the mapping that :attr:`part` returned.
        """
        names: dict[str, str] = {}
        for part in parts:
            names |= part["names"]
        return cls(pd.concat([part["table"] for part in parts], ignore_index=True), names)

    @property
    def part(self) -> dict[str, Any]:
        """This result as a dictionary with the keys "table" (:attr:`table`) and "names"
        (:attr:`names`), without the explanations in :attr:`found`.

        It is for a result of some of the participants (one part of :func:`split_people`). A command
        stores it in a file, and :meth:`join` makes one result from the dictionaries of all parts.
        """
        return {"table": self.table, "names": dict(self.names)}

    @property
    def sentence(self) -> str:
        """A sentence with numbers of participants:

        * for each family, those with the family in their confidence set (the families that may
          predict their choices best);
        * those with the verdict "named" (one family alone explains the choices);
        * those with the verdict "no memory" (a family that ignores earlier rounds is in the set);
        * those with the verdict "none" (no family explains the choices), if there are any.
        """
        group = self.group()
        set_counts = [f"{row.name} for {row.in_set}" for row in group.itertuples(index=False)]
        verdicts = Counter(self.table["verdict"])
        verdict_words = (
            f"{verdicts['named']} have one family alone, {verdicts['no memory']} show no memory"
        )
        if verdicts["none"]:
            verdict_words += f", {verdicts['none']} are explained by none"
        return f"Of {len(self.table)} participants the set holds {join_words(set_counts)}; {verdict_words}."

    def group(self) -> pd.DataFrame:
        """Count participants for each family.

        Returns:
            One row per family, with the columns family (its key), name, and three numbers of
            participants:

            * in_set: participants with the family in their confidence set (the families with a loss
              that the data cannot distinguish from the lowest);
            * alone: participants with this family as the only one that explains their choices;
            * closest: participants for whom this family has the lowest cross-validated loss.

            Participants with the verdict "none" (no family explains their choices) are left out of
            in_set and alone.
        """
        explained = self.table[self.table["verdict"] != "none"]
        are_named = self.table[self.table["verdict"] == "named"]
        counts = {
            "in_set": explained["set"].str.split(", ").explode().value_counts(),
            "alone": are_named["closest"].value_counts(),
            "closest": self.table["closest"].value_counts(),
        }
        frame = pd.DataFrame({"family": list(self.names), "name": list(self.names.values())})
        for column, by_family in counts.items():
            frame[column] = by_family.reindex(frame["family"], fill_value=0).to_numpy()
        sort_columns = ["in_set", "closest", "family"]
        return frame.sort_values(sort_columns, ascending=[False, False, True], ignore_index=True)

    def to_frame(self) -> pd.DataFrame:
        """Return a table with one row per participant.

        The columns are:

        * participant: its name;
        * closest: key of the family with the lowest cross-validated loss;
        * verdict: how many families explain the choices: "named" (only the closest), "several",
          "no memory" (one that ignores earlier rounds predicts as well as the closest) or "none";
        * set: keys of the families in the confidence set (those with a loss that the data cannot
          distinguish from the lowest), separated by commas;
        * nats, floor_nats: cross-validated loss per choice of the closest family, and of the best
          family that ignores earlier rounds;
        * saved, saved_low, saved_high: floor_nats minus nats, with its 95 % interval;
        * for each parameter of the closest family, such as rate: rate, rate_low and rate_high, the
          fitted value with its 95 % interval.
        """
        return self.table


def _make_row(name: str, explanation: ChoiceExplanation) -> dict[str, Any]:
    """Return one participant's row of the table of all participants: name of a column -> value.

    Args:
        name: name of the participant.
        explanation: the explanation of the participant's choices.
    """
    return {
        "participant": name,
        "closest": explanation.closest,
        "verdict": explanation.verdict,
        "set": ", ".join(explanation.confidence_set),
        "nats": explanation.nats.estimate,
        "floor_nats": explanation.floor_nats.estimate,
        **explanation.over_floor.columns("saved"),
        **_list_parameters(explanation.scores[explanation.closest]),
    }


def draw_people(episodes: Any, choices: NDArray[Any], seed: int) -> tuple[NDArray[np.int64], str]:
    """Draw participants at random, with at most 20,000 choices in total (:data:`MOST_TOGETHER`). At
    least two participants are drawn, whatever their number of choices.

    Args:
        episodes: episodes of one task, such as :class:`~interp.tasks.bandit.BanditEpisodes`, with
            what the participants saw.
        choices: index of the chosen outcome, ``[episode, round]``; NaN where no choice was made.
        seed: seed of the draw.

    Returns:
        The indices of the drawn participants' episodes, and a sentence with the number of drawn
        participants; the sentence is empty if all participants are used.
    """
    person_of_episode, counts = _count_choices(episodes, choices)
    n_people = len(counts)
    order = np.random.default_rng(seed).permutation(n_people)  # the first of them are drawn
    is_within = counts[order].cumsum() <= MOST_TOGETHER
    n_drawn = max(2, int(is_within.sum()))
    rows = np.flatnonzero(np.isin(person_of_episode, order[:n_drawn]))
    if n_drawn >= n_people:
        return rows, ""
    return rows, f"{n_drawn} of {n_people:,} participants, drawn at random, are fitted as one."


def split_people(episodes: Any, choices: Any) -> list[NDArray[np.int64]]:
    """Split the participants with enough choices for a fit (32) into parts, which separate jobs can
    analyse. A part has about 40,000 choices (:data:`CHOICES_A_PART`).

    Args:
        episodes: episodes of one task, such as :class:`~interp.tasks.bandit.BanditEpisodes`, with
            what the participants saw.
        choices: index of the chosen outcome, ``[episode, round]``; NaN where no choice was made.

    Returns:
        For each part, an array with the indices of its episodes; an empty list if fewer than two
        participants have enough choices.
    """
    person_of_episode, counts = _count_choices(episodes, choices)
    enough = np.flatnonzero(counts >= FEWEST_CHOICES)
    if len(enough) < 2:
        return []
    parts = _split_by_choices(counts[enough], at_once=CHOICES_A_PART)
    return [np.flatnonzero(np.isin(person_of_episode, enough[places])) for places in parts]


@checked
def explain_each(
    episodes: Any, choices: Any, *, families: Sequence[Family] | None = None, seed: int = 0
) -> EachParticipant:
    """Find the families of algorithms that explain the choices of each participant separately
    (:func:`~interp.choices.explain.explain_choices`): those with a cross-validated loss that the
    data cannot distinguish from the lowest.

    Vectorised families, such as those of the bandit task, are fitted to many participants at once.

    Args:
        episodes: episodes of one task, such as :class:`~interp.tasks.bandit.BanditEpisodes`, with
            what the participants saw; the field ``participants`` is required.
        choices: index of the chosen outcome, ``[episode, round]``; NaN where no choice was made.
        families: the candidate families; by default all of the task's.
        seed: seed of the bootstraps.

    Returns:
        The explanation of each participant's choices, and a table of all participants.

    Raises:
        InputError: if the episodes name no participants, or a participant made fewer than 32
            choices.
    """
    check_type("episodes", episodes, Episodes)
    require(
        getattr(episodes, "participants", None) is not None,
        "the episodes name no participants; give participants, one an episode",
    )
    chosen = checked_choices(episodes, choices)
    chosen_families = select_families(episodes, families)
    people, _ = participants_of(episodes)
    person_of_episode, counts = _count_choices(episodes, chosen)
    has_choice = ~np.isnan(chosen).all(1)  # episodes without a choice are no units of the intervals
    fewest = int(counts.argmin())
    n_fewest = int(counts[fewest])
    require(
        n_fewest >= FEWEST_CHOICES,
        f"a fit needs at least {FEWEST_CHOICES} choices, and participant {people[fewest]} made "
        f"{n_fewest}; leave it out",
    )
    are_vectorised = all(family.vectorised for family in chosen_families.values())
    # Other families can be fitted to one player only: a limit of 1 puts each into its own part.
    choices_at_once = CHOICES_A_PART if are_vectorised else 1
    first_asked = tasks.of(episodes).data.first_asked
    explained: dict[str, ChoiceExplanation] = {}
    for members in _split_by_choices(counts, at_once=choices_at_once):
        rows = np.flatnonzero(np.isin(person_of_episode, members) & has_choice)
        # Within a part, players are numbered from 0 in the order of `members`.
        players = np.searchsorted(members, person_of_episode[rows])
        data = ChoiceData(episodes.select(rows), chosen[rows], first_asked, players)
        for player, scores in enumerate(scores_of_players(data, chosen_families)):
            name = str(people[members[player]])
            explained[name] = explanation_of(data, player, scores, chosen_families, seed=seed)
    return EachParticipant.of(explained)


def _split_by_choices(counts: NDArray[Any], at_once: int) -> list[NDArray[np.int64]]:
    """Split participants into parts of about ``at_once`` choices; a participant is never split.

    Args:
        counts: number of choices of each participant.
        at_once: number of choices per part; 1 puts each participant into a separate part.

    Returns:
        The indices of each part's participants.
    """
    # A participant belongs to the part in which the last of its choices falls.
    part_numbers = counts.cumsum().astype(np.int64) // at_once
    return [np.flatnonzero(part_numbers == number) for number in np.unique(part_numbers)]
