"""XGBoost models: trained again with hyper-parameters that their files do not hold."""

import mlflow
import numpy as np
import pandas as pd
import pytest
from mlflow.models import infer_signature
from sklearn.base import clone
from sklearn.ensemble import StackingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import mlflow_b3 as b3
from mlflow_b3.data.losses import CLASSIFICATION
from mlflow_b3.errors import InputError, ModelError
from mlflow_b3.refit import Rows, Source, load_model
from mlflow_b3.refit.sklearn import CloneLearner
from mlflow_b3.refit.xgboost import NAMES, read_value

xgboost = pytest.importorskip("xgboost", reason="needs the extra xgboost")
flavour = pytest.importorskip("mlflow_b3.refit.xgboost")
pytestmark = pytest.mark.flavours

SMALL = {"max_depth": 2, "subsample": 0.5, "colsample_bytree": 0.7, "random_state": 3}


def train_booster(X, target, rounds=7, **params):
    params = {"objective": "binary:logistic", **params}
    return xgboost.train(params, xgboost.DMatrix(X, target, enable_categorical=True), rounds)


def train_class(X, target, rounds=7, **params):
    return xgboost.XGBClassifier(n_estimators=rounds, **params).fit(X, target)


@pytest.fixture
def autolog(mlflow_store):
    """Return what trains and logs a model in one run with autologging, and its two addresses."""
    del mlflow_store

    def log(train, X):
        with mlflow.start_run() as run:
            model = train()
            info = mlflow.xgboost.log_model(
                model, name="model", pip_requirements=["xgboost"], signature=infer_signature(X)
            )
        return model, [info.model_uri, f"runs:/{run.info.run_id}/model"]

    mlflow.xgboost.autolog(log_models=False, log_datasets=False, silent=True)
    yield log
    mlflow.xgboost.autolog(disable=True)


@pytest.fixture
def stored(tmp_path):
    """Return what gives the learner of a model that was written to a file and read again.

    `params` are logged by hand; without them, by autologging.
    """

    def learner_of(model, params=None, options=None, **autologged):
        model.save_model(tmp_path / "model.ubj")
        loaded = type(model)()
        loaded.load_model(tmp_path / "model.ubj")
        if params is None:
            booster = model if isinstance(model, xgboost.Booster) else model.get_booster()
            rounds = booster.num_boosted_rounds()
            technical = {"num_boost_round": rounds, "maximize": None, "verbose_eval": True}
            params = {**autologged, **technical}
        texts = {name: str(value) for name, value in params.items()}
        return flavour.learner(loaded, Source(params=texts, options=options or {}))

    return learner_of


def assert_reproduces(learner, table, target, X=None):
    """Check that a refit on the original rows predicts what the original does, bit for bit."""
    X = table.X if X is None else X
    refitted = learner.fit(table.rows(target, X))
    kinds = ["value"] if refitted.classes is None else ["label", "probability", "decision"]
    for kind in kinds:
        try:
            expected = learner.original.predict(kind, X)
        except ModelError:
            continue
        np.testing.assert_array_equal(refitted.predict(kind, X), expected)
    return refitted


# ---------------------------------------------------------------- logged with MLflow


@pytest.mark.parametrize("train", [train_booster, train_class])
def test_autologged_model_is_refitted_bit_for_bit(table, autolog, train):
    model, uris = autolog(lambda: train(table.X, table.binary, **SMALL), table.X)
    for uri in uris:
        learner = load_model(uri).learner
        assert learner.route == ("parameters" if train is train_booster else "clone")
        assert (learner.task, learner.strength) == ("classification", "full")
        refitted = assert_reproduces(learner, table, table.binary)
        np.testing.assert_array_equal(
            refitted.predict("probability", table.X)[:, 1],
            model.predict(xgboost.DMatrix(table.X))
            if train is train_booster
            else model.predict_proba(table.X)[:, 1],
        )


def audit(uri, frame, **options):
    options = {"p0": 0.1, "folds": 3, "budget": 70, **options}
    return b3.audit(uri, frame, target="y", cluster="cluster", **options)


