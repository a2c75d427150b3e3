"""Every causal table of one model: patching, alignment, steering and circuits, each with its controls.

The same tables for handwired and learned models, so that they can be laid side by side. The hypothesis they test is the
algorithm that the model should run: for a handwired model its own, for one trained on expert advice the Bayes predictor
of the uniform regime, for one trained on Q-learning the tabular algorithm. ``interp patch MODEL --tables`` writes them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from interp.errors import require
from interp.files import write_atomic
from interp.interventions.ablation import CircuitScorer, ablate, evaluate, faithfulness_curve
from interp.interventions.alignment import align
from interp.interventions.attribution import attribute
from interp.interventions.carriers import Claim, carriers, claims, fitted_decoder
from interp.interventions.causal import CausalModel, bayes, q_learning, weighted_majority
from interp.interventions.corruptions import CORRUPTIONS
from interp.interventions.pairs import prepare
from interp.interventions.patching import sweep
from interp.interventions.pruning import smallest
from interp.interventions.steering import fitted_direction, steer
from interp.tasks.experts.layout import ExpertRound
from interp.tasks.qlearning.layout import QLearningRound
from interp.model.rollout import rollout
from interp.model.transformer import HookedLatentTransformer
from interp.tasks import experts, mdp

N_PARTS = 5
N_DECODED = 256
"""Episodes that a learned model's state decoder is fitted on."""
TOLERANCE = 0.1
"""How far from 1 the faithfulness of the circuit that is evaluated may be."""


def hypothesis(model: HookedLatentTransformer) -> CausalModel:
    """The algorithm that a model is held against."""
    given = dict(model.config.origin.get("arguments", {})) if len(model.state_map) else {}
    if model.layout.task == "qlearning":
        return q_learning(given.get("alpha", 0.1), given.get("gamma", 0.9))
    return weighted_majority(given["log_gamma"]) if "log_gamma" in given else bayes()


def sample(model: HookedLatentTransformer, n_episodes: int, n_rounds: int, seed: int) -> Any:
    """Episodes of the model's task and sizes."""
    layout = model.layout
    if isinstance(layout, ExpertRound):
        return experts.sample(n_episodes, n_rounds, layout.n_experts, seed=seed)
    assert isinstance(layout, QLearningRound)
    sizes, rates = (layout.n_states, layout.n_actions), hypothesis(model).parameters
    return mdp.sample(n_episodes, n_rounds, *sizes, seed=seed, alpha=rates["alpha"], gamma=rates["gamma"])


def patching_table(model: HookedLatentTransformer, episodes: Any, t: int) -> pd.DataFrame:
    """Every site under every corruption of the task, read where it first shows."""
    frames = []
    for record in CORRUPTIONS.values():
        if model.layout.task in record.tasks:
            found = sweep(model, *record.build(episodes, t), t, read=t + record.delay)
            frames.append(found.to_frame().assign(corruption=record.key))
    return pd.concat(frames, ignore_index=True)


def interchange_table(
    model: HookedLatentTransformer, episodes: Any, other: Any, t: int, seed: int, given: Sequence[Claim] | None = None
) -> pd.DataFrame:
    """Which places carry which variables of the algorithm, with controls.

    Args:
        given: claims to test; whole activations where the variables could be when None.
    """
    causal, decode = hypothesis(model), None
    if not len(model.state_map):
        known, near = sample(model, N_DECODED, t + 3, seed + 2), slice(max(t - 4, 0), t + 3)
        held = causal.run(causal.inputs(known))[causal.memory]
        decode = fitted_decoder(rollout(model, known).latents[:, near], held[:, near])
    found = claims(model, causal) if given is None else given
    return carriers(model, episodes, other, causal, found, rounds=recent(t), decode=decode, seed=seed)


def recent(t: int) -> slice:
    """The rounds at which pairs are made: ``t`` and the four before it."""
    return slice(max(t - 4, 0), t + 1)


def alignment_table(model: HookedLatentTransformer, episodes: Any, other: Any, t: int, seed: int) -> pd.DataFrame:
    """Learned subspaces of what the algorithm holds and predicts, at the places where they should be, with controls."""
    causal, last = hypothesis(model), model.config.n_layers - 1
    if model.layout.task == "experts":
        n = model.layout.n_positions // 2 - 2
        cases = [
            (causal.memory, "embed@<z>", n),
            (causal.memory, f"resid_post[{max(last - 1, 0)}]@p?", n),
            ("prediction", f"resid_post[{last}]@p?", 1),
            (causal.memory, "embed@<w>", 1),  # a place that cannot hold it
        ]
    else:
        n = model.layout.n_outputs
        cases = [
            ("q_next", f"resid_post[{max(last - 1, 0)}]@Select", n),
            ("choice", f"resid_post[{last}]@Select", n),
            ("choice", "embed@<BOS>", 1),
        ]
    rounds = recent(t)
    frames = [
        align(model, episodes, other, causal, variable, site, rank=rank, rounds=rounds, epochs=15, lr=3e-2, seed=seed)
        for variable, site, rank in cases
    ]
    return pd.concat([found.to_frame() for found in frames], ignore_index=True)


