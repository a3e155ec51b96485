"""What loading a model runs: skops without pickle, MLflow's restriction, and what users are told."""

import inspect
import shutil
from importlib import import_module
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pandas as pd
import pytest
import scipy.stats
import skops.io
import yaml
from click.testing import CliRunner
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, RandomizedSearchCV, StratifiedKFold
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler

import mlflow_b3
from mlflow_b3.cli import main
from mlflow_b3.errors import ModelError
from mlflow_b3.refit import Source, load_model
from mlflow_b3.refit.flavours import load_native
from mlflow_b3.refit.safety import ADVICE, TRUSTED, code_run_by_loading, loading_notice
from mlflow_b3.refit.trainer import log_trainer

RNG = np.random.default_rng(0)
X = pd.DataFrame(RNG.normal(size=(60, 3)), columns=["age", "bmi", "glucose"])
Y = (X["age"] + RNG.normal(size=60) > 0).astype(int)
ALLOW = "MLFLOW_ALLOW_PICKLE_DESERIALIZATION"


def log(model: Any, serialization_format: str = "skops") -> Any:
    """Log a fitted model of scikit-learn, and call every type in it trusted, as authors do."""
    named = skops.io.get_untrusted_types(data=skops.io.dumps(model))
    with mlflow.start_run():
        return mlflow.sklearn.log_model(
            model,
            name="model",
            pip_requirements=["scikit-learn"],
            serialization_format=serialization_format,
            skops_trusted_types=named,
        )


def search_with_a_trap() -> RandomizedSearchCV:
    """Return a search over a distribution that runs code, to make a file, when it is restored."""
    uniform = scipy.stats.uniform(0.5, 1)
    uniform.dist._parse_arg_template += "\nimport pathlib\npathlib.Path('ran').touch()"
    return RandomizedSearchCV(LogisticRegression(), {"C": uniform}, n_iter=2, random_state=0)


@pytest.fixture
def trapped(mlflow_store: str) -> Any:  # noqa: ARG001 - the store it is logged to
    """Log a model that calls its own trap trusted."""
    info = log(search_with_a_trap().fit(X, Y))
    Path("ran").unlink(missing_ok=True)  # MLflow tries to load what it has logged
    return info


# --- skops ----------------------------------------------------------------------------------------


@pytest.mark.usefixtures("mlflow_store")
@pytest.mark.parametrize(
    "model",
    [
        make_pipeline(StandardScaler(), LogisticRegression()),
        RandomForestClassifier(5, random_state=0),
        HistGradientBoostingClassifier(max_iter=3),
        KNeighborsClassifier(algorithm="kd_tree"),
        GridSearchCV(
            RandomForestClassifier(3, random_state=0),
            {"max_depth": [1, 2]},
            scoring="f1",
            cv=StratifiedKFold(3),
        ),
    ],
    ids=["linear", "forest", "boosting", "neighbours", "search"],
)
def test_models_of_scikit_learn_are_loaded_where_pickle_is_forbidden(monkeypatch, model):
    info = log(model.fit(X, Y))
    monkeypatch.setenv(ALLOW, "false")
    audited = load_model(info.model_uri)
    assert audited.learner.original is not None
    np.testing.assert_array_equal(
        audited.learner.original.predict("probability", X), model.predict_proba(X)
    )
    assert not any("trusted" in note for note in audited.learner.notes)
    assert (
        loading_notice(info.model_uri) == f"Loading {info.model_uri} runs no code that it brings."
    )


@pytest.mark.flavours
@pytest.mark.usefixtures("mlflow_store")
def test_models_of_lightgbm_are_loaded_where_pickle_is_forbidden(monkeypatch):
    lightgbm = pytest.importorskip("lightgbm", reason="needs the extra lightgbm")
    model = lightgbm.LGBMClassifier(n_estimators=3, verbose=-1).fit(X, Y)
    booster = model.booster_
    for each in (model, booster):
        with mlflow.start_run():
            info = mlflow.lightgbm.log_model(each, name="model", pip_requirements=["lightgbm"])
        assert code_run_by_loading(info.flavors) == ()
        with monkeypatch.context() as patch:
            patch.setenv(ALLOW, "false")
            loaded = load_native("lightgbm", Source(uri=info.model_uri, flavours=info.flavors))
        np.testing.assert_array_equal(loaded.predict(X), each.predict(X))


@pytest.mark.usefixtures("mlflow_store")
def test_the_route_head_loads_without_pickle_too(monkeypatch):
    model = LogisticRegression().fit(X, Y)
    info = log(model)
    monkeypatch.setenv(ALLOW, "false")
    learner = load_model(info.model_uri, refit="head").learner
    outputs = learner.represent(X, np.arange(len(X)))
    np.testing.assert_array_equal(outputs, model.predict(X)[:, None])


