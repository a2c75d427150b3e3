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
from functools import partial
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
from interp.support.checks import checked, refuse_beyond_machine, shown
from interp.support.errors import InputError, require, require_known
from interp.support.provenance import provenance
from interp.support.session import once
from interp.support.workers import threads_for

_MANY = 10_000  # rounds of which one is cached by itself first, to see what all of them would take
_CHUNK = 256  # episodes run at once on a CPU
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
        names_filter: hook points to cache (a name, a list, a predicate); nothing is cached when None.
        rounds: which rounds to cache.
        n_rounds: run only the first of them, where later ones are not read; what these give is equal bit for bit.
        commit: feed the model's own choice at ``a*`` ("own") or the recorded one ("target").
        fwd_hooks: (hook name, function) pairs for every round, or ``{round: pairs}``.
        propagate: let the hooks' effect run on into later rounds, or hold later latents at their clean values.
        clean: a rollout of the same episodes without hooks; rounds before the first hooked one are taken from it.
    """
    require_known("commit", commit, get_args(Commit))
    layout = model.layout.fit(episodes)
    numbers = (
        (4 * layout.n_positions + model.initial(1, layout).numel())
        * len(episodes)
        * episodes.n_rounds
    )
    what = f"a rollout of {len(episodes)} episodes of {episodes.n_rounds} rounds"
    refuse_beyond_machine(what, model.dtype.itemsize * numbers)
    encoded = model.prepare(layout.encoded(episodes))
    available = encoded.tokens.shape[1]
    n_rounds = available if n_rounds is None else n_rounds
    require(
        1 <= n_rounds <= available,
        f"the episodes have {available} rounds; n_rounds is 1 to that, got {n_rounds}",
    )
    encoded = encoded.each(lambda part: part[:, :n_rounds])
    chosen = select_rounds(rounds, n_rounds)
    cached = chosen if names_filter is not None else []
    names = model.hook_names(names_filter) if names_filter is not None else []
    hooks: dict[int, Hooks] = dict.fromkeys(range(n_rounds), fwd_hooks) if fwd_hooks else {}  # type: ignore[arg-type]
    if isinstance(fwd_hooks, Mapping):
        hooks = {select_rounds(t, n_rounds)[0]: pairs for t, pairs in fwd_hooks.items() if pairs}
        require(
            len(hooks) == sum(map(bool, fwd_hooks.values())),
            f"fwd_hooks name a round twice: {list(fwd_hooks)}",
        )
    for pairs in hooks.values():
        for name, _ in pairs:
            model.hook_names(name)
    if clean is not None:
        require_own(clean, model, episodes, encoded, commit)
    if names and len(episodes) * len(cached) > _MANY:
        one = rollout(
            model, episodes.select(slice(0, 1)), names_filter=names, n_rounds=1, commit=commit
        )
        n_bytes = len(episodes) * len(cached) * sum(held.nbytes for held in one.cache.values())
        refuse_beyond_machine(
            f"a cache of {len(names)} points in {len(cached)} rounds of {len(episodes)}", n_bytes
        )
    if hooks and not propagate and clean is None:
        clean = _unhooked(model, episodes, encoded, layout, commit)
    if hooks or clean is not None:
        run = sequential(model, encoded, layout, commit, hooks, clean, hold=not propagate)
        run = replace(run, episodes=episodes, settings=_settings(model, commit, propagate, hooks))
    else:
        run = _unhooked(model, episodes, encoded, layout, commit)
    if names:
        run = replace(
            run, cache=Cache(_cached(model, run, cached, names, hooks)), cached_rounds=tuple(cached)
        )
    return run


@checked
def play(
    model: Machine, worlds: Any, n_rounds: int, seed: int, *, epsilon: float = 0.0
) -> tuple[Any, Rollout]:
    """Let the model act in a task that has worlds to act in: its choice in round t is its action in round t + 1.

    Args:
        worlds: one per episode; for Q-learning the MDPs of ``interp.tasks.mdp.sample_mdps``.
        epsilon: probability of a uniform random action instead, by an epsilon-greedy wrapper around the model; a model
            that reads the round's draw (``layout.draws``) is told it, and chooses that action by itself.

    Returns:
        The episodes that it made, and the rollout (own choices committed).
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
    told = {"told": True} if layout.draws else {}
    interaction = task.data.interaction(
        worlds, n_rounds=n_rounds, seed=seed, epsilon=epsilon, **told
    )
    latents, choice = model.initial(len(worlds), layout), None
    record = _Record(latents, n_rounds)
    with torch.no_grad(), threads_for(model):
        stepper = model.stepper()
        while not interaction.done:
            encoded = model.prepare(layout.encode(interaction.step(choice)))
            step = run_round(model, encoded.at(0), latents, layout, "own", (), stepper)
            latents, choice = step.latents, layout.choose(step.prediction).cpu().numpy()
            record.add(step)
    settings = {
        **provenance(model, **model.precision(), commit="own"),
        "seed": seed,
        "epsilon": epsilon,
    }
    episodes = interaction.episodes()
    return episodes, replace(
        _of_numbers(model, record.rollout(layout, "own", settings)), model=model, episodes=episodes
    )


