"""XGBoost models: trained again with hyper-parameters that their files do not hold."""

import mlflow
import numpy as np
import pandas as pd
import pytest
from mlflow.models import infer_signature
from sklearn.base import clone
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import mlflow_b3 as b3
from mlflow_b3.errors import InputError, ModelError
from mlflow_b3.losses import CLASSIFICATION
from mlflow_b3.refit import Rows, load_model
from mlflow_b3.refit.sklearn import CloneLearner
from mlflow_b3.refit.xgboost_params import NAMES, read_value

xgboost = pytest.importorskip("xgboost", reason="needs the extra xgboost")
pytestmark = [pytest.mark.flavours, pytest.mark.usefixtures("mlflow_store")]

SMALL = {"max_depth": 2, "subsample": 0.5, "colsample_bytree": 0.7, "random_state": 3}


@pytest.fixture
def _autologging():
    """Log parameters by MLflow's autologging, and nothing else."""
    mlflow.xgboost.autolog(log_models=False, log_datasets=False, silent=True)
    yield
    mlflow.xgboost.autolog(disable=True)


def log(train, X, params=None):
    """Train and log a model in one run; return the model and its two addresses."""
    with mlflow.start_run() as run:
        model = train()
        mlflow.log_params(params or {})
        info = mlflow.xgboost.log_model(
            model, name="model", pip_requirements=["xgboost"], signature=infer_signature(X)
        )
    return model, [info.model_uri, f"runs:/{run.info.run_id}/model"]


def train_booster(X, target, rounds=7, **params):
    params = {"objective": "binary:logistic", **params}
    return xgboost.train(params, xgboost.DMatrix(X, target, enable_categorical=True), rounds)


@pytest.mark.usefixtures("_autologging")
def test_sklearn_class_is_refitted_with_autologged_parameters_bit_for_bit(table):
    model, uris = log(
        lambda: xgboost.XGBClassifier(n_estimators=7, **SMALL).fit(table.X, table.binary), table.X
    )
    for uri in uris:
        learner = load_model(uri).learner
        assert (learner.route, learner.task, learner.strength) == (
            "clone",
            "classification",
            "full",
        )
        refitted = learner.fit(table.rows(table.binary))
        for kind in ("label", "probability", "decision"):
            np.testing.assert_array_equal(
                refitted.predict(kind, table.X), learner.original.predict(kind, table.X)
            )
        np.testing.assert_array_equal(
            refitted.predict("probability", table.X), model.predict_proba(table.X)
        )


@pytest.mark.usefixtures("_autologging")
@pytest.mark.parametrize("loss", ["log", "hinge"])
def test_sklearn_class_is_audited_by_both_addresses(table, loss):
    _, uris = log(
        lambda: xgboost.XGBClassifier(n_estimators=7, **SMALL).fit(table.X, table.binary), table.X
    )
    first, second = (
        b3.audit(
            uri,
            table.frame(table.binary),
            target="y",
            cluster="cluster",
            loss=loss,
            p0=0.1,
            folds=3,
            budget=70,
        )
        for uri in uris
    )
    assert first.e0 == second.e0
    assert first.settings.refit == "clone"
    assert any("max_depth=2" in note for note in first.settings.refit_notes)


@pytest.mark.usefixtures("_autologging")
def test_booster_is_audited_with_the_same_numbers_by_any_number_of_workers(table):
    _, (uri, _) = log(lambda: train_booster(table.X, table.three > 1, **SMALL), table.X)
    one, two = (
        b3.audit(
            uri,
            table.frame(table.words),
            target="y",
            cluster="cluster",
            p0=0.1,
            folds=3,
            budget=70,
            n_jobs=workers,
        )
        for workers in (1, 2)
    )
    assert one.e0 == two.e0
    assert one.settings.refit == "parameters"


