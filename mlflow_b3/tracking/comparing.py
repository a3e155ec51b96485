"""`compare`: audited models side by side, from MLflow or audited together, and back to MLflow."""

import logging
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, count
from pathlib import Path
from typing import Any

from mlflow_b3.auditing.audit import audit
from mlflow_b3.auditing.comparability import SCORES
from mlflow_b3.auditing.comparison import Comparison, compare_reports
from mlflow_b3.auditing.report import AuditReport
from mlflow_b3.errors import InputError, TrackingError, choose
from mlflow_b3.measurement.journal import journal_folder
from mlflow_b3.options import flat_options
from mlflow_b3.refit.learner import AuditedModel
from mlflow_b3.refit.loading import load_model
from mlflow_b3.reporting.comparison import comparison_files
from mlflow_b3.tracking.audits import audited_versions, current_audits, find_audit, read_audit
from mlflow_b3.tracking.metrics_and_files import FOLDER, write_files
from mlflow_b3.tracking.recording import audit_and_record, require_whole
from mlflow_b3.tracking.runs import new_run, project_run, remove_twins, tracking_errors
from mlflow_b3.version import __version__

# --- What the models of a comparison are called: readable, stable, and no two the same

#: A name, an audit, and the run that holds the audit.
Named = tuple[str, AuditReport, str | None]
#: How much of an id tells two of them apart.
DIGITS = 8


def name_of(client: Any, reference: str, report: AuditReport, audit_run_id: str | None) -> str:
    """Return a registered version as it was named; else the run that was audited, not its id."""
    from mlflow.exceptions import MlflowException

    run_id = report.subject.run_id or audit_run_id
    versioned = reference.startswith("models:/") and not reference.startswith("models:/m-")
    if versioned or run_id is None:
        return reference
    try:
        return str(client.get_run(run_id).info.run_name)
    except MlflowException:  # the run was removed for good
        return reference


def told_apart(audits: Sequence[Named]) -> list[str]:
    """Return the names of audits; those that several have say more, in whatever order they are.

    Several models of one run, or runs of one name, are told apart by the names that their models
    were logged with; where these are the same too, by the beginning of the model's id, and several
    audits of one model by that of the audit's run.
    """
    names = [name for name, _, _ in audits]
    for name in {name for name in names if names.count(name) > 1}:
        places = [place for place, other in enumerate(names) if other == name]
        for describe in (_logged_name, _model_id, _audit_id):
            more = _described(describe, [audits[place] for place in places])
            if more is not None:
                for place, words in zip(places, more, strict=True):
                    names[place] = f"{name} ({words})"
                break
    return names


def _described(
    describe: Callable[[Named], str | None], audits: Sequence[Named]
) -> list[str] | None:
    """Return a word on each audit; None where one has none, or two have the same."""
    words = [describe(audit) for audit in audits]
    known = [word for word in words if word]
    return known if len(set(known)) == len(words) else None


def _logged_name(audit: Named) -> str | None:
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException

    model_id = audit[1].subject.model_id
    try:
        return model_id and str(MlflowClient().get_logged_model(model_id).name)
    except MlflowException:  # deleted, or of another server
        return None


def _model_id(audit: Named) -> str | None:
    model_id = audit[1].subject.model_id
    return model_id and model_id[: len("m-") + DIGITS]


def _audit_id(audit: Named) -> str | None:
    return audit[2] and f"audit {audit[2][:DIGITS]}"


def distinct(names: Sequence[str]) -> list[str]:
    """Return names of which no two are the same: those that are get numbers."""
    distinct: list[str] = []
    for name in names:
        numbered = (f"{name} ({number})" for number in count(1))
        candidates = numbered if names.count(name) > 1 else chain([name], numbered)
        taken = {*distinct, *(other for other in names if other != name)}
        distinct.append(next(candidate for candidate in candidates if candidate not in taken))
    return distinct


# --- `compare`: audited models side by side, from MLflow or audited together, and back to MLflow

_LOG = logging.getLogger(__name__)


