"""A paragraph for a paper: how clusters and leakage were handled, as TRIPOD+AI requires."""

from mlflow_b3.auditing.report import AuditReport
from mlflow_b3.measurement.refits import FEW_CLUSTERS
from mlflow_b3.reporting.cvc_sentences import scope_words, value_words
from mlflow_b3.reporting.headline import (
    ABOVE,
    BELOW,
    OTHERWISE,
    at_least,
    compare_with_threshold,
    explain_tipping,
    unsure,
)
from mlflow_b3.reporting.phrases import (
    NOT_FINITE,
    ROUTE_WORDS,
    confidence_of,
    estimator_words,
    fold_words,
    folds_words,
    is_finite,
    is_half,
    joined,
    range_words,
    shares_clusters,
    thing_of,
)
from mlflow_b3.reporting.sentences import sets_compared
from mlflow_b3.results import loss_words, number, percent

#: The estimators that are not those of the papers.
OWN_METHODS = ("power",)
BREAKING = "breaking validation clusters on purpose and moving one part into training"

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

    It covers the items of TRIPOD+AI on clustered data, on the evaluation of performance and on
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
        f"If cluster identifiers {report.leakage.damage}, rows of one true cluster can be in both training and "
        "validation data and make the performance estimate optimistic."
    )


def _evidence(report: AuditReport) -> str:
    """Return which evidence the leaked share rests on."""
    claim, source = report.claim, report.p0_source
    if claim.range is None:
        return "The number of wrong identifiers was not known."
    low, high = claim.range
    rate = percent(low) if low == high else f"{percent(low)} to {percent(high)}"
    seen = "of the validation rows have rows of the same true cluster in training"
    middle = f"{percent(claim.middle)} (95% interval {rate}) {seen}"
    leak = report.linkage
    looked_up = "some" if leak is None or leak.n_labels is None else str(leak.n_labels)
    sure = "" if leak is None or leak.n_labels is None else f" ({percent(leak.level)} confidence)"
    stated = "This rate was stated, not estimated from these data."
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
        "cluster_error": f"It was assumed that {rate} of the rows carry a wrong identifier{split}. "
        f"{stated}",
        "p0": f"It was assumed that {rate} of the training rows of a fold belong to its validation "
        f"clusters, {back}. {stated}",
        "split_rate": f"It was assumed that {rate} of the rows belong to clusters that were split "
        f"into two identifiers. {stated}",
        "mixture": "The share of training rows that belong to validation clusters was bounded from "
        f"above by how many of them look like validation rows: at most {percent(high)} with "
        f"{confidence} confidence, {back}.",
        "resolved_rows": f"For a sample of {looked_up} rows, all other rows of the same true cluster "
        f"were looked up by hand; according to these, {middle}.",
        "partition_samples": f"According to posterior samples of the record linkage, {middle}.",
        "linkage_quality": "According to the published quality of the record linkage, at most "
        f"{percent(high)} {seen}{sure}.",
        "match_probability": "According to unchecked match probabilities of the record linkage, "
        f"about {percent(claim.middle)} {seen}; {rate} was allowed for.",
        "match_column": f"According to unchecked match probabilities, about {percent(claim.middle)} of "
        f"the rows carry a wrong identifier; {rate} was allowed for.",
    }
    if report.e0 is None and report.leakage.is_bounded_by_rows:
        return (
            "How many training rows belong to validation clusters was not known; the number of those "
            "that look like validation rows excluded nothing."
        )
    if report.e0 is None and leak is not None:
        return (
            f"How many {seen} was not known; the evidence of the record linkage ({source}) did not "
            "exclude that all have."
        )
    return texts[source]


def _estimation(report: AuditReport) -> str:
    route = ROUTE_WORDS.get(report.refit.route, "the model was retrained")
    refits = f"{report.measured.fits} refits in total, for each of which {route}"
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
            " For every share of rows in split clusters up to 50%, it was estimated from the "
            f"performance on rows whose clusters were split, measured by {BREAKING}."
        )
    if not report.refit.is_full:
        text += (
            " Part of the model kept what it had learned from all rows, so these losses are lower "
            "bounds."
        )
    return text


