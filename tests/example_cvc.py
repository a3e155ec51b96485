"""A corrected cross-validation made by hand, alone and in an audit, whose numbers tests may change."""

from dataclasses import replace

from example_report import report

from mlflow_b3 import AuditReport, Finding
from mlflow_b3.correlated.report import CvcReport, GroupLevel, SpatialField

PATIENT = GroupLevel(name="patient", groups=10, new=True, sd=1.03, interval=(0.6, 1.9))
DAY = GroupLevel(name="day", groups=5, new=True, sd=0.4, interval=(0.0, 1.3))
CVC = CvcReport(
    cv=0.312,
    cv_interval=(0.27, 0.354),
    cvc=0.349,
    bias=0.037,
    bias_interval=(0.011, 0.092),
    bias_error=0.002,
    interval=(0.3, 0.42),
    grouped=0.355,
    grouped_interval=(0.31, 0.4),
    grouped_by="patient",
    groups=(PATIENT, DAY),
    loss="zero_one",
    task="classification",
    engine="full",
    working="score",
    slope=0.52,
    folds=10,
    draws=400,
    n_rows=110,
    seed=7,
    multipliers=tuple(0.25 * step for step in range(9)),
    sensitivity=(0.312, 0.315, 0.322, 0.334, 0.349, 0.367, 0.386, 0.405, 0.422),
    findings=(
        Finding(
            code="B335",
            message="'day' has 5 groups, so that the correction is right on average and noisy.",
        ),
    ),
)


def withheld(code: str = "B331", message: str = "'day' has 2 groups; 3 are needed.") -> CvcReport:
    """Return the example with its correction withheld, and why."""
    nothing = dict.fromkeys(("cvc", "bias", "bias_interval", "bias_error", "interval", "slope"))
    return replace(
        CVC,
        **nothing,
        multipliers=(),
        sensitivity=(),
        draws=0,
        findings=(Finding(code=code, message=message),),
    )


def over_regions() -> CvcReport:
    """Return the example of a random field over places in twelve regions."""
    return replace(
        CVC,
        groups=(GroupLevel(name="region", groups=12, new=True),),
        grouped_by="region",
        field=SpatialField(
            coordinates=("east", "north"), sd=1.2, reach=3.1, interval=(0.7, 2.0), across=0.3
        ),
    )


def audited(cvc: CvcReport = CVC, *, cluster: str = "patient", **changes) -> AuditReport:
    """Return an audit that corrected cross-validation too."""
    numbers = {
        "e0": 0.36,
        "e0_interval": (0.32, 0.4),
        "e0_secant": 0.34,
        "findings": cvc.findings,
    }
    settings = {"cluster": cluster, **changes.pop("settings", {})}
    return report(cvc=cvc, settings=settings, **{**numbers, **changes})
