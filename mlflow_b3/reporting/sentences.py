"""What an audit found, what its charts show and what it leaves open, in sentences."""

import math

from mlflow_b3.auditing.findings import LEAST_AGREEMENT, NOTHING_CHANGED, original_words
from mlflow_b3.auditing.report import AuditReport, RefitSummary
from mlflow_b3.data.scores import is_mean
from mlflow_b3.estimation.bounds import CONFIDENCE
from mlflow_b3.estimation.fragments import estimate_fragments, seen_share
from mlflow_b3.estimation.leakage_test import LeakageTest
from mlflow_b3.estimation.problem import SeenShare
from mlflow_b3.measurement.refits import FEW_CLUSTERS
from mlflow_b3.refit.learner import CLASSES_READ
from mlflow_b3.reporting.cvc_sentences import describe_cvc, open_about_cvc
from mlflow_b3.reporting.doses import TITLE as DOSES_TITLE
from mlflow_b3.reporting.doses import curve_from_doses, doses_measured, explain_doses, is_shrunk
from mlflow_b3.reporting.headline import (
    NOT_SHOWN,
    OPEN,
    SHOWN,
    at_least,
    explain_tipping,
    loco_inflation,
)
from mlflow_b3.reporting.phrases import (
    NOT_FINITE,
    ROUTE_WORDS,
    clusters_noun,
    confidence_of,
    estimator_words,
    explain_linkage,
    explain_regression,
    fold_words,
    folds_words,
    ids_are_right,
    is_finite,
    is_half,
    is_mixture,
    premise_of,
    rate_of,
    sharpness_words,
    thing_of,
)
from mlflow_b3.results import article, loss_words, number, percent, shortened, signed

# --- What an audit found, in sentences that need no statistics to read

