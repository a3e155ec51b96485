"""`gate` and `verify`: judge a registered version by a policy, as text, JSON, Markdown or JUnit XML."""

import json
import re
import shlex
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from os import PathLike, environ
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from mlflow_b3.auditing.report import AuditReport
from mlflow_b3.data.table import read_table
from mlflow_b3.errors import EvidenceError, InputError, TrackingError
from mlflow_b3.evidence.document import (
    SignedEvidence,
    trusted_keys,
)
from mlflow_b3.evidence.policy import TRAINING, Policy, folded, load_policy
from mlflow_b3.evidence.verdict import (
    CHAMPION_CHECK,
    FAIL,
    INCONCLUSIVE,
    NOT_APPLICABLE,
    PASS,
    Proof,
    Reason,
    Results,
    Verdict,
    conclude_reasons,
    is_allowed,
    judge_champion,
    judge_evidence,
    judge_results,
)
from mlflow_b3.gating.archive import (
    Archive,
    find_audit_of,
    find_run,
    is_audited,
    named_audit,
    open_evidence,
)
from mlflow_b3.gating.checks import VERIFIED, Record, failed
from mlflow_b3.refit.loading import (
    registered_version,
    resolve_source,
    training_datasets,
)
from mlflow_b3.reporting.document import (
    Answer,
    Document,
    Paragraph,
    Section,
    Table,
    lists,
    to_card,
    to_markdown,
    to_text,
)
from mlflow_b3.reporting.phrases import LONGEST_NAME, shorten
from mlflow_b3.results import Result, visible
from mlflow_b3.tracking.audits import runs_of
from mlflow_b3.tracking.metrics_and_files import POLICY
from mlflow_b3.tracking.shown_on_models import VERDICT

if TYPE_CHECKING:
    from mlflow_b3.gating.attesting import Attestation


# --- `gate`: a verdict on a registered version


def gate(
    model: str,
    policy: Policy | str | PathLike[str] | None = None,
    *,
    promote: str | None = None,
) -> Verdict:
    """Decide whether a registered version may be promoted, and promote it on request.

    The verdict is written, with the policy and the time, to the tag `b3.verdict` of the version, of the
    run that trained it and of the audit's run, if the caller may write there.

    Parameters
    ----------
    model : str
        "models:/name/3", or "models:/name@alias".
    policy : Policy or path, optional
        A YAML file; by default the one that MLFLOW_B3_POLICY names, or else the default policy of the
        package.
    promote : str, optional
        The alias to give to the version if the verdict allows it.

    Returns
    -------
    Verdict
        PASS, FAIL, INCONCLUSIVE or NOT_APPLICABLE, with every reason. Missing, stale, foreign or
        unreadable evidence is a FAIL.

    Examples
    --------
    >>> import mlflow
    >>> import mlflow_b3 as b3
    >>> from sklearn.naive_bayes import GaussianNB
    >>> clinic = b3.make_clinic(patients=20, records=4)
    >>> X, y = clinic.frame.drop(columns=["disease", "patient_id"]), clinic.frame["disease"]
    >>> with mlflow.start_run():
    ...     logged = mlflow.sklearn.log_model(
    ...         GaussianNB().fit(X, y),
    ...         name="model",
    ...         registered_model_name="gated",
    ...         pip_requirements=["scikit-learn"],
    ...     )
    >>> verdict = b3.gate("models:/gated/1")
    >>> verdict.outcome, verdict.allowed
    ('FAIL', False)
    >>> "evidence" in [reason.check for reason in verdict.reasons]
    True
    """
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException

    rules = policy_in_force(policy)
    archive = Archive(client=MlflowClient())
    try:
        found = registered_version(model) if isinstance(model, str) else None
        if found is None:
            raise InputError(
                f"model={model!r} is not a registered version; give 'models:/name/3' or "
                "'models:/name@alias'."
            )
        name, version = found
        archive.client.get_model_version(name, version)
        verdict = judge_version(archive, rules, name, version)
        if promote is not None and verdict.allowed:
            verdict = _promote(archive, rules, verdict, promote)
        _tag_verdict(archive.client, verdict)
        return verdict
    except MlflowException as error:
        raise TrackingError(f"model={model!r}: {error}") from error


