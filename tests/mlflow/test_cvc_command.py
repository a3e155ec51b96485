"""Audits by the method "cvc" on the command line, in evaluations, commitments and comparisons."""

from types import SimpleNamespace

import mlflow
import numpy as np
import pytest
from click.testing import CliRunner
from mlflow import MlflowClient
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import GaussianNB

import mlflow_b3 as b3
from mlflow_b3.cli import main
from mlflow_b3.demo import FEATURES
from mlflow_b3.evidence.policy import Pin, load_policy
from mlflow_b3.tracking.audits import read_audit
from mlflow_b3.tracking.metrics_and_files import metrics_of
from mlflow_b3.tracking.preregistration import commit_arguments
from mlflow_b3.tracking.recording import audit_and_record

COLUMNS = {"target": "disease", "cluster": "patient_id"}
CVC = {"method": "cvc", "method_options": {"groups": ["patient_id", "day"], "engine": "fast"}}
OPTIONS = [
    *("--target", "disease", "--cluster", "patient_id", "--n-jobs", "1", "--budget", "160"),
    *("--method", "cvc", "--method-option", "groups=patient_id,day,engine=fast"),
]


@pytest.fixture(scope="module")
def visits():
    """Return visits of 40 patients, whose ids are right, on six days."""
    frame = b3.make_clinic(patients=40, records=5, cluster_error=0.0, seed=3).frame
    return frame.assign(day=np.arange(len(frame)) % 6)


@pytest.fixture(scope="module")
def shop(shared_store, visits, tmp_path_factory):
    """Log and register two models, and audit both by the command that compares them."""
    assert shared_store
    X, y = visits[list(FEATURES)], visits["disease"]
    data = str(tmp_path_factory.mktemp("data") / "visits.csv")
    visits.to_csv(data, index=False)
    for strength in (1.0, 0.001):
        with mlflow.start_run():
            model = LogisticRegression(C=strength).fit(X, y)
            mlflow.sklearn.log_model(
                model,
                name="model",
                registered_model_name="visits",
                pip_requirements=["scikit-learn"],
            )
    models = ["models:/visits/1", "models:/visits/2"]
    result = CliRunner().invoke(main, ["compare", *models, "--data", data, *OPTIONS, "--by", "cvc"])
    assert result.exit_code == 0, result.output
    return SimpleNamespace(models=models, data=data, output=result.output, client=MlflowClient())


def run(*words):
    return CliRunner().invoke(main, list(words))


def test_the_command_compares_models_by_cvc(shop):
    assert "Differences of CV_c" in shop.output
    assert "for new groups of patient_id and day" in shop.output


def test_models_that_were_audited_together_are_paired(shop):
    comparison = b3.compare(shop.models, by="cvc")
    (difference,) = comparison.differences
    assert difference.paired
    assert difference.comparable
    assert comparison.new == ("patient_id", "day")
    assert b3.compare(shop.models).by == "cvc", "ids are taken as right"
    assert b3.compare(shop.models, by="e0").by == "e0"


def test_what_each_cluster_adds_to_cv_makes_up_cv(shop, visits):
    """It is recorded, sums to 0, and is there for every patient."""
    report = read_audit(shop.client.get_model_version("visits", "1").tags["b3.audit_run_id"])
    assert report.influence.cv.sum() == pytest.approx(0, abs=1e-12)
    assert len(report.influence.cv) == visits["patient_id"].nunique()
    assert report.cvc.cv == pytest.approx(report.iid)


def test_the_command_audits_with_lists_of_columns(shop):
    result = run("audit", "--model-uri", shop.models[0], "--data", shop.data, *OPTIONS)
    assert result.exit_code == 0, result.output
    audit_run = shop.client.get_model_version("visits", "1").tags["b3.audit_run_id"]
    found, report = shop.client.get_run(audit_run), read_audit(audit_run)
    assert found.data.params["b3/cvc_groups"] == "patient_id, day"
    assert found.data.params["b3/cvc_engine"] == "fast"
    assert found.data.metrics["b3/cvc"] == report.cvc.cvc == metrics_of(report)["b3/cvc"]
    assert "b3_curve/cvc" in found.data.metrics
    assert "B340" in [finding.code for finding in report.findings]


def test_the_gate_looks_at_cvc(shop):
    verdict = b3.gate(shop.models[0], policy=_unsigned())
    assert "cvc_high" in [reason.check for reason in verdict.reasons]
    assert b3.verify(shop.models[0], policy=_unsigned()).holds


def _unsigned():
    from dataclasses import replace

    return replace(load_policy(), signed=False, pins=(Pin(models="*"),))


def test_audits_without_cvc_are_not_ranked_by_it(shop, visits):
    with mlflow.start_run():
        info = mlflow.sklearn.log_model(
            GaussianNB().fit(visits[list(FEATURES)], visits["disease"]),
            name="model",
            pip_requirements=["scikit-learn"],
        )
    small = {"cluster_error": 0.0, "budget": 160, "n_jobs": 1, "progress": False}
    audit_and_record(info.model_uri, visits.drop(columns="day"), **COLUMNS, **small)
    result = run("compare", shop.models[0], info.model_uri, "--by", "cvc")
    assert result.exit_code == 2
    assert "have no CV_c" in result.stderr


def test_the_evaluator_takes_the_method_and_its_options(shop, visits):
    with mlflow.start_run():
        result = mlflow.models.evaluate(
            shop.models[1],
            visits,
            targets="disease",
            model_type="classifier",
            evaluators="b3",
            evaluator_config={"cluster": "patient_id", "budget": 160, "n_jobs": 1, **CVC},
        )
    assert result.metrics["b3/cvc_low"] < result.metrics["b3/cvc"] < result.metrics["b3/cvc_high"]
    assert result.metrics["b3/cvc"] == pytest.approx(
        result.metrics["b3/iid"] + result.metrics["b3/cvc_bias"]
    )


def test_a_committed_audit_by_cvc_is_recognised(shop):
    subject = ["--model-uri", shop.models[1], "--data", shop.data, *OPTIONS]
    assert run("preregister", *subject).exit_code == 0
    assert run("audit", *subject).exit_code == 0
    rules = _unsigned()
    (reason,) = [
        each
        for each in b3.gate(shop.models[1], policy=rules).reasons
        if each.check == "preregistered"
    ]
    assert reason.outcome == "PASS", reason.text


# --- commitments ----------------------------------------------------------------------------------


def committed(**options):
    return commit_arguments(
        {"target": "y", "cluster": "g", "method": "cvc", "method_options": options}
    )


def test_the_method_is_committed_with_the_defaults_of_its_options():
    assert committed()["method"] == committed(groups=["g"], engine="auto")["method"]
    assert committed()["method"]["name"] == "cvc"
    assert committed() != commit_arguments({"target": "y", "cluster": "g"})


@pytest.mark.parametrize(
    "options",
    [{"groups": ["g", "day"]}, {"coordinates": ["x", "y"]}, {"engine": "full"}, {"draws": 900}],
    ids=str,
)
def test_every_option_of_the_method_counts(options):
    assert committed(**options) != committed()


def test_how_a_list_is_written_does_not_count():
    one, other = {"groups": ["g", "day"], "draws": 900}, {"draws": 900, "groups": ("g", "day")}
    assert committed(**one) == committed(**other) == committed(groups="g,day", draws=900)


def test_an_option_that_the_method_does_not_have_is_refused():
    with pytest.raises(b3.InputError, match="'gruops' is not an option of method 'cvc'"):
        committed(gruops=["g"])
