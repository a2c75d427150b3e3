"""Interchange interventions against an algorithm: does this place in the network carry that variable?

For a pair of inputs, run the base with the activation at some places set, inside a subspace, to its value on the source
(``h + (h_source - h) B B^T``; the whole activation where there is no basis), and compare with the algorithm's own
counterfactual: the base with the variable set to its value in the source (Geiger et al., 2021).

* outcome "prediction": the choice is the counterfactual's choice;
* outcome "state": what the round writes into the state (all log-weights; one column of the Q-table) is the
  counterfactual's, within a tolerance. Where a fitted decoder reads the state, its own error is left out: the decoded
  change that the intervention makes is within half of the change that the counterfactual asks for.

Interchange accuracy (IIA) is the share of pairs for which that holds. Many pairs agree whatever one does, because
the counterfactual is what the base gives anyway: ``chance`` is the accuracy of doing nothing, and ``iia_informative``
counts only the pairs whose counterfactual differs from the algorithm's own outcome on the base.

An accuracy of 1 says that these places hold the variable in a form the rest of the network uses; it says so for these
pairs only. A basis that was *learned* needs the controls of :func:`align`: methods that learn a basis find high
accuracies for arbitrary labels and in untrained networks too (Arora et al., 2024).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float
from numpy.typing import ArrayLike, NDArray
from torch import Tensor
from transformer_lens.tools.analysis.interchange import NormMatchedPlacebo, SubspaceInterchange, random_basis

from interp.errors import require, unknown_name
from interp.interventions.causal import CausalModel
from interp.interventions.pairs import outcome_probabilities
from interp.interventions.sites import Site, resolve
from interp.model.hooked import HookFunction
from interp.model.rollout import Rollout, Rounds, rollout, select_rounds
from interp.model.transformer import HookedLatentTransformer
from interp.provenance import provenance
from interp.statistics import Interval, ratio_interval

Outcome = Literal["prediction", "state"]
CHUNK = 8192


@dataclass(frozen=True)
class Place:
    """A site, and the subspace of its activation that is interchanged.

    Attributes:
        site: where.
        basis: orthonormal ``[d, rank]``; the whole activation when None.
        elsewhere: a control: move as far as the interchange does, but inside this other subspace ``[d, rank]``.
    """

    site: Site
    basis: Tensor | None = None
    elsewhere: Tensor | None = None

    @classmethod
    def of(cls, site: Site | str, directions: ArrayLike | Tensor | None = None) -> Place:
        """A place from directions ``[rank, d]`` that span the subspace, orthonormal or not."""
        site = Site.parse(site) if isinstance(site, str) else site
        if directions is None:
            return cls(site)
        rows = torch.as_tensor(np.asarray(directions, dtype=np.float64))
        basis, _ = torch.linalg.qr(rows.reshape(-1, rows.shape[-1]).T)
        return cls(site, basis)

    def placebo(self, d_model: int, seed: int) -> Place | None:
        """A move as far, in a random subspace of equal rank (a line, for a whole activation); None off the residual."""
        if self.site.kind.axes not in ("pos", "latent"):
            return None
        rank = 1 if self.basis is None else self.basis.shape[1]
        return replace(self, elsewhere=random_basis(d_model, rank, seed))

    def __call__(self, own: Tensor, source: Tensor) -> Tensor:
        """The base's activation after the interchange."""
        if self.basis is None and self.elsewhere is None:
            return source
        step = SubspaceInterchange(torch.eye(own.shape[-1]).to(own) if self.basis is None else self.basis)
        return step(own, source) if self.elsewhere is None else NormMatchedPlacebo(step, self.elsewhere)(own, source)


