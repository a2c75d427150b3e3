"""A model of expert advice as the paper shows it, and elsewhere than where it was trained."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd
from scipy import special

from interp.evaluation import suite
from interp.evaluation.experts import by_regime
from interp.evaluation.experts.latent import attention_to_experts, latent_control
from interp.model.rollout import rollout
from interp.model.transformer import untrained
from interp.results import figures
from interp.results.measure import UNTRAINED, Control, Measure
from interp.stats.intervals import Interval
from interp.tasks.experts import sample
from reports.blocks import Figure, Prose, Table, claim, curves, titled
from reports.evaluation import SHOWN
from reports.evaluation import draw as draw_tables
from reports.part import Context, Part, learned, needing
from reports.parts import verification
from reports.parts.probing import Trajectory
from reports.parts.verification import Sweep
from reports.tasks import prose

_PROSE = prose("experts")

_GOOD = ("1-high-quality", "2-high-quality", "3-high-quality")
_CORRELATED = ("correlated-0.3", "correlated-0.7", "correlated-0.9")
_N_EPISODES = (
    48  # episodes of every regime, where the evaluation of the whole report is not at hand
)
_ATTENDED = 24  # episodes that attention is averaged over


_ATTENTION, _ROBUSTNESS = (
    "Attention to each expert",
    "Good experts, correlated experts, every regime",
)
_SWEEPS = tuple(Sweep(**row) for row in _PROSE["sweeps"])


def parts() -> tuple[Part, ...]:
    """The parts, in page order; a handwired model needs only its weights and variants."""
    return (
        Part(
            "elsewhere",
            "Other regimes and longer episodes",
            lambda of: suite.evaluate(
                of.model,
                n_episodes=max(
                    suite.plan_of(of.model).min_episodes, min(of.n_episodes, _N_ELSEWHERE)
                ),
                seed=of.seed,
                with_theory=True,
            ),
            _draw_elsewhere,
            learned,
            _elsewhere_measures,
            slow=True,
        ),
        Part(
            "weights", "Weights as shares", lambda context: context.result("state"), _draw_weights
        ),
        verification.variants(("R", "P"), _SWEEPS, ((1,), (2,), (4,), (8,), (16,), (32,))),
        Part("robustness", _ROBUSTNESS, _robustness, _draw_robustness, learned, slow=True),
        Part(
            "attention-to-experts",
            _ATTENTION,
            _attend,
            _draw_attention,
            learned,
            lacking=needing("pattern"),
        ),
    )


def _draw_weights(log_weights: Trajectory, context: Context) -> list[object]:
    """Draw the log-weights of the part "state" as shares of the whole weight: what Weighted Majority votes by."""
    shares = replace(
        log_weights,
        state=special.softmax(np.asarray(log_weights.state, np.float64), axis=-1),
        reference=special.softmax(np.asarray(log_weights.reference, np.float64), axis=-1),
    )
    picture = figures.trajectories(
        shares.state, shares.reference, shares.labels, ylabel="share of the weight"
    )
    largest = np.abs(shares.state - shares.reference).max()
    source = "read from the latent" if context.exact else "decoded from the latent by a probe"
    text = (
        f"The shares of the weight differ from the algorithm's by at most {largest:.2g}. In episode "
        f"{context.shown}, thin lines are {source}, and wide pale ones are the algorithm's."
    )
    caption = titled("5", text) if context.compiled else text
    return [Figure(picture, "Shares of the weight over rounds", caption)]


def _robustness(context: Context) -> pd.DataFrame:
    """Regret curves of the model and of baselines: of the evaluation where this report has it, else of six regimes."""
    if "elsewhere" in context.keys:
        return pd.DataFrame(context.result("elsewhere").tables["regret_curves"])
    regimes = [
        name for name in (*_GOOD, *_CORRELATED) if name in by_regime.fitting_regimes(context.model)
    ]
    found = by_regime.evaluate(context.model, regimes, n_episodes=_N_EPISODES, seed=context.seed)
    return pd.DataFrame(found["regret_curves"])


def _draw_robustness(found: pd.DataFrame, context: Context) -> list[object]:
    frame = found[found["key"].isin(SHOWN)].rename(columns={"key": "algorithm", "regret": "mean"})
    last = frame[frame["round"] == frame["round"].max()]
    final = last.pivot(index="regime", columns="algorithm", values="mean").reindex(
        list(dict.fromkeys(frame["regime"]))
    )
    keys = [key for key in SHOWN if key in final]
    final = (
        final[keys]
        .rename(columns=lambda key: str(key).replace("_", " "))
        .reset_index()
        .rename_axis(columns=None)
    )
    blocks: list[object] = [Prose(_PROSE["robustness"])]
    for regimes, name in ((_GOOD, "good"), (_CORRELATED, "correlated")):
        here = _thinned(frame[frame["regime"].isin(regimes)])
        if len(here):
            blocks.append(curves(_PROSE["curves"][name], here, of=regimes[-1]))
    if frame["regime"].nunique() > len(_GOOD) + len(_CORRELATED):
        plain = _thinned(frame[frame["algorithm"] != "follow_previous_winners"]).drop(
            columns=["low", "high"]
        )
        worst = plain[plain["algorithm"] == SHOWN[0]].groupby("regime")["mean"].last().idxmax()
        blocks.append(curves(_PROSE["curves"]["every"], plain, of=str(worst), data=plain))
    return [*blocks, Table(final, "Regret after the last round", collapsed=True)]


def _thinned(frame: pd.DataFrame) -> pd.DataFrame:
    """Every fourth round, and the names that the first regime gives: enough for a small panel."""
    keep = (frame["round"] % 4 == 0) | (frame["round"] == 1)
    names = (
        frame.groupby("algorithm")["name"]
        .first()
        .str.replace(r", best eta.*", ", best η", regex=True)
    )
    return frame[keep].assign(name=frame["algorithm"].map(names))


def _attend(context: Context) -> pd.DataFrame:
    """The share of attention of the prediction's and the update's position, by layer and by moment."""
    episodes = sample(
        _ATTENDED, context.n_rounds, context.sizes["n_experts"], seed=context.seed + 2
    )
    run = rollout(context.model, episodes)
    last = context.n_rounds - 1
    moments = sorted({0, 5, 10, last // 4, last // 2, 3 * last // 4, last} & set(range(last + 1)))
    attend = partial(attention_to_experts, context.model, episodes, seed=context.seed, run=run)
    return pd.concat(
        [attend(rounds=[t]).to_frame().assign(round=t) for t in moments], ignore_index=True
    )


def _draw_attention(frame: pd.DataFrame, context: Context) -> list[object]:
    readers = {"p?": "the prediction reads", "w?": "the update reads"}
    shown = frame[frame["head"] == "mean"].rename(
        columns={"target": "algorithm", "estimate": "mean"}
    )
    last = shown[shown["round"] == shown["round"].max()].assign(panel=shown["reader"].map(readers))
    predicts = shown[shown["reader"] == "p?"].assign(panel="layer " + shown["layer"].astype(str))
    table = last[["panel", "layer", "algorithm", "mean", "without_history"]]
    names = {
        "panel": "position",
        "algorithm": "what is read",
        "mean": "share",
        "without_history": "latent cut",
    }
    of_latent = last[(last["algorithm"] == "latent") & (last["reader"] == "p?")].set_index("layer")[
        "mean"
    ]
    most, drawn = (
        {"layer": of_latent.idxmax(), "most": of_latent.max(), "n": _ATTENDED},
        _PROSE["curves"],
    )
    return [
        Prose(_PROSE["attention"]),
        curves(drawn["layers"], last, data=last, **most),
        curves(drawn["rounds"], predicts, data=predicts, n=_ATTENDED),
        Table(
            table.rename(columns=names),
            "The same after the last round, and with the latent cut",
            collapsed=True,
        ),
    ]


_N_ELSEWHERE = 32  # episodes of each regime, at most
_PICTURES = _PROSE["pictures"]


def _elsewhere_measures(result: suite.Evaluation, context: Context) -> list[Measure]:
    control = result.tables["latent_control"].set_index("quantity")[["estimate", "low", "high"]]
    blank = latent_control(
        untrained(context.model, context.seed), context.episodes, context.seed
    ).to_frame()
    idle = float(blank.set_index("quantity")["estimate"]["lost when cut"])
    share = float(result.tables["theory"]["holds"].mean())
    return [
        claim(
            "needs latent",
            Interval(*control.loc["lost when cut"]),
            controls={UNTRAINED: Control(idle)},
        ),
        claim("appendix B", Interval(share, share, share)),
    ]


def _draw_elsewhere(result: suite.Evaluation, context: Context) -> list[object]:
    n_episodes = result.settings["n_episodes"]
    caption = (
        f"Means over {n_episodes} episodes of each regime (half as many where episodes are long)"
    )
    shown = {
        name: table for name, table in result.tables.items() if name != "regret_curves"
    }  # drawn by regime below
    blocks: list[object] = [
        Prose(_PROSE["elsewhere"]),
        Table(result.to_frame(), caption, collapsed=True),
        Table(result.tables["latent_control"], _PROSE["control"]),
    ]
    for name, figure in draw_tables(shown).items():
        blocks.append(Figure(figure, _PICTURES[name], _PICTURES[name]))
    theory = "The statements of the paper's appendix B, as numbers"
    blocks.append(Table(result.tables["theory"], theory))
    return blocks
