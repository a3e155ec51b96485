"""Keras networks, trained again: afresh, from their logged weights, or in their last layer."""

import os
import pickle
import random

import cloudpickle
import mlflow
import numpy as np
import pytest

import mlflow_b3 as b3
from mlflow_b3.errors import InputError, ModelError
from mlflow_b3.refit import load_model
from mlflow_b3.refit.learner import Rows, Source

os.environ.setdefault("KERAS_BACKEND", "torch")
keras = pytest.importorskip("keras", reason="needs the extra keras and a backend")
from keras import layers  # noqa: E402

pytestmark = [
    pytest.mark.flavours,
    # raised within Keras, whose networks the tests train themselves
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
]

keras.utils.set_random_seed(0)  # networks that stand in parameters of tests are made on import
RECIPE = {"epochs": 3, "batch_size": 32}
AUDIT = {"target": "y", "cluster": "cluster", "folds": 3, "budget": 69, "n_jobs": 1}


def network(columns=1, activation=None, *, middle=tuple, loss=None, optimizer=None, first=()):
    net = keras.Sequential(
        [
            keras.Input((3,)),
            *first,
            layers.Dense(8, activation="relu"),
            *middle(),
            layers.Dense(columns, activation=activation),
        ]
    )
    if loss is not None:
        optimizer = optimizer or keras.optimizers.Adam(0.02)
        net.compile(optimizer=optimizer, loss=loss, metrics=["accuracy"])
    return net


def matrix(X):
    return X.to_numpy(dtype="float32")


def trained(make, X, target, seed=7, **options):
    """Train a network as people do: a seed, a compiled model, fit."""
    keras.utils.set_random_seed(seed)
    net = make(X)
    net.fit(matrix(X), target, verbose=0, **{**RECIPE, **options})
    return net


def learner_of(net, table, target, **given):
    """Return the learner as an audit has it, and all rows as it sees them."""
    learner = load_model(net, **given).learner
    if learner.task is None:
        fractional = np.asarray(target).dtype.kind == "f"
        learner = learner.with_task("regression" if fractional else "classification")
    learner = learner.with_target(np.asarray(target))
    return learner, table.rows(target, learner.represent(table.X, np.arange(len(table.X))))


def log(net, X, params=None):
    with mlflow.start_run():
        mlflow.log_params(params or {})
        return mlflow.keras.log_model(
            net,
            name="model",
            signature=mlflow.models.infer_signature(matrix(X)),
            pip_requirements=["keras"],
        )


def rich(X):
    """Return a network with every kind of layer that keeps more than weights."""
    scale = layers.Normalization()
    scale.adapt(matrix(X))
    return network(
        3,
        first=[scale],
        middle=lambda: (layers.BatchNormalization(momentum=0.8), layers.Dropout(0.2)),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )


def one_hot(X):
    """Return a functional network whose activation is a layer of its own."""
    del X
    inputs = keras.Input((3,))
    hidden = layers.Dense(6, activation="tanh")(inputs)
    outputs = layers.Softmax()(layers.Dense(3, use_bias=False)(hidden))
    net = keras.Model(inputs, outputs, name="clinic")
    net.compile(optimizer=keras.optimizers.SGD(0.1, momentum=0.9), loss="categorical_crossentropy")
    return net


CASES = {
    "one probability": (lambda _: network(1, "sigmoid", loss="binary_crossentropy"), "binary"),
    "one column of logits": (
        lambda _: network(1, loss=keras.losses.BinaryCrossentropy(from_logits=True)),
        "binary",
    ),
    "three classes, every kind of layer": (rich, "three"),
    "one-hot targets": (one_hot, "three"),
    "values": (lambda _: network(1, loss="mse"), "values"),
}


@pytest.fixture(params=CASES)
def case(request, table):
    """Return a network as it was trained, its target, and the target as it was given to it."""
    make, name = CASES[request.param]
    target = getattr(table, name)
    given = np.eye(3)[target] if request.param == "one-hot targets" else target.astype("float32")
    return trained(make, table.X, given), target


def test_fresh_with_the_seed_and_recipe_of_a_training_is_that_training_bit_for_bit(table, case):
    net, target = case
    learner, rows = learner_of(net, table, target, options=RECIPE)
    assert (learner.route, learner.strength, learner.stochastic) == ("fresh", "full", True)
    kind = "value" if learner.task == "regression" else "probability"
    refitted = learner.fit(rows, seed=7).predict(kind, rows.X)
    np.testing.assert_array_equal(refitted, learner.original.predict(kind, rows.X))
    assert not np.array_equal(refitted, learner.fit(rows, seed=8).predict(kind, rows.X))
    raw = net.predict(matrix(table.X), verbose=0)
    if kind == "value":
        np.testing.assert_array_equal(refitted, raw[:, 0])
    elif raw.shape[1] > 1:
        np.testing.assert_array_equal(refitted.argmax(axis=1), raw.argmax(axis=1))
    elif raw.min() >= 0:
        np.testing.assert_array_equal(refitted[:, 1], raw[:, 0])
    else:
        np.testing.assert_array_equal(refitted[:, 1] > 0.5, raw[:, 0] > 0)


