"""What two audits need for their corrected cross-validation, CV_c, to be compared."""

from collections.abc import Callable, Mapping

from mlflow_b3.correlated.report import CvcReport
from mlflow_b3.errors import InputError, choose
from mlflow_b3.reporting.report import AuditReport

Reports = Mapping[str, AuditReport]
#: What audits can be ranked by.
SCORES = ("auto", "e0", "cvc")


def chosen_score(by: str, reports: Reports) -> str:
    """Return what to rank by: "auto" is CV_c where all know it and take their ids as right.

    Where ids may be wrong, e0 sees that and CV_c does not.
    """
    if choose("by", by, SCORES) == "auto":
        return "cvc" if all(map(_rests_on_cvc, reports.values())) else "e0"
    missing = [name for name, report in reports.items() if report.cvc is None]
    if by == "cvc" and missing:
        raise InputError(
            f"by='cvc': the audits of {', '.join(map(repr, missing))} have no CV_c. Audit these models "
            "with method='cvc', or compare by='e0'."
        )
    return by


def _rests_on_cvc(report: AuditReport) -> bool:
    claim = report.settings.claim
    return known_cvc(report) is not None and claim is not None and not any(claim)


def cvc_of(report: AuditReport) -> CvcReport:
    """Return the corrected cross-validation of an audit that has it."""
    assert report.cvc is not None
    return report.cvc


def known_cvc(report: AuditReport) -> float | None:
    """Return CV_c where it can be ranked: what may miss part of the bias cannot."""
    if report.cvc is None or report.cvc.interval is None or is_approximate(report):
        return None
    return report.cvc.cvc


def is_approximate(report: AuditReport) -> bool:
    """Whether CV_c may miss part of the bias, by its engine or by how the model is trained again."""
    return cvc_of(report).lower_quality or report.settings.refit_strength != "full"


def grouping(report: AuditReport) -> frozenset[str]:
    """Return the levels by which rows are correlated."""
    return frozenset(group.name for group in cvc_of(report).groups)


def new_levels(report: AuditReport) -> frozenset[str]:
    """Return the levels of which the model will meet new groups."""
    return frozenset(cvc_of(report).new)


def coordinates(report: AuditReport) -> tuple[str, ...]:
    """Return the columns of places; none without a field."""
    field = cvc_of(report).field
    return () if field is None else field.coordinates


def same_folds(a: AuditReport, b: AuditReport) -> bool:
    """Whether two audits cross-validated on the same folds, with the same seed."""
    return _split(a) == _split(b)


def _split(report: AuditReport) -> object:
    cvc = cvc_of(report)
    folds = cvc.settings.get("folds_digest")
    return cvc.folds, cvc.seed, folds, report.settings.folds_digest, report.settings.seed


def same_world(a: AuditReport, b: AuditReport) -> bool:
    """Whether two audits simulated by the same working model, from the same draws."""
    ours, theirs = _world(a), _world(b)
    return ours == theirs and ours[0] is not None


def _world(report: AuditReport) -> tuple[object, int]:
    cvc = cvc_of(report)
    return cvc.settings.get("working_digest"), cvc.seed


def correction_notes(reports: Reports) -> list[str]:
    """Return why some models have no place by CV_c."""
    notes = []
    unknown = [n for n, r in reports.items() if cvc_of(r).cvc is None or cvc_of(r).interval is None]
    approximate = [n for n, r in reports.items() if n not in unknown and is_approximate(r)]
    for name in unknown:
        codes = ", ".join(dict.fromkeys(finding.code for finding in cvc_of(reports[name]).findings))
        notes.append(
            f"CV_c of {name!r} is withheld, so it has no place and no differences"
            + (f"; the findings of its audit say why ({codes})." if codes else ".")
        )
    if approximate:
        listed = ", ".join(f"{name!r}: {cvc_of(reports[name]).engine}" for name in approximate)
        notes.append(
            f"Corrections that may miss a part of the bias have no place and no differences ({listed}). "
            "Audit these models with the engine 'full'."
        )
    return notes


def world_notes(reports: Reports) -> list[str]:
    """Return whether the corrections of those that are compared have something in common."""
    first, *others = reports.values()
    if all(same_world(first, other) for other in others):
        return []
    listed = "; ".join(f"{name!r}: {_world_words(report)}" for name, report in reports.items())
    return [
        f"The corrections do not all come from one simulated world ({listed}). Where they do not, they are "
        "not on common draws, and the uncertainty of each counts in full."
    ]


def _world_words(report: AuditReport) -> str:
    cvc = cvc_of(report)
    digest = cvc.settings.get("working_digest")
    known = "of its own" if digest is None else str(digest)[:8]
    return f"working model {cvc.working} {known}, seed {cvc.seed}"


Aspects = dict[str, Callable[[AuditReport], object]]
#: What must be the same of two audits, by what it is called.
CVC_ASPECTS: Aspects = {
    "groups": grouping,
    "new groups": new_levels,
    "coordinates": coordinates,
}


def shown_aspect(aspect: str, report: AuditReport) -> str:
    """Return what an audit has for one of these aspects, in words."""
    value = CVC_ASPECTS[aspect](report)
    assert isinstance(value, (frozenset, tuple))
    return ", ".join(sorted(value)) or "none"
