"""Fit linear probes, split by episode, with their controls in the same call.

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

from interp.errors import InputError, require, unknown_name
from interp.model.rollout import Rollout
from interp.model.transformer import HookedLatentTransformer
from interp.provenance import provenance
from probes import logistic
from probes.activations import read, run_with_sites, untrained, without_rounding
from probes.controls import Problem, best, control_task, controls_of, round_index, shuffled
from probes.linear import ALPHAS, assign_folds
from probes.result import Method, ProbeResult, as_inputs
from probes.scores import Score, class_scores, mean_scores, rank_correlation, sample_weights
from probes.targets.record import Episodes, TargetValues, parse

N_FOLDS = 5


def fit(
    activations: Any,
    target: TargetValues | Array,
    groups: str = "episode",
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
        groups: "episode": folds and bootstrap are made of whole episodes; there is no other choice.
        untrained: the same of an untrained model (see :func:`probes.untrained`); that control is left out when None.
        site: where to read a rollout (:mod:`probes.activations`).
        method: "ridge", or "logistic" for class targets; the latter is the default for them.
        seed: of the folds, the shuffles and the bootstrap.

    Raises:
        InputError: shapes that do not fit, NaN, a constant target, fewer episodes than folds.

    Example:
        >>> import interp, probes
        >>> from interp.tasks import experts
        >>> episodes = experts.sample(n_episodes=32, n_rounds=20, n_experts=4, seed=0)
        >>> run = interp.rollout(interp.load("wma-handwired", n_experts=4), episodes)
        >>> result = probes.fit(run.latents[:, 1:], probes.targets.log_weights(episodes), groups="episode")
        >>> round(result.r2, 6), result.represented
        (1.0, True)
    """
    require(groups == "episode", f"groups must be 'episode', got {groups!r}: rounds of an episode are not independent")
    if not isinstance(target, TargetValues):
        target = TargetValues.of(target)
    settings: dict[str, Any] = {}
    place = None
    if isinstance(activations, Rollout):
        settings = {name: activations.settings[name] for name in ("model", "digest", "commit")}
        place, activations = site, read(activations, site, target.when)
    if isinstance(untrained, Rollout):
        untrained = read(untrained, site, target.when)
    return fit_targets(activations, [target], untrained=untrained, site=place, method=method, seed=seed, **settings)[0]


def probe(
    model: HookedLatentTransformer,
    episodes: Episodes,
    targets: Sequence[str],
    *,
    site: str = "latents",
    method: str | None = None,
    seed: int = 0,
) -> list[ProbeResult]:
    """Run ``model`` and its untrained copy over ``episodes`` and decode each target at ``site``, with every control.

    Args:
        targets: keys of :mod:`probes.targets`, ``key:before`` for a state before each round.

    Raises:
        InputError: unknown targets or sites, episodes that the model cannot read, and what :func:`fit` refuses.
    """
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


def compute(
    targets: Sequence[str], episodes: Episodes, model: HookedLatentTransformer | None = None
) -> list[TargetValues]:
    """The values of several targets, sharing one copy of the round's inputs.

    Args:
        model: a handwired one sets the targets' parameters (its log gamma); the defaults when None or learned.

    Raises:
        InputError: no targets, an unknown one, one of another task, or one that cannot be fitted.
    """
    require(bool(targets), "no targets were given; name at least one, see probes.targets.REGISTRY")
    parsed = [parse(text) for text in dict.fromkeys(targets)]
    given = {} if model is None else model.config.origin.get("arguments", {})
    own = {"eta": given["log_gamma"]} if "log_gamma" in given else {}
    values = [
        target(episodes, moment, **{name: own[name] for name in target.parameters if name in own})
        for target, moment in parsed
    ]
    for value in values:
        check(np.zeros((len(episodes), episodes.n_rounds, 1)), value)
    first = values[0]
    return [replace(value, inputs=first.inputs, types=first.types) for value in values]


