"""What edits do: a machine's run without and with them, the algorithm's, and random changes of equal size.

Rounds before the first edit are taken from the run without edits; only those after it run again. What the controls are,
and which edits the algorithm follows: docs/method/pages.md.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from interp.interventions.sites import Site, carried_mask, resolve, write
from interp.model.hooked import Hooks
from interp.model.rollout import rollout
from interp.model.run import Rollout
from interp.support.errors import require
from reports.explore.view import Bench, View, Written

_N_CONTROLS = 4  # random changes of equal size; their range is shown
_Array = NDArray[Any]


@dataclass(frozen=True, eq=False)
class Answer:
    """A machine's view of one episode.

    Attributes:
        episodes: the one of the view with the edits of its inputs.
        before, after: the run without and with the edits.
        read: what every round reads of what is carried, with the edits, ``[1, round, row, width]``.
        hooks: of every round in which edits act inside the machine.
        controls: ``[control, round, outcome]``; empty without edits.
        values_before, values_after: what the algorithm holds, ``[1, round, ...]``; it follows ``followed`` edits.
        machine, algorithm: the predictions of each without and with the edits, ``[round, outcome]``.
    """

    bench: Bench
    view: View
    episodes: Any
    before: Rollout
    after: Rollout
    read: Tensor
    hooks: Mapping[int, Hooks]
    controls: _Array
    followed: int
    values_before: Mapping[str, _Array]
    values_after: Mapping[str, _Array]
    machine: tuple[_Array, _Array]
    algorithm: tuple[_Array, _Array]

    @cached_property
    def decoded(self) -> tuple[dict[str, _Array], dict[str, _Array]]:
        """The state as decoded from what each round reads, ``[round, ...]``, without and with the edits."""
        if self.bench.unreadable:
            return {}, {}
        latents = (self.before.latents[:, :-1], self.read)
        first, second = ({k: v[0] for k, v in self.bench.writer.read(x).items()} for x in latents)
        return first, second

    @cached_property
    def outcome(self) -> int:
        """The outcome that is drawn: the one asked for, else the one that edits move most, or that varies most."""
        names = self.bench.layout.outcomes
        require(
            self.view.outcome < len(names),
            f"outcome {self.view.outcome} does not exist: 0 to {len(names) - 1}",
        )
        if self.view.outcome >= 0:
            return self.view.outcome
        before, after = self.machine
        moved = np.abs(after - before).max(0)
        return int(
            (moved if moved.max() > 1e-6 else before.std(0) + 1e-9 * np.arange(len(names))).argmax()
        )

    def differences(self) -> dict[str, _Array]:
        """How far predictions move, by round: half the summed change of probabilities, or the change of a mean."""
        sides = self.machine, self.algorithm, (self.machine[0], self.controls)
        apart = [np.abs(after - before) for before, after in sides]
        machine, algorithm, random = [
            of.sum(-1) / 2 if self.bench.classes else of[..., 0] for of in apart
        ]
        moved = {"machine": machine, "algorithm": algorithm}
        if len(random):
            moved |= {
                "control_mean": random.mean(0),
                "control_low": random.min(0),
                "control_high": random.max(0),
            }
        return moved

    @cached_property
    def truth(self) -> list[str]:
        """The outcomes that the task's loss likes best in every round, as the edited inputs have it."""
        layout, names = self.bench.layout, self.bench.layout.outcomes
        if not self.bench.classes:
            return [""] * self.bench.n_rounds
        sure = torch.eye(len(names), dtype=torch.float64)[:, None, None].expand(
            -1, 1, self.bench.n_rounds, -1
        )
        losses = self.bench.task.data.losses(
            layout.prediction(sure), self.episodes, slice(0, self.bench.n_rounds)
        )
        best = losses[:, 0] <= losses[:, 0].min(0).values + 1e-9
        return [
            " or ".join(n for n, b in zip(names, best[:, t], strict=True) if b)
            for t in range(best.shape[1])
        ]

    def frame(self) -> pd.DataFrame:
        """A row for every round and outcome: what is drawn, as data."""
        n, names = self.bench.n_rounds, self.bench.layout.outcomes
        columns: dict[str, Any] = {
            "round": np.repeat(np.arange(n), len(names)),
            "outcome": list(names) * n,
        }
        columns |= {"truth": np.repeat(self.truth, len(names))}
        for name, pair in (("model", self.machine), ("algorithm", self.algorithm)):
            columns |= {f"{name}_before": pair[0].ravel(), f"{name}_after": pair[1].ravel()}
        if len(self.controls):
            columns |= {
                "control_low": self.controls.min(0).ravel(),
                "control_high": self.controls.max(0).ravel(),
            }
        columns |= {f"moved_{k}": np.repeat(v, len(names)) for k, v in self.differences().items()}
        return pd.DataFrame(columns)


