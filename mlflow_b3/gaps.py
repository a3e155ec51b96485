"""By how much the score of one audit exceeds that of another, with the interval."""

import math
from dataclasses import replace

import numpy as np
from scipy import stats

from mlflow_b3.corrected_scores import cvc_of, same_world
from mlflow_b3.correlated.report import CvcReport
from mlflow_b3.estimation.differences import (
    Uncertain,
    corrected_influence,
    difference_interval,
    effective_freedom,
)
from mlflow_b3.estimation.influence import Array
from mlflow_b3.estimation.intervals import CONFIDENCE
from mlflow_b3.reporting.report import AuditReport


def score_gap(
    by: str, a: AuditReport, b: AuditReport, paired: bool, pairs: int
) -> tuple[float, tuple[float, float]]:
    """Return by how much the second score exceeds the first, with the interval.

    Parameters
    ----------
    by : {"e0", "loco", "cvc"}
    a, b : AuditReport
    paired : bool
        They are of the same clusters, and the same leakage or folds.
    pairs : int
        How many differences the interval is to hold for at once.
    """
    if by == "loco":
        ours, theirs = [_loco(a)], [_loco(b)]
        value = b.loco - a.loco
    elif by == "cvc":
        ours, theirs = _corrections(a, b, paired)
        value = (cvc_of(b).cvc or 0.0) - (cvc_of(a).cvc or 0.0)
    else:
        read = _readings if paired else _headline
        ours, theirs = read(a), read(b)
        value = (b.e0 or 0.0) - (a.e0 or 0.0)
    ends = [
        difference_interval(y, x, paired=paired, pairs=pairs)
        for x, y in zip(ours, theirs, strict=True)
    ]
    return value, (min(value, *(e[0] for e in ends)), max(value, *(e[1] for e in ends)))


def _loco(report: AuditReport) -> Uncertain:
    influence = report.influence
    column = None if influence is None else influence.loco
    return _uncertain(report, report.loco, report.loco_interval, column)


def _readings(report: AuditReport) -> list[Uncertain]:
    assert report.influence is not None
    return [
        _uncertain(report, reading.e0, (reading.low, reading.high), column, reading.noise)
        for reading, column in zip(report.readings, report.influence.e0.T, strict=True)
    ]


def _headline(report: AuditReport) -> list[Uncertain]:
    """Return e0 with the interval over all of its range."""
    low, high = report.e0_interval
    e0 = report.e0
    assert e0 is not None
    assert high is not None
    column, noise = None, 0.0
    if report.influence is not None and report.readings:
        place = min(range(len(report.readings)), key=lambda n: abs(report.readings[n].e0 - e0))
        column, noise = report.influence.e0[:, place], report.readings[place].noise
    return [_uncertain(report, e0, (low, high), column, noise)]


def _corrections(
    a: AuditReport, b: AuditReport, paired: bool
) -> tuple[list[Uncertain], list[Uncertain]]:
    """Return CV_c of two audits, at standard deviations that both share where they do.

    In one simulated world both corrections rise and fall with the same standard deviations, so
    that the difference is taken at the ends of what these may be, and at their estimates. Elsewhere
    each correction has its uncertainty for itself.
    """
    ends = _multiples(cvc_of(a)) if paired and same_world(a, b) else None
    if ends is None:
        return [_correction(a)], [_correction(b)]
    return _at_multiples(a, ends), _at_multiples(b, ends)


def _correction(report: AuditReport) -> Uncertain:
    cvc, influence = cvc_of(report), report.influence
    assert cvc.cvc is not None
    assert cvc.interval is not None
    column = None if influence is None else influence.cv
    return _uncertain(report, cvc.cvc, cvc.interval, column, cvc.bias_error or 0.0)


def _multiples(cvc: CvcReport) -> tuple[float, ...] | None:
    """Return how many times their estimates the standard deviations may be, with 1 in between.

    None where one is 0, or may be larger than what was simulated.
    """
    parts = [cvc.field] if cvc.field is not None else cvc.groups
    ends = [end / part.sd for part in parts if part.sd and part.interval for end in part.interval]
    if len(ends) < 2 * len(parts) or max(ends) > max(cvc.multipliers, default=0.0):
        return None
    return min(ends), 1.0, max(ends)


def _at_multiples(report: AuditReport, ends: tuple[float, ...]) -> list[Uncertain]:
    """Return CV_c at multiples of the standard deviations, with the noise of clusters and draws."""
    assert report.influence is not None
    cvc = cvc_of(report)
    values = np.interp(ends, cvc.multipliers, cvc.sensitivity)
    found = []
    for value in map(float, values):
        known = _uncertain(
            report, value, (value, value), report.influence.cv, cvc.bias_error or 0.0
        )
        quantile = float(stats.t.ppf((1 + CONFIDENCE) / 2, known.freedom))
        reach = quantile * math.sqrt(known.variance)
        found.append(replace(known, low=value - reach, high=value + reach))
    return found


def _uncertain(
    report: AuditReport,
    value: float,
    ends: tuple[float, float],
    influence: Array | None,
    noise: float = 0.0,
) -> Uncertain:
    freedom = float(report.curve.degrees_of_freedom or 1)
    if influence is not None:
        assert report.influence is not None
        freedom = effective_freedom(report.influence.share)
        influence = corrected_influence(influence, report.influence.share)
    return Uncertain(
        value=value, low=ends[0], high=ends[1], freedom=freedom, noise=noise, influence=influence
    )
