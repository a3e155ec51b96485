"""The leakage test: does this learner benefit from having seen the validation clusters?

Which rows are rearranged for the permutation form is in `measurement/refits.py`, how often in
`measurement/design.py`.
"""

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from mlflow_b3.errors import InputError, choose
from mlflow_b3.measurement.design import LEAST_ARRANGEMENTS
from mlflow_b3.measurement.refits import FEW_CLUSTERS
from mlflow_b3.results import Result

LEVEL = 0.05
POWER = 0.8
#: Rows scored by the same few models are not independent, and the plain paired t-test rejects up to
#: 16% of true nulls. With its variance multiplied by these factors it keeps its level
#: (docs/leakage-test.md).
VARIANCE_INFLATION = 3.0
#: If every row is both trained on and validated, much of the error shared by the models cancels.
CROSSED_INFLATION = 2.0
MINIMUM_UNITS = 3
#: Whole numbers up to this multiple of their count are numbered anew by a mask, larger ones by sorting.
MOST_GAPS = 10
#: Large clusters are capped until the effective number of clusters reaches this share of their number.
EFFECTIVE_SHARE = 0.5
TESTS = ("paired", "welch", "permutation")
LARGEST = sys.float_info.max
Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class LeakageTest(Result):
    """A one-sided test of H0′: the loss is no smaller when validation clusters are in training.

    Attributes
    ----------
    statistic, pvalue : float
    effect : float
        Mean loss without minus mean loss with the validation clusters in training. Clusters are
        weighted by their rows, up to a cap.
    interval : tuple of float
        Two-sided 90% interval of the effect. Its lower end is above 0 if H0′ is rejected at 5%.
    detectable : float
        The smallest effect that this test detects with probability 0.8.
    units : int
        Number of rows, clusters or folds that the test treats as independent.
    method : {"paired", "welch", "permutation"}
    unit : {"rows", "clusters", "folds"}
        What these units are. With rows, the conclusion is about new rows of the same clusters.
    arrangements : int or None
        Number of rearrangements of the rows, for `permutation`.

    Examples
    --------
    >>> import mlflow_b3 as b3
    >>> import numpy as np
    >>> losses = np.random.default_rng(0).random((2, 200))
    >>> found = b3.leakage_test(*losses)
    >>> found.unit, found.units
    ('rows', 200)
    >>> low, high = found.interval
    >>> low < 0 < high
    True
    """

    statistic: float
    pvalue: float
    effect: float
    interval: tuple[float, float]
    detectable: float
    units: int
    method: str
    unit: str = "rows"
    arrangements: int | None = None

    @property
    def rejected(self) -> bool:
        """Whether H0′ is rejected at 5%."""
        return self.pvalue <= LEVEL


@dataclass(frozen=True, kw_only=True)
class _Effect:
    """An estimated effect with its standard error and degrees of freedom."""

    value: float
    error: float
    freedom: float
    units: int
    unit: str

    @property
    def statistic(self) -> float:
        if self.error > 0:
            return self.value / self.error
        # every difference is the same, usually 0
        return math.copysign(LARGEST, self.value) if self.value else 0.0


