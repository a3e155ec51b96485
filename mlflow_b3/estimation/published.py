"""Estimators of the B3 papers."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mlflow_b3.errors import InputError
from mlflow_b3.estimation.unmixing import Extrapolation

Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class BasisFit:
    """A polynomial b(r) = Σ_j c_j r^j in the share r of the leakable rows that is in training."""

    coefficients: Array
    target: float

    @property
    def e0(self) -> float:
        """b(0): the loss on new clusters."""
        return float(self.coefficients[0])

    def at(self, exposure: Array) -> Array:
        """Return the polynomial at some exposures."""
        share = _leaked(exposure, self.target)
        return np.asarray(np.polynomial.polynomial.polyval(share, self.coefficients), float)

    def losses(self, leaked: Array, leakable: int) -> Array:
        """Return e_j = Σ_i c_i C(j, i)/C(m, i), whose binomial mean is Σ_i c_i r^i."""
        values = np.zeros(len(leaked))
        for power, coefficient in enumerate(self.coefficients):
            steps = np.arange(power)
            falling = np.clip(leaked[:, None] - steps, 0, None) / np.maximum(leakable - steps, 1)
            values += coefficient * np.prod(falling, axis=1)
        return values


def fit_basis(problem: Extrapolation, order: int) -> BasisFit:
    """Fit a polynomial of some order by weighted least squares and read it at no leakage.

    Notes
    -----
    Section 5 of the AISTATS 2019 paper solves for e_0 … e_n' in a basis of polynomials. Since
    b(p) = Σ_j Binom(j; n', p)·e_j maps polynomials of order s to polynomials of order s for every
    n' ≥ s, that is polynomial regression of b on p, read at p = 0: exact, and constant in n'.
    """
    levels = len(problem.exposure)
    if levels < order + 1:
        raise InputError(
            f"method 'basis' of order {order} needs at least {order + 1} levels, the curve has "
            f"{levels}; measure more levels or lower the order."
        )
    share = _leaked(problem.exposure, problem.target)
    coefficients = np.polynomial.polynomial.polyfit(
        share, problem.loss, order, w=1 / problem.stderr
    )
    return BasisFit(coefficients=np.asarray(coefficients, float), target=problem.target)


def _leaked(exposure: Array, target: float) -> Array:
    return np.asarray((exposure - target) / (1 - target))
