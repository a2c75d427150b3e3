"""Fit linear probes, split by episode or by groups of episodes, with their controls in the same call.

:func:`fit` decodes a target from activations by ridge regression (:mod:`probes.linear`), for classes by logistic
regression, or by an estimator of scikit-learn. Every prediction is made for an episode that the probe was not fitted
on, scores have 95 % intervals over episodes (:mod:`probes.scores` says of what), next to them stand the controls
(:mod:`probes.controls`), and from both comes a verdict (:mod:`probes.verdict`). :func:`probe` runs a model and its
untrained copy and fits several targets at once.

What a probe is NOT evidence of: that the model uses what can be read from it. Decoding shows that a linear map of the
activation carries the target beyond the controls; use is shown by intervening, along ``ProbeResult.direction``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, get_args

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray as Array

import interp.tasks
from interp.algorithm import Episodes
from interp.checks import checked
from interp.errors import require, unknown_name
from interp.model.run import Rollout
from interp.model.transformer import HookedLatentTransformer, untrained
from interp.provenance import provenance
from interp.statistics import Interval
from probes import estimators, logistic
from probes.activations import read, run_with_sites, without_rounding
from probes.arrays import as_array
from probes.checks import N_FOLDS, as_groups, as_inputs, check, check_classes, check_untrained, warn_of_few
from probes.controls import Problem, best, control_task, controls_of, round_index, shuffled
from probes.estimators import classifies
from probes.linear import ALPHAS, assign_folds
from probes.result import Method, ProbeResult
from probes.scores import R2, ProbeScore, class_scores, mean_scores, rank_correlation
from probes.targets.several import compute
from probes.targets.target import Runs
from probes.targets.values import TargetValues


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
) -> ProbeResult:
    """Decode ``target`` from ``activations``, with controls.

    Args:
        activations: ``[episode, round, ...]``, tensor, array or pandas object, trailing axes being features; or a
            rollout.
        target: from :mod:`probes.targets`, or values ``[episode, round, output]``. Bare values do not know the round's
            inputs: give ``episodes`` or ``inputs``, too, or the verdict is undecided at most.
        groups: what folds, intervals and shuffled targets keep together: "episode", or one group id per episode, where
            several episodes are not independent (they share an MDP, a prompt, a participant).
        untrained: the same of an untrained model (see :func:`probes.untrained`); that control is left out when None.
        episodes: whose inputs the control reads.
        inputs: what one round says by itself, ``[episode, round, ...]``, or a list of several forms of it; zeros where
            rounds have no inputs.
        site: where to read a rollout (:mod:`probes.activations`).
        method: "ridge", or "logistic" for class targets (the default for them), or an estimator of scikit-learn, which
            is cloned for every fold. Whole numbers given bare are classes to a classifier.
        seed: of the folds and the shuffles.

    Raises:
        InputError: shapes that do not fit, NaN, a constant target, fewer groups than folds.

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
        of_classes = method == "logistic" if isinstance(method, str) else method is not None and classifies(method)
        target = TargetValues.of(target, of_classes=of_classes)
    require(episodes is None or inputs is None, "give episodes= or inputs=, not both: either makes the inputs control")
    if episodes is not None:
        forms, types = Runs(episodes).round_inputs
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
    place = None
    if isinstance(activations, Rollout):
        settings = {name: activations.settings[name] for name in ("model", "digest", "commit")}
        place, activations = site, read(activations, site, target.when)
    if isinstance(untrained, Rollout):
        untrained = read(untrained, site, target.when)
    given = {"groups": groups, "untrained": untrained, "site": place, "method": method, "seed": seed}
    return fit_targets(activations, [target], **given, **settings)[0]


@checked
def probe(
    model: HookedLatentTransformer,
    episodes: Episodes,
    targets: Sequence[str] | None = None,
    *,
    site: str = "latents",
    method: str | Any | None = None,
    seed: int = 0,
    runs: tuple[Rollout, Rollout] | None = None,
) -> list[ProbeResult]:
    """Run ``model`` and its untrained copy over ``episodes`` and decode each target at ``site``, with every control.

    An untrained copy whose activations overflow (linear heads can, over many rounds) is no control and is left out.

    Args:
        targets: keys of :mod:`probes.targets`, ``key:before`` for a state before each round; when None, those that the
            task's record names as ``probed``, or every variable where it names none.
        runs: the rollouts over ``episodes`` of the model and of its untrained copy, with what the site needs cached,
            where they are known.

    Raises:
        InputError: unknown targets or sites, episodes that the model cannot read, and what :func:`fit` refuses.
    """
    if targets is None:
        targets = interp.tasks.of(episodes).analysis.probed or None
    values = compute(targets, episodes, model)
    run, blank = runs or (run_with_sites(machine, episodes, [site]) for machine in (model, untrained(model, seed)))
    settings = {name: run.settings[name] for name in ("model", "digest", "commit")}
    settings |= {"regime": episodes.regime, "episodes_seed": episodes.seed}
    results: dict[str, ProbeResult] = {}
    for when in sorted({value.when for value in values}):
        group = [value for value in values if value.when == when]
        x, x_blank = read(run, site, when), as_array(read(blank, site, when), "activations of the untrained model")
        usable = x_blank if np.isfinite(x_blank).all() else None
        fitted = fit_targets(x, group, untrained=usable, site=site, method=method, seed=seed, **settings)
        results |= {value.key: result for value, result in zip(group, fitted, strict=True)}
    return [results[value.key] for value in values]


