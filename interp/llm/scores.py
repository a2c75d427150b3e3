"""How well language models learned online: regret curves and final tables, with the baselines on the same instances.

Regret R_t = L_t - min_i L_t^(i), never clipped (paper, F.3). A *missing* prediction is treated in two ways: ``wrong``
counts it as a mistake, ``skipped`` leaves the round out, of the experts' losses too. The standard deviation is over
instances with n in the denominator, as in the paper's tables. An episode that ended early counts in the curve as far as
it goes and not in the final table. Baselines that choose by a coin count their expected mistakes.
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
from interp.llm.notes import FORMATS, check_counts, classify
from interp.llm.runs import LLMRun, episodes_of, grouped
from interp.llm.schemes import LONGEST_NOTE, MAX_NOTE_WORDS
from interp.results.measure import Result
from interp.stats.intervals import bootstrap_mean
from interp.support.checks import checked, require_columns
from interp.support.errors import require, require_known
from interp.support.files import write_csv, write_json
from interp.support.provenance import provenance
from interp.tasks.experts import ExpertEpisodes
from interp.tasks.experts.predictors import PREDICTORS, weighted_majority

_BASELINES = (
    *(
        "weighted_majority_paper",
        "follow_the_leader",
        "follow_previous_winners",
        "majority_vote",
        "random",
    ),
    *("bayes_uniform", "bayes", "oracle"),
)
_OWN_ETA = "weighted majority, eta given with each instance"
Predictor = Callable[[ExpertEpisodes], NDArray[np.float64]]
"""Episodes to P(y=1) [episode, round]: how any model of ours enters the comparison."""


def _run_regret(run: LLMRun, missing: str = "wrong") -> NDArray[np.float64]:
    require_known("treatment of missing predictions", missing, ("wrong", "skipped"))
    labels, advice = run.labels[: run.rounds], run.advice[: run.rounds]
    losses = np.where(run.missing, 1.0, np.abs(np.nan_to_num(run.predictions) - labels))
    of_experts = (advice != labels[:, None]).astype(np.float64)
    if missing == "skipped":
        losses, of_experts = losses * ~run.missing, of_experts * ~run.missing[:, None]
    return losses.cumsum() - of_experts.cumsum(axis=0).min(axis=1)


@dataclass(frozen=True)
class LLMScores(Result):
    """Tables of a set of runs, tidy.

    Attributes:
        final: one row per (model, condition, regime, missing): ``n`` complete runs of ``runs``, mean and std of the
            final regret, its 95 % interval over instances, accuracy, missing predictions, malformed answers, tokens.
        curves: one row per (model, condition, regime, missing, round): mean, std, low, high, n. Rounds from 1.
    """

    final: pd.DataFrame
    curves: pd.DataFrame = field(repr=False)
    settings: dict[str, Any] = field(repr=False)

    def to_frame(self) -> pd.DataFrame:
        """One row for each group and measure, at the last round."""
        return self.final


@checked
def score(
    runs: Sequence[LLMRun], others: Mapping[str, Predictor] | None = None, seed: int = 0
) -> LLMScores:
    """Score runs, the baselines and any ``others`` on the instances that the runs played; ``seed`` is of the bootstrap.

    ``others`` are more predictors by name, functions of episodes. Handwired and learned transformers enter here:
    ``{"wma-learned-additive": lambda episodes: interp.rollout(model, episodes).predictions}``.
    """
    require(bool(runs), "no runs to score")
    finals, curves = [], []
    for (model, condition, regime), members in grouped(runs).items():
        names = {"kind": "llm", "model": model, "condition": condition, "regime": regime}
        for missing in ("wrong", "skipped"):
            regrets = [_run_regret(run, missing) for run in members]
            curves.append(_curve(regrets, {**names, "missing": missing}, seed))
            finals.append({**names, "missing": missing, **_final(members, regrets, seed)})
    for regime in dict.fromkeys(run.regime for run in runs):
        known = all(run.accuracies is not None for run in runs if run.regime == regime)
        by_index = {run.index: run.eta for run in runs if run.regime == regime}
        rates = [eta for _, eta in sorted(by_index.items()) if eta is not None]
        etas = np.array(rates) if rates and len(rates) == len(by_index) else None
        for kind, name, regret, accuracy in references(
            episodes_of(runs, regime), others, known, etas
        ):
            names = {"kind": kind, "model": name, "condition": "", "regime": regime, "missing": ""}
            curves.append(_curve(list(regret), names, seed))
            finals.append(
                {
                    **names,
                    **_summary(regret[:, -1], seed),
                    "runs": len(regret),
                    "accuracy": accuracy,
                }
            )
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
    etas: NDArray[np.float64] | None = None,
) -> list[tuple[str, str, NDArray[np.float64], float]]:
    """Kind, name, regret ``[instance, round]`` and accuracy of the baselines, then of ``others``, on ``episodes``.

    The oracle is among them only where accuracies are known. ``etas`` are the learning rates of weighted majority on
    each episode; drawn from U[.05, .5] when None.
    """
    left_out = ["oracle"] * (not know_accuracies) + ["bayes"] * (not episodes.params)
    ran = {PREDICTORS[key].name: PREDICTORS[key].run for key in _BASELINES if key not in left_out}
    if etas is not None:
        own = {_OWN_ETA: lambda episodes: weighted_majority(episodes, eta=etas)}
        ran = own | {
            name: run
            for name, run in ran.items()
            if name != PREDICTORS["weighted_majority_paper"].name
        }
    runs = {name: run(episodes) for name, run in ran.items()}
    every = [("baseline", name, run.predictions, run.decision) for name, run in runs.items()]
    every += [
        ("model", name, predict(episodes), "threshold") for name, predict in (others or {}).items()
    ]
    return [
        (
            kind,
            name,
            metrics.regret(p, episodes, decision),
            float(1 - metrics.mistakes(p, episodes, decision).mean()),
        )
        for kind, name, p, decision in every
    ]


def _summary(values: Float[np.ndarray, " instance"], seed: int) -> dict[str, float | int]:
    if len(values) == 0:
        return {"n": 0, "mean": np.nan, "std": np.nan, "low": np.nan, "high": np.nan}
    mean, low, high = (float(x) for x in bootstrap_mean(values, seed=seed))
    return {"n": len(values), "mean": mean, "std": float(values.std()), "low": low, "high": high}


def _final(
    members: Sequence[LLMRun], regrets: Sequence[NDArray[np.float64]], seed: int
) -> dict[str, float | int]:
    ends = [
        regret[-1] for run, regret in zip(members, regrets, strict=True) if run.ended == "complete"
    ]
    right = sum(int((run.predictions == run.labels[: run.rounds]).sum()) for run in members)
    missing = sum(int(run.missing.sum()) for run in members)
    calls, malformed = sum(run.calls for run in members), sum(run.malformed for run in members)
    return {
        **_summary(np.array(ends, dtype=np.float64), seed),
        "runs": len(members),
        "overflowed": sum(run.ended == "overflow" for run in members),
        "accuracy": right / max(1, sum(run.rounds for run in members) - missing),
        "missing_predictions": missing,
        "malformed_answers": malformed,
        "malformed_share": malformed / max(1, calls),
        "embedded_answers": sum(run.embedded for run in members),
        "calls": calls,
        "prompt_tokens_per_run": float(np.mean([run.total_prompt_tokens for run in members])),
        "completion_tokens_per_run": float(
            np.mean([run.total_completion_tokens for run in members])
        ),
        "seconds_per_call": float(np.mean([run.seconds for run in members])),
    }


def _curve(
    regrets: Sequence[NDArray[np.float64]], names: Mapping[str, str], seed: int
) -> pd.DataFrame:
    """Mean, std and interval of each round over the runs that got there."""
    parts = []
    start = 0
    for end in sorted({len(regret) for regret in regrets} - {0}):
        block = np.stack([regret[start:end] for regret in regrets if len(regret) >= end])
        mean, low, high = bootstrap_mean(block, seed=seed)
        rounds, std = np.arange(start + 1, end + 1), block.std(axis=0)
        columns = {
            "round": rounds,
            "mean": mean,
            "std": std,
            "low": low,
            "high": high,
            "n": len(block),
        }
        parts.append(pd.DataFrame({**names, **columns}))
        start = end
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()


_GROUP = ["model", "condition", "regime"]


@checked
def write_tables(
    runs: Sequence[LLMRun],
    folder: str | Path,
    seed: int = 0,
    more: Mapping[str, pd.DataFrame] | None = None,
) -> tuple[LLMScores, list[Path]]:
    """Score ``runs`` and write ``final.csv``, ``curves.csv``, ``provenance.json`` and the tables of
    :func:`write_notes`.

    Empty tables are left out; ``more`` are further ones by name, such as those of ``interp.choices.explain``. The
    scores and the files written are returned.
    """
    scores = score(runs, seed=seed)
    written = write_notes(
        note_table(runs), folder, {"final": scores.final, "curves": scores.curves, **(more or {})}
    )
    return scores, [*written, write_json(Path(folder) / "provenance.json", scores.settings)]


def write_notes(
    notes: NoteTable, folder: str | Path, more: Mapping[str, pd.DataFrame] | None = None
) -> list[Path]:
    """Write ``notes.csv`` (every note), ``note_formats.csv`` (the paper's table), ``note_formats_by_round.csv``,
    ``note_rounds.csv`` and ``note_summary.csv``, after ``more`` tables by name; empty ones are left out.
    """
    tables = {
        **(more or {}),
        "notes": notes.notes,
        "note_formats": notes.formats(),
        "note_formats_by_round": notes.formats_by_round(),
        "note_rounds": notes.over_rounds(),
        "note_summary": notes.final(),
    }
    return [
        write_csv(Path(folder) / f"{name}.csv", table)
        for name, table in tables.items()
        if len(table)
    ]


@checked
def readable(final: pd.DataFrame) -> pd.DataFrame:
    """The final table for a terminal: one row per group, both treatments of missing predictions side by side."""
    require_columns(
        "final", final, *_GROUP, "missing", "mean", "std", "low", "high", "n", "runs", "accuracy"
    )
    shown = final[final["missing"] != "skipped"].copy()
    skipped = final[final["missing"] == "skipped"].set_index(_GROUP)["mean"]
    keys = shown[_GROUP].apply(tuple, axis=1)
    return pd.DataFrame(
        {
            "regime": shown["regime"],
            "predictor": [
                f"{m}, {c}" if c else m
                for m, c in zip(shown["model"], shown["condition"], strict=True)
            ],
            "runs": [
                f"{n:.0f}/{runs:.0f}" for n, runs in zip(shown["n"], shown["runs"], strict=True)
            ],
            "regret": [
                f"{m:.2f} ± {s:.2f}" for m, s in zip(shown["mean"], shown["std"], strict=True)
            ],
            "95 %": [
                f"{low:.2f} to {high:.2f}"
                for low, high in zip(shown["low"], shown["high"], strict=True)
            ],
            "left out": [f"{skipped[key]:.2f}" if key in skipped.index else "" for key in keys],
            "accuracy": [f"{a:.3f}" for a in shown["accuracy"]],
            "missing": ["" if pd.isna(m) else f"{m:.0f}" for m in shown["missing_predictions"]],
        }
    ).sort_values("regime", kind="stable")


@dataclass(frozen=True)
class NoteTable:
    """Every note of a set of runs.

    ``notes`` has one row per run and round, from 1: the note, its format, words and characters, what
    :func:`~interp.llm.notes.check_counts` says of it by :attr:`LLMRun.reliability`, and the round's prompt tokens.
    """

    notes: pd.DataFrame

    def formats(self) -> pd.DataFrame:
        """How many runs had each format after their last round: the paper's table."""
        return self._counted(self._last, _GROUP).reset_index()

    def formats_by_round(self) -> pd.DataFrame:
        """Per group and round: the share of the runs that got there with each format, and how many those are."""
        counts = self._counted(self.notes, [*_GROUP, "round"])
        runs = counts.sum(axis=1)
        shares = counts.div(runs, axis=0)
        shares.insert(0, "runs", runs)
        return shares.reset_index()

    def formats_over_rounds(self) -> pd.DataFrame:
        """:meth:`formats_by_round` at the moments the paper tells of: after the first round, after the sixth (its step
        5), and after the last that each group has."""
        by_round = self.formats_by_round()
        last = (
            by_round.groupby(_GROUP)["round"].transform("max")
            if len(by_round)
            else by_round["round"]
        )
        return by_round[by_round["round"].isin((1, 6)) | (by_round["round"] == last)].reset_index(
            drop=True
        )

    def final(self) -> pd.DataFrame:
        """Per group, at the last round: words, notes over the limit, and of readable notes how many count right and
        name the right expert."""
        measures = ("exact", "mean_error", "best", "worst", "most_accurate", "least_accurate")
        rows: list[dict[str, Any]] = []
        for names, group in self._last.groupby(_GROUP, sort=False):
            readable = group[group["readable"].astype(bool)]
            row: dict[str, Any] = dict(zip(_GROUP, names, strict=True))
            row |= {"n": len(group), "words": group["words"].mean()}
            row |= {
                "over_word_limit": int((group["words"] > MAX_NOTE_WORDS).sum()),
                "readable": len(readable),
            }
            rows.append(row | {key: readable[key].astype(float).mean() for key in measures})
        return pd.DataFrame(rows)

    def over_rounds(self) -> pd.DataFrame:
        """Per group and round: mean words, mean prompt tokens, share of exact counts among readable notes."""
        columns = ["words", "prompt_tokens", "exact"]
        if self.notes.empty:
            return pd.DataFrame(columns=[*_GROUP, "round", *columns])
        table = self.notes.assign(
            exact=self.notes["exact"].where(self.notes["readable"].astype(bool)).astype(float)
        )
        return table.groupby([*_GROUP, "round"])[columns].mean().reset_index()

    @property
    def _last(self) -> pd.DataFrame:
        return self.notes[self.notes["round"] == self.notes["last_round"]]

    def _counted(self, notes: pd.DataFrame, by: list[str]) -> pd.DataFrame:
        return (
            notes.groupby([*by, "format"])
            .size()
            .unstack(fill_value=0)
            .reindex(columns=list(FORMATS), fill_value=0)
        )


@checked
def note_table(runs: Sequence[LLMRun]) -> NoteTable:
    """Analyse every note in ``runs``."""
    require(bool(runs), "no runs to analyse")
    rows: list[dict[str, object]] = []
    for run in runs:
        correct = (run.advice == run.labels[:, None]).cumsum(axis=0)
        for t, whole in enumerate(run.notes):
            if whole is not None:
                note = whole[:LONGEST_NOTE]  # an imported note may be longer
                row = {
                    **dict(zip(_GROUP, run.group, strict=True)),
                    "index": run.index,
                    "round": t + 1,
                }
                row |= {"last_round": run.rounds, **classify(note, run.advice.shape[1])}
                row |= {"note": whole, "chars": len(whole)}
                row |= check_counts(note, correct[t], t + 1, run.reliability)
                rows.append(row | {"prompt_tokens": run.prompt_tokens[t]})
    return NoteTable(
        pd.DataFrame(
            rows, columns=None if rows else [*_GROUP, "round", "last_round", "format", "words"]
        )
    )
