"""Adapters for models that read a round as a sequence: Mamba, HRM-Text, and GPT-2 with latent
thoughts.

:class:`Embedded` defines how a round becomes such a model's input embeddings, and where the
prediction is read.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from interp.core.machine import Channel
from interp.core.task import Task
from interp.machines.recurrent import add_hook_points, load_tensors
from interp.model.adapted import AdaptedMachine, adapt, layout_for
from interp.model.drawing import reset_parameters
from interp.model.layout import EncodedRounds, RoundLayout
from interp.model.taps import Point, list_parts, replace_part
from interp.support.caches import CACHES, fill_cache, name_caches
from interp.support.checks import (
    checked,
    checked_fields,
    file_path,
    integer,
    without_inference_or_autocast,
)
from interp.support.errors import InputError, convert_errors, require
from interp.support.files import convert_read_errors

_COCONUT_PREFIX = "base_causallm."
"""Beginning of the names of GPT-2's weights in a checkpoint of Coconut."""
_COCONUT_EMBEDDING = "embedding."
"""Beginning of a second name of GPT-2's table of embeddings in such a checkpoint."""
_Tree = dict[str, Tensor]
_NO_EXPONENT = -1e4
"""Initial value of an exponent so that its power is 0 in every precision; the library uses
-1e30.
"""


@dataclass(frozen=True)
@checked_fields
class Embedded:
    """Recipe that turns a round into the input embeddings of a sequence model.

    Attributes:
        embed: function ``(model, fed)`` -> embeddings ``[batch, n_pos, width]``, where ``fed`` is
            the encoded round.
        n_pos: number of positions of a round.
        at: index of the position where the prediction is read; later positions may contain the
            outcome.
        slot: index of the position at which a vector that is carried between rounds takes the place
            of the embedding, from the second round on.
    """

    embed: Callable[[Any, Any], Tensor]
    n_pos: int
    at: int
    slot: int

    @classmethod
    def tokens(cls, layout: RoundLayout, table: str, ids: Sequence[int] | None = None) -> Embedded:
        """Make a recipe that embeds the round's tokens with one of the model's embedding layers.

        Args:
            layout: layout of the round.
            table: name of the embedding layer within the model.
            ids: the model's token id for each token of the layout's vocabulary; 0, 1, ... when
                None.

        >>> from interp.tasks import experts
        >>> round = Embedded.tokens(experts.TASK.layout(n_experts=4), "transformer.wte")
        >>> round.n_pos, round.at, round.slot
        (13, 10, 1)
        """
        vocabulary = layout.vocabulary
        numbers = range(len(vocabulary)) if ids is None else _check_ids("ids", ids, vocabulary)
        model_ids = torch.tensor(numbers)

        def embed_round(model: Any, fed: EncodedRounds) -> Tensor:
            """Return the embeddings of a round's tokens, ``[batch, pos, width]``."""
            tokens = model_ids.to(fed.tokens.device)[fed.tokens]
            return cast(Tensor, model.get_submodule(table)(tokens))

        return cls(
            embed_round,
            n_pos=layout.n_positions,
            at=layout.predict_position,
            slot=layout.latent_positions[0],  # of several latents, the first
        )


def _check_ids(what: str, ids: Sequence[int], names: Sequence[str]) -> list[int]:
    """Return token ids as a list. Refuse ids that are negative or repeat, and fewer or more ids than
    names.

    Args:
        what: name of the ids in the error message.
        ids: token ids in the model's vocabulary, one for each name.
        names: the layout's tokens or outcomes that the ids stand for, in the same order.
    """
    is_each_once = len(set(ids)) == len(ids) == len(names)
    require(
        is_each_once and min(ids) >= 0,
        f"{what} are the model's tokens, all different, for each of {', '.join(names)}, got {list(ids)}",
    )
    return list(ids)


def _find_core(module: nn.Module, core: str, attribute: str, what: str) -> Any:
    """Return the submodule called ``core``; refuse a submodule that lacks an expected attribute.

    Args:
        module: the module that contains the submodule.
        core: name of the submodule; "" for the module itself.
        attribute: name of the attribute that the submodule must have.
        what: description of the expected submodule, for the error message.
    """
    parts = dict(module.named_modules())
    part = parts.get(core)
    names = [name for name in parts if name]
    require(
        hasattr(part, attribute),
        f"core {core!r} must name a {what}, got {type(part).__name__}; the module has {', '.join(names[:20])}",
    )
    return part


def _redraw(module: nn.Module) -> None:
    """Draw new initial weights for a module in place: ``transformers`` models by the library's
    rule, other parts by ``reset_parameters``.
    """
    reset_parameters(module)
    for part in module.modules():
        initialize = getattr(part, "_init_weights", None)
        if initialize is not None:  # a model of transformers; the function takes one submodule
            part.apply(initialize)


