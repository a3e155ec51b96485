"""Does a refit on the table's rows give the model that was logged?"""

from itertools import permutations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mlflow_b3.data import AuditData
from mlflow_b3.errors import PredictionError
from mlflow_b3.losses import Predictor
from mlflow_b3.refit.interface import Learner, Rows

Shares = NDArray[np.float64]
#: Classes up to which all orders are tried.
MOST_ORDERED = 4


def measure_agreement(learner: Learner, table: AuditData) -> float | None:
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
    float or None
        For classes the mean overlap of the predicted probabilities, Σ_k min(p_k, q_k), which for
        labels alone is the share of equal ones; for values the share of the logged predictions'
        variance that the refit's explain, 1 - mean((a - b)²)/var(b). None where the logged model is
        not at hand, or speaks of other classes.
    """
    logged = learner.original
    if logged is None:
        return None
    rows = table.as_taken().features  # of a large table a copy, which is gone after the fit
    again = learner.fit(Rows(X=rows, target=table.target, ids=table.ids, weight=table.weight))
    del rows
    X = table.features
    if learner.task == "regression":
        return _explained(
            np.asarray(again.predict("value", X), dtype=float).ravel(),
            np.asarray(logged.predict("value", X), dtype=float).ravel(),
        )
    for kind in ("probability", "label"):
        try:
            before, after = _shares(logged, kind, X), _shares(again, kind, X)
        except PredictionError:
            continue  # it gives labels only
        if before is None or after is None or before.shape != after.shape:
            return None
        return _overlap(before, after, same=_classes(logged) == _classes(again))
    return None


def _classes(predictor: Predictor) -> set[Any]:
    return set() if predictor.classes is None else set(predictor.classes.tolist())


def _overlap(before: Shares, after: Shares, *, same: bool) -> float | None:
    """Return the mean overlap of probabilities.

    A library that wants classes coded knows them as 0, 1, … where the table has words. Which word
    had which code is not stored: the order in which the two models agree best is taken.
    """
    orders = [tuple(range(before.shape[1]))]
    if not same:
        if before.shape[1] > MOST_ORDERED:
            return None
        orders = list(permutations(orders[0]))
    return max(
        float(np.minimum(before[:, list(order)], after).sum(axis=1).mean()) for order in orders
    )


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
