"""A GPT-2 that thinks in embeddings: its last hidden state is the next input, as in Coconut (Hao et al., 2024).

Two things pass from round to round, each a channel: the *thought* and the growing *cache* of keys and values. A probe
of the thought cannot tell which of them is used; mediation can. The points ``thought`` and ``cache`` are where each
enters the round, so that the share of an effect that passes through either is one call::

    mediation.mediate(machine, base, source, "latent", ["thought", "cache"])

A round of the model is the thought and then what the round says; the prediction is read on the way, and the thought at
the end. Here of a GPT-2 without weights that has the task's own vocabulary::

    >>> import interp
    >>> from transformers import GPT2Config, GPT2LMHeadModel
    >>> from interp.tasks import experts
    >>> layout = experts.TASK.layout(n_experts=4)
    >>> config = GPT2Config(vocab_size=len(layout.vocabulary), n_positions=40, n_embd=16, n_layer=2, n_head=2)
    >>> model, ids = GPT2LMHeadModel(config), layout.token_ids
    >>> machine = thoughts(model, layout, n_rounds=3, outcomes=[ids["q0"], ids["q1"]], name="coconut")
    >>> [(channel.name, channel.shape) for channel in machine.channels]
    [('thought', (16,)), ('cache', (39, 64)), ('cache_length', (1,))]
    >>> interp.check_machine(machine)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from interp.checks import checked, file_path, integer
from interp.errors import require
from interp.files import reading
from interp.machine import Channel
from interp.machines.said import Embedded, core_of, redraw
from interp.model.adapted import AdaptedMachine, Point, adapt, layout_for
from interp.model.layout import RoundLayout
from interp.task import Task

THOUGHT, CACHE = "thought", "cache"
_PREFIX, _ALIAS = "base_causallm.", "embedding."


class Thinker(nn.Module):
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
    uses: Sequence[str] = (THOUGHT, CACHE),
    **options: Any,
) -> AdaptedMachine:
    """A machine of a GPT-2 of ``transformers``, or of a module that holds one.

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
    wrong = [name for name in uses if name not in (THOUGHT, CACHE)]
    require(not wrong and len(uses) > 0, f"uses says which of {THOUGHT!r}, {CACHE!r} a round reads, got {list(uses)}")
    require((read is None) != (outcomes is None), "give either read=, or outcomes=, the tokens of the outcomes")
    config = core_of(model, core, "wte" if embedded is None else "wpe", "GPT2Model of transformers").config
    layout = layout_for(task, options.pop("sizes", None))
    rounds = embedded or Embedded.tokens(layout, f"{core}.wte".lstrip("."), ids)
    rows = integer("n_rounds", n_rounds, 1) * rounds.n_pos
    require(
        rows <= config.n_positions,
        f"{n_rounds} rounds of {rounds.n_pos} take {rows} positions, and the model has {config.n_positions}: no more "
        f"than {config.n_positions // rounds.n_pos} rounds fit",
    )

    def step(thinker: Thinker, carried: dict[str, Tensor], fed: Any) -> tuple[Tensor, dict[str, Tensor]]:
        model: Any = thinker.model
        thought, cache, length = (
            thinker.thought(carried[THOUGHT]),
            thinker.cache(carried[CACHE]),
            carried["cache_length"],
        )
        x = rounds.embed(model, fed)
        if THOUGHT in uses:  # the first round has none yet: what stands there is the embedding of its token
            begun = (torch.arange(x.shape[1], device=x.device) == rounds.slot) & (length > 0).unsqueeze(1)
            x = torch.where(begun.unsqueeze(2), thought.unsqueeze(1), x)
        cache = cache[:, : int(length.max())]  # no row beyond is written
        written = torch.arange(cache.shape[1], device=x.device) < length.unsqueeze(1)
        seen = written if CACHE in uses else torch.zeros_like(written)
        hidden, new = _run(model.get_submodule(core), x, cache, seen, length)
        if read is not None:
            scores = read(model, hidden[:, rounds.at], fed)
        else:
            scores = model.lm_head(hidden[:, rounds.at])[:, list(outcomes or ())]
        return scores, {THOUGHT: hidden[:, -1], CACHE: new}

    cached = Channel(CACHE, (rows, 2 * config.n_layer * config.n_embd), grows=rounds.n_pos)
    points = {THOUGHT: Point(THOUGHT), CACHE: Point(CACHE, axes="pos", labels=cached.labels)}
    options = {"reset": redraw, **options, "points": {**points, **(options.get("points") or {})}}
    channels = [Channel(THOUGHT, (config.n_embd,)), cached]
    return adapt(Thinker(model.eval()), layout, step=step, channels=channels, **options)


def _run(core: Any, x: Tensor, cache: Tensor, seen: Tensor, length: Tensor) -> tuple[Tensor, Tensor]:
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
    position = (length.unsqueeze(1) + torch.arange(n, device=x.device)).clamp(max=core.config.n_positions - 1)
    done = core(
        inputs_embeds=x,
        attention_mask=torch.cat([seen, seen.new_ones(len(x), n)], 1).long(),
        position_ids=position,
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
    weights = {name.removeprefix(_PREFIX): value for name, value in plain.items() if name.startswith(_PREFIX)}
    unknown = [name for name in plain if not name.startswith((_PREFIX, _ALIAS))]
    require(
        "transformer.wte.weight" in weights and not unknown,
        f"{str(path)!r} is no checkpoint of Coconut: its keys begin with {_PREFIX!r} and hold transformer.wte.weight, "
        f"got {', '.join(list(unknown or plain)[:3])}",
    )
    n_words, width = weights["transformer.wte.weight"].shape
    heads = max(1, width // 64) if n_head is None else integer("n_head", n_head, 1)
    require(width % heads == 0, f"n_head {heads} does not divide the {width} dimensions; give n_head=")
    layers = {name.split(".")[2] for name in weights if name.startswith("transformer.h.")}
    sizes = {"n_positions": len(weights["transformer.wpe.weight"]), "n_embd": width, "n_layer": len(layers)}
    model = GPT2LMHeadModel(GPT2Config(vocab_size=n_words, n_head=heads, **sizes))
    with reading(path):
        model.load_state_dict({k: v for k, v in weights.items() if not k.endswith((".attn.bias", ".masked_bias"))})
    loaded: nn.Module = model.eval()
    return loaded
