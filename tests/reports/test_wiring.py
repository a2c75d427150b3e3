"""A wiring shows every edge of its table."""

import pandas as pd
import pytest
from matplotlib.patches import FancyArrowPatch

from circuits.circuit import EMBEDDINGS
from circuits.registry import RECORDS, build
from interp.results.figures import draw_wiring
from tests.refusals import refuses


@pytest.mark.parametrize("name", RECORDS)
def test_every_edge_and_every_head_is_drawn(name: str) -> None:
    """Of the handwired circuits: an arrow per edge, a box per head and exit."""
    circuit = build(name)
    edges = pd.DataFrame([vars(edge) for edge in circuit.edges if edge.source not in EMBEDDINGS])
    heads = circuit.to_frame()
    figure = draw_wiring([list(part["head"]) for _, part in heads.groupby("layer")], edges)
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
        draw_wiring,
        [["1.1 bind"]],
        edges,
    )
