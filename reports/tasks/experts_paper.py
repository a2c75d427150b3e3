"""A model of expert advice as the paper shows it, and elsewhere than where it was trained."""

from __future__ import annotations

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
from reports.blocks import Figure, Prose, Table, claim, curves, pivoted, titled
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
_N_EPISODES = 48  # of every regime, where the evaluation of the whole report is not at hand
_ATTENDED = 24  # episodes that attention is averaged over


_ATTENTION = "Attention to each expert"
_ROBUSTNESS = "Good experts, correlated experts, every regime"
_SWEEPS = tuple(Sweep(**row) for row in _PROSE["sweeps"])


def parts() -> tuple[Part, ...]:
    """Return the parts, in page order; a handwired model needs only its weights and variants."""
    sizes = ((1,), (2,), (4,), (8,), (16,), (32,))
    return (
        Part(
            "elsewhere",
            "Other regimes and longer episodes",
            _evaluate,
            _draw_elsewhere,
            learned,
            _measure_elsewhere,
            slow=True,
        ),
        Part("weights", "Weights as shares", _get_state, _draw_weights),
        verification.variants(("R", "P"), _SWEEPS, sizes),
        Part("robustness", _ROBUSTNESS, _compute_regret, _draw_robustness, learned, slow=True),
        Part(
            "attention-to-experts",
            _ATTENTION,
            _attend,
            _draw_attention,
            learned,
            lacking=needing("pattern"),
        ),
    )


def _get_state(context: Context) -> Trajectory:
    """Return the log-weights over time, as the part "state" has them."""
    return context.result("state")


def _draw_weights(log_weights: Trajectory, context: Context) -> list[object]:
    """Draw the log-weights of the part "state" as shares of the whole weight: what Weighted Majority votes by."""
    shares = special.softmax(np.asarray(log_weights.state, np.float64), axis=-1)
    algorithm = special.softmax(np.asarray(log_weights.reference, np.float64), axis=-1)
    picture = figures.trajectories(
        shares, algorithm, log_weights.labels, ylabel="share of the weight"
    )
    largest = np.abs(shares - algorithm).max()
    source = "read from the latent" if context.exact else "decoded from the latent by a probe"
    text = (
        f"The shares of the weight differ from the algorithm's by at most {largest:.2g}. In episode "
        f"{context.shown}, thin lines are {source}, and wide pale ones are the algorithm's."
    )
    caption = titled("5", text) if context.compiled else text
    return [Figure(picture, "Shares of the weight over rounds", caption)]


def _compute_regret(context: Context) -> pd.DataFrame:
    """Return regret curves of the model and baselines: of the evaluation if this report has it, or of six regimes."""
    if "elsewhere" in context.keys:
        return pd.DataFrame(context.result("elsewhere").tables["regret_curves"])
    fitting = by_regime.fitting_regimes(context.model)
    regimes = [name for name in (*_GOOD, *_CORRELATED) if name in fitting]
    tables = by_regime.evaluate(context.model, regimes, n_episodes=_N_EPISODES, seed=context.seed)
    return pd.DataFrame(tables["regret_curves"])


def _draw_robustness(regret: pd.DataFrame, context: Context) -> list[object]:
    """Draw the regret with good and with correlated experts, and in every regime."""
    frame = regret[regret["key"].isin(SHOWN)]
    frame = frame.rename(columns={"key": "algorithm", "regret": "mean"})
    blocks: list[object] = [Prose(_PROSE["robustness"])]
    for regimes, name in ((_GOOD, "good"), (_CORRELATED, "correlated")):
        shown = _thin(frame[frame["regime"].isin(regimes)])
        if len(shown):
            blocks.append(curves(_PROSE["curves"][name], shown, of=regimes[-1]))
    if frame["regime"].nunique() > len(_GOOD) + len(_CORRELATED):
        shown = _thin(frame[frame["algorithm"] != "follow_previous_winners"])
        shown = shown.drop(columns=["low", "high"])
        of_model = shown[shown["algorithm"] == SHOWN[0]]
        worst = of_model.groupby("regime")["mean"].last().idxmax()
        blocks.append(curves(_PROSE["curves"]["every"], shown, of=str(worst), data=shown))
    final = pivoted(frame[frame["round"] == frame["round"].max()], "regime", "algorithm", "mean")
    final = final[["regime", *(key for key in SHOWN if key in final)]]
    final.columns = final.columns.str.replace("_", " ")
    blocks.append(Table(final, "Regret after the last round", collapsed=True))
    return blocks


def _thin(frame: pd.DataFrame) -> pd.DataFrame:
    """Return every fourth round, with the names of the first regime: enough for a small panel."""
    names = frame.groupby("algorithm")["name"].first()
    names = names.str.replace(r", best eta.*", ", best η", regex=True)
    is_shown = (frame["round"] % 4 == 0) | (frame["round"] == 1)
    return frame[is_shown].assign(name=frame["algorithm"].map(names))


