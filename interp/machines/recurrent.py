"""Recurrent machines of others: cells and layers, a block that loops, the LSTM of an agent.

:func:`cell` takes ``nn.RNN``, ``nn.GRU`` and ``nn.LSTM``, and their cells, :func:`loop` a block that is applied
several times in a round, :func:`agent` what ``sb3-contrib`` trained. Each takes two functions of the user's, what the
model hears of a round and how its prediction is read; :class:`Said` says a round as numbers where a model has no input
format of its own.
"""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Callable, Mapping, Sequence
from inspect import signature, unwrap
from pathlib import Path
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from interp.core.machine import Channel
from interp.core.task import Task
from interp.model.adapted import AdaptedMachine, adapt
from interp.model.layout import EncodedRounds, RoundLayout
from interp.model.opened import gates
from interp.model.taps import Point
from interp.support.checks import checked, file_path, fit, integer, kind_of, shown
from interp.support.errors import require, require_known
from interp.support.files import reading

_Tree = dict[str, Tensor]
_Hear = Callable[[Any, Any], Tensor]  # ``(module, fed)`` to what the model hears of a round
_Read = Callable[
    [Any, Tensor, Any], Tensor
]  # ``(module, state, fed)`` to the scores ``[batch, outcome]``
_KINDS = {
    name: kind_of(one.annotation, unwrap(adapt).__globals__)
    for name, one in signature(adapt).parameters.items()
}
_OPTIONS = sorted(_KINDS.keys() - {"module", "task", "step", "channels"})
"""What of ``interp.adapt`` an adapter passes on."""
_ACTIVATIONS = {"tanh": nn.Tanh, "relu": nn.ReLU, "elu": nn.ELU}
_OF_THE_CRITIC = (
    "lstm_critic.",
    "critic.",
    "mlp_extractor.value_net.",
    "value_net.",
    "vf_features_extractor.",
)
"""Where a policy's weights that act on nothing begin."""


class Said:
    """The tokens of a round as indicators, and its payloads as they are, where the layout has any.

    >>> from interp.tasks import experts
    >>> layout = experts.TASK.layout(n_experts=2)
    >>> said = Said(layout)
    >>> [layout.labels[i] for i in said.asked], [layout.labels[i] for i in said.told]
    (['e_1', 'p_1', 'e_2', 'p_2'], ['e_1', 'p_1', 'e_2', 'p_2', 'y'])

    Attributes:
        asked: the positions that a model may see before it predicts; no attention sink, and no latent.
        told: these, and those between the prediction and the update: all that there is to learn from.
        n_asked, n_told: how many numbers say them.
    """

    def __init__(self, layout: RoundLayout) -> None:
        layout = fit("layout", layout, RoundLayout)
        end = layout.predict_position
        silent = {0, end, layout.update_position, *layout.latent_positions}
        self.layout, self.n_ids = layout, len(layout.vocabulary)
        self.asked = tuple(i for i in range(end) if i not in silent)
        self.told = tuple(i for i in range(layout.update_position) if i not in silent)
        n_each = self.n_ids + bool(layout.payload)
        self.n_asked, self.n_told = len(self.asked) * n_each, len(self.told) * n_each

    def before(self, fed: EncodedRounds) -> Tensor:
        """What a round says before the prediction, ``[batch, n_asked]``, in the dtype of the machine."""
        return self._numbers(fed, self.asked)

    def after(self, fed: EncodedRounds) -> Tensor:
        """All that a round says, the truth with it, ``[batch, n_told]``."""
        return self._numbers(fed, self.told)

    def _numbers(self, fed: EncodedRounds, positions: tuple[int, ...]) -> Tensor:
        at: Any = list(positions)
        numbers = nn.functional.one_hot(fed.tokens[:, at], self.n_ids).flatten(1).to(fed.values)
        return torch.cat([numbers, fed.values[:, at]], 1) if self.layout.payload else numbers


def with_points(
    options: Mapping[str, Any], points: Mapping[str, str | Point], *own: str
) -> dict[str, Any]:
    """Options for ``interp.adapt``, or an adapter's ``own``, with its ``points`` before those of the user."""
    for name in options:
        require_known("option of an adapter, beside its own", name, [*_OPTIONS, *own])
    options = {name: fit(name, one, _KINDS.get(name, object)) for name, one in options.items()}
    given = options.get("points") or {}
    return {**options, "points": {**points, **given} if isinstance(given, Mapping) else given}


