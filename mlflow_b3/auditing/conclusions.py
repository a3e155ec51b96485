"""The numbers of a report from the measured losses: scores, e0 and its interval, tipping points.

Which numbers are limited to possible losses, or withheld, is decided here.
"""

import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats
from scipy.special import logit

from mlflow_b3.auditing.doses import ByDoses
from mlflow_b3.auditing.groups import GroupScores, conclude_groups
from mlflow_b3.auditing.leakage import (
    Case,
    Evidence,
    Folds,
    Leakage,
    Solution,
    extrapolation_of,
    mean_shares,
    mean_validation_share,
    shares_by_fold,
)
from mlflow_b3.auditing.report import (
    DOSE,
    AuditReport,
    Conclusion,
    MeasurementSummary,
    PlanSummary,
    RefitSummary,
    SubjectSummary,
    turn_conclusion,
    turn_influence,
    turn_measured,
    turned,
)
from mlflow_b3.data.folds import Fold, cross_validates
from mlflow_b3.data.scores import RankScore, Score, is_mean, named_score
from mlflow_b3.data.table import AuditData
from mlflow_b3.errors import InputError
from mlflow_b3.estimation.bounds import CONFIDENCE, ShapeCheck, check_shape
from mlflow_b3.estimation.estimate import (
    Method,
    as_method,
    solve,
    solves_in_full,
)
from mlflow_b3.estimation.fragments import (
    estimate_fragments,
    seen_share,
    tipping_split_rate,
)
from mlflow_b3.estimation.influence import Array, Influence, Reading
from mlflow_b3.estimation.leakage_test import LeakageTest, leakage_test
from mlflow_b3.estimation.p0 import LARGEST_SHARE, search_p0
from mlflow_b3.estimation.problem import LeakShares
from mlflow_b3.estimation.sensitivity import (
    MOST_NODES,
    Sensitivity,
    trace,
)
from mlflow_b3.linkage.calibrate import FEWEST_DRAWS, leak_from_recalibrated_pairs, recalibrate
from mlflow_b3.linkage.leak import Splits
from mlflow_b3.linkage.leak_sources import row_leak_probability
from mlflow_b3.linkage.rows import SuspiciousRow, loss_regression, rank_rows
from mlflow_b3.measurement.collecting import Measurement, TestLosses, robust_covariance
from mlflow_b3.measurement.refits import FEW_CLUSTERS, parse_fragments
from mlflow_b3.measurement.runner import one_thread
from mlflow_b3.results import number

# --- What follows from the measured losses: the numbers of an audit's report

#: The cluster errors and split rates of the sensitivity curves.
ERRORS = tuple(np.linspace(0, 0.5, 51).round(4).tolist())
#: An upper end beyond this multiple of the largest measured loss says nothing.
FARTHEST_END = 10.0
#: The candidates of the search for p0.
SEARCHED = tuple(np.linspace(0, LARGEST_SHARE, 51).round(4).tolist())


_Point = tuple[float, tuple[float, float]]


