"""Phrases that tables, charts and sentences share: premises, method, linkage, CVc.

The headline and whole sentences are in `words`.
"""

import math
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

from mlflow_b3.auditing.findings import original_words
from mlflow_b3.auditing.report import AuditReport, RefitSummary
from mlflow_b3.correlated.report import FEW_GROUPS, WITHHELD, CvcReport, GroupLevel
from mlflow_b3.estimation.bounds import CONFIDENCE
from mlflow_b3.estimation.fragments import seen_share
from mlflow_b3.estimation.sensitivity import Sensitivity
from mlflow_b3.linkage.leak import LeakShare
from mlflow_b3.refit.learner import CLASSES_READ
from mlflow_b3.reporting.drawing import finite
from mlflow_b3.results import Result, loss_words, number, percent, shortened, visible

# --- What linkage evidence says, in sentences


def explain_linkage(report: AuditReport) -> list[str]:
    """Return both leak shares of linkage evidence, and how the folds were made of it."""
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
        "uncalibrated": "what scores say that nobody checked",
    }
    return [
        f"Leak shares by {leak.method}: {sides[0]} of the training rows of a fold have records of the "
        f"same true cluster in validation, {sides[1]} of the validation rows have some in training; "
        f"{kind[leak.kind]}. The second drives the score; the first falls as folds are added, the "
        "second does not." + _as_split_rate(report)
    ]


def _share(share: LeakShare, kind: str) -> str:
    if share.point is None:
        return f"{percent(share.low)} to {percent(share.high)}"
    if kind == "uncalibrated":  # its ends are no interval
        return percent(share.point)
    return f"{percent(share.point)} ({percent(share.low)} to {percent(share.high)})"


def _as_split_rate(report: AuditReport) -> str:
    """Return the split rate of the table that goes with the seen share, where there is one."""
    leak, apart = report.linkage, 2 * seen_share(0.5, report.folds).share
    upper = leak is not None and leak.kind == "upper"
    seen = leak.validation.high if leak is not None and upper else report.p0
    if report.e0 is None or seen is None or seen >= apart:
        return ""
    return f" In the table of split rates that is {'at most ' * upper}{percent(seen / apart)}."


def explain_regression(report: AuditReport) -> list[str]:
    """Return what the regression of losses on leak probabilities says, where it was made."""
    return [] if report.regression is None else [report.regression.statement]


# --- On what the numbers of an audit rest: what is known of the leakage, the folds, the confidence

NOT_FINITE = "Some of the numbers of this audit are not finite, so they say nothing."


#: An end of an interval that is so many times the loss of a constant prediction limits nothing.
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


def is_finite(report: AuditReport) -> bool:
    """Return whether all numbers that an answer is made of are numbers."""
    numbers = (
        *(report.e0, *report.e0_interval, report.threshold, report.inflation),
        *(report.iid, report.loco, *report.loco_interval, report.test.pvalue),
    )
    return all(math.isfinite(value) for value in numbers if value is not None)


def premise_of(report: AuditReport) -> str:
    """Return what is known about the ids, as the condition of everything that follows."""
    return report.leakage.premise(report.subject.cluster, excludes=report.e0 is not None)


def folds_words(report: AuditReport) -> str:
    """Return by which folds the score is that keeps clusters apart, as far as they do."""
    if shares_clusters(report):
        return "on the given folds"
    if report.plan.fold_threshold is None and report.plan.purge_threshold is None:
        return "by the cluster ids as they are"
    return "on folds made with match probabilities"


def shares_clusters(report: AuditReport) -> bool:
    """Return whether folds have rows of one cluster id on both sides."""
    return any(fold.shared_clusters for fold in report.folds)


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

    Where it is over all leakage up to a limit that itself may fail, both may.
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
    # where the share of validation rows is fixed, no rate of wrong ids stands behind a p0
    return "leaked share p0" if report.sensitivity.error is None else "cluster error"