def leakage_test(
    losses_without: ArrayLike,
    losses_with: ArrayLike,
    method: str = "paired",
    *,
    clusters: ArrayLike | None = None,
    crossed: bool = False,
    folds: ArrayLike | None = None,
    strata: ArrayLike | None = None,
    null_statistics: ArrayLike | None = None,
) -> LeakageTest:
    """Test whether a learner benefits from having validation clusters in training.

    H0′: e(p0) ≤ e(1), that is, the loss of models trained on T̂ is no larger than the loss of models
    trained on the same number of rows of V̂.

    Parameters
    ----------
    losses_without, losses_with : array of float
        For `paired` and `permutation`: losses of the same validation rows under models trained
        without their clusters (on T̂) and with their clusters (on rows of V̂ outside the row's part).
        For `welch`: mean losses of disjoint validation folds under models trained on disjoint folds
        of T̂, and of V̂.
    method : {"paired", "welch", "permutation"}
    clusters : array, optional
        For `paired` and `permutation`: the cluster of each row. With ten clusters or more, clusters
        are the independent units; with fewer, rows are.
    crossed : bool
        For `paired` and `permutation`: whether the losses come from cross-validation, where every
        training row is validated in another fold.
    folds : array, optional
        For `paired` and `permutation`: the outer fold of each row, to estimate the variance of the
        models that rows of a fold share. If losses were averaged over several assignments of
        clusters to folds, give a two-dimensional array with one row for each assignment.
    strata : array, optional
        For `welch` with several outer folds: the outer fold of each value, the same for both
        samples. Samples are then compared within outer folds, which have equal weights.
    null_statistics : array of float
        For `permutation`: the paired statistics after permuting the cluster ids of the rows and
        refitting.

    Notes
    -----
    A rejection means that leakage, if there is any, biases the score. It does not mean that rows
    are misclustered. A failure to reject shows neither that no row is misclustered nor that the
    learner is immune.

    `welch` is the published form: T = (z̄ - z̄′) / √(s²/k + s′²/k) with Welch's degrees of freedom
    (the paper does not give any). It keeps its level but has little power; see
    docs/leakage-test.md.

    `paired` is our own test. Let x_g be the mean difference of cluster g and w_g its weight. The
    effect is Σ w_g x_g, and its variance is

        c · Σ w_g² · x′Ax / tr A,   A = (I - 1w′)′ diag(w²) (I - 1w′),

    Apart from the factor c it is unbiased if cluster means have equal variances. It has
    (tr A)² / tr A² degrees of freedom (Bell and McCaffrey), which for clusters of equal size are
    those of the t-test on cluster means. The factor c is 3, or 2 with `crossed`; it allows for the
    models that all rows of a fold share. Weights are proportional to min(n_g, cap), with the
    largest cap for which (Σ w_g)²/Σ w_g² is at least half the number of clusters. If clusters were
    weighted by their rows, a few large ones would decide the test, and they would be too few to
    show anything. Clusters of one row have no mates to benefit from; they are left out if at least
    ten larger clusters remain.

    Rows of a fold are scored by the same models and share their errors. With `folds`, let V be the
    variance above without its factor, and S the variance with folds as units. Then S - V is the
    part of the models. If V + (S - V), over all assignments, exceeds c · V, it replaces c · V, with
    Satterthwaite's degrees of freedom. Without `folds`, only the factor allows for shared models.

    `permutation` compares the paired statistic with those of other arrangements of the rows,
    p = (1 + #{t* ≥ t}) / (B + 1). It is exact under the null hypothesis that rows are exchangeable
    regardless of their cluster id, so P_T = P_V. This is stronger than H0′: clusters that differ in
    ways the learner cannot benefit from violate it. Whole clusters are never permuted. Clusters of
    one population are exchangeable whether or not the learner benefits from them, so such a test
    would have no power beyond its level.

    References
    ----------
    Barnes and Dubrawski (2019), AISTATS, section 4, arXiv:1807.06713. Bell and McCaffrey (2002),
    Survey Methodology 28.

    Examples
    --------
    >>> import mlflow_b3 as b3
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> without = rng.random(200)
    >>> found = b3.leakage_test(without, without - 0.1 + 0.1 * rng.random(200))
    >>> found.method, round(found.effect, 2), found.pvalue < 0.05
    ('paired', 0.05, True)
    """
    choose("method", method, TESTS)
    without, leaked = _sample("losses_without", losses_without), _sample("losses_with", losses_with)
    _refuse_unused(
        method, clusters=clusters, folds=folds, strata=strata, null_statistics=null_statistics
    )
    if len(without) != len(leaked) and (method != "welch" or strata is not None):
        raise InputError(
            f"losses_without has {len(without)} and losses_with {len(leaked)} values, but both must "
            "have the same rows or strata; use method='welch' without strata for separate samples."
        )
    if method == "welch":
        return _t_test(
            _welch_effect(without, leaked, _group_codes("strata", strata, len(without))), method
        )
    factor = CROSSED_INFLATION if crossed else VARIANCE_INFLATION
    owners = _group_codes("clusters", clusters, len(without))
    effect = _paired_effect(without - leaked, owners, factor, _fold_codes(folds, len(without)))
    if method == "paired":
        return _t_test(effect, method)
    if null_statistics is None:
        raise InputError(
            "null_statistics is missing: method='permutation' compares with the paired statistics "
            "of rearranged rows. Use mlflow_b3.auditing.audit.run_leakage_test(..., test='permutation') "
            "to run the refits."
        )
    return _permutation_test(
        effect, _sample("null_statistics", null_statistics, LEAST_ARRANGEMENTS)
    )


