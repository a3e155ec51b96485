"""The leakage test: does this learner profit from having seen the validation clusters?"""

import math
import sys
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from mlflow_b3.errors import InputError, choose
from mlflow_b3.results import Result

LEVEL = 0.05
POWER = 0.8
#: Rows scored by the same few models are not independent; with twice the variance the test keeps
#: its level where the plain paired t-test rejects up to 12 % of true nulls.
VARIANCE_INFLATION = 2.0
MINIMUM_UNITS = 3


@dataclass(frozen=True, kw_only=True)
class LeakageTest(Result):
    """A one-sided test of H0: the loss is no smaller when validation clusters are in training.

    Attributes
    ----------
    statistic, pvalue : float
    effect : float
        Mean loss without less mean loss with the validation clusters in training.
    interval : tuple of float
        90 % two-sided interval of the effect: its lower end is above 0 when H0 is rejected at 5 %.
    detectable : float
        The smallest effect that this test would have found with probability 0.8.
    units : int
        Clusters, rows or folds that the test counts as independent.
    method : {"paired", "welch"}
    """

    statistic: float
    pvalue: float
    effect: float
    interval: tuple[float, float]
    detectable: float
    units: int
    method: str

    @property
    def rejected(self) -> bool:
        """Whether H0 is rejected at 5 %."""
        return self.pvalue < LEVEL


def leakage_test(
    losses_without: ArrayLike,
    losses_with: ArrayLike,
    method: str = "paired",
    *,
    clusters: ArrayLike | None = None,
) -> LeakageTest:
    """Test whether a learner profits from having validation clusters in training.

    Parameters
    ----------
    losses_without, losses_with : array of float
        `paired`: losses of the same validation rows under models trained without (on T̂) and with
        (on rows of V̂ outside of the row's part) their clusters. `welch`: losses of disjoint folds, two
        independent samples.
    method : {"paired", "welch"}
    clusters : array, optional
        The cluster of each row, for `paired`: with several clusters the test works on their means.

    Notes
    -----
    Rejecting says that leakage, if there is any, biases the score. It does not say that rows are
    misclustered, and not rejecting does not prove that they are not, nor that the learner is
    immune. The published form is `welch`; it keeps its level but finds real effects in 7-17 % of
    the cases where `paired` finds them in 75-95 %.

    References
    ----------
    .. [1] Barnes, M. and Dubrawski, A. (2019). On the interaction effects between prediction and
       clustering. AISTATS 2019. arXiv:1807.06713.
    """
    choose("method", method, ("paired", "welch"))
    without, leaked = _sample("losses_without", losses_without), _sample("losses_with", losses_with)
    if method == "welch":
        return _welch(without, leaked)
    if len(without) != len(leaked):
        raise InputError(
            f"the paired test needs the same rows twice, not {len(without)} and {len(leaked)} "
            "losses; use method='welch' for separate samples."
        )
    difference = without - leaked
    if clusters is not None:
        difference = _cluster_means(difference, np.asarray(clusters))
    units = len(difference)
    error = float(np.std(difference, ddof=1) * np.sqrt(VARIANCE_INFLATION / units))
    return _result(float(difference.mean()), error, units - 1.0, units, "paired")


def _sample(name: str, values: ArrayLike) -> NDArray[np.float64]:
    sample = np.asarray(values, dtype=float)
    if sample.ndim != 1 or len(sample) < MINIMUM_UNITS or not np.isfinite(sample).all():
        raise InputError(
            f"{name} must be at least {MINIMUM_UNITS} finite numbers, not {sample.shape} with "
            f"{int((~np.isfinite(sample)).sum())} that are not finite."
        )
    return sample


def _cluster_means(
    values: NDArray[np.float64], clusters: NDArray[np.generic]
) -> NDArray[np.float64]:
    if clusters.shape != values.shape:
        raise InputError(f"clusters has shape {clusters.shape} for {len(values)} losses.")
    labels, codes = np.unique(clusters, return_inverse=True)
    if len(labels) < MINIMUM_UNITS:  # too few to speak of; rows of each are all there is
        return values
    return np.asarray(np.bincount(codes, weights=values) / np.bincount(codes))


def _welch(without: NDArray[np.float64], leaked: NDArray[np.float64]) -> LeakageTest:
    parts = [float(np.var(sample, ddof=1)) / len(sample) for sample in (without, leaked)]
    error = float(np.sqrt(sum(parts)))
    spread = sum(p**2 / (len(s) - 1) for p, s in zip(parts, (without, leaked), strict=True))
    freedom = sum(parts) ** 2 / spread if spread > 0 else float(len(without) + len(leaked) - 2)
    effect = float(without.mean() - leaked.mean())
    return _result(effect, error, freedom, len(without) + len(leaked), "welch")


def _result(effect: float, error: float, freedom: float, units: int, method: str) -> LeakageTest:
    critical = float(stats.t.ppf(1 - LEVEL, freedom))
    if error > 0:
        statistic = effect / error
        pvalue = float(stats.t.sf(statistic, freedom))
    else:  # the same difference everywhere, most often none at all
        statistic = math.copysign(sys.float_info.max, effect) if effect else 0.0
        pvalue = 0.0 if effect > 0 else 1.0
    return LeakageTest(
        statistic=statistic,
        pvalue=pvalue,
        effect=effect,
        interval=(effect - critical * error, effect + critical * error),
        detectable=(critical + float(stats.t.ppf(POWER, freedom))) * error,
        units=units,
        method=method,
    )
