"""What is settled before the first refit: folds, leaked share, and how clusters are broken."""

from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import numpy as np

from mlflow_b3.claims import Claim
from mlflow_b3.data import AuditData
from mlflow_b3.errors import InputError
from mlflow_b3.estimation.leakage_share import LARGEST_SHARE
from mlflow_b3.estimation.methods import Method, check_size
from mlflow_b3.estimation.mixture import P0Bound
from mlflow_b3.estimation.published import LARGEST_IN_AUDIT
from mlflow_b3.evidence import Evidence
from mlflow_b3.findings import Finding
from mlflow_b3.fold_bounds import bound_folds, largest_share
from mlflow_b3.folds import (
    DEFAULT_FOLDS,
    Fold,
    FoldSummary,
    assigns_at_random,
    balanced_count,
    fold_findings,
    make_folds,
    summarize_folds,
)
from mlflow_b3.measurement.breaking import FragmentSizes, breakable
from mlflow_b3.measurement.levels import (
    choose_repeats,
    count_levels,
    least_fits,
    parse_budget,
    plan_fits,
)
from mlflow_b3.refit import without_autologging
from mlflow_b3.reporting.report import Settings
from mlflow_b3.subject import Subject


@dataclass(frozen=True, kw_only=True, eq=False)
class Plan:
    """An audit before its refits.

    Attributes
    ----------
    subject : Subject
    evidence : Evidence
    claim : Claim
        With the range that the evidence gives for these folds.
    bound : P0Bound or None
        Of the rows themselves, where nothing else is known about the leaked share.
    folds : tuple of Fold
        All folds of the first assignment before those of the second.
    summaries : tuple of FoldSummary
    repeats : int
    fragments : FragmentSizes
        How clusters are broken on purpose.
    method : Method
    scheme : str
    n_train : int or None
        Rows of a training set that is drawn with replacement; None for as many as T̂ has.
    seed : int
    """

    subject: Subject
    evidence: Evidence
    claim: Claim
    bound: P0Bound | None
    folds: tuple[Fold, ...]
    summaries: tuple[FoldSummary, ...]
    repeats: int
    fragments: FragmentSizes
    method: Method
    scheme: str
    n_train: int | None
    seed: int

    @property
    def findings(self) -> list[Finding]:
        """What table and folds show before any refit."""
        subject = self.subject
        return [*subject.findings, *fold_findings(self.folds, subject.table, subject.task)]

    def settings(self, fits: int) -> Settings:
        """Return the settings of a report that follow from the plan."""
        claim, clusters = self.claim, self.subject.table.clusters
        return Settings(
            **self.subject.describe(),
            method=self.method.name,
            method_options=self.method.options,
            scheme=self.scheme,
            n_train=self.n_train,
            pattern=claim.pattern,
            fragments=str(self.fragments),
            claim=None if claim.pattern == "unknown" else (claim.low, claim.high),
            claim_centre=claim.centre,
            p0_validation=claim.p0_validation,
            folds_given=False,
            repeats=self.repeats,
            threshold_given=False,
            seed=self.seed,
            fits=fits,
            n_validated=len({c for fold in self.folds for c in clusters[fold.validation]}),
        )


def check_budget(
    budget: Any, n_folds: int | None, *, stochastic: bool, levels: str | int, scheme: str
) -> None:
    """Refuse a number of refits that is too small for so many folds, or for any."""
    fits, _ = parse_budget(budget)
    if fits is None:
        return
    design: dict[str, Any] = {"levels": levels, "from_zero": scheme == "replace"}
    each = least_fits(n_folds=1, stochastic=stochastic, **design)
    if n_folds is None and fits < each:
        raise InputError(f"budget={fits} refits is too little: every fold needs at least {each}.")
    if n_folds is not None and n_folds > 0:
        plan_fits(fits, n_folds=n_folds, stochastic=stochastic, **design)


