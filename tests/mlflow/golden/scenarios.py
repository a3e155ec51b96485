"""Audits of every kind, small enough to be repeated: what they say must not change by accident.

Each function returns what is written to a file of its name. `MLFLOW_B3_WRITE_GOLDEN=1 pytest
tests/mlflow/golden` writes the files anew, after a change that is meant to change numbers.
"""

import os
import signal
from collections.abc import Callable
from typing import Any
from unittest import mock

import numpy as np
import pandas as pd
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.tree import DecisionTreeClassifier

import mlflow_b3 as b3
from mlflow_b3 import linkage

COLUMNS: dict[str, Any] = {
    "target": "disease",
    "cluster": "patient_id",
    "progress": False,
    "n_jobs": 1,
}
#: The files were written by audits that extrapolate the loss curve.
CURVE: dict[str, Any] = {"method": "power"}
SMALL: dict[str, Any] = {"folds": 3, "repeats": 1, "budget": 90}
FEATURES = ["age", "bmi", "glucose", "pressure", "cholesterol"]
MISPLACED = b3.make_clinic(patients=60, records=6, cluster_error=0.1, seed=3)
SPLIT = b3.make_clinic(patients=60, records=6, split_rate=0.4, seed=2)

AUDITS: dict[str, Callable[[], b3.AuditReport]] = {}


def scenario(make: Callable[[], b3.AuditReport]) -> Callable[[], b3.AuditReport]:
    AUDITS[make.__name__] = make
    return make


def audit(model: Any, frame: pd.DataFrame = MISPLACED.frame, **arguments: Any) -> b3.AuditReport:
    return b3.audit(model, frame, **{**COLUMNS, **SMALL, **CURVE, **arguments})


@scenario
def misplaced_rows() -> b3.AuditReport:
    return audit(KNeighborsClassifier(3), cluster_error=0.1)


@scenario
def misplaced_rows_in_a_range() -> b3.AuditReport:
    return audit(DecisionTreeClassifier(random_state=0), cluster_error=(0.05, 0.15), threshold=0.45)


@scenario
def split_clusters() -> b3.AuditReport:
    return audit(KNeighborsClassifier(3), SPLIT.frame, split_rate=0.4)


@scenario
def unknown_rate() -> b3.AuditReport:
    return audit(GaussianNB(), threshold=0.45)


@scenario
def grid_search() -> b3.AuditReport:
    return audit(GaussianNB(), p0="grid")


@scenario
def mixture_bound() -> b3.AuditReport:
    return audit(GaussianNB(), p0="mixture")


@scenario
def resolved_rows() -> b3.AuditReport:
    n = len(SPLIT.patients)
    rows = np.array(linkage.sample_rows(n, 120, seed=1).rows)
    mates = [
        np.setdiff1d(np.flatnonzero(SPLIT.patients == SPLIT.patients[row]), [row]) for row in rows
    ]
    looked_up = linkage.ResolvedRows.of(rows, mates, n)
    return audit(KNeighborsClassifier(5), SPLIT.frame, resolved_rows=looked_up)


@scenario
def head_only() -> b3.AuditReport:
    """Audit by a route that gives lower limits only."""
    model = LogisticRegression().fit(
        MISPLACED.frame.drop(columns=["disease", "patient_id"]), MISPLACED.frame["disease"]
    )
    return audit(model, refit="head", cluster_error=0.1)


@scenario
def regression() -> b3.AuditReport:
    frame = MISPLACED.frame
    numbers = frame.drop(columns=["disease", "patient_id"]).select_dtypes("number")
    spread = frame["patient_id"].map(lambda name: hash_of(str(name)))
    target = numbers.iloc[:, 0] + 5 * spread
    return audit(Ridge(), frame.assign(disease=target), loss="squared", cluster_error=0.1)


@scenario
def log_loss() -> b3.AuditReport:
    return audit(GaussianNB(), loss="log", cluster_error=0.05)


@scenario
def published_estimator() -> b3.AuditReport:
    return audit(
        GaussianNB(),
        cluster_error=0.1,
        method="trend2+mono",
        scheme="replace",
        n_train=40,
        levels=8,
        budget=90,
    )


@scenario
def corrected_cross_validation() -> b3.AuditReport:
    options = {"e0_method": "power"}
    return audit(
        LogisticRegression(), method="cvc", method_options=options, cluster_error=0.1, budget=200
    )


@scenario
def stopped_early() -> b3.AuditReport:
    """Ctrl-C during the 150th refit."""
    made: list[int] = []
    fit = GaussianNB.fit

    def pressed(self: GaussianNB, X: Any, y: Any, sample_weight: Any = None) -> GaussianNB:
        made.append(len(X))
        if len(made) == 150:
            os.kill(os.getpid(), signal.SIGINT)
        return fit(self, X, y, sample_weight)

    frame = b3.make_clinic(patients=30, records=4, cluster_error=0.1, seed=0).frame
    with mock.patch.object(GaussianNB, "fit", pressed):
        return audit(GaussianNB(), frame, cluster_error=0.1, budget=200)


def hash_of(name: str) -> float:
    """Return a number between -1 and 1 that is the same for a name on every machine."""
    return sum(ord(letter) * (place + 1) for place, letter in enumerate(name)) % 21 / 10 - 1


def cvc_alone() -> b3.CvcReport:
    rng = np.random.default_rng(1)
    ward = rng.integers(0, 15, 240)
    effect = rng.normal(size=15)
    frame = pd.DataFrame({"ward": ward, "x": rng.normal(size=240), "z": rng.normal(size=240)})
    chance = 1 / (1 + np.exp(-(frame["x"] + effect[ward])))
    frame["outcome"] = (rng.random(240) < chance).astype(int)
    return b3.cvc(
        LogisticRegression(),
        frame,
        target="outcome",
        groups=["ward"],
        loss="log",
        draws=60,
        budget=100,
        progress=False,
    )


def compared() -> Any:
    """Two models audited on the same folds."""
    models = {"nearest": KNeighborsClassifier(3), "tree": DecisionTreeClassifier(random_state=0)}
    return b3.compare(
        models, MISPLACED.frame, record=False, cluster_error=0.1, **{**COLUMNS, **SMALL, **CURVE}
    )