@pytest.mark.usefixtures("_autologging")
@pytest.mark.parametrize(
    ("objective", "target", "kinds", "more"),
    [
        ("binary:logistic", "binary", ["label", "probability", "decision"], {}),
        ("binary:logistic", "binary", ["probability"], {"scale_pos_weight": 3, "base_score": 0.3}),
        ("binary:logitraw", "binary", ["label", "decision"], {}),
        ("binary:hinge", "binary", ["label", "decision"], {}),
        ("multi:softprob", "three", ["label", "probability", "decision"], {"num_class": 3}),
        ("multi:softmax", "three", ["label", "decision"], {"num_class": 3}),
        ("reg:squarederror", "values", ["value"], {}),
        ("reg:absoluteerror", "values", ["value"], {}),
        ("reg:quantileerror", "values", ["value"], {"quantile_alpha": 0.3}),
        ("reg:tweedie", "three", ["value"], {"tweedie_variance_power": 1.3}),
        ("count:poisson", "three", ["value"], {}),
        ("reg:squarederror", "values", ["value"], {"booster": "dart", "rate_drop": 0.3}),
        ("reg:squarederror", "values", ["value"], {"num_parallel_tree": 3}),
        ("binary:logistic", "binary", ["probability"], {"monotone_constraints": "(1,0,-1)"}),
        ("binary:logistic", "binary", ["probability"], {"monotone_constraints": {"age": 1}}),
        ("binary:logistic", "binary", ["probability"], {"interaction_constraints": "[[0,1]]"}),
        (
            "binary:logistic",
            "binary",
            ["probability"],
            {"interaction_constraints": [["age", "bmi"]], "grow_policy": "lossguide"},
        ),
    ],
)
def test_booster_is_refitted_bit_for_bit(table, objective, target, kinds, more):
    target = getattr(table, target)
    model, (uri, _) = log(
        lambda: train_booster(table.X, target, **SMALL, **more, objective=objective), table.X
    )
    learner = load_model(uri).learner
    assert learner.route == "parameters"
    assert learner.stochastic
    refitted = learner.fit(table.rows(target))
    for kind in kinds:
        np.testing.assert_array_equal(
            refitted.predict(kind, table.X), learner.original.predict(kind, table.X)
        )
    if kinds != ["label", "decision"]:
        given = refitted.predict(kinds[-2 if "decision" in kinds else -1], table.X)
        given = given[:, 1] if target is table.binary else given
        np.testing.assert_array_equal(given, model.predict(xgboost.DMatrix(table.X)))


@pytest.mark.usefixtures("_autologging")
def test_linear_booster_is_refitted(table):
    model, (uri, _) = log(
        lambda: train_booster(
            table.X,
            table.values,
            objective="reg:squarederror",
            booster="gblinear",
            updater="coord_descent",
        ),
        table.X,
    )
    refitted = load_model(uri).learner.fit(table.rows(table.values))
    np.testing.assert_allclose(
        refitted.predict("value", table.X), model.predict(xgboost.DMatrix(table.X)), rtol=1e-6
    )


@pytest.mark.usefixtures("_autologging")
def test_regressor_and_forest_are_refitted_bit_for_bit(table):
    for make in (
        lambda: xgboost.XGBRegressor(n_estimators=7, **SMALL, objective="reg:absoluteerror"),
        lambda: xgboost.XGBRegressor(n_estimators=7, booster="dart", rate_drop=0.3, max_depth=3),
    ):
        model, (uri, _) = log(lambda: make().fit(table.X, table.values), table.X)  # noqa: B023
        refitted = load_model(uri).learner.fit(table.rows(table.values))
        np.testing.assert_array_equal(refitted.predict("value", table.X), model.predict(table.X))
    # autologging says nothing about forests; the number of trees is in the file
    model, (uri, _) = log(
        lambda: xgboost.XGBRFRegressor(n_estimators=7, max_depth=3).fit(table.X, table.values),
        table.X,
    )
    learner = load_model(uri, options={"max_depth": 3}).learner
    refitted = learner.fit(table.rows(table.values))
    np.testing.assert_array_equal(refitted.predict("value", table.X), model.predict(table.X))


# ---------------------------------------------------------------- where the parameters come from


def test_model_without_logged_parameters_is_refused_with_how_to_give_them(table):
    for train in (
        lambda: xgboost.XGBClassifier(n_estimators=7, **SMALL).fit(table.X, table.binary),
        lambda: train_booster(table.X, table.binary, **SMALL),
    ):
        _, (uri, _) = log(train, table.X, {"random_state": 3, "n_estimators": 7})
        with pytest.raises(ModelError) as caught:
            load_model(uri)
        assert f"none were logged with the run of {uri!r}" in str(caught.value)
        assert "refit_options={'params': {'max_depth': 3" in str(caught.value)
        assert "--refit-option max_depth=3" in str(caught.value)


