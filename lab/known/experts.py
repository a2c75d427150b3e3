"""Known machines of prediction with expert advice, held against Weighted Majority with the gain .5.

What the words mean here. *Behaviour*: the same predictions, whatever is asked and however rarely. *State*: each
machine's state can be had from the other's, where the prediction depends on it, with the round supplied where needed;
"either" where only one way is exact. *Update*: the reference's state, decoded, changes as in the reference with
whatever a round holds. *Circuit*: heads play the same roles; edits of what is written leave them as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from circuits.compare.variants import rotated, with_distractors, without
from circuits.registry import load
from interp import library
from interp.algorithm import Algorithm, Equation, Values
from interp.machine import Machine
from interp.model.transformer import HookedLatentTransformer, untrained
from interp.tasks.experts import algorithms, lapses
from interp.tasks.experts.layout import ExpertRound
from lab.known import by_algorithm, edits, handmade
from lab.known.specimen import Specimen, specimen
from lab.variants import rescaled

GAIN = 0.5
"""Of the reference: its log gamma."""
_N = 4
_ONE_IN = 240
"""A rare lapse happens in about one round of so many."""


def wired(**options: Any) -> HookedLatentTransformer:
    """The reference, or the same circuit made with other options."""
    return load("wma-handwired", n_experts=_N, **options)


def computed(algorithm: Algorithm, name: str = "") -> Machine:
    """An algorithm as a machine in the reference's rounds."""
    return by_algorithm.machine(algorithm, ExpertRound(_N), name=name)


def specimens() -> tuple[Specimen, ...]:
    """The known machines."""
    return (*_the_same(), *_other_votes(), *_other_memories(), *_lapses(), *_learned())


_specimen = partial(specimen, "experts")


def _the_same() -> tuple[Specimen, ...]:
    """Machines that compute the reference in another way."""
    known = partial(_specimen, algorithm="weighted_majority")
    majority = algorithms.weighted_majority(GAIN)
    return (
        known("itself", wired, "s s s s", "nothing was done to it"),
        known("rotated", lambda: rotated(wired(), 1), "s s s s", "the same numbers in another basis", held_out=True),
        known(
            "with distractors", lambda: with_distractors(wired(), 2, 1), "s s s s",
            "two random heads a layer write what nothing reads",
        ),
        known(
            "rotated with distractors", lambda: rotated(with_distractors(wired(), 2, 1), 1), "s s s s",
            "both at once", held_out=True,
        ),
        known(
            "negated and scaled", lambda: rescaled(wired(), -4.0), "s s s s",
            "the state is held as -4 times what it is, and read so", held_out=True,
        ),
        known(
            "two copies", lambda: edits.twice(wired()), "s s s s",
            "a second copy of the state is written and never read; the first is used as in the reference",
        ),
        known("variant P", lambda: wired(variant="P"), "s s s e", "another construction: nobody can say how alike"),
        known(
            "softmax form", lambda: wired(eta=60.0), "s s s s",
            "hard and linear heads are softmax heads, exact to 1e-10", held_out=True,
        ),
        known("by algorithm", lambda: computed(majority), "s s s", "the algorithm itself, without a network"),
        known(
            "handmade GRU", handmade.majority, "s s s",
            "a GRU cell that counts hits in nine overlapping numbers, exact to 2e-5",
        ),
        known(
            "without the sum", lambda: without(wired(), wired().state_map.sum(0, keepdim=True)), "s e e s",
            "predictions depend on differences of log-weights alone, and it holds no more; their sum is gone",
            held_out=True,
        ),
    )  # fmt: skip


def _other_votes() -> tuple[Specimen, ...]:
    """Machines that hold the reference's state and predict otherwise from it."""
    known = _specimen
    gain = "the gain is {}: the same hits are counted, in other units"

    def scaled(log_gamma: float, behaviour: str, size: str, held_out: bool = False) -> Specimen:
        why, make = gain.format(size), partial(wired, log_gamma=log_gamma)
        return known(f"gain {log_gamma:g}", make, f"{behaviour} s s s", why, "weighted_majority", held_out=held_out)

    return (
        scaled(0.2, "d", "less than half of the reference's"),
        scaled(0.35, "e", ".7 of the reference's, which is about what thresholds allow", held_out=True),
        scaled(0.55, "e", "1.1 of the reference's, which is less than what thresholds allow"),
        scaled(1.0, "d", "twice the reference's", held_out=True),
        known(
            "Bayes", lambda: computed(algorithms.bayes()), "d s s",
            "it counts hits, as the reference does, and votes by log-odds", "bayes",
        ),
        known(
            "Bayes, wrong prior", lambda: computed(algorithms.bayes(0.0, 1.0)), "d s s",
            "the Bayes predictor of accuracies from U[0, 1]: the state is hits and the round", "bayes", held_out=True,
        ),
        known(
            "noisy follow the leader", lambda: computed(_noisy_leader()), "d s s",
            "it counts hits and gives nine tenths to the leaders, a tenth to everyone", held_out=True,
        ),
        known(
            "delayed switch", lambda: computed(_switching(8)), "d s s",
            "it counts from the first round on and weighs experts only after the eighth; until then all count alike",
            "", held_out=True,
        ),
        known(
            "inverted once in 240", lambda: computed(_inverted()), "d s s",
            "the same but in about one round of 240, where it says the opposite; no average shows this", "",
        ),
        known(
            "written and never read", lambda: edits.without_head(wired(), "2.1 fetch z"), "d e s d",
            "the log-weights are kept as in the reference, but p? does not fetch them: a vote without a memory, and "
            "whether a state that is worth nothing is the same nobody can say", "", held_out=True,
        ),
    )  # fmt: skip


