"""HookedLatentTransformer: one class for handwired and learned latent-context models.

A decoder-only causal transformer over the tokens of one round (paper, Algorithm 1), in which some positions hold
continuous latents instead of tokens. It reads the round, predicts at one position and writes an update at the last;
:mod:`interp.model.rollout` feeds the update back into the next round's latents.

It has HookedTransformer's hook names, weight names and shapes, so that TransformerLens' tools work on it (through
:class:`interp.model.bound.BoundRounds` where they expect token input). It has no LayerNorm parameters, an attention
rule per head, and latents and scalar payloads as further inputs. A hook name that does not exist, or would not fire, is
an error. Where no hook is attached and no gradient asked for, blocks run without their modules
(:class:`~interp.model.components.PlainBlock`): the same numbers in half the time.
"""

from __future__ import annotations

import itertools
import json
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformer_lens import TransformerLensKeyValueCacheEntry as KeyValues
from transformer_lens.hook_points import HookPoint

from interp.core.machine import Channel, Component, Machine, Stepped
from interp.model.components import (
    Block,
    Embedding,
    PlainBlock,
    Projection,
    RuntimeConfig,
    normalization,
    unobserved,
)
from interp.model.config import LatentTransformerConfig
from interp.model.drawing import draw_anew
from interp.model.hooked import AS_REAL
from interp.model.layout import EncodedRounds, RoundLayout
from interp.model.lens import LensSurface
from interp.model.locks import exclusive
from interp.support.checks import MOST_GB, checked, fit, shown
from interp.support.errors import InputError, require
from interp.support.files import read_rows
from interp.support.session import once


class _RoundOutput(NamedTuple):
    """What a model gives for a batch of rounds.

    Attributes:
        prediction: the distribution over outcomes, Float[batch, outcome], or what the layout makes of it (expert
            advice: P(y = 1), Float[batch]).
        update: Float[batch, d_model], what is written into (or added to) a latent slot.
        logits: Float[batch, pos, d_vocab_out], the unembedding at every position (probabilities, not logits, at the
            prediction position of a model whose ``config.output`` is "probability").
        latents: Float[batch, latent, d_model], what the round read, after any hook on ``hook_latents``: what the
            update is written into, so that an intervention on a latent is one on the state.
    """

    prediction: Tensor
    update: Tensor
    logits: Tensor
    latents: Tensor


COMPONENTS: dict[str, Component] = {
    row["key"]: Component(**row)  # type: ignore[arg-type]
    for row in read_rows(Path(__file__).with_name("components.csv"))
}
"""Every component of a transformer, in the order in which a round computes them."""
_OF_AN_MLP = {"resid_mid", "mlp_out"}