def require_own(
    run: Rollout, model: Machine, episodes: Any = None, encoded: Any = None, commit: str = ""
) -> Rollout:
    """``run``, unless another model made it, hooks acted in it, or it is of other episodes than are given."""
    own = run.settings.get("digest") == model.digest()
    require(
        own,
        f"this is a rollout of another model, {run.settings.get('model')!r}; run {model.name!r} for it",
    )
    require(
        not run.settings.get("hooked_rounds"),
        f"hooks acted in this rollout; run {model.name!r} without hooks",
    )
    if episodes is None:
        return run
    layout = model.layout.fit(episodes)
    encoded, commit = encoded or model.prepare(layout.encoded(episodes)), commit or run.commit
    same = run.tokens.shape == encoded.tokens.shape and run.commit == commit
    if same:
        tokens = encoded.tokens
        if layout.choice_position is not None and commit == "own":
            tokens = tokens.clone()
            tokens[..., layout.choice_position] = run.tokens[..., layout.choice_position]
        ran, fed = run.fed.tensors(), replace(encoded, tokens=tokens).tensors()
        same = ran.keys() == fed.keys() and all(torch.equal(ran[name], fed[name]) for name in fed)
    require(same, "give a rollout of the same episodes with the same commit")
    return run


@dataclass(frozen=True)
class Step:
    """One round run: what it predicted, the latents that it leaves, and the round as it was fed."""

    prediction: Tensor
    latents: Tensor
    fed: EncodedRounds


def run_round(
    model: Machine,
    encoded: EncodedRounds,
    latents: Tensor,
    layout: RoundLayout,
    commit: str,
    hooks: Hooks,
    step: Callable[[Tensor, EncodedRounds], Stepped] | None = None,
) -> Step:
    """One round: predict, commit the choice where the layout has one, and write the update.

    Callers that run many rounds without hooks give the model's ``stepper()`` as ``step``, which is then made once.
    """
    forward = model.step if hooks or step is None else step
    with threads_for(model), model.hooks(fwd_hooks=hooks) if hooks else nullcontext():
        done = forward(latents, encoded)
        if commit == "own":
            committed = layout.commit(encoded.tokens, layout.choose(done.prediction))
            if not torch.equal(committed, encoded.tokens):
                encoded = replace(encoded, tokens=committed)
                done = forward(latents, encoded)
    prediction, left = encoded.settled(done.prediction, latents, done.carried)
    return Step(prediction, left, encoded)


