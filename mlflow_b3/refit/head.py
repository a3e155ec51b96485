"""Route `head`: refit a linear model on the outputs of a model that can only predict."""

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from mlflow_b3.data.losses import Predictor
from mlflow_b3.errors import ModelError
from mlflow_b3.refit.flavours import cannot_load
from mlflow_b3.refit.learner import Learner, MethodPredictor, Rows, Source
from mlflow_b3.refit.safety import load_skops_function, skops_flavour

MOST_LABELS = 100
NOTE = (
    "the model itself was not trained again: only a linear head on its outputs was. The outputs "
    "keep what it learned from all rows, so the loss on new clusters is at least what is shown, and "
    "may be much larger"
)


def load(source: Source) -> Any:
    """Load a model as an MLflow pyfunc model."""
    import mlflow

    flavour = skops_flavour(source)
    if flavour is not None:
        return load_skops_function(flavour, source)
    try:
        return mlflow.pyfunc.load_model(source.uri)
    except Exception as error:  # the model's own code may raise anything
        raise cannot_load(source, error) from error


def learner(model: Any, source: Source) -> "HeadLearner":
    """Return the learner of any object with `predict`."""
    source.require_options()
    if not hasattr(model, "predict"):
        raise ModelError(f"{type(model).__name__} has no predict, which refit='head' needs.")
    return HeadLearner(model)


class HeadLearner(Learner):
    """Refits a generalised linear model on the outputs of a model, which is not refitted.

    Outputs are probabilities, scores or embeddings (columns of numbers) or labels (one column per
    label). `predict_proba` is used if the model has it. The head is a logistic regression for
    classes and a ridge regression for values, on standardised outputs.

    Notes
    -----
    The outputs come from a model that was trained on all rows. What it learned from validation rows
    is in every refit and cannot be detected. The losses of the audit are therefore too small, and
    its result is a lower bound.
    """

    route = "head"
    strength = "lower-bound"
    weighted = True
    notes: tuple[str, ...] = (NOTE,)

    def __init__(self, model: Any) -> None:
        self._model = model
        self.name = _name(model)

    def represent(self, X: Any, ids: NDArray[Any]) -> NDArray[np.float64]:  # noqa: ARG002
        """Return the model's outputs for all rows, as numbers."""
        try:
            given = getattr(self._model, "predict_proba", self._model.predict)(
                _as_tensor(X, self._model)
            )
        except Exception as error:  # the model's own code may raise anything
            raise ModelError(
                f"the model cannot predict the rows of the table: {type(error).__name__}: {error}. It "
                f"received the columns {_names(X)}: keep those it needs, log it with a "
                "signature, or give a trainer."
            ) from error
        return as_numbers(given, len(X), labels=self.task == "classification")

    def train(self, rows: Rows, seed: int | None) -> Predictor:  # noqa: ARG002 - no randomness
        """Fit the head."""
        return fit_head(rows, self.task)

    def __getstate__(self) -> dict[str, Any]:
        """Drop the model. Workers need only its outputs."""
        return {**super().__getstate__(), "_model": None}


def fit_head(rows: Rows, task: str | None) -> Predictor:
    """Fit a logistic regression for classes, or a ridge regression for values."""
    head = LogisticRegression(max_iter=1000) if task == "classification" else Ridge()
    step = type(head).__name__.lower()
    fitted = make_pipeline(StandardScaler(), head).fit(
        rows.X, rows.target, **{f"{step}__sample_weight": rows.weight}
    )
    return MethodPredictor(fitted)


def as_numbers(outputs: Any, n_rows: int, *, labels: bool = False) -> NDArray[np.float64]:
    """Return a model's outputs as a matrix: numbers unchanged, labels as one column each.

    Parameters
    ----------
    outputs : array, DataFrame, list or dict
    n_rows : int
    labels : bool
        Whether whole numbers may be labels, and then have one column each as well.

    Raises
    ------
    ModelError
        If the outputs do not have one row per row of the table, are not finite, or are constant.
    """
    if isinstance(outputs, dict):
        outputs = {name: list(np.asarray(values)) for name, values in outputs.items()}
    frame = pd.DataFrame(outputs if not hasattr(outputs, "toarray") else outputs.toarray())
    parts = []
    for name in frame.columns:
        column = frame[name]
        first = column.iloc[0] if len(column) else None
        if isinstance(first, (list, tuple, np.ndarray)):  # embeddings
            parts.append(np.array([np.ravel(value) for value in column], dtype=float))
        elif pd.api.types.is_numeric_dtype(column) and not (labels and _may_be_labels(column)):
            parts.append(column.to_numpy(dtype=float)[:, None])
        else:
            parts.append(pd.get_dummies(column).to_numpy(dtype=float))
    matrix = np.hstack(parts) if parts else np.zeros((len(frame), 0))
    if len(matrix) != n_rows or not np.isfinite(matrix).all():
        raise ModelError(
            f"the model's outputs, of shape {matrix.shape} for {n_rows} rows, cannot be features of "
            "a head: one row of finite numbers per row of the table is needed. Give a trainer."
        )
    if not matrix.size or (matrix == matrix[0]).all():
        raise ModelError("the model predicts the same for every row; a head has nothing to refit.")
    return matrix


def _names(X: Any) -> list[str]:
    return [str(name) for name in getattr(X, "columns", [])]


def _may_be_labels(column: "pd.Series[Any]") -> bool:
    return pd.api.types.is_integer_dtype(column) and column.nunique() <= MOST_LABELS


def _as_tensor(X: Any, model: Any) -> Any:
    """Return the rows as a tensor if the signature of the model asks for a single one."""
    schema = getattr(getattr(getattr(model, "metadata", None), "signature", None), "inputs", None)
    if schema is None or not schema.is_tensor_spec() or len(schema.inputs) != 1:
        return X
    tensor = np.asarray(X, dtype=schema.numpy_types()[0])
    return {schema.input_names()[0]: tensor} if schema.has_input_names() else tensor


def _name(model: Any) -> str:
    metadata = getattr(model, "metadata", None)
    flavours = sorted(set(getattr(metadata, "flavors", {})) - {"python_function"})
    return f"{flavours[0]} model" if flavours else type(model).__name__
