"""The checks of routes that write to runs and LoggedModels: what a record says of itself is kept.

A record is the run of an audit, of a commitment or of an attestation. Gates find the records of a
model by their tags, which MLflow lets everybody change, and read the files in their folder `b3`.
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
#: Tags that make a run with a subject something else than an audit.
OTHER_KINDS = (COMMITMENT, ATTESTS, ATTESTATION)
#: Tags after which the files of a record are complete.
COMPLETE = (EVIDENCE, COMMITMENT, ATTESTATION)
#: What the names of an audit's metrics begin with.
METRICS = ("b3/", "b3_curve/")
#: What a body must contain to name one of them: as it is, escaped, or in letters and encodings other
#: than ASCII. All others are not even parsed.
_MAY_NAME = re.compile(rb"[bB]3[./_\\]|\\u|[\x00\x80-\xff]")
#: The folder of a record's files, in every artifact store, behind the id of its run.
_RECORD_FILES = re.compile(rf"/([0-9a-f]{{32}})/artifacts/{FOLDER}(?:/|$)")


def is_record(run_id: str, tags: Mapping[str, str]) -> bool:
    """Whether a run is that of an audit, begun or complete, of a commitment or of an attestation.

    The run that trained a model shows the latest audit of it, by the same tags, and is none.
    """
    if any(key in tags for key in OTHER_KINDS):
        return True
    return SUBJECT in tags and tags.get(AUDIT, run_id) == run_id


# --- tags -----------------------------------------------------------------------------------------


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
    """Keep tags and metrics of a record from being changed among others."""
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
        # clients repeat what was not answered; NaN is repeated as NaN
        same = key in known and (known[key] == value or (isnan(known[key]) and isnan(value)))
        if is_record(own, run.data.tags) and not same:
            text = (
                f"the metric {key!r} of run {own} is a result of an audit that is complete, and is "
                "kept. Audit again instead."
            )
            raise gate.refuse(request, "run metric", key, text)


def check_new_run(gate: Gate, request: Request) -> After | None:
    """Let a new run have tags of a record only under keys that mean the same to every database."""
    if _may_name():
        asked = handlers._get_request_message(messages.CreateRun())
        for tag in asked.tags:
            _check_spelling(gate, request, "a new run", tag.key)
    return None


def _may_name() -> bool:
    from flask import request as asked

    return _MAY_NAME.search(asked.get_data(cache=True)) is not None


def _check(gate: Gate, request: Request, run_id: str, asked: list[tuple[str, str | None]]) -> None:
    wanted = [(key, value) for key, value in asked if _once(key)]
    odd = [key for key, _ in asked if not is_plain(key) and not tracking_is_exact()]
    run: Any = exists(gate.stores.get_run, run_id) if wanted or odd else None
    if run is None:
        return
    own, tags = run.info.run_id, dict(run.data.tags)
    if odd and is_record(own, tags):
        raise _refused_letters(gate, request, odd[0], f"run {own}")
    for key, value in asked:
        if value is not None:
            _check_spelling(gate, request, f"run {own}", key)
    tags = {_once(key) or key: value for key, value in tags.items()}
    if tags.get(AUDIT, own) != own:
        return  # it shows the audits of its model, one after the other, and is no record itself
    begun = SUBJECT in tags
    for key, value in ((_once(key), value) for key, value in wanted):
        if value == tags.get(key):
            continue  # clients repeat what was not answered
        if key in tags or (begun and _changes_kind(key, value, own, tags)) or _both(key, tags):
            raise _written_once(gate, request, key, own)
        if value is not None:
            tags[key] = value


def _changes_kind(key: str, value: str | None, own: str, tags: Mapping[str, str]) -> bool:
    """Whether a tag would make something else of a run that already has a subject.

    A commitment or an attestation says what it is before it has a subject, or together with it.
    """
    if key == AUDIT:
        return value != own
    if key == ATTESTATION:
        return ATTESTS not in tags
    return key in OTHER_KINDS


def _both(key: str, tags: Mapping[str, str]) -> bool:
    """Whether a run would be an audit and something else at once."""
    if key in OTHER_KINDS:
        kinds = {COMMITMENT} if key == COMMITMENT else {ATTESTS, ATTESTATION}
        return AUDIT in tags or any(k in tags for k in OTHER_KINDS if k not in kinds)
    return key == AUDIT and any(other in tags for other in OTHER_KINDS)


def _once(key: str) -> str:
    """Return which of the tags a key is, in any form that a database takes for the same; or ""."""
    plain = folded(key).strip()
    return plain if plain in ONCE else ""


def _check_spelling(gate: Gate, request: Request, run: str, key: str) -> None:
    """Refuse a key that a database may take for one of a record without being it."""
    name = _once(key)
    if not name and not is_plain(key) and not tracking_is_exact():
        name = equal_tag_key(key, ONCE) or ""
    if name and key != name:
        raise _refused_letters(gate, request, key, run)


def _refused_letters(gate: Gate, request: Request, key: str, run: str) -> MlflowException:
    text = (
        f"the tag key {key!r} of {run} is one that a database may take for the key of an audit, "
        "which is written by audits only; write other keys in ASCII, and not like 'b3.subject'."
    )
    return gate.refuse(request, "run tag", key, text)


def _written_once(gate: Gate, request: Request, key: str, run_id: str) -> MlflowException:
    text = (
        f"the tag {key!r} of run {run_id} says which record it is: it is written once, by the audit, "
        "commitment or attestation, and kept. Audit again instead."
    )
    return gate.refuse(request, "run tag", key, text)


# --- removal ----------------------------------------------------------------------------------------


def check_run_removal(gate: Gate, request: Request) -> After | None:
    """Keep records from being deleted."""
    asked = handlers._get_request_message(messages.DeleteRun())
    run = exists(gate.stores.get_run, asked.run_id)
    if run is not None and is_record(run.info.run_id, run.data.tags) and not _is_twin(gate, run):
        raise _record_is_kept(gate, request, run.info.run_id, f"run {run.info.run_id}")
    return None


def check_experiment_removal(gate: Gate, request: Request) -> After | None:
    """Keep experiments that contain records from being deleted."""
    asked = handlers._get_request_message(messages.DeleteExperiment())
    if exists(gate.stores.get_experiment, asked.experiment_id) is not None:
        _keep_experiment(gate, request, asked.experiment_id)
    return None


def check_demo(gate: Gate, request: Request) -> After | None:
    """Keep records and guarded aliases from MLflow's demo, which knows its own data by name only.

    It deletes the experiment of its name, in which anybody may have put a record, and gives aliases
    to versions of its prompts, among which anybody may have registered a model.
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
                f"MLflow's demo would give aliases to versions of {name!r}, which is no prompt; "
                "rename that model first."
            )
            raise gate.refuse(request, "demo", name, text, model=name)

    def after() -> None:
        refused = None
        for name in _registered(gate, names):
            for guarded in list(guarded_versions(gate.stores, gate.policy, name)):
                verdict = gate.judge(name, guarded.number)
                if not verdict.allowed:  # a model was registered while the demo was made
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
            raise _record_is_kept(gate, request, run.info.run_id, what)


