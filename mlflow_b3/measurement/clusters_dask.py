"""Dask: refits by the scheduler that a client is connected to."""

import os
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from contextlib import contextmanager
from typing import Any

import distributed
from distributed.scheduler import KilledWorker
from joblib._dask import DaskDistributedBackend

from mlflow_b3.errors import InputError
from mlflow_b3.measurement.refits import Refitter
from mlflow_b3.measurement.runner import (
    ClusterError,
    Connection,
    Lost,
    compare_versions,
    run_in_turn,
    told_to_joblib,
    versions,
)

#: What stands for a batch whose workers died again and again, or whose table or scheduler is gone.
LOST = (KilledWorker, CancelledError)
#: Seconds in which the first worker must come.
PATIENCE = 60


@contextmanager
def connect(address: str | None, name: str) -> Iterator[Connection]:
    """Connect to a scheduler, or use the client of this process."""
    with _client(address, name) as client:
        workers = _wait_for_workers(client, name)
        _check(client, name)
        if threaded := [threads for threads in workers.values() if threads > 1]:
            warnings.warn(
                f"{len(threaded)} of {len(workers)} Dask workers have several threads; a worker "
                "runs one refit at a time. To use all cores, start them with --nthreads 1 and "
                "--nworkers for their number.",
                stacklevel=2,
            )

        def backend(refitter: Refitter) -> tuple[Any, Any, Callable[..., Any]]:
            _wait_for_workers(client, name)  # all of them may have been lost
            return _Backend(client=client, scatter=[refitter]), refitter, run_in_turn

        yield Connection(
            capacity=len(workers),
            backend=backend,
            alive=lambda: bool(client.status == "running"),
        )


@contextmanager
def _client(address: str | None, name: str) -> Iterator[Any]:
    if address is None:
        yield _present_client()
        return
    given = {"scheduler_file": address} if os.path.isfile(address) else {"address": address}
    try:
        client = distributed.Client(**given, set_as_default=False)
    except (OSError, ValueError, TypeError) as error:
        raise ClusterError(
            f"{name}: no Dask scheduler answers: {error}. Give its address as 'tcp://host:8786', or "
            "the path of its scheduler file."
        ) from error
    with client:
        yield client


def _present_client() -> Any:
    try:
        return distributed.get_client()
    except ValueError as error:
        raise InputError(
            "backend='dask' needs to know its cluster: give address='tcp://host:8786', the path of a "
            "scheduler file, or make a distributed.Client first."
        ) from error


def _wait_for_workers(client: Any, name: str) -> dict[str, int]:
    """Return the threads of each worker; a cluster that grows with its work is asked to begin."""
    if not client.nthreads():
        try:
            client.submit(os.getpid, pure=False).result(timeout=PATIENCE)
        except (distributed.TimeoutError, TimeoutError) as error:
            raise ClusterError(
                f"{name}: this Dask has no worker after {PATIENCE} seconds; start some, as with: dask "
                f"worker {client.scheduler.address} --nthreads 1"
            ) from error
    return dict(client.nthreads())


def _check(client: Any, name: str) -> None:
    """Ask every worker for its versions; what is scattered could not be unpacked by others."""
    try:
        answers = list(client.run(versions).values())
    except Exception as error:  # whatever stands in the way of the first call
        answers = [f"{type(error).__name__}: {error}"]
    compare_versions(answers, name)


class _Backend(DaskDistributedBackend):  # type: ignore[misc]
    """joblib's backend, for which a batch that Dask gives up is one that never ends."""

    def effective_n_jobs(self, n_jobs: int) -> int:
        return told_to_joblib(n_jobs)

    def submit(self, func: Any, callback: Any = None) -> Any:
        future = super().submit(func, callback)
        future.add_done_callback(lambda done: done.exception() and callback(done.exception()))
        return future

    def retrieve_result_callback(self, out: Any) -> Any:
        if isinstance(out, LOST):
            return [Lost(f"{type(out).__name__}: {str(out).splitlines()[0].rstrip('.')}")]
        return super().retrieve_result_callback(out)
