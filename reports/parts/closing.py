"""What a report ends with: where it has the paper's figures, and how to get its numbers again.

The paper prints fifteen figures and three tables, numbered here in the order of its source. A page lists them: where
each is on this page and in what it differs, or which report has it, or why none has.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import pandas as pd

from reports.blocks import Code, Prose, Table
from reports.page import Section
from reports.part import Context, Part
from reports.parts import probing

PAPER = "The paper's figures"


class _Printed(NamedTuple):
    """A figure or table of the paper: what it ``shows``, and the ``report`` that has it."""

    shows: str
    report: str


PRINTED: dict[str, _Printed] = {
    "1": _Printed("regret over rounds; causal attention, experts", "wma-learned"),
    "2": _Printed("reward, probe of the TD parts, agreement by step", "qlearning-learned"),
    "3": _Printed("the prompts of the LLM experiments", "interp llm report"),
    "4": _Printed("regret of an LLM, stratified regime", "interp llm report"),
    "5": _Printed("weights of handwired Weighted Majority", "wma-handwired"),
    "6": _Printed("Q-values of handwired Q-learning", "qlearning-handwired"),
    "7": _Printed("figure 1 again", "wma-learned"),
    "8": _Printed("regret by number of good experts and by correlation", "wma-learned"),
    "9": _Printed("attention to each expert over the layers", "wma-learned"),
    "10": _Printed("attention on the 4-state chain", "qlearning-learned"),
    "11": _Printed("reward over a long horizon", "qlearning-learned"),
    "12": _Printed("probe of the reward, with residuals", "qlearning-learned"),
    "13": _Printed("error of the decoded Q-table", "qlearning-learned"),
    "14": _Printed("reward in six reward families", "qlearning-learned"),
    "15": _Printed("regret of an LLM, three regimes", "interp llm report"),
    "table 1": _Printed("final regret, DeepSeek-V3", "interp llm report"),
    "table 2": _Printed("final regret, notes without history", "interp llm report"),
    "table 3": _Printed("formats of the notes", "interp llm report"),
}
"""Number -> figure or table of the paper."""
_PAPER_TEXT = (
    "This table says where each figure of the paper that our models can make is shown. The paper's models are not "
    "ours: compare the numbers with those beside them here, not with the printed curves."
)


class Here(NamedTuple):
    """Where a page has one of them: the ``key`` of the part that shows it, and what ``differs`` there."""

    key: str
    differs: str


def paper(here: Mapping[str, Here]) -> Part:
    """The list, at the end of a page; ``here`` is number -> where the page of this task has it, where it can."""

    def draw(computed: None, context: Context) -> list[object]:
        return [Prose(_PAPER_TEXT), Table(_coverage(here, context), "The paper's figures and tables")]

    return Part("paper", PAPER, lambda context: None, draw)


def _coverage(here: Mapping[str, Here], context: Context) -> pd.DataFrame:
    titles = {part.key: part.title for part in context.parts}
    rows = []
    for number, printed in PRINTED.items():
        where, differs = f"the report on {printed.report}", ""
        if printed.report.startswith("interp "):
            where = f"the page of `{printed.report}`"
        if (at := here.get(number)) is not None:
            if at.key in titles:
                where, differs = f"here: {titles[at.key]}", at.differs
            elif context.quick:
                where = f"the full report on {printed.report}"
            if at.key in context.failures:
                where, differs = "nowhere", f"not computed here: {context.reason(at.key)}"
        rows.append({"figure": number, "what it shows": printed.shows, "where": where, "what differs": differs})
    return pd.DataFrame(rows)


def titled(number: str, text: str) -> str:
    """A caption that says which of the paper's figures this is.

    >>> titled("8, top", "Regret.")
    'Paper, figure 8, top. Regret.'
    """
    return f"Paper, {'figures' if ' and ' in number else 'figure'} {number}. {text}"


_REPRODUCE = "How to reproduce"
_REPRODUCE_TEXT = (
    "The same command with the same versions gives the same numbers. Seeds, versions and digests are below."
)


def reproduce() -> Part:
    """The shell command and the Python that give these numbers again."""
    return Part("reproduce", _REPRODUCE, lambda context: None, _draw_commands)


def _draw_commands(computed: None, context: Context) -> Section:
    n_episodes, n_rounds, seed = context.n_episodes, context.n_rounds, context.seed
    counts = f"--episodes {n_episodes} --rounds {n_rounds} --seed {seed}"
    shell = " ".join(["interp report", context.source, *_options(context), counts])
    axes = "[episode, round, outcome]" if context.model.layout.prediction_axes else "[episode, round]"
    given = "".join(f", {name}={value!r}" for name, value in context.arguments.items())
    model = (
        f"interp.load({context.source!r}{given})" if context.source else "...  # the model that the report was given"
    )
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
    return [*words, *([f"--regime {context.regime}"] if context.regime else [])]


def commands(shell: str, python: str) -> Section:
    """The section, from a shell command (empty where there is none) and lines of Python."""
    blocks = [Code(shell, "From a shell, in a checkout")] if shell else []
    return Section(_REPRODUCE, [Prose(_REPRODUCE_TEXT), *blocks, Code(python, "From Python")])
