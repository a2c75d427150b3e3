"""The paper's figures on models of expert advice: weights, robustness to good and to correlated experts, attention."""

from __future__ import annotations

import numpy as np
import pandas as pd
from scipy import special

from interp.model.rollout import rollout
from interp.tasks.experts import sample
from interp.tasks.experts.evaluation import by_regime
from interp.tasks.experts.evaluation.attention import attention_to_experts
from reports import figures, panels
from reports.blocks import Figure, Prose, Table
from reports.evaluation import SHOWN
from reports.page import Section
from reports.paper import Here, titled
from reports.part import Context, Part, learned
from reports.parts import variants
from reports.parts.state import Held
from reports.parts.variants import Sweep

GOOD = ("1-high-quality", "2-high-quality", "3-high-quality")
CORRELATED = ("correlated-0.3", "correlated-0.7", "correlated-0.9")
N_EPISODES = 48
"""Episodes of every regime, where the evaluation of the whole report is not at hand."""
ATTENDED = 24
"""Episodes that attention is averaged over."""

HERE = {
    "1": Here("regret", "the picture of attention is under Attention; regret is never clipped"),
    "5": Here("weights", "one episode; the largest difference is printed"),
    "7": Here("regret", "as figure 1"),
    "8": Here("robustness", "intervals over episodes; Bayes and the oracle added; a high-quality expert is U[.9, 1]"),
    "9": Here("attention-to-experts", "experts are ranked by accuracy; also over rounds, and with the latent cut"),
}


SWEEPS = (Sweep("eta", "inverse temperature η", (10.0, 20.0, 30.0, 40.0, 60.0, 80.0)),)


def parts() -> tuple[Part, ...]:
    """The parts, in page order; attention and robustness are of a learned model."""
    return (
        Part("weights", "Weights as shares", weights, draw_weights),
        variants.part(("R", "P"), SWEEPS, ((1,), (2,), (4,), (8,), (16,), (32,))),
        Part(
            "robustness",
            "Good experts, correlated experts, every regime",
            robustness,
            draw_robustness,
            learned,
            slow=True,
        ),
        Part("attention-to-experts", "Attention to each expert", attend, draw_attention, learned),
    )


# Weights.


def weights(context: Context) -> Held:
    """The log-weights of the part "state" as shares of the whole weight: what Weighted Majority votes by."""
    held: Held = context.result("state")
    state, reference = (special.softmax(np.asarray(x, np.float64), axis=-1) for x in (held.state, held.reference))
    return Held(held.variable, state, reference, held.labels)


def draw_weights(held: Held, context: Context) -> Section:
    """The shares over rounds, of the model on the algorithm's."""
    drawn = figures.trajectories(held.state, held.reference, held.labels, ylabel="share of the weight")
    largest = float(np.abs(held.state - held.reference).max())
    source = "read from the latent" if context.handwired else "decoded from the latent by a probe"
    text = (
        f"Each expert's share of the whole weight in episode {context.shown}, {source} (thin) and of the algorithm "
        f"(wide and pale); largest difference {largest:.2g}."
    )
    caption = titled("5", text) if context.handwired else text
    return Section("Weights as shares", [Figure(drawn, "Shares of the weight over rounds", caption)])


# Robustness.


def robustness(context: Context) -> pd.DataFrame:
    """Regret curves of the model and of baselines: of the evaluation where this report has it, else of six regimes."""
    if "elsewhere" in context.keys:
        curves: pd.DataFrame = context.result("elsewhere").tables["regret_curves"]
        return curves
    regimes = [name for name in (*GOOD, *CORRELATED) if name in by_regime.fitting_regimes(context.model)]
    return by_regime.evaluate(context.model, regimes, n_episodes=N_EPISODES, seed=context.seed).curves()


