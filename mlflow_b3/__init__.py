"""Audit MLflow models for scores inflated by leaked dependency between clusters."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from mlflow_b3.version import __version__

if TYPE_CHECKING:
    from mlflow_b3.auditing.audit import audit
    from mlflow_b3.auditing.comparison import Comparison
    from mlflow_b3.auditing.report import AuditReport
    from mlflow_b3.correlated.cvc import cvc
    from mlflow_b3.correlated.report import CvcReport
    from mlflow_b3.data.group_leakage import assert_no_group_leakage
    from mlflow_b3.demo import Clinic, make_clinic
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
    from mlflow_b3.estimation.dose import DoseCurve
    from mlflow_b3.estimation.estimate import (
        Estimate,
        LossDistribution,
        Method,
        estimate,
        estimate_distribution,
    )
    from mlflow_b3.estimation.fragments import (
        DoseEstimate,
        FragmentEstimate,
        estimate_fragments,
        seen_share,
    )
    from mlflow_b3.estimation.leakage_test import LeakageTest, leakage_test
    from mlflow_b3.estimation.p0 import P0Bound, P0Search, bound_p0, search_p0
    from mlflow_b3.estimation.problem import SeenShare
    from mlflow_b3.estimation.sensitivity import Sensitivity, sensitivity
    from mlflow_b3.evidence.policy import Policy
    from mlflow_b3.evidence.verdict import Verdict
    from mlflow_b3.gating.attesting import Attestation, attest
    from mlflow_b3.gating.gate import Verification, gate, verify
    from mlflow_b3.measurement.curve import DoseLoss, FragmentLosses, LossCurve
    from mlflow_b3.measurement.design import LevelPlan, plan_levels
    from mlflow_b3.measurement.refits import Refits
    from mlflow_b3.options import Design, LinkageEvidence, RefitOptions, Running
    from mlflow_b3.refit.trainer import log_trainer
    from mlflow_b3.results import Finding
    from mlflow_b3.tracking.comparing import compare
    from mlflow_b3.tracking.preregistration import preregister
    from mlflow_b3.tracking.recording import record


__all__ = [
    "Attestation",
    "AuditReport",
    "B3Error",
    "Clinic",
    "Comparison",
    "CvcReport",
    "Design",
    "DoseCurve",
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
    "LinkageEvidence",
    "LossCurve",
    "LossDistribution",
    "Method",
    "ModelError",
    "P0Bound",
    "P0Search",
    "Policy",
    "RefitOptions",
    "Refits",
    "Running",
    "SeenShare",
    "Sensitivity",
    "SolverError",
    "TrackingError",
    "Verdict",
    "Verification",
    "__version__",
    "assert_no_group_leakage",
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
    "AuditReport": "auditing.report",
    "B3Error": "errors",
    "Clinic": "demo",
    "Comparison": "auditing.comparison",
    "CvcReport": "correlated.report",
    "Design": "options",
    "DoseCurve": "estimation.dose",
    "DoseEstimate": "estimation.fragments",
    "DoseLoss": "measurement.curve",
    "Estimate": "estimation.estimate",
    "EvidenceError": "errors",
    "Finding": "results",
    "FitError": "errors",
    "FragmentEstimate": "estimation.fragments",
    "FragmentLosses": "measurement.curve",
    "InputError": "errors",
    "InterruptedAudit": "errors",
    "LeakageTest": "estimation.leakage_test",
    "LevelPlan": "measurement.design",
    "LinkageEvidence": "options",
    "LossCurve": "measurement.curve",
    "LossDistribution": "estimation.estimate",
    "Method": "estimation.estimate",
    "ModelError": "errors",
    "P0Bound": "estimation.p0",
    "P0Search": "estimation.p0",
    "Policy": "evidence.policy",
    "RefitOptions": "options",
    "Refits": "measurement.refits",
    "Running": "options",
    "SeenShare": "estimation.problem",
    "Sensitivity": "estimation.sensitivity",
    "SolverError": "errors",
    "TrackingError": "errors",
    "Verdict": "evidence.verdict",
    "Verification": "gating.gate",
    "assert_no_group_leakage": "data.group_leakage",
    "attest": "gating.attesting",
    "audit": "auditing.audit",
    "bound_p0": "estimation.p0",
    "compare": "tracking.comparing",
    "cvc": "correlated.cvc",
    "estimate": "estimation.estimate",
    "estimate_distribution": "estimation.estimate",
    "estimate_fragments": "estimation.fragments",
    "gate": "gating.gate",
    "leakage_test": "estimation.leakage_test",
    "log_trainer": "refit.trainer",
    "make_clinic": "demo",
    "plan_levels": "measurement.design",
    "preregister": "tracking.preregistration",
    "record": "tracking.recording",
    "search_p0": "estimation.p0",
    "seen_share": "estimation.fragments",
    "sensitivity": "estimation.sensitivity",
    "verify": "gating.gate",
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
