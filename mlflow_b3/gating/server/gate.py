"""The gate inside a server: its rules, how it refuses, and its log of decisions."""

import json
import logging
import os
import re
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import PERMISSION_DENIED

from mlflow_b3.errors import EvidenceError, InputError
from mlflow_b3.evidence.document import SignedEvidence, trusted_keys
from mlflow_b3.evidence.policy import Policy, folded
from mlflow_b3.evidence.verdict import FAIL, SKEW, Reason, Verdict
from mlflow_b3.gating.archive import Archive, confirm_audit
from mlflow_b3.gating.checks import issued
from mlflow_b3.gating.gate import judge_version, make_verdict, next_steps
from mlflow_b3.gating.server.stores import Guards, is_plain, registry_is_exact
from mlflow_b3.tracking.shown_on_models import VERDICT

# --- The log of the gate's decisions: one JSON object per line

#: The variable that names the file to which every decision is appended.
GATE_LOG = "MLFLOW_B3_GATE_LOG"
LOGGER = logging.getLogger("mlflow_b3.gate")


@dataclass(frozen=True, kw_only=True)
class Request:
    """Who asked for what.

    Attributes
    ----------
    actor : str or None
        The user, if the server knows its users.
    remote : str or None
        The address that the request came from.
    route : str
        Method and path.
    """

    actor: str | None
    remote: str | None
    route: str


@dataclass(frozen=True, kw_only=True)
class Decision:
    """One decision of the gate.

    Attributes
    ----------
    event : str
        What was asked for: "alias", "stage", "rename", "tag", "files" …
    model, version : str or None
    target : str or None
        The alias, stage, name, tag or file.
    outcome : str
        The verdict, or REFUSED if none was needed.
    allowed : bool
    reasons : sequence of str
    policy_hash : str
    audit_run_id : str or None
    """

    event: str
    model: str | None
    version: str | None
    target: str | None
    outcome: str
    allowed: bool
    reasons: Sequence[str]
    policy_hash: str
    audit_run_id: str | None = None


def log_to_stderr() -> None:
    """Write decisions to stderr, with the server's other messages, one JSON object per line."""
    if not LOGGER.handlers:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("%(message)s"))
        LOGGER.addHandler(handler)
    LOGGER.setLevel(logging.INFO)
    LOGGER.propagate = False


def check_log_file() -> None:
    """Raise an `InputError` if the file for decisions cannot be written."""
    path = os.environ.get(GATE_LOG)
    try:
        if path:
            _append(path, "")
    except OSError as error:
        raise InputError(f"{GATE_LOG}={path!r} cannot be written: {error}") from error


def write_decision(decision: Decision, request: Request) -> None:
    """Log a decision as one line, whatever characters the names in it contain."""
    content = {
        "timestamp": datetime.now(UTC).isoformat(timespec="milliseconds"),
        **asdict(request),
        **asdict(decision),
    }
    line = json.dumps(content, ensure_ascii=True, default=str)
    LOGGER.info(line)
    path = os.environ.get(GATE_LOG)
    if path:
        try:
            _append(path, f"{line}\n")
        except OSError as error:
            LOGGER.error(json.dumps({"event": "log", "reasons": [str(error)]}))


