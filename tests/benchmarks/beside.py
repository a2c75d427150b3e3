"""CPU seconds beside what a user would write instead, on the same work, one thread.

The numbers of both are compared first; then pairs run back to back, and the medians are printed.
``of_ours`` is the median over pairs of their CPU time in ours: above 1, ours is faster. Run with
``python -m tests.benchmarks beside`` or, for some rows, ``python -m tests.benchmarks beside gru``.
Rows: plain torch, scipy, scikit-learn, NumPy and TransformerLens always; nnsight and pyvene if installed.
"""

from __future__ import annotations

import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from itertools import count
from typing import Any

import numpy as np
import pandas as pd
import torch
from scipy.optimize import minimize
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import GridSearchCV, GroupKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import Tensor
from torch.nn import functional
from transformer_lens import patching as lens_patching

import interp
import probes
from interp.choices.link import HALF_CHI2
from interp.choices.optimum import PlayerFits
from interp.choices.scoring import ChoiceData
from interp.interventions import patching, sites
from interp.interventions.pairs import prepare
from interp.machines.recurrent import RoundEncoder
from interp.model.bound import bind
from interp.stats import refit
from interp.tasks import bandit, experts
from interp.tasks.bandit import algorithms
from interp.tasks.experts import analysis as corruptions
from interp.training.batches import RoundsLoss, encode
from probes.estimators import LOGISTIC
from probes.linear import ALPHAS, RIDGE

N_PAIRS = 7
GAIN = 0.5  # of the handwired model, by default
ROUND = 20
Numbers = list[Any]


@dataclass(frozen=True)
class Row:
    """One piece of work, done by this package and by another way.

    Attributes:
        work, tool: names of the work and of the other way.
        ours, theirs: do the work, and return numbers in the same order.
        tolerance: how far the numbers may differ.
        n_pairs: how often both are run.
    """

    work: str
    tool: str
    ours: Callable[[], Numbers]
    theirs: Callable[[], Numbers]
    tolerance: float
    n_pairs: int = N_PAIRS


def measure(row: Row) -> dict[str, Any]:
    """Compare the numbers, which also warms both up; then return the medians of pairs of CPU seconds."""
    gap = largest_gap(row.ours(), row.theirs())
    assert gap <= row.tolerance, f"{row.work}: {row.tool} differs by {gap:.3g}"
    pairs = [(cpu_seconds(row.ours), cpu_seconds(row.theirs)) for _ in range(row.n_pairs)]
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


class HandWritten:
    """A transformer with replaced latents written out for speed: fused attention and normalisation.

    Attributes:
        layout: the token layout of the episodes.
        tokens: token ids ``[episode, round, pos]``.
    """

    def __init__(self, model: Any, episodes: Any) -> None:
        self.model = model
        self.layout = model.layout.fit(episodes)
        self.tokens = model.prepare(self.layout.encode_with_missing(episodes)).tokens
        n_positions = self.tokens.shape[-1]
        self.codes = model.W_pos[model.position_ids[n_positions, :n_positions]]
        self.blocks = []
        for block in model.blocks:
            attn = block.attn
            weights = (attn.W_Q, attn.W_K, attn.W_V)
            joined = [weight.transpose(0, 1).flatten(1) for weight in weights]
            biases = [bias.flatten() for bias in (attn.b_Q, attn.b_K, attn.b_V)]
            self.blocks.append((torch.cat(joined, 1), torch.cat(biases), attn, block.mlp))

    def initial(self) -> Tensor:
        """The latents before the first round."""
        return self.model.initial(len(self.tokens), self.layout)

    def normalize(self, resid: Tensor) -> Tensor:
        """LayerNorm without weights."""
        return functional.layer_norm(resid, resid.shape[-1:], eps=self.model.cfg.eps)

    def run_round(self, t: int, latents: Tensor) -> tuple[Tensor, Tensor, list[Tensor]]:
        """The logits of a round, the latents after it, and the stream after each block."""
        model, layout = self.model, self.layout
        n_episodes, _, n_positions = self.tokens.shape
        first = layout.latent_positions[0]
        resid = model.W_E[self.tokens[:, t]].clone()
        resid[:, first : first + latents.shape[1]] = latents
        resid = resid + self.codes
        after_blocks = []
        for weight, bias, attn, mlp in self.blocks:
            parts = self.normalize(resid) @ weight + bias
            shape = (n_episodes, n_positions, 3, model.config.n_heads, -1)
            q, k, v = parts.view(shape).permute(2, 0, 3, 1, 4)
            scale = 1 / model.config.scale
            z = functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale)
            z = z.transpose(1, 2).reshape(n_episodes, n_positions, -1)
            resid = resid + z @ attn.W_O.flatten(0, 1) + attn.b_O
            hidden = mlp.act(self.normalize(resid) @ mlp.W_in + mlp.b_in)
            resid = resid + hidden @ mlp.W_out + mlp.b_out
            after_blocks.append(resid)
        read = self.normalize(resid)
        logits = model.unembed(read[:, layout.predict_position])
        update = model.update(read[:, layout.update_position], n_positions)
        return logits, update.unsqueeze(1), after_blocks