def _tag_verdict(client: Any, verdict: Verdict) -> None:
    """Tag the version and its run with a verdict, if the caller may write."""
    from mlflow.exceptions import MlflowException

    if verdict.outcome == NOT_APPLICABLE:
        return
    text = verdict_tag(verdict)
    with suppress(MlflowException):
        client.set_model_version_tag(verdict.model, verdict.version, VERDICT, text)
        run_id = client.get_model_version(verdict.model, verdict.version).run_id
        for run in filter(None, (run_id, verdict.audit_run_id)):
            client.set_tag(run, VERDICT, text)


def verdict_tag(verdict: Verdict) -> str:
    """Return a verdict as a tag: outcome, policy and time."""
    return f"{verdict.outcome}, policy {verdict.policy_hash[:12]}, {verdict.judged_at}"


def policy_in_force(policy: Policy | str | PathLike[str] | None = None) -> Policy:
    """Return the given policy, the one that the environment names, or the default policy."""
    return load_policy(environ.get(POLICY) or None if policy is None else policy)


def judge_version(
    archive: Archive, policy: Policy, name: str, version: str, *, now: datetime | None = None
) -> Verdict:
    """Judge a registered version; any error is a FAIL."""
    when = now or datetime.now(UTC)
    audit_run_id = None
    if not policy.applies_to(name):
        text = f"the policy does not apply to the registered model {name!r}"
        reasons: tuple[Reason, ...] = (Reason(check="models", outcome=NOT_APPLICABLE, text=text),)
        return make_verdict(NOT_APPLICABLE, True, reasons, name, version, policy, None, when)
    try:
        found = archive.client.get_model_version(name, version)
        trusted = trusted_keys(policy.trusted_keys)
        audit = find_audit_of(archive, found, trusted, signed=policy.signed)
        audit_run_id = audit.evidence.audit_run_id
        text = f"the evidence of run {audit_run_id} belongs to this model and is unchanged"
        reasons = (
            Reason(check="evidence", outcome=PASS, text=text),
            *judge_evidence(
                Proof(
                    policy=policy,
                    evidence=audit.evidence,
                    signed_by=audit.signed_by,
                    audits=audit.tried,
                    now=when,
                    unsigned=audit.unsigned,
                )
            ),
            *judge_results(
                Results(
                    policy=policy,
                    report=audit.report,
                    model=name,
                    training_digests=_training_digests(
                        archive, policy, name, audit.evidence.run_id
                    ),
                )
            ),
            *_compare_with_champion(archive, policy, found, audit.report),
        )
    except EvidenceError as error:
        reasons = (Reason(check="evidence", outcome=FAIL, text=str(error)),)
    except Exception as error:
        text = f"the evidence could not be read: {type(error).__name__}: {error}"
        reasons = (Reason(check="evidence", outcome=FAIL, text=text),)
    outcome, allowed = conclude_reasons(reasons), is_allowed(policy, reasons)
    return make_verdict(outcome, allowed, reasons, name, version, policy, audit_run_id, when)


def make_verdict(
    outcome: str,
    allowed: bool,
    reasons: tuple[Reason, ...],
    name: str,
    version: str,
    policy: Policy,
    audit_run_id: str | None,
    when: datetime,
) -> Verdict:
    """Return a verdict with the hash of its policy."""
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
    """Return the digests of the datasets that a model's run logged, if a pin requires them."""
    pin = policy.pin_for(name)
    if pin is None or TRAINING not in (pin.data or ()):
        return None
    if run_id is None:
        return frozenset()
    run = archive.client.get_run(run_id)
    return frozenset(dataset.digest for dataset in training_datasets(run))


def _compare_with_champion(
    archive: Archive, policy: Policy, version: Any, report: AuditReport
) -> tuple[Reason, ...]:
    if policy.champion is None:
        return ()
    champion = champion_of(archive.client, version.name, policy.champion_alias)
    if champion is None:
        text = f"no version has the alias {policy.champion_alias!r} yet"
        return (Reason(check=CHAMPION_CHECK, outcome=PASS, text=text),)
    if str(champion.version) == str(version.version):
        return (Reason(check=CHAMPION_CHECK, outcome=PASS, text="this version is the champion"),)
    trusted = trusted_keys(policy.trusted_keys)
    name = f"the champion, version {champion.version},"
    try:
        theirs = find_audit_of(archive, champion, trusted, signed=policy.signed)
        if policy.signed and theirs.signed_by is None:
            raise EvidenceError("its evidence is not signed")
    except EvidenceError as error:
        # else one could break the champion's evidence to have the comparison waived
        broken = is_audited(archive, champion, trusted, signed=policy.signed)
        words = "has evidence that is broken" if broken else "has no evidence to compare with"
        text = f"{name} {words}: {error}"
        reason = Reason(check=CHAMPION_CHECK, outcome=INCONCLUSIVE, text=text, waivable=not broken)
        return (reason,)
    return (judge_champion(policy.champion, report, theirs.report),)


