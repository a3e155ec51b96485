"""Finished refits in a file: an interrupted audit resumes where it stopped."""

import base64
import json
import logging
import os
import tempfile
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, astuple
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


# --- Finished refits in a file, so that an audit that was interrupted goes on where it stopped

FORMAT = "mlflow-b3 journal 1"
#: What is written survives the death of the process at once, and that of the machine after this time.
SECONDS_BETWEEN_SYNCS = 1.0
#: The end of every line: a checksum of what stands before it.
CHECKSUM = ',"crc":"%08x"}'
CHECKSUM_LENGTH = len(CHECKSUM % 0)
_LOG = logging.getLogger(__name__)


class Journal:
    """An open journal: the refits of earlier starts, and room for those to come.

    A line of JSON for each finished refit, with a checksum. Of failed refits it is written that they
    failed: another start tries them again. Lines that do not hold, such as one that was being written when the
    process died, are passed over, and their refits made again.
    """

    def __init__(self, path: Path, number: int, identity: Mapping[str, str]) -> None:
        self.path = path
        self._number = number  # of the open file: a buffer would keep what did not fit on the disk
        self._places: dict[Task, tuple[int, int]] = {}
        self._unwritten: list[bytes] = []
        self._synced = time.monotonic()
        self._plans: dict[float, FitPlan] = {}
        self.failed: set[Task] = set()
        self._end = 0
        self._read(identity)

    @property
    def refits(self) -> int:
        """How many finished refits it has."""
        return len(self._places)

    def find(self, task: Task) -> Outcome | None:
        """Return the outcome of a refit that was finished before."""
        if task not in self._places:
            return None
        start, length = self._places[task]
        fit = _parsed(os.pread(self._number, length, start))
        return None if fit is None else _outcome(fit["fit"])

    def add(self, outcomes: Sequence[Outcome]) -> None:
        """Append finished refits."""
        self._append([_line({"fit": _plain(outcome)}) for outcome in outcomes])

    def find_plan(self, seconds: float) -> FitPlan | None:
        """Return the plan that an earlier start made for so much time."""
        return self._plans.get(seconds)

    def keep_plan(self, seconds: float, plan: FitPlan) -> None:
        """Remember a plan that followed from the speed of the first refits."""
        self._plans[seconds] = plan
        self._append([_line({"plan": asdict(plan), "seconds": seconds})])

    def add_failures(self, tasks: Sequence[Task]) -> None:
        """Remember refits that failed: another start tries them again, and says so."""
        self._append([_line({"failed": astuple(task)}) for task in tasks])

    def _append(self, lines: Sequence[bytes]) -> None:
        """Write lines; keep them in memory where there is no room, and try again with the next."""
        told = bool(self._unwritten)
        self._unwritten += lines
        text = b"".join(self._unwritten)
        try:
            self._write(text)
        except OSError as error:
            self._cut()
            if not told:
                _LOG.warning(
                    "The journal %s cannot be written (%s); the audit goes on, but what it does from "
                    "here on would be lost with it. Room made meanwhile is used.",
                    self.path,
                    error,
                )
            return
        self._end += len(text)
        self._unwritten = []

    def _write(self, text: bytes) -> None:
        written = 0
        while written < len(text):
            written += os.pwrite(self._number, text[written:], self._end + written)
        if time.monotonic() - self._synced > SECONDS_BETWEEN_SYNCS:
            os.fsync(self._number)
            self._synced = time.monotonic()

    def _cut(self) -> None:
        """Take back what was written of a line that did not fit."""
        with suppress(OSError):  # a torn line is passed over when it is read
            os.ftruncate(self._number, self._end)

    def _read(self, identity: Mapping[str, str]) -> None:
        """Read an earlier start's refits, and find out where to go on writing."""
        header = _line({"format": FORMAT, "audit": dict(identity)})
        with self.path.open("rb") as file:
            head = file.readline()
            if not header.startswith(head):  # else it is new, or torn before the first refit
                _check(self.path, _parsed(head), identity)
            if head.endswith(b"\n"):
                self._end = len(head)
                for line in file:
                    if line.endswith(b"\n"):
                        self._remember(_parsed(line), self._end, len(line))
                        self._end += len(line)
        self._cut()
        if not self._end:
            self._write(header)
            self._end = len(header)

    def _remember(self, record: dict[str, Any] | None, start: int, length: int) -> None:
        if record is None:
            _LOG.warning("A damaged line of the journal %s is passed over.", self.path)
        elif "plan" in record:
            plan = record["plan"]
            self._plans[record["seconds"]] = FitPlan(**{**plan, "rows": tuple(plan["rows"])})
        elif "failed" in record:
            self.failed.add(Task(*record["failed"]))
        elif "fit" in record:
            self._places[Task(*record["fit"]["task"])] = start, length

    def close(self) -> None:
        """Write what is left."""
        if self._unwritten:
            self._append([])
        try:
            os.fsync(self._number)
        except OSError as error:
            _LOG.warning("The journal %s may be incomplete: %s", self.path, error)


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
        Where the journal is another audit's, no journal, in use, or cannot be written.
    """
    try:
        path = Path(journal)
        folder = path.is_dir() or isinstance(journal, JournalFolder)
        path = path / own_name(identity) if folder else path
    except (TypeError, ValueError, OSError) as error:
        raise InputError(f"journal={journal!r} is not the path of a file: {error}") from error
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        number = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    except (OSError, ValueError) as error:
        raise _unusable(path, error) from error
    try:
        _lock(path, number)
        try:
            opened = Journal(path, number, identity)
        except OSError as error:
            raise _unusable(path, error) from error
        if isinstance(journal, JournalFolder):
            journal.used.append(path)
        try:
            yield opened
        finally:
            opened.close()
    finally:
        os.close(number)


def _unusable(path: Path, error: Exception) -> InputError:
    reason = getattr(error, "strerror", None) or error
    return InputError(
        f"journal={str(path)!r} cannot be written: {reason}. Give the path of a file, "
        "or of a folder, where there is room."
    )


def own_name(identity: Mapping[str, str]) -> str:
    """Return the name that an audit's journal has in a folder of journals."""
    told = json.dumps(dict(identity), sort_keys=True).encode()
    return f"{zlib.crc32(told):08x}{zlib.adler32(told):08x}.jsonl"