def test_hot_start_that_hardly_learns_is_the_original(table, case):
    net, target = case
    options = {"epochs": 1, "batch_size": "all", "optimizer": "SGD", "learning_rate": 1e-9}
    learner, rows = learner_of(net, table, target, refit="hot-start", options=options)
    assert (learner.route, learner.strength) == ("hot-start", "lower-bound")
    kind = "value" if learner.task == "regression" else "probability"
    np.testing.assert_allclose(
        learner.fit(rows, seed=1).predict(kind, rows.X),
        learner.original.predict(kind, rows.X),
        # the means of batch normalisation move with every batch, however small the step
        atol=0.05 if len(net.layers) == 5 else 1e-5,
    )


def test_last_layer_refitted_on_all_rows_agrees_with_the_original(table, case):
    net, target = case
    given = np.eye(3)[target] if net.name == "clinic" else target.astype("float32")
    net.fit(matrix(table.X), given, epochs=20, batch_size=16, verbose=0)
    learner, rows = learner_of(net, table, target)
    assert (learner.route, learner.strength) == ("last-layer", "lower-bound")
    raw, refitted = net.predict(matrix(table.X), verbose=0), learner.fit(rows)
    if learner.task == "regression":
        np.testing.assert_allclose(learner.original.predict("value", rows.X), raw[:, 0], atol=1e-5)
        assert np.corrcoef(refitted.predict("value", rows.X), raw[:, 0])[0, 1] > 0.98
        return
    labels = raw.argmax(axis=1) if raw.shape[1] > 1 else raw[:, 0] > (raw.min() >= 0) / 2
    np.testing.assert_array_equal(learner.original.predict("label", rows.X), labels)
    assert (refitted.predict("label", rows.X) == labels).mean() >= 0.8


# ---------------------------------------------------------------- from MLflow


@pytest.mark.usefixtures("mlflow_store")
def test_autologged_network_is_audited_afresh_through_both_kinds_of_uri(table):
    mlflow.keras.autolog(log_models=False, log_datasets=False, silent=True)
    try:
        with mlflow.start_run() as run:
            net = trained(
                lambda _: network(1, "sigmoid", loss="binary_crossentropy"),
                table.X,
                table.binary,
                epochs=2,
                batch_size=128,
                validation_split=0.1,
            )
            mlflow.keras.log_model(
                net,
                name="model",
                signature=mlflow.models.infer_signature(matrix(table.X)),
                pip_requirements=["keras"],
            )
    finally:
        mlflow.keras.autolog(disable=True)
    uri = f"runs:/{run.info.run_id}/model"
    model_id = mlflow.models.get_model_info(uri).model_id
    first, second = (
        b3.audit(uri, table.frame(table.words), **AUDIT) for uri in (uri, f"models:/{model_id}")
    )
    assert (first.settings.refit, first.settings.refit_strength) == ("fresh", "full")
    notes = first.settings.refit_notes
    assert "epochs=2" in notes[0]
    assert "batch_size=128, optimizer=Adam, loss=binary_crossentropy" in notes[0]
    assert "(epochs, learning_rate, batch_size, shuffle from the run's parameters; " in notes[0]
    assert "optimizer, loss from the compiled model" in notes[0]
    assert any("callbacks such as early stopping" in note for note in notes)
    assert "not repeated, although the run logs it: validation_split=0.1" in notes
    assert (
        "output columns are assumed to be the classes in sorted order: sick = 0, well = 1" in notes
    )
    assert (first.loco, first.iid) == (second.loco, second.iid)


@pytest.mark.usefixtures("mlflow_store")
def test_network_without_epochs_is_audited_in_its_last_layer_and_says_what_is_missing(table):
    net = trained(rich, table.X, table.three)
    info = log(net, table.X, {"batch_size": 8})
    frame = table.frame(table.three)
    report = b3.audit(info.model_uri, frame, **AUDIT, loss="log")
    assert (report.settings.refit, report.settings.refit_strength) == ("last-layer", "lower-bound")
    assert any(
        "lack 'epochs'. Give the missing values" in note for note in report.settings.refit_notes
    )
    with pytest.raises(ModelError, match=r"refit='fresh' needs a complete .* lack 'epochs'"):
        b3.audit(info.model_uri, frame, **AUDIT, loss="log", refit="fresh")


