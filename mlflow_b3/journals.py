"""The journals that the command line keeps by itself."""

import os
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from mlflow_b3.errors import InputError

#: Where to keep them instead of the user's cache.
VARIABLE = "MLFLOW_B3_JOURNALS"
MONTH = 30 * 24 * 3600


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

    def forget_old(self) -> None:
        """Remove journals of audits that nobody has gone on with for a month."""
        for path in self.path.glob("*.jsonl"):
            with suppress(OSError):
                if time.time() - path.stat().st_mtime > MONTH:
                    path.unlink()

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
    try:
        home = Path(cache) if cache else Path.home() / ".cache"
    except RuntimeError:  # a user without a home
        home = Path(tempfile.gettempdir())
    return home / "mlflow-b3" / "journals"
