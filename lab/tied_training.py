"""Train the subjects of :mod:`lab.recipes`.

They imitate an algorithm, with interchanges tied to it::

    python -m lab.tied_training wma 0 FOLDER      # kind, seed; goes on with what FOLDER holds

Every checkpoint holds weights, moments and the step; episodes and pairs are a function of the seed and the step. One
thread: about a quarter of a CPU second a step for Weighted Majority.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from interp.model.checkpoints import save_checkpoint
from interp.model.transformer import HookedLatentTransformer
from interp.support.errors import require_known
from interp.support.files import write_json
from interp.training.muon import Muon, is_stack
from interp.training.runs import Progression, read_state, write_state
from lab import tying
from lab.recipes import Recipe, batch_of, recipes, truth
from lab.tying import Batch, Pairs, Tie


class Run:
    """One training run, which its folder remembers."""

    def __init__(self, recipe: Recipe, name: str, seed: int, folder: Path) -> None:
        self.recipe, self.name, self.seed, self.folder = recipe, name, seed, folder
        torch.manual_seed(seed)
        self.model = HookedLatentTransformer(recipe.model_config(name, seed))
        self.bases = tying.bases(recipe.ties, recipe.d_model, recipe.d_head, seed)
        parameters = dict(self.model.named_parameters())
        stacks = [p for key, p in parameters.items() if is_stack(key, p)]
        rest = [p for key, p in parameters.items() if not is_stack(key, p)]
        adam = torch.optim.AdamW(rest, recipe.lr, (0.9, 0.95), weight_decay=0.0)
        self.optimizers: list[torch.optim.Optimizer] = [adam, Muon(stacks, recipe.lr, 0.0)]
        self.step, self.seconds = 0, 0.0

    def losses(self, step: int) -> dict[str, Tensor]:
        """Divergences on the batch of a step: of predictions, of an interchange, and of what must not matter."""
        recipe = self.recipe
        rng = np.random.default_rng([self.seed, step])
        n_rounds = next(
            (rounds for start, rounds in reversed(recipe.curriculum) if step >= start),
            recipe.n_rounds,
        )
        batch = batch_of(recipe, self.model, recipe.batch, int(rng.integers(2**31)), n_rounds)
        taught = recipe.attends(batch.values, batch.layout) if step < recipe.attention_steps else {}
        (logits, latents), missed = tying.watched(self.model, batch, taught)
        batch = replace(batch, latents=latents)
        losses = {
            "attention": missed,
            "task": tying.divergence(
                self.model, logits, recipe.algorithm.distribution(batch.values)
            ),
        }
        for i in rng.permutation(len(recipe.ties))[: recipe.draws]:
            tie = recipe.ties[i]
            chosen = tying.masks(tie, recipe.batch, rng)
            within = tying.inside(tie, self.bases, chosen)
            losses[f"tie {i}"] = self.compared(batch, tie, chosen, within, rng)
        k = int(rng.integers(len(recipe.ties) + 1))
        for strict in dict.fromkeys([k, *([len(recipe.ties)] if recipe.unused_at else [])]):
            losses[f"strict {strict}"] = self.compared(
                batch, None, chosen, self.untied(strict, rng), rng
            )
        return losses

    def untied(self, k: int, rng: np.random.Generator) -> dict[str, Tensor | None]:
        """What must not matter: the rest of the k-th tied sites, and after these some of the idle heads.

        Heads that are only ever set together learn to be harmless together: one of them alone still mattered.
        """
        if k < len(self.recipe.ties):
            return {**tying.outside(self.recipe.ties[k], self.bases)}
        sites = self.recipe.unused
        some = rng.permutation(len(sites))[: rng.integers(1, len(sites) + 1)]
        change = None if self.recipe.loud == 1 else self.recipe.loud * torch.eye(self.recipe.d_head)
        return {sites[i]: change for i in some}

    def compared(
        self, batch: Batch, tie: Tie | None, chosen: Any, projections: Any, rng: np.random.Generator
    ) -> Tensor:
        """The divergence from the counterfactual after an intervention, over random pairs."""
        recipe = self.recipe
        pairs = Pairs.drawn(len(chosen), batch.rounds.tokens.shape[1], recipe.horizon, rng)
        wanted = tying.counterfactual(
            recipe.algorithm, batch.values, pairs, tie, chosen, recipe.horizon
        )
        scores = tying.swapped(self.model, batch, pairs, projections, recipe.horizon)
        return tying.divergence(self.model, scores, wanted)

    def advance(self) -> dict[str, float]:
        """One optimizer step; the losses before it. Warm-up, then a constant rate, falling to 0 in the second half."""
        losses = self.losses(self.step)
        recipe, late = self.recipe, self.step - self.recipe.steps
        rate = recipe.lr * min(1.0, (self.step + 1) / 50, 2 * (1 - self.step / recipe.steps))
        if late >= 0:
            rate = recipe.lr / 3 * (1 - late / recipe.polish)
        sum(losses.values(), torch.zeros(())).backward()
        size = torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate
            if size.isfinite():  # a state that is not normalised may overflow in a long episode
                optimizer.step()
            optimizer.zero_grad()
        self.step += 1
        return {key: float(loss.detach()) for key, loss in losses.items()}

    def save(self) -> None:
        """Write the whole state to the folder, in one rename."""
        progress = Progression(step=self.step, seconds=self.seconds)
        write_state(
            self.folder,
            progress,
            {"name": self.name, "seed": self.seed},
            self.model,
            self.optimizers,
        )

    def resume(self) -> None:
        """Take up the state in the folder, if it holds one."""
        state = read_state(self.folder)
        if state is not None:
            self.step, self.seconds = state.progress.step, state.progress.seconds
            state.load_weights(self.model)
            state.load_moments(self.model, self.optimizers)


def train(
    kind: str, seed: int, folder: str | Path, *, steps: int | None = None, every: int = 100
) -> Path:
    """Train, or go on training, in ``folder``; the folder of the model.

    Args:
        kind: key of :func:`recipes`.
        seed: of the weights, the tied directions and the episodes.
        every: steps between two checkpoints, each with a line of mean losses in ``losses.jsonl``.
    """
    known, folder = recipes(), Path(folder)
    require_known("trained subject", kind, known)
    recipe = known[kind] if steps is None else replace(known[kind], steps=steps)
    run = Run(recipe, f"{kind} seed {seed}", seed, folder)
    run.resume()
    seen: dict[str, list[float]] = {}
    last = recipe.steps + recipe.polish
    while run.step < last:
        started = time.process_time()
        for key, loss in run.advance().items():
            seen.setdefault(key, []).append(loss)
        run.seconds += time.process_time() - started
        if run.step % every == 0 or run.step == last:
            run.save()
            means = {key: float(np.mean(losses)) for key, losses in sorted(seen.items())}
            record = {"step": run.step, "cpu_s": round(run.seconds, 1), **means}
            with open(folder / "losses.jsonl", "a", encoding="utf-8") as stream:
                stream.write(json.dumps(record) + "\n")
            seen = {}
    if not (folder / "model").exists():
        save_checkpoint(run.model.eval(), folder / "model")
        write_json(folder / "model" / "truth.json", truth(kind, seed))
    return folder / "model"


if __name__ == "__main__":
    torch.set_num_threads(1)
    train(
        sys.argv[1],
        int(sys.argv[2]),
        sys.argv[3],
        steps=int(sys.argv[4]) if len(sys.argv) > 4 else None,
    )
