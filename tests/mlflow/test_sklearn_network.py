"""scikit-learn's networks: trained on from their logged weights, and in their last layer only."""

import pickle
import warnings
from copy import deepcopy

import mlflow
import numpy as np
import pandas as pd
import pytest
from sklearn.compose import make_column_transformer
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import mlflow_b3 as b3
from mlflow_b3.errors import InputError, ModelError
from mlflow_b3.refit import load_model
from mlflow_b3.refit.learner import Rows
from mlflow_b3.refit.sklearn import CloneLearner

pytestmark = pytest.mark.newest

N = 90
RNG = np.random.default_rng(5)
X = pd.DataFrame(RNG.normal(size=(N, 3)), columns=["age", "bmi", "glucose"]) * 3 + 1
SCORE = X["age"].to_numpy() + RNG.normal(size=N)
BINARY = (SCORE > 1).astype(int)
WORDS = np.where(SCORE > 1, "sick", "well")
THREE = np.array(["healthy", "ill", "dead"], dtype=object)[np.digitize(SCORE, [-1, 3])]
TARGETS = {"binary": BINARY, "words": WORDS, "three": THREE, "bool": SCORE > 1, "values": SCORE}
AUDIT = {"target": "y", "cluster": "cluster", "folds": 3, "budget": 69, "n_jobs": 1}


def fitted(target, *, scaled=True, **parameters):
    """Return a small network, fitted for as long as the parameters say, converged or not."""
    kind = MLPRegressor if target is SCORE else MLPClassifier
    settings = {"max_iter": 60, "random_state": 3, **parameters}
    network = kind(hidden_layer_sizes=(6, 4), **settings)
    model = make_pipeline(StandardScaler(), network) if scaled else network
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return model.fit(X, target)


def loaded(model, route, target, **options):
    """Return the learner of a model, as an audit prepares it, and all rows."""
    learner = load_model(model, refit=route, options=options).learner.with_target(target)
    ids = np.arange(N)
    return learner, Rows(X=learner.represent(X, ids), target=target, ids=ids)


def subset(rows, chosen):
    """Return some of the rows."""
    X = rows.X.iloc[chosen] if hasattr(rows.X, "iloc") else rows.X[chosen]
    return Rows(X=X, target=rows.target[chosen], ids=rows.ids[chosen])


