"""Training losses of networks whose rows share random effects: by group, and by pairs of rows."""

import sys
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.polynomial.hermite_e import hermegauss

from mlflow_b3.errors import InputError

#: Steps towards the most likely effect of a group, and the most log odds that one may move.
STEPS, LONGEST = 12, 2.0
#: Smallest share of a pair's variance that its rows do not share: the slope of its root diverges at 0.
LEAST_OWN = 1e-6


def group_effect_loss(logits: Any, target: Any, groups: Any, sd: Any, *, nodes: int = 31) -> Any:
    """Return the mean negative log likelihood of rows whose groups have normal effects.

        -(1/n) Σ_j log ∫ Π_{i in group j} p(y_i | f_i + sd u) φ(u) du,   p(1 | z) = 1/(1 + exp(-z))

    Parameters
    ----------
    logits : tensor (..., n)
        f, the log odds by the network without the effects. Of PyTorch or Keras (tested on PyTorch and JAX).
    target : tensor (..., n)
        0 and 1.
    groups : tensor (n,)
        A number for the group of each row. Draw batches by group: a group must be in one as a whole. Memory grows with
        the square of the rows in a batch.
    sd : float or tensor (...)
        Standard deviation of the effects in log odds. To train it, give the exponential of a parameter.
    nodes : int, default 31
        Of the Gauss-Hermite quadrature in each group; exact to 1e-7 for sd up to 3.

    Returns
    -------
    tensor (...)

    Notes
    -----
    The loss of Yuval and Rosset (AISTATS 2025, appendix A.2, where log(1 - e^z) stands for log(1 + e^z)), after
    Simchoni and Rosset (JMLR 24, 2023). Their nodes follow the law of the effect, which fails in groups of 50 rows or
    more. Here they are around the most likely effect of each group, and count as constants in the gradient. For a
    new group the probability of class 1 is the mean of p(1 | f + sd u) over u, not p(1 | f).

    Examples
    --------
    >>> loss = group_effect_loss(network(X)[:, 0], y, patients, log_sd.exp())  # doctest: +SKIP
    """
    ops = _ops_of(logits, target)
    places, weights = _rule(nodes)
    codes = ops.codes(groups, logits)
    same = ops.cast(codes[:, None] == codes[None, :], logits)
    sd = ops.constant(sd, logits)[..., None]  # beside rows
    f, size = ops.detached(logits), ops.detached(sd)
    effect = 0.0 * f
    for step in range(STEPS + 1):
        chance = ops.sigmoid(f + size * effect)
        curvature = size**2 * ((chance * (1 - chance)) @ same) + 1
        if step < STEPS:
            newton = (size * ((target - chance) @ same) - effect) / curvature
            most = LONGEST / (size + 1e-6)
            effect = effect + ops.clip(newton, -most, most)
    u = effect[..., None] + curvature[..., None] ** -0.5 * ops.constant(places, logits)
    z = logits[..., None] + sd[..., None] * u
    within = same @ (target[..., None] * z - ops.softplus(z))
    constants = ops.constant(np.log(weights) + places**2 / 2, logits)
    integral = ops.logsumexp(within - u**2 / 2 + constants) - ops.log(curvature) / 2
    return -ops.mean(integral / ops.sum(same))  # every row has the likelihood of its group


