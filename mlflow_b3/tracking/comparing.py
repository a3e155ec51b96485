"""`compare`: audits of several models side by side, read from MLflow or made together."""

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

# --- Names of the compared models: readable, stable and unique

#: A name, an audit, and the run that holds the audit.
Named = tuple[str, AuditReport, str | None]
#: How many digits of an id a name shows.
DIGITS = 8


def name_of(client: Any, reference: str, report: AuditReport, audit_run_id: str | None) -> str:
    """Return the URI of a registered version as given, or else the name of the audited run."""
    from mlflow.exceptions import MlflowException

    run_id = report.subject.run_id or audit_run_id
    versioned = reference.startswith("models:/") and not reference.startswith("models:/m-")
    if versioned or run_id is None:
        return reference
    try:
        return str(client.get_run(run_id).info.run_name)
    except MlflowException:  # the run was permanently deleted
        return reference


def disambiguate(audits: Sequence[Named]) -> list[str]:
    """Return the names of audits, extended where several audits share a name.

    Models of one run, or of runs with the same name, are distinguished by the names of the logged
    models; if these are the same too, by the start of the model ids; and several audits of one model
    by the start of the ids of their runs. The result does not depend on the order of the audits.
    """
    names = [name for name, _, _ in audits]
    for name in {name for name in names if names.count(name) > 1}:
        places = [place for place, other in enumerate(names) if other == name]
        for describe in (_logged_name, _model_id, _audit_id):
            more = _distinct_words(describe, [audits[place] for place in places])
            if more is not None:
                for place, words in zip(places, more, strict=True):
                    names[place] = f"{name} ({words})"
                break
    return names


def _distinct_words(
    describe: Callable[[Named], str | None], audits: Sequence[Named]
) -> list[str] | None:
    """Return a description of each audit, or None unless all are known and distinct."""
    words = [describe(audit) for audit in audits]
    known = [word for word in words if word]
    return known if len(set(known)) == len(words) else None


def _logged_name(audit: Named) -> str | None:
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException

    model_id = audit[1].subject.model_id
    try:
        return model_id and str(MlflowClient().get_logged_model(model_id).name)
    except MlflowException:  # deleted, or on another server
        return None


def _model_id(audit: Named) -> str | None:
    model_id = audit[1].subject.model_id
    return model_id and model_id[: len("m-") + DIGITS]


def _audit_id(audit: Named) -> str | None:
    return audit[2] and f"audit {audit[2][:DIGITS]}"


def distinct(names: Sequence[str]) -> list[str]:
    """Return unique names: duplicates get a number."""
    distinct: list[str] = []
    for name in names:
        numbered = (f"{name} ({number})" for number in count(1))
        candidates = numbered if names.count(name) > 1 else chain([name], numbered)
        taken = {*distinct, *(other for other in names if other != name)}
        distinct.append(next(candidate for candidate in candidates if candidate not in taken))
    return distinct


# --- `compare`

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
    """Rank models by their loss on new clusters, and say which differences exceed noise.

    Without data, recorded audits are read from MLflow. With data, all models are audited first, on the
    same folds and with the same seed, so paired comparisons are possible.

    Parameters
    ----------
    models : sequence, or mapping of names to them
        Model URIs; ids of LoggedModels, of runs or of audits' runs; `AuditReport`s; with data also
        bare estimators. The default names are the URIs of registered versions, and otherwise the
        names of the runs that trained the models.
    data : DataFrame or path, optional
        As in `mlflow_b3.audit`.
    experiment : str, optional
        Instead of models: the newest audit of every model of this experiment.
    registered_model : str, optional
        Instead of models: every version of this registered model that has been audited.
    by : {"auto", "e0", "cvc"}
        Rank by e0, or by cross-validation corrected for correlation, CV_c, which audits with
        method="cvc" have. "auto" takes CV_c if all audits have it and take their ids as correct.
    record : bool
        With data: write the audits to MLflow.
    **arguments
        With data: the other arguments of `mlflow_b3.audit`. A `journal` is a folder here, with one
        journal for each audit.

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
            "exactly one of models, experiment and registered_model."
        )
    if data is None and arguments:
        raise InputError(
            f"{', '.join(arguments)} is for new audits, which need data, target and cluster; without "
            "data, recorded audits are compared."
        )
    if data is not None:
        if given:
            raise InputError(
                f"{given[0]} selects recorded audits; to audit again with data, give models."
            )
        if by == "cvc" and arguments.get("method") != "cvc":
            raise InputError("by='cvc' needs audits with CV_c; add method='cvc'.")
        audits = _audit_together(chosen, data, record=record, **arguments)
    else:
        audits = _read(chosen, experiment, registered_model)
    return _compare(audits, list(models) if isinstance(models, Mapping) else None, by)


def _compare(audits: Sequence[Named], given: Sequence[str] | None, by: str) -> Comparison:
    names = distinct([str(name) for name in given] if given else disambiguate(audits))
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
    """Audit all models on the same folds, with as many repeats as all of them can afford."""
    from mlflow import MlflowClient

    arguments = flat_options(arguments)
    loading = {"trainer": arguments.get("trainer"), "refit": arguments.get("refit", "auto")}
    options = arguments.get("refit_options")
    if isinstance(arguments.get("folds"), Iterator):
        arguments["folds"] = list(arguments["folds"])  # an iterator would serve one model only
    if any(isinstance(model, AuditReport) for model in models):
        raise InputError("models: with data, give models to audit, not AuditReports.")
    if arguments.get("journal") is not None:
        arguments["journal"] = journal_folder(arguments["journal"])
    loaded = [load_model(model, options=options, **loading) for model in models]
    done: dict[int, Named] = {}
    for place in sorted(range(len(loaded)), key=lambda place: _priority(loaded[place])):
        model, run_id = loaded[place], None
        if record:
            report, run_id = _audit_or_keep_report(model, data, **arguments)
        else:
            report = audit(model, data, **arguments)
        require_whole(report)
        arguments.setdefault("repeats", report.plan.repeats)
        arguments |= _shared_options(report, arguments.get("method_options"))
        given = models[place]
        # opening a store creates one where there is none, and estimators need none
        is_logged = isinstance(given, str)
        name = name_of(MlflowClient(), given, report, run_id) if is_logged else model.name
        done[place] = (name, report, run_id)
    return [done[place] for place in range(len(loaded))]


def _priority(model: AuditedModel) -> tuple[bool, int]:
    """Return the sort key for the order of audits; the first audit sets what the others share.

    Random learners come first, because they can afford the fewest repeats. Then the models with most
    features: they leave the least variation to the groups, and all audits share the world that is
    simulated from the first one.
    """
    features = model.inputs.count or len(model.inputs.columns or ())
    return not model.learner.stochastic, -features


def _shared_options(report: AuditReport, options: Any) -> dict[str, Any]:
    """Return options that let the next audit reuse parts of this one's extension."""
    shared: dict[str, Any] = {}
    for part in report.extensions:
        shared |= part.options_to_share(report)
    return {"method_options": {**shared, **(options or {})}} if shared else {}


def _audit_or_keep_report(
    model: Any, data: Any, **arguments: Any
) -> tuple[AuditReport, str | None]:
    """Audit and record; go on if MLflow fails, because the audit was saved to a folder."""
    try:
        return audit_and_record(model, data, **arguments)
    except TrackingError as error:
        if error.report is None:
            raise
        _LOG.warning("%s", error)
        return error.report, None


def record_comparison(comparison: Comparison) -> str:
    """Write a comparison to a new run in the experiment of the first audit.

    Returns
    -------
    str
        The id of the run.
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
