"""Clusters of rows from pairs: connected components, and correlation clustering."""

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mlflow_b3.errors import InputError, check_seed
from mlflow_b3.linkage.joined_clusters import joined_by
from mlflow_b3.linkage.local_moves import improve
from mlflow_b3.linkage.pair_table import PairTable
from mlflow_b3.linkage.relaxation import MOST_FRACTIONAL, CoveringProgram
from mlflow_b3.linkage.rounding import grow_regions, pivot, triangle_bound
from mlflow_b3.linkage.signed_graph import SignedGraph
from mlflow_b3.linkage.splits import Floats, Rows
from mlflow_b3.results import Result

#: Larger components whose linear program is fractional are rounded instead of solved.
LARGEST_INTEGER = 40
PIVOT_STARTS = 4
#: Components that are worth a try without any program, and what counts as proven then.
SMALL = 12
PROOF = 1e-12


@dataclass(frozen=True, kw_only=True)
class CorrelationClusters(Result):
    """A clustering that disagrees little with the pairs, and how far from the least it can be.

    Attributes
    ----------
    labels : tuple of int
        The cluster of each row, from 0 in order of first appearance.
    cost : float
        Weight of the disagreements: positive pairs apart, negative pairs together.
    lp_bound : float
        No clustering costs less. The sum over components of the linear program, of the integer
        program where it was solved, and of disjoint bad triangles where a component is too large
        for either.
    gap : float
        cost - lp_bound: how much cheaper a clustering could be at most; 0, up to rounding, is proof
        of the optimum.
    n_clusters : int
    n_components : int
        Connected components of the positive pairs; no optimal cluster spans two of them.
    n_contested : int
        Components in which some pair speaks against: only there is anything to decide.
    n_integral, n_integer, n_heuristic : int
        Contested components that the linear program settled, that the integer program settled,
        and whose clusters are rounded or found by local moves.
    n_large : int
        Of the last, those with more rows than `max_lp`, whose part of the bound is loose.
    """

    labels: tuple[int, ...] = field(repr=False)
    cost: float
    lp_bound: float
    gap: float
    n_clusters: int
    n_components: int
    n_contested: int
    n_integral: int
    n_integer: int
    n_heuristic: int
    n_large: int

    def __str__(self) -> str:
        """Return in a sentence how good the clustering is."""
        return (
            f"{len(self.labels)} rows in {self.n_clusters} clusters; disagreements weigh "
            f"{self.cost:.4g}, and no clustering has less than {self.lp_bound:.4g}."
        )


def components(n: int, i: Any, j: Any) -> Rows:
    """Return the connected components of matching pairs: one label for each row.

    Parameters
    ----------
    n : int
        Number of rows.
    i, j : sequence of int
        The rows of each matching pair, from 0.

    Notes
    -----
    With the union of the base records as merge, and merged records that match when any of their
    base records do, match-and-merge ends in the components. Of all match-and-merge procedures that
    are idempotent, commutative, associative and representative with this match they have the fewest
    pairs in one cluster, and so the largest precision bound (`swoosh_bounds`); the match itself need
    have none of these properties.
    """
    pairs = PairTable.of(i, j, np.ones(len(np.atleast_1d(i))), _row_count(n))
    return _components(n, pairs.first, pairs.second)[1]


