"""The working model: its estimation, and the scaling of the bias."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd

from mlflow_b3.correlated.classes import fit_mixed_softmax
from mlflow_b3.correlated.field import fit_field
from mlflow_b3.correlated.formulas import Folds, covariance_parts
from mlflow_b3.correlated.mixed import fit_mixed_linear, fit_mixed_logistic
from mlflow_b3.correlated.report import FEW_GROUPS
from mlflow_b3.correlated.structure import (
    KERNELS,
    Array,
    Codes,
    Level,
    Structure,
    WorkingModel,
    centred_in_groups,
    digest_rows,
    is_within,
)
from mlflow_b3.correlated.targets import Draws, smoothed_slope
from mlflow_b3.errors import InputError

# --- How the bias of cross-validation changes with the standard deviations, without more refits

#: Number of log odds at which covariances are computed if there are more rows; others are interpolated.
_GRID = 1001
#: Number of samples of a field.
_FIELD_DRAWS = 400
#: Number of samples of more than two classes, the fewest, and the most values in them.
_CLASS_DRAWS, _LEAST_DRAWS, _MOST_NUMBERS = 200, 20, 10_000_000
#: Directions with a relative size below this are left out.
_SMALLEST = 1e-6
#: A mean covariance below this is rounding error.
_NOTHING = 1e-12
#: Share of the covariance at the largest standard deviations that counts as negligible.
SMALL_SHARE = 0.05


class Scaling:
    """Approximates how w changes with the standard deviations, from the covariance of rows.

    Parameters
    ----------
    structure : Structure
    folds : sequence of (training rows, validation rows)

    Notes
    -----
    To first order w = Σ h_ij C_ij over pairs of rows in different folds, where h_ij is the influence
    of training row j on the prediction of row i, and C is the part of their covariance that rows in
    use do not share. Here h is assumed to be the same for all pairs, so w is proportional to the
    summed covariance. Compared with refits of logistic regression and nearest neighbours, this was
    within 7% if all standard deviations were multiplied by 0.5 to 2. If one of two changed alone, it
    was off by up to 17%, or by a tenth of w if one was set to 0. No matrix of pairs is needed.
    """

    def __init__(self, structure: Structure, folds: Folds) -> None:
        self._structure = structure
        self._fold_of = np.full(structure.n_rows, len(folds), dtype=np.intp)
        for number, (_, held) in enumerate(folds):
            self._fold_of[held] = number

    def world(self, model: WorkingModel) -> WorkingModel:
        """Return the model that simulates w: the given one, unless it has almost no variance.

        If almost no variance was found, w is almost 0 and its upper end depends on the variance that
        may have been missed. The model then gets half of the largest standard deviations.
        """
        most = self.excess(replace(model, sd=model.sd_high))
        if self.excess(model) >= SMALL_SHARE * most:
            return model
        return replace(model, sd=tuple(high / 2 for high in model.sd_high))

    def factor(self, simulated: WorkingModel) -> Callable[[WorkingModel], float]:
        """Return a function that gives the ratio of w under another model to w under this one."""
        before = self.excess(simulated)

        def of(model: WorkingModel) -> float:
            if model.sd == simulated.sd or before <= _NOTHING * _covariance_unit(simulated):
                return 1.0
            return self.excess(model) / before

        return of

    def excess(self, model: WorkingModel) -> float:
        """Return the sum of C over pairs in different folds, divided by the number of all pairs."""
        structure, fold_of = self._structure, self._fold_of
        if model.n_classes > 2:
            return self._excess_of_classes(model)
        if structure.field is not None:
            draws = Draws(model, structure, 0).batch(_FIELD_DRAWS)
            excess = (draws.expected - draws.deployed).T / np.sqrt(_FIELD_DRAWS)
            total = _across_folds(excess, structure.field.regions.codes, fold_of)
        else:
            total = _sum_covariance(model, structure, fold_of, again_only=False)
            total -= _sum_covariance(model, structure, fold_of, again_only=True)
        return total / structure.n_rows**2

    def _excess_of_classes(self, model: WorkingModel) -> float:
        """Return the same, summed over classes, from samples that share random numbers.

        The mean of (μ_i - m_i)(μ_j - m_j) is 0 for rows that share no group of a new level. Only the
        others are summed, by inclusion and exclusion.
        """
        structure = self._structure
        count = int(np.clip(_MOST_NUMBERS // model.mean.size, _LEAST_DRAWS, _CLASS_DRAWS))
        draws = Draws(model, structure, 0).batch(count)
        parts = np.moveaxis(draws.expected - draws.deployed, 1, 0) / np.sqrt(count)
        parts = parts.reshape(structure.n_rows, -1)
        codes = [level.codes for level in structure.new]
        total = 0.0
        for shared in _subsets(range(len(codes))):
            both = _combine_codes([codes[at] for at in shared])
            total -= (-1) ** len(shared) * _across_folds(parts, both, self._fold_of)
        return total / structure.n_rows**2

    def slope_shares(self, features: Array, model: WorkingModel, level: Level) -> Array:
        """Return the variance of intercepts that adds as much to w as slopes of variance 1.

        Parameters
        ----------
        features : array (n, d)
            Features that vary within groups, one of which has random slopes.
        model : WorkingModel
        level : Level
            The groups between which slopes differ.

        Returns
        -------
        array (d,)
            For each feature.

        Notes
        -----
        To first order w = Σ h_ij C_ij over pairs of rows in different folds. For rows of one group,
        intercepts of variance 1 have C_ij = κ_i κ_j and slopes κ_i κ_j x_i x_j, where κ is the derivative
        of the mean of a target by its predictor, and x the feature less its mean in the group, divided
        by the standard deviation of that difference. Returned is the ratio of the two sums with the h of a
        regression on all features, weighted by κ. For other learners it is an approximation.
        """
        kappa = np.ones(len(features))
        if model.task == "classification":
            total = float(np.sqrt(sum(sd**2 for sd in model.sd)))
            kappa = smoothed_slope(model.mean, total)
        root = np.sqrt(kappa)[:, None]
        design = np.column_stack([np.ones(len(features)), features])
        left, size, _ = np.linalg.svd(design * root, full_matrices=False)
        parts = left[:, size > _SMALLEST * size[0]] * root
        intercepts = _across_folds(parts, level.codes, self._fold_of)
        if intercepts <= 0:  # a regression on so many features does not learn intercepts
            return np.ones(features.shape[1])
        within = centred_in_groups(features, level)
        within /= np.sqrt(np.mean(within**2, axis=0))
        slopes = [
            _across_folds(parts * feature[:, None], level.codes, self._fold_of)
            for feature in within.T
        ]
        return np.maximum(np.array(slopes) / intercepts, 0.0)


def _covariance_unit(model: WorkingModel) -> float:
    """Return the scale of covariances, in the units of the target."""
    if model.task == "classification":
        return 1.0
    return sum(sd**2 for sd in (*model.sd, *model.sd_high)) + (model.noise or 0.0) ** 2


def _sum_covariance(
    model: WorkingModel, structure: Structure, fold_of: Codes, *, again_only: bool
) -> float:
    """Return the summed covariance due to all levels, or to those that are observed again."""
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
        parts = _covariance_vectors(model, variance, everything)
        others = [at for at in range(len(levels)) if at not in shared]
        # inclusion-exclusion: pairs that share exactly these levels
        for more in [(), *_subsets(others)]:
            codes = _combine_codes([levels[at][0] for at in (*shared, *more)])
            total += (-1) ** len(more) * _across_folds(parts, codes, fold_of)
    return total


def _subsets(positions: Sequence[int]) -> Iterator[tuple[int, ...]]:
    for size in range(1, len(positions) + 1):
        yield from combinations(positions, size)


def _combine_codes(codes: Sequence[Codes]) -> Codes:
    """Return the group of each row in the combination of all levels."""
    result = codes[0]
    for other in codes[1:]:
        pairs = result * (int(other.max()) + 1) + other
        result = np.unique(pairs, return_inverse=True)[1].reshape(-1)
    return result


def _covariance_vectors(model: WorkingModel, variance: float, everything: float) -> Array:
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
    return _sum_of_squares(parts, codes) - _sum_of_squares(parts, _combine_codes([codes, fold_of]))


def _sum_of_squares(parts: Array, codes: Codes) -> float:
    return sum(float((np.bincount(codes, weights=column) ** 2).sum()) for column in parts.T)


# --- Estimation of the working model from the table

#: Smallest number of groups of a level for an estimate of their variance.
LEAST_GROUPS = 5
#: Size of the median group below which variance components are hard to separate from noise.
SMALL_GROUPS = 4
#: A standard deviation below this share of the total scale counts as 0.
NO_VARIANCE = 0.05

CodedMessages = tuple[tuple[str, str], ...]


def structure_problems(structure: Structure) -> list[tuple[str, str]]:
    """Return the reasons why no bias can be computed for these groups, for any target.

    Raises
    ------
    InputError
        For columns that do not form groups.
    """
    useless = [_explain_useless(level) for level in structure.grouping if _groups_nothing(level)]
    useless += [
        f"{a.name!r} and {b.name!r} divide the rows alike; leave one of them out."
        for a, b in combinations(structure.grouping, 2)
        if is_within(a, b) and is_within(b, a)
    ]
    if useless:
        raise InputError.from_problems("groups", useless)
    return [
        (
            "B331",
            f"{level.name!r} has {level.n_groups} groups; their variance cannot be estimated from so few. "
            f"Corrected cross-validation needs {LEAST_GROUPS} at least, and says little below "
            f"{FEW_GROUPS}.",
        )
        for level in structure.grouping
        if level.n_groups < LEAST_GROUPS
    ]


def _groups_nothing(level: Level) -> bool:
    return level.n_groups < 2 or int(np.bincount(level.codes).max()) < 2


def _explain_useless(level: Level) -> str:
    if level.n_groups < 2:
        return f"{level.name!r} has the same value in all rows; leave it out."
    return (
        f"{level.name!r} has a different value in every row, so no two rows share a group; leave it "
        "out."
    )


def fit_score_model(task: str, target: Array, scores: Array, structure: Structure) -> WorkingModel:
    """Fit a working model whose only fixed effect is the recalibrated score of the audited model.

    f = a + b z, where z is the score of each row from the model trained without its group. a, b and
    the standard deviations of the groups are estimated jointly.

    Notes
    -----
    Yuval and Rosset (AISTATS 2025) put all covariates into f. Covariates that differ between groups
    then absorb their variance; in the paper's own design that recovers 41 to 69% of the bias. Two
    coefficients cannot absorb it, and 85 to 101% are recovered. Weak scores leave some fixed signal
    to the groups, so the bias is overestimated by up to a third.

    For more than two classes, f_c = a_c + b z_c with one slope for all.
    """
    if scores.ndim == 2:
        return _fit_class_model(target, scores, structure)
    spread = float(np.std(scores))
    if spread == 0:
        design, scale = np.ones((len(scores), 1)), 1.0
    else:  # scaled to about 1, so the optimiser does not depend on the units
        scale = spread
        design = np.column_stack([np.ones(len(scores)), scores / scale])
    return _fit_working_model("score", task, target, design, structure, scale)


def fit_covariate_model(
    task: str, target: Array, features: Any, structure: Structure
) -> WorkingModel:
    """Fit a working model in which f is linear in all numeric covariates, as in the paper.

    Notes
    -----
    In regression, restricted maximum likelihood estimates the variance of groups without bias from the
    number of covariates. In simulations of 100 rows in 10 and 5 groups with ten covariates, it
    estimated the bias of ridge regression at 105% (standard error 8) of the truth, while the score
    model estimated it at 133% (11). In classification there is no such estimate, and covariates absorb
    the variance.
    """
    frame = pd.DataFrame(features)
    wrong = [str(name) for name in frame.columns if not pd.api.types.is_numeric_dtype(frame[name])]
    if wrong:
        raise InputError(
            f"working='glmm' needs numeric features; {', '.join(map(repr, wrong[:5]))} are not. Use "
            "working='score'."
        )
    numbers = frame.to_numpy(dtype=float)
    if not np.isfinite(numbers).all():
        raise InputError(
            "working='glmm' needs features without missing or infinite values. Use working='score'."
        )
    spread = numbers.std(axis=0)
    varying = numbers[:, spread > 0]
    scaled = (varying - varying.mean(axis=0)) / spread[spread > 0]
    design = np.column_stack([np.ones(len(scaled)), scaled])
    if design.shape[1] >= len(design) // 2:
        raise InputError(
            f"working='glmm' has {design.shape[1]} coefficients for {len(design)} rows. Use "
            "working='score'."
        )
    return _fit_working_model("glmm", task, target, design, structure, 1.0)


def _fit_working_model(
    source: str, task: str, target: Array, design: Array, structure: Structure, scale: float
) -> WorkingModel:
    fit: Any
    if structure.field is not None:
        place = structure.field
        fit = fit_field(target, design, place.coordinates, task, kernel=place.kernel)
        sd, low, high = (fit.sd,), (fit.sd_low,), (fit.sd_high,)
        names: Sequence[str] = ["the field"]
    else:
        codes = [level.codes for level in structure.levels]
        fitter = fit_mixed_logistic if task == "classification" else fit_mixed_linear
        fit = fitter(target, design, codes)
        sd, low, high = fit.sd, fit.sd_low, fit.sd_high
        names = [level.name for level in structure.levels]
    mean = design @ fit.coefficients
    coefficients = np.array(fit.coefficients, dtype=float)
    if source == "score" and len(coefficients) == 2:
        coefficients[1] /= scale
    return WorkingModel(
        task=task,
        mean=mean,
        sd=tuple(map(float, sd)),
        sd_low=tuple(map(float, low)),
        sd_high=tuple(map(float, high)),
        noise=fit.noise,
        reach=getattr(fit, "reach", None),
        kernel=KERNELS[0] if structure.field is None else structure.field.kernel,
        source=source,
        coefficients=tuple(coefficients.tolist()),
        levels=tuple(level.name for level in structure.grouping),
        rows=digest_rows(target, structure),
        problems=_problems(fit),
        warnings=(
            *_small_groups(structure),
            *_missing_variance(task, fit, sd, names),
            *_capped_field(fit),
        ),
    )


def _fit_class_model(target: Array, scores: Array, structure: Structure) -> WorkingModel:
    """Fit the working model of more than two classes, from scores of each."""
    count = scores.shape[1]
    codes = [level.codes for level in structure.levels]
    fit = fit_mixed_softmax(target.astype(np.intp), count, scores, codes)
    mean = np.broadcast_to(fit.coefficients[:count], scores.shape)
    if len(fit.coefficients) > count:
        mean = mean + fit.coefficients[count] * scores
    names = [level.name for level in structure.levels]
    return WorkingModel(
        task="classification",
        mean=np.array(mean),
        sd=fit.sd,
        sd_low=fit.sd_low,
        sd_high=fit.sd_high,
        source="score",
        coefficients=tuple(map(float, fit.coefficients)),
        levels=tuple(names),
        rows=digest_rows(target, structure),
        problems=_problems(fit),
        warnings=(
            *_small_groups(structure, several=True),
            *_missing_variance("classification", fit, fit.sd, names),
        ),
    )


def _problems(fit: Any) -> CodedMessages:
    if fit.separated:
        return (
            (
                "B332",
                "the classes separate: by the score, or because groups have rows of only one class, so "
                "the variance between groups has no upper end. No correction can be computed; trust the "
                "score with whole groups left out.",
            ),
        )
    if not fit.converged:
        return (
            (
                "B333",
                "the variance between groups could not be estimated: the optimiser found no maximum of "
                "the likelihood. No correction is given; trust the score with whole groups left out.",
            ),
        )
    return ()


def _small_groups(structure: Structure, *, several: bool = False) -> CodedMessages:
    messages = []
    what = "several levels at once" if len(structure.levels) > 1 else "log odds of several classes"
    for level in structure.grouping:
        sizes = np.bincount(level.codes)
        if level.n_groups < FEW_GROUPS:
            message = (
                f"{level.name!r} has {level.n_groups} groups: the correction is right on average, but "
                "uncertain for any one table; mind the interval."
            )
            messages.append(("B335", message))
        if np.median(sizes) < SMALL_GROUPS and (several or len(structure.levels) > 1):
            message = (
                f"half of the groups of {level.name!r} have {int(np.median(sizes))} rows or fewer; the "
                f"variance of {what} is then estimated too small."
            )
            messages.append(("B341", message))
    return tuple(messages)


def _missing_variance(
    task: str, fit: Any, sd: Sequence[float], names: Sequence[str]
) -> CodedMessages:
    total = np.sqrt(sum(s**2 for s in sd) + (fit.noise or 0.0) ** 2)
    least = NO_VARIANCE * (1.0 if task == "classification" else float(total))
    return tuple(
        (
            "B336",
            f"no variance between the groups of {name!r} was found (standard deviation {value:.2g}); "
            "their part of the correction is 0. The upper end of the interval allows for variance "
            "that was missed.",
        )
        for name, value in zip(names, sd, strict=True)
        if value < least
    )


def fit_null_model(task: str, target: Array, structure: Structure) -> tuple[float, ...]:
    """Return the standard deviations of all levels in a model without fixed effects."""
    if task == "classification" and len(np.unique(target)) > 2:
        classes = target.astype(np.intp)
        codes = [level.codes for level in structure.levels]
        count = int(classes.max()) + 1
        return fit_mixed_softmax(classes, count, None, codes, intervals=False).sd
    fitter = fit_mixed_logistic if task == "classification" else fit_mixed_linear
    design = np.ones((len(target), 1))
    fit = fitter(target, design, [level.codes for level in structure.levels], intervals=False)
    return tuple(map(float, fit.sd))


def _capped_field(fit: Any) -> CodedMessages:
    if not getattr(fit, "capped", False):
        return ()
    message = (
        f"the rows do not determine the variance of the field, which was limited to a standard deviation "
        f"of {fit.sd:.3g}. Trust the score with whole regions left out."
    )
    return (("B341", message),)


def matched_world(given: WorkingModel, target: Any, structure: Structure) -> WorkingModel:
    """Return a given working model with its levels in the order of this structure.

    Raises
    ------
    InputError
        If it belongs to other groups or other rows, or to a field instead of groups.
    """
    names = tuple(level.name for level in structure.grouping)
    if not given.levels:  # a hand-written model
        if len(given.sd) == len(names) and (given.reach is None) == (structure.field is None):
            return replace(given, source="given")
        raise InputError(
            f"working has {len(given.sd)} standard deviations and reach={given.reach}; these rows have "
            f"the groups {list(names)}, "
            + ("without coordinates." if structure.field is None else "with coordinates.")
        )
    field = given.reach is not None
    if set(given.levels) != set(names) or field != (structure.field is not None):
        raise InputError(
            f"working has the groups {list(given.levels)}{' and coordinates' * field}; these rows have "
            f"{list(names)}{' and coordinates' * (structure.field is not None)}. Give a report of the "
            "same groups."
        )
    if given.rows and given.rows != digest_rows(target, structure):
        raise InputError(
            "working belongs to other rows, or to these rows in another order; give a report of the same "
            "table."
        )
    order = [given.levels.index(name) for name in names]
    return replace(
        given,
        source="given",
        levels=names,
        sd=tuple(given.sd[place] for place in order),
        sd_low=tuple(given.sd_low[place] for place in order),
        sd_high=tuple(given.sd_high[place] for place in order),
    )
