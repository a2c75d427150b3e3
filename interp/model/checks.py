"""Does a machine keep its contract (:mod:`interp.core.machine`)? Checks that users run on a model of their own.

    >>> import interp
    >>> check_machine(interp.load("wma-handwired", n_experts=2))
    >>> check_task(interp.tasks.get("experts"))
    >>> sorted(MACHINE_CHECKS)[:3]
    ['channels_are_all_that_passes', 'digest_moves_with_every_weight', 'fresh_copies_are_repeatable']

Every check is a function of a machine and a small run of it, with one sentence for what it asks. With pytest::

    @pytest.mark.parametrize("check", interp.MACHINE_CHECKS)
    def test_contract(check): interp.check_machine(my_machine(), only=[check])
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from interp.core import catalog
from interp.core.algorithm import NEXT, Algorithm, Episodes
from interp.core.machine import Machine, Stepped
from interp.core.task import Task
from interp.model.hooked import written
from interp.model.layout import EncodedRounds, RoundLayout
from interp.model.rollout import replay, sequential
from interp.model.run import Rollout, room
from interp.support.checks import array_of, checked, fitted, shown, unique
from interp.support.errors import InputError, require, require_known, theirs

N_EPISODES, N_ROUNDS, SEED = 4, 3, 0
_NOTHING = (
    1e-30  # what stands for 0 in a machine made by hand (exp(-200), say) has rounding of its own
)
_N_RUN = 50
"""Rounds that a machine is run for, as analyses run it by default; fewer where its caches have room for fewer."""
CLOSE = {torch.float64: 1e-9, torch.float32: 1e-4}
"""How far numbers that should be equal may lie apart by rounding, by their dtype; .01 in coarser ones."""


class _Case:
    """A machine with episodes, encoded. What a step is given are copies: it may write into them."""

    def __init__(
        self, machine: Machine, episodes: Episodes, reference: Callable[[Any], Tensor] | None
    ) -> None:
        self.machine, self.episodes, self.reference = machine, episodes, reference
        self.layout: RoundLayout = machine.layout.fit(episodes)
        self._fed: EncodedRounds = machine.prepare(self.layout.encode(episodes))
        self.n_rounds = self._fed.tokens.shape[1]
        self.close = CLOSE.get(machine.dtype, 1e-2)

    @cached_property
    def run(self) -> Rollout:
        """The episodes, as recorded."""
        return sequential(self.machine, self.rounds, self.layout, "target")

    @property
    def rounds(self) -> EncodedRounds:
        """All rounds of every episode."""
        return self._fed.each(torch.clone)

    @property
    def start(self) -> Tensor:
        """What the first round reads."""
        return self.machine.initial(len(self.episodes), self.layout).clone()

    def fed(self, t: int) -> EncodedRounds:
        """Round ``t`` of every episode."""
        return self._fed.at(t).each(torch.clone)

    @cached_property
    def steps(self) -> list[Stepped]:
        """A few rounds, one after the other."""
        done = [self.machine.step(self.start, self.fed(0))]
        for t in range(1, min(N_ROUNDS, self.n_rounds)):
            done.append(self.machine.step(done[-1].carried.clone(), self.fed(t)))
        return done

    def rows(self) -> tuple[Tensor, EncodedRounds]:
        """What every round reads, and all rounds, in one batch."""
        return self.run.latents[:, :-1].flatten(0, 1).clone(), self._fed.rows(range(self.n_rounds))


def _same(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and torch.equal(one, other)


def _gap(one: Tensor, other: Tensor) -> float:
    return float((one - other).abs().max()) if one.shape == other.shape else float("inf")


# Each check yields a sentence for every way in which the machine breaks it.


def _shapes(case: _Case) -> Iterator[str]:
    start = case.start
    rows = sum(channel.rows for channel in case.machine.channels)
    width = max(channel.shape[-1] for channel in case.machine.channels)
    if start.ndim != 3 or start.shape[2] != width or start.shape[1] > rows:
        yield f"what round 0 reads has shape {tuple(start.shape)}; its channels say [episode, {rows}, {width}]"
        return
    done = case.machine.step(start, case.fed(0))
    if done.carried.shape != start.shape or done.carried.dtype != start.dtype:
        yield (
            f"a round leaves {tuple(done.carried.shape)} {done.carried.dtype}, and read {tuple(start.shape)} "
            f"{start.dtype}; return every channel in its own shape and dtype"
        )
        return
    if done.prediction.shape != (
        len(start),
        *(case.layout.n_outputs,) * case.layout.prediction_axes,
    ):
        yield f"a prediction has shape {tuple(done.prediction.shape)}, not that of its layout's outcomes"
    elif not all(part.isfinite().all() for step in case.steps for part in step):
        yield "a prediction, or what is carried, is not finite"


def _prediction(case: _Case) -> Iterator[str]:
    if case.layout.kind != "classes":
        return
    total = case.layout.distribution(case.run.predictions)
    if (
        float(total.min()) < -case.close
        or _gap(total.sum(-1), torch.ones_like(total[..., 0])) > case.close
    ):
        yield "predictions are no probabilities of the outcomes: they must be 0 or more and add up to 1"


def _pure(case: _Case) -> Iterator[str]:
    module: Any = case.machine
    start, fed, held = (
        case.start,
        case.fed(0),
        {**module.state_dict(keep_vars=True), **dict(module.named_buffers())},
    )
    kept, given = start.clone(), [start, *fed.tensors().values()]
    before = [written(tensor) for tensor in (*given, *held.values())]
    with torch.random.fork_rng(devices=[]):
        torch.rand(1)  # elsewhere than where a step that seeds the generator leaves it
        drawn: Any = torch.random.get_rng_state()
        first = case.machine.step(start, fed)
        case.machine.step(
            first.carried.clone(), case.fed(case.n_rounds - 1)
        )  # another round in between
        again = case.machine.step(kept.clone(), case.fed(0))
        drawn = ["the global generator"] * (not torch.equal(drawn, torch.random.get_rng_state()))
    after = [written(tensor) for tensor in (*given, *held.values())]
    if before[: len(given)] != after[: len(given)]:
        yield "a round writes into what it was given: compute what is carried anew (h = h + x, never h += x)"
    counts = zip(held, before[len(given) :], after[len(given) :], strict=True)
    changed = [name for name, was, now in counts if was != now]
    if not (_same(first.prediction, again.prediction) and _same(first.carried, again.carried)):
        yield (
            "the same round gives another result the second time: something is drawn at random, or kept outside the "
            "channels (an attribute, a buffer); put it in a channel"
        )
    elif changed or drawn:
        yield f"a round changes {', '.join(changed + drawn)}: only what it returns may pass on; put it in a channel"


def _passes(case: _Case) -> Iterator[str]:
    half = max(1, case.n_rounds // 2)
    swapped = case.run.latents[:, half].roll(1, 0)
    rows = torch.arange(len(case.episodes)).roll(1)
    theirs = case.machine.step(swapped, case.fed(half).each(lambda part: part[rows]))
    wanted = (case.run.predictions[:, half], case.run.latents[:, half + 1])
    if any(
        _gap(one, other.roll(1, 0)) > case.close for one, other in zip(theirs, wanted, strict=True)
    ):
        yield (
            "an episode that is given all that another carries does not go on as the other: the channels are not all "
            "that passes between rounds"
        )


def _rows(case: _Case) -> Iterator[str]:
    start = case.run.latents[:, 1]
    others = torch.arange(len(start)).roll(1)
    others[0] = 0  # the first episode stays, the others are exchanged
    every_row = torch.arange(len(start))
    in_batch = _step_rows(case, start, every_row)
    beside_others = _step_rows(case, start, others)
    alone = _step_rows(case, start, torch.arange(1))
    # Rows that are grouped otherwise, as by a mixture of experts, are added in another order: equal to rounding.
    if _gap_of_first_rows(in_batch, beside_others) > case.close:
        yield "an episode's result depends on the others in the batch (batch statistics, a sum over the batch)"
    elif _gap_of_first_rows(in_batch, alone) > case.close:
        yield "an episode that runs alone gives another result than in a batch (a squeeze of the batch, a mean over it)"


def _step_rows(case: _Case, start: Tensor, rows: Tensor) -> Stepped:
    """Run round 1 of some episodes."""
    fed = case.fed(1).each(lambda part: part[rows])
    return case.machine.step(start[rows].clone(), fed)


def _gap_of_first_rows(result: Stepped, other: Stepped) -> float:
    """Return how far the first episode's prediction and state lie apart in two results."""
    prediction = _gap(result.prediction[:1], other.prediction[:1])
    carried = _gap(result.carried[:1], other.carried[:1])
    return max(prediction, carried)


