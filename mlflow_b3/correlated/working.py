"""The working model: what the simulated world is made of, estimated from the table."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd

from mlflow_b3.correlated.field_fit import fit_field
from mlflow_b3.correlated.mixed_linear import fit_mixed_linear
from mlflow_b3.correlated.mixed_logistic import fit_mixed_logistic
from mlflow_b3.correlated.report import FEW_GROUPS
from mlflow_b3.correlated.structure import (
    Array,
    Level,
    Structure,
    WorkingModel,
    digest_rows,
    is_within,
)
from mlflow_b3.errors import InputError

#: Groups of a level below which nothing is said about their variance.
LEAST_GROUPS = 5
#: Rows of the median group below which variance components are hard to tell from noise.
SMALL_GROUPS = 4
#: A standard deviation below this share of the largest scale counts as none.
NO_VARIANCE = 0.05

Told = tuple[tuple[str, str], ...]


def structure_problems(structure: Structure) -> list[tuple[str, str]]:
    """Return why no bias can be computed for groups like these, whatever the target is.

    Raises
    ------
    InputError
        For columns that group nothing.
    """
    useless = [_why_useless(level) for level in structure.grouping if _groups_nothing(level)]
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
            f"{level.name!r} has {level.n_groups} groups; their variance cannot be told from so few. "
            f"Corrected cross-validation needs {LEAST_GROUPS} at least, and says little below "
            f"{FEW_GROUPS}.",
        )
        for level in structure.grouping
        if level.n_groups < LEAST_GROUPS
    ]


def _groups_nothing(level: Level) -> bool:
    return level.n_groups < 2 or int(np.bincount(level.codes).max()) < 2


def _why_useless(level: Level) -> str:
    if level.n_groups < 2:
        return f"{level.name!r} has the same value in all rows; leave it out."
    return (
        f"{level.name!r} has a different value in every row, so that no two rows share a group; leave "
        "it out."
    )


def fit_score_model(task: str, target: Array, scores: Array, structure: Structure) -> WorkingModel:
    """Return the world in which the recalibrated score of the audited model is all that is fixed.

    f = a + b z, with z the score of each row by the model that was trained without its group, and
    a, b and the standard deviations of the groups estimated together.

    Notes
    -----
    Yuval and Rosset (AISTATS 2025) put all covariates into f. Covariates that differ between groups
    then take over their variance: in the paper's own design that recovers 41 to 69 % of the bias. With
    two coefficients nothing can, and 85 to 101 % are recovered; weak scores leave some fixed signal
    to the groups, so that the bias is over-estimated by up to a third.
    """
    spread = float(np.std(scores))
    if spread == 0:
        design, scale = np.ones((len(scores), 1)), 1.0
    else:  # of about one, so that the optimiser need not know the units
        scale = spread
        design = np.column_stack([np.ones(len(scores)), scores / scale])
    return _fitted("score", task, target, design, structure, scale)


def fit_covariate_model(
    task: str, target: Array, features: Any, structure: Structure
) -> WorkingModel:
    """Return the world in which f is linear in all numeric covariates, as the paper has it.

    Notes
    -----
    For numbers the variance of groups is found by restricted maximum likelihood, which is not biased
    by how many covariates there are: in simulations of 100 rows in 10 and 5 groups with ten covariates
    the bias of ridge regression came out as 105 % (standard error 8) of the truth, by the score as 133
    % (11). For classes there is no such estimate, and covariates eat the variance.
    """
    frame = pd.DataFrame(features)
    wrong = [str(name) for name in frame.columns if not pd.api.types.is_numeric_dtype(frame[name])]
    if wrong:
        raise InputError(
            f"working='glmm' needs features that are numbers; {', '.join(map(repr, wrong[:5]))} are "
            "not. Use working='score'."
        )
    numbers = frame.to_numpy(dtype=float)
    if not np.isfinite(numbers).all():
        raise InputError("working='glmm' needs features without gaps. Use working='score'.")
    spread = numbers.std(axis=0)
    varying = numbers[:, spread > 0]
    scaled = (varying - varying.mean(axis=0)) / spread[spread > 0]
    design = np.column_stack([np.ones(len(scaled)), scaled])
    if design.shape[1] >= len(design) // 2:
        raise InputError(
            f"working='glmm' has {design.shape[1]} coefficients for {len(design)} rows. Use "
            "working='score'."
        )
    return _fitted("glmm", task, target, design, structure, 1.0)


def _fitted(
    source: str, task: str, target: Array, design: Array, structure: Structure, scale: float
) -> WorkingModel:
    fit: Any
    if structure.field is not None:
        fit = fit_field(target, design, structure.field.coordinates, task)
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
        source=source,
        coefficients=tuple(coefficients.tolist()),
        levels=tuple(level.name for level in structure.grouping),
        rows=digest_rows(target, structure),
        problems=_problems(fit),
        warnings=(
            *_small_groups(structure),
            *_without_variance(task, fit, sd, names),
            *_capped(fit),
        ),
    )


def _problems(fit: Any) -> Told:
    if fit.separated:
        return (
            (
                "B332",
                "the classes separate: by the score, or because groups have rows of one class only, so "
                "that the variance between groups has no upper end. No correction can be computed; "
                "leaving out whole groups is the score to trust.",
            ),
        )
    if not fit.converged:
        return (
            (
                "B333",
                "the variance between groups could not be estimated: the likelihood has no maximum that "
                "the optimiser could find. No correction is given; leaving out whole groups is the "
                "score to trust.",
            ),
        )
    return ()


def _small_groups(structure: Structure) -> Told:
    told = []
    for level in structure.grouping:
        sizes = np.bincount(level.codes)
        if level.n_groups < FEW_GROUPS:
            message = (
                f"{level.name!r} has {level.n_groups} groups: the correction is right on average, but "
                "uncertain for any one table; mind the interval."
            )
            told.append(("B335", message))
        if np.median(sizes) < SMALL_GROUPS and len(structure.levels) > 1:
            message = (
                f"half of the groups of {level.name!r} have {int(np.median(sizes))} rows or fewer; the "
                "variance of several levels at once is then estimated too small."
            )
            told.append(("B341", message))
    return tuple(told)


def _without_variance(task: str, fit: Any, sd: Sequence[float], names: Sequence[str]) -> Told:
    total = np.sqrt(sum(s**2 for s in sd) + (fit.noise or 0.0) ** 2)
    least = NO_VARIANCE * (1.0 if task == "classification" else float(total))
    return tuple(
        (
            "B336",
            f"no variance between the groups of {name!r} was found (standard deviation {value:.2g}); "
            "their part of the correction is none. The upper end of the interval allows for variance "
            "that was missed.",
        )
        for name, value in zip(names, sd, strict=True)
        if value < least
    )


def fit_null_model(task: str, target: Array, structure: Structure) -> tuple[float, ...]:
    """Return the standard deviations of all levels where nothing else explains the target."""
    fitter = fit_mixed_logistic if task == "classification" else fit_mixed_linear
    design = np.ones((len(target), 1))
    fit = fitter(target, design, [level.codes for level in structure.levels], intervals=False)
    return tuple(map(float, fit.sd))


def _capped(fit: Any) -> Told:
    if not getattr(fit, "capped", False):
        return ()
    message = (
        f"the variance of the field ran away and was held at a standard deviation of {fit.sd:.3g}; the "
        "rows do not tell it. Trust the score by whole regions left out."
    )
    return (("B341", message),)


def matched_world(given: WorkingModel, target: Any, structure: Structure) -> WorkingModel:
    """Return a world that another model gives, in the order of these groups.

    Raises
    ------
    InputError
        Where it is of other groups, other rows, or of a field instead of groups.
    """
    names = tuple(level.name for level in structure.grouping)
    if not given.levels:  # made by hand
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
            f"working is of the groups {list(given.levels)}{' and coordinates' * field}; here are "
            f"{list(names)}{' and coordinates' * (structure.field is not None)}. Give a report of the same."
        )
    if given.rows and given.rows != digest_rows(target, structure):
        raise InputError(
            "working is of other rows, or of these in another order; give a report of the same table."
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