@pytest.mark.usefixtures("mlflow_store")
def test_an_audit_runs_where_pickle_is_forbidden(monkeypatch):
    info = log(RandomForestClassifier(3).fit(X, Y))
    monkeypatch.setenv(ALLOW, "false")
    frame = X.assign(y=Y, cluster=np.repeat(np.arange(15), 4))
    report = mlflow_b3.audit(
        info.model_uri, frame, target="y", cluster="cluster", budget=69, folds=3, n_jobs=1
    )
    assert report.settings.refit == "clone"


def test_the_model_cannot_call_its_own_types_trusted(trapped, monkeypatch):
    """MLflow would construct them: the list that it goes by is in the model's own MLmodel file."""
    monkeypatch.setenv(ALLOW, "false")
    with pytest.raises(ModelError) as caught:
        load_model(trapped.model_uri)
    assert "uniform_gen, scipy.stats._distn_infrastructure.rv_continuous_frozen." in str(
        caught.value
    )
    assert f"{ALLOW}=true" in str(caught.value)
    assert not Path("ran").exists()


def test_where_pickle_is_allowed_mlflow_loads_other_types_and_a_note_says_so(trapped, monkeypatch):
    monkeypatch.setenv(ALLOW, "true")
    (note, *_) = load_model(trapped.model_uri).learner.notes
    assert note == (
        "loading it constructed types that its author declared trusted and this package does not "
        "know: scipy.stats._continuous_distns.uniform_gen, "
        "scipy.stats._distn_infrastructure.rv_continuous_frozen"
    )
    assert Path("ran").exists()  # which is why the types are not on our list


def test_users_are_told_of_such_types_before(trapped):
    notice = loading_notice(trapped.model_uri)
    assert notice is not None
    assert "runs code that it brings (skops, with types that its author declared trusted" in notice
    assert "StratifiedKFold" not in notice
    assert notice.endswith(ADVICE)
    assert not Path("ran").exists()


@pytest.mark.usefixtures("mlflow_store")
def test_functions_of_the_standard_library_are_not_trusted(monkeypatch):
    """The transformer would copy whatever it is given."""
    model = make_pipeline(FunctionTransformer(), LogisticRegression()).fit(X, Y)
    model[0].func = shutil.copy
    info = log(model)
    monkeypatch.setenv(ALLOW, "false")
    with pytest.raises(ModelError, match=r"not known to be harmless: shutil\.copy\."):
        load_model(info.model_uri)


def test_the_list_holds_no_type_that_runs_text_as_code():
    runs_text = scipy.stats._distn_infrastructure.rv_generic
    for name in TRUSTED:
        module, _, attribute = name.rpartition(".")
        if module.partition(".")[0] in ("catboost", "lightgbm", "xgboost"):
            continue  # optional
        found = getattr(import_module(module), attribute, None)  # None in another version
        assert found is None or callable(found), name
        assert not (inspect.isclass(found) and issubclass(found, runs_text)), name


# --- pickle ---------------------------------------------------------------------------------------


@pytest.mark.usefixtures("mlflow_store")
def test_mlflows_restriction_on_pickle_is_honoured(monkeypatch):
    info = log(LogisticRegression().fit(X, Y), serialization_format="cloudpickle")
    assert load_model(info.model_uri).learner.name == "LogisticRegression"
    monkeypatch.setenv(ALLOW, "false")
    with pytest.raises(ModelError, match=ALLOW):
        load_model(info.model_uri)
    with pytest.raises(ModelError, match=ALLOW):
        load_model(info.model_uri, refit="head")


