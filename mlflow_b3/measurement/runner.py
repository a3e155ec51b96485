"""Runs refits on this machine or on a cluster: batches, lost workers, deadlines, Ctrl-C, progress."""

import logging
import os
import pickle
import platform
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from itertools import chain
from pathlib import Path
from pickle import PickleBuffer
from threading import Lock
from types import FrameType
from typing import Any, Self

import cloudpickle
import joblib
import numpy as np
import pandas as pd
from joblib.externals.loky.backend import resource_tracker
from joblib.externals.loky.process_executor import BrokenProcessPool
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits
from tqdm import tqdm

from mlflow_b3.data.table import AuditData
from mlflow_b3.errors import B3Error, FitError, InputError, InterruptedAudit, choose
from mlflow_b3.measurement.journal import Journal
from mlflow_b3.measurement.refits import (
    TOLERATED_FAILURES,
    FitCounts,
    Outcome,
    Refitter,
    Resampler,
    Task,
    Workers,
    WorkersLost,
    close_quietly,
)

# --- Rows for worker processes of this machine: written once, and read from there by all of them

#: Bytes from which on an array is a file of its own; smaller ones travel with the rest.
LARGE = 2**16
REST = "value.pickle"

_loaded: dict[str, Any] = {}  # what this process has, by folder
_lock = Lock()


class CannotShare(B3Error):  # noqa: N818 - reads as what it says
    """A value cannot be pickled, so that it must be used where it is."""


class NoRoom(B3Error):  # noqa: N818 - reads as what it says
    """The folder for shared rows cannot be written, or its disk is full."""


@dataclass(frozen=True)
class Shared:
    """A small handle of a shared value, which can be sent to other processes of this machine."""

    folder: str

    def get(self) -> Any:
        """Return the value; a process loads it once, with large arrays as read-only memory maps."""
        with _lock:
            if self.folder not in _loaded:
                for other in [name for name in _loaded if not os.path.isdir(name)]:
                    del _loaded[other]  # its sharing is over
                _loaded[self.folder] = _read(Path(self.folder))
            return _loaded[self.folder]


@contextmanager
def share(value: Any) -> Iterator[Shared]:
    """Share a value with worker processes of this machine for as long as the context lasts.

    Its large arrays, wherever in it they are, become files in a temporary folder, from which any
    number of processes maps them into memory once. This process goes on with the value itself.

    Parameters
    ----------
    value : object
        What cloudpickle can pickle: functions of the user's own script or notebook too.

    Raises
    ------
    CannotShare
        When it cannot be pickled.
    NoRoom
        When the folder has no room for it.

    Notes
    -----
    The folder is made in that of `JOBLIB_TEMP_FOLDER`, or else in the system's for temporary files;
    not in /dev/shm, which is memory. It is removed at the end, also of a process that was killed.
    """
    parent = os.environ.get("JOBLIB_TEMP_FOLDER") or tempfile.gettempdir()
    try:
        folder = tempfile.mkdtemp(prefix="mlflow-b3-", dir=parent)
    except OSError as error:
        raise _no_room(parent, error) from error
    resource_tracker.register(folder, "folder")
    try:
        _write(value, Path(folder))
        with _lock:
            _loaded[folder] = value
        yield Shared(folder)
    finally:
        with _lock:
            _loaded.pop(folder, None)
        shutil.rmtree(folder, ignore_errors=True)
        resource_tracker.unregister(folder, "folder")


def _write(value: Any, folder: Path) -> None:
    try:
        with (folder / REST).open("wb") as file:
            _Pickler(file, folder).dump(value)
    except OSError as error:
        raise _no_room(str(folder), error) from error
    except Exception as error:  # whatever a foreign object raises
        raise CannotShare(
            f"the refits cannot be sent to worker processes: {type(error).__name__}: {error}"
        ) from error


