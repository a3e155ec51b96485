"""Lower limits of the precision and recall of match-and-merge, from labelled pairs."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

from mlflow_b3.errors import InputError
from mlflow_b3.linkage.pair_table import PairTable
from mlflow_b3.linkage.splits import Rows, as_codes
from mlflow_b3.results import Result
from mlflow_b3.wording import not_percentage

Counts = tuple[int, int]


@dataclass(frozen=True, kw_only=True)
class MatchMergeBounds(Result):
    """What the pairs within predicted clusters are worth, at least.

    Attributes
    ----------
    precision_low : float
        Lower limit of the share of true pairs among the pairs in one predicted cluster.
    recall_low : float
        Lower limit of the share of the true pairs that are in one predicted cluster.
    level : float
        Confidence of each limit by itself.
    method : {"labelled pairs", "reviewed matches"}
        Where the precision of matches comes from: shifted from labelled pairs to the true share of
        matches, or reviewed directly.
    match_precision : float
        Share of true pairs among the matched pairs, without allowance for chance.
    match_recall : float
        Share of the labelled true pairs that match.
    true_share : float or None
        C_X, the share of true pairs among all pairs: as given, or from the reviewed matches.
    n_matched, n_together : int
        |X_M| pairs that match directly, |X_Ŷ| pairs in one predicted cluster.
    n_pairs : int
        All pairs of rows.
    """

    precision_low: float
    recall_low: float
    level: float
    method: str
    match_precision: float
    match_recall: float
    true_share: float | None
    n_matched: int
    n_together: int
    n_pairs: int


def shifted_precision(precision: float, labelled_share: float, true_share: float) -> float:
    """Return the precision among pairs with another share of matches.

    Parameters
    ----------
    precision : float
        P: share of true matches among the labelled pairs that match.
    labelled_share : float
        C_V: share of true matches among the labelled pairs.
    true_share : float
        C_X: the share among the pairs that the precision is wanted for.

    Notes
    -----
    g(P) = C_X(1-C_V)P / [C_V(1-C_X) + (C_X-C_V)P]: Bayes' rule with the same rates of true and false
    positives. For C_X < C_V it is convex, so that a noisy P makes it too large on average: put in a
    lower limit of P.
    """
    shares = {"labelled_share": labelled_share, "true_share": true_share}
    problems = [
        f"{name}={value!r} must lie between 0 and 1, without them.{not_percentage(value)}"
        for name, value in shares.items()
        if not 0 < value < 1
    ]
    if not 0 <= precision <= 1:
        problems.append(f"precision={precision!r} must lie in [0, 1].{not_percentage(precision)}")
    if problems:
        raise InputError.from_problems("shifted_precision", problems)
    right = true_share * (1 - labelled_share) * precision
    wrong = labelled_share * (1 - true_share) * (1 - precision)
    return right / (right + wrong)


def swoosh_bounds(
    clusters: Any,
    matched: Any,
    matches: Counts,
    *,
    nonmatches: Counts | None = None,
    true_share: float | None = None,
    precision_sample: Counts | None = None,
    level: float = 0.95,
) -> MatchMergeBounds:
    """Bound precision and recall of clusters that match-and-merge has made.

    Parameters
    ----------
    clusters : sequence
        Predicted cluster of each row, from `components`, or from `match_and_merge` with functions
        that have the properties stated there.
    matched : int, or pair of sequences (i, j)
        The pairs of rows that match directly, X_M, or their number.
    matches : (int, int)
        Of labelled true pairs: how many match directly, and how many there are. They must be drawn
        at random from all true pairs, not from those that a model found, and not be those that the
        match was learnt from.
    nonmatches : (int, int), optional
        The same of labelled pairs that are not true, drawn at random from all such pairs.
    true_share : float, optional
        C_X: share of true pairs among all pairs; goes with `nonmatches`.
    precision_sample : (int, int), optional
        Instead of the two: of matched pairs drawn at random from X_M and reviewed, how many are
        true, and how many were reviewed. Prefer this one: it needs no C_X.
    level : float
        Confidence of each limit.

    Notes
    -----
    Pairs that match directly are in one cluster (X_M ⊆ X_Ŷ), so
    precision ≥ |X_M|/|X_Ŷ| · precision of matches, and recall ≥ recall of matches. The first is
    g(P_V) of labelled pairs (`shifted_precision`) at the Wilson lower limit of P_V, or the Wilson
    lower limit of the reviewed matches; the second the Wilson lower limit of the labelled true pairs
    that match.

    The way over g is that of the thesis. Where one pair in 1,000 is a match, a precision of
    0.99998 among as many true as false labelled pairs has to be proven, so that 1,000 labels prove
    nearly nothing. A review of matched pairs proves as much as its size; and with the recall it gives
    C_X = precision·|X_M|/(recall·N), with N = n(n-1)/2 pairs in all, which the thesis would
    estimate separately.

    The thesis found the truth below such limits in 4.2 % of 240 trials at level 95 %.
    """
    if not 0 < level < 1:
        raise InputError(f"level={level!r} must lie between 0 and 1.")
    labels = as_codes("clusters", clusters)
    n = len(labels)
    sizes = np.bincount(labels)
    together = int((sizes * (sizes - 1) // 2).sum())
    n_matched = _count_matched(matched, labels, together)
    found, true_pairs = _counts("matches", matches)
    recall, n_pairs = found / true_pairs, n * (n - 1) // 2
    if precision_sample is not None:
        if nonmatches is not None or true_share is not None:
            raise InputError(
                "precision_sample is given together with nonmatches or true_share; give either "
                "reviewed matches, or labelled other pairs and the true share."
            )
        right, reviewed = _counts("precision_sample", precision_sample)
        low, precision = _wilson(right, reviewed, level), right / reviewed
        share = min(1.0, precision * n_matched / (recall * n_pairs)) if found else None
    else:
        low, precision = _shifted(found, true_pairs, nonmatches, true_share, level)
        share = true_share
    return MatchMergeBounds(
        precision_low=low * n_matched / together,
        recall_low=_wilson(found, true_pairs, level),
        level=float(level),
        method="labelled pairs" if precision_sample is None else "reviewed matches",
        match_precision=precision,
        match_recall=recall,
        true_share=share,
        n_matched=n_matched,
        n_together=together,
        n_pairs=n_pairs,
    )


def _shifted(
    found: int, true_pairs: int, nonmatches: Any, true_share: Any, level: float
) -> tuple[float, float]:
    """Return g at the lower limit of the labelled precision, and g at the precision itself."""
    if nonmatches is None or true_share is None:
        raise InputError(
            "The precision of matches is not known: give precision_sample, (true, reviewed) of "
            "matched pairs drawn at random, or nonmatches and true_share."
        )
    wrong, others = _counts("nonmatches", nonmatches)
    if not found + wrong:
        raise InputError("matches and nonmatches: none of the labelled pairs match.")
    labelled = true_pairs / (true_pairs + others)
    low = _wilson(found, found + wrong, level)
    return (
        shifted_precision(low, labelled, true_share),
        shifted_precision(found / (found + wrong), labelled, true_share),
    )


def _wilson(count: int, total: int, level: float) -> float:
    """Return the one-sided Wilson lower limit of a share."""
    test = stats.binomtest(count, total, alternative="greater")
    return float(test.proportion_ci(level, method="wilson").low)


def _counts(name: str, value: Any) -> Counts:
    try:
        part, total = (int(number) for number in value)
        whole = [part, total] == list(value)
    except (TypeError, ValueError, OverflowError):
        part, total, whole = 0, 0, False
    if not whole or not 0 <= part <= total or not total:
        raise InputError(
            f"{name}={value!r} must be two whole numbers: how many did, and of how many (from 1)."
        )
    return part, total


def _count_matched(matched: Any, labels: Rows, together: int) -> int:
    if isinstance(matched, (int, np.integer)) and not isinstance(matched, bool):
        count, apart = int(matched), 0
    else:
        try:
            first, second = matched
        except (TypeError, ValueError):
            raise InputError(
                f"matched={matched!r} must be a number of pairs, or two lists of rows (i, j)."
            ) from None
        pairs = PairTable.of(first, second, np.ones(np.size(first)), len(labels))
        count = len(pairs)
        apart = int((labels[pairs.first] != labels[pairs.second]).sum())
    if apart or not 0 < count <= together:
        raise InputError(
            f"matched: {count} pairs, {apart} of them in different clusters, and {together} pairs in "
            "one cluster. The bounds hold where all matched pairs are in one cluster, and for one "
            "pair at least: see components."
        )
    return count
