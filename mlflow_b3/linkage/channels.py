"""How the fields of a row come to differ from those of its entity: discrete channels."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from mlflow_b3.errors import InputError
from mlflow_b3.linkage.splits import Floats

TOLERANCE = 1e-6


def hit_miss_channel(frequencies: Any, distortion: float) -> Floats:
    """Return P(x|y) of a field that is right, or replaced by a random value with probability β.

    P(x|y) = (1-β)·1[x=y] + β·θ(x).
    """
    theta = check_frequencies([frequencies])[0]
    beta = check_distortion(distortion, 1)[0]
    return np.asarray((1 - beta) * np.eye(len(theta)) + beta * theta, dtype=float)


def string_channel(frequencies: Any, distances: Any, distortion: float, steepness: float) -> Floats:
    """Return P(x|y) of a field that is right, or replaced by a similar value with probability β.

    Parameters
    ----------
    frequencies : array
        α: how frequent the values are.
    distances : matrix
        d(w, y) between values, for example edit distances; symmetric, 0 on the diagonal.
    distortion : float
        β.
    steepness : float
        c: how fast values become improbable with their distance. With 0 it is a random value.

    Notes
    -----
    P(x|y) = (1-β)·1[x=y] + β·F(x|y), F(w|y) = α(w)e^{-c·d(w,y)} / Σ_w' α(w')e^{-c·d(w',y)}.
    """
    alpha, beta = check_frequencies([frequencies])[0], check_distortion(distortion, 1)[0]
    similar = alpha * check_similarity(alpha, distances, steepness)
    return np.asarray(
        (1 - beta) * np.eye(len(alpha)) + beta * similar / similar.sum(axis=1, keepdims=True),
        dtype=float,
    )


def check_similarity(alpha: Floats, distances: Any, steepness: float) -> Floats:
    """Return e^{-c·d}, checked."""
    matrix = np.asarray(distances, dtype=float)
    if not 0 <= steepness < np.inf:
        raise InputError(f"steepness={steepness!r} must be a finite number from 0.")
    if matrix.shape != (len(alpha), len(alpha)):
        raise InputError(f"distances has shape {matrix.shape}; there are {len(alpha)} values.")
    usable = np.isfinite(matrix) & (matrix >= 0) & (matrix == matrix.T)
    if not usable.all() or np.diag(matrix).any():
        raise InputError(
            "distances must be finite numbers from 0, the same in both directions, and 0 from each "
            "value to itself."
        )
    return np.asarray(np.exp(-steepness * matrix), dtype=float)


def check_frequencies(frequencies: Any) -> list[Floats]:
    """Return the frequencies of each field, or say which are none."""
    if isinstance(frequencies, np.ndarray) and frequencies.ndim == 1:
        raise InputError("frequencies must be a list with an array for each field; wrap it in [ ].")
    fields = [np.asarray(theta, dtype=float) for theta in frequencies]
    problems = [
        f"field {number}: frequencies must be above 0 and sum to 1; they sum to {theta.sum():g}."
        for number, theta in enumerate(fields)
        if theta.ndim != 1 or not (theta > 0).all() or abs(theta.sum() - 1) > TOLERANCE
    ]
    if not fields:
        problems = ["it is empty; give the frequencies of at least one field."]
    if problems:
        raise InputError.from_problems("frequencies", problems)
    return [theta / theta.sum() for theta in fields]


def check_distortion(distortion: Any, fields: int) -> Floats:
    """Return β of each field."""
    betas = np.asarray(distortion, dtype=float)
    if betas.shape not in ((), (fields,)) or not ((betas >= 0) & (betas <= 1)).all():
        raise InputError(
            f"distortion={distortion!r} must be a probability, or one for each of {fields} fields."
        )
    return np.broadcast_to(betas, (fields,))


def check_channels(
    frequencies: Sequence[Any], channels: Sequence[Any]
) -> list[tuple[Floats, Floats]]:
    """Return the frequencies and the channel of each field."""
    thetas = check_frequencies(frequencies)
    if len(channels) != len(thetas):
        raise InputError(f"channels has {len(channels)} fields; frequencies has {len(thetas)}.")
    fields = []
    for number, (theta, matrix) in enumerate(zip(thetas, channels, strict=True)):
        channel = np.asarray(matrix, dtype=float)
        if channel.ndim != 2 or len(channel) != len(theta):
            raise InputError(
                f"channels: field {number} has shape {channel.shape}; {len(theta)} rows are needed, "
                "one for each true value."
            )
        if not (channel >= 0).all() or not (abs(channel.sum(axis=1) - 1) < TOLERANCE).all():
            raise InputError(f"channels: the rows of field {number} must be probabilities.")
        fields.append((theta, channel / channel.sum(axis=1, keepdims=True)))
    return fields


def check_entities(N: Any) -> int:
    """Return the number of entities."""
    if isinstance(N, bool) or not isinstance(N, (int, np.integer)) or N < 3:
        raise InputError(f"N={N!r} must be a number of entities, from 3.")
    return int(N)
