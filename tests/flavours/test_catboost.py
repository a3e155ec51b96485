"""CatBoost models: trained again with the parameters that their files hold."""

import mlflow
import numpy as np
import pytest
from mlflow.models import infer_signature
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import mlflow_b3 as b3
from mlflow_b3.data.losses import CLASSIFICATION
from mlflow_b3.errors import ModelError
from mlflow_b3.refit import Rows, load_model
from mlflow_b3.refit.sklearn import CloneLearner

catboost = pytest.importorskip("catboost", reason="needs the extra catboost")
pytestmark = pytest.mark.flavours

SMALL = {"iterations": 7, "depth": 2, "verbose": 0, "allow_writing_files": False}


def log_model(model, X):
    """Log a model with a run; return its two addresses."""
    with mlflow.start_run() as run:
        info = mlflow.catboost.log_model(
            model, name="model", pip_requirements=["catboost"], signature=infer_signature(X)
        )
    return [info.model_uri, f"runs:/{run.info.run_id}/model"]


@pytest.fixture
def log(mlflow_store):
    """Return what logs a model into a store that nobody else sees."""
    del mlflow_store
    return log_model


def train_native(X, target, **params):
    return catboost.CatBoost({"loss_function": "Logloss", **SMALL, **params}).fit(X, target)


def train_class(X, target, **params):
    return catboost.CatBoostClassifier(**{**SMALL, **params}).fit(X, target)


@pytest.mark.parametrize("train", [train_native, train_class])
def test_model_is_audited_by_both_addresses(table, train, tmp_path, capfd, log):
    uris = log(train(table.X, table.words), table.X)
    before = sorted(tmp_path.iterdir())
    capfd.readouterr()
    report = table.audit_by_both(uris, table.words)
    assert report.settings.refit == ("parameters" if train is train_native else "clone")
    assert sorted(tmp_path.iterdir()) == before  # CatBoost writes a folder unless told not to
    assert "learn" not in capfd.readouterr().out


@pytest.mark.parametrize("target", ["binary", "words", "three"])
@pytest.mark.parametrize(
    "params",
    [
        {},
        {"random_seed": 4, "bootstrap_type": "Bernoulli", "subsample": 0.5, "rsm": 0.7},
        {"auto_class_weights": "Balanced", "per_float_feature_quantization": ["1:border_count=9"]},
        {"n_estimators": 5, "learning_rate": 0.2, "silent": True},
    ],
    ids=["defaults", "sampling", "lists", "aliases"],
)
def test_classifier_is_refitted_bit_for_bit(table, target, params, log):
    target = getattr(table, target)
    given = {name: value for name, value in SMALL.items() if name not in ("iterations", "verbose")}
    given |= {"n_estimators": 7, "silent": True, **params}
    model = catboost.CatBoostClassifier(**given).fit(table.X, target)
    for learner in (load_model(log(model, table.X)[0]).learner, load_model(model).learner):
        assert (learner.route, learner.task) == ("clone", "classification")
        assert learner.stochastic
        assert learner.weighted
        refitted = learner.fit(table.rows(target))
        np.testing.assert_array_equal(
            refitted.predict("probability", table.X), model.predict_proba(table.X)
        )
        np.testing.assert_array_equal(refitted.predict("label", table.X), model.predict(table.X))
        np.testing.assert_array_equal(
            refitted.predict("decision", table.X),
            model.predict(table.X, prediction_type="RawFormulaVal"),
        )


@pytest.mark.parametrize(
    "params",
    [
        {"loss_function": "RMSE", "monotone_constraints": [1, 0, -1]},
        {"loss_function": "MAE"},
        {"loss_function": "Quantile:alpha=0.3"},
        {"loss_function": "Huber:delta=1", "monotone_constraints": {"age": 1}},
    ],
)
@pytest.mark.parametrize("native", [True, False])
def test_regression_is_refitted_bit_for_bit(table, params, native, log):
    make = catboost.CatBoost if native else lambda params: catboost.CatBoostRegressor(**params)
    model = make({**SMALL, **params}).fit(table.X, table.values)
    learner = load_model(log(model, table.X)[0]).learner
    assert (learner.route, learner.task) == ("parameters" if native else "clone", "regression")
    refitted = learner.fit(table.rows(table.values))
    np.testing.assert_array_equal(refitted.predict("value", table.X), model.predict(table.X))


@pytest.mark.parametrize(
    ("loss", "target"),
    [
        ("Logloss", "binary"),
        ("Logloss", "words"),
        ("MultiClass", "three"),
        ("CrossEntropy", "binary"),
    ],
)
def test_native_classification_is_refitted_bit_for_bit(table, loss, target, log):
    target = getattr(table, target)
    model = train_native(table.X, target, loss_function=loss, random_seed=4)
    for learner in (load_model(log(model, table.X)[0]).learner, load_model(model).learner):
        assert (learner.route, learner.task) == ("parameters", "classification")
        refitted = learner.fit(table.rows(target))
        for predictor in (refitted, learner.original):
            np.testing.assert_array_equal(
                predictor.predict("probability", table.X),
                model.predict(table.X, prediction_type="Probability"),
            )
            np.testing.assert_array_equal(
                predictor.predict("decision", table.X), model.predict(table.X)
            )


# ---------------------------------------------------------------- early stopping


