"""Fit linear probes, split by episode or by groups of episodes, with their controls in the same call.

:func:`fit` decodes a target from activations by ridge regression (:mod:`probes.linear`), or, for classes, by logistic
regression: every prediction is made for an episode that the probe was not fitted on, scores have 95 % intervals over
episodes, and next to them stand the controls (:mod:`probes.controls`). :func:`probe` runs a model and its untrained
copy and fits several targets at once.

What a probe is NOT evidence of: that the model uses what can be read from it. Decoding shows that a linear map of the
activation carries the target beyond the controls; use is shown by intervening, along ``ProbeResult.direction``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, get_args

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray as Array
from numpy.typing import ArrayLike

import interp.tasks
from interp.algorithm import Episodes
from interp.errors import require, unknown_name
from interp.model.rollout import Rollout
from interp.model.transformer import HookedLatentTransformer
from interp.model.untrained import untrained
from interp.provenance import provenance
from probes import logistic
from probes.activations import read, run_with_sites, without_rounding
from probes.checks import N_FOLDS, as_groups, as_inputs, check, check_untrained
from probes.controls import Problem, best, control_task, controls_of, round_index, shuffled
from probes.linear import ALPHAS, assign_folds
from probes.result import Method, ProbeResult
from probes.scores import ProbeScore, class_scores, mean_scores, rank_correlation, sample_weights
from probes.targets.several import compute
from probes.targets.values import TargetValues

Scores = list[ProbeScore]


def fit(
    activations: Any,
    target: TargetValues | Array,
    groups: str | ArrayLike = "episode",
    *,
    untrained: Any = None,
    site: str = "latents",
    method: str | None = None,
    seed: int = 0,
) -> ProbeResult:
    """Decode ``target`` from ``activations``, with controls.

    Args:
        activations: ``[episode, round, ...]``, tensor or array, trailing axes being features; or a rollout.
        target: from :mod:`probes.targets`, or an array ``[episode, round, output]``.
        groups: what folds, bootstrap and shuffled targets keep together: "episode", or one group id per episode, where
            several episodes are not independent (they share an MDP, a prompt, a participant).
        untrained: the same of an untrained model (see :func:`probes.untrained`); that control is left out when None.
        site: where to read a rollout (:mod:`probes.activations`).
        method: "ridge", or "logistic" for class targets; the latter is the default for them.
        seed: of the folds, the shuffles and the bootstrap.

    Raises:
        InputError: shapes that do not fit, NaN, a constant target, fewer groups than folds.

    Example:
        >>> import interp, probes
        >>> from interp.tasks import experts
        >>> episodes = experts.sample(n_episodes=32, n_rounds=20, n_experts=4, seed=0)
        >>> run = interp.rollout(interp.load("wma-handwired", n_experts=4), episodes)
        >>> result = probes.fit(run.latents[:, 1:], probes.targets.log_weights(episodes), groups="episode")
        >>> round(result.r2, 6), result.represented
        (1.0, True)
    """
    if not isinstance(target, TargetValues):
        target = TargetValues.of(target)
    settings: dict[str, Any] = {}
    place = None
    if isinstance(activations, Rollout):
        settings = {name: activations.settings[name] for name in ("model", "digest", "commit")}
        place, activations = site, read(activations, site, target.when)
    if isinstance(untrained, Rollout):
        untrained = read(untrained, site, target.when)
    given = {"groups": groups, "untrained": untrained, "site": place, "method": method, "seed": seed}
    return fit_targets(activations, [target], **given, **settings)[0]


def probe(
    model: HookedLatentTransformer,
    episodes: Episodes,
    targets: Sequence[str] | None = None,
    *,
    site: str = "latents",
    method: str | None = None,
    seed: int = 0,
) -> list[ProbeResult]:
    """Run ``model`` and its untrained copy over ``episodes`` and decode each target at ``site``, with every control.

    Args:
        targets: keys of :mod:`probes.targets`, ``key:before`` for a state before each round; when None, those that the
            task's record names as ``probed``, or every variable where it names none.

    Raises:
        InputError: unknown targets or sites, episodes that the model cannot read, and what :func:`fit` refuses.
    """
    if targets is None:
        targets = interp.tasks.of(episodes).probed or None
    values = compute(targets, episodes, model)
    run = run_with_sites(model, episodes, [site])
    blank = run_with_sites(untrained(model, seed), episodes, [site])
    settings = {name: run.settings[name] for name in ("model", "digest", "commit")}
    settings |= {"regime": episodes.regime, "episodes_seed": episodes.seed}
    results: dict[str, ProbeResult] = {}
    for when in sorted({value.when for value in values}):
        group = [value for value in values if value.when == when]
        x, x_blank = read(run, site, when), read(blank, site, when)
        fitted = fit_targets(x, group, untrained=x_blank, site=site, method=method, seed=seed, **settings)
        results |= {value.key: result for value, result in zip(group, fitted, strict=True)}
    return [results[value.key] for value in values]


def fit_targets(
    activations: Any,
    targets: Sequence[TargetValues],
    *,
    groups: str | ArrayLike = "episode",
    untrained: Any = None,
    site: str | None = None,
    method: str | None = None,
    seed: int = 0,
    **settings: Any,
) -> list[ProbeResult]:
    """:func:`fit` for several targets of the same activations; one factorisation serves all ridge probes."""
    shape = tuple(np.shape(activations)[2:])
    x = as_inputs(activations)
    blank = None if untrained is None else as_inputs(untrained)
    for target in targets:
        check(x, target)
    if blank is not None:
        check_untrained(x, blank)
    x, blank = without_rounding(x), None if blank is None else without_rounding(blank)
    together = as_groups(groups, len(x))
    n_groups = int(together.max()) + 1
    folds = assign_folds(n_groups, N_FOLDS, seed)[together]
    by_method: dict[str, list[int]] = {name: [] for name in get_args(Method)}
    for i, target in enumerate(targets):
        name = method or ("logistic" if target.kind == "class" else "ridge")
        if name not in by_method:
            raise unknown_name("method", name, by_method)
        require(
            name == "ridge" or target.kind == "class",
            f"target {target.key!r} is a number, not a class; fit it with method='ridge'",
        )
        by_method[name].append(i)
    results: dict[int, ProbeResult] = {}
    if by_method["ridge"]:
        fitted = _ridge(x, blank, [targets[i] for i in by_method["ridge"]], folds, together, seed)
        results |= dict(zip(by_method["ridge"], fitted, strict=True))
    for i in by_method["logistic"]:
        results[i] = _logistic(x, blank, targets[i], folds, together, seed)
    about = provenance(
        seed=seed, n_folds=N_FOLDS, n_episodes=len(x), n_groups=n_groups, n_rounds=x.shape[1], **settings
    )
    return [
        replace(results[i], shape=shape, site=site, settings={**about, **results[i].settings})
        for i in range(len(targets))
    ]


def _ridge(
    x: Float[Array, "episode round d"],
    blank: Float[Array, "episode round d"] | None,
    targets: Sequence[TargetValues],
    folds: Int[Array, " episode"],
    groups: Int[Array, " episode"],
    seed: int,
) -> list[ProbeResult]:
    problem = Problem.of(targets, seed, groups)
    fitted = problem.fit(x, folds)
    others = {key: score for key, score in fitted.scores.items() if key[1] != "probe"} | problem.baselines(folds)
    if blank is not None:
        of_blank = problem.fit(blank, folds, own_only=True).scores
        others |= {(i, "untrained"): score for (i, _), score in of_blank.items()}
    weights, fit = problem.r2.weights, fitted.fit
    results = []
    for part in problem.parts[: len(targets)]:
        target, score = problem.targets[part.target], fitted.scores[part.target, "probe"]
        predictions = fit.predictions[..., part.columns]
        errors = mean_scores(np.abs(target.values - predictions), target.mask, weights)
        ranks = rank_correlation(target.values, predictions, target.mask, weights)
        results.append(
            ProbeResult(
                target=targets[part.target],
                method="ridge",
                score=score,
                by_output=dict(zip(target.outputs, problem.r2.each(fitted.errors, part.columns), strict=True)),
                metrics={"r2": score, "rank_correlation": ranks[-1], "mae": errors[-1]},
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
    weights = sample_weights(groups, seed)

    def scored(inputs: Array, labels: Array, mask: Array | None) -> tuple[Scores, Scores, list[logistic.LogisticFit]]:
        fits = [
            logistic.cross_validate(inputs, labels[..., k], folds, n_classes, refit=inputs is x and labels is y)
            for k in range(y.shape[-1])
        ]
        return (*class_scores(labels, [f.probabilities for f in fits], mask, weights), fits)

    accuracy, loss, fits = scored(x, y, target.mask)
    mask = None if target.mask is None else shuffled(target.mask, seed, groups)
    others = {"shuffled": scored(x, shuffled(y, seed, groups), mask)[0][-1]}
    if blank is not None:
        others["untrained"] = scored(blank, y, target.mask)[0][-1]
    for inputs in target.inputs:
        others["inputs"] = best(others.get("inputs"), scored(inputs, y, target.mask)[0][-1])
    others["round"] = scored(round_index(*y.shape[:2]), y, target.mask)[0][-1]
    if target.types is not None:
        others["control_task"] = scored(x, control_task(y, target.types, seed), target.mask)[0][-1]
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
        predictions=np.stack([f.probabilities.argmax(-1) for f in fits], axis=-1).astype(np.float64),
        weights=np.concatenate([f.weights for f in fits], axis=-1),
        intercept=np.concatenate([f.intercept for f in fits]),
        columns=columns,
        shape=(),
        settings={"penalties": [f.penalties for f in fits]},
    )