def _no_room(folder: str, error: OSError) -> NoRoom:
    return NoRoom(
        f"the rows that workers share cannot be written to {folder!r}: {error}. Make room there, "
        "name a folder with room in the environment variable JOBLIB_TEMP_FOLDER, or use n_jobs=1."
    )


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Writes large arrays, and large buffers such as those of text, to files of their own."""

    def __init__(self, file: Any, folder: Path) -> None:
        super().__init__(file, protocol=5, buffer_callback=self._keep)
        self._folder = folder
        self._arrays = self._buffers = 0

    def reducer_override(self, obj: Any) -> Any:
        plain = type(obj) in (np.ndarray, np.memmap) and not obj.dtype.hasobject
        if not plain or obj.nbytes < LARGE:
            return super().reducer_override(obj)
        path = self._folder / f"{self._arrays}.npy"
        self._arrays += 1
        np.save(path, obj, allow_pickle=False)
        return _mapped, (str(path),)

    def _keep(self, buffer: PickleBuffer) -> bool:
        """Return whether a buffer stays with the rest."""
        raw = buffer.raw()
        if raw.nbytes < LARGE:
            return True
        (self._folder / f"{self._buffers}.buffer").write_bytes(raw)
        self._buffers += 1
        return False


def _read(folder: Path) -> Any:
    count = len(list(folder.glob("*.buffer")))
    buffers = [np.memmap(folder / f"{number}.buffer", mode="r") for number in range(count)]
    with (folder / REST).open("rb") as file:
        return cloudpickle.load(file, buffers=buffers)


def _mapped(path: str) -> NDArray[Any]:
    return np.asarray(np.load(path, mmap_mode="r"))


# --- How many refits fit into memory at the same time

#: A refit takes a copy of its training rows, and many learners make another one in their own form.
COPIES = 2
SAMPLE = 1000
SYSTEM = Path("/")


def largest_count(data: AuditData, workers: int) -> int:
    """Return how many of so many refits may run at the same time, at least one.

    Parameters
    ----------
    data : AuditData
        The rows in the learner's form.
    workers : int
        How many are wanted.
    """
    free, needed = available_memory(), COPIES * table_bytes(data.features)
    if free is None or not needed:
        return workers
    return max(1, min(workers, free // needed))


def table_bytes(features: Any) -> int:
    """Return how many bytes a table takes, text estimated from its first rows; 0 if it does not say."""
    if isinstance(features, pd.DataFrame):
        usage = features.memory_usage(index=False)
        text = features.iloc[:SAMPLE].select_dtypes(object)
        share = len(features) / max(1, len(text))
        return int(usage.sum() + share * text.memory_usage(index=False, deep=True).sum())
    if hasattr(features, "nbytes"):
        return int(features.nbytes)
    sparse = (getattr(features, name, None) for name in ("data", "indices", "indptr"))
    return sum(int(getattr(part, "nbytes", 0)) for part in sparse)


def available_memory() -> int | None:
    """Return how many bytes this process and its workers may still take; None where it is not known.

    The least of what the machine has and what control groups, such as a container's, allow.
    """
    known = [*_machine(), *_control_groups()]
    return min(known, default=None)


def _machine() -> Iterator[int]:
    meminfo = _text(SYSTEM / "proc/meminfo")
    for line in meminfo.splitlines():
        if line.startswith("MemAvailable:"):
            yield 1024 * int(line.split()[1])
            return
    names = ("SC_AVPHYS_PAGES", "SC_PAGE_SIZE")
    if all(name in getattr(os, "sysconf_names", {}) for name in names):
        pages, size = (os.sysconf(name) for name in names)
        yield pages * size


def _control_groups() -> Iterator[int]:
    root = SYSTEM / "sys/fs/cgroup"
    for line in _text(SYSTEM / "proc/self/cgroup").splitlines():
        _, kind, path = line.split(":", 2)
        if kind not in ("", "memory"):
            continue
        names = ("memory.max", "memory.current", "inactive_file")
        if kind:  # the first version of control groups
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        for folder in {
            root / kind / path.lstrip("/"),
            root / kind,
        }:  # a container sees its own only
            limit, used = (_text(folder / name).strip() for name in names[:2])
            if limit.isdigit() and used.isdigit():
                stat = dict(line.split() for line in _text(folder / "memory.stat").splitlines())
                yield max(0, int(limit) - int(used) + int(stat.get(names[2], 0)))


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


# --- Who runs the refits: this process, worker processes on this machine, or a cluster

#: Backends on this machine, and those of clusters, which need an extra each.
LOCAL = ("loky", "threading", "sequential")
CLUSTERS = ("dask", "ray", "spark")
#: About how long worker processes take until they run their first refit: they import libraries.
START_SECONDS = 3.0
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class WorkerSettings:
    """Where refits are to run.

    Attributes
    ----------
    n_jobs : int or None
        As in joblib: how many at the same time; -1 for all cores.
    backend : str or None
        One of joblib's; None chooses: this process for one worker, else processes of its own.
    address : str or None
        That of the cluster, for its backends.
    """

    n_jobs: int | None = None
    backend: str | None = None
    address: str | None = None

    def __post_init__(self) -> None:
        """Raise an `InputError` for what cannot be."""
        number = self.n_jobs
        if number is not None and (
            isinstance(number, bool) or not isinstance(number, int) or not number
        ):
            raise InputError(
                f"n_jobs={number!r} is not usable; give a number of workers, or -1 for all."
            )
        if self.backend is not None:
            choose("backend", self.backend, (*LOCAL, *CLUSTERS))
        if self.address is not None and self.backend not in CLUSTERS:
            raise InputError(
                f"address={self.address!r} needs the backend of a cluster: backend='dask', 'ray' or "
                "'spark'."
            )


@contextmanager
def open_workers(refitter: Refitter, settings: WorkerSettings, expected: int) -> Iterator[Workers]:
    """Get ready to run refits, and clean up afterwards.

    Learners that are not `parallel` run here, one after another, whatever the settings are. Without
    a backend, so do refits that take less time than worker processes need to start.

    Parameters
    ----------
    refitter : Refitter
    settings : WorkerSettings
    expected : int
        How many refits there will be.
    """
    if not refitter.learner.parallel:
        yield Here(refitter)
        return
    # threads of linear algebra add up in an order of their own, so that digits would depend on them
    with threadpool_limits(1):
        yield from _open(refitter, settings, expected)


def _open(refitter: Refitter, settings: WorkerSettings, expected: int) -> Iterator[Workers]:
    backend = settings.backend
    if backend == "sequential":
        yield Here(refitter)
        return
    if backend in CLUSTERS:
        with open_cluster(
            refitter, backend=backend, address=settings.address, n_jobs=settings.n_jobs
        ) as cluster:
            yield cluster
        return
    wanted = int(joblib.effective_n_jobs(settings.n_jobs))
    count = largest_count(refitter.data, wanted)
    if count < wanted:
        _LOG.warning("%d refits run at a time instead of %d: memory is short.", count, wanted)
    if backend == "threading":
        yield OnThisMachine(refitter=_Same(refitter), count=count, backend=backend)
    elif backend == "loky":
        with processes_or_here(refitter, count) as workers:
            yield workers
    elif count == 1:
        yield Here(refitter)
    else:
        with Undecided(refitter, count, expected) as workers:
            yield workers


@contextmanager
def processes_or_here(refitter: Refitter, count: int) -> Iterator[Workers]:
    """Share the rows with worker processes; run here what cannot be shared."""
    with ExitStack() as stack:
        try:
            handle = stack.enter_context(share(refitter))
        except CannotShare as error:
            _LOG.warning("Refits run one after another in this process: %s", error)
            yield Here(refitter)
        else:
            yield OnThisMachine(refitter=handle, count=count, backend="loky")


class Undecided:
    """Runs the first refit here, and by its time decides where the others run."""

    def __init__(self, refitter: Refitter, count: int, expected: int) -> None:
        self._refitter, self._most, self._expected = refitter, count, expected
        self._stack = ExitStack()
        self._chosen: Workers | None = None

    def __enter__(self) -> Self:
        """Start nothing yet."""
        return self

    def __exit__(self, *details: Any) -> None:
        """End what was started."""
        self._stack.__exit__(*details)

    @property
    def count(self) -> int:
        """How many run at the same time; as long as that is not decided, how many may."""
        return self._most if self._chosen is None else self._chosen.count

    def run(self, batches: Iterable[Sequence[Task]]) -> Iterator[list[Outcome]]:
        """Run batches; see `Workers`."""
        coming = iter(batches)
        if self._chosen is None:
            first = next(coming, None)
            if not first:
                return
            outcome = self._refitter.run(first[0])
            self._decide(outcome.seconds)
            yield [outcome]
            coming = chain([first[1:]] if first[1:] else [], coming)
        assert self._chosen is not None
        yield from self._chosen.run(coming)

    def _decide(self, seconds: float) -> None:
        saved = self._expected * seconds * (1 - 1 / self._most)
        if saved < START_SECONDS:
            self._chosen = Here(self._refitter)
        else:
            workers = processes_or_here(self._refitter, self._most)
            self._chosen = self._stack.enter_context(workers)


@dataclass(frozen=True)
class Here:
    """The process itself, one refit after another."""

    refitter: Refitter
    count: int = 1

    def run(self, batches: Iterable[Sequence[Task]]) -> Iterator[list[Outcome]]:
        """Run batches; see `Workers`."""
        for batch in batches:
            for task in batch:
                yield [self.refitter.run(task)]


@dataclass(frozen=True)
class _Same:
    """What threads share: the thing itself."""

    value: Refitter

    def get(self) -> Refitter:
        return self.value


@dataclass(frozen=True, kw_only=True)
class OnThisMachine:
    """Threads or processes of joblib's.

    Attributes
    ----------
    refitter : handle
        A handle by which each worker gets the refitter.
    count : int
    backend : str
    """

    refitter: Any
    count: int
    backend: str

    def run(self, batches: Iterable[Sequence[Task]]) -> Iterator[list[Outcome]]:
        """Run batches; see `Workers`."""
        threads = {"inner_max_num_threads": 1} if self.backend == "loky" else {}
        with joblib.parallel_config(backend=self.backend, **threads):
            # of one worker joblib would make none; a second one that is given nothing to do is cheap
            parallel = joblib.Parallel(
                n_jobs=max(2, self.count),
                return_as="generator_unordered",
                batch_size=1,
                pre_dispatch=1 if self.count == 1 else 2 * self.count,
            )
        here = os.getpid()
        calls = (joblib.delayed(_run_batch)(self.refitter, batch, here) for batch in batches)
        results = parallel(calls)
        try:
            for packed in results:
                yield pickle.loads(packed)
        except BrokenProcessPool as error:
            raise WorkersLost(str(error).splitlines()[0]) from error
        finally:
            close_quietly(results)


def _run_batch(refitter: Any, tasks: Sequence[Task], parent: int) -> bytes:
    """Run a batch in a worker.

    Outcomes travel as bytes: the pickler of joblib's workers looks at every object in Python.
    """
    own = os.getpid() != parent
    if own and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that we work for
    # what Python does with warnings belongs to a whole process, so that threads leave it alone
    outcomes = refitter.get().run_batch(tasks, may_exit=own, catch_warnings=own)
    return pickle.dumps(outcomes, protocol=5)


# --- Refits on a cluster that the user names: Dask, Ray or Spark, by joblib's own backends

#: What must be the same on the workers as here, or numbers would not be.
COMPARED = ("mlflow-b3", "numpy", "pandas", "scikit-learn")
#: Seeds of libraries, and what Python does with warnings, belong to a whole process, so threads of
#: one take turns.
_TURN = threading.Lock()


class ClusterError(B3Error):
    """A cluster cannot be reached, or cannot run refits; the text says which and why."""


@dataclass(frozen=True)
class Lost:
    """What a backend returns for a batch whose worker is gone."""

    cause: str


@dataclass(frozen=True, kw_only=True)
class Connection:
    """A cluster that answers: how many refits it can run, and how they get there.

    Attributes
    ----------
    capacity : int
        Refits that it can run at the same time.
    backend : callable
        Sends the refitter to the workers; returns the backend of joblib that knows it, what stands
        for the refitter in a call, and the function that runs a batch, given that and the tasks.
    alive : callable
        Whether the cluster still answers.
    """

    capacity: int
    backend: Callable[[Refitter], tuple[Any, Any, Callable[..., Any]]]
    alive: Callable[[], bool]


@dataclass(kw_only=True)
class ClusterWorkers:
    """Workers of a cluster; the refitter is sent to them once, not with every batch."""

    count: int
    _name: str
    _connection: Connection
    _refitter: Refitter
    _sent: tuple[joblib.Parallel, Any, Callable[..., Any]] | None = field(default=None, init=False)

    def run(self, batches: Iterable[Sequence[Task]]) -> Iterator[list[Outcome]]:
        """Run batches and yield the outcomes of each as it finishes, in whatever order.

        Raises
        ------
        WorkersLost
            When all others are done, if batches were lost with their workers.
        ClusterError
            When the cluster does not answer any more.
        """
        parallel, refitter, run_batch = self.send()
        results = parallel(joblib.delayed(run_batch)(refitter, list(batch)) for batch in batches)
        lost: list[Lost] = []
        finished = False
        try:
            for result in results:
                if isinstance(result, Lost):
                    lost.append(result)
                else:
                    yield result
            finished = not lost
        finally:
            if not finished:  # what was sent may be lost, or joblib busy with what nobody wants
                close_quietly(results)
                self.close()
        if lost:
            raise self._loss(lost)

    def _loss(self, lost: Sequence[Lost]) -> Exception:
        if self._connection.alive():
            return WorkersLost(f"{len(lost)} batches were lost with their workers: {lost[0].cause}")
        return ClusterError(
            f"{self._name} does not answer any more: {lost[0].cause}. Start it again; with a journal "
            "the audit continues after its last finished refit."
        )

    def send(self) -> tuple[joblib.Parallel, Any, Callable[..., Any]]:
        """Send the refitter to the workers, unless they have it."""
        if self._sent is None:
            backend, refitter, run_batch = self._connection.backend(self._refitter)
            # with fewer workers than there are, a batch that waits in line would be run at once
            ahead = 2 if self.count == self._connection.capacity else 1
            parallel = joblib.Parallel(
                n_jobs=self.count,
                backend=backend,
                return_as="generator_unordered",
                batch_size=1,  # batches are made already
                pre_dispatch=ahead * self.count,
            )
            self._sent = parallel.__enter__(), refitter, run_batch
        return self._sent

    def ask(self, function: Callable[[], Any]) -> list[Any]:
        """Return the answers of as many workers as there are, or of some of them twice."""
        parallel = self.send()[0]
        return list(parallel(joblib.delayed(function)() for _ in range(self.count)))

    def close(self) -> None:
        """Give back what the workers hold."""
        if self._sent is not None:
            parallel, self._sent = self._sent[0], None
            parallel.__exit__(None, None, None)


@contextmanager
def open_cluster(
    refitter: Refitter, *, backend: str, address: str | None = None, n_jobs: int | None = None
) -> Iterator[ClusterWorkers]:
    """Connect to a cluster and yield its workers.

    What this process was connected to before is used and left as it is; what is opened here is
    closed at the end.

    Parameters
    ----------
    refitter : Refitter
    backend : {"dask", "ray", "spark"}
    address : str, optional
        Dask: of the scheduler, as "tcp://host:8786", or its scheduler file; without one, the
        client of this process. Ray: "auto", "local", "host:6379" or "ray://host:10001"; without
        one, the Ray of this process, or "auto". Spark: the master, as "spark://host:7077" or
        "local[2]"; without one, the active session.
    n_jobs : int, optional
        Refits at the same time, at most; all that the cluster can run by default and for -1.

    Raises
    ------
    InputError
        When an argument is not usable, or the library of the backend is not installed.
    ClusterError
        When the cluster does not answer, or its workers have other versions than this process.
    """
    choose("backend", backend, CLUSTERS)
    if n_jobs is not None and (isinstance(n_jobs, bool) or (n_jobs != -1 and n_jobs < 1)):
        raise InputError(
            f"n_jobs={n_jobs!r} is not usable with backend={backend!r}; give how many refits may "
            "run at the same time, or -1 for as many as the cluster can."
        )
    name = f"backend={backend!r}, address={address!r}"
    with _engine(backend).connect(address, name) as connection:
        capacity = connection.capacity
        workers = ClusterWorkers(
            count=capacity if n_jobs in (None, -1) else min(capacity, n_jobs),
            _name=name,
            _connection=connection,
            _refitter=refitter,
        )
        try:
            compare_versions(workers.ask(versions), name)
            yield workers
        finally:
            workers.close()


def _engine(backend: str) -> Any:
    try:
        return import_module(f"mlflow_b3.measurement.clusters_{backend}")
    except ImportError as error:
        raise InputError(
            f'backend={backend!r} needs a library: pip install "mlflow-b3[{backend}]" ({error})'
        ) from error


def told_to_joblib(n_jobs: int) -> int:
    """Return what a backend must say that it can do: with 1, joblib would run everything here."""
    return max(2, n_jobs)


def run_in_turn(refitter: Refitter, tasks: Sequence[Task]) -> list[Outcome]:
    """Run a batch on a worker, alone in its process.

    Loops inside of a learner must not go back to the cluster, as some backends would have it, and
    linear algebra has one thread, as everywhere: digits would depend on their number.
    """
    with _TURN, threadpool_limits(1), joblib.parallel_config(backend="threading"):
        return refitter.run_batch(tasks)


def versions() -> dict[str, str]:
    """Return the versions in this process on which numbers, and pickles, depend."""
    found = {"Python": platform.python_version()}
    for package in COMPARED:
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    return found


def compare_versions(answers: Sequence[Any], name: str) -> None:
    """Raise a `ClusterError` unless every worker has the versions of this process."""
    here = versions()
    for answer in answers:
        if not isinstance(answer, dict):
            cause = answer.cause if isinstance(answer, Lost) else answer
            raise ClusterError(
                f"{name}: the workers cannot run mlflow-b3: {cause}. Install it on them, with the "
                "libraries of the model, in the versions used here."
            )
    different = {
        f"{package} {there.get(package, 'missing')} on a worker, {wanted} here"
        for there in answers
        for package, wanted in here.items()
        if _release(there, package) != _release(here, package)
    }
    if different:
        raise ClusterError(
            f"{name}: the workers would give other numbers: {'; '.join(sorted(different))}. "
            "Install the same versions."
        )


def _release(found: Mapping[str, str], package: str) -> list[str]:
    """Return the part of a version that must be the same; of other libraries, not the last."""
    parts = found.get(package, "").split(".")
    return parts if package == "mlflow-b3" else parts[:2]


# --- What a person sees while refits run: how many are done, how long it takes, what is known so far

#: Looking at what is known so far may take this share of the time.
SHARE = 0.01
SECONDS_BETWEEN_LOOKS = 2.0
#: In a file, such as the log of CI, a bar is a line each time.
SECONDS_BETWEEN_LINES = 10.0


class Progress:
    """A bar with the refits done, the time left and the current estimate.

    Parameters
    ----------
    shown : bool or None
        None shows it on a terminal only.
    total : int
        Refits that are expected, before they are planned.
    """

    def __init__(self, shown: bool | None, total: int) -> None:
        hidden = None if shown is None else not shown
        self._live = sys.stderr.isatty()
        self._guess = total
        self._replayed = 0
        seconds = 0.1 if self._live else SECONDS_BETWEEN_LINES
        self._bar: tqdm[Any] = tqdm(
            total=total, desc="refits", unit="fit", disable=hidden, mininterval=seconds
        )
        self._next_look = time.monotonic() + SECONDS_BETWEEN_LOOKS

    def __enter__(self) -> Self:
        """Show the bar."""
        return self

    def __exit__(self, *_: object) -> None:
        """Leave it as it is."""
        self._bar.close()

    def expect(self, total: int, *, final: bool = False) -> None:
        """Correct how many refits there will be; before the last of them are planned, upwards only."""
        self._guess = 0 if final else self._guess
        self._bar.total = max(total, self._bar.n, self._guess)
        if self._live:
            self._bar.refresh()

    def advance(self, count: int, replayed: int = 0) -> None:
        """Add refits that are done; of all so far, some were only read from a journal."""
        if self._bar.disable:
            return
        if replayed > self._replayed:  # they say nothing about the speed
            self._replayed = replayed
            self._bar.initial += count
            self._bar.set_postfix_str(f"{replayed} from the journal", refresh=False)
        self._bar.update(count)

    def look(self, estimate: Callable[[], str | None]) -> None:
        """Show what is known so far, now and then."""
        if self._bar.disable or time.monotonic() < self._next_look:
            return
        started = time.monotonic()
        told = estimate()
        if told is not None:
            self._bar.set_postfix_str(told, refresh=self._live)
        cost = time.monotonic() - started
        self._next_look = time.monotonic() + max(SECONDS_BETWEEN_LOOKS, cost / SHARE)


# --- Ctrl-C while refits run: heard where it does no harm


class Interruption:
    """Holds the first Ctrl-C back while outcomes are put together; a second one passes at once.

    Only the main thread hears of Ctrl-C; elsewhere this does nothing.

    Attributes
    ----------
    pending : bool
        Ctrl-C came and has been held back.
    """

    def __init__(self) -> None:
        self.pending = False
        self._busy = False
        self._before: Any = None
        self._ours = False

    def __enter__(self) -> Self:
        """Listen."""
        self._before = signal.getsignal(signal.SIGINT)
        main = threading.current_thread() is threading.main_thread()
        if main and self._before is signal.default_int_handler:
            signal.signal(signal.SIGINT, self._hear)
            self._ours = True
        return self

    def __exit__(self, *_: object) -> None:
        """Leave it to whoever listened before."""
        if self._ours:
            signal.signal(signal.SIGINT, self._before)

    def _hear(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002 - as signal wants it
        if self._busy and not self.pending:
            self.pending = True
            return
        raise KeyboardInterrupt

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold Ctrl-C back during the block, and leave what to make of it to the caller."""
        self._busy = True
        try:
            yield
        finally:
            self._busy = False

    @contextmanager
    def postponed(self) -> Iterator[None]:
        """Hold Ctrl-C back until the block is done."""
        with self.held():
            yield
        if self.pending:
            self.pending = False
            raise KeyboardInterrupt


