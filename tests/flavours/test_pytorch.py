"""PyTorch networks, trained again: afresh, from their logged weights, or in their last layer."""

import logging

import mlflow
import numpy as np
import pandas as pd
import pytest

import mlflow_b3 as b3
from mlflow_b3.errors import InputError, ModelError
from mlflow_b3.refit import load_model
from mlflow_b3.refit.learner import Rows
from mlflow_b3.refit.networks import as_matrix

torch = pytest.importorskip("torch", reason="needs the extra pytorch")
from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

pytestmark = pytest.mark.flavours

torch.manual_seed(0)  # networks that stand in parameters of tests are made on import
RECIPE = {"epochs": 8, "learning_rate": 0.05, "batch_size": 16, "optimizer": "Adam"}
AUDIT = {"target": "y", "cluster": "cluster", "folds": 3, "budget": 69, "n_jobs": 1}


def network(columns=1, *tail, middle=(nn.ReLU,)):
    return nn.Sequential(
        nn.Linear(3, 8), *(part() for part in middle), nn.Linear(8, columns), *tail
    )


def trained(make, X, target, loss, seed=7, epochs=8):
    """Train a network as people do: a seed, a DataLoader, a loop."""
    torch.set_num_threads(1)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        net = make()
        rows = TensorDataset(torch.tensor(X.to_numpy(dtype="float32")), torch.tensor(target))
        loader = DataLoader(rows, batch_size=16, shuffle=True)
        optimizer = torch.optim.Adam(net.parameters(), lr=0.05)
        for _ in range(epochs):
            for features, truth in loader:
                optimizer.zero_grad()
                out = net(features)
                loss(out.reshape(truth.shape) if out.shape[-1] == 1 else out, truth).backward()
                optimizer.step()
    return net.eval()


def outputs(net, X):
    with torch.no_grad():
        return net(torch.tensor(X.to_numpy(dtype="float32"))).numpy()


def learner_of(net, table, target, **given):
    """Return the learner as an audit has it, and all rows as it sees them."""
    options = given.pop("options", None)
    learner = load_model(net, options=options, **given).learner
    if learner.task is None:
        fractional = np.asarray(target).dtype.kind == "f"
        learner = learner.with_task("regression" if fractional else "classification")
    learner = learner.with_target(np.asarray(target))
    return learner, table.rows(target, learner.represent(table.X, np.arange(len(table.X))))


def log(net, X, params=None, **options):
    logging.getLogger("mlflow.pytorch").setLevel("ERROR")
    options = {"serialization_format": "pickle", "input_example": None, **options}
    with mlflow.start_run():
        mlflow.log_params(params or {})
        return mlflow.pytorch.log_model(
            net,
            name="model",
            signature=mlflow.models.infer_signature(X)
            if options["input_example"] is None
            else None,
            pip_requirements=["torch"],
            **options,
        )


