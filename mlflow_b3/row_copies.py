"""Copies of some rows of a table: one each, in the layout that learners read rows from."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

#: Bytes up to which a table may be copied once more.
SMALL = 32 * 2**20
#: Bytes of the rows that are copied at a time, so that they stay in the processor's cache.
AT_A_TIME = 2**20
NUMBERS = "biuf"


class RowCopies:
    """Takes rows of features.

    Rows of large tables with numbers of one dtype, as DataFrame or array, are copied one after the
    other in memory (C order): scikit-learn's linear models ask for that, and would otherwise copy
    once more. All other tables are left to their own way of taking rows, and keep their dtypes and
    categories.

    Parameters
    ----------
    features : DataFrame, array, or anything with rows
        It is not copied.
    """

    def __init__(self, features: Any) -> None:
        self._features = features
        self._frame = type(features) is pd.DataFrame
        self._columns: list[NDArray[Any]] | None = None
        self._values: NDArray[Any] | None = None
        dtype = self._number_dtype()
        if dtype is None:
            return
        if features.shape[0] * features.shape[1] * dtype.itemsize <= SMALL:
            self._values = features.to_numpy() if self._frame else None
            return
        self._dtype = dtype
        if self._frame:
            places = range(features.shape[1])
            self._columns = [features.iloc[:, place].to_numpy() for place in places]
        elif not features.flags.c_contiguous:
            self._columns = list(features.T)

    def _number_dtype(self) -> np.dtype[Any] | None:
        """Return the dtype of a table of numbers; None for others."""
        if self._frame:
            dtypes = set(self._features.dtypes)
            dtype = dtypes.pop() if len(dtypes) == 1 else None
        else:
            array = isinstance(self._features, np.ndarray) and self._features.ndim == 2
            dtype = self._features.dtype if array else None
        return dtype if isinstance(dtype, np.dtype) and dtype.kind in NUMBERS else None

    def whole(self) -> Any:
        """Return all rows in the layout of those that are taken; as they are where that is no copy."""
        if self._columns is None:
            return self._features
        return self.take(np.arange(len(self._features)))

    def take(self, rows: NDArray[np.integer]) -> Any:
        """Return some rows, in the given order."""
        frame = self._features
        if self._values is not None:  # what pandas does, in a third of the time
            taken = self._in_their_layout(self._values, rows)
            return pd.DataFrame(taken, index=frame.index[rows], columns=frame.columns, copy=False)
        if self._columns is None:
            return (
                self._features.iloc[rows]
                if hasattr(self._features, "iloc")
                else self._features[rows]
            )
        taken = self._gathered(self._columns, rows)
        if not self._frame:
            return taken
        return pd.DataFrame(taken, index=frame.index[rows], columns=frame.columns, copy=False)

    def _in_their_layout(self, values: NDArray[Any], rows: NDArray[np.integer]) -> NDArray[Any]:
        """Take rows as pandas would, down to their order in memory: sums of learners follow it."""
        return values[rows] if values.flags.c_contiguous else np.take(values.T, rows, axis=1).T

    def _gathered(self, columns: Sequence[NDArray[Any]], rows: NDArray[np.integer]) -> NDArray[Any]:
        taken = np.empty((len(rows), len(columns)), dtype=self._dtype)
        step = max(1, AT_A_TIME // (len(columns) * self._dtype.itemsize))
        for start in range(0, len(rows), step):
            chosen, part = rows[start : start + step], taken[start : start + step]
            for place, column in enumerate(columns):
                part[:, place] = column[chosen]
        return taken


def select_columns(frame: pd.DataFrame, names: Sequence[str]) -> pd.DataFrame:
    """Return some columns; those of a table that is not small are not copied."""
    if len(frame) * max(1, len(names)) * 8 <= SMALL:
        return frame[list(names)]
    places = frame.columns.get_indexer(pd.Index(names))
    if (np.diff(places) == 1).all():
        chosen = frame.iloc[:, places[0] : places[-1] + 1].copy(deep=False)
        if np.shares_memory(chosen.iloc[:, 0].to_numpy(), frame[names[0]].to_numpy()):
            return chosen  # pandas 2 copies
    return pd.DataFrame({name: frame[name] for name in names}, copy=False)
