"""Fit linear probes and their controls, cross-validated by episode or by groups of episodes.

Every prediction is made for an episode that the probe was not fitted on. The score and the controls
(:mod:`probes.controls`) decide whether the target can be decoded at the site. A probe is no
evidence that the model uses what can be decoded; interventions along ``ProbeResult.direction`` test
this. ``docs/method/probes.md`` says why untrained copies run on more episodes than the probe.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import joblib
import numpy as np

import interp.tasks
from interp.core.algorithm import Episodes, missing_rounds
from interp.core.machine import Machine
from interp.model.rollout import require_own, rollout
from interp.model.run import Rollout
from interp.model.transformer import untrained
from interp.results.measure import FEW
from interp.stats.refit import PLATEAU
from interp.support.checks import checked, integer, non_empty
from interp.support.errors import InputError, require, unknown_name
from interp.support.provenance import provenance
from interp.support.session import session
from interp.support.workers import one_thread
from probes import estimators
from probes.activations import (
    ProbedSite,
    find_absent,
    place,
    places,
    read,
    without_rounding,
)
from probes.controls import ControlScore, Fitted, GroupedTargets, Kind, Problem
from probes.estimators import LOGISTIC
from probes.linear import RIDGE
from probes.result import ProbeResult, measure_of
from probes.targets import compute, parse, round_inputs
from probes.values import (
    N_FOLDS,
    TargetValues,
    When,
    as_array,
    as_groups,
    as_inputs,
    check,
    expected_low_score,
    fill_missing,
    overflows,
    warn_of_few,
)

KINDS = {kind.name: kind for kind in (RIDGE, LOGISTIC)}
"""The kinds of probe that ``method`` can name."""

N_UNTRAINED = 2  # untrained copies, of which the best counts (why: docs/method/probes.md)

_FURTHER_EPISODES_STREAM = 3  # number of the random stream that draws further episodes

_LEANS_LOW_WARNING = (
    "an output of the target is nearly constant within episodes (at least nine tenths of its variance lie between "
    "them), and there are fewer than two episodes for each feature: the score, made by fits on four fifths of them, is "
    "likely below that of a fit on all, so that it cannot be a 'no'"
)
"""The warning for a result if :func:`probes.values.expected_low_score` is not 0."""

_WEAK_WARNING = (
    f"the untrained copies ran on only {{n}} episodes; a probe needs {PLATEAU} to decode all that an untrained copy "
    "contains, so that this control may be too weak"
)
"""The warning for a result whose untrained copies ran on too few episodes, such as recorded ones."""


@checked
@one_thread()
def fit(
    activations: Any,
    target: TargetValues | Callable[[Episodes], Any] | Any,
    groups: Any = None,
    *,
    untrained: Any = None,
    n_untrained: int = N_UNTRAINED,
    episodes: Episodes | None = None,
    inputs: Any = None,
    sites: str | Sequence[str] = "latents",
    method: str | Any | None = None,
    seed: int = 0,
    model: Machine | None = None,
) -> ProbeResult:
    """Fit a probe that decodes ``target`` from ``activations``, and up to five controls.

    A control is the same fit on other data. It shows which score is possible even if the model does
    not encode the target. The controls are:

    - "shuffled": the target of another episode,
    - "untrained": activations of an untrained copy of the model,
    - "inputs": the round's inputs in place of activations,
    - "round": the round index in place of activations,
    - "control_task": a random target for each kind of round (rounds with equal inputs).

    Args:
        activations: a rollout; or a tensor, array or pandas object ``[episode, round, ...]`` with
            features in the trailing axes.
        target: the values to decode: the result of a target of :mod:`probes.targets`, an array
            ``[episode, round, output]``, or a function that is called with episodes and returns
            either. With an array, also pass a rollout, ``episodes`` or ``inputs``, since the
            control "inputs" needs the round's inputs. Without this control the verdict is never
            "yes". An untrained copy must run on 256 episodes, and the values of an array in further
            episodes are unknown. So with an array for fewer episodes, the verdict is never "yes",
            either; with a function it can be. Texts and booleans are classes. Integers are
            quantities, unless ``method`` is "logistic" or a classifier, or the target is
            ``TargetValues.of(values, of_classes=True)``.
        groups: id of each episode's group, such as its participant, or "episode", which makes each
            episode a group. Groups must be independent of each other; cross-validation and
            intervals treat a group as one unit. With None, participants are the groups if they are
            known. Otherwise each episode is a group, and identical episodes are one.
        untrained: activations or rollout of an untrained model (see :func:`probes.untrained`). When
            None, ``n_untrained`` copies of the rollout's model are run. Without this control the
            verdict is never "yes".
        n_untrained: number of untrained copies to run; the one with the highest score counts.
        episodes: the episodes of the activations, from which the inputs for the control "inputs"
            are computed; those of the rollout when None.
        inputs: inputs of each round for the same control, ``[episode, round, ...]``, or a list of
            several encodings of them; zeros for rounds without inputs.
        sites: the site of a rollout to read (:mod:`probes.activations`), such as "latents" or
            "L1H0@p?"; only one.
        method: "ridge", "logistic", or a scikit-learn estimator, which is cloned for every fold. If
            it is a classifier, whole numbers in ``target`` are classes. The default is "logistic"
            for classes and "ridge" for quantities.
        seed: seed of folds, shuffles, and untrained copies with their further episodes.
        model: the model of a rollout that was read from a file, which does not contain the model.
            For untrained copies, pass ``episodes``, too.

    Returns:
        The probe, its cross-validated score (R2 or accuracy) with a 95 % interval, the scores of
        the controls, and the verdict on whether the target can be decoded.

    >>> import interp, probes
    >>> from interp.tasks import experts
    >>> episodes = experts.sample(n_episodes=32, n_rounds=10, n_experts=2, seed=0)
    >>> run = interp.rollout(interp.load("wma-handwired", n_experts=2), episodes)
    >>> result = probes.fit(run, probes.targets.log_weights(episodes))
    >>> round(result.r2, 6), result.verdict
    (1.0, 'yes')
    >>> bare = probes.fit(run.latents[:, 1:], probes.targets.log_weights(episodes))
    >>> bare.verdict, bare.reason.partition(" (")[0]
    ('undecided', 'a control was not run: no untrained model; give untrained= or a rollout without hooks')
    """
    site = _require_one(sites)
    run = activations if isinstance(activations, Rollout) else None
    decodes_classes = method is not None and _select_kind(method).predicts_classes
    target = _compute_target(target, decodes_classes, episodes or getattr(run, "episodes", None))
    require(
        episodes is None or inputs is None,
        "give episodes= or inputs=, not both: either makes the inputs control",
    )
    # A run that hooks changed is not of the model alone, so its model gives no control.
    if run is not None and not run.settings.get("hooked_rounds"):
        run = _attach_model(run, model, episodes)
        if inputs is None and not target.inputs:
            episodes = episodes or run.episodes
    target = _complete_target(target, run, episodes, inputs)
    options: dict[str, Any] = {"groups": groups, "method": method, "seed": seed}
    if run is not None and model is None:
        model = run.model
    if isinstance(untrained, Rollout):
        untrained = read(untrained, place(site, model), target.when)
    # (activations, targets); None: the targets of the same episodes
    copies = [] if untrained is None else [(untrained, None)]
    if run is None:
        return fit_targets(activations, [target], copies=copies, **options)[0]
    if copies:
        n_untrained = 0
    with session():
        return _fit_run(run, [target], place(site, model), n_untrained, copies, **options)[0]


def _compute_target(target: Any, of_classes: bool, episodes: Episodes | None) -> TargetValues:
    """Return the values of a target in some episodes, whichever way the user passed them.

    Args:
        target: values, an array, or a function from episodes to either, as for :func:`fit`.
        of_classes: True if whole numbers in an array are classes.
        episodes: the episodes; only a function needs them.
    """
    if callable(target):
        require(
            episodes is not None,
            "a target that is a function is called with episodes; give episodes= or a rollout that has them",
        )
        values = _compute_target(target(episodes), of_classes, None)
        return replace(values, compute=partial(_compute_target, target, of_classes))
    if isinstance(target, TargetValues):
        return target
    return TargetValues.of(target, of_classes=of_classes)


def _attach_model(run: Rollout, model: Machine | None, episodes: Episodes | None) -> Rollout:
    """Return a copy of the rollout with its model and episodes filled in; refuse those of another
    run.

    Args:
        run: the rollout.
        model: replaces the rollout's model; None keeps it.
        episodes: replaces the rollout's episodes; None keeps them.
    """
    its_model = model or run.model
    its_episodes = episodes or run.episodes
    if its_model and its_episodes and (model or episodes):
        require_own(run, its_model, its_episodes)
    return replace(run, model=its_model, episodes=its_episodes)


def _complete_target(
    target: TargetValues, run: Rollout | None, episodes: Episodes | None, inputs: Any
) -> TargetValues:
    """Return a copy of the target with the missing rounds, the participants and the inputs of its
    episodes filled in.

    Args:
        target: the target.
        run: the rollout that it is decoded from; None if activations are an array.
        episodes: episodes that give the inputs for the control "inputs"; None leaves the target's
            inputs.
        inputs: inputs of each round, as for :func:`fit`.
    """
    sources: list[Any] = [episodes]  # any may be None
    if run is not None:
        # A run from a file has no episodes, but knows which rounds are missing.
        sources += [run.episodes, run]
    for source in sources:  # the first that has a value counts
        if target.missing is None:
            target = replace(target, missing=missing_rounds(source))
        if target.participants is None:
            target = replace(target, participants=getattr(source, "participants", None))
    if episodes is not None:
        encodings, types = round_inputs(episodes)
        return replace(target, inputs=encodings, types=types)
    if inputs is None:
        return target
    if not isinstance(inputs, list | tuple):  # one encoding, not a list of several
        inputs = [inputs]
    arrays = tuple(as_inputs(encoding) for encoding in inputs)
    n_episodes, n_rounds = target.values.shape[:2]
    for array in arrays:
        require(
            array.shape[:2] == (n_episodes, n_rounds),
            f"the round's inputs are [episode, round, feature], {n_episodes} episodes of {n_rounds} rounds as in "
            f"the target; got shape {array.shape}",
        )
    return replace(target, inputs=arrays)


def _require_one(sites: str | Sequence[str]) -> str:
    """Return the only site of a list as a string; raise InputError if there are several or none."""
    if isinstance(sites, str):
        return sites
    require(
        len(sites) == 1,
        f"a fit reads one site, got {', '.join(sites) or 'none'}; probes.probe(model, episodes, sites=[...]) takes "
        "several",
    )
    return sites[0]


@checked
@one_thread()
def probe(
    model: Machine,
    episodes: Episodes,
    targets: Sequence[str] | None = None,
    *,
    sites: str | Sequence[str] = "latents",
    method: str | Any | None = None,
    seed: int = 0,
    n_untrained: int = N_UNTRAINED,
    run: Rollout | None = None,
) -> list[ProbeResult]:
    """Run a machine on ``episodes`` and fit a probe for each target and site, as :func:`fit` does.

    Args:
        model: the machine.
        episodes: the episodes.
        targets: keys of :mod:`probes.targets`, such as "log_weights"; or ``key:before`` for a state
            before each round instead of after it. None takes the default targets of the task, or
            every variable if it has none.
        sites: one site or several (:mod:`probes.activations`).
        method: "ridge", "logistic" or a scikit-learn estimator, as for :func:`fit`.
        seed: seed of folds, shuffles and untrained copies.
        n_untrained: number of untrained copies of the machine, for the control "untrained"; the
            best score counts.
        run: the machine's rollout on these episodes, if it exists already. It must have cached the
            activations at the sites. None makes the rollout.

    Returns:
        One result per site and target: all targets at the first site, then all at the second, and
        so on.
    """
    if targets is None:
        targets = interp.tasks.of(episodes).analysis.probed or None
    episode_settings: dict[str, Any] = {"regime": episodes.regime, "episodes_seed": episodes.seed}
    site_names = [sites] if isinstance(sites, str) else non_empty("sites", sites)
    with session():
        values = compute(targets, episodes, model)
        probed_sites = places(model, episodes, site_names)
        if run is None:
            hooks = {site.hook for site in probed_sites if site.hook is not None}
            run = rollout(model, episodes, names_filter=sorted(hooks) or None)
        else:
            require_own(run, model, episodes)
        run = replace(run, model=model, episodes=episodes)
        results: list[ProbeResult] = []
        for site in probed_sites:
            results += _fit_run(
                run, values, site, n_untrained, method=method, seed=seed, **episode_settings
            )
        return results


_MAX_ABSENT_SHARE = 0.5
"""An untrained copy whose halting loop skips more than this share of rounds is not used as a
control.
"""
_Copies = Sequence[tuple[Any, Sequence[TargetValues] | None]]


def _fit_run(
    run: Rollout,
    targets: Sequence[TargetValues],
    where: ProbedSite,
    n_untrained: int,
    copies: _Copies = (),
    seed: int = 0,
    **options: Any,
) -> list[ProbeResult]:
    """Read a site of a rollout and fit probes of some targets there, with untrained copies as a
    control.

    A target is decoded from the activations before or after the round, as its field ``when`` says.

    Args:
        run: the rollout; untrained copies are run if it has its model.
        targets: the targets.
        where: the site to read.
        n_untrained: number of untrained copies to run.
        copies: activations of copies that were run before, as for :func:`fit_targets`.
        seed: seed of folds, shuffles and untrained copies.
        **options: passed to :func:`fit_targets`.

    Returns:
        One result per target.
    """
    absent = find_absent(run, where)
    require(
        absent is None or not absent.all(),
        f"the run of the loop at {where.name!r} takes place in no round of these episodes; probe an earlier one",
    )
    targets = _mark_as_missing(targets, absent)
    moments = sorted({target.when for target in targets})
    activations = {when: read(run, where, when) for when in moments}
    for array in activations.values():
        as_inputs(array)  # refuses what no probe can hold before untrained copies run
    hooks = [] if where.hook is None else [where.hook]
    untrained_copies, targets_of_copies, few_reason = untrained_runs(
        run, targets, hooks, n_untrained, seed
    )
    model_settings = {name: run.settings[name] for name in ("model", "digest", "commit")}
    options = model_settings | options
    results: dict[int, ProbeResult] = {}
    for when, array in activations.items():
        # "here" means: of the targets that are read at this moment
        indices = [i for i, target in enumerate(targets) if target.when == when]
        targets_here = [targets[i] for i in indices]
        targets_of_copies_here = (
            None if targets_of_copies is None else [targets_of_copies[i] for i in indices]
        )
        its_copies = list(copies)
        for run_of_copy in untrained_copies:
            # None: the copy runs on the same episodes, and has their targets.
            targets_of_copy: Sequence[TargetValues] | None = targets_of_copies_here
            absent_in_copy = None if where.hook is None else find_absent(run_of_copy(), where)
            # Beyond this share its NaN activations stay, and fit_targets drops the copy.
            if absent_in_copy is not None and absent_in_copy.mean() <= _MAX_ABSENT_SHARE:
                targets_in_its_episodes = targets_of_copies_here or targets_here
                targets_of_copy = _mark_as_missing(targets_in_its_episodes, absent_in_copy)
            its_copies.append((partial(_read_copy_at, run_of_copy, where, when), targets_of_copy))
        fits = fit_targets(
            array,
            targets_here,
            copies=its_copies,
            few_reason=few_reason,
            site=where,
            seed=seed,
            **options,
        )
        results.update(zip(indices, fits, strict=True))
    return [results[i] for i in range(len(targets))]


def _mark_as_missing(targets: Sequence[TargetValues], absent: Any) -> Sequence[TargetValues]:
    """Return copies of targets in which further rounds count as missing, so that no probe is fitted
    or scored there.

    Args:
        targets: the targets.
        absent: mask ``[episode, round]`` of these rounds; None returns the targets unchanged.
    """
    if absent is None:
        return targets
    marked = []
    for target in targets:
        missing = absent if target.missing is None else target.missing | absent
        marked.append(replace(target, missing=missing))
    return marked


def _read_copy_at(run_of_copy: Callable[[], Rollout], where: ProbedSite, when: When) -> Any:
    """Return the activations of an untrained copy of the model at a site, ``[episode, round,
    ...]``.

    Args:
        run_of_copy: function that returns the copy's rollout.
        where: the site.
        when: "before" or "after" each round.
    """
    return read(run_of_copy(), where, when)


def untrained_runs(
    run: Rollout,
    targets: Sequence[TargetValues],
    hooks: Sequence[str],
    n: int,
    seed: int,
) -> tuple[list[Callable[[], Rollout]], list[TargetValues] | None, str]:
    """Run untrained copies of a rollout's model, as the control of a probe.

    A probe of a copy needs 256 episodes: with fewer, it decodes less than the copy contains, and the
    control is too weak (docs/method/probes.md). If ``run`` has fewer, new episodes are sampled to
    make 256. None are added if the episodes were recorded, or if a target cannot be computed anew.

    Args:
        run: the rollout.
        targets: the targets that are decoded from ``run``.
        hooks: names of the hook points that the rollouts of the copies cache.
        n: number of copies.
        seed: seed of the first copy, and of the further episodes.

    Returns:
        The tuple (copies, targets, reason). ``copies`` has, for each copy, a function without
        arguments that returns its rollout. ``targets`` has the values in all episodes of the
        copies, or is None if these are the episodes of ``run``. ``reason`` says why the copies run
        on too few episodes, if a target in further ones would make them enough; otherwise it is "".
    """
    integer("n_untrained", n, 0)
    model, episodes = run.model, run.episodes
    if model is None or episodes is None or not n:
        return [], None, ""
    episodes_of_copies = [episodes]
    joined_targets = None
    few_reason = ""
    further = _sample_more(run, model, episodes, seed)
    if further is not None:
        joined_targets = _join_targets(targets, episodes, further, run.n_rounds)
        if joined_targets is None:
            few_reason = _FEW_REASON.format(n=len(episodes))
        else:
            episodes_of_copies.append(further)
    input_hashes = [joblib.hash(encode_rounds(model, sample)) for sample in episodes_of_copies]
    copies: list[Callable[[], Rollout]] = []
    for copy_seed in range(seed, seed + n):
        untrained_model = untrained(model, copy_seed)
        digest = untrained_model.digest()
        runs = []  # of this copy: on the probe's episodes, then on the further ones
        for sample, input_hash in zip(episodes_of_copies, input_hashes, strict=True):
            key = (digest, run.n_rounds, run.commit, *hooks, input_hash)
            run_of_copy = _CACHED_RUNS.pop(key, None)
            if run_of_copy is None:
                run_of_copy = rollout(
                    untrained_model,
                    sample,
                    names_filter=hooks or None,
                    n_rounds=run.n_rounds,
                    commit=run.commit,
                )
            # Moved to the end: the least recently used are deleted first.
            _CACHED_RUNS[key] = run_of_copy
            runs.append(replace(run_of_copy, model=untrained_model))
        copies.append(partial(Rollout.join, runs))
    while sum(map(_count_bytes, _CACHED_RUNS.values())) > _MAX_CACHED_BYTES:
        del _CACHED_RUNS[next(iter(_CACHED_RUNS))]
    return copies, joined_targets, few_reason


_FEW_REASON = (
    f"{FEW}: the untrained copies ran on {{n}} and need {PLATEAU}, but the values of the target in further episodes "
    f"are unknown; give it as a function of episodes, or give {PLATEAU} episodes"
)
"""Reason against the verdict "yes" if the control by untrained copies is too weak for it."""

_CACHED_RUNS: dict[tuple[Any, ...], Rollout] = {}
"""Cache of the last untrained copies' rollouts in this process, so that further probes share them.
"""
_MAX_CACHED_BYTES = 2**28  # of activations in the cached rollouts


def _count_bytes(run: Rollout) -> int:
    """Return the number of bytes of a run's latents and cached activations."""
    tensors = [run.latents, *run.cache.values()]
    return sum(tensor.nbytes for tensor in tensors)


