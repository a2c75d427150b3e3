"""A model over a table of prepared rounds, for tools that call ``model(tokens)``.

TransformerLens' tools call a model with tokens only, but a round also needs its latents and scalar
payloads. :func:`bind` puts chosen rounds of rollouts into a table. The "tokens" that a tool passes
are row numbers of the table, repeated at every position. Each row is one round, run by itself:
docs/method/round-tokens.md.

    >>> import interp
    >>> from interp.tasks import experts
    >>> from transformer_lens import patching
    >>> model = interp.load("wma-handwired", n_experts=4)
    >>> bound = bind(model, *(interp.rollout(model, experts.sample(8, 20, 4, seed=seed)) for seed in (0, 1)), rounds=-1)
    >>> clean, corrupted = bound.tokens
    >>> _, cache = bound.run_with_cache(clean)
    >>> metric = lambda logits: logits[:, bound.predict_position, 1].mean()
    >>> patching.get_act_patch_resid_pre(bound, corrupted, cache, metric).shape
    torch.Size([3, 13])
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformer_lens import ActivationCache

from interp.model.components import RuntimeConfig
from interp.model.layout import RoundLayout
from interp.model.run import Rollout, Rounds, select_rounds
from interp.model.transformer import HookedLatentTransformer
from interp.support.checks import checked, format_value
from interp.support.errors import require


class BoundRounds:
    """A transformer with a table of rounds, which can be called like a model of TransformerLens:
    with the row numbers of rounds in place of tokens.

    Each row of the table is one round of one episode, with all that the transformer reads in it.
    The model is in evaluation mode. Attributes that this class does not define are looked up on the
    model.

    Args:
        model: the transformer.
        layout: layout of the rounds.
        tokens: the rounds' tokens, ``[row, pos]``.
        latents: the latents that each round reads, ``[row, latent, d_model]``.
        values: numbers that tokens carry, such as rewards, ``[row, pos]``; 0 where there are none.
        split: number of rows from each rollout, in order: the first rows are those of the first
            rollout.
    """

    def __init__(
        self,
        model: HookedLatentTransformer,
        layout: RoundLayout,
        tokens: Int[Tensor, "row pos"],
        latents: Float[Tensor, "row latent d_model"],
        values: Float[Tensor, "row pos"],
        split: Sequence[int],
    ) -> None:
        """Store the model, and the columns of the table, in which :meth:`rows` looks rounds up."""
        self.model = model.eval()
        self.round_layout = layout
        self.table_tokens = tokens
        self.table_latents = latents
        self.table_values = values
        self.split = split

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "model" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self.model, name)

    # TransformerLens reads it to find modules in training mode.
    original_model = property(attrgetter("model"))
    predict_position = property(attrgetter("round_layout.predict_position"))

    @property
    def cfg(self) -> RuntimeConfig:
        """The model's configuration, with two sizes as TransformerLens' tools expect them.

        ``d_vocab`` is the number of outcomes, because SVDInterpreter takes it as the width of
        ``W_U``. ``n_ctx`` is one more than the number of positions, because head_detector requires
        fewer positions than ``n_ctx``.
        """
        config = self.model.cfg
        return replace(config, d_vocab=config.d_vocab_out, n_ctx=config.n_ctx + 1)

    def tl_parameters(self) -> dict[str, Tensor]:
        """Return the model's parameters by name; SVDInterpreter calls this method."""
        return dict(self.model.named_parameters())

    @property
    def tokens(self) -> list[Int[Tensor, "row pos"]]:
        """What to pass as tokens: for each rollout a tensor of row numbers of the table.

        The first axis of a tensor runs over the rollout's rows of the table, and all entries along
        the second axis, "pos", are the same row number. Entry ``e * n_rounds + i`` of the first
        axis is episode e in the i-th of the ``n_rounds`` chosen rounds.
        """
        n_rows, n_positions = self.table_tokens.shape
        row_numbers = torch.arange(n_rows, device=self.table_tokens.device).unsqueeze(1)
        by_rollout = row_numbers.expand(-1, n_positions).split(self.split)
        return [part.contiguous() for part in by_rollout]

    def rows(self, tokens: Any) -> tuple[Tensor, Tensor, Tensor]:
        """Look rows of the table up, and return what the model reads in these rounds.

        Args:
            tokens: row numbers of the table, each repeated at every position, ``[batch, pos]``.

        Returns:
            The rounds' tokens ``[batch, pos]``, latents ``[batch, latent, d_model]``, and numbers
            that tokens carry ``[batch, pos]``.
        """
        n_rows, n_positions = self.table_tokens.shape
        row_ids: Any = Int[Tensor, f"_ {n_positions}"]
        require(
            isinstance(tokens, row_ids),
            f"row ids must be integers [batch, {n_positions}], got {format_value(tokens)}; "
            "use bound.tokens[0], those of the first rollout",
        )
        index = tokens[:, 0]  # row numbers, [batch]; that they repeat at all positions is checked
        are_rows = (tokens == index.unsqueeze(1)) & (tokens >= 0) & (tokens < n_rows)
        require(
            are_rows.all(),
            f"row ids must be one number per row, between 0 and {n_rows - 1}; use rows of bound.tokens[0]",
        )
        return self.table_tokens[index], self.table_latents[index], self.table_values[index]

    def __call__(self, tokens: Any, **_: Any) -> Float[Tensor, "batch pos d_vocab_out"]:
        """Run some rounds of the table, and return logits at every position, or probabilities if the
        model's output is "probability".

        Args:
            tokens: row numbers of the table, each repeated at every position, ``[batch, pos]``.
        """
        return self.model(*self.rows(tokens)).logits

    forward = __call__

    def run_with_hooks(
        self,
        tokens: Tensor,
        fwd_hooks: Any = (),
        bwd_hooks: Any = (),
        reset_hooks_end: bool = True,
        clear_contexts: bool = False,
        **_: Any,
    ) -> Tensor:
        """Run some of the bound rounds with hooks, like TransformerLens' ``run_with_hooks``.

        Args:
            tokens: the rounds, ``[batch, pos]``: the number of a round (its row in the table of
                all bound rounds), repeated at every position. A round has more inputs than its
                tokens, and TransformerLens' tools pass one tensor ``[batch, pos]`` only.
            fwd_hooks, bwd_hooks, reset_hooks_end, clear_contexts: arguments of the model's method
                ``hooks``.
            **_: ignored; tools also pass options of HookedTransformer's forward, such as
                ``return_type``.

        Returns:
            The logits, ``[batch, pos, outcome]``; probabilities if the model's output is
            "probability".
        """
        with self.model.hooks(
            fwd_hooks=fwd_hooks,
            bwd_hooks=bwd_hooks,
            reset_hooks_end=reset_hooks_end,
            clear_contexts=clear_contexts,
        ):
            return self(tokens)

    def run_with_cache(self, tokens: Tensor, **options: Any) -> tuple[Tensor, ActivationCache]:
        """Run some rounds of the table with a cache, like TransformerLens' ``run_with_cache``.

        Args:
            tokens: row numbers of the table, each repeated at every position, ``[batch, pos]``.
            options: as in TransformerLens; ``return_type`` is ignored.

        Returns:
            The logits, ``[batch, pos, outcome]`` (probabilities if the model's output is
            "probability"), and the cache of activations.
        """
        options.pop("return_type", None)
        output, cache = self.model.run_with_cache(*self.rows(tokens), **options)
        return output.logits, cache


