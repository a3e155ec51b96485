"""The estimators of the B3 papers: least squares, mono, T2 to T4, basis, sketch."""

import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache, partial
from threading import Lock
from typing import Any

import numpy as np
from numpy.polynomial import Polynomial
from numpy.typing import NDArray
from scipy import linalg
from scipy.optimize import brentq, nnls
from scipy.spatial.distance import cdist
from scipy.stats import binom

from mlflow_b3.errors import SolverError
from mlflow_b3.estimation.problem import Extrapolation

# --- The papers' regularised system as a convex program, compiled once for each shape

Array = NDArray[np.float64]

#: Tried in this order. The second solver runs only if the first returns no solution.
SOLVERS = ("CLARABEL", "SCS")


@dataclass(frozen=True, kw_only=True)
class Program:
    """The program min f(Ae - b) + λ·f(De), f a norm or its square, with parameters A, b and λ."""

    problem: Any
    losses: Any
    matrix: Any
    loss: Any
    smoothing: Any
    lock: Lock = field(default_factory=Lock)


@lru_cache(maxsize=16)
def build_program(
    rows: int, columns: int, order: int, *, decreasing: bool, objective: str
) -> Program:
    """Compile the program for one shape.

    Parameters
    ----------
    rows, columns : int
        Shape of A.
    order : int
        Order of the differences De; 0 for none.
    decreasing : bool
        Constrain e_{j-1} ≥ e_j ≥ 0.
    objective : {"squared", "norm"}

    Notes
    -----
    A, b and λ are parameters in disciplined (DPP) form, so another leaked share or another λ needs
    no recompilation. With n' = 100 and 200 levels the first solution takes 0.4 s, each further one
    0.15 s.
    """
    import cvxpy as cp  # the import takes a second

    losses = cp.Variable(columns)
    matrix, loss = cp.Parameter((rows, columns)), cp.Parameter(rows)
    smoothing = cp.Parameter(nonneg=True)
    size = cp.norm if objective == "norm" else cp.sum_squares
    cost = size(matrix @ losses - loss)
    if order:
        cost += smoothing * size(cp.diff(losses, order))
    constraints = [losses[:-1] >= losses[1:], losses[-1] >= 0] if decreasing else []
    return Program(
        problem=cp.Problem(cp.Minimize(cost), constraints),
        losses=losses,
        matrix=matrix,
        loss=loss,
        smoothing=smoothing,
    )


def solve_program(
    matrix: Array,
    loss: Array,
    *,
    order: int,
    smoothing: float,
    decreasing: bool,
    objective: str,
) -> Array:
    """Solve for e_0 … e_m with an interior-point solver.

    Raises
    ------
    SolverError
        If no solver returns a solution.

    Notes
    -----
    A system with more levels than unknowns is first reduced by A = QR,
    ‖Ae - b‖² = ‖Re - Qᵀb‖² + ρ². For the objective `norm` the constant ρ matters and is kept as a
    row of its own. Losses are scaled to 1, which does not change the minimiser of either objective.

    The solver's own tolerance says little about e_0, because e_0 hardly changes the objective: with
    n' = 500 and 6 levels it reported success at e_0 = 2.06 while 0.42 is optimal. It is therefore
    used only if `solve_losses` has no exact solution, and solutions that the solver calls inaccurate
    are accepted.
    """
    reduced, target = matrix, loss
    rest = 0.0
    if matrix.shape[0] > matrix.shape[1]:
        orthogonal, reduced = np.linalg.qr(matrix)
        target = orthogonal.T @ loss
        rest = float(np.linalg.norm(loss - orthogonal @ target))
    if objective == "norm":
        reduced = np.vstack([reduced, np.zeros(matrix.shape[1])])
        target = np.append(target, rest)
    scale = float(np.abs(loss).max()) or 1.0
    program = build_program(*reduced.shape, order, decreasing=decreasing, objective=objective)
    with program.lock:
        program.matrix.value = reduced
        program.loss.value = target / scale
        program.smoothing.value = smoothing
        return scale * _solve(program)


