"""Verdicts: whether an audited model passes a policy, with every reason."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from mlflow_b3.auditing.comparison import compare_reports
from mlflow_b3.auditing.conclusions import cannot_show
from mlflow_b3.auditing.extension import LimitedScore
from mlflow_b3.auditing.report import AuditReport, turned
from mlflow_b3.errors import InputError
from mlflow_b3.evidence.document import Evidence, key_id, trusted_keys
from mlflow_b3.evidence.policy import (
    CONSTANT,
    PINNED,
    SOURCES,
    TRAINING,
    Pin,
    Policy,
    is_known,
    limit_of,
    limits_of,
    unknown_limit,
)
from mlflow_b3.results import Result, number

if TYPE_CHECKING:
    from mlflow_b3.estimation.sensitivity import Sensitivity


# --- Reasons and their outcome

PASS, FAIL, INCONCLUSIVE, NOT_APPLICABLE = "PASS", "FAIL", "INCONCLUSIVE", "NOT_APPLICABLE"


@dataclass(frozen=True, kw_only=True)
class Reason(Result):
    """One requirement of a policy, and what was found.

    Attributes
    ----------
    check : str
        The requirement, by its key in the policy.
    outcome : {"PASS", "FAIL", "INCONCLUSIVE", "NOT_APPLICABLE"}
    text : str
    waivable : bool
        For INCONCLUSIVE: the policy may let it pass. Missing information never passes.
    """

    check: str
    outcome: str
    text: str
    waivable: bool = False


def conclude_reasons(reasons: tuple[Reason, ...]) -> str:
    """Return the worst outcome: FAIL, then INCONCLUSIVE, then PASS."""
    outcomes = {reason.outcome for reason in reasons}
    for outcome in (FAIL, INCONCLUSIVE):
        if outcome in outcomes:
            return outcome
    return PASS if PASS in outcomes else FAIL  # no check applied, so nothing was shown


# --- Scores compared with the limit of a policy


def _judge_score(check: str, score: LimitedScore, limit: float, words: str) -> Reason:
    found = (score.value, *(score.interval or ()))
    if not all(value is None or is_known(value) for value in found):
        text = f"{score.name} or an end of its interval is not a number"
        return Reason(check=check, outcome=FAIL, text=text)
    if score.value is None or score.interval is None:
        return Reason(check=check, outcome=INCONCLUSIVE, text=score.withheld)
    if score.approximate:
        return Reason(check=check, outcome=INCONCLUSIVE, text=score.approximate)
    if score.greater:
        return _judge_score_interval(check, score.name, *score.interval, limit, words)
    return _judge_interval(check, score.name, score.interval, limit, words)


def _judge_interval(
    check: str, name: str, interval: tuple[float, float | None], limit: float, words: str
) -> Reason:
    """Compare an interval, whose ends are numbers, with a limit."""
    low, high = interval
    if high is not None and high < low:
        text = f"the interval of {name} ends at {number(high)}, below its start at {number(low)}"
        return Reason(check=check, outcome=FAIL, text=text)
    if low > limit:
        text = f"{name} is at least {number(low)}, above the limit, {words}"
        return Reason(check=check, outcome=FAIL, text=text)
    if high is None:
        text = f"{name} has no known upper end; the limit is {words}"
        return Reason(check=check, outcome=INCONCLUSIVE, text=text)
    if high > limit:
        text = (
            f"{name} is between {number(low)} and {number(high)}; the limit, {words}, is in between"
        )
        return Reason(check=check, outcome=INCONCLUSIVE, text=text, waivable=True)
    text = f"{name} is at most {number(high)}; the limit is {words}"
    return Reason(check=check, outcome=PASS, text=text)


# --- The verdict

#: Allowed difference between the clocks of two machines.
SKEW = timedelta(minutes=10)
#: Findings that only audits with a count of repeated clusters look for.
SINCE_N_REPEATED = ("B343", "B344")


@dataclass(frozen=True, kw_only=True, repr=False)
class Verdict(Result):
    """Whether a version may be promoted, and why.

    Attributes
    ----------
    outcome : {"PASS", "FAIL", "INCONCLUSIVE", "NOT_APPLICABLE"}
    allowed : bool
        Whether a guarded alias or stage may point to the version.
    reasons : tuple of Reason
        All reasons, not only the decisive ones.
    model, version : str
        The registered version.
    policy_hash : str
    audit_run_id : str or None
        The audit that the verdict is based on.
    judged_at : str
    promoted : str or None
        The alias that the version was given.

    Examples
    --------
    >>> import mlflow_b3 as b3
    >>> from mlflow_b3.evidence.verdict import Reason
    >>> reasons = (
    ...     Reason(check="signed", outcome="FAIL", text="the evidence is not signed"),
    ...     Reason(check="evidence", outcome="PASS", text="the evidence is of this model"),
    ... )
    >>> verdict = b3.Verdict(
    ...     outcome="FAIL",
    ...     allowed=False,
    ...     reasons=reasons,
    ...     model="triage",
    ...     version="3",
    ...     policy_hash="20dd6f490b64",
    ...     audit_run_id="241a118098d54359",
    ...     judged_at="2026-01-31T12:00:00+00:00",
    ... )
    >>> [reason.check for reason in verdict.decisive]
    ['signed']
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
        """The reasons that decided the outcome."""
        return tuple(r for r in self.reasons if r.outcome == self.outcome)

    def __str__(self) -> str:
        """Return the verdict in plain words: the outcome, why, and what to do."""
        from mlflow_b3.gating.gate import verdict_text

        return verdict_text(self)

    def __repr__(self) -> str:
        """Return the outcome and the checks that decided it, on one line."""
        checks = ", ".join(reason.check for reason in self.decisive) or "none"
        uri = f"models:/{self.model}/{self.version}"
        return f"<Verdict {self.outcome} for {uri}, decided by: {checks}>"

    def _repr_html_(self) -> str:
        """Return the outcome and its reasons as a card, for notebooks."""
        from mlflow_b3.gating.gate import verdict_card

        return verdict_card(self)


