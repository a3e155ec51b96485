"""Route `clone`: estimators with scikit-learn's interface, pipelines included."""

import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, clone, is_classifier, is_regressor

from mlflow_b3.data import ModelInputs
from mlflow_b3.errors import ModelError, PredictionError
from mlflow_b3.losses import CLASSIFICATION, Predictor
from mlflow_b3.refit.interface import ConstantPredictor

METHODS = {
    "label": "predict",
    "value": "predict",
    "probability": "predict_proba",
    "decision": "decision_function",
}


class CloneLearner:
    """Trains an unfitted copy of an estimator, with the same parameters, on other rows.

    Notes
    -----
    Every `random_state` among the parameters, nested ones included, is drawn anew from the seed of
    the refit: the audit is about the training procedure, not about one lucky seed. Every `n_jobs`
    is set to 1, because the audit itself runs the refits in parallel; it does not change results.
    """

    route = "clone"

    def __init__(self, estimator: BaseEstimator) -> None:
        self.task = _task(estimator)
        parameters = estimator.get_params(deep=True)
        self._seeds = tuple(name for name in parameters if _last(name) == "random_state")
        self.stochastic = bool(self._seeds)
        single = {
            name: 1 for name, value in parameters.items() if _last(name) == "n_jobs" and value
        }
        self._estimator = clone(estimator).set_params(**single)

    def fit(self, X: Any, target: NDArray[Any], seed: int | None) -> Predictor:
        """Train a copy on these rows."""
        if self.task == "classification" and (target == target[0]).all():
            return ConstantPredictor(target[0])
        estimator = clone(self._estimator)
        if seed is not None and self._seeds:
            rng = np.random.default_rng(seed)
            estimator.set_params(**{name: int(rng.integers(2**31)) for name in self._seeds})
        return ClonePredictor(estimator.fit(X, target))


def _task(estimator: Any) -> str:
    if isinstance(estimator, type):
        name = estimator.__name__
        raise ModelError(f"{name} is a class; give an instance of it, such as {name}().")
    try:
        with warnings.catch_warnings():
            # what scikit-learn 1.8 refuses, 1.7 only warns about
            warnings.simplefilter("error", DeprecationWarning)
            if is_classifier(estimator):
                return "classification"
            if is_regressor(estimator):
                return "regression"
    except (AttributeError, TypeError, DeprecationWarning) as error:
        raise ModelError(
            f"{type(estimator).__name__} has fit and get_params but is not a scikit-learn "
            f"estimator: {error}"
        ) from error
    raise ModelError(
        f"{type(estimator).__name__} is neither a classifier nor a regressor; only those have a "
        "loss on new rows that can be audited."
    )


def _last(name: str) -> str:
    return name.rsplit("__", 1)[-1]


class ClonePredictor:
    """A trained scikit-learn estimator."""

    def __init__(self, estimator: Any) -> None:
        self._estimator = estimator
        self.classes: NDArray[Any] | None = getattr(estimator, "classes_", None)

    def predict(self, kind: str, X: Any) -> NDArray[Any]:
        """Return predictions of one kind, or say which losses would work."""
        method = getattr(self._estimator, METHODS[kind], None)
        if method is None:
            possible = [
                name
                for name, loss in CLASSIFICATION.items()
                if hasattr(self._estimator, METHODS[loss.kind])
            ]
            raise PredictionError(
                f"{type(self._estimator).__name__} has no {METHODS[kind]}, which this loss needs; "
                f"losses that work with it: {possible}."
            )
        if kind == "decision" and self.classes is not None and len(self.classes) > 2:
            self._require_column_per_class()
        return np.asarray(method(X))

    def _require_column_per_class(self) -> None:
        for name, value in self._estimator.get_params(deep=True).items():
            if _last(name) == "decision_function_shape" and value == "ovo":
                raise PredictionError(
                    f"{name}='ovo' gives a decision value per pair of classes; this loss needs one "
                    "per class. Train the model with 'ovr'."
                )


def estimator_inputs(estimator: Any) -> ModelInputs:
    """Return the columns that a (fitted) estimator remembers from its training."""
    count = _remembered(estimator, "n_features_in_")
    names = _remembered(estimator, "feature_names_in_")
    if names is not None:
        return ModelInputs(columns=tuple(str(name) for name in names), count=len(names))
    if count is not None:
        return ModelInputs(count=int(count), as_array=True)
    return ModelInputs()


def _remembered(estimator: Any, attribute: str) -> Any:
    try:  # a pipeline asks its first step, which may not have the attribute
        return getattr(estimator, attribute, None)
    except (AttributeError, ValueError):
        return None
