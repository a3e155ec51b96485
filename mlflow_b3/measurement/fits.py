"""Refits of an audit: replayed from a journal or run, in batches, and handed over in order."""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from mlflow_b3.errors import FitError, InterruptedAudit
from mlflow_b3.measurement.interruption import Interruption
from mlflow_b3.measurement.journal import Journal
from mlflow_b3.measurement.outcomes import TOLERATED_FAILURES, FitCounts, Outcome
from mlflow_b3.measurement.progress import Progress
from mlflow_b3.measurement.refitting import Workers, WorkersLost
from mlflow_b3.measurement.resampling import Resampler, Task

#: Failures at the start, or their share after some refits, by which an audit is given up early.
HOPELESS, HOPELESS_SHARE, FEW = 3, 0.3, 20
#: A batch of refits takes about this many seconds: long enough for messages not to matter.
BATCH_SECONDS = 0.3
#: Batches that each worker should have at least, so that none waits for the last one.
BATCHES_EACH = 8
#: How often a refit that is alone may lose its worker before it counts as failed.
LOSSES = 2
_LOG = logging.getLogger(__name__)


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
            self.journal.add([outcome for outcome in outcomes if outcome.error is None])
            failed = [outcome.task for outcome in outcomes if outcome.error is not None]
            self.journal.add_failures(failed)
            again = self.journal.failed.difference(failed)
            self.counts.retried += sum(outcome.task in again for outcome in outcomes)

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