def encode_rounds(model: Machine, episodes: Episodes) -> list[Any]:
    """Return the inputs that a machine reads in these episodes, as a list of arrays
    ``[episode, round, ...]``, such as token ids.
    """
    tensors = model.layout.fit(episodes).encode_with_missing(episodes).tensors()
    return [tensor.numpy() for tensor in tensors.values()]


def _sample_more(run: Rollout, model: Machine, episodes: Episodes, seed: int) -> Episodes | None:
    """Sample further episodes for untrained copies, so that together with those of the probe there
    are 256 (``PLATEAU``). With fewer, a fit decodes less than the copy contains.

    Args:
        run: rollout of the model.
        model: the model.
        episodes: the probe's episodes.
        seed: seed of the draw.

    Returns:
        The further episodes; None if there are enough, or if the episodes were recorded and cannot
        be sampled.
    """
    n_more = PLATEAU - len(episodes)
    task = interp.tasks.of(episodes)
    # Sampled episodes have no missing rounds and no participants. A task that was made from recorded
    # episodes (Task.of_recorded) lists them as "episodes".
    has_people = getattr(episodes, "participants", None) is not None
    is_recorded = run.missing is not None or has_people or "episodes" in task.recorded
    if n_more <= 0 or is_recorded:
        return None
    seed_sequence = np.random.SeedSequence([seed, _FURTHER_EPISODES_STREAM])
    (sampling_seed,) = seed_sequence.generate_state(1)
    try:
        sizes = task.sizes_of(episodes)
        return task.sample_for(
            model,
            n_more,
            episodes.n_rounds,
            seed=int(sampling_seed),
            regime=episodes.regime,
            sizes=sizes,
        )
    except InputError:  # some episodes cannot be sampled, such as recorded ones
        return None


