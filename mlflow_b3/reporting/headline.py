"""The answer of an audit in a word and a few sentences: is the score inflated, and by how much."""

import math
from dataclasses import dataclass, replace

from mlflow_b3.auditing.findings import LEAST_AGREEMENT, ids_remedy, original_words
from mlflow_b3.auditing.report import AuditReport
from mlflow_b3.measurement.refits import FEW_CLUSTERS
from mlflow_b3.reporting.cvc_sentences import summarise_cvc
from mlflow_b3.reporting.doses import is_shrunk
from mlflow_b3.reporting.phrases import (
    NOT_FINITE,
    confidence_of,
    folds_words,
    ids_are_right,
    is_finite,
    new_clusters,
    premise_of,
    shares_clusters,
    thing_of,
)
from mlflow_b3.results import Result, interval_words, loss_words, number, percent, signed

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
#: The same in words, for scores of which more is better.
OTHERWISE = {BELOW: "above", ABOVE: "at or below"}
#: Whether the score by the cluster ids was shown to be optimistic.
SHOWN, NOT_SHOWN, OPEN = "shown", "not shown", "open"
#: A score holds if, at the upper end of the interval, new clusters cost no more than this share of
#: the model's advantage over the best constant prediction.
TOLERATED_SHARE = 0.2
#: Fewer clusters show nothing, even if the score drops in all of them: if each were as likely to go
#: up as down, all would drop in more than one of 20 cases (2⁻⁴ > 0.05).
FEWEST_TO_SHOW = 5
#: The finding that a feature gives away the target.
GIVEN_AWAY = "B343"
LEAVES_ROOM = "inflation was not shown, but the interval leaves room for"
#: In place of a tipping point.
NOT_SHOWN_BY_DATA = "There is no tipping point: these data cannot show what wrong ids would do."
STILL = "The model would still"
#: The largest split rate of a sensitivity curve, which is a limit: no rate of that size can be given.
ALL = "100%"
STILL_BEATS = f"{STILL} beat a constant guess"
TRAINING_ROWS = "of the training rows of a fold belonged to its validation clusters"
#: What would help where nothing is known about the ids.
GIVE_A_RATE = "Give cluster_error or split_rate, or have a sample of rows resolved by hand."


@dataclass(frozen=True, kw_only=True)
class Headline(Result):
    """The answer to the question whether a reported score can be relied on.

    Attributes
    ----------
    word : str
        One of `WORDS`. It is not the verdict of a policy.
    sentence : str
        The scores behind the word, and whether the model beats a constant guess; or why nothing can be
        told, and what would help.
    premise : str
        What the sentence rests on: the rate of wrong ids, the interval of e0, and what remains open.
    gap : str
        The worst score less the reported one; empty where it is not known.
    """

    word: str
    sentence: str
    premise: str = ""
    gap: str = ""

    @property
    def sign(self) -> str:
        """The icon of the word."""
        return SIGNS[self.word]

    @property
    def state(self) -> str:
        """The style of the word: `bad`, `open`, `good` or `unknown`."""
        return STATES[self.word]

    @property
    def short(self) -> str:
        """Sign, word and gap, for a tag or a cell."""
        return f"{self.sign} {self.word}" + f" ({self.gap})" * bool(self.gap)

    @property
    def answer(self) -> str:
        """Sign, word and sentence on one line."""
        return f"{self.sign} {self.word}: {self.sentence[:1].lower()}{self.sentence[1:]}"

    @property
    def told(self) -> str:
        """The sentence and its premise."""
        return f"{self.sentence} {self.premise}".strip()

    def __str__(self) -> str:
        """Sign, word, sentence and premise on one line."""
        return " ".join(filter(None, (self.answer, self.premise)))


def headline_of(report: AuditReport) -> Headline:
    """Return the answer of an audit in a word and a few sentences.

    The word reflects the worst of three comparisons: the score by rows (IID) with the score by
    cluster ids (LOCO), and each of them with e0.

    `Inflated`
        One of them shows inflation: LOCO's interval lies above IID, the interval of e0 lies above
        IID or LOCO, or the learner benefits from leaked rows and rows are known to have leaked. At
        least `FEWEST_TO_SHOW` clusters are needed.
    `Holds`
        None of them shows inflation, the data can show it, and the upper end of e0's interval leaves
        at least four fifths of the advantage over the best constant prediction.
    `Misses the threshold`
        Not inflated, and all of e0's interval is at or above the given threshold.
    `Cannot tell`
        The data or the evidence do not decide: clusters without a second row, few clusters, an
        unknown share of wrong ids, a model without errors or without skill, a wide interval.
    `Not known`
        The audit was stopped early, or its numbers are not finite.
    """
    answer = _answer(report)
    gap = signed(_worst(report) - report.iid, beside=report.iid) if is_finite(report) else ""
    premise = (answer.premise + summarise_cvc(report)).strip()
    return replace(answer, premise=premise, gap=gap)