def steering_table(model: HookedLatentTransformer, episodes: Any, t: int, seed: int) -> pd.DataFrame:
    """Dose-response of one expert's weight, or of one action's values, against the algorithm and random directions."""
    causal = hypothesis(model)
    run = rollout(model, episodes)
    held = causal.run(causal.inputs(episodes))[causal.memory]
    change = np.zeros(held.shape[2:])
    # Values of non-negative rewards are never negative, so a table is steered upwards only.
    change[..., 0], doses = (
        (1.0, (-4, -2, -1, 0, 1, 2, 4)) if model.layout.task == "experts" else (0.2, (0, 0.5, 1, 2, 4))
    )
    direction = None
    if not len(model.state_map):
        direction = fitted_direction(run.latents[:, :-1], held, change)
    # Raising the first expert's weight raises its own vote; raising the first action's values raises that action.
    outcome = episodes.advice[:, t, 0] if model.layout.task == "experts" else 0
    options: dict[str, Any] = {"direction": direction, "outcome": outcome, "doses": doses, "seed": seed}
    found = steer(model, episodes, t, change, causal, **options)
    return found.to_frame()


def circuit_tables(model: HookedLatentTransformer, episodes: Any, t: int, seed: int) -> dict[str, pd.DataFrame]:
    """Edges by EAP-IG, faithfulness against size, the smallest faithful circuit beside random ones, single ablations.

    Raises:
        InputError: a model with hard attention, which has no gradient.
    """
    require(
        all(rule == "softmax" for rules in model.config.attention_rules for rule in rules),
        f"{model.config.name!r} has hard attention, which has no gradient; give its softmax-only variant, "
        "circuits.differentiable(model)",
    )
    pair = prepare(model, *CORRUPTIONS["swap-latents"].build(episodes, t), t)
    scorer, attributed = CircuitScorer(pair), attribute(pair)
    curve = faithfulness_curve(scorer, attributed.edges, seed=seed)
    areas = {"cpr": curve.cpr, "cmd": curve.cmd, "random_cpr": curve.random_cpr, "random_cmd": curve.random_cmd}
    kept = smallest(scorer, attributed.edges, TOLERANCE)
    found = evaluate(scorer, kept, n_random=10, n_sets=3, seed=seed)
    nodes = [ablate(CircuitScorer(pair, ablation=how)) for how in ("resample", "mean", "zero")]
    edges = attributed.to_frame()
    return {
        "edges": edges.assign(kept=(edges["source"] + " -> " + edges["destination"]).isin(found.edges)),
        "faithfulness": curve.to_frame().assign(**areas),
        "circuit": found.to_frame(),
        "ablation": pd.concat(nodes, ignore_index=True),
    }


def tables(
    model: HookedLatentTransformer,
    t: int = 20,
    *,
    smooth: HookedLatentTransformer | None = None,
    n_episodes: int = 64,
    seed: int = 0,
    done: Callable[[int], None] = lambda steps: None,
) -> dict[str, pd.DataFrame]:
    """Every table, by name.

    Args:
        t: the round looked at, from 1 on (it needs a history).
        smooth: what stands for the model where edges are scored by gradients, which hard attention has none of:
            ``circuits.differentiable(model)``; the model itself when None.
        done: called with 1 after each of ``N_PARTS`` parts.
    """
    require(t >= 1, f"the round looked at needs a history: give a round >= 1, got {t}")
    episodes, other = (sample(model, n_episodes, t + 3, s) for s in (seed, seed + 1))
    found = {"patching": patching_table(model, episodes, t)}
    done(1)
    found["interchange"] = interchange_table(model, episodes, other, t, seed)
    done(1)
    found["alignment"] = alignment_table(model, episodes, other, t, seed)
    done(1)
    found["steering"] = steering_table(model, episodes, t, seed)
    done(1)
    found |= circuit_tables(smooth or model, episodes, t, seed)
    done(1)
    return found


def write(found: dict[str, pd.DataFrame], folder: Path) -> list[Path]:
    """One CSV per table."""
    return [
        write_atomic(folder / f"{name}.csv", lambda path, frame=frame: frame.to_csv(path, index=False))  # type: ignore
        for name, frame in found.items()
    ]