def _join_targets(
    targets: Sequence[TargetValues], episodes: Episodes, further_episodes: Episodes, n_rounds: int
) -> list[TargetValues] | None:
    """Return targets in ``episodes`` followed by ``further_episodes``; their values are computed
    again from their keys.

    Args:
        targets: targets of the first ``n_rounds`` rounds of ``episodes``.
        episodes: the episodes that they were computed from.
        further_episodes: further episodes.
        n_rounds: number of rounds.

    Returns:
        The joined targets; None if a target's values cannot be computed from its key.
    """
    joined = []
    for target in targets:
        first = _compute_again(target, episodes)
        further = _compute_again(target, further_episodes)
        if first is None or further is None:
            return None
        first = first.rounds(0, n_rounds)
        further = further.rounds(0, n_rounds)
        # Other values under this key are the caller's own: unknown in the further episodes.
        if not np.array_equal(first.values, target.values):
            return None
        values = np.concatenate([first.values, further.values])
        mask = first.mask
        if mask is not None:
            mask = np.concatenate([mask, further.mask])
        # A copy is only probed for the target; inputs and kinds of rounds are for other controls.
        joined.append(replace(first, values=values, mask=mask, inputs=(), types=None))
    return joined


def _compute_again(target: TargetValues, episodes: Episodes) -> TargetValues | None:
    """Return the values of a target in other episodes, computed by its function or else from its
    key; None if neither is known.
    """
    if target.compute is not None:
        return target.compute(episodes)
    try:
        target_of_key, moment = parse(target.key, interp.tasks.of(episodes))
    except InputError:
        return None
    return target_of_key(episodes, moment, **target.parameters)