# --- what users are told --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flavours", "reasons"),
    [
        ({"sklearn": {"serialization_format": "skops"}}, ()),
        ({"sklearn": {"serialization_format": "skops", "code": "code"}}, ()),
        (
            {"sklearn": {"serialization_format": "skops", "skops_trusted_types": ["os.system"]}},
            ("skops, with types that its author declared trusted: os.system",),
        ),
        ({"sklearn": {"serialization_format": "cloudpickle"}}, ("cloudpickle",)),
        ({"sklearn": {}}, ("pickle",)),
        ({"xgboost": {"model_class": "xgboost.core.Booster", "code": None}}, ()),
        ({"xgboost": {"code": "code"}}, ("Python files logged with it",)),
        (
            {"xgboost": {"model_class": "mine.Model"}},
            ("a class that is not from xgboost, mine.Model",),
        ),
        ({"catboost": {"model_type": "CatBoostClassifier"}}, ()),
        (
            {
                "lightgbm": {
                    "model_class": "lightgbm.basic.Booster",
                    "serialization_format": "skops",
                }
            },
            (),
        ),
        (
            {
                "lightgbm": {
                    "model_class": "lightgbm.sklearn.LGBMRegressor",
                    "serialization_format": "cloudpickle",
                }
            },
            ("cloudpickle",),
        ),
        ({"statsmodels": {}}, ("pickle",)),
        ({"pytorch": {}}, ("PyTorch files, which are read by pickle",)),
        ({"keras": {}}, ("keras files, which are not known to be only data",)),
        ({}, ("a format that is not known to be only data",)),
    ],
)
def test_what_loading_runs_is_read_from_the_mlmodel_file(flavours, reasons):
    generic = {"python_function": {"loader_module": "mlflow.anything"}}
    assert code_run_by_loading({**generic, **flavours}) == reasons


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"loader_module": "mlflow.pyfunc.model", "python_model": "model.pkl"}, "cloudpickle"),
        (
            {"loader_module": "mlflow.pyfunc.loaders.code_model", "model_code_path": "model.py"},
            "a model defined by a Python file",
        ),
        ({"loader_module": "mine"}, "its own loader, mine"),
    ],
)
def test_generic_models_bring_code(settings, reason):
    assert code_run_by_loading({"python_function": settings}) == (reason,)


@pytest.mark.usefixtures("mlflow_store")
def test_the_notice_names_what_is_run():
    info = log(LogisticRegression().fit(X, Y), serialization_format="cloudpickle")
    assert loading_notice(info.model_uri) == (
        f"Loading {info.model_uri} runs code that it brings (cloudpickle). {ADVICE}"
    )
    assert loading_notice(info.model_uri, trainer="mine:train") is None
    assert loading_notice("models:/nobody/1") is None


@pytest.mark.usefixtures("mlflow_store")
@pytest.mark.parametrize("command", ["audit", "test"])
def test_the_command_line_says_so_before_it_loads(monkeypatch, command):
    info = log(LogisticRegression().fit(X, Y), serialization_format="cloudpickle")
    monkeypatch.setenv(ALLOW, "false")
    subject = f"--model-uri {info.model_uri} --data x.csv --target y --cluster cluster"
    result = CliRunner().invoke(main, [command, *subject.split()])
    assert result.exit_code == 2
    told, refused, *_ = result.stderr.splitlines()
    assert told == f"Loading {info.model_uri} runs code that it brings (cloudpickle). {ADVICE}"
    assert ALLOW in refused


def train(X, y, sample_ids):  # noqa: ARG001 - what trainers are given
    """Train, for a run to store."""
    return LogisticRegression().fit(X, y)


@pytest.mark.usefixtures("mlflow_store")
def test_the_notice_names_a_trainer_that_is_stored_with_the_run():
    info = log(LogisticRegression().fit(X, Y))
    log_trainer(train, run_id=info.run_id)
    assert loading_notice(info.model_uri) == (
        f"Refits of {info.model_uri} run the trainer stored with its run "
        f"(test_loading_safety:train). {ADVICE}"
    )
    loading = f"Loading {info.model_uri} runs no code that it brings."
    assert loading_notice(info.model_uri, refit="clone") == loading


# --- one model, by whichever flavour --------------------------------------------------------------


@pytest.mark.parametrize(
    ("edited", "named"),
    [
        ({"model_path": "served.skops"}, "is served from 'served.skops'"),
        ({"data": "served.skops"}, "is served from 'served.skops'"),
        ({"loader_module": "served"}, "is served by 'served'"),
        ({"loader_module": "mlflow.xgboost"}, "is served by 'mlflow.xgboost'"),
    ],
)
def test_a_model_that_serves_another_one_is_not_audited(tmp_path, mlflow_store, edited, named):  # noqa: ARG001
    """Servers load the flavour python_function; its files must be those of the audited flavour."""
    good = LogisticRegression().fit(X, Y)
    mlflow.sklearn.save_model(good, tmp_path / "model", pip_requirements=["scikit-learn"])
    described = tmp_path / "model" / "MLmodel"
    content = yaml.safe_load(described.read_text())
    content["flavors"]["python_function"].update(edited)
    described.write_text(yaml.safe_dump(content))
    with mlflow.start_run() as run:
        mlflow.log_artifacts(tmp_path / "model", "model")
    with pytest.raises(ModelError, match=named):
        load_model(f"runs:/{run.info.run_id}/model")
