"""The data sets and learners of the published experiments; see published_experiments.py."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

Array = NDArray[np.float64]
Rows = NDArray[np.intp]


@dataclass(frozen=True, kw_only=True)
class Problem:
    """Data with true clusters, a learner, and the parameters of the papers' table 2."""

    name: str
    X: Array
    y: Array
    training: Rows
    validation: Rows
    fit: Callable[[Array, Array], Array]
    loss: Callable[[Array, Array], Array]
    fits: int
    n_train: int = 100
    levels: int = 200
    trend: float = 10.0
    sketch: float = 0.1
    groups: int = 7

    @property
    def methods(self) -> dict[str, tuple[str, dict[str, Any]]]:
        """The estimators, with the papers' settings of this data set."""
        return {
            "T4+mono": ("trend4+mono", {"smoothing": self.trend}),
            "Basis(7)": ("basis", {"order": 7}),
            "Sketch": ("sketch", {"groups": self.groups, "smoothing": self.sketch}),
            "default": ("auto", {}),
        }


def fit_svm(X: Array, y: Array, cost: float = 1.0) -> Array:
    """Return the weights of many linear SVMs at once, by Newton's method.

    Minimises |w|²/2 + C·Σ max(0, 1 - y·xw)², as scikit-learn's LinearSVC does, whose calls take
    ten times as long for so few rows. `X` has shape (fits, rows, columns), `y` is ±1.
    """
    weights, margins = np.zeros((X.shape[0], X.shape[2])), np.zeros(y.shape)
    todo = np.arange(len(X))
    for _ in range(100):
        part, sign, old, before = X[todo], y[todo], weights[todo], margins[todo]
        inside = (part * (sign * before < 1)[..., None]).transpose(0, 2, 1)
        matrix = 2 * cost * inside @ part + np.eye(X.shape[2])
        step = np.linalg.solve(matrix, 2 * cost * inside @ sign[..., None])[..., 0] - old
        along = (part @ step[..., None])[..., 0]
        sizes = np.array([1.0, 0.5, 0.25, 0.1])
        tried = old + sizes[:, None, None] * step
        short = np.maximum(0, 1 - sign * (before + sizes[:, None, None] * along))
        objective = (tried**2).sum(-1) / 2 + cost * (short**2).sum(-1)
        size = sizes[objective.argmin(0)][:, None]
        weights[todo], margins[todo] = old + size * step, before + size * along
        todo = todo[np.abs(step).max(1) > 1e-6]
        if not todo.size:
            return weights
    raise RuntimeError(f"{todo.size} SVMs did not converge")


def fit_regression(X: Array, y: Array) -> Array:
    """Return the weights of many linear regressions at once."""
    return np.asarray((np.linalg.pinv(X) @ y[..., None])[..., 0])


def wrong(prediction: Array, y: Array) -> Array:
    return (prediction * y <= 0).astype(float)


def squared(prediction: Array, y: Array) -> Array:
    return (prediction - y) ** 2


#: label, clusters, those of T, those of V
TABLES = {
    "heart": ("num", "country", ["cleveland", "va", "switzerland"], ["hungarian"]),
    "census": (
        "income",
        "native_country",
        ["United-States", "El-Salvador", "Germany", "Mexico", "Philippines", "Puerto-Rico"],
        ["India", "Canada"],
    ),
}


def read_problem(name: str, path: Path, fits: int) -> Problem:
    """Read a table; one-hot encode and scale its columns once, labels and clusters apart."""
    target, cluster, training, validation = TABLES[name]
    frame = pd.read_csv(path)
    frame = frame[frame[cluster].isin([*training, *validation])]
    features = pd.get_dummies(frame.drop(columns=[target, cluster])).to_numpy(float)
    features = (features - features.mean(axis=0)) / features.std(axis=0).clip(1e-9)
    return Problem(
        name=name,
        X=np.column_stack([features, np.ones(len(frame))]),
        y=np.where(frame[target] == sorted(set(frame[target]))[-1], 1.0, -1.0),
        training=np.flatnonzero(frame[cluster].isin(training)),
        validation=np.flatnonzero(frame[cluster].isin(validation)),
        fit=fit_svm,
        loss=wrong,
        fits=fits,
    )


def make_synthetic(fits: int, seed: int, rows: int = 1000) -> Problem:
    """Simulate two parts with a plane each; a learner that saw one of them is far off on the other.

    T: x ~ N((0, 0), I), y = x₁ + x₂ + ε. V: x ~ N((4, 0), I), y = 2 - x₁ + x₂ + ε. ε ~ N(0, ½²).
    One leaked row lies four standard deviations away and turns the fitted plane a long way.
    """
    rng = np.random.default_rng([seed, 3])
    X = rng.normal(size=(2 * rows, 2))
    far = np.arange(2 * rows) >= rows
    X[far, 0] += 4
    y = np.where(far, 2 - X[:, 0], X[:, 0]) + X[:, 1] + 0.5 * rng.normal(size=2 * rows)
    return Problem(
        name="synthetic",
        X=np.column_stack([X, np.ones(2 * rows)]),
        y=y,
        training=np.flatnonzero(~far),
        validation=np.flatnonzero(far),
        fit=fit_regression,
        loss=squared,
        fits=fits,
        n_train=15,
        levels=30,
        trend=0.1,
        sketch=0.01,
        groups=10,
    )
