"""Leak shares from scored pairs, published quality, split counts and posterior samples."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from mlflow_b3.errors import InputError, check_seed
from mlflow_b3.linkage.leak import (
    Floats,
    LeakEstimate,
    LeakShare,
    Mask,
    Rows,
    Splits,
    as_codes,
    leaked_values,
    typical_fragments,
)
from mlflow_b3.linkage.pairs import PairTable, id_text, reading
from mlflow_b3.linkage.resolved import (
    DirectedPairs,
    ResolvedRows,
    SampledRows,
    any_match,
    check_level,
)
from mlflow_b3.results import not_percentage

# --- Leak shares from match probabilities of pairs: an order of magnitude, and a ranking

LEVEL = 0.95
NOT_AN_INTERVAL = (
    "The ends bound the effect of dependence between pairs, assuming correct probabilities; they are "
    "not a confidence interval."
)
SAME_SCORES = (
    "Do not use it on folds made with the same scores: pairs across such folds have low scores, "
    "whether they match or not."
)
UNCHECKED = (
    "The probabilities were not checked: they are rarely calibrated for pairs across clusters, and "
    "pairs that were never scored count as no match. Resolve some rows before relying on it."
)


def leak_from_pairs(
    i: Any,
    j: Any,
    p: Any,
    folds: Any,
    clusters: Any,
    *,
    calibrated: bool = False,
    wide: bool = False,
    allow_split: bool = False,
) -> LeakEstimate:
    """Compute the leak shares that match probabilities of pairs imply.

    Parameters
    ----------
    i, j : array of int
        The rows of each pair; `PairTable` unpacks into these and p.
    p : array of float
        π_ij, the probability that the two rows belong to one entity. Pairs that are not listed count
        as no match.
    folds : array of int, or sequence of (training rows, validation rows), or Splits
    clusters : sequence
        ĉ(i): the predicted cluster of each row.
    calibrated : bool
        Whether the probabilities were checked on pairs across predicted clusters (`recalibrate`).
    wide : bool
        Whether all plausible pairs were scored, not only those of a few blocks.
    allow_split : bool
        Accept folds with rows of one predicted cluster on both sides.

    Returns
    -------
    LeakEstimate
        Its kind is "uncalibrated", unless `calibrated`. `row_probability` is r_j: the mean over the
        splits that validate the row, or 0 if none does.

    Notes
    -----
    For row i and the rows S on the other side,

        low    max_{j∈S} π_ij
        point  1 - Π_{C⊂S} (1 - max_{j∈C} π_ij)       one vote for each predicted cluster
        high   min(1, Σ_{j∈S} π_ij)

    averaged over rows and splits, as in the definitions of p0 and p0_validation. Rows of one
    predicted cluster are not independent: a product over pairs counts them several times and is 20
    to 50% too large.

    In simulations of person records linked by Splink, the point was off by factors of 0.2 to 1.9. It
    hardly changed (0.037 to 0.045) while the truth changed from 0.025 to 0.12. There are two errors
    of opposite sign. Most mates with a high probability are already linked, and too few of the
    remaining pairs match. And true mates that share no block are never scored.

    Examples
    --------
    >>> from mlflow_b3 import linkage
    >>> pairs = linkage.PairTable.of([0, 1, 3], [1, 2, 4], [0.99, 0.6, 0.95], n=6)
    >>> folds, clusters = [0, 0, 1, 1, 1, 0], [0, 0, 1, 2, 2, 3]
    >>> leak = linkage.leak_from_pairs(*pairs, folds, clusters)
    >>> leak.kind, round(leak.validation.point, 2)
    ('uncalibrated', 0.2)
    >>> [round(chance, 2) for chance in leak.row_probability]
    [0.0, 0.6, 0.6, 0.0, 0.0, 0.0]
    """
    codes = as_codes("clusters", clusters)
    splits = Splits.of(folds, len(codes))
    splits.require_whole(codes, allow_split=allow_split)
    first, second, probability = PairTable.of(i, j, p, len(codes))
    pairs = DirectedPairs.of(first, second, probability, codes, within=allow_split)
    train, _ = _side(pairs, splits.training, splits.validation, splits.training_weight)
    validation, leaked = _side(pairs, splits.validation, splits.training, splits.validation_weight)
    return LeakEstimate(
        train=train,
        validation=validation,
        kind="estimate" if calibrated else "uncalibrated",
        method="pairs",
        level=LEVEL,
        n_folds=splits.n_folds,
        fragments=pair_fragments(pairs, codes),
        row_probability=tuple(_mean_when_validated(leaked, splits).tolist()),
        notes=(NOT_AN_INTERVAL, SAME_SCORES, *(() if calibrated else (UNCHECKED,))),
        wide=wide,
    )


def row_leak_probability(
    i: Any,
    j: Any,
    p: Any,
    folds: Any,
    clusters: Any,
    *,
    same_side: bool = False,
    allow_split: bool = False,
) -> Floats:
    """Return r_j, the probability that a row has a mate in training when it is validated.

    Parameters
    ----------
    i, j, p, folds, clusters, allow_split
        As in `leak_from_pairs`.
    same_side : bool
        Count mates among the *validation* rows instead, in other predicted clusters. Such rows look
        as suspicious as leaked rows but have no mate in training: the negative control of
        `rows.loss_regression`.

    Returns
    -------
    array of float
        The mean over the splits that validate the row, or 0 if none does.
    """
    codes = as_codes("clusters", clusters)
    splits = Splits.of(folds, len(codes))
    splits.require_whole(codes, allow_split=allow_split)
    first, second, probability = PairTable.of(i, j, p, len(codes))
    within = allow_split and not same_side
    pairs = DirectedPairs.of(first, second, probability, codes, within=within)
    others = splits.validation if same_side else splits.training
    leaked = np.zeros(len(codes))
    for own, other in zip(splits.validation.T, others.T, strict=True):
        votes = pairs.votes(own, other)
        leaked += any_match(votes.row, votes.best, len(codes))
    return _mean_when_validated(leaked, splits)


def split_probability(i: Any, j: Any, p: Any, clusters: Any) -> Floats:
    """Return the probability that each row has mates in other predicted clusters.

    It does not depend on folds. Use it as the `scores` of `sample_rows`.
    """
    codes = as_codes("clusters", clusters)
    pairs = DirectedPairs.of(*PairTable.of(i, j, p, len(codes)).arrays, codes)
    everyone = np.ones(len(codes), dtype=bool)
    votes = pairs.votes(everyone, everyone)
    return any_match(votes.row, votes.best, len(codes))


def pair_fragments(pairs: DirectedPairs, clusters: Rows) -> tuple[float, ...] | None:
    """Return typical splits of the entities of pairs: |C(i)|/(|C(i)| + |C(j)|), weighted by π."""
    everyone = np.ones(len(clusters), dtype=bool)
    votes = pairs.votes(everyone, everyone)
    sizes = np.bincount(clusters)
    own, other = sizes[clusters[votes.row]], sizes[votes.cluster]
    apart = clusters[votes.row] != votes.cluster
    shares, weights = (own / (own + other))[apart], votes.best[apart]
    return typical_fragments(shares, weights) if len(shares) else None


def _side(
    pairs: DirectedPairs, own_side: Mask, other_side: Mask, weights: Floats
) -> tuple[LeakShare, Floats]:
    """Return the share of one side, and the sum of each row's point over the splits."""
    n = len(own_side)
    totals, points = np.zeros(3), np.zeros(n)
    for own, other, weight in zip(own_side.T, other_side.T, weights, strict=True):
        votes = pairs.votes(own, other)
        low = np.zeros(n)
        np.maximum.at(low, votes.row, votes.best)
        # keep low <= point <= high despite rounding
        point = np.maximum(any_match(votes.row, votes.best, n), low)
        total = np.bincount(votes.pair_row, weights=votes.pair_score, minlength=n)
        high = np.maximum(np.minimum(total, 1.0), point)
        totals += weight * np.array([low.mean(), point.mean(), high.mean()])
        points += point
    low_share, share, high_share = np.minimum(totals, 1.0).tolist()
    return LeakShare(point=share, low=low_share, high=high_share), points


