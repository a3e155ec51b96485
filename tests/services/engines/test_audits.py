"""Whole audits on clusters: the report of a laptop, to the last bit, and goes on if a worker dies."""

import os
import signal
import threading
import time

import pytest
from journals import change_journal, count_refits
from workload import Meddler, clinic

from mlflow_b3 import audit

pytestmark = pytest.mark.engines
SUBJECT = {"target": "disease", "cluster": "patient_id", "cluster_error": 0.1, "loss": "log"}
SMALL = {"folds": 3, "budget": 100}


@pytest.fixture(scope="module")
def table():
    return clinic()


@pytest.fixture(scope="module")
def alone(table):
    return audit(Meddler(), table, **SUBJECT, **SMALL, n_jobs=1)


def test_loky_gives_the_report_of_one_process(table, alone):
    assert audit(Meddler(), table, **SUBJECT, **SMALL, n_jobs=2, backend="loky") == alone


def test_dask_gives_the_report_of_one_process(table, alone, dask_cluster):
    address = {"backend": "dask", "address": str(dask_cluster.file)}
    assert audit(Meddler(), table, **SUBJECT, **SMALL, **address) == alone


def test_ray_gives_the_report_of_one_process(table, alone, ray_cluster):  # noqa: ARG001
    assert audit(Meddler(), table, **SUBJECT, **SMALL, n_jobs=2, backend="ray") == alone


def test_spark_gives_the_report_of_one_process(table, alone, spark_cluster):  # noqa: ARG001
    assert audit(Meddler(), table, **SUBJECT, **SMALL, n_jobs=2, backend="spark") == alone


def test_an_audit_survives_the_death_of_a_dask_worker(table, alone, dask_cluster, tmp_path):
    """One of two is killed in the middle; its refits are made by the other one."""
    journal = tmp_path / "audit.journal"
    victim = dask_cluster.start_worker()
    dask_cluster.wait_for_workers(3)

    def kill():
        while count_refits(journal) < 20:
            time.sleep(0.01)
        os.kill(victim.pid, signal.SIGKILL)

    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    address = {"backend": "dask", "address": str(dask_cluster.file)}
    report = audit(Meddler(), table, **SUBJECT, **SMALL, **address, journal=journal)
    killer.join()
    assert report == alone
    assert victim.wait(10) == -signal.SIGKILL


def test_a_journal_begun_here_is_finished_on_a_cluster(table, alone, dask_cluster, tmp_path):
    journal = tmp_path / "audit.journal"
    audit(Meddler(), table, **SUBJECT, **SMALL, journal=journal)
    change_journal(journal, "DELETE FROM outcomes WHERE rowid > 50")
    address = {"backend": "dask", "address": str(dask_cluster.file)}
    assert audit(Meddler(), table, **SUBJECT, **SMALL, **address, journal=journal) == alone
