"""Checks of the routes that write to runs and LoggedModels: complete records do not change.

A record is the run of an audit, a commitment or an attestation. Gates find the records of a model by
tags, which MLflow lets everybody change, compare what the run of an audit shows with its evidence, and
read the files in the folder `b3`. So nobody writes to a complete record, except what a later audit and
a gate write to it.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from mlflow.exceptions import MlflowException
from mlflow.protos import service_pb2 as messages
from mlflow.server import handlers

from mlflow_b3.evidence.policy import folded
from mlflow_b3.gating.server.gate import VERDICT_TAG, Gate, Request
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
from mlflow_b3.tracking.runs import LONGEST_NAME, NOTE, REQUEST
from mlflow_b3.tracking.shown_on_models import (
    COLOUR,
    CURRENT,
    OPENING,
    SUPERSEDED,
    VERDICT,
)

SUBJECT, AUDIT, EVIDENCE = "b3.subject", "b3.audit_run_id", "b3.evidence"
COMMITMENT, ATTESTS, ATTESTATION = "b3.commitment", "b3.attests", "b3.attestation"
ONCE = (SUBJECT, AUDIT, EVIDENCE, COMMITMENT, ATTESTS, ATTESTATION)
#: Tags that make a run with a subject something other than an audit.
OTHER_KINDS = (COMMITMENT, ATTESTS, ATTESTATION)
#: Tags that are written once the files of a record are complete.
COMPLETE = (EVIDENCE, COMMITMENT, ATTESTATION)
STATUS, SUPERSEDED_BY, SUPERSEDES = "b3.status", "b3.superseded_by", "b3.supersedes"
#: MLflow's tag for the name of a run.
NAME = "mlflow.runName"
#: What a request's body must contain to name one of these tags: the name itself, an escaped one, or
#: characters that are not ASCII. Bodies that contain neither this nor the id of a complete record are
#: not even parsed.
_MAY_NAME = re.compile(rb"[bB]3[._\\]|\\|[\x00\x80-\xff]")
_RUN_ID = re.compile(rb"[0-9a-fA-F]{32}")
#: How many ids are looked up in the database; bodies with more are parsed.
MOST_IDS = 20
#: How many versions of a run's model are looked up.
MOST_VERSIONS = 1000
#: The description of an audit that a later one supersedes.
_SUPERSEDED_NOTE = re.compile(rf"\A{re.escape(OPENING)} by the audit of run `[0-9a-f]{{32}}`\.\n\n")
_LIST_OF_RUNS = re.compile(r"none|[0-9a-f]{32}(, [0-9a-f]{32})*")
#: The folder of a record's files, which in every artifact store follows the id of its run.
_RECORD_FILES = re.compile(rf"/([0-9a-f]{{32}})/artifacts/{FOLDER}(?:/|$)")


def is_record(run_id: str, tags: Mapping[str, str]) -> bool:
    """Whether a run is that of an audit, complete or not, of a commitment or of an attestation.

    The run that trained a model shows its latest audit with the same tags, but is not a record.
    """
    if any(key in tags for key in OTHER_KINDS):
        return True
    return SUBJECT in tags and tags.get(AUDIT, run_id) == run_id


# --- Everything that is written to a run


def check_run_tag(gate: Gate, request: Request) -> After | None:
    """Keep a tag of a record from being changed."""
    if _concerns_record():
        asked = handlers._get_request_message(messages.SetTag())
        run_id = asked.run_id or asked.run_uuid
        _check(gate, request, run_id, [(asked.key, asked.value)])
    return None


def check_run_tag_removal(gate: Gate, request: Request) -> After | None:
    """Keep a tag of a record from being removed."""
    if _concerns_record():
        asked = handlers._get_request_message(messages.DeleteTag())
        _check(gate, request, asked.run_id, [(asked.key, None)])
    return None


def check_run_batch(gate: Gate, request: Request) -> After | None:
    """Keep the tags, metrics and parameters of a record from being changed by a batch."""
    if _concerns_record():
        asked = handlers._get_request_message(messages.LogBatch())
        _check(gate, request, asked.run_id, [(tag.key, tag.value) for tag in asked.tags])
        run = _complete_record(gate, asked.run_id)
        if run is not None:
            _check_metrics(gate, request, run, asked.metrics)
            _check_parameters(gate, request, run, asked.params)
    return None


def check_run_metric(gate: Gate, request: Request) -> After | None:
    """Keep a metric of a record from being changed."""
    if _concerns_record():
        asked = handlers._get_request_message(messages.LogMetric())
        run = _complete_record(gate, asked.run_id or asked.run_uuid)
        if run is not None:
            _check_metrics(gate, request, run, [asked])
    return None


def check_run_parameter(gate: Gate, request: Request) -> After | None:
    """Keep a record from getting another parameter."""
    if _concerns_record():
        asked = handlers._get_request_message(messages.LogParam())
        run = _complete_record(gate, asked.run_id or asked.run_uuid)
        if run is not None:
            _check_parameters(gate, request, run, [asked])
    return None


def check_run_inputs(gate: Gate, request: Request) -> After | None:
    """Keep a record from getting another table or model as its input."""
    return _check_frozen(gate, request, messages.LogInputs, "an input")


def check_run_outputs(gate: Gate, request: Request) -> After | None:
    """Keep a record from getting a model as its output."""
    return _check_frozen(gate, request, messages.LogOutputs, "an output")


def check_run_model(gate: Gate, request: Request) -> After | None:
    """Keep a record from getting a model in the form of MLflow 2."""
    return _check_frozen(gate, request, messages.LogModel, "a model")


def check_run_traces(gate: Gate, request: Request) -> After | None:
    """Keep a record from getting traces."""
    return _check_frozen(gate, request, messages.LinkTracesToRun, "traces")


def _check_frozen(gate: Gate, request: Request, message: Any, what: str) -> After | None:
    if _concerns_record():
        run = _complete_record(gate, handlers._get_request_message(message()).run_id)
        if run is not None:
            raise _refuse_write(gate, request, run, what)
    return None


def check_run_update(gate: Gate, request: Request) -> After | None:
    """Let a record end, and be renamed once a later audit supersedes it; keep the rest."""
    if not _concerns_record():
        return None
    from mlflow.entities import RunStatus

    asked = handlers._get_request_message(messages.UpdateRun())
    run = _complete_record(gate, asked.run_id or asked.run_uuid)
    if run is None:
        return None
    if asked.HasField("run_name"):
        _check_shown(gate, request, run, [(NAME, asked.run_name)])
    info = run.info
    recorded = EVIDENCE not in run.data.tags or STATUS in run.data.tags
    if recorded and RunStatus.is_terminated(RunStatus.from_string(info.status)):
        status = RunStatus.to_string(asked.status) if asked.HasField("status") else info.status
        end = asked.end_time if asked.HasField("end_time") else info.end_time
        if (status, end) != (info.status, info.end_time):
            raise _refuse_write(gate, request, run, "another status or end")
    return None


def check_run_restoration(gate: Gate, request: Request) -> After | None:
    """Keep a deleted record deleted: only an administrator can have deleted it."""
    asked = handlers._get_request_message(messages.RestoreRun())
    run = _complete_record(gate, asked.run_id)
    if run is not None and run.info.lifecycle_stage != "active":
        raise _refuse_restoration(gate, request, run.info.run_id, f"run {run.info.run_id}")
    return None


def check_experiment_restoration(gate: Gate, request: Request) -> After | None:
    """Keep the deleted records of an experiment deleted."""
    asked = handlers._get_request_message(messages.RestoreExperiment())
    if exists(gate.stores.get_experiment, asked.experiment_id) is None:
        return None
    for run in _tagged_runs(gate, [asked.experiment_id], COMPLETE):
        if _is_complete(run) and run.info.lifecycle_stage != "active":
            what = f"experiment {asked.experiment_id}"
            raise _refuse_restoration(gate, request, run.info.run_id, what)
    return None


def check_job_of_run(gate: Gate, request: Request) -> After | None:
    """Keep a job from ending or deleting a record, in case a job names one as its run."""
    from flask import request as asked

    job = handlers._get_job_store().get_job((asked.view_args or {}).get("job_id"))
    run_id = handlers._build_prompt_optimization_job_from_entity(job).run_id
    run = exists(gate.stores.get_run, run_id) if run_id else None
    if run is not None and is_record(run.info.run_id, run.data.tags):
        raise _refuse_deletion(gate, request, run.info.run_id, f"run {run.info.run_id}")
    return None


def check_new_job(gate: Gate, request: Request, body: bytes) -> None:
    """Refuse to start a job that names a record: MLflow's jobs write to the database, past the gate."""
    try:
        asked = json.loads(body)
    except (ValueError, RecursionError):
        return  # MLflow refuses it
    named = set(_RUN_ID.findall(folded(json.dumps(asked, ensure_ascii=False)).encode()))
    for run_id in sorted(found.decode() for found in named):
        run: Any = exists(gate.stores.get_run, run_id)
        if run is not None and is_record(run.info.run_id, run.data.tags):
            text = (
                f"a job cannot be started for run {run_id}, the record of an audit, a commitment or an "
                "attestation, which must not change."
            )
            raise gate.refuse(request, "record", run_id, text)


