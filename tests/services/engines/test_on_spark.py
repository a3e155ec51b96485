"""Refits by a local Spark, whose Python workers are processes of their own."""

import os

import pytest
from workload import (
    Counted,
    Meddler,
    Slow,
    Suicidal,
    losses,
    make_refitter,
    make_tasks,
    processes,
    run_all,
)

from mlflow_b3.errors import InputError, PredictionError
from mlflow_b3.measurement.engines import open_cluster

pytestmark = pytest.mark.engines


def test_losses_are_those_of_this_process_bit_for_bit(spark_cluster):
    refitter, tasks = make_refitter(Meddler(), loss="brier"), make_tasks()
    with open_cluster(refitter, backend="spark", address="local[2]") as workers:
        assert workers.count == 2
        assert losses(run_all(workers, tasks)) == losses(refitter.run_batch(tasks))
    assert not spark_cluster.sparkContext._jsc.sc().isStopped()


def test_the_table_is_broadcast_once(spark_cluster, tmp_path):  # noqa: ARG001
    refitter = make_refitter(Counted(str(tmp_path), 0.0))
    with open_cluster(refitter, backend="spark", n_jobs=1) as workers:
        sent = Counted.pickled
        assert sent > 0
        run_all(workers, make_tasks())
        assert Counted.pickled == sent
    assert os.getpid() not in processes(tmp_path)


def test_a_prediction_that_the_model_does_not_have_is_an_error_here(spark_cluster, tmp_path):  # noqa: ARG001
    refitter = make_refitter(Slow(str(tmp_path)), loss="brier")
    with (
        open_cluster(refitter, backend="spark") as workers,
        pytest.raises(PredictionError, match="predict_proba"),
    ):
        run_all(workers, make_tasks())


def test_a_killed_worker_costs_its_batch_which_is_run_again(spark_cluster, tmp_path):  # noqa: ARG001
    refitter, tasks = make_refitter(Suicidal(str(tmp_path))), make_tasks()
    with open_cluster(refitter, backend="spark") as workers:
        outcomes = run_all(workers, tasks)
    assert (tmp_path / "killed").exists()
    assert losses(outcomes) == losses(refitter.run_batch(tasks))


def test_another_master_than_that_of_the_active_session_is_refused(spark_cluster):  # noqa: ARG001
    with (
        pytest.raises(InputError, match=r"'local\[2\]' is active"),
        open_cluster(make_refitter(Meddler()), backend="spark", address="spark://host:7077"),
    ):
        pass
