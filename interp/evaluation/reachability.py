"""The evaluation of models of reachability: accuracy by round and depth, compared with searches,
heuristics and controls.

In this task a model must say which of two candidate nodes can be reached from the root of a graph.
A search carries the set of nodes reached so far; in each round (a "thought") it adds their
neighbours. Accuracy shows what was found, not how, so there are two controls.

First, *is the recurrence needed?* :func:`score_with_controls` runs the model over the same episodes with its
latent removed or replaced. A model that answers as well without it does not use it for a search.

    >>> import interp
    >>> from interp.tasks import reachability
    >>> model = interp.load("reachability-handwired", n_nodes=10, n_edges=14)
    >>> runs = score_with_controls(model, reachability.sample(8, 4, 10, 14, seed=0))
    >>> sorted(runs)
    ['cut', 'discrete', 'frozen', 'reset', 'swapped']
    >>> bool((runs["cut"].predictions.max(-1).values == 0.5).all())   # both candidates equally likely
    True

Second, *is the set used?* :func:`measure_moved_sets` changes one node of the set that the latent
represents, and compares the answer with that of breadth-first search after the same change.

    >>> table = measure_moved_sets(model, reachability.sample(16, 4, 10, 14, seed=0, depths=(2,)))
    >>> table.set_index(["move", "later"])["model"].round(2).to_dict()[("a parent of the negative is added", 1)]
    0.5

docs/method/reachability.md describes the controls, the changes of the set, and how accuracy is
counted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from interp.core.algorithm import participants_of, refuse_missing
from interp.core.machine import Machine
from interp.evaluation.plan import MODEL, SWAP, EvaluationPlan, Hook, cut, predictions_of
from interp.interventions.steering import has_state_direction, write_state
from interp.model.rollout import rollout
from interp.model.run import Rollout
from interp.stats.decoder import Affine
from interp.stats.intervals import Interval, mean_interval, share_interval
from interp.support.checks import checked
from interp.support.errors import InputError, require
from interp.tasks.reachability import graphs
from interp.tasks.reachability.algorithms import breadth_first, records
from interp.tasks.reachability.analysis import losses
from interp.tasks.reachability.episodes import ReachabilityEpisodes
from interp.tasks.reachability.sampling import sample

Read = Callable[[Tensor], Tensor]
"""Function from latents ``[..., latent, d_model]`` to the decoded set ``[..., node]``: > 0.5 if in it."""
Write = Callable[[Tensor, Tensor], Tensor]
"""Function from latents and a set to latents that represent this set."""
_Set = NDArray[Any]
_LATENTS_HOOK = "hook_latents"
PARENT, OTHER = "a parent of the negative is added", "another node is added"
"""Names of the most specific change of the set, and of its control."""


def codec(model: Machine, episodes: ReachabilityEpisodes | None = None) -> tuple[Read, Write]:
    """Return two functions, (read, write), that decode sets of nodes from a model's latents and
    write sets into latents. A set of nodes, such as those that a search has reached, is one number
    per node, ``[..., node]``; above 0.5 the node is in the set.

    ``read(latents)`` returns the set that the latents represent. ``write(latents, state)`` returns
    changed latents that represent the set ``state``. For a handwired transformer both are exact.
    For other models both are linear maps, fitted by least squares on ``episodes``, with the sets
    that breadth-first search has reached.

    Args:
        model: the model.
        episodes: episodes to fit the maps on, which should differ from those that are studied; None
            for a handwired transformer.
    """
    if has_state_direction(model):
        return model.read_state, partial(write_state, model)
    if episodes is None:
        raise InputError(
            f"sets are read from {model.name!r} by a fitted map; give episodes to fit it on"
        )
    sets = torch.from_numpy(_compute_sets(episodes)).flatten(0, 1)  # [episode * round, node]
    carried = rollout(model, episodes).latents[:, :-1]  # the latents that the rounds read
    latents = carried.flatten(0, 1).flatten(1).double().cpu()  # [episode * round, number]
    set_of_latents = Affine.fit(latents, sets)
    latents_of_set = Affine.fit(sets, latents)

    def read(latents: Tensor) -> Tensor:
        """Decode the set of reached nodes from latents, ``[..., node]``; above 0.5 the node is in
        the set.

        Args:
            latents: the latents, ``[..., latent, d_model]``.
        """
        flat = latents.flatten(-2).double().cpu()
        return set_of_latents(flat).to(latents)

    def write(latents: Tensor, state: Tensor) -> Tensor:
        """Change latents so that they represent another set of nodes, and return them, ``[...,
        latent, d_model]``.

        Args:
            latents: the latents, ``[..., latent, d_model]``.
            state: the set, 1 for nodes in it and 0 for others, ``[..., node]``.
        """
        present = (read(latents) > 0.5).to(state)
        # Only nodes that are added or removed change the latents. The rest stays as it is.
        change = (state - present).double().cpu() @ latents_of_set.slopes
        shaped = change.unflatten(-1, latents.shape[-2:])
        return latents + shaped.to(latents)

    return read, write


def _compute_sets(episodes: ReachabilityEpisodes) -> NDArray[np.float64]:
    """Compute the set of nodes that breadth-first search has reached before every round: 1 for
    nodes in the set and 0 for others, ``[episode, round, node]``.

    Args:
        episodes: episodes without missing rounds.
    """
    refuse_missing("the reading of sets", episodes)
    sets: NDArray[np.float64] = breadth_first().run(episodes)["reached"]
    return sets


def score_decoded_sets(
    model: Machine, episodes: ReachabilityEpisodes, read: Read, seed: int = 0
) -> pd.DataFrame:
    """Decode a set of nodes from the latents that each round reads. Compute the share of episodes in
    which it equals the set that breadth-first search has reached before the round.

    Args:
        model: the model.
        episodes: episodes without missing rounds.
        read: function that decodes sets, from :func:`codec`.
        seed: seed of the bootstrap.

    Returns:
        A table with one row per ``round`` from the second on (index 1): ``estimate`` is the share,
        ``low`` and ``high`` are the ends of its 95 % interval.
    """
    latents = rollout(model, episodes).latents[:, 1:-1]  # those that rounds 1, 2, ... read
    decoded = read(latents).numpy(force=True) > 0.5
    reached = _compute_sets(episodes)[:, 1:] > 0.5
    is_right = (decoded == reached).all(-1)  # [episode, round]
    participants = participants_of(episodes)
    one_per_episode = np.ones(len(episodes))
    rows = []
    for t, is_right_in_round in enumerate(is_right.T, start=1):
        share = share_interval(
            is_right_in_round, one_per_episode, seed=seed, participants=participants
        )
        rows.append({"round": t, **vars(share)})  # estimate, low and high
    return pd.DataFrame(rows)


# Is the recurrence needed?


def _make_discrete(read: Read, write: Write, seed: int) -> Hook:
    """Make a hook with which the model follows only one of the nodes that a round reaches, like a
    discrete chain of thought.

    In each round, the latents are changed before the round reads them. The set of reached nodes
    that they represent keeps only one of its new nodes, drawn at random.

    Args:
        read: function that decodes the set of reached nodes from latents.
        write: function that changes latents so that they represent a set; :func:`codec` returns
            both.
        seed: seed of the random choices.

    Returns:
        The hook: (name of the hook point, function).
    """
    generator = torch.Generator().manual_seed(seed)
    memory: dict[str, Tensor] = {}  # "kept": the nodes kept so far, for the next call

    def keep_one(latents: Tensor, hook: Any) -> Tensor:
        """Return latents that represent fewer reached nodes: those that earlier calls kept, and one
        of the new ones, drawn at random. This function is a hook.

        Args:
            latents: the latents that the round would read, ``[episode, latent, d_model]``.
            hook: not used.
        """
        reached = read(latents) > 0.5  # [episode, node]
        kept_nodes = memory.get("kept", torch.zeros_like(reached))
        # In the first call, the root is one of the new nodes, and may be drawn.
        new = reached & ~kept_nodes
        random_keys = torch.rand(new.shape, generator=generator).to(latents.device)
        # The new node with the largest random number. Without new nodes it is node 0, which the
        # mask below removes.
        drawn = random_keys.masked_fill(~new, -1.0).argmax(-1)
        is_drawn = torch.nn.functional.one_hot(drawn, new.shape[-1]).bool()
        memory["kept"] = kept_nodes | (is_drawn & new)
        return write(latents, memory["kept"].to(latents.dtype))

    return _LATENTS_HOOK, keep_one


@checked
def score_with_controls(
    model: Machine,
    episodes: ReachabilityEpisodes,
    read: Read | None = None,
    write: Write | None = None,
    seed: int = 0,
) -> dict[str, Rollout]:
    """Run a model with changed latents (the state that it carries from round to round), to test
    whether it needs them.

    The model is run once for each of these changes:

    - "cut": every round reads the initial latents;
    - "reset": only the middle round reads the initial latents;
    - "frozen": all rounds from the second on read the latents that the second round reads;
    - "swapped": every round reads the latents of another episode; left out for a single episode;
    - "discrete": latents represent the set of nodes that were reached. From the second round on,
      each round may add only one node to it, drawn from those that it reaches. Left out without
      ``read`` and ``write``.

    Args:
        model: the model.
        episodes: episodes without missing rounds.
        read: function that decodes the set of reached nodes from latents.
        write: function that changes latents so that they represent a set. :func:`codec` returns
            both. If both are None, a handwired transformer gets exact functions.
        seed: seed of random choices.

    Returns:
        Name of the change -> the rollout with this change.
    """
    refuse_missing("the control of the recurrence", episodes)
    rounds = range(episodes.n_rounds)
    stored = dict[str, Tensor]()
    middle = rounds[len(rounds) // 2 :][:1]  # a range, as the other hooks have

    def repeat_first(latents: Tensor, hook: Any) -> Tensor:
        """Return the latents that were passed to the first call, in every call. This function is a
        hook: all rounds in which it acts read what the first of them reads.

        Args:
            latents: the latents that the round would read, ``[episode, latent, d_model]``.
            hook: not used.
        """
        return stored.setdefault("first", latents)

    # name of a change -> (rounds in which the hook acts, hook)
    hooks: dict[str, tuple[Sequence[int], Hook]] = {
        "cut": (rounds, cut(model)),
        "reset": (middle, cut(model)),
        "frozen": (rounds[1:], (_LATENTS_HOOK, repeat_first)),
    }
    if len(episodes) > 1:
        hooks["swapped"] = rounds, SWAP
    if has_state_direction(model) and read is None and write is None:
        read, write = codec(model)
    if read is not None and write is not None:
        hooks["discrete"] = rounds[1:], _make_discrete(read, write, seed)
    clean = rollout(model, episodes)
    return {
        key: rollout(model, episodes, fwd_hooks={t: [hook] for t in when}, clean=clean)
        for key, (when, hook) in hooks.items()
    }


# Is the set used?


def _draw_one(allowed: NDArray[np.bool_], seed: int) -> NDArray[np.float64]:
    """Draw one of the allowed nodes of each episode at random.

    Args:
        allowed: which nodes are allowed, ``[episode, node]``.
        seed: seed of the draw.

    Returns:
        One-hot rows, ``[episode, node]``; a row of zeros if no node is allowed.
    """
    rng = np.random.default_rng(seed)
    # The allowed node with the largest random number.
    random_keys = np.where(allowed, rng.random(allowed.shape), -1.0)
    drawn = np.eye(allowed.shape[-1])[random_keys.argmax(-1)]
    return drawn * allowed.any(-1, keepdims=True)


def _list_set_changes(episodes: ReachabilityEpisodes, seed: int) -> dict[str, tuple[_Set, _Set]]:
    """List the changes of the set of reached nodes that :func:`measure_moved_sets` makes. The
    target is the candidate that the root reaches, the negative is the other candidate.

    Args:
        episodes: the episodes, with their graphs and candidates.
        seed: seed of random choices of nodes.

    Returns:
        Name of a change -> (nodes that are added, nodes that are removed), each 1 or 0, ``[episode,
        node]``.
    """
    one_hot = np.eye(episodes.n_nodes)
    rows = np.arange(len(episodes))
    target = one_hot[episodes.targets]
    negative = one_hot[episodes.negatives]
    nothing = np.zeros_like(target)
    # [episode, from, to]: an edge, and a path of any length
    matrix = graphs.adjacency(episodes.edges, episodes.n_nodes)
    paths = graphs.closure(matrix)
    # Nodes whose addition changes no answer: the root does not reach them (their distance is
    # n_nodes), they are no candidates, and no path leads from them to a candidate.
    others = episodes.distances >= episodes.n_nodes
    for candidate in (episodes.targets, episodes.negatives):
        others &= ~paths[rows, :, candidate]
        others[rows, candidate] = False
    # The parents of the negative. The root reaches none of them, since it does not reach the
    # negative.
    parents = np.asarray(matrix[rows, :, episodes.negatives])  # [episode, node]
    return {
        "nothing": (nothing, nothing),
        "the negative is added": (negative, nothing),
        "the target is taken out": (nothing, target),
        "the negative takes the target's place": (negative, target),
        PARENT: (_draw_one(parents, seed), nothing),
        OTHER: (_draw_one(others, seed), nothing),
    }


@checked
def measure_moved_sets(
    model: Machine,
    episodes: ReachabilityEpisodes,
    read: Read | None = None,
    write: Write | None = None,
    seed: int = 0,
) -> pd.DataFrame:
    """Change the set of reached nodes that the latent represents, and measure which of an episode's
    two candidate nodes the model then predicts. The target is the candidate that can be reached
    from the root; the negative is the candidate that cannot.

    The measured number is P(target) / (P(target) + P(negative)), in the round of the change and one
    round later. If the target is d steps from the root, the set is changed in round d (counted from
    0), the first in which breadth-first search knows the answer.

    There are four changes and two controls:

    - the target is removed from the set;
    - the negative is added;
    - the target is removed and the negative is added;
    - a parent of the negative, drawn at random, is added;
    - control: nothing is changed;
    - control: a node from which no candidate can be reached, drawn at random, is added.

    An episode without a node that can be drawn is left out for the change that needs it.

    Args:
        model: the model.
        episodes: episodes with one more round than the deepest target needs.
        read, write: functions that decode sets of nodes from latents and write them, from
            :func:`codec`. None takes the exact ones, for a handwired transformer.
        seed: seed of random choices and of the bootstrap.

    Returns:
        A table with one row per change and number of rounds since the change. ``move`` is the
        change in words, such as "the target is taken out"; ``later`` is the number of rounds since
        the change, 0 or 1. ``model`` is the measured number, averaged over episodes, and ``low``
        and ``high`` are the ends of its interval. ``search`` is the same average for breadth-first
        search after the same change; ``n`` is the number of episodes.
    """
    depths = episodes.depths
    n_needed = depths.max() + 2
    require(
        episodes.n_rounds >= n_needed,
        f"episodes need a round after the deepest target is known, {n_needed} in all, got {episodes.n_rounds}; "
        "sample them with more rounds",
    )
    if read is None or write is None:
        read, write = codec(model)

    def move(latents: Tensor, hook: Any, t: int, wanted: _Set) -> Tensor:
        """Return the latents of round t with the set ``wanted`` written into them, in the episodes
        with a target t steps from the root.

        Args:
            latents: latents that the round reads.
            hook: the hook point; not used.
            t: index of the round.
            wanted: the set of nodes to write, ``[episode, node]``.
        """
        # A target t steps away is first known in round t: only there is the set changed.
        is_due = torch.from_numpy(depths == t).to(latents.device)[:, None, None]
        state = torch.from_numpy(wanted).to(latents)
        return torch.where(is_due, write(latents, state), latents)

    every_episode = np.arange(len(episodes))
    search = breadth_first()
    # Of the first round: the graph and the candidates are the same in every round.
    inputs = {key: value[:, 0] for key, value in search.read(episodes).items()}
    before = _compute_sets(episodes)[every_episode, depths]  # [episode, node]
    clean = rollout(model, episodes)
    rows = []
    for name, (added, removed) in _list_set_changes(episodes, seed).items():
        # Where no node could be drawn, there is no change, and the episode does not count.
        possible = (added + removed).any(-1) | (name == "nothing")
        if not possible.any():
            continue
        wanted = np.clip(before + added - removed, 0, 1)  # the set to write, [episode, node]
        change = {
            int(t): [(_LATENTS_HOOK, partial(move, t=int(t), wanted=wanted))]
            for t in np.unique(depths)
        }
        predictions = rollout(model, episodes, fwd_hooks=change, clean=clean).predictions
        # The loss is the share of the negative, [episode, round].
        share = 1 - losses(predictions, episodes, slice(None)).double().numpy(force=True)
        state_after, values_now = search.step({"reached": wanted}, inputs)
        _, values_later = search.step(state_after, inputs)
        for later, values in enumerate((values_now, values_later)):
            target = values["prediction"][every_episode, episodes.targets]
            negative = values["prediction"][every_episode, episodes.negatives]
            shares = share[every_episode, depths + later][possible]
            participants = participants_of(episodes)[possible]
            number = mean_interval(shares, seed=seed, participants=participants)
            expected = (target / (target + negative))[possible]
            of_search = {"search": float(expected.mean()), "n": int(possible.sum())}
            rows.append({"move": name, "later": later, **vars(number), **of_search})
    return pd.DataFrame(rows).rename(columns={"estimate": "model"})


# What is measured of a model.

REGIMES = ("matched", "prosqa")
"""The regimes with a right answer: one candidate can be reached, the other cannot."""
_SETS_PART = "sets"  # name of the part of the evaluation that is not a regime
_N_FITTED, _FITTED_SEED = 256, 10_007
"""Most episodes to fit a learned model's maps on; number added to the seed for these episodes."""


