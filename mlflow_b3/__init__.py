"""Audit MLflow models for scores inflated by leaked dependency between clusters."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from mlflow_b3.version import __version__

if TYPE_CHECKING:
    from mlflow_b3 import linkage
    from mlflow_b3.auditing import audit
    from mlflow_b3.comparing import Comparison
    from mlflow_b3.correlated.cvc import cvc
    from mlflow_b3.correlated.report import CvcReport
    from mlflow_b3.datasets import Clinic, make_clinic
    from mlflow_b3.errors import (
        B3Error,
        EvidenceError,
        FitError,
        InputError,
        InterruptedAudit,
        ModelError,
        SolverError,
        TrackingError,
    )
    from mlflow_b3.estimation.distribution import LossDistribution, estimate_distribution
    from mlflow_b3.estimation.estimates import Estimate, estimate
    from mlflow_b3.estimation.fragments import (
        DoseEstimate,
        FragmentEstimate,
        estimate_fragments,
        seen_share,
    )
    from mlflow_b3.estimation.leakage_share import P0Search, search_p0
    from mlflow_b3.estimation.methods import Method
    from mlflow_b3.estimation.mixture import P0Bound, bound_p0
    from mlflow_b3.estimation.sensitivity import Sensitivity, sensitivity
    from mlflow_b3.estimation.shares import SeenShare
    from mlflow_b3.findings import Finding
    from mlflow_b3.gating.attesting import Attestation, attest
    from mlflow_b3.gating.judging import gate
    from mlflow_b3.gating.policy import Policy
    from mlflow_b3.gating.verdict import Verdict
    from mlflow_b3.gating.verifying import Verification, verify
    from mlflow_b3.hypothesis import LeakageTest, leakage_test
    from mlflow_b3.measurement.curve import DoseLoss, FragmentLosses, LossCurve
    from mlflow_b3.measurement.levels import LevelPlan, plan_levels
    from mlflow_b3.measurement.outcomes import Refits
    from mlflow_b3.refit.stored_code import log_trainer
    from mlflow_b3.reporting.report import AuditReport
    from mlflow_b3.tracking.comparison import compare
    from mlflow_b3.tracking.preregistration import preregister
    from mlflow_b3.tracking.recording import record

__all__ = [
    "Attestation",
    "AuditReport",
    "B3Error",
    "Clinic",
    "Comparison",
    "CvcReport",
    "DoseEstimate",
    "DoseLoss",
    "Estimate",
    "EvidenceError",
    "Finding",
    "FitError",
    "FragmentEstimate",
    "FragmentLosses",
    "InputError",
    "InterruptedAudit",
    "LeakageTest",
    "LevelPlan",
    "LossCurve",
    "LossDistribution",
    "Method",
    "ModelError",
    "P0Bound",
    "P0Search",
    "Policy",
    "Refits",
    "SeenShare",
    "Sensitivity",
    "SolverError",
    "TrackingError",
    "Verdict",
    "Verification",
    "__version__",
    "attest",
    "audit",
    "bound_p0",
    "compare",
    "cvc",
    "estimate",
    "estimate_distribution",
    "estimate_fragments",
    "gate",
    "leakage_test",
    "linkage",
    "log_trainer",
    "make_clinic",
    "plan_levels",
    "preregister",
    "record",
    "search_p0",
    "seen_share",
    "sensitivity",
    "verify",
]

# Names are imported when first used: `import mlflow_b3` stays fast in plugins and on the shell.
_HOMES = {
    "Attestation": "gating.attesting",
    "AuditReport": "reporting.report",
    "B3Error": "errors",
    "Clinic": "datasets",
    "Comparison": "comparing",
    "CvcReport": "correlated.report",
    "DoseEstimate": "estimation.fragments",
    "DoseLoss": "measurement.curve",
    "Estimate": "estimation.estimates",
    "EvidenceError": "errors",
    "Finding": "findings",
    "FitError": "errors",
    "FragmentEstimate": "estimation.fragments",
    "FragmentLosses": "measurement.curve",
    "InputError": "errors",
    "InterruptedAudit": "errors",
    "LeakageTest": "hypothesis",
    "LevelPlan": "measurement.levels",
    "LossCurve": "measurement.curve",
    "LossDistribution": "estimation.distribution",
    "Method": "estimation.methods",
    "ModelError": "errors",
    "P0Bound": "estimation.mixture",
    "P0Search": "estimation.leakage_share",
    "Policy": "gating.policy",
    "Refits": "measurement.outcomes",
    "SeenShare": "estimation.shares",
    "Sensitivity": "estimation.sensitivity",
    "SolverError": "errors",
    "TrackingError": "errors",
    "Verdict": "gating.verdict",
    "Verification": "gating.verifying",
    "attest": "gating.attesting",
    "audit": "auditing",
    "bound_p0": "estimation.mixture",
    "compare": "tracking.comparison",
    "cvc": "correlated.cvc",
    "estimate": "estimation.estimates",
    "estimate_distribution": "estimation.distribution",
    "estimate_fragments": "estimation.fragments",
    "gate": "gating.judging",
    "leakage_test": "hypothesis",
    "log_trainer": "refit.stored_code",
    "make_clinic": "datasets",
    "plan_levels": "measurement.levels",
    "preregister": "tracking.preregistration",
    "record": "tracking.recording",
    "search_p0": "estimation.leakage_share",
    "seen_share": "estimation.fragments",
    "sensitivity": "estimation.sensitivity",
    "verify": "gating.verifying",
}


def __getattr__(name: str) -> Any:
    if name == "linkage":
        return import_module("mlflow_b3.linkage")
    if name not in _HOMES:
        raise AttributeError(f"module 'mlflow_b3' has no attribute {name!r}")
    value = getattr(import_module(f"mlflow_b3.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
