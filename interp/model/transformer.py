"""HookedLatentTransformer: one class for handwired and learned latent-context models.

It is a decoder-only causal transformer over the tokens of one round (paper, Algorithm 1), in which
continuous latents take the place of some tokens. It reads the round, predicts at one position, and
writes an update at the last one. :mod:`interp.model.rollout` writes this update into the latents of
the next round.

Names of hooks and weights, and their shapes, are those of HookedTransformer, so that
TransformerLens' tools work with it (through :class:`interp.model.bound.BoundRounds` if they pass
tokens only). It differs by a LayerNorm without learned parameters, an attention rule per head, and
latents and scalar payloads as further inputs. A hook on a point that does not exist or never fires
is an error. If no hook is attached and no gradient is needed, blocks run without modules
(:class:`~interp.model.plain.PlainBlock`): the results are the same, in half the time.
"""

from __future__ import annotations

import itertools
import json
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from operator import attrgetter
from typing import Any, NamedTuple, TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformer_lens import TransformerLensKeyValueCacheEntry as KeyValues
from transformer_lens.hook_points import HookPoint

from interp.core.machine import Channel, Component, Machine, Stepped
from interp.model.components import Block, Embedding, Projection, RuntimeConfig, make_normalization
from interp.model.config import LatentTransformerConfig
from interp.model.drawing import draw_anew
from interp.model.hooked import CAST_ADVICE
from interp.model.layout import EncodedRounds, RoundLayout
from interp.model.lens import LensSurface
from interp.model.locks import exclusive
from interp.model.plain import PlainBlock, can_run_plainly
from interp.support.checks import MOST_GB, check_type, checked, format_value
from interp.support.errors import InputError, require
from interp.support.session import compute_once


class _RoundOutput(NamedTuple):
    """Output of the model for a batch of rounds.

    Attributes:
        prediction: probabilities of outcomes, Float[batch, outcome], or the form that the layout
            gives them (for expert advice P(y = 1), Float[batch]).
        update: Float[batch, d_model], the vector that is written into (or added to) a latent.
        logits: Float[batch, pos, d_vocab_out], the unembedding at every position; probabilities
            instead of logits if ``config.output`` is "probability".
        latents: Float[batch, latent, d_model], the latents that the round read, after hooks on
            ``hook_latents``. The update is written into these, so an intervention on a latent
            persists.
    """

    prediction: Tensor
    update: Tensor
    logits: Tensor
    latents: Tensor


# The key, the hook point, the axes between those of the batch and of the vector, and the name.
_ACTIVATION_KINDS = (
    Component("latent", "hook_latents", "latent", "latent"),
    Component("embed", "hook_embed", "pos", "embedding"),
    Component("resid_pre", "blocks.{layer}.hook_resid_pre", "pos", "residual before layer"),
    Component("q", "blocks.{layer}.attn.hook_q", "pos head", "query"),
    Component("k", "blocks.{layer}.attn.hook_k", "pos head", "key"),
    Component("v", "blocks.{layer}.attn.hook_v", "pos head", "value"),
    Component("scores", "blocks.{layer}.attn.hook_attn_scores", "head pos", "attention scores"),
    Component("pattern", "blocks.{layer}.attn.hook_pattern", "head pos", "attention pattern"),
    Component("z", "blocks.{layer}.attn.hook_z", "pos head", "head output"),
    Component("result", "blocks.{layer}.attn.hook_result", "pos head", "head's write"),
    Component("attn_out", "blocks.{layer}.hook_attn_out", "pos", "attention output"),
    Component("resid_mid", "blocks.{layer}.hook_resid_mid", "pos", "residual after attention"),
    Component("mlp_out", "blocks.{layer}.hook_mlp_out", "pos", "MLP output"),
    Component("resid_post", "blocks.{layer}.hook_resid_post", "pos", "residual after layer"),
)
COMPONENTS = {kind.key: kind for kind in _ACTIVATION_KINDS}
"""All components of a transformer by key, in the order in which a round computes them."""
_MLP_COMPONENTS = {"resid_mid", "mlp_out"}


