"""How the command line reports the package's errors."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import click

from mlflow_b3.errors import B3Error, TrackingError

INPUT_ERROR = 2


@contextmanager
def input_errors() -> Iterator[None]:
    """Print the package's errors without a traceback and exit with 2."""
    try:
        yield
    except B3Error as error:
        click.echo(f"mlflow-b3: {error}", err=True)
        sys.exit(INPUT_ERROR)


@contextmanager
def saved_if_not_recorded() -> Iterator[None]:
    """Save the report of an audit that MLflow did not take: its refits were paid for."""
    try:
        yield
    except TrackingError as error:
        if error.report is None:
            raise
        from mlflow_b3.tracking.files import save_report

        click.echo(str(error.report))
        folder = str(save_report(error.report))
        raise TrackingError(
            f"{error}\nThe audit was saved to the folder {folder!r}. To write it to MLflow later, in "
            f"Python: mlflow_b3.record({folder!r})"
        ) from error
