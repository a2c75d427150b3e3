"""CPU seconds beside what a user would write instead, on the same work, one thread.

The numbers of both are compared first; then pairs run back to back, and the medians are printed.
``of_ours`` is the median over pairs of their CPU time in ours: above 1, ours is faster. Run with
``python -m tests.benchmarks beside`` or, for some rows, ``python -m tests.benchmarks beside gru``.
Rows: plain torch, scikit-learn and NumPy always; TransformerLens is a dependency.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from itertools import count
from typing import Any

import numpy as np
import pandas as pd
import torch
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import GridSearchCV, GroupKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import Tensor
from torch.nn import functional
from transformer_lens import patching as lens_patching

import interp
import probes
from interp.interventions import patching, sites
from interp.interventions.pairs import prepare
from interp.machines.recurrent import Said
from interp.model.bound import bind
from interp.stats import refit
from interp.tasks import experts
from interp.tasks.experts import analysis as corruptions
from probes.estimators import LOGISTIC
from probes.linear import ALPHAS, RIDGE

N_PAIRS = 7
ROUND = 20
Numbers = list[Any]


@dataclass(frozen=True)
class Row:
    """One piece of work, done by this package and by another way.

    Attributes:
        work, tool: names of the work and of the other way.
        ours, theirs: do the work, and return numbers in the same order.
        tolerance: how far the numbers may differ.
    """

    work: str
    tool: str
    ours: Callable[[], Numbers]
    theirs: Callable[[], Numbers]
    tolerance: float


def measure(row: Row, n_pairs: int = N_PAIRS) -> dict[str, Any]:
    """Compare the numbers, which also warms both up; then return the medians of pairs of CPU seconds."""
    gap = largest_gap(row.ours(), row.theirs())
    assert gap <= row.tolerance, f"{row.work}: {row.tool} differs by {gap:.3g}"
    pairs = [(cpu_seconds(row.ours), cpu_seconds(row.theirs)) for _ in range(n_pairs)]
    return {
        "work": row.work,
        "tool": row.tool,
        "ours_s": statistics.median(ours for ours, _ in pairs),
        "theirs_s": statistics.median(theirs for _, theirs in pairs),
        "of_ours": statistics.median(theirs / ours for ours, theirs in pairs),
        "gap": gap,
    }


def largest_gap(ours: Numbers, theirs: Numbers) -> float:
    """The largest difference of two lists of tensors or arrays of equal shapes."""
    gaps = []
    for mine, right in zip(ours, theirs, strict=True):
        mine, right = torch.as_tensor(mine), torch.as_tensor(right)
        assert mine.shape == right.shape, f"{mine.shape} is not {right.shape}"
        assert torch.equal(mine.isnan(), right.isnan()), "numbers are missing in one of both"
        gap = (mine.double() - right.double()).nan_to_num(0.0).abs().max()
        gaps.append(float(gap))
    return max(gaps)


def cpu_seconds(call: Callable[[], object]) -> float:
    """User and system seconds of a call."""
    start = time.process_time()
    call()
    return time.process_time() - start


def rollout_rows(n_episodes: int = 64, n_rounds: int = 100) -> list[Row]:
    """Rollouts of ``wma-learned`` beside loops written in torch, without and with caches."""
    model = interp.load("wma-learned")
    episodes = experts.sample(n_episodes, n_rounds, 4, seed=0)
    layers = range(model.config.n_layers)
    some = [f"blocks.{layer}.hook_resid_post" for layer in layers]
    all_points = model.hook_names(None)

    def ours(names: list[str] | None) -> Numbers:
        run = interp.rollout(model, episodes, names_filter=names)
        return [run.predictions, run.latents, *run.cache.values()]

    size = f"rollout {n_episodes} x {n_rounds}"
    by_hand = "hand-written torch"
    loop = "module loop with hooks"
    with_some = f"{size}, {len(some)} resid_post cached"
    with_all = f"{size}, all {len(all_points)} points cached"

    def hand_written(n_cached: int) -> Callable[[], Numbers]:
        return partial(run_by_hand, model, episodes, cached=n_cached)

    def modules(names: list[str]) -> Callable[[], Numbers]:
        return partial(run_modules, model, episodes, names)

    return [
        Row(size, by_hand, partial(ours, None), hand_written(0), 1e-4),
        Row(with_some, by_hand, partial(ours, some), hand_written(len(some)), 1e-3),
        Row(with_some, loop, partial(ours, some), modules(some), 1e-3),
        Row(with_all, loop, partial(ours, all_points), modules(all_points), 1e-3),
    ]


@torch.no_grad()
def run_by_hand(model: Any, episodes: Any, cached: int) -> Numbers:
    """A transformer with replaced latents written out for speed: fused attention and normalisation."""
    layout = model.layout.fit(episodes)
    tokens = model.prepare(layout.encoded(episodes)).tokens
    n_episodes, n_rounds, n_positions = tokens.shape
    width, n_heads = model.config.d_model, model.config.n_heads
    blocks = []
    for block in model.blocks:
        attn = block.attn
        joined = [weight.transpose(0, 1).flatten(1) for weight in (attn.W_Q, attn.W_K, attn.W_V)]
        biases = [bias.flatten() for bias in (attn.b_Q, attn.b_K, attn.b_V)]
        blocks.append((torch.cat(joined, 1), torch.cat(biases), attn, block.mlp))
    codes = model.W_pos[model.position_ids[n_positions, :n_positions]]
    latents = model.initial(n_episodes, layout)
    first = layout.latent_positions[0]
    predictions = torch.empty(n_episodes, n_rounds)
    carried = torch.empty(n_episodes, n_rounds + 1, *latents.shape[1:])
    carried[:, 0] = latents
    cache = [torch.empty(n_episodes, n_rounds, n_positions, width) for _ in range(cached)]

    def normalize(resid: Tensor) -> Tensor:
        return functional.layer_norm(resid, (width,), eps=model.cfg.eps)

    for t in range(n_rounds):
        resid = model.W_E[tokens[:, t]].clone()
        resid[:, first : first + latents.shape[1]] = latents
        resid = resid + codes
        for layer, (joined_weight, joined_bias, attn, mlp) in enumerate(blocks):
            parts = normalize(resid) @ joined_weight + joined_bias
            shape = (n_episodes, n_positions, 3, n_heads, -1)
            q, k, v = parts.view(shape).permute(2, 0, 3, 1, 4)
            scale = 1 / model.config.scale
            z = functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale)
            z = z.transpose(1, 2).reshape(n_episodes, n_positions, -1)
            resid = resid + z @ attn.W_O.flatten(0, 1) + attn.b_O
            hidden = mlp.act(normalize(resid) @ mlp.W_in + mlp.b_in)
            resid = resid + hidden @ mlp.W_out + mlp.b_out
            if cached:
                cache[layer][:, t] = resid
        read = normalize(resid)
        logits = model.unembed(read[:, layout.predict_position])
        predictions[:, t] = model.read_prediction(logits, n_positions)
        update = model.update(read[:, layout.update_position], n_positions)
        latents = update.unsqueeze(1)
        carried[:, t + 1] = latents
    return [predictions, carried, *cache]


@torch.no_grad()
def run_modules(model: Any, episodes: Any, names: list[str]) -> Numbers:
    """The model's own modules round by round, with hooks that write to tensors made before."""
    layout = model.layout.fit(episodes)
    encoded = model.prepare(layout.encoded(episodes))
    n_episodes, n_rounds, _ = encoded.tokens.shape
    latents = model.initial(n_episodes, layout)
    predictions, carried = [], [latents]
    cache: dict[str, Tensor] = {}
    t = 0

    def store(activation: Tensor, hook: Any) -> None:
        if hook.name not in cache:
            cache[hook.name] = activation.new_empty(n_episodes, n_rounds, *activation.shape[1:])
        cache[hook.name][:, t] = activation

    with model.hooks(fwd_hooks=[(name, store) for name in names]):
        for t in range(n_rounds):
            prediction, latents = model.step(latents, encoded.at(t))
            predictions.append(prediction)
            carried.append(latents)
    return [torch.stack(predictions, 1), torch.stack(carried, 1), *(cache[name] for name in names)]


