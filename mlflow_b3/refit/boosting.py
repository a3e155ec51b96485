"""Shared by boosted trees: categories, and native boosters trained from their parameters."""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from mlflow_b3.data.losses import Predictor
from mlflow_b3.data.table import ModelInputs
from mlflow_b3.errors import ModelError
from mlflow_b3.refit.learner import FunctionPredictor, Learner, MethodPredictor, Rows, as_codes
from mlflow_b3.refit.sklearn import CloneLearner, library_of

Array = NDArray[Any]
#: The categories of a column, in the model's order; None if the model does not store them.
Categories = Mapping[str, Sequence[Any] | None]
CODED = "its labels are coded 0, 1, … in sorted order, as this library needs them"
USE_TRAINER = "Give a trainer: a function (X, y, sample_ids) → predictor that trains it."
#: Arguments of `predict` that return margins.
MARGIN: dict[str, dict[str, Any]] = {
    "xgboost": {"output_margin": True},
    "lightgbm": {"raw_score": True},
    "catboost": {"prediction_type": "RawFormulaVal"},
}


def as_decision(margin: Any) -> Array:
    """Return margins as decision values: one per row for two classes."""
    given = np.asarray(margin)
    two = given.ndim == 2 and given.shape[1] == 2
    return np.asarray(given[:, 1] - given[:, 0]) if two else given


class MarginPredictor(MethodPredictor):
    """Boosted trees with scikit-learn's methods. Margins are their decision values."""

    def predict(self, kind: str, X: Any) -> Array:
        """Return predictions of one kind."""
        if kind != "decision":
            return super().predict(kind, X)
        return as_decision(self._model.predict(X, **MARGIN[str(library_of(self._model))]))


class BoostedClone(CloneLearner):
    """Trains an unfitted copy of a booster with scikit-learn's interface.

    Parameters
    ----------
    estimator : estimator
        With the parameters to train with.
    fitted : estimator, optional
        The logged model, if it is another object.
    inputs : ModelInputs, optional
        The columns that the model expects.
    categories : mapping
        The columns with categories; see `with_categories`.
    arguments : mapping
        Further arguments of `fit`.
    notes : sequence of str
    """

    _predictor = MarginPredictor

    def __init__(
        self,
        estimator: Any,
        *,
        fitted: Any = None,
        inputs: ModelInputs | None = None,
        categories: Categories | None = None,
        arguments: Mapping[str, Any] | None = None,
        notes: Sequence[str] = (),
    ) -> None:
        super().__init__(estimator)
        if fitted is not None:
            self.original = MarginPredictor(fitted)
        if inputs is not None:
            self.inputs = inputs
        self._categories = dict(categories or {})
        self._arguments = dict(arguments or {})
        self.notes = (*notes, *self.notes, *([CODED] if self._codes else []))

    def represent(self, X: Any, ids: NDArray[Any]) -> Any:  # noqa: ARG002 - as its base has it
        """Return the features with the categories that the model knows."""
        return with_categories(X, self._categories)


class BoosterLearner(Learner):
    """Trains a native booster with the parameters and rounds of the logged one.

    Parameters
    ----------
    booster : Booster
        The logged one.
    params : mapping
        The training parameters.
    rounds : int
    kind : {"binary", "multiclass", "labels", "margin", "value", "either"}
        What the booster predicts with its objective: one probability, one per class, labels, margins
        of two classes, numbers, or a number from 0 to 1 that may be the probability of a class.
    n_classes : int
        The number of classes it was trained for, if there are more than two.
    inputs, categories, notes, stochastic
        See `Learner` and `with_categories`.
    """

    route = "parameters"
    weighted = True

    def __init__(
        self,
        booster: Any,
        *,
        params: Mapping[str, Any],
        rounds: int,
        kind: str,
        n_classes: int,
        inputs: ModelInputs,
        categories: Categories,
        notes: Sequence[str],
        stochastic: bool,
    ) -> None:
        self._params, self._rounds, self._kind = dict(params), rounds, kind
        self._n_classes, self._categories = n_classes, dict(categories)
        self.inputs, self.stochastic = inputs, stochastic
        self.task = {"value": "regression", "either": None}.get(kind, "classification")
        self.notes = (*notes, CODED) if self.task == "classification" else tuple(notes)
        classes = None if kind == "value" else np.arange(max(n_classes, 2))
        self.original = self._predictor(booster, classes)

    @abstractmethod
    def _train(self, params: dict[str, Any], X: Any, label: Array, weight: Array | None) -> Any:
        """Return a booster trained on these rows."""

    @abstractmethod
    def _seeded(self, params: dict[str, Any], seed: int) -> dict[str, Any]:
        """Return the parameters with another seed."""

    @abstractmethod
    def _functions(self, booster: Any) -> tuple[Callable[[Any], Array], Callable[[Any], Array]]:
        """Return two functions of rows: a booster's outputs and its margins."""

    def represent(self, X: Any, ids: NDArray[Any]) -> Any:  # noqa: ARG002 - as its base has it
        """Return the features with the categories that the model knows."""
        return with_categories(X, self._categories)

    def train(self, rows: Rows, seed: int | None) -> Predictor:
        """Train a new booster on these rows."""
        params = dict(self._params) if seed is None else self._seeded(dict(self._params), seed)
        classes, label = None, rows.target
        if self.task == "classification":
            classes, label = self._coded(rows.target)
            if self._n_classes > 2:
                params["num_class"] = len(classes)
        booster = self._train(params, rows.X, label, rows.weight)
        return self._predictor(booster, classes)

    def _coded(self, target: Array) -> tuple[Array, Array]:
        """Return the classes and each row's code among them."""
        native = np.arange(max(self._n_classes, 2))
        if target.dtype.kind in "iu" and np.isin(target, native).all():
            return native, target  # the booster's own codes; a resample may lack some
        classes, codes = as_codes(target)
        if len(classes) > len(native):
            raise ModelError(
                f"the target has {len(classes)} classes, but the model was trained for "
                f"{len(native)}."
            )
        return classes, codes

    def _predictor(self, booster: Any, classes: Array | None) -> Predictor:
        output, margin = self._functions(booster)
        if self.task == "regression" or classes is None:
            return FunctionPredictor({"value": output}, name=self.name)

        def decision(X: Any) -> Array:
            return as_decision(margin(X))

        def label(X: Any) -> Array:
            given = decision(X)
            best = (given > 0).astype(int) if given.ndim == 1 else given.argmax(axis=1)
            return np.asarray(classes[best])

        if self._kind in ("labels", "margin"):
            functions = {"label": label, "decision": decision}
            return FunctionPredictor(functions, classes, name=self.name)
        return FunctionPredictor.from_probabilities(
            output, classes, name=self.name, decision=decision
        )


def with_categories(X: Any, categories: Categories) -> Any:
    """Return a table with categorical columns in the category order of a model.

    A signature turns categories into text, and text files have none. Categories that the model does
    not know come last. If the model does not store its categories, those of the table are used, in
    sorted order, and numeric columns are left unchanged.
    """
    if not isinstance(X, pd.DataFrame):
        return X
    changed = {}
    for name, known in categories.items():
        column = X[name]
        if known is None and pd.api.types.is_numeric_dtype(column):
            continue
        if known is None and isinstance(column.dtype, pd.CategoricalDtype):
            continue
        known = list(known or ())
        new = sorted(set(column.dropna().unique()) - set(known), key=lambda value: str(value))
        changed[name] = pd.Categorical(column, categories=[*known, *new])
    return X.assign(**changed) if changed else X
