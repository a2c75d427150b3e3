"""Run a model over the rounds of episodes; everything that is returned has a round axis.

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

Rounds affect each other only through the latents: ``m_{t+1} = write(m_t, update(round_t, m_t))``.
This gives two passes. The *sequential* pass (:func:`rollout`, :func:`play`) computes one round
after the other. The *replay* pass (:func:`replay`) takes the latents of a rollout, and runs all
episodes and rounds in one batch; it gives the same results up to floating-point error.

Missing rounds (missed trials and padding) leave the latents unchanged. Their predictions and cached
activations are NaN, so that a result that includes them by mistake is NaN, too.
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
from interp.model.hooked import FiringCounter, Hooks, NamesFilter, has_hooks
from interp.model.layout import EncodedRounds, RoundLayout
from interp.model.run import Commit, Rollout, Rounds, select_rounds
from interp.support.checks import checked, checked_result, format_value, refuse_beyond_machine
from interp.support.errors import InputError, require, require_known
from interp.support.provenance import provenance
from interp.support.session import compute_once
from interp.support.workers import threads_for

_LARGE_CACHE = 10_000
"""From this many rounds on, one round is cached first to estimate the memory that all will need."""
_EPISODES_PER_CHUNK = 256
"""Number of episodes that run in one batch on a CPU."""
_ROUNDS_PER_CALL = 8192
"""Number of rounds, over all episodes, that a machine runs in one call."""
REPLAY_BATCH = 1024
"""Number of rounds in a replay batch.

