"""Steering: write a state into the latents and compare the behaviour with what the algorithm would do from there.

In a handwired transformer a state change has one exact latent change (the smallest that the readout sees); in any other
machine it is a direction that is given, a probe's or a decoder's (:func:`fitted_direction`). Random directions of equal
norm are the control. A dose that moves the prediction as the algorithm would is evidence that the model *uses* the
direction around these inputs; large doses leave the data's range, and agreement there is more than is needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from interp.core.algorithm import Algorithm, Episodes, participants_of
from interp.core.machine import Machine
from interp.interventions.experiment import Edit, Experiment, Tabulated, over, run
from interp.interventions.moves import Writer, decodable
from interp.interventions.pairs import run_of
from interp.interventions.sites import Site, carried_mask, resolve_one, write
from interp.model.run import Rollout, select_rounds
from interp.stats.decoder import RIDGE
from interp.stats.intervals import bootstrap_mean, ratio_interval
from interp.support.checks import array_of, checked, checked_fields, refuse_beyond_machine, shown
from interp.support.errors import require
from interp.support.provenance import provenance


def has_state_direction(model: Machine) -> bool:
    """Whether a state can be written exactly: by the map of a handwired transformer. Other machines are only read."""
    return model.is_handwired and hasattr(model, "state_map")


def _state_map(model: Machine) -> Float[Tensor, "number d_model"]:
    name = model.name
    require(
        model.is_handwired,
        f"{name!r} is a learned model: it has no exact state; pass a probe's direction",
    )
    require(
        has_state_direction(model),
        f"{name!r} says how its state is read, and not how it is written; pass a direction [row, width], such as that "
        "of interp.interventions.steering.fitted_direction",
    )
    return cast(Tensor, model.state_map)  # type: ignore[attr-defined]


def _state_direction(model: Machine, change: ArrayLike) -> Float[Tensor, "latent d_model"]:
    """The smallest latent change that changes a handwired transformer's state by ``change`` (one state's shape)."""
    state_map = _state_map(model)
    wanted = torch.as_tensor(array_of("change", change).astype(np.float64)).to(state_map)
    shape = (model.layout.n_latents, len(state_map))
    require(
        wanted.shape == model.layout.state(torch.zeros(shape)).shape,
        f"a state change must have {shape[1]} numbers for each of {shape[0]} latents, got shape {tuple(wanted.shape)}",
    )
    return model.layout.per_latent(wanted) @ torch.linalg.pinv(state_map).T


@checked
def write_state(
    model: Machine, latents: Float[Tensor, "*batch latent d_model"], state: Tensor
) -> Float[Tensor, "*batch latent d_model"]:
    """A handwired transformer's latents, changed as little as possible to hold ``state``."""
    state_map = _state_map(model)
    now = model.read_state(latents)
    array_of("state", state, finite=True)
    fits = tuple(state.shape)[-now.ndim :] == tuple(now.shape)[-state.ndim :]
    require(
        fits, f"a state of these latents has shape {tuple(now.shape)}, got {tuple(state.shape)}"
    )
    return (
        latents + model.layout.per_latent(state.to(latents) - now) @ torch.linalg.pinv(state_map).T
    )


@checked
def fitted_direction(
    model: Machine,
    episodes: Episodes | Rollout,
    algorithm: Algorithm,
    change: ArrayLike,
    sites: Site | str | Sequence[Site | str] = "latent",
) -> Float[Tensor, "row width"]:
    """How what a machine carries moves when the memory that a decoder reads in it moves by ``change``.

    A decoder's weights, fitted on ``episodes``, say how to *read* a state; this is how latents vary with what is read
    (:meth:`interp.stats.decoder.Decoder.move`). With ``sites="latent@h"`` one channel is read and moved alone.
    """
    memory, base = _memory(algorithm), run_of(model, episodes, "steering")
    values = algorithm.run(base.episodes)
    others = [key for key in algorithm.state if key != memory] if memory in algorithm.state else []
    place = resolve_one(sites, model, base.layout)
    writer = Writer.fit(
        model,
        base,
        values,
        decodable(base, values, (memory, *others), sites=place),
        place,
        ridge=RIDGE,
    )
    shape, wanted = writer.shapes[memory], array_of("change", change, finite=True)
    require(
        wanted.shape == shape,
        f"the memory of {algorithm.name} has shape {shape}, the change {wanted.shape}",
    )
    step, still = (
        writer.step({memory: wanted}, (1, 1))[0],
        torch.zeros_like(base.latents[:1, 0], dtype=torch.float64),
    )
    return write(still, place, base.layout, step.reshape(place.read(still, base.layout).shape))[0]


