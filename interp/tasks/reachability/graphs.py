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
    batch_shape = edges.shape[:-2]
    flat = edges.reshape(-1, *edges.shape[-2:])  # [graph, edge, 2]
    matrix = np.zeros((len(flat), n_nodes, n_nodes), dtype=bool)
    matrix[np.arange(len(flat))[:, None], flat[..., 0], flat[..., 1]] = True
    return matrix.reshape(*batch_shape, n_nodes, n_nodes)


def distances(matrix: NDArray[np.bool_], roots: NDArray[Any]) -> NDArray[np.int64]:
    """Return the number of steps from the root to each node, Int[..., node]; the number of nodes if
    there is no path.

    Args:
        matrix: adjacency matrices, Bool[..., source, target].
        roots: the root of each graph, Int[...].
    """
    n_nodes = matrix.shape[-1]
    weights = matrix.astype(np.float32)  # products of floats are much faster than of booleans
    reached = np.eye(n_nodes, dtype=bool)[roots]
    steps = np.where(reached, 0, n_nodes)
    for step in range(1, n_nodes):
        # Number of reached parents of each node.
        n_parents = einsum(reached.astype(np.float32), weights, "... i, ... i j -> ... j")
        is_new = (n_parents > 0) & ~reached
        if not is_new.any():
            break
        steps[is_new] = step
        reached |= is_new
    return steps


def closure(matrix: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return the transitive closure of each graph, Bool[..., i, j]: True if there is a path of at
    least one step from node i to node j.

    Args:
        matrix: adjacency matrices, Bool[..., source, target].
    """
    paths = matrix
    n_nodes = matrix.shape[-1]
    for _ in range(n_nodes.bit_length()):  # each pass doubles the length of the paths
        weights = paths.astype(np.float32)
        longer = paths | (weights @ weights > 0)
        if np.array_equal(longer, paths):
            break
        paths = longer
    return paths
