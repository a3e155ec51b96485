"""Softmax regression with random intercepts, the working model of more than two classes."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.linalg import cho_solve, cholesky
from scipy.special import logsumexp

from mlflow_b3.correlated.likelihood import MOST_HALVINGS, MOST_STEPS, NO_GAIN, Intercepts
from mlflow_b3.correlated.mixed import (
    AS_ZERO,
    FIRST_SD,
    LEAST_AGAIN,
    MOST_CELLS,
    MOST_SD,
    RUN_AWAY,
    SMALLEST_RIDGE,
    MixedFit,
    as_codes,
    sd_intervals,
    search_sds,
)
from mlflow_b3.correlated.structure import Array, Codes
from mlflow_b3.correlated.targets import contrasts
from mlflow_b3.errors import InputError

# --- The curvature of the joint likelihood in intercepts and coefficients


class ClassCurvature:
    """Factorised negative Hessian of a joint likelihood of classes in intercepts and coefficients.

    As `Curvature` of two classes, with a block of D = C - 1 contrasts in place of each number.

    Parameters
    ----------
    levels : Intercepts
    scale : array
        sd/√2 of each level, in the order of `levels`.
    weight : array (n, D, D)
        Negative Hessian of the log likelihood of each row by its contrasts.
    X : array (n, D, p)
    penalty : array (p, p)
    """

    def __init__(
        self, levels: Intercepts, scale: Array, weight: Array, X: Array, penalty: Array
    ) -> None:
        self.levels, self.scale = levels, scale
        self.width = D = weight.shape[1]
        sizes, p = levels.sizes, X.shape[2]
        first, self.others = int(sizes[0]), D * (levels.total - int(sizes[0]))
        size = self.others + p
        border, core = np.zeros((first * D, size)), np.zeros((size, size))
        weighted = weight @ X
        core[self.others :, self.others :] = np.einsum("ndp,ndq->pq", X, weighted) + penalty
        core[np.arange(self.others), np.arange(self.others)] = 1.0
        begins = D * (levels.ends - sizes - first)
        for a in range(len(sizes)):
            crossed = scale[a] * _summed(weighted, levels.codes[a], int(sizes[a]))
            crossed = crossed.reshape(int(sizes[a]) * D, p)
            if a == 0:
                border[:, self.others :] = crossed
                continue
            rows = slice(begins[a], begins[a] + D * sizes[a])
            core[rows, self.others :], core[self.others :, rows] = crossed, crossed.T
            border[:, rows] = self._shared(0, a, weight)
            for b in range(1, a + 1):
                columns = slice(begins[b], begins[b] + D * sizes[b])
                block = self._shared(a, b, weight)
                core[rows, columns] += block
                if a != b:
                    core[columns, rows] += block.T
        self.diagonal = np.eye(D) + scale[0] ** 2 * _summed(weight, levels.codes[0], first)
        self.inverted = np.linalg.inv(self.diagonal)
        self.border = self._own(border)
        self.lower = cholesky(core - self.border.T @ border, lower=True, check_finite=False)

    def _shared(self, a: int, b: int, weight: Array) -> Array:
        """Return the weight of the rows that groups of two levels share, as a matrix of blocks."""
        levels, D = self.levels, self.width
        sizes = int(levels.sizes[a]), int(levels.sizes[b])
        cells = levels.codes[a] * sizes[1] + levels.codes[b]
        blocks = _summed(weight, cells, sizes[0] * sizes[1]).reshape(*sizes, D, D)
        both = self.scale[a] * self.scale[b] * blocks.transpose(0, 2, 1, 3)
        return np.asarray(both.reshape(sizes[0] * D, sizes[1] * D))

    def _own(self, values: Array) -> Array:
        """Return the inverse of the blocks of the largest level times a matrix or vector."""
        parts = values.reshape(len(self.inverted), self.width, -1)
        return np.asarray((self.inverted @ parts).reshape(values.shape))

    def solve(self, effects: Array, coefficients: Array) -> tuple[Array, Array]:
        """Return the Newton step for a gradient (groups, D) and one by coefficients."""
        first, flat = self.width * len(self.diagonal), effects.reshape(-1)
        right = np.concatenate([flat[first:], coefficients]) - self.border.T @ flat[:first]
        rest = cho_solve((self.lower, True), right, check_finite=False)
        own = self._own(flat[:first]) - self.border @ rest
        step = np.concatenate([own, rest[: self.others]])
        return step.reshape(effects.shape), rest[self.others :]

    @property
    def log_determinant(self) -> float:
        """Log determinant of the block of the intercepts."""
        core = np.log(np.diag(self.lower)[: self.others]).sum()
        return float(np.linalg.slogdet(self.diagonal)[1].sum() + 2 * core)

    @property
    def information(self) -> Array:
        """Information on the coefficients from data and penalty, with intercepts eliminated."""
        block = self.lower[self.others :, self.others :]
        return np.asarray(block @ block.T)

    def row_variances(self) -> tuple[Array, Array]:
        """Return the covariance (n, D, D) of each row's sum of intercepts, and the trace by level."""
        levels, scale, D, size = self.levels, self.scale, self.width, self.others
        rest = cho_solve((self.lower[:size, :size], True), np.eye(size), check_finite=False)
        border = self.border[:, :size]
        cross = -border @ rest
        first = len(self.diagonal)
        groups = border.reshape(first, D, size), cross.reshape(first, D, size)
        own = self.inverted - np.einsum("gds,ges->gde", groups[1], groups[0])
        total = scale[0] ** 2 * own[levels.codes[0]]
        traces = [float(np.trace(own, axis1=1, axis2=2).sum())]
        begins = levels.ends - levels.sizes - first
        crossed = cross.reshape(first, D, -1, D).transpose(0, 2, 1, 3)
        inner = rest.reshape(size // D, D, size // D, D).transpose(0, 2, 1, 3)
        for b in range(1, len(scale)):
            column = begins[b] + levels.codes[b]
            block = scale[0] * scale[b] * crossed[levels.codes[0], column]
            total = total + block + block.transpose(0, 2, 1)
            for a in range(1, b + 1):
                part = scale[a] * scale[b] * inner[begins[a] + levels.codes[a], column]
                total = total + part + (0.0 if a == b else part.transpose(0, 2, 1))
            at = np.arange(begins[b], begins[b] + levels.sizes[b])
            traces.append(float(np.trace(inner[at, at], axis1=1, axis2=2).sum()))
        return np.asarray(total), np.array(traces)


def _summed(values: Array, codes: Codes, count: int) -> Array:
    """Return the sums over the rows of each group, for arrays of any shape per row."""
    flat = values.reshape(len(values), -1)
    sums = np.empty((count, flat.shape[1]))
    for place, column in enumerate(flat.T):
        sums[:, place] = np.bincount(codes, weights=column, minlength=count)
    return sums.reshape(count, *values.shape[1:])


# --- Laplace's approximation


@dataclass(kw_only=True)
class _ClassProblem:
    """A softmax regression, with the mode of the last evaluation.

    Attributes
    ----------
    classes : array (n,) of int
    count : int
        C, the number of classes.
    design : array (n, D, p)
        The fixed effects of the contrasts of each row.
    levels : Intercepts
    penalty : array (p, p)
    """

    classes: Codes
    count: int
    design: Array
    levels: Intercepts
    penalty: Array
    mode: tuple[Array, Array] | None = None
    converged: bool = True

    @property
    def _none(self) -> Array:
        return np.empty((len(self.classes), self.count - 1, 0))

    def outer(self, beta: Array, sd: Array) -> tuple[float, Array, Array]:
        """Evaluate Laplace's approximation at the given coefficients, with its gradient."""
        offset = np.asarray(self.design @ beta)
        scale = sd / np.sqrt(2)
        effects, _, value, curvature = self._joint_mode(
            scale, offset, self._none, np.empty((0, 0)), None if self.mode is None else self.mode[1]
        )
        self.mode = (beta, effects)
        basis, levels = contrasts(self.count), self.levels
        chance = self._chance(offset + self._added(effects, scale))
        residual = self._residual(chance)
        variances, traces = curvature.row_variances()
        spread = basis @ variances @ basis.T
        turned = np.diagonal(spread, axis1=1, axis2=2) - 2 * np.einsum("ncd,nd->nc", spread, chance)
        # the weights of a row change with its contrasts: W (diag M - 2 M p) by log odds of classes
        pull = (chance * (turned - np.einsum("nc,nc->n", chance, turned)[:, None])) @ basis
        weight = self._weight(chance)
        answer, _ = curvature.solve(self._pulled(pull, scale), np.zeros(0))
        followed = pull - np.einsum("nde,ne->nd", weight, self._added(answer, scale))
        slopes = []
        for level, code in enumerate(levels.codes):
            at = slice(levels.ends[level] - levels.sizes[level], levels.ends[level])
            if scale[level] == 0:
                slopes.append(0.0)
                continue
            own, summed = effects[at][code], _summed(residual, code, int(levels.sizes[level]))
            free = (self.count - 1) * levels.sizes[level] - traces[level]
            slopes.append(
                float(
                    np.vdot(residual, own)
                    - free / scale[level]
                    - (np.vdot(followed, own) + np.vdot(answer[at], summed)) / 2
                )
            )
        pulled = self.penalty @ beta
        value += -curvature.log_determinant / 2 - float(beta @ pulled) / 2
        by_offset = residual - followed / 2
        by_beta = np.einsum("ndp,nd->p", self.design, by_offset) - pulled
        return value, by_beta, np.array(slopes) / np.sqrt(2)

    def start(self, sd: Array) -> Array:
        """Return the coefficients of the joint mode, where the search begins."""
        effects, beta, _, _ = self._joint_mode(
            sd / np.sqrt(2), np.zeros(self.design.shape[:2]), self.design, self.penalty, None
        )
        self.mode = (beta, effects)
        return beta

    def information(self, sd: Array) -> Array:
        """Return the information on the coefficients at the last mode, including the penalty."""
        assert self.mode is not None
        scale = sd / np.sqrt(2)
        chance = self._chance(self.design @ self.mode[0] + self._added(self.mode[1], scale))
        weight = self._weight(chance)
        return ClassCurvature(self.levels, scale, weight, self.design, self.penalty).information

    def _joint_mode(
        self, scale: Array, offset: Array, X: Array, penalty: Array, effects: Array | None
    ) -> tuple[Array, Array, float, ClassCurvature]:
        """Return intercepts, coefficients, value and curvature at the maximum, by Newton's method."""
        beta = np.zeros(X.shape[2])
        if effects is None:
            effects = np.zeros((self.levels.total, self.count - 1))

        def at(beta: Array, effects: Array) -> tuple[float, Array]:
            linear = offset + X @ beta + self._added(effects, scale)
            log_odds = linear @ contrasts(self.count).T
            total = logsumexp(log_odds, axis=1)
            own = log_odds[np.arange(len(log_odds)), self.classes]
            prior = (float(np.vdot(effects, effects)) + float(beta @ penalty @ beta)) / 2
            return float((own - total).sum()) - prior, np.exp(log_odds - total[:, None])

        value, chance = at(beta, effects)
        self.converged = False
        for _ in range(MOST_STEPS):
            curvature = ClassCurvature(self.levels, scale, self._weight(chance), X, penalty)
            if self.converged:
                break
            residual = self._residual(chance)
            uphill = (
                self._pulled(residual, scale) - effects,
                np.einsum("ndp,nd->p", X, residual) - penalty @ beta,
            )
            step = curvature.solve(*uphill)
            gain = float(np.vdot(uphill[0], step[0]) + uphill[1] @ step[1])
            length = 1.0
            for _ in range(MOST_HALVINGS):
                moved = beta + length * step[1], effects + length * step[0]
                new, there = at(*moved)
                if new >= value - NO_GAIN:
                    break
                length /= 2
            (beta, effects), value, chance = moved, new, there
            self.converged = gain < NO_GAIN
        return effects, beta, value, curvature

    def _chance(self, linear: Array) -> Array:
        log_odds = linear @ contrasts(self.count).T
        return np.asarray(np.exp(log_odds - logsumexp(log_odds, axis=1)[:, None]))

    def _residual(self, chance: Array) -> Array:
        rest = -chance
        rest[np.arange(len(rest)), self.classes] += 1.0
        return np.asarray(rest @ contrasts(self.count))

    def _weight(self, chance: Array) -> Array:
        basis = contrasts(self.count)
        mean = chance @ basis
        return np.asarray(
            np.einsum("cd,nc,ce->nde", basis, chance, basis, optimize=True)
            - mean[:, :, None] * mean[:, None, :]
        )

    def _added(self, effects: Array, scale: Array) -> Array:
        """Return, for each row, the sum of its intercepts, each times its scale."""
        parts = np.split(effects, self.levels.ends[:-1])
        rows = zip(scale, parts, self.levels.codes, strict=True)
        return np.asarray(sum(size * part[code] for size, part, code in rows))

    def _pulled(self, values: Array, scale: Array) -> Array:
        """Return the transpose of `_added`."""
        rows = zip(scale, self.levels.codes, self.levels.sizes, strict=True)
        return np.concatenate([size * _summed(values, code, int(g)) for size, code, g in rows])


def fit_mixed_softmax(
    classes: Codes,
    count: int,
    scores: Array | None,
    codes: Sequence[Codes],
    *,
    intervals: bool = True,
) -> MixedFit:
    """Fit a softmax regression with random intercepts by Laplace's approximation.

        P(y_i = c) ∝ exp(a_c + b z_ic + Σ_l u_l[i]c),   u_lg ~ N(0, sd_l²/2) for each class

    so any two classes have log odds whose standard deviation between groups is sd_l, whichever they are.

    Parameters
    ----------
    classes : array of int
        The number of each row's class, from 0.
    count : int
        C, the number of classes.
    scores : array (n, C) or None
        z; without it, all rows have the same fixed part.
    codes : sequence of array of int
        The group of each row, one array for each level.
    intervals : bool, default True
        As in `fit_mixed_logistic`.

    Returns
    -------
    MixedFit
        Its coefficients are a_1 … a_C, whose sum is 0, and b if there are scores. `effects` is empty.

    Notes
    -----
    With two classes this is `fit_mixed_logistic` with the method "laplace". One standard deviation for
    all pairs of classes is an assumption: tables rarely determine one for each pair.
    """
    groups = as_codes(codes, len(classes))
    sizes = sorted(int(level.max()) + 1 for level in groups)
    if (count - 1) ** 2 * sizes[-1] * max(1, sum(sizes[:-1])) > MOST_CELLS:
        raise InputError(
            f"groups of {', '.join(map(str, sizes[::-1]))} values and {count} classes are too many for "
            "one model. Leave out the level that matters least, or merge its groups or the classes."
        )
    levels, basis = Intercepts(groups), contrasts(count)
    design = np.broadcast_to(np.eye(count - 1), (len(classes), count - 1, count - 1))
    centre, scale = np.zeros(count - 1), 0.0
    if scores is not None:
        turned = scores @ basis
        centre = turned.mean(axis=0)
        scale = float(np.sqrt(np.mean(np.sum((turned - centre) ** 2, axis=1))))
    if scale > 0:
        design = np.concatenate([design, ((turned - centre) / scale)[:, :, None]], axis=2)
    problem = _ClassProblem(
        classes=np.asarray(classes, dtype=np.intp),
        count=count,
        design=np.ascontiguousarray(design),
        levels=levels,
        penalty=SMALLEST_RIDGE * np.eye(design.shape[2]),
    )
    begin = np.full(len(levels.sizes), FIRST_SD)
    beta = problem.start(begin)
    information = problem.information(begin)
    peak = search_sds(problem.outer, beta, np.maximum(begin, LEAST_AGAIN), information)
    problem.outer(peak.coefficients, peak.spread)
    converged = peak.converged and problem.converged
    information = problem.information(peak.spread)
    sd = np.where(peak.spread > AS_ZERO, peak.spread, 0.0)
    low = high = sd
    if intervals:
        low, high = sd_intervals(problem.outer, peak, information)
    known = np.linalg.eigvalsh(information - problem.penalty)
    fixed, slope = peak.coefficients[: count - 1], peak.coefficients[count - 1 :]
    if scale > 0:
        slope = slope / scale
        fixed = fixed - slope[0] * centre
    return MixedFit(
        coefficients=np.concatenate([basis @ fixed, slope]),
        effects=(),
        sd=levels.in_given_order(sd),
        sd_low=levels.in_given_order(np.minimum(low, sd)),
        sd_high=levels.in_given_order(np.maximum(high, sd)),
        log_likelihood=peak.value,
        converged=converged,
        separated=bool((sd > 0.99 * MOST_SD).any() or known.min(initial=1.0) < RUN_AWAY),
    )
