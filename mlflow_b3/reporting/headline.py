"""The answer of an audit in a word and a sentence."""

from dataclasses import dataclass, replace

from mlflow_b3.claims import MATCH_COLUMN
from mlflow_b3.measurement.resampling import FEW_CLUSTERS
from mlflow_b3.reporting.cvc_pair import summarise_cvc
from mlflow_b3.reporting.findings import LEAST_AGREEMENT
from mlflow_b3.reporting.premises import (
    NOT_FINITE,
    confidence_of,
    folds_words,
    is_finite,
    premise_of,
    shares_clusters,
)
from mlflow_b3.reporting.report import AuditReport
from mlflow_b3.results import Result
from mlflow_b3.wording import loss_words, number

BELOW = "Below the threshold"
ABOVE = "Above the threshold"
UNDECIDED = "Undecided"
INFLATED = "Score inflated"
NOT_SHOWN = "No inflation shown by cluster ids"
UNKNOWN = "Not known"
STOPPED = "Stopped early"
WORDS = (BELOW, ABOVE, UNDECIDED, INFLATED, NOT_SHOWN, UNKNOWN, STOPPED)


@dataclass(frozen=True, kw_only=True)
class Headline(Result):
    """The answer to the question that an audit was asked.

    Attributes
    ----------
    word : str
        One of `WORDS`. It compares the loss on new clusters with the threshold that was given; where
        none was, it says whether the score by the cluster ids is too good. It is not a verdict of a
        policy.
    sentence : str
        The loss on new clusters, under which condition it holds, and what makes it so.
    """

    word: str
    sentence: str


def headline_of(report: AuditReport) -> Headline:
    """Return the answer of an audit in a word and a sentence.

    `Below the threshold` needs e0 *and* all of its interval below it, and evidence that can show
    that a loss is small: refits of the whole model, shares that somebody checked or stated, enough
    clusters to speak of others, folds that keep known clusters together. `Above the threshold` needs
    e0 and all of its interval at or above it; the sentence says what makes that unsure. A number
    that is not finite decides nothing. Corrected cross-validation is told behind it and decides
    nothing: it takes ids as right. An audit that was stopped early decides nothing either: who
    watches the estimate can stop when it pleases.
    """
    answer = _answer(report)
    return replace(answer, sentence=answer.sentence + summarise_cvc(report))


def _answer(report: AuditReport) -> Headline:
    if report.partial:
        assert report.refits is not None
        done = f"{report.refits.done} of {report.refits.planned}"
        told = (
            f"The audit was stopped after {done} refits. By these: {inflation_of(report).sentence}"
        )
        return Headline(word=STOPPED, sentence=told)
    if report.settings.threshold_given and report.threshold is not None and is_finite(report):
        return _against_threshold(report, report.threshold)
    return inflation_of(report)


def _against_threshold(report: AuditReport, threshold: float) -> Headline:
    low, high = report.e0_interval
    point = low if report.e0 is None else report.e0
    start = f"{premise_of(report)}, the {_loss(report)}"
    limit = f"the threshold of {number(threshold)}"
    if low >= threshold and point >= threshold:
        sentence = f"{start}, all of it at or above {limit}.{unsure(report)}"
        return Headline(word=ABOVE, sentence=sentence)
    doubt = _hidden(report) or _doubt(report)
    small = high is not None and low <= high < threshold and point < threshold
    if small and not doubt:
        return Headline(word=BELOW, sentence=f"{start}, all of it below {limit}.")
    if small or high is None:
        sentence = f"{start}. That it stays below {limit} is not shown, because {doubt}."
        return Headline(word=UNKNOWN if high is None else UNDECIDED, sentence=sentence)
    return Headline(
        word=UNKNOWN if report.e0 is None else UNDECIDED,
        sentence=f"{start}, which leaves open whether it is below {limit}.",
    )


