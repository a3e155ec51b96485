"""Scores that are no mean over rows, by scikit-learn's names, and what each row adds to them.

A score is a function φ of the law of (target, prediction) on held-out rows. Around the score by the
cluster ids it is linearised: ψ_i = φ + φ'(row i) is what row i adds, so that the mean of ψ is the score,
and the difference of ψ between two refits is, to first order, how far the change of row i's prediction
moves it (von Mises; for pairs of rows, Hájek's projection). Everything that holds for mean losses then
holds for ψ. So that less is always better, scores of which more is better are used as 1 - score here,
and turned back in reports.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mlflow_b3.data.losses import CLASSIFICATION, REGRESSION, Array, Loss, Predictor
from mlflow_b3.errors import InputError, ModelError, PredictionError, closest
from mlflow_b3.results import loss_words

Floats = NDArray[np.float64]
Integers = NDArray[np.integer[Any]]
#: A class, or what is predicted as it, must be spread over at least this many clusters: (Σn)²/Σn² for n
#: rows of each cluster.
FEWEST_EFFECTIVE = 10.0


@dataclass(frozen=True, kw_only=True, eq=False)
class Whole:
    """What refits on unchanged folds reported.

    Attributes
    ----------
    rows : array of int
        Rows of the table. A row is there once for each refit that scored it.
    values : array
        What was reported for each of them.
    extra : array
        More values for the same rows, if the score has any; otherwise empty.
    target, clusters : array
        Of the whole table.
    """

    rows: Integers
    values: Floats
    extra: Floats
    target: Array
    clusters: Integers


@dataclass(frozen=True, kw_only=True, eq=False)
class ScoreParts:
    """What rows add to a score, in the neighbourhood of what was measured on unchanged folds.

    Attributes
    ----------
    level : float
        The score, as a loss.
    of : callable
        `(rows, values) → ψ`; NaN where a value is.
    shared : float
        Share of a change between two refits of which all rows change that is a row's own. It is one
        half for pairs of rows: a pair would count twice.
    """

    level: float
    of: Callable[[Integers, Floats], Floats]
    shared: float = 1.0


@dataclass(frozen=True, kw_only=True)
class Score(ABC):
    """A score by its name.

    Attributes
    ----------
    name : str
        In reports. Scores of which less is better have no `neg_` before it.
    task : {"classification", "regression"}
    greater : bool
        Whether more is better.
    bound : float or None
        The largest possible value of 1 - score; None if there is none.
    """

    name: str
    task: str
    greater: bool = True
    bound: float | None = 1.0

    @abstractmethod
    def loss(self, target: Array) -> Loss:
        """Return what refits report for each row of a table with this target."""

    @abstractmethod
    def parts(self, whole: Whole) -> ScoreParts:
        """Return what each row adds to the score; refuse what makes the score meaningless."""

    @abstractmethod
    def constant(self, target: Array) -> float | None:
        """Return the score of the best constant prediction, as a loss."""

    @abstractmethod
    def check(self, target: Array, clusters: Integers) -> None:
        """Refuse a table for which the score is not defined, or too uncertain to be of use."""

    def constant_score(self, target: Array) -> float | None:
        """Return the score of the best constant prediction, in its own units."""
        found = self.constant(target)
        return found if found is None or not self.greater else 1 - found

    @property
    def words(self) -> str:
        """The score in a sentence."""
        return loss_words(self.name)


# --- A mean over rows


@dataclass(frozen=True, kw_only=True)
class Accuracy(Score):
    """The share of rows with the right label."""

    def check(self, target: Array, clusters: Integers) -> None:
        """Refuse nothing."""

    def loss(self, target: Array) -> Loss:  # noqa: ARG002
        """Return the label error."""
        return CLASSIFICATION["zero_one"]

    def parts(self, whole: Whole) -> ScoreParts:
        """Return the label errors themselves."""
        return ScoreParts(level=float(whole.values.mean()), of=lambda _, values: values)

    def constant(self, target: Array) -> float:
        """Return the share of all but the most frequent class."""
        return float(1 - np.unique(target, return_counts=True)[1].max() / len(target))


# --- Functions of the confusion matrix

Matrix = NDArray[Any]


def _per_class(name: str, C: Matrix) -> Matrix:
    hit, true, predicted = np.diagonal(C), C.sum(axis=1), C.sum(axis=0)[: len(C)]
    below = {
        "precision": predicted,
        "recall": true,
        "f1": (true + predicted) / 2,
        "jaccard": true + predicted - hit,
    }[name]
    return np.asarray(hit / below)


def _matthews(C: Matrix) -> Any:
    true, predicted = C.sum(axis=1), C.sum(axis=0)
    common = len(C)
    total = C.sum()
    covered = (true * predicted[:common]).sum()
    spread = (total**2 - (true**2).sum()) * (total**2 - (predicted**2).sum())
    return (np.trace(C[:, :common]) * total - covered) / np.sqrt(spread)


@dataclass(frozen=True, kw_only=True)
class LabelScore(Score):
    """A function of the shares of rows by true and predicted label.

    Attributes
    ----------
    of_class : {"precision", "recall", "f1", "jaccard", "matthews"}
    average : {"binary", "macro", "weighted"}
        For two classes, the score is that of the second one in sorted order.
    """

    of_class: str
    average: str

    def evaluate(self, C: Matrix) -> Any:
        """Return the score for shares of rows by true class (first axis) and predicted label."""
        if self.of_class == "matthews":
            return _matthews(C)
        scores = _per_class(self.of_class, C)
        if self.average == "binary":
            return scores[1]
        weights = C.sum(axis=1) if self.average == "weighted" else np.full(len(C), 1 / len(C))
        return (weights * scores).sum() / weights.sum()

    def loss(self, target: Array) -> Loss:
        """Return the number of the predicted label among the sorted classes."""
        labels = _LabelNumbers(np.unique(target))
        return Loss(name="labels", kind="label", bound=None, per_row=labels)

    def check(self, target: Array, clusters: Integers) -> None:
        """Refuse more than two classes where one must be the positive one, and rare classes."""
        classes = np.unique(target)
        _require_classes(self.name, len(classes), binary=self.average == "binary")
        for number, label in enumerate(classes):
            if self.average != "binary" or number == 1:
                _require_spread(self.name, f"the class {_shown(label)}", target == label, clusters)

    def parts(self, whole: Whole) -> ScoreParts:
        """Return φ plus its gradient at the measured shares, by complex steps."""
        classes, true = np.unique(whole.target, return_inverse=True)
        predicted = whole.values.astype(np.intp)
        shares = np.zeros((len(classes), len(classes) + 1))
        np.add.at(shares, (true[whole.rows], predicted), 1 / len(predicted))
        if self.of_class in ("precision", "f1", "jaccard", "matthews"):
            for number, label in enumerate(classes):
                if self.average != "binary" or number == 1:
                    what = f"the prediction {_shown(label)}"
                    owners = whole.clusters[whole.rows]
                    _require_spread(self.name, what, predicted == number, owners)
        with np.errstate(invalid="ignore", divide="ignore"):
            level = 1 - float(self.evaluate(shares))
            gradient = np.zeros_like(shares)
            for place in np.ndindex(*shares.shape):
                moved = shares.astype(complex)
                moved[place] += 1e-20j
                gradient[place] = -np.imag(self.evaluate(moved)) / 1e-20
        if not (np.isfinite(level) and np.isfinite(gradient).all()):
            raise InputError(
                f"scoring={self.name!r} is not defined here: some class is never predicted. Use "
                "scoring='roc_auc' or loss='brier', which need no threshold."
            )
        gradient += level - (shares * gradient).sum()
        return ScoreParts(level=level, of=lambda rows, v: gradient[true[rows], v.astype(np.intp)])

    def constant(self, target: Array) -> float | None:
        """Return 1 - score of the best label for all rows; None for recall, which a constant has at 1."""
        if self.of_class == "recall" and self.average == "binary":
            return None
        if self.of_class == "matthews":
            return 1.0
        counts = np.unique(target, return_counts=True)[1]
        found = []
        for number in range(len(counts)):
            C = np.zeros((len(counts), len(counts) + 1))
            C[:, number] = counts / counts.sum()
            with np.errstate(invalid="ignore", divide="ignore"):
                scores = np.nan_to_num(_per_class(self.of_class, C))
            weights = counts / counts.sum() if self.average == "weighted" else 1 / len(counts)
            found.append(scores[1] if self.average == "binary" else float((weights * scores).sum()))
        return 1 - float(max(found))


class _LabelNumbers:
    """The number of each predicted label among the classes of a table; one more for any other."""

    def __init__(self, classes: Array) -> None:
        self.classes = classes

    def __call__(self, target: Array, label: Array, classes: Array | None) -> Array:
        del target, classes
        found = np.full(len(label), len(self.classes), dtype=float)
        for number, own in enumerate(self.classes):
            found[np.asarray(label) == own] = number
        return found


# --- Functions of the mean squared error


@dataclass(frozen=True, kw_only=True)
class SquareScore(Score):
    """R² or the root of the mean squared error."""

    @property
    def explained(self) -> bool:
        """Whether it is R²."""
        return self.greater

    def loss(self, target: Array) -> Loss:  # noqa: ARG002
        """Return squared errors."""
        return REGRESSION["squared"]

    def check(self, target: Array, clusters: Integers) -> None:  # noqa: ARG002
        """Refuse R² of a constant target."""
        if self.explained and not np.var(np.asarray(target, dtype=float)) > 0:
            raise InputError(
                "scoring='r2' is not defined: all targets are equal. Give loss='squared'."
            )

    def parts(self, whole: Whole) -> ScoreParts:
        """Return the gradient of the root, or of the ratio to the variance of the target."""
        squared = float(whole.values.mean())
        if not self.explained:
            root = float(np.sqrt(squared))
            slope = 1 / (2 * root) if root > 0 else 0.0
            return ScoreParts(level=root, of=lambda _, v: root + slope * (v - squared))
        target = np.asarray(whole.target, dtype=float)
        used = target[whole.rows]
        variance = float(used.var())
        level = squared / variance
        # the variance of the target is that of these clusters: others would have another
        offset = level * (1 - (target - used.mean()) ** 2 / variance)
        return ScoreParts(level=level, of=lambda rows, v: v / variance + offset[rows])

    def constant(self, target: Array) -> float:
        """Return the score of the mean of the target."""
        return 1.0 if self.explained else float(np.std(np.asarray(target, dtype=float)))


# --- Pairs of rows: the area under the ROC curve


@dataclass(frozen=True, kw_only=True)
class PairLoss(Loss):
    """Reports for each row how many rows of other classes it is ranked against wrongly.

    Pairs are of one refit, because scores of different models are not comparable, and of different
    clusters: a cluster has one dose, so pairs within it would say something else.

    Attributes
    ----------
    labels : array
        The classes of the table.
    shares : array
        Their shares of the rows.
    weights : array
        The weight of the curve of each class against all others.
    """

    labels: Array
    shares: Floats
    weights: Floats

    def evaluate_pairs(
        self, predictor: Predictor, X: Any, target: Array, clusters: Integers, n_validation: int
    ) -> Floats:
        """Return the value of each row, compared with the first `n_validation` rows.

        If there are no others, values for pairs of all clusters follow. NaN where there is no pair.
        """
        scores = self._scores(predictor, X, len(target))
        own, everyone = np.zeros(len(target)), np.zeros(len(target))
        for number in np.flatnonzero(self.weights):
            positive = np.asarray(target == self.labels[number])
            share = self.shares[number]
            for side, chance in ((positive, share), (~positive, 1 - share)):
                against = ~side[:n_validation]
                others, all_pairs = _wrong_shares(
                    scores[:, number], side, against, clusters, rising=side is positive
                )
                own[side] += self.weights[number] / chance * others
                everyone[side] += self.weights[number] / chance * all_pairs
        return own if n_validation < len(target) else np.concatenate([own, everyone])

    def _scores(self, predictor: Predictor, X: Any, count: int) -> Floats:
        """Return a score for each class of the table: probabilities, or else decision values."""
        try:
            given = np.asarray(predictor.predict("probability", X), dtype=float)
            kind = "probability"
        except PredictionError:
            given = np.asarray(predictor.predict("decision", X), dtype=float)
            kind = "decision"
        classes = predictor.classes
        if classes is None:
            raise PredictionError(
                f"scoring={self.name!r} needs to know the class of each column, but the model has no "
                "classes_."
            )
        if given.ndim == 1 and len(classes) == 2:
            given = np.column_stack([-given, given])
        if given.shape != (count, len(classes)) or not np.isfinite(given).all():
            raise ModelError(
                f"scoring={self.name!r} received a {kind} of shape {given.shape} for {count} rows and "
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
class RankScore(Score):
    """The area under the ROC curve: of two classes, or of each class against all others, averaged.

    Attributes
    ----------
    average : {"binary", "macro", "weighted"}
    """

    average: str

    def loss(self, target: Array) -> Loss:
        """Return the shares of wrongly ranked pairs."""
        labels, counts = np.unique(target, return_counts=True)
        shares = counts / counts.sum()
        weights = np.full(len(labels), 1 / len(labels))
        if self.average == "binary":
            weights = np.array([0.0, 1.0])
        elif self.average == "weighted":
            weights = shares
        return PairLoss(
            name=f"pairs of {self.name}",
            kind="probability",
            bound=None,
            per_row=_no_rows,
            labels=labels,
            shares=shares,
            weights=weights,
        )

    def check(self, target: Array, clusters: Integers) -> None:
        """Refuse more than two classes without an average, and rare classes."""
        classes = np.unique(target)
        _require_classes(self.name, len(classes), binary=self.average == "binary")
        for label in classes:
            _require_spread(self.name, f"the class {_shown(label)}", target == label, clusters)

    def parts(self, whole: Whole) -> ScoreParts:
        """Return each row's pairs, less the mean of its class, plus the area over all pairs."""
        if not np.isfinite(whole.values).all():
            raise InputError(
                f"scoring={self.name!r} is not defined: a fold has no two rows of different classes and "
                "clusters. Use fewer folds, or folds with several clusters and all classes in each."
            )
        classes, true = np.unique(whole.target, return_inverse=True)
        shares = np.bincount(true) / len(true)
        seen = true[whole.rows]
        counts = np.bincount(seen, minlength=len(classes))
        means = np.bincount(seen, whole.values, minlength=len(classes)) / counts
        everyone = np.bincount(seen, whole.extra, minlength=len(classes)) / counts
        # every pair is counted from both sides
        level = float(shares @ everyone) / 2
        scale = shares / (counts / counts.sum())
        return ScoreParts(
            level=level,
            of=lambda rows, v: level + scale[true[rows]] * (v - means[true[rows]]),
            shared=0.5,
        )

    def constant(self, target: Array) -> float:  # noqa: ARG002
        """Return one half."""
        return 0.5


