"""Figures draw exactly what they are given, refuse what does not fit, and leave matplotlib as it was."""

import re

import matplotlib
import numpy as np
import pandas as pd

from interp import tasks
from interp.results import figures
from interp.results.palette import HUES, choose_line_styles
from interp.results.style import inline_svg
from tests.refusals import refuses

LABELS = ["e_1", "e_2"]


def tidy(**means: list[float]) -> pd.DataFrame:
    parts = []
    for key, mean in means.items():
        rounds = range(1, 1 + len(mean))
        columns = {"round": rounds, "algorithm": key, "mean": mean, "low": mean, "high": mean}
        parts.append(pd.DataFrame(columns))
    return pd.concat(parts)


def test_trajectories_draw_both_and_the_difference() -> None:
    """The subject lies on its reference, and the right panel is |difference|."""
    values = np.array([[0.0, 0.0], [1.0, 2.0], [2.0, 3.0]])
    figure = figures.trajectories(values, values - 0.5, LABELS, ylabel="log-weight")
    left_axes, right = figure.axes
    drawn = [line.get_ydata() for line in left_axes.lines if len(line.get_ydata())]
    first, second = values.T
    np.testing.assert_array_equal(drawn, [first - 0.5, first, second - 0.5, second])
    differences = [line.get_ydata() for line in right.lines]
    np.testing.assert_array_equal(differences, np.full((2, 3), 0.5))


def test_trajectories_say_when_the_difference_is_zero() -> None:
    """No logarithmic axis of nothing: an exact match says so."""
    values = np.ones((3, 2))
    figure = figures.trajectories(values, values, LABELS, ylabel="log-weight")
    texts = [text.get_text() for text in figure.axes[1].texts]
    assert texts == ["exactly 0 at every step"]


def test_trajectories_of_a_missed_round_have_a_gap() -> None:
    """The scale of the differences is that of the other rounds."""
    values = np.array([[0.0, 0.0], [np.nan, np.nan], [2.0, 3.0]])
    figure = figures.trajectories(values, values - 0.5, LABELS, ylabel="log-weight")
    assert figure.axes[1].get_ylim() == (0, 1.3)


def test_rounds_of_a_curve_count_from_0() -> None:
    """Two episodes of three rounds: the mean of the first is at round 0."""
    curve = figures.tabulate_by_round("model", "mine", np.array([[1.0, 2, 3], [3.0, 2, 1]]), seed=0)
    assert curve["round"].tolist() == [0, 1, 2]
    assert curve["mean"].tolist() == [2, 2, 2]


def test_curves_keep_an_algorithm_its_colour() -> None:
    """Whatever else is drawn, and in whatever order, an algorithm has one colour."""
    first = figures.curves(tidy(model=[1, 2], bayes=[0, 1]), ylabel="regret")
    second = figures.curves(tidy(random=[3, 4], bayes=[0, 1], unheard_of=[1, 1]), ylabel="regret")
    first_colours = {line.get_label(): line.get_color() for line in first.axes[0].lines}
    second_colours = {line.get_label(): line.get_color() for line in second.axes[0].lines}
    assert first_colours["bayes"] == second_colours["bayes"]
    assert len(set(second_colours.values())) >= 3


def test_no_two_tasks_give_one_name_two_looks() -> None:
    """The later task would repaint the pages of the earlier one."""
    looks = [item for task in tasks.list_tasks() for item in task.report.looks.items()]
    assert len(dict(looks)) == len(set(looks)) == len(looks)


def test_colours_stay_apart_while_there_are_hues() -> None:
    """Unknown names never take a known algorithm's colour on the same figure."""
    keys = ["model", "one", "two", "bayes", "three", "random"]
    assert len({look.colour for look in choose_line_styles(keys).values()}) == len(keys)


def test_heatmap_numbers_its_cells_and_leaves_holes() -> None:
    """Cells carry their values, NaN and nothing are blank, labels are the positions' own."""
    grid = pd.DataFrame([[1.0, np.nan], [0.0, -0.5]], ["layer 0", "layer 1"], ["<z>", "p?"])
    figure = figures.heatmaps({"effects": grid}, label="effect")
    axes = figure.axes[0]
    assert [text.get_text() for text in axes.texts] == ["1.00", "−0.50"]
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["<z>", "p?"]


def test_heatmap_shows_a_hole_other_than_a_zero() -> None:
    """0 has the page's colour, and NaN is grey."""
    grid = pd.DataFrame([[0.0, np.nan]], columns=["zero", "hole"])
    (image,) = figures.heatmaps({"effects": grid}, label="effect").axes[0].images
    (zero, hole), *_ = image.to_rgba(image.get_array())
    assert zero[3] == 0
    assert hole[3] > 0


GRID = pd.DataFrame([[1.0, 0.5]], ["layer 0"], ["<z>", "p?"])


def test_trajectories_of_other_shapes_are_refused() -> None:
    two, three = np.ones((3, 2)), np.ones((3, 3))
    refuses("must both be", figures.trajectories, two, three, LABELS, ylabel="")


def test_heatmaps_of_other_columns_are_refused() -> None:
    """A mislabelled picture is worse than none."""
    grids = {"a": pd.DataFrame([[1]], columns=["x"]), "b": pd.DataFrame([[1]])}
    refuses("same columns", figures.heatmaps, grids, label="")


def test_drawing_changes_no_setting() -> None:
    """The caller's matplotlib is as it was, and the caller's settings do not reach our figures."""
    before = dict(matplotlib.rcParams)
    plain = inline_svg(figures.heatmaps({"effects": GRID}, label="effect"), "t", "f")
    with matplotlib.rc_context({"font.size": 30, "axes.grid": False}):
        again = figures.heatmaps({"effects": GRID}, label="effect")
        assert inline_svg(again, "t", "f") == plain
    assert dict(matplotlib.rcParams) == before


def test_svg_follows_the_page() -> None:
    """Text is text in the page's colour, hues are the theme's, every id is the figure's own, it can be read aloud."""
    svg = inline_svg(
        figures.curves(tidy(model=[1.0, 2.0]), ylabel="regret"), "Regret <of> it", "f7"
    )
    assert svg.startswith("<svg")
    assert 'role="img"' in svg
    assert ">Regret &lt;of&gt; it</title>" in svg
    assert "<text" in svg
    assert "currentColor" in svg
    assert "var(--blue)" in svg
    assert "#000000" not in svg
    assert not any(light in svg for light, _ in HUES.values())
    assert all(
        name.startswith("f7-") for name in re.findall(r'(?:\bid="|url\(#|href="#)([^")]+)', svg)
    )
    assert "<style" not in svg
    assert "<metadata" not in svg
