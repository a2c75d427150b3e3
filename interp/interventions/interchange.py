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
counts only the pairs whose counterfactual differs from the algorithm's own outcome on the base.

An accuracy of 1 says that these places hold the variable in a form the rest of the network uses; it says so for these
pairs only. A basis that was *learned* needs the controls of :func:`align`: methods that learn a basis find high
accuracies for arbitrary labels and in untrained networks too (Arora et al., 2024).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float
from numpy.typing import NDArray
from torch import Tensor

from interp.algorithm import Algorithm, Values
from interp.errors import require, unknown_name
from interp.interventions.places import Place, intervened, resolve_places
from interp.interventions.sites import Site
from interp.model.rollout import Rollout, Rounds, rollout, select_rounds
from interp.model.transformer import HookedLatentTransformer
from interp.provenance import provenance
from interp.statistics import Interval, ratio_interval

__all__ = ["InterchangeResult", "Place", "interchange"]

Outcome = Literal["prediction", "state"]


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
        settings: model, algorithm, rounds, tolerance, versions.
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
    algorithm: Algorithm,
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
        variable, element: what is interchanged in the algorithm: a variable's key, or one element of it.
        places: what is interchanged in the network, all at once.
        outcome: what is compared, "prediction" or "state".
        rounds: the rounds at which pairs are made; each pair is one round, held apart from the others. The choice
            token of a round stays the base's.
        decode: latents to state for "state" (a fitted map); the exact readout of a handwired model when None.
        tolerance: how near an exactly read state must be.
        runs: the rollouts of ``base`` and ``source``, where they are known.

    Raises:
        InputError: unknown names, an algorithm of another task or (for "state") one that does not say what a round
            writes, episodes that do not pair up, a round out of range.

    Example:
        >>> import interp
        >>> from interp.interventions.interchange import interchange
        >>> from interp.tasks import experts
        >>> model = interp.load("wma-handwired", n_experts=4).double()
        >>> algorithm = experts.TASK.algorithm("weighted_majority", gain=0.5)
        >>> pairs = [experts.sample(16, 20, 4, seed=seed) for seed in (0, 1)]
        >>> interchange(model, *pairs, algorithm, "log_weights", "resid_pre[0]@<z>").iia_informative
        1.0
    """
    if outcome not in get_args(Outcome):
        raise unknown_name("outcome", outcome, get_args(Outcome))
    require(
        algorithm.task == model.layout.task,
        f"{algorithm.name} is an algorithm of {algorithm.task}, not of {model.layout.task} rounds",
    )
    require(
        outcome != "state" or bool(algorithm.written),
        f"{algorithm.name} does not say what a round writes into the state; give the algorithm written=...",
    )
    model.eval()
    runs = runs or (rollout(model, base, commit=commit), rollout(model, source, commit=commit))
    require(
        runs[0].tokens.shape == runs[1].tokens.shape,
        f"base and source must pair up, got {tuple(runs[0].tokens.shape)} and {tuple(runs[1].tokens.shape)}",
    )
    at = select_rounds(rounds, runs[0].n_rounds)
    resolved = resolve_places(places, model, runs[0])
    own, other = (of_rounds(algorithm, episodes, at) for episodes in (base, source))
    wanted = algorithm.interchange(own, other, variable, element)
    patched = intervened(model, *runs, resolved, at)
    plain = runs[0].predictions[:, at], runs[0].latents[:, [t + 1 for t in at]]
    judged: dict[str, NDArray[Any]]
    if outcome == "prediction":
        judged = _judge_predictions(
            algorithm, own, wanted, *(runs[0].layout.distribution(p) for p, _ in (patched, plain))
        )
    else:
        read = model.read_state if decode is None else decode
        states = [runs[0].layout.written(read(latents), runs[0].slots[:, at]) for _, latents in (patched, plain)]
        goal = own[algorithm.written], wanted[algorithm.written]
        judged = _judge_states(*goal, *states, tolerance=tolerance, decoded=decode is not None)
    name = variable if element is None else f"{variable}{[element] if isinstance(element, int) else list(element)}"
    settings = provenance(
        model=model.config.name,
        digest=model.digest(),
        algorithm=algorithm.key,
        parameters=dict(algorithm.parameters),
        rounds=at,
        commit=commit,
        tolerance=tolerance,
    )
    return InterchangeResult(name, tuple(map(str, resolved)), outcome, **judged, settings=settings)


def of_rounds(algorithm: Algorithm, episodes: Any, rounds: Sequence[int]) -> Values:
    """Every variable at some rounds, ``[episode, round, ...]``."""
    return {key: values[:, list(rounds)] for key, values in algorithm.run(episodes).items()}


def _judge_predictions(
    algorithm: Algorithm, own: Values, wanted: Values, patched: Tensor, plain: Tensor
) -> dict[str, NDArray[Any]]:
    """Whether the choice is the counterfactual's: patched, unpatched and by the algorithm on the base."""
    goal, before = algorithm.distribution(wanted), algorithm.distribution(own)
    after, without = (p.double().numpy(force=True) for p in (patched, plain))
    return {
        "correct": _same_choice(after, goal),
        "unpatched": _same_choice(without, goal),
        "informative": ~_same_choice(before, goal),
        "error": np.abs(after - goal).max(-1),
    }


def _judge_states(
    before: NDArray[Any], goal: NDArray[Any], patched: Tensor, plain: Tensor, *, tolerance: float, decoded: bool
) -> dict[str, NDArray[Any]]:
    """Whether what the round wrote is the counterfactual's; a decoded change may be off by half of what is asked."""
    after, without = (state.double().numpy(force=True) for state in (patched, plain))
    if decoded:
        after, without = before + after - without, before
    error, missed, moved = (_distance(x, goal) for x in (after, without, before))
    informative = moved > tolerance
    near: Any = tolerance
    if decoded and informative.any():
        near = np.where(informative, moved, np.median(moved[informative])) / 2
    return {"correct": error <= near, "unpatched": missed <= near, "informative": informative, "error": error}


def _same_choice(p: NDArray[Any], q: NDArray[Any]) -> NDArray[np.bool_]:
    return _choice(p) == _choice(q)


def _choice(p: NDArray[Any]) -> NDArray[np.int64]:
    """The most probable outcome; the lowest index within rounding of the maximum."""
    return (p >= p.max(-1, keepdims=True) - 1e-9).argmax(-1)


def _distance(x: NDArray[Any], y: NDArray[Any]) -> NDArray[Any]:
    return np.abs(x - y).reshape(*x.shape[:2], -1).max(-1)
