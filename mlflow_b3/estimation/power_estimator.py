"""The estimator for loss curves, `power`: an average of lines, parabolas and smooth sums of powers."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls
from scipy.special import softmax

from mlflow_b3.estimation.problem import Extrapolation, noise_scale

Array = NDArray[np.float64]

POWERS = np.array([1, 2, 3, 4, 5, 6, 8, 10, 12, 15, 19, 24], dtype=float)
#: Prior probabilities of the kinds of curves: constant, line, parabola, smooth sum of powers.
CONSTANT, LINE, PARABOLA, SMOOTH = 0.2, 0.2, 0.2, 0.4
#: Prior standard deviation of the coefficients of line and parabola, as a multiple of the observed
#: change of the loss.
FREE_CHANGES = 4.0
#: Prior standard deviations of the weights of a smooth sum, in the same unit.
SCALES = np.geomspace(0.03, 3, 8)
LARGEST_AMPLIFICATION = 8.0
SMALLEST_NOISE = 1e-5


@dataclass(frozen=True, kw_only=True)
class PowerFit:
    """A fitted curve b(x) = Σ_k a_k (1-x)^k. One fit serves every target.

    Attributes
    ----------
    powers : numpy.ndarray
        k, from 0.
    free, smooth : numpy.ndarray
        a_k of constant, line and parabola, and of the smooth sums.
    target : float
        x*, where no row is leaked.
    """

    powers: Array
    free: Array
    smooth: Array
    target: float

    @property
    def e0(self) -> float:
        """b(x*): the loss on new clusters."""
        return float(self.read(np.array([self.target]))[0])

    def read(self, targets: Array) -> Array:
        """Return e_0 for each target x* ≤ 0."""
        gain = (1 - targets)[:, None] ** self.powers
        return np.asarray(gain @ self.free + _limit_amplification(gain) @ self.smooth)

    def at(self, exposure: Array) -> Array:
        """Return the fitted curve at the given exposures."""
        return np.asarray((1 - exposure)[:, None] ** self.powers @ (self.free + self.smooth))

    def losses(self, leaked: Array, leakable: int) -> Array:
        """Return e_j: the loss with j of the `leakable` rows in training.

        Let r = (x-x*)/(1-x*) be the share of those rows that is in training. Then
        1-x = (1-x*)(1-r), and (1-r)^k is the mean over j of C(m-j, k)/C(m, k), the probability
        that k given rows are absent if j of m are present.
        """
        values = np.zeros(len(leaked))
        gains = np.asarray((1 - self.target) ** self.powers)
        weights = gains * self.free + _limit_amplification(gains) * self.smooth
        for power, weight in zip(self.powers, weights, strict=True):
            steps = np.arange(int(power))
            present = np.clip(leakable - leaked[:, None] - steps, 0, None)
            absent = np.prod(present / np.maximum(leakable - steps, 1), axis=1)
            values += weight * absent
        return values


def _limit_amplification(gain: Array) -> Array:
    """Limit amplifications smoothly to the largest trusted one."""
    with np.errstate(over="ignore"):
        return np.asarray(gain / (1 + (gain / LARGEST_AMPLIFICATION) ** 4) ** 0.25)


def fit_power(problem: Extrapolation) -> PowerFit:
    """Fit b(x) = Σ_k a_k (1-x)^k to a loss curve, averaged over how the a_k are distributed.

    Notes
    -----
    (1-r)^k is the probability that k given rows of the validation clusters are all absent from
    training at exposure r, so sums with a_k ≥ 0 are the curves whose derivatives alternate in
    sign. Four kinds of curves are fitted and averaged with their posterior probabilities: a
    constant; a line, which may also rise; a parabola if it rises or bends down, because a leaked
    row can hurt; and smooth sums of the powers 1 … 24 with a_k ≥ 0. The prior of a smooth sum is a
    Gaussian process over log k with correlation exp(-|Δ log k|), at eight scales. It is fitted by
    non-negative least squares. The amplification of a power at the target, (1-x*)^k, levels off at
    8; beyond that, e_0 would depend on changes too small to measure. The fit does not depend on p0,
    e_0 never falls as p0 grows if the curve falls, and the cost does not depend on n'. With 12
    levels or more, the scale of the noise is estimated from the curve itself, so wrong standard
    errors do little harm.

    Departures from the original design: correlated instead of independent weights (real loss curves
    spread over many powers), parabolas, marginal likelihoods with everything but the constant
    integrated out (for smooth sums around the non-negative weights, by Laplace's approximation),
    and a limit on the amplification instead of on the powers. docs/estimators.md describes the data
    behind these choices.
    """
    powers = POWERS[max(1, min(problem.sharpness, problem.leakable)) >= POWERS]
    design, loss, constant, means, noise = _centre(problem, powers)
    seen, _ = nnls(design, loss, maxiter=100 * len(powers))
    change = max(float(seen.sum()), float(np.ptp(problem.loss)), 2 * noise)
    chances = [np.log(CONSTANT)]
    weights = [np.zeros(len(powers))]
    for size, prior in ((1, LINE), (2, PARABOLA)):
        if len(powers) >= size:
            free, evidence = _fit_polynomial(design[:, :size], loss, FREE_CHANGES * change)
            if size == 2 and (free >= 0).all():
                continue  # a falling convex parabola is also a smooth sum
            weights.append(np.append(free, np.zeros(len(powers) - size)))
            chances.append(np.log(prior) + evidence)
    n_free = len(weights)
    if len(powers) > 1:
        shape = _smooth_covariance(powers)
        for scale in SCALES:
            spread, evidence = _fit_smooth_sum(design, loss, (scale * change) ** 2 * shape)
            weights.append(spread)
            chances.append(np.log(SMOOTH / len(SCALES)) + evidence)
    parts = softmax(np.array(chances))[:, None] * np.array(weights)
    free, smooth = parts[:n_free].sum(axis=0), parts[n_free:].sum(axis=0)
    return PowerFit(
        powers=np.append(0.0, powers),
        free=np.append(constant - means @ (free + smooth), free),
        smooth=np.append(0.0, smooth),
        target=problem.target,
    )


def _centre(problem: Extrapolation, powers: Array) -> tuple[Array, Array, float, Array, float]:
    """Whiten powers and losses, project out the constant, and reduce the number of rows.

    Returns the powers, the losses, the mean loss, the means of the powers (from which the constant
    follows) and the noise.
    """
    exposure, loss = problem.exposure, problem.loss
    noise = noise_scale(exposure, loss, problem.stderr) * problem.stderr
    # without a floor, rounding errors dominate the evidence of noise-free curves
    size = max(float(np.ptp(loss)), 1e-3 * float(np.abs(loss).max()))
    noise = np.maximum(noise, SMALLEST_NOISE * size)
    both = np.column_stack([(1 - exposure)[:, None] ** powers, loss])
    weights = noise**-2 / np.sum(noise**-2)
    means = weights @ both
    both = (both - means) / noise[:, None]
    if len(both) > both.shape[1]:
        both = np.asarray(np.linalg.qr(both, mode="r"), float)
    return both[:, :-1], both[:, -1], float(means[-1]), means[:-1], float(np.median(noise))


def _fit_polynomial(design: Array, loss: Array, spread: float) -> tuple[Array, float]:
    """Return the unconstrained coefficients of a polynomial, and its log evidence."""
    precision = spread**-2
    matrix = design.T @ design + precision * np.eye(design.shape[1])
    moment = design.T @ loss
    weights = np.asarray(np.linalg.solve(matrix, moment), float)
    _, determinant = np.linalg.slogdet(matrix / precision)
    return weights, float(moment @ weights - determinant) / 2


def _smooth_covariance(powers: Array) -> Array:
    distance = np.abs(np.subtract.outer(np.log(powers), np.log(powers)))
    return np.asarray(np.exp(-distance) + 1e-8 * np.eye(len(powers)))


def _fit_smooth_sum(design: Array, loss: Array, covariance: Array) -> tuple[Array, float]:
    """Return the non-negative weights of a smooth sum, and the log evidence of its scale."""
    total = np.eye(len(loss)) + design @ covariance @ design.T
    _, determinant = np.linalg.slogdet(total)
    root = np.linalg.cholesky(np.linalg.inv(covariance)).T
    stacked = np.vstack([design, root])
    padded = np.append(loss, np.zeros(len(root)))
    weights, norm = nnls(stacked, padded, maxiter=100 * len(root))
    # of these weights, not of unrestricted ones: those also fit curves that no weights >= 0 fit
    evidence = float(loss @ loss - norm**2 - determinant) / 2
    return weights, evidence
