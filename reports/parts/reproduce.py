"""What a report ends with: how to get its numbers again."""

from __future__ import annotations

from reports.blocks import Code, Prose
from reports.page import Section
from reports.part import Context, Part
from reports.parts import probing

TITLE = "How to reproduce"
_TEXT = "The same command with the same versions gives the same numbers. Seeds, versions and digests are below."


def part() -> Part:
    """The shell command and the Python that give these numbers again."""
    return Part("reproduce", TITLE, lambda context: None, draw)


def draw(computed: None, context: Context) -> Section:
    """The command that writes the page again, and the same numbers from Python."""
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
    options = {size.name: size.option for size in context.task.sizes}
    given = {**context.arguments, **context.given}
    words = [f"--{options[name]} {value}" for name, value in given.items() if name in options]
    sets = [f"{name}={str(value).replace(' ', '')}" for name, value in given.items() if name not in options]
    return [
        *words,
        *(["--set " + " ".join(sets)] if sets else []),
        *(["--regime", context.regime] * bool(context.regime)),
    ]


def commands(shell: str, python: str) -> Section:
    """The section, from a shell command (empty where there is none) and lines of Python."""
    blocks = [Code(shell, "From a shell, in a checkout")] if shell else []
    return Section(TITLE, [Prose(_TEXT), *blocks, Code(python, "From Python")])