It bounds memory, and keeps activations in a CPU's cache, which is 1.7 times as fast as 8192.
"""


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
    """Run ``model`` over recorded ``episodes``, round after round.

    Args:
        model: the model.
        episodes: episodes of its task.
        names_filter: the hook points to cache: a name, a list of names, or a predicate of names;
            None to cache no activations.
        rounds: the rounds to cache: an int, a slice, a list or "all".
        n_rounds: number of rounds to run, if later ones are not needed; None for all. Results of
            these rounds are the same as in a run over all.
        commit: which choice the model reads where a round contains one (such as an action): the
            model's "own", or the "target" that was recorded.
        fwd_hooks: pairs (hook name, function) for every round; or index of a round -> such pairs.
            The function takes ``(activation, hook)``, as in TransformerLens.
        propagate: True to let the effect of hooks carry over to later rounds. False to let every
            round read the state that it reads without hooks.
        clean: a rollout of the same episodes without hooks, if there is one. With hooks, rounds that
            they cannot affect are then copied from it, to save time.

    Returns:
        The rollout: predictions and cached activations, ``[episode, round, ...]`` each, and carried
        states, ``[episode, round + 1, ...]``, where index t is the state that round t reads.
    """
    require_known("commit", commit, get_args(Commit))
    layout = model.layout.fit(episodes)
    _refuse_large_run(model, episodes, layout)
    encoded = model.prepare(layout.encode_with_missing(episodes))
    available = encoded.tokens.shape[1]
    n_rounds = available if n_rounds is None else n_rounds
    require(
        min(1, available) <= n_rounds <= available,
        f"the episodes have {available} rounds; n_rounds is 1 to that, got {n_rounds}",
    )
    encoded = encoded.slice_rounds(0, n_rounds)
    chosen = select_rounds(rounds, n_rounds)
    names = [] if names_filter is None else model.hook_names(names_filter)
    hooks = _sort_hooks_by_round(model, fwd_hooks, n_rounds)
    if clean is not None:
        require_own(clean, model, episodes, encoded=encoded, commit=commit)
    if names and len(episodes) * len(chosen) > _LARGE_CACHE:
        _refuse_large_cache(model, episodes, names, len(chosen), commit)
    if hooks and not propagate and clean is None:
        clean = _run_without_hooks(model, episodes, encoded, layout, commit)
    # Without hooks, a cache of some rounds is filled by replaying them: the run without a cache can
    # then be shared with other callers.
    caches_by_replay = not hooks and len(chosen) < n_rounds
    recorder = _CacheRecorder([] if caches_by_replay else names, chosen, len(episodes))
    if hooks or clean is not None:
        run = sequential(
            model,
            encoded,
            layout,
            commit,
            hooks=hooks,
            clean=clean,
            hold_states=not propagate,
            recorder=recorder,
        )
        settings = _settings(model, commit, propagate=propagate, hooked_rounds=hooks)
        run = replace(run, episodes=episodes, settings=settings)
    else:
        run = _run_without_hooks(model, episodes, encoded, layout, commit, recorder=recorder)
    if names:
        cache = recorder.tensors
        if caches_by_replay:
            _, _, cache = replay(model, run, rounds=chosen, names_filter=names)
        # In the order of the filter, whatever the order in which the points fired.
        in_order = Cache({name: cache[name] for name in names})
        in_order.n_layers = getattr(getattr(model, "cfg", None), "n_layers", 0)
        run = replace(run, cache=in_order, cached_rounds=tuple(chosen))
    return run


def _refuse_large_run(model: Machine, episodes: Episodes, layout: RoundLayout) -> None:
    """Refuse a run whose tokens, payloads (numbers that tokens carry, such as rewards) and states
    would not fit into the memory that this process may use.

    Args:
        model: the model.
        episodes: the episodes to run.
        layout: layout of the rounds.
    """
    # An estimate for a round: its tokens and payloads, and the state.
    n_numbers = 4 * layout.n_positions + model.initial(1, layout).numel()
    n_numbers *= len(episodes) * episodes.n_rounds
    refuse_beyond_machine(
        f"a rollout of {len(episodes)} episodes of {episodes.n_rounds} rounds",
        model.dtype.itemsize * n_numbers,
    )


def _refuse_large_cache(
    model: Machine, episodes: Episodes, names: list[str], n_rounds: int, commit: str
) -> None:
    """Refuse to cache activations that would not fit into the memory that this process may use;
    their size is estimated from one round of one episode.

    Args:
        model: the model.
        episodes: the episodes to run.
        names: the hook points to cache.
        n_rounds: number of rounds to cache.
        commit: which choice is fed where a round contains one: the model's ("own") or the recorded
            one ("target").
    """
    first_episode = episodes.select(slice(0, 1))
    round_run = rollout(model, first_episode, names_filter=names, n_rounds=1, commit=commit)
    n_bytes_of_round = sum(activation.nbytes for activation in round_run.cache.values())
    refuse_beyond_machine(
        f"a cache of {len(names)} points in {n_rounds} rounds of {len(episodes)}",
        len(episodes) * n_rounds * n_bytes_of_round,
    )


def _sort_hooks_by_round(model: Machine, fwd_hooks: Any, n_rounds: int) -> dict[int, Hooks]:
    """Return a dictionary from the index of a round to its hooks, for rounds that have any; refuse
    unknown hook points.

    Args:
        model: the model.
        fwd_hooks: pairs (hook name, function), or ``{round: pairs}``.
        n_rounds: number of rounds of the run.
    """
    hooks: dict[int, Hooks] = {}
    if isinstance(fwd_hooks, Mapping):
        for t, pairs in fwd_hooks.items():
            if not pairs:
                continue
            (index,) = select_rounds(t, n_rounds)  # a negative t counts from the end
            require(index not in hooks, f"fwd_hooks name a round twice: {list(fwd_hooks)}")
            hooks[index] = pairs
    elif fwd_hooks:
        hooks = dict.fromkeys(range(n_rounds), fwd_hooks)
    for pairs in hooks.values():
        for name, _ in pairs:
            model.hook_names(name)  # refuses unknown names
    return hooks


@checked
def play(
    model: Machine, worlds: Any, n_rounds: int, seed: int, *, epsilon: float = 0.0
) -> tuple[Any, Rollout]:
    """Let the model act in environments: its choice in round t is its action in round t + 1.

    Args:
        model: the model that acts.
        worlds: the environments, one per episode; for Q-learning, MDPs of
            ``interp.tasks.mdp.sample_mdps``.
        n_rounds: number of rounds.
        seed: seed of the environments' random draws.
        epsilon: probability of exploring, in each round: a uniformly random action takes the place
            of the model's choice. Usually the environment replaces the choice. If the layout has a
            token for random draws (``layout.draws``), this token names the random action, and the
            model itself is expected to take it.

    Returns:
        A pair: the episodes that result from the model's actions, as a batch of the task's class of
        episodes; and the rollout over these episodes.
    """
    task = catalog.of(model)
    require(0.0 <= epsilon <= 1.0, f"epsilon must lie in [0, 1], got {epsilon}")
    if task.data.interaction is None:
        raise InputError(
            f"{model.name!r} is a model of {task.name}, which has no worlds to act in; use rollout"
        )
    require(
        not hasattr(worlds, "n_rounds"),  # episodes, which have their worlds as an attribute
        f"play acts in worlds, such as the .mdps of episodes, got {format_value(worlds)}",
    )
    layout = model.layout.fit(worlds)
    options: dict[str, Any] = {"n_rounds": n_rounds, "seed": seed, "epsilon": epsilon}
    if layout.draws:  # random actions are shown to the model by a token, and it takes them
        options["told"] = True
    interaction = task.data.interaction(worlds, **options)
    carried = model.initial(len(worlds), layout)
    choice = None  # before the first round the model has not chosen
    results = _RoundResults(carried, n_rounds)
    with torch.no_grad(), threads_for(model):
        stepper = model.stepper()
        while not interaction.done:
            world_round = interaction.step(choice)  # episodes of one round each
            encoded = model.prepare(layout.encode(world_round)).take_round(0)
            step = run_round(model, encoded, carried, layout, "own", step=stepper)
            carried = step.latents
            choice = layout.choose(step.prediction).cpu().numpy()
            results.add(step)
    settings = {**_settings(model, "own"), "seed": seed, "epsilon": epsilon}
    run = results.make_rollout(layout, "own", settings)
    _require_numbers(model, run)
    episodes = interaction.episodes()
    # With hooks attached, the run is not the model's own, and does not name it as its model.
    is_own = settings["quiet"]
    return episodes, replace(run, model=model if is_own else None, episodes=episodes)


def require_own(
    run: Rollout,
    model: Machine,
    episodes: Any = None,
    encoded: EncodedRounds | None = None,
    commit: str = "",
) -> Rollout:
    """Return the rollout ``run`` if ``model`` made it over ``episodes``, without ``fwd_hooks``;
    otherwise raise InputError. If hooks were attached to the model itself during the rollout, some
    must be attached now, too; if none were, none may be attached now.

    Args:
        run: the rollout.
        model: the model that must have made it.
        episodes: the episodes that it must be of; None accepts any.
        encoded: ``episodes`` encoded as the model's input; None to encode them here.
        commit: which choice the model must have read where a round contains one, such as an action:
            its "own", or the recorded "target"; "" accepts either.
    """
    _require_same_model(run.settings.get("digest") == model.digest(), run, model)
    require(
        not run.settings.get("hooked_rounds"),
        f"hooks acted in this rollout; run {model.name!r} without hooks",
    )
    had_no_hooks = run.settings.get("quiet", True)
    if had_no_hooks:
        # `runs_without_hooks` would also be False if a flag of the model switches on further hook
        # points, which change no result.
        module: Any = model
        has_hooks_now = any(map(has_hooks, module.modules()))
        require(
            not has_hooks_now,
            f"this rollout was made before hooks were attached to {model.name!r}; run it again with "
            "them, or remove them",
        )
    else:
        require(
            not runs_without_hooks(model),
            "this rollout was made while hooks were attached to the model, and now none are; run "
            f"{model.name!r} without hooks",
        )
    if episodes is None:
        return run
    layout = model.layout.fit(episodes)
    if encoded is None:
        encoded = model.prepare(layout.encode_with_missing(episodes))
    commit = commit or run.commit  # "" accepts either
    is_same = commit == run.commit and _is_run_over(run, encoded, layout)
    require(is_same, "give a rollout of the same episodes with the same commit")
    return run


def _require_same_model(is_same: bool, run: Rollout, model: Machine) -> None:
    """Raise InputError if another model made a rollout.

    Args:
        is_same: whether ``model`` made it.
        run: the rollout.
        model: the model that must have made it.
    """
    require(
        is_same,
        f"this is a rollout of another model, {run.settings.get('model')!r}; run {model.name!r} for it",
    )


def _is_run_over(run: Rollout, encoded: EncodedRounds, layout: RoundLayout) -> bool:
    """Return whether a rollout ran over these encoded rounds; choices that the model made are not
    compared.

    Args:
        run: the rollout.
        encoded: the rounds.
        layout: layout of the rounds.
    """
    if run.tokens.shape != encoded.tokens.shape:
        return False
    tokens = encoded.tokens
    if layout.choice_position is not None and run.commit == "own":
        # The run has the model's choices there, and the encoded rounds the recorded ones.
        tokens = tokens.clone()
        tokens[..., layout.choice_position] = run.tokens[..., layout.choice_position]
    tensors_of_run = run.fed.tensors()
    expected = replace(encoded, tokens=tokens).tensors()
    if tensors_of_run.keys() != expected.keys():
        return False
    return all(torch.equal(tensors_of_run[name], expected[name]) for name in expected)


@dataclass(frozen=True)
@checked_result
class Step:
    """Result of running one round of a batch of episodes.

    Attributes:
        prediction: the prediction, in the form of the task's layout: usually probabilities,
            ``[batch, outcome]``.
        latents: the carried state after the round, ``[batch, row, width]``.
        fed: the round's encoded inputs. If a round contains a choice of the model, such as an
            action, the token of this choice is among them.
    """

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
    """Run one round of a batch of episodes, and return its prediction and the carried state after
    it.

    Args:
        model: the model.
        encoded: the encoded inputs of the round, one row per episode.
        latents: the state that the round reads, ``[batch, row, width]``.
        layout: layout of the round.
        commit: which choice the model reads if the round contains a choice, such as an action: its
            "own", which it makes from its prediction, or the recorded "target".
        hooks: pairs (hook name, function), as in TransformerLens.
        step: function to call in place of ``model.step`` if there are no hooks, such as the quicker
            one that ``model.stepper()`` returns; None for ``model.step``.

    Returns:
        The prediction, the state after the round, and the inputs with the choice that was read.
    """
    # A quicker function may leave out hook points, so it is used only without hooks.
    forward = model.step if hooks or step is None else step
    attached = model.hooks(fwd_hooks=hooks) if hooks else nullcontext()
    with threads_for(model), attached:
        result = forward(latents, encoded)
        if commit == "own":
            # The choice follows from the prediction, and the update may read it: run once more,
            # unless the round has the token of this choice already.
            tokens = layout.put_choice(encoded.tokens, layout.choose(result.prediction))
            if not torch.equal(tokens, encoded.tokens):
                encoded = replace(encoded, tokens=tokens)
                result = forward(latents, encoded)
    # Episodes in which this round is missing (padding, or a missed trial) keep the state that they
    # had before, and their prediction becomes NaN.
    prediction, carried = encoded.undo_missing(
        result.prediction, before=latents, after=result.carried
    )
    return Step(prediction, latents=carried, fed=encoded)


def sequential(
    model: Machine,
    encoded: EncodedRounds,
    layout: RoundLayout,
    commit: str,
    hooks: Mapping[int, Hooks] = MappingProxyType({}),
    clean: Rollout | None = None,
    hold_states: bool = False,
    recorder: _CacheRecorder | None = None,
) -> Rollout:
    """Run the rounds one after the other, and return predictions and latents of every round as a
    rollout. The dictionary ``settings`` of the rollout is empty; the caller fills it in.

    Args:
        model: the model.
        encoded: the encoded rounds of every episode.
        layout: layout of the rounds.
        commit: which choice the model reads where a round contains one, such as an action: its
            "own", or the recorded "target".
        hooks: index of a round -> pairs (hook name, function), as in TransformerLens.
        clean: a rollout of the same rounds without hooks. Rounds that the hooks cannot affect are
            copied from this rollout.
        hold_states: True to let every round read the carried state that it reads in ``clean``. A hook then
            affects only the round in which it acts.
        recorder: object that caches activations, after the hooks have acted; None for no cache.
    """
    n_episodes, n_rounds, _ = encoded.tokens.shape
    recorder = recorder or _CacheRecorder([], [], n_episodes)
    # The model's choice is written into the round, which is then run again: one round at a time.
    chooses = commit == "own" and layout.choice_position is not None
    first_hooked = min(hooks, default=0)  # without hooks every round is run, even if there is clean
    n_unhooked = min(hooks, default=n_rounds)  # number of rounds before the first hook
    # Rounds without hooks, caches and choices may be run in one call, as if clean had been passed.
    if clean is None and n_unhooked and not (recorder.hooks or chooses):
        clean = _unroll(model, encoded.slice_rounds(0, n_unhooked), layout, commit)
        if clean is not None and not hooks:
            return clean

    def has_edits(t: int) -> bool:
        """Return True if a hook can affect the result of round ``t``: if hooks act in it or in an
        earlier round. With ``hold_states``, only hooks in the round itself count.
        """
        return t in hooks if hold_states else t >= first_hooked

    def is_run(t: int) -> bool:
        """Return True if round ``t`` must be run. Otherwise its result is copied from ``clean``,
        the rollout without hooks.

        A round is run if there is no ``clean``, if a hook can affect it, or if its activations are
        to be cached.
        """
        return clean is None or has_edits(t) or t in recorder.cache_index

    def run_or_copy(t: int, latents: Tensor, forward: Any) -> Step:
        """Return the result of round ``t``: from ``clean`` if no hook affects it, else from a run.

        A round whose activations are to be cached is run in either case, to record them.

        Args:
            t: index of the round.
            latents: the state that the round reads, ``[episode, row, width]``.
            forward: function ``(latents, encoded)`` that runs a round.
        """
        if is_run(t):
            recorder.t = t
            step = run_round(model, encoded.take_round(t), latents, layout, commit, step=forward)
            recorder.mark_missing(step.fed.missing)
        if clean is not None and not has_edits(t):
            # If the round was run nevertheless, to be cached, the run had the same result.
            step = Step(
                clean.predictions[:, t],
                latents=clean.latents[:, t + 1],
                fed=clean.fed.take_round(t),
            )
        # The next round then reads the state that it reads in clean.
        if clean is not None and hold_states:
            step = replace(step, latents=clean.latents[:, t + 1])
        return step

    latents = model.initial(n_episodes, layout)
    results = _RoundResults(latents, n_rounds)
    with torch.no_grad(), threads_for(model):
        plain_forward = model.stepper()
        # Consecutive rounds with the same hooks are run together, so that hooks are attached once.
        for pairs, group in groupby(range(n_rounds), lambda t: hooks.get(t, ())):
            rounds = list(group)
            counter = FiringCounter([*pairs, *recorder.hooks])
            attached = model.hooks(fwd_hooks=counter.hooks) if counter.hooks else nullcontext()
            with attached:
                forward = model.stepper() if counter.hooks else plain_forward
                for t in rounds:
                    step = run_or_copy(t, latents, forward)
                    latents = step.latents
                    results.add(step)
            if any(map(is_run, rounds)):  # in rounds that are copied from clean, no hook fires
                counter.require_all_fired()
    run = results.make_rollout(layout, commit, settings={})
    if not hooks:  # after an intervention, NaN is a result
        _require_numbers(model, run)
    return run


def _unroll(
    model: Machine, encoded: EncodedRounds, layout: RoundLayout, commit: str
) -> Rollout | None:
    """Run many rounds in one call, if the model supports it; return None if it does not.

    Args:
        model: the model.
        encoded: the encoded rounds of every episode.
        layout: layout of the rounds.
        commit: which choice was fed, for the record: the model's ("own") or the recorded one
            ("target").
    """
    unroll = getattr(model, "unroll", None)
    if unroll is None:
        return None
    n_episodes, n_rounds, _ = encoded.tokens.shape
    rounds_per_call = max(1, _ROUNDS_PER_CALL // max(n_episodes, 1))
    latents = model.initial(n_episodes, layout)
    predictions = []
    carried = [latents.unsqueeze(1)]  # parts [episode, round, row, width]; first the initial state
    with torch.no_grad(), threads_for(model):
        for start in range(0, n_rounds, rounds_per_call):
            part = encoded.slice_rounds(start, start + rounds_per_call)
            stepped = unroll(carried[-1][:, -1], part)
            if stepped is None:
                return None
            predictions.append(stepped.prediction)
            carried.append(stepped.carried)
    run = Rollout(
        predictions=torch.cat(predictions, 1),
        latents=torch.cat(carried, 1),
        fed=encoded,
        layout=layout,
        commit=commit,
    )
    _require_numbers(model, run)
    return run


def _settings(
    model: Machine, commit: str, propagate: bool = True, hooked_rounds: Iterable[int] = ()
) -> dict[str, Any]:
    """Return how a run was made, for ``Rollout.settings``: name of a setting -> its value.

    Args:
        model: the model.
        commit: which choice was fed where a round contains one: the model's ("own") or the recorded
            one ("target").
        propagate: whether effects of hooks carry over to later rounds.
        hooked_rounds: indices of the rounds in which hooks acted.
    """
    settings = provenance(model, **model.precision(), commit=commit)
    settings |= {"propagate": propagate, "hooked_rounds": sorted(hooked_rounds)}
    return {**settings, "quiet": runs_without_hooks(model)}


def runs_without_hooks(model: Machine) -> bool:
    """Return True if a model runs without changes from outside: no hook is attached and, in a
    transformer, no module was replaced and no flag switches on further hook points.

    Args:
        model: the model.
    """
    with torch.no_grad():
        return model.is_quiet()


def _run_without_hooks(
    model: Machine,
    episodes: Episodes,
    encoded: EncodedRounds,
    layout: RoundLayout,
    commit: str,
    recorder: _CacheRecorder | None = None,
) -> Rollout:
    """Run all rounds in order, without hooks from the caller, and return the rollout.

    If nothing is cached and the user has attached no hook to the model,
    :func:`interp.support.session.compute_once` stores the run, and returns it again for the same model and
    episodes. On a CPU :data:`_EPISODES_PER_CHUNK` episodes run at a time, or fewer if rounds are
    long, so that activations stay in the CPU's cache.

    Args:
        model: the model.
        episodes: the episodes.
        encoded: the encoded rounds of the episodes.
        layout: layout of the rounds.
        commit: which choice is fed where a round contains one: the model's ("own") or the recorded
            one ("target").
        recorder: caches activations; None caches nothing.
    """
    recorder = recorder or _CacheRecorder([], [], len(episodes))
    is_quiet = runs_without_hooks(model)

    def run_chunks() -> Rollout:
        """Run the episodes, some at a time, and join these runs to one rollout."""
        n_episodes = max(len(encoded.tokens), 1)  # without episodes, one run of none
        is_on_cpu = encoded.tokens.device.type == "cpu"
        # In small batches, activations stay in the CPU's cache.
        chunk_size = encoded.choose_batch_size(_EPISODES_PER_CHUNK) if is_on_cpu else n_episodes
        runs = []
        for start in range(0, n_episodes, chunk_size):
            recorder.rows = slice(start, start + chunk_size)  # where it stores this part's episodes
            part = encoded.select(recorder.rows)
            runs.append(sequential(model, part, layout, commit, recorder=recorder))
        whole = runs[0] if len(runs) == 1 else Rollout.join(runs)
        settings = _settings(model, commit)
        # With hooks attached beforehand, the run is not that of the model alone. It names no model,
        # so that no control, such as an untrained copy without these hooks, is compared with it.
        model_of_run = model if is_quiet else None
        return replace(whole, model=model_of_run, episodes=episodes, settings=settings)

    if recorder.hooks or not is_quiet:
        return run_chunks()
    n_rounds = encoded.tokens.shape[1]
    key = ("rollout", commit, n_rounds, model.training, model.weights_version())
    return compute_once(key, model, episodes, make=run_chunks)


def _require_numbers(model: Machine, run: Rollout) -> None:
    """Refuse a rollout with NaN or infinite numbers, except for untrained copies, whose state may
    overflow, and for the predictions of missing rounds.

    Args:
        model: the model.
        run: the model's rollout.
    """
    if getattr(model, "may_overflow", False):
        return
    predictions = run.predictions
    if run.fed.missing is not None:
        predictions = predictions.clone()
        predictions[run.fed.missing] = 0.0  # they are NaN in missing rounds, which is no error
    _require_finite(model, "predicts", predictions)
    # First the states after rounds, so that index t of the second axis is round t; then the state
    # before round 0.
    _require_finite(model, "carries", run.latents[:, 1:])
    _require_finite(model, "carries", run.latents[:, :1])


def _require_finite(model: Machine, what: str, values: Tensor) -> None:
    """Refuse numbers that are not finite; the error names the first round that contains such a
    number.

    Args:
        model: the model, for its name.
        what: verb for the error message: "predicts" or "carries".
        values: ``[episode, round, ...]``.
    """
    is_finite = values.isfinite()
    if is_finite.all():
        return
    is_wrong = ~is_finite.reshape(*values.shape[:2], -1).all(2)  # [episode, round]
    t = int(is_wrong.any(0).nonzero()[0])  # the first round of which any number is wrong
    episode = int(is_wrong[:, t].nonzero()[0])
    n_wrong = int(is_wrong.any(1).sum())
    raise InputError(
        f"what {model.name!r} {what} is not a number from round {t} on, in episode {episode} "
        f"(in {n_wrong} of {len(values)} episodes in all): "
        "look for a logarithm of 0, a division by 0 or a state that grows without end"
    )


class _RoundResults:
    """Collects the results of all rounds in tensors that are allocated once, and makes a rollout of
    them.

    A list of small tensors, one per round, would fragment memory: after each round's large
    activations are freed, a small tensor between them would keep their memory from being reused.
    That cost 300 MiB in 200 rounds of 256 episodes.

    Args:
        initial: the state before the first round, ``[episode, row, width]``.
        n_rounds: number of rounds to come.
    """

    def __init__(self, initial: Tensor, n_rounds: int) -> None:
        self.n_rounds = n_rounds
        self.n_done = 0
        self.latents = self._allocate(initial, n_rounds + 1)
        self.latents[:, 0] = initial.detach()
        self.tensors: dict[str, Tensor] = {}

    @staticmethod
    def _allocate(value: Tensor, n_rounds: int) -> Tensor:
        """Return an uninitialised tensor ``[episode, round, ...]`` for a value that each round has.

        Args:
            value: the value in one round, ``[episode, ...]``.
            n_rounds: number of rounds.
        """
        return value.new_empty((len(value), n_rounds, *value.shape[1:]))

    def add(self, step: Step) -> None:
        """Store the prediction and the inputs of the next round, and the state after it.

        Args:
            step: the result of the round.
        """
        values = {"predictions": step.prediction, **step.fed.tensors()}
        if not self.tensors:  # the first round: now names and shapes are known
            self.first_fed = step.fed
            for name, value in values.items():
                self.tensors[name] = self._allocate(value, self.n_rounds)
        for name, value in values.items():
            self.tensors[name][:, self.n_done] = value
        self.n_done += 1
        self.latents[:, self.n_done] = step.latents

    def make_rollout(self, layout: RoundLayout, commit: str, settings: dict[str, Any]) -> Rollout:
        """Return all rounds as a rollout.

        Args:
            layout: layout of the rounds.
            commit: which choice was fed where a round contains one: the model's ("own") or the
                recorded one ("target").
            settings: the settings of the run.
        """
        predictions = self.tensors.pop("predictions")  # the others are the inputs
        # The inputs of all rounds, in the class of the first round's inputs, which a task may define.
        fed = replace(self.first_fed, **self.tensors)
        return Rollout(
            predictions,
            latents=self.latents,
            fed=fed,
            layout=layout,
            commit=commit,
            settings=settings,
        )


class _CacheRecorder:
    """Caches activations of some rounds in tensors that are allocated once.

    Args:
        names: the hook points to cache.
        rounds: the rounds to cache, in order.
        n_episodes: total number of episodes, in one batch or several.

    Attributes:
        hooks: hooks that store the activations of a round.
        tensors: ``name -> [episode, cached round, ...]``.
        rows: the episodes that are running now.
        t: index of the round that is running now.
    """

    def __init__(self, names: list[str], rounds: list[int], n_episodes: int) -> None:
        # Round -> its index along the axis of cached rounds; empty if nothing is cached.
        self.cache_index = {t: index for index, t in enumerate(rounds)} if names else {}
        self.n_episodes = n_episodes
        self.hooks = [(name, self._store) for name in names]
        self.tensors: dict[str, Tensor] = {}
        self.rows = slice(0, n_episodes)
        self.t = 0

    def _store(self, activation: Tensor, hook: Any) -> None:
        """Store an activation if the current round is one of those to cache; this method is a hook.

        Args:
            activation: the activation, ``[episode, ...]``.
            hook: the hook point, for its name.
        """
        index = self.cache_index.get(self.t)
        if index is None:
            return
        if hook.name not in self.tensors:
            shape = (self.n_episodes, len(self.cache_index), *activation.shape[1:])
            self.tensors[hook.name] = activation.new_empty(shape)
        self.tensors[hook.name][self.rows, index] = activation

    def mark_missing(self, missing: Tensor | None) -> None:
        """Write NaN into the cache for episodes in which the current round is missing.

        Args:
            missing: ``[batch]``, True where the round is missing; None if it is missing nowhere.
        """
        index = self.cache_index.get(self.t)
        if missing is None or index is None:
            return
        for tensor in self.tensors.values():
            if tensor.is_floating_point():
                tensor[self.rows, index][missing] = torch.nan  # rows is a slice: this is a view


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
    """Run chosen rounds of a rollout again, all in one batch. Each round starts from the carried
    state and the inputs that are stored in the rollout.

    Args:
        model: the model.
        run: a rollout of this model, with or without hooks.
        rounds: the rounds to run: an int, a slice, a list or "all".
        names_filter: the hook points to cache: a name, a list of names, or a predicate of names;
            None to cache no activations.
        fwd_hooks: pairs (hook name, function), as in TransformerLens. An activation has one row per
            episode and chosen round: row ``e * len(rounds) + i`` is episode e in the i-th chosen
            round.
        chunk: number of rows to run at a time, to bound memory. Hooks then see one chunk after the
            other, so they must do the same to every row. When None, all rows run at once if there
            are hooks; without hooks a number is chosen.

    Returns:
        A tuple of three:

        - the predictions, ``[episode, chosen round, ...]``;
        - the carried states after these rounds, ``[episode, chosen round, row, width]``;
        - a dictionary, name of a hook point -> its activations, ``[episode, chosen round, ...]``.

        For missing rounds the predictions and the activations are NaN, and the carried state is the
        one before the round.
    """
    require(chunk is None or chunk >= 1, f"chunk must be 1 or more, got {chunk}")
    digest = run.settings.get("digest")  # None if sequential() made it, which leaves settings empty
    is_same = run.model is model or digest is None or digest == model.digest()
    _require_same_model(is_same, run, model)
    chosen = select_rounds(rounds, run.n_rounds)
    names = [] if names_filter is None else model.hook_names(names_filter)
    latents, fed = run.rows(chosen)
    parts: dict[str, list[Tensor]] = {name: [] for name in names}

    def store(activation: Tensor, hook: Any) -> None:
        """Store a copy of an activation; this function is a hook.

        Args:
            activation: the activation, ``[row, ...]``.
            hook: the hook point, for its name.
        """
        # Cloned, since later operations may write over the tensor itself.
        parts[hook.name].append(activation.detach().clone())

    counter = FiringCounter([*fwd_hooks, *((name, store) for name in names)])
    chunk_size = chunk or (len(latents) if fwd_hooks else fed.choose_batch_size(REPLAY_BATCH))
    steps = []
    with torch.no_grad(), model.hooks(fwd_hooks=counter.hooks):
        for start in range(0, len(latents), chunk_size):
            rows = slice(start, start + chunk_size)
            steps.append(model.step(latents[rows], fed.select(rows)))
    counter.require_all_fired()
    episodes_and_rounds = (run.n_episodes, len(chosen))  # the axis of rows is split into these two
    predictions, carried = map(torch.cat, zip(*steps, strict=True))
    cache = {}
    for name, chunks in parts.items():
        activations = torch.cat(chunks)
        if activations.is_floating_point():  # others cannot be NaN in missing rounds
            activations, _ = fed.undo_missing(activations, before=latents, after=carried)
        cache[name] = activations.unflatten(0, episodes_and_rounds)
    predictions, carried = fed.undo_missing(predictions, before=latents, after=carried)
    predictions = predictions.unflatten(0, episodes_and_rounds)
    carried = carried.unflatten(0, episodes_and_rounds)
    return predictions, carried, cache
