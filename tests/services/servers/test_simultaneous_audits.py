"""Several audits of one run at a time: all are whole, one is shown, and all of that is of one."""

import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import mlflow
import pytest
from example_reports import changed
from logged_models import Logged
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import BAD_REQUEST

from mlflow_b3 import AuditReport, record
from mlflow_b3.tracking.metrics_and_files import is_answer, worth
from mlflow_b3.tracking.shown_on_models import ON_RUNS, SHOWN

pytestmark = pytest.mark.servers
WRITING = (
    *("create_run", "log_inputs", "log_batch", "log_artifacts", "set_tag", "set_terminated"),
    *("set_logged_model_tags", "update_run"),
)


def children(client: MlflowClient, run_id: str) -> list[Any]:
    experiment = client.get_run(run_id).info.experiment_id
    return list(client.search_runs([experiment], f"tags.`mlflow.parentRunId` = '{run_id}'"))


def text(run_id: str, name: str) -> str:
    path = mlflow.artifacts.download_artifacts(run_id=run_id, artifact_path=f"b3/{name}")
    return Path(path).read_text(encoding="utf-8")


def numbers(run: Any) -> dict[str, float]:
    return {name: value for name, value in run.data.metrics.items() if name.startswith("b3/")}


def answers(run: Any) -> dict[str, float]:
    """Return the numbers of an audit that its model's run shows."""
    return {name: worth(value) for name, value in numbers(run).items() if is_answer(name)}


def assert_one_is_shown(client: MlflowClient, logged: Logged, audits: set[str]) -> str:
    """Fail unless one audit is current, all that is shown is of it, and the others say so."""
    found = {run.info.run_id: run for run in children(client, logged.run_id)}
    assert set(found) == audits
    (current,) = [run for run in found.values() if run.data.tags["b3.status"] == "current"]
    own = current.info.run_id
    shown = client.get_run(logged.run_id)
    assert numbers(shown) == answers(current)
    assert text(logged.run_id, "report.html") == text(own, "report.html")
    model = client.get_logged_model(logged.model_id)
    for tags, names in ((shown.data.tags, ON_RUNS), (model.tags, SHOWN)):
        wanted = {key: value for key, value in current.data.tags.items() if key in names}
        assert {key: value for key, value in tags.items() if key in SHOWN} == wanted
    superseded = set()
    for run_id in audits - {own}:
        run = found[run_id]
        assert run.data.tags["b3.status"] == "superseded"
        assert run.data.tags["b3.superseded_by"] in audits - {run_id}
        assert run.info.run_name.count("superseded") == 1
        assert run.data.tags["mlflow.note.content"].count("**Superseded**") == 1
        if run.data.tags["b3.superseded_by"] == own:
            superseded.add(run_id)
    assert set(current.data.tags["b3.supersedes"].split(", ")) == (superseded or {"none"})
    assert {run.info.status for run in found.values()} == {"FINISHED"}
    return str(own)


def record_at(moment: float, folder: str, path: list[str], uri: str, loss: float) -> str:
    """Write an audit from a process of its own, at some moment."""
    sys.path[:] = path
    mlflow.set_tracking_uri(uri)
    report = AuditReport.from_json(Path(folder, "audit.json").read_text(encoding="utf-8"))
    time.sleep(max(0.0, moment - time.time()))
    return record(changed(report, e0=loss, loco=loss / 2, iid=loss / 3))


@pytest.mark.parametrize("count", [2, 4])
def test_audits_of_several_processes_end_with_one_that_is_shown(
    tracking, logged, report, tmp_path, count
):
    (tmp_path / "audit.json").write_text(logged.own(report).to_json(), encoding="utf-8")
    uri = mlflow.get_tracking_uri()
    with ProcessPoolExecutor(count, mp_context=get_context("spawn")) as pool:
        list(pool.map(len, ["imported"] * count))
        moment = time.time() + 3
        work = [
            pool.submit(record_at, moment, str(tmp_path), sys.path, uri, 0.2 + number / 100)
            for number in range(count)
        ]
        audits = {future.result() for future in work}
    assert len(audits) == count
    assert_one_is_shown(tracking, logged, audits)


