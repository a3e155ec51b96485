"""Models in: loaded from wherever they are, trained again just as they were."""

import socket

import mlflow
import numpy as np
import pandas as pd
import pytest
from mlflow.exceptions import MlflowException
from mlflow.models import infer_signature
from sklearn.base import ClassifierMixin
from sklearn.cluster import KMeans
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LinearRegression, LogisticRegression, Ridge, SGDClassifier
from sklearn.model_selection import GridSearchCV
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.svm import SVC, LinearSVC
from sklearn.tree import DecisionTreeRegressor

from mlflow_b3.data.losses import CLASSIFICATION
from mlflow_b3.data.table import ModelInputs, prepare
from mlflow_b3.errors import ModelError, TrackingError
from mlflow_b3.refit import AuditedModel, load_model, loading, without_autologging
from mlflow_b3.refit.learner import ConstantPredictor, Rows
from mlflow_b3.refit.sklearn import CloneLearner, estimator_inputs
from mlflow_b3.tracking.audits import find_audit

N = 60
RNG = np.random.default_rng(0)
X = pd.DataFrame(RNG.normal(size=(N, 3)), columns=["age", "bmi", "glucose"])
Y = (X["age"] + RNG.normal(size=N) > 0).astype(int).to_numpy()
WORDS = np.where(Y, "sick", "well")
THREE = np.digitize(X["bmi"] + RNG.normal(size=N), [-0.5, 0.5])
VALUES = X["age"].to_numpy() * 3 + RNG.normal(size=N)


def fit(learner, X, target, seed=None):
    """Train on some rows."""
    return learner.fit(Rows(X=X, target=np.asarray(target), ids=np.arange(len(X))), seed)


# ---------------------------------------------------------------- route clone


@pytest.mark.parametrize(
    ("estimator", "target", "kinds"),
    [
        (make_pipeline(StandardScaler(), LogisticRegression()), Y, ["label", "probability"]),
        (RandomForestClassifier(10, random_state=3), Y, ["label", "probability"]),
        (RandomForestClassifier(10, random_state=3, n_jobs=2), THREE, ["label", "probability"]),
        (LogisticRegression(), WORDS, ["label", "probability", "decision"]),
        (SGDClassifier(random_state=1), THREE, ["label", "decision"]),
        (KNeighborsClassifier(algorithm="brute"), WORDS, ["label", "probability"]),
        (
            GridSearchCV(KNeighborsClassifier(), {"n_neighbors": [1, 5]}, cv=3),
            Y,
            ["label", "probability"],
        ),
        (LinearRegression(), VALUES, ["value"]),
        (RandomForestRegressor(10, random_state=3), VALUES, ["value"]),
    ],
    ids=[
        "pipeline",
        "forest",
        "parallel forest of three classes",
        "string labels",
        "stochastic gradient",
        "neighbours",
        "grid search",
        "linear regression",
        "regression forest",
    ],
)
def test_refit_on_the_original_rows_is_the_original_bit_for_bit(estimator, target, kinds):
    original = estimator.fit(X, target)
    refitted = fit(CloneLearner(original), X, target, None)
    methods = {"probability": "predict_proba", "decision": "decision_function"}
    for kind in kinds:
        expected = getattr(original, methods.get(kind, "predict"))(X)
        np.testing.assert_array_equal(refitted.predict(kind, X), expected)
    if "label" in kinds:
        np.testing.assert_array_equal(refitted.classes, original.classes_)


def test_refit_leaves_the_original_untouched():
    original = LogisticRegression(C=0.3).fit(X, Y)
    before = original.coef_.copy()
    fit(CloneLearner(original), X.iloc[:20], 1 - Y[:20], 5)
    np.testing.assert_array_equal(original.coef_, before)
    assert original.random_state is None


def test_refits_start_from_scratch_even_with_warm_start():
    model = SGDClassifier(random_state=0, warm_start=True).fit(X, Y)
    learner = CloneLearner(model)
    first, second = fit(learner, X, Y, None), fit(learner, X, Y, None)
    np.testing.assert_array_equal(first.predict("decision", X), second.predict("decision", X))


