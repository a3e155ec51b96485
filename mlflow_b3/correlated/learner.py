"""`MixedLogistic`: a scikit-learn classifier with random intercepts."""

from collections.abc import Sequence
from typing import Any, Self

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.special import expit
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.validation import check_is_fitted

from mlflow_b3.correlated.likelihood import Intercepts, joint_mode
from mlflow_b3.correlated.mixed import (
    SMALLEST_RIDGE,
    as_codes,
    as_design,
    fit_mixed_logistic,
    whitened,
)
from mlflow_b3.correlated.structure import Array
from mlflow_b3.errors import InputError


class MixedLogistic(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Logistic regression with normal random intercepts of groups.

    Parameters
    ----------
    groups : sequence of str or int
        The columns with the groups, one for each level; positions if X is an array. All other
        columns are fixed effects, with an intercept.
    effects : sequence of str or int, default ()
        The columns of `groups` whose intercepts are used in predictions. A group that was not seen
        in training has intercept 0. Predictions for new groups need none.
    ridge : float, default 1e-3
        Subtract ridge |β|²/2 from the log likelihood.
    sd : sequence of float, optional
        Standard deviations of the intercepts, one for each level; estimated by default.

    Attributes
    ----------
    classes_ : array
        The two labels.
    coef_ : array (1, p), intercept_ : array (1,)
    sd_ : tuple of float
    effects_ : tuple of pandas.Series
        The most likely intercept of each group, one series for each level.
    n_features_in_ : int
    feature_names_in_ : array
        Only if X is a DataFrame.

    Notes
    -----
    Coefficients and intercepts are estimated jointly (`nAGQ = 0` of the R package lme4), at the
    standard deviations that maximise Laplace's approximation. Yuval & Rosset, "Cross Validation for
    Correlated Data in Classification Models", AISTATS 2025, PMLR, fit such a model by GPBoost. The
    ridge, which they do not have, keeps coefficients finite if a column separates the classes of a
    small fold.
    """

    def __init__(
        self,
        groups: Sequence[Any] = (),
        effects: Sequence[Any] = (),
        ridge: float = 1e-3,
        sd: Sequence[float] | None = None,
    ) -> None:
        self.groups = groups
        self.effects = effects
        self.ridge = ridge
        self.sd = sd

    @property
    def group_columns(self) -> tuple[Any, ...]:
        """The columns that it needs in addition to its features."""
        return tuple(self.groups)

    def fit(self, X: Any, y: Any) -> Self:
        """Fit coefficients, intercepts and, unless given, their standard deviations."""
        labels = np.asarray(y)
        self.classes_, target = np.unique(labels, return_inverse=True)
        if len(self.classes_) != 2:
            raise InputError(
                f"y has {len(self.classes_)} class(es); a logistic regression needs two."
            )
        self._validate(X)
        columns, groups = self._split_columns(X)
        coded = [pd.factorize(group) for group in groups]
        missing = [name for name, (codes, _) in zip(self.groups, coded, strict=True) if -1 in codes]
        if missing:
            raise InputError(
                f"The columns {missing} name no group for some rows; drop these rows, or fill in groups."
            )
        design = np.column_stack([np.ones(len(columns)), columns])
        codes = [codes for codes, _ in coded]
        beta, effects, self.sd_ = self._fit_effects(design, target.astype(float), codes)
        self.intercept_, self.coef_ = beta[:1], beta[None, 1:]
        self.effects_ = tuple(
            pd.Series(effect, index=pd.Index(names))
            for effect, (_, names) in zip(effects, coded, strict=True)
        )
        return self

    def decision_function(self, X: Any) -> Array:
        """Return the log odds of the second class."""
        check_is_fitted(self)
        columns, groups = self._split_columns(X)
        log_odds = self.intercept_[0] + columns @ self.coef_[0]
        for name, effect, group in zip(self.groups, self.effects_, groups, strict=True):
            if name in self.effects:
                log_odds = log_odds + pd.Series(group).map(effect).fillna(0.0).to_numpy(float)
        return np.asarray(log_odds, dtype=float)

    def predict_proba(self, X: Any) -> Array:
        """Return the probabilities of both classes."""
        chance = expit(self.decision_function(X))
        return np.column_stack([1 - chance, chance])

    def predict(self, X: Any) -> NDArray[Any]:
        """Return the more probable class."""
        second = self.decision_function(X) > 0
        return np.asarray(self.classes_[second.astype(int)])

    def __sklearn_tags__(self) -> Any:
        """Declare that only two classes are supported."""
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        return tags

    def _fit_effects(
        self, design: Array, target: Array, codes: list[Any]
    ) -> tuple[Array, tuple[Array, ...], tuple[float, ...]]:
        """Return coefficients, intercepts by level, and their standard deviations."""
        if self.sd is None:
            fit = fit_mixed_logistic(
                target, design, codes, ridge=self.ridge, method="laplace0", intervals=False
            )
            return fit.coefficients, fit.effects, fit.sd
        design, target = as_design(design, target)
        levels = Intercepts(as_codes(codes, len(target)))
        sd = np.array([self.sd[level] for level in levels.order], dtype=float)
        columns, back = whitened(design)
        penalty = self.ridge * back.T @ back + SMALLEST_RIDGE * np.eye(columns.shape[1])
        mode = joint_mode(target, columns, levels, sd, penalty=penalty)
        return (
            back @ mode.coefficients,
            levels.as_given(mode.effects, sd),
            tuple(float(size) for size in self.sd),
        )

    def _validate(self, X: Any) -> None:
        """Check the parameters and store the names and number of the columns of X."""
        if not self.groups:
            raise InputError("groups is empty; name the columns with the groups.")
        unknown = [name for name in self.effects if name not in self.groups]
        if unknown:
            raise InputError(
                f"effects names {unknown}, which are not in groups={self.groups!r}; add them to "
                "groups, or leave them out."
            )
        if self.sd is not None and (
            len(self.sd) != len(self.groups) or not np.all(np.asarray(self.sd) >= 0)
        ):
            raise InputError(
                f"sd={self.sd!r} must have one number from 0 for each of groups={self.groups!r}."
            )
        if isinstance(X, pd.DataFrame):
            self.feature_names_in_ = np.asarray(X.columns, dtype=object)
        elif hasattr(self, "feature_names_in_"):
            del self.feature_names_in_
        self.n_features_in_ = np.shape(X)[1]

    def _split_columns(self, X: Any) -> tuple[Array, list[NDArray[Any]]]:
        """Return the fixed effects and the groups of each level."""
        if np.ndim(X) != 2 or np.shape(X)[1] != self.n_features_in_:
            raise InputError(
                f"X has the shape {np.shape(X)}; the model takes {self.n_features_in_} columns."
            )
        table = X if isinstance(X, pd.DataFrame) else pd.DataFrame(np.asarray(X))
        names = getattr(self, "feature_names_in_", None)
        names = list(table.columns) if names is None else list(names)
        missing = [name for name in [*names, *self.groups] if name not in table.columns]
        if missing:
            raise InputError(f"X lacks the columns {missing}; it has {list(table.columns)}.")
        fixed = [name for name in names if name not in self.groups]
        groups = [np.asarray(table[name]) for name in self.groups]
        return table[fixed].to_numpy(dtype=float), groups
