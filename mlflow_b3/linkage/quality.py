"""Leak shares from a published figure: the quality of a linkage, or its rate of split rows."""

import math
from typing import Any

import numpy as np
from scipy import stats

from mlflow_b3.errors import InputError
from mlflow_b3.linkage.estimates import LeakEstimate, LeakShare
from mlflow_b3.linkage.row_means import check_level
from mlflow_b3.linkage.split_counts import check_folds
from mlflow_b3.linkage.splits import as_codes
from mlflow_b3.wording import not_percentage


def leak_from_quality(
    recall: float,
    precision: float | None,
    clusters: Any,
    K: float,
    recall_n: int | None = None,
    *,
    precision_n: int | None = None,
    level: float = 0.95,
) -> LeakEstimate:
    """Bound leak shares from above by the recall and precision of the linkage.

    Parameters
    ----------
    recall : float
        R: of all pairs of rows of one true entity, the share that is in one predicted cluster. It
        must have been measured on true pairs drawn at random (from rows with known ids, say), not
        on pairs that a model had found.
    precision : float or None
        P: of all pairs in one predicted cluster, the share that truly belongs together. None when
        not known: it then counts as 1, the worst case.
    clusters : sequence
        ĉ(i): the predicted cluster of every row.
    K : float
        Number of folds, or 1/share of the rows that is validated at once.
    recall_n, precision_n : int, optional
        How many pairs either figure was measured on. Without it the figure is taken as exact; but
        a precision without its number counts as 1 where `recall_n` is given.
    level : float
        Confidence of the limit where numbers of pairs are given.

    Returns
    -------
    LeakEstimate
        kind `upper`, without a point.

    Notes
    -----
    The true pairs that the linkage missed number FN = P·|X|·(1 − R)/R, |X| being the pairs within
    predicted clusters, and each makes at most two rows leak:
    E[p0] ≤ 2·FN/(n·K), E[p0_validation] ≤ 2·FN·(1 − 1/K)/n, the mean over folds to which clusters
    are dealt at random; with C clusters in folds of equal size, up to C/(C − 1) times as much.
    With numbers of pairs R is replaced by its lower limit and P by its upper limit (Wilson,
    doi:10.1080/01621459.1927.10502953), each at a confidence that makes `level` hold for both.
    In simulations the bound was 1.3 to 1.7 times the true p0 with exact figures, and 2 to 2.6
    times with 300 pairs.
    """
    predicted = as_codes("clusters", clusters)
    check_folds(K)
    _check_quality(recall, precision, recall_n, precision_n)
    check_level(level)
    sizes = np.bincount(predicted)
    pairs = float((sizes * (sizes - 1) // 2).sum())
    if not pairs:
        raise InputError(
            "clusters has no two rows in one cluster: nothing was linked, so the recall of the "
            "linkage is 0 or means something else. Use leak_from_resolved_rows."
        )
    precise = 1.0 if precision is None or (recall_n and not precision_n) else precision
    both = recall_n is not None and precision_n is not None
    confidence = (1 + level) / 2 if both else level
    lowest = recall if recall_n is None else _limit(recall, recall_n, confidence, upper=False)
    highest = precise if not precision_n else _limit(precise, precision_n, confidence, upper=True)
    missed = highest * pairs * (1 - lowest) / lowest if lowest > 0 else math.inf
    n = len(predicted)
    return LeakEstimate(
        train=LeakShare(point=None, low=0.0, high=min(1.0, 2 * missed / (n * K))),
        validation=LeakShare(point=None, low=0.0, high=min(1.0, 2 * missed * (1 - 1 / K) / n)),
        kind="upper",
        method="linkage-quality",
        level=level,
        n_folds=float(K),
        n_labels=(recall_n or 0) + (precision_n or 0) or None,
        notes=_quality_notes(precision, recall_n, precision_n),
    )


def leak_from_split_rate(
    split_rate: Any, K: float, m_max: int = 1, *, level: float = 0.95
) -> LeakEstimate:
    """Turn a split rate, such as a vendor's duplicate rate, into leak shares.

    Parameters
    ----------
    split_rate : float or (float, float)
        σ: the share of rows whose true entity has rows in other predicted clusters too; or a range.
    K : float
        Number of folds, or 1/share of the rows that is validated at once.
    m_max : int
        The most other clusters that an entity's rows are spread over.
    level : float
        The confidence of a range; a single number is taken as exact.

    Returns
    -------
    LeakEstimate
        kind `estimate`: a point for a single rate and `m_max=1`, else a range without a point.

    Notes
    -----
    p0 ∈ [σ/K, σ·(1 − (1 − 1/K)^m_max)] and p0_validation ∈ [σ·(1 − 1/K), σ·(1 − K^−m_max)], by the
    identity of `leak_from_split_counts` with m between 1 and m_max for every split row.
    """
    check_folds(K)
    if isinstance(m_max, bool) or not isinstance(m_max, (int, np.integer)) or m_max < 1:
        raise InputError(f"m_max={m_max!r} must be a whole number from 1.")
    check_level(level)
    low, high = _range(split_rate)
    shares = []
    for stay in (1 - 1 / K, 1 / K):
        least, most = low * (1 - stay), high * (1 - stay**m_max)
        shares.append(LeakShare(point=least if least == most else None, low=least, high=most))
    notes = ["Leak shares on average over folds to which clusters are dealt at random."]
    if low == high:
        notes.append("The split rate is taken as exact.")
    if m_max == 1:
        notes.append(
            "Split entities are taken to have two ids each. With more ids p0 is larger: in simulated "
            "linkages split persons had 2.3 to 3.4 ids on average, and p0 was 1.2 to 1.8 times this."
        )
    return LeakEstimate(
        train=shares[0],
        validation=shares[1],
        kind="estimate",
        method="split-rate",
        level=level,
        n_folds=float(K),
        notes=tuple(notes),
    )


def _range(split_rate: Any) -> tuple[float, float]:
    pair = split_rate if isinstance(split_rate, (tuple, list)) else (split_rate, split_rate)
    try:
        low, high = (math.nan if isinstance(end, (str, bool)) else float(end) for end in pair)
    except (TypeError, ValueError):
        low, high = math.nan, math.nan
    if not 0 <= low <= high <= 1:
        raise InputError(
            f"split_rate={split_rate!r} must be a number in [0, 1], or a pair of them, low before "
            f"high.{not_percentage([low, high])}"
        )
    return low, high


def _check_quality(recall: float, precision: float | None, recall_n: Any, precision_n: Any) -> None:
    problems = []
    if not 0 < recall <= 1:
        problems.append(f"recall={recall!r} must lie in (0, 1].{not_percentage(recall)}")
    if precision is not None and not 0 < precision <= 1:
        problems.append(
            f"precision={precision!r} must lie in (0, 1], or be None if not known."
            f"{not_percentage(precision)}"
        )
    for name, count in (("recall", recall_n), ("precision", precision_n)):
        whole = isinstance(count, (int, np.integer)) and not isinstance(count, bool)
        if count is not None and not (whole and count > 0):
            problems.append(
                f"the number of pairs behind the {name}, {count!r}, must be a whole number from 1."
            )
    if precision is None and precision_n is not None:
        problems.append(
            f"the number of pairs behind the precision, {precision_n!r}, was given without a precision."
        )
    if problems:
        raise InputError.from_problems("quality of the linkage", problems)


def _limit(rate: float, count: int, confidence: float, *, upper: bool) -> float:
    """Return Wilson's one-sided limit of a rate; published rates are rounded, to the safe side."""
    hits = math.ceil(rate * count - 1e-9) if upper else math.floor(rate * count + 1e-9)
    test = stats.binomtest(min(hits, count), count, alternative="less" if upper else "greater")
    interval = test.proportion_ci(confidence, method="wilson")
    return float(interval.high if upper else interval.low)


def _quality_notes(
    precision: float | None, recall_n: int | None, precision_n: int | None
) -> tuple[str, ...]:
    notes = ["A bound on the mean over folds to which clusters are dealt at random."]
    if recall_n is None:
        notes.append("Recall is taken as exact: give the number of pairs behind it.")
    if precision is None or (recall_n and not precision_n):
        notes.append("Precision counts as 1, the worst case.")
    elif precision_n is None:
        notes.append("Precision is taken as exact.")
    return tuple(notes)
