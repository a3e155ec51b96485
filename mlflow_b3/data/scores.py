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
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mlflow_b3.data.losses import CLASSIFICATION, REGRESSION, Array, Loss
from mlflow_b3.data.pairs import PairLoss, PrecisionLoss, shares_of
from mlflow_b3.errors import InputError, closest
from mlflow_b3.results import OF_CLASS, OWN_LOSS, OWN_SCORE, PINBALL, loss_words

Floats = NDArray[np.float64]
Integers = NDArray[np.integer[Any]]
#: A class, or what is predicted as it, must be spread over at least this many clusters: (Σn)²/Σn² for n
#: rows of each cluster.
FEWEST_EFFECTIVE = 10.0
#: Scorers of values of the user's are for tables of up to this many rows, and compared with that many.
MOST_OWN_ROWS, MOST_COMPARED = 5_000, 1_000
#: On how many random halves such scorers are checked, and how far the slope may be from 1.
HALVES, MOST_BENT = 20, 0.3
#: The task of scorers of the user's: that of the model.
ANY_TASK = "any"
#: Shares of rows on either side of the median whose errors show how dense errors are there.
AROUND_MEDIAN = 0.15


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
    members : array of bool or None
        The rows of the table that belong to the scored group; None for all.
    """

    rows: Integers
    values: Floats
    extra: Floats
    target: Array
    clusters: Integers
    members: NDArray[np.bool_] | None = None


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
    approximate : bool
        Whether what rows add says only roughly how far the score moves. Reports say so.
    """

    name: str
    task: str
    greater: bool = True
    bound: float | None = 1.0
    approximate: bool = False

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

    def of_task(self, task: str) -> "Score":  # noqa: ARG002
        """Return the score for the task of a model."""
        return self

    def positive(self, target: Array) -> Any:  # noqa: ARG002
        """Return the class that the score is about; None if it treats classes alike."""
        return None

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
    chosen : object
        The class that a binary score is about; None for 1 or, if that is none, the second in sorted order.
    """

    of_class: str
    average: str
    chosen: Any = None

    def evaluate(self, C: Matrix, place: int = 1) -> Any:
        """Return the score for shares of rows by true class (first axis) and predicted label."""
        if self.of_class == "matthews":
            return _matthews(C)
        scores = _per_class(self.of_class, C)
        if self.average == "binary":
            return scores[place]
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
        place = _place(self.name, self.chosen, classes)
        for number, label in enumerate(classes):
            if self.average != "binary" or number == place:
                _require_spread(self.name, f"the class {_shown(label)}", target == label, clusters)

    def positive(self, target: Array) -> Any:
        """Return the class that counts, if it is only one and the user did not choose it."""
        if self.average != "binary" or self.chosen is not None:
            return None
        classes = np.unique(target)
        return classes[_place(self.name, None, classes)]

    def parts(self, whole: Whole) -> ScoreParts:
        """Return φ plus its gradient at the measured shares, by complex steps."""
        classes, true = np.unique(whole.target, return_inverse=True)
        own = _place(self.name, self.chosen, classes)
        predicted = whole.values.astype(np.intp)
        shares = np.zeros((len(classes), len(classes) + 1))
        np.add.at(shares, (true[whole.rows], predicted), 1 / len(predicted))
        # a class that is hardly ever predicted has a recall of 0 in every cluster, and intervals without width
        for number, label in enumerate(classes):
            if self.average != "binary" or number == own:
                _require_predicted(self.name, label, predicted == number, whole)
        with np.errstate(invalid="ignore", divide="ignore"):
            level = 1 - float(self.evaluate(shares, own))
            gradient = np.zeros_like(shares)
            for place in np.ndindex(*shares.shape):
                moved = shares.astype(complex)
                moved[place] += 1e-20j
                gradient[place] = -np.imag(self.evaluate(moved, own)) / 1e-20
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
        classes, counts = np.unique(target, return_counts=True)
        place = _place(self.name, self.chosen, classes)
        found = []
        for number in range(len(counts)):
            C = np.zeros((len(counts), len(counts) + 1))
            C[:, number] = counts / counts.sum()
            with np.errstate(invalid="ignore", divide="ignore"):
                scores = np.nan_to_num(_per_class(self.of_class, C))
            weights = counts / counts.sum() if self.average == "weighted" else 1 / len(counts)
            found.append(
                scores[place] if self.average == "binary" else float((weights * scores).sum())
            )
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


# --- The median of absolute errors


@dataclass(frozen=True, kw_only=True)
class MedianScore(Score):
    """The median of absolute errors.

    A row moves a median by whether its error is larger, over the density of errors there. The density
    is the slope of the quantiles around the median.
    """

    approximate: bool = True

    def loss(self, target: Array) -> Loss:  # noqa: ARG002
        """Return absolute errors."""
        return REGRESSION["absolute"]

    def check(self, target: Array, clusters: Integers) -> None:
        """Refuse nothing."""

    def parts(self, whole: Whole) -> ScoreParts:
        """Return the influence function of the median."""
        median = float(np.median(whole.values))
        low, high = np.quantile(whole.values, [0.5 - AROUND_MEDIAN, 0.5 + AROUND_MEDIAN])
        per_share = float(high - low) / (2 * AROUND_MEDIAN)
        above = float((whole.values > median).mean())

        def of(rows: Integers, values: Floats) -> Floats:
            del rows
            return np.asarray(median + per_share * ((values > median) - above))

        return ScoreParts(level=median, of=of)

    def constant(self, target: Array) -> float:
        """Return the score of the median of the target."""
        values = np.asarray(target, dtype=float)
        return float(np.median(np.abs(values - np.median(values))))


# --- Pairs of rows: the area under the ROC curve, and the average precision


@dataclass(frozen=True, kw_only=True)
class RankScore(Score):
    """The area under the ROC curve: of two classes, or of each class against all others, averaged.

    Attributes
    ----------
    average : {"binary", "macro", "weighted"}
    decision_first : bool
        Whether rows are ranked by decision values, if the model has any, as by scikit-learn's scorer.
    chosen : object
        The class that a binary score is about; None for 1 or, if that is none, the second in sorted order.
    """

    average: str
    decision_first: bool = False
    chosen: Any = None

    def loss(self, target: Array) -> Loss:
        """Return the shares of wrongly ranked pairs."""
        return self._loss(PairLoss, target)

    def _loss(self, kind: type[PairLoss], target: Array) -> PairLoss:
        labels = np.unique(target)
        shares = shares_of(target, labels)
        weights = np.full(len(labels), 1 / len(labels))
        if self.average == "binary":
            weights = np.zeros(len(labels))
            weights[_place(self.name, self.chosen, labels)] = 1.0
        elif self.average == "weighted":
            weights = shares
        return kind(
            name=f"pairs of {self.name}",
            score=self.name,
            kind="probability",
            bound=None,
            per_row=_no_rows,
            labels=labels,
            shares=shares,
            weights=weights,
            kinds=("decision", "probability")
            if self.decision_first
            else ("probability", "decision"),
        )

    def check(self, target: Array, clusters: Integers) -> None:
        """Refuse more than two classes without an average, and rare classes."""
        classes = np.unique(target)
        _require_classes(self.name, len(classes), binary=self.average == "binary")
        for label in classes:
            _require_spread(self.name, f"the class {_shown(label)}", target == label, clusters)

    def parts(self, whole: Whole) -> ScoreParts:
        """Return each row's pairs, less the mean of its class, plus the area over all pairs."""
        self._require_pairs(whole)
        classes, true = np.unique(whole.target, return_inverse=True)
        members = slice(None) if whole.members is None else whole.members
        shares = shares_of(whole.target[members], classes)
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

    def _require_pairs(self, whole: Whole) -> None:
        if not (np.isfinite(whole.values).all() and np.isfinite(whole.extra).all()):
            raise InputError(
                f"scoring={self.name!r} is not defined: in some fold, a row has no row of another class and "
                "cluster to be compared with. Use fewer folds, or folds with several clusters of each class."
            )

    def constant(self, target: Array) -> float:  # noqa: ARG002
        """Return one half."""
        return 0.5