def claimed_errors(report: AuditReport, curve: Sensitivity) -> tuple[float, float, float] | None:
    """Return what is known of the leakage as (low, middle, high) on the axis of a curve.

    None where nothing is known, evidence excludes nothing, or it belongs to the other pattern.
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


# --- A report whose names can be shown: nothing in them is hidden, and none floods the page

LONGEST_NAME = 100
LONGEST_TEXT = 2000
LONGEST_LINE = 300
#: Lines of a long traceback that are shown of its beginning, and of its end.
HALF_OF_TRACEBACK = 20
#: Fields with names that others chose; all other text is sentences.
NAMES = frozenset(
    {
        *("model", "uri", "run_id", "model_id", "route", "loss", "target", "cluster", "features"),
        *("sample_weight", "data_source", "id", "mate_id", "method_options", "options"),
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


# --- What corrected cross-validation found, in sentences that need no statistics to read

TITLE = "Cross-validation corrected for correlated rows"
SIGNATURE = "B338"
#: A bias of this part of an interval's half width takes 3% from its confidence of 95%.
NEGLIGIBLE = 0.25
#: How the learner's part in the simulated world was computed.
ENGINES = {
    "fast": "The learner is linear in its features, so that formulas stand for the training of others.",
    "joint": "The mixed model was fitted again to each simulated sample, at fixed variances between "
    "groups.",
    "full": "The model was trained again for each of them.",
    "hot": "Training went on from the model's own parameters for a while, which is of lower quality.",
    "last_layer": "Only the last layer was trained again, which is of lower quality.",
}
#: Where the part comes from that does not depend on groups.
WORKING = {
    "score": "what the model itself predicts for a row when it was trained without the row's group, "
    "recalibrated",
    "glmm": "a linear function of all features, fitted together with the groups. Features that are "
    "alike within groups take variance from them: in simulations the correction was 41 to 69% of "
    "the bias",
    "given": "that of another candidate, or what the user gave, so that several models can be compared in "
    "one world",
}


def joined(names: list[str]) -> str:
    """Return names as an enumeration."""
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def scope_words(report: CvcReport) -> str:
    """Return for which groups the corrected loss holds."""
    new = [repr(group.name) for group in report.groups if group.new]
    seen = [repr(group.name) for group in report.groups if not group.new]
    if report.field is not None:
        return f"for new regions by {joined(new or seen)}"
    told = ([f"new groups of {joined(new)}"] if new else []) + (
        [f"known groups of {joined(seen)}"] if seen else []
    )
    return f"for {joined(told)}"


def value_words(value: float | None, ends: tuple[float, float] | None) -> str:
    """Return a loss with its interval."""
    if ends is None:
        return number(value)
    return f"{number(value)} (95% interval {number(ends[0])} to {number(ends[1])})"


def answer_cvc(report: CvcReport) -> str:
    """Return the answer in a sentence; where there is none, why first."""
    word = loss_words(report.loss)
    if report.cvc is None:
        whole = ""
        if report.grouped is not None:
            whole = (
                f" Folds of whole groups of {report.grouped_by!r}, which need no model of the "
                f"correlation, say {value_words(report.grouped, report.grouped_interval)}."
            )
        return (
            f"The correction is withheld: {_reason(report)} The {word} by cross-validation alone is "
            f"{value_words(report.cv, report.cv_interval)}, which is too good by an unknown amount "
            f"where rows of a group are alike.{whole}"
        )
    low = " This comes from an approximation of lower quality." if report.lower_quality else ""
    return (
        f"Cross-validation says {number(report.cv)} ({word}); {scope_words(report)} expect "
        f"{value_words(report.cvc, report.interval)}.{low}"
    )


def _reason(report: CvcReport) -> str:
    reasons = [f.message for f in report.findings if f.code in WITHHELD]
    reasons = reasons or [f.message for f in report.findings]
    ended = [reason if reason.endswith(".") else f"{reason}." for reason in reasons]
    return " ".join(ended) if ended else "it could not be computed."


def explain_cvc(report: CvcReport) -> list[str]:
    """Return what the correction is, what it rests on, and how it was made; nothing without one."""
    if report.cvc is None:
        return []
    return [*_bias(report), *_groups(report), *_field(report), *_made(report)]


def _bias(report: CvcReport) -> list[str]:
    if report.bias is None:
        return []
    value, gain = (
        value_words(report.bias, report.bias_interval),
        "rows of the same groups in training",
    )
    low, high = report.bias_interval or (report.bias, report.bias)
    text = f"The difference, {value}, is what cross-validation gains from {gain}."
    if low <= 0:
        text = f"The difference is {value}: that cross-validation gains from {gain} is not shown."
    if report.bias_error:
        text += f" The number of simulated samples adds a standard error of {number(report.bias_error)}."
    noise = report.cv_interval[1] - report.cv
    if high <= NEGLIGIBLE * noise:
        text += (
            f" Even its upper end is less than a quarter of the noise of cross-validation itself "
            f"({number(noise)}), so that plain cross-validation is good enough here."
        )
    return [text]


def _groups(report: CvcReport) -> list[str]:
    known = [group for group in report.groups if group.sd is not None]
    if not known or report.task != "classification":
        return []
    largest = max(known, key=_sd)
    if not 0 < _sd(largest) < 100:
        return []
    most = f"Groups differ most by {largest.name!r}. " if len(known) > 1 else ""
    return [
        f"{most}A standard deviation of {number(largest.sd)} on the "
        "scale of log odds means that about one group in three has odds more than "
        f"{math.exp(_sd(largest)):.2g} times above or below those of an average group."
    ]


def _sd(group: GroupLevel) -> float:
    return 0.0 if group.sd is None else group.sd


def _field(report: CvcReport) -> list[str]:
    field = report.field
    if field is None:
        return []
    places = joined([repr(name) for name in field.coordinates])
    return [
        f"Rows are alike where they are near each other by {places}: the correlation falls to "
        f"{percent(math.exp(-1))} at a distance of {number(field.reach)}. Rows of different regions "
        f"still share a covariance of {number(field.across)}, and so will new regions."
    ]


def _made(report: CvcReport) -> list[str]:
    source = WORKING.get(report.working, repr(report.working))
    if report.slope is not None:
        source += f" (slope {number(report.slope)})"
    what, noise = (
        ("log odds are", "") if report.task == "classification" else ("targets are", " and noise")
    )
    effect = "a normal effect of each group" if report.field is None else "a random field"
    draws = (
        f"{report.draws} samples were simulated."
        if report.draws
        else "Nothing had to be simulated."
    )
    return [
        f"In the simulated world {what} the sum of {effect}{noise} and of a fixed part: {source}. "
        f"{draws} {ENGINES.get(report.engine, '')}".rstrip()
    ]


def describe_cvc(report: CvcReport) -> str:
    """Return how the correction was made, for the record."""
    groups = ", ".join(
        f"{group.groups} of {group.name!r} ({'new ones' if group.new else 'the same'} in use)"
        for group in report.groups
    )
    return (
        f"CV_c: {report.n_rows} rows, groups {groups}, {report.folds} folds of rows, loss {report.loss}, "
        f"engine {report.engine!r}, {report.draws} simulated samples, working model "
        f"{report.working!r}, seed {report.seed}."
    )


def trust_cvc(report: CvcReport) -> list[str]:
    """Return when to trust which of the scores; nothing where there is no corrected one."""
    if report.cvc is None:
        return []
    found = [
        *_beside_grouped(report),
        "CV_c takes features of new groups to be like those of these rows. What a learner gains by "
        "recognising groups from their features it does not see; folds of whole groups do.",
        "CV_c takes group ids as right. In simulations a share p of wrong ids left about (1-p)³ of the "
        "correction, so that it is too small: some 70% of it with 10% wrong. An audit that is told "
        "how many are wrong corrects for them by e0.",
    ]
    fewest = min(report.groups, key=lambda group: group.groups)
    if fewest.groups < FEW_GROUPS:
        found.append(
            "With few groups CV_c is right on average and noisy in each case: it removes bias and adds "
            f"variance. Here {fewest.name!r} has {fewest.groups} groups."
        )
    return found


def _beside_grouped(report: CvcReport) -> list[str]:
    if report.grouped is None or report.cvc is None:
        return []
    name = repr(report.grouped_by)
    others = [
        repr(group.name)
        for group in report.groups
        if group.new and not group.nested and group.name != report.grouped_by
    ]
    shared = ""
    if others:
        shared = (
            f" Folds of whole {name} still share groups of {joined(others)} between training and "
            "validation, for which CV_c corrects too."
        )
    codes = {finding.code for finding in report.findings}
    side = apart(report.grouped, report.grouped_interval, report.cvc, report.interval)
    if SIGNATURE in codes or side > 0:
        return [
            f"Folds of whole groups of {name} score worse than CV_c. Features seem to tell groups "
            f"apart; then trust the grouped score.{shared}"
        ]
    if side < 0:
        return [
            f"Folds of whole groups of {name} score better than CV_c. Either other levels matter, or "
            "the correction is too large, as it can be for weak models: in simulations it was 131% "
            f"of the bias for nearest neighbours. Take CV_c as the cautious number.{shared}"
        ]
    return [f"CV_c and folds of whole groups of {name} differ by no more than their noise.{shared}"]


def apart(
    value: float,
    ends: tuple[float, float | None] | None,
    other: float,
    other_ends: tuple[float, float | None] | None,
) -> int:
    """Return 1 or -1 where a value is above or below another by more than both intervals, else 0."""
    if _holds(ends, other) or _holds(other_ends, value):
        return 0
    return (value > other) - (value < other)


def _holds(ends: tuple[float, float | None] | None, value: float) -> bool:
    if ends is None:
        return False
    return ends[0] <= value and (ends[1] is None or value <= ends[1])


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
    cvc, cluster = report.cvc, report.subject.cluster
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
    if not report.refit.is_full and report.e0 <= cvc.cvc:
        return [
            f"e0 ({number(report.e0)}) and CV_c ({number(cvc.cvc)}) cannot be compared: e0 is a lower "
            "bound, because part of the model was not trained again."
        ]
    start = []
    if report.claim.range == (0.0, 0.0):
        start = [
            f"The ids were taken as right, so that e0 is the score by folds of whole {cluster!r}, up to "
            "the noise of the fitted curve."
        ]
    return [*start, _reading(report, cvc, report.e0, cvc.cvc)]


def _reading(report: AuditReport, cvc: CvcReport, e0: float, value: float) -> str:
    cluster = report.subject.cluster
    side = apart(e0, report.e0_interval, value, cvc.interval)
    if side > 0:
        wrong = "so many ids are wrong that the groups look more alike than they are"
        if report.claim.range == (0.0, 0.0):
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


def scores_caption(report: CvcReport) -> str:
    """Return how to read the chart of the scores."""
    return (
        f"The {loss_words(report.loss)} of the same learner; smaller is better. CV puts rows of one "
        "group into training and validation, CV_c adds what it gains by that, grouped CV keeps groups "
        "whole, and e0 is the audit's answer where ids may be wrong. Bars are 95% intervals where "
        "nothing else is said."
    )


def multiples_caption(report: CvcReport) -> str:
    """Return how to read the curve over the standard deviations; nothing where there is none."""
    if len(finite(report.sensitivity)) < 2:
        return ""
    return (
        "The standard deviations between groups are what few groups tell badly. The curve says what "
        "CV_c would be if all of them were larger or smaller by the same factor; at 0 groups do not "
        "differ, and cross-validation is right as it is."
    )


# --- How the numbers of an audit were made, in words

ROUTE_WORDS = {
    "clone": "an untrained copy with the same parameters was trained on other rows",
    "parameters": "a model with the recovered parameters was trained on other rows",
    "trainer": "the training function was called with other rows",
    "fresh": "the network was initialised anew and trained by its recipe on other rows",
    "hot-start": "training went on from the logged weights on other rows",
    "last-layer": "the network's last layer was trained again on other rows, its features kept",
    "head": "a linear model on the model's outputs was trained on other rows",
}


def describe_method(report: AuditReport) -> str:
    """Return how the numbers were made, for the record."""
    subject, plan = report.subject, report.plan
    draws = "without replacement at full size" if plan.scheme == "subset" else "with replacement"
    draws += "" if plan.n_train is None else f", {plan.n_train} rows each"
    if report.dose is not None:
        draws = "at full size by doses of validation rows"
    features = f"features {shortened(subject.features)}" if subject.features else "no features"
    corrected = "" if report.cvc is None else f" {describe_cvc(report.cvc)}"
    return (
        f"{subject.n_rows} rows, {subject.n_clusters} clusters by {subject.cluster!r}, {features}, "
        f"{fold_words(report)}, "
        f"loss {subject.loss}, {report.measured.fits} refits by route '{report.refit.route}', drawn {draws}, estimator "
        f"{estimator_words(report)}{sharpness_words(report)}, seed {plan.seed}, data {subject.data_digest}, mlflow-b3 {report.version}.{corrected}"
    )


def describe_refit(report: AuditReport) -> str:
    """Return how the model was trained again, and what that means for the result."""
    subject, refit = report.subject, report.refit
    meaning = (
        "so that all of the bias can show"
        if refit.is_full
        else "so that only part of the bias can show: losses are lower bounds"
    )
    what = ROUTE_WORDS.get(refit.route, "the model was trained again by another package's flavour")
    parts = [f"Route '{refit.route}': {what}, {meaning}", *refit.notes]
    if subject.sample_weight is not None:
        parts.append(
            f"rows were weighted by {subject.sample_weight!r} in training, not in the losses"
        )
    if refit.agreement is not None:
        equal = (
            "its predictions"
            if subject.task == "classification"
            else "the variance of its predictions"
        )
        parts.append(
            f"trained on all rows it agrees with {original_words(subject)} in {percent(refit.agreement)} of "
            f"{equal}" + (", by that reading of its classes" if _classes_read(refit) else "")
        )
    return "; ".join(parts) + "."


def _classes_read(refit: RefitSummary) -> bool:
    return any(note.startswith(CLASSES_READ) for note in refit.notes)


def estimator_words(report: AuditReport) -> str:
    """Return the estimator of the loss on new clusters, with its options."""
    if report.dose is not None:
        return "dose (solved from differences within rows between doses)"
    if not report.leakage.misplaces:
        return "mixture"
    options = [f"{name} {value}" for name, value in report.plan.method_options.items()]
    if report.sketch_error is not None:
        options.append(f"error of sketching at most {report.sketch_error:.2g} times e0")
    return f"{report.plan.method} ({', '.join(options)})" if options else report.plan.method


def sharpness_words(report: AuditReport) -> str:
    """Return the limit on how sharply the loss curve falls, where e0 is read from that curve."""
    return "" if report.dose is not None else f", curve sharpness at most {report.curve.sharpness}"


def range_words(ends: tuple[float, float]) -> str:
    """Return a rate in percent, or a range of rates."""
    return " to ".join(dict.fromkeys(map(percent, ends)))


def fold_words(report: AuditReport) -> str:
    """Return how many folds there were, and what they kept together."""
    each = len(report.folds) // report.plan.repeats
    count = "1 fold" if each == 1 else f"{each} folds"
    if report.plan.repeats > 1:
        count += f" assigned anew {report.plan.repeats} times"
    if report.plan.fold_threshold is not None:
        count += (
            f" that keep rows with a match probability from {report.plan.fold_threshold:g} together"
        )
    if report.plan.purge_threshold is not None:
        count += (
            " without training rows whose cluster has a match probability from "
            f"{report.plan.purge_threshold:g} with validation rows"
        )
    return count