@pytest.mark.parametrize(
    "options",
    [
        {"params": {"objective": "binary:logistic", "nthread": 4, **SMALL}},
        SMALL,
        {name: str(value) for name, value in SMALL.items()},
        {"params": {"max_depth": 2, "seed": 3}, "subsample": 0.5, "colsample_bytree": 0.7},
    ],
    ids=["params", "flat", "text", "both"],
)
def test_parameters_are_given_as_options(table, options):
    for train in (
        lambda: xgboost.XGBClassifier(n_estimators=7, **SMALL).fit(table.X, table.binary),
        lambda: train_booster(table.X, table.binary, **SMALL),
    ):
        _, (uri, _) = log(train, table.X)
        learner = load_model(uri, options=options).learner
        np.testing.assert_array_equal(
            learner.fit(table.rows(table.binary)).predict("probability", table.X),
            learner.original.predict("probability", table.X),
        )
        assert any(note.startswith("from refit_options: colsample") for note in learner.notes)


def test_empty_parameters_mean_the_defaults_of_the_library(table):
    model, (uri, _) = log(lambda: train_booster(table.X, table.binary), table.X)
    learner = load_model(uri, options={"params": {}}).learner
    given = learner.fit(table.rows(table.binary)).predict("probability", table.X)[:, 1]
    np.testing.assert_array_equal(given, model.predict(xgboost.DMatrix(table.X)))
    assert not learner.stochastic
    assert "all other hyper-parameters are XGBoost's defaults" in learner.notes[1]


def test_parameters_logged_by_hand_are_used_and_the_rest_is_said_to_be_unknown(table):
    _, (uri, _) = log(
        lambda: train_booster(table.X, table.binary, max_depth=2, eta=0.1),
        table.X,
        {"max_depth": 2, "eta": 0.1, "rows": 120},
    )
    learner = load_model(uri).learner
    assert learner.notes[0] == (
        "from the model itself: booster='gbtree', n_estimators=7, num_parallel_tree=1, "
        "objective='binary:logistic', scale_pos_weight=1"
    )
    assert learner.notes[1] == "from the run's parameters: learning_rate=0.1, max_depth=2"
    assert "whether the model had others is not known" in learner.notes[2]
    np.testing.assert_array_equal(
        learner.fit(table.rows(table.binary)).predict("probability", table.X),
        learner.original.predict("probability", table.X),
    )


@pytest.mark.usefixtures("_autologging")
def test_options_win_over_logged_parameters(table):
    _, (uri, _) = log(lambda: train_booster(table.X, table.binary, max_depth=2), table.X)
    learner = load_model(uri, options={"max_depth": 3, "num_boost_round": 4}).learner
    expected = train_booster(table.X, table.binary, max_depth=3, rounds=4)
    np.testing.assert_array_equal(
        learner.fit(table.rows(table.binary)).predict("probability", table.X)[:, 1],
        expected.predict(xgboost.DMatrix(table.X)),
    )
    assert "from refit_options: max_depth=3, n_estimators=4" in "; ".join(learner.notes)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_dept": 3}, "'max_dept' is no hyper-parameter of XGBoost. Did you mean 'max_depth'?"),
        ({"params": {"etaa": 3}}, "'etaa' is no hyper-parameter .* 'eta'"),
        ({"params": 3}, "params=3 must be a mapping"),
        ({"eta": 0.1, "learning_rate": 0.2}, "'learning_rate' is given twice"),
        ({"params": {"objective": "reg:squarederror"}}, "was trained with 'binary:logistic'"),
    ],
)
def test_wrong_options_are_refused(table, options, message):
    _, (uri, _) = log(lambda: train_booster(table.X, table.binary), table.X)
    with pytest.raises(InputError, match=message):
        load_model(uri, options=options)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"n_estimators": 50, "max_depth": 4}, "n_estimators=50, but the model has 7"),
        ({"scale_pos_weight": 2, "max_depth": 4}, "scale_pos_weight=2, but the model has 1"),
        ({"objective": "reg:squarederror", "max_depth": 4}, "model has 'binary:logistic'"),
        ({"max_depth": 2}, "max_depth=2 .* it has trees of depth 4"),
        ({"max_depth": 4, "eta": 0.1, "learning_rate": 0.2}, "two values of learning_rate"),
        ({"monotone_constraints": "[(1, 0"}, "cannot be read; give monotone_constraints"),
        ({"objective": "<function mine at 0x7f>", "max_depth": 4}, "Give a trainer"),
    ],
)
def test_logged_parameters_of_another_model_are_refused(table, params, message):
    _, (uri, _) = log(lambda: train_booster(table.X, table.binary, max_depth=4), table.X, params)
    with pytest.raises(ModelError, match=message):
        load_model(uri)


