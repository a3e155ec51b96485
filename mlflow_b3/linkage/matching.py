"""Match models trained on labelled pairs, and match-and-merge."""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
import pandas as pd
from scipy import optimize
from scipy.special import expit, logit
from sklearn.base import BaseEstimator, clone
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.model_selection import StratifiedKFold, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from mlflow_b3.errors import InputError, check_seed, choose
from mlflow_b3.linkage.leak import Floats
from mlflow_b3.results import Result, not_percentage

# --- Match models: log-odds that two rows belong to one entity, learnt from labelled pairs

MODELS = ("logistic", "boosting")
MOST_FOLDS = 5
#: Probabilities of a user's estimator are kept this far from 0 and 1 to keep log-odds finite.
LEAST_CHANCE = 1e-9


@dataclass(frozen=True, kw_only=True)
class MatchModelSummary(Result):
    """Cross-validated quality of a match model on labelled pairs.

    Attributes
    ----------
    model : str
    n_matches, n_nonmatches : int
    labelled_share : float
        C_V: share of matches among the labelled pairs.
    prior : float
        C_X: share of matches among the pairs to score.
    folds : int
        Folds of the cross-validation behind the following figures, which are on the scale of the
        labelled pairs, before the shift to `prior`.
    log_loss : float
        Mean negative log-likelihood of the labels.
    baseline_log_loss : float
        The same if every pair gets the labelled share as its probability.
    calibration_slope, calibration_intercept : float or None
        Slope and intercept of a logistic regression of the labels on the log-odds: 1 and 0 for a
        calibrated model. A slope below 1 means that log-odds are too far from 0. None if the
        log-odds separate matches from other pairs: the regression is then not determined.
    """

    model: str
    n_matches: int
    n_nonmatches: int
    labelled_share: float
    prior: float
    folds: int
    log_loss: float
    baseline_log_loss: float
    calibration_slope: float | None
    calibration_intercept: float | None


@dataclass(frozen=True, kw_only=True, eq=False)
class MatchModel:
    """A model of the log-odds of a match, given the features of a pair.

    Attributes
    ----------
    estimator : scikit-learn classifier
        Fitted to the labelled pairs.
    shift : float
        logit C_X - logit C_V, added to its log-odds.
    columns : tuple of str or None
        Names of the features in the order of the fit, if they have names.
    n_features : int
    summary : MatchModelSummary
    """

    estimator: Any
    shift: float
    columns: tuple[str, ...] | None
    n_features: int
    summary: MatchModelSummary

    def log_odds(self, features: Any) -> Floats:
        """Return w = log(π/(1 - π)) of each pair, for `correlation_cluster`."""
        matrix = _matrix(features, self.columns, missing=self.summary.model != "logistic")
        if matrix.shape[1] != self.n_features:
            raise InputError(
                f"features has {matrix.shape[1]} columns; the model was fitted to {self.n_features}."
            )
        return _raw_log_odds(self.estimator, matrix, self.summary.model) + self.shift

    def probability(self, features: Any) -> Floats:
        """Return π, the match probability of each pair."""
        return np.asarray(expit(self.log_odds(features)), dtype=float)