CASES = {
    "one column of logits": (
        lambda: network(1),
        "binary",
        "float32",
        nn.BCEWithLogitsLoss(),
        "bce_with_logits",
    ),
    "one probability": (lambda: network(1, nn.Sigmoid()), "binary", "float32", nn.BCELoss(), "bce"),
    "three classes": (
        lambda: network(3),
        "three",
        "int64",
        nn.CrossEntropyLoss(),
        "cross_entropy",
    ),
    "log-probabilities": (
        lambda: network(3, nn.LogSoftmax(1)),
        "three",
        "int64",
        nn.NLLLoss(),
        "nll",
    ),
    "values": (lambda: network(1), "values", "float32", nn.MSELoss(), "mse"),
    "dropout and batch normalisation": (
        lambda: network(3, middle=(lambda: nn.BatchNorm1d(8), nn.ReLU, lambda: nn.Dropout(0.2))),
        "three",
        "int64",
        nn.CrossEntropyLoss(),
        "cross_entropy",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_fresh_with_the_seed_and_recipe_of_a_training_is_that_training_bit_for_bit(table, case):
    make, target, dtype, loss, name = CASES[case]
    target = getattr(table, target)
    net = trained(make, table.X, target.astype(dtype), loss, seed=7)
    learner, rows = learner_of(net, table, target, options={**RECIPE, "loss": name})
    assert (learner.route, learner.strength, learner.stochastic) == ("fresh", "full", True)
    kind = "value" if name == "mse" else "probability"
    refitted = learner.fit(rows, seed=7).predict(kind, rows.X)
    np.testing.assert_array_equal(refitted, learner.original.predict(kind, rows.X))
    assert not np.array_equal(refitted, learner.fit(rows, seed=8).predict(kind, rows.X))
    raw = outputs(net, table.X)
    if name == "mse":
        np.testing.assert_allclose(refitted, raw[:, 0])
    elif name == "bce":
        np.testing.assert_allclose(refitted[:, 1], raw[:, 0], rtol=1e-6)
    else:
        assert (
            refitted.argmax(axis=1) == (raw.argmax(1) if raw.shape[1] > 1 else raw[:, 0] > 0)
        ).all()


# ---------------------------------------------------------------- hot-start and last-layer


@pytest.mark.parametrize("case", CASES)
def test_hot_start_that_hardly_learns_is_the_original(table, case):
    make, target, dtype, loss, name = CASES[case]
    target = getattr(table, target)
    net = trained(make, table.X, target.astype(dtype), loss)
    options = {**RECIPE, "epochs": 1, "learning_rate": 1e-9, "optimizer": "SGD", "loss": name}
    if "normalisation" in case:
        options["batch_size"] = "all"  # running means move with every batch, however small the step
    learner, rows = learner_of(net, table, target, refit="hot-start", options=options)
    assert (learner.route, learner.strength) == ("hot-start", "lower-bound")
    kind = "value" if name == "mse" else "probability"
    np.testing.assert_allclose(
        learner.fit(rows, seed=1).predict(kind, rows.X),
        learner.original.predict(kind, rows.X),
        atol=0.05 if "normalisation" in case else 1e-5,
    )


@pytest.mark.parametrize("case", CASES)
def test_last_layer_refitted_on_all_rows_agrees_with_the_original(table, case):
    make, target, dtype, loss, name = CASES[case]
    target = getattr(table, target)
    net = trained(make, table.X, target.astype(dtype), loss, epochs=20)
    learner, rows = learner_of(net, table, target)
    assert (learner.route, learner.strength, learner.stochastic) == (
        "last-layer",
        "lower-bound",
        False,
    )
    assert rows.X.shape == (len(table.X), 8)
    raw, refitted = outputs(net, table.X), learner.fit(rows)
    if name == "mse":
        original = learner.original.predict("value", rows.X)
        np.testing.assert_allclose(original, raw[:, 0], atol=1e-5)
        assert np.corrcoef(original, refitted.predict("value", rows.X))[0, 1] > 0.98
        return
    labels = raw.argmax(axis=1) if raw.shape[1] > 1 else (raw[:, 0] > (name == "bce") / 2)
    np.testing.assert_array_equal(learner.original.predict("label", rows.X), labels)
    assert (refitted.predict("label", rows.X) == labels).mean() >= 0.9


class Straight(nn.Module):
    """A network in code of its own, whose last step is no module."""

    def __init__(self, tail):
        super().__init__()
        self.out, self.body, self.tail = nn.Linear(4, 1, bias=False), nn.Linear(3, 4), tail

    def forward(self, X):
        return self.tail(self.out(torch.tanh(self.body(X)))).squeeze(-1)


@pytest.mark.parametrize("tail", [torch.sigmoid, nn.Identity()], ids=["sigmoid", "plain"])
def test_last_layer_is_found_by_what_is_computed_last(table, tail):
    net = Straight(tail).eval()
    learner, rows = learner_of(net, table, table.binary, refit="last-layer")
    if tail is torch.sigmoid:
        probability = learner.original.predict("probability", rows.X)[:, 1]
        np.testing.assert_allclose(probability, outputs(net, table.X), atol=1e-6)
    else:  # one plain column: the target decides whether it is a logit or a value
        assert load_model(net, refit="last-layer").learner.task is None


@pytest.mark.parametrize(
    "net",
    [
        Straight(torch.exp),
        nn.Sequential(nn.Linear(3, 4), nn.ReLU()),
        nn.Sequential(nn.BatchNorm1d(3)),
    ],
    ids=["exponential", "cut off", "no linear layer"],
)
def test_network_without_a_last_layer_of_that_kind_cannot_be_split(net):
    with pytest.raises(ModelError, match="does not end with a linear layer"):
        load_model(net, refit="last-layer")


def test_network_that_takes_no_table_says_what_happened():
    with pytest.raises(ModelError, match=r"Sequential does not map one table .*: RuntimeError"):
        load_model(nn.Sequential(nn.Embedding(5, 3), nn.LSTM(3, 3)))


def test_network_for_classes_is_not_split_for_values(table):
    with pytest.raises(InputError, match="fractional numbers, but the model is a classifier"):
        b3.audit(network(3), table.frame(table.values), **AUDIT)


def test_network_says_that_the_order_of_columns_decided(table):
    report = b3.audit(network(3), table.frame(table.three), refit="last-layer", loss="log", **AUDIT)
    assert "taken in the order of the table" in " ".join(report.settings.refit_notes)


# ---------------------------------------------------------------- from MLflow


@pytest.mark.usefixtures("mlflow_store")
def test_network_with_a_logged_recipe_is_audited_afresh_through_both_kinds_of_uri(table):
    make, _, dtype, loss, name = CASES["one column of logits"]
    net = trained(make, table.X, table.binary.astype(dtype), loss)
    params = {"num_epochs": 3, "lr": 0.05, "batch_size": 16, "optimizer": "adam", "criterion": name}
    info = log(net, table.X, params)
    first, second = (
        b3.audit(uri, table.frame(table.binary), **AUDIT)
        for uri in (info.model_uri, f"runs:/{info.run_id}/model")
    )
    assert (first.settings.refit, first.settings.refit_strength) == ("fresh", "full")
    assert (
        "fresh training with epochs=3, learning_rate=0.05, batch_size=16, optimizer=Adam, "
        "loss=bce_with_logits, shuffle=True (epochs, learning_rate, batch_size, optimizer, loss "
        "from the run's parameters; shuffle by default)"
    ) in first.settings.refit_notes
    assert any("not reproduced exactly" in note for note in first.settings.refit_notes)
    assert (first.loco, first.iid) == (second.loco, second.iid)


@pytest.mark.usefixtures("mlflow_store")
def test_network_without_a_recipe_is_audited_in_its_last_layer_and_says_what_is_missing(table):
    net = trained(lambda: network(3), table.X, table.three, nn.CrossEntropyLoss())
    info = log(net, table.X, {"max_epochs": 3, "lr": "fast"})
    report = b3.audit(info.model_uri, table.frame(table.three), **{**AUDIT, "loss": "log"})
    assert (report.settings.refit, report.settings.refit_strength) == ("last-layer", "lower-bound")
    (note,) = [note for note in report.settings.refit_notes if "from scratch" in note]
    assert "lack 'learning_rate', 'batch_size', 'optimizer' (the run's lr='fast' is not" in note
    assert "refit_options={'epochs': 20, 'learning_rate': 0.001" in note


@pytest.mark.usefixtures("mlflow_store")
def test_network_in_the_format_pt2_is_audited_in_its_last_layer(table):
    make, _, _, loss, name = CASES["dropout and batch normalisation"]
    net = trained(make, table.X, table.three, loss)
    example = table.X.to_numpy(dtype="float32")
    info = log(
        net, table.X, {**RECIPE, "loss": name}, serialization_format="pt2", input_example=example
    )
    learner, rows = learner_of(info.model_uri, table, table.three)
    assert learner.route == "last-layer"
    assert any("format pt2" in note and "='pickle'" in note for note in learner.notes)
    np.testing.assert_array_equal(
        learner.original.predict("label", rows.X), outputs(net, table.X).argmax(axis=1)
    )
    for route in ("fresh", "hot-start"):
        with pytest.raises(ModelError, match=f"refit='{route}' is not possible: .* format pt2"):
            load_model(info.model_uri, refit=route)
    report = b3.audit(
        info.model_uri, table.frame(table.three), **{**AUDIT, "loss": "zero_one", "n_jobs": 2}
    )
    assert report.settings.refit == "last-layer"


@pytest.mark.usefixtures("mlflow_store")
def test_network_that_cannot_be_refitted_is_given_a_head(table):
    info = log(Straight(torch.exp), table.X.astype("float32"))
    learner = load_model(info.model_uri).learner
    assert learner.route == "head"
    assert "does not end with a linear layer" in learner.notes[0]


@pytest.mark.usefixtures("mlflow_store")
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_torchscript_can_only_be_given_a_head(table):
    info = log(torch.jit.trace(network(1), torch.zeros(2, 3)), table.X.astype("float32"))
    assert load_model(info.model_uri).learner.route == "head"
    with pytest.raises(ModelError, match="not a network of PyTorch modules"):
        load_model(info.model_uri, refit="fresh")


def test_same_seed_same_numbers_whatever_the_number_of_workers(table):
    frame = table.frame(table.words)
    options = {**RECIPE, "epochs": 2, "loss": "bce_with_logits"}
    reports = [
        b3.audit(network(1), frame, **{**AUDIT, "n_jobs": n}, refit_options=options) for n in (1, 2)
    ]
    assert reports[0].loco == reports[1].loco
    assert reports[0].curve == reports[1].curve
    assert reports[0].settings.model == "Sequential"


# ---------------------------------------------------------------- recipes


def test_lightnings_autologging_is_understood_and_the_users_options_win(table):
    from mlflow_b3.refit.learner import Source
    from mlflow_b3.refit.pytorch import learner

    logged = {
        "epochs": "4",
        "optimizer_name": "SGD",
        "lr": "0.1",
        "momentum": "0.9",
        "nesterov": "True",
        "weight_decay": "0.01",
        "patience": "3",
    }
    options = {"batch_size": "8", "learning_rate": 0.2}  # the command line gives texts
    made = learner(network(3), Source(params=logged, options=options))
    assert made.notes[0] == (
        "fresh training with epochs=4, learning_rate=0.2, batch_size=8, optimizer=SGD, "
        "loss=cross_entropy, shuffle=True, weight_decay=0.01, momentum=0.9, nesterov=True (epochs, "
        "optimizer, weight_decay, momentum, nesterov from the run's parameters; learning_rate, "
        "batch_size from refit_options; loss from the network's output columns; shuffle by default)"
    )
    assert "not repeated, although the run logs it: patience=3" in made.notes
    made.fit(table.rows(table.three, table.X), seed=0)


def refused(net, match, options=None, error=ModelError, refit="auto"):
    with pytest.raises(error, match=match):
        load_model(net, refit=refit, options=options)


def test_recipe_that_lacks_something_says_what_and_how_to_give_it():
    lacking = (
        r"lack 'learning_rate', 'batch_size', 'optimizer', 'loss'\. Give the missing values, as in"
    )
    refused(network(1), rf"refit='fresh' needs a complete .* {lacking}", {"epochs": 3})
    refused(network(1), "lack 'epochs', 'learning_rate'", refit="fresh")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"optimizer": "Adamm"}, r"'Adamm' must be one of .* \(did you mean 'Adam'\?\)"),
        ({"optimizer": "LBFGS"}, "optimizer='LBFGS' must be one of"),
        ({"loss": "focal"}, "loss='focal' must be one of 'cross_entropy', 'nll'"),
        ({"epochs": 0}, "epochs=0 must be a whole number from 1"),
        ({"epochs": 2.5}, "epochs=2.5 must be a whole number from 1"),
        ({"batch_size": "some"}, "batch_size='some' must be a whole number from 1, or 'all'"),
        ({"learning_rate": 0}, "learning_rate=0 must be a number above 0"),
        ({"weight_decay": -1}, "weight_decay=-1 must be a number from 0"),
        ({"shuffle": "maybe"}, "shuffle='maybe' must be true or false"),
        ({"epoch": 3}, r"'epoch' not known for this model; .* Did you mean 'epochs'\?"),
        ({"momentum": 0.9}, "'momentum' is not a setting of the optimizer Adam"),
        ({"device": "abacus"}, "device='abacus' cannot be used here"),
    ],
)
def test_options_that_make_no_sense_are_refused_by_name(options, message):
    refused(network(1), message, {**RECIPE, "loss": "mse", **options}, InputError)


