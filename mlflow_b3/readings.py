"""e_0 at the ends and in the middle of what is known about the leakage, cluster by cluster."""

import math

import numpy as np

from mlflow_b3.claims import Claim, mean_shares
from mlflow_b3.estimation.estimates import solve
from mlflow_b3.estimation.fragments import estimate_fragments, mixture_error, mixture_weights
from mlflow_b3.estimation.influence import (
    Array,
    Influence,
    Reading,
    curve_gradient,
    curve_influence,
)
from mlflow_b3.estimation.methods import Method
from mlflow_b3.estimation.unmixing import unmix
from mlflow_b3.folds import FoldSummary
from mlflow_b3.measurement.accumulation import robust_covariance
from mlflow_b3.measurement.assembly import Measurement

Read = tuple[Reading, Array]


def take_readings(
    measured: Measurement,
    claim: Claim,
    folds: tuple[FoldSummary, ...],
    method: Method,
    bound: float | None,
) -> tuple[tuple[Reading, ...], Influence]:
    """Return e_0 over the range of a claim, and how far each cluster moves it.

    Without a claim there is no reading, and the influence is that on the score by noisy ids alone.
    """
    values = sorted({claim.low, claim.middle, claim.high})
    read: list[Read] = []
    if claim.pattern == "rows":
        read = [_read_rows(measured, claim, folds, method, bound, value) for value in values]
    elif claim.pattern == "fragments" and not claim.vacuous:
        read = [_read_fragments(measured, claim, folds, bound, value) for value in values]
    units = measured.units
    columns = [influence for _, influence in read]
    influence = Influence(
        unit=units.unit,
        ids=units.ids,
        share=units.share,
        loco=units.curve[:, 0],
        e0=np.column_stack(columns) if columns else np.zeros((len(units.ids), 0)),
    )
    return tuple(reading for reading, _ in read), influence


def _read_rows(
    measured: Measurement,
    claim: Claim,
    folds: tuple[FoldSummary, ...],
    method: Method,
    bound: float | None,
    value: float,
) -> Read:
    shares = claim.shares(value, folds)
    problem = unmix(
        measured.curve, shares, fold_curves=measured.fold_curves, weights=measured.weights
    )
    mean = mean_shares(shares, measured.weights)
    result = solve(problem, mean, method=method, bound=bound)
    gradient = curve_gradient(problem, method)
    influence = curve_influence(problem, gradient, measured.units.curve)
    total = float(gradient @ problem.covariance @ gradient)
    return _reading(value, result.e0, result.interval, total, influence), influence


def _read_fragments(
    measured: Measurement,
    claim: Claim,
    folds: tuple[FoldSummary, ...],
    bound: float | None,
    value: float,
) -> Read:
    losses = measured.fragments
    assert losses is not None
    share = claim.seen(value, folds).share
    result = estimate_fragments(losses, seen_share=share, bound=bound)
    units = measured.units.fragments
    influence = np.asarray(units @ mixture_weights(losses, share)[: units.shape[1]])
    total = mixture_error(losses, share) ** 2
    return _reading(value, result.e0, result.interval, total, influence), influence


def _reading(
    value: float, e0: float, ends: tuple[float, float], total: float, influence: Array
) -> Reading:
    noise = math.sqrt(max(0.0, total - _variance(influence)))
    return Reading(leakage=value, e0=e0, low=ends[0], high=ends[1], noise=noise)


def _variance(influence: Array) -> float:
    return float(robust_covariance(influence[:, None])[0, 0])
