"""Losses of networks with random effects: against brute force, against the mixed regression, and in `cvc`."""

import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from scipy.special import expit
from scipy.stats import norm

import mlflow_b3 as b3
from mlflow_b3.correlated import group_effect_loss, pair_effect_loss
from mlflow_b3.correlated.mixed import fit_mixed_logistic
from mlflow_b3.correlated.targets import smoothed_logistic
from mlflow_b3.errors import InputError

torch = pytest.importorskip("torch", reason="needs the extra pytorch")

pytestmark = pytest.mark.flavours

#: A fine grid for smooth integrands with normal tails: the trapezoidal rule is exact to 1e-12.
GRID = np.arange(-9, 9.01, 0.02)
WEIGHT = norm.pdf(GRID) * 0.02


def grouped(seed, groups, size, sd):
    """Return log odds, classes and groups."""
    rng = np.random.default_rng(seed)
    group = np.repeat(np.arange(groups), size)
    f = rng.normal(size=len(group))
    effects = sd * rng.standard_normal(groups)[group]
    return f, (rng.random(len(f)) < expit(f + effects)).astype(float), group


def likelihood(f, y, sd):
    """Return the likelihood of one group by the trapezoidal rule."""
    z = (2 * y - 1) * (f + sd * GRID[:, None])
    return float(expit(z).prod(axis=1) @ WEIGHT)


def pair_likelihood(f, y, variance, covariance):
    """Return the likelihood of one pair by the trapezoidal rule in two dimensions."""
    sd, share = np.sqrt(variance), covariance / variance
    first, second = GRID[::3, None], GRID[None, ::3]
    one = expit((2 * y[0] - 1) * (f[0] + sd * first))
    other = sd * (share * first + np.sqrt(1 - share**2) * second)
    two = expit((2 * y[1] - 1) * (f[1] + other))
    return float((one * two * np.outer(3 * WEIGHT[::3], 3 * WEIGHT[::3])).sum())


def tensors(*values):
    return [torch.as_tensor(value) for value in values]


@pytest.mark.parametrize("sd", [0.5, 1.0, 3.0])
@pytest.mark.parametrize("size", [1, 2, 8, 40])
def test_loss_of_groups_is_the_integral_over_their_effects(size, sd):
    f, y, group = grouped(size, 5, size, sd)
    exact = sum(np.log(likelihood(f[group == j], y[group == j], sd)) for j in range(5))
    found = group_effect_loss(*tensors(f, y, group), sd)
    assert float(found) == pytest.approx(-exact / len(f), abs=1e-6)


@pytest.mark.parametrize(
    ("variance", "covariance"), [(1, 0), (1, 0.5), (1, 0.99), (1, -0.4), (4, 2)]
)
def test_loss_of_pairs_is_the_integral_over_both_effects(variance, covariance):
    rng = np.random.default_rng(0)
    f, y = rng.normal(size=(6, 2)), rng.integers(0, 2, (6, 2)).astype(float)
    exact = [
        np.log(pair_likelihood(*pair, variance, covariance)) for pair in zip(f, y, strict=True)
    ]
    found = pair_effect_loss(*tensors(f, y), variance, torch.full((6,), float(covariance)))
    assert float(found) == pytest.approx(-np.mean(exact) / 2, abs=1e-6)


def test_gradients_are_those_of_the_integral():
    """Against differences of the brute-force likelihood; nodes move with the parameters, the integral does not."""
    f, y, group = grouped(1, 3, 4, 1.0)

    def exact(log_sd, shift):
        moved = f + shift
        total = sum(
            np.log(likelihood(moved[group == j], y[group == j], np.exp(log_sd))) for j in range(3)
        )
        return -total / len(f)

    log_sd, logits = torch.zeros((), dtype=torch.float64, requires_grad=True), torch.tensor(f)
    logits.requires_grad_()
    group_effect_loss(logits, *tensors(y, group), log_sd.exp()).backward()
    step, first = 1e-5, np.eye(len(f))[0]
    assert float(log_sd.grad) == pytest.approx(
        (exact(step, 0) - exact(-step, 0)) / (2 * step), abs=1e-6
    )
    assert float(logits.grad[0]) == pytest.approx(
        (exact(0, step * first) - exact(0, -step * first)) / (2 * step), abs=1e-6
    )


def test_gradients_of_pairs_are_those_of_differences():
    rng = np.random.default_rng(2)
    y = torch.as_tensor(rng.integers(0, 2, (5, 2)).astype(float))
    logits, log_variance, share = (
        torch.tensor(value, dtype=torch.float64, requires_grad=True)
        for value in (rng.normal(size=(5, 2)), 0.3, rng.uniform(0, 0.9, 5))
    )

    def loss(logits, log_variance, share):
        variance = log_variance.exp()
        return pair_effect_loss(logits, y, variance, share * variance)

    assert torch.autograd.gradcheck(loss, (logits, log_variance, share))