def gru_rows(n_episodes: int = 64, n_rounds: int = 100) -> list[Row]:
    """Rollouts of ``wma-gru`` beside a bare loop over its layers, and one call of them."""
    machine = interp.load("wma-gru")
    episodes = experts.sample(n_episodes, n_rounds, 4, seed=0)
    layout = machine.layout.fit(episodes)
    reader, module = Said(layout), machine.module

    def ours() -> Numbers:
        run = interp.rollout(machine, episodes)
        return [run.predictions, run.latents[:, 1:, 0]]

    @torch.no_grad()
    def bare(whole: bool) -> Numbers:
        encoded = machine.prepare(layout.encoded(episodes))
        rows = encoded.rows(range(n_rounds))
        heard = module.hear(reader.after(rows)).unflatten(0, (n_episodes, n_rounds))
        question = reader.before(rows).unflatten(0, (n_episodes, n_rounds))
        state = machine.initial(n_episodes, layout)[:, 0]
        inputs = heard.transpose(0, 1).contiguous()
        if whole:
            after = module.core(inputs, state.unsqueeze(0).contiguous())[0].transpose(0, 1)
            before = torch.cat([state.unsqueeze(1), after[:, :-1]], 1)
            scores = module.read(torch.cat([before, question], 2))
            return [scores.softmax(-1)[..., 1], after]
        predictions, states = [], []
        for t in range(n_rounds):
            scores = module.read(torch.cat([state, question[:, t]], 1))
            predictions.append(scores.softmax(-1)[:, 1])
            state = module.core(inputs[t : t + 1], state.unsqueeze(0).contiguous())[1][0]
            states.append(state)
        return [torch.stack(predictions, 1), torch.stack(states, 1)]

    size = f"rollout wma-gru {n_episodes} x {n_rounds}"
    return [
        Row(size, "bare loop", ours, lambda: bare(whole=False), 1e-5),
        Row(size, "one nn.GRU call", ours, lambda: bare(whole=True), 1e-5),
    ]


