"""The tables of corrected cross-validation, as text in cells."""

from mlflow_b3.correlated.report import CvcReport, GroupLevel
from mlflow_b3.reporting.tables import INTERVAL, Table
from mlflow_b3.wording import interval_words, loss_words, number

GROUPED = "whole groups left out (grouped CV)"
#: Multiples of the standard deviations that tables show; the chart has all.
SHOWN_MULTIPLES = (0.0, 0.5, 1.0, 1.5, 2.0)

#: Name, value, interval, and the interval's confidence where it is not 95 %.
Score = tuple[str, float | None, tuple[float, float | None] | None, str]


def cvc_scores(report: CvcReport) -> list[Score]:
    """Return the scores by their short names, from naive to corrected."""
    scores: list[Score] = [
        ("by folds of rows (CV)", report.cv, report.cv_interval, ""),
        ("corrected for correlated rows (CV_c)", report.cvc, report.interval, ""),
    ]
    if report.grouped is not None:
        scores.append((GROUPED, report.grouped, report.grouped_interval, ""))
    return scores


def cvc_score_table(report: CvcReport, *more: Score) -> Table:
    """Return the scores with their intervals, and more of the same loss beside them."""
    names = {GROUPED: f"whole {report.grouped_by!r} left out (grouped CV)"}
    return Table(
        title="Scores by cross-validation",
        head=(loss_words(report.loss), "value", INTERVAL),
        rows=tuple(
            (names.get(score[0], score[0]), score_value(score), interval_words(score[2]) + score[3])
            for score in (*cvc_scores(report), *more)
        ),
    )


def score_value(score: Score) -> str:
    """Return the value of a score; without a value and an interval it is withheld."""
    return "withheld" if score[1] is None and score[2] is None else number(score[1])


def level_table(report: CvcReport) -> Table:
    """Return by what rows are correlated, and how much."""
    scale = "log odds" if report.task == "classification" else "units of the target"
    rows = [_level(group) for group in report.groups]
    if report.field is not None:
        places = ", ".join(report.field.coordinates)
        ends = interval_words(report.field.interval)
        rows.append((f"field over {places}", "–", "–", number(report.field.sd), ends))
    return Table(
        title=f"What correlates the rows (standard deviations in {scale})",
        head=("rows of the same", "groups", "in use", "standard deviation", INTERVAL),
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
    """Return what CV_c would be if groups differed less or more than was found."""
    pairs = zip(report.multipliers, report.sensitivity, strict=True)
    shown = [(f"{times:g}", number(value)) for times, value in pairs if times in SHOWN_MULTIPLES]
    if not shown:
        return []
    return [
        Table(
            title="If groups differed less or more than was found",
            head=("multiple of the standard deviations", "CV_c"),
            rows=tuple(shown),
        )
    ]
