"""Rows or clusters joined by links between them."""

import numpy as np
from scipy import sparse

from mlflow_b3.linkage.splits import Rows


def joined_by(one: Rows, two: Rows, count: int) -> Rows:
    """Join all that is linked: the group of each of `count` rows or clusters."""
    links = sparse.coo_array((np.ones(len(one), dtype=bool), (one, two)), shape=(count, count))
    _, labels = sparse.csgraph.connected_components(links, directed=False)
    return np.asarray(labels, dtype=np.intp)


def joined_up_to(limit: float, sizes: Rows, one: Rows, two: Rows) -> Rows:
    """Join clusters link by link unless more than `limit` rows would hang together."""
    parent, weight = list(range(len(sizes))), sizes.tolist()

    def root(node: int) -> int:
        while parent[node] != node:
            parent[node] = node = parent[parent[node]]
        return node

    for a, b in zip(one.tolist(), two.tolist(), strict=True):
        a, b = root(a), root(b)
        if a != b and weight[a] + weight[b] <= limit:
            parent[b] = a
            weight[a] += weight[b]
    return np.array([root(node) for node in range(len(sizes))], dtype=np.intp)
