"""Match probabilities put right by resolved rows."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from scipy.special import expit

from mlflow_b3.errors import InputError
from mlflow_b3.linkage.logistic import clipped, fit_line
from mlflow_b3.linkage.pair_table import PairTable
from mlflow_b3.linkage.resolved import ResolvedRows
from mlflow_b3.linkage.splits import Floats, Mask, Rows, as_codes
from mlflow_b3.linkage.votes import DirectedPairs
from mlflow_b3.results import Result

#: A line through fewer matches than this is no calibration: five for each coefficient.
FEWEST_MATCHED_ROWS = 10
#: Of these, how many each side of the folds needs.
FEWEST_ON_A_SIDE = 5


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
        Share of the other clusters with mates, as found by the reviewers, that no scored pair leads
        to.
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
        return np.asarray(expit(self.intercept + self.slope * clipped(logit_p)))


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
        The rows of each pair, every pair once.
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
    single pairs would suit single pairs, but `leak_from_pairs` takes the best pair of each cluster.

    For leak shares use `leak_from_recalibrated_pairs`, which also allows for the dependence between
    the clusters of one entity.
    """
    return ResolvedSample.of(i, j, logit_p, clusters, rows, mates, weights).fit()


@dataclass(frozen=True, kw_only=True, eq=False)
class Labels:
    """Votes that resolved rows heard, and whether they were right.

    Attributes
    ----------
    sampled : array of int
        Which of the resolved rows, counted from 0.
    best, match, weight : array of float
        Best score with the cluster in log-odds; 1 where it holds a mate; what the vote counts.
    """

    sampled: Rows
    best: Floats
    match: Floats
    weight: Floats

    def until_first_match(self) -> Self:
        """Leave out what scored below a row's best match."""
        order = np.lexsort([-self.best, self.sampled])
        sampled, match = self.sampled[order], self.match[order]
        before = np.cumsum(match) - match
        starts = np.flatnonzero(np.r_[True, sampled[1:] != sampled[:-1]]) if len(order) else order
        lengths = np.diff(np.r_[starts, len(order)])
        keep = order[before - np.repeat(before[starts], lengths) == 0]
        return type(self)(
            sampled=self.sampled[keep],
            best=self.best[keep],
            match=self.match[keep],
            weight=self.weight[keep],
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class ResolvedSample:
    """Resolved rows with all their mates, and the scored pairs, checked.

    Attributes
    ----------
    pairs : DirectedPairs
        Across predicted clusters, scored in log-odds.
    clusters : array of int
    resolved : ResolvedRows
    weights : array of float
    """

    pairs: DirectedPairs
    clusters: Rows
    resolved: ResolvedRows
    weights: Floats

    @classmethod
    def of(
        cls, i: Any, j: Any, logit_p: Any, clusters: Any, rows: Any, mates: Any, weights: Any
    ) -> Self:
        """Check everything that resolved rows and pairs can get wrong."""
        codes = as_codes("clusters", clusters)
        scores = np.asarray(logit_p, dtype=float)
        if np.isnan(scores).any():
            raise InputError(f"logit_p: {int(np.isnan(scores).sum())} values are missing.")
        checked = PairTable.of(i, j, expit(clipped(scores)), len(codes))
        if len(checked) != len(scores):
            raise InputError("pairs: some occur more than once; list every pair once.")
        resolved = ResolvedRows.of(rows, mates, len(codes))
        return cls(
            pairs=DirectedPairs.of(checked.first, checked.second, clipped(scores), codes),
            clusters=codes,
            resolved=resolved,
            weights=_checked_weights(weights, len(resolved)),
        )

    @property
    def rows(self) -> Rows:
        """The resolved rows."""
        return self.resolved.rows

    def label(self, own: Mask, other: Mask) -> Labels:
        """Return what resolved rows of one side heard from clusters with rows on the other side."""
        n = len(self.clusters)
        place = np.full(n, -1, dtype=np.intp)
        place[self.rows] = np.arange(len(self.rows))
        votes = self.pairs.votes(own & (place >= 0), other)
        sampled = place[votes.row]
        keys = self._mate_keys(other)
        match = np.isin(sampled * n + votes.cluster, keys).astype(float)
        return Labels(sampled=sampled, best=votes.best, match=match, weight=self.weights[sampled])

    def fit(self) -> Recalibration:
        """Fit all votes of the resolved rows, whatever the folds."""
        everyone = np.ones(len(self.clusters), dtype=bool)
        labels = self.label(everyone, everyone)
        self._require_matches(labels)
        intercept, slope, separated = fit_line(labels.best, labels.match, labels.weight)
        return Recalibration(
            intercept=intercept,
            slope=slope,
            n_rows=len(self.rows),
            n_matched_rows=len(np.unique(labels.sampled[labels.match > 0])),
            missed_share=self._missed_share(labels),
            separated=separated,
        )

    def _missed_share(self, labels: Labels) -> float:
        """Return the share of clusters with mates that no scored pair leads to."""
        keys = self._mate_keys(np.ones(len(self.clusters), dtype=bool))
        there = float(self.weights[keys // len(self.clusters)].sum())
        caught = float(np.dot(labels.match, labels.weight))
        return max(0.0, 1 - caught / there) if there > 0 else 0.0

    def _require_matches(self, labels: Labels) -> None:
        """Refuse a fit on too few matches."""
        matched = len(np.unique(labels.sampled[labels.match > 0]))
        if matched >= FEWEST_MATCHED_ROWS:
            return
        count = len(self.rows)
        needed = math.ceil(count * FEWEST_MATCHED_ROWS / max(matched, 1) / 10) * 10
        raise InputError(
            f"resolved rows: {matched} of {count} have a mate in another cluster among the scored "
            f"pairs; at least {FEWEST_MATCHED_ROWS} are needed. Resolve about {needed} rows"
            f"{' or more' if matched == 0 else ''}, or use leak_from_resolved_rows."
        )

    def _mate_keys(self, other: Mask) -> Rows:
        """Return resolved row times n plus cluster, for other clusters with mates among `other`."""
        n = len(self.clusters)
        owners, everyone = self.resolved.pairs()
        homes = self.clusters[everyone]
        use = other[everyone] & (homes != self.clusters[self.rows][owners])
        return np.unique(owners[use] * n + homes[use])


def _checked_weights(weights: Any, count: int) -> Floats:
    weight = np.ones(count) if weights is None else np.asarray(weights, dtype=float)
    if weight.shape != (count,) or not (np.isfinite(weight) & (weight > 0)).all():
        raise InputError("weights must be positive numbers, one for each resolved row.")
    return weight
