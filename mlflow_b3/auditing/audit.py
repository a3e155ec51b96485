"""`audit` and the leakage test alone: request → subject → plan → measurement → report."""

import logging
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import numpy as np

from mlflow_b3.auditing.conclusions import conclude, conclude_test, examine_rows, preview
from mlflow_b3.auditing.extension import find_extension
from mlflow_b3.auditing.findings import audit_findings, linkage_findings
from mlflow_b3.auditing.leakage import LinkageArguments, make_claim, read_evidence
from mlflow_b3.auditing.plan import Plan, check_budget, identify, plan_audit
from mlflow_b3.auditing.report import AuditReport, Settings
from mlflow_b3.auditing.request import check_kinds, check_settings, check_threshold
from mlflow_b3.auditing.subject import load_subject
from mlflow_b3.data.folds import count_folds, digest_folds, load_folds, make_folds
from mlflow_b3.data.losses import constant_loss, named_loss
from mlflow_b3.data.table import AuditData
from mlflow_b3.errors import InputError, check_seed, choose
from mlflow_b3.estimation.estimate import Method
from mlflow_b3.estimation.hypothesis import TESTS, LeakageTest
from mlflow_b3.measurement.campaign import Campaign, check_test, check_timed_test, measure_test
from mlflow_b3.measurement.collecting import Measurement
from mlflow_b3.measurement.design import parse_levels, parse_seconds
from mlflow_b3.measurement.journal import Journal, JournalFolder, open_journal
from mlflow_b3.measurement.refits import parse_fragments
from mlflow_b3.measurement.runner import Means, WorkerSettings
from mlflow_b3.refit.loading import without_autologging
from mlflow_b3.results import Finding, read_number

# --- `audit`: the whole flow, from a model and a table to a report

_LOG = logging.getLogger(__name__)


