"""`audit` and the leakage test alone: request → subject → plan → measurement → report."""

import logging
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import numpy as np

from mlflow_b3.auditing.conclusions import (
    ByShares,
    conclude,
    conclude_test,
    examine_rows,
    preview,
    summarize_measurement,
    way_to_conclude,
)
from mlflow_b3.auditing.doses import ByDoses
from mlflow_b3.auditing.extension import PlannedExtension
from mlflow_b3.auditing.findings import audit_findings, distribution_findings, linkage_findings
from mlflow_b3.auditing.plan import Plan, identify, plan_audit
from mlflow_b3.auditing.report import AuditReport
from mlflow_b3.auditing.request import (
    Request,
    check_kinds,
    check_threshold,
    make_request,
    translate_names,
)
from mlflow_b3.auditing.subject import Subject, load_subject
from mlflow_b3.data.folds import load_folds, make_folds
from mlflow_b3.data.losses import CLASSIFICATION, Loss
from mlflow_b3.errors import InputError, check_seed, choose
from mlflow_b3.estimation.estimate import Method
from mlflow_b3.estimation.leakage_test import TESTS, LeakageTest
from mlflow_b3.measurement.campaign import (
    Campaign,
    DoseCampaign,
    check_test,
    check_timed_test,
    measure_test,
)
from mlflow_b3.measurement.collecting import Measurement
from mlflow_b3.measurement.design import parse_seconds
from mlflow_b3.measurement.journal import Journal, JournalFolder, open_journal
from mlflow_b3.measurement.refits import FitCounts
from mlflow_b3.measurement.runner import Means, WorkerSettings, one_thread
from mlflow_b3.options import Design, LinkageEvidence, RefitOptions, Running, flat_options
from mlflow_b3.refit.loading import without_autologging, without_bytecode
from mlflow_b3.version import __version__

# --- `audit`: the whole flow, from a model and a table to a report

_LOG = logging.getLogger(__name__)