class HookedLatentTransformer(LensSurface):
    """A transformer over one round, with latents; see the module's text."""

    state_map: Tensor
    position_ids: Tensor

    def __init__(
        self,
        config: LatentTransformerConfig,
        state_map: Tensor | None = None,
        max_gb: float = MOST_GB,
    ) -> None:
        super().__init__()
        config.require_room(max_gb)
        self.config = config
        self.runtime = RuntimeConfig(
            **{
                of.name: getattr(config, of.name)
                for of in fields(RuntimeConfig)
                if hasattr(config, of.name)
            },
            attn_only=config.d_mlp == 0,
            device=torch.device("cpu"),
            dtype=torch.get_default_dtype(),
        )
        self.embed = Embedding("W_E", config.d_vocab, config)
        self.value_embed = Embedding("W_val", config.d_vocab, config)
        self.pos_embed = Embedding("W_pos", config.n_ctx, config)
        self.latents = Embedding("init", config.layout.max_layout.n_latents, config)
        layers = range(config.n_layers)
        self.blocks: Sequence[Block] = nn.ModuleList(Block(config, self.runtime, i) for i in layers)  # type: ignore
        self.ln_final = normalization(config, self.runtime.eps)
        self.unembed = Projection("U", config.d_vocab_out, config)
        self.write_map = (
            Projection("write", config.d_model, config) if config.write_map else nn.Identity()
        )
        self.register_buffer(
            "state_map", torch.zeros(0, config.d_model) if state_map is None else state_map
        )
        self.layout_of_length = {
            layout.n_positions: layout for layout in (*config.layout.family, config.layout)
        }
        # Row n: the codes of the positions of a round of n positions.
        ids = torch.arange(config.n_ctx).repeat(config.n_ctx + 1, 1)
        if config.position_codes == "label":
            for layout in config.layout.family:
                codes = config.layout.max_layout.positions(layout.labels)
                ids[len(codes), : len(codes)] = torch.tensor(codes)
        self.register_buffer("position_ids", ids, persistent=False)
        self.hook_latents, self.hook_embed, self.hook_pos_embed = (
            HookPoint(),
            HookPoint(),
            HookPoint(),
        )
        self.hook_update = HookPoint()
        self.latent_kept = 1.0 if config.latent_update == "add" else 0.0
        """Share of the old latent that an update is added to: 1 adds, 0 replaces. Training may anneal it."""
        self.setup()

    @exclusive
    def forward(
        self,
        tokens: Int[Tensor, "batch pos"],
        latents: Float[Tensor, "batch latent d_model"],
        values: Float[Tensor, "batch pos"] | None = None,
    ) -> _RoundOutput:
        """Run a batch of whole rounds: tokens (any id at latent slots), latents for positions 1, 2, ..., payloads."""
        _check_round(self, tokens, latents, values)
        latents = self.hook_latents(latents)
        return self.read_out(self.run_from(self.embedded(tokens, latents, values)), latents)

    @exclusive
    def predict(
        self,
        tokens: Int[Tensor, "batch pos"],
        latents: Float[Tensor, "batch latent d_model"],
        values: Float[Tensor, "batch pos"] | None = None,
    ) -> Tensor:
        """Only the prediction of :meth:`forward`, for less work: the suffix of the rounds is not looked at."""
        _check_round(self, tokens, latents, values)
        n_positions = tokens.shape[1]
        embedded = self.embedded(tokens, self.hook_latents(latents), values)
        prefix = embedded[:, : self.layout_of_length[n_positions].predict_position + 1]
        return self.read_prediction(
            self.unembed(self.ln_final(self.run_from(prefix, n_read=1))[:, 0]), n_positions
        )

    # The parts of a round, which callers that know some of it run by themselves.

    @exclusive
    def embedded(
        self,
        tokens: Int[Tensor, "batch pos"],
        latents: Float[Tensor, "batch latent d_model"],
        values: Float[Tensor, "batch pos"] | None = None,
    ) -> Float[Tensor, "batch pos d_model"]:
        """The residual stream before the first block."""
        n_positions = tokens.shape[1]
        embedded = nn.functional.embedding(tokens, self.W_E)
        if values is not None:
            payload = values.to(embedded.dtype).unsqueeze(-1)
            embedded.add_(nn.functional.embedding(tokens, self.value_embed.table).mul_(payload))
        first = min(self.layout_of_length[n_positions].latent_positions, default=0)
        embedded = torch.cat(
            [embedded[:, :first], latents, embedded[:, first + latents.shape[1] :]], dim=1
        )
        positions = self.W_pos[self.position_ids[n_positions, :n_positions]].expand(
            len(tokens), -1, -1
        )
        return self.hook_embed(embedded) + self.hook_pos_embed(positions)

    @exclusive
    def run_from(
        self,
        resid: Float[Tensor, "batch pos d_model"],
        layer: int = 0,
        stop: int | None = None,
        *,
        past: Iterable[KeyValues] | None = None,
        n_read: int | None = None,
        blocks: Sequence[Block] | Sequence[PlainBlock] | None = None,
    ) -> Float[Tensor, "batch read d_model"]:
        """The residual stream after running blocks ``layer`` to ``stop - 1`` (to the last when None).

        Args:
            resid: the residual stream before block ``layer``, at consecutive positions.
            past: for each block that runs, the keys and values of all positions before those of ``resid``, whose own
                are appended. None where ``resid`` starts at the first position.
            n_read: how many of the last positions are read at the end, and so computed in the last block; all when
                None.
            blocks: all blocks as :func:`_plain_blocks` gives them, for callers that run many rounds and ask for it
                once.
        """
        all_blocks: Iterable[Block | PlainBlock] = (
            blocks or _plain_blocks(self, past is None) or self.blocks
        )
        running = list(all_blocks)[layer:stop]
        several = itertools.repeat(None, len(running)) if past is None else past
        for left, block, known in zip(reversed(range(len(running))), running, several, strict=True):
            if n_read is not None and not left:
                known = known or self.nothing_past(len(resid), block)
                block.pass_by(resid[:, :-n_read], known)
                resid = resid[:, -n_read:]
            resid = block(resid, known)
        return resid

    def nothing_past(self, n_rows: int, block: Block | PlainBlock | None = None) -> KeyValues:
        """What a block, one with hooks when None, knows before the first position: no keys and no values."""
        n_heads, kept = self.config.n_heads, (self.config.d_head,) * 2
        if isinstance(block, PlainBlock):
            n_heads, kept = len(block.rules), block.kept
        return KeyValues(*(self.W_E.new_empty(n_rows, 0, n_heads, width) for width in kept))

    @exclusive
    def read_out(
        self,
        resid: Float[Tensor, "batch pos d_model"],
        latents: Float[Tensor, "batch latent d_model"],
    ) -> _RoundOutput:
        """Prediction, update and logits from the residual stream after the last block."""
        normalized, n_positions = self.ln_final(resid), resid.shape[1]
        layout = self.layout_of_length[n_positions]
        update = self.update(normalized[:, layout.update_position], n_positions)
        logits = self.unembed(normalized)
        prediction = self.read_prediction(logits[:, layout.predict_position], n_positions)
        return _RoundOutput(prediction, update, logits, latents)

    @exclusive
    def update(
        self, read: Float[Tensor, "batch d_model"], n_positions: int
    ) -> Float[Tensor, "batch d_model"]:
        """What is written to a latent, from the normalised residual stream where a round of ``n_positions`` says."""
        update = self.write_map(read)
        if self.config.strip_position:
            position = self.layout_of_length[n_positions].update_position
            update = update - self.W_pos[self.position_ids[n_positions, position]]
        return self.hook_update(update)

    def read_prediction(
        self, outcome: Float[Tensor, "batch d_vocab_out"], n_positions: int
    ) -> Tensor:
        """Outcome logits (or probabilities) to the prediction of a round of ``n_positions``, as its layout has it."""
        layout = self.layout_of_length[n_positions]
        outcome = outcome[..., : layout.n_outputs]
        if self.config.output == "logits":
            outcome = outcome.softmax(-1)
        elif self.config.clipped:
            outcome = outcome.clamp(0.0, 1.0)
        return layout.prediction(outcome)

    # A machine: what is carried, round by round.

    @exclusive
    def step(
        self, carried: Tensor, fed: EncodedRounds, before: tuple[int, Tensor] | None = None
    ) -> Stepped:
        """One round: the prediction, and the latents that the next round reads.

        ``before`` is a layer and the residual stream before it, from which the round is run.
        """
        if before is None:
            out = self(fed.tokens, carried, fed.values)
        else:
            out = self.read_out(self.run_from(before[1], before[0]), carried)
        return Stepped(out.prediction, self.write(out.latents, out.update, fed.slots))

    def stepper(self) -> Callable[[Tensor, EncodedRounds], Stepped]:
        """:meth:`step` for many rounds without hooks: the blocks are laid out once.

        Rounds are equal to rounding, but for those of a handwired machine without choices, which are equal bit for bit:
        only what is read is computed in the last block. A round that holds the model's choice runs twice: with another
        choice it goes on from there, as what stands before is known.
        """
        with self.lock:
            blocks, is_quiet = _plain_blocks(self), self.is_quiet()
        if blocks is None:
            return self.step
        last: tuple[Tensor, EncodedRounds, list[KeyValues], Tensor] | None = None

        def step(carried: Tensor, fed: EncodedRounds) -> Stepped:
            nonlocal last
            n = fed.tokens.shape[1]
            layout, start, past, prediction = self.layout_of_length[n], 0, None, None
            n_read = layout.n_read if is_quiet and not self.is_handwired else None
            if is_quiet and layout.choice_position is not None:
                past, n_read = (
                    [self.nothing_past(len(carried), block) for block in blocks],
                    layout.n_read,
                )
                if last is not None and carried is last[0] and fed.values is last[1].values:
                    start, n_read = (
                        min(layout.choice_position, layout.update_position),
                        layout.n_after,
                    )
                    past = [
                        KeyValues(one.past_keys[:, :start], one.past_values[:, :start])
                        for one in last[2]
                    ]
                    prediction = last[3]
            resid = self.embedded(fed.tokens, carried, fed.values)[:, start:]
            read = self.ln_final(self.run_from(resid, past=past, n_read=n_read, blocks=blocks))
            if prediction is None:
                prediction = self.read_prediction(
                    self.unembed(read[:, layout.predict_position - n]), n
                )
            last = None if past is None else (carried, fed, past, prediction)
            update = self.update(read[:, layout.update_position - n], n)
            return Stepped(prediction, self.write(carried, update, fed.slots))

        def step_alone(carried: Tensor, fed: EncodedRounds) -> Stepped:
            with self.lock:
                return step(carried, fed)

        return step_alone

    @checked
    def initial(
        self, n_episodes: int, layout: RoundLayout | None = None
    ) -> Float[Tensor, "batch latent d_model"]:
        """The latents before the first round of the layout, the model's own when None."""
        n_latents, most = (layout or self.layout).n_latents, len(self.latents.table)
        require(
            0 <= n_episodes < 2**53,
            f"n_episodes must be 0 or more, and countable, got {n_episodes}",
        )
        require(n_latents <= most, f"n_latents must be in [0, {most}], got {n_latents}")
        return self.latents.table[:n_latents].expand(n_episodes, -1, -1)

    def prepare(self, fed: EncodedRounds) -> EncodedRounds:
        """The rounds on the model's device, payloads in its dtype, after their range is checked."""
        if self.config.value_range is not None:
            (low, high), layout = self.config.value_range, self.layout
            lowest, highest = float(fed.values.min()), float(fed.values.max())
            require(
                min(low, 0.0) <= lowest and highest <= max(high, 0.0),
                f"{layout.payload} in [{lowest:g}, {highest:g}] are outside [{low:g}, {high:g}], which this model is "
                f"proven for; load it with {layout.payload}=({min(low, lowest):g}, {max(high, highest):g}) "
                f"{layout.payload_hint}",
            )
        dtypes = {name: weight.dtype for name, weight in self.named_parameters()}
        if len(of := sorted(map(str, set(dtypes.values())))) > 1:
            other = next(name for name, dtype in dtypes.items() if dtype != self.dtype)
            raise InputError(
                f"the weights of {self.name!r} are of {', '.join(of)} ({other}); {AS_REAL}"
            )
        return super().prepare(fed)

    @exclusive
    def is_quiet(self) -> bool:
        """Whether nobody can tell how the blocks run, so that a run may be shared."""
        return unobserved(self, self.cfg, served=())

    @property
    def channels(self) -> tuple[Channel, ...]:  # type: ignore[override]
        """What is carried: the latents of the largest rounds."""
        n_latents, d_model = self.layout.max_layout.n_latents, self.config.d_model
        return (Channel("latent", (n_latents, d_model) if n_latents > 1 else (d_model,)),)

    @property
    def points(self) -> Mapping[str, Component]:  # type: ignore[override]
        """Its components: those of every transformer (:data:`COMPONENTS`) with its numbers of layers and heads."""
        config = self.config
        return {
            key: replace(
                kind,
                n_layers=config.n_layers * kind.has_layer,
                n_heads=config.n_heads * kind.has_head,
            )
            for key, kind in COMPONENTS.items()
            if config.d_mlp or key not in _OF_AN_MLP
        }

    # Latents and the algorithm's state.

    def write(
        self,
        latents: Float[Tensor, "batch latent d_model"],
        update: Float[Tensor, "batch d_model"],
        slots: Int[Tensor, " batch"],
    ) -> Float[Tensor, "batch latent d_model"]:
        """Return the next round's latents: in its slot, ``latent_kept`` times the old latent plus the update."""
        in_slot = nn.functional.one_hot(slots, latents.shape[1]).unsqueeze(-1).bool()
        written = update.unsqueeze(1)
        if self.latent_kept:
            written = self.latent_kept * latents + written
        return torch.where(in_slot, written, latents)

    @checked
    def read_state(self, latents: Float[Tensor, "*batch latent d_model"]) -> Tensor:
        """The algorithm's state that a handwired model's latents hold, exactly, as the layout arranges it.

        Expert advice: log-weights ``[..., n_experts]``; Q-learning: the Q-table ``[..., S, A]``.
        """
        if not self.is_handwired:
            raise InputError(
                f"{self.config.name!r} is a learned model: it has no exact state readout; decode with a probe"
            )
        d_model = self.config.d_model
        fits = latents.shape[-1] == d_model and latents.shape[-2] <= len(self.latents.table)
        require(fits, f"latents must be [..., latent, {d_model}], got shape {tuple(latents.shape)}")
        return self.layout.state(latents.to(self.state_map) @ self.state_map.T)

    # Identity.

    @property
    def is_handwired(self) -> bool:  # type: ignore[override]
        """Whether the model was compiled from a circuit, and so reads its state out exactly."""
        return len(self.state_map) > 0

    # Its largest rounds, what users load it by, and how to make it again: the circuit and its arguments, or the preset.
    layout = property(attrgetter("config.layout"))
    name = property(attrgetter("config.name"))
    origin = property(attrgetter("config.origin"))

    def said(self) -> str:
        """The configuration as JSON: what its digest holds beside the weights."""
        return json.dumps(self.config.to_dict(), sort_keys=True)

    def precision(self) -> dict[str, Any]:
        """The dtype of the weights and the largest relative error of rounding to it: in every rollout.

        A handwired model in a dtype coarser than float32 warns: no bound of its exactness holds there.
        """
        precision = super().precision()
        if self.is_handwired and precision["rounding"] > torch.finfo(torch.float32).eps / 2:
            warnings.warn(
                f"{self.config.name!r} is exact in float64 and verified in float32; {precision['dtype']} rounds every "
                f"number by up to {precision['rounding']:.1g} of itself, so its state drifts from the algorithm's "
                "round by round and no bound of interp verify holds: use model.double() or model.float()",
                stacklevel=2,
            )
        return precision

    @checked
    def untrained(self, seed: int = 0) -> HookedLatentTransformer:
        """A copy with fresh random weights (:func:`untrained`), and so without an exact readout of a state.

        The weights are those that TransformerLens' ``tools.analysis.interchange.reinitialized`` draws (a test compares
        them), without that import, which takes three seconds.
        """
        fresh = draw_anew(self, seed)
        fresh.config = replace(self.config, name=f"{self.name}-untrained")
        fresh.state_map = torch.zeros(0, self.config.d_model, device=self.device)
        return fresh


