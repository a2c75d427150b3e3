"""Which places carry which variables: interchange accuracies of many claims, each beside its controls.

A claim says that some places of the network hold a variable of the algorithm and that it shows in an outcome. It is
tested by :func:`interp.interventions.interchange.interchange`, and beside its accuracy stand those of

* doing nothing: pairs in which the unpatched run already gives the counterfactual's outcome;
* an equally large displacement of the same places in a random direction (a subspace of equal rank, orthogonal to the
  one interchanged), because moving an activation does something wherever it points.

A whole activation that is interchanged holds everything that reaches this place, so an accuracy of 1 says that the
variable is among it and that nothing else there matters to the outcome, not that the place holds the variable alone or
in any particular form. For that see :mod:`interp.interventions.alignment`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
from torch import Tensor

from interp.algorithm import Algorithm
from interp.checks import checked, non_empty
from interp.interventions.interchange import InterchangeResult, Place, interchange
from interp.interventions.sites import Site
from interp.model.run import Rounds
from interp.model.transformer import HookedLatentTransformer
from interp.session import session


@dataclass(frozen=True)
class Claim:
    """The claim that these places together hold ``variable``, and that ``outcome`` ("prediction" or "state") shows it.

    >>> Claim.at("log_weights", ["latent@<z>"], "state").places[0].site
    Site(component='latent', layer=None, head=None, position='<z>', rounds=())

    Attributes:
        control: a place that cannot hold it, where the accuracy must be that of doing nothing.
    """

    variable: str
    places: tuple[Place, ...]
    outcome: str = "prediction"
    control: bool = False

    @classmethod
    def at(cls, variable: str, sites: Sequence[str], outcome: str = "prediction", control: bool = False) -> Claim:
        """A claim about whole activations."""
        return cls(variable, tuple(Place(Site.parse(site)) for site in sites), outcome, control)


@checked
def carriers(
    model: HookedLatentTransformer,
    base: Any,
    source: Any,
    algorithm: Algorithm,
    claims: Sequence[Claim],
    *,
    rounds: Rounds = "all",
    decode: Callable[[Tensor], Tensor] | None = None,
    seed: int = 0,
) -> pd.DataFrame:
    """A row per claim: accuracy over informative pairs and graded score with intervals, and those of its controls.

    Args:
        base, source: episodes that pair up.
        decode: latents to state (:class:`interp.decoder.Decoder`); the exact readout of a handwired model when None.
    """
    claims = non_empty("claims", claims, "at least one claim")
    options: dict[str, Any] = {"rounds": rounds, "decode": decode}

    def score(claim: Claim, places: Sequence[Place]) -> InterchangeResult:
        return interchange(model, base, source, algorithm, claim.variable, places, outcome=claim.outcome, **options)

    def row(claim: Claim) -> pd.DataFrame:
        elsewhere = [place.placebo(model.config.d_model, seed) for place in claim.places]
        placebos = [place for place in elsewhere if place is not None]  # attention scores have no direction
        random = score(claim, placebos) if placebos else None
        return (
            score(claim, claim.places)
            .to_frame()
            .assign(
                random=random.iia_informative if random else float("nan"),
                random_score=random.score().estimate if random else float("nan"),
                control=claim.control,
            )
        )

    with session():  # every claim is tested in the same runs
        return pd.concat([row(claim) for claim in claims], ignore_index=True)
