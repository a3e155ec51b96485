"""Reports as files."""

from os import PathLike
from pathlib import Path

from mlflow_b3.errors import InputError


def checked_path(argument: str, path: str | PathLike[str]) -> Path:
    """Return where a report shall be written, before the work is done; refuse what cannot be."""
    try:
        file = Path(path)
        folder, inside = file.is_dir(), file.parent.is_dir()
    except (TypeError, ValueError, OSError) as error:
        raise InputError(f"{argument}={path!r} is not the path of a file: {error}") from error
    if folder:
        raise InputError(f"{argument}={str(path)!r} is a folder; give the name of a file.")
    if not inside:
        raise InputError(
            f"{argument}={str(path)!r}: the folder {str(file.parent)!r} does not exist."
        )
    return file


def write_text(argument: str, path: Path, text: str) -> None:
    """Write a report, or say why that is not possible."""
    try:
        path.write_text(text, encoding="utf-8")
    except (OSError, ValueError) as error:
        raise InputError(f"{argument}={str(path)!r} cannot be written: {error}") from error
