"""Files of linkage tools and reviewers, with errors in users' words."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mlflow_b3.errors import InputError


@contextmanager
def reading(name: str, path: Path) -> Iterator[None]:
    """Turn what pandas raises about a broken file into an `InputError`."""
    try:
        yield
    except (ValueError, OSError) as error:  # pyarrow's and pandas' parser errors are ValueErrors
        raise InputError(f"{name}: {str(path)!r} cannot be read: {error}") from error
