"""Checks of the registry's routes, under the names that `routes` gives them.

Each is called before MLflow's handler, with the gate and the request. It raises to refuse the request,
and returns a function to call after the handler, or None.
"""

from collections.abc import Callable, Iterable
from typing import Any

from mlflow.exceptions import MlflowException
from mlflow.protos import model_registry_pb2 as messages
from mlflow.server import handlers

from mlflow_b3.errors import EvidenceError
from mlflow_b3.evidence.policy import folded
from mlflow_b3.evidence.verdict import Verdict
from mlflow_b3.gating.gate import champion_of
from mlflow_b3.gating.server.gate import Gate, Request, is_ours, ours
from mlflow_b3.gating.server.stores import (
    Guarded,
    exists,
    guarded_versions,
    is_only_prompts,
    is_plain,
    registry_is_exact,
    versions_of,
)
from mlflow_b3.tracking.shown_on_models import VERDICT

#: Called after MLflow's handler, also if that failed, because it may have changed something first. It
#: raises to refuse the request after all.
After = Callable[[], None]
Check = Callable[[Gate, Request], After | None]


def _parsed(message: Any) -> Any:
    """Read the request exactly as MLflow's handler will, which accepts several forms of JSON."""
    return handlers._get_request_message(message)


def check_alias(gate: Gate, request: Request) -> After | None:
    """Let a version have a guarded alias only if it passes, also after the request."""
    asked = _parsed(messages.SetRegisteredModelAlias())
    _check_alias_spelling(gate, request, asked.name, asked.alias)
    if not gate.policy.guards_alias(asked.alias):
        return None
    version = gate.stores.get_model_version(asked.name, asked.version)
    if not gate.applies_to(version.name) or is_only_prompts(gate.stores, version):
        return None
    name, number, alias = version.name, str(version.version), asked.alias
    before = gate.stores.get_registered_model(name).aliases.get(alias)
    gate.admit(request, "alias", alias, gate.judge(name, number))

    def after() -> None:
        verdict = gate.judge(name, number)
        if not verdict.allowed:
            _restore_alias(gate, name, alias, number, before)
            gate.take_back(request, "alias", alias, verdict)

    return after


def _check_alias_spelling(gate: Gate, request: Request, name: str, alias: str) -> None:
    """Refuse an alias that a database with a collation may treat as equal to a guarded one."""
    if is_plain(alias) or registry_is_exact() or not gate.applies_to(_name(gate, name)):
        return
    text = (
        f"this server's database may treat the alias {alias!r} of {name!r} as equal to a guarded one; "
        "write it in ASCII letters, digits, '-' and '_'."
    )
    raise gate.refuse(request, "alias", alias, text, model=name)


def _restore_alias(gate: Gate, name: str, alias: str, ours: str, before: Any) -> None:
    """Point an alias back to its earlier version, unless somebody has moved it meanwhile.

    If that is the version that no longer passes, delete the alias.
    """
    now = gate.stores.get_registered_model(name).aliases.get(alias)
    if now is not None and str(now) != ours:
        return
    if before is not None and str(before) != ours:
        gate.stores.set_registered_model_alias(name, alias, str(before))
    elif now is not None:
        gate.stores.delete_registered_model_alias(name, alias)


def withdraw(gate: Gate, guarded: Guarded) -> None:
    """Remove the guarded aliases and stage of a version."""
    name, number = guarded.name, guarded.number
    for alias in guarded.aliases:
        gate.stores.delete_registered_model_alias(name, alias)
    if guarded.stage is not None:
        gate.stores.transition_model_version_stage(name, number, "None", False)


def check_stage(gate: Gate, request: Request) -> After | None:
    """Let a version enter a guarded stage only if it passes, also after the request."""
    asked = _parsed(messages.TransitionModelVersionStage())
    if not gate.policy.guards_stage(asked.stage):
        return None
    version = gate.stores.get_model_version(asked.name, asked.version)
    if not gate.applies_to(version.name) or is_only_prompts(gate.stores, version):
        return None
    name, number, stage = version.name, str(version.version), asked.stage
    before = {str(found.version): found.current_stage for found in versions_of(gate.stores, name)}
    gate.admit(request, "stage", stage, gate.judge(name, number))

    def after() -> None:
        verdict = gate.judge(name, number)
        if not verdict.allowed:
            for found in versions_of(gate.stores, name):
                earlier = before.get(str(found.version), found.current_stage)
                if str(found.version) == number and gate.policy.guards_stage(earlier):
                    earlier = "None"
                if earlier != found.current_stage:  # including versions that it replaced
                    gate.stores.transition_model_version_stage(name, found.version, earlier, False)
            gate.take_back(request, "stage", stage, verdict)

    return after