def _plain_blocks(model: HookedLatentTransformer, narrow: bool = True) -> list[PlainBlock] | None:
    """The model's blocks without hooks, for its weights as they are now.

    None where only hooked blocks do: a hook is attached, a gradient asked for, a module changed, or the class derived.
    """
    if type(model) is not HookedLatentTransformer or not unobserved(model, model.cfg):
        return None
    return [PlainBlock(block, model.is_handwired, narrow) for block in model.blocks]


_AnyMachine = TypeVar("_AnyMachine", bound=Machine)


@checked
def untrained(model: _AnyMachine, seed: int = 0) -> _AnyMachine:
    """The control of every claim about what training put into a machine: a copy with fresh random weights.

    It is in evaluation mode, on the machine's device. An effect found in it comes from the architecture or the method,
    not from what was learned. A seed gives the same weights on every device, and no global generator moves. A session
    draws each copy once, so its runs are shared, and nobody may train it.

    >>> import interp
    >>> untrained(interp.load("wma-handwired", n_experts=4)).name
    'wma-handwired-untrained'
    """
    fit("model", model, Machine)
    return once(
        ("untrained", seed, model.weights_version()), model, make=lambda: model.untrained(seed)
    )


def _check_round(model: HookedLatentTransformer, tokens: Any, latents: Any, values: Any) -> None:
    """Refuse what is no batch of rounds of ``model``; PyTorch would refuse it, too, but less clearly."""
    lengths = model.layout_of_length
    ok = (
        isinstance(tokens, Tensor)
        and tokens.ndim == 2
        and tokens.dtype in (torch.int64, torch.int32)
    )
    require(
        ok and tokens.shape[1] in lengths,
        f"tokens must be whole numbers [batch, pos] with {' or '.join(map(str, lengths))} positions, got "
        f"{shown(tokens)}; model.layout.encode(episodes) makes them",
    )
    d_model, n_latents = model.config.d_model, lengths[tokens.shape[1]].n_latents
    wanted = (len(tokens), n_latents, d_model)
    ok = (
        isinstance(latents, Tensor)
        and latents.is_floating_point()
        and tuple(latents.shape) == wanted
    )
    require(
        ok,
        f"latents must be a float tensor [batch, latent, d_model] = {list(wanted)}, got {shown(latents)}",
    )
    ok = values is None or (isinstance(values, Tensor) and values.shape == tokens.shape)
    require(
        ok,
        f"values must be a tensor [batch, pos] = {list(tokens.shape)} or None, got {shown(values)}",
    )
    if (
        tokens.device.type == "cpu" and tokens.numel()
    ):  # elsewhere, looking would wait for the device
        low, high = (int(bound) for bound in tokens.aminmax())
        n_ids = model.config.d_vocab
        require(
            low >= 0 and high < n_ids,
            f"tokens must be ids from 0 to {n_ids - 1}, got {low} to {high}",
        )
