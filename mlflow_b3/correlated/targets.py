"""Simulated targets of correlated rows, with their means in validation and in use."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.polynomial.hermite_e import hermegauss
from scipy.special import expit

from mlflow_b3.correlated.field import RegionalField, regional_field
from mlflow_b3.correlated.structure import Array, Structure, WorkingModel
from mlflow_b3.errors import InputError, check_seed

# --- Means of the logistic function over normal noise, by Gauss-Hermite quadrature

#: The mean is accurate to 1e-12 for a standard deviation of 1, 1e-6 for 2, 1e-5 for 3 and 1e-3 for 5.
N_NODES = 31


def _gauss_hermite_rule() -> tuple[Array, Array]:
    nodes, weights = hermegauss(N_NODES)
    return np.asarray(nodes), np.asarray(weights / weights.sum())


#: Nodes and weights for the standard normal distribution.
NODES, WEIGHTS = _gauss_hermite_rule()


def smoothed_logistic(f: Any, sd: Any) -> Array:
    """Return E g(f + sd z) for the logistic g and a standard normal z.

    Parameters
    ----------
    f : array
        Log odds.
    sd : float or array
        Standard deviations, broadcast against `f`.
    """
    f, sd = np.asarray(f, dtype=float), np.asarray(sd, dtype=float)
    if not sd.any():  # return g(f) without the rounding error of a sum
        return np.asarray(expit(f))
    mean = np.zeros(np.broadcast_shapes(f.shape, sd.shape))
    # node by node, to avoid an array 31 times as large
    for node, weight in zip(NODES, WEIGHTS, strict=True):
        mean += weight * expit(f + sd * node)
    return mean


def smoothed_slope(f: Any, sd: Any) -> Array:
    """Return E g'(f + sd z), the derivative of `smoothed_logistic` by f."""
    f, sd = np.asarray(f, dtype=float), np.asarray(sd, dtype=float)
    slope = np.zeros(np.broadcast_shapes(f.shape, sd.shape))
    for node, weight in zip(NODES, WEIGHTS, strict=True):
        chance = expit(f + sd * node)
        slope += weight * chance * (1.0 - chance)
    return slope


# --- Simulated targets of correlated rows, with their means in validation and in use

#: Separates this stream of random numbers from others of the same seed.
_STREAM = 331


@dataclass(frozen=True, kw_only=True)
class Draw:
    """One simulated sample, or several stacked.

    Attributes
    ----------
    expected : array (..., n)
        μ: mean of each target given all random effects.
    deployed : array (..., n)
        m: mean of the target of such a row in use, given only the effects that it shares with the
        training rows.
    target : array (..., n)
        Simulated targets: 0 and 1, or numbers.
    """

    expected: Array
    deployed: Array
    target: Array


class Draws:
    """Simulated samples of a working model. The number of a sample determines it.

    Parameters
    ----------
    model : WorkingModel
    structure : Structure
    seed : int

    Notes
    -----
    `deployed` keeps the effects of levels that are observed again and the common part of a field. The
    effects of new levels are integrated out. This gives the average of Yuval and Rosset's conditional
    covariance (AISTATS 2025) in a single loop, while they nest two. A sample uses the same random
    numbers for any standard deviations, so models that differ only in these are compared on common
    random numbers.
    """

    def __init__(self, model: WorkingModel, structure: Structure, seed: int) -> None:
        check_seed(seed)
        if len(model.mean) != structure.n_rows:
            raise InputError(
                f"model.mean has {len(model.mean)} rows and the structure {structure.n_rows}; both "
                "must describe the same rows."
            )
        self.model, self.structure, self.seed = model, structure, seed
        self.field: RegionalField | None = None
        if structure.field is not None:
            self.field = _build_field(model, structure)
            self._new_sd = self.field.own_sd
        else:
            pairs = zip(structure.levels, model.sd, strict=True)
            variance = sum(sd**2 for level, sd in pairs if level.new)
            self._new_sd = np.asarray(np.sqrt(variance))
        # rows in use share no effects, so their mean is the same in all samples
        self._fixed = None
        if self.field is None and all(level.new for level in structure.levels):
            self._fixed = self._marginal(model.mean)

    def draw(self, number: int) -> Draw:
        """Return one sample by its number, from 0."""
        many = self.batch(1, number)
        return Draw(expected=many.expected[0], deployed=many.deployed[0], target=many.target[0])

    def batch(self, count: int, start: int = 0) -> Draw:
        """Return `count` stacked samples, from the number `start` on."""
        n = self.structure.n_rows
        shared, own = np.zeros((count, n)), np.zeros((count, n))
        noise = np.empty((count, n))
        for position in range(count):
            rng = np.random.default_rng(
                np.random.SeedSequence(self.seed, spawn_key=(_STREAM, start + position))
            )
            self._effects(rng, shared[position], own[position])
            noise[position] = (
                rng.random(n) if self.model.task == "classification" else rng.standard_normal(n)
            )
        if self.field is not None:
            own = self.field.own_part(own)
        if self.model.task == "classification":
            expected = np.asarray(expit(self.model.mean + shared + own))
            target = (noise < expected).astype(float)
        else:
            expected = self.model.mean + shared + own
            target = expected + (self.model.noise or 0.0) * noise
        if self._fixed is not None:
            deployed = np.broadcast_to(self._fixed, expected.shape)
        else:
            deployed = self._marginal(self.model.mean + shared)
        return Draw(expected=expected, deployed=deployed, target=target)

    def _effects(self, rng: np.random.Generator, shared: Array, own: Array) -> None:
        """Add the random effects that rows in use share, and those that they do not."""
        if self.field is not None:
            shared += np.sqrt(self.field.across) * rng.standard_normal()
            own += rng.standard_normal(len(own))  # `batch` turns all samples into fields at once
            return
        for level, sd in zip(self.structure.levels, self.model.sd, strict=True):
            effects = sd * rng.standard_normal(level.n_groups)
            (own if level.new else shared)[:] += effects[level.codes]

    def _marginal(self, known: Array) -> Array:
        """Return the mean of a target in use, given the shared part of its predictor."""
        if self.model.task == "regression":
            return known
        return smoothed_logistic(known, self._new_sd)


def _build_field(model: WorkingModel, structure: Structure) -> RegionalField:
    """Return the field split by regions, or raise an `InputError` if something is missing."""
    assert structure.field is not None
    if not structure.field.regions.new:
        raise InputError(
            f"regions={structure.field.regions.name!r} of a field must be new where the model is "
            "used; give regions that are observed again as a level."
        )
    if model.reach is None or len(model.sd) != 1:
        raise InputError(
            f"model.reach={model.reach!r}, model.sd={model.sd!r}: a field needs its reach and one "
            "standard deviation."
        )
    return regional_field(structure.field, model.sd[0], model.reach, model.kernel)