def compare(
    models: Iterable[Any] | Mapping[str, Any] = (),
    data: Any = None,
    *,
    experiment: str | None = None,
    registered_model: str | None = None,
    by: str = "auto",
    record: bool = True,
    **arguments: Any,
) -> Comparison:
    """Rank models by their loss on new clusters, with what of their differences is noise.

    Without data, audits that have been recorded are read from MLflow. With data, all models are
    audited first, on the same folds and with the same seed, so that they can be compared in pairs.

    Parameters
    ----------
    models : sequence, or mapping of names to them
        Model URIs, ids of LoggedModels, of runs or of audits' runs; `AuditReport`s; with data also
        bare estimators. Without names, they are called by their URI, or by the run that trained
        them where that says more.
    data : DataFrame or path, optional
        As in `mlflow_b3.audit`.
    experiment : str, optional
        Instead of models: the newest audit of every model of this experiment.
    registered_model : str, optional
        Instead of models: every version of this registered model that has been audited.
    by : {"auto", "e0", "cvc"}
        Rank by e0, or by cross-validation that is corrected for correlation, CV_c, which audits
        with method="cvc" have. "auto" takes CV_c where all audits have it and take their ids as
        right.
    record : bool
        With data: write the audits to MLflow.
    **arguments
        With data: the other arguments of `mlflow_b3.audit`. A `journal` is a folder here, in which
        every audit has its own.

    Returns
    -------
    Comparison

    Examples
    --------
    >>> import mlflow_b3 as b3
    >>> from sklearn.naive_bayes import GaussianNB
    >>> from sklearn.tree import DecisionTreeClassifier
    >>> clinic = b3.make_clinic(patients=20, records=4, cluster_error=0.1)
    >>> comparison = b3.compare(
    ...     {"Bayes": GaussianNB(), "stump": DecisionTreeClassifier(max_depth=1)},
    ...     clinic.frame,
    ...     target="disease",
    ...     cluster="patient_id",
    ...     cluster_error=0.1,
    ...     folds=2,
    ...     budget=60,
    ...     record=False,
    ... )
    >>> [contender.name for contender in comparison.contenders]
    ['Bayes', 'stump']
    """
    given = [
        name
        for name, value in (("experiment", experiment), ("registered_model", registered_model))
        if value
    ]
    choose("by", by, SCORES)
    chosen = list(models.values() if isinstance(models, Mapping) else models)
    if len(given) + bool(chosen) != 1:
        raise InputError(
            f"{' and '.join([*(['models'] if chosen else []), *given]) or 'nothing'} was given; give "
            "either models, or an experiment, or a registered model."
        )
    if data is None and arguments:
        raise InputError(
            f"{', '.join(arguments)} is for audits, which need data, target and cluster; without data "
            "recorded audits are compared."
        )
    if data is not None:
        if given:
            raise InputError(
                f"{given[0]} names audits that exist; to audit again, name the models."
            )
        if by == "cvc" and arguments.get("method") != "cvc":
            raise InputError("by='cvc' needs audits with CV_c: give method='cvc' too.")
        audits = _audit_together(chosen, data, record=record, **arguments)
    else:
        audits = _read(chosen, experiment, registered_model)
    return _compare(audits, list(models) if isinstance(models, Mapping) else None, by)


def _compare(audits: Sequence[Named], given: Sequence[str] | None, by: str) -> Comparison:
    names = distinct([str(name) for name in given] if given else told_apart(audits))
    reports = {name: report for name, (_, report, _) in zip(names, audits, strict=True)}
    runs = {name: run for name, (_, _, run) in zip(names, audits, strict=True) if run}
    return compare_reports(reports, runs, by=by)


def _read(
    models: Sequence[Any], experiment: str | None, registered_model: str | None
) -> list[Named]:
    from mlflow import MlflowClient

    if all(isinstance(model, AuditReport) for model in models) and models:
        return [(model.subject.model, model, None) for model in models]
    client = MlflowClient()
    if registered_model:
        models = audited_versions(client, registered_model)
    if experiment:
        models = current_audits(client, experiment)
    audits: list[Named] = []
    for model in models:
        if isinstance(model, AuditReport):
            audits.append((model.subject.model, model, None))
            continue
        if not isinstance(model, str):
            raise InputError(
                f"model={type(model).__name__} has no recorded audit; give data, target and cluster to "
                "audit it now, or its AuditReport."
            )
        run_id = find_audit(client, model)
        report = read_audit(run_id)
        audits.append((name_of(client, model, report, run_id), report, run_id))
    return audits