class HookedLatentTransformer(LensSurface):
    """A causal transformer over the tokens of one round, in which continuous latents, carried from
    round to round, take the place of some tokens.

    Args:
        config: configuration of the model.
        state_map: for a handwired model, the matrix ``[k, d_model]`` that maps a latent to the k
            numbers of the algorithm's state that it stores; None for a learned model.
        max_gb: limit of its memory, in units of 1e9 bytes.
    """

    state_map: Tensor
    position_ids: Tensor

    def __init__(
        self,
        config: LatentTransformerConfig,
        state_map: Tensor | None = None,
        max_gb: float = MOST_GB,
    ) -> None:
        """Make the embeddings, the blocks, the projections and the hook points. Parts that
        TransformerLens' models have, too, are named as there.
        """
        super().__init__()
        config.require_room(max_gb)
        self.config = config
        # Names of fields that both configurations have, such as d_model.
        shared = [field.name for field in fields(RuntimeConfig) if hasattr(config, field.name)]
        self.runtime = RuntimeConfig(
            **{name: getattr(config, name) for name in shared},
            attn_only=config.d_mlp == 0,
            device=torch.device("cpu"),
            dtype=torch.get_default_dtype(),
        )
        largest = config.layout.max_layout
        eps = self.runtime.eps
        self.embed = Embedding("W_E", n_rows=config.d_vocab, config=config)
        self.value_embed = Embedding("W_val", n_rows=config.d_vocab, config=config)
        self.pos_embed = Embedding("W_pos", n_rows=config.n_ctx, config=config)
        self.latents = Embedding("init", n_rows=largest.n_latents, config=config)
        layers = range(config.n_layers)
        self.blocks: Any = nn.ModuleList(Block(config, self.runtime, layer) for layer in layers)
        self.ln_final = make_normalization(config, eps)
        self.unembed = Projection("U", d_out=config.d_vocab_out, config=config)
        self.write_map: nn.Module = nn.Identity()
        if config.write_map:
            self.write_map = Projection("write", d_out=config.d_model, config=config)
        if state_map is None:  # a learned model, in which no numbers of a state are known
            state_map = torch.zeros(0, config.d_model)
        self.register_buffer("state_map", state_map)
        self.layout_of_length = config.layout.layout_of_length
        self.register_buffer("position_ids", _number_positions(config), persistent=False)
        self.hook_latents = HookPoint()
        self.hook_embed = HookPoint()
        self.hook_pos_embed = HookPoint()
        self.hook_update = HookPoint()
        self.latent_kept = config.latent_kept
        """Factor of the old latent when an update is written: 1 adds, 0 replaces; may be annealed."""
        self.setup()

    @exclusive
    def forward(
        self,
        tokens: Int[Tensor, "batch pos"],
        latents: Float[Tensor, "batch latent d_model"],
        values: Float[Tensor, "batch pos"] | None = None,
    ) -> _RoundOutput:
        """Run a batch of whole rounds.

        Args:
            tokens: token ids; those at latent positions are ignored.
            latents: vectors for the latent positions 1, 2, ...
            values: numbers that tokens carry, such as rewards; None if no token carries one.

        Returns:
            A named tuple of tensors: ``prediction``, usually probabilities ``[batch, outcome]``;
            ``update``, the vector to write into a latent, ``[batch, d_model]``; ``logits``, the
            unembedding at every position, ``[batch, pos, outcome]`` (probabilities if the model's
            ``output`` is "probability"); and ``latents``, which the round read,
            ``[batch, latent, d_model]``.
        """
        _check_round(self, tokens, latents, values)
        latents = self.hook_latents(latents)
        resid = self.run_from(self.embed_round(tokens, latents, values))
        return self.read_out(resid, latents)

    @exclusive
    def predict(
        self,
        tokens: Int[Tensor, "batch pos"],
        latents: Float[Tensor, "batch latent d_model"],
        values: Float[Tensor, "batch pos"] | None = None,
    ) -> Tensor:
        """Run a batch of rounds only up to the prediction, and return the prediction in the
        layout's form, usually probabilities ``[batch, outcome]``.

        Args:
            tokens: token ids; those at latent positions are ignored.
            latents: vectors for the latent positions 1, 2, ...
            values: numbers that tokens carry, such as rewards; None if no token carries one.
        """
        _check_round(self, tokens, latents, values)
        n_positions = tokens.shape[1]
        n_prefix = self.layout_of_length[n_positions].predict_position + 1
        # Attention is causal, so the prediction does not depend on positions after its own.
        prefix = self.embed_round(tokens, self.hook_latents(latents), values)[:, :n_prefix]
        last_position = self.run_from(prefix, n_read=1)  # [batch, 1, d_model]
        at_prediction = self.ln_final(last_position)[:, 0]
        return self.read_prediction(self.unembed(at_prediction), n_positions)

    # The parts of a round, for callers that run only some of them.

    @exclusive
    def embed_round(
        self,
        tokens: Int[Tensor, "batch pos"],
        latents: Float[Tensor, "batch latent d_model"],
        values: Float[Tensor, "batch pos"] | None = None,
    ) -> Float[Tensor, "batch pos d_model"]:
        """Return the residual stream before the first block: embeddings of tokens, payloads and
        positions, with the latents in their positions.

        Args:
            tokens: token ids; those at latent positions are ignored.
            latents: vectors for the latent positions 1, 2, ...
            values: numbers that tokens carry, such as rewards; None if no token carries one.
        """
        n_positions = tokens.shape[1]
        embedded = nn.functional.embedding(tokens, self.W_E)
        if values is not None:
            # A payload (a number that a token carries) is added along a direction of the token's.
            payload = values.to(embedded.dtype).unsqueeze(-1)
            directions = nn.functional.embedding(tokens, self.value_embed.table)
            embedded.add_(directions.mul_(payload))
        # Latents are at consecutive positions, first to stop - 1.
        first = min(self.layout_of_length[n_positions].latent_positions, default=0)
        stop = first + latents.shape[1]
        embedded = torch.cat([embedded[:, :first], latents, embedded[:, stop:]], dim=1)
        pos_embed = self.W_pos[self.position_ids[n_positions, :n_positions]]  # [pos, d_model]
        pos_embed = self.hook_pos_embed(pos_embed.expand(len(tokens), -1, -1))
        return self.hook_embed(embedded) + pos_embed

    @exclusive
    def run_from(
        self,
        resid: Float[Tensor, "batch pos d_model"],
        layer: int = 0,
        stop: int | None = None,
        *,
        past: Iterable[KeyValues] | None = None,
        n_read: int | None = None,
        blocks: Sequence[PlainBlock] | None = None,
    ) -> Float[Tensor, "batch read d_model"]:
        """Run blocks ``layer`` to ``stop - 1`` and return the residual stream after them.

        Args:
            resid: the residual stream before block ``layer``, at consecutive positions.
            layer: index of the first block to run.
            stop: index of the first block not to run; None to run all.
            past: for each block that runs, keys and values of all positions before the first one in
                ``resid``; new ones are appended. None if ``resid`` has all positions.
            n_read: number of last positions at which the result is needed; the last block computes
                only these. None for all positions.
            blocks: all blocks of the model in their quicker form (:class:`PlainBlock`), for callers
                that run many rounds. If None, the method makes this form itself. It runs the
                ordinary blocks instead if a gradient is recorded, a module was replaced, or a hook
                is attached that the quicker form would not call.
        """
        if blocks is None:
            # Narrow blocks leave out heads that write only zeros; a past has the keys of all heads.
            blocks = plain_blocks(self, narrow=past is None)
        running: Sequence[Any] = (blocks or self.blocks)[layer:stop]
        if past is None:
            past = itertools.repeat(None, len(running))
        for index, (block, past_of_block) in enumerate(zip(running, past, strict=True)):
            is_last = index == len(running) - 1
            if is_last and n_read is not None:
                # The last block computes only keys and values at positions that are not read.
                if past_of_block is None:
                    past_of_block = block.make_empty_past(len(resid))
                block.append_keys_values(resid[:, :-n_read], past_of_block)
                resid = resid[:, -n_read:]
            resid = block(resid, past_of_block)
        return resid

    @exclusive
    def read_out(
        self,
        resid: Float[Tensor, "batch pos d_model"],
        latents: Float[Tensor, "batch latent d_model"],
    ) -> _RoundOutput:
        """Compute prediction, update and logits from the residual stream after the last block, as
        :meth:`forward` returns them.

        Args:
            resid: the residual stream at all positions.
            latents: the latents that the round read.
        """
        n_positions = resid.shape[1]
        layout = self.layout_of_length[n_positions]
        normalized = self.ln_final(resid)
        update = self.update(normalized[:, layout.update_position], n_positions)
        logits = self.unembed(normalized)
        prediction = self.read_prediction(logits[:, layout.predict_position], n_positions)
        return _RoundOutput(prediction, update=update, logits=logits, latents=latents)

    @exclusive
    def update(
        self, read: Float[Tensor, "batch d_model"], n_positions: int
    ) -> Float[Tensor, "batch d_model"]:
        """Return the vector that a round writes into a latent.

        Args:
            read: the normalised residual stream at the round's update position.
            n_positions: number of positions of the round. It determines the position embedding that
                is subtracted if the configuration has ``strip_position``.
        """
        update = self.write_map(read)
        if self.config.strip_position:
            position = self.layout_of_length[n_positions].update_position
            update = update - self.W_pos[self.position_ids[n_positions, position]]
        return self.hook_update(update)

    def read_prediction(
        self, outcome: Float[Tensor, "batch d_vocab_out"], n_positions: int
    ) -> Tensor:
        """Convert the model's output to the prediction of a round, in the form that the round's
        layout defines: usually probabilities ``[batch, outcome]``.

        Args:
            outcome: the model's output at the prediction position. It has a column for each outcome
                of the largest round that the model can read; columns that this round does not have
                are ignored.
            n_positions: number of positions of the round, which selects its layout.
        """
        layout = self.layout_of_length[n_positions]
        outcome = outcome[..., : layout.n_outputs]
        if self.config.output == "logits":
            outcome = outcome.softmax(-1)
        elif self.config.clipped:
            outcome = outcome.clamp(0.0, 1.0)
        return layout.prediction(outcome)

    # The interface of a machine: the carried state, round by round.

    @exclusive
    def step(
        self, carried: Tensor, fed: EncodedRounds, resume_from: tuple[int, Tensor] | None = None
    ) -> Stepped:
        """Run one round of a batch.

        Args:
            carried: the latents that the round reads, ``[batch, latent, d_model]``.
            fed: the encoded inputs of the round.
            resume_from: a pair (index of a layer, residual stream before this layer), to run only
                this layer and the later ones; None to run the whole round.

        Returns:
            The prediction, and the latents that the next round reads.
        """
        if resume_from is None:
            output = self(fed.tokens, carried, fed.values)
        else:
            layer, resid = resume_from
            output = self.read_out(self.run_from(resid, layer), carried)
        return Stepped(output.prediction, self.write(output.latents, output.update, fed.slots))

    def stepper(self) -> Callable[[Tensor, EncodedRounds], Stepped]:
        """Return a function like :meth:`step` that is quicker, for running many rounds without
        hooks. It is prepared for the current weights, so make a new one after they change.

        In a learned model, and in rounds that contain a choice, the last block is computed only at
        positions that are read. Results then equal those of :meth:`step` up to rounding, otherwise
        bit for bit. If the same round is run again with another choice, such as
        another action, only the positions from the choice on are computed again.
        """
        with self.lock:  # while another thread runs this model, hooks may be attached to it
            blocks = plain_blocks(self)
            is_quiet = self.is_quiet()
        if blocks is None:  # something prevents the quicker form, such as a hook in a block
            return self.step
        return _Stepper(self, blocks, is_quiet)

    @checked
    def initial(
        self, n_episodes: int, layout: RoundLayout | None = None
    ) -> Float[Tensor, "batch latent d_model"]:
        """Return the latents that the first round reads.

        Args:
            n_episodes: size of the batch.
            layout: layout of the rounds; the model's layout when None.
        """
        n_latents = (layout or self.layout).n_latents
        capacity = len(self.latents.table)
        require(
            0 <= n_episodes < 2**53,  # above some size, expand() below overflows
            f"n_episodes must be 0 or more, and countable, got {n_episodes}",
        )
        require(n_latents <= capacity, f"n_latents must be in [0, {capacity}], got {n_latents}")
        return self.latents.table[:n_latents].expand(n_episodes, -1, -1)

    def prepare(self, fed: EncodedRounds) -> EncodedRounds:
        """Return encoded rounds on the model's device and in its dtype.

        Refuse payloads (numbers that tokens carry, such as rewards) outside of the model's range;
        also refuse parameters of several dtypes.
        """
        if self.config.value_range is not None:
            self._require_payloads_in(*self.config.value_range, fed.values)
        own_dtype = self.dtype
        for name, weight in self.named_parameters():
            if weight.dtype != own_dtype:
                dtypes = {str(parameter.dtype) for parameter in self.parameters()}
                listed = ", ".join(sorted(dtypes))
                raise InputError(
                    f"the weights of {self.name!r} are of {listed} ({name}); {CAST_ADVICE}"
                )
        return super().prepare(fed)

    def _require_payloads_in(self, low: float, high: float, values: Tensor) -> None:
        """Refuse payloads outside of the range for which a handwired model is proven correct.

        Args:
            low, high: the range. 0 is always accepted, since it means that there is no payload.
            values: the payloads.
        """
        layout = self.layout
        lowest = float(values.min())
        highest = float(values.max())
        are_inside = lowest >= min(low, 0.0) and highest <= max(high, 0.0)
        remedy = f"{layout.payload}=({min(low, lowest):g}, {max(high, highest):g})"
        require(
            are_inside,
            f"{layout.payload} in [{lowest:g}, {highest:g}] are outside [{low:g}, {high:g}], which this model is "
            f"proven for; load it with {remedy} {layout.payload_hint}",
        )

    @exclusive
    def is_quiet(self) -> bool:
        """Return True if no hook is attached to the model, no gradient is recorded, no module was
        replaced, and no flag switches on further hook points. Results of an earlier run may then be
        used instead of running again.
        """
        return can_run_plainly(self, self.cfg, allowed_hooks=())

    @property
    def channels(self) -> tuple[Channel, ...]:  # type: ignore[override]
        """The named parts of what is carried from round to round. A transformer has one, called
        "latent", with the shape ``(latent, d_model)``, or ``(d_model,)`` for a single latent.

        The number of latents is that of the largest round that the model can read (for Q-learning,
        the one with the most actions). A smaller round may carry fewer.
        """
        n_latents, d_model = self.layout.max_layout.n_latents, self.config.d_model
        return (Channel("latent", (n_latents, d_model) if n_latents > 1 else (d_model,)),)

    @property
    def points(self) -> Mapping[str, Component]:  # type: ignore[override]
        """The kinds of activations of this model: key, such as "resid_pre" -> the component, with
        the model's numbers of layers and heads.
        """
        points = {}
        for kind in _ACTIVATION_KINDS:
            if self.config.d_mlp or kind.key not in _MLP_COMPONENTS:
                n_layers = self.config.n_layers if kind.has_layer else 0
                n_heads = self.config.n_heads if kind.has_head else 0
                points[kind.key] = replace(kind, n_layers=n_layers, n_heads=n_heads)
        return points

    # Latents and the algorithm's state.

    def write(
        self,
        latents: Float[Tensor, "batch latent d_model"],
        update: Float[Tensor, "batch d_model"],
        slots: Int[Tensor, " batch"],
    ) -> Float[Tensor, "batch latent d_model"]:
        """Return the latents that the next round reads: the latents of this round, with the round's
        update written into one of them.

        The new value of this latent is ``latent_kept * old + update``. The factor ``latent_kept``
        is 1 if updates are added to latents, and 0 if updates replace latents.

        Args:
            latents: the latents that the round read.
            update: the update.
            slots: index of the latent to write, ``[batch]``.
        """
        is_in_slot = nn.functional.one_hot(slots, latents.shape[1])  # [batch, latent], 1 or 0
        written = update.unsqueeze(1)  # into every latent; where() takes it in one slot only
        if self.latent_kept:
            written = self.latent_kept * latents + written
        return torch.where(is_in_slot.unsqueeze(-1).bool(), written, latents)

    @checked
    def read_state(self, latents: Float[Tensor, "*batch latent d_model"]) -> Tensor:
        """Return the algorithm's state, decoded exactly from a handwired model's latents.

        For expert advice it is the log-weights ``[..., n_experts]``, for Q-learning the Q-table
        ``[..., S, A]``.
        """
        if not self.is_handwired:
            raise InputError(
                f"{self.config.name!r} is a learned model: it has no exact state readout; decode with a probe"
            )
        d_model = self.config.d_model
        n_latents = latents.shape[-2]
        fits = latents.shape[-1] == d_model and n_latents <= len(self.latents.table)
        require(fits, f"latents must be [..., latent, {d_model}], got shape {tuple(latents.shape)}")
        readout = latents.to(self.state_map) @ self.state_map.T
        return self.layout.state(readout)

    # Identity.

    @property
    def is_handwired(self) -> bool:  # type: ignore[override]
        """Whether the model was compiled from a circuit, so that its state can be decoded
        exactly.
        """
        return len(self.state_map) > 0

    # The layout of its largest rounds, the name by which users load it, and how to build it again.
    layout = property(attrgetter("config.layout"))
    name = property(attrgetter("config.name"))
    origin = property(attrgetter("config.origin"))

    def describe_for_digest(self) -> str:
        """Return the text that :meth:`digest` includes besides the weights: the configuration as
        JSON. If training has changed the factor ``latent_kept`` (by which a latent's old value is
        multiplied when it is written), the factor is included, too.
        """
        text = json.dumps(self.config.to_dict(), sort_keys=True)
        if self.latent_kept != self.config.latent_kept:
            text += f", latent_kept {self.latent_kept}"
        return text

    def precision(self) -> dict[str, Any]:
        """Return a dictionary: "dtype" -> the weights' dtype, such as "float32", and "rounding" ->
        the largest relative error of rounding a number to this dtype.

        If a handwired model is in a dtype coarser than float32, in which its error bounds do not
        hold, a warning is issued as well.
        """
        precision = super().precision()
        rounding_of_float32 = torch.finfo(torch.float32).eps / 2
        if self.is_handwired and precision["rounding"] > rounding_of_float32:
            warnings.warn(
                f"{self.config.name!r} is exact in float64 and verified in float32; {precision['dtype']} rounds every "
                f"number by up to {precision['rounding']:.1g} of itself, so its state drifts from the algorithm's "
                "round by round and no bound of interp verify holds: use model.double() or model.float()",
                stacklevel=2,
            )
        return precision

    @checked
    def untrained(self, seed: int = 0) -> HookedLatentTransformer:
        """Return a copy with fresh random weights, drawn with ``seed``. Even if the model is
        handwired, the algorithm's state cannot be decoded exactly from the copy.

        The weights equal those of TransformerLens' ``tools.analysis.interchange.reinitialized`` (a
        test compares them). That function is not called, since its import takes three seconds.
        """
        fresh = draw_anew(self, seed)
        fresh.config = replace(self.config, name=f"{self.name}-untrained")
        fresh.state_map = torch.zeros(0, self.config.d_model, device=self.device)
        return fresh


