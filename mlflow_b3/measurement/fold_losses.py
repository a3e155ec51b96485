"""Collects the losses of the refits of one fold."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from mlflow_b3.folds import Fold
from mlflow_b3.measurement.accumulation import Array, Indices, RowMeans, UnitTotals, variance
from mlflow_b3.measurement.broken import SeenLosses
from mlflow_b3.measurement.outcomes import Outcome
from mlflow_b3.measurement.resampling import Resampler

#: Per validation row: loss without and with leakage in small training sets, and its cluster. For the
#: published test: mean losses of disjoint folds, and the outer fold that they belong to.
TestLosses = tuple[Array, Array, NDArray[np.intp]]


class FoldLosses:
    """Collects the losses of one fold."""

    def __init__(self, fold: Fold, n_levels: int) -> None:
        self.fold = fold
        self.loco = RowMeans(fold.validation, 1)
        self.validation = RowMeans(fold.validation, n_levels)
        self._held_back: UnitTotals | None = None
        self._n_levels = n_levels
        self.seen = SeenLosses(self.loco)
        self.without = RowMeans(fold.validation, 1)
        self.with_leak = RowMeans(fold.validation, 1)
        self._fit_means: list[list[float]] = [[] for _ in range(n_levels)]

    def add(self, outcome: Outcome, resampler: Resampler) -> None:
        """Add one refit. Those on the fold as it is must come before all others."""
        assert outcome.validation is not None
        assert outcome.held_back is not None
        task = outcome.task
        draw = outcome.draw or resampler.draw(task)
        if task.purpose == "loco":
            self.loco.add(draw.validation, 0, outcome.validation)
            self.seen.add_whole(outcome.validation)
        if task.purpose == "rows" or (task.purpose == "loco" and resampler.scheme == "subset"):
            self.validation.add(draw.validation, task.level, outcome.validation)
            rows, units = draw.held_back, resampler.units_of(draw.held_back)
            self.held_back(resampler).add(rows, units, task.level, outcome.held_back)
            self._fit_means[task.level].append(self._excess(draw.validation, outcome.validation))
        elif task.purpose == "fragments":
            assert draw.arms is not None
            self.seen.add(draw.validation, draw.arms, outcome.validation)
        elif task.purpose.startswith("test"):
            side = self.without if task.purpose == "test-without" else self.with_leak
            side.add(draw.validation, 0, outcome.validation)

    def held_back(self, resampler: Resampler) -> UnitTotals:
        """Return the losses on T̂ ∖ T', by what varies from sample to sample."""
        if self._held_back is None:
            rows = self.fold.training
            self._held_back = UnitTotals(rows, resampler.units_of(rows), self._n_levels)
        return self._held_back

    def _excess(self, rows: Indices, losses: Array) -> float:
        """Return a refit's mean loss less that of the same rows without injected leakage.

        Refits score different rows; the difference takes out which rows they were.
        """
        where = np.searchsorted(self.fold.validation, rows)
        return float(np.mean(losses - self.loco.means[where, 0])) if len(rows) else 0.0

    @property
    def fit_variances(self) -> Array:
        """Variance over refits of the mean loss at each level; NaN with a single refit."""
        return np.array([variance(means) for means in self._fit_means])

    @property
    def fits(self) -> tuple[int, ...]:
        """Number of refits at each level."""
        return tuple(len(means) for means in self._fit_means)


def gather_test_losses(folds: Sequence[FoldLosses], clusters: NDArray[np.intp]) -> TestLosses:
    """Return the losses of the leakage test, row by row, with the row's cluster.

    A row that several folds validate on counts once, with its mean losses.
    """
    rows = np.concatenate([fold.fold.validation for fold in folds])
    without = np.concatenate([fold.without.means[:, 0] for fold in folds])
    with_leak = np.concatenate([fold.with_leak.means[:, 0] for fold in folds])
    scored = np.isfinite(without) & np.isfinite(with_leak)
    used, where, times = np.unique(rows[scored], return_inverse=True, return_counts=True)
    without, with_leak = (
        np.bincount(where, losses[scored], minlength=len(used)) / times
        for losses in (without, with_leak)
    )
    return without, with_leak, clusters[used]