def _audit_together(
    models: Sequence[Any], data: Any, *, record: bool, **arguments: Any
) -> list[Named]:
    """Audit all models on the same folds: with as many assignments as all of them can afford."""
    from mlflow import MlflowClient

    arguments = flat_options(arguments)
    loading = {"trainer": arguments.get("trainer"), "refit": arguments.get("refit", "auto")}
    options = arguments.get("refit_options")
    if isinstance(arguments.get("folds"), Iterator):
        arguments["folds"] = list(arguments["folds"])  # it can be read once, the models are several
    if any(isinstance(model, AuditReport) for model in models):
        raise InputError("models: audits that exist cannot be made together; name the models.")
    if arguments.get("journal") is not None:
        arguments["journal"] = journal_folder(arguments["journal"])
    client = MlflowClient()
    loaded = [load_model(model, options=options, **loading) for model in models]
    done: dict[int, Named] = {}
    for place in sorted(range(len(loaded)), key=lambda place: _turn(loaded[place])):
        model, run_id = loaded[place], None
        if record:
            report, run_id = _audit_and_keep(model, data, **arguments)
        else:
            report = audit(model, data, **arguments)
        require_whole(report)
        arguments.setdefault("repeats", report.plan.repeats)
        arguments |= _shared_options(report, arguments.get("method_options"))
        given = models[place]
        name = name_of(client, given, report, run_id) if isinstance(given, str) else model.name
        done[place] = (name, report, run_id)
    return [done[place] for place in range(len(loaded))]


def _turn(model: AuditedModel) -> tuple[bool, int]:
    """Return what says whose turn it is.

    A learner with randomness of its own affords the fewest assignments of clusters to folds. The model
    with most features knows best what groups do not explain, so that its simulated world is the one
    that others share.
    """
    features = model.inputs.count or len(model.inputs.columns or ())
    return not model.learner.stochastic, -features


def _shared_options(report: AuditReport, options: Any) -> dict[str, Any]:
    """Return options by which the next audit shares with this one what its extension can share."""
    shared: dict[str, Any] = {}
    for part in report.extensions:
        shared |= part.options_to_share(report)
    return {"method_options": {**shared, **(options or {})}} if shared else {}


def _audit_and_keep(model: Any, data: Any, **arguments: Any) -> tuple[AuditReport, str | None]:
    """Audit and record; where MLflow does not take the audit, go on: it was saved."""
    try:
        return audit_and_record(model, data, **arguments)
    except TrackingError as error:
        if error.report is None:
            raise
        _LOG.warning("%s", error)
        return error.report, None


def record_comparison(comparison: Comparison) -> str:
    """Write a comparison to a run of its own, next to the first of its audits.

    Returns
    -------
    str
        The id of that run.
    """
    from mlflow import MlflowClient
    from mlflow.tracking.fluent import _get_experiment_id

    client = MlflowClient()
    runs = [c.audit_run_id for c in comparison.contenders if c.audit_run_id]
    tags = {
        "mlflow.runName": "b3-compare",
        "mlflow.source.name": "mlflow-b3",
        "b3.version": __version__,
    }
    with tracking_errors("the comparison"):
        experiment = client.get_run(runs[0]).info.experiment_id if runs else _get_experiment_id()
        project = project_run(client, "compare")
        run_id = project or new_run(client, experiment, tags)
        try:
            client.set_tag(run_id, "b3.compared", ", ".join(runs))
            client.set_tag(run_id, "mlflow.runName", tags["mlflow.runName"])
            with tempfile.TemporaryDirectory() as folder:
                write_files(Path(folder), comparison_files(comparison))
                client.log_artifacts(run_id, folder, FOLDER)
            remove_twins(client, run_id)
        except BaseException:
            if project is None:
                client.set_terminated(run_id, status="FAILED")
            raise
        if project is None:
            client.set_terminated(run_id)
    return run_id
