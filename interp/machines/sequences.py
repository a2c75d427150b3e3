"""Machines of others that read a round as a sequence: Mamba, HRM-Text, and a GPT-2 that thinks in embeddings.

:class:`Embedded` says how a round becomes the input embeddings of such a model, and where its prediction is read.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from interp.core.machine import Channel
from interp.core.task import Task
from interp.machines.recurrent import with_points
from interp.model.adapted import AdaptedMachine, adapt, layout_for
from interp.model.drawing import reset_parameters
from interp.model.layout import EncodedRounds, RoundLayout
from interp.model.taps import Point
from interp.support.checks import checked, checked_fields, file_path, integer, plainly
from interp.support.errors import require, theirs
from interp.support.files import reading

_PREFIX, _ALIAS = "base_causallm.", "embedding."


@dataclass(frozen=True)
@checked_fields
class Embedded:
    """How a round becomes the input embeddings of a model that reads sequences.

    Attributes:
        embed: ``(model, fed)`` to ``[batch, n_pos, width]``.
        at: the position where the prediction is read; later ones may hold the truth.
        slot: the position that what is carried takes, or is added to; its embedding stands there in the first round.
    """

    embed: Callable[[Any, Any], Tensor]
    n_pos: int
    at: int
    slot: int

    @classmethod
    def tokens(cls, layout: RoundLayout, table: str, ids: Sequence[int] | None = None) -> Embedded:
        """The round's own tokens by the embedding called ``table`` of a model; ``ids`` are the model's own, in order.

        >>> from interp.tasks import experts
        >>> round = Embedded.tokens(experts.TASK.layout(n_experts=4), "transformer.wte")
        >>> round.n_pos, round.at, round.slot
        (13, 10, 1)
        """
        own = (
            torch.arange(len(layout.vocabulary))
            if ids is None
            else torch.tensor(_ids("ids", ids, layout.vocabulary))
        )

        def embed(model: Any, fed: EncodedRounds) -> Tensor:
            return cast(Tensor, model.get_submodule(table)(own.to(fed.tokens.device)[fed.tokens]))

        return cls(embed, layout.n_positions, layout.predict_position, layout.latent_positions[0])


def _ids(what: str, ids: Sequence[int], stands_for: Sequence[str]) -> list[int]:
    """The model's own tokens for as many words of a layout, all different."""
    fits = len(set(ids)) == len(ids) == len(stands_for) and min(ids) >= 0
    require(
        fits,
        f"{what} are the model's tokens, all different, for each of {', '.join(stands_for)}, got {list(ids)}",
    )
    return list(ids)


def _core_of(module: nn.Module, core: str, has: str, what: str) -> Any:
    """The submodule called ``core``, which must be ``what``: it has an attribute ``has``."""
    parts = dict(module.named_modules())
    known = ", ".join(list(filter(None, parts))[:20])
    named = hasattr(parts.get(core), has)
    require(
        named,
        f"core {core!r} must name a {what}, got {type(parts.get(core)).__name__}; the module has {known}",
    )
    return parts[core]


