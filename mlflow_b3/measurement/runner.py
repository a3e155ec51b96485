"""Runs refits on this machine or on a cluster: batches, lost workers, deadlines, Ctrl-C, progress."""

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import chain
from pathlib import Path
from types import FrameType
from typing import Any, Self

import joblib
import pandas as pd
from threadpoolctl import ThreadpoolController
from tqdm import tqdm

from mlflow_b3.data.memory import keep_freed
from mlflow_b3.data.table import AuditData
from mlflow_b3.errors import FitError, InputError, InterruptedAudit, choose
from mlflow_b3.measurement.engines import (
    CLUSTERS,
    CannotShare,
    OnThisMachine,
    Same,
    open_cluster,
    share,
)
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
)

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
    if workers == 1:
        return 1
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

#: Backends on this machine.
LOCAL = ("loky", "threading", "sequential")
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
    keep_freed()
    if not refitter.learner.parallel:
        yield Here(refitter)
        return
    # threads of linear algebra add up in an order of their own, so that digits would depend on them
    with one_thread():
        yield from _open(refitter, settings, expected)


def one_thread() -> AbstractContextManager[object]:
    """Limit linear algebra to one thread."""
    # finding its libraries takes milliseconds, and new ones come with new modules
    limits: AbstractContextManager[object] = _libraries(len(sys.modules)).limit(limits=1)
    return limits


@lru_cache(maxsize=1)
def _libraries(modules: int) -> ThreadpoolController:  # noqa: ARG001 - found anew for other modules
    return ThreadpoolController()


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
        yield OnThisMachine(refitter=Same(refitter), count=count, backend=backend)
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
            refitter.data.give_back()
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
            total=total, desc="Refits", unit="fit", disable=hidden, mininterval=seconds
        )
        self._next_look = time.monotonic() + SECONDS_BETWEEN_LOOKS

    def __enter__(self) -> Self:
        """Show the bar."""
        return self

    def __exit__(self, *_: object) -> None:
        """Leave it as it is."""
        self._bar.close()

    def name(self, doing: str) -> None:
        """Say what the refits that follow are for."""
        self._bar.set_description(doing, refresh=False)

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
        doing: str,
        needed: int | None = None,
        look: Callable[[], str | None] = lambda: None,
    ) -> None:
        """Run refits and hand the successful ones over in the order of the tasks.

        Parameters
        ----------
        tasks : sequence of Task
        collect : callable
            Called with the outcome of each refit that did not fail.
        doing : str
            What these refits are for, beside the progress bar.
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
        self.progress.name(doing)
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
            f"Up to {100 * TOLERATED_FAILURES:g}% of all refits may fail."
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
