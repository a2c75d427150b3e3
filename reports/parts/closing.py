"""What a report ends with: where it has the paper's figures, and how to get its numbers again.

The paper prints fifteen figures and three tables, numbered here in the order of its source. A page lists them: where
each is on this page and in what it differs, or which report has it, or why none has.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path

import pandas as pd

from reports.blocks import Code, Prose, Table
from reports.page import Section
from reports.part import Context, Part
from reports.parts import probing

PAPER = "The paper's figures"

PRINTED = {
    "1": ("regret over rounds; causal attention, experts", "wma-learned"),
    "2": ("reward, probe of the TD parts, agreement by step", "qlearning-learned"),
    "3": ("the prompts of the LLM experiments", "interp llm report"),
    "4": ("regret of an LLM, stratified regime", "interp llm report"),
    "5": ("weights of handwired Weighted Majority", "wma-handwired"),
    "6": ("Q-values of handwired Q-learning", "qlearning-handwired"),
    "7": ("figure 1 again", "wma-learned"),
    "8": ("regret by number of good experts and by correlation", "wma-learned"),
    "9": ("attention to each expert over the layers", "wma-learned"),
    "10": ("attention on the 4-state chain", "qlearning-learned"),
    "11": ("reward over a long horizon", "qlearning-learned"),
    "12": ("probe of the reward, with residuals", "qlearning-learned"),
    "13": ("error of the decoded Q-table", "qlearning-learned"),
    "14": ("reward in six reward families", "qlearning-learned"),
    "15": ("regret of an LLM, three regimes", "interp llm report"),
    "table 1": ("final regret, DeepSeek-V3", "interp llm report"),
    "table 2": ("final regret, notes without history", "interp llm report"),
    "table 3": ("formats of the notes", "interp llm report"),
}
"""Number of a figure or table of the paper -> what it shows, and the report that has it."""
_PAPER_TEXT = (
    "This table says where each figure of the paper that our models can make is shown. The paper's models are not "
    "ours: compare the numbers with those beside them here, not with the printed curves."
)


def paper(here: Mapping[str, tuple[str, str]]) -> Part:
    """The list, at the end of a page; ``here`` is number -> key of the part that shows it, and what differs there."""

    def draw(computed: None, context: Context) -> list[object]:
        return [Prose(_PAPER_TEXT), Table(_coverage(here, context), "The paper's figures and tables")]

    return Part("paper", PAPER, lambda context: None, draw)


def _coverage(here: Mapping[str, tuple[str, str]], context: Context) -> pd.DataFrame:
    titles = {part.key: part.title for part in context.parts}
    rows = []
    for number, (shows, report) in PRINTED.items():
        where, differs = f"the report on {report}", ""
        if report.startswith("interp "):
            where = f"the page of `{report}`"
        if number in here:
            key, differs_here = here[number]
            if key in titles:
                where, differs = f"here: {titles[key]}", differs_here
            elif context.quick:
                where = f"the full report on {report}"
            if key in context.failures:
                where, differs = "nowhere", f"not computed here: {context.reason(key)}"
            if key in context.missing:
                where, differs = "nowhere", context.missing[key]
        rows.append({"figure": number, "what it shows": shows, "where": where, "what differs": differs})
    return pd.DataFrame(rows)


def titled(number: str, text: str) -> str:
    """A caption that says in its end which of the paper's figures this is.

    >>> titled("8, top", "Regret.")
    'Regret. (Paper, figure 8, top.)'
    """
    return f"{text} (Paper, {'figures' if ' and ' in number else 'figure'} {number}.)"


_REPRODUCE = "How to reproduce"


def reproduce() -> Part:
    """The shell command and the Python that give these numbers again."""
    return Part("reproduce", _REPRODUCE, lambda context: None, _draw_commands)


def _draw_commands(computed: None, context: Context) -> Section:
    n_episodes, n_rounds, seed = context.n_episodes, context.n_rounds, context.seed
    counts = f"--episodes {n_episodes} --rounds {n_rounds} --seed {seed}"
    shell = " ".join(["interp report", context.source, *_options(context), counts])
    if context.folder not in (None, Path("output")):
        shell += f" --out {shlex.quote(str(context.folder))}"
    axes = "[episode, round, outcome]" if context.model.layout.prediction_axes else "[episode, round]"
    given = "".join(f", {name}={value!r}" for name, value in context.arguments.items())
    loaded = f"interp.load({context.source!r}{given})"
    model = loaded if context.source else "...  # the model that the report was given"
    drawn = {"regime": context.regime, "sizes": dict(context.given)}
    drawn_text = "".join(f", {name}={value!r}" for name, value in drawn.items() if value)
    lines = [
        "import interp",
        "from interp import tasks",
        "",
        f"model = {model}",
        f"episodes = tasks.of(model).sample_for(model, {n_episodes}, {n_rounds}, seed={seed}{drawn_text})",
        "run = interp.rollout(model, episodes)",
        f"run.predictions                       # {axes}",
    ]
    if probing.KEY in context.keys and probing.KEY not in context.failures:
        decoded = [result.target.key for result in context.result(probing.KEY)]
        lines.insert(1, "import probes")
        lines.append(f"probes.probe(model, episodes, {decoded}, seed={seed})")
    return commands(shell if context.source else "", "\n".join(lines))


def _options(context: Context) -> list[str]:
    """What else the command was given: sizes, arguments of the model, the regime."""
    sizes, arguments = context.asked
    words = [f"--{option} {value}" for option, value in sizes.items()]
    if arguments:
        words.append("--set " + " ".join(f"{name}={str(value).replace(' ', '')}" for name, value in arguments.items()))
    words += [f"--regime {context.regime}"] * bool(context.regime)
    return [*words, *["--quick"] * context.quick]


def commands(shell: str, python: str) -> Section:
    """The section, from a shell command (empty where there is none) and lines of Python."""
    text = "The same command with the same versions gives the same numbers. Seeds, versions and digests are below."
    blocks = [Code(shell, "From a shell, in a checkout")] if shell else []
    return Section(_REPRODUCE, [Prose(text), *blocks, Code(python, "From Python")])