def fit_targets(
    activations: Any,
    targets: Sequence[TargetValues],
    *,
    groups: Any = None,
    copies: _Copies = (),
    few_reason: str = "",
    site: ProbedSite | None = None,
    method: str | Any | None = None,
    seed: int = 0,
    **settings: Any,
) -> list[ProbeResult]:
    """Fit probes of several targets of the same activations, as :func:`fit` does for one target.

    This is quicker than one call per target, since all ridge probes share one eigendecomposition.

    Args:
        activations: ``[episode, round, ...]``.
        targets: the targets.
        groups: id of each episode's independent group, such as its participant, as for :func:`fit`.
        copies: for each untrained copy of the model, a pair (activations, targets). The activations
            are an array ``[episode, round, ...]``, or a function without arguments that returns
            this array, so that only one copy is in memory. The targets are those in the episodes of
            the copy; None if these are the same episodes.
        few_reason: reason why these are too few episodes for the verdict "yes"; "" if they are not.
        site: the site where the activations were read; None if unknown.
        method: "ridge", "logistic" or a scikit-learn estimator, as for :func:`fit`.
        seed: seed of folds and shuffles.
        **settings: further settings to record in every result.

    Returns:
        One result per target.
    """
    x = as_array(activations, "activations")
    shape = tuple(x.shape[2:])
    targets = [target.as_numbers() for target in targets]
    missing, participants = targets[0].missing, targets[0].participants  # equal in all targets
    x = fill_missing(as_inputs(x), missing)
    for target in targets:
        check(x, target)
    usable = _select_usable_copies(copies, x.shape, targets)
    overflow_reason = no_control = ""
    if copies and not usable:
        overflow_reason = "the activations of the untrained model overflow or are NaN"
        no_control = f"{overflow_reason}, so that it is no control"
        warnings.warn(f"{no_control} and is left out", UserWarning, stacklevel=3)
    x, rounding_warning = without_rounding(x)
    if rounding_warning:
        warnings.warn(rounding_warning, UserWarning, stacklevel=3)
    arrays = [x, *(target.values for target in targets)]
    group_of_episode = as_groups(groups, len(x), participants, arrays)
    n_groups = int(group_of_episode.max()) + 1
    few_warning = warn_of_few(n_groups)
    kinds = [_select_kind(method, target) for target in targets]  # one per target
    for kind, target in zip(kinds, targets, strict=True):
        if kind is LOGISTIC:
            _refuse_constant_classes(target)
    sizes = {"n_folds": N_FOLDS, "n_episodes": len(x), "n_groups": n_groups, "n_rounds": x.shape[1]}
    if missing is not None:
        sizes["n_counted"] = int((~missing).sum())
    sizes["n_untrained"] = len(usable)
    n_of_copies = max((copy.n_episodes for copy in usable), default=0)
    sizes["untrained_episodes"] = n_of_copies
    weak_warning = _WEAK_WARNING.format(n=n_of_copies) if 0 < n_of_copies < PLATEAU else ""
    common_settings = provenance(seed=seed, **sizes, **settings)
    site_name = None if site is None else site.name

    def make_result(
        kind: Kind, target: TargetValues, probe: Fitted, controls: dict[str, ControlScore]
    ) -> ProbeResult:
        """Make the result of a fitted probe and its controls.

        Args:
            kind: kind of probe.
            target: the target.
            probe: the cross-validated probe.
            controls: controls by name.
        """
        n_features = expected_low_score(x, target, group_of_episode)
        measure = measure_of(
            target,
            site_name,
            probe.score,
            controls,
            untrained=overflow_reason,
            few_reason=few_reason,
            why_features_missing=rounding_warning,
            n_features=n_features,
            probe=describe_probe(kind),
        )
        low_warning = _LEANS_LOW_WARNING if n_features else ""
        texts = (few_warning, weak_warning, rounding_warning, low_warning, no_control)
        notes = filter(None, texts)
        details = probe.details()
        details["settings"] = {**common_settings, **details["settings"]}
        return ProbeResult(
            target=target,
            method=kind.name,
            score=probe.score,
            controls=controls,
            measure=measure,
            shape=shape,
            site=site_name,
            place=site,
            warning="; ".join(notes) or None,
            **details,
        )

    results: dict[int, ProbeResult] = {}
    different_kinds = {kind.name: kind for kind in kinds}
    for kind in different_kinds.values():
        indices = [i for i, its_kind in enumerate(kinds) if its_kind.name == kind.name]
        sample = GroupedTargets([targets[i] for i in indices], group_of_episode, seed)
        fits = _fit_kind(kind, x, sample, indices, usable)
        for i, (probe, controls) in zip(indices, fits, strict=True):
            results[i] = make_result(kind, targets[i], probe, controls)
    return [results[i] for i in range(len(targets))]