#: The split rate at which doses are compared when none was given.
DOSE_RATE = 0.2
#: In which training sets the leakage test compares losses.
SMALL_SETS = "small training sets"
DOSE_WORDS = {
    "uniform": "at a uniformly drawn cut",
    "halves": "in halves",
    "singles": "with one row breaking off",
}
NOT_OPTIMISTIC = "by this estimate not optimistic"


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
    """Return the loss on new clusters and the premise it holds under."""
    word = loss_words(report.subject.loss)
    if not is_finite(report):
        return NOT_FINITE
    if not report.refit.is_full:
        return (
            f"{premise_of(report)}, this model's {word} on clusters it has never seen is "
            f"{at_least(report)}. How much larger cannot be determined, because part of the model was "
            "not retrained and keeps what it learned from all rows."
        )
    sure, (low, high) = confidence_of(report), report.e0_interval
    if report.e0 is None:
        ends = f"lies between {number(low)} and {number(high)} ({sure} confidence)"
        if high is None:
            ends = f"is {at_least(report)}"
        return (
            f"How well this model does on new clusters is not known. {premise_of(report)}, its {word} there "
            f"{ends}. The tables below show what each rate would mean. "
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
    text = " This value assumes half of that limit; the interval covers none to all of it."
    if confidence_of(report) == percent(CONFIDENCE):
        return text
    return (
        f"{text} Because the limit may fail too, it holds with {confidence_of(report)} confidence."
    )


def _doses(report: AuditReport) -> str:
    """Return what the loss would be if clusters had split in other ways than the audit split them."""
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
    given = "in the given sizes" if report.linkage is None else "like those that were found"
    stated = DOSE_WORDS.get(report.plan.fragment_sizes, given)
    return f"{subject} if clusters split {stated}; it would be about {others}."


def _search(report: AuditReport) -> str:
    low, high = report.search.identified
    if report.dose is not None:
        return "The measured losses alone do not reveal the rate: they fit every rate."
    if report.search.flat:
        return (
            f"The loss curve alone does not reveal the rate: it fits every leaked share up to "
            f"{percent(high)} equally well."
        )
    return (
        f"The loss curve alone does not exclude leaked shares of {percent(low)} to {percent(high)} of "
        "the training rows; this range is not an estimate of the share."
    )


def explain_inflation(report: AuditReport) -> str:
    """Return how optimistic the uncorrected scores are, as far as that was shown."""
    word = loss_words(report.subject.loss)
    if not is_finite(report):
        return NOT_FINITE
    ignoring = f"Ignoring clusters, cross-validation reports {article(word)} {word} of {number(report.iid)}"
    second = f"{folds_words(report)} it is {number(report.loco)}"
    if report.e0 is None or report.inflation is None:
        return f"{ignoring}; {second}." + (
            " The second score is optimistic as well if ids are wrong."
            if report.test.rejected
            else ""
        )
    answer = loco_inflation(report)
    if not report.refit.is_full:
        shows = f"{number(report.inflation)} of the second score's bias shows."
        if report.inflation <= 0:
            shows = "the second shows no bias, which does not mean that it has none."
        found = "Both are optimistic" if answer == SHOWN else "How far off they are is not known"
        return f"{ignoring}; {second}. {found}; {shows}"
    losses = report.as_losses
    assert losses.e0 is not None
    first = _optimistic(losses.e0 - losses.iid, beside=report.iid)
    start = f"{ignoring}, {first}. {second[0].upper()}{second[1:]}"
    if ids_are_right(report):
        return f"{start}."
    gap = _optimistic(report.inflation, beside=report.loco)
    if report.inflation <= 0 or gap == NOT_OPTIMISTIC:
        return f"{start}, {gap}."
    half = ", if half of that limit leaked" if is_half(report) else ""
    noise = " This is within the noise: it may not be optimistic at all."
    if report.test.rejected and is_shrunk(report):
        noise = " How large this is remains uncertain."
    return f"{start}, {gap}{half}." + {
        NOT_SHOWN: noise,
        OPEN: " Whether it is optimistic at all is not known.",
    }.get(answer, "")


def _optimistic(gap: float, *, beside: float) -> str:
    """Return how optimistic a score is by the estimate of e0."""
    if signed(gap, beside=beside) == signed(0.0):
        return NOT_OPTIMISTIC
    if gap > 0:
        return f"by this estimate optimistic by {number(gap)}"
    return f"{NOT_OPTIMISTIC} (correction {number(gap)})"


def explain_test_of(report: AuditReport) -> str:
    """Return what the leakage test of an audit says, and what it does not say."""
    subject = report.subject
    added = "" if is_mean(subject.loss) else "what rows add to "
    thing = f"{added}the {thing_of(report)}" if subject.greater_is_better else "the loss"
    return explain_test(
        report.test,
        sets=sets_compared(report),
        thing=thing,
        greater_is_better=subject.greater_is_better,
    )


def sets_compared(report: AuditReport) -> str:
    """Return the kind of training sets in which the test compares losses."""
    # by doses, rows in unchanged folds are compared with held-back rows of refits of full size
    return SMALL_SETS if report.dose is None else "training sets of full size"


def explain_test(
    test: LeakageTest,
    *,
    sets: str = SMALL_SETS,
    thing: str = "the loss",
    greater_is_better: bool = False,
) -> str:
    """Return what the leakage test says, and what it does not say.

    Parameters
    ----------
    test : LeakageTest
        Of losses; its effect is how much other rows of the validation clusters lower them.
    sets : str
        In which training sets losses were compared.
    thing : str
        What was scored.
    greater_is_better : bool
        Whether a smaller loss is a larger score.
    """
    if not all(map(math.isfinite, (test.pvalue, test.effect, *test.interval))):
        return "The numbers of the leakage test are not finite, so nothing follows from it."
    ends = f"90% interval {number(test.interval[0])} to {number(test.interval[1])}"
    found = f"an effect of {number(test.detectable)} would have been found in four of five cases"
    less = ", smaller ones less often"
    if not test.detectable > 0:
        found, less = NOTHING_CHANGED, ""
    better = "raise" if greater_is_better else "lower"
    done = "raised" if (test.effect >= 0) == greater_is_better else "lowered"
    if test.rejected:
        return (
            f"The model benefits from leaked rows (p = {test.pvalue:.2g}): in {sets}, other rows of the "
            f"validation clusters {better} {thing} by {number(test.effect)} ({ends}). So if ids are wrong, "
            f"the score is optimistic. The test does not say that ids are wrong. {_form(test)}; {found}."
        )
    return (
        f"No evidence that the model benefits from leaked rows (p = {test.pvalue:.2g}). In {sets}, other "
        f"rows of the validation clusters {done} {thing} by "
        f"{number(abs(test.effect))} ({ends} for how much they {better} it). This does not prove that "
        f"leakage is harmless or that ids are right: {found}{less}. A rejection would have meant "
        f"that wrong ids make the score optimistic, not that ids are wrong. {_form(test)}."
    )


def _form(test: LeakageTest) -> str:
    units = f"{test.units} {test.unit}"
    if test.method == "welch":
        return f"It is the published form, on {units} without a row in common"
    scope = ", so it is about new rows of these clusters" if test.unit == "rows" else ""
    if test.method == "permutation":
        return (
            f"It is the permutation form, on {units} and {test.arrangements} rearrangements, whose "
            "null hypothesis is stronger: that rows do not depend on their cluster at all"
        )
    return f"It is the paired form, on {units}{scope}"


# --- What the charts of a report show, in words


def score_caption(report: AuditReport) -> str:
    """Return what the scores in a chart are."""
    subject = report.subject
    noun = clusters_noun(subject.cluster)
    text = (
        f"IID: folds of single rows, as scores are usually reported. LOCO: folds of whole {noun}, by "
        f"{subject.cluster}. e0: {noun} of which no row is in training."
    )
    if report.e0 is None:
        text += " For e0, only a range is known"
        text += "." if report.e0_interval[1] is not None else ", which has no upper end."
    elif not report.refit.is_full:
        text += " e0 is a lower bound; its bar has no upper end."
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
            "at s = 0. Its right end differs from what was measured if clusters that already are "
            "fragments gain less from being broken again."
        )
    text = _measuring(word)
    if report.path is not None:
        low, high = report.claim.range or (0.0, 0.0)
        middle = " All of this is for the middle of the given range." * (low < high)
        if report.path.exposure[0] == 0:
            return f"{text} No row is assumed to have leaked, so e0 is read at 0%.{middle}"
        return (
            f"{text} Rows that leaked through wrong ids are already in training, so the point without "
            f"leakage lies to the left, at {percent(report.path.exposure[0])}; there the curve gives e0."
            f"{middle}"
        )
    if not report.leakage.misplaces:
        return f"{text} Too many rows may have been seen to solve for e0."
    return (
        f"{text} The point without leakage lies to the left of it. How far is not known, because "
        "nothing is known about how many ids are wrong, so nothing is extrapolated here."
    )