def pair_effect_loss(
    logits: Any, target: Any, variance: Any, covariance: Any, *, nodes: int = 21
) -> Any:
    """Return half the mean negative log likelihood of pairs of rows whose effects are correlated.

        -(1/2m) Σ log ∫∫ p(y_1 | f_1 + δ_1) p(y_2 | f_2 + δ_2) N(δ; 0, [[v, c], [c, v]]) dδ

    For effects that no group contains as a whole: a field over places, with c = v exp(-d/r) at distance d, or crossed
    groups, where c is the sum of the variances of those that both rows share.

    Parameters
    ----------
    logits, target : tensor (..., m, 2)
        As in `group_effect_loss`, for both rows of each pair.
    variance : float or tensor (...)
        v, of the effect of a row.
    covariance : tensor (..., m)
        c, of each pair; at most `variance`.
    nodes : int, default 21
        Of the Gauss-Hermite quadrature in each of two dimensions; exact to 1e-9 for variances up to 1, 1e-6 up to 4.

    Returns
    -------
    tensor (...)

    Notes
    -----
    Yuval and Rosset (AISTATS 2025, appendix A.3). Far pairs tell about v only, so most pairs should be close. This is
    a composite likelihood: consistent, but its curvature gives no standard errors. A millionth of v or more counts
    as not shared, so that gradients are finite for rows at one place. All nodes are used; the authors skip some.
    """
    ops = _ops_of(logits, target)
    if logits.shape[-1] != 2:
        raise InputError(f"logits has the shape {tuple(logits.shape)}; pairs need (…, m, 2).")
    places, weights = _rule(nodes)
    variance = ops.constant(variance, logits)[..., None]  # beside pairs
    covariance = ops.constant(covariance, logits)
    apart = variance - covariance
    apart = (apart + ops.relu(LEAST_OWN * variance - apart)) ** 0.5
    together = (variance + covariance) ** 0.5
    # the symmetric root of the covariance
    own, other = ((together + apart) / 2)[..., None], ((together - apart) / 2)[..., None]
    first, second = (ops.constant(grid.ravel(), logits) for grid in np.meshgrid(places, places))
    total = ops.constant(np.log(np.outer(weights, weights).ravel()), logits)
    for row, (mine, others) in enumerate(((first, second), (second, first))):
        z = logits[..., row, None] + own * mine + other * others
        total = total + target[..., row, None] * z - ops.softplus(z)
    return -ops.mean(ops.logsumexp(total)) / 2


def _rule(nodes: int) -> tuple[Any, Any]:
    """Return nodes and weights for the standard normal law."""
    if isinstance(nodes, bool) or not isinstance(nodes, int) or not 2 <= nodes <= 100:
        raise InputError(f"nodes={nodes!r} must be a whole number from 2 to 100.")
    places, weights = hermegauss(nodes)
    return places, weights / weights.sum()


def _ops_of(logits: Any, target: Any) -> Any:
    """Return the functions of the library of the logits, which is then loaded already."""
    keras, torch = sys.modules.get("keras"), sys.modules.get("torch")
    is_torch = torch is not None and isinstance(logits, torch.Tensor)
    if not is_torch and (keras is None or isinstance(logits, np.ndarray | list | float | int)):
        raise InputError(
            f"logits={type(logits).__name__} is not usable; give a tensor of PyTorch, or of Keras' backend."
        )
    if tuple(logits.shape) != tuple(target.shape):
        raise InputError(
            f"logits has the shape {tuple(logits.shape)} and target {tuple(target.shape)}; they must be "
            "the same. Drop the column of a network with one output: network(X)[:, 0]."
        )
    if torch is not None and is_torch:
        return SimpleNamespace(
            constant=lambda value, like: torch.as_tensor(
                value, dtype=like.dtype, device=like.device
            ),
            codes=lambda value, like: torch.as_tensor(value, device=like.device),
            cast=lambda value, like: value.to(like.dtype),
            detached=lambda value: value.detach(),
            softplus=lambda value: -torch.nn.functional.logsigmoid(-value),
            logsumexp=lambda value: torch.logsumexp(value, -1),
            mean=lambda value: value.mean(-1),
            sum=lambda value: value.sum(-1),
            sigmoid=torch.sigmoid,
            relu=torch.relu,
            log=torch.log,
            clip=torch.clamp,
        )
    ops = import_module("keras.ops")
    return SimpleNamespace(
        constant=lambda value, like: ops.convert_to_tensor(value, dtype=like.dtype),
        codes=lambda value, _: ops.convert_to_tensor(value),
        cast=lambda value, like: ops.cast(value, like.dtype),
        detached=ops.stop_gradient,
        softplus=ops.softplus,
        logsumexp=lambda value: ops.logsumexp(value, axis=-1),
        mean=lambda value: ops.mean(value, axis=-1),
        sum=lambda value: ops.sum(value, axis=-1),
        sigmoid=ops.sigmoid,
        relu=ops.relu,
        log=ops.log,
        clip=ops.clip,
    )