def _answer(report: AuditReport) -> Headline:
    if not is_finite(report):
        return Headline(word=UNKNOWN, sentence=NOT_FINITE)
    scores = f"{_upper(_scores(report))}{_skill(report)}"
    premise = _premise(report)
    if report.partial:
        assert report.refits is not None
        done = f"{report.refits.done} of {report.refits.planned}"
        stopped = f"The audit was stopped after {done} refits, so nothing is decided."
        return Headline(word=UNKNOWN, sentence=f"{stopped} So far: {scores}", premise=premise)
    uninformative = _uninformative(report)
    if uninformative:
        reported = f"{_upper(_scores(report))}."
        return Headline(word=CANNOT_TELL, sentence=uninformative, premise=reported)
    if report.plan.n_validated < FEWEST_TO_SHOW:
        return _undecided(report, _few(report), scores)
    if _inflated(report):
        doubt = "" if _unchecked(report) else _doubt(report)  # unchecked scores concern e0 only
        if doubt and report.plan.threshold_given and doubt in premise:
            premise += " The inflation is uncertain for the same reason."
        elif doubt:
            premise = _premise(report, told=doubt) + unsure(report)
        worse = ""
        if report.e0 is None and not report.leakage.is_known:
            worse = " Wrong ids would make it worse; by how much is not known."
        return Headline(word=INFLATED, sentence=scores + _second(report) + worse, premise=premise)
    if report.e0 is None and not report.leakage.is_known:
        return _without_rate(report, scores)
    compared = compare_with_threshold(report)
    if report.plan.threshold_given and compared == ABOVE:
        word = CANNOT_TELL if _doubt(report) else MISSED
        missed = f"{_upper(_scores(report))}{_missed(report)}"
        return Headline(word=word, sentence=missed, premise=premise + unsure(report))
    doubt = _hidden(report) or _doubt(report) or _room(report)
    if doubt:
        scores = f"{_upper(_scores(report))}." if "constant guess" in doubt else scores
        return _undecided(report, doubt, scores)
    undecided = report.plan.threshold_given and compared != BELOW
    word = CANNOT_TELL if undecided else HOLDS
    return Headline(word=word, sentence=scores, premise=premise)


def _upper(text: str) -> str:
    return text[0].upper() + text[1:]


def _scores(report: AuditReport) -> str:
    """Return the reported score and the worse of the other two."""
    reported = f"reported {loss_words(report.subject.loss)} {number(report.iid)}"
    worst = _worst(report)
    gap = signed(worst - report.iid, beside=worst)
    if worst == report.e0:
        more = " or more" if report.e0_interval[1] is None else ""
        return f"{reported}, on {new_clusters(report)} {number(worst)}{more} ({gap})"
    return f"{reported}, {folds_words(report)} {number(worst)} ({gap})"


def _worst(report: AuditReport) -> float:
    """Return the worse of LOCO and e0; LOCO if e0 rests on nothing that was checked."""
    if report.e0 is None or _unchecked(report):
        return report.loco
    worse = min if report.subject.greater_is_better else max
    return worse(report.e0, report.loco)


def _second(report: AuditReport) -> str:
    """Return what is known about LOCO, unless it is the worst score."""
    if _worst(report) == report.loco or ids_are_right(report):
        return ""
    shown = {
        SHOWN: "inflated as well",
        NOT_SHOWN: "inflation not shown",
        OPEN: "whether it is inflated remains open",
    }[loco_inflation(report)]
    return f" {_upper(folds_words(report))}: {number(report.loco)}, {shown}."