def is_allowed(policy: Policy, reasons: tuple[Reason, ...]) -> bool:
    """Whether the policy lets a version with these reasons pass."""
    outcome = conclude_reasons(reasons)
    if outcome == INCONCLUSIVE:
        open_ones = [reason for reason in reasons if reason.outcome == INCONCLUSIVE]
        return policy.inconclusive == "allow" and all(reason.waivable for reason in open_ones)
    return outcome == PASS


@dataclass(frozen=True, kw_only=True)
class Results:
    """The results of an audit and the policy to judge them by.

    Attributes
    ----------
    policy : Policy
    report : AuditReport
    model : str
        Name of the registered model, which selects the pin.
    training_digests : frozenset of str, optional
        MLflow's digests of the datasets that the training run logged; None if unknown.
    """

    policy: Policy
    report: AuditReport
    model: str
    training_digests: frozenset[str] | None = None


@dataclass(frozen=True, kw_only=True)
class Proof:
    """Verified evidence and the policy to judge it by.

    Attributes
    ----------
    policy : Policy
    evidence : Evidence
    signed_by : str or None
        The trusted key that signed it.
    audits : int
        Number of audits of the model that count.
    now : datetime
    unsigned : int
        Number of unsigned audits that do not count.
    """

    policy: Policy
    evidence: Evidence
    signed_by: str | None
    audits: int
    now: datetime
    unsigned: int = 0


def judge_results(results: Results) -> tuple[Reason, ...]:
    """Judge what was audited, and the results, by a policy."""
    return tuple(reason for check in RESULT_CHECKS for reason in check(results))


def judge_evidence(proof: Proof) -> tuple[Reason, ...]:
    """Judge the evidence itself by a policy: signature, age, number of audits, preregistration."""
    return tuple(check(proof) for check in EVIDENCE_CHECKS)


def _check_signature(proof: Proof) -> Reason:
    policy, signed_by = proof.policy, proof.signed_by
    if signed_by is not None:
        text = f"the evidence is signed with the trusted key {key_id(signed_by)}"
        return Reason(check="signed", outcome=PASS, text=text)
    rule = "requires a signature" if policy.signed else "does not require a signature"
    text = f"the evidence is not signed with a trusted key; the policy {rule}"
    return Reason(check="signed", outcome=FAIL if policy.signed else PASS, text=text)


