"""The likelihood of one level of random intercepts by adaptive Gauss-Hermite quadrature."""

import numpy as np
from scipy.special import expit, logsumexp

from mlflow_b3.correlated.intercepts import Intercepts
from mlflow_b3.correlated.joint_mode import Evaluation, joint_mode
from mlflow_b3.correlated.structure import Array

#: Nodes for each group.
NODES = 15


def adaptive_quadrature(
    target: Array,
    levels: Intercepts,
    sd: Array,
    *,
    offset: Array,
    start: Array | None = None,
) -> Evaluation:
    """Integrate the intercept of each group out, with nodes around its most likely value.

        L_j = ∫ Π_i p(y_i | o_i + sd v) φ(v) dv,   v_k = v̂_j + √2 x_k / √(curvature of j)

    Notes
    -----
    Laplace's approximation is the same with one node, and is biased towards small sd where groups have
    few rows. The derivatives are those of the integral, by the same nodes; how the nodes move with the
    arguments is left out, which changes them by no more than the error of the quadrature.
    """
    points, weights = np.polynomial.hermite.hermgauss(NODES)
    nothing = np.zeros(0)
    mode = joint_mode(
        target,
        np.empty((len(target), 0)),
        levels,
        sd,
        penalty=np.empty((0, 0)),
        offset=offset,
        start=None if start is None else (nothing, start),
    )
    width = np.sqrt(2 / mode.curvature.diagonal)
    nodes = mode.effects[:, None] + width[:, None] * points
    codes = levels.codes[0]
    chance, heights = np.empty((len(target), NODES)), np.empty_like(nodes)
    for k in range(NODES):
        log_odds = offset + sd[0] * nodes[codes, k]
        chance[:, k] = expit(log_odds)
        heights[:, k] = levels.sums(target * log_odds - np.logaddexp(0.0, log_odds))
    # the density of a standard normal, less the weight function of the nodes
    heights += -(nodes**2) / 2 + points**2 + np.log(weights) - np.log(2 * np.pi) / 2
    heights += np.log(width)[:, None]
    logs = logsumexp(heights, axis=1)
    share = np.exp(heights - logs[:, None])
    slopes = levels.sums(target[:, None] - chance)
    return Evaluation(
        value=float(logs.sum()),
        sd_slope=np.array([float((share * nodes * slopes).sum())]),
        offset_slope=target - (share[codes] * chance).sum(axis=1),
        coefficients=nothing,
        effects=mode.effects,
        converged=mode.converged,
    )
