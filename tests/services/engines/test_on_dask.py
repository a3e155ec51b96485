"""Refits by Dask, with a scheduler and workers in processes of their own."""

import os

import joblib
import pytest
from workload import (
    Counted,
    Meddler,
    Slow,
    in_batches,
    losses,
    make_refitter,
    make_tasks,
    most_at_once,
    processes,
    run_all,
)

from mlflow_b3.errors import InputError, PredictionError
from mlflow_b3.measurement.engines import ClusterError, open_cluster

pytestmark = pytest.mark.engines


def open_dask(refitter, cluster, **options):
    return open_cluster(refitter, backend="dask", address=str(cluster.file), **options)


def test_losses_are_those_of_loky_and_of_this_process_bit_for_bit(dask_cluster):
    refitter, tasks = make_refitter(Meddler(), loss="brier"), make_tasks()
    here = losses(refitter.run_batch(tasks))
    with open_dask(refitter, dask_cluster) as workers:
        assert workers.count == 2
        assert losses(run_all(workers, tasks)) == here
    loky = joblib.Parallel(n_jobs=2)(
        joblib.delayed(refitter.run_batch)(batch) for batch in in_batches(tasks)
    )
    assert losses([outcome for batch in loky for outcome in batch]) == here


def test_the_table_is_not_sent_with_every_batch(dask_cluster, tmp_path):
    with open_dask(make_refitter(Counted(str(tmp_path), 0.0)), dask_cluster) as workers:
        sent = Counted.pickled
        assert sent > 0
        run_all(workers, make_tasks())
        run_all(workers, make_tasks())
        assert Counted.pickled == sent
    assert os.getpid() not in processes(tmp_path)


def test_n_jobs_limits_the_refits_at_the_same_time(dask_cluster, tmp_path):
    with open_dask(make_refitter(Slow(str(tmp_path))), dask_cluster, n_jobs=1) as workers:
        run_all(workers, make_tasks(2))
    assert most_at_once(tmp_path) == 1
    assert os.getpid() not in processes(tmp_path)


def test_a_killed_worker_costs_nothing_but_time(dask_cluster, tmp_path):
    """Dask may have kept the only copy of the table on that worker; then it is sent again."""
    doomed = dask_cluster.start_worker()
    dask_cluster.wait_for_workers(3)
    refitter, tasks = make_refitter(Slow(str(tmp_path))), make_tasks()

    def kill():
        if doomed.poll() is None and doomed.pid in processes(tmp_path):
            doomed.kill()
            doomed.wait()

    with open_dask(refitter, dask_cluster) as workers:
        outcomes = run_all(workers, tasks, after_batch=kill)
    assert doomed.returncode == -9
    assert losses(outcomes) == losses(refitter.run_batch(tasks))


def test_outcomes_nobody_waits_for_do_not_turn_up_later(dask_cluster, tmp_path):
    tasks = make_tasks(2)
    with open_dask(make_refitter(Slow(str(tmp_path))), dask_cluster) as workers:
        begun = workers.run(in_batches(tasks))
        next(begun)
        begun.close()
        assert len([o for batch in workers.run(in_batches(tasks)) for o in batch]) == len(tasks)


def test_a_prediction_that_the_model_does_not_have_is_an_error_here(dask_cluster, tmp_path):
    refitter = make_refitter(Slow(str(tmp_path)), loss="brier")
    with (
        open_dask(refitter, dask_cluster) as workers,
        pytest.raises(PredictionError, match="predict_proba"),
    ):
        run_all(workers, make_tasks())


def test_the_client_of_this_process_is_used_and_left_open(dask_cluster, tmp_path):
    import distributed

    refitter, tasks = make_refitter(Slow(str(tmp_path), 0.0)), make_tasks(1)
    with distributed.Client(scheduler_file=str(dask_cluster.file)) as client:
        with open_cluster(refitter, backend="dask") as workers:
            assert len(run_all(workers, tasks)) == len(tasks)
        assert client.status == "running"


def test_without_client_and_address_the_error_says_what_to_give(dask_cluster):  # noqa: ARG001
    with (
        pytest.raises(InputError, match=r"address='tcp://host:8786'.*distributed\.Client"),
        open_cluster(make_refitter(Slow()), backend="dask"),
    ):
        pass


def test_a_scheduler_that_does_not_answer_is_named(dask_cluster):  # noqa: ARG001
    import dask

    with (
        dask.config.set({"distributed.comm.timeouts.connect": "200ms"}),
        pytest.raises(ClusterError, match=r"'tcp://127\.0\.0\.1:9': no Dask scheduler answers"),
        open_cluster(make_refitter(Slow()), backend="dask", address="tcp://127.0.0.1:9"),
    ):
        pass


def test_a_cluster_whose_workers_are_all_lost_gets_the_table_anew(dask_cluster, tmp_path):
    """The last test with this cluster: its workers die."""
    refitter, tasks = make_refitter(Slow(str(tmp_path))), make_tasks(1)
    with open_dask(refitter, dask_cluster) as workers:
        for process in dask_cluster.processes[1:]:
            process.kill()
            process.wait()
        dask_cluster.start_worker()
        assert len(run_all(workers, tasks)) == len(tasks)
