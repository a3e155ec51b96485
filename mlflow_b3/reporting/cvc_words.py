"""What corrected cross-validation found, in sentences that need no statistics to read."""

import math

from mlflow_b3.correlated.report import FEW_GROUPS, WITHHELD, CvcReport, GroupLevel
from mlflow_b3.wording import loss_words, number, percent

TITLE = "Cross-validation corrected for correlated rows"
SIGNATURE = "B338"
#: A bias of this part of an interval's half width takes 3 % from its confidence of 95 %.
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
    "alike within groups take variance from them: in simulations the correction was 41 to 69 % of "
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
    return f"{number(value)} (95 % interval {number(ends[0])} to {number(ends[1])})"


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
        "correction, so that it is too small: some 70 % of it with 10 % wrong. An audit that is told "
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
            "the correction is too large, as it can be for weak models: in simulations it was 131 % "
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
