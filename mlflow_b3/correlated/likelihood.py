"""Likelihoods with random intercepts: joint mode, Laplace, adaptive quadrature."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.linalg import cho_solve, cholesky
from scipy.sparse import csr_matrix
from scipy.special import expit, logsumexp

from mlflow_b3.correlated.structure import Array, Codes

# --- Sums over the groups of crossed or nested levels, and the curvature of their intercepts


class Intercepts:
    """The random intercepts of all levels in one vector, the largest level first.

    Intercepts have variance 1 and are multiplied by `sd`, so sd = 0 needs no special case.
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
        """Total number of groups over all levels."""
        return int(self.ends[-1])

    def split(self, effects: Array) -> list[Array]:
        """Return the part of each level, the largest first."""
        return np.split(effects, self.ends[:-1])

    def as_given(self, effects: Array, sd: Array) -> tuple[Array, ...]:
        """Return the intercepts by level, times their sd, in the original order of the levels."""
        parts = [size * part for size, part in zip(sd, self.split(effects), strict=True)]
        return tuple(parts[self.order.index(level)] for level in range(len(parts)))

    def in_given_order(self, sd: Array) -> tuple[float, ...]:
        """Return one number for each level, in the original order of the levels."""
        return tuple(float(sd[self.order.index(level)]) for level in range(len(sd)))

    def sums(self, values: Array) -> Array:
        """Return the sums over the rows of each group, for a vector or for each column of a matrix."""
        return np.asarray(self._sums @ values)

    def of_rows(self, effects: Array) -> list[Array]:
        """Return, for each level, the intercept of each row's group."""
        parts = self.split(effects)
        return [part[level] for part, level in zip(parts, self.codes, strict=True)]

    def added(self, effects: Array, sd: Array) -> Array:
        """Return, for each row, the sum of its intercepts, each times its sd."""
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
    """Factorised negative Hessian of a joint likelihood in intercepts and coefficients.

        [ S Z'WZ S + I   S Z'WX   ]
        [ X'WZ S         X'WX + P ]

    Notes
    -----
    The block of each level is diagonal. The largest level is eliminated, so only a matrix of the size
    of all other levels and the coefficients is factorised. Coefficients come last, so the leading
    part of the factor belongs to the intercepts alone.
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
        # only the lower triangle is filled and read
        self.lower = cholesky(core - self.border.T @ border, lower=True, check_finite=False)

    def solve(self, effects: Array, coefficients: Array) -> tuple[Array, Array]:
        """Return the Newton step for a gradient, in both of its parts."""
        first = len(self.diagonal)
        right = np.concatenate([effects[first:], coefficients]) - self.border.T @ effects[:first]
        rest = cho_solve((self.lower, True), right, check_finite=False)
        own = effects[:first] / self.diagonal - self.border @ rest
        return np.concatenate([own, rest[: self.others]]), rest[self.others :]

    @property
    def log_determinant(self) -> float:
        """Log determinant of the block of the intercepts."""
        core = np.log(np.diag(self.lower)[: self.others]).sum()
        return float(np.log(self.diagonal).sum() + 2 * core)

    @property
    def information(self) -> Array:
        """Information on the coefficients from data and penalty, with intercepts eliminated."""
        block = self.lower[self.others :, self.others :]
        return np.asarray(block @ block.T)

    def inverse(self, *, coefficients: bool = False) -> tuple[Array, Array, Array]:
        """Return the needed parts of the inverse of the block of the intercepts, or of everything.

        They are its diagonal for the largest level, its block of the largest level by the rest, and
        its block of the rest.
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


# --- Laplace's approximation of a logistic regression with random intercepts

#: Most Newton steps, most halvings of a step, and the gain in log likelihood that counts as none.
MOST_STEPS = 60
MOST_HALVINGS = 12
NO_GAIN = 1e-10


@dataclass(frozen=True, kw_only=True)
class Mode:
    """The maximum of the joint likelihood of coefficients and intercepts.

    Attributes
    ----------
    coefficients, effects : array
        Intercepts in units of their sd.
    value : float
        Log likelihood given the intercepts, minus |v|²/2 and the penalty of the coefficients.
    chance : array
        Probability of class 1 for each row.
    curvature : Curvature
    converged : bool
    """

    coefficients: Array
    effects: Array
    value: float
    chance: Array
    curvature: Curvature
    converged: bool


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """A marginal log likelihood and its derivatives.

    Attributes
    ----------
    value : float
    sd_slope, offset_slope : array
        Its derivatives by the sd of each level and by the fixed part of each row.
    coefficients, effects : array
        The mode of the integrand, where the next search can start.
    converged : bool
    """

    value: float
    sd_slope: Array
    offset_slope: Array
    coefficients: Array
    effects: Array
    converged: bool


def bernoulli(target: Array, log_odds: Array) -> float:
    """Return the log likelihood of classes 0 and 1."""
    return float(target @ log_odds - np.logaddexp(0.0, log_odds).sum())