@checked
def cell(
    module: nn.Module,
    task: str | Task | RoundLayout,
    *,
    hear: _Hear,
    read: _Read,
    core: str = "core",
    hears: Literal["after", "before"] = "after",
    first: Callable[[Any], Tensor] | None = None,
    show_gates: bool = True,
    **options: Any,
) -> AdaptedMachine:
    """A machine of a module with a recurrent cell or layers in it: docs/tutorials/your-model.md has one from a file.

    Args:
        task, options: as ``interp.adapt`` takes them: ``sizes``, ``name``, further ``points``, ``output``, ...
        hear: ``(module, fed)`` to the cell's input ``[batch, input]``.
        read: ``(module, h, fed)`` to scores; ``h`` is ``[batch, width]``, of several layers the top one's.
        core: name of the submodule: ``nn.RNNCell``, ``nn.GRUCell``, ``nn.LSTMCell``, or layers of one direction.
        hears: "after": the prediction is read from what is carried, and then the cell hears the round with its truth;
            "before": the cell hears the round, and the prediction is read from what it then holds.
        first: the input ``[1, input]`` that the cell has heard before round 0, where there is one.
        show_gates: whether the gates are points. The cell then computes in its open form, which equals PyTorch's kernel
            to rounding; without, bit for bit.
    """
    parts = dict(module.named_modules())
    part = parts.get(core)
    require(
        isinstance(part, nn.RNNCellBase) or (part is not None and bool(gates(part))),
        f"core {core!r} must name an nn.RNNCell, nn.GRUCell, nn.LSTMCell, or an nn.RNN, nn.GRU or nn.LSTM of one "
        f"direction without projections, got {type(part).__name__}; the module has {', '.join(filter(None, parts))}",
    )
    cells: Any = part
    n_layers, names = (
        getattr(cells, "num_layers", 1),
        "hc" if isinstance(part, nn.LSTMCell | nn.LSTM) else "h",
    )
    shape = (cells.hidden_size,) if n_layers == 1 else (n_layers, cells.hidden_size)

    def run(module: Any, x: Tensor, carried: _Tree) -> _Tree:
        fits = isinstance(x, Tensor) and x.shape[1:] == (cells.input_size,)
        require(
            fits,
            f"{core!r} hears [batch, {cells.input_size}], which hear= and first= give; got {shown(x)}",
        )
        state = _state(module.get_submodule(core), x, tuple(carried[name] for name in names))
        return dict(zip(names, state, strict=True))

    def step(module: Any, carried: _Tree, fed: EncodedRounds) -> tuple[Tensor, _Tree]:
        held = run(module, hear(module, fed), carried) if hears == "before" else carried
        scores = read(module, held["h"] if n_layers == 1 else held["h"][:, -1], fed)
        return scores, held if hears == "before" else run(module, hear(module, fed), carried)

    def start(module: Any) -> _Tree:
        x = first(module) if first else torch.empty(0)
        after = run(module, x, {name: x.new_zeros(1, *shape) for name in names})
        return {name: part[0].detach() for name, part in after.items()}

    points = {gate: f"{core}.{gate}" for gate in gates(cells)} if show_gates else {}
    if first is not None:
        options["initial"] = start
    channels = [Channel(name, shape) for name in names]
    return adapt(module, task, step=step, channels=channels, **with_points(options, points))


