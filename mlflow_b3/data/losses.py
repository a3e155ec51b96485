"""Losses per row, and the kind of prediction that each needs."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import special

from mlflow_b3.errors import InputError, ModelError, PredictionError, choose
from mlflow_b3.results import LOSS_WORDS, PINBALL, pinball_level

Array = NDArray[Any]
SMALLEST_PROBABILITY = 1e-15
#: Up to here, floating-point numbers represent every whole number.
LARGEST_WHOLE = 2.0**53


class Predictor(Protocol):
    """A trained model with one or more kinds of prediction.

    Attributes
    ----------
    classes : numpy.ndarray or None
        The labels, in the order of the columns of `probability` and `decision`.
    """

    classes: Array | None

    def predict(self, kind: str, X: Any) -> Array:
        """Return predictions of kind `label`, `value`, `probability` or `decision`."""


@dataclass(frozen=True, kw_only=True)
class Loss:
    """A loss per row.

    Attributes
    ----------
    name : str
    kind : {"label", "value", "probability", "decision"}
        The kind of prediction that it needs.
    bound : float or None
        Its largest possible value, M; None if it is unbounded.
    per_row : callable
        `(target, prediction, classes) → losses`, one per row.
    floor : float or None
        Its smallest possible value; None for a custom loss.
    """

    name: str
    kind: str
    bound: float | None
    per_row: Callable[[Array, Array, Array | None], Array]
    floor: float | None = 0.0

    def evaluate(self, predictor: Predictor, X: Any, target: Array) -> NDArray[np.float64]:
        """Return the loss of each row. Raise a `ModelError` if one is not finite."""
        prediction = np.asarray(predictor.predict(self.kind, X))
        if self.kind in ("label", "value") and prediction.shape == (len(target), 1):
            prediction = prediction[:, 0]  # some regressors return a column
        self._check(prediction, predictor.classes, len(target))
        missing = int(pd.isna(prediction).sum())  # as labels they would count as wrong
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
        """Raise an error for predictions of the wrong shape, which NumPy might broadcast."""
        allowed: tuple[int, ...] = (n_rows,)
        if self.kind in ("probability", "decision"):
            if classes is None:
                raise PredictionError(
                    f"loss {self.name!r} needs to know the class of each column, but the model has "
                    "no classes_."
                )
            if self.kind == "probability" or len(classes) > 2:
                allowed = (n_rows, len(classes))
        if prediction.shape != allowed:
            raise ModelError(
                f"loss {self.name!r} received a {self.kind} of shape {prediction.shape} for "
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
    unseen = 1.0 - truth.sum(axis=1)  # a class unknown to the model: all its mass is wrong
    return np.asarray((((probability - truth) ** 2).sum(axis=1) + unseen) / 2.0)


def _hinge(target: Array, decision: Array, classes: Array | None) -> Array:
    assert classes is not None
    truth = _one_hot(target, classes)
    if decision.ndim == 1:
        margin = np.where(truth[:, -1] > 0, decision, -decision)
        margin = np.where(truth.sum(axis=1) > 0, margin, -np.abs(decision))  # unknown class: wrong
        return np.asarray(np.maximum(0.0, 1.0 - margin))
    own = np.where(truth.sum(axis=1) > 0, (decision * truth).sum(axis=1), decision.min(axis=1))
    rival = np.where(truth > 0, -np.inf, decision).max(axis=1)
    return np.asarray(np.maximum(0.0, 1.0 - (own - rival)))


def _squared(target: Array, value: Array, classes: Array | None) -> Array:  # noqa: ARG001
    return np.asarray((np.asarray(target, float) - np.asarray(value, float)) ** 2)


def _absolute(target: Array, value: Array, classes: Array | None) -> Array:  # noqa: ARG001
    return np.asarray(np.abs(np.asarray(target, float) - np.asarray(value, float)))


def _poisson(target: Array, value: Array, classes: Array | None) -> Array:  # noqa: ARG001
    y, mean = np.asarray(target, float), np.asarray(value, float)
    if not (mean > 0).all():
        raise ModelError(
            f"the Poisson deviance needs positive predictions; {int((mean <= 0).sum())} of {len(mean)} "
            "are not. Use a model with a log link, or loss='squared'."
        )
    return np.asarray(2 * (special.xlogy(y, y / mean) - y + mean))


class _Pinball:
    """The loss of a predicted quantile. A class can be sent to workers."""

    def __init__(self, level: float) -> None:
        self.level = level

    def __call__(self, target: Array, value: Array, classes: Array | None) -> Array:
        del classes
        error = np.asarray(target, float) - np.asarray(value, float)
        return np.asarray(np.where(error > 0, self.level, self.level - 1) * error)


#: Named losses. Another one also needs its name in words (`results.py`), a place in the option `loss`
#: (`options.py`) and, below, its best constant prediction. `log` clips probabilities at 1e-15. `brier` is half the
#: squared distance to the one-hot target, which for two classes is the usual (p - y)². `hinge`
#: for more than two classes is that of Crammer and Singer. `poisson` is the mean Poisson deviance. The loss of
#: a predicted quantile, such as `pinball_0.9`, has its level in its name.
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
    "poisson": Loss(name="poisson", kind="value", bound=None, per_row=_poisson),
}


def _pinball(name: Any) -> Loss | None:
    """Return the loss with a name such as `pinball_0.9`; None for any other."""
    level = pinball_level(name) if isinstance(name, str) else None
    if level is None:
        return None
    return Loss(name=f"{PINBALL}{level:g}", kind="value", bound=None, per_row=_Pinball(level))


class _OwnLoss:
    """A custom loss `(target, prediction) → losses`. A class can be sent to workers."""

    def __init__(self, function: Callable[[Array, Array], Array]) -> None:
        self.function = function

    def __call__(self, target: Array, prediction: Array, classes: Array | None) -> Array:
        del classes
        return self.function(target, prediction)


def resolve_loss(loss: str | Callable[[Array, Array], Array] | None, task: str) -> Loss:
    """Return the loss for a name, a callable or None.

    Parameters
    ----------
    loss : str, callable or None
        None means `zero_one` for classification and `squared` for regression. A callable
        `(target, prediction) → losses` receives predicted labels or values.
    task : {"classification", "regression"}
    """
    known = CLASSIFICATION if task == "classification" else REGRESSION
    if loss is None:
        return next(iter(known.values()))
    if callable(loss):
        name = getattr(loss, "__name__", type(loss).__name__)
        if name in LOSS_WORDS:  # such as a function that is called accuracy
            name = f"own {name}"
        kind = "label" if task == "classification" else "value"
        return Loss(name=name, kind=kind, bound=None, per_row=_OwnLoss(loss), floor=None)
    found = named_loss(loss)
    if found is not None:
        if (loss in CLASSIFICATION) != (task == "classification"):
            raise InputError(
                f"loss={loss!r} does not fit a {task} model; use one of {list(known)}."
            )
        return found
    if isinstance(loss, str) and loss.startswith(PINBALL.rstrip("_")):
        raise InputError(
            f"loss={loss!r} needs the level of the quantile, between 0 and 1, such as 'pinball_0.9'."
        )
    return known[choose("loss", loss, known)]


def named_loss(loss: Any) -> Loss | None:
    """Return the loss with this name, for either task; None for anything else."""
    known = {**CLASSIFICATION, **REGRESSION}
    return (known.get(loss) or _pinball(loss)) if isinstance(loss, str) else None


def check_target(loss: Loss, target: Array) -> None:
    """Refuse a target for which the loss is not defined."""
    if loss is not REGRESSION["poisson"]:
        return
    values = np.asarray(target, dtype=float)
    if values.min() < 0 or values.max() <= 0:
        found = f"the smallest is {values.min():g}" if values.min() < 0 else "all are 0"
        raise InputError(
            f"loss='poisson' needs targets of at least 0, not all of them 0; {found}. Use loss='squared' or "
            "loss='absolute'."
        )


def infer_task(loss: Any, target: "pd.Series[Any]") -> str:
    """Infer the task of a model from the loss or, failing that, from the target.

    Strings, booleans and two distinct values are classes; fractional numbers are values. More than
    two whole numbers could be either, so the user has to name a loss.
    """
    if isinstance(loss, str) and loss in CLASSIFICATION:
        return "classification"
    if named_loss(loss) is not None:
        return "regression"
    if not pd.api.types.is_numeric_dtype(target) or target.nunique() == 2:
        return "classification"
    if are_fractional(target.dropna().to_numpy()):
        return "regression"
    raise InputError(
        f"target {target.name!r} has {target.nunique()} whole numbers, which could be classes or "
        f"values, and the model does not say which. Give loss= one of {list(CLASSIFICATION)} for classes, "
        f"or one of {list(REGRESSION)} for values."
    )


def are_fractional(numbers: Array) -> bool:
    """Return whether any number is fractional, or too large to be exact, and so no class."""
    if numbers.dtype.kind != "f":
        return numbers.dtype.kind == "c"
    return bool(((numbers != np.round(numbers)) | (np.abs(numbers) > LARGEST_WHOLE)).any())


def constant_loss(loss: Loss, target: Array, task: str) -> float | None:
    """Return the loss of the best constant prediction, which a model must beat.

    The constant is the most frequent label, the class shares, the mean, the median or another
    quantile, depending on the loss. None if the best constant is not known, as for a custom loss.
    """
    if isinstance(loss.per_row, _OwnLoss):
        return None
    if task == "regression":
        level = pinball_level(loss.name)
        if level is None:
            centre = np.median(target) if loss.name == "absolute" else np.mean(target)
        else:
            centre = np.quantile(target, level)
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

    Each row is predicted by the end of the range at which it loses more. None for losses other
    than `squared`, `absolute` and those of quantiles. That of `poisson` has no limit near 0.
    """
    if loss.kind != "value" or loss.name == "poisson" or isinstance(loss.per_row, _OwnLoss):
        return None
    values = np.asarray(target, dtype=float)
    ends = [
        loss.per_row(values, np.full(len(values), end), None)
        for end in (values.min(), values.max())
    ]
    return float(np.mean(np.maximum(*ends)))
