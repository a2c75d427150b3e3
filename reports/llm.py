"""The report on language models as online learners: from traces of their answers to one page.

Language models, algorithms and transformers are compared on the same instances. A regime can be
compared with the paper's only if instances are drawn in the same way; its table says so.
"""

from __future__ import annotations

import shlex
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from interp.choices.behaviour import PlayerBehaviour, behaviour, behaviour_tables
from interp.evaluation.experts.by_regime import predict
from interp.llm.loading import Reading, read
from interp.llm.runs import LLMRun
from interp.llm.scores import LLMScores, NoteTable, Predictor, note_table, score
from interp.support.checks import checked
from interp.support.errors import require
from interp.support.files import file_to_write, writable
from interp.support.provenance import provenance
from interp.tasks.experts import TASK, ExpertEpisodes
from reports.blocks import Figure, Prose, Summary, Table, curves, join_intervals
from reports.page import Report, Section, write_with_index
from reports.parts.overview import commands, write_arguments, write_shell_options
from reports.texts import TEXTS


@checked
def write(
    path: str | Path,
    models: Sequence[str] = (),
    out: str | Path = "output",
    regime: str | None = None,
    duplicates: str = "refuse",
    seed: int = 0,
    acts: Sequence[PlayerBehaviour] | None = None,
) -> Path:
    """Write the report on language models that played expert advice, and return its path,
    ``out/llm.html``.

    Args:
        path: a folder of recorded answers (traces) or of results of other tools, or one file.
        models: transformers to run on the same episodes (instances), named as for
            :func:`interp.load`.
        out: folder of the page.
        regime: regime (distribution of episodes) of results that do not name one.
        duplicates: what to do with an episode that was played several times: "refuse" raises an
            error, "first" takes one of the runs.
        seed: seed of the bootstrap.
        acts: which algorithms explain the players' choices: the list that
            :func:`~interp.choices.behaviour.behaviour` returns for these traces; computed when
            None.
    """
    page = file_to_write(writable(out) / "llm.html")
    transformers = {name: transformer(name) for name in models}
    reading = read(path, regime, duplicates)
    if acts is None:
        acts = behaviour(reading.runs, seed)
    scores = score(reading.runs, transformers, seed)
    options = {"regime": regime, "duplicates": duplicates}
    reproduce = _write_commands(Path(path), scores, options, seed)
    report = _build_report(reading, scores, acts, reproduce, name=Path(path).name, seed=seed)
    return write_with_index(report, page)


def transformer(name: str) -> Predictor:
    """Return a function that runs a model of expert advice: from episodes to probabilities P(y=1),
    ``[episode, round]``.

    Args:
        name: name of the model, as for :func:`interp.load`.
    """
    import circuits
    from interp.model.library import load

    task = load(name).layout.task
    require(
        task == "experts",
        f"{name!r} is a model of {task}; the comparison needs a model of expert advice",
    )
    is_handwired = name in [record.name for record in circuits.models()]

    def predict_episodes(episodes: ExpertEpisodes) -> Any:
        # A handwired model is built for one number of experts; a learned one takes several.
        sizes: dict[str, Any] = {"n_experts": episodes.n_experts} if is_handwired else {}
        return predict(load(name, **sizes), episodes)

    return predict_episodes


def _build_report(
    reading: Reading,
    scores: LLMScores,
    acts: Sequence[PlayerBehaviour],
    reproduce: Section,
    *,
    name: str,
    seed: int,
) -> Report:
    """Build the report page on language models.

    Args:
        reading: the recorded answers.
        scores: scores of the language models and their baselines.
        acts: for each group of runs (one model in one condition), the algorithm that explains its
            choices.
        reproduce: the section with the commands that reproduce the numbers.
        name: name of the file or folder of the answers.
        seed: seed of the bootstrap.
    """
    runs = reading.runs
    overview, *by_model = _draw_regret(scores)
    sections = [
        Section("Summary", [Summary(_describe(runs))]),
        Section("Regret over rounds", [Prose(_TEXTS["regret"]), *by_model]),
        _list_final(scores),
        _list_answers(scores),
    ]
    if acts:
        sections.append(_list_behaviour(acts))
    notes = note_table(runs)
    if len(notes.notes):
        sections.append(_show_notes(notes))
    sections.append(_list_prompts(runs))
    if len(reading.sentences) > 1:  # the first one counts what was read
        is_aside = reading.table["status"] == "set aside"
        aside = reading.table.loc[is_aside, ["path", "part", "why"]]
        listed = Table(aside, "Files, and parts of files, that were not used", collapsed=True)
        sections.append(Section("Files that were not read", [Prose(_TEXTS["set_aside"]), listed]))
    sections.append(reproduce)
    sentence = _write_sentence(acts)
    description = {
        "kind": "llm",
        "task": TASK.name,
        "run": f"{len(runs)} episodes, {name}",
        "sentence": sentence,
    }
    wordings = sorted({run.wording for run in runs})
    return Report(
        title="Language models as online learners",
        lead=_TEXTS["lead"],
        sections=sections,
        provenance=provenance(bootstrap_seed=seed, wording=wordings, runs=len(runs)),
        about=description,
        sentence=sentence,
        hero=[overview],
    )


