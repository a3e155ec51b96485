"""Ctrl-C: an audit ends with what is known so far, and says that it is a part."""

import json
import os
import re
import signal
import threading
import time
from contextlib import suppress

import numpy as np
import pytest
from journals import count_refits
from learners import Patient
from sklearn.naive_bayes import GaussianNB

from mlflow_b3 import AuditReport, InterruptedAudit, audit, make_clinic
from mlflow_b3.auditing.audit import run_leakage_test
from mlflow_b3.measurement.runner import Interruption

pytestmark = pytest.mark.newest

SUBJECT = {"target": "disease", "cluster": "patient_id", "cluster_error": 0.1}
SMALL = {"folds": 3, "repeats": 1, "budget": 200}
CURVE = {**SMALL, "method": "power"}
#: Two passes: three folds of clusters and of rows, and three times four doses; then the same folds of clusters.
DOSES = {"folds": 3, "repeats": 2, "budget": 200, "method": "dose"}


@pytest.fixture(scope="module")
def clinic():
    return make_clinic(patients=30, records=4, cluster_error=0.1, seed=0).frame


def test_what_is_known_so_far_is_reported_and_marked_as_partial(clinic, stop_at):
    stop_at(150)
    report = audit(GaussianNB(), clinic, **SUBJECT, **CURVE)
    assert report.partial
    assert report.refits.done == report.settings.fits == 149
    assert report.refits.planned == 198
    assert np.isfinite(report.e0)
    assert "B330" in [finding.code for finding in report.findings]
    assert "? Not known: the audit was stopped after" in report.to_text()
    assert "stopped after 149 of 198 refits" in report.to_text()
    assert "The audit was stopped after" in report.to_html()
    assert AuditReport.from_dict(json.loads(report.to_json())).partial


@pytest.mark.parametrize("number", [7, 12, 25])
def test_by_doses_a_part_is_told_of_all_passes(clinic, stop_at, number):
    stop_at(number)
    report = audit(GaussianNB(), clinic, **SUBJECT, **DOSES)
    assert report.partial
    assert report.refits.done == report.settings.fits == number - 1
    assert report.refits.planned == 33
    assert np.isfinite(report.e0)
    assert f"stopped after {number - 1} of 33 refits" in report.to_text()


def test_a_part_is_even_over_folds_and_levels(clinic, stop_at):
    stop_at(120)
    report = audit(GaussianNB(), clinic, **SUBJECT, **CURVE)
    whole = audit(GaussianNB(), clinic, **SUBJECT, **CURVE)
    shares = np.array(report.curve.fits[1:]) / np.array(whole.curve.fits[1:])
    assert shares.min() > 0.8 * shares.max() - 0.35, shares


@pytest.mark.parametrize(("design", "number"), [(CURVE, 10), (DOSES, 4)], ids=["curve", "doses"])
def test_too_early_there_is_nothing_to_report(clinic, stop_at, design, number):
    stop_at(number)
    told = f"stopped after {number - 1} refits, too few for any answer"
    with pytest.raises(InterruptedAudit, match=told):
        audit(GaussianNB(), clinic, **SUBJECT, **design)


@pytest.mark.parametrize(
    ("design", "number"), [(CURVE, 10), (CURVE, 150), (DOSES, 4), (DOSES, 12), (DOSES, 22)], ids=str
)
def test_with_a_journal_the_next_start_goes_on_to_the_whole_numbers(
    clinic, stop_at, tmp_path, design, number
):
    journal = tmp_path / "audit.journal"
    whole = audit(GaussianNB(), clinic, **SUBJECT, **design)
    made = stop_at(number)
    with suppress(InterruptedAudit):
        assert audit(GaussianNB(), clinic, **SUBJECT, **design, journal=journal).partial
    report = audit(GaussianNB(), clinic, **SUBJECT, **design, journal=journal)
    assert report == whole
    assert not report.partial
    assert len(made) == whole.settings.fits + 1, "the interrupted refit is made again, no other"


def test_the_journal_is_named_where_there_is_nothing_to_report(clinic, stop_at, tmp_path):
    stop_at(4)
    with pytest.raises(InterruptedAudit, match=re.escape(f"in the journal '{tmp_path}")):
        audit(GaussianNB(), clinic, **SUBJECT, **SMALL, journal=tmp_path / "audit.journal")


def test_the_permutation_test_does_with_the_arrangements_it_has(clinic, stop_at):
    stop_at(18 * 30)
    options = {k: v for k, v in SUBJECT.items() if k != "cluster_error"}
    tested = run_leakage_test(GaussianNB(), clinic, **options, folds=3, test="permutation")
    assert 19 <= tested.arrangements < 99


def test_the_test_alone_is_interrupted_as_any_command(clinic, stop_at):
    stop_at(5)
    options = {k: v for k, v in SUBJECT.items() if k != "cluster_error"}
    with pytest.raises(KeyboardInterrupt):
        run_leakage_test(GaussianNB(), clinic, **options, folds=3)


def test_refits_that_workers_had_under_way_are_no_failures(clinic, tmp_path):
    """Ctrl-C reaches the workers of a terminal too; it is not for them."""
    journal = tmp_path / "audit.journal"

    def press():
        while count_refits(journal) < 20:
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=press, daemon=True).start()
    options = {**SUBJECT, **DOSES, "budget": "10m", "journal": journal}
    report = audit(Patient(0.02), clinic, **options, n_jobs=2, backend="loky")
    assert report.partial
    assert report.refits.done >= 20
    assert not report.refits.failed
    assert not report.refits.workers_lost


def test_ctrl_c_waits_until_outcomes_are_put_together():
    done = []

    def work():
        with Interruption() as interruption:
            with interruption.postponed():
                os.kill(os.getpid(), signal.SIGINT)
                done.append("whole")
            done.append("never")

    with pytest.raises(KeyboardInterrupt):
        work()
    assert done == ["whole"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_second_ctrl_c_does_not_wait():
    def work():
        with Interruption() as interruption, interruption.postponed():
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)
            pytest.fail("not reached")

    with pytest.raises(KeyboardInterrupt):
        work()