def conclude(
    measured: Measurement,
    claim: Leakage,
    folds: Folds,
    *,
    subject: SubjectSummary,
    refit: RefitSummary,
    plan: PlanSummary,
    test: LeakageTest,
    way: "ByShares | ByDoses | None" = None,
) -> tuple[Conclusion, Influence]:
    """Draw every conclusion of an audit from what was measured.

    `way` is that of `way_to_conclude`, if it is there already.

    Returns
    -------
    conclusion : Conclusion
    influence : Influence
        How far each cluster moves the scores.
    """
    greater = subject.greater_is_better
    subject = _with_ceiling(subject, measured)
    threshold = turned(plan.threshold) if greater else plan.threshold
    way = way or way_to_conclude(measured, claim, folds, subject=subject, plan=plan)
    # laws of doses take many small products, for which threads only wait for each other
    with nullcontext() if measured.doses is None else one_thread():
        by_rows = way.rows_sensitivity()
        by_fragments = way.split_sensitivity()
        headline = way.headline([by_rows, *([by_fragments] if by_fragments else [])])
    shows_nothing = cannot_show(subject, folds)
    e0 = None if headline.e0 is None else _point(headline.e0, headline.interval, subject)[0]
    e0 = None if shows_nothing else e0
    method = curve_method(plan)
    # each candidate of a method that solves for all losses costs as much as an estimate
    candidates = SEARCHED[:: 3 if solves_in_full(method) else 1]
    search = search_p0(measured.curve, method, p0=candidates, bound=subject.loss_bound)
    readings, influence = _read(way.read(), measured)
    estimate = headline.estimate
    conclusion = Conclusion(
        e0=e0,
        e0_interval=_e0_interval(headline, claim, subject, refit, measured, shows_nothing),
        e0_secant=None if headline.secant is None else _floored(headline.secant, subject),
        p0=headline.p0,
        inflation=None if e0 is None else e0 - measured.loco,
        loco_interval=_loco_interval(measured, subject),
        leaked=headline.leaked,
        losses=headline.losses,
        # by doses no curve is fitted for e0; this is the smallest residual of the search for p0
        residual=headline.residual if headline.dose is None else min(search.residual),
        shape=estimate.shape if estimate else _shape(measured, folds),
        search=search,
        sensitivity=by_rows,
        fragment_sensitivity=by_fragments,
        tipping_p0=None if threshold is None else by_rows.tipping_point(threshold),
        tipping_cluster_error=None if threshold is None else by_rows.tipping_error(threshold),
        tipping_split_rate=None if threshold is None else way.tipping_split_rate(threshold),
        test=test,
        readings=readings,
        path=headline.path,
        distribution=headline.distribution,
        accurate=by_rows.accurate and search.accurate and (estimate is None or estimate.accurate),
        sketch_error=estimate.sketch_error if estimate else None,
        dose=headline.dose,
        loco_gap_interval=_loco_gap_interval(measured),
        groups=_groups(measured, claim, folds, subject=subject, plan=plan),
    )
    if greater:
        return turn_conclusion(conclusion), turn_influence(influence)
    return conclusion, influence


def cannot_show(subject: SubjectSummary, folds: Folds) -> bool:
    """Return whether the data cannot show what a model loses on new clusters, whatever the rate.

    That is so if almost no cluster has a second row, or if folds have rows of one cluster on both
    sides: then nothing was measured without known leakage.
    """
    few = subject.n_rows - subject.n_clusters < FEW_CLUSTERS
    return few or any(fold.shared_clusters for fold in folds)


def curve_method(plan: PlanSummary) -> Method:
    """Return the method by which the loss curve is extrapolated."""
    if plan.method == DOSE:  # the curve follows from the losses by dose, and has no e0 of its own
        return as_method("power")
    return as_method(plan.method, **plan.method_options)


def way_to_conclude(
    measured: Measurement,
    claim: Leakage,
    folds: Folds,
    *,
    subject: SubjectSummary,
    plan: PlanSummary,
) -> "ByShares | ByDoses":
    """Return how conclusions are drawn: from the losses by dose, or from the loss curve."""
    subject = _with_ceiling(subject, measured)

    def possible(e0: float, interval: tuple[float, float]) -> _Point:
        return _point(e0, interval, subject)

    if measured.doses is not None:
        score = named_score(subject.loss)
        return ByDoses(
            measured=measured,
            claim=claim,
            folds=folds,
            fragments=parse_fragments(plan.fragment_sizes),
            floor=subject.loss_floor,
            bound=subject.loss_bound,
            errors=ERRORS,
            possible=possible,
            is_score=score is not None,
            by_pairs=isinstance(score, RankScore),
            chance=_chance(score, subject),
        )
    case = Case(measured=measured, folds=folds, method=curve_method(plan), bound=subject.loss_bound)
    return ByShares(case=case, claim=claim, possible=possible)


def _chance(score: Score | None, subject: SubjectSummary) -> float | None:
    """Return the loss of a random ranking, for scores of how rows are ranked."""
    if not isinstance(score, RankScore) or subject.constant_loss is None:
        return None
    return 1 - subject.constant_loss


def _groups(
    measured: Measurement,
    claim: Leakage,
    folds: Folds,
    *,
    subject: SubjectSummary,
    plan: PlanSummary,
) -> GroupScores | None:
    def way(of_group: Measurement) -> ByDoses:
        found = way_to_conclude(of_group, claim, folds, subject=subject, plan=plan)
        assert isinstance(found, ByDoses)
        return replace(found, chance=None)  # classes have other shares in a group

    return conclude_groups(measured, way)


def summarize_measurement(
    measured: Measurement, folds: Folds, subject: SubjectSummary
) -> MeasurementSummary:
    """Return what a report says about the measured losses, except how the refits went."""
    summary = MeasurementSummary(
        loco=measured.loco,
        iid=measured.iid,
        curve=measured.curve,
        fragments=measured.fragments,
        folds=_with_losses(folds, measured) if is_mean(subject.loss) else folds,
    )
    return turn_measured(summary) if subject.greater_is_better else summary