def _truth(case: _Case) -> Iterator[str]:
    """Whether a prediction moves with what comes after it, in the place of which that of other rounds is put.

    Every round of the run is a row of one batch, so that a machine that sees the truth late is found as well.
    """
    layout = case.layout
    at = min(
        layout.predict_position, layout.position(layout.predict_label)
    )  # what is declared, whatever is read
    latents, fed = case.rows()
    plain, again = (
        case.machine.step(latents.clone(), fed.each(torch.clone)).prediction for _ in range(2)
    )
    # Not seen, but drawn: that a round repeats is asked elsewhere.
    noise = (plain - again).abs().reshape(len(latents), -1).amax(1)
    noise = (
        noise.clamp_min(case.close) if noise.any() else noise
    )  # what differs twice may differ more a third time
    for place in (*range(at + 1, layout.n_positions), *fed.after):
        seen = torch.zeros(len(latents), dtype=torch.bool)
        for shift in range(1, 4):
            tokens, values, later = fed.tokens.clone(), fed.values.clone(), {}
            if isinstance(place, int):
                tokens[:, place], values[:, place] = (
                    fed.tokens[:, place].roll(shift),
                    fed.values[:, place].roll(shift),
                )
            else:
                later = {place: fed.tensors()[place].roll(shift, 0)}
            moved = case.machine.step(
                latents.clone(), replace(fed, tokens=tokens, values=values, **later)
            ).prediction
            seen |= (plain - moved).abs().reshape(len(latents), -1).amax(1) > noise
        if seen.any():
            t = int((seen.nonzero() % case.n_rounds).min())
            comes = f"which comes after {layout.labels[at]!r} where it is read"
            yield f"the prediction of round {t} changes with " + (
                f"{layout.labels[place]!r}, {comes}: the machine sees the truth before it predicts"
                if isinstance(place, int)
                else f"{place!r}, which comes after it"
            )
            return


