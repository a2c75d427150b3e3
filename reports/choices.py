"""The page on recorded choices: a table with a row a trial in, one page out.

It asks which family of algorithms explains the choices, whether a cell of a few units that was fitted to other
participants predicts them better, and how a round moves the choice of the next one.
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import numpy as np

from interp import tasks
from interp.choices.explain import ChoicePart, explain_choices
from interp.choices.fitting import predictor
from interp.choices.players import by_participant, phase_portrait
from interp.core.algorithm import in_words
from interp.support.checks import checked, integer
from interp.support.files import file_to_write, writable
from interp.support.provenance import provenance
from interp.tasks import bandit
from interp.tasks.bandit import BanditEpisodes
from reports.blocks import TEXTS, Figure, Measures, Prose, Summary, Table, counts
from reports.page import Report, Section, write_listed
from reports.parts.overview import commands

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
    **columns: Any,
) -> tuple[Path, ChoicePart]:
    """Write the page on the choices in a table, ``out/NAME.html``; give its path and what was found.

    Args:
        path, columns: of a table with a row a trial, and its columns, as :func:`interp.tasks.bandit.read` takes them.
        units: numbers that the cell, a GRU, carries; ``quick`` leaves the cell out.
        seed: of the bootstrap and of the cell.
        episodes: what was read of the table, where that was done already.
    """
    page = file_to_write(writable(Path(out)) / f"{Path(path).stem}.html")
    beside, machines = {}, {}
    if episodes is None:
        episodes = bandit.read(path, **columns)
    people, name = (
        len(np.unique(episodes.participants)),
        f"a GRU of {integer('units', units, 1)} units",
    )
    if not quick and people > 1:
        from interp.choices.recorded import fit_cell

        cell = fit_cell(episodes, units=units, seed=seed)
        untrained = predictor(cell.machine.untrained(seed))(episodes)
        beside = {
            name: (
                cell.held_out,
                np.where(episodes.counted[..., None], untrained, 1 / episodes.n_arms),
            )
        }
        machines = {name: cell.machine}
    found = explain_choices(episodes, episodes.choices, beside=beside, seed=seed)
    return write_listed(_report(episodes, found, machines, Path(path), columns), page), found


def _report(
    episodes: BanditEpisodes,
    found: ChoicePart,
    machines: dict[str, Any],
    path: Path,
    columns: dict[str, Any],
) -> Report:
    family = tasks.of(episodes).rivals().get(found.closest)
    counted = int(episodes.counted.sum())
    facts: dict[str, Any] = {
        "Participants": len(np.unique(episodes.participants)),
        "Rounds that count": f"{counted:,} of {episodes.counted.size:,}, in {len(episodes)} episodes",
        "Arms": ", ".join(f"{label} as arm_{i + 1}" for i, label in enumerate(episodes.arms)),
        "A reward of 1 is": f"{episodes.scale:g} of the table",
        "Mean reward": float(episodes.rewards[episodes.counted].mean()),
        "Parameters": in_words(dict(found.parameters) | dict(found.intervals)),
    }
    measures = [found.measure, *(one.measure for one in found.beside.values())]
    titled = [Measures(measures, f"{counts(measures)}."), Summary(facts)]
    families = [Prose(_TEXTS["families"]), Table(found.to_frame(), "Every family, best first")]
    read = [Prose(sentence) for sentence in episodes.reading.sentences]
    sections = [
        Section("What was read", read),
        Section("What was found", titled),
        Section("Families", families),
    ]
    if family and len(family.searched) and facts["Participants"] > 1:
        people = by_participant(family, episodes, episodes.choices)
        fitted = people[list(found.parameters)].items()
        told = [
            f"{str(k).replace('_', ' ')}: {of.mean():.3g} (standard deviation {of.std():.2g})"
            for k, of in fitted
        ]
        caption = f"{family.name}, fitted to each participant. Means over participants are {'; '.join(told)}."
        sections.append(
            Section("Participants", [Prose(_TEXTS["participants"]), Table(people, caption)])
        )
    sources = {found.algorithm.name: found.algorithm} if found.algorithm else {}
    hero = []
    if sources | machines:
        portrait = phase_portrait(sources | machines, episodes)
        hero = [
            Figure(
                portrait.plot(),
                "Phase portrait",
                f"{portrait.sentence} Bands: one standard deviation.",
            )
        ]
        bins = Table(portrait.to_frame(), "The bins", collapsed=True)
        sections.insert(2, Section("Phase portrait", [Prose(_TEXTS["portrait"]), bins]))
    named = [f"{key}={value!r}" for key, value in columns.items() if value is not None]
    shell = _shell_options(columns)
    python = _TEXTS["python"].format(path=str(path), columns="".join(f", {one}" for one in named))
    sections.append(commands(shlex.join(["interp", "choices", str(path), *shell]), python))
    about = {"kind": "choices", "task": "a bandit", "run": f"{counted:,} choices, {path.name}"}
    about["sentence"] = found.sentence
    settings = provenance(file=path.name, rounds=counted, scale=episodes.scale)
    return Report(
        f"Choices in {path.name}",
        _TEXTS["lead"],
        sections,
        settings,
        "",
        about,
        found.sentence,
        hero,
    )


def _shell_options(columns: dict[str, Any]) -> list[str]:
    """The options of `interp choices` that name what was given in Python."""
    words = []
    for key, value in columns.items():
        if value is None:
            continue
        option = f"--{key.replace('_', '-')}"
        if isinstance(value, list | tuple):
            words += [option, *map(str, value)]
        else:
            words.append(f"{option}={value}")
    return words
