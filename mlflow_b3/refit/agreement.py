"""What a few refits tell before an audit: is it the same model, and does its seed matter?"""

from dataclasses import dataclass
from itertools import permutations
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from mlflow_b3.data import AuditData
from mlflow_b3.errors import PredictionError
from mlflow_b3.losses import Predictor
from mlflow_b3.refit.interface import Learner, Rows

Shares = NDArray[np.float64]
#: Classes up to which all orders are tried.
MOST_ORDERED = 4
CLASSES_READ = "its classes were read as those of the table with which it agrees best"
#: Share of the rows on which it is tried out whether the seed of a learner matters.
TRIED_SHARE = 0.8
#: Rows on which it is tried out which columns a learner takes.
TRIED_ROWS = 200


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """How far a refit on all rows is the original model.

    Attributes
    ----------
    value : float or None
        For classes the mean overlap of the predicted probabilities, Σ_k min(p_k, q_k), which for
        labels alone is the share of equal ones; for values the share of the original predictions'
        variance that the refit's explain, 1 - mean((a - b)²)/var(b). None where the original is not
        at hand, or speaks of other classes.
    reading : str
        A sentence on which class of the model was taken for which one of the table, where their
        names differ.
    """

    value: float | None = None
    reading: str = ""


def measure_agreement(learner: Learner, table: AuditData) -> Agreement:
    """Train on all rows of the table and compare with the logged model there.

    A training procedure that was recovered rightly, given the rows of the original training, gives
    the original again. Other rows, chance, or parameters that were lost make it another model.

    Parameters
    ----------
    learner : Learner
    table : AuditData
        The rows in the learner's form, which its `original` takes as well.

    Returns
    -------
    Agreement
    """
    logged = learner.original
    if logged is None:
        return Agreement()
    rows = table.as_taken().features  # of a large table a copy, which is gone after the fit
    again = learner.fit(Rows(X=rows, target=table.target, ids=table.ids, weight=table.weight))
    del rows
    X = table.features
    if learner.task == "regression":
        explained = _explained(
            np.asarray(again.predict("value", X), dtype=float).ravel(),
            np.asarray(logged.predict("value", X), dtype=float).ravel(),
        )
        return Agreement(value=explained)
    for kind in ("probability", "label"):
        try:
            before, after = _shares(logged, kind, X), _shares(again, kind, X)
        except PredictionError:
            continue  # it gives labels only
        if before is None or after is None or before.shape != after.shape:
            return Agreement()
        return _overlap(before, after, logged, again)
    return Agreement()


def _classes(predictor: Predictor) -> set[Any]:
    return set() if predictor.classes is None else set(predictor.classes.tolist())


def _overlap(before: Shares, after: Shares, logged: Predictor, again: Predictor) -> Agreement:
    """Return the mean overlap of probabilities.

    A library that wants classes coded knows them as 0, 1, … where the table has words. Which word
    had which code is not stored: the order in which the two models agree best is taken, and named,
    because labels that were swapped agree as well.
    """
    if _classes(logged) == _classes(again):
        return Agreement(value=_mean_overlap(before, after))
    if before.shape[1] > MOST_ORDERED:
        return Agreement()
    assert logged.classes is not None
    assert again.classes is not None
    orders = list(permutations(range(before.shape[1])))
    best = max(orders, key=lambda order: _mean_overlap(before[:, list(order)], after))
    codes, names = np.sort(logged.classes).tolist(), np.sort(again.classes).tolist()
    pairs = [f"{codes[code]!r} as {name!r}" for code, name in zip(best, names, strict=True)]
    return Agreement(
        value=_mean_overlap(before[:, list(best)], after),
        reading=f"{CLASSES_READ}, {', '.join(pairs)}: check that the labels are not swapped",
    )


def _mean_overlap(before: Shares, after: Shares) -> float:
    return float(np.minimum(before, after).sum(axis=1).mean())


def refused_columns(learner: Learner, table: AuditData) -> dict[str, str]:
    """Return the columns without which a learner can be trained and with which it cannot.

    Only texts, dates and categories are suspected, and tried on few rows. Nothing is returned where the
    learner takes them, or fails for other reasons.

    Returns
    -------
    dict of str to str
        The dtype of each such column.
    """
    features = table.features
    if not isinstance(features, pd.DataFrame):
        return {}
    suspects = [
        name for name in features.columns if not pd.api.types.is_numeric_dtype(features[name])
    ]
    if not suspects:
        return {}
    rows = np.sort(np.random.default_rng(0).permutation(table.n_rows)[:TRIED_ROWS])
    if learner.task == "classification" and (table.target[rows] == table.target[rows[0]]).all():
        rows = np.arange(table.n_rows)

    def fails(dropped: list[str]) -> bool:
        kept = features.iloc[rows].drop(columns=dropped)
        try:
            weight = None if table.weight is None else table.weight[rows]
            learner.fit(
                Rows(X=kept, target=table.target[rows], ids=table.ids[rows], weight=weight), 0
            )
        except Exception:  # whatever a learner raises
            return True
        return False

    every = len(suspects) == features.shape[1]
    if not fails([]) or (not every and fails(suspects)):
        return {}
    alone = [name for name in suspects if fails([other for other in suspects if other != name])]
    return {str(name): str(features[name].dtype) for name in alone or suspects}


def seed_matters(learner: Learner, table: AuditData) -> bool:
    """Train twice on the same rows with different seeds; return whether predictions differ.

    A parameter `random_state` is not randomness: most solvers of logistic regression, for example,
    make no use of it. Where it has no effect, refits that differ by it alone are copies. Four fifths of
    the rows are trained on, as in most folds, because some learners draw at random from a number of
    rows on; all are predicted.
    """
    rng = np.random.default_rng(0)
    rows = np.sort(rng.permutation(table.n_rows)[: int(TRIED_SHARE * table.n_rows)])
    if learner.task == "classification" and (table.target[rows] == table.target[rows[0]]).all():
        return True  # of one class nothing is learned
    weight = None if table.weight is None else table.weight[rows]
    first, second = (
        learner.fit(
            Rows(X=table.take(rows), target=table.target[rows], ids=table.ids[rows], weight=weight),
            seed,
        )
        for seed in (1, 2)
    )
    kinds = ("value",) if learner.task == "regression" else ("probability", "decision", "label")
    for kind in kinds:
        try:
            a, b = (np.asarray(p.predict(kind, table.features)) for p in (first, second))
        except PredictionError:
            continue
        if a.dtype.kind in "fiu" and b.dtype.kind in "fiu":
            return not np.allclose(a, b, rtol=1e-9, atol=1e-12)
        return not np.array_equal(a, b)
    return True


def _explained(again: NDArray[np.float64], logged: NDArray[np.float64]) -> float | None:
    variance = float(np.var(logged))
    return None if variance == 0 else float(1 - np.mean((again - logged) ** 2) / variance)


def _shares(predictor: Predictor, kind: str, X: Any) -> Shares | None:
    """Return the probability of each class, in sorted order; certainty where there are labels."""
    given = np.asarray(predictor.predict(kind, X))
    classes = predictor.classes
    if classes is None:
        return None
    order = np.argsort(classes)
    if kind == "label":
        equal = np.equal.outer(given.reshape(len(X)), classes[order])
        return np.asarray(equal, dtype=float)
    return np.asarray(given[:, order], dtype=float)