def recompute(report: AuditReport) -> AuditReport:
    """Draw the conclusions of a report again, from its measured losses, folds and settings.

    Only `measured`, `conclusion` and `influence` change. Findings, what was known about the leakage,
    corrected cross-validation and the rows to review first stay as they are.

    Raises
    ------
    InputError
        For a report without its measurements and folds, which only its own files have.
    """
    measured, splits = report.measurements, report.splits
    if measured is None or splits is None:
        raise InputError(
            "report has no measurements or folds to draw conclusions from; audits of this version record "
            "them as measurements.json and folds.csv."
        )
    summary = summarize_measurement(measured, report.folds, report.subject)
    recorded = report.measured
    conclusion, influence = conclude(
        measured,
        report.leakage,
        report.folds,
        subject=report.subject,
        refit=report.refit,
        plan=report.plan,
        test=conclude_test(measured.test_losses, report.test.method, splits=splits),
    )
    return replace(
        report,
        measured=replace(
            summary,
            fits=recorded.fits,
            refits=recorded.refits,
            measured_at=recorded.measured_at,
        ),
        conclusion=conclusion,
        influence=influence,
    )


def preview(
    measured: Measurement,
    claim: Leakage,
    folds: Folds,
    *,
    subject: SubjectSummary,
    plan: PlanSummary,
) -> str:
    """Return in a few words what is known so far: e0 and its interval, or the loss by the ids."""
    way = way_to_conclude(measured, claim, folds, subject=subject, plan=plan)
    found = way.estimate() if claim.is_known else None
    if found is None:
        score, value, interval = "loco", measured.loco, _loco_interval(measured, subject)
    else:
        score, (value, interval) = "e0", found
    low, high = _possible(interval, _with_ceiling(subject, measured))
    value = _floored(value, subject)
    if subject.greater_is_better:
        value, low, high = turned(value), turned(high), turned(low)
    return f"{score} {number(value)} ({number(low)} to {number(high)})"


def _read(
    read: Sequence[tuple[Reading, Array]], measured: Measurement
) -> tuple[tuple[Reading, ...], Influence]:
    """Return e_0 over the range of what is known, and how far each cluster moves it.

    If nothing is known there is no reading, and the influence is only that on the score by noisy ids.
    """
    units = measured.units
    columns = [influence for _, influence in read]
    influence = Influence(
        unit=units.unit,
        ids=units.ids,
        share=units.share,
        loco=units.curve[:, 0],
        e0=np.column_stack(columns) if columns else np.zeros((len(units.ids), 0)),
    )
    return tuple(reading for reading, _ in read), influence


def _with_losses(folds: Folds, measured: Measurement) -> Folds:
    return tuple(
        replace(fold, loss=float(losses.mean()))
        for fold, losses in zip(folds, measured.row_losses, strict=True)
    )


def conclude_test(
    measured: Sequence[TestLosses], method: str, *, splits: Sequence[Fold]
) -> LeakageTest:
    """Return the leakage test on the losses that were measured for it; see `leakage_test`."""
    (without, leaked, groups), *rearranged = measured
    if method == "welch":
        return leakage_test(without, leaked, "welch", strata=groups)
    crossed, folds = cross_validates(tuple(splits)), _fold_labels(splits, len(groups))
    if method == "paired":
        return leakage_test(without, leaked, clusters=groups, crossed=crossed, folds=folds)
    folds = None if folds is None else folds[:1]  # rearranged clusters are tested in one assignment
    null = [
        leakage_test(a, b, clusters=owners, crossed=crossed, folds=folds).statistic
        for a, b, owners in rearranged
    ]
    return leakage_test(
        without,
        leaked,
        "permutation",
        clusters=groups,
        crossed=crossed,
        folds=folds,
        null_statistics=null,
    )


def _fold_labels(splits: Sequence[Fold], length: int) -> NDArray[np.intp] | None:
    """Return the fold of each validated row, once for each assignment of rows to folds.

    None if rows of the test are missing, or if the folds are not assignments of all rows.
    """
    used = np.zeros(1 + max(int(fold.validation.max()) for fold in splits), dtype=bool)
    labels: list[NDArray[np.intp]] = []
    for index, fold in enumerate(splits):
        used[fold.validation] = True
        if not labels or (labels[-1][fold.validation] >= 0).any():
            labels.append(np.full(len(used), -1, dtype=np.intp))
        labels[-1][fold.validation] = index
    made = np.stack(labels)[:, used]
    return made if made.shape[1] == length and (made >= 0).all() else None


