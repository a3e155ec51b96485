"""What an audit leaves in MLflow: on the audited run, on its own child run, on the LoggedModel."""

import csv
import io
import json
import math
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mlflow
import pytest
from example_reports import changed
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException
from mlflow.store.artifact.local_artifact_repo import LocalArtifactRepository
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.naive_bayes import GaussianNB

import mlflow_b3
from mlflow_b3 import AuditReport, FitError, InputError, TrackingError, record
from mlflow_b3.demo import FEATURES
from mlflow_b3.refit import load_model
from mlflow_b3.reporting.document import escaped
from mlflow_b3.reporting.headline import headline_of
from mlflow_b3.reporting.pages import to_markdown
from mlflow_b3.reporting.sentences import explain
from mlflow_b3.tracking.audits import current_audits
from mlflow_b3.tracking.metrics_and_files import (
    curves_of,
    curves_table,
    metrics_of,
    parameters_of,
    worth,
)
from mlflow_b3.tracking.recording import audit_and_record
from mlflow_b3.tracking.shown_on_models import Showcase

COLUMNS = {"target": "disease", "cluster": "patient_id"}
EXPERIMENT = "recording"
METRICS = {
    "b3/e0",
    "b3/e0_low",
    "b3/e0_high",
    "b3/e0_secant",
    "b3/p0",
    "b3/seen_share",
    "b3/seen_share_low",
    "b3/seen_share_high",
    "b3/p0_star",
    "b3/residual",
    "b3/loco",
    "b3/iid",
    "b3/gap",
    "b3/inflation",
    "b3/test_statistic",
    "b3/test_pvalue",
    "b3/refit_full",
    "b3/refit_agreement",
    "b3/tipping_p0",
    "b3/tipping_cluster_error",
    "b3/tipping_split_rate",
    "b3/fits",
}
FOLDS = "b3/folds.csv"
INFLUENCE = "b3/influence.csv"
MEASUREMENTS = "b3/measurements.json"
EVIDENCE = "b3/evidence.json"
ARTIFACTS = [
    *("b3/audit.json", "b3/curves.csv", EVIDENCE, FOLDS, INFLUENCE, MEASUREMENTS, "b3/plots"),
    *("b3/report.html", "b3/report.md", "b3/report.txt"),
]


