"""What follows from the measured losses: the numbers of an audit's report."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from mlflow_b3.claims import Claim, mean_shares, mean_validation_share, shares_by_fold
from mlflow_b3.errors import InputError
from mlflow_b3.estimation.bounds import ShapeCheck, check_shape
from mlflow_b3.estimation.distribution import LossDistribution, distribution_of
from mlflow_b3.estimation.estimates import Estimate, estimate_range, solve
from mlflow_b3.estimation.fragments import (
    estimate_fragments,
    seen_share,
    tipping_split_rate,
)
from mlflow_b3.estimation.intervals import CONFIDENCE
from mlflow_b3.estimation.leakage_share import LARGEST_SHARE, search_p0
from mlflow_b3.estimation.methods import Method, as_method, solves_in_full
from mlflow_b3.estimation.mixture import P0Bound
from mlflow_b3.estimation.path import ExtrapolationPath, trace_extrapolation
from mlflow_b3.estimation.sensitivity import MOST_NODES, Sensitivity, trace
from mlflow_b3.estimation.unmixing import Extrapolation, LeakShares, unmix
from mlflow_b3.folds import Fold, FoldSummary, cross_validates
from mlflow_b3.hypothesis import LeakageTest, leakage_test
from mlflow_b3.measurement.assembly import Measurement, Tail
from mlflow_b3.measurement.fold_losses import TestLosses
from mlflow_b3.readings import solve_fragments, take_readings
from mlflow_b3.reporting.report import AuditReport, Settings
from mlflow_b3.wording import number

#: The cluster errors and split rates of the sensitivity curves.
ERRORS = tuple(np.linspace(0, 0.5, 51).round(4).tolist())
#: An upper end beyond this multiple of the largest measured loss says nothing.
FARTHEST_END = 10.0
#: The candidates of the search for p0.
SEARCHED = tuple(np.linspace(0, LARGEST_SHARE, 51).round(4).tolist())


_Point = tuple[float, tuple[float, float]]


@dataclass(frozen=True, kw_only=True)
class _Headline:
    e0: float | None
    interval: tuple[float, float]
    p0: float | None
    secant: float | None = None
    estimate: Estimate | None = None
    path: ExtrapolationPath | None = None


def conclude(
    measured: Measurement,
    claim: Claim,
    folds: tuple[FoldSummary, ...],
    settings: Settings,
    threshold: float | None,
    test: LeakageTest,
    p0_bound: P0Bound | None = None,
) -> AuditReport:
    """Draw every conclusion of an audit from what was measured; findings are left to be added."""
    method = as_method(settings.method, **settings.method_options)
    settings = _with_ceiling(settings, measured)
    by_rows = _rows_sensitivity(measured, claim, folds, settings, method)
    by_fragments = _fragment_sensitivity(measured, folds, settings)
    headline = _headline(measured, claim, folds, settings, method, by_rows, by_fragments)
    if claim.source == "mixture" and p0_bound is not None and p0_bound.vacuous:
        ends = (*headline.interval, *_whole_range([by_rows]))
        headline = _Headline(e0=None, interval=(min(ends), max(ends)), p0=None)
    if claim.vacuous:
        headline = _Headline(e0=None, interval=headline.interval, p0=None)
    e0 = None if headline.e0 is None else _point(headline.e0, headline.interval, settings)[0]
    estimate = headline.estimate
    # each candidate of a method that solves for all losses costs as much as an estimate
    candidates = SEARCHED[:: 3 if solves_in_full(method) else 1]
    search = search_p0(measured.curve, method, p0=candidates, bound=settings.loss_bound)
    readings, influence = take_readings(measured, claim, folds, method, settings.loss_bound)
    return AuditReport(
        e0=e0,
        e0_interval=_headline_interval(headline, claim, settings, measured),
        e0_secant=None if headline.secant is None else _floored(headline.secant, settings),
        p0=headline.p0,
        p0_source=claim.source,
        loco=measured.loco,
        loco_interval=_loco_interval(measured, settings),
        iid=measured.iid,
        inflation=None if e0 is None else e0 - measured.loco,
        curve=measured.curve,
        leaked=estimate.leaked if estimate else None,
        losses=estimate.losses if estimate else None,
        residual=estimate.residual if estimate else None,
        shape=estimate.shape if estimate else _shape(measured, folds),
        search=search,
        sensitivity=by_rows,
        fragments=measured.fragments,
        fragment_sensitivity=by_fragments,
        threshold=threshold,
        tipping_p0=None if threshold is None else by_rows.tipping_point(threshold),
        tipping_cluster_error=None if threshold is None else by_rows.tipping_error(threshold),
        tipping_split_rate=None
        if threshold is None or measured.fragments is None
        else tipping_split_rate(measured.fragments, folds, threshold),
        test=test,
        folds=_with_losses(folds, measured),
        findings=(),
        settings=settings,
        accurate=by_rows.accurate and search.accurate and (estimate is None or estimate.accurate),
        sketch_error=estimate.sketch_error if estimate else None,
        distribution=_distribution(measured, claim, folds, method) if estimate else None,
        p0_bound=p0_bound,
        linkage=claim.leak and replace(claim.leak, row_probability=None),
        path=headline.path,
        readings=readings,
        influence=influence,
    )


#: Of a report, what does not follow from the measured losses alone.
NOT_RECOMPUTED = frozenset(
    {
        *("findings", "settings", "constant_loss", "threshold", "p0_bound", "linkage"),
        *("cvc", "suspicious", "regression", "refits", "influence", "splits", "measurements"),
    }
)


def recompute(report: AuditReport) -> AuditReport:
    """Draw the conclusions of a report again, from its measured losses, folds and settings.

    What is left as it is: findings, bounds of the rows and of linkage evidence on the leaked share,
    corrected cross-validation, and the rows to look at first.

    Raises
    ------
    InputError
        For a report without its measurements and folds, which only its own files have.
    """
    measured, splits, settings = report.measurements, report.splits, report.settings
    if measured is None or splits is None:
        raise InputError(
            "report: it has no measurements or folds to draw conclusions from; audits of this version "
            "record them as measurements.json and folds.csv."
        )
    low, high = settings.claim or (0.0, 0.0)
    claim = Claim(
        pattern=settings.pattern,
        source=report.p0_source,
        low=low,
        high=high,
        centre=settings.claim_centre,
        p0_validation=settings.p0_validation,
        leak=report.linkage,
    )
    tested = conclude_test(measured.test_losses, report.test.method, splits=splits)
    return conclude(
        measured, claim, report.folds, settings, report.threshold, tested, report.p0_bound
    )


def preview(
    measured: Measurement, claim: Claim, folds: tuple[FoldSummary, ...], settings: Settings
) -> str:
    """Return in a few words what is known so far: e0 and its interval, or the loss by the ids."""
    if claim.pattern == "unknown" or (claim.pattern == "fragments" and not measured.fragments):
        score, value, interval = "loco", measured.loco, _loco_interval(measured, settings)
    elif claim.pattern == "fragments":
        assert measured.fragments is not None
        mixture = solve_fragments(measured.fragments, claim, folds=folds, bound=settings.loss_bound)
        score, value, interval = "e0", mixture.e0, mixture.interval
    else:
        method = as_method(settings.method, **settings.method_options)
        result = _estimate(measured, claim, folds, method, settings.loss_bound)
        score, value, interval = "e0", result.e0, result.interval
    low, high = _possible(interval, _with_ceiling(settings, measured))
    return f"{score} {number(_floored(value, settings))} ({number(low)} to {number(high)})"


def _with_losses(folds: tuple[FoldSummary, ...], measured: Measurement) -> tuple[FoldSummary, ...]:
    return tuple(
        replace(fold, loss=float(losses.mean()))
        for fold, losses in zip(folds, measured.row_losses, strict=True)
    )


def conclude_test(
    measured: Sequence[TestLosses], method: str, *, splits: Sequence[Fold]
) -> LeakageTest:
    """Return the leakage test of the losses that were measured for it; see `leakage_test`."""
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

    None where rows of the test are missing, or folds are no assignments of all rows.
    """
    rows = np.unique(np.concatenate([fold.validation for fold in splits]))
    labels: list[NDArray[np.intp]] = []
    for index, fold in enumerate(splits):
        where = np.searchsorted(rows, fold.validation)
        if not labels or (labels[-1][where] >= 0).any():
            labels.append(np.full(len(rows), -1, dtype=np.intp))
        labels[-1][where] = index
    made = np.stack(labels)
    return made if len(rows) == length and (made >= 0).all() else None


