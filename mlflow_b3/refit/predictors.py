"""Trained models of every kind, asked for labels, values, probabilities or decision values."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mlflow_b3.errors import PredictionError
from mlflow_b3.losses import CLASSIFICATION, REGRESSION

Array = NDArray[Any]
METHODS = {
    "label": "predict",
    "value": "predict",
    "probability": "predict_proba",
    "decision": "decision_function",
}


class MethodPredictor:
    """A trained model with scikit-learn's methods.

    Parameters
    ----------
    model : object
        With `predict`, and `predict_proba` or `decision_function` where it has them.
    classes : array, optional
        Its labels, where it has no `classes_`.
    codes : bool
        The model predicts positions in `classes` instead of the labels themselves.
    """

    def __init__(self, model: Any, classes: Array | None = None, *, codes: bool = False) -> None:
        self._model = model
        self._codes = codes
        self.classes: Array | None = (
            classes if classes is not None else getattr(model, "classes_", None)
        )

    def predict(self, kind: str, X: Any) -> Array:
        """Return predictions of one kind, or say which losses would work."""
        method = getattr(self._model, METHODS[kind], None)
        if method is None:
            kinds = [kind for kind, name in METHODS.items() if hasattr(self._model, name)]
            name = type(self._model).__name__
            raise cannot_give(f"{name} has no {METHODS[kind]}, which this loss needs", kinds)
        if kind == "decision" and self.classes is not None and len(self.classes) > 2:
            self._require_column_per_class()
        predicted = np.asarray(method(X))
        if kind == "label" and self._codes:
            assert self.classes is not None
            return np.asarray(self.classes[predicted.astype(int).reshape(len(predicted))])
        return predicted

    def _require_column_per_class(self) -> None:
        if not hasattr(self._model, "get_params"):
            return
        for name, value in self._model.get_params(deep=True).items():
            if name.rsplit("__", 1)[-1] == "decision_function_shape" and value == "ovo":
                raise PredictionError(
                    f"{name}='ovo' gives a decision value per pair of classes; this loss needs one "
                    "per class. Train the model with 'ovr'."
                )


class FunctionPredictor:
    """A trained model as one function per kind of prediction.

    Parameters
    ----------
    functions : mapping of str to callable
        `X → predictions`, by kind.
    classes : array or None
        The labels, in the order of the columns of probabilities.
    name : str
        What errors call the model.
    """

    def __init__(
        self,
        functions: Mapping[str, Callable[[Any], Array]],
        classes: Array | None = None,
        *,
        name: str = "the model",
    ) -> None:
        self._functions = dict(functions)
        self._name = name
        self.classes = classes

    @classmethod
    def from_probabilities(
        cls,
        function: Callable[[Any], Array],
        classes: Array,
        *,
        name: str = "the model",
        decision: Callable[[Any], Array] | None = None,
    ) -> "FunctionPredictor":
        """Take a function that gives the probability of each class, or of the second of two.

        The label is the most probable class; for two, the second from one half on.
        """

        def probability(X: Any) -> Array:
            given = np.asarray(function(X), dtype=float)
            if given.ndim == 2 and given.shape[1] == 1:
                given = given[:, 0]
            return np.column_stack([1 - given, given]) if given.ndim == 1 else given

        def label(X: Any) -> Array:
            given = probability(X)
            if given.shape[1] == 2:
                return np.asarray(classes[(given[:, 1] >= given[:, 0]).astype(int)])
            return np.asarray(classes[given.argmax(axis=1)])

        functions: dict[str, Callable[[Any], Array]] = {"label": label, "probability": probability}
        if decision is not None:
            functions["decision"] = decision
        return cls(functions, classes, name=name)

    def predict(self, kind: str, X: Any) -> Array:
        """Return predictions of one kind, or say which losses would work."""
        if kind not in self._functions:
            raise cannot_give(
                f"{self._name} gives no {kind}, which this loss needs", self._functions
            )
        return np.asarray(self._functions[kind](X))


def cannot_give(problem: str, kinds: Iterable[str]) -> PredictionError:
    """Return the error for a loss that needs a prediction the model does not have."""
    known = set(kinds)
    losses = CLASSIFICATION if known & {"label", "probability", "decision"} else REGRESSION
    possible = [name for name, loss in losses.items() if loss.kind in known]
    return PredictionError(f"{problem}; losses that work with it: {possible}.")


def as_codes(target: Array) -> tuple[Array, NDArray[np.intp]]:
    """Return the classes of some rows, sorted, and each row's position among them."""
    classes, codes = np.unique(target, return_inverse=True)
    return classes, codes.reshape(len(target))