@checked
def state_space(
    module: nn.Module,
    task: str | Task | RoundLayout,
    *,
    embedded: Embedded,
    read: Callable[[Any, Tensor, Any], Tensor],
    core: str = "core",
    **options: Any,
) -> AdaptedMachine:
    """Make a machine from a module that contains a ``transformers`` model with recurrent layers,
    such as Mamba.

    A round may consist of several inputs; the prediction is read from the normalised output at one
    of them. Every tensor of the model's cache becomes a channel (a named part of the carried
    state), with a name made of its place in the cache. Equations and an example are in
    docs/method/kinds-of-machine.md.

    RWKV, xLSTM, Mamba 2 and FalconMamba are supported. Three kinds of models are refused, with an
    error that names the reason:

    - a model with a state that is stored outside of its cache;
    - a model with a cache that grows;
    - a model that gives other outputs if the state is carried from round to round than in one
      forward pass over the sequence.

    The hook points ``layer_1``, ``layer_2``, ... are the outputs of the layers at every input of a
    round. A ``MambaModel`` (Mamba 1) differs in three ways. It runs in plain PyTorch, and has the
    channels "state" and "conv". It has other hook points: ``selected_1``, ... (from which dt, B and
    C are computed) and ``gated_1``, ... (the gated output of the layer's state, before the
    projection).

    Args:
        module: the module that contains the model.
        task: the task, its key, or a layout of its rounds.
        embedded: how a round becomes input embeddings; its ``slot`` is not used.
        read: function ``(module, y, fed)`` -> the scores ``[batch, outcome]``, where ``y`` is the
            normalised output at the position of the prediction, ``[batch, width]``.
        core: name of the model within ``module``; "" for the module itself.
        options: further options of ``interp.adapt``.
    """
    model = _find_core(module, core, "config", "model of transformers with recurrent layers")
    layers: list[Any] = list(getattr(model, "layers", None) or getattr(model, "blocks", None) or ())
    is_mamba = type(model).__name__ == "MambaModel"
    n_positions = embedded.n_pos
    runner: _Mamba | _Cached = _Mamba(model) if is_mamba else _Cached(model, n_positions)

    def step(module: Any, carried: _Tree, fed: EncodedRounds) -> tuple[Tensor, _Tree]:
        """Run the model on the inputs of one round, and return the scores and the new state."""
        inputs = embedded.embed(module, fed)  # [batch, input, width]
        outputs, new_state = runner.run(module.get_submodule(core), inputs, carried)
        return read(module, outputs[:, embedded.at], fed), new_state

    def run_from_nothing(copied: Any, x: Tensor) -> Tensor:
        """Run the model round by round on a sequence of inputs ``[batch, input, width]``, from its
        initial state, and return the outputs. They must equal those of one forward pass.
        """
        state = {}
        for channel in runner.channels:
            start = runner.start.get(channel.name, torch.zeros(channel.shape))
            state[channel.name] = start.to(x).expand(len(x), *channel.shape)
        outputs = []
        for round_inputs in x.split(n_positions, 1):
            y, state = runner.run(copied, round_inputs, state)
            outputs.append(y)
        return torch.cat(outputs, 1)

    n_inputs = 3 * n_positions  # three rounds, so that a state is carried twice
    try:
        _require_same_pass(model, run_from_nothing, n_inputs=n_inputs)
    except InputError:
        if runner.n_at_once == 1:
            raise
        # Some models continue from a cache correctly only with one input at a time.
        runner.n_at_once = 1
        _require_same_pass(model, run_from_nothing, n_inputs=n_inputs)
    points: dict[str, Point] = {}
    for i, layer in enumerate(layers):
        # Its full name within the user's module, as points need it.
        name = next(name for name, part in module.named_modules() if part is layer)
        if is_mamba:
            for key, part in (("selected", "x_proj"), ("gated", "out_proj")):
                submodule = f"{name}.mixer.{part}"
                points[f"{key}_{i + 1}"] = Point(submodule, of="input", times=n_positions)
        elif runner.n_at_once == 1:  # the layer runs once for each input of a round
            point = Point(name, times=n_positions, axes="pos", labels=("input",))
            points[f"layer_{i + 1}"] = point
        else:  # it runs once for all of them
            labels = tuple(f"input_{number}" for number in range(1, n_positions + 1))
            points[f"layer_{i + 1}"] = Point(name, axes="pos", labels=labels)
    if runner.start:
        options = {"initial": lambda module: runner.start, **options}
    options = {"reset": _redraw, **add_hook_points(options, points)}
    return adapt(module, task, step=step, channels=runner.channels, **options)