def _append(path: str, text: str) -> None:
    """Write in one call, so that lines of several workers do not mix."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)


# --- The gate inside a server: its rules, its view of MLflow, and how it refuses

LOG = logging.getLogger(__name__)
REFUSED = "REFUSED"
#: The form of the tag `b3.verdict`.
VERDICT_TAG = re.compile(
    r"(?P<outcome>[A-Z_]+), policy (?P<policy>[0-9a-f]{12}), (?P<time>[0-9T:.+Z-]+)"
)
#: How many seconds confirmed evidence is remembered: the tags of an audit arrive one by one.
#: Promotions read everything again.
SECONDS = 60.0
MOST_REMEMBERED = 100


@dataclass(frozen=True, kw_only=True)
class Gate:
    """The gate of one server: its policy, and MLflow as the server sees it.

    Attributes
    ----------
    policy : Policy
    archive : Archive
        MLflow, read from the server's own stores.
    with_users : bool
        Whether the server knows its users.
    """

    policy: Policy
    archive: Archive
    with_users: bool = False
    _confirmed: dict[tuple[str, str], tuple[float, SignedEvidence]] = field(default_factory=dict)

    @property
    def stores(self) -> Any:
        """The server's stores, with the methods of a client."""
        return self.archive.client

    @cached_property
    def guards(self) -> Guards:
        """The versions under guarded aliases or stages."""
        return Guards(self.policy, self.applies_to)

    def applies_to(self, name: str) -> bool:
        """Whether a registered model is guarded.

        A database that compares by collation may treat a name that is not ASCII, or that ends in
        spaces, as equal to another name. Such a name is guarded if any name is.
        """
        if self.policy.applies_to(name):
            return True
        if not self.policy.models or registry_is_exact():
            return False
        return not is_plain(name) or self.policy.applies_to(name.strip())

    def judge(self, name: str, version: Any, new_name: str | None = None) -> Verdict:
        """Judge a registered version; with `new_name`, as if its model already had that name."""
        rules = self.policy
        judged_as = name if new_name is None else new_name
        if self.applies_to(judged_as) and not rules.applies_to(name):
            rules = replace(rules, models=("*",))
        try:
            verdict = judge_version(self.archive, rules, name, str(version))
        except Exception as error:
            LOG.exception("the gate could not judge %r version %s", name, version)
            return self._unjudged(name, str(version), error)
        return replace(verdict, policy_hash=self.policy.hash)

    def _unjudged(self, name: str, version: str, error: Exception) -> Verdict:
        text = f"it could not be judged: {type(error).__name__}: {error}"
        reasons = (Reason(check="evidence", outcome=FAIL, text=text),)
        now = datetime.now(UTC)
        return make_verdict(FAIL, False, reasons, name, version, self.policy, None, now)

    def admit(self, request: Request, event: str, target: str, verdict: Verdict) -> None:
        """Log a verdict, and refuse the request if the verdict does not allow it."""
        self._write(request, event, target, verdict)
        if not verdict.allowed:
            raise refusal(
                f"{event} {target!r} was refused for {verdict.model!r} version {verdict.version}: "
                f"{words_of(verdict)}"
            )

    def take_back(self, request: Request, event: str, target: str, verdict: Verdict) -> None:
        """Log that a change was reverted, and refuse the request."""
        self._write(request, event, target, verdict, "it was reverted")
        raise refusal(
            f"{event} {target!r} was reverted for {verdict.model!r} version {verdict.version}, "
            f"which changed meanwhile: {words_of(verdict)}"
        )

    def _write(
        self, request: Request, event: str, target: str, verdict: Verdict, *more: str
    ) -> None:
        reasons = [f"{reason.check}: {reason.text}" for reason in verdict.reasons]
        decision = Decision(
            event=event,
            model=verdict.model,
            version=verdict.version,
            target=target,
            outcome=verdict.outcome,
            allowed=verdict.allowed,
            reasons=[*reasons, *more],
            policy_hash=verdict.policy_hash,
            audit_run_id=verdict.audit_run_id,
        )
        write_decision(decision, request)

    def refuse(
        self,
        request: Request,
        event: str,
        target: str | None,
        reason: str,
        *,
        model: str | None = None,
        version: Any = None,
    ) -> MlflowException:
        """Log a refusal that needs no verdict; return the error to raise."""
        decision = Decision(
            event=event,
            model=model,
            version=None if version is None else str(version),
            target=target,
            outcome=REFUSED,
            allowed=False,
            reasons=[reason],
            policy_hash=self.policy.hash,
        )
        write_decision(decision, request)
        return refusal(reason)

    def check_tags(self, uri: str, tags: dict[str, str], shown: str | None) -> None:
        """Raise an `EvidenceError` for tags that contradict the confirmed evidence.

        Parameters
        ----------
        uri : str
            The version, or its source.
        tags : dict of str to str
            Tags of an audit, including the one that names its run.
        shown : str or None
            The run of the audit that the version shows so far.
        """
        tags = {key: value for key, value in tags.items() if key != VERDICT}
        if not tags:
            return
        audit_run_id = tags.get("b3.audit_run_id")
        if audit_run_id is None:
            raise EvidenceError("the tag 'b3.audit_run_id' must name the audit that they belong to")
        found = self._confirm(uri, audit_run_id)
        wrong = [key for key, value in tags.items() if found.evidence.tags.get(key) != value]
        if wrong:
            raise EvidenceError(f"they contradict the audit's evidence: {', '.join(sorted(wrong))}")
        if shown not in (None, audit_run_id):
            try:
                before = self._confirm(uri, str(shown))
            except EvidenceError:
                return
            if issued(before.evidence) > issued(found.evidence):
                raise EvidenceError(f"the version already shows a later audit, of run {shown}")

    def check_verdict(self, value: str, verdict: Verdict) -> None:
        """Raise an `EvidenceError` for a tag `b3.verdict` that is not this gate's current verdict.

        Parameters
        ----------
        value : str
            "PASS, policy 0123456789ab, 2026-03-02T09:14:07+00:00": outcome, policy, and time.
        verdict : Verdict
            The verdict of this gate.
        """
        form = "'OUTCOME, policy <first 12 digits of its hash>, <ISO time>'"
        match = VERDICT_TAG.fullmatch(value)
        if match is None:
            raise EvidenceError(
                f"the tag {VERDICT!r} must have the form {form}, not {value[:80]!r}"
            )
        if match["policy"] != self.policy.hash[:12]:
            raise EvidenceError(
                f"the policy of this server is {self.policy.hash[:12]}, not {match['policy']}"
            )
        if match["outcome"] != verdict.outcome:
            raise EvidenceError(f"the gate of this server says {words_of(verdict)}")
        try:
            when = datetime.fromisoformat(match["time"])
        except ValueError as error:
            raise EvidenceError(f"the tag {VERDICT!r} must have the form {form}") from error
        when = when if when.tzinfo else when.replace(tzinfo=UTC)
        if when > datetime.now(UTC) + SKEW:
            raise EvidenceError(f"the time {match['time']} is in the future")

    def _confirm(self, uri: str, audit_run_id: str) -> SignedEvidence:
        now = time.monotonic()
        for key, (end, _) in list(self._confirmed.items()):
            if end < now or len(self._confirmed) > MOST_REMEMBERED:
                self._confirmed.pop(key, None)
        known = self._confirmed.get((uri, audit_run_id))
        if known is not None:
            return known[1]
        trusted = trusted_keys(self.policy.trusted_keys)
        found = confirm_audit(self.archive, uri, audit_run_id, trusted)
        if self.policy.signed and found.signed_by is None:
            raise EvidenceError("the evidence of the audit is not signed")
        self._confirmed[uri, audit_run_id] = now + SECONDS, found
        return found