def audit(
    model: Any,
    data: Any,
    y: Any = None,
    *,
    target: str | None = None,
    cluster: Any = None,
    loss: Any = None,
    scoring: Any = None,
    by: Any = None,
    p0: Any = None,
    p0_validation: float | None = None,
    cluster_error: Any = None,
    split_rate: Any = None,
    match_probability: Any = None,
    linkage: LinkageEvidence | None = None,
    folds: Any = None,
    method: str | Method = "auto",
    method_options: Mapping[str, Any] | None = None,
    threshold: Any = None,
    budget: int | str | None = None,
    trainer: Any = None,
    refit: str | RefitOptions = "auto",
    design: Design | None = None,
    seed: int = 0,
    n_jobs: int | None = None,
    backend: str | None = None,
    journal: Any = None,
    running: Running | None = None,
    **rare: Any,
) -> AuditReport:
    """Find out whether a model's score is inflated by leaked dependency, and by how much.

    Parameters
    ----------
    model : str, model or None
        "models:/name/3", "models:/name@alias", "models:/m-…", "runs:/id/path"; or an estimator or
        another model that can be refitted; or None where a `trainer` is given.
    data : DataFrame, array or path
        The rows the model was, or could have been, trained on: a DataFrame of pandas or Polars, an Arrow
        table, the path of a .csv or .parquet file; or, with `y`, also an array or a sparse matrix of
        features.
    y : sequence, optional
        What is predicted, where it is not a column of `data`.
    target : str, optional
        Column with what is predicted. It or `y` is required.
    cluster : str or sequence
        Column, or level of the index, with the noisy cluster id; or the label of each row.
    loss : str or callable, optional
        "zero_one" (classifiers' default), "log", "brier", "hinge"; "squared" (regressors'
        default), "absolute", "poisson", "pinball_0.9" for a predicted quantile; or `(target,
        prediction) → losses`.
    scoring : str or scorer, optional
        In place of a loss, a score by scikit-learn's name: "accuracy", "balanced_accuracy", "roc_auc",
        "average_precision", "f1", "precision", "recall", "matthews_corrcoef", "r2" and others; or a scorer
        of your own for labels or values, `make_scorer(fbeta_score, beta=2)`; see `docs/scores.md`. All
        numbers of the report are then in its units. Of scores that begin with `neg_`, reports show
        the loss itself.
    by : str or sequence, optional
        Column of groups of rows, such as "sex", or the group of each row: `report.groups` has e0, LOCO
        and their gap for each, and which differences are beyond the noise. A column stays a feature.
    p0 : number, (low, high), "grid" or "mixture", optional
        Share of the training rows of a fold that belong to validation clusters. "mixture" bounds
        it from above by how many training rows look like validation rows; "grid" is the same as no
        value: that bound is shown but not used.
    p0_validation : number, optional
        With `p0`: share of the validation rows that belong to training clusters. By default, as
        many rows leak in this direction as in the other; 0 is the papers' one-directional case.
    cluster_error : number, str or (low, high), optional
        0.1, "10%" or a range: share of all rows with a wrong cluster id, misplaced one by one (pattern `rows`).
        Give it together with `split_rate` for both kinds of wrong ids at once (method "dose").
    split_rate : number, str or (low, high), optional
        0.1, "10%" or a range: share of all rows whose true cluster has been split into two ids (pattern `fragments`).
    match_probability : pair table or str, optional
        Scored pairs of record linkage: what Splink, dedupe or recordlinkage return, any table with
        two ids and a probability, or such a .csv or .parquet file; see `mlflow_b3.linkage`. They
        give an order of magnitude of the leak shares, the rows to review first, and folds with less
        leakage. Or the column with the probability that a row's cluster id is right.
    linkage : LinkageEvidence, optional
        What else is known about the record linkage: reviewed rows, its recall and precision, or
        posterior samples; and how folds are made from scored pairs.
    folds : int, "balanced", splitter, list of splits or of the fold of each row, or path, optional
        By default, one cluster is left out at a time with up to ten clusters if the budget suffices,
        otherwise there are five folds of whole clusters or more. "balanced" leaves out several at a
        time if their sizes differ much. A path is that of the folds.csv of another audit of the same
        rows in MLflow.
    method : str or Method
        "dose" solves e0 from the loss by how many rows of its own cluster a row has in training
        (`report.dose`). "auto" is the same if that can be measured, and otherwise "power", which
        extrapolates the loss over injected shares of leaked rows. Or one of the papers' estimators, as
        in `mlflow_b3.estimate`. "cvc" is "auto" and also corrects ordinary cross-validation
        (`mlflow_b3.cvc`), for losses, the AUC and the accuracy. It takes all cluster ids as right unless
        something is given about wrong ones.
    method_options : mapping, optional
        Options of the method, such as {"order": 3} for "basis"; see `Method`. For "cvc": groups, new,
        coordinates, engine, working, draws and epochs, as in `mlflow_b3.cvc`; the cluster is always a
        group and always new, and `working` may be the report of another model's audit.
    threshold : number or str, optional
        The loss or score at which the model fails, for the tipping points; by default that of the
        best constant prediction. Shares may be given as "35%".
    budget : int or str, optional
        Number of refits, or a time such as "10m" for the whole audit. By default at most 100 with five folds, or 480
        if a loss curve is extrapolated. With a time, the numbers depend on the speed of the machine. A
        budget that is too small is refused; a time, as soon as the first refits show it.
    trainer : str or callable, optional
        "module:function" or a function `(X, y, sample_ids) → predictor` that trains the model, for
        models that cannot be refitted directly; see `TrainerLearner`. One that was stored with the
        run by `log_trainer` is found automatically.
    refit : str or RefitOptions
        How the model is refitted: "clone", "parameters", "trainer", "fresh", "hot-start",
        "last-layer" or "head"; by default the first of these that its flavour allows. `RefitOptions`
        adds options or weights of rows.
    design : Design, optional
        How training sets are resampled, and which leakage test is used.
    seed : int
        The same seed gives the same numbers, whatever the number of workers.
    n_jobs : int, optional
        How many refits run at the same time, as in `joblib.Parallel`: 1 by default, -1 for all cores,
        or all that a cluster has. Large tables may run fewer, as memory allows.
    backend : {"loky", "threading", "sequential", "dask", "ray", "spark"}, optional
        Where they run: in processes or threads of this machine, one after another, or on a cluster.
        By default in processes, if `n_jobs` allows several and refits take longer than processes need
        to start.
    journal : path, optional
        A file, or a folder of such files, that records every finished refit: the same audit resumes
        from there when it is started again. It is created if it does not exist.
    running : Running, optional
        The address of a cluster, how long one refit may take, and whether progress is shown.
    **rare
        The options of these objects by their own names, as on the command line: `scheme="replace"` is
        `design=Design(scheme="replace")`. See the reference of options. `groups` and `cv` are
        scikit-learn's names for `cluster` and `folds`.

    Returns
    -------
    AuditReport
        After Ctrl-C, the report on the refits made until then, with `refits.partial` set.

    Raises
    ------
    InterruptedAudit
        After Ctrl-C, if the refits made until then are too few for a report.

    Examples
    --------
    >>> import mlflow_b3 as b3
    >>> from sklearn.neighbors import KNeighborsClassifier
    >>> clinic = b3.make_clinic(patients=20, records=4, cluster_error=0.1)
    >>> report = b3.audit(
    ...     KNeighborsClassifier(),
    ...     clinic.frame,
    ...     target="disease",
    ...     cluster="patient_id",
    ...     cluster_error=0.1,
    ...     folds=2,
    ...     budget=60,
    ... )
    >>> round(report.loco, 1), report.loco < report.e0
    (0.3, True)
    >>> report.p0_source, report.refits.done
    ('cluster_error', 60)
    """
    options = locals()
    options |= options.pop("rare")
    request = make_request(flat_options(translate_names(options)))
    subject = _load(request)
    plan = plan_audit(request, subject)
    with _measure(plan) as measured:
        return _report(plan, measured)


