"""Configuration of a latent-context transformer: everything about it that is not in its weights.

It is a frozen dataclass that converts to and from JSON. The same class describes handwired circuits
(no normalisation, hard and linear heads, probabilities read from the residual stream) and learned
models (pre-norm, softmax, logits).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from operator import attrgetter
from typing import Any, Literal, get_args

from interp.model.layout import RoundLayout, layout_from_dict
from interp.support.checks import checked, checked_fields, refuse_above
from interp.support.errors import require, require_known

AttentionRule = Literal["softmax", "hard", "linear"]
LatentUpdate = Literal["add", "replace"]
PositionCodes = Literal["index", "label"]


@dataclass(frozen=True)
@checked_fields
class LatentTransformerConfig:
    """Configuration of a :class:`~interp.model.transformer.HookedLatentTransformer`.

    Attributes:
        layout: token layout of a round; its vocabulary and largest size determine the embedding
            tables.
        d_model, n_layers, n_heads, d_head: as in TransformerLens.
        d_mlp: MLP width; 0 for attention only.
        act_fn: activation function of the MLPs, "gelu" or "relu".
        normalization_type: "LNPre" (LayerNorm before each layer, without learned scale and bias) or
            None.
        attention_rules: how each head turns scores into attention, one tuple per layer: "softmax",
            "hard" (uniform over the maximal scores) or "linear" (the scores themselves, 0 where
            masked). When empty, all heads use softmax.
        attn_scale: divisor of attention scores; sqrt(d_head) when None.
        latent_update: what a round's update (the vector that it writes) does to a latent: "replace"
            puts the update in its place, "add" adds the update to it.
        write_map: True if the update is a learned affine map of the normalised residual stream;
            False if the update is the normalised residual stream itself. LayerNorm fixes the norm
            of this stream, so without the map no update can be small.
        position_codes: how the embedding of a position is chosen. "index": by the position's index.
            "label": by its label, such as ``p?``, so that a label has the same embedding in rounds
            of every size.
        strip_position: True to subtract a position embedding from the update, so that latents do
            not contain it: the embedding of the position at which the update is read.
        output: what the unembedding gives at the prediction position: "logits" or "probability" of
            each outcome. If the layout predicts a real number, it is "value": the mean, or mean and
            log variance.
        clipped: True to clip an output "probability" to [0, 1], for learned weights that may leave
            this range.
        value_range: smallest and largest number that a token may carry (such as a reward) for a
            handwired model to be proven correct; other numbers are refused. None for no limit.
        init_std: standard deviation of the initial weights of a model to be trained.
        head_names: name of each head of a handwired circuit in the paper that describes it, one
            tuple per layer; empty for learned models.
        name: name by which users load the model.
        origin: record of how the model was made, such as ``{"circuit": "wma-handwired",
            "arguments": {"n_experts": 4}, "edits": []}``. For a learned model, the key "training"
            has the configuration of its training.
    """

    layout: RoundLayout
    d_model: int
    n_layers: int
    n_heads: int
    d_head: int
    d_mlp: int = 0
    act_fn: Literal["gelu", "relu"] = "gelu"
    normalization_type: Literal["LNPre", None] = "LNPre"
    attention_rules: tuple[tuple[str, ...], ...] = ()
    attn_scale: float | None = None
    latent_update: LatentUpdate = "add"
    write_map: bool = False
    position_codes: PositionCodes = "index"
    strip_position: bool = False
    output: Literal["logits", "probability", "value"] = "logits"
    clipped: bool = False
    value_range: tuple[float, float] | None = None
    init_std: float = 0.08
    head_names: tuple[tuple[str, ...], ...] = ()
    name: str = "unnamed"
    origin: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse sizes, ranges and tables that fit no model; fill in an empty table of attention
        rules.
        """
        for name in ("d_model", "n_layers", "n_heads", "d_head"):
            size = getattr(self, name)
            require(size >= 1, f"{name} must be an integer >= 1, got {size!r}")
        require(self.d_mlp >= 0, f"d_mlp must be an integer >= 0, got {self.d_mlp!r}")
        require(self.init_std >= 0, f"init_std must be 0 or more, got {self.init_std!r}")
        require(
            self.attn_scale is None or self.attn_scale > 0,
            f"attn_scale must be above 0, or None for sqrt(d_head), got {self.attn_scale!r}",
        )
        if self.value_range is not None:
            low, high = self.value_range
            require(low <= high, f"value_range must be (low, high), got {self.value_range!r}")
        self._check_output()
        if not self.attention_rules:
            softmax_everywhere = (("softmax",) * self.n_heads,) * self.n_layers
            # The class is frozen, so an ordinary assignment would raise an error.
            object.__setattr__(self, "attention_rules", softmax_everywhere)
        self._check_table("attention_rules", self.attention_rules)
        self._check_table("head_names", self.head_names)
        # The table has a tuple of rules for each layer; their sum has the rules of all heads.
        for rule in sum(self.attention_rules, ()):
            require_known("attention rule", rule, get_args(AttentionRule))

    @property
    def latent_kept(self) -> float:
        """Factor by which the old latent is multiplied when an update is written: 1 if updates are
        added to it, 0 if they replace it.
        """
        return 1.0 if self.latent_update == "add" else 0.0

    def _check_output(self) -> None:
        """Refuse a field ``output`` that does not suit the layout's kind of prediction, such as
        logits for a real number.
        """
        require(
            not self.clipped or self.output == "probability",
            f"only output 'probability' can be clipped, got {self.output!r}; leave clipped out",
        )
        predicted, outputs = "outcomes", "logits or probability"
        is_real = self.layout.kind != "classes"
        if is_real:
            predicted, outputs = "a real number", "value"
        fits = is_real == (self.output == "value")
        require(
            fits,
            f"a round of {self.layout.task!r} predicts {predicted} ({self.layout.kind!r}): its output must be "
            f"{outputs!r}, got {self.output!r}",
        )

    def _check_table(self, name: str, table: tuple[tuple[str, ...], ...]) -> None:
        """Refuse a field that does not have one entry for every layer and head; an empty one is
        accepted.

        Args:
            name: name of the field.
            table: one row per layer, one entry per head.
        """
        lengths = [len(row) for row in table]
        is_whole = lengths == [self.n_heads] * self.n_layers
        require(
            is_whole or not lengths,
            f"{name} must hold {self.n_layers} rows of {self.n_heads}, got rows of {lengths}",
        )

    @property
    def d_vocab(self) -> int:
        """Number of token ids in the vocabulary."""
        return len(self.layout.vocabulary)

    # The number of outcomes, which are the columns of ``W_U``; and the length of the largest round.
    d_vocab_out = property(attrgetter("layout.max_layout.n_outputs"))
    n_ctx = property(attrgetter("layout.max_layout.n_positions"))

    @property
    def scale(self) -> float:
        """Divisor of attention scores."""
        return self.d_head**0.5 if self.attn_scale is None else self.attn_scale

    @checked
    def require_room(self, max_gb: float) -> None:
        """Refuse a model that needs more memory than ``max_gb`` times 1e9 bytes.

        Two things are counted: the weights, in float32, and a table with the ids of the position
        embeddings for a round of each possible length.
        """
        # Weights of 4 bytes, and position ids of 8, [length of the round (0 to n_ctx), pos].
        n_bytes = 4 * self._count_weights() + 8 * (self.n_ctx + 1) * self.n_ctx
        sizes = f"{self.n_layers} layers, {self.n_heads} heads, d_mlp {self.d_mlp}"
        rounds = f"rounds of {self.n_ctx} positions"
        what = f"the model {self.name!r} (d_model {self.d_model}, {sizes}, {rounds})"
        refuse_above(what, n_bytes, max_gb)

    def _count_weights(self) -> int:
        """Return the number of weights of a model with this configuration."""
        d_model = self.d_model
        # W_Q, W_K, W_V and W_O, with b_Q, b_K and b_V, of every head; b_O.
        per_layer = self.n_heads * self.d_head * (4 * d_model + 3) + d_model
        if self.d_mlp:  # W_in and W_out, b_in, b_out
            per_layer += 2 * d_model * self.d_mlp + self.d_mlp + d_model
        # Vectors of width d_model: W_E and W_val, W_pos, the initial latents, W_U, W_write. The two
        # biases b_U and b_write, which are small, are left out.
        n_vectors = 2 * self.d_vocab + self.n_ctx + self.layout.max_layout.n_latents
        n_vectors += self.d_vocab_out
        if self.write_map:
            n_vectors += d_model
        return self.n_layers * per_layer + n_vectors * d_model

    def to_dict(self) -> dict[str, Any]:
        """Return the configuration as a dict of JSON values."""
        values = {**asdict(self), "layout": self.layout.to_dict()}
        if not self.clipped:  # a field that older checkpoints do not have
            del values["clipped"]
        return values

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> LatentTransformerConfig:
        """Return the configuration that :meth:`to_dict` converted to a dictionary; refuse unknown
        and missing fields.
        """
        require(isinstance(data, dict), f"a configuration is a table of fields, got {data!r}")
        names = {known.name for known in fields(cls)}
        for name in data:
            require_known("configuration field", name, names, limit=40)
        missing = {"layout", "d_model", "n_layers", "n_heads", "d_head"} - data.keys()
        require(not missing, f"the configuration lacks {', '.join(sorted(missing))}")
        values = dict(data)
        values["layout"] = layout_from_dict(data["layout"])
        if data.get("value_range") is not None:
            values["value_range"] = tuple(data["value_range"])
        return cls(**values)
