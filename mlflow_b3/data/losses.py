"""Losses per row, and which kind of prediction each of them needs."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from mlflow_b3.errors import InputError, ModelError, PredictionError, choose

Array = NDArray[Any]
SMALLEST_PROBABILITY = 1e-15
#: The largest number up to which floating-point numbers hold all whole ones.
LARGEST_WHOLE = 2.0**53


class Predictor(Protocol):
    """A trained model that can be asked for one or more kinds of prediction.

    Attributes
    ----------
    classes : numpy.ndarray or None
        The labels it can predict, in the order of the columns of `probability` and `decision`.
    """

    classes: Array | None

    def predict(self, kind: str, X: Any) -> Array:
        """Return the prediction of the kind `label`, `value`, `probability` or `decision`."""


@dataclass(frozen=True, kw_only=True)
class Loss:
    """A loss, applied row by row.

    Attributes
    ----------
    name : str
    kind : {"label", "value", "probability", "decision"}
        The kind of prediction that it compares the target with.
    bound : float or None
        The largest value it can take, M; None when there is none.
    per_row : callable
        `(target, prediction, classes) → losses`, one per row.
    floor : float or None
        The smallest value it can take; None for a user's own loss.
    """

    name: str
    kind: str
    bound: float | None
    per_row: Callable[[Array, Array, Array | None], Array]
    floor: float | None = 0.0

    def evaluate(self, predictor: Predictor, X: Any, target: Array) -> NDArray[np.float64]:
        """Return the loss of every row; a loss that is not finite is a `ModelError`."""
        prediction = np.asarray(predictor.predict(self.kind, X))
        if self.kind in ("label", "value") and prediction.shape == (len(target), 1):
            prediction = prediction[:, 0]  # some regressors return a column
        self._check(prediction, predictor.classes, len(target))
        missing = int(pd.isna(prediction).sum())  # as labels they would pass for wrong ones
        if missing:
            raise ModelError(
                f"the model predicted missing values (NaN):\n{missing} among {prediction.size}."
            )
        losses = np.asarray(self.per_row(target, prediction, predictor.classes), dtype=float)
        if losses.shape != (len(target),):
            raise ModelError(
                f"loss {self.name!r} returned shape {losses.shape} for {len(target)} rows; it "
                "must return one number per row."
            )
        if not np.isfinite(losses).all():
            raise ModelError(
                f"loss {self.name!r} is not finite in {int((~np.isfinite(losses)).sum())} of "
                f"{len(losses)} rows."
            )
        return losses

    def _check(self, prediction: Array, classes: Array | None, n_rows: int) -> None:
        """Refuse predictions that numpy would stretch to fit, or stumble over."""
        allowed: tuple[int, ...] = (n_rows,)
        if self.kind in ("probability", "decision"):
            if classes is None:
                raise PredictionError(
                    f"loss {self.name!r} needs to know which column stands for which class, but "
                    "the model has no classes_."
                )
            if self.kind == "probability" or len(classes) > 2:
                allowed = (n_rows, len(classes))
        if prediction.shape != allowed:
            raise ModelError(
                f"loss {self.name!r} was given a {self.kind} of shape {prediction.shape} for "
                f"{n_rows} rows"
                + ("" if classes is None else f" and {len(classes)} classes")
                + f"; it needs the shape {allowed}."
            )


def _one_hot(target: Array, classes: Array) -> NDArray[np.float64]:
    return np.asarray(np.equal.outer(target, classes), dtype=float)


def _zero_one(target: Array, label: Array, classes: Array | None) -> Array:  # noqa: ARG001
    return np.asarray(np.asarray(label) != np.asarray(target))


def _log(target: Array, probability: Array, classes: Array | None) -> Array:
    assert classes is not None
    given = (probability * _one_hot(target, classes)).sum(axis=1)
    return np.asarray(-np.log(np.clip(given, SMALLEST_PROBABILITY, 1.0)))


def _brier(target: Array, probability: Array, classes: Array | None) -> Array:
    assert classes is not None
    truth = _one_hot(target, classes)
    unseen = 1.0 - truth.sum(axis=1)  # a class the model never saw: all its mass is wrong
    return np.asarray((((probability - truth) ** 2).sum(axis=1) + unseen) / 2.0)


def _hinge(target: Array, decision: Array, classes: Array | None) -> Array:
    assert classes is not None
    truth = _one_hot(target, classes)
    if decision.ndim == 1:
        margin = np.where(truth[:, -1] > 0, decision, -decision)
        margin = np.where(truth.sum(axis=1) > 0, margin, -np.abs(decision))  # never seen: wrong
        return np.asarray(np.maximum(0.0, 1.0 - margin))
    own = np.where(truth.sum(axis=1) > 0, (decision * truth).sum(axis=1), decision.min(axis=1))
    rival = np.where(truth > 0, -np.inf, decision).max(axis=1)
    return np.asarray(np.maximum(0.0, 1.0 - (own - rival)))


def _squared(target: Array, value: Array, classes: Array | None) -> Array:  # noqa: ARG001
    return np.asarray((np.asarray(target, float) - np.asarray(value, float)) ** 2)


def _absolute(target: Array, value: Array, classes: Array | None) -> Array:  # noqa: ARG001
    return np.asarray(np.abs(np.asarray(target, float) - np.asarray(value, float)))


#: The losses with a name. `log` counts a probability of zero as 1e-15; `brier` is half the
#: squared distance to the one-hot target, which for two classes is the usual (p - y)²; `hinge`
#: for more than two classes is that of Crammer and Singer.
CLASSIFICATION = {
    "zero_one": Loss(name="zero_one", kind="label", bound=1.0, per_row=_zero_one),
    "log": Loss(
        name="log", kind="probability", bound=float(-np.log(SMALLEST_PROBABILITY)), per_row=_log
    ),
    "brier": Loss(name="brier", kind="probability", bound=1.0, per_row=_brier),
    "hinge": Loss(name="hinge", kind="decision", bound=None, per_row=_hinge),
}
REGRESSION = {
    "squared": Loss(name="squared", kind="value", bound=None, per_row=_squared),
    "absolute": Loss(name="absolute", kind="value", bound=None, per_row=_absolute),
}


class _OwnLoss:
    """A user's `(target, prediction) → losses`; a class so that it can travel to workers."""

    def __init__(self, function: Callable[[Array, Array], Array]) -> None:
        self.function = function

    def __call__(self, target: Array, prediction: Array, classes: Array | None) -> Array:
        del classes
        return self.function(target, prediction)


