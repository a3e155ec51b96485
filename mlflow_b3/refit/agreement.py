"""Does a refit on the table's rows give the model that was logged?"""

import numpy as np

from mlflow_b3.data import AuditData
from mlflow_b3.refit.interface import Learner, Rows


def measure_agreement(learner: Learner, table: AuditData, represented: AuditData) -> float | None:
    """Train on all rows of the table and compare with the logged model there.

    A training procedure that was recovered rightly, given the rows of the original training, gives
    the original again. Other rows, chance, or parameters that were lost make it another model.

    Parameters
    ----------
    learner : Learner
    table, represented : AuditData
        The rows as the logged model wants them, and as the learner wants them.

    Returns
    -------
    float or None
        The share of equal labels for classes; for values the share of the logged predictions'
        variance that the refit's explain, 1 - mean((a - b)²)/var(b). None where the logged model is
        not at hand, or does not speak of the table's labels.
    """
    if learner.original is None:
        return None
    kind = "label" if learner.task == "classification" else "value"
    logged = np.asarray(learner.original.predict(kind, table.features)).reshape(table.n_rows)
    if kind == "label" and not set(logged.tolist()) <= set(table.target.tolist()):
        return None
    rows = Rows(
        X=represented.features, target=table.target, ids=table.ids, weight=represented.weight
    )
    again = np.asarray(learner.fit(rows).predict(kind, represented.features)).reshape(table.n_rows)
    if kind == "label":
        return float(np.mean(again == logged))
    variance = float(np.var(logged))
    if variance == 0:
        return None
    return float(1 - np.mean((again - logged) ** 2) / variance)
