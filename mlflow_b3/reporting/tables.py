"""The tables of a report, as text in cells."""

import statistics
from collections.abc import Callable
from typing import TYPE_CHECKING

from mlflow_b3.auditing.groups import SHRUNK
from mlflow_b3.auditing.report import AuditReport
from mlflow_b3.correlated.report import CvcReport, GroupLevel
from mlflow_b3.data.folds import FoldSummary
from mlflow_b3.estimation.dose import DoseCurve
from mlflow_b3.reporting.cvc_sentences import describe_cvc
from mlflow_b3.reporting.document import Table
from mlflow_b3.reporting.doses import dose_premise
from mlflow_b3.reporting.phrases import (
    confidence_of,
    estimator_words,
    fold_words,
    folds_words,
    largest_sensible,
    new_clusters,
    range_words,
    rate_of,
    sensible_number,
    sharpness_words,
)
from mlflow_b3.results import interval_words, loss_words, number, percent, shortened

if TYPE_CHECKING:
    import pandas as pd

# --- The tables of a report, as text in cells, for every form of it

SHOWN_ROWS = 10
SHOWN_FOLDS = 20
SHOWN_RATES = (0.0, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5)
INTERVAL = "95% interval"
#: What is counted in a fold, by the name of its column.
COUNTS: dict[str, Callable[[FoldSummary], int]] = {
    "training rows": lambda fold: fold.n_training,
    "validation rows": lambda fold: fold.n_validation,
    "training clusters": lambda fold: fold.clusters_training,
    "validation clusters": lambda fold: fold.clusters_validation,
    "clusters on both sides": lambda fold: fold.shared_clusters,
}


def score_rows(
    report: AuditReport,
) -> list[tuple[str, float | None, tuple[float, float | None] | None]]:
    """Return the scores of a report with their names and intervals."""
    word = loss_words(report.subject.loss)
    at_least = "" if report.refit.is_full else ", at least"
    rows: list[tuple[str, float | None, tuple[float, float | None] | None]] = [
        (f"{word}, reported (IID)", report.iid, None),
        (f"{word} {folds_words(report)} (LOCO)", report.loco, report.loco_interval),
        (f"{word} on {new_clusters(report)} (e0){at_least}", report.e0, report.e0_interval),
    ]
    if report.e0_secant is not None:
        rows.append((secant_words(report), report.e0_secant, None))
    return rows


def score_frame(report: AuditReport) -> "pd.DataFrame":
    """Return IID, LOCO and e0 as a table, with what each of them is."""
    import pandas as pd

    word = loss_words(report.subject.loss)
    rows = {
        "iid": (report.iid, None, None, f"{word} on folds that ignore clusters"),
        "loco": (report.loco, *report.loco_interval, f"{word} {folds_words(report)}"),
        "e0": (report.e0, *report.e0_interval, f"{word} on {new_clusters(report)}"),
    }
    columns = ["value", "low", "high", "meaning"]
    frame = pd.DataFrame.from_dict(rows, orient="index", columns=columns)
    return frame.astype(dict.fromkeys(columns[:3], float))


def secant_words(report: AuditReport) -> str:
    """Return the name of the lower limit of e0 by a secant."""
    e0, limit = report.e0, report.e0_secant
    above = e0 is not None and limit is not None and limit > e0
    return "e0 at least, if the curve is convex" + " (here it is above e0)" * above


def score_table(report: AuditReport) -> Table:
    """Return the scores from naive to corrected."""
    rows = [
        (name, number(value), interval_words(ends) + confidence_note(report, ends))
        for name, value, ends in score_rows(report)
    ]
    return Table(header=("score", "value", INTERVAL), rows=tuple(rows), align="lr")