def words_of(verdict: Verdict) -> str:
    """Return a refusing verdict on one line: why, and what to do."""
    reasons = "; ".join(reason.text for reason in verdict.decisive)
    return " ".join([f"{verdict.outcome}, {reasons}.", *next_steps(verdict)])


def refusal(text: str) -> MlflowException:
    """Return the error that MLflow's clients and pages show."""
    return MlflowException(f"mlflow-b3 gate: {text}", error_code=PERMISSION_DENIED)


def closed(gate: Gate, request: Request, check: Callable[..., Any], *arguments: Any) -> Any:
    """Call a check; any error in it is a refusal.

    MLflow's own errors are passed on, such as that for a version that does not exist.
    """
    try:
        return check(*arguments)
    except MlflowException:
        raise
    except Exception as error:
        LOG.exception("the gate could not decide about %r", request.route)
        text = f"it could not be decided whether this is allowed ({type(error).__name__}: {error})."
        raise gate.refuse(request, "error", None, text) from error


def unknown_route(gate: Gate, request: Request) -> MlflowException:
    """Return the refusal of a route that `routes` does not list."""
    text = f"{request.route} is unknown to this version of mlflow-b3 and could change the registry or a record."
    return gate.refuse(request, "route", None, text)


def is_ours(key: str) -> bool:
    """Whether a database may treat a tag key of a version or registered model as an audit's.

    Where text is compared by collation, a key that is not ASCII may be equal to any other.
    """
    if folded(key).strip().startswith("b3."):
        return True
    return not is_plain(key) and not registry_is_exact()


def ours(tags: Sequence[Any]) -> dict[str, str]:
    """Return an audit's tags in a request; of two with the same key, MLflow keeps the last."""
    return {tag.key: tag.value for tag in tags if is_ours(tag.key)}
