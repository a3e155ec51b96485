"""A server that answers 500, drops connections, is slow or full: what an audit leaves behind then."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mlflow
import pytest
from click.testing import CliRunner
from faulty_server import FOREVER, FaultyServer, faulty
from logged_models import Logged, log_model
from mlflow import MlflowClient
from real_services import tracked_by

from mlflow_b3 import AuditReport, TrackingError, record
from mlflow_b3.cli import main
from mlflow_b3.refit import loading
from mlflow_b3.tracking.metrics_and_files import files_of, is_answer, worth
from mlflow_b3.tracking.recording import audit_and_record
from mlflow_b3.tracking.shown_on_models import ON_RUNS, SHOWN

pytestmark = pytest.mark.servers
COLUMNS = {"target": "disease", "cluster": "patient_id"}
SMALL = {"cluster_error": 0.1, "folds": 2, "budget": 40, "n_jobs": 1}
NUMBERS = iter(range(1000))
CREATE = "POST .*/runs/create"
UPLOAD = "PUT .*/mlflow-artifacts/"
BATCH = "POST .*/runs/log-batch"
TAG = "POST .*/runs/set-tag"
END = "POST .*/runs/update"
INPUTS = "POST .*/runs/log-inputs"
MODEL_TAGS = "PATCH .*/logged-models/.*/tags"
EVERYTHING = ".*"


@pytest.fixture(scope="module")
def proxy(sqlite_server) -> Iterator[FaultyServer]:
    with faulty(sqlite_server.url) as running:
        yield running


@pytest.fixture
def client(proxy: FaultyServer, tmp_path: Path, monkeypatch) -> Iterator[MlflowClient]:
    """Send everything through the proxy; two tries more at most, at once."""
    monkeypatch.chdir(tmp_path)  # where audits are saved
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR", "0")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_BACKOFF_JITTER", "0")
    with tracked_by(proxy.url, f"faults {next(NUMBERS)}") as found:
        yield found
        proxy.mend()


@pytest.fixture
def logged(client: MlflowClient, clinic, proxy: FaultyServer) -> Logged:
    assert client
    with mlflow.start_run():
        made = log_model(clinic)
    proxy.requests.clear()
    return made


def children(client: MlflowClient, logged: Logged) -> list[Any]:
    experiment = client.get_run(logged.run_id).info.experiment_id
    parent = f"tags.`mlflow.parentRunId` = '{logged.run_id}'"
    return list(client.search_runs([experiment], parent, order_by=["start_time"]))


def texts(run_id: str) -> dict[str, str]:
    folder = Path(mlflow.artifacts.download_artifacts(run_id=run_id, artifact_path="b3"))
    paths = [path for path in folder.rglob("*") if path.is_file()]
    return {path.relative_to(folder).as_posix(): path.read_text(encoding="utf-8") for path in paths}


def numbers(run: Any) -> dict[str, float]:
    return {name: value for name, value in run.data.metrics.items() if name.startswith("b3/")}


def answers(run: Any) -> dict[str, float]:
    """Return the numbers of an audit that its model's run shows."""
    return {name: worth(value) for name, value in numbers(run).items() if is_answer(name)}


def assert_whole(client: MlflowClient, logged: Logged, report: AuditReport, child: str) -> None:
    """Fail unless an audit is there once, in all its parts, and shown on its model."""
    (found,) = [run for run in children(client, logged) if run.info.status != "FAILED"]
    shown = client.get_run(logged.run_id)
    assert found.info.run_id == child
    assert found.info.status == "FINISHED"
    assert found.data.tags["b3.status"] == "current"
    assert numbers(shown) == answers(found)
    assert found.data.metrics["b3/loco"] == report.loco
    written = files_of(report)
    assert {n: t for n, t in texts(child).items() if n != "evidence.json"} == written
    assert texts(logged.run_id) == {"report.html": written["report.html"]}
    model = client.get_logged_model(logged.model_id)
    for tags, names in ((shown.data.tags, ON_RUNS), (model.tags, SHOWN)):
        assert {k: v for k, v in tags.items() if k in SHOWN} == {
            k: v for k, v in found.data.tags.items() if k in names
        }


def assert_not_shown(client: MlflowClient, logged: Logged) -> None:
    """Fail if anything of an audit that was not written to its end is shown, or passes for one."""
    for child in children(client, logged):
        assert "b3.status" not in child.data.tags
        assert child.info.status == "FAILED"
        assert child.data.tags["b3.error"].startswith("TrackingError")
    run = client.get_run(logged.run_id)
    assert not SHOWN & set(run.data.tags)
    assert all(value != value for value in numbers(run).values())  # NaN, where there is one
    assert not SHOWN & set(client.get_logged_model(logged.model_id).tags)


# --- faults that pass ------------------------------------------------------------------------------

STAGES = {
    "loading": "GET .*/logged-models/",
    "creating the run": CREATE,
    "inputs": INPUTS,
    "curves": BATCH,
    "files": UPLOAD,
    "tags": TAG,
    "the end": END,
    "the model": MODEL_TAGS,
}
LOST = {
    "answers 500": {"status": 500},
    "answers 503": {"status": 503},
    "drops the request": {},
    "drops the answer": {"forwarded": True},
    "drops the answer twice": {"forwarded": True, "times": 2},
}