def champion_of(client: Any, name: str, alias: str) -> Any:
    """Return the version that an alias points to, ignoring case, or None."""
    aliases = client.get_registered_model(name).aliases
    alike = [version for other, version in aliases.items() if folded(other) == folded(alias)]
    version = aliases.get(alias, alike[0] if alike else None)
    return None if version is None else client.get_model_version(name, str(version))


def _promote(archive: Archive, policy: Policy, verdict: Verdict, alias: str) -> Verdict:
    """Give an alias to a version; restore the alias if the version changed meanwhile."""
    from mlflow.exceptions import MlflowException

    client, name = archive.client, verdict.model
    before = client.get_registered_model(name).aliases.get(alias)
    try:
        client.set_registered_model_alias(name, alias, verdict.version)
    except MlflowException as error:
        if error.error_code != "PERMISSION_DENIED":
            raise
        return _refuse_verdict(
            verdict, "server", f"the server refused the alias {alias!r}: {error}"
        )
    if verdict.outcome != NOT_APPLICABLE and not unchanged(archive, policy, verdict):
        restore_alias(client, name, alias, verdict.version, before)
        text = (
            f"the model or its evidence changed during promotion; the alias {alias!r} was restored"
        )
        return _refuse_verdict(verdict, "evidence", text)
    return replace(verdict, promoted=alias)


def _refuse_verdict(verdict: Verdict, check: str, text: str) -> Verdict:
    reasons = (*verdict.reasons, Reason(check=check, outcome=FAIL, text=text))
    return replace(verdict, outcome=FAIL, allowed=False, reasons=reasons)


def unchanged(archive: Archive, policy: Policy, verdict: Verdict) -> bool:
    """Whether the policy still allows a version."""
    return judge_version(archive, policy, verdict.model, verdict.version).allowed


def restore_alias(client: Any, name: str, alias: str, given: Any, version: Any) -> None:
    """Point an alias back to its earlier version, or delete it if there was none.

    If somebody else has moved the alias meanwhile, it stays as it is.
    """
    if str(client.get_registered_model(name).aliases.get(alias)) != str(given):
        return
    if version is None:
        client.delete_registered_model_alias(name, alias)
    else:
        client.set_registered_model_alias(name, alias, str(version))


# --- Remedies

