"""Corrected cross-validation as a part of an audit, beside the loss on new clusters."""

import math
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from mlflow_b3.correlated.correction import Correction
from mlflow_b3.correlated.cvc import (
    describe_correction,
    find_shortcut,
    given_world,
    require_correctable,
)
from mlflow_b3.correlated.engines import find_engine
from mlflow_b3.correlated.group_errors import group_influence
from mlflow_b3.correlated.report import CvcReport
from mlflow_b3.correlated.structure import WorkingModel
from mlflow_b3.errors import InputError
from mlflow_b3.estimation.influence import Influence
from mlflow_b3.findings import Finding
from mlflow_b3.measurement.campaign import Campaign
from mlflow_b3.measurement.journal import Journal
from mlflow_b3.measurement.levels import parse_budget
from mlflow_b3.measurement.outcomes import FitCounts
from mlflow_b3.reporting.report import AuditReport
from mlflow_b3.subject import Subject

METHOD = "cvc"
#: Refits on the table's own target that a correction makes at the most: folds of rows, and twice of groups.
REAL_REFITS = 30
#: Share of a budget that goes to simulated targets, where these need refits.
SHARE = 0.4
TAKEN_AS_RIGHT = (
    "method='cvc' takes the cluster ids as right, since nothing else was said: e0 is then the loss by "
    "folds of whole clusters, up to the noise of the fitted curve. Wrong ids make both numbers too small; "
    "give cluster_error or other evidence if the ids come from record linkage."
)


def split_method(
    method: Any, options: Mapping[str, Any] | None
) -> tuple[Any, Mapping[str, Any] | None, dict[str, Any] | None]:
    """Return the method for the loss on new clusters with its options, and the options of CVc.

    The last is None where cross-validation is not to be corrected.
    """
    if isinstance(method, str) and method == METHOD:
        return "auto", None, dict(options or {})
    return method, options, None


def take_world(options: dict[str, Any] | None) -> WorkingModel | None:
    """Take a simulated world out of the options, which other audits share as a report of theirs."""
    working = None if options is None else options.get("working")
    if options is None or working is None or isinstance(working, str):
        return None
    del options["working"]
    return given_world(working.cvc if isinstance(working, AuditReport) else working)


@dataclass(frozen=True, kw_only=True)
class AuditCorrection:
    """What an audit corrects beside its own measurement.

    Attributes
    ----------
    model : object
        As the audit was given it.
    subject : Subject
    budget : int, str or None
        Of the whole audit.
    refit_options : mapping or None
        As the audit was given them.
    given : WorkingModel or None
        The simulated world, where it is that of another model.
    """

    model: Any
    subject: Subject
    budget: int | str | None
    refit_options: Mapping[str, Any] | None
    given: WorkingModel | None = None

    def __post_init__(self) -> None:
        """Refuse before the first refit what cannot be corrected."""
        require_correctable(self.subject, self.given)

    @property
    def rest(self) -> int | str | None:
        """What is left of the budget for the audit's own measurement."""
        fits, seconds = parse_budget(self.budget)
        if fits is not None:
            return fits - max(round(self._share * fits), REAL_REFITS)
        return None if seconds is None else f"{(1 - self._share) * seconds:.3f}s"

    def enough(self, least: int) -> int:
        """Return the budget that leaves at least so many refits."""
        return max(least + REAL_REFITS, math.ceil(least / (1 - self._share)))

    @property
    def _share(self) -> float:
        return SHARE if self._refits_needed else 0.0

    @cached_property
    def _refits_needed(self) -> bool:
        subject = self.subject
        assert subject.cvc is not None
        assert subject.structure is not None
        return (
            find_engine(
                subject.cvc.engine,
                subject.learner,
                subject.rows,
                subject.structure,
                (),
                subject.loss,
                draws=subject.cvc.draws,
                seed=0,
            )
            is None
        )

    def plan(self, campaign: Campaign) -> Correction:
        """Return the correction of the score that ignores clusters, on the very same folds."""
        fits, seconds = parse_budget(self.budget)
        subject = self.subject
        assert subject.cvc is not None
        return Correction(
            subject=subject,
            folds=campaign.resampler().iid_folds,
            seed=campaign.seed,
            means=campaign.means,
            refits=None if fits is None else fits,
            seconds=None if seconds is None else SHARE * seconds,
            shortcut=find_shortcut(self.model, subject, self.refit_options),
            given=self.given,
        )


@contextmanager
def share_explained(added: AuditCorrection | None) -> Iterator[None]:
    """Say in errors about the budget that a part of it was put aside."""
    try:
        yield
    except InputError as error:
        if added is None or added.rest == added.budget or not str(error).startswith("budget="):
            raise
        found = re.search(r"at least (\d+)", str(error))
        enough = "" if found is None else f"; give {added.enough(int(found.group(1)))} or more"
        raise InputError(
            f"budget={added.budget} is too little, because a part of it goes to refits for method "
            f"'cvc'{enough}. Of the rest: {error}"
        ) from error


def identify_in_audit(correction: Correction | None) -> dict[str, str]:
    """Return what the journal of an audit must know of its correction."""
    return {} if correction is None else {"cvc": describe_correction(correction)}


def corrected(
    report: AuditReport, correction: Correction, journal: Journal | None, counts: FitCounts
) -> AuditReport:
    """Return the report of an audit with its correction; without one where the user stops it."""
    if counts.interrupted:
        return report
    try:
        found = correction.run(journal, counts=counts, grouped=(report.loco, report.loco_interval))
    except KeyboardInterrupt:  # during refits, or between them
        counts.interrupted = True
        return report
    return replace(report, cvc=found, influence=_with_cv(report.influence, found, correction))


def correction_findings(report: AuditReport, *, taken_as_right: bool) -> list[Finding]:
    """Return what the reader must know of the correction."""
    found = [Finding(code="B340", message=TAKEN_AS_RIGHT)] if taken_as_right else []
    own = () if report.cvc is None else report.cvc.findings
    return [
        *found,
        *(finding for finding in own if finding.code != "B330"),
    ]  # the audit has its own


def _with_cv(
    influence: Influence | None, found: CvcReport, correction: Correction
) -> Influence | None:
    """Add what each cluster, or row, adds to the error of cross-validation."""
    if influence is None:
        return None
    losses = found.row_losses
    if influence.unit == "rows":
        column = (losses - losses.mean()) / len(losses)
    else:
        column = group_influence(losses, correction.subject.table.clusters)
    return replace(influence, cv=column[influence.ids])
