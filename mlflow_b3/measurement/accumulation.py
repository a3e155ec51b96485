"""Row means over refits, and the variance of their means over clusters."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

#: Clusters are trained on each other, so the errors of different clusters are correlated, and the
#: variance of a cross-validated loss is larger than that of independent clusters. Measured on
#: simulated clinics (docs/accuracy.md) it is 0.7 to 2 times as large, by learner and cluster size.
CORRELATED_ERRORS = 1.4
Array = NDArray[np.float64]


class RowMeans:
    """Mean loss of each of some rows over the refits that scored it, by level."""

    def __init__(self, rows: NDArray[np.intp], n_levels: int) -> None:
        self.rows = rows
        self.sums = np.zeros((len(rows), n_levels))
        self.counts = np.zeros((len(rows), n_levels))

    def add(self, rows: NDArray[np.intp], level: int, losses: Array) -> None:
        """Add the losses of one refit."""
        where = np.searchsorted(self.rows, rows)
        self.sums[where, level] += losses
        self.counts[where, level] += 1

    @property
    def means(self) -> Array:
        """Row means; NaN where a row was never scored."""
        with np.errstate(invalid="ignore"):
            return np.asarray(self.sums / self.counts)


def variance(values: Sequence[float]) -> float:
    """Return the variance of a sample; NaN with a single value."""
    return float(np.var(values, ddof=1)) if len(values) > 1 else float("nan")


def by_unit(values: Array, units: NDArray[np.intp], n_units: int) -> Array:
    """Add up the rows of each unit."""
    sums = np.zeros((n_units, values.shape[1]))
    np.add.at(sums, units, values)
    return sums


def robust_covariance(influence: Array) -> Array:
    """Return 1.4 · G/(G-1) · Σ_g d_g d_gᵀ of what each of G units adds to some means."""
    n_units = len(influence)
    factor = CORRELATED_ERRORS * n_units / max(1, n_units - 1)
    return np.asarray(factor * influence.T @ influence)
