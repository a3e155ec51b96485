"""What is audited: a model, its rows, and the loss, checked against each other."""

import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mlflow_b3.auditing.extension import ExtraColumns
from mlflow_b3.auditing.groups import read_groups
from mlflow_b3.auditing.report import RefitSummary, SubjectSummary
from mlflow_b3.data.losses import (
    Loss,
    check_target,
    constant_loss,
    infer_task,
    loss_ceiling,
    resolve_loss,
)
from mlflow_b3.data.pairs import PairLoss
from mlflow_b3.data.scores import ANY_TASK, Score
from mlflow_b3.data.table import AuditData, label_clusters, prepare, read_table, require_names
from mlflow_b3.errors import InputError, ModelError
from mlflow_b3.measurement.collecting import RowGroups
from mlflow_b3.refit.learner import (
    Agreement,
    AuditedModel,
    Learner,
    measure_agreement,
    refused_columns,
    seed_matters,
)
from mlflow_b3.refit.loading import digest_like_training, load_model, without_autologging
from mlflow_b3.results import Finding

#: From this agreement on, a refit equals the logged model up to rounding.
AS_GOOD_AS_EQUAL = 0.999
#: How far the number of rows may be from that of training without a finding: some are often held out.
ROWS_OFF = 0.3
UNNAMED = (
    "the model does not know the names of its columns: they were taken in the order of the table"
)


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A model that can be refitted, the table it is audited on, and the loss.

    Attributes
    ----------
    audited : AuditedModel
    learner : Learner
        With a known task.
    task : {"classification", "regression"}
    table : AuditData
        The rows in the form that the model expects.
    rows : AuditData
        The same rows in the form that the learner expects.
    loss : Loss
    score : Score or None
        The score that the losses are for, if it is not their mean.
    groups : RowGroups or None
        Groups of rows with scores of their own.
    sample_weight : str or None
    options : dict
        The `refit_options`, as JSON can hold them.
    agreement : Agreement
        How far a refit on all rows agrees with the original model.
    source : str or None
        The file that the table was read from.
    training_digest : str or None
        MLflow's digest of the table, if the model's run logged a dataset of this size.
    extra : object
        What an extension read from the table; None without one.
    """

    audited: AuditedModel
    learner: Learner
    task: str
    table: AuditData
    rows: AuditData
    loss: Loss
    sample_weight: str | None
    options: dict[str, Any]
    agreement: Agreement
    source: str | None = None
    training_digest: str | None = None
    extra: Any = None
    score: Score | None = None
    groups: RowGroups | None = None

    @property
    def findings(self) -> list[Finding]:
        """What the table shows, by itself and compared with the training table of the model's run."""
        size = size_findings(self.audited.training_rows, self.table.n_rows)
        return [*self.table.findings, *size, *self._about_class()]

    def _about_class(self) -> list[Finding]:
        """Return which class a score is about, where labels do not make that plain."""
        target = self.table.target
        found = None if self.score is None else self.score.positive(target)
        labels = np.unique(target).tolist()
        if self.score is None or found is None or 1 in labels:
            return []
        words, positive = self.score.words, getattr(found, "item", lambda: found)()
        message = (
            f"the {words} is that of the class {positive!r}, the second in sorted order; scikit-learn's scorer "
            f"of this name refuses such labels. For the class {labels[0]!r}, give make_scorer(…, pos_label={labels[0]!r})"
        )
        return [Finding(code="B357", message=message + ".")]

    def summary(self) -> SubjectSummary:
        """Return what a report says about model, table and loss."""
        audited, table = self.audited, self.table
        return SubjectSummary(
            model=audited.name,
            uri=audited.uri,
            run_id=audited.run_id,
            model_id=audited.model_id,
            model_digest=audited.model_digest,
            task=self.task,
            target=table.target_name,
            cluster=table.cluster_name,
            features=table.feature_names,
            texts=audited.inputs.texts,
            sample_weight=self.sample_weight,
            **self._scored(),
            n_rows=table.n_rows,
            n_clusters=table.n_clusters,
            n_repeated=table.n_repeated,
            data_digest=table.digest,
            rows_digest=table.rows_digest,
            training_digest=self.training_digest,
            data_source=self.source,
        )

    def _scored(self) -> dict[str, Any]:
        """Return what a report says about the loss or score."""
        loss, score, target = self.loss, self.score, self.table.target
        if score is None:
            return {
                "loss": loss.name,
                "loss_bound": loss.bound,
                "loss_floor": loss.floor,
                "loss_ceiling": loss_ceiling(loss, target),
                "constant_loss": constant_loss(loss, target, self.task),
            }
        return {
            "loss": score.name,
            "loss_bound": score.bound,
            "loss_floor": 0.0,
            "constant_loss": score.constant_score(target),
        }

    def refit_summary(self) -> RefitSummary:
        """Return what a report says about how the model is refitted."""
        inputs, notes = self.audited.inputs, list(self.learner.notes)
        if inputs.count is not None and inputs.columns is None:
            notes.append(UNNAMED)
        notes += self.table.dtypes
        if self.agreement.reading:
            notes.append(self.agreement.reading)
        elif self.learner.original is not None and self.agreement.value is None:
            notes.append("a refit on all rows could not be compared with the original model")
        return RefitSummary(
            route=self.learner.route,
            strength=self.learner.strength,
            notes=tuple(notes),
            options=self.options,
            agreement=self.agreement.value,
        )