def _skill(report: AuditReport) -> str:
    """Return whether the worst score is any good: better than that of a constant guess."""
    constant = report.constant_loss
    if constant is None and not report.plan.threshold_given:
        constant = report.threshold
    if constant is None:
        return "."
    guess = f"a constant guess ({number(constant)})"
    if _compared(report, constant) == BELOW:
        return f", better than {guess}."
    worst = _worst(report)
    if _compared(report, constant) == ABOVE:
        return f", no better than {guess}."
    if (worst <= constant) if report.subject.greater_is_better else (worst >= constant):
        return f", not shown to be better than {guess}."
    return f". Whether it beats {guess} remains open."


def _missed(report: AuditReport) -> str:
    """Return how the worst score compares with a threshold it misses, and with a constant guess."""
    limit, skill = f", no better than the threshold ({number(report.threshold)})", _skill(report)
    if skill.startswith(", no better than "):
        return f"{limit} or {skill.removeprefix(', no better than ')}"
    if skill.startswith(", not shown"):
        return f"{limit}, and {skill.removeprefix(', ')}"
    return f"{limit}{' but' * skill.startswith(', better')}{skill.removeprefix(',')}"


def _premise(report: AuditReport, *, told: str = "") -> str:
    """Return e0 with its premise and interval, compared with a given threshold.

    A reason that is `told` elsewhere is not repeated.
    """
    if report.e0 is None and not report.leakage.is_known:
        return _unknown_rate(report)
    start = f"{premise_of(report)}, the {_loss(report)}"
    if report.threshold is None:
        return f"{start}."
    given, compared = report.plan.threshold_given, compare_with_threshold(report)
    limit = f"the threshold of {number(report.threshold)}"
    words = OTHERWISE if report.subject.greater_is_better else {}
    if compared != UNDECIDED:
        told = f", all of it {words.get(compared, compared)} {limit}." if given else "."
        return f"{start}{told}"
    because = _hidden(report) or _doubt(report)
    repeated = because == told or not _ends_below(report, report.threshold)
    reason = "" if not because or repeated else f", because {because}"
    if given:
        return f"{start}. Whether it is {words.get(BELOW, BELOW)} {limit} remains open{reason}."
    return (
        f"{start}. How it compares with a constant guess remains open{reason}."
        if reason
        else f"{start}."
    )


def _unknown_rate(report: AuditReport) -> str:
    help_ = "" if report.plan.n_validated < FEW_CLUSTERS else f" {GIVE_A_RATE}"
    return (
        f"How many values of {report.subject.cluster} are wrong is not known, so neither is the "
        f"{loss_words(report.subject.loss)} on {new_clusters(report)}.{help_}"
    )


def _without_rate(report: AuditReport, scores: str) -> Headline:
    """Return the answer where nothing is known about the ids: the tipping point, then the scores."""
    doubt, tipping = _doubt(report), explain_tipping(report)
    if tipping.startswith(STILL_BEATS) and "remains open" in scores:  # of the same guess
        sure = _sure_up_to(report)
        estimate = tipping.removesuffix(sure).removesuffix(".")
        told = sure.strip() or "Its interval leaves that open."
        tipping = f"By the estimate, {estimate[0].lower()}{estimate[1:]}. {told}"
        scores = f"{_upper(_scores(report))}."
    return Headline(
        word=CANNOT_TELL,
        sentence=f"{tipping} {scores}",
        premise=_unknown_rate(report) + (f" {_upper(doubt)}." if doubt else ""),
    )


def _undecided(report: AuditReport, doubt: str, scores: str) -> Headline:
    """Return the answer where something is in doubt, with what would help."""
    why = f"{_upper(doubt)}{_remedy(report, doubt)}."
    premise = _premise(report, told=doubt)
    return Headline(word=CANNOT_TELL, sentence=f"{why} {scores}", premise=premise)


def _remedy(report: AuditReport, doubt: str) -> str:
    """Return what would remove a doubt, where that is known."""
    if doubt == _few(report):
        return f"; at least {FEW_CLUSTERS} are needed"
    if doubt == _no_guess(report) and not report.plan.threshold_given:
        return "; give threshold= to compare it with what is good enough"
    if not doubt.startswith(LEAVES_ROOM):
        return ""
    found = report.conclusion.dose
    if found is None:
        return "; more clusters or a larger budget would narrow it"
    parts = found.variance
    if parts.ids > max(parts.clusters, parts.refits):
        return f"; {ids_remedy(report)}"
    return f"; {'more clusters' if parts.clusters >= parts.refits else 'a larger budget'} would narrow it"


