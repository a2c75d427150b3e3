"""Fit linear probes, split by episode or by groups of episodes, with their controls in the same call.

Every prediction is made for an episode that the probe was not fitted on. Beside each score stand the controls
(:mod:`probes.controls`), and from both comes the measure: does the site hold the target? A probe is no evidence that
the model uses what can be read from it; use is shown by intervening, along ``ProbeResult.direction``. Why untrained
copies are run over more episodes than the probe has: ``docs/method/probes.md``.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
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
from interp.stats.refit import PLATEAU
from interp.support.checks import checked, integer, non_empty
from interp.support.errors import InputError, require, unknown_name
from interp.support.provenance import provenance
from interp.support.session import session
from interp.support.workers import one_thread
from probes import estimators
from probes.activations import ProbedSite, place, places, read, without_rounding
from probes.controls import GroupedTargets, Kind, Problem
from probes.estimators import LOGISTIC
from probes.linear import RIDGE
from probes.result import ProbeResult, measure_of
from probes.targets import compute, parse, round_inputs
from probes.values import (
    N_FOLDS,
    TargetValues,
    as_array,
    as_groups,
    as_inputs,
    check,
    filled,
    leans_low,
    overflows,
    warn_of_few,
)

_KINDS = {kind.name: kind for kind in (RIDGE, LOGISTIC)}
"""The kinds of probe that ``method`` can name. Of those that serve a target, the first is its default."""

_N_UNTRAINED = 2  # untrained copies, of which the best counts (why: docs/method/probes.md)

_MORE = 3

_LEANS_LOW = (
    "the target is constant within episodes and there are fewer than two of these for each feature: the score, made by "
    "fits on four fifths of them, is likely below that of a fit on all, so that it cannot be a 'no'"
)
"""The warning of a result whose score :func:`probes.values.leans_low`."""


@checked
@one_thread()
def fit(
    activations: Any,
    target: TargetValues | Any,
    groups: Any = None,
    *,
    untrained: Any = None,
    n_untrained: int = _N_UNTRAINED,
    episodes: Episodes | None = None,
    inputs: Any = None,
    sites: str | Sequence[str] = "latents",
    method: str | Any | None = None,
    seed: int = 0,
    model: Machine | None = None,
) -> ProbeResult:
    """Decode ``target`` from ``activations``, with controls.

    Args:
        activations: a rollout; or ``[episode, round, ...]``, tensor, array or pandas object, trailing axes being
            features.
        target: from :mod:`probes.targets`, or values ``[episode, round, output]``. Bare values do not know the round's
            inputs: give a rollout, ``episodes`` or ``inputs``, too, or the word is "undecided" at best.
        groups: what folds, intervals and shuffled targets keep together: "episode", or one group id per episode, where
            several are not independent. When None, the participants of the episodes, or each episode without any.
        untrained: the same of an untrained model (see :func:`probes.untrained`). When None, ``n_untrained`` copies of
            the model of a rollout, of which the best counts. Without this control the word is never "yes".
        episodes: whose inputs the control reads; those of the rollout when None.
        inputs: what one round says by itself, ``[episode, round, ...]``, or a list of several forms of it; zeros where
            rounds have no inputs.
        sites: where to read a rollout (:mod:`probes.activations`): one site, such as "L1H0@p?".
        method: "ridge", or "logistic" for class targets (the default for them), or an estimator of scikit-learn, which
            is cloned for every fold. Whole numbers given bare are classes to a classifier.
        seed: of the folds, the shuffles, the untrained copies and their further episodes.
        model: whose run it is, where the rollout, read from a file, does not know it; needs ``episodes`` for copies.

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
    if not isinstance(target, TargetValues):
        target = TargetValues.of(target, of_classes=method is not None and _kind(method).of_classes)
    require(
        episodes is None or inputs is None,
        "give episodes= or inputs=, not both: either makes the inputs control",
    )
    run = activations if isinstance(activations, Rollout) else None
    if run is not None and not run.settings.get("hooked_rounds"):
        whose, known = model or run.model, episodes or run.episodes
        if whose and known and (model or episodes):
            require_own(run, whose, known)
        run = replace(run, model=whose, episodes=known)
        if episodes is None and inputs is None and not target.inputs:
            episodes = run.episodes
    for known in (episodes, None if run is None else run.episodes, run):
        if target.missing is None:
            target = replace(target, missing=missing_rounds(known))
        if target.participants is None:
            target = replace(target, participants=getattr(known, "participants", None))
    if episodes is not None:
        forms, types = round_inputs(episodes)
        target = replace(target, inputs=forms, types=types)
    if inputs is not None:
        forms = tuple(
            as_inputs(form) for form in (inputs if isinstance(inputs, list | tuple) else [inputs])
        )
        n_episodes, n_rounds = target.values.shape[:2]
        for form in forms:
            require(
                form.shape[:2] == (n_episodes, n_rounds),
                f"the round's inputs are [episode, round, feature], {n_episodes} episodes of {n_rounds} rounds as in "
                f"the target; got shape {form.shape}",
            )
        target = replace(target, inputs=forms)
    how: dict[str, Any] = {"groups": groups, "method": method, "seed": seed}
    where = None if run is None else place(site, model if model is not None else run.model)
    if isinstance(untrained, Rollout):
        untrained = read(untrained, where or place(site, model), target.when)
    copies = [] if untrained is None else [(untrained, None)]
    if run is None or where is None:
        return fit_targets(activations, [target], copies=copies, **how)[0]
    with session():
        return _fit_run(run, [target], where, 0 if copies else n_untrained, copies, **how)[0]


