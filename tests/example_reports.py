"""Reports made by hand, whose numbers tests may change."""

from dataclasses import replace
from typing import Any

import numpy as np

from mlflow_b3 import AuditReport, Finding, FragmentLosses, LeakageTest, LossCurve, P0Search
from mlflow_b3.auditing.leakage import LeakageClaim
from mlflow_b3.auditing.report import (
    PARTS,
    PLACES,
    Conclusion,
    MeasurementSummary,
    PlanSummary,
    RefitSummary,
    SubjectSummary,
)
from mlflow_b3.correlated.report import CvcReport, GroupLevel, SpatialField
from mlflow_b3.data.folds import FoldSummary
from mlflow_b3.estimation.bounds import ShapeCheck
from mlflow_b3.estimation.dose import DoseCurve, DoseSolution, VarianceParts
from mlflow_b3.estimation.influence import Influence
from mlflow_b3.estimation.sensitivity import ExtrapolationPath, Sensitivity
from mlflow_b3.linkage import LeakEstimate
from mlflow_b3.linkage.leak import LeakShare

ERRORS = (0.0, 0.02, 0.04, 0.1, 0.5)
SUBJECT = SubjectSummary(
    model="models:/clinic/3 (KNeighborsClassifier)",
    uri="models:/clinic/3",
    run_id="r1",
    model_id="m-1",
    task="classification",
    loss="zero_one",
    loss_bound=1.0,
    loss_floor=0.0,
    target="disease",
    cluster="patient_id",
    features=("age", "bmi"),
    n_rows=2000,
    n_clusters=200,
    n_repeated=200,
    data_digest="0123456789abcdef",
)
PLAN = PlanSummary(
    method="power",
    scheme="subset",
    folds_given=False,
    repeats=1,
    n_validated=200,
    threshold=0.45,
    threshold_given=True,
    seed=7,
)
PROFITS = LeakageTest(
    statistic=4.2,
    pvalue=0.0001,
    effect=0.08,
    interval=(0.05, 0.11),
    detectable=0.05,
    units=200,
    method="paired",
)
SHOWS_NOTHING = replace(PROFITS, statistic=0.4, pvalue=0.34, effect=0.01, interval=(-0.03, 0.05))
FRAGMENTS = FragmentLosses(
    loss=0.25,
    seen_loss=0.15,
    seen_stderr=0.01,
    covariance=((1e-4, 0.0), (0.0, 1e-4)),
    degrees_of_freedom=199,
    fits=10,
    broken_rows=1.0,
)
FOLD = FoldSummary(
    n_training=1600,
    n_validation=400,
    clusters_training=160,
    clusters_validation=40,
    shared_clusters=0,
    shared_rows=0.0,
    loss=0.25,
)
MEASURED = MeasurementSummary(
    loco=0.25,
    iid=0.15,
    curve=LossCurve(injected=[0, 0.1], loss=[0.25, 0.2], stderr=[0.01, 0.01], n_train=1600),
    fragments=FRAGMENTS,
    folds=(FOLD,) * 5,
    fits=420,
)
CONCLUSION = Conclusion(
    e0=0.3,
    e0_interval=(0.26, 0.34),
    e0_secant=0.28,
    p0=0.05,
    inflation=0.05,
    loco_interval=(0.22, 0.28),
    leaked=(0, 1600),
    losses=(0.3, 0.1),
    residual=0.001,
    shape=ShapeCheck(slope_z=-9.0, curvature_z=2.0),
    search=P0Search(
        p0=(0.0, 0.1), residual=(0.1, 0.2), p0_star=0.0, identified=(0.0, 0.1), flat=True
    ),
    sensitivity=Sensitivity(
        p0=(0.0, 0.01, 0.02, 0.05, 0.25),
        e0=(0.25, 0.26, 0.27, 0.3, 0.6),
        low=(0.22, 0.23, 0.24, 0.26, 0.4),
        high=(0.28, 0.29, 0.3, 0.34, 0.8),
        error=ERRORS,
    ),
    fragment_sensitivity=Sensitivity(
        p0=ERRORS,
        e0=(0.25, 0.252, 0.254, 0.261, 0.35),
        low=(0.22, 0.222, 0.224, 0.231, 0.3),
        high=(0.28, 0.282, 0.284, 0.291, 0.4),
        pattern="fragments",
        error=ERRORS,
    ),
    tipping_p0=0.15,
    tipping_cluster_error=0.3,
    tipping_split_rate=None,
    test=PROFITS,
    path=ExtrapolationPath(
        measured_exposure=(0.0, 0.1),
        measured_loss=(0.26, 0.2),
        exposure=(-0.07, 0.0),
        loss=(0.3, 0.26),
        low=(0.26, 0.23),
        high=(0.34, 0.29),
    ),
)
REPORT = AuditReport(
    subject=SUBJECT,
    refit=RefitSummary(route="clone"),
    plan=PLAN,
    claim=LeakageClaim(
        pattern="rows", source="cluster_error", range=(0.1, 0.1), p0_validation=None
    ),
    measured=MEASURED,
    conclusion=CONCLUSION,
    findings=(Finding(code="B315", message="each level rests on 3 refits."),),
    version="0.1.0",
)


