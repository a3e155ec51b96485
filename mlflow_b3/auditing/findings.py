"""Findings that follow from the numbers of an audit, and what they say.

Codes are in `results.CODES`. Tables (`data/table.py`), folds (`data.folds.fold_findings`) and corrected
cross-validation (`correlated/working.py`, `correlated/correction.py`) raise findings of their own.
"""

from collections.abc import Sequence

import numpy as np

from mlflow_b3.auditing.doses import FEW_UNSEEN, NEGLIGIBLE
from mlflow_b3.auditing.leakage import SAFE_THRESHOLD, Evidence
from mlflow_b3.auditing.report import DOSE, AuditReport, RefitSummary, SubjectSummary
from mlflow_b3.data.folds import Fold, make_folds
from mlflow_b3.data.scores import named_score
from mlflow_b3.data.table import IN_TABLE, AuditData
from mlflow_b3.linkage.leak import Splits
from mlflow_b3.linkage.leak_sources import leak_from_pairs
from mlflow_b3.measurement.design import DOSES
from mlflow_b3.measurement.refits import FEW_CLUSTERS, TOLERATED_FAILURES, FitCounts
from mlflow_b3.results import Finding, number, percent

# --- The findings that follow from an audit's own numbers

FEW_REFITS = 20
#: By doses: above this share of the variance of e0, the refits are too few.
NOISY_REFITS = 0.25
#: The one-sided level of the test that rows of the same cluster hurt.
HURTS = 0.025
MOSTLY = 0.5
#: So few clusters should not have this part of the variance of a score if there are so many clusters. Of normal
#: contributions, 5 of 60 have two fifths of it.
DECISIVE, DECISIVE_PART, MANY_CLUSTERS = 5, 2 / 3, 60
#: What is known of the smallest effect that a test finds where all differences are 0.
NOTHING_CHANGED = "no loss changed, so which effect the test would have found is not known"
LEAST_AGREEMENT = 0.9


def audit_findings(report: AuditReport, counts: FitCounts) -> list[Finding]:
    """Return what readers must know before they rely on the numbers."""
    found = _about_leakage(report)
    found += _about_curve(report) if report.conclusion.dose is None else _about_doses(report)
    found += _about_score(report)
    found += _about_refits(report)
    found += _about_fits(report, counts)
    return [Finding(code=code, message=message) for code, message in found]


def _about_leakage(report: AuditReport) -> list[tuple[str, str]]:
    found = []
    if report.plan.n_validated < FEW_CLUSTERS:
        found.append(
            (
                "B301",
                f"only {report.plan.n_validated} clusters were validated. "
                + (
                    "So few hardly show how much clusters differ: e0 and its interval are rough."
                    if report.plan.method == DOSE
                    else "The intervals are for new rows of these clusters, not for new clusters: so few do "
                    "not show how much clusters differ."
                ),
            )
        )
    if report.p0_bound is not None and report.p0_bound.vacuous:
        found.append(("B318", report.p0_bound.statement))
    if report.e0 is None and not report.leakage.is_known:
        found.append(
            (
                "B307",
                "no leaked share was given (p0, cluster_error, split_rate, or linkage evidence), and the "
                "measured losses cannot reveal it: they fit every share. The interval holds for any share "
                "of wrong ids up to 50%. Have a sample of rows resolved by hand (mlflow-b3 review), or use "
                "the error rate that your record linkage reports, and audit again.",
            )
        )
    part = _decisive_part(report)
    if part > DECISIVE_PART:
        found.append(
            (
                "B358",
                f"{DECISIVE} of {report.plan.n_validated} clusters make up {percent(part)} of the variance of "
                "the score by clusters: the losses have heavy tails. Which clusters are in the table decides the "
                "scores, and intervals contain the loss on new clusters less often than they say.",
            )
        )
    test = report.test
    if not test.rejected:
        power = (
            f"the test would have found an effect of {test.detectable:.3g} with probability 0.8"
            if test.detectable > 0
            else NOTHING_CHANGED
        )
        found.append(
            (
                "B308",
                f"the test did not show that this learner benefits from leaked rows (p = "
                f"{test.pvalue:.2g}). It may benefit all the same: {power}.",
            )
        )
    losses, greater = report.as_losses, report.subject.greater_is_better
    constant, threshold = losses.constant_loss, losses.threshold
    if report.plan.threshold_given and None not in (constant, threshold) and threshold > constant:  # type: ignore[operator]
        beyond, what, other = (
            ("below", "score", "larger") if greater else ("above", "loss", "smaller")
        )
        found.append(
            (
                "B351",
                f"the threshold of {number(report.threshold)} is {beyond} {number(report.constant_loss)}, "
                f"the {what} of the best constant prediction: a model that has learned nothing would "
                f"meet it. Give a {other} threshold.",
            )
        )
    bound = report.subject.loss_bound
    if losses.e0 is not None and bound is not None and losses.e0 >= bound:
        worst = (
            f"smallest possible score, {1 - bound:g}"
            if greater
            else f"largest possible loss, {bound:g}"
        )
        found.append(
            (
                "B314",
                f"e0 reaches the {worst}: the given leaked share is too large for this curve.",
            )
        )
    return found