def sequential(
    model: Machine,
    encoded: EncodedRounds,
    layout: RoundLayout,
    commit: str,
    hooks: Mapping[int, Hooks] = MappingProxyType({}),
    clean: Rollout | None = None,
    hold: bool = False,
) -> Rollout:
    """All rounds in order, without the settings of a run; with ``clean``, only those that the hooks can change."""
    n_episodes, n_rounds, _ = encoded.tokens.shape
    first = min(hooks, default=0)
    counters = {t: FiringCounter(pairs) for t, pairs in hooks.items()}
    latents = model.initial(n_episodes, layout)
    record = _Record(latents, n_rounds)
    with torch.no_grad(), threads_for(model):
        stepper = model.stepper()
        for t in range(n_rounds):
            if clean is not None and (t < first or (hold and t not in hooks)):
                step = Step(clean.predictions[:, t], clean.latents[:, t + 1], clean.fed.at(t))
            else:
                pairs = counters[t].hooks if t in counters else ()
                step = run_round(model, encoded.at(t), latents, layout, commit, pairs, stepper)
            latents = clean.latents[:, t + 1] if hold and clean is not None else step.latents
            record.add(replace(step, latents=latents))
    for counter in counters.values():
        counter.check()
    run = record.rollout(layout, commit, {})
    return (
        run if hooks else _of_numbers(model, run)
    )  # what an edit ends in is for its reader to see


def _settings(
    model: Machine, commit: str, propagate: bool = True, hooked: Iterable[int] = ()
) -> dict[str, Any]:
    about = provenance(model, **model.precision(), commit=commit)
    return {**about, "propagate": propagate, "hooked_rounds": sorted(hooked)}


def _unhooked(
    model: Machine, episodes: Episodes, encoded: EncodedRounds, layout: RoundLayout, commit: str
) -> Rollout:
    """All rounds in order, without hooks; once a session where nothing of the model was hooked by hand.

    On a CPU :data:`_CHUNK` episodes run at a time, fewer of long rounds: the activations of more leave its caches.
    """

    def run() -> Rollout:
        n = len(encoded.tokens)
        size = encoded.at_once(_CHUNK) if encoded.tokens.device.type == "cpu" else n
        chunks = torch.arange(n).split(size) if n > size else ()
        parts = [
            encoded.each(partial(torch.index_select, dim=0, index=chunk)) for chunk in chunks
        ] or [encoded]
        runs = [sequential(model, part, layout, commit) for part in parts]
        whole = Rollout.joined(runs) if chunks else runs[0]
        return replace(whole, episodes=episodes, settings=_settings(model, commit))

    with torch.no_grad():
        if not model.is_quiet():
            return run()
    settings = ("rollout", commit, encoded.tokens.shape[1], model.weights_version())
    return once(
        settings, model, episodes, make=lambda: replace(run(), model=model, episodes=episodes)
    )


def _of_numbers(model: Machine, run: Rollout) -> Rollout:
    """The run, refused where a number in it is none or infinite; an untrained copy may overflow, and is no control."""
    if getattr(model, "may_overflow", False):
        return run
    rounds = range(run.n_rounds)
    predictions = run.predictions
    if run.fed.missing is not None:
        predictions = predictions.clone()
        predictions[run.fed.missing] = 0.0
    for what, values, at in (
        ("predicts", predictions, rounds),
        ("carries", run.latents, [0, *rounds]),
    ):
        if not values.isfinite().all():
            wrong = ~values.isfinite().flatten(2).all(2) if values.ndim > 2 else ~values.isfinite()
            step = int(wrong.any(0).nonzero()[0])
            raise InputError(
                f"what {model.name!r} {what} is not a number from round {at[step]} on, in episode "
                f"{int(wrong[:, step].nonzero()[0])} (in {int(wrong.any(1).sum())} of {len(values)} episodes in all): "
                "look for a logarithm of 0, a division by 0 or a state that grows without end"
            )
    return run


