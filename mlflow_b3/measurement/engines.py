"""Where refits run: in processes or threads of this machine, or on Dask, Ray or Spark, all by joblib."""

import io
import os
import pickle
import platform
import shutil
import signal
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from pickle import PickleBuffer
from threading import Lock
from typing import Any

import cloudpickle
import joblib
import numpy as np
from joblib.externals.loky.backend import resource_tracker
from joblib.externals.loky.process_executor import BrokenProcessPool
from joblib.parallel import ThreadingBackend
from threadpoolctl import threadpool_limits

from mlflow_b3.data.memory import keep_freed, temporary_folder
from mlflow_b3.errors import B3Error, InputError, choose
from mlflow_b3.measurement.refits import Outcome, Refitter, Task, WorkersLost, close_quietly

# --- Rows for worker processes of this machine: written once, and read from there by all of them

#: Bytes from which on an array is mapped into memory; smaller ones are copied.
LARGE = 2**16

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
                rest, buffers = joblib.load(_file(self.folder), mmap_mode="r")
                _loaded[self.folder] = pickle.loads(rest, buffers=buffers)
                keep_freed()
            return _loaded[self.folder]


@contextmanager
def share(value: Any) -> Iterator[Shared]:
    """Share a value with worker processes of this machine for as long as the context lasts.

    It is written to a file in a temporary folder, from which any number of processes maps its large
    arrays, wherever in it they are, into memory once. This process goes on with the value itself.

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
    parent = temporary_folder()
    try:
        folder = tempfile.mkdtemp(prefix="mlflow-b3-", dir=parent)
    except OSError as error:
        raise _no_room(parent, error) from error
    resource_tracker.register(folder, "folder")
    try:
        _write(value, folder)
        with _lock:
            _loaded[folder] = value
        yield Shared(folder)
    finally:
        with _lock:
            _loaded.pop(folder, None)
        shutil.rmtree(folder, ignore_errors=True)
        resource_tracker.unregister(folder, "folder")


def _file(folder: str) -> Path:
    return Path(folder) / "value.joblib"


def _write(value: Any, folder: str) -> None:
    try:
        with io.BytesIO() as rest:
            pickler = _Pickler(rest)
            pickler.dump(value)
            joblib.dump((rest.getvalue(), pickler.buffers), _file(folder))
    except OSError as error:
        raise _no_room(folder, error) from error
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
    """Keeps large arrays, and large buffers such as those of text, apart from the rest."""

    def __init__(self, file: Any) -> None:
        super().__init__(file, protocol=5, buffer_callback=self._stays)
        self.buffers: list[Any] = []

    def reducer_override(self, obj: Any) -> Any:
        plain = type(obj) in (np.ndarray, np.memmap) and not obj.dtype.hasobject
        if not plain or obj.nbytes < LARGE:
            return super().reducer_override(obj)
        array = np.asarray(obj)  # only arrays without gaps are pickled as buffers
        return (array if array.flags.forc else np.ascontiguousarray(array)).__reduce_ex__(5)

    def _stays(self, buffer: PickleBuffer) -> bool:
        """Return whether a buffer stays with the rest."""
        raw = buffer.raw()
        if raw.nbytes >= LARGE:
            self.buffers.append(np.frombuffer(raw, np.uint8))
        return raw.nbytes < LARGE


# --- Processes and threads of this machine


@dataclass(frozen=True)
class Same:
    """A handle for whoever has the refitter itself: threads, and workers to which it was sent."""

    value: Refitter

    def get(self) -> Refitter:
        """Return the refitter."""
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


# --- A cluster that the user names: Dask, Ray or Spark, by the backends that they have for joblib

CLUSTERS = ("dask", "ray", "spark")

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
    send : callable
        Sends the refitter to the workers; returns the backend of joblib, and a handle by which each
        worker gets the refitter.
    alive : callable
        Whether the cluster still answers.
    """

    capacity: int
    send: Callable[[Refitter], tuple[Any, Any]]
    alive: Callable[[], bool]


