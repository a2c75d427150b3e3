"""Machines of which it is known what an audit must say, half of them not looked at while thresholds were chosen."""

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import interp
from interp.audit import AuditResult, Budget
from interp.core.algorithm import Algorithm, Variable
from interp.tasks.experts import TASK as EXPERTS
from interp.tasks.experts.algorithms import (
    follow_previous_winners,
    majority_vote,
    weighted_majority,
)
from interp.tasks.reachability.algorithms import breadth_first, heuristic
from interp.tasks.reachability.layout import ReachabilityRound
from lab import known
from lab.known import by_algorithm

SMALL = Budget(episodes=48, rounds=8, writes=4, copies=1)


@dataclass(frozen=True)
class Planted:
    """A machine, and the right words: question (and channel) -> word."""

    make: Callable[[], Any]
    right: Mapping[str, str]
    held_out: bool


def _graph(algorithm: Algorithm) -> Any:
    return by_algorithm.machine(algorithm, ReachabilityRound(12, 18), name=algorithm.key)


def _searching(key: str) -> Any:
    """A known machine of the task that is an algorithm, on these graphs."""
    machine = known.gallery("reachability")[key].make()
    return _graph(machine.module.algorithm)


ELAPSED = Variable("elapsed", "t", "rounds before", "rounds", "state")
FOLLOWING = Variable(
    "next_elapsed",
    "t",
    "rounds",
    "rounds",
    parents=("elapsed",),
    equation=lambda v: v["elapsed"] + 1,
)


def _answering(key: str, of: str, rounds: int | None = None) -> Algorithm:
    """Search that carries its set and answers by a heuristic: always, or in the first ``rounds`` rounds."""
    base, rule = breadth_first(), heuristic(of).variable("prediction")
    assert rule.equation is not None
    if rounds is None:
        return base.make_variant(key, key, {}, {"prediction": (rule.parents, rule.equation)})
    search = base.variable("prediction")

    def answer_by_rule_then_search(v: Any) -> Any:
        late = (v["elapsed"] >= rounds)[..., None]
        return np.where(late, search.equation(v), rule.equation(v))  # type: ignore[misc]

    place = [v.key for v in base.variables].index("prediction")
    parents = tuple(dict.fromkeys(("elapsed", *search.parents, *rule.parents)))
    through_prediction = base.variables[: place + 1]
    after_prediction = base.variables[place + 1 :]
    variables = (ELAPSED, *through_prediction, FOLLOWING, *after_prediction)
    changes = {"prediction": (parents, answer_by_rule_then_search)}
    varied = base.make_variant(key, key, {}, changes, variables=variables)
    return _starting(varied, base, elapsed=_zeros)


def _zeros(episodes: Any) -> Any:
    """The start of a count of rounds."""
    return np.zeros(len(episodes), np.int64)


def _starting(varied: Algorithm, base: Algorithm, **starts: Callable[[Any], Any]) -> Algorithm:
    """``varied`` with the starts of ``base`` and those of further variables of the state."""
    from dataclasses import replace

    def initial(episodes: Any) -> dict[str, Any]:
        further = {key: start(episodes) for key, start in starts.items()}
        return {**base.initial(episodes), **further}

    return replace(varied, initial=initial)


def _counting(base: Any, key: str, name: str, predict: Any) -> Any:
    """A machine that counts rounds, and predicts from the count and what ``base`` predicts from."""
    parents = ("elapsed", *base.variable("prediction").parents)
    variables = (ELAPSED, *base.variables, FOLLOWING)
    varied = base.make_variant(
        key,
        name,
        {},
        {"prediction": (parents, predict)},
        variables=variables,
        memory="elapsed",
        written="",
    )
    started = _starting(varied, base, elapsed=_zeros)
    return by_algorithm.machine(started, EXPERTS.layout(n_experts=4), name=key)


def _pausing() -> Any:
    """It counts rounds; in the first three it says nothing, and then what the majority of the round says."""
    base = majority_vote()
    rule = base.variable("prediction")

    def pause_then_vote(v: Any) -> Any:
        return np.where(v["elapsed"] >= 3, rule.equation(v), 0.5)  # type: ignore[misc]

    return _counting(base, "pausing", "a pause, then a vote", pause_then_vote)