def _no_rows(*_: Any) -> Array:
    raise AssertionError("pairs of rows are compared, not single rows")


# --- Refusals


def effective_clusters(chosen: NDArray[np.bool_], clusters: Integers) -> float:
    """Return (Σn)²/Σn² over the numbers n of chosen rows of each cluster."""
    counts = np.bincount(clusters[chosen]).astype(float)
    return float(counts.sum() ** 2 / max(float((counts**2).sum()), 1.0))


def _shown(label: Any) -> str:
    return repr(label.item() if isinstance(label, np.generic) else label)


def _require_spread(name: str, what: str, chosen: NDArray[np.bool_], clusters: Integers) -> None:
    number = effective_clusters(chosen, clusters)
    if number < FEWEST_EFFECTIVE:
        raise InputError(
            f"scoring={name!r} would rest on too few clusters: {what} is spread over {number:.1f} "
            f"(effective number), and at least {FEWEST_EFFECTIVE:g} are needed. Use loss='brier' or "
            "scoring='accuracy', which do not depend on single classes."
        )


def _require_classes(name: str, count: int, *, binary: bool) -> None:
    if count < 2:
        raise InputError(f"scoring={name!r} needs two classes; the target has {count}.")
    if binary and count > 2:
        others = "'roc_auc_ovr' or 'roc_auc_ovr_weighted'"
        if name != "roc_auc":
            others = f"'{name}_macro' or '{name}_weighted'"
        raise InputError(
            f"scoring={name!r} is for two classes; the target has {count}. Use {others}."
        )


