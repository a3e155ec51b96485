"""How the command line reports the package's errors."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import click

from mlflow_b3.errors import B3Error

INPUT_ERROR = 2


@contextmanager
def input_errors() -> Iterator[None]:
    """Print the package's errors without a traceback and exit with 2."""
    try:
        yield
    except B3Error as error:
        click.echo(f"mlflow-b3: {error}", err=True)
        sys.exit(INPUT_ERROR)
