"""Draft a policy that pins the settings of a model's newest audit."""

import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from glob import escape
from typing import Any

from mlflow_b3.auditing.report import SubjectSummary
from mlflow_b3.errors import InputError, ModelError, TrackingError
from mlflow_b3.evidence.policy import TRAINING, default_policy_text
from mlflow_b3.refit.loading import model_info, registered_version, training_datasets
from mlflow_b3.results import shortened, visible
from mlflow_b3.tracking.audits import find_audit, read_audit


@dataclass(frozen=True, kw_only=True)
class _VersionFacts:
    """What MLflow knows about a registered version.

    Attributes
    ----------
    name, version : str
    audit_run_id : str or None
    audited : SubjectSummary or None
        The subject of its newest audit.
    datasets : list
        The datasets that its training run logged.
    features : tuple of str
        The columns that the model takes.
    """

    name: str
    version: str
    audit_run_id: str | None
    audited: SubjectSummary | None
    datasets: list[Any]
    features: tuple[str, ...]


def draft_policy(model: str) -> str:
    """Return a policy, as commented YAML, that pins the settings of a version's newest audit.

    Target, cluster and loss are those of the newest recorded audit. The table is pinned to the
    datasets that the training run logged if the audited table is among them, and otherwise to the
    audited table. Unknown values are left as comments. Read the draft before you use it: it says what
    was audited, not what should be audited.

    Parameters
    ----------
    model : str
        "models:/name/3", or "models:/name@alias".
    """
    known = _look_up(model)
    draft = "\n".join(_pins(known))
    text = default_policy_text()
    head, _, rest = text.partition("pins: {}\n")
    example = head.rfind("#\n# pins:\n")
    return f"{_header(known)}\n{head[head.index('version:') : example]}{draft}\n{rest}"


def _look_up(model: str) -> _VersionFacts:
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException

    client = MlflowClient()
    try:
        found = registered_version(model) if isinstance(model, str) else None
        if found is None:
            raise InputError(
                f"model={model!r} is not a registered version; give 'models:/name/3' or "
                "'models:/name@alias'."
            )
        name, version = found
        run_id = client.get_model_version(name, version).run_id
    except MlflowException as error:
        raise TrackingError(f"model={model!r}: {error}") from error
    uri = f"models:/{name}/{version}"
    audit_run_id = audited = None
    with suppress(TrackingError, ModelError):  # there is no audit, or it cannot be read
        audit_run_id = find_audit(client, uri)
        audited = read_audit(audit_run_id).subject
        run_id = audited.run_id or run_id
    datasets: list[Any] = []
    with suppress(MlflowException):  # a model may outlive its run
        datasets = training_datasets(client.get_run(run_id)) if run_id else []
    return _VersionFacts(
        name=name,
        version=version,
        audit_run_id=audit_run_id if audited is not None else None,
        audited=audited,
        datasets=datasets,
        features=_features(uri),
    )


def _features(uri: str) -> tuple[str, ...]:
    """Return the input columns in a model's signature; none if it cannot be read."""
    try:
        signature = model_info(uri).signature
    except ModelError:
        return ()
    inputs = None if signature is None else signature.inputs
    return tuple(map(str, inputs.input_names())) if inputs and inputs.has_input_names() else ()


def _header(known: _VersionFacts) -> str:
    source = (
        "no audit of it can be read, so nothing is pinned yet and nothing passes"
        if known.audit_run_id is None
        else f"pins the settings of the audit of run {known.audit_run_id}"
    )
    return (
        f"# A draft for {visible(f'models:/{known.name}/{known.version}')}: {source}.\n"
        "# Check each pin before you use it: is this the right target, cluster column, loss and table?\n"
        "# Keys that you omit have the values of the default policy; unknown keys are errors.\n"
    )


def _pins(known: _VersionFacts) -> Iterator[str]:
    pattern, audited = _quote(escape(known.name)), known.audited
    if audited is None:
        yield "#\n# pins:"
        yield f"#   {pattern}:"
        yield from (f"#     {key}: …  # unknown without an audit" for key in ("target", "cluster"))
        yield "#     loss: …  # unknown without an audit"
        yield f"#     data: {TRAINING}  # {_describe_datasets(known)}"
        yield from _candidate_columns(known)
        yield "pins: {}"
        return
    yield "pins:"
    yield f"  {pattern}:"
    for key in ("target", "cluster", "loss"):
        yield f"    {key}: {_quote(getattr(audited, key))}"
    if audited.training_digest in {dataset.digest for dataset in known.datasets}:
        yield f"    data: {TRAINING}  # the audited table is one that the training run logged"
    else:
        yield f"    # data: {TRAINING}  # {_describe_datasets(known)}"
        yield f"    data: {_quote(audited.data_digest)}  # the audited table; no other passes"


def _describe_datasets(known: _VersionFacts) -> str:
    if not known.datasets:
        return "the training run logged no dataset with the context 'training'"
    names = shortened([visible(dataset.name) for dataset in known.datasets], 5)
    if known.audited is None:
        return f"the training run logged {names}"
    return f"the training run logged {names}, not the audited table"


def _candidate_columns(known: _VersionFacts) -> Iterator[str]:
    """Yield the columns of the training datasets that could be target and cluster."""
    for dataset in known.datasets:
        others = [name for name in _columns(dataset.schema) if name not in known.features]
        if others:
            kind = "that are not features" if known.features else "which may be features too"
            names = visible(shortened(others, 10))
            yield f"# Columns of the dataset {visible(dataset.name)!r}, {kind}: {names}"


def _columns(schema: str | None) -> list[str]:
    try:
        return [str(column["name"]) for column in json.loads(schema or "{}")["mlflow_colspec"]]
    except (KeyError, TypeError, ValueError):
        return []


def _quote(text: str) -> str:
    """Return text as a quoted YAML string on one line."""
    import yaml

    return str(yaml.safe_dump(text, default_style='"', width=float("inf"))).strip()
