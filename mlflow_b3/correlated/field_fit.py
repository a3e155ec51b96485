"""Regression with a Gaussian random field over places."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from scipy.spatial.distance import cdist

from mlflow_b3.correlated.climbing import FLAT, Objective, Peak, climb
from mlflow_b3.correlated.field_classes import ClassField
from mlflow_b3.correlated.field_numbers import NumberField, NumberProfile
from mlflow_b3.correlated.mixed_fit import as_design, whitened
from mlflow_b3.correlated.profile import profile_interval
from mlflow_b3.correlated.structure import Array
from mlflow_b3.errors import InputError, choose

TASKS = ("classification", "regression")
#: Rows for which matrices of one number for each pair can be factorised some hundred times.
MOST_ROWS = 1500
#: Largest σ, on the scale of log odds or in standard deviations of the target.
MOST_SD = 5.0
#: Largest σ in units of the noise, for numbers.
MOST_RATIO = 100.0
#: Upper end of an interval that the likelihood leaves open.
MOST_HIGH = 10.0
#: Smallest σ in a search, whose slope would be 0 at 0; below the second, it is reported as 0.
LEAST_SD = 1e-3
AS_ZERO = 5e-3
#: Least and most reach of the kernel, in parts of the largest distance.
REACHES = (0.01, 1.0)
#: Where searches begin: at the best of these reaches and σ, and from how many.
FIRST_REACHES = (0.03, 0.1, 0.3)
FIRST_SD = (0.5, 1.5)
SEARCHES = 2
#: Information on a coefficient below which it has run away, as in `mixed_logistic`.
RUN_AWAY = 0.02


@dataclass(frozen=True, kw_only=True)
class FieldFit:
    """A regression with a random field, fitted.

    Attributes
    ----------
    coefficients : array (p,)
        Of the fixed effects.
    sd, reach : float
        σ and r of the kernel σ² exp(-d/r).
    sd_low, sd_high : float
        95 % interval of σ by its profile likelihood; equal to `sd` where it was not asked for.
    log_likelihood : float
        At the estimates; restricted for numbers.
    converged : bool
    capped : bool
        The likelihood grows beyond the largest σ, 5.
    separated : bool
        Classes are told apart without error by columns, so that coefficients have no limit.
    noise : float or None
        Standard deviation of the residuals, for numbers.
    """

    coefficients: Array
    sd: float
    reach: float
    sd_low: float
    sd_high: float
    log_likelihood: float
    converged: bool
    capped: bool
    separated: bool = False
    noise: float | None = None


def fit_field(
    target: Any, X: Any, coordinates: Any, task: str, *, intervals: bool = True
) -> FieldFit:
    """Fit a regression with a Gaussian random field of kernel σ² exp(-d/r).

    Parameters
    ----------
    target : array
        0 and 1, or numbers.
    X : array (n, p)
        Fixed effects, with a column of ones for the intercept.
    coordinates : array (n, d)
        Where each row was taken; distances are Euclidean.
    task : {"classification", "regression"}
        Classes by Laplace's approximation, numbers by restricted maximum likelihood.
    intervals : bool, default True
        Find the profile likelihood of σ, with the reach at its estimate and all else at its best.

    Returns
    -------
    FieldFit

    Notes
    -----
    Within a region of limited extent, the data tell σ²/r far better than σ and r. The reach is
    therefore kept between 1 % and 100 % of the largest distance, and σ² at 25 at most, where searches
    without bounds end anywhere. The interval of σ keeps the reach, so that its ends and the reach
    together are models that the data do not reject.
    """
    design, values = as_design(X, target)
    distances = _distances(coordinates, len(values))
    columns, back = whitened(design)
    if choose("task", task, TASKS) == "regression":
        return _fit_numbers(values, columns, back, distances, intervals)
    if not np.isin(values, (0.0, 1.0)).all():
        raise InputError("target must hold nothing but 0 and 1; number the two classes so.")
    return _fit_classes(values, columns, back, distances, intervals)


def _distances(coordinates: Any, n_rows: int) -> Array:
    """Return the distances of all places, or say what is wrong with them."""
    places = np.asarray(coordinates, dtype=float)
    places = places[:, None] if places.ndim == 1 else places
    if places.ndim != 2 or len(places) != n_rows or not np.isfinite(places).all():
        raise InputError(
            f"coordinates has the shape {places.shape}; it must hold finite numbers, one row for "
            f"each of the {n_rows} rows."
        )
    if n_rows > MOST_ROWS:
        raise InputError(
            f"A field over {n_rows} rows is too large; {MOST_ROWS} can be fitted. Give a sample of "
            "rows from all regions, or name the regions as groups instead."
        )
    distances = np.asarray(cdist(places, places), dtype=float)
    if not distances.max(initial=0.0) > 0:
        raise InputError("coordinates are the same for all rows; a field needs different places.")
    return distances


def _highest(
    objective: Objective, beta: Array, information: Array, extent: float, most: float
) -> Peak:
    """Climb from the best of several starts."""
    reach = np.log(np.array(REACHES) * extent)
    bounds = np.array([LEAST_SD, reach[0]]), np.array([most, reach[1]])
    grid = [
        np.array([sd, np.log(share * extent)]) for sd, share in product(FIRST_SD, FIRST_REACHES)
    ]
    grid.sort(key=lambda spread: -objective(beta, spread)[0])
    scale = np.array([0.25, 0.5])
    peaks = [
        climb(objective, beta, start, information=information, scale=scale, bounds=bounds)
        for start in grid[:SEARCHES]
    ]
    return max(peaks, key=lambda peak: peak.value)


def _fit_classes(
    target: Array, columns: Array, back: Array, distances: Array, intervals: bool
) -> FieldFit:
    """Fit classes by Laplace's approximation, coefficients in the outer search."""
    field = ClassField(target=target, columns=columns, distances=distances)
    beta = field.first_coefficients()
    extent = float(distances.max())
    field.evaluate(beta, np.array([FIRST_SD[0], np.log(FIRST_REACHES[1] * extent)]))
    peak = _highest(field.evaluate, beta, field.information, extent, MOST_SD)
    field.evaluate(peak.coefficients, peak.spread)
    information, converged = field.information, peak.converged and field.converged

    def profile(sd: float) -> float:
        spread = np.array([max(sd, LEAST_SD), peak.spread[1]])
        return climb(
            field.evaluate,
            peak.coefficients,
            spread,
            information=information,
            scale=np.ones(2),
            bounds=(spread, spread),
            slope=FLAT,
        ).value

    low, high = _interval(profile, peak.spread[0], peak.value, intervals)
    known = np.linalg.eigvalsh(information).min(initial=1.0)
    sd = float(peak.spread[0]) if peak.spread[0] > AS_ZERO else 0.0
    return FieldFit(
        coefficients=back @ peak.coefficients,
        sd=sd,
        reach=float(np.exp(peak.spread[1])),
        sd_low=min(low, sd),
        sd_high=max(high, sd),
        log_likelihood=peak.value,
        converged=converged,
        capped=sd > 0.99 * MOST_SD,
        separated=bool(known < RUN_AWAY),
    )