class _Cached:
    """A runner for a ``transformers`` model: it runs some inputs with the model's forward pass, and
    takes and returns the recurrent state as plain tensors.

    The tensors are those of the model's cache, one for each :class:`Channel` of ``channels``.

    Args:
        model: the model.
        n_at_once: number of input vectors per sequence that one forward pass reads.
    """

    def __init__(self, model: Any, n_at_once: int) -> None:
        """Run the model on one input vector, and on two. Find the argument by which it takes its
        state, and the tensors that the state consists of. Refuse a model without such a state, and
        one whose state is larger after two inputs than after one.
        """
        self.n_at_once = n_at_once
        # The arguments of the forward pass that take a cache.
        names = name_caches(type(model).forward)
        kind = type(model).__name__
        require(
            len(names) == 1,
            f"{kind} takes none of {', '.join(CACHES)}, so its state cannot be put in; adapt it with interp.adapt",
        )
        (self.argument,) = names
        cache = self._run_for_cache(model, n_inputs=1)
        later_cache = self._run_for_cache(model, n_inputs=2)
        # Name of a tensor of the cache -> the keys that lead to it, joined to make the name.
        self.paths = {"_".join(map(str, path)): path for path, _ in _find_tensors(cache)}
        shapes = _list_shapes(cache)
        require(
            self.paths,
            f"{kind} gives back no cache that holds its state (it keeps it in its modules); adapt it with interp.adapt",
        )
        require(
            shapes == _list_shapes(later_cache),
            f"the cache of {kind} grows with every input: it has attention layers beside its recurrent ones; adapt it "
            "with interp.adapt, and a Channel(..., grows=...)",
        )
        self.cache = cache  # a template: every run replaces all its tensors
        self.start: _Tree = {}  # initial values of channels that do not start at 0
        self.channels = []
        self.shapes = [shape[1:] for shape in shapes]  # without the batch axis
        for path, shape in zip(self.paths, self.shapes, strict=True):
            # A channel's name must be an identifier, and a path may begin with a digit.
            name = path if path.isidentifier() else f"state_{path}"
            self.channels.append(Channel(name, (prod(shape),)))
        if self.argument == "state":
            # RWKV stores sums of exponentials divided by the largest one. Its last tensor is the
            # largest exponent so far; before the first input there was none, so it starts very low.
            last = self.channels[-1]
            self.start = {last.name: torch.full(last.shape, _NO_EXPONENT)}

    @without_inference_or_autocast()
    def _run_for_cache(self, model: Any, n_inputs: int) -> Any:
        """Run a copy of the model on ``n_inputs`` zero vectors for a batch of two, and return its
        cache.
        """
        copied = copy.deepcopy(model).eval()
        weight = next(copied.parameters())
        one_input = weight.new_zeros(2, 1, model.config.hidden_size)  # [batch, input, width]
        with convert_errors(f"a pass of {type(model).__name__}"), torch.no_grad():
            output = copied(inputs_embeds=one_input, use_cache=True)
            for _ in range(n_inputs - 1):
                cache = {self.argument: output.get(self.argument)}
                output = copied(inputs_embeds=one_input, use_cache=True, **cache)
        return output.get(self.argument)

    def run(self, model: Any, inputs: Tensor, carried: _Tree) -> tuple[Tensor, _Tree]:
        """Run the model on some inputs, from a carried state.

        Args:
            model: the model.
            inputs: input embeddings, ``[batch, input, width]``.
            carried: the carried state: the tensor of each channel by its name.

        Returns:
            The normalised outputs ``[batch, input, width]``, and the carried state after the last
            input.
        """
        outputs = []
        parts = [carried[channel.name] for channel in self.channels]
        for x in inputs.split(self.n_at_once, 1):
            cache = self.cache
            for path, shape, part in zip(self.paths.values(), self.shapes, parts, strict=True):
                # Cloned, since the model may write into its cache, which must not reach carried.
                cache = _replace_tensor(cache, path, part.reshape(-1, *shape).clone())
            output = model(inputs_embeds=x, use_cache=True, **{self.argument: cache})
            outputs.append(output.last_hidden_state.to(x.dtype))
            new_tensors = _find_tensors(output[self.argument])
            parts = [part.flatten(1).to(x.dtype) for _, part in new_tensors]
        names = [channel.name for channel in self.channels]
        return torch.cat(outputs, 1), dict(zip(names, parts, strict=True))


def _find_tensors(
    value: Any, path: tuple[Any, ...] = ()
) -> Iterator[tuple[tuple[Any, ...], Tensor]]:
    """Yield (path, tensor) for every tensor with two or more axes in a nested cache. A path is a
    tuple of keys.

    Args:
        value: the cache, or a part of it.
        path: keys that lead to this part.
    """
    if isinstance(value, Tensor):
        if value.ndim > 1:
            yield path, value
        return
    # A cache may have the model's configuration as an attribute, in which there is no state.
    if isinstance(value, str) or value is None or path[-1:] == ("config",):
        return
    for key, part in list_parts(value).items():
        yield from _find_tensors(part, (*path, key))


def _list_shapes(cache: Any) -> list[tuple[int, ...]]:
    """Return the shape ``(batch, ...)`` of every tensor with two or more axes in a nested cache."""
    return [tuple(tensor.shape) for _, tensor in _find_tensors(cache)]


def _replace_tensor(value: Any, path: Sequence[Any], tensor: Tensor) -> Any:
    """Return a copy of a nested cache with one tensor replaced.

    Args:
        value: the cache.
        path: keys that lead to the tensor.
        tensor: the new tensor.
    """
    if not path:
        return tensor
    key, *rest = path
    return replace_part(value, key, _replace_tensor(list_parts(value)[key], rest, tensor))


