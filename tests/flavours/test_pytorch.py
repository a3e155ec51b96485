"""PyTorch networks, trained again: afresh, from their logged weights, or in their last layer."""

import logging

import mlflow
import numpy as np
import pandas as pd
import pytest

import mlflow_b3 as b3
from mlflow_b3.errors import InputError, ModelError
from mlflow_b3.refit import load_model
from mlflow_b3.refit.interface import Rows

torch = pytest.importorskip("torch", reason="needs the extra pytorch")
from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

pytestmark = pytest.mark.flavours

RECIPE = {"epochs": 8, "learning_rate": 0.05, "batch_size": 16, "optimizer": "Adam"}
AUDIT = {"target": "y", "cluster": "cluster", "folds": 3, "budget": 30, "n_jobs": 1}


class Tail(nn.Module):
    """The function at the end of a network, which is no module in most people's code."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, X):
        return self.function(X)


def network(columns=1, *tail, middle=(nn.ReLU,)):
    return nn.Sequential(nn.Linear(3, 8), *(part() for part in middle), nn.Linear(8, columns), *tail)


def trained(make, X, target, loss, seed=7, epochs=8, weight=None):
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
        learner = learner.with_task("regression")
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
            signature=mlflow.models.infer_signature(X) if options["input_example"] is None else None,
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
        lambda: network(
            3, middle=(lambda: nn.BatchNorm1d(8), nn.ReLU, lambda: nn.Dropout(0.2))
        ),
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
        assert (refitted.argmax(axis=1) == (raw.argmax(1) if raw.shape[1] > 1 else raw[:, 0] > 0)).all()
