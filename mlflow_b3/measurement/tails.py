"""How often the losses of rows exceed some thresholds, level by level."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from mlflow_b3.folds import Fold
from mlflow_b3.measurement.assembly import Tail, assemble_curve
from mlflow_b3.measurement.fold_losses import FoldLosses
from mlflow_b3.measurement.outcomes import Outcome
from mlflow_b3.measurement.resampling import Resampler

#: Thresholds are these quantiles of the rows' losses on the folds as they are.
QUANTILES = (0.1, 0.25, 0.5, 0.75, 0.9, 0.95)


class TailLosses:
    """Collects, for several thresholds, the losses 1[loss > threshold] of an audit's refits."""

    def __init__(self, folds: Sequence[Fold], resampler: Resampler) -> None:
        self._folds = folds
        self._resampler = resampler
        self._first: list[Outcome] = []
        self._collected: dict[float, list[FoldLosses]] = {}

    def add(self, outcome: Outcome) -> None:
        """Add one refit; those on whole folds wait until the thresholds are known."""
        if outcome.task.purpose == "loco":
            self._first.append(outcome)
        elif outcome.task.purpose == "rows":
            self._add(outcome)

    def set_thresholds(self) -> None:
        """Choose the thresholds from the losses on whole folds; none where losses take two values."""
        losses = np.concatenate([o.validation for o in self._first if o.validation is not None])
        if len(np.unique(losses)) < 3:
            return
        levels = len(self._resampler.exposures)
        for threshold in np.unique(np.quantile(losses, QUANTILES)):
            self._collected[float(threshold)] = [FoldLosses(f, levels) for f in self._folds]
        for outcome in self._first:
            self._add(outcome)

    def _add(self, outcome: Outcome) -> None:
        assert outcome.validation is not None
        assert outcome.held_back is not None
        for threshold, folds in self._collected.items():
            above = replace(
                outcome,
                validation=(outcome.validation > threshold).astype(float),
                held_back=(outcome.held_back > threshold).astype(float),
            )
            folds[outcome.task.fold].add(above, self._resampler)

    def assemble(self, repeats: int) -> tuple[Tail, ...]:
        """Return the curves of all thresholds."""
        tails = []
        for threshold, folds in self._collected.items():
            parts = assemble_curve(folds, self._resampler, repeats)
            tails.append(
                Tail(threshold=threshold, curve=parts.curve, fold_curves=parts.fold_curves)
            )
        return tuple(tails)