def _require_one(sites: str | Sequence[str]) -> str:
    """Return the only site of a fit."""
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
    n_untrained: int = _N_UNTRAINED,
    run: Rollout | None = None,
) -> list[ProbeResult]:
    """:func:`fit` of a machine's rollout over ``episodes`` and of several targets, by their keys.

    Args:
        targets: keys of :mod:`probes.targets`, ``key:before`` for a state before each round; when None, those that the
            task's record names as ``probed``, or every variable where it names none.
        sites: where to read (:mod:`probes.activations`): a site, or several, one after the other.
        n_untrained: untrained copies of the machine, of which the best counts.
        run: the rollout of the model over the episodes, with what the sites need cached, where it is known.
    """
    if targets is None:
        targets = interp.tasks.of(episodes).analysis.probed or None
    about: dict[str, Any] = {"regime": episodes.regime, "episodes_seed": episodes.seed}
    with session():
        values = compute(targets, episodes, model)
        site_list = [sites] if isinstance(sites, str) else non_empty("sites", sites)
        where = places(model, episodes, site_list)
        hooks = sorted({site.hook for site in where if site.hook is not None})
        run = (
            rollout(model, episodes, names_filter=hooks or None)
            if run is None
            else require_own(run, model, episodes)
        )
        run = replace(run, model=model, episodes=episodes)
        results: list[ProbeResult] = []
        for site in where:
            results += _fit_run(run, values, site, n_untrained, method=method, seed=seed, **about)
        return results


def _fit_run(
    run: Rollout,
    targets: Sequence[TargetValues],
    where: ProbedSite,
    n_untrained: int,
    given: Sequence[tuple[Any, None]] = (),
    seed: int = 0,
    **options: Any,
) -> list[ProbeResult]:
    """Probes of a rollout, beside untrained copies of its model where it knows that, each at its target's moment."""
    own = {when: read(run, where, when) for when in sorted({target.when for target in targets})}
    for activations in own.values():
        as_inputs(activations)  # what no probe can hold is refused before untrained copies run
    blanks, elsewhere = untrained_runs(run, targets, [where], n_untrained, seed)
    results = dict[int, ProbeResult]()
    for when, activations in own.items():
        alike = [i for i, target in enumerate(targets) if target.when == when]
        there = None if elsewhere is None else [elsewhere[i] for i in alike]
        copies = [
            *given,
            *(
                (partial(lambda of, w: read(of(), where, w), blank, when), there)
                for blank in blanks
            ),
        ]
        how = {name: run.settings[name] for name in ("model", "digest", "commit")} | options
        fitted = fit_targets(
            activations, [targets[i] for i in alike], copies=copies, site=where, seed=seed, **how
        )
        results |= dict(zip(alike, fitted, strict=True))
    return [results[i] for i in range(len(targets))]