def test_rows_at_one_place_have_a_finite_gradient():
    f, y, _ = grouped(3, 3, 2, 1.0)
    log_sd = torch.zeros((), dtype=torch.float64, requires_grad=True)
    variance = (2 * log_sd).exp()
    loss = pair_effect_loss(
        *tensors(f.reshape(3, 2), y.reshape(3, 2)), variance, variance.expand(3)
    )
    loss.backward()
    group = torch.arange(3).repeat_interleave(2)
    assert float(loss.detach()) == pytest.approx(
        float(group_effect_loss(*tensors(f, y), group, 1.0)), abs=1e-6
    )
    assert np.isfinite(float(log_sd.grad))


def test_many_networks_on_the_same_rows_have_a_loss_each():
    f, y, group = grouped(4, 4, 5, 1.0)
    both = group_effect_loss(
        *tensors(np.stack([f, -f]), np.stack([y, y]), group), torch.tensor([1.0, 2.0])
    )
    one = [float(group_effect_loss(*tensors(g, y, group), sd)) for g, sd in ((f, 1.0), (-f, 2.0))]
    assert both.tolist() == pytest.approx(one)


def test_large_numbers_of_groups_are_not_confused():
    """Patients 100000000 and 100000001 are the same number in single precision."""
    f, y, group = grouped(5, 4, 5, 1.0)
    given = [torch.as_tensor(value, dtype=torch.float32) for value in (f, y)]
    near = group_effect_loss(*given, torch.as_tensor(group) + 100_000_000, 1.0)
    assert float(near) == float(group_effect_loss(*given, torch.as_tensor(group), 1.0))


def minimise(loss, parameters):
    """Minimise by a quasi-Newton method."""
    optimizer = torch.optim.LBFGS(parameters, max_iter=100, line_search_fn="strong_wolfe")

    def closure():
        optimizer.zero_grad()
        value = loss()
        value.backward()
        return value

    optimizer.step(closure)


def linear_world(seed, groups, size):
    """Return features with an intercept, classes and groups; coefficients are 0.3 and 1, the sd is 1."""
    rng = np.random.default_rng(seed)
    group = np.repeat(np.arange(groups), size)
    X = np.column_stack([np.ones(len(group)), rng.normal(size=len(group))])
    chance = expit(X @ [0.3, 1.0] + rng.standard_normal(groups)[group])
    return X, (rng.random(len(group)) < chance).astype(float), group


def test_a_linear_network_is_the_mixed_regression():
    """The same maximum as adaptive quadrature in NumPy, which shares no code."""
    X, y, group = linear_world(6, 60, 6)
    beta, log_sd = (torch.zeros(k, dtype=torch.float64, requires_grad=True) for k in ((2,), ()))
    columns, target, codes = tensors(X, y, group)
    minimise(lambda: group_effect_loss(columns @ beta, target, codes, log_sd.exp()), [beta, log_sd])
    other = fit_mixed_logistic(y, X, [group], intervals=False)
    assert float(log_sd.detach().exp()) == pytest.approx(other.sd[0], abs=2e-3)
    assert beta.tolist() == pytest.approx(other.coefficients.tolist(), abs=2e-3)


def test_pairs_find_the_effects_that_made_the_targets():
    """Each row with the next of its group. With 400 groups of 4, seeds 100 to 119 gave an sd of 0.96 (sd 0.083)."""
    X, y, group = linear_world(7, 400, 4)
    beta, log_sd = (torch.zeros(k, dtype=torch.float64, requires_grad=True) for k in ((2,), ()))
    columns, target = tensors(X, y)
    rows = np.arange(len(y))
    mates = torch.as_tensor(np.column_stack([rows, 4 * group + (rows + 1) % 4]))

    def loss():
        variance = (2 * log_sd).exp()
        f = (columns @ beta)[mates]
        return pair_effect_loss(f, target[mates], variance, variance.expand(len(mates)), nodes=9)

    minimise(loss, [beta, log_sd])
    assert float(log_sd.detach().exp()) == pytest.approx(1.0, abs=4 * 0.083)


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda f, y, g: group_effect_loss(f.numpy(), y, g, 1.0), "logits=ndarray is not usable"),
        (lambda f, y, g: group_effect_loss(f[:, None], y, g, 1.0), "Drop the column"),
        (lambda f, y, g: group_effect_loss(f, y, g, 1.0, nodes=1), "nodes=1 must be"),
        (lambda f, y, g: pair_effect_loss(f, y, 1.0, g), "pairs need"),
    ],
)
def test_a_wrong_argument_is_named_with_what_to_do(call, told):
    f, y, group = tensors(*grouped(8, 3, 2, 1.0))
    with pytest.raises(InputError, match=told):
        call(f, y, group)


# --- In corrected cross-validation


def wards(seed=0, groups=12, size=6):
    """Return a table of patients whose chance differs by ward."""
    rng = np.random.default_rng(seed)
    ward = np.repeat(np.arange(groups), size)
    x = rng.normal(size=(len(ward), 2))
    chance = expit(x[:, 0] + 1.5 * rng.standard_normal(groups)[ward])
    y = (rng.random(len(ward)) < chance).astype(int)
    return pd.DataFrame({"a": x[:, 0], "b": x[:, 1], "ward": ward, "y": y})


