"""Phrases that tables, charts and sentences share: premises, linkage evidence, names, method."""

import math
import re
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

from mlflow_b3.auditing.report import AuditReport
from mlflow_b3.estimation.bounds import CONFIDENCE
from mlflow_b3.estimation.fragments import seen_share
from mlflow_b3.estimation.sensitivity import Sensitivity
from mlflow_b3.linkage.leak import LeakShare
from mlflow_b3.results import Result, loss_words, number, percent, visible

# --- What linkage evidence says, in sentences


def explain_linkage(report: AuditReport) -> list[str]:
    """Return both leak shares that linkage evidence gives for the folds."""
    leak = report.linkage
    if leak is None:
        return []
    sides = [_share(share, leak.kind) for share in (leak.train, leak.validation)]
    kind = {
        "estimate": f"an estimate with a {percent(leak.level)} interval",
        "upper": "an upper limit if those figures are exact"
        if leak.n_labels is None
        else f"an upper limit with {percent(leak.level)} confidence",
        "lower": "a lower limit",
        "uncalibrated": "what unchecked scores suggest",
    }
    return [
        f"Leak shares by {leak.method}: {sides[0]} of the training rows of a fold have records of the "
        f"same true cluster in validation, {sides[1]} of the validation rows have some in training; "
        f"{kind[leak.kind]}. The second share drives the score. The first falls as folds are added; "
        "the second does not." + _as_split_rate(report)
    ]


def _share(share: LeakShare, kind: str) -> str:
    if share.point is None:
        return f"{percent(share.low)} to {percent(share.high)}"
    if kind == "uncalibrated":  # its ends are no interval
        return percent(share.point)
    return f"{percent(share.point)} ({percent(share.low)} to {percent(share.high)})"


def _as_split_rate(report: AuditReport) -> str:
    """Return the split rate that corresponds to the seen share, if there is one."""
    leak, apart = report.linkage, 2 * seen_share(0.5, report.folds).share
    upper = leak is not None and leak.kind == "upper"
    seen = leak.validation.high if leak is not None and upper else report.p0
    if report.e0 is None or seen is None or seen >= apart:
        return ""
    most = "at most " * upper
    return f" In the table of split rates, this corresponds to {most}{percent(seen / apart)}."


def explain_regression(report: AuditReport) -> list[str]:
    """Return what the regression of losses on leak probabilities says, if there is one."""
    return [] if report.regression is None else [report.regression.statement]


# --- What the numbers of an audit rest on: what is known of the leakage, the folds, the confidence

NOT_FINITE = "Some numbers of this audit are not finite, so nothing follows from them."


#: An end of an interval that is this many times the loss of a constant prediction limits nothing.
SENSELESS = 10.0


def largest_sensible(report: AuditReport) -> float:
    """Return the loss beyond which a number is an artefact of extrapolation, not worth printing.

    Ten times the loss of the best constant prediction, of the score by ids, or of the threshold,
    whichever is largest. Losses with a natural limit, such as error rates, need none.
    """
    if report.subject.loss_bound is not None and report.subject.loss != "log":
        return math.inf
    given = report.threshold if report.plan.threshold_given else None
    known = [report.loco_interval[1], report.constant_loss or 0.0, given or 0.0]
    largest = max(value for value in known if not math.isnan(value))
    return SENSELESS * largest if largest > 0 else math.inf


def sensible_number(report: AuditReport, value: float) -> str:
    """Return a loss in words, without digits where it is an artefact of extrapolation."""
    most = largest_sensible(report)
    return f"over {number(most)}" if value > most else number(value)


def thing_of(report: AuditReport) -> str:
    """Return what is measured: the loss, or the score by its name."""
    greater = report.subject.greater_is_better
    return loss_words(report.subject.loss) if greater else "loss"


def better_words(report: AuditReport) -> str:
    """Return which values are better."""
    return "larger is better" if report.subject.greater_is_better else "smaller is better"


def is_finite(report: AuditReport) -> bool:
    """Return whether all numbers behind an answer are finite."""
    numbers = (
        *(report.e0, *report.e0_interval, report.threshold, report.inflation),
        *(report.iid, report.loco, *report.loco_interval, report.test.pvalue),
    )
    return all(math.isfinite(value) for value in numbers if value is not None)