def _check_age(proof: Proof) -> Reason:
    check, policy, evidence = "max_age_days", proof.policy, proof.evidence
    try:
        measured = datetime.fromisoformat(evidence.measured_at)
        age = proof.now - (measured if measured.tzinfo else measured.replace(tzinfo=UTC))
    except (ValueError, OverflowError):
        text = f"the time of the audit, {evidence.measured_at!r}, cannot be read"
        return Reason(check=check, outcome=FAIL, text=text)
    if age < -SKEW:
        text = f"the time of the audit, {evidence.measured_at}, is in the future"
        return Reason(check=check, outcome=FAIL, text=text)
    days = max(age.total_seconds(), 0.0) / 86400
    if policy.max_age_days is not None and days > policy.max_age_days:
        text = f"the audit is {days:.1f} days old; {policy.max_age_days:g} are allowed"
        return Reason(check=check, outcome=FAIL, text=text)
    limit = "" if policy.max_age_days is None else f"; {policy.max_age_days:g} are allowed"
    return Reason(check=check, outcome=PASS, text=f"the audit is {days:.1f} days old{limit}")


def _check_audit_count(proof: Proof) -> Reason:
    unsigned, most = proof.unsigned, proof.policy.max_audits
    tried = max(proof.audits, len(proof.evidence.earlier_audits) + 1)
    are, do = ("is", "does") if unsigned == 1 else ("are", "do")
    more = "" if not unsigned else f"; {unsigned} more {are} unsigned and {do} not count"
    then = proof.evidence.unsigned_audits or 0
    if then > unsigned:  # tags of unsigned runs can be removed, signed counts cannot
        more += f"; when it was signed, {then} more {'was' if then == 1 else 'were'} unsigned"
    allowed = "" if most is None else f"; {most} {'is' if most == 1 else 'are'} allowed"
    count = "one audit" if tried == 1 else f"{tried} audits"
    return Reason(
        check="max_audits",
        outcome=NOT_APPLICABLE if most is None else FAIL if tried > most else PASS,
        text=f"MLflow knows of {count} of this model{allowed}{more}",
    )


def _check_preregistration(proof: Proof) -> Reason:
    policy, committed = proof.policy, proof.evidence.preregistration or {}
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
        if committed.get("hash") is None:  # such as an audit that was recorded when it was done
            text = "its record does not say that its settings were committed before it ran, as others were"
        text += f", in run {where}" if where else ""
    elif policy.signed and committed.get("signed_by") not in set(trusted):
        text = "its settings were committed beforehand, but not signed with a trusted key"
    else:
        text = f"its settings were committed beforehand, at {committed.get('committed_at')}"
        outcome = PASS
    return Reason(check="preregistered", outcome=outcome, text=f"{text}{shopping}")


def _check_pins(results: Results) -> Iterator[Reason]:
    yield _judge_pin(results)


def _judge_pin(results: Results) -> Reason:
    report, model = results.report, results.model
    check, pin = "pins", results.policy.pin_for(model)
    if pin is None:
        name = repr(model) if model else "models that are not registered"
        text = f"the policy does not say which target, cluster and loss count for {name}"
        return Reason(check=check, outcome=FAIL, text=text)
    pinned = {key: getattr(pin, key) for key in PINNED if getattr(pin, key) is not None}
    if not pinned:
        text = f"nothing is pinned for {pin.models!r}: the auditor chose what to audit"
        return Reason(check=check, outcome=PASS, text=text)
    wrong = [
        f"the {key} is {getattr(report.settings, key)!r}, not {_any_of(names)}"
        for key, names in pinned.items()
        if key != "data" and getattr(report.subject, key) not in names
    ]
    on_table = None if pin.data is None else _judge_table(pin, report, results.training_digests)
    if on_table is not None and on_table.outcome == FAIL:
        wrong.append(on_table.text)
    if wrong:
        text = f"the audit differs from what the policy pins for {pin.models!r}: {'; '.join(wrong)}"
        return Reason(check=check, outcome=FAIL, text=text)
    if on_table is not None and on_table.outcome == INCONCLUSIVE:
        return on_table
    words = [f"{key} {_any_of(names)}" for key, names in pinned.items() if key != "data"]
    words += [] if on_table is None else [on_table.text]
    return Reason(
        check=check,
        outcome=PASS,
        text=f"the audit matches what the policy pins: {', '.join(words)}",
    )