@dataclass(kw_only=True)
class ClusterWorkers:
    """Workers of a cluster; the refitter is sent to them once, not with every batch."""

    count: int
    _name: str
    _connection: Connection
    _refitter: Refitter
    _sent: tuple[joblib.Parallel, Any] | None = field(default=None, init=False)

    def run(self, batches: Iterable[Sequence[Task]]) -> Iterator[list[Outcome]]:
        """Run batches and yield the outcomes of each as it finishes, in whatever order.

        Raises
        ------
        WorkersLost
            When all others are done, if batches were lost with their workers.
        ClusterError
            When the cluster does not answer any more.
        """
        parallel, handle = self.send()
        results = parallel(joblib.delayed(_run_there)(handle, list(batch)) for batch in batches)
        lost: list[Lost] = []
        finished = False
        try:
            for result in results:
                if isinstance(result, Exception):
                    raise result
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

    def send(self) -> tuple[joblib.Parallel, Any]:
        """Send the refitter to the workers, unless they have it."""
        if self._sent is None:
            backend, handle = self._connection.send(self._refitter)
            # with fewer workers than there are, a batch that waits in line would be run at once
            ahead = 2 if self.count == self._connection.capacity else 1
            parallel = joblib.Parallel(
                n_jobs=self.count,
                backend=backend,
                return_as="generator_unordered",
                batch_size=1,  # batches are made already
                pre_dispatch=ahead * self.count,
            )
            self._sent = parallel.__enter__(), handle
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
    connect = {"dask": _connect_dask, "ray": _connect_ray, "spark": _connect_spark}[backend]
    with ExitStack() as stack:
        try:
            connection = stack.enter_context(connect(address, name))
        except ImportError as error:
            raise InputError(
                f'backend={backend!r} needs a library: pip install "mlflow-b3[{backend}]" ({error})'
            ) from error
        capacity = connection.capacity
        workers = ClusterWorkers(
            count=capacity if n_jobs in (None, -1) else min(capacity, n_jobs),
            _name=name,
            _connection=connection,
            _refitter=refitter,
        )
        stack.callback(workers.close)
        compare_versions(workers.ask(versions), name)
        yield workers


def _run_there(handle: Any, tasks: Sequence[Task]) -> list[Outcome] | Exception:
    """Run a batch on a worker, alone in its process.

    Loops inside of a learner must not go back to the cluster, as some backends would have it, and
    linear algebra has one thread, as everywhere: digits would depend on their number. An exception is
    returned, as Spark would make one of its own of it.
    """
    with _TURN, threadpool_limits(1), joblib.parallel_config(backend="threading"):
        try:
            outcomes: list[Outcome] = handle.get().run_batch(tasks)
            return outcomes
        except Exception as error:
            return error


class _ClusterBackend:
    """What the backends of clusters lack: put before one of them, as a mixin.

    joblib runs the loop of a single worker in this process. A batch whose worker is gone ends the loop,
    or with Dask is waited for without end.
    """

    supports_retrieve_callback = supports_return_generator = True
    #: What a backend raises, or returns, for a batch whose workers are gone.
    losses: tuple[type[Exception], ...]

    def effective_n_jobs(self, n_jobs: int) -> int:
        return max(2, n_jobs)

    def retrieve_result_callback(self, out: Any) -> Any:
        try:
            if isinstance(out, self.losses):
                raise out
            return ThreadingBackend.retrieve_result_callback(self, out)
        except self.losses as error:
            return [Lost(_cause(error))]


