"""Folds, leakage and refits of an audit, settled before the first refit, and what identifies them."""

import functools
import hashlib
import inspect
import json
import platform
import sys
import sysconfig
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Any

import cloudpickle
import joblib
import numpy as np
import pandas as pd

from mlflow_b3.auditing.leakage import Evidence, Leakage, read_evidence
from mlflow_b3.auditing.report import DOSE, PlanSummary, RefitSummary, SubjectSummary
from mlflow_b3.auditing.request import Request
from mlflow_b3.auditing.subject import Subject
from mlflow_b3.data.folds import (
    DEFAULT_FOLDS,
    Fold,
    FoldSummary,
    assigns_at_random,
    balanced_count,
    count_folds,
    digest_folds,
    fold_findings,
    make_folds,
    summarize_folds,
)
from mlflow_b3.data.table import AuditData
from mlflow_b3.errors import InputError
from mlflow_b3.estimation.estimate import check_size
from mlflow_b3.estimation.p0 import LARGEST_SHARE, P0Bound, bound_folds
from mlflow_b3.estimation.published import LARGEST_IN_AUDIT
from mlflow_b3.measurement.design import (
    DosePlan,
    choose_repeats,
    count_levels,
    count_row_folds,
    dose_levels,
    least_fits,
    parse_budget,
    plan_doses,
)
from mlflow_b3.measurement.refits import FragmentSizes
from mlflow_b3.refit.loading import without_autologging
from mlflow_b3.refit.trainer import StoredCode
from mlflow_b3.results import Finding
from mlflow_b3.version import __version__

#: Why losses by dose cannot be measured with some splitters, and what to use.
CROSSED = (
    "the folds have rows of one cluster on both sides (GroupKFold, or a number of folds, keeps "
    "clusters together)"
)

# --- What is settled before the first refit: folds, leaked share, and how clusters are broken


@dataclass(frozen=True, kw_only=True, eq=False)
class Plan:
    """An audit before its refits.

    Attributes
    ----------
    request : Request
    subject : Subject
    budget : int, str or None
        What an extension leaves of the requested budget for the audit's own refits.
    evidence : Evidence
    claim : Leakage
        With the range that the evidence gives for these folds.
    bound : P0Bound or None
        From the rows themselves, if nothing else is known about the leaked share.
    folds : tuple of Fold
        All folds of the first assignment before those of the second.
    summaries : tuple of FoldSummary
    repeats : int
    fragments : FragmentSizes
        How clusters are split: broken on purpose, or by the law of doses.
    doses : DosePlan or None
        The passes of an audit by doses.
    """

    request: Request
    subject: Subject
    budget: int | str | None
    evidence: Evidence
    claim: Leakage
    bound: P0Bound | None
    folds: tuple[Fold, ...]
    summaries: tuple[FoldSummary, ...]
    repeats: int
    fragments: FragmentSizes
    doses: DosePlan | None

    def measured(self, count: int) -> "Plan":
        """Return the plan with only the folds that were measured, if refits ended early."""
        if count == len(self.folds):
            return self
        if count not in self._shorter:
            repeats = self.repeats * count // len(self.folds)
            folds, summaries = self.folds[:count], self.summaries[:count]
            self._shorter[count] = replace(self, folds=folds, summaries=summaries, repeats=repeats)
        return self._shorter[count]

    @functools.cached_property
    def _shorter(self) -> "dict[int, Plan]":
        """Plans with fewer folds, whose summaries take a while in large tables."""
        return {}

    @property
    def findings(self) -> list[Finding]:
        """What table and folds show before any refit."""
        subject = self.subject
        return [*subject.findings, *fold_findings(self.folds, subject.table, subject.task)]

    @functools.cached_property
    def summary(self) -> PlanSummary:
        """What a report says about method, folds, threshold and seed."""
        request, clusters = self.request, self.subject.table.clusters
        given = request.threshold
        validated = np.zeros(int(clusters.max()) + 1, dtype=bool)
        for fold in self.folds:
            validated[clusters[fold.validation]] = True
        return PlanSummary(
            method=request.method.name if self.doses is None else DOSE,
            method_options=request.method.options if self.doses is None else {},
            scheme=request.scheme,
            n_train=request.n_train,
            fragment_sizes=str(self.fragments),
            folds_given=request.folds_given,
            folds_digest=digest_folds(self.folds),
            repeats=self.repeats,
            n_validated=int(validated.sum()),
            fold_threshold=request.linkage.safe_threshold,
            purge_threshold=request.linkage.purge_threshold,
            threshold=self.subject_summary.constant_loss if given is None else given,
            threshold_given=given is not None,
            seed=request.seed,
        )

    @functools.cached_property
    def subject_summary(self) -> SubjectSummary:
        """What a report says about model, table and loss."""
        return self.subject.summary()

    @functools.cached_property
    def refit_summary(self) -> RefitSummary:
        """What a report says about how the model is refitted."""
        return self.subject.refit_summary()


