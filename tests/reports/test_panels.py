"""Small multiples show what they are given."""

from itertools import pairwise

import matplotlib
import numpy as np
import pandas as pd
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from interp.results import figures
from interp.results.figures import DIVERGING, SEQUENTIAL
from reports import panels


def tidy(n_panels: int, n_curves: int) -> pd.DataFrame:
    rows = [
        (f"panel {p}", f"curve {c}", t, float(c % 2))
        for p in range(n_panels)
        for c in range(n_curves)
        for t in range(1, 4)
    ]
    return pd.DataFrame(rows, columns=["panel", "algorithm", "round", "mean"])


def test_small_multiples_share_axes_and_one_legend() -> None:
    """Five panels in rows of three: one legend, the same limits, and no axes where there is no panel."""
    figure = panels.curves(tidy(5, 2), by="panel", ylabel="regret")
    drawn = [axes for axes in figure.axes if axes.axison]
    assert [axes.get_title(loc="left") for axes in drawn] == [f"panel {i}" for i in range(5)]
    assert len(figure.legends) == 1
    assert len({axes.get_ylim() for axes in drawn}) == 1


def test_names_at_the_ends_do_not_touch() -> None:
    """Six curves that end at two values are named apart, in every panel."""
    figure = panels.curves(tidy(2, 6), by="panel", ylabel="regret", direct=True)
    renderer = FigureCanvasAgg(figure).get_renderer()
    figure.draw(renderer)
    for axes in figure.axes:
        boxes = sorted(
            (text.get_window_extent(renderer) for text in axes.texts), key=lambda box: box.y0
        )
        assert len(boxes) == 6
        assert all(low.y1 <= high.y0 for low, high in pairwise(boxes))


def test_every_head_has_its_panel() -> None:
    """Three heads and one: four pictures of what was given, thinned labels on the left and below, a colour bar."""
    patterns = [np.tril(np.random.default_rng(0).random((3, 4, 4))), np.eye(4)[None]]
    figure = panels.attention(patterns, list("abcd"), [["1.1", "1.2", "1.3"], ["2.1"]])
    drawn = {
        axes.get_title(loc="left"): np.asarray(axes.images[0].get_array())
        for axes in figure.axes
        if axes.images
    }
    np.testing.assert_array_equal(drawn["1.2"], patterns[0][1])
    np.testing.assert_array_equal(drawn["2.1"], patterns[1][0])


@pytest.mark.parametrize("colours", [SEQUENTIAL, DIVERGING])
def test_opacity_grows_with_the_magnitude(colours: matplotlib.colors.Colormap) -> None:
    """A third of the largest value is a third opaque: four even stops once made it white."""
    values = np.linspace(0, 1, 21)
    shares = values if colours is SEQUENTIAL else (1 + values) / 2
    alpha = colours(shares)[:, 3]
    assert (np.diff(alpha) > 0).all()
    assert np.abs(alpha - values).max() < 0.01


def test_many_series_are_told_apart_by_what_matters() -> None:
    """Of 32 experts the six that end farthest from the middle have hues and names; the others are one grey."""
    reference = np.outer(np.arange(5), np.arange(32.0) - 15.5)
    figure = figures.trajectories(
        reference, reference, [f"e_{i}" for i in range(32)], ylabel="log-weight"
    )
    (legend,) = figure.legends
    named = [text.get_text() for text in legend.get_texts()]
    assert {"e_0", "e_31", "e_1", "e_30", "e_2", "e_29", "26 others"} <= set(named)
    assert "e_16" not in named
