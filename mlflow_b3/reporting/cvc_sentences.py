"""What corrected cross-validation found, in sentences that need no statistics to read."""

import math

from mlflow_b3.auditing.report import AuditReport
from mlflow_b3.correlated.report import FEW_GROUPS, WITHHELD, CvcReport, GroupLevel
from mlflow_b3.reporting.drawing import finite
from mlflow_b3.reporting.phrases import claimed_errors, joined
from mlflow_b3.results import loss_words, number, percent

TITLE = "Cross-validation corrected for correlated rows"
SIGNATURE = "B338"
#: A bias of this fraction of an interval's half width lowers its confidence from 95% by 3%.
NEGLIGIBLE = 0.25
#: How the learner's part in the simulated world was computed.
ENGINES = {
    "fast": "The learner is linear in its features, so formulas replace the training on simulated samples.",
    "joint": "The mixed model was fitted again to each simulated sample, at fixed variances between "
    "groups.",
    "full": "The model was retrained on each of them.",
    "hot": "Training continued for a while from the model's own parameters, which is an approximation of "
    "lower quality.",
    "last_layer": "Only the last layer was retrained, which is an approximation of lower quality.",
}
#: Where the part that does not depend on groups comes from.
WORKING = {
    "score": "what the model itself predicts for a row after training without the row's group, "
    "recalibrated",
    "glmm": "a linear function of all features, fitted together with the groups. Features that are "
    "alike within groups take variance from them: in simulations, the correction was 41 to 69% of "
    "the bias",
    "given": "that of another candidate, or what the user gave, so that several models can be compared in "
    "the same world",
}


def better_words(report: CvcReport) -> str:
    """Return whether a larger or a smaller number is better."""
    return "larger" if report.greater_is_better else "smaller"


def scope_words(report: CvcReport) -> str:
    """Return which groups the corrected loss is for."""
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
    """Return the answer in a sentence; if it is withheld, the reason first."""
    word = loss_words(report.loss)
    if report.cvc is None:
        whole = ""
        if report.grouped is not None:
            whole = (
                f" Folds of whole groups of {report.grouped_by!r}, which need no model of the "
                f"correlation, give {value_words(report.grouped, report.grouped_interval)}."
            )
        return (
            f"No correction is given: {_reason(report)} The {word} by cross-validation alone is "
            f"{value_words(report.cv, report.cv_interval)}, which is optimistic by an unknown amount "
            f"if rows of a group are alike.{whole}"
        )
    low = " This comes from an approximation of lower quality." if report.lower_quality else ""
    return (
        f"Cross-validation gives {number(report.cv)} ({word}); {scope_words(report)} expect "
        f"{value_words(report.cvc, report.interval)}.{low}"
    )


def _reason(report: CvcReport) -> str:
    reasons = [f.message for f in report.findings if f.code in WITHHELD]
    reasons = reasons or [f.message for f in report.findings]
    ended = [reason if reason.endswith(".") else f"{reason}." for reason in reasons]
    return " ".join(ended) if ended else "it could not be computed."


def explain_cvc(report: CvcReport) -> list[str]:
    """Return what the correction is, what it rests on, and how it was made, if there is one."""
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
    losses = report.as_losses
    low, high = losses.bias_interval or (losses.bias or 0.0, losses.bias or 0.0)
    text = f"The difference, {value}, is what cross-validation gains from {gain}."
    if low <= 0:
        text = f"The difference is {value}, which does not show that cross-validation gains from {gain}."
    if report.bias_error:
        text += f" The number of simulated samples adds a standard error of {number(report.bias_error)}."
    noise = losses.cv_interval[1] - losses.cv
    if high <= NEGLIGIBLE * noise:
        text += (
            f" Even its {'lower' if report.greater_is_better else 'upper'} end is less than a quarter of the noise of cross-validation itself "
            f"({number(noise)}), so plain cross-validation is good enough here."
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
        "log-odds scale means that about one group in three has odds "
        f"{'of one class against another ' if report.classes > 2 else ''}more than "
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
        f"Rows that are close to each other by {places} are alike: the correlation falls to "
        f"{percent(math.exp(-1))} at a distance of {number(field.reach)}. Rows of different regions "
        f"still share a covariance of {number(field.across)}, and so will new regions."
    ]


