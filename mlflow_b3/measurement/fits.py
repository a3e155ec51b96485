"""Refits, run one after another or in parallel, with progress and counted failures."""

import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import joblib
import numpy as np
from numpy.typing import NDArray

from mlflow_b3.data import AuditData
from mlflow_b3.errors import FitError, InputError, PredictionError
from mlflow_b3.losses import Loss
from mlflow_b3.measurement.resampling import Draw, Resampler, Task
from mlflow_b3.refit.interface import ConstantPredictor, Learner, Rows

TOLERATED_FAILURES = 0.1
Losses = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The losses of one refit, or its failure: a line with the cause, then the traceback."""

    task: Task
    validation: Losses | None = None
    held_back: Losses | None = None
    seconds: float = 0.0
    one_class: bool = False
    warnings: tuple[str, ...] = ()
    error: str | None = None


@dataclass
class FitCounts:
    """What happened over all refits of an audit; filled while they run."""

    done: int = 0
    failed: int = 0
    one_class: int = 0
    seconds: float = 0.0
    first_error: str | None = None
    warnings: Counter[str] = field(default_factory=Counter)

    def add(self, outcome: Outcome) -> None:
        """Count one refit."""
        self.done += 1
        self.seconds += outcome.seconds
        self.one_class += outcome.one_class
        self.warnings.update(outcome.warnings)
        if outcome.error is not None:
            self.failed += 1
            self.first_error = self.first_error or outcome.error


@dataclass(frozen=True, kw_only=True)
class Refitter:
    """Everything that a refit needs beside its task; travels to the workers as one piece."""

    data: AuditData
    learner: Learner
    loss: Loss
    resampler: Resampler

    def run(self, task: Task) -> Outcome:
        """Train on the task's rows and return the losses on the rows it left out."""
        draw = self.resampler.draw(task)
        started = time.perf_counter()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("default")
            try:
                seed = self.resampler.fit_seed(task)
                predictor = self.learner.fit(self._rows(draw), seed)
                validation, held_back = self._score(predictor, draw)
            except PredictionError:
                raise  # no other rows would help
            except Exception as error:  # whatever a learner raises is reported, never lost
                return Outcome(task=task, error=f"{_cause(error)}\n\n{traceback.format_exc()}")
        return Outcome(
            task=task,
            validation=validation,
            held_back=held_back,
            seconds=time.perf_counter() - started,
            one_class=isinstance(predictor, ConstantPredictor),
            warnings=tuple({f"{w.category.__name__}: {w.message}" for w in caught}),
        )

    def _rows(self, draw: Draw) -> Rows:
        chosen, weight = draw.training, self.data.weight
        return Rows(
            X=self.data.take(chosen),
            target=self.data.target[chosen],
            ids=self.data.ids[chosen],
            weight=None if weight is None else weight[chosen],
        )

    def _score(self, predictor: Any, draw: Draw) -> tuple[Losses, Losses]:
        rows = np.concatenate([draw.validation, draw.held_back])
        if not len(rows):  # drawn with replacement, V̂ can be used up
            return np.zeros(0), np.zeros(0)
        losses = self.loss.evaluate(predictor, self.data.take(rows), self.data.target[rows])
        return losses[: len(draw.validation)], losses[len(draw.validation) :]

    def run_batch(self, tasks: Sequence[Task]) -> list[Outcome]:
        """Run several tasks in one go."""
        return [self.run(task) for task in tasks]


def run_fits(
    refitter: Refitter,
    tasks: Sequence[Task],
    counts: FitCounts,
    *,
    n_jobs: int | None = None,
    backend: str | None = None,
    advance: Callable[[int], object] = lambda _: None,
) -> Iterator[Outcome]:
    """Run refits and yield their outcomes in the order of the tasks, failures left out.

    Parameters
    ----------
    refitter : Refitter
    tasks : sequence of Task
    counts : FitCounts
        Counts every outcome, failures included.
    n_jobs, backend
        As in `joblib.Parallel`. The results do not depend on them; learners that are not `parallel`
        run here, one after another, whatever they are.
    advance : callable
        Called with the number of refits that have just been done.

    Raises
    ------
    FitError
        When more than a tenth of all refits so far, and more than two, have failed.
    PredictionError
        When the model cannot give the prediction that the loss needs.
    """
    for outcome in _outcomes(refitter, tasks, n_jobs, backend, advance):
        counts.add(outcome)
        if outcome.error is None:
            yield outcome
        elif counts.done == 1 or _too_many(counts, final=False):
            raise _failure(counts)
    if _too_many(counts, final=True):
        raise _failure(counts)


def _outcomes(
    refitter: Refitter,
    tasks: Sequence[Task],
    n_jobs: int | None,
    backend: str | None,
    advance: Callable[[int], object],
) -> Iterator[Outcome]:
    workers = count_workers(n_jobs)
    if not refitter.learner.parallel or (workers == 1 and backend is None):
        for task in tasks:
            yield refitter.run(task)
            advance(1)
        return
    size = max(1, len(tasks) // (8 * workers))
    batches = [tasks[start : start + size] for start in range(0, len(tasks), size)]
    try:
        parallel = joblib.Parallel(n_jobs=n_jobs, backend=backend, return_as="generator")
    except ValueError as error:
        raise InputError(f"backend={backend!r}: {error}") from error
    done: Iterable[list[Outcome]] = parallel(
        joblib.delayed(refitter.run_batch)(batch) for batch in batches
    )
    for outcomes in done:
        yield from outcomes
        advance(len(outcomes))


def count_workers(n_jobs: int | None) -> int:
    """Return how many workers joblib would use."""
    if n_jobs is not None and (
        isinstance(n_jobs, bool) or not isinstance(n_jobs, int) or not n_jobs
    ):
        raise InputError(
            f"n_jobs={n_jobs!r} is not usable; give a number of workers, or -1 for all."
        )
    return int(joblib.effective_n_jobs(n_jobs))


def _too_many(counts: FitCounts, *, final: bool) -> bool:
    if not final and counts.done < 20:
        return False
    return counts.failed > max(2, TOLERATED_FAILURES * counts.done)


def _failure(counts: FitCounts) -> FitError:
    return FitError(
        f"{counts.failed} of {counts.done} refits failed, the first with: {counts.first_error}"
    )


def _cause(error: Exception) -> str:
    """Return what an exception says in its first line; the last may be a detail or a drawing."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
