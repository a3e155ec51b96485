"""Means, slopes and covariances of 0/1 targets with random effects, by quadrature."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from mlflow_b3.correlated.draws import Draws
from mlflow_b3.correlated.quadrature import NODES, WEIGHTS, smoothed_logistic, smoothed_slope
from mlflow_b3.correlated.structure import Array, Level, Structure, WorkingModel
from mlflow_b3.errors import InputError

#: Beyond as many rows, matrices of all pairs are too large.
MOST_ROWS = 3000
#: Samples by which the covariance inside regions of a field is found.
FIELD_DRAWS = 2000


@dataclass(frozen=True, kw_only=True)
class Moments:
    """First and second moments of the targets.

    Attributes
    ----------
    mean : array (n,)
        E g(f + δ).
    slope : array (n,)
        E g'(f + δ).
    covariance : array (n, n)
        C = Cov g(f + δ); with the slope on its diagonal that of the targets.
    excess : array (n, n)
        C less the covariance that a row in use still has with training rows.
    """

    mean: Array
    slope: Array
    covariance: Array
    excess: Array


def check_size(n_rows: int, engine: str) -> None:
    """Raise an `InputError` for more rows than an engine with dense matrices can take."""
    if n_rows > MOST_ROWS:
        raise InputError(
            f"engine={engine!r} keeps all pairs of rows, and {n_rows} rows are more than the "
            f'{MOST_ROWS} that it takes; use engine="full".'
        )


def moments(model: WorkingModel, structure: Structure) -> Moments:
    """Return the moments of 0/1 targets.

    Notes
    -----
    For rows i and j that share effects of variance c, of τ² in all, given the shared part the two are
    independent:

        C_ij = Σ_k w_k M_ik M_jk - μ_i μ_j,   M_ik = E g(f_i + √c a_k + √(τ² - c) z),

    with the nodes a_k and weights w_k of the quadrature. This is exact, where Yuval and Rosset
    (AISTATS 2025) draw 1000 samples. For a field the covariance is that of 2000 samples inside regions,
    since each pair there has a c of its own, and exact across them.
    """
    if structure.field is not None:
        return _field_moments(model, structure)
    total = sum(sd**2 for sd in model.sd)
    again = [(level, sd) for level, sd in _levels(model, structure) if not level.new]
    covariance = _covariance(model.mean, _levels(model, structure), total)
    return Moments(
        mean=smoothed_logistic(model.mean, np.sqrt(total)),
        slope=smoothed_slope(model.mean, np.sqrt(total)),
        covariance=covariance,
        excess=covariance - _covariance(model.mean, again, total) if again else covariance,
    )


def shared_patterns(levels: Sequence[Level]) -> Iterator[tuple[tuple[int, ...], Array]]:
    """Yield every set of levels, by position, and which pairs of rows share exactly those."""
    same = [np.equal.outer(level.codes, level.codes) for level in levels]
    for size in range(1, len(levels) + 1):
        for chosen in combinations(range(len(levels)), size):
            pairs = np.logical_and.reduce(
                [same[at] if at in chosen else ~same[at] for at in range(len(levels))]
            )
            yield chosen, pairs


def covariance_parts(f: Array, variance: float, total: Any) -> Array:
    """Return vectors whose products are the covariances of rows that share effects of this variance.

    Parameters
    ----------
    f : array (n,)
    variance : float
        c, of the effects that are shared.
    total : float or array (n,)
        τ², of all effects.

    Returns
    -------
    array (n, nodes)
        √w_k (M_ik - Σ_k w_k M_ik), centred by its own mean so that products are a covariance to the
        last digit.
    """
    rest = np.sqrt(np.maximum(0.0, np.asarray(total) - variance))  # rounding may go below 0
    given = smoothed_logistic(f[:, None] + np.sqrt(variance) * NODES, rest[..., None])
    return np.asarray((given - (given @ WEIGHTS)[:, None]) * np.sqrt(WEIGHTS))


def _levels(model: WorkingModel, structure: Structure) -> list[tuple[Level, float]]:
    return list(zip(structure.levels, model.sd, strict=True))


def _covariance(f: Array, levels: Sequence[tuple[Level, float]], total: float) -> Array:
    """Return Cov g(f + δ) by way of these levels alone."""
    result = np.zeros((len(f), len(f)))
    for chosen, pairs in shared_patterns([level for level, _ in levels]):
        variance = sum(levels[at][1] ** 2 for at in chosen)
        if variance > 0 and pairs.any():
            parts = covariance_parts(f, variance, total)
            result[pairs] = (parts @ parts.T)[pairs]
    return result


def _field_moments(model: WorkingModel, structure: Structure) -> Moments:
    simulated = Draws(model, structure, 0)
    field = simulated.field
    assert field is not None
    total = field.across + field.own_sd**2
    draws = simulated.batch(FIELD_DRAWS)
    difference = draws.expected - draws.deployed
    excess = np.zeros((len(total), len(total)))
    for rows in field.rows:
        excess[np.ix_(rows, rows)] = difference[:, rows].T @ difference[:, rows] / FIELD_DRAWS
    shared = covariance_parts(model.mean, field.across, total)
    return Moments(
        mean=smoothed_logistic(model.mean, np.sqrt(total)),
        slope=smoothed_slope(model.mean, np.sqrt(total)),
        covariance=excess + shared @ shared.T,
        excess=excess,
    )
