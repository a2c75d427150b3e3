"""What a round says, as numbers: for models that have no input format of their own.

>>> from interp.tasks import experts
>>> layout = experts.TASK.layout(n_experts=2)
>>> said = Said(layout)
>>> [layout.labels[i] for i in said.asked], [layout.labels[i] for i in said.told]
(['e_1', 'p_1', 'e_2', 'p_2'], ['e_1', 'p_1', 'e_2', 'p_2', 'y'])
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from interp.checks import fit
from interp.errors import require
from interp.model.layout import EncodedRounds, RoundLayout


class Said:
    """The tokens of a round as indicators, and its payloads as they are, where the layout has any.

    Attributes:
        asked: the positions that a model may see before it predicts; no attention sink, and no latent.
        told: these, and those between the prediction and the update: all that there is to learn from.
        n_asked, n_told: how many numbers say them.
    """

    def __init__(self, layout: RoundLayout) -> None:
        layout = fit("layout", layout, RoundLayout)
        end = layout.predict_position
        silent = {0, end, layout.update_position, *layout.latent_positions}
        self.layout, self.n_ids = layout, len(layout.vocabulary)
        self.asked = tuple(i for i in range(end) if i not in silent)
        self.told = tuple(i for i in range(layout.update_position) if i not in silent)
        n_each = self.n_ids + bool(layout.payload)
        self.n_asked, self.n_told = len(self.asked) * n_each, len(self.told) * n_each

    def before(self, fed: EncodedRounds) -> Tensor:
        """What a round says before the prediction, ``[batch, n_asked]``, in the dtype of the machine."""
        return self._numbers(fed, self.asked)

    def after(self, fed: EncodedRounds) -> Tensor:
        """All that a round says, the truth with it, ``[batch, n_told]``."""
        return self._numbers(fed, self.told)

    def _numbers(self, fed: EncodedRounds, positions: tuple[int, ...]) -> Tensor:
        at: Any = list(positions)
        numbers = nn.functional.one_hot(fed.tokens[:, at], self.n_ids).flatten(1).to(fed.values)
        return torch.cat([numbers, fed.values[:, at]], 1) if self.layout.payload else numbers


@dataclass(frozen=True)
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
        own = torch.arange(len(layout.vocabulary)) if ids is None else torch.tensor(list(ids))

        def embed(model: Any, fed: EncodedRounds) -> Tensor:
            embedded: Tensor = model.get_submodule(table)(own.to(fed.tokens.device)[fed.tokens])
            return embedded

        return cls(embed, layout.n_positions, layout.predict_position, layout.latent_positions[0])


def core_of(module: nn.Module, core: str, has: str, what: str) -> Any:
    """The submodule called ``core``, which must be ``what``: it has an attribute ``has``."""
    parts = dict(module.named_modules())
    known = ", ".join(list(filter(None, parts))[:20])
    require(
        hasattr(parts.get(core), has),
        f"core {core!r} must name a {what}, got {type(parts.get(core)).__name__}; the module has {known}",
    )
    return parts[core]


def redraw(module: nn.Module) -> None:
    """Draw all weights anew: those of models of ``transformers`` by their own rule, those of other parts by theirs."""
    for part in module.modules():
        if reset := getattr(part, "reset_parameters", None):
            reset()
    for part in module.modules():
        if begin := getattr(part, "_init_weights", None):
            part.apply(begin)
