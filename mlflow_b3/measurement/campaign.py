"""All refits of one audit: planned within a budget, run, and put together."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.model_selection import KFold
from tqdm import tqdm

from mlflow_b3.data import AuditData
from mlflow_b3.errors import FitError, InputError
from mlflow_b3.folds import Fold
from mlflow_b3.losses import Loss
from mlflow_b3.measurement.assembly import (
    FoldLosses,
    Measurement,
    TestLosses,
    assemble,
    gather_test_losses,
)
from mlflow_b3.measurement.breaking import UNIFORM, FragmentSizes, breakable
from mlflow_b3.measurement.fits import FitCounts, Outcome, Refitter, count_workers, run_fits
from mlflow_b3.measurement.levels import (
    STOCHASTIC_REPEATS,
    FitPlan,
    exposures,
    fits_within,
    least_fits,
    parse_budget,
    plan_fits,
)
from mlflow_b3.measurement.resampling import Resampler, Task, test_parts
from mlflow_b3.measurement.tails import TailLosses
from mlflow_b3.refit.interface import Learner

MOST_IID_FOLDS = 10
TEST_ROUNDS = 5


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
    n_jobs, backend
        As in `joblib.Parallel`.
    progress : bool or None
        Show a progress bar; None shows it on a terminal only.
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
    n_jobs: int | None = None
    backend: str | None = None
    progress: bool | None = None

    def measure(self) -> tuple[Measurement, FitCounts]:
        """Run every refit of an audit."""
        if parse_budget(self.budget)[1] is None:
            self._plan(FitCounts())  # a budget that cannot work shows before the first refit
        resampler = self._resampler()
        collected = [FoldLosses(fold, len(resampler.exposures)) for fold in self.folds]
        tails = TailLosses(self.folds, resampler)
        iid: list[NDArray[np.float64]] = []
        counts = FitCounts()

        def collect(outcome: Outcome) -> None:
            if outcome.task.purpose == "iid":
                assert outcome.validation is not None
                iid.append(outcome.validation)
                return
            collected[outcome.task.fold].add(outcome, resampler)
            if self.distribution:
                tails.add(outcome)

        with self._bar() as bar:
            # the folds as they are come first: what follows is measured against them
            self._run(resampler, self._first_tasks(resampler), counts, collect, bar)
            if any((fold.loco.counts == 0).any() for fold in collected) or not iid:
                raise FitError(f"a refit on a whole fold failed:\n{counts.first_error}")
            if self.distribution:
                tails.set_thresholds()
            plan = self._plan(counts)
            tasks = self._curve_tasks(plan) + self._test_tasks(range(plan.test))
            self._run(resampler, tasks, counts, collect, bar)
        self._require_all_levels(collected, counts)
        measured = assemble(collected, iid, resampler, self.repeats)
        return replace(measured, tails=tails.assemble(self.repeats)), counts

    def measure_test(self) -> tuple[TestLosses, FitCounts]:
        """Run the refits of the leakage test only."""
        resampler = self._resampler()
        collected = [FoldLosses(fold, len(resampler.exposures)) for fold in self.folds]
        counts = FitCounts()
        fits, seconds = parse_budget(self.budget)
        per_round = len(self._test_tasks(range(1)))
        rounds = TEST_ROUNDS if fits is None else max(1, fits // max(1, per_round))

        def collect(outcome: Outcome) -> None:
            collected[outcome.task.fold].add(outcome, resampler)

        with self._bar() as bar:
            self._run(resampler, self._test_tasks(range(1)), counts, collect, bar)
            if seconds is not None:
                workers = count_workers(self.n_jobs)
                left = seconds - counts.seconds / workers
                speed = counts.seconds / max(1, counts.done)
                rounds = 1 + fits_within(left, per_fit=speed, workers=workers) // max(1, per_round)
            self._run(resampler, self._test_tasks(range(1, rounds)), counts, collect, bar)
        return gather_test_losses(collected, self.data.clusters), counts

    def _require_all_levels(self, collected: Sequence[FoldLosses], counts: FitCounts) -> None:
        if any(0 in fold.fits for fold in collected):
            raise FitError(f"all refits at one level failed:\n{counts.first_error}")
        if any((fold.validation.counts.sum(axis=0) == 0).any() for fold in collected):
            raise InputError(
                f"scheme={self.scheme!r} leaves no validation rows of a fold to score: drawing with "
                "replacement uses all of them. Use scheme='subset', or fewer folds."
            )

    def _resampler(self) -> Resampler:
        size = np.mean([len(fold.validation) for fold in self.folds])
        count = min(MOST_IID_FOLDS, max(2, round(self.data.n_rows / size)))
        splitter = KFold(count, shuffle=True, random_state=self.seed)
        splits = splitter.split(np.zeros((self.data.n_rows, 1)))
        return Resampler(
            folds=self.folds,
            iid_folds=tuple(Fold(training=t, validation=v) for t, v in splits),
            clusters=self.data.clusters,
            exposures=exposures(self.levels),
            scheme=self.scheme,
            seed=self.seed,
            fragments=self.fragments,
        )

    def _plan(self, counts: FitCounts) -> FitPlan:
        """Return the plan; a time becomes a number of refits by the speed of those done so far."""
        fits, seconds = parse_budget(self.budget)
        folds, stochastic = len(self.folds), self.learner.stochastic
        if seconds is not None and counts.done:
            workers = count_workers(self.n_jobs)
            fits = counts.done + fits_within(
                seconds - counts.seconds / workers,
                per_fit=counts.seconds / counts.done,
                workers=workers,
            )
            least = least_fits(n_folds=folds, stochastic=stochastic, design=self.levels)
            fits = max(fits, least)
        return plan_fits(fits, n_folds=folds, stochastic=stochastic, design=self.levels)

    def _first_tasks(self, resampler: Resampler) -> list[Task]:
        repeats = STOCHASTIC_REPEATS if self.learner.stochastic else 1
        loco = [
            Task("loco", fold, 0, replicate)
            for fold in range(len(self.folds))
            for replicate in range(repeats)
        ]
        return loco + [Task("iid", fold, 0, 0) for fold in range(len(resampler.iid_folds))]

    def _curve_tasks(self, plan: FitPlan) -> list[Task]:
        # a bootstrap of T̂ is noisy at level 0 too, T̂ itself is not
        counts = dict(enumerate(plan.rows, start=1))
        if self.scheme == "replace":
            counts[0] = plan.rows[0]
        curve = [
            Task("rows", fold, level, replicate)
            for fold in range(len(self.folds))
            for level, count in counts.items()
            for replicate in range(count)
        ]
        broken = [
            Task("fragments", number, 0, replicate)
            for number, fold in enumerate(self.folds)
            if len(breakable(self.data.clusters[fold.validation], self.fragments))
            for replicate in range(plan.fragments)
        ]
        return curve + broken

    def _test_tasks(self, rounds: range) -> list[Task]:
        tasks = []
        for fold, rows in enumerate(self.folds):
            parts = range(test_parts(rows))
            for number in rounds if parts else ():
                tasks.append(Task("test-without", fold, 0, number))
                tasks += [Task("test-with", fold, part, number) for part in parts]
        return tasks

    def _bar(self) -> "tqdm[Any]":
        hidden = None if self.progress is None else not self.progress
        return tqdm(total=0, desc="refits", unit="fit", disable=hidden)

    def _run(
        self,
        resampler: Resampler,
        tasks: Sequence[Task],
        counts: FitCounts,
        collect: Callable[[Outcome], None],
        bar: "tqdm[Any]",
    ) -> None:
        bar.total = (bar.total or 0) + len(tasks)
        bar.refresh()
        refitter = Refitter(
            data=self.data, learner=self.learner, loss=self.loss, resampler=resampler
        )
        outcomes = run_fits(
            refitter, tasks, counts, n_jobs=self.n_jobs, backend=self.backend, advance=bar.update
        )
        for outcome in outcomes:
            collect(outcome)
