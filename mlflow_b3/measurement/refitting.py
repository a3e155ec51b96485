"""One refit: train on the rows of a task, score the rows it left out, and report what went wrong."""

import time
import traceback
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from mlflow_b3.data import AuditData
from mlflow_b3.errors import PredictionError
from mlflow_b3.folds import Rows as Numbers
from mlflow_b3.losses import Loss
from mlflow_b3.measurement.outcomes import Losses, Outcome
from mlflow_b3.measurement.resampling import Draw, Resampler, Task
from mlflow_b3.measurement.time_limit import RefitTimeout, time_limit
from mlflow_b3.refit.interface import ConstantPredictor, Learner, Rows

#: Refits on folds as they are: their rows need not travel back.
WHOLE = ("loco", "iid", "grouped", "cv", "simulated")


class WorkersLost(Exception):  # noqa: N818 - says what happened, and never reaches users
    """Worker processes died, with the refits that they had."""


class Workers(Protocol):
    """Whoever runs refits."""

    @property
    def count(self) -> int:
        """How many refits run at the same time."""

    def run(self, batches: Iterable[Sequence[Task]]) -> Iterator[list[Outcome]]:
        """Run batches of refits; yield the outcomes of each when it is done, in whatever order.

        Raises
        ------
        WorkersLost
            When some died; nothing more comes then of batches that are not done.
        """


@dataclass(frozen=True, kw_only=True)
class Refitter:
    """Everything that a refit needs beside its task; travels to the workers once, as one piece.

    Attributes
    ----------
    data, learner, loss, resampler
    seconds_at_most : float or None
        How long one refit may take.
    """

    data: AuditData
    learner: Learner
    loss: Loss
    resampler: Resampler
    seconds_at_most: float | None = None

    def run(self, task: Task, *, may_exit: bool = False, catch_warnings: bool = True) -> Outcome:
        """Train on the task's rows and return the losses on the rows it left out."""
        draw = self.resampler.draw(task)
        result: dict[str, Any]
        started = time.perf_counter()
        try:
            with (
                _caught(catch_warnings) as caught,
                time_limit(self.seconds_at_most, may_exit=may_exit),
            ):
                result = self._fit_and_score(task, draw)
        except PredictionError:
            raise  # no other rows would help
        except RefitTimeout:
            limit = f"the refit took longer than fit_timeout, {self.seconds_at_most:g} s"
            result = {"error": f"TimeoutError: {limit}", "timed_out": True}
        except Exception as error:  # whatever a learner raises is reported, never lost
            result = {"error": f"{_cause(error)}\n\n{traceback.format_exc()}"}
        texts = {f"{w.category.__name__}: {w.message}" for w in caught}
        seconds = time.perf_counter() - started
        return Outcome(task=task, seconds=seconds, warnings=tuple(sorted(texts)), **result)

    def run_batch(
        self, tasks: Sequence[Task], *, may_exit: bool = False, catch_warnings: bool = True
    ) -> list[Outcome]:
        """Run several tasks in one go."""
        return [self.run(task, may_exit=may_exit, catch_warnings=catch_warnings) for task in tasks]

    def _fit_and_score(self, task: Task, draw: Draw) -> dict[str, Any]:
        seed = self.resampler.fit_seed(task)
        # nobody holds on to the training rows, so that others take their place when it is scored
        predictor = self.learner.fit(self._rows(task, draw.training), seed)
        validation, held_back = self._score(predictor, task, draw)
        return {
            "validation": validation,
            "held_back": held_back,
            "one_class": isinstance(predictor, ConstantPredictor),
            "draw": None if task.purpose in WHOLE else replace(draw, training=draw.training[:0]),
        }

    def _rows(self, task: Task, chosen: Numbers) -> Rows:
        at, weight = self.resampler.arranged(task, chosen), self.data.weight
        return Rows(
            X=self.data.take(at),
            target=self.data.target[at],
            ids=self.data.ids[at],
            weight=None if weight is None else weight[at],
        )

    def _score(self, predictor: Any, task: Task, draw: Draw) -> tuple[Losses, Losses]:
        chosen = np.concatenate([draw.validation, draw.held_back])
        if not len(chosen):  # drawn with replacement, V̂ can be used up
            return np.zeros(0), np.zeros(0)
        at = self.resampler.arranged(task, chosen)
        losses = self.loss.evaluate(predictor, self.data.take(at), self.data.target[at])
        return losses[: len(draw.validation)], losses[len(draw.validation) :]


@contextmanager
def _caught(wanted: bool) -> Iterator[list[warnings.WarningMessage]]:
    if not wanted:
        yield []
        return
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        yield caught


def _cause(error: Exception) -> str:
    """Return what an exception says in its first line; the last may be a detail or a drawing."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def close_quietly(results: Any) -> None:
    """Close joblib's generator without its warning that tasks were cancelled: they were meant to be."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        results.close()
