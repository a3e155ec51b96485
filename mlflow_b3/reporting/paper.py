"""A paragraph for a paper: how clusters and leakage were handled, as TRIPOD+AI asks for it."""

from mlflow_b3.reporting.headline import ABOVE, BELOW, at_least, headline_of
from mlflow_b3.reporting.method import ROUTE_WORDS, estimator_words, fold_words
from mlflow_b3.reporting.report import AuditReport
from mlflow_b3.reporting.sentences import explain_tipping
from mlflow_b3.wording import loss_words, number, percent

REFERENCES = (
    "Barnes, M. and Dubrawski, A. (2017). The binomial block bootstrap estimator for evaluating loss "
    "on dependent clusters. Proceedings of UAI 2017.",
    "Barnes, M. and Dubrawski, A. (2019). On the interaction effects between prediction and "
    "clustering. Proceedings of AISTATS 2019, PMLR 89. arXiv:1807.06713.",
    "Collins, G. S. et al. (2024). TRIPOD+AI statement: updated guidance for reporting clinical "
    "prediction models that use regression or machine learning methods. BMJ 385, e078378. "
    "doi:10.1136/bmj-2023-078378.",
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
        _results(report),
        *([_threshold(report)] if report.settings.threshold_given else []),
        _test(report),
        _software(report),
    ]
    return " ".join(sentences)


def _validation(report: AuditReport) -> str:
    s = report.settings
    shared = max(fold.shared_clusters for fold in report.folds)
    if shared:
        kept = f"on given folds with up to {shared} clusters on both sides"
    elif s.folds_given:
        kept = "on given folds that kept the rows of a cluster together"
    else:
        kept = "with the rows of a cluster kept together"
    return (
        f"The {s.n_rows} rows came from {s.n_clusters} clusters by {s.cluster!r}. The "
        f"{loss_words(s.loss)} was evaluated by cross-validation {kept} ({fold_words(report)}), and "
        "for comparison by cross-validation that ignored clusters."
    )


def _problem(report: AuditReport) -> str:
    wrong = {
        "rows": "are wrong for single rows",
        "fragments": "split some true clusters",
        "unknown": "are wrong",
    }[report.settings.pattern]
    return (
        f"Where cluster identifiers {wrong}, rows of one true cluster can be in training and in "
        "validation data and make the performance look too good."
    )


def _evidence(report: AuditReport) -> str:
    """Return by what evidence the leaked share is known."""
    s, source = report.settings, report.p0_source
    if s.claim is None:
        return "How many identifiers are wrong was not known."
    low, high = s.claim
    rate = percent(low) if low == high else f"{percent(low)} to {percent(high)}"
    seen = "of the validation rows have rows of the same true cluster in training"
    middle = f"{percent(s.middle)} (95 % interval {rate}) {seen}"
    leak = report.linkage
    looked_up = "some" if leak is None or leak.n_labels is None else str(leak.n_labels)
    stated = "That was stated, not estimated from these data."
    back = "with as many rows leaking back"
    if s.p0_validation is not None:
        back = f"with {percent(s.p0_validation)} of the validation rows from training clusters"
    bound = report.p0_bound
    confidence = percent(0.95 if bound is None else bound.confidence)
    texts = {
        "cluster_error": f"It was taken that {rate} of the rows carry a wrong identifier. {stated}",
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
        f"{percent(high)} {seen}.",
        "match_probability": "By match probabilities of the record linkage that nobody checked, "
        f"about {percent(s.middle)} {seen}; {rate} was allowed for.",
        "match_column": "By match probabilities of the rows that nobody checked, about "
        f"{percent(s.middle)} of them carry a wrong identifier; {rate} was allowed for.",
    }
    if bound is not None and source == "mixture" and bound.vacuous:
        return (
            "How many training rows belong to validation clusters was not known; how many of them "
            "look like validation rows excluded nothing."
        )
    return texts[source]


def _estimation(report: AuditReport) -> str:
    s = report.settings
    route = ROUTE_WORDS.get(s.refit, "the model was trained again")
    refits = f"{s.fits} refits, for each of which {route}"
    if s.pattern == "fragments":
        text = (
            "The performance on new clusters was estimated from the mixture of validation rows with "
            "and without rows of their true cluster in training; the performance on the former was measured by "
            f"breaking validation clusters on purpose and giving one part to training ({refits})."
        )
    else:
        how = "for every share of wrong identifiers up to 50 % " if s.pattern == "unknown" else ""
        text = (
            f"The performance on new clusters was estimated {how}with the binomial block bootstrap "
            "(Barnes and Dubrawski, 2017, 2019): increasing shares of validation rows were put into "
            "training, the performance on the others was measured, and the curve was extrapolated "
            f"to the point without leakage (estimator {estimator_words(report)}; {refits})."
        )
    if s.refit_strength != "full":
        text += (
            " Part of the model kept what it had learned from all rows, so that these losses are "
            "lower bounds."
        )
    return text


def _results(report: AuditReport) -> str:
    low, high = report.e0_interval
    word, ends = loss_words(report.settings.loss), report.loco_interval
    corrected = f"{number(report.e0)} (95 % interval {number(low)} to {number(high)})"
    if high is None:
        corrected = at_least(report)
    elif report.e0 is None:
        corrected = f"between {number(low)} and {number(high)}"
    text = (
        f"The {word} was {number(report.iid)} when clusters were ignored, {number(report.loco)} (95 % "
        f"interval {number(ends[0])} to {number(ends[1])}) by the identifiers as they are, and "
        f"{corrected} on new clusters after correction."
    )
    if report.e0_guaranteed is not None:
        text += (
            " A lower bound that needs a decreasing and convex curve only was "
            f"{number(report.e0_guaranteed)}, up to noise."
        )
    half = report.p0_source == "mixture" or (report.linkage and report.linkage.kind == "upper")
    if half and report.e0 is not None:
        text += " That is the value for half of the limit; the interval is for none to all of it."
    return text


def _threshold(report: AuditReport) -> str:
    limit = f"the threshold of {number(report.threshold)}"
    answer = {
        BELOW: f"All of the interval is below {limit}.",
        ABOVE: f"All of the interval is at or above {limit}.",
    }.get(headline_of(report).word, f"Whether that is below {limit} is open.")
    return f"{answer} {explain_tipping(report)}"


def _test(report: AuditReport) -> str:
    test = report.test
    verb = "rejected" if test.rejected else "did not reject"
    low, high = (number(end) for end in test.interval)
    return (
        f"A one-sided test ({test.method}, {test.units} {test.unit}) {verb} that the model gains "
        f"nothing from rows of the validation clusters in training (p = {test.pvalue:.2g}; the loss "
        f"fell by {number(test.effect)}, 90 % interval {low} to {high})."
    )


def _software(report: AuditReport) -> str:
    s = report.settings
    return f"Software: mlflow-b3 {s.version} (seed {s.seed}, data digest {s.data_digest})."
