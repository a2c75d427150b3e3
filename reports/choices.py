"""The page on recorded choices: from a table with one row per trial to one page.

It shows which families of algorithms explain the choices of all participants and of each one, and
how well this design can separate the families. It also shows whether a small recurrent network that
was fitted to other participants predicts better, and how each round changes the next choice.
Networks and other recorded players, such as language models, are analysed in the same way as the
participants.
"""

from __future__ import annotations

import shlex
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from interp.choices.explain import ChoiceExplanation, explain_choices
from interp.choices.fitting import predictor
from interp.choices.players import (
    EachParticipant,
    draw_people,
    explain_each,
    participants_of,
    split_people,
)
from interp.choices.portrait import phase_portrait
from interp.choices.recorded import fit_cell
from interp.choices.recovery import Recovery, recovery_of_design
from interp.core.algorithm import format_parameters
from interp.core.machine import Machine
from interp.support.checks import checked, checked_fields, integer
from interp.support.errors import require
from interp.support.files import file_to_write, writable
from interp.support.provenance import provenance
from interp.tasks import bandit
from interp.tasks.bandit import BanditEpisodes
from reports.blocks import Figure, Measures, Prose, Summary, Table, counts
from reports.page import Report, Section, write_with_index
from reports.parts.overview import commands, write_arguments, write_shell_options
from reports.texts import TEXTS

PEOPLE = "participants"
"""Name of the table's own players, among all players of the page."""
_TEXTS = TEXTS["choices"]


@dataclass(frozen=True, eq=False)
@checked_fields
class Player:
    """A source of choices that the page explains: the participants of a table, a network or a
    language model.

    Attributes:
        episodes: the episodes that were played.
        choices: the choices, as indices of arms, ``[episode, round]``; NaN where none was made.
        network: the network that made the choices; None for a recorded player.
    """

    episodes: BanditEpisodes
    choices: NDArray[Any]
    network: Machine | None = None


@checked
def players_of(
    episodes: BanditEpisodes, beside: Mapping[str, Any] | None = None, seed: int = 0
) -> dict[str, Player]:
    """Collect the players of a page: the participants of a table, and players that they are
    compared with.

    Args:
        episodes: the episodes that were read from the table.
        beside: name -> a player to compare with, either a network or recorded episodes (such as a
            language model's). The choices of a network are drawn from its predictions in the
            participants' rounds.
        seed: seed of these draws.

    Returns:
        Name -> player; the first one, "participants", has the choices of the table.
    """
    players = {PEOPLE: Player(episodes, episodes.choices)}
    for name, subject in (beside or {}).items():
        require(name not in players, f"{name!r} is the players of the table; give another name")
        if isinstance(subject, BanditEpisodes):
            players[name] = Player(subject, subject.choices)
        else:
            players[name] = Player(episodes, _draw_choices(subject, episodes, seed), subject)
    return players


def _draw_choices(network: Machine, episodes: BanditEpisodes, seed: int) -> NDArray[np.float64]:
    """Draw a network's choices from its predictions, among the arms on offer.

    Args:
        network: the network.
        episodes: the episodes in which the network chooses.
        seed: seed of the draws.

    Returns:
        Indices of arms, ``[episode, round]``; NaN in rounds whose choice or reward is unknown in
        the data.
    """
    probabilities = predictor(network)(episodes) * episodes.offered  # [episode, round, arm]
    waits = np.random.default_rng(seed).exponential(size=probabilities.shape)
    # If each arm i waits for an exponential time waits_i / p_i, arm i is first with probability
    # p_i / sum(p). The shortest wait is the largest p_i / waits_i.
    chosen_arms = (probabilities / waits).argmax(-1)
    return np.where(episodes.counted, chosen_arms, np.nan)


def divide_explanations(
    players: Mapping[str, Player], seed: int
) -> dict[str, Callable[[], dict[str, Any]]]:
    """Divide the work of explaining each participant's choices into jobs, which can be computed and
    stored separately, in any order.

    Args:
        players: name -> player.
        seed: seed of bootstraps.

    Returns:
        Name of a job, such as "participants 1" -> function without arguments that explains the
        choices of some participants, and returns the mapping that :func:`explain_part` returns.
    """
    makers: dict[str, Callable[[], dict[str, Any]]] = {}
    for name, player in players.items():
        groups = split_people(player.episodes, player.choices)  # rows: one per episode
        for number, rows in enumerate(groups, 1):
            episodes = player.episodes.select(rows)
            makers[f"{name} {number}"] = partial(explain_part, episodes, player.choices[rows], seed)
    return makers