@dataclass(frozen=True, kw_only=True)
class AveragePrecision(RankScore):
    """The average precision; for more than two classes, the mean over one class against all others.

    Near the top of a ranking single rows move the precision far, and not in proportion, so what rows add
    is only an approximation.
    """

    approximate: bool = True

    def loss(self, target: Array) -> Loss:
        """Return how far rows move the average precision."""
        average = "binary" if len(np.unique(target)) == 2 else self.average
        return replace(self, average=average)._loss(PrecisionLoss, target)

    def positive(self, target: Array) -> Any:
        """Return the class that counts, if it is one of two and the user did not choose it."""
        labels = np.unique(target)
        if len(labels) != 2 or self.chosen is not None:
            return None
        return labels[_place(self.name, None, labels)]

    def parts(self, whole: Whole) -> ScoreParts:
        """Return each row's pairs, with the means of the influence function in each class."""
        self._require_pairs(whole)
        classes, true = np.unique(whole.target, return_inverse=True)
        seen = true[whole.rows]
        counts = np.maximum(np.bincount(seen, minlength=len(classes)), 1)
        offset = np.bincount(seen, whole.extra - whole.values, minlength=len(classes)) / counts
        level = float(whole.extra.mean())
        return ScoreParts(level=level, of=lambda rows, v: v + offset[true[rows]])

    def constant(self, target: Array) -> float:
        """Return the share of the other rows."""
        labels = np.unique(target)
        shares, place = shares_of(target, labels), _place(self.name, self.chosen, labels)
        return float(1 - (shares[place] if len(shares) == 2 else shares.mean()))


