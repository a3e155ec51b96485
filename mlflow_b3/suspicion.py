"""What the leak probability of single rows says beside p0: which to review, and whether e0 fits."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import logit

from mlflow_b3.data import AuditData
from mlflow_b3.errors import InputError
from mlflow_b3.evidence import Evidence
from mlflow_b3.folds import Fold
from mlflow_b3.linkage.calibrate import recalibrate
from mlflow_b3.linkage.pairs import row_leak_probability
from mlflow_b3.linkage.ranking import SuspiciousRow, rank_rows
from mlflow_b3.linkage.recalibrated import FEWEST_DRAWS, leak_from_recalibrated_pairs
from mlflow_b3.linkage.regression import loss_regression
from mlflow_b3.linkage.splits import Splits
from mlflow_b3.reporting.report import AuditReport

MOST_ROWS = 50
#: What the regression needs: rows on either side of it, and clusters.
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
    if leak is None:
        return report
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
    """Return the mean loss of each row over the folds that validate it; NaN where none does."""
    total, count = np.zeros(n), np.zeros(n)
    for losses, fold in zip(row_losses, folds, strict=True):
        total[fold.validation] += losses
        count[fold.validation] += 1
    return np.asarray(np.divide(total, count, out=np.full(n, np.nan), where=count > 0))


def _row_leak(evidence: Evidence, folds: Sequence[Fold], table: AuditData) -> RowLeak | None:
    """Return the leak probabilities that the evidence gives, the best first."""
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
    """Return the leak probabilities of scored pairs, put right by resolved rows where possible."""
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