@dataclass(frozen=True)
class InterchangeResult:
    """Interchange accuracy of one variable at some places.

    Attributes:
        variable: what was interchanged in the algorithm.
        places: where in the network, as text.
        outcome: "prediction" or "state".
        correct: was the outcome the counterfactual's, ``[episode, round]``.
        unpatched: would it have been without an intervention.
        informative: does the algorithm's counterfactual differ from its outcome on the base.
        error: largest difference from the counterfactual's probabilities, or state, ``[episode, round]``.
        settings: model, causal model, rounds, tolerance, versions.
    """

    variable: str
    places: tuple[str, ...]
    outcome: str
    correct: Bool[np.ndarray, "episode round"]
    unpatched: Bool[np.ndarray, "episode round"]
    informative: Bool[np.ndarray, "episode round"]
    error: Float[np.ndarray, "episode round"]
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def iia(self) -> float:
        return float(self.correct.mean())

    @property
    def chance(self) -> float:
        """The accuracy of doing nothing."""
        return float(self.unpatched.mean())

    @property
    def chance_informative(self) -> float:
        """The accuracy of doing nothing over informative pairs; NaN when there is none."""
        return float(self.unpatched[self.informative].mean()) if self.informative.any() else float("nan")

    @property
    def iia_informative(self) -> float:
        """Accuracy over informative pairs; NaN when there is none."""
        return self.interval().estimate

    @property
    def max_error(self) -> float:
        return float(self.error.max())

    def interval(self, seed: int = 0) -> Interval:
        """Accuracy over informative pairs with its 95 % bootstrap interval over episodes."""
        return ratio_interval((self.correct & self.informative).sum(1), self.informative.sum(1), seed=seed)

    def to_frame(self) -> pd.DataFrame:
        """One row: accuracies, interval, chance, numbers of pairs."""
        interval = self.interval()
        row = {
            "variable": self.variable,
            "places": " + ".join(self.places),
            "outcome": self.outcome,
            "iia": self.iia,
            "chance": self.chance,
            "iia_informative": interval.estimate,
            "low": interval.low,
            "high": interval.high,
            "chance_informative": self.chance_informative,
            "n_pairs": self.correct.size,
            "n_informative": int(self.informative.sum()),
            "max_error": self.max_error,
        }
        return pd.DataFrame([row])