def _loco_interval(measured: Measurement, subject: SubjectSummary) -> tuple[float, float]:
    freedom = measured.curve.degrees_of_freedom
    assert freedom is not None
    reach = float(stats.t.ppf((1 + CONFIDENCE) / 2, freedom)) * measured.loco_stderr
    return _possible((measured.loco - reach, measured.loco + reach), subject)


def _shape(measured: Measurement, folds: Folds) -> ShapeCheck:
    return check_shape(extrapolation_of(measured, shares_by_fold(0.0, folds)))


def _loco_gap_interval(measured: Measurement) -> tuple[float, float] | None:
    """Return the interval of LOCO minus the score by rows, if the difference is known by cluster.

    Both scores are of the same rows, but each has its own noise, from its folds and from the number of
    refits that it averages.
    """
    doses = measured.doses
    if doses is None:
        return None
    scored = doses.counts[doses.by_row]
    if not scored.any():
        return None
    gap = -doses.differences[doses.by_row]
    mean = float(gap.sum() / scored.sum())
    used = scored > 0
    influence = ((gap - mean * scored) / scored.sum())[used]
    error = math.sqrt(float(robust_covariance(influence[:, None])[0, 0]))
    reach = float(stats.t.ppf((1 + CONFIDENCE) / 2, max(1, int(used.sum()) - 1))) * error
    return mean - reach, mean + reach


def _e0_interval(
    headline: Solution,
    claim: Leakage,
    subject: SubjectSummary,
    refit: RefitSummary,
    measured: Measurement,
    shows_nothing: bool,
) -> tuple[float, float | None]:
    """Return the interval of e0. Its upper end is withheld (None) if it would say nothing.

    That is so if refits or data do not show all of the bias, or if it is beyond `FARTHEST_END`.
    """
    low, high = _possible(headline.interval, subject)
    if shows_nothing and not claim.excludes_nothing:
        low = min(low, _loco_interval(measured, subject)[0])
        if not subject.greater_is_better:
            return low, None
        # of a score of which more is better, the lower end is a number: the worst possible one
        return low, high if subject.loss_bound is None else subject.loss_bound
    if not refit.is_full:
        return low, None
    if claim.is_vacuous and (subject.loss_bound is not None or not subject.greater_is_better):
        # if all rows may have been seen, only the largest possible loss limits the loss on new ones
        return low, subject.loss_bound
    if named_score(subject.loss) is not None:  # their refits are full, and doses limit the ends
        return low, high
    limit = FARTHEST_END * max(measured.loco, *measured.curve.loss)
    if subject.loss_bound is not None:
        limit = min(limit, (1 - 1e-9) * subject.loss_bound)
    return low, high if high <= limit or _is_limited(subject) else None


def _is_limited(subject: SubjectSummary) -> bool:
    """Return whether the loss has a largest value that says something about its mean."""
    bound = subject.loss_ceiling if subject.loss_bound is None else subject.loss_bound
    # the largest log loss only reflects where probabilities are clipped
    return bound is not None and subject.loss != "log"


def _with_ceiling(subject: SubjectSummary, measured: Measurement) -> SubjectSummary:
    """Drop the ceiling of losses for a model whose predictions leave the range of the target."""
    largest = max(measured.loco, *measured.curve.loss, *(measured.curve.training_loss or ()))
    ceiling = subject.loss_ceiling
    return subject if ceiling is None or largest < ceiling else replace(subject, loss_ceiling=None)


def _possible(interval: tuple[float, float], subject: SubjectSummary) -> tuple[float, float]:
    """Keep an interval above the smallest possible loss and below the largest that is likely."""
    low, high = (_floored(end, subject) for end in interval)
    if subject.loss_ceiling is not None:
        low, high = min(low, subject.loss_ceiling), min(high, subject.loss_ceiling)
    return low, high


def _floored(loss: float, subject: SubjectSummary) -> float:
    return loss if subject.loss_floor is None else max(loss, subject.loss_floor)


def _point(e0: float, interval: tuple[float, float], subject: SubjectSummary) -> _Point:
    """Return e_0 and its interval as possible losses."""
    value, _ = _possible((e0, e0), subject)
    return value, _possible(interval, subject)