def _memory(algorithm: Algorithm) -> str:
    require(
        bool(algorithm.memory),
        f"{algorithm.name} does not say what it keeps from round to round; give the algorithm memory=...",
    )
    return algorithm.memory


@dataclass(frozen=True, eq=False, kw_only=True)
class _SteeringResult(Tabulated):
    """Dose-response of a steered round.

    The table has a row per dose: means over episodes with 95 % intervals, of model, algorithm and random directions.
    ``difference`` is the model's minus the algorithm's, paired by episode. ``score`` says how much of the algorithm's
    move from dose 0 the model makes: ``1 - sum |model's move - algorithm's| / sum |algorithm's|`` over episodes, 1 the
    whole move in every episode and 0 no better than none; NaN at dose 0, or where it is not given.

    Attributes:
        model, algorithm: probability of the outcome that is read.
        random: the model's along random directions of equal norm.
    """

    model: Float[np.ndarray, "dose episode"]
    algorithm: Float[np.ndarray, "dose episode"]
    random: Float[np.ndarray, "dose direction episode"]


def _responses(
    doses: list[float],
    model: NDArray[Any],
    algorithm: NDArray[Any],
    random: NDArray[Any],
    whose: Any,
) -> pd.DataFrame:
    """The table of a dose-response."""
    columns: dict[str, Any] = {"dose": doses}
    off, drawn = model - algorithm, random.mean(1)
    series = {"model": model, "algorithm": algorithm, "random": drawn, "mean_error": np.abs(off)}
    for name, values in {
        **series,
        "difference": off,
        "random_difference": drawn - algorithm,
    }.items():
        columns[name], columns[f"{name}_low"], columns[f"{name}_high"] = bootstrap_mean(
            values.T, participants=whose
        )
    columns["max_error"] = np.abs(off).max(1)
    columns["random_mean_error"] = np.abs(random - algorithm[:, None]).mean((1, 2))
    scores = pd.DataFrame(
        np.nan, range(len(doses)), ["score", "score_low", "score_high", "random_score"]
    )
    for i, dose in enumerate(doses) if 0 in doses else ():
        moved, asked, along = (x[i] - x[doses.index(0)] for x in (model, algorithm, random))
        if dose != 0:
            score = ratio_interval(
                np.abs(moved - asked), np.abs(asked), participants=whose
            ).complement
            whole = np.abs(asked).sum()
            best = 1 - np.abs(along - asked).sum(1).min() / whole if whole else np.nan
            scores.loc[i] = score.estimate, score.low, score.high, best
    return pd.DataFrame(columns).join(scores)


@dataclass(frozen=True)
@checked_fields
class Doses:
    """Doses of a state change.

    Attributes:
        change: the state change of dose 1, in the units and the shape of the algorithm's memory.
        sizes: the doses, as multiples of it.
        direction: the change of dose 1 in what is carried, ``[row, width]`` (a probe's, or that of
            :func:`fitted_direction`); a handwired transformer's own when None.
    """

    change: ArrayLike
    sizes: Sequence[float] = (-4.0, -2.0, -1.0, 0.0, 1.0, 2.0, 4.0)
    direction: Tensor | None = None

    def __post_init__(self) -> None:
        require(len(self.sizes) > 0, "give at least one dose")
        for name in ("change", "direction"):
            array_of(name, 0 if getattr(self, name) is None else getattr(self, name), finite=True)


