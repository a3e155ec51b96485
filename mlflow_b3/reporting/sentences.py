"""What an audit found, in sentences that need no statistics to read."""

from mlflow_b3.estimation.fragments import estimate_fragments, seen_share
from mlflow_b3.estimation.shares import SeenShare
from mlflow_b3.hypothesis import LeakageTest
from mlflow_b3.reporting.linkage import describe_evidence, explain_linkage, explain_regression
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
    if settings.refit_strength != "full":
        return _lower_bound(report)
    low, high = (number(end) for end in report.e0_interval)
    if report.e0 is None:
        return (
            f"How well this model does on new clusters is not known. {premise_of(report)}, its {word} there "
            f"lies between {low} and {high} (95 %). The tables below say what each rate would mean. "
            + _search(report)
            + (_doses(report) if settings.pattern == "unknown" else "")
        )
    return (
        f"{premise_of(report)}, this model's {word} on clusters it has never seen is about "
        f"{number(report.e0)} (95 % interval {low} to {high}). This value is corrected for bias; it "
        "is less certain than the uncorrected one, not more."
        + (_doses(report) if settings.pattern == "fragments" else "")
        + (
            " It is the value for half the bound on the leaked rows; the interval is for none to "
            "all of them, and with the confidence of the bound it holds with 90 %."
            if report.p0_source == "mixture"
            else ""
        )
        + (
            " It is the value for half of that limit; the interval is for none to all of it."
            if report.linkage is not None and report.linkage.kind == "upper"
            else ""
        )
    )


def _lower_bound(report: AuditReport) -> str:
    """Return what a refit of a part of the model allows to say."""
    low, word = number(report.e0_interval[0]), loss_words(report.settings.loss)
    found = f"is at least {low}"
    if report.e0 is not None:
        found = f"is at least about {number(report.e0)} (at least {low} with 95 % confidence)"
    return (
        f"{premise_of(report)}, this model's {word} on clusters it has never seen {found}. How much "
        "more it is cannot be told, because part of the model was not trained again and keeps what "
        "it learned from all rows."
    )


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


def premise_of(report: AuditReport) -> str:
    """Return what is known about the ids, as the condition of everything that follows."""
    settings = report.settings
    if settings.claim is None:
        return (
            f"If at most half of the rows carry a wrong {settings.cluster!r} or belong to split "
            "clusters"
        )
    low, high = settings.claim
    rate = percent(low) if low == high else f"{percent(low)} to {percent(high)}"
    if report.linkage is not None:
        return describe_evidence(report, report.linkage)
    if report.p0_source == "match_column":
        return (
            f"By match probabilities of the rows that nobody checked, {percent(settings.middle)} of "
            f"them carry a wrong {settings.cluster!r}, or anything from {rate}. If so"
        )
    if report.p0_source == "cluster_error":
        return f"If {rate} of the rows carry a wrong {settings.cluster!r}"
    if report.p0_source == "split_rate":
        return f"If {rate} of the rows belong to a cluster that was split in two ids"
    if report.p0_source == "mixture":
        rate = f"at most {percent(high)}"
    back = "as many rows leaked back"
    if settings.p0_validation is not None:
        back = f"{percent(settings.p0_validation)} of the validation rows to its training clusters"
    return f"If {rate} of the training rows of a fold belong to its validation clusters, and {back}"


def explain_inflation(report: AuditReport) -> str:
    """Return how much too good the uncorrected scores are."""
    word = loss_words(report.settings.loss)
    ignoring = f"Ignoring clusters, cross-validation reports {number(report.iid)} as {word}"
    if report.e0 is None or report.inflation is None:
        return f"{ignoring}; {_folds_words(report)} it is {number(report.loco)}." + (
            " The second is too good as well if ids are wrong." if report.test.rejected else ""
        )
    if report.settings.refit_strength != "full":
        return (
            f"{ignoring}; {_folds_words(report)} it is {number(report.loco)}. Both are too "
            f"good; of the second's bias, {number(max(report.inflation, 0.0))} shows."
        )
    half = report.p0_source == "mixture" or (report.linkage and report.linkage.kind == "upper")
    gap = report.e0 - report.iid
    naive = f"too good by {number(gap)}" if gap > 0 else f"not too good (correction {number(gap)})"
    return (
        f"{ignoring}, which is {naive}. {_folds_words(report).capitalize()} it is "
        f"{number(report.loco)}, "
        + (
            f"still too good by {number(report.inflation)}"
            + (" if half of that bound leaked." if half else ".")
            if report.inflation > 0
            else f"which leakage has not made too good (correction {number(report.inflation)})."
        )
    )


def _folds_words(report: AuditReport) -> str:
    settings = report.settings
    if settings.fold_threshold is None and settings.purge_threshold is None:
        return "by the cluster ids as they are"
    return "on folds made with match probabilities"


def explain_test(test: LeakageTest) -> str:
    """Return what the leakage test says, and what it does not say."""
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
        f"they lowered the loss by {number(test.effect)}, {ends}. This is no proof that leakage is "
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


def explain_tipping(report: AuditReport) -> str:
    """Return how wrong the ids would have to be before the model fails."""
    if report.threshold is None:
        return "No threshold was given for this loss, so there is no tipping point."
    full = report.settings.refit_strength == "full"
    what = f"the threshold of {number(report.threshold)}"
    if not report.settings.threshold_given:
        what = f"the {number(report.threshold)} of the best constant answer"
    if report.loco >= report.threshold:
        return f"The model's loss reaches {what} even without leakage: it fails as it is."
    most = percent(max(report.sensitivity.error or (0.5,)))
    tips = [_tips("of the rows carried a wrong id", report.tipping_cluster_error, most, full)]
    if report.fragment_sensitivity is not None:
        condition = "of the rows belonged to split clusters"
        tips.append(_tips(condition, report.tipping_split_rate, "100 %", full))
    return f"Tipping point: the loss on new clusters would reach {what} {'; '.join(tips)}."


def _tips(condition: str, value: float | None, most: str, full: bool) -> str:
    if value is None and not full:
        return f"at a rate that cannot be told (what shows does not reach it if {most} {condition})"
    if value is None:
        return f"not even if {most} {condition}"
    return f"{'' if full else 'at the latest '}if {percent(value)} {condition}"