def _describe(runs: Sequence[LLMRun]) -> dict[str, str]:
    """Return facts about the runs by name, such as "Models" and "Episodes", for the summary."""
    models = dict.fromkeys(run.model for run in runs)  # a set in order
    served = sorted(set().union(*(run.served for run in runs)))
    n_complete = sum(run.ended == "complete" for run in runs)
    n_missing = sum(int(run.missing.sum()) for run in runs)
    n_rounds = sum(run.rounds for run in runs)
    return {
        "Models": ", ".join(models),
        "Served as": ", ".join(served) or "not recorded",
        "Prompts": ", ".join(sorted({run.wording for run in runs})),
        "Episodes": f"{n_complete} of {len(runs)} complete",
        "Missing predictions": f"{n_missing} of {n_rounds} rounds",
    }


def _write_commands(
    path: Path, scores: LLMScores, reading_options: Mapping[str, Any], seed: int
) -> Section:
    """Make the section with the command and the Python code that reproduce the numbers.

    Args:
        path: path of the recorded answers.
        scores: the scores, for the names of the transformers.
        reading_options: options with which the answers were read, by name.
        seed: seed of the bootstrap.
    """
    final = scores.final
    models = list(final.loc[final["kind"] == "model", "model"].unique())
    options = write_shell_options({"models": models, **reading_options, "seed": seed})
    shell = shlex.join(["interp", "llm", "report", str(path), *options])
    reading = write_arguments(reading_options)
    python = _TEXTS["python"].format(path=str(path), reading=reading, seed=seed, models=models)
    return commands(shell, python)


def _write_sentence(acts: Sequence[PlayerBehaviour]) -> str:
    """Return sentences that say which algorithm each language model acts like, and for how many
    groups of runs no algorithm is found.

    Args:
        acts: the result for each group of runs (one model in one condition and regime).
    """
    n_groups = Counter(group.model for group in acts)
    answers: dict[str, Counter[str]] = defaultdict(Counter)  # by model: how often each algorithm
    for group in acts:
        if group.found and group.found.family:
            answers[group.model][group.answer] += 1
    sentences = []
    for model, counts in answers.items():
        ((answer, n),) = counts.most_common(1)  # the only item: (most frequent answer, its count)
        sentences.append(f"{model} plays like {answer} ({n} of {n_groups[model]} groups).")
    n_unnamed = len(acts) - sum(counts.total() for counts in answers.values())
    if n_unnamed:
        sentences.append(f"No algorithm is named for {n_unnamed} of {len(acts)} groups of runs.")
    return " ".join(sentences)


def _list_final(scores: LLMScores) -> Section:
    """Make the section on regret after the last round: one table per regime, which ends with the
    regrets that the paper reports.
    """
    printed = pd.read_csv(Path(__file__).with_suffix(".csv"))  # the final regret that the paper has
    blocks: list[Any] = [Prose(_TEXTS["final"])]
    for regime, final in scores.final.groupby("regime", sort=False):
        # Language models have two rows: missing predictions count as wrong, or are skipped. The
        # mean of the second row becomes a column of the first.
        is_skipped = final["missing"] == "skipped"
        group = ["model", "condition"]
        skipped = final[is_skipped].set_index(group)["mean"].rename("missing left out")
        rows = final[~is_skipped].join(skipped, on=group)
        rows = rows.rename(columns={"model": "predictor", "mean": "regret"})
        paper = printed[printed["regime"] == regime]
        paper = paper.rename(columns={"model": "predictor", "mean": "paper"})
        paper = paper[["predictor", "condition", "n", "paper", "std"]]
        frame = pd.concat([join_intervals(rows[_FINAL_COLUMNS]), paper], ignore_index=True)
        n_rounds = int(scores.curves.loc[scores.curves["regime"] == regime, "round"].max())
        caption = f"{regime}, after {n_rounds} rounds (the paper's rows: after 100)"
        blocks.append(Table(frame, caption, formats=_FORMATS))
    return Section("Regret after the last round", blocks)