AUDIT = (
    "Audit it: mlflow-b3 audit --model-uri {uri} --data FILE --target COLUMN --cluster COLUMN, and add "
    "what you know about the ids, such as --cluster-error 0.05,0.15."
)
AUDIT_AGAIN = AUDIT.replace("Audit it", "Audit it again")
#: Remedies by a part of the error message; the first match applies.
OF_EVIDENCE = (
    ("there is no audit of it", AUDIT),
    ("there is no file 'b3/evidence.json'", AUDIT_AGAIN),
    (
        "which is not trusted here",
        "If the key is one of yours, add its public key to evidence.trusted_keys of the policy or to "
        "MLFLOW_B3_TRUSTED_KEYS. If nobody knows the key, do not trust the audit; run your own.",
    ),
    ("but there is a later one", AUDIT_AGAIN),
    ("is deleted", "Restore the audit's run in MLflow, or audit the version again."),
    (
        "could not be read",
        "Check that MLflow and its artifact store can be reached, and try again.",
    ),
)
CHANGED = (
    "Find out who changed it. If the change was intended, audit the version again; if not, register "
    "the model again."
)
LOOK = "To see which checks fail: mlflow-b3 verify {uri}, with the same --policy"
BY_CHECK = {
    "data": "Give the audited table, read from the same file format; or audit the version again on this "
    "table.",
    "pins": "Audit what the policy pins. If it has no pin for this model yet, the owner of the policy "
    "must add one; this writes a draft: mlflow-b3 policy init {uri}",
    "min_clusters": "Audit it again on a table with more clusters; with so few, the loss on new clusters "
    "is too uncertain.",
    "min_repeated_clusters": "Check that the cluster column is the right one. Only clusters with at "
    "least two rows show how much one row reveals about the others in its cluster.",
    "findings": "Follow the advice for the finding (docs/findings.md) and audit it again. The owner of "
    "the policy may remove a code from audit.refuse_findings.",
    "server": "The server has its own policy or permissions: ask its administrator.",
    "signed": "Sign the audit where the signing key is ('mlflow-b3 keys' makes a key pair): mlflow-b3 "
    "attest {uri} --audit RUN --digest SHA256, as mlflow-b3 audit --handover FILE gives them. Or let the policy accept unsigned audits, with evidence.signed: false.",
    "max_age_days": AUDIT_AGAIN,
    "max_audits": "An audit cannot be undone. The owner of the policy may raise evidence.max_audits, or "
    "you can train and register a new model and audit it once.",
    "preregistered": "Commit the settings before the audit: run mlflow-b3 preregister with the options of "
    "the audit, then audit it again.",
    "p0_sources": "Audit it again with evidence about the ids that the policy accepts; rows that somebody "
    "looked up (--resolved-rows) are the best (docs/howto/where-p0-comes-from.md).",
    "refits": "Audit it again by a route that the policy accepts and that refits the whole model: --refit, "
    "or --trainer for your own training code.",
    "tipping_cluster_error": "Better ids, or a model that relies less on having seen a cluster, move "
    "the tipping point.",
    "tipping_split_rate": "Better ids, or a model that relies less on having seen a cluster, move the "
    "tipping point.",
    "inflation": "Do not report LOCO: e0 is the loss to expect. Better ids, or a model that relies less on "
    "having seen a cluster, bring the two together.",
}
OTHER_SETTINGS = (
    "Audit it again with the committed settings, which are in the file b3/commitment.json of that run. "
    "New settings need a new commitment, and every commitment is counted."
)
E0_HIGH = {
    FAIL: "The model is not good enough on new clusters: train a better one.",
    INCONCLUSIVE: "More clusters, a narrower range for the share of wrong ids or more refits (--budget) "
    "narrow the interval of e0; a better model lowers it. Every further signed audit is counted.",
}
OTHER_SCORE = (
    "Audit it again with the loss or score that the policy has a limit for: --loss or --scoring. The owner "
    "of the policy can set limits.score_low for scores of which more is better."
)
CVC_HIGH = {
    FAIL: "The model is not good enough on new groups: train a better one.",
    INCONCLUSIVE: "More groups narrow the interval of CV_c; a better model moves it away from the limit. If it is withheld or "
    "an approximation, the report's findings say what to do, such as --method-option engine=full. "
    "Every further signed audit is counted.",
}
KEEP = "Keep the champion, or train a better model."
#: Remedies by a part of the reason's text; the first match applies.
OF_CHAMPION = (
    ("beyond noise", KEEP),
    (
        "within the noise",
        "The paired comparison cannot separate the two. More clusters may help; another audit of the "
        "same rows hardly will. " + KEEP,
    ),
    (
        "has evidence that is broken",
        "Find out who changed the champion's evidence. Then audit the champion again, and sign it: a newer "
        "signed audit takes the place of the broken one.",
    ),
    (
        "its evidence is not signed",
        "Sign the champion's audit: mlflow-b3 attest URI-OF-THE-CHAMPION.",
    ),
    ("too few clusters", "More clusters are needed to separate the models."),
    (
        "",
        "Audit both on the same rows and folds: mlflow-b3 compare {uri} URI-OF-THE-CHAMPION --data FILE "
        "--target COLUMN --cluster COLUMN.",
    ),
)


def next_steps(verdict: Verdict) -> tuple[str, ...]:
    """Return what to do about a verdict."""
    if verdict.promoted is not None:
        return ()
    if verdict.allowed:
        return ("To promote it, add --promote ALIAS; in Python, promote='ALIAS'.",)
    uri = f"models:/{verdict.model}/{verdict.version}"
    steps = remedies(verdict.reasons, uri)
    return (_fill_uri(LOOK, uri), *steps) if CHANGED in steps else steps


