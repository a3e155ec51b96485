"""How the command line reports the package's errors."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import click

from mlflow_b3.errors import B3Error, InterruptedAudit, TrackingError

INPUT_ERROR = 2
#: What shells say of a command that Ctrl-C ended.
INTERRUPTED = 130


@contextmanager
def input_errors() -> Iterator[None]:
    """Print the package's errors without a traceback and exit with 2."""
    try:
        yield
    except B3Error as error:
        from mlflow_b3.wording import visible

        # names in it are other people's, and may hold what a terminal obeys
        told = "\n".join(map(visible, str(error).splitlines()))
        click.echo(f"mlflow-b3: {told}", err=True)
        sys.exit(INTERRUPTED if isinstance(error, InterruptedAudit) else INPUT_ERROR)


@contextmanager
def shown_if_not_recorded() -> Iterator[None]:
    """Print the report of an audit that MLflow did not take: its refits were paid for."""
    try:
        yield
    except TrackingError as error:
        if error.report is not None:
            click.echo(str(error.report))
        raise