@checked
def fit_targets(
    activations: Any,
    targets: Sequence[TargetValues],
    *,
    groups: Any = "episode",
    untrained: Any = None,
    site: str | None = None,
    method: str | Any | None = None,
    seed: int = 0,
    **settings: Any,
) -> list[ProbeResult]:
    """:func:`fit` for several targets of the same activations; one factorisation serves all ridge probes."""
    x = as_array(activations, "activations")
    shape = tuple(x.shape[2:])
    x, targets = as_inputs(x), [target.as_numbers() for target in targets]
    blank = None if untrained is None else as_inputs(untrained)
    for target in targets:
        check(x, target)
    if blank is not None:
        check_untrained(x, blank)
    x, blank = without_rounding(x), None if blank is None else without_rounding(blank)
    together = as_groups(groups, len(x))
    n_groups = int(together.max()) + 1
    warning = warn_of_few(n_groups)
    folds = assign_folds(n_groups, N_FOLDS, seed)[together]
    methods = [_method(method, target) for target in targets]
    for target, name in zip(targets, methods, strict=True):
        if name == "logistic":
            check_classes(target)
    by_ridge = [i for i, name in enumerate(methods) if name == "ridge"]
    results: dict[int, ProbeResult] = {}
    if by_ridge:
        fitted = _ridge(x, blank, [targets[i] for i in by_ridge], folds, together, seed)
        results |= dict(zip(by_ridge, fitted, strict=True))
    for i, name in enumerate(methods):
        if name == "logistic":
            results[i] = _logistic(x, blank, targets[i], folds, together, seed)
        elif name != "ridge":
            results[i] = _estimator(name, x, blank, targets[i], folds, together, seed)
    about = provenance(
        seed=seed, n_folds=N_FOLDS, n_episodes=len(x), n_groups=n_groups, n_rounds=x.shape[1], **settings
    )
    return [
        replace(results[i], shape=shape, site=site, warning=warning, settings={**about, **results[i].settings})
        for i in range(len(targets))
    ]


def _method(method: str | Any | None, target: TargetValues) -> str | Any:
    """A method's name or an estimator, after checking that it serves the target."""
    if method is None:
        return "logistic" if target.kind == "class" else "ridge"
    if isinstance(method, str) and method not in get_args(Method):
        raise unknown_name("method", method, get_args(Method))
    of_classes = method == "logistic" if isinstance(method, str) else classifies(method)
    require(
        not of_classes or target.kind == "class",
        f"target {target.key!r} is a number, not a class; fit it with method='ridge' or a regressor",
    )
    return method


def _ridge(
    x: Float[Array, "episode round d"],
    blank: Float[Array, "episode round d"] | None,
    targets: Sequence[TargetValues],
    folds: Int[Array, " episode"],
    groups: Int[Array, " episode"],
    seed: int,
) -> list[ProbeResult]:
    problem = Problem.of(targets, seed, groups, N_FOLDS)
    fitted = problem.fit(x, folds)
    others = {key: score for key, score in fitted.scores.items() if key[1] != "probe"} | problem.baselines(folds)
    if blank is not None:
        of_blank = problem.fit(blank, folds, own_only=True).scores
        others |= {(i, "untrained"): score for (i, _), score in of_blank.items()}
    fit = fitted.fit
    results = []
    for part in problem.parts[: len(targets)]:
        target, score = problem.targets[part.target], fitted.scores[part.target, "probe"]
        predictions = fit.predictions[..., part.columns]
        errors = mean_scores(np.abs(target.values - predictions), target.mask, groups, N_FOLDS)
        ranks = rank_correlation(target.values, predictions, target.mask)
        results.append(
            ProbeResult(
                target=targets[part.target],
                method="ridge",
                score=score,
                by_output=dict(zip(target.outputs, problem.r2.each(fitted.errors, part.columns), strict=True)),
                metrics={"r2": score, "rank_correlation": ranks, "mae": errors[-1]},
                controls=controls_of(target, score, {n: s for (i, n), s in others.items() if i == part.target}),
                predictions=predictions,
                weights=fit.weights[:, part.columns],
                intercept=fit.intercept[part.columns],
                columns=target.outputs,
                shape=(),
                settings={"alphas": ALPHAS, "alpha": float(fit.alpha[part.target])},
            )
        )
    return results