def explain_part(episodes: BanditEpisodes, choices: NDArray[Any], seed: int) -> dict[str, Any]:
    """Find the families of algorithms that explain the choices of some participants, each
    separately. A family explains choices if no other family predicts held-out choices clearly
    better: it is in the model confidence set.

    Args:
        episodes: the participants' episodes.
        choices: the participants' choices, as indices of arms, ``[episode, round]``; NaN where none
            was made.
        seed: seed of bootstraps.

    Returns:
        A mapping with "table" (data frame with one row per participant) and "names" (key of a
        family -> its name). :meth:`interp.choices.players.EachParticipant.join` joins several such
        mappings.
    """
    return explain_each(episodes, choices, seed=seed).part


@checked
def write(
    path: str | Path,
    out: str | Path = "output/choices",
    *,
    units: int = 2,
    quick: bool = False,
    seed: int = 0,
    players: Mapping[str, Player] | None = None,
    parts: Mapping[str, Any] | None = None,
    beside: Sequence[str] | None = None,
    **columns: Any,
) -> tuple[Path, dict[str, ChoiceExplanation]]:
    """Write the page on a table of choices, ``out/NAME.html``.

    In a large cohort, the fits to all participants together use only some of them, drawn at random;
    the page says so.

    Args:
        path: path of a table with one row per trial.
        out: folder of the page.
        units: number of hidden units of the recurrent network (GRU) that is fitted to the choices
            of the table, for comparison with the families of algorithms.
        quick: True leaves out the GRU, the analysis of single participants, and the recovery of
            simulated players.
        seed: seed of bootstraps, the GRU and simulated players.
        players: the players that :func:`players_of` returns; only those of the table when None.
        parts: results of the jobs that :func:`divide_explanations` returns, {name of a job: result}; computed
            when None.
        beside: the further players as texts of the option ``--beside``, for the command that the
            page shows. It adds no players to the page; ``players`` does.
        **columns: names of the table's columns, see :func:`interp.tasks.bandit.read`.

    Returns:
        The path of the page; and name of a player -> explanation of its choices.
    """
    table = Path(path)
    page = file_to_write(writable(Path(out)) / f"{table.stem}.html")
    integer("units", units, 1)
    if players is None:
        players = players_of(bandit.read(path, **columns))
    if parts is None:
        makers = {} if quick else divide_explanations(players, seed)
        parts = {name: make() for name, make in makers.items()}
    parts_by_player: dict[str, list[Any]] = defaultdict(list)
    for job, part in parts.items():
        player_name, _, _ = job.rpartition(" ")  # "participants 1": the player, a number
        parts_by_player[player_name].append(part)
    explained = {}
    for name, player in players.items():
        gru_units = units if name == PEOPLE and not quick else 0  # 0: no GRU
        analysis = _explain_together(name, player, gru_units, seed)
        if parts_by_player[name]:
            analysis.participants = EachParticipant.join(parts_by_player[name])
        if not quick:
            episodes = player.episodes
            analysis.recovered = recovery_of_design(analysis.explanation, episodes, seed=seed)
        explained[name] = analysis
    options = {"units": units, "seed": seed, "quick": quick, "beside": list(beside or ())}
    report = _build_report(explained, table, _write_commands(table, columns, options))
    written = write_with_index(report, page)
    return written, {name: analysis.explanation for name, analysis in explained.items()}