def test_last_layer_has_no_options():
    refused(network(1), "'epochs' not known", {"epochs": 3}, InputError, refit="last-layer")


def test_other_routes_are_refused():
    refused(network(1), "use one of 'fresh', 'hot-start', 'last-layer'", None, InputError, "clone")


def test_epochs_of_a_hot_start_must_be_given():
    from mlflow_b3.refit.learner import Source
    from mlflow_b3.refit.pytorch import learner

    params = {name: str(value) for name, value in RECIPE.items()}
    with pytest.raises(ModelError, match=r"the epochs logged .* whole training\) lack 'epochs'"):
        learner(network(3), Source(params=params, route="hot-start"))


def test_two_spellings_that_disagree_are_not_guessed():
    from mlflow_b3.refit.learner import Source
    from mlflow_b3.refit.pytorch import learner

    params = {name: str(value) for name, value in RECIPE.items()} | {"max_epochs": "50"}
    with pytest.raises(ModelError, match="logs both epochs='8' and max_epochs='50'"):
        learner(network(3), Source(params=params, route="fresh"))
    assert learner(network(3), Source(params=params, options={"epochs": 2})).route == "fresh"


@pytest.mark.parametrize(
    ("net", "loss", "message"),
    [
        (
            network(3),
            "mse",
            "does not fit a network with 3 output columns; use one of 'cross_entropy'",
        ),
        (
            network(1),
            "cross_entropy",
            "does not fit a network with 1 output column; use one of 'bce_",
        ),
        (network(1), "bce", "needs outputs that are probabilities"),
        (network(3), "nll", "needs outputs that are log-probabilities"),
        (network(1, nn.Sigmoid()), "bce_with_logits", "the network ends with one; use 'bce'"),
    ],
)
def test_loss_must_fit_the_outputs(net, loss, message):
    refused(net, message, {**RECIPE, "loss": loss})


