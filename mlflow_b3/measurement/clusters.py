"""Refits on a cluster that the user names: Dask, Ray or Spark, by joblib's own backends."""

import platform
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import joblib
from threadpoolctl import threadpool_limits

from mlflow_b3.errors import B3Error, InputError, choose
from mlflow_b3.measurement.outcomes import Outcome
from mlflow_b3.measurement.refitting import Refitter, WorkersLost, close_quietly
from mlflow_b3.measurement.resampling import Task
from mlflow_b3.measurement.workers import CLUSTERS

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