_FINAL_COLUMNS = [
    "predictor",
    "condition",
    "n",
    "regret",
    "low",
    "high",
    "std",
    "missing left out",
    "accuracy",
]
_FORMATS = {
    "regret": ".2f",
    "std": ".2f",
    "missing left out": ".2f",
    "accuracy": ".3f",
    "paper": ".1f",
}


def _list_answers(scores: LLMScores) -> Section:
    """Make the section with a table that counts calls, malformed answers and tokens."""
    final = scores.final
    is_shown = (final["kind"] == "llm") & (final["missing"] == "wrong")
    frame = final.loc[is_shown, _CALL_COLUMNS].astype(dict.fromkeys(_COUNT_COLUMNS, int))
    table = Table(frame, "Calls", formats={"malformed_share": ".2%"})
    return Section("Answers and tokens", [Prose(_TEXTS["answers"]), table])


_CALL_COLUMNS = [
    "model",
    "condition",
    "regime",
    "runs",
    "overflowed",
    "calls",
    "malformed_answers",
    "malformed_share",
    "embedded_answers",
    "missing_predictions",
    "prompt_tokens_per_run",
    "completion_tokens_per_run",
    "seconds_per_call",
]
_COUNT_COLUMNS = [
    "runs",
    "overflowed",
    "calls",
    "malformed_answers",
    "embedded_answers",
    "missing_predictions",
]


def _list_behaviour(acts: Sequence[PlayerBehaviour]) -> Section:
    """Make the section on the algorithms that explain the language models' choices.

    Args:
        acts: for each group of runs (one model in one condition), the algorithm that explains its
            choices.
    """
    tables = behaviour_tables(acts)
    caption = (
        "The algorithm that explains the model's choices, for each model, condition and regime"
    )
    blocks: list[Any] = [Prose(_TEXTS["acts"]), Table(join_intervals(tables["behaviour"]), caption)]
    families = tables["families"]
    if len(families):
        what = "Every family of algorithms that was fitted"
        blocks.append(Table(families, what, collapsed=True))
    return Section("Which algorithm explains the choices", blocks)


def _show_notes(notes: NoteTable) -> Section:
    """Make the section on the notes that language models write to themselves: the last note, growth
    over rounds, and examples.
    """
    blocks: list[Any] = [Prose(_TEXTS["notes"]), Table(notes.final(), _LAST_NOTE)]
    growth = notes.over_rounds()
    groups = growth["model"] + ", " + growth["condition"] + ", " + growth["regime"]
    for column, name in (("words", "words in the note"), ("prompt_tokens", "prompt tokens")):
        drawn = growth.assign(mean=growth[column], algorithm=groups).dropna(subset="mean")
        if len(drawn):
            record = _TEXTS["over_rounds"]
            blocks.append(curves(record, drawn, what=name, call=name.capitalize()))
    what = "Notes in the first instance of each group (model, condition, regime)"
    blocks.append(Table(_find_examples(notes.notes), what, collapsed=True))
    return Section("Notes", blocks)


_LAST_NOTE = "The last note of each run: its length, and the share of readable notes that are right"


def _find_examples(notes: pd.DataFrame) -> pd.DataFrame:
    """Return example notes as a table. For each model, condition and regime, they are the notes of
    its first episode after rounds 1, 6 and the last; long notes are cut.

    Args:
        notes: table with one row per note.
    """
    first_episode = notes.groupby(["model", "condition", "regime"])["index"].transform("min")
    is_last = notes["round"] == notes["last_round"]
    is_shown = (notes["index"] == first_episode) & (notes["round"].isin((1, 6)) | is_last)
    columns = ["model", "condition", "regime", "round", "note"]
    examples = notes.loc[is_shown, columns].copy()
    is_long = examples["note"].str.len() > _LONGEST_NOTE
    cut = examples["note"].str[:_LONGEST_NOTE] + " ..."
    examples["note"] = examples["note"].mask(is_long, cut)
    return examples