def premise_of(report: AuditReport) -> str:
    """Return what is known about the ids, as the condition of everything that follows."""
    return report.leakage.premise(report.subject.cluster, excludes=report.e0 is not None)


def folds_words(report: AuditReport) -> str:
    """Return on which folds LOCO was computed."""
    if shares_clusters(report):
        return "on the given folds"
    if report.plan.fold_threshold is None and report.plan.purge_threshold is None:
        return f"by {report.subject.cluster} alone"
    return "on folds made with match probabilities"


# --- What the model and its clusters are called

#: Nouns that cluster columns are named after, in the plural. Rows of other columns are "clusters".
NOUNS = {
    **{
        noun: f"{noun}s"
        for noun in (
            *("account", "animal", "author", "block", "building", "car", "center", "centre"),
            *("client", "clinic", "cluster", "customer", "device", "district", "doctor"),
            *("document", "donor", "driver", "employee", "farm", "field", "firm", "group"),
            *("hospital", "house", "household", "lab", "machine", "member", "patient", "physician"),
            *("plant", "plot", "product", "protein", "provider", "pupil", "region", "school"),
            *("sensor", "site", "speaker", "station", "store", "student", "subject", "supplier"),
            *("teacher", "user", "vehicle", "village", "ward", "worker", "writer", "participant"),
        )
    },
    "batch": "batches",
    "child": "children",
    "city": "cities",
    "class": "classes",
    "company": "companies",
    "country": "countries",
    "county": "counties",
    "family": "families",
    "person": "people",
    "property": "properties",
}


def clusters_noun(column: str) -> str:
    """Return what the clusters of a column are, such as `patients` for `patient_id`."""
    found = re.fullmatch(
        r"([A-Za-z]+?)(?:[ _.-]+(?:id|no|nr|number|key|code)|(?<=[a-z])I[dD])?", column, re.ASCII
    )
    return NOUNS.get(found[1].lower(), "clusters") if found else "clusters"


def new_clusters(report: AuditReport) -> str:
    """Return the clusters that a model has never seen, such as `new patients`."""
    return f"new {clusters_noun(report.subject.cluster)}"


def model_name(report: AuditReport) -> str:
    """Return a model's name, version and class; only its class if it has no name but an id."""
    subject = report.subject
    if subject.uri is None or not subject.model.endswith(")"):
        return subject.model
    _, _, kind = subject.model[:-1].rpartition(" (")
    registered = re.fullmatch(r"models:/([^/@]+)/(\d+)", subject.uri)
    return kind if registered is None else f"{registered[1]} version {registered[2]} ({kind})"


def shares_clusters(report: AuditReport) -> bool:
    """Return whether folds have rows of one cluster id on both sides."""
    return any(fold.shared_clusters for fold in report.folds)


def ids_are_right(report: AuditReport) -> bool:
    """Return whether all ids were said to be right, so that e0 is the score by the ids."""
    claim, right = report.claim, (0.0, 0.0)
    also = claim.split_range in (None, right) and not claim.p0_validation
    return report.e0 is not None and claim.range == right and also


def is_half(report: AuditReport) -> bool:
    """Return whether e0 is the value for half of an upper limit on the leakage."""
    upper = report.linkage is not None and report.linkage.kind == "upper"
    return report.e0 is not None and (upper or report.leakage.is_bounded_by_rows)


def is_mixture(report: AuditReport) -> bool:
    """Return whether e0 is solved from a mixture of seen and new rows, not read from the curve."""
    known = report.e0 is not None and report.fragments is not None
    return not report.leakage.misplaces and known


def confidence_of(report: AuditReport) -> str:
    """Return the confidence of the interval of e0.

    If the interval covers all leakage up to a limit, the limit may fail as well as the interval.
    """
    limit = 1.0
    if is_half(report) and report.leakage.is_bounded_by_rows:
        limit = 0.95 if report.p0_bound is None else report.p0_bound.confidence
    elif is_half(report) and report.linkage is not None and report.linkage.n_labels is not None:
        limit = report.linkage.level
    return percent(CONFIDENCE + limit - 1)


def rate_of(report: AuditReport, *, split: bool) -> str:
    """Return what the horizontal axis of a sensitivity curve is called."""
    if split:
        return "split rate"
    # if the share of validation rows is fixed, a p0 belongs to no rate of wrong ids
    return "leaked share p0" if report.sensitivity.error is None else "cluster error"