def averaged(forward, sd):
    """Return a predictor of both probabilities in a new ward."""

    def predict(X):
        matrix = torch.as_tensor(X[["a", "b"]].to_numpy(dtype="float32"))
        with torch.no_grad():
            f = forward(matrix)[:, 0].double().numpy()
        chance = smoothed_logistic(f, sd)
        return np.column_stack([1 - chance, chance])

    return predict


def by_torch(X, y, sample_ids, seed):
    """Train by identity; the wards of rows are looked up by their labels."""
    torch.set_num_threads(1)
    with torch.random.fork_rng():
        torch.manual_seed(seed or 0)
        network = torch.nn.Sequential(torch.nn.Linear(2, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1))
    log_sd = torch.nn.Parameter(torch.zeros(()))
    optimizer = torch.optim.Adam([*network.parameters(), log_sd], lr=0.05)
    train_steps(network, log_sd, optimizer, X, y, sample_ids)
    return averaged(network, float(log_sd.detach().exp()))


def train_steps(network, log_sd, optimizer, X, y, sample_ids):
    columns = torch.as_tensor(X[["a", "b"]].to_numpy(dtype="float32"))
    target = torch.as_tensor(np.asarray(y, dtype="float32"))
    ward = torch.as_tensor(wards()["ward"].loc[sample_ids].to_numpy())
    for _ in range(15):
        optimizer.zero_grad()
        group_effect_loss(network(columns)[:, 0], target, ward, log_sd.exp()).backward()
        optimizer.step()


def by_keras(X, y, sample_ids, seed):
    """Do the same with a network of Keras, whose backend is PyTorch here."""
    import keras

    keras.utils.set_random_seed(seed or 0)
    network = keras.Sequential(
        [keras.Input((2,)), keras.layers.Dense(4, activation="relu"), keras.layers.Dense(1)]
    )
    log_sd = torch.nn.Parameter(torch.zeros(()))
    weights = [variable.value for variable in network.trainable_variables]
    train_steps(network, log_sd, torch.optim.Adam([*weights, log_sd], lr=0.05), X, y, sample_ids)
    return averaged(network, float(log_sd.detach().exp()))


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
@pytest.mark.parametrize("library", ["torch", "keras"])
def test_a_network_trained_with_effects_is_corrected(library, monkeypatch):
    if library == "keras":
        monkeypatch.setenv("KERAS_BACKEND", "torch")
        keras = pytest.importorskip("keras", reason="needs the extra keras")
        if keras.backend.backend() != "torch":
            pytest.skip("another backend of Keras is loaded")
    report = b3.cvc(
        None,
        wards(),
        target="y",
        groups=["ward"],
        loss="log",
        folds=3,
        trainer=by_torch if library == "torch" else by_keras,
        budget=24,
        n_jobs=1,
    )
    assert report.engine == "full"
    assert np.isfinite(report.cv)
    assert report.cvc > report.cv


JAX = """
import os
os.environ["KERAS_BACKEND"] = "jax"
import jax, keras, numpy as np
from mlflow_b3.correlated import group_effect_loss, pair_effect_loss
f, y = np.linspace(-1, 2, 12, dtype="float32"), (np.arange(12) % 3 == 0).astype("float32")
y, group = keras.ops.convert_to_tensor(y), np.arange(12) // 3
by_group = lambda f, sd: group_effect_loss(f, y, group, sd)
by_pair = lambda f, v: pair_effect_loss(f.reshape(6, 2), y.reshape(6, 2), v, 0.6 * v * np.ones(6))
for loss in (by_group, by_pair):
    value, (by_f, by_size) = jax.jit(jax.value_and_grad(loss, (0, 1)))(keras.ops.convert_to_tensor(f), 1.3)
    print(float(value), *np.asarray(by_f), float(by_size))
"""


def test_keras_on_jax_has_the_same_losses_and_gradients():
    """In a process of its own, because a process has one backend."""
    pytest.importorskip("jax", reason="needs JAX")
    pytest.importorskip("keras", reason="needs the extra keras")
    done = subprocess.run([sys.executable, "-c", JAX], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    y = torch.as_tensor((np.arange(12) % 3 == 0).astype(float))
    for line, pairs in zip(done.stdout.splitlines(), (False, True), strict=True):
        f = torch.linspace(-1, 2, 12, dtype=torch.float64, requires_grad=True)
        size = torch.tensor(1.3, dtype=torch.float64, requires_grad=True)
        if pairs:
            loss = pair_effect_loss(
                f.reshape(6, 2), y.reshape(6, 2), size, 0.6 * size * torch.ones(6)
            )
        else:
            loss = group_effect_loss(f, y, torch.arange(12) // 3, size)
        loss.backward()
        wanted = [float(loss.detach()), *f.grad.tolist(), float(size.grad)]
        assert list(map(float, line.split())) == pytest.approx(wanted, abs=2e-6)