def _explain_together(name: str, player: Player, gru_units: int, seed: int) -> _Explained:
    """Explain the choices of all participants of a player together, as if one participant had made
    them. If they made more than 20,000 choices, participants are drawn at random
    (:func:`~interp.choices.players.draw_people`).

    Args:
        name: name of the player: the participants of a table, a network or a language model.
        player: the player's episodes and choices.
        gru_units: number of hidden units of a recurrent network (GRU) that is fitted for
            comparison, and predicts participants that it was not fitted to; 0 for none.
        seed: seed of the draw, of bootstraps and of the GRU.
    """
    rows, drawn = draw_people(player.episodes, player.choices, seed)
    episodes = player.episodes.select(rows)
    people, _ = participants_of(episodes)
    sources: dict[str, Any] = {}  # name -> a model whose phase portrait the page draws
    # Name of a further predictor -> (its predictions, those of its untrained copy), each [episode,
    # round, arm]. They are scored beside the families; the untrained copy is their control.
    rivals = {}
    if gru_units and len(people) > 1:  # a GRU predicts participants that it was not fitted to
        gru = fit_cell(episodes, units=gru_units, seed=seed)
        untrained_predictions = predictor(gru.machine.untrained(seed))(episodes)
        # In rounds that do not count, all arms are equally likely.
        control = np.where(episodes.counted[..., None], untrained_predictions, 1 / episodes.n_arms)
        gru_name = f"a GRU of {gru_units} units"
        sources[gru_name] = gru.machine
        rivals[gru_name] = (gru.held_out, control)
    explanation = explain_choices(episodes, player.choices[rows], beside=rivals, seed=seed)
    if player.network is not None:
        sources[name] = player.network
    elif explanation.algorithm is not None:
        algorithm = explanation.algorithm
        sources = {f"{name}: {algorithm.name}": algorithm, **sources}
    return _Explained(player=player, drawn=drawn, explanation=explanation, sources=sources)


@dataclass(eq=False)
class _Explained:
    """The analysis of one player.

    Attributes:
        player: the player's episodes and choices.
        drawn: a sentence that says how many participants were drawn for the fits to all of them
            together; "" if all were used.
        explanation: the explanation of the choices of all (drawn) participants together.
        sources: models for which the page draws phase portraits (how a round changes the next
            choice), by name.
        participants: the explanation of each participant; None if not computed.
        recovered: the analysis of simulated players with the same design; None if not computed.
    """

    player: Player
    drawn: str
    explanation: ChoiceExplanation
    sources: Mapping[str, Any]
    participants: EachParticipant | None = None
    recovered: Recovery | None = None

    @property
    def sentences(self) -> dict[str, str]:
        """The main results as sentences, by what they are about: "choices" (of all participants
        together), "participants" (one by one) and "recovery" (of the families of simulated
        players). The last two are absent if they were not computed.
        """
        sentences = {"choices": self.explanation.sentence}
        if self.participants is not None:
            sentences["participants"] = self.participants.sentence
        if self.recovered is not None:
            sentences["recovery"] = self.recovered.sentence
        return sentences

    @property
    def families(self) -> pd.DataFrame:
        """A table with one row per family of algorithms: its loss on the choices of all
        participants together, and whether it is in the confidence set of the families that may
        predict best.

        If participants were analysed one by one, a column counts the participants with this family
        in their confidence set.
        """
        frame = self.explanation.to_frame().set_index("name")[["nats", "in_set"]]
        if self.participants is not None:
            frame["sets"] = self.participants.group().set_index("name")["in_set"]
        return frame


def _build_report(
    explained: Mapping[str, _Explained], path: Path, commands_section: Section
) -> Report:
    """Build the page on a table of choices.

    Args:
        explained: the analysis of each player by name, the participants of the table first.
        path: path of the table.
        commands_section: the section with the commands that reproduce the numbers.
    """
    people = explained[PEOPLE]
    episodes = people.player.episodes
    sources: dict[str, Any] = {}
    sentences: list[str] = []
    for analysis in explained.values():
        sources |= analysis.sources
        if analysis.player.episodes.reading is not None:
            sentences += analysis.player.episodes.reading.sentences
        if analysis.drawn:
            sentences.append(analysis.drawn)
    distinct_sentences = dict.fromkeys(sentences)  # several players may have the same sentence
    sections = [Section("What was read", [Prose(text) for text in distinct_sentences])]
    sections += [_list_findings(people), _show_families(people.explanation)]
    if len(explained) > 1:
        sections.append(_show_side_by_side(explained))
    if people.participants is not None:
        sections.append(_show_participants(people.participants))
    if people.recovered is not None:
        sections.append(_describe_resolution(people.recovered))
    hero = []
    if sources:
        portrait = phase_portrait(sources, episodes)
        caption = f"{portrait.sentence} Bands: one standard deviation."
        hero.append(Figure(portrait.plot(), "Phase portrait", caption))
        bins = Table(portrait.to_frame(), "The bins", collapsed=True)
        sections.append(Section("Phase portrait", [Prose(_TEXTS["portrait"]), bins]))
    sections.append(commands_section)
    n_choices = int(episodes.counted.sum())
    sentence = people.explanation.sentence
    name = path.name
    description = {
        "kind": "choices",
        "task": "a bandit",
        "run": f"{n_choices:,} choices, {name}",
        "sentence": sentence,
    }
    return Report(
        title=f"Choices in {name}",
        lead=_TEXTS["lead"],
        sections=sections,
        provenance=provenance(file=name, rounds=n_choices, scale=episodes.scale),
        about=description,
        sentence=sentence,
        hero=hero,
    )


