"""Clusters on this machine, with workers in processes of their own."""

import os
import subprocess
import sys
import time
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest
from real_services import absent

HERE = Path(__file__).parent
PATIENCE = 120  # seconds


def need(*libraries):
    for library in libraries:
        if find_spec(library) is None:
            absent(f"{library} is not installed")


@pytest.fixture(scope="session", autouse=True)
def _path_of_workers():
    """Let workers import what the tests define."""
    with pytest.MonkeyPatch.context() as patch:
        path = os.pathsep.join([str(HERE), str(HERE.parents[2]), os.environ.get("PYTHONPATH", "")])
        patch.setenv("PYTHONPATH", path)
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        yield


class DaskCluster:
    """A scheduler and workers, each a process."""

    def __init__(self, folder):
        self.folder = folder
        self.file = folder / "scheduler.json"
        self.processes = []

    def start(self, command, *options):
        program = [sys.executable, "-m", f"distributed.cli.dask_{command}", "--no-dashboard"]
        with (self.folder / f"{command}-{len(self.processes)}.log").open("w") as log:
            process = subprocess.Popen(
                [*program, "--scheduler-file", str(self.file), *options],
                stdout=subprocess.DEVNULL,
                stderr=log,
                cwd=self.folder,
            )
        self.processes.append(process)
        return process

    def start_worker(self):
        return self.start("worker", "--no-nanny", "--nthreads", "1")

    def stop(self):
        for process in self.processes:
            process.kill()
            process.wait()

    def wait_for_workers(self, count):
        import distributed

        with distributed.Client(scheduler_file=str(self.file), set_as_default=False) as client:
            client.wait_for_workers(count, timeout=PATIENCE)


@contextmanager
def dask_cluster_in(folder, workers=2):
    need("distributed")
    cluster = DaskCluster(folder)
    try:
        cluster.start("scheduler", "--host", "127.0.0.1", "--port", "0")
        for _ in range(workers):
            cluster.start_worker()
        deadline = time.monotonic() + PATIENCE
        while not cluster.file.exists():
            assert time.monotonic() < deadline, "the scheduler did not start"
            time.sleep(0.05)
        cluster.wait_for_workers(workers)
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture(scope="module")
def dask_cluster(tmp_path_factory):
    with dask_cluster_in(tmp_path_factory.mktemp("dask")) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def ray_cluster():
    need("ray")
    import ray

    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield ray
    ray.shutdown()


@pytest.fixture(scope="module")
def spark_cluster():
    need("pyspark", "joblibspark")
    from pyspark.sql import SparkSession

    session = (
        SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()