def _is_twin(gate: Gate, run: Any) -> bool:
    """Whether a run was made by a request that MLflow's client has repeated, and is not used.

    The run that is used has been recorded before its twins are removed.
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
    """Give the runs of some experiments that have one of some tags, deleted ones too."""
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


def _record_is_kept(gate: Gate, request: Request, run_id: str, what: str) -> MlflowException:
    text = (
        f"{what} is kept, because run {run_id} is the record of an audit, a commitment or an "
        "attestation. Gates count these, also those that failed."
    )
    return gate.refuse(request, "record", run_id, text)


# --- files -------------------------------------------------------------------------------------------


def names_record(places: Iterable[str]) -> bool:
    """Whether one of some places may be among the files of a record."""
    return any(_RECORD_FILES.search(place.casefold()) for place in places)


def check_record_files(
    gate: Gate, request: Request, path: str, places: frozenset[str], *, removes: bool
) -> None:
    """Keep the files of complete records, also from being removed with a folder above them."""
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
                "attestation, which are kept as they are. Audit again instead."
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


# --- LoggedModels ------------------------------------------------------------------------------------


def check_new_logged_model(gate: Gate, request: Request) -> After | None:
    """Let no LoggedModel begin with the tag of an audit: there is none yet."""
    if _may_name():
        asked = handlers._get_request_message(messages.CreateLoggedModel())
        for tag in asked.tags:
            if _once(tag.key) == AUDIT:
                raise _no_audit_of_model(gate, request, "a new LoggedModel", tag.value)
    return None


def check_logged_model_tags(gate: Gate, request: Request) -> After | None:
    """Let a LoggedModel name an audit of its own only."""
    if not _may_name():
        return None
    asked = handlers._get_request_message(messages.SetLoggedModelTags())
    model_id = _model_in_request()
    for tag in asked.tags:
        if _once(tag.key) == AUDIT and not (
            tag.key == AUDIT and _is_audit_of(gate, tag.value, model_id)
        ):
            raise _no_audit_of_model(gate, request, model_id, tag.value)
    return None


def check_logged_model_tag_removal(gate: Gate, request: Request) -> After | None:
    """Keep the tag by which a LoggedModel names its audit."""
    from flask import request as asked

    key, model_id = str((asked.view_args or {}).get("tag_key", "")), _model_in_request()
    if _once(key) != AUDIT:
        return None
    model = exists(gate.stores.get_logged_model, model_id)
    named = None if model is None else model.tags.get(AUDIT)
    if named is not None and _is_audit_of(gate, named, model_id):
        text = (
            f"the tag {key!r} of {model_id} names its audit, and is kept; a new audit replaces it."
        )
        raise gate.refuse(request, "model tag", key, text)
    return None


def check_logged_model_removal(gate: Gate, request: Request) -> After | None:
    """Keep a LoggedModel that a guarded version is made of."""
    model_id = _model_in_request()
    for guarded in gate.guards.made_of(model_id):
        text = (
            f"{model_id} is kept: {guarded.name!r} version {guarded.number}, which is under "
            f"{guarded.words}, is made of it. Take these away first."
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


def _no_audit_of_model(gate: Gate, request: Request, model: str, value: str) -> MlflowException:
    text = (
        f"the tag {AUDIT!r} of {model} must name the run of an audit of it, which {value!r} is not."
    )
    return gate.refuse(request, "model tag", AUDIT, text)