def _solve(program: Program) -> Array:
    import cvxpy as cp

    failures = []
    for solver in SOLVERS:
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message="Solution may be inaccurate")
                # older releases warn that matrix parameters are slow; these are not
                warnings.filterwarnings("ignore", message="Your problem has too many parameters")
                # with a warm start, results would depend on the programs solved before
                program.problem.solve(solver=solver, warm_start=False)
        except cp.error.SolverError as error:
            failures.append(f"{solver}: {error}")
            continue
        values = program.losses.value
        if values is not None and np.isfinite(values).all():
            return np.asarray(values, float)
        failures.append(f"{solver}: {program.problem.status}")
    raise SolverError(
        f"no solver found the losses ({'; '.join(failures)}). Use the method 'power' or 'basis'."
    )


# --- Solving for the losses e_0 … e_m: least squares, smoothness and monotonicity

#: A loss whose weight is smaller than this at every level is not determined by the data.
UNSEEN = 1e-9
#: Relative amount by which the refined solution may be worse than that of the interior-point solver.
TOLERANCE = 1e-6
#: The logarithm of the largest smoothness weight that is tried, and of 1/smallest.
FARTHEST = 35.0
FIRST_STEP = 0.25
#: Iterations of non-negative least squares per unknown; more than two are rarely needed.
MOST_ROUNDS = 5


@dataclass(frozen=True, kw_only=True)
class Solution:
    """The losses e_0 … e_m, and e_0 as a function of the curve.

    Attributes
    ----------
    losses : numpy.ndarray
    reads : numpy.ndarray
        e_0 as a linear function of the measured losses. Exact if the method is linear; otherwise
        the derivative, with the binding constraints and the balance of fit and smoothness held
        fixed.
    accurate : bool
        False if the solution could not be confirmed.
    free : numpy.ndarray or None
        For decreasing losses: the steps e_j - e_{j+1} that are not constrained to 0.
    """

    losses: Array
    reads: Array
    accurate: bool = True
    free: NDArray[np.bool_] | None = None


def binomial_matrix(leakable: int, share: Array) -> Array:
    """Return A_ij = Binom(j; m, r_i), j = 0 … m."""
    return binomial(np.arange(leakable + 1), leakable, share)