@torch.no_grad()
def run_by_hand(model: Any, episodes: Any, cached: int) -> Numbers:
    """Predictions, latents and the stream after the first blocks, by a hand-written transformer."""
    written = HandWritten(model, episodes)
    n_episodes, n_rounds, n_positions = written.tokens.shape
    latents = written.initial()
    predictions = torch.empty(n_episodes, n_rounds)
    carried = torch.empty(n_episodes, n_rounds + 1, *latents.shape[1:])
    carried[:, 0] = latents
    width = model.config.d_model
    cache = [torch.empty(n_episodes, n_rounds, n_positions, width) for _ in range(cached)]
    for t in range(n_rounds):
        logits, latents, after_blocks = written.run_round(t, latents)
        for stored, resid in zip(cache, after_blocks, strict=False):
            stored[:, t] = resid
        predictions[:, t] = model.read_prediction(logits, n_positions)
        carried[:, t + 1] = latents
    return [predictions, carried, *cache]


@torch.no_grad()
def run_modules(model: Any, episodes: Any, names: list[str]) -> Numbers:
    """The model's own modules round by round, with hooks that write to tensors made before."""
    layout = model.layout.fit(episodes)
    encoded = model.prepare(layout.encode_with_missing(episodes))
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
            prediction, latents = model.step(latents, encoded.take_round(t))
            predictions.append(prediction)
            carried.append(latents)
    return [torch.stack(predictions, 1), torch.stack(carried, 1), *(cache[name] for name in names)]