def correlation_cluster(
    n: int, i: Any, j: Any, w: Any, w_missing: float = 0.0, max_lp: int = 80, *, seed: int = 0
) -> CorrelationClusters:
    """Cluster rows so that the clusters disagree least with the log-odds of pairs.

    Parameters
    ----------
    n : int
        Number of rows.
    i, j : sequence of int
        The rows of each scored pair, from 0. Of a pair that occurs twice the larger log-odds count.
    w : sequence of float
        w_ij = log(π_ij/(1 - π_ij)), for example `MatchModel.log_odds`; 0 says nothing. See the
        notes on the prior.
    w_missing : float
        Log-odds of every pair that is not scored, at most 0.
    max_lp : int
        Components with more rows are not given to the linear program. With w_missing = 0 a
        thousand rows are still a matter of seconds, otherwise of minutes.
    seed : int
        For rounding and for large components.

    Notes
    -----
    Minimises Σ_{w>0, apart} w + Σ_{w<0, together} |w|: the most probable partition if pairs were
    independent. An optimum never joins two components of the positive pairs, so each is solved by
    itself, exactly. A linear program bounds the cost from below, and where its solution is integral
    it is optimal (over 99 % of the components of linked person records). Where it is not, small
    components are solved as integer programs, others rounded by region growing (Demaine et al. 2006,
    doi:10.1016/j.tcs.2006.05.008) and improved by local moves. Components above `max_lp` are
    clustered by pivots and local moves.

    The thesis states the O(log n) guarantee of region growing, with log(n) for log(n+1). What is
    reported here is stronger for the data at hand: `gap`.

    The thesis takes w = log P1/P0, without the prior share of matches, λ. That is right where
    entities have many rows, whose pairs confirm each other; but single rows are joined whenever one
    pair of theirs looks alike by chance. With the prior (w + logit λ) single rows stay apart, and
    large entities break. Of 240 rows whose pairs are told apart with errors of 8 % (false joins +
    false splits): 208+0 without and 0+0 with the prior for entities of one row, 158+61 and 9+89 for
    two, 47+43 and 10+163 for three, 3+10 and 8+236 for four. Only splits leak: when in doubt between
    the two, leave the prior out, or split by the coarser clusters.

    The partition is good; the probabilities that the model gives to partitions are not, since pairs
    are not independent. Use resolved rows for the leaked share, not these.
    """
    check_seed(seed)
    first, second, weight = _scored(n, i, j, w)
    _check_options(w_missing, max_lp)
    unit = _unit(weight, w_missing)
    weight = weight / unit
    graph = SignedGraph(
        n=n, first=first, second=second, weight=weight, missing=float(w_missing) / unit
    )
    count, parts = _components(n, first[weight > 0], second[weight > 0])
    labels, bound = parts.copy(), 0.0
    tally = dict.fromkeys(("integral", "integer", "heuristic", "large"), 0)
    streams = np.random.SeedSequence(seed)
    contested = _contested(graph, parts, count)
    next_label = count
    for rows, part in contested:
        rng = np.random.default_rng(streams.spawn(1)[0])
        own, least, how = _solve(part, max_lp, rng)
        labels[rows] = own + next_label
        next_label += int(own.max()) + 1
        bound += least
        tally[how] += 1
    labels = _in_order(labels)
    cost = graph.cost(labels)
    bound = min(bound, cost)
    return CorrelationClusters(
        labels=tuple(labels.tolist()),
        cost=cost * unit,
        lp_bound=bound * unit,
        gap=(cost - bound) * unit,
        n_clusters=int(labels.max()) + 1,
        n_components=count,
        n_contested=len(contested),
        n_integral=tally["integral"],
        n_integer=tally["integer"],
        n_heuristic=tally["heuristic"] + tally["large"],
        n_large=tally["large"],
    )


def _unit(weight: Floats, w_missing: float) -> float:
    """Return what to measure small weights in: solvers take costs below 1e-7 for none."""
    largest = max(float(np.abs(weight).max(initial=0)), abs(w_missing))
    # a power of 2, so that nothing is rounded
    return 2.0 ** math.frexp(largest)[1] if 0 < largest < 1 else 1.0


def _solve(graph: SignedGraph, max_lp: int, rng: np.random.Generator) -> tuple[Rows, float, str]:
    """Return labels, a lower limit of the cost and how they were found."""
    if graph.n > max_lp:
        starts = [pivot(graph, rng) for _ in range(PIVOT_STARTS)]
        return _best(graph, starts), triangle_bound(graph, rng), "large"
    if graph.n <= SMALL:
        labels, bound = improve(graph, np.arange(graph.n)), triangle_bound(graph, rng)
        if graph.cost(labels) <= bound + PROOF * graph.weight.max():
            # disjoint triangles are a dual solution, so the linear program would say the same
            return labels, bound, "integral"
    program = CoveringProgram(graph)
    relaxed = program.relax()
    if not relaxed.n_fractional:
        return relaxed.labels, relaxed.bound, "integral"
    if graph.n <= LARGEST_INTEGER and relaxed.n_fractional <= MOST_FRACTIONAL:
        exact = program.solve()
        if exact is not None:
            return exact.labels, exact.bound, "integer"
    return _best(graph, [grow_regions(graph, relaxed.distance, rng)]), relaxed.bound, "heuristic"