def _cause(error: Exception) -> str:
    """Return the line of a long traceback, maybe one of Java, that says what happened."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [""]
    telling = ("ModuleNotFoundError", "PYTHON_VERSION_MISMATCH", "SparkException", "Error: ")
    line = next((line for word in telling for line in lines if word in line), lines[0])
    return f"{type(error).__name__}: {line.rstrip('.')}"


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


# --- Dask: refits by the scheduler that a client is connected to, with the table scattered

#: Seconds in which the first worker must come.
PATIENCE = 60


@contextmanager
def _connect_dask(address: str | None, name: str) -> Iterator[Connection]:
    from concurrent.futures import CancelledError

    from distributed.scheduler import KilledWorker
    from joblib._dask import DaskDistributedBackend

    class Backend(_ClusterBackend, DaskDistributedBackend):  # type: ignore[misc]
        """joblib's backend, which never hears of a batch that Dask has given up."""

        losses = (KilledWorker, CancelledError)

        def submit(self, func: Any, callback: Any = None) -> Any:
            future = super().submit(func, callback)
            future.add_done_callback(lambda done: done.exception() and callback(done.exception()))
            return future

    with _dask_client(address, name) as client:
        workers = _wait_for_workers(client, name)
        _check_dask(client, name)
        if threaded := [threads for threads in workers.values() if threads > 1]:
            warnings.warn(
                f"{len(threaded)} of {len(workers)} Dask workers have several threads; a worker "
                "runs one refit at a time. To use all cores, start them with --nthreads 1 and "
                "--nworkers for their number.",
                stacklevel=2,
            )

        def send(refitter: Refitter) -> tuple[Any, Any]:
            _wait_for_workers(client, name)  # all of them may have been lost
            handle = Same(refitter)
            return Backend(client=client, scatter=[handle]), handle

        alive = lambda: bool(client.status == "running")  # noqa: E731
        yield Connection(capacity=len(workers), send=send, alive=alive)


@contextmanager
def _dask_client(address: str | None, name: str) -> Iterator[Any]:
    import distributed

    if address is None:
        try:
            present = distributed.get_client()
        except ValueError as error:
            raise InputError(
                "backend='dask' needs to know its cluster: give address='tcp://host:8786', the path of "
                "a scheduler file, or make a distributed.Client first."
            ) from error
        yield present
        return
    given = {"scheduler_file": address} if os.path.isfile(address) else {"address": address}
    try:
        client = distributed.Client(**given, set_as_default=False)
    except (OSError, ValueError, TypeError) as error:
        raise ClusterError(
            f"{name}: no Dask scheduler answers: {error}. Give its address as 'tcp://host:8786', or "
            "the path of its scheduler file."
        ) from error
    with client:
        yield client


def _wait_for_workers(client: Any, name: str) -> dict[str, int]:
    """Return the threads of each worker; a cluster that grows with its work is asked to begin."""
    if not client.nthreads():
        try:
            client.submit(os.getpid, pure=False).result(timeout=PATIENCE)
        except TimeoutError as error:
            raise ClusterError(
                f"{name}: this Dask has no worker after {PATIENCE} seconds; start some, as with: dask "
                f"worker {client.scheduler.address} --nthreads 1"
            ) from error
    return dict(client.nthreads())


def _check_dask(client: Any, name: str) -> None:
    """Ask every worker for its versions; what is scattered could not be unpacked by others."""
    try:
        answers = list(client.run(versions).values())
    except Exception as error:  # whatever stands in the way of the first call
        answers = [f"{type(error).__name__}: {error}"]
    compare_versions(answers, name)


# --- Ray: refits by actors, with the table in Ray's object store

#: A refit takes a core. A worker that died comes back with what it was given, as Dask has it: a batch
#: that has cost four workers is lost.
ACTOR = {"num_cpus": 1, "max_restarts": -1, "max_task_retries": 3}


@contextmanager
def _connect_ray(address: str | None, name: str) -> Iterator[Connection]:
    import ray
    from ray.exceptions import RayError
    from ray.util.joblib.ray_backend import RayBackend
    from ray.util.multiprocessing import Pool

    class Backend(_ClusterBackend, RayBackend):  # type: ignore[misc]
        """Ray's backend, whose own `configure` changes joblib's pools for the whole process."""

        losses = (RayError,)

        def configure(self, n_jobs: int = 1, parallel: Any = None, **_: Any) -> int:
            self._pool = Pool(processes=n_jobs, ray_remote_args=ACTOR)
            self.parallel = parallel
            return self.effective_n_jobs(n_jobs)

    def alive() -> bool:
        try:
            return bool(ray.nodes())
        except Exception:  # Ray has many ways to say that it is gone
            return False

    with _initialised_ray(address, name):
        capacity = int(ray.cluster_resources().get("CPU", 0))
        if not capacity:
            raise ClusterError(f"{name}: this Ray has no CPU to run refits on; add a node.")

        def send(refitter: Refitter) -> tuple[Any, Any]:
            return Backend(), Stored(ray.put(refitter))

        yield Connection(capacity=capacity, send=send, alive=alive)