def plan_audit(
    subject: Subject,
    claim: Claim,
    evidence: Evidence,
    *,
    folds: Any,
    repeats: int | None,
    budget: Any,
    fragments: FragmentSizes | None,
    method: Method,
    scheme: str,
    levels: str | int,
    n_train: int | None,
    seed: int,
) -> Plan:
    """Make the folds and find out what is known about their leakage; see `mlflow_b3.audit`."""
    table = subject.table
    grouped = evidence.regrouped(table)
    repeats = _repeats(grouped, subject.learner.stochastic, folds, repeats, budget, levels, scheme)
    splits = make_folds(grouped, folds, seed=seed, repeats=repeats)
    evidence.require_kept(splits, grouped)
    splits = evidence.purged(splits, table)
    summaries = summarize_folds(splits, table)
    claim, bound = _bound(claim, table, splits[: len(splits) // repeats], seed)
    claim = evidence.settle(claim, splits, table)
    sizes = fragments or claim.fragment_sizes
    _check_before_refits(claim, table, summaries, sizes, method, scheme, levels, n_train)
    return Plan(
        subject=subject,
        evidence=evidence,
        claim=claim,
        bound=bound,
        folds=splits,
        summaries=summaries,
        repeats=repeats,
        fragments=sizes,
        method=method,
        scheme=scheme,
        n_train=n_train,
        seed=seed,
    )


def _bound(
    claim: Claim, table: AuditData, folds: Sequence[Fold], seed: int
) -> tuple[Claim, P0Bound | None]:
    """Bound p0 by the rows themselves where nothing else is known about it."""
    if claim.source not in ("none", "mixture"):
        return claim, None
    with without_autologging():
        bound = bound_folds(table, folds, p0_validation=claim.p0_validation, seed=seed)
    if claim.source == "mixture":
        claim = claim.bounded(bound, largest_share(folds, claim.p0_validation))
    return claim, bound


def _check_before_refits(
    claim: Claim,
    table: AuditData,
    folds: tuple[FoldSummary, ...],
    sizes: FragmentSizes,
    method: Method,
    scheme: str,
    levels: str | int,
    n_train: int | None,
) -> None:
    """Refuse what would otherwise show after hours of refits."""
    if claim.pattern == "rows":
        claim.shares(claim.high, folds)  # impossible shares
    if claim.pattern == "fragments":
        if n_train is not None:
            raise InputError(
                f"n_train={n_train} is for misplaced rows (p0 or cluster_error): what split clusters "
                "do is measured in training sets of full size. Leave n_train out."
            )
        _require_breakable(table, sizes)
    for fold in folds:  # a method that would be too large or needs more levels
        if n_train is not None and n_train > fold.n_training:
            raise InputError(
                f"n_train={n_train} is more than the {fold.n_training} training rows of a fold; "
                "give at most that many."
            )
        leaked = fold.n_validation + LARGEST_SHARE * fold.n_training
        everything = scheme == "replace" or leaked > fold.n_training
        rows = n_train or fold.n_training
        check_size(
            method,
            count_levels(levels),
            rows if everything else round(leaked),
            largest=LARGEST_IN_AUDIT,
        )


def _repeats(
    table: AuditData,
    stochastic: bool,
    folds: Any,
    repeats: int | None,
    budget: Any,
    levels: str | int,
    scheme: str,
) -> int:
    whole = isinstance(repeats, Integral) and not isinstance(repeats, bool)
    if repeats is not None and (not whole or repeats < 1):
        raise InputError(f"repeats={repeats!r} must be a whole number from 1.")
    if not assigns_at_random(table, folds):
        if repeats is not None and repeats > 1:
            raise InputError(
                f"repeats={repeats} would change nothing: these folds are not drawn at random."
            )
        return 1
    if repeats is not None:
        return int(repeats)
    return choose_repeats(
        budget,
        n_folds=balanced_count(table) if isinstance(folds, str) else folds or DEFAULT_FOLDS,
        stochastic=stochastic,
        levels=levels,
        from_zero=scheme == "replace",
    )


def _require_breakable(table: AuditData, sizes: FragmentSizes) -> None:
    if not len(breakable(table.clusters, sizes)):
        largest = int(np.bincount(table.clusters).max())
        raise InputError(
            "split clusters can only be measured with clusters of at least two rows; there are none."
            if largest == 1
            else f"fragments='{sizes}' breaks no cluster: the largest has {largest} rows. Give "
            "smaller sizes."
        )
