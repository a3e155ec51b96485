"""Losses of pairs of rows of one refit, for scores of how rows are ranked."""

import hashlib
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from mlflow_b3.data.losses import Array, Loss, Predictor
from mlflow_b3.errors import ModelError, PredictionError

Floats = NDArray[np.float64]
Integers = NDArray[np.integer[Any]]


def shares_of(target: Array, labels: Array) -> Floats:
    """Return the share of each label."""
    return np.array([np.mean(target == label) for label in labels])


@dataclass(frozen=True, kw_only=True)
class PairLoss(Loss):
    """Reports for each row how many rows of other classes it is ranked against wrongly.

    Pairs are of one refit, because scores of different models are not comparable, and of different
    clusters: a cluster has one dose, so pairs within it would say something else.

    Attributes
    ----------
    score : str
        The name of the score.
    labels : array
        The classes of the table.
    shares : array
        Their shares of the rows.
    weights : array
        The weight of the curve of each class against all others.
    kinds : tuple of str
        The kinds of prediction that rows are ranked by; the first that the model has is used.
    groups : array of int or None
        The group of each row of the table, -1 for none, if groups have scores of their own.
    group_shares : array or None
        The shares of the classes in each group.
    """

    score: str
    labels: Array
    shares: Floats
    weights: Floats
    kinds: tuple[str, ...] = ("probability", "decision")
    groups: Integers | None = None
    group_shares: Floats | None = None

    def within(self, target: Array, groups: Integers) -> Self:
        """Return the loss that also reports values of pairs within groups of the table's rows."""
        codes = np.ascontiguousarray(groups, dtype=np.int64)
        shares = np.array(
            [shares_of(target[codes == code], self.labels) for code in range(codes.max() + 1)]
        )
        # finished refits of other groups have other values
        name = f"{self.name} within {hashlib.sha256(codes.tobytes()).hexdigest()[:16]}"
        return replace(self, name=name, groups=codes, group_shares=shares)

    def evaluate_pairs(
        self,
        predictor: Predictor,
        X: Any,
        target: Array,
        clusters: Integers,
        n_validation: int,
        groups: Integers | None = None,
    ) -> Floats:
        """Return the value of each row, compared with the first `n_validation` rows.

        If there are no others, values for pairs of all clusters follow. With groups, the same
        follows for pairs within groups. NaN where there is no pair.
        """
        scores = self.scores(predictor, X, len(target))
        found = self._values(scores, target, clusters, n_validation, self.shares)
        if groups is not None:
            assert self.group_shares is not None
            inside = np.full((2, len(target)), np.nan)
            for code in np.unique(groups[groups >= 0]):
                rows = np.flatnonzero(groups == code)
                count = int(np.searchsorted(rows, n_validation))
                inside[:, rows] = self._values(
                    scores[rows], target[rows], clusters[rows], count, self.group_shares[code]
                )
            found = np.vstack([found, inside])
        return (found if n_validation == len(target) else found[::2]).reshape(-1)

    def _values(
        self, scores: Floats, target: Array, clusters: Integers, n_validation: int, shares: Floats
    ) -> Floats:
        """Return the values of all rows for pairs of different clusters, and for all pairs."""
        found = np.zeros((2, len(target)))
        for number in np.flatnonzero(self.weights):
            positive = np.asarray(target == self.labels[number])
            found += self.weights[number] * self._of_class(
                scores[:, number], positive, clusters, n_validation, float(shares[number])
            )
        return found

    def _of_class(
        self,
        score: Floats,
        positive: NDArray[np.bool_],
        clusters: Integers,
        n_validation: int,
        share: float,
    ) -> Floats:
        """Return the values of one class against all others."""
        found = np.zeros((2, len(score)))
        for side, chance in ((positive, share), (~positive, 1 - share)):
            against = ~side[:n_validation]
            wrong = _wrong_shares(score, side, against, clusters, rising=side is positive)
            found[:, side] = np.array(wrong) / chance
        return found

    def _predict(self, predictor: Predictor, X: Any) -> tuple[str, Floats]:
        """Return the first kind of prediction that the model has, and the predictions."""
        kinds = self.kinds
        if predictor.classes is not None and len(predictor.classes) < len(self.labels):
            # a class that is missing from training has no decision values, but the probability 0
            kinds = ("probability", "decision")
        reasons = []
        for kind in kinds:
            try:
                return kind, np.asarray(predictor.predict(kind, X), dtype=float)
            except PredictionError as error:
                reasons.append(str(error))
        raise PredictionError(
            f"scoring={self.score!r} ranks rows by probabilities or decision values, and the model gives neither. "
            "Use a score of predicted labels, such as scoring='balanced_accuracy' or 'f1'. In detail: "
            + " ".join(reasons)
        )

    def scores(self, predictor: Predictor, X: Any, count: int) -> Floats:
        """Return a score for each class of the table: probabilities or decision values."""
        kind, given = self._predict(predictor, X)
        classes = predictor.classes
        if classes is None:
            raise PredictionError(
                f"scoring={self.score!r} needs to know the class of each column, but the model has no "
                "classes_."
            )
        if given.ndim == 1 and len(classes) == 2:
            given = np.column_stack([-given, given])
        if given.shape != (count, len(classes)) or not np.isfinite(given).all():
            raise ModelError(
                f"scoring={self.score!r} received a {kind} of shape {given.shape} for {count} rows and "
                f"{len(classes)} classes, or values that are not finite."
            )
        if kind == "decision" and len(classes) < len(self.labels):
            raise ModelError("a class is missing from training, so it has no decision values.")
        scores = np.zeros((count, len(self.labels)))
        for column, label in zip(given.T, classes, strict=True):
            scores[:, np.flatnonzero(self.labels == label)] = column[:, None]
        return scores


