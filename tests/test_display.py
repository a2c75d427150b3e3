"""What people look at first, at a prompt and in a notebook: a few lines, no walls of numbers, tables and figures."""

from importlib import import_module
from pkgutil import walk_packages

import numpy as np
import pandas as pd

import circuits
import interp
import probes
import reports
from circuits import compare
from circuits.benchmark.grading import BenchmarkResult
from circuits.compare.response import Cell, ResponsePart
from interp.core.display import table_html
from interp.evaluation.experts.regret import score
from interp.evaluation.suite import Evaluation
from interp.interventions.interchange import InterchangeResult
from interp.interventions.patching import PatchingResult
from interp.llm.scores import LLMScores
from interp.results.measure import Result
from interp.stats.intervals import Interval
from interp.tasks import experts, mdp
from interp.tasks.experts.predictors import bayes
from probes.result import Decoded


def test_a_line_and_a_table() -> None:
    """The line names the regret's predictor; the table has a row for every metric, and markup in names is text."""
    episodes = experts.sample(12, 20, 2, seed=0)
    result = score(bayes(episodes).predictions, episodes, name="<b>mine</b>")
    assert repr(result).startswith("Scores(accuracy=")
    assert "\n" not in repr(result)
    html = result._repr_html_()
    assert html.count("<tr") == 1 + len(result.to_frame())
    assert "<b>mine" not in html


def test_a_long_table_says_what_is_left_out() -> None:
    """A table is cut after ten rows, and the caption counts them; a probe's is its measure."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(20, 6, 8))
    result = probes.fit(x, x @ rng.normal(size=(8, 40)))
    assert result._repr_html_().count("<tr") == 2
    html = table_html("Every number", result.scores())
    assert html.count("<tr") == 1 + 10
    assert f"of {len(result.scores())} rows" in html


def test_every_result_has_a_sentence_a_table_and_a_picture() -> None:
    """Whatever has a table is a result, but for mere values; a dataclass keeps the line that says what was found."""
    types: set[type] = set()
    for package in (interp, probes, circuits, reports):
        for module in walk_packages(package.__path__, f"{package.__name__}."):
            if "__main__" not in module.name:
                values = vars(import_module(module.name)).values()
                types |= {value for value in values if isinstance(value, type)}
    with_a_table = {result_type for result_type in types if hasattr(result_type, "to_frame")}
    results = with_a_table - {pd.DataFrame, Decoded}
    assert {PatchingResult, InterchangeResult, compare.AlgorithmPart, Evaluation} <= results
    assert len(results) > 35
    for result_type in results:
        assert issubclass(result_type, Result)
        assert result_type.__repr__ is not object.__repr__


def test_a_result_says_and_draws_the_numbers_of_its_table() -> None:
    """The lowest and the highest by the words of their rows; the first of a name alone; of a benchmark the best.

    An evaluation says what was measured and what its rows and columns are.
    """
    rates = pd.DataFrame(
        {
            "regime": ["wide", "flat"],
            "n": [4, 5],
            "mean": [0.5, 0.2],
            "low": [0.4, 0.1],
            "high": 0.6,
        }
    )
    settings = {"model": "wma-gru", "n_episodes": 9}
    scores = LLMScores(rates, rates, {})
    evaluation = Evaluation({"summary": rates}, settings, explained="Rows are regimes.")
    assert repr(scores) == "mean: 0.2 [0.1, 0.6] (flat, n 5) to 0.5 [0.4, 0.6] (wide, n 4)."
    measured = "wma-gru, measured on 9 episodes of each regime."
    assert repr(evaluation) == f"{measured} Rows are regimes."
    for result in (scores, evaluation):
        labels = result.plot().axes[0].get_yticklabels()
        assert [label.get_text() for label in labels] == ["flat, n 5", "wide, n 4"]
    cell = Cell("flip", "later", Interval(0.5, 0.25, 1.0), 1.0, 1.0)
    assert (
        repr(ResponsePart(cells=(cell,)))
        == "response through the state: 0.5 [0.25, 1] (flip, later)."
    )
    assert repr(ResponsePart()) == "number: none."
    empty = ResponsePart().plot()
    assert not empty.axes[0].get_yticklabels()
    columns = [
        "subject",
        "machine",
        "form",
        "variant",
        "seed",
        "question",
        "method",
        "score",
        "value",
    ]
    rows = [
        ("s", "m", f, "v", 0, "edges", name, "ap", x)
        for f in "ab"
        for name, x in (("x:state", 0.7), ("y", 0.5))
    ]
    graded = BenchmarkResult(tuple(dict(zip(columns, row, strict=True)) for row in rows))
    assert ": x (0.70)" in repr(graded)
    assert graded.plot()._repr_png_().startswith(b"\x89PNG")
    drawing = circuits.build("wma-handwired", n_experts=2).plot()
    assert "'update'" in str(list(drawing.axes[0].texts))


def test_nothing_fills_the_screen() -> None:
    """Episodes, models, runs and caches take at most 12 lines; none shows an array."""
    episodes = experts.sample(6, 12, 2, seed=0)
    model = interp.load("wma-handwired", n_experts=2)
    run = interp.rollout(model, episodes, names_filter=lambda name: True)
    played = mdp.sample(n_episodes=2, n_rounds=5, n_states=3, n_actions=2, seed=0)
    for shown in (episodes, played, model, run, run.cache):
        assert len(repr(shown).splitlines()) <= 12
        assert "array(" not in repr(shown)
        assert "tensor(" not in repr(shown)
    assert (
        repr(episodes)
        == "ExpertEpisodes(6 episodes of 12 rounds, 2 experts, uniform regime, seed 0)"
    )
    assert "latent [" in repr(model)
    assert "L2H1 update" in repr(model)
    assert "blocks.0.attn.hook_pattern  [6, 12, 3," in repr(run.cache)
    html = interp.rollout(model, episodes)._repr_html_()
    assert "6 x 13 x 1 x" in html, "names and shapes, never thousands of numbers"
    assert len(html) < 1000, "names and shapes, never thousands of numbers"
