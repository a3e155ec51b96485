"""`audit`: the whole flow, from a model and a table to a report."""

from collections.abc import Mapping
from dataclasses import replace
from numbers import Integral, Real
from typing import Any

import numpy as np

from mlflow_b3.claims import make_claim
from mlflow_b3.conclusions import conclude, conclude_test
from mlflow_b3.data import AuditData, prepare, read_table
from mlflow_b3.errors import InputError, check_seed, choose
from mlflow_b3.estimation.leakage_share import LARGEST_SHARE
from mlflow_b3.estimation.methods import Method, as_method, check_size
from mlflow_b3.findings import Finding
from mlflow_b3.fold_bounds import bound_folds, largest_share
from mlflow_b3.folds import (
    DEFAULT_FOLDS,
    assigns_at_random,
    balanced_count,
    cross_validates,
    fold_findings,
    make_folds,
    summarize_folds,
)
from mlflow_b3.hypothesis import TESTS, LeakageTest
from mlflow_b3.losses import Loss, constant_loss, infer_task, resolve_loss
from mlflow_b3.measurement.breaking import FragmentSizes, breakable, parse_fragments
from mlflow_b3.measurement.campaign import Campaign
from mlflow_b3.measurement.comparison import check_test, measure_test
from mlflow_b3.measurement.fits import FitCounts
from mlflow_b3.measurement.levels import DESIGNS, choose_repeats
from mlflow_b3.refit import AuditedModel, Learner, load_model, without_autologging
from mlflow_b3.refit.agreement import measure_agreement
from mlflow_b3.reporting.findings import audit_findings
from mlflow_b3.reporting.report import AuditReport, Settings
from mlflow_b3.version import __version__

SCHEMES = ("subset", "replace")