@pytest.mark.parametrize(
    "estimator",
    [
        RandomForestClassifier(5, random_state=3),
        make_pipeline(StandardScaler(), RandomForestClassifier(5)),
    ],
    ids=["forest", "nested in a pipeline"],
)
def test_seed_replaces_every_random_state(estimator):
    learner = CloneLearner(estimator)
    assert learner.stochastic
    first, again, other = (fit(learner, X, Y, seed).predict("probability", X) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


def test_learner_without_random_state_does_not_depend_on_the_seed():
    learner = CloneLearner(KNeighborsClassifier())
    assert not learner.stochastic
    np.testing.assert_array_equal(
        fit(learner, X, Y, 1).predict("probability", X),
        fit(learner, X, Y, 2).predict("probability", X),
    )


@pytest.mark.parametrize(
    ("estimator", "task"),
    [
        (LogisticRegression(), "classification"),
        (make_pipeline(StandardScaler(), SVC()), "classification"),
        (Ridge(), "regression"),
        (make_pipeline(StandardScaler(), KNeighborsRegressor()), "regression"),
        (GridSearchCV(Ridge(), {"alpha": [1, 2]}), "regression"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_task_is_that_of_the_estimator(estimator, task):
    assert CloneLearner(estimator).task == task


@pytest.mark.parametrize("estimator", [KMeans(), StandardScaler()])
def test_only_classifiers_and_regressors_can_be_audited(estimator):
    name = type(estimator).__name__
    with pytest.raises(ModelError, match=f"{name} is neither a classifier nor a regressor"):
        load_model(estimator)


# ---------------------------------------------------------------- resamples of one class


@pytest.mark.parametrize("label", [1, "sick", True])
def test_resample_of_one_class_predicts_that_class_with_certainty(label):
    predictor = fit(CloneLearner(LogisticRegression()), X, np.repeat(label, N), 0)
    assert isinstance(predictor, ConstantPredictor)
    assert set(predictor.predict("label", X)) == {label}
    assert predictor.predict("probability", X).tolist() == [[1.0]] * N
    assert predictor.classes.tolist() == [label]


def test_resample_of_one_class_can_be_scored():
    predictor = fit(CloneLearner(LogisticRegression()), X, np.repeat("sick", N), 0)
    for name in ("zero_one", "brier"):
        losses = CLASSIFICATION[name].evaluate(predictor, X, WORDS)
        np.testing.assert_array_equal(losses, WORDS != "sick")


def test_resample_of_one_class_has_no_decision_values():
    predictor = fit(CloneLearner(LinearSVC()), X, np.repeat("sick", N), 0)
    with pytest.raises(ModelError, match="single class gives no decision values"):
        predictor.predict("decision", X)


def test_constant_target_is_an_ordinary_case_for_a_regressor():
    predictor = fit(CloneLearner(DecisionTreeRegressor()), X, np.repeat(2.5, N), 0)
    assert set(predictor.predict("value", X)) == {2.5}
    assert predictor.classes is None


# ---------------------------------------------------------------- predictions that are not there


@pytest.mark.parametrize(
    ("estimator", "loss", "missing", "works"),
    [
        (LinearSVC(), "log", "LinearSVC has no predict_proba", ["zero_one", "hinge"]),
        (LinearSVC(), "brier", "LinearSVC has no predict_proba", ["zero_one", "hinge"]),
        (
            make_pipeline(StandardScaler(), LinearSVC()),
            "log",
            "Pipeline has no predict_proba",
            ["zero_one", "hinge"],
        ),
        (
            KNeighborsClassifier(),
            "hinge",
            "KNeighborsClassifier has no decision_function",
            ["zero_one", "log", "brier"],
        ),
    ],
    ids=["log", "brier", "pipeline", "hinge"],
)
def test_loss_that_the_estimator_cannot_serve_names_those_it_can(estimator, loss, missing, works):
    predictor = fit(CloneLearner(estimator), X, Y, 0)
    with pytest.raises(ModelError) as caught:
        CLASSIFICATION[loss].evaluate(predictor, X, Y)
    assert missing in str(caught.value)
    assert f"losses that work with it: {works}" in str(caught.value)


# ---------------------------------------------------------------- inputs that a model remembers


def test_fitted_estimator_remembers_names_and_order():
    inputs = estimator_inputs(LogisticRegression().fit(X[["bmi", "age"]], Y))
    assert inputs == ModelInputs(columns=("bmi", "age"), count=2)


def test_estimator_trained_on_an_array_wants_an_array_again():
    assert estimator_inputs(LinearRegression().fit(X.to_numpy(), Y)) == ModelInputs(
        count=3, as_array=True
    )


@pytest.mark.parametrize(
    "estimator", [LogisticRegression(), make_pipeline(StandardScaler(), LogisticRegression())]
)
def test_unfitted_estimator_says_nothing_about_its_inputs(estimator):
    assert estimator_inputs(estimator) == ModelInputs()


def test_pipeline_asks_its_first_step():
    pipeline = make_pipeline(StandardScaler(), LogisticRegression()).fit(X, Y)
    assert estimator_inputs(pipeline).columns == ("age", "bmi", "glucose")


def test_model_with_columns_of_words_is_refitted_through_its_pipeline():
    frame = X.assign(sex=np.where(np.arange(N) % 2, "f", "m"))
    encode = ColumnTransformer([("sex", OneHotEncoder(), ["sex"])], remainder="passthrough")
    original = make_pipeline(encode, LogisticRegression()).fit(frame, Y)
    audited = load_model(original)
    table = frame.iloc[:, ::-1].assign(y=Y, cluster=np.arange(N) // 5)
    data = prepare(
        table, target="y", cluster="cluster", task="classification", inputs=audited.inputs
    )
    refitted = fit(audited.learner, data.features, data.target, None)
    np.testing.assert_array_equal(
        refitted.predict("probability", data.features), original.predict_proba(frame)
    )


# ---------------------------------------------------------------- loading estimators


@pytest.mark.parametrize("fitted", [True, False])
def test_estimator_is_taken_fitted_or_not(fitted):
    estimator = LogisticRegression()
    audited = load_model(estimator.fit(X, Y) if fitted else estimator)
    assert audited.name == "LogisticRegression"
    assert (audited.uri, audited.run_id, audited.model_id) == (None, None, None)
    assert audited.learner.route == "clone"


def test_pipeline_is_called_by_its_steps():
    pipeline = Pipeline([("scale", StandardScaler()), ("fit", LogisticRegression())])
    assert load_model(pipeline).name == "StandardScaler → LogisticRegression"


def test_loaded_model_is_not_loaded_twice():
    audited = load_model(LogisticRegression())
    assert isinstance(audited, AuditedModel)
    assert load_model(audited) is audited


class Untagged:
    """Has scikit-learn's methods but does not inherit from its base class."""

    def get_params(self, deep=True):
        del deep
        return {}

    def set_params(self):
        return self

    def fit(self, X, y):
        del X, y
        return self


@pytest.mark.parametrize(
    "model",
    [None, 3, object(), ClassifierMixin(), Untagged()],
    ids=["None", "number", "object", "no fit", "no base class"],
)
def test_what_is_no_estimator_is_refused_by_its_type(model):
    with pytest.raises(ModelError, match=type(model).__name__):
        load_model(model)


def test_class_instead_of_an_instance_is_refused_by_its_name():
    with pytest.raises(ModelError, match="LogisticRegression"):
        load_model(LogisticRegression)


@pytest.mark.parametrize("uri", ["", "model", "./model", "s3://bucket/model", "models:name/1"])
def test_other_strings_are_refused_with_the_forms_of_model_uris(uri):
    with pytest.raises(ModelError) as caught:
        load_model(uri)
    assert f"model={uri!r} is not a model URI" in str(caught.value)
    assert "'models:/name/3', 'models:/name@alias', 'models:/m-…' or 'runs:/run_id/path'" in str(
        caught.value
    )


# ---------------------------------------------------------------- loading from MLflow


def log(estimator, **options):
    """Log an estimator in a run of its own and return what MLflow says about it."""
    options = {"signature": infer_signature(X), **options}
    with mlflow.start_run():
        return mlflow.sklearn.log_model(
            estimator, name="model", pip_requirements=["scikit-learn"], **options
        )


@pytest.mark.usefixtures("mlflow_store")
@pytest.mark.parametrize("form", ["models:/m-…", "runs:/…", "models:/name/1", "models:/name@alias"])
def test_model_is_loaded_by_every_form_of_uri(form):
    original = make_pipeline(StandardScaler(), LogisticRegression(C=0.2)).fit(X, WORDS)
    info = log(original, registered_model_name="clinic")
    mlflow.MlflowClient().set_registered_model_alias("clinic", "champion", "1")
    uri = {
        "models:/m-…": f"models:/{info.model_id}",
        "runs:/…": f"runs:/{info.run_id}/model",
        "models:/name/1": "models:/clinic/1",
        "models:/name@alias": "models:/clinic@champion",
    }[form]
    audited = load_model(uri)
    assert audited.name == f"{uri} (StandardScaler → LogisticRegression)"
    pinned = "models:/clinic/1" if form == "models:/name@alias" else uri  # an alias may move
    assert (audited.uri, audited.run_id, audited.model_id) == (pinned, info.run_id, info.model_id)
    refitted = fit(audited.learner, X, WORDS, None)
    np.testing.assert_array_equal(refitted.predict("probability", X), original.predict_proba(X))


@pytest.mark.usefixtures("mlflow_store")
def test_model_logged_without_a_run_has_none():
    info = mlflow.sklearn.log_model(
        KNeighborsClassifier(algorithm="brute").fit(X, Y),
        name="model",
        pip_requirements=["scikit-learn"],
        signature=infer_signature(X),
    )
    audited = load_model(info.model_uri)
    assert (audited.run_id, audited.model_id) == (None, info.model_id)


@pytest.mark.usefixtures("mlflow_store")
def test_forest_whose_types_were_trusted_is_loaded():
    forest = RandomForestClassifier(3, random_state=0).fit(X, Y)
    info = log(forest, skops_trusted_types=["sklearn.tree._tree.Tree"])
    refitted = fit(load_model(info.model_uri).learner, X, Y, None)
    np.testing.assert_array_equal(refitted.predict("probability", X), forest.predict_proba(X))


@pytest.mark.newest  # skops is MLflow's default since 3.14
@pytest.mark.usefixtures("mlflow_store")
def test_forest_behind_an_imputer_needs_two_types_which_mlflow_names():
    model = make_pipeline(SimpleImputer(), RandomForestClassifier(3, random_state=0)).fit(X, Y)
    with pytest.raises(MlflowException, match=r"numpy\.dtype"):
        log(model, skops_trusted_types=["sklearn.tree._tree.Tree"])
    info = log(model, skops_trusted_types=["sklearn.tree._tree.Tree", "numpy.dtype"])
    refitted = fit(load_model(info.model_uri).learner, X, Y, None)
    np.testing.assert_array_equal(refitted.predict("probability", X), model.predict_proba(X))


@pytest.mark.usefixtures("mlflow_store")
def test_signature_gives_columns_and_dtypes():
    frame = X.astype({"age": "float32"}).assign(number=np.arange(N))
    model = LogisticRegression().fit(frame[["number", "age"]], Y)
    signature = infer_signature(frame[["number", "age"]].head())
    inputs = load_model(log(model, signature=signature).model_uri).inputs
    assert inputs.columns == ("number", "age")
    assert inputs.dtypes == {"number": "int64", "age": "float32"}
    assert not inputs.as_array


@pytest.mark.usefixtures("mlflow_store")
def test_signature_lets_words_be_words():
    frame = X.assign(sex=pd.Categorical(np.where(np.arange(N) % 2, "f", "m")))
    encode = ColumnTransformer([("sex", OneHotEncoder(), ["sex"])], remainder="passthrough")
    model = make_pipeline(encode, LogisticRegression()).fit(frame, Y)
    inputs = load_model(log(model, signature=infer_signature(frame)).model_uri).inputs
    assert inputs.dtypes["sex"] == "object"
    table = frame.assign(y=Y, cluster=np.arange(N) // 5)
    data = prepare(table, target="y", cluster="cluster", task="classification", inputs=inputs)
    assert set(data.features["sex"]) == {"f", "m"}


@pytest.mark.usefixtures("mlflow_store")
def test_model_trained_on_an_array_is_given_the_signatures_columns_as_an_array():
    model = LogisticRegression().fit(X.to_numpy(), Y)
    inputs = load_model(log(model).model_uri).inputs
    assert inputs.columns == ("age", "bmi", "glucose")
    assert inputs.as_array


@pytest.mark.usefixtures("mlflow_store")
@pytest.mark.parametrize("signature", [None, infer_signature(X.to_numpy())], ids=["none", "tensor"])
def test_without_named_columns_in_the_signature_the_model_itself_is_asked(signature):
    inputs = load_model(log(LogisticRegression().fit(X, Y), signature=signature).model_uri).inputs
    assert inputs == ModelInputs(columns=("age", "bmi", "glucose"), count=3)


@pytest.mark.parametrize(
    "uri",
    [
        "models:/clinic/1",
        "models:/clinic@champion",
        "models:/m-00000000000000000000000000000000",
        "runs:/00000000000000000000000000000000/model",
        "models:/",
        "runs:/",
    ],
)
def test_unknown_uri_is_named_with_the_store_that_was_searched(mlflow_store, uri):
    with pytest.raises(ModelError) as caught:
        load_model(uri)
    assert f"model={uri!r} was not found in {mlflow_store!r}: " in str(caught.value)


@pytest.mark.usefixtures("mlflow_store")
@pytest.mark.parametrize("uri", ["models:/clinic/2", "models:/clinic@nobody", "runs:/{run}/other"])
def test_unknown_version_alias_or_path_of_a_known_model_is_named(uri):
    info = log(LogisticRegression().fit(X, Y), registered_model_name="clinic")
    uri = uri.format(run=info.run_id)
    with pytest.raises(ModelError, match=f"model='{uri}' was not found"):
        load_model(uri)


class Doubler(mlflow.pyfunc.PythonModel):
    """A model of another flavour."""

    def predict(self, context, model_input: list[float]) -> list[float]:
        del context
        return [2 * value for value in model_input]


@pytest.mark.usefixtures("mlflow_store")
def test_model_that_can_only_predict_is_given_a_head():
    info = mlflow.pyfunc.log_model(
        name="model", python_model=Doubler(), pip_requirements=["scikit-learn"]
    )
    learner = load_model(info.model_uri).learner
    assert (learner.route, learner.strength) == ("head", "lower-bound")


@pytest.mark.usefixtures("mlflow_store")
def test_logged_transformer_is_no_model_to_audit():
    info = log(StandardScaler().fit(X))
    with pytest.raises(ModelError, match="StandardScaler is neither a classifier nor a regressor"):
        load_model(info.model_uri)


@pytest.mark.usefixtures("mlflow_store")
@pytest.mark.parametrize("form", ["skops", "cloudpickle"])
def test_damaged_model_file_is_a_model_error(tmp_path, form):
    info = log(LogisticRegression().fit(X, Y), serialization_format=form)
    (file,) = [*tmp_path.rglob("model.skops"), *tmp_path.rglob("model.pkl")]
    file.write_bytes(b"not a model")
    with pytest.raises(ModelError, match=f"model='{info.model_uri}' could not be loaded: ."):
        load_model(info.model_uri)


@pytest.mark.usefixtures("mlflow_store")
def test_model_is_not_loaded_where_mlflow_forbids_it(monkeypatch):
    info = log(LogisticRegression().fit(X, Y), serialization_format="cloudpickle")
    monkeypatch.setenv("MLFLOW_ALLOW_PICKLE_DESERIALIZATION", "false")
    with pytest.raises(ModelError, match=r"could not be loaded: .*MLFLOW_ALLOW_PICKLE"):
        load_model(info.model_uri)


@pytest.mark.usefixtures("mlflow_store")
def test_refits_are_not_logged_as_runs_when_autologging_is_on():
    mlflow.sklearn.autolog(log_models=False, log_datasets=False, silent=True)
    try:
        with without_autologging():
            fit(CloneLearner(LogisticRegression()), X, Y, 0)
        assert mlflow.search_runs(output_format="list") == []
        LogisticRegression().fit(X, Y)
        assert len(mlflow.search_runs(output_format="list")) == 1
    finally:
        mlflow.sklearn.autolog(disable=True)


# ---------------------------------------------------------------- no server


@pytest.fixture
def no_server(monkeypatch):
    """Return the address of a server that is not there, with a password in it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        where = f"127.0.0.1:{free.getsockname()[1]}"
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_BACKOFF_JITTER", "0")
    monkeypatch.setattr("urllib3.Retry.get_backoff_time", lambda _: 0.3)  # instead of up to 4 s
    monkeypatch.setattr(loading, "PATIENCE", 0.1)
    before = mlflow.get_tracking_uri()
    mlflow.set_tracking_uri(f"http://anna:secret@{where}")
    yield where
    mlflow.set_tracking_uri(before)


@pytest.mark.parametrize("uri", ["models:/clinic/1", "models:/clinic@champion", "runs:/0/model"])
def test_a_server_that_does_not_answer_is_said_soon_and_not_called_a_missing_model(
    no_server, uri, caplog
):
    with pytest.raises(TrackingError) as caught:
        load_model(uri)
    text = str(caught.value)
    assert f"MLflow at http://{no_server} does not answer (Connection refused)" in text
    assert "not found" not in text
    (told,) = [entry.getMessage() for entry in caplog.records if "does not answer" in entry.message]
    assert "keeps trying" in told
    assert "secret" not in text + told


def test_audits_are_not_called_missing_when_the_server_does_not_answer(no_server):  # noqa: ARG001
    with pytest.raises(TrackingError, match=r"does not answer \(Connection refused\)"):
        find_audit(mlflow.MlflowClient(), "0" * 32)
