"""Audits of models on a real server: SQLite and PostgreSQL, artifacts through the server."""

import json
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mlflow
import numpy as np
import pytest
from example_reports import changed
from logged_models import Logged, log_model
from mlflow import MlflowClient

from mlflow_b3 import AuditReport, Clinic, Comparison, compare, gate, record
from mlflow_b3.evidence.policy import load_policy
from mlflow_b3.tracking.comparing import record_comparison
from mlflow_b3.tracking.metrics_and_files import curves_of, files_of, is_answer, metrics_of, worth
from mlflow_b3.tracking.recording import audit_and_record

pytestmark = pytest.mark.servers
COLUMNS = {"target": "disease", "cluster": "patient_id"}
SMALL = {"cluster_error": 0.1, "folds": 2, "budget": 40, "n_jobs": 1}


def history(client: MlflowClient, run_id: str, key: str) -> list[tuple[int, float]]:
    return sorted((point.step, point.value) for point in client.get_metric_history(run_id, key))


def known(report: AuditReport) -> Any:
    """Return the metrics that a report has a number for."""
    values = {name: value for name, value in metrics_of(report).items() if value is not None}
    return pytest.approx(values)


def answers(report: AuditReport) -> dict[str, float]:
    """Return the metrics that a model shows; its run has them rounded."""
    return {
        name: value
        for name, value in metrics_of(report).items()
        if value is not None and is_answer(name)
    }


def rounded(report: AuditReport) -> dict[str, float]:
    return {name: worth(value) for name, value in answers(report).items()}


def scalars(run: Any) -> dict[str, float]:
    return {name: value for name, value in run.data.metrics.items() if name.startswith("b3/")}


def files(run_id: str) -> dict[str, str]:
    """Download the files of an audit, or of a comparison."""
    folder = Path(mlflow.artifacts.download_artifacts(run_id=run_id, artifact_path="b3"))
    paths = [path for path in folder.rglob("*") if path.is_file()]
    return {path.relative_to(folder).as_posix(): path.read_text(encoding="utf-8") for path in paths}


def json_of(run_id: str, name: str) -> Any:
    return json.loads(files(run_id)[name])


# --- audits by version, by alias, by model and by run -----------------------------------------------


@pytest.fixture(
    params=["models:/{name}/1", "models:/{name}@champion", "{uri}", "runs:/{run}/model"]
)
def audited(request, tracking: MlflowClient, logged: Logged, clinic: Clinic) -> SimpleNamespace:
    """Audit a registered model by one of its addresses."""
    name = f"clinic {logged.run_id}"
    mlflow.register_model(logged.uri, name)
    tracking.set_registered_model_alias(name, "champion", "1")
    address = request.param.format(name=name, uri=logged.uri, run=logged.run_id)
    report, child = audit_and_record(address, clinic.frame, **COLUMNS, **SMALL)
    return SimpleNamespace(
        report=report,
        run=tracking.get_run(logged.run_id),
        child=tracking.get_run(child),
        model=tracking.get_logged_model(logged.model_id),
        version=tracking.get_model_version(name, "1"),
    )


def test_an_audit_over_http_arrives_in_all_its_parts(tracking, audited):
    report, child = audited.report, audited.child
    assert child.info.status == "FINISHED"
    assert child.data.tags["mlflow.parentRunId"] == audited.run.info.run_id
    assert scalars(child) == known(report)
    assert scalars(audited.run) == rounded(report)
    for run in (audited.run, child):
        assert run.data.tags["b3.audit_run_id"] == child.info.run_id
    written = files_of(report)
    evidence = {"evidence.json": files(child.info.run_id)["evidence.json"]}
    assert files(child.info.run_id) == written | evidence
    assert files(audited.run.info.run_id) == {"report.html": written["report.html"]}
    for key, points in curves_of(report).items():
        assert history(tracking, child.info.run_id, key) == sorted(points)
    assert {metric.key: metric.value for metric in audited.model.metrics} == pytest.approx(
        answers(report)
    )
    (table,) = child.inputs.dataset_inputs
    assert report.settings.data_digest.startswith(table.dataset.digest)
    assert [model.model_id for model in child.inputs.model_inputs] == [audited.model.model_id]
    assert audited.version.tags["b3.audit_run_id"] == child.info.run_id
    verdict = gate(f"models:/{audited.version.name}/1", replace(load_policy(), signed=False))
    assert (verdict.reasons[0].check, verdict.reasons[0].outcome) == ("evidence", "PASS")


def test_artifacts_go_through_the_server(tracking, logged, report):
    """The client needs no access to the server's storage, and no credentials for it."""
    child = record(logged.own(report))
    assert tracking.get_run(child).info.artifact_uri.startswith("mlflow-artifacts:/")
    assert AuditReport.from_dict(json_of(child, "audit.json")) == logged.own(report)


# --- which run --------------------------------------------------------------------------------------


@contextmanager
def open_run(_: MlflowClient) -> Iterator[str]:
    with mlflow.start_run() as run:
        yield run.info.run_id


@contextmanager
def finished_run(_: MlflowClient) -> Iterator[str]:
    with mlflow.start_run() as run:
        pass
    yield run.info.run_id


@contextmanager
def nested_run(_: MlflowClient) -> Iterator[str]:
    with mlflow.start_run(), mlflow.start_run(nested=True) as run:
        yield run.info.run_id


@contextmanager
def run_of_another_experiment(client: MlflowClient) -> Iterator[str]:
    yield client.create_run("0").info.run_id  # MLflow's experiment "Default"