def gru_rows(n_episodes: int = 64, n_rounds: int = 100) -> list[Row]:
    """Rollouts of ``wma-gru`` beside a bare loop over its layers, and one call of them."""
    machine = interp.load("wma-gru")
    episodes = experts.sample(n_episodes, n_rounds, 4, seed=0)
    layout = machine.layout.fit(episodes)
    encoder, module = RoundEncoder(layout), machine.module

    def ours() -> Numbers:
        run = interp.rollout(machine, episodes)
        return [run.predictions, run.latents[:, 1:, 0]]

    @torch.no_grad()
    def bare(whole: bool) -> Numbers:
        encoded = machine.prepare(layout.encode_with_missing(episodes))
        rows = encoded.rows(range(n_rounds))
        encoded = module.hear(encoder.after(rows)).unflatten(0, (n_episodes, n_rounds))
        question = encoder.before(rows).unflatten(0, (n_episodes, n_rounds))
        state = machine.initial(n_episodes, layout)[:, 0]
        inputs = encoded.transpose(0, 1).contiguous()
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
    """Patching of every layer and position at one round, beside plain hooks and other tools."""
    model = interp.load("wma-learned")
    episodes = experts.sample(n_episodes, ROUND + 1, 4, seed=0)
    pair = prepare(model, *corruptions.exchange_history(episodes, ROUND), ROUND)
    components = ("resid_pre", "attn_out")
    cells = [cell for name in components for cell in sites.sites(model, pair.layout, name)]
    bound = bind(model, pair.clean, pair.corrupted, rounds=ROUND)
    clean, corrupted = bound.tokens
    rises = pair.clean.predictions[:, ROUND] > pair.corrupted.predictions[:, ROUND]

    def ours() -> Numbers:
        effects = patching.patch_pair(pair, sites=cells, metric="probability")
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

    def each_site(cache: Any) -> Iterator[tuple[int, str, int, Tensor]]:
        for name in components:
            for layer in range(model.config.n_layers):
                activation = cache[f"blocks.{layer}.hook_{name}"]
                for position in range(pair.layout.n_positions):
                    yield layer, f"hook_{name}", position, activation[:, position]

    @torch.no_grad()
    def by_hooks() -> Numbers:
        _, cache = bound.run_with_cache(clean)
        means = []
        for layer, name, position, source in each_site(cache):

            def put(module: Any, args: Any, output: Tensor, p=position, s=source) -> Tensor:
                return with_patch(output, p, s)

            handle = getattr(model.blocks[layer], name).register_forward_hook(put)
            means.append(score(bound(corrupted)).mean())
            handle.remove()
        return [torch.stack(means)]

    @torch.no_grad()
    def by_nnsight() -> Numbers:
        from nnsight import NNsight

        _, cache = bound.run_with_cache(clean)
        traced = NNsight(bound)
        means = []
        for layer, name, position, source in each_site(cache):
            with traced.trace(corrupted):
                getattr(traced.blocks[layer], name).output[:, position] = source
                logits = traced.unembed.output.save()
            means.append(score(logits).mean())
        return [torch.stack(means)]

    @torch.no_grad()
    def by_pyvene() -> Numbers:
        import pyvene

        _, cache = bound.run_with_cache(clean)
        means = []
        for layer, name, position, source in each_site(cache):

            def put(base: Tensor, _: Any, p=position, s=source) -> Tensor:
                return with_patch(base, p, s)

            site = {"component": f"blocks[{layer}].{name}.output", "intervention": put}
            patched_model = pyvene.IntervenableModel([site], model=bound)
            _, logits = patched_model(base={"tokens": corrupted})
            means.append(score(logits).mean())
        return [torch.stack(means)]

    work = f"sweep of {len(cells)} sites, {n_episodes} episodes"
    tools = {"transformer-lens": by_lens, "nnsight": by_nnsight, "pyvene": by_pyvene}
    installed = {name: run for name, run in tools.items() if find_spec(name.replace("-", "_"))}
    rows = [Row(work, "plain hooks", ours, by_hooks, 1e-5)]
    for name, run in installed.items():
        rows.append(Row(work, f"{name} {version(name)}", ours, run, 1e-5))
    return rows


def with_patch(activation: Tensor, position: int, source: Tensor) -> Tensor:
    """A copy of an activation ``[row, pos, d]`` with another one at a position."""
    patched = activation.clone()
    patched[:, position] = source
    return patched


def training_rows(n_episodes: int = 64, n_rounds: int = 25) -> list[Row]:
    """Loss and gradient of a window of training, beside a hand-written loop over the rounds."""
    model = interp.load("wma-learned").requires_grad_(True)
    episodes = experts.sample(n_episodes, n_rounds, 4, seed=0)
    batch = encode(episodes, model.layout)
    rounds_loss = RoundsLoss(model, "own")
    matrix = model.blocks[0].attn.W_V

    def gradient_of(compute_loss: Callable[[], Tensor]) -> Numbers:
        model.zero_grad()
        loss = compute_loss()
        loss.backward()
        return [loss.detach(), matrix.grad.clone()]

    def by_hand() -> Tensor:
        written = HandWritten(model, episodes)
        latents = written.initial()
        losses = []
        for t in range(n_rounds):
            logits, latents, _ = written.run_round(t, latents)
            log_chances = logits[:, : written.layout.n_outputs].log_softmax(-1)
            losses.append(-(batch.targets[:, t] * log_chances).sum(-1).mean())
        return torch.stack(losses).mean()

    work = f"loss and gradient, wma-learned {n_episodes} x {n_rounds}"
    ours = partial(gradient_of, lambda: rounds_loss(batch)[0])
    return [Row(work, "hand-written torch", ours, partial(gradient_of, by_hand), 1e-4)]


def handwired_rows(n_episodes: int = 32, n_rounds: int = 100) -> list[Row]:
    """The handwired Weighted Majority beside the algorithm in NumPy."""
    return [_handwired_row(n, n_episodes, n_rounds) for n in (32, 64)]