@pytest.mark.parametrize(("train", "loss"), [(train_booster, "log"), (train_class, "hinge")])
def test_model_is_audited_by_both_addresses(table, autolog, train, loss):
    _, uris = autolog(lambda: train(table.X, table.binary, **SMALL), table.X)
    first, second = (audit(uri, table.frame(table.binary), loss=loss) for uri in uris)
    assert first.e0 == second.e0
    assert any("max_depth=2" in note for note in first.settings.refit_notes)


def test_numbers_are_the_same_with_any_number_of_workers(table, autolog):
    _, (uri, _) = autolog(lambda: train_booster(table.X, table.binary, **SMALL), table.X)
    one, two = (audit(uri, table.frame(table.words), n_jobs=workers) for workers in (1, 2))
    assert one.e0 == two.e0


def test_model_without_logged_parameters_is_refused_with_how_to_give_them(table, autolog):
    mlflow.xgboost.autolog(disable=True)
    for train in (train_booster, train_class):
        _, (uri, _) = autolog(lambda: train(table.X, table.binary, **SMALL), table.X)  # noqa: B023
        with pytest.raises(ModelError) as caught:
            load_model(uri)
        assert f"none were logged with the run of {uri!r}" in str(caught.value)
        assert "refit_options={'params': {'max_depth': 3" in str(caught.value)
        assert "--refit-option max_depth=3" in str(caught.value)
    with pytest.raises(ModelError, match="none were logged with the run"):
        audit(uri, table.frame(table.binary))
    assert audit(uri, table.frame(table.binary), refit_options=SMALL).settings.refit == "clone"


# ---------------------------------------------------------------- every objective and booster


@pytest.mark.parametrize(
    ("objective", "target", "more"),
    [
        ("binary:logistic", "binary", {}),
        ("binary:logistic", "binary", {"scale_pos_weight": 3, "base_score": 0.3}),
        ("binary:logitraw", "binary", {}),
        ("binary:hinge", "binary", {}),
        ("multi:softprob", "three", {"num_class": 3}),
        ("multi:softmax", "three", {"num_class": 3}),
        ("reg:squarederror", "values", {}),
        ("reg:absoluteerror", "values", {}),
        ("reg:quantileerror", "values", {"quantile_alpha": 0.3}),
        ("reg:tweedie", "three", {"tweedie_variance_power": 1.3}),
        ("count:poisson", "three", {}),
        ("reg:squarederror", "values", {"booster": "dart", "rate_drop": 0.3}),
        ("reg:squarederror", "values", {"num_parallel_tree": 3}),
        ("binary:logistic", "binary", {"monotone_constraints": "(1,0,-1)"}),
        ("binary:logistic", "binary", {"monotone_constraints": {"age": 1}}),
        ("binary:logistic", "binary", {"interaction_constraints": "[[0,1]]"}),
        ("binary:logistic", "binary", {"interaction_constraints": [["age", "bmi"]]}),
        ("binary:logistic", "binary", {"grow_policy": "lossguide", "tree_method": "approx"}),
    ],
)
def test_booster_is_refitted_bit_for_bit(table, stored, objective, target, more):
    target, params = getattr(table, target), {**SMALL, **more, "objective": objective}
    model = train_booster(table.X, target, **params)
    learner = stored(model, **params)
    assert learner.stochastic
    refitted = assert_reproduces(learner, table, target)
    given = model.predict(xgboost.DMatrix(table.X))
    if refitted.classes is None:
        np.testing.assert_array_equal(refitted.predict("value", table.X), given)
    elif objective in ("multi:softmax", "binary:hinge"):
        np.testing.assert_array_equal(refitted.predict("label", table.X), given)


def test_linear_booster_is_refitted(table, stored):
    params = {"objective": "reg:squarederror", "booster": "gblinear", "updater": "coord_descent"}
    assert_reproduces(
        stored(train_booster(table.X, table.values, **params), **params), table, table.values
    )


@pytest.mark.parametrize(
    "params",
    [{**SMALL, "objective": "reg:absoluteerror"}, {"booster": "dart", "rate_drop": 0.3}],
    ids=["sampling", "dart"],
)
def test_regressor_is_refitted_bit_for_bit(table, stored, params):
    model = xgboost.XGBRegressor(n_estimators=7, **params).fit(table.X, table.values)
    assert_reproduces(stored(model, **params), table, table.values)