def changed(
    audit: AuditReport, *, settings: dict[str, Any] | None = None, **changes: Any
) -> AuditReport:
    """Return a report with some fields of its parts changed.

    Each has the name that it had in format 1, where it was in the report or in its settings; newer ones
    have their own.
    """
    flat = changes | {f"settings.{name}": value for name, value in (settings or {}).items()}
    parts: dict[str, dict[str, Any]] = {}
    own: dict[str, Any] = {}
    for name, value in flat.items():
        *part, field = PLACES.get(name) or _place(name)
        (parts.setdefault(part[0], {}) if part else own)[field] = value
    nested = {part: replace(getattr(audit, part), **values) for part, values in parts.items()}
    return replace(audit, **nested, **own)


def _place(name: str) -> tuple[str, ...]:
    parts = [part for part, kind in PARTS.items() if name in kind.__dataclass_fields__]
    return (*parts, name)


def flattened(audit: AuditReport) -> dict[str, Any]:
    """Return what a report was written as in format 1."""
    nested = audit.to_dict()
    flat: dict[str, Any] = {"settings": {}}
    for name, (part, *field) in PLACES.items():
        value = nested[part][field[0]] if field else nested[part]
        if name.startswith("settings."):
            flat["settings"][name.removeprefix("settings.")] = value
        else:
            flat[name] = value
    return flat


def report(*, settings: dict | None = None, **changes) -> AuditReport:
    """Return the example report with some of its numbers changed."""
    return changed(REPORT, settings=settings, **changes)


def unknown(**changes) -> AuditReport:
    """Return the report of an audit that was told nothing about the leakage."""
    nothing = dict.fromkeys(
        ("e0", "e0_secant", "p0", "inflation", "leaked", "losses", "residual", "path")
    )
    return report(
        settings={"pattern": "unknown", "claim": None},
        **nothing,
        p0_source="none",
        e0_interval=(0.22, 0.8),
        **changes,
    )


def split(**changes) -> AuditReport:
    """Return the report of an audit of clusters that were split in two."""
    changed = {"pattern": "fragments", "claim": (0.4, 0.4), **changes.pop("settings", {})}
    fixed = {"p0_source": "split_rate", "p0": 0.32, "e0_secant": None, "path": None}
    return report(settings=changed, **{**fixed, **changes})


def lower_bound(**changes) -> AuditReport:
    """Return the report of an audit whose refits trained part of the model only."""
    partial = {
        "refit": "head",
        "refit_strength": "lower-bound",
        "refit_notes": ("only a linear head was trained",),
        **changes.pop("settings", {}),
    }
    return report(settings=partial, **{"e0_interval": (0.26, None), **changes})


