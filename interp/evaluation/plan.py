"""Define what a task must provide so that its models can be evaluated, and functions that several
tasks share.

    >>> import interp
    >>> from interp.tasks import experts
    >>> model, episodes = interp.load("wma-handwired", n_experts=2), experts.sample(8, 10, 2, seed=0)
    >>> forgetful = interp.rollout(model, episodes, fwd_hooks=[cut(model)]).predictions
    >>> split = episodes.advice[..., 0] != episodes.advice[..., 1]             # without memory: a tie
    >>> bool((forgetful[split] == 0.5).all())
    True

A model with *cut* latents (reset to the initial ones in every round) has no information about
earlier rounds. A model with *swapped* latents has the usual information, but about another episode.
Attention patterns are NOT evidence of use: patch them instead (``interp.interventions``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from torch import Tensor

from interp.core.algorithm import Episodes
from interp.core.display import describe_lacking
from interp.core.machine import Machine
from interp.model.rollout import rollout
from interp.model.run import Rollout, Rounds
from interp.support.checks import checked_fields
from interp.support.errors import InputError, require

Hook = tuple[str, Callable[[Tensor, Any], Tensor]]
MODEL = "model"
"""Key of the evaluated model; baselines and controls have keys of their own."""
_NOTE_COLUMN = "note"  # the only column of a table that explains why it has no numbers


@dataclass(frozen=True)
@checked_fields
class EvaluationPlan:
    """How the models of a task are evaluated. The evaluation consists of parts, such as one for
    each regime (distribution of episodes), which are computed independently.

    Attributes:
        parts: function ``(model)`` -> the names of the parts.
        measure: function ``(model, part, n_episodes, seed)`` -> the result of the part with the
            name ``part``: a table, or {name: table}.
        tables: function ``(model, results)`` -> {name of a table: table} of the whole evaluation.
            ``results`` maps the name of each part to its result. One table must be "summary", which
            is printed.
        min_episodes: smallest allowed number of episodes.
        explained: sentences that explain the rows and columns of "summary"; they are printed above
            it.
    """

    parts: Callable[[Machine], Sequence[str]]
    measure: Callable[[Machine, str, int, int], Any]
    tables: Callable[[Machine, Mapping[str, Any]], dict[str, pd.DataFrame]]
    min_episodes: int = 1
    explained: str = ""


def notes(tables: Mapping[str, pd.DataFrame]) -> dict[str, str]:
    """Find the tables that have a note instead of numbers, because they do not apply to the model.

    Args:
        tables: name -> table.

    Returns:
        A mapping {name of such a table: its note, a sentence that says why the table does not
        apply}.
    """
    note_by_table = {}
    for name, frame in tables.items():
        # Such a table has one column, "note", and one row.
        if list(frame) == [_NOTE_COLUMN]:
            note_by_table[name] = str(frame[_NOTE_COLUMN].iloc[0])
    return note_by_table


def predictions_of(run: Rollout) -> NDArray[np.float64]:
    """Return the predictions of a rollout ``run``, ``[episode, round, ...]``, as a NumPy array in
    float64.
    """
    return run.predictions.double().numpy(force=True)


def cut(model: Machine) -> Hook:
    """Return a forward hook that replaces the latents by the model's initial latents before every
    round. The model then has no information about earlier rounds.

    Returns:
        A pair (name of the hook point, hook function), one entry of a list for the argument
        ``fwd_hooks`` of :func:`interp.rollout`.
    """
    # The number of latents may depend on the size of an episode, and the hook does not know this
    # size. So the latents of the largest size are made, and as many are taken as are needed.
    layout = model.layout.max_layout

    def read_first(latents: Tensor, hook: Any) -> Tensor:
        """Return the initial latents of as many episodes and rows as ``latents`` has."""
        initial = model.initial(len(latents), layout)
        return initial[:, : latents.shape[1]]

    return "hook_latents", read_first


SWAP: Hook = "hook_latents", lambda latents, hook: latents.roll(1, 0)
"""A forward hook that gives every episode the latents of the previous episode in the batch."""


def round_attention(
    model: Machine, episodes: Episodes, *, rounds: Rounds = slice(10, None)
) -> pd.DataFrame:
    """Compute how much attention every head pays from each token position of a round to this
    position and to each earlier one, averaged over episodes and rounds. Missing rounds are left
    out.

    Args:
        model: a model with attention between the positions of a round.
        episodes: at least one episode.
        rounds: rounds to average over: a slice, an index or a list of indices.

    Returns:
        A table with one row per layer, head, query and key. ``layer`` and ``head`` are indices;
        ``query`` is the label of the position that attends, and ``key`` is the label of the
        position that is attended to; ``attention`` is the mean weight, from 0 to 1.
    """
    require(len(episodes) > 0, "no episodes to average over")
    names = patterns(model)
    run = rollout(model, episodes, names_filter=names, rounds=rounds)
    labels = run.layout.labels
    rows = []
    for layer, name in enumerate(names):
        # [episode, round, head, query, key]; NaN in missing rounds
        weights = run.cache[name].double()
        average = weights.mean if run.missing is None else weights.nanmean
        mean = average((0, 1)).numpy(force=True)  # [head, query, key]
        for head, query, key in np.ndindex(mean.shape):
            if key <= query:  # attention is causal
                rows.append(
                    (layer, head, labels[query], labels[key], float(mean[head, query, key]))
                )
    return pd.DataFrame(rows, columns=["layer", "head", "query", "key", "attention"])


def table_or_note(note: str, table: Callable[[], pd.DataFrame]) -> pd.DataFrame:
    """Return a table if it applies to a model. Otherwise return a note in its place: a table with
    one column, "note", and one row, the sentence ``note``.

    Args:
        note: sentence that says why the table does not apply; "" if it applies.
        table: function without arguments that computes the table; only called if the table applies.
    """
    return pd.DataFrame({_NOTE_COLUMN: [note]}) if note else table()


def lacks_attention(model: Machine) -> str:
    """Return a sentence that says why a model has no attention between the positions of a round; ""
    if it has such attention.
    """
    lacking = describe_lacking(model, "pattern")
    if lacking and "pattern" in model.points:
        return (
            f"not applicable: the attention of {model.name} is not between the positions of a round"
        )
    return lacking


def patterns(model: Machine) -> list[str]:
    """Return the names of the hooks at a model's attention patterns, layer by layer, such as
    ``["blocks.0.attn.hook_pattern", "blocks.1.attn.hook_pattern"]``.

    Raises:
        InputError: the model has no attention between the positions of a round.
    """
    if lack := lacks_attention(model):
        raise InputError(
            f"{lack}; its points are {', '.join(model.points)}, which probes and interp.rollout read"
        )
    point = model.points["pattern"]  # a kind of hook point, one in every layer
    return [point.hook.format(layer=layer) for layer in range(point.n_layers or 1)]
