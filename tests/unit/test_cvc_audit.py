"""`audit(method="cvc")`: corrected cross-validation beside the loss on new clusters."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import GaussianNB

from mlflow_b3 import AuditReport, CvcReport, InputError, audit
from mlflow_b3.auditing.extension import (
    EXTENSIONS,
    extension_report,
    extension_score,
    find_extension,
)
from mlflow_b3.estimation.estimate import as_method

sys.path.insert(0, str(Path(__file__).parent / "correlated"))
from wards import make_wards

pytestmark = pytest.mark.newest

WARD = {"target": "outcome", "cluster": "ward", "method": "cvc", "progress": False}
WEEKS = {"groups": ["week"]}
CURVE = {"e0_method": "power"}


@pytest.fixture(scope="module")
def table():
    return make_wards(seed=1, wards=12)


@pytest.fixture(scope="module")
def report(table):
    return audit(GaussianNB(), table, **WARD, method_options=WEEKS, loss="log", budget=500)


def codes(report):
    return [finding.code for finding in report.findings]


def test_the_report_is_that_of_an_audit_with_the_correction_added(report):
    assert isinstance(report, AuditReport)
    assert report.cvc.cv == report.iid
    assert report.cvc.cvc == pytest.approx(report.iid + report.cvc.bias)
    assert report.cvc.grouped == report.loco
    assert report.cvc.new == ("ward", "week")


def test_without_other_evidence_ids_are_taken_as_right(report):
    assert "B340" in codes(report)
    assert (report.p0_source, report.settings.claim) == ("cluster_error", (0.0, 0.0))
    assert report.e0 == pytest.approx(report.loco, abs=0.01)


def test_with_other_evidence_the_loss_on_new_clusters_uses_it(table):
    report = audit(GaussianNB(), table, **WARD, cluster_error=0.1, budget=500)
    assert "B340" not in codes(report)
    assert report.settings.claim == (0.1, 0.1)
    assert report.cvc is not None
    assert [group.name for group in report.cvc.groups] == ["ward"]


def test_other_methods_have_no_correction(table):
    report = audit(
        GaussianNB(), table, target="outcome", cluster="ward", cluster_error=0.0, budget=200
    )
    assert report.cvc is None


def test_the_budget_is_that_of_both_together(report):
    assert report.refits.done == report.settings.fits <= 500
    assert report.cvc.draws > 100


def test_formulas_leave_all_of_the_budget_to_the_curve(table):
    options = {**WARD, "method_options": CURVE, "loss": "log", "budget": 300}
    report = audit(LogisticRegression(), table, **options)
    assert report.cvc.engine == "fast"
    assert report.refits.done > 250


def test_the_report_survives_json(report):
    again = AuditReport.from_dict(json.loads(report.to_json()))
    assert again == report
    assert again.cvc == report.cvc


def test_the_findings_of_the_correction_are_those_of_the_audit(report):
    assert "B335" in codes(report)
    assert report.to_html().count("B335") < 6


def test_a_withheld_correction_leaves_the_audit_whole(table):
    few = table[table["ward"].isin([f"w{number}" for number in range(4)])]
    report = audit(GaussianNB(), few, **WARD, budget=300)
    assert report.cvc.cvc is None
    assert report.e0 is not None
    assert "B331" in codes(report)


def test_workers_change_nothing(table, report):
    again = audit(
        GaussianNB(), table, **WARD, method_options=WEEKS, loss="log", budget=500, n_jobs=2
    )
    assert again == report


def test_a_journal_has_the_refits_of_both(table, report, tmp_path, monkeypatch):
    made, fit = [], GaussianNB.fit
    monkeypatch.setattr(GaussianNB, "fit", lambda *given: made.append(given) or fit(*given))
    given = {**WARD, "method_options": WEEKS, "loss": "log", "budget": 500}
    audit(GaussianNB(), table, **given, journal=tmp_path / "journal")
    before = len(made)
    again = audit(GaussianNB(), table, **given, journal=tmp_path / "journal")
    assert len(made) == before
    assert again == report


def test_candidates_can_share_the_world_of_one_audit(table, report):
    options = {**WEEKS, "working": report}
    other = audit(LogisticRegression(), table, **WARD, method_options=options, loss="log")
    assert other.cvc.settings["working_digest"] == report.cvc.settings["working_digest"]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"group": ["week"]}, "'group' is not an option of method 'cvc'.*Did you mean 'groups'"),
        ({"groups": ["week"], "new": ["week"]}, "must contain the audited cluster 'ward'"),
        ({"groups": ["weeks"]}, "'weeks' is not a column. Did you mean 'week'"),
        ({"working": 3}, "working=int is not usable"),
    ],
)
def test_options_that_cannot_work_are_refused(table, options, told):
    with pytest.raises(InputError, match=told):
        audit(GaussianNB(), table, **WARD, method_options=options)


def test_a_target_of_too_many_classes_is_refused_before_the_first_refit(table):
    with pytest.raises(InputError, match="24 classes; corrected cross-validation is for 2 to 20"):
        audit(GaussianNB(), table.assign(outcome=np.arange(len(table)) % 24), **WARD, loss="log")


def test_three_classes_are_corrected(table):
    three = table.assign(outcome=np.array(["a", "b", "c"])[np.arange(len(table)) % 3])
    report = audit(GaussianNB(), three, **WARD, loss="log", budget=300)
    assert report.cvc.cv == report.iid
    assert report.cvc.classes == 3
    assert AuditReport.from_dict(json.loads(report.to_json())) == report


def test_the_auc_is_corrected_in_its_own_units(table):
    report = audit(GaussianNB(), table, **WARD, scoring="roc_auc", folds=4, budget=300)
    found = report.cvc
    assert report.subject.loss == found.loss == "roc_auc"
    assert (found.grouped, found.grouped_interval) == (report.loco, report.loco_interval)
    assert found.cv == pytest.approx(report.iid, abs=0.02)  # with pairs of rows of one cluster
    assert found.cvc == pytest.approx(found.cv + found.bias)
    assert found.bias < 0
    assert AuditReport.from_dict(json.loads(report.to_json())) == report
    losses = report.as_losses
    assert losses.cvc.cvc == pytest.approx(1 - found.cvc)
    assert losses.influence.cv == pytest.approx(-report.influence.cv)
    text = report.to_text()
    assert "AUC" in text
    assert "larger" not in text.partition("When to trust which")[2].partition("In words")[0]
    assert found.limited("full").checks == ("cvc_low", "cvc_constant")


def test_scores_without_a_correction_are_refused(table):
    with pytest.raises(InputError, match="scoring='f1' needs method='dose', not 'cvc'"):
        audit(GaussianNB(), table, **WARD, scoring="f1")


def test_a_budget_that_is_too_small_says_where_the_rest_of_it_goes(table):
    with pytest.raises(InputError, match=r"budget=100 is too small, because .*; give 167 or more"):
        audit(GaussianNB(), table, **WARD, method_options=CURVE, budget=100)


@pytest.mark.parametrize("method", ["dose", "power"])
def test_e0_is_estimated_beside_it_by_any_method(table, method):
    options = {**WARD, "method_options": {"e0_method": method}, "budget": 300}
    report = audit(GaussianNB(), table, **options, cluster_error=0.1)
    assert report.settings.method == method
    assert report.cvc.cvc is not None
    assert (report.dose is not None) == (method == "dose")


# --- how an audit finds it ------------------------------------------------------------------------


def test_the_method_is_found_by_its_name():
    assert [*EXTENSIONS] == ["cvc"]
    assert extension_report("cvc") is CvcReport
    assert extension_score("cvc").name == "cvc"
    assert find_extension("cvc", {"engine": "full"}).describe("id")["engine"] == "full"


@pytest.mark.parametrize("method", ["auto", "power", as_method("basis", order=3)], ids=str)
def test_other_methods_add_nothing(method):
    plain = find_extension(method, None)
    assert plain.estimator() == as_method(method)
    assert plain.rest(None, 480) == 480
    assert plain.plan().identity == {}
    assert not plain.takes_ids_as_right
