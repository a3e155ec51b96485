"""The whole distribution of the loss on new clusters, not only its mean."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from sklearn.isotonic import isotonic_regression

from mlflow_b3.errors import InputError
from mlflow_b3.estimation.estimates import Estimate, Number, estimate
from mlflow_b3.measurement.curve import LossCurve
from mlflow_b3.results import Result


@dataclass(frozen=True, kw_only=True)
class LossDistribution(Result):
    """Shares of rows of new clusters whose loss exceeds some thresholds.

    Attributes
    ----------
    thresholds : tuple of float
        Increasing.
    exceeding : tuple of float
        P(loss > t) on new clusters; never increasing.
    low, high : tuple of float
        95 % interval at each threshold by itself.
    uncorrected : tuple of float
        P(loss > t) on the folds as they are.
    """

    thresholds: tuple[float, ...]
    exceeding: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    uncorrected: tuple[float, ...]

    def quantile(self, share: float) -> tuple[float | None, float | None]:
        """Return thresholds (low, high) between which a quantile of the loss lies.

        None where the quantile is below all thresholds or above all of them.
        """
        if not 0 < share < 1:
            raise InputError(f"share={share!r} must lie in (0, 1).")
        above = [t for t, p in zip(self.thresholds, self.exceeding, strict=True) if p <= 1 - share]
        below = [t for t, p in zip(self.thresholds, self.exceeding, strict=True) if p > 1 - share]
        return (below[-1] if below else None, above[0] if above else None)


def estimate_distribution(
    thresholds: Sequence[Number],
    curves: Sequence[LossCurve],
    p0: Any,
    method: Any = "auto",
    *,
    p0_validation: Number = 0.0,
    **options: Any,
) -> LossDistribution:
    """Estimate the distribution of the loss on new clusters.

    Parameters
    ----------
    thresholds : sequence of float
        Increasing.
    curves : sequence of LossCurve
        For each threshold t, the share of rows with a loss above t as a loss curve.
    p0, method, p0_validation, **options
        As in `estimate`.

    Notes
    -----
    The papers extend B3 to a histogram of the loss (UAI 2017, section 5). Here each threshold is
    one more loss, 1[loss > t]: unlike the share of a single bin it falls with leakage whenever
    leakage makes losses stochastically smaller, so that the shape the estimators rest on is the
    same. Shares that are not in order after separate estimation are put in order by isotonic
    regression.
    """
    points = [float(threshold) for threshold in thresholds]
    ordered = all(a < b for a, b in pairwise(points)) and all(map(math.isfinite, points))
    if not points or len(points) != len(curves) or not ordered:
        raise InputError(
            f"thresholds must be finite and increase, with one curve for each: {len(points)} "
            f"thresholds and {len(curves)} curves were given."
        )
    results = [
        estimate(curve, p0, method, p0_validation=p0_validation, bound=1.0, **options)
        for curve in curves
    ]
    return distribution_of(points, results, [curve.loss[0] for curve in curves])


def distribution_of(
    thresholds: Sequence[float], results: Sequence[Estimate], uncorrected: Sequence[float]
) -> LossDistribution:
    """Put estimates at single thresholds together."""

    def ordered(values: Sequence[float]) -> tuple[float, ...]:
        kept = np.clip(np.asarray(values, float), 0.0, 1.0)
        return tuple(isotonic_regression(kept, increasing=False).tolist())

    return LossDistribution(
        thresholds=tuple(thresholds),
        exceeding=ordered([result.e0 for result in results]),
        low=ordered([result.interval[0] for result in results]),
        high=ordered([result.interval[1] for result in results]),
        uncorrected=tuple(uncorrected),
    )
