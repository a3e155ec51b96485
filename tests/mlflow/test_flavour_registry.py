"""One registry of flavours, which other packages extend by an entry point."""

import subprocess
import sys
import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path
from types import SimpleNamespace

import mlflow
import numpy as np
import pandas as pd
import pytest
from mlflow.models import Model
from sklearn.linear_model import LogisticRegression

import mlflow_b3 as b3
from mlflow_b3.errors import InputError, ModelError
from mlflow_b3.refit import Learner, MethodPredictor, load_model
from mlflow_b3.refit.flavours import (
    BUILT_IN,
    GROUP,
    OLDEST,
    find_flavour,
    flavour_of,
    require_library,
)

RNG = np.random.default_rng(0)


class SquareLearner(Learner):
    """What another package might bring."""

    route = "squares"
    task = "classification"
    name = "squares"

    def train(self, rows, seed):
        """Train on squared features."""
        del seed
        return MethodPredictor(LogisticRegression().fit(rows.X**2, rows.target))


FLAVOUR = SimpleNamespace(
    load=lambda source: source.uri, learner=lambda _model, _source: SquareLearner()
)


@pytest.fixture
def other_package(monkeypatch):
    """Install a package with a flavour of its own."""
    module = SimpleNamespace(FLAVOUR=FLAVOUR)
    monkeypatch.setitem(sys.modules, "squares_for_b3", module)
    entries = [
        EntryPoint("squares", "squares_for_b3:FLAVOUR", GROUP),
        EntryPoint("broken", "no_such_package:FLAVOUR", GROUP),
        EntryPoint("sklearn", "squares_for_b3:FLAVOUR", GROUP),
    ]
    monkeypatch.setattr("mlflow_b3.refit.flavours.entry_points", lambda **_: entries)


@pytest.mark.usefixtures("mlflow_store", "other_package")
def test_flavour_of_another_package_is_audited(tmp_path):
    model = Model(flavors={"squares": {"file": "x"}, "python_function": {}})
    model.save(str(tmp_path / "MLmodel"))
    with mlflow.start_run() as run:
        mlflow.log_artifact(str(tmp_path / "MLmodel"), "squares_model")
    table = RNG.normal(size=(60, 2))
    frame = pd.DataFrame(table, columns=["a", "b"]).assign(
        y=(table[:, 0] ** 2 > 0.5).astype(int), cluster=np.arange(60) // 5
    )
    uri = f"runs:/{run.info.run_id}/squares_model"
    report = b3.audit(uri, frame, target="y", cluster="cluster", folds=3, budget=72)
    assert report.settings.refit == "squares"
    assert "another package's flavour" in report.to_text()


@pytest.mark.usefixtures("other_package")
def test_other_packages_do_not_replace_ours():
    name, flavour = find_flavour(["sklearn", "squares"])
    assert name == "sklearn"
    assert flavour.__name__ == "mlflow_b3.refit.sklearn"


@pytest.mark.usefixtures("other_package")
def test_entry_point_that_cannot_be_loaded_is_named():
    with pytest.raises(ModelError, match=r"'no_such_package:FLAVOUR' for the flavour 'broken'"):
        find_flavour(["broken"])


def test_unknown_flavours_have_no_module():
    assert find_flavour(["nobody_s"]) is None
    assert flavour_of(object()) is None


def test_absent_library_is_an_error_that_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "xgboost", None)
    with pytest.raises(ModelError, match=r"pip install 'mlflow-b3\[xgboost\]'"):
        require_library("xgboost", "xgboost")
    with pytest.raises(ModelError, match=r"mlflow-b3\[xgboost\]"):
        find_flavour(["xgboost"])


def test_library_that_lacks_another_says_so_instead_of_naming_its_extra(monkeypatch):
    """Keras is there, and wants a backend that is not."""

    def broken(_):
        raise ModuleNotFoundError("No module named 'tensorflow'", name="tensorflow")

    monkeypatch.setattr("mlflow_b3.refit.flavours.import_module", broken)
    with pytest.raises(ModelError, match=r"cannot be imported: .*tensorflow.*set KERAS_BACKEND"):
        require_library("keras", "keras")


def test_library_that_is_too_old_is_an_error_that_names_both_versions(monkeypatch):
    """LightGBM 4.6 stores less of a training than a refit needs."""
    monkeypatch.setitem(sys.modules, "lightgbm", SimpleNamespace(__version__="4.6.0"))
    with pytest.raises(ModelError, match=r"lightgbm 4\.6\.0 is installed, but refits need 4\.7"):
        require_library("lightgbm", "lightgbm")


def test_every_flavour_but_scikit_learn_has_an_extra_of_its_name():
    project = tomllib.loads(
        (Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8")
    )["project"]
    extras = project["optional-dependencies"]
    for name, (_, library) in BUILT_IN.items():
        if name not in ("sklearn", "tensorflow"):
            assert f"{library}>={OLDEST[library]}" in extras[name]
            assert name in extras["all"][0]


def test_optional_libraries_are_imported_only_when_used():
    """In a process of its own, because other tests may have imported them."""
    code = (
        "import sys, mlflow_b3, mlflow_b3.auditing.audit, mlflow_b3.refit\n"
        "from sklearn.linear_model import LogisticRegression\n"
        "mlflow_b3.refit.load_model(LogisticRegression())\n"
        "heavy = {'xgboost', 'lightgbm', 'catboost', 'statsmodels', 'torch', 'keras', 'pyspark'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_unknown_route_is_an_error_with_those_there_are():
    with pytest.raises(InputError, match="use one of 'clone', 'trainer', 'head'"):
        load_model(LogisticRegression(), refit="clon")