def _concerns_record() -> bool:
    """Whether a request may name a complete record, or one of the tags of a record."""
    return _may_name() or _names_complete_record()


def _names_complete_record() -> bool:
    from flask import request as asked

    named = {found.decode() for found in _RUN_ID.findall(asked.get_data(cache=True))}
    engine = getattr(handlers._get_tracking_store(), "engine", None)
    if not named or len(named) > MOST_IDS or engine is None:
        return True
    from mlflow.store.tracking.dbmodels.models import SqlTag
    from sqlalchemy import select

    known = select(SqlTag.key).where(SqlTag.run_uuid.in_(named), SqlTag.key.in_(COMPLETE))
    with engine.connect() as connection:
        return connection.execute(known.limit(1)).first() is not None


def _complete_record(gate: Gate, run_id: str) -> Any:
    """Return the run with this id if it is a complete record, or None."""
    run: Any = exists(gate.stores.get_run, run_id) if run_id else None
    return run if run is not None and _is_complete(run) else None


def _is_complete(run: Any) -> bool:
    tags = run.data.tags
    return is_record(run.info.run_id, tags) and any(key in tags for key in COMPLETE)


def _check_metrics(gate: Gate, request: Request, run: Any, metrics: Iterable[Any]) -> None:
    for metric in metrics:
        # clients repeat requests that were not answered
        before = gate.stores.get_metric_history(run.info.run_id, metric.key)
        same = (metric.timestamp, metric.step, repr(metric.value))  # NaN is not equal to itself
        if same not in {(m.timestamp, m.step, repr(m.value)) for m in before}:
            raise _refuse_write(gate, request, run, f"the metric {metric.key!r}")