def sweep_rows(n_episodes: int = 64) -> list[Row]:
    """Patching of every layer and position at one round, beside plain hooks and TransformerLens."""
    model = interp.load("wma-learned")
    episodes = experts.sample(n_episodes, ROUND + 1, 4, seed=0)
    pair = prepare(model, *corruptions.exchange_history(episodes, ROUND), ROUND)
    components = ("resid_pre", "attn_out")
    cells = [cell for name in components for cell in sites.sites(model, pair.layout, name)]
    bound = bind(model, pair.clean, pair.corrupted, rounds=ROUND)
    clean, corrupted = bound.tokens
    rises = pair.clean.predictions[:, ROUND] > pair.corrupted.predictions[:, ROUND]

    def ours() -> Numbers:
        effects = patching.of_pair(pair, sites=cells, metric="probability")
        return [effects.values.mean(1)]

    def score(logits: Tensor) -> Tensor:
        p = logits[:, bound.predict_position].softmax(-1)[:, 1]
        return torch.where(rises, p, 1 - p)

    @torch.no_grad()
    def by_lens() -> Numbers:
        _, cache = bound.run_with_cache(clean)
        tools = (lens_patching.get_act_patch_resid_pre, lens_patching.get_act_patch_attn_out)
        grids = [tool(bound, corrupted, cache, lambda x: score(x).mean()) for tool in tools]
        return [torch.cat([grid.flatten() for grid in grids])]

    @torch.no_grad()
    def by_hooks() -> Numbers:
        _, cache = bound.run_with_cache(clean)
        means = []
        for name in components:
            for layer in range(model.config.n_layers):
                hook_name = f"blocks.{layer}.hook_{name}"
                for position in range(pair.layout.n_positions):
                    source = cache[hook_name][:, position]

                    def put(module: Any, args: Any, output: Tensor, p=position, s=source) -> Tensor:
                        patched = output.clone()
                        patched[:, p] = s
                        return patched

                    handle = model.hook_dict[hook_name].register_forward_hook(put)
                    means.append(score(bound(corrupted)).mean())
                    handle.remove()
        return [torch.stack(means)]

    work = f"sweep of {len(cells)} sites, {n_episodes} episodes"
    lens = f"TransformerLens {version('transformer-lens')}"
    return [
        Row(work, "plain hooks", ours, by_hooks, 1e-5),
        Row(work, lens, ours, by_lens, 1e-5),
    ]