def _judge_table(pin: Pin, report: AuditReport, training_digests: frozenset[str] | None) -> Reason:
    """Judge whether the audited table is one that a pin names."""
    check, digest = "pins", report.subject.data_digest
    assert pin.data is not None
    if digest in pin.data:
        return Reason(check=check, outcome=PASS, text=f"the table {digest[:12]}…")
    if TRAINING not in pin.data:
        text = f"the digest of the table is {digest!r}, not {_any_of(pin.data)}"
        return Reason(check=check, outcome=FAIL, text=text)
    if training_digests is None:
        text = "it is unknown here which datasets the training run logged"
        return Reason(check=check, outcome=INCONCLUSIVE, text=text)
    if not training_digests:
        text = "the training run logged no dataset to compare the table with"
        return Reason(check=check, outcome=FAIL, text=text)
    if report.subject.training_digest not in training_digests:
        text = "the table is not one of the datasets that the training run logged"
        return Reason(check=check, outcome=FAIL, text=text)
    return Reason(check=check, outcome=PASS, text="a table that the training run logged")


def _any_of(names: tuple[str, ...]) -> str:
    return " or ".join(map(repr, names))


def _check_cluster_counts(results: Results) -> Iterator[Reason]:
    policy, report = results.policy, results.report
    for check, least, found, what in (
        ("min_clusters", policy.min_clusters, report.subject.n_clusters, "clusters"),
        (
            "min_repeated_clusters",
            policy.min_repeated_clusters,
            report.subject.n_repeated,
            "clusters with at least two rows",
        ),
    ):
        if least is None:
            continue
        if found is None:
            text = f"the audit was made by an earlier version, which did not count {what}"
            yield Reason(check=check, outcome=INCONCLUSIVE, text=text)
        else:
            text = f"the table has {found} {what}; at least {least} are required"
            yield Reason(check=check, outcome=FAIL if found < least else PASS, text=text)


def _check_findings(results: Results) -> Iterator[Reason]:
    policy, report = results.policy, results.report
    check, codes = "findings", policy.refuse_findings
    refused = [finding for finding in report.findings if finding.code in codes]
    for finding in refused:
        yield Reason(check=check, outcome=FAIL, text=str(finding))
    unseen = [code for code in codes if code in SINCE_N_REPEATED]
    if unseen and report.subject.n_repeated is None:
        text = (
            f"the audit was made by an earlier version, which did not look for {', '.join(unseen)}"
        )
        yield Reason(check=check, outcome=INCONCLUSIVE, text=text)
    elif codes and not refused:
        text = f"the audit has none of the findings {', '.join(codes)}"
        yield Reason(check=check, outcome=PASS, text=text)


def _check_folds(results: Results) -> Iterator[Reason]:
    """Refuse scores that were never measured without known leakage, whatever the policy says."""
    folds = results.report.folds
    leaking = sum(fold.shared_clusters > 0 for fold in folds)
    if leaking:
        text = (
            f"{leaking} of {len(folds)} folds have rows of the same cluster id on both sides, so no "
            "score of this audit is one on new clusters; audit again with folds by cluster"
        )
        yield Reason(check="folds", outcome=FAIL, text=text)


def _check_sources(results: Results) -> Iterator[Reason]:
    policy, report = results.policy, results.report
    source = report.p0_source
    if source not in (*SOURCES, "none"):
        text = f"the leaked share comes from the unknown source {source!r}"
        yield Reason(check="p0_sources", outcome=FAIL, text=text)
    elif policy.p0_sources is not None and source != "none" and source not in policy.p0_sources:
        text = f"the leaked share comes from {source}; the policy allows {', '.join(policy.p0_sources)}"
        yield Reason(check="p0_sources", outcome=FAIL, text=text)
    elif source == "none":
        text = (
            "the share of wrong ids is unknown, and the loss curve does not determine it; audit again "
            "with evidence such as resolved rows"
        )
        yield Reason(check="p0_sources", outcome=INCONCLUSIVE, text=text, waivable=True)
    elif report.e0 is None and cannot_show(report.subject, report.folds):
        text = "the data cannot show the score on new clusters, whatever the share of wrong ids"
        yield Reason(check="p0_sources", outcome=INCONCLUSIVE, text=text)
    elif report.e0 is None:
        text = f"{source} does not bound the leaked share, so e0 is not determined"
        yield Reason(check="p0_sources", outcome=INCONCLUSIVE, text=text, waivable=True)
    else:
        text = f"the leaked share comes from {source}"
        yield Reason(check="p0_sources", outcome=PASS, text=text)


