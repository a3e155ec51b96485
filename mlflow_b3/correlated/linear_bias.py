"""The bias of cross-validation for linear smoothers under squared loss, in closed form."""

from collections.abc import Sequence

import numpy as np

from mlflow_b3.correlated.bias import Bias
from mlflow_b3.correlated.moments import check_size
from mlflow_b3.correlated.spatial import regional_field
from mlflow_b3.correlated.structure import Array, Codes, Structure, WorkingModel
from mlflow_b3.errors import choose

Folds = Sequence[tuple[Codes, Codes]]
#: What a learner takes rows for: independent, or correlated as they are.
COVARIANCES = ("independence", "mixed")


class Smoother:
    """Weighted least squares as a linear map from targets to coefficients.

    Parameters
    ----------
    phi : array (n, d)
        Features, with the intercept among them.
    slope : array (n,)
        Derivative of the mean of a target in its linear predictor.
    covariance : array (n, n) or None
        Of the targets, as the learner takes it; None for diag(slope).
    penalty : array (d,) or None
        Diagonal λ of the ridge penalty λ β²/2 on each coefficient.

    Notes
    -----
    The rows that are not in training are deleted from the covariance, and then it is inverted. One
    inverse of the whole serves all folds, by the Schur complement of what is deleted.
    """

    def __init__(
        self, phi: Array, slope: Array, covariance: Array | None, penalty: Array | None
    ) -> None:
        self._phi, self._weighted = phi, phi * slope[:, None]
        self._inverse = None if covariance is None else np.linalg.inv(covariance)
        self._penalty = np.zeros(phi.shape[1]) if penalty is None else np.asarray(penalty, float)

    def coefficients(self, training: Codes) -> tuple[Array, Array]:
        """Return (Φ'DV⁻¹DΦ + λ)⁻¹ Φ'DV⁻¹, and the inverse itself, for these rows."""
        scored = self._phi[training]  # DV⁻¹ is the identity where rows are independent
        if self._inverse is not None:
            left_out = np.setdiff1d(np.arange(len(self._phi)), training)
            kept = self._inverse[np.ix_(training, training)] @ self._weighted[training]
            mixed = self._inverse[np.ix_(left_out, training)]
            removed = np.linalg.solve(
                self._inverse[np.ix_(left_out, left_out)], mixed @ self._weighted[training]
            )
            scored = kept - mixed.T @ removed
        bread = np.asarray(
            np.linalg.inv(self._weighted[training].T @ scored + np.diag(self._penalty))
        )
        return bread @ scored.T, bread

    def bias(self, folds: Folds, excess: Array) -> float:
        """Return (1/n) Σ H_ij excess_ij over rows i of validation and j of their training."""
        total = sum(
            float(
                np.vdot(
                    self._phi[held] @ self.coefficients(training)[0], excess[np.ix_(held, training)]
                )
            )
            for training, held in folds
        )
        return total / sum(len(held) for _, held in folds)


def linear_bias(
    phi: Array,
    model: WorkingModel,
    structure: Structure,
    folds: Folds,
    *,
    penalty: Array | None = None,
    covariance: str = "independence",
) -> Bias:
    """Return w of squared loss for least squares, ridge or generalised least squares.

    Parameters
    ----------
    phi : array (n, d)
        Features of the learner, with the intercept among them.
    model : WorkingModel
    structure : Structure
    folds : sequence of (training rows, validation rows)
    penalty : array (d,), optional
        Diagonal λ of the ridge penalty, 0 for the intercept.
    covariance : {"independence", "mixed"}
        What the learner takes rows for.

    Notes
    -----
    w = (2/n) Σ_ij H_ij (V_ij - Cov(y_te,i , y_j)) with the hat matrix H of cross-validation; exact,
    without simulation, and whatever the mean f is.
    """
    check_size(len(phi), "fast")
    choose("covariance", covariance, COVARIANCES)
    shared, excess = _covariances(model, structure)
    whole = None
    if covariance == "mixed":
        whole = shared + excess + np.diag(np.full(len(phi), (model.noise or 0.0) ** 2))
    smoother = Smoother(phi, np.ones(len(phi)), whole, penalty)
    return Bias(value=2.0 * smoother.bias(folds, excess), error=0.0, draws=0)


def _covariances(model: WorkingModel, structure: Structure) -> tuple[Array, Array]:
    """Return the covariance of effects that use will share with training rows, and of the others."""
    n = structure.n_rows
    shared, excess = np.zeros((n, n)), np.zeros((n, n))
    if structure.field is not None:
        assert model.reach is not None
        field = regional_field(structure.field, model.sd[0], model.reach)
        shared += field.across
        for rows, root in zip(field.rows, field.roots, strict=True):
            excess[np.ix_(rows, rows)] = root @ root
        return shared, excess
    for level, sd in zip(structure.levels, model.sd, strict=True):
        part = excess if level.new else shared
        part += sd**2 * np.equal.outer(level.codes, level.codes)
    return shared, excess