def _list_prompts(runs: Sequence[LLMRun]) -> Section:
    """Make the section with the system prompts: each distinct prompt once, under the names of the
    conditions that used it.
    """
    names_by_prompt: dict[str, dict[str, None]] = defaultdict(dict)  # sets in order
    for run in runs:
        names_by_prompt[run.prompt or "(not recorded)"][run.condition.name] = None
    blocks: list[Any] = [Prose(_TEXTS["prompts"])]
    for text, names in names_by_prompt.items():
        lines = pd.DataFrame({"prompt": text.splitlines()})
        blocks.append(Table(lines, ", ".join(names), collapsed=True))
    return Section("Prompts", blocks)


_LONGEST_NOTE = 400
_TEXTS = TEXTS["llm"]

_DRAWN = _TEXTS["drawn"]
_CURVE_KEYS = {name: key for name, (key, _) in _DRAWN.items()}
_CURVE_KEYS |= {"wma-handwired": "handwired", "wma-learned": "learned"}
_CURVE_NAMES = {name: short for name, (_, short) in _DRAWN.items()}


def _draw_regret(scores: LLMScores) -> list[Figure]:
    """Draw regret over rounds: first a figure of all models with a panel per regime, then one
    figure for each language model.
    """
    # A language model has two curves: missing predictions count as wrong, or are skipped. The first
    # one is drawn.
    regret = scores.curves[scores.curves["missing"] != "skipped"]
    llm = regret[regret["kind"] == "llm"]
    baselines = regret[(regret["kind"] == "model") | regret["model"].isin(list(_DRAWN))]
    shown = pd.concat([llm, baselines])
    groups = shown.groupby(["kind", "model", "regime", "round"], sort=False, as_index=False)
    mean = groups[["mean"]].mean()  # over the conditions of a language model
    # Without standard deviations (NaN), the curves of this figure have no bands.
    drawn = _add_bands(mean.assign(std=np.nan), mean["model"])
    figures = [curves(_TEXTS["first"], drawn, data=mean)]
    for model, of_model in llm.groupby("model", sort=False):
        frame = _panel_framings(of_model, baselines)
        record = {**_TEXTS["curves"], "columns": frame["framing"].nunique()}
        n = int(of_model["n"].max())
        figures.append(curves(record, frame, data=frame, model=model, n=n))
    return figures


def _panel_framings(of_model: pd.DataFrame, baselines: pd.DataFrame) -> pd.DataFrame:
    """Return the curves of a language model and of its baselines as a table; its column "panel"
    names a panel for each regime and framing of the prompt.

    Args:
        of_model: the language model's curves.
        baselines: curves of the baselines and the transformers, for comparison.
    """
    # A condition is "framing-memory": a panel for each framing has a curve for each memory.
    words = of_model["condition"].str.split("-", n=1, expand=True)  # columns 0 and 1
    framed = _add_bands(of_model, words[1]).assign(framing=words[0])
    panels = framed[["regime", "framing"]].drop_duplicates()
    repeated = panels.merge(_add_bands(baselines, baselines["model"]), on="regime")
    drawn = pd.concat([framed, repeated], ignore_index=True)
    return drawn.assign(panel=drawn["regime"] + ", " + drawn["framing"] + " framing")


def _add_bands(frame: pd.DataFrame, names: pd.Series[Any]) -> pd.DataFrame:
    """Add the columns that :func:`reports.blocks.curves` draws to a table of curves. They are
    ``algorithm`` and ``name`` of each curve, and ``low`` and ``high``, one standard deviation below
    and above the mean. Baselines get no band.

    Args:
        frame: the curves.
        names: the name of each row's player.
    """
    has_band = frame["kind"] != "baseline"
    deviation = frame["std"].where(has_band)
    shown = frame.assign(algorithm=names.map(_CURVE_KEYS).fillna(names))
    shown["name"] = names.map(_CURVE_NAMES).fillna(names)
    shown["low"] = frame["mean"] - deviation
    shown["high"] = frame["mean"] + deviation
    return shown