def _handwired_row(n_experts: int, n_episodes: int, n_rounds: int) -> Row:
    machine = interp.load("wma-handwired", n_experts=n_experts)
    episodes = experts.sample(n_episodes, n_rounds, n_experts, seed=0)

    def by_numpy() -> Numbers:
        weights = np.ones((n_episodes, n_experts))
        chances = np.empty((n_episodes, n_rounds))
        for t in range(n_rounds):
            advice = episodes.advice[:, t]
            chances[:, t] = (weights * advice).sum(1) / weights.sum(1)
            is_right = advice == episodes.labels[:, t, None]
            weights = weights * np.exp(GAIN * is_right)
        return [chances]

    def ours() -> Numbers:
        return [interp.rollout(machine, episodes).predictions]

    size = f"wma-handwired of {n_experts} experts {n_episodes} x {n_rounds}"
    return Row(size, "the algorithm in NumPy", ours, by_numpy, 1e-12, n_pairs=3)


def choice_rows(n_players: int = 50, n_trials: int = 100) -> list[Row]:
    """Rescorla-Wagner fitted to each player's choices and to four parts of them, beside scipy.

    The losses of all choices are compared: scipy may find a worse optimum of a part.
    """
    player = algorithms.rescorla_wagner(0.3, 5.0)
    played = bandit.sample(n_players, n_trials, 2, "reversal", 0, player)
    data = ChoiceData(played, played.choices.astype(float), players=np.arange(n_players))
    families = {family.key: family for family in algorithms.families()}

    def ours() -> Numbers:
        return [PlayerFits(data, families[player.key]).solve().nats[:, 0]]

    def by_scipy() -> Numbers:
        nats = []
        for i in range(n_players):
            choices = played.choices[i].tolist()
            rewards = played.rewards[i].tolist()
            nats.append([fit_by_scipy(choices, rewards, mask[i]) for mask in data.masks])
        return [np.array(nats)[:, 0]]

    work = f"Rescorla-Wagner of {n_players} players x {n_trials}"
    tool = f"scipy {version('scipy')}, L-BFGS-B"
    return [Row(work, tool, ours, by_scipy, 0.01, n_pairs=1)]


def fit_by_scipy(choices: list[int], rewards: list[float], use: Any) -> float:
    """The least loss of one player's choices among two arms, in nats.

    A learning rate and an inverse temperature are fitted, and a lapse rate where it saves more than
    HALF_CHI2 nats.
    """
    scored = use.tolist()

    def nats(parameters: Any) -> float:
        rate, beta = parameters[:2]
        lapse = parameters[2] if len(parameters) > 2 else 0.0
        values = [0.0, 0.0]
        total = 0.0
        for choice, reward, is_scored in zip(choices, rewards, scored, strict=True):
            logit = beta * (values[choice] - values[1 - choice])
            chance = (1 - lapse) / (1 + math.exp(-logit)) + lapse / 2
            if is_scored:
                total -= math.log(chance)
            values[choice] += rate * (reward - values[choice])
        return total

    bounds = [(0.01, 1.0), (0.1, 40.0), (0.0, 0.99)]
    plain = minimize(nats, (0.3, 5.0), bounds=bounds[:2], method="L-BFGS-B")
    lapsing = minimize(nats, (*plain.x, 0.05), bounds=bounds, method="L-BFGS-B")
    return min(plain.fun, lapsing.fun + HALF_CHI2)


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
        total = refit.sum_squared_deviations(numbers.values, None, episode_index)
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
    "training": training_rows,
    "handwired": handwired_rows,
    "choices": choice_rows,
}


def main(*names: str) -> None:
    """Print the table of these rows, or of all, a row as soon as it is measured."""
    unknown = set(names) - ROWS.keys()
    if unknown:
        sys.exit(f"no rows {', '.join(sorted(unknown))}; there are {', '.join(ROWS)}")
    torch.set_num_threads(1)
    packages = ("torch", "numpy", "scipy", "scikit-learn", "transformer-lens")
    print(", ".join(f"{name} {version(name)}" for name in packages))
    for name in names or ROWS:
        for row in ROWS[name]():
            print(pd.Series(measure(row)).to_json(double_precision=9), flush=True)