def how_measured(report: AuditReport) -> str:
    """Return how e0 follows from what was measured."""
    return curve_caption(report) if report.dose is None else doses_measured()


def measured_caption(report: AuditReport) -> str:
    """Return how to read the measured curve if e0 follows from a mixture."""
    return (
        f"{_measuring(loss_words(report.subject.loss))} How steeply it falls shows how much this learner "
        "benefits from rows of the same cluster. For split clusters, e0 is solved from the mixture above, "
        "not read from this curve."
    )


def _measuring(word: str) -> str:
    return (
        f"Increasing shares of validation rows were put into training on purpose, and the {word} on the "
        "others was measured. At 0%, the folds are unchanged."
    )


def sensitivity_caption(report: AuditReport, *, split: bool) -> str:
    """Return how to read a sensitivity curve."""
    rate = {
        "split rate": "share of rows whose cluster was split",
        "cluster error": "share of rows with a wrong id",
    }.get(rate_of(report, split=split), "share of training rows that belong to validation clusters")
    text = f"The {thing_of(report)} on new clusters for every {rate}, which the data cannot reveal."
    if report.threshold is not None and not report.plan.threshold_given:
        text += (
            f" No threshold was given; {number(report.threshold)} is the {thing_of(report)} of a constant "
            "guess, the best prediction without features."
        )
    curve = report.fragment_sensitivity if split else report.sensitivity
    if curve is not None and curve.supported is not None:
        text += (
            f" Above {percent(curve.supported)}, fewer than one row in ten has no row of its cluster in "
            "training: there the curve is an extrapolation."
        )
    return text


# --- What an audit does not detect, and what one audit leaves open