def _decisive_part(report: AuditReport) -> float:
    """Return which part of the variance of an unbounded mean loss a few clusters have."""
    influence = report.influence
    if influence is None or influence.unit != "clusters" or report.subject.loss_bound is not None:
        return 0.0
    squares = np.sort(influence.loco**2)
    if len(squares) < MANY_CLUSTERS or not squares.sum():
        return 0.0
    return float(squares[-DECISIVE:].sum() / squares.sum())


def _about_curve(report: AuditReport) -> list[tuple[str, str]]:
    found = []
    shape = report.shape
    by_rows = report.leakage.misplaces  # split clusters are not read from the curve
    instead = (
        " The interval does not rely on the shape: it spans the estimate and a parabola."
        if report.plan.method == "power"
        else ""
    )
    if not shape.decreasing:
        found.append(
            (
                "B304",
                f"the loss rises as leaked rows are added (z = {shape.slope_z:.1f}): they hurt "
                "this learner."
                + (" No lower limit by a secant is given." + instead if by_rows else ""),
            )
        )
    if not shape.convex:
        found.append(
            (
                "B305",
                f"the loss curve bends the wrong way (z = {shape.curvature_z:.1f})."
                + (" No lower limit by a secant is given." + instead if by_rows else ""),
            )
        )
    if not report.accurate and by_rows:
        found.append(
            (
                "B319",
                f"the solver of method {report.plan.method!r} did not compute some losses accurately, so "
                "its numbers may be off. Use method 'power', or other options.",
            )
        )
    low, high = report.e0_interval
    if report.e0 is not None and high is not None and by_rows:
        width = high - low
        noise = report.loco_interval[1] - report.loco_interval[0]
        if noise < MOSTLY * width:
            found.append(
                (
                    "B306",
                    f"the interval of e0 is {width:.3g} wide, that of the uncorrected loss "
                    f"{noise:.3g}: most of it comes from extrapolating beyond the measured levels, "
                    "and more refits would not narrow it much.",
                )
            )
    return found


def _about_doses(report: AuditReport) -> list[tuple[str, str]]:
    """Return what to know about an e0 that was solved from the losses by dose."""
    solution = report.conclusion.dose
    assert solution is not None
    found = []
    if solution.effect < 0 and solution.p_value > 1 - HURTS:
        found.append(
            (
                "B304",
                "rows have a larger loss with other rows of their cluster in training, by "
                f"{number(-solution.effect)} with nearly all of them (one-sided p = "
                f"{1 - solution.p_value:.2g}): these rows hurt this learner.",
            )
        )
    if report.e0 is None:
        return found
    parts = solution.variance
    total = parts.clusters + parts.refits + parts.ids
    if parts.ids > MOSTLY * total:
        found.append(
            (
                "B306",
                f"{percent(parts.ids / total)} of the variance of e0 comes from {ids_part(report)}: "
                f"{ids_remedy(report)}.",
            )
        )
    if parts.refits > NOISY_REFITS * total:
        found.append(
            (
                "B315",
                f"{percent(parts.refits / total)} of the variance of e0 comes from {solution.refits} "
                "refits; a larger budget gives a narrower interval.",
            )
        )
    if solution.unseen < FEW_UNSEEN:
        found.append(
            (
                "B355",
                f"at the stated rate, only {percent(solution.unseen)} of the validation rows have no row of "
                "their true cluster in training, so e0, the loss on such rows, is an extrapolation. "
                "Its interval depends on which kinds of effects are considered possible. If a single mate "
                "gives a row away, as among near copies, the loss on new clusters may lie above it.",
            )
        )
    return found


def ids_part(report: AuditReport) -> str:
    """Return what the part of the variance that comes from wrong ids is about."""
    shape = (
        "how the effect runs between no row of the same cluster in training and the measured doses"
    )
    return f"{shape}, and from the range of the rate" if is_range(report) else shape


