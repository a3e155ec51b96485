"""Where two audited models change places: at which rate of wrong ids, or variance, curves cross."""

from dataclasses import dataclass
from itertools import pairwise

from mlflow_b3.comparability import same_law
from mlflow_b3.corrected_scores import cvc_of, same_world
from mlflow_b3.estimation.sensitivity import Sensitivity
from mlflow_b3.reporting.report import AuditReport

SPLIT_RATE, CLUSTER_ERROR, LEAKED_SHARE = "split rate", "cluster error", "leaked share p0"
SD_MULTIPLIER = "multiplier of the SDs"


@dataclass(frozen=True, kw_only=True)
class Crossing:
    """Where two curves of e0, or of CV_c, cross.

    Attributes
    ----------
    at : float or None
        The smallest value of the axis at which they do; None where none is known.
    up_to : float or None
        The end of what was searched; None where nothing could be.
    why_not : str
        Why nothing could be.
    """

    at: float | None = None
    up_to: float | None = None
    why_not: str = ""


def common_axis(by: str, reports: list[AuditReport]) -> str:
    """Return what the crossings of these audits are given in."""
    if by == "cvc":
        return SD_MULTIPLIER
    if all(report.settings.pattern == "fragments" for report in reports):
        return SPLIT_RATE
    # where the share of validation rows is fixed, no rate of wrong ids stands behind a p0
    if all(report.sensitivity.error is None for report in reports):
        return LEAKED_SHARE
    return CLUSTER_ERROR


def find_crossing(a: AuditReport, b: AuditReport, axis: str) -> Crossing:
    """Return the smallest value of an axis at which two sensitivity curves change places."""
    if axis == SD_MULTIPLIER:
        if not same_world(a, b):
            return Crossing(why_not="their corrections were simulated by different models")
        return _cross(
            *(dict(zip(r.multipliers, r.sensitivity, strict=True)) for r in map(cvc_of, (a, b)))
        )
    ours, theirs = _curve(a, axis), _curve(b, axis)
    if not ours or not theirs:
        return Crossing(why_not=f"not both audits have a curve over the {axis}")
    if not same_law(a, b, axis == SPLIT_RATE):
        return Crossing(why_not="their sensitivity curves were not made in the same way")
    return _cross(ours, theirs)


def _cross(ours: dict[float, float], theirs: dict[float, float]) -> Crossing:
    """Return where two curves cross, by the points that both have."""
    common = [x for x in ours if x in theirs]
    if len(common) < 2:
        return Crossing(why_not="their sensitivity curves have no points in common")
    apart = [(x, theirs[x] - ours[x]) for x in common if theirs[x] != ours[x]]
    for (x, before), (y, after) in pairwise(apart):
        if before * after < 0:
            return Crossing(
                at=float(x + before / (before - after) * (y - x)), up_to=float(common[-1])
            )
    return Crossing(up_to=float(common[-1]))


def _curve(report: AuditReport, axis: str) -> dict[float, float]:
    """Return e0 by the values of an axis; nothing where the audit has no such curve."""
    curve: Sensitivity | None = report.sensitivity
    if axis == SPLIT_RATE:
        curve = report.fragment_sensitivity
    if curve is None or (curve.error is None) != (axis == LEAKED_SHARE):
        return {}
    x = curve.p0 if curve.error is None else curve.error
    return dict(zip(x, curve.e0, strict=True))