def _no_rows(*_: Any) -> Array:
    raise AssertionError("pairs of rows are compared, not single rows")


# --- Scorers of the user's


class _Metric:
    """A function `(target, prediction) → number` with its options. A class can be sent to workers."""

    def __init__(self, function: Callable[..., Any], options: dict[str, Any]) -> None:
        self.function, self.options = function, options

    def __call__(self, target: Array, prediction: Array) -> float:
        """Return the number for some rows; refuse what is not a finite number."""
        try:
            found = float(self.function(target, prediction, **self.options))
        except (TypeError, ValueError) as error:
            raise InputError(f"scoring={self.name!r} failed: {error}") from error
        if not np.isfinite(found):
            raise InputError(f"scoring={self.name!r} is not defined here: it is {found}.")
        return found

    @property
    def name(self) -> str:
        """The name of the function with its options."""
        name = getattr(self.function, "__name__", type(self.function).__name__)
        options = ", ".join(f"{key}={value}" for key, value in sorted(self.options.items()))
        return f"{name}({options})" if options else str(name)


@dataclass(frozen=True, kw_only=True)
class OwnScore(Score):
    """A scorer of the user's: a function of targets and predicted labels or values, pooled over folds.

    What a row adds is how far one more such row moves the score, times the number of rows.

    Attributes
    ----------
    metric : callable or None
        `(target, prediction) → number`; None in recorded reports.
    """

    task: str = ANY_TASK
    bound: float | None = None
    approximate: bool = True
    metric: _Metric | None = None

    def of_task(self, task: str) -> "OwnScore":
        """Return the score for classification or regression."""
        return replace(self, task=task)

    def loss(self, target: Array) -> Loss:
        """Return predictions: numbers of labels, or values."""
        if self.task == "regression":
            return Loss(name="values", kind="value", bound=None, per_row=_values)
        labels = _LabelNumbers(np.unique(target))
        return Loss(name="labels", kind="label", bound=None, per_row=labels)

    def check(self, target: Array, clusters: Integers) -> None:
        """Refuse rare classes, and more values than can be tried out one by one."""
        if self.task == "classification":
            for label in np.unique(target):
                _require_spread(self.name, f"the class {_shown(label)}", target == label, clusters)
        elif len(target) > MOST_OWN_ROWS:
            raise InputError(
                f"scoring={self.name!r} is computed once for every row and refit, which is for up to "
                f"{MOST_OWN_ROWS} rows; the table has {len(target)}. Give loss= a function (target, "
                "prediction) → losses of the rows, or a score by scikit-learn's name."
            )

    def parts(self, whole: Whole) -> ScoreParts:
        """Return how far one more row of each kind moves the score."""
        if self.task == "regression":
            return self._of_values(whole)
        return self._of_labels(whole)

    def constant(self, target: Array) -> None:
        """Return None: the best constant prediction is not known."""

    def _measure(self, target: Array, prediction: Array) -> float:
        """Return the score as a loss."""
        assert self.metric is not None
        found = self.metric(target, prediction)
        if (found > 1) if self.greater else (found < 0):
            raise InputError(
                f"scoring={self.name!r} is {found:.4g}, but "
                + ("scores must be at most 1" if self.greater else "losses must be at least 0")
                + ". Scale or shift it, or give greater_is_better to make_scorer as it is meant."
            )
        return 1 - found if self.greater else found

    def _of_labels(self, whole: Whole) -> ScoreParts:
        classes, true = np.unique(whole.target, return_inverse=True)
        predicted = np.minimum(whole.values.astype(np.intp), len(classes) - 1)
        given = classes[true[whole.rows]], classes[predicted]
        for number, label in enumerate(classes):
            _require_predicted(self.name, label, predicted == number, whole)
        level, count = self._measure(*given), len(predicted)
        added = np.zeros((len(classes), len(classes) + 1))
        shares = np.zeros_like(added)
        np.add.at(shares, (true[whole.rows], predicted), 1 / count)
        for k, label in np.ndindex(len(classes), len(classes)):
            more = [np.append(a, classes[[n]]) for a, n in zip(given, (k, label), strict=True)]
            added[k, label] = (count + 1) * (self._measure(*more) - level)
        added[:, -1] = added[:, :-1].max(axis=1)  # a label that the table does not have
        added += level - (shares * added).sum()
        return ScoreParts(level=level, of=lambda rows, v: added[true[rows], v.astype(np.intp)])

    def _of_values(self, whole: Whole) -> ScoreParts:
        target = np.asarray(whole.target, dtype=float)
        level = self._measure(target[whole.rows], whole.values)
        count = min(len(whole.rows), MOST_COMPARED)
        some = np.linspace(0, len(whole.rows) - 1, count).astype(np.intp)
        y, p = target[whole.rows[some]], whole.values[some]
        base = self._measure(y, p)
        more = np.append(y, 0.0), np.append(p, 0.0)

        def added(rows: Integers, values: Floats) -> Floats:
            found = np.full(len(rows), np.nan)
            for place, (row, value) in enumerate(zip(rows, values, strict=True)):
                if np.isfinite(value):
                    more[0][-1], more[1][-1] = target[row], value
                    found[place] = (count + 1) * (self._measure(*more) - base)
            return found

        own = added(whole.rows[some], p)
        self._require_smooth(own, y, p, base)
        offset = level - float(own.mean())
        return ScoreParts(level=level, of=lambda rows, v: offset + added(rows, v))

    def _require_smooth(self, own: Floats, y: Floats, p: Floats, base: float) -> None:
        """Refuse a score whose values on random halves of the rows do not follow from what rows add."""
        rng = np.random.default_rng(0)
        halves = [rng.permutation(len(y))[: len(y) // 2] for _ in range(HALVES)]
        actual = np.array([self._measure(y[half], p[half]) - base for half in halves])
        told = np.array([own[half].mean() - own.mean() for half in halves])
        spread = float(told @ told)
        slope = float(told @ actual) / spread if spread > 0 else (0.0 if actual.any() else 1.0)
        if abs(slope - 1) > MOST_BENT:
            raise InputError(
                f"scoring={self.name!r} cannot be audited: what single rows add to it does not say how it "
                "changes, as for a median or a maximum. Use a score by scikit-learn's name, such as "
                "'neg_mean_absolute_error', or give loss= a function (target, prediction) → losses."
            )


def _values(target: Array, value: Array, classes: Array | None) -> Array:  # noqa: ARG001
    return np.asarray(value, dtype=float)


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


def _require_predicted(name: str, label: Any, chosen: NDArray[np.bool_], whole: Whole) -> None:
    _require_spread(name, f"the prediction {_shown(label)}", chosen, whole.clusters[whole.rows])


def _place(name: str, chosen: Any, classes: Array) -> int:
    """Return the number of the class that a binary score is about: that of 1, or else the second one."""
    found = [
        k for k, label in enumerate(classes.tolist()) if label == (1 if chosen is None else chosen)
    ]
    if chosen is None:
        return found[0] if found else 1
    if len(found) != 1 or len(classes) != 2:
        raise InputError(
            f"scoring={name!r} needs a target of two classes, of which pos_label is one; it has "
            f"{', '.join(_shown(label) for label in classes[:5])}."
        )
    return found[0]


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
    "neg_mean_poisson_deviance": "poisson",
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
    "roc_auc": RankScore(name="roc_auc", task=_CLASSES, average="binary", decision_first=True),
    "roc_auc_ovr": RankScore(name="roc_auc_ovr", task=_CLASSES, average="macro"),
    "roc_auc_ovr_weighted": RankScore(
        name="roc_auc_ovr_weighted", task=_CLASSES, average="weighted"
    ),
    "average_precision": AveragePrecision(
        name="average_precision", task=_CLASSES, average="macro", decision_first=True
    ),
    **_label_scores(),
    "matthews_corrcoef": LabelScore(
        name="matthews_corrcoef", task=_CLASSES, of_class="matthews", average="macro", bound=2.0
    ),
    "r2": SquareScore(name="r2", task=_NUMBERS, bound=None),
    "neg_root_mean_squared_error": SquareScore(
        name="root_mean_squared_error", task=_NUMBERS, bound=None, greater=False
    ),
    "neg_median_absolute_error": MedianScore(
        name="median_absolute_error", task=_NUMBERS, bound=None, greater=False
    ),
}
#: Why other scores of scikit-learn's are refused, and what to use.
REFUSED = {
    **{
        f"{name}_micro": "for one label per row it is the accuracy. Use 'accuracy'"
        for name in ("precision", "recall", "f1")
    },
    "roc_auc_ovo": "pairs of classes are not implemented. Use 'roc_auc_ovr'",
    "roc_auc_ovo_weighted": "pairs of classes are not implemented. Use 'roc_auc_ovr_weighted'",
    "max_error": "the largest error of a sample says little about new clusters. Use "
    "'neg_root_mean_squared_error'",
    "explained_variance": "use 'r2', which also counts a bias",
}


#: What scores are often called.
ALSO_CALLED = {
    **dict.fromkeys(("auc", "auroc", "rocauc"), "roc_auc"),
    **dict.fromkeys(("ap", "auprc", "pr_auc", "prauc"), "average_precision"),
    **dict.fromkeys(("mcc", "matthews"), "matthews_corrcoef"),
    **dict.fromkeys(("acc", "error", "zero_one"), "accuracy"),
    **dict.fromkeys(("logloss", "cross_entropy", "log"), "neg_log_loss"),
    **dict.fromkeys(("mse", "squared"), "neg_mean_squared_error"),
    **dict.fromkeys(("mae", "absolute"), "neg_mean_absolute_error"),
    **dict.fromkeys(("rmse", "root_mean_squared_error"), "neg_root_mean_squared_error"),
    "brier": "neg_brier_score",
    "r_squared": "r2",
    "sensitivity": "recall",
    "poisson": "neg_mean_poisson_deviance",
}


def _hint(name: str) -> str:
    """Return a "Did you mean" sentence for a name that is not known, or an empty string."""
    plain = name.strip().lower().replace("-", "_").replace(" ", "_").replace("^", "")
    short = plain.removeprefix("neg_").removesuffix("_score")
    for guess in (plain, short, f"neg_{short}", f"neg_{short}_score"):
        guess = ALSO_CALLED.get(guess, guess)
        if guess in score_names():
            return f" Did you mean {guess!r}?"
    return closest(plain, score_names())


def score_names() -> tuple[str, ...]:
    """Return all names that `scoring` accepts."""
    return (*SCORES, *LOSS_OF_SCORE)


def named_score(name: str) -> Score | None:
    """Return the score that a report calls so; None for a loss."""
    if name.startswith((OWN_SCORE, OWN_LOSS)):
        return OwnScore(name=name, greater=name.startswith(OWN_SCORE))
    base = name.partition(OF_CLASS)[0]
    found = next((score for score in SCORES.values() if score.name == base), None)
    return found if found is None or base == name else replace(found, name=name)


def is_mean(name: str) -> bool:
    """Whether the score or loss that a report calls so is a mean over rows, in each fold as in all."""
    return isinstance(named_score(name), Accuracy | None)


def is_approximate(name: str) -> bool:
    """Whether e0 of the score that a report calls so is only approximate."""
    score = named_score(name)
    return score is not None and score.approximate


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
        return _of_chosen_class(SCORES[name], getattr(scoring, "_kwargs", {}).get("pos_label"))
    if name in REFUSED:
        raise InputError(f"scoring={name!r} cannot be audited: {REFUSED[name]}.")
    if name is not None:
        raise InputError(
            f"scoring={name!r} is not known; use one of {', '.join(map(repr, score_names()))}.{_hint(name)}"
        )
    if hasattr(scoring, "_score_func"):
        return _own_score(scoring)
    raise InputError(
        f"scoring={scoring!r} cannot be audited: give the name of one of scikit-learn's scores, such as "
        "'roc_auc', or sklearn.metrics.make_scorer(function, greater_is_better=...) of a function (target, "
        "prediction) → number. For a measure that is a mean over rows, give loss= a function (target, "
        "prediction) → losses of the rows."
    )


def _of_chosen_class(score: Score, label: Any) -> Score:
    """Return the score with the positive class that a scorer has; 1 is that of all of them."""
    if label is None or label == 1 or not isinstance(score, LabelScore | AveragePrecision):
        return score
    return replace(score, name=f"{score.name}{OF_CLASS}{_shown(label)}", chosen=label)


def loss_or_score(loss: Any, scoring: Any) -> tuple[Any, Score | None]:
    """Return the loss that `loss` or `scoring` gives, or the score in its place; refuse both."""
    if scoring is None:
        return loss, None
    if loss is not None:
        raise InputError(
            f"scoring={scoring!r} and loss={loss!r} both say how the model is scored; give one of them."
        )
    found = resolve_scoring(scoring)
    return (found, None) if isinstance(found, str) else (None, found)


def _own_score(scorer: Any) -> "str | Score":
    """Return the score of a scorer that has no name of scikit-learn's, or the loss of a quantile."""
    from sklearn.metrics import mean_pinball_loss

    metric, greater = _Metric(scorer._score_func, scorer._kwargs), scorer._sign > 0
    if metric.function is mean_pinball_loss and set(metric.options) <= {"alpha"} and not greater:
        return f"{PINBALL}{metric.options.get('alpha', 0.5):g}"
    if scorer._response_method != "predict":
        raise InputError(
            f"scoring={metric.name!r} cannot be audited: scorers of your own are for predicted labels or "
            "values, not for probabilities or decision values. Use 'roc_auc', 'average_precision', "
            "'neg_brier_score' or 'neg_log_loss'."
        )
    name = f"{OWN_SCORE if greater else OWN_LOSS}{metric.name}"
    return OwnScore(name=name, greater=greater, metric=metric)


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
    options = {
        k: v
        for k, v in scorer._kwargs.items()
        if k != "pos_label" and (k, v) != ("average", "binary")
    }
    return scorer._score_func, scorer._sign, options
