"""Learners that raise, return NaN, hang or kill their process: counted, told, never averaged in."""

import json
import warnings

import pytest
from example_reports import flattened
from learners import Deadly, DeadlyOnce, Moody, Noting, Patient, Sleepy, Stubborn, Vague
from sklearn.linear_model import LogisticRegression

from mlflow_b3 import AuditReport, FitError, InputError, audit, make_clinic
from mlflow_b3.auditing.audit import run_leakage_test

pytestmark = pytest.mark.newest

SUBJECT = {"target": "disease", "cluster": "patient_id", "cluster_error": 0.1}
SMALL = {"folds": 3, "repeats": 1, "budget": 100}


@pytest.fixture(scope="module")
def clinic():
    return make_clinic(patients=30, records=4, cluster_error=0.1, seed=0).frame


@pytest.fixture(scope="module")
def sound(clinic):
    return audit(Patient(), clinic, **SUBJECT, **SMALL)


@pytest.fixture(scope="module")
def last(clinic):
    """Return the `chance` of the last refit: others are done before a learner does harm in it."""
    Noting.noted.clear()
    audit(Noting(), clinic, **SUBJECT, **SMALL, n_jobs=1)
    *others, last = Noting.noted
    assert min(abs(chance - last) for chance in others) > 1e-5
    return last


def numbers(report):
    """Return what must not depend on where and how often refits were run."""
    return {
        k: v for k, v in flattened(report).items() if k not in ("settings", "refits", "findings")
    }


def finding(report, code):
    return next((f.message for f in report.findings if f.code == code), None)


@pytest.mark.parametrize(
    ("learner", "cause"),
    [(Moody(0.04), "RuntimeError: in a bad mood"), (Vague(0.04), "missing values (NaN)")],
)
def test_failed_refits_are_counted_by_cause_and_their_first_traceback_is_kept(
    clinic, learner, cause
):
    report = audit(learner, clinic, **SUBJECT, **SMALL)
    refits = report.refits
    assert 0 < refits.failed <= 0.1 * refits.done
    assert refits.done == report.settings.fits
    ((text, count),) = refits.causes
    assert cause in text
    assert count == refits.failed
    assert "Traceback (most recent call last)" in refits.traceback
    assert "learners.py" in refits.traceback or "losses.py" in refits.traceback
    told = finding(report, "B312")
    assert f"{refits.failed} of {refits.done} refits failed" in told
    assert "up to 10% are tolerated" in told
    for shown in (report.to_text(), report.to_html()):
        assert "The first refit that failed" in shown
        assert "Traceback (most recent call last)" in shown


def test_a_failed_refit_is_in_no_mean(clinic, sound):
    """NaN is unlike every label: averaged in, it would be a loss of one in all rows of the refit."""
    report = audit(Vague(0.04), clinic, **SUBJECT, **SMALL)
    assert report.refits.failed
    assert report.loco == sound.loco
    # the other learner raises after the same training sets, so that it never has a prediction
    assert numbers(report) == numbers(audit(Moody(0.04), clinic, **SUBJECT, **SMALL))


def test_a_report_with_failures_travels_as_json(clinic):
    report = audit(Moody(0.04), clinic, **SUBJECT, **SMALL)
    assert AuditReport.from_dict(json.loads(report.to_json())) == report


def test_a_learner_that_always_fails_is_given_up_at_once_with_its_traceback(clinic):
    with pytest.raises(
        FitError, match="3 of 3 refits failed, the first with: RuntimeError"
    ) as told:
        audit(Moody(1.0), clinic, **SUBJECT, **SMALL)
    assert "Traceback" in str(told.value)


def test_more_failures_than_a_tenth_end_the_audit(clinic):
    with pytest.raises(
        FitError, match="refits failed, the first with: RuntimeError: in a bad mood"
    ):
        audit(Moody(0.2), clinic, **SUBJECT, **SMALL)


def test_a_first_refit_that_fails_does_not_end_the_audit(clinic, monkeypatch):
    """Chance may strike a refit on a whole fold, too; then it is tried once more."""
    calls = []
    fit = Patient.fit

    def fails_first(self, X, y):
        calls.append(len(calls))
        if len(calls) == 1:
            raise RuntimeError("out of luck")
        return fit(self, X, y)

    monkeypatch.setattr(Patient, "fit", fails_first)
    report = audit(Patient(), clinic, **SUBJECT, **SMALL)
    assert report.refits.failed == 1
    assert report.refits.causes == (("RuntimeError: out of luck", 1),)


