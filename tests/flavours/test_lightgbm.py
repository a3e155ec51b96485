"""LightGBM models: trained again with the parameters that their files hold."""

import pickle
import warnings

import mlflow
import numpy as np
import pandas as pd
import pytest
from mlflow.models import infer_signature
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from mlflow_b3.data.losses import CLASSIFICATION
from mlflow_b3.errors import InputError, ModelError
from mlflow_b3.refit import Rows, load_model
from mlflow_b3.refit.sklearn import CloneLearner

lightgbm = pytest.importorskip("lightgbm", reason="needs the extra lightgbm")
pytestmark = pytest.mark.flavours

SMALL = {"num_leaves": 4, "min_child_samples": 5, "verbose": -1}
BAGGED = {"subsample": 0.5, "subsample_freq": 1, "colsample_bytree": 0.7, "random_state": 3}


def log_model(model, X, params=None):
    """Log a model with a run; return its two addresses."""
    with mlflow.start_run() as run:
        mlflow.log_params(params or {})
        info = mlflow.lightgbm.log_model(
            model,
            name="model",
            pip_requirements=["lightgbm"],
            signature=infer_signature(X),
            skops_trusted_types=[
                "collections.OrderedDict",
                "lightgbm.basic.Booster",
                f"lightgbm.sklearn.{type(model).__name__}",
            ],
        )
    return [info.model_uri, f"runs:/{run.info.run_id}/model"]


@pytest.fixture
def log(mlflow_store):
    """Return what logs a model into a store that nobody else sees."""
    del mlflow_store
    return log_model


def train_booster(X, target, rounds=7, **params):
    params = {"objective": "binary", **SMALL, **params}
    return lightgbm.train(params, lightgbm.Dataset(X, target), rounds)


def train_class(X, target, **params):
    return lightgbm.LGBMClassifier(n_estimators=7, **SMALL, **params).fit(X, target)


@pytest.mark.parametrize("train", [train_booster, train_class])
def test_model_is_audited_by_both_addresses(table, train, log):
    uris = log(train(table.X, table.binary, **BAGGED), table.X)
    report = table.audit_by_both(uris, table.binary)
    assert report.settings.refit == ("parameters" if train is train_booster else "clone")


@pytest.mark.parametrize("target", ["binary", "words", "three"])
def test_class_is_refitted_bit_for_bit(table, target, log):
    target = getattr(table, target)
    model = train_class(table.X, target, **BAGGED)
    learner = load_model(log(model, table.X)[0]).learner
    assert (learner.route, learner.task, learner.weighted) == ("clone", "classification", True)
    refitted = learner.fit(table.rows(target))
    np.testing.assert_array_equal(
        refitted.predict("probability", table.X), model.predict_proba(table.X)
    )
    np.testing.assert_array_equal(refitted.predict("label", table.X), model.predict(table.X))
    np.testing.assert_array_equal(
        refitted.predict("decision", table.X), model.predict(table.X, raw_score=True)
    )


def test_regressor_is_refitted_bit_for_bit(table, log):
    model = lightgbm.LGBMRegressor(n_estimators=7, objective="quantile", alpha=0.3, **SMALL)
    model.fit(table.X, table.values)
    learner = load_model(log(model, table.X)[0]).learner
    refitted = learner.fit(table.rows(table.values))
    np.testing.assert_array_equal(refitted.predict("value", table.X), model.predict(table.X))


@pytest.mark.parametrize(
    ("params", "target", "stochastic"),
    [
        ({}, "binary", False),
        ({"scale_pos_weight": 3, "monotone_constraints": [1, 0, -1]}, "binary", False),
        (BAGGED, "binary", True),
        ({"boosting": "dart", "drop_rate": 0.5}, "binary", True),
        ({"boosting": "rf", **BAGGED}, "binary", True),
        ({"data_sample_strategy": "goss"}, "binary", True),
        ({"extra_trees": True, "interaction_constraints": "[0,1],[2]"}, "binary", True),
        ({"objective": "multiclass", "num_class": 3, **BAGGED}, "three", True),
        ({"objective": "multiclassova", "num_class": 3}, "three", False),
        ({"objective": "regression", "linear_tree": True}, "values", False),
        ({"objective": "l1"}, "values", False),
        ({"objective": "huber", "alpha": 0.5}, "values", False),
        ({"objective": "poisson"}, "three", False),
        ({"objective": "tweedie", "tweedie_variance_power": 1.2}, "three", False),
    ],
)
def test_booster_is_refitted_bit_for_bit(table, params, target, stochastic, log):
    target = getattr(table, target)
    model = train_booster(table.X, target, **params)
    learner = load_model(log(model, table.X)[0]).learner
    assert (learner.route, learner.stochastic) == ("parameters", stochastic)
    pickle.dumps(learner)
    refitted = learner.fit(table.rows(target))
    if learner.task == "regression":
        np.testing.assert_array_equal(refitted.predict("value", table.X), model.predict(table.X))
        return
    given = refitted.predict("probability", table.X)
    np.testing.assert_array_equal(
        given[:, 1] if target is table.binary else given, model.predict(table.X)
    )
    np.testing.assert_array_equal(
        refitted.predict("decision", table.X), model.predict(table.X, raw_score=True)
    )