def plan_audit(request: Request, subject: Subject) -> Plan:
    """Make the folds, and find out what is known about their leakage.

    Parameters
    ----------
    request : Request
    subject : Subject
    """
    table, seed = subject.table, request.seed
    budget = request.extension.rest(subject, request.budget)
    _check_repeats(request.repeats)
    evidence = read_evidence(request.linkage, table, request.row_id)
    grouped = evidence.regrouped(table)
    request = replace(request, folds=request.affordable_folds(grouped))
    by_doses = _is_by_doses(request, subject, budget)
    doses = _plan_doses(request, grouped, budget) if by_doses else None
    repeats = _repeats(request, grouped, subject.learner.stochastic, budget, doses)
    splits = make_folds(grouped, request.folds, seed=seed, repeats=repeats)
    evidence.require_kept(splits, grouped)
    splits = evidence.purged(splits, table)
    summaries = summarize_folds(splits, table)
    claim, bound = _bound(request.claim, table, splits[: len(splits) // repeats], seed)
    claim = evidence.settle(claim, splits, table)
    sizes = request.fragments or claim.fragment_sizes
    _check_before_refits(request, claim, table, summaries, sizes)
    return Plan(
        request=request,
        subject=subject,
        budget=budget,
        evidence=evidence,
        claim=claim,
        bound=bound,
        folds=splits,
        summaries=summaries,
        repeats=repeats,
        fragments=sizes,
        doses=doses,
    )


def _is_by_doses(request: Request, subject: Subject, budget: int | str | None) -> bool:
    """Return whether e0 is solved from the losses by dose; refuse if it must be and cannot."""
    table = subject.table
    reasons = _why_not_by_doses(request, table)
    score = subject.score
    asked = bool(request.by_dose) or request.claim.split_beside is not None
    asked = asked or score is not None or subject.groups is not None
    if reasons and asked:
        what = "method='dose'" if request.by_dose else "cluster_error together with split_rate"
        what = "by" if subject.groups is not None else what
        what = what if score is None else f"scoring={score.name!r}"
        raise InputError(
            f"{what} needs the losses by dose, which cannot be measured here: {'; '.join(reasons)}."
        )
    if request.by_dose is False:
        if subject.groups is not None:
            raise InputError(
                f"by needs method='dose', not {request.method.name!r}. Leave the method out."
            )
        if asked:
            raise InputError(
                f"cluster_error together with split_rate needs method='dose', not "
                f"{request.method.name!r}, which handles only one pattern."
            )
        return False
    stochastic = subject.learner.stochastic
    fits, _ = parse_budget(budget)
    if fits is not None and CROSSED in reasons:
        count = len(make_folds(table, request.folds, seed=request.seed))
        needed = least_fits(n_folds=count, stochastic=stochastic, levels=request.levels)
        if fits < needed:
            raise InputError(
                f"budget={budget} refits is too little for a loss curve, and losses by dose, which need "
                f"fewer, cannot be measured here: {CROSSED}. Use such folds, or give at least {needed} "
                "refits."
            )
    return not reasons


def _why_not_by_doses(request: Request, table: AuditData) -> list[str]:
    reasons = [
        f"{name}={value!r} belongs to the loss curve"
        for name, value, usual in (
            ("scheme", request.scheme, "subset"),
            ("n_train", request.n_train, None),
            ("test", request.test, "paired"),
            ("distribution", request.distribution, False),
            ("levels", request.levels, "optimal"),
        )
        if value != usual
    ]
    if request.folds_given:
        folds = make_folds(table, request.folds, seed=request.seed)
        if any(fold.shared_clusters for fold in summarize_folds(folds, table)):
            reasons.append(CROSSED)
        if len({c for fold in folds for c in table.clusters[fold.validation].tolist()}) < 2:
            reasons.append("the folds validate only one cluster")
    return reasons


def _plan_doses(request: Request, table: AuditData, budget: int | str | None) -> DosePlan:
    fits, _ = parse_budget(budget)
    folds = count_folds(table, request.folds)
    if folds is None:
        folds = len(make_folds(table, request.folds, seed=request.seed))
    largest = int(np.bincount(table.clusters).max())
    return plan_doses(
        fits,
        n_folds=folds,
        n_iid=count_row_folds(folds),
        slots=len(dose_levels(largest)),
        passes=request.repeats,
    )


def _bound(
    claim: Leakage, table: AuditData, folds: Sequence[Fold], seed: int
) -> tuple[Leakage, P0Bound | None]:
    """Bound p0 by the rows themselves if nothing else is known about it."""
    if not claim.asks_rows:
        return claim, None
    with without_autologging():
        bound = bound_folds(table, folds, p0_validation=claim.p0_validation, seed=seed)
    return claim.bounded(bound, folds), bound


def _check_before_refits(
    request: Request,
    claim: Leakage,
    table: AuditData,
    folds: tuple[FoldSummary, ...],
    sizes: FragmentSizes,
) -> None:
    """Refuse what would otherwise fail after hours of refits."""
    n_train = request.n_train
    claim.check(folds, table, sizes, n_train)
    for fold in folds:  # a problem too large for the method, or one that needs more levels
        if n_train is not None and n_train > fold.n_training:
            raise InputError(
                f"n_train={n_train} is more than the {fold.n_training} training rows of a fold; "
                "give at most that many."
            )
        leaked = fold.n_validation + LARGEST_SHARE * fold.n_training
        everything = request.scheme == "replace" or leaked > fold.n_training
        rows = n_train or fold.n_training
        check_size(
            request.method,
            count_levels(request.levels),
            rows if everything else round(leaked),
            largest=LARGEST_IN_AUDIT,
        )


def _check_repeats(repeats: Any) -> None:
    whole = isinstance(repeats, Integral) and not isinstance(repeats, bool)
    if repeats is not None and (not whole or repeats < 1):
        raise InputError(f"repeats={repeats!r} must be a whole number from 1.")


def _repeats(
    request: Request,
    table: AuditData,
    stochastic: bool,
    budget: int | str | None,
    doses: DosePlan | None,
) -> int:
    folds, repeats = request.folds, request.repeats
    if not assigns_at_random(table, folds):
        if repeats is not None and repeats > 1:
            raise InputError(
                f"repeats={repeats} would change nothing: these folds are not drawn at random. Leave it out."
            )
        return 1
    if repeats is not None:
        return int(repeats)
    if doses is not None:
        return doses.passes
    return choose_repeats(
        budget,
        n_folds=balanced_count(table) if isinstance(folds, str) else folds or DEFAULT_FOLDS,
        stochastic=stochastic,
        levels=request.levels,
        from_zero=request.scheme == "replace",
    )


# --- What determines the refits of an audit: two audits with the same identity have the same refits

#: Libraries that matter for every model, because they draw random numbers or train.
ALWAYS = ("numpy", "pandas", "sklearn")
OWN = __name__.split(".")[0]


def identify(plan: Plan) -> dict[str, str]:
    """Return everything but the task that determines the outcome of a refit.

    The leaked share, the method and the budget are not among it: audits that differ in them share
    refits. So do audits with different numbers of assignments to folds, which all begin alike.

    Raises
    ------
    InputError
        For a model that cannot be distinguished from others.
    """
    request, folds = plan.request, plan.folds
    return identify_subject(plan.subject) | {
        "folds": digest_folds(folds[: len(folds) // plan.repeats]),
        "scheme": request.scheme,
        "levels": str(request.levels),
        "n_train": str(request.n_train),
        "fragments": str(plan.fragments),
        "seed": str(request.seed),
        "test": request.test,
    }


def identify_subject(subject: Subject) -> dict[str, str]:
    """Return what identifies the refitted model, its rows and the loss."""
    learner, loss = subject.learner, subject.loss
    options = json.dumps(subject.options, sort_keys=True, default=str)
    own_loss = getattr(loss.per_row, "function", None)
    return {
        "data": subject.table.digest,
        "row ids": _digest_ids(subject.table.ids),
        "columns": _short(json.dumps(_columns(subject.table))),
        "target": subject.table.target_name,
        "cluster": subject.table.cluster_name,
        "sample_weight": str(subject.sample_weight),
        "model": f"{subject.audited.name} {_digest_model(subject.audited.model_digest, learner)}",
        "refit": f"{learner.route} {options}",
        "code": _digest_code([*_parts(learner), own_loss]),
        "loss": loss.name,
        "versions": _versions(_parts(learner)),
    }


def _short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _digest_ids(ids: Any) -> str:
    try:
        numbers = pd.util.hash_array(ids)
    except TypeError:  # labels that cannot be hashed
        return _short("\x1f".join(map(repr, ids.tolist())))
    return hashlib.sha256(numbers.tobytes()).hexdigest()[:16]


def _digest_model(of_files: str | None, learner: Any) -> str:
    if of_files is not None:
        return of_files[:16]
    try:
        return str(joblib.hash(learner))[:16]
    except Exception:  # objects of other libraries that cannot be pickled
        pass
    try:
        return hashlib.sha256(cloudpickle.dumps(learner)).hexdigest()[:16]
    except Exception as error:
        raise InputError(
            f"journal: {learner.name} cannot be distinguished from other models, because it cannot be "
            f"serialized ({error}). Audit a logged model, or leave the journal out."
        ) from error


def _parts(learner: Any) -> list[Any]:
    """Return the objects that a learner consists of, including nested estimators."""
    found = [*vars(learner).values(), getattr(learner, "code", None)]
    for value in list(found):
        if hasattr(value, "get_params") and not inspect.isclass(value):
            found += value.get_params(deep=True).values()
    return found


def _columns(table: AuditData) -> list[str]:
    """Return the names of the features, with the categories that the table's digest leaves out."""
    features = table.features
    if not isinstance(features, pd.DataFrame):
        return [*table.feature_names]
    return [
        f"{name} {_categories(dtype)}"
        for name, dtype in zip(table.feature_names, features.dtypes, strict=True)
    ]


def _categories(dtype: Any) -> str:
    if not isinstance(dtype, pd.CategoricalDtype):
        return str(dtype)
    return f"{dtype.ordered} {_short(repr([*dtype.categories]))}"


def _digest_code(objects: Iterable[Any]) -> str:
    """Digest the user's own functions and classes: their source, and what they refer to."""
    told: list[str] = []
    for value in objects:
        _tell(value, told, set())
    return _short("\n".join(sorted(set(told))))


def _tell(value: Any, told: list[str], seen: set[int]) -> None:
    """Add the source of a function, class or module of the user's, and of what it refers to."""
    if id(value) in seen or value is None:
        return
    seen.add(id(value))
    if isinstance(value, StoredCode):
        told.append(repr(value))
        return
    if isinstance(value, functools.partial):
        told.append(repr((value.args, sorted(value.keywords.items()))))
        _tell(value.func, told, seen)
        return
    kinds = (inspect.isfunction, inspect.isclass, inspect.ismodule)
    code = value if any(kind(value) for kind in kinds) else type(value)
    if not _is_users(code):
        return
    with suppress(OSError, TypeError):  # typed into a shell
        told.append(inspect.getsource(code))
    if inspect.isclass(code):
        for base in code.__mro__[1:]:
            _tell(base, told, seen)
    if inspect.isfunction(code):
        _tell_references(code, told, seen)


def _tell_references(function: Any, told: list[str], seen: set[int]) -> None:
    """Add what a function takes from outside: defaults, closures and names of its module."""
    try:
        outside = inspect.getclosurevars(function)
    except (TypeError, ValueError):
        return
    given = {"defaults": function.__defaults__, "keywords": function.__kwdefaults__}
    for name, value in {**outside.globals, **outside.nonlocals, **given}.items():
        if inspect.isfunction(value) or inspect.isclass(value) or inspect.ismodule(value):
            _tell(value, told, seen)
            continue
        with suppress(Exception):  # what cannot be pickled cannot be distinguished from others
            told.append(f"{name} {joblib.hash(value)}")


def _is_users(code: Any) -> bool:
    """Return whether a function, class or module is neither ours nor installed."""
    name = code.__name__ if inspect.ismodule(code) else code.__module__
    file = getattr(sys.modules.get(name), "__file__", None)
    installed = tuple(sysconfig.get_path(path) for path in ("stdlib", "purelib", "platlib"))
    return file is not None and not file.startswith(installed) and name.split(".")[0] != OWN


def _versions(parts: Iterable[Any]) -> str:
    names = {type(part).__module__.split(".")[0] for part in parts} | set(ALWAYS)
    versions = {name: getattr(sys.modules.get(name), "__version__", None) for name in sorted(names)}
    python = ".".join(platform.python_version_tuple()[:2])
    known = [f"{name} {version}" for name, version in versions.items() if version]
    return ", ".join([f"mlflow-b3 {__version__}", f"Python {python}", *known])