def _redraw(module: nn.Module) -> None:
    """Draw all weights anew: those of models of ``transformers`` by their own rule, those of other parts by theirs."""
    reset_parameters(module)
    for part in module.modules():
        if begin := getattr(part, "_init_weights", None):
            part.apply(begin)


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
    """A machine of a module with a ``MambaModel`` in it.

    A round may be several inputs; the prediction is read after one of them, from the last layer's normed output. The
    equations, and one that is made: docs/method/kinds-of-machine.md.

    Its points, for every layer and every input of a round: ``selected_1``, ``selected_2``, ... are what dt, B and C
    are read from, ``gated_1``, ... what the layer's state gives, before the projection out.

    Args:
        task, options: as ``interp.adapt`` takes them.
        embedded: how a round becomes inputs; its ``slot`` is not used.
        read: ``(module, y, fed)`` to scores from the core's normed output ``[batch, width]`` at the prediction.
        core: name of the ``MambaModel`` within ``module``; "" for itself.
    """
    model = _core_of(module, core, "norm_f", "MambaModel of transformers")
    layers = model.layers
    known, kind = (
        all(hasattr(one.mixer, name) for one in layers for name in ("A_log", "x_proj")),
        type(model).__name__,
    )
    require(
        known, f"{core!r} is a {kind}, whose layers are no Mamba mixers; adapt it with interp.adapt"
    )
    config = model.config
    inner, kept = config.intermediate_size, config.conv_kernel - 1

    def run(
        model: Any, inputs: Tensor, carried: dict[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The normed outputs ``[batch, input, width]``, and what is carried then."""
        states, convs = (
            carried[name].unflatten(2, (inner, -1)).unbind(1) for name in ("state", "conv")
        )
        shown = []
        for x in inputs.unbind(1):
            after = []
            for layer, state, conv in zip(model.layers, states, convs, strict=True):
                y, *held = _mixed(layer.mixer, layer.norm(x), state, conv)
                x = x + y
                after.append(held)
            states, convs = zip(*after, strict=True)
            shown.append(model.norm_f(x))
        left = {
            name: torch.stack(part, 1).flatten(2)
            for name, part in (("state", states), ("conv", convs))
        }
        return torch.stack(shown, 1), left

    def step(
        module: Any, carried: dict[str, Tensor], fed: EncodedRounds
    ) -> tuple[Tensor, dict[str, Tensor]]:
        shown, held = run(module.get_submodule(core), embedded.embed(module, fed), carried)
        return read(module, shown[:, embedded.at], fed), held

    points = {}
    for i in range(len(layers)):
        mixer = f"{core}.layers.{i}.mixer".lstrip(".")
        points[f"selected_{i + 1}"] = Point(f"{mixer}.x_proj", of="input", times=embedded.n_pos)
        points[f"gated_{i + 1}"] = Point(f"{mixer}.out_proj", of="input", times=embedded.n_pos)
    options = {"reset": _redraw, **with_points(options, points)}
    sizes = {"state": inner * config.state_size, "conv": inner * kept}
    channels = [Channel(name, (len(layers), size)) for name, size in sizes.items()]
    empty = {channel.name: torch.zeros(2, *channel.shape) for channel in channels}
    _hold_against(
        model, lambda own, x: run(own, x, {name: value.to(x) for name, value in empty.items()})[0]
    )
    return adapt(module, task, step=step, channels=channels, **options)


@plainly()
def _hold_against(
    model: Any, ours: Callable[[Any, Tensor], Tensor], width: str = "hidden_size"
) -> None:
    """Refuse a model whose own forward pass, on a few inputs, gives other numbers than the adapter's form of it."""
    copied = copy.deepcopy(model).eval()
    weight = next(copied.parameters())
    noise = torch.randn(
        2, 5, getattr(model.config, width), generator=torch.Generator().manual_seed(0)
    ).to(weight)
    log = logging.getLogger("transformers")
    level = log.level
    log.setLevel(logging.ERROR)  # not of kernels that only make it quicker
    try:
        with (
            theirs(f"this adapter's form of {type(model).__name__} (others: interp.adapt)"),
            torch.no_grad(),
        ):
            mine, own = (
                ours(copied, noise),
                copied(inputs_embeds=noise, use_cache=False).last_hidden_state,
            )
    finally:
        log.setLevel(level)
    gap = float((mine - own).abs().max() / own.abs().max().clamp_min(1e-30))
    require(
        gap <= 100 * torch.finfo(weight.dtype).eps,
        f"the forward pass of {type(model).__name__} gives other numbers than this adapter's form of it, by up to "
        f"{gap:.2g} of the largest: it is another model than the adapter knows; adapt it with interp.adapt",
    )


def _mixed(mixer: Any, x: Tensor, state: Tensor, conv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """One input ``[batch, width]`` through a Mamba mixer: its output, and what it holds then.

    Args:
        state: ``[batch, inner, state]``.
        conv: ``[batch, inner, kernel - 1]``, the last inputs of the convolution.
    """
    heard, gate = mixer.in_proj(x).chunk(2, -1)
    window = torch.cat([conv, heard.unsqueeze(2)], 2)
    total = (window * mixer.conv1d.weight.squeeze(1)).sum(2)
    selected = mixer.act(total if mixer.conv1d.bias is None else total + mixer.conv1d.bias)
    time, B, C = mixer.x_proj(selected).split(
        [mixer.time_step_rank, mixer.ssm_state_size, mixer.ssm_state_size], -1
    )
    dt = functional.softplus(mixer.dt_proj(time)).unsqueeze(2)
    state = (dt * (-mixer.A_log.exp())).exp() * state + dt * B.unsqueeze(1) * selected.unsqueeze(2)
    y = (state * C.unsqueeze(1)).sum(2) + mixer.D * selected
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
    """A machine of an ``HrmTextForCausalLM``; ``fast`` and ``slow`` are what the stacks give in each of their runs.

    Both states are carried: the one at the end of a round is added where the next one begins. With nothing carried, a
    round is the model's own forward pass, bit for bit. One is made in docs/method/kinds-of-machine.md.

    Args:
        task, options: as ``interp.adapt`` takes them.
        outcomes: the model's tokens that stand for the outcomes, in the layout's order.
        ids: the model's token for each token of the layout's vocabulary; their own numbers when None.
    """
    inner: Any = getattr(model, "model", None)
    config: Any = getattr(inner, "config", None)
    require(
        hasattr(inner, "L_module"),
        f"expected an HrmTextForCausalLM of transformers, got {type(model).__name__}",
    )
    layout = layout_for(task, options.pop("sizes", None))
    rounds, read = (
        Embedded.tokens(layout, "model.embed_tokens", ids),
        _ids("outcomes", outcomes, layout.outcomes),
    )

    def step(
        model: Any, carried: dict[str, Tensor], fed: EncodedRounds
    ) -> tuple[Tensor, dict[str, Tensor]]:
        z_H, z_L = _refined(model.model, rounds.embed(model, fed), carried["z_H"], carried["z_L"])
        return model.lm_head(z_H[:, rounds.at])[:, read], {"z_H": z_H[:, -1], "z_L": z_L[:, -1]}

    n_slow = config.H_cycles
    points = {
        "fast": Point(
            "model.L_module", times=n_slow * config.L_cycles, axes="pos", labels=layout.labels
        ),
        "slow": Point("model.H_module", times=n_slow, axes="pos", labels=layout.labels),
    }
    options = {"reset": _redraw, **with_points(options, points)}
    channels = [Channel(name, (config.hidden_size,)) for name in ("z_H", "z_L")]
    nothing = torch.zeros(2, config.hidden_size)
    _hold_against(inner, lambda own, x: _refined(own, x, nothing.to(x), nothing.to(x))[0])
    return adapt(model, layout, step=step, channels=channels, **options)


def _refined(model: Any, x: Tensor, above: Tensor, below: Tensor) -> tuple[Tensor, Tensor]:
    """The two states ``[batch, pos, width]`` after all cycles, from what is carried, ``[batch, width]`` each."""
    from transformers.masking_utils import create_causal_mask

    x = x * model.embedding_scale
    where = torch.arange(x.shape[1], device=x.device).unsqueeze(0)
    mask = create_causal_mask(
        config=model.config,
        inputs_embeds=x,
        attention_mask=None,
        past_key_values=None,
        position_ids=where,
    )
    given = {
        "attention_mask": mask,
        "position_embeddings": model.rotary_emb(x, where),
        "position_ids": where,
    }
    z_H = x + above.unsqueeze(1)
    z_L = model.z_L_init.to(x).expand_as(x) + below.unsqueeze(1)
    for _ in range(model.config.H_cycles):
        for _ in range(model.config.L_cycles):
            z_L = model.L_module(z_L + z_H, **given)
        z_H = model.H_module(z_H + z_L, **given)
    return z_H, z_L


class _Thinker(nn.Module):
    """A GPT-2 with places where the thought and the cache that enter a round can be seen."""

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
    **options: Any,
) -> AdaptedMachine:
    """A machine of a GPT-2 of ``transformers``, or of a module that holds one.

    Two things pass from round to round, each a channel, and a point where it enters the round: the *thought* and the
    growing *cache* of keys and values. Which of them is used, and one that is made: docs/method/kinds-of-machine.md.

    Args:
        task, options: as ``interp.adapt`` takes them.
        n_rounds: how many rounds the cache has room for; the model needs as many positions times those of a round.
        outcomes: the model's tokens that stand for the outcomes, in the layout's order.
        read: instead, ``(model, hidden, fed)`` to scores from the hidden state ``[batch, n_embd]`` at the prediction.
        ids: the model's token for each token of the layout's vocabulary; their own numbers when None.
        embedded: how a round becomes embeddings; when None, its tokens, with the thought in the place of the latent.
        core: name of the ``GPT2Model`` within ``model``; "" for itself.
        uses: what a round reads of "thought" and "cache": leave one out for a model that does without.
    """
    wrong = [name for name in uses if name not in ("thought", "cache")]
    require(
        not wrong and len(uses) > 0,
        f"uses says which of 'thought', 'cache' a round reads, got {list(uses)}",
    )
    require(
        (read is None) != (outcomes is None),
        "give either read=, or outcomes=, the tokens of the outcomes",
    )
    layout = layout_for(task, options.pop("sizes", None))
    rounds = embedded or Embedded.tokens(layout, f"{core}.wte".lstrip("."), ids)
    integer("slot of embedded", rounds.slot, 0, rounds.n_pos - 1)
    inner = _core_of(model, core, "wte" if embedded is None else "wpe", "GPT2Model of transformers")
    config = inner.config
    told = [] if outcomes is None else _ids("outcomes", outcomes, layout.outcomes)
    rows = integer("n_rounds", n_rounds, 1) * rounds.n_pos
    require(
        rows <= config.n_positions,
        f"{n_rounds} rounds of {rounds.n_pos} take {rows} positions, and the model has {config.n_positions}: no more "
        f"than {config.n_positions // rounds.n_pos} rounds fit",
    )

    def step(
        thinker: _Thinker, carried: dict[str, Tensor], fed: EncodedRounds
    ) -> tuple[Tensor, dict[str, Tensor]]:
        model: Any = thinker.model
        thought, length = thinker.thought(carried["thought"]), carried["cache_length"]
        cache = thinker.cache(carried["cache"])
        x = rounds.embed(model, fed)
        if (
            "thought" in uses
        ):  # the first round has none yet: what stands there is the embedding of its token
            begun = (torch.arange(x.shape[1], device=x.device) == rounds.slot) & (
                length > 0
            ).unsqueeze(1)
            x = torch.where(begun.unsqueeze(2), thought.unsqueeze(1), x)
        cache = cache[:, : int(length.max())]  # no row beyond is written
        written = torch.arange(cache.shape[1], device=x.device) < length.unsqueeze(1)
        seen = written if "cache" in uses else torch.zeros_like(written)
        hidden, new = _run(model.get_submodule(core), x, cache, seen, length)
        if read is not None:
            scores = read(model, hidden[:, rounds.at], fed)
        else:
            scores = model.lm_head(hidden[:, rounds.at])[:, told]
        return scores, {"thought": hidden[:, -1], "cache": new}

    cached = Channel("cache", (rows, 2 * config.n_layer * config.n_embd), grows=rounds.n_pos)
    points = {
        "thought": Point("thought"),
        "cache": Point("cache", axes="pos", labels=cached.labels),
    }
    options = {"reset": _redraw, **with_points(options, points)}
    channels = [Channel("thought", (config.n_embd,)), cached]

    def halves(own: Any, x: Tensor) -> Tensor:
        """A sequence of inputs in two parts, the second of which reads the first from the cache."""
        none, length = (
            x.new_zeros(len(x), 0, cached.shape[1]),
            torch.zeros(len(x), dtype=torch.long),
        )
        begun, cache = _run(own, x[:, :2], none, torch.ones(len(x), 0, dtype=torch.bool), length)
        rest, _ = _run(own, x[:, 2:], cache, torch.ones(len(x), 2, dtype=torch.bool), length + 2)
        return torch.cat([begun, rest], 1)

    if config.n_positions >= 5:
        _hold_against(inner, halves, "n_embd")
    return adapt(_Thinker(model), layout, step=step, channels=channels, **options)


def _run(
    core: Any, x: Tensor, cache: Tensor, seen: Tensor, length: Tensor
) -> tuple[Tensor, Tensor]:
    """Last hidden states ``[batch, pos, width]`` and what they add to the cache, ``[batch, pos, width of a row]``.

    A row of the cache holds the keys and values of every layer at one position; ``seen`` says which rows are read.
    """
    from transformers import DynamicCache

    n_layers, n_heads, n = core.config.n_layer, core.config.n_head, x.shape[1]
    held = DynamicCache()
    for layer, part in enumerate(cache.unflatten(2, (n_layers, 2, n_heads, -1)).unbind(2)):
        keys, values = part.transpose(1, 3).unbind(2)  # [batch, head, row, d_head]
        held.update(keys, values, layer)
    # Beyond the last position the cache has no room either, which the machine then says.
    done = core(
        inputs_embeds=x,
        attention_mask=torch.cat([seen, seen.new_ones(len(x), n)], 1).long(),
        position_ids=(length.unsqueeze(1) + torch.arange(n, device=x.device)).clamp(
            max=core.config.n_positions - 1
        ),
        past_key_values=held,
        use_cache=True,
    )
    pairs = [torch.stack([layer.keys, layer.values], 2) for layer in done.past_key_values.layers]
    new = torch.stack(pairs, 1)[..., -n:, :]  # [batch, layer, head, 2, pos, d_head]
    return done.last_hidden_state, new.permute(0, 4, 1, 3, 2, 5).flatten(2)


@checked
def read_coconut(path: str | Path, *, n_head: int | None = None) -> nn.Module:
    """The GPT-2 in a checkpoint of Coconut, a state dict whose keys begin with ``base_causallm.``.

    Sizes are read off the weights; only the number of heads cannot be, which is GPT-2's own, one for 64 dimensions,
    when None. Nothing but tensors is unpickled.
    """
    from transformers import GPT2Config, GPT2LMHeadModel

    path = Path(file_path(path, "the checkpoint"))
    with reading(path):
        held = torch.load(path, map_location="cpu", weights_only=True)
    plain = {name.removeprefix("module."): value for name, value in held.items()}
    weights = {
        name.removeprefix(_PREFIX): value
        for name, value in plain.items()
        if name.startswith(_PREFIX)
    }
    unknown = [name for name in plain if not name.startswith((_PREFIX, _ALIAS))]
    require(
        "transformer.wte.weight" in weights and not unknown,
        f"{str(path)!r} is no checkpoint of Coconut: its keys begin with {_PREFIX!r} and hold transformer.wte.weight, "
        f"got {', '.join(list(unknown or plain)[:3])}",
    )
    n_words, width = weights["transformer.wte.weight"].shape
    heads = max(1, width // 64) if n_head is None else integer("n_head", n_head, 1)
    require(
        width % heads == 0, f"n_head {heads} does not divide the {width} dimensions; give n_head="
    )
    layers = {name.split(".")[2] for name in weights if name.startswith("transformer.h.")}
    sizes = {
        "n_positions": len(weights["transformer.wpe.weight"]),
        "n_embd": width,
        "n_layer": len(layers),
    }
    model = GPT2LMHeadModel(GPT2Config(vocab_size=n_words, n_head=heads, **sizes))
    with reading(path):
        model.load_state_dict(
            {k: v for k, v in weights.items() if not k.endswith((".attn.bias", ".masked_bias"))}
        )
    tied = {**model.state_dict(), f"{_ALIAS}weight": model.transformer.wte.weight}
    other = [
        k for k, v in {**weights, **plain}.items() if k in tied and not torch.equal(tied[k], v)
    ]
    require(
        not other,
        f"{str(path)!r} has other numbers in {', '.join(other)} than where GPT-2 has the same weights",
    )
    return cast(nn.Module, model.eval())
