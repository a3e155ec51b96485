"""A data set of the B3 papers with its true clusters, a learner, and the settings of the papers' table 2."""

import io
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from experiment import MissingDataError
from numpy.typing import NDArray

Array = NDArray[np.float64]
Rows = NDArray[np.intp]


@dataclass(frozen=True, kw_only=True)
class Problem:
    """Data with true clusters, a learner, and the settings of the papers.

    `published` has the authors' mean absolute errors of e0 and their e0, `clean` the most rows of T that a trial of
    the user setting has: with all of the census the leaked tenth would be more than all of V.
    """

    name: str
    X: Array
    y: Array
    training: Rows
    validation: Rows
    fit: Callable[[Array, Array], Array]
    loss: Callable[[Array, Array], Array]
    fits: int
    e0_fits: int
    true_fits: int
    trial_fits: int
    n_train: int = 100
    levels: int = 200
    trend: float = 10.0
    sketch: float = 0.1
    groups: int = 7
    order: int = 7
    clean: int | None = None
    published: dict[str, float] = field(default_factory=dict)

    @property
    def methods(self) -> dict[str, tuple[str, dict[str, Any]]]:
        """The estimators, with the papers' settings of this data set."""
        return {
            "T4+mono": ("trend4+mono", {"smoothing": self.trend}),
            "Basis(2)": ("basis", {"order": 2}),
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


def classification(
    name: str,
    features: pd.DataFrame,
    positive: Any,
    training: Any,
    validation: Any,
    *,
    fits: int,
    **settings: Any,
) -> Problem:
    """Return a problem for the linear SVM: categories one-hot encoded, columns scaled once, on all rows.

    `positive`, `training` and `validation` say for each row whether its class is 1, and where it belongs.
    """
    used = np.asarray(training) | np.asarray(validation)
    X = pd.get_dummies(features[used]).to_numpy(float)
    X = (X - X.mean(axis=0)) / X.std(axis=0).clip(1e-9)
    return Problem(
        name=name,
        X=np.column_stack([X, np.ones(len(X))]),
        y=np.where(np.asarray(positive)[used], 1.0, -1.0),
        training=np.flatnonzero(np.asarray(training)[used]),
        validation=np.flatnonzero(np.asarray(validation)[used]),
        fit=fit_svm,
        loss=wrong,
        fits=fits,
        **{"e0_fits": 100 * fits, "true_fits": 50 * fits, "trial_fits": 40 * fits} | settings,
    )


def read_uci(path: Path, members: Sequence[str]) -> list[io.StringIO]:
    """Return the text of UCI's files: `path` is their archive (.zip), their folder, or the one file itself."""
    if path.is_dir():
        missing = [name for name in members if not (path / name).exists()]
        found = {name: (path / name).read_bytes() for name in members if name not in missing}
    elif zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            names = {Path(name).name: name for name in archive.namelist()}
            missing = [name for name in members if name not in names]
            found = {name: archive.read(names[name]) for name in members if name not in missing}
    elif len(members) == 1:
        missing, found = [], {members[0]: path.read_bytes()}
    else:
        raise MissingDataError(
            f"data={str(path)!r} is one file; give UCI's archive (.zip) or a folder with "
            f"{', '.join(members)}."
        )
    if missing:
        raise MissingDataError(f"data={str(path)!r} has no {', '.join(missing)}.")
    return [io.StringIO(found[name].decode("latin-1")) for name in members]
