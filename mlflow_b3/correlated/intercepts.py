"""Sums over the groups of crossed or nested levels, and the curvature of their intercepts."""

from collections.abc import Sequence

import numpy as np
from scipy.linalg import cho_solve, cholesky
from scipy.sparse import csr_matrix

from mlflow_b3.correlated.structure import Array, Codes


class Intercepts:
    """The random intercepts of all levels, in one vector that begins with the largest level.

    Intercepts are of variance 1, and `sd` multiplies them, so that sd = 0 needs no special case.
    """

    def __init__(self, codes: Sequence[Codes]) -> None:
        sizes = [int(level.max()) + 1 for level in codes]
        self.order = sorted(range(len(codes)), key=lambda level: -sizes[level])
        self.codes = [codes[level] for level in self.order]
        self.sizes = np.array([sizes[level] for level in self.order])
        self.ends = np.cumsum(self.sizes)
        self.rows = len(codes[0])
        index = np.concatenate(
            [level + end - size for level, end, size in self._placed()], dtype=np.intp
        )
        rows = np.tile(np.arange(self.rows), len(codes))
        shape = (self.total, self.rows)
        self._sums = csr_matrix((np.ones(len(index)), (index, rows)), shape=shape)
        self._pairs = {
            (a, b): self.codes[a] * self.sizes[b] + self.codes[b]
            for a in range(len(codes))
            for b in range(a + 1, len(codes))
        }

    def _placed(self) -> list[tuple[Codes, int, int]]:
        return list(zip(self.codes, self.ends, self.sizes, strict=True))

    @property
    def total(self) -> int:
        """How many groups all levels have."""
        return int(self.ends[-1])

    def split(self, effects: Array) -> list[Array]:
        """Return the part of each level, the largest first."""
        return np.split(effects, self.ends[:-1])

    def as_given(self, effects: Array, sd: Array) -> tuple[Array, ...]:
        """Return the intercepts by level, times their sd, in the order in which levels came."""
        parts = [size * part for size, part in zip(sd, self.split(effects), strict=True)]
        return tuple(parts[self.order.index(level)] for level in range(len(parts)))

    def in_given_order(self, sd: Array) -> tuple[float, ...]:
        """Return one number for each level, in the order in which levels came."""
        return tuple(float(sd[self.order.index(level)]) for level in range(len(sd)))

    def sums(self, values: Array) -> Array:
        """Return the sum over the rows of each group, of a vector or of all columns of a table."""
        return np.asarray(self._sums @ values)

    def of_rows(self, effects: Array) -> list[Array]:
        """Return for each level the intercept of each row's group."""
        parts = self.split(effects)
        return [part[level] for part, level in zip(parts, self.codes, strict=True)]

    def added(self, effects: Array, sd: Array) -> Array:
        """Return for each row the sum of its intercepts, each times its sd."""
        total = np.zeros(self.rows)
        for size, part in zip(sd, self.of_rows(effects), strict=True):
            total += size * part
        return total

    def shared(self, a: int, b: int, weight: Array) -> Array:
        """Return the weight of the rows that groups of level `a` share with groups of level `b`."""
        if a == b:
            own = np.bincount(self.codes[a], weight, int(self.sizes[a]))
            return np.asarray(np.diag(own), dtype=float)
        cells = int(self.sizes[a] * self.sizes[b])
        counts = np.asarray(np.bincount(self._pairs[a, b], weight, cells), dtype=float)
        return counts.reshape(int(self.sizes[a]), int(self.sizes[b]))


