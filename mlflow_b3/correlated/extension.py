"""The method "cvc" of an audit: corrected cross-validation in addition to the loss on new clusters."""

import math
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import pandas as pd

from mlflow_b3.auditing.extension import Budget, ExtraColumns
from mlflow_b3.auditing.report import DOSE, AuditReport
from mlflow_b3.auditing.subject import Subject
from mlflow_b3.correlated.correction import (
    Correction,
    correlation_of,
    digest_working_model,
    read_correlation,
)
from mlflow_b3.correlated.cvc import (
    describe_correction,
    find_shortcut,
    given_world,
    is_corrected,
    require_comparable,
    require_correctable,
)
from mlflow_b3.correlated.engines import find_engine
from mlflow_b3.correlated.report import CvcReport, group_influence
from mlflow_b3.correlated.structure import CvcOptions, WorkingModel
from mlflow_b3.data.scores import Score
from mlflow_b3.errors import InputError
from mlflow_b3.estimation.estimate import Method, as_method
from mlflow_b3.estimation.influence import Influence
from mlflow_b3.measurement.campaign import Campaign
from mlflow_b3.measurement.design import parse_budget
from mlflow_b3.measurement.journal import Journal
from mlflow_b3.measurement.refits import FitCounts
from mlflow_b3.results import Finding

METHOD = "cvc"
#: Most refits of a correction on the table's own target: folds of rows, and two sets of folds of groups.
REAL_REFITS = 30
#: Share of a budget that goes to simulated targets if these need refits.
SHARE = 0.4
TAKEN_AS_RIGHT = (
    "method='cvc' assumes that the cluster ids are correct, because no evidence about them was given: e0 "
    "is then the loss by folds of whole clusters, up to the noise of the fitted curve. Wrong ids make "
    "both numbers too small; give cluster_error or other evidence if the ids come from record linkage."
)


class CvcMethod:
    """The method "cvc" with its options; an `Extension`.

    Parameters
    ----------
    options : mapping or None
        The user's options. `working` may be a simulated world, or the report of another model's audit.
        `e0_method` is the method that estimates e0.
    """

    takes_ids_as_right: ClassVar[bool] = True

    def __init__(self, options: Mapping[str, Any] | None) -> None:
        self._options = dict(options or {})
        self.e0_method: str | Method = self._options.pop("e0_method", "auto")
        self._world: WorkingModel | None = None
        working = self._options.get("working")
        if working is not None and not isinstance(working, str):
            del self._options["working"]
            self._world = given_world(working.cvc if isinstance(working, AuditReport) else working)

    def estimator(self) -> Method:
        """Return the method of the loss curve: `cvc` itself estimates nothing about wrong ids."""
        return as_method("auto" if self.e0_method == DOSE else self.e0_method)

    def describe(self, cluster: str) -> dict[str, Any]:
        """Return the name of the method and its options, with the digest of a simulated world."""
        chosen = CvcOptions.from_mapping(self._options, cluster).to_dict()
        world = digest_working_model(self._world)
        if self.e0_method != "auto":
            chosen["e0_method"] = str(self.e0_method)
        return {"name": METHOD, **chosen, **({} if world is None else {"working": world})}

    def check(self, *, n_train: Any) -> None:
        """Refuse training sets that differ in size from those of the cross-validation."""
        if n_train is not None:
            raise InputError(
                f"n_train={n_train} cannot be combined with method='cvc', which corrects the score of "
                "models trained on all rows of a fold. Leave one of them out."
            )

    def read(self, frame: pd.DataFrame, cluster: str) -> ExtraColumns:
        """Read groups and coordinates; the cluster is one of the groups."""
        return read_correlation(self._options, frame, cluster)

    def supports(self, score: Score) -> bool:
        """Whether cross-validation of this score can be corrected, and e0 comes from doses."""
        return is_corrected(score) and self.e0_method in ("auto", DOSE)

    def rest(self, subject: Subject, budget: Budget) -> Budget:
        """Return what is left of the budget for the audit's own measurement."""
        require_correctable(subject, self._world)
        return BudgetShare(subject=subject, budget=budget).rest

    def plan(
        self,
        model: Any,
        subject: Subject,
        campaign: Campaign,
        *,
        budget: Budget,
        refit_options: Mapping[str, Any] | None,
    ) -> "PlannedCorrection":
        """Plan the correction of the score that ignores clusters, on the same folds."""
        fits, seconds = parse_budget(budget)
        folds = campaign.resampler().iid_folds
        require_comparable(folds, subject.loss)
        correction = Correction(
            subject=subject,
            folds=folds,
            seed=campaign.seed,
            means=campaign.means,
            refits=fits,
            seconds=None if seconds is None else SHARE * seconds,
            shortcut=find_shortcut(model, subject, refit_options),
            given=self._world,
        )
        return PlannedCorrection(
            correction=correction, share=BudgetShare(subject=subject, budget=budget)
        )

    def findings(self, report: AuditReport, *, taken_as_right: bool) -> list[Finding]:
        """Return what the reader must know about the correction."""
        found = [Finding(code="B340", message=TAKEN_AS_RIGHT)] if taken_as_right else []
        # that the audit was stopped early is a finding of its own
        own = [f for part in report.extensions for f in part.findings if f.code != "B330"]
        return [*found, *own]


