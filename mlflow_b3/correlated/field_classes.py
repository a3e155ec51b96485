"""Laplace's approximation of a logistic regression with a random field."""

from dataclasses import dataclass, field

import numpy as np
from scipy.linalg import cho_solve, cholesky
from scipy.special import expit

from mlflow_b3.correlated.dense import inverse_of
from mlflow_b3.correlated.intercepts import Intercepts
from mlflow_b3.correlated.joint_mode import bernoulli, joint_mode
from mlflow_b3.correlated.structure import Array

#: Newton steps, halvings of one, and the gain in log likelihood that counts as none.
MOST_STEPS = 60
MOST_HALVINGS = 12
NO_GAIN = 1e-9
#: Weight of a row of certain class, which must not be 0.
LEAST_WEIGHT = 1e-12
#: Penalty on coefficients of columns of mean square 1, so that a separating one stays finite.
SMALLEST_RIDGE = 1e-8


@dataclass(kw_only=True)
class ClassField:
    """Classes 0 and 1 with a field of kernel σ² exp(-d/r) in their log odds.

    Attributes
    ----------
    target, columns, distances : array
        Columns uncorrelated, of mean square 1.
    weights : array or None
        K⁻¹ f at the last mode, where the next search begins.
    information : array (p, p)
        What the last evaluation knew of the coefficients; 1 for each of them before the first.
    converged : bool
        Whether the last mode was found.
    """

    target: Array
    columns: Array
    distances: Array
    weights: Array | None = None
    converged: bool = True
    information: Array = field(init=False)

    def __post_init__(self) -> None:
        """Know nothing yet."""
        self.information = np.eye(self.columns.shape[1])

    def first_coefficients(self) -> Array:
        """Return the coefficients without a field."""
        p, none = self.columns.shape[1], Intercepts([np.zeros(len(self.target), dtype=np.intp)])
        penalty = SMALLEST_RIDGE * np.eye(p)
        return joint_mode(
            self.target, self.columns, none, np.zeros(1), penalty=penalty
        ).coefficients

    def evaluate(self, beta: Array, spread: Array) -> tuple[float, Array, Array]:
        """Return the log likelihood at coefficients, σ and log r, and its slopes.

        Notes
        -----
        Rasmussen & Williams, Gaussian Processes for Machine Learning (2006), algorithms 3.1 and 5.1.
        """
        sd, reach = float(spread[0]), float(np.exp(spread[1]))
        kernel = sd**2 * np.exp(-self.distances / reach)
        offset = self.columns @ beta
        weights, effect, value, lower = self._mode(kernel, offset)
        chance = expit(offset + effect)
        weight = np.maximum(chance * (1 - chance), LEAST_WEIGHT)
        inverse = inverse_of(lower)
        variances = (1 - np.diag(inverse)) / weight
        root = np.sqrt(weight)
        smooth = root[:, None] * inverse * root
        pull = variances * weight * (1 - 2 * chance)
        spared = pull - smooth @ (kernel @ pull)
        changes = 2 * kernel / sd, kernel * self.distances / reach
        slopes = [
            (weights - spared) @ change @ weights / 2 - np.vdot(smooth, change) / 2
            for change in changes
        ]
        by_offset = self.target - chance - (pull - weight * (kernel @ spared)) / 2
        self.weights = weights
        self.information = self.columns.T @ smooth @ self.columns
        penalised = SMALLEST_RIDGE * beta
        value -= float(np.log(np.diag(lower)).sum() + beta @ penalised / 2)
        return value, self.columns.T @ by_offset - penalised, np.array(slopes)

    def _mode(self, kernel: Array, offset: Array) -> tuple[Array, Array, float, Array]:
        """Return K⁻¹ f and f where the field is most likely, its joint likelihood, and a factor.

        The factor is that of I + W^½ K W^½.
        """
        target, identity = self.target, np.eye(len(self.target))

        def at(weights: Array) -> tuple[Array, float]:
            effect = kernel @ weights
            return effect, bernoulli(target, offset + effect) - float(weights @ effect) / 2

        weights = np.zeros(len(target)) if self.weights is None else self.weights
        effect, value = at(weights)
        flat, lowest = at(np.zeros(len(target)))
        if lowest > value:  # the last mode, of another kernel, is a bad start
            weights, effect, value = np.zeros(len(target)), flat, lowest
        self.converged = False
        for _ in range(MOST_STEPS):
            chance = expit(offset + effect)
            weight = np.maximum(chance * (1 - chance), LEAST_WEIGHT)
            root = np.sqrt(weight)
            lower = cholesky(identity + root[:, None] * kernel * root, lower=True)
            if self.converged:
                break
            right = weight * effect + target - chance
            solved = cho_solve((lower, True), root * (kernel @ right))
            step = right - root * solved - weights
            gain = float(step @ kernel @ (target - chance - weights))
            length = 1.0
            for _ in range(MOST_HALVINGS):
                moved = weights + length * step
                there, new = at(moved)
                if new >= value - NO_GAIN:
                    break
                length /= 2
            weights, effect, value = moved, there, new
            self.converged = gain < NO_GAIN
        return weights, effect, value, lower