@pytest.fixture(scope="module")
def tracking(
    empty_database: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[MlflowClient]:
    """Use one store for all tests here, so that they can share an audit."""
    folder = tmp_path_factory.mktemp("recording")
    shutil.copy(empty_database, folder / "mlflow.db")
    before = mlflow.get_tracking_uri()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{folder}/mlflow.db")
        mlflow.set_tracking_uri(f"sqlite:///{folder}/mlflow.db")
        made = mlflow.create_experiment(EXPERIMENT, (folder / "files").as_uri())
        patch.setenv("MLFLOW_EXPERIMENT_ID", made)
        patch.setattr("mlflow.tracking.fluent._active_experiment_id", made)
        yield MlflowClient()
        mlflow.set_tracking_uri(before)


def experiment(client: MlflowClient) -> str:
    return str(client.get_experiment_by_name(EXPERIMENT).experiment_id)


def new_run(client: MlflowClient, **tags: str) -> str:
    return str(client.create_run(experiment(client), tags=tags).info.run_id)


@pytest.fixture(scope="module")
def clinic() -> mlflow_b3.Clinic:
    return mlflow_b3.make_clinic(patients=30, records=4, cluster_error=0.1)


@pytest.fixture(scope="module")
def audited(tracking: MlflowClient, clinic: mlflow_b3.Clinic) -> SimpleNamespace:
    """Train and log a model, end its run, audit it: the one real audit of these tests."""
    X, y = clinic.frame[list(FEATURES)], clinic.frame["disease"]
    with mlflow.start_run(description="my notes"):
        info = mlflow.sklearn.log_model(
            GaussianNB().fit(X, y), name="model", pip_requirements=["scikit-learn"]
        )
    before = tracking.get_run(info.run_id)
    report, child = audit_and_record(
        info.model_uri, clinic.frame, **COLUMNS, cluster_error=0.1, budget=100, n_jobs=1
    )
    return SimpleNamespace(
        report=report,
        before=before,
        run=tracking.get_run(info.run_id),
        child=tracking.get_run(child),
        model=tracking.get_logged_model(info.model_id),
    )


@pytest.fixture(scope="module")
def complete(audited: SimpleNamespace) -> AuditReport:
    """Return a report in which no number is missing but those of the other pattern."""
    return changed(
        audited.report,
        e0_secant=0.21,
        residual=0.02,
        tipping_p0=0.03,
        tipping_cluster_error=0.12,
        tipping_split_rate=0.34,
    )


@dataclass(frozen=True)
class Trained:
    """A finished run and a LoggedModel without files: enough for a report to be written to."""

    client: MlflowClient
    run_id: str
    model_id: str

    def own(self, report: AuditReport, **changes: Any) -> AuditReport:
        """Return a report as if this model had been audited."""
        settings = {"run_id": self.run_id, "model_id": self.model_id}
        return changed(report, settings=settings, **changes)

    def model(self, estimator: Any) -> Any:
        """Return an estimator as if it had been loaded from here."""
        return replace(load_model(estimator), run_id=self.run_id, model_id=self.model_id)

    def children(self) -> list[Any]:
        parent = f"tags.`mlflow.parentRunId` = '{self.run_id}'"
        return list(
            self.client.search_runs([experiment(self.client)], parent, order_by=["start_time"])
        )

    def metrics(self) -> dict[str, float]:
        return dict(self.client.get_run(self.run_id).data.metrics)

    def model_metrics(self) -> list[Any]:
        return self.client.get_logged_model(self.model_id).metrics or []

    def traces(self) -> list[str]:
        """Return every trace of an audit on the run and on the LoggedModel."""
        run = self.client.get_run(self.run_id)
        model = self.client.get_logged_model(self.model_id)
        return [
            *run.data.metrics,
            *(name for name in run.data.tags if name.startswith("b3")),
            *artifacts(self.client, self.run_id),
            *(f"model: {metric.key}" for metric in model.metrics or []),
            *(f"model: {name}" for name in model.tags if name.startswith("b3")),
        ]


@pytest.fixture
def trained(tracking: MlflowClient) -> Trained:
    run_id = new_run(tracking)
    model = tracking.create_logged_model(experiment(tracking), name="model", source_run_id=run_id)
    tracking.set_terminated(run_id)
    return Trained(tracking, run_id, model.model_id)


def artifacts(client: MlflowClient, run_id: str) -> list[str]:
    return [file.path for file in client.list_artifacts(run_id, "b3")]


def read(run: Any, path: str) -> str:
    local = mlflow.artifacts.download_artifacts(run_id=run.info.run_id, artifact_path=path)
    return Path(local).read_text(encoding="utf-8")


def unknown(report: AuditReport) -> AuditReport:
    """Return a report as if nothing had been said about the leakage."""
    missing = ("e0", "e0_secant", "p0", "inflation", "leaked", "losses", "residual")
    settings = {"pattern": "unknown", "claim": None}
    return changed(report, **dict.fromkeys(missing), p0_source="none", settings=settings)


# --- the child run --------------------------------------------------------------------------------


def test_the_audit_is_a_finished_child_of_the_audited_run(audited):
    child = audited.child
    assert child.data.tags["mlflow.parentRunId"] == audited.run.info.run_id
    assert child.info.status == "FINISHED"
    assert child.info.end_time >= child.info.start_time
    assert child.info.experiment_id == audited.run.info.experiment_id
    assert child.info.run_name == f"{audited.run.info.run_name} (b3)"
    assert child.data.tags["mlflow.source.name"] == "mlflow-b3"
    assert child.data.tags["mlflow.user"] == audited.run.data.tags["mlflow.user"]


def test_the_child_names_the_audited_table_and_model_as_its_inputs(audited):
    (given,) = audited.child.inputs.dataset_inputs
    assert given.dataset.digest == audited.report.settings.data_digest[:12]
    assert json.loads(given.dataset.profile) == {"num_rows": 120, "num_clusters": 30}
    assert {tag.key: tag.value for tag in given.tags} == {"mlflow.data.context": "audit"}
    (model,) = audited.child.inputs.model_inputs
    assert model.model_id == audited.model.model_id


def test_the_child_explains_itself_in_its_description(audited):
    note = audited.child.data.tags["mlflow.note.content"]
    headline = headline_of(audited.report)
    assert note.startswith(f"**{headline.sign} {headline.word}.** {escaped(headline.told)}\n\n")
    assert note.endswith("\n\n".join(map(escaped, explain(audited.report))))


def test_a_run_without_a_description_gets_the_answer_with_a_link_to_the_report(
    tracking, trained, complete
):
    for e0 in (0.31, 0.29):
        child = record(trained.own(complete, e0=e0))
        run = tracking.get_run(trained.run_id)
        note = run.data.tags["mlflow.note.content"]
        assert note.startswith("**▲ Inflated.** Reported error rate")
        own = f"#/experiments/{run.info.experiment_id}/runs/{child}"
        assert note.endswith(f"[Report]({own}/artifacts/b3/report.html) · [Leakage audit]({own})")
        model = tracking.get_logged_model(trained.model_id)
        assert model.tags["mlflow.note.content"] == note


def test_a_finished_run_stays_as_it_was(audited):
    assert audited.run.info.status == "FINISHED"
    assert audited.run.info.end_time == audited.before.info.end_time
    assert audited.run.info.run_name == audited.before.info.run_name
    assert audited.run.data.tags["mlflow.note.content"] == "my notes"


# --- metrics --------------------------------------------------------------------------------------


def test_a_report_has_exactly_the_documented_metrics(complete):
    assert set(metrics_of(complete)) == METRICS


def test_a_lower_bound_is_no_metric_that_a_threshold_on_e0_could_pass(complete):
    settings = {"refit_strength": "lower-bound"}
    partial = changed(complete, settings=settings, e0_interval=(0.2, None))
    metrics = metrics_of(partial)
    assert metrics["b3/e0"] is None
    assert metrics["b3/e0_high"] is None
    assert metrics["b3/e0_low"] == 0.2
    assert metrics["b3/refit_full"] == 0.0
    assert metrics_of(complete)["b3/refit_full"] == 1.0


ANSWERS = {
    *("b3/e0", "b3/e0_low", "b3/e0_high", "b3/iid", "b3/loco", "b3/gap", "b3/p0_star"),
    "b3/residual",
}


def answers(report: AuditReport) -> dict[str, float]:
    """Return the metrics of the audited model."""
    return {name: value for name, value in known_metrics(report).items() if name in ANSWERS}


def rounded(report: AuditReport) -> dict[str, float]:
    """Return the metrics of the audited run."""
    return {name: worth(value) for name, value in answers(report).items()}


def test_every_number_of_the_report_is_a_metric_of_the_audits_own_run(audited):
    metrics = audited.child.data.metrics
    assert {k: v for k, v in metrics.items() if k.startswith("b3/")} == pytest.approx(
        known_metrics(audited.report)
    )


def test_the_audited_run_has_the_numbers_that_answer_rounded_to_what_they_are_worth(audited):
    metrics = audited.run.data.metrics
    assert {k: v for k, v in metrics.items() if k.startswith("b3")} == rounded(audited.report)
    assert worth(0.123456) == 0.1235
    assert worth(123456.0) == 123500.0


def test_all_metrics_arrive_when_all_numbers_are_known(trained, complete):
    child = record(trained.own(complete))
    assert trained.metrics() == rounded(complete)
    on_child = trained.client.get_run(child).data.metrics
    assert {k: v for k, v in on_child.items() if k.startswith("b3/")} == pytest.approx(
        known_metrics(complete)
    )
    on_model = {metric.key: metric.value for metric in trained.model_metrics()}
    assert on_model == pytest.approx(answers(complete))


def test_the_logged_model_has_the_metrics_of_the_child_run_with_the_table(audited):
    expected = answers(audited.report)
    metrics = audited.model.metrics
    assert {metric.key: metric.value for metric in metrics} == pytest.approx(expected)
    assert len(metrics) == len(expected)
    assert {metric.run_id for metric in metrics} == {audited.child.info.run_id}
    assert {metric.dataset_digest for metric in metrics} == {
        audited.report.settings.data_digest[:12]
    }


def test_the_audited_run_has_no_curves(audited):
    """MLflow would show a curve of the run that trained the model as its training history."""
    assert not [name for name in audited.run.data.metrics if name.startswith("b3_curve")]


def test_the_logged_model_has_no_curves(audited):
    """A LoggedModel lists every step of a metric as a row of its own."""
    assert not [metric.key for metric in audited.model.metrics if "curve" in metric.key]


@pytest.mark.parametrize("name", ["loss", "residual", "sensitivity", "sensitivity_split"])
def test_curves_are_stepped_metrics_of_the_child_by_permille(tracking, audited, name):
    key = f"b3_curve/{name}"
    history = tracking.get_metric_history(audited.child.info.run_id, key)
    points = sorted((metric.step, metric.value) for metric in history)
    expected = sorted(curves_of(audited.report)[key])
    assert [step for step, _ in points] == [step for step, _ in expected]
    assert [value for _, value in points] == pytest.approx([value for _, value in expected])


def known_metrics(report: AuditReport) -> dict[str, float]:
    return {name: value for name, value in metrics_of(report).items() if value is not None}


def not_known(report: AuditReport) -> str:
    """Return the metrics that an audit could not give, as its tag lists them."""
    return ", ".join(name for name, value in metrics_of(report).items() if value is None) or "none"


def test_the_steps_of_a_curve_are_its_axis(audited):
    curves, report = curves_of(audited.report), audited.report
    assert [step for step, _ in curves["b3_curve/loss"]] == [
        round(1000 * share) for share in report.curve.exposure
    ]
    assert [step for step, _ in curves["b3_curve/sensitivity"]] == [
        round(1000 * error) for error in report.sensitivity.error
    ]
    assert all(type(step) is int for points in curves.values() for step, _ in points)


def test_without_clusters_to_break_there_is_no_curve_over_the_split_rate(complete):
    report = changed(complete, fragments=None, fragment_sensitivity=None)
    assert "b3_curve/sensitivity_split" not in curves_of(report)


# --- artifacts and tags ---------------------------------------------------------------------------


def test_the_audits_run_has_all_files_and_the_audited_run_the_page_of_the_report(tracking, audited):
    assert artifacts(tracking, audited.child.info.run_id) == ARTIFACTS
    assert artifacts(tracking, audited.run.info.run_id) == ["b3/report.html"]
    page = audited.report.to_html()
    assert read(audited.run, "b3/report.html") == read(audited.child, "b3/report.html") == page


@pytest.mark.parametrize("earlier", ["audit.json", "report.md", "plots/scores.svg"])
def test_files_that_an_earlier_version_copied_to_the_run_do_not_stay_beside_a_newer_report(
    tracking, trained, complete, earlier
):
    tracking.log_text(trained.run_id, "of an older audit", f"b3/{earlier}")
    tracking.log_text(trained.run_id, "not ours", "b3/notes.txt")
    record(trained.own(complete))
    assert artifacts(tracking, trained.run_id) == ["b3/notes.txt", "b3/report.html"]


def test_files_that_a_store_cannot_remove_are_named(trained, complete, monkeypatch, caplog):
    trained.client.log_text(trained.run_id, "of an older audit", "b3/audit.json")

    def refuse(*_):
        raise NotImplementedError

    monkeypatch.setattr(LocalArtifactRepository, "delete_artifacts", refuse)
    record(trained.own(complete))
    assert f"run {trained.run_id} has files of an older audit" in caplog.text
    assert "could not be removed: b3/audit.json (NotImplementedError" in caplog.text


def test_the_files_of_an_audit_stay_where_another_is_written_below_its_run(tracking, complete):
    own = record(bare(complete))
    before = artifacts(tracking, own)
    record(bare(complete), run_id=own)
    assert artifacts(tracking, own) == before


def test_audit_json_reads_back_into_an_equal_report(audited):
    text = read(audited.child, "b3/audit.json")
    assert AuditReport.from_dict(json.loads(text)) == audited.report


def test_the_report_is_there_to_read(audited):
    assert read(audited.child, "b3/report.txt") == f"{audited.report.to_text()}\n"
    assert read(audited.child, "b3/report.md") == to_markdown(audited.report)


def test_the_plots_are_there_to_look_at(tracking, audited):
    plots = [file.path for file in tracking.list_artifacts(audited.child.info.run_id, "b3/plots")]
    assert plots == [
        f"b3/plots/{name}.svg"
        for name in ("dose", "loss_curve", "residual", "scores", "sensitivity", "sensitivity_split")
    ]


def test_curves_csv_is_a_table_of_all_curves(audited):
    rows = list(csv.DictReader(io.StringIO(read(audited.child, "b3/curves.csv"))))
    report = audited.report
    lengths = {
        ("loss", "injected"): len(report.curve.exposure),
        ("dose", "rows"): len(report.dose.d),
        ("residual", "p0"): len(report.search.p0),
        ("sensitivity_rows", "cluster_error"): len(report.sensitivity.e0),
        ("sensitivity_fragments", "split_rate"): len(report.fragment_sensitivity.e0),
    }
    found = [(row["curve"], row["axis"]) for row in rows]
    assert {key: found.count(key) for key in found} == lengths
    first = rows[0]
    assert float(first["x"]) == report.curve.exposure[0] == 0
    assert float(first["value"]) == report.curve.loss[0]
    assert all(float(row["low"]) <= float(row["high"]) for row in rows if row["low"])
    assert curves_table(report) == read(audited.child, "b3/curves.csv")


@pytest.mark.parametrize("where", ["child", "model"])
def test_the_audits_run_and_the_model_have_all_tags(audited, where):
    place = getattr(audited, where)
    tags = place.tags if where == "model" else place.data.tags
    own = ("b3.status", "b3.supersedes", "b3.e0", "b3.e0_interval", "b3.loco", "b3.iid")
    assert {n: v for n, v in tags.items() if n.startswith("b3.") and n not in own} == {
        **pointer(audited),
        "b3.p0_source": "cluster_error",
        "b3.pattern": "rows",
        "b3.refit": "clone",
        "b3.refit_strength": "full",
        "b3.version": mlflow_b3.__version__,
        "b3.data_digest": audited.report.settings.data_digest,
        "b3.not_known": not_known(audited.report),
        "b3.evidence": sha256(read(audited.child, EVIDENCE).encode()).hexdigest(),
    }


def pointer(audited) -> dict[str, str]:
    """Return the tags that the audited run shows: the answer, and where the rest is."""
    return {
        "b3.answer": headline_of(audited.report).short,
        "b3.audit_run_id": audited.child.info.run_id,
        "b3.score": audited.report.subject.loss,
        "b3.subject": audited.model.model_id,
    }


def test_the_audited_run_has_the_answer_and_where_the_rest_is(audited):
    tags = audited.run.data.tags
    assert {n: v for n, v in tags.items() if n.startswith("b3.")} == pointer(audited)


def test_the_audits_run_has_its_scores_as_text_and_a_colour(audited):
    tags = audited.child.data.tags
    assert tags["b3.e0"] == f"{audited.report.e0:.3f}"
    assert tags["mlflow.runColor"] == "#0072b2"


def test_the_audits_run_has_what_was_audited_and_how_as_parameters(audited):
    """They cannot be changed later, so the audited run, which newer audits share, has none."""
    params = audited.child.data.params
    assert params == parameters_of(audited.report)
    assert audited.run.data.params == audited.before.data.params
    shown = {
        "b3/cluster": "patient_id",
        "b3/target": "disease",
        "b3/claim": "0.1",
        "b3/p0_source": "cluster_error",
        "b3/loss": "zero_one",
        "b3/folds": "5",
        "b3/seed": "0",
    }
    assert shown.items() <= params.items()


def test_a_range_is_a_parameter_with_both_ends(complete):
    settings = {"claim": (0.05, 0.15)}
    assert parameters_of(changed(complete, settings=settings))["b3/claim"] == "0.05 to 0.15"


def test_the_folds_can_be_repeated_from_their_table(audited, clinic, tmp_path):
    path = tmp_path / "folds.csv"
    path.write_text(read(audited.child, FOLDS))
    again = mlflow_b3.audit(
        GaussianNB(), clinic.frame, **COLUMNS, folds=path, budget=100, n_jobs=1, progress=False
    )
    assert again.settings.folds_digest == audited.report.settings.folds_digest
    assert again.loco == pytest.approx(audited.report.loco)


def test_a_report_that_was_read_back_has_no_table_of_folds(tracking, trained, complete):
    read_back = AuditReport.from_json(complete.to_json())
    child = record(trained.own(read_back))
    assert FOLDS not in artifacts(tracking, child)


def test_the_table_keeps_the_name_of_its_file(trained, complete):
    settings = {"data_source": "rows/visits.parquet"}
    child = record(trained.own(changed(complete, settings=settings)))
    (given,) = trained.client.get_run(child).inputs.dataset_inputs
    assert given.dataset.name == "visits.parquet"
    assert json.loads(given.dataset.source) == {"uri": "rows/visits.parquet"}


# --- a second audit -------------------------------------------------------------------------------


def test_an_older_audit_says_by_which_one_it_was_superseded(trained, complete):
    first = record(trained.own(complete))
    second = record(trained.own(complete))
    old, new = (trained.client.get_run(run_id) for run_id in (first, second))
    assert old.data.tags["b3.status"] == "superseded"
    assert old.data.tags["b3.superseded_by"] == second
    assert old.data.tags["mlflow.note.content"].startswith(
        f"**Superseded** by the audit of run `{second}`"
    )
    assert old.info.run_name.endswith(" superseded")
    assert new.data.tags["b3.status"] == "current"
    assert new.data.tags["b3.supersedes"] == first
    assert not new.info.run_name.endswith(" superseded")


def test_audits_of_other_models_of_the_same_run_are_not_superseded(tracking, trained, complete):
    """A run may log several models; each has its newest audit."""
    other = tracking.create_logged_model(
        experiment(tracking), name="other", source_run_id=trained.run_id
    )
    first = record(trained.own(complete))
    settings = {"run_id": trained.run_id, "model_id": other.model_id}
    second = record(changed(complete, settings=settings))
    for child in (first, second):
        assert tracking.get_run(child).data.tags["b3.status"] == "current"
        assert tracking.get_run(child).data.tags["b3.supersedes"] == "none"


def test_a_failed_audit_is_never_the_current_one(trained, complete, monkeypatch):
    refuse("set_logged_model_tags", monkeypatch, lambda _: True)
    first = record(replace(trained.own(complete), subject=complete.subject), trained.run_id)
    with pytest.raises(TrackingError):
        record(trained.own(complete))
    failed = [run for run in trained.children() if run.info.status == "FAILED"]
    assert len(failed) == 1
    assert "b3.status" not in failed[0].data.tags
    assert trained.client.get_run(first).data.tags["b3.status"] == "current"


def test_very_long_names_of_runs_are_cut(tracking, complete):
    """PostgreSQL keeps 250 characters of them."""
    run_id = new_run(tracking, **{"mlflow.runName": "n" * 250})
    first = record(bare(complete), run_id)
    name = tracking.get_run(first).info.run_name
    assert len(name) <= 250
    assert name.endswith("(b3)")


def test_a_deleted_older_audit_is_no_obstacle(trained, complete):
    trained.client.delete_run(record(trained.own(complete)))
    child = record(trained.own(complete))
    assert trained.client.get_run(child).info.status == "FINISHED"


def test_a_second_audit_shows_on_the_run_and_keeps_the_first_in_its_child(trained, complete):
    first = record(trained.own(complete, e0=0.31))
    second = record(trained.own(complete, e0=0.29))
    assert [child.info.run_id for child in trained.children()] == [first, second]
    assert [child.data.metrics["b3/e0"] for child in trained.children()] == [0.31, 0.29]
    run = trained.client.get_run(trained.run_id)
    assert run.data.metrics["b3/e0"] == 0.29
    assert run.data.tags["b3.audit_run_id"] == second
    assert read(run, "b3/report.html") == trained.own(complete, e0=0.29).to_html()
    model = trained.client.get_logged_model(trained.model_id)
    assert model.tags["b3.audit_run_id"] == second
    by_run = {metric.run_id: metric.value for metric in model.metrics if metric.key == "b3/e0"}
    assert by_run == {first: 0.31, second: 0.29}


def test_a_value_that_is_no_longer_known_becomes_nan_on_the_run(trained, complete):
    """The older audit's e0 must not pass for the newer one's."""
    record(trained.own(complete))
    child = record(trained.own(unknown(complete)))
    metrics = trained.metrics()
    for name in ("b3/e0", "b3/gap", "b3/residual"):
        assert math.isnan(metrics[name])
    assert metrics["b3/loco"] == worth(complete.loco)
    assert "b3/e0" not in trained.client.get_run(child).data.metrics
    assert trained.client.get_run(child).data.tags["b3.p0_source"] == "none"


def test_what_an_earlier_version_showed_on_the_run_is_cleared(trained, complete):
    trained.client.log_metric(trained.run_id, "b3/fits", 470.0)
    trained.client.set_tag(trained.run_id, "b3.refit", "clone")
    record(trained.own(complete))
    assert math.isnan(trained.metrics()["b3/fits"])
    assert "b3.refit" not in trained.client.get_run(trained.run_id).data.tags


def test_a_value_that_is_known_again_replaces_nan(trained, complete):
    for report in (complete, unknown(complete), complete):
        record(trained.own(report, e0_interval=(0.2, 0.4)))
    assert trained.metrics()["b3/e0"] == worth(complete.e0)


def test_the_logged_model_never_gets_nan(trained, complete):
    """MLflow would store it as 0, a perfect score."""
    record(trained.own(complete))
    child = record(trained.own(unknown(complete)))
    metrics = trained.model_metrics()
    assert all(math.isfinite(metric.value) for metric in metrics)
    newer = {metric.key for metric in metrics if metric.run_id == child}
    assert "b3/loco" in newer
    assert not newer & {"b3/e0", "b3/gap", "b3/residual"}


def test_an_unknown_value_is_left_out_where_no_older_one_is(trained, complete):
    record(trained.own(unknown(complete)))
    assert "b3/e0" not in trained.metrics()
    assert trained.metrics()["b3/e0_high"] == worth(complete.e0_interval[1])


# --- which run ------------------------------------------------------------------------------------


def bare(report: AuditReport) -> AuditReport:
    """Return a report as if an estimator outside MLflow had been audited."""
    return changed(report, settings={"run_id": None, "model_id": None, "uri": None})


def test_the_audit_of_a_bare_estimator_gets_a_run_of_its_own(tracking, complete):
    run = tracking.get_run(record(bare(complete)))
    assert "mlflow.parentRunId" not in run.data.tags
    assert run.info.status == "FINISHED"
    assert run.info.experiment_id == experiment(tracking)
    assert run.data.metrics["b3/e0"] == complete.e0
    assert run.data.tags["b3.audit_run_id"] == run.info.run_id
    assert artifacts(tracking, run.info.run_id) == [each for each in ARTIFACTS if each != EVIDENCE]


def test_the_audit_of_a_bare_estimator_can_be_written_to_any_run(trained, complete):
    child = record(bare(complete), run_id=trained.run_id)
    assert [run.info.run_id for run in trained.children()] == [child]
    assert trained.metrics()["b3/e0"] == worth(complete.e0)
    assert trained.model_metrics() == []


def test_a_model_logged_without_a_run_gets_metrics_and_tags(tracking, complete):
    """MLflow 3 logs models outside of runs; their audits are found by the LoggedModel alone."""
    model_id = tracking.create_logged_model(experiment(tracking), name="model").model_id
    settings = {"run_id": None, "model_id": model_id}
    child = record(changed(complete, settings=settings))
    model = tracking.get_logged_model(model_id)
    metrics = {metric.key: metric.value for metric in model.metrics}
    assert metrics == pytest.approx(answers(complete))
    assert model.tags["b3.audit_run_id"] == child


def test_an_audit_written_to_another_run_leaves_its_logged_model_alone(tracking, trained, complete):
    """The number would otherwise be shown for a model that this run did not train."""
    other = new_run(tracking)
    record(trained.own(complete), run_id=other)
    assert tracking.get_run(other).data.metrics["b3/e0"] == worth(complete.e0)
    assert trained.traces() == []


def test_an_audit_written_to_another_run_supersedes_none(tracking, trained, complete):
    """The model still shows its own; a comparison of the experiment takes the newest of both."""
    own = record(trained.own(complete))
    copy = record(trained.own(complete), run_id=new_run(tracking))
    for child in (own, copy):
        assert tracking.get_run(child).data.tags["b3.status"] == "current"
        assert tracking.get_run(child).data.tags["b3.supersedes"] == "none"
    assert tracking.get_logged_model(trained.model_id).tags["b3.audit_run_id"] == own
    found = current_audits(tracking, EXPERIMENT)
    assert copy in found
    assert own not in found


def test_a_run_that_is_still_going_on_keeps_going_on(tracking, complete):
    with mlflow.start_run() as run:
        child = record(bare(complete), run_id=run.info.run_id)
        assert mlflow.active_run().info.run_id == run.info.run_id
        assert tracking.get_run(run.info.run_id).info.status == "RUNNING"
    assert tracking.get_run(child).info.status == "FINISHED"


def test_a_deleted_run_is_refused(trained, complete):
    trained.client.delete_run(trained.run_id)
    with pytest.raises(TrackingError, match=f"run {trained.run_id} is deleted; restore it"):
        record(trained.own(complete))
    assert trained.children() == []


def test_a_run_that_does_not_exist_is_refused(tracking, complete):
    assert tracking is not None
    with pytest.raises(TrackingError, match="the audit's run could not be created"):
        record(bare(complete), run_id="0" * 32)


def test_a_project_run_is_the_audits_run_and_is_left_to_mlflow_to_end(
    tracking, trained, complete, monkeypatch
):
    """`mlflow run` makes a run for its entry point, names it by MLFLOW_RUN_ID and ends it."""
    tags = {"mlflow.project.entryPoint": "audit", "mlflow.source.name": "git@host:repo"}
    project = new_run(tracking, **tags)
    monkeypatch.setenv("MLFLOW_RUN_ID", project)
    assert record(trained.own(complete)) == project
    run = tracking.get_run(project)
    assert run.info.status == "RUNNING"
    assert run.data.tags["mlflow.parentRunId"] == trained.run_id
    assert run.data.tags["mlflow.source.name"] == "git@host:repo"
    assert run.data.metrics["b3/e0"] == complete.e0


def test_a_project_run_in_another_experiment_shows_the_audit_of_a_run_of_its_own(
    tracking, trained, clinic, monkeypatch
):
    """So that all audits of an experiment's models are in that experiment."""
    elsewhere = tracking.create_experiment("projects")
    tags = {"mlflow.project.entryPoint": "audit"}
    project = tracking.create_run(elsewhere, tags=tags).info.run_id
    monkeypatch.setenv("MLFLOW_RUN_ID", project)
    report, child = audit_and_record(
        trained.model(GaussianNB()), clinic.frame, **COLUMNS, budget=100, n_jobs=1
    )
    assert child != project
    assert tracking.get_run(child).info.experiment_id == experiment(tracking)
    shown = tracking.get_run(project)
    assert shown.data.tags["b3.audit_run_id"] == child
    assert shown.data.metrics["b3/loco"] == worth(report.loco)


def test_any_other_run_in_the_environment_is_not_taken_for_the_audits(
    tracking, trained, complete, monkeypatch
):
    other = new_run(tracking)
    monkeypatch.setenv("MLFLOW_RUN_ID", other)
    assert record(trained.own(complete)) != other
    assert tracking.get_run(other).data.metrics == {}


# --- failures -------------------------------------------------------------------------------------


class Broken(ClassifierMixin, BaseEstimator):
    """A learner that cannot be trained."""

    def fit(self, *_):
        raise RuntimeError("the licence server is down" + "." * 9000)


class Interrupting(ClassifierMixin, BaseEstimator):
    """A learner whose user loses patience."""

    def fit(self, *_):
        raise KeyboardInterrupt


def test_a_misspelt_column_leaves_no_run_and_is_no_try(trained, clinic):
    with pytest.raises(InputError, match="Did you mean 'patient_id'"):
        audit_and_record(
            trained.model(GaussianNB()), clinic.frame, target="disease", cluster="pateint_id"
        )
    assert trained.children() == []
    assert trained.traces() == []


def test_a_learner_that_fails_leaves_a_failed_child_and_an_untouched_run(trained, clinic):
    with pytest.raises(FitError, match="the licence server is down"):
        audit_and_record(trained.model(Broken()), clinic.frame, **COLUMNS, n_jobs=1)
    (child,) = trained.children()
    assert child.info.status == "FAILED"
    assert child.data.tags["b3.error"].startswith("FitError: 3 of 3 refits failed")
    assert len(child.data.tags["b3.error"]) <= 5000
    assert trained.traces() == []


def test_an_interrupted_audit_leaves_a_killed_child_and_an_untouched_run(trained, clinic):
    with pytest.raises(KeyboardInterrupt):
        audit_and_record(trained.model(Interrupting()), clinic.frame, **COLUMNS, n_jobs=1)
    (child,) = trained.children()
    assert child.info.status == "KILLED"
    assert trained.traces() == []


def test_ctrl_c_while_the_audit_is_shown_comes_after_it(trained, complete, monkeypatch):
    show = Showcase.show_newest

    def pressed(self):
        os.kill(os.getpid(), signal.SIGINT)
        show(self)

    monkeypatch.setattr(Showcase, "show_newest", pressed)
    with pytest.raises(KeyboardInterrupt):
        record(trained.own(complete))
    (child,) = trained.children()
    assert child.info.status == "FINISHED"
    assert child.data.tags["b3.status"] == "current"
    assert "b3/e0" in trained.metrics()


def test_a_second_ctrl_c_while_the_audit_is_shown_takes_it_back(trained, complete, monkeypatch):
    def pressed_twice(_):
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(Showcase, "show_newest", pressed_twice)
    with pytest.raises(KeyboardInterrupt):
        record(trained.own(complete))
    (child,) = trained.children()
    assert child.info.status == "KILLED"
    assert child.data.tags.get("b3.status") != "current"


def refuse(method: str, monkeypatch: pytest.MonkeyPatch, when: Callable[[Any], bool]) -> None:
    """Let a method of MLflow's client fail for some runs."""
    original = getattr(MlflowClient, method)

    def failing(client: MlflowClient, run_id: str, *args: Any, **kwargs: Any) -> Any:
        if when(run_id):
            raise MlflowException("the disk is full")
        return original(client, run_id, *args, **kwargs)

    monkeypatch.setattr(MlflowClient, method, failing)


@pytest.mark.parametrize("method", ["log_artifacts", "log_inputs", "log_batch"])
def test_failure_to_write_leaves_a_failed_child_and_an_untouched_run(
    trained, complete, monkeypatch, method
):
    refuse(method, monkeypatch, lambda _: True)
    with pytest.raises(TrackingError, match="could not be written to MLflow: the disk is full"):
        record(trained.own(complete))
    (child,) = trained.children()
    assert child.info.status == "FAILED"
    assert "the disk is full" in child.data.tags["b3.error"]
    run = trained.client.get_run(trained.run_id)
    assert run.data.metrics == {}
    assert not [name for name in run.data.tags if name.startswith("b3")]
    assert artifacts(trained.client, trained.run_id) == []


def test_failure_to_write_leaves_an_untouched_logged_model(trained, complete, monkeypatch):
    """A LoggedModel must not show the numbers of an audit that failed."""
    refuse("log_artifacts", monkeypatch, lambda _: True)
    with pytest.raises(TrackingError):
        record(trained.own(complete))
    assert trained.traces() == []


def test_failure_to_write_to_the_run_keeps_the_audit_in_its_child(trained, complete, monkeypatch):
    """The refits were paid for: their report can still be read, and written again."""
    refuse("log_artifacts", monkeypatch, lambda run_id: run_id == trained.run_id)
    with pytest.raises(TrackingError):
        record(trained.own(complete))
    (child,) = trained.children()
    assert child.info.status == "FAILED"
    text = read(child, "b3/audit.json")
    assert AuditReport.from_dict(json.loads(text)) == trained.own(complete)
    run = trained.client.get_run(trained.run_id)
    assert run.data.metrics == {}
    assert not [name for name in run.data.tags if name.startswith("b3")]


def test_failure_to_end_the_child_is_an_error_of_tracking(trained, complete, monkeypatch):
    refuse("set_terminated", monkeypatch, lambda _: True)
    with pytest.raises(TrackingError, match="the disk is full"):
        record(trained.own(complete))