def _sample(name: str, values: ArrayLike, least: int = MINIMUM_UNITS) -> Array:
    try:
        sample = np.asarray(values, dtype=float)
    except (TypeError, ValueError) as error:
        raise InputError(f"{name} must be a list of numbers: {error}") from error
    if sample.ndim != 1 or len(sample) < least:
        raise InputError(
            f"{name} has shape {sample.shape}; it must be a list of at least {least} numbers."
        )
    wrong = int((~np.isfinite(sample)).sum())
    if wrong:
        raise InputError(f"{name}: {wrong} of {len(sample)} values are not finite; leave them out.")
    return sample


def _refuse_unused(method: str, **given: ArrayLike | None) -> None:
    used = {
        "paired": "clusters folds",
        "welch": "strata",
        "permutation": "clusters folds null_statistics",
    }
    for name, value in given.items():
        if value is not None and name not in used[method].split():
            raise InputError(f"{name} was given, but method={method!r} does not use it.")


def _group_codes(name: str, values: ArrayLike | None, length: int) -> NDArray[np.intp] | None:
    if values is None:
        return None
    labels = np.asarray(values)
    if labels.shape != (length,):
        raise InputError(
            f"{name} has shape {labels.shape}; it needs one value for each of the {length} losses."
        )
    if labels.dtype.kind == "i" and labels.min() >= 0 and labels.max() <= MOST_GAPS * length:
        present = np.zeros(int(labels.max()) + 1, dtype=bool)
        present[labels] = True
        return np.asarray((np.cumsum(present) - 1)[labels])
    return np.unique(labels, return_inverse=True)[1]


def _fold_codes(values: ArrayLike | None, length: int) -> list[NDArray[np.intp]]:
    if values is None:
        return []
    labels = np.asarray(values)
    several = labels if labels.ndim == 2 else labels[None]
    made = [_group_codes("folds", assignment, length) for assignment in several]
    return [assignment for assignment in made if assignment is not None]


def _paired_effect(
    difference: Array,
    clusters: NDArray[np.intp] | None,
    factor: float,
    folds: Sequence[NDArray[np.intp]] = (),
) -> _Effect:
    unit, owners = "rows", np.arange(len(difference))
    if clusters is not None and clusters.max() + 1 >= FEW_CLUSTERS:
        unit, owners = "clusters", clusters
    sizes = np.bincount(owners).astype(float)
    means = np.bincount(owners, weights=difference) / sizes
    counted = np.ones(len(sizes), dtype=bool)
    if (sizes > 1).sum() >= FEW_CLUSTERS:  # a cluster of one row has no mates to benefit from
        counted = sizes > 1
    w = np.zeros(len(sizes))
    w[counted] = _capped_sizes(sizes[counted])
    w /= w.sum()
    effect = float(w @ means)
    s2, s3, s4, s5, s6 = (float(np.sum(w**power)) for power in range(2, 7))
    # A = diag(w²) + UCU′ with U = [w², w], so its traces cost linear time in the number of units
    core = np.array([[0.0, -1.0], [-1.0, s2]])
    trace = s2 - 2 * s3 + s2**2
    inner = core @ np.array([[s4, s3], [s3, s2]])
    outer = core @ np.array([[s6, s5], [s5, s4]])
    trace_of_square = s4 + 2 * float(np.trace(outer)) + float(np.trace(inner @ inner))
    plain = s2 * float(w**2 @ (means - effect) ** 2) / trace
    variance, freedom = factor * plain, trace**2 / trace_of_square
    shares = (w / sizes)[owners]  # weights of single rows in the effect
    scores = shares * (difference - effect)
    shared, shared_freedom = _shared_variance(scores, shares > 0, folds, plain)
    if plain + shared > variance:
        variance = plain + shared
        freedom = variance**2 / (plain**2 / freedom + shared**2 / shared_freedom)
    return _Effect(
        value=effect,
        error=math.sqrt(variance),
        freedom=freedom,
        units=int(counted.sum()),
        unit=unit,
    )


