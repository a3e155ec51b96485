"""The answer of an audit at a glance: a card for pages and notebooks, and lines for a terminal."""

import textwrap
from collections.abc import Mapping

from mlflow_b3.auditing.report import DOSE, AuditReport
from mlflow_b3.data.scores import is_approximate
from mlflow_b3.measurement.refits import FEW_CLUSTERS
from mlflow_b3.reporting.cvc import findings_with_cvc
from mlflow_b3.reporting.document import Answer, Tile
from mlflow_b3.reporting.doses import shrunk_in_short
from mlflow_b3.reporting.headline import (
    GIVE_A_RATE,
    explain_tipping,
    headline_of,
    tipping_rates,
)
from mlflow_b3.reporting.phrases import (
    better_words,
    clusters_noun,
    confidence_of,
    model_name,
    new_clusters,
    premise_of,
    readable,
    shares_clusters,
)
from mlflow_b3.results import interval_words, loss_words, number, signed

TIPPING, PROMOTION, FINDINGS = "Tipping point", "Promotion", "Findings"
GROUPS = "Groups"


def card_of(report: AuditReport, *, in_python: bool = False) -> Answer:
    """Return the answer of a report whose names are readable, with what belongs to it.

    Reports that are shown `in_python` may not be recorded yet; pages in MLflow are.
    """
    headline = headline_of(report)
    word = loss_words(report.subject.loss)
    return Answer(
        sentence=headline.sentence,
        word=headline.word,
        sign=headline.sign,
        state=headline.state,
        premise=headline.premise,
        unit=f"{word[0].upper()}{word[1:]}; {better_words(report)}",
        tiles=tiles_of(report),
        facts=(
            (TIPPING, _tipping(report)),
            *_groups(report),
            (PROMOTION, promotion_of(report, in_python=in_python)),
        ),
        findings=findings_with_cvc(report),
    )


def tiles_of(report: AuditReport) -> tuple[Tile, ...]:
    """Return the three scores: as it is usually reported, by the ids, and on new clusters."""
    least = "" if report.refit.is_full else "at least "
    unknown = "not known" if report.e0 is None else f"{least}{number(report.e0)}"
    approximate = report.e0 is not None and is_approximate(report.subject.loss)
    gap = "" if report.e0 is None else f" ({signed(report.e0 - report.iid, beside=report.e0)})"
    few = report.plan.n_validated < FEW_CLUSTERS and report.e0_interval[1] is not None
    clusters = clusters_noun(report.subject.cluster)
    about = ", approximate" * approximate
    scope = "rough" if report.plan.method == DOSE else f"of these {clusters} only"
    return (
        Tile(
            label="Reported",
            value=number(report.iid),
            note=f"folds that ignore {clusters} (IID)",
            colour="orange",
        ),
        Tile(
            label="On the given folds"
            if shares_clusters(report)
            else f"By {report.subject.cluster}",
            value=number(report.loco),
            note=f"{_interval(report.loco_interval, '95%')} (LOCO)",
            colour="green",
        ),
        Tile(
            label=f"On {new_clusters(report)}",
            value=f"{unknown}{gap}",
            note=(
                f"{interval_words(report.e0_interval)}, {scope} (e0{about})"
                if few
                else f"{_interval(report.e0_interval, confidence_of(report))} (e0{about})"
            ),
            colour="blue",
        ),
    )


def _interval(ends: tuple[float, float | None], confidence: str) -> str:
    if ends[1] is None:
        return f"{number(ends[0])} or more, {confidence} confidence"
    return f"{interval_words(ends)}, {confidence} interval"


def promotion_of(report: AuditReport, *, in_python: bool = False) -> str:
    """Return who decides about promotion. No report does: only the gate knows what holds now."""
    undecided = "Not decided by an audit."
    uri = report.subject.uri
    if uri is None:
        return f"{undecided} Register the model and audit it by its URI, then run mlflow-b3 gate."
    if not uri.startswith("models:/") or report.subject.model_id in uri.split("/"):
        recording = ", record the audit with b3.record(report)" * in_python
        return f"{undecided} Register the model{recording}, then run mlflow-b3 gate."
    if in_python:
        return f"{undecided} Record it with b3.record(report), then run mlflow-b3 gate {uri}"
    return f"{undecided} Ask the gate: mlflow-b3 gate {uri}"


