"""What comes of refits: the losses of one, and the counts of all."""

from collections import Counter
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from mlflow_b3.measurement.resampling import Draw, Task
from mlflow_b3.results import Result

Losses = NDArray[np.float64]
#: The share of refits that may fail before an audit gives up.
TOLERATED_FAILURES = 0.1
#: Causes of failures that a report tells apart.
MOST_CAUSES = 5


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The losses of one refit, or its failure.

    Attributes
    ----------
    task : Task
    validation, held_back : array or None
        The losses on V̂ ∖ T' and T̂ ∖ T', row by row; None where the refit failed.
    seconds : float
        Time of training and prediction.
    one_class : bool
        Its training rows had a single class.
    warnings : tuple of str
    error : str or None
        A line with the cause of the failure, and after an empty line the traceback.
    timed_out : bool
        It failed because it took longer than a refit may.
    draw : Draw or None
        The rows, where they are at hand; they follow from the task.
    """

    task: Task
    validation: Losses | None = None
    held_back: Losses | None = None
    seconds: float = 0.0
    one_class: bool = False
    warnings: tuple[str, ...] = ()
    error: str | None = None
    timed_out: bool = False
    draw: Draw | None = field(default=None, compare=False)


@dataclass(frozen=True, kw_only=True)
class Refits(Result):
    """How the refits of an audit went.

    Attributes
    ----------
    planned, done : int
        Refits that the budget allowed for, and those that were made, failed ones included.
    failed : int
        How many failed, and are in no number of the report.
    timed_out : int
        How many of these took longer than a refit may.
    causes : tuple of (str, int)
        What they failed with, and how often, the most frequent first.
    traceback : str or None
        That of the first one.
    partial : bool
        The user stopped the audit; its numbers rest on what was done until then.
    workers_lost : int
        How often worker processes died; their refits were made again.
    retried : int
        How many failed in an earlier start with the same journal, and succeeded when tried again.
    """

    planned: int
    done: int
    failed: int = 0
    timed_out: int = 0
    causes: tuple[tuple[str, int], ...] = ()
    traceback: str | None = None
    partial: bool = False
    workers_lost: int = field(default=0, compare=False)
    retried: int = field(default=0, compare=False)


@dataclass
class FitCounts:
    """What happened over all refits of an audit; filled while they run.

    Attributes
    ----------
    planned : int
        Refits that the budget allows for, as far as they were planned.
    done, failed, timed_out, one_class : int
    replayed : int
        How many of those done were taken from a journal.
    retried : int
        How many have failed in an earlier start and succeeded in this one.
    workers_lost : int
        How often worker processes died.
    seconds : float
        Time of training and prediction, all workers together; journals remember it.
    first_error : str or None
    causes : Counter
        First lines of errors.
    warnings : Counter
    interrupted : bool
        The user stopped the audit.
    """

    planned: int = 0
    done: int = 0
    failed: int = 0
    timed_out: int = 0
    one_class: int = 0
    replayed: int = 0
    retried: int = 0
    workers_lost: int = 0
    seconds: float = 0.0
    first_error: str | None = None
    causes: Counter[str] = field(default_factory=Counter)
    warnings: Counter[str] = field(default_factory=Counter)
    interrupted: bool = False

    def add(self, outcome: Outcome) -> None:
        """Count one refit."""
        self.done += 1
        self.seconds += outcome.seconds
        self.one_class += outcome.one_class
        self.warnings.update(outcome.warnings)
        if outcome.error is not None:
            self.failed += 1
            self.timed_out += outcome.timed_out
            self.causes[outcome.error.splitlines()[0]] += 1
            self.first_error = self.first_error or outcome.error

    def summary(self) -> Refits:
        """Return what the report says about them."""
        return Refits(
            planned=self.planned,
            done=self.done,
            failed=self.failed,
            timed_out=self.timed_out,
            causes=tuple(self.causes.most_common(MOST_CAUSES)),
            traceback=self.first_error,
            partial=self.interrupted,
            workers_lost=self.workers_lost,
            retried=self.retried,
        )