def _wrong_shares(
    score: Floats,
    side: NDArray[np.bool_],
    against: NDArray[np.bool_],
    clusters: Integers,
    *,
    rising: bool,
) -> tuple[Floats, Floats]:
    """Return the share of wrongly ranked pairs of each row of one side, ties counting one half.

    First with rows of other clusters only, then with all. `rising` says whether the rows of the side
    should have the larger scores.
    """
    rank = np.unique(score if rising else -score, return_inverse=True)[1].reshape(-1)
    base = int(rank.max()) + 2
    rank = rank + 1
    compared = np.flatnonzero(against)
    by_rank = np.sort(rank[compared])
    by_cluster = np.sort(clusters[compared] * base + rank[compared])
    own, key = rank[side], clusters[side] * base

    def wrong(at: Any, sorted_: Any) -> Any:
        """Count those with a larger rank, and half of those with the same."""
        return (
            len(sorted_)
            - (np.searchsorted(sorted_, at, "left") + np.searchsorted(sorted_, at, "right")) / 2
        )

    total, number = wrong(own, by_rank), len(by_rank)
    last = len(by_cluster) - np.searchsorted(by_cluster, key + base, "left")
    inside = wrong(key + own, by_cluster) - last
    mates = np.searchsorted(by_cluster, key + base, "left") - np.searchsorted(
        by_cluster, key, "left"
    )
    with np.errstate(invalid="ignore", divide="ignore"):
        return (total - inside) / (number - mates), total / np.float64(number)


