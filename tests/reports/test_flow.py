"""The drawing of a circuit shows the reads that write something, and only those."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.patches import FancyArrowPatch

from interp.errors import InputError
from reports.flow import edges, flow

LABELS = ["<w>", "e_1", "p?"]


def test_edges_are_reads_that_write() -> None:
    """Attention to the sink, where nothing is written, is no edge; half attention on each of two keys is two."""
    pattern = np.array([[[1, 0, 0], [1, 0, 0], [0, 0.5, 0.5]]])
    found = edges([pattern], [pattern * [0, 1, 1]], LABELS, [["1.1"]])
    assert found[["layer", "head", "source", "target", "weight"]].to_numpy().tolist() == [
        [1, "1.1", "e_1", "p?", 0.5],
        [1, "1.1", "p?", "p?", 0.5],
    ]


def test_flow_draws_an_arrow_per_edge_and_names_every_head() -> None:
    """A head without an arrow is in the legend all the same: silence is information."""
    frame = edges([np.eye(3)[None]], [np.diag([0.0, 0, 1])[None]], LABELS, [["1.1"]])
    figure = flow(frame, LABELS, [{"1.1": "copies"}, {"2.1": "is silent"}])
    axes = figure.axes[0]
    assert len([p for p in axes.patches if isinstance(p, FancyArrowPatch)]) == 1
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["1.1  copies", "2.1  is silent"]


def test_edges_refuse_what_does_not_fit() -> None:
    """A pattern with another number of heads than names would be mislabelled."""
    with pytest.raises(InputError, match="layer 1: pattern"):
        edges([np.eye(3)[None]], [np.eye(3)[None]], LABELS, [["1.1", "1.2"]])
