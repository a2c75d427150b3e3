"""The configuration of a latent-context transformer: every choice that its weights do not say.

Plain data, frozen, to and from JSON. One configuration describes handwired circuits (no normalisation, hard and
linear heads, probabilities read straight from the residual stream) and learned models (pre-norm, softmax, logits).
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
        layout: the round's token layout; its vocabulary and range of sizes fix the embedding
            tables.
        d_mlp: MLP width; 0 means attention only.
        normalization_type: "LNPre" (pre-norm LayerNorm without affine parameters, which the next
            matrix would absorb) or None.
        attention_rules: per layer, per head: "softmax", "hard" (uniform over the maximal scores) or
            "linear" (masked raw scores). Softmax everywhere when empty.
        attn_scale: scores are divided by it; sqrt(d_head) when None.
        latent_update: "replace" writes the update over its slot, "add" adds it.
        write_map: the update is a learned affine map of the normalised residual stream, not that
            stream itself. LayerNorm fixes the norm of the stream; with a map the update may be
            small.
        position_codes: "index" codes a position by its index, "label" by its label's index in the
            largest round: what stands at ``p?`` or ``Select`` has one code for every size of a
            round.
        strip_position: subtract the position code from the update, so that a latent holds content
            blocks only.
        output: what the unembedding gives at the prediction position: "logits" or "probability" of
            outcomes, or where the layout predicts a real number the "value" itself (its mean, or
            mean and log variance).
        clipped: whether probabilities are cut to [0, 1], where learned weights, unlike a
            construction's, do not end.
        value_range: the scalar payloads (rewards) that the model is proven for; None takes any.
        init_std: standard deviation of the initial weights of a model to be trained.
        head_names: per layer, per head, a name from the paper; empty for learned models.
        name: what users load it by.
        origin: how to make it again: the circuit and its arguments, or the training preset.
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
            object.__setattr__(self, "attention_rules", softmax_everywhere)
        self._check_table("attention_rules", self.attention_rules)
        self._check_table("head_names", self.head_names)
        for rule in sum(self.attention_rules, ()):
            require_known("attention rule", rule, get_args(AttentionRule))

    def _check_output(self) -> None:
        """Refuse an output that is not of the layout's kind."""
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
        """Refuse a table that is not of every layer and head, or empty.

        Args:
            name: of the field.
            table: a row per layer.
        """
        lengths = [len(row) for row in table]
        is_whole = lengths == [self.n_heads] * self.n_layers
        require(
            is_whole or not lengths,
            f"{name} must hold {self.n_layers} rows of {self.n_heads}, got rows of {lengths}",
        )

    @property
    def d_vocab(self) -> int:
        """How many token ids there are."""
        return len(self.layout.vocabulary)

    # How many outcomes can be predicted, the columns of ``W_U``; and positions of the largest round.
    d_vocab_out = property(attrgetter("layout.max_layout.n_outputs"))
    n_ctx = property(attrgetter("layout.max_layout.n_positions"))

    @property
    def scale(self) -> float:
        """What attention scores are divided by."""
        return self.d_head**0.5 if self.attn_scale is None else self.attn_scale

    @checked
    def require_room(self, max_gb: float) -> None:
        """Refuse a model that would take more than ``max_gb`` times 1e9 bytes.

        It takes the weights in float32, and the ids of the positions of every length.
        """
        n_bytes = 4 * self._count_weights() + 8 * (self.n_ctx + 1) * self.n_ctx
        sizes = f"{self.n_layers} layers, {self.n_heads} heads, d_mlp {self.d_mlp}"
        rounds = f"rounds of {self.n_ctx} positions"
        what = f"the model {self.name!r} (d_model {self.d_model}, {sizes}, {rounds})"
        refuse_above(what, n_bytes, max_gb)

    def _count_weights(self) -> int:
        d_model = self.d_model
        per_layer = self.n_heads * self.d_head * (4 * d_model + 3) + d_model
        if self.d_mlp:
            per_layer += 2 * d_model * self.d_mlp + self.d_mlp + d_model
        n_vectors = 2 * self.d_vocab + self.n_ctx + self.layout.max_layout.n_latents
        n_vectors += self.d_vocab_out
        if self.write_map:
            n_vectors += d_model
        return self.n_layers * per_layer + n_vectors * d_model

    def to_dict(self) -> dict[str, Any]:
        """Return the configuration as JSON values."""
        values = {**asdict(self), "layout": self.layout.to_dict()}
        if not self.clipped:  # a field that older checkpoints do not have
            del values["clipped"]
        return values

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> LatentTransformerConfig:
        """Make the configuration that :meth:`to_dict` described; a field that is unknown or missing is refused."""
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
