"""The embedded demonstration: a simulated clinic, a logged model, an audit, and the truth."""

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from sklearn.neighbors import KNeighborsClassifier

from mlflow_b3.datasets import FEATURES, Clinic, make_clinic
from mlflow_b3.errors import choose
from mlflow_b3.reporting.report import AuditReport
from mlflow_b3.tracking.recording import audit_and_record
from mlflow_b3.wording import number

#: How the ids of the demonstration's clinic are damaged, by pattern.
DAMAGE = {"rows": ("cluster_error", 0.1), "fragments": ("split_rate", 0.4)}


@dataclass(frozen=True, kw_only=True)
class Demo:
    """What the demonstration made: the audit of its model, its run, and the truth."""

    report: AuditReport
    run_id: str
    truth: float

    def summary(self) -> str:
        """Return the report with the truth, which only a simulation can know."""
        low, high = self.report.e0_interval
        inside = "inside" if high is not None and low <= self.truth <= high else "outside"
        errors = {
            "ignoring clusters": self.report.iid,
            "by noisy clusters": self.report.loco,
            "corrected (e0)": self.report.e0 or 0.0,
        }
        listed = "; ".join(f"{name} {value - self.truth:+.3f}" for name, value in errors.items())
        return (
            f"{self.report}\n\n"
            "The truth (known here, because the clinic is simulated)\n"
            f"  error rate on 2000 fresh patients: {number(self.truth)}, {inside} the interval of e0.\n"
            f"  distance from it: {listed}."
        )


def run_demo(*, pattern: str = "rows", seed: int = 0, **options: Any) -> Demo:
    """Simulate a clinic, train and log a model, audit it, and compare with the truth.

    Parameters
    ----------
    pattern : {"rows", "fragments"}
        Damage 10 % of the patient ids row by row, or split 40 % of the patients in two.
    seed : int
    **options
        Passed on to `mlflow_b3.audit`.
    """
    argument, rate = DAMAGE[choose("pattern", pattern, DAMAGE)]
    clinic = make_clinic(seed=seed, **{argument: rate})  # type: ignore[arg-type]
    # brute force: the tree of the other algorithms is not among skops' trusted types
    model = KNeighborsClassifier(5, algorithm="brute")
    uri = _log(model, clinic)
    options.update({argument: rate})
    report, run_id = audit_and_record(
        uri, clinic.frame, target="disease", cluster="patient_id", seed=seed, **options
    )
    return Demo(report=report, run_id=run_id, truth=clinic.truth(model, seed=seed))


def _log(model: Any, clinic: Clinic) -> str:
    import mlflow

    X, y = clinic.frame[list(FEATURES)], clinic.frame["disease"]
    with warnings.catch_warnings(), _outside_project_run():
        # MLflow's hint about integer columns and missing values; the label has none
        warnings.filterwarnings("ignore", message="Hint: Inferred schema contains integer")
        with mlflow.start_run(run_name="clinic-training", nested=True):
            info = mlflow.sklearn.log_model(
                model.fit(X, y),
                name="clinic",
                input_example=X.head(3),
                pip_requirements=["mlflow", "scikit-learn"],
            )
    return str(info.model_uri)


@contextmanager
def _outside_project_run() -> Iterator[None]:
    """Keep `start_run` from joining the run that `mlflow run` has made for the audit."""
    project = os.environ.pop("MLFLOW_RUN_ID", None)
    try:
        yield
    finally:
        if project is not None:
            os.environ["MLFLOW_RUN_ID"] = project