#: Every fault where it is most delicate, and two of them everywhere.
FAULTS = [(stage, how) for stage in ("creating the run", "files") for how in LOST]
FAULTS += [(stage, how) for stage in STAGES for how in ("answers 500", "drops the answer")]


@pytest.mark.parametrize(("stage", "how"), sorted(set(FAULTS)))
def test_a_fault_that_passes_changes_nothing(proxy, client, logged, report, stage, how):
    """MLflow's client asks again; what was done twice for it must not be there twice."""
    own = logged.own(report)
    if stage != "loading":
        proxy.fail(STAGES[stage], **LOST[how])
    else:
        proxy.fail(EVERYTHING, **LOST[how])
    child = record(own)
    assert_whole(client, logged, own, child)


def test_a_run_that_was_created_twice_is_there_once(proxy, client, logged, report):
    """The answer to the first request was lost, so MLflow's client has sent a second one."""
    proxy.fail(CREATE, forwarded=True)
    child = record(logged.own(report))
    assert proxy.asked(CREATE) == 2
    assert [run.info.run_id for run in children(client, logged)] == [child]


def test_a_slow_server_is_waited_for_and_talked_about(
    proxy, client, logged, report, monkeypatch, caplog
):
    monkeypatch.setattr(loading, "PATIENCE", 0.1)
    monkeypatch.setattr(loading, "LONG_PATIENCE", 0.2)
    proxy.fail(UPLOAD, delay=1.0)
    own = logged.own(report)
    assert_whole(client, logged, own, record(own))
    (told,) = [entry.getMessage() for entry in caplog.records if "still running" in entry.message]
    assert proxy.url in told
    assert "MLFLOW_HTTP_REQUEST_MAX_RETRIES" in told


def test_a_run_that_is_created_late_a_second_time_is_there_once(
    proxy, client, logged, report, monkeypatch
):
    """The client lost patience and asked again; the server then did both."""
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "2")
    proxy.fail(CREATE, delay=2.3)
    proxy.fail(UPLOAD, delay=1.5)  # so that the audit takes longer than that
    own = logged.own(report)
    assert_whole(client, logged, own, record(own))


# --- faults that stay ------------------------------------------------------------------------------

LASTING = {
    "inputs": {"request": INPUTS},
    "curves": {"request": BATCH},
    "the first file": {"request": UPLOAD},
    "a file in the middle": {"request": UPLOAD, "after": 3},
    "numbers and tags": {"request": BATCH, "after": 1},
    "the end of the run": {"request": END},
    "the files on the audited run": {"request": f"{UPLOAD}.*{{run}}"},
    "the numbers on the audited run": {"request": BATCH, "after": 2},
    "the tags of the model": {"request": MODEL_TAGS},
}


@pytest.mark.parametrize("stage", LASTING)
def test_a_fault_that_stays_leaves_nothing_that_passes_for_an_audit(
    proxy, client, logged, report, stage, monkeypatch
):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    own = logged.own(report)
    how = {**LASTING[stage]}
    place = client.get_run(logged.run_id).info.run_id
    # as long as MLflow's client tries, and not for what is said of the failure afterwards
    proxy.fail(str(how.pop("request")).replace("{run}", place), status=500, times=2, **how)
    with pytest.raises(TrackingError, match="the audit could not be written to MLflow") as caught:
        record(own)
    assert caught.value.report == own
    proxy.mend()
    assert_not_shown(client, logged)
    assert_whole(client, logged, own, record(own))


def test_an_older_audit_is_shown_again_when_a_newer_one_fails_half_way(
    proxy, client, logged, report, monkeypatch
):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    first = record(logged.own(report))
    proxy.fail(
        MODEL_TAGS, status=500, times=2
    )  # the run has the files and numbers of the newer one
    with pytest.raises(TrackingError):
        record(logged.own(report, e0=0.123))
    proxy.mend()
    assert_whole(client, logged, logged.own(report), first)


@pytest.mark.parametrize("after", range(0, 45, 4))
def test_a_server_that_is_gone_from_some_request_on_leaves_no_current_audit(
    proxy, client, logged, report, monkeypatch, after
):
    """Wherever it goes: the audit is whole, or is not shown as one, and can be written again."""
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    own = logged.own(report)
    proxy.fail(EVERYTHING, after=after, times=FOREVER)
    try:
        first = record(own)
    except TrackingError:
        first = None
    proxy.mend()
    if first is not None:
        assert_whole(client, logged, own, first)
        return
    # its own run may be complete, and be shown where the server had time for it
    for child in children(client, logged):
        if child.data.tags.get("b3.status") == "current":
            assert child.info.status == "FINISHED"
            assert set(texts(child.info.run_id)) >= set(files_of(own))
    shown = client.get_run(logged.run_id).data.tags.get("b3.audit_run_id")
    assert shown in [None, *(child.info.run_id for child in children(client, logged))]
    again = record(own)
    run = client.get_run(logged.run_id)
    assert run.data.tags["b3.audit_run_id"] == again
    assert numbers(run) == answers(client.get_run(again))
    current = [c for c in children(client, logged) if c.data.tags.get("b3.status") == "current"]
    assert [child.info.run_id for child in current] == [again]


