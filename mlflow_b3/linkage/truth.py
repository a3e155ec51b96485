"""The leak shares of folds whose true entities are known."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from mlflow_b3.linkage.splits import Floats, Rows, Splits, as_codes
from mlflow_b3.results import Result


@dataclass(frozen=True, kw_only=True)
class Leak(Result):
    """What leaks across some folds, counted.

    Attributes
    ----------
    p0 : float
        Share of the training rows whose true entity also has validation rows, mean over folds.
    p0_validation : float
        Share of the validation rows whose true entity also has training rows, mean over folds. It
        drives the bias of the score; with K folds it is up to K - 1 times p0.
    training_values, validation_values : tuple of float
        v_i: what row i adds to either share, so that p0 and p0_validation are their means over all
        rows. This is the form that samples of rows are drawn from.
    split_counts : tuple of int
        m_i: number of other predicted clusters that hold rows of the row's true entity. It does
        not depend on the folds.
    """

    p0: float
    p0_validation: float
    training_values: tuple[float, ...]
    validation_values: tuple[float, ...]
    split_counts: tuple[int, ...]

    @property
    def split_rate(self) -> float:
        """σ: share of the rows whose true entity has more than one predicted cluster."""
        return float(np.mean(np.array(self.split_counts) > 0))


def leak_truth(true: Any, folds: Any, clusters: Any = None) -> Leak:
    """Count what leaks across folds when the true entity of every row is known.

    Parameters
    ----------
    true : sequence
        c(i): the true entity of each row.
    folds : array of int, or sequence of (training rows, validation rows)
        F(i): the fold of each row, or splits.
    clusters : sequence, optional
        ĉ(i): the predicted cluster of each row, for the split counts; by default every fold of an
        array counts as one cluster.

    Notes
    -----
    With Z_ik = 1 where row i trains in split k and its entity has rows in V_k,
    p0 = mean_k Σ_i Z_ik/|T_k| = mean_i v_i, v_i = n·Σ_k Z_ik/(K·|T_k|); the other side likewise.
    """
    entities = as_codes("true", true)
    splits = Splits.of(folds, len(entities))
    training, validation = leaked_values(entities, splits)
    owners = _own_folds(splits) if clusters is None else as_codes("clusters", clusters, len(true))
    return Leak(
        p0=float(training.mean()),
        p0_validation=float(validation.mean()),
        training_values=tuple(training.tolist()),
        validation_values=tuple(validation.tolist()),
        split_counts=tuple(split_counts(entities, owners).tolist()),
    )


def leaked_values(entities: Rows, splits: Splits) -> tuple[Floats, Floats]:
    """Return what each row adds to p0 and to p0_validation; see `Leak`."""
    count = int(entities.max()) + 1
    values = np.zeros((2, len(entities)))
    sides = (splits.training, splits.validation)
    weights = (splits.training_weight, splits.validation_weight)
    for side in (0, 1):
        for own, other, weight in zip(sides[side].T, sides[1 - side].T, weights[side], strict=True):
            present = np.bincount(entities[other], minlength=count) > 0
            values[side] += weight * (own & present[entities])
    return values[0], values[1]


def split_counts(entities: Rows, clusters: Rows) -> Rows:
    """Return m_i: the other predicted clusters with rows of the same true entity."""
    pairs = np.unique(np.column_stack([entities, clusters]), axis=0)
    return np.asarray(np.bincount(pairs[:, 0])[entities] - 1, dtype=np.intp)


def _own_folds(splits: Splits) -> Rows:
    return as_codes("folds", [row.tobytes() for row in splits.validation])