def _by_turns() -> Any:
    """It counts rounds, and follows one expert after the other: predictions move, and are no better for the count."""
    base = majority_vote()

    def follow(v: Any) -> Any:
        n_experts = v["votes"].shape[-1]
        expert = (v["elapsed"] % n_experts).astype(int)
        vote = np.take_along_axis(v["votes"], expert[..., None], -1)[..., 0]
        return 0.25 + 0.5 * vote

    return _counting(base, "turns", "one expert after the other", follow)


def _from_the_root() -> Algorithm:
    """It carries the root alone, and answers the candidate nearer to it, whichever way edges run."""
    base = heuristic("nearer_undirected")
    rule = base.variable("prediction")
    previous_root = Variable(
        "kept", "r", "the root that was told in the last round, -1 before", "name", "state"
    )
    following = Variable(
        "next_kept", "r", "the root", "name", parents=("root",), equation=lambda v: 1.0 * v["root"]
    )

    def answer_from_previous_root(v: Any) -> Any:
        is_known = v["kept"] >= 0
        root = np.clip(v["kept"], 0, v["nodes"].max()).round().astype(int)
        answers = rule.equation({**v, "root": root})  # type: ignore[misc]
        even = 1 / answers.shape[-1]
        return np.where(is_known[..., None], answers, even)

    def no_root(episodes: Any) -> Any:
        return np.full(len(episodes), -1.0)

    parents = ("kept", *(key for key in rule.parents if key != "root"))
    varied = base.make_variant(
        "fromtheroot",
        "undirected distance",
        {},
        {"prediction": (parents, answer_from_previous_root)},
        variables=(previous_root, *base.variables, following),
        memory="kept",
    )
    return _starting(varied, base, kept=no_root)


def _idle_majority() -> Any:
    """Weighted Majority's log-weights are carried, and the majority of the round is answered."""
    vote = majority_vote().variable("prediction")
    changes = {"prediction": (vote.parents, vote.equation)}
    varied = weighted_majority(0.5).make_variant(
        "idle", "a majority vote beside idle weights", {}, changes
    )
    return by_algorithm.machine(varied, EXPERTS.layout(n_experts=4), name="idle weights")


class Map(nn.Module):
    """``x' = f(x) + inputs``: a state whose movement is known, beside a vote that reads its first number or nothing."""

    def __init__(self, matrix: Any, drift: Any, inputs: float, bend: float) -> None:
        super().__init__()
        self.matrix = nn.Parameter(torch.tensor(matrix, dtype=torch.float64))
        self.drift = nn.Parameter(torch.tensor(drift, dtype=torch.float64))
        self.inputs, self.bend = inputs, bend

    def reset_parameters(self) -> None:
        with torch.no_grad():
            self.matrix.normal_()
            self.drift.zero_()

    def forward(self, x: Tensor, said: Tensor) -> Tensor:
        next_state = x @ self.matrix.T
        next_state = torch.tanh(self.bend * next_state) if self.bend else next_state
        heard = said[:, : x.shape[1]] - 0.5
        return next_state + self.drift + self.inputs * heard


def moving(matrix: Any, drift: Any = None, inputs: float = 1.0, bend: float = 0.0) -> Any:
    """The machine of a map."""
    n = len(matrix)

    def step(module: Map, carried: dict[str, Tensor], fed: Any) -> tuple[Tensor, dict[str, Tensor]]:
        advice = (fed.tokens[:, 3:11:2] - 3).double()
        x = carried["x"]
        share = advice.mean(1) + 0.1 * torch.tanh(x[:, 0]) * 0
        return torch.stack([1 - share, share], -1), {"x": module(x, advice)}

    module = Map(matrix, drift or [0.0] * n, inputs, bend)
    channels = [interp.Channel("x", (n,))]
    return interp.adapt(
        module,
        "experts",
        sizes={"n_experts": 4},
        step=step,
        channels=channels,
        output="probability",
        name="map",
    )


