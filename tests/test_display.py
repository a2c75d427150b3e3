"""What people look at first, at a prompt and in a notebook: a few lines, no walls of numbers, tables and figures."""

from importlib import import_module
from pkgutil import walk_packages

import numpy as np
import pytest

import interp
import probes
from circuits import compare
from circuits.benchmark.grading import Result
from interp import audit, interventions
from interp.display import _MOST_ROWS, Tabled, table_html
from interp.evaluation.experts.regret import score
from interp.evaluation.suite import Evaluation
from interp.interventions.interchange import InterchangeResult
from interp.interventions.patching import PatchingResult
from interp.measure import Found, Measured
from interp.tasks import experts, mdp
from interp.tasks.experts.predictors import bayes


def test_a_line_and_a_table() -> None:
    """The line names the regret's predictor; the table has a row for every metric, and markup in names is text."""
    episodes = experts.sample(12, 20, 2, seed=0)
    result = score(bayes(episodes).predictions, episodes, name="<b>mine</b>")
    assert repr(result).startswith("Scores(accuracy=") and "\n" not in repr(result)
    html = result._repr_html_()
    assert html.count("<tr") == 1 + len(result.to_frame()) and "<b>mine" not in html


def test_a_long_table_says_what_is_left_out() -> None:
    """A table is cut after ``_MOST_ROWS`` rows, and the caption counts them; a probe's is its measure."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(20, 6, 8))
    result = probes.fit(x, x @ rng.normal(size=(8, 40)))
    assert result._repr_html_().count("<tr") == 2
    html = table_html("Every number", result.scores())
    assert html.count("<tr") == 1 + _MOST_ROWS and f"of {len(result.scores())} rows" in html


def test_a_dataclass_keeps_the_short_line() -> None:
    """A mixed-in dataclass would otherwise write its own, with every array in it: what was found comes first."""
    for result, base in ((Evaluation, Tabled), (Result, Tabled), (InterchangeResult, Found), (PatchingResult, Found)):
        assert issubclass(result, base) and result.__repr__ is base.__repr__


def test_every_result_of_a_causal_method_and_of_a_comparison_has_a_sentence_a_table_and_a_picture() -> None:
    """Whatever has a table in the rooms of methods, and what a comparison exports, draws itself and says what it is."""
    names = [m.name for p in (interventions, audit) for m in walk_packages(p.__path__, f"{p.__name__}.")]
    named = [one for name in names for one in vars(import_module(name)).values()]
    named += [getattr(compare, name) for name in compare.__all__]
    results = {one for one in named if hasattr(one, "to_frame") and one not in (Found, Tabled, Measured)}
    assert {compare.AlgorithmPart, PatchingResult, InterchangeResult, audit.FixedPoints} <= results and len(
        results
    ) > 12
    for one in results:
        drawn = (one.plot, one._draw) != (Found.plot, Found._draw)
        assert drawn and (hasattr(one, "sentence") or "sentence" in one.__dataclass_fields__), one


def test_nothing_fills_the_screen() -> None:
    """Episodes, models, runs and caches take at most 12 lines; none shows an array."""
    episodes = experts.sample(6, 12, 2, seed=0)
    model = interp.load("wma-handwired", n_experts=2)
    run = interp.rollout(model, episodes, names_filter=lambda name: True)
    played = mdp.sample(n_episodes=2, n_rounds=5, n_states=3, n_actions=2, seed=0)
    for shown in (episodes, played, model, run, run.cache):
        assert len(repr(shown).splitlines()) <= 12 and "array(" not in repr(shown) and "tensor(" not in repr(shown)
    assert repr(episodes) == "ExpertEpisodes(6 episodes of 12 rounds, 2 experts, uniform regime, seed 0)"
    assert "latent [" in repr(model) and "2.1 update" in repr(model)
    assert "blocks.0.attn.hook_pattern  [6, 12, 3," in repr(run.cache)
    held = interp.rollout(model, episodes)._repr_html_()
    assert "6 x 13 x 1 x" in held and len(held) < 1000, "names and shapes, never thousands of numbers"


def test_a_plot_shows_in_a_notebook() -> None:
    """A figure that pyplot did not make is drawn, not named."""
    episodes = experts.sample(10, 12, 2, seed=0)
    run = interp.rollout(interp.load("wma-handwired", n_experts=2), episodes)
    with pytest.warns(UserWarning, match="few"):
        result = probes.fit(run.latents[:, 1:], probes.targets.log_weights(episodes), groups="episode")
    assert result.plot()._repr_png_().startswith(b"\x89PNG")
