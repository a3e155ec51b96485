"""Information bounds as the thesis prints them, for reference; use those of `information`."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from mlflow_b3.errors import InputError
from mlflow_b3.linkage.channels import (
    check_distortion,
    check_entities,
    check_frequencies,
    check_similarity,
)


def printed_fano(frequencies: Sequence[Any], distortion: Any, N: int) -> float:
    """Return the bound of theorem 7 on the linkage error, for fields that are hit or missed.

    1 - (γ + ln 2)/ln(N-1) with γ = 2·Σ_ℓ (1-β_ℓ)·ln(1/(β_ℓ·min θ_ℓ)).

    Parameters
    ----------
    frequencies, distortion, N : as in `mi_fano`

    Notes
    -----
    Valid, but negative (it says nothing) at most of the settings that the thesis plots; `mi_fano` and
    `collision_error` are far larger. Errata: the sum printed over all rows and fields must run over
    the fields of one row, as it does here; the remark on Pinsker's inequality should have ½ for 2;
    and γ grows without limit as β → 0, not as β → 1, where it vanishes.
    """
    thetas = check_frequencies(frequencies)
    betas = check_distortion(distortion, len(thetas))
    if (betas == 0).any():
        raise InputError("distortion: theorem 7 needs every field to be distorted sometimes.")
    gamma = sum(
        2 * (1 - beta) * math.log(1 / (beta * theta.min()))
        for theta, beta in zip(thetas, betas, strict=True)
        if len(theta) > 1  # entities never differ in a field with one value
    )
    return 1 - float(gamma + math.log(2)) / math.log(check_entities(N) - 1)


def printed_string_bound(
    frequencies: Sequence[Any], distances: Sequence[Any], distortion: Any, steepness: float, N: int
) -> float:
    """Return the bound of theorem 8 on the linkage error, for fields with similar strings.

    1 - (κ + ln 2)/ln(N-1) with κ the largest over y ≠ y' of
    Σ_ℓ [2(1-β_ℓ) + Σ_m (1-e^{-c·d(y,y')})·E e^{-c·d(M,y)}]·ln(1/min Q_ℓ),
    Q_ℓ(m|y) = β_ℓ·α_ℓ(m)·e^{-c·d(m,y)}.

    Parameters
    ----------
    frequencies : sequence of arrays
        α_ℓ.
    distances : sequence of matrices
        For each field, the distances between its values.
    distortion : float or sequence of float
    steepness : float
        c.
    N : int
        Number of entities, from 3.

    Notes
    -----
    Not a bound: kept to show what was printed; use `mi_fano_channel` with `string_channel`. Errata:
    the normaliser of F is dropped; β_ℓ is lost from the second term; Σ_m comes on top of the
    expectation, which is itself a sum over m; the absolute value is lost (it needs
    e^{-c·d(M,y)} + e^{-c·d(M,y')}); and the text says that the bound on the error grows with c,
    while κ grows, so that it falls.
    """
    alphas = check_frequencies(frequencies)
    betas = check_distortion(distortion, len(alphas))
    if len(distances) != len(alphas):
        raise InputError(f"distances has {len(distances)} fields; frequencies has {len(alphas)}.")
    if (betas == 0).any():
        raise InputError("distortion: theorem 8 needs every field to be distorted sometimes.")
    kappa = 0.0
    for alpha, matrix, beta in zip(alphas, distances, betas, strict=True):
        if len(alpha) == 1:
            continue
        similarity = check_similarity(alpha, matrix, steepness)
        differ = ~np.eye(len(alpha), dtype=bool)
        moment = len(alpha) * (similarity @ alpha)
        largest = (2 * (1 - beta) + (1 - similarity) * moment[:, None])[differ].max()
        kappa += float(largest * math.log(1 / (beta * alpha * similarity)[differ].min()))
    return 1 - (kappa + math.log(2)) / math.log(check_entities(N) - 1)
