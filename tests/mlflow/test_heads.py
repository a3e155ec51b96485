"""Route `head`: models that can only predict, and what can be said about them."""

import mlflow
import numpy as np
import pandas as pd
import pytest
from mlflow.models import infer_signature
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier

import mlflow_b3 as b3
from mlflow_b3.errors import InputError, ModelError
from mlflow_b3.refit import Rows, load_model
from mlflow_b3.refit.head import HeadLearner, as_numbers
from mlflow_b3.tracking.metrics_and_files import metrics_of
from mlflow_b3.tracking.recording import audit_and_record

pytestmark = pytest.mark.newest

AUDIT = {"target": "disease", "cluster": "patient_id", "folds": 3, "budget": 72}
CLINIC = b3.make_clinic(patients=30, records=5, cluster_error=0.1, seed=0)
FEATURES = ["age", "bmi", "glucose", "pressure", "cholesterol"]
X, Y = CLINIC.frame[FEATURES], CLINIC.frame["disease"].to_numpy()


class Wrapped(mlflow.pyfunc.PythonModel):
    """A model of one's own that shows nothing but its predictions."""

    def __init__(self, method):
        self.method = method

    def predict(self, context, model_input: pd.DataFrame, params=None):
        """Predict."""
        del context, params
        return self.method(model_input)


def log(method):
    """Log a function from a table to predictions in a run of its own."""
    with mlflow.start_run():
        return mlflow.pyfunc.log_model(
            name="model",
            python_model=Wrapped(method),
            signature=infer_signature(X),
            pip_requirements=["scikit-learn"],
        )


@pytest.mark.usefixtures("mlflow_store")
@pytest.mark.parametrize("form", ["models:/", "runs:/"])
@pytest.mark.parametrize("output", ["predict", "predict_proba"])
def test_model_that_can_only_predict_is_audited_by_a_head(form, output):
    original = LogisticRegression().fit(X, Y)
    info = log(getattr(original, output))
    uri = info.model_uri if form == "models:/" else f"runs:/{info.run_id}/model"
    report = b3.audit(uri, CLINIC.frame, cluster_error=0.1, **AUDIT)
    assert (report.settings.refit, report.settings.refit_strength) == ("head", "lower-bound")
    low, high = report.e0_interval
    assert high is None
    assert low <= report.e0
    assert "B321" in {finding.code for finding in report.findings}
    assert "is at least about" in report.to_text()


def test_head_on_the_original_rows_gives_the_originals_labels_again():
    original = LogisticRegression().fit(X, Y)
    learner = HeadLearner(original).with_task("classification")
    outputs = learner.represent(X, np.arange(len(X)))
    fitted = learner.fit(Rows(X=outputs, target=Y, ids=np.arange(len(X))))
    assert np.mean(fitted.predict("label", outputs) == original.predict(X)) > 0.97


def test_head_shows_less_loss_than_training_the_whole_model_again():
    """The nearest neighbour of a row of its own training set is that row: outputs give it away."""
    model = KNeighborsClassifier(1, algorithm="brute").fit(X, Y)
    whole = b3.audit(model, CLINIC.frame, cluster_error=0.1, **AUDIT)
    head = b3.audit(model, CLINIC.frame, cluster_error=0.1, refit="head", **AUDIT)
    assert head.loco == 0.0
    assert head.e0_interval[0] < whole.e0
    assert whole.e0 > 0.2


@pytest.mark.usefixtures("mlflow_store")
def test_lower_bounds_are_recorded_as_such():
    info = log(RandomForestClassifier(10, random_state=0).fit(X, Y).predict_proba)
    report, run_id = audit_and_record(info.model_uri, CLINIC.frame, cluster_error=0.1, **AUDIT)
    run = mlflow.get_run(run_id)
    assert run.data.tags["b3.refit"] == "head"
    assert run.data.tags["b3.refit_strength"] == "lower-bound"
    assert run.data.metrics["b3/refit_full"] == 0.0
    assert "b3/e0" not in run.data.metrics
    assert run.data.metrics["b3/e0_low"] == pytest.approx(report.e0_interval[0])
    assert metrics_of(report)["b3/e0_high"] is None
    assert b3.AuditReport.from_dict(report.to_dict()) == report