def check_rename(gate: Gate, request: Request) -> After | None:
    """Let a model have a guarded name only if its aliases, stages and tags are allowed there."""
    asked = _parsed(messages.RenameRegisteredModel())
    model = gate.stores.get_registered_model(asked.name)
    old, new = model.name, asked.new_name
    if old != new:
        _keep_champion(gate, request, old, renamed=True)
    if not gate.applies_to(new):
        return None
    carried = [found.number for found in guarded_versions(gate.stores, gate.policy, old)]
    if not gate.applies_to(old):
        _check_carried_tags(gate, request, model, new)
    for number in carried:
        gate.admit(request, "rename", new, gate.judge(old, number, new))

    def after() -> None:
        found = exists(gate.stores.get_registered_model, new)
        if found is None or found.creation_timestamp != model.creation_timestamp:
            return  # MLflow refused: another model has that name
        for guarded in list(guarded_versions(gate.stores, gate.policy, new)):
            verdict = gate.judge(new, guarded.number)
            if not verdict.allowed:  # an alias may have been set during the renaming
                _rename_back(gate, new, old)
                gate.take_back(request, "rename", new, verdict)

    return after


def _rename_back(gate: Gate, new: str, old: str) -> None:
    """Give a model its old name again; if that is taken, remove its guarded aliases and stages."""
    try:
        gate.stores.rename_registered_model(new, old)
    except MlflowException:
        for guarded in list(guarded_versions(gate.stores, gate.policy, new)):
            if not gate.judge(new, guarded.number).allowed:
                withdraw(gate, guarded)


def _check_carried_tags(gate: Gate, request: Request, model: Any, new: str) -> None:
    wrong = sorted(key for key in model.tags if is_ours(key))
    if wrong:
        raise gate.refuse(request, "rename", new, _model_tags(wrong), model=model.name)
    for found in versions_of(gate.stores, model.name):
        version = gate.stores.get_model_version(model.name, str(found.version))
        tags = {key: value for key, value in version.tags.items() if is_ours(key)}
        uri = f"models:/{version.name}/{version.version}"

        def judged(name: str = version.name, number: Any = version.version) -> Verdict:
            return gate.judge(name, number, new)

        _check_tags(
            *(gate, request, "rename", new, uri, tags, None, version.name, version.version),
            judged=judged,
        )


def check_new_version(gate: Gate, request: Request) -> After | None:
    """Let a new version, such as a copy, have an audit's tags only if they agree with its evidence."""
    asked = _parsed(messages.CreateModelVersion())
    tags = ours(asked.tags)
    if tags and gate.applies_to(_name(gate, asked.name)):
        copied = _copied_version(gate, asked.source)
        shown = None if copied is None else copied.tags.get("b3.audit_run_id")

        def judged() -> Verdict | None:
            return None if copied is None else gate.judge(copied.name, copied.version, asked.name)

        _check_tags(
            *(gate, request, "new version", None, asked.source, tags, shown, asked.name),
            judged=judged,
        )
    return None


def _copied_version(gate: Gate, source: str) -> Any:
    """Return the version that is being copied; None if the source is not a version."""
    from mlflow.store.artifact.utils.models import get_model_name_and_version

    if not source.startswith("models:/"):
        return None
    found = get_model_name_and_version(gate.stores, source)
    return None if len(found) == 1 else gate.stores.get_model_version(*map(str, found))


def check_version_tag(gate: Gate, request: Request) -> After | None:
    """Let an audit's tag be set only if it agrees with the audit's evidence."""
    asked = _parsed(messages.SetModelVersionTag())
    if not is_ours(asked.key):
        return None
    version = gate.stores.get_model_version(asked.name, asked.version)
    if not gate.applies_to(version.name):
        return None
    shown = version.tags.get("b3.audit_run_id")
    tags = {asked.key: asked.value}
    if asked.key not in ("b3.audit_run_id", VERDICT) and shown is not None:
        tags["b3.audit_run_id"] = shown
    uri = f"models:/{version.name}/{version.version}"
    number = version.version
    _check_tags(
        *(gate, request, "tag", asked.key, uri, tags, shown, version.name, number),
        judged=lambda: gate.judge(version.name, number),
    )
    return None


def _check_tags(
    gate: Gate,
    request: Request,
    event: str,
    target: str | None,
    uri: str,
    tags: dict[str, str],
    shown: str | None,
    model: str,
    version: Any = None,
    *,
    judged: Callable[[], Verdict | None],
) -> None:
    """Refuse tags that contradict the audit or, for `b3.verdict`, this gate's verdict."""
    if not tags:
        return
    odd = _explain_spelling(tags)
    if odd is not None:
        raise gate.refuse(request, event, target, odd, model=model, version=version)
    try:
        gate.check_tags(uri, tags, shown)
        if VERDICT in tags:
            verdict = judged()
            if verdict is None:
                raise EvidenceError(f"a version that has not been judged cannot have {VERDICT!r}")
            gate.check_verdict(tags[VERDICT], verdict)
    except EvidenceError as error:
        text = (
            f"the tags {', '.join(sorted(tags))} of {model!r}, which audits and gates write, are "
            f"refused: {error}."
        )
        raise gate.refuse(request, event, target, text, model=model, version=version) from error