# ---------------------------------------------------------------- hot start


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
@pytest.mark.parametrize("solver", ["adam", "sgd", "lbfgs"])
def test_hot_start_is_a_warm_start_for_some_epochs(target, solver):
    model = fitted(target, solver=solver)
    learner, rows = loaded(model, "hot-start", target, epochs=7)
    assert (learner.route, learner.strength) == ("hot-start", "lower-bound")
    given = learner.fit(rows)

    # the same in scikit-learn's words: on a pipeline whose scaler is fitted to the same rows
    network = deepcopy(model[-1])
    network.set_params(
        warm_start=True,
        max_iter=7,
        n_iter_no_change=np.inf,
        random_state=np.random.RandomState(3),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        network.fit(model[0].transform(X), target)
    if target is SCORE:
        np.testing.assert_allclose(
            given.predict("value", X), network.predict(model[0].transform(X)), rtol=1e-9
        )
        return
    np.testing.assert_array_equal(given.classes, model.classes_)
    np.testing.assert_allclose(
        given.predict("probability", X), network.predict_proba(model[0].transform(X)), rtol=1e-9
    )


def test_hot_start_leaves_the_logged_network_as_it_was():
    model = fitted(THREE)
    before = model.predict_proba(X)
    learner, rows = loaded(model, "hot-start", THREE, epochs=20)
    first, second = (learner.fit(rows, seed=1).predict("probability", X) for _ in range(2))
    np.testing.assert_array_equal(model.predict_proba(X), before)
    np.testing.assert_array_equal(learner.original.predict("probability", X), before)
    np.testing.assert_array_equal(first, second)
    assert np.abs(first - before).max() > 0.01
    assert np.abs(learner.fit(rows, seed=2).predict("probability", X) - first).max() > 0


def test_rows_are_shuffled_differently_in_every_epoch():
    orders = []

    class Watched(MLPClassifier):
        """Remembers the order in which rows came."""

        def _backprop(self, X, *rest):
            orders.append(X[0, 0])
            return super()._backprop(X, *rest)

    network = Watched((3,), max_iter=1, batch_size=N, random_state=0)
    with pytest.warns(ConvergenceWarning):
        network.fit(X, BINARY)
    learner, rows = loaded(network, "hot-start", BINARY, epochs=10)
    orders.clear()
    learner.fit(rows, seed=4)
    assert len(orders) == 10
    assert len(set(orders)) > 5


def test_steps_before_the_network_see_training_rows_only():
    model = fitted(BINARY)
    learner, rows = loaded(model, "hot-start", BINARY, epochs=5)
    half = subset(rows, np.arange(0, N, 2))
    refitted = learner.fit(half, seed=1)._model
    np.testing.assert_allclose(refitted[0].mean_, half.X.mean())
    assert "slightly different scale" in " ".join(learner.notes)
    alone, _ = loaded(fitted(BINARY, scaled=False), "hot-start", BINARY)
    assert "scale" not in " ".join(alone.notes)


@pytest.mark.parametrize(("max_iter", "epochs"), [(8, 5), (60, 30)])
def test_half_of_the_training_but_five_epochs_at_least_are_the_default(max_iter, epochs):
    learner, _ = loaded(
        fitted(BINARY, max_iter=max_iter, tol=0.0, n_iter_no_change=1000), "hot-start", BINARY
    )
    assert f"hot-start training with epochs={epochs}" in learner.notes


@pytest.mark.parametrize("solver", ["adam", "lbfgs"])
def test_few_epochs_do_not_warn_that_they_are_few(solver):
    learner, rows = loaded(fitted(BINARY, solver=solver, max_iter=20), "hot-start", BINARY)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        learner.fit(rows, seed=1)


@pytest.mark.parametrize(
    "parameters",
    [
        {"early_stopping": True, "validation_fraction": 0.3},
        {"tol": 1.0, "n_iter_no_change": 2},
        {"solver": "sgd", "learning_rate": "adaptive", "tol": 1.0, "max_iter": 300},
        {"warm_start": True},
    ],
    ids=["early stopping", "converged", "adaptive rate", "warm start"],
)
def test_what_ended_the_logged_training_does_not_end_the_hot_start(parameters):
    _, codes = np.unique(THREE, return_inverse=True)  # 1.7 stops no network for words early
    model = fitted(codes, **parameters)
    learner, rows = loaded(model, "hot-start", codes, epochs=30)
    before, after = (
        predictor.predict("probability", X) for predictor in (learner.original, learner.fit(rows))
    )
    assert np.abs(after - before).max() > 0.01
    assert ("early stopping is not repeated" in " ".join(learner.notes)) == (
        "early_stopping" in parameters
    )


def test_hot_start_takes_weights():
    learner, rows = loaded(fitted(BINARY), "hot-start", BINARY, epochs=60)
    assert learner.weighted
    heavy = Rows(X=rows.X, target=rows.target, ids=rows.ids, weight=1 + 20.0 * BINARY)
    means = [
        learner.fit(part, seed=1).predict("probability", X)[:, 1].mean() for part in (rows, heavy)
    ]
    assert means[1] > means[0] + 0.02


# ---------------------------------------------------------------- last layer


def activations(model, target):
    """Return what the last hidden layer says, and the pipeline's own predictions, in numpy."""
    hidden = model[0].transform(X)
    for coef, intercept in zip(model[-1].coefs_[:-1], model[-1].intercepts_[:-1], strict=True):
        hidden = np.maximum(hidden @ coef + intercept, 0)
    head = Ridge() if target is SCORE else LogisticRegression(max_iter=1000)
    return hidden, make_pipeline(StandardScaler(), head).fit(hidden, target)


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_last_layer_is_a_penalised_regression_on_the_activations_before_it(target):
    model = fitted(target)
    learner, rows = loaded(model, "last-layer", target)
    assert (learner.route, learner.strength, learner.stochastic) == (
        "last-layer",
        "lower-bound",
        False,
    )
    assert "only its last layer was retrained" in learner.notes[0]
    hidden, head = activations(model, target)
    np.testing.assert_allclose(rows.X, hidden)
    given = learner.fit(rows)
    if target is SCORE:
        np.testing.assert_allclose(learner.original.predict("value", rows.X), model.predict(X))
        np.testing.assert_allclose(given.predict("value", rows.X), head.predict(hidden))
        return
    np.testing.assert_array_equal(learner.original.classes, model.classes_)
    np.testing.assert_array_equal(given.classes, model.classes_)
    np.testing.assert_allclose(
        learner.original.predict("probability", rows.X), model.predict_proba(X)
    )
    np.testing.assert_array_equal(learner.original.predict("label", rows.X), model.predict(X))
    np.testing.assert_allclose(
        given.predict("probability", rows.X), head.predict_proba(hidden), atol=1e-8
    )


@pytest.mark.parametrize("activation", ["identity", "logistic", "tanh", "relu"])
@pytest.mark.parametrize("hidden", [(), (5,), (4, 3, 2)], ids=["none", "one", "three"])
def test_features_are_those_that_give_the_networks_own_outputs(activation, hidden):
    network = MLPClassifier(
        hidden, activation=activation, solver="lbfgs", random_state=0, max_iter=5
    )
    with pytest.warns(ConvergenceWarning):
        network.fit(X, THREE)
    learner, rows = loaded(network, "last-layer", THREE)
    assert rows.X.shape == (N, hidden[-1] if hidden else 3)
    np.testing.assert_allclose(
        learner.original.predict("probability", rows.X), network.predict_proba(X), atol=1e-12
    )


def test_steps_before_the_network_may_take_words_and_give_sparse_columns():
    frame = X.assign(ward=np.where(X["bmi"] > 1, "north", "south"))
    steps = make_column_transformer((OneHotEncoder(), ["ward", "age"]), sparse_threshold=1)
    model = make_pipeline(steps, MLPClassifier((4,), solver="lbfgs", random_state=0, max_iter=50))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(frame, WORDS)
    learner = load_model(model, refit="last-layer").learner.with_target(WORDS)
    assert learner.inputs.columns == tuple(frame.columns)
    np.testing.assert_allclose(
        learner.original.predict("probability", learner.represent(frame, np.arange(N))),
        model.predict_proba(frame),
    )
    assert pickle.loads(pickle.dumps(learner))._steps is None


# ---------------------------------------------------------------- classes


@pytest.mark.parametrize("solver", ["adam", "sgd", "lbfgs"])
def test_hot_start_on_rows_that_lack_a_class_still_knows_it(solver):
    learner, rows = loaded(fitted(THREE, solver=solver), "hot-start", THREE, epochs=5)
    given = learner.fit(subset(rows, THREE != "dead"), seed=1)
    assert given.classes.tolist() == ["dead", "healthy", "ill"]
    probability = given.predict("probability", X)
    np.testing.assert_allclose(probability.sum(axis=1), 1)
    assert probability.shape == (N, 3)
    before = learner.original.predict("probability", X)
    assert probability[:, 0].mean() < before[:, 0].mean()


def test_zero_weight_rows_do_not_change_what_lbfgs_minimises():
    """Two classes of three: the loss of the stand-in row counts nothing."""
    model = fitted(THREE, solver="lbfgs")
    learner, rows = loaded(model, "hot-start", THREE, epochs=1)
    two = subset(rows, THREE != "dead")
    repeated = Rows(
        X=pd.concat([two.X, two.X]),
        target=np.tile(two.target, 2),
        ids=np.arange(2 * len(two.ids)),
        weight=np.repeat([1.0, 0.0], len(two.ids)),
    )
    # scaling is by weightless rows, of which the second half are copies: it stays
    np.testing.assert_allclose(
        learner.fit(repeated).predict("probability", X),
        learner.fit(two).predict("probability", X),
        rtol=1e-6,
    )


def test_last_layer_on_rows_that_lack_a_class_is_one_of_the_others():
    learner, rows = loaded(fitted(THREE), "last-layer", THREE)
    given = learner.fit(subset(rows, THREE != "dead"))
    assert given.classes.tolist() == ["healthy", "ill"]
    assert given.predict("probability", rows.X).shape == (N, 2)


@pytest.mark.parametrize("route", ["hot-start", "last-layer"])
def test_classes_the_network_was_not_trained_on_are_refused(route):
    with pytest.raises(InputError, match=r"does not know 'sick', 'well'; it was trained on 0, 1"):
        loaded(fitted(BINARY), route, WORDS)


# ---------------------------------------------------------------- which learner, and refusals


def test_clone_stays_the_default():
    model = fitted(BINARY)
    for route in ("auto", "clone"):
        learner = load_model(model, refit=route).learner
        assert (type(learner), learner.strength) == (CloneLearner, "full")


@pytest.mark.parametrize("route", ["hot-start", "last-layer"])
@pytest.mark.parametrize("scaled", [True, False])
def test_networks_that_were_never_fitted_have_no_weights_to_start_from(route, scaled):
    model = make_pipeline(StandardScaler(), MLPClassifier()) if scaled else MLPClassifier()
    with pytest.raises(
        ModelError, match=f"refit='{route}' needs .* MLPClassifier was never fitted"
    ):
        load_model(model, refit=route)


@pytest.mark.parametrize("route", ["hot-start", "last-layer"])
def test_networks_for_several_targets_are_refused(route):
    network = fitted(np.column_stack([BINARY, SCORE > 2]).astype(int))
    with pytest.raises(ModelError, match="MLPClassifier predicts 2 targets at once"):
        load_model(network, refit=route)


@pytest.mark.skipif("loss" not in MLPRegressor().get_params(), reason="scikit-learn before 1.8")
def test_last_layer_of_a_poisson_network_is_refused():
    network = MLPRegressor(
        loss="poisson", hidden_layer_sizes=3, max_iter=300, tol=1.0, random_state=0
    ).fit(X, BINARY)
    with pytest.raises(ModelError, match=r"exponentials of its last layer"):
        load_model(network, refit="last-layer")
    assert load_model(network, refit="hot-start").learner.route == "hot-start"


def test_other_estimators_have_no_such_routes():
    with pytest.raises(InputError, match="use one of 'clone', 'trainer', 'head'"):
        load_model(LogisticRegression().fit(X, BINARY), refit="hot-start")


def test_routes_of_networks_are_named():
    with pytest.raises(
        InputError, match="use one of 'clone', 'hot-start', 'last-layer', 'trainer', 'head'"
    ):
        load_model(fitted(BINARY), refit="fresh")


@pytest.mark.parametrize(
    ("route", "options", "message"),
    [
        ("hot-start", {"epochs": 0}, "epochs=0 must be a whole number from 1"),
        ("hot-start", {"epoch": 3}, "'epoch' not known for this model; use 'epochs'"),
        ("last-layer", {"epochs": 3}, "'epochs' not known for this model; there are none"),
        ("clone", {"epochs": 3}, "'epochs' not known for this model; use 'search_again'"),
    ],
)
def test_options_are_checked(route, options, message):
    with pytest.raises(InputError, match=message):
        load_model(fitted(BINARY), refit=route, options=options)


def test_pipeline_of_the_network_alone_is_the_network():
    network = fitted(BINARY, scaled=False)
    alone = Pipeline([("net", network)])
    for route in ("hot-start", "last-layer"):
        given = []
        for model in (network, alone):
            learner, rows = loaded(model, route, BINARY)
            given.append(learner.fit(rows, seed=None).predict("probability", rows.X))
        np.testing.assert_array_equal(*given)


# ---------------------------------------------------------------- in an audit


@pytest.mark.usefixtures("mlflow_store")
@pytest.mark.parametrize("route", ["hot-start", "last-layer"])
def test_audit_of_a_logged_network_is_a_lower_bound(route):
    with mlflow.start_run():
        info = mlflow.sklearn.log_model(
            fitted(THREE), name="model", serialization_format="cloudpickle", pip_requirements=[]
        )
    frame = X.assign(y=THREE, cluster=np.arange(N) // 6)
    report = b3.audit(info.model_uri, frame, refit=route, loss="log", **AUDIT)
    assert (report.settings.refit, report.settings.refit_strength) == (route, "lower-bound")
    assert "B321" in {finding.code for finding in report.findings}