@dataclass(frozen=True, kw_only=True, eq=False)
class ByShares:
    """Conclusions from the loss curve over injected shares, and from broken clusters.

    Attributes
    ----------
    case : Case
    claim : Leakage
    possible : callable
        Restricts an estimate and its interval to possible losses.
    """

    case: Case
    claim: Leakage
    possible: Callable[[float, tuple[float, float]], _Point]

    def estimate(self) -> tuple[float, tuple[float, float]] | None:
        """Return e0 and its interval over what is known; None if there is no estimate."""
        found = self.claim.solve(self.case)
        return None if found is None else (found.e0, found.interval)

    def headline(self, curves: Sequence[Sensitivity]) -> Solution:
        """Return the loss on new clusters."""
        found = self.claim.conclude(self.case, curves)
        estimate = found.estimate
        if estimate is None:
            return found
        return replace(
            found,
            leaked=estimate.leaked,
            losses=estimate.losses,
            residual=estimate.residual,
            distribution=self.claim.distribution(self.case),
        )

    def read(self) -> list[tuple[Reading, Array]]:
        """Return e0 over the range of what is known, and how far each cluster moves it."""
        return self.claim.read(self.case)

    def rows_sensitivity(self) -> Sensitivity:
        """Return e0 over the cluster error, or over p0 with a given p0_validation."""
        case, back = self.case, self.claim.p0_validation
        measured, folds, method = case.measured, case.folds, case.method
        accurate: list[bool] = []

        def by_fold(value: float) -> list[LeakShares]:
            if back is None:
                return shares_by_fold(value, folds)
            return [LeakShares(p0=value, p0_validation=back)] * len(folds)

        def point(p0: float) -> _Point:
            at = by_fold(values[shares.index(p0)])
            mean = mean_shares(at, measured.weights)
            result = solve(extrapolation_of(measured, at), mean, method=method, bound=case.bound)
            accurate.append(result.accurate)
            return self.possible(result.e0, result.interval)

        # beyond 0.95 the sides cannot be told apart; with a fixed p_V, p0 belongs to no rate of wrong ids
        largest = 0.95 / mean_validation_share(folds)
        if back is not None:
            largest = min(0.95 - back, LARGEST_SHARE * (1 - back))
        values = [value for value in ERRORS if value == 0 or value <= largest]
        shares, error = values, None
        if back is None:
            shares = [mean_shares(by_fold(value), measured.weights).p0 for value in values]
            error = values
        most = MOST_NODES if solves_in_full(method) else None
        curve = trace(point, shares, pattern="rows", error=error, most=most)
        return replace(curve, accurate=all(accurate))

    def split_sensitivity(self) -> Sensitivity | None:
        """Return e0 over the split rate; None if no cluster was broken."""
        losses, bound = self.case.measured.fragments, self.case.bound
        if losses is None:
            return None

        def point(share: float) -> _Point:
            result = estimate_fragments(losses, seen_share=share, bound=bound)
            return self.possible(result.e0, result.interval)

        shares = [seen_share(rate, self.case.folds).share for rate in ERRORS]
        return trace(point, shares, pattern="fragments", error=ERRORS)

    def tipping_split_rate(self, threshold: float) -> float | None:
        """Return the smallest split rate at which e0 reaches a threshold."""
        losses = self.case.measured.fragments
        return None if losses is None else tipping_split_rate(losses, self.case.folds, threshold)


# --- What the leak probabilities of single rows add to p0: which to review, and whether e0 fits

MOST_ROWS = 50
#: The least numbers for the regression: of rows that may have mates, or none, and of clusters.
LEAST_ROWS = 20

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, eq=False)
class RowLeak:
    """How likely it is that rows had mates in training when they were validated.

    Attributes
    ----------
    rows : array of int
    probability, control : array of float
        The probability of a mate in training, and of one in validation that is known by another
        cluster id: as suspicious, but not leaked.
    calibrated : bool
        Whether somebody checked.
    complete : bool
        All rows are there, not a sample.
    """

    rows: NDArray[np.intp]
    probability: Floats
    control: Floats | None
    calibrated: bool
    complete: bool


