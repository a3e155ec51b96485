"""Corrected cross-validation made by hand, whose numbers tests may change."""

from dataclasses import replace
from typing import Any

import numpy as np

from mlflow_b3 import AuditReport
from mlflow_b3.correlated.report import CvcReport, GroupLevel
from mlflow_b3.estimation.influence import Influence

CVC = CvcReport(
    cv=0.15,
    cv_interval=(0.12, 0.18),
    cvc=0.25,
    bias=0.1,
    bias_interval=(0.05, 0.17),
    bias_error=0.004,
    interval=(0.19, 0.33),
    grouped=0.26,
    grouped_interval=(0.22, 0.3),
    grouped_by="patient_id",
    groups=(
        GroupLevel(name="patient_id", groups=200, new=True, sd=1.0, interval=(0.8, 1.3)),
        GroupLevel(name="day", groups=5, new=False, sd=0.5, interval=(0.3, 0.75)),
    ),
    loss="zero_one",
    task="classification",
    engine="fast",
    working="score",
    folds=5,
    draws=400,
    n_rows=2000,
    seed=7,
    slope=0.9,
    multipliers=(0.0, 0.5, 1.0, 1.5, 2.0),
    sensitivity=(0.15, 0.19, 0.25, 0.31, 0.36),
    settings={"working_digest": "a1b2c3d4e5", "folds_digest": "f0"},
)


def corrected(**changes: Any) -> CvcReport:
    """Return the example with some of its numbers changed."""
    return replace(CVC, **changes)


def with_cvc(report: AuditReport, **changes: Any) -> AuditReport:
    """Return an audit as the method "cvc" would have made it, its ids taken as right."""
    settings = replace(report.settings, claim=(0.0, 0.0))
    cv = {"cv": report.iid, "n_rows": report.settings.n_rows}
    return replace(report, settings=settings, cvc=corrected(**{**cv, **changes}))


def influence(cv: Any, readings: int = 0) -> Influence:
    """Return what clusters of equal size add to the cross-validated loss, and as much to all others."""
    column = np.asarray(cv, dtype=float)
    return Influence(
        unit="clusters",
        ids=np.arange(len(column)),
        share=np.full(len(column), 1 / len(column)),
        loco=column,
        e0=np.tile(column[:, None], readings),
        cv=column,
    )
