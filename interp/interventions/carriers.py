"""Claims of what lives where, which :func:`interp.interventions.interchange.carriers` tests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from interp.interventions.sites import Site
from interp.interventions.swaps import Place


@dataclass(frozen=True)
class Claim:
    """The claim that these places together hold ``variable``, and that ``outcome`` ("prediction" or "state") shows it.

    >>> Claim.at("log_weights", ["latent@<z>"], "state").places[0].site
    Site(component='latent', layer=None, head=None, position='<z>')

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
