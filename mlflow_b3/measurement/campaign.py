"""All refits of one audit: planned within a budget, run, and put together."""

import logging
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from mlflow_b3.data import AuditData
from mlflow_b3.errors import InputError
from mlflow_b3.folds import Fold
from mlflow_b3.losses import Loss
from mlflow_b3.measurement.assembly import Measurement
from mlflow_b3.measurement.breaking import UNIFORM, FragmentSizes, breakable
from mlflow_b3.measurement.collecting import Collected
from mlflow_b3.measurement.comparison import check_test, measure_test, paired_tasks
from mlflow_b3.measurement.fits import Session, interrupted
from mlflow_b3.measurement.journal import Journal
from mlflow_b3.measurement.levels import (
    DEFAULT_FITS,
    STOCHASTIC_REPEATS,
    FitPlan,
    exposures,
    fits_within,
    largest_exposure,
    least_fits,
    parse_budget,
    plan_fits,
)
from mlflow_b3.measurement.outcomes import FitCounts, Outcome
from mlflow_b3.measurement.refitting import Refitter
from mlflow_b3.measurement.resampling import Resampler, Task
from mlflow_b3.measurement.row_parts import RowParts
from mlflow_b3.measurement.sessions import Means, open_session
from mlflow_b3.refit.interface import Learner

MOST_IID_FOLDS = 10
#: Refits after which their time is known well enough to judge a budget by the fastest of them.
STEADY = 3
_LOG = logging.getLogger(__name__)
#: Refits that a time is used for at the most: beyond that, noise of refits is nothing to that of rows.
MOST_FITS = 50_000


