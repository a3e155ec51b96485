"""Finished refits in a file: an interrupted audit resumes where it stopped."""

import hashlib
import json
import logging
import os
import sqlite3
import tempfile
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, astuple, fields
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from mlflow_b3.errors import InputError
from mlflow_b3.measurement.design import FitPlan
from mlflow_b3.measurement.refits import Losses, Outcome, Task

# --- The journals that the command line keeps by itself

#: Where to keep them instead of the user's cache.
VARIABLE = "MLFLOW_B3_JOURNALS"
MONTH = 30 * 24 * 3600
#: How their names end; those of earlier versions end in .jsonl.
SUFFIX = ".sqlite"


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
        for path in [*self.path.glob(f"*{SUFFIX}"), *self.path.glob("*.jsonl")]:
            with suppress(OSError):
                if time.time() - path.stat().st_mtime > MONTH:
                    _remove(path)

    def clear(self) -> None:
        """Remove the journals of audits whose results are safe."""
        for path in self.used:
            with suppress(OSError):
                _remove(path)
        self.used = []


def _remove(path: Path) -> None:
    """Remove a journal, and the write-ahead log that a killed process left beside it."""
    path.unlink()
    Path(f"{path}-wal").unlink(missing_ok=True)


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


# --- Finished refits in a SQLite file

#: Marks a SQLite file as a journal ("b3jn"), and says in which form; the first form was lines of JSON.
APPLICATION, FORMAT = 0x6233_6A6E, 2
LINES_OF_JSON = b'{"format":"mlflow-b3 journal 1"'
MAGIC = b"SQLite format 3\0"
TABLES = f"""
BEGIN;
PRAGMA application_id = {APPLICATION};
PRAGMA user_version = {FORMAT};
CREATE TABLE settings (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE plans (seconds REAL PRIMARY KEY, plan TEXT NOT NULL);
CREATE TABLE outcomes (
    purpose TEXT, fold INTEGER, level INTEGER, replicate INTEGER, arrangement INTEGER,
    seconds REAL, one_class INTEGER, warnings TEXT, validation BLOB, held_back BLOB,
    PRIMARY KEY (purpose, fold, level, replicate, arrangement)
);
"""
KEY = ", ".join(field.name for field in fields(Task))
FIND = (
    "SELECT seconds, one_class, warnings, validation, held_back FROM outcomes "
    f"WHERE ({KEY}) = (?, ?, ?, ?, ?) AND validation IS NOT NULL"
)
ADD = "INSERT OR REPLACE INTO outcomes VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
ADD_PLAN = "INSERT OR REPLACE INTO plans VALUES (?, ?)"
#: Seconds to wait for a file that somebody else reads.
BUSY = 0.5
#: What is written survives the death of the process at once, and that of the machine after this time.
SECONDS_BETWEEN_SYNCS = 1.0
_LOG = logging.getLogger(__name__)