def _sequential(case: _Case) -> Iterator[str]:
    n = len(case.steps)
    predictions = torch.stack([step.prediction for step in case.steps], 1)
    carried = torch.stack([case.start, *(step.carried for step in case.steps)], 1)
    gap = max(
        _gap(predictions, case.run.predictions[:, :n]), _gap(carried, case.run.latents[:, : n + 1])
    )
    if gap > case.close:
        yield f"step after step is {gap:.1g} apart from interp.rollout"
    again, left, _ = replay(case.machine, case.run)
    gap = max(_gap(again, case.run.predictions), _gap(left, case.run.latents[:, 1:]))
    if gap > case.close:
        yield f"all rounds at once (interp.replay) are {gap:.1g} apart from one after the other"


def _reference(case: _Case) -> Iterator[str]:
    if case.reference is None:
        return
    theirs, own = case.reference(case.rounds), case.layout.distribution(case.run.predictions)
    if not isinstance(theirs, Tensor) or theirs.shape != own.shape:
        yield f"reference= gives scores [episode, round, outcome] = {tuple(own.shape)}, got {shown(theirs)}"
        return
    theirs = theirs.softmax(-1) if getattr(case.machine, "output", "") == "logits" else theirs
    gaps = (own - theirs).abs().amax((0, 2)).nan_to_num(torch.inf)
    if float(gaps.max()) > case.close:
        first = int((gaps > case.close).nonzero()[0])
        yield (
            f"predictions are up to {float(gaps.max()):.2g} apart from those of reference=, from round {first} on: "
            "what is heard, carried or read there is not what the model's own forward pass takes"
        )


