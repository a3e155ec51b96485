"""The journals that the command line keeps by itself."""

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from mlflow_b3.errors import InputError

#: Where to keep them instead of the user's cache.
VARIABLE = "MLFLOW_B3_JOURNALS"


class JournalFolder:
    """A folder in which every audit has a journal of its own, which goes when it is no longer needed.

    Attributes
    ----------
    path : Path
    used : list of Path
        The journals that audits have opened.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.used: list[Path] = []

    def __fspath__(self) -> str:
        """Return the folder, as any path has it."""
        return str(self.path)

    def clear(self) -> None:
        """Remove the journals of audits whose results are safe."""
        for path in self.used:
            with suppress(OSError):
                path.unlink()
        self.used = []


def journal_folder(journal: Any) -> JournalFolder:
    """Return a path as a folder of journals, for several audits."""
    if isinstance(journal, JournalFolder):
        return journal
    try:
        path = Path(journal)
        if path.is_file():
            raise NotADirectoryError("it is a file")
    except (TypeError, ValueError, OSError) as error:
        raise InputError(
            f"journal={str(journal)!r} must be a folder, as there are several audits: {error}."
        ) from error
    return JournalFolder(path)


def usual_folder() -> Path:
    """Return where journals are kept if nobody says so: in the user's cache."""
    if os.environ.get(VARIABLE):
        return Path(os.environ[VARIABLE])
    cache = os.environ.get("XDG_CACHE_HOME") or os.environ.get("LOCALAPPDATA")
    return (Path(cache) if cache else Path.home() / ".cache") / "mlflow-b3" / "journals"