def claimed_errors(report: AuditReport, curve: Sensitivity) -> tuple[float, float, float] | None:
    """Return what is known of the leakage as (low, middle, high) on the axis of a curve.

    None if nothing is known, if the evidence excludes nothing, or if it is about the other pattern.
    """
    if report.claim.range is None or report.claim.pattern != curve.pattern or report.e0 is None:
        return None
    values = [report.claim.range[0], report.claim.middle, report.claim.range[1]]
    rates = ("cluster_error", "split_rate", "match_column")
    if report.p0_source not in rates and curve.error is not None and curve.p0[-1] > 0:
        # shares are proportional to the rate that they belong to
        values = [value * curve.error[-1] / curve.p0[-1] for value in values]
    low, middle, high = values
    return low, middle, high


# --- A report whose names are safe to show: no hidden characters, and none too long for the page

LONGEST_NAME = 100
LONGEST_TEXT = 2000
LONGEST_LINE = 300
#: How many lines of a long traceback are shown from its beginning, and from its end.
HALF_OF_TRACEBACK = 20
#: Fields with names that others chose; all other text is sentences.
NAMES = frozenset(
    {
        *("model", "uri", "run_id", "model_id", "route", "loss", "target", "cluster", "features"),
        *("sample_weight", "data_source", "id", "mate_id", "method_options", "options"),
        *("name", "by", "grouped_by", "coordinates"),
    }
)
Report = TypeVar("Report", bound=Result)


def readable(report: Report) -> Report:
    """Return the report with visible and short names, for people.

    The numbers are the same, but an upper end of e0 that limits nothing is left out. Names come from
    tables, models and run tags. They may be long, span lines, or contain characters that are invisible
    or change the direction of the text.
    """
    shown = _readable(report, LONGEST_TEXT)
    if isinstance(shown, AuditReport):
        low, high = shown.e0_interval
        if high is not None and high > max(low, largest_sensible(shown)):
            conclusion = replace(shown.conclusion, e0_interval=(low, None))
            shown = replace(shown, conclusion=conclusion)
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
    """Return the lines of the traceback of the first failed refit, with no hidden characters."""
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


def joined(names: list[str]) -> str:
    """Return names as an enumeration."""
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


# --- How the numbers of an audit were made, in words

ROUTE_WORDS = {
    "clone": "an untrained copy with the same parameters was trained on other rows",
    "parameters": "a model with the recovered parameters was trained on other rows",
    "trainer": "the training function was called with other rows",
    "fresh": "the network was reinitialised and trained by its recipe on other rows",
    "hot-start": "training continued from the logged weights on other rows",
    "last-layer": "the network's last layer was retrained on other rows, with its features kept",
    "head": "a linear model on the model's outputs was trained on other rows",
}


def estimator_words(report: AuditReport) -> str:
    """Return the estimator of the loss on new clusters, with its options."""
    if report.dose is not None:
        return "dose (solved from differences between doses within rows)"
    if not report.leakage.misplaces:
        return "mixture"
    options = [f"{name} {value}" for name, value in report.plan.method_options.items()]
    if report.sketch_error is not None:
        options.append(f"sketching error at most {report.sketch_error:.2g} times e0")
    return f"{report.plan.method} ({', '.join(options)})" if options else report.plan.method


def sharpness_words(report: AuditReport) -> str:
    """Return the limit on how sharply the loss curve falls, if e0 is read from that curve."""
    return "" if report.dose is not None else f", curve sharpness at most {report.curve.sharpness}"


def range_words(ends: tuple[float, float]) -> str:
    """Return a rate in percent, or a range of rates."""
    return " to ".join(dict.fromkeys(map(percent, ends)))


def fold_words(report: AuditReport) -> str:
    """Return how many folds there were, and what they kept together."""
    each = len(report.folds) // report.plan.repeats
    count = "1 fold" if each == 1 else f"{each} folds"
    if report.plan.repeats > 1:
        count += f" in each of {report.plan.repeats} assignments"
    if report.plan.fold_threshold is not None:
        count += (
            " that keep together rows with a match probability of at least "
            f"{report.plan.fold_threshold:g}"
        )
    if report.plan.purge_threshold is not None:
        count += (
            " without training rows whose cluster has a match probability of at least "
            f"{report.plan.purge_threshold:g} with validation rows"
        )
    return count