def _check_parameters(gate: Gate, request: Request, run: Any, parameters: Iterable[Any]) -> None:
    for parameter in parameters:
        if parameter.key not in run.data.params:  # MLflow keeps those that are there
            raise _refuse_write(gate, request, run, f"the parameter {parameter.key!r}")


def _check_shown(
    gate: Gate, request: Request, run: Any, asked: Iterable[tuple[str, str | None]]
) -> None:
    """Let a complete record get only the tags that a later audit and a gate write to it."""
    known = run.data.tags
    names = {folded(key).strip() for key in known}
    for key, value in asked:
        # clients repeat requests that were not answered
        same = folded(key).strip() not in names if value is None else value == known.get(key)
        if not same and key not in ONCE and not _is_shown(gate, run, key, value):
            raise _refuse_write(gate, request, run, f"the tag {key!r}", removes=value is None)


def _is_shown(gate: Gate, run: Any, key: str, value: str | None) -> bool:
    """Whether a tag is one that a later audit, a gate or the view of all audits writes."""
    known = run.data.tags
    if key == VERDICT:
        return True  # `_check_verdict` has checked its value
    if value is None:
        return False
    if key == STATUS and value == CURRENT:
        return STATUS not in known
    if key == STATUS:
        return value == SUPERSEDED and SUPERSEDED_BY in known
    if key == SUPERSEDES:
        return _LIST_OF_RUNS.fullmatch(value) is not None
    if key == SUPERSEDED_BY:
        return value != run.info.run_id and _is_audit_of(gate, value, known.get(SUBJECT, ""))
    if key == NOTE:
        text, matched = _SUPERSEDED_NOTE.subn("", value, count=1)
        return matched == 1 and text == _SUPERSEDED_NOTE.sub("", known.get(NOTE, ""), count=1)
    if key == NAME:
        name = str(run.info.run_name)
        marked = name.endswith(SUPERSEDED) or SUPERSEDED_BY not in known
        return not marked and value == f"{name} {SUPERSEDED}"[:LONGEST_NAME]
    return key == COLOUR


def _refuse_write(
    gate: Gate, request: Request, run: Any, what: str, *, removes: bool = False
) -> MlflowException:
    text = (
        f"run {run.info.run_id} is the complete record of an audit, a commitment or an attestation, which "
        f"must not change, so it cannot {'lose' if removes else 'get'} {what}. Audit again instead."
    )
    return gate.refuse(request, "record", run.info.run_id, text)


