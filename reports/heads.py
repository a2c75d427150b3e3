"""The heads of a model by the names that pictures and tables call them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from interp.checks import checked
from interp.model.transformer import HookedLatentTransformer

Heads = Sequence[Mapping[str, str]]
"""Per layer: short name of a head -> what it does, in the order of the weights; heads beyond these are empty."""


@checked
def heads_of(model: HookedLatentTransformer) -> Heads:
    """The model's own names ("1.4 current-phase tag": number and words), or 1.1, 1.2, ... where nobody named them.

    Heads named "-" pad a layer to the common width and are left out.
    """
    config = model.config
    if not config.head_names:
        return [
            {f"{layer}.{head}": "" for head in range(1, config.n_heads + 1)} for layer in range(1, config.n_layers + 1)
        ]
    split = [[name.partition(" ") for name in names if name != "-"] for names in config.head_names]
    return [{number: text for number, _, text in names} for names in split]