@pytest.mark.usefixtures("_autologging")
def test_trace_of_an_objective_of_ones_own_is_noted(table):
    def squares(margin, rows):
        return margin - rows.get_label(), np.ones(len(margin))

    matrix = xgboost.DMatrix(table.X, table.values)
    _, (uri, _) = log(lambda: xgboost.train({"max_depth": 2}, matrix, 7, obj=squares), table.X)
    assert any("needs a trainer" in note for note in load_model(uri).learner.notes)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("None", None),
        ("True", True),
        ("0.5", 0.5),
        ("hist", "hist"),
        ("binary:logistic", "binary:logistic"),
        ("inf", float("inf")),
        ("['auc', 'logloss']", ["auc", "logloss"]),
        ("{'a': 1}", {"a": 1}),
    ],
)
def test_logged_text_is_read_as_the_value_it_was(text, value):
    assert read_value(text) == value


def test_names_of_hyper_parameters_are_those_of_the_library():
    estimator = {*xgboost.XGBClassifier().get_params()} - {"feature_weights"}
    assert estimator <= NAMES


# ---------------------------------------------------------------- early stopping


def train_stopped(table):
    model = xgboost.XGBClassifier(n_estimators=60, early_stopping_rounds=3, **SMALL)
    return model.fit(
        table.X, table.binary, eval_set=[(table.X[:40], 1 - table.binary[:40])], verbose=False
    )


@pytest.mark.usefixtures("_autologging")
def test_class_that_stopped_early_is_refitted_with_the_rounds_it_chose(table):
    model, (uri, _) = log(lambda: train_stopped(table), table.X)
    for learner in (load_model(uri).learner, load_model(model).learner):
        refitted = learner.fit(table.rows(table.binary))
        np.testing.assert_array_equal(
            refitted.predict("probability", table.X), model.predict_proba(table.X)
        )
        note = f"refits have the {model.best_iteration + 1} rounds that its early stopping chose"
        assert any(note in given for given in learner.notes)


def test_class_that_stopped_early_in_a_pipeline_is_refitted_too(table):
    pipeline = make_pipeline(StandardScaler(), train_stopped(table))
    pipeline[0].fit(table.X)
    pipeline[1].fit(
        pipeline[0].transform(table.X),
        table.binary,
        eval_set=[(pipeline[0].transform(table.X)[:40], 1 - table.binary[:40])],
        verbose=False,
    )
    learner = CloneLearner(pipeline)
    refitted = learner.fit(table.rows(table.binary))
    np.testing.assert_array_equal(
        refitted.predict("probability", table.X), pipeline.predict_proba(table.X)
    )
    assert "(xgbclassifier__n_estimators); the stopping is not repeated" in learner.notes[0]
    assert pipeline[1].early_stopping_rounds == 3


@pytest.mark.usefixtures("_autologging")
def test_booster_that_stopped_early_has_all_rounds_that_mlflow_predicts_with(table):
    rows = xgboost.DMatrix(table.X, table.binary)
    wrong = xgboost.DMatrix(table.X[:40], 1 - table.binary[:40])
    params = {"objective": "binary:logistic", "max_depth": 2}
    model, (uri, _) = log(
        lambda: xgboost.train(
            params, rows, 60, evals=[(wrong, "v")], early_stopping_rounds=3, verbose_eval=False
        ),
        table.X,
    )
    learner = load_model(uri).learner
    given = learner.fit(table.rows(table.binary)).predict("probability", table.X)[:, 1]
    np.testing.assert_array_equal(given, mlflow.pyfunc.load_model(uri).predict(table.X))
    best = model.best_iteration + 1
    assert any(f"num_boost_round={best} in refit_options" in note for note in learner.notes)
    learner = load_model(uri, options={"num_boost_round": best}).learner
    given = learner.fit(table.rows(table.binary)).predict("probability", table.X)[:, 1]
    np.testing.assert_array_equal(given, model.predict(rows, iteration_range=(0, best)))