def _shared_variance(
    scores: Array, counted: NDArray[np.bool_], folds: Sequence[NDArray[np.intp]], plain: float
) -> tuple[float, int]:
    """Return the variance from models shared within folds, and its degrees of freedom.

    It is the variance with folds as units minus the variance over clusters, summed over
    assignments.
    """
    shared, freedom = 0.0, 0
    for labels in folds:
        number = int((np.bincount(labels[counted]) > 0).sum())
        if number > 1:
            totals = np.bincount(labels, weights=scores)
            shared += float(totals @ totals) * number / (number - 1) - plain
            freedom += number - 1
    return shared, freedom


def _capped_sizes(sizes: Array) -> Array:
    """Return min(n_g, cap), with the largest cap that leaves enough effective clusters.

    The effective number of clusters is (Σ w)² / Σ w². It must be at least half their number. With a
    cap of one row it equals their number.
    """
    for cap in np.unique(sizes)[::-1]:
        capped = np.minimum(sizes, cap)
        if capped.sum() ** 2 >= EFFECTIVE_SHARE * len(sizes) * np.sum(capped**2):
            return np.asarray(capped)
    return np.ones(len(sizes))


def _welch_effect(without: Array, leaked: Array, strata: NDArray[np.intp] | None) -> _Effect:
    samples = [(without, leaked)]
    if strata is not None:
        samples = [(without[strata == s], leaked[strata == s]) for s in range(strata.max() + 1)]
    if min(len(sample) for pair in samples for sample in pair) < 2:
        raise InputError(
            "strata: an outer fold has a single value in one of the samples, so its variance is not "
            "known; give at least two, or leave that fold out."
        )
    effect = float(np.mean([first.mean() - second.mean() for first, second in samples]))
    parts = [
        (float(np.var(sample, ddof=1)) / len(sample) / len(samples) ** 2, len(sample) - 1)
        for pair in samples
        for sample in pair
    ]
    variance = sum(part for part, _ in parts)
    spread = sum(part**2 / freedom for part, freedom in parts)
    return _Effect(
        value=effect,
        error=math.sqrt(variance),
        freedom=variance**2 / spread if spread > 0 else float(sum(f for _, f in parts)),
        units=len(without) + len(leaked),
        unit="folds",
    )


def _t_test(effect: _Effect, method: str) -> LeakageTest:
    critical = float(stats.t.ppf(1 - LEVEL, effect.freedom))
    statistic = effect.statistic
    reach = critical * effect.error
    return LeakageTest(
        statistic=statistic,
        # identical losses are no evidence
        pvalue=float(stats.t.sf(statistic, effect.freedom)) if effect.error or statistic else 1.0,
        effect=effect.value,
        interval=(effect.value - reach, effect.value + reach),
        detectable=reach + float(stats.t.ppf(POWER, effect.freedom)) * effect.error,
        units=effect.units,
        method=method,
        unit=effect.unit,
    )


def _permutation_test(effect: _Effect, null: Array) -> LeakageTest:
    """Test an effect with the quantiles of the rearranged statistics instead of those of t."""
    statistic = effect.statistic
    count = len(null)
    ordered = np.sort(null)
    rank = math.floor(LEVEL * (count + 1) + 1e-9)
    low, high = float(ordered[rank - 1]), float(ordered[count - rank])
    missed = float(ordered[math.floor((1 - POWER) * count)])

    def times(quantile: float) -> float:
        with np.errstate(over="ignore"):
            return float(np.clip(np.float64(quantile) * effect.error, -LARGEST / 4, LARGEST / 4))

    return LeakageTest(
        statistic=statistic,
        pvalue=float((1 + np.sum(null >= statistic)) / (count + 1)),
        effect=effect.value,
        interval=(effect.value - times(high), effect.value - times(low)),
        detectable=times(high) - times(missed),
        units=effect.units,
        method="permutation",
        unit=effect.unit,
        arrangements=count,
    )
