"""Audits ranked by CV_c, their corrected cross-validation; an `ExtensionScore`."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from scipy import stats

from mlflow_b3.auditing.comparability import (
    Aspect,
    Crossing,
    Reports,
    cross,
    rows_of,
    uncertain,
)
from mlflow_b3.auditing.report import AuditReport
from mlflow_b3.correlated.report import CvcReport
from mlflow_b3.errors import InputError
from mlflow_b3.estimation.bounds import CONFIDENCE
from mlflow_b3.estimation.influence import Uncertain

SD_MULTIPLIER = "multiplier of the SDs"


class CvcScore:
    """CV_c: cross-validation with its bias added back."""

    name = "cvc"

    def require(self, reports: Reports) -> None:
        """Refuse audits without corrected cross-validation."""
        missing = [name for name, report in reports.items() if report.cvc is None]
        if missing:
            raise InputError(
                f"by='cvc': the audits of {', '.join(map(repr, missing))} have no CV_c. Audit these "
                "models with method='cvc', or compare by='e0'."
            )

    def decides(self, report: AuditReport) -> bool:
        """Whether CV_c is known and the ids are assumed to be correct.

        If ids may be wrong, e0 accounts for that and CV_c does not.
        """
        claim = report.claim.range
        return self.known(report) is not None and claim is not None and not any(claim)

    def known(self, report: AuditReport) -> float | None:
        """Return CV_c, or None if it may miss part of the bias and so cannot be ranked."""
        cvc = report.cvc
        if cvc is None or cvc.interval is None or _is_approximate(report):
            return None
        return cvc.cvc

    def of_contender(self, report: AuditReport) -> dict[str, Any]:
        """Return CV_c with its interval, and the loss by folds of whole groups."""
        if report.cvc is None:
            return {}
        known = self.known(report)
        interval = None if known is None else report.cvc.interval
        return {"cvc": known, "cvc_interval": interval, "grouped": report.cvc.grouped}

    def of_comparison(self, reports: Sequence[AuditReport]) -> dict[str, Any]:
        """Return the levels of which models will meet new groups in all audits."""
        first, *others = (_cvc(report).new for report in reports)
        return {"new": tuple(name for name in first if all(name in other for other in others))}

    def aspects(self) -> dict[str, Aspect]:
        """Return the aspects that must agree: groups, new groups, coordinates and rows."""
        return {
            "groups": lambda report: frozenset(group.name for group in _cvc(report).groups),
            "new groups": lambda report: frozenset(_cvc(report).new),
            "coordinates": _coordinates,
            "rows": rows_of,
        }

    def shown(self, aspect: str, report: AuditReport) -> str:
        """Return the value of an aspect in an audit, in words."""
        value = self.aspects()[aspect](report)
        if isinstance(value, str):
            return f"{report.subject.n_rows} of digest {value[:8]}"
        assert isinstance(value, (frozenset, tuple))
        return ", ".join(sorted(value)) or "none"

    def says_noise(self, report: AuditReport) -> bool:
        """Whether an audit has the contribution of each cluster to the cross-validated loss."""
        return report.influence is not None and report.influence.cv is not None

    def same_splits(self, a: AuditReport, b: AuditReport) -> bool:
        """Whether two audits cross-validated on the same folds, with the same seed."""
        return _split(a) == _split(b)

    def left_out(self, reports: Reports) -> list[str]:
        """Return why some models are not ranked by CV_c."""
        notes = []
        unknown = [n for n, r in reports.items() if _cvc(r).cvc is None or _cvc(r).interval is None]
        approximate = [n for n, r in reports.items() if n not in unknown and _is_approximate(r)]
        for name in unknown:
            codes = ", ".join(dict.fromkeys(f.code for f in _cvc(reports[name]).findings))
            notes.append(
                f"CV_c of {name!r} is withheld, so it is not ranked and has no differences"
                + (f"; the findings of its audit say why ({codes})." if codes else ".")
            )
        if approximate:
            listed = ", ".join(f"{name!r}: {_cvc(reports[name]).engine}" for name in approximate)
            notes.append(
                "Models whose corrections may miss part of the bias are not ranked and have no differences "
                f"({listed}). Audit these models with the engine 'full'."
            )
        return notes

    def basis(self, compared: Reports) -> list[str]:
        """Return a remark if the corrections do not share a simulated world."""
        first, *others = compared.values()
        if all(_same_world(first, other) for other in others):
            return []
        listed = "; ".join(f"{name!r}: {_world_words(report)}" for name, report in compared.items())
        return [
            f"The corrections do not all come from one simulated world ({listed}). Those that do not share "
            "one have no common draws, and the uncertainty of each counts in full."
        ]

    def values(
        self, a: AuditReport, b: AuditReport, paired: bool
    ) -> tuple[list[Uncertain], list[Uncertain]]:
        """Return CV_c of two audits, at the same standard deviations if they share a simulated world.

        In one simulated world, both corrections rise and fall with the same standard deviations. So the
        difference is taken at the ends of their interval and at their estimates. Otherwise each
        correction has its own uncertainty.
        """
        ends = _multiples(_cvc(a)) if paired and _same_world(a, b) else None
        if ends is None:
            return [_correction(a)], [_correction(b)]
        return _at_multiples(a, ends), _at_multiples(b, ends)

    def axis(self, reports: Sequence[AuditReport]) -> str:  # noqa: ARG002
        """Return the name of the axis: multiples of the estimated standard deviations."""
        return SD_MULTIPLIER

    def crossing(self, a: AuditReport, b: AuditReport, axis: str) -> Crossing:  # noqa: ARG002
        """Return where two curves of CV_c cross."""
        if not _same_world(a, b):
            return Crossing(why_not="their corrections were simulated by different models")
        return cross(
            *(dict(zip(r.multipliers, r.sensitivity, strict=True)) for r in map(_cvc, (a, b)))
        )


CVC_SCORE = CvcScore()


def _cvc(report: AuditReport) -> CvcReport:
    """Return the corrected cross-validation of an audit that has it."""
    assert report.cvc is not None
    return report.cvc


def _is_approximate(report: AuditReport) -> bool:
    return _cvc(report).is_approximate(report.refit.strength)


def _coordinates(report: AuditReport) -> tuple[str, ...]:
    """Return the columns of coordinates; none without a field."""
    field = _cvc(report).field
    return () if field is None else field.coordinates


def _split(report: AuditReport) -> object:
    cvc = _cvc(report)
    folds = cvc.settings.get("folds_digest")
    return cvc.folds, cvc.seed, folds, report.plan.folds_digest, report.plan.seed


def _same_world(a: AuditReport, b: AuditReport) -> bool:
    """Whether two audits used the same working model and the same draws."""
    ours, theirs = _world(a), _world(b)
    return ours == theirs and ours[0] is not None


def _world(report: AuditReport) -> tuple[object, int]:
    cvc = _cvc(report)
    return cvc.settings.get("working_digest"), cvc.seed


def _world_words(report: AuditReport) -> str:
    cvc = _cvc(report)
    digest = cvc.settings.get("working_digest")
    known = "of its own" if digest is None else str(digest)[:8]
    return f"working model {cvc.working} {known}, seed {cvc.seed}"


def _correction(report: AuditReport) -> Uncertain:
    cvc, influence = _cvc(report), report.influence
    assert cvc.cvc is not None
    assert cvc.interval is not None
    column = None if influence is None else influence.cv
    return uncertain(report, cvc.cvc, cvc.interval, column, cvc.bias_error or 0.0)


def _multiples(cvc: CvcReport) -> tuple[float, ...] | None:
    """Return the range of the standard deviations as multiples of their estimates, with 1 in between.

    None if an estimate is 0, or if the range exceeds what was simulated.
    """
    parts = [cvc.field] if cvc.field is not None else cvc.groups
    ends = [end / part.sd for part in parts if part.sd and part.interval for end in part.interval]
    if len(ends) < 2 * len(parts) or max(ends) > max(cvc.multipliers, default=0.0):
        return None
    return min(ends), 1.0, max(ends)


def _at_multiples(report: AuditReport, ends: tuple[float, ...]) -> list[Uncertain]:
    """Return CV_c at multiples of the standard deviations, with the noise of clusters and draws."""
    assert report.influence is not None
    cvc = _cvc(report)
    values = np.interp(ends, cvc.multipliers, cvc.sensitivity)
    found = []
    for value in map(float, values):
        known = uncertain(report, value, (value, value), report.influence.cv, cvc.bias_error or 0.0)
        quantile = float(stats.t.ppf((1 + CONFIDENCE) / 2, known.freedom))
        reach = quantile * math.sqrt(known.variance)
        found.append(replace(known, low=value - reach, high=value + reach))
    return found
