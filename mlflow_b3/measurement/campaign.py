"""All refits of one audit: planned within a budget, run, and put together."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from mlflow_b3.data import AuditData
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
    SHARES,
    STOCHASTIC_REPEATS,
    FitPlan,
    exposures,
    fits_within,
    least_fits,
    parse_budget,
    plan_fits,
)
from mlflow_b3.measurement.outcomes import FitCounts
from mlflow_b3.measurement.refitting import Refitter
from mlflow_b3.measurement.resampling import Resampler, Task
from mlflow_b3.measurement.row_parts import RowParts
from mlflow_b3.measurement.sessions import Means, open_session
from mlflow_b3.refit.interface import Learner

MOST_IID_FOLDS = 10
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
    levels : {"optimal", "uniform"}
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
    preview : callable or None
        Says in a few words what a part of the measurement tells already, for the progress bar.
    """

    data: AuditData
    learner: Learner
    loss: Loss
    folds: tuple[Fold, ...]
    repeats: int = 1
    scheme: str = "subset"
    levels: str = "optimal"
    seed: int = 0
    fragments: FragmentSizes = UNIFORM
    budget: int | str | None = None
    distribution: bool = False
    means: Means = field(default_factory=Means)
    test: str = "paired"
    preview: Callable[[Measurement], str] | None = None

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
        session.run(self._first_tasks(range(repeats)), collected.add)
        if collected.folds_without_loss:  # chance may have it that every refit of a fold failed
            again = [Task("loco", fold, 0, repeats) for fold in collected.folds_without_loss]
            session.run(again, collected.add)
        collected.start(session.counts)
        plan = self._settled_plan(session)
        tasks, needed = self._later_tasks(plan)
        planned = session.counts.planned + len(tasks)
        session.progress.expect(planned, final=self.test == "paired")
        session.run(tasks, collected.add, needed=needed, look=collected.preview)

    def _settled_plan(self, session: Session) -> FitPlan:
        """Return the plan; one that follows from the speed of this machine is kept for later."""
        journal, seconds = session.journal, parse_budget(self.budget)[1]
        if seconds is None or journal is None:
            return self.plan(session)
        plan = journal.find_plan(seconds)
        if plan is None:
            plan = self.plan(session)
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
            most=fits or (DEFAULT_FITS if seconds is None else MOST_FITS),
            expected=fits or DEFAULT_FITS,
        ) as session:
            yield session

    @property
    def tested_folds(self) -> tuple[Fold, ...]:
        """The folds of the first assignment of clusters, on which a test of its own is made."""
        return self.folds[: len(self.folds) // self.repeats]

    def _test_budget(self) -> int | str | None:
        """Return what the curve leaves for a test of its own."""
        fits, seconds = parse_budget(self.budget)
        if fits is not None:
            plan = self.plan()
            curve = self._later_tasks(replace(plan, test=0))[0]
            return max(1, fits - len(self._first_tasks(range(plan.loco))) - len(curve))
        return None if seconds is None else f"{SHARES['test'] * seconds:.3f}s"

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
            exposures=exposures(self.levels),
            scheme=self.scheme,
            seed=self.seed,
            fragments=self.fragments,
        )

    def plan(self, session: Session | None = None) -> FitPlan:
        """Return the plan; a time becomes a number of refits by the speed of those done so far."""
        fits, seconds = parse_budget(self.budget)
        design: dict[str, Any] = {
            "n_folds": len(self.folds),
            "stochastic": self.learner.stochastic,
            "design": self.levels,
            "from_zero": self.scheme == "replace",
        }
        if seconds is not None and session is not None and session.counts.done:
            counts = session.counts
            left = seconds - (time.monotonic() - session.started)
            speed = counts.seconds / counts.done
            fits = counts.done + fits_within(left, per_fit=speed, workers=session.workers.count)
            fits = max(min(fits, MOST_FITS), least_fits(**design))
        return plan_fits(fits, **design)

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
            if len(breakable(self.data.clusters[fold.validation], self.fragments)):
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
