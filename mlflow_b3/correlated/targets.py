"""Simulated targets of correlated rows, with their means in validation and in use."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.polynomial.hermite_e import hermegauss
from scipy.linalg import helmert
from scipy.special import expit, ndtri, softmax
from scipy.stats import qmc

from mlflow_b3.correlated.field import RegionalField, regional_field
from mlflow_b3.correlated.structure import Array, Codes, Structure, WorkingModel
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


# --- Means of the softmax function over normal noise

#: Nodes in each direction for two contrasts, and number of points of a sequence for more.
NODES_OF_TWO, POINTS_OF_MORE = 15, 512
_ROWS_AT_ONCE = 10_000


@lru_cache(maxsize=16)
def contrasts(count: int) -> Array:
    """Return orthonormal contrasts of log odds of classes, (C, C - 1); (-1, 1)/√2 for two."""
    return np.asarray(-helmert(count).T)


@lru_cache(maxsize=16)
def _contrast_nodes(count: int) -> tuple[Array, Array]:
    """Return points (k, C - 1) and weights for means over standard normal contrasts.

    They are products of Gauss-Hermite nodes for up to three classes, and a Sobol sequence for more.
    """
    width = count - 1
    if width == 1:
        return NODES[:, None], WEIGHTS
    if width == 2:
        nodes, weights = hermegauss(NODES_OF_TWO)
        weights = weights / weights.sum()
        grid = np.stack(np.meshgrid(nodes, nodes, indexing="ij"), axis=-1).reshape(-1, 2)
        return grid, np.outer(weights, weights).reshape(-1)
    points = qmc.Sobol(width, rng=np.random.default_rng(0)).random(POINTS_OF_MORE)
    return ndtri(points), np.full(POINTS_OF_MORE, 1 / POINTS_OF_MORE)


def smoothed_softmax(f: Array, sd: float) -> Array:
    """Return E softmax(f + u) for independent normal u of variance sd²/2, one for each class.

    Log odds of any two classes then have the standard deviation sd. For two classes this is
    `smoothed_logistic`.

    Parameters
    ----------
    f : array (..., C)
    sd : float
    """
    if sd == 0:
        return np.asarray(softmax(f, axis=-1))
    count = f.shape[-1]
    points, weights = _contrast_nodes(count)
    noise = sd / np.sqrt(2) * (points @ contrasts(count).T)
    odds = np.exp(f - f.max(axis=-1, keepdims=True)).reshape(-1, count)
    drawn = np.exp(noise - noise.max(axis=1, keepdims=True))
    mean = np.empty(odds.shape)
    for start in range(0, len(odds), _ROWS_AT_ONCE):
        rows = slice(start, start + _ROWS_AT_ONCE)
        total = odds[rows] @ drawn.T  # (rows, points)
        mean[rows] = odds[rows] * ((weights / total) @ drawn)
    return mean.reshape(f.shape)


# --- Simulated targets of correlated rows, with their means in validation and in use

#: Separates this stream of random numbers from others of the same seed.
_STREAM = 331
#: The same for more targets of one sample.
_MORE = 332


@dataclass(frozen=True, kw_only=True)
class Draw:
    """One simulated sample, or several stacked.

    Attributes
    ----------
    expected : array (..., n)
        μ: mean of each target given all random effects; (..., n, C) with the chances of more than two
        classes.
    deployed : array (..., n)
        m: mean of the target of such a row in use, given only the effects that it shares with the
        training rows; likewise.
    target : array (..., n)
        Simulated targets: 0 and 1, numbers, or the numbers of more than two classes.
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
        shape = self.model.mean.shape
        shared, own = np.zeros((count, *shape)), np.zeros((count, *shape))
        noise = np.empty((count, self.structure.n_rows))
        for position in range(count):
            rng = self._generator(_STREAM, start + position)
            self._effects(rng, shared[position], own[position])
            noise[position] = self._noise(rng)
        if self.field is not None:
            own = self.field.own_part(own)
        expected = self._expected(self.model.mean + shared + own)
        if self._fixed is not None:
            deployed = np.broadcast_to(self._fixed, expected.shape)
        else:
            deployed = self._marginal(self.model.mean + shared)
        return Draw(expected=expected, deployed=deployed, target=self._targets(expected, noise))

    def more_targets(self, number: int, count: int, rows: Codes) -> tuple[Array, Array]:
        """Return further targets of some rows in one sample, and targets of such rows in use.

        Parameters
        ----------
        number : int
            The sample.
        count : int
            How often targets are drawn.
        rows : array of int

        Returns
        -------
        given : array (count, len(rows))
            Targets given all random effects of the sample.
        deployed : array (count, len(rows))
            Targets given only the effects that rows in use share with training rows. Rows of the same
            group share an effect of a new level in each of them.
        """
        shape = self.model.mean.shape
        shared, own = np.zeros(shape), np.zeros(shape)
        self._effects(self._generator(_STREAM, number), shared, own)
        if self.field is not None:
            own = self.field.own_part(own[None])[0]
        rng = self._generator(_MORE, number)
        others = np.zeros((count, *shape))
        for position in range(count):
            self._effects(rng, np.zeros(shape), others[position])
        if self.field is not None:
            others = self.field.own_part(others)
        known = (self.model.mean + shared)[rows]
        given, deployed = (
            self._targets(self._expected(known + effects), rng.random((count, len(rows))))
            for effects in (own[rows], others[:, rows])
        )
        return given, deployed

    def _generator(self, stream: int, number: int) -> np.random.Generator:
        return np.random.default_rng(np.random.SeedSequence(self.seed, spawn_key=(stream, number)))

    def _effects(self, rng: np.random.Generator, shared: Array, own: Array) -> None:
        """Add the random effects that rows in use share, and those that they do not."""
        if self.field is not None:
            shared += np.sqrt(self.field.across) * rng.standard_normal()
            own += rng.standard_normal(len(own))  # `batch` turns all samples into fields at once
            return
        for level, sd in zip(self.structure.levels, self.model.sd, strict=True):
            if self.model.n_classes > 2:
                basis = contrasts(self.model.n_classes)
                drawn = rng.standard_normal((level.n_groups, basis.shape[1]))
                effects = sd / np.sqrt(2) * (drawn @ basis.T)
            else:
                effects = sd * rng.standard_normal(level.n_groups)
            (own if level.new else shared)[:] += effects[level.codes]

    def _noise(self, rng: np.random.Generator) -> Array:
        n = self.structure.n_rows
        return rng.random(n) if self.model.task == "classification" else rng.standard_normal(n)

    def _expected(self, predictor: Array) -> Array:
        if self.model.n_classes > 2:
            return np.asarray(softmax(predictor, axis=-1))
        return np.asarray(expit(predictor)) if self.model.task == "classification" else predictor

    def _targets(self, expected: Array, noise: Array) -> Array:
        if self.model.task == "regression":
            return np.asarray(expected + (self.model.noise or 0.0) * noise)
        if self.model.n_classes > 2:
            below = np.cumsum(expected[..., :-1], axis=-1)
            return np.asarray((noise[..., None] >= below).sum(axis=-1), dtype=float)
        return np.asarray(noise < expected, dtype=float)

    def _marginal(self, known: Array) -> Array:
        """Return the mean of a target in use, given the shared part of its predictor."""
        if self.model.task == "regression":
            return known
        if self.model.n_classes > 2:
            return smoothed_softmax(known, float(self._new_sd))
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