def _other_memories() -> tuple[Specimen, ...]:
    """Machines whose memory fades, ends, or fills."""
    known = _specimen
    fades = "the log-weights fade to {} after every round"
    return (
        known(
            "leaky 0.995", lambda: edits.leaky(wired(), 0.995), "e e e s",
            f"{fades.format('.995')}, which is .9 after 20 rounds: about what thresholds allow",
        ),
        known(
            "leaky 0.95", lambda: edits.leaky(wired(), 0.95), "d e d s",
            f"{fades.format('.95')}; sums that fade are no counts, though close to them", "fading_majority",
            held_out=True,
        ),
        known(
            "leaky 0.9", lambda: edits.leaky(wired(), 0.9), "d e d s",
            f"{fades.format('.9')}; sums that fade are no counts, though close to them", "fading_majority",
        ),
        known(
            "last 10 rounds", lambda: edits.window(wired(), 10), "d d d s",
            "what is older than 10 rounds is taken away again", "majority_window", held_out=True,
        ),
        known(
            "last 5 rounds", lambda: edits.window(wired(), 5), "d d d s",
            "what is older than 5 rounds is taken away again", "majority_window",
        ),
        known(
            "fixed share", lambda: edits.edited(wired(), _share, "fixed share"), "d d d s",
            "a twentieth of all weight is handed out evenly after every round, so that old hits count less",
            "fixed_share", held_out=True,
        ),
        known(
            "capped at 6 hits", lambda: edits.edited(wired(), _capped, "capped at 6 hits"), "d d d s",
            "log-weights grow no more than 6 hits' worth, so all good experts become equal", "", held_out=True,
        ),
        known(
            "noise 0.02", lambda: edits.noisy(wired(), 0.02), "e e e s",
            "noise of .02 nats, a twenty-fifth of a hit, is added every round: less than what thresholds allow",
        ),
        known(
            "noise 0.2", lambda: edits.noisy(wired(), 0.2), "d e e s",
            "noise of .2 nats, two fifths of a hit, is added every round and stays; the state is still mostly hits",
        ),
        known(
            "noise 1", lambda: edits.noisy(wired(), 1.0), "d d d s",
            "noise of 1 nat, two hits, is added every round and stays: more than a round tells", held_out=True,
        ),
        known(
            "stops at round 10", lambda: edits.learning(wired(), lambda t: t < 10, "stops at round 10"), "d d d s",
            "nothing is learned after ten rounds", "stopped_majority",
        ),
        known(
            "change point", lambda: edits.forgetting(wired(), 10), "d d d s",
            "everything is forgotten after ten rounds, and learned anew", "",
        ),
    )  # fmt: skip


def _lapses() -> tuple[Specimen, ...]:
    """Machines that do not take in what a round says, or take it in late."""
    known = _specimen
    late = (
        "the last outcome{} never counts in a prediction; what waits is carried beside the log-weights, so the state "
        "gives the reference's exactly, and cannot be had from it"
    )
    ignored = "the votes of expert {} are never held against the truth, so its weight stays as it was"
    return (
        known(
            "one round late", lambda: edits.late(wired(), 1), "d e d s",
            late.format(""), "late_majority",
        ),
        known(
            "two rounds late", lambda: edits.late(wired(), 2), "d e d s",
            late.format(" but one"), "late_majority", held_out=True,
        ),
        known(
            "one round late, by algorithm", lambda: computed(lapses.late_majority(GAIN, 1)), "d e d",
            late.format(""), "late_majority", held_out=True,
        ),
        known(
            "ignores expert 1", lambda: _ignoring(1), "d d d s",
            ignored.format(1), "",
        ),
        known(
            "ignores expert 4", lambda: _ignoring(4), "d d d s",
            ignored.format(4), "", held_out=True,
        ),
        known(
            "label stuck", lambda: computed(_stuck()), "d d d",
            "it takes the truth to be 1 in every round, so it counts who says 1", "",
        ),
        known(
            "learns every other round",
            lambda: edits.learning(wired(), lambda t: t % 2 == 0, "learns every other round"), "d d d s",
            "every second outcome is ignored", "", held_out=True,
        ),
        known(
            "unlearns once in 240", lambda: edits.edited(wired(), _unlearns, "unlearns once in 240"), "d e d s",
            "the same but in about one round of 240, where hits are taken away in place of added; the state is off by "
            "this in one episode of eight", "",
        ),
    )  # fmt: skip


