"""Over how many clusters entities are split, and what that means for any number of folds."""

from typing import Any

import numpy as np

from mlflow_b3.errors import InputError, check_seed
from mlflow_b3.linkage.estimates import LeakEstimate
from mlflow_b3.linkage.resolved import ResolvedRows
from mlflow_b3.linkage.row_means import SampledRows, check_level
from mlflow_b3.linkage.splits import Rows, as_codes


def split_counts_of(rows: Any, mates: Any, clusters: Any) -> Rows:
    """Return m_i: for each reviewed row, how many other predicted clusters hold mates of it.

    Parameters
    ----------
    rows, mates, clusters
        See `leak_from_resolved_rows`.
    """
    predicted = as_codes("clusters", clusters)
    return ResolvedRows.of(rows, mates, len(predicted)).split_counts(predicted)


def leak_from_split_counts(m: Any, K: float, *, level: float = 0.95, seed: int = 0) -> LeakEstimate:
    """Estimate leak shares for any number of folds from the split counts of a sample of rows.

    Parameters
    ----------
    m : sequence of int
        m_i of rows sampled uniformly; see `split_counts_of`.
    K : float
        Number of folds, or 1/share of the rows that is validated at once.
    level : float
    seed : int

    Returns
    -------
    LeakEstimate
        kind `estimate`, method `split-counts`: of folds to which clusters are dealt at random, not
        of any given ones.

    Notes
    -----
    p0 = E[1 − (1 − 1/K)^m] and p0_validation = E[1 − K^−m], for clusters put into folds uniformly
    and independently. In simulations with balanced folds of real sizes both held within 2 %.
    """
    counts = np.asarray(m)
    if counts.ndim != 1 or not len(counts) or not np.issubdtype(counts.dtype, np.integer):
        raise InputError("m must hold a whole number for each sampled row; see split_counts_of.")
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
        notes=("For clusters dealt to folds at random, on average over such folds.",),
    )


def check_folds(K: Any) -> None:
    """Refuse a number of folds of which no share can be validated."""
    if isinstance(K, bool) or not isinstance(K, (int, float, np.number)) or not 1 < K < np.inf:
        raise InputError(f"K={K!r} must be a number above 1: folds, or 1/validated share.")