def _check_refits(results: Results) -> Iterator[Reason]:
    policy, report = results.policy, results.report
    route = report.refit.route
    if policy.refits is not None and route not in policy.refits:
        text = f"the model was refitted by {route}; the policy allows {', '.join(policy.refits)}"
        yield Reason(check="refits", outcome=FAIL, text=text)
    elif not report.refit.is_full:
        text = f"refits by {route} keep some of what the model learned from all rows: e0 is a lower bound"
        yield Reason(check="refits", outcome=INCONCLUSIVE, text=text)
    elif route == "trainer" and policy.refits is None:
        text = (
            "the model was refitted by a trainer, and nothing compares what it trains with the logged "
            "model; if somebody has read the trainer, name the accepted routes in evidence.refits"
        )
        yield Reason(check="refits", outcome=INCONCLUSIVE, text=text)
    else:
        yield Reason(check="refits", outcome=PASS, text=f"the model was refitted by {route}")


def _check_e0(results: Results) -> Iterator[Reason]:
    policy, report = results.policy, results.report
    greater = report.subject.greater_is_better
    mismatch = _mismatched_limit(policy, report)
    if mismatch is not None:
        yield mismatch
    for is_constant, limit, words in limits_of(policy, report):
        check = "score_low" if greater else "e0_high"
        yield _judge_e0("constant" if is_constant else check, report, limit, words)


def _mismatched_limit(policy: Policy, report: AuditReport) -> Reason | None:
    """Return why a limit on a loss says nothing about a score, or the other way round."""
    name, greater = report.subject.loss, report.subject.greater_is_better
    if greater and policy.e0_high is not None and policy.e0_high != CONSTANT:
        text = (
            f"limits.e0_high is a limit on a loss, but the audit is of {name}, of which more is better; "
            "set limits.score_low, and limits.e0_high to constant or null"
        )
        return Reason(check="e0_high", outcome=INCONCLUSIVE, text=text)
    if not greater and policy.score_low is not None:
        text = (
            f"limits.score_low is a limit on a score of which more is better, but the audit is of the loss "
            f"{name}"
        )
        return Reason(check="score_low", outcome=INCONCLUSIVE, text=text)
    return None


def _judge_e0(check: str, report: AuditReport, limit: float | None, words: str) -> Reason:
    """Compare the interval of e0 with a limit."""
    if limit is None or not is_known(limit):
        return Reason(check=check, outcome=INCONCLUSIVE, text=unknown_limit(report))
    low, high = report.e0_interval
    if not (is_known(low) and all(value is None or is_known(value) for value in (report.e0, high))):
        text = "e0 or an end of its interval is not a number"
        return Reason(check=check, outcome=FAIL, text=text)
    if report.subject.greater_is_better:
        return _judge_score_interval(check, "e0", low, high, limit, words)
    return _judge_interval(check, "e0", report.e0_interval, limit, words)


def _judge_score_interval(
    check: str, name: str, low: float, high: float | None, limit: float, words: str
) -> Reason:
    """Compare the interval of a score of which more is better with the least that is allowed."""
    if high is None or high < low:
        text = f"the interval of {name} ends at {number(high)}, below its start at {number(low)}"
        return Reason(check=check, outcome=FAIL, text=text)
    if high < limit:
        text = f"{name} is at most {number(high)}, below the limit, {words}"
        return Reason(check=check, outcome=FAIL, text=text)
    if low < limit:
        text = (
            f"{name} is between {number(low)} and {number(high)}; the limit, {words}, is in between"
        )
        return Reason(check=check, outcome=INCONCLUSIVE, text=text, waivable=True)
    text = f"{name} is at least {number(low)}; the limit is {words}"
    return Reason(check=check, outcome=PASS, text=text)


def _check_extensions(results: Results) -> Iterator[Reason]:
    """Judge the scores of extensions, such as CV_c, by the limit on e0.

    They measure different leaks: e0 that of wrong ids, CV_c that of the correlations that the user
    named. So each must respect the limit.
    """
    policy, report = results.policy, results.report
    for part in report.extensions:
        score = part.limited(report.refit.strength)
        for is_constant, limit, words in limits_of(policy, report):
            check = score.checks[is_constant]
            if score.greater != report.subject.greater_is_better:
                text = f"{score.name} is not of {report.subject.loss}, which the audit is of"
                yield Reason(check=check, outcome=FAIL, text=text)
            elif limit is None or not is_known(limit):
                yield Reason(check=check, outcome=INCONCLUSIVE, text=unknown_limit(report))
            else:
                yield _judge_score(check, score, limit, words)


