"""Holds corrected cross-validation against the limit of a policy."""

from collections.abc import Iterator

from mlflow_b3.correlated.report import CvcReport
from mlflow_b3.gating.limits import is_known, limits_of, unknown_limit
from mlflow_b3.gating.policy import Policy
from mlflow_b3.gating.reasons import FAIL, INCONCLUSIVE, PASS, Reason
from mlflow_b3.reporting.report import AuditReport
from mlflow_b3.wording import number

CHECK, CONSTANT_CHECK = "cvc_high", "cvc_constant"


def judge_corrected(policy: Policy, report: AuditReport) -> Iterator[Reason]:
    """Yield what a policy says about CV_c, where the audit has it: the limit is that of e0.

    The two see different leaks, e0 wrong ids and CV_c correlation of any kind that was named, so
    that both must stay below.
    """
    if report.cvc is None:
        return
    for is_constant, limit, words in limits_of(policy, report):
        check = CONSTANT_CHECK if is_constant else CHECK
        yield _judge(check, report, report.cvc, limit, words)


def _judge(
    check: str, report: AuditReport, cvc: CvcReport, limit: float | None, words: str
) -> Reason:
    if limit is None or not is_known(limit):
        return Reason(check=check, outcome=INCONCLUSIVE, text=unknown_limit(report))
    found = (cvc.cvc, *(cvc.interval or ()))
    if not all(value is None or is_known(value) for value in found):
        return Reason(check=check, outcome=FAIL, text="CV_c or an end of its interval is no number")
    if cvc.cvc is None or cvc.interval is None:
        return Reason(check=check, outcome=INCONCLUSIVE, text=_withheld(cvc))
    if cvc.lower_quality or report.settings.refit_strength != "full":
        text = (
            f"CV_c by the engine {cvc.engine!r} is an approximation that may miss part of the bias"
        )
        return Reason(check=check, outcome=INCONCLUSIVE, text=text)
    return _beside(check, cvc.interval, limit, words)


def _withheld(cvc: CvcReport) -> str:
    codes = ", ".join(dict.fromkeys(finding.code for finding in cvc.findings))
    return "CV_c, or its interval, is withheld" + (
        f"; the findings say why: {codes}" if codes else ""
    )


def _beside(check: str, interval: tuple[float, float], limit: float, words: str) -> Reason:
    low, high = interval
    if high < low:
        text = f"the interval of CV_c ends at {number(high)}, before it begins at {number(low)}"
        return Reason(check=check, outcome=FAIL, text=text)
    if low > limit:
        text = f"CV_c is at least {number(low)}, which is above the limit, {words}"
        return Reason(check=check, outcome=FAIL, text=text)
    if high > limit:
        text = (
            f"CV_c is between {number(low)} and {number(high)}; the limit, {words}, lies in between"
        )
        return Reason(check=check, outcome=INCONCLUSIVE, text=text, waivable=True)
    text = f"CV_c is at most {number(high)}; the limit is {words}"
    return Reason(check=check, outcome=PASS, text=text)