def resolve_loss(loss: str | Callable[[Array, Array], Array] | None, task: str) -> Loss:
    """Return the loss that a name, a callable or None stands for.

    Parameters
    ----------
    loss : str, callable or None
        None means `zero_one` for classification and `squared` for regression. A callable
        `(target, prediction) → losses` is given predicted labels or values.
    task : {"classification", "regression"}
    """
    known = CLASSIFICATION if task == "classification" else REGRESSION
    if loss is None:
        return next(iter(known.values()))
    if callable(loss):
        name = getattr(loss, "__name__", type(loss).__name__)
        kind = "label" if task == "classification" else "value"
        return Loss(name=name, kind=kind, bound=None, per_row=_OwnLoss(loss), floor=None)
    if isinstance(loss, str) and loss in {**CLASSIFICATION, **REGRESSION}:
        if loss not in known:
            raise InputError(
                f"loss={loss!r} does not fit a {task} model; use one of {list(known)}."
            )
        return known[loss]
    return known[choose("loss", loss, known)]


def named_loss(loss: Any) -> Loss | None:
    """Return the loss of a name, whatever the task; None for anything else."""
    known = {**CLASSIFICATION, **REGRESSION}
    return known.get(loss) if isinstance(loss, str) else None


def infer_task(loss: Any, target: "pd.Series[Any]") -> str:
    """Return the task of a model that does not say its own, from the loss or else the target.

    Words, truth values and two distinct values are classes, fractional numbers are values; with
    more whole numbers than two, which could be either, the user has to name a loss.
    """
    if isinstance(loss, str) and loss in CLASSIFICATION:
        return "classification"
    if isinstance(loss, str) and loss in REGRESSION:
        return "regression"
    if not pd.api.types.is_numeric_dtype(target) or target.nunique() == 2:
        return "classification"
    if are_fractional(target.dropna().to_numpy()):
        return "regression"
    raise InputError(
        f"target {target.name!r} has {target.nunique()} whole numbers, which could be classes or "
        f"values, and the model does not say. Give loss= one of {list(CLASSIFICATION)} for classes, "
        f"or one of {list(REGRESSION)} for values."
    )


def are_fractional(numbers: Array) -> bool:
    """Return whether some numbers cannot be classes: fractions, or beyond all whole numbers."""
    if numbers.dtype.kind != "f":
        return numbers.dtype.kind == "c"
    return bool(((numbers != np.round(numbers)) | (np.abs(numbers) > LARGEST_WHOLE)).any())


def constant_loss(loss: Loss, target: Array, task: str) -> float | None:
    """Return the loss of the best constant prediction, the least a model must beat.

    The most frequent label, the class shares, the mean or the median, as the loss asks; None for
    a loss whose best constant is not known, such as a user's own.
    """
    if isinstance(loss.per_row, _OwnLoss):
        return None
    if task == "regression":
        centre = np.median(target) if loss.name == "absolute" else np.mean(target)
        return float(np.mean(loss.per_row(target, np.full(len(target), centre), None)))
    classes, counts = np.unique(target, return_counts=True)
    if loss.kind == "label":
        guess = np.repeat(classes[[np.argmax(counts)]], len(target))
        return float(np.mean(loss.per_row(target, guess, classes)))
    if loss.kind == "probability":
        shares = np.tile(counts / counts.sum(), (len(target), 1))
        return float(np.mean(loss.per_row(target, shares, classes)))
    return None


def loss_ceiling(loss: Loss, target: Array) -> float | None:
    """Return the largest mean loss of predictions inside the range of a numeric target.

    Every row is predicted by the end of the range that is farther from it. None for losses other
    than `squared` and `absolute`, whose `bound` says what there is to say.
    """
    if loss.name not in REGRESSION or loss.per_row is not REGRESSION[loss.name].per_row:
        return None
    values = np.asarray(target, dtype=float)
    low, high = float(values.min()), float(values.max())
    farther = np.where(values - low > high - values, low, high)
    return float(np.mean(loss.per_row(values, farther, None)))