def audit(
    model: Any,
    data: Any,
    *,
    target: str,
    cluster: Any,
    loss: Any = None,
    p0: Any = None,
    p0_validation: float | None = None,
    cluster_error: Any = None,
    split_rate: Any = None,
    match_probability: Any = None,
    resolved_rows: Any = None,
    reviewer: tuple[float, float] | None = None,
    linkage_quality: Mapping[str, float] | None = None,
    partition_samples: Any = None,
    fragments: Any = None,
    fold_threshold: float | None = None,
    purge_threshold: float | None = None,
    folds: Any = None,
    repeats: int | None = None,
    method: str | Method = "auto",
    method_options: Mapping[str, Any] | None = None,
    scheme: str = "subset",
    levels: str | int = "optimal",
    n_train: int | None = None,
    test: str = "paired",
    threshold: Any = None,
    distribution: bool = False,
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
) -> AuditReport:
    """Find out whether a model's score is inflated by leaked dependency, and by how much.

    Parameters
    ----------
    model : str, model or None
        "models:/name/3", "models:/name@alias", "models:/m-…", "runs:/id/path"; or an estimator or
        another model that can be refitted; or None where a `trainer` is given.
    data : DataFrame or path
        The rows the model was, or could have been, trained on; .csv or .parquet.
    target : str
        Column with what is predicted.
    cluster : str or sequence
        Column, or level of the index, with the noisy cluster id; or the label of each row.
    loss : str or callable, optional
        "zero_one" (classifiers' default), "log", "brier", "hinge"; "squared" (regressors'
        default), "absolute"; or `(target, prediction) → losses`.
    p0 : number, (low, high), "grid" or "mixture", optional
        Share of the training rows of a fold that belong to validation clusters. "mixture" bounds
        it from above by how many training rows look like validation rows; "grid" is the same as
        nothing, where that bound is shown but not used.
    p0_validation : number, optional
        With `p0`: share of the validation rows that belong to training clusters. By default as
        many rows as leaked the other way; 0 is the papers' one-directional case.
    cluster_error : number, str or (low, high), optional
        0.1, "10%" or a range: share of all rows with a wrong cluster id, misplaced one by one (pattern `rows`).
    split_rate : number, str or (low, high), optional
        0.1, "10%" or a range: share of all rows whose true cluster has been split in two ids (pattern `fragments`).
    match_probability : pair table or str, optional
        Scored pairs of record linkage: what Splink, dedupe or recordlinkage return, any table with
        two ids and a probability, or such a .csv or .parquet file; see `mlflow_b3.linkage`. They
        give an order of magnitude of the leak shares, the rows to review first, and folds with less
        leakage. Or the column with the probability that a row's cluster id is right.
    resolved_rows : path, DataFrame or ResolvedRows, optional
        A sample of rows for which a person has looked up all other rows of the same true cluster:
        the filled-in sheet of `mlflow_b3.linkage.review_sheet`. The best evidence there is.
    reviewer : (sensitivity, specificity), optional
        With `resolved_rows`: how many leaked rows that person finds, and how many others she leaves
        alone; 1 and 1 by default.
    linkage_quality : mapping, optional
        Published figures of the linkage, {"recall": 0.9, "precision": 0.95, "recall_pairs": 300}:
        an upper limit on the leak shares.
    partition_samples : path, table or array, optional
        Posterior samples of a Bayesian linkage: labels of all rows for each sample.
    fragments : {"uniform", "halves", "singles"} or sequence of numbers, optional
        How clusters are broken on purpose, which should be how linkage splits them: at a cut
        drawn uniformly, in halves, a single row off; or the sizes of fragments that are known,
        as numbers of rows or as shares of the cluster between 0 and 1, drawn with equal chances.
        A size applies to clusters with more rows; clusters to which none applies stay whole. By
        default as the linkage evidence says, or "uniform".
    fold_threshold : number, optional
        With a pair table: keep rows with this match probability in one fold, which leaves less to
        leak. The same scores then say nothing about what still leaks.
    purge_threshold : number, optional
        With a pair table: leave training rows out whose cluster has this match probability with a
        validation row of the fold.
    folds : int, "balanced", splitter, list of splits or of the fold of each row, or path, optional
        One cluster left out at a time up to ten clusters, else five folds of whole clusters;
        "balanced" leaves out several at a time where their sizes differ much. The path is that of
        the folds.csv that another audit of the same rows has left in MLflow.
    repeats : int, optional
        How many times clusters are assigned to folds anew, for folds that are made here: three
        times where the budget allows it.
    method : str or Method
        The estimator: "auto" or one of the papers', as in `mlflow_b3.estimate`. "cvc" is "auto", and
        corrects ordinary cross-validation beside it (`mlflow_b3.cvc`), for clusters that are right:
        without anything that says otherwise, no cluster id is taken as wrong.
    method_options : mapping, optional
        Options of the method, such as {"order": 3} for "basis"; see `Method`. Of "cvc": groups, new,
        coordinates, engine, working, draws and epochs, as in `mlflow_b3.cvc`; the cluster is a group and
        new in any case, and `working` may be the report of another model's audit.
    scheme : {"subset", "replace"}
        Draw resampled training sets without replacement at full size, or with replacement as the
        papers do.
    levels : {"optimal", "uniform"} or int
        Which injected shares are measured, and how often: crowded near none, where the curve is
        extrapolated from, or eleven at equal distances as in the papers. A number is that many
        levels at equal distances.
    n_train : int, optional
        With scheme "replace": the rows of a resampled training set, the papers' n'. All scores are
        then those of models trained on that many rows. By default as many as the fold has.
    test : {"paired", "welch", "permutation"}
        The form of the leakage test. `welch` is the published one; `permutation` is exact for a
        stronger null hypothesis and needs some 100 times as many refits. With a budget the test has
        about a fifth of it; without one these two take what they need. A time is kept by `paired`
        only: with the other two a budget is a number of refits.
    threshold : number or str, optional
        The loss at which the model fails, for the tipping points; by default that of the best
        constant prediction. Error rates may be given as "35%".
    distribution : bool
        Also estimate how the losses of single rows are distributed on new clusters, for losses
        with more than two values and pattern `rows`.
    budget : int or str, optional
        Number of refits (480 by default), or a time such as "10m" for the whole audit. With a time
        the numbers depend on the speed of the machine. A budget that does not suffice is refused, a time
        as soon as the first refits show it.
    trainer : str or callable, optional
        "module:function" or a function `(X, y, sample_ids) → predictor` that trains the model, for
        models that cannot be refitted by themselves; see `TrainerLearner`. One that was stored
        with the run by `log_trainer` is found by itself.
    refit : str
        How the model is trained again: "clone", "parameters", "trainer", "fresh", "hot-start",
        "last-layer" or "head"; by default the first of these that its flavour allows.
    refit_options : mapping, optional
        Options of that, such as {"search_again": True} for a grid search; see docs/flavours.md.
    sample_weight : str, optional
        Column with the weights of rows in training; losses are not weighted.
    row_id : str, optional
        Column with the ids of rows that linkage evidence refers to, which is no feature; by default
        the table's index.
    seed : int
        Same seed, same numbers, whatever the number of workers.
    n_jobs : int, optional
        How many refits run at the same time, as in `joblib.Parallel`: 1 by default, -1 for all cores,
        or all that a cluster has. Large tables may run fewer, as memory allows.
    backend : {"loky", "threading", "sequential", "dask", "ray", "spark"}, optional
        Where they run: in processes or threads of this machine, one after another, or on a cluster.
        By default in processes, if there are several and the refits take longer than these need to
        start.
    address : str, optional
        Of the cluster: "tcp://scheduler:8786" for Dask, "auto" or "ray://…" for Ray, a master such as
        "local[4]" or "spark://…" for Spark; by default the one that this process is connected to.
    fit_timeout : number or str, optional
        Seconds that one refit may take, or a time such as "5m"; longer ones count as failed. By
        default a refit may take all of a budget in time, a minute at least; else there is no limit.
    journal : path, optional
        A file, or a folder of such files, that remembers every finished refit: the same audit goes on
        from there when it is started again. It is made where it is not there.
    progress : bool, optional
        Show a progress bar; by default on a terminal only.

    Returns
    -------
    AuditReport
        After Ctrl-C that of the refits made until then, with `refits.partial` set.

    Raises
    ------
    InterruptedAudit
        After Ctrl-C, where the refits made until then say nothing.

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
    started = time.monotonic()
    folds = load_folds(folds)
    linkage = LinkageArguments(
        match_probability=match_probability,
        resolved_rows=resolved_rows,
        reviewer=reviewer,
        linkage_quality=linkage_quality,
        partition_samples=partition_samples,
        fold_threshold=fold_threshold,
        purge_threshold=purge_threshold,
        folds=folds,
    )
    grid = isinstance(p0, str) and p0 == "grid"  # says nothing
    known = any(value is not None for value in (None if grid else p0, cluster_error, split_rate))
    check_kinds(method_options, refit, refit_options, distribution)
    extension = find_extension(method, method_options)
    taken_as_right = (
        extension.takes_ids_as_right
        and p0 is None
        and not known
        and linkage.source(otherwise_known=False) is None
    )
    cluster_error = 0.0 if taken_as_right else cluster_error
    claim = make_claim(
        p0=p0,
        p0_validation=p0_validation,
        cluster_error=cluster_error,
        split_rate=split_rate,
        evidence=linkage.source(otherwise_known=known),
    )
    sizes = None if fragments is None else parse_fragments(fragments)
    chosen_method = extension.estimator()
    threshold = read_number(threshold)
    levels = parse_levels(levels)
    check_settings(
        claim,
        scheme,
        test,
        seed,
        threshold,
        distribution,
        n_train=n_train,
    )
    extension.check(n_train=n_train)
    check_timed_test(test, budget)
    check_threshold(threshold, named_loss(loss))
    whole = isinstance(folds, (int, np.integer)) and not isinstance(folds, bool)

    def afford(table: AuditData | None, stochastic: bool) -> None:
        """Refuse a budget that is too small for the folds, as far as these are known."""
        count = int(folds) if whole else None
        if table is not None and linkage.safe_threshold is None:
            count = count_folds(table, folds)
        check_budget(budget, count, stochastic=stochastic, levels=levels, scheme=scheme)

    afford(None, False)
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
        match_probability=linkage.column,
        read_extra=extension.read,
        before_fits=afford,
    )
    check_threshold(threshold, subject.loss)
    rest = extension.rest(subject, budget)
    plan = plan_audit(
        subject,
        claim,
        read_evidence(linkage, subject.table, row_id),
        folds=folds,
        repeats=repeats,
        budget=rest,
        fragments=sizes,
        method=chosen_method,
        scheme=scheme,
        levels=levels,
        n_train=None if n_train is None else int(n_train),
        seed=int(seed),
    )
    settings = replace(
        plan.settings(fits=0),
        folds_digest=digest_folds(plan.folds),
        folds_given=folds is not None and not isinstance(folds, (int, np.integer, str)),
        threshold_given=threshold is not None,
        fold_threshold=linkage.safe_threshold,
        purge_threshold=purge_threshold,
    )
    campaign = Campaign(
        data=subject.rows,
        learner=subject.learner,
        loss=subject.loss,
        folds=plan.folds,
        repeats=plan.repeats,
        scheme=scheme,
        levels=levels,
        n_train=plan.n_train,
        seed=int(seed),
        fragments=plan.fragments,
        budget=rest,
        distribution=distribution,
        means=means,
        test=test,
        started=started,
        preview=lambda part: preview(part, plan.claim, plan.summaries, settings),
        before_first_refit=subject.audited.before_first_refit,
    )
    with ExitStack() as stack:
        stack.enter_context(without_autologging())
        added = extension.plan(model, subject, campaign, budget=budget, refit_options=refit_options)
        kept = None
        if journal is not None:
            kept = _opened(stack, journal, lambda: identify(plan, levels, test) | added.identity)
        with added.budget_explained():
            measured, counts = campaign.measure(kept)
        report = _conclude(plan, measured, settings, threshold, test)
        report = added.run(report, kept, counts)
    ended = datetime.now(UTC).isoformat(timespec="seconds")
    settings = replace(settings, fits=counts.done, measured_at=ended)
    report = replace(report, refits=counts.summary(), settings=settings)
    findings = [*plan.findings, *audit_findings(report, counts)]
    findings += extension.findings(report, taken_as_right=taken_as_right)
    findings += linkage_findings(report, plan.evidence, plan.folds, subject.table)
    if distribution and report.distribution is None:
        findings.append(Finding(code="B320", message=_no_distribution(report)))
    return replace(report, findings=tuple(findings), splits=plan.folds)


def _opened(
    stack: ExitStack, journal: Any, identity: Callable[[], dict[str, str]]
) -> Journal | None:
    """Open the journal of an audit; one that nobody asked for may fail."""
    try:
        return stack.enter_context(open_journal(journal, identity()))
    except InputError as error:
        if not isinstance(journal, JournalFolder):
            raise
        _LOG.warning("Finished refits are not kept for another start. %s", error)
        return None


def _conclude(
    plan: Plan, measured: Measurement, settings: Settings, threshold: float | None, test: str
) -> AuditReport:
    subject = plan.subject
    constant = constant_loss(subject.loss, subject.table.target, subject.task)
    threshold = constant if threshold is None else threshold
    tested = conclude_test(measured.test_losses, test, splits=plan.folds)
    report = conclude(measured, plan.claim, plan.summaries, settings, threshold, tested, plan.bound)
    report = replace(report, constant_loss=constant, measurements=measured)
    return examine_rows(report, plan.evidence, measured.row_losses, plan.folds, subject.table)


def _no_distribution(report: AuditReport) -> str:
    if report.e0 is None:
        return "distribution=True gives nothing without a leaked share; the bound on it is vacuous."
    return f"the loss {report.settings.loss} takes two values here: its mean is its whole distribution."


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

    See `audit` for the parameters; all of the budget is the test's here. By default `paired` has
    150 refits, and `permutation` 99 rearrangements of the rows. `permutation` fits its number of
    rearrangements to a time; `welch` cannot be cut short and takes no time.
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