def _points(case: _Case) -> Iterator[str]:
    plain = case.machine.step(case.start, case.fed(0))
    module: Any = case.machine
    compiled = any(
        hasattr(part, "_orig_mod") or part._compiled_call_impl is not None
        for part in module.modules()
    )
    for component in case.machine.points.values():
        for layer in range(component.n_layers or 1):
            name = component.hook.format(layer=layer)
            seen: list[Any] = []

            def look(activation: Tensor, hook: Any, seen: list[Any] = seen) -> None:
                seen.append(
                    (activation, activation.clone()) if isinstance(activation, Tensor) else None
                )

            with case.machine.hooks(fwd_hooks=[(name, look)]):
                hooked = case.machine.step(case.start, case.fed(0))
            shape: tuple[int, ...] = tuple(seen[0][1].shape) if seen and seen[0] else ()
            if len(seen) != 1:
                why = (
                    "; compiled modules call no hooks: adapt the module that was compiled"
                    if compiled
                    else ""
                )
                yield f"the point {name!r} fires {len(seen)} times in a round, which must be once{why}"
            elif len(shape) != 2 + len(component.axes.split()) or shape[:1] != (
                len(plain.carried),
            ):
                got = f"shape {tuple(shape)}" if seen[0] else "no tensor"
                yield f"the point {name!r} has axes [batch, {component.axes.replace(' ', ', ')}, vector], got {got}"
            elif (
                component.key != "latent"
                and component.labels
                and len(component.labels) not in shape[1:-1]
            ):
                yield f"the point {name!r} has {len(component.labels)} labels for places of {tuple(shape)}"
            gap = max(
                _gap(plain.prediction, hooked.prediction), _gap(plain.carried, hooked.carried)
            )
            # What each head writes is summed in another order once it is asked for, as in TransformerLens.
            if gap > (case.close if name.endswith("hook_result") else _NOTHING):
                yield f"a hook at {name!r} that changes nothing moves the result by {gap:.1g}"


def _starts(case: _Case) -> Iterator[str]:
    two, three = case.machine.initial(2, case.layout), case.machine.initial(3, case.layout)
    if not _same(two, three[:2]) or not _same(two, case.machine.initial(2, case.layout)):
        yield "what round 0 reads differs from call to call, or with the number of episodes"


def _copies(case: _Case) -> Iterator[str]:
    state = torch.random.get_rng_state()
    one, same, other = (
        case.machine.untrained(0),
        case.machine.untrained(0),
        case.machine.untrained(1),
    )
    if not _same(state, torch.random.get_rng_state()):
        yield "untrained(seed) moves the global generator of random numbers"
    if (
        one.digest() != same.digest()
        or one.digest() == other.digest()
        or one.digest() == case.machine.digest()
    ):
        yield (
            "untrained(seed) must give the same copy for the same seed, another for another, and "
            "never the machine itself"
        )
    if one.is_handwired:
        yield "an untrained copy cannot have an exact state readout"


def _digest(case: _Case) -> Iterator[str]:
    before = case.machine.digest()
    if case.machine.digest() != before:
        yield "the digest of the same weights differs from call to call"
    changed: Any = copy.deepcopy(case.machine)
    last = changed.digest()
    with torch.no_grad():
        for name, weight in changed.named_parameters():
            if weight.numel():
                weight[(0,) * weight.ndim] += 1
                before, last = last, changed.digest()
                if last == before:
                    yield f"the digest does not move with the weight {name!r}"


