"""What the tests in a browser share: audits of three models, and Chromium."""

import importlib.util
import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import mlflow
import pytest
from mlflow import MlflowClient
from services import Server, absent, tracked_by
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier

import mlflow_b3
from mlflow_b3 import AuditReport
from mlflow_b3.datasets import FEATURES
from mlflow_b3.tracking.recording import audit_and_record

SCREENSHOTS = "MLFLOW_B3_SCREENSHOTS"
MODELS = {
    "naive Bayes": GaussianNB(),
    "nearest neighbours": KNeighborsClassifier(3, algorithm="brute"),  # no tree to be trusted
    "logistic regression": LogisticRegression(),
}
# as a person who works with models would have set these pages up
PREFERENCES = {
    "mlflow.workflowType_v1": '"machine_learning"',
    "mlflow.assistant.fab.autoOpenedOnFirstLoad_v1": "true",
    "mlflow.assistant.panelOpen_v1": "false",
}


@dataclass(frozen=True)
class Audit:
    """An audited model: the run that trained it, and that of its newest audit."""

    name: str
    run_id: str
    child: str
    report: AuditReport


@dataclass(frozen=True)
class Audits:
    """An experiment with audited models, and the addresses of its pages."""

    server: str
    experiment: str
    client: MlflowClient
    audits: list[Audit]

    def __getitem__(self, name: str) -> Audit:
        return next(audit for audit in self.audits if audit.name == name)

    def run(self, run_id: str, *rest: str) -> str:
        """Return the address of a page of a run."""
        return self._page("/".join(("experiments", self.experiment, "runs", run_id, *rest)))

    def runs(self, **query: str) -> str:
        """Return the address of the table of all runs."""
        return self._page(f"experiments/{self.experiment}/runs", **query)

    def compared(self) -> str:
        """Return the address of the view that compares the newest audits."""
        runs = json.dumps([audit.child for audit in self.audits])
        return self._page("compare-runs", runs=runs, experiments=json.dumps([self.experiment]))

    def version(self) -> str:
        """Return the address of the page of the registered version."""
        return self._page("models/clinic/versions/1")

    def _page(self, path: str, **query: str) -> str:
        return f"{self.server}/#/{path}" + (f"?{urlencode(query)}" if query else "")


@pytest.fixture(scope="session")
def audits(sqlite_server: Server) -> Iterator[Audits]:
    """Train three models on the clinic and audit them, one of them twice."""
    frame = mlflow_b3.make_clinic(patients=60, records=5, cluster_error=0.1).frame
    columns = {"target": "disease", "cluster": "patient_id"}
    done = []
    with tracked_by(sqlite_server.url, "clinic") as client:
        for name, model in MODELS.items():
            with mlflow.start_run(run_name=name):
                model.fit(frame[list(FEATURES)], frame["disease"])
                info = mlflow.sklearn.log_model(
                    model, name="model", pip_requirements=["scikit-learn"]
                )
            uri = info.model_uri
            if name == "nearest neighbours":
                mlflow.register_model(uri, "clinic")
                uri = "models:/clinic/1"
                audit_and_record(uri, frame, **columns, budget=150, n_jobs=1)
            report, child = audit_and_record(
                uri, frame, **columns, cluster_error=0.1, budget=150, n_jobs=1
            )
            done.append(Audit(name, info.run_id, child, report))
        experiment = client.get_run(child).info.experiment_id
        yield Audits(sqlite_server.url, experiment, client, done)


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """Start Chromium, which must be installed; playwright's own downloads are not used."""
    if importlib.util.find_spec("playwright") is None:
        absent("playwright is not installed")
    program = shutil.which("chromium") or shutil.which("google-chrome")
    if program is None:
        absent("Chromium is not installed")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # root, as in a container, has no sandbox
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def page(chromium: Any) -> Iterator[Any]:
    """Open a window of its own for every test."""
    from playwright.sync_api import expect

    expect.set_options(timeout=60_000)  # pages take seconds, and more on a busy machine
    context = chromium.new_context(viewport={"width": 1500, "height": 950})
    context.set_default_timeout(60_000)
    for key, value in PREFERENCES.items():
        context.add_init_script(f"localStorage.setItem({json.dumps(key)}, {json.dumps(value)})")
    yield context.new_page()
    context.close()


@pytest.fixture
def picture(page: Any, tmp_path: Path) -> Callable[[str], None]:
    """Return a function that keeps what the window shows, in the folder that the variable names."""
    folder = Path(os.environ.get(SCREENSHOTS, tmp_path))
    folder.mkdir(parents=True, exist_ok=True)

    def take(name: str) -> None:
        page.screenshot(path=folder / f"{name}.png", animations="disabled")

    return take