class Cached(nn.Module):
    """Weighted Majority from a cache of all rounds, beside a thought that holds the weights and that nobody reads."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.tensor(0.5, dtype=torch.float64))

    def reset_parameters(self) -> None:
        with torch.no_grad():
            self.gain.zero_()


def cached(reads: str = "cache") -> Any:
    """The machine that answers from its cache, or from its thought."""

    def step(
        module: Cached, carried: dict[str, Tensor], fed: Any
    ) -> tuple[Tensor, dict[str, Tensor]]:
        advice = (fed.tokens[:, 3:11:2] - 3).double()
        truth = (fed.tokens[:, -2:-1] - 3).double()
        weights = {"cache": carried["cache"].sum(1), "thought": carried["thought"][:, :4]}[reads]
        shares = (module.gain * weights).softmax(-1)
        p_one = (shares * advice).sum(-1)
        match = (advice == truth).double()
        counted = torch.cat([match, torch.ones_like(truth)], 1)
        thought = carried["thought"] + counted
        probabilities = torch.stack([1 - p_one, p_one], -1)
        return probabilities, {"cache": match.unsqueeze(1), "thought": thought}

    channels = [
        interp.Channel("cache", (SMALL.rounds * 4, 4), grows=1),
        interp.Channel("thought", (5,)),
    ]
    return interp.adapt(
        Cached(),
        "experts",
        sizes={"n_experts": 4},
        step=step,
        channels=channels,
        output="probability",
        name=f"reads its {reads}",
        algorithm=None,
    )


_wired = partial(interp.load, "wma-handwired", n_experts=4)
_WITH_A_MEMORY: dict[str, Callable[[], Any]] = {
    "Weighted Majority": _wired,
    "search": lambda: interp.load("reachability-handwired", n_nodes=12, n_edges=18, marks=False),
    "idle weights": _idle_majority,
    "in-degree beside an idle set": lambda: _graph(_answering("indegree", "fewer_parents")),
    "contraction": lambda: moving([[0.5, 0.0], [0.0, 0.25]]),
    "set in the last rounds only": lambda: _graph(_answering("lastonly", "fewer_parents", 5)),
}
_WITH_ANOTHER_MEMORY: dict[str, Callable[[], Any]] = {
    "state made anew": lambda: by_algorithm.machine(
        follow_previous_winners(), EXPERTS.layout(n_experts=4), name="winners"
    ),
    "pause": _pausing,
    "reads the round number": _by_turns,
    "undirected search": partial(_searching, "undirected"),
    "one round late": partial(_searching, "one round late, by algorithm"),
    "search from both ends": partial(_searching, "bidirectional"),
    "reads its cache": cached,
    "reads its thought": partial(cached, "thought"),
}
_WITHOUT_A_MEMORY: dict[str, Callable[[], Any]] = {
    "majority vote": lambda: by_algorithm.machine(majority_vote(), EXPERTS.layout(n_experts=4)),
    "more ancestors": lambda: _graph(heuristic("more_ancestors")),
    "undirected distance": lambda: _graph(_from_the_root()),
    "depth-first": partial(_searching, "depth-first"),
    "Q-learning": lambda: interp.load("qlearning-handwired", n_states=4, n_actions=3),
}
_MAKERS: dict[str, Callable[[], Any]] = {
    **_WITH_A_MEMORY,
    **_WITH_ANOTHER_MEMORY,
    **_WITHOUT_A_MEMORY,
}
_RIGHT = tomllib.loads(Path(__file__).with_name("planted.toml").read_text("utf-8"))


def _plant(key: str, make: Callable[[], Any]) -> Planted:
    """The machine of this key with its right words."""
    is_held_out = key in _RIGHT["held out"]
    right = _RIGHT["held out" if is_held_out else "seen"][key]
    return Planted(make, right, is_held_out)


PLANTED = {key: _plant(key, make) for key, make in _MAKERS.items()}


def verdict_of(result: AuditResult, question: str) -> str:
    """Return the verdict of a check, or of one of a channel ("used cache")."""
    key, channel = question, ""
    if question.startswith("used "):
        key, _, channel = question.partition(" ")
    of_key = [claim for claim in result if claim.key == key]
    return next(claim.verdict for claim in of_key if claim.about == channel)