def _number_positions(config: LatentTransformerConfig) -> Tensor:
    """Return the ids of position embeddings, ``[n, pos]``: row n has the ids for a round of n
    positions, followed by unused entries. ``config`` determines whether an id is the position's
    index or that of its label.
    """
    ids = torch.arange(config.n_ctx).repeat(config.n_ctx + 1, 1)
    if config.position_codes == "label":
        for layout in config.layout.family:
            n = layout.n_positions
            # The id of a label is its position in the largest round, which has all labels.
            ids[n, :n] = torch.tensor(config.layout.max_layout.positions(layout.labels))
    return ids


@dataclass
class _RanRound:
    """A round that has run, stored because it may run again with another choice of the model, such
    as another action.

    Attributes:
        carried: the latents that it read.
        fed: inputs of the round.
        past: keys and values of each block, at all positions.
        prediction: the round's prediction, which does not depend on the choice.
    """

    carried: Tensor
    fed: EncodedRounds
    past: list[KeyValues]
    prediction: Tensor

    def is_repeated_by(self, carried: Tensor, fed: EncodedRounds, start: int) -> bool:
        """Return whether a call of the model's step runs this round again, only with another
        choice.

        Args:
            carried: the latents that the call passes.
            fed: the inputs that the call passes.
            start: the first position that another choice can affect.
        """
        # By identity, which is quick: for the same round again a caller passes the same tensors.
        if carried is not self.carried or fed.values is not self.fed.values:
            return False
        return torch.equal(fed.tokens[:, :start], self.fed.tokens[:, :start])


