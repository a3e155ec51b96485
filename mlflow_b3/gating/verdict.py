"""The verdict: what a policy says about an audited model, with every reason."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from mlflow_b3.gating.corrected import judge_corrected
from mlflow_b3.gating.evidence import Evidence
from mlflow_b3.gating.keys import key_id, trusted_keys
from mlflow_b3.gating.limits import is_known, limit_of, limit_words, unknown_limit
from mlflow_b3.gating.policy import Policy
from mlflow_b3.gating.policy_values import SOURCES
from mlflow_b3.gating.reasons import (
    FAIL,
    INCONCLUSIVE,
    NOT_APPLICABLE,
    PASS,
    Reason,
    conclude_reasons,
)
from mlflow_b3.reporting.report import AuditReport
from mlflow_b3.results import Result
from mlflow_b3.wording import number

if TYPE_CHECKING:
    from mlflow_b3.estimation.sensitivity import Sensitivity

__all__ = [
    "FAIL",
    "INCONCLUSIVE",
    "NOT_APPLICABLE",
    "PASS",
    "Reason",
    "Verdict",
    "conclude_reasons",
    "is_allowed",
    "judge_evidence",
    "judge_results",
]

#: Clocks of two machines differ by less.
SKEW = timedelta(minutes=10)


@dataclass(frozen=True, kw_only=True)
class Verdict(Result):
    """May this version be promoted?

    Attributes
    ----------
    outcome : {"PASS", "FAIL", "INCONCLUSIVE", "NOT_APPLICABLE"}
    allowed : bool
        Whether a guarded alias or stage may point at it.
    reasons : tuple of Reason
        All of them, not only those that decided.
    model, version : str
        The registered version that was judged.
    policy_hash : str
    audit_run_id : str or None
        The audit that the verdict rests on.
    judged_at : str
    promoted : str or None
        The alias that was given to the version.
    """

    outcome: str
    allowed: bool
    reasons: tuple[Reason, ...]
    model: str
    version: str
    policy_hash: str
    audit_run_id: str | None
    judged_at: str
    promoted: str | None = None

    @property
    def decisive(self) -> tuple[Reason, ...]:
        """The reasons that made the outcome what it is."""
        return tuple(r for r in self.reasons if r.outcome == self.outcome)

    def __str__(self) -> str:
        """Return the verdict in plain words: what is the case, why, and what to do."""
        from mlflow_b3.gating.outputs import verdict_text

        return verdict_text(self)


def is_allowed(policy: Policy, reasons: tuple[Reason, ...]) -> bool:
    """Whether the policy lets a version pass for these reasons."""
    outcome = conclude_reasons(reasons)
    if outcome == INCONCLUSIVE:
        open_ones = [reason for reason in reasons if reason.outcome == INCONCLUSIVE]
        return policy.inconclusive == "allow" and all(reason.waivable for reason in open_ones)
    return outcome == PASS


def judge_results(policy: Policy, report: AuditReport) -> tuple[Reason, ...]:
    """Hold what an audit found against the limits of a policy."""
    return (
        *_sources(policy, report),
        *_e0_high(policy, report),
        *judge_corrected(policy, report),
        *_inflation(policy, report),
        *_tipping(policy, report, "tipping_cluster_error", report.sensitivity),
        *_tipping(policy, report, "tipping_split_rate", report.fragment_sensitivity),
    )


def judge_evidence(
    policy: Policy, evidence: Evidence, signed_by: str | None, audits: int, now: datetime
) -> tuple[Reason, ...]:
    """Hold the evidence itself against a policy: who signed it, when, and after how many tries."""
    return (
        _signature(policy, signed_by),
        _age(policy, evidence, now),
        _tries(policy, evidence, audits),
        _preregistered(policy, evidence),
    )


def _signature(policy: Policy, signed_by: str | None) -> Reason:
    if signed_by is not None:
        text = f"the evidence is signed with the trusted key {key_id(signed_by)}"
        return Reason(check="signed", outcome=PASS, text=text)
    asked = "counts signed evidence only" if policy.signed else "does not ask for that"
    text = f"the evidence is not signed; the policy {asked}"
    return Reason(check="signed", outcome=FAIL if policy.signed else PASS, text=text)


def _age(policy: Policy, evidence: Evidence, now: datetime) -> Reason:
    check = "max_age_days"
    try:
        issued = datetime.fromisoformat(evidence.issued_at)
        age = now - (issued if issued.tzinfo else issued.replace(tzinfo=UTC))
    except (ValueError, OverflowError):
        text = f"the time of the audit, {evidence.issued_at!r}, cannot be read"
        return Reason(check=check, outcome=FAIL, text=text)
    if age < -SKEW:
        text = f"the audit claims to have been made in the future, at {evidence.issued_at}"
        return Reason(check=check, outcome=FAIL, text=text)
    days = max(age.total_seconds(), 0.0) / 86400
    if policy.max_age_days is not None and days > policy.max_age_days:
        text = f"the audit is {days:.1f} days old; {policy.max_age_days:g} are allowed"
        return Reason(check=check, outcome=FAIL, text=text)
    limit = "" if policy.max_age_days is None else f"; {policy.max_age_days:g} are allowed"
    return Reason(check=check, outcome=PASS, text=f"the audit is {days:.1f} days old{limit}")


def _tries(policy: Policy, evidence: Evidence, audits: int) -> Reason:
    tried = max(audits, len(evidence.earlier_audits) + 1)
    most = policy.max_audits
    allowed = "" if most is None else f"; {most} are allowed"
    count = "one audit of this model was" if tried == 1 else f"{tried} audits of this model were"
    return Reason(
        check="max_audits",
        outcome=NOT_APPLICABLE if most is None else FAIL if tried > most else PASS,
        text=f"{count} tried, as far as MLflow knows{allowed}",
    )


def _preregistered(policy: Policy, evidence: Evidence) -> Reason:
    committed = evidence.preregistration or {}
    count = committed.get("commitments")
    several = isinstance(count, int) and count > 1
    shopping = f"; {count} different settings were committed for this model" if several else ""
    trusted = map(key_id, trusted_keys(policy.trusted_keys))
    outcome = FAIL if policy.preregistered else NOT_APPLICABLE
    if not committed:
        text = "its settings were not committed before it ran"
    elif committed.get("matched") is not True:
        where = committed.get("commitment_run_id")
        text = "its settings are not those that were committed before it ran"
        text += f", in run {where}" if where else ""
    elif policy.signed and committed.get("signed_by") not in set(trusted):
        text = "its settings were committed beforehand, but not signed with a trusted key"
    else:
        text = f"its settings were committed beforehand, at {committed.get('committed_at')}"
        outcome = PASS
    return Reason(check="preregistered", outcome=outcome, text=f"{text}{shopping}")


def _sources(policy: Policy, report: AuditReport) -> Iterator[Reason]:
    source = report.p0_source
    if source not in (*SOURCES, "none"):
        text = f"the leaked share comes from {source!r}, which is not known here"
        yield Reason(check="p0_sources", outcome=FAIL, text=text)
    elif policy.p0_sources is not None and source != "none" and source not in policy.p0_sources:
        text = f"the leaked share comes from {source}; allowed is {', '.join(policy.p0_sources)}"
        yield Reason(check="p0_sources", outcome=FAIL, text=text)
    elif source == "none":
        text = (
            "nothing is known about the share of wrong ids, and the loss curve does not tell it; "
            "give the audit evidence, such as resolved rows"
        )
        yield Reason(check="p0_sources", outcome=INCONCLUSIVE, text=text, waivable=True)
    elif report.e0 is None:
        text = f"{source} does not bound the leaked share, so that e0 could be anything it allows"
        yield Reason(check="p0_sources", outcome=INCONCLUSIVE, text=text, waivable=True)
    else:
        text = f"the leaked share comes from {source}"
        yield Reason(check="p0_sources", outcome=PASS, text=text)
    route = report.settings.refit
    if policy.refits is not None and route not in policy.refits:
        text = f"the model was refitted by {route}; allowed is {', '.join(policy.refits)}"
        yield Reason(check="refits", outcome=FAIL, text=text)
    elif report.settings.refit_strength != "full":
        text = f"refits by {route} keep part of what the model learned from all rows: e0 is a lower bound"
        yield Reason(check="refits", outcome=INCONCLUSIVE, text=text)
    else:
        yield Reason(check="refits", outcome=PASS, text=f"the model was refitted by {route}")


def _e0_high(policy: Policy, report: AuditReport) -> Iterator[Reason]:
    check = "e0_high"
    if policy.e0_high is None:
        return
    limit = limit_of(policy, report)
    if limit is None or not is_known(limit):
        yield Reason(check=check, outcome=INCONCLUSIVE, text=unknown_limit(report))
        return
    words = limit_words(policy, limit)
    low, high = report.e0_interval
    if not (is_known(low) and all(value is None or is_known(value) for value in (report.e0, high))):
        text = "e0 or an end of its interval is no number"
        yield Reason(check=check, outcome=FAIL, text=text)
    elif high is not None and high < low:
        text = f"the interval of e0 ends at {number(high)}, before it begins at {number(low)}"
        yield Reason(check=check, outcome=FAIL, text=text)
    elif low > limit:
        text = f"e0 is at least {number(low)}, which is above the limit, {words}"
        yield Reason(check=check, outcome=FAIL, text=text)
    elif high is None:
        text = f"e0 has no known upper end; the limit is {words}"
        yield Reason(check=check, outcome=INCONCLUSIVE, text=text)
    elif high > limit:
        text = (
            f"e0 is between {number(low)} and {number(high)}; the limit, {words}, lies in between"
        )
        yield Reason(check=check, outcome=INCONCLUSIVE, text=text, waivable=True)
    else:
        text = f"e0 is at most {number(high)}; the limit is {words}"
        yield Reason(check=check, outcome=PASS, text=text)


def _inflation(policy: Policy, report: AuditReport) -> Iterator[Reason]:
    check, found, limit = "inflation", report.inflation, policy.inflation
    if limit is None:
        return
    if found is None or not is_known(found):
        text = "how much too good the score is by the ids as they are is not known"
        yield Reason(check=check, outcome=INCONCLUSIVE, text=text)
        return
    words = f"e0 exceeds the score by the ids as they are by {number(found)}; the limit is {number(limit)}"
    yield Reason(check=check, outcome=PASS if found <= limit else FAIL, text=words)


def _tipping(
    policy: Policy, report: AuditReport, check: str, curve: "Sensitivity | None"
) -> Iterator[Reason]:
    least = getattr(policy, check)
    if least is None:
        return
    limit = limit_of(policy, report)
    name = "cluster error" if check == "tipping_cluster_error" else "split rate"
    axis = () if curve is None else curve.error or ()
    if (
        limit is None
        or curve is None
        or not axis
        or not all(map(is_known, (limit, *axis, *curve.e0)))
    ):
        text = f"at which {name} e0 would reach the limit is not known"
        yield Reason(check=check, outcome=INCONCLUSIVE, text=text)
        return
    tips = curve.tipping_error(limit)
    if tips is None and axis[-1] < least:
        text = f"e0 stays below {number(limit)} up to a {name} of {axis[-1]:.1%}, which is all that is known"
        yield Reason(check=check, outcome=INCONCLUSIVE, text=text)
    elif tips is not None and tips < least:
        text = f"e0 reaches {number(limit)} at a {name} of {tips:.1%}; at least {least:.1%} is asked for"
        yield Reason(check=check, outcome=FAIL, text=text)
    else:
        where = "never" if tips is None else f"at {tips:.1%}"
        text = f"e0 reaches {number(limit)} {where} ({name}); at least {least:.1%} is asked for"
        yield Reason(check=check, outcome=PASS, text=text)
