"""Move a decoded variable alone and grade the effect, and ask whether a decoded state is closed under an update.

A :class:`Writer` holds a decoder of variables. :func:`move` changes an activation so that one decoded variable changes
by what is asked for, and nothing else that is decoded with it does: it is set (``by={key: theirs[key] - own[key]}``) or
moved. The outcome is graded against the same counterfactual in the algorithm. The control, :meth:`Writer.placebo`, is a
move as far in a direction that is orthogonal to every move of what is decoded. :func:`transition` asks whether decoding
what a round leaves is the algorithm's update of what was decoded before it. How it is scored: docs/method/moves.md.

    >>> import interp
    >>> from interp.interventions.moves import Writer, move
    >>> from interp.model.rollout import rollout
    >>> from interp.tasks import experts
    >>> model = interp.load("wma-handwired", n_experts=4).double()
    >>> algorithm = experts.TASK.algorithm("weighted_majority", gain=0.5)
    >>> known, episodes = (experts.sample(16, 12, 4, seed=seed) for seed in (0, 1))
    >>> writer = Writer.fit(model, rollout(model, known), algorithm.run(known), ("log_weights",))
    >>> move(model, episodes, algorithm, writer, by={"log_weights": [1.0, 0, 0, 0]}).score().estimate > 0.999999
    True
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from interp.core.algorithm import Algorithm, Episodes, Values, participants_of
from interp.core.machine import Machine
from interp.interventions.experiment import Edit, Outcome, Tabulated, over, run_on
from interp.interventions.interchange import (
    InterchangeResult,
    graded,
    of_rounds,
    require_comparable,
)
from interp.interventions.pairs import run_of
from interp.interventions.sites import Site, carried_mask, resolve_one, write
from interp.model.layout import RoundLayout
from interp.model.rollout import replay
from interp.model.run import Rollout, Rounds, select_rounds
from interp.stats.decoder import RANK, RIDGE, Decoder
from interp.stats.intervals import Interval, ratio_interval
from interp.support.checks import array_of, checked, non_empty, number
from interp.support.errors import require, require_known, theirs
from interp.support.provenance import provenance

_HELD = 0.5  # a carried variable is decodable when the latents explain this share of what the others do not explain


@dataclass(frozen=True)
@checked
class Writer:
    """Reads some variables in the activation of one site, and moves each of them without the others.

    Attributes:
        shapes: the shape of each variable that is decoded at the site, by key.
        size: rows and width of the activation: those of what is carried, or (1, width) at one place.
        decoder: from the activation to all of their elements, one after the other.
        apart: the direction ``[row, width]`` of a control, along which every move goes as far; else None.
        held: which numbers of the activation mean something, ``[row, width]``, where the others pad narrow channels.
    """

    site: Site
    shapes: Mapping[str, tuple[int, ...]]
    size: tuple[int, int]
    decoder: Decoder
    apart: Tensor | None = None
    held: Tensor | None = None

    @classmethod
    def fit(
        cls,
        model: Machine,
        run: Rollout,
        values: Values,
        keys: Sequence[str],
        sites: Site | str | Sequence[Site | str] = "latent",
        *,
        round: Rounds = "all",
        ridge: float = 0.0,
    ) -> Writer:
        """Fit on a rollout, whose episodes should be others than those that are moved.

        Args:
            values: variables of an algorithm on the same episodes, ``[episode, round, ...]``.
            keys: of those that are decoded together.
            sites: "latent" for what a round reads, "latent@h+c" or ["latent@h", "latent@c"] for some channels of it, a
                site of the residual stream, or a point of another machine.
        """
        place = resolve_one(sites, model, run.layout)
        require(
            place.kind.axes in ("latent", "pos", ""),
            "a variable is moved in what is carried, in the residual stream or in a plain vector, not at "
            f"{str(place)!r}, inside a head or along several axes",
        )
        shape = run.n_episodes, run.n_rounds
        for key in non_empty("keys", keys, "a variable"):
            require_known("variable", key, values, limit=40)
            got = array_of(key, values[key], finite=True).shape
            require(
                got[:2] == shape,
                f"{key} must be [episode, round, ...] = {[*shape, '...']}, got {got}",
            )
        require(len(set(keys)) == len(keys), f"keys name a variable twice: {', '.join(keys)}")
        number("ridge", ridge, 0)
        at = select_rounds(round, run.n_rounds)
        decoded = np.concatenate([flat(values[key][:, at]) for key in keys], -1)
        held = None
        if place.kind.axes == "latent":
            activation = _carried(run.latents[:, at], place, run.layout)
            mask = carried_mask(model)[place.index(run.layout)[1]].reshape(-1, activation.shape[-1])
            mask = mask[: activation.shape[-2]]
            held = None if bool(mask.all()) else mask
            # How far a cache is written says which round it is: it is neither read nor moved.
            activation = activation if held is None else activation * held
        else:
            _, _, cache = replay(model, run, rounds=at, names_filter=[place.hook])
            rows = cache[place.hook].flatten(0, 1)[place.index(run.layout)]
            activation = rows.reshape(run.n_episodes, len(at), -1, rows.shape[-1])
        shapes = {key: tuple(np.shape(values[key])[2:]) for key in keys}
        size = activation.shape[-2], activation.shape[-1]
        return cls(place, shapes, size, Decoder.fit(activation, decoded, ridge=ridge), held=held)

    @classmethod
    def of_state(
        cls,
        model: Machine,
        run: Rollout,
        algorithm: Algorithm,
        episodes: Episodes,
        *,
        sites: Site | str | Sequence[Site | str] = "latent",
        ridge: float = RIDGE,
    ) -> Writer:
        """A writer of the carried variables that an algorithm's memory is made of: the first, and those that are
        :func:`decodable` beside it, in what is carried or in some channels of it (``sites="latent@h"``).
        """
        nothing = f"{algorithm.name} carries nothing from round to round"
        require(bool(algorithm.state), f"{nothing}, so no latent can hold it")
        values = algorithm.run(episodes)
        made_of = [
            k
            for k in algorithm.state
            if not algorithm.memory or algorithm.memory in algorithm.downstream([k])
        ]
        place = resolve_one(sites, model, run.layout)
        keys = decodable(run, values, made_of, sites=place, ridge=ridge)
        return cls.fit(model, run, values, keys, place, ridge=ridge)

    def step(
        self, changes: Mapping[str, ArrayLike], shape: tuple[int, int]
    ) -> Float[Tensor, "episode round row width"]:
        """How the activation moves where variables change by ``changes`` (``[episode, round, *shape]`` each)."""
        for key in changes:
            require_known("variable of this writer", key, self.shapes)
        parts = []
        for key, of in self.shapes.items():
            given, wanted = array_of(key, changes.get(key, 0), finite=True), (*shape, *of)
            with theirs(
                f"the variable has shape {wanted}; by[{key!r}] has shape {given.shape}",
                of=ValueError,
            ):
                parts.append(np.broadcast_to(given, wanted))
        change = torch.from_numpy(np.concatenate([flat(part) for part in parts], -1))
        step = self.decoder.move(torch.zeros(*shape, *self.size, dtype=torch.float64), change)
        return (
            step
            if self.apart is None
            else step.flatten(2).norm(dim=-1)[..., None, None] * self.apart
        )

    def read(self, activation: Float[Tensor, "*batch row width"]) -> dict[str, NDArray[np.float64]]:
        """The decoded variables, by key, each ``[*batch, ...]``."""
        shape = tuple(activation.shape)
        require(
            shape[-2:] == self.size,
            f"the activation must end in {list(self.size)}, got shape {shape}",
        )
        decoded = self.decoder(activation).numpy(force=True)
        ends = np.cumsum([np.prod(of, dtype=int) for of in self.shapes.values()])
        parts = zip(self.shapes.items(), np.split(decoded, ends[:-1], axis=-1), strict=True)
        return {key: part.reshape(*decoded.shape[:-1], *of) for (key, of), part in parts}

    @property
    def fills(self) -> bool:
        """Whether its moves leave no direction for a :meth:`placebo`: the machine carries its state and no more."""
        basis, free = self._moved()
        return basis.shape[1] >= free

    def _moved(self) -> tuple[Tensor, int]:
        """An orthonormal basis of its moves, ``[dimension, move]``, and how many dimensions there are to move in."""
        steps = torch.cat([m.steps for m in self.decoder.maps]).double().cpu()
        basis, sizes, _ = torch.linalg.svd(steps.T, full_matrices=False)
        return basis[:, sizes > 1e-9 * sizes.max()], len(basis) if self.held is None else int(
            self.held.sum()
        )

    def placebo(self, seed: int = 0) -> Writer:
        """The control: every move goes equally far, but along one random direction, orthogonal to all of its own."""
        basis, free = self._moved()
        require(
            basis.shape[1] < free,
            f"what is decoded at {str(self.site)!r} fills its {free} dimensions; decode fewer variables there",
        )
        drawn = torch.from_numpy(np.random.default_rng(seed).standard_normal(len(basis)))
        if self.held is not None:
            drawn = drawn * self.held.flatten().cpu()
        apart = drawn - basis @ (basis.T @ drawn)
        return replace(self, apart=(apart / apart.norm()).reshape(self.size))


def _carried(
    latents: Tensor, place: Site, layout: RoundLayout
) -> Float[Tensor, "episode round row width"]:
    """Of what is carried, all or some rows."""
    return place.read(latents.flatten(0, 1), layout).reshape(
        *latents.shape[:2], -1, latents.shape[-1]
    )


@checked
def decodable(
    run: Rollout,
    values: Values,
    keys: Sequence[str],
    *,
    sites: Site | str | Sequence[Site | str] = "latent",
    ridge: float = RIDGE,
) -> tuple[str, ...]:
    """The variables of ``keys`` that the latents hold, or the rows of them that ``sites`` names ("latent@h").

    The first one always counts; each further one counts when the latents predict it better than the earlier ones do:
    the number of rounds can be guessed from counts that add up with it. Decoders are fitted on one half of the episodes
    and scored on the other.
    """
    require(
        run.n_episodes >= 4,
        f"a half to fit and a half to score need at least 4 episodes, got {run.n_episodes}",
    )
    place = resolve_one(sites, run.model, run.layout)
    require(
        place.kind.axes == "latent",
        f"what is carried is decoded at 'latent', not at {str(place)!r}",
    )
    latents, half = _carried(run.latents[:, :-1], place, run.layout), run.n_episodes // 2
    kept = non_empty("keys", keys, "a variable")[:1]
    require_known("variable", kept[0], values, limit=40)
    for key in keys[1:]:
        target = flat(values[key])
        others = torch.from_numpy(np.concatenate([flat(values[k]) for k in kept], -1)).unsqueeze(-2)
        fits = [
            (x, Decoder.fit(x[:half], target[:half], ridge=ridge))
            for x in (others.to(latents), latents)
        ]
        off = [decode(x[half:]).numpy(force=True) - target[half:] for x, decode in fits]
        guessed, missed = (float((of**2).sum()) for of in off)
        varies = float(((target[half:] - target[half:].mean((0, 1))) ** 2).sum())
        if guessed > RANK * varies and missed <= (1 - _HELD) * guessed:
            kept.append(key)
    return tuple(kept)


@checked
def move(
    model: Machine,
    episodes: Episodes | Rollout,
    algorithm: Algorithm,
    writer: Writer,
    by: Mapping[str, ArrayLike],
    *,
    outcome: str | Outcome = "prediction",
    round: Rounds = "all",
    wants: Mapping[str, ArrayLike] | None = None,
) -> InterchangeResult:
    """Move a variable along its decoder's directions in single rounds, and grade the outcome.

    Args:
        algorithm: whose counterfactual is asked for; where it has no variable of this name, nothing should happen.
        by: the variable's key and what is added to it, of a shape that broadcasts to ``[episode, chosen round, ...]``.
        wants: what is added to which variables of the algorithm, where it says the same with variables of its own
            (log-weights that are gains times counts); by default ``by``.
    """
    outcome = Outcome.named(outcome)
    require_comparable(model, algorithm, outcome.key)
    require(len(by) == 1, f"one variable is moved at a time; by= holds {', '.join(by) or 'none'}")
    ((variable, asked),) = by.items()
    require_known("variable of this writer", variable, writer.shapes)
    base = run_of(model, episodes, "moving the state")
    at = select_rounds(round, base.n_rounds)
    state, inputs = algorithm.at(algorithm.run(base.episodes), at)
    before, pairs = of_rounds(algorithm, base.episodes, at), (base.n_episodes, len(at))
    edits = {
        variable: [
            Edit.of(writer.site, writer.step({variable: asked}, pairs).to(base.latents), add=True)
        ]
    }
    for key in wants or ():
        algorithm.variable(key)
    moved = ({variable: asked} if variable in before else {}) if wants is None else wants
    with theirs("wants= holds what is no change of its variable: {error}", of=ValueError):
        sums = {
            key: before[key] + array_of(key, added, finite=True) for key, added in moved.items()
        }
        wanted = algorithm.step(state, inputs, sums)[1]
    settings = {
        "decoded": list(writer.shapes),
        "placebo": writer.apart is not None,
        "commit": base.commit,
    }
    return graded(model, base, edits, at, outcome, algorithm, (before, wanted), **settings)


def flat(x: NDArray[Any]) -> NDArray[np.float64]:
    """Values ``[episode, round, ...]`` with all of their numbers in one axis."""
    return np.asarray(x, dtype=np.float64).reshape(*x.shape[:2], int(np.prod(x.shape[2:])))


@dataclass(frozen=True, eq=False, kw_only=True)
class StepResult(Tabulated):
    """Closure of a decoded state under an algorithm's update.

    ``missed`` is the squared distance between the decoded state and the algorithm's, in units of each variable's step;
    ``varied`` is the squares of the algorithm's steps about the round's mean, times n / (n - 1) for n episodes, as
    about the mean of very many.
    """

    missed: Float[np.ndarray, "episode round"]
    varied: Float[np.ndarray, "episode round"]
    participants: Any = None

    def r2(self, seed: int = 0) -> Interval:
        """The step R2 with its 95 % interval over episodes."""
        sums = self.missed.sum(1), self.varied.sum(1)
        return ratio_interval(*sums, seed=seed, participants=self.participants).complement


@dataclass(frozen=True, eq=False)
class Transition:
    """What a model makes of its decoded state in some rounds; any algorithm can be asked whether it would do the same.

    The variables of these ``shapes`` were decoded ``before`` and ``after``, ``{key: [episode, round, ...]}``.
    """

    episodes: Episodes
    rounds: tuple[int, ...]
    horizon: int
    shapes: Mapping[str, tuple[int, ...]]
    before: Values
    after: Values
    settings: dict[str, Any] = field(default_factory=dict)

    def goal(self, algorithm: Algorithm) -> Values:
        """What the algorithm makes of the state before, and of its own values of variables that were not decoded."""
        carried = ", ".join(sorted(algorithm.state)) or "nothing"
        require(
            set(self.shapes) <= set(algorithm.state),
            f"{algorithm.name} carries {carried} from round to round; the writer reads {', '.join(self.shapes)}",
        )
        values = algorithm.run(self.episodes)
        state = {
            **{key: values[key][:, list(self.rounds)] for key in algorithm.state},
            **self.before,
        }
        for i in range(self.horizon):
            _, inputs = algorithm.at(values, [t + i for t in self.rounds])
            state, _ = algorithm.step(state, inputs)
        return {key: state[key] for key in self.shapes}

    def under(self, algorithm: Algorithm) -> StepResult:
        """How much of the algorithm's step the model makes, each variable in units of its own steps."""
        goal, missed, varied = self.goal(algorithm), np.zeros(()), np.zeros(())
        for key in self.shapes:
            steps = flat(goal[key] - self.before[key])
            unit = float(np.sqrt((steps**2).mean())) or 1.0
            missed = missed + (flat((self.after[key] - goal[key]) / unit) ** 2).sum(-1)
            varied = varied + (((steps - steps.mean(0)) / unit) ** 2).sum(-1) * len(steps) / max(
                len(steps) - 1, 1
            )
        whose, keys = participants_of(self.episodes), " + ".join(self.shapes)
        r2 = ratio_interval(missed.sum(1), varied.sum(1), participants=whose).complement
        row = {
            "state": keys,
            "horizon": self.horizon,
            "r2": r2.estimate,
            "low": r2.low,
            "high": r2.high,
        }
        on = "One round" if self.horizon == 1 else f"{self.horizon} rounds"
        spread = np.where(
            varied.sum(0) > 0, varied.sum(0), np.nan
        )  # a round in which nothing varies has no R2
        line = over({"round started from": self.rounds}, {"step R2": 1 - missed.sum(0) / spread})
        return StepResult(
            sentence=f"{on} on, the model makes the algorithm's step of the decoded {keys} with R2 {r2}.",
            table=pd.DataFrame([row]),
            picture=lambda figures: figures.curves(
                line, x="round started from", ylabel=f"R2 of {keys}"
            ),
            settings={
                **self.settings,
                "algorithm": algorithm.key,
                "parameters": dict(algorithm.parameters),
            },
            missed=missed,
            varied=varied,
            participants=whose,
        )

    def left(self, algorithm: Algorithm) -> float:
        """Share of the model's own steps that the algorithm does not say; it can exceed 1."""
        goal = self.goal(
            algorithm
        )  # every variable in units of the model's own steps, of which those that move count
        units = {
            key: float(((self.after[key] - self.before[key]) ** 2.0).mean()) for key in self.shapes
        }
        missed = sum(
            float(((self.after[key] - goal[key]) ** 2).mean() / (of or 1.0))
            for key, of in units.items()
        )
        return missed / n if (n := sum(map(bool, units.values()))) else float("nan")