def examine_rows(
    report: AuditReport,
    evidence: Evidence,
    row_losses: Sequence[Floats],
    folds: Sequence[Fold],
    table: AuditData,
) -> AuditReport:
    """Add the rows to review first and the regression of losses on leak probabilities."""
    leak = _row_leak(evidence, folds, table)
    if leak is None or named_score(report.subject.loss) is not None:
        return report  # what rows add to a score is no loss of theirs
    losses = mean_losses(row_losses, folds, table.n_rows)
    scored = np.isfinite(losses[leak.rows])
    rows, chance = leak.rows[scored], leak.probability[scored]
    groups = _dependent(evidence, table)
    regression = None
    enough = min((chance > 0).sum(), (chance < 1).sum()) >= LEAST_ROWS
    if enough and len(np.unique(table.clusters[rows])) >= LEAST_ROWS and np.ptp(chance) > 0:
        with suppress(InputError):  # all that is suspected is in one cluster
            regression = loss_regression(
                losses[rows],
                chance,
                groups[rows],
                control=None if leak.control is None else leak.control[scored],
                calibrated=leak.calibrated,
            )
    suspicious: tuple[SuspiciousRow, ...] = ()
    if leak.complete and len(rows):
        everyone = np.zeros(table.n_rows)  # rows that were never validated leaked nothing
        everyone[rows] = chance
        suspicious = rank_rows(
            everyone,
            np.where(np.isfinite(losses), losses, np.nanmean(losses)),
            pairs=evidence.pairs,
            clusters=table.clusters,
            ids=table.ids,
            most=MOST_ROWS,
        )
    return replace(report, regression=regression, suspicious=suspicious)


def _dependent(evidence: Evidence, table: AuditData) -> NDArray[np.intp]:
    """Return groups of rows whose losses go together: clusters, and what may belong with them."""
    if evidence.pairs is None:
        return table.clusters
    return np.array(evidence.suspected_groups.groups, dtype=np.intp)


def mean_losses(row_losses: Sequence[Floats], folds: Sequence[Fold], n: int) -> Floats:
    """Return the mean loss of each row over the folds that validate it; NaN if none does."""
    total, count = np.zeros(n), np.zeros(n)
    for losses, fold in zip(row_losses, folds, strict=True):
        total[fold.validation] += losses
        count[fold.validation] += 1
    return np.asarray(np.divide(total, count, out=np.full(n, np.nan), where=count > 0))


def _row_leak(evidence: Evidence, folds: Sequence[Fold], table: AuditData) -> RowLeak | None:
    """Return the leak probabilities that the evidence gives, the best first."""
    if evidence.pairs is None and evidence.samples is None and evidence.resolved is None:
        return None
    splits = Splits.of(folds, table.n_rows, by_rows=True)
    everything = np.arange(table.n_rows)
    if evidence.pairs is not None and not evidence.made_of_scores:
        return _by_pairs(evidence, splits, table)
    if evidence.samples is not None:
        leak = evidence.leak("partition_samples", folds, table)
        return RowLeak(
            rows=everything,
            probability=np.asarray(leak.row_probability, dtype=float),
            control=None,
            calibrated=False,
            complete=True,
        )
    if evidence.resolved is not None:
        return RowLeak(
            rows=np.asarray(evidence.resolved.rows, dtype=np.intp),
            probability=evidence.resolved.seen(splits),
            control=None,
            calibrated=evidence.reviewer_is_right,
            complete=False,
        )
    return None


def _by_pairs(evidence: Evidence, splits: Splits, table: AuditData) -> RowLeak:
    """Return the leak probabilities of scored pairs, calibrated by resolved rows if possible."""
    assert evidence.pairs is not None
    resolved = evidence.resolved
    i, j, p = evidence.pairs.arrays
    chance: Any = None
    calibrated = False
    if resolved is not None:
        scores, checked = _logit(p), (resolved.rows, resolved.mates)
        weights = resolved.weights
        try:
            leak = leak_from_recalibrated_pairs(
                i, j, scores, splits, table.clusters, *checked, weights=weights, draws=FEWEST_DRAWS
            )
            p = recalibrate(i, j, scores, table.clusters, *checked, weights=weights)
            chance = leak.row_probability
            calibrated = leak.kind == "estimate" and evidence.reviewer_is_right
        except InputError:  # too few mates among the resolved rows; the scores stay unchecked
            chance = None
    if chance is None:
        chance = row_leak_probability(i, j, p, splits, table.clusters, allow_split=True)
    control = row_leak_probability(
        i, j, p, splits, table.clusters, same_side=True, allow_split=True
    )
    return RowLeak(
        rows=np.arange(table.n_rows),
        probability=np.asarray(chance, dtype=float),
        control=control,
        calibrated=calibrated,
        complete=True,
    )


def _logit(probability: Floats) -> Floats:
    return np.asarray(logit(np.clip(probability, 1e-12, 1 - 1e-12)))
