"""Clusterings from fractional distances or from chance, and a cheap lower limit of their cost."""

import math

import numpy as np

from mlflow_b3.linkage.signed_graph import SignedGraph
from mlflow_b3.linkage.splits import Floats, Rows

#: Wedges of two positive pairs, and pairs of a row, that the lower limit looks at; fewer make it looser, never wrong.
MOST_WEDGES = 1_000_000
MOST_NEIGHBOURS = 1_000


def grow_regions(graph: SignedGraph, distance: Floats, rng: np.random.Generator) -> Rows:
    """Round fractional distances by growing balls, after Demaine et al. (2006).

    From any row a ball grows until the positive weight that it cuts is at most c·ln(n+1) times the
    fractional weight inside of it, c = 2 + 1/ln(n+1); this happens before radius 1/c. The clustering
    costs at most O(log n) times the linear program; doi:10.1016/j.tcs.2006.05.008.
    """
    n = graph.n
    positive = np.zeros((n, n))
    keep = graph.positive
    positive[graph.first[keep], graph.second[keep]] = graph.weight[keep]
    positive += positive.T
    paid = positive * distance
    seed_volume = paid.sum() / 2 / n
    limit = 2 + 1 / math.log(n + 1)
    labels = np.full(n, -1, dtype=np.intp)
    for centre in rng.permutation(n):
        if labels[centre] >= 0:
            continue
        left = np.flatnonzero(labels < 0)
        order = left[np.argsort(distance[centre, left], kind="stable")]
        away = distance[centre, order]
        inside = np.zeros(n, dtype=bool)
        for place, row in enumerate(order):
            inside[row] = True
            radius = min(away[place + 1] if place + 1 < len(order) else 1.0, 1 / limit)
            if radius <= away[place] < 1 / limit:
                continue  # more rows at this distance: the ball is not complete
            outside = left[~inside[left]]
            ball = order[: place + 1]
            cut = positive[np.ix_(ball, outside)]
            volume = seed_volume + paid[np.ix_(ball, ball)].sum() / 2
            volume += (cut * (radius - away[: place + 1])[:, None]).sum()
            if cut.sum() <= limit * math.log(n + 1) * volume or radius >= 1 / limit:
                break
        labels[inside] = labels.max() + 1
    return labels


def pivot(graph: SignedGraph, rng: np.random.Generator) -> Rows:
    """Let rows in random order take all rows that speak for them; a start for local moves only."""
    excess, labels = graph.excess, np.full(graph.n, -1, dtype=np.intp)
    count = 0
    for centre in rng.permutation(graph.n):
        if labels[centre] >= 0:
            continue
        span = slice(excess.indptr[centre], excess.indptr[centre + 1])
        near = excess.indices[span][excess.data[span] + graph.missing > 0]
        labels[near[labels[near] < 0]] = count
        labels[centre] = count
        count += 1
    return labels


def triangle_bound(graph: SignedGraph, rng: np.random.Generator) -> float:
    """Return a lower limit of the cost: what triangles with one pair against must pay.

    Two positive pairs and one against, (i, j, k), cost at least the smallest of their weights, in
    whatever clustering. Triangles are paid one after the other out of what is left of the weights,
    which is a feasible solution of the dual linear program.
    """
    edges, left = _bad_triangles(graph)
    bound, active = 0.0, np.arange(len(edges))
    while len(active):
        order = rng.permutation(len(active))
        first_claim = np.full(len(left), len(active))
        for side in range(3):
            np.minimum.at(first_claim, edges[active, side], order)
        chosen = active[(first_claim[edges[active]] == order[:, None]).all(axis=1)]
        pay = left[edges[chosen]].min(axis=1)
        bound += float(pay.sum())
        left[edges[chosen]] -= pay[:, None]
        active = active[(left[edges[active]] > 0).all(axis=1)]
    return bound


def _bad_triangles(graph: SignedGraph) -> tuple[Rows, Floats]:
    """Return triangles as three numbers of pairs, and the weight |w| of each pair."""
    n, excess = graph.n, graph.excess
    wedges, found = [], 0
    for centre in range(n):
        span = slice(excess.indptr[centre], excess.indptr[centre + 1])
        near = excess.indices[span][excess.data[span] + graph.missing > 0][:MOST_NEIGHBOURS]
        one, two = np.triu_indices(len(near), 1)
        wedges.append(np.column_stack([np.full(len(one), centre), near[one], near[two]]))
        found += len(one)
        if found > MOST_WEDGES:
            break
    middle, one, two = np.concatenate(wedges).astype(np.intp).T
    keys = _key(graph.first, graph.second, n)
    order = np.argsort(keys)
    keys, weights = keys[order], graph.weight[order]

    def weight_of(pairs: Rows) -> Floats:
        place = np.minimum(np.searchsorted(keys, pairs), len(keys) - 1)
        return np.where(keys[place] == pairs, weights[place], graph.missing)

    closing = _key(one, two, n)
    bad = weight_of(closing) < 0
    triangles = np.column_stack([_key(middle, one, n), _key(middle, two, n), closing])[bad]
    pairs, numbers = np.unique(triangles, return_inverse=True)
    return numbers.reshape(-1, 3).astype(np.intp), np.abs(weight_of(pairs))


def _key(one: Rows, two: Rows, n: int) -> Rows:
    return np.minimum(one, two) * n + np.maximum(one, two)