def audit(
    model: Any,
    data: Any,
    *,
    target: str,
    cluster: str,
    loss: Any = None,
    p0: Any = None,
    p0_validation: float | None = None,
    cluster_error: Any = None,
    split_rate: Any = None,
    fragments: Any = "uniform",
    folds: Any = None,
    repeats: int | None = None,
    method: str | Method = "auto",
    method_options: Mapping[str, Any] | None = None,
    scheme: str = "subset",
    levels: str = "optimal",
    test: str = "paired",
    threshold: float | None = None,
    distribution: bool = False,
    budget: int | str | None = None,
    trainer: Any = None,
    refit: str = "auto",
    refit_options: Mapping[str, Any] | None = None,
    sample_weight: str | None = None,
    seed: int = 0,
    n_jobs: int | None = None,
    backend: str | None = None,
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
    target, cluster : str
        Columns with what is predicted and with the noisy cluster id.
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
    cluster_error : number or (low, high), optional
        Share of all rows with a wrong cluster id, misplaced one by one (pattern `rows`).
    split_rate : number or (low, high), optional
        Share of all rows whose true cluster has been split in two ids (pattern `fragments`).
    fragments : {"uniform", "halves", "singles"} or sequence of numbers
        How clusters are broken on purpose, which should be how linkage splits them: at a cut
        drawn uniformly, in halves, a single row off; or the sizes of fragments that are known,
        as numbers of rows or as shares of the cluster between 0 and 1, drawn with equal chances.
        A size applies to clusters with more rows; clusters to which none applies stay whole.
    folds : int, "balanced", splitter or list of splits, optional
        One cluster left out at a time up to ten clusters, else five folds of whole clusters;
        "balanced" leaves out several at a time where their sizes differ much.
    repeats : int, optional
        How many times clusters are assigned to folds anew, for folds that are made here: three
        times where the budget allows it.
    method : str or Method
        The estimator: "auto" or one of the papers', as in `mlflow_b3.estimate`.
    method_options : mapping, optional
        Options of the method, such as {"order": 3} for "basis"; see `Method`.
    scheme : {"subset", "replace"}
        Draw resampled training sets without replacement at full size, or with replacement as the
        papers do.
    levels : {"optimal", "uniform"}
        Which injected shares are measured, and how often: crowded near none, where the curve is
        extrapolated from, or at equal distances as in the papers.
    test : {"paired", "welch", "permutation"}
        The form of the leakage test. `welch` is the published one; `permutation` is exact for a
        stronger null hypothesis and needs some 100 times as many refits. With a budget the test has
        about a fifth of it; without one these two take what they need.
    threshold : number, optional
        The loss at which the model fails, for the tipping points; by default that of the best
        constant prediction.
    distribution : bool
        Also estimate how the losses of single rows are distributed on new clusters, for losses
        with more than two values and pattern `rows`.
    budget : int or str, optional
        Number of refits (480 by default), or a time such as "10m". With a time the numbers depend
        on the speed of the machine.
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
    seed : int
        Same seed, same numbers, whatever the number of workers.
    n_jobs, backend : optional
        As in `joblib.Parallel`.
    progress : bool, optional
        Show a progress bar; by default on a terminal only.

    Returns
    -------
    AuditReport
    """
    claim = make_claim(
        p0=p0, p0_validation=p0_validation, cluster_error=cluster_error, split_rate=split_rate
    )
    if distribution and claim.pattern != "rows":
        raise InputError(
            "distribution=True needs the share of misplaced rows: give p0 or cluster_error."
        )
    sizes = parse_fragments(fragments)
    chosen_method = as_method(method, **(method_options or {}))
    choose("scheme", scheme, SCHEMES)
    choose("levels", levels, tuple(DESIGNS))
    choose("test", test, TESTS)
    check_seed(seed)
    if threshold is not None and not (isinstance(threshold, Real) and np.isfinite(threshold)):
        raise InputError(f"threshold={threshold!r} must be a finite number.")
    audited = load_model(model, trainer=trainer, refit=refit, options=refit_options)
    audited, table, chosen = _prepare(audited, data, target, cluster, loss, sample_weight)
    repeats = _repeats(table, folds, repeats, budget, audited, levels, scheme)
    splits = make_folds(table, folds, seed=int(seed), repeats=repeats)
    summaries = summarize_folds(splits, table)
    bound = None
    if claim.source in ("none", "mixture"):
        once = splits[: len(splits) // repeats]
        with without_autologging():
            bound = bound_folds(table, once, p0_validation=claim.p0_validation, seed=int(seed))
        if claim.source == "mixture":
            claim = claim.bounded(bound, largest_share(once, claim.p0_validation))
    if claim.pattern == "rows":
        claim.shares(claim.high, summaries)  # impossible shares show before hours of refits
    if claim.pattern == "fragments":
        _require_breakable(table, sizes)
    for fold in summaries:  # and so does a method that would be too large or needs more levels
        leaked = fold.n_validation + LARGEST_SHARE * fold.n_training
        everything = scheme == "replace" or leaked > fold.n_training
        check_size(chosen_method, DESIGNS[levels], fold.n_training if everything else round(leaked))
    represented = _represented(table, audited.learner)
    campaign = Campaign(
        data=represented,
        learner=audited.learner,
        loss=chosen,
        folds=splits,
        repeats=repeats,
        scheme=scheme,
        levels=levels,
        seed=int(seed),
        fragments=sizes,
        budget=budget,
        distribution=distribution,
        n_jobs=n_jobs,
        backend=backend,
        progress=progress,
        test=test,
    )
    with without_autologging():
        measured, counts = campaign.measure()
        agreement = measure_agreement(audited.learner, table, represented)
    settings = Settings(
        **_described(audited, table, chosen),
        method=chosen_method.name,
        method_options=chosen_method.options,
        scheme=scheme,
        pattern=claim.pattern,
        fragments=str(sizes),
        claim=None if claim.pattern == "unknown" else (claim.low, claim.high),
        p0_validation=claim.p0_validation,
        folds_given=folds is not None and not isinstance(folds, (int, np.integer, str)),
        repeats=repeats,
        threshold_given=threshold is not None,
        refit_options=dict(refit_options or {}),
        refit_agreement=agreement,
        sample_weight=sample_weight,
        seed=int(seed),
        fits=counts.done,
        n_validated=len({c for fold in splits for c in table.clusters[fold.validation]}),
    )
    limit = threshold
    if limit is None:
        limit = constant_loss(chosen, table.target, settings.task)
    tested = conclude_test(measured.test_losses, test, crossed=cross_validates(splits))
    report = conclude(measured, claim, summaries, settings, limit, tested, bound)
    findings = [*table.findings, *fold_findings(splits, table, settings.task)]
    findings += audit_findings(report, counts)
    if distribution and report.distribution is None:
        findings.append(Finding(code="B320", message=_no_distribution(report)))
    return AuditReport(**{**vars(report), "findings": tuple(findings)})


def _described(audited: AuditedModel, table: AuditData, loss: Loss) -> dict[str, Any]:
    """Return the settings that say what was audited."""
    learner = audited.learner
    return {
        "model": audited.name,
        "uri": audited.uri,
        "run_id": audited.run_id,
        "model_id": audited.model_id,
        "refit": learner.route,
        "refit_strength": learner.strength,
        "refit_notes": learner.notes,
        "task": learner.task,
        "loss": loss.name,
        "loss_bound": loss.bound,
        "loss_floor": loss.floor,
        "target": table.target_name,
        "cluster": table.cluster_name,
        "features": table.feature_names,
        "n_rows": table.n_rows,
        "n_clusters": table.n_clusters,
        "data_digest": table.digest,
        "version": __version__,
    }


def _no_distribution(report: AuditReport) -> str:
    if report.e0 is None:
        return "distribution=True gives nothing without a leaked share; the bound on it is vacuous."
    return f"the loss {report.settings.loss} takes two values here: its mean is its whole distribution."


def run_leakage_test(
    model: Any,
    data: Any,
    *,
    target: str,
    cluster: str,
    loss: Any = None,
    folds: Any = None,
    test: str = "paired",
    budget: int | str | None = None,
    trainer: Any = None,
    refit: str = "auto",
    refit_options: Mapping[str, Any] | None = None,
    sample_weight: str | None = None,
    seed: int = 0,
    n_jobs: int | None = None,
    progress: bool | None = None,
) -> LeakageTest:
    """Run the leakage test of a model alone.

    See `audit` for the parameters; all of the budget is the test's here. By default `paired` has
    150 refits, and `permutation` 99 rearrangements of the rows.
    """
    choose("test", test, TESTS)
    check_seed(seed)
    audited = load_model(model, trainer=trainer, refit=refit, options=refit_options)
    audited, table, chosen = _prepare(audited, data, target, cluster, loss, sample_weight)
    campaign = Campaign(
        data=_represented(table, audited.learner),
        learner=audited.learner,
        loss=chosen,
        folds=make_folds(table, folds, seed=seed),
        seed=seed,
        budget=budget,
        n_jobs=n_jobs,
        progress=progress,
        test=test,
    )
    check_test(campaign)
    with without_autologging():
        losses = measure_test(campaign, FitCounts())
    return conclude_test(losses, test, crossed=cross_validates(campaign.folds))


def _repeats(
    table: AuditData,
    folds: Any,
    repeats: int | None,
    budget: Any,
    audited: AuditedModel,
    levels: str,
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
        stochastic=audited.learner.stochastic,
        design=levels,
        from_zero=scheme == "replace",
    )


def _require_breakable(table: AuditData, sizes: FragmentSizes) -> None:
    if not len(breakable(table.clusters, sizes)):
        largest = int(np.bincount(table.clusters).max())
        raise InputError(
            "split_rate needs clusters with at least two rows; there are none."
            if largest == 1
            else f"fragments='{sizes}' breaks no cluster: the largest has {largest} rows. Give "
            "smaller sizes."
        )


def _prepare(
    audited: AuditedModel,
    data: Any,
    target: str,
    cluster: str,
    loss: Any,
    sample_weight: str | None,
) -> tuple[AuditedModel, AuditData, Loss]:
    """Check the table against the model, and settle what is predicted and how it is scored."""
    frame, learner = read_table(data), audited.learner
    if learner.task is None and target in frame.columns:
        learner = learner.with_task(infer_task(loss, frame[target]))
    task = learner.task or "classification"  # without a target the table is refused anyway
    if sample_weight is not None and not learner.weighted:
        raise InputError(
            f"sample_weight={sample_weight!r}: {learner.name} does not take weights in training. "
            "Leave it out, or give a trainer that has an argument sample_weight."
        )
    chosen = resolve_loss(loss, task)
    table = prepare(
        frame,
        target=target,
        cluster=cluster,
        task=task,
        inputs=audited.inputs,
        sample_weight=sample_weight,
    )
    return replace(audited, learner=learner), table, chosen


def _represented(table: AuditData, learner: Learner) -> AuditData:
    with without_autologging():
        return replace(table, features=learner.represent(table.features, table.ids))