@pytest.mark.parametrize("native", [True, False])
def test_model_that_stopped_early_is_refitted_with_its_rounds_and_learning_rate(table, native, log):
    params = {**SMALL, "iterations": 60, "early_stopping_rounds": 3, "loss_function": "Logloss"}
    make = catboost.CatBoost if native else lambda params: catboost.CatBoostClassifier(**params)
    model = make(params).fit(table.X, table.binary, eval_set=(table.X[:40], 1 - table.binary[:40]))
    assert model.tree_count_ < 60
    for learner in (load_model(log(model, table.X)[0]).learner, load_model(model).learner):
        assert any(
            f"refits use the {model.tree_count_} rounds that its early stopping chose" in note
            for note in learner.notes
        )
        np.testing.assert_array_equal(
            learner.fit(table.rows(table.binary)).predict("decision", table.X),
            model.predict(table.X, prediction_type="RawFormulaVal"),
        )


def test_validation_set_without_an_effect_leaves_the_learning_rate(table, log):
    model = catboost.CatBoostClassifier(**SMALL).fit(
        table.X, table.binary, eval_set=(table.X[:40], table.binary[:40])
    )
    learner = load_model(log(model, table.X)[0]).learner
    np.testing.assert_array_equal(
        learner.fit(table.rows(table.binary)).predict("probability", table.X),
        model.predict_proba(table.X),
    )


def test_classifier_in_a_pipeline_is_refitted_quietly_and_with_every_seed(table, tmp_path, capfd):
    model = catboost.CatBoostClassifier(iterations=7, depth=2, train_dir=str(tmp_path / "own"))
    pipeline = make_pipeline(StandardScaler(), model).fit(table.X, table.words)
    files = sorted(tmp_path.rglob("*"))
    capfd.readouterr()
    learner = CloneLearner(pipeline)
    plain, first, second = (
        learner.fit(table.rows(table.words), seed).predict("probability", table.X)
        for seed in (None, 1, 2)
    )
    np.testing.assert_array_equal(plain, pipeline.predict_proba(table.X))
    assert not np.array_equal(first, second)
    assert sorted(tmp_path.rglob("*")) == files
    assert capfd.readouterr().out == ""


# ---------------------------------------------------------------- labels, weights, seeds, columns


@pytest.mark.parametrize("train", [train_native, train_class])
@pytest.mark.parametrize("words", [True, False])
def test_resample_may_lack_a_class(table, train, words, log):
    target = np.array(["a", "b", "c"])[table.three] if words else table.three
    model = train(table.X, target, loss_function="MultiClass")
    some = table.three != 1
    rows = Rows(X=table.X[some], target=target[some], ids=np.arange(some.sum()))
    refitted = load_model(log(model, table.X)[0]).learner.fit(rows, 1)
    for loss in CLASSIFICATION.values():
        assert np.isfinite(loss.evaluate(refitted, table.X, target)).all()


def test_weights_and_seeds_change_the_refit(table):
    learner = load_model(train_class(table.X, table.binary)).learner
    table.check_weights_and_seeds(learner)


@pytest.mark.parametrize("where", ["parameters", "fit", "pool"])
def test_columns_with_categories_are_remembered(table, where, log):
    rng = np.random.default_rng(1)
    X = table.X.assign(site=rng.choice(list("zuvwxy"), len(table.X)), ward=rng.integers(0, 9, 120))
    columns = ["site", "ward"]
    if where == "parameters":
        model = catboost.CatBoostClassifier(**SMALL, cat_features=columns).fit(X, table.binary)
    elif where == "fit":
        model = catboost.CatBoostClassifier(**SMALL).fit(X, table.binary, cat_features=columns)
    else:
        pool = catboost.Pool(X, table.binary, cat_features=columns)
        model = catboost.train(pool, {**SMALL, "loss_function": "Logloss"})
    (uri, _) = log(model, X)
    learner = load_model(uri).learner
    assert learner.notes[0] == "categorical columns, from the model itself: site, ward"
    np.testing.assert_array_equal(
        learner.fit(table.rows(table.binary, X)).predict("probability", X),
        learner.original.predict("probability", X),
    )
    if where == "fit":
        report = b3.audit(
            uri,
            X.assign(y=table.binary, cluster=table.cluster),
            target="y",
            cluster="cluster",
            p0=0.1,
            folds=3,
            budget=70,
        )
        assert report.e0 is not None


@pytest.mark.parametrize("train", [train_native, train_class])
def test_model_trained_on_an_array_is_given_one(table, train, log):
    X = table.X.to_numpy()
    table.check_given_an_array(load_model(log(train(X, table.binary), X)[0]))


def test_model_that_was_not_fitted_is_taken(table):
    for model in (
        catboost.CatBoostClassifier(**SMALL),
        catboost.CatBoost({**SMALL, "loss_function": "Logloss"}),
    ):
        refitted = load_model(model).learner.fit(table.rows(table.words))
        assert refitted.classes.tolist() == ["sick", "well"]


# ---------------------------------------------------------------- what cannot be refitted


class Squares:
    """A loss of the user's."""

    def calc_ders_range(self, approxes, targets, weights):
        del weights
        return [(goal - value, -1) for value, goal in zip(approxes, targets, strict=True)]


@pytest.mark.filterwarnings("ignore:Failed to import numba")
def test_loss_of_ones_own_needs_a_trainer(table, log):
    model = train_native(table.X, table.values, loss_function=Squares(), eval_metric="RMSE")
    with pytest.raises(ModelError, match=r"custom loss, .* Give a trainer"):
        load_model(log(model, table.X)[0])


def test_ranking_is_refused(table, log):
    pool = catboost.Pool(table.X, table.binary, group_id=np.arange(len(table.X)) // 10)
    model = catboost.CatBoostRanker(**SMALL).fit(pool)
    with pytest.raises(ModelError, match="loss_function='YetiRank' is neither classification nor"):
        load_model(log(model, table.X)[0])