def test_number_of_trees_of_a_forest_is_in_its_file(table, stored):
    model = xgboost.XGBRFRegressor(n_estimators=7, max_depth=3).fit(table.X, table.values)
    learner = stored(model, params={"max_depth": 3})
    assert "n_estimators=7" in learner.notes[0]
    assert_reproduces(learner, table, table.values)


def test_loss_that_the_objective_does_not_serve_names_those_it_does(table, stored):
    model = train_booster(table.X, table.binary, objective="binary:hinge")
    refitted = stored(model).fit(table.rows(table.binary))
    with pytest.raises(ModelError, match=r"gives no probability.*\['zero_one', 'hinge'\]"):
        CLASSIFICATION["log"].evaluate(refitted, table.X, table.binary)


# ---------------------------------------------------------------- where the parameters come from


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
@pytest.mark.parametrize("train", [train_booster, train_class])
def test_parameters_are_given_as_options(table, stored, options, train):
    learner = stored(train(table.X, table.binary, **SMALL), params={}, options=options)
    assert_reproduces(learner, table, table.binary)
    assert any("from refit_options: colsample_bytree=0.7" in note for note in learner.notes)


def test_empty_parameters_mean_the_defaults_of_the_library(table, stored):
    model = train_booster(table.X, table.binary)
    learner = stored(model, params={}, options={"params": {}})
    assert_reproduces(learner, table, table.binary)
    assert not learner.stochastic
    assert "all other hyper-parameters are XGBoost's defaults" in learner.notes[1]


def test_parameters_logged_by_hand_are_used_and_the_rest_is_said_to_be_unknown(table, stored):
    model = train_booster(table.X, table.binary, max_depth=2, eta=0.1)
    learner = stored(model, params={"max_depth": 2, "eta": 0.1, "rows": 120})
    assert learner.notes[:3] == (
        "from the model itself: booster='gbtree', n_estimators=7, num_parallel_tree=1, "
        "objective='binary:logistic', scale_pos_weight=1",
        "from the run's parameters: learning_rate=0.1, max_depth=2",
        "all other hyper-parameters are XGBoost's defaults; it is not known whether the model had "
        "others",
    )
    assert_reproduces(learner, table, table.binary)


def test_parameters_logged_before_the_fit_are_those_of_the_model(table, stored):
    model = xgboost.XGBClassifier(n_estimators=7, **SMALL)
    params = model.get_params()
    assert_reproduces(stored(model.fit(table.X, table.three), params=params), table, table.three)


@pytest.mark.usefixtures("mlflow_store")
@pytest.mark.parametrize("train", [train_booster, train_class])
def test_parameters_logged_by_hand_must_give_the_logged_model_again(table, train):
    """Whether the rest were defaults, only the logged model can tell."""
    frame = table.frame(table.binary)
    with mlflow.start_run():
        model = train(table.X, table.binary, max_depth=2, learning_rate=0.05)
        mlflow.log_param("max_depth", 2)
        info = mlflow.xgboost.log_model(model, name="model", pip_requirements=["xgboost"])
    with pytest.raises(ModelError, match="assumed to be its defaults") as caught:
        audit(info.model_uri, frame)
    assert "is not the logged model (it agrees in " in str(caught.value)
    right = audit(info.model_uri, frame, refit_options={"learning_rate": 0.05})
    assert right.settings.refit_agreement == pytest.approx(1, abs=1e-6)
    on_purpose = audit(info.model_uri, frame, refit_options={"params": "complete"})
    assert on_purpose.settings.refit_agreement < 0.999