def test_an_audit_that_was_not_taken_is_saved_and_written_later(
    proxy, client, logged, clinic, monkeypatch
):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    proxy.fail(UPLOAD, status=507, times=FOREVER)
    with pytest.raises(TrackingError, match="The audit was saved to the folder") as caught:
        audit_and_record(logged.uri, clinic.frame, **COLUMNS, **SMALL)
    assert "507" in str(caught.value)
    proxy.mend()
    assert_not_shown(client, logged)
    (folder,) = Path.cwd().glob("b3-audit-*")
    assert_whole(client, logged, caught.value.report, record(folder))


def test_a_full_disk_here_too_leaves_the_report_in_the_error(
    proxy, client, logged, clinic, monkeypatch
):
    assert client
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    proxy.fail(UPLOAD, status=507, times=FOREVER)
    monkeypatch.setattr("mlflow_b3.tracking.metrics_and_files.write_files", no_space)
    with pytest.raises(TrackingError, match="could not be saved to a folder here either") as caught:
        audit_and_record(logged.uri, clinic.frame, **COLUMNS, **SMALL)
    assert caught.value.report.e0 is not None
    assert list(Path.cwd().glob("b3-audit-*")) == []


def no_space(folder: Path, _: Any) -> None:
    (folder / "audit.json").write_text("{", encoding="utf-8")
    raise OSError(28, "No space left on device")


# --- the command line, and evaluations -------------------------------------------------------------


def command(logged: Logged, clinic: Any) -> Any:
    clinic.frame.to_csv("rows.csv", index=False)
    arguments = ["--data", "rows.csv", "--target", "disease", "--cluster", "patient_id"]
    arguments += ["--cluster-error", "0.1", "--folds", "2", "--budget", "40", "--n-jobs", "1"]
    return CliRunner().invoke(main, ["audit", "--model-uri", logged.uri, *arguments])


@pytest.mark.parametrize(
    ("stage", "said"),
    [
        ("GET .*/(logged-models|artifacts)", "mlflow-b3: "),
        (CREATE, "the audit's run could not be created"),
        (UPLOAD, "The audit was saved to the folder"),
        (END, "The audit was saved to the folder"),
    ],
)
def test_the_command_says_what_happened_without_a_traceback(
    proxy, client, logged, clinic, monkeypatch, stage, said
):
    assert client
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    proxy.fail(stage, times=FOREVER)
    result = command(logged, clinic)
    assert result.exit_code == 2
    assert isinstance(result.exception, SystemExit)
    assert said in result.stderr
    assert "Traceback" not in result.output
    if "saved" in said:
        assert "Leakage audit of " in result.stdout


def test_an_evaluation_through_faults_has_one_audit(proxy, client, logged, clinic):
    for stage in (CREATE, UPLOAD, BATCH, TAG, END):
        proxy.fail(stage, forwarded=True)
        proxy.fail(stage, status=503, after=1)
    with mlflow.start_run() as run:
        result = mlflow.models.evaluate(
            logged.uri,
            clinic.frame.set_index("patient_id"),
            targets="disease",
            model_type="classifier",
            evaluators=["b3"],
            evaluator_config={"b3": {"cluster": "patient_id", **SMALL}},
        )
    audits = client.search_runs(
        [run.info.experiment_id], f"tags.`mlflow.parentRunId` = '{run.info.run_id}'"
    )
    (child,) = [found for found in audits if "b3.audit_run_id" in found.data.tags]
    assert result.metrics["b3/loco"] == child.data.metrics["b3/loco"]
    for place in (run.info.run_id, logged.run_id):
        shown = client.get_run(place)
        assert shown.data.tags["b3.audit_run_id"] == child.info.run_id
        by_mlflow = place == run.info.run_id
        assert numbers(shown) == (numbers if by_mlflow else answers)(child)
        assert texts(place) == {"report.html": texts(child.info.run_id)["report.html"]}
    recorded = json.loads(texts(child.info.run_id)["audit.json"])
    assert recorded["measured"]["loco"] == child.data.metrics["b3/loco"]


def test_an_evaluation_that_cannot_be_written_is_an_error_of_mlflow(
    proxy, client, logged, clinic, monkeypatch
):
    assert client
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    proxy.fail(UPLOAD, status=507, times=FOREVER)
    with (
        mlflow.start_run(),
        pytest.raises(mlflow.exceptions.MlflowException, match="The audit was saved to the folder"),
    ):
        mlflow.models.evaluate(
            logged.uri,
            clinic.frame.set_index("patient_id"),
            targets="disease",
            model_type="classifier",
            evaluators=["b3"],
            evaluator_config={"b3": {"cluster": "patient_id", **SMALL}},
        )