def group_tables(report: AuditReport) -> list[Table]:
    """Return the scores of groups of rows, and their differences."""
    found = report.groups
    if found is None:
        return []
    word = loss_words(report.subject.loss)
    rows = [
        (
            group.name,
            str(group.rows),
            number(group.loco),
            number(group.e0),
            interval_words(group.e0_interval),
            number(group.inflation) if group.inflation is not None else group.why_not,
            interval_words(group.inflation_interval),
        )
        for group in found.groups
    ]
    header = (found.by, "rows", "LOCO", "e0", INTERVAL, "optimistic by", INTERVAL)
    shrunk = f"; {SHRUNK}" * (found.score == "e0")
    tables = [Table(caption=f"{word} by {found.by}{shrunk}", header=header, rows=tuple(rows))]
    if found.differences:
        different = tuple(
            (
                f"{each.first} - {each.second}",
                number(each.difference),
                interval_words(each.interval),
                "yes" if each.beyond_noise else "no",
            )
            for each in found.differences
        )
        tables.append(
            Table(
                caption=f"Differences of {found.score}; the intervals hold for all pairs at once",
                header=("groups", "difference", INTERVAL, "beyond noise"),
                rows=different,
            )
        )
    return tables


def confidence_note(report: AuditReport, ends: tuple[float, float | None] | None) -> str:
    """Return the confidence of the interval of e0 if it differs from that of the others."""
    sure = confidence_of(report)
    own = ends == report.e0_interval and f"{sure} interval" != INTERVAL
    return f" ({sure})" if own else ""


def dose_table(report: AuditReport, curve: DoseCurve) -> Table:
    """Return the loss by how many rows of its own cluster a row has in training."""
    full = report.refit.is_full
    return Table(
        caption=dose_premise(report),
        header=("rows of the same cluster in training", loss_words(report.subject.loss), INTERVAL),
        rows=tuple(
            (str(d), number(loss), interval_words((low, high if full else None)))
            for d, loss, low, high in zip(curve.d, curve.loss, curve.low, curve.high, strict=True)
        ),
    )


def sensitivity_rows(
    report: AuditReport,
) -> list[tuple[str, list[tuple[float, float, float, float | None]]]]:
    """Return (axis, rows of error, e0, low, high) for the pattern, or for both when unknown.

    There is no high where the refits give lower bounds only.
    """
    leakage, full = report.leakage, report.refit.is_full
    curves = {
        "rows": report.sensitivity if leakage.misplaces else None,
        "fragments": report.fragment_sensitivity if leakage.splits else None,
    }
    tables = []
    for kind, curve in curves.items():
        if curve is not None:
            high = curve.high if full else [None] * len(curve.high)
            rows = zip(curve.error or curve.p0, curve.e0, curve.low, high, strict=True)
            shown = [row for row in rows if row[0] in SHOWN_RATES]
            tables.append((rate_of(report, split=kind == "fragments"), shown))
    return tables


def sensitivity_tables(report: AuditReport) -> list[Table]:
    """Return what each rate of wrong ids would mean."""
    most = largest_sensible(report)

    def ends(low: float, high: float | None) -> str:
        if high is not None and high <= most:
            return interval_words((low, high))
        return f"{sensible_number(report, low)}, no upper limit"

    return [
        Table(
            caption=f"What each {axis} would mean",
            header=(axis, "e0", INTERVAL),
            rows=tuple(
                (percent(error), sensible_number(report, e0), ends(low, high))
                for error, e0, low, high in rows
            ),
        )
        for axis, rows in sensitivity_rows(report)
    ]


def distribution_tables(report: AuditReport) -> list[Table]:
    """Return the distribution of the loss, where it was estimated."""
    d = report.distribution
    if d is None:
        return []
    rows = zip(d.thresholds, d.uncorrected, d.exceeding, d.low, d.high, strict=True)
    return [
        Table(
            caption="Share of rows with a loss above a threshold",
            header=("loss above", "rows on the folds", "rows of new clusters", INTERVAL),
            rows=tuple(
                (number(t), percent(before), percent(after), f"{percent(low)} – {percent(high)}")
                for t, before, after, low, high in rows
            ),
        )
    ]


