"""The page on recorded choices: a table with a row a trial in, one page out.

It shows which families of algorithms explain the choices of all participants and of each, how well
this design can separate them, whether a cell of a few units that was fitted to other participants
predicts better, and how a round moves the choice of the next one.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from interp.choices.explain import ChoiceExplanation, explain_choices
from interp.choices.fitting import predictor
from interp.choices.players import EachParticipant, explain_each, participants_of, split_people
from interp.choices.portrait import phase_portrait
from interp.choices.recovery import Recovery, recovery_of_design
from interp.core.algorithm import in_words
from interp.support.checks import checked, integer
from interp.support.files import file_to_write, writable
from interp.support.provenance import provenance
from interp.tasks import bandit
from interp.tasks.bandit import BanditEpisodes
from reports.blocks import Figure, Measures, Prose, Summary, Table, counts
from reports.page import Report, Section, write_listed
from reports.parts.overview import commands
from reports.texts import TEXTS

_TEXTS = TEXTS["choices"]


@checked
def write(
    path: str | Path,
    out: str | Path = "output/choices",
    *,
    units: int = 2,
    quick: bool = False,
    seed: int = 0,
    episodes: BanditEpisodes | None = None,
    each: EachParticipant | None = None,
    **columns: Any,
) -> tuple[Path, ChoiceExplanation]:
    """Write the page on the choices in a table, ``out/NAME.html``.

    Args:
        path: of a table with a row a trial.
        out: the folder of the page.
        units: numbers that the cell, a GRU, carries.
        quick: whether the cell, each participant by itself and the recovery are left out.
        seed: of the bootstraps, of the cell and of simulated players.
        episodes: what was read of the table, where that was done already.
        each: what was found of each participant, where that was done already.
        columns: of the table, as :func:`interp.tasks.bandit.read` takes them.

    Returns:
        The path of the page, and what was found.
    """
    page = file_to_write(writable(Path(out)) / f"{Path(path).stem}.html")
    name = f"a GRU of {integer('units', units, 1)} units"
    if episodes is None:
        episodes = bandit.read(path, **columns)
    people, _ = participants_of(episodes)
    rivals = {}
    machines = {}
    if not quick and len(people) > 1:
        from interp.choices.recorded import fit_cell

        cell = fit_cell(episodes, units=units, seed=seed)
        untrained = predictor(cell.machine.untrained(seed))(episodes)
        untrained = np.where(episodes.counted[..., None], untrained, 1 / episodes.n_arms)
        rivals[name] = (cell.held_out, untrained)
        machines[name] = cell.machine
    explanation = explain_choices(episodes, episodes.choices, beside=rivals, seed=seed)
    by_person = each
    recovered = None
    if not quick:
        by_person = each or _explain_people(episodes, seed)
        recovered = recovery_of_design(explanation, episodes, seed=seed)
    report = _Page(episodes, explanation, by_person, recovered, machines)
    return write_listed(report.build(Path(path), columns), page), explanation


def _explain_people(episodes: BanditEpisodes, seed: int) -> EachParticipant | None:
    """Find the algorithm of each participant who made enough choices; None where fewer than two did."""
    parts = []
    for part in split_people(episodes).values():
        parts.append(explain_part(part, seed))
    return EachParticipant.joined(parts) if parts else None


def explain_part(episodes: BanditEpisodes, seed: int) -> dict[str, Any]:
    """Find the algorithm of each of some participants, as a file can hold it."""
    return explain_each(episodes, episodes.choices, seed=seed).part


class _Page:
    """The sections of the page.

    Args:
        episodes: the choices.
        found: what explains those of all participants.
        each: what explains those of each.
        recovered: what was found of simulated players of the same design.
        machines: by name, cells that were fitted to the choices.
    """

    def __init__(
        self,
        episodes: BanditEpisodes,
        found: ChoiceExplanation,
        each: EachParticipant | None,
        recovered: Recovery | None,
        machines: Mapping[str, Any],
    ) -> None:
        self.episodes = episodes
        self.found = found
        self.each = each
        self.recovered = recovered
        self.machines = machines

    def build(self, path: Path, columns: Mapping[str, Any]) -> Report:
        """Build the page on a table.

        Args:
            path: of the table.
            columns: options that named its columns.
        """
        read = [Prose(sentence) for sentence in self.episodes.reading.sentences]
        sections = [Section("What was read", read), self._findings(), self._families()]
        if self.each is not None:
            sections.append(self._participants(self.each))
        if self.recovered is not None:
            sections.append(_resolution(self.recovered))
        hero = []
        portrait = self._portrait()
        if portrait is not None:
            caption = f"{portrait.sentence} Bands: one standard deviation."
            hero.append(Figure(portrait.plot(), "Phase portrait", caption))
            bins = Table(portrait.to_frame(), "The bins", collapsed=True)
            sections.append(Section("Phase portrait", [Prose(_TEXTS["portrait"]), bins]))
        sections.append(_commands(path, columns))
        n_choices = int(self.episodes.counted.sum())
        sentence = self.found.sentence
        description = {
            "kind": "choices",
            "task": "a bandit",
            "run": f"{n_choices:,} choices, {path.name}",
            "sentence": sentence,
        }
        settings = provenance(file=path.name, rounds=n_choices, scale=self.episodes.scale)
        return Report(
            f"Choices in {path.name}",
            _TEXTS["lead"],
            sections,
            settings,
            about=description,
            sentence=sentence,
            hero=hero,
        )

    def _findings(self) -> Section:
        episodes = self.episodes
        people, _ = participants_of(episodes)
        n_choices = int(episodes.counted.sum())
        labels = [f"{label} as arm_{i + 1}" for i, label in enumerate(episodes.arms)]
        n_all, n_episodes = episodes.counted.size, len(episodes)
        parameters = {**self.found.parameters, **self.found.intervals}
        facts: dict[str, Any] = {"Participants": len(people)}
        facts["Rounds that count"] = f"{n_choices:,} of {n_all:,}, in {n_episodes} episodes"
        facts["Arms"] = ", ".join(labels)
        facts["A reward of 1 is"] = f"{episodes.scale:g} of the table"
        facts["Mean reward"] = float(episodes.rewards[episodes.counted].mean())
        facts["Parameters"] = in_words(parameters)
        if self.found.bound_sentence:
            facts["At a bound of the search range"] = self.found.bound_sentence
        measures = [self.found.measure]
        measures += [beside.measure for beside in self.found.beside.values()]
        return Section(
            "What was found", [Measures(measures, f"{counts(measures)}."), Summary(facts)]
        )

    def _families(self) -> Section:
        table = Table(self.found.to_frame(), "Every family, best first")
        checks = Table(
            self.found.check_frame(), "Posterior-predictive check of the set", collapsed=True
        )
        return Section("Families", [Prose(_TEXTS["families"]), table, checks])

    def _participants(self, each: EachParticipant) -> Section:
        group = Table(each.group(), each.sentence)
        people = Table(each.to_frame(), "Each participant", collapsed=True)
        return Section("Participants", [Prose(_TEXTS["participants"]), group, people])

    def _portrait(self) -> Any:
        sources = dict(self.machines)
        if self.found.algorithm is not None:
            sources = {self.found.algorithm.name: self.found.algorithm, **sources}
        return phase_portrait(sources, self.episodes) if sources else None


def _resolution(recovered: Recovery) -> Section:
    confusion = recovered.confusion().reset_index()
    sets = recovered.sets().reset_index()
    blocks = [
        Prose(_TEXTS["recovery"]),
        Table(confusion, recovered.sentence),
        Table(
            sets,
            "Share of each family's simulated players whose set contains each family",
            collapsed=True,
        ),
        Table(recovered.errors(), "How well parameters are recovered", collapsed=True),
    ]
    return Section("Recovery", blocks)


def _commands(path: Path, columns: Mapping[str, Any]) -> Section:
    named = {key: value for key, value in columns.items() if value is not None}
    arguments = "".join(f", {key}={value!r}" for key, value in named.items())
    options = _shell_options(named)
    shell = shlex.join(["interp", "choices", str(path), *options])
    return commands(shell, _TEXTS["python"].format(path=str(path), columns=arguments))


def _shell_options(named: Mapping[str, Any]) -> list[str]:
    """Return the options of `interp choices` for what was named in Python."""
    words = []
    for key, value in named.items():
        option = f"--{key.replace('_', '-')}"
        if isinstance(value, list | tuple):
            words += [option, *map(str, value)]
        else:
            words.append(f"{option}={value}")
    return words
