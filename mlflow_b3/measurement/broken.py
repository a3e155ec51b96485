"""Puts the losses of broken clusters together: pattern `fragments`."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from mlflow_b3.measurement.accumulation import (
    Array,
    Indices,
    RowMeans,
    by_unit,
    robust_covariance,
    variance,
)
from mlflow_b3.measurement.breaking import FragmentSizes, arms_of
from mlflow_b3.measurement.curve import DoseLoss, FragmentLosses

AGAIN, DOSES = 1, 2


class SeenLosses:
    """Collects, for one fold, the losses of rows whose cluster was broken, by way of breaking."""

    def __init__(self, loco: RowMeans) -> None:
        self.loco = loco
        self._loco_fits: list[float] = []
        self._arms: list[RowMeans] = []
        self._fits: list[list[float]] = []

    def add_whole(self, losses: Array) -> None:
        """Note a refit on the fold as it is."""
        self._loco_fits.append(float(np.mean(losses)))

    def add(self, rows: Indices, arms: Indices, losses: Array) -> None:
        """Add a refit with broken clusters."""
        whole = self.loco.means[np.searchsorted(self.loco.rows, rows), 0]
        for arm in np.unique(arms).tolist():
            while len(self._arms) <= arm:
                self._arms.append(RowMeans(self.loco.rows, 1))
                self._fits.append([])
            own = arms == arm
            self._arms[arm].add(rows[own], 0, losses[own])
            self._fits[arm].append(float(np.mean((losses - whole)[own])))

    def change(self, arm: int) -> Array:
        """Return how breaking changed the loss of each row; NaN where it was never scored."""
        if arm >= len(self._arms):
            return np.full(len(self.loco.rows), np.nan)
        return np.asarray(self._arms[arm].means[:, 0] - self.loco.means[:, 0])

    def fits(self, arm: int) -> int:
        """Return the number of refits in which clusters were broken in this way."""
        return len(self._fits[arm]) if arm < len(self._fits) else 0

    def refit_variance(self, arm: int) -> float:
        """Return the variance over refits of the mean change; NaN with a single refit."""
        return variance(self._fits[arm]) / len(self._fits[arm]) if self.fits(arm) else float("nan")

    @property
    def loco_variance(self) -> float:
        """Variance over refits of the loss on the fold as it is; 0 for a single one."""
        if len(self._loco_fits) < 2:
            return 0.0
        return variance(self._loco_fits) / len(self._loco_fits)


def fragment_losses(
    folds: Sequence[SeenLosses],
    clusters: NDArray[np.intp],
    units: NDArray[np.intp],
    sizes: FragmentSizes,
) -> tuple[FragmentLosses | None, Array]:
    """Return what breaking clusters did to the loss; None when none could be broken.

    The second part is what each unit adds to the losses of its covariance, as deviations.

    With δ_i the change of the loss of row i when its cluster is broken, e_seen is LOCO plus the mean
    of δ over the rows that were scored: every row counts once, as in the score by noisy ids, and
    rows of clusters that cannot be broken neither raise nor lower it.

    Parameters
    ----------
    folds : sequence of SeenLosses
    clusters, units : array of int
        The cluster of each row, and what varies from sample to sample: the cluster, or the row
        itself where clusters are few.
    sizes : FragmentSizes
    """
    arms = arms_of(sizes)
    changes = [np.column_stack([fold.change(arm) for arm in range(len(arms))]) for fold in folds]
    scored = np.sum([np.isfinite(change).sum(axis=0) for change in changes], axis=0)
    if not scored[0]:
        return None, np.zeros((int(units.max()) + 1, 0))
    rows = sum(len(fold.loco.rows) for fold in folds)
    loss = sum(float(fold.loco.means.sum()) for fold in folds) / rows
    known = np.maximum(scored, 1)
    mean = np.sum([np.nansum(change, axis=0) for change in changes], axis=0) / known
    influence = np.zeros((int(units.max()) + 1, 1 + len(arms)))
    noise = _filled([[fold.refit_variance(arm) for arm in range(len(arms))] for fold in folds])
    refits = np.zeros(len(arms))
    broken = lasting = 0.0
    for fold, change, own_noise in zip(folds, changes, noise, strict=True):
        own = (fold.loco.means - loss) / rows
        deviation = np.hstack([own, own + np.nan_to_num(change - mean) / known])
        influence += by_unit(deviation, units[fold.loco.rows], len(influence))
        refits += (np.isfinite(change).sum(axis=0) / known) ** 2 * own_noise
        counts = np.unique(clusters[fold.loco.rows], return_counts=True)[1]
        for size, times in zip(*np.unique(counts, return_counts=True), strict=True):
            broken += times * size * sizes.applies(int(size))
            lasting += times * size * sizes.breaks_again(int(size))
    used = np.unique(np.concatenate([units[fold.loco.rows] for fold in folds]))
    covariance = robust_covariance(influence[used])
    covariance[1 + AGAIN, 1 + AGAIN] += refits[AGAIN]
    seen = loss + mean
    kept = [0, 1, 2] if scored[AGAIN] else [0, 1]
    losses = FragmentLosses(
        loss=loss,
        seen_loss=float(seen[0]),
        stderr=float(np.sqrt(sum((len(f.loco.rows) / rows) ** 2 * f.loco_variance for f in folds))),
        seen_stderr=float(np.sqrt(refits[0])),
        again_loss=float(seen[AGAIN]) if scored[AGAIN] else None,
        again_rows=float(lasting / broken),
        doses=tuple(
            DoseLoss(
                fragments=str(arms[arm].sizes),
                seen_loss=float(seen[arm]),
                stderr=float(np.sqrt(covariance[1 + arm, 1 + arm] + refits[arm])),
            )
            for arm in range(DOSES, len(arms))
            if scored[arm]
        ),
        covariance=tuple(map(tuple, covariance[np.ix_(kept, kept)].tolist())),
        degrees_of_freedom=max(1, len(used) - 1),
        fits=min(fold.fits(0) for fold in folds if fold.fits(0)),
        broken_rows=float(broken / rows),
    )
    return losses, influence[:, kept]


def _filled(variances: list[list[float]]) -> Array:
    """Give folds with a single refit the largest variance of the others, or none."""
    values = np.array(variances)
    largest = np.max(np.nan_to_num(values), axis=0)
    return np.where(np.isnan(values), largest, values)
