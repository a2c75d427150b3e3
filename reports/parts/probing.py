"""Report parts on linear probes of the latents, with their controls, and on the state over time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

import probes
from interp.core.algorithm import NEXT
from interp.core.display import describe_lacking
from interp.model.rollout import rollout
from interp.results import figures
from interp.results.measure import Measure
from interp.results.style import WIDTH
from interp.stats.decoder import Affine
from interp.support.checks import checked_result
from interp.support.errors import require
from probes import ProbeResult
from probes.activations import places
from probes.activations import read as read_activations
from probes.fitting import N_UNTRAINED
from probes.targets import compute as compute_targets
from probes.targets import parse as parse_target
from reports.blocks import Figure, Measures, Prose, Table, format_number
from reports.explore.view import score_decoder
from reports.part import Context, Part
from reports.texts import TEXTS

KEY = "probes"
_TEXTS = TEXTS["probing"]
_EXACT_TEXT = "The algorithm's state, read from the latents exactly, without a probe."
_SCALE_TEXT = (
    "Scores of linear probes of the latents. An R² of 1 is perfect, and 0 is no better than "
    "predicting the mean."
)
_DECODED_TEXT = (
    "The algorithm's state, decoded from the latents after each round by a linear probe that was "
    "fitted on other episodes."
)


def part(targets: Sequence[str] = (), n_claimed: int = 1) -> Part:
    """Make the report part that decodes variables of the algorithm from the model's latents after
    every round, by linear probes.

    Args:
        targets: keys of the variables; the task's default ones when empty.
        n_claimed: number of variables, from the first on, that should be decodable. The overview of
            the page lists only these, the best decoded first, and a quick report decodes only these.
    """

    def choose_targets(context: Context) -> tuple[str, ...]:
        keys = tuple(targets or context.task.analysis.probed)
        return keys[:n_claimed] if context.quick else keys

    def compute(context: Context) -> list[ProbeResult]:
        """Fit a probe for each target that varies over the report's episodes."""
        varying = []
        for key in choose_targets(context):
            target, moment = parse_target(key, context.task)
            if target(context.episodes, moment).as_numbers().varies:  # a constant cannot be probed
                varying.append(key)
        if not varying:
            return []
        return probes.probe(
            context.model,
            context.episodes,
            varying,
            run=context.run,
            sites=_find_widest_site(context),
            seed=context.seed,
            n_untrained=1 if context.quick else N_UNTRAINED,
        )

    def draw(results: list[ProbeResult], context: Context) -> list[object]:
        """Return the blocks of the page on probes: a text and the scores. The text names variables
        that were left out because they are constant over these episodes, so that no probe can be
        fitted.

        Args:
            results: the results of the probes, one per variable.
            context: the model and the episodes of the report.
        """
        text = _TEXTS["text"]
        if results and results[0].site != "latents":
            text += _TEXTS["part"].format(site=results[0].site)
        probed = [result.target.key for result in results]
        for key in choose_targets(context):
            if key not in probed:
                target, _ = parse_target(key, context.task)
                noun = target.variable.noun
                text += f"\n\n**Left out:** {noun} (no variation over these episodes)."
        if not results:
            return [Prose(text)]
        measures = [result.measure for result in results]
        numbers = pd.concat([result.scores() for result in results], ignore_index=True)
        return [
            Prose(text),
            Measures(measures, _SCALE_TEXT),
            Table(numbers, "All scores, with every metric and control", collapsed=True),
        ]

    def summarise(results: list[ProbeResult], context: Context) -> list[Measure]:
        """Make the measures for the page's overview from the probes of the variables that should be
        decodable, the best decoded first.

        Args:
            results: the results of the probes, one per variable.
            context: the model and the episodes of the report.
        """
        claimed = choose_targets(context)[:n_claimed]
        # A handwired model need hold only its own algorithm's variables.
        if context.has_exact_state:
            claimed = tuple(key for key in claimed if key in context.algorithm.keys)
        measures: list[Measure] = []
        for result in results:
            if result.target.key in claimed:
                measures += map(_mark_if_rough, result)  # a result yields its measures
        return sorted(measures, key=lambda measure: measure.number.estimate, reverse=True)

    def applies(context: Context) -> bool:
        return bool(targets or context.task.analysis.probed)

    return Part(KEY, "Probes", compute, draw, applies=applies, summary=summarise)


def _find_widest_site(context: Context) -> str:
    """Return the name of the site to probe in the report's model: all latents; or, if a channel
    (part of the latents) grows in every round, the widest channel of fixed size.
    """
    channels = context.model.channels
    fixed = [channel for channel in channels if not channel.grows] or channels
    if len(fixed) == len(channels):  # none grows, or all do
        return "latents"
    widest = max(fixed, key=lambda channel: np.prod(channel.shape))
    return f"latents@{widest.name}"