def _state(cells: Any, x: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """What cells hold after one input: each part ``[batch, width]``, or ``[batch, layer, width]`` of several layers."""
    if isinstance(cells, nn.RNNCellBase):
        held = cells(x, state if len(state) > 1 else state[0])
        return held if isinstance(held, tuple) else (held,)
    one = cells.num_layers == 1
    layers = tuple(
        (part.unsqueeze(0) if one else part.transpose(0, 1)).contiguous() for part in state
    )
    _, held = cells(
        x.unsqueeze(1 if cells.batch_first else 0), layers if len(layers) > 1 else layers[0]
    )
    parts = held if isinstance(held, tuple) else (held,)
    return tuple(part.squeeze(0) if one else part.transpose(0, 1) for part in parts)


@checked
def loop(
    module: nn.Module,
    task: str | Task | RoundLayout,
    *,
    cycles: int,
    shape: tuple[int, ...],
    hear: _Hear,
    read: _Read,
    block: str = "block",
    inject: Callable[[Any, Tensor, Tensor], Tensor] | None = None,
    **options: Any,
) -> AdaptedMachine:
    """A machine of a module with a block that loops; ``entered`` and ``cycle`` are what each run is given and gives.

    What is carried is refined ``cycles`` times by the block, to which what the round says is given every time; the
    index of a cycle stands where a layer's does. One is made in docs/method/kinds-of-machine.md.

    Args:
        task, options: as ``interp.adapt`` takes them.
        cycles: how often the block runs in a round; 1 where the rounds themselves are the loop.
        shape: of what is carried, without the batch axis: ``(width,)``, or ``(pos, width)``.
        hear: ``(module, fed)`` to what the round gives the block, in the shape of what is carried.
        read: ``(module, z, fed)`` to scores, from what was carried into the round, ``[batch, *shape]``.
        block: name of the submodule; it takes a tensor, and returns one of the same shape.
        inject: ``(module, z, heard)`` to what the block is given; their sum when None.
    """
    integer("cycles", cycles, 1)
    require(len(shape) in (1, 2), f"shape is (width,) or (pos, width), got {shape}")
    require(
        block in dict(module.named_modules()),
        f"block {block!r} must name a submodule; there are {', '.join(filter(None, dict(module.named_modules())))}",
    )

    def step(
        module: Any, carried: dict[str, Tensor], fed: EncodedRounds
    ) -> tuple[Tensor, dict[str, Tensor]]:
        z, heard, refine = carried["z"], hear(module, fed), module.get_submodule(block)
        scores = read(module, z, fed)
        for _ in range(cycles):
            z = refine(z + heard if inject is None else inject(module, z, heard))
        return scores, {"z": z}

    axes = "pos" if len(shape) == 2 else ""
    labels = tuple(f"z_{i + 1}" for i in range(shape[0])) if axes else ()
    points = {
        "entered": Point(block, of="input", times=cycles, axes=axes, labels=labels),
        "cycle": Point(block, times=cycles, axes=axes, labels=labels),
    }
    return adapt(
        module, task, step=step, channels=[Channel("z", shape)], **with_points(options, points)
    )


class Actor(nn.Module):
    """The acting half of a recurrent policy: an LSTM, a few linear layers, and a score for each action."""

    def __init__(
        self,
        n_inputs: int,
        width: int,
        policy: Sequence[int],
        n_actions: int,
        n_layers: int = 1,
        act: str = "tanh",
    ) -> None:
        super().__init__()
        self.core = nn.LSTM(n_inputs, width, num_layers=n_layers)
        parts: list[nn.Module] = []
        for size in policy:
            parts += [nn.Linear(width, size), _ACTIVATIONS[act]()]
            width = size
        self.policy, self.action = nn.Sequential(*parts), nn.Linear(width, n_actions)

    def scores(self, h: Tensor) -> Tensor:
        """The logits of the actions ``[batch, action]``, from the LSTM's ``h``."""
        return cast(Tensor, self.action(self.policy(h)))


@checked
def read_agent(path: str | Path, *, activation: Literal["tanh", "relu", "elu"] = "tanh") -> Actor:
    """The actor in a file that RecurrentPPO of ``sb3-contrib`` saved, of discrete actions and of vectors observed.

    Args:
        activation: of the layers after the LSTM; the file says it only in a pickle, which is not opened.
    """
    path = Path(file_path(path, "the agent"))
    with (
        reading(path, "give the file that model.save(...) of sb3-contrib wrote"),
        zipfile.ZipFile(path) as archive,
    ):
        held = torch.load(
            io.BytesIO(archive.read("policy.pth")), map_location="cpu", weights_only=True
        )
    weights: dict[str, Tensor] = {}
    beside = []  # what acts and is not read
    for name, value in held.items():
        part, _, rest = name.partition(".")
        if ours := {"lstm_actor": "core", "action_net": "action"}.get(part):
            weights[f"{ours}.{rest}"] = value
        elif name.startswith("mlp_extractor.policy_net."):
            weights[f"policy.{rest.partition('.')[2]}"] = value
        elif not name.startswith(_OF_THE_CRITIC):
            beside.append(name)
    missing = {"core.weight_ih_l0", "action.weight"} - weights.keys()
    require(
        not missing,
        f"{str(path)!r} holds no recurrent policy of discrete actions: it has {', '.join(held)}",
    )
    require(
        not beside,
        f"{str(path)!r} has more weights than a policy of discrete actions ({', '.join(beside)}), such as a feature "
        "extractor or the spread of continuous actions; only MlpLstmPolicy of discrete actions is read",
    )
    policy = [
        len(value) for name, value in weights.items() if re.fullmatch(r"policy\.\d+\.weight", name)
    ]
    n_layers = sum(name.startswith("core.weight_hh_l") for name in weights)
    n_inputs, width = weights["core.weight_ih_l0"].shape[1], weights["core.weight_hh_l0"].shape[1]
    actor = Actor(n_inputs, width, policy, len(weights["action.weight"]), n_layers, activation)
    with reading(path):
        actor.load_state_dict(weights)
    return actor.eval()


@checked
def agent(
    actor: Actor, task: str | Task | RoundLayout, *, hear: _Hear, **options: Any
) -> AdaptedMachine:
    """A machine of an agent: its prediction is the probability of each action.

    Its LSTM hears a round before the prediction, and what passes is the actor's ``h`` and ``c``. One is made in
    docs/method/kinds-of-machine.md.

    Args:
        task, options: as ``interp.adapt`` takes them.
        hear: ``(actor, fed)`` to the observation ``[batch, input]``, as the environment gave it.
    """
    given: Any = {"read": lambda actor, h, fed: actor.scores(h), "hears": "before"}
    return cell(
        actor,
        task,
        hear=hear,
        **given,
        **with_points(options, {"policy": "policy"}, "core", "first"),
    )