def test_options_win_over_logged_parameters(table, stored):
    model = train_booster(table.X, table.binary, max_depth=2)
    learner = stored(model, max_depth=2, options={"max_depth": 3, "num_boost_round": 4})
    expected = train_booster(table.X, table.binary, max_depth=3, rounds=4)
    np.testing.assert_array_equal(
        learner.fit(table.rows(table.binary)).predict("probability", table.X)[:, 1],
        expected.predict(xgboost.DMatrix(table.X)),
    )
    assert "from refit_options: max_depth=3, n_estimators=4" in learner.notes


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_dept": 3}, r"'max_dept' is not a hyper-parameter of XGBoost. .* 'max_depth'\?"),
        ({"params": {"etaa": 3}}, "'etaa' is not a hyper-parameter .* 'eta'"),
        ({"params": 3}, "params=3 must be a mapping"),
        ({"max_depth": "deep"}, "max_depth='deep' cannot be read: max_depth is a number"),
        ({"eta": 0.1, "learning_rate": 0.2}, "'learning_rate' is given twice"),
        ({"params": {"objective": "reg:squarederror"}}, "was trained with 'binary:logistic'"),
    ],
)
def test_wrong_options_are_refused(table, stored, options, message):
    with pytest.raises(InputError, match=message):
        stored(train_booster(table.X, table.binary), options=options)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"n_estimators": 50, "max_depth": 4}, "n_estimators=50, but the model has 7"),
        ({"scale_pos_weight": 2, "max_depth": 4}, "scale_pos_weight=2, but the model has 1"),
        ({"objective": "reg:squarederror", "max_depth": 4}, "model has 'binary:logistic'"),
        ({"max_depth": 2}, "max_depth=2 .* it has trees of depth 4"),
        ({"max_depth": 4, "eta": 0.1, "learning_rate": 0.2}, "two values of learning_rate"),
        ({"monotone_constraints": "[(1, 0"}, "cannot be read; give monotone_constraints"),
        ({"gamma": "auto"}, "gamma='auto' cannot be read"),
        ({"objective": "<function mine at 0x7f>", "max_depth": 4}, "Give a trainer"),
    ],
)
def test_logged_parameters_of_another_model_are_refused(table, stored, params, message):
    with pytest.raises(ModelError, match=message):
        stored(train_booster(table.X, table.binary, max_depth=4), params=params)


def test_trace_of_an_objective_of_ones_own_is_noted(table, stored):
    def squares(margin, rows):
        return margin - rows.get_label(), np.ones(len(margin))

    matrix = xgboost.DMatrix(table.X, table.values)
    learner = stored(xgboost.train({"max_depth": 2}, matrix, 7, obj=squares), max_depth=2)
    assert any("give a trainer" in note for note in learner.notes)


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
    assert {*xgboost.XGBClassifier().get_params()} - {"feature_weights"} <= NAMES


# ---------------------------------------------------------------- early stopping


def fit_stopped(table, X, **params):
    model = xgboost.XGBClassifier(n_estimators=60, early_stopping_rounds=3, **SMALL, **params)
    wrong = 1 - table.binary[:40]
    return model.fit(X, table.binary, eval_set=[(X[:40], wrong)], verbose=False)


def test_class_that_stopped_early_is_refitted_with_the_rounds_it_chose(table, autolog):
    model, (uri, _) = autolog(lambda: fit_stopped(table, table.X), table.X)
    for learner in (load_model(uri).learner, load_model(model).learner):
        refitted = assert_reproduces(learner, table, table.binary)
        np.testing.assert_array_equal(
            refitted.predict("probability", table.X), model.predict_proba(table.X)
        )
        note = f"refits use the {model.best_iteration + 1} rounds that its early stopping chose"
        assert any(note in given for given in learner.notes)


def test_class_that_stopped_early_in_a_pipeline_is_refitted_too(table):
    scaler = StandardScaler().fit(table.X)
    pipeline = make_pipeline(scaler, fit_stopped(table, scaler.transform(table.X)))
    learner = CloneLearner(pipeline)
    refitted = learner.fit(table.rows(table.binary))
    np.testing.assert_array_equal(
        refitted.predict("probability", table.X), pipeline.predict_proba(table.X)
    )
    assert "(xgbclassifier__n_estimators); the stopping is not repeated" in learner.notes[0]
    assert pipeline[1].early_stopping_rounds == 3