def test_a_class_that_a_resample_lacks_is_counted(clinic):
    """LogisticRegression refuses one class; a rare class is missing from many small resamples."""
    rare = clinic.assign(disease=0)
    first = rare.patient_id.isin(rare.patient_id.unique()[:3])
    rare.loc[first, "disease"] = 1
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        report = audit(LogisticRegression(), rare, **SUBJECT, **SMALL, method="power")
    assert "had only one class" in finding(report, "B303")


@pytest.mark.parametrize("n_jobs", [1, 2])
def test_a_refit_that_hangs_is_stopped_and_counted(clinic, n_jobs):
    report = audit(Sleepy(0.03), clinic, **SUBJECT, **SMALL, n_jobs=n_jobs, fit_timeout=0.3)
    refits = report.refits
    assert 0 < refits.timed_out == refits.failed
    assert refits.causes[0][0] == "TimeoutError: the refit took longer than fit_timeout, 0.3 s"
    assert "at their time limit" in finding(report, "B312")


def test_a_refit_that_hangs_is_stopped_in_threads_and_in_this_process_as_far_as_python_can(clinic):
    for backend in ("threading", "sequential"):
        with pytest.raises(FitError, match=r"fit_timeout, 0\.05 s"):
            audit(Busy(), clinic, **SUBJECT, **SMALL, backend=backend, fit_timeout=0.05)


class Busy(Patient):
    """Computes for ever, in Python."""

    def fit(self, X, y):
        while len(X):
            pass
        return super().fit(X, y)


def test_a_refit_that_cannot_be_stopped_loses_its_process_and_nothing_else(clinic, sound, last):
    report = audit(Stubborn(last), clinic, **SUBJECT, **SMALL, n_jobs=2, fit_timeout=0.3)
    assert report.refits.workers_lost
    assert report.refits.failed == 1
    assert report.loco == sound.loco


def test_a_worker_that_dies_costs_its_refits_only(clinic, sound, tmp_path):
    file = tmp_path / "died"
    report = audit(DeadlyOnce(str(file)), clinic, **SUBJECT, **SMALL, n_jobs=2, backend="loky")
    assert file.exists()
    assert report.refits.workers_lost
    assert not report.refits.failed
    assert numbers(report) == numbers(sound)


def test_a_refit_that_kills_every_worker_is_counted_as_failed(clinic, sound, last):
    report = audit(Deadly(last), clinic, **SUBJECT, **SMALL, n_jobs=2, backend="loky")
    refits = report.refits
    assert refits.failed == 1
    assert "the worker process died each time it ran this refit" in refits.causes[0][0]
    assert report.loco == sound.loco


@pytest.mark.parametrize(
    "options",
    [
        {"backend": "sequential"},
        {"n_jobs": 2, "backend": "threading"},
        {"n_jobs": 2, "backend": "loky"},
        {"n_jobs": 3, "backend": "loky"},
        {"n_jobs": -1},
    ],
)
def test_numbers_do_not_depend_on_who_runs_the_refits(clinic, sound, options):
    report = audit(Patient(), clinic, **SUBJECT, **SMALL, **options)
    assert numbers(report) == numbers(sound)
    assert report == sound


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"backend": "lokky"}, "backend='lokky' is not known.*Did you mean 'loky'"),
        ({"backend": 3}, "backend=3 is not known"),
        ({"address": "tcp://here:1"}, "address='tcp://here:1' needs the backend of a cluster"),
        ({"backend": "loky", "address": "x"}, "needs the backend of a cluster"),
        ({"n_jobs": 0}, "n_jobs=0"),
        ({"fit_timeout": 0}, "fit_timeout=0 is not usable"),
        ({"fit_timeout": "soon"}, "fit_timeout='soon' is not usable"),
        ({"fit_timeout": float("nan")}, "fit_timeout=nan"),
        ({"fit_timeout": True}, "fit_timeout=True"),
    ],
)
@pytest.mark.parametrize("entry", [audit, run_leakage_test])
def test_settings_of_workers_that_mean_nothing_are_refused_before_any_work(
    clinic, entry, options, message
):
    subject = {k: v for k, v in SUBJECT.items() if entry is audit or k != "cluster_error"}
    with pytest.raises(InputError, match=message):
        entry(Patient(), clinic, **subject, **options)


@pytest.mark.parametrize(("text", "seconds"), [("2", 2.0), ("2s", 2.0), ("1.5m", 90.0), (3, 3.0)])
def test_times_are_read_as_people_write_them(text, seconds):
    from mlflow_b3.measurement.design import parse_seconds

    assert parse_seconds("fit_timeout", text) == seconds