def remedies(reasons: Iterable[Reason], uri: str) -> tuple[str, ...]:
    """Return what to do about the reasons that refuse a version, without duplicates."""
    return tuple(dict.fromkeys(_fill_uri(text, uri) for text in _remedies(reasons)))


def _fill_uri(text: str, uri: str) -> str:
    return text.replace("{uri}", shlex.quote(visible(uri)))


def _remedies(reasons: Iterable[Reason]) -> Iterator[str]:
    for reason in reasons:
        if reason.outcome not in (FAIL, INCONCLUSIVE):
            continue
        if reason.check in ("e0_high", "score_low") and "is a limit on a" in reason.text:
            yield OTHER_SCORE
        elif reason.check in ("e0_high", "score_low", "constant"):
            yield E0_HIGH[reason.outcome]
        elif reason.check in ("cvc_high", "cvc_low", "cvc_constant"):
            yield CVC_HIGH[reason.outcome]
        elif reason.check == "champion":
            yield _matching_remedy(OF_CHAMPION, reason.text)
        elif reason.check == "preregistered" and "not those that" in reason.text:
            yield OTHER_SETTINGS
        else:
            yield BY_CHECK.get(reason.check) or _matching_remedy(OF_EVIDENCE, reason.text)


def _matching_remedy(remedies: Iterable[tuple[str, str]], text: str) -> str:
    return next((remedy for words, remedy in remedies if words in text), CHANGED)


# --- Verdicts for people and for CI systems: text, JSON, Markdown and JUnit XML
#
# Names of models, files and tags are untrusted. They are escaped and cannot control a terminal, a page,
# a test report or the log of a CI system.

LONGEST_REASON = 1000
#: Worst first.
MARKS = {FAIL: "FAIL", INCONCLUSIVE: "OPEN", PASS: "pass", NOT_APPLICABLE: "-"}
#: Commands of CI systems: "::error::" and "##[error]".
_COMMANDS = re.compile(r":(?=:)|#(?=#)")


def plain(text: str, longest: int = LONGEST_REASON) -> str:
    """Return text on one line, without control characters and commands of CI systems."""
    return _COMMANDS.sub(r"\g<0> ", shorten(visible(text), longest))


def verdict_document(verdict: Verdict, promote: str | None = None, title: str = "") -> Document:
    """Return a verdict as a document.

    Parameters
    ----------
    verdict : Verdict
    promote : str, optional
        The requested alias.
    title : str
        The document's title; empty for a terminal, where the outcome comes first.
    """
    return _document(
        title,
        verdict.outcome,
        _headline(verdict, promote),
        verdict.reasons,
        next_steps(verdict),
        f"Judged at {verdict.judged_at} by {_policy_name(verdict.policy_hash)}"
        f"{_audit_reference(verdict.audit_run_id)}.",
    )


def _document(
    title: str,
    word: str,
    headline: str,
    reasons: Iterable[Reason],
    steps: Iterable[str],
    basis: str,
) -> Document:
    """Return the outcome, the reasons, what to do, and the basis."""
    table = Table(
        header=("", "check", "what was found"),
        rows=tuple(
            (MARKS[reason.outcome], plain(reason.check, LONGEST_NAME), plain(reason.text))
            for reason in _worst_first(reasons)
        ),
        prose=True,
    )
    return Document(
        title=title,
        answer=Answer(word=word, sentence=plain(headline)),
        sections=(
            Section(heading="", blocks=(table,) if table.rows else ()),
            Section(heading="What to do", blocks=(*lists(map(plain, steps)),)),
            Section(heading="", blocks=(Paragraph(text=plain(basis)),)),
        ),
    )


def _policy_name(policy_hash: str) -> str:
    default = "default " if policy_hash == load_policy().hash else ""
    return f"the {default}policy {policy_hash[:12]}"


def _audit_reference(audit_run_id: str | None) -> str:
    return "" if audit_run_id is None else f", on the audit of run {audit_run_id}"