def write_within(step: int, own: AuditReport, other: AuditReport) -> tuple[str, str]:
    """Write an audit, and before some step of it another one; return the runs of both."""
    written: list[str] = []
    left = [step]

    def wrapped(name: str) -> Any:
        original = getattr(MlflowClient, name)

        def method(client: MlflowClient, *args: Any, **kwargs: Any) -> Any:
            left[0] -= 1
            if left[0] == -1:
                written.append(record(other))
            return original(client, *args, **kwargs)

        return method

    with pytest.MonkeyPatch.context() as patch:
        for name in WRITING:
            patch.setattr(MlflowClient, name, wrapped(name))
        around = record(own)
    (within,) = written
    return around, within


@pytest.mark.parametrize("step", range(11))
def test_an_audit_in_the_middle_of_another_is_shown_whole_or_not_at_all(
    sqlite_tracking, sqlite_logged, report, step
):
    """The one whose own run ends last is the newest, whoever writes last."""
    own = sqlite_logged.own(report, e0=0.31, loco=0.21)
    audits = write_within(step, own, sqlite_logged.own(report, e0=0.29, loco=0.19))
    newest = assert_one_is_shown(sqlite_tracking, sqlite_logged, set(audits))
    ends = {run: sqlite_tracking.get_run(run).info.end_time for run in audits}
    assert ends[newest] == max(ends.values())


@pytest.mark.parametrize("step", [8, 9])
def test_audits_of_two_models_of_one_run_are_not_mixed_on_it(
    sqlite_tracking, sqlite_logged, report, step
):
    """Both stay current, each for its model; the run shows one of them."""
    experiment = sqlite_tracking.get_run(sqlite_logged.run_id).info.experiment_id
    second = sqlite_tracking.create_logged_model(
        experiment, name="second", source_run_id=sqlite_logged.run_id
    )
    other = replace(sqlite_logged, model_id=second.model_id)
    own = sqlite_logged.own(report, e0=0.31, loco=0.21)
    audits = write_within(step, own, other.own(report, e0=0.29, loco=0.19))
    shown = sqlite_tracking.get_run(sqlite_logged.run_id)
    named = shown.data.tags["b3.audit_run_id"]
    assert named in audits
    assert numbers(shown) == answers(sqlite_tracking.get_run(named))
    assert text(sqlite_logged.run_id, "report.html") == text(named, "report.html")
    for run_id in audits:
        assert sqlite_tracking.get_run(run_id).data.tags["b3.status"] == "current"


def test_an_audit_is_shown_though_the_one_before_it_came_from_a_clock_ahead(
    sqlite_tracking, sqlite_logged, report
):
    """MLflow shows the value with the latest time, which is the writer's."""
    now = time.time
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "time", lambda: now() + 3600)
        first = record(sqlite_logged.own(report, e0=0.31))
    second = record(sqlite_logged.own(report, e0=0.29))
    assert assert_one_is_shown(sqlite_tracking, sqlite_logged, {first, second}) == second


def test_a_table_that_another_audit_names_in_the_same_moment_is_named_again(
    sqlite_tracking, sqlite_logged, report
):
    """MLflow looks whether it knows the table, and then adds it; PostgreSQL refuses the second."""
    original, left = MlflowClient.log_inputs, [2]

    def colliding(*args: Any, **kwargs: Any) -> None:
        left[0] -= 1
        if left[0] >= 0:
            raise MlflowException("duplicate key value", error_code=BAD_REQUEST)
        original(*args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MlflowClient, "log_inputs", colliding)
        child = record(sqlite_logged.own(report))
    assert len(sqlite_tracking.get_run(child).inputs.dataset_inputs) == 1
