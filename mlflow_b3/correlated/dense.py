"""The inverse of a dense matrix from its Cholesky factor."""

import numpy as np
from scipy.linalg.lapack import dpotri

from mlflow_b3.correlated.structure import Array


def inverse_of(lower: Array) -> Array:
    """Return the inverse of L L', at a third of the cost of solving for the identity."""
    inverse, _ = dpotri(lower, lower=1)
    return np.asarray(np.tril(inverse) + np.tril(inverse, -1).T, dtype=float)
