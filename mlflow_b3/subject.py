"""What is audited: a model, its rows, and the loss, checked against each other."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlflow_b3.correlated.options import CvcOptions
from mlflow_b3.correlated.structure import Structure
from mlflow_b3.correlated.structure_reading import read_structure
from mlflow_b3.data import AuditData, label_clusters, prepare, read_table
from mlflow_b3.errors import InputError, ModelError
from mlflow_b3.findings import Finding
from mlflow_b3.losses import Loss, infer_task, resolve_loss
from mlflow_b3.refit import AuditedModel, Learner, load_model, without_autologging
from mlflow_b3.refit.agreement import measure_agreement
from mlflow_b3.table_checks import require_names
from mlflow_b3.version import __version__

#: Agreement from which on a refit is the logged model, but for rounding.
AS_GOOD_AS_EQUAL = 0.999
#: How far the number of rows may be from that of training without a remark: some are often held out.
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
        Of a known task.
    task : {"classification", "regression"}
    table : AuditData
        The rows as the model wants them.
    rows : AuditData
        The same rows as the learner wants them.
    loss : Loss
    sample_weight : str or None
    options : dict
        The `refit_options`, as they can be written down.
    agreement : float or None
        How far a refit on all rows is the logged model; see `measure_agreement`.
    source : str or None
        The file that the table was read from.
    structure : Structure or None
        What correlates the rows, where cross-validation is to be corrected for it.
    cvc : CvcOptions or None
        How that is done.
    """

    audited: AuditedModel
    learner: Learner
    task: str
    table: AuditData
    rows: AuditData
    loss: Loss
    sample_weight: str | None
    options: dict[str, Any]
    agreement: float | None
    source: str | None = None
    structure: Structure | None = None
    cvc: CvcOptions | None = None

    @property
    def findings(self) -> list[Finding]:
        """What the table shows by itself, and against what the model's run says of its training."""
        trained, audited = self.audited.training_rows, self.table.n_rows
        if trained is None or abs(audited - trained) <= ROWS_OFF * trained:
            return [*self.table.findings]
        message = (
            f"the model's run names a training table of {trained} rows; audited are {audited}. Refits "
            "on them are of another model than the logged one, a worse one where they are fewer. "
            "Audit on the rows of training."
        )
        return [*self.table.findings, Finding(code="B329", message=message)]

    def describe(self) -> dict[str, Any]:
        """Return the settings of a report that say what was audited."""
        inputs, notes = self.audited.inputs, list(self.learner.notes)
        if inputs.count is not None and inputs.columns is None:
            notes.append(UNNAMED)
        if self.learner.original is not None and self.agreement is None:
            notes.append("a refit on all rows could not be compared with the logged model")
        return {
            "model": self.audited.name,
            "uri": self.audited.uri,
            "run_id": self.audited.run_id,
            "model_id": self.audited.model_id,
            "model_digest": self.audited.model_digest,
            "refit": self.learner.route,
            "refit_strength": self.learner.strength,
            "refit_notes": tuple(notes),
            "refit_options": self.options,
            "refit_agreement": self.agreement,
            "sample_weight": self.sample_weight,
            "task": self.task,
            "loss": self.loss.name,
            "loss_bound": self.loss.bound,
            "loss_floor": self.loss.floor,
            "target": self.table.target_name,
            "cluster": self.table.cluster_name,
            "features": self.table.feature_names,
            "n_rows": self.table.n_rows,
            "n_clusters": self.table.n_clusters,
            "data_digest": self.table.digest,
            "rows_digest": self.table.rows_digest,
            "data_source": self.source,
            "version": __version__,
        }


def load_subject(
    model: Any,
    data: Any,
    *,
    target: str,
    cluster: Any,
    loss: Any = None,
    trainer: Any = None,
    refit: str = "auto",
    refit_options: Mapping[str, Any] | None = None,
    sample_weight: str | None = None,
    row_id: str | None = None,
    match_probability: str | None = None,
    cvc: Mapping[str, Any] | None = None,
) -> Subject:
    """Load a model and a table, and settle what is predicted and how it is scored.

    See `mlflow_b3.audit` for the parameters; `cvc` holds the options of the method of that name.
    """
    require_names(target=target, sample_weight=sample_weight, row_id=row_id)
    audited = load_model(model, trainer=trainer, refit=refit, options=refit_options)
    frame, cluster = label_clusters(read_table(data), cluster)
    options = None if cvc is None else CvcOptions.from_mapping(cvc, cluster)
    for name in () if options is None else options.groups:
        frame, _ = label_clusters(frame, name)
    structure = None if options is None else read_structure(frame, options)
    learner = audited.learner
    if learner.task is None and target in frame.columns:
        learner = learner.with_task(infer_task(loss, frame[target]))
    task = learner.task or "classification"  # without a target the table is refused anyway
    _check_weights(learner, sample_weight)
    chosen = resolve_loss(loss, task)
    table = prepare(
        frame,
        target=target,
        cluster=cluster,
        task=task,
        inputs=audited.inputs,
        sample_weight=sample_weight,
        row_id=row_id,
        match_probability=match_probability,
        others=() if options is None else (*options.groups, *options.coordinates),
        used=learner.used,
    )
    learner = learner.with_target(table.target)
    with without_autologging():
        rows = table.with_features(learner.represent(table.features, table.ids))
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
        structure=structure,
        cvc=options,
    )


def _agreement(learner: Learner, rows: AuditData) -> float | None:
    """Return how far a refit on all rows is the logged model; None where that cannot be told."""
    try:
        with without_autologging():
            agreement = measure_agreement(learner, rows)
    except (
        Exception
    ):  # foreign code; what goes wrong here goes wrong in the refits, which report it
        agreement = None
    if learner.assumed is not None and (agreement is None or agreement < AS_GOOD_AS_EQUAL):
        told = (
            "could not be compared" if agreement is None else f"agrees in {100 * agreement:.4g} %"
        )
        raise ModelError(
            f"{learner.assumed}. With these, a refit on all rows of the table is not the logged "
            f"model (it {told}); so either the hyper-parameters are others, or the rows are."
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
            "sample_weight='…'. A column of ones trains it without."
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