@checked
def transition(
    model: Machine,
    episodes: Episodes | Rollout,
    writer: Writer,
    *,
    round: Rounds,
    horizon: int = 1,
    by: Mapping[str, NDArray[np.float64]] | None = None,
) -> Transition:
    """What the model makes of the variables that ``writer`` reads, from each of some rounds on.

    Args:
        writer: fitted on other episodes, at "latent" or at some channels of what is carried ("latent@h"); the others
            stay as they are.
        round: an int, a slice or a list: where the model starts, each round apart from the others.
        horizon: rounds to run on before decoding again.
        by: what the decoded state is first moved by, ``{key: [episode, round, ...]}``; nothing when None.
    """
    site = writer.site
    require(
        site.kind.axes == "latent", f"a carried state is decoded at 'latent', not at {str(site)!r}"
    )
    base = run_of(model, episodes, "moving the state")
    rounds = select_rounds(round, base.n_rounds)
    require(
        horizon >= 1 and max(rounds) <= base.n_rounds - horizon,
        f"rounds {list(rounds)} with horizon {horizon} must lie within the {base.n_rounds} rounds; the last "
        f"one to start from is {base.n_rounds - horizon}",
    )
    shape, latents = (base.n_episodes, len(rounds)), base.latents[:, list(rounds)].double()
    left = base.latents[:, [t + horizon for t in rounds]]  # the rollout has run on from there
    if by is not None:
        moved = _carried(latents, site, base.layout) + writer.step(by, shape).to(latents)
        flat = latents.flatten(0, 1)
        latents = write(
            flat, site, base.layout, moved.reshape(site.read(flat, base.layout).shape)
        ).unflatten(0, shape)
        left = run_on(model, base, rounds, horizon, latents).carried[0, :, :, 0]
    before, after = (writer.read(_carried(x, site, base.layout)) for x in (latents, left))
    settings = provenance(model, rounds=list(rounds), moved=sorted(by or ()))
    return Transition(
        base.episodes, tuple(rounds), horizon, dict(writer.shapes), before, after, settings
    )