def make_reader_and_writer(
    model: Machine, seed: int, n_episodes: int = _N_FITTED
) -> tuple[Read, Write]:
    """Return two functions (read, write) for a model, as from :func:`codec`. The first decodes a
    set of nodes from latents, the second writes a set into latents.

    The functions are exact for a handwired transformer. For other models they are fitted on newly
    sampled episodes of the regime "matched" (a distribution of graphs).

    Args:
        model: the model.
        seed: seed of the episodes to fit on.
        n_episodes: number of these episodes; reduced to 256 if it is larger.
    """
    if has_state_direction(model):
        return codec(model)
    n_fitted = min(n_episodes, _N_FITTED)
    fitted = episodes_for(model, "matched", n_fitted, seed + _FITTED_SEED)
    return codec(model, fitted)


def answers(
    model: Machine, episodes: ReachabilityEpisodes, read: Read, write: Write, seed: int = 0
) -> pd.DataFrame:
    """Compute the accuracy in every round of the model, of the model with its latent changed in
    several ways (:func:`score_with_controls`), and of every algorithm of the task.

    Args:
        model: the model.
        episodes: episodes of one regime (distribution of graphs).
        read: function from latents ``[..., latent, d_model]`` to the set of nodes that they
            represent (the nodes that a search has reached), ``[..., node]``; above 0.5 the node is
            in the set.
        write: function (latents, set) -> latents that represent this set. :func:`codec` returns
            both functions.
        seed: seed of random choices and of the bootstrap.

    Returns:
        A table with one row per predictor (``key``), ``depth`` of the target (its distance from the
        root) and ``round``. ``key`` is "model", the name of a change of the latent such as "cut",
        or the key of an algorithm. ``estimate`` is the share of right answers, and ``low`` and
        ``high`` are the ends of its 95 % interval. ``n`` is the number of episodes of this depth;
        ``regime`` is the name of the episodes' regime.
    """
    predicted = {MODEL: predictions_of(rollout(model, episodes))}
    predicted |= {record.key: record.make().run(episodes)["prediction"] for record in records()}
    predicted |= {
        key: predictions_of(run)
        for key, run in score_with_controls(model, episodes, read, write, seed).items()
    }
    rows = []
    for key, predictions in predicted.items():
        right = episodes.correct(np.asarray(predictions, dtype=np.float64))  # [episode, round]
        for depth in np.unique(episodes.depths):
            at_depth = episodes.depths == depth
            participants = participants_of(episodes)[at_depth]
            one_per_episode = np.ones(len(participants))
            for t in range(episodes.n_rounds):
                # Its fields are estimate, low and high.
                number = share_interval(
                    right[at_depth, t], one_per_episode, seed=seed, participants=participants
                )
                row = {"regime": episodes.regime, "key": key, "depth": int(depth), "round": t}
                rows.append({**row, "n": len(participants), **vars(number)})
    return pd.DataFrame(rows)


