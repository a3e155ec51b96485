"""`cvc`: bias-corrected cross-validation for rows with a known correlation structure."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np

from mlflow_b3.auditing.plan import identify_subject
from mlflow_b3.auditing.request import check_kinds
from mlflow_b3.auditing.subject import Subject, load_subject
from mlflow_b3.correlated.correction import (
    Correction,
    correlation_of,
    digest_working_model,
    read_correlation,
)
from mlflow_b3.correlated.formulas import MOST_COMPARED
from mlflow_b3.correlated.report import CvcReport
from mlflow_b3.correlated.structure import DRAWS, CvcOptions, WorkingModel
from mlflow_b3.data.folds import Fold, RowParts, cross_validates, digest_folds, make_folds
from mlflow_b3.data.losses import CLASSIFICATION, REGRESSION, Loss
from mlflow_b3.data.pairs import PairLoss
from mlflow_b3.data.scores import Score, loss_or_score
from mlflow_b3.errors import B3Error, InputError, check_seed
from mlflow_b3.measurement.design import parse_budget, parse_seconds
from mlflow_b3.measurement.journal import open_journal
from mlflow_b3.measurement.runner import Means, WorkerSettings
from mlflow_b3.refit.learner import AuditedModel, Learner
from mlflow_b3.refit.loading import load_model, without_autologging

DEFAULT_FOLDS = 10
#: More folds of rows than this take longer and change little else.
MOST_FOLDS = 100
#: Most classes of a target.
MOST_CLASSES = 20
#: Scores that are corrected, apart from those that are the negative of a loss.
CORRECTED_SCORES = ("roc_auc", "roc_auc_ovr", "roc_auc_ovr_weighted", "accuracy")
ROUTES = {"hot": "hot-start", "last_layer": "last-layer"}


def cvc(
    model: Any,
    data: Any,
    *,
    target: str,
    groups: Sequence[str] | str,
    new: Sequence[str] | str | None = None,
    loss: Any = None,
    scoring: Any = None,
    coordinates: Sequence[str] | None = None,
    kernel: str = "exponential",
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
    """Cross-validate a model, and add the part of its loss that correlated rows hide.

    CV_c = CV + w, with w = (1/n) Σ_i E[L₂(s_i) (μ_i - m_i)] in a simulated world: s_i is the score of
    row i by the learner trained without its fold, L₂(s) = L(0, s) - L(1, s), μ_i the mean of its
    target given all random effects, and m_i that given only what rows in use will share with
    training rows (Yuval and Rosset, AISTATS 2025). For more than two classes, w is the mean of
    Σ_c L(c, s_i) (m_ic - μ_ic), with the chances of each class c.

    Parameters
    ----------
    model, data, target, trainer, refit, refit_options, sample_weight, row_id, seed, n_jobs, backend, \
            address, fit_timeout, journal, progress
        As in `mlflow_b3.audit`. The target has up to 20 classes, or is a number.
    groups : list of str
        Columns whose groups correlate the rows, such as ["patient", "day"]; they are features only if
        the model names them.
    new : list of str, optional
        The groups of which the model will meet new values; all by default. It will meet the same
        values of the others again.
    loss : str or callable, optional
        "zero_one" (classifiers' default), "log", "brier", "hinge" or `(target, prediction) → losses`
        for classes; "squared" for numbers.
    scoring : str or scorer, optional
        In place of a loss, "roc_auc" for two classes (the mean over folds), "roc_auc_ovr" or
        "roc_auc_ovr_weighted" for more, "accuracy", or the negative of a loss such as "neg_log_loss". The
        report is then in the units of the score: of an AUC, more is better, and the bias is negative.
    coordinates : list of str, optional
        Columns with the locations of rows. Then `groups` names the region, rows are correlated by a
        random field, and the model will be used in new regions.
    kernel : {"exponential", "gaussian"}
        How the covariance of that field falls with distance: σ² exp(-d/r), or σ² exp(-(d/r)²) for a field so smooth
        that nearby rows are almost the same. With the wrong one the correction is off; compare both.
    folds : int, splitter, list of splits or of the fold of each row, optional
        The folds of the cross-validation to be corrected; by default ten folds of random rows.
    engine : {"auto", "fast", "joint", "full", "hot", "last_layer"}
        How the learner's part in the simulated world is computed. "fast": formulas, for linear and
        logistic regression. "joint": for `MixedLogistic`. "full": refits, for everything else, for more
        than two classes and for the AUC. "hot"
        and "last_layer" train neural networks only briefly, or only in part; they are of lower
        quality and never chosen by "auto".
    working : {"auto", "score", "glmm"}, WorkingModel or CvcReport
        Where the fixed part of the simulated world comes from: the model's own score by folds of
        whole groups, recalibrated; or a regression on all numeric features, as in the paper. "auto"
        is the first, except for linear regression, whose own features are the better choice. To
        compare models, give all of them the report of the richest one: they then share one world
        and its random numbers.
    draws : int
        Number of simulated samples; "full" refits one fold in each, and takes up to three times as
        many if the error is large.
    epochs : int, optional
        For the engine "hot": number of epochs of a network on a simulated sample; for networks of
        scikit-learn, by default half as many as in their own training.
    budget : int or str, optional
        Number of refits, or a time such as "10m".

    Returns
    -------
    CvcReport
        With `cv`, `cvc`, `bias` and `interval`; the last three are None if no correction can be given,
        for reasons that `findings` name.

    Notes
    -----
    The features of a new group must look like those of the groups in the table. If features identify
    their group, folds of whole groups (`grouped`) show it and CV_c does not. Wrong group ids make the
    correction too small.

    The paper centres simulated targets by their mean over samples, in two nested loops if some groups
    are observed again. Here m_i is computed, which needs one loop and has less noise. Each sample
    refits one fold instead of all, which has 2 to 6 times less variance for the same number of refits.

    The paper covers losses of two classes, and mentions the AUC as preliminary. For more classes, effects
    of groups are added to the log odds of each class, with one standard deviation for the log odds of any
    two classes. The AUC is linear in the order of pairs of rows of one fold, so w is the difference of
    its means over targets in use, and over those given all effects of the sample. docs/cvc.md has the
    measured quality of both.

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
        "kernel": kernel,
        "engine": engine,
        "draws": draws,
        "epochs": epochs,
        **({} if new is None else {"new": new}),
        **({} if given is not None else {"working": working}),
    }
    checked: CvcOptions = CvcOptions.from_mapping(options)
    loss, score = read_scoring(loss, scoring)
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
        score=score,
        trainer=trainer,
        refit=refit,
        refit_options=refit_options,
        sample_weight=sample_weight,
        row_id=row_id,
        read_extra=lambda frame, cluster: read_correlation(options, frame, cluster),
    )
    require_correctable(subject, given)
    splits = cv_folds(subject, folds, int(seed))
    require_comparable(splits, subject.loss)
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
    """Return the simulated world from another report or from the user."""
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


