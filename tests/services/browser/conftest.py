"""What the tests in a browser share: audits of three models, and Chromium."""

import importlib.util
import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlflow
import pytest
from real_services import Server, absent, tracked_by
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier

import mlflow_b3
from mlflow_b3 import Comparison, compare
from mlflow_b3.auditing.comparison import Contender
from mlflow_b3.demo import FEATURES
from mlflow_b3.tracking.comparing import record_comparison
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
class Audits:
    """An experiment with audited models, which were compared.

    Attributes
    ----------
    url : str
        The address of MLflow's pages.
    experiment : str
    comparison : Comparison
        It says where the audits are; the best model comes first.
    run_id : str
        The run of the comparison.
    """

    url: str
    experiment: str
    comparison: Comparison
    run_id: str

    def of(self, name: str) -> Contender:
        """Return one of the models."""
        return next(model for model in self.comparison.contenders if model.name == name)

    def page(self, link: str) -> str:
        """Return the address of a page."""
        return f"{self.url}/{link}"

    def run(self, run_id: str | None, *rest: str) -> str:
        """Return the address of a page of a run."""
        return self.page("/".join(("#/experiments", self.experiment, "runs", str(run_id), *rest)))


@pytest.fixture(scope="session")
def program() -> str:
    """Return where Chromium is installed; playwright's own downloads are not used."""
    found = shutil.which("chromium")
    if found is None:
        absent("Chromium is not installed")
    if importlib.util.find_spec("playwright") is None:
        absent("playwright is not installed")
    return str(found)


@pytest.fixture(scope="session")
def audits(program: str, sqlite_server: Server) -> Iterator[Audits]:
    """Train three models on the clinic and compare them; one of them was audited before."""
    assert program  # without a browser nothing needs to be started
    frame = mlflow_b3.make_clinic(patients=60, records=5, cluster_error=0.1).frame
    arguments = {"target": "disease", "cluster": "patient_id", "budget": 150, "n_jobs": 1}
    uris = []
    with tracked_by(sqlite_server.url, "clinic"):
        for name, model in MODELS.items():
            model.fit(frame[list(FEATURES)], frame["disease"])
            with mlflow.start_run(run_name=name):
                info = mlflow.sklearn.log_model(
                    model, name="model", pip_requirements=["scikit-learn"]
                )
            uris.append(info.model_uri)
            if name == "nearest neighbours":
                mlflow.register_model(info.model_uri, "clinic")
                uris[-1] = "models:/clinic/1"
                audit_and_record(uris[-1], frame, **arguments)
        compare(uris, frame, cluster_error=0.1, **arguments)
        made = mlflow.get_experiment_by_name("clinic")
        comparison = compare(experiment=made.name)  # by the names of the runs
        run_id = record_comparison(comparison)
        yield Audits(sqlite_server.url, made.experiment_id, comparison, run_id)


@pytest.fixture(scope="module")
def chromium(program: str) -> Iterator[Any]:
    """Start Chromium."""
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
