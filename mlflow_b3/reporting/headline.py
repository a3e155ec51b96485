"""The answer of an audit in a word and a few sentences: inflated, by how much, against the threshold."""

import math
from dataclasses import dataclass, replace

from mlflow_b3.auditing.findings import LEAST_AGREEMENT, original_words
from mlflow_b3.auditing.report import AuditReport
from mlflow_b3.measurement.refits import FEW_CLUSTERS
from mlflow_b3.reporting.cvc_sentences import summarise_cvc
from mlflow_b3.reporting.phrases import (
    NOT_FINITE,
    confidence_of,
    folds_words,
    is_finite,
    premise_of,
    shares_clusters,
)
from mlflow_b3.results import Result, loss_words, number, percent, signed

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
        limit = f"the {number(report.threshold)} of the best constant prediction"
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
    if loco_inflation(report) == SHOWN:
        return True
    if not _same_rows(report):
        return False
    gap = report.conclusion.loco_gap_interval
    if gap is None:
        # of the same rows, so that the noise of their difference is smaller than that of one of them
        by_clusters, noise = report.iid < report.loco_interval[0], 0.0
    else:
        by_clusters, noise = gap[0] > 0, (gap[1] - gap[0]) / 2
    return by_clusters or (not _unchecked(report) and _is_above_rows(report, noise))


def _is_above_rows(report: AuditReport, noise: float) -> bool:
    """Return whether e0 is above the score by rows, which has noise of its own."""
    low = report.e0_interval[0]
    if report.e0 is None:
        return low - report.iid > noise
    return report.e0 - report.iid > math.hypot(report.e0 - low, noise)


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
        return "" if within else "what a constant prediction would score is not known"
    if max(report.e0, report.loco) >= constant:
        return (
            f"the model is no better than the best constant prediction ({number(constant)}), so "
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
        what = f"the {number(report.threshold)} of the best constant prediction"
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