def _uninformative(report: AuditReport) -> str:
    """Return why these data cannot show inflation at all; nothing where they can."""
    # no more clusters than this have a second row
    mates = report.subject.n_rows - report.subject.n_clusters
    if mates < FEW_CLUSTERS:
        few = "no cluster has" if mates <= 0 else f"at most {mates} clusters have"
        return (
            f"{_upper(few)} a second row, so the data cannot show what rows of a cluster reveal "
            "about each other. Use ids that repeat: patients rather than visits."
        )
    if any(finding.code == GIVEN_AWAY for finding in report.findings):
        return "A feature gives away the target, so the score says nothing about new clusters."
    losses = report.as_losses
    if losses.loco <= 0 == report.subject.loss_floor and losses.iid <= 0:
        return (
            "The model makes no error on any held-out row, as happens if a feature contains the target. "
            "Check the features first."
        )
    return ""


def _inflated(report: AuditReport) -> bool:
    """Return whether any of the comparisons shows inflation."""
    report = report.as_losses
    if loco_inflation(report) == SHOWN:
        return True
    if not _same_rows(report):
        return False
    gap = report.conclusion.loco_gap_interval
    if gap is None:
        # both score the same rows, so their difference is less noisy than either of them
        by_clusters, noise = report.iid < report.loco_interval[0], 0.0
    else:
        by_clusters, noise = gap[0] > 0, (gap[1] - gap[0]) / 2
    return by_clusters or (not _unchecked(report) and _is_above_rows(report, noise))


def _is_above_rows(report: AuditReport, noise: float) -> bool:
    """Return whether e0 is above the score by rows, whose noise is taken into account."""
    low = report.e0_interval[0]
    if report.e0 is None:
        return low - report.iid > noise
    return report.e0 - report.iid > math.hypot(report.e0 - low, noise)


def _same_rows(report: AuditReport) -> bool:
    return report.plan.n_validated == report.subject.n_clusters


def loco_inflation(report: AuditReport) -> str:
    """Return whether the score by the cluster ids was shown to be optimistic.

    `SHOWN`; `NOT_SHOWN` if the learner does not benefit from leaked rows, or the correction is not
    upwards, too small to be seen in the numbers as they are printed, or within the noise of the effects
    by dose; or `OPEN` if too little is known about the ids or the refits.
    """
    report = report.as_losses
    known = report.e0 is not None and not _unchecked(report)
    low, high = report.claim.range or (0.0, 1.0)
    gap = 0.0 if _equals_loco(report) or is_shrunk(report) else report.inflation or 0.0
    profits = report.test.rejected
    beyond = report.e0_interval[0] > report.loco and not _unchecked(report)
    beyond = beyond and (report.e0 is None or gap > 0)
    if beyond or (profits and known and low > 0 and gap > 0):
        return SHOWN
    if profits and shares_clusters(report):
        return SHOWN
    whole = report.refit.is_full
    return NOT_SHOWN if known and whole and (not profits or gap <= 0 or high == 0) else OPEN


def _equals_loco(report: AuditReport) -> bool:
    """Return whether e0 and LOCO are the same as they are printed, or nearly so."""
    if report.e0 is None:
        return False
    difference = signed(report.e0 - report.loco, beside=report.loco)
    return number(report.e0) == number(report.loco) or difference == signed(0.0)


def compare_with_threshold(report: AuditReport) -> str:
    """Return whether e0's interval is entirely below the threshold, at or above it, or neither.

    `BELOW` also needs evidence that can show a small loss: refits of the whole model, checked or
    stated shares, enough clusters, and folds that keep known clusters together. Of scores of which
    more is better, 1 - score is compared.
    """
    return UNDECIDED if report.threshold is None else _compared(report, report.threshold)


def _compared(report: AuditReport, limit: float) -> str:
    """Return how e0's interval compares with a limit in the units of the score."""
    limit = 1 - limit if report.subject.greater_is_better else limit
    report = report.as_losses
    if not is_finite(report):
        return UNDECIDED
    low, high = report.e0_interval
    point = low if report.e0 is None else report.e0
    if low >= limit and point >= limit:
        return ABOVE
    if _ends_below(report, limit) and high is not None and low <= high:
        return UNDECIDED if _hidden(report) or _doubt(report) else BELOW
    return UNDECIDED


def _ends_below(report: AuditReport, limit: float) -> bool:
    """Return whether e0 and its interval, if known, stay better than a limit of the score."""
    limit = 1 - limit if report.subject.greater_is_better else limit
    report = report.as_losses
    _, high = report.e0_interval
    return all(value is None or value < limit for value in (report.e0, high))