def _problem(
    measured: Measurement, shares: Sequence[LeakShares], tail: Tail | None = None
) -> Extrapolation:
    curves = measured if tail is None else tail
    return unmix(curves.curve, shares, fold_curves=curves.fold_curves, weights=measured.weights)


def _estimate(
    measured: Measurement,
    claim: Claim,
    folds: tuple[FoldSummary, ...],
    method: Method,
    bound: float | None,
    tail: Tail | None = None,
) -> Estimate:
    """Estimate the loss, or the share of rows in one of its tails, over the range of a claim."""

    def problem(value: float) -> Extrapolation:
        return _problem(measured, claim.shares(value, folds), tail)

    shares = mean_shares(claim.shares(claim.middle, folds), measured.weights)
    return estimate_range(
        problem, claim.low, claim.high, shares, method=method, bound=bound, centre=claim.middle
    )


def _distribution(
    measured: Measurement, claim: Claim, folds: tuple[FoldSummary, ...], method: Method
) -> LossDistribution | None:
    """Return the distribution of the loss, threshold by threshold (pattern `rows`)."""
    if not measured.tails:
        return None
    results = [_estimate(measured, claim, folds, method, 1.0, tail) for tail in measured.tails]
    return distribution_of(
        [tail.threshold for tail in measured.tails],
        results,
        [tail.curve.loss[0] for tail in measured.tails],
    )


