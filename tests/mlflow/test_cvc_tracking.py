"""What corrected cross-validation leaves in MLflow."""

import csv
import io
import math
import re
from dataclasses import replace
from pathlib import Path

import mlflow
import numpy as np
import pytest
from example_reports import COMPARED_CVC, REPORT, changed, influence, with_cvc
from mlflow import MlflowClient
from sklearn.naive_bayes import GaussianNB

import mlflow_b3
from mlflow_b3 import AuditReport, record
from mlflow_b3.correlated.report import SpatialField
from mlflow_b3.demo import FEATURES
from mlflow_b3.estimation.influence import Influence
from mlflow_b3.tracking.metrics_and_files import (
    curves_of,
    curves_table,
    extension_metrics,
    metrics_of,
    parameters_of,
    tags_of,
)

CORRECTED = with_cvc(REPORT)
OF_CVC = extension_metrics()


# --- numbers and texts ----------------------------------------------------------------------------


def test_a_report_with_cvc_has_five_more_metrics():
    assert set(metrics_of(CORRECTED)) - set(metrics_of(REPORT)) == set(OF_CVC)
    assert {name: metrics_of(CORRECTED)[name] for name in OF_CVC} == {
        "b3/cvc": 0.25,
        "b3/cvc_low": 0.19,
        "b3/cvc_high": 0.33,
        "b3/cvc_bias": 0.1,
        "b3/cvc_grouped": 0.26,
    }


def test_what_other_methods_write_stays_the_same():
    assert not [name for name in metrics_of(REPORT) if "cvc" in name]
    assert not [name for name in parameters_of(REPORT) if "cvc" in name]
    assert not [name for name in curves_of(REPORT) if "cvc" in name]
    assert "cvc" not in curves_table(REPORT)
    same = {name: value for name, value in metrics_of(CORRECTED).items() if name not in OF_CVC}
    assert same == metrics_of(REPORT)


def test_a_withheld_correction_is_not_known():
    withheld = with_cvc(REPORT, cvc=None, bias=None, interval=None)
    metrics = metrics_of(withheld)
    assert [name for name in OF_CVC if metrics[name] is None] == list(OF_CVC[:4])
    assert "b3/cvc, b3/cvc_low, b3/cvc_high, b3/cvc_bias" in tags_of(withheld, "r")["b3.not_known"]


@pytest.mark.parametrize(
    "report",
    [
        with_cvc(REPORT, engine="hot", lower_quality=True),
        changed(CORRECTED, settings={"refit_strength": "lower-bound"}),
    ],
    ids=["engine", "refits"],
)
def test_an_approximation_is_no_metric_that_a_threshold_on_cvc_could_pass(report):
    metrics = metrics_of(report)
    assert [metrics[name] for name in OF_CVC] == [None, None, None, 0.1, 0.26]


def test_how_it_was_corrected_is_told_by_parameters():
    told = {k: v for k, v in parameters_of(CORRECTED).items() if k.startswith("b3/cvc")}
    assert told == {
        "b3/cvc_groups": "patient_id, day",
        "b3/cvc_new": "patient_id",
        "b3/cvc_engine": "fast",
        "b3/cvc_working": "score",
        "b3/cvc_draws": "400",
    }


def test_the_coordinates_of_a_field_are_told_too():
    field = SpatialField(coordinates=("x", "y"), sd=1.0, reach=3.0, interval=(0.5, 2.0), across=0.1)
    told = parameters_of(with_cvc(REPORT, field=field))
    assert told["b3/cvc_coordinates"] == "x, y"


def test_the_step_of_the_curve_is_the_multiple_of_the_standard_deviations():
    assert curves_of(CORRECTED)["b3_curve/cvc"] == [
        (round(1000 * times), value)
        for times, value in zip(COMPARED_CVC.multipliers, COMPARED_CVC.sensitivity, strict=True)
    ]
    rows = list(csv.DictReader(io.StringIO(curves_table(CORRECTED))))
    own = [row for row in rows if row["curve"] == "cvc"]
    assert [(row["axis"], float(row["x"]), float(row["value"])) for row in own] == [
        ("sd_multiplier", x, y)
        for x, y in zip(COMPARED_CVC.multipliers, COMPARED_CVC.sensitivity, strict=True)
    ]


