"""Everything that is measured of one model, as named tables: what ``interp evaluate`` writes.

``evaluate(model)`` runs the parts of this room that fit the model's task and gives each as a frame, with one record of
the settings. The numbers come from the parts; nothing is computed here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from rich.table import Table

from interp.tasks.experts import regret, theory
from interp.tasks.experts.calibration import calibration
from interp.tasks.experts.predictors import bayes
from interp.errors import require
from interp.tasks.experts.evaluation import by_regime as experts, lengths
from interp.tasks.qlearning.evaluation import playing as play, by_regime as qlearning, tables
from interp.evaluation.attention import attention_to_experts, round_attention
from interp.evaluation.controls import latent_control
from interp.tasks.qlearning.evaluation.discount import followed_discount
from interp.files import write_json, write_text
from interp.model.rollout import rollout
from interp.model.transformer import HookedLatentTransformer
from interp.provenance import provenance
from interp.tasks import experts as expert_tasks
from interp.tasks import mdp

Done = Callable[[int], None]
MINIMUM_EPISODES = 30
"""Tables are decoded by five folds of each of three sizes."""


@dataclass(frozen=True, eq=False)
class Evaluation:
    """All tables of one model.

    Attributes:
        tables: name -> tidy frame; "summary" is the one to print.
        settings: model, digest, seed, sizes, versions.
    """

    tables: dict[str, pd.DataFrame]
    settings: dict[str, Any] = field(repr=False)

    def to_frame(self) -> pd.DataFrame:
        """The summary."""
        return self.tables["summary"]

    def to_tables(self) -> list[Table]:
        """The summary, and the theory checks where there are any, for a terminal."""
        title = f"{self.settings['model']}, {self.settings['n_episodes']} episodes a regime"
        tables = [_table(title, self.tables["summary"])]
        return tables + ([_table("Appendix B", self.tables["theory"])] if "theory" in self.tables else [])

    def write(self, folder: str | Path) -> list[Path]:
        """One CSV per table and ``settings.json``, each written atomically.

        Raises:
            InputError: the folder cannot be written.
        """
        folder = Path(folder)
        paths = [write_text(folder / f"{name}.csv", frame.to_csv(index=False)) for name, frame in self.tables.items()]
        return [*paths, write_json(folder / "settings.json", self.settings)]


def _table(title: str, frame: pd.DataFrame) -> Table:
    table = Table(title=title)
    for column in frame.columns:
        number = pd.api.types.is_numeric_dtype(frame[column])
        table.add_column(str(column).replace("_", " "), justify="right" if number else "left")
    for row in frame.to_numpy(object):
        table.add_row(*(f"{cell:.3g}" if isinstance(cell, float) else str(cell) for cell in row))
    return table


def n_steps(model: HookedLatentTransformer) -> int:
    """How many times ``done`` is called, for a progress bar."""
    if model.layout.task == "experts":
        return len(experts.fitting_regimes(model)) + 3
    return len(qlearning.EVALUATED) + len(play.PLAYED) + 3


def evaluate(
    model: HookedLatentTransformer,
    *,
    n_episodes: int = 128,
    seed: int = 0,
    with_theory: bool = False,
    done: Done = lambda steps: None,
) -> Evaluation:
    """Measure everything of a model of either task.

    Args:
        n_episodes: per regime; long episodes use half of it.
        with_theory: add the checks of the paper's appendix B.
        done: called with 1 after each of :func:`n_steps` parts.

    Raises:
        InputError: too few episodes.
    """
    require(n_episodes >= MINIMUM_EPISODES, f"episodes must be at least {MINIMUM_EPISODES}, got {n_episodes}")
    parts = _experts if model.layout.task == "experts" else _qlearning
    found = parts(model, n_episodes, seed, done)
    if with_theory:
        found["theory"] = theory_checks(model, n_episodes, seed)
    settings = provenance(
        model=model.config.name, digest=model.digest(), task=model.layout.task, n_episodes=n_episodes, seed=seed,
        commit="own", origin=model.config.origin,
    )  # fmt: skip
    return Evaluation(found, settings)


def theory_checks(model: HookedLatentTransformer | None = None, n_episodes: int = 128, seed: int = 0) -> pd.DataFrame:
    """The paper's appendix B, one row per statement: posterior update, gradient, excess log-loss = summed KL.

    The first three are about the algorithm, on simulated episodes. For a learned model of expert advice the last is
    also measured on its own predictions: summed log-loss above the Bayes predictor against the summed KL from it.
    """
    checks = theory.check(seed=seed)
    if model is not None and model.layout.task == "experts" and not len(model.state_map):
        checks.append(excess_is_divergence(model, n_episodes, seed))
    return pd.concat([check.to_frame() for check in checks], ignore_index=True)


def excess_is_divergence(model: HookedLatentTransformer, n_episodes: int = 128, seed: int = 0) -> theory.TheoryCheck:
    """A model's summed excess log-loss over the Bayes predictor, which is the true conditional, against the summed KL.

    Equal in expectation; the means may differ by four standard errors.
    """
    episodes = expert_tasks.sample(n_episodes, 100, experts.n_experts_of(model), seed=seed + 3)
    predictions, best = experts.predict(model, episodes), bayes(episodes).predictions
    excess = regret.excess_log_loss(predictions, best, episodes).sum(1)
    divergence = experts.divergence(best, predictions).sum(1)
    difference = excess - divergence
    return theory.TheoryCheck(
        f"excess log-loss of {model.config.name} over Bayes = summed KL",
        float(abs(difference.mean())),
        float(4 * difference.std(ddof=1) / np.sqrt(len(difference))),
        float(excess.mean()),
        float(divergence.mean()),
        provenance(model=model.config.name, digest=model.digest(), n_episodes=n_episodes, seed=seed),
    )


def _experts(model: HookedLatentTransformer, n_episodes: int, seed: int, done: Done) -> dict[str, pd.DataFrame]:
    scored = experts.evaluate(model, n_episodes=n_episodes, seed=seed, done=done)
    long = lengths.evaluate(model, n_episodes=max(2, n_episodes // 2), seed=seed + 1)
    done(1)
    episodes = expert_tasks.sample(n_episodes, 100, experts.n_experts_of(model), seed=seed + 2)
    control = latent_control(model, episodes, seed=seed)
    done(1)
    reliability = [
        calibration(predictions, episodes, seed=seed)
        for predictions in (experts.predict(model, episodes), bayes(episodes).predictions)
    ]
    calibrated = [
        result.to_frame().assign(key=key, error=result.error, error_by_chance=result.chance.estimate)
        for key, result in zip((experts.MODEL, "bayes"), reliability, strict=True)
    ]
    attended = attention_to_experts(model, episodes.select(slice(64)), seed=seed)
    done(1)
    frame = scored.to_frame()
    return {
        "summary": _wide(frame[frame["metric"].isin(("regret", "accuracy"))]),
        "regimes": frame,
        "regret_curves": scored.curves(),
        "lengths": long.to_frame(),
        "latent_control": control.to_frame(),
        "calibration": pd.concat(calibrated, ignore_index=True),
        "attention": attended.to_frame(),
    }


def _wide(frame: pd.DataFrame) -> pd.DataFrame:
    """Final regret of every predictor by regime, and the model's accuracy."""
    regret = frame[frame["metric"] == "regret"].pivot(index="regime", columns="key", values="estimate")
    own = frame[(frame["metric"] == "accuracy") & (frame["key"] == experts.MODEL)].set_index("regime")["estimate"]
    order = [experts.MODEL, *(key for key in experts.BASELINES if key in regret)]
    table = regret.loc[frame["regime"].unique(), order].assign(accuracy=own)
    return table.rename_axis(index="regime", columns=None).reset_index()