def test_booster_that_stopped_early_has_all_rounds_that_mlflow_predicts_with(table, autolog):
    rows = xgboost.DMatrix(table.X, table.binary)
    wrong = xgboost.DMatrix(table.X[:40], 1 - table.binary[:40])
    params = {"objective": "binary:logistic", "max_depth": 2}
    model, (uri, _) = autolog(
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


@pytest.mark.parametrize("train", [train_booster, train_class])
def test_words_are_coded_in_sorted_order(table, stored, train):
    codes = np.unique(table.words, return_inverse=True)[1]
    learner = stored(train(table.X, codes, **SMALL), **SMALL)
    refitted = learner.fit(table.rows(table.words))
    assert refitted.classes.tolist() == ["sick", "well"]
    np.testing.assert_array_equal(
        refitted.predict("probability", table.X), learner.original.predict("probability", table.X)
    )
    assert any("sorted order" in note for note in learner.notes)


@pytest.mark.parametrize("words", [True, False])
@pytest.mark.parametrize("native", [True, False])
def test_resample_may_lack_a_class(table, stored, native, words):
    params = {"objective": "multi:softprob", "num_class": 3} if native else {}
    model = (train_booster if native else train_class)(table.X, table.three, **params)
    target = np.array(["a", "b", "c"])[table.three] if words else table.three
    some = table.three != 1
    rows = Rows(X=table.X[some], target=target[some], ids=np.arange(some.sum()))
    refitted = stored(model, **params).fit(rows, 1)
    for loss in CLASSIFICATION.values():
        assert np.isfinite(loss.evaluate(refitted, table.X, target)).all()
    assert set(refitted.predict("label", table.X)) <= set(target[some])


@pytest.mark.parametrize("params", [{}, {"num_class": 3}])
def test_resample_may_lack_a_class_that_the_parameters_count(table, params):
    model = train_class(table.X, table.three, objective="multi:softmax", **params)
    learner = load_model(model).learner
    np.testing.assert_array_equal(
        learner.fit(table.rows(table.three)).predict("label", table.X), model.predict(table.X)
    )
    some = table.three != 1
    rows = Rows(X=table.X[some], target=table.three[some], ids=np.arange(some.sum()))
    refitted = learner.fit(rows, 1)
    assert np.isfinite(CLASSIFICATION["log"].evaluate(refitted, table.X, table.three)).all()


def test_more_classes_than_the_model_was_trained_for_are_an_error(table, stored):
    with pytest.raises(ModelError, match=r"the target has 3 classes, .* trained for 2"):
        stored(train_booster(table.X, table.binary)).fit(table.rows(table.three))


def test_probability_as_a_value_may_be_either_task(table, stored):
    learner = stored(train_booster(table.X, table.binary, objective="reg:logistic"))
    assert learner.task is None
    values = learner.with_task("regression").fit(table.rows(table.binary))
    labels = learner.with_task("classification").fit(table.rows(table.binary))
    np.testing.assert_array_equal(
        values.predict("value", table.X), labels.predict("probability", table.X)[:, 1]
    )


@pytest.mark.parametrize("train", [train_booster, train_class])
def test_weights_and_seeds_change_the_refit(table, stored, train):
    learner = stored(train(table.X, table.binary, **SMALL), **SMALL)
    table.check_weights_and_seeds(learner)


@pytest.mark.parametrize("native", [True, False])
def test_value_that_stands_for_missing_ones_is_given(table, stored, native):
    X = table.X.where(table.X > -1, -9.0)
    model = (
        xgboost.train(
            {"objective": "binary:logistic"}, xgboost.DMatrix(X, table.binary, missing=-9), 7
        )
        if native
        else train_class(X, table.binary, missing=-9)
    )
    learner = stored(model, options={"missing": -9})
    expected = model.predict(xgboost.DMatrix(X, missing=-9)) if native else model.predict_proba(X)
    given = learner.fit(table.rows(table.binary, X)).predict("probability", X)
    np.testing.assert_array_equal(given[:, 1] if native else given, expected)


@pytest.mark.parametrize("native", [True, False])
def test_categories_have_the_order_of_the_training_again(table, autolog, native):
    rng = np.random.default_rng(1)
    site = pd.Categorical(rng.choice(list("zuvw"), len(table.X)), categories=list("zuvw"))
    X = table.X.assign(site=site, ward=pd.Categorical(rng.integers(3, 9, len(table.X))))
    params = {"max_cat_to_onehot": 2, "max_depth": 3}
    params |= {} if native else {"enable_categorical": True}
    train = train_booster if native else train_class
    _, (uri, _) = autolog(lambda: train(X, table.binary, **params), X)
    learner = load_model(uri).learner
    words = X.astype({"site": object, "ward": int})  # as a file has them
    plain = learner.represent(words, np.arange(len(X)))
    np.testing.assert_array_equal(
        learner.fit(table.rows(table.binary, plain)).predict("probability", plain),
        learner.original.predict("probability", X),
    )
    report = audit(uri, words.assign(y=table.words, cluster=table.cluster))
    # compared although the table has words where the model knows categories and codes
    assert report.settings.refit_agreement == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("train", [train_booster, train_class])
def test_model_trained_on_an_array_is_given_one(table, stored, train):
    X = table.X.to_numpy()
    learner = stored(train(X, table.binary, **SMALL), **SMALL)
    assert (learner.inputs.count, learner.inputs.as_array) == (3, True)
    assert_reproduces(learner, table, table.binary, X)


# ---------------------------------------------------------------- what cannot be refitted


def test_ranking_is_refused(table, stored):
    ranker = xgboost.XGBRanker(n_estimators=3)
    ranker.fit(table.X, table.binary, qid=np.arange(len(table.X)) // 10)
    with pytest.raises(ModelError, match="XGBRanker is neither classification nor regression"):
        stored(ranker)
    matrix = xgboost.DMatrix(table.X, table.binary, group=[60, 60])
    with pytest.raises(ModelError, match="objective='rank:pairwise' is neither"):
        stored(xgboost.train({"objective": "rank:pairwise"}, matrix, 3))


def test_several_targets_are_refused(table, stored):
    both = np.column_stack([table.three, table.binary])
    with pytest.raises(ModelError, match="the model predicts 2 numbers per row"):
        stored(train_booster(table.X, both, objective="reg:squarederror"))


# ---------------------------------------------------------------- objects in memory


def test_estimator_in_memory_has_its_parameters(table):
    model = train_class(table.X, table.three, n_jobs=2, **SMALL)
    assert_reproduces(load_model(model).learner, table, table.three)
    deeper = load_model(model, options={"max_depth": 4}).learner
    expected = clone(model).set_params(max_depth=4).fit(table.X, table.three)
    np.testing.assert_array_equal(
        deeper.fit(table.rows(table.three)).predict("probability", table.X),
        expected.predict_proba(table.X),
    )
    assert load_model(xgboost.XGBRegressor(max_depth=2)).learner.task == "regression"


def test_estimator_loaded_from_a_file_by_hand_has_lost_them(table, tmp_path):
    train_class(table.X, table.binary).save_model(tmp_path / "model.json")
    loaded = xgboost.XGBClassifier()
    loaded.load_model(tmp_path / "model.json")
    with pytest.raises(ModelError, match="does not store hyper-parameters"):
        load_model(loaded)


def test_estimator_within_others_is_fitted_in_one_thread_and_with_the_seed_of_the_refit(table):
    model = StackingClassifier(
        [("trees", xgboost.XGBClassifier(n_estimators=3, **SMALL))], LogisticRegression(), cv=2
    ).fit(table.X, table.binary)
    learner = CloneLearner(model)
    plain, first, other = (
        learner.fit(table.rows(table.binary), seed).predict("probability", table.X)
        for seed in (None, 1, 2)
    )
    np.testing.assert_array_equal(plain, model.predict_proba(table.X))
    assert not np.array_equal(first, other)


@pytest.mark.usefixtures("mlflow_store")
def test_estimator_logged_by_the_sklearn_flavour_keeps_them(table):
    with mlflow.start_run():
        info = mlflow.sklearn.log_model(
            train_class(table.X, table.binary, **SMALL),
            name="model",
            pip_requirements=["xgboost"],
            serialization_format="cloudpickle",
            signature=infer_signature(table.X),
        )
    learner = load_model(info.model_uri).learner
    assert learner.route == "clone"
    assert_reproduces(learner, table, table.binary)