@pytest.mark.parametrize("place", [open_run, finished_run, nested_run, run_of_another_experiment])
def test_an_audit_is_a_child_of_its_run_wherever_that_is(tracking, report, place: Callable):
    with place(tracking) as run_id:
        before = tracking.get_run(run_id)
        active = mlflow.active_run()
        child = tracking.get_run(record(report, run_id=run_id))
        after = tracking.get_run(run_id)
        assert mlflow.active_run() == active
    assert child.data.tags["mlflow.parentRunId"] == run_id
    assert child.info.experiment_id == before.info.experiment_id
    assert child.info.status == "FINISHED"
    assert scalars(child) == known(report)
    assert scalars(after) == rounded(report)
    assert (after.info.status, after.info.end_time) == (before.info.status, before.info.end_time)
    parent = before.data.tags.get("mlflow.parentRunId")
    assert after.data.tags.get("mlflow.parentRunId") == parent
    if parent is not None:
        assert scalars(tracking.get_run(parent)) == {}


def test_a_model_is_audited_before_its_run_ends(tracking, clinic):
    with mlflow.start_run() as run:
        logged = log_model(clinic)
        report, child = audit_and_record(logged.uri, clinic.frame, **COLUMNS, **SMALL)
        assert tracking.get_run(run.info.run_id).info.status == "RUNNING"
        mlflow.log_metric("mine", 1.0)
    run = tracking.get_run(run.info.run_id)
    assert (run.info.status, run.data.metrics["mine"]) == ("FINISHED", 1.0)
    assert scalars(run) == rounded(report)
    assert scalars(tracking.get_run(child)) == known(report)


# --- much, again, and unknown -------------------------------------------------------------------------


def test_a_long_curve_arrives_complete(tracking, logged, report):
    """MLflow takes 1000 metrics in a request."""
    axis = np.linspace(0, 3, 3000, endpoint=False)
    search = replace(report.search, p0=tuple(axis), residual=tuple(np.sqrt(axis)))
    child = record(logged.own(report, search=search))
    found = history(tracking, child, "b3_curve/residual")
    assert [step for step, _ in found] == list(range(3000))
    assert [value for _, value in found] == pytest.approx(np.sqrt(axis))


def test_a_second_audit_shows_and_the_first_is_kept(tracking, logged, report):
    first = record(logged.own(report, e0=0.31))
    second = record(logged.own(report, e0=0.29))
    run = tracking.get_run(logged.run_id)
    assert run.data.metrics["b3/e0"] == 0.29
    assert run.data.tags["b3.audit_run_id"] == second
    assert set(files(logged.run_id)) == {"report.html"}
    assert json_of(first, "audit.json")["conclusion"]["e0"] == 0.31
    model = tracking.get_logged_model(logged.model_id)
    by_run = {metric.run_id: metric.value for metric in model.metrics if metric.key == "b3/e0"}
    assert by_run == {first: 0.31, second: 0.29}
    for child, status in ((first, "superseded"), (second, "current")):
        (found,) = tracking.search_runs(
            [run.info.experiment_id], f"tags.`b3.status` = '{status}'", order_by=["start_time"]
        )
        assert found.info.run_id == child
        assert scalars(found)["b3/e0"] == {first: 0.31, second: 0.29}[child]


def test_a_value_that_is_no_longer_known_becomes_nan_on_the_run_and_never_zero(
    tracking, logged, report
):
    settings = {"pattern": "unknown", "claim": None}
    unknown = changed(report, e0=None, inflation=None, p0_source="none", settings=settings)
    record(logged.own(report))
    child = record(logged.own(unknown))
    for name in ("b3/e0", "b3/gap"):
        assert math.isnan(tracking.get_run(logged.run_id).data.metrics[name])
        assert name not in tracking.get_run(child).data.metrics
    model = tracking.get_logged_model(logged.model_id)
    assert [metric.value for metric in model.metrics if metric.key == "b3/e0"] == [report.e0]
    record(logged.own(report))
    assert tracking.get_run(logged.run_id).data.metrics["b3/e0"] == worth(report.e0)


# --- those who never call our API ---------------------------------------------------------------------


def test_the_evaluator_audits_over_http(tracking, logged, clinic):
    """`mlflow.models.evaluate` by id, where MLflow logs the metrics, and by version, where we do."""
    name = f"clinic {logged.run_id}"
    mlflow.register_model(logged.uri, name)
    for uri in (logged.uri, f"models:/{name}/1"):
        with mlflow.start_run() as run:
            result = mlflow.models.evaluate(
                uri,
                clinic.frame,
                targets="disease",
                model_type="classifier",
                evaluators="b3",
                evaluator_config={"cluster": "patient_id", **SMALL},
            )
        given = result.metrics  # written by MLflow as they are, or by us
        if uri != logged.uri:
            given = {name: worth(value) for name, value in given.items() if is_answer(name)}
        assert scalars(tracking.get_run(run.info.run_id)) == pytest.approx(given)
        assert "report.html" in {Path(file.uri).name for file in result.artifacts.values()}
        shown = tracking.get_run(logged.run_id).data.metrics["b3/e0"]
        assert shown == worth(result.metrics["b3/e0"])


def test_models_are_audited_together_and_compared_over_http(tracking, clinic):
    uris = []
    for run_name in ("one", "other"):
        with mlflow.start_run(run_name=run_name):
            uris.append(log_model(clinic).uri)
    together = compare(uris, clinic.frame, **COLUMNS, **SMALL)
    run = tracking.get_run(record_comparison(together))
    assert Comparison.from_dict(json_of(run.info.run_id, "comparison.json")) == together
    experiment = tracking.get_experiment(run.info.experiment_id)
    assert "mlflow.sharedViewState.b3" in experiment.tags
    later = compare(experiment=experiment.name)
    assert {model.name for model in later.contenders} == {"one", "other"}
    assert [model.e0 for model in later.contenders] == [model.e0 for model in together.contenders]
