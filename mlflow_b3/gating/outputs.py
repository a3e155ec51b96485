"""Verdicts for people and for CI systems: text, JSON, Markdown and JUnit XML.

Names of models, files and tags are other people's. Whatever they contain, they cannot write to a
terminal, a page, a test report or the log of a CI system anything but themselves.
"""

import json
import re
import textwrap
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from mlflow_b3.gating.policy import load_policy
from mlflow_b3.gating.remedies import next_steps, remedies
from mlflow_b3.gating.verdict import (
    FAIL,
    INCONCLUSIVE,
    NOT_APPLICABLE,
    PASS,
    Reason,
    Verdict,
)
from mlflow_b3.reporting.layout import WIDTH, escaped, listed, markdown_table
from mlflow_b3.reporting.readable import LONGEST_NAME, shorten
from mlflow_b3.reporting.tables import Table
from mlflow_b3.wording import visible

if TYPE_CHECKING:
    from mlflow_b3.gating.attesting import Attestation
    from mlflow_b3.gating.verifying import Verification

LONGEST_REASON = 1000
#: The worst comes first, and is in capitals.
MARKS = {FAIL: "FAIL", INCONCLUSIVE: "OPEN", PASS: "pass", NOT_APPLICABLE: "-"}
#: What CI systems take for commands to themselves: "::error::" and "##[error]".
_COMMANDS = re.compile(r":(?=:)|#(?=#)")


@dataclass(frozen=True, kw_only=True)
class Summary:
    """What a verdict, or a look at evidence, says to its reader.

    Attributes
    ----------
    headline : str
        What is the case.
    reasons : tuple of Reason
    steps : tuple of str
        What to do.
    basis : str
        What it rests on.
    """

    headline: str
    reasons: tuple[Reason, ...]
    steps: tuple[str, ...]
    basis: str


def plain(text: str, longest: int = LONGEST_REASON) -> str:
    """Return text on one line that hides nothing and that no terminal or CI system obeys."""
    return _COMMANDS.sub(r"\g<0> ", shorten(visible(text), longest))


def summarize(verdict: Verdict, promote: str | None = None) -> Summary:
    """Put a verdict into words.

    Parameters
    ----------
    verdict : Verdict
    promote : str, optional
        The alias that was asked for.
    """
    return Summary(
        headline=_headline(verdict, promote),
        reasons=verdict.reasons,
        steps=next_steps(verdict),
        basis=f"Judged at {verdict.judged_at} by {_policy_name(verdict.policy_hash)}"
        f"{_on(verdict.audit_run_id)}.",
    )


def _policy_name(policy_hash: str) -> str:
    default = "default " if policy_hash == load_policy().hash else ""
    return f"the {default}policy {policy_hash[:12]}"


def _on(audit_run_id: str | None) -> str:
    return "" if audit_run_id is None else f", on the audit of run {audit_run_id}"


def _headline(verdict: Verdict, promote: str | None) -> str:
    name = plain(f"models:/{verdict.model}/{verdict.version}", LONGEST_NAME)
    if verdict.promoted is not None:
        told = f"{name} now has the alias {verdict.promoted!r}"
    else:
        told = f"{name} may {'' if verdict.allowed else 'not '}be promoted"
    why = {
        (INCONCLUSIVE, False): ": the numbers do not decide, and the policy refuses what is open",
        (INCONCLUSIVE, True): ": the numbers do not decide, and the policy allows that",
        (NOT_APPLICABLE, True): ": the policy does not apply to it",
    }.get((verdict.outcome, verdict.allowed), "")
    kept = f" The alias {promote!r} was left as it is." if promote and not verdict.allowed else ""
    return f"{verdict.outcome}: {told}{why}.{kept}"


def verdict_text(verdict: Verdict, promote: str | None = None) -> str:
    """Return a verdict as text for a terminal."""
    return to_text(summarize(verdict, promote))


def verdict_markdown(verdict: Verdict, promote: str | None = None) -> str:
    """Return a verdict as Markdown, as the summary of a job on GitHub shows it."""
    return to_markdown("Leakage gate", summarize(verdict, promote))


def verification_text(found: "Verification") -> str:
    """Return what was checked of a version's evidence, and found, as text for a terminal."""
    uri = f"models:/{found.model}/{found.version}"
    broken = sum(check.outcome == FAIL for check in found.checks)
    parts = "one part" if broken == 1 else f"{broken} parts"
    told = (
        f"HOLDS: the evidence of {uri} is as the audit wrote it, and of the files that are there now."
        if found.holds
        else f"BROKEN: {parts} of the evidence of {uri} cannot be relied on."
    )
    return to_text(
        Summary(
            headline=told,
            reasons=found.checks,
            steps=() if found.holds else remedies(found.checks, uri),
            basis=f"Checked at {found.checked_at}, with the keys and the terms of "
            f"{_policy_name(found.policy_hash)}{_on(found.audit_run_id)}.",
        )
    )