@pytest.mark.parametrize("net", [network(1), network(3, nn.Softmax(1))], ids=["one", "softmax"])
def test_loss_is_only_guessed_where_there_is_no_choice(net):
    refused(net, "lack 'loss'", RECIPE)


def test_softmax_before_cross_entropy_is_repeated_and_said(table):
    net = network(3, nn.Softmax(1))
    learner, rows = learner_of(net, table, table.three, options={**RECIPE, "loss": "cross_entropy"})
    assert "cross_entropy is applied to probabilities, as the network returns them" in learner.notes
    np.testing.assert_allclose(
        learner.original.predict("probability", rows.X), outputs(net.eval(), table.X), atol=1e-6
    )


# ---------------------------------------------------------------- what is initialised, and what not


class Scaled(nn.Module):
    """Has a parameter of its own, a frozen layer or a buffer."""

    def __init__(self, **special):
        super().__init__()
        self.body, self.out = nn.Linear(3, 4), nn.Linear(4, 3)
        if "parameter" in special:
            self.scale = nn.Parameter(torch.ones(3))
        if "buffer" in special:
            self.register_buffer("mean", torch.ones(3))
        self.body.requires_grad_("frozen" not in special)

    def forward(self, X):
        return self.out(
            torch.relu(self.body(X * getattr(self, "scale", 1) - getattr(self, "mean", 0)))
        )