def size_findings(trained: int | None, audited: int) -> list[Finding]:
    """Return a finding if the sizes of the table and of the model's training table differ much."""
    if trained is None or abs(audited - trained) <= ROWS_OFF * trained:
        return []
    message = (
        f"the model's run names a training table of {trained} rows, but {audited} rows are audited. "
        "Refits on these rows are another model than the logged one, and a worse one if the rows are "
        "fewer. Audit on the training rows."
    )
    return [Finding(code="B329", message=message)]


def load_subject(
    model: Any,
    data: Any,
    *,
    target: str,
    cluster: Any,
    loss: Any = None,
    score: Score | None = None,
    by: Any = None,
    trainer: Any = None,
    refit: str = "auto",
    refit_options: Mapping[str, Any] | None = None,
    sample_weight: str | None = None,
    row_id: str | None = None,
    match_probability: str | None = None,
    read_extra: Callable[[Any, str], ExtraColumns] = lambda frame, _: ExtraColumns(frame=frame),
    before_fits: Callable[[AuditData, bool], None] = lambda table, stochastic: None,  # noqa: ARG005
) -> Subject:
    """Load a model and a table, and settle what is predicted and how it is scored.

    See `mlflow_b3.audit` for the parameters. `read_extra` is `Extension.read`. `before_fits` is
    called with the table, and whether the learner is known to draw at random, before anything is
    fitted, and again once that has been tried out.
    """
    require_names(target=target, sample_weight=sample_weight, row_id=row_id)
    audited = load_model(model, trainer=trainer, refit=refit, options=refit_options)
    frame, cluster = label_clusters(read_table(data, audited.inputs.texts), cluster)
    training_digest = digest_like_training(frame, audited.run_id)
    groups = None if by is None else read_groups(by, frame)
    own = read_extra(frame, cluster)
    frame = own.frame
    learner = audited.learner
    if learner.task is None and target in frame.columns:
        known = ANY_TASK if score is None else score.task
        learner = learner.with_task(infer_task(loss, frame[target]) if known == ANY_TASK else known)
    task = learner.task or "classification"  # without a target the table is refused anyway
    _check_weights(learner, sample_weight)
    if score is not None:
        score = score.of_task(task)
        _check_score(score, task, learner)
    table = prepare(
        frame,
        target=target,
        cluster=cluster,
        task=task,
        inputs=audited.inputs,
        sample_weight=sample_weight,
        row_id=row_id,
        match_probability=match_probability,
        others=own.names,
        used=learner.used,
    )
    if score is None:
        chosen = resolve_loss(loss, task)
        check_target(chosen, table.target)
    else:
        score.check(table.target, table.clusters)
        chosen = score.loss(table.target)
        if groups is not None and isinstance(chosen, PairLoss):
            chosen = chosen.within(table.target, groups.codes)
    before_fits(table, learner.stochastic and not learner.seed_untried)
    learner = learner.with_target(table.target)
    with without_autologging():
        rows = table.with_features(learner.represent(table.features, table.ids))
    if audited.inputs.columns is None and not audited.inputs.anything:
        _check_columns(learner, rows)
    learner = _tried(learner, rows)
    before_fits(table, learner.stochastic)
    return Subject(
        audited=audited,
        learner=learner,
        task=task,
        table=table,
        rows=rows,
        loss=chosen,
        sample_weight=sample_weight,
        options=_plain(refit_options or {}),
        agreement=_agreement(learner, rows),
        source=str(data) if isinstance(data, (str, Path)) else None,
        training_digest=training_digest,
        extra=own.content,
        score=score,
        groups=groups,
    )


