"""What an audit found, in sentences, and as a paragraph for a paper."""

import math
from dataclasses import dataclass, replace

from mlflow_b3.auditing.findings import LEAST_AGREEMENT, original_words
from mlflow_b3.auditing.report import AuditReport
from mlflow_b3.correlated.report import FEW_GROUPS
from mlflow_b3.estimation.bounds import CONFIDENCE
from mlflow_b3.estimation.fragments import estimate_fragments, seen_share
from mlflow_b3.estimation.leakage_test import LeakageTest
from mlflow_b3.estimation.problem import SeenShare
from mlflow_b3.measurement.refits import FEW_CLUSTERS
from mlflow_b3.reporting.doses import TITLE as DOSES_TITLE
from mlflow_b3.reporting.doses import curve_from_doses, explain_doses
from mlflow_b3.reporting.phrases import (
    NOT_FINITE,
    ROUTE_WORDS,
    confidence_of,
    estimator_words,
    explain_linkage,
    explain_regression,
    fold_words,
    folds_words,
    is_finite,
    is_half,
    is_mixture,
    joined,
    premise_of,
    range_words,
    rate_of,
    scope_words,
    shares_clusters,
    summarise_cvc,
    value_words,
)
from mlflow_b3.results import Result, loss_words, number, percent, signed

# --- The answer of an audit in a word and a few sentences

INFLATED = "Inflated"
MISSED = "Misses the threshold"
CANNOT_TELL = "Cannot tell"
HOLDS = "Holds"
UNKNOWN = "Not known"
#: The sign and the style of each word. A missed threshold is as bad as an inflated score.
SIGNS = {INFLATED: "▲", MISSED: "▲", CANNOT_TELL: "◆", HOLDS: "●", UNKNOWN: "?"}
STATES = {INFLATED: "bad", MISSED: "bad", CANNOT_TELL: "open", HOLDS: "good", UNKNOWN: "unknown"}
WORDS = tuple(SIGNS)

#: How the interval of e0 compares with a threshold.
BELOW, ABOVE, UNDECIDED = "below", "at or above", "undecided"
#: Whether the score by the cluster ids was shown to be optimistic.
SHOWN, NOT_SHOWN, OPEN = "shown", "not shown", "open"
#: A score holds if, at the upper end of the interval, new clusters cost no more than this share of
#: the model's advantage over the best constant prediction.
TOLERATED_SHARE = 0.2
#: The finding of a feature from which the target follows.
GIVEN_AWAY = "B343"
TRAINING_ROWS = "of the training rows of a fold belonged to its validation clusters"


@dataclass(frozen=True, kw_only=True)
class Headline(Result):
    """The answer to the question whether a reported score can be relied on.

    Attributes
    ----------
    word : str
        One of `WORDS`. It is not the verdict of a policy.
    sentence : str
        The scores behind the word, the condition under which they hold, and what is not known.
    """

    word: str
    sentence: str

    @property
    def sign(self) -> str:
        """The icon of the word."""
        return SIGNS[self.word]

    @property
    def state(self) -> str:
        """The style of the word: `bad`, `open`, `good` or `unknown`."""
        return STATES[self.word]

    def __str__(self) -> str:
        """Sign, word and sentence on one line."""
        return f"{self.sign} {self.word}: {self.sentence[0].lower()}{self.sentence[1:]}"


def headline_of(report: AuditReport) -> Headline:
    """Return the answer of an audit in a word and a few sentences.

    The word follows the worst of three comparisons: the score by rows (IID) with the score by
    cluster ids (LOCO), either of them with e0.

    `Inflated`
        One of the comparisons was shown: LOCO's interval lies above IID, the interval of e0 lies
        above IID or LOCO, or the learner profits from leaked rows and rows are known to have leaked.
    `Holds`
        No comparison was shown, the data can show one, and the upper end of e0's interval leaves at
        least four fifths of the advantage over the best constant prediction.
    `Misses the threshold`
        Not inflated, and all of e0's interval is at or above the threshold that was given.
    `Cannot tell`
        The data or the evidence do not decide: clusters without a second row, few clusters, an
        unknown share of wrong ids, a model without errors or without skill, a wide interval.
    `Not known`
        The audit was stopped early, or its numbers are not finite.
    """
    answer = _answer(report)
    return replace(answer, sentence=answer.sentence + summarise_cvc(report))