def _learned() -> tuple[Specimen, ...]:
    """Models that were trained on this task, and models that were not trained."""
    known = _specimen
    trained = "trained: it predicts as the Bayes predictor of {} does"
    read = "; that it holds and updates the reference's state is measured (README), not known by construction"
    another = "another seed of the same training; nobody can say how near its state comes"
    nothing = "random weights: nothing was learned"
    return (
        known("wma-learned", lambda: library.load("wma-learned"), "d s s d", trained.format("one interval") + read,
              "bayes"),
        known("wma-learned-1", lambda: library.load("wma-learned-1"), "d e e d", another, held_out=True),
        known("wma-learned-2", lambda: library.load("wma-learned-2"), "d e e d", another),
        known("wma-learned-wide", lambda: library.load("wma-learned-wide"), "d s s d",
              trained.format("two intervals") + read, "bayes_mixture", held_out=True),
        known("untrained 0", lambda: untrained(library.load("wma-learned"), 100), "d d d d", nothing, ""),
        known("untrained 1", lambda: untrained(library.load("wma-learned"), 101), "d d d d", nothing, "",
              held_out=True),
        known("untrained GRU", lambda: handmade.majority().fresh(1), "d d d", nothing, "", held_out=True),
        known("random cell", lambda: computed(algorithms.weighted_majority(GAIN)).fresh(1), "d d d",
              "a random network that holds a record of every round and computes nothing", ""),
    )  # fmt: skip


# Edits of the state, as lab.known.edits takes them.


def _share(before: Tensor, after: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
    return (0.95 * after.softmax(-1) + 0.05 / _N).log(), memory


def _capped(before: Tensor, after: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
    return after.clamp(max=6 * GAIN), memory


def _unlearns(before: Tensor, after: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
    hits = (after / GAIN).round()
    lapse = torch.from_numpy(_rarely(hits.numpy(force=True))).to(after.device)
    return torch.where(lapse.unsqueeze(-1), 2 * before - after, after), memory


def _ignoring(expert: int) -> HookedLatentTransformer:
    """The circuit that never updates one expert's weight."""

    def ignore(before: Tensor, after: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        deaf = torch.arange(_N, device=after.device) == expert - 1
        return torch.where(deaf, before, after), memory

    return edits.edited(wired(), ignore, f"ignores expert {expert}")


def _rarely(numbers: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """True for about one row of :data:`_ONE_IN`, whole numbers ``[..., k]``: which, nothing in them foretells."""
    primes = np.array([40503, 12289, 65537, 7919, 104729, 31337, 3571, 99991])[: numbers.shape[-1]]
    mixed = np.rint(numbers).astype(np.int64) @ primes + 2654435
    return np.asarray((mixed * 2654435761 >> 16) % _ONE_IN == 0)


# Algorithms that are Weighted Majority but for an equation or two.

_Changes = Mapping[str, tuple[tuple[str, ...], Equation]]


def _but(base: Algorithm, name: str, changes: _Changes, **others: Any) -> Algorithm:
    """``base`` under another key, with some variables' parents and equations exchanged."""
    return base.varied(name.replace(" ", "_"), name, base.parameters, changes, **others)


def _stuck() -> Algorithm:
    changes: _Changes = {"match": (("votes",), lambda v: v["votes"].astype(np.int64))}
    return _but(algorithms.weighted_majority(GAIN), "label stuck", changes)


def _inverted() -> Algorithm:
    base = algorithms.weighted_majority(GAIN)
    plain = base.variable("prediction").equation
    assert plain is not None

    def prediction(v: Values) -> Any:
        lapse = _rarely(np.concatenate([np.rint(v["log_weights"] / GAIN), v["votes"]], -1))
        return np.where(lapse, 1 - plain(v), plain(v))

    changes: _Changes = {"prediction": (("weights", "log_weights", "votes"), prediction)}
    return _but(base, "inverted rarely", changes)


def _switching(after: int) -> Algorithm:
    """Weighted Majority that gives every expert the same weight in its first ``after`` rounds."""
    base, counting = algorithms.weighted_majority(GAIN), algorithms.bayes()
    plain = base.variable("weights").equation
    assert plain is not None

    def weights(v: Values) -> Any:
        return np.where(np.rint(v["elapsed"])[..., None] < after, 1 / _N, plain(v))

    elapsed, following = (counting.variable(key) for key in ("elapsed", "next_elapsed"))
    return _but(
        base, "delayed switch", {"weights": (("log_weights", "elapsed"), weights)},
        variables=(*base.variables[:2], elapsed, *base.variables[2:], following),
        initial=lambda episodes: {**base.initial(episodes), "elapsed": np.zeros(len(episodes))},
    )  # fmt: skip


def _noisy_leader() -> Algorithm:
    base = algorithms.follow_the_leader()

    def leads(v: Values) -> Any:
        hits = np.rint(v["counts"])
        return 1.0 * (hits == hits.max(-1, keepdims=True))

    def prediction(v: Values) -> Any:
        led = (v["leads"] * v["votes"]).sum(-1) / v["leads"].sum(-1)
        return 0.9 * led + 0.1 * v["votes"].mean(-1)

    changes: _Changes = {"leads": (("counts",), leads), "prediction": (("leads", "votes"), prediction)}
    return _but(base, "noisy leader", changes)
