"""Models on a server, for tests to audit."""

from dataclasses import dataclass
from typing import Any

import mlflow
from example_reports import changed
from sklearn.naive_bayes import GaussianNB

from mlflow_b3 import AuditReport, Clinic
from mlflow_b3.demo import FEATURES


@dataclass(frozen=True)
class Logged:
    """A model on a server, and the run that trained it."""

    run_id: str
    model_id: str
    uri: str

    def own(self, report: AuditReport, **changes: Any) -> AuditReport:
        """Return a report as if this model had been audited."""
        settings = {"run_id": self.run_id, "model_id": self.model_id}
        return changed(report, settings=settings, **changes)


def log_model(clinic: Clinic) -> Logged:
    """Train a model and log it to the active run."""
    X, y = clinic.frame[list(FEATURES)], clinic.frame["disease"]
    info = mlflow.sklearn.log_model(
        GaussianNB().fit(X, y), name="model", pip_requirements=["scikit-learn"]
    )
    return Logged(info.run_id, info.model_id, info.model_uri)
