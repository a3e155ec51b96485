"""Corrected cross-validation as text and as Markdown, alone and beside e0."""

from collections.abc import Sequence
from typing import Any

from mlflow_b3.auditing.report import AuditReport
from mlflow_b3.correlated.report import CvcReport
from mlflow_b3.reporting.charts import claimed_errors, e0_score, multiples_caption, scores_caption
from mlflow_b3.reporting.document import (
    aligned,
    escaped,
    listed,
    markdown_table,
    paragraphs,
    titled,
)
from mlflow_b3.reporting.phrases import (
    TITLE,
    answer_cvc,
    apart,
    describe_cvc,
    explain_cvc,
    joined,
    readable,
    scope_words,
    trust_cvc,
    value_words,
)
from mlflow_b3.reporting.tables import Score, cvc_score_table, level_table, multiple_tables
from mlflow_b3.results import Finding, number, percent

# --- How e0 of an audit and corrected cross-validation relate

#: From this share of wrong ids on it is shown what the correction would be without them.
MANY_WRONG = 0.05


def summarise_cvc(report: AuditReport) -> str:
    """Return corrected cross-validation in a sentence, to stand behind the answer of the audit."""
    cvc = report.cvc
    if cvc is None:
        return ""
    if cvc.cvc is None:
        return (
            " The correction of cross-validation for correlated rows (CV_c) is withheld; the findings "
            "say why."
        )
    low = ", by an approximation of lower quality" if cvc.lower_quality else ""
    return (
        f" Cross-validation corrected for correlated rows (CV_c) says "
        f"{value_words(cvc.cvc, cvc.interval)} {scope_words(cvc)}{low}."
    )


def explain_pair(report: AuditReport) -> list[str]:
    """Return what e0 and CV_c say together."""
    cvc, cluster = report.cvc, report.settings.cluster
    if cvc is None or cvc.cvc is None:
        return []
    if report.e0 is None:
        return [
            "e0 is not known, so that CV_c cannot be held against it. CV_c takes the ids as right: it "
            "is no answer to how many of them are wrong."
        ]
    if cluster not in cvc.new:
        return [
            f"e0 ({number(report.e0)}) is about new {cluster!r}, CV_c ({number(cvc.cvc)}) is not: it "
            f"holds {scope_words(cvc)}. They answer different questions."
        ]
    if report.settings.refit_strength != "full" and report.e0 <= cvc.cvc:
        return [
            f"e0 ({number(report.e0)}) and CV_c ({number(cvc.cvc)}) cannot be compared: e0 is a lower "
            "bound, because part of the model was not trained again."
        ]
    start = []
    if report.settings.claim == (0.0, 0.0):
        start = [
            f"The ids were taken as right, so that e0 is the score by folds of whole {cluster!r}, up to "
            "the noise of the fitted curve."
        ]
    return [*start, _reading(report, cvc, report.e0, cvc.cvc)]


def _reading(report: AuditReport, cvc: CvcReport, e0: float, value: float) -> str:
    cluster = report.settings.cluster
    side = apart(e0, report.e0_interval, value, cvc.interval)
    if side > 0:
        wrong = "so many ids are wrong that the groups look more alike than they are"
        if report.settings.claim == (0.0, 0.0):
            wrong = "ids are wrong after all"
        return (
            f"e0 ({number(e0)}) is well above CV_c ({number(value)}): either features carry a "
            f"signature of their cluster, which CV_c does not see, or {wrong}. Take e0, the "
            f"larger.{_without_wrong_ids(report, cvc)}"
        )
    if side < 0:
        others = [repr(name) for name in cvc.new if name != cluster]
        level = (
            f"at a level that e0 was not told ({joined(others)})" if others else "in another way"
        )
        return (
            f"e0 ({number(e0)}) is well below CV_c ({number(value)}): rows depend on each other "
            f"{level}, or the extrapolation to e0 is unstable (look at the residual of the loss "
            "curve). Until that is known take CV_c, the larger."
        )
    return (
        f"e0 ({number(e0)}) and CV_c ({number(value)}) differ by no more than their noise. Where one "
        f"number is needed, take the larger, {number(max(e0, value))}."
    )