def _answer(report: AuditReport) -> Headline:
    if not is_finite(report):
        return Headline(word=UNKNOWN, sentence=NOT_FINITE)
    scores = _scores(report)
    if report.partial:
        assert report.refits is not None
        done = f"{report.refits.done} of {report.refits.planned}"
        stopped = f"The audit was stopped after {done} refits, which decides nothing."
        return Headline(word=UNKNOWN, sentence=f"{stopped} So far: {scores}. {_premise(report)}")
    uninformative = _uninformative(report)
    if uninformative:
        return Headline(word=CANNOT_TELL, sentence=f"{uninformative} {_upper(scores)}.")
    if _inflated(report):
        details = f"{_second(report)}{_premise(report)}"
        details += "" if _unchecked(report) else unsure(report)  # then it is about e0 only
        return Headline(word=INFLATED, sentence=f"{_upper(scores)}. {details}")
    details = f"{_upper(scores)}. {_premise(report)}"
    if report.e0 is None and not report.leakage.is_known:
        return Headline(word=CANNOT_TELL, sentence=_without_rate(report, scores))
    compared = compare_with_threshold(report)
    if report.plan.threshold_given and compared == ABOVE:
        word = CANNOT_TELL if _doubt(report) else MISSED
        return Headline(word=word, sentence=f"{details}{unsure(report)}")
    doubt = _hidden(report) or _doubt(report) or _room(report)
    if doubt:
        return Headline(word=CANNOT_TELL, sentence=f"{_upper(doubt)}. {details}")
    if report.plan.threshold_given and compared != BELOW:
        return Headline(word=CANNOT_TELL, sentence=details)
    return Headline(word=HOLDS, sentence=details)


def _upper(text: str) -> str:
    return text[0].upper() + text[1:]


def _scores(report: AuditReport) -> str:
    """Return the reported score beside the worst of the others."""
    word = loss_words(report.subject.loss)
    reported = f"reported {word} {number(report.iid)}"
    worst = _worst(report)
    if worst == report.e0:
        more = " or more" if report.e0_interval[1] is None else ""
        gap = signed(worst - report.iid)
        return f"{reported}, on new clusters {number(worst)}{more} ({gap})"
    gap = signed(report.loco - report.iid)
    return f"{reported}, {folds_words(report)} {number(report.loco)} ({gap})"


def _worst(report: AuditReport) -> float:
    """Return the larger one of LOCO and e0, as far as e0 rests on something."""
    if report.e0 is None or _unchecked(report):
        return report.loco
    return max(report.e0, report.loco)


def _second(report: AuditReport) -> str:
    """Return what is known of the score by the cluster ids, where it is not the worst one."""
    if _worst(report) == report.loco:
        return ""
    shown = {
        SHOWN: "inflated as well",
        NOT_SHOWN: "inflation not shown",
        OPEN: "whether it is inflated is open",
    }[loco_inflation(report)]
    return f"{_upper(folds_words(report))}: {number(report.loco)}, {shown}. "


def _premise(report: AuditReport) -> str:
    """Return e0 with its interval under its condition, held against the threshold or the constant."""
    if report.e0 is None and not report.leakage.is_known:
        return f"{_unknown_rate(report)} {explain_tipping(report)}"
    start = f"{premise_of(report)}, the {_loss(report)}"
    if report.threshold is None:
        return f"{start}."
    limit = f"the threshold of {number(report.threshold)}"
    if not report.plan.threshold_given:
        limit = f"the {number(report.threshold)} of the best constant answer"
    compared = compare_with_threshold(report)
    if compared == UNDECIDED:
        because = _hidden(report) or _doubt(report)
        reason = f", because {because}" if because and _ends_below(report) else ""
        return f"{start}. Whether it is below {limit} is open{reason}."
    return f"{start}, all of it {compared} {limit}."


def _unknown_rate(report: AuditReport) -> str:
    rate = f"How many values of {report.subject.cluster!r} are wrong is not known"
    return f"{rate}, so neither is the loss on new clusters."


def _without_rate(report: AuditReport, scores: str) -> str:
    """Return the answer where nothing is known about the ids: the tipping point, then the scores."""
    told = explain_tipping(report)
    doubt = _doubt(report)
    return (
        f"{told} {_unknown_rate(report)} Give cluster_error or split_rate, or have a sample of rows "
        f"resolved by hand. {_upper(scores)}." + (f" {_upper(doubt)}." if doubt else "")
    )


def _uninformative(report: AuditReport) -> str:
    """Return why these data cannot show inflation at all; nothing where they can."""
    # no more clusters than this have a second row
    mates = report.subject.n_rows - report.subject.n_clusters
    if mates < FEW_CLUSTERS:
        few = "no cluster has" if mates <= 0 else f"at most {mates} clusters have"
        return (
            f"{_upper(few)} a second row, so the data cannot show what rows of a cluster give away "
            "about each other. Audit by ids that repeat: patients rather than visits."
        )
    if any(finding.code == GIVEN_AWAY for finding in report.findings):
        return "A feature gives away the target, so the score says nothing about new clusters."
    if report.loco <= 0 == report.subject.loss_floor and report.iid <= 0:
        return (
            "The model makes no error on any held-out row, as when a feature contains the target. "
            "Check the features before anything else."
        )
    return ""


def _inflated(report: AuditReport) -> bool:
    """Return whether any of the comparisons was shown."""
    # of the same rows, so that the noise of their difference is smaller than that of one of them
    if _same_rows(report) and report.iid < report.loco_interval[0]:
        return True
    beyond = not _unchecked(report) and report.e0_interval[0] > report.iid
    return (_same_rows(report) and beyond) or loco_inflation(report) == SHOWN


def _same_rows(report: AuditReport) -> bool:
    return report.plan.n_validated == report.subject.n_clusters