def _made(report: CvcReport) -> list[str]:
    source = WORKING.get(report.working, repr(report.working))
    if report.slope is not None:
        source += f" (slope {number(report.slope)})"
    what, noise = (
        ("log odds are", "") if report.task == "classification" else ("targets are", ", noise")
    )
    if report.classes > 2:
        what = f"log odds of each of {report.classes} classes are"
    effect = "a normal effect of each group" if report.field is None else "a random field"
    draws = (
        f"{report.draws} samples were simulated."
        if report.draws
        else "Nothing had to be simulated."
    )
    return [
        f"In the simulated world, {what} the sum of {effect}{noise} and a fixed part: {source}. "
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
    """Return when to trust which score; an empty list if there is no corrected one."""
    if report.cvc is None:
        return []
    found = [
        *_beside_grouped(report),
        "CV_c assumes that the features of new groups are like those of these rows. It does not see what "
        "a learner gains by recognising groups from their features; folds of whole groups do.",
        "CV_c takes group ids as correct. In simulations, a share p of wrong ids left about (1-p)³ of the "
        "correction, for example about 70% of it with 10% wrong ids. If an audit is given the share of "
        "wrong ids, its e0 corrects for them.",
    ]
    fewest = min(report.groups, key=lambda group: group.groups)
    if fewest.groups < FEW_GROUPS:
        found.append(
            "With few groups, CV_c is right on average but noisy in each case: it removes bias and adds "
            f"variance. Here, {fewest.name!r} has {fewest.groups} groups."
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
            "validation; CV_c corrects for these too."
        )
    codes = {finding.code for finding in report.findings}
    losses = report.as_losses
    side = apart(losses.grouped or 0.0, losses.grouped_interval, losses.cvc or 0.0, losses.interval)
    if SIGNATURE in codes or side > 0:
        return [
            f"Folds of whole groups of {name} score worse than CV_c. Features seem to identify "
            f"groups; if so, trust the grouped score.{shared}"
        ]
    if side < 0:
        return [
            f"Folds of whole groups of {name} score better than CV_c. Either other levels matter, or "
            "the correction is too large, as it can be for weak models: in simulations, it was 131% "
            f"of the bias for nearest neighbours. Use CV_c as the cautious number.{shared}"
        ]
    return [f"CV_c and folds of whole groups of {name} differ by no more than their noise.{shared}"]


def apart(
    value: float,
    ends: tuple[float, float | None] | None,
    other: float,
    other_ends: tuple[float, float | None] | None,
) -> int:
    """Return 1 or -1 if a value is above or below another and outside both intervals, else 0."""
    if _holds(ends, other) or _holds(other_ends, value):
        return 0
    return (value > other) - (value < other)


def _holds(ends: tuple[float, float | None] | None, value: float) -> bool:
    if ends is None:
        return False
    return ends[0] <= value and (ends[1] is None or value <= ends[1])


# --- How e0 of an audit and corrected cross-validation relate

#: Above this share of wrong ids, the report says what the correction would be without them.
MANY_WRONG = 0.05


def summarise_cvc(report: AuditReport) -> str:
    """Return corrected cross-validation in a sentence that follows the answer of the audit."""
    cvc = report.cvc
    if cvc is None:
        return ""
    if cvc.cvc is None:
        return (
            " No correction of cross-validation for correlated rows (CV_c) is given; the findings "
            "say why."
        )
    low = ", by an approximation of lower quality" if cvc.lower_quality else ""
    return (
        f" Cross-validation corrected for correlated rows (CV_c) gives "
        f"{value_words(cvc.cvc, cvc.interval)} {scope_words(cvc)}{low}."
    )


def explain_pair(report: AuditReport) -> list[str]:
    """Return what e0 and CV_c say together."""
    cvc, cluster = report.cvc, report.subject.cluster
    if cvc is None or cvc.cvc is None:
        return []
    if report.e0 is None:
        return [
            "e0 is not known, so CV_c cannot be compared with it. CV_c takes the ids as correct; it does not "
            "say how many of them are wrong."
        ]
    if cluster not in cvc.new:
        return [
            f"e0 ({number(report.e0)}) is about new {cluster!r}; CV_c ({number(cvc.cvc)}) is not: it "
            f"holds {scope_words(cvc)}. They answer different questions."
        ]
    if not report.refit.is_full and report.e0 <= cvc.cvc:
        return [
            f"e0 ({number(report.e0)}) and CV_c ({number(cvc.cvc)}) cannot be compared: e0 is a lower "
            "bound, because part of the model was not retrained."
        ]
    start = []
    if report.claim.range == (0.0, 0.0):
        start = [
            f"The ids were taken as correct, so e0 is the score by folds of whole {cluster!r}, up to "
            "the noise of the fitted curve."
        ]
    return [*start, _reading(report, cvc, report.e0, cvc.cvc)]


def _reading(report: AuditReport, cvc: CvcReport, e0: float, value: float) -> str:
    cluster = report.subject.cluster
    side = apart(e0, report.e0_interval, value, cvc.interval)
    better, worse = ("above", "smaller") if cvc.greater_is_better else ("below", "larger")
    above = "below" if cvc.greater_is_better else "above"
    if cvc.greater_is_better:
        side = -side
    if side > 0:
        wrong = "so many ids are wrong that the groups look more alike than they are"
        if report.claim.range == (0.0, 0.0):
            wrong = "ids are wrong after all"
        return (
            f"e0 ({number(e0)}) is well {above} CV_c ({number(value)}): either features carry a "
            f"signature of their cluster, which CV_c does not see, or {wrong}. Use e0, the "
            f"{worse}.{_without_wrong_ids(report, cvc)}"
        )
    if side < 0:
        others = [repr(name) for name in cvc.new if name != cluster]
        level = (
            f"at a level that e0 does not know of ({joined(others)})"
            if others
            else "in another way"
        )
        return (
            f"e0 ({number(e0)}) is well {better} CV_c ({number(value)}): rows depend on each other "
            f"{level}, or the extrapolation to e0 is unstable (look at the residual of the loss "
            f"curve). Until you know which, use CV_c, the {worse}."
        )
    worst = min(e0, value) if cvc.greater_is_better else max(e0, value)
    return (
        f"e0 ({number(e0)}) and CV_c ({number(value)}) differ by no more than their noise. If one "
        f"number is needed, use the {worse}, {number(worst)}."
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
        f" If {percent(wrong)} of the ids are wrong and weaken the correction as in simulations, the "
        f"correction would be {number(larger)} without them instead of {number(cvc.bias)}, and CV_c would "
        f"be {number(cvc.cv + larger)}. This is a what-if, not an estimate."
    )


def scores_caption(report: CvcReport) -> str:
    """Return how to read the chart of the scores."""
    return (
        f"The {loss_words(report.loss)} of the same learner; {better_words(report)} is better. CV puts rows of one "
        "group into both training and validation, CV_c adds what CV gains from that, grouped CV keeps "
        "groups whole, and e0 is the audit's answer if ids may be wrong. Bars are 95% intervals unless "
        "stated otherwise."
    )


def multiples_caption(report: CvcReport) -> str:
    """Return how to read the curve over the standard deviations, if there is one."""
    if len(finite(report.sensitivity)) < 2:
        return ""
    return (
        "With few groups, the standard deviations between them are poorly estimated. The curve shows what "
        "CV_c would be if all of them were larger or smaller by the same factor; at 0, groups do not "
        "differ, and cross-validation needs no correction."
    )


def open_about_cvc(report: AuditReport) -> list[str]:
    """Return what corrected cross-validation leaves open."""
    cvc = report.cvc
    if cvc is None:
        return []
    if cvc.cvc is None:
        return ["How optimistic ordinary cross-validation is: no correction is given."]
    found = [
        "Whether rows are correlated as the correction of cross-validation assumes: only within the named "
        "groups, through effects that are independent of the features, and with correct ids."
    ]
    few = [f"{group.groups} {group.name!r}" for group in cvc.groups if group.groups < FEW_GROUPS]
    if few:
        found.append(
            f"How much groups differ: {joined(few)} are too few to estimate it well, and the correction of "
            "cross-validation grows with it."
        )
    return found