def _precisions(case: _Case) -> Iterator[str]:
    module: Any = case.machine
    # What is made in double has reasons to stay there: it is not asked for half precision.
    for dtype in (torch.float64, torch.bfloat16)[: 1 if module.dtype == torch.float64 else 2]:
        other = copy.deepcopy(module).to(dtype)
        try:
            fed = other.prepare(case.layout.encode(case.episodes)).at(0)
            done = other.step(other.initial(len(case.episodes), case.layout), fed)
        except Exception as error:
            yield f"a round of a copy in {dtype} fails, and analyses make such copies: {error}"
        else:
            if done.carried.dtype != dtype:
                yield f"a round of a copy in {dtype} leaves {done.carried.dtype}: make numbers with .to(fed.values)"


MACHINE_CHECKS: dict[str, Callable[[_Case], Iterator[str]]] = {
    "shapes_are_those_of_the_channels": _shapes,
    "steps_are_pure": _pure,
    "starts_are_repeatable": _starts,
    "predictions_are_probabilities": _prediction,
    "predictions_do_not_see_the_truth": _truth,
    "rows_do_not_touch": _rows,
    "channels_are_all_that_passes": _passes,
    "rollout_is_step_after_step": _sequential,
    "predictions_are_those_of_the_reference": _reference,
    "points_fire_once": _points,
    "fresh_copies_are_repeatable": _copies,
    "it_runs_in_every_precision": _precisions,
    "digest_moves_with_every_weight": _digest,
}
"""Every check, in the order in which they run."""
_DEAR = (
    "fresh_copies_are_repeatable",
    "it_runs_in_every_precision",
    "digest_moves_with_every_weight",
)
"""Those that copy the machine, which are left out whenever one is made."""


TRUSTED = ContextVar("TRUSTED", default=False)
"""True while a builder makes once more what kept the contract: its machine is not checked again."""


@checked
def check_machine(
    machine: Machine,
    episodes: Episodes | None = None,
    *,
    reference: Callable[[Any], Tensor] | None = None,
    only: Sequence[str] | None = None,
    cheap: bool = False,
) -> None:
    """Raise unless ``machine`` keeps its contract: a sentence for each way in which it does not.

    Args:
        episodes: of its task, at least 2 of at least 2 rounds; a few are sampled when None.
        reference: the model's own forward pass over whole episodes, to hold the machine against: ``(fed)`` to scores
            ``[episode, round, outcome]`` as its step gives them, where ``fed.tokens`` are ``[episode, round, pos]``.
        only: the checks to run, by key of ``interp.MACHINE_CHECKS``; all when None.
        cheap: leave out what takes a copy of the machine, or time in proportion to its weights.
    """
    for key in only or ():
        require_known("check of a machine", key, MACHINE_CHECKS, limit=20)
    if episodes is None:
        task = catalog.get(machine.layout.task)
        try:
            episodes = task.sample_for(
                machine, N_EPISODES, max(2, task.at_most(room(machine, _N_RUN))), SEED
            )
        except InputError:  # recorded episodes may be shorter
            episodes = task.sample_for(machine, N_EPISODES, max(2, task.at_most(N_ROUNDS)), SEED)
    require(
        len(episodes) >= 2 and episodes.n_rounds >= 2,
        "give at least 2 episodes of at least 2 rounds",
    )
    case = _Case(machine, episodes, reference)
    asked = (
        only
        if only is not None
        else [key for key in MACHINE_CHECKS if not (cheap and key in _DEAR)]
    )
    broken: list[str] = []
    cause: Exception | None = None
    with torch.no_grad():
        for key in (key for key in MACHINE_CHECKS if key in asked):
            try:
                broken += [f"{key}: {sentence}" for sentence in MACHINE_CHECKS[key](case)]
            except Exception as error:  # a machine of the user's may raise anything
                cause, kind = (
                    error,
                    "" if isinstance(error, InputError) else f"{type(error).__name__}: ",
                )
                broken.append(f"{key}: {kind}{error}")
            if broken and key in ("shapes_are_those_of_the_channels", "steps_are_pure"):
                break  # the rest would only repeat it
    if broken:
        raise InputError(
            f"{machine.name!r} does not keep the contract of a machine:\n- " + "\n- ".join(broken)
        ) from cause