class Curvature:
    """Negative second derivative of a joint likelihood in intercepts and coefficients, factorised.

        [ S Z'WZ S + I   S Z'WX   ]
        [ X'WZ S         X'WX + P ]

    Notes
    -----
    The block of one level is diagonal. The largest level is eliminated by it, so that only a matrix
    of the size of all other levels and the coefficients is factorised. Coefficients come last: the
    leading part of the factor is then that of the intercepts alone.
    """

    def __init__(
        self, levels: Intercepts, sd: Array, weight: Array, X: Array, penalty: Array
    ) -> None:
        self.levels, self.sd = levels, sd
        first, self.others = int(levels.sizes[0]), levels.total - int(levels.sizes[0])
        scale = np.repeat(sd, levels.sizes)
        cross = scale[:, None] * levels.sums(weight[:, None] * X)
        size = self.others + X.shape[1]
        border, core = np.empty((first, size)), np.zeros((size, size))
        border[:, self.others :] = cross[:first]
        core[self.others :, : self.others] = cross[first:].T
        core[self.others :, self.others :] = X.T @ (weight[:, None] * X) + penalty
        begins = levels.ends - levels.sizes - first
        for b in range(1, len(sd)):
            columns = slice(begins[b], begins[b] + levels.sizes[b])
            border[:, columns] = sd[0] * sd[b] * levels.shared(0, b, weight)
            for a in range(1, b + 1):
                rows = slice(begins[a], begins[a] + levels.sizes[a])
                core[columns, rows] = sd[a] * sd[b] * levels.shared(a, b, weight).T
        core[np.arange(self.others), np.arange(self.others)] += 1.0
        self.diagonal = 1.0 + sd[0] ** 2 * np.bincount(levels.codes[0], weight, first)
        self.border = border / self.diagonal[:, None]
        # only the lower triangle is filled, and only it is read
        self.lower = cholesky(core - self.border.T @ border, lower=True, check_finite=False)

    def solve(self, effects: Array, coefficients: Array) -> tuple[Array, Array]:
        """Return the step that this curvature makes of a gradient, in both of its parts."""
        first = len(self.diagonal)
        right = np.concatenate([effects[first:], coefficients]) - self.border.T @ effects[:first]
        rest = cho_solve((self.lower, True), right, check_finite=False)
        own = effects[:first] / self.diagonal - self.border @ rest
        return np.concatenate([own, rest[: self.others]]), rest[self.others :]

    @property
    def log_determinant(self) -> float:
        """Of the block of the intercepts."""
        core = np.log(np.diag(self.lower)[: self.others]).sum()
        return float(np.log(self.diagonal).sum() + 2 * core)

    @property
    def information(self) -> Array:
        """What the data and the penalty say of the coefficients, intercepts eliminated."""
        block = self.lower[self.others :, self.others :]
        return np.asarray(block @ block.T)

    def inverse(self, *, coefficients: bool = False) -> tuple[Array, Array, Array]:
        """Return the inverse of the block of the intercepts, or of all, where it is needed.

        Its diagonal for the largest level, its block of the largest level by the rest, and its block
        of the rest.
        """
        size = len(self.lower) if coefficients else self.others
        rest = cho_solve((self.lower[:size, :size], True), np.eye(size), check_finite=False)
        border = self.border[:, :size]
        cross = -border @ rest
        return 1 / self.diagonal - (cross * border).sum(axis=1), cross, rest

    def row_variances(self) -> tuple[Array, Array]:
        """Return the variance of each row's sum of intercepts, and the trace for each level."""
        levels, sd = self.levels, self.sd
        own, cross, rest = self.inverse()
        diagonal = np.concatenate([own, np.diag(rest)])
        traces = np.array([part.sum() for part in levels.split(diagonal)])
        total = sd[0] ** 2 * own[levels.codes[0]]
        begins = levels.ends - levels.sizes - levels.sizes[0]
        for b in range(1, len(sd)):
            column = begins[b] + levels.codes[b]
            total += 2 * sd[0] * sd[b] * cross[levels.codes[0], column]
            for a in range(1, b + 1):
                times = sd[a] * sd[b] * (1 if a == b else 2)
                total += times * rest[begins[a] + levels.codes[a], column]
        return total, traces