def test_parameter_that_nobody_can_initialise_is_named():
    refused(Scaled(parameter=True), "parameter 'scale': Scaled has no reset_parameters", RECIPE)
    options = {**RECIPE, "loss": "cross_entropy"}
    assert load_model(Scaled(parameter=1), refit="hot-start", options=options).learner.route


@pytest.mark.parametrize(
    ("special", "named"), [("frozen", "body.weight, body.bias"), ("buffer", "mean")]
)
def test_what_is_frozen_stays_and_makes_a_lower_bound(table, special, named):
    net = Scaled(**{special: True})
    learner, rows = learner_of(net, table, table.three, options=RECIPE)
    assert learner.strength == "lower-bound"
    assert f"frozen parameters and buffers keep their logged values: {named}" in learner.notes
    learner.fit(rows, seed=0)


def test_network_with_nothing_to_train_is_refused():
    refused(network(3).requires_grad_(False), "all parameters of Sequential are frozen", RECIPE)


# ---------------------------------------------------------------- classes, rows, weights, state


def some(rows, chosen, weight=None):
    return Rows(X=rows.X[chosen], target=rows.target[chosen], ids=rows.ids[chosen], weight=weight)


@pytest.mark.parametrize("words", [False, True], ids=["codes", "words"])
def test_resample_without_a_class_keeps_all_output_columns(table, words):
    names = np.array(["mild", "none", "severe"])
    target = names[table.three] if words else table.three
    learner, rows = learner_of(network(3), table, target, options=RECIPE)
    refitted = learner.fit(some(rows, table.three != 1), seed=0)
    assert refitted.classes.tolist() == (names.tolist() if words else [0, 1, 2])
    probability = refitted.predict("probability", rows.X)
    assert probability.shape == (len(rows.X), 3)
    assert probability[:, 1].mean() < 0.15
    assert (
        "output columns are assumed to be the classes in sorted order: mild = 0, none = 1, severe = 2"
        in learner.notes
    ) is words


