"""What people see in MLflow's pages when the server's gate refuses."""

import mlflow
import pytest
from real_services import mlflow_server, tracked_by
from sklearn.dummy import DummyClassifier

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def gated(program, tmp_path_factory):
    """Run a server with the gate and the default policy; register a model without an audit."""
    assert program  # without a browser nothing needs to be started
    folder = tmp_path_factory.mktemp("gated-pages")
    backend = f"sqlite:///{folder}/mlflow.db"
    with (
        mlflow_server(folder, backend, app="b3-gate") as server,
        tracked_by(server.url, "clinic") as client,
    ):
        with mlflow.start_run():
            model = DummyClassifier().fit([[0], [1]], [0, 1])
            info = mlflow.sklearn.log_model(model, name="m", pip_requirements=["scikit-learn"])
        mlflow.register_model(info.model_uri, "clinic")
        yield server.url, client


def test_the_dialog_for_aliases_shows_why_a_version_was_refused(gated, page, picture):
    from playwright.sync_api import expect

    url, client = gated
    page.goto(f"{url}/#/models/clinic/versions/1")
    page.get_by_role("button", name="Add", exact=True).first.click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("combobox").fill("champion")
    page.keyboard.press("Enter")
    dialog.get_by_role("button", name="Save aliases").click()
    expect(dialog.get_by_text("alias 'champion' was refused")).to_be_visible()
    picture("refused")
    assert client.get_registered_model("clinic").aliases == {}
