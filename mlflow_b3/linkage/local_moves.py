"""Making a clustering cheaper by moving rows, and by joining clusters."""

from collections import deque

import numpy as np
from scipy import sparse

from mlflow_b3.linkage.signed_graph import SignedGraph
from mlflow_b3.linkage.splits import Floats, Rows


def improve(graph: SignedGraph, labels: Rows) -> Rows:
    """Move rows, then whole clusters, to where they cost least, until no move helps.

    Each move makes the clustering cheaper, so it ends; what it ends in is no better than that no
    single row and no single cluster can move with profit.
    """
    excess, sizes = graph.excess, np.ones(graph.n)
    while True:
        labels = _numbered(_move(excess, sizes, graph.missing, labels))
        count = int(labels.max()) + 1
        members = sparse.csr_array(
            (np.ones(graph.n), (np.arange(graph.n), labels)), shape=(graph.n, count)
        )
        between = sparse.csr_array(members.T @ excess @ members)
        joined = _numbered(
            _move(between, np.bincount(labels).astype(float), graph.missing, np.arange(count))
        )
        if int(joined.max()) + 1 == count:
            return labels
        labels = joined[labels]


def _numbered(labels: Rows) -> Rows:
    return np.asarray(np.unique(labels, return_inverse=True)[1], dtype=np.intp)


def _move(excess: "sparse.csr_array", sizes: Floats, missing: float, labels: Rows) -> Rows:
    """Move nodes of the given sizes one by one; see `SignedGraph.excess` for the weights."""
    starts, others = excess.indptr.tolist(), excess.indices.tolist()
    weights, size = excess.data.tolist(), sizes.tolist()
    home = labels.tolist()
    total = np.bincount(labels, weights=sizes, minlength=len(home)).tolist()
    free = [label for label, rows in enumerate(total) if not rows]
    least = 1e-9 * max(1.0, float(np.abs(excess.data).max(initial=0)))
    waiting, queued = deque(range(len(home))), [True] * len(home)
    while waiting:
        node = waiting.popleft()
        queued[node] = False
        own, mass = home[node], size[node]
        pull = {own: 0.0}
        for place in range(starts[node], starts[node + 1]):
            if others[place] != node:
                label = home[others[place]]
                pull[label] = pull.get(label, 0.0) + weights[place]
        stay = pull[own] + missing * mass * (total[own] - mass)
        best, gain = own, least
        for label, weight in pull.items():
            if label != own and weight + missing * mass * total[label] - stay > gain:
                best, gain = label, weight + missing * mass * total[label] - stay
        if -stay > gain and free:
            best = free.pop()
        if best == own:
            continue
        home[node] = best
        total[own] -= mass
        total[best] += mass
        if total[own] <= 0:
            free.append(own)
        for place in range(starts[node], starts[node + 1]):
            if not queued[others[place]]:
                queued[others[place]] = True
                waiting.append(others[place])
    return np.asarray(home, dtype=np.intp)
