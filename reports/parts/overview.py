"""Report parts at the beginning and the end of a page: results, and how to reproduce them."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from interp.core.algorithm import with_parameters
from interp.core.display import describe_lacking
from interp.model.library import SHIPPED
from interp.results.measure import Measure
from reports.attention import heads_of
from reports.blocks import Code, Measures, Prose, Summary, counts, format_number
from reports.page import Section
from reports.part import Context, Part
from reports.texts import TEXTS

_BY_HAND = "These weights were written by hand, so they show nothing about training."
_ONE_RUN = "This model comes from one training run; another run may differ."


def part(*, title: str = "", handwired: str = "", learned: str = "") -> Part:
    """Make the report part that lists the measures (claims with verdicts) of all parts, and that
    defines title and introduction of the page.

    Args:
        title: title of a page on a handwired model.
        handwired: introduction of such a page.
        learned: introduction of a page on a learned transformer.
    """

    def heading(context: Context) -> tuple[str, str]:
        """Return the title and the introduction of the page. They are the texts passed to
        :func:`part` if these exist: both for a model compiled from a circuit, and the introduction
        for a learned transformer. Otherwise they are made from the task's and the model's names.
        """
        task = context.task
        usual = f"A model of {task.name}: {task.what}."
        if title and context.is_compiled:
            return title, handwired
        model = context.model
        if model.is_handwired:
            return f"{model.name}: {task.name}, wired by hand", usual
        is_transformer = not describe_lacking(model, "pattern")
        lead = learned if learned and is_transformer else usual
        return f"{model.name}: a learned model of {task.name}", lead

    return Part("summary", "What was found", lambda context: None, _draw, heading=heading)


def _draw(computed: None, context: Context) -> list[object]:
    """Return the blocks of the overview: the measures of all parts, the limits of the evidence, and
    facts about model and episodes.

    Args:
        computed: None, since this part computes nothing.
        context: the model, the episodes and the results of all parts.
    """
    facts = {**_describe(context.model), "Episodes": describe_episodes(context)}
    if context.quick:
        facts["Quick report"] = "fewer episodes and rounds"
        if context.left_out:
            titles = ", ".join(f"“{title}”" for title in context.left_out)
            facts["Quick report"] += f", and without {titles}"
    table = measures_of(context)
    measures: list[object] = [table] if table.measures else []
    return [*measures, Prose(_find_limits(context)), Summary(facts)]


def _find_limits(context: Context) -> str:
    """Return a text on the limits of the page's evidence: the section "Limits" of the model's card,
    or else a standard sentence.
    """
    if context.model.is_handwired:
        return _BY_HAND
    source = context.source
    cards = [SHIPPED / source / "README.md", Path(source) / "README.md"] if source else []
    for card in cards:
        if card.is_file():
            # The section ends at the next heading, or with the card; its items begin with "- ".
            limits = re.search(
                r"^## Limits\n+(.*?)(?=^## |\Z)", card.read_text("utf-8"), re.M | re.S
            )
            return " ".join(re.findall(r"^- (.*)$", limits[1], re.M)) if limits else _ONE_RUN
    return _ONE_RUN


def measures_of(context: Context) -> Measures:
    """Return the measures (claims with verdicts) of all parts of the report as a block of the
    overview. A part that could not be computed has one undecided measure.
    """
    measures: list[Measure] = []
    places: list[tuple[str, str]] = []
    for part in context.parts:
        section = context.sections.get(part.key)
        of_part = list(context.measures.get(part.key, ()))
        if part.key in context.failures:
            why = f"not computed, because {context.explain_failure(part.key)}"
            of_part.append(Measure(part.key, part.title, unless={"undecided": why}))
        measures += of_part
        places += [(section.slug, section.title) if section else ("", "")] * len(of_part)
    return Measures(tuple(measures), f"{counts(measures)}.", tuple(places))


def describe_episodes(context: Context) -> str:
    """Return a line of text that describes the episodes, such as their number, regime and seed."""
    episodes = context.episodes
    words = [f"{len(episodes)} episodes of {episodes.n_rounds} rounds"]
    words += [f"{context.sizes[size.name]} {size.option}" for size in context.task.sizes]
    recorded = context.task.recorded  # facts on recorded episodes and a fitted algorithm, if used
    if "episodes" in recorded:
        rounds = f"{recorded['rounds']:,} rounds of {recorded['episodes']} episodes"
        players = f"{recorded['participants']} participants played"
        words.append(f"all of which count, from {rounds} that {players}")
    else:
        words.append(f"{episodes.regime} regime")
    if recorded:
        words.append(f"compared with {with_parameters(context.algorithm)}")
    if episodes.seed is not None:
        words.append(f"seed {episodes.seed}")
    if context.quick:
        words.append("quick report")
    return ", ".join(words)


def _describe(model: Any) -> dict[str, str]:
    """Return facts about a model by name: numbers of heads, layers and weights; for a machine
    without heads, the channels that it carries and its hook points.
    """
    n_weights = sum(int((p != 0).sum()) for p in model.parameters())
    weights = f"{format_number(n_weights)} non-zero weights"
    precision = str(model.dtype).removeprefix("torch.")
    if not describe_lacking(model, "pattern"):
        layers = heads_of(model)
        n_heads = sum(len(layer) for layer in layers)
        width = model.channels[0].shape[-1]
        sizes = f"{len(layers)} layers, {n_heads} heads, d_model {width}"
        return {"Model": f"{sizes}, {weights}, {precision}"}
    carried = []
    for channel in model.channels:
        sizes = ", ".join(str(size) for size in channel.shape)
        growth = f", grows by {channel.grows} a round" if channel.grows else ""
        carried.append(f"{channel.name} [{sizes}]{growth}")
    points = []
    for kind in model.points.values():
        times = f" ({kind.n_layers} times a round)" if kind.has_layer else ""
        points.append(f"{kind.key}{times}")
    return {
        "Model": f"{weights}, {precision}, on {model.device}",
        "State from round to round (channels and shapes)": "; ".join(carried),
        "Hook points": ", ".join(points),
    }


_REPRODUCE = "How to reproduce"


def _draw_commands(computed: None, context: Context) -> Section:
    """Make the section with the command and the Python code that reproduce the numbers. There is no
    command if the model was passed as an object.

    Args:
        computed: None, since this part computes nothing.
        context: the model and the settings of the report.
    """
    shell = _write_command(context) if context.source else ""
    return commands(shell, _write_python(context))


def _write_command(context: Context) -> str:
    """Return the shell command that writes this report."""
    sizes, arguments = context.sizes_and_arguments
    recorded = context.task.recorded  # facts on recorded episodes and a fitted algorithm, if used
    options: dict[str, Any] = {
        **sizes,
        "set": _write_pairs(arguments),
        "regime": context.regime,
        "quick": context.quick,
        "episodes": context.n_episodes,
        "rounds": context.n_rounds,
        "seed": context.seed,
    }
    if "episodes" in recorded:
        options["recorded"] = "FILE"
    if "algorithm" in recorded:
        algorithm = context.algorithm
        options["hypothesis"] = [algorithm.key, *_write_pairs(algorithm.parameters)]
    if context.folder != Path("output"):
        options["out"] = context.folder
    return shlex.join(["interp", "report", context.source, *write_shell_options(options)])


def _write_pairs(values: Mapping[str, Any]) -> list[str]:
    """Return values as words of a command, each ``NAME=VALUE`` as in TOML."""
    return [f"{name}={json.dumps(value, default=str)}" for name, value in values.items()]


def _write_python(context: Context) -> str:
    """Return Python code that loads the model and runs it on the report's episodes."""
    model = "...  # the model that the report was given"
    if context.source:
        model = f"interp.load({context.source!r}{write_arguments(context.arguments)})"
    task = "tasks.of(model)"
    recorded = context.task.recorded
    if "episodes" in recorded:
        task += ".of_recorded(people)"
    if "algorithm" in recorded:
        task += ".with_hypothesis(algorithm)"
    drawn = {"regime": context.regime, "sizes": dict(context.changed_sizes)}
    has_outcomes = bool(context.model.layout.prediction_axes)
    return TEXTS["overview"]["python"].format(
        model=model,
        n_episodes=context.n_episodes,
        n_rounds=context.n_rounds,
        seed=context.seed,
        axes="[episode, round, outcome]" if has_outcomes else "[episode, round]",
        task=task,
        drawn=write_arguments({name: value for name, value in drawn.items() if value}),
    )


