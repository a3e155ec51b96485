"""The linear program of correlation clustering, and the integer program where it does not settle it."""

from dataclasses import dataclass

import numpy as np
from scipy import optimize, sparse
from scipy.sparse import csgraph

from mlflow_b3.linkage.signed_graph import SignedGraph
from mlflow_b3.linkage.splits import Floats, Rows

TOLERANCE = 1e-6
MOST_ROUNDS = 200
#: Limits of the integer program; one in seconds would make results depend on the machine.
MOST_NODES = 200
MOST_FRACTIONAL = 80


@dataclass(frozen=True, kw_only=True, eq=False)
class Relaxation:
    """What a program says about one component.

    Attributes
    ----------
    distance : array of float
        x_ij in [0, 1] for all pairs of rows, 1 = apart; it obeys the triangle inequality.
    bound : float
        No clustering costs less.
    """

    distance: Floats
    bound: float

    @property
    def n_fractional(self) -> int:
        """Pairs with a distance that is neither 0 nor 1; with none it is a cheapest clustering."""
        to_whole = np.minimum(self.distance, 1 - self.distance)
        return int((to_whole > TOLERANCE).sum()) // 2

    @property
    def labels(self) -> Rows:
        """Rows at distance 0 together."""
        _, labels = csgraph.connected_components(self.distance < 0.5)
        return np.asarray(labels, dtype=np.intp)


class CoveringProgram:
    """min Σ_{w>0} w·x + Σ_{w<0} |w|·y over x, y in [0, 1], with paths added when they are needed.

    For each pair against (a, b) and each path of positive pairs from a to b,
    y_ab + Σ_{path} x ≥ 1: it is paid for, or the path is cut.

    Notes
    -----
    This is the program with triangle inequalities x_ik ≤ x_ij + x_jk, after all pairs that are not
    positive have been projected out: for given x of the positive pairs the best 1 - y_ab is the
    length of the shortest path, at most 1, and these lengths obey the triangle inequality. It has
    the same value with a variable only for each pair that costs something.
    """

    def __init__(self, graph: SignedGraph) -> None:
        self.n = graph.n
        keep = graph.positive
        self.first, self.second = graph.first[keep], graph.second[keep]
        self.against_first, self.against_second, strength = graph.negative_pairs()
        self.costs = np.concatenate([graph.weight[keep], strength])
        self.n_positive = int(keep.sum())
        self.edge = np.full((self.n, self.n), -1, dtype=np.intp)
        numbers = np.arange(self.n_positive)
        self.edge[self.first, self.second] = self.edge[self.second, self.first] = numbers
        self.rows: list[sparse.csr_array] = []
        self._add_violated(np.zeros(len(self.costs)))

    def relax(self) -> Relaxation:
        """Solve the linear program."""
        values = np.zeros(len(self.costs))
        for _ in range(MOST_ROUNDS):
            solved = self._cheapest(integral=False)
            if solved is None:
                break
            values = solved
            if not self._add_violated(values):
                break
        # also after too few rounds: leaving out paths only makes the program cheaper
        return self._relaxation(values)

    def solve(self) -> Relaxation | None:
        """Solve the integer program after the linear one; None when it takes too long."""
        for _ in range(MOST_ROUNDS):
            solved = self._cheapest(integral=True)
            if solved is None:
                return None
            values = np.round(solved)
            if not self._add_violated(values):
                return self._relaxation(values)
        return None

    def _cheapest(self, *, integral: bool) -> Floats | None:
        whole = integral * (np.arange(len(self.costs)) < self.n_positive)  # the others follow
        solved = optimize.milp(
            self.costs,
            integrality=whole.astype(int),
            bounds=optimize.Bounds(0, 1),
            constraints=optimize.LinearConstraint(sparse.vstack(self.rows), lb=1),
            # presolving finds little in an integer covering program, and takes most of the time
            options={"node_limit": MOST_NODES, "mip_rel_gap": 0.0, "presolve": not integral},
        )
        return None if solved.status != 0 else np.asarray(solved.x, dtype=float)

    def _relaxation(self, values: Floats) -> Relaxation:
        distance = np.minimum(self._shortest(values)[0], 1)
        return Relaxation(distance=distance, bound=float(self.costs @ values))

    def _shortest(self, values: Floats) -> tuple[Floats, Rows]:
        # a little for each step, so that free steps count as edges and short paths come first
        lengths = np.maximum(values[: self.n_positive], 0) + TOLERANCE / (4 * self.n)
        graph = sparse.csr_array((lengths, (self.first, self.second)), shape=(self.n, self.n))
        distance, before = csgraph.dijkstra(graph, directed=False, return_predecessors=True)
        return np.asarray(distance), np.asarray(before, dtype=np.intp)

    def _add_violated(self, values: Floats) -> bool:
        """Add the shortest path of each pair against that is not yet covered."""
        distance, before = self._shortest(values)
        covered = distance[self.against_first, self.against_second] + values[self.n_positive :]
        violated = np.flatnonzero(covered < 1 - TOLERANCE)
        if not len(violated):
            return False
        numbers, edges = [np.arange(len(violated))], [self.n_positive + violated]
        start, place = self.against_first[violated], self.against_second[violated]
        walking = np.arange(len(violated))
        while len(walking):
            previous = before[start[walking], place[walking]]
            numbers.append(walking)
            edges.append(self.edge[previous, place[walking]])
            place[walking] = previous
            walking = walking[previous != start[walking]]
        rows, columns = np.concatenate(numbers), np.concatenate(edges)
        shape = (len(violated), len(self.costs))
        self.rows.append(sparse.csr_array((np.ones(len(rows)), (rows, columns)), shape=shape))
        return True
