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
    """Print errors of the package, of MLflow and of the system without a traceback; exit with 2."""
    try:
        yield
    except InterruptedAudit as error:
        _exit(str(error), INTERRUPTED)
    except KeyboardInterrupt:
        _exit("stopped.", INTERRUPTED)
    except (B3Error, OSError) as error:
        _exit(str(error))
    except Exception as error:
        if not _is_mlflow(error):
            raise
        _exit(f"MLflow: {error}")


def _is_mlflow(error: Exception) -> bool:
    """Return whether an error is one of MLflow's, such as a server that does not answer."""
    raised = sys.modules.get("mlflow.exceptions")
    return raised is not None and isinstance(error, raised.MlflowException)


def _exit(message: str, code: int = INPUT_ERROR) -> None:
    from mlflow_b3.wording import visible

    # names in it are other people's, and may hold what a terminal obeys
    told = "\n".join(map(visible, message.splitlines()))
    click.echo(f"mlflow-b3: {told}", err=True)
    sys.exit(code)


@contextmanager
def shown_if_not_recorded() -> Iterator[None]:
    """Print the report of an audit that MLflow did not take: its refits were paid for."""
    try:
        yield
    except TrackingError as error:
        if error.report is not None:
            click.echo(str(error.report))
        raise