def draw_robustness(curves: pd.DataFrame, context: Context) -> Section:
    """By number of good experts, by correlation, then every regime in one figure."""
    frame = curves[curves["key"].isin(SHOWN)].rename(columns={"key": "algorithm", "regret": "mean"})
    last = frame[frame["round"] == frame["round"].max()]
    final = last.pivot(index="regime", columns="algorithm", values="mean").reindex(list(dict.fromkeys(frame["regime"])))
    keys = [key for key in SHOWN if key in final]
    final = final[keys].rename(columns=lambda key: str(key).replace("_", " ")).reset_index().rename_axis(columns=None)
    text = "Regret over rounds, with 95 % intervals over episodes."
    blocks: list[object] = [
        Prose(
            "Mistakes beyond those of the best expert, never clipped: a predictor that combines experts can go below "
            "zero. With several good experts there is little to tell them apart by; correlated experts carry less "
            "information than their number suggests, which the Bayes predictor of independent experts does not know."
        )
    ]
    for regimes, number, title in ((GOOD, "8, top", "good experts"), (CORRELATED, "8, bottom", "correlated experts")):
        here = _thinned(frame[frame["regime"].isin(regimes)])
        if len(here):
            picture = panels.curves(here, by="regime", ylabel="regret (mistakes)")
            blocks.append(Figure(picture, f"Regret with {title}", titled(number, text)))
    if frame["regime"].nunique() > len(GOOD) + len(CORRELATED):
        plain = _thinned(frame[frame["algorithm"] != "follow_previous_winners"]).drop(columns=["low", "high"])
        every = panels.curves(plain, by="regime", ylabel="regret (mistakes)", columns=4, height=1.5)
        said = "Mean regret over rounds in every regime, on the same axes; intervals are in the tables above."
        blocks.append(Figure(every, "Regret in every regime", said, plain))
    return Section(
        "Good experts, correlated experts, every regime",
        [*blocks, Table(final, "Regret after the last round", collapsed=True)],
    )


def _thinned(frame: pd.DataFrame) -> pd.DataFrame:
    """Every fourth round, and the names that the first regime gives: enough for a small panel."""
    keep = (frame["round"] % 4 == 0) | (frame["round"] == 1)
    names = frame.groupby("algorithm")["name"].first().str.replace(r", best eta.*", ", best η", regex=True)
    return frame[keep].assign(name=frame["algorithm"].map(names))


# Attention.


def attend(context: Context) -> pd.DataFrame:
    """The share of attention of the prediction's and the update's position, by layer and by moment."""
    episodes = sample(ATTENDED, context.n_rounds, context.sizes["n_experts"], seed=context.seed + 2)
    run = rollout(context.model, episodes)
    last = context.n_rounds - 1
    moments = sorted({0, 5, 10, last // 4, last // 2, 3 * last // 4, last} & set(range(last + 1)))
    frames = [
        attention_to_experts(context.model, episodes, rounds=[t], seed=context.seed, run=run).to_frame().assign(round=t)
        for t in moments
    ]
    return pd.concat(frames, ignore_index=True)


def draw_attention(frame: pd.DataFrame, context: Context) -> Section:
    """Over the layers after the last round, then over rounds in each layer."""
    mean = frame[frame["head"] == "mean"].assign(layer=frame["layer"] + 1)
    readers = {"p?": "the prediction reads", "w?": "the update reads"}
    shown = mean.rename(columns={"target": "algorithm", "estimate": "mean"})
    last = shown[shown["round"] == shown["round"].max()].assign(panel=shown["reader"].map(readers))
    over_layers = panels.curves(last, by="panel", x="layer", ylabel="share of attention", columns=2, whole_x=True)
    predicts = shown[shown["reader"] == "p?"].assign(panel="layer " + shown["layer"].astype(str))
    over_rounds = panels.curves(predicts, by="panel", ylabel="share of attention", columns=4, height=1.8)
    table = last[["panel", "layer", "algorithm", "mean", "without_history"]]
    names = {"panel": "position", "algorithm": "what is read", "mean": "share", "without_history": "latent cut"}
    text = f"Mean over heads and {ATTENDED} episodes; experts are ranked by their true accuracy, expert 1 the best."
    return Section(
        "Attention to each expert",
        [
            Prose(
                "The share of attention on the latent, on each expert (its two tokens together), and on the rest. "
                "Attention that tells experts apart must come from the latent: with the latent cut, none can."
            ),
            Figure(over_layers, "Attention by layer", titled("9", f"After the last round. {text}"), last),
            Figure(
                over_rounds,
                "Attention over rounds",
                f"What the prediction's position reads, over rounds. {text}",
                predicts,
            ),
            Table(
                table.rename(columns=names), "The same after the last round, and with the latent cut", collapsed=True
            ),
        ],
    )