def test_booster_in_memory_is_refitted_bit_for_bit(table):
    model = train_booster(table.X, table.binary, eta=0.123456789, **BAGGED)
    refitted = load_model(model).learner.fit(table.rows(table.binary))
    np.testing.assert_array_equal(
        refitted.predict("probability", table.X)[:, 1], model.predict(table.X)
    )


def test_numbers_that_the_file_has_rounded_come_from_the_run(table, log):
    model = train_booster(table.X, table.binary, learning_rate=0.123456789)
    (uri, _) = log(model, table.X, {"lr": 0.123456789})
    refitted = load_model(uri).learner.fit(table.rows(table.binary))
    np.testing.assert_array_equal(
        refitted.predict("probability", table.X)[:, 1], model.predict(table.X)
    )
    learner = load_model(log(model, table.X)[0]).learner
    assert "LightGBM stores numbers with six digits: learning_rate may have had more" in (
        learner.notes
    )
    refitted = learner.fit(table.rows(table.binary))
    np.testing.assert_allclose(
        refitted.predict("probability", table.X)[:, 1], model.predict(table.X), rtol=1e-5
    )


# ---------------------------------------------------------------- early stopping


def stopping(table):
    return {
        "valid_sets": [lightgbm.Dataset(table.X[:40], 1 - table.binary[:40])],
        "callbacks": [lightgbm.early_stopping(2, verbose=False)],
    }


def fit_stopped(table, X=None, **params):
    X = table.X if X is None else X
    model = lightgbm.LGBMClassifier(n_estimators=60, **SMALL, **params)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # newer versions call the validation set otherwise
        return model.fit(
            X,
            table.binary,
            eval_set=[(X[:40], 1 - table.binary[:40])],
            callbacks=[] if params else [lightgbm.early_stopping(2, verbose=False)],
        )


def test_booster_that_stopped_early_is_refitted_with_its_best_rounds(table, log):
    rows = lightgbm.Dataset(table.X, table.binary)
    model = lightgbm.train({"objective": "binary", **SMALL}, rows, 60, **stopping(table))
    learner = load_model(log(model, table.X)[0]).learner
    assert model.best_iteration < 60
    assert any(
        f"stopped early, before its 60 rounds; refits use the {model.best_iteration}" in note
        for note in learner.notes
    )
    np.testing.assert_array_equal(
        learner.fit(table.rows(table.binary)).predict("probability", table.X)[:, 1],
        model.predict(table.X),
    )


@pytest.mark.parametrize("params", [{}, {"early_stopping_round": 2}], ids=["callback", "parameter"])
def test_class_that_stopped_early_is_refitted_with_its_best_rounds(table, params, log):
    model = fit_stopped(table, **params)
    learner = load_model(log(model, table.X)[0]).learner
    note = f"refits use the {model.best_iteration_} rounds that its early stopping chose"
    assert note in learner.notes[0]
    np.testing.assert_array_equal(
        learner.fit(table.rows(table.binary)).predict("probability", table.X),
        model.predict_proba(table.X),
    )


def test_class_that_stopped_early_in_a_pipeline_is_refitted_too(table):
    scaler = StandardScaler().set_output(transform="pandas").fit(table.X)
    pipeline = make_pipeline(scaler, fit_stopped(table, scaler.transform(table.X)))
    learner = CloneLearner(pipeline)
    np.testing.assert_array_equal(
        learner.fit(table.rows(table.binary)).predict("probability", table.X),
        pipeline.predict_proba(table.X),
    )
    assert "lgbmclassifier__n_estimators" in learner.notes[0]


# ---------------------------------------------------------------- labels, weights, seeds, columns


@pytest.mark.parametrize("words", [True, False])
@pytest.mark.parametrize("native", [True, False])
def test_resample_may_lack_a_class(table, native, words):
    target = np.array(["a", "b", "c"])[table.three] if words else table.three
    model = (
        train_booster(table.X, table.three, objective="multiclass", num_class=3)
        if native
        else train_class(table.X, target)
    )
    some = table.three != 1
    rows = Rows(X=table.X[some], target=target[some], ids=np.arange(some.sum()))
    refitted = load_model(model).learner.fit(rows, 1)
    for loss in CLASSIFICATION.values():
        assert np.isfinite(loss.evaluate(refitted, table.X, target)).all()
    assert set(refitted.predict("label", table.X)) <= set(target[some])


