"""Learners that are linear in known features: their bias needs no refits."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
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

from mlflow_b3.correlated.structure import Array
from mlflow_b3.data import AuditData
from mlflow_b3.folds import Fold
from mlflow_b3.refit.interface import Learner
from mlflow_b3.refit.sklearn import CloneLearner

#: Steps before the model that do not look at the target, and hardly change with the rows of a fold.
TRANSFORMERS = (
    *(MaxAbsScaler, MinMaxScaler, OneHotEncoder, PolynomialFeatures, RobustScaler),
    *(SimpleImputer, StandardScaler),
)
#: Rows and numbers in the features up to which dense matrices are made.
MOST_ROWS, MOST_NUMBERS = 3000, 3_000_000


@dataclass(frozen=True, kw_only=True)
class LinearLearner:
    """A model that is linear in its features, as trained on all rows.

    Attributes
    ----------
    kind : {"logistic", "linear"}
    features : array (n, d)
        Φ, with a column of ones where the model has an intercept.
    coefficients : array (d,)
        Of the fit on all rows.
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
    """Return the linear model that a learner is; None where it is none, or too large.

    Known are `LogisticRegression` with a squared penalty or none, `LinearRegression` and `Ridge` of
    scikit-learn, alone or after steps that do not look at the target, without weights.
    """
    if type(learner) is not CloneLearner or data.weight is not None:
        return None
    if data.n_rows > MOST_ROWS:
        return None
    estimator = clone(learner._estimator)
    model = estimator.steps[-1][1] if isinstance(estimator, Pipeline) else estimator
    before = [step for _, step in estimator.steps[:-1]] if isinstance(estimator, Pipeline) else []
    strength = _penalty(model)
    if strength is None or not all(map(_is_plain, before)):
        return None
    try:
        fitted = estimator.fit(data.features, data.target)
    except Exception:  # what goes wrong here goes wrong in the refits, which report it
        return None
    transformed = fitted[:-1].transform(data.features) if before else data.features
    model = fitted.steps[-1][1] if isinstance(fitted, Pipeline) else fitted
    found = _assembled(model, transformed, strength, data.n_rows)
    if found is None or strength:
        return found
    # without a penalty a fold whose columns repeat each other has no one solution
    parts = [found.features, *(found.features[fold.training] for fold in folds)]
    whole = all(np.linalg.matrix_rank(part) == part.shape[1] for part in parts)
    return found if whole else None


def _assembled(model: Any, transformed: Any, strength: float, n_rows: int) -> LinearLearner | None:
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


def _penalty(model: Any) -> float | None:
    """Return λ of a linear model; None for models of which the formula does not hold."""
    if type(model) is LinearRegression:
        return None if model.positive else 0.0
    if type(model) is Ridge:
        alone = np.ndim(model.alpha) == 0 and not model.positive
        return float(model.alpha) if alone else None
    if type(model) is not LogisticRegression or model.class_weight is not None:
        return None
    if model.solver == "liblinear" and model.fit_intercept:  # which penalises the intercept too
        return None
    if model.penalty in ("l1", "elasticnet") or (model.l1_ratio or 0.0) != 0.0:
        return None
    unpenalised = model.penalty is None or not np.isfinite(model.C)
    return 0.0 if unpenalised else 1.0 / float(model.C)


def _is_plain(step: Any) -> bool:
    """Whether a step before the model looks at nothing but the features."""
    if isinstance(step, str) or step is None:
        return step in ("passthrough", "drop", None)
    if isinstance(step, ColumnTransformer):
        parts = [part for _, part, _ in step.transformers] + [step.remainder]
        return all(map(_is_plain, parts))
    if isinstance(step, Pipeline):
        return all(_is_plain(part) for _, part in step.steps)
    return type(step) in TRANSFORMERS
