"""Adapters that make machines from recurrent models: cells and layers, a block that loops, the LSTM
of an agent.

:func:`cell` takes ``nn.RNN``, ``nn.GRU`` and ``nn.LSTM``, and their cells. :func:`loop` takes a
block that is applied several times in a round, :func:`depth` one that runs once a round, and
:func:`agent` an agent that ``sb3-contrib`` trained. Each takes two functions of the user's: one
that reads a round's inputs, and one that reads the prediction. :class:`RoundEncoder` encodes a
round as numbers, for models without an input format.
"""

from __future__ import annotations

import copy
import io
import re
import zipfile
from collections.abc import Callable, Mapping, Sequence
from inspect import signature, unwrap
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from interp.core import catalog
from interp.core.machine import Channel
from interp.core.task import Task
from interp.model.adapted import AdaptedMachine, adapt
from interp.model.checks import TOLERANCES
from interp.model.layout import EncodedRounds, RoundLayout, add_axes
from interp.model.opened import list_gates, unwrap_single, wrap_single
from interp.model.rollout import rollout
from interp.model.taps import Point
from interp.support.checks import (
    MOST_GB,
    check_type,
    checked,
    file_path,
    format_value,
    integer,
    kind_of,
    refuse_above,
)
from interp.support.errors import convert_errors, require, require_known
from interp.support.files import convert_read_errors

_Tree = dict[str, Tensor]
_Encode = Callable[[Any, Any], Tensor]
"""``(module, fed)`` -> the model's input in a round."""
_Read = Callable[[Any, Tensor, Any], Tensor]
"""``(module, state, fed)`` -> the scores ``[batch, outcome]``."""
_TYPES = {
    name: kind_of(parameter.annotation, unwrap(adapt).__globals__)
    for name, parameter in signature(adapt).parameters.items()
}
"""Types of the parameters of ``interp.adapt``."""
_OPTIONS = sorted(_TYPES.keys() - {"module", "task", "step", "channels"})
"""Options of ``interp.adapt`` that adapters pass on."""
_ACTIVATIONS = {"tanh": nn.Tanh, "relu": nn.ReLU, "elu": nn.ELU}
_CRITIC_PREFIXES = (
    "lstm_critic.",
    "critic.",
    "mlp_extractor.value_net.",
    "value_net.",
    "vf_features_extractor.",
)
"""Beginnings of the names of a policy's weights that do not affect actions."""


class RoundEncoder:
    """An encoder of rounds as vectors, for models that define no input format. A vector consists of
    one-hot vectors of tokens and, if the task has them, the real numbers that tokens carry, such as
    rewards.

    >>> from interp.tasks import experts
    >>> layout = experts.TASK.layout(n_experts=2)
    >>> encoder = RoundEncoder(layout)
    >>> [layout.labels[i] for i in encoder.positions_before]
    ['e_1', 'p_1', 'e_2', 'p_2']
    >>> [layout.labels[i] for i in encoder.positions_after]
    ['e_1', 'p_1', 'e_2', 'p_2', 'y']

    Attributes:
        positions_before: indices of the positions that a model may read before it predicts, such as
            the advice; without the attention sink and the latents.
        positions_after: indices of the positions that a model may read after it has predicted, to
            learn from: ``positions_before``, and the positions between the prediction and the
            update, such as the outcome.
        n_before, n_after: lengths of the vectors that :meth:`before` and :meth:`after` return.

    Args:
        layout: the token layout of the rounds.
    """

    def __init__(self, layout: RoundLayout) -> None:
        """Choose the positions of a round that the vectors of :meth:`before` and :meth:`after`
        encode, and compute the lengths of these vectors.

        Positions are left out if they have the same token in every round. The vector of
        :meth:`before` has only the positions before the prediction.
        """
        self.layout = check_type("layout", layout, RoundLayout)
        self.n_ids = len(layout.vocabulary)
        predict = layout.predict_position
        update = layout.update_position
        # Position 0 is the attention sink. Tokens at these positions are the same in every round.
        uninformative = {0, predict, update, *layout.latent_positions}
        # All that is known at the update, outcome included, and what is known at the prediction.
        self.positions_after = tuple(i for i in range(update) if i not in uninformative)
        self.positions_before = tuple(i for i in self.positions_after if i < predict)
        n_numbers = self.n_ids  # the numbers for one position: a one-hot vector of its token
        if layout.payload:
            n_numbers += 1  # the real number that the token carries, such as a reward
        self.n_before = len(self.positions_before) * n_numbers
        self.n_after = len(self.positions_after) * n_numbers

    def before(self, fed: EncodedRounds) -> Tensor:
        """Encode what a model may read before it predicts, as numbers ``[batch, n_before]``.

        Args:
            fed: the round.
        """
        return self._encode(fed, self.positions_before)

    def after(self, fed: EncodedRounds) -> Tensor:
        """Encode what a model may read after it has predicted, including the outcome, as numbers
        ``[batch, n_after]``.

        Args:
            fed: the round.
        """
        return self._encode(fed, self.positions_after)

    def _encode(self, fed: EncodedRounds, positions: tuple[int, ...]) -> Tensor:
        """Encode some positions of a round as numbers, ``[batch, number]``: first one-hot vectors
        of the tokens and then, if the task has them, the real numbers that the tokens carry.

        Args:
            fed: the round.
            positions: indices of the positions.
        """
        tokens = fed.tokens[:, positions]
        indicators = nn.functional.one_hot(tokens, self.n_ids).flatten(1).to(fed.values)
        if not self.layout.payload:
            return indicators
        return torch.cat([indicators, fed.values[:, positions]], 1)


