"""Spark: refits by Spark jobs of one task each, with the table as a broadcast variable."""

import os
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from joblib.parallel import ThreadingBackend
from joblibspark.backend import SparkDistributedBackend
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from mlflow_b3.errors import InputError
from mlflow_b3.measurement.refits import Outcome, Refitter, Task
from mlflow_b3.measurement.runner import ClusterError, Connection, Lost, run_in_turn, told_to_joblib


@contextmanager
def connect(address: str | None, name: str) -> Iterator[Connection]:
    """Start a session with a master, or use the active session."""
    with _session(address, name) as session:
        context = session.sparkContext
        capacity = _backend().capacity
        if not capacity:
            raise ClusterError(f"{name}: this Spark has no executor to run refits on.")

        def backend(refitter: Refitter) -> tuple[Any, Any, Callable[..., Any]]:
            return _backend(), context.broadcast(refitter), run_broadcast

        yield Connection(
            capacity=capacity,
            backend=backend,
            alive=lambda: not context._jsc.sc().isStopped(),
        )


@contextmanager
def _session(address: str | None, name: str) -> Iterator[Any]:
    active = SparkSession.getActiveSession()
    if active is not None:
        if address not in (None, active.sparkContext.master):
            raise InputError(
                f"{name}: a session of the master {active.sparkContext.master!r} is active, and Spark "
                "has one in a process only. Leave out the address, or stop that session first."
            )
        yield active
        return
    if address is None:
        raise InputError(
            "backend='spark' needs to know its cluster: give address='spark://host:7077' or another "
            "master, or start a SparkSession first."
        )
    if address.startswith("local"):  # the workers of this machine are this Python
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    try:
        session = SparkSession.builder.master(address).appName("mlflow-b3").getOrCreate()
    except (PySparkException, Py4JError, OSError) as error:
        raise ClusterError(f"{name}: no Spark answers: {error}") from error
    try:
        yield session
    finally:
        session.stop()


def run_broadcast(shared: Any, tasks: Sequence[Task]) -> list[Outcome] | Exception:
    """Run a batch with the refitter of a broadcast variable.

    An exception is returned, as Spark would make one of its own of it.
    """
    try:
        return run_in_turn(shared.value, tasks)
    except Exception as error:
        return error


def _backend() -> "_Backend":
    # not used here: resources of stages, and tags of Spark Connect, which threads would inherit
    warnings.filterwarnings("ignore", ".*stage-level scheduling")
    warnings.filterwarnings("ignore", "Spark session is not provided")
    return _Backend()


class _Backend(SparkDistributedBackend):  # type: ignore[misc]
    """joblibspark's backend, made to give results as they come and to say which were lost.

    It was written for a joblib before 1.5, where `submit` had another name, and stopping one of its
    loops fails on an attribute that is gone.
    """

    supports_retrieve_callback = True

    @property
    def capacity(self) -> int:
        """Tasks that this Spark runs at the same time."""
        return int(super().effective_n_jobs(-1))

    def effective_n_jobs(self, n_jobs: int) -> int:
        return told_to_joblib(n_jobs)

    def submit(self, func: Any, callback: Any = None) -> Any:
        return self.apply_async(func, callback)

    def abort_everything(self, ensure_ready: bool = True) -> None:  # noqa: ARG002
        self.terminate()

    def retrieve_result_callback(self, out: Any) -> Any:
        try:
            (result,) = ThreadingBackend.retrieve_result_callback(self, out)
        except (Py4JError, PySparkException) as error:
            return [Lost(_cause(error))]
        if isinstance(result, Exception):
            raise result
        return [result]


def _cause(error: Exception) -> str:
    """Return the line of a Java traceback that says what Python, or Spark, had to say."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    telling = ("ModuleNotFoundError", "PYTHON_VERSION_MISMATCH", "SparkException", "Error: ")
    return next((line for word in telling for line in lines if word in line), lines[0])