def _tipping(report: AuditReport) -> str:
    told = explain_tipping(report).removeprefix("Tipping point: ")
    return told[0].upper() + told[1:]


def _groups(report: AuditReport) -> list[tuple[str, str]]:
    return [] if report.groups is None else [(GROUPS, f"{report.groups.sentence}.")]


# --- Lines for a terminal

#: Beside their names.
LABEL = 18


def summary_of(
    report: AuditReport,
    *,
    width: int = 80,
    links: Mapping[str, str] | None = None,
    colour: bool = False,
) -> str:
    """Return the answer in about twelve lines: headline, scores, tipping point, findings, links.

    Parameters
    ----------
    report : AuditReport
    width : int
        Of the terminal, in characters.
    links : mapping of str to str, optional
        Where to read more, by name. They are not broken.
    colour : bool
        With the escape codes of a terminal.
    """
    report = readable(report)
    answer = card_of(report)
    lines = _filled(headline_of(report).answer, width, "  ")
    if colour:
        start = f"{answer.sign} {answer.word}:"
        lines[0] = lines[0].replace(start, f"{STYLES[answer.state]}{start}{PLAIN}", 1)
    lines.append("")
    widest = max(len(tile.value) for tile in answer.tiles)
    for tile in answer.tiles:
        value = f"{BOLD}{tile.value}{PLAIN}" if colour else tile.value
        lines.append(
            f"  {tile.label:<{LABEL}} {value}{' ' * (widest + 2 - len(tile.value))}{tile.note}"
        )
    below = f"{premise_of(report)}." if report.e0 is not None else ""
    if not (below or report.leakage.is_known or report.plan.n_validated < FEW_CLUSTERS):
        below = GIVE_A_RATE  # with few clusters a rate alone would not help
    for text in (below, shrunk_in_short(report)):
        lines += _filled(text, width, " " * (LABEL + 3), first=" " * (LABEL + 3))
    named = [(TIPPING, tipping_rates(report)), *_groups(report)]
    titles = [f"{finding.code} {finding.title}" for finding in answer.findings]
    named += [(FINDINGS, "; ".join(titles) or "none")]
    for name, text in named:
        lines += _filled(text, width, " " * (LABEL + 3), first=f"  {name:<{LABEL}} ")
    lines += [f"  {name:<{LABEL}} {link}" for name, link in (links or {}).items()]
    return "\n".join(lines)


#: What else a report can show, for those who print it in Python.
IN_PYTHON = {"More": "report.to_text(), report.to_html(path), report.plot()"}
BOLD, PLAIN = "\x1b[1m", "\x1b[0m"
#: The colours of answers on a terminal, by their style.
STYLES = {
    "bad": "\x1b[1;31m",
    "open": "\x1b[1;33m",
    "good": "\x1b[1;32m",
    "unknown": "\x1b[1;90m",
}


def _filled(text: str, width: int, rest: str, first: str = "") -> list[str]:
    return textwrap.wrap(
        text,
        width,
        initial_indent=first,
        subsequent_indent=rest,
        break_long_words=False,
        break_on_hyphens=False,
    )


def repr_of(report: AuditReport) -> str:
    """Return the answer in at most six lines."""
    report = readable(report)
    headline = headline_of(report)
    about = (
        " (approximate)" if report.e0 is not None and is_approximate(report.subject.loss) else ""
    )
    scores = ", ".join(
        f"{name}={number(value)}"
        for name, value in (("iid", report.iid), ("loco", report.loco), ("e0", report.e0))
    )
    lines = [
        f"<AuditReport of {model_name(report)}: {headline.sign} {headline.word}",
        f"  {scores}{about}, e0_interval=({interval_words(report.e0_interval)})",
        f"  {len(report.findings)} finding{'s' * (len(report.findings) != 1)}; print(report) for more>",
    ]
    return "\n".join(lines)