def _fit_numbers(
    target: Array, columns: Array, back: Array, distances: Array, intervals: bool
) -> FieldFit:
    """Fit numbers by restricted maximum likelihood, coefficients and noise at their best."""
    if len(target) <= columns.shape[1]:
        raise InputError(
            f"X has {columns.shape[1]} independent columns for {len(target)} rows; give more rows "
            "or fewer columns."
        )
    unit = float(target.std()) or 1.0
    field = NumberField(target=target / unit, columns=columns, distances=distances)
    none, extent = np.empty((0, 0)), float(distances.max())
    peak = _highest(field.evaluate, np.zeros(0), none, extent, MOST_RATIO)
    beta, noise = field.estimates(peak.spread)
    ratio, reach = float(peak.spread[0]), float(np.exp(peak.spread[1]))
    sd = noise * ratio if ratio > AS_ZERO else 0.0
    low, high = sd, sd
    if intervals:
        profile = NumberProfile(field, reach, noise)
        low, high = profile_interval(profile, sd, profile(sd), most=MOST_HIGH)
    sizes = np.array([sd, min(low, sd), max(high, sd)])
    # the density of orthonormal contrasts, whatever the units of the columns
    scale = columns.shape[1] * np.log(len(target)) / 2 - field.freedom * np.log(unit)
    sd, low, high = (unit * np.minimum(sizes, [MOST_SD, MOST_SD, MOST_HIGH])).tolist()
    return FieldFit(
        coefficients=unit * (back @ beta),
        sd=sd,
        reach=reach,
        sd_low=low,
        sd_high=high,
        log_likelihood=peak.value + float(scale),
        converged=peak.converged,
        capped=bool(sizes[0] > 0.99 * MOST_SD),
        noise=unit * noise,
    )


def _interval(
    profile: Callable[[float], float], estimate: float, peak: float, wanted: bool
) -> tuple[float, float]:
    """Return the interval of σ, or σ twice where none is wanted."""
    if not wanted:
        return estimate, estimate
    return profile_interval(profile, estimate, peak, most=MOST_HIGH)
