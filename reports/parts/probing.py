"""What the latents hold: probes beside the controls that say what a score is worth, and the state over time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

import probes
from interp.core.algorithm import NEXT
from interp.core.display import lacks
from interp.results import figures
from interp.results.style import WIDTH
from interp.support.errors import require
from probes import ProbeResult
from probes.targets import parse
from reports.blocks import TEXTS, Figure, Measures, Prose, Table, number
from reports.part import Context, Part

KEY = "probes"
_SAYS = TEXTS["probing"]


def part(targets: Sequence[str] = (), n_claimed: int = 1) -> Part:
    """Probes of the latents after every round, of ``targets`` or those that the task names.

    The latents should hold the first ``n_claimed`` of them; a quick report leaves out the others.
    """

    def asked(context: Context) -> tuple[str, ...]:
        keys = tuple(targets or context.task.analysis.probed)
        return keys[:n_claimed] if context.quick else keys

    def compute(context: Context) -> list[ProbeResult]:
        wanted = [(key, *parse(key, context.task)) for key in asked(context)]
        keys = [
            key
            for key, target, moment in wanted
            if target(context.episodes, moment).as_numbers().varies
        ]
        kept = [
            channel for channel in context.model.channels if not channel.grows
        ] or context.model.channels
        widest = max(kept, key=lambda channel: np.prod(channel.shape)).name
        site = "latents" if len(kept) == len(context.model.channels) else f"latents@{widest}"
        how: dict[str, Any] = {"run": context.run, "site": site, "seed": context.seed}
        return probes.probe(context.model, context.episodes, keys, **how) if keys else []

    def draw(results: list[ProbeResult], context: Context) -> list[object]:
        constant = [
            key for key in asked(context) if key not in [result.target.key for result in results]
        ]
        left = [parse(key, context.task)[0].variable.noun for key in constant]
        said = (
            _SAYS["part"].format(site=results[0].site)
            if results and results[0].site != "latents"
            else ""
        )
        said += "".join(
            f"\n\n**Left out.** Nothing of {one} varies over these episodes." for one in left
        )
        text = Prose(_SAYS["text"] + said)
        if not results:
            return [text]
        measures = [one for result in results for one in result]
        numbers = pd.concat([result.scores() for result in results], ignore_index=True)
        caption = "What a linear map reads from the latents; an R² of 1 is perfect, 0 is what the mean gives."
        return [
            text,
            Measures(measures, caption),
            Table(numbers, "Every output, metric and control", collapsed=True),
        ]

    return Part(
        KEY,
        "Probes",
        compute,
        draw,
        lambda context: bool(targets or context.task.analysis.probed),
        lambda results, of: [
            one for own in results if own.target.key in asked(of)[:n_claimed] for one in own
        ],
    )


@dataclass(frozen=True)
class Held:
    """What is drawn of a variable: ``state`` of the model and ``reference``, ``[step, series]``; a label a series."""

    noun: str
    state: NDArray[Any]
    reference: NDArray[Any]
    labels: tuple[str, ...]

    @property
    def largest(self) -> float:
        """The largest difference between the two."""
        return float(np.abs(self.state - self.reference).max())


_READ = "The algorithm's memory, read from the latents themselves."


def state(
    title: str = "The state over time",
    *,
    read: str = _READ,
    decoded: str = "What a linear probe, fitted on other episodes, decodes from the latents after each round.",
    probed: str = "",
    units: tuple[str, str] = ("", ""),
    shown: tuple[str, str] = ("The memory of episode {}", "The decoded memory of episode {}"),
) -> Part:
    """The state of one episode over time: read from a handwired model's latents, decoded from a learned model's.

    Args:
        read, decoded: the text where the state is read (``{name}`` is a parameter of the algorithm), and where decoded.
        probed: variable that is decoded, one of those that the report probes; the algorithm's memory when empty.
        units, shown: label of the axis, and what is drawn, each where the state is read and where it is decoded.
    """

    def figure(held: Held, context: Context, width: float = WIDTH) -> Figure:
        which = 0 if context.exact else 1
        ylabel = units[which] or held.noun.removeprefix("the ")
        drawn = figures.trajectories(
            held.state, held.reference, held.labels, ylabel=ylabel, width=width
        )
        apart = (
            f"differ by at most {number(held.largest)}"
            if held.largest
            else "are equal in every bit"
        )
        series = shown[which].format(context.shown)
        whose = "machine" if lacks(context.model, "pattern") else "transformer"
        caption = f"What the {whose} holds and {held.noun} of the algorithm {apart}. {series}: "
        caption += f"thin lines are the {whose}'s, wide pale ones the algorithm's."
        return Figure(drawn, f"{title}, {whose} and algorithm", caption)

    def draw(held: Held, context: Context) -> list[object]:
        known = read.format(**context.algorithm.parameters) if context.compiled else _READ
        return [Prose(known if context.exact else decoded), figure(held, context)]

    def hero(held: Held, context: Context) -> list[Figure]:
        caption = f"{title}: thin lines are the model's, wide pale ones the algorithm's."
        return [] if context.compiled else [replace(figure(held, context, 5.0), caption=caption)]

    return Part(
        "state",
        title,
        lambda context: _of_the_latents(context) if context.exact else _of_a_probe(context, probed),
        draw,
        lambda of: bool(
            of.algorithms and of.algorithm.memory and (of.exact or of.task.analysis.probed)
        ),
        hero=hero,
        opened=True,
    )


def _of_the_latents(context: Context) -> Held:
    """The state that a handwired model's latents hold, before the first round and after every one."""
    key, i = context.algorithm.memory, context.shown
    state = context.model.read_state(context.run.latents)[i].numpy(force=True)
    values = context.algorithm.run(context.episodes)
    reference = np.concatenate([values[key][i, :1], values[NEXT + key][i]])
    shapes = f"{state.shape[1:]}, {context.algorithm.name} keeps {reference.shape[1:]}"
    require(
        state[0].size == reference[0].size, f"{context.model.name} reads a state of shape {shapes}"
    )
    of, labels = (
        context.algorithm.variable(key),
        context.algorithm.variable(key).labels(values[key]),
    )
    return Held(
        of.noun, state.reshape(len(state), -1), reference.reshape(len(reference), -1), labels
    )


def _of_a_probe(context: Context, key: str) -> Held:
    """What a probe decodes from the latents after every round."""
    results, wanted = context.result(KEY), key or context.algorithm.memory
    result = next((result for result in results if result.target.key == wanted), results[0])
    i, values = context.shown, result.target.values
    decoded, true = (
        np.reshape(array[i], (len(array[i]), -1)) for array in (result.predictions, values)
    )
    return Held(result.target.noun, decoded, true, tuple(result.target.outputs))
