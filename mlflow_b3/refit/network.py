"""What neural networks of every library share: tables in, output columns out as classes or values."""

from collections.abc import Callable
from typing import Any, Self

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.special import expit, log_softmax, softmax

from mlflow_b3.data import ModelInputs
from mlflow_b3.errors import InputError, ModelError
from mlflow_b3.losses import Predictor
from mlflow_b3.refit.interface import Learner
from mlflow_b3.refit.predictors import FunctionPredictor

Array = NDArray[Any]
Forward = Callable[[Any], Array]
ROUTES = ("fresh", "hot-start", "last-layer")
#: What the output columns of a network can be, and how each follows from a linear layer.
LINKS: dict[str, Callable[[Array], Array]] = {
    "logits": lambda linear: linear,
    "probabilities": lambda linear: expit(linear) if linear.shape[1] == 1 else softmax(linear, 1),
    "log-probabilities": lambda linear: log_softmax(linear, 1),
}
TOLERANCE = 1e-4
HOT_START = (
    "refits start from the logged weights, which have seen all rows, so the loss on new clusters is "
    "at least what is shown"
)
FRESH = (
    "refits draw their first weights anew; those of the logged network are not known, so that it is "
    "not reproduced bit for bit"
)


def probe_rows(width: int) -> NDArray[np.float32]:
    """Return rows of random numbers on which a network can be watched."""
    return np.random.default_rng(0).normal(size=(16, width)).astype(np.float32)


def find_link(outputs: Array, linear: Array) -> str | None:
    """Return how outputs follow from those of the last linear layer; None for no known way."""
    if linear.shape != outputs.shape:
        return None
    for name, link in LINKS.items():
        if np.allclose(link(linear.astype(float)), outputs, rtol=TOLERANCE, atol=TOLERANCE):
            return name
    return None


def seen_kind(outputs: Array) -> str:
    """Return what two or more columns of outputs are, as their rows show."""
    given = outputs.astype(float)
    if (given >= 0).all() and np.allclose(given.sum(axis=1), 1, atol=TOLERANCE):
        return "probabilities"
    if (given <= 0).all() and np.allclose(np.exp(given).sum(axis=1), 1, atol=TOLERANCE):
        return "log-probabilities"
    return "logits"


def as_matrix(X: Any, dtype: Any = np.float32) -> Array:
    """Return a table as the matrix of numbers that a network is given.

    Raises
    ------
    InputError
        For columns of words or with missing values, by name.
    """
    if isinstance(X, np.ndarray) and X.dtype == dtype:
        return np.require(X, requirements="W")
    frame = pd.DataFrame(X)
    words = [str(name) for name in frame.columns if not pd.api.types.is_numeric_dtype(frame[name])]
    if words:
        raise InputError(
            f"data: features {', '.join(map(repr, words))} are no numbers, which this network needs. "
            "Encode them as in its training."
        )
    gaps = [str(name) for name in frame.columns if frame[name].isna().any()]
    if gaps:
        raise InputError(
            f"data: features {', '.join(map(repr, gaps))} have missing values, of which a network "
            "makes more. Fill them as in its training, or drop the rows."
        )
    # pandas shares its values, and joblib its memory, as read-only, of which PyTorch warns
    return np.require(frame.to_numpy(dtype=dtype), requirements="W")


def as_columns(outputs: Array, n_rows: int) -> Array:
    """Return outputs with one row for each row, or say that they are not of that form."""
    if outputs.shape == (n_rows,):
        outputs = outputs[:, None]
    if outputs.ndim != 2 or len(outputs) != n_rows:
        raise ModelError(
            f"the network returns outputs of shape {outputs.shape} for {n_rows} rows; one row of "
            "numbers for each row is needed."
        )
    return outputs


