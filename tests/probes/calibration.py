"""How far the verdicts of probes can be trusted: two tables on data whose truth is known.

* ``nulls``: verdicts on targets that are not in a model's latents, six kinds on three models (:data:`NULLS`), with the
  inputs control and, given as bare values, without it. Every null has its own episodes and its own draw.
* ``power``: verdicts on a planted effect: of 8 features one holds the target with a true R2; noise and features are
  independent from round to round or random walks, which say much less.

What this is NOT: a bound for other models, targets, designs or numbers of
rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float
from numpy import ndarray as Array

import interp.tasks
from interp.core.algorithm import Episodes
from interp.model.library import load
from interp.model.rollout import rollout
from interp.model.transformer import untrained
from probes.fitting import fit_targets
from probes.result import ProbeResult
from probes.targets import compute, round_inputs
from probes.values import TargetValues

_Values = Float[Array, "episode round k"]
_Inputs = Float[Array, "episode round d"]


def _order(values: _Values, rng: np.random.Generator) -> _Values:
    """Outputs in another order in every episode, about their mean (which the latents may hold)."""
    n, _, k = values.shape
    order = rng.permuted(np.tile(np.arange(k), (n, 1)), axis=1)
    centred = values - values.mean(-1, keepdims=True)
    return np.take_along_axis(centred, order[:, None], axis=-1)


Null = Callable[[_Values, _Values, _Inputs, np.random.Generator], _Values]


def _draw_by_episode(
    values: _Values, other: _Values, inputs: _Inputs, rng: np.random.Generator
) -> _Values:
    """Draw one number an episode, the same in every round."""
    number_of_episode = rng.normal(size=(len(values), 1, 1))
    return np.repeat(number_of_episode, values.shape[1], 1)


def _draw_walk(
    values: _Values, other: _Values, inputs: _Inputs, rng: np.random.Generator
) -> _Values:
    """Draw random walks."""
    steps = rng.normal(size=(*values.shape[:2], 1))
    return np.cumsum(steps, 1)


def _mix_inputs(
    values: _Values, other: _Values, inputs: _Inputs, rng: np.random.Generator
) -> _Values:
    """Mix the inputs of each round by random weights."""
    weights = rng.normal(size=(inputs.shape[-1], 1))
    return np.asarray(inputs @ weights)


def _draw_by_round(
    values: _Values, other: _Values, inputs: _Inputs, rng: np.random.Generator
) -> _Values:
    """Draw one number a round, the same in every episode, and noise."""
    by_round = rng.normal(size=(1, values.shape[1], 1))
    return by_round + rng.normal(size=(*values.shape[:2], 1))


NULLS: dict[str, Null] = {
    "permuted": lambda values, other, inputs, rng: _order(values, rng),
    "exchanged": lambda values, other, inputs, rng: other,
    "episode": _draw_by_episode,
    "walk": _draw_walk,
    "inputs": _mix_inputs,
    "round": _draw_by_round,
}
"""What is not in the latents beyond a control: the task's first probed variable with its outputs in another order in
each episode, or of other episodes; one draw per episode; a random walk; a random function of the round's inputs; one of
the round index, with noise."""


def nulls(models: Sequence[str], n_sets: int, n_episodes: int, n_rounds: int) -> pd.DataFrame:
    """Verdicts on planted nulls: one row per model, kind and set; ``bare``: without the inputs control."""
    rows = []
    for name in models:
        model = load(name)
        blank = untrained(model, 0)
        sample = partial(interp.tasks.of(model).sample_for, model, n_episodes, n_rounds)
        for kind, index in product(NULLS, range(n_sets)):
            entropy = [list(NULLS).index(kind), index]
            (state,) = np.random.SeedSequence(entropy).generate_state(1)
            seed = int(state)
            episodes, others = sample(seed), sample(seed + 1)
            x, x_blank = (rollout(m, episodes).latents[:, 1:] for m in (model, blank))
            target = _planted(kind, model, episodes, others, seed)
            fit = partial(fit_targets, x, copies=[(x_blank, None)], seed=seed)
            (result,) = fit([target])
            (bare,) = fit([TargetValues.of(target.values)])
            verdicts = {"verdict": result.verdict, "bare": bare.verdict}
            rows.append({"model": name, "kind": kind, **verdicts})
    return pd.DataFrame(rows)


def _planted(
    kind: str, model: Any, episodes: Episodes, others: Episodes, seed: int
) -> TargetValues:
    key, *_ = interp.tasks.of(model).analysis.probed
    (target_of_episodes,) = compute([key], episodes, model)
    (target_of_others,) = compute([key], others, model)
    inputs, types = round_inputs(episodes)
    rng = np.random.default_rng([seed, 1])
    plant = NULLS[kind]
    values = plant(target_of_episodes.values, target_of_others.values, inputs[-1], rng)
    outputs = [f"output {i}" for i in range(values.shape[-1])]
    return TargetValues(kind, values, tuple(outputs), inputs=inputs, types=types)


def power(
    designs: Sequence[str], sizes: Sequence[int], effects: Sequence[float], n_sets: int
) -> pd.DataFrame:
    """Verdicts on a planted effect: one row per design, true R2, number of episodes and set."""
    rows = []
    for design, n, effect, index in product(designs, sizes, effects, range(n_sets)):
        result = _with_effect(design, effect, n, index)
        numbers = {"r2": result.r2, "detectable": result.score.detectable}
        settings = {"design": design, "effect": effect, "n_episodes": n}
        rows.append({**settings, **numbers, "verdict": result.verdict})
    return pd.DataFrame(rows)


def _with_effect(design: str, effect: float, n: int, index: int) -> ProbeResult:
    """A probe of features of which the first holds the target with R2 ``effect``, with all controls but one."""
    rng = np.random.default_rng([n, int(1000 * effect), index, design == "walk"])
    parts = rng.normal(size=(n, 20, 17))
    parts = np.cumsum(parts, axis=1) if design == "walk" else parts
    x, blank, noise = parts[..., :8], parts[..., 8:16], parts[..., 16:]
    signal = np.sqrt(effect) * x[..., :1]
    y = signal + np.sqrt(1 - effect) * noise
    target = TargetValues("planted", y, ("y",), inputs=(rng.normal(size=(n, 20, 2)),))
    return fit_targets(x, [target], copies=[(blank, None)], seed=index)[0]