def attestation_text(found: "Attestation") -> str:
    """Return what was checked of an audit, and whether it was signed, as text for a terminal."""
    broken = sum(check.outcome == FAIL for check in found.checks)
    parts = "one check" if broken == 1 else f"{broken} checks"
    headline = (
        f"ATTESTED: the audit of {found.model} was checked and signed with the key {found.key}."
        if found.attested
        else f"NOT ATTESTED: {parts} of the audit of {found.model} failed; nothing was signed."
    )
    meaning = (
        "Model files, table and measurements belong together, and the conclusions follow from them. "
        "The signature does not vouch for what the model's own code did during its refits."
    )
    remedy = (
        "Find out what changed since the audit, then audit the model again: mlflow-b3 audit "
        f"--model-uri {found.model} …"
    )
    return to_text(
        Summary(
            headline=headline,
            reasons=found.checks,
            steps=() if found.attested else (remedy,),
            basis=f"Checked at {found.attested_at}, the audit of run {found.audit_run_id}. "
            + (meaning if found.attested else ""),
        )
    )


def to_text(summary: Summary) -> str:
    """Return a summary as text for a terminal: what is the case, why, what to do."""
    names = [plain(reason.check, LONGEST_NAME) for reason in summary.reasons]
    width = max(map(len, names), default=0)
    lines = []
    for reason in _worst_first(summary.reasons):
        name = plain(reason.check, LONGEST_NAME)
        start = f"  {MARKS[reason.outcome]:<4}  {name:<{width}}  "
        lines += _wrapped(plain(reason.text), start, " " * len(start))
    steps = to_list(summary.steps)
    sections = [
        _wrapped(plain(summary.headline), "", ""),
        lines,
        ["What to do", *steps] if steps else [],
        _wrapped(plain(summary.basis), "", ""),
    ]
    return "\n\n".join("\n".join(section) for section in sections if section)


def to_list(sentences: Iterable[str]) -> list[str]:
    """Return the lines of a list of sentences."""
    return [line for text in sentences for line in _wrapped(plain(text), "  - ", "    ")]


def _wrapped(text: str, first: str, others: str) -> list[str]:
    # commands and ids are copied: they are not broken
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent=first,
        subsequent_indent=others,
        break_long_words=False,
        break_on_hyphens=False,
    )


def to_markdown(title: str, summary: Summary) -> str:
    """Return a summary as Markdown without any markup but its own."""
    outcome, _, told = plain(summary.headline).partition(": ")
    table = Table(
        title="",
        head=("", "check", "what was found"),
        rows=tuple(
            (MARKS[r.outcome], plain(r.check, LONGEST_NAME), plain(r.text))
            for r in _worst_first(summary.reasons)
        ),
    )
    steps = listed(map(plain, summary.steps))
    parts = [
        f"### {title}: {escaped(outcome)}",
        escaped(told),
        markdown_table(table),
        f"**What to do**\n\n{steps}" if steps else "",
        escaped(plain(summary.basis)),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def to_ascii_json(values: dict[str, Any]) -> str:
    """Return strict JSON whose text is that of the values, but that no terminal or CI system obeys."""
    text = json.dumps(values, indent=2, allow_nan=False)
    # outside of strings JSON has none of these
    for character in ("\x7f", "#"):
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text.replace("::", "\\u003a\\u003a")


def verdict_json(verdict: Verdict, promote: str | None = None) -> str:  # noqa: ARG001
    """Return a verdict as JSON, all in ASCII."""
    return to_ascii_json(verdict.to_dict())


def verdict_junit(verdict: Verdict, promote: str | None = None) -> str:
    """Return a verdict as JUnit XML, a test case for each reason.

    What is open counts as a failure, unless the policy lets it pass: a report of tests has no word
    for it, and must not be green where the version was refused.
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
    told = ElementTree.SubElement(suite, "system-out")
    told.text = verdict_text(verdict, promote)
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


def _worst_first(reasons: tuple[Reason, ...]) -> list[Reason]:
    order = list(MARKS)
    return sorted(reasons, key=lambda reason: order.index(reason.outcome))


#: What `--format` and the endings of `--output` stand for.
FORMATS: dict[str, Callable[[Verdict, str | None], str]] = {
    "text": verdict_text,
    "json": verdict_json,
    "markdown": verdict_markdown,
    "junit": verdict_junit,
}
ENDINGS = {".txt": "text", ".json": "json", ".md": "markdown", ".xml": "junit"}