def untrained_runs(
    run: Rollout,
    targets: Sequence[TargetValues],
    sites: Sequence[str | ProbedSite],
    n: int,
    seed: int,
) -> tuple[list[Callable[[], Rollout]], list[TargetValues] | None]:
    """For each of ``n`` untrained copies of a rollout's model what gives its run; targets of its episodes where more.

    They are more where there are fewer than :data:`PLATEAU`, which a sampler drew (docs/method/probes.md).
    """
    integer("n_untrained", n, 0)
    model, episodes = run.model, run.episodes
    if model is None or episodes is None or not n:
        return [], None
    samples, elsewhere, n_rounds, more = [episodes], None, run.n_rounds, None
    n_more, task = PLATEAU - len(episodes), interp.tasks.of(episodes)
    recorded = run.missing is not None or getattr(episodes, "participants", None) is not None
    if n_more > 0 and not (recorded or "episodes" in task.recorded):
        own_seed = int(np.random.SeedSequence([seed, _MORE]).generate_state(1)[0])
        with suppress(InputError):  # such as of episodes that were recorded
            sizes = task.sizes_of(episodes)
            more = task.sample_for(
                model, n_more, episodes.n_rounds, own_seed, episodes.regime, sizes
            )
    if more is not None:
        own = _again(targets, episodes, n_rounds)
        if own and all(
            np.array_equal(one.values, target.values)
            for one, target in zip(own, targets, strict=True)
        ):
            samples.append(more)
            elsewhere = []
            for one, other in zip(own, _again(targets, more, n_rounds), strict=True):
                values = np.concatenate([one.values, other.values])
                masks = [part.mask for part in (one, other) if part.mask is not None]
                mask = np.concatenate(masks) if masks else None
                elsewhere.append(replace(one, values=values, mask=mask, inputs=(), types=None))
    hooks = sorted({one.hook for one in places(model, episodes, sites) if one.hook is not None})
    about, blanks = (n_rounds, run.commit, *hooks), list[Callable[[], Rollout]]()
    fed = [model.layout.fit(sample).encoded(sample).tensors().values() for sample in samples]
    which = [joblib.hash([part.numpy() for part in parts]) for parts in fed]
    for i in range(seed, seed + n):
        fresh, runs = untrained(model, i), []
        digest = fresh.digest()
        for sample, key in zip(samples, which, strict=True):
            kept = _RUNS.pop((digest, *about, key), None)
            if kept is None:
                kept = rollout(
                    fresh, sample, names_filter=hooks or None, n_rounds=n_rounds, commit=run.commit
                )
            runs.append(replace(kept, model=fresh))
            _RUNS[digest, *about, key] = kept
        blanks.append(partial(Rollout.joined, runs))
    while (
        sum(x.nbytes for one in _RUNS.values() for x in (one.latents, *one.cache.values()))
        > _MOST_KEPT
    ):
        del _RUNS[next(iter(_RUNS))]
    return blanks, elsewhere


_RUNS: dict[tuple[Any, ...], Rollout] = {}
"""The last runs of untrained copies in this process, by what they were of: another probe needs no second control."""
_MOST_KEPT = 2**28  # bytes of activations that are kept in them


def _again(
    targets: Sequence[TargetValues], episodes: Episodes, n_rounds: int
) -> list[TargetValues]:
    """Targets, computed by their keys of the first rounds of episodes; none where a key is not of their task."""
    try:
        found = [parse(target.key, interp.tasks.of(episodes)) for target in targets]
    except InputError:
        return []
    every = zip(found, targets, strict=True)
    return [
        of(episodes, moment, **target.parameters).rounds(0, n_rounds)
        for (of, moment), target in every
    ]