def ids_remedy(report: AuditReport) -> str:
    """Return what would narrow that part."""
    best = "better ids or a narrower range narrow" if is_range(report) else "better ids narrow"
    others = "more clusters or refits" if more_refits_help(report) else "more clusters"
    return f"{best} it, and {others} can, too"


def is_range(report: AuditReport) -> bool:
    """Return whether the rate of wrong ids is known within a range only."""
    ranges = (report.claim.range, report.claim.split_range)
    return any(ends is not None and ends[0] < ends[1] for ends in ranges)


def more_refits_help(report: AuditReport) -> bool:
    """Return whether a larger budget would make refits of an audit by doses that were not made.

    After two passes, refits stop where they cause next to nothing of the variance of e0. A larger
    budget then repeats the same ones.
    """
    found = report.conclusion.dose
    assert found is not None
    parts = found.variance
    if parts.refits >= NEGLIGIBLE * (parts.clusters + parts.refits + parts.ids):
        return True
    folds = len(report.folds) // report.plan.repeats
    return report.plan.repeats == 1 and found.refits <= (1 + len(DOSES)) * folds


def _about_score(report: AuditReport) -> list[tuple[str, str]]:
    """Return that the correction of a score is only approximate, if it is."""
    score = named_score(report.subject.loss)
    if score is None or not score.approximate or report.e0 is None:
        return []
    return [
        (
            "B356",
            f"e0 of the {score.words} is approximate: it is extrapolated from what single rows add to it where "
            "it was measured, and it does not change in proportion. The larger the difference between LOCO "
            "and e0, the rougher e0 and its interval are.",
        )
    ]


def _about_refits(report: AuditReport) -> list[tuple[str, str]]:
    found = []
    if not report.refit.is_full:
        found.append(
            (
                "B321",
                f"the route '{report.refit.route}' does not retrain all of the model, which keeps what it "
                "learned from validation rows. Its losses are too small, unless the "
                "retrained part does worse than the part it replaced. The loss on new clusters is at "
                "least what is shown, and a test that does not reject says nothing. For the whole "
                "answer, give a trainer, or the recipe of a network.",
            )
        )
    if report.plan.n_train is not None:
        found.append(
            (
                "B353",
                f"all scores here are those of models trained on {report.plan.n_train} rows drawn with "
                "replacement, not of the audited model, which was trained on more. Leave n_train out "
                "to audit models of full size.",
            )
        )
    agreement = report.refit.agreement
    if agreement is not None and agreement < LEAST_AGREEMENT:
        what = (
            "of its predictions"
            if report.subject.task == "classification"
            else "of the variance of its predictions"
        )
        found.append(
            (
                "B322",
                f"trained on all rows of this table, the refit agrees with {original_words(report.subject)} in "
                f"{100 * agreement:.3g}% {what}. Either these are not the rows it was trained on, "
                "or the training was different (parameters, random numbers, dtypes of columns). The "
                "numbers are then about another model." + _dtypes(report.refit),
            )
        )
    return found


def _dtypes(refit: RefitSummary) -> str:
    """Return which columns may have other dtypes than in training."""
    differ = [note for note in refit.notes if IN_TABLE in note]
    return f" Dtypes differ: {'; '.join(differ)}." if differ else ""


def _about_fits(report: AuditReport, counts: FitCounts) -> list[tuple[str, str]]:
    found = []
    if counts.one_class:
        found.append(
            (
                "B303",
                f"in {counts.one_class} of {counts.done} refits the training rows had only one class; a "
                "model that always predicts it replaced the learner.",
            )
        )
    if counts.failed:
        found.append(("B312", _failures(counts)))
    if counts.retried:
        told = f"{counts.retried} refits failed in an earlier run and succeeded when they were retried."
        found.append(("B312", told))
    if counts.interrupted:
        found.append(
            (
                "B330",
                f"the audit was stopped after {counts.done} of {counts.planned} refits. The numbers are from "
                "these, and no gate accepts them, because anyone watching the estimate could stop at a "
                "convenient moment. Start the same audit again to finish it; with its journal, it "
                "resumes.",
            )
        )
    elif counts.done < counts.planned:
        found.append(
            (
                "B352",
                f"the time budget ran out after {counts.done} of {counts.planned} planned refits. The "
                "numbers are from these; more time gives a steadier curve.",
            )
        )
    fits = report.curve.fits
    folds = len(report.folds) // report.plan.repeats
    least = 0 if fits is None else min(fits[1:]) * folds
    if least < FEW_REFITS and report.conclusion.dose is None:
        found.append(
            (
                "B315",
                f"a level of the loss curve has only {least} refits; a larger budget "
                "gives a steadier curve.",
            )
        )
    if counts.warnings:
        text, times = counts.warnings.most_common(1)[0]
        found.append(
            (
                "B316",
                f"refits raised {sum(counts.warnings.values())} warnings, most often ({times} "
                f"times): {text}",
            )
        )
    return found