def suspicious_tables(report: AuditReport) -> list[Table]:
    """Return the rows to review first, if the evidence distinguishes rows."""
    if not report.suspicious:
        return []
    rows = [
        (
            row.id,
            percent(row.leak_probability),
            number(row.loss),
            number(row.influence),
            ""
            if row.mate_id is None
            else f"{row.mate_id} ({percent(row.mate_probability or 0.0)})",
        )
        for row in report.suspicious[:SHOWN_ROWS]
    ]
    return [
        Table(
            caption="Rows to review first: likely leaked, with a better score because of it",
            header=("row", "leak chance", "loss", "score better by", "likely mate"),
            rows=tuple(rows),
        )
    ]


def fold_tables(report: AuditReport) -> list[Table]:
    """Return the folds; if there are many, how they vary and those with the largest loss."""
    folds, repeats = report.folds, report.plan.repeats
    each = max(1, len(folds) // repeats)
    names = [
        f"{place // each + 1}.{place % each + 1}" if repeats > 1 else str(place + 1)
        for place in range(len(folds))
    ]
    rows = list(zip(names, folds, strict=True))
    if len(folds) <= SHOWN_FOLDS:
        name = "Folds (assignment.fold)" if repeats > 1 else "Folds"
        return [_fold_table(name, rows)]
    worst = sorted(rows, key=lambda row: -(row[1].loss or 0.0))[:SHOWN_ROWS]
    return [
        _spread_table(folds),
        _fold_table(f"The {len(worst)} folds with the largest loss, of {len(folds)}", worst),
    ]


def _fold_table(caption: str, rows: list[tuple[str, FoldSummary]]) -> Table:
    return Table(
        caption=caption,
        header=("fold", *COUNTS, "loss"),
        rows=tuple(
            (name, *(str(count(fold)) for count in COUNTS.values()), _or_dash(fold.loss))
            for name, fold in rows
        ),
    )


def _or_dash(loss: float | None) -> str:
    """Return the loss of a fold; a score that is no mean over rows has none."""
    return "–" if loss is None else number(loss)


def _spread_table(folds: tuple[FoldSummary, ...]) -> Table:
    spread: dict[str, Callable[[list[float]], float]] = {
        "smallest": min,
        "median": statistics.median,
        "largest": max,
    }
    losses = [fold.loss for fold in folds if fold.loss is not None]
    return Table(
        caption=f"How the {len(folds)} folds vary",
        header=("of all folds", *COUNTS, "loss"),
        rows=tuple(
            (
                name,
                *(f"{value([count(fold) for fold in folds]):g}" for count in COUNTS.values()),
                _or_dash(value(losses) if losses else None),
            )
            for name, value in spread.items()
        ),
    )


def settings_table(report: AuditReport) -> Table:
    """Return what was audited and how, for repeating it."""
    subject, plan = report.subject, report.plan
    known = {
        "model": subject.model,
        "URI": subject.uri,
        "run": subject.run_id,
        "logged model": subject.model_id,
        "data": subject.data_source,
        "data digest": subject.data_digest,
        "target": subject.target,
        "cluster": subject.cluster,
        "features": shortened(subject.features) or "none",
        "task": subject.task,
        "loss": subject.loss,
        "threshold": number(report.threshold) if plan.threshold_given else None,
        "leaked share": _leaked(report),
        "pattern": report.claim.pattern,
        "clusters broken": _broken(report),
        "clusters split": _split(report),
        "rows": str(subject.n_rows),
        "clusters": f"{subject.n_clusters}, of which {plan.n_validated} were validated",
        "folds": fold_words(report),
        "folds digest": plan.folds_digest or None,
        "refits": f"{report.measured.fits} by route {report.refit.route!r}, drawn by scheme {plan.scheme!r}"
        + ("" if plan.n_train is None else f", {plan.n_train} rows each"),
        "estimator": estimator_words(report) + sharpness_words(report),
        "corrected cross-validation": None if report.cvc is None else describe_cvc(report.cvc),
        "seed": str(plan.seed),
        "mlflow-b3": report.version,
    }
    rows = tuple((name, value) for name, value in known.items() if value is not None)
    return Table(header=("setting", "value"), rows=rows, prose=True)


def _leaked(report: AuditReport) -> str:
    claim = report.claim.range
    if claim is None:
        return "not known"
    if report.e0 is None:
        return f"not known: {report.p0_source} excludes nothing"
    beside = report.claim.split_range
    also = "" if beside is None else f", split_rate {range_words(beside)}"
    return f"{report.p0_source} {range_words(claim)}{also}"


def _broken(report: AuditReport) -> str | None:
    if report.fragments is None:
        return None
    known = report.linkage is not None and report.linkage.fragments is not None
    return "as the linkage evidence says" if known else report.plan.fragment_sizes


def _split(report: AuditReport) -> str | None:
    """Return how clusters are assumed to be split if none is broken on purpose."""
    splits = report.leakage.splits or report.claim.split_range is not None
    return report.plan.fragment_sizes if splits and report.dose is not None else None


# --- The tables of corrected cross-validation, as text in cells

GROUPED = "whole groups (grouped CV)"
#: Multiples of the standard deviations that tables show; the chart has all.
SHOWN_MULTIPLES = (0.0, 0.5, 1.0, 1.5, 2.0)

#: Name, value, interval, and the interval's confidence where it is not 95%.
Score = tuple[str, float | None, tuple[float, float | None] | None, str]


def cvc_scores(report: CvcReport) -> list[Score]:
    """Return the scores by their short names, from naive to corrected."""
    scores: list[Score] = [
        ("folds of rows (CV)", report.cv, report.cv_interval, ""),
        ("corrected (CV_c)", report.cvc, report.interval, ""),
    ]
    if report.grouped is not None:
        scores.append((GROUPED, report.grouped, report.grouped_interval, ""))
    return scores


def cvc_score_table(report: CvcReport, *more: Score) -> Table:
    """Return the scores with their intervals, and more of the same loss beside them."""
    names = {GROUPED: f"whole {report.grouped_by!r} left out (grouped CV)"}
    return Table(
        header=(loss_words(report.loss), "value", INTERVAL),
        rows=tuple(
            (names.get(score[0], score[0]), score_value(score), interval_words(score[2]) + score[3])
            for score in (*cvc_scores(report), *more)
        ),
        align="lr",
    )


def score_value(score: Score) -> str:
    """Return the value of a score; without a value and an interval it is withheld."""
    return "withheld" if score[1] is None and score[2] is None else number(score[1])


def level_table(report: CvcReport) -> Table:
    """Return what correlates the rows, and how much."""
    scale = "log odds" if report.task == "classification" else "units of the target"
    rows = [_level(group) for group in report.groups]
    if report.field is not None:
        places = ", ".join(report.field.coordinates)
        ends = interval_words(report.field.interval)
        rows.append((f"field over {places}", "–", "–", number(report.field.sd), ends))
    return Table(
        caption=f"What correlates the rows (standard deviations in {scale})",
        header=("rows of the same", "groups", "in use", "standard deviation", INTERVAL),
        rows=tuple(rows),
    )


def _level(group: GroupLevel) -> tuple[str, ...]:
    return (
        group.name,
        str(group.groups),
        "new ones" if group.new else "the same",
        "–" if group.sd is None else number(group.sd),
        interval_words(group.interval) or "–",
    )


def multiple_tables(report: CvcReport) -> list[Table]:
    """Return what CV_c would be if groups differed less or more than estimated."""
    pairs = zip(report.multipliers, report.sensitivity, strict=True)
    shown = [(f"{times:g}", number(value)) for times, value in pairs if times in SHOWN_MULTIPLES]
    if not shown:
        return []
    return [
        Table(
            caption="If groups differed less or more than was found",
            header=("multiple of the standard deviations", "CV_c"),
            rows=tuple(shown),
        )
    ]