@dataclass(frozen=True, kw_only=True)
class PrecisionLoss(PairLoss):
    """Reports for each row how far it moves the average precision of rows of the same refit.

    With t_j rows of at least the score of positive row j, of which a_j are positive, the average
    precision is the mean of P_j = a_j/t_j over positive rows. A row adds its own P, if it is positive, and
    lowers or raises the P_j of all positive rows with no larger score. For these, rows of other clusters only
    are counted. Values for all pairs are the influence function, whose mean is the score.
    """

    def _of_class(
        self,
        score: Floats,
        positive: NDArray[np.bool_],
        clusters: Integers,
        n_validation: int,
        share: float,
    ) -> Floats:
        """Return the values of one class against all others."""
        hits = np.flatnonzero(positive[:n_validation])
        if not len(hits):
            return np.full((2, len(score)), np.nan)
        rank = np.unique(score, return_inverse=True)[1].reshape(-1) + 1
        counted = _Counted.of(rank, clusters, np.arange(n_validation), np.ones(n_validation))
        right = _Counted.of(rank, clusters, hits, np.ones(len(hits)))
        above, true = counted.total_above(rank), right.total_above(rank)
        t, a = above[hits], true[hits]
        first = np.arange(len(score)) < n_validation

        def moved(below: Floats, *, others: bool) -> Floats:
            """Return how far a row moves the precisions at or below it, as a multiple of 1/n."""
            up = _Counted.of(rank, clusters, hits, (t - a) / below)
            down = _Counted.of(rank, clusters, hits, a / below)
            at = np.where(
                positive,
                up.below(rank, clusters, others=others),
                -down.below(rank, clusters, others=others),
            )
            number = len(hits) - (right.of_cluster(clusters) if others else 0)
            with np.errstate(invalid="ignore", divide="ignore"):
                return np.asarray(n_validation * at / number)

        # a row that is among those it is compared with is already counted in t
        own = np.where(
            first,
            moved(t * np.maximum(t - 1, 1), others=True),
            moved(t * (t + 1), others=True),
        )
        apart = 1 + above - counted.cluster_above(rank, clusters)
        precision = (1 + true - right.cluster_above(rank, clusters)) / apart
        own += np.where(positive, precision / share, 0.0)
        level = float(np.mean(a / t))
        everyone = level + moved(t**2, others=False)
        with np.errstate(invalid="ignore", divide="ignore"):
            precision = (true / above - level) / (len(hits) / n_validation)
        everyone[positive] += precision[positive]
        return np.vstack([-own, 1 - everyone])


@dataclass(frozen=True, eq=False)
class _Counted:
    """Sums of weights of some rows by rank, over all of them and by cluster."""

    ranks: Integers  # sorted
    sums: Floats  # of the weights of the first so many
    keys: Integers  # cluster and rank, sorted
    key_sums: Floats
    base: int

    @classmethod
    def of(cls, rank: Integers, clusters: Integers, chosen: Integers, weights: Floats) -> Self:
        base = int(rank.max()) + 2
        order = np.argsort(rank[chosen], kind="stable")
        keys = clusters[chosen].astype(np.int64) * base + rank[chosen]
        by_key = np.argsort(keys, kind="stable")
        return cls(
            ranks=rank[chosen][order],
            sums=np.concatenate([[0.0], np.cumsum(weights[order])]),
            keys=keys[by_key],
            key_sums=np.concatenate([[0.0], np.cumsum(weights[by_key])]),
            base=base,
        )

    def total_above(self, rank: Integers) -> Floats:
        """Return the sum at or above each rank."""
        return np.asarray(self.sums[-1] - self.sums[np.searchsorted(self.ranks, rank, "left")])

    def cluster_above(self, rank: Integers, clusters: Integers) -> Floats:
        """Return the same within each row's cluster."""
        start = clusters.astype(np.int64) * self.base
        last = np.searchsorted(self.keys, start + self.base, "left")
        return np.asarray(
            self.key_sums[last] - self.key_sums[np.searchsorted(self.keys, start + rank, "left")]
        )

    def of_cluster(self, clusters: Integers) -> Floats:
        """Return the sum of each row's cluster."""
        return self.cluster_above(np.zeros(len(clusters), dtype=np.intp), clusters)

    def below(self, rank: Integers, clusters: Integers, *, others: bool) -> Floats:
        """Return the sum at or below each rank; `others` leaves out the row's cluster."""
        found = self.sums[np.searchsorted(self.ranks, rank, "right")]
        if others:
            found = found - self.of_cluster(clusters) + self.cluster_above(rank + 1, clusters)
        return np.asarray(found)
