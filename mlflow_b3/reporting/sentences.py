"""What an audit found, in sentences that need no statistics to read."""

import math

from mlflow_b3.estimation.fragments import estimate_fragments, seen_share
from mlflow_b3.estimation.intervals import CONFIDENCE
from mlflow_b3.estimation.shares import SeenShare
from mlflow_b3.hypothesis import LeakageTest
from mlflow_b3.reporting.headline import (
    NOT_SHOWN,
    OPEN,
    SHOWN,
    at_least,
    explain_tipping,
    loco_inflation,
)
from mlflow_b3.reporting.linkage import explain_linkage, explain_regression
from mlflow_b3.reporting.premises import (
    NOT_FINITE,
    confidence_of,
    folds_words,
    is_finite,
    is_half,
    premise_of,
)
from mlflow_b3.reporting.report import AuditReport
from mlflow_b3.wording import loss_words, number, percent

#: The split rate at which doses are compared when none was given.
DOSE_RATE = 0.2
DOSE_WORDS = {
    "uniform": "at a cut drawn uniformly",
    "halves": "in halves",
    "singles": "with one row breaking off",
}


def explain(report: AuditReport) -> list[str]:
    """Return the audit's answer in sentences that need no statistics to read."""
    sentences = [
        explain_answer(report),
        explain_inflation(report),
        *explain_linkage(report),
        *explain_regression(report),
    ]
    sentences += [explain_test(report.test), explain_tipping(report)]
    return sentences + ([report.p0_bound.statement] if report.p0_bound else [])


def explain_answer(report: AuditReport) -> str:
    """Return the loss on new clusters, under what it is known."""
    settings = report.settings
    word = loss_words(settings.loss)
    if not is_finite(report):
        return NOT_FINITE
    if settings.refit_strength != "full":
        return (
            f"{premise_of(report)}, this model's {word} on clusters it has never seen is "
            f"{at_least(report)}. How much more it is cannot be told, because part of the model was "
            "not trained again and keeps what it learned from all rows."
        )
    sure, (low, high) = confidence_of(report), report.e0_interval
    if report.e0 is None:
        ends = f"lies between {number(low)} and {number(high)} ({sure})"
        if high is None:
            ends = f"is {at_least(report)}"
        return (
            f"How well this model does on new clusters is not known. {premise_of(report)}, its {word} there "
            f"{ends}. The tables below say what each rate would mean. "
            + _search(report)
            + (_doses(report) if settings.pattern == "unknown" else "")
        )
    value = f"about {number(report.e0)} ({sure} interval {number(low)} to {number(high)})"
    if high is None:
        value = at_least(report)
    return (
        f"{premise_of(report)}, this model's {word} on clusters it has never seen is {value}. "
        "This value is "
        "corrected for bias; it is less certain than the uncorrected one, not more."
        + (_doses(report) if settings.pattern == "fragments" else "")
        + _half(report)
    )


def _half(report: AuditReport) -> str:
    if not is_half(report):
        return ""
    text = " It is the value for half of that limit; the interval is for none to all of it"
    if confidence_of(report) == percent(CONFIDENCE):
        return f"{text}."
    return f"{text}, and as the limit may fail too, it holds with {confidence_of(report)}."


def _doses(report: AuditReport) -> str:
    """Return what the loss would be if clusters split in other ways than they were broken."""
    losses, settings = report.fragments, report.settings
    if losses is None or not losses.doses:
        return ""
    share: SeenShare | tuple[SeenShare, SeenShare]
    if report.linkage is not None and report.p0 is not None:
        share = SeenShare(share=report.p0)
    else:
        low, high = settings.claim or (DOSE_RATE, DOSE_RATE)
        share = seen_share(low, report.folds), seen_share(high, report.folds)
    answer = estimate_fragments(losses, seen_share=share, bound=settings.loss_bound)
    rate = f" At a split rate of {percent(DOSE_RATE)} it would be about {number(answer.e0)}"
    subject = " This holds" if settings.claim else rate
    others = " and ".join(
        f"{number(dose.e0)} if they split {DOSE_WORDS[dose.fragments]}" for dose in answer.doses
    )
    given = "by the sizes given" if report.linkage is None else "as those that were found did"
    stated = DOSE_WORDS.get(settings.fragments, given)
    return f"{subject} if clusters split {stated}; it would be about {others}."