def learn_log_odds(
    features: Any,
    labels: Any,
    *,
    prior: float,
    model: "str | BaseEstimator" = "logistic",
    seed: int = 0,
) -> MatchModel:
    """Train a match model on labelled pairs.

    Parameters
    ----------
    features : DataFrame or array, pairs by features
        Numbers that compare the two rows of a pair.
    labels : sequence of bool
        Which labelled pairs are matches.
    prior : float
        C_X: share of matches among the pairs to score. The share among labelled pairs is usually
        different: often half of them are matches, while one pair in thousands is. `swoosh_bounds`
        returns an estimate, `true_share`.
    model : {"logistic", "boosting"} or classifier
        Logistic regression on standardised features, without missing values; gradient boosting,
        which accepts missing values; or a scikit-learn classifier with `predict_proba`. Do not use
        class weights: probabilities must be on the scale of the labelled share.
    seed : int

    Returns
    -------
    MatchModel

    Notes
    -----
    Labelled pairs are a case-control sample: matches and other pairs are drawn at different rates.
    If both are drawn at random, the density ratio P1/P0 of the features is the same as for all
    pairs, and only the intercept is off, by logit C_V - logit C_X. It is corrected. Pairs selected
    because they are hard are not such a sample.

    The thesis estimates P1 and P0 by kernel densities. A classifier estimates their ratio directly,
    and can use more than three features.

    Pairs that share rows are not independent. The held-out figures are therefore slightly
    optimistic.

    Examples
    --------
    >>> from mlflow_b3 import linkage
    >>> similarity = [[0.9], [0.8], [0.7], [0.4], [0.5], [0.3], [0.2], [0.1]]
    >>> match = [True, True, True, True, False, False, False, False]
    >>> model = linkage.learn_log_odds(similarity, match, prior=0.01)
    >>> model.summary.n_matches, model.summary.folds
    (4, 4)
    >>> odds = model.log_odds([[0.2], [0.9]])
    >>> bool(odds[0] < odds[1])
    True
    """
    check_seed(seed)
    name = model if isinstance(model, str) else type(model).__name__
    estimator = _estimator(model, seed)
    columns = tuple(map(str, features.columns)) if isinstance(features, pd.DataFrame) else None
    matrix = _matrix(features, columns, missing=name != "logistic")
    truth = _labels(labels, len(matrix))
    if isinstance(prior, bool) or not 0 < prior < 1:
        raise InputError(
            f"prior={prior!r} must lie between 0 and 1: the share of matches.{not_percentage(prior)}"
        )
    folds = min(MOST_FOLDS, int(truth.sum()), int((~truth).sum()))
    if folds < 2:
        raise InputError(
            f"labels: {int(truth.sum())} matches and {int((~truth).sum())} other pairs; at least two "
            "of each are needed."
        )
    held_out = cross_val_predict(
        _LogOdds(estimator, name),
        matrix,
        truth,
        cv=StratifiedKFold(folds, shuffle=True, random_state=seed),
        method="predict",
    )
    share = float(truth.mean())
    slope, intercept = _calibration(held_out, truth)
    summary = MatchModelSummary(
        model=name,
        n_matches=int(truth.sum()),
        n_nonmatches=int((~truth).sum()),
        labelled_share=share,
        prior=float(prior),
        folds=folds,
        log_loss=_log_loss(held_out, truth),
        baseline_log_loss=float(log_loss(truth, np.full(len(truth), share))),
        calibration_slope=slope,
        calibration_intercept=intercept,
    )
    return MatchModel(
        estimator=clone(estimator).fit(matrix, truth),
        shift=float(logit(prior) - logit(share)),
        columns=columns,
        n_features=matrix.shape[1],
        summary=summary,
    )


def expected_disagreement(w_match: Any, w_nonmatch: Any, n1: float, n0: float) -> float:
    """Return the expected cost of the true clusters, a criterion for feature selection.

    Parameters
    ----------
    w_match, w_nonmatch : sequence of float
        log P1/P0 of labelled matches and of labelled other pairs, without a prior.
    n1, n0 : float
        Numbers of matches and of other pairs to cluster.

    Notes
    -----
    n1·E[max(0, -w) | match] + n0·E[max(0, w) | no match]. The thesis (theorem 2) calls it the expected
    disagreement of the optimal clustering. It is that of the *true* clusters, and therefore an upper
    bound, by a tenth to a half in small simulations. Smaller is better, but uninformative features
    (w = 0) also reach 0. Do not use it as the only criterion.
    """
    scores = []
    for name, values in (("w_match", w_match), ("w_nonmatch", w_nonmatch)):
        scores.append(np.asarray(values, dtype=float))
        if scores[-1].ndim != 1 or not len(scores[-1]) or not np.isfinite(scores[-1]).all():
            raise InputError(f"{name} must be a list of finite numbers.")
    if not (0 <= n1 < np.inf and 0 <= n0 < np.inf):
        raise InputError(f"n1={n1!r} and n0={n0!r} must be numbers of pairs.")
    return float(n1 * np.maximum(0, -scores[0]).mean() + n0 * np.maximum(0, scores[1]).mean())