def test_head_for_numbers_is_a_regression():
    frame = CLINIC.frame.assign(disease=X["age"] + 0.1 * X["bmi"])

    class Embedding:
        def predict(self, X):
            return X[["age", "bmi"]].to_numpy()

    report = b3.audit(Embedding(), frame, refit="head", **AUDIT)
    assert report.settings.task == "regression"
    assert report.loco < 0.01


def test_numbers_do_not_depend_on_the_number_of_workers():
    model = LogisticRegression().fit(X, Y)
    one = b3.audit(model, CLINIC.frame, refit="head", **AUDIT)
    two = b3.audit(model, CLINIC.frame, refit="head", **AUDIT, n_jobs=2)
    assert one == two


# ---------------------------------------------------------------- outputs as features


@pytest.mark.parametrize(
    ("outputs", "columns"),
    [
        (np.array([0.1, 0.2, 0.3]), 1),
        (np.array([[0.1, 0.9], [0.2, 0.8], [0.3, 0.7]]), 2),
        (["sick", "well", "sick"], 2),
        (pd.Series(["a", "b", "c"]), 3),
        (pd.DataFrame({"label": ["a", "b", "a"], "score": [1, 2, 3]}), 3),
        ({"score": np.array([1.0, 2.0, 3.0])}, 1),
        ({"embedding": np.arange(6).reshape(3, 2)}, 2),
        (pd.DataFrame({"embedding": [[1, 2], [3, 4], [5, 6]]}), 2),
    ],
)
def test_outputs_of_every_form_become_columns_of_numbers(outputs, columns):
    assert as_numbers(outputs, 3).shape == (3, columns)


def test_whole_numbers_are_labels_where_classes_are_predicted():
    """As one number, three codes in an order that means nothing would hardly be told apart."""
    codes = np.array([2, 0, 1, 2])
    assert as_numbers(codes, 4).shape == (4, 1)
    assert as_numbers(codes, 4, labels=True).tolist() == [
        [0, 0, 1],
        [1, 0, 0],
        [0, 1, 0],
        [0, 0, 1],
    ]
    assert as_numbers(codes / 2, 4, labels=True).shape == (4, 1)


@pytest.mark.parametrize(
    ("outputs", "problem"),
    [
        ([1.0, 2.0], r"of shape \(2, 1\) for 3 rows"),
        ([1.0, np.nan, 2.0], "finite"),
        ([1.0, 1.0, 1.0], "predicts the same for every row"),
    ],
)
def test_outputs_that_a_head_cannot_use_are_named(outputs, problem):
    with pytest.raises(ModelError, match=problem):
        as_numbers(outputs, 3)


def test_model_that_cannot_predict_these_rows_is_told_so():
    class Broken:
        def predict(self, _):
            raise RuntimeError("no such column")

    with pytest.raises(ModelError, match=r"cannot predict the rows .*no such column"):
        b3.audit(Broken(), CLINIC.frame, refit="head", **AUDIT)


@pytest.mark.usefixtures("mlflow_store")
def test_head_needs_no_library_of_the_flavour_that_refits_need(monkeypatch):
    with mlflow.start_run():
        info = mlflow.sklearn.log_model(
            LogisticRegression().fit(X, Y), name="model", pip_requirements=["scikit-learn"]
        )
    monkeypatch.setattr("mlflow_b3.refit.loading.find_flavour", pytest.fail)
    assert load_model(info.model_uri, refit="head").learner.route == "head"


def test_head_needs_something_that_predicts():
    with pytest.raises(ModelError, match="has no predict"):
        load_model(object(), refit="head")


def test_head_has_no_options():
    with pytest.raises(InputError, match="there are none"):
        load_model(LogisticRegression(), refit="head", options={"depth": 3})