def _attend(context: Context) -> pd.DataFrame:
    """Return the share of attention of the prediction's and the update's position, by layer and by moment."""
    n_rounds, n_experts = context.n_rounds, context.sizes["n_experts"]
    episodes = sample(_ATTENDED, n_rounds, n_experts, seed=context.seed + 2)
    run = rollout(context.model, episodes)
    last = n_rounds - 1
    moments = {0, 5, 10, last // 4, last // 2, 3 * last // 4, last}
    frames = []
    for t in sorted(moments & set(range(n_rounds))):
        attention = attention_to_experts(
            context.model, episodes, seed=context.seed, run=run, rounds=[t]
        )
        frames.append(attention.to_frame().assign(round=t))
    return pd.concat(frames, ignore_index=True)


def _draw_attention(frame: pd.DataFrame, context: Context) -> list[object]:
    """Draw what the prediction and the update read, over layers and over rounds."""
    mean = frame[frame["head"] == "mean"]
    mean = mean.rename(columns={"target": "algorithm", "estimate": "mean"})
    last = mean[mean["round"] == mean["round"].max()]
    last = last.assign(panel=last["reader"].map(_READERS))
    of_prediction = mean[mean["reader"] == "p?"]
    predicts = of_prediction.assign(panel="layer " + of_prediction["layer"].astype(str))
    of_latent = last[(last["algorithm"] == "latent") & (last["reader"] == "p?")]
    share = of_latent.set_index("layer")["mean"]
    table = last[list(_ATTENTION_COLUMNS)].rename(columns=_ATTENTION_COLUMNS)
    by_layer = curves(
        _PROSE["curves"]["layers"],
        last,
        data=last,
        layer=share.idxmax(),
        most=share.max(),
        n=_ATTENDED,
    )
    over_rounds = curves(_PROSE["curves"]["rounds"], predicts, data=predicts, n=_ATTENDED)
    caption = "The same after the last round, and with the latent cut"
    text = Prose(_PROSE["attention"])
    return [text, by_layer, over_rounds, Table(table, caption, collapsed=True)]


_READERS = {"p?": "the prediction reads", "w?": "the update reads"}
_ATTENTION_COLUMNS = {
    "panel": "position",
    "layer": "layer",
    "algorithm": "what is read",
    "mean": "share",
    "without_history": "latent cut",
}


_N_ELSEWHERE = 32  # episodes of each regime, at most
_PICTURES = _PROSE["pictures"]


def _evaluate(context: Context) -> suite.Evaluation:
    """Evaluate the model in every regime, with the statements of the paper's appendix B."""
    model = context.model
    n_needed = suite.plan_of(model).min_episodes
    n_episodes = max(n_needed, min(context.n_episodes, _N_ELSEWHERE))
    return suite.evaluate(model, n_episodes=n_episodes, seed=context.seed, with_theory=True)


def _measure_elsewhere(result: suite.Evaluation, context: Context) -> list[Measure]:
    """Measure whether it needs its latent, and whether appendix B holds of it."""
    blank = untrained(context.model, context.seed)
    lost = _find_lost(result.tables["latent_control"])
    idle = _find_lost(latent_control(blank, context.episodes, context.seed).to_frame())
    controls = {UNTRAINED: Control(idle.estimate)}
    share = float(result.tables["theory"]["holds"].mean())
    return [
        claim("needs latent", lost, controls=controls),
        claim("appendix B", Interval(share, share, share)),
    ]


def _find_lost(control: pd.DataFrame) -> Interval:
    """Return the accuracy that is lost when the latent is cut."""
    row = control.set_index("quantity").loc["lost when cut"]
    return Interval(*row[["estimate", "low", "high"]].astype(float))


def _draw_elsewhere(result: suite.Evaluation, context: Context) -> list[object]:
    """Show the evaluation: its numbers, its pictures but those by regime, which follow below, and the statements."""
    n_episodes = result.settings["n_episodes"]
    caption = (
        f"Means over {n_episodes} episodes of each regime (half as many where episodes are long)"
    )
    blocks: list[object] = [
        Prose(_PROSE["elsewhere"]),
        Table(result.to_frame(), caption, collapsed=True),
        Table(result.tables["latent_control"], _PROSE["control"]),
    ]
    tables = dict(result.tables)
    tables.pop("regret_curves", None)
    for name, figure in draw_tables(tables).items():
        blocks.append(Figure(figure, _PICTURES[name], _PICTURES[name]))
    theory = "The statements of the paper's appendix B, as numbers"
    blocks.append(Table(result.tables["theory"], theory))
    return blocks
