"""Interchange interventions against an algorithm: does this place in the network carry that variable?

For a pair of inputs, run the base with the activation at some places set, inside a subspace, to its value on the source
(``h + (h_source - h) B B^T``; the whole activation where there is no basis), and compare with the algorithm's own
counterfactual: the base with the variable set to its value in the source (Geiger et al., 2021).

* outcome "prediction": the choice is the counterfactual's choice;
* outcome "state": what the round writes into the state (:attr:`interp.algorithm.Algorithm.written`: all of it, or one
  column of a table) is the counterfactual's, within a tolerance. Where a fitted decoder reads the state, its own error
  is left out: the decoded change that the intervention makes is within half of the change that is asked for.

Interchange accuracy (IIA) is the share of pairs for which that holds. Many pairs agree whatever one does, because
the counterfactual is what the base gives anyway: ``chance`` is the accuracy of doing nothing, and ``iia_informative``
counts only the pairs whose counterfactual differs from the algorithm's own outcome on the base. ``score`` and ``slope``
grade how far the outcome moved against how far it should have (:mod:`interp.interventions.counterfactual`).

An accuracy of 1 says, for these pairs only, that these places hold the variable in a form the rest of the network uses.
For a whole activation it says that the variable is among what reaches this place and that nothing else there matters to
the outcome, not that the place holds the variable alone or in any particular form. A basis that was *learned* needs the
controls of :mod:`interp.interventions.alignment`.

:func:`carriers` tests many claims of what lives where, each beside an equally large displacement of the same places in
a random subspace (orthogonal, of equal rank), because moving an activation does something wherever it points.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pandas as pd
from torch import Tensor

from interp import catalog
from interp.algorithm import Algorithm
from interp.checks import checked, checked_fields, non_empty
from interp.interventions.counterfactual import Exam, InterchangeResult, of_rounds, require_comparable, score_difference
from interp.interventions.pairs import paired_runs
from interp.interventions.sites import Site
from interp.interventions.swaps import Place, Places, intervened, placebos, resolve_places
from interp.machine import Machine
from interp.model.run import Rollout, Rounds, select_rounds
from interp.session import session

__all__ = ["Claim", "InterchangeResult", "Place", "carriers", "interchange", "score_difference"]

NO_OTHER = "no other direction"
"""What tables say where a claim has no random control, because what it interchanges is one number wide."""


@checked
def interchange(
    model: Machine,
    base: Any,
    source: Any,
    algorithm: Algorithm,
    variable: str,
    places: Places,
    *,
    element: int | tuple[int, ...] | None = None,
    outcome: str = "prediction",
    rounds: Rounds = "all",
    commit: str = "own",
    decode: Callable[[Tensor], Tensor] | None = None,
    tolerance: float = 1e-6,
    runs: tuple[Rollout, Rollout] | None = None,
) -> InterchangeResult:
    """Interchange accuracy of ``variable`` at ``places``, over every pair (episode i of base, episode i of source).

    Args:
        base, source: episodes of the same sizes; each is run through its own history.
        variable, element: a variable's key, or one element of it.
        places: what is interchanged in the network, all at once.
        outcome: what is compared, "prediction" or "state".
        rounds: at which pairs are made, each apart from the others. The choice token of a round stays the base's.
        decode: latents to state for "state" (a fitted map); the exact readout of a handwired model when None.
        tolerance: how near an exactly read state must be.
        runs: the rollouts of ``base`` and ``source``, where they are known.

    >>> import interp
    >>> from interp.interventions.interchange import interchange
    >>> from interp.tasks import experts
    >>> model = interp.load("wma-handwired", n_experts=4).double()
    >>> algorithm = experts.TASK.algorithm("weighted_majority", gain=0.5)
    >>> pairs = [experts.sample(16, 20, 4, seed=seed) for seed in (0, 1)]
    >>> interchange(model, *pairs, algorithm, "log_weights", "resid_pre[0]@<z>").iia_informative
    1.0
    """
    require_comparable(model, algorithm, outcome)
    runs = paired_runs(model, base, source, commit=commit, runs=runs)
    at = select_rounds(rounds, runs[0].n_rounds)
    resolved = resolve_places(places, model, runs[0])
    before, theirs = (of_rounds(algorithm, episodes, at) for episodes in (base, source))
    wanted = algorithm.interchange(before, theirs, variable, element)
    after = intervened(model, *runs, resolved, at)
    name = variable if element is None else f"{variable}{[element] if isinstance(element, int) else list(element)}"
    exam = Exam(model, algorithm, runs[0], at, outcome, decode, tolerance)
    return exam.graded(name, resolved, before, wanted, after, commit=commit, tolerance=tolerance)


@dataclass(frozen=True)
@checked_fields
class Claim:
    """The claim that these places together hold ``variable``, and that ``outcome`` ("prediction" or "state") shows it.

    Places of a ``control`` cannot hold it: there the accuracy must be that of doing nothing.

    >>> Claim.at("log_weights", ["latent@<z>"], "state").places[0].site
    Site(component='latent', layer=None, head=None, position='<z>')
    """

    variable: str
    places: tuple[Place, ...]
    outcome: str = "prediction"
    control: bool = False

    @classmethod
    @checked
    def at(
        cls,
        variable: str,
        sites: Sequence[str],
        outcome: str = "prediction",
        control: bool = False,
        model: Machine | None = None,
    ) -> Claim:
        """A claim about whole activations, at sites of any transformer, or of ``model``."""
        return cls(variable, tuple(Place(Site.parse(site, model)) for site in sites), outcome, control)

    @classmethod
    @checked
    def carried(cls, model: Machine, variable: str, outcome: str = "prediction") -> tuple[Claim, ...]:
        """Claims that what a machine carries holds a variable: all of it, and each channel where there are several."""
        channels = [f"latent@{channel.name}" for channel in model.channels] if len(model.channels) > 1 else []
        return tuple(cls.at(variable, [site], outcome, model=model) for site in ("latent", *channels))

    @classmethod
    def of(cls, model: Machine) -> list[Claim]:
        """What a model's task claims of it, which names places as texts: tasks stand below this room."""
        rows = catalog.of(model).analysis.claims(model)
        made = [cls.carried(model, key, *how) if at is None else (cls.at(key, at, *how),) for key, at, *how in rows]
        return [claim for claims in made for claim in claims]


@checked
def carriers(
    model: Machine,
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

    A single number can move in no other direction: ``random`` is NaN there, and ``no_random``, a column of tables with
    such a claim, says so.
    """
    claims = non_empty("claims", claims, "at least one claim")

    def row(claim: Claim) -> pd.DataFrame:
        elsewhere = placebos(model, runs[0], resolve_places(claim.places, model, runs[0]), seed)
        random = test(claim.variable, elsewhere, outcome=claim.outcome) if elsewhere else None
        wholes = [place.basis is None and place.site.kind.axes in ("pos", "latent", "") for place in claim.places]
        noted = {"no_random": NO_OTHER} if all(wholes) and not elsewhere else {}
        return (
            test(claim.variable, claim.places, outcome=claim.outcome)
            .to_frame()
            .assign(
                random=random.iia_informative if random else float("nan"),
                random_score=random.score().estimate if random else float("nan"),
                control=claim.control,
                **noted,
            )
        )

    with session():  # every claim is tested in the same runs
        runs = paired_runs(model, base, source)
        test = partial(interchange, model, base, source, algorithm, rounds=rounds, decode=decode, runs=runs)
        return pd.concat([row(claim) for claim in claims], ignore_index=True)
