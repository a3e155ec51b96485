"""Leak shares from the match probabilities of pairs: an order of magnitude, and a ranking."""

from typing import Any

import numpy as np

from mlflow_b3.linkage.estimates import LeakEstimate, LeakShare, typical_fragments
from mlflow_b3.linkage.pair_table import PairTable
from mlflow_b3.linkage.splits import Floats, Mask, Rows, Splits, as_codes
from mlflow_b3.linkage.votes import DirectedPairs, any_match

LEVEL = 0.95
NOT_AN_INTERVAL = (
    "The ends are bounds on what dependence between pairs can do if their probabilities are right; "
    "they are not a confidence interval."
)
SAME_SCORES = (
    "It must not be used on folds made of the same scores: what such folds leave apart scored low, "
    "whether it matches or not."
)
UNCHECKED = (
    "Nobody checked the probabilities: pairs that straddle clusters are seldom calibrated, and "
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
    """Return the leak shares that match probabilities of pairs imply.

    Parameters
    ----------
    i, j : array of int
        The rows of each pair; `PairTable` unpacks into these and p.
    p : array of float
        π_ij, the probability that the two rows belong to one entity. Pairs that are not listed
        count as no match.
    folds : array of int, or sequence of (training rows, validation rows), or Splits
    clusters : sequence
        ĉ(i): the predicted cluster of each row.
    calibrated : bool
        The probabilities were checked on pairs that straddle predicted clusters (`recalibrate`).
    wide : bool
        All plausible pairs were scored, not those of a few blocks.
    allow_split : bool
        Accept folds that have rows of one predicted cluster on both sides.

    Returns
    -------
    LeakEstimate
        Of kind "uncalibrated", unless `calibrated`. `row_probability` is r_j, for a row that is
        validated several times their mean, and 0 for a row that never is.

    Notes
    -----
    For row i and the rows S of the other side,

        low    max_{j∈S} π_ij
        point  1 - Π_{C⊂S} (1 - max_{j∈C} π_ij)       one vote for each predicted cluster
        high   min(1, Σ_{j∈S} π_ij)

    averaged over rows and splits as p0 and p0_validation are. Rows of one predicted cluster are no
    independent witnesses: a product over pairs counts them several times (20 to 50 % too much).

    In simulations of person records linked by Splink the point was off by factors of 0.2 to 1.9,
    and hardly moved (0.037 to 0.045) while the truth moved from 0.025 to 0.12. Two errors of
    opposite sign cause it: mates with a high probability were mostly linked already, so that among
    the pairs left apart too few match; and true mates that share no block were never scored.
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
    """Return r_j: the probability that a row has a mate in training when it is validated.

    Parameters
    ----------
    i, j, p, folds, clusters, allow_split
        As in `leak_from_pairs`.
    same_side : bool
        Count mates among the *validation* rows instead, in other predicted clusters. Such rows look
        as suspicious as leaked ones but saw no mate in training: the negative control of
        `loss_regression`.

    Returns
    -------
    array of float
        The mean over the splits that validate the row; 0 for a row that is never validated.
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
    """Return how likely each row has mates in other predicted clusters, whatever the folds.

    By this score rows are sampled for review; see `sample_rows`.
    """
    codes = as_codes("clusters", clusters)
    pairs = DirectedPairs.of(*PairTable.of(i, j, p, len(codes)).arrays, codes)
    everyone = np.ones(len(codes), dtype=bool)
    votes = pairs.votes(everyone, everyone)
    return any_match(votes.row, votes.best, len(codes))


def pair_fragments(pairs: DirectedPairs, clusters: Rows) -> tuple[float, ...] | None:
    """Return how the entities of probable pairs are split: |C(i)|/(|C(i)| + |C(j)|), by π."""
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
    """Return the share of one side, and for each row the sum of its points over the splits."""
    n = len(own_side)
    totals, points = np.zeros(3), np.zeros(n)
    for own, other, weight in zip(own_side.T, other_side.T, weights, strict=True):
        votes = pairs.votes(own, other)
        low = np.zeros(n)
        np.maximum.at(low, votes.row, votes.best)
        # rounding must not break low <= point <= high
        point = np.maximum(any_match(votes.row, votes.best, n), low)
        total = np.bincount(votes.pair_row, weights=votes.pair_score, minlength=n)
        high = np.maximum(np.minimum(total, 1.0), point)
        totals += weight * np.array([low.mean(), point.mean(), high.mean()])
        points += point
    low_share, share, high_share = np.minimum(totals, 1.0).tolist()
    return LeakShare(point=share, low=low_share, high=high_share), points


def _mean_when_validated(totals: Floats, splits: Splits) -> Floats:
    return np.asarray(totals / np.maximum(1, splits.validation.sum(axis=1)))