def _mean_when_validated(totals: Floats, splits: Splits) -> Floats:
    return np.asarray(totals / np.maximum(1, splits.validation.sum(axis=1)))


# --- Leak shares for any number of folds, from split counts


def split_counts_of(rows: Any, mates: Any, clusters: Any) -> Rows:
    """Return m_i: for each reviewed row, the number of other predicted clusters with mates.

    Parameters
    ----------
    rows, mates, clusters
        See `leak_from_resolved_rows`.
    """
    predicted = as_codes("clusters", clusters)
    return ResolvedRows.of(rows, mates, len(predicted)).split_counts(predicted)


def leak_from_split_counts(m: Any, K: float, *, level: float = 0.95, seed: int = 0) -> LeakEstimate:
    """Estimate leak shares for any number of folds from split counts of sampled rows.

    Parameters
    ----------
    m : sequence of int
        For each of some uniformly sampled rows, the number of other predicted clusters with rows of
        the same entity; see `sources.split_counts_of`.
    K : float
        Number of folds, or the inverse of the share of rows in validation.
    level : float
    seed : int

    Returns
    -------
    LeakEstimate
        Its kind is "estimate", its method "split-counts". It is an average over random assignments
        of clusters to folds.

    Notes
    -----
    p0 = E[1 − (1 − 1/K)^m] and p0_validation = E[1 − K^−m], for clusters assigned to folds uniformly
    and independently. In simulations with balanced folds of realistic sizes, both held within 2%.

    Examples
    --------
    Of 200 reviewed rows, 20 have a mate in one other cluster and 5 have mates in two.

    >>> from mlflow_b3 import linkage
    >>> leak = linkage.leak_from_split_counts([0] * 175 + [1] * 20 + [2] * 5, K=5)
    >>> round(leak.train.point, 3), round(leak.validation.point, 3)
    (0.029, 0.104)
    """
    counts = np.asarray(m)
    if counts.ndim != 1 or not len(counts) or not np.issubdtype(counts.dtype, np.integer):
        raise InputError("m must have a whole number for each sampled row; see split_counts_of.")
    if counts.min() < 0:
        raise InputError(f"m={int(counts.min())} must not be negative: m counts other clusters.")
    check_folds(K)
    check_level(level)
    check_seed(seed)
    sample = SampledRows.of(None, len(counts), None)
    shares = []
    for stay in (1 - 1 / K, 1 / K):
        values = 1 - stay**counts
        shares.append(sample.share(values, max(1 - stay, float(values.max())), level, seed))
    return LeakEstimate(
        train=shares[0],
        validation=shares[1],
        kind="estimate",
        method="split-counts",
        level=level,
        n_folds=float(K),
        n_labels=len(counts),
        notes=("An average over random assignments of clusters to folds.",),
    )