@dataclass(frozen=True, kw_only=True)
class BudgetShare:
    """How a correction and the audit's own measurement share a budget.

    Attributes
    ----------
    subject : Subject
    budget : int, str or None
        The budget of the whole audit.
    """

    subject: Subject
    budget: Budget

    @property
    def rest(self) -> Budget:
        """The budget that is left for the audit's own measurement."""
        fits, seconds = parse_budget(self.budget)
        if fits is not None:
            return fits - max(round(self._share * fits), REAL_REFITS)
        return None if seconds is None else f"{(1 - self._share) * seconds:.3f}s"

    def enough(self, least: int) -> int:
        """Return the budget that leaves at least `least` refits."""
        return max(least + REAL_REFITS, math.ceil(least / (1 - self._share)))

    @cached_property
    def _share(self) -> float:
        """The share that goes to simulated targets; 0 if there are formulas."""
        subject, correlation = self.subject, correlation_of(self.subject)
        formulas = find_engine(
            correlation.options.engine,
            subject.learner,
            subject.rows,
            correlation.structure,
            (),
            subject.loss,
            draws=correlation.options.draws,
            seed=0,
        )
        return SHARE if formulas is None else 0.0


@dataclass(frozen=True, kw_only=True)
class PlannedCorrection:
    """The correction of one audit; a `PlannedExtension`."""

    correction: Correction
    share: BudgetShare

    @property
    def identity(self) -> dict[str, str]:
        """What identifies it in the journal of the audit."""
        return {METHOD: describe_correction(self.correction)}

    @contextmanager
    def budget_explained(self) -> Iterator[None]:
        """Add to errors about the budget that part of it was set aside."""
        try:
            yield
        except InputError as error:
            share = self.share
            if share.rest == share.budget or not str(error).startswith("budget="):
                raise
            found = re.search(r"at least (\d+)", str(error))
            enough = "" if found is None else f"; give {share.enough(int(found.group(1)))} or more"
            raise InputError(
                f"budget={share.budget} is too small, because part of it goes to refits for method "
                f"'cvc'{enough}. About the rest: {error}"
            ) from error

    def run(self, report: AuditReport, journal: Journal | None, counts: FitCounts) -> AuditReport:
        """Return the report with the correction, or without one if the user stops it."""
        if counts.interrupted:
            return report
        losses = report.as_losses
        grouped = losses.loco, losses.loco_interval
        try:
            found = self.correction.run(journal, counts=counts, grouped=grouped)
        except KeyboardInterrupt:  # during refits, or between them
            counts.interrupted = True
            return report
        return replace(report, cvc=found, influence=self._with_cv(report.influence, found))

    def _with_cv(self, influence: Influence | None, found: CvcReport) -> Influence | None:
        """Add the contribution of each cluster, or row, to the error of cross-validation."""
        if influence is None:
            return None
        losses = found.row_losses  # 1 - score if more is better
        if influence.unit == "rows":
            column = (losses - losses.mean()) / len(losses)
        else:
            column = group_influence(losses, self.correction.subject.table.clusters)
        sign = -1 if found.greater_is_better else 1
        return replace(influence, cv=sign * column[influence.ids])