def _check_score(score: Score, task: str, learner: Learner) -> None:
    """Refuse a score of another task, or with refits that show only part of the bias."""
    if score.task != task:
        raise InputError(
            f"scoring={score.name!r} is for {score.task}, but the model is for {task}."
        )
    if learner.strength != "full":
        raise InputError(
            f"scoring={score.name!r} needs refits of the whole model, but refit={learner.route!r} keeps "
            "part of what it learned. Give a loss, for which a lower limit can be found."
        )


def _check_columns(learner: Learner, rows: AuditData) -> None:
    """Refuse columns that nobody named as features and that the learner cannot use."""
    with without_autologging(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        refused = refused_columns(learner, rows)
    if refused:
        named = ", ".join(f"{name!r} ({dtype})" for name, dtype in refused.items())
        raise InputError(
            f"data: {learner.name} cannot be trained on the columns {named}. All columns except target "
            f"and cluster are features; leave these out with data.drop(columns={list(refused)}), give "
            "a pipeline that encodes them, or name a column of ids as row_id."
        )


def _tried(learner: Learner, rows: AuditData) -> Learner:
    """Return the learner after finding out whether its results depend on its seed."""
    if not (learner.stochastic and learner.seed_untried):
        return learner
    try:
        with without_autologging(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the refits raise them again, and report them
            matters = seed_matters(learner, rows)
    except Exception:  # foreign code; what goes wrong here goes wrong in the refits
        return learner
    tried = learner.copied()
    tried.stochastic, tried.seed_untried = matters, False
    return tried


def _agreement(learner: Learner, rows: AuditData) -> Agreement:
    """Return how far a refit on all rows agrees with the original model."""
    try:
        with without_autologging():
            agreement = measure_agreement(learner, rows)
    except (
        Exception
    ):  # foreign code; what goes wrong here goes wrong in the refits, which report it
        agreement = Agreement()
    value = agreement.value
    if learner.assumed is not None and (value is None or value < AS_GOOD_AS_EQUAL):
        told = "could not be compared" if value is None else f"agrees in {100 * value:.4g}%"
        raise ModelError(
            f"{learner.assumed}. With these, a refit on all rows of the table is not the logged "
            f"model (it {told}), so either the hyper-parameters or the rows are different."
        )
    return agreement


def _check_weights(learner: Learner, sample_weight: str | None) -> None:
    if sample_weight is not None and not learner.weighted:
        raise InputError(
            f"sample_weight={sample_weight!r}: {learner.name} does not take weights in training. "
            "Leave it out, or give a trainer that has an argument sample_weight."
        )
    if sample_weight is None and learner.weight_required:
        raise InputError(
            f"{learner.name} was trained with weights; name the column that holds them: "
            "sample_weight='…'. A column of ones trains it without weights."
        )


def _plain(value: Any) -> Any:
    """Return options as JSON can hold them."""
    if isinstance(value, Mapping):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, (bool, int, str)):
        return value
    return value if isinstance(value, float) and math.isfinite(value) else str(value)
