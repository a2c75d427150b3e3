"""How well language models learn online: their regret, and that of baselines on the same episodes.

The regret after round t is R_t = L_t - min_i L_t^(i): the model's mistakes minus those of the best
expert so far (paper, F.3). It may be negative. There are two treatments of *missing* predictions:
``wrong`` counts them as mistakes; ``skipped`` leaves their rounds out, also for the experts. The
standard deviation is over episodes with n in the denominator, as in the paper's tables. An episode
that ended early counts in the curves up to its end, but not in the final table. Baselines that
choose at random count their expected mistakes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float
from numpy.typing import NDArray

from interp.evaluation.experts import regret as metrics
from interp.llm.notes import check_counts
from interp.llm.runs import LLMRun, episodes_of, group_runs
from interp.llm.schemes import LONGEST_NOTE, MAX_NOTE_WORDS
from interp.results.measure import Result
from interp.stats.intervals import bootstrap_mean
from interp.support.checks import checked, checked_result, require_columns
from interp.support.errors import require, require_known
from interp.support.files import write_csv, write_json
from interp.support.provenance import provenance
from interp.tasks.experts import ExpertEpisodes
from interp.tasks.experts.predictors import PREDICTORS

_BASELINES = (
    "weighted_majority_paper",
    "follow_the_leader",
    "follow_previous_winners",
    "majority_vote",
    "random",
    "bayes_uniform",
    "bayes",
    "oracle",
)
Predictor = Callable[[ExpertEpisodes], NDArray[np.float64]]
"""Function from episodes to P(y=1), ``[episode, round]``; adds another model to the comparison."""


def run_regret(run: LLMRun, missing: str = "wrong") -> NDArray[np.float64]:
    """Return the regret after each round that was played, Float[round]: the model's mistakes so far
    minus those of the best expert so far.

    Args:
        run: the run.
        missing: treatment of missing predictions: "wrong" counts them as mistakes, "skipped" leaves
            their rounds out.
    """
    require_known("treatment of missing predictions", missing, ("wrong", "skipped"))
    labels = run.labels[: run.rounds]
    expert_losses = (run.advice[: run.rounds] != labels[:, None]).astype(np.float64)
    mistakes = np.abs(run.predictions - labels)  # NaN where a prediction is missing
    losses = np.where(run.missing, 1.0, mistakes)
    if missing == "skipped":  # these rounds count for nobody
        losses = losses * ~run.missing
        expert_losses = expert_losses * ~run.missing[:, None]
    return losses.cumsum() - expert_losses.cumsum(axis=0).min(axis=1)


@dataclass(frozen=True)
@checked_result
class LLMScores(Result):
    """The scores of language models, baselines and other predictors, as tables. Regret is the
    number of mistakes minus that of the best expert.

    Both tables have the columns kind ("llm", "baseline" or "model"), model (its name), condition,
    regime and missing; a group is a combination of their values. The column missing says how
    missing predictions of a language model are treated: "wrong" counts them as mistakes, and
    "skipped" leaves their rounds out. For other predictors, condition and missing are empty.

    Attributes:
        final: one row per group, with these columns about the n complete runs:

            * mean, std: mean and standard deviation of the regret after the last round;
            * low, high: 95 % interval of the mean.

            Further columns are about all runs:

            * runs: their number;
            * accuracy: share of right predictions among those that were made;
            * only for language models: missing_predictions, malformed_answers, malformed_share (of
              calls), embedded_answers (with words around the JSON object), overflowed (runs that
              filled the context), calls, prompt_tokens_per_run, completion_tokens_per_run and
              seconds_per_call.
        curves: one row per group and round. The columns are round (counted from 1), n (number of
            runs that reached this round), and mean, std, low and high, as in ``final``, of the
            regret after this round.
        settings: settings and versions.
    """

    final: pd.DataFrame
    curves: pd.DataFrame = field(repr=False)
    settings: dict[str, Any] = field(repr=False)

    def to_frame(self) -> pd.DataFrame:
        """Return the table :attr:`final`, with the regret after the last round: one row per model,
        condition, regime and treatment of missing predictions.
        """
        return self.final


@checked
def score(
    runs: Sequence[LLMRun], others: Mapping[str, Predictor] | None = None, seed: int = 0
) -> LLMScores:
    """Score runs, baselines and other predictors on the instances that the runs played.

    Args:
        runs: runs of any models and conditions.
        others: further predictors, such as handwired and learned transformers: name -> function
            from episodes to the probability of outcome 1, ``[episode, round]``. An example is
            ``{"wma-learned": lambda episodes: interp.rollout(model, episodes).predictions}``.
        seed: seed of the bootstrap.

    Returns:
        Tables with the regret, accuracy and further numbers of every group of runs and every other
        predictor, with 95 % intervals.
    """
    require(runs, "no runs to score")
    finals: list[dict[str, Any]] = []
    curves: list[pd.DataFrame] = []
    for (model, condition, regime), members in group_runs(runs).items():
        names = {"kind": "llm", "model": model, "condition": condition, "regime": regime}
        # Every group twice: a missing prediction as a mistake, and its round left out.
        for missing in ("wrong", "skipped"):
            group = {**names, "missing": missing}
            regrets = [run_regret(run, missing) for run in members]
            curves.append(_compute_curve(regrets, group, seed))
            finals.append({**group, **_compute_final(members, regrets, seed)})
    for regime in dict.fromkeys(run.regime for run in runs):
        members = [run for run in runs if run.regime == regime]
        for kind, name, regret, accuracy in references(
            episodes_of(members, regime),
            others,
            know_accuracies=all(run.accuracies is not None for run in members),
        ):
            # A predictor has no condition, and no prediction is missing.
            group = {"kind": kind, "model": name, "condition": "", "regime": regime, "missing": ""}
            curves.append(_compute_curve(list(regret), group, seed))
            summary = _summarise(regret[:, -1], seed)  # after the last round
            finals.append({**group, **summary, "runs": len(regret), "accuracy": accuracy})
    settings = provenance(
        n_runs=len(runs),
        bootstrap_seed=seed,
        wording=sorted({run.wording for run in runs}),
        std="population",
    )
    return LLMScores(pd.DataFrame(finals), pd.concat(curves, ignore_index=True), settings)


@checked
def references(
    episodes: ExpertEpisodes,
    others: Mapping[str, Predictor] | None = None,
    know_accuracies: bool = True,
) -> list[tuple[str, str, NDArray[np.float64], float]]:
    """Score the baselines, and other predictors, on episodes.

    Args:
        episodes: the episodes to predict.
        others: name of a further predictor -> function from episodes to the probability of outcome
            1, ``[episode, round]``.
        know_accuracies: whether the experts' accuracies are known; otherwise the predictor
            "oracle", which uses them, is left out.

    Returns:
        The predictor "bayes" is left out if the regime of the episodes is unknown. For each other
        predictor a tuple: "baseline", or "model" for those in ``others``; its name; its
        regret after each round, Float[episode, round]; and its accuracy over all episodes.
    """
    left_out = set()
    if not know_accuracies:
        left_out.add("oracle")
    if not episodes.params:  # the regime is unknown, and with it the prior of the Bayes predictor
        left_out.add("bayes")
    predictors = []
    for key in _BASELINES:
        if key not in left_out:
            run = PREDICTORS[key].run(episodes)
            predictors.append(("baseline", PREDICTORS[key].name, run.predictions, run.decision))
    for name, predict in (others or {}).items():
        # "threshold": it predicts outcome 1 if the probability of 1 is above a half.
        predictors.append(("model", name, predict(episodes), "threshold"))
    scored = []
    for kind, name, predicted, decision in predictors:
        regret = metrics.regret(predicted, episodes, decision)
        mistakes = metrics.mistakes(predicted, episodes, decision)
        scored.append((kind, name, regret, float(1 - mistakes.mean())))
    return scored


def _summarise(values: Float[np.ndarray, " instance"], seed: int) -> dict[str, float | int]:
    """Return the mean over instances ("mean") with the ends of its 95 % bootstrap interval ("low",
    "high"), the standard deviation ("std") and the number of instances ("n").

    Args:
        values: one number per instance.
        seed: seed of the bootstrap.
    """
    if len(values) == 0:
        return {"n": 0, "mean": np.nan, "std": np.nan, "low": np.nan, "high": np.nan}
    mean, low, high = (float(bound) for bound in bootstrap_mean(values, seed=seed))
    return {"n": len(values), "mean": mean, "std": float(values.std()), "low": low, "high": high}


def _compute_final(
    members: Sequence[LLMRun], regrets: Sequence[NDArray[np.float64]], seed: int
) -> dict[str, Any]:
    """Return one group's row of the table of final scores: name of a column -> value.

    Args:
        members: runs of the group.
        regrets: regret of each run, Float[round].
        seed: seed of the bootstrap.
    """
    last_regrets = []
    rows = []
    for run, regret in zip(members, regrets, strict=True):
        # Regret grows with rounds, so that shorter runs would look better.
        if run.ended == "complete":
            last_regrets.append(regret[-1])
        is_right = run.predictions == run.labels[: run.rounds]
        row = {
            "right": is_right.sum(),
            "answered": (~run.missing).sum(),
            "missing_predictions": run.missing.sum(),
            "overflowed": run.ended == "overflow",
            "malformed_answers": run.malformed,
            "embedded_answers": run.embedded,
            "calls": run.calls,
            "prompt_tokens_per_run": run.total_prompt_tokens,
            "completion_tokens_per_run": run.total_completion_tokens,
            "seconds_per_call": run.seconds,
        }
        rows.append(row)
    table = pd.DataFrame(rows)
    # Whole numbers are counts, which are summed. Columns with "_per_" in their names are averaged.
    totals = table.select_dtypes(["int64", "bool"]).sum()
    summary = _summarise(np.array(last_regrets, dtype=np.float64), seed)
    accuracy = totals["right"] / max(1, totals["answered"])
    malformed_share = totals["malformed_answers"] / max(1, totals["calls"])
    return {
        **summary,
        "runs": len(members),
        "overflowed": totals["overflowed"],
        "accuracy": accuracy,
        "missing_predictions": totals["missing_predictions"],
        "malformed_answers": totals["malformed_answers"],
        "malformed_share": malformed_share,
        "embedded_answers": totals["embedded_answers"],
        "calls": totals["calls"],
        **table.filter(like="_per_").mean(skipna=False),
    }


def _compute_curve(
    regrets: Sequence[NDArray[np.float64]], names: Mapping[str, str], seed: int
) -> pd.DataFrame:
    """Return a table with one row per round: mean, standard deviation and interval of the regret
    after the round, over the runs that reached it.

    Args:
        regrets: regret of each run, Float[round].
        names: further columns, which have the same value in every row.
        seed: seed of the bootstrap.
    """
    parts = []
    start = 0
    # Runs may have different lengths. Rounds are divided at these lengths, so that the same runs
    # reach all rounds of a block.
    for end in sorted({len(regret) for regret in regrets} - {0}):
        # [run, round]
        block = np.stack([regret[start:end] for regret in regrets if len(regret) >= end])
        mean, low, high = bootstrap_mean(block, seed=seed)
        columns = {
            "round": np.arange(start + 1, end + 1),
            "mean": mean,
            "std": block.std(axis=0),
            "low": low,
            "high": high,
            "n": len(block),
        }
        parts.append(pd.DataFrame({**names, **columns}))
        start = end
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()


_GROUP_COLUMNS = ["model", "condition", "regime"]


@checked
def write_tables(
    runs: Sequence[LLMRun],
    folder: str | Path,
    seed: int = 0,
    more: Mapping[str, pd.DataFrame] | None = None,
) -> tuple[LLMScores, list[Path]]:
    """Score runs, and write the scores as ``final.csv`` and ``curves.csv``, the settings as
    ``provenance.json``, and the tables about notes (:meth:`NoteTable.tables`).

    Args:
        runs: runs of any models and conditions.
        folder: folder for the files; empty tables are not written.
        seed: seed of the bootstrap.
        more: name of a file without its ending -> further table to write, such as those that
            :func:`interp.choices.behaviour.behaviour_tables` returns.

    Returns:
        The scores, and the paths of the written files.
    """
    scores = score(runs, seed=seed)
    tables = {"final": scores.final, "curves": scores.curves, **(more or {})}
    tables |= note_table(runs).tables()
    written = [write_json(Path(folder) / "provenance.json", scores.settings)]
    for name, table in tables.items():
        if len(table):
            written.append(write_csv(Path(folder) / f"{name}.csv", table))
    return scores, written


@checked
def readable(final: pd.DataFrame) -> pd.DataFrame:
    """Shorten the table :attr:`LLMScores.final` for a terminal.

    Args:
        final: the table.

    Returns:
        A table of texts with one row per model, condition and regime, and these columns:

        * regime;
        * predictor: model and condition;
        * runs: numbers of complete runs and of all runs, such as "29/30";
        * regret: its mean and standard deviation, with missing predictions counted as mistakes;
        * 95 %: interval of this mean;
        * left out: mean regret if rounds with missing predictions are left out;
        * accuracy: share of right predictions among those that were made;
        * missing: number of missing predictions.
    """
    require_columns(
        "final",
        final,
        *_GROUP_COLUMNS,
        "missing",
        "mean",
        "std",
        "low",
        "high",
        "n",
        "runs",
        "accuracy",
    )
    # A group of runs has two rows; that of "skipped" only gives the column "left out".
    skipped = final[final["missing"] == "skipped"]
    shown = final[final["missing"] != "skipped"].merge(
        skipped[[*_GROUP_COLUMNS, "mean"]], how="left", on=_GROUP_COLUMNS, suffixes=("", "_skipped")
    )
    rows = []
    groups: Any = shown.itertuples()
    for row in groups:
        name = f"{row.model}, {row.condition}" if row.condition else row.model
        regret = f"{row.mean:.2f} ± {row.std:.2f}"
        readable_row = {
            "regime": row.regime,
            "predictor": name,
            "runs": f"{row.n:.0f}/{row.runs:.0f}",
            "regret": regret,
            "95 %": f"{row.low:.2f} to {row.high:.2f}",
            "left out": _format_number(row.mean_skipped, 2),
            "accuracy": f"{row.accuracy:.3f}",
            "missing": _format_number(row.missing_predictions, 0),
        }
        rows.append(readable_row)
    return pd.DataFrame(rows).sort_values("regime", kind="stable")


def _format_number(value: float, digits: int) -> str:
    """Return a number as text with ``digits`` digits after the point; "" if it is NaN."""
    return "" if pd.isna(value) else f"{value:.{digits}f}"


@dataclass(frozen=True)
@checked_result
class NoteTable:
    """Every note of a set of runs, with checks of its tallies.

    Attributes:
        notes: one row per note. The columns are:

            * model, condition, regime, index and last_round of the run;
            * round: the round after which the note was written, counted from 1;
            * note: its text, with its numbers of words and chars (characters);
            * prompt_tokens of the round;
            * the keys that :func:`~interp.llm.notes.check_counts` returns, such as exact.
    """

    notes: pd.DataFrame

    def tables(self) -> dict[str, pd.DataFrame]:
        """Return the tables about notes.

        Returns:
            Name of a file without its ending -> table: "notes" with one row per note
            (:attr:`notes`), "note_rounds" with means for each round (:meth:`over_rounds`), and
            "note_summary" about the last notes (:meth:`final`).
        """
        return {
            "notes": self.notes,
            "note_rounds": self.over_rounds(),
            "note_summary": self.final(),
        }

    def final(self) -> pd.DataFrame:
        """Summarise the last notes of all runs: a table with one row per model, condition and
        regime.

        Besides these three, the columns are:

        * n: number of last notes;
        * words: mean number of words of a note;
        * over_word_limit: number of notes with more than 500 words;
        * readable: number of notes with a tally for every expert, such as "A:45/100";
        * mean_error: mean absolute error of the tallies' counts, over readable notes;
        * exact, best, worst, most_accurate, least_accurate: share of the readable notes for which
          this entry of :func:`~interp.llm.notes.check_counts` is True, without those for which it
          is None.
        """
        measures = ["exact", "mean_error", "best", "worst", "most_accurate", "least_accurate"]
        rows: list[dict[str, Any]] = []
        is_last = self.notes["round"] == self.notes["last_round"]
        for names, group in self.notes[is_last].groupby(_GROUP_COLUMNS, sort=False):
            readable_notes = group[group["readable"].astype(bool)]
            words = group["words"]
            row = {
                **dict(zip(_GROUP_COLUMNS, names, strict=True)),
                "n": len(group),
                "words": words.mean(),
                "over_word_limit": int((words > MAX_NOTE_WORDS).sum()),
                "readable": len(readable_notes),
            }
            # None becomes NaN, which a mean leaves out.
            rows.append({**row, **readable_notes[measures].astype(float).mean()})
        return pd.DataFrame(rows)

    def over_rounds(self) -> pd.DataFrame:
        """Return a table with one row per model, condition, regime and round.

        Besides these four, the columns are:

        * words: mean number of words of a note;
        * prompt_tokens: mean number of tokens of the prompt;
        * exact: of the notes with a tally for every expert, the share in which all tallies are
          right and count all rounds so far.
        """
        if self.notes.empty:
            return pd.DataFrame(
                columns=[*_GROUP_COLUMNS, "round", "words", "prompt_tokens", "exact"]
            )
        is_readable = self.notes["readable"].astype(bool)
        exact = self.notes["exact"].where(is_readable).astype(float)
        by_round = self.notes.assign(exact=exact).groupby([*_GROUP_COLUMNS, "round"])
        return by_round[["words", "prompt_tokens", "exact"]].mean().reset_index()


@checked
def note_table(runs: Sequence[LLMRun]) -> NoteTable:
    """Check the tallies in every note of ``runs``, and return a table with one row per note."""
    require(runs, "no runs to analyse")
    rows: list[dict[str, object]] = []
    for run in runs:
        # Number of right predictions of each expert up to each round, [round, expert].
        correct_so_far = (run.advice == run.labels[:, None]).cumsum(axis=0)
        for t, note in enumerate(run.notes):
            if note is None:  # no note was written after this round
                continue
            text = note[:LONGEST_NOTE]  # an imported note may be longer
            model, condition, regime = run.group
            names = {"model": model, "condition": condition, "regime": regime, "index": run.index}
            counts = check_counts(text, correct_so_far[t], t + 1, reliability=run.reliability)
            row = {
                **names,
                "round": t + 1,
                "last_round": run.rounds,
                "words": len(text.split()),
                "note": note,
                "chars": len(note),
                **counts,
                "prompt_tokens": run.prompt_tokens[t],
            }
            rows.append(row)
    # Without a note, the table is empty but has the columns that are read from it.
    columns = None if rows else [*_GROUP_COLUMNS, "round", "last_round", "words"]
    return NoteTable(pd.DataFrame(rows, columns=columns))