class _Record:
    """What the rounds of a run gave, each written to its place in tensors that hold all of them.

    A list of each round's small tensors would leave one between the large ones of every round, whose memory could then
    not be used again: 300 MiB in 200 rounds of 256 episodes.
    """

    def __init__(self, initial: Tensor, n_rounds: int) -> None:
        self.n_rounds, self.n_done = n_rounds, 0
        self.latents = initial.new_empty((len(initial), n_rounds + 1, *initial.shape[1:]))
        self.latents[:, 0] = initial.detach()

    def add(self, step: Step) -> None:
        """The next round."""
        given = {"predictions": step.prediction, **step.fed.tensors()}
        if not self.n_done:
            sizes = {
                name: (len(value), self.n_rounds, *value.shape[1:]) for name, value in given.items()
            }
            self.fed, self.held = (
                step.fed,
                {name: value.new_empty(sizes[name]) for name, value in given.items()},
            )
        for name, value in given.items():
            self.held[name][:, self.n_done] = value
        self.n_done += 1
        self.latents[:, self.n_done] = step.latents

    def rollout(self, layout: RoundLayout, commit: str, settings: dict[str, Any]) -> Rollout:
        """All rounds."""
        predictions, fed = self.held.pop("predictions"), replace(self.fed, **self.held)
        return Rollout(predictions, self.latents, fed, layout, commit, settings=settings)


def _cached(
    model: Machine, run: Rollout, rounds: list[int], names: list[str], hooks: Mapping[int, Hooks]
) -> dict[str, Tensor]:
    """Replay the cached rounds: those without hooks at once, each hooked one with its hooks."""
    plain = [t for t in rounds if t not in hooks]
    parts: dict[int, dict[str, Tensor]] = {}
    if plain:
        _, _, cache = replay(model, run, rounds=plain, names_filter=names)
        if plain == rounds:
            return cache
        parts |= {
            t: {name: value[:, i] for name, value in cache.items()} for i, t in enumerate(plain)
        }
    for t in rounds:
        if t in hooks:
            _, _, cache = replay(model, run, rounds=t, names_filter=names, fwd_hooks=hooks[t])
            parts[t] = {name: value[:, 0] for name, value in cache.items()}
    return {name: torch.stack([parts[t][name] for t in rounds], 1) for name in names}


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
        fwd_hooks: applied to the whole batch; row ``e * len(rounds) + i`` is episode e at the i-th chosen round.
        chunk: rows that run at a time, so that memory does not grow with episodes and rounds. Hooks then see one chunk
            after the other, which is right where they treat every row alike. All rows run at once where it is None and
            there are hooks.

    Returns:
        Predictions ``[episode, chosen round, ...]``, what each round leaves ``[episode, chosen round, row, width]``
        (the latents that the next one reads) and the cache ``name -> [episode, chosen round, ...]``. Of a round that
        did not take place they are NaN, the latents that it read, and NaN.
    """
    require(chunk is None or chunk >= 1, f"chunk must be 1 or more, got {chunk}")
    chosen = select_rounds(rounds, run.n_rounds)
    names = model.hook_names(names_filter) if names_filter is not None else []
    latents, fed = run.rows(chosen)
    cache: dict[str, list[Tensor]] = {name: [] for name in names}

    def keep(activation: Tensor, hook: Any) -> None:
        cache[hook.name].append(
            activation.detach().clone()
        )  # what comes later may write over the tensor itself

    counter = FiringCounter([*fwd_hooks, *((name, keep) for name in names)])
    size = chunk or (len(latents) if fwd_hooks else fed.at_once(REPLAY_BATCH))
    steps = []
    with torch.no_grad(), model.hooks(fwd_hooks=counter.hooks):
        for start in range(0, len(latents), size):
            rows = slice(start, start + size)
            steps.append(model.step(latents[rows], fed.each(lambda part, rows=rows: part[rows])))  # type: ignore[misc]
    counter.check()
    shape = (run.n_episodes, len(chosen))
    prediction, left = (torch.cat(parts) for parts in zip(*steps, strict=True))
    predictions, carried = (x.unflatten(0, shape) for x in fed.settled(prediction, latents, left))
    seen = {name: torch.cat(parts) for name, parts in cache.items()}
    seen = {
        k: fed.settled(x, latents, left)[0] if x.is_floating_point() else x for k, x in seen.items()
    }
    return predictions, carried, {name: x.unflatten(0, shape) for name, x in seen.items()}