@dataclass(frozen=True, kw_only=True, eq=False)
class Measured:
    """What the refits of an audit gave.

    Attributes
    ----------
    losses : Measurement
    counts : FitCounts
    extension : PlannedExtension
        What the method adds, with refits of its own.
    journal : Journal or None
        Open, for the refits of the extension.
    looks : _Looks
    """

    losses: Measurement
    counts: FitCounts
    extension: PlannedExtension
    journal: Journal | None
    looks: "_Looks"


def _load(request: Request) -> Subject:
    """Load the model and the table; refuse options that do not fit them before anything is fitted."""
    subject = load_subject(
        request.model,
        request.data,
        target=request.target,
        cluster=request.cluster,
        loss=request.loss,
        score=request.score,
        by=request.by,
        trainer=request.trainer,
        refit=request.refit,
        refit_options=request.refit_options,
        sample_weight=request.sample_weight,
        row_id=request.row_id,
        match_probability=request.linkage.column,
        read_extra=request.extension.read,
        before_fits=request.check_budget,
    )
    check_threshold(request.threshold, subject.score or subject.loss)
    return subject


class _Looks:
    """Looks at what is known while refits run. What ended them is kept for the conclusions."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._last: tuple[Measurement, ByShares | ByDoses] | None = None

    def preview(self, part: Measurement) -> str:
        """Return in a few words what is known so far."""
        plan = self._plan.measured(len(part.row_losses))
        return preview(
            part, plan.claim, plan.summaries, subject=plan.subject_summary, plan=plan.summary
        )

    def enough(self, part: Measurement) -> bool:
        """Return whether more refits would hardly narrow the interval of e0."""
        way = self.way(part)
        with one_thread():  # as for the conclusions, which take over what was computed here
            if not isinstance(way, ByDoses) or not way.is_enough:
                return False
        self._last = part, way
        return True

    def way(self, measured: Measurement) -> ByShares | ByDoses:
        """Return how conclusions are drawn from what was measured."""
        if self._last is not None and self._last[0] is measured:
            return self._last[1]
        plan = self._plan.measured(len(measured.row_losses))
        return way_to_conclude(
            measured, plan.claim, plan.summaries, subject=plan.subject_summary, plan=plan.summary
        )


def _campaign(plan: Plan, looks: _Looks) -> Campaign:
    request, subject = plan.request, plan.subject
    common: dict[str, Any] = {
        "data": subject.rows,
        "learner": subject.learner,
        "loss": subject.loss,
        "folds": plan.folds,
        "repeats": plan.repeats,
        "seed": request.seed,
        "budget": plan.budget,
        "means": request.means,
        "started": request.started,
        "preview": looks.preview,
        # recording opens the audit's MLflow run here
        "before_first_refit": subject.audited.before_first_refit,
    }
    if plan.doses is not None:
        return DoseCampaign(
            **common,
            passes=plan.doses,
            enough=looks.enough,
            score=subject.score,
            groups=subject.groups,
        )
    return Campaign(
        **common,
        scheme=request.scheme,
        levels=request.levels,
        n_train=request.n_train,
        fragments=plan.fragments,
        distribution=request.distribution,
        test=request.test,
    )


@contextmanager
def _measure(plan: Plan) -> Iterator[Measured]:
    """Run the refits of an audit; its journal stays open for those of the extension."""
    looks = _Looks(plan)
    campaign = _campaign(plan, looks)
    with ExitStack() as stack:
        stack.enter_context(without_autologging())
        stack.enter_context(without_bytecode())
        request = plan.request
        extension = request.extension.plan(
            request.model,
            plan.subject,
            campaign,
            budget=request.budget,
            refit_options=request.refit_options,
        )
        journal = _open_journal(stack, plan, extension)
        with extension.budget_explained():
            losses, counts = campaign.measure(journal)
        yield Measured(
            losses=losses, counts=counts, extension=extension, journal=journal, looks=looks
        )


def _open_journal(stack: ExitStack, plan: Plan, extension: PlannedExtension) -> Journal | None:
    """Open the journal of an audit, if it has one; one that nobody asked for may fail."""
    journal = plan.request.journal
    if journal is None:
        return None
    try:
        identity = identify(plan) | extension.identity
        return stack.enter_context(open_journal(journal, identity))
    except InputError as error:
        if not isinstance(journal, JournalFolder):
            raise
        _LOG.warning("Finished refits are not kept for another run. %s", error)
        return None


def _report(plan: Plan, measured: Measured) -> AuditReport:
    """Conclude from the refits, run those that the method adds, and say what was found."""
    plan = plan.measured(len(measured.losses.row_losses))
    if plan.request.scoring is not None:
        _refuse_clipped(plan.subject.loss, measured.losses)
    request, subject, counts = plan.request, plan.subject, measured.counts
    report = _conclude(plan, measured.losses, measured.looks)
    report = measured.extension.run(report, measured.journal, counts)
    ended = datetime.now(UTC).isoformat(timespec="seconds")
    measurement = replace(
        report.measured, fits=counts.done, refits=counts.summary(), measured_at=ended
    )
    report = replace(report, measured=measurement)
    findings = [*plan.findings, *audit_findings(report, counts)]
    findings += distribution_findings(report, asked=request.distribution)
    findings += request.extension.findings(report, taken_as_right=request.taken_as_right)
    findings += linkage_findings(report, plan.evidence, plan.folds, subject.table)
    return replace(report, findings=tuple(findings))


def _refuse_clipped(loss: Loss, losses: Measurement) -> None:
    """Refuse a log loss that only says where probabilities are clipped."""
    if loss is not CLASSIFICATION["log"]:
        return
    assert loss.bound is not None
    rows = np.concatenate(losses.row_losses)
    clipped = int((rows > loss.bound / 2).sum())
    if clipped:
        raise InputError(
            f"scoring='neg_log_loss' says little here: {clipped} of {len(rows)} rows had a probability of "
            "about 0 for their own class, whose logarithm depends on where it is clipped. Use "
            "scoring='neg_brier_score', or loss='log' to see it all the same."
        )


def _conclude(plan: Plan, losses: Measurement, looks: _Looks) -> AuditReport:
    """Put the report together, still without findings and how the refits went."""
    conclusion, influence = conclude(
        losses,
        plan.claim,
        plan.summaries,
        subject=plan.subject_summary,
        refit=plan.refit_summary,
        plan=plan.summary,
        test=conclude_test(losses.test_losses, plan.request.test, splits=plan.folds),
        way=looks.way(losses),
    )
    report = AuditReport(
        subject=plan.subject_summary,
        refit=plan.refit_summary,
        plan=plan.summary,
        claim=plan.claim.summary(plan.bound),
        measured=summarize_measurement(losses, plan.summaries, plan.subject_summary),
        conclusion=conclusion,
        findings=(),
        version=__version__,
        influence=influence,
        splits=plan.folds,
        measurements=losses,
    )
    return examine_rows(report, plan.evidence, losses.row_losses, plan.folds, plan.subject.table)


# --- `run_leakage_test`: the leakage test of a model alone


def run_leakage_test(
    model: Any,
    data: Any,
    *,
    target: str,
    cluster: Any,
    loss: Any = None,
    folds: Any = None,
    test: str = "paired",
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
    progress: bool | None = None,
) -> LeakageTest:
    """Run the leakage test of a model alone.

    See `audit` for the parameters; here the whole budget is for the test. By default `paired` has
    150 refits, and `permutation` 99 rearrangements of the rows. `permutation` adapts its number of
    rearrangements to a time; `welch` cannot be cut short and accepts no time.
    """
    choose("test", test, TESTS)
    if test == "welch":
        check_timed_test(test, budget)
    check_seed(seed)
    check_kinds(None, refit, refit_options, False)
    means = Means(
        workers=WorkerSettings(n_jobs=n_jobs, backend=backend, address=address),
        fit_timeout=parse_seconds("fit_timeout", fit_timeout),
        progress=progress,
    )
    subject = load_subject(
        model,
        data,
        target=target,
        cluster=cluster,
        loss=loss,
        trainer=trainer,
        refit=refit,
        refit_options=refit_options,
        sample_weight=sample_weight,
        row_id=row_id,
    )
    campaign = Campaign(
        data=subject.rows,
        learner=subject.learner,
        loss=subject.loss,
        folds=make_folds(subject.table, load_folds(folds), seed=seed),
        seed=seed,
        budget=budget,
        means=means,
        test=test,
    )
    check_test(campaign.folds, test, budget)
    with without_autologging(), campaign.session() as session:
        losses = measure_test(campaign, session, budget)
        session.check_failures()
    return conclude_test(losses, test, splits=campaign.folds)
