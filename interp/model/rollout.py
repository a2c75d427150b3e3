"""Run a model over episodes: the recurrence over rounds, and the round axis in everything that comes out.

    >>> import interp
    >>> from interp.tasks import experts, mdp
    >>> model = interp.load("wma-handwired", n_experts=2)
    >>> run = interp.rollout(model, experts.sample(4, 10, 2, seed=0))
    >>> run.predictions.shape, run.latents.shape[:3]
    (torch.Size([4, 10]), torch.Size([4, 11, 1]))
    >>> _, _, cache = interp.replay(model, run, rounds=[3, 7], names_filter="blocks.1.hook_resid_post")
    >>> tuple(cache["blocks.1.hook_resid_post"].shape)[:2]                               # [episode, round, ...]
    (4, 2)
    >>> actor = interp.load("qlearning-handwired", n_states=2, n_actions=2)
    >>> interp.play(actor, mdp.sample_mdps(3, 2, 2, seed=0), n_rounds=5, seed=0)[0].actions.shape
    (3, 5)

The recurrence goes only through the latents, ``m_{t+1} = write(m_t, update(round_t, m_t))``, which gives two passes.
The *sequential* pass (:func:`rollout`, :func:`play`) computes round after round. The *replay* pass (:func:`replay`),
latents known, runs every (episode, round) at once, and equals it to float precision.

A round that did not take place leaves the latents as they are, and predicts and caches NaN: a number that is made of it
by mistake is NaN, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import groupby
from types import MappingProxyType
from typing import Any, get_args

import torch
from torch import Tensor

from interp.core import catalog
from interp.core.algorithm import Episodes
from interp.core.display import Cache
from interp.core.machine import Machine, Stepped
from interp.model.hooked import FiringCounter, Hooks, NamesFilter
from interp.model.layout import EncodedRounds, RoundLayout
from interp.model.run import Commit, Rollout, Rounds, select_rounds
from interp.support.checks import checked, checked_result, refuse_beyond_machine, shown
from interp.support.errors import InputError, require, require_known
from interp.support.provenance import provenance
from interp.support.session import once
from interp.support.workers import threads_for

_MANY = 10_000
"""Rounds from which on one is cached by itself first, to see what all of them would take."""
_CHUNK = 256
"""Episodes that run at once on a CPU."""
_AT_ONCE = 8192
"""Rounds of all episodes that a machine runs in one call."""
REPLAY_BATCH = 1024
"""Rounds per replay batch: bounds memory, and on a CPU keeps activations in cache (1.7 times as fast as 8192)."""


@checked
def rollout(
    model: Machine,
    episodes: Episodes,
    *,
    names_filter: NamesFilter = None,
    rounds: Rounds = "all",
    n_rounds: int | None = None,
    commit: str = "own",
    fwd_hooks: Hooks | Mapping[int, Hooks] = (),
    propagate: bool = True,
    clean: Rollout | None = None,
) -> Rollout:
    """Run ``model`` over recorded ``episodes``.

    Args:
        model: the machine.
        episodes: of its task.
        names_filter: hook points to cache (a name, a list, a predicate); None caches none.
        rounds: which rounds to cache.
        n_rounds: run only the first of them, where later ones are not read; what these give is
            equal bit for bit.
        commit: feed the model's choice at ``a*`` ("own") or the recorded one ("target").
        fwd_hooks: (hook name, function) pairs for every round, or ``{round: pairs}``.
        propagate: let the hooks' effect run on into later rounds, or hold later latents at their
            clean values.
        clean: a rollout of the same episodes without hooks; rounds before the first hooked one are
            taken from it.
    """
    require_known("commit", commit, get_args(Commit))
    layout = model.layout.fit(episodes)
    _refuse_large_run(model, episodes, layout)
    encoded = _cut_rounds(model.prepare(layout.encoded(episodes)), n_rounds)
    n_rounds = encoded.tokens.shape[1]
    chosen = select_rounds(rounds, n_rounds)
    names = [] if names_filter is None else model.hook_names(names_filter)
    hooks = _hooks_by_round(model, fwd_hooks, n_rounds)
    if clean is not None:
        require_own(clean, model, episodes, encoded, commit)
    if names and len(episodes) * len(chosen) > _MANY:
        _refuse_large_cache(model, episodes, names, len(chosen), commit)
    if hooks and not propagate and clean is None:
        clean = _run_unhooked(model, episodes, encoded, layout, commit)
    # Of a few rounds, the run is one that others may share, and these rounds run again.
    runs_again = not hooks and len(chosen) < n_rounds
    recorder = _CacheRecorder([] if runs_again else names, chosen, len(episodes))
    if hooks or clean is not None:
        run = sequential(
            model, encoded, layout, commit, hooks, clean, hold=not propagate, recorder=recorder
        )
        run = replace(run, episodes=episodes, settings=_settings(model, commit, propagate, hooks))
    else:
        run = _run_unhooked(model, episodes, encoded, layout, commit, recorder)
    if names:
        cache = recorder.tensors
        if runs_again:
            cache = replay(model, run, rounds=chosen, names_filter=names)[2]
        in_order = Cache({name: cache[name] for name in names})
        run = replace(run, cache=in_order, cached_rounds=tuple(chosen))
    return run


def _refuse_large_run(model: Machine, episodes: Episodes, layout: RoundLayout) -> None:
    """Refuse a run if its tokens, payloads and states fill this machine's memory.

    Args:
        model: the machine.
        episodes: what it would run on.
        layout: of the rounds.
    """
    n_numbers = 4 * layout.n_positions + model.initial(1, layout).numel()
    n_numbers *= len(episodes) * episodes.n_rounds
    refuse_beyond_machine(
        f"a rollout of {len(episodes)} episodes of {episodes.n_rounds} rounds",
        model.dtype.itemsize * n_numbers,
    )


def _refuse_large_cache(
    model: Machine, episodes: Episodes, names: list[str], n_rounds: int, commit: str
) -> None:
    """Refuse a cache that fills this machine's memory, by what one round of one episode takes.

    Args:
        model: the machine.
        episodes: the episodes that will run.
        names: the hook points that will be cached.
        n_rounds: how many rounds will be cached.
        commit: which choice rounds hold, "own" or "target".
    """
    first = episodes.select(slice(0, 1))
    round_run = rollout(model, first, names_filter=names, n_rounds=1, commit=commit)
    n_bytes = sum(activation.nbytes for activation in round_run.cache.values())
    refuse_beyond_machine(
        f"a cache of {len(names)} points in {n_rounds} rounds of {len(episodes)}",
        len(episodes) * n_rounds * n_bytes,
    )


def _cut_rounds(encoded: EncodedRounds, n_rounds: int | None) -> EncodedRounds:
    """Return the first rounds; all when None."""
    available = encoded.tokens.shape[1]
    if n_rounds is None:
        return encoded
    require(
        1 <= n_rounds <= available,
        f"the episodes have {available} rounds; n_rounds is 1 to that, got {n_rounds}",
    )
    return encoded.between(0, n_rounds)


def _hooks_by_round(model: Machine, fwd_hooks: Any, n_rounds: int) -> dict[int, Hooks]:
    """Return the hooks of each hooked round; refuse names that do not exist.

    Args:
        model: the machine.
        fwd_hooks: pairs, or pairs by round.
        n_rounds: of the run.
    """
    hooks: dict[int, Hooks] = {}
    if isinstance(fwd_hooks, Mapping):
        for t, pairs in fwd_hooks.items():
            if not pairs:
                continue
            index = select_rounds(t, n_rounds)[0]
            require(index not in hooks, f"fwd_hooks name a round twice: {list(fwd_hooks)}")
            hooks[index] = pairs
    elif fwd_hooks:
        hooks = dict.fromkeys(range(n_rounds), fwd_hooks)
    for pairs in hooks.values():
        for name, _ in pairs:
            model.hook_names(name)
    return hooks


@checked
def play(
    model: Machine, worlds: Any, n_rounds: int, seed: int, *, epsilon: float = 0.0
) -> tuple[Any, Rollout]:
    """Run the model in worlds in which it acts: its choice in round t is its action in round t + 1.

    Args:
        model: the machine that acts.
        worlds: one per episode; for Q-learning the MDPs of ``interp.tasks.mdp.sample_mdps``.
        n_rounds: how many rounds it acts.
        seed: of the worlds' draws.
        epsilon: probability of a uniform random action instead, by an epsilon-greedy wrapper around
            the model; a model
            that reads the round's draw (``layout.draws``) gets it, and chooses that action by
            itself.

    Returns:
        The episodes that it made, and the rollout (with the model's choices committed).
    """
    task = catalog.of(model)
    require(0.0 <= epsilon <= 1.0, f"epsilon must lie in [0, 1], got {epsilon}")
    if task.data.interaction is None:
        raise InputError(
            f"{model.name!r} is a model of {task.name}, which has no worlds to act in; use rollout"
        )
    require(
        not hasattr(worlds, "n_rounds"),
        f"play acts in worlds, such as the .mdps of episodes, got {shown(worlds)}",
    )
    layout = model.layout.fit(worlds)
    options: dict[str, Any] = {"n_rounds": n_rounds, "seed": seed, "epsilon": epsilon}
    if layout.draws:
        options["told"] = True
    interaction = task.data.interaction(worlds, **options)
    carried = model.initial(len(worlds), layout)
    choice = None
    record = _Record(carried, n_rounds)
    with torch.no_grad(), threads_for(model):
        stepper = model.stepper()
        while not interaction.done:
            encoded = model.prepare(layout.encode(interaction.step(choice))).at(0)
            step = run_round(model, encoded, carried, layout, "own", step=stepper)
            carried = step.latents
            choice = layout.choose(step.prediction).cpu().numpy()
            record.add(step)
    settings = {
        **provenance(model, **model.precision(), commit="own"),
        "seed": seed,
        "epsilon": epsilon,
    }
    run = record.make_rollout(layout, "own", settings)
    _require_numbers(model, run)
    episodes = interaction.episodes()
    return episodes, replace(run, model=model, episodes=episodes)


def require_own(
    run: Rollout,
    model: Machine,
    episodes: Any = None,
    encoded: EncodedRounds | None = None,
    commit: str = "",
) -> Rollout:
    """Return a rollout, unless another model made it, hooks acted in it, or it is of other
    episodes.

    Args:
        run: the rollout.
        model: the machine that must have made it.
        episodes: those that it must be of; any when None.
        encoded: these as rounds, where they are known.
        commit: which choices it must hold; those of the rollout when empty.
    """
    is_own = run.settings.get("digest") == model.digest()
    require(
        is_own,
        f"this is a rollout of another model, {run.settings.get('model')!r}; run {model.name!r} for it",
    )
    require(
        not run.settings.get("hooked_rounds"),
        f"hooks acted in this rollout; run {model.name!r} without hooks",
    )
    if episodes is None:
        return run
    layout = model.layout.fit(episodes)
    if encoded is None:
        encoded = model.prepare(layout.encoded(episodes))
    commit = commit or run.commit
    is_same = commit == run.commit and _holds(run, encoded, layout)
    require(is_same, "give a rollout of the same episodes with the same commit")
    return run


def _holds(run: Rollout, encoded: EncodedRounds, layout: RoundLayout) -> bool:
    """Return whether a rollout ran these rounds; choices of the model are not compared.

    Args:
        run: the rollout.
        encoded: the rounds.
        layout: of the rounds.
    """
    if run.tokens.shape != encoded.tokens.shape:
        return False
    tokens = encoded.tokens
    if layout.choice_position is not None and run.commit == "own":
        tokens = tokens.clone()
        tokens[..., layout.choice_position] = run.tokens[..., layout.choice_position]
    ran = run.fed.tensors()
    fed = replace(encoded, tokens=tokens).tensors()
    if ran.keys() != fed.keys():
        return False
    return all(torch.equal(ran[name], fed[name]) for name in fed)


@dataclass(frozen=True)
@checked_result
class Step:
    """One round that ran: what it predicted, the latents that it leaves, and the round as it was fed."""

    prediction: Tensor
    latents: Tensor
    fed: EncodedRounds


def run_round(
    model: Machine,
    encoded: EncodedRounds,
    latents: Tensor,
    layout: RoundLayout,
    commit: str,
    hooks: Hooks = (),
    step: Callable[[Tensor, EncodedRounds], Stepped] | None = None,
) -> Step:
    """Run one round: predict, commit the choice where the layout has one, and write the update.

    Args:
        model: the machine.
        encoded: the round of every episode.
        latents: what it reads.
        layout: the round's layout.
        commit: which choice it holds, that of the model ("own") or the recorded one ("target").
        hooks: pairs of a hook point and a function.
        step: the model's ``stepper()``, for callers that run many rounds without hooks.
    """
    forward = model.step if hooks or step is None else step
    with threads_for(model), model.hooks(fwd_hooks=hooks) if hooks else nullcontext():
        result = forward(latents, encoded)
        if commit == "own":
            tokens = layout.commit(encoded.tokens, layout.choose(result.prediction))
            if not torch.equal(tokens, encoded.tokens):
                encoded = replace(encoded, tokens=tokens)
                result = forward(latents, encoded)
    prediction, carried = encoded.settled(result.prediction, latents, result.carried)
    return Step(prediction, carried, encoded)


def sequential(
    model: Machine,
    encoded: EncodedRounds,
    layout: RoundLayout,
    commit: str,
    hooks: Mapping[int, Hooks] = MappingProxyType({}),
    clean: Rollout | None = None,
    hold: bool = False,
    recorder: _CacheRecorder | None = None,
) -> Rollout:
    """Run all rounds in order, without the settings of a run.

    Args:
        model: the machine.
        encoded: the rounds.
        layout: their layout.
        commit: which choices they hold, "own" or "target".
        hooks: those of each hooked round.
        clean: a run without hooks, from which the rounds are taken that the hooks cannot change.
        hold: let every round read what it reads in the clean run.
        recorder: caches activations, after the hooks.
    """
    n_episodes, n_rounds, _ = encoded.tokens.shape
    recorder = recorder or _CacheRecorder([], [], n_episodes)
    chooses = commit == "own" and layout.choice_position is not None
    first_hooked = min(hooks, default=0)
    n_unhooked = min(hooks, default=n_rounds)
    if clean is None and n_unhooked and not (recorder.hooks or chooses):
        clean = _unroll(model, encoded.between(0, n_unhooked), layout, commit)
        if clean is not None and not hooks:
            return clean

    def is_changed(t: int) -> bool:
        return t in hooks if hold else t >= first_hooked

    def is_run(t: int) -> bool:
        return clean is None or is_changed(t) or t in recorder.places

    def run_or_take(t: int, latents: Tensor, forward: Any) -> Step:
        if is_run(t):
            recorder.t = t
            step = run_round(model, encoded.at(t), latents, layout, commit, step=forward)
            recorder.mark_missing(step.fed.missing)
        if clean is not None and not is_changed(t):
            step = Step(clean.predictions[:, t], clean.latents[:, t + 1], clean.fed.at(t))
        if clean is not None and hold:
            step = replace(step, latents=clean.latents[:, t + 1])
        return step

    latents = model.initial(n_episodes, layout)
    record = _Record(latents, n_rounds)
    with torch.no_grad(), threads_for(model):
        plain_forward = model.stepper()
        # The same hooks are attached once for all the rounds that follow each other.
        for pairs, group in groupby(range(n_rounds), lambda t: hooks.get(t, ())):
            rounds = list(group)
            counter = FiringCounter([*pairs, *recorder.hooks])
            attached = model.hooks(fwd_hooks=counter.hooks) if counter.hooks else nullcontext()
            with attached:
                forward = model.stepper() if counter.hooks else plain_forward
                for t in rounds:
                    step = run_or_take(t, latents, forward)
                    latents = step.latents
                    record.add(step)
            if any(map(is_run, rounds)):
                counter.check()
    run = record.make_rollout(layout, commit, {})
    if not hooks:  # what an edit ends in is for its reader to see
        _require_numbers(model, run)
    return run


def _unroll(
    model: Machine, encoded: EncodedRounds, layout: RoundLayout, commit: str
) -> Rollout | None:
    """Run rounds many at once, if the machine can; None where they must run one after the other.

    Args:
        model, encoded, layout, commit: as of :func:`sequential`.
    """
    unroll = getattr(model, "unroll", None)
    if unroll is None:
        return None
    n_episodes, n_rounds, _ = encoded.tokens.shape
    size = max(1, _AT_ONCE // max(n_episodes, 1))
    latents = model.initial(n_episodes, layout)
    predictions = []
    carried = [latents.unsqueeze(1)]
    with torch.no_grad(), threads_for(model):
        for start in range(0, n_rounds, size):
            part = encoded.between(start, start + size)
            stepped = unroll(carried[-1][:, -1], part)
            if stepped is None:
                return None
            predictions.append(stepped.prediction)
            carried.append(stepped.carried)
    run = Rollout(torch.cat(predictions, 1), torch.cat(carried, 1), encoded, layout, commit)
    _require_numbers(model, run)
    return run


def _settings(
    model: Machine, commit: str, propagate: bool = True, hooked: Iterable[int] = ()
) -> dict[str, Any]:
    settings = provenance(model, **model.precision(), commit=commit)
    return {**settings, "propagate": propagate, "hooked_rounds": sorted(hooked)}


def _run_unhooked(
    model: Machine,
    episodes: Episodes,
    encoded: EncodedRounds,
    layout: RoundLayout,
    commit: str,
    recorder: _CacheRecorder | None = None,
) -> Rollout:
    """Run all rounds in order, without hooks; once a session if nothing is cached and no hook was
    attached to the model by hand.

    On a CPU :data:`_CHUNK` episodes run at a time, fewer of long rounds: the activations of more
    leave its caches.

    Args:
        model: the machine.
        episodes: the episodes.
        encoded: their rounds.
        layout: the layout of these.
        commit: which choices they hold, "own" or "target".
        recorder: caches activations.
    """
    recorder = recorder or _CacheRecorder([], [], len(episodes))

    def run_chunks() -> Rollout:
        n = len(encoded.tokens)
        is_on_cpu = encoded.tokens.device.type == "cpu"
        size = encoded.at_once(_CHUNK) if is_on_cpu else max(n, 1)
        runs = []
        for start in range(0, max(n, 1), size):
            recorder.rows = slice(start, start + size)
            part = encoded.select(recorder.rows)
            runs.append(sequential(model, part, layout, commit, recorder=recorder))
        whole = runs[0] if len(runs) == 1 else Rollout.joined(runs)
        return replace(whole, episodes=episodes, settings=_settings(model, commit))

    def run_own() -> Rollout:
        return replace(run_chunks(), model=model)

    with torch.no_grad():
        is_quiet = model.is_quiet()
    if not is_quiet:
        return run_chunks()
    if recorder.hooks:
        return run_own()
    key = ("rollout", commit, encoded.tokens.shape[1], model.weights_version())
    return once(key, model, episodes, make=run_own)


def _require_numbers(model: Machine, run: Rollout) -> None:
    """Refuse a run in which a number is none or infinite; an untrained copy may overflow, and is no control then."""
    if getattr(model, "may_overflow", False):
        return
    predictions = run.predictions
    if run.fed.missing is not None:
        predictions = predictions.clone()
        predictions[run.fed.missing] = 0.0
    _require_finite(model, "predicts", predictions)
    _require_finite(model, "carries", run.latents[:, 1:])
    _require_finite(model, "carries", run.latents[:, :1])


def _require_finite(model: Machine, what: str, values: Tensor) -> None:
    """Refuse numbers that are not finite, by the first round that has one.

    Args:
        model: the machine, for its name.
        what: names the numbers.
        values: ``[episode, round, ...]``.
    """
    is_finite = values.isfinite()
    if is_finite.all():
        return
    is_wrong = ~is_finite.flatten(2).all(2) if values.ndim > 2 else ~is_finite
    t = int(is_wrong.any(0).nonzero()[0])
    episode = int(is_wrong[:, t].nonzero()[0])
    n_wrong = int(is_wrong.any(1).sum())
    raise InputError(
        f"what {model.name!r} {what} is not a number from round {t} on, in episode {episode} "
        f"(in {n_wrong} of {len(values)} episodes in all): "
        "look for a logarithm of 0, a division by 0 or a state that grows without end"
    )


class _Record:
    """What the rounds of a run gave, each written to its place in tensors that hold all of them.

    A list of each round's small tensors would leave one between the large ones of every round. The
    memory of the large ones could then not be used again: 300 MiB in 200 rounds of 256 episodes.
    """

    def __init__(self, initial: Tensor, n_rounds: int) -> None:
        self.n_rounds = n_rounds
        self.n_done = 0
        self.latents = self._make_room(initial, n_rounds + 1)
        self.latents[:, 0] = initial.detach()
        self.tensors: dict[str, Tensor] = {}

    @staticmethod
    def _make_room(value: Tensor, n_rounds: int) -> Tensor:
        return value.new_empty((len(value), n_rounds, *value.shape[1:]))

    def add(self, step: Step) -> None:
        """Write the next round."""
        values = {"predictions": step.prediction, **step.fed.tensors()}
        if not self.tensors:
            self.fed = step.fed
            for name, value in values.items():
                self.tensors[name] = self._make_room(value, self.n_rounds)
        for name, value in values.items():
            self.tensors[name][:, self.n_done] = value
        self.n_done += 1
        self.latents[:, self.n_done] = step.latents

    def make_rollout(self, layout: RoundLayout, commit: str, settings: dict[str, Any]) -> Rollout:
        """Return all rounds as a rollout.

        Args:
            layout: the rounds' layout.
            commit: which choices they hold, "own" or "target".
            settings: the settings of the run.
        """
        predictions = self.tensors.pop("predictions")
        fed = replace(self.fed, **self.tensors)
        return Rollout(predictions, self.latents, fed, layout, commit, settings=settings)


class _CacheRecorder:
    """Activations of some rounds, each written to its place in a tensor that holds all of them.

    Args:
        names: the hook points that are cached.
        rounds: the rounds that are cached, in order.
        n_episodes: how many episodes run, in one batch or several.

    Attributes:
        hooks: what caches the activations of a round.
        tensors: ``name -> [episode, cached round, ...]``.
        rows: which episodes run.
        t: which round runs.
    """

    def __init__(self, names: list[str], rounds: list[int], n_episodes: int) -> None:
        self.places = {t: index for index, t in enumerate(rounds)} if names else {}
        self.n_episodes = n_episodes
        self.hooks = [(name, self._store) for name in names]
        self.tensors: dict[str, Tensor] = {}
        self.rows = slice(0, n_episodes)
        self.t = 0

    def _store(self, activation: Tensor, hook: Any) -> None:
        """Write an activation of the round that runs, if that round is cached."""
        place = self.places.get(self.t)
        if place is None:
            return
        if hook.name not in self.tensors:
            shape = (self.n_episodes, len(self.places), *activation.shape[1:])
            self.tensors[hook.name] = activation.new_empty(shape)
        self.tensors[hook.name][self.rows, place] = activation

    def mark_missing(self, missing: Tensor | None) -> None:
        """Write NaN for the episodes ``[batch]`` in which the round that ran did not take place."""
        place = self.places.get(self.t)
        if missing is None or place is None:
            return
        for tensor in self.tensors.values():
            if tensor.is_floating_point():
                tensor[self.rows, place][missing] = torch.nan


@checked
def replay(
    model: Machine,
    run: Rollout,
    *,
    rounds: Rounds = "all",
    names_filter: NamesFilter = None,
    fwd_hooks: Hooks = (),
    chunk: int | None = None,
) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Run chosen rounds of ``run`` again at once, from its latents and tokens.

    Args:
        model: the machine.
        run: its rollout.
        rounds: the rounds that run.
        names_filter: hook points to cache; None caches none.
        fwd_hooks: applied to the whole batch; row ``e * len(rounds) + i`` is episode e at the i-th
            chosen round.
        chunk: rows that run at a time, so that memory does not grow with episodes and rounds. Hooks
            then see one chunk after the other, which is right where they treat every row in the
            same way. All rows run at once where it is None and there are hooks.

    Returns:
        Predictions ``[episode, chosen round, ...]``, what each round leaves ``[episode, chosen
        round, row, width]`` (the latents that the next one reads) and the cache ``name -> [episode,
        chosen round, ...]``. Of a round that did not take place they are NaN, the latents that it
        read, and NaN.
    """
    require(chunk is None or chunk >= 1, f"chunk must be 1 or more, got {chunk}")
    chosen = select_rounds(rounds, run.n_rounds)
    names = [] if names_filter is None else model.hook_names(names_filter)
    latents, fed = run.rows(chosen)
    parts: dict[str, list[Tensor]] = {name: [] for name in names}

    def store(activation: Tensor, hook: Any) -> None:
        # Cloned, since what comes later may write over the tensor itself.
        parts[hook.name].append(activation.detach().clone())

    counter = FiringCounter([*fwd_hooks, *((name, store) for name in names)])
    size = chunk or (len(latents) if fwd_hooks else fed.at_once(REPLAY_BATCH))
    steps = []
    with torch.no_grad(), model.hooks(fwd_hooks=counter.hooks):
        for start in range(0, len(latents), size):
            rows = slice(start, start + size)
            steps.append(model.step(latents[rows], fed.select(rows)))
    counter.check()
    by_round = (run.n_episodes, len(chosen))
    predictions, carried = map(torch.cat, zip(*steps, strict=True))
    cache = {}
    for name, chunks in parts.items():
        activations = torch.cat(chunks)
        if activations.is_floating_point():
            activations, _ = fed.settled(activations, latents, carried)
        cache[name] = activations.unflatten(0, by_round)
    predictions, carried = fed.settled(predictions, latents, carried)
    return predictions.unflatten(0, by_round), carried.unflatten(0, by_round), cache