def add_hook_points(
    options: Mapping[str, Any], points: Mapping[str, str | Point], *own_options: str
) -> dict[str, Any]:
    """Check the options that a user passed to an adapter (a function such as :func:`cell`), and add
    the adapter's hook points to them.

    Args:
        options: options that the user passed, name -> value.
        points: name of a hook point of the adapter -> its place in the module
            (:class:`~interp.model.taps.Point`). If the user passed ``points``, too, the result has
            both.
        own_options: names of options that are allowed although ``interp.adapt`` does not have them,
            since the adapter handles them itself.

    Returns:
        Keyword arguments for ``interp.adapt``.
    """
    for name in options:
        require_known("option of an adapter, beside its own", name, [*_OPTIONS, *own_options])
    fitting = {
        name: check_type(name, value, _TYPES.get(name, object)) for name, value in options.items()
    }
    user_points = fitting.get("points") or {}
    is_mapping = isinstance(user_points, Mapping)  # interp.adapt refuses anything else
    return {**fitting, "points": {**points, **user_points} if is_mapping else user_points}


@checked
def cell(
    module: nn.Module,
    task: str | Task | RoundLayout,
    *,
    encode: _Encode,
    read: _Read,
    core: str = "core",
    update: Literal["after", "before"] = "after",
    first_input: Callable[[Any], Tensor] | None = None,
    show_gates: bool = True,
    **options: Any,
) -> AdaptedMachine:
    """Make a machine from a module that contains a recurrent cell or layers.

    docs/tutorials/your-model.md has an example, with weights from a file.

    Args:
        module: the module, with a submodule ``core``.
        task: the task, its key, or a layout of its rounds.
        encode: function ``(module, fed)`` -> the cell's input ``[batch, input]``, where ``fed`` is
            the encoded round.
        read: function ``(module, h, fed)`` -> the scores ``[batch, outcome]``, where ``h`` is the
            hidden state of the top layer, ``[batch, width]``.
        core: name of the submodule: an ``nn.RNNCell``, ``nn.GRUCell`` or ``nn.LSTMCell``, or an
            ``nn.RNN``, ``nn.GRU`` or ``nn.LSTM`` of one direction.
        update: whether the cell updates its state after or before the prediction. With "after", the
            prediction is read from the carried state, and then the cell reads the round with its
            outcome. With "before", the cell reads the round, and the prediction is read from its
            new state.
        first_input: function of the module that returns an input ``[1, input]``, which the cell
            reads before round 0; None for no such input.
        show_gates: True to make the gates hook points. The cell then computes gate by gate, equal
            to PyTorch's kernel up to rounding; otherwise it uses the kernel.
        options: further options of ``interp.adapt``, such as ``sizes``, ``name``, ``points`` and
            ``output``.
    """
    cells: Any = _find_cells(module, core)
    n_layers = getattr(cells, "num_layers", 1)  # a cell, unlike layers, has no such attribute
    # Names of the carried parts: the hidden state h and, in an LSTM, the cell state c.
    names = "hc" if isinstance(cells, nn.LSTMCell | nn.LSTM) else "h"
    width = cells.hidden_size
    shape = (width,) if n_layers == 1 else (n_layers, width)

    def run_core(module: Any, x: Tensor, carried: _Tree) -> _Tree:
        """Run the submodule ``core``, a recurrent cell or recurrent layers, on one input.

        Args:
            module: the whole module, of which ``core`` is a part.
            x: the input, ``[batch, input]``.
            carried: the state before the input: "h", and for an LSTM also "c" -> ``[batch,
                width]``, or ``[batch, layer, width]`` for several layers.

        Returns:
            The state after the input, in the same form.
        """
        fits = isinstance(x, Tensor) and x.shape[1:] == (cells.input_size,)
        require(
            fits,
            f"{core!r} takes inputs of shape [batch, {cells.input_size}], which encode= and first_input= must return; "
            f"got {format_value(x)}",
        )
        state = tuple(carried[name] for name in names)
        new_state = _run_cells(module.get_submodule(core), x, state)
        return dict(zip(names, new_state, strict=True))

    def step(module: Any, carried: _Tree, fed: EncodedRounds) -> tuple[Tensor, _Tree]:
        """Run one round: predict, and let the cell read the round, in the order that the option
        ``update`` gives.

        Args:
            module: the whole module.
            carried: the state before the round: name of a part -> ``[batch, ...]``.
            fed: the encoded round.

        Returns:
            The scores ``[batch, outcome]``, and the state after the round.
        """
        new_state = (
            run_core(module, encode(module, fed), carried) if update == "before" else carried
        )
        h = new_state["h"]  # [batch, width], or [batch, layer, width]
        top_layer = h if n_layers == 1 else h[:, -1]
        scores = read(module, top_layer, fed)
        if update == "after":
            new_state = run_core(module, encode(module, fed), carried)
        return scores, new_state

    def run_rounds(module: Any, carried: _Tree, fed: EncodedRounds) -> tuple[Tensor, _Tree]:
        """Run all rounds in one call of recurrent layers, which loop over time in one kernel.

        Args:
            module: the user's module, with the layers ``core``.
            carried: the state before the first of these rounds, ``[batch, width]`` under "h".
            fed: the encoded rounds, one row for each episode and round, ``[batch * round, ...]``.

        Returns:
            The scores, and the states after the rounds, ``[batch * round, ...]`` each.
        """
        layers = module.get_submodule(core)
        first_h = carried["h"]
        encoded = encode(module, fed).unflatten(0, (len(first_h), -1))  # [batch, round, input]
        time_axis = 1 if layers.batch_first else 0
        inputs = encoded.movedim(1, time_axis).contiguous()
        # PyTorch's layers take a state [layer, batch, width]; there is one layer.
        outputs, _ = layers(inputs, first_h.unsqueeze(0).contiguous())
        h_after = outputs.movedim(time_axis, 1)  # the state after each round, [batch, round, width]
        h_read = h_after
        if update == "after":  # each prediction is read from the state before its round
            h_read = torch.cat([first_h.unsqueeze(1), h_after[:, :-1]], 1)
        scores = read(module, h_read.flatten(0, 1), fed)
        return scores, {"h": h_after.flatten(0, 1)}

    points = {gate: f"{core}.{gate}" for gate in list_gates(cells)} if show_gates else {}
    if first_input is not None:

        def read_first(module: Any) -> _Tree:
            """Return the state before round 0, after the cell has read the first input: name of a
            part -> ``[width]``, or ``[layer, width]`` for several layers.

            Args:
                module: the whole module.
            """
            x = first_input(module)  # [1, input]
            new_state = run_core(module, x, {name: x.new_zeros(1, *shape) for name in names})
            return {name: part[0] for name, part in new_state.items()}

        options["initial"] = read_first
    channels = [Channel(name, shape) for name in names]
    options = add_hook_points(options, points)
    machine = adapt(module, task, step=step, channels=channels, **options)
    # The outputs of these are the states after every input; an LSTM returns h, but not c.
    if type(cells) in (nn.GRU, nn.RNN) and n_layers == 1:
        machine.all_rounds = run_rounds
    return machine