class _Mamba:
    """A runner for a ``MambaModel`` in plain PyTorch, one input at a time, so that hooks can reach
    the inputs of its projections.
    """

    def __init__(self, model: Any) -> None:
        """Describe the carried state: for each layer, a state-space state and the last inputs of
        the convolution.
        """
        config = model.config
        # The convolution reads the current input, too, which is not carried.
        sizes = {"state": config.state_size, "conv": config.conv_kernel - 1}
        n_layers, inner = len(model.layers), config.intermediate_size
        self.channels = [Channel(name, (n_layers, inner * size)) for name, size in sizes.items()]
        self.start: _Tree = {}
        self.n_at_once = 1

    def run(self, model: Any, inputs: Tensor, carried: _Tree) -> tuple[Tensor, _Tree]:
        """Run the model on some inputs, from a carried state.

        Args:
            model: the ``MambaModel``.
            inputs: input embeddings, ``[batch, input, width]``.
            carried: two tensors ``[batch, layer, inner * size]``: "state", the state-space state,
                and "conv", the last inputs of the convolution. ``inner`` is the inner width of a
                layer.

        Returns:
            The normalised outputs ``[batch, input, width]``, and the carried state after the last
            input.
        """
        inner = model.config.intermediate_size
        by_layer = {}  # name of a channel -> a list over layers, [batch, inner, size] each
        for name, part in carried.items():
            parts = part.unflatten(2, (inner, -1)).unbind(1)
            by_layer[name] = list(parts)
        outputs = []
        for x in inputs.unbind(1):
            for i, layer in enumerate(model.layers):
                state, conv = by_layer["state"][i], by_layer["conv"][i]
                y, state, conv = _run_mixer(layer.mixer, layer.norm(x), state, conv)
                by_layer["state"][i], by_layer["conv"][i] = state, conv
                x = x + y
            outputs.append(model.norm_f(x))
        new_state = {name: torch.stack(parts, 1).flatten(2) for name, parts in by_layer.items()}
        return torch.stack(outputs, 1), new_state


@without_inference_or_autocast()
def _require_same_pass(
    model: Any,
    adapted_form: Callable[[Any, Tensor], Tensor],
    n_inputs: int = 5,
) -> None:
    """Raise InputError if a model's forward pass and the adapter's version of it differ on a few
    random inputs.

    Args:
        model: a model of ``transformers``.
        adapted_form: the adapter's version: function ``(copy of the model, inputs)`` -> the last
            hidden states, ``[batch, pos, width]``.
        n_inputs: number of inputs.
    """
    copied = copy.deepcopy(model).eval()
    kind = type(model).__name__
    weight = next(copied.parameters())
    generator = torch.Generator().manual_seed(0)
    # [batch, input, width], the same numbers in every dtype and on every device
    noise = torch.randn(2, n_inputs, model.config.hidden_size, generator=generator).to(weight)
    log = logging.getLogger("transformers")
    level = log.level
    log.setLevel(logging.ERROR)  # no warnings that quicker kernels are not installed
    try:
        with (
            convert_errors(f"this adapter's form of {kind} (others: interp.adapt)"),
            torch.no_grad(),
        ):
            adapted = adapted_form(copied, noise)
            forward = copied(inputs_embeds=noise, use_cache=False).last_hidden_state
    finally:
        log.setLevel(level)
    largest = forward.abs().max().clamp_min(1e-30)  # not 0, since it is a divisor
    gap = float((adapted - forward).abs().max() / largest)
    require(
        gap <= 100 * torch.finfo(weight.dtype).eps,
        f"the forward pass of {kind} gives other numbers than this adapter's form of it, by up to {gap:.2g} of the "
        "largest: it is another model than the adapter knows; adapt it with interp.adapt",
    )