def binomial(numbers: NDArray[np.int64], leakable: int, share: Array) -> Array:
    """Return the columns of A for the given numbers j of leaked rows."""
    # rounding can move a share outside [0, 1], where the probability is undefined
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
        Order of the differences D; 0 for no smoothing.
    smoothing : float
        λ.
    decreasing : bool
        Constrain e_{j-1} ≥ e_j ≥ 0.
    objective : {"squared", "norm"}
        ‖Ae-b‖² + λ‖De‖², or ‖Ae-b‖ + λ‖De‖.

    Notes
    -----
    Without constraints, the squared objective has a closed-form solution. The minimiser of
    ‖Ae-b‖ + λ‖De‖ is that of the squared objective with the weight μ = λ‖Ae-b‖/‖De‖, and decreasing
    least squares is non-negative least squares in the steps e_j - e_{j+1}. Both are solved to
    machine precision. If that fails, an interior-point method solves the convex program, and the
    better of the two solutions is returned. It counts as accurate unless it is the latter.
    """
    if order >= matrix.shape[1] or smoothing == 0:
        order = 0  # there are no differences to penalise
    if not order:
        smoothing, objective = 0.0, "squared"
    if not decreasing and not order:
        return _least_squares(matrix, loss)
    if not decreasing and objective == "squared":
        return _smooth_least_squares(matrix, loss, order, smoothing)

    def sizes(losses: Array) -> tuple[float, float]:
        rough = np.diff(losses, order) if order else np.zeros(1)
        return float(np.linalg.norm(matrix @ losses - loss)), float(np.linalg.norm(rough))

    def cost(losses: Array) -> float:
        misfit, rough = sizes(losses)
        if objective == "norm":
            return misfit + smoothing * rough
        return misfit**2 + smoothing * rough**2

    exact = (
        _DecreasingSolver(matrix, loss, order)
        if decreasing
        else partial(_smooth_least_squares, matrix, loss, order)
    )
    weight, confirmed = smoothing, True
    try:
        if objective == "norm":
            start = _smooth_least_squares(matrix, loss, order, smoothing).losses
            weight, confirmed = _balance(exact, sizes, smoothing, start)
        refined = exact(weight)
    except RuntimeError:  # non-negative least squares did not converge
        refined, confirmed = None, False
    if refined is not None and confirmed:
        return _add_reads(refined, matrix, loss, order, weight)
    found = solve_program(
        matrix, loss, order=order, smoothing=smoothing, decreasing=decreasing, objective=objective
    )
    if decreasing:  # the solver meets the constraint only within its tolerance, and gains by that
        found = np.maximum(np.maximum.accumulate(found[::-1])[::-1], 0.0)
    if refined is None:
        heights = _step_heights(found)
        refined = Solution(
            losses=found,
            reads=np.zeros(len(loss)),
            free=heights > TOLERANCE * np.abs(found).max(),
            accurate=False,
        )
    elif objective == "norm":  # search again from the solver's solution
        with suppress(RuntimeError):
            weight, _ = _balance(exact, sizes, smoothing, found)
            refined = exact(weight)
    rounding = 1e-12 * float(loss @ loss) ** (0.5 if objective == "norm" else 1.0)
    if cost(refined.losses) > cost(found) * (1 + TOLERANCE) + rounding:
        refined = replace(refined, losses=found, accurate=False)
    return _add_reads(refined, matrix, loss, order, weight)


def _least_squares(matrix: Array, loss: Array) -> Solution:
    """Return the least-squares solution. It is inaccurate if other solutions fit equally well.

    In large systems most losses have weights below rounding error at every level. The solution of
    smallest norm is then one of many.
    """
    rounding = max(matrix.shape) * np.finfo(float).eps
    inverse = np.linalg.pinv(matrix, rcond=rounding)
    sizes = np.linalg.svd(matrix, compute_uv=False)
    seen = int((sizes > rounding * sizes.max()).sum())
    return Solution(losses=inverse @ loss, reads=inverse[0], accurate=seen == matrix.shape[1])


def _smooth_least_squares(matrix: Array, loss: Array, order: int, weight: float) -> Solution:
    """Minimise ‖Ae-b‖² + μ‖De‖² in closed form.

    e is a polynomial of degree below the order plus the repeated sum of its differences. This keeps
    the smoothness term, of size n'^(-order), above rounding error. A stacked least-squares problem
    in e loses it once n' reaches a few hundred.
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
    """Return A·T, where T takes the repeated sums that invert differences of the given order."""
    for _ in range(order):
        matrix = np.cumsum(matrix[:, ::-1], axis=1)[:, ::-1]
    return matrix[:, order:]


class _DecreasingSolver:
    """Minimises ‖Ae-b‖² + μ‖De‖² over decreasing, non-negative e for a sequence of μ.

    The free steps of one μ are tried first for the next. If they are still optimal, a linear system
    replaces non-negative least squares.
    """

    def __init__(self, matrix: Array, loss: Array, order: int) -> None:
        self._matrix, self._loss, self._order = matrix, loss, order
        self._free: NDArray[np.bool_] | None = None

    def __call__(self, weight: float) -> Solution:
        """Return the solution for one μ. `_add_reads` fills in its `reads`."""
        stacked, padded = _stack_penalty(self._matrix, self._loss, self._order, weight)
        steps = np.cumsum(stacked, axis=1)  # columns of the steps u_k, e_j = Σ_{k ≥ j} u_k
        scale = np.linalg.norm(steps, axis=0)
        seen = np.flatnonzero(scale > UNSEEN * scale.max())
        whole = np.column_stack([steps[:, seen] / scale[seen], padded])
        small = np.asarray(np.linalg.qr(whole, mode="r"))
        found = self._reuse_free_steps(small, seen)
        if found is None:
            found, _ = nnls(small[:, :-1], small[:, -1], maxiter=MOST_ROUNDS * len(scale))
        heights = np.zeros(self._matrix.shape[1])
        heights[seen] = found / scale[seen]
        self._free = heights > 0
        losses = np.cumsum(heights[::-1])[::-1]
        return Solution(losses=losses, reads=np.zeros(len(self._loss)), free=self._free)

    def _reuse_free_steps(self, small: Array, seen: NDArray[np.intp]) -> Array | None:
        """Return the solution with the free steps of the last one, or None if it is not optimal."""
        if self._free is None:
            return None
        free = self._free[seen]
        columns, target = small[:, :-1], small[:, -1]
        found = np.zeros(len(seen))
        found[free] = np.linalg.lstsq(columns[:, free], target, rcond=None)[0]
        if (found < 0).any():
            return None
        gradient = columns.T @ (target - columns @ found)
        # same tolerance as scipy's nnls; columns have norm 1
        tolerance = 10 * max(columns.shape) * np.finfo(float).eps * len(seen)
        return found if gradient.max() <= tolerance * np.linalg.norm(target) else None