def _failures(counts: FitCounts) -> str:
    assert counts.first_error is not None
    late = f", {counts.timed_out} of them at their time limit," if counts.timed_out else ""
    first = counts.first_error.splitlines()[0]
    others = len(counts.causes) - 1
    return (
        f"{counts.failed} of {counts.done} refits failed{late} and are left out of all numbers (up to "
        f"{100 * TOLERATED_FAILURES:g}% are tolerated). If they fail on rows of a certain kind, the "
        f"losses do not include such rows. The first error: {first}"
        + (f" There are {others} other causes." if others else "")
    )


def distribution_findings(report: AuditReport, *, asked: bool) -> list[Finding]:
    """Return why an audit has no distribution of the loss although one was requested."""
    if not asked or report.distribution is not None:
        return []
    if report.e0 is None:
        message = "distribution=True needs a leaked share, and the bound on it is vacuous."
    else:
        message = (
            f"the loss {report.subject.loss} takes two values here: its mean is its whole "
            "distribution."
        )
    return [Finding(code="B320", message=message)]


def original_words(subject: SubjectSummary) -> str:
    """Return the name of the model that refits are compared with."""
    return "the fitted model that was given" if subject.uri is None else "the logged model"


# --- The findings that follow from linkage evidence, and how to reduce leakage

#: Leak-safe folds are recommended where they keep at least this much of the match mass together.
WORTH_IT = 0.2
FEW_LINKED_CLUSTERS = 100
#: Most pairs with at least this probability should be in one cluster.
SURE = 0.9
MANY_PAIRS = 20


def linkage_findings(
    report: AuditReport, evidence: Evidence, folds: Sequence[Fold], table: AuditData
) -> list[Finding]:
    """Return what the reader must know about the evidence and the folds made of it."""
    found = [
        *_about_evidence(report),
        *_about_tables(evidence, table),
        *_about_folds_by_matches(report),
    ]
    found += _about_regression(report)
    safe = _safe_folds(report, evidence, folds, table)
    if report.test.rejected or safe:
        found.append(("B324", _advice(report, safe, table)))
    return [Finding(code=code, message=message) for code, message in found]


def _about_evidence(report: AuditReport) -> list[tuple[str, str]]:
    leak = report.linkage
    if report.leakage.is_unchecked:
        return [
            (
                "B325",
                "the leaked share comes from match probabilities that nobody checked. In simulations "
                "with Splink, such shares were off by factors of 0.2 to 1.9 and hardly moved when the "
                "truth did; the interval allows for a standard deviation of a factor of 3. Have 200 to "
                "300 rows resolved by hand (mlflow-b3 review) and audit again with resolved_rows.",
            )
        ]
    if leak is not None and leak.notes:
        return [("B327", " ".join(leak.notes))]
    return []


def _about_tables(evidence: Evidence, table: AuditData) -> list[tuple[str, str]]:
    """Return reasons to doubt that the pairs and the sheet belong to this table."""
    found = []
    pairs, names = evidence.pairs, np.array(table.names, dtype=object)[table.clusters]
    if pairs is not None and pairs.left_out:
        share = pairs.left_out / (pairs.left_out + len(pairs))
        found.append(
            f"{pairs.left_out} scored pairs ({percent(share)}) name rows that are not in this table "
            "and were left out. That is right if more rows were linked than are audited; otherwise "
            "check row_id."
        )
    if pairs is not None:
        sure = pairs.probability >= SURE
        apart = table.clusters[pairs.first[sure]] != table.clusters[pairs.second[sure]]
        if len(apart) >= MANY_PAIRS and apart.mean() > MOSTLY:
            found.append(
                f"{percent(float(apart.mean()))} of the pairs with a match probability of at least {SURE:g} are in "
                "different clusters. Either the clusters do not come from these pairs, or the ids of the pairs "
                "are not those of the rows: check row_id."
            )
    changed = None if evidence.resolved is None else evidence.resolved.changed_clusters(names)
    if changed:
        found.append(
            f"{percent(changed)} of the resolved rows have another cluster here than in the sheet. "
            "That is right if rows were clustered again in the meantime; otherwise the sheet belongs to "
            "another table."
        )
    return [("B327", text) for text in found]


