"""The findings that follow from linkage evidence, and how leakage could be lowered."""

from collections.abc import Sequence

import numpy as np

from mlflow_b3.data import AuditData
from mlflow_b3.evidence import SAFE_THRESHOLD, Evidence
from mlflow_b3.findings import Finding
from mlflow_b3.folds import Fold, make_folds
from mlflow_b3.linkage.pairs import leak_from_pairs
from mlflow_b3.linkage.splits import Splits
from mlflow_b3.reporting.report import AuditReport
from mlflow_b3.wording import number, percent

#: Leak-safe folds are recommended where they keep at least this much of the match mass together.
WORTH_IT = 0.2
FEW_CLUSTERS = 100
#: Pairs from this probability on should be in one cluster, in most of many cases.
SURE = 0.9
MANY_PAIRS = 20
MOSTLY = 0.5


def linkage_findings(
    report: AuditReport, evidence: Evidence, folds: Sequence[Fold], table: AuditData
) -> list[Finding]:
    """Return what the reader must know about the evidence and the folds made of it."""
    found = [*_about_evidence(report), *_about_tables(evidence, table), *_about_folds(report)]
    found += _about_regression(report)
    safe = _safe_folds(report, evidence, folds, table)
    if report.test.rejected or safe:
        found.append(("B324", _advice(report, safe, table)))
    return [Finding(code=code, message=message) for code, message in found]


def _about_evidence(report: AuditReport) -> list[tuple[str, str]]:
    leak = report.linkage
    if report.p0_source == "match_column" or (leak is not None and leak.kind == "uncalibrated"):
        return [
            (
                "B325",
                "the leaked share comes from match probabilities that nobody checked. In simulations "
                "with Splink such shares were off by factors of 0.2 to 1.9 and hardly moved when the "
                "truth did; the interval allows for a factor of 3 as standard deviation. Have 200 to "
                "300 rows resolved by hand (mlflow-b3 review) and audit again with resolved_rows.",
            )
        ]
    if leak is not None and leak.notes:
        return [("B327", " ".join(leak.notes))]
    return []


def _about_tables(evidence: Evidence, table: AuditData) -> list[tuple[str, str]]:
    """Return what makes one doubt that pairs and sheet belong to this table."""
    found = []
    pairs, names = evidence.pairs, np.array(table.names, dtype=object)[table.clusters]
    if pairs is not None and pairs.left_out:
        share = pairs.left_out / (pairs.left_out + len(pairs))
        found.append(
            f"{pairs.left_out} scored pairs ({percent(share)}) name rows that are not in this table "
            "and were left out; right if more rows were linked than are audited, else check row_id."
        )
    if pairs is not None:
        sure = pairs.probability >= SURE
        apart = table.clusters[pairs.first[sure]] != table.clusters[pairs.second[sure]]
        if len(apart) >= MANY_PAIRS and apart.mean() > MOSTLY:
            found.append(
                f"{percent(float(apart.mean()))} of the pairs with a match probability from {SURE:g} are in "
                "different clusters. Either the clusters come from elsewhere, or the ids of the pairs "
                "are not those of the rows: check row_id."
            )
    changed = None if evidence.resolved is None else evidence.resolved.changed_clusters(names)
    if changed:
        found.append(
            f"{percent(changed)} of the resolved rows have another cluster here than in the sheet. "
            "That is right if rows were clustered anew since; otherwise the sheet belongs to another "
            "table."
        )
    return [("B327", text) for text in found]


def _about_folds(report: AuditReport) -> list[tuple[str, str]]:
    settings = report.settings
    if settings.fold_threshold is None and settings.purge_threshold is None:
        return []
    message = (
        "the folds keep rows apart, or together, by their match probabilities. That leaves less to "
        "leak, but the same scores cannot say how much still does: pairs that they rate low are "
        "where hidden mates are. Rows that were resolved by hand can."
    )
    if report.p0_source in ("split_rate", "linkage_quality"):
        message += (
            f" The share by {report.p0_source} takes the parts of a cluster to fall into folds at "
            "random; in these folds fewer do, so the correction is too large."
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
                "rows with suspected mates have other losses even where the mates are not in "
                f"training (p = {found.assumption_pvalue:.2g}): suspected rows are harder or easier "
                "by themselves, so the regression of losses on leak probabilities says nothing "
                "about e0, and the mixture formula, which takes seen rows to be like others, may be "
                "off.",
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
    """Return what would lower the leakage, in order of priority (Barnes's thesis, section 7.1)."""
    steps = []
    if any(finding.code == "B323" for finding in table.findings):
        steps.append("leave out the features that identify clusters (B323)")
    if safe:
        steps.append(safe)
    if report.linkage is None or report.linkage.kind != "estimate":
        steps.append(
            "find out how wrong the ids are: resolve a sample of rows by hand (mlflow-b3 review), or "
            "label pairs and cluster with what they teach (mlflow_b3.linkage.learn_log_odds, "
            "correlation_cluster)"
        )
    if not safe and report.settings.fold_threshold is None:
        steps.append(
            "cluster coarsely for the folds: rows that are merged by mistake do no harm in them, rows "
            "that are split do (fold_threshold with a table of scored pairs)"
        )
    if report.settings.n_clusters < FEW_CLUSTERS:
        steps.append(f"collect more clusters than these {report.settings.n_clusters}")
    steps.append("try a simpler or more strongly regularised model, which remembers less")
    listed = "; ".join(f"{place}. {step}" for place, step in enumerate(steps, 1))
    profits = "profits" if report.test.rejected else "may profit"
    return (
        f"this learner {profits} from leaked rows. What lowers the leakage, or what it does, first "
        f"things first: {listed}."
    )


def _safe_folds(
    report: AuditReport, evidence: Evidence, folds: Sequence[Fold], table: AuditData
) -> str:
    """Return what leak-safe folds would do, where pairs are at hand and they would help."""
    settings = report.settings
    taken = settings.fold_threshold is not None or settings.folds_given
    if evidence.pairs is None or taken:
        return ""
    count = len(folds) // settings.repeats
    made = evidence.suspected_groups
    regrouped = table.regrouped(np.array(made.groups, dtype=np.intp))
    if regrouped.n_clusters < count:
        return ""
    safe = make_folds(regrouped, count, seed=settings.seed, repeats=settings.repeats)
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
    text = f"keep rows with a match probability from {SAFE_THRESHOLD:g} in one fold "
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
        f"{text}: {percent(1 - after / before)} of the suspected leakage would be gone; what still "
        "leaks only resolved rows can say then"
    )
