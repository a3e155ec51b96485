"""Leak shares of the folds, and the loss curve of the true validation clusters that they imply."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from mlflow_b3.errors import InputError
from mlflow_b3.estimation.noise import noise_of, noise_scale, smooth_errors
from mlflow_b3.estimation.shares import refuse_seen
from mlflow_b3.measurement.curve import LossCurve
from mlflow_b3.results import Result

Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class LeakShares(Result):
    """Shares of misplaced rows in one fold, pattern `rows`.

    Attributes
    ----------
    p0 : float
        p_T: share of the rows in T̂ whose true cluster belongs to the validation side.
    p0_validation : float
        p_V: share of the rows in V̂ whose true cluster belongs to the training side.
    """

    p0: float
    p0_validation: float = 0.0

    def __post_init__(self) -> None:
        """Refuse shares that leave nothing to estimate from."""
        for name in ("p0", "p0_validation"):
            value = getattr(self, name)
            if not 0 <= value < 1:  # NaN fails too
                raise InputError(f"{name}={value!r} must lie in [0, 1).")
        if self.p0 + self.p0_validation >= 1:
            raise InputError(
                f"p0={self.p0:g} and p0_validation={self.p0_validation:g} add up to 1 or more: the "
                "two sides of the fold would be interchangeable. Use smaller shares."
            )

    @property
    def clean(self) -> float:
        """1 - p_T - p_V: how far the two sides still differ."""
        return 1.0 - self.p0 - self.p0_validation


def shares_of_cluster_error(error: float, n_training: int, n_validation: int) -> LeakShares:
    """Return the leak shares of a fold when a share q of all rows has a wrong cluster id.

    Under uniform error a wrong id belongs to either side in proportion to its rows:
    p_T = q·|V̂|/N and p_V = q·|T̂|/N with N = |T̂| + |V̂|.

    Notes
    -----
    The ids of a share q of the rows are taken to be drawn anew from all rows, which by chance can
    give a row its own cluster again. With few clusters that is not rare: if q counts ids that are
    really wrong, give q/(1 - Σ_g (n_g/N)²) instead, with n_g the rows of cluster g.
    """
    if not 0 <= error < 1:
        raise InputError(f"cluster_error={error!r} must lie in [0, 1).")
    total = n_training + n_validation
    return LeakShares(p0=error * n_validation / total, p0_validation=error * n_training / total)


@dataclass(frozen=True, kw_only=True)
class Extrapolation:
    """The curve ℓ_V over the exposure x, and the exposure at which no row is leaked.

    Attributes
    ----------
    exposure : numpy.ndarray
        x ≥ 0, the levels.
    loss : numpy.ndarray
        ℓ_V(x): loss on rows of the true validation clusters.
    stderr : numpy.ndarray
        Over refits; all positive.
    covariance : numpy.ndarray
        Of `loss`, everything included: refits, choice of clusters, which rows leaked.
    target : float
        x* ≤ 0: e_0 = ℓ_V(x*).
    freedom : float
        Degrees of freedom of `covariance`; infinite when it is refits only.
    sharpness : int
    leakable : int
        Rows of the validation clusters that could leak: the largest j of e_j.
    own, other : float
        ℓ_V = own · ℓ_V̂ - other · ℓ_T̂, on average over the folds.
    """

    exposure: Array
    loss: Array
    stderr: Array
    covariance: Array
    target: float
    freedom: float
    sharpness: int
    leakable: int
    own: float = 1.0
    other: float = 0.0


def unmix(
    curve: LossCurve,
    shares: LeakShares | Sequence[LeakShares],
    *,
    fold_curves: Sequence[LossCurve] = (),
    weights: Sequence[float] = (),
) -> Extrapolation:
    """Remove the training clusters' rows from V̂ and locate the point without leakage.

    With ℓ_V̂ measured on V̂ ∖ T' and ℓ_T̂ on T̂ ∖ T' from the same refits,

        ℓ_V(π) = [(1-p_T)·ℓ_V̂(π) - p_V·ℓ_T̂(π)] / (1-p_T-p_V),   e_0 = ℓ_V(-p_T/(1-p_T-p_V)),

    because the true leaked share of T' is (1-π)·p_T + π·(1-p_V). This replaces the
    (n'_T+1)(n'_V+1) levels of the papers' algorithm 3 by the levels of algorithm 1.

    Parameters
    ----------
    curve : LossCurve
        Pooled over folds; gives covariance, sharpness and sizes.
    shares : LeakShares or one per fold
    fold_curves, weights
        The single folds; the identity is applied to each and the results are averaged. Without
        them the pooled curve is all there is.
    """
    refuse_seen("shares", shares)
    folds = list(fold_curves) or [curve]
    parts = [1.0] if not fold_curves else list(weights)
    each = [shares] * len(folds) if isinstance(shares, LeakShares) else list(shares)
    loss = np.zeros(len(curve.loss))
    target = own = other = 0.0
    for fold, weight, share in zip(folds, parts, each, strict=True):
        if share.p0_validation and fold.training_loss is None:
            raise InputError(
                "p0_validation needs the loss on held-back training rows (training_loss) in the "
                "LossCurve; measure it, or use p0_validation=0."
            )
        keep = (1 - share.p0) / share.clean
        remove = share.p0_validation / share.clean
        loss += weight * keep * np.array(fold.loss)
        if remove:
            loss -= weight * remove * np.array(fold.training_loss)
        own += weight * keep
        other += weight * remove
        target -= weight * share.p0 / share.clean / fold.exhausted_at
    exposure = np.array(curve.exposure)
    stderr = own * _stated_or_seen(curve)
    covariance = (
        _clusters(curve, own, other)
        + np.diag(stderr**2)
        + _which_rows_leaked(curve, exposure, stderr, target)
    )
    total = sum(
        w * s.p0 + (1 - s.p0_validation) * w * f.exhausted_at
        for w, s, f in zip(parts, each, folds, strict=True)
    )
    return Extrapolation(
        exposure=exposure,
        loss=loss,
        stderr=stderr,
        covariance=covariance,
        target=target,
        freedom=np.inf if curve.degrees_of_freedom is None else float(curve.degrees_of_freedom),
        sharpness=curve.sharpness,
        leakable=max(1, min(curve.n_train, round(total * curve.n_train))),
        own=own,
        other=other,
    )


@lru_cache(maxsize=8)  # the same for every leaked share
def _stated_or_seen(curve: LossCurve) -> Array:
    """Return the noise of the refits: what is stated, or more where the curve is rougher."""
    exposure, loss = np.array(curve.exposure), np.array(curve.loss)
    if curve.stderr is None:
        return _positive(noise_of(exposure, loss), loss)
    stderr = _positive(_smoothed(curve), loss)
    return stderr * max(1.0, noise_scale(exposure, loss, stderr))


def _smoothed(curve: LossCurve) -> Array:
    """Return the stated standard errors, smooth over the levels that have noise."""
    stderr, exposure, loss = (np.array(v) for v in (curve.stderr, curve.exposure, curve.loss))
    noisy = stderr > _rounding(loss)
    if curve.covariance is not None and curve.exhausted_at < 1:
        noisy[0] = False  # T̂ as it is: what varies there is the learner's own chance only
    fits = np.ones(len(stderr)) if curve.fits is None else np.array(curve.fits, dtype=float)
    stderr[noisy] = smooth_errors(exposure[noisy], loss[noisy], stderr[noisy], fits[noisy])
    return stderr


def _positive(stderr: Array, loss: Array) -> Array:
    """Give levels without noise, rounding aside, half the smallest noise of the others."""
    rounding = _rounding(loss)
    noisy = stderr[stderr > rounding]
    return np.maximum(stderr, noisy.min() / 2 if noisy.size else rounding)


def _rounding(loss: Array) -> float:
    return 1e-9 * max(1e-3, float(np.abs(loss).max()))


def _clusters(curve: LossCurve, own: float, other: float) -> Array:
    levels = len(curve.loss)
    if curve.covariance is None:
        return np.zeros((levels, levels))
    joint = np.array(curve.covariance)
    weights = own * np.eye(levels)
    if len(joint) == 2 * levels:
        weights = np.hstack([weights, -other * np.eye(levels)])
    return np.asarray(weights @ joint @ weights.T)


def _which_rows_leaked(curve: LossCurve, exposure: Array, stderr: Array, target: float) -> Array:
    """Return the variance from the one set of rows that happened to leak.

    No number of refits averages it away. A refit at exposure |x*| injects another set of that
    size, so the variance over such refits is the variance over leak sets; it fades as injected
    rows take over, as (1-x)⁶.
    """
    levels = len(exposure)
    if target == 0 or curve.fits is None or levels < 2 or curve.covariance is None:
        return np.zeros((levels, levels))
    per_fit = stderr**2 * np.array(curve.fits)
    per_fit[0] = 0.0
    variance = float(np.interp(-target, exposure, per_fit))
    fade = np.clip(1 - exposure, 0, 1) ** 6
    return variance * np.outer(fade, fade)