def write_arguments(arguments: Mapping[str, Any]) -> str:
    """Return keyword arguments as Python source, such as ", seed=0, quick=True"."""
    return "".join(f", {name}={value!r}" for name, value in arguments.items())


def write_shell_options(named: Mapping[str, Any]) -> list[str]:
    """Return keyword arguments as a list of options of a command. An argument that is False, None
    or empty is left out.

    >>> write_shell_options({"most_arms": 4, "quick": True, "missed": [-1, -9], "beside": (), "pairs": [], "out": None})
    ['--most-arms', '4', '--quick', '--missed=-1', '--missed=-9']
    """
    words = []
    for name, value in named.items():
        option = f"--{name.replace('_', '-')}"
        texts = [str(item) for item in (value if isinstance(value, list | tuple) else [value])]
        if value is True:
            words.append(option)
        elif any(text.startswith("-") for text in texts):
            # In one word with the option: "-1" as a word of its own would look like an option.
            words += [f"{option}={text}" for text in texts]
        elif value not in (None, "", [], ()) and value is not False:  # 0 is a value
            words += [option, *texts]
    return words


REPRODUCE = Part("reproduce", _REPRODUCE, lambda context: None, _draw_commands)
"""The report part with the shell command and the Python code that reproduce the numbers."""


def commands(shell: str, python: str) -> Section:
    """Make the section "How to reproduce".

    Args:
        shell: the shell command; "" for none.
        python: lines of Python code.
    """
    text = (
        "The same command with the same versions of libraries gives the same numbers. "
        "Seeds, versions and digests are below."
    )
    blocks = [Code(shell, "From a shell, in a checkout")] if shell else []
    return Section(_REPRODUCE, [Prose(text), *blocks, Code(python, "From Python")])