# Does a task's record keep what it says? Run where a task is registered: two episodes are drawn twice from one seed,
# encoded and compared. A sampler that gives other sizes, or other episodes each time, a layout that puts a latent over
# what is observed, tokens that no vocabulary holds, payloads that are no numbers, targets that are no probabilities and
# algorithms that read what they do not declare would all train, or be compared, without a word.

_N_DRAWN = 2


@checked
def check_task(task: Task) -> None:
    """Raise unless a task's record keeps what it says: a sentence for the first way in which it does not."""
    sizes = {size.name: size.default for size in task.sizes}
    layout = _tried("layout", lambda: task.layout(**sizes))
    _check_layout(task, layout)
    n_rounds = max(2, task.at_most(N_ROUNDS))
    first, again = (
        _tried("sample", lambda: task.sample(_N_DRAWN, n_rounds, seed=SEED, **sizes))
        for _ in range(2)
    )
    for episodes in (first, again):
        _check_episodes(task, episodes, n_rounds)
    fitted = _tried("layout.fit", lambda: layout.fit(first))
    found = _tried("sizes of the layout", lambda: task.sizes_of(fitted))
    found |= {name: getattr(first, name) for name in sizes if hasattr(first, name)}
    _require(found == sizes, f"asked for episodes of {sizes}, the sampler gives such of {found}")
    _check_rounds(fitted, _tried("layout.encode", lambda: fitted.encode(first)), n_rounds)
    one, other = (
        _tried("layout.encode", partial(fitted.encode, drawn)).tensors() for drawn in (first, again)
    )
    alike = all(torch.equal(one[name], other[name]) for name in one)
    _require(alike, "seed=0 gives other episodes the second time: draw from the seed alone")
    _check_losses(task, fitted, first, n_rounds)
    _check_targets(task, fitted, first, n_rounds)
    for record in _tried(
        "algorithms", lambda: unique(task.algorithms.records(), "algorithm")
    ).values():
        algorithm = _tried(f"algorithm {record.key!r}", partial(record.for_episodes, first))
        _tried(f"algorithm {record.key!r}", partial(_check_algorithm, algorithm, first))
    analysis, records = task.analysis, task.algorithms.records()
    corruptions = _tried("corruptions", lambda: unique(analysis.corruptions(), "corruption"))
    named = analysis.default_corruption
    _require(
        not named or named in corruptions,
        f"default_corruption {named!r} is none of {', '.join(corruptions)}",
    )
    if records:
        keys = {key for record in records for key in record.make().keys}
        unknown = [key for key in analysis.probed if key not in keys]
        _require(not unknown, f"probed {unknown} are variables of none of its algorithms")


def _require(holds: bool, problem: str) -> None:
    require(holds, f"this task's record does not keep what it says: {problem}")


def _tried(what: str, call: Callable[[], Any]) -> Any:
    """What a function of the record gives; whatever it raises is told in a sentence."""
    return theirs(f"this task's record does not keep what it says: {what}")(call)()