# ---------------------------------------------------------------- labels, weights, seeds, columns


@pytest.mark.usefixtures("_autologging")
@pytest.mark.parametrize("native", [True, False])
def test_words_are_coded_in_sorted_order(table, native):
    codes = np.unique(table.words, return_inverse=True)[1]
    _, (uri, _) = log(
        lambda: (
            train_booster(table.X, codes, **SMALL)
            if native
            else xgboost.XGBClassifier(n_estimators=7, **SMALL).fit(table.X, codes)
        ),
        table.X,
    )
    learner = load_model(uri).learner
    refitted = learner.fit(table.rows(table.words))
    assert refitted.classes.tolist() == ["sick", "well"]
    np.testing.assert_array_equal(
        refitted.predict("probability", table.X), learner.original.predict("probability", table.X)
    )
    assert any("sorted order" in note for note in learner.notes)


@pytest.mark.usefixtures("_autologging")
@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("words", [True, False])
def test_resample_may_lack_a_class(table, native, words):
    _, (uri, _) = log(
        lambda: (
            train_booster(table.X, table.three, objective="multi:softprob", num_class=3)
            if native
            else xgboost.XGBClassifier(n_estimators=3).fit(table.X, table.three)
        ),
        table.X,
    )
    target = np.array(["a", "b", "c"])[table.three] if words else table.three
    some = target != target[table.three == 1][0]
    rows = Rows(X=table.X[some], target=target[some], ids=np.arange(some.sum()))
    refitted = load_model(uri).learner.fit(rows, 1)
    for loss in CLASSIFICATION.values():
        assert np.isfinite(loss.evaluate(refitted, table.X, target)).all()
    assert set(refitted.predict("label", table.X)) <= set(target[some])


@pytest.mark.usefixtures("_autologging")
def test_more_classes_than_the_model_was_trained_for_are_an_error(table):
    _, (uri, _) = log(lambda: train_booster(table.X, table.binary), table.X)
    with pytest.raises(ModelError, match=r"the target has 3 classes, .* trained for 2"):
        load_model(uri).learner.fit(table.rows(table.three))


@pytest.mark.usefixtures("_autologging")
def test_probability_as_a_value_may_be_either_task(table):
    _, (uri, _) = log(
        lambda: train_booster(table.X, table.binary, objective="reg:logistic"), table.X
    )
    learner = load_model(uri).learner
    assert learner.task is None
    values = learner.with_task("regression").fit(table.rows(table.binary))
    labels = learner.with_task("classification").fit(table.rows(table.binary))
    np.testing.assert_array_equal(
        values.predict("value", table.X), labels.predict("probability", table.X)[:, 1]
    )


@pytest.mark.usefixtures("_autologging")
@pytest.mark.parametrize("native", [True, False])
def test_weights_and_seeds_change_the_refit(table, native):
    _, (uri, _) = log(
        lambda: (
            train_booster(table.X, table.binary, **SMALL)
            if native
            else xgboost.XGBClassifier(n_estimators=7, **SMALL).fit(table.X, table.binary)
        ),
        table.X,
    )
    learner = load_model(uri).learner
    weight = np.where(table.binary, 3.0, 1.0)
    rows = table.rows(table.binary)
    weighted = Rows(X=rows.X, target=rows.target, ids=rows.ids, weight=weight)
    plain, heavy, first, again, other = (
        learner.fit(given, seed).predict("probability", table.X)
        for given, seed in ((rows, None), (weighted, None), (rows, 1), (rows, 1), (rows, 2))
    )
    assert heavy[:, 1].mean() > plain[:, 1].mean()
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


