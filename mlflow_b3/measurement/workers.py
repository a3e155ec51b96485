"""Who runs the refits: this process, worker processes on this machine, or a cluster."""

import logging
import os
import pickle
import signal
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import Any, Self

import joblib
from joblib.externals.loky.process_executor import BrokenProcessPool
from threadpoolctl import threadpool_limits

from mlflow_b3.errors import InputError, choose
from mlflow_b3.measurement.memory import largest_count
from mlflow_b3.measurement.outcomes import Outcome
from mlflow_b3.measurement.refitting import Refitter, Workers, WorkersLost, close_quietly
from mlflow_b3.measurement.resampling import Task
from mlflow_b3.measurement.sharing import CannotShare, share

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
        from mlflow_b3.measurement.clusters import open_cluster

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
