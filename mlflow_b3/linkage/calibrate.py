"""Match probabilities put right by resolved rows."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import expit, logit
from sklearn.linear_model import LogisticRegression

from mlflow_b3.errors import InputError, check_seed
from mlflow_b3.linkage.estimates import LeakEstimate, LeakShare
from mlflow_b3.linkage.pair_table import PairTable
from mlflow_b3.linkage.pairs import SAME_SCORES, leak_from_pairs
from mlflow_b3.linkage.splits import Floats, Rows, Splits, as_codes
from mlflow_b3.linkage.votes import DirectedPairs, Votes, any_match
from mlflow_b3.results import Result

LEVEL = 0.95
#: Beyond such log-odds a score says no more.
LARGEST_LOGIT = 40.0
#: A line through fewer matches than this is no calibration: five for each coefficient.
FEWEST_MATCHED_ROWS = 10
#: With more mates than this outside the pair table the shares are biased low.
MOST_MISSED = 0.05


@dataclass(frozen=True, kw_only=True)
class Recalibration(Result):
    """How right match probabilities are for rows and clusters that linkage left apart.

    Attributes
    ----------
    intercept, slope : float
        The log-odds of a match are intercept + slope·logit π; 0 and 1 when π was right.
    n_rows : int
        Resolved rows.
    n_matched_rows : int
        Those with a mate in another predicted cluster, among the scored pairs.
    missed_share : float
        Share of the clusters with mates, as found by the reviewers, that no scored pair leads to.
    separated : bool
        Every match scored above every other pair, so that the slope is not determined; the slope 1
        was kept and only the level put right.
    """

    intercept: float
    slope: float
    n_rows: int
    n_matched_rows: int
    missed_share: float
    separated: bool

    def apply(self, logit_p: Any) -> Floats:
        """Return the recalibrated probabilities of scores in log-odds."""
        return np.asarray(expit(self.intercept + self.slope * _clipped(logit_p)))


@dataclass(frozen=True, kw_only=True, eq=False)
class _Labels:
    """Votes of the resolved rows: which of them, the best score, right or not, what it counts."""

    sampled: Rows
    best: Floats
    match: Floats
    weight: Floats
    missed: Floats


def recalibrate(
    i: Any,
    j: Any,
    logit_p: Any,
    clusters: Any,
    rows: Any,
    mates: Sequence[Any],
    *,
    weights: Any = None,
) -> Floats:
    """Return match probabilities that agree with resolved rows; see `fit_recalibration`.

    They hold for pairs across predicted clusters. Those of pairs within a cluster, which cannot
    leak, are transformed as well but mean nothing.
    """
    fitted = fit_recalibration(i, j, logit_p, clusters, rows, mates, weights=weights)
    return fitted.apply(logit_p)


def fit_recalibration(
    i: Any,
    j: Any,
    logit_p: Any,
    clusters: Any,
    rows: Any,
    mates: Sequence[Any],
    *,
    weights: Any = None,
) -> Recalibration:
    """Fit the log-odds of a match across predicted clusters on the log-odds of the scores.

    Parameters
    ----------
    i, j : array of int
        The rows of each pair.
    logit_p : array of float
        Log-odds of the match probability: ln(π/(1-π)), or match weight times ln 2.
    clusters : sequence
        The predicted cluster of each row.
    rows : sequence of int
        Resolved rows, drawn at random.
    mates : sequence of sequences of int
        For each resolved row *all* rows of the same entity, found by free search; empty for none.
    weights : sequence of float, optional
        What each resolved row stands for where they were not drawn uniformly: N_h/B_h.

    Notes
    -----
    One observation is a resolved row with another predicted cluster that it has scored pairs with;
    its score is the best of these pairs, and it is a match when the cluster holds a mate. A fit on
    single pairs would be right for single pairs, but `leak_from_pairs` takes the best pair of each
    cluster, and the best of several fair scores is too high.
    """
    codes, score, resolved, found, weight = _checked(i, j, logit_p, clusters, rows, mates, weights)
    pairs = DirectedPairs.of(score.first, score.second, score.probability, codes)
    labels = _label(pairs, codes, resolved, found, weight)
    _require_matches(labels, len(resolved))
    return _fitted(labels, np.ones(len(resolved)))


def leak_from_recalibrated_pairs(
    i: Any,
    j: Any,
    logit_p: Any,
    folds: Any,
    clusters: Any,
    rows: Any,
    mates: Sequence[Any],
    *,
    weights: Any = None,
    level: float = LEVEL,
    draws: int = 300,
    seed: int = 0,
) -> LeakEstimate:
    """Return the leak shares from scored pairs whose probabilities resolved rows put right.

    Parameters
    ----------
    i, j, logit_p, clusters, rows, mates, weights
        As in `fit_recalibration`. Score *wide*: all pairs, or those of loose blocking.
    folds : array of int, or sequence of (training rows, validation rows), or Splits
        Not made of the same scores.
    level : float
        Confidence of the interval: percentiles of a bootstrap over the resolved rows.
    draws, seed : int
        Of the bootstrap.

    Returns
    -------
    LeakEstimate
        Of kind "estimate"; "uncalibrated" when more than 5 % of the mates that reviewers found are
        not among the scored pairs, since these are missed for all other rows too.
        `row_probability` is calibrated and serves `loss_regression`.
    """
    check_seed(seed)
    if not 0 < level < 1:
        raise InputError(f"level={level!r} must lie between 0 and 1.")
    codes, score, resolved, found, weight = _checked(i, j, logit_p, clusters, rows, mates, weights)
    splits = Splits.of(folds, len(codes))
    splits.require_whole(codes)
    pairs = DirectedPairs.of(score.first, score.second, score.probability, codes)
    labels = _label(pairs, codes, resolved, found, weight)
    _require_matches(labels, len(resolved))
    fitted = _fitted(labels, np.ones(len(resolved)))
    sides = (
        _votes(pairs, splits.training, splits.validation),
        _votes(pairs, splits.validation, splits.training),
    )
    scale = (splits.training_weight, splits.validation_weight)
    rng = np.random.default_rng(seed)
    drawn = np.empty((draws, 2))
    for draw in range(draws):
        times = np.bincount(rng.integers(0, len(resolved), len(resolved)), minlength=len(resolved))
        refitted = _fitted(labels, times.astype(float))
        drawn[draw] = [
            _mean_leak(side, refitted, weight, len(codes))
            for side, weight in zip(sides, scale, strict=True)
        ]
    ends = np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2], axis=0)
    plain = leak_from_pairs(
        score.first, score.second, fitted.apply(score.probability), splits, codes, calibrated=True
    )
    missed = fitted.missed_share
    return LeakEstimate(
        train=_with_ends(plain.train, ends[:, 0]),
        validation=_with_ends(plain.validation, ends[:, 1]),
        kind="estimate" if missed <= MOST_MISSED else "uncalibrated",
        method="recalibrated-pairs",
        level=level,
        n_folds=splits.n_folds,
        n_labels=len(resolved),
        fragments=plain.fragments,
        row_probability=plain.row_probability,
        notes=_notes(fitted),
        wide=True,
    )


def _checked(
    i: Any, j: Any, logit_p: Any, clusters: Any, rows: Any, mates: Sequence[Any], weights: Any
) -> tuple[Rows, PairTable, Rows, list[Rows], Floats]:
    """Return cluster codes, pairs with their log-odds, resolved rows, their mates and weights."""
    codes = as_codes("clusters", clusters)
    scores = np.asarray(logit_p, dtype=float)
    if np.isnan(scores).any():
        raise InputError(f"logit_p: {int(np.isnan(scores).sum())} values are missing.")
    table = PairTable.of(i, j, expit(_clipped(scores)), len(codes))
    if len(table) != len(scores):
        raise InputError("pairs: some occur more than once; list every pair once.")
    resolved = np.asarray(rows)
    problems = []
    if resolved.ndim != 1 or not len(resolved) or not np.issubdtype(resolved.dtype, np.integer):
        raise InputError("rows must list the numbers of the resolved rows.")
    if len(mates) != len(resolved):
        raise InputError(f"mates has {len(mates)} lists for {len(resolved)} rows; one each.")
    if resolved.min() < 0 or resolved.max() >= len(codes):
        problems.append(f"row numbers must lie in 0 … {len(codes) - 1}.")
    if len(np.unique(resolved)) != len(resolved):
        problems.append("a row is listed more than once.")
    if any(item is None for item in mates):
        problems.append("mates is missing for some rows; leave out rows that nobody resolved.")
    found = [np.asarray([] if item is None else item).astype(np.intp).ravel() for item in mates]
    everyone = np.concatenate([*found, resolved[:1]])
    if everyone.min() < 0 or everyone.max() >= len(codes):
        problems.append(f"mates must lie in 0 … {len(codes) - 1}.")
    weight = np.ones(len(resolved)) if weights is None else np.asarray(weights, dtype=float)
    if weight.shape != resolved.shape or not (np.isfinite(weight) & (weight > 0)).all():
        problems.append("weights must be positive, one for each resolved row.")
    if problems:
        raise InputError.from_problems("resolved rows", problems)
    ordered = PairTable(
        first=table.first, second=table.second, probability=_clipped(scores), n=len(codes)
    )
    return codes, ordered, resolved.astype(np.intp), found, weight


def _label(
    pairs: DirectedPairs, codes: Rows, resolved: Rows, found: list[Rows], weight: Floats
) -> _Labels:
    own = np.zeros(len(codes), dtype=bool)
    own[resolved] = True
    votes = pairs.votes(own, np.ones(len(codes), dtype=bool))
    place = np.full(len(codes), -1, dtype=np.intp)
    place[resolved] = np.arange(len(resolved))
    count = int(codes.max()) + 1
    owners = np.repeat(np.arange(len(resolved)), [len(rows) for rows in found])
    homes = codes[np.concatenate([*found, resolved[:0]])]
    keys = np.unique(owners * count + homes)
    keys = keys[keys % count != codes[resolved][keys // count]]
    scored = place[votes.row] * count + votes.cluster
    missed = keys[~np.isin(keys, scored)] // count
    return _Labels(
        sampled=place[votes.row],
        best=votes.best,
        match=np.isin(scored, keys).astype(float),
        weight=weight,
        missed=np.bincount(missed, minlength=len(resolved)).astype(float),
    )


def _require_matches(labels: _Labels, n_rows: int) -> None:
    matched = len(np.unique(labels.sampled[labels.match > 0]))
    if matched >= FEWEST_MATCHED_ROWS:
        return
    needed = math.ceil(n_rows * FEWEST_MATCHED_ROWS / max(matched, 1) / 10) * 10
    raise InputError(
        f"resolved rows: {matched} of {n_rows} have a mate in another cluster among the scored "
        f"pairs; at least {FEWEST_MATCHED_ROWS} are needed. Resolve about {needed} rows"
        f"{' or more' if matched == 0 else ''}, or use leak_from_resolved_rows."
    )


def _fitted(labels: _Labels, times: Floats) -> Recalibration:
    """Fit the line with each resolved row counted so many times."""
    row_weight = labels.weight * times
    weight = row_weight[labels.sampled]
    use = weight > 0
    score, match, weight = labels.best[use], labels.match[use], weight[use]
    hits, others = score[match > 0], score[match == 0]
    separated = not len(hits) or not len(others) or hits.min() >= others.max()
    if separated:
        intercept, slope = _level(score, match, weight), 1.0
    else:
        model = LogisticRegression(C=np.inf, solver="newton-cholesky", tol=1e-8)
        model.fit(score[:, None], match, sample_weight=weight)
        intercept, slope = float(model.intercept_[0]), float(model.coef_[0, 0])
        if slope <= 0:  # scores that tell nothing: one probability for all
            intercept, slope = float(logit(np.average(match, weights=weight))), 0.0
    missed = float(np.dot(labels.missed, row_weight))
    caught = float(np.dot(match, weight))
    return Recalibration(
        intercept=intercept,
        slope=slope,
        n_rows=int(times.sum()),
        n_matched_rows=len(np.unique(labels.sampled[use][match > 0])),
        missed_share=missed / (missed + caught) if missed + caught > 0 else 0.0,
        separated=bool(separated),
    )


def _level(score: Floats, match: Floats, weight: Floats) -> float:
    """Return the shift of the scores at which as many matches are expected as were found."""
    from scipy.optimize import brentq

    # half a match more and less keep it finite where all or none match
    rate = (np.dot(match, weight) + weight.mean() / 2) / (weight.sum() + weight.mean())
    return float(
        brentq(
            lambda shift: np.average(expit(score + shift), weights=weight) - rate,
            -2 * LARGEST_LOGIT,
            2 * LARGEST_LOGIT,
        )
    )


def _votes(pairs: DirectedPairs, own_side: Any, other_side: Any) -> list[Votes]:
    return [pairs.votes(own, other) for own, other in zip(own_side.T, other_side.T, strict=True)]


def _mean_leak(side: list[Votes], fitted: Recalibration, weights: Floats, n: int) -> float:
    totals = [any_match(votes.row, fitted.apply(votes.best), n).mean() for votes in side]
    return float(min(1.0, np.dot(weights, totals)))


def _with_ends(share: LeakShare, ends: Floats) -> LeakShare:
    point = share.point or 0.0
    return LeakShare(point=point, low=min(float(ends[0]), point), high=max(float(ends[1]), point))


def _clipped(logit_p: Any) -> Floats:
    return np.clip(np.asarray(logit_p, dtype=float), -LARGEST_LOGIT, LARGEST_LOGIT)


def _notes(fitted: Recalibration) -> tuple[str, ...]:
    notes = [
        f"{fitted.missed_share:.0%} of the clusters with mates that reviewers found are not among "
        "the scored pairs"
        + (
            ": the shares are biased low by about as much. Score more pairs, or use "
            "leak_from_resolved_rows."
            if fitted.missed_share > MOST_MISSED
            else "."
        ),
        SAME_SCORES,
    ]
    if fitted.separated:
        notes.append(
            "Every match scored above every other pair: only the level of the probabilities could "
            "be put right."
        )
    return tuple(notes)