@pytest.mark.usefixtures("_autologging")
@pytest.mark.parametrize("native", [True, False])
def test_categories_have_the_order_of_the_training_again(table, native):
    rng = np.random.default_rng(1)
    site = pd.Categorical(rng.choice(list("zuvw"), len(table.X)), categories=list("zuvw"))
    X = table.X.assign(site=site, ward=pd.Categorical(rng.integers(3, 9, len(table.X))))
    params = {"max_cat_to_onehot": 2, "max_depth": 3}
    _, (uri, _) = log(
        lambda: (
            train_booster(X, table.binary, **params)
            if native
            else xgboost.XGBClassifier(n_estimators=7, **params, enable_categorical=True).fit(
                X, table.binary
            )
        ),
        X,
    )
    learner = load_model(uri).learner
    # as a file has them: words and numbers
    plain = learner.represent(X.astype({"site": object, "ward": int}), np.arange(len(X)))
    np.testing.assert_array_equal(
        learner.fit(table.rows(table.binary, plain)).predict("probability", plain),
        learner.original.predict("probability", X),
    )
    report = b3.audit(
        uri,
        X.astype({"site": object, "ward": int}).assign(y=table.binary, cluster=table.cluster),
        target="y",
        cluster="cluster",
        p0=0.1,
        folds=3,
        budget=70,
    )
    assert report.e0 is not None


@pytest.mark.usefixtures("_autologging")
@pytest.mark.parametrize("native", [True, False])
def test_model_trained_on_an_array_is_given_one(table, native):
    X = table.X.to_numpy()
    _, (uri, _) = log(
        lambda: (
            train_booster(X, table.binary, **SMALL)
            if native
            else xgboost.XGBClassifier(n_estimators=7, **SMALL).fit(X, table.binary)
        ),
        X,
    )
    audited = load_model(uri)
    assert (audited.inputs.count, audited.inputs.as_array) == (3, True)
    refitted = audited.learner.fit(table.rows(table.binary, X))
    np.testing.assert_array_equal(
        refitted.predict("probability", X), audited.learner.original.predict("probability", X)
    )


# ---------------------------------------------------------------- what cannot be refitted


@pytest.mark.usefixtures("_autologging")
def test_ranking_is_refused(table):
    query = np.arange(len(table.X)) // 10
    _, (uri, _) = log(
        lambda: xgboost.XGBRanker(n_estimators=3).fit(table.X, table.binary, qid=query), table.X
    )
    with pytest.raises(ModelError, match="XGBRanker is neither classification nor regression"):
        load_model(uri)
    matrix = xgboost.DMatrix(table.X, table.binary, group=[60, 60])
    _, (uri, _) = log(lambda: xgboost.train({"objective": "rank:pairwise"}, matrix, 3), table.X)
    with pytest.raises(ModelError, match="objective='rank:pairwise' is neither"):
        load_model(uri)


# ---------------------------------------------------------------- objects in memory


def test_estimator_in_memory_has_its_parameters(table):
    model = xgboost.XGBClassifier(n_estimators=7, n_jobs=2, **SMALL).fit(table.X, table.three)
    learner = load_model(model).learner
    np.testing.assert_array_equal(
        learner.fit(table.rows(table.three)).predict("probability", table.X),
        model.predict_proba(table.X),
    )
    deeper = load_model(model, options={"max_depth": 4}).learner
    expected = clone(model).set_params(max_depth=4).fit(table.X, table.three)
    np.testing.assert_array_equal(
        deeper.fit(table.rows(table.three)).predict("probability", table.X),
        expected.predict_proba(table.X),
    )
    assert load_model(xgboost.XGBRegressor(max_depth=2)).learner.task == "regression"


def test_estimator_loaded_from_a_file_by_hand_has_lost_them(table, tmp_path):
    model = xgboost.XGBClassifier(n_estimators=7, **SMALL).fit(table.X, table.binary)
    model.save_model(tmp_path / "model.json")
    loaded = xgboost.XGBClassifier()
    loaded.load_model(tmp_path / "model.json")
    with pytest.raises(ModelError, match="does not store hyper-parameters"):
        load_model(loaded)


def test_estimator_logged_by_the_sklearn_flavour_keeps_them(table):
    model = xgboost.XGBClassifier(n_estimators=7, **SMALL).fit(table.X, table.binary)
    with mlflow.start_run():
        info = mlflow.sklearn.log_model(
            model,
            name="model",
            pip_requirements=["xgboost"],
            serialization_format="cloudpickle",
            signature=infer_signature(table.X),
        )
    learner = load_model(info.model_uri).learner
    assert learner.route == "clone"
    np.testing.assert_array_equal(
        learner.fit(table.rows(table.binary)).predict("probability", table.X),
        model.predict_proba(table.X),
    )