def _add_reads(
    solution: Solution, matrix: Array, loss: Array, order: int, weight: float
) -> Solution:
    """Add e_0 as a linear function of the losses, if it depends on the free steps."""
    if solution.free is None:
        return solution
    steps = np.cumsum(_stack_penalty(matrix, loss, order, weight)[0], axis=1)
    return replace(solution, reads=_step_reads(steps, solution.free, len(loss)))


def _step_heights(losses: Array) -> Array:
    """Return the steps u_k with e_j = Σ_{k ≥ j} u_k."""
    return np.asarray(losses - np.append(losses[1:], 0.0))


def _stack_penalty(matrix: Array, loss: Array, order: int, weight: float) -> tuple[Array, Array]:
    if not order:
        return matrix, loss
    differences = np.diff(np.eye(matrix.shape[1]), order, axis=0)
    stacked = np.vstack([matrix, np.sqrt(weight) * differences])
    return stacked, np.concatenate([loss, np.zeros(len(differences))])


def _step_reads(steps: Array, free: NDArray[np.bool_], levels: int) -> Array:
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
    attainable pairs of the two norms form a convex curve. Hence there is one root.
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
            except ValueError:  # rounding changed the sign at one end: both norms are nearly 0
                break
        step *= 2
    return float(np.exp(start)), here == 0


# --- Estimators of the B3 papers: the full system of losses, and polynomials

#: The largest number of leaked rows for which the full system is solved. Beyond it, rounding errors
#: exceed the signal that the papers' smoothing leaves, and decreasing losses take minutes.
LARGEST_SYSTEM = 1000
#: The same limit for an audit, which solves the system about fifty times.
LARGEST_IN_AUDIT = 400


@dataclass(frozen=True, kw_only=True)
class PublishedFit:
    """Common part of the fits of all published methods.

    Attributes
    ----------
    target : float
        x*, where no row is leaked.
    reads : numpy.ndarray
        e_0 as a linear function of the measured losses, locally.
    accurate : bool
        False if a solver's result could not be confirmed.
    """

    target: float
    reads: Array
    accurate: bool = True

    @property
    def e0(self) -> float:
        """The loss on new clusters."""
        raise NotImplementedError

    def at(self, exposure: Array) -> Array:
        """Return the fitted curve at the given exposures."""
        raise NotImplementedError

    def losses(self, leaked: Array, leakable: int) -> Array:
        """Return e_j: the loss with j of the `leakable` rows in training."""
        raise NotImplementedError

    @property
    def sketch_error(self) -> float | None:
        """The bound on the sketching error; None if the method does not sketch."""
        return None


@dataclass(frozen=True, kw_only=True)
class BasisFit(PublishedFit):
    """A polynomial of the exposure."""

    polynomial: Polynomial

    @property
    def e0(self) -> float:
        """b(x*): the loss on new clusters."""
        return float(self.polynomial(self.target))

    def at(self, exposure: Array) -> Array:
        """Return the polynomial at the given exposures."""
        return np.asarray(self.polynomial(exposure), float)

    def losses(self, leaked: Array, leakable: int) -> Array:
        """Return e_j = Σ_i c_i C(j, i)/C(m, i), whose binomial mean is Σ_i c_i r^i.

        The c_i are the coefficients of the polynomial in r, the share of leakable rows in training.
        """
        values = np.zeros(len(leaked))
        by_share = self.polynomial(Polynomial([self.target, 1 - self.target]))
        for power, coefficient in enumerate(by_share.coef):
            steps = np.arange(power)
            falling = np.clip(leaked[:, None] - steps, 0, None) / np.maximum(leakable - steps, 1)
            values += coefficient * np.prod(falling, axis=1)
        return values


