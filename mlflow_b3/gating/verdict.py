"""The verdict: what a policy says about an audited model, with every reason."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from mlflow_b3.gating.evidence import Evidence
from mlflow_b3.gating.policy import CONSTANT, Policy
from mlflow_b3.reporting.report import AuditReport
from mlflow_b3.results import Result
from mlflow_b3.wording import number

if TYPE_CHECKING:
    from mlflow_b3.estimation.sensitivity import Sensitivity

PASS, FAIL, INCONCLUSIVE, NOT_APPLICABLE = "PASS", "FAIL", "INCONCLUSIVE", "NOT_APPLICABLE"
#: Clocks of two machines differ by less.
SKEW = timedelta(minutes=10)


@dataclass(frozen=True, kw_only=True)
class Reason(Result):
    """One thing that a policy asks for, and what was found.

    Attributes
    ----------
    check : str
        What was asked for, as the policy's keys name it.
    outcome : {"PASS", "FAIL", "INCONCLUSIVE", "NOT_APPLICABLE"}
    text : str
    waivable : bool
        For INCONCLUSIVE: the policy may let it pass. What is not known at all never does.
    """

    check: str
    outcome: str
    text: str
    waivable: bool = False


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


def conclude_reasons(reasons: tuple[Reason, ...]) -> str:
    """Return the worst outcome: one failure fails, one open question leaves all open."""
    outcomes = {reason.outcome for reason in reasons}
    for outcome in (FAIL, INCONCLUSIVE):
        if outcome in outcomes:
            return outcome
    return PASS if PASS in outcomes else FAIL  # nothing was asked: nothing was shown


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
        *_tries(policy, evidence, audits),
    )


def _signature(policy: Policy, signed_by: str | None) -> Reason:
    from mlflow_b3.gating.keys import key_id

    if signed_by is not None:
        text = f"the evidence is signed with the trusted key {key_id(signed_by)}"
        return Reason(check="signed", outcome=PASS, text=text)
    if policy.signed:
        text = "the evidence is not signed, and the policy counts signed evidence only"
        return Reason(check="signed", outcome=FAIL, text=text)
    text = "the evidence is not signed; the policy does not ask for it"
    return Reason(check="signed", outcome=PASS, text=text)


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


def _tries(policy: Policy, evidence: Evidence, audits: int) -> Iterator[Reason]:
    tried = max(audits, len(evidence.earlier_audits) + 1)
    too_many = policy.max_audits is not None and tried > policy.max_audits
    allowed = "" if policy.max_audits is None else f"; {policy.max_audits} are allowed"
    count = "one audit of this model was" if tried == 1 else f"{tried} audits of this model were"
    yield Reason(
        check="max_audits",
        outcome=FAIL if too_many else PASS,
        text=f"{count} tried, as far as MLflow knows{allowed}",
    )
    committed = evidence.preregistration
    if committed is not None and committed.get("matched") is True:
        text = f"its settings were committed beforehand, at {committed.get('committed_at')}"
        yield Reason(check="preregistered", outcome=PASS, text=text)
        return
    text = "its settings were not committed before it ran"
    if committed is not None:
        text = "its settings are not those that were committed before it ran"
    outcome = FAIL if policy.preregistered else NOT_APPLICABLE
    yield Reason(check="preregistered", outcome=outcome, text=text)


def _sources(policy: Policy, report: AuditReport) -> Iterator[Reason]:
    source = report.p0_source
    if source == "none":
        text = (
            "nothing is known about the share of wrong ids, and the loss curve does not tell it; "
            "give the audit evidence, such as resolved rows"
        )
        yield Reason(check="p0_sources", outcome=INCONCLUSIVE, text=text, waivable=True)
    elif policy.p0_sources is not None and source not in policy.p0_sources:
        text = f"the leaked share comes from {source}; allowed is {', '.join(policy.p0_sources)}"
        yield Reason(check="p0_sources", outcome=FAIL, text=text)
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


def _limit(policy: Policy, report: AuditReport) -> float | None:
    """Return the loss that e0 must stay below; None where it is not known."""
    if policy.e0_high == CONSTANT:
        return report.constant_loss
    return None if policy.e0_high is None else float(policy.e0_high)


def _e0_high(policy: Policy, report: AuditReport) -> Iterator[Reason]:
    check = "e0_high"
    if policy.e0_high is None:
        return
    limit = _limit(policy, report)
    if limit is None or not math.isfinite(limit):
        text = (
            f"the loss of the best constant answer is not known for the loss {report.settings.loss}"
        )
        yield Reason(check=check, outcome=INCONCLUSIVE, text=text)
        return
    words = number(limit) + (" of the best constant answer" if policy.e0_high == CONSTANT else "")
    low, high = report.e0_interval
    if not math.isfinite(low) or (high is not None and not math.isfinite(high)):
        text = "the interval of e0 has ends that are no numbers"
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
    if found is None or not math.isfinite(found):
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
    limit = _limit(policy, report)
    name = "cluster error" if check == "tipping_cluster_error" else "split rate"
    if limit is None or curve is None or curve.error is None or not curve.error:
        text = f"at which {name} e0 would reach the limit is not known"
        yield Reason(check=check, outcome=INCONCLUSIVE, text=text)
        return
    tips = curve.tipping_error(limit)
    if tips is None and curve.error[-1] < least:
        text = f"e0 stays below {number(limit)} up to a {name} of {curve.error[-1]:.1%}, which is all that is known"
        yield Reason(check=check, outcome=INCONCLUSIVE, text=text)
    elif tips is not None and tips < least:
        text = f"e0 reaches {number(limit)} at a {name} of {tips:.1%}; at least {least:.1%} is asked for"
        yield Reason(check=check, outcome=FAIL, text=text)
    else:
        where = "never" if tips is None else f"at {tips:.1%}"
        text = f"e0 reaches {number(limit)} {where} ({name}); at least {least:.1%} is asked for"
        yield Reason(check=check, outcome=PASS, text=text)
