"""By how much the score of one audit exceeds that of another, with the interval."""

from mlflow_b3.estimation.differences import (
    Uncertain,
    corrected_influence,
    difference_interval,
    effective_freedom,
)
from mlflow_b3.estimation.influence import Array
from mlflow_b3.reporting.report import AuditReport


def score_gap(
    by: str, a: AuditReport, b: AuditReport, paired: bool, pairs: int
) -> tuple[float, tuple[float, float]]:
    """Return by how much the second score exceeds the first, with the interval.

    Parameters
    ----------
    by : {"e0", "loco"}
    a, b : AuditReport
    paired : bool
        They are of the same clusters and the same leakage.
    pairs : int
        How many differences the interval is to hold for at once.
    """
    if by == "loco":
        ours, theirs = [_loco(a)], [_loco(b)]
        value = b.loco - a.loco
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
