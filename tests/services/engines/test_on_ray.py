"""Refits by a local Ray, whose actors are processes of their own."""

import os

import pytest
from workload import (
    Counted,
    Meddler,
    Suicidal,
    losses,
    make_refitter,
    make_tasks,
    processes,
    run_all,
)

from mlflow_b3.errors import InputError
from mlflow_b3.measurement.engines import open_cluster

pytestmark = pytest.mark.engines


def test_losses_are_those_of_this_process_bit_for_bit(ray_cluster):
    refitter, tasks = make_refitter(Meddler(), loss="brier"), make_tasks()
    with open_cluster(refitter, backend="ray", address="local") as workers:
        assert workers.count == 2
        assert losses(run_all(workers, tasks)) == losses(refitter.run_batch(tasks))
    assert ray_cluster.is_initialized()


def test_the_table_is_put_into_the_object_store_once(ray_cluster, tmp_path):  # noqa: ARG001
    refitter = make_refitter(Counted(str(tmp_path), 0.0))
    with open_cluster(refitter, backend="ray", n_jobs=1) as workers:
        sent = Counted.pickled
        assert sent > 0
        run_all(workers, make_tasks())
        assert Counted.pickled == sent
    assert len(processes(tmp_path)) == 1
    assert os.getpid() not in processes(tmp_path)


def test_a_killed_worker_costs_nothing_but_the_time_of_its_batch(ray_cluster, tmp_path):  # noqa: ARG001
    refitter, tasks = make_refitter(Suicidal(str(tmp_path))), make_tasks()
    with open_cluster(refitter, backend="ray") as workers:
        outcomes = run_all(workers, tasks)
    assert (tmp_path / "killed").exists()
    assert losses(outcomes) == losses(refitter.run_batch(tasks))


def test_another_address_than_that_of_the_present_ray_is_refused(ray_cluster):  # noqa: ARG001
    with (
        pytest.raises(InputError, match=r"'10.0.0.1:6379': this process is already connected"),
        open_cluster(make_refitter(Meddler()), backend="ray", address="10.0.0.1:6379"),
    ):
        pass