def loco_inflation(report: AuditReport) -> str:
    """Return whether the score by the cluster ids was shown to be optimistic.

    `SHOWN`, `NOT_SHOWN` where the learner does not profit from leaked rows or the correction is not
    upwards, or `OPEN` where too little is known about the ids or the refits.
    """
    known = report.e0 is not None and not _unchecked(report)
    low, high = report.claim.range or (0.0, 1.0)
    gap = report.inflation or 0.0
    profits = report.test.rejected
    beyond = report.e0_interval[0] > report.loco and not _unchecked(report)
    if beyond or (profits and known and low > 0 and gap > 0):
        return SHOWN
    if profits and shares_clusters(report):
        return SHOWN
    whole = report.refit.is_full
    return NOT_SHOWN if known and whole and (not profits or gap <= 0 or high == 0) else OPEN


def compare_with_threshold(report: AuditReport) -> str:
    """Return whether all of e0's interval is below the threshold, at or above it, or neither.

    `BELOW` also needs evidence that can show a small loss: refits of the whole model, checked or
    stated shares, enough clusters, and folds that keep known clusters together.
    """
    if report.threshold is None or not is_finite(report):
        return UNDECIDED
    low, high = report.e0_interval
    point = low if report.e0 is None else report.e0
    if low >= report.threshold and point >= report.threshold:
        return ABOVE
    if _ends_below(report) and high is not None and low <= high:
        return UNDECIDED if _hidden(report) or _doubt(report) else BELOW
    return UNDECIDED


def _ends_below(report: AuditReport) -> bool:
    """Return whether neither e0 nor its interval reaches the threshold, as far as they are known."""
    assert report.threshold is not None
    _, high = report.e0_interval
    return all(value is None or value < report.threshold for value in (report.e0, high))


def _hidden(report: AuditReport) -> str:
    """Return why the loss may be larger than all of its interval; nothing where it may not."""
    if not report.refit.is_full:
        return "part of the model was not trained again and keeps what it learned from all rows"
    if shares_clusters(report):
        return "known clusters sit on both sides of the folds"
    if report.e0 is None and report.linkage is not None:
        return "the evidence leaves open that all validation rows were seen"
    if report.e0 is None and report.claim.range is not None:
        return "the rows do not tell how many of them leaked"
    if not report.leakage.is_known and report.fragment_sensitivity is None:
        return "what split clusters would do could not be measured"
    return "nothing limits it from above" if report.e0_interval[1] is None else ""


def _doubt(report: AuditReport) -> str:
    """Return why the interval may be off on either side; nothing where nothing says so."""
    if _unchecked(report):
        return "nobody has checked the match probabilities that it rests on"
    if report.plan.n_validated < FEW_CLUSTERS:
        return f"{report.plan.n_validated} clusters are too few to speak of others"
    if report.refit.agreement is not None and not report.refit.agreement >= LEAST_AGREEMENT:
        return f"the refits are unlike {original_words(report.subject)}"
    if not report.accurate and report.leakage.misplaces:
        return "the solver was not sure of its numbers"
    return ""


def _room(report: AuditReport) -> str:
    """Return what the interval leaves room for where a score does not hold; nothing where it does."""
    constant, high = report.constant_loss, report.e0_interval[1]
    base = report.iid if _same_rows(report) else report.loco
    if report.e0 is None or high is None:
        return "nothing limits the loss on new clusters"
    if constant is None:
        within = report.plan.threshold_given and compare_with_threshold(report) == BELOW
        return "" if within else "what a constant answer would score is not known"
    if max(report.e0, report.loco) >= constant:
        return (
            f"the model is no better than the best constant answer ({number(constant)}), so "
            "there is no advantage that leakage could inflate"
        )
    if high - base > TOLERATED_SHARE * (constant - base):
        return f"inflation was not shown, but the interval leaves room for {signed(high - base)}"
    return ""


def unsure(report: AuditReport) -> str:
    """Return the sentence that says why an answer is not sure; nothing where nothing says so."""
    doubt = _doubt(report)
    return f" That is not sure, because {doubt}." if doubt else ""


def _loss(report: AuditReport) -> str:
    """Return the loss on new clusters with what is known of it."""
    low, high = report.e0_interval
    word = f"{loss_words(report.subject.loss)} on new clusters"
    if high is None:
        return f"{word} is {at_least(report)}"
    ends, sure = f"{number(low)} to {number(high)}", confidence_of(report)
    if report.e0 is None:
        return f"{word} lies somewhere from {ends} ({sure})"
    return f"{word} is about {number(report.e0)} ({sure} interval {ends})"


def at_least(report: AuditReport) -> str:
    """Return the loss on new clusters where only a lower bound of it is known."""
    low = f"at least {number(report.e0_interval[0])}"
    if report.e0 is None:
        return f"{low} with {confidence_of(report)} confidence, with no upper limit"
    if report.refit.is_full:
        return (
            f"about {number(report.e0)} ({low} with {confidence_of(report)} confidence, with no "
            "upper limit)"
        )
    return f"at least about {number(report.e0)} ({low} with {confidence_of(report)} confidence)"


def _unchecked(report: AuditReport) -> bool:
    return report.leakage.is_unchecked


