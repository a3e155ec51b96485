"""The loss that a policy lets a model have."""

import math
from collections.abc import Iterator

from mlflow_b3.gating.policy import Policy
from mlflow_b3.gating.policy_values import CONSTANT
from mlflow_b3.reporting.report import AuditReport
from mlflow_b3.wording import number

OF_CONSTANT = " of the best constant answer"


def is_known(value: float | None) -> bool:
    """Whether a value is a number; comparisons with NaN would all be false."""
    return value is not None and math.isfinite(value)


def limit_of(policy: Policy, report: AuditReport) -> float | None:
    """Return the loss that e0 and CV_c must stay below; None where it is not known."""
    if policy.e0_high == CONSTANT:
        return report.constant_loss
    return None if policy.e0_high is None else float(policy.e0_high)


def limits_of(policy: Policy, report: AuditReport) -> Iterator[tuple[bool, float | None, str]]:
    """Yield the losses that e0 and CV_c must stay below, each with its words.

    The first value says whether it is the best constant's beside a numeric limit: a limit that no
    useful model would miss must not replace the comparison with no model at all.
    """
    if policy.e0_high is None:
        return
    limit = limit_of(policy, report)
    yield False, limit, "" if limit is None else limit_words(policy, limit)
    if policy.e0_high != CONSTANT:
        constant = report.constant_loss
        yield True, constant, "" if constant is None else f"{number(constant)}{OF_CONSTANT}"


def limit_words(policy: Policy, limit: float) -> str:
    """Return the limit with where it comes from."""
    return number(limit) + (OF_CONSTANT if policy.e0_high == CONSTANT else "")


def unknown_limit(report: AuditReport) -> str:
    """Return why there is nothing to hold the loss against."""
    return f"the loss of the best constant answer is not known for the loss {report.settings.loss}"
