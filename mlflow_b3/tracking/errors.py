"""The package's errors as MLflow's, for code that MLflow calls."""

from collections.abc import Iterator
from contextlib import contextmanager

from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import (
    BAD_REQUEST,
    INTERNAL_ERROR,
    INVALID_PARAMETER_VALUE,
    INVALID_STATE,
    ErrorCode,
)

from mlflow_b3.errors import (
    B3Error,
    FitError,
    InputError,
    InterruptedAudit,
    ModelError,
    SolverError,
    TrackingError,
)

#: What MLflow, and its HTTP status, call our errors: the caller's fault (400), or not (500).
CODES: dict[type[B3Error], int] = {
    InputError: INVALID_PARAMETER_VALUE,
    ModelError: BAD_REQUEST,
    FitError: INVALID_STATE,
    SolverError: INTERNAL_ERROR,
    TrackingError: INTERNAL_ERROR,
}


@contextmanager
def mlflow_errors() -> Iterator[None]:
    """Turn a `B3Error` into an `MlflowException` with its text, its cause and a fitting code."""
    try:
        yield
    except InterruptedAudit:
        raise  # no error of anybody's
    except B3Error as error:
        raise MlflowException(str(error), error_code=_code(error)) from error


def _code(error: B3Error) -> int:
    if isinstance(error, TrackingError) and isinstance(error.__cause__, MlflowException):
        return int(ErrorCode.Value(error.__cause__.error_code))  # MLflow knows best
    return next((code for kind, code in CODES.items() if isinstance(error, kind)), INTERNAL_ERROR)
