"""`judge_version`: from a registered version and a policy to a verdict."""

from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from os import PathLike, environ
from typing import Any

from mlflow_b3.errors import EvidenceError, InputError, TrackingError
from mlflow_b3.gating.archive import Archive, find_audit_of
from mlflow_b3.gating.champion import CHECK, judge_champion
from mlflow_b3.gating.keys import trusted_keys
from mlflow_b3.gating.policy import Policy, folded, load_policy
from mlflow_b3.gating.policy_values import TRAINING
from mlflow_b3.gating.verdict import (
    FAIL,
    INCONCLUSIVE,
    NOT_APPLICABLE,
    PASS,
    Reason,
    Verdict,
    conclude_reasons,
    is_allowed,
    judge_evidence,
    judge_results,
)
from mlflow_b3.refit.loading import registered_version
from mlflow_b3.refit.training_table import training_datasets
from mlflow_b3.reporting.report import AuditReport
from mlflow_b3.tracking.issuing import POLICY
from mlflow_b3.tracking.versions import VERDICT


def gate(
    model: str,
    policy: Policy | str | PathLike[str] | None = None,
    *,
    promote: str | None = None,
) -> Verdict:
    """Judge whether a registered version may be promoted, and promote it if it may.

    The verdict is written to the tag `b3.verdict` of the version and of the run that trained it, with
    the policy and the time, where the caller may write there.

    Parameters
    ----------
    model : str
        "models:/name/3", or "models:/name@alias".
    policy : Policy or path, optional
        A YAML file; by default the one that MLFLOW_B3_POLICY names, or else the policy that comes
        with the package.
    promote : str, optional
        The alias to give to the version where the verdict allows it.

    Returns
    -------
    Verdict
        PASS, FAIL, INCONCLUSIVE or NOT_APPLICABLE, with every reason. Missing, stale, foreign or
        unreadable evidence is a FAIL.
    """
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException

    rules = policy_in_force(policy)
    archive = Archive(client=MlflowClient())
    try:
        found = registered_version(model) if isinstance(model, str) else None
        if found is None:
            raise InputError(
                f"model={model!r} is not a registered version; gates judge 'models:/name/3' or "
                "'models:/name@alias'."
            )
        name, version = found
        archive.client.get_model_version(name, version)
        verdict = judge_version(archive, rules, name, version)
        if promote is not None and verdict.allowed:
            verdict = _promote(archive, rules, verdict, promote)
        _write_down(archive.client, verdict)
        return verdict
    except MlflowException as error:
        raise TrackingError(f"model={model!r}: {error}") from error


def _write_down(client: Any, verdict: Verdict) -> None:
    """Tag the version and its run with a verdict; who may only read gets the verdict all the same."""
    from mlflow.exceptions import MlflowException

    if verdict.outcome == NOT_APPLICABLE:
        return
    text = verdict_tag(verdict)
    with suppress(MlflowException):
        client.set_model_version_tag(verdict.model, verdict.version, VERDICT, text)
        run_id = client.get_model_version(verdict.model, verdict.version).run_id
        if run_id:
            client.set_tag(run_id, VERDICT, text)


def verdict_tag(verdict: Verdict) -> str:
    """Return a verdict as a tag: what was decided, by which policy, and when."""
    return f"{verdict.outcome}, policy {verdict.policy_hash[:12]}, {verdict.judged_at}"


def policy_in_force(policy: Policy | str | PathLike[str] | None = None) -> Policy:
    """Return the policy that was given, that the environment names, or that comes with the package."""
    return load_policy(environ.get(POLICY) or None if policy is None else policy)


def judge_version(
    archive: Archive, policy: Policy, name: str, version: str, *, now: datetime | None = None
) -> Verdict:
    """Judge a registered version; whatever goes wrong on the way is a reason to fail."""
    when = now or datetime.now(UTC)
    audit_run_id = None
    if not policy.applies_to(name):
        text = f"the policy does not apply to the registered model {name!r}"
        reasons: tuple[Reason, ...] = (Reason(check="models", outcome=NOT_APPLICABLE, text=text),)
        return _verdict(NOT_APPLICABLE, True, reasons, name, version, policy, None, when)
    try:
        found = archive.client.get_model_version(name, version)
        trusted = trusted_keys(policy.trusted_keys)
        audit = find_audit_of(archive, found, trusted, signed=policy.signed)
        audit_run_id = audit.evidence.audit_run_id
        text = f"the evidence of run {audit_run_id} is of this model, and unchanged"
        reasons = (
            Reason(check="evidence", outcome=PASS, text=text),
            *judge_evidence(
                policy, audit.evidence, audit.signed_by, audit.tried, when, unsigned=audit.unsigned
            ),
            *judge_results(
                policy,
                audit.report,
                model=name,
                training_digests=_training_digests(archive, policy, name, audit.evidence.run_id),
            ),
            *_beside_champion(archive, policy, found, audit.report),
        )
    except EvidenceError as error:
        reasons = (Reason(check="evidence", outcome=FAIL, text=str(error)),)
    except Exception as error:
        text = f"the evidence could not be read: {type(error).__name__}: {error}"
        reasons = (Reason(check="evidence", outcome=FAIL, text=text),)
    outcome, allowed = conclude_reasons(reasons), is_allowed(policy, reasons)
    return _verdict(outcome, allowed, reasons, name, version, policy, audit_run_id, when)


