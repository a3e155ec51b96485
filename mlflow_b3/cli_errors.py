"""How the command line reports the package's errors."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

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
        click.echo(str(error.report))
        path = Path(f"b3-audit-{time.strftime('%Y%m%d-%H%M%S')}.json")
        path.write_text(error.report.to_json(), encoding="utf-8")
        raise TrackingError(
            f"{error}\nThe report was saved to {str(path)!r}. To write it later, in Python: "
            f"mlflow_b3.record(mlflow_b3.AuditReport.from_json(open({str(path)!r}).read()))"
        ) from error