def fit_basis(problem: Extrapolation, order: int) -> BasisFit:
    """Fit a polynomial by least squares and evaluate it at no leakage.

    Notes
    -----
    Section 5 of the AISTATS 2019 paper solves for e_0 … e_n' in a basis of polynomials. Since
    b(p) = Σ_j Binom(j; n', p)·e_j maps polynomials of order s to polynomials of order s for every
    n' ≥ s, that is polynomial regression of b on p, evaluated at p = 0. It is exact, and its cost
    does not depend on n'. As in the paper, all levels have equal weights, regardless of their noise.
    """
    # r and x give the same polynomials, but x is well spread for every leaked share
    inverse = np.linalg.pinv(np.vander(problem.exposure, order + 1, increasing=True))
    return BasisFit(
        target=problem.target,
        reads=problem.target ** np.arange(order + 1.0) @ inverse,
        polynomial=Polynomial(inverse @ problem.loss),
    )


@dataclass(frozen=True, kw_only=True)
class SequenceFit(PublishedFit):
    """The full sequence e_0 … e_m."""

    sequence: Array

    @property
    def e0(self) -> float:
        """e_0: the loss on new clusters."""
        return float(self.sequence[0])

    def at(self, exposure: Array) -> Array:
        """Return Σ_j Binom(j; m, r)·e_j at the given exposures."""
        share = leaked_share(exposure, self.target)
        return np.asarray(binomial_matrix(len(self.sequence) - 1, share) @ self.sequence)

    def losses(self, leaked: Array, leakable: int) -> Array:  # noqa: ARG002 - it is the sequence's
        """Return e_j for each number j of leaked rows."""
        return np.asarray(self.sequence[leaked.astype(int)])


def fit_sequence(
    problem: Extrapolation,
    *,
    order: int = 0,
    smoothing: float = 0.0,
    decreasing: bool = False,
    objective: str = "squared",
) -> SequenceFit:
    """Solve Ae = b, A_ij = Binom(j; m, r_i), for the losses e_0 … e_m; see `solve_losses`.

    Notes
    -----
    As in the papers, all levels have equal weights. λ has no unit but depends on scale: the misfit
    ‖Ae-b‖ grows with the number of levels, and differences of order d shrink as m^(-d), so the same
    λ smooths less as m grows. On the curves that the authors published (n' = 100; 15 for the
    synthetic ones), trend4+mono with the papers' λ = 10, 10 and 0.1 has mean absolute errors of e_0
    of 0.0185, 0.0033 and 5.95 for heart, census and synthetic with the objective `norm`, which the
    authors' program minimises, and 0.0422, 0.0153 and 8.33 with `squared`, which the papers print.

    Without smoothing e_0 is hardly determined. Its weight at the lowest level is (1-p0)^n', which is
    3·10⁻⁵ on the heart curves. There the exact minimisers of `mono` and `least-squares` have errors
    of 52 and 2·10⁹.
    """
    share = leaked_share(problem.exposure, problem.target)
    solution = solve_losses(
        binomial_matrix(problem.leakable, share),
        problem.loss,
        order=order,
        smoothing=smoothing,
        decreasing=decreasing,
        objective=objective,
    )
    return SequenceFit(
        target=problem.target,
        reads=solution.reads,
        accurate=solution.accurate,
        sequence=solution.losses,
    )


def leaked_share(exposure: Array, target: float) -> Array:
    """Return r, the papers' p: the share of the leakable rows that is in training."""
    return np.asarray((exposure - target) / (1 - target))


# --- Sketching: grouping the columns of the binomial matrix (AISTATS 2019, section 5.2)

GROUPINGS = ("means", "blocks", "medoids")
SMOOTHNESS_ORDER = 4
MOST_CELLS = 2**20


