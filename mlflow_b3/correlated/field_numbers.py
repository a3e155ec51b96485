"""Restricted likelihood of a linear regression with a random field."""

from dataclasses import dataclass

import numpy as np
from scipy.linalg import cho_factor, cho_solve, cholesky, eigh
from scipy.optimize import minimize_scalar

from mlflow_b3.correlated.dense import inverse_of
from mlflow_b3.correlated.structure import Array

#: Sum of squares of a target of variance 1 that columns tell without error.
NO_SQUARES = 1e-12


@dataclass(frozen=True, kw_only=True)
class NumberField:
    """Numbers with a field of kernel σ² exp(-d/r) and independent noise.

    Attributes
    ----------
    target, columns, distances : array
        Target of variance 1; columns uncorrelated, of mean square 1.
    """

    target: Array
    columns: Array
    distances: Array

    @property
    def freedom(self) -> int:
        """Rows less coefficients."""
        return int(len(self.target) - self.columns.shape[1])

    def evaluate(self, _: Array, spread: Array) -> tuple[float, Array, Array]:
        """Return the restricted log likelihood at σ over noise and log r, and its slopes.

        Coefficients and noise are at their best.
        """
        ratio, reach = float(spread[0]), float(np.exp(spread[1]))
        kernel = ratio**2 * np.exp(-self.distances / reach)
        lower = cholesky(kernel + np.eye(len(kernel)), lower=True)
        smooth = inverse_of(lower)
        crossed = smooth @ self.columns
        information = self.columns.T @ crossed
        smooth -= crossed @ np.linalg.solve(information, crossed.T)
        residual = smooth @ self.target
        squares = max(float(self.target @ residual), NO_SQUARES)
        determinants = 2 * np.log(np.diag(lower)).sum() + np.linalg.slogdet(information)[1]
        level = np.log(2 * np.pi * squares / self.freedom) + 1
        changes = 2 * kernel / ratio, kernel * self.distances / reach
        slopes = [
            float(self.freedom / squares * (residual @ change @ residual) - np.vdot(smooth, change))
            / 2
            for change in changes
        ]
        value = -float(self.freedom * level + determinants) / 2
        return value, np.zeros(0), np.array(slopes)

    def estimates(self, spread: Array) -> tuple[Array, float]:
        """Return coefficients and noise at σ over noise and log r."""
        ratio, reach = float(spread[0]), float(np.exp(spread[1]))
        kernel = ratio**2 * np.exp(-self.distances / reach)
        factor = cho_factor(kernel + np.eye(len(kernel)), lower=True)
        crossed = cho_solve(factor, self.columns)
        beta = np.linalg.solve(self.columns.T @ crossed, crossed.T @ self.target)
        residual = self.target - self.columns @ beta
        squares = max(float(residual @ cho_solve(factor, residual)), NO_SQUARES)
        return np.asarray(beta, dtype=float), float(np.sqrt(squares / self.freedom))


class NumberProfile:
    """The restricted likelihood in σ at one reach, with coefficients and noise at their best.

    The kernel is made diagonal once.
    """

    def __init__(self, field: NumberField, reach: float, noise: float) -> None:
        values, vectors = eigh(np.exp(-field.distances / reach))
        self.values = np.maximum(values, 0.0)
        self.target, self.columns = vectors.T @ field.target, vectors.T @ field.columns
        self.noise = noise

    def __call__(self, sd: float) -> float:
        """Return it at one σ."""

        def loss(log_noise: float) -> float:
            variances = sd**2 * self.values + np.exp(2 * log_noise)
            crossed = self.columns / variances[:, None]
            information = self.columns.T @ crossed
            beta = np.linalg.solve(information, crossed.T @ self.target)
            residual = self.target - self.columns @ beta
            fit = (residual**2 / variances + np.log(2 * np.pi * variances)).sum()
            constant = self.columns.shape[1] * np.log(2 * np.pi)
            return float(fit + np.linalg.slogdet(information)[1] - constant) / 2

        # a target of variance 1 leaves no more than that to the noise
        near = np.log(self.noise) - 3, max(np.log(self.noise), 0.0) + 1
        found = minimize_scalar(loss, bounds=near, method="bounded", options={"xatol": 1e-3})
        return -float(found.fun)
