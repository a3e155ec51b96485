"""Translate the package's errors into MLflow's, for code that MLflow calls."""

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

#: MLflow's error codes: the caller's fault (HTTP status 400), or not (500).
CODES: dict[type[B3Error], int] = {
    InputError: INVALID_PARAMETER_VALUE,
    ModelError: BAD_REQUEST,
    FitError: INVALID_STATE,
    SolverError: INTERNAL_ERROR,
    TrackingError: INTERNAL_ERROR,
}


@contextmanager
def mlflow_errors() -> Iterator[None]:
    """Turn a `B3Error` into an `MlflowException` with the same text and the matching code."""
    try:
        yield
    except InterruptedAudit:
        raise  # not an error
    except B3Error as error:
        raise MlflowException(str(error), error_code=_error_code(error)) from error


def _error_code(error: B3Error) -> int:
    if isinstance(error, TrackingError) and isinstance(error.__cause__, MlflowException):
        return int(ErrorCode.Value(error.__cause__.error_code))
    return next((code for kind, code in CODES.items() if isinstance(error, kind)), INTERNAL_ERROR)
