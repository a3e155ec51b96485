"""Refits for corrected cross-validation: on the table's target, and on simulated ones."""

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mlflow_b3.correlated.draws import Draws
from mlflow_b3.errors import ModelError, PredictionError
from mlflow_b3.measurement.refitting import Refitter
from mlflow_b3.measurement.resampling import Draw, Task
from mlflow_b3.refit.interface import Rows

Array = NDArray[np.float64]
#: Log odds beyond these say no more than that a model is sure.
LARGEST_SCORE = 5.0


@dataclass(frozen=True, kw_only=True)
class CvcRefitter(Refitter):
    """Trains on whole folds; returns what the correction needs of the rows left out.

    Refits of the purpose "cv" return losses. Those of "grouped" return losses, and the scores of the
    rows in the place of losses held back. Those of "simulated" are trained on a simulated target, and
    return by how much each row's loss falls when its target goes from the lower class to the higher
    one, or from 0 to 1: L₂ = L(0, s) - L(1, s), all that the bias needs of a score.

    Attributes
    ----------
    classes : array or None
        The two classes, the higher one last; None for numbers.
    draws : Draws or None
        The simulated targets, by the number of the replicate.
    """

    classes: NDArray[Any] | None = None
    draws: Draws | None = field(default=None)

    def _fit_and_score(self, task: Task, draw: Draw) -> dict[str, Any]:
        rows = self._rows(task, draw.training)
        if task.purpose == "simulated":
            assert self.draws is not None
            target = self.draws.draw(task.replicate).target[draw.training]
            rows = replace(rows, target=self._labelled(target))
        one_class = self.classes is not None and bool((rows.target == rows.target[0]).all())
        predictor = (
            _Shares(rows, self.classes)
            if one_class and self.classes is not None
            else self.learner.fit(rows, self.resampler.fit_seed(task))
        )
        remembered = _Remembered(predictor)
        del rows, predictor  # others take the place of the training rows when it is scored
        X = self.data.take(draw.validation)
        scores = np.zeros(0)
        if task.purpose == "simulated":
            losses = self._fall(remembered, X, len(draw.validation))
        else:
            losses = self.loss.evaluate(remembered, X, self.data.target[draw.validation])
        if task.purpose == "grouped":
            scores = score_of(remembered, X, self.classes)
        return {"validation": losses, "held_back": scores, "one_class": one_class}

    def _labelled(self, target: Array) -> NDArray[Any]:
        return target if self.classes is None else self.classes[target.astype(np.intp)]

    def _fall(self, predictor: Any, X: Any, count: int) -> Array:
        low, high = (0.0, 1.0) if self.classes is None else self.classes
        kind = self.data.target.dtype if self.classes is not None else np.dtype(float)
        first = self.loss.evaluate(predictor, X, np.full(count, low, dtype=kind))
        return first - self.loss.evaluate(predictor, X, np.full(count, high, dtype=kind))


def score_of(predictor: Any, X: Any, classes: NDArray[Any] | None) -> Array:
    """Return one number per row that grows with what the model expects of its target.

    The prediction of a regressor; of a classifier the log odds of the higher class, else the decision
    value, else the label as -1 or 1. Whoever uses it recalibrates it.
    """
    if classes is None:
        return np.asarray(predictor.predict("value", X), dtype=float).reshape(-1)
    try:
        probability = np.asarray(predictor.predict("probability", X), dtype=float)
        column = np.flatnonzero(np.asarray(predictor.classes) == classes[1])
        share = probability[:, column[0]] if len(column) else np.zeros(len(probability))
        with np.errstate(divide="ignore"):
            odds = np.log(share) - np.log1p(-share)
        return _finite(np.clip(odds, -LARGEST_SCORE, LARGEST_SCORE))
    except PredictionError:
        pass
    try:
        decision = np.asarray(predictor.predict("decision", X), dtype=float).reshape(-1)
        return _finite(decision)
    except PredictionError:
        label = np.asarray(predictor.predict("label", X)).reshape(-1)
        return np.where(label == classes[1], 1.0, -1.0)


def _finite(scores: Array) -> Array:
    if not np.isfinite(scores).all():
        raise ModelError(f"{int((~np.isfinite(scores)).sum())} of {len(scores)} scores are NaN.")
    return scores


class _Remembered:
    """Asks a predictor once for each kind of prediction."""

    def __init__(self, predictor: Any) -> None:
        self._predictor = predictor
        self._known: dict[str, Any] = {}
        self.classes = predictor.classes

    def predict(self, kind: str, X: Any) -> Any:
        """Return the prediction for the rows that the first call of its kind was given."""
        if kind not in self._known:
            self._known[kind] = self._predictor.predict(kind, X)
        return self._known[kind]


class _Shares:
    """What rows of one class teach: log odds of (n₁ + ½) to (n₀ + ½), whatever the features are."""

    def __init__(self, rows: Rows, classes: NDArray[Any]) -> None:
        self.classes = classes
        ones = int((rows.target == classes[1]).sum())
        self._share = (ones + 0.5) / (len(rows.target) + 1)

    def predict(self, kind: str, X: Any) -> NDArray[Any]:
        """Return the same for every row."""
        if kind == "label":
            return np.repeat(self.classes[[int(self._share > 0.5)]], len(X))
        if kind == "probability":
            return np.tile([1 - self._share, self._share], (len(X), 1))
        return np.full(len(X), np.log(self._share / (1 - self._share)))