def linked(source: str, kind: str = "estimate", **changes) -> AuditReport:
    """Return the report of an audit by evidence of a record linkage."""
    point = None if kind == "upper" else 0.32
    leak = LeakEstimate(
        train=LeakShare(point=point, low=0.05, high=0.4),
        validation=LeakShare(point=point, low=0.2, high=0.4),
        kind=kind,
        method="the test",
        level=0.95,
        n_folds=5.0,
        n_labels=120,
    )
    return split(p0_source=source, linkage=leak, settings={"claim": (0.2, 0.4)}, **changes)


# --- an audit by doses

DOSES = DoseSolution(
    e0=0.3,
    interval=(0.26, 0.34),
    stderr=0.02,
    loco=0.25,
    loco_interval=(0.22, 0.28),
    variance=VarianceParts(clusters=0.0003, refits=0.00002, ids=0.00008),
    curve=DoseCurve(
        d=(0, 1, 2, 3, 5, 9),
        loss=(0.3, 0.26, 0.23, 0.2, 0.17, 0.15),
        low=(0.26, 0.23, 0.2, 0.17, 0.14, 0.12),
        high=(0.34, 0.29, 0.26, 0.23, 0.2, 0.18),
    ),
    no_effect=0.001,
    effect=0.15,
    p_value=0.0001,
    shrunk=False,
    unseen=0.4,
    effective_clusters=200.0,
    refits=90,
)


def by_doses(doses: DoseSolution = DOSES, **changes) -> AuditReport:
    """Return the report of an audit that solved e0 from the losses by dose."""
    nothing = dict.fromkeys(("e0_secant", "path", "fragments"))
    method = {"method": "dose", "repeats": 3, "fits": 95, **changes.pop("settings", {})}
    return report(settings=method, **{**nothing, "folds": (FOLD,) * 15, "dose": doses, **changes})


# --- corrected cross-validation, alone and in an audit

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


# --- corrected cross-validation of audits that are compared

COMPARED_CVC = CvcReport(
    cv=0.15,
    cv_interval=(0.12, 0.18),
    cvc=0.25,
    bias=0.1,
    bias_interval=(0.05, 0.17),
    bias_error=0.004,
    interval=(0.19, 0.33),
    grouped=0.26,
    grouped_interval=(0.22, 0.3),
    grouped_by="patient_id",
    groups=(
        GroupLevel(name="patient_id", groups=200, new=True, sd=1.0, interval=(0.8, 1.3)),
        GroupLevel(name="day", groups=5, new=False, sd=0.5, interval=(0.3, 0.75)),
    ),
    loss="zero_one",
    task="classification",
    engine="fast",
    working="score",
    folds=5,
    draws=400,
    n_rows=2000,
    seed=7,
    slope=0.9,
    multipliers=(0.0, 0.5, 1.0, 1.5, 2.0),
    sensitivity=(0.15, 0.19, 0.25, 0.31, 0.36),
    settings={"working_digest": "a1b2c3d4e5", "folds_digest": "f0"},
)


def corrected(**changes: Any) -> CvcReport:
    """Return the example with some of its numbers changed."""
    return replace(COMPARED_CVC, **changes)


def with_cvc(report: AuditReport, **changes: Any) -> AuditReport:
    """Return an audit as the method "cvc" would have made it, its ids taken as right."""
    cv = {"cv": report.iid, "n_rows": report.subject.n_rows}
    cvc = corrected(**{**cv, **changes})
    return changed(report, settings={"claim": (0.0, 0.0)}, cvc=cvc)


def influence(cv: Any, readings: int = 0) -> Influence:
    """Return what clusters of equal size add to the cross-validated loss, and as much to all others."""
    column = np.asarray(cv, dtype=float)
    return Influence(
        unit="clusters",
        ids=np.arange(len(column)),
        share=np.full(len(column), 1 / len(column)),
        loco=column,
        e0=np.tile(column[:, None], readings),
        cv=column,
    )