def _find_cells(module: nn.Module, core: str) -> nn.Module:
    """Return a module's recurrent cell or layers; refuse any other submodule, and layers of two
    directions.

    Args:
        module: the module.
        core: name of the submodule.
    """
    parts = dict(module.named_modules())
    part = parts.get(core)
    # Cells of a user's own class are accepted, too. Layers are accepted if their gates are known: the
    # result is empty for two directions, projections, and any other module.
    is_cell = isinstance(part, nn.RNNCellBase)
    are_layers = part is not None and bool(list_gates(part))
    known = ", ".join(name for name in parts if name)
    require(
        is_cell or are_layers,
        f"core {core!r} must name an nn.RNNCell, nn.GRUCell, nn.LSTMCell, or an nn.RNN, nn.GRU or nn.LSTM of one "
        f"direction without projections, got {type(part).__name__}; the module has {known}",
    )
    return cast(nn.Module, part)


def _run_cells(cells: Any, x: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Run a recurrent cell, or recurrent layers, on one input, and return the new state as a tuple:
    ``(h,)``, or ``(h, c)`` for an LSTM.

    Each part of the state is ``[batch, width]``, or ``[batch, layer, width]`` for several layers.

    Args:
        cells: the cell or layers.
        x: the input, ``[batch, input]``.
        state: the state before this input, a tuple of the same form.
    """
    if isinstance(cells, nn.RNNCellBase):
        return wrap_single(cells(x, unwrap_single(state)))
    shape = (len(x), cells.num_layers, cells.hidden_size)
    # PyTorch's layers take and return the state as [layer, batch, width].
    by_layer = tuple(part.reshape(shape).transpose(0, 1).contiguous() for part in state)
    time_axis = 1 if cells.batch_first else 0
    # A sequence of one input; its output is the new state of the top layer.
    _, new_state = cells(x.unsqueeze(time_axis), unwrap_single(by_layer))
    return tuple(part.transpose(0, 1).reshape_as(state[0]) for part in wrap_single(new_state))


@checked
def loop(
    module: nn.Module,
    task: str | Task | RoundLayout,
    *,
    cycles: int,
    shape: tuple[int, ...],
    encode: _Encode,
    read: _Read,
    block: str = "block",
    inject: Callable[[Any, Tensor, Tensor], Tensor] | None = None,
    **options: Any,
) -> AdaptedMachine:
    """Make a machine from a module with a block that is applied several times in a round.

    A round predicts from the carried state. Then the block changes the state ``cycles`` times, and
    reads the round's inputs each time. The hook points ``entered`` and ``cycle`` are the block's
    input and output in each run: the output of the third run is ``cycle[2]``. An example is in
    docs/method/kinds-of-machine.md.

    Args:
        module: the module, with a submodule ``block``.
        task: the task, its key, or a layout of its rounds.
        cycles: number of times that the block runs in a round; 1 if it loops only over rounds.
        shape: shape of the carried state without the batch axis: ``(width,)``, or ``(pos, width)``.
        encode: function ``(module, fed)`` -> the round's input to the block, ``[batch, *shape]``,
            where ``fed`` is the encoded round.
        read: function ``(module, z, fed)`` -> the scores ``[batch, outcome]``, where ``z`` is the
            state before the round, ``[batch, *shape]``.
        block: name of the submodule; it maps a tensor to one of the same shape.
        inject: function ``(module, z, encoded)`` -> the input of the block, from the state ``z``
            and what ``encode`` returned; when None, their sum.
        options: further options of ``interp.adapt``.
    """
    integer("cycles", cycles, 1)
    axes, labels = _find_places(module, block, shape)

    def step(module: Any, carried: _Tree, fed: EncodedRounds) -> tuple[Tensor, _Tree]:
        """Run one round: predict from the carried state, then run the block ``cycles`` times.

        Args:
            module: the whole module.
            carried: the state before the round: "z" -> ``[batch, ...]``.
            fed: the encoded round.

        Returns:
            The scores ``[batch, outcome]``, and the state after the round.
        """
        z = carried["z"]
        encoded = encode(module, fed)
        refine = module.get_submodule(block)
        scores = read(module, z, fed)
        for _ in range(cycles):
            entered = z + encoded if inject is None else inject(module, z, encoded)
            z = refine(entered)
        return scores, {"z": z}

    points = {
        "entered": Point(block, of="input", times=cycles, axes=axes, labels=labels),
        "cycle": Point(block, times=cycles, axes=axes, labels=labels),
    }
    options = add_hook_points(options, points)
    return adapt(module, task, step=step, channels=[Channel("z", shape)], **options)


def _find_places(
    module: nn.Module, block: str, shape: tuple[int, ...]
) -> tuple[str, tuple[str, ...]]:
    """Return the axes and labels for hook points of a block's output; refuse a block that does not
    exist.

    Args:
        module: the module.
        block: name of the submodule.
        shape: shape of the state without the batch axis: ``(width,)``, or ``(pos, width)``.

    Returns:
        The axes between batch and width ("" or "pos"), and a label for each position.
    """
    require(len(shape) in (1, 2), f"shape is (width,) or (pos, width), got {shape}")
    names = [name for name, _ in module.named_modules() if name]
    require(block in names, f"block {block!r} must name a submodule; there are {', '.join(names)}")
    if len(shape) == 1:
        return "", ()
    # The block's output has the same positions as the state z, which is carried as a channel.
    return "pos", Channel("z", shape).labels


@checked
def depth(
    module: nn.Module,
    task: str | Task | RoundLayout,
    *,
    shape: tuple[int, ...],
    encode: _Encode,
    read: _Read,
    core: str = "core",
    encoded_shape: tuple[int, ...] | None = None,
    begin: Callable[[Any, Tensor], Tensor] | None = None,
    inject: Callable[[Any, Tensor, Tensor], Tensor] | None = None,
    gate: Callable[[Any, Tensor], Tensor] | None = None,
    cycles: int = 1,
    whole: Callable[[Any, Any], Tensor] | None = None,
    **options: Any,
) -> AdaptedMachine:
    """Make a machine from a module that computes on one question by running the same block again
    and again. Each run of the block is a round.

    The question is read in the first round and then carried along; inputs of later rounds are
    ignored. Each round runs the block (the submodule ``core``) once, from the state after the
    previous round, and predicts from the result. The hook points ``entered`` and ``recurrence`` are
    the block's input and output. More rounds than in training are possible. An example is in
    docs/method/kinds-of-machine.md.

    Args:
        module: the module, with a submodule ``core``.
        task: the task, its key, or a layout of its rounds.
        shape: shape of the state without the batch axis: ``(width,)``, or ``(pos, width)``.
        encode: function ``(module, fed)`` -> the encoded question ``[batch, *encoded_shape]``,
            which the block reads in every round; ``fed`` is the encoded round.
        read: function ``(module, z, fed)`` -> the scores ``[batch, outcome]``, where ``z`` is the
            state after the round, ``[batch, *shape]``.
        core: name of the submodule; it maps its input to a tensor of the state's shape.
        encoded_shape: shape of what ``encode`` returns, without the batch axis; when None, that of
            the state.
        begin: function ``(module, question)`` -> the state before the first round, from what
            ``encode`` returned. When None, this state is set by the option ``initial`` of
            ``interp.adapt``, and is zero without it.
        inject: function ``(module, z, question)`` -> the input of the block, from the state ``z``
            and what ``encode`` returned; when None, their sum.
        gate: function ``(module, z)`` -> the number by which the module decides whether to stop
            after this round, such as a probability, ``[batch]``. The machine does not stop: the
            number is only stored for analyses, in a channel "gate" of the carried state. None for
            no such channel.
        cycles: number of runs of the block in the forward pass that ``whole`` computes.
        whole: function ``(module, fed)`` -> the scores of the module's original forward pass over
            the question, as a check. The machine is refused if its predictions after ``cycles``
            rounds differ from the predictions that these scores give. None for no check.
        options: further options of ``interp.adapt``.
    """
    integer("cycles", cycles, 1)
    axes, labels = _find_places(module, core, shape)

    def step(module: Any, carried: _Tree, fed: EncodedRounds) -> tuple[Tensor, _Tree]:
        """Run one round of this machine, which runs the block once.

        Args:
            module: the user's module, with the block ``core``.
            carried: the block's state "z", the "question" of the first round, and the number
                "cycle" of rounds that have run, ``[batch, 1]``.
            fed: the encoded round, whose question is read in the first round only.

        Returns:
            The scores ``[batch, outcome]``, and the new values of what is carried.
        """
        z = carried["z"]
        n_before = carried["cycle"]
        is_first = n_before[:, 0] < 0.5  # [batch]; carried as a real number: 0.0, 1.0, ...
        fed_question = encode(module, fed)
        # Later rounds read the question of the first one, which is carried along.
        is_asked_now = add_axes(is_first, fed_question.ndim)
        question = torch.where(is_asked_now, fed_question, carried["question"])
        if begin is not None:  # in the first round it makes the state from the question
            z = torch.where(add_axes(is_first, z.ndim), begin(module, question), z)
        entered = z + question if inject is None else inject(module, z, question)
        z = module.get_submodule(core)(entered)
        new_state = {"z": z, "question": question, "cycle": n_before + 1}
        if gate is not None:
            # Only stored for analyses; the machine itself never stops.
            new_state["gate"] = gate(module, z).reshape(-1, 1)
        return read(module, z, fed), new_state

    channels = [
        Channel("z", shape),
        Channel("question", encoded_shape or shape),
        Channel("cycle", (1,)),
    ]
    if gate is not None:
        channels.append(Channel("gate", (1,)))
    points = {
        "entered": Point(core, of="input", axes=axes, labels=labels),
        "recurrence": Point(core, axes=axes, labels=labels),
    }
    options = add_hook_points(options, points)
    machine = adapt(module, task, step=step, channels=channels, **options)
    if whole is not None:
        _require_own_pass(machine, cycles, whole)
    return machine


def _require_own_pass(
    machine: AdaptedMachine, cycles: int, whole: Callable[[Any, Any], Tensor]
) -> None:
    """Refuse a machine if its last prediction differs from the module's original forward pass.

    Args:
        machine: the machine.
        cycles: number of rounds, equal to the number of recurrences in the module's forward pass.
        whole: function ``(module, fed)`` -> the scores of the module's forward pass, where ``fed``
            is the encoded first round.
    """
    task = catalog.get(machine.layout.task)
    episodes = task.sample_for(machine, n_episodes=4, n_rounds=cycles, seed=0)
    run = rollout(machine, episodes)
    # The module's own pass reads the question once, as the machine does in round 0.
    with torch.no_grad():  # on a copy, since eval() would change the user's module
        scores = whole(copy.deepcopy(machine.module).eval(), run.fed.take_round(0))
    if machine.output == "logits":
        scores = scores.softmax(-1)
    expected = machine.layout.prediction(scores)
    gap = float((run.predictions[:, -1] - expected).abs().max())
    require(
        gap <= TOLERANCES.get(machine.dtype, 1e-2),
        f"round {cycles} of {machine.name!r} predicts other numbers than whole=, by up to {gap:.2g}: encode=, inject= "
        "or read= is not what the module's own pass computes, or cycles= is another number",
    )


class Actor(nn.Module):
    """The part of a recurrent policy that chooses actions: an LSTM, linear layers, and a score for
    each action.

    Args:
        n_inputs: size of the observation.
        width: width of the LSTM.
        policy: widths of the linear layers between the LSTM and the scores.
        n_actions: number of actions.
        n_layers: number of layers of the LSTM.
        act: activation of the linear layers: "tanh", "relu" or "elu".
    """

    def __init__(
        self,
        n_inputs: int,
        width: int,
        policy: Sequence[int],
        n_actions: int,
        n_layers: int = 1,
        act: str = "tanh",
    ) -> None:
        """Make the LSTM, hidden layers of the widths ``policy`` with the activation called ``act``,
        and a linear layer that gives a score for each action.
        """
        super().__init__()
        self.core = nn.LSTM(n_inputs, width, num_layers=n_layers)
        parts: list[nn.Module] = []
        last_size = width
        for size in policy:
            parts += [nn.Linear(last_size, size), _ACTIVATIONS[act]()]
            last_size = size
        self.policy = nn.Sequential(*parts)
        self.action = nn.Linear(last_size, n_actions)

    def scores(self, h: Tensor) -> Tensor:
        """Compute the logits of the actions, ``[batch, action]``.

        Args:
            h: the LSTM's hidden state, ``[batch, width]``.
        """
        return cast(Tensor, self.action(self.policy(h)))


@checked
def read_agent(path: str | Path, *, activation: Literal["tanh", "relu", "elu"] = "tanh") -> Actor:
    """Read the acting part of an agent from a file that RecurrentPPO of ``sb3-contrib`` saved.

    The agent must have discrete actions and vector observations.

    Args:
        path: the file.
        activation: activation of the layers after the LSTM; the file stores it only in a pickle,
            which is not opened.
    """
    path = Path(file_path(path, "the agent"))
    with (
        convert_read_errors(path, "give the file that model.save(...) of sb3-contrib wrote"),
        zipfile.ZipFile(path) as archive,
    ):
        size = archive.getinfo("policy.pth").file_size
        refuse_above(f"the weights in {str(path)!r}, unpacked,", size, MOST_GB)
        stored = load_tensors(path, io.BytesIO(archive.read("policy.pth")))
    weights, unread = _split_weights(stored)
    missing = {"core.weight_ih_l0", "action.weight"} - weights.keys()
    require(
        not missing,
        f"{str(path)!r} holds no recurrent policy of discrete actions: it has {', '.join(stored)}",
    )
    require(
        not unread,
        f"{str(path)!r} has more weights than a policy of discrete actions ({', '.join(unread)}), such as a feature "
        "extractor or the spread of continuous actions; only MlpLstmPolicy of discrete actions is read",
    )
    # Weights of linear layers are [output, input].
    policy_widths = [
        len(value) for name, value in weights.items() if re.fullmatch(r"policy\.\d+\.weight", name)
    ]
    n_layers = sum(name.startswith("core.weight_hh_l") for name in weights)
    with convert_read_errors(path):
        # The matrices of an LSTM are [4 * width, input], one block of rows for each gate.
        _, n_inputs = weights["core.weight_ih_l0"].shape
        _, width = weights["core.weight_hh_l0"].shape
        n_actions = len(weights["action.weight"])
        actor = Actor(
            n_inputs,
            width,
            policy=policy_widths,
            n_actions=n_actions,
            n_layers=n_layers,
            act=activation,
        )
        actor.load_state_dict(weights)
    return actor.eval()


def _split_weights(stored: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], list[str]]:
    """Rename a policy's weights for :class:`Actor`.

    Args:
        stored: weights by the names that ``sb3-contrib`` gives them.

    Returns:
        The weights by :class:`Actor`'s names, and the stored names of all weights that affect
        actions but that an :class:`Actor` does not have.
    """
    weights: dict[str, Tensor] = {}
    unread = []
    for name, value in stored.items():
        part, _, rest = name.partition(".")
        if part == "lstm_actor":
            weights[f"core.{rest}"] = value
        elif part == "action_net":
            weights[f"action.{rest}"] = value
        elif name.startswith("mlp_extractor.policy_net."):
            layer = name.removeprefix("mlp_extractor.policy_net.")
            weights[f"policy.{layer}"] = value
        elif not name.startswith(_CRITIC_PREFIXES):
            unread.append(name)
    return weights, unread


def load_tensors(path: Path, source: Any) -> dict[str, Tensor]:
    """Load a state dict and return its tensors by name; refuse a file with any other Python object.

    Args:
        path: path of the file, for error messages.
        source: what to read: a path, or an open file.
    """
    unsafe = (
        f"{str(path)!r} holds Python objects, which could run code, or is damaged; it is not opened"
    )
    with convert_read_errors(path), convert_errors(unsafe, of=UnpicklingError):
        stored = torch.load(source, map_location="cpu", weights_only=True)
    is_mapping = isinstance(stored, dict)  # the file may hold a single tensor or a list
    fits = is_mapping and all(
        isinstance(name, str) and isinstance(value, Tensor) for name, value in stored.items()
    )
    require(fits, f"{str(path)!r} must hold tensors by their names, got {format_value(stored)}")
    return cast(dict[str, Tensor], stored)


@checked
def agent(
    actor: Actor, task: str | Task | RoundLayout, *, encode: _Encode, **options: Any
) -> AdaptedMachine:
    """Make a machine from an agent; its prediction is the probability of each action.

    In each round the LSTM reads the observation first, and the prediction is made from its new
    state. The carried state is the LSTM's ``h`` and ``c``. An example is in
    docs/method/kinds-of-machine.md.

    Args:
        actor: the actor that :func:`read_agent` returned.
        task: the task, its key, or a layout of its rounds.
        encode: function ``(actor, fed)`` -> the observation ``[batch, input]`` that the environment
            would return for the encoded round ``fed``.
        options: further options of ``interp.adapt``.
    """
    # "core" and "first_input" are options of cell, which is called below.
    options = add_hook_points(options, {"policy": "policy"}, "core", "first_input")

    def read(actor: Actor, h: Tensor, fed: EncodedRounds) -> Tensor:
        """Compute the logits of the actions, ``[batch, action]``.

        Args:
            actor: the part of the agent that chooses actions.
            h: the LSTM's hidden state after it has read the round, ``[batch, width]``.
            fed: not used.
        """
        return actor.scores(h)

    return cell(actor, task, encode=encode, read=read, update="before", **options)