def _show_families(explanation: ChoiceExplanation) -> Section:
    """Make the section "Families": the loss of every family, and, for families in the confidence
    set, the check whether their simulated players behave like those of the table.
    """
    table = Table(explanation.to_frame(), "Every family of algorithms, the best first")
    question = (
        "Check of the families in the set: do their simulated players behave like the players of "
        "the table?"
    )
    checks = Table(explanation.check_frame(), question, collapsed=True)
    return Section("Families", [Prose(_TEXTS["families"]), table, checks])


def _show_participants(participants: EachParticipant) -> Section:
    """Make the section "Participants": for each family, the number of participants that it
    explains; and a table with one row per participant.
    """
    group = Table(participants.group(), participants.sentence)
    people = Table(participants.to_frame(), "Each participant", collapsed=True)
    return Section("Participants", [Prose(_TEXTS["participants"]), group, people])


def _list_findings(people: _Explained) -> Section:
    """Make the section "What was found": measures of what explains the participants' choices, and
    facts about the table, such as the number of participants.

    Args:
        people: the analysis of the table's participants.
    """
    episodes = people.player.episodes
    explanation = people.explanation
    names, _ = participants_of(episodes)
    n_scored = episodes.scored.sum()
    n_all = episodes.lengths.sum()
    labels = [f"{label} as arm_{i}" for i, label in enumerate(episodes.arms, 1)]
    facts: dict[str, Any] = {
        "Participants": len(names),
        "Rounds that are scored": f"{n_scored:,} of {n_all:,}, in {len(episodes)} episodes",
        "Arms": ", ".join(labels),
        "Rewards are divided by": f"{episodes.scale:g} of the table",
        "Mean reward": episodes.rewards[episodes.counted].mean(),
        "Parameters": format_parameters({**explanation.parameters, **explanation.intervals}),
    }
    if explanation.bound_sentence:
        facts["Parameters at a bound of the search range"] = explanation.bound_sentence
    measures = [explanation.measure]
    # `beside` has comparisons of the participants with machines, by the machine's name.
    measures += [comparison.measure for comparison in explanation.beside.values()]
    return Section("What was found", [Measures(measures, f"{counts(measures)}."), Summary(facts)])


def _show_side_by_side(explained: Mapping[str, _Explained]) -> Section:
    """Make the section "Side by side": tables of results with one column for each player."""
    sentences = pd.DataFrame({name: analysis.sentences for name, analysis in explained.items()})
    by_player = {name: analysis.families for name, analysis in explained.items()}
    families = pd.concat(by_player, axis=1)  # columns: (player, result)
    families.columns = [", ".join(names) for names in families.columns]
    what = "Loss and set membership of every family, by player"
    blocks = [
        Prose(_TEXTS["beside"]),
        Table(sentences.rename_axis("of").reset_index(), "The players"),
        Table(families.rename_axis("family").reset_index(), what),
    ]
    return Section("Side by side", blocks)


def _describe_resolution(recovered: Recovery) -> Section:
    """Make the section "Recovery": how often the analysis finds the families and parameters that
    generated simulated players, in the same episodes.
    """
    sets = (
        "For the simulated players of each family (row): share of players whose set contains "
        "each family (column)"
    )
    blocks = [
        Prose(_TEXTS["recovery"]),
        Table(recovered.confusion().reset_index(), recovered.sentence),
        Table(recovered.sets().reset_index(), sets, collapsed=True),
        Table(recovered.errors(), "How well parameters are recovered", collapsed=True),
    ]
    return Section("Recovery", blocks)


def _write_commands(path: Path, columns: Mapping[str, Any], settings: Mapping[str, Any]) -> Section:
    """Make the section with the command and the Python code that reproduce the numbers.

    Args:
        path: path of the table.
        columns: names of its columns, by role.
        settings: values of the other options of the command, by name.
    """
    named = {key: value for key, value in columns.items() if value is not None}
    options = write_shell_options({**named, **settings})
    shell = shlex.join(["interp", "choices", str(path), *options])
    python = _TEXTS["python"].format(
        path=str(path), columns=write_arguments(named), seed=settings["seed"]
    )
    return commands(shell, python)