@dataclass(frozen=True, eq=False)
class _Copy:
    """An untrained copy of a model, with finite activations.

    Attributes:
        activations: activations at the site, or a function that returns them.
        n_episodes: number of its episodes.
        missing: mask ``[episode, round]`` of rounds that did not take place; None if all did.
        targets: targets in its episodes; None if they are those of the probe.
    """

    activations: Any
    n_episodes: int
    missing: Any
    targets: Sequence[TargetValues] | None

    def read(self) -> Any:
        """Return the copy's activations ``[episode, round, feature]``, with missing rounds filled
        in, and with features that vary only by rounding set to 0.
        """
        return without_rounding(_read_copy(self.activations, self.missing))[0]


def _read_copy(activations: Any, missing: Any) -> Any:
    """Return a copy's activations ``[episode, round, feature]`` with missing rounds filled in.

    Args:
        activations: the activations, or a function that returns them.
        missing: mask ``[episode, round]`` of missing rounds, or None.
    """
    if callable(activations):
        activations = activations()
    return fill_missing(as_inputs(activations), missing)


def _select_usable_copies(
    copies: _Copies,
    shape: tuple[int, ...],
    targets: Sequence[TargetValues],
) -> list[_Copy]:
    """Return the untrained copies with finite activations; only one copy's activations are in
    memory at a time.

    Args:
        copies: a pair (activations, targets in the copy's episodes) for each copy, as in
            :func:`fit_targets`.
        shape: shape of the model's activations.
        targets: targets of the probe.
    """
    usable = []
    for activations, targets_of_copy in copies:
        missing = (targets_of_copy or targets)[0].missing  # equal in all targets
        x = _read_copy(activations, missing)
        require(
            targets_of_copy is not None or x.shape == shape,
            f"activations of the untrained model have shape {x.shape}, those of the model {shape}; "
            "use probes.untrained(model) on the same episodes",
        )
        if not overflows(x):
            usable.append(_Copy(activations, len(x), missing, targets_of_copy))
        del x  # before the next copy is read
    return usable