def check_version_tag_removal(gate: Gate, request: Request) -> After | None:
    """Keep an audit's tags from being removed; a gate's verdict may be."""
    asked = _parsed(messages.DeleteModelVersionTag())
    if asked.key == VERDICT:
        return None
    if is_ours(asked.key) and gate.applies_to(_name(gate, asked.name)):
        text = _explain_spelling([asked.key]) or (
            f"the tag {asked.key!r} of {asked.name!r} version {asked.version} belongs to an audit and "
            "cannot be removed; a new audit replaces it, and registering the model again gives a "
            "version without it."
        )
        raise gate.refuse(request, "tag", asked.key, text, model=asked.name, version=asked.version)
    return None


def check_model_tag(gate: Gate, request: Request) -> After | None:
    """Refuse an audit's tag on a registered model: audits are of versions."""
    asked = _parsed(messages.SetRegisteredModelTag())
    if is_ours(asked.key) and gate.applies_to(_name(gate, asked.name)):
        raise gate.refuse(request, "tag", asked.key, _model_tags([asked.key]), model=asked.name)
    return None


def check_model_tag_removal(gate: Gate, request: Request) -> After | None:
    """Keep such a tag from being removed."""
    asked = _parsed(messages.DeleteRegisteredModelTag())
    if is_ours(asked.key) and gate.applies_to(_name(gate, asked.name)):
        raise gate.refuse(request, "tag", asked.key, _model_tags([asked.key]), model=asked.name)
    return None


def check_new_model(gate: Gate, request: Request) -> After | None:
    """Refuse a new registered model with such tags."""
    asked = _parsed(messages.CreateRegisteredModel())
    wrong = sorted(ours(asked.tags))
    if wrong and gate.applies_to(asked.name):
        raise gate.refuse(request, "tag", ", ".join(wrong), _model_tags(wrong), model=asked.name)
    return None


def _model_tags(keys: list[str]) -> str:
    return _explain_spelling(keys) or (
        f"the tags {', '.join(keys)} belong to audits, and audits are of versions, not of registered "
        "models."
    )


def _explain_spelling(keys: Iterable[str]) -> str | None:
    """Return why a database's collation forbids some keys; None if all keys can be used."""
    odd = sorted(key for key in keys if not is_plain(key) and not registry_is_exact())
    if not odd:
        return None
    return (
        f"this server's database may treat the tag keys {', '.join(map(repr, odd))} as equal to those "
        "of an audit; write them in ASCII."
    )


def check_alias_removal(gate: Gate, request: Request) -> After | None:
    """Keep the champion while the policy compares new versions with it."""
    asked = _parsed(messages.DeleteRegisteredModelAlias())
    _check_alias_spelling(gate, request, asked.name, asked.alias)
    _keep_champion(gate, request, asked.name, alias=asked.alias)
    return None


def check_version_removal(gate: Gate, request: Request) -> After | None:
    """Keep the champion while the policy compares new versions with it."""
    asked = _parsed(messages.DeleteModelVersion())
    _keep_champion(gate, request, asked.name, version=asked.version)
    return None


def check_model_removal(gate: Gate, request: Request) -> After | None:
    """Keep the champion while the policy compares new versions with it."""
    asked = _parsed(messages.DeleteRegisteredModel())
    _keep_champion(gate, request, asked.name)
    return None


def _keep_champion(
    gate: Gate,
    request: Request,
    name: str,
    alias: str | None = None,
    version: str | None = None,
    *,
    renamed: bool = False,
) -> None:
    """Refuse to remove the champion: without one, any version could become it."""
    policy = gate.policy
    if policy.champion is None or not gate.applies_to(_name(gate, name)):
        return
    if alias is not None and folded(alias) != folded(policy.champion_alias):
        return
    champion = exists(champion_of, gate.stores, name, policy.champion_alias)
    if champion is None or (version is not None and int(version) != int(champion.version)):
        return
    text = (
        f"{name!r} version {champion.version} has the alias {policy.champion_alias!r}, and the policy "
        "compares new versions with it; give the alias to another version first."
    )
    if alias is not None:
        text = text.replace("give", "instead of removing it, give").replace(" first.", ".")
    if renamed:
        text = text.partition(";")[0] + "; the model cannot be renamed."
    raise gate.refuse(request, "champion", alias, text, model=name, version=champion.version)


def _name(gate: Gate, name: str) -> str:
    """Return a registered model's name as the database has it, which may differ in case."""
    model = exists(gate.stores.get_registered_model, name)
    return name if model is None else str(model.name)