class _LogOdds(BaseEstimator):  # type: ignore[misc]
    """Predict log-odds instead of classes, for cross-validation."""

    def __init__(self, estimator: Any, name: str) -> None:
        self.estimator = estimator
        self.name = name

    def fit(self, X: Floats, y: Any) -> "_LogOdds":
        self.fitted_ = clone(self.estimator).fit(X, y)
        return self

    def predict(self, X: Floats) -> Floats:
        return _raw_log_odds(self.fitted_, X, self.name)


def _estimator(model: Any, seed: int) -> Any:
    if not isinstance(model, str):
        if not hasattr(model, "predict_proba") or isinstance(model, type):
            words = " or ".join(map(repr, MODELS))
            raise InputError(f"model={model!r} must have fit and predict_proba, or be {words}.")
        return model
    if choose("model", model, MODELS) == "boosting":
        return HistGradientBoostingClassifier(early_stopping=False, random_state=seed)
    return make_pipeline(StandardScaler(), LogisticRegression(max_iter=1_000))


def _raw_log_odds(estimator: Any, matrix: Floats, name: str) -> Floats:
    if name in MODELS:  # exact even if the probability rounds to 0 or 1
        return np.asarray(estimator.decision_function(matrix), dtype=float)
    chances = estimator.predict_proba(matrix)[:, 1]
    return np.asarray(logit(np.clip(chances, LEAST_CHANCE, 1 - LEAST_CHANCE)), dtype=float)


def _matrix(features: Any, columns: tuple[str, ...] | None, *, missing: bool) -> Floats:
    if isinstance(features, pd.DataFrame):
        named = features.set_axis([str(column) for column in features.columns], axis=1)
        absent = [column for column in columns or () if column not in named]
        if absent:
            raise InputError(f"features lacks the columns {absent} that the model was fitted to.")
        features = named[list(columns)] if columns else named
        features = features.astype(object).where(features.notna(), np.nan)  # None and pd.NA too
    try:
        matrix = np.asarray(features, dtype=float)
    except (TypeError, ValueError):
        raise InputError("features must be numbers; encode text as numbers first.") from None
    if matrix.ndim != 2 or not matrix.size:
        raise InputError(f"features has shape {matrix.shape}; pairs by features are needed.")
    if np.isinf(matrix).any():
        raise InputError("features has infinite values; replace them with finite ones.")
    if not missing and np.isnan(matrix).any():
        raise InputError(
            f"features is missing in {int(np.isnan(matrix).any(axis=1).sum())} pairs, which logistic "
            "regression does not support. Impute them and add an indicator column, or use "
            "model='boosting'."
        )
    return matrix


def _labels(labels: Any, n: int) -> Any:
    values = np.asarray(labels)
    if values.shape != (n,):
        raise InputError(f"labels has shape {values.shape}; there are {n} pairs.")
    try:
        numbers = values.astype(float)
    except (TypeError, ValueError):
        numbers = np.full(n, np.nan)
    if not np.isin(numbers, (0.0, 1.0)).all():
        raise InputError("labels must be True or False, or 1 or 0, for every pair.")
    return numbers == 1


def _log_loss(log_odds: Floats, truth: Any, slope: float = 1.0, intercept: float = 0.0) -> float:
    scores = intercept + slope * log_odds
    return float(np.logaddexp(0, np.where(truth, -scores, scores)).mean())