def _headline(verdict: Verdict, promote: str | None) -> str:
    name = plain(f"models:/{verdict.model}/{verdict.version}", LONGEST_NAME)
    if verdict.promoted is not None:
        decision = f"{name} now has the alias {verdict.promoted!r}"
    else:
        decision = f"{name} may {'' if verdict.allowed else 'not '}be promoted"
    why = {
        (INCONCLUSIVE, False): ": the numbers do not decide, in which case the policy refuses it",
        (INCONCLUSIVE, True): ": the numbers do not decide, in which case the policy allows it",
        (NOT_APPLICABLE, True): ": the policy does not apply to it",
    }.get((verdict.outcome, verdict.allowed), "")
    kept = f" The alias {promote!r} was not changed." if promote and not verdict.allowed else ""
    return f"{decision}{why}.{kept}"


def verdict_text(verdict: Verdict, promote: str | None = None) -> str:
    """Return a verdict as text for a terminal."""
    return to_text(verdict_document(verdict, promote))


#: The style of an outcome on a card.
STATES = {PASS: "good", FAIL: "bad", INCONCLUSIVE: "open", NOT_APPLICABLE: "unknown"}


def verdict_card(verdict: Verdict) -> str:
    """Return a verdict as a part of a notebook: the outcome, what decided it, and what to do."""
    made = verdict_document(verdict, title="Leakage gate")
    decided = [r for r in _worst_first(verdict.reasons) if r.outcome == verdict.outcome != PASS]
    facts = [(plain(r.check, LONGEST_NAME), plain(r.text)) for r in decided]
    facts += [("What to do", plain(step)) for step in next_steps(verdict)]
    answer = replace(made.answer, state=STATES[verdict.outcome], facts=tuple(facts))
    return to_card(replace(made, answer=answer))


def verdict_markdown(verdict: Verdict, promote: str | None = None) -> str:
    """Return a verdict as Markdown, for the job summary on GitHub."""
    return to_markdown(verdict_document(verdict, promote, "Leakage gate"))


def verification_text(found: "Verification") -> str:
    """Return a verification as text for a terminal."""
    uri = f"models:/{found.model}/{found.version}"
    broken = sum(check.outcome == FAIL for check in found.checks)
    failures = "one check" if broken == 1 else f"{broken} checks"
    headline = (
        f"the evidence of {uri} is unchanged and matches the current files."
        if found.holds
        else f"{failures} of the evidence of {uri} failed."
    )
    return to_text(
        _document(
            "",
            "HOLDS" if found.holds else "BROKEN",
            headline,
            found.checks,
            () if found.holds else remedies(found.checks, uri),
            f"Checked at {found.checked_at}, with the keys and rules of "
            f"{_policy_name(found.policy_hash)}{_audit_reference(found.audit_run_id)}.",
        )
    )


def attestation_text(found: "Attestation") -> str:
    """Return an attestation as text for a terminal."""
    broken = sum(check.outcome == FAIL for check in found.checks)
    failures = "one check" if broken == 1 else f"{broken} checks"
    headline = (
        f"the audit of {found.model} was checked and signed with the key {found.key}."
        if found.attested
        else f"{failures} of the audit of {found.model} failed; nothing was signed."
    )
    meaning = (
        "Model files, table and measurements belong together, and the conclusions follow from them. "
        "The signature does not cover what the model's own code did during the refits"
        + (
            "."
            if found.digest_demanded
            else ", nor that nobody replaced the record before it was signed: for that give --audit and "
            "--digest."
        )
    )
    remedy = (
        "Find out what has changed since the audit, then audit the model again: mlflow-b3 audit "
        f"--model-uri {found.model} …"
    )
    return to_text(
        _document(
            "",
            "ATTESTED" if found.attested else "NOT ATTESTED",
            headline,
            found.checks,
            () if found.attested else (remedy,),
            f"Checked at {found.attested_at}, the audit of run {found.audit_run_id}. "
            + (meaning if found.attested else ""),
        )
    )


def to_ascii_json(values: dict[str, Any]) -> str:
    """Return strict JSON in ASCII, without control characters and commands of CI systems."""
    text = json.dumps(values, indent=2, allow_nan=False)
    # these occur only inside strings
    for character in ("\x7f", "#"):
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text.replace("::", "\\u003a\\u003a")


def verdict_json(verdict: Verdict, promote: str | None = None) -> str:  # noqa: ARG001
    """Return a verdict as JSON in ASCII."""
    return to_ascii_json(verdict.to_dict())