# --- Names

#: Scores that are the negative of a mean loss. Reports show the loss, without the minus.
LOSS_OF_SCORE = {
    "neg_log_loss": "log",
    "neg_brier_score": "brier",
    "neg_mean_squared_error": "squared",
    "neg_mean_absolute_error": "absolute",
}
_CLASSES, _NUMBERS = "classification", "regression"


def _label_scores() -> dict[str, Score]:
    found: dict[str, Score] = {}
    for of_class in ("precision", "recall", "f1", "jaccard"):
        for average in ("binary", "macro", "weighted"):
            name = of_class if average == "binary" else f"{of_class}_{average}"
            found[name] = LabelScore(name=name, task=_CLASSES, of_class=of_class, average=average)
    return found


#: Scores by scikit-learn's names.
SCORES: dict[str, Score] = {
    "accuracy": Accuracy(name="accuracy", task=_CLASSES),
    "balanced_accuracy": LabelScore(
        name="balanced_accuracy", task=_CLASSES, of_class="recall", average="macro"
    ),
    "roc_auc": RankScore(name="roc_auc", task=_CLASSES, average="binary"),
    "roc_auc_ovr": RankScore(name="roc_auc_ovr", task=_CLASSES, average="macro"),
    "roc_auc_ovr_weighted": RankScore(
        name="roc_auc_ovr_weighted", task=_CLASSES, average="weighted"
    ),
    **_label_scores(),
    "matthews_corrcoef": LabelScore(
        name="matthews_corrcoef", task=_CLASSES, of_class="matthews", average="macro", bound=2.0
    ),
    "r2": SquareScore(name="r2", task=_NUMBERS, bound=None),
    "neg_root_mean_squared_error": SquareScore(
        name="root_mean_squared_error", task=_NUMBERS, bound=None, greater=False
    ),
}
#: Why other scores of scikit-learn's are refused, and what to use.
REFUSED = {
    "average_precision": "how it changes with a row's mates is known only roughly. Use 'roc_auc'",
    "neg_median_absolute_error": "a median is no smooth function of means. Use "
    "'neg_mean_absolute_error'",
    "roc_auc_ovo": "pairs of classes are not implemented. Use 'roc_auc_ovr'",
    "roc_auc_ovo_weighted": "pairs of classes are not implemented. Use 'roc_auc_ovr_weighted'",
    "max_error": "the largest error of a sample says little about new clusters. Use "
    "'neg_root_mean_squared_error'",
    "explained_variance": "use 'r2', which also counts a bias",
}