# --- Refits of an audit: replayed from a journal or run, in batches, and handed over in order

#: Failures at the start, or their share after some refits, by which an audit is given up early.
HOPELESS, HOPELESS_SHARE, FEW = 3, 0.3, 20
#: A batch of refits takes about this many seconds: long enough for messages not to matter.
BATCH_SECONDS = 0.3
#: Batches that each worker should have at least, so that none waits for the last one.
BATCHES_EACH = 8
#: How often a refit that is alone may lose its worker before it counts as failed.
LOSSES = 2


@dataclass(frozen=True, kw_only=True)
class Session:
    """Runs the refits of one audit.

    Attributes
    ----------
    workers : Workers
    resampler : Resampler
        What the refits' rows are drawn by.
    progress : Progress
    journal : Journal or None
        Remembers finished refits, and has those of an earlier start.
    counts : FitCounts
        Counts every outcome, failures included.
    started : float
        When it began, by `time.monotonic`.
    deadline : float or None
        The time after which no refit begins that may be left out.
    expected : int
        Refits that there will be at the least, as far as that is known before they are planned.
    """

    workers: Workers
    resampler: Resampler
    progress: Progress
    journal: Journal | None = None
    counts: FitCounts = field(default_factory=FitCounts)
    started: float = field(default_factory=time.monotonic)
    deadline: float | None = None
    expected: int = 0

    def run(
        self,
        tasks: Sequence[Task],
        collect: Callable[[Outcome], None],
        *,
        needed: int | None = None,
        look: Callable[[], str | None] = lambda: None,
    ) -> None:
        """Run refits and hand the successful ones over in the order of the tasks.

        Parameters
        ----------
        tasks : sequence of Task
        collect : callable
            Called with the outcome of each refit that did not fail.
        needed : int, optional
            How many of the first tasks are run whatever the deadline says; all by default.
        look : callable
            Says what is known so far.

        Raises
        ------
        FitError
            When more than a tenth of all refits, and more than two, have failed; early, where the
            first three have, or three in ten.
        PredictionError
            When the model cannot give the prediction that the loss needs.
        KeyboardInterrupt
            When the user stops it; what was done until then has been handed over.
        """
        self.counts.planned += len(tasks)
        self.progress.expect(self.counts.planned)
        waiting = _Waiting(tasks)
        with Interruption() as interruption:
            try:
                least = len(tasks) if needed is None else needed
                for outcomes, fresh in self._arrivals(tasks, least):
                    with interruption.postponed():  # what the journal has must be counted too
                        if fresh:
                            self._keep(outcomes)
                        for outcome in waiting.add(outcomes):
                            self._count(outcome, collect)
                        self.progress.advance(len(outcomes), self.counts.replayed)
                        self.progress.look(look)
            except KeyboardInterrupt:
                self.counts.interrupted = True
                with interruption.postponed():
                    for outcome in waiting.rest():
                        self._count(outcome, collect)
                raise
        for outcome in waiting.rest():  # what the deadline left out makes gaps
            self._count(outcome, collect)

    def check_failures(self) -> None:
        """Raise a `FitError` when too many of all refits have failed."""
        if self._too_many(self.counts.done):
            raise self._failure()

    def _count(self, outcome: Outcome, collect: Callable[[Outcome], None]) -> None:
        self.counts.add(outcome)
        if outcome.error is None:
            collect(outcome)
        elif self._too_many(max(self.counts.planned, self.expected)):
            raise self._failure()

    def _arrivals(self, tasks: Sequence[Task], needed: int) -> Iterator[tuple[list[Outcome], bool]]:
        """Yield outcomes as they come, those of the journal first, and whether they are new to it."""
        left = dict.fromkeys(tasks)
        if self.journal is not None:
            for task in tasks:
                outcome = self.journal.find(task)
                if outcome is not None:
                    del left[task]
                    self.counts.replayed += 1
                    yield [outcome], False
        while left:
            try:
                for outcomes in self.workers.run(self._batches(list(left), set(tasks[:needed]))):
                    yield _without(left, outcomes), True
                return  # those that the deadline left out stay undone
            except WorkersLost as loss:
                for outcomes in self._one_by_one(left, str(loss)):
                    yield outcomes, True

    def _keep(self, outcomes: list[Outcome]) -> None:
        if self.journal is not None:
            self.journal.add(outcomes)
            again = [outcome for outcome in outcomes if outcome.task in self.journal.failed]
            self.counts.retried += sum(outcome.error is None for outcome in again)

    def _batches(self, tasks: Sequence[Task], needed: set[Task]) -> Iterator[list[Task]]:
        start = 0
        while start < len(tasks):
            batch = list(tasks[start : start + self._size(len(tasks) - start)])
            start += len(batch)
            if self.deadline is not None and time.monotonic() > self.deadline:
                batch = [task for task in batch if task in needed]
            if batch:
                yield batch

    def _size(self, left: int) -> int:
        """Return how many refits a batch should have, by the speed of those done so far."""
        if self.workers.count == 1 or not self.counts.done:
            return 1
        affordable = max(1, left // (BATCHES_EACH * self.workers.count))
        per_fit = self.counts.seconds / self.counts.done
        return min(affordable, max(1, int(BATCH_SECONDS / max(per_fit, 1e-6))))

    def _one_by_one(self, left: dict[Task, None], loss: str) -> Iterator[list[Outcome]]:
        """Run alone what may have been under way when workers were lost: one may be the cause."""
        self.counts.workers_lost += 1
        _LOG.warning("Worker processes were lost (%s); their refits are run again.", loss)
        under_way = 4 * self.workers.count * self._size(len(left))
        for task in list(left)[:under_way]:
            for attempt in range(LOSSES):
                try:
                    for outcomes in self.workers.run([[task]]):
                        yield _without(left, outcomes)
                    break
                except WorkersLost as again:
                    self.counts.workers_lost += 1
                    if attempt + 1 == LOSSES:
                        error = (
                            f"the worker process died each time it ran this refit: {again or loss}"
                        )
                        yield _without(left, [Outcome(task=task, error=error)])

    def _too_many(self, among: int) -> bool:
        """Return whether more have failed than may among so many, or hopelessly many of those done."""
        done, failed = self.counts.done, self.counts.failed
        if failed == done >= HOPELESS or (done >= FEW and failed > HOPELESS_SHARE * done):
            return True
        # refits that failed in an earlier start and not in this one have failed all the same
        return failed + self.counts.retried > max(2, TOLERATED_FAILURES * among)

    def _failure(self) -> FitError:
        counts = self.counts
        return FitError(
            f"{counts.failed} of {counts.done} refits failed"
            + (f", and {counts.retried} in an earlier start" if counts.retried else "")
            + f", the first with: {counts.first_error}\n"
            f"Up to {100 * TOLERATED_FAILURES:g} % of all refits may fail."
        )


def _without(left: dict[Task, None], outcomes: list[Outcome]) -> list[Outcome]:
    """Take refits that are done off those that are left; return their outcomes."""
    for outcome in outcomes:
        left.pop(outcome.task, None)
    return outcomes


def interrupted(session: Session) -> InterruptedAudit:
    """Return the error of an audit that was stopped before anything could be said."""
    counts, journal = session.counts, session.journal
    told = f"the audit was stopped after {counts.done} refits, too few for any answer. "
    if journal is None:
        return InterruptedAudit(
            told + "They are lost; with a journal, the next start goes on there."
        )
    return InterruptedAudit(
        told
        + f"They are in the journal {str(journal.path)!r}: start the same audit again to go on."
    )


class _Waiting:
    """Puts outcomes that come in any order into that of their tasks: sums depend on it."""

    def __init__(self, tasks: Sequence[Task]) -> None:
        self._places = {task: place for place, task in enumerate(tasks)}
        self._arrived: dict[int, Outcome] = {}
        self._next = 0

    def add(self, outcomes: Sequence[Outcome]) -> Iterator[Outcome]:
        """Add some; yield all for which no earlier one is missing."""
        self._arrived |= {self._places[outcome.task]: outcome for outcome in outcomes}
        while self._next in self._arrived:
            yield self._arrived.pop(self._next)
            self._next += 1

    def rest(self) -> Iterator[Outcome]:
        """Yield those that wait for one that will not come."""
        for place in sorted(self._arrived):
            yield self._arrived.pop(place)


# --- Everything that refits need, opened together: workers, a progress bar, a clock and a journal

#: Seconds that a refit may take at least where nobody set a limit, but a time for the whole audit.
SHORTEST_LIMIT = 60.0


@dataclass(frozen=True, kw_only=True)
class Means:
    """With which means refits run.

    Attributes
    ----------
    workers : WorkerSettings
        Where they run; without effect on learners that are not `parallel`.
    fit_timeout : float or None
        Seconds that one refit may take.
    progress : bool or None
        Show a progress bar; None shows it on a terminal only.
    """

    workers: WorkerSettings = field(default_factory=WorkerSettings)
    fit_timeout: float | None = None
    progress: bool | None = None

    @property
    def where(self) -> WorkerSettings:
        """Where refits run: for a limit that somebody set, where it can be enforced for certain."""
        if self.fit_timeout is None or self.workers.backend is not None:
            return self.workers
        return replace(self.workers, backend="loky")

    def seconds_per_fit(self, seconds: float | None) -> float | None:
        """Return how long a refit may take: as told, or as long as all of them, if that is long."""
        return self.fit_timeout or (None if seconds is None else max(seconds, SHORTEST_LIMIT))


@contextmanager
def open_session(
    refitter: Refitter,
    means: Means,
    *,
    journal: Journal | None = None,
    seconds: float | None = None,
    started: float | None = None,
    most: int,
    expected: int,
) -> Iterator[Session]:
    """Get ready to run refits.

    Parameters
    ----------
    refitter : Refitter
    means : Means
    journal : Journal, optional
    seconds : float, optional
        The time after which no refit begins that may be left out.
    started : float, optional
        When that time began, by `time.monotonic`; now by default.
    most, expected : int
        How many refits there may be, and how many there will be at the least.
    """
    started = time.monotonic() if started is None else started
    done_before = 0 if journal is None else journal.refits
    with (
        Progress(means.progress, 0 if seconds else most) as progress,
        open_workers(refitter, means.where, most - done_before) as workers,
    ):
        yield Session(
            resampler=refitter.resampler,
            workers=workers,
            journal=journal,
            progress=progress,
            started=started,
            deadline=None if seconds is None else started + seconds,
            expected=expected,
        )
