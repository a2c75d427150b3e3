"""What a model's latents hold after every round, beside what the algorithm holds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from interp.algorithm import NEXT
from reports import figures
from reports.blocks import Figure, Prose, number
from reports.page import Section
from reports.part import Context, Part
from reports.parts import probing

_READ = "The algorithm's memory, read from the latents themselves."
_DECODED = "What a linear probe, fitted on other episodes, decodes from the latents after each round."


@dataclass(frozen=True)
class Held:
    """What is drawn of ``variable``: ``state`` of the model and ``reference``, ``[step, series]``; a label a series."""

    variable: str
    state: NDArray[Any]
    reference: NDArray[Any]
    labels: tuple[str, ...]


def part(
    title: str = "The state over time",
    *,
    read: str = _READ,
    decoded: str = _DECODED,
    probed: str = "",
    units: tuple[str, str] = ("", ""),
    shown: tuple[str, str] = ("The memory of episode {}", "The decoded memory of episode {}"),
) -> Part:
    """The state of one episode over time: read from a handwired model's latents, decoded from a learned model's.

    Args:
        title: of the section, such as "Weights over time".
        read, decoded: the text where the state is read (``{name}`` is a parameter of the algorithm), and where decoded.
        probed: variable that is decoded, one of those that the report probes; the algorithm's memory when empty.
        units: label of the axis where the state is read, and where it is decoded.
        shown: what is drawn, for the caption, likewise.
    """

    def compute(context: Context) -> Held:
        return _of_the_latents(context) if context.handwired else _of_a_probe(context, probed)

    def draw(held: Held, context: Context) -> Section:
        which = 0 if context.handwired else 1
        ylabel = units[which] or held.variable.replace("_", " ")
        drawn = figures.trajectories(held.state, held.reference, held.labels, ylabel=ylabel)
        largest = float(np.abs(held.state - held.reference).max())
        apart = f"their absolute difference is at most {number(largest)}" if largest else "they are equal in every bit"
        series = shown[which].format(context.shown)
        caption = f"{series}: the transformer's (thin) on the algorithm's (wide and pale); {apart}."
        text = read.format(**context.algorithm.parameters) if context.handwired else decoded
        blocks = [Prose(text), Figure(drawn, f"{title}, transformer and algorithm", caption)]
        return Section(title, blocks)

    def applies(context: Context) -> bool:
        return bool(context.algorithms and context.algorithm.memory and (context.handwired or context.task.probed))

    return Part("state", title, compute, draw, applies)


def _of_the_latents(context: Context) -> Held:
    """The state that a handwired model's latents hold, before the first round and after every one."""
    key, i = context.algorithm.memory, context.shown
    state = context.model.read_state(context.run.latents)[i].numpy(force=True)
    values = context.algorithm.run(context.episodes)
    reference = np.concatenate([values[key][i, :1], values[NEXT + key][i]])
    labels = context.algorithm.variable(key).labels(values[key])
    return Held(key, state.reshape(len(state), -1), reference.reshape(len(reference), -1), labels)


def _of_a_probe(context: Context, key: str) -> Held:
    """What a probe decodes from the latents after every round."""
    results = context.result(probing.KEY)
    wanted = key or context.algorithm.memory
    result = next((result for result in results if result.target.key == wanted), results[0])
    values, i = result.target.values, context.shown
    decoded, held = (np.reshape(array[i], (len(array[i]), -1)) for array in (result.predictions, values))
    return Held(result.target.key, decoded, held, tuple(result.target.outputs))
