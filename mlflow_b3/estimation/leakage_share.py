"""p0 from the loss curve alone: the papers' grid search, and what it cannot tell."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mlflow_b3.errors import InputError
from mlflow_b3.estimation.estimates import Number, residual_of
from mlflow_b3.estimation.methods import Method, as_method, fit_curve, is_accurate
from mlflow_b3.estimation.unmixing import LeakShares, unmix
from mlflow_b3.measurement.curve import LossCurve
from mlflow_b3.results import Result

GRID_STEPS = 50
LARGEST_SHARE = 0.5


@dataclass(frozen=True, kw_only=True)
class P0Search(Result):
    """The residual profile of algorithm 2.

    Attributes
    ----------
    p0 : tuple of float
        The candidates.
    residual : tuple of float
        ‖fitted - measured‖₂ for each candidate.
    p0_star : float
        The candidate with the smallest residual, as the papers define it.
    identified : tuple of float
        The range of candidates that the data do not exclude: residual within the noise of the
        smallest one, and e_0 not beyond the largest possible loss.
    flat : bool
        No candidate's residual exceeds another's by more than the noise: `p0_star` is then no
        estimate of anything.
    accurate : bool
        False when a solver's result for one of the candidates could not be confirmed.
    """

    p0: tuple[float, ...]
    residual: tuple[float, ...]
    p0_star: float
    identified: tuple[float, float]
    flat: bool
    accurate: bool = True


def search_p0(
    curve: LossCurve,
    method: str | Method = "auto",
    *,
    p0: Sequence[Number] | None = None,
    bound: float | None = None,
    **options: Any,
) -> P0Search:
    """Search the leaked share whose fitted curve leaves the smallest residual.

    Parameters
    ----------
    curve : LossCurve
    method, bound, **options
        As in `estimate`.
    p0 : sequence of float, optional
        The candidates; 0 to 0.5 by default.

    Notes
    -----
    What is measured depends on the injected share only; another candidate p0 relabels the axis
    affinely, and polynomials stay polynomials. The residual of unconstrained solvers is therefore
    the same for every candidate, and shape constraints exclude large ones at best. One set of
    refits serves all candidates, so this costs as much as a single one.
    """
    chosen = as_method(method, **options)
    grid = np.linspace(0, LARGEST_SHARE, GRID_STEPS + 1) if p0 is None else np.asarray(p0, float)
    if grid.ndim != 1 or not len(grid) or (np.diff(grid) <= 0).any():
        raise InputError("p0 must be a non-empty, increasing sequence of candidates in [0, 1).")
    problems = [unmix(curve, LeakShares(p0=float(share))) for share in grid]
    fits = [fit_curve(problem, chosen) for problem in problems]
    residual = np.array([residual_of(*pair) for pair in zip(fits, problems, strict=True)])
    noise = float(np.linalg.norm(problems[0].stderr))
    allowed = residual <= residual.min() + noise
    if bound is not None:
        allowed &= np.array([fit.e0 for fit in fits]) <= bound + noise
    kept = grid[allowed] if allowed.any() else grid[[int(np.argmin(residual))]]
    return P0Search(
        p0=tuple(grid.tolist()),
        residual=tuple(residual.tolist()),
        p0_star=float(grid[int(np.argmin(residual))]),
        identified=(float(kept[0]), float(kept[-1])),
        flat=bool(np.ptp(residual) <= noise),
        accurate=all(map(is_accurate, fits)),
    )