def _logistic(
    x: Float[Array, "episode round d"],
    blank: Float[Array, "episode round d"] | None,
    target: TargetValues,
    folds: Int[Array, " episode"],
    groups: Int[Array, " episode"],
    seed: int,
) -> ProbeResult:
    y, n_classes = target.values, int(target.values.max()) + 1

    def fits(inputs: Array, labels: Array, refit: bool = False) -> list[logistic.LogisticFit]:
        return [
            logistic.cross_validate(inputs, labels[..., k], folds, n_classes, refit=refit) for k in range(y.shape[-1])
        ]

    def scored(inputs: Array, labels: Array, mask: Array | None) -> ProbeScore:
        return class_scores(labels, [f.probabilities for f in fits(inputs, labels)], mask, groups, N_FOLDS)[0][-1]

    own = fits(x, y, refit=True)
    accuracy, loss = class_scores(y, [f.probabilities for f in own], target.mask, groups, N_FOLDS)
    others = _controls_apart(scored, x, blank, target, groups, seed)
    columns = target.outputs
    if n_classes > 2:
        columns = tuple(f"{name}={c}" for name in target.outputs for c in range(n_classes))
    return ProbeResult(
        target=target,
        method="logistic",
        score=accuracy[-1],
        by_output=dict(zip(target.outputs, accuracy[:-1], strict=True)),
        metrics={"accuracy": accuracy[-1], "log_loss": loss[-1]},
        controls=controls_of(target, accuracy[-1], others),
        predictions=np.stack([f.probabilities.argmax(-1) for f in own], axis=-1).astype(np.float64),
        weights=np.concatenate([f.weights for f in own], axis=-1),
        intercept=np.concatenate([f.intercept for f in own]),
        columns=columns,
        shape=(),
        settings={"penalties": [f.penalties for f in own]},
    )


def _estimator(
    estimator: Any,
    x: Float[Array, "episode round d"],
    blank: Float[Array, "episode round d"] | None,
    target: TargetValues,
    folds: Int[Array, " episode"],
    groups: Int[Array, " episode"],
    seed: int,
) -> ProbeResult:
    """A scikit-learn estimator in the same folds, with the same controls."""
    of_classes = classifies(estimator)
    target = target if of_classes else target.indicators()

    def scores(labels: Array, predictions: Array, mask: Array | None) -> list[ProbeScore]:
        """Of each output and, last, all together."""
        if of_classes:
            return mean_scores((predictions != labels).astype(np.float64), mask, groups, N_FOLDS, "accuracy")
        r2, columns = R2.of(labels, mask, groups, N_FOLDS), slice(0, labels.shape[-1])
        errors = r2.errors(predictions)
        return [*r2.each(errors, columns), r2.overall(errors, columns)]

    def scored(inputs: Array, labels: Array, mask: Array | None) -> ProbeScore:
        return scores(labels, estimators.cross_validate(estimator, inputs, labels, folds), mask)[-1]

    y = target.values
    predictions = estimators.cross_validate(estimator, x, y, folds)
    *each, score = scores(y, predictions, target.mask)
    metrics: dict[str, Interval] = {"accuracy" if of_classes else "r2": score}
    if not of_classes:
        metrics["rank_correlation"] = rank_correlation(y, predictions, target.mask)
        metrics["mae"] = mean_scores(np.abs(y - predictions), target.mask, groups, N_FOLDS)[-1]
    return ProbeResult(
        target=target,
        method=type(estimator).__name__,
        score=score,
        by_output=dict(zip(target.outputs, each, strict=True)),
        metrics=metrics,
        controls=controls_of(target, score, _controls_apart(scored, x, blank, target, groups, seed)),
        predictions=predictions,
        weights=np.zeros((x.shape[-1], 0)),
        intercept=np.zeros(0),
        columns=target.outputs,
        shape=(),
        settings={"estimator": repr(estimator)},
        estimators=estimators.fit(estimator, x, y),
    )


def _controls_apart(
    scored: Callable[[Array, Array, Array | None], ProbeScore],
    x: Float[Array, "episode round d"],
    blank: Float[Array, "episode round d"] | None,
    target: TargetValues,
    groups: Int[Array, " episode"],
    seed: int,
) -> dict[str, ProbeScore]:
    """The controls of a probe that is fitted to one target at a time; ``scored(inputs, labels, mask)`` is its score."""
    y, mask = target.values, target.mask
    moved = None if mask is None else shuffled(mask, seed, groups)
    others = {"shuffled": scored(x, shuffled(y, seed, groups), moved)}
    if blank is not None:
        others["untrained"] = scored(blank, y, mask)
    for inputs in target.inputs:
        others["inputs"] = best(others.get("inputs"), scored(inputs, y, mask))
    others["round"] = scored(round_index(*y.shape[:2]), y, mask)
    if target.types is not None:
        others["control_task"] = scored(x, control_task(y, target.types, seed), mask)
    return others