SHARP_EFFECTS = (
    "Very sharp effects: the interval assumes that a row is affected through no more mates than its "
    "cluster has rows, at most 25."
)
OTHER_EFFECTS = (
    "Effects of particular rows: the estimate assumes that only the number of a row's mates in training "
    "matters, not which ones they are, and that wrong ids affect all rows alike."
)
LIMITS = (
    "How many ids are wrong: the same loss curve fits every rate. Rows resolved by hand "
    "reveal it; scores of record linkage do not.",
    "Leakage that is not about clusters: a feature that gives away the target, preprocessing fitted "
    "on all rows, future information.",
    "Unknown clusters: if rows depend on each other through something other than the cluster column, no "
    "split by that column shows it.",
    SHARP_EFFECTS,
    "Other populations: new clusters are assumed to be like those of this table.",
    "The corrected score has less bias and more variance than the uncorrected one. If leakage does "
    "not matter, the uncorrected one is as good.",
)


def limits_of(report: AuditReport) -> tuple[str, ...]:
    """Return what no audit by this method detects."""
    if report.dose is None:
        return LIMITS
    return tuple(OTHER_EFFECTS if limit == SHARP_EFFECTS else limit for limit in LIMITS)


GIVEN = "Whether the given rate is right; the sensitivity curve shows what other rates would mean."
UNCHECKED = "How far off the match probabilities are: nobody has checked them."
VACUOUS = "How many rows leaked: the given evidence excludes nothing."
#: What remains unknown about the leaked share, by its source.
SOURCES = {
    "none": "How many ids are wrong. Without that there is no single number for new clusters.",
    "p0": GIVEN,
    "cluster_error": GIVEN,
    "split_rate": GIVEN,
    "mixture": "How many rows leaked: the rows themselves give an upper bound, which does not mean "
    "that any row did.",
    "resolved_rows": "Whether the reviewers found all rows that belong together. The interval accounts "
    "for the fact that only a sample was resolved.",
    "partition_samples": "Whether the record linkage model that the samples come from is right.",
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
            "not retrained."
        )
    if any(fold.shared_clusters for fold in report.folds):
        found.append(
            "How the model does on folds that keep known clusters together: the given folds do not."
        )
    if validated < FEW_CLUSTERS:
        found.append(
            f"How much a new cluster differs from these {validated}: the intervals are "
            "for new rows of the same clusters."
        )
    if not test.rejected:
        found.append(
            "Whether this model benefits from leaked rows at all. The test did not show it; "
            + (
                f"an effect below {number(test.detectable)} would often be missed."
                if test.detectable > 0
                else f"{NOTHING_CHANGED}."
            )
        )
    by_shares = report.dose is None and report.leakage.misplaces
    if report.e0_secant is None and report.e0 is not None and by_shares:
        found.append(
            "A lower limit by a secant of the loss curve: the measured curve does not show that it "
            "is convex."
        )
    return found + _about_refits(report) + open_about_cvc(report)


def _about_refits(report: AuditReport) -> list[str]:
    agreement = report.refit.agreement
    question = "Whether the refits are models like the one that was logged"
    if agreement is None:
        return [f"{question}: they could not be compared."] if report.subject.uri else []
    if not agreement >= LEAST_AGREEMENT:
        return [f"{question}: trained on all rows, they agree in only {percent(agreement)}."]
    return []


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
        f"{'score' if subject.greater_is_better else 'loss'} {subject.loss}, {report.measured.fits} refits by route '{report.refit.route}', drawn {draws}, estimator "
        f"{estimator_words(report)}{sharpness_words(report)}, seed {plan.seed}, data {subject.data_digest}, mlflow-b3 {report.version}.{corrected}"
    )


def describe_refit(report: AuditReport) -> str:
    """Return how the model was refitted, and what that means for the result."""
    subject, refit = report.subject, report.refit
    meaning = (
        "so that all of the bias can show"
        if refit.is_full
        else "so that only part of the bias can show: losses are lower bounds"
    )
    what = ROUTE_WORDS.get(refit.route, "the model was retrained by another package's flavour")
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
            f"trained on all rows, it agrees with {original_words(subject)} in {percent(refit.agreement)} of "
            f"{equal}" + (", by that reading of its classes" if _classes_read(refit) else "")
        )
    return "; ".join(parts) + "."


def _classes_read(refit: RefitSummary) -> bool:
    return any(note.startswith(CLASSES_READ) for note in refit.notes)