def _check_layout(task: Task, layout: Any) -> None:
    _require(
        isinstance(layout, RoundLayout), f"layout gives {type(layout).__name__}, no RoundLayout"
    )
    _require(
        layout.task == task.key,
        f"its layout is of the task {layout.task!r}, its key is {task.key!r}",
    )
    for name in ("labels", "vocabulary", "outcomes"):
        words = _tried(name, partial(getattr, layout, name))
        texts = (
            isinstance(words, tuple)
            and bool(words)
            and all(isinstance(word, str) and word for word in words)
        )
        _require(texts, f"{name} must be a tuple of texts, got {shown(words)}")
        twice = max(words, key=words.count)
        _require(words.count(twice) == 1, f"{name} hold {twice!r} twice")
    n_outcomes = len(layout.outcomes)
    _require(
        layout.kind != "classes" or n_outcomes > 1,
        "one outcome alone is no prediction; give two or more",
    )
    n_latents, before = _tried("n_latents", lambda: layout.n_latents), layout.predict_position
    _require(
        fitted(int, n_latents) in range(1, before),
        f"n_latents must be 1 to {before - 1}, the positions between the first and {layout.predict_label!r}, got "
        f"{shown(n_latents)}",
    )


def _check_episodes(task: Task, episodes: Any, n_rounds: int) -> None:
    kind = type(episodes).__name__
    for name in ("task", "n_rounds", "regime", "seed", "select", "__len__"):
        _require(hasattr(episodes, name), f"episodes ({kind}) have no {name!r}")
    _require(
        episodes.task == task.key,
        f"episodes are of the task {shown(episodes.task)}, the key is {task.key!r}",
    )
    whole = isinstance(episodes.n_rounds, int | np.integer)
    _require(whole, f"n_rounds of episodes ({kind}) is {shown(episodes.n_rounds)}, no integer")
    held = len(episodes), episodes.n_rounds
    wanted = _N_DRAWN, n_rounds
    _require(
        held == wanted,
        f"asked for {wanted[0]} episodes of {wanted[1]} rounds, the sampler gives {held}",
    )
    kept = _tried("episodes.select", lambda: episodes.select(slice(0, 1)))
    _require(
        len(kept) == 1 and kept.n_rounds == n_rounds,
        "episodes.select(slice(0, 1)) does not give one episode",
    )


def _check_rounds(layout: RoundLayout, rounds: Any, n_rounds: int) -> None:
    _require(
        isinstance(rounds, EncodedRounds),
        f"layout.encode gives {type(rounds).__name__}, no EncodedRounds",
    )
    each, positions = (_N_DRAWN, n_rounds), (layout.n_positions,)
    below = {"tokens": len(layout.vocabulary), "slots": layout.n_latents}
    for name, shape in {
        "tokens": each + positions,
        "slots": each,
        "values": each + positions,
    }.items():
        tensor = getattr(rounds, name)
        fits = isinstance(tensor, torch.Tensor) and tuple(tensor.shape) == shape
        _require(fits, f"encoded {name} must be of shape {shape}, got {shown(tensor)}")
        _require(
            tensor.is_floating_point() == (name == "values"),
            f"encoded {name} are of {tensor.dtype}",
        )
        if name in below:
            low, high, most = int(tensor.min()), int(tensor.max()), below[name] - 1
            _require(
                low >= 0 and high <= most,
                f"encoded {name} are {low} to {high}, which must be 0 to {most}",
            )
    at = _tried("latent_positions", lambda: list(layout.latent_positions))
    whole = all(isinstance(one, int | np.integer) and 0 <= one < layout.n_positions for one in at)
    _require(
        whole,
        f"latent_positions must be 0 to {layout.n_positions - 1}, got {shown(layout.latent_positions)}",
    )
    covered = rounds.tokens[..., at]
    labels = [layout.labels[at] for at in layout.latent_positions]
    _require(
        not covered.any(),
        f"a latent stands in the place of what is observed at {', '.join(labels)}: encode 0",
    )
    _require(bool(rounds.values.isfinite().all()), "encoded values (payloads) are not finite")
    unsaid = layout.payload is None and bool(rounds.values.any())
    _require(
        not unsaid,
        "encoded values are not zero, and payload does not say what they are; nothing would read them",
    )
    for name, tensor in rounds.tensors().items():
        rows = isinstance(tensor, torch.Tensor) and tuple(tensor.shape[:2]) == (_N_DRAWN, n_rounds)
        _require(rows, f"encoded {name!r} must begin with [episode, round], got {shown(tensor)}")


