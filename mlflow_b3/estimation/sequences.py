"""Solving for the losses e_0 … e_m themselves: least squares, smoothness and order."""

from collections.abc import Callable
from dataclasses import dataclass
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
    """

    losses: Array
    reads: Array
    accurate: bool = True


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
    Without constraint and with squares the solution has a closed form. Otherwise the convex
    program is solved, and refined: the minimiser of ‖Ae-b‖ + λ‖De‖ is that of the squares with
    the weight μ = λ‖Ae-b‖/‖De‖, and decreasing least squares is non-negative least squares in the
    steps e_j - e_{j+1}, both of which are solved to machine precision. The solution counts as
    accurate if this is no worse than what the program found.
    """
    if order >= matrix.shape[1] or smoothing == 0:
        order = 0  # no difference to penalise
    if not order:
        smoothing, objective = 0.0, "squared"
    if decreasing:
        exact = partial(_decreasing, matrix, loss, order)
    elif order:
        exact = partial(_smooth, matrix, loss, order)
    else:
        return _plain(matrix, loss)
    if not decreasing and objective == "squared":
        return exact(smoothing)
    found = solve_program(
        matrix, loss, order=order, smoothing=smoothing, decreasing=decreasing, objective=objective
    )
    if decreasing:  # the solver keeps to it within its tolerance only, and gains by that
        found = np.maximum(np.maximum.accumulate(found[::-1])[::-1], 0.0)

    def sizes(losses: Array) -> tuple[float, float]:
        rough = np.diff(losses, order) if order else np.zeros(1)
        return float(np.linalg.norm(matrix @ losses - loss)), float(np.linalg.norm(rough))

    def cost(losses: Array) -> float:
        misfit, rough = sizes(losses)
        if objective == "norm":
            return misfit + smoothing * rough
        return misfit**2 + smoothing * rough**2

    try:
        weight = smoothing
        if objective == "norm":
            weight = _balance(exact, sizes, smoothing, found)
        refined = exact(weight)
    except RuntimeError:  # non-negative least squares gave up
        steps = np.cumsum(_stack(matrix, loss, order, weight)[0], axis=1)
        gaps = found - np.append(found[1:], 0.0)
        reads = _reads_of_steps(steps, gaps > TOLERANCE * np.abs(found).max(), len(loss))
        return Solution(losses=found, reads=reads, accurate=False)
    rounding = 1e-12 * float(loss @ loss) ** (0.5 if objective == "norm" else 1.0)
    if cost(refined.losses) <= cost(found) * (1 + TOLERANCE) + rounding:
        return refined
    return Solution(losses=found, reads=refined.reads, accurate=False)


def _plain(matrix: Array, loss: Array) -> Solution:
    """Return the least-squares solution of smallest norm."""
    inverse = np.linalg.pinv(matrix, rcond=max(matrix.shape) * np.finfo(float).eps)
    return Solution(losses=inverse @ loss, reads=inverse[0])


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


def _decreasing(matrix: Array, loss: Array, order: int, weight: float) -> Solution:
    """Minimise ‖Ae-b‖² + μ‖De‖² over decreasing, non-negative e."""
    stacked, padded = _stack(matrix, loss, order, weight)
    steps = np.cumsum(stacked, axis=1)  # columns of the steps u_k, e_j = Σ_{k ≥ j} u_k
    scale = np.linalg.norm(steps, axis=0)
    seen = np.flatnonzero(scale > UNSEEN * scale.max())
    whole = np.column_stack([steps[:, seen] / scale[seen], padded])
    small = np.asarray(np.linalg.qr(whole, mode="r"))
    heights = np.zeros(matrix.shape[1])
    found, _ = nnls(small[:, :-1], small[:, -1], maxiter=30 * len(scale))
    heights[seen] = found / scale[seen]
    losses = np.cumsum(heights[::-1])[::-1]
    return Solution(losses=losses, reads=_reads_of_steps(steps, heights > 0, len(loss)))


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
    found: Array,
) -> float:
    """Return μ = λ‖Ae-b‖/‖De‖ at the minimiser of ‖Ae-b‖ + λ‖De‖.

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

    start = logarithm(found)
    here = excess(start)
    step = -FIRST_STEP * float(np.sign(here))
    while here * step < 0 and abs(start) < FARTHEST:
        before, start = start, float(np.clip(start + step, -FARTHEST, FARTHEST))
        here = excess(start)
        if here * step >= 0:
            return float(np.exp(brentq(excess, before, start, xtol=1e-5)))
        step *= 2
    return float(np.exp(start))
