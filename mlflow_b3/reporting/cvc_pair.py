"""How e0 of an audit and corrected cross-validation relate."""

from mlflow_b3.correlated.report import CvcReport
from mlflow_b3.reporting.cvc_words import apart, joined, scope_words, value_words
from mlflow_b3.reporting.report import AuditReport
from mlflow_b3.reporting.sensitivity_chart import claimed_errors
from mlflow_b3.wording import number, percent

#: From this share of wrong ids on it is shown what the correction would be without them.
MANY_WRONG = 0.05


def summarise_cvc(report: AuditReport) -> str:
    """Return corrected cross-validation in a sentence, to stand behind the answer of the audit."""
    cvc = report.cvc
    if cvc is None:
        return ""
    if cvc.cvc is None:
        return (
            " The correction of cross-validation for correlated rows (CV_c) is withheld; the findings "
            "say why."
        )
    low = ", by an approximation of lower quality" if cvc.lower_quality else ""
    return (
        f" Cross-validation corrected for correlated rows (CV_c) says "
        f"{value_words(cvc.cvc, cvc.interval)} {scope_words(cvc)}{low}."
    )


def explain_pair(report: AuditReport) -> list[str]:
    """Return what e0 and CV_c say together."""
    cvc, cluster = report.cvc, report.settings.cluster
    if cvc is None or cvc.cvc is None:
        return []
    if report.e0 is None:
        return [
            "e0 is not known, so that CV_c cannot be held against it. CV_c takes the ids as right: it "
            "is no answer to how many of them are wrong."
        ]
    if cluster not in cvc.new:
        return [
            f"e0 ({number(report.e0)}) is about new {cluster!r}, CV_c ({number(cvc.cvc)}) is not: it "
            f"holds {scope_words(cvc)}. They answer different questions."
        ]
    if report.settings.refit_strength != "full" and report.e0 <= cvc.cvc:
        return [
            f"e0 ({number(report.e0)}) and CV_c ({number(cvc.cvc)}) cannot be compared: e0 is a lower "
            "bound, because part of the model was not trained again."
        ]
    start = []
    if report.settings.claim == (0.0, 0.0):
        start = [
            f"The ids were taken as right, so that e0 is the score by folds of whole {cluster!r}, up to "
            "the noise of the fitted curve."
        ]
    return [*start, _reading(report, cvc, report.e0, cvc.cvc)]


def _reading(report: AuditReport, cvc: CvcReport, e0: float, value: float) -> str:
    cluster = report.settings.cluster
    side = apart(e0, report.e0_interval, value, cvc.interval)
    if side > 0:
        wrong = "so many ids are wrong that the groups look more alike than they are"
        if report.settings.claim == (0.0, 0.0):
            wrong = "ids are wrong after all"
        return (
            f"e0 ({number(e0)}) is well above CV_c ({number(value)}): either features carry a "
            f"signature of their cluster, which CV_c does not see, or {wrong}. Take e0, the "
            f"larger.{_without_wrong_ids(report, cvc)}"
        )
    if side < 0:
        others = [repr(name) for name in cvc.new if name != cluster]
        level = (
            f"at a level that e0 was not told ({joined(others)})" if others else "in another way"
        )
        return (
            f"e0 ({number(e0)}) is well below CV_c ({number(value)}): rows depend on each other "
            f"{level}, or the extrapolation to e0 is unstable (look at the residual of the loss "
            "curve). Until that is known take CV_c, the larger."
        )
    return (
        f"e0 ({number(e0)}) and CV_c ({number(value)}) differ by no more than their noise. Where one "
        f"number is needed, take the larger, {number(max(e0, value))}."
    )


def _without_wrong_ids(report: AuditReport, cvc: CvcReport) -> str:
    """Return what the correction would be if the wrong ids had weakened it as in simulations."""
    claimed = claimed_errors(report, report.sensitivity)
    by_error = claimed is not None and report.sensitivity.error is not None
    if claimed is None or not by_error or cvc.bias is None or not MANY_WRONG < claimed[1] < 1:
        return ""
    wrong = claimed[1]
    larger = cvc.bias / (1 - wrong) ** 3
    return (
        f" If {percent(wrong)} of the ids are wrong, and weaken the correction as in simulations, it "
        f"would be {number(larger)} instead of {number(cvc.bias)} without them, and CV_c "
        f"{number(cvc.cv + larger)}: a what-if, not an estimate."
    )
