"""From a model URI or an estimator to a learner that can be refitted."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from mlflow_b3.data import ModelInputs
from mlflow_b3.errors import ModelError
from mlflow_b3.refit.interface import AuditedModel
from mlflow_b3.refit.sklearn import CloneLearner, estimator_inputs

URI_FORMS = "'models:/name/3', 'models:/name@alias', 'models:/m-…' or 'runs:/run_id/path'"


def load_model(model: Any) -> AuditedModel:
    """Load what is to be audited.

    Parameters
    ----------
    model : str or estimator
        An MLflow model URI, or an estimator with scikit-learn's interface, fitted or not.

    Notes
    -----
    Loading a model from MLflow runs code that the model brings with it (pickle, custom modules).
    MLflow's own restriction, the environment variable `MLFLOW_ALLOW_PICKLE_DESERIALIZATION`, is
    honoured. Audit models that you would also serve.
    """
    if isinstance(model, AuditedModel):
        return model
    if isinstance(model, str):
        return _from_uri(model)
    if hasattr(model, "fit") and hasattr(model, "get_params"):
        return AuditedModel(
            learner=CloneLearner(model),
            inputs=estimator_inputs(model),
            name=_estimator_name(model),
        )
    raise ModelError(
        f"model={type(model).__name__} cannot be refitted; give {URI_FORMS}, or an estimator with "
        "scikit-learn's fit and get_params."
    )


def _from_uri(uri: str) -> AuditedModel:
    import mlflow
    from mlflow.exceptions import MlflowException

    if not uri.startswith(("models:/", "runs:/")):
        raise ModelError(f"model={uri!r} is not a model URI; use {URI_FORMS}.")
    try:
        info = mlflow.models.get_model_info(uri)
    except (MlflowException, OSError) as error:
        raise ModelError(
            f"model={uri!r} was not found in {mlflow.get_tracking_uri()!r}: {error}"
        ) from error
    if "sklearn" not in info.flavors:
        flavours = sorted(set(info.flavors) - {"python_function"}) or ["python_function"]
        raise ModelError(
            f"model={uri!r} has the flavours {flavours}; this version refits scikit-learn models. "
            "Give the estimator itself if it has scikit-learn's interface."
        )
    try:
        estimator = mlflow.sklearn.load_model(uri)
    except Exception as error:  # loading runs foreign code, which may raise anything
        raise ModelError(
            f"model={uri!r} could not be loaded: {type(error).__name__}: {error}"
        ) from error
    return AuditedModel(
        learner=CloneLearner(estimator),
        inputs=_with_signature(estimator_inputs(estimator), info.signature),
        name=f"{uri} ({_estimator_name(estimator)})",
        uri=uri,
        run_id=info.run_id or None,
        model_id=info.model_id,
    )


def _estimator_name(estimator: Any) -> str:
    steps = getattr(estimator, "steps", None)
    if steps:
        return " → ".join(type(step).__name__ for _, step in steps)
    return type(estimator).__name__


def _with_signature(remembered: ModelInputs, signature: Any) -> ModelInputs:
    """Let the signature decide on columns and dtypes where it names columns."""
    schema = getattr(signature, "inputs", None)
    if schema is None or schema.is_tensor_spec() or not schema.has_input_names():
        return remembered
    names = tuple(str(name) for name in schema.input_names())
    dtypes = {}
    for column in schema.inputs:
        kind = column.type
        if hasattr(kind, "to_pandas"):  # not for arrays and objects
            dtypes[str(column.name)] = str(kind.to_pandas())
    return ModelInputs(columns=names, dtypes=dtypes, count=len(names), as_array=remembered.as_array)


@contextmanager
def without_autologging() -> Iterator[None]:
    """Keep refits from being logged as runs where MLflow's autologging is on."""
    if "mlflow" not in sys.modules:
        yield
        return
    from mlflow.utils.autologging_utils import disable_autologging

    with disable_autologging():
        yield