def joint_mode(
    target: Array,
    X: Array,
    levels: Intercepts,
    sd: Array,
    *,
    penalty: Array,
    offset: Array | None = None,
    start: tuple[Array, Array] | None = None,
) -> Mode:
    """Maximise the joint likelihood of coefficients and intercepts by Newton's method.

        Σ_i [y_i t_i - log(1 + e^{t_i})] - |v|²/2 - β'Pβ/2,   t = offset + Xβ + Z diag(sd) v

    Parameters
    ----------
    target : array of 0 and 1
    X : array (n, p)
        Columns whose coefficients are estimated; none if all are in the offset.
    levels : Intercepts
    sd : array
        Standard deviations, in the order of `levels`.
    penalty : array (p, p)
        P.
    offset : array (n,), optional
    start : tuple of array, optional
        Initial coefficients and intercepts.
    """
    fixed = np.zeros(len(target)) if offset is None else offset
    beta, effects = start or (np.zeros(X.shape[1]), np.zeros(levels.total))
    scale = np.repeat(sd, levels.sizes)

    def at(beta: Array, effects: Array) -> tuple[float, Array]:
        log_odds = fixed + X @ beta + levels.added(effects, sd)
        prior = (effects @ effects + beta @ penalty @ beta) / 2
        return bernoulli(target, log_odds) - float(prior), expit(log_odds)

    value, chance = at(beta, effects)
    converged = False
    for _ in range(MOST_STEPS):
        curvature = Curvature(levels, sd, chance * (1 - chance), X, penalty)
        if converged:
            break
        residual = target - chance
        uphill = scale * levels.sums(residual) - effects, X.T @ residual - penalty @ beta
        step = curvature.solve(*uphill)
        gain = float(uphill[0] @ step[0] + uphill[1] @ step[1])
        length = 1.0
        for _ in range(MOST_HALVINGS):
            moved = beta + length * step[1], effects + length * step[0]
            new, there = at(*moved)
            if new >= value - NO_GAIN:
                break
            length /= 2
        (beta, effects), value, chance = moved, new, there
        converged = gain < NO_GAIN
    return Mode(
        coefficients=beta,
        effects=effects,
        value=value,
        chance=chance,
        curvature=curvature,
        converged=converged,
    )


def laplace(
    target: Array,
    X: Array,
    levels: Intercepts,
    sd: Array,
    *,
    penalty: Array,
    offset: Array | None = None,
    start: tuple[Array, Array] | None = None,
) -> Evaluation:
    """Integrate out the intercepts by Laplace's approximation at the joint mode.

        log L ≈ max - log|S Z'WZ S + I| / 2

    With columns in `X`, the coefficients are those of the joint mode, which is fast but biased towards
    small sd (`nAGQ = 0` of the R package lme4, doi:10.18637/jss.v067.i01). With all of them in the
    offset, this is the likelihood at these coefficients, for the caller to maximise.

    Notes
    -----
    The derivatives account for the change of the mode, and of the weights W with it, by implicit
    differentiation.
    """
    mode = joint_mode(target, X, levels, sd, penalty=penalty, offset=offset, start=start)
    curvature, chance = mode.curvature, mode.chance
    residual, weight = target - chance, chance * (1 - chance)
    variances, traces = curvature.row_variances()
    pull = variances * weight * (1 - 2 * chance)
    scale = np.repeat(sd, levels.sizes)
    answer, turn = curvature.solve(scale * levels.sums(pull), X.T @ pull)
    followed = pull - weight * (levels.added(answer, sd) + X @ turn)
    summed = levels.split(levels.sums(residual))
    own, answers = levels.of_rows(mode.effects), levels.split(answer)
    slopes = [
        float(
            residual @ own[level]
            - (levels.sizes[level] - traces[level]) / sd[level]
            - (followed @ own[level] + answers[level] @ summed[level]) / 2
        )
        if sd[level] > 0
        else 0.0
        for level in range(len(sd))
    ]
    return Evaluation(
        value=mode.value - curvature.log_determinant / 2,
        sd_slope=np.array(slopes),
        offset_slope=residual - followed / 2,
        coefficients=mode.coefficients,
        effects=mode.effects,
        converged=mode.converged,
    )


# --- The likelihood with one level of random intercepts by adaptive Gauss-Hermite quadrature

#: Number of nodes for each group.
NODES = 15


def adaptive_quadrature(
    target: Array,
    levels: Intercepts,
    sd: Array,
    *,
    offset: Array,
    start: Array | None = None,
) -> Evaluation:
    """Integrate out the intercept of each group, with nodes around its mode.

        L_j = ∫ Π_i p(y_i | o_i + sd v) φ(v) dv,   v_k = v̂_j + √2 x_k / √(curvature of j)

    Notes
    -----
    Laplace's approximation is the same with one node, and is biased towards small sd if groups have
    few rows. The derivatives are those of the integral, computed with the same nodes. They ignore that
    the nodes move with the arguments, which changes them by no more than the quadrature error.
    """
    points, weights = np.polynomial.hermite.hermgauss(NODES)
    nothing = np.zeros(0)
    mode = joint_mode(
        target,
        np.empty((len(target), 0)),
        levels,
        sd,
        penalty=np.empty((0, 0)),
        offset=offset,
        start=None if start is None else (nothing, start),
    )
    width = np.sqrt(2 / mode.curvature.diagonal)
    nodes = mode.effects[:, None] + width[:, None] * points
    codes = levels.codes[0]
    chance, heights = np.empty((len(target), NODES)), np.empty_like(nodes)
    for k in range(NODES):
        log_odds = offset + sd[0] * nodes[codes, k]
        chance[:, k] = expit(log_odds)
        heights[:, k] = levels.sums(target * log_odds - np.logaddexp(0.0, log_odds))
    # the log density of a standard normal, minus that of the weight function of the nodes
    heights += -(nodes**2) / 2 + points**2 + np.log(weights) - np.log(2 * np.pi) / 2
    heights += np.log(width)[:, None]
    logs = logsumexp(heights, axis=1)
    share = np.exp(heights - logs[:, None])
    slopes = levels.sums(target[:, None] - chance)
    return Evaluation(
        value=float(logs.sum()),
        sd_slope=np.array([float((share * nodes * slopes).sum())]),
        offset_slope=target - (share[codes] * chance).sum(axis=1),
        coefficients=nothing,
        effects=mode.effects,
        converged=mode.converged,
    )
