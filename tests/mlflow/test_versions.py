"""What an audit of a registered model version leaves in the registry, and where others run."""

from types import SimpleNamespace

import mlflow
import pytest
from example_reports import changed
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException
from sklearn.naive_bayes import GaussianNB

import mlflow_b3
from mlflow_b3 import TrackingError, record
from mlflow_b3.cli import shown_if_not_recorded
from mlflow_b3.demo import FEATURES
from mlflow_b3.refit import load_model
from mlflow_b3.tracking.metrics_and_files import worth
from mlflow_b3.tracking.recording import audit_and_record

COLUMNS = {"target": "disease", "cluster": "patient_id"}
SMALL = {"cluster_error": 0.1, "budget": 100, "n_jobs": 1, "progress": False}


@pytest.fixture
def registered(mlflow_store: str) -> SimpleNamespace:
    """Log and register a model twice; the alias points to the first version."""
    assert mlflow_store
    clinic = mlflow_b3.make_clinic(patients=30, records=4, cluster_error=0.1)
    X, y = clinic.frame[list(FEATURES)], clinic.frame["disease"]
    for _ in range(2):
        with mlflow.start_run():
            info = mlflow.sklearn.log_model(
                GaussianNB().fit(X, y), name="model", pip_requirements=["scikit-learn"]
            )
        mlflow.register_model(info.model_uri, "clinic")
    client = MlflowClient()
    client.set_registered_model_alias("clinic", "champion", "1")
    return SimpleNamespace(client=client, frame=clinic.frame)


def test_the_version_page_shows_the_audit(registered):
    report, child = audit_and_record("models:/clinic/1", registered.frame, **COLUMNS, **SMALL)
    version = registered.client.get_model_version("clinic", "1")
    assert version.tags["b3.audit_run_id"] == child
    assert version.tags["b3.answer"].startswith("▲ Inflated (+")
    assert version.tags["b3.e0"] == f"{report.e0:.3f}"
    assert version.tags["b3.e0_interval"] == "{:.3f} to {:.3f}".format(*report.e0_interval)
    assert version.tags["b3.loco"] == f"{report.loco:.3f}"
    assert version.description.startswith("**▲ Inflated.** Reported error rate")
    assert f"/runs/{child}/artifacts/b3/report." in version.description
    assert registered.client.get_model_version("clinic", "2").tags == {}


def test_an_audit_by_alias_belongs_to_the_version_that_was_audited(registered):
    """The alias may have moved on by the time that the audit is written."""
    audited = load_model("models:/clinic@champion")
    registered.client.set_registered_model_alias("clinic", "champion", "2")
    report, _ = audit_and_record(audited, registered.frame, **COLUMNS, **SMALL)
    assert report.settings.uri == "models:/clinic/1"
    assert "b3.e0" in registered.client.get_model_version("clinic", "1").tags
    assert registered.client.get_model_version("clinic", "2").tags == {}


def test_every_version_that_is_the_audited_model_shows_the_audit(registered):
    """Named by its id, a model is still the version that it is registered as."""
    source = registered.client.get_model_version("clinic", "2").source
    registered.client.create_model_version("clinic", source)
    mlflow.register_model(source, "elsewhere")
    registered.client.delete_model_version("clinic", "3")
    _, child = audit_and_record(source, registered.frame, **COLUMNS, **SMALL)
    for name, version in (("clinic", "2"), ("elsewhere", "1")):
        tags = registered.client.get_model_version(name, version).tags
        assert tags["b3.audit_run_id"] == child
    assert registered.client.get_model_version("clinic", "1").tags == {}


def test_an_active_model_gets_no_metrics_of_another(registered):
    """MLflow links metrics without a model to the active one, curves point by point."""
    other = registered.client.get_model_version("clinic", "2").source.removeprefix("models:/")
    mlflow.set_active_model(model_id=other)
    try:
        audit_and_record("models:/clinic/1", registered.frame, **COLUMNS, **SMALL)
    finally:
        mlflow.clear_active_model()
    assert not registered.client.get_logged_model(other).metrics


def test_a_second_audit_replaces_tags_and_our_description_but_nobody_elses(registered):
    client = registered.client
    report, _ = audit_and_record("models:/clinic/1", registered.frame, **COLUMNS, **SMALL)
    record(changed(report, e0=0.123))
    assert client.get_model_version("clinic", "1").tags["b3.e0"] == "0.123"
    client.update_model_version("clinic", "1", description="approved by the board")
    child = record(report)
    version = client.get_model_version("clinic", "1")
    assert version.description == "approved by the board"
    assert version.tags["b3.audit_run_id"] == child


def test_a_lower_bound_is_not_shown_as_the_loss_of_a_version(registered):
    report, _ = audit_and_record("models:/clinic/1", registered.frame, **COLUMNS, **SMALL)
    settings = {"refit_strength": "lower-bound"}
    record(changed(report, settings=settings, e0_interval=(0.2, None)))
    tags = registered.client.get_model_version("clinic", "1").tags
    assert tags["b3.e0"] == "unknown"
    assert tags["b3.e0_interval"] == "0.200 or more"


