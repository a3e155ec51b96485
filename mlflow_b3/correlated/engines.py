"""Engines that compute the bias without refitting the audited model."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LinearRegression, LogisticRegression, Ridge
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import (
    MaxAbsScaler,
    MinMaxScaler,
    OneHotEncoder,
    PolynomialFeatures,
    RobustScaler,
    StandardScaler,
)

from mlflow_b3.correlated.formulas import Bias, batched_bias, fast_bias, joint_bias, linear_bias
from mlflow_b3.correlated.learner import MixedLogistic
from mlflow_b3.correlated.structure import Array, Structure, WorkingModel
from mlflow_b3.data.folds import Fold
from mlflow_b3.data.losses import CLASSIFICATION, REGRESSION, Loss
from mlflow_b3.data.table import AuditData
from mlflow_b3.errors import InputError
from mlflow_b3.refit.learner import Learner
from mlflow_b3.refit.sklearn import CloneLearner

# --- Learners that are linear in known features, whose bias needs no refits

#: Steps before the model that do not use the target and hardly depend on the rows of a fold.
TRANSFORMERS = (
    *(MaxAbsScaler, MinMaxScaler, OneHotEncoder, PolynomialFeatures, RobustScaler),
    *(SimpleImputer, StandardScaler),
)
#: Largest number of rows, and of values in the features, for dense matrices.
MOST_ROWS, MOST_NUMBERS = 3000, 3_000_000


@dataclass(frozen=True, kw_only=True)
class LinearLearner:
    """A model that is linear in its features, trained on all rows.

    Attributes
    ----------
    kind : {"logistic", "linear"}
    features : array (n, d)
        Φ, with a column of ones if the model has an intercept.
    coefficients : array (d,)
        Coefficients of the fit on all rows.
    penalty : array (d,)
        λ of each coefficient in the term λ β²/2; 0 for the intercept.
    """

    kind: str
    features: Array
    coefficients: Array
    penalty: Array


def linear_learner(
    learner: Learner, data: AuditData, folds: Sequence[Fold]
) -> LinearLearner | None:
    """Return a learner as a linear model, or None if it is not linear or too large.

    Supported are scikit-learn's `LogisticRegression` with a squared penalty or none,
    `LinearRegression` and `Ridge`, alone or after steps that do not use the target, without weights.
    """
    if type(learner) is not CloneLearner or data.weight is not None:
        return None
    if data.n_rows > MOST_ROWS:
        return None
    estimator = clone(learner._estimator)
    model = estimator.steps[-1][1] if isinstance(estimator, Pipeline) else estimator
    before = [step for _, step in estimator.steps[:-1]] if isinstance(estimator, Pipeline) else []
    strength = _penalty_strength(model)
    if strength is None or not all(map(_ignores_target, before)):
        return None
    try:
        fitted = estimator.fit(data.features, data.target)
    except Exception:  # the refits fail in the same way and report it
        return None
    transformed = fitted[:-1].transform(data.features) if before else data.features
    model = fitted.steps[-1][1] if isinstance(fitted, Pipeline) else fitted
    found = _build_linear_learner(model, transformed, strength, data.n_rows)
    if found is None or strength:
        return found
    # without a penalty, a fold with linearly dependent columns has no unique solution
    parts = [found.features, *(found.features[fold.training] for fold in folds)]
    whole = all(np.linalg.matrix_rank(part) == part.shape[1] for part in parts)
    return found if whole else None


def _build_linear_learner(
    model: Any, transformed: Any, strength: float, n_rows: int
) -> LinearLearner | None:
    width = int(np.shape(transformed)[1])
    if n_rows * (width + 1) > MOST_NUMBERS or np.size(model.coef_) != width:
        return None
    dense = transformed.toarray() if hasattr(transformed, "toarray") else transformed
    features = np.asarray(dense, dtype=float)
    coefficients: NDArray[Any] = np.ravel(model.coef_).astype(float)
    penalty = np.full(width, strength)
    if model.fit_intercept:
        features = np.column_stack([np.ones(n_rows), features])
        coefficients = np.concatenate([np.ravel(model.intercept_)[:1], coefficients])
        penalty = np.concatenate([[0.0], penalty])
    kind = "logistic" if isinstance(model, LogisticRegression) else "linear"
    return LinearLearner(kind=kind, features=features, coefficients=coefficients, penalty=penalty)


def _penalty_strength(model: Any) -> float | None:
    """Return λ of a linear model; None for models that the formula does not cover."""
    if type(model) is LinearRegression:
        return None if model.positive else 0.0
    if type(model) is Ridge:
        alone = np.ndim(model.alpha) == 0 and not model.positive
        return float(model.alpha) if alone else None
    if type(model) is not LogisticRegression or model.class_weight is not None:
        return None
    if model.solver == "liblinear" and model.fit_intercept:  # it penalises the intercept too
        return None
    if model.penalty in ("l1", "elasticnet") or (model.l1_ratio or 0.0) != 0.0:
        return None
    unpenalised = model.penalty is None or not np.isfinite(model.C)
    return 0.0 if unpenalised else 1.0 / float(model.C)


def _ignores_target(step: Any) -> bool:
    """Return whether a step before the model uses only the features."""
    if isinstance(step, str) or step is None:
        return step in ("passthrough", "drop", None)
    if isinstance(step, ColumnTransformer):
        parts = [part for _, part, _ in step.transformers] + [step.remainder]
        return all(map(_ignores_target, parts))
    if isinstance(step, Pipeline):
        return all(_ignores_target(part) for _, part in step.steps)
    return type(step) in TRANSFORMERS


# --- Engines that need no refits of the audited model

#: Losses that the formulas cover.
KNOWN_LOSSES = ("log", "zero_one", "hinge", "brier")
#: Features per row up to which a regression on all features estimates the variance of groups well.
FEW_FEATURES = 0.25
#: Rows per feature from which on the formula for log loss is as good as refits.
ROWS_PER_FEATURE = 30
#: Minimum number of simulated samples, which are cheap without refits.
LEAST_DRAWS = 2000


@dataclass(frozen=True, kw_only=True)
class Engine:
    """An engine that computes the bias for any working model.

    Attributes
    ----------
    name : {"fast", "joint"}
    bias : callable
        `WorkingModel → Bias`
    exact : bool
        Whether it is a closed form without simulated samples.
    features : array (n, d) or None
        The features in which the learner is linear.
    """

    name: str
    bias: Callable[[WorkingModel], Bias]
    exact: bool = False
    features: Array | None = None


def is_linear_in_few(engine: Engine | None, task: str) -> bool:
    """Return whether a regression learner is linear in few features for its number of rows."""
    if engine is None or engine.features is None or task != "regression":
        return False
    rows, columns = engine.features.shape
    return bool(columns <= FEW_FEATURES * rows)


def find_engine(
    wanted: str,
    learner: Learner,
    data: AuditData,
    structure: Structure,
    folds: Sequence[Fold],
    loss: Loss,
    *,
    draws: int,
    seed: int,
) -> Engine | None:
    """Return the requested engine, or the best one for "auto"; None if refits are needed.

    Raises
    ------
    InputError
        If the requested engine does not support the model.
    """
    if wanted not in ("auto", "fast", "joint"):
        return None
    splits = [(fold.training, fold.validation) for fold in folds]
    mixed = _mixed_logistic(learner)
    # a custom loss may have the name of a built-in one
    ours = {**CLASSIFICATION, **REGRESSION}.get(loss.name) is loss
    if wanted in ("auto", "joint") and mixed is not None and structure.field is None and ours:
        found = _joint_engine(mixed, data, structure, splits, loss.name, draws, seed)
        if found is not None or wanted == "auto":
            return found
    if wanted == "joint":
        raise InputError(
            "engine='joint' is for mlflow_b3.correlated.MixedLogistic whose groups are those of cvc and "
            f"whose effects are the groups that are not new, with up to {MOST_ROWS} rows and the losses "
            f"{', '.join(KNOWN_LOSSES)}; this model needs engine='full'."
        )
    known = KNOWN_LOSSES if learner.task == "classification" else ("squared",)
    linear = linear_learner(learner, data, folds) if ours and loss.name in known else None
    if linear is not None:
        count = max(draws, LEAST_DRAWS)
        formula = wanted == "fast"
        return _fast_engine(linear, structure, splits, loss.name, count, seed, formula=formula)
    if wanted == "fast":
        raise InputError(
            "engine='fast' is for linear and logistic regression of scikit-learn without weights, with "
            f"up to {MOST_ROWS} rows and the losses {', '.join((*KNOWN_LOSSES, 'squared'))}; "
            f"{learner.name} with {data.n_rows} rows and the loss {loss.name!r} needs engine='full'."
        )
    return None


def _fast_engine(
    linear: LinearLearner,
    structure: Structure,
    splits: Any,
    loss: str,
    draws: int,
    seed: int,
    *,
    formula: bool,
) -> Engine:
    """Return the engine of a linear learner.

    With few rows for each feature, the formula for log loss is used only on request: it is a
    linearisation, and with nine rows for each feature it was 19% (standard error 5) above refits.
    """
    rows, columns = linear.features.shape
    formula = formula or linear.kind == "linear" or rows >= ROWS_PER_FEATURE * columns
    exact = loss in ("log", "squared") and structure.field is None and formula
    options: dict[str, Any] = {
        "penalty": linear.penalty,
        "draws": max(draws, 2 * len(splits)),
        "seed": seed,
    }

    def bias(model: WorkingModel) -> Bias:
        if linear.kind == "linear":
            return linear_bias(linear.features, model, structure, splits, penalty=linear.penalty)
        if exact:
            fit = linear.coefficients
            return fast_bias(linear.features, fit, model, structure, splits, loss, **options)
        return batched_bias(linear.features, model, structure, splits, loss, **options)

    return Engine(name="fast", bias=bias, exact=exact, features=linear.features)


def _mixed_logistic(learner: Learner) -> MixedLogistic | None:
    estimator = getattr(learner, "_estimator", None)
    plain = type(learner) is CloneLearner and isinstance(estimator, MixedLogistic)
    return estimator if plain else None


def unused_groups(learner: Learner) -> tuple[str, ...]:
    """Return the group columns of a learner that its predictions do not use."""
    mixed = _mixed_logistic(learner)
    if mixed is None:
        return ()
    return tuple(str(name) for name in mixed.groups if name not in mixed.effects)


def _joint_engine(
    estimator: MixedLogistic,
    data: AuditData,
    structure: Structure,
    splits: Any,
    loss: str,
    draws: int,
    seed: int,
) -> Engine | None:
    named = {level.name: level for level in structure.levels}
    if loss not in KNOWN_LOSSES or set(estimator.groups) != set(named) or data.weight is not None:
        return None
    again = {level.name for level in structure.levels if not level.new}
    if set(estimator.effects) != again or data.n_rows > MOST_ROWS:
        return None
    fitted = clone(estimator).fit(data.features, data.target)
    frame = pd.DataFrame(data.features)
    fixed = frame.drop(columns=list(estimator.groups)).to_numpy(dtype=float)
    phi: Array = np.column_stack([np.ones(len(fixed)), fixed])
    by_name = dict(zip(estimator.groups, fitted.sd_, strict=True))
    sd = tuple(float(by_name[level.name]) for level in structure.levels)
    count = max(draws, 2 * len(splits))

    def bias(model: WorkingModel) -> Bias:
        penalty = np.full(phi.shape[1], estimator.ridge)
        return joint_bias(
            phi,
            model,
            structure,
            splits,
            loss,
            learner_sd=sd,
            penalty=penalty,
            draws=count,
            seed=seed,
        )

    return Engine(name="joint", bias=bias)
