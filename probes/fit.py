"""Fit linear probes, split by episode or by groups of episodes, with their controls in the same call.

:func:`fit` decodes a target from activations by ridge regression (:mod:`probes.linear`), for classes by logistic
regression, or by an estimator of scikit-learn. Every prediction is made for an episode that the probe was not fitted
on. Scores have 95 % intervals over episodes (:mod:`probes.scores` says of what); beside them stand the controls, and
from both comes a verdict (:mod:`probes.controls`).

What a probe is NOT evidence of: that the model uses what can be read from it. Decoding shows that a linear map of the
activation carries the target beyond the controls; use is shown by intervening, along ``ProbeResult.direction``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import interp.tasks
from interp.algorithm import Episodes
from interp.checks import checked
from interp.errors import require, unknown_name
from interp.machine import Machine
from interp.model.run import Rollout
from interp.provenance import provenance
from probes import estimators
from probes.activations import Place, place, places, read, run_with_sites, without_rounding
from probes.controls import Data
from probes.linear import RIDGE, assign_folds
from probes.logistic import LOGISTIC
from probes.result import Kind, ProbeResult
from probes.targets import compute, round_inputs
from probes.values import (
    LEANS_LOW,
    N_FOLDS,
    TargetValues,
    as_array,
    as_groups,
    as_inputs,
    check,
    leans_low,
    usable_untrained,
    warn_of_few,
)

KINDS = {kind.name: kind for kind in (RIDGE, LOGISTIC)}
"""The kinds of probe that ``method`` can name. Of those that serve a target, the first is its default."""


@checked
def fit(
    activations: Any,
    target: TargetValues | Any,
    groups: Any = "episode",
    *,
    untrained: Any = None,
    episodes: Episodes | None = None,
    inputs: Any = None,
    site: str = "latents",
    method: str | Any | None = None,
    seed: int = 0,
    model: Machine | None = None,
) -> ProbeResult:
    """Decode ``target`` from ``activations``, with controls.

    Args:
        activations: ``[episode, round, ...]``, tensor, array or pandas object, trailing axes being features; or a
            rollout.
        target: from :mod:`probes.targets`, or values ``[episode, round, output]``. Bare values do not know the round's
            inputs: give ``episodes`` or ``inputs``, too, or the verdict is undecided at most.
        groups: what folds, intervals and shuffled targets keep together: "episode", or one group id per episode, where
            several episodes are not independent (they share an MDP, a prompt, a participant).
        untrained: the same of an untrained model (see :func:`probes.untrained`); that control is left out when None,
            and with a warning where its activations overflow.
        episodes: whose inputs the control reads.
        inputs: what one round says by itself, ``[episode, round, ...]``, or a list of several forms of it; zeros where
            rounds have no inputs.
        site: where to read a rollout (:mod:`probes.activations`).
        method: "ridge", or "logistic" for class targets (the default for them), or an estimator of scikit-learn, which
            is cloned for every fold. Whole numbers given bare are classes to a classifier.
        seed: of the folds and the shuffles.
        model: whose run it is, where ``site`` is a name of its own: a channel, or a point that no transformer has.

    Example:
        >>> import interp, probes
        >>> from interp.tasks import experts
        >>> episodes = experts.sample(n_episodes=32, n_rounds=20, n_experts=4, seed=0)
        >>> run = interp.rollout(interp.load("wma-handwired", n_experts=4), episodes)
        >>> result = probes.fit(run.latents[:, 1:], probes.targets.log_weights(episodes), groups="episode")
        >>> round(result.r2, 6), result.verdict
        (1.0, 'represented')
    """
    if not isinstance(target, TargetValues):
        target = TargetValues.of(target, of_classes=method is not None and _kind(method).of_classes)
    require(episodes is None or inputs is None, "give episodes= or inputs=, not both: either makes the inputs control")
    if episodes is not None:
        forms, types = round_inputs(episodes)
        target = replace(target, inputs=forms, types=types)
    if inputs is not None:
        forms = tuple(as_inputs(form) for form in (inputs if isinstance(inputs, list | tuple) else [inputs]))
        n_episodes, n_rounds = target.values.shape[:2]
        for form in forms:
            require(
                form.shape[:2] == (n_episodes, n_rounds),
                f"the round's inputs are [episode, round, feature], {n_episodes} episodes of {n_rounds} rounds as in "
                f"the target; got shape {form.shape}",
            )
        target = replace(target, inputs=forms)
    settings: dict[str, Any] = {}
    where = None
    if isinstance(activations, Rollout):
        settings = {name: activations.settings[name] for name in ("model", "digest", "commit")}
        where = place(site, model)
        activations = read(activations, where, target.when)
    if isinstance(untrained, Rollout):
        untrained = read(untrained, place(site, model), target.when)
    given = {"groups": groups, "untrained": untrained, "site": where, "method": method, "seed": seed}
    return fit_targets(activations, [target], **given, **settings)[0]


@checked
def probe(
    model: Machine,
    episodes: Episodes,
    targets: Sequence[str] | None = None,
    *,
    site: str = "latents",
    method: str | Any | None = None,
    seed: int = 0,
    runs: tuple[Rollout, Rollout] | None = None,
) -> list[ProbeResult]:
    """Run a machine and its untrained copy over ``episodes`` and decode each target at ``site``, with every control.

    An untrained copy whose activations overflow (linear heads can, over many rounds) is no control: it is left out, and
    the ``warning`` of each result says so.

    Args:
        targets: keys of :mod:`probes.targets`, ``key:before`` for a state before each round; when None, those that the
            task's record names as ``probed``, or every variable where it names none.
        runs: the rollouts over ``episodes`` of the model and of its untrained copy, with what the site needs cached,
            where they are known.
    """
    if targets is None:
        targets = interp.tasks.of(episodes).analysis.probed or None
    values = compute(targets, episodes, model)
    (where,) = places(model, episodes, [site])
    run, blank = runs or (run_with_sites(machine, episodes, [site]) for machine in (model, model.fresh(seed)))
    settings = {name: run.settings[name] for name in ("model", "digest", "commit")}
    settings |= {"regime": episodes.regime, "episodes_seed": episodes.seed}
    results: dict[str, ProbeResult] = {}
    for when in sorted({value.when for value in values}):
        group = [value for value in values if value.when == when]
        x, x_blank = read(run, where, when), read(blank, where, when)
        fitted = fit_targets(x, group, untrained=x_blank, site=where, method=method, seed=seed, **settings)
        results |= {value.key: result for value, result in zip(group, fitted, strict=True)}
    return [results[value.key] for value in values]


@checked
def fit_targets(
    activations: Any,
    targets: Sequence[TargetValues],
    *,
    groups: Any = "episode",
    untrained: Any = None,
    site: str | Place | None = None,
    method: str | Any | None = None,
    seed: int = 0,
    **settings: Any,
) -> list[ProbeResult]:
    """:func:`fit` for several targets of the same activations; one factorisation serves all ridge probes."""
    x = as_array(activations, "activations")
    shape = tuple(x.shape[2:])
    x, targets = as_inputs(x), [target.as_numbers() for target in targets]
    blank, warned = (None, None) if untrained is None else usable_untrained(x, as_inputs(untrained))
    for target in targets:
        check(x, target)
    x, blank = without_rounding(x), None if blank is None else without_rounding(blank)
    together = as_groups(groups, len(x))
    n_groups = int(together.max()) + 1
    few = warn_of_few(n_groups)
    leaning = [leans_low(x, target, together) for target in targets]
    warnings = [
        "; ".join(text for text in (few, LEANS_LOW if leans else None, warned) if text) or None for leans in leaning
    ]
    folds = assign_folds(n_groups, N_FOLDS, seed)[together]
    kinds = [_kind(method, target) for target in targets]
    for kind, target in zip(kinds, targets, strict=True):
        kind.check(target)
    data, results = Data(x, blank, folds, together, seed), dict[int, ProbeResult]()
    for kind in {kind.name: kind for kind in kinds}.values():
        alike = [i for i, other in enumerate(kinds) if other.name == kind.name]
        results |= dict(zip(alike, kind.fit(data, [targets[i] for i in alike]), strict=True))
    sizes = {"n_folds": N_FOLDS, "n_episodes": len(x), "n_groups": n_groups, "n_rounds": x.shape[1]}
    about = provenance(seed=seed, **sizes, **settings)
    where = site if isinstance(site, Place) else None
    read_at: dict[str, Any] = {"shape": shape, "site": where.name if where else site, "place": where}
    return [
        replace(results[i], **read_at, warning=said, leans_low=leans, settings={**about, **results[i].settings})
        for i, (said, leans) in enumerate(zip(warnings, leaning, strict=True))
    ]


def _kind(method: str | Any | None, target: TargetValues | None = None) -> Kind:
    """The kind of probe that ``method`` names, or the first that serves the target; it must serve the target."""
    if method is None:
        assert target is not None
        return next(kind for kind in KINDS.values() if kind.of_classes == (target.kind == "class"))
    if isinstance(method, str) and method not in KINDS:
        raise unknown_name("method", method, KINDS)
    kind = KINDS[method] if isinstance(method, str) else estimators.kind(method)
    require(
        target is None or not kind.of_classes or target.kind == "class",
        f"target {target.key if target else ''!r} is a number, not a class; fit it with method='ridge' or a regressor",
    )
    return kind