def _refuse_restoration(gate: Gate, request: Request, run_id: str, what: str) -> MlflowException:
    text = (
        f"{what} cannot be restored, because run {run_id} is the deleted record of an audit, a commitment "
        "or an attestation; audit again, or ask the server's administrator."
    )
    return gate.refuse(request, "record", run_id, text)


# --- Tags


def check_new_run(gate: Gate, request: Request) -> After | None:
    """Refuse a new run with a tag key that a database may treat as that of a record."""
    if _may_name():
        asked = handlers._get_request_message(messages.CreateRun())
        for tag in asked.tags:
            _check_spelling(gate, request, "a new run", tag.key)
            if tag.key == VERDICT:
                raise _refuse_verdict(gate, request, "a new run")
    return None


def _may_name() -> bool:
    from flask import request as asked

    return _MAY_NAME.search(asked.get_data(cache=True)) is not None


def _check(gate: Gate, request: Request, run_id: str, asked: list[tuple[str, str | None]]) -> None:
    wanted = [(key, value) for key, value in asked if _identity_tag(key)]
    odd = [key for key, _ in asked if not is_plain(key) and not tracking_is_exact()]
    run: Any = exists(gate.stores.get_run, run_id) if run_id and asked else None
    if run is None:
        return
    own, tags = run.info.run_id, dict(run.data.tags)
    if odd and is_record(own, tags):
        raise _refuse_spelling(gate, request, odd[0], f"run {own}")
    for key, value in asked:
        if value is not None:
            _check_spelling(gate, request, f"run {own}", key)
            if key == VERDICT:
                _check_verdict(gate, request, own, value)
    if _is_complete(run):
        _check_shown(gate, request, run, asked)
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
        others = {AUDIT, EVIDENCE, *OTHER_KINDS} - kinds
        return any(other in tags for other in others)
    return key in (AUDIT, EVIDENCE) and any(other in tags for other in OTHER_KINDS)


def _identity_tag(key: str) -> str:
    """Return the tag in `ONCE` that a database may treat as equal to a key, or ""."""
    plain = folded(key).strip()
    return plain if plain in ONCE else ""


def _check_verdict(gate: Gate, request: Request, run_id: str, value: str) -> None:
    """Let a run show only the verdict that a guarded version of its model shows at this moment.

    The server has checked that one; see `Gate.check_verdict`. A gate writes it to the version first.
    """
    found = []
    if VERDICT_TAG.fullmatch(value):
        for key in ("run_id", "tags.`b3.audit_run_id`"):
            filters = f"{key} = '{run_id}'"
            found += gate.stores.search_model_versions(filters, max_results=MOST_VERSIONS)
    shown = {v.tags.get(VERDICT) for v in found if gate.applies_to(v.name)}
    if value not in shown:
        raise _refuse_verdict(gate, request, f"run {run_id}")


def _refuse_verdict(gate: Gate, request: Request, what: str) -> MlflowException:
    text = (
        f"the tag {VERDICT!r} of {what} must be the verdict that a guarded version of its model shows; gates "
        "write it."
    )
    return gate.refuse(request, "run tag", VERDICT, text)


def _check_spelling(gate: Gate, request: Request, run: str, key: str) -> None:
    """Refuse a key that a database may treat as that of a record although it differs."""
    name = _identity_tag(key) or (VERDICT if folded(key).strip() == VERDICT else "")
    if not name and not is_plain(key) and not tracking_is_exact():
        name = equal_tag_key(key, (*ONCE, VERDICT)) or ""
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
            _keep_verdict_off(gate, request, "a new LoggedModel", tag.key)
            if _identity_tag(tag.key) == AUDIT:
                raise _refuse_wrong_audit(gate, request, "a new LoggedModel", tag.value)
    return None


def _keep_verdict_off(gate: Gate, request: Request, model: str, key: str) -> None:
    """Refuse a verdict on a LoggedModel: gates judge registered versions."""
    if folded(key).strip() == VERDICT:
        text = f"the tag {key!r} of {model} is refused: gates judge registered versions."
        raise gate.refuse(request, "model tag", key, text)


def check_logged_model_tags(gate: Gate, request: Request) -> After | None:
    """Let a LoggedModel name only an audit of its own."""
    if not _may_name():
        return None
    asked = handlers._get_request_message(messages.SetLoggedModelTags())
    model_id = _model_in_request()
    for tag in asked.tags:
        _keep_verdict_off(gate, request, model_id, tag.key)
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