def fit_targets(
    activations: Any,
    targets: Sequence[TargetValues],
    *,
    groups: Any = None,
    copies: Sequence[tuple[Any, Sequence[TargetValues] | None]] = (),
    site: str | ProbedSite | None = None,
    method: str | Any | None = None,
    seed: int = 0,
    **settings: Any,
) -> list[ProbeResult]:
    """Fit several targets of the same activations, as :func:`fit`; one factorisation serves all ridge probes.

    Args:
        activations: ``[episode, round, ...]``.
        targets: what is decoded.
        groups: as of :func:`fit`.
        copies: activations of untrained copies, or functions that give them, so that only one is in memory; each with
            the targets of its episodes, None where they are the same.
        site: where the activations were read.
        method: as of :func:`fit`.
        seed: of folds and shuffles.
        settings: recorded in every result.
    """
    x = as_array(activations, "activations")
    shape = tuple(x.shape[2:])
    targets = [target.as_numbers() for target in targets]
    missing, participants = targets[0].missing, targets[0].participants
    x = filled(as_inputs(x), missing)
    for target in targets:
        check(x, target)
    usable = _usable_copies(copies, x.shape, targets)
    overflown = ""
    if copies and not usable:
        overflown = "the activations of the untrained model overflow or are NaN"
        warnings.warn(
            f"{overflown}, so that it is no control and is left out", UserWarning, stacklevel=3
        )
    x, hidden = without_rounding(x)
    if hidden:
        warnings.warn(hidden, UserWarning, stacklevel=3)
    together = as_groups(groups, len(x), participants)
    n_groups = int(together.max()) + 1
    few = warn_of_few(n_groups)
    kinds = [_kind(method, target) for target in targets]
    for kind, target in zip(kinds, targets, strict=True):
        if kind is LOGISTIC:
            _refuse_constant_classes(target)
    name = site.name if isinstance(site, ProbedSite) else site
    sizes = {"n_folds": N_FOLDS, "n_episodes": len(x), "n_groups": n_groups, "n_rounds": x.shape[1]}
    if missing is not None:
        sizes["n_counted"] = int((~missing).sum())
    sizes["n_untrained"] = len(usable)
    sizes["untrained_episodes"] = max((copy.n_episodes for copy in usable), default=0)
    about = provenance(seed=seed, **sizes, **settings)
    only = _warn_of_few_recorded(len(x), bool(usable), missing, participants)
    uncontrolled = overflown and f"{overflown}, so that it is no control"

    results = dict[int, ProbeResult]()
    for kind in {kind.name: kind for kind in kinds}.values():
        alike = [i for i, other in enumerate(kinds) if other.name == kind.name]
        fits = _fit_kind(kind, x, [targets[i] for i in alike], alike, usable, together, seed)
        for i, (probe, controls) in zip(alike, fits, strict=True):
            n_features = leans_low(x, targets[i], together)
            measure = measure_of(
                targets[i],
                name,
                probe.score,
                controls,
                untrained=overflown,
                hidden=hidden,
                n_features=n_features,
                probe=describe_probe(kind),
            )
            notes = (few, only, hidden, _LEANS_LOW if n_features else None, uncontrolled)
            details = probe.details()
            details["settings"] = {**about, **details["settings"]}
            results[i] = ProbeResult(
                target=targets[i],
                method=kind.name,
                score=probe.score,
                controls=controls,
                measure=measure,
                shape=shape,
                site=name,
                place=site if isinstance(site, ProbedSite) else None,
                warning="; ".join(filter(None, notes)) or None,
                **details,
            )
    return [results[i] for i in range(len(targets))]


@dataclass(frozen=True, eq=False)
class _Copy:
    """An untrained copy whose activations can be fitted.

    Attributes:
        activations: of the copy, or a function that gives them.
        n_episodes: how many it has.
        missing: the rounds that do not count, ``[episode, round]``.
        targets: of its episodes; None where they are those of the probe.
    """

    activations: Any
    n_episodes: int
    missing: Any
    targets: Sequence[TargetValues] | None

    def read(self) -> Any:
        """Return its activations as they are fitted."""
        return without_rounding(_read_copy(self.activations, self.missing))[0]


