"""Directed graphs as arrays: adjacency, breadth-first distances and the transitive closure, in
batches.

    >>> edges = np.array([[[0, 1], [1, 2], [2, 0], [3, 2]]])
    >>> distances(adjacency(edges, 4), np.array([0])).tolist()
    [[0, 1, 2, 4]]

An unreachable node has the number of nodes as its distance, which is more than any path's length.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from einops import einsum
from numpy.typing import NDArray


def adjacency(edges: NDArray[Any], n_nodes: int) -> NDArray[np.bool_]:
    """Return the adjacency matrix of each graph, Bool[..., source, target], True where there is an
    edge.

    Args:
        edges: source and target of each edge, Int[..., edge, 2]; repeated edges count once.
        n_nodes: number of nodes.
    """
    lead = edges.shape[:-2]
    flat = edges.reshape(-1, *edges.shape[-2:])
    matrix = np.zeros((len(flat), n_nodes, n_nodes), dtype=bool)
    matrix[np.arange(len(flat))[:, None], flat[..., 0], flat[..., 1]] = True
    return matrix.reshape(*lead, n_nodes, n_nodes)


def distances(matrix: NDArray[np.bool_], roots: NDArray[Any]) -> NDArray[np.int64]:
    """Return the number of steps from the root to each node, Int[..., node]; the number of nodes if
    there is no path.

    Args:
        matrix: adjacency matrices, Bool[..., source, target].
        roots: the root of each graph, Int[...].
    """
    n_nodes = matrix.shape[-1]
    weights = matrix.astype(np.float32)
    reached = np.eye(n_nodes, dtype=bool)[roots]
    steps = np.where(reached, 0, n_nodes)
    for step in range(1, n_nodes):
        new = (
            einsum(reached.astype(np.float32), weights, "... i, ... i j -> ... j") > 0
        ) & ~reached
        if not new.any():
            break
        steps[new] = step
        reached |= new
    return steps


def closure(matrix: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return the transitive closure of each graph, Bool[..., i, j]: True if there is a path of at
    least one step from node i to node j.

    Args:
        matrix: adjacency matrices, Bool[..., source, target].
    """
    paths = matrix
    n_nodes = matrix.shape[-1]
    for _ in range(n_nodes.bit_length()):
        steps = paths.astype(np.float32)
        longer = paths | (steps @ steps > 0)
        if np.array_equal(longer, paths):
            break
        paths = longer
    return paths