def read_scoring(loss: Any, scoring: Any) -> tuple[Any, Score | None]:
    """Return the loss, and the score in its place; refuse scores without a correction."""
    loss, found = loss_or_score(loss, scoring)
    if found is None:
        return loss, None
    if not is_corrected(found):
        raise InputError(
            f"scoring={found.name!r} has no correction. Use "
            f"{', '.join(map(repr, CORRECTED_SCORES))} or a loss."
        )
    return None, found


def is_corrected(score: Score) -> bool:
    """Whether there is a correction of a score."""
    return score.name in CORRECTED_SCORES


def require_correctable(subject: Subject, given: WorkingModel | None = None) -> None:
    """Refuse targets and losses for which there is no correction."""
    problems = []
    options = correlation_of(subject).options
    if subject.table.target_name in (*options.groups, *options.coordinates):
        problems.append(f"target {subject.table.target_name!r} is among groups or coordinates too.")
    if subject.task == "classification":
        classes = np.unique(subject.table.target)
        problems += _class_problems(subject, options, len(classes))
        if given is not None and given.task == subject.task and given.n_classes != len(classes):
            problems.append(
                f"working is for {given.n_classes} classes, and target "
                f"{subject.table.target_name!r} has {len(classes)}."
            )
    elif subject.loss is not REGRESSION["squared"]:
        problems.append(
            f"loss={subject.loss.name!r} has no correction for numbers; use loss='squared'. For "
            f"classes there are {', '.join(CLASSIFICATION)}."
        )
    if given is not None and len(given.mean) != subject.table.n_rows:
        problems.append(
            f"working has {len(given.mean)} rows and the table {subject.table.n_rows}; give a report of "
            "the same rows."
        )
    if given is not None and given.task != subject.task:
        problems.append(f"working is for {given.task}, but this model is for {subject.task}.")
    if problems:
        raise InputError.from_problems("cvc", problems)