def _verdict(
    outcome: str,
    allowed: bool,
    reasons: tuple[Reason, ...],
    name: str,
    version: str,
    policy: Policy,
    audit_run_id: str | None,
    when: datetime,
) -> Verdict:
    return Verdict(
        outcome=outcome,
        allowed=allowed,
        reasons=reasons,
        model=name,
        version=str(version),
        policy_hash=policy.hash,
        audit_run_id=audit_run_id,
        judged_at=when.isoformat(timespec="seconds"),
    )


def _training_digests(
    archive: Archive, policy: Policy, name: str, run_id: str | None
) -> frozenset[str] | None:
    """Return the digests of the datasets that a model's run logged, where a pin asks for them."""
    pin = policy.pin_for(name)
    if pin is None or TRAINING not in (pin.data or ()):
        return None
    if run_id is None:
        return frozenset()
    run = archive.client.get_run(run_id)
    return frozenset(dataset.digest for dataset in training_datasets(run))


def _beside_champion(
    archive: Archive, policy: Policy, version: Any, report: AuditReport
) -> tuple[Reason, ...]:
    if policy.champion is None:
        return ()
    champion = champion_of(archive.client, version.name, policy.champion_alias)
    if champion is None:
        text = f"no version has the alias {policy.champion_alias!r} yet"
        return (Reason(check=CHECK, outcome=PASS, text=text),)
    if str(champion.version) == str(version.version):
        return (Reason(check=CHECK, outcome=PASS, text="it is the champion itself"),)
    try:
        trusted = trusted_keys(policy.trusted_keys)
        theirs = find_audit_of(archive, champion, trusted, signed=policy.signed)
    except EvidenceError as error:
        text = f"the champion, version {champion.version}, has no evidence to compare with: {error}"
        return (Reason(check=CHECK, outcome=INCONCLUSIVE, text=text, waivable=True),)
    return (judge_champion(policy.champion, report, theirs.report),)


def champion_of(client: Any, name: str, alias: str) -> Any:
    """Return the version that an alias points at now, whatever its case; None where there is none."""
    aliases = client.get_registered_model(name).aliases
    alike = [version for other, version in aliases.items() if folded(other) == folded(alias)]
    version = aliases.get(alias, alike[0] if alike else None)
    return None if version is None else client.get_model_version(name, str(version))


def _promote(archive: Archive, policy: Policy, verdict: Verdict, alias: str) -> Verdict:
    """Give an alias to a version, and take it back if the version changed meanwhile."""
    from mlflow.exceptions import MlflowException

    client, name = archive.client, verdict.model
    before = client.get_registered_model(name).aliases.get(alias)
    try:
        client.set_registered_model_alias(name, alias, verdict.version)
    except MlflowException as error:
        if error.error_code != "PERMISSION_DENIED":
            raise
        return _refused(verdict, "server", f"the server refused the alias {alias!r}: {error}")
    if verdict.outcome != NOT_APPLICABLE and not unchanged(archive, policy, verdict):
        restore_alias(client, name, alias, verdict.version, before)
        text = f"the model or its evidence changed while it was promoted; {alias!r} was taken back"
        return _refused(verdict, "evidence", text)
    return replace(verdict, promoted=alias)


def _refused(verdict: Verdict, check: str, text: str) -> Verdict:
    reasons = (*verdict.reasons, Reason(check=check, outcome=FAIL, text=text))
    return replace(verdict, outcome=FAIL, allowed=False, reasons=reasons)


def unchanged(archive: Archive, policy: Policy, verdict: Verdict) -> bool:
    """Whether a version would still be judged as it was."""
    return judge_version(archive, policy, verdict.model, verdict.version).allowed


def restore_alias(client: Any, name: str, alias: str, given: Any, version: Any) -> None:
    """Let an alias that was given to one version point where it did; away, if it pointed nowhere.

    Where somebody has moved it on meanwhile, it is theirs.
    """
    if str(client.get_registered_model(name).aliases.get(alias)) != str(given):
        return
    if version is None:
        client.delete_registered_model_alias(name, alias)
    else:
        client.set_registered_model_alias(name, alias, str(version))
