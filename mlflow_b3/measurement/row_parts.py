"""Folds of single rows that ignore the clusters, as ordinary cross-validation has them."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from sklearn.model_selection import KFold

from mlflow_b3.folds import Fold


class RowParts(Sequence[Fold]):
    """Rows dealt to folds at random; what is kept is a number for each row, not the folds.

    Parameters
    ----------
    n_rows, count : int
    seed : int
    """

    def __init__(self, n_rows: int, count: int, seed: int) -> None:
        self._count = count
        self._part = np.empty(n_rows, dtype=np.int8)
        splitter = KFold(count, shuffle=True, random_state=seed)
        for number, (_, rows) in enumerate(splitter.split(self._part)):
            self._part[rows] = number

    def __len__(self) -> int:
        """Return how many folds there are."""
        return self._count

    def __iter__(self) -> Iterator[Fold]:
        """Yield one fold after another."""
        return (self[number] for number in range(self._count))

    def __getitem__(self, number: Any) -> Any:
        """Return a fold."""
        own = self._part == range(self._count)[number]
        return Fold(training=np.flatnonzero(~own), validation=np.flatnonzero(own))