class _Stepper:
    """Runs rounds of a transformer without hooks, with blocks that are prepared once.

    Args:
        model: the transformer.
        blocks: the model's blocks in their quicker form.
        is_quiet: True if no hook is attached at all, so that only the positions that are read need
            to be computed.
    """

    def __init__(
        self, model: HookedLatentTransformer, blocks: list[PlainBlock], is_quiet: bool
    ) -> None:
        self.model = model
        self.blocks = blocks
        self.is_quiet = is_quiet
        self.last: _RanRound | None = None

    def __call__(self, carried: Tensor, fed: EncodedRounds) -> Stepped:
        """Run one round of a batch, as the model's ``step`` does, and return the prediction and the
        latents that the next round reads.

        Args:
            carried: the latents that the round reads, ``[batch, latent, d_model]``.
            fed: the encoded inputs of the round.
        """
        model = self.model
        with model.lock:
            layout = model.layout_of_length[fed.tokens.shape[1]]
            resid = model.embed_round(fed.tokens, carried, fed.values)
            choice_position = layout.choice_position
            if self.is_quiet and choice_position is not None:
                # If only the choice changes, the round is run again from here. A choice affects no
                # position before its own, but that of the update is read below in any case.
                start = min(choice_position, layout.update_position)
                prediction, normalized = self._run_with_choice(resid, carried, fed, layout, start)
            else:
                # A handwired model computes all positions, since its results must equal those of
                # step bit for bit.
                reads_part = self.is_quiet and not model.is_handwired
                n_read = layout.n_from_prediction if reads_part else None
                resid = model.run_from(resid, n_read=n_read, blocks=self.blocks)
                normalized = model.ln_final(resid)
                prediction = self._predict(normalized, layout)
            # Counted from the end of the round, since normalized may have only its last positions.
            at_update = normalized[:, -layout.n_from_update]
            update = model.update(at_update, layout.n_positions)
            return Stepped(prediction, model.write(carried, update, fed.slots))

    def _run_with_choice(
        self,
        resid: Tensor,
        carried: Tensor,
        fed: EncodedRounds,
        layout: RoundLayout,
        start: int,
    ) -> tuple[Tensor, Tensor]:
        """Run a round that contains a choice; if only the choice has changed since the last round
        that ran, run only what follows it.

        Args:
            resid: the residual stream before the first block, at all positions.
            carried: the latents that the round reads.
            fed: the round's inputs.
            layout: layout of the round.
            start: the first position that another choice can affect.

        Returns:
            The prediction, and the normalised residual stream after the last block, at the last
            positions, including that of the update.
        """
        model = self.model
        last = self.last
        if last is not None and last.is_repeated_by(carried, fed, start):
            past = [_cut_past(past_of_block, start) for past_of_block in last.past]
            resid = model.run_from(
                resid[:, start:], past=past, n_read=layout.n_from_update, blocks=self.blocks
            )
            normalized = model.ln_final(resid)
            prediction = last.prediction
        else:
            past = [block.make_empty_past(len(carried)) for block in self.blocks]
            resid = model.run_from(
                resid, past=past, n_read=layout.n_from_prediction, blocks=self.blocks
            )
            normalized = model.ln_final(resid)
            prediction = self._predict(normalized, layout)
        self.last = _RanRound(carried, fed, past=past, prediction=prediction)
        return prediction, normalized

    def _predict(self, normalized: Tensor, layout: RoundLayout) -> Tensor:
        """Return the prediction, usually probabilities ``[batch, outcome]``.

        Args:
            normalized: output of ``ln_final``, the final normalisation, ``[batch, pos, d_model]``;
                may lack leading positions, but must include the prediction position and all later
                ones.
            layout: layout of the round.
        """
        at_prediction = normalized[:, -layout.n_from_prediction]  # counted from the end
        return self.model.read_prediction(self.model.unembed(at_prediction), layout.n_positions)