def _read_copy(activations: Any, missing: Any) -> Any:
    activations = activations() if callable(activations) else activations
    return filled(as_inputs(activations), missing)


def _usable_copies(
    copies: Sequence[tuple[Any, Sequence[TargetValues] | None]],
    shape: tuple[int, ...],
    targets: Sequence[TargetValues],
) -> list[_Copy]:
    """Return the copies whose activations do not overflow; only one copy's are in memory."""
    usable = []
    for activations, elsewhere in copies:
        missing = (elsewhere or targets)[0].missing
        x = _read_copy(activations, missing)
        require(
            elsewhere is not None or x.shape == shape,
            f"activations of the untrained model have shape {x.shape}, those of the model {shape}; "
            "use probes.untrained(model) on the same episodes",
        )
        if not overflows(x):
            usable.append(_Copy(activations, len(x), missing, elsewhere))
        del x
    return usable


def _warn_of_few_recorded(
    n_episodes: int, has_copies: bool, missing: Any, participants: Any
) -> str:
    """Say that recorded episodes are too few for the untrained control; empty where they are not."""
    is_recorded = missing is not None or participants is not None
    if not (has_copies and is_recorded) or n_episodes >= PLATEAU:
        return ""
    all_that = f"where of an untrained copy {PLATEAU} show all that can be read"
    return f"there are only {n_episodes} episodes, {all_that}"


def _refuse_constant_classes(target: TargetValues) -> None:
    """Refuse a target of classes one of whose outputs is the same in all rounds."""
    rows = target.values.reshape(-1, target.values.shape[-1])
    for output, values in zip(target.outputs, rows.T, strict=True):
        require(
            bool((values != values[0]).any()),
            f"output {output!r} of target {target.key!r} is one class in all {len(rows)} "
            "rounds, so there is nothing to decode; sample more episodes or rounds",
        )


def _fit_kind(
    kind: Kind,
    x: Any,
    targets: Sequence[TargetValues],
    indices: Sequence[int],
    copies: Sequence[_Copy],
    groups: Any,
    seed: int,
) -> list[tuple[Any, dict[str, Any]]]:
    """Fit the targets of one kind of probe, with all controls.

    Args:
        kind: of probe.
        x: activations ``[episode, round, feature]``.
        targets: those of the kind.
        indices: their places among all targets, by which a copy's own are found.
        copies: untrained copies.
        groups: of the episodes.
        seed: of folds and shuffles.

    Returns:
        Each target's probe and its controls by key.
    """
    sample = GroupedTargets(list(targets), groups, seed)
    n_groups = int(groups.max()) + 1
    samples_of_copies = []
    for copy in copies:
        further = n_groups + np.arange(copy.n_episodes - len(x))  # each independent of the others
        its_targets = sample.targets
        if copy.targets is not None:
            its_targets = [copy.targets[i].as_numbers() for i in indices]
        its_groups = np.concatenate([groups, further])
        samples_of_copies.append(GroupedTargets(its_targets, its_groups, seed))
    activations_of_copies = (copy.read() for copy in copies)  # one at a time
    problem = Problem.of(sample, kind).with_baselines()
    return problem.fit(x, zip(activations_of_copies, samples_of_copies, strict=True))


def describe_probe(kind: Kind) -> str:
    """Return what a probe of a kind is called in its claim."""
    return "linear probe" if kind.name in _KINDS else f"probe by {kind.name}"


def _kind(method: str | Any | None, target: TargetValues | None = None) -> Kind:
    """The kind of probe that ``method`` names, or the first that serves the target; it must serve the target."""
    if method is None:
        assert target is not None
        return next(kind for kind in _KINDS.values() if kind.of_classes == (target.kind == "class"))
    if isinstance(method, str) and method not in _KINDS:
        raise unknown_name("method", method, _KINDS)
    kind = _KINDS[method] if isinstance(method, str) else estimators.kind(method)
    require(
        target is None or not kind.of_classes or target.kind == "class",
        f"target {target.key if target else ''!r} is a number, not a class; fit it with method='ridge' or a regressor",
    )
    return kind