def test_an_audit_within_another_run_is_its_child_and_shows_on_both(registered):
    """As in `mlflow.models.evaluate`, whose run is not the one that trained the model."""
    with mlflow.start_run() as evaluation:
        report, child = audit_and_record(
            "models:/clinic/1",
            registered.frame,
            run_id=evaluation.info.run_id,
            **COLUMNS,
            **SMALL,
        )
    client = registered.client
    assert client.get_run(child).data.tags["mlflow.parentRunId"] == evaluation.info.run_id
    for run_id in (evaluation.info.run_id, report.settings.run_id):
        run = client.get_run(run_id)
        assert run.data.metrics["b3/e0"] == worth(report.e0)
        assert run.data.tags["b3.audit_run_id"] == child
    model = client.get_logged_model(report.settings.model_id)
    assert {m.run_id for m in model.metrics} == {child}


def test_an_older_audit_in_an_experiment_of_its_own_is_superseded(registered):
    """An evaluation keeps its audit in its own experiment; what the model shows leads there."""
    client, audits = registered.client, []
    for name in ("first", "second", None):
        run_id = name and client.create_run(client.create_experiment(name)).info.run_id
        _, child = audit_and_record(
            "models:/clinic/1", registered.frame, run_id=run_id, **COLUMNS, **SMALL
        )
        audits.append(child)
    found = [client.get_run(run_id).data.tags for run_id in audits]
    assert [tags["b3.status"] for tags in found] == ["superseded", "superseded", "current"]
    assert [tags.get("b3.superseded_by") for tags in found] == [audits[1], audits[2], None]
    assert [tags["b3.supersedes"] for tags in found] == ["none", audits[0], audits[1]]


def test_what_mlflow_logs_itself_is_not_logged_twice(registered):
    with mlflow.start_run() as evaluation:
        report, child = audit_and_record(
            "models:/clinic/1",
            registered.frame,
            run_id=evaluation.info.run_id,
            mlflow_logs=True,
            **COLUMNS,
            **SMALL,
        )
    client = registered.client
    run = client.get_run(evaluation.info.run_id)
    assert run.data.metrics == {}
    assert run.data.tags["b3.audit_run_id"] == child
    assert not client.get_logged_model(report.settings.model_id).metrics
    assert client.get_run(child).data.metrics["b3/e0"] == pytest.approx(report.e0)


def test_an_audit_that_mlflow_does_not_take_is_not_lost(registered, monkeypatch, tmp_path, capsys):
    def refuse(*_, **__):
        raise OSError("connection refused")

    monkeypatch.setattr(MlflowClient, "log_artifacts", refuse)
    monkeypatch.chdir(tmp_path)
    with (
        pytest.raises(TrackingError, match="connection refused") as caught,
        shown_if_not_recorded(),
    ):
        audit_and_record("models:/clinic/1", registered.frame, **COLUMNS, **SMALL)
    (saved,) = tmp_path.glob("b3-audit-*")
    assert f"mlflow_b3.record('{saved.name}')" in str(caught.value)
    assert "Leakage audit of clinic version 1 (GaussianNB)" in capsys.readouterr().out
    monkeypatch.undo()
    child = record(saved)
    assert MlflowClient().get_run(child).info.status == "FINISHED"
    files = {file.path for file in MlflowClient().list_artifacts(child, "b3")}
    assert {"b3/folds.csv", "b3/influence.csv"} <= files, "it can be repeated and compared in pairs"


def test_a_folder_without_an_audit_is_refused(tmp_path):
    with pytest.raises(mlflow_b3.InputError, match="has no readable audit"):
        record(tmp_path)


@pytest.mark.parametrize("method", ["set_model_version_tag", "set_experiment_tag"])
def test_an_audit_is_not_lost_because_a_courtesy_was_refused(
    registered, monkeypatch, caplog, method
):
    def refuse(*_, **__):
        raise MlflowException("PERMISSION_DENIED")

    monkeypatch.setattr(MlflowClient, method, refuse)
    _, child = audit_and_record("models:/clinic/1", registered.frame, **COLUMNS, **SMALL)
    run = registered.client.get_run(child)
    assert run.info.status == "FINISHED"
    assert run.data.tags["b3.status"] == "current"
    assert "The audit is recorded, but" in caplog.text


def test_copies_show_the_newest_audit_too(registered):
    client = registered.client
    client.copy_model_version("models:/clinic/1", "shop")
    client.copy_model_version("models:/shop/1", "shelf")
    _, child = audit_and_record("models:/clinic/1", registered.frame, **COLUMNS, **SMALL)
    for name in ("clinic", "shop", "shelf"):
        assert client.get_model_version(name, "1").tags["b3.audit_run_id"] == child


@pytest.mark.parametrize("listed", ["no json", "[1]", '[{"name": "clinic", "version": 2}]'])
def test_mlflows_list_of_versions_is_not_trusted(registered, listed):
    """It is a tag of the LoggedModel, which anybody can write."""
    model = mlflow.models.get_model_info("models:/clinic/1").model_id
    registered.client.set_logged_model_tags(model, {"mlflow.modelVersions": listed})
    _, child = audit_and_record("models:/clinic/1", registered.frame, **COLUMNS, **SMALL)
    assert registered.client.get_model_version("clinic", "1").tags["b3.audit_run_id"] == child
    assert registered.client.get_model_version("clinic", "2").tags == {}