def _cut_past(past: KeyValues, n_positions: int) -> KeyValues:
    """Return the keys and values of the first ``n_positions`` positions."""
    return KeyValues(past.past_keys[:, :n_positions], past.past_values[:, :n_positions])


def plain_blocks(model: HookedLatentTransformer, narrow: bool = True) -> list[PlainBlock] | None:
    """Return the model's blocks in their quicker form, without modules and hook points, with the
    current weights.

    Return None if this form could skip a hook or give other results (:func:`can_run_plainly`), or if
    the model's class is a subclass of HookedLatentTransformer.

    Args:
        model: the transformer.
        narrow: True to leave out, in a handwired model, what has no effect on results
            (:class:`PlainBlock`).
    """
    if type(model) is not HookedLatentTransformer or not can_run_plainly(model, model.cfg):
        return None
    blocks = model.blocks
    return [PlainBlock(block, model.is_handwired, narrow=narrow) for block in blocks]


_AnyMachine = TypeVar("_AnyMachine", bound=Machine)


@checked
def untrained(model: _AnyMachine, seed: int = 0) -> _AnyMachine:
    """Return a copy of a model with fresh random weights: a control for claims about what the model
    has learned.

    An effect that is also found in the copy comes from the architecture or the method, not from
    training. The copy is in evaluation mode, on the model's device. A seed gives the same weights
    on every device, and the global random generator is not changed. Callers share a copy
    (:func:`interp.support.session.compute_once`), so they must not train it.

    >>> import interp
    >>> untrained(interp.load("wma-handwired", n_experts=4)).name
    'wma-handwired-untrained'

    Args:
        model: the model; it is not changed.
        seed: seed of the weights.
    """
    check_type("model", model, Machine)
    key = ("untrained", seed, model.weights_version())
    return compute_once(key, model, make=lambda: model.untrained(seed))


