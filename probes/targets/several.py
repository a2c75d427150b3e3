"""The values of several targets at once, each algorithm run once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

import interp.tasks
from interp.algorithm import Episodes
from interp.checks import checked
from interp.errors import require
from interp.model.transformer import HookedLatentTransformer
from probes.checks import check
from probes.targets.target import Runs, every, parse
from probes.targets.values import TargetValues


@checked
def compute(
    targets: Sequence[str] | None, episodes: Episodes, model: HookedLatentTransformer | None = None
) -> list[TargetValues]:
    """The values of several targets, sharing runs of their algorithms and one copy of the round's inputs.

    Args:
        targets: keys, ``key:before`` for a state before each round; when None, every variable that varies in these
            episodes, of the first algorithm that has it, states at both moments.
        model: a handwired one sets the parameters of its own algorithm (its log gamma); the episodes' own when None or
            learned.

    Raises:
        InputError: no targets, an unknown one, or one that cannot be fitted.
    """
    task = interp.tasks.of(episodes)
    if targets is None:
        own_names = [target for target in every(task) if "." not in target.key]
        listed = [(target, moment) for target in own_names for moment in target.moments]
    else:
        require(bool(targets), "no targets were given; name at least one, see probes.targets.every(task)")
        listed = [parse(text, task) for text in dict.fromkeys(targets)]
    handwired = model is not None and model.is_handwired and bool(task.algorithms.records())
    algorithm = task.explains(model) if model is not None and handwired else None
    runs, values = Runs(episodes), []
    for target, moment in listed:
        own = algorithm is not None and target.record is not None and target.record.key == algorithm.key
        given = dict(algorithm.parameters) if algorithm is not None and own else {}
        values.append(runs.target(target.key, moment, **given))
    kept = [value for value in values if value.varies or targets is not None]
    require(bool(kept), "no variable varies in these episodes, so there is nothing to decode; sample longer ones")
    for value in kept:
        check(np.zeros((len(episodes), episodes.n_rounds, 1)), value)
    return [replace(value, inputs=kept[0].inputs, types=kept[0].types) for value in kept]