def episodes_for(model: Machine, regime: str, n_episodes: int, seed: int) -> ReachabilityEpisodes:
    """Sample episodes with the model's numbers of nodes and edges. The episodes end one round after
    the round in which breadth-first search reaches the farthest target.

    Args:
        model: the model, which determines the numbers of nodes and edges.
        regime: name of the distribution from which graphs are sampled.
        n_episodes: number of episodes.
        seed: seed of the episodes.
    """
    layout = model.layout
    n_rounds = 5  # replaced below, when the depths are known
    drawn = sample(n_episodes, n_rounds, layout.n_nodes, layout.n_edges, regime=regime, seed=seed)
    # A target at depth d is reached in the round with index d, the (d + 1)-th. One round follows.
    return replace(drawn, n_rounds=int(drawn.depths.max()) + 2)


def _measure_part(model: Machine, part: str, n_episodes: int, seed: int) -> Any:
    """Compute one part of the evaluation: the answers in a regime, or the tables about sets of
    reached nodes.

    Args:
        model: the model.
        part: name of a regime, or :data:`_SETS_PART`.
        n_episodes: number of episodes.
        seed: seed of the episodes.

    Returns:
        A table for a regime; the tables "moved" and "sets" for :data:`_SETS_PART`.
    """
    read, write = make_reader_and_writer(model, seed)
    if part in REGIMES:
        episodes = episodes_for(model, part, n_episodes, seed + REGIMES.index(part))
        return answers(model, episodes, read, write, seed)
    matched = episodes_for(model, "matched", n_episodes, seed)
    return {
        "moved": measure_moved_sets(model, matched, read, write, seed),
        "sets": score_decoded_sets(model, matched, read, seed),
    }