def _best(graph: SignedGraph, starts: list[Rows]) -> Rows:
    apart, together = np.arange(graph.n), np.zeros(graph.n, dtype=np.intp)
    return min((improve(graph, start) for start in (*starts, apart, together)), key=graph.cost)


def _contested(graph: SignedGraph, parts: Rows, count: int) -> list[tuple[Rows, SignedGraph]]:
    """Return the rows and pairs of each component that has a pair against inside."""
    inside = parts[graph.first] == parts[graph.second]
    first, second, weight = (x[inside] for x in (graph.first, graph.second, graph.weight))
    owner = parts[first]
    sizes = np.bincount(parts, minlength=count)
    against = np.bincount(owner, weights=weight < 0, minlength=count) > 0
    if graph.missing < 0:
        against |= np.bincount(owner, minlength=count) < sizes * (sizes - 1) // 2
    by_part, by_owner = np.argsort(parts, kind="stable"), np.argsort(owner, kind="stable")
    row_ends, pair_ends = np.cumsum(sizes), np.cumsum(np.bincount(owner, minlength=count))
    place = np.empty(graph.n, dtype=np.intp)
    found = []
    for part in np.flatnonzero(against):
        rows = by_part[row_ends[part] - sizes[part] : row_ends[part]]
        pairs = by_owner[pair_ends[part - 1] if part else 0 : pair_ends[part]]
        place[rows] = np.arange(len(rows))
        own = SignedGraph(
            n=len(rows),
            first=place[first[pairs]],
            second=place[second[pairs]],
            weight=weight[pairs],
            missing=graph.missing,
        )
        found.append((rows, own))
    return found


def _components(n: int, first: Rows, second: Rows) -> tuple[int, Rows]:
    labels = _in_order(joined_by(first, second, n))
    return int(labels.max(initial=-1)) + 1, labels


def _in_order(labels: Any) -> Rows:
    """Return labels numbered from 0 in order of first appearance."""
    _, first, codes = np.unique(labels, return_index=True, return_inverse=True)
    rank = np.empty(len(first), dtype=np.intp)
    rank[np.argsort(first)] = np.arange(len(first))
    return rank[codes]


def _row_count(n: Any) -> int:
    if isinstance(n, bool) or not isinstance(n, (int, np.integer)) or n < 1:
        raise InputError(f"n={n!r} must be the number of rows, a whole number from 1.")
    return int(n)


def _scored(n: int, i: Any, j: Any, w: Any) -> tuple[Rows, Rows, Floats]:
    first, second = (np.atleast_1d(np.asarray(side)) for side in (i, j))
    try:
        weight = np.atleast_1d(np.asarray(w, dtype=float))
    except (TypeError, ValueError):
        raise InputError("w must be numbers: the log-odds of each pair.") from None
    if weight.ndim != 1:
        raise InputError(f"w has shape {weight.shape}; one number for each pair is needed.")
    PairTable.of(first, second, np.ones(len(weight)), _row_count(n))
    wrong = ~np.isfinite(weight)
    if wrong.any():
        raise InputError(
            f"w: {int(wrong.sum())} log-odds are missing or infinite. Keep probabilities off 0 and 1 "
            "before taking log-odds, and leave out pairs that nobody scored."
        )
    first, second = first.astype(np.intp), second.astype(np.intp)
    low, high = np.minimum(first, second), np.maximum(first, second)
    order = np.lexsort((-weight, high, low))
    low, high, weight = low[order], high[order], weight[order]
    again = (low[1:] == low[:-1]) & (high[1:] == high[:-1])
    keep = np.concatenate([np.ones(min(1, len(low)), dtype=bool), ~again])
    return low[keep], high[keep], weight[keep]


def _check_options(w_missing: float, max_lp: int) -> None:
    if not -np.inf < w_missing <= 0:
        raise InputError(
            f"w_missing={w_missing!r} must be a finite number of at most 0: pairs that nobody scored "
            "would join all rows otherwise."
        )
    if isinstance(max_lp, bool) or not isinstance(max_lp, int) or max_lp < 0:
        raise InputError(f"max_lp={max_lp!r} must be a whole number from 0.")