@pytest.mark.usefixtures("mlflow_store")
def test_network_that_cannot_be_split_is_given_a_head(table):
    learner = load_model(log(network(1, "exponential"), table.X).model_uri).learner
    assert learner.route == "head"
    assert "does not end with a dense layer" in learner.notes[0]


def test_model_logged_by_tensorflow_is_loaded_by_it(monkeypatch):
    asked = []
    monkeypatch.setattr(
        "mlflow_b3.refit.keras.load_native", lambda name, source: asked.append((name, source))
    )
    from mlflow_b3.refit.flavours import find_flavour

    _, module = find_flavour(["python_function", "tensorflow"])
    for flavour in ("tensorflow", "keras"):
        module.load(Source(flavours={flavour: {}}))
    assert [name for name, _ in asked] == ["tensorflow", "keras"]


def test_learner_that_travelled_to_a_worker_gives_the_same_numbers(table):
    learner, rows = learner_of(rich(table.X), table, table.three, options=RECIPE)
    there = pickle.loads(cloudpickle.dumps(learner))
    np.testing.assert_array_equal(
        there.fit(rows, seed=1).predict("probability", rows.X),
        learner.fit(rows, seed=1).predict("probability", rows.X),
    )


# ---------------------------------------------------------------- recipes


def refused(net, match, options=None, error=ModelError, refit="auto"):
    with pytest.raises(error, match=match):
        load_model(net, refit=refit, options=options)


def test_network_that_was_never_compiled_needs_all_of_a_recipe(table):
    net = network(1, "sigmoid")
    refused(net, "lack 'optimizer', 'learning_rate', 'loss'", RECIPE)
    options = {
        **RECIPE,
        "optimizer": "sgd",
        "learning_rate": 0.1,
        "momentum": 0.5,
        "loss": "binary_crossentropy",
    }
    learner, rows = learner_of(net, table, table.binary, options=options)
    assert "optimizer=SGD, loss=binary_crossentropy, shuffle=True, momentum=0.5" in learner.notes[0]
    learner.fit(rows, seed=0).predict("probability", rows.X)


def test_batch_size_that_autologging_saw_left_out_is_keras_own():
    from mlflow_b3.refit.keras import learner

    made = learner(network(1, loss="mse"), Source(params={"epochs": "2", "batch_size": "None"}))
    assert "batch_size by Keras' default" in made.notes[0]


def test_schedule_of_the_learning_rate_is_repeated(table):
    schedule = keras.optimizers.schedules.CosineDecay(0.1, 5)
    make = lambda _: network(1, loss="mse", optimizer=keras.optimizers.SGD(schedule))  # noqa: E731
    net = trained(make, table.X, table.values)
    learner, rows = learner_of(net, table, table.values, options=RECIPE)
    assert "learning_rate=CosineDecay" in learner.notes[0]
    np.testing.assert_array_equal(
        learner.fit(rows, seed=7).predict("value", rows.X),
        learner.original.predict("value", rows.X),
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"optimizer": "Adamm"}, r"'Adamm' must be one of .* \(did you mean 'Adam'\?\)"),
        ({"loss": "hinge"}, "loss='hinge' must be one of 'binary_crossentropy'"),
        ({"momentum": 0.9}, "'momentum' is not a setting of the optimizer Adam"),
        ({"device": "cuda"}, "'device' not known for this model"),
    ],
)
def test_options_that_make_no_sense_are_refused_by_name(options, message):
    refused(network(1, loss="mse"), message, {**RECIPE, **options}, InputError)


@pytest.mark.parametrize(
    ("net", "message"),
    [
        (
            network(3, loss="mse"),
            "'mean_squared_error' does not fit a network with 3 output columns",
        ),
        (
            network(1, loss="sparse_categorical_crossentropy"),
            "does not fit a network with 1 output",
        ),
        (
            network(1, loss="binary_crossentropy"),
            "from_logits=False does not fit .* no probabilities",
        ),
        (
            network(1, "sigmoid", loss=keras.losses.BinaryCrossentropy(from_logits=True)),
            "from_logits=True does not fit the outputs .* are probabilities",
        ),
        (network(1, loss="hinge"), "compiled with the loss 'hinge'.*Give a trainer"),
    ],
    ids=["values", "codes", "logits", "probabilities", "unknown"],
)
def test_loss_must_be_known_and_fit_the_outputs(net, message):
    refused(net, message, RECIPE)


class Own(keras.Model):
    """A network in code of its own."""

    def __init__(self):
        super().__init__()
        self.dense = layers.Dense(1)

    def call(self, X):
        return self.dense(X)