def _mark_if_rough(measure: Measure) -> Measure:
    """Return the measure; if its R2 is below .98, its phrase says "roughly read" in place of
    "read", since such a read-out differs visibly from the variable.
    """
    if measure.unit == "R2" and measure.number.estimate < ROUGH:
        return replace(measure, yes=measure.yes.replace(" read ", " roughly read ", 1))
    return measure


ROUGH = 0.98
"""R2 below which a state is called roughly decoded, and the figure decodes it with more episodes.
"""
_POOR_BELOW = 0.5
"""R2 below which a decoded state is said to agree poorly with the algorithm's."""
_N_REFIT_EPISODES = 256
"""Number of episodes on which the decoder of the state's picture is fitted."""
_N_QUICK_REFIT_EPISODES = 64
"""The same number in a quick report."""


@dataclass(frozen=True)
@checked_result
class Trajectory:
    """A variable over one episode, in the model and in the algorithm, as the page draws it.

    Attributes:
        noun: name of the variable in a sentence.
        state: the model's values, ``[step, series]``, with one column per number of the variable.
            There is one row per round; for a state that is read exactly, a row for the state before
            the first round comes first.
        reference: the algorithm's values, in the same shape.
        labels: a name for each column.
        r2: R2 of the decoded variable over all episodes of the report; None if the variable is read
            exactly, or is not a real number.
    """

    noun: str
    state: NDArray[Any]
    reference: NDArray[Any]
    labels: tuple[str, ...]
    r2: float | None = None

    def describe_difference(self) -> str:
        """Return a phrase on how much model and algorithm differ in this episode, such as "differ
        by at most .01".
        """
        difference = np.abs(self.state - self.reference)
        if not difference.max():
            return "are equal in every bit"
        largest = f"by at most {format_number(float(difference.max()))}"
        r2 = self.r2
        if r2 is None or r2 >= ROUGH:
            return f"differ {largest}"
        mean = format_number(float(difference.mean()))
        how_well = "roughly" if r2 >= _POOR_BELOW else "poorly"
        return f"agree {how_well} (R² {r2:.2f} over all episodes): they differ by {mean} on average, {largest}"


def state(
    title: str = "The state over time",
    *,
    text_if_exact: str = _EXACT_TEXT,
    text_if_decoded: str = _DECODED_TEXT,
    probed: str = "",
    units: tuple[str, str] = ("", ""),
) -> Part:
    """Make the report part that draws the model's state and the algorithm's state over one episode.

    Args:
        title: title of the section.
        text_if_exact: text for a compiled model, where the state is read exactly. A name in braces,
            such as "{eta}", is replaced by that parameter of the algorithm. Other models with an
            exact state have the default text.
        text_if_decoded: text for a learned model, where the state is decoded.
        probed: key of the variable to decode, one of the report's probe targets; the main state
            variable of the algorithm (its ``memory``) when empty.
        units: two labels of the vertical axis, for an exactly read and for a decoded state; the
            name of the variable if empty.
    """

    def draw_trajectory(trajectory: Trajectory, context: Context, width: float) -> Any:
        """Draw the model's state and the algorithm's state in one panel, the model's on top, and
        their absolute difference in a second panel at the right. Return the figure.

        Args:
            trajectory: both states over one episode.
            context: the report's model, episodes and settings.
            width: width of the picture, in inches.
        """
        label = units[0] if context.has_exact_state else units[1]
        return figures.trajectories(
            trajectory.state,
            trajectory.reference,
            trajectory.labels,
            ylabel=label or trajectory.noun.removeprefix("the "),
            width=width,
        )

    def compute(context: Context) -> Trajectory:
        return _read_memory(context) if context.has_exact_state else _decode_memory(context, probed)

    def draw(trajectory: Trajectory, context: Context) -> list[object]:
        """Return the blocks of the page on the state: a text on how the state was read (exactly, or
        by probes), and its picture.

        Args:
            trajectory: the state of model and algorithm over the rounds.
            context: the model and the episodes of the report.
        """
        text = text_if_decoded
        if context.has_exact_state:
            text = _EXACT_TEXT
        if context.is_compiled:  # so its state is exact, too
            text = text_if_exact.format(**context.algorithm.parameters)
        # A model without attention patterns is no transformer.
        machine = "machine" if describe_lacking(context.model, "pattern") else "transformer"
        caption = (
            f"What the {machine} holds and {trajectory.noun} of the algorithm "
            f"{trajectory.describe_difference()}. Episode {context.drawn_episode}: "
            f"thin lines are the {machine}'s, wide pale ones the algorithm's."
        )
        picture = draw_trajectory(trajectory, context, WIDTH)
        return [Prose(text), Figure(picture, f"{title}, {machine} and algorithm", caption)]

    def draw_hero(trajectory: Trajectory, context: Context) -> list[Figure]:
        """Return the picture of the state for the top of the page. There is none for a model that
        was compiled from a circuit, whose page begins with a picture of the circuit.

        Args:
            trajectory: the state of model and algorithm over the rounds.
            context: the model and the episodes of the report.
        """
        if context.is_compiled:
            return []
        caption = f"{title}: thin lines are the model's, wide pale ones the algorithm's."
        if trajectory.r2 is not None and trajectory.r2 < ROUGH:
            caption += f" They {trajectory.describe_difference()}."
        return [Figure(draw_trajectory(trajectory, context, 5.0), title, caption)]

    def applies(context: Context) -> bool:
        has_memory = bool(context.algorithms and context.algorithm.memory)
        return has_memory and bool(context.has_exact_state or context.task.analysis.probed)

    return Part("state", title, compute, draw, applies=applies, hero=draw_hero, opened=True)


