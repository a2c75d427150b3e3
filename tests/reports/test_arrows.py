"""A round as it ran shows the reads that write something, and only those; a wiring every edge of its table."""

from itertools import combinations

import numpy as np
import pandas as pd
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch

from circuits.circuit import EMBEDDINGS
from circuits.registry import RECORDS, build
from interp.results.figures import wiring
from reports.arrows import find_writes, flow
from tests.refusals import refuses

LABELS = ["<w>", "e_1", "p?"]


def test_edges_are_reads_that_write() -> None:
    """Attention to the sink, where nothing is written, is no edge; half attention on each of two keys is two."""
    pattern = np.array([[[1, 0, 0], [1, 0, 0], [0, 0.5, 0.5]]])
    found = find_writes([pattern], [pattern * [0, 1, 1]], LABELS, [["1.1"]])
    assert found[["layer", "head", "source", "target", "weight"]].to_numpy().tolist() == [
        [0, "1.1", "e_1", "p?", 0.5],
        [0, "1.1", "p?", "p?", 0.5],
    ]


def test_flow_draws_an_arrow_per_edge_and_names_every_head() -> None:
    """A head without an arrow is in the legend all the same: silence is information."""
    frame = find_writes([np.eye(3)[None]], [np.diag([0.0, 0, 1])[None]], LABELS, [["1.1"]])
    named = {"1.1": "1.1 copies", "2.1": "2.1 is silent"}
    figure = flow(frame.rename(columns={"head": "of"}), LABELS, 2, named)
    assert len([p for p in figure.axes[0].patches if isinstance(p, FancyArrowPatch)]) == 1
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == list(named.values())
    figure.draw_without_rendering()
    assert legend.get_window_extent().y0 >= 0 and legend.get_window_extent().x0 >= 0, (
        "the legend is cut off"
    )


def test_edges_refuse_what_does_not_fit() -> None:
    """A pattern with another number of heads than names would be mislabelled."""
    refuses(
        "layer 0: pattern",
        find_writes,
        [np.eye(3)[None]],
        [np.eye(3)[None]],
        LABELS,
        [["1.1", "1.2"]],
    )


def boxes(figure: Figure) -> list:
    """Where the labels on arrows stand, in pixels."""
    renderer = FigureCanvasAgg(figure).get_renderer()
    figure.draw(renderer)
    return [text.get_window_extent(renderer) for text in figure.axes[0].texts]


def test_no_label_covers_another() -> None:
    """Every arrow is named, and no two names overlap: twelve reads that share a target, and a crowd of heads."""
    labels, names = [f"e_{i}" for i in range(14)], [f"1.{i}" for i in range(6)]
    reads = [(i % 2, f"1.{i}", labels[i // 2], "e_13", 1.0) for i in range(24)]
    frame = pd.DataFrame(reads, columns=["layer", "of", "source", "target", "weight"])
    pattern = np.tril(np.ones((6, 14, 14))) * (np.arange(14) > 11)[:, None]
    crowd = find_writes([pattern], [pattern], labels, [names]).rename(columns={"head": "of"})
    crowds = (
        flow(frame, labels, 2, dict.fromkeys(frame["of"], "")),
        flow(crowd, labels, 1, dict.fromkeys(names, "")),
    )
    for figure, named in zip(crowds, (24, 6), strict=True):
        found = boxes(figure)
        assert len(found) == named and not [
            pair for pair in combinations(found, 2) if pair[0].overlaps(pair[1])
        ]


@pytest.mark.parametrize("name", RECORDS)
def test_every_edge_and_every_head_is_drawn(name: str) -> None:
    """Of the handwired circuits: an arrow per edge, a box per head and exit."""
    circuit = build(name)
    edges = pd.DataFrame([vars(edge) for edge in circuit.edges if edge.source not in EMBEDDINGS])
    heads = circuit.to_frame()
    figure = wiring([list(part["head"]) for _, part in heads.groupby("layer")], edges)
    axes = figure.axes[0]
    assert len([patch for patch in axes.patches if isinstance(patch, FancyArrowPatch)]) == len(
        edges
    )
    assert {*heads["head"], "prediction", "update"} <= {
        text.get_text().replace("\n", " ") for text in axes.texts
    }


def test_an_edge_from_nowhere_is_refused() -> None:
    """A misspelt head would otherwise be drawn as an exit."""
    edges = pd.DataFrame([{"source": "1.2 tag", "target": "prediction", "port": "value"}])
    refuses(
        r"an edge starts at '1.2 tag', which is not one of the heads 1.1 bind",
        wiring,
        [["1.1 bind"]],
        edges,
    )
