"""The papers' regularised system as a convex program, compiled once for each of its shapes."""

import warnings
from dataclasses import dataclass, field
from functools import lru_cache
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mlflow_b3.errors import SolverError

Array = NDArray[np.float64]

#: In this order; the second is asked only when the first has no answer at all.
SOLVERS = ("CLARABEL", "SCS")


@dataclass(frozen=True, kw_only=True)
class Program:
    """min f(Ae - b) + λ·f(De), f a norm or its square, where A, b and λ can be changed."""

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
    """Compile the program of one shape.

    Parameters
    ----------
    rows, columns : int
        Of A.
    order : int
        Of the differences De; 0 for none.
    decreasing : bool
        Constrain e_{j-1} ≥ e_j ≥ 0.
    objective : {"squared", "norm"}

    Notes
    -----
    A, b and λ are parameters in disciplined (DPP) form, so that another leaked share or another λ
    changes numbers only: at n' = 100 and 200 levels the first solution takes 0.4 s, each further
    one 0.15 s.
    """
    import cvxpy as cp  # takes a second

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
    """Return e_0 … e_m as an interior-point solver finds them.

    Raises
    ------
    SolverError
        When no solver has an answer.

    Notes
    -----
    More levels than unknowns are first reduced by A = QR, ‖Ae - b‖² = ‖Re - Qᵀb‖² + ρ²; for the
    objective `norm` the constant ρ matters and stays as a row of its own. Losses are scaled to 1,
    which changes neither objective's minimiser.

    The solver's own tolerance says little about e_0, which hardly moves the objective: at n' =
    500 and 6 levels it reported success at e_0 = 2.06 where 0.42 is optimal. It is therefore
    asked only where `sequences.solve_losses` has no exact solution, and an answer that it calls
    inaccurate will do.
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

    said = []
    for solver in SOLVERS:
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message="Solution may be inaccurate")
                # older releases fear that matrices as parameters are slow; these are not
                warnings.filterwarnings("ignore", message="Your problem has too many parameters")
                # a warm start would make the numbers depend on what was solved before
                program.problem.solve(solver=solver, warm_start=False)
        except cp.error.SolverError as error:
            said.append(f"{solver}: {error}")
            continue
        values = program.losses.value
        if values is not None and np.isfinite(values).all():
            return np.asarray(values, float)
        said.append(f"{solver}: {program.problem.status}")
    raise SolverError(
        f"no solver found the losses ({'; '.join(said)}). Use the method 'power' or 'basis'."
    )
