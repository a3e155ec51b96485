"""The one interface through which every flavour is refitted."""

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from mlflow_b3.data import ModelInputs
from mlflow_b3.errors import ModelError
from mlflow_b3.losses import Predictor


class Learner(Protocol):
    """A training procedure that can be run again on other rows.

    Attributes
    ----------
    route : str
        How the refit is done, for the report: `clone`.
    task : {"classification", "regression"}
    stochastic : bool
        Whether the result depends on `seed` as well as on the rows.
    """

    route: str
    task: str
    stochastic: bool

    def fit(self, X: Any, target: NDArray[Any], seed: int | None) -> Predictor:
        """Train on these rows; `seed=None` keeps the seed that the model was logged with."""


@dataclass(frozen=True, kw_only=True)
class AuditedModel:
    """A learner and what is known about where it came from.

    Attributes
    ----------
    learner : Learner
    inputs : ModelInputs
        The columns that the model wants.
    name : str
        What the report calls it.
    uri, run_id, model_id : str or None
        Its address in MLflow, the run and the LoggedModel it belongs to; None for a bare estimator.
    """

    learner: Learner
    inputs: ModelInputs
    name: str
    uri: str | None = None
    run_id: str | None = None
    model_id: str | None = None


class ConstantPredictor:
    """What a classifier can learn from rows of a single class: that class."""

    def __init__(self, label: Any) -> None:
        self.classes: NDArray[Any] | None = np.array([label])

    def predict(self, kind: str, X: Any) -> NDArray[Any]:
        """Predict the one label, with certainty; it has no decision values."""
        assert self.classes is not None
        if kind == "label":
            return np.repeat(self.classes, len(X))
        if kind == "probability":
            return np.ones((len(X), 1))
        raise ModelError("a resample of a single class gives no decision values.")
