"""A report whose names can be shown: nothing in them is hidden, and none floods the page."""

from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

from mlflow_b3.reporting.premises import largest_sensible
from mlflow_b3.reporting.report import AuditReport
from mlflow_b3.results import Result
from mlflow_b3.wording import visible

LONGEST_NAME = 100
LONGEST_TEXT = 2000
LONGEST_LINE = 300
#: Lines of a long traceback that are shown of its beginning, and of its end.
HALF_OF_TRACEBACK = 20
#: Fields with names that others chose; all other text is sentences.
NAMES = frozenset(
    {
        *("model", "uri", "run_id", "model_id", "refit", "loss", "target", "cluster", "features"),
        *("sample_weight", "data_source", "id", "mate_id", "method_options", "refit_options"),
        *("name", "grouped_by", "coordinates"),
    }
)
Report = TypeVar("Report", bound=Result)


def readable(report: Report) -> Report:
    """Return the report with visible and short names, for people.

    The numbers are the same, but an upper end of e0 that limits nothing is left out. Names come from tables, models and run tags. They may be long, span lines, or contain characters
    that are invisible or turn the direction of what follows.
    """
    shown = _readable(report, LONGEST_TEXT)
    if isinstance(shown, AuditReport):
        low, high = shown.e0_interval
        if high is not None and high > max(low, largest_sensible(shown)):
            shown = replace(shown, e0_interval=(low, None))
    assert isinstance(shown, type(report))
    return shown


def _readable(value: Any, longest: int) -> Any:
    if isinstance(value, str):
        return shorten(visible(value), longest)
    if isinstance(value, tuple) and value and not isinstance(value[0], float):
        return tuple(_readable(item, longest) for item in value)
    if isinstance(value, dict):
        return {_readable(key, longest): _readable(item, longest) for key, item in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        texts = {
            field.name: _readable(
                getattr(value, field.name), LONGEST_NAME if field.name in NAMES else longest
            )
            for field in fields(value)
            if not field.metadata.get("kept_apart")
        }
        return replace(value, **texts)
    return value


def traceback_lines(report: AuditReport) -> list[str]:
    """Return the traceback of the first refit that failed, line by line, in no way hidden."""
    text = report.refits.traceback if report.refits is not None else None
    lines = (text or "").splitlines()
    if len(lines) > 2 * HALF_OF_TRACEBACK:
        lines = [*lines[:HALF_OF_TRACEBACK], "…", *lines[-HALF_OF_TRACEBACK:]]
    return [shorten(visible(line), LONGEST_LINE) for line in lines]


def shorten(text: str, longest: int) -> str:
    """Keep the beginning and the end, where names differ."""
    if len(text) <= longest:
        return text
    end = longest // 4
    return f"{text[: longest - end]} … {text[-end:]}"