def _lock(path: Path, number: int) -> None:
    """Keep a second audit out; the lock ends with the process, however that ends."""
    try:
        import fcntl
    except ImportError:  # Windows
        return
    try:
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise InputError(
            f"journal={str(path)!r} is in use by another audit that is still running; wait for it, or "
            "give another journal."
        ) from None
    except OSError:
        return  # some network file systems have no locks


def _check(path: Path, head: dict[str, Any] | None, identity: Mapping[str, str]) -> None:
    if head is None or head.get("format") != FORMAT:
        raise InputError(
            f"journal={str(path)!r} is no journal of this version; it was left as it is. Give the path of "
            "a file that is not there yet."
        )
    before = head["audit"]
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


def _line(record: Mapping[str, Any]) -> bytes:
    text = json.dumps(record, separators=(",", ":"), ensure_ascii=True)[:-1].encode()
    return text + (CHECKSUM % zlib.crc32(text)).encode() + b"\n"


def _parsed(line: bytes) -> dict[str, Any] | None:
    """Return what a line says; None where its checksum does not hold."""
    text, end = line[: -CHECKSUM_LENGTH - 1], line[-CHECKSUM_LENGTH - 1 :]
    if end != (CHECKSUM % zlib.crc32(text)).encode() + b"\n":
        return None
    record: dict[str, Any] = json.loads(text + b"}")
    return record


def _plain(outcome: Outcome) -> dict[str, Any]:
    return {
        "task": astuple(outcome.task),
        "validation": _packed(outcome.validation),
        "held_back": _packed(outcome.held_back),
        "seconds": outcome.seconds,
        "one_class": outcome.one_class,
        "warnings": outcome.warnings,
    }


def _outcome(fit: Mapping[str, Any]) -> Outcome:
    return Outcome(
        task=Task(*fit["task"]),
        validation=_unpacked(fit["validation"]),
        held_back=_unpacked(fit["held_back"]),
        seconds=fit["seconds"],
        one_class=fit["one_class"],
        warnings=tuple(fit["warnings"]),
    )


def _packed(losses: Losses | None) -> str:
    """Return all bits of the losses as a text."""
    assert losses is not None
    little = np.ascontiguousarray(losses, dtype="<f8")
    return base64.b64encode(zlib.compress(little.tobytes(), 1)).decode()


def _unpacked(text: str) -> Losses:
    packed = zlib.decompress(base64.b64decode(text))
    return np.frombuffer(packed, dtype="<f8").astype(np.float64)