def check_folds(K: Any) -> None:
    """Check that the number of folds is above 1."""
    if isinstance(K, bool) or not isinstance(K, (int, float, np.number)) or not 1 < K < np.inf:
        raise InputError(
            f"K={K!r} must be a number above 1: the number of folds, or 1/share of rows in validation."
        )


# --- Leak shares from published figures: the quality of a linkage, or its split rate


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
    """Bound leak shares from above, given the recall and precision of the linkage.

    Parameters
    ----------
    recall : float
        R: of all pairs of rows of one true entity, the share within one predicted cluster. It must
        be measured on a random sample of true pairs, for example of rows with known ids, and not on
        pairs that a model found.
    precision : float or None
        P: of all pairs within one predicted cluster, the share that belong to one entity. None if
        unknown; it then counts as 1, the worst case.
    clusters : sequence
        ĉ(i): the predicted cluster of every row.
    K : float
        Number of folds, or the inverse of the share of rows in validation.
    recall_n, precision_n : int, optional
        Number of pairs behind each figure. Without it, the figure is treated as exact, but if
        `recall_n` is given, a precision without `precision_n` counts as 1.
    level : float
        Confidence of the limit if numbers of pairs are given.

    Returns
    -------
    LeakEstimate
        Its kind is "upper", without a point.

    Notes
    -----
    The linkage missed FN = P·|X|·(1 − R)/R true pairs, where |X| is the number of pairs within
    predicted clusters. Each missed pair makes at most two rows leak: E[p0] ≤ 2·FN/(n·K) and
    E[p0_validation] ≤ 2·FN·(1 − 1/K)/n, on average over random assignments of clusters to folds.
    With C clusters in folds of equal size, the bounds are up to C/(C − 1) times as large. If numbers
    of pairs are given, R is replaced by its lower and P by its upper Wilson limit
    (doi:10.1080/01621459.1927.10502953), each at a confidence that makes `level` hold for both. In
    simulations, the bound was 1.3 to 1.7 times the true p0 with exact figures, and 2 to 2.6 times
    with 300 pairs.

    Examples
    --------
    >>> from mlflow_b3 import linkage
    >>> clusters = [row // 2 for row in range(100)]
    >>> leak = linkage.leak_from_quality(0.95, 0.98, clusters, K=5)
    >>> leak.kind, round(leak.validation.high, 3)
    ('upper', 0.041)

    The limit is higher when the recall was measured on few pairs:

    >>> leak = linkage.leak_from_quality(0.95, None, clusters, K=5, recall_n=300)
    >>> round(leak.validation.high, 3)
    0.065
    """
    predicted = as_codes("clusters", clusters)
    check_folds(K)
    _check_quality(recall, precision, recall_n, precision_n)
    check_level(level)
    sizes = np.bincount(predicted)
    pairs = float((sizes * (sizes - 1) // 2).sum())
    if not pairs:
        raise InputError(
            "clusters: no two rows are in one cluster. As nothing was linked, the recall must be 0 or "
            "has another meaning. Use leak_from_resolved_rows."
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
    """Convert a split rate, such as a vendor's duplicate rate, to leak shares.

    Parameters
    ----------
    split_rate : float or (float, float)
        σ: the share of rows whose true entity has rows in other predicted clusters, or a range.
    K : float
        Number of folds, or the inverse of the share of rows in validation.
    m_max : int
        The largest number of other clusters with rows of an entity.
    level : float
        Confidence of a range; a single number is treated as exact.

    Returns
    -------
    LeakEstimate
        Its kind is "estimate". It has a point for a single rate and `m_max=1`, and is a range
        otherwise.

    Notes
    -----
    p0 ∈ [σ/K, σ·(1 − (1 − 1/K)^m_max)] and p0_validation ∈ [σ·(1 − 1/K), σ·(1 − K^−m_max)], by the
    identity of `leak_from_split_counts` with m between 1 and m_max for every split row.

    Examples
    --------
    >>> from mlflow_b3 import linkage
    >>> leak = linkage.leak_from_split_rate(0.1, K=5)
    >>> round(leak.train.point, 3), round(leak.validation.point, 3)
    (0.02, 0.08)
    """
    check_folds(K)
    if isinstance(m_max, bool) or not isinstance(m_max, (int, np.integer)) or m_max < 1:
        raise InputError(f"m_max={m_max!r} must be a whole number, 1 or more.")
    check_level(level)
    low, high = _range(split_rate)
    shares = []
    for stay in (1 - 1 / K, 1 / K):
        least, most = low * (1 - stay), high * (1 - stay**m_max)
        shares.append(LeakShare(point=least if least == most else None, low=least, high=most))
    notes = ["An average over random assignments of clusters to folds."]
    if low == high:
        notes.append("The split rate is treated as exact.")
    if m_max == 1:
        notes.append(
            "Split entities are assumed to have two ids each. With more ids, p0 is larger: in "
            "simulated linkages, split persons had 2.3 to 3.4 ids on average, and p0 was 1.2 to 1.8 "
            "times this value."
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
            f"precision={precision!r} must lie in (0, 1], or be None if unknown."
            f"{not_percentage(precision)}"
        )
    for name, count in (("recall", recall_n), ("precision", precision_n)):
        whole = isinstance(count, (int, np.integer)) and not isinstance(count, bool)
        if count is not None and not (whole and count > 0):
            problems.append(
                f"the number of pairs behind the {name}, {count!r}, must be a whole number, 1 or more."
            )
    if precision is None and precision_n is not None:
        problems.append(
            f"the number of pairs behind the precision, {precision_n!r}, was given without a precision."
        )
    if problems:
        raise InputError.from_problems("quality of the linkage", problems)


def _limit(rate: float, count: int, confidence: float, *, upper: bool) -> float:
    """Return the one-sided Wilson limit of a rate, with the count rounded conservatively."""
    hits = math.ceil(rate * count - 1e-9) if upper else math.floor(rate * count + 1e-9)
    test = stats.binomtest(min(hits, count), count, alternative="less" if upper else "greater")
    interval = test.proportion_ci(confidence, method="wilson")
    return float(interval.high if upper else interval.low)


def _quality_notes(
    precision: float | None, recall_n: int | None, precision_n: int | None
) -> tuple[str, ...]:
    notes = ["A bound on the average over random assignments of clusters to folds."]
    if recall_n is None:
        notes.append("Recall is treated as exact: give the number of pairs behind it.")
    if precision is None or (recall_n and not precision_n):
        notes.append("Precision counts as 1, the worst case.")
    elif precision_n is None:
        notes.append("Precision is treated as exact.")
    return tuple(notes)


# --- Leak shares from posterior samples of the partition of rows into entities

#: Column names of long tables of samples.
SAMPLE_NAMES = ("sample", "iteration")
RECORD_NAMES = ("record", "record_id", "rec_id", "id", "unique_id")
ENTITY_NAMES = ("entity", "entity_id", "cluster", "cluster_id", "lambda")
DBLINK_COLUMN = "linkageStructure"
WIDE = " A column for each id is needed, or columns sample, record and entity."


def leak_from_partition_samples(
    samples: Any,
    folds: Any,
    *,
    clusters: Any = None,
    level: float = 0.95,
    allow_split: bool = False,
) -> LeakEstimate:
    """Estimate leak shares from posterior samples of Bayesian record linkage.

    Parameters
    ----------
    samples : array, samples by rows
        Λ[s, i]: the entity of row i in sample s, without burn-in; see `read_partition_samples`.
    folds : array of int, or sequence of (training rows, validation rows), or Splits
    clusters : sequence, optional
        ĉ(i): the predicted cluster of every row, required for `fragments`.
    level : float
        Credibility of the intervals.
    allow_split : bool
        Accept folds with rows of one cluster on both sides.

    Returns
    -------
    LeakEstimate
        Its kind is "estimate", its method "partition-samples": the posterior mean and quantiles.

    Notes
    -----
    The estimate is exact given the samples: p0 is counted in each sample as if it were the truth
    (`leak_truth`). The posterior is only as good as its model. If pairs were wrongly treated as
    independent, 95% intervals of partition posteriors were ±10% wide in simulations and never
    contained the truth, which was 1.5 to 5 times as large. Check some rows with
    `leak_from_resolved_rows`.

    Examples
    --------
    >>> from mlflow_b3 import linkage
    >>> samples = [[0, 0, 1, 2], [0, 0, 0, 1], [0, 0, 0, 1], [0, 0, 1, 1]]
    >>> leak = linkage.leak_from_partition_samples(samples, folds=[0, 0, 1, 1])
    >>> round(leak.validation.point, 3)
    0.375
    """
    check_level(level)
    labels = _codes(samples)
    splits = Splits.of(folds, labels.shape[1])
    predicted = None if clusters is None else as_codes("clusters", clusters, labels.shape[1])
    if predicted is not None:
        splits.require_whole(predicted, allow_split=allow_split)
    draws = np.zeros((2, len(labels)))
    seen = np.zeros(labels.shape[1])
    parts = []
    for draw, entities in enumerate(labels):
        training, validation = leaked_values(entities, splits)
        draws[:, draw] = training.mean(), validation.mean()
        seen += validation / len(labels)
        if predicted is not None:
            parts.append(_parts(entities, predicted))
    validated = splits.validation @ splits.validation_weight
    chance = np.divide(seen, validated, out=np.zeros_like(seen), where=validated > 0)
    shares = [_share(draw, level) for draw in draws]
    return LeakEstimate(
        train=shares[0],
        validation=shares[1],
        kind="estimate",
        method="partition-samples",
        level=level,
        n_folds=splits.n_folds,
        fragments=_fragments(parts),
        row_probability=tuple(np.minimum(chance, 1.0).tolist()),
        notes=(
            f"From {len(labels)} posterior samples, which are only as good as their model and can be far "
            "too confident. Check some rows with leak_from_resolved_rows.",
        ),
    )


def read_partition_samples(
    source: Any, ids: Sequence[Any], *, ignore_unknown: bool = False
) -> Rows:
    """Read posterior samples of a linkage tool, in the order of the draws.

    Parameters
    ----------
    source : array, DataFrame, or path of a .csv file, or of a .parquet file or folder
        An array of samples by rows. A wide table with a column for each record id and a row for each
        sample, or with columns V1 … Vn in the order of `ids`, as written by R's `write.csv` for
        `blink::rl.gibbs`. A long table with columns `sample` or `iteration`, `record` and `entity`.
        Or the folder `linkage-chain.parquet` of dblink, with columns `iteration`, `partitionId` and
        `linkageStructure` (lists of record ids, or such lists by entity).
    ids : sequence
        The id of every row of the table, in its order. Ids are compared as text.
    ignore_unknown : bool
        Leave out records that are not among ids, instead of raising an error. Use it if only some
        of the linked rows are audited: restricted to these, the samples remain valid. An array
        has no record ids and must have a column for each of `ids`.

    Returns
    -------
    array of int, samples by rows
        The entity of each row in each sample, numbered from 0. Samples of the burn-in are included
        if the tool wrote them; drop them, for example with `samples[100:]`.

    Examples
    --------
    >>> import pandas as pd
    >>> from mlflow_b3 import linkage
    >>> chain = pd.DataFrame(
    ...     {
    ...         "sample": [1, 1, 1, 2, 2, 2],
    ...         "record": ["a", "b", "c", "a", "b", "c"],
    ...         "entity": [1, 1, 2, 1, 2, 2],
    ...     }
    ... )
    >>> linkage.read_partition_samples(chain, ids=["a", "b", "c"]).tolist()
    [[0, 0, 1], [0, 1, 1]]
    """
    texts = [id_text(name) for name in ids]
    repeated = pd.Index(texts)[pd.Index(texts).duplicated()].unique()
    if len(repeated):
        raise InputError(
            f"ids: {len(repeated)} occur more than once: {_some(repeated)}; each row needs its own."
        )
    if isinstance(source, (str, Path)):
        source = _read(Path(source))
    if not isinstance(source, pd.DataFrame):
        return _codes(source, len(texts))
    if DBLINK_COLUMN in source:
        return _from_long(_dblink(source), texts, ignore_unknown)
    columns = {str(name).lower(): name for name in source.columns}
    named = [
        next((columns[name] for name in names if name in columns), None)
        for names in (SAMPLE_NAMES, RECORD_NAMES, ENTITY_NAMES)
    ]
    if None not in named:
        long = source[named]
        long = long.set_axis(["sample", "record", "entity"], axis=1)
        return _from_long(long, texts, ignore_unknown)
    return _from_wide(source, texts, ignore_unknown)


def _codes(samples: Any, n: int | None = None) -> Rows:
    try:
        labels = np.asarray(samples)
    except ValueError:
        raise InputError("samples have different numbers of rows.") from None
    if labels.ndim != 2 or not labels.size:
        raise InputError(f"samples has shape {labels.shape}; samples by rows are needed.")
    if n is not None and labels.shape[1] != n:
        raise InputError(f"samples has {labels.shape[1]} columns; there are {n} rows.")
    coded = np.array([pd.factorize(row)[0] for row in labels], dtype=np.intp)
    wrong = np.flatnonzero((coded < 0).any(axis=1))
    if len(wrong):
        raise InputError(f"samples: entities are missing in samples {_some(wrong)}.")
    return coded


def _read(path: Path) -> pd.DataFrame:
    if not path.exists():
        raise InputError(f"samples: {str(path)!r} does not exist (from {str(Path.cwd())!r}).")
    with reading("samples", path):
        if path.is_dir() or path.suffix.lower() in (".parquet", ".pq"):
            return pd.read_parquet(path)
        if path.suffix.lower() == ".csv":
            return pd.read_csv(path, dtype=str, keep_default_na=False, na_values=["", "NA"])
    raise InputError(f"samples: {str(path)!r} has an unknown ending; use .csv or .parquet.")


def _dblink(chain: pd.DataFrame) -> pd.DataFrame:
    """Convert the chain of dblink to a long table; partitions do not share entities."""
    samples, records, entities, entity = [], [], [], 0
    for iteration, structure in zip(chain["iteration"], chain[DBLINK_COLUMN], strict=True):
        for item in structure:
            # Older versions write a map of entities to records, newer ones only the records.
            members = item[1] if isinstance(item, tuple) else item
            records.extend(members)
            samples.extend([iteration] * len(members))
            entities.extend([entity] * len(members))
            entity += 1
    return pd.DataFrame({"sample": samples, "record": records, "entity": entities})


def _from_long(table: pd.DataFrame, ids: list[str], ignore_unknown: bool) -> Rows:
    if table.isna().any(axis=None):
        raise InputError(
            f"samples: {int(table.isna().any(axis=1).sum())} lines have missing values."
        )
    codes, names = pd.factorize(table["record"])
    texts = np.array([id_text(name) for name in names], dtype=object)
    found = pd.Index(ids).get_indexer(pd.Index(texts))
    _check_known(texts[found >= 0], texts[found < 0], ids, ignore_unknown)
    rows = found[codes]
    table, rows = table[rows >= 0], rows[rows >= 0]
    numbers = pd.to_numeric(table["sample"], errors="coerce")  # as numbers: 10 comes after 9
    order = table["sample"] if numbers.isna().any() else numbers
    samples, drawn = pd.factorize(order, sort=True)
    counts = np.bincount(samples * len(ids) + rows, minlength=len(drawn) * len(ids))
    wrong = np.argwhere(counts.reshape(len(drawn), len(ids)) != 1)
    if len(wrong):
        where = [f"{ids[row]} in sample {drawn[sample]}" for sample, row in wrong[:5]]
        raise InputError(
            f"samples: every record must occur once in every sample; {len(wrong)} do not: "
            f"{', '.join(where)}{' …' if len(wrong) > 5 else ''}."
        )
    labels = np.empty((len(drawn), len(ids)), dtype=np.intp)
    labels[samples, rows] = pd.factorize(table["entity"])[0]
    return _codes(labels)


def _from_wide(table: pd.DataFrame, ids: list[str], ignore_unknown: bool) -> Rows:
    names, known = [id_text(name) for name in table.columns], set(ids)
    kept = [
        place
        for place, name in enumerate(names)
        if name in known or not (name.lower() in SAMPLE_NAMES or name.startswith("Unnamed: "))
    ]
    names, table = [names[place] for place in kept], table.iloc[:, kept]
    if names == [f"V{place + 1}" for place in range(len(ids))]:
        return _codes(table.to_numpy(), len(ids))
    held = [name in known for name in names]
    found = [name for name in names if name in known]
    strange = [name for name in names if name not in known]
    _check_known(found, strange, ids, ignore_unknown, WIDE)
    missing = sorted(known - set(found))
    if missing or len(found) != len(ids):
        raise InputError(
            f"samples: {len(missing)} of {len(ids)} ids have no column: {_some(missing)}; "
            f"{len(found) - len(set(found))} have more than one.{WIDE}"
        )
    return _codes(table.loc[:, held].set_axis(found, axis=1)[ids].to_numpy())


def _check_known(
    known: Any, strange: Any, ids: list[str], ignore_unknown: bool, needed: str = ""
) -> None:
    """Raise an error for records that are not among ids, unless they may be ignored."""
    if not len(strange) or (ignore_unknown and len(known)):
        return
    cause = ""
    if len(strange) > len(known):
        cause = f" Ids are like {_some(ids, 2)}: wrong row_id, or samples of another table?"
    raise InputError(
        f"samples: {len(strange)} of {len(strange) + len(known)} records are not among ids: "
        f"{_some(strange)}.{cause}{needed}"
    )


def _some(values: Any, most: int = 5) -> str:
    listed = [str(value) for value in list(values)[:most]]
    return (", ".join(listed) or "none") + (" …" if len(values) > most else "")


def _share(draws: Floats, level: float) -> LeakShare:
    low, high = np.quantile(draws, [(1 - level) / 2, (1 + level) / 2]).tolist()
    point = min(float(draws.mean()), 1.0)
    return LeakShare(point=point, low=min(low, point), high=min(max(high, point), 1.0))


def _parts(entities: Rows, clusters: Rows) -> tuple[Floats, Rows]:
    """Return distinct shares of an entity's rows in the row's own cluster, and their counts."""
    _, part, sizes = np.unique(
        entities * (int(clusters.max()) + 1) + clusters, return_inverse=True, return_counts=True
    )
    shares = sizes[part] / np.bincount(entities)[entities]
    values, counts = np.unique(shares, return_counts=True)
    return values, counts.astype(np.intp)


def _fragments(parts: list[tuple[Floats, Rows]]) -> tuple[float, ...] | None:
    if not parts:
        return None
    values, counts = (np.concatenate(column) for column in zip(*parts, strict=True))
    return typical_fragments(values, counts)