def test_network_that_is_no_graph_of_layers_is_refused():
    refused(Own(), "Own is not a built Sequential or functional Keras model", RECIPE)
    refused(
        keras.Sequential([layers.Dense(1)]), "is not a built Sequential or functional Keras model"
    )
    refused(
        keras.Sequential([keras.Input((4, 4)), layers.Flatten(), layers.Dense(1)]),
        "is not a built Sequential or functional Keras model that maps one table",
    )


# ---------------------------------------------------------------- what is initialised, and what not


def test_normalisation_of_inputs_is_adapted_to_the_rows_of_each_refit(table):
    learner, rows = learner_of(rich(table.X), table, table.three, options=RECIPE)
    assert any("adapted again to the rows of each refit: normalization" in n for n in learner.notes)
    far = Rows(X=rows.X + 1000, target=rows.target, ids=rows.ids)
    np.testing.assert_allclose(
        learner.fit(far, seed=0).predict("probability", far.X),
        learner.fit(rows, seed=0).predict("probability", rows.X),
        atol=0.01,  # float32 has fewer digits so far out
    )


def test_normalisation_of_inputs_is_logged_knowledge_for_a_hot_start(table):
    net = rich(3 * table.X + 5)
    learner, rows = learner_of(net, table, table.three, refit="hot-start", options=RECIPE)
    np.testing.assert_allclose(
        learner.original.predict("decision", rows.X), net.predict(rows.X, verbose=0), rtol=1e-6
    )


@pytest.mark.parametrize("special", ["frozen", "deep normalisation"])
def test_layers_that_cannot_be_trained_anew_stay_and_make_a_lower_bound(table, special):
    deep = layers.Normalization(name="special")
    deep.adapt(np.random.default_rng(0).normal(size=(50, 8)))
    middle = tuple if special == "frozen" else lambda: (deep,)
    net = network(1, "sigmoid", middle=middle, loss="binary_crossentropy")
    if special == "frozen":
        net.layers[0].trainable = False
        net.compile(optimizer="adam", loss="binary_crossentropy")
    learner, _ = learner_of(net, table, table.binary, options=RECIPE)
    name = net.layers[0].name if special == "frozen" else "special"
    assert learner.strength == "lower-bound"
    assert f"layers that keep their logged weights: {name}" in learner.notes


def test_statistics_that_were_given_are_kept_without_a_word(table):
    scale = layers.Normalization(mean=[0.0, 1.0, 2.0], variance=[1.0, 1.0, 1.0])
    net = network(1, "sigmoid", first=[scale], loss="binary_crossentropy")
    learner, rows = learner_of(net, table, table.binary, options=RECIPE)
    assert learner.strength == "full"
    learner.fit(rows, seed=0)


# ---------------------------------------------------------------- classes, weights, state


def test_resample_without_a_class_keeps_all_output_columns(table):
    names = np.array(["mild", "none", "severe"])
    learner, rows = learner_of(one_hot(None), table, names[table.three], options=RECIPE)
    chosen = table.three != 1
    refitted = learner.fit(
        Rows(X=rows.X[chosen], target=rows.target[chosen], ids=rows.ids[chosen]), 0
    )
    assert refitted.classes.tolist() == names.tolist()
    assert refitted.predict("probability", rows.X).shape == (len(rows.X), 3)


def test_rows_of_weight_zero_do_not_count(table):
    options = {**RECIPE, "batch_size": "all", "shuffle": False}
    learner, rows = learner_of(one_hot(None), table, table.three, options=options)
    chosen = np.arange(len(rows.X)) % 2 == 0
    weighted = Rows(X=rows.X, target=rows.target, ids=rows.ids, weight=5.0 * chosen)
    left_out = Rows(X=rows.X[chosen], target=rows.target[chosen], ids=rows.ids[chosen])
    np.testing.assert_allclose(
        learner.fit(weighted, seed=0).predict("probability", rows.X),
        learner.fit(left_out, seed=0).predict("probability", rows.X),
        atol=1e-5,
    )


@pytest.mark.parametrize("refit", ["fresh", "hot-start"])
def test_refits_leave_the_network_and_the_random_numbers_alone(table, refit):
    net = rich(table.X)
    before, iterations = net.get_weights(), int(net.optimizer.iterations.numpy())
    own, legacy = random.getstate(), np.random.get_state()  # noqa: NPY002
    learner, rows = learner_of(net, table, table.three, refit=refit, options=RECIPE)
    learner.fit(rows, seed=0).predict("label", rows.X)
    assert random.getstate() == own
    assert all(np.array_equal(a, b) for a, b in zip(np.random.get_state(), legacy, strict=True))  # noqa: NPY002
    assert all(np.array_equal(a, b) for a, b in zip(net.get_weights(), before, strict=True))
    assert int(net.optimizer.iterations.numpy()) == iterations
