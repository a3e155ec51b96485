"""The extrapolation problem that every estimator solves: leak shares, unmixing and noise."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from mlflow_b3.errors import InputError
from mlflow_b3.measurement.curve import LossCurve
from mlflow_b3.results import Result

# --- The share of pattern `fragments`, a type of its own so that it is not used for pattern `rows`


@dataclass(frozen=True, kw_only=True)
class SeenShare(Result):
    """s: the share of the validation rows whose true cluster also has rows in training.

    It is the share of pattern `fragments`, for `estimate_fragments` only. The shares p_T and p_V of
    pattern `rows` count misplaced rows, which meet all of their cluster on the other side. A seen
    share in their place would over-correct severely.

    Attributes
    ----------
    share : float
        In [0, 1).

    Examples
    --------
    >>> import mlflow_b3 as b3
    >>> losses = b3.FragmentLosses(loss=0.30, seen_loss=0.22)
    >>> round(b3.estimate_fragments(losses, seen_share=b3.SeenShare(share=0.2)).e0, 2)
    0.32
    """

    share: float

    def __post_init__(self) -> None:
        """Check the shares."""
        if not 0 <= self.share < 1:  # NaN fails too
            raise InputError(f"share={self.share!r} must lie in [0, 1).")


def refuse_seen(name: str, value: object) -> None:
    """Raise an `InputError` if a share of pattern `fragments` is given to pattern `rows`."""
    values = value if isinstance(value, (tuple, list)) else (value,)
    if any(isinstance(item, SeenShare) for item in values):
        raise InputError(
            f"{name}={value!r} is a share of pattern fragments: validation rows with some mate in "
            "training. p0, p0_validation and rates are other shares, and the row formulas would "
            "over-correct severely with this one. Use estimate_fragments(losses, seen_share=…)."
        )


# --- The noise of a loss curve, estimated from the curve itself

Array = NDArray[np.float64]

#: From this many levels on, the roughness of a curve is a good enough estimate of its noise.
ENOUGH_LEVELS = 12
HIGHEST_DEGREE = 7
FEWEST_LEVELS = 5
#: From this z-score on, losses and their standard errors count as correlated.
ASSOCIATED_Z = 1.645
#: Largest ratio of the noise of single refits between levels.
LARGEST_RATIO = 10.0
SMOOTH_POWERS = (0, 1, 2, 3, 4, 6, 8, 12, 17, 24)


def noise_scale(exposure: Array, loss: Array, stderr: Array) -> float:
    """Return the factor that scales the stated standard errors to the noise of the curve.

    It is the root mean square of the standardised residuals from a smooth curve: a polynomial or a
    non-negative sum of powers (1-x)^k, whichever fits better. It is 1 with fewer than 12 levels.
    """
    levels = len(loss)
    if levels < ENOUGH_LEVELS:
        return 1.0
    degree = min(HIGHEST_DEGREE, levels // 3)
    rough = _residuals(exposure, loss, stderr, degree)
    scale = float(rough @ rough) / (levels - degree - 1)
    design = (1 - exposure)[:, None] ** np.array(SMOOTH_POWERS) / stderr[:, None]
    weights, norm = nnls(design, loss / stderr, maxiter=100 * design.shape[1])
    scale = min(scale, float(norm) ** 2 / (levels - np.count_nonzero(weights)))
    return float(np.sqrt(max(scale, 1e-12)))


def smooth_errors(exposure: Array, loss: Array, stderr: Array, fits: Array) -> Array:
    """Return standard errors, smoothed over the levels if they correlate with the losses.

    Skewed losses have means and standard errors that are low together by chance. Weighting levels
    by their own standard errors then favours levels that are too low, and e_0 is less accurate than
    with equal weights. The test is a correlation between the residuals of losses and standard errors
    from smooth curves (one-sided, at 5%, with 12 levels or more). If it rejects, the logarithm of
    the variance of a single refit is replaced by a parabola over the exposure, and no level counts
    as less than a tenth as noisy as the noisiest. Otherwise standard errors are left unchanged.

    Parameters
    ----------
    exposure, loss, stderr : array
        All standard errors must be positive.
    fits : array
        The number of refits at each level; ones if unknown.
    """
    levels = len(stderr)
    if levels < ENOUGH_LEVELS:
        return stderr
    variance = stderr**2 * fits
    root = np.sqrt(np.maximum(fits - 1, 1))[:, None]
    design = np.polynomial.chebyshev.chebvander(_rescale(exposure), 2)
    logarithm = np.log(variance)
    found, *_ = np.linalg.lstsq(design * root, logarithm * root[:, 0], rcond=None)
    smooth = np.exp(design @ found)
    # the mean logarithm of estimated variances is below the logarithm of their mean
    smooth *= np.average(variance / smooth, weights=fits)
    degree = min(HIGHEST_DEGREE, levels // 3)
    rough = _residuals(exposure, loss, np.sqrt(smooth / fits), degree)
    with np.errstate(invalid="ignore"):  # NaN if all standard errors are equal
        correlation = float(np.corrcoef(rough, logarithm - np.log(smooth))[0, 1])
    if not correlation > ASSOCIATED_Z / np.sqrt(levels - degree - 1):
        return stderr
    smooth = np.maximum(smooth, float(smooth.max()) / LARGEST_RATIO**2)
    return np.asarray(np.sqrt(smooth / fits))


def noise_of(exposure: Array, loss: Array) -> Array:
    """Estimate the standard errors of a curve that has none from its roughness.

    Notes
    -----
    The squared residuals from a polynomial are averaged over the quarter of the levels around each
    level. This is done twice; the second polynomial is weighted by the first result. With five to
    eleven levels there is one common standard error.

    Raises
    ------
    InputError
        With fewer than five levels, which cannot separate noise from curvature.
    """
    levels = len(loss)
    if levels < FEWEST_LEVELS:
        raise InputError(
            f"the curve has {levels} levels and no stderr; give stderr, or measure at least "
            f"{FEWEST_LEVELS} levels."
        )
    if levels < ENOUGH_LEVELS:
        rough = _residuals(exposure, loss, np.ones(levels), 2)
        return np.full(levels, np.sqrt(rough @ rough / (levels - 3)))
    degree = min(HIGHEST_DEGREE, levels // 3)
    near = np.abs(np.subtract.outer(np.arange(levels), np.arange(levels))) <= levels // 8
    stderr = np.ones(levels)
    for _ in range(2):
        squares = (stderr * _residuals(exposure, loss, stderr, degree)) ** 2
        variance = near @ squares / near.sum(axis=1) * levels / (levels - degree - 1)
        floor = 1e-4 * float(variance.max()) + np.finfo(float).tiny
        stderr = np.sqrt(np.maximum(variance, floor))
    return np.asarray(stderr)


def _residuals(exposure: Array, loss: Array, stderr: Array, degree: int) -> Array:
    design = np.polynomial.chebyshev.chebvander(_rescale(exposure), degree) / stderr[:, None]
    values = loss / stderr
    return np.asarray(values - design @ np.linalg.lstsq(design, values, rcond=None)[0])


def _rescale(exposure: Array) -> Array:
    """Rescale the exposures to [-1, 1]."""
    return np.asarray(2 * (exposure - exposure[0]) / max(float(np.ptp(exposure)), 1e-12) - 1)


# --- Leak shares of the folds, and the loss curve of the true validation clusters


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
        """Check the shares."""
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
    """Return the leak shares of a fold if a share q of all rows has a wrong cluster id.

    Under uniform error a wrong id belongs to either side in proportion to its rows:
    p_T = q·|V̂|/N and p_V = q·|T̂|/N with N = |T̂| + |V̂|.

    Notes
    -----
    The model is that a share q of the rows gets the id of a random row, which can be the row's own
    cluster. With few clusters that is not rare. If q counts only ids that are actually wrong, give
    q/(1 - Σ_g (n_g/N)²) instead, where n_g is the number of rows of cluster g.
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
        Standard errors over refits; all positive.
    covariance : numpy.ndarray
        Covariance of `loss` from all sources: refits, choice of clusters, and which rows leaked.
    target : float
        x* ≤ 0: e_0 = ℓ_V(x*).
    freedom : float
        Degrees of freedom of `covariance`; infinite if it covers refits only.
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
    """Remove the share of training clusters from the loss on V̂, and locate the point without leakage.

    With ℓ_V̂ measured on V̂ ∖ T' and ℓ_T̂ on T̂ ∖ T' from the same refits,

        ℓ_V(π) = [(1-p_T)·ℓ_V̂(π) - p_V·ℓ_T̂(π)] / (1-p_T-p_V),   e_0 = ℓ_V(-p_T/(1-p_T-p_V)),

    because the true leaked share of T' is (1-π)·p_T + π·(1-p_V). This replaces the
    (n'_T+1)(n'_V+1) levels of the papers' algorithm 3 by the levels of algorithm 1.

    Parameters
    ----------
    curve : LossCurve
        The curve pooled over folds. It provides the covariance, sharpness and sizes.
    shares : LeakShares or one per fold
    fold_curves, weights
        The curves of single folds and their weights. The identity is applied to each fold and the
        results are averaged. Without them it is applied to the pooled curve.
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
    stderr = own * _refit_errors(curve)
    covariance = (
        _cluster_covariance(curve, own, other)
        + np.diag(stderr**2)
        + _leak_set_covariance(curve, exposure, stderr, target)
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


@lru_cache(maxsize=8)  # the result does not depend on the leaked share
def _refit_errors(curve: LossCurve) -> Array:
    """Return the standard errors of the refits: as stated, or larger if the curve is rougher."""
    exposure, loss = np.array(curve.exposure), np.array(curve.loss)
    if curve.stderr is None:
        return _make_positive(noise_of(exposure, loss), loss)
    stderr = _make_positive(_smooth_stated_errors(curve), loss)
    return stderr * max(1.0, noise_scale(exposure, loss, stderr))


def _smooth_stated_errors(curve: LossCurve) -> Array:
    """Return the stated standard errors, smoothed over the levels that have noise."""
    stderr, exposure, loss = (np.array(v) for v in (curve.stderr, curve.exposure, curve.loss))
    noisy = stderr > _rounding_error(loss)
    if curve.covariance is not None and curve.exhausted_at < 1:
        noisy[0] = False  # level 0 is T̂ itself: only the learner's own randomness varies there
    fits = np.ones(len(stderr)) if curve.fits is None else np.array(curve.fits, dtype=float)
    stderr[noisy] = smooth_errors(exposure[noisy], loss[noisy], stderr[noisy], fits[noisy])
    return stderr


def _make_positive(stderr: Array, loss: Array) -> Array:
    """Give levels without noise, apart from rounding, half the smallest noise of the others."""
    rounding = _rounding_error(loss)
    noisy = stderr[stderr > rounding]
    return np.maximum(stderr, noisy.min() / 2 if noisy.size else rounding)


def _rounding_error(loss: Array) -> float:
    return 1e-9 * max(1e-3, float(np.abs(loss).max()))


def _cluster_covariance(curve: LossCurve, own: float, other: float) -> Array:
    levels = len(curve.loss)
    if curve.covariance is None:
        return np.zeros((levels, levels))
    joint = np.array(curve.covariance)
    weights = own * np.eye(levels)
    if len(joint) == 2 * levels:
        weights = np.hstack([weights, -other * np.eye(levels)])
    return np.asarray(weights @ joint @ weights.T)


def _leak_set_covariance(curve: LossCurve, exposure: Array, stderr: Array, target: float) -> Array:
    """Return the covariance due to the particular set of rows that leaked.

    No number of refits averages it out. A refit at exposure |x*| injects another set of that size,
    so the variance over such refits is the variance over leak sets. It decreases as injected rows
    take over, as (1-x)⁶.
    """
    levels = len(exposure)
    if target == 0 or curve.fits is None or levels < 2 or curve.covariance is None:
        return np.zeros((levels, levels))
    per_fit = stderr**2 * np.array(curve.fits)
    per_fit[0] = 0.0
    variance = float(np.interp(-target, exposure, per_fit))
    fade = np.clip(1 - exposure, 0, 1) ** 6
    return variance * np.outer(fade, fade)