def score_names() -> tuple[str, ...]:
    """Return all names that `scoring` accepts."""
    return (*SCORES, *LOSS_OF_SCORE)


def named_score(name: str) -> Score | None:
    """Return the score that a report calls so; None for a loss."""
    return next((score for score in SCORES.values() if score.name == name), None)


def is_mean(name: str) -> bool:
    """Whether the score or loss that a report calls so is a mean over rows, in each fold as in all."""
    return isinstance(named_score(name), Accuracy | None)


def is_greater_better(name: str) -> bool:
    """Whether more is better for the score or loss that a report calls so."""
    score = named_score(name)
    return score is not None and score.greater


def resolve_scoring(scoring: Any) -> "str | Score":
    """Return the score of a name or of a scorer of scikit-learn's; or the name of the loss it negates.

    Parameters
    ----------
    scoring : str or scorer
    """
    name = scoring if isinstance(scoring, str) else _name_of_scorer(scoring)
    if name in LOSS_OF_SCORE:
        return LOSS_OF_SCORE[name]
    if name in SCORES:
        return SCORES[name]
    if name in REFUSED:
        raise InputError(f"scoring={name!r} cannot be audited: {REFUSED[name]}.")
    if name is not None:
        hint = closest(name, score_names())
        raise InputError(
            f"scoring={name!r} is not known; use one of {', '.join(map(repr, score_names()))}.{hint}"
        )
    raise InputError(
        f"scoring={scoring!r} cannot be audited: give the name of one of scikit-learn's scores, such as "
        "'roc_auc'. For a measure of your own that is a mean over rows, give loss= a function (target, "
        "prediction) → losses of the rows."
    )


def _name_of_scorer(scorer: Any) -> str | None:
    """Return the name of a scorer that is like one of scikit-learn's named ones."""
    function = getattr(scorer, "_score_func", None)
    if function is None:
        return None
    from sklearn.metrics import get_scorer

    for name in (*score_names(), *REFUSED):
        try:
            known = get_scorer(name)
        except ValueError:  # an older scikit-learn
            continue
        if _signature(known) == _signature(scorer):
            return name
    return None


def _signature(scorer: Any) -> tuple[Any, ...]:
    options = {k: v for k, v in scorer._kwargs.items() if (k, v) != ("average", "binary")}
    return scorer._score_func, scorer._sign, options