@dataclass(frozen=True, kw_only=True)
class Sketch:
    """A partition r of the columns 0 … m, with a representative column for each group.

    Attributes
    ----------
    leakable : int
        m.
    labels : numpy.ndarray
        r(j) for j = 0 … m; column 0 is a group of its own.
    representatives : numpy.ndarray or None
        The representative column of each group; None for the mean of adjacent columns.
    """

    leakable: int
    labels: NDArray[np.int64]
    representatives: NDArray[np.int64] | None

    @cached_property
    def sizes(self) -> Array:
        """Number of columns in each group."""
        return np.bincount(self.labels).astype(float)

    def columns(self, share: Array) -> Array:
        """Return the representative columns of the groups, one row for each share."""
        if self.representatives is not None:
            return binomial(self.representatives, self.leakable, share)
        ends = np.cumsum(self.sizes) - 1
        below = binom.cdf(ends, self.leakable, np.clip(share, 0.0, 1.0)[:, None])
        return np.diff(below, axis=1, prepend=0.0) / self.sizes

    def radius(self, share: Array) -> float:
        """Return ε = max_j ‖A_j - S_r(j)‖, without keeping all of A in memory."""
        standing = self.columns(share)
        chunk = max(1, MOST_CELLS // len(share))
        largest = 0.0
        for start in range(0, self.leakable + 1, chunk):
            part = np.arange(start, min(start + chunk, self.leakable + 1))
            columns = binomial(part, self.leakable, share)
            away = columns - standing[:, self.labels[part]]
            largest = max(largest, float(np.sqrt((away**2).sum(axis=0).max())))
        return largest


@dataclass(frozen=True, kw_only=True)
class SketchFit(PublishedFit):
    """One loss e'_g for each group of numbers of leaked rows: e_j = e'_r(j)."""

    sketch: Sketch
    heights: Array
    share: Array

    @property
    def e0(self) -> float:
        """e'_0: the loss on new clusters."""
        return float(self.heights[0])

    def at(self, exposure: Array) -> Array:
        """Return the fitted curve at the given exposures."""
        share = leaked_share(exposure, self.target)
        return np.asarray(self.sketch.columns(share) * self.sketch.sizes @ self.heights)

    def losses(self, leaked: Array, leakable: int) -> Array:  # noqa: ARG002 - it is the sketch's
        """Return e_j for each number j of leaked rows."""
        return np.asarray(self.heights[self.sketch.labels[leaked.astype(int)]])

    @property
    def sketch_error(self) -> float | None:
        """The bound of theorem 5.2 on |e'_0 - e_0|/e_0; see `fit_sketch`."""
        standing = self.sketch.columns(self.share)
        length = np.linalg.norm(standing, axis=0)
        if not length.all() or np.linalg.matrix_rank(standing / length) < len(length):
            return None
        first = np.linalg.pinv(standing / length)[0] / length[0]
        return float(self.sketch.radius(self.share) * self.sketch.leakable * np.linalg.norm(first))


def make_sketch(leakable: int, share: Array, groups: int, grouping: str) -> Sketch:
    """Divide the columns 1 … m into groups of nearly equal size, or into k-medoids."""
    count = min(groups, leakable)
    blocks = np.array_split(np.arange(1, leakable + 1), count)
    labels = np.repeat(np.arange(count + 1), [1, *map(len, blocks)])
    if grouping == "means":
        return Sketch(leakable=leakable, labels=labels, representatives=None)
    middles = np.array([0, *(block[len(block) // 2] for block in blocks)])
    if grouping == "medoids":
        labels, middles = _medoids(binomial_matrix(leakable, share), middles)
    return Sketch(leakable=leakable, labels=labels, representatives=middles)


def _medoids(
    matrix: Array, medoids: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Alternate between assigning columns to the nearest medoid and choosing medoids, to convergence."""
    distances = cdist(matrix.T, matrix.T)
    while True:
        nearest = 1 + np.argmin(distances[:, medoids[1:]], axis=1)
        nearest[medoids] = np.arange(len(medoids))  # equal columns could leave a group empty
        chosen = [0]
        for group in range(1, len(medoids)):
            members = np.flatnonzero(nearest == group)
            within = distances[np.ix_(members, members)].sum(axis=0)
            current = within[members == medoids[group]][0]
            best = int(np.argmin(within))
            # require a real improvement: rounding errors could cause an endless loop
            better = within[best] < current * (1 - 1e-9)
            chosen.append(int(members[best]) if better else int(medoids[group]))
        if np.array_equal(chosen, medoids):
            return nearest, medoids
        medoids = np.sort(chosen)


def fit_sketch(
    problem: Extrapolation, *, groups: int, grouping: str, smoothing: float, objective: str
) -> SketchFit:
    """Solve for one loss per group of numbers of leaked rows.

    Parameters
    ----------
    problem : Extrapolation
    groups : int
        k: number of groups of the columns 1 … m; column 0 is always a group of its own. With k ≥ m
        nothing is sketched.
    grouping : {"means", "blocks", "medoids"}
        What represents a group: the mean of adjacent columns, the middle one of adjacent columns,
        or the medoid of a group found by k-medoids.
    smoothing, objective
        As for the trend filters, with decreasing losses and differences of order 4 between
        groups. With smoothing 0 the sketched system is solved by plain least squares.

    Notes
    -----
    A column that represents g columns counts g times: S = (A_0, g_1·S_1, …, g_k·S_k). The paper
    omits these factors. They do not matter for the plain system, where e' absorbs them, but
    smoothness and monotonicity compare losses, not losses times group sizes.

    `means` is the default because one column in the middle of a group wider than a binomial
    distribution represents it poorly. The choice is based on the curves that the authors published,
    with the papers' λ and k. Mean absolute error of e_0 over ten trials:

    =========== ======= ======= =========
    grouping    heart   census  synthetic
    =========== ======= ======= =========
    means       0.0254  0.0021  4.42
    blocks      0.0654  0.0213  7.85
    medoids     0.0503  0.0058  7.82
    =========== ======= ======= =========

    This follows the authors' text, from which their program departs. The program adds up adjacent
    columns, as `means` does, but has k groups with column 0 in the first of them, outer groups that
    are half as wide, and differences of order 2. That gives 0.0269, 0.0022 and 4.72 if halves are
    rounded to even at the group boundaries, and 0.0284, 0.0026 and 4.72 if they are rounded up.

    For large m the fitted curve has k + 1 steps, smoothed by the binomial distribution.

    `sketch_error` is the bound of theorem 5.2, |e'_0 - e_0| ≤ ε·m·‖s'‖·e_0, as a multiple of the
    unknown e_0. The printed theorem leaves some points open. S is not square, so s' is the first row
    of its pseudo-inverse. Its columns must be independent, which requires more than k levels and
    (1-p0)^n' > 0, so that some level depends on e_0; otherwise the bound is None. b is assumed to be
    free of noise, and e to be decreasing and non-negative. The bound applies to the plain system
    (`smoothing=0`), not to the smoothed one. It is a worst case and seldom below 1: a small bound is
    informative, a large one is not.
    """
    share = leaked_share(problem.exposure, problem.target)
    sketch = make_sketch(problem.leakable, share, groups, grouping)
    matrix = sketch.columns(share) * sketch.sizes
    if smoothing:
        solution = solve_losses(
            matrix,
            problem.loss,
            order=SMOOTHNESS_ORDER,
            smoothing=smoothing,
            decreasing=True,
            objective=objective,
        )
    else:
        solution = _solve_sketch(matrix, problem.loss)
    return SketchFit(
        target=problem.target,
        reads=solution.reads,
        accurate=solution.accurate,
        sketch=sketch,
        heights=solution.losses,
        share=share,
    )


def _solve_sketch(matrix: Array, loss: Array) -> Solution:
    """Return S⁺b, with columns scaled first because their sizes differ widely."""
    scale = np.linalg.norm(matrix, axis=0)
    scale[scale == 0] = 1.0
    solution = solve_losses(matrix / scale, loss)
    return Solution(losses=solution.losses / scale, reads=solution.reads / scale[0])