def probe_rows(n_episodes: int = 32, n_rounds: int = 30) -> list[Row]:
    """Probes with nested folds, beside scikit-learn with the same folds.

    The rows of fits compare the fits alone. The other rows compare a probe with its controls, whose
    untrained copies run anew for every seed, with scikit-learn's fit, which has no controls and
    other folds.
    """
    episodes = experts.sample(n_episodes, n_rounds, 4, seed=0)
    run = interp.rollout(interp.load("wma-learned"), episodes)
    activations = run.latents[:, 1:, 0].double().numpy()
    episode_index = np.arange(n_episodes)
    folds = episode_index % 5
    ridge = make_pipeline(StandardScaler(), Ridge())
    ridge_grid = {"ridge__alpha": ALPHAS}
    logistic = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
    logistic_grid = {"logisticregression__C": (1e-2, 1.0, 1e2)}
    numbers = probes.targets.log_weights(episodes)
    classes = probes.targets.label(episodes)
    seeds = count()

    def fit(kind: Any, target: Any) -> Numbers:
        (fitted,) = kind.fit(activations, [target], folds, episode_index)
        return [fitted.score.estimate]

    def probe(target: Any) -> Numbers:
        return [probes.fit(run, target, seed=next(seeds)).score.estimate]

    def fit_ridge() -> Numbers:
        y = numbers.values.reshape(-1, numbers.values.shape[-1])
        predicted = predict_by_sklearn(ridge, ridge_grid, None, activations, y, folds)
        errors = (y - predicted) ** 2
        losses = errors.reshape(n_episodes, -1).sum(1)
        total = refit.totals(numbers.values, None, episode_index)
        return [1 - losses.sum() / total.sum()]

    def fit_logistic() -> Numbers:
        y = classes.values.reshape(-1, classes.values.shape[-1])
        right = []
        for column in y.T:
            predicted = predict_by_sklearn(
                logistic, logistic_grid, "neg_log_loss", activations, column, folds
            )
            right.append(predicted == column)
        return [np.mean(right)]

    size = f"{n_episodes} x {n_rounds}"
    alone = "scikit-learn, same folds"
    without_controls = "scikit-learn, no controls"
    return [
        Row(f"ridge fit {size}", alone, partial(fit, RIDGE, numbers), fit_ridge, 1e-6),
        Row(f"logistic fit {size}", alone, partial(fit, LOGISTIC, classes), fit_logistic, 1e-3),
        Row(f"ridge probe {size}", without_controls, partial(probe, numbers), fit_ridge, 0.03),
        Row(
            f"logistic probe {size}", without_controls, partial(probe, classes), fit_logistic, 0.03
        ),
    ]


def predict_by_sklearn(
    pipeline: Any, grid: Any, scoring: str | None, activations: Any, y: Any, folds: Any
) -> Any:
    """Predict held-out rows by scikit-learn's search of a grid inside every fold."""
    _, n_rounds, n_features = activations.shape
    x = activations.reshape(-1, n_features)
    groups = np.repeat(folds, n_rounds)
    predicted = np.zeros_like(y)
    for fold in range(int(folds.max()) + 1):
        train = groups != fold
        search = GridSearchCV(pipeline, grid, scoring=scoring, cv=GroupKFold(4))
        search.fit(x[train], y[train], groups=groups[train])
        predicted[~train] = search.predict(x[~train])
    return predicted


ROWS: dict[str, Callable[[], list[Row]]] = {
    "rollout": rollout_rows,
    "gru": gru_rows,
    "sweep": sweep_rows,
    "probe": probe_rows,
}


def main(*names: str) -> None:
    """Print the table of these rows, or of all, a row as soon as it is measured."""
    unknown = set(names) - ROWS.keys()
    if unknown:
        sys.exit(f"no rows {', '.join(sorted(unknown))}; there are {', '.join(ROWS)}")
    torch.set_num_threads(1)
    packages = ("torch", "numpy", "scikit-learn", "transformer-lens")
    print(", ".join(f"{name} {version(name)}" for name in packages))
    for name in names or ROWS:
        for row in ROWS[name]():
            print(pd.Series(measure(row)).to_json(double_precision=9), flush=True)
