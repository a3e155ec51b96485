"""What a model was trained on, as far as its run says so: rows, categories, columns of text."""

from types import SimpleNamespace

import mlflow
import numpy as np
import pandas as pd
import pytest
from mlflow import MlflowClient
from mlflow.models import infer_signature
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder

import mlflow_b3 as b3
from mlflow_b3.refit.loading import digest_like_training, training_datasets, training_table

pytestmark = pytest.mark.filterwarnings("ignore:Hint", "ignore:Saving scikit-learn")
N = 240
SMALL = {"target": "y", "cluster": "patient", "cluster_error": 0.1, "folds": 2, "budget": 50}


def wards(**more):
    """Return records of patients in wards, which decide the target."""
    rng = np.random.default_rng(0)
    ward = rng.choice(["north", "east", "south"], N)
    sick = (ward == "east") ^ (rng.random(N) < 0.1)
    plain = {"age": rng.normal(size=N), "ward": ward, "y": sick.astype(int)}
    return pd.DataFrame({**plain, "patient": np.arange(N) // 4, **more})


def log(model, **options):
    with mlflow.start_run():
        return mlflow.sklearn.log_model(
            model,
            name="model",
            serialization_format="cloudpickle",
            pip_requirements=["scikit-learn"],
            **options,
        ).model_uri


def run_with(frame, context):
    with mlflow.start_run() as run:
        mlflow.log_input(mlflow.data.from_pandas(frame), context=context)
    return run.info.run_id


@pytest.mark.usefixtures("mlflow_store")
@pytest.mark.filterwarnings("ignore:Hint")
def test_a_training_table_that_was_logged_is_counted():
    frame = pd.DataFrame({"a": [1.0, 2.0, 3.0]})
    assert training_table(run_with(frame, "training")).rows == 3
    assert training_table(run_with(frame, "audit")).rows is None
    assert training_table("0" * 32).rows is None
    assert training_table(None).rows is None


@pytest.mark.parametrize(
    ("profile", "rows"),
    [
        ('{"num_rows": 7}', 7),
        ('{"features_shape": [30, 2]}', 30),
        ("{}", None),
        ("[]", None),
        ("nonsense", None),
        (None, None),
    ],
)
def test_profiles_of_any_kind_are_read_or_passed_over(monkeypatch, profile, rows):
    tag = SimpleNamespace(key="mlflow.data.context", value="train")
    given = SimpleNamespace(dataset=SimpleNamespace(profile=profile, schema=profile), tags=[tag])
    run = SimpleNamespace(inputs=SimpleNamespace(dataset_inputs=[given]))
    monkeypatch.setattr(MlflowClient, "get_run", lambda *_: run)
    assert training_table("1").rows == rows


@pytest.mark.usefixtures("mlflow_store")
@pytest.mark.filterwarnings("ignore:Hint")
def test_the_table_of_training_has_the_digest_that_its_run_logged():
    frame = pd.DataFrame({"a": [1.0, 2.0, 3.0], "b": ["x", "y", "z"]})
    run_id = run_with(frame, "training")
    (dataset,) = training_datasets(MlflowClient().get_run(run_id))
    assert digest_like_training(frame.copy(), run_id) == dataset.digest
    assert digest_like_training(frame.assign(a=0.0), run_id) != dataset.digest


@pytest.mark.usefixtures("mlflow_store")
@pytest.mark.filterwarnings("ignore:Hint")
def test_no_digest_is_computed_where_none_could_be_the_same():
    frame = pd.DataFrame({"a": [1.0, 2.0, 3.0]})
    assert digest_like_training(frame.head(2), run_with(frame, "training")) is None
    assert digest_like_training(frame, run_with(frame, "eval")) is None
    assert digest_like_training(frame, "0" * 32) is None
    assert digest_like_training(frame, None) is None


# --- dtypes of training ---------------------------------------------------------------------------


@pytest.fixture
def boosted(mlflow_store):  # noqa: ARG001 - where the model is logged
    """Return trees that tell categories by their dtype, logged with a signature, and their table."""
    frame = wards().astype({"ward": "category"})
    X = frame[["age", "ward"]]
    model = HistGradientBoostingClassifier(max_iter=10, categorical_features="from_dtype")
    return log(model.fit(X, frame["y"]), signature=infer_signature(X)), frame


def test_categories_under_a_signature_are_refitted_as_training_saw_them(boosted):
    """The signature calls them strings, which these trees refuse."""
    report = b3.audit(boosted[0], boosted[1], **SMALL)
    assert report.settings.refit_agreement == 1.0
    assert "'ward' is category in the table, and text in the model's signature" in (
        report.settings.refit_notes
    )


def test_categories_that_a_file_has_lost_are_categories_again(boosted, tmp_path):
    uri, frame = boosted
    frame.to_csv(tmp_path / "records.csv", index=False)
    report = b3.audit(uri, tmp_path / "records.csv", **SMALL)
    assert report.settings.refit_agreement == 1.0
    read = pd.read_csv(tmp_path / "records.csv")["ward"].dtype  # pandas 3 has a dtype for texts
    assert f"'ward' is {read} in the table, and category again as in training" in (
        report.settings.refit_notes
    )


def test_where_agreement_is_low_dtypes_are_named(boosted):
    uri, frame = boosted
    other = frame.assign(y=np.random.default_rng(1).permutation(frame["y"]))
    (finding,) = [f for f in b3.audit(uri, other, **SMALL).findings if f.code == "B322"]
    assert "Dtypes differ: 'ward' is category in the table, and text in the model's" in str(finding)


@pytest.fixture
def coded(mlflow_store):  # noqa: ARG001 - where the model is logged
    """Return a model of texts that look like numbers, and its table."""
    codes = np.random.default_rng(2).choice(["007", "07", "7"], N)
    frame = wards(ward=codes, y=(codes == "007").astype(int))
    X = frame[["ward"]]
    model = make_pipeline(OneHotEncoder(handle_unknown="ignore"), LogisticRegression())
    return log(model.fit(X, frame["y"]), signature=infer_signature(X)), frame


def test_texts_that_a_file_turns_into_numbers_are_read_as_texts(coded, tmp_path):
    uri, frame = coded
    frame.to_csv(tmp_path / "records.csv", index=False)
    report = b3.audit(uri, str(tmp_path / "records.csv"), **SMALL)
    assert report.settings.refit_agreement == 1.0
    assert report.iid == 0.0, "'007' is not '7'"


def test_texts_that_became_numbers_in_memory_are_refused_with_what_to_do(coded):
    uri, frame = coded
    with pytest.raises(
        b3.InputError, match=r"'ward' has dtype int64, but was text .*dtype=\{'ward'"
    ):
        b3.audit(uri, frame.astype({"ward": int}), **SMALL)


@pytest.mark.usefixtures("mlflow_store")
def test_without_a_signature_the_logged_training_table_tells_texts():
    codes = np.random.default_rng(2).choice(["007", "7"], N)
    frame = wards(ward=codes)
    model = make_pipeline(OneHotEncoder(handle_unknown="ignore"), LogisticRegression())
    with mlflow.start_run():
        mlflow.log_input(mlflow.data.from_pandas(frame, targets="y"), context="training")
        uri = mlflow.sklearn.log_model(
            model.fit(frame[["ward"]], frame["y"]),
            name="model",
            serialization_format="cloudpickle",
            pip_requirements=["scikit-learn"],
        ).model_uri
    with pytest.raises(b3.InputError, match="'ward' has dtype int64, but was text in training"):
        b3.audit(uri, frame.astype({"ward": int}), **SMALL)


# --- columns that no estimator takes --------------------------------------------------------------


@pytest.mark.parametrize(
    "column",
    [
        pd.date_range("2024-01-01", periods=N, freq="h"),
        np.array(["anna", "bert"] * (N // 2)),
        pd.Categorical(["anna", "bert"] * (N // 2)),
    ],
    ids=["dates", "texts", "categories"],
)
@pytest.mark.parametrize("model", [LogisticRegression(), KNeighborsClassifier()])
def test_a_column_that_the_estimator_cannot_take_is_named_before_the_first_refit(model, column):
    frame = wards(visit=column).drop(columns="ward")
    with pytest.raises(b3.InputError) as caught:
        b3.audit(model, frame, **SMALL)
    text = str(caught.value)
    assert f"'visit' ({frame['visit'].dtype})" in text
    assert "data.drop(columns=['visit'])" in text


def test_a_pipeline_that_encodes_texts_takes_them():
    model = make_pipeline(OneHotEncoder(handle_unknown="ignore"), LogisticRegression())
    assert b3.audit(model, wards(age=0.0), **SMALL).settings.features == ("age", "ward")
