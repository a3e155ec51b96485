"""Row means over refits, and the variance of their means over clusters."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

#: Clusters are trained on each other, so the errors of different clusters are correlated, and the
#: variance of a cross-validated loss is larger than that of independent clusters. Measured on
#: simulated clinics (docs/accuracy.md) it is 0.7 to 2 times as large, by learner and cluster size.
CORRELATED_ERRORS = 1.4
#: Rows of a fold up to which held-back losses are kept row by row.
ROW_BY_ROW = 100_000
#: Places up to which memory is not worth the time that small types take.
FEW_PLACES = 10_000
Array = NDArray[np.float64]
Indices = NDArray[np.integer[Any]]


class Totals:
    """Sum and number of losses by place and level, in the smallest types that hold them exactly.

    Of many places, losses that are whole numbers, such as errors of labels, take a byte or two
    instead of eight.

    Parameters
    ----------
    places, n_levels : int
    """

    def __init__(self, places: int, n_levels: int) -> None:
        # by level first: memory of levels that nothing is added to is never touched
        dtype = float if places <= FEW_PLACES else np.uint8
        self._sums: NDArray[Any] = np.zeros((n_levels, places), dtype=dtype)
        self._counts: NDArray[Any] = np.zeros((n_levels, places), dtype=dtype)

    @property
    def sums(self) -> NDArray[Any]:
        """A copy of the sums, with a row for each place and a column for each level."""
        return np.ascontiguousarray(self._sums.T)

    @property
    def counts(self) -> NDArray[Any]:
        """A copy of the numbers of losses, in the same form."""
        return np.ascontiguousarray(self._counts.T)

    def add_at(self, where: Indices, level: int, losses: NDArray[Any], counts: Any = 1) -> None:
        """Add a loss, or the sum of several, at each of some places, none of them twice."""
        # in wide types: NumPy 1 adds a single number to bytes in bytes, and they overflow unseen
        sums = np.add(self._sums[level, where], losses, dtype=float)
        self._sums = _fitting(self._sums, sums)
        self._sums[level, where] = sums
        numbers = np.add(self._counts[level, where], counts, dtype=float)
        self._counts = _fitting(self._counts, numbers)
        self._counts[level, where] = numbers


def _fitting(stored: NDArray[Any], values: NDArray[Any]) -> NDArray[Any]:
    """Return what is stored in a type that holds further values too."""
    if stored.dtype.kind == "f" or not values.size:
        return stored
    least, most = float(values.min()), float(values.max())
    whole = values.dtype.kind in "iu" or bool((values == np.floor(values)).all())
    small = whole and least >= 0 and most < 2**32
    needed = np.min_scalar_type(int(most)) if small else np.dtype(float)
    return stored if needed <= stored.dtype else stored.astype(needed)


class RowMeans(Totals):
    """Mean loss of each of some rows over the refits that scored it, by level."""

    def __init__(self, rows: Indices, n_levels: int) -> None:
        super().__init__(len(rows), n_levels)
        self.rows = rows

    def add(self, rows: Indices, level: int, losses: Array) -> None:
        """Add the losses of one refit."""
        self.add_at(np.searchsorted(self.rows, rows), level, losses)

    @property
    def means(self) -> Array:
        """Row means; NaN where a row was never scored."""
        means = np.empty(self._sums.T.shape)
        with np.errstate(invalid="ignore"):
            np.divide(self._sums.T, self._counts.T, out=means, dtype=float)
        return means


class UnitTotals(Totals):
    """Sum and number of the losses of the rows of each unit, by level.

    Parameters
    ----------
    rows, units : array of int
        Rows in ascending order, and the unit of each.
    n_levels : int

    Attributes
    ----------
    units : array of int
        The unit of each place. Places are rows up to `ROW_BY_ROW` rows, beyond that units: the same
        numbers but for rounding, in a fraction of the memory.
    """

    def __init__(self, rows: Indices, units: Indices, n_levels: int) -> None:
        self._by_row = len(rows) <= ROW_BY_ROW
        self._places = rows if self._by_row else np.unique(units)
        self.units = units if self._by_row else self._places
        super().__init__(len(self._places), n_levels)

    def add(self, rows: Indices, units: Indices, level: int, losses: Array) -> None:
        """Add the losses of one refit on some of the rows, given with their units."""
        if self._by_row and (rows[1:] > rows[:-1]).all():  # none twice
            self.add_at(np.searchsorted(self._places, rows), level, losses)
            return
        places, where, counts = np.unique(
            rows if self._by_row else units, return_inverse=True, return_counts=True
        )
        sums = np.bincount(where.ravel(), losses, minlength=len(places))
        self.add_at(np.searchsorted(self._places, places), level, sums, counts)


def variance(values: Sequence[float]) -> float:
    """Return the variance of a sample; NaN with a single value."""
    return float(np.var(values, ddof=1)) if len(values) > 1 else float("nan")


def by_unit(values: Array, units: Indices, n_units: int) -> Array:
    """Add up the rows of each unit."""
    sums = np.zeros((n_units, values.shape[1]))
    np.add.at(sums, units, values)
    return sums


def robust_covariance(influence: Array) -> Array:
    """Return 1.4 · G/(G-1) · Σ_g d_g d_gᵀ of what each of G units adds to some means."""
    n_units = len(influence)
    factor = CORRELATED_ERRORS * n_units / max(1, n_units - 1)
    return np.asarray(factor * influence.T @ influence)