def _refuse_constant_classes(target: TargetValues) -> None:
    """Raise InputError if an output of a class target has the same class in all rounds, since
    logistic regression needs at least two.
    """
    n_outputs = target.values.shape[-1]
    rows = target.values.reshape(-1, n_outputs)
    for output, values in zip(target.outputs, rows.T, strict=True):
        require(
            (values != values[0]).any(),
            f"output {output!r} of target {target.key!r} is one class in all {len(rows)} "
            "rounds, so there is nothing to decode; sample more episodes or rounds",
        )


def _fit_kind(
    kind: Kind,
    x: Any,
    sample: GroupedTargets,
    indices: Sequence[int],
    copies: Sequence[_Copy],
) -> list[tuple[Fitted, dict[str, ControlScore]]]:
    """Fit the targets of one kind of probe, with all controls.

    Args:
        kind: kind of probe.
        x: activations ``[episode, round, feature]``.
        sample: the targets of this kind, with the groups.
        indices: indices of these targets among all targets; they select the same targets of a copy.
        copies: untrained copies.

    Returns:
        For each target, its probe and its controls by name.
    """
    samples_of_copies = []
    for copy in copies:
        its_targets = sample.targets
        if copy.targets is not None:
            its_targets = [copy.targets[i].as_numbers() for i in indices]
        samples_of_copies.append(sample.extend_to_copy(its_targets))
    # A generator, so that only one copy's activations are in memory.
    activations_of_copies = (copy.read() for copy in copies)
    problem = Problem.of(sample, kind).with_baselines()
    return problem.fit(x, zip(activations_of_copies, samples_of_copies, strict=True))


def describe_probe(kind: Kind) -> str:
    """Return the name of a kind of probe for use in sentences: "linear probe" for ridge and
    logistic probes, otherwise for example "probe by Lasso".
    """
    return "linear probe" if kind.name in KINDS else f"probe by {kind.name}"


def _select_kind(method: str | Any | None, target: TargetValues | None = None) -> Kind:
    """Return the kind of probe that ``method`` selects; refuse a classifier for a target of
    numbers.

    Args:
        method: "ridge", "logistic" or a scikit-learn estimator. None selects logistic regression
            for classes and ridge regression for numbers.
        target: the target; None if ``method`` is given and the target does not matter.
    """
    if method is None:
        assert target is not None
        return LOGISTIC if target.kind == "class" else RIDGE
    if not isinstance(method, str):
        kind = estimators.kind(method)
    elif method in KINDS:
        kind = KINDS[method]
    else:
        raise unknown_name("method", method, KINDS)
    if target is not None and target.kind != "class":
        require(
            not kind.predicts_classes,
            f"target {target.key!r} is a number, not a class; fit it with method='ridge' or a regressor, or give "
            "classes: integers, booleans or texts",
        )
    return kind
