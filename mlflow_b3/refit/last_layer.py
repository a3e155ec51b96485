"""Route `last-layer`: a network up to its last linear layer, which alone is trained again."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from mlflow_b3.data import ModelInputs
from mlflow_b3.errors import ModelError
from mlflow_b3.losses import Predictor
from mlflow_b3.refit.head import as_numbers, fit_head
from mlflow_b3.refit.interface import Learner, Rows
from mlflow_b3.refit.network import LINKS, as_matrix, as_predictor, output_classes

Array = NDArray[Any]
NOTE = (
    "only its last layer was trained again, as a linear model on the features before it. These keep "
    "what they learned from all rows, so the loss on new clusters is at least what is shown"
)


@dataclass(frozen=True, kw_only=True)
class Split:
    """A network cut before its last linear layer.

    Attributes
    ----------
    features : callable
        `matrix → inputs of the last layer`.
    weight, bias : numpy.ndarray
        Those of the last layer; a row of weights for each output column.
    link : str
        What makes of its outputs those of the network; one of `LINKS`.
    width : int
        How many features the network takes.
    dtype : numpy dtype
        Of the matrix that it takes.
    """

    features: Callable[[Array], Array]
    weight: Array
    bias: Array
    link: str
    width: int
    dtype: Any = np.float32

    def outputs(self, features: Array) -> Array:
        """Return the outputs of the logged network, from the features before its last layer."""
        return LINKS[self.link](features @ self.weight.T.astype(float) + self.bias)


class LastLayerLearner(Learner):
    """Refits the last layer of a network as a logistic or ridge regression.

    Parameters
    ----------
    split : Split
    name : str
        What the report calls the network.
    notes : tuple of str
        Why it is not trained from scratch.
    """

    route = "last-layer"
    strength = "lower-bound"
    weighted = True

    def __init__(self, split: Split, name: str, notes: tuple[str, ...] = ()) -> None:
        self._split: Split | None = split
        self._columns, self._link = len(split.weight), split.link
        self.name = name
        self.inputs = ModelInputs(count=split.width)
        self.notes = (NOTE, *notes)
        if self._columns > 1 or split.link != "logits":
            self.task = "classification"

    def represent(self, X: Any, ids: Array) -> NDArray[np.float64]:  # noqa: ARG002
        """Return the inputs of the last layer, for all rows."""
        assert self._split is not None
        matrix = as_matrix(X, self._split.dtype)
        return as_numbers(self._split.features(matrix), len(matrix))

    def with_target(self, target: Array) -> Self:
        """Learn which class each output column of the logged network is."""
        other = self.copied()
        assert self._split is not None
        if self.task == "regression":
            if self._columns > 1:
                raise ModelError(f"a network with {self._columns} output columns is no regressor.")
            other.original = as_predictor(self._split.outputs, "values", None)
        else:
            classes, note = output_classes(target, self._columns)
            other.original = as_predictor(self._split.outputs, self._link, classes)
            other.notes = self.notes if note is None else (*self.notes, note)
        return other

    def train(self, rows: Rows, seed: int | None) -> Predictor:  # noqa: ARG002 - no randomness
        """Fit the last layer."""
        return fit_head(rows, self.task)

    def __getstate__(self) -> dict[str, Any]:
        """Leave the network behind: workers need its features only."""
        return {**super().__getstate__(), "_split": None}