@dataclass(frozen=True, kw_only=True)
class Campaign:
    """What is refitted, on which folds, and with which means.

    Attributes
    ----------
    data, learner, loss, folds
    repeats : int
        How many assignments of clusters the folds consist of.
    scheme : {"subset", "replace"}
    levels : {"optimal", "uniform"} or int
    n_train : int or None
        Rows of a training set that is drawn with replacement; None for as many as T̂ has.
    seed : int
    fragments : FragmentSizes
        How clusters are broken on purpose.
    budget : int, str or None
        A number of refits, or a time such as "10m".
    distribution : bool
        Measure the distribution of the losses too, not only their mean.
    means : Means
        Where refits run, how long each may take, and what is shown of them.
    test : {"paired", "welch", "permutation"}
        The form of the leakage test; an audit measures the first of them along with the curve.
    before_first_refit : callable or None
        Called once everything that can be refused has been.
    started : float or None
        When the time of a budget began, by `time.monotonic`; by default with the first refit.
    preview : callable or None
        Says in a few words what a part of the measurement tells already, for the progress bar.
    """

    data: AuditData
    learner: Learner
    loss: Loss
    folds: tuple[Fold, ...]
    repeats: int = 1
    scheme: str = "subset"
    levels: str | int = "optimal"
    n_train: int | None = None
    seed: int = 0
    fragments: FragmentSizes = UNIFORM
    budget: int | str | None = None
    distribution: bool = False
    means: Means = field(default_factory=Means)
    test: str = "paired"
    started: float | None = None
    preview: Callable[[Measurement], str] | None = None
    before_first_refit: Callable[[], None] | None = None

    def measure(self, journal: Journal | None = None) -> tuple[Measurement, FitCounts]:
        """Run every refit of an audit.

        Raises
        ------
        InterruptedAudit
            When the user stops it before there is anything to conclude from.
        """
        if parse_budget(self.budget)[1] is None:
            self.plan()  # a budget that cannot work shows before the first refit
        check_test(self.tested_folds, self.test, self._test_budget())
        if self.before_first_refit is not None:
            self.before_first_refit()
        with self.session(journal) as session:
            collected = Collected(self, session.resampler)
            try:
                self._measure_curve(session, collected)
            except KeyboardInterrupt as interrupt:
                if self.test != "paired" or not collected.complete:
                    raise interrupted(session) from interrupt
            collected.require_complete(session.counts)
            measured = collected.assemble()
            if self.test != "paired":
                losses = measure_test(self, session, self._test_budget())
                measured = replace(measured, test_losses=losses)
            session.check_failures()
        return measured, session.counts

    def _measure_curve(self, session: Session, collected: Collected) -> None:
        # the folds as they are come first: what follows is measured against them
        repeats = STOCHASTIC_REPEATS if self.learner.stochastic else 1
        clock = None if session.deadline is None else _Clock(self, session)

        def collect(outcome: Outcome) -> None:
            collected.add(outcome)
            if clock is not None:
                clock.check(outcome)

        session.run(self._first_tasks(range(repeats)), collect, needed=0)
        if clock is not None and collected.folds_without_loss and clock.over:
            raise clock.too_short()
        again = []
        if collected.folds_without_loss:  # chance may have it that every refit of a fold failed
            again = [Task("loco", fold, 0, repeats) for fold in collected.folds_without_loss]
            session.run(again, collected.add)
        collected.start(session.counts)
        plan = self._settled_plan(session, len(again))
        tasks, _ = self._later_tasks(plan)
        planned = session.counts.planned + len(tasks)
        session.progress.expect(planned, final=self.test == "paired")
        session.run(tasks, collect, needed=0, look=collected.preview)
        if clock is not None and clock.over and not collected.complete:
            raise clock.too_short()

    def _settled_plan(self, session: Session, again: int) -> FitPlan:
        """Return the plan; one that follows from the speed of this machine is kept for later."""
        journal, seconds = session.journal, parse_budget(self.budget)[1]
        if seconds is None or journal is None:
            return self.plan(session, again)
        plan = journal.find_plan(seconds)
        if plan is None:
            plan = self.plan(session, again)
            journal.keep_plan(seconds, plan)
        return plan

    @contextmanager
    def session(self, journal: Journal | None = None) -> Iterator[Session]:
        """Get ready to run refits."""
        fits, seconds = parse_budget(self.budget)
        refitter = Refitter(
            data=self.data,
            learner=self.learner,
            loss=self.loss,
            resampler=self.resampler(),
            seconds_at_most=self.means.seconds_per_fit(seconds),
        )
        with open_session(
            refitter,
            self.means,
            journal=journal,
            seconds=seconds,
            started=self.started,
            most=fits or (DEFAULT_FITS if seconds is None else MOST_FITS),
            expected=fits or DEFAULT_FITS,
        ) as session:
            yield session

    @property
    def tested_folds(self) -> tuple[Fold, ...]:
        """The folds of the first assignment of clusters, on which a test of its own is made."""
        return self.folds[: len(self.folds) // self.repeats]

    def _test_budget(self) -> int | None:
        """Return what the curve leaves for a test of its own."""
        fits, _ = parse_budget(self.budget)
        if fits is None:
            return None
        plan = self.plan()
        curve = self._later_tasks(replace(plan, test=0))[0]
        return max(1, fits - len(self._first_tasks(range(plan.loco))) - len(curve))

    @property
    def iid_count(self) -> int:
        """How many folds of single rows there are: as large as those of clusters, on average."""
        size = np.mean([len(fold.validation) for fold in self.folds])
        return min(MOST_IID_FOLDS, max(2, round(self.data.n_rows / size)))

    def resampler(self) -> Resampler:
        """Return what draws the rows of every refit."""
        return Resampler(
            folds=self.folds,
            iid_folds=RowParts(self.data.n_rows, self.iid_count, self.seed),
            clusters=self.data.clusters,
            exposures=exposures(self.levels, self._largest_exposure),
            n_train=self.n_train,
            scheme=self.scheme,
            seed=self.seed,
            fragments=self.fragments,
        )

    @property
    def _largest_exposure(self) -> float:
        return largest_exposure(self.n_train, min(len(fold.validation) for fold in self.folds))

    def plan(self, session: Session | None = None, again: int = 0) -> FitPlan:
        """Return the plan; a time becomes a number of refits by the speed of those done so far.

        Refits on whole folds that were made `again` count against the budget, down to the least.
        """
        fits, seconds = parse_budget(self.budget)
        design: dict[str, Any] = {
            "n_folds": len(self.folds),
            "stochastic": self.learner.stochastic,
            "levels": self.levels,
            "from_zero": self.scheme == "replace",
            # the plan has one fold of rows for each of clusters; given folds may need more
            "others": max(0, self.iid_count - len(self.folds)),
        }
        if fits is not None and again:
            fits = max(fits - again, least_fits(**design))
        if seconds is not None and session is not None and session.counts.done:
            counts = session.counts
            left = seconds - (time.monotonic() - session.started)
            speed = counts.seconds / counts.done
            fits = counts.done + fits_within(left, per_fit=speed, workers=session.workers.count)
            fits = max(min(fits, MOST_FITS), least_fits(**design))
        return plan_fits(fits, **design)

    def least_tasks(self) -> int:
        """Return how many refits of the curve an answer needs, those of the test left aside."""
        plan = plan_fits(
            None,
            n_folds=len(self.folds),
            stochastic=self.learner.stochastic,
            levels=self.levels,
            from_zero=self.scheme == "replace",
        )
        _, needed = self._later_tasks(replace(plan, test=0))
        return len(self._first_tasks(range(plan.loco))) + needed

    def _first_tasks(self, replicates: range) -> list[Task]:
        loco = [
            Task("loco", fold, 0, replicate)
            for fold in range(len(self.folds))
            for replicate in replicates
        ]
        return loco + [Task("iid", fold, 0, 0) for fold in range(self.iid_count)]

    def _later_tasks(self, plan: FitPlan) -> tuple[list[Task], int]:
        """Return all refits after the first ones, and how many of them an answer needs at least.

        Those come first; the others are mixed, so that whatever is done when the time is over, or the
        user stops, is as even over folds and levels as the whole.
        """
        # a bootstrap of T̂ is noisy at level 0 too, T̂ itself is not
        levels = dict(enumerate(plan.rows, start=0 if self.scheme == "replace" else 1))
        placed: list[tuple[bool, float, Task]] = []
        for number, fold in enumerate(self.folds):
            for level, count in levels.items():
                placed += [
                    (replicate >= 2, replicate / count, Task("rows", number, level, replicate))
                    for replicate in range(count)
                ]
            breaks = self.n_train is None  # parts of clusters belong to training sets of full size
            if breaks and len(breakable(self.data.clusters[fold.validation], self.fragments)):
                placed += [
                    (
                        replicate >= 2,
                        replicate / plan.fragments,
                        Task("fragments", number, 0, replicate),
                    )
                    for replicate in range(plan.fragments)
                ]
        rounds = plan.test if self.test == "paired" else 0
        for task in paired_tasks(self.folds, range(rounds)):
            placed.append((task.replicate >= 1, task.replicate / rounds, task))
        placed.sort(key=lambda place: place[:2])  # stable: folds and levels stay in their order
        return [task for *_, task in placed], sum(not late for late, *_ in placed)


def check_timed_test(test: str, budget: int | str | None) -> None:
    """Raise an `InputError` for a time where the test cannot be cut short when it is over."""
    if test != "paired" and parse_budget(budget)[1] is not None:
        raise InputError(
            f"budget={budget!r} is a time, which test={test!r} cannot keep: it needs all of its "
            "refits. Give a number of refits, leave the budget out, or use test='paired'."
        )


class _Clock:
    """Tells as early as possible that a budget in time does not suffice.

    Parameters
    ----------
    campaign : Campaign
    session : Session
        With a deadline.
    """

    def __init__(self, campaign: Campaign, session: Session) -> None:
        self._budget, self._session = campaign.budget, session
        self._least = campaign.least_tasks()
        self._fastest = math.inf
        self._seen = 0
        self._warned = False

    @property
    def over(self) -> bool:
        """Whether the time is over."""
        return self._left() <= 0

    def check(self, outcome: Outcome) -> None:
        """Take note of a refit; raise an `InputError` where the least number takes too long.

        The refits that are left are taken for as fast as the fastest so far, and for twice as fast
        after one or two, which may have been slow to start. Where the mean says otherwise, that is
        logged once.
        """
        counts = self._session.counts
        if outcome.error is None and counts.done > counts.replayed:
            self._seen += 1
            self._fastest = min(self._fastest, outcome.seconds)
        missing = self._least - counts.done
        if missing <= 0 or not self._seen:
            return
        fastest = self._fastest * (1.0 if self._seen >= STEADY else 0.5)
        if self._time_for(missing, fastest) > self._left():
            raise self.too_short()
        if not self._warned and self._seen >= STEADY:
            expected = self._time_for(missing, counts.seconds / counts.done)
            if expected > self._left():
                self._warned = True
                _LOG.warning(
                    "budget=%r may not suffice: the least number of refits would take %.0f s more, and "
                    "%.0f s are left. The audit stops when they are over.",
                    *(self._budget, expected, self._left()),
                )

    def too_short(self) -> InputError:
        """Return the error of a budget in time that does not suffice."""
        counts, workers = self._session.counts, self._session.workers.count
        speed = counts.seconds / max(1, counts.done)
        spent = time.monotonic() - self._session.started
        needed = spent + 1.2 * self._time_for(max(1, self._least - counts.done), speed)
        kept = "" if self._session.journal is None else " Those done are in the journal."
        return InputError(
            f"budget={self._budget!r} is too short: a refit takes about {speed:.2g} s, {workers} at a "
            f"time, and at least {self._least} are needed; {counts.done} are done after {spent:.0f} "
            f"s. Give budget='{math.ceil(needed / 60)}m' or more, fewer folds, or more workers "
            f"(n_jobs).{kept}"
        )

    def _left(self) -> float:
        assert self._session.deadline is not None
        return self._session.deadline - time.monotonic()

    def _time_for(self, fits: int, seconds: float) -> float:
        return fits * seconds / self._session.workers.count