def _hidden(report: AuditReport) -> str:
    """Return why the loss may lie above its interval; an empty string if it cannot."""
    if not report.refit.is_full:
        return "part of the model was not retrained and keeps what it learned from all rows"
    if shares_clusters(report):
        return "the folds have rows of the same cluster id on both sides"
    if report.e0 is None and report.linkage is not None:
        return "the evidence does not exclude that all validation rows were seen"
    if report.e0 is None and report.claim.range is not None:
        return "the rows do not reveal how many of them leaked"
    if not report.leakage.is_known and report.fragment_sensitivity is None:
        return "the effect of split clusters could not be measured"
    return "its interval has no upper limit" if report.e0_interval[1] is None else ""


def _doubt(report: AuditReport) -> str:
    """Return why the interval may be off on either side; an empty string if nothing suggests it."""
    if _unchecked(report):
        return "nobody has checked the match probabilities that it is based on"
    if report.plan.n_validated < FEW_CLUSTERS:
        return _few(report)
    if report.refit.agreement is not None and not report.refit.agreement >= LEAST_AGREEMENT:
        return f"the refits are unlike {original_words(report.subject)}"
    if not report.accurate and report.leakage.misplaces:
        return "the solver's numbers may be inaccurate"
    return ""


def _few(report: AuditReport) -> str:
    return f"{report.plan.n_validated} clusters are too few to generalise to new ones"


def _room(report: AuditReport) -> str:
    """Return why it cannot be said that the score holds; an empty string if it holds."""
    losses = report.as_losses
    constant, high = losses.constant_loss, losses.e0_interval[1]
    base = losses.iid if _same_rows(losses) else losses.loco
    if losses.e0 is None or high is None:
        return "there is no upper limit on the loss on new clusters"
    if constant is None:
        within = report.plan.threshold_given and compare_with_threshold(report) == BELOW
        return "" if within else _no_guess(report)
    if max(losses.e0, losses.loco) >= constant:
        return (
            f"the model is no better than a constant guess ({number(report.constant_loss)}), so leakage "
            "has no advantage to inflate"
        )
    if high - base > TOLERATED_SHARE * (constant - base):
        room = base - high if report.subject.greater_is_better else high - base
        left = signed(room, beside=high)
        return f"{LEAVES_ROOM} {left}"
    return ""


def _no_guess(report: AuditReport) -> str:
    return f"the {thing_of(report)} of a constant guess is not known"


def unsure(report: AuditReport) -> str:
    """Return the sentence that says why an answer is uncertain, or an empty string."""
    doubt = _doubt(report)
    return f" This is uncertain, because {doubt}." if doubt else ""


def _loss(report: AuditReport) -> str:
    """Return the loss on new clusters, as far as it is known."""
    low, high = report.e0_interval
    word = f"{loss_words(report.subject.loss)} on {new_clusters(report)}"
    if high is None:
        return f"{word} is {at_least(report)}"
    sure = confidence_of(report)
    if report.e0 is None:
        return f"{word} lies somewhere between {number(low)} and {number(high)} ({sure} confidence)"
    ends = interval_words((low, high)).replace(" – ", " to ")
    return f"{word} is about {number(report.e0)} ({sure} interval {ends})"


def at_least(report: AuditReport) -> str:
    """Return the loss on new clusters if it has no upper limit."""
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


def tipping_rates(report: AuditReport) -> str:
    """Return the rates of wrong ids at which the loss reaches the threshold, without a sentence."""
    losses = report.as_losses
    if losses.threshold is None or losses.loco >= losses.threshold or not is_finite(report):
        return explain_tipping(report)
    if _uninformative(report) or shares_clusters(report):
        return NOT_SHOWN_BY_DATA
    tips = _tips(report)
    what = "the threshold" if report.plan.threshold_given else "a constant guess"
    limit = number(report.threshold)
    reached = " or ".join(f"{percent(tip)} {rows}" for tip, _, rows, _ in tips if tip is not None)
    missed = [(_most(most, rows), rows) for tip, most, rows, _ in tips if tip is None]
    if not report.refit.is_full:
        unknown = (
            f"not known for {' or '.join(rows.removeprefix('of ') for _, rows in missed)}"
            * bool(missed)
        )
        latest = f"{reached} at the latest" * bool(reached)
        return f"{'; '.join(filter(None, (latest, unknown)))} ({what}: {limit})"
    never = " or ".join(most for most, _ in missed)
    possible = _possible_from(report)
    could = "" if possible is None else f", {percent(possible)} could"
    if not reached:
        return f"none: not even {never} would make it no better than {what} ({limit}){could}"
    but = f"; {never} would not" * bool(never)
    return f"{reached} would make it no better than {what} ({limit}){could}{but}"