def test_all_that_only_cvc_has_is_documented():
    page = (Path(__file__).parents[2] / "docs" / "reference" / "metrics.md").read_text("utf-8")
    section = page.partition("## Corrected cross-validation\n")[2].partition("\n## ")[0]
    cells = "".join(line.split("|")[1] for line in section.splitlines() if line.startswith("| `"))
    field = SpatialField(coordinates=("x",), sd=1.0, reach=3.0, interval=(0.5, 2.0), across=0.1)
    full, plain = with_cvc(REPORT, field=field), REPORT
    own = [set(read(full)) - set(read(plain)) for read in (metrics_of, curves_of, parameters_of)]
    assert sorted(re.findall(r"`(\S+)`", cells)) == sorted(set().union(*own))


def test_a_report_with_cvc_survives_json():
    assert AuditReport.from_json(CORRECTED.to_json()) == CORRECTED


def test_what_clusters_add_to_cross_validation_survives_its_table():
    made = influence([0.5, -0.25, -0.25])
    again = Influence.from_csv(made.to_csv())
    assert np.array_equal(again.cv, made.cv)
    assert again.e0.shape == (3, 0)
    older = Influence.from_csv(replace(made, cv=None).to_csv())
    assert older.cv is None
    assert np.array_equal(older.loco, made.loco)


def test_the_table_tells_readings_of_e0_from_cross_validation():
    made = replace(influence([0.5, -0.5]), e0=np.array([[1.0, 2.0], [3.0, 4.0]]))
    again = Influence.from_csv(made.to_csv())
    assert np.array_equal(again.e0, made.e0)
    assert made.to_csv().splitlines()[0] == "clusters,share,loco,cv,e0_1,e0_2"


# --- in MLflow ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def logged(shared_store):
    """Log a model and return a report of it, without the refits."""
    assert shared_store
    clinic = mlflow_b3.make_clinic(patients=10, records=3)
    X, y = clinic.frame[list(FEATURES)], clinic.frame["disease"]
    with mlflow.start_run() as run:
        info = mlflow.sklearn.log_model(
            GaussianNB().fit(X, y), name="model", pip_requirements=["scikit-learn"]
        )
    settings = {"uri": info.model_uri, "run_id": run.info.run_id, "model_id": info.model_id}
    return changed(CORRECTED, settings=settings)


def values(run_id):
    return MlflowClient().get_run(run_id).data.metrics


def test_run_child_and_model_have_the_corrected_numbers(logged):
    child = record(logged)
    expected = {name: metrics_of(logged)[name] for name in OF_CVC}
    model = MlflowClient().get_logged_model(logged.settings.model_id)
    on_model = {metric.key: metric.value for metric in model.metrics}
    for place in (values(child), values(logged.settings.run_id), on_model):
        assert {name: place[name] for name in OF_CVC} == expected
    history = MlflowClient().get_metric_history(child, "b3_curve/cvc")
    assert sorted((m.step, m.value) for m in history) == curves_of(logged)["b3_curve/cvc"]
    params = MlflowClient().get_run(child).data.params
    assert params["b3/cvc_groups"] == "patient_id, day"


def test_numbers_of_an_older_audit_do_not_pass_for_those_of_a_newer_one_without_cvc(logged):
    record(logged)
    newer = record(replace(logged, cvc=None))
    shown = values(logged.settings.run_id)
    assert all(math.isnan(shown[name]) for name in OF_CVC)
    assert not set(OF_CVC) & set(values(newer))
    record(logged)
    assert values(logged.settings.run_id)["b3/cvc"] == 0.25