def test_words_for_a_network_of_one_column_are_coded_in_sorted_order(table):
    options = {**RECIPE, "loss": "bce_with_logits"}
    learner, rows = learner_of(network(1), table, table.words, options=options)
    coded, plain = learner_of(network(1), table, 1 - table.binary, options=options)
    np.testing.assert_array_equal(
        learner.fit(rows, 3).predict("probability", rows.X),
        coded.fit(plain, 3).predict("probability", rows.X),
    )
    assert set(learner.fit(rows, 3).predict("label", rows.X)) == {"sick", "well"}


def test_table_with_other_classes_than_the_network_is_refused(table):
    for options in (RECIPE, None):
        with pytest.raises(InputError, match=r"2 classes \(sick, well\), but the network has 3"):
            b3.audit(network(3), table.frame(table.words), **AUDIT, refit_options=options)


def test_rows_of_weight_zero_do_not_count(table):
    options = {**RECIPE, "batch_size": "all", "shuffle": False}
    learner, rows = learner_of(network(3), table, table.three, options=options)
    chosen = np.arange(len(rows.X)) % 2 == 0
    weighted = learner.fit(some(rows, slice(None), weight=5.0 * chosen), seed=0)
    left_out = learner.fit(some(rows, chosen), seed=0)
    np.testing.assert_allclose(
        weighted.predict("probability", rows.X), left_out.predict("probability", rows.X), atol=1e-5
    )


def test_single_row_left_for_a_batch_does_not_break_batch_normalisation(table):
    make = CASES["dropout and batch normalisation"][0]
    learner, rows = learner_of(make(), table, table.three, options=RECIPE)
    assert learner.fit(some(rows, np.arange(33)), seed=0).predict("label", rows.X).shape == (120,)


@pytest.mark.parametrize("refit", ["fresh", "hot-start", "last-layer"])
def test_refits_leave_the_network_the_random_numbers_and_the_threads_alone(table, refit):
    net = CASES["dropout and batch normalisation"][0]().train()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    state, threads = torch.random.get_rng_state(), torch.get_num_threads()
    options = None if refit == "last-layer" else RECIPE
    learner, rows = learner_of(net, table, table.three, refit=refit, options=options)
    learner.fit(rows, seed=0).predict("label", rows.X)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert torch.get_num_threads() == threads
    assert net.training
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())


@pytest.mark.parametrize("options", [None, RECIPE], ids=["last-layer", "fresh"])
def test_features_that_are_no_numbers_are_named(table, options):
    frame = table.frame(table.three)
    with pytest.raises(InputError, match="features 'bmi' are not numeric"):
        b3.audit(network(3), frame.assign(bmi="high"), **AUDIT, loss="log", refit_options=options)
    frame.loc[0, "age"] = np.nan
    with pytest.raises(InputError, match="features 'age' have missing values"):
        b3.audit(network(3), frame, **AUDIT, loss="log", refit_options=options)


def test_losses_that_need_what_the_network_cannot_give_name_those_that_work(table):
    options = {**RECIPE, "loss": "bce"}
    with pytest.raises(ModelError, match=r"gives no decision.*\['zero_one', 'log', 'brier'\]"):
        b3.audit(
            network(1, nn.Sigmoid()),
            table.frame(table.binary),
            **AUDIT,
            loss="hinge",
            refit_options=options,
        )


def test_double_precision_is_kept(table):
    learner, rows = learner_of(network(3).double(), table, table.three, options=RECIPE)
    assert rows.X.dtype == np.float64
    learner.fit(rows, seed=0).predict("decision", pd.DataFrame(rows.X))


def test_rows_that_are_shared_as_read_only_may_be_given_to_the_network(table):
    shared = table.X.to_numpy(dtype=np.float32)
    shared.flags.writeable = False
    for rows in (shared, pd.DataFrame(shared, copy=False)):
        matrix = as_matrix(rows)
        assert matrix.flags.writeable
        np.testing.assert_array_equal(matrix, shared)


def test_features_as_many_as_columns_are_not_taken_for_them(table):
    """Comparing with the logged network on the table's columns would be another network."""
    torch.manual_seed(3)
    net = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 2))
    optimizer = torch.optim.Adam(net.parameters(), lr=0.05)
    X = torch.tensor(table.X.to_numpy(dtype=np.float32))
    for _ in range(200):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(X), torch.tensor(table.binary)).backward()
        optimizer.step()
    report = b3.audit(net, table.frame(table.binary), refit="last-layer", **AUDIT)
    assert report.settings.refit_agreement > 0.9