def answer(bench: Bench, view: View, whole: bool = True) -> Answer:
    """Run the edits of a view; where ``whole``, also those inside the machine, which a reference lacks."""
    n, most = bench.n_rounds, len(bench.episodes)
    require(
        view.episode < most,
        f"episode {view.episode} does not exist: there are episodes 0 to {most - 1}",
    )
    require(
        view.round < n, f"round {view.round} is out of range: the episodes have rounds 0 to {n - 1}"
    )
    before, episodes = bench.alone(view.episode), bench.episodes
    for edit in view.edits:
        episodes = edit.inputs(bench, episodes)
    episodes = episodes.select([view.episode])
    inside = [edit for edit in view.edits if whole or edit.kind in ("input", "move")]
    writes = [written for edit in inside if (written := edit.written(bench)) is not None]
    fed = bench.model.prepare(bench.layout.encode(episodes))
    changed = _changed(bench, before, fed.tensors())
    hooks: dict[int, list[Any]] = defaultdict(list)
    sizes: dict[tuple[int, int], float] = {}  # how far each write moves an activation
    for i, one in enumerate(writes):
        for t in one.values:

            def put(own: Tensor, i: int = i, one: Written = one, t: int = t) -> Tensor:
                new = one.new(own, t)
                sizes[i, t] = float(torch.nan_to_num((new - own).double(), 0.0, 0.0, 0.0).norm())
                return new

            hooks[t].append((one.site.hook, partial(_act, bench, one.site, put)))
    read, latent = before.latents[:, :-1].clone(), resolve("latent", bench.model, bench.layout)
    for t in {*changed, *hooks}:  # rounds that run again, and what they read

        def keep(activation: Tensor, hook: object, t: int = t) -> None:
            read[:, t] = activation[:1]

        hooks[t].append((latent.hook, keep))
    after, controls = before, np.zeros((0, n, 1))
    if hooks:
        first, was = min(hooks), before.fed.tensors()
        parts = {
            name: torch.cat([was[name][:, :first], x[:, first:]], 1)
            for name, x in fed.tensors().items()
        }
        clean = replace(
            before, fed=replace(fed, **parts)
        )  # a run of the edited rounds takes its first rounds from it
        after = rollout(
            bench.model, episodes, fwd_hooks=hooks, propagate=not view.hold, clean=clean
        )
        for t in set(range(n)) - set(hooks):
            read[:, t] = (before if view.hold else after).latents[:, t]
        apart = (after.latents - before.latents)[0].double().flatten(1).norm(dim=-1)
        moves = [(t, latent, float(apart[t : t + 2].max())) for t in changed]
        controls = _controls(
            bench, view, before, [*moves, *((t, writes[i].site, x) for (i, t), x in sizes.items())]
        )
    values, followed = _follow(bench, view, episodes)
    alone = {key: value[[view.episode]] for key, value in bench.values.items()}
    told = [
        bench.layout.distribution(run.predictions)[0].double().numpy(force=True)
        for run in (before, after)
    ]
    asked = [np.asarray(bench.algorithm.distribution(of)[0]) for of in (alone, values)]
    sides = (told[0], told[1]), (asked[0], asked[1])
    return Answer(
        bench, view, episodes, before, after, read, hooks, controls, followed, alone, values, *sides
    )