def _make_tables(model: Machine, measured: Mapping[str, Any]) -> dict[str, pd.DataFrame]:
    """Make the tables of the evaluation from the results of its parts.

    Args:
        model: the model; not used.
        measured: name of a part -> its result, as :func:`_measure_part` returns it.

    Returns:
        Name of a table -> the table:

        - "by_round" has the share of right answers of the model, each control and each algorithm,
          by round, regime and depth (the target's distance from the root);
        - "summary" has these shares in the last round: one row per regime and depth, one column for
          the model and for each control and algorithm;
        - "moved" and "sets" are the tables of :data:`_SETS_PART`.
    """
    frame = pd.concat([measured[regime] for regime in REGIMES], ignore_index=True)
    last_round = frame.groupby("regime")["round"].transform("max")
    last = frame[frame["round"] == last_round]
    # Predictors in the order of the table; pivot sorts them by name.
    keys = list(dict.fromkeys(last["key"]))
    wide = last.pivot(index=["regime", "depth"], columns="key", values="estimate")[keys]
    return {
        "summary": wide.rename_axis(columns=None).reset_index(),
        "by_round": frame,
        **measured[_SETS_PART],
    }


def read_interval(row: Any, column: str = "estimate") -> Interval:
    """Return the number in a column of a table's row, with the ends ``low`` and ``high`` of its
    interval.

    Args:
        row: the row, {column: value}.
        column: name of the column with the number.
    """
    return Interval(float(row[column]), float(row["low"]), float(row["high"]))


_EXPLAINED = (
    "Numbers are shares of right answers in the last round, by regime and by the depth of the target. "
    "Columns are the model, the model without its state or with another one, and the task's algorithms."
)


def plan() -> EvaluationPlan:
    """Return the evaluation plan for models of reachability: which parts are measured (answers in
    each regime, and the sets of nodes in the latent), and how tables are made from them.
    """
    return EvaluationPlan(
        parts=lambda model: [*REGIMES, _SETS_PART],
        measure=_measure_part,
        tables=_make_tables,
        min_episodes=16,
        explained=_EXPLAINED,
    )