def _search(report: AuditReport) -> str:
    low, high = report.search.identified
    if report.search.flat:
        return (
            f"The loss curve itself does not tell the rate: it fits every leaked share up to "
            f"{percent(high)} equally well."
        )
    return (
        f"Of the loss curve itself, leaked shares of {percent(low)} to {percent(high)} of the "
        "training rows cannot be excluded; that is no estimate of the share."
    )


def explain_inflation(report: AuditReport) -> str:
    """Return how much too good the uncorrected scores are, as far as that was shown."""
    word = loss_words(report.settings.loss)
    if not is_finite(report):
        return NOT_FINITE
    ignoring = f"Ignoring clusters, cross-validation reports {number(report.iid)} as {word}"
    second = f"{folds_words(report)} it is {number(report.loco)}"
    if report.e0 is None or report.inflation is None:
        return f"{ignoring}; {second}." + (
            " The second is too good as well if ids are wrong." if report.test.rejected else ""
        )
    answer = loco_inflation(report)
    if report.settings.refit_strength != "full":
        shows = f"of the second's bias, {number(report.inflation)} shows."
        if report.inflation <= 0:
            shows = "no bias of the second shows, which does not say that it has none."
        found = "Both are too good" if answer == SHOWN else "How far they are off is not known"
        return f"{ignoring}; {second}. {found}; {shows}"
    gap = report.e0 - report.iid
    naive = f"{number(gap)} too good" if gap > 0 else f"not too good (correction {number(gap)})"
    start = f"{ignoring}, by this estimate {naive}. {second[0].upper()}{second[1:]}"
    if report.inflation <= 0:
        gap_words = f"(correction {number(report.inflation)})"
        return f"{start}, which by this estimate leakage has not made too good {gap_words}."
    half = ", if half of that limit leaked" if is_half(report) else ""
    return f"{start}, by this estimate {number(report.inflation)} too good{half}." + {
        NOT_SHOWN: " The noise allows that it is not too good at all.",
        OPEN: " Whether it is too good at all is not known.",
    }.get(answer, "")


def explain_test(test: LeakageTest) -> str:
    """Return what the leakage test says, and what it does not say."""
    if not all(map(math.isfinite, (test.pvalue, test.effect, *test.interval))):
        return "The numbers of the leakage test are not finite, so it says nothing."
    null = "that this learner gains nothing from having seen other rows of the validation clusters"
    ends = f"90 % interval {number(test.interval[0])} to {number(test.interval[1])}"
    found = f"an effect of {number(test.detectable)} would have been found in four of five cases"
    if test.rejected:
        return (
            f"The leakage test rejects {null} (p = {test.pvalue:.2g}; in small training sets they "
            f"lower the loss by {number(test.effect)}, {ends}). So if ids are wrong, the score is "
            f"too good. It does not say that ids are wrong. {_form(test)}; {found}."
        )
    return (
        f"The leakage test does not reject {null} (p = {test.pvalue:.2g}). In small training sets "
        f"they {'raised' if test.effect < 0 else 'lowered'} the loss by {number(abs(test.effect))} "
        f"({ends} for how much they lower it). This is no proof that leakage is "
        f"harmless, nor that ids are right: {found}, smaller ones less often. Rejecting would have "
        f"said that wrong ids make the score too good, not that ids are wrong. {_form(test)}."
    )


def _form(test: LeakageTest) -> str:
    units = f"{test.units} {test.unit}"
    if test.method == "welch":
        return f"It is the published form, on {units} without a row in common"
    scope = ", so it speaks of new rows of these clusters" if test.unit == "rows" else ""
    if test.method == "permutation":
        return (
            f"It is the permutation form, on {units} and {test.arrangements} rearrangements, whose "
            "null hypothesis is stronger: that rows do not depend on their cluster at all"
        )
    return f"It is the paired form, on {units}{scope}"