def _calibration(log_odds: Floats, truth: Any) -> tuple[float | None, float | None]:
    matches, others = log_odds[truth], log_odds[~truth]
    if matches.min() >= others.max() or matches.max() <= others.min():
        return None, None

    def loss(line: Floats) -> float:
        return _log_loss(log_odds, truth, float(line[0]), float(line[1]))

    found = optimize.minimize(loss, x0=np.array([1.0, 0.0]), method="BFGS")
    return float(found.x[0]), float(found.x[1])


# --- Match-and-merge (R-Swoosh) with the user's match and merge functions

Record = TypeVar("Record")


@dataclass(frozen=True, kw_only=True)
class MergedRecords(Generic[Record]):
    """Clusters of records, and the merged record of each cluster.

    Attributes
    ----------
    labels : tuple of int
        The cluster of each record, from 0 in order of first appearance.
    records : tuple
        The merged record of each cluster.
    comparisons : int
        Number of calls of `match`.
    """

    labels: tuple[int, ...]
    records: tuple[Record, ...]
    comparisons: int


def match_and_merge(
    records: Iterable[Record],
    match: Callable[[Record, Record], bool],
    merge: Callable[[Record, Record], Record],
) -> MergedRecords[Record]:
    """Merge records until no two of them match.

    Parameters
    ----------
    records : iterable
        In any form that `match` and `merge` take.
    match : callable
        match(x, y): whether two records, merged or not, belong to one entity.
    merge : callable
        merge(x, y): a record that combines both. It must not modify its arguments.

    Returns
    -------
    MergedRecords

    Notes
    -----
    The algorithm is R-Swoosh (Benjelloun et al. 2009, doi:10.1007/s00778-008-0098-x). It takes the
    next record and compares it with the finished records. If one matches, it is removed, and the
    merged record is processed next; otherwise the record is finished. Every merge reduces the number
    of records by one, so the algorithm ends after at most n - 1 merges and 2n² comparisons. If
    `match` is symmetric, no two of the merged records match.

    Let `match` and `merge` be idempotent, commutative, associative and representative (a merged
    record matches every record that one of its parts matches). Then the clusters do not depend on
    the order of the records, every pair that matches directly is in one cluster, and `swoosh_bounds`
    applies. Otherwise none of these is guaranteed. For example, if `merge` averages values, another
    order of the records can give other clusters, and two records that match can end up apart.

    If records are sets, `merge` is their union, and sets match if any two of their elements do, the
    clusters are the connected components of the matching pairs. `components` finds them from a list
    of pairs, without comparing all records.

    Examples
    --------
    >>> from mlflow_b3 import linkage
    >>> records = [{"ann"}, {"ann", "a@x.org"}, {"bob"}, {"a@x.org"}]
    >>> merged = linkage.match_and_merge(
    ...     records, match=lambda x, y: bool(x & y), merge=lambda x, y: x | y
    ... )
    >>> merged.labels
    (0, 0, 1, 0)
    >>> [sorted(record) for record in merged.records]
    [['a@x.org', 'ann'], ['bob']]
    """
    for name, function in (("match", match), ("merge", merge)):
        if not callable(function):
            raise InputError(f"{name}={function!r} must be a function of two records.")
    waiting = deque((record, [row]) for row, record in enumerate(records))
    if not waiting:
        raise InputError("records is empty; give at least one record.")
    n, comparisons = len(waiting), 0
    finished: list[tuple[Record, list[int]]] = []
    while waiting:
        record, rows = waiting.popleft()
        for place, (other, other_rows) in enumerate(finished):
            comparisons += 1
            if match(record, other):
                del finished[place]
                waiting.appendleft((merge(record, other), other_rows + rows))
                break
        else:
            finished.append((record, rows))
    finished.sort(key=lambda entry: min(entry[1]))
    labels = [0] * n
    for label, (_, rows) in enumerate(finished):
        for row in rows:
            labels[row] = label
    return MergedRecords(
        labels=tuple(labels),
        records=tuple(record for record, _ in finished),
        comparisons=comparisons,
    )