@checked
def bind(model: HookedLatentTransformer, *runs: Rollout, rounds: Rounds = "all") -> BoundRounds:
    """Wrap a model and chosen rounds of its rollouts so that TransformerLens' tools can call it.

    Args:
        model: the transformer that was run.
        runs: rollouts with the same layout, such as a clean and a corrupted one. Chosen rounds are
            run again without the hooks of a rollout, so hooks must not have acted in them.
        rounds: the rounds to include: an int, a slice, a list or "all".

    Returns:
        The model with a table of rounds. Pass ``bound.tokens[i]``, or some of its rows, as tokens:
        each row stands for one round of one episode of the i-th rollout.

    >>> import interp
    >>> from interp.tasks import experts
    >>> model = interp.load("wma-learned")
    >>> bound = bind(model, interp.rollout(model, experts.sample(2, 5, 4, seed=0)), rounds=[1, 3])
    >>> logits, cache = bound.run_with_cache(bound.tokens[0])       # episode 0 in rounds 1 and 3, then episode 1
    >>> tuple(logits.shape), tuple(cache["pattern", 0].shape)
    ((4, 13, 2), (4, 4, 13, 13))
    """
    require(runs, "bind needs at least one rollout")
    layout = runs[0].layout
    require(
        all(run.layout == layout for run in runs),
        "the rollouts have different layouts; bind each on its own",
    )
    for run in runs:
        hooked_rounds = run.settings.get("hooked_rounds", ())
        require(
            set(hooked_rounds).isdisjoint(select_rounds(rounds, run.n_rounds)),
            "hooks acted in these rounds, and a bound model runs them without hooks; read what the rollout cached "
            "(names_filter=...), or bind a rollout without hooks and call bound.run_with_hooks",
        )
    # One entry per rollout, whose rows are its chosen rounds: episode 0's first, then episode 1's.
    latents, fed = zip(*(run.rows(rounds) for run in runs), strict=True)
    tokens = torch.cat([part.tokens for part in fed])
    values = torch.cat([part.values for part in fed])
    split = [len(part) for part in latents]
    return BoundRounds(
        model, layout, tokens=tokens, latents=torch.cat(latents), values=values, split=split
    )