def _qlearning(model: HookedLatentTransformer, n_episodes: int, seed: int, done: Done) -> dict[str, pd.DataFrame]:
    scored = qlearning.evaluate(model, n_episodes=n_episodes, seed=seed, done=done)
    batches = qlearning.sample(model, "grid", n_episodes, seed=seed)
    choices = [rollout(model, batch).choices.numpy(force=True) for batch in batches]
    followed = followed_discount(choices, batches, table=qlearning.reference_table(model), seed=seed)
    done(1)
    rates = tables.evaluate(model, n_episodes=n_episodes, seed=seed + 1)
    done(1)
    played = play.evaluate(model, n_episodes=n_episodes // 2, seed=seed + 2, done=done)
    agreement, returns = scored.to_frame(), played.to_frame()
    found = {
        "summary": _overview(agreement, returns),
        "agreement": agreement,
        "followed_discount": followed.to_frame().assign(commit="own"),
        "effective_rates": rates.to_frame(),
        "returns": returns,
        "reward_rates": played.rates_frame(),
    }
    (low_s, high_s), (low_a, high_a) = qlearning.bounds(model)
    if low_s <= 4 <= high_s and low_a <= 2 <= high_a:
        chain = mdp.sample(16, 50, 4, 2, regime="chain", seed=seed)
        found["attention_chain"] = round_attention(model, chain, rounds=slice(10, None)).assign(commit="own")
    done(1)
    return found


SUMMARISED = ("untied", "untied_gamma0", "random_ties", "random_ties_ceiling", "disputed", "disputed_gamma0")


def _overview(agreement: pd.DataFrame, returns: pd.DataFrame) -> pd.DataFrame:
    """By regime: agreement with its controls, and the normalised return over the longest horizon by agent."""
    own = agreement[(agreement["key"] == experts.MODEL) & (agreement["phase"] == "all")]
    table = own.pivot(index="regime", columns="quantity", values="estimate").loc[own["regime"].unique()]
    table = table[[*SUMMARISED, "cross_entropy_excess"]]
    longest = returns[(returns["quantity"] == "score") & (returns["horizon"] == returns["horizon"].max())]
    for key in (experts.MODEL, "greedy", play.EXPLORING, "epsilon-greedy", "random-ties"):
        table[f"return, {key}"] = longest[longest["key"] == key].set_index("regime")["estimate"]
    return table.assign(commit="own").rename_axis(index="regime", columns=None).reset_index()
