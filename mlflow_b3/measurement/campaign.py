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
from mlflow_b3.measurement.assembly import FoldLosses, Measurement, assemble
from mlflow_b3.measurement.breaking import UNIFORM, FragmentSizes, breakable
from mlflow_b3.measurement.comparison import check_test, measure_test, paired_tasks
from mlflow_b3.measurement.fits import FitCounts, Outcome, Refitter, count_workers, run_fits
from mlflow_b3.measurement.levels import (
    SHARES,
    STOCHASTIC_REPEATS,
    FitPlan,
    exposures,
    fits_within,
    least_fits,
    parse_budget,
    plan_fits,
)
from mlflow_b3.measurement.resampling import Resampler, Task
from mlflow_b3.measurement.tails import TailLosses
from mlflow_b3.refit.interface import Learner

MOST_IID_FOLDS = 10


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
        As in `joblib.Parallel`; without effect on learners that are not `parallel`.
    progress : bool or None
        Show a progress bar; None shows it on a terminal only.
    test : {"paired", "welch", "permutation"}
        The form of the leakage test; an audit measures the first of them along with the curve.
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
    test: str = "paired"

    def measure(self) -> tuple[Measurement, FitCounts]:
        """Run every refit of an audit."""
        if parse_budget(self.budget)[1] is None:
            self._plan(FitCounts())  # a budget that cannot work shows before the first refit
        check_test(self._test_alone())
        resampler = self.resampler()
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

        with self.bar() as bar:
            # the folds as they are come first: what follows is measured against them
            self.run(resampler, self._first_tasks(resampler), counts, collect, bar)
            if any((fold.loco.counts == 0).any() for fold in collected) or not iid:
                raise FitError(f"a refit on a whole fold failed:\n{counts.first_error}")
            if self.distribution:
                tails.set_thresholds()
            plan = self._plan(counts)
            rounds = range(plan.test if self.test == "paired" else 0)
            tasks = self._curve_tasks(plan) + paired_tasks(self.folds, rounds)
            self.run(resampler, tasks, counts, collect, bar)
        self._require_all_levels(collected, counts)
        measured = assemble(collected, iid, resampler, self.repeats)
        measured = replace(measured, tails=tails.assemble(self.repeats))
        if self.test != "paired":
            measured = replace(measured, test_losses=measure_test(self._test_alone(), counts))
        return measured, counts

    def _test_alone(self) -> "Campaign":
        """Return a campaign for the test: one assignment of clusters, and what the curve leaves."""
        fits, seconds = parse_budget(self.budget)
        budget: int | str | None = None
        if fits is not None:
            resampler = self.resampler()
            curve = self._curve_tasks(self._plan(FitCounts()))
            budget = max(1, fits - len(self._first_tasks(resampler)) - len(curve))
        elif seconds is not None:
            budget = f"{SHARES['test'] * seconds:.3f}s"
        return replace(
            self, folds=self.folds[: len(self.folds) // self.repeats], repeats=1, budget=budget
        )

    def _require_all_levels(self, collected: Sequence[FoldLosses], counts: FitCounts) -> None:
        if any(0 in fold.fits for fold in collected):
            raise FitError(f"all refits at one level failed:\n{counts.first_error}")
        if any((fold.validation.counts.sum(axis=0) == 0).any() for fold in collected):
            raise InputError(
                f"scheme={self.scheme!r} leaves no validation rows of a fold to score: drawing with "
                "replacement uses all of them. Use scheme='subset', or fewer folds."
            )

    def resampler(self) -> Resampler:
        """Return what draws the rows of every refit."""
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

    @property
    def workers(self) -> int:
        """How many refits run at the same time."""
        workers = count_workers(self.n_jobs)
        return workers if self.learner.parallel else 1

    def _plan(self, counts: FitCounts) -> FitPlan:
        """Return the plan; a time becomes a number of refits by the speed of those done so far."""
        fits, seconds = parse_budget(self.budget)
        folds, stochastic = len(self.folds), self.learner.stochastic
        if seconds is not None and counts.done:
            workers = self.workers
            fits = counts.done + fits_within(
                seconds - counts.seconds / workers,
                per_fit=counts.seconds / counts.done,
                workers=workers,
            )
            fits = max(
                fits,
                least_fits(
                    n_folds=folds,
                    stochastic=stochastic,
                    design=self.levels,
                    from_zero=self._from_zero,
                ),
            )
        return plan_fits(
            fits,
            n_folds=folds,
            stochastic=stochastic,
            design=self.levels,
            from_zero=self._from_zero,
        )

    @property
    def _from_zero(self) -> bool:
        return self.scheme == "replace"

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
        counts = dict(enumerate(plan.rows, start=0 if self._from_zero else 1))
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

    def bar(self) -> "tqdm[Any]":
        """Return a progress bar that grows with every `run`."""
        hidden = None if self.progress is None else not self.progress
        return tqdm(total=0, desc="refits", unit="fit", disable=hidden)

    def run(
        self,
        resampler: Resampler,
        tasks: Sequence[Task],
        counts: FitCounts,
        collect: Callable[[Outcome], None],
        bar: "tqdm[Any]",
    ) -> None:
        """Run refits and hand each outcome to `collect`."""
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