def _about_folds_by_matches(report: AuditReport) -> list[tuple[str, str]]:
    if report.plan.fold_threshold is None and report.plan.purge_threshold is None:
        return []
    message = (
        "the folds keep rows together, or apart, by their match probabilities. This reduces "
        "leakage, but the same scores cannot say how much remains, because hidden mates are among the "
        "pairs that they rate low. Rows resolved by hand can."
    )
    if report.leakage.assumes_random_folds:
        message += (
            f" The share by {report.p0_source} assumes that the parts of a cluster fall into folds at "
            "random; here fewer are separated, so the correction is too large."
        )
    return [("B326", message)]


def _about_regression(report: AuditReport) -> list[tuple[str, str]]:
    found = report.regression
    if found is None:
        return []
    if found.holds is False:
        return [
            (
                "B328",
                "rows with suspected mates have different losses even if the mates are not in "
                f"training (p = {found.assumption_pvalue:.2g}), so suspected rows are harder or easier "
                "to predict as such. The regression of losses on leak probabilities then says nothing "
                "about e0, and the mixture formula, which assumes that seen rows are like others, may "
                "be off.",
            )
        ]
    low, high = report.e0_interval
    if report.e0 is None or high is None or not found.calibrated:
        return []
    if found.interval[1] < low or found.interval[0] > high:
        return [
            (
                "B328",
                f"the regression of losses on leak probabilities gives {number(found.e0)} "
                f"({number(found.interval[0])} to {number(found.interval[1])}) for the loss on new "
                f"clusters, outside the interval of e0, {number(low)} to {number(high)}. One of the two "
                "rests on an assumption that does not hold here.",
            )
        ]
    return []


def _advice(report: AuditReport, safe: str, table: AuditData) -> str:
    """Return what would reduce the leakage, in order of priority (Barnes's thesis, section 7.1)."""
    steps = []
    if any(finding.code == "B323" for finding in table.findings):
        steps.append("leave out the features that identify clusters (B323)")
    if safe:
        steps.append(safe)
    if report.linkage is None or report.linkage.kind != "estimate":
        steps.append(
            "find out how many ids are wrong: resolve a sample of rows by hand (mlflow-b3 review), or "
            "label pairs and cluster with weights learned from them (mlflow_b3.linkage.learn_log_odds, "
            "correlation_cluster)"
        )
    if not safe and report.plan.fold_threshold is None:
        steps.append(
            "cluster coarsely for the folds: rows that are merged by mistake do no harm there, but rows "
            "that are split do (fold_threshold with a table of scored pairs)"
        )
    if report.subject.n_clusters < FEW_LINKED_CLUSTERS:
        steps.append(f"collect more clusters than these {report.subject.n_clusters}")
    steps.append("try a simpler or more strongly regularized model, which remembers less")
    listed = "; ".join(f"{place}. {step}" for place, step in enumerate(steps, 1))
    benefits = "benefits" if report.test.rejected else "may benefit"
    return (
        f"this learner {benefits} from leaked rows. What would reduce the leakage or its effect, most "
        f"important first: {listed}."
    )


def _safe_folds(
    report: AuditReport, evidence: Evidence, folds: Sequence[Fold], table: AuditData
) -> str:
    """Return what leak-safe folds would do, if there are scored pairs and it would help."""
    taken = report.plan.fold_threshold is not None or report.plan.folds_given
    if evidence.pairs is None or taken:
        return ""
    count = len(folds) // report.plan.repeats
    made = evidence.suspected_groups
    regrouped = table.regrouped(np.array(made.groups, dtype=np.intp))
    if regrouped.n_clusters < count:
        return ""
    safe = make_folds(regrouped, count, seed=report.plan.seed, repeats=report.plan.repeats)
    before, after = (
        leak_from_pairs(
            *evidence.pairs.arrays,
            Splits.of(folds_, table.n_rows, by_rows=True),
            table.clusters,
            allow_split=True,
        ).validation.point
        for folds_ in (folds, safe)
    )
    if not before or after is None or after > (1 - WORTH_IT) * before:
        return ""
    text = f"keep rows with a match probability of at least {SAFE_THRESHOLD:g} in one fold "
    text += f"(fold_threshold={SAFE_THRESHOLD:g}; the largest group would have {percent(made.largest_group)} of the rows)"
    if evidence.resolved is not None:
        old, new = (
            evidence.leak("resolved_rows", some, table).validation for some in (folds, safe)
        )
        return (
            f"{text}: by the resolved rows, the seen share falls from {percent(old.point or 0)} to "
            f"{percent(new.point or 0)} ({percent(new.low)} to {percent(new.high)})"
        )
    return (
        f"{text}: {percent(1 - after / before)} of the suspected leakage would be gone; only resolved "
        "rows can then say what still leaks"
    )