def fit_targets(
    activations: Any,
    targets: Sequence[TargetValues],
    *,
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
    folds = assign_folds(len(x), N_FOLDS, seed)
    by_method: dict[str, list[int]] = {name: [] for name in get_args(Method)}
    for i, target in enumerate(targets):
        chosen = method or ("logistic" if target.kind == "class" else "ridge")
        if chosen not in by_method:
            raise unknown_name("method", chosen, by_method)
        require(
            chosen == "ridge" or target.kind == "class",
            f"target {target.key!r} is a number, not a class; fit it with method='ridge'",
        )
        by_method[chosen].append(i)
    found: dict[int, ProbeResult] = {}
    if by_method["ridge"]:
        fitted = _ridge(x, blank, [targets[i] for i in by_method["ridge"]], folds, seed)
        found |= dict(zip(by_method["ridge"], fitted, strict=True))
    for i in by_method["logistic"]:
        found[i] = _logistic(x, blank, targets[i], folds, seed)
    base = provenance(seed=seed, n_folds=N_FOLDS, n_episodes=len(x), n_rounds=x.shape[1], **settings)
    return [
        replace(found[i], shape=shape, site=site, settings={**base, **found[i].settings}) for i in range(len(targets))
    ]


def _ridge(
    x: Float[Array, "episode round d"],
    blank: Float[Array, "episode round d"] | None,
    targets: Sequence[TargetValues],
    folds: Int[Array, " episode"],
    seed: int,
) -> list[ProbeResult]:
    problem = Problem.of(targets, seed)
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
    seed: int,
) -> ProbeResult:
    y, n_classes = target.values, int(target.values.max()) + 1
    weights = sample_weights(len(x), seed)

    def scored(inputs: Array, labels: Array, mask: Array | None) -> tuple[list[Score], list[Score], list[Any]]:
        fits = [
            logistic.cross_validate(inputs, labels[..., k], folds, n_classes, refit=inputs is x and labels is y)
            for k in range(y.shape[-1])
        ]
        return (*class_scores(labels, [f.probabilities for f in fits], mask, weights), fits)

    accuracy, loss, fits = scored(x, y, target.mask)
    mask = None if target.mask is None else shuffled(target.mask, seed)
    others = {"shuffled": scored(x, shuffled(y, seed), mask)[0][-1]}
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


def check(x: Array, target: TargetValues) -> None:
    """Refuse what cannot be fitted, with a sentence."""
    y = target.values
    if x.shape[:2] != y.shape[:2]:
        hint = "; for a state after each round give run.latents[:, 1:]" if x.shape[1] == y.shape[1] + 1 else ""
        raise InputError(
            f"activations have {x.shape[0]} episodes of {x.shape[1]} rounds but target {target.key!r} has {y.shape[0]} "
            f"of {y.shape[1]}{hint}"
        )
    require(len(x) >= N_FOLDS, f"{N_FOLDS} folds of episodes need at least {N_FOLDS} episodes, got {len(x)}")
    for what, values in (("the activations", x), (f"target {target.key!r}", y)):
        finite = np.isfinite(values)
        require(
            bool(finite.all()),
            f"{what} hold {int((~finite).sum())} values that are NaN or infinite; a probe needs finite numbers",
        )
    require(
        bool((y != y[:1, :1]).any()),
        f"target {target.key!r} is constant over these episodes, so there is nothing to decode; choose another target",
    )
    if target.mask is not None:
        require(bool(target.mask.any()), f"no entry of target {target.key!r} is scored in these episodes; sample more")


def check_untrained(x: Array, blank: Array) -> None:
    """Refuse an untrained control of another shape, or one that ran away."""
    require(
        x.shape == blank.shape,
        f"activations of the untrained model have shape {blank.shape}, those of the model {x.shape}; "
        "use probes.untrained(model) on the same episodes",
    )
    require(bool(np.isfinite(blank).all()), "activations of the untrained model hold NaN or infinite values")