class Journal:
    """An open journal: the refits of earlier starts, and room for those to come.

    A row for each refit. A failed refit has no losses: another start tries it again.

    Attributes
    ----------
    path : Path
    failed : set of Task
        Refits that failed in earlier starts.
    """

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self.path = path
        self._connection = connection
        self._unwritten: list[tuple[str, tuple[Any, ...]]] = []
        self._warned = False
        self._synced = time.monotonic()
        rows = connection.execute(f"SELECT {KEY} FROM outcomes WHERE validation IS NULL")
        self.failed = {Task(*row) for row in rows}

    @property
    def refits(self) -> int:
        """How many finished refits it has."""
        counted = self._connection.execute("SELECT count(validation) FROM outcomes")
        return int(counted.fetchone()[0])

    def find(self, task: Task) -> Outcome | None:
        """Return the outcome of a refit that was finished before."""
        try:
            row = self._connection.execute(FIND, astuple(task)).fetchone()
            return None if row is None else _outcome(task, *row)
        except (sqlite3.Error, zlib.error, ValueError):
            _LOG.warning("A damaged refit in the journal %s is made again.", self.path)
            return None

    def add(self, outcomes: Sequence[Outcome]) -> None:
        """Remember refits; of failed ones, that they failed."""
        self._write([(ADD, _row(outcome)) for outcome in outcomes])

    def find_plan(self, seconds: float) -> FitPlan | None:
        """Return the plan that an earlier start made for so much time."""
        query = "SELECT plan FROM plans WHERE seconds = ?"
        row = self._connection.execute(query, (seconds,)).fetchone()
        if row is None:
            return None
        plan = json.loads(row[0])
        return FitPlan(**{**plan, "rows": tuple(plan["rows"])})

    def keep_plan(self, seconds: float, plan: FitPlan) -> None:
        """Remember a plan that followed from the speed of the first refits."""
        self._write([(ADD_PLAN, (seconds, json.dumps(asdict(plan))))])

    def _write(self, rows: Sequence[tuple[str, tuple[Any, ...]]]) -> None:
        """Write rows in one transaction; where there is no room, keep them for the next one."""
        self._unwritten += rows
        try:
            with self._connection:
                for statement, values in self._unwritten:
                    self._connection.execute(statement, values)
            self._unwritten = []
            if time.monotonic() - self._synced > SECONDS_BETWEEN_SYNCS:
                self._synced = time.monotonic()
                self._connection.execute("PRAGMA wal_checkpoint")
            self._warned = False
        except sqlite3.Error as error:
            if not self._warned:
                _LOG.warning(
                    "The journal %s cannot be written (%s). The audit continues; what is not written "
                    "is lost when it ends. Free some space: writing is tried again with each refit.",
                    self.path,
                    error,
                )
            self._warned = True

    def close(self) -> None:
        """Write what is left."""
        if self._unwritten:
            self._write([])


@contextmanager
def open_journal(journal: str | PathLike[str], identity: Mapping[str, str]) -> Iterator[Journal]:
    """Open the journal of an audit; make it where there is none.

    Parameters
    ----------
    journal : path or JournalFolder
        A file; or a folder, in which the audit has a file of its own.
    identity : mapping of str to str
        Everything that the outcome of a refit follows from, in words for users.

    Raises
    ------
    InputError
        Where the journal is another audit's, no journal, damaged, in use, or cannot be written.
    """
    try:
        path = Path(journal)
        folder = path.is_dir() or isinstance(journal, JournalFolder)
        path = path / own_name(identity) if folder else path
    except (TypeError, ValueError, OSError) as error:
        raise InputError(f"journal={journal!r} is not the path of a file: {error}") from error
    try:
        connection = _connect(path)
    except (OSError, ValueError, sqlite3.Error) as error:
        raise _unusable(path, error) from error
    with closing(connection):
        try:
            _prepare(path, connection, identity)
            opened = Journal(path, connection)
        except sqlite3.Error as error:
            raise _unusable(path, error) from error
        if isinstance(journal, JournalFolder):
            journal.used.append(path)
        try:
            yield opened
        finally:
            opened.close()


def _connect(path: Path) -> sqlite3.Connection:
    path.parent.mkdir(parents=True, exist_ok=True)
    # an existing file is left to SQLite: closing it here would end the locks that this process has on it
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
    return sqlite3.connect(path, timeout=BUSY)


def _prepare(path: Path, connection: sqlite3.Connection, identity: Mapping[str, str]) -> None:
    """Lock the file, check whose it is, and make the tables in a new one."""
    connection.execute("PRAGMA locking_mode = EXCLUSIVE")  # until it is closed
    connection.execute("BEGIN EXCLUSIVE")
    new = not connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    if not new:
        _check(path, connection, identity)
    connection.rollback()
    # commits reach the operating system at once, and the disk with the next checkpoint
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")
    if new:
        with connection:
            connection.executescript(TABLES)
            connection.executemany("INSERT INTO settings VALUES (?, ?)", identity.items())


