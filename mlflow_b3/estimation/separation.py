"""How far the two sides of a fold can be told apart, row by row."""

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats
from sklearn.ensemble import ExtraTreesClassifier
from sklearn.model_selection import StratifiedGroupKFold, StratifiedKFold

CROSS_FITS = 5
TREES = 50
LEAF = 5

Array = NDArray[np.float64]


def encode(first: pd.DataFrame, second: pd.DataFrame) -> Array:
    """Return the rows of both sides as numbers that do not depend on the side.

    A value becomes its rank among the distinct values of its column (text in alphabetical order),
    and a column with missing values gets another one that marks them.
    """
    columns = []
    for name in first.columns:
        values, missing = _plain_values(first[name], second[name])
        codes = np.zeros(len(values))
        codes[~missing] = np.unique(values[~missing], return_inverse=True)[1]
        if missing.any():
            codes[missing] = 0.0 if missing.all() else np.median(codes[~missing])
            columns.append(missing.astype(float))
        columns.append(codes)
    return np.column_stack(columns)


def _plain_values(
    first: "pd.Series[Any]", second: "pd.Series[Any]"
) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    sides = (first, second)
    missing = np.concatenate([side.isna().to_numpy(dtype=bool) for side in sides])
    if all(pd.api.types.is_numeric_dtype(side) for side in sides):
        numbers = [side.to_numpy(dtype=float, na_value=np.nan) for side in sides]
        return np.concatenate(numbers), missing
    if all(pd.api.types.is_datetime64_any_dtype(side) for side in sides):
        dates = [side.to_numpy(dtype="datetime64[ns]").astype(np.int64) for side in sides]
        return np.concatenate(dates), missing
    return np.array([str(value) for side in sides for value in side]), missing


def score_sides(
    features: Array,
    is_validation: NDArray[np.bool_],
    groups: NDArray[np.intp] | None,
    rng: np.random.Generator,
) -> Array:
    """Return how validation-like every row is, by models that were not trained on it.

    Parameters
    ----------
    features : array
    is_validation : array of bool
        The side of each row.
    groups : array or None
        Rows of a group are held out together.
    rng : numpy.random.Generator
    """
    state = int(rng.integers(2**31))
    if groups is None:
        folds = StratifiedKFold(CROSS_FITS, shuffle=True, random_state=state)
    else:
        fewest = min(len(np.unique(groups[side])) for side in (is_validation, ~is_validation))
        folds = StratifiedGroupKFold(
            max(2, min(CROSS_FITS, fewest)), shuffle=True, random_state=state
        )
    scores = np.empty(len(features))
    for known, held_out in folds.split(features, is_validation, groups):
        trees = ExtraTreesClassifier(
            TREES, min_samples_leaf=LEAF, random_state=int(rng.integers(2**31))
        )
        trees.fit(features[known], is_validation[known])
        chances = trees.predict_proba(features[held_out])
        scores[held_out] = chances[:, 1] if chances.shape[1] == 2 else float(trees.classes_[0])
    # equal scores are put in random order: the sides of tied rows must not decide
    return np.asarray(stats.rankdata(scores) + rng.uniform(-0.25, 0.25, len(scores)))


def design_effect(inside: NDArray[np.bool_], ids: NDArray[np.intp]) -> float:
    """Return the largest 1 + (m-1)·ρ over the sets, by analysis of variance."""
    _, codes, sizes = np.unique(ids, return_inverse=True, return_counts=True)
    rows, groups = len(ids), len(sizes)
    typical = float(np.sum(sizes**2) / rows)
    if rows == groups:
        return 1.0
    effects = []
    for member in inside.T.astype(float):
        means = np.bincount(codes, member) / sizes
        within = float(np.sum((member - means[codes]) ** 2)) / (rows - groups)
        between = float(np.sum(sizes * (means - member.mean()) ** 2)) / (groups - 1)
        spread = (rows - typical) / (groups - 1)
        variance = max(0.0, (between - within) / spread)
        effects.append(1 + (typical - 1) * variance / max(variance + within, 1e-12))
    return max(effects)