def _by_doses(report: AuditReport, refits: str) -> str:
    """Return how e0 was solved from the losses by dose."""
    rate = "that share of wrong identifiers"
    if report.e0 is None:
        rate = "every share of wrong identifiers up to 50%"
    return (
        "The performance on new clusters was estimated by doses, a variant of the binomial block "
        "bootstrap (Barnes and Dubrawski, 2017, 2019): in each refit, some rows of every validation "
        "cluster were moved into training and as many training rows were held back, so that the same "
        "rows were scored with different numbers of rows of their own cluster in training. With the "
        f"distribution of these numbers under {rate}, the effect of each number was solved from the "
        "differences within rows and removed from the score by identifiers; kinds of effects were "
        f"averaged, weighted by their evidence ({refits})."
    )


def _bootstrap(report: AuditReport) -> str:
    """Return the published method, and how this one differs from it."""
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
        corrected = f"between {number(low)} and {number(high)} ({sure} confidence)"
    text = (
        f"The {word} was {number(report.iid)} when clusters were ignored, {number(report.loco)} (95% "
        f"interval {number(ends[0])} to {number(ends[1])}) {folds_words(report)}, and "
        f"{corrected} on new clusters after correction."
    )
    if is_half(report):
        text += " This value assumes half of the limit; the interval covers none to all of it."
    limit = report.e0_secant
    if limit is not None:
        above = ", above the estimate here" * (report.e0 is not None and limit > report.e0)
        text += (
            " If the loss curve is convex, the loss on new clusters is at least "
            f"{number(limit)} (one-sided 95% limit of a secant){above}."
        )
    if report.plan.n_validated < FEW_CLUSTERS:
        text += (
            f" The intervals are for new rows of the same clusters: {report.plan.n_validated} clusters "
            "are too few to generalise to new ones."
        )
    return text


def _threshold(report: AuditReport) -> str:
    limit = f"the threshold of {number(report.threshold)}"
    words = OTHERWISE if report.subject.greater_is_better else {BELOW: BELOW, ABOVE: ABOVE}
    answer = {
        BELOW: f"All of the interval is {words[BELOW]} {limit}.",
        ABOVE: f"All of the interval is {words[ABOVE]} {limit}.{unsure(report)}",
    }.get(compare_with_threshold(report), f"Whether it is {words[BELOW]} {limit} remains open.")
    return f"{answer} {explain_tipping(report)}"


def _test(report: AuditReport) -> str:
    test = report.test
    verb = "rejected" if test.rejected else "did not reject"
    low, high = (number(end) for end in test.interval)
    return (
        f"A one-sided test ({test.method}, {test.units} {test.unit}) {verb} the hypothesis that the model gains "
        f"nothing from rows of the validation clusters in training (p = {test.pvalue:.2g}; in "
        f"{sets_compared(report)}, they improved the {thing_of(report)} by {number(test.effect)}, 90% interval {low} to {high})."
    )


def _corrected(report: AuditReport) -> list[str]:
    """Return how ordinary cross-validation was corrected for correlated rows, where it was."""
    cvc = report.cvc
    if cvc is None:
        return []
    names = joined([repr(group.name) for group in cvc.groups])
    model = "logistic" if cvc.task == "classification" else "linear"
    if cvc.classes > 2:
        model = "multinomial logistic"
    effects = "normal random intercepts" if cvc.field is None else "a Gaussian random field"
    start = (
        f"By cross-validation on {cvc.folds} folds of rows, the {loss_words(cvc.loss)} was "
        f"{value_words(cvc.cv, cvc.cv_interval)}; its bias due to the correlation of rows within {names} "
        f"(Yuval and Rosset, 2025; {model} working model with {effects}, {cvc.draws} simulated "
        f"samples, engine {cvc.engine!r}, working model {cvc.working!r})"
    )
    if cvc.cvc is None:
        return [f"{start} could not be estimated."]
    whole = ""
    if cvc.grouped is not None:
        whole = (
            f" With whole groups of {cvc.grouped_by!r} left out, it was "
            f"{value_words(cvc.grouped, cvc.grouped_interval)}."
        )
    return [
        f"{start} was estimated as {value_words(cvc.bias, cvc.bias_interval)}, so "
        f"{value_words(cvc.cvc, cvc.interval)} is expected {scope_words(cvc)}.{whole} This assumes that "
        "group identifiers are right and that features are free of group effects."
    ]


def _software(report: AuditReport) -> str:
    return f"Software: mlflow-b3 {report.version} (seed {report.plan.seed}, data digest {report.subject.data_digest})."