def _without_wrong_ids(report: AuditReport, cvc: CvcReport) -> str:
    """Return what the correction would be if the wrong ids had weakened it as in simulations."""
    claimed = claimed_errors(report, report.sensitivity)
    by_error = claimed is not None and report.sensitivity.error is not None
    if claimed is None or not by_error or cvc.bias is None or not MANY_WRONG < claimed[1] < 1:
        return ""
    wrong = claimed[1]
    larger = cvc.bias / (1 - wrong) ** 3
    return (
        f" If {percent(wrong)} of the ids are wrong, and weaken the correction as in simulations, it "
        f"would be {number(larger)} instead of {number(cvc.bias)} without them, and CV_c "
        f"{number(cvc.cv + larger)}: a what-if, not an estimate."
    )


# --- Corrected cross-validation as text and as Markdown, alone and as a part of an audit

RESTS = "What the correction rests on"
TRUST = "When to trust which"


def cvc_text(report: CvcReport) -> str:
    """Return corrected cross-validation as text for a terminal, the answer first."""
    report = readable(report)
    sections = [
        *_text(report, trust_cvc(report)),
        paragraphs("Findings", [str(finding) for finding in report.findings]),
        paragraphs("How it was done", [describe_cvc(report)]),
    ]
    return "\n\n".join(section for section in sections if section)


def cvc_markdown(report: CvcReport) -> str:
    """Return corrected cross-validation as Markdown, the answer first."""
    report = readable(report)
    parts = [
        f"# {TITLE}",
        *_markdown(report, trust_cvc(report)),
        "## Findings",
        listed_findings(report.findings),
        "## How it was done",
        escaped(describe_cvc(report)),
    ]
    return "\n\n".join(parts) + "\n"


def listed_findings(findings: Sequence[Finding]) -> str:
    """Return findings as a Markdown list; that there are none where there are none."""
    rows = [f"- **{f.code}** {escaped(f.title)}: {escaped(f.message)}" for f in findings]
    return "\n".join(rows) if rows else "None."


def cvc_sections(report: AuditReport) -> list[str]:
    """Return the part of an audit's text; nothing for audits without corrected cross-validation.

    The names in the report must be readable.
    """
    if report.cvc is None:
        return []
    trust = [*explain_pair(report), *trust_cvc(report.cvc)]
    return _text(report.cvc, trust, e0_score(report))


def cvc_parts(report: AuditReport) -> list[str]:
    """Return the part of an audit's Markdown; nothing for audits without it."""
    if report.cvc is None:
        return []
    trust = [*explain_pair(report), *trust_cvc(report.cvc)]
    return [f"## {TITLE}", *_markdown(report.cvc, trust, e0_score(report))]


def findings_with_cvc(report: AuditReport) -> tuple[Finding, ...]:
    """Return the findings of an audit and of its corrected cross-validation, each once."""
    own = () if report.cvc is None else report.cvc.findings
    return report.findings + tuple(finding for finding in own if finding not in report.findings)


def cvc_values(report: AuditReport) -> dict[str, Any] | None:
    """Return what an audit's page shows of corrected cross-validation, where there is one."""
    cvc = report.cvc
    if cvc is None:
        return None
    return {
        "title": TITLE,
        "answer": answer_cvc(cvc),
        "rests": explain_cvc(cvc),
        "trust_title": TRUST,
        "trust": [*explain_pair(report), *trust_cvc(cvc)],
        "scores_caption": scores_caption(cvc),
        "multiples_caption": multiples_caption(cvc),
        "tables": [level_table(cvc), *multiple_tables(cvc)],
    }


def _text(report: CvcReport, trust: Sequence[str], *more: Score) -> list[str]:
    tables = [level_table(report), *multiple_tables(report)]
    return [
        paragraphs(TITLE, [answer_cvc(report)]),
        "\n".join(aligned(cvc_score_table(report, *more).rows, right=1)),
        paragraphs(RESTS, explain_cvc(report)),
        *("\n".join([table.title, *aligned((table.head, *table.rows))]) for table in tables),
        paragraphs(TRUST, trust),
    ]


def _markdown(report: CvcReport, trust: Sequence[str], *more: Score) -> list[str]:
    return [
        f"**{escaped(answer_cvc(report))}**",
        markdown_table(cvc_score_table(report, *more)),
        *map(escaped, explain_cvc(report)),
        *titled([level_table(report), *multiple_tables(report)]),
        *([f"{TRUST}:", listed(trust)] if trust else []),
    ]