@contextmanager
def _initialised_ray(address: str | None, name: str) -> Iterator[None]:
    import ray
    from ray.exceptions import RayError

    if ray.is_initialized():
        present = ray.get_runtime_context().gcs_address
        if address not in (None, "auto", "local", present) and not str(address).startswith("ray:"):
            raise InputError(
                f"{name}: this process is already connected to Ray at {present!r}, and can be connected "
                "to only one. Leave out the address, or call ray.shutdown() first."
            )
        yield
        return
    try:
        ray.init(address=address or "auto", log_to_driver=False)
    except (ConnectionError, ValueError, RuntimeError, RayError) as error:
        raise ClusterError(
            f"{name}: no Ray answers: {error}. Give 'host:6379' or 'ray://host:10001', or 'local' to "
            "start one on this machine."
        ) from error
    try:
        yield
    finally:
        ray.shutdown()


@dataclass(frozen=True)
class Stored:
    """A handle that hides a reference from Ray, which would fetch the table anew for every call."""

    reference: Any

    def get(self) -> Refitter:
        """Return the refitter; a process fetches it once."""
        return _fetch(self.reference)


@lru_cache(maxsize=1)
def _fetch(reference: Any) -> Refitter:
    import ray

    refitter: Refitter = ray.get(reference)
    return refitter


# --- Spark: refits by Spark jobs of one task each, with the table as a broadcast variable


@contextmanager
def _connect_spark(address: str | None, name: str) -> Iterator[Connection]:
    from joblibspark.backend import SparkDistributedBackend
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    class Backend(_ClusterBackend, SparkDistributedBackend):  # type: ignore[misc]
        """joblibspark's backend.

        It was written for a joblib before 1.5, where `submit` had another name, and stopping one of
        its loops fails on an attribute that is gone.
        """

        losses = (Py4JError, PySparkException)

        @property
        def capacity(self) -> int:
            return int(SparkDistributedBackend.effective_n_jobs(self, -1))

        def submit(self, func: Any, callback: Any = None) -> Any:
            return self.apply_async(func, callback)

        def abort_everything(self, ensure_ready: bool = True) -> None:  # noqa: ARG002
            self.terminate()

    with _spark_session(address, name) as session:
        context = session.sparkContext
        # not used here: resources of stages, and tags of Spark Connect, which threads would inherit
        warnings.filterwarnings("ignore", ".*stage-level scheduling")
        warnings.filterwarnings("ignore", "Spark session is not provided")
        capacity = Backend().capacity
        if not capacity:
            raise ClusterError(f"{name}: this Spark has no executor to run refits on.")

        def send(refitter: Refitter) -> tuple[Any, Any]:
            return Backend(), Broadcast(context.broadcast(refitter))

        alive = lambda: not context._jsc.sc().isStopped()  # noqa: E731
        yield Connection(capacity=capacity, send=send, alive=alive)


@contextmanager
def _spark_session(address: str | None, name: str) -> Iterator[Any]:
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    active = SparkSession.getActiveSession()
    if active is not None:
        if address not in (None, active.sparkContext.master):
            raise InputError(
                f"{name}: a session of the master {active.sparkContext.master!r} is active, and Spark "
                "allows only one in a process. Leave out the address, or stop that session first."
            )
        yield active
        return
    if address is None:
        raise InputError(
            "backend='spark' needs to know its cluster: give address='spark://host:7077' or another "
            "master, or start a SparkSession first."
        )
    if address.startswith("local"):  # the workers of this machine are this Python
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    try:
        session = SparkSession.builder.master(address).appName("mlflow-b3").getOrCreate()
    except (PySparkException, Py4JError, OSError) as error:
        raise ClusterError(f"{name}: no Spark answers: {error}") from error
    try:
        yield session
    finally:
        session.stop()


@dataclass(frozen=True)
class Broadcast:
    """A handle of a broadcast variable."""

    variable: Any

    def get(self) -> Refitter:
        """Return the refitter; Spark brings it to a process once."""
        refitter: Refitter = self.variable.value
        return refitter