def verdict_junit(verdict: Verdict, promote: str | None = None) -> str:
    """Return a verdict as JUnit XML, with one test case for each reason.

    INCONCLUSIVE is a failure unless the policy lets it pass: JUnit has no such outcome, and the
    report must not be green if the version was refused.
    """
    uri = f"models:/{verdict.model}/{verdict.version}"
    name = plain(uri, LONGEST_NAME)
    cases = [_case(reason, name, verdict.allowed) for reason in verdict.reasons]
    counts = {
        "tests": len(cases),
        "failures": sum(case.find("failure") is not None for case in cases),
        "errors": 0,
        "skipped": sum(case.find("skipped") is not None for case in cases),
    }
    numbers = {key: str(count) for key, count in counts.items()}
    root = ElementTree.Element("testsuites", {"name": "mlflow-b3 gate", **numbers})
    suite = ElementTree.SubElement(
        root,
        "testsuite",
        {"name": f"mlflow-b3 gate {name}", "timestamp": verdict.judged_at, "time": "0", **numbers},
    )
    properties = ElementTree.SubElement(suite, "properties")
    for key in ("outcome", "policy_hash", "audit_run_id", "promoted"):
        value = plain(getattr(verdict, key) or "none")
        ElementTree.SubElement(properties, "property", {"name": key, "value": value})
    suite.extend(cases)
    output = ElementTree.SubElement(suite, "system-out")
    output.text = verdict_text(verdict, promote)
    ElementTree.indent(root)
    text = ElementTree.tostring(root, encoding="unicode")
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{text}\n'


def _case(reason: Reason, classname: str, allowed: bool) -> ElementTree.Element:
    case = ElementTree.Element(
        "testcase",
        {"classname": classname, "name": plain(reason.check, LONGEST_NAME), "time": "0"},
    )
    text = plain(reason.text)
    if reason.outcome == NOT_APPLICABLE or (reason.outcome == INCONCLUSIVE and allowed):
        ElementTree.SubElement(case, "skipped", {"message": text})
    elif reason.outcome != PASS:
        failure = ElementTree.SubElement(case, "failure", {"type": reason.outcome, "message": text})
        failure.text = text
    return case


def _worst_first(reasons: Iterable[Reason]) -> list[Reason]:
    order = list(MARKS)
    return sorted(reasons, key=lambda reason: order.index(reason.outcome))


#: Formats of `--format`, and the file endings of `--output`.
FORMATS: dict[str, Callable[[Verdict, str | None], str]] = {
    "text": verdict_text,
    "json": verdict_json,
    "markdown": verdict_markdown,
    "junit": verdict_junit,
}
ENDINGS = {".txt": "text", ".json": "json", ".md": "markdown", ".xml": "junit"}


# --- `verify`: a version's evidence compared with the current files


@dataclass(frozen=True, kw_only=True)
class Verification(Result):
    """Whether the evidence of a registered version holds.

    Attributes
    ----------
    holds : bool
        All checks passed.
    checks : tuple of Reason
        The checks and their results.
    model, version : str
    policy_hash : str
        The policy that lists the trusted keys and sets the maximum age.
    audit_run_id : str or None
        The audit that the version's tags name.
    checked_at : str

    Examples
    --------
    >>> import mlflow_b3 as b3
    >>> from mlflow_b3.evidence.verdict import Reason
    >>> verification = b3.Verification(
    ...     holds=True,
    ...     checks=(Reason(check="model_files", outcome="PASS", text="all files are unchanged"),),
    ...     model="triage",
    ...     version="3",
    ...     policy_hash="20dd6f490b64",
    ...     audit_run_id="241a118098d54359",
    ...     checked_at="2026-01-31T12:00:00+00:00",
    ... )
    >>> b3.Verification.from_json(verification.to_json()) == verification
    True
    """

    holds: bool
    checks: tuple[Reason, ...]
    model: str
    version: str
    policy_hash: str
    audit_run_id: str | None
    checked_at: str

    def __str__(self) -> str:
        """Return the checks and their results in plain words."""
        return verification_text(self)