def _class_problems(subject: Subject, options: CvcOptions, count: int) -> list[str]:
    """Return what has no correction for this number of classes, or for pairs of rows."""
    name, found = subject.table.target_name, []
    if not 2 <= count <= MOST_CLASSES:
        found.append(
            f"target {name!r} has {count} classes; corrected cross-validation is for 2 to "
            f"{MOST_CLASSES}, or for numbers. Merge rare classes."
        )
    pairs = isinstance(subject.loss, PairLoss)
    what = f"the {count} classes of target {name!r}"
    if pairs and subject.score is not None:
        what = f"scoring={subject.score.name!r}"
    if (count > 2 or pairs) and options.engine in ("fast", "joint"):
        found.append(
            f"engine={options.engine!r} has no formula for {what}; leave it out, or use engine='full'."
        )
    if count > 2 and options.coordinates:
        found.append(
            f"coordinates={list(options.coordinates)} are for two classes or numbers, and target {name!r} "
            f"has {count} classes. Correct one class against the others, or leave the coordinates out to "
            "treat rows of a region as equally correlated."
        )
    if count > 2 and options.working == "glmm":
        found.append(
            f"working='glmm' is for two classes or numbers, and target {name!r} has {count} classes; use "
            "working='score'."
        )
    return found


def require_comparable(folds: Sequence[Fold], loss: Loss) -> None:
    """Refuse folds that are too large for a score of pairs of rows."""
    largest = max((len(fold.validation) for fold in folds), default=0)
    if isinstance(loss, PairLoss) and largest > MOST_COMPARED:
        raise InputError(
            f"folds: a fold has {largest} rows, and the correction of the AUC compares all pairs of up to "
            f"{MOST_COMPARED}. Use more folds, or a loss such as 'brier'."
        )


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
    """Return the learner to train on simulated targets if the engine does not train the whole model."""
    options = correlation_of(subject).options
    engine, epochs = options.engine, options.epochs
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
        raise InputError(f"engine={engine!r} does not support this model: {error}") from error
    if learner.task is None:
        learner = learner.with_task(subject.task)
    return learner.with_target(subject.table.target)


def identify_correction(correction: Correction) -> dict[str, str]:
    """Return everything except its task that determines the outcome of a refit."""
    subject = correction.subject
    folds = digest_folds(list(correction.folds))
    shared = {"seed": str(correction.seed), "cross-validation": folds}
    return identify_subject(subject) | shared | {"cvc": describe_correction(correction)}


def describe_correction(correction: Correction) -> str:
    """Return what distinguishes this correction from others of the same rows and model."""
    options = correlation_of(correction.subject).options.to_dict()
    del options["draws"]
    return str(options | {"world": digest_working_model(correction.given)})
