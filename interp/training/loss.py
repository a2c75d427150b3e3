"""The loss of a batch of rounds: the recurrence over them as one module's forward, so that DDP sees one call."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from interp.model.layout import RoundLayout
from interp.model.transformer import HookedLatentTransformer


class RoundsLoss(nn.Module):
    """Mean cross-entropy of the predictions of consecutive rounds; the latents are never supervised.

    ``loss = -1/(B T) sum_{b,t} sum_o target_{b,t,o} log p_{b,t}(o)`` (paper, sections F.1 and F.2).

    Args:
        model: a model whose output is "logits".
        commit: which choice rounds hold, where they hold one: the model's "own", or the recorded "target".
        compile: run the round through ``torch.compile(mode="reduce-overhead")``. Hooks added later are not seen by
            the compiled round, which only the trainer uses.
    """

    def __init__(self, model: HookedLatentTransformer, commit: str, compile: bool = False) -> None:
        super().__init__()
        self.model, self.commit = model, commit
        self.round = torch.compile(self._round, mode="reduce-overhead") if compile else self._round

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
            logits, update = self.round(tokens[:, t], values[:, t], latents, layout)
            losses.append(-(targets[:, t] * logits.float().log_softmax(-1)).sum(-1).mean())
            latents = self.model.write(latents, update, slots[:, t])
        return torch.stack(losses).mean(), latents

    def _round(self, tokens: Tensor, values: Tensor, latents: Tensor, layout: RoundLayout) -> tuple[Tensor, Tensor]:
        """Outcome logits and update of one round; its choice is committed on the way, where it is the model's own."""
        model, end = self.model, layout.predict_position + 1
        payloads = None if layout.payload is None else values
        embedded = model.embedded(tokens, latents, payloads)
        if layout.choice_position is None or self.commit == "target":
            read = model.ln_final(model.run_from(embedded, n_read=layout.n_read))
            logits = model.unembed(read[:, 0])[:, : layout.n_outputs]
        else:
            past = [model.nothing_past(len(tokens)) for _ in model.blocks]
            read = model.ln_final(model.run_from(embedded[:, :end], past=past, n_read=1))
            logits = model.unembed(read[:, 0])[:, : layout.n_outputs]
            tokens = layout.commit(tokens, logits.argmax(-1))
            suffix = model.embedded(tokens, latents, payloads)[:, end:]
            read = model.ln_final(model.run_from(suffix, past=past, n_read=1))
        return logits, model.update(read[:, -1], layout.n_positions)