def explain_tipping(report: AuditReport) -> str:
    """Return how wrong the ids would have to be before the loss reaches the threshold."""
    if report.threshold is None:
        return "No threshold was given for this loss, so there is no tipping point."
    if not is_finite(report):
        return NOT_FINITE
    full = report.refit.is_full
    what = f"the threshold of {number(report.threshold)}"
    if not report.plan.threshold_given:
        what = f"the {number(report.threshold)} of the best constant answer"
    if report.loco >= report.threshold:
        return (
            f"There is no tipping point: {folds_words(report)} the loss is {number(report.loco)}, "
            f"which reaches {what} already."
        )
    curve = report.sensitivity
    most = percent(max(curve.error or curve.p0))
    if curve.error is None:
        condition, tip = TRAINING_ROWS, report.tipping_p0
    else:
        condition, tip = "of the rows carried a wrong id", report.tipping_cluster_error
    tips = [_tips(condition, tip, most, full)]
    if report.fragment_sensitivity is not None:
        condition = "of the rows belonged to split clusters"
        tips.append(_tips(condition, report.tipping_split_rate, "100%", full))
    return f"Tipping point: the loss on new clusters would reach {what} {'; '.join(tips)}."


def _tips(condition: str, value: float | None, most: str, full: bool) -> str:
    if value is None and not full:
        return f"at a rate that cannot be told (what shows does not reach it if {most} {condition})"
    if value is None:
        return f"not even if {most} {condition}"
    return f"{'' if full else 'at the latest '}if {percent(value)} {condition}"


# --- What an audit found, in sentences that need no statistics to read

#: The split rate at which doses are compared when none was given.
DOSE_RATE = 0.2
#: In which training sets the leakage test compares losses.
SMALL_SETS = "small training sets"
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
        *explain_doses(report),
    ]
    sentences += [explain_test_of(report), explain_tipping(report)]
    return sentences + ([report.p0_bound.statement] if report.p0_bound else [])