def verify(
    model: str,
    policy: Policy | str | PathLike[str] | None = None,
    *,
    data: Any = None,
    now: datetime | None = None,
) -> Verification:
    """Check the evidence of a registered version against the current files.

    Parameters
    ----------
    model : str
        "models:/name/3", or "models:/name@alias".
    policy : Policy or path, optional
        Sets the trusted keys and the maximum age; as in `gate`. Its limits on the results are not
        checked.
    data : DataFrame or path, optional
        A table that should be the audited one.
    now : datetime, optional

    Examples
    --------
    >>> import mlflow
    >>> import mlflow_b3 as b3
    >>> from sklearn.naive_bayes import GaussianNB
    >>> clinic = b3.make_clinic(patients=20, records=4)
    >>> X, y = clinic.frame.drop(columns=["disease", "patient_id"]), clinic.frame["disease"]
    >>> with mlflow.start_run():
    ...     logged = mlflow.sklearn.log_model(
    ...         GaussianNB().fit(X, y),
    ...         name="model",
    ...         registered_model_name="verified",
    ...         pip_requirements=["scikit-learn"],
    ...     )
    >>> report = b3.audit(
    ...     "models:/verified/1",
    ...     clinic.frame,
    ...     target="disease",
    ...     cluster="patient_id",
    ...     cluster_error=0.1,
    ...     folds=2,
    ...     budget=60,
    ... )
    >>> run_id = b3.record(report)
    >>> verification = b3.verify("models:/verified/1")
    >>> [check.outcome for check in verification.checks if check.check == "model_files"]
    ['PASS']
    >>> verification.holds  # the audit is not signed
    False
    """
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException

    rules = policy_in_force(policy)
    if data is not None:
        read_table(data)  # a table that cannot be read is an error, not a failed check
    archive = Archive(client=MlflowClient()).at_once()
    when = now or datetime.now(UTC)
    try:
        found = registered_version(model)
        if found is None:
            raise InputError(
                f"model={model!r} is not a registered version; give 'models:/name/3' or "
                "'models:/name@alias'."
            )
        version = archive.client.get_model_version(*found)
    except MlflowException as error:
        raise TrackingError(f"model={model!r}: {error}") from error
    audit_run_id, checks = _check_version(archive, rules, version, data, when)
    return Verification(
        holds=all(check.outcome != FAIL for check in checks),
        checks=checks,
        model=found[0],
        version=found[1],
        policy_hash=rules.hash,
        audit_run_id=audit_run_id,
        checked_at=when.isoformat(timespec="seconds"),
    )


def _check_version(
    archive: Archive, policy: Policy, version: Any, data: Any, now: datetime
) -> tuple[str | None, tuple[Reason, ...]]:
    """Return the run of the checked audit, and the results of the checks."""
    named = None
    try:
        trusted = trusted_keys(policy.trusted_keys)
        source = resolve_source(archive.client, f"models:/{version.name}/{version.version}")
        named = named_audit(archive.client, version, source)
        if named is None:
            raise EvidenceError("there is no audit of it")
        run = find_run(archive.client, named)
        runs = runs_of(archive.client, source.model_id or source.source)
        opened = open_evidence(archive, run, runs, trusted)
    except InputError:
        raise  # an unreadable trusted key is the caller's error
    except Exception as error:
        return named, (failed("evidence", error),)
    record = Record(
        archive=archive,
        run=run,
        source=source,
        evidence=opened.evidence,
        version=version,
        data=data,
    )
    checks = tuple(check(record) for check in VERIFIED)
    tried, unsigned = len(opened.evidence.earlier_audits) + 1, 0
    if all(check.outcome != FAIL for check in checks):
        # a gate considers other audits too
        newest, tried, unsigned = _check_newest(archive, policy, version, trusted, opened)
        checks = (*checks, newest)
    proof = Proof(
        policy=policy,
        evidence=opened.evidence,
        signed_by=opened.signed_by,
        audits=tried,
        now=now,
        unsigned=unsigned,
    )
    return named, (*checks, *judge_evidence(proof))


def _check_newest(
    archive: Archive,
    policy: Policy,
    version: Any,
    trusted: tuple[str, ...],
    opened: SignedEvidence,
) -> tuple[Reason, int, int]:
    """Return whether a gate would rely on this audit, and how many audits do and do not count."""
    try:
        audit = find_audit_of(archive, version, trusted, signed=policy.signed)
        if audit.evidence != opened.evidence:
            raise EvidenceError(f"there is a later audit, of run {audit.evidence.audit_run_id}")
    except Exception as error:
        return failed("newest", error), len(opened.evidence.earlier_audits) + 1, 0
    text = "this is the newest audit of the model that counts"
    return Reason(check="newest", outcome=PASS, text=text), audit.tried, audit.unsigned
