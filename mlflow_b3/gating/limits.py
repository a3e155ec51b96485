"""The loss that a policy lets a model have."""

import math

from mlflow_b3.gating.policy import Policy
from mlflow_b3.gating.policy_values import CONSTANT
from mlflow_b3.reporting.report import AuditReport
from mlflow_b3.wording import number


def is_known(value: float | None) -> bool:
    """Whether a value is a number; comparisons with NaN would all be false."""
    return value is not None and math.isfinite(value)


def limit_of(policy: Policy, report: AuditReport) -> float | None:
    """Return the loss that e0 and CV_c must stay below; None where it is not known."""
    if policy.e0_high == CONSTANT:
        return report.constant_loss
    return None if policy.e0_high is None else float(policy.e0_high)


def limit_words(policy: Policy, limit: float) -> str:
    """Return the limit with where it comes from."""
    return number(limit) + (" of the best constant answer" if policy.e0_high == CONSTANT else "")


def unknown_limit(report: AuditReport) -> str:
    """Return why there is nothing to hold the loss against."""
    return f"the loss of the best constant answer is not known for the loss {report.settings.loss}"