def _flatten(values: NDArray[Any]) -> NDArray[Any]:
    """Return values ``[step, ...]`` as a table with one row per step."""
    return values.reshape(len(values), -1)


def _read_memory(context: Context) -> Trajectory:
    """Read the state of a handwired model exactly, before the first round and after every one, in
    the episode that the page shows (:attr:`Context.drawn_episode`).
    """
    algorithm = context.algorithm
    key = algorithm.memory
    variable = algorithm.variable(key)
    episode = context.drawn_episode
    # [round + 1, ...]: before the first round and after each.
    state = context.model.read_state(context.run.latents)[episode].numpy(force=True)
    values = algorithm.run(context.episodes)  # [episode, round, ...] by key
    start = values[key][episode, :1]  # before the first round
    reference = np.concatenate([start, values[NEXT + key][episode]])  # [round + 1, ...]
    require(
        state[0].size == reference[0].size,
        f"{context.model.name} reads a state of shape {state.shape[1:]}, {algorithm.name} keeps "
        f"{reference.shape[1:]}",
    )
    labels = variable.labels(values[key])
    return Trajectory(variable.noun, _flatten(state), _flatten(reference), labels)


def _decode_memory(context: Context, key: str) -> Trajectory:
    """Return a variable as probes decode it from the latents after every round, in the episode that
    the page shows (:attr:`Context.drawn_episode`).

    Args:
        context: the report's model, episodes and settings, with the results of its probes.
        key: key of the variable. "" takes the algorithm's main state variable (its ``memory``). If
            the variable was not probed, the first probed one is used.
    """
    results = {result.target.key: result for result in context.result(KEY)}
    wanted = key or context.algorithm.memory
    result = results.get(wanted, next(iter(results.values())))
    target = result.target
    decoded = result.predictions
    r2 = None
    if target.kind == "real":
        r2 = result.score.estimate
        # A poor fit may only lack data. No more can be sampled of recorded episodes.
        if r2 < ROUGH and not context.task.recorded:
            decoded = _decode_by_more_episodes(context, result)
            r2 = score_decoder(target.values, decoded)
    state = _flatten(np.asarray(decoded[context.drawn_episode]))
    reference = _flatten(np.asarray(target.values[context.drawn_episode]))
    return Trajectory(target.noun, state, reference, tuple(target.outputs), r2)


def _decode_by_more_episodes(context: Context, result: ProbeResult) -> NDArray[np.float64]:
    """Decode a probe's target by a least-squares fit on 256 newly sampled episodes (64 in a quick
    report), for a probe whose own fit may have had too few.

    Args:
        context: the report's model, episodes and settings.
        result: result of the probe.

    Returns:
        The decoded values in the report's episodes, ``[episode, round, output]``.
    """
    model = context.model
    # The seeds before this one are those of the report's episodes and of their sources.
    n_episodes = _N_QUICK_REFIT_EPISODES if context.quick else _N_REFIT_EPISODES
    other_episodes = context.sample(n_episodes, context.n_rounds, context.seed + 2)
    (target,) = compute_targets([result.target.key], other_episodes, model)
    (place,) = places(model, other_episodes, [result.site or "latents"])
    # Activations [episode, round, ...] of the other episodes, and of the report's.
    features = torch.as_tensor(read_activations(rollout(model, other_episodes), place, target.when))
    report_features = torch.as_tensor(read_activations(context.run, place, target.when))
    width = int(np.prod(features.shape[2:]))
    x = features.reshape(-1, width)
    y = torch.as_tensor(target.values).reshape(len(x), -1)
    decode = Affine.fit(x, y)
    decoded = decode(report_features.reshape(-1, width)).numpy()
    return decoded.reshape(result.target.values.shape)