@pytest.mark.parametrize("params", [{}, {"num_class": 3}])
def test_resample_may_lack_a_class_that_the_parameters_count(table, params):
    model = train_class(table.X, table.three, objective="multiclass", **params)
    learner = load_model(model).learner
    np.testing.assert_array_equal(
        learner.fit(table.rows(table.three)).predict("probability", table.X),
        model.predict_proba(table.X),
    )
    some = table.three != 1
    rows = Rows(X=table.X[some], target=table.three[some], ids=np.arange(some.sum()))
    refitted = learner.fit(rows, 1)
    assert np.isfinite(CLASSIFICATION["log"].evaluate(refitted, table.X, table.three)).all()


def test_words_are_coded_in_sorted_order_for_a_booster(table):
    codes = np.unique(table.words, return_inverse=True)[1]
    learner = load_model(train_booster(table.X, codes)).learner
    refitted = learner.fit(table.rows(table.words))
    assert refitted.classes.tolist() == ["sick", "well"]
    np.testing.assert_array_equal(
        refitted.predict("probability", table.X), learner.original.predict("probability", table.X)
    )


@pytest.mark.parametrize("train", [train_booster, train_class])
def test_weights_and_seeds_change_the_refit(table, train):
    learner = load_model(train(table.X, table.binary, **BAGGED, bagging_seed=5)).learner
    table.check_weights_and_seeds(learner)


def with_sites(table):
    rng = np.random.default_rng(1)
    site = pd.Categorical(rng.choice(list("zuvw"), len(table.X)), categories=list("zuvw"))
    return table.X.assign(site=site, ward=pd.Categorical(rng.integers(3, 9, len(table.X))))


CATEGORIES = {"min_data_per_group": 1, "cat_smooth": 1, "max_cat_to_onehot": 1}


@pytest.mark.parametrize("train", [train_booster, train_class])
def test_categories_have_the_order_of_the_training_again(table, train, log):
    X = with_sites(table)
    (uri, _) = log(train(X, table.binary, **CATEGORIES), X)
    learner = load_model(uri).learner
    # as a file has them: words and numbers
    plain = learner.represent(X.astype({"site": object, "ward": int}), np.arange(len(X)))
    np.testing.assert_array_equal(
        learner.fit(table.rows(table.binary, plain)).predict("probability", plain),
        learner.original.predict("probability", X),
    )


@pytest.mark.parametrize("native", [True, False])
def test_columns_named_as_categories_in_training_are_remembered(table, native, log):
    X = table.X.assign(ward=np.random.default_rng(1).integers(0, 9, len(table.X)))
    params = {**SMALL, **CATEGORIES}
    if native:
        rows = lightgbm.Dataset(X, table.binary, categorical_feature=["ward"])
        model = lightgbm.train({"objective": "binary", **params}, rows, 7)
    else:
        model = lightgbm.LGBMClassifier(n_estimators=7, **params)
        model.fit(X, table.binary, categorical_feature=["ward"])
    learner = load_model(log(model, X)[0]).learner
    np.testing.assert_array_equal(
        learner.fit(table.rows(table.binary, X)).predict("probability", X),
        learner.original.predict("probability", X),
    )


def test_categories_that_cannot_be_told_apart_are_an_error(table):
    X = with_sites(table)
    rows = lightgbm.Dataset(X, table.binary, categorical_feature=["ward"])
    learner = load_model(lightgbm.train({"objective": "binary", **SMALL}, rows, 3)).learner
    with pytest.raises(ModelError, match=r"2 columns of dtype category, .* 1 columns"):
        learner.represent(X.astype({"site": object, "ward": int}), np.arange(len(X)))


@pytest.mark.parametrize("train", [train_booster, train_class])
def test_model_trained_on_an_array_is_given_one(table, train, log):
    X = table.X.to_numpy()
    table.check_given_an_array(load_model(log(train(X, table.binary), X)[0]))


# ---------------------------------------------------------------- what cannot be refitted


def test_objective_of_ones_own_needs_a_trainer(table):
    def squares(margin, rows):
        return margin - rows.get_label(), np.ones(len(margin))

    model = train_booster(table.X, table.values, objective=squares)
    with pytest.raises(ModelError, match=r"custom objective, .* Give a trainer"):
        load_model(model)


def test_ranking_is_refused(table):
    rows = lightgbm.Dataset(table.X, table.binary, group=[60, 60])
    model = lightgbm.train({"objective": "lambdarank", **SMALL}, rows, 3)
    with pytest.raises(ModelError, match="objective='lambdarank' is neither classification nor"):
        load_model(model)
    ranker = lightgbm.LGBMRanker(n_estimators=3, **SMALL)
    with pytest.raises(ModelError, match="LGBMRanker is neither a classifier nor a regressor"):
        load_model(ranker.fit(table.X, table.binary, group=[60, 60]))


def test_there_are_no_options(table):
    with pytest.raises(InputError, match="'num_leaves' not known for this model"):
        load_model(train_booster(table.X, table.binary), options={"num_leaves": 3})