def output_classes(target: Array, columns: int) -> tuple[Array, str | None]:
    """Return the class of each output column, and a note where it had to be worked out.

    One column is the second of two classes. Whole numbers from 0 are the numbers of columns; other
    classes, of which there must be as many as columns, stand for them in sorted order.
    """
    count = max(columns, 2)
    present = np.unique(target)
    if present.dtype.kind in "biuf" and np.isin(present, np.arange(count)).all():
        return np.arange(count).astype(present.dtype), None
    if len(present) != count:
        raise InputError(
            f"target: {len(present)} classes ({', '.join(map(str, present[:10]))}), but the network "
            f"tells {count} apart. Give classes as whole numbers from 0 to {count - 1}, or a table "
            "with all of them."
        )
    coded = ", ".join(f"{label} = {code}" for code, label in enumerate(present[:10]))
    return present, f"classes are taken to stand for output columns in sorted order: {coded}"


def as_predictor(
    forward: Forward, kind: str, classes: Array | None, name: str = "the network"
) -> Predictor:
    """Return a network as a predictor of classes or values.

    Parameters
    ----------
    forward : callable
        `X → outputs`, one or more columns.
    kind : {"values", "logits", "probabilities", "log-probabilities"}
        What the columns are.
    classes : array or None
        The class of each column, for all but values.
    """
    if kind == "values":
        return FunctionPredictor({"value": lambda X: forward(X)[:, 0]}, name=name)
    assert classes is not None
    if kind == "probabilities":
        return FunctionPredictor.from_probabilities(forward, classes, name=name)

    def decision(X: Any) -> Array:
        given = forward(X).astype(float)
        if given.shape[1] == 1:
            return given[:, 0]
        return np.asarray(given[:, 1] - given[:, 0]) if given.shape[1] == 2 else given

    return FunctionPredictor.from_probabilities(
        lambda X: LINKS["probabilities"](forward(X).astype(float)),
        classes,
        name=name,
        decision=decision,
    )


class NetworkLearner(Learner):
    """Trains a network with a recipe, from new weights or from the logged ones.

    Parameters
    ----------
    route : {"fresh", "hot-start"}
    kind : {"values", "logits", "probabilities", "log-probabilities"}
        What the output columns are.
    columns, width : int
        How many output columns and features there are.
    dtype : numpy dtype
        Of the matrix that the network is given.
    """

    stochastic = True
    weighted = True

    def __init__(
        self, route: str, *, kind: str, columns: int, width: int, dtype: Any = np.float32
    ) -> None:
        self.route = route
        self._kind, self._columns, self._dtype = kind, columns, dtype
        self.task = "regression" if kind == "values" else "classification"
        self.inputs = ModelInputs(count=width)
        self._classes: Array | None = None
        if route == "hot-start":
            self.strength = "lower-bound"

    def forward(self, X: Any) -> Array:
        """Return the outputs of the network as it was logged."""
        raise NotImplementedError

    def represent(self, X: Any, ids: Array) -> Array:  # noqa: ARG002
        """Return the features as a matrix, on which the logged network must give numbers."""
        matrix = as_matrix(X, self._dtype)
        if not np.isfinite(self.forward(matrix)).all():
            raise ModelError("the network's outputs for the table are not finite numbers.")
        return matrix

    def with_target(self, target: Array) -> Self:
        """Learn which class each output column is, which resamples may not show."""
        other = self.copied()
        if self._kind != "values":
            other._classes, note = output_classes(target, self._columns)
            other.notes = self.notes if note is None else (*self.notes, note)
        other.original = other._predictor(self.forward, target)
        return other

    def _coded(self, target: Array) -> tuple[Array | None, Array]:
        """Return the classes, and the column of each row's class; or the values."""
        if self._kind == "values":
            return None, np.asarray(target, dtype=self._dtype)
        classes = self._classes
        if classes is None:
            classes, _ = output_classes(target, self._columns)
        return classes, np.searchsorted(classes, target)

    def _predictor(self, forward: Forward, target: Array) -> Predictor:
        return as_predictor(
            lambda X: forward(as_matrix(X, self._dtype)), self._kind, self._coded(target)[0]
        )


def normalised(weight: NDArray[np.float64] | None) -> NDArray[np.float32] | None:
    """Return sample weights of mean one, so that they do not change the learning rate."""
    return None if weight is None else (weight / weight.mean()).astype(np.float32)
