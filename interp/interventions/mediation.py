"""Mediation: which share of an effect passes through chosen attention patterns, head outputs or MLP outputs.

A *cause*, some place in a base round, is set to its value in the source round. What that does to an outcome Y is split
by *mediators* M, sites between the two. With c the cause's value in the base and c' its value in the source::

    TE = Y(c', M(c')) - Y(c, M(c))        total effect: the cause is swapped
    DE = Y(c', M(c))  - Y(c, M(c))        direct effect: swapped, while the mediators are frozen at the base's values
    IE = Y(c, M(c'))  - Y(c, M(c))        indirect effect: not swapped; the mediators alone are set to what they are
                                          in the base round whose cause is swapped

    blocked = 1 - <DE, TE> / <TE, TE>     the share of the effect that is lost without the mediators
    carried = <IE, TE> / <TE, TE>         the share of the effect that the mediators bring about by themselves

Products are summed over pairs and rounds, so that large effects weigh more, and outcomes may be vectors: what counts is
the part along the total effect. TE, DE and IE are the total, natural direct and natural indirect effect (Pearl, 2001;
for language models Vig et al., 2020); blocked is the total indirect effect as a share, carried the pure one (Robins and
Greenland, 1992).

The two shares are equal where the mediators and everything beside them add up. They differ where these interact: of two
redundant routes, each blocks nothing and carries everything; a pattern that selects among values which the cause
changes, too, does either in part. For the same reasons, and because mediators in series hand on one effect, shares of
single mediators need not add up to 1 or to the joint share, and may be negative or above 1. A frozen mediator meets
activations that it never meets in a run: a share says how a computation is wired, not what happens in use.

Read a share beside that of an untrained model: all head outputs at the place that is read mediate everything that comes
from other positions, whatever the model, and random patterns can carry much of an effect, too.

    >>> import interp
    >>> from interp.interventions import mediation
    >>> from interp.tasks import experts
    >>> model = interp.load("wma-handwired", n_experts=3)
    >>> base, source = (experts.sample(8, 6, 3, seed=seed) for seed in (0, 1))
    >>> through = mediation.paths(model, "pattern", "p?")                 # every head's attention from p?
    >>> result = mediation.mediate(model, base, source, "latent@<z>", through, rounds=[4, 5], n_random=0)
    >>> round(result.blocked().estimate, 9), round(result.carried().estimate, 9)       # all heads jointly
    (1.0, 1.0)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, get_args

import numpy as np
import pandas as pd
from jaxtyping import Float, Int
from torch import Tensor

from interp.checks import checked
from interp.display import Tabled
from interp.errors import require, unknown_name
from interp.interventions.effects import effects, outcome_of
from interp.interventions.places import Place, resolve_places
from interp.interventions.routes import Routes
from interp.interventions.sites import Site, sites
from interp.model.rollout import rollout
from interp.model.run import Rollout, Rounds, select_rounds
from interp.model.transformer import HookedLatentTransformer
from interp.model.untrained import untrained
from interp.provenance import provenance
from interp.statistics import Interval, ratio_interval

__all__ = ["MediationResult", "mediate", "paths"]

Outcome = Literal["prediction", "state", "latents"]


@dataclass(frozen=True)
class MediationResult(Tabled):
    """Shares of one effect, by mediator and for all mediators jointly, with their controls.

    Attributes:
        cause: the places that are swapped, as text.
        outcome: what the effect is on: "prediction", "state" or "latents".
        mediators: the sites that are frozen, as text, and last "all": all of them at once.
        total: <TE, TE>, summed over the rounds of an episode.
        lost: <TE - DE, TE>, summed likewise: over ``total`` it is the share blocked.
        brought: <IE, TE>, summed likewise: over ``total`` it is the share carried.
        moved: the share of pairs in which the swap changes the mediator at all.
        random: the shares (blocked, carried) of as many other mediators of the same kinds, drawn at random.
        n_random_sites: how many sites such a draw holds: fewer than the mediators where there are no more others.
        n_pairs: pairs of rounds.
        reason: why there are no shares (they are NaN then); empty where there are.
        untrained: the same for an untrained model, where it was asked for.
        settings: model, rounds, seed, versions.
    """

    cause: tuple[str, ...]
    outcome: str
    mediators: tuple[str, ...]
    total: Float[np.ndarray, " episode"]
    lost: Float[np.ndarray, "mediator episode"]
    brought: Float[np.ndarray, "mediator episode"]
    moved: Float[np.ndarray, " mediator"]
    random: Float[np.ndarray, "mediator draw 2"]
    n_random_sites: Int[np.ndarray, " mediator"]
    n_pairs: int
    reason: str = ""
    untrained: MediationResult | None = None
    settings: dict[str, Any] = field(default_factory=dict)

    @checked
    def blocked(self, mediator: str = "all") -> Interval:
        """The share of the effect that is lost while the mediator is frozen, with its 95 % interval over episodes.

        Raises:
            InputError: a mediator that was not measured.
        """
        return self._share(self.lost, mediator)

    @checked
    def carried(self, mediator: str = "all") -> Interval:
        """The share of the effect that the mediator brings about by itself, with its 95 % interval over episodes.

        Raises:
            InputError: a mediator that was not measured.
        """
        return self._share(self.brought, mediator)

    def _share(self, parts: Float[np.ndarray, "mediator episode"], mediator: str) -> Interval:
        if mediator not in self.mediators:
            raise unknown_name("mediator", mediator, self.mediators, limit=40)
        total = np.zeros_like(self.total) if self.reason else self.total  # over 0 a share is NaN
        return ratio_interval(parts[self.mediators.index(mediator)], total, seed=self.settings.get("seed", 0))

    def to_frame(self) -> pd.DataFrame:
        """One row per mediator, and a last one for all jointly: shares with intervals, and those of the controls."""
        rows = []
        for i, mediator in enumerate(self.mediators):
            row: dict[str, Any] = {"cause": " + ".join(self.cause), "outcome": self.outcome, "mediator": mediator}
            for draw, key in enumerate(("blocked", "carried")):
                interval = getattr(self, key)(mediator)
                row |= {key: interval.estimate, f"{key}_low": interval.low, f"{key}_high": interval.high}
                draws = self.random[i, :, draw]
                row[f"random_{key}"] = float(draws.mean()) if len(draws) else float("nan")
                control = self.untrained
                row[f"untrained_{key}"] = getattr(control, key)(mediator).estimate if control else float("nan")
            row |= {"moved": float(self.moved[i]), "n_random_sites": int(self.n_random_sites[i])}
            size = float(np.sqrt(self.total.sum() / self.n_pairs))
            rows.append({**row, "effect": size, "n_pairs": self.n_pairs, "reason": self.reason})
        return pd.DataFrame(rows)


@checked
def paths(model: HookedLatentTransformer, component: str, position: str | None = None) -> list[Site]:
    """Every site of a component, one for each layer and head, at one position or (None) everywhere.

    Args:
        component: such as "pattern", "z" or "mlp_out".
        position: a label of the model's layout; that of the query for "pattern".

    Raises:
        InputError: a component or position that the model does not have.

    Example:
        >>> import interp
        >>> model = interp.load("wma-learned")
        >>> len(paths(model, "z", "w?")), str(paths(model, "mlp_out")[0])
        (16, 'mlp_out[0]')
    """
    return sites(model, components=component, positions=position)


@checked
def mediate(
    model: HookedLatentTransformer,
    base: Any,
    source: Any,
    cause: Place | Site | str | Sequence[Place | Site | str],
    through: Site | str | Sequence[Site | str],
    *,
    outcome: str = "prediction",
    rounds: Rounds = "all",
    decode: Callable[[Tensor], Tensor] | None = None,
    each: bool = True,
    n_random: int = 4,
    with_untrained: bool = False,
    runs: tuple[Rollout, Rollout] | None = None,
    seed: int = 0,
) -> MediationResult:
    """Which share of the effect of ``cause`` on ``outcome`` passes ``through`` each mediator, and through all of them.

    Args:
        base, source: episodes of the same sizes that pair up; each is run through its own history.
        cause: what is swapped from the source, all at once: sites, or places with a subspace each.
        through: the mediators; :func:`paths` lists those of a component.
        outcome: "prediction" (the distribution over outcomes), "state" (what the round writes into the algorithm's
            state) or "latents" (all latents that the round leaves). A swapped latent reaches the last two by itself,
            without any mediator, where updates are added to latents.
        rounds: the rounds at which pairs are made; each pair is one round, held apart from the others. The choice
            token of a round stays the base's.
        decode: latents to state for "state" (a fitted map); the exact readout of a handwired model when None.
        each: measure every mediator by itself, too; else only all of them at once, for less work.
        n_random: how often other mediators are drawn, as many and of the same components, from all that lie between
            cause and outcome.
        with_untrained: measure an untrained model of the same shape, too (on its latents where ``outcome`` is
            "state", because no state can be read from it).
        runs: the rollouts of ``base`` and ``source``, where they are known.
        seed: of the draws, the untrained model and the intervals.

    Raises:
        InputError: unknown names, episodes that do not pair up, a round out of range, a mediator that does not lie
            between cause and outcome, a state that cannot be read.
    """
    if outcome not in get_args(Outcome):
        raise unknown_name("outcome", outcome, get_args(Outcome))
    require(n_random >= 0, f"n_random must be an integer >= 0, got {n_random}")
    require(
        outcome != "state" or decode is not None or model.is_handwired,
        f"{model.config.name!r} is a learned model: its state has no exact readout; give decode=, a fitted "
        "interp.decoder.Decoder, or ask for outcome='latents'",
    )
    model.eval()
    runs = runs or (rollout(model, base), rollout(model, source))
    require(
        runs[0].tokens.shape == runs[1].tokens.shape,
        f"base and source must pair up, got {tuple(runs[0].tokens.shape)} and {tuple(runs[1].tokens.shape)}",
    )
    at, layout, commit = select_rounds(rounds, runs[0].n_rounds), runs[0].layout, runs[0].commit
    causes = resolve_places(cause, model, runs[0])
    routes = Routes(model, layout, [place.site for place in causes], prediction=outcome == "prediction")
    mediators = routes.mediators([through] if isinstance(through, Site | str) else through)
    alone = mediators if each else ()
    cases = [*((site,) for site in alone), mediators]
    draws = [[routes.others(case, mediators, (seed, i)) for i in range(n_random)] for case in cases]
    every = list(dict.fromkeys([*cases, *(draw for several in draws for draw in several if draw)]))
    measure = partial(outcome_of, model, layout, outcome, decode)
    found = effects(model, runs, at, causes, every, measure)
    fresh = None
    if with_untrained:
        other = untrained(model, seed)
        own = rollout(other, base, commit=commit), rollout(other, source, commit=commit)
        shown = "latents" if outcome == "state" else outcome
        same: dict[str, Any] = {"outcome": shown, "rounds": at, "each": each, "n_random": 0, "runs": own, "seed": seed}
        fresh = mediate(other, base, source, causes, mediators, **same)
    per_episode = partial(np.add.reduceat, indices=range(0, len(found.total), len(at)), axis=-1)
    return MediationResult(
        cause=tuple(map(str, causes)),
        outcome=outcome,
        mediators=(*map(str, alone), "all"),
        total=per_episode(found.total),
        lost=per_episode([found.lost[case] for case in cases]),
        brought=per_episode([found.brought[case] for case in cases]),
        moved=np.array([found.moved[case] for case in cases]),
        random=np.array([[found.shares(d) for d in several] for several in draws]).reshape(len(cases), n_random, 2),
        n_random_sites=np.array([max(map(len, several), default=0) for several in draws]),
        n_pairs=len(found.total),
        reason="there is no effect to mediate: the total effect of the cause is 0" if found.is_null else "",
        untrained=fresh,
        settings=provenance(
            model=model.config.name,
            digest=model.digest(),
            rounds=at,
            commit=commit,
            decoded=decode is not None,
            n_random=n_random,
            seed=seed,
        ),
    )
