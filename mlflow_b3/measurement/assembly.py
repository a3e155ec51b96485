"""Puts the losses of single refits together: curves, standard errors, covariances."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mlflow_b3.measurement.accumulation import Array, by_unit, robust_covariance
from mlflow_b3.measurement.broken import fragment_losses
from mlflow_b3.measurement.curve import SHARPNESS, FragmentLosses, LossCurve, pooled
from mlflow_b3.measurement.fold_losses import FoldLosses, TestLosses, gather_test_losses
from mlflow_b3.measurement.resampling import Resampler
from mlflow_b3.results import Result


@dataclass(frozen=True, kw_only=True)
class Tail:
    """The share of rows with a loss above a threshold, as a loss curve."""

    threshold: float
    curve: LossCurve
    fold_curves: tuple[LossCurve, ...]


@dataclass(frozen=True, kw_only=True)
class UnitLosses:
    """What each unit that varies from sample to sample adds to the measured losses.

    Attributes
    ----------
    unit : {"clusters", "rows"}
        Rows, where clusters are few.
    ids : array of int
        The number of each cluster or row that was validated on.
    share : array
        The share of the validated rows that each has.
    curve : array
        Its part in the deviation of the losses of the curve, and of those of held-back rows.
    fragments : array
        The same for the losses of broken clusters, as many as their covariance has.
    """

    unit: str
    ids: NDArray[np.intp]
    share: Array
    curve: Array
    fragments: Array


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """All that was measured in one audit.

    Attributes
    ----------
    curve : LossCurve
        Pooled over the folds, weighted by validation rows.
    fold_curves : tuple of LossCurve
    weights : tuple of float
        Share of the validation rows in each fold.
    fragments : FragmentLosses or None
        None when no cluster has two rows.
    loco, loco_stderr : float
        Mean loss on the folds as they are, and its standard error over clusters.
    iid : float
        Mean loss on folds that ignore the clusters.
    test_losses : tuple of TestLosses
        One, and for the permutation test those of the rearranged rows after it.
    row_losses : tuple of array
        For each fold, the loss of each of its validation rows on the fold as it is.
    units : UnitLosses
        What each cluster adds to the losses.
    tails : tuple of Tail
        Where the distribution of the loss was asked for.
    """

    curve: LossCurve
    fold_curves: tuple[LossCurve, ...]
    weights: tuple[float, ...]
    fragments: FragmentLosses | None
    loco: float
    loco_stderr: float
    iid: float
    test_losses: tuple[TestLosses, ...]
    row_losses: tuple[Array, ...]
    units: UnitLosses
    tails: tuple[Tail, ...] = ()

    def to_json(self) -> str:
        """Return strict JSON from which all conclusions can be drawn again; NaN becomes null."""
        values = {field.name: _plain(getattr(self, field.name)) for field in fields(self)}
        return json.dumps(values, allow_nan=False, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> "Measurement":
        """Build the measurement from what `to_json` returned."""
        values = json.loads(text)
        units, losses = values["units"], values["fragments"]
        tails = [
            Tail(
                threshold=tail["threshold"],
                curve=LossCurve.from_dict(tail["curve"]),
                fold_curves=tuple(map(LossCurve.from_dict, tail["fold_curves"])),
            )
            for tail in values["tails"]
        ]
        read: dict[str, Any] = {
            "curve": LossCurve.from_dict(values["curve"]),
            "fold_curves": tuple(map(LossCurve.from_dict, values["fold_curves"])),
            "weights": tuple(values["weights"]),
            "fragments": None if losses is None else FragmentLosses.from_dict(losses),
            "test_losses": tuple(
                (_numbers(without), _numbers(leaked), np.array(groups, dtype=np.intp))
                for without, leaked, groups in values["test_losses"]
            ),
            "row_losses": tuple(map(_numbers, values["row_losses"])),
            "units": UnitLosses(
                unit=units["unit"],
                ids=np.array(units["ids"], dtype=np.intp),
                **{name: _numbers(units[name]) for name in ("share", "curve", "fragments")},
            ),
            "tails": tuple(tails),
        }
        read |= {name: float(values[name]) for name in ("loco", "loco_stderr", "iid")}
        return cls(**read)


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        if value.dtype.kind != "f" or np.isfinite(value).all():
            return value.tolist()
        return np.where(np.isnan(value), np.array(None), value).tolist()
    if isinstance(value, Result):
        return value.to_dict()
    if isinstance(value, (tuple, list)):
        return [_plain(item) for item in value]
    if isinstance(value, (Tail, UnitLosses)):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    return value


def _numbers(values: Any) -> Array:
    """Return an array of numbers, in which null stands for NaN."""
    return np.array(values, dtype=float)


def assemble(
    folds: Sequence[FoldLosses],
    iid_losses: Iterable[Array],
    resampler: Resampler,
    repeats: int = 1,
    tails: tuple[Tail, ...] = (),
) -> Measurement:
    """Turn the collected losses into curves with their uncertainty.

    The uncertainty of the losses over the choice of clusters is cluster-robust: with d_g the sum of
    the deviations of the rows of cluster g from the mean, divided by the number of rows,
    Σ = 1.4 · G/(G-1) · Σ_g d_g d_gᵀ, over levels and both sides at once; the factor stands for the
    correlation that training on each other causes (doi:10.1080/01621459.2023.2197686). Below ten validated clusters
    single rows take the place of clusters: the interval then speaks of new rows of these clusters.

    Parameters
    ----------
    folds : sequence of FoldLosses
    iid_losses : iterable of array
    resampler : Resampler
    repeats : int
        How many assignments of clusters the folds consist of.
    tails : tuple of Tail
        Measured along with it.
    """
    parts = assemble_curve(folds, resampler, repeats)
    clusters, few = resampler.clusters, resampler.few_clusters
    units = np.arange(len(clusters)) if few else clusters
    fragments, broken = fragment_losses(
        [fold.seen for fold in folds], clusters, units, resampler.fragments
    )
    return Measurement(
        curve=parts.curve,
        fold_curves=parts.fold_curves,
        weights=tuple(float(weight) for weight in parts.weights),
        fragments=fragments,
        loco=_loco(folds, parts, resampler),
        loco_stderr=float(np.sqrt(np.array(parts.curve.covariance)[0, 0])),
        iid=float(np.mean(np.concatenate(list(iid_losses)))),
        test_losses=(gather_test_losses(folds, clusters),),
        row_losses=tuple(fold.loco.means[:, 0] for fold in folds),
        units=UnitLosses(
            unit="rows" if few else "clusters",
            ids=parts.used,
            share=parts.share,
            curve=parts.influence,
            fragments=broken[parts.used],
        ),
        tails=tails,
    )


def _loco(folds: Sequence[FoldLosses], parts: "Curves", resampler: Resampler) -> float:
    if resampler.n_train is not None:  # one sample of T̂ a fold is noisy, level 0 has many
        return parts.curve.loss[0]
    return float(np.dot(parts.weights, [fold.loco.means.mean() for fold in folds]))


@dataclass(frozen=True, kw_only=True)
class Curves:
    """The pooled loss curve and those of the folds.

    `influence` is what each of the units `used` adds, and `share` that of the validated rows which it
    has.
    """

    curve: LossCurve
    fold_curves: tuple[LossCurve, ...]
    weights: Array
    used: NDArray[np.intp]
    share: Array
    influence: Array


def assemble_curve(folds: Sequence[FoldLosses], resampler: Resampler, repeats: int) -> Curves:
    """Return the loss curve of one loss; see `assemble`."""
    clusters, few = resampler.clusters, resampler.few_clusters
    sizes = np.array([len(fold.fold.validation) for fold in folds])
    weights = sizes / sizes.sum()
    lines = [_held_back_line(fold, resampler) for fold in folds]
    curves = tuple(
        _fold_curve(fold, line, resampler) for fold, line in zip(folds, lines, strict=True)
    )
    mean = np.array(pooled([curve.loss for curve in curves], list(weights)))
    rows = np.zeros(resampler.n_units, dtype=np.intp)
    parts = np.zeros((resampler.n_units, 2 * len(mean)))
    for fold, line, weight in zip(folds, lines, weights, strict=True):
        parts += weight * _influence(fold, line, resampler, None if few else mean)
        rows += np.bincount(resampler.units_of(fold.fold.validation), minlength=resampler.n_units)
    used = np.flatnonzero(rows)
    influence = parts[used]
    covariance = robust_covariance(influence)
    curve = _pool(
        curves, weights, covariance, max(1, len(used) - 1), sharpness_of(clusters), repeats
    )
    return Curves(
        curve=curve,
        fold_curves=curves,
        weights=weights,
        used=used,
        share=rows[used] / rows.sum(),
        influence=influence,
    )


def sharpness_of(clusters: NDArray[np.intp]) -> int:
    """Return the highest power with which the loss curve can fall, from the cluster sizes.

    A row with m - 1 others in its cluster meets J ~ Binomial(m - 1, r) of them in training at
    exposure r, so its expected loss is a polynomial of degree m - 1 in 1 - r. The size that 95 %
    of the rows stay below stands for m, and 25 is the most.
    """
    sizes = np.bincount(clusters)[clusters]
    return int(np.clip(np.quantile(sizes, 0.95) - 1, 1, SHARPNESS))


def _held_back_line(fold: FoldLosses, resampler: Resampler) -> tuple[Array, Array]:
    """Fit a line to the loss on T̂ ∖ T' over the levels; return it and its linear map.

    T̂ ∖ T' is empty at level 0 when T' is all of T̂, and small at low levels; the loss there hardly
    bends, so a line through all levels, weighted by rows, serves.
    """
    exposure = np.array(resampler.exposures)
    held = fold.held_back(resampler)
    counts = held.counts.sum(axis=0).astype(float)
    mean = np.divide(held.sums.sum(axis=0), counts, out=np.zeros_like(counts), where=counts > 0)
    design = np.column_stack([np.ones_like(exposure), exposure])
    weighted = design * counts[:, None]
    hat = design @ np.linalg.pinv(weighted.T @ design) @ weighted.T
    return hat @ mean, hat


def _fold_curve(fold: FoldLosses, line: tuple[Array, Array], resampler: Resampler) -> LossCurve:
    n_train = resampler.n_train or len(fold.fold.training)
    n_validation = len(fold.fold.validation)
    exhausted = 1.0 if resampler.scheme == "replace" else min(1.0, n_validation / n_train)
    variances = fold.fit_variances
    variances[0] = 0.0 if np.isnan(variances[0]) else variances[0]
    known = variances[1:][np.isfinite(variances[1:])]  # failures may leave a level a single refit
    variances[np.isnan(variances)] = known.max() if known.size else 0.0
    return LossCurve(
        injected=tuple(exposure * exhausted for exposure in resampler.exposures),
        loss=tuple(np.nanmean(fold.validation.means, axis=0)),
        stderr=tuple(np.sqrt(variances / np.array(fold.fits))),
        n_train=n_train,
        fits=fold.fits,
        exhausted_at=exhausted,
        training_loss=tuple(line[0]),
    )


def _influence(
    fold: FoldLosses, line: tuple[Array, Array], resampler: Resampler, mean: Array | None
) -> Array:
    """Return what each unit adds to the losses and held-back losses of a fold, as deviations.

    Deviations are from the mean of all folds, or from that of the fold where its cluster is given.
    """
    means = fold.validation.means
    centre = np.nanmean(means, axis=0) if mean is None else mean
    scored = np.isfinite(means).sum(axis=0)
    deviation = np.nan_to_num(means - centre) / np.maximum(scored, 1)
    own = by_unit(deviation, resampler.units_of(fold.validation.rows), resampler.n_units)
    held = fold.held_back(resampler)
    totals = np.maximum(held.counts.sum(axis=0), 1)
    ratio = held.sums.sum(axis=0) / totals
    deviation = ((held.sums - ratio * held.counts) / totals) @ line[1].T
    other = by_unit(deviation, held.units, resampler.n_units)
    return np.hstack([own, other])


def _pool(
    curves: Sequence[LossCurve],
    weights: Array,
    covariance: Array,
    freedom: int,
    sharpness: int,
    repeats: int,
) -> LossCurve:
    shares = list(weights)
    variance = pooled(
        [[error**2 for error in c.stderr or ()] for c in curves], [w**2 for w in shares]
    )
    return LossCurve(
        injected=pooled([c.injected for c in curves], shares),
        loss=pooled([c.loss for c in curves], shares),
        stderr=tuple(np.sqrt(variance)),
        n_train=round(sum(w * c.n_train for w, c in zip(shares, curves, strict=True))),
        fits=tuple(
            repeats * min(c.fits[level] for c in curves if c.fits) for level in range(len(variance))
        ),
        exhausted_at=min(1.0, float(np.dot(shares, [c.exhausted_at for c in curves]))),
        training_loss=pooled([c.training_loss or () for c in curves], shares),
        covariance=tuple(map(tuple, covariance.tolist())),
        degrees_of_freedom=freedom,
        sharpness=sharpness,
    )