def _hidden(report: AuditReport) -> str:
    """Return why the loss may be larger than all of its interval; nothing where it may not."""
    settings = report.settings
    if settings.refit_strength != "full":
        return "part of the model was not trained again and keeps what it learned from all rows"
    if shares_clusters(report):
        return "known clusters sit on both sides of the folds"
    if report.e0 is None and report.linkage is not None:
        return "the evidence leaves open that all validation rows were seen"
    if report.e0 is None and settings.claim is not None:
        return "the rows do not tell how many of them leaked"
    if settings.pattern == "unknown" and report.fragment_sensitivity is None:
        return "what split clusters would do could not be measured"
    return "nothing limits it from above" if report.e0_interval[1] is None else ""


def _doubt(report: AuditReport) -> str:
    """Return why the interval may be off on either side; nothing where nothing says so."""
    settings = report.settings
    if _unchecked(report):
        return "nobody has checked the match probabilities that it rests on"
    if settings.n_validated < FEW_CLUSTERS:
        return f"{settings.n_validated} clusters are too few to speak of others"
    if settings.refit_agreement is not None and not settings.refit_agreement >= LEAST_AGREEMENT:
        return "the refits are unlike the logged model"
    if not report.accurate and settings.pattern != "fragments":
        return "the solver was not sure of its numbers"
    return ""


def unsure(report: AuditReport) -> str:
    """Return the sentence that says why an answer is not sure; nothing where nothing says so."""
    doubt = _doubt(report)
    return f" That is not sure, because {doubt}." if doubt else ""


def inflation_of(report: AuditReport) -> Headline:
    """Return whether the score by the cluster ids is too good, in a word and a sentence."""
    if not is_finite(report):
        return Headline(word=UNKNOWN, sentence=NOT_FINITE)
    start = (
        f"{premise_of(report)}, the {_loss(report)}; cross-validation reports "
        f"{number(report.iid)} when it ignores clusters and {number(report.loco)} "
        f"{folds_words(report)}."
    )
    known = report.e0 is not None and not _unchecked(report)
    low, high = report.settings.claim or (0.0, 1.0)
    gap = report.inflation or 0.0
    profits = report.test.rejected
    beyond = report.e0_interval[0] > report.loco and not _unchecked(report)
    if beyond or (profits and known and low > 0 and gap > 0):
        return Headline(word=INFLATED, sentence=start + unsure(report))
    if profits and shares_clusters(report):
        why = "Known clusters sit on both sides of the folds, and the model profits from that."
        return Headline(word=INFLATED, sentence=f"{start} {why}{unsure(report)}")
    # of the same rows, so that the noise of their difference is smaller than that of one of them
    same = report.settings.n_validated == report.settings.n_clusters
    if same and report.iid < report.loco_interval[0]:
        start += " The first is too good."
    whole = report.settings.refit_strength == "full"
    if known and whole and (not profits or gap <= 0 or high == 0):
        why = (
            "That the second is too good was not shown: the test did not find that this model profits "
            "from leaked rows, which is no proof that it does not."
        )
        if profits:
            why = "The model profits from leaked rows, but by this premise the second is not too good."
        return Headline(word=NOT_SHOWN, sentence=f"{start} {why}")
    why = "how many ids are wrong is not known" if whole else _hidden(report)
    if known and whole:
        why = "it is not known that any row leaked"
    return Headline(
        word=UNKNOWN, sentence=f"{start} Whether the second is too good is open: {why}."
    )


def _loss(report: AuditReport) -> str:
    """Return the loss on new clusters with what is known of it."""
    low, high = report.e0_interval
    word = f"{loss_words(report.settings.loss)} on new clusters"
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
        return f"{low} with {confidence_of(report)} confidence"
    return f"at least about {number(report.e0)} ({low} with {confidence_of(report)} confidence)"


def _unchecked(report: AuditReport) -> bool:
    leak = report.linkage
    scores = leak is not None and leak.kind == "uncalibrated"
    return scores or report.p0_source in (MATCH_COLUMN, "match_probability")
