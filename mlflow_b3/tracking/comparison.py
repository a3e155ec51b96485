"""`compare`: audited models side by side, from MLflow or audited together, and back to MLflow."""

import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mlflow_b3.auditing import audit
from mlflow_b3.comparing import Comparison, compare_reports
from mlflow_b3.errors import InputError
from mlflow_b3.refit import load_model
from mlflow_b3.reporting.comparison import comparison_files
from mlflow_b3.reporting.report import AuditReport
from mlflow_b3.tracking.audits import audited_versions, current_audits, find_audit, read_audit
from mlflow_b3.tracking.recording import FOLDER, audit_and_record, project_run, tracking_errors
from mlflow_b3.version import __version__


def compare(
    models: Iterable[Any] | Mapping[str, Any] = (),
    data: Any = None,
    *,
    experiment: str | None = None,
    registered_model: str | None = None,
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
    record : bool
        With data: write the audits to MLflow.
    **arguments
        With data: the other arguments of `mlflow_b3.audit`.

    Returns
    -------
    Comparison
    """
    given = [
        name
        for name, value in (("experiment", experiment), ("registered_model", registered_model))
        if value
    ]
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
        audits = _audit_together(chosen, data, record=record, **arguments)
    else:
        audits = _read(chosen, experiment, registered_model)
    return _compare(audits, list(map(str, models)) if isinstance(models, Mapping) else None)


Named = tuple[str, AuditReport, str | None]


def _compare(audits: Sequence[Named], given: Sequence[str] | None) -> Comparison:
    names = given or _distinct([name for name, _, _ in audits])
    reports = {name: report for name, (_, report, _) in zip(names, audits, strict=True)}
    runs = {name: run for name, (_, _, run) in zip(names, audits, strict=True) if run}
    return compare_reports(reports, runs)


def _distinct(names: Sequence[str]) -> list[str]:
    """Return names of which no two are the same."""
    counts: dict[str, int] = {}
    distinct = []
    for name in names:
        counts[name] = counts.get(name, 0) + 1
        distinct.append(f"{name} ({counts[name]})" if names.count(name) > 1 else name)
    return distinct


def _read(
    models: Sequence[Any], experiment: str | None, registered_model: str | None
) -> list[Named]:
    from mlflow import MlflowClient

    client = MlflowClient()
    if registered_model:
        models = audited_versions(client, registered_model)
    if experiment:
        models = current_audits(client, experiment)
    audits: list[Named] = []
    for model in models:
        if isinstance(model, AuditReport):
            audits.append((model.settings.model, model, None))
            continue
        if not isinstance(model, str):
            raise InputError(
                f"model={type(model).__name__} has no recorded audit; give data, target and cluster to "
                "audit it now, or its AuditReport."
            )
        run_id = find_audit(client, model)
        report = read_audit(run_id)
        audits.append((_name(client, model, report, run_id), report, run_id))
    return audits


def _name(client: Any, reference: str, report: AuditReport, audit_run_id: str | None) -> str:
    """Return a registered version as it was named; else the run that was audited, not its id."""
    run_id = report.settings.run_id or audit_run_id
    versioned = reference.startswith("models:/") and not reference.startswith("models:/m-")
    if versioned or run_id is None:
        return reference
    return str(client.get_run(run_id).info.run_name)


def _audit_together(
    models: Sequence[Any], data: Any, *, record: bool, **arguments: Any
) -> list[Named]:
    """Audit all models on the same folds: with as many assignments as all of them can afford."""
    from mlflow import MlflowClient

    loading = {"trainer": arguments.get("trainer"), "refit": arguments.get("refit", "auto")}
    options = arguments.get("refit_options")
    reports = [model for model in models if isinstance(model, AuditReport)]
    if reports:
        raise InputError("models: audits that exist cannot be made together; name the models.")
    client = MlflowClient()
    loaded = [load_model(model, options=options, **loading) for model in models]
    done: dict[int, Named] = {}
    # a learner with randomness of its own affords the fewest assignments of clusters to folds
    for place in sorted(range(len(loaded)), key=lambda i: not loaded[i].learner.stochastic):
        model, run_id = loaded[place], None
        if record:
            report, run_id = audit_and_record(model, data, **arguments)
        else:
            report = audit(model, data, **arguments)
        arguments.setdefault("repeats", report.settings.repeats)
        given = models[place]
        name = _name(client, given, report, run_id) if isinstance(given, str) else model.name
        done[place] = (name, report, run_id)
    return [done[place] for place in range(len(loaded))]


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
        run_id = project or str(client.create_run(experiment, tags=tags).info.run_id)
        client.set_tag(run_id, "b3.compared", ", ".join(runs))
        with tempfile.TemporaryDirectory() as folder:
            for name, text in comparison_files(comparison).items():
                (Path(folder) / name).write_text(text, encoding="utf-8")
            client.log_artifacts(run_id, folder, FOLDER)
        if project is None:
            client.set_terminated(run_id)
    return run_id