def _check(path: Path, connection: sqlite3.Connection, identity: Mapping[str, str]) -> None:
    marks = "SELECT * FROM pragma_application_id, pragma_user_version"
    if connection.execute(marks).fetchone() != (APPLICATION, FORMAT):
        raise _no_journal(path)
    found = connection.execute("PRAGMA integrity_check(1)").fetchone()[0]
    if found != "ok":
        raise _damaged(path, found)
    before = dict(connection.execute("SELECT name, value FROM settings ORDER BY rowid"))
    names = [name for name in {**before, **identity} if before.get(name) != identity.get(name)]
    if names:
        told = [
            f"{name} was {before.get(name, 'not given')}, is {identity.get(name, 'not given')}."
            for name in names
        ]
        raise InputError.from_problems(
            f"journal={str(path)!r} is of another audit, and was left as it is. Give another path, or the "
            "same data, model and settings",
            told,
        )


def _unusable(path: Path, error: Exception) -> InputError:
    """Return what to tell users about a file that cannot be opened or written."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # the rest of it are details
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return InputError(
            f"journal={str(path)!r} is in use by another audit that is still running; wait for it, or "
            "give another journal."
        )
    if code == sqlite3.SQLITE_CORRUPT:
        return _damaged(path, error)
    if code == sqlite3.SQLITE_NOTADB:
        return _not_a_database(path)
    reason = getattr(error, "strerror", None) or error
    return InputError(
        f"journal={str(path)!r} cannot be written: {reason}. Give the path of a file, "
        "or of a folder, where there is room."
    )


def _not_a_database(path: Path) -> InputError:
    """Return what to tell users about a file that SQLite does not recognise as its own."""
    with path.open("rb") as file:
        head = file.read(len(LINES_OF_JSON))
    if head == LINES_OF_JSON:
        return InputError(
            f"journal={str(path)!r} is a journal of an earlier version of mlflow-b3, which this version "
            "cannot continue; it was left as it is. Remove it, or give the path of another file."
        )
    if head[: len(MAGIC)] == MAGIC[: len(head)]:
        return _damaged(path, "it is cut off")
    return _no_journal(path)


def _no_journal(path: Path) -> InputError:
    return InputError(
        f"journal={str(path)!r} is not a journal of this version; it was left as it is. Give the path of "
        "a file that does not exist yet."
    )


def _damaged(path: Path, cause: Any) -> InputError:
    return InputError(
        f"journal={str(path)!r} is damaged ({cause}); it was left as it is. Remove it, or give the "
        "path of another file; its refits are made again."
    )


def own_name(identity: Mapping[str, str]) -> str:
    """Return the name that an audit's journal has in a folder of journals."""
    text = json.dumps(dict(identity), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16] + SUFFIX


def _row(outcome: Outcome) -> tuple[Any, ...]:
    return (
        *astuple(outcome.task),
        outcome.seconds,
        outcome.one_class,
        json.dumps(outcome.warnings),
        None if outcome.error is not None else _packed(outcome.validation),
        None if outcome.error is not None else _packed(outcome.held_back),
    )


def _outcome(
    task: Task, seconds: float, one_class: int, warnings: str, validation: bytes, held_back: bytes
) -> Outcome:
    return Outcome(
        task=task,
        validation=_unpacked(validation),
        held_back=_unpacked(held_back),
        seconds=seconds,
        one_class=bool(one_class),
        warnings=tuple(json.loads(warnings)),
    )


def _packed(losses: Losses | None) -> bytes:
    """Return all bits of the losses, with the checksum that zlib adds."""
    assert losses is not None
    little = np.ascontiguousarray(losses, dtype="<f8")
    return zlib.compress(little.tobytes(), 1)


def _unpacked(packed: bytes) -> Losses:
    return np.frombuffer(zlib.decompress(packed), dtype="<f8").astype(np.float64)