def _run_mixer(mixer: Any, x: Tensor, state: Tensor, conv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Run the mixer of a Mamba layer (convolution, selective state space, gate) on one input.

    Args:
        mixer: the mixer of a layer.
        x: the input, ``[batch, width]``.
        state: the state-space state, ``[batch, inner, state]``, where ``inner`` is the inner width.
        conv: the last inputs of the convolution, ``[batch, inner, kernel - 1]``.

    Returns:
        The output ``[batch, width]``, and the new values of ``state`` and ``conv``.
    """
    hidden, gate = mixer.in_proj(x).chunk(2, -1)  # [batch, inner] each
    window = torch.cat([conv, hidden.unsqueeze(2)], 2)  # [batch, inner, kernel]
    convolution = mixer.conv1d  # of each inner channel by itself, [inner, 1, kernel]
    convolved = (window * convolution.weight.squeeze(1)).sum(2)
    if convolution.bias is not None:
        convolved = convolved + convolution.bias
    selected = mixer.act(convolved)  # the input u of the state-space model, [batch, inner]
    sizes = [mixer.time_step_rank, mixer.ssm_state_size, mixer.ssm_state_size]
    low_rank_dt, B, C = mixer.x_proj(selected).split(sizes, -1)  # B and C: [batch, state]
    dt = functional.softplus(mixer.dt_proj(low_rank_dt)).unsqueeze(2)  # [batch, inner, 1]
    # state <- exp(dt A) state + dt B u, and y = C state + D u, with A = -exp(A_log)
    decay = (dt * -mixer.A_log.exp()).exp()
    added = dt * B.unsqueeze(1) * selected.unsqueeze(2)
    state = decay * state + added
    read = (state * C.unsqueeze(1)).sum(2)
    y = read + mixer.D * selected
    return mixer.out_proj(y * mixer.act(gate)), state, window[:, :, 1:]


@checked
def hrm(
    model: nn.Module,
    task: str | Task | RoundLayout,
    *,
    outcomes: Sequence[int],
    ids: Sequence[int] | None = None,
    **options: Any,
) -> AdaptedMachine:
    """Make a machine from an ``HrmTextForCausalLM`` of ``transformers``, which runs a fast and a
    slow stack of layers in nested cycles.

    The states of both stacks at the last position of a round are carried to the next round. There
    each state is added to the initial state of its stack, at every position. From a zero carried
    state, a round equals the model's forward pass bit for bit. The hook points ``fast`` and
    ``slow`` are the outputs of the two stacks. Each run of a stack has a separate activation: that
    of the third run of the fast stack is ``fast[2]``. An example is in
    docs/method/kinds-of-machine.md.

    Args:
        model: an ``HrmTextForCausalLM``.
        task: the task, its key, or a layout of its rounds.
        outcomes: the model's token ids for the outcomes, in the layout's order.
        ids: the model's token id for each token of the layout's vocabulary; 0, 1, ... when None.
        options: further options of ``interp.adapt``.
    """
    inner: Any = getattr(model, "model", None)
    require(
        hasattr(inner, "L_module"),
        f"expected an HrmTextForCausalLM of transformers, got {type(model).__name__}",
    )
    layout = layout_for(task, options.pop("sizes", None))
    rounds = Embedded.tokens(layout, "model.embed_tokens", ids)
    outcome_ids = _check_ids("outcomes", outcomes, layout.outcomes)

    def step(model: Any, carried: _Tree, fed: EncodedRounds) -> tuple[Tensor, _Tree]:
        """Run all cycles of one round. Return the scores, and the states of the slow and of the fast
        stack at the last position, ``[batch, width]`` each.
        """
        inputs = rounds.embed(model, fed)
        # H is the slow stack and L the fast one, as in the library; states [batch, pos, width].
        z_H, z_L = _run_cycles(model.model, inputs, above=carried["z_H"], below=carried["z_L"])
        scores = model.lm_head(z_H[:, rounds.at])[:, outcome_ids]
        return scores, {"z_H": z_H[:, -1], "z_L": z_L[:, -1]}

    def run_from_nothing(copied: Any, x: Tensor) -> Tensor:
        """Run one round from a carried state of zeros, which must equal the model's forward pass."""
        nothing = torch.zeros_like(x[:, 0])
        z_H, _ = _run_cycles(copied, x, above=nothing, below=nothing)
        return z_H

    _require_same_pass(inner, run_from_nothing)
    config = inner.config
    n_slow = config.H_cycles
    n_fast = n_slow * config.L_cycles
    labels = layout.labels
    points = {
        "fast": Point("model.L_module", times=n_fast, axes="pos", labels=labels),
        "slow": Point("model.H_module", times=n_slow, axes="pos", labels=labels),
    }
    options = {"reset": _redraw, **add_hook_points(options, points)}
    channels = [Channel(name, (config.hidden_size,)) for name in ("z_H", "z_L")]
    return adapt(model, layout, step=step, channels=channels, **options)


def _run_cycles(model: Any, x: Tensor, above: Tensor, below: Tensor) -> tuple[Tensor, Tensor]:
    """Run all cycles of an HRM-Text on one round; return the slow and the fast state after them,
    each ``[batch, pos, width]``.

    Args:
        model: the ``transformers`` model with both stacks of layers.
        x: input embeddings, ``[batch, pos, width]``.
        above: carried state that is added to the slow state, ``[batch, width]``.
        below: carried state that is added to the fast state, ``[batch, width]``.
    """
    from transformers.masking_utils import create_causal_mask

    x = x * model.embedding_scale
    positions = torch.arange(x.shape[1], device=x.device).unsqueeze(0)
    # By position: the fourth argument, the cache, has different names in different releases.
    config = model.config
    mask = create_causal_mask(config, x, None, None, position_ids=positions)
    shared = {
        "attention_mask": mask,
        "position_embeddings": model.rotary_emb(x, positions),
        "position_ids": positions,
    }
    # The slow stack starts from the inputs, and the fast one from a learned vector.
    z_H = x + above.unsqueeze(1)
    start = model.z_L_init.to(x).expand_as(x)
    z_L = start + below.unsqueeze(1)
    for _ in range(config.H_cycles):
        for _ in range(config.L_cycles):
            z_L = model.L_module(z_L + z_H, **shared)
        z_H = model.H_module(z_H + z_L, **shared)
    return z_H, z_L


class _Thinker(nn.Module):
    """A GPT-2 with two identity modules as hook points: ``thought`` and ``cache`` pass on the
    carried state that enters a round.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model, self.thought, self.cache = model, nn.Identity(), nn.Identity()


@checked
def thoughts(
    model: nn.Module,
    task: str | Task | RoundLayout,
    *,
    n_rounds: int,
    outcomes: Sequence[int] | None = None,
    read: Callable[[Any, Tensor, Any], Tensor] | None = None,
    ids: Sequence[int] | None = None,
    embedded: Embedded | None = None,
    core: str = "transformer",
    uses: Sequence[str] = ("thought", "cache"),
    project: Callable[[Any, Tensor], Tensor] | None = None,
    **options: Any,
) -> AdaptedMachine:
    """Make a machine from a GPT-2 of ``transformers``, or from a module that contains one.

    Two channels are carried from round to round. The *thought* is a vector that replaces an input
    embedding of the next round; the *cache* of keys and values grows with every round. Hooks can be
    attached to both (``thought`` and ``cache``) at the beginning of a round. Which of the two
    channels known methods use, and an example: docs/method/kinds-of-machine.md.

    Args:
        model: a GPT-2, or a module that contains one.
        task: the task, its key, or a layout of its rounds.
        n_rounds: number of rounds for which the cache has room. The model's ``n_positions`` must be
            at least this number times the positions of a round.
        outcomes: the model's token ids for the outcomes, in the layout's order.
        read: in place of ``outcomes``, a function ``(model, hidden, fed)`` -> the scores
            ``[batch, outcome]``, where ``hidden`` is the hidden state at the prediction,
            ``[batch, n_embd]``.
        ids: the model's token id for each token of the layout's vocabulary; 0, 1, ... when None.
        embedded: how a round becomes input embeddings; when None, its tokens are embedded, with the
            thought in place of the latent's token.
        core: name of the ``GPT2Model`` within ``model``; "" for the model itself.
        uses: the channels that a round reads: "thought", "cache" or both.
        project: function ``(model, hidden)`` -> the thought, from the last hidden state
            ``[batch, n_embd]``; when None, the thought is this state. For CODI use
            ``lambda model, h: model.prj(h)``, for soft thinking :func:`mixture`.
        options: further options of ``interp.adapt``.
    """
    require(
        uses and {*uses} <= {"thought", "cache"},
        f"uses says which of 'thought', 'cache' a round reads, got {list(uses)}",
    )
    require(
        (read is None) != (outcomes is None),
        "give either read=, or outcomes=, the tokens of the outcomes",
    )
    layout = layout_for(task, options.pop("sizes", None))
    rounds = embedded or Embedded.tokens(layout, f"{core}.wte".lstrip("."), ids)
    integer("slot of embedded", rounds.slot, 0, rounds.n_pos - 1)
    # A GPT-2 with inputs of the user's needs no table of tokens, only one of positions.
    needed = "wte" if embedded is None else "wpe"
    inner = _find_core(model, core, needed, "GPT2Model of transformers")
    config = inner.config
    outcome_ids = [] if outcomes is None else _check_ids("outcomes", outcomes, layout.outcomes)
    n_rows = integer("n_rounds", n_rounds, 1) * rounds.n_pos
    require(
        n_rows <= config.n_positions,
        f"{n_rounds} rounds of {rounds.n_pos} take {n_rows} positions, and the model has {config.n_positions}: no more "
        f"than {config.n_positions // rounds.n_pos} rounds fit",
    )

    def step(thinker: _Thinker, carried: _Tree, fed: EncodedRounds) -> tuple[Tensor, _Tree]:
        """Run the GPT-2 on one round.

        Args:
            thinker: the user's model, and the identity modules to which hooks on the thought and on
                the cache are attached.
            carried: the "thought" ``[batch, width]``, the "cache" of keys and values ``[batch, row,
                number]`` with a row for every position of every round, and "cache_length", the
                number of its rows that earlier rounds have filled, ``[batch]``.
            fed: the encoded round.

        Returns:
            The scores ``[batch, outcome]``; and the next thought with the rows to append to the
            cache.
        """
        model: Any = thinker.model
        length = carried["cache_length"]
        # The identity modules are hook points; they run in every round, whatever it uses.
        thought = thinker.thought(carried["thought"])
        cache = thinker.cache(carried["cache"])
        x = rounds.embed(model, fed)
        if "thought" in uses:
            # Episodes in their first round, where the length is 0, have no thought yet and keep x.
            x = _put_thought(x, thought, rounds.slot, length)
        filled = cache[:, : int(length.max())]  # later rows are empty in every episode
        is_read = torch.arange(filled.shape[1], device=x.device) < length.unsqueeze(1)
        if "cache" not in uses:
            is_read = torch.zeros_like(is_read)
        hidden, new_rows = _run_gpt2(model.get_submodule(core), x, filled, is_read, length)
        at_prediction = hidden[:, rounds.at]
        new_thought = hidden[:, -1] if project is None else project(model, hidden[:, -1])
        new_state = {"thought": new_thought, "cache": new_rows}
        if read is not None:
            return read(model, at_prediction, fed), new_state
        return model.lm_head(at_prediction)[:, outcome_ids], new_state

    row_width = 2 * config.n_layer * config.n_embd  # keys and values of all layers
    cached = Channel("cache", (n_rows, row_width), grows=rounds.n_pos)
    points = {
        "thought": Point("thought"),
        "cache": Point("cache", axes="pos", labels=cached.labels),
    }
    options = {"reset": _redraw, **add_hook_points(options, points)}
    channels = [Channel("thought", (config.n_embd,)), cached]
    if config.n_positions >= 5:  # the number of inputs of this test
        _require_same_pass(inner, _run_in_halves)
    return adapt(_Thinker(model), layout, step=step, channels=channels, **options)


@checked
def mixture(temperature: float = 1.0) -> Callable[[Any, Tensor], Tensor]:
    """Return the argument ``project`` of :func:`thoughts` for soft thinking: a function
    ``(model, hidden)`` -> the thought.

    The thought is the mean of the embeddings of all words, weighted by
    ``softmax(logits / temperature)``.
    """
    require(temperature > 0, f"temperature must be above 0, got {temperature}")

    def mix(model: Any, hidden: Tensor) -> Tensor:
        """Return the mean embedding of the next word, ``[batch, n_embd]``."""
        shares = (model.lm_head(hidden) / temperature).softmax(-1)
        return cast(Tensor, shares @ model.transformer.wte.weight)

    return mix


def _put_thought(x: Tensor, thought: Tensor, slot: int, length: Tensor) -> Tensor:
    """Return input embeddings with the thought in place of the embedding at ``slot``; in the first
    round, return them unchanged.

    Args:
        x: input embeddings, ``[batch, pos, width]``.
        thought: the carried vector, ``[batch, width]``.
        slot: index of the position of the thought.
        length: number of filled rows of the cache, ``[batch]``; 0 in the first round.
    """
    is_slot = torch.arange(x.shape[1], device=x.device) == slot
    is_replaced = is_slot & (length > 0).unsqueeze(1)
    return torch.where(is_replaced.unsqueeze(2), thought.unsqueeze(1), x)


def _run_in_halves(core: Any, x: Tensor) -> Tensor:
    """Run a GPT-2 on a sequence in two parts, where the second part reads the first from the cache.
    Return the last hidden states, ``[batch, pos, width]``.

    A self-test compares them with those of a single forward pass.

    Args:
        core: a ``GPT2Model``.
        x: input embeddings, ``[batch, pos, width]``.
    """
    n_rows, n_first = len(x), 2  # any split tests the cache
    # The first part reads an empty cache, with a mask of no positions.
    empty = x.new_zeros(n_rows, 0, 2 * core.config.n_layer * core.config.n_embd)
    length = torch.zeros(n_rows, dtype=torch.long)
    nothing_read = torch.ones(n_rows, 0, dtype=torch.bool)
    first, cache = _run_gpt2(core, x[:, :n_first], empty, nothing_read, length)
    is_read = torch.ones(n_rows, n_first, dtype=torch.bool)
    rest, _ = _run_gpt2(core, x[:, n_first:], cache, is_read, length + n_first)
    return torch.cat([first, rest], 1)


def _run_gpt2(
    core: Any, x: Tensor, cache: Tensor, is_read: Tensor, length: Tensor
) -> tuple[Tensor, Tensor]:
    """Run a GPT-2 on the positions of one round.

    Args:
        core: a ``GPT2Model``.
        x: input embeddings, ``[batch, pos, width]``.
        cache: keys and values of all layers at earlier positions, flattened,
            ``[batch, earlier position, number]``.
        is_read: True for the earlier positions that are attended to, ``[batch, earlier position]``.
        length: number of filled earlier positions, ``[batch]``.

    Returns:
        The last hidden states ``[batch, pos, width]``, and the cache's entries for the new
        positions ``[batch, pos, number]``.
    """
    from transformers import DynamicCache

    config, n = core.config, x.shape[1]
    past = DynamicCache()
    # [batch, earlier position, layer, 2, head, d_head], where the axis of 2 is keys and values.
    by_layer = cache.unflatten(2, (config.n_layer, 2, config.n_head, -1))
    for layer, part in enumerate(by_layer.unbind(2)):
        by_head = part.transpose(1, 3)  # [batch, head, 2, earlier position, d_head]
        keys, values = by_head.unbind(2)  # [batch, head, earlier position, d_head] each
        past.update(keys, values, layer)
    mask = torch.cat([is_read, is_read.new_ones(len(x), n)], 1)
    positions = length.unsqueeze(1) + torch.arange(n, device=x.device)
    # Clipped, so that a full cache is reported by the machine, with a clearer error than GPT-2's.
    result = core(
        inputs_embeds=x,
        attention_mask=mask.long(),
        position_ids=positions.clamp(max=config.n_positions - 1),
        use_cache=True,
        **fill_cache(type(core).forward, past),
    )
    # The pass has appended its keys and values to past, so the last n positions are the new ones.
    pairs = [torch.stack([layer.keys, layer.values], 2) for layer in past.layers]
    added = torch.stack(pairs, 1)[..., -n:, :]  # [batch, layer, head, 2, pos, d_head]
    # [batch, pos, layer, 2, head, d_head], whose last four axes are one row of the cache
    by_position = added.permute(0, 4, 1, 3, 2, 5)
    return result.last_hidden_state, by_position.flatten(2)


@checked
def read_coconut(path: str | Path, *, n_head: int | None = None) -> nn.Module:
    """Read a GPT-2 from a checkpoint of Coconut, and return it as a model of ``transformers``.

    The checkpoint is a state dict; its keys begin with ``base_causallm.``.

    Sizes are read from the weights. Only tensors are unpickled.

    Args:
        path: the file.
        n_head: number of heads; when None, one per 64 dimensions, as in GPT-2.
    """
    path = Path(file_path(path, "the checkpoint"))
    tensors = load_tensors(path, path)
    # PyTorch's parallel training puts "module." in front of names.
    stored = {name.removeprefix("module."): value for name, value in tensors.items()}
    # GPT-2's own weights, and the table of embeddings once more under a second name.
    known_prefixes = (_COCONUT_PREFIX, _COCONUT_EMBEDDING)
    unknown = [name for name in stored if not name.startswith(known_prefixes)]
    listed = ", ".join(list(unknown or stored)[:3])
    require(
        f"{_COCONUT_PREFIX}transformer.wte.weight" in stored and not unknown,
        f"{str(path)!r} is no checkpoint of Coconut: its keys begin with {_COCONUT_PREFIX!r} and hold "
        f"transformer.wte.weight, got {listed}",
    )
    weights = {
        name.removeprefix(_COCONUT_PREFIX): value
        for name, value in stored.items()
        if name.startswith(_COCONUT_PREFIX)
    }
    model = _build_gpt2(path, weights, n_head)
    # stored adds the second copy of the table of embeddings, whose name has no prefix. Its other names
    # have the prefix, are none of GPT-2's, and so are ignored.
    _require_ties(path, model, {**weights, **stored})
    return model


@checked
def read_codi(path: str | Path, *, scale: float, n_head: int | None = None) -> nn.Module:
    """Read the GPT-2 and the projection ``prj`` from a checkpoint of CODI.

    The keys of its state dict begin with ``codi.`` and ``prj.``.

    Args:
        path: a file with a state dict.
        scale: factor ``lora_alpha / r``, with which the low-rank updates (LoRA) are added to the
            weights; the file does not store it.
        n_head: number of heads; when None, one per 64 dimensions, as in GPT-2.

    Returns:
        The GPT-2, with ``prj`` as a submodule: linear, GELU, linear, and a LayerNorm if the file
        has one.
    """
    path = Path(file_path(path, "the checkpoint"))
    stored = load_tensors(path, path)
    weights: _Tree = {}
    for name, value in stored.items():
        # LoRA wraps the model and its layers, and adds these parts to the names of weights.
        name = name.removeprefix("codi.").removeprefix("base_model.model.")
        weights[name.replace(".base_layer", "").replace(".default", "")] = value
    has_parts = {"transformer.wte.weight", "prj.1.weight", "prj.3.weight"} <= weights.keys()
    require(
        has_parts,
        f"{str(path)!r} is no checkpoint of CODI: it holds transformer.wte.weight, prj.1.weight and prj.3.weight, got "
        f"{', '.join(list(stored)[:3])}",
    )
    for name in [name for name in weights if name.endswith(".lora_A.weight")]:
        layer = name.removesuffix(".lora_A.weight")
        update = weights.pop(f"{layer}.lora_B.weight") @ weights.pop(name)  # B A, [out, in]
        # GPT-2 stores the weights of its layers as [in, out], but those of lm_head as [out, in].
        in_layers_form = update if layer == "lm_head" else update.T
        weights[f"{layer}.weight"] = weights[f"{layer}.weight"] + scale * in_layers_form
    projection = {
        name.removeprefix("prj."): weights.pop(name)
        for name in list(weights)
        if name.startswith("prj.")
    }
    model = _build_gpt2(path, weights, n_head)
    _require_ties(path, model, weights)
    # Names are indices in CODI's sequence of layers, where layer 0 is a dropout without weights.
    inner, width = projection["1.weight"].shape
    prj = nn.Sequential(nn.Dropout(), nn.Linear(width, inner), nn.GELU(), nn.Linear(inner, width))
    if "ln.weight" in projection:
        prj.add_module("ln", nn.LayerNorm(width))
    with convert_read_errors(path):
        prj.load_state_dict(projection)
    model.prj = prj.eval()
    return model


def _build_gpt2(path: Path, weights: _Tree, n_head: int | None) -> nn.Module:
    """Build a GPT-2 with the sizes that its weights have, and load the weights.

    Args:
        path: path of the file, for error messages.
        weights: weights by GPT-2's names.
        n_head: number of heads; one per 64 dimensions when None.
    """
    from transformers import GPT2Config, GPT2LMHeadModel

    with convert_read_errors(path):
        n_words, width = weights["transformer.wte.weight"].shape
        n_positions = len(weights["transformer.wpe.weight"])
    heads = max(1, width // 64) if n_head is None else integer("n_head", n_head, 1)
    require(
        width % heads == 0, f"n_head {heads} does not divide the {width} dimensions; give n_head="
    )
    # Names such as "transformer.h.3.attn.c_attn.weight", where 3 is the layer.
    layers = {name.split(".")[2] for name in weights if name.startswith("transformer.h.")}
    config = GPT2Config(
        vocab_size=n_words,
        n_positions=n_positions,
        n_embd=width,
        n_layer=len(layers),
        n_head=heads,
    )
    model = GPT2LMHeadModel(config)
    masks = (".attn.bias", ".masked_bias")  # stored by older versions of the library
    parameters = {name: value for name, value in weights.items() if not name.endswith(masks)}
    with convert_read_errors(path):
        model.load_state_dict(parameters)
    return cast(nn.Module, model.eval())


def _require_ties(path: Path, model: Any, stored: _Tree) -> None:
    """Raise InputError if a checkpoint has different values for weights that GPT-2 ties, such as
    embedding and unembedding.

    Args:
        path: path of the checkpoint, for the error message.
        model: the GPT-2 with the loaded weights.
        stored: all tensors of the checkpoint by name.
    """
    # Weights that GPT-2 ties are one tensor with several names. A file may have a value for each
    # name, of which loading keeps one, so the others must equal it. A checkpoint of Coconut has one
    # more name for the table of embeddings.
    loaded = {**model.state_dict(), f"{_COCONUT_EMBEDDING}weight": model.transformer.wte.weight}
    differing = [
        name
        for name, value in stored.items()
        if name in loaded and not torch.equal(loaded[name], value)
    ]
    require(
        not differing,
        f"{str(path)!r} has other numbers in {', '.join(differing)} than where GPT-2 has the same weights",
    )