def _possible_from(report: AuditReport) -> float | None:
    """Return the cluster error from which the interval no longer excludes the threshold.

    None if it does not exclude it without wrong ids either, or excludes it as far as e0 does.
    """
    losses = report.as_losses
    curve, limit = losses.sensitivity, losses.threshold
    if curve.error is None or limit is None or not curve.high or curve.high[0] >= limit:
        return None
    found = replace(curve, e0=curve.high).tipping_error(limit)
    tip = report.tipping_cluster_error
    if found is None or (tip is not None and percent(found) == percent(tip)):
        return None
    return found


def _sure_up_to(report: AuditReport) -> str:
    """Return up to which rate the interval excludes a threshold that e0 never reaches, if not at all."""
    possible = _possible_from(report)
    if possible is None:
        return ""
    return f" By the interval, this is sure only up to {percent(possible)} wrong ids."


def _most(rate: str, rows: str) -> str:
    """Return the largest rate that was tried, in words where it is all rows."""
    return (
        f"all {rows.removeprefix('of ').removeprefix('the ')}" if rate == ALL else f"{rate} {rows}"
    )


def _tips(report: AuditReport) -> list[tuple[float | None, str, str, str]]:
    """Return the tipping point, the largest rate that was tried and two names of it, for each rate."""
    curve = report.sensitivity
    most = percent(max(curve.error or curve.p0))
    if curve.error is None:
        rows = "of training rows from validation clusters"
        tips = [(report.tipping_p0, most, rows, TRAINING_ROWS)]
    else:
        told = "of the rows carried a wrong id"
        tips = [(report.tipping_cluster_error, most, "wrong ids", told)]
    if report.fragment_sensitivity is not None:
        split = "of the rows belonged to split clusters"
        tips.append((report.tipping_split_rate, ALL, "of rows in split clusters", split))
    return tips


def explain_tipping(report: AuditReport) -> str:
    """Return how wrong the ids would have to be before the loss reaches the threshold."""
    if report.threshold is None:
        return f"No threshold was given for this {thing_of(report)}, so there is no tipping point."
    if not is_finite(report):
        return NOT_FINITE
    if _uninformative(report) or shares_clusters(report):
        return NOT_SHOWN_BY_DATA
    limit = number(report.threshold)
    given = report.plan.threshold_given
    losses = report.as_losses
    assert losses.threshold is not None
    if losses.loco >= losses.threshold:
        what = f"the threshold of {limit}" if given else f"a constant guess ({limit})"
        return (
            f"There is no tipping point: {folds_words(report)}, the {thing_of(report)} is "
            f"{number(report.loco)}, which is already no better than {what}."
        )
    tips = _tips(report)
    reached = [f"{percent(tip)} {rows}" for tip, _, _, rows in tips if tip is not None]
    missed = [_most(rate, rows) for tip, rate, _, rows in tips if tip is None]
    fails = (
        f"reach the threshold of {limit}"
        if given
        else f"be no better than a constant guess ({limit})"
    )
    better = OTHERWISE[BELOW] if report.subject.greater_is_better else BELOW
    stays = (
        f"stay {better} the threshold of {limit}" if given else f"beat a constant guess ({limit})"
    )
    if not report.refit.is_full:
        hidden = "at an unknown rate (the visible part of the bias does not reach it even if"
        told = [f"at the latest if {tip}" for tip in reached] + [
            f"{hidden} {tip})" for tip in missed
        ]
        return f"Tipping point: the model would {fails} {'; '.join(told)}."
    if not reached:
        return f"{STILL} {stays} even if {' or if '.join(missed)}.{_sure_up_to(report)}"
    possible = _possible_from(report)
    but = f", but not even if {missed[0]}" if missed else ""
    could = (
        ""
        if possible is None
        else f" By the interval, it could from {percent(possible)} wrong ids on."
    )
    return f"Tipping point: the model would {fails} if {' or if '.join(reached)}{but}.{could}"
