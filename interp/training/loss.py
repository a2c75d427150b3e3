"""The loss of a batch of rounds: the recurrence over them as one module's forward, so that DDP sees one call."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from interp.model.layout import PREDICT_INDEX, EncodedRounds, RoundLayout
from interp.model.transformer import HookedLatentTransformer


class RoundsLoss(nn.Module):
    """Mean cross-entropy of the predictions of consecutive rounds; the latents are never supervised.

    ``loss = -1/(B T) sum_{b,t} sum_o target_{b,t,o} log p_{b,t}(o)`` (paper, sections F.1 and F.2).

    Args:
        model: a model whose output is "logits".
        commit: where a* comes from; "own" first predicts without gradient, then runs the round with that choice.
        compile: run the round through ``torch.compile(mode="reduce-overhead")``. Hooks added later are not seen by
            the compiled round, which only the trainer uses.
    """

    def __init__(self, model: HookedLatentTransformer, commit: str, compile: bool = False) -> None:
        super().__init__()
        self.model, self.commit = model, commit
        self.round = torch.compile(model.forward, mode="reduce-overhead") if compile else model.forward

    def forward(
        self,
        tokens: Tensor,
        values: Tensor,
        slots: Tensor,
        targets: Tensor,
        layout: RoundLayout,
        latents: Float[Tensor, "episode latent d_model"] | None = None,
    ) -> tuple[Float[Tensor, ""], Float[Tensor, "episode latent d_model"]]:
        """The loss, and the latents after the last round.

        Args:
            tokens, values, slots, targets, layout: as in :class:`~interp.training.data.Batch`.
            latents: those before the first of these rounds; the initial ones when None.
        """
        if latents is None:
            latents = self.model.initial_latents(len(tokens), layout.n_latents)
        losses = []
        for t in range(tokens.shape[1]):
            rounds = EncodedRounds(tokens[:, t], values[:, t], slots[:, t])
            fed = self._commit(rounds, latents, layout)
            out = self.round(fed, latents, None if layout.task == "experts" else rounds.values)
            logits = out.logits[:, PREDICT_INDEX, : layout.n_outputs]
            losses.append(-(targets[:, t] * logits.float().log_softmax(-1)).sum(-1).mean())
            latents = self.model.write(latents, out.update, rounds.slots)
        return torch.stack(losses).mean(), latents

    def _commit(self, rounds: EncodedRounds, latents: Tensor, layout: RoundLayout) -> Tensor:
        position = layout.choice_position
        if position is None or self.commit == "target":
            return rounds.tokens
        end = layout.predict_position + 1
        with torch.no_grad():
            policy = self.model.predict(rounds.tokens[:, :end], latents, rounds.values[:, :end])
        tokens = rounds.tokens.clone()
        tokens[:, position] = layout.token_ids["a_1"] + policy.argmax(-1)
        return tokens
