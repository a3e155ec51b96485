"""Checks of the routes that write to runs and LoggedModels: complete records do not change.

A record is the run of an audit, a commitment or an attestation. Gates find the records of a model by
tags, which MLflow lets everybody change, and read the files in their folder `b3`.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from math import isnan
from typing import Any

from mlflow.exceptions import MlflowException
from mlflow.protos import service_pb2 as messages
from mlflow.server import handlers

from mlflow_b3.evidence.policy import folded
from mlflow_b3.gating.server.gate import Gate, Request
from mlflow_b3.gating.server.registry_checks import After, withdraw
from mlflow_b3.gating.server.stores import (
    below,
    equal_tag_key,
    exists,
    guarded_versions,
    is_plain,
    is_prompt_version,
    is_within,
    kept_places_of,
    tracking_is_exact,
    versions_of,
)
from mlflow_b3.tracking.metrics_and_files import FOLDER
from mlflow_b3.tracking.runs import REQUEST

SUBJECT, AUDIT, EVIDENCE = "b3.subject", "b3.audit_run_id", "b3.evidence"
COMMITMENT, ATTESTS, ATTESTATION = "b3.commitment", "b3.attests", "b3.attestation"
ONCE = (SUBJECT, AUDIT, EVIDENCE, COMMITMENT, ATTESTS, ATTESTATION)
#: Tags that make a run with a subject something other than an audit.
OTHER_KINDS = (COMMITMENT, ATTESTS, ATTESTATION)
#: Tags that are written once the files of a record are complete.
COMPLETE = (EVIDENCE, COMMITMENT, ATTESTATION)
#: Prefixes of the names of an audit's metrics.
METRICS = ("b3/", "b3_curve/")
#: What a request's body must contain to name one of these tags or metrics: the name itself, an escaped
#: one, or characters that are not ASCII. Other bodies are not even parsed.
_MAY_NAME = re.compile(rb"[bB]3[./_\\]|\\u|[\x00\x80-\xff]")
#: The folder of a record's files, which in every artifact store follows the id of its run.
_RECORD_FILES = re.compile(rf"/([0-9a-f]{{32}})/artifacts/{FOLDER}(?:/|$)")


def is_record(run_id: str, tags: Mapping[str, str]) -> bool:
    """Whether a run is that of an audit, complete or not, of a commitment or of an attestation.

    The run that trained a model shows its latest audit with the same tags, but is not a record.
    """
    if any(key in tags for key in OTHER_KINDS):
        return True
    return SUBJECT in tags and tags.get(AUDIT, run_id) == run_id


# --- Tags and metrics


def check_run_tag(gate: Gate, request: Request) -> After | None:
    """Keep a tag of a record from being changed."""
    if _may_name():
        asked = handlers._get_request_message(messages.SetTag())
        run_id = asked.run_id or asked.run_uuid
        _check(gate, request, run_id, [(asked.key, asked.value)])
    return None


def check_run_tag_removal(gate: Gate, request: Request) -> After | None:
    """Keep a tag of a record from being removed."""
    if _may_name():
        asked = handlers._get_request_message(messages.DeleteTag())
        _check(gate, request, asked.run_id, [(asked.key, None)])
    return None


def check_run_batch(gate: Gate, request: Request) -> After | None:
    """Keep the tags and metrics of a record from being changed by a batch."""
    if _may_name():
        asked = handlers._get_request_message(messages.LogBatch())
        _check_metrics(gate, request, asked.run_id, asked.metrics)
        _check(gate, request, asked.run_id, [(tag.key, tag.value) for tag in asked.tags])
    return None


def check_run_metric(gate: Gate, request: Request) -> After | None:
    """Keep a metric of an audit from being changed once it is complete."""
    if _may_name():
        asked = handlers._get_request_message(messages.LogMetric())
        _check_metrics(gate, request, asked.run_id or asked.run_uuid, [asked])
    return None


def _check_metrics(gate: Gate, request: Request, run_id: str, metrics: Iterable[Any]) -> None:
    wanted = {m.key: m.value for m in metrics if folded(m.key).strip().startswith(METRICS)}
    run: Any = exists(gate.stores.get_run, run_id) if wanted else None
    if run is None or EVIDENCE not in run.data.tags:
        return
    own, known = run.info.run_id, run.data.metrics
    for key, value in wanted.items():
        # clients repeat requests that were not answered; NaN is then sent again as NaN
        same = key in known and (known[key] == value or (isnan(known[key]) and isnan(value)))
        if is_record(own, run.data.tags) and not same:
            text = (
                f"the metric {key!r} of run {own} is a result of a complete audit and must not change. "
                "Audit again instead."
            )
            raise gate.refuse(request, "run metric", key, text)


def check_new_run(gate: Gate, request: Request) -> After | None:
    """Refuse a new run with a tag key that a database may treat as that of a record."""
    if _may_name():
        asked = handlers._get_request_message(messages.CreateRun())
        for tag in asked.tags:
            _check_spelling(gate, request, "a new run", tag.key)
    return None


def _may_name() -> bool:
    from flask import request as asked

    return _MAY_NAME.search(asked.get_data(cache=True)) is not None


def _check(gate: Gate, request: Request, run_id: str, asked: list[tuple[str, str | None]]) -> None:
    wanted = [(key, value) for key, value in asked if _identity_tag(key)]
    odd = [key for key, _ in asked if not is_plain(key) and not tracking_is_exact()]
    run: Any = exists(gate.stores.get_run, run_id) if wanted or odd else None
    if run is None:
        return
    own, tags = run.info.run_id, dict(run.data.tags)
    if odd and is_record(own, tags):
        raise _refuse_spelling(gate, request, odd[0], f"run {own}")
    for key, value in asked:
        if value is not None:
            _check_spelling(gate, request, f"run {own}", key)
    tags = {_identity_tag(key) or key: value for key, value in tags.items()}
    if tags.get(AUDIT, own) != own:
        return  # it shows its model's latest audit, and is not a record itself
    begun = SUBJECT in tags
    for key, value in ((_identity_tag(key), value) for key, value in wanted):
        if value == tags.get(key):
            continue  # clients repeat requests that were not answered
        if (
            key in tags
            or (begun and _changes_kind(key, value, own, tags))
            or _has_two_kinds(key, tags)
        ):
            raise _refuse_identity_change(gate, request, key, own)
        if value is not None:
            tags[key] = value


def _changes_kind(key: str, value: str | None, own: str, tags: Mapping[str, str]) -> bool:
    """Whether a tag would change the kind of a run that already has a subject.

    A commitment or an attestation is marked as such before it has a subject, or together with it.
    """
    if key == AUDIT:
        return value != own
    if key == ATTESTATION:
        return ATTESTS not in tags
    return key in OTHER_KINDS


def _has_two_kinds(key: str, tags: Mapping[str, str]) -> bool:
    """Whether a run would be an audit and something else at once."""
    if key in OTHER_KINDS:
        kinds = {COMMITMENT} if key == COMMITMENT else {ATTESTS, ATTESTATION}
        return AUDIT in tags or any(k in tags for k in OTHER_KINDS if k not in kinds)
    return key == AUDIT and any(other in tags for other in OTHER_KINDS)


def _identity_tag(key: str) -> str:
    """Return the tag in `ONCE` that a database may treat as equal to a key, or ""."""
    plain = folded(key).strip()
    return plain if plain in ONCE else ""


def _check_spelling(gate: Gate, request: Request, run: str, key: str) -> None:
    """Refuse a key that a database may treat as that of a record although it differs."""
    name = _identity_tag(key)
    if not name and not is_plain(key) and not tracking_is_exact():
        name = equal_tag_key(key, ONCE) or ""
    if name and key != name:
        raise _refuse_spelling(gate, request, key, run)


def _refuse_spelling(gate: Gate, request: Request, key: str, run: str) -> MlflowException:
    text = (
        f"a database may treat the tag key {key!r} of {run} as equal to a key that only audits may "
        "write; use another key, in ASCII and unlike 'b3.subject'."
    )
    return gate.refuse(request, "run tag", key, text)


def _refuse_identity_change(gate: Gate, request: Request, key: str, run_id: str) -> MlflowException:
    text = (
        f"the tag {key!r} of run {run_id} identifies a record: the audit, commitment or attestation "
        "writes it once, and it must not change. Audit again instead."
    )
    return gate.refuse(request, "run tag", key, text)


# --- Removal


def check_run_removal(gate: Gate, request: Request) -> After | None:
    """Keep records from being deleted."""
    asked = handlers._get_request_message(messages.DeleteRun())
    run = exists(gate.stores.get_run, asked.run_id)
    if (
        run is not None
        and is_record(run.info.run_id, run.data.tags)
        and not _is_duplicate(gate, run)
    ):
        raise _refuse_deletion(gate, request, run.info.run_id, f"run {run.info.run_id}")
    return None


def check_experiment_removal(gate: Gate, request: Request) -> After | None:
    """Keep experiments that contain records from being deleted."""
    asked = handlers._get_request_message(messages.DeleteExperiment())
    if exists(gate.stores.get_experiment, asked.experiment_id) is not None:
        _keep_experiment(gate, request, asked.experiment_id)
    return None


def check_demo(gate: Gate, request: Request) -> After | None:
    """Protect records and guarded aliases from MLflow's demo, which knows its own data only by name.

    It deletes the experiment with its name, where anybody may have put a record, and gives aliases to
    versions of its prompts, under whose names anybody may have registered a model.
    """
    from mlflow.demo.base import DEMO_EXPERIMENT_NAME
    from mlflow.demo.data import DEMO_PROMPTS

    found = gate.stores.get_experiment_by_name(DEMO_EXPERIMENT_NAME)
    if found is not None:
        _keep_experiment(gate, request, found.experiment_id)
    names = [prompt.name for prompt in DEMO_PROMPTS if gate.applies_to(prompt.name)]
    for name in _registered(gate, names):
        if not all(map(is_prompt_version, versions_of(gate.stores, name))):
            text = (
                f"MLflow's demo would give aliases to versions of {name!r}, which is not a prompt; "
                "rename that model first."
            )
            raise gate.refuse(request, "demo", name, text, model=name)

    def after() -> None:
        refused = None
        for name in _registered(gate, names):
            for guarded in list(guarded_versions(gate.stores, gate.policy, name)):
                verdict = gate.judge(name, guarded.number)
                if not verdict.allowed:  # a model was registered while the demo ran
                    withdraw(gate, guarded)
                    refused = refused or verdict
        if refused is not None:
            gate.take_back(request, "demo", str(refused.model), refused)

    return after


def _registered(gate: Gate, names: Iterable[str]) -> list[str]:
    return [name for name in names if exists(gate.stores.get_registered_model, name) is not None]


def _keep_experiment(gate: Gate, request: Request, experiment_id: str) -> None:
    for run in _tagged_runs(gate, [experiment_id], (SUBJECT, *OTHER_KINDS)):
        if is_record(run.info.run_id, run.data.tags):
            what = f"experiment {experiment_id}"
            raise _refuse_deletion(gate, request, run.info.run_id, what)


def _is_duplicate(gate: Gate, run: Any) -> bool:
    """Whether a run is an unused duplicate, made because MLflow's client repeated a request.

    The run that is used is recorded before its duplicates are removed.
    """
    tags = run.data.tags
    word = tags.get(REQUEST, "")
    if any(key in tags for key in (AUDIT, EVIDENCE, *OTHER_KINDS)) or not word.isalnum():
        return False
    found = gate.stores.search_runs([run.info.experiment_id], f"tags.`{REQUEST}` = '{word}'")
    return any(
        other.info.run_id != run.info.run_id
        and other.data.tags.get(SUBJECT) == tags.get(SUBJECT)
        and (other.data.tags.get(AUDIT) == other.info.run_id or COMMITMENT in other.data.tags)
        for other in found
    )


def _tagged_runs(gate: Gate, experiments: list[str], keys: Iterable[str]) -> Iterator[Any]:
    """Yield the runs in the experiments that have one of the tags, deleted runs included."""
    from mlflow.entities import ViewType

    for key in keys:
        token = None
        while True:
            page = gate.stores.search_runs(
                experiments, f"tags.`{key}` LIKE '%'", ViewType.ALL, page_token=token
            )
            yield from page
            token = page.token
            if not token:
                break


def _refuse_deletion(gate: Gate, request: Request, run_id: str, what: str) -> MlflowException:
    text = (
        f"{what} cannot be deleted, because run {run_id} is the record of an audit, a commitment or an "
        "attestation. Gates count these records, including those of failed audits."
    )
    return gate.refuse(request, "record", run_id, text)


# --- Files


def names_record(places: Iterable[str]) -> bool:
    """Whether one of the places may be among the files of a record."""
    return any(_RECORD_FILES.search(place.casefold()) for place in places)


def check_record_files(
    gate: Gate, request: Request, path: str, places: frozenset[str], *, removes: bool
) -> None:
    """Keep the files of complete records from being changed, or removed with a folder above them."""
    places = frozenset(map(str.casefold, places))
    named = {found for place in places for found in _RECORD_FILES.findall(place)}
    runs = [exists(gate.stores.get_run, run_id) for run_id in sorted(named)]
    tagged = [(r.info.run_id, r.info.artifact_uri, r.data.tags) for r in runs if r is not None]
    if removes:
        tagged += _complete_records(gate)
    for run_id, location, tags in tagged:
        if not is_record(run_id, tags) or not any(key in tags for key in COMPLETE):
            continue
        kept = map(str.casefold, kept_places_of(below(location, FOLDER)))
        if any(is_within(p, k) or is_within(k, p) for k in kept for p in places):
            text = (
                f"{path!r} holds files of run {run_id}, the record of an audit, a commitment or an "
                "attestation, which must not change. Audit again instead."
            )
            raise gate.refuse(request, "files", path, text)


def _complete_records(gate: Gate) -> list[tuple[str, str, dict[str, str]]]:
    """Return id, location and tags of all runs that may be complete records."""
    from mlflow.entities import ViewType

    engine = getattr(handlers._get_tracking_store(), "engine", None)
    if engine is None:
        found = gate.stores.search_experiments(view_type=ViewType.ALL)
        experiments = [experiment.experiment_id for experiment in found]
        runs = _tagged_runs(gate, experiments, COMPLETE)
        return [(run.info.run_id, run.info.artifact_uri, run.data.tags) for run in runs]
    from mlflow.store.tracking.dbmodels.models import SqlRun, SqlTag
    from sqlalchemy import select

    query = select(SqlRun.run_uuid, SqlRun.artifact_uri, SqlTag.key, SqlTag.value).join(
        SqlTag, SqlTag.run_uuid == SqlRun.run_uuid
    )
    found_tags: dict[tuple[str, str], dict[str, str]] = {}
    with engine.connect() as connection:
        for run_id, location, key, value in connection.execute(query.where(SqlTag.key.in_(ONCE))):
            found_tags.setdefault((run_id, location), {})[key] = value
    return [(*run, tags) for run, tags in found_tags.items()]


# --- LoggedModels


def check_new_logged_model(gate: Gate, request: Request) -> After | None:
    """Refuse a new LoggedModel with the tag of an audit: it cannot have been audited yet."""
    if _may_name():
        asked = handlers._get_request_message(messages.CreateLoggedModel())
        for tag in asked.tags:
            if _identity_tag(tag.key) == AUDIT:
                raise _refuse_wrong_audit(gate, request, "a new LoggedModel", tag.value)
    return None


def check_logged_model_tags(gate: Gate, request: Request) -> After | None:
    """Let a LoggedModel name only an audit of its own."""
    if not _may_name():
        return None
    asked = handlers._get_request_message(messages.SetLoggedModelTags())
    model_id = _model_in_request()
    for tag in asked.tags:
        if _identity_tag(tag.key) == AUDIT and not (
            tag.key == AUDIT and _is_audit_of(gate, tag.value, model_id)
        ):
            raise _refuse_wrong_audit(gate, request, model_id, tag.value)
    return None


def check_logged_model_tag_removal(gate: Gate, request: Request) -> After | None:
    """Keep the tag with which a LoggedModel names its audit from being removed."""
    from flask import request as asked

    key, model_id = str((asked.view_args or {}).get("tag_key", "")), _model_in_request()
    if _identity_tag(key) != AUDIT:
        return None
    model = exists(gate.stores.get_logged_model, model_id)
    named = None if model is None else model.tags.get(AUDIT)
    if named is not None and _is_audit_of(gate, named, model_id):
        text = (
            f"the tag {key!r} of {model_id} names its audit and cannot be removed; a new audit "
            "replaces it."
        )
        raise gate.refuse(request, "model tag", key, text)
    return None


def check_logged_model_removal(gate: Gate, request: Request) -> After | None:
    """Keep the LoggedModel of a guarded version from being deleted."""
    model_id = _model_in_request()
    for guarded in gate.guards.made_of(model_id):
        text = (
            f"{model_id} cannot be deleted: it is the model of {guarded.name!r} version "
            f"{guarded.number}, which has {guarded.words}. Remove the alias or stage first."
        )
        raise gate.refuse(
            request, "model removal", model_id, text, model=guarded.name, version=guarded.number
        )
    return None


def _model_in_request() -> str:
    from flask import request as asked

    return str((asked.view_args or {}).get("model_id", ""))


def _is_audit_of(gate: Gate, run_id: str, model_id: str) -> bool:
    run = exists(gate.stores.get_run, run_id)
    return (
        run is not None
        and run.data.tags.get(SUBJECT) == model_id
        and run.data.tags.get(AUDIT) == run.info.run_id
    )


def _refuse_wrong_audit(gate: Gate, request: Request, model: str, value: str) -> MlflowException:
    text = (
        f"the tag {AUDIT!r} of {model} must name the run of an audit of this model; {value!r} is not "
        "one."
    )
    return gate.refuse(request, "model tag", AUDIT, text)
