"""Estimators of the B3 papers: the full system of losses, and polynomials in its place."""

from dataclasses import dataclass

import numpy as np
from numpy.polynomial import Polynomial
from numpy.typing import NDArray

from mlflow_b3.estimation.sequences import binomial_matrix, solve_losses
from mlflow_b3.estimation.unmixing import Extrapolation

Array = NDArray[np.float64]

#: The most leaked rows for which the system is solved in full: beyond, rounding errors are larger
#: than what the papers' smoothing leaves to see, and decreasing losses take minutes.
LARGEST_SYSTEM = 1000
#: The same for an audit, which solves it some fifty times.
LARGEST_IN_AUDIT = 400


@dataclass(frozen=True, kw_only=True)
class PublishedFit:
    """What the fits of all published methods share.

    Attributes
    ----------
    target : float
        x*, where no row is leaked.
    reads : numpy.ndarray
        e_0 as a linear function of the measured losses, near these losses.
    accurate : bool
        False when a solver's result could not be confirmed.
    """

    target: float
    reads: Array
    accurate: bool = True

    @property
    def e0(self) -> float:
        """The loss on new clusters."""
        raise NotImplementedError

    def at(self, exposure: Array) -> Array:
        """Return the fitted curve at some exposures."""
        raise NotImplementedError

    def losses(self, leaked: Array, leakable: int) -> Array:
        """Return e_j: the loss with j of the `leakable` rows in training."""
        raise NotImplementedError

    @property
    def sketch_error(self) -> float | None:
        """The bound on the error of sketching; None where nothing is sketched."""
        return None


@dataclass(frozen=True, kw_only=True)
class BasisFit(PublishedFit):
    """A polynomial of the exposure."""

    polynomial: Polynomial

    @property
    def e0(self) -> float:
        """b(x*): the loss on new clusters."""
        return float(self.polynomial(self.target))

    def at(self, exposure: Array) -> Array:
        """Return the polynomial at some exposures."""
        return np.asarray(self.polynomial(exposure), float)

    def losses(self, leaked: Array, leakable: int) -> Array:
        """Return e_j = Σ_i c_i C(j, i)/C(m, i), whose binomial mean is Σ_i c_i r^i.

        The c_i are those of the polynomial in r, the share of the leakable rows in training.
        """
        values = np.zeros(len(leaked))
        by_share = self.polynomial(Polynomial([self.target, 1 - self.target]))
        for power, coefficient in enumerate(by_share.coef):
            steps = np.arange(power)
            falling = np.clip(leaked[:, None] - steps, 0, None) / np.maximum(leakable - steps, 1)
            values += coefficient * np.prod(falling, axis=1)
        return values


def fit_basis(problem: Extrapolation, order: int) -> BasisFit:
    """Fit a polynomial of some order by least squares and read it at no leakage.

    Notes
    -----
    Section 5 of the AISTATS 2019 paper solves for e_0 … e_n' in a basis of polynomials. Since
    b(p) = Σ_j Binom(j; n', p)·e_j maps polynomials of order s to polynomials of order s for every
    n' ≥ s, that is polynomial regression of b on p, read at p = 0: exact, and constant in n'.
    As in the paper all levels weigh the same, whatever their noise.
    """
    # the same polynomials in r and in x, but x is well spread for every leaked share
    inverse = np.linalg.pinv(np.vander(problem.exposure, order + 1, increasing=True))
    return BasisFit(
        target=problem.target,
        reads=problem.target ** np.arange(order + 1.0) @ inverse,
        polynomial=Polynomial(inverse @ problem.loss),
    )


@dataclass(frozen=True, kw_only=True)
class SequenceFit(PublishedFit):
    """All of e_0 … e_m."""

    sequence: Array

    @property
    def e0(self) -> float:
        """e_0: the loss on new clusters."""
        return float(self.sequence[0])

    def at(self, exposure: Array) -> Array:
        """Return Σ_j Binom(j; m, r)·e_j at some exposures."""
        share = leaked_share(exposure, self.target)
        return np.asarray(binomial_matrix(len(self.sequence) - 1, share) @ self.sequence)

    def losses(self, leaked: Array, leakable: int) -> Array:  # noqa: ARG002 - it is the sequence's
        """Return e_j for each number j of leaked rows."""
        return np.asarray(self.sequence[leaked.astype(int)])


def fit_sequence(
    problem: Extrapolation,
    *,
    order: int = 0,
    smoothing: float = 0.0,
    decreasing: bool = False,
    objective: str = "squared",
) -> SequenceFit:
    """Solve Ae = b, A_ij = Binom(j; m, r_i), for the losses e_0 … e_m; see `solve_losses`.

    Notes
    -----
    As in the papers all levels weigh the same. λ has no unit, but it is not free of scale: the fit
    ‖Ae-b‖ grows with the number of levels, and differences of order d shrink as m^(-d), so one λ
    smooths less and less as m grows. On the curves that the authors published (n' = 100; 15 for
    the synthetic ones) trend4+mono with the papers' λ = 10, 10 and 0.1 has mean absolute errors of
    e_0 of 0.0185, 0.0033 and 5.95 for heart, census and synthetic with the objective `norm`, which
    the authors' program minimises, and 0.0422, 0.0153 and 8.33 with `squared`, which the papers
    print.

    Without smoothing e_0 is hardly determined: the lowest level sees it with the weight (1-p0)^n',
    3·10⁻⁵ on the heart curves, where the exact minimisers of `mono` and `least-squares` have errors
    of 52 and 2·10⁹.
    """
    share = leaked_share(problem.exposure, problem.target)
    solution = solve_losses(
        binomial_matrix(problem.leakable, share),
        problem.loss,
        order=order,
        smoothing=smoothing,
        decreasing=decreasing,
        objective=objective,
    )
    return SequenceFit(
        target=problem.target,
        reads=solution.reads,
        accurate=solution.accurate,
        sequence=solution.losses,
    )


def leaked_share(exposure: Array, target: float) -> Array:
    """Return r, the papers' p: the share of the leakable rows that is in training."""
    return np.asarray((exposure - target) / (1 - target))