def explain_answer(report: AuditReport) -> str:
    """Return the loss on new clusters, under what it is known."""
    word = loss_words(report.subject.loss)
    if not is_finite(report):
        return NOT_FINITE
    if not report.refit.is_full:
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
            + ("" if report.leakage.is_known else _doses(report))
        )
    value = f"about {number(report.e0)} ({sure} interval {number(low)} to {number(high)})"
    if high is None:
        value = at_least(report)
    return (
        f"{premise_of(report)}, this model's {word} on clusters it has never seen is {value}. "
        "This value is "
        "corrected for bias; it is less certain than the uncorrected one, not more."
        + ("" if report.leakage.misplaces else _doses(report))
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
    losses, claimed = report.fragments, report.claim.range
    if losses is None or not losses.doses:
        return ""
    share: SeenShare | tuple[SeenShare, SeenShare]
    if report.linkage is not None and report.p0 is not None:
        share = SeenShare(share=report.p0)
    else:
        low, high = claimed or (DOSE_RATE, DOSE_RATE)
        share = seen_share(low, report.folds), seen_share(high, report.folds)
    answer = estimate_fragments(losses, seen_share=share, bound=report.subject.loss_bound)
    rate = f" At a split rate of {percent(DOSE_RATE)} it would be about {number(answer.e0)}"
    subject = " This holds" if claimed else rate
    others = " and ".join(
        f"{number(dose.e0)} if they split {DOSE_WORDS[dose.fragments]}" for dose in answer.doses
    )
    given = "by the sizes given" if report.linkage is None else "as those that were found did"
    stated = DOSE_WORDS.get(report.plan.fragment_sizes, given)
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
    word = loss_words(report.subject.loss)
    if not is_finite(report):
        return NOT_FINITE
    ignoring = f"Ignoring clusters, cross-validation reports {number(report.iid)} as {word}"
    second = f"{folds_words(report)} it is {number(report.loco)}"
    if report.e0 is None or report.inflation is None:
        return f"{ignoring}; {second}." + (
            " The second is too good as well if ids are wrong." if report.test.rejected else ""
        )
    answer = loco_inflation(report)
    if not report.refit.is_full:
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


def explain_test_of(report: AuditReport) -> str:
    """Return what the leakage test of an audit says, and what it does not say."""
    return explain_test(report.test, sets=_test_sets(report))


def _test_sets(report: AuditReport) -> str:
    """Return in which training sets the test compares losses."""
    # by doses, rows in unchanged folds are compared with held-back rows of refits of full size
    return SMALL_SETS if report.dose is None else "training sets of full size"


def explain_test(test: LeakageTest, *, sets: str = SMALL_SETS) -> str:
    """Return what the leakage test says, and what it does not say."""
    if not all(map(math.isfinite, (test.pvalue, test.effect, *test.interval))):
        return "The numbers of the leakage test are not finite, so it says nothing."
    null = "that this learner gains nothing from having seen other rows of the validation clusters"
    ends = f"90% interval {number(test.interval[0])} to {number(test.interval[1])}"
    found = f"an effect of {number(test.detectable)} would have been found in four of five cases"
    if test.rejected:
        return (
            f"The leakage test rejects {null} (p = {test.pvalue:.2g}; in {sets} they "
            f"lower the loss by {number(test.effect)}, {ends}). So if ids are wrong, the score is "
            f"too good. It does not say that ids are wrong. {_form(test)}; {found}."
        )
    return (
        f"The leakage test does not reject {null} (p = {test.pvalue:.2g}). In {sets} "
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


# --- What the charts of a report show, in words


def score_caption(report: AuditReport) -> str:
    """Return how to read the chart of the scores."""
    word = loss_words(report.subject.loss)
    text = f"The {word} of the same learner under three ways of validating it; smaller is better."
    if report.e0 is None:
        text += " Of the last only a range is known"
        text += "." if report.e0_interval[1] is not None else ", which has no upper end."
    elif not report.refit.is_full:
        text += " The last is a lower bound; the bar has no upper end."
    if report.e0_secant is not None:
        text += " The lower limit rests on a convex loss curve."
    return text


def curve_title(report: AuditReport) -> str:
    """Return the heading over the chart of the loss curve."""
    if report.dose is not None:
        return DOSES_TITLE
    if is_mixture(report):
        return "From seen to new clusters"
    return "The measured loss curve" + (" and its extrapolation" if report.path else "")


def curve_caption(report: AuditReport) -> str:
    """Return how e0 follows from what was measured, or why it does not."""
    word = loss_words(report.subject.loss)
    if report.dose is not None:
        return curve_from_doses(report)
    if is_mixture(report):
        return (
            f"With s the share of validation rows whose true cluster also has rows in training, the "
            f"{word} on the folds is LOCO = (1−s)·e0 + s·e_seen. e_seen was measured by breaking "
            "clusters in two on purpose and giving one part to training; the line is solved for e0 "
            "at s = 0. Its right end differs from what was measured where clusters that are "
            "fragments already gain less from being broken again."
        )
    text = _measuring(word)
    if report.path is not None:
        low, high = report.claim.range or (0.0, 0.0)
        middle = " All of this is for the middle of the range that was taken as known." * (
            low < high
        )
        if report.path.exposure[0] == 0:
            return f"{text} By what was taken as known no row leaked, so e0 is read there.{middle}"
        return (
            f"{text} Rows that leaked by wrong ids are in there already, so the point without leakage "
            f"lies to the left, at {percent(report.path.exposure[0])}; there the curve gives e0."
            f"{middle}"
        )
    if not report.leakage.misplaces:
        return f"{text} So many rows may have been seen that e0 cannot be solved for."
    return (
        f"{text} The point without leakage lies to the left of it; how far is not known, because "
        "nothing is known about how many ids are wrong. So nothing is extrapolated here."
    )


def measured_caption(report: AuditReport) -> str:
    """Return what the measured curve says where e0 follows from a mixture."""
    return (
        f"{_measuring(loss_words(report.subject.loss))} How steeply it falls is how much this learner "
        "profits from rows of the same cluster. For split clusters e0 is solved from the mixture above, "
        "not read from this curve."
    )


def _measuring(word: str) -> str:
    return (
        f"More and more validation rows were put into training on purpose, and the {word} on the "
        "others was measured. At 0% the folds are as they are."
    )


def sensitivity_caption(report: AuditReport, *, split: bool) -> str:
    """Return how to read a sensitivity curve."""
    rate = {
        "split rate": "share of rows whose cluster was split",
        "cluster error": "share of rows with a wrong id",
    }.get(rate_of(report, split=split), "share of training rows that belong to validation clusters")
    text = f"The loss on new clusters for every {rate}: the one thing that the data cannot tell."
    if report.threshold is not None and not report.plan.threshold_given:
        text += (
            f" No threshold was given; {number(report.threshold)} is the loss of the best constant "
            "answer, which needs no features."
        )
    return text


# --- What an audit does not detect, and what one audit leaves open

SHARP_EFFECTS = (
    "Very sharp effects: the interval assumes that a row is affected through no more mates than its "
    "cluster has rows, 25 at the most."
)
OTHER_EFFECTS = (
    "Effects that are not about numbers: the estimate assumes that how many rows of its cluster a row "
    "has in training matters, not which ones, and that wrong ids hit all rows alike."
)
LIMITS = (
    "How many ids are wrong, from the model alone: the same loss curve fits every rate. Rows that "
    "were looked up by hand tell it, scores of record linkage do not.",
    "Leakage that is not about clusters: a feature that knows the target, preprocessing that was "
    "fitted on all rows, time running backwards.",
    "Clusters that nobody has named: if rows depend on each other through something that is not in "
    "the cluster column, no split by that column shows it.",
    SHARP_EFFECTS,
    "Other populations: new clusters are taken to be like those of this table.",
    "The corrected score has less bias and more variance than the uncorrected one. Where leakage does "
    "not matter, the uncorrected one is as good.",
)


def limits_of(report: AuditReport) -> tuple[str, ...]:
    """Return what no audit by this method detects."""
    if report.dose is None:
        return LIMITS
    return tuple(OTHER_EFFECTS if limit == SHARP_EFFECTS else limit for limit in LIMITS)


GIVEN = (
    "Whether the rate that was given is right; the sensitivity curve says what others would mean."
)
UNCHECKED = "How far the match probabilities are off: nobody has checked them."
VACUOUS = "How many rows leaked: the evidence that was to tell it excludes nothing."
#: What remains unknown of the leaked share, by where it came from.
SOURCES = {
    "none": "How many ids are wrong. Without that there is no single number for new clusters.",
    "p0": GIVEN,
    "cluster_error": GIVEN,
    "split_rate": GIVEN,
    "mixture": "How many rows leaked: the rows themselves give an upper bound, and it does not say "
    "that any row did.",
    "resolved_rows": "Whether those who looked rows up found all that belong together. That only a "
    "sample was looked up is in the interval.",
    "partition_samples": "Whether the model of the record linkage is right, whose samples were used.",
    "linkage_quality": "How far the leaked share is below its upper limit, and whether the figures of "
    "the linkage hold for this table.",
    "match_probability": UNCHECKED,
    "match_column": UNCHECKED,
}


def open_questions(report: AuditReport) -> list[str]:
    """Return what is not known after this audit, in sentences."""
    test, validated = report.test, report.plan.n_validated
    excluded = report.e0 is not None or report.claim.range is None
    found = [SOURCES[report.p0_source] if excluded else VACUOUS, report.leakage.open_question]
    if not report.refit.is_full:
        found.append(
            "How much larger the loss on new clusters is than what is shown: part of the model was "
            "not trained again."
        )
    if any(fold.shared_clusters for fold in report.folds):
        found.append(
            "How the model does on folds that keep known clusters together: those that were given "
            "do not."
        )
    if validated < FEW_CLUSTERS:
        found.append(
            f"How far the next cluster differs from these {validated}: the intervals speak "
            "of new rows of the same clusters."
        )
    if not test.rejected:
        found.append(
            "Whether this model profits from leaked rows at all. The test did not show it; an effect "
            f"below {number(test.detectable)} would often be missed."
        )
    by_shares = report.dose is None and report.leakage.misplaces
    if report.e0_secant is None and report.e0 is not None and by_shares:
        found.append(
            "A lower limit by a secant of the loss curve: the measured curve does not show that it "
            "is convex."
        )
    return found + _about_refits(report) + _about_cvc(report)


def _about_cvc(report: AuditReport) -> list[str]:
    """Return what corrected cross-validation leaves open."""
    cvc = report.cvc
    if cvc is None:
        return []
    if cvc.cvc is None:
        return ["How much too good ordinary cross-validation is: its correction is withheld."]
    found = [
        "Whether rows are correlated as the correction of cross-validation takes it: by the groups "
        "that were named, through effects that have nothing to do with their features, with right ids."
    ]
    few = [f"{group.groups} {group.name!r}" for group in cvc.groups if group.groups < FEW_GROUPS]
    if few:
        found.append(
            f"How much groups differ: {joined(few)} tell it badly, and the correction of "
            "cross-validation grows with it."
        )
    return found


def _about_refits(report: AuditReport) -> list[str]:
    agreement = report.refit.agreement
    question = "Whether the refits are models like the one that was logged"
    if agreement is None:
        return [f"{question}: they could not be compared."] if report.subject.uri else []
    if not agreement >= LEAST_AGREEMENT:
        return [f"{question}: on all rows they agree in {percent(agreement)} only."]
    return []


# --- A paragraph for a paper: how clusters and leakage were handled, as TRIPOD+AI asks for it

#: The estimators that are not those of the papers.
OWN_METHODS = ("power",)
BREAKING = "breaking validation clusters on purpose and giving one part to training"

REFERENCES = (
    "Barnes, M. and Dubrawski, A. (2017). The binomial block bootstrap estimator for evaluating loss "
    "on dependent clusters. Proceedings of UAI 2017.",
    "Barnes, M. and Dubrawski, A. (2019). On the interaction effects between prediction and "
    "clustering. Proceedings of AISTATS 2019, PMLR 89. arXiv:1807.06713.",
    "Collins, G. S. et al. (2024). TRIPOD+AI statement: updated guidance for reporting clinical "
    "prediction models that use regression or machine learning methods. BMJ 385, e078378. "
    "doi:10.1136/bmj-2023-078378.",
)

CORRELATED = (
    "Yuval, O. and Rosset, S. (2025). Cross validation for correlated data in classification models. "
    "Proceedings of AISTATS 2025, PMLR."
)


def describe_for_paper(report: AuditReport) -> str:
    """Return a paragraph on clustering, leakage and their evidence, to paste into a paper.

    It speaks of the items of TRIPOD+AI on clustered data, on the evaluation of performance and on
    software (Collins et al. 2024, doi:10.1136/bmj-2023-078378).
    """
    sentences = [
        _validation(report),
        _problem(report),
        _evidence(report),
        _estimation(report),
        *(_outcome(report) if is_finite(report) else [NOT_FINITE]),
        *_corrected(report),
        _software(report),
    ]
    return " ".join(sentences)


def references_of(report: AuditReport) -> tuple[str, ...]:
    """Return what the paragraph cites."""
    return REFERENCES if report.cvc is None else (*REFERENCES, CORRELATED)


def _outcome(report: AuditReport) -> list[str]:
    threshold = [_threshold(report)] if report.plan.threshold_given else []
    return [_results(report), *threshold, _test(report)]


def _validation(report: AuditReport) -> str:
    folds = "given folds" if len(report.folds) > 1 else "one given fold"
    if shares_clusters(report):
        shared = max(fold.shared_clusters for fold in report.folds)
        kept = f"on {folds} with up to {shared} clusters on both sides"
    elif report.plan.folds_given:
        kept = f"on {folds} that kept the rows of a cluster together"
    else:
        kept = "with the rows of a cluster kept together"
    how = f"by cross-validation {kept} ({fold_words(report)})"
    if len(report.folds) == 1:
        how = f"by validation {kept}"
    return (
        f"The {report.subject.n_rows} rows came from {report.subject.n_clusters} clusters by {report.subject.cluster!r}. The "
        f"{loss_words(report.subject.loss)} was evaluated {how}, and for comparison by cross-validation "
        "that ignored clusters."
    )


def _problem(report: AuditReport) -> str:
    return (
        f"Where cluster identifiers {report.leakage.damage}, rows of one true cluster can be in training and in "
        "validation data and make the performance look too good."
    )


def _evidence(report: AuditReport) -> str:
    """Return by what evidence the leaked share is known."""
    claim, source = report.claim, report.p0_source
    if claim.range is None:
        return "How many identifiers are wrong was not known."
    low, high = claim.range
    rate = percent(low) if low == high else f"{percent(low)} to {percent(high)}"
    seen = "of the validation rows have rows of the same true cluster in training"
    middle = f"{percent(claim.middle)} (95% interval {rate}) {seen}"
    leak = report.linkage
    looked_up = "some" if leak is None or leak.n_labels is None else str(leak.n_labels)
    sure = "" if leak is None or leak.n_labels is None else f" ({percent(leak.level)} confidence)"
    stated = "That was stated, not estimated from these data."
    beside = claim.split_range
    split = (
        "" if beside is None else f" and {range_words(beside)} belong to clusters that were split"
    )
    back = "with as many rows leaking back"
    if claim.p0_validation is not None:
        back = f"with {percent(claim.p0_validation)} of the validation rows from training clusters"
    bound = report.p0_bound
    confidence = percent(0.95 if bound is None else bound.confidence)
    texts = {
        "cluster_error": f"It was taken that {rate} of the rows carry a wrong identifier{split}. "
        f"{stated}",
        "p0": f"It was taken that {rate} of the training rows of a fold belong to its validation "
        f"clusters, {back}. {stated}",
        "split_rate": f"It was taken that {rate} of the rows belong to clusters that were split in "
        f"two identifiers. {stated}",
        "mixture": "The share of training rows that belong to validation clusters was bounded from "
        f"above by how many of them look like validation rows: at most {percent(high)} with "
        f"{confidence} confidence, {back}.",
        "resolved_rows": f"For a sample of {looked_up} rows all other rows of the same true cluster "
        f"were looked up by hand; by these, {middle}.",
        "partition_samples": f"By posterior samples of the record linkage, {middle}.",
        "linkage_quality": "By the published quality of the record linkage, at most "
        f"{percent(high)} {seen}{sure}.",
        "match_probability": "By match probabilities of the record linkage that nobody checked, "
        f"about {percent(claim.middle)} {seen}; {rate} was allowed for.",
        "match_column": "By match probabilities of the rows that nobody checked, about "
        f"{percent(claim.middle)} of them carry a wrong identifier; {rate} was allowed for.",
    }
    if report.e0 is None and report.leakage.is_bounded_by_rows:
        return (
            "How many training rows belong to validation clusters was not known; how many of them "
            "look like validation rows excluded nothing."
        )
    if report.e0 is None and leak is not None:
        return (
            f"How many {seen} was not known; the evidence of the record linkage ({source}) did not "
            "exclude that all have."
        )
    return texts[source]


def _estimation(report: AuditReport) -> str:
    route = ROUTE_WORDS.get(report.refit.route, "the model was trained again")
    refits = f"{report.measured.fits} refits in all, for each of which {route}"
    if report.dose is not None:
        text = _by_doses(report, refits)
    elif not report.leakage.misplaces:
        text = (
            "The performance on new clusters was estimated from the mixture of validation rows with "
            "and without rows of their true cluster in training; the performance on the former was "
            f"measured by {BREAKING} ({refits})."
        )
    else:
        how = ""
        if report.e0 is None:
            how = "for every share of wrong identifiers up to 50% "
            if report.claim.range is not None and report.claim.p0_validation is not None:
                how = f"for every such share up to {percent(report.claim.range[1])} "
        text = (
            f"The performance on new clusters was estimated {how}with {_bootstrap(report)}: increasing "
            "shares of validation rows were put into training, the performance on the others was "
            "measured, and the curve was extrapolated to the point without leakage (estimator "
            f"{estimator_words(report)}; {refits})."
        )
    if not report.leakage.is_known and report.fragments is not None:
        text += (
            " For every share of rows in split clusters up to 50% it was estimated from the "
            f"performance on rows whose clusters were split, measured by {BREAKING}."
        )
    if not report.refit.is_full:
        text += (
            " Part of the model kept what it had learned from all rows, so that these losses are "
            "lower bounds."
        )
    return text


def _by_doses(report: AuditReport, refits: str) -> str:
    """Return how e0 was solved from the losses by dose."""
    rate = "that share of wrong identifiers"
    if report.e0 is None:
        rate = "every share of wrong identifiers up to 50%"
    return (
        "The performance on new clusters was estimated by doses, a variant of the binomial block "
        "bootstrap (Barnes and Dubrawski, 2017, 2019): in each refit some rows of every validation "
        "cluster were put into training and as many training rows were held back, so that the same "
        "rows were scored with different numbers of rows of their own cluster in training. With the "
        f"distribution of these numbers under {rate}, the effect of each number was solved from the "
        "differences within rows and taken out of the score by identifiers; kinds of effects were "
        f"averaged by their evidence ({refits})."
    )


def _bootstrap(report: AuditReport) -> str:
    """Return the published method, and in what this one differs from it."""
    others = [
        *(["training sets drawn without replacement"] if report.plan.scheme == "subset" else []),
        *(["rows leaking in both directions"] if report.claim.p0_validation != 0 else []),
        *(["another estimator"] if report.plan.method in OWN_METHODS else []),
    ]
    name = "binomial block bootstrap (Barnes and Dubrawski, 2017, 2019"
    return f"a variant of the {name}; {', '.join(others)})" if others else f"the {name})"


def _results(report: AuditReport) -> str:
    low, high = report.e0_interval
    word, ends = loss_words(report.subject.loss), report.loco_interval
    sure = confidence_of(report)
    corrected = f"{number(report.e0)} ({sure} interval {number(low)} to {number(high)})"
    if high is None:
        corrected = at_least(report)
    elif report.e0 is None:
        corrected = f"between {number(low)} and {number(high)} ({sure})"
    text = (
        f"The {word} was {number(report.iid)} when clusters were ignored, {number(report.loco)} (95% "
        f"interval {number(ends[0])} to {number(ends[1])}) {folds_words(report)}, and "
        f"{corrected} on new clusters after correction."
    )
    if is_half(report):
        text += " That is the value for half of the limit; the interval is for none to all of it."
    limit = report.e0_secant
    if limit is not None:
        above = ", above the estimate here" * (report.e0 is not None and limit > report.e0)
        text += (
            " If the loss curve is convex, the loss on new clusters is at least "
            f"{number(limit)} (one-sided 95% limit of a secant){above}."
        )
    if report.plan.n_validated < FEW_CLUSTERS:
        text += (
            f" The intervals speak of new rows of the same clusters: {report.plan.n_validated} are "
            "too few to speak of others."
        )
    return text


def _threshold(report: AuditReport) -> str:
    limit = f"the threshold of {number(report.threshold)}"
    answer = {
        BELOW: f"All of the interval is below {limit}.",
        ABOVE: f"All of the interval is at or above {limit}.{unsure(report)}",
    }.get(compare_with_threshold(report), f"Whether that is below {limit} is open.")
    return f"{answer} {explain_tipping(report)}"


def _test(report: AuditReport) -> str:
    test = report.test
    verb = "rejected" if test.rejected else "did not reject"
    low, high = (number(end) for end in test.interval)
    return (
        f"A one-sided test ({test.method}, {test.units} {test.unit}) {verb} that the model gains "
        f"nothing from rows of the validation clusters in training (p = {test.pvalue:.2g}; in "
        f"{_test_sets(report)} the loss fell by {number(test.effect)}, 90% interval {low} to {high})."
    )


def _corrected(report: AuditReport) -> list[str]:
    """Return how ordinary cross-validation was corrected for correlated rows, where it was."""
    cvc = report.cvc
    if cvc is None:
        return []
    names = joined([repr(group.name) for group in cvc.groups])
    model = "logistic" if cvc.task == "classification" else "linear"
    effects = "normal random intercepts" if cvc.field is None else "a Gaussian random field"
    start = (
        f"By cross-validation on {cvc.folds} folds of rows the {loss_words(cvc.loss)} was "
        f"{value_words(cvc.cv, cvc.cv_interval)}; its bias by the correlation of rows within {names} "
        f"(Yuval and Rosset, 2025; {model} working model with {effects}, {cvc.draws} simulated "
        f"samples, engine {cvc.engine!r}, working model {cvc.working!r})"
    )
    if cvc.cvc is None:
        return [f"{start} could not be estimated."]
    whole = ""
    if cvc.grouped is not None:
        whole = (
            f" With whole groups of {cvc.grouped_by!r} left out it was "
            f"{value_words(cvc.grouped, cvc.grouped_interval)}."
        )
    return [
        f"{start} was estimated as {value_words(cvc.bias, cvc.bias_interval)}, so that "
        f"{value_words(cvc.cvc, cvc.interval)} is to be expected {scope_words(cvc)}.{whole} This takes "
        "group identifiers as right, and features as free of group effects."
    ]


def _software(report: AuditReport) -> str:
    return f"Software: mlflow-b3 {report.version} (seed {report.plan.seed}, data digest {report.subject.data_digest})."