def _check_round(model: HookedLatentTransformer, tokens: Any, latents: Any, values: Any) -> None:
    """Refuse arguments of ``forward`` that are not a batch of rounds of ``model``, with a clearer
    error than PyTorch's.

    Args:
        model: the transformer.
        tokens: must be token ids, ``[batch, pos]``.
        latents: must be real numbers, ``[batch, latent, d_model]``.
        values: must be payloads, ``[batch, pos]``, or None.
    """
    layouts = model.layout_of_length
    is_whole = isinstance(tokens, Tensor) and tokens.dtype in (torch.int64, torch.int32)
    are_rounds = is_whole and tokens.ndim == 2 and tokens.shape[1] in layouts
    lengths = " or ".join(map(str, layouts))
    require(
        are_rounds,
        f"tokens must be whole numbers [batch, pos] with {lengths} positions, got "
        f"{format_value(tokens)}; model.layout.encode(episodes) makes them",
    )
    shape = (len(tokens), layouts[tokens.shape[1]].n_latents, model.config.d_model)
    is_real = isinstance(latents, Tensor) and latents.is_floating_point()
    require(
        is_real and latents.shape == shape,
        f"latents must be a float tensor [batch, latent, d_model] = {list(shape)}, got {format_value(latents)}",
    )
    are_payloads = isinstance(values, Tensor) and values.shape == tokens.shape
    require(
        values is None or are_payloads,
        f"values must be a tensor [batch, pos] = {list(tokens.shape)} or None, got {format_value(values)}",
    )
    if tokens.device.type == "cpu" and tokens.numel():  # on a GPU, the check would have to wait
        low, high = (int(bound) for bound in tokens.aminmax())
        n_ids = model.config.d_vocab
        require(
            low >= 0 and high < n_ids,
            f"tokens must be ids from 0 to {n_ids - 1}, got {low} to {high}",
        )