def _rows_sensitivity(
    measured: Measurement,
    claim: Claim,
    folds: tuple[FoldSummary, ...],
    settings: Settings,
    method: Method,
) -> Sensitivity:
    back = claim.p0_validation
    accurate: list[bool] = []

    def by_fold(value: float) -> list[LeakShares]:
        return shares_by_fold(value, folds) if back is None else claim.shares(value, folds)

    def point(p0: float) -> _Point:
        at = by_fold(values[shares.index(p0)])
        mean = mean_shares(at, measured.weights)
        result = solve(_problem(measured, at), mean, method=method, bound=settings.loss_bound)
        accurate.append(result.accurate)
        return _point(result.e0, result.interval, settings)

    # beyond 0.95 the sides cannot be told apart; with a fixed p_V no rate of wrong ids is behind p0
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


def _loco_interval(measured: Measurement, settings: Settings) -> tuple[float, float]:
    freedom = measured.curve.degrees_of_freedom
    assert freedom is not None
    reach = float(stats.t.ppf((1 + CONFIDENCE) / 2, freedom)) * measured.loco_stderr
    return _possible((measured.loco - reach, measured.loco + reach), settings)


def _shape(measured: Measurement, folds: tuple[FoldSummary, ...]) -> ShapeCheck:
    return check_shape(_problem(measured, shares_by_fold(0.0, folds)))


def _headline_interval(
    headline: _Headline, claim: Claim, settings: Settings, measured: Measurement
) -> tuple[float, float | None]:
    low, high = _possible(headline.interval, settings)
    if settings.refit_strength != "full":
        return low, None
    if claim.vacuous:
        # where all rows may have been seen, only the largest possible loss limits that on new ones
        return low, settings.loss_bound
    limit = FARTHEST_END * max(measured.loco, *measured.curve.loss)
    if settings.loss_bound is not None:
        limit = min(limit, (1 - 1e-9) * settings.loss_bound)
    return low, high if high <= limit or _is_limited(settings) else None


def _is_limited(settings: Settings) -> bool:
    """Return whether the loss has a largest value that says something about its mean."""
    bound = settings.loss_ceiling if settings.loss_bound is None else settings.loss_bound
    # that of the log loss is only where probabilities are cut off
    return bound is not None and settings.loss != "log"


def _with_ceiling(settings: Settings, measured: Measurement) -> Settings:
    """Drop the ceiling of losses for a model whose predictions leave the range of the target."""
    largest = max(measured.loco, *measured.curve.loss, *(measured.curve.training_loss or ()))
    ceiling = settings.loss_ceiling
    return (
        settings if ceiling is None or largest < ceiling else replace(settings, loss_ceiling=None)
    )


def _possible(interval: tuple[float, float], settings: Settings) -> tuple[float, float]:
    """Keep an interval above the smallest possible loss and below the largest that is likely."""
    low, high = (_floored(end, settings) for end in interval)
    if settings.loss_ceiling is not None:
        low, high = min(low, settings.loss_ceiling), min(high, settings.loss_ceiling)
    return low, high


def _floored(loss: float, settings: Settings) -> float:
    return loss if settings.loss_floor is None else max(loss, settings.loss_floor)


def _point(e0: float, interval: tuple[float, float], settings: Settings) -> _Point:
    """Return e_0 and its interval as possible losses."""
    value, _ = _possible((e0, e0), settings)
    return value, _possible(interval, settings)


def _fragment_sensitivity(
    measured: Measurement, folds: tuple[FoldSummary, ...], settings: Settings
) -> Sensitivity | None:
    losses = measured.fragments
    if losses is None:
        return None

    def point(share: float) -> _Point:
        result = estimate_fragments(losses, seen_share=share, bound=settings.loss_bound)
        return _point(result.e0, result.interval, settings)

    shares = [seen_share(rate, folds).share for rate in ERRORS]
    return trace(point, shares, pattern="fragments", error=ERRORS)


def _whole_range(curves: Sequence[Sensitivity]) -> tuple[float, float]:
    return min(min(curve.low) for curve in curves), max(max(curve.high) for curve in curves)


def _headline(
    measured: Measurement,
    claim: Claim,
    folds: tuple[FoldSummary, ...],
    settings: Settings,
    method: Method,
    by_rows: Sensitivity,
    by_fragments: Sensitivity | None,
) -> _Headline:
    if claim.pattern == "unknown":
        both = [by_rows, *([by_fragments] if by_fragments else [])]
        return _Headline(e0=None, interval=_whole_range(both), p0=None)
    if claim.pattern == "fragments":
        if measured.fragments is None:
            raise InputError(f"{claim.source} needs clusters with two rows or more; none has.")
        mixture = solve_fragments(measured.fragments, claim, folds=folds, bound=settings.loss_bound)
        share = mixture.seen_share if claim.leak is None else claim.middle
        return _Headline(e0=mixture.e0, interval=mixture.interval, p0=share)

    result = _estimate(measured, claim, folds, method, settings.loss_bound)
    return _Headline(
        e0=result.e0,
        interval=result.interval,
        p0=result.shares.p0,
        secant=result.secant,
        estimate=result,
        path=trace_extrapolation(
            _problem(measured, claim.shares(claim.middle, folds)),
            result.shares,
            method=method,
            bound=settings.loss_bound,
        ),
    )