def interchange(
    model: HookedLatentTransformer,
    base: Any,
    source: Any,
    causal: CausalModel,
    variable: str,
    places: Place | Site | str | Sequence[Place | Site | str],
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
        causal: the algorithm.
        variable, element: what is interchanged in it: a variable, or one element of it.
        places: what is interchanged in the network, all at once.
        outcome: what is compared, "prediction" or "state".
        rounds: the rounds at which pairs are made; each pair is one round, held apart from the others. The choice
            token of a round stays the base's.
        decode: latents to state for "state" (a fitted map); the exact readout of a handwired model when None.
        tolerance: how near an exactly read state must be.
        runs: the rollouts of ``base`` and ``source``, where they are known.

    Raises:
        InputError: unknown names, episodes that do not pair up, a round out of range.

    Example:
        >>> import interp
        >>> from interp.interventions.causal import weighted_majority
        >>> from interp.interventions.interchange import interchange
        >>> from interp.tasks import experts
        >>> model = interp.load("wma-handwired", n_experts=4).double()
        >>> pairs = [experts.sample(16, 20, 4, seed=seed) for seed in (0, 1)]
        >>> interchange(model, *pairs, weighted_majority(0.5), "log_weights", "resid_pre[0]@<z>").iia_informative
        1.0
    """
    if outcome not in get_args(Outcome):
        raise unknown_name("outcome", outcome, get_args(Outcome))
    require(
        causal.task == model.layout.task,
        f"{causal.name} is a model of {causal.task}, not of {model.layout.task} rounds",
    )
    model.eval()
    runs = runs or (rollout(model, base, commit=commit), rollout(model, source, commit=commit))
    require(
        runs[0].tokens.shape == runs[1].tokens.shape,
        f"base and source must pair up, got {tuple(runs[0].tokens.shape)} and {tuple(runs[1].tokens.shape)}",
    )
    chosen = select_rounds(rounds, runs[0].n_rounds)
    given = [places] if isinstance(places, Place | Site | str) else list(places)
    resolved = [p if isinstance(p, Place) else Place(resolve(p, model, runs[0].layout)) for p in given]
    for place in resolved:
        resolve(place.site, model, runs[0].layout)
    inputs = [{k: v[:, chosen] for k, v in causal.inputs(episodes).items()} for episodes in (base, source)]
    own, wanted = causal.run(inputs[0]), causal.interchange(inputs[0], inputs[1], variable, element)
    patched = intervened(model, runs[0], runs[1], resolved, chosen)
    unpatched = runs[0].predictions[:, chosen], runs[0].latents[:, [t + 1 for t in chosen]]
    if outcome == "prediction":
        goal, plain = causal.prediction(wanted), causal.prediction(own)
        found, without = (
            outcome_probabilities(p, causal.task).double().numpy(force=True) for p, _ in (patched, unpatched)
        )
        correct, still = (_same_choice(x, goal) for x in (found, without))
        informative = ~_same_choice(plain, goal)
        error = np.abs(found - goal).max(-1)
    else:
        read = decode if decode is not None else model.read_state
        goal, plain = wanted[causal.state], own[causal.state]
        found, without = (
            _written(read(latents), runs[0], chosen).double().numpy(force=True) for _, latents in (patched, unpatched)
        )
        if decode is not None:
            found, without = plain + found - without, plain
        error, missed, moved = (_distance(x, goal) for x in (found, without, plain))
        informative = moved > tolerance
        near: Any = tolerance
        if decode is not None and informative.any():
            near = np.where(informative, moved, np.median(moved[informative])) / 2
        correct, still = error <= near, missed <= near
    name = variable if element is None else f"{variable}{[element] if isinstance(element, int) else list(element)}"
    settings = provenance(
        model=model.config.name,
        digest=model.digest(),
        causal=causal.key,
        parameters=dict(causal.parameters),
        rounds=chosen,
        commit=commit,
        tolerance=tolerance,
    )
    texts = tuple(f"{p.site}" + ("" if p.basis is None else f" (rank {p.basis.shape[1]})") for p in resolved)
    return InterchangeResult(name, texts, outcome, correct, still, informative, error, settings)


def intervened(
    model: HookedLatentTransformer, base: Rollout, source: Rollout, places: Sequence[Place], rounds: Sequence[int]
) -> tuple[Tensor, Tensor]:
    """Predictions ``[episode, round, ...]`` and next latents of base rounds with places taken from the source's."""
    index = torch.tensor(list(rounds), device=base.tokens.device)
    flat = [
        [x[:, index].flatten(0, 1) for x in (run.tokens, run.latents, run.values, run.slots)] for run in (base, source)
    ]
    predictions, latents = [], []
    with torch.no_grad():
        for start in range(0, len(flat[0][0]), CHUNK):
            mine, theirs = ([x[start : start + CHUNK] for x in side] for side in flat)
            names = list(dict.fromkeys(place.site.hook for place in places))
            kept: dict[str, Tensor] = {}
            if names:
                _, cache = model.run_with_cache(*theirs[:3], names_filter=names)
                kept = {name: cache[name] for name in names}
            fired = dict.fromkeys(names, 0)
            hooks = [(name, _swap(name, places, kept, base, fired)) for name in names]
            with model.hooks(fwd_hooks=hooks):
                out = model(*mine[:3])
            assert all(count == 1 for count in fired.values()), f"interchange hooks fired {fired}, not once each"
            predictions.append(out.prediction)
            latents.append(model.write(out.latents, out.update, mine[3]))
    shape = (base.n_episodes, len(rounds))
    return torch.cat(predictions).unflatten(0, shape), torch.cat(latents).unflatten(0, shape)


def _swap(
    name: str, places: Sequence[Place], kept: dict[str, Tensor], base: Rollout, fired: dict[str, int]
) -> HookFunction:
    def hook(activation: Tensor, hook: object) -> Tensor:
        fired[name] += 1
        changed = activation.clone()
        for place in places:
            if place.site.hook == name:
                where = place.site.index(base.layout)
                changed[where] = place(changed[where], kept[name][where])
        return changed

    return hook


def _written(state: Tensor, base: Rollout, rounds: Sequence[int]) -> Tensor:
    """What the rounds wrote: the whole state, or the column of the slot in a Q-table ``[..., S, A]``."""
    if base.layout.task == "experts":
        return state
    slots = base.slots[:, list(rounds), None, None].expand(*state.shape[:-1], 1)
    return state.gather(-1, slots).squeeze(-1)


def _same_choice(p: NDArray[Any], q: NDArray[Any]) -> NDArray[np.bool_]:
    return _choice(p) == _choice(q)


def _choice(p: NDArray[Any]) -> NDArray[np.int64]:
    """The most probable outcome; the lowest index within rounding of the maximum."""
    return (p >= p.max(-1, keepdims=True) - 1e-9).argmax(-1)


def _distance(x: NDArray[Any], y: NDArray[Any]) -> NDArray[Any]:
    return np.abs(x - y).reshape(*x.shape[:2], -1).max(-1)
