"""Spark ML: the fitted stages of a pipeline become estimators again, and are fitted to other rows.

Starting Spark takes seconds, and so do fits: there is one session, and few of them.
"""

import gc
import os
import shutil
import sys

import mlflow
import numpy as np
import pytest

import mlflow_b3 as b3
from mlflow_b3.auditing.audit import run_leakage_test
from mlflow_b3.errors import InputError, ModelError, PredictionError
from mlflow_b3.refit import CannotRefit, load_model
from mlflow_b3.refit.learner import Rows

pytestmark = [
    pytest.mark.flavours,
    pytest.mark.skipif(
        shutil.which("java") is None and "JAVA_HOME" not in os.environ, reason="Spark needs Java"
    ),
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning"),
]
pytest.importorskip("pyspark", reason="needs the extra spark")
classification = pytest.importorskip("pyspark.ml.classification")
feature = pytest.importorskip("pyspark.ml.feature")
regression = pytest.importorskip("pyspark.ml.regression")
tuning = pytest.importorskip("pyspark.ml.tuning")
ml = pytest.importorskip("pyspark.ml")

FEATURES = ["age", "bmi", "glucose"]


@pytest.fixture(scope="module", autouse=True)
def _main_file():
    """Give workers of the tests a main file: pyspark ends processes without one, as doctests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys.modules["__main__"], "__file__", __file__, raising=False)
        yield


@pytest.fixture(scope="module")
def data(table):
    rng = np.random.default_rng(1)
    n = len(table.X)
    return table.X.assign(
        words=table.words,
        three=table.three,
        values=table.values,
        weight=rng.uniform(0.5, 2, n),
        ward=rng.choice(["a", "b", "c"], n),
        cluster=table.cluster,
    )


@pytest.fixture(scope="module")
def spark():
    """Start the small session that an audit would start by itself."""
    from mlflow_b3.refit.spark import session

    with pytest.MonkeyPatch.context() as patch:
        # these tests are over before thorough compilation would pay
        patch.setenv("JAVA_TOOL_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        started = session()
    assert started.sparkContext.master == "local[1]"
    assert session() is started, "the active session is kept"
    yield started
    started.stop()


@pytest.fixture(scope="module")
def rows(spark, data):
    """Give the table to Spark as refits do, in one partition: numbers are added in one order."""
    return spark.createDataFrame(data).coalesce(1)


def assembler(*columns, output="features"):
    return feature.VectorAssembler(inputCols=list(columns), outputCol=output)


@pytest.fixture(scope="module")
def logistic(rows):
    """Words are indexed, features scaled, and predictions turned into words again."""
    stages = [
        feature.StringIndexer(inputCol="words", outputCol="label"),
        assembler(*FEATURES, output="raw"),
        feature.StandardScaler(inputCol="raw", outputCol="features", withMean=True),
        classification.LogisticRegression(regParam=0.05, maxIter=5),
        feature.IndexToString(inputCol="prediction", outputCol="said", labels=["no", "labels"]),
    ]
    return ml.Pipeline(stages=stages).fit(rows)


@pytest.fixture(scope="module")
def linear(rows):
    stages = [
        assembler(*FEATURES),
        regression.LinearRegression(labelCol="values", solver="normal", regParam=0.1),
    ]
    return ml.Pipeline(stages=stages).fit(rows)


def refit(learner, data, target, weight=None, seed=None):
    X, ids = data[list(learner.inputs.columns)], np.arange(len(data))
    given = None if weight is None else data[weight].to_numpy()
    return learner.fit(Rows(X=X, target=data[target].to_numpy(), ids=ids, weight=given), seed)


def assert_same(refitted, learner, data, *kinds):
    X = data[list(learner.inputs.columns)]
    for kind in kinds:
        np.testing.assert_array_equal(
            refitted.predict(kind, X), learner.original.predict(kind, X), err_msg=kind
        )


def test_pipeline_of_words_is_the_original_bit_for_bit(logistic, data):
    learner = load_model(logistic).learner
    assert learner.name == "StringIndexer → VectorAssembler → StandardScaler → LogisticRegression"
    assert (learner.route, learner.task, learner.strength) == ("clone", "classification", "full")
    assert learner.inputs.columns == tuple(FEATURES)
    assert not learner.parallel
    assert "refits run one after another in the Spark session, for any n_jobs" in learner.notes
    refitted = refit(learner, data, "words")
    assert set(refitted.classes) == {"sick", "well"}
    assert_same(refitted, learner, data, "label", "probability", "decision")
    shifted = data.assign(age=data["age"] + 100)
    elsewhere = refit(learner, shifted, "words")
    np.testing.assert_allclose(
        elsewhere.predict("probability", shifted[FEATURES]),
        refitted.predict("probability", data[FEATURES]),
        atol=1e-8,
        err_msg="the scaler was fitted again too",
    )


def test_weights_and_words_among_the_features(rows, data):
    stages = [
        feature.StringIndexer(inputCol="ward", outputCol="number"),
        feature.OneHotEncoder(inputCol="number", outputCol="which"),
        assembler("age", "which"),
        regression.LinearRegression(labelCol="values", weightCol="weight", solver="normal"),
    ]
    original = ml.Pipeline(stages=stages).fit(rows)
    learner = load_model(original).learner
    assert learner.inputs.columns == ("ward", "age")
    assert (learner.task, learner.weighted, learner.weight_required) == ("regression", True, True)
    assert_same(refit(learner, data, "values", weight="weight"), learner, data, "value")
    with pytest.raises(InputError, match="was trained with weights"):
        b3.audit(original, data, target="values", cluster="cluster", folds=2, budget=40)


def test_forest_of_three_classes_keeps_its_seed_unless_given_one(rows, data):
    forest = classification.RandomForestClassifier(labelCol="three", numTrees=2, maxDepth=2, seed=7)
    original = ml.Pipeline(stages=[assembler(*FEATURES), forest]).fit(rows)
    learner = load_model(original).learner
    assert learner.stochastic
    assert_same(refit(learner, data, "three"), learner, data, "label", "probability")
    other = refit(learner, data, "three", seed=1)
    assert not np.array_equal(
        other.predict("probability", data[FEATURES]),
        learner.original.predict("probability", data[FEATURES]),
    )
    with pytest.raises(PredictionError, match=r"\['zero_one', 'log', 'brier'\]"):
        other.predict("decision", data[FEATURES])


@pytest.mark.filterwarnings("ignore:unclosed running multiprocessing pool:ResourceWarning")
def test_one_against_the_rest_within_a_search(rows, data):
    inner = classification.LogisticRegression(maxIter=1)
    rest = classification.OneVsRest(classifier=inner, labelCol="three")
    original = ml.Pipeline(stages=[assembler(*FEATURES), rest]).fit(rows)
    search = tuning.TrainValidationSplitModel(bestModel=original)
    learner = load_model(ml.PipelineModel(stages=[search])).learner
    assert "the search is not repeated" in learner.notes[2]
    assert_same(refit(learner, data, "three"), learner, data, "label", "decision")
    gc.collect()  # pyspark leaves the pool to Python, which complains


def test_buckets_that_may_have_been_learned_make_it_a_lower_bound(linear):
    splits = [-float("inf"), 0.0, float("inf")]
    buckets = feature.Bucketizer(splits=splits, inputCol="days", outputCol="age")
    learner = load_model(ml.PipelineModel(stages=[buckets, *linear.stages])).learner
    assert learner.strength == "lower-bound"
    assert learner.inputs.columns == ("days", "bmi", "glucose")
    assert any("QuantileDiscretizer" in note for note in learner.notes)
    fixed = buckets.copy().setSplits([0.0, 1.0, 2.0])
    learner = load_model(ml.PipelineModel(stages=[fixed, *linear.stages])).learner
    assert learner.strength == "full"


def test_what_cannot_be_refitted_says_why(linear):
    class HomeMadeModel(ml.Model):
        def _transform(self, dataset):
            return dataset

    with pytest.raises(CannotRefit, match="the estimator of its stage HomeMadeModel is not known"):
        load_model(ml.PipelineModel(stages=[HomeMadeModel(), *linear.stages]))
    with pytest.raises(CannotRefit, match="no stage of the pipeline learns a label"):
        load_model(ml.PipelineModel(stages=[assembler("age")]))
    with pytest.raises(ModelError, match="starts from vectors, column 'features'"):
        load_model(ml.PipelineModel(stages=linear.stages[1:]))


def test_rows_that_the_pipeline_drops_are_an_error(linear, data):
    skipping = linear.stages[0].copy().setHandleInvalid("skip")
    learner = load_model(ml.PipelineModel(stages=[skipping, linear.stages[1]])).learner
    gaps = data[FEATURES].assign(age=data["age"].where(data["age"] > 0))
    with pytest.raises(ModelError, match=r"drops \d+ of 120 rows"):
        learner.original.predict("value", gaps)


@pytest.mark.usefixtures("mlflow_store")
def test_audit_of_a_logged_pipeline_by_both_forms_of_uri(linear, data, tmp_path):
    with mlflow.start_run() as run:
        mlflow.spark.log_model(
            linear,
            artifact_path="model",
            registered_model_name="wards",
            pip_requirements=["pyspark"],
            dfs_tmpdir=str(tmp_path / "dfs"),
        )
    settings = {"target": "values", "cluster": "cluster", "folds": 2, "n_jobs": 2}
    report = b3.audit("models:/wards/1", data, budget=40, **settings)
    assert report.settings.refit == "clone"
    assert report.settings.features == tuple(FEATURES)
    uri = f"runs:/{run.info.run_id}/model"
    assert 0 <= run_leakage_test(uri, data, budget=4, **settings).pvalue <= 1
    learner = load_model(uri).learner
    assert_same(refit(learner, data, "values"), learner, data, "value")
    served = mlflow.pyfunc.load_model(uri).predict(data[FEATURES])
    np.testing.assert_array_equal(learner.original.predict("value", data[FEATURES]), served)
