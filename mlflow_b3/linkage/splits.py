"""Which rows are on which side of each split, for counting what leaks across."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from mlflow_b3.errors import InputError

Rows = NDArray[np.intp]
Mask = NDArray[np.bool_]
Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, eq=False)
class Splits:
    """Training and validation rows of every split.

    Attributes
    ----------
    training, validation : array of bool, rows by splits
    weights : array of float
        What each split counts; they sum to 1.
    """

    training: Mask
    validation: Mask
    weights: Floats

    @classmethod
    def of(cls, folds: Any, n: int | None = None, *, by_rows: bool = False) -> Self:
        """Read folds: one fold number for each row, or pairs of training and validation rows.

        Parameters
        ----------
        folds : Splits, array of int, or sequence of (training rows, validation rows) or `Fold`
        n : int, optional
            Number of rows; needed for pairs.
        by_rows : bool
            Weight splits by their validation rows, as a score over all validation rows does,
            instead of equally, as the definition of p0 does.
        """
        if isinstance(folds, cls):
            return folds
        numbers = _fold_numbers(folds)
        if numbers is not None:
            if n is not None and len(numbers) != n:
                raise InputError(f"folds has {len(numbers)} rows; there are {n}.")
            labels, numbers = np.unique(numbers, return_inverse=True)
            if len(labels) < 2:
                raise InputError("folds has one fold only; at least two are needed.")
            validation = numbers[:, None] == np.arange(len(labels))
            training = ~validation
        else:
            training, validation = _from_pairs(folds, n)
        weights = validation.sum(axis=0) if by_rows else np.ones(validation.shape[1])
        return cls(training=training, validation=validation, weights=weights / weights.sum())

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return len(self.training)

    @property
    def n_folds(self) -> float:
        """K: how many validation sides make up all the rows that are split."""
        sizes = self.validation.sum(axis=0)
        shares = sizes / (sizes + self.training.sum(axis=0))
        return float(1 / np.dot(self.weights, shares))

    @property
    def training_weight(self) -> Floats:
        """What a leaked training row adds to p0, times the number of rows: n·w_k/|T_k|."""
        return np.asarray(self.n_rows * self.weights / self.training.sum(axis=0))

    @property
    def validation_weight(self) -> Floats:
        """What a seen validation row adds to p0_validation, times the rows: n·w_k/|V_k|."""
        return np.asarray(self.n_rows * self.weights / self.validation.sum(axis=0))

    def require_whole(self, clusters: Rows, *, allow_split: bool = False) -> None:
        """Refuse splits that have rows of one predicted cluster on both sides."""
        if allow_split:
            return
        count = int(clusters.max()) + 1
        for split, (training, validation) in enumerate(
            zip(self.training.T, self.validation.T, strict=True)
        ):
            both = np.bincount(clusters[training], minlength=count) > 0
            both &= np.bincount(clusters[validation], minlength=count) > 0
            if both.any():
                raise InputError(
                    f"folds: {int(both.sum())} predicted clusters have rows on both sides of split "
                    f"{split}. Split by cluster, or say allow_split=True if that is meant."
                )


def as_codes(name: str, labels: Any, n: int | None = None) -> Rows:
    """Return labels of rows as whole numbers from 0, in order of first appearance."""
    import pandas as pd

    values = np.asarray(labels)
    if values.ndim != 1 or not len(values):
        raise InputError(f"{name} must hold one label for each row.")
    if n is not None and len(values) != n:
        raise InputError(f"{name} has {len(values)} labels; there are {n} rows.")
    codes, _ = pd.factorize(values, sort=False)
    if (codes < 0).any():
        raise InputError(f"{name} is missing in {int((codes < 0).sum())} rows; give each a label.")
    return np.asarray(codes, dtype=np.intp)


def _fold_numbers(folds: Any) -> NDArray[Any] | None:
    if isinstance(folds, (str, bytes)) or not isinstance(folds, Iterable):
        raise InputError(
            f"folds={folds!r} is not usable; give a fold number for each row, or pairs of training "
            "rows and validation rows."
        )
    if isinstance(folds, (list, tuple)) and len(folds) and not np.isscalar(folds[0]):
        return None
    numbers = np.asarray(folds)
    return numbers if numbers.ndim == 1 else None


def _row_numbers(rows: Any, n: int, split: int) -> Rows:
    """Return the rows of one side, which may come as a mask."""
    numbers = np.asarray(rows)
    if numbers.dtype == bool and numbers.shape == (n,):
        numbers = np.flatnonzero(numbers)
    if not numbers.size:
        return np.zeros(0, dtype=np.intp)
    if numbers.ndim != 1 or not np.issubdtype(numbers.dtype, np.integer):
        raise InputError(f"folds: split {split} must list row numbers, or hold a mask of all rows.")
    if numbers.min() < 0 or numbers.max() >= n:
        raise InputError(f"folds: split {split}: row numbers must lie in 0 … {n - 1}.")
    return numbers.astype(np.intp)


def _from_pairs(folds: Any, n: int | None) -> tuple[Mask, Mask]:
    pairs = [
        (fold.training, fold.validation) if hasattr(fold, "training") else tuple(fold)
        for fold in folds
    ]
    if n is None:
        raise InputError("n, the number of rows, is needed with folds of training and validation.")
    sides = np.zeros((2, n, len(pairs)), dtype=bool)
    for split, pair in enumerate(pairs):
        if len(pair) != 2:
            raise InputError(f"folds: split {split} must be (training rows, validation rows).")
        for side, rows in enumerate(pair):
            sides[side, _row_numbers(rows, n, split), split] = True
    for side, name in enumerate(("training", "validation")):
        empty = np.flatnonzero(~sides[side].any(axis=0))
        if len(empty):
            raise InputError(f"folds: split {int(empty[0])} has no {name} rows.")
    if (sides[0] & sides[1]).any():
        raise InputError("folds: a row is on both sides of a split.")
    return sides[0], sides[1]