def _act(
    bench: Bench, site: Site, change: Callable[[Tensor], Tensor], activation: Tensor, hook: object
) -> Tensor:
    """As a hook: change what stands at a site."""
    return write(activation, site, bench.layout, change(site.read(activation, bench.layout)))


def _changed(bench: Bench, before: Rollout, fed: Mapping[str, Tensor]) -> list[int]:
    """The rounds whose inputs differ from those of the run; a choice that the machine makes itself is none."""
    choice = bench.layout.choice_position
    differ = torch.zeros(bench.n_rounds, dtype=torch.bool)
    for name, tensor in fed.items():
        apart = (tensor != before.fed.tensors()[name])[0].reshape(bench.n_rounds, -1)
        if name == "tokens" and choice is not None:
            apart[:, choice] = False
        differ |= apart.any(-1).cpu()
    return [int(t) for t in differ.nonzero()]


def _controls(
    bench: Bench, view: View, before: Rollout, moves: list[tuple[int, Site, float]]
) -> _Array:
    """Predictions under random changes of equal size, ``[control, round, outcome]``: by round, site and size."""
    draw = torch.Generator().manual_seed(view.seed)
    hooks: dict[int, list[Any]] = defaultdict(list)
    for t, site, size in moves:

        def move(own: Tensor, site: Site = site, size: float = size) -> Tensor:
            noise = torch.randn(own.shape, generator=draw, dtype=torch.float64).to(
                own.device
            ) * _free(bench, site, own)
            long = noise.flatten(1).norm(dim=1).clamp_min(1e-30).reshape(-1, *[1] * (own.ndim - 1))
            return own + (noise / long * size).to(own)

        hooks[t].append((site.hook, partial(_act, bench, site, move)))
    episodes, clean = (
        bench.episodes.select([view.episode] * _N_CONTROLS),
        before.select([0] * _N_CONTROLS),
    )
    run = rollout(bench.model, episodes, fwd_hooks=hooks, propagate=not view.hold, clean=clean)
    return bench.layout.distribution(run.predictions).double().numpy(force=True)


def _free(bench: Bench, site: Site, own: Tensor) -> Tensor:
    """Which numbers at a site a random change may move: none that pads, masks, or counts how far a cache is written."""
    if site.kind.axes == "latent":
        held = carried_mask(bench.model)[site.index(bench.layout)[1]]
        return held.reshape(own.shape[1:]).to(own.device, torch.float64)
    seen = (
        own.isfinite()
        if "pos" in site.kind.axes.split()[:1] or not site.kind.axes
        else own.isfinite() & (own != 0)
    )
    return seen.double()


def _follow(bench: Bench, view: View, episodes: Any) -> tuple[Mapping[str, _Array], int]:
    """Every variable of the algorithm under the edits that it follows, ``[1, round, ...]``, and how many these are."""
    algorithm, acts = bench.algorithm, defaultdict(list)
    state_of, followed = {k: bench.values[k][[view.episode]] for k in algorithm.state}, 0
    for edit in view.edits:
        if edit.kind == "input":
            followed += 1
        elif (
            edit.kind == "move"
            or edit.on_state(bench, {k: v[:, 0] for k, v in state_of.items()}, 0) is not None
        ):
            followed += 1
            for t in edit.rounds(bench):
                acts[t].append(edit)
    if not (acts or view.hold):
        return algorithm.run(episodes), followed
    state, inputs = algorithm.carried(episodes)
    now, steps = {key: value[:, 0] for key, value in state.items()}, []
    for t in range(bench.n_rounds):
        now = {key: value[:, t] for key, value in state_of.items()} if view.hold else now
        for edit in acts[t]:
            now = edit.on_state(bench, now, t) or now
        with np.errstate(
            all="ignore"
        ):  # off the manifold an algorithm may have no answer, which is then NaN
            now, values = algorithm.step(now, {key: value[:, t] for key, value in inputs.items()})
        steps.append(values)
    return {
        key: np.stack([np.asarray(step[key]) for step in steps], 1) for key in steps[0]
    }, followed