def _check_losses(task: Task, layout: RoundLayout, episodes: Any, n_rounds: int) -> None:
    """Whether losses take predictions as models of the task make them."""
    shape = (_N_DRAWN, n_rounds, layout.n_outputs)
    even = torch.full(shape, 1 / layout.n_outputs if layout.kind == "classes" else 0.0)
    for batch in ((), (2,)):  # a sweep scores several edits at once
        told = layout.prediction(even.expand(*batch, *shape))
        losses = partial(task.data.losses, told, episodes, slice(0, n_rounds))
        found = _tried("losses", partial(torch.as_tensor, _tried("losses", losses)))
        wanted, axes = (
            (*batch, *shape[:2]),
            "[batch, episode, round]" if batch else "[episode, round]",
        )
        ok = tuple(found.shape) == wanted
        _require(
            ok,
            f"losses of predictions of {n_rounds} rounds must be {axes} = {wanted}, got {tuple(found.shape)}",
        )
        _require(not bool(found.isnan().any()), "losses of even predictions hold NaN")


def _check_targets(task: Task, layout: RoundLayout, episodes: Any, n_rounds: int) -> None:
    if task.training is None:
        return
    goal = _tried("training", task.training)
    whole = callable(getattr(goal, "targets", None)) and isinstance(
        getattr(goal, "other_targets", None), Mapping
    )
    _require(whole, f"training gives {shown(goal)}, no TrainingGoal")
    wanted = (_N_DRAWN, n_rounds, layout.n_outputs if layout.kind == "classes" else 1)
    for name, targets in {"targets": goal.targets, **goal.other_targets}.items():
        found = array_of(name, _tried(name, partial(targets, episodes)))
        finite = bool(np.isfinite(found).all())
        _require(
            found.shape == wanted and finite,
            f"{name} must be finite numbers {wanted}, got {shown(found)}",
        )
        if layout.kind == "classes":
            sums = found.sum(-1)
            nothing = (found == 0).all(-1)  # a round that asks for no prediction
            proper = bool((found >= 0).all()) and bool(
                (nothing | np.isclose(sums, 1, atol=1e-4)).all()
            )
            said = f"{name} must be probabilities of the outcomes, which add up to 1; they are {found.min():.4g} to "
            _require(
                proper,
                f"{said}{found.max():.4g}, and add up to {sums.min():.4g} to {sums.max():.4g}",
            )


class _Declared(dict[str, Any]):
    """The values that an equation said it reads; any other is refused."""

    reader: str

    def __missing__(self, key: str) -> Any:
        parents = ", ".join(self) or "none"
        _require(
            False,
            f"the equation of {self.reader!r} reads {key!r}, which is none of its parents ({parents})",
        )


def _check_algorithm(algorithm: Algorithm, episodes: Any) -> None:
    """Whether an algorithm's inputs, state and equations are those that it declares."""
    what, n_rounds = f"algorithm {algorithm.key!r}:", episodes.n_rounds
    inputs, state = algorithm.read(episodes), algorithm.initial(episodes)
    for key in algorithm.state:
        _require(key in state, f"{what} nothing gives state {key!r}")
    sizes = {key: np.shape(state[key]) for key in algorithm.state}
    for t in range(n_rounds):
        values: dict[str, Any] = {}
        for variable in algorithm.variables:
            if variable.equation is not None:
                seen = _Declared({key: values[key] for key in variable.parents})
                seen.reader = variable.key
                values[variable.key] = np.asarray(variable.equation(seen))
            else:
                key = variable.key
                values[key] = (
                    state[key] if variable.role == "state" else np.asarray(inputs[key])[:, t]
                )
        state = {key: values[NEXT + key] for key in algorithm.state}
        for key, size in sizes.items():
            now = np.shape(state[key])
            _require(
                now == size,
                f"{what} state {key!r} is {size} before the first round and {now} after round {t}",
            )