def _check_inflation(results: Results) -> Iterator[Reason]:
    policy, report = results.policy, results.report
    check, found, limit = "inflation", report.inflation, policy.inflation
    if limit is None:
        return
    if found is None or not is_known(found):
        text = "e0 - LOCO, by which LOCO is optimistic, is unknown"
        yield Reason(check=check, outcome=INCONCLUSIVE, text=text)
        return
    pair = "LOCO exceeds e0" if report.subject.greater_is_better else "e0 exceeds LOCO"
    words = f"{pair} by {number(found)}; the limit is {number(limit)}"
    yield Reason(check=check, outcome=PASS if found <= limit else FAIL, text=words)


def _check_tipping_points(results: Results) -> Iterator[Reason]:
    report = results.report.as_losses
    yield from _check_tipping_point(results, "tipping_cluster_error", report.sensitivity)
    yield from _check_tipping_point(results, "tipping_split_rate", report.fragment_sensitivity)


def _check_tipping_point(
    results: Results, check: str, curve: "Sensitivity | None"
) -> Iterator[Reason]:
    policy, report = results.policy, results.report
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
        text = f"the {name} at which e0 reaches the limit is unknown"
        yield Reason(check=check, outcome=INCONCLUSIVE, text=text)
        return
    greater = report.subject.greater_is_better
    tips = curve.tipping_error(turned(limit) if greater else limit)
    if tips is None and axis[-1] < least:
        side = "above" if greater else "below"
        text = f"e0 stays {side} {number(limit)} up to a {name} of {axis[-1]:.1%}; beyond that it is unknown"
        yield Reason(check=check, outcome=INCONCLUSIVE, text=text)
    elif tips is not None and tips < least:
        text = f"e0 reaches {number(limit)} at a {name} of {tips:.1%}; at least {least:.1%} is required"
        yield Reason(check=check, outcome=FAIL, text=text)
    else:
        where = "at no" if tips is None else "at a"
        share = "" if tips is None else f" of {tips:.1%}"
        text = f"e0 reaches {number(limit)} {where} {name}{share}; at least {least:.1%} is required"
        yield Reason(check=check, outcome=PASS, text=text)


#: Checks of the evidence, by `gate` and `verify`.
EVIDENCE_CHECKS = (_check_signature, _check_age, _check_audit_count, _check_preregistration)
#: Checks of the results, by `gate`.
RESULT_CHECKS = (
    _check_pins,
    _check_cluster_counts,
    _check_folds,
    _check_findings,
    _check_sources,
    _check_refits,
    _check_e0,
    _check_extensions,
    _check_inflation,
    _check_tipping_points,
)


# --- A candidate compared with the champion

CHAMPION_CHECK = "champion"
CANDIDATE, CHAMPION = "this version", "the champion"


def judge_champion(rule: str, candidate: AuditReport, champion: AuditReport) -> Reason:
    """Judge a candidate by comparison with the champion.

    Parameters
    ----------
    rule : {"not_worse", "better"}
    candidate, champion : AuditReport
        Both must be audits of the same rows with the same folds and leakage. Otherwise the outcome is
        INCONCLUSIVE, because the noise of the folds would look like a difference between the models.
    """
    try:
        compared = compare_reports({CANDIDATE: candidate, CHAMPION: champion}, by="e0")
    except InputError as error:
        return _inconclusive(f"it cannot be compared with the champion: {error}")
    if compared.by != "e0" or not compared.differences:
        return _inconclusive("e0 of this version or of the champion is unknown")
    found = compared.differences[0]
    words = f"{found.better} is better by {number(found.difference)}"
    words += f" ({number(found.interval[0])} to {number(found.interval[1])})"
    if not (found.comparable and found.paired):
        return _inconclusive(
            f"{words}, but the two were not audited together on the same rows and folds"
        )
    if not found.noise_known:
        return _inconclusive(f"{words}, but there are too few clusters to tell that from noise")
    if found.beyond_noise:
        outcome = PASS if found.better == CANDIDATE else FAIL
        return Reason(check=CHAMPION_CHECK, outcome=outcome, text=f"{words}, beyond noise")
    if rule == "better":
        return _inconclusive(f"{words}, which is within the noise")
    return Reason(check=CHAMPION_CHECK, outcome=PASS, text=f"{words}, which is within the noise")


def _inconclusive(text: str) -> Reason:
    return Reason(check=CHAMPION_CHECK, outcome=INCONCLUSIVE, text=text, waivable=True)
