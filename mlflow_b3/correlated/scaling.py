"""How the bias of cross-validation changes with the standard deviations, without more refits."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import combinations

import numpy as np

from mlflow_b3.correlated.draws import Draws
from mlflow_b3.correlated.linear_bias import Folds
from mlflow_b3.correlated.moments import covariance_parts
from mlflow_b3.correlated.structure import Array, Codes, Structure, WorkingModel

#: Log odds at which covariances are computed where there are more rows; between them they are read off.
_GRID = 1001
#: Samples of a field.
_FIELD_DRAWS = 400
#: Directions in which rows differ by less, in parts of the largest, are left out.
_SMALLEST = 1e-6
#: A mean covariance below this is rounding.
_NOTHING = 1e-12
#: Of the covariance that the largest standard deviations would give, the share that is next to none.
SMALL_SHARE = 0.05


class Scaling:
    """How w changes with the standard deviations, as far as the covariance of rows tells.

    Parameters
    ----------
    structure : Structure
    folds : sequence of (training rows, validation rows)

    Notes
    -----
    To first order w = Σ h_ij C_ij over pairs of rows in different folds, where h says how much
    training row j moves the prediction of row i, and C is their covariance that use does not share.
    Here h is taken as the same for all pairs, so w changes as the summed covariance does. Against refits
    of logistic regression and nearest neighbours this was within 7 % when all standard deviations
    were multiplied by 0.5 to 2; when one of two changed alone it was off by up to 17 %, or by a tenth
    of w where one was set to 0. No matrix of pairs is made.
    """

    def __init__(self, structure: Structure, folds: Folds) -> None:
        self._structure = structure
        self._fold_of = np.full(structure.n_rows, len(folds), dtype=np.intp)
        for number, (_, held) in enumerate(folds):
            self._fold_of[held] = number

    def world(self, model: WorkingModel) -> WorkingModel:
        """Return the world in which w is simulated: the model's own, unless hardly anything varies there.

        Where next to no variance was found, w is next to nothing and all of its upper end is in the
        variance that may have been missed. Then half of the largest standard deviations are simulated.
        """
        most = self.excess(replace(model, sd=model.sd_high))
        if self.excess(model) >= SMALL_SHARE * most:
            return model
        return replace(model, sd=tuple(high / 2 for high in model.sd_high))

    def factor(self, simulated: WorkingModel) -> Callable[[WorkingModel], float]:
        """Return the function that tells by what to multiply the w of one world to have another's."""
        before = self.excess(simulated)

        def of(model: WorkingModel) -> float:
            if model.sd == simulated.sd or before <= _NOTHING * _unit(simulated):
                return 1.0
            return self.excess(model) / before

        return of

    def excess(self, model: WorkingModel) -> float:
        """Return the sum of C over pairs in different folds, for each pair in the sample."""
        structure, fold_of = self._structure, self._fold_of
        if structure.field is not None:
            draws = Draws(model, structure, 0).batch(_FIELD_DRAWS)
            excess = (draws.expected - draws.deployed).T / np.sqrt(_FIELD_DRAWS)
            total = _across_folds(excess, structure.field.regions.codes, fold_of)
        else:
            total = _sum_through(model, structure, fold_of, again_only=False)
            total -= _sum_through(model, structure, fold_of, again_only=True)
        return total / structure.n_rows**2


def _unit(model: WorkingModel) -> float:
    """Return the size that covariances can have, in the units of the target."""
    if model.task == "classification":
        return 1.0
    return sum(sd**2 for sd in (*model.sd, *model.sd_high)) + (model.noise or 0.0) ** 2


def _sum_through(
    model: WorkingModel, structure: Structure, fold_of: Codes, *, again_only: bool
) -> float:
    """Return the summed covariance by way of all levels, or of those that are observed again."""
    levels = [
        (level.codes, sd)
        for level, sd in zip(structure.levels, model.sd, strict=True)
        if not (again_only and level.new)
    ]
    total, everything = 0.0, sum(sd**2 for sd in model.sd)
    for shared in _subsets(range(len(levels))):
        variance = sum(levels[at][1] ** 2 for at in shared)
        if variance == 0:
            continue
        parts = _parts(model, variance, everything)
        others = [at for at in range(len(levels)) if at not in shared]
        # those that share exactly these: at least these, less those that share more
        for more in [(), *_subsets(others)]:
            codes = _common([levels[at][0] for at in (*shared, *more)])
            total += (-1) ** len(more) * _across_folds(parts, codes, fold_of)
    return total


def _subsets(positions: Sequence[int]) -> Iterator[tuple[int, ...]]:
    for size in range(1, len(positions) + 1):
        yield from combinations(positions, size)


def _common(codes: Sequence[Codes]) -> Codes:
    """Return the group of each row by all of these together."""
    result = codes[0]
    for other in codes[1:]:
        pairs = result * (int(other.max()) + 1) + other
        result = np.unique(pairs, return_inverse=True)[1].reshape(-1)
    return result


def _parts(model: WorkingModel, variance: float, everything: float) -> Array:
    """Return vectors whose products are the covariances of rows that share this variance."""
    if model.task == "regression":
        return np.full((len(model.mean), 1), np.sqrt(variance))
    points = np.unique(model.mean)
    if len(points) > _GRID:
        points = np.linspace(points[0], points[-1], _GRID)
    left, size, _ = np.linalg.svd(
        covariance_parts(points, variance, everything), full_matrices=False
    )
    parts = (left * size)[:, size > _SMALLEST * size[0]]  # a few columns instead of 31
    return np.column_stack([np.interp(model.mean, points, column) for column in parts.T])


def _across_folds(parts: Array, codes: Codes, fold_of: Codes) -> float:
    """Return the sum of products of rows in the same group and different folds."""
    return _squares(parts, codes) - _squares(parts, _common([codes, fold_of]))


def _squares(parts: Array, codes: Codes) -> float:
    return sum(float((np.bincount(codes, weights=column) ** 2).sum()) for column in parts.T)
