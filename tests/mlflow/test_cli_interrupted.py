"""The command line, killed and stopped for real: the same command goes on."""

import inspect
import json
import os
import signal
import subprocess
import sys
import time

import mlflow
import pytest
from click.testing import CliRunner
from journals import count_refits
from learners import Patient

from mlflow_b3 import make_clinic
from mlflow_b3.cli import INTERRUPTED, main

pytestmark = pytest.mark.newest

BUDGET = 160


@pytest.fixture
def shop(mlflow_store, tmp_path, monkeypatch):
    """Log a slow model, and return the command that audits it and the folder of its journals."""
    del mlflow_store
    clinic = make_clinic(patients=30, records=4, cluster_error=0.1, seed=0).frame
    data = tmp_path / "records.csv"
    clinic.to_csv(data, index=False)
    features = clinic.drop(columns=["disease", "patient_id"])
    here = os.path.dirname(inspect.getfile(Patient))
    with mlflow.start_run():
        info = mlflow.sklearn.log_model(
            Patient(0.03).fit(features, clinic.disease),
            name="patient",
            serialization_format="cloudpickle",
            code_paths=[os.path.join(here, "learners.py")],
            pip_requirements=["scikit-learn"],
        )
    monkeypatch.setenv("PYTHONPATH", here, prepend=os.pathsep)
    journals = tmp_path / "journals"
    monkeypatch.setenv("MLFLOW_B3_JOURNALS", str(journals))
    command = [sys.executable, "-m", "mlflow_b3", "audit", "--model-uri", info.model_uri]
    command += ["--data", str(data), "--target", "disease", "--cluster", "patient_id"]
    command += ["--cluster-error", "0.1", "--folds", "3", "--repeats", "3"]
    command += ["--budget", str(BUDGET), "--n-jobs", "2", "--backend", "loky"]
    return command, journals, info


def start(command, *more):
    return subprocess.Popen(
        [*command, *more],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def wait_for_refits(journals, count, process):
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        if any(count_refits(path) >= count for path in journals.glob("*.sqlite")):
            return
        time.sleep(0.02)
    process.kill()
    pytest.fail(f"no refits: {process.communicate()}")


def numbers(path):
    report = json.loads(path.read_text())
    for changing in ("fits", "refits", "measured_at"):
        del report["measured"][changing]
    return report


def test_killed_and_started_again_it_gives_the_numbers_of_one_go(shop, tmp_path, monkeypatch):
    command, journals, info = shop
    whole, resumed = tmp_path / "whole.json", tmp_path / "resumed.json"
    _, _, _, *options = command
    in_one_go = ["--n-jobs", "1", "--journal", "none", "--output", str(whole)]
    with monkeypatch.context() as patch:
        patch.setattr("learners.time.sleep", lambda _: None)
        assert CliRunner().invoke(main, [*options, *in_one_go]).exit_code == 0
    assert not journals.exists()
    killed = start(command)
    wait_for_refits(journals, 15, killed)
    os.killpg(killed.pid, signal.SIGKILL)
    killed.communicate()
    (journal,) = journals.glob("*.sqlite")
    assert 15 <= count_refits(journal) < BUDGET
    again = subprocess.run([*command, "--output", resumed], capture_output=True, text=True)
    assert again.returncode == 0, again.stderr
    assert numbers(resumed) == numbers(whole)
    assert not list(tmp_path.rglob("artifacts/code/**/*.pyc")), "the model's files are as they were"
    assert not list(journals.iterdir()), "a journal goes when its audit is recorded"
    statuses = [run.info.status for run in mlflow.search_runs(output_format="list")]
    assert statuses.count("FINISHED") == 3, "the model's run, and two audits"
    assert "b3/e0" in mlflow.get_run(info.run_id).data.metrics


def test_ctrl_c_in_a_terminal_prints_what_is_known_and_leaves_the_journal(shop, tmp_path):
    command, journals, info = shop
    output = tmp_path / "part.json"
    process = start(command, "--output", str(output))
    wait_for_refits(journals, 25, process)
    os.killpg(process.pid, signal.SIGINT)  # a terminal tells the workers, too
    stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == INTERRUPTED, stderr
    assert "? Not known: the audit was stopped after" in stdout
    assert "Traceback" not in stdout + stderr
    assert json.loads(output.read_text())["measured"]["refits"]["partial"]
    assert len(list(journals.iterdir())) == 1
    model_run = mlflow.get_run(info.run_id)
    assert not [name for name in model_run.data.metrics if name.startswith("b3/")]
    assert not [name for name in model_run.data.tags if name.startswith("b3.")]
    (part,) = mlflow.search_runs(filter_string="tags.`b3.partial` = 'true'", output_format="list")
    assert part.info.status == "KILLED"
    assert "b3/e0" in part.data.metrics


def test_ctrl_c_too_early_says_where_the_refits_are(shop):
    command, journals, _ = shop
    process = start(command)
    wait_for_refits(journals, 1, process)
    os.killpg(process.pid, signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == INTERRUPTED
    assert f"in the journal '{journals}" in stderr
    assert "Traceback" not in stderr
