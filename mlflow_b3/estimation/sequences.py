"""Solving for the losses e_0 … e_m themselves: least squares, smoothness and order."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray
from scipy import linalg
from scipy.optimize import brentq, nnls
from scipy.stats import binom

from mlflow_b3.estimation.program import solve_program

Array = NDArray[np.float64]

#: A loss that every level sees with less weight than this is not determined by the data.
UNSEEN = 1e-9
#: How much worse than the interior-point solver the refined solution may be, relatively.
TOLERANCE = 1e-6
#: ln of the largest and of 1/smallest weight of smoothness that is tried.
FARTHEST = 35.0
FIRST_STEP = 0.25
#: Iterations of non-negative least squares for each unknown; it rarely needs more than two.
MOST_ROUNDS = 5


@dataclass(frozen=True, kw_only=True)
class Solution:
    """e_0 … e_m, and how e_0 was read from the curve.

    Attributes
    ----------
    losses : numpy.ndarray
    reads : numpy.ndarray
        e_0 as a linear function of the measured losses: exactly that where the method is linear,
        else its derivative with the binding constraints and the balance of fit and smoothness
        held.
    accurate : bool
        False when the solution could not be confirmed.
    free : numpy.ndarray or None
        For decreasing losses: which of the steps e_j - e_{j+1} are not held at 0.
    """

    losses: Array
    reads: Array
    accurate: bool = True
    free: NDArray[np.bool_] | None = None


def binomial_matrix(leakable: int, share: Array) -> Array:
    """Return A_ij = Binom(j; m, r_i), j = 0 … m."""
    return binomial(np.arange(leakable + 1), leakable, share)


def binomial(numbers: NDArray[np.int64], leakable: int, share: Array) -> Array:
    """Return the columns of A for some numbers j of leaked rows."""
    # rounding can take a share out of [0, 1], where there is no probability
    return np.asarray(binom.pmf(numbers, leakable, np.clip(share, 0.0, 1.0)[:, None]))


def solve_losses(
    matrix: Array,
    loss: Array,
    *,
    order: int = 0,
    smoothing: float = 0.0,
    decreasing: bool = False,
    objective: str = "squared",
) -> Solution:
    """Solve Ae = b for e, regularised as in the papers.

    Parameters
    ----------
    matrix, loss : numpy.ndarray
        A and b.
    order : int
        D takes differences of this order; 0 for no smoothing.
    smoothing : float
        λ.
    decreasing : bool
        Constrain e_{j-1} ≥ e_j ≥ 0.
    objective : {"squared", "norm"}
        ‖Ae-b‖² + λ‖De‖², or ‖Ae-b‖ + λ‖De‖.

    Notes
    -----
    Without constraint and with squares the solution has a closed form. The minimiser of
    ‖Ae-b‖ + λ‖De‖ is that of the squares with the weight μ = λ‖Ae-b‖/‖De‖, and decreasing least
    squares is non-negative least squares in the steps e_j - e_{j+1}; both are solved to machine
    precision. Where that fails, the convex program is solved by an interior-point method, and the
    better of the two is returned; it counts as accurate unless it is the latter.
    """
    if order >= matrix.shape[1] or smoothing == 0:
        order = 0  # no difference to penalise
    if not order:
        smoothing, objective = 0.0, "squared"
    if not decreasing and not order:
        return _plain(matrix, loss)
    if not decreasing and objective == "squared":
        return _smooth(matrix, loss, order, smoothing)

    def sizes(losses: Array) -> tuple[float, float]:
        rough = np.diff(losses, order) if order else np.zeros(1)
        return float(np.linalg.norm(matrix @ losses - loss)), float(np.linalg.norm(rough))

    def cost(losses: Array) -> float:
        misfit, rough = sizes(losses)
        if objective == "norm":
            return misfit + smoothing * rough
        return misfit**2 + smoothing * rough**2

    exact = (
        _Decreasing(matrix, loss, order) if decreasing else partial(_smooth, matrix, loss, order)
    )
    weight, confirmed = smoothing, True
    try:
        if objective == "norm":
            start = _smooth(matrix, loss, order, smoothing).losses
            weight, confirmed = _balance(exact, sizes, smoothing, start)
        refined = exact(weight)
    except RuntimeError:  # non-negative least squares gave up
        refined, confirmed = None, False
    if refined is not None and confirmed:
        return _with_reads(refined, matrix, loss, order, weight)
    found = solve_program(
        matrix, loss, order=order, smoothing=smoothing, decreasing=decreasing, objective=objective
    )
    if decreasing:  # the solver keeps to it within its tolerance only, and gains by that
        found = np.maximum(np.maximum.accumulate(found[::-1])[::-1], 0.0)
    if refined is None:
        heights = _heights(found)
        refined = Solution(
            losses=found,
            reads=np.zeros(len(loss)),
            free=heights > TOLERANCE * np.abs(found).max(),
            accurate=False,
        )
    elif objective == "norm":  # from nearby
        with suppress(RuntimeError):
            weight, _ = _balance(exact, sizes, smoothing, found)
            refined = exact(weight)
    rounding = 1e-12 * float(loss @ loss) ** (0.5 if objective == "norm" else 1.0)
    if cost(refined.losses) > cost(found) * (1 + TOLERANCE) + rounding:
        refined = replace(refined, losses=found, accurate=False)
    return _with_reads(refined, matrix, loss, order, weight)


def _plain(matrix: Array, loss: Array) -> Solution:
    """Return the least-squares solution; it is inaccurate where others fit as well.

    Rounding hides most losses of large systems from the levels. The solution of smallest norm is
    then one of many.
    """
    rounding = max(matrix.shape) * np.finfo(float).eps
    inverse = np.linalg.pinv(matrix, rcond=rounding)
    sizes = np.linalg.svd(matrix, compute_uv=False)
    seen = int((sizes > rounding * sizes.max()).sum())
    return Solution(losses=inverse @ loss, reads=inverse[0], accurate=seen == matrix.shape[1])


def _smooth(matrix: Array, loss: Array, order: int, weight: float) -> Solution:
    """Minimise ‖Ae-b‖² + μ‖De‖² in closed form.

    e is a polynomial of degree below the order plus the repeated sum of its differences, which
    keeps the smoothness, of size n'^(-order), apart from rounding; a stacked least-squares
    problem in e loses it from n' of some hundred on.
    """
    last = matrix.shape[1] - 1
    powers = np.vander(np.arange(last + 1) / last, order, increasing=True)
    unit = float(last) ** order
    orthogonal, triangle = linalg.qr(matrix @ powers)
    inside, outside = orthogonal[:, :order], orthogonal[:, order:]
    summed = _sum_right(matrix, order) / unit
    left, sizes, right = np.linalg.svd(outside.T @ summed, full_matrices=False)
    shrunk = np.zeros_like(sizes)
    kept = sizes > len(loss) * np.finfo(float).eps * sizes.max(initial=0.0)
    shrunk[kept] = sizes[kept] / (sizes[kept] ** 2 + weight / unit**2)
    to_differences = (right.T * shrunk) @ (outside @ left).T
    to_powers = np.linalg.solve(
        triangle[:order], inside.T @ (np.eye(len(loss)) - summed @ to_differences)
    )
    wiggles = np.concatenate([np.zeros(order), to_differences @ loss])
    for _ in range(order):
        wiggles = np.cumsum(wiggles)
    return Solution(losses=powers @ (to_powers @ loss) + wiggles / unit, reads=to_powers[0])


def _sum_right(matrix: Array, order: int) -> Array:
    """Return A·T with T the repeated sums that undo differences of an order."""
    for _ in range(order):
        matrix = np.cumsum(matrix[:, ::-1], axis=1)[:, ::-1]
    return matrix[:, order:]


class _Decreasing:
    """Minimises ‖Ae-b‖² + μ‖De‖² over decreasing, non-negative e, for one μ after another.

    The steps that are free at one μ are tried first at the next: where they are still optimal, a
    linear system takes the place of non-negative least squares.
    """

    def __init__(self, matrix: Array, loss: Array, order: int) -> None:
        self._matrix, self._loss, self._order = matrix, loss, order
        self._free: NDArray[np.bool_] | None = None

    def __call__(self, weight: float) -> Solution:
        """Return the solution for one μ; its `reads` are left to `_with_reads`."""
        stacked, padded = _stack(self._matrix, self._loss, self._order, weight)
        steps = np.cumsum(stacked, axis=1)  # columns of the steps u_k, e_j = Σ_{k ≥ j} u_k
        scale = np.linalg.norm(steps, axis=0)
        seen = np.flatnonzero(scale > UNSEEN * scale.max())
        whole = np.column_stack([steps[:, seen] / scale[seen], padded])
        small = np.asarray(np.linalg.qr(whole, mode="r"))
        found = self._still_free(small, seen)
        if found is None:
            found, _ = nnls(small[:, :-1], small[:, -1], maxiter=MOST_ROUNDS * len(scale))
        heights = np.zeros(self._matrix.shape[1])
        heights[seen] = found / scale[seen]
        self._free = heights > 0
        losses = np.cumsum(heights[::-1])[::-1]
        return Solution(losses=losses, reads=np.zeros(len(self._loss)), free=self._free)

    def _still_free(self, small: Array, seen: NDArray[np.intp]) -> Array | None:
        """Return the solution whose free steps are those of the last one; None unless optimal."""
        if self._free is None:
            return None
        free = self._free[seen]
        columns, target = small[:, :-1], small[:, -1]
        found = np.zeros(len(seen))
        found[free] = np.linalg.lstsq(columns[:, free], target, rcond=None)[0]
        if (found < 0).any():
            return None
        gradient = columns.T @ (target - columns @ found)
        # the tolerance of scipy's nnls; columns have norm 1
        tolerance = 10 * max(columns.shape) * np.finfo(float).eps * len(seen)
        return found if gradient.max() <= tolerance * np.linalg.norm(target) else None


def _with_reads(
    solution: Solution, matrix: Array, loss: Array, order: int, weight: float
) -> Solution:
    """Add how e_0 is read from the losses, where that depends on which steps are free."""
    if solution.free is None:
        return solution
    steps = np.cumsum(_stack(matrix, loss, order, weight)[0], axis=1)
    return replace(solution, reads=_reads_of_steps(steps, solution.free, len(loss)))


def _heights(losses: Array) -> Array:
    """Return the steps u_k of which e_j = Σ_{k ≥ j} u_k consists."""
    return np.asarray(losses - np.append(losses[1:], 0.0))


def _stack(matrix: Array, loss: Array, order: int, weight: float) -> tuple[Array, Array]:
    if not order:
        return matrix, loss
    differences = np.diff(np.eye(matrix.shape[1]), order, axis=0)
    stacked = np.vstack([matrix, np.sqrt(weight) * differences])
    return stacked, np.concatenate([loss, np.zeros(len(differences))])


def _reads_of_steps(steps: Array, free: NDArray[np.bool_], levels: int) -> Array:
    """Return e_0 = Σ_k u_k over the free steps as a linear function of the losses."""
    if not free.any():
        return np.zeros(levels)
    part = steps[:, free]
    scale = np.linalg.norm(part, axis=0)
    reads, *_ = np.linalg.lstsq((part / scale).T, 1 / scale, rcond=None)
    return np.asarray(reads[:levels])


def _balance(
    exact: Callable[[float], Solution],
    sizes: Callable[[Array], tuple[float, float]],
    smoothing: float,
    near: Array,
) -> tuple[float, bool]:
    """Return μ = λ‖Ae-b‖/‖De‖ at the minimiser of ‖Ae-b‖ + λ‖De‖, and whether it was found.

    μ‖De‖/‖Ae-b‖ increases with μ along the solutions of the squared problem, because the
    attainable pairs of the two norms form a convex curve; so there is one root.
    """

    def logarithm(losses: Array) -> float:
        misfit, rough = sizes(losses)
        tiny = np.finfo(float).tiny
        value = np.log(smoothing) + np.log(max(misfit, tiny)) - np.log(max(rough, tiny))
        return float(np.clip(value, -FARTHEST, FARTHEST))

    def excess(weight: float) -> float:
        return weight - logarithm(exact(float(np.exp(weight))).losses)

    start = logarithm(near)
    here = excess(start)
    step = -FIRST_STEP * float(np.sign(here))
    while here * step < 0 and abs(start) < FARTHEST:
        before, start = start, float(np.clip(start + step, -FARTHEST, FARTHEST))
        here = excess(start)
        if here * step >= 0:
            try:
                return float(np.exp(brentq(excess, before, start, xtol=1e-5))), True
            except ValueError:  # rounding gave an end another sign: both norms are nearly 0
                break
        step *= 2
    return float(np.exp(start)), here == 0
