"""`cvc`: bias-corrected cross-validation, alone and as a part of an audit."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from mlflow_b3.auditing.plan import identify_subject
from mlflow_b3.auditing.report import AuditReport
from mlflow_b3.auditing.request import check_kinds
from mlflow_b3.auditing.subject import Subject, load_subject
from mlflow_b3.correlated.correction import Correction, digest_working_model
from mlflow_b3.correlated.engines import find_engine
from mlflow_b3.correlated.report import CvcReport, group_influence
from mlflow_b3.correlated.structure import DRAWS, CvcOptions, WorkingModel
from mlflow_b3.data.folds import Fold, RowParts, cross_validates, digest_folds, make_folds
from mlflow_b3.data.losses import CLASSIFICATION, REGRESSION
from mlflow_b3.errors import B3Error, InputError, check_seed
from mlflow_b3.estimation.influence import Influence
from mlflow_b3.measurement.campaign import Campaign
from mlflow_b3.measurement.design import parse_budget, parse_seconds
from mlflow_b3.measurement.journal import Journal, open_journal
from mlflow_b3.measurement.refits import FitCounts
from mlflow_b3.measurement.runner import Means, WorkerSettings
from mlflow_b3.refit.learner import AuditedModel, Learner
from mlflow_b3.refit.loading import load_model, without_autologging
from mlflow_b3.results import Finding

# --- `cvc`: bias-corrected cross-validation, where what correlates the rows is known

DEFAULT_FOLDS = 10
#: More folds of rows than this change little but the time.
MOST_FOLDS = 100
ROUTES = {"hot": "hot-start", "last_layer": "last-layer"}


def cvc(
    model: Any,
    data: Any,
    *,
    target: str,
    groups: Sequence[str] | str,
    new: Sequence[str] | str | None = None,
    loss: Any = None,
    coordinates: Sequence[str] | None = None,
    folds: Any = None,
    engine: str = "auto",
    working: str | WorkingModel | CvcReport = "auto",
    draws: int = DRAWS,
    epochs: int | None = None,
    budget: int | str | None = None,
    trainer: Any = None,
    refit: str = "auto",
    refit_options: Mapping[str, Any] | None = None,
    sample_weight: str | None = None,
    row_id: str | None = None,
    seed: int = 0,
    n_jobs: int | None = None,
    backend: str | None = None,
    address: str | None = None,
    fit_timeout: float | str | None = None,
    journal: Any = None,
    progress: bool | None = None,
) -> CvcReport:
    """Cross-validate a model, and add back what correlated rows hide of its loss.

    CV_c = CV + w, with w = (1/n) Σ_i E[L₂(s_i) (μ_i - m_i)] in a simulated world: s_i is the score of
    row i by the learner trained without its fold, L₂(s) = L(0, s) - L(1, s), μ_i the mean of its
    target given all random effects, and m_i that given only what rows in use will share with
    training rows (Yuval and Rosset, AISTATS 2025).

    Parameters
    ----------
    model, data, target, trainer, refit, refit_options, sample_weight, row_id, seed, n_jobs, backend, \
            address, fit_timeout, journal, progress
        As in `mlflow_b3.audit`. The target has two classes, or is a number.
    groups : list of str
        Columns by whose values rows are correlated, such as ["patient", "day"]; they are features
        only where the model names them.
    new : list of str, optional
        Those of which the model will meet new values; all by default. Of the others it will meet the
        same values again.
    loss : str or callable, optional
        "zero_one" (classifiers' default), "log", "brier", "hinge" or `(target, prediction) → losses`
        for two classes; "squared" for numbers.
    coordinates : list of str, optional
        Columns with the places of rows. Then `groups` names the region, rows are correlated by a
        random field, and the model will be used in new regions.
    folds : int, splitter, list of splits or of the fold of each row, optional
        The folds of the cross-validation to be corrected; ten of rows at random by default.
    engine : {"auto", "fast", "joint", "full", "hot", "last_layer"}
        How the learner's part in the simulated world is computed. "fast": formulas, for linear and
        logistic regression. "joint": for `MixedLogistic`. "full": refits, for everything else. "hot"
        and "last_layer" train neural networks for a short while, or in part; they are lower in
        quality and never chosen by "auto".
    working : {"auto", "score", "glmm"}, WorkingModel or CvcReport
        Where the fixed part of the simulated world comes from: the model's own score by folds of
        whole groups, recalibrated; or a regression on all numeric features, as in the paper. "auto"
        is the first, but for linear regression, whose own features are the better choice. To
        compare models, give all of them the report of the richest one: they then share one world
        and its random numbers.
    draws : int
        Simulated samples; "full" refits one fold in each, and takes up to three times as many where
        the error is large.
    epochs : int, optional
        For the engine "hot": how often a network sees the rows of a simulated sample; networks of
        scikit-learn by default half as often as in their own training.
    budget : int or str, optional
        Number of refits, or a time such as "10m".

    Returns
    -------
    CvcReport
        With `cv`, `cvc`, `bias` and `interval`; the last three are None where no correction can be
        given, for reasons that `findings` name.

    Notes
    -----
    The features of a new group must look like those of the groups in the table: what they betray of
    their group is seen by folds of whole groups (`grouped`), not by CV_c. Wrong group ids make the
    correction too small.

    The paper centres simulated targets by their mean over samples, in two nested loops where some
    groups are observed again. Here m_i is computed, which needs one loop and has less noise. Each
    sample refits one fold instead of all, which has 2 to 6 times less variance for as many refits.

    Examples
    --------
    >>> import mlflow_b3 as b3
    >>> from sklearn.naive_bayes import GaussianNB
    >>> clinic = b3.make_clinic(patients=20, records=4)
    >>> report = b3.cvc(GaussianNB(), clinic.frame, target="disease", groups=["patient_id"], draws=20)
    >>> round(report.cv, 1), round(report.cvc, 1)
    (0.2, 0.3)
    """
    check_seed(seed)
    check_kinds(None, refit, refit_options, False)
    given = None if isinstance(working, str) else given_world(working)
    options: dict[str, Any] = {
        "groups": groups,
        "coordinates": coordinates,
        "engine": engine,
        "draws": draws,
        "epochs": epochs,
        **({} if new is None else {"new": new}),
        **({} if given is not None else {"working": working}),
    }
    checked: CvcOptions = CvcOptions.from_mapping(options)
    means = Means(
        workers=WorkerSettings(n_jobs=n_jobs, backend=backend, address=address),
        fit_timeout=parse_seconds("fit_timeout", fit_timeout),
        progress=progress,
    )
    fits, seconds = parse_budget(budget)
    subject = load_subject(
        model,
        data,
        target=target,
        cluster=checked.new[0],
        loss=loss,
        trainer=trainer,
        refit=refit,
        refit_options=refit_options,
        sample_weight=sample_weight,
        row_id=row_id,
        cvc=options,
    )
    require_correctable(subject, given)
    splits = cv_folds(subject, folds, int(seed))
    correction = Correction(
        subject=subject,
        folds=splits,
        seed=int(seed),
        means=means,
        refits=fits,
        seconds=seconds,
        shortcut=find_shortcut(model, subject, refit_options),
        given=given,
    )
    with ExitStack() as stack:
        stack.enter_context(without_autologging())
        kept = None
        if journal is not None:
            identity = identify_correction(correction)
            kept = stack.enter_context(open_journal(journal, identity))
        return correction.run(kept)


def given_world(working: Any) -> WorkingModel:
    """Return the simulated world that another report, or the user, gives."""
    if isinstance(working, WorkingModel):
        return working
    if not isinstance(working, CvcReport):
        raise InputError(
            f"working={type(working).__name__} is not usable; give 'auto', 'score', 'glmm', a WorkingModel or "
            "the report of another model."
        )
    if working.model is None or working.model.problems:
        raise InputError(
            "working: the report has no simulated world, because its correction was withheld or it was "
            "read from a file; give the report that cvc or audit returned."
        )
    return working.model


def require_correctable(subject: Subject, given: WorkingModel | None = None) -> None:
    """Refuse targets and losses for which there is no correction."""
    problems = []
    assert subject.cvc is not None
    if subject.table.target_name in (*subject.cvc.groups, *subject.cvc.coordinates):
        problems.append(f"target {subject.table.target_name!r} is among groups or coordinates too.")
    if subject.task == "classification":
        classes = np.unique(subject.table.target)
        if len(classes) != 2:
            problems.append(
                f"target {subject.table.target_name!r} has {len(classes)} classes; corrected "
                "cross-validation is for two, or for numbers."
            )
    elif subject.loss is not REGRESSION["squared"]:
        problems.append(
            f"loss={subject.loss.name!r} has no correction for numbers; use loss='squared'. For two "
            f"classes there are {', '.join(CLASSIFICATION)}."
        )
    if given is not None and len(given.mean) != subject.table.n_rows:
        problems.append(
            f"working is of {len(given.mean)} rows, the table has {subject.table.n_rows}; give a report "
            "of the same rows."
        )
    if given is not None and given.task != subject.task:
        problems.append(f"working is of a {given.task} model, this one is of {subject.task}.")
    if problems:
        raise InputError.from_problems("cvc", problems)


def cv_folds(subject: Subject, folds: Any, seed: int) -> Sequence[Fold]:
    """Return the folds of the cross-validation that is corrected."""
    n_rows = subject.table.n_rows
    count = min(DEFAULT_FOLDS, n_rows) if folds is None else folds
    most = min(MOST_FOLDS, n_rows)
    if isinstance(count, bool) or (isinstance(count, (int, np.integer)) and not 2 <= count <= most):
        raise InputError(f"folds={folds!r} must be a whole number from 2 to {most}.")
    if isinstance(count, (int, np.integer)):
        return RowParts(n_rows, int(count), seed)
    splits = make_folds(subject.table, folds, seed=seed)
    if not cross_validates(splits):
        raise InputError("folds: each row must be left out exactly once to be cross-validated.")
    return splits


def find_shortcut(
    model: Any, subject: Subject, refit_options: Mapping[str, Any] | None
) -> Learner | None:
    """Return what is trained on simulated targets where the engine does not train the whole model."""
    assert subject.cvc is not None
    engine, epochs = subject.cvc.engine, subject.cvc.epochs
    if engine not in ROUTES:
        return None
    source = model.uri if isinstance(model, AuditedModel) else model
    if source is None:
        raise InputError(f"engine={engine!r} needs a logged model, or the trained model itself.")
    recipe = {name: value for name, value in (refit_options or {}).items() if name != "epochs"}
    recipe |= {} if epochs is None else {"epochs": epochs}
    try:
        learner = load_model(source, refit=ROUTES[engine], options=recipe).learner
    except B3Error as error:
        raise InputError(f"engine={engine!r} is not for this model: {error}") from error
    if learner.task is None:
        learner = learner.with_task(subject.task)
    return learner.with_target(subject.table.target)


def identify_correction(correction: Correction) -> dict[str, str]:
    """Return everything that the outcome of a refit follows from, beside its task."""
    subject = correction.subject
    folds = digest_folds(list(correction.folds))
    shared = {"seed": str(correction.seed), "cross-validation": folds}
    return identify_subject(subject) | shared | {"cvc": describe_correction(correction)}


def describe_correction(correction: Correction) -> str:
    """Return by what one correction of the same rows and model differs from another."""
    assert correction.subject.cvc is not None
    options = correction.subject.cvc.to_dict() | {"world": digest_working_model(correction.given)}
    del options["draws"]
    return str(options)


# --- Corrected cross-validation as a part of an audit, beside the loss on new clusters

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