@checked
def steer(
    model: Machine,
    episodes: Episodes | Rollout,
    algorithm: Algorithm,
    doses: Doses,
    *,
    round: int,
    of: int | ArrayLike = 1,
    n_random: int = 8,
    seed: int = 0,
) -> _SteeringResult:
    """Add doses of a state change to what one round reads, and read the prediction.

    Args:
        of: the outcome whose probability is read, counted from 0; one for all, or one per episode
            (such as an expert's vote, so that raising its weight raises the probability in every episode).
        n_random: control directions, with the norm of the direction and on the same latents.
    """
    memory, change = _memory(algorithm), doses.change
    require(n_random >= 1, f"the control needs at least 1 random direction, got {n_random}")
    carried = model.initial(1).shape[1:].numel()
    refuse_beyond_machine(
        f"{n_random} random directions", 8.0 * n_random * carried * model.layout.n_positions
    )
    base = run_of(model, episodes, "steering")
    (t,) = select_rounds(round, base.n_rounds)
    numbers, n = array_of("of", of), base.layout.n_outputs
    require(
        numbers.dtype.kind in "iu"
        and numbers.shape in ((), (base.n_episodes,))
        and bool(((numbers >= 0) & (numbers < n)).all()),
        f"of must be the number of an outcome from 0 to {n - 1}, for all or one for each of the {base.n_episodes} "
        f"episodes, got {shown(of)}",
    )
    read, values = (
        np.broadcast_to(numbers.astype(np.int64), (base.n_episodes,)),
        algorithm.run(base.episodes),
    )
    shape = values[memory].shape[2:]
    fits = np.shape(change) == shape
    require(
        fits,
        f"change must have the shape of what {algorithm.name} keeps, {shape}, got {np.shape(change)}",
    )
    exact = doses.direction is None
    along = (
        _state_direction(model, change)
        if doses.direction is None
        else doses.direction.to(base.latents)
    )
    fits = along.shape == base.latents.shape[2:]
    require(
        fits,
        f"a direction must be [row, width] = {tuple(base.latents.shape[2:])}, got {tuple(along.shape)}",
    )
    # Random directions as long, on the rows that it moves.
    noise = torch.as_tensor(
        np.random.default_rng(seed).standard_normal((n_random, *along.shape))
    ).to(along)
    noise = noise * (
        (along.norm(dim=-1) > 0).unsqueeze(-1) & carried_mask(model)[: len(along)].to(along.device)
    )
    directions = (
        along,
        *noise / noise.flatten(1).norm(dim=1).clamp_min(1e-30)[:, None, None] * along.norm(),
    )
    edits = {
        f"dose {i} along {j}": [Edit.of("latent", base.latents[:, [t]] + dose * direction, model)]
        for i, dose in enumerate(doses.sizes)
        for j, direction in enumerate(directions)
    }
    found = run(Experiment(model, base, edits, [t], commit="target", update=False))
    rows = np.arange(base.n_episodes)
    chances = np.ascontiguousarray(found.values[:, :, 0].numpy(force=True)[:, rows, read])
    chances = chances.reshape(len(doses.sizes), len(directions), -1)
    (state, inputs), answers = (
        algorithm.at(values, [t]),
        [],
    )  # the algorithm's own, from its memory moved by each dose
    for dose in doses.sizes:
        moved = values[memory][:, [t]] + dose * np.asarray(change, dtype=np.float64)
        answers.append(
            algorithm.distribution(algorithm.step(state, inputs, {memory: moved})[1])[rows, 0, read]
        )
    chosen = {"algorithm": algorithm.key, "parameters": dict(algorithm.parameters), "exact": exact}
    sizes, mine, wanted, random = (
        [float(x) for x in doses.sizes],
        chances[:, 0],
        np.stack(answers),
        chances[:, 1:],
    )
    off, theirs = np.abs(mine - wanted), np.abs(random - wanted[:, None]).mean()
    how = (
        "exactly as the algorithm"
        if off.max() < 1e-6
        else f"within {off.mean():.2g} of the algorithm"
    )
    lines = {"model": mine.mean(1), "algorithm": wanted.mean(1), "random": random.mean((1, 2))}
    outcome = base.layout.outcomes[read[0]] if np.ndim(of) == 0 else "one per episode"
    axes = {"x": "dose", "ylabel": f"probability of {outcome}"}
    return _SteeringResult(
        sentence=f"Steering moves it {how}; random directions miss by {theirs:.2g}.",
        table=_responses(sizes, mine, wanted, random, participants_of(base.episodes)),
        picture=lambda figures: figures.curves(over({"dose": sizes}, lines), **axes),
        settings=provenance(model, **chosen, round=t, n_random=n_random, seed=seed),
        model=mine,
        algorithm=wanted,
        random=random,
    )
