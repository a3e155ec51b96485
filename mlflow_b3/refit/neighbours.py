"""scikit-learn's nearest neighbours: searched among all rows once, instead of in every refit.

A refit then takes the nearest of those rows that it trains on. Rows whose neighbours that does not
settle beyond rounding are predicted by the estimator itself, trained on the rows of the refit.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, clone
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor, NearestNeighbors
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import MaxAbsScaler, MinMaxScaler, RobustScaler, StandardScaler
from sklearn.utils.multiclass import check_classification_targets

from mlflow_b3.data.losses import Predictor
from mlflow_b3.data.memory import NUMERIC_KINDS
from mlflow_b3.data.table import RowCopies
from mlflow_b3.refit.learner import Rows
from mlflow_b3.refit.sklearn import CloneLearner

Array = NDArray[Any]
Floats = NDArray[np.float64]
Numbers = NDArray[np.integer[Any]]

#: How many nearest rows of all are known of each row: enough for the neighbours that a row needs, where
#: a third of the rows is not trained on, and rows of its own cluster are not.
TIMES, MORE = 4, 40
#: With more rows, or more nearest rows of all rows, neighbours are searched anew in every refit: one search
#: would take minutes, or gigabytes.
MOST_ROWS, MOST_NEAREST = 50_000, 4_000_000
#: Squared distances that differ by less than this share of the largest squared size of a row may be
#: ordered differently by another search.
ROUNDING = 1e-10
#: With more ties than this share of neighbours, rows that are not certain take longer than was saved.
MOST_TIES = 0.05
#: After a scaler, distances are computed for so many numbers at a time. With more features than this,
#: scikit-learn compares all rows by matrix products, which takes less time.
NUMBERS, MOST_SCALED = 2**21, 15
EUCLIDEAN = ("minkowski", "euclidean")
#: Scalers that multiply features, and by what.
SCALERS: dict[type, Callable[[Any], Any]] = {
    MaxAbsScaler: lambda scaler: 1 / scaler.scale_,
    MinMaxScaler: lambda scaler: scaler.scale_,
    RobustScaler: lambda scaler: 1.0 if scaler.scale_ is None else 1 / scaler.scale_,
    StandardScaler: lambda scaler: 1.0 if scaler.scale_ is None else 1 / scaler.scale_,
}


def can_share_search(estimator: BaseEstimator) -> bool:
    """Return whether one search serves all refits of an estimator.

    That is so for Euclidean neighbours with equal weights, alone or after a scaler.
    """
    scaler, model = _parts(estimator)
    if type(model) not in (KNeighborsClassifier, KNeighborsRegressor):
        return False
    if scaler is not None and (type(scaler) not in SCALERS or getattr(scaler, "clip", False)):
        return False
    given = model.get_params()
    euclidean = given["metric"] in EUCLIDEAN and given["p"] == 2 and not given["metric_params"]
    number = given["n_neighbors"]
    return euclidean and given["weights"] == "uniform" and isinstance(number, int) and number > 0


def _parts(estimator: Any) -> tuple[Any, Any]:
    """Return the scaler, or None, and the model of an estimator; None for others."""
    if type(estimator) is not Pipeline:
        return None, estimator
    plain = len(estimator.steps) == 2 and estimator.memory is None
    steps = [step for _, step in estimator.steps]
    return (steps[0], steps[1]) if plain else (None, None)


@dataclass(frozen=True, eq=False)
class NeighbourRows:
    """Rows of a table by their numbers, with the nearest rows of all rows.

    Attributes
    ----------
    features : DataFrame or array
        Of all rows of the table.
    nearest : array of int, rows of the table by neighbours
        The rows that are nearest to each row, itself included.
    distance : array, in the same shape
        How far they are, in ascending order.
    factors : array
        By what features were multiplied for these distances.
    rows : array of int
        The numbers of these rows.
    """

    features: Any
    nearest: Numbers
    distance: Floats
    factors: Floats
    rows: Numbers

    @classmethod
    def search(cls, features: Any, estimator: BaseEstimator) -> Self | None:
        """Find the nearest rows of each row; None for tables where that is not worth it."""
        scaler, model = _parts(estimator)
        if not _are_plain_numbers(features):
            return None
        if scaler is not None and features.shape[1] > MOST_SCALED:
            return None
        given = model.get_params()
        count = min(len(features), TIMES * given["n_neighbors"] + MORE)
        if count * len(features) > MOST_NEAREST:
            return None
        scaling = _Scaling.of(scaler, features, features)
        search = NearestNeighbors(
            n_neighbors=count, algorithm=given["algorithm"], leaf_size=given["leaf_size"]
        )
        distance, nearest = search.fit(scaling.numbers).kneighbors(scaling.numbers)
        if (np.diff(distance**2, axis=1) <= scaling.rounding).mean() > MOST_TIES:
            return None
        return cls(
            features=features,
            nearest=nearest.astype(np.int32),
            distance=distance,
            factors=scaling.factors,
            rows=np.arange(len(features)),
        )

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.rows)

    def __getitem__(self, places: Any) -> Self:
        """Return some of the rows."""
        return replace(self, rows=self.rows[places])

    @property
    def nbytes(self) -> int:
        """The size of what a refit scales, or of the lists that it looks into."""
        return int(8 * np.prod(self.features.shape) + self.nearest.nbytes + self.distance.nbytes)

    def take(self) -> Any:
        """Return a copy of the features of these rows."""
        return RowCopies(self.features).take(self.rows)

    def among(
        self, trained: NDArray[np.bool_], number: int, scaling: "_Scaling"
    ) -> tuple[Numbers, NDArray[np.bool_]]:
        """Return so many nearest rows of those trained on, and of which rows they are certain.

        For the others there are no neighbours.
        """
        nearest = self.nearest[self.rows]
        if nearest.shape[1] <= number:
            return nearest[:0], np.zeros(len(nearest), dtype=bool)
        squared = np.where(trained[nearest], self._squared(nearest, scaling), np.inf)
        places = np.argpartition(squared, number, axis=1)[:, : number + 1]
        squared = np.take_along_axis(squared, places, axis=1)
        order = np.argsort(squared, axis=1, kind="stable")
        squared = np.take_along_axis(squared, order, axis=1)
        nearest = np.take_along_axis(nearest, np.take_along_axis(places, order, axis=1), axis=1)
        following = np.minimum(squared[:, number], self._beyond(scaling))
        with np.errstate(invalid="ignore"):  # too few rows
            certain = following - squared[:, number - 1] > scaling.rounding
        return nearest[certain, :number], certain

    def _squared(self, nearest: Numbers, scaling: "_Scaling") -> Floats:
        """Return squared distances of rows, scaled as for the rows that are trained on."""
        if np.array_equal(scaling.factors, self.factors):
            return np.asarray(self.distance[self.rows] ** 2)
        numbers, squared = scaling.numbers, np.empty(nearest.shape)
        step = max(1, NUMBERS // (nearest.shape[1] * numbers.shape[1]))
        for start in range(0, len(nearest), step):
            part = slice(start, start + step)
            away = numbers[nearest[part]] - numbers[self.rows[part], None]
            squared[part] = np.einsum("rnf,rnf->rn", away, away)
        return squared

    def _beyond(self, scaling: "_Scaling") -> Floats:
        """Return squared distances that rows not among the nearest have at least."""
        if self.nearest.shape[1] == len(self.nearest):
            return np.full(len(self.rows), np.inf)
        known = self.factors != 0
        ratio = np.abs(scaling.factors[known] / self.factors[known])
        least = float(ratio.min(initial=np.inf if known.any() else 0.0))
        return np.asarray((least * self.distance[self.rows, -1]) ** 2)


@dataclass(frozen=True, eq=False)
class _Scaling:
    """All rows of a table, scaled as for some of them."""

    numbers: Floats
    factors: Floats
    rounding: float  # what squared distances can be wrong by

    @classmethod
    def of(cls, scaler: Any, training: Any, features: Any) -> Self:
        """Scale features by a scaler that is fitted to the training rows."""
        if scaler is None:
            numbers, factors = np.asarray(features, dtype=np.float64), 1.0
        else:
            fitted = clone(scaler).set_params(copy=True).fit(training)
            numbers = np.asarray(fitted.transform(features), dtype=np.float64)
            factors = SCALERS[type(scaler)](fitted)
        largest = float(np.einsum("rf,rf->r", numbers, numbers).max())
        if isinstance(scaler, MinMaxScaler):  # which adds what it multiplied and what it moves
            moved = numbers - fitted.min_
            largest = max(largest, float(np.einsum("rf,rf->r", moved, moved).max()))
        return cls(
            numbers=numbers,
            factors=np.broadcast_to(np.asarray(factors, dtype=np.float64), numbers.shape[1:]),
            rounding=ROUNDING * max(largest, 1e-300),
        )


def _are_plain_numbers(features: Any) -> bool:
    """Return whether features are numbers of full precision, all of them finite."""
    if not isinstance(features, pd.DataFrame | np.ndarray) or not 1 < len(features) <= MOST_ROWS:
        return False
    dtypes = features.dtypes if isinstance(features, pd.DataFrame) else [features.dtype]
    for dtype in dtypes:
        single = isinstance(dtype, np.dtype) and dtype.kind == "f" and dtype.itemsize < 8
        if not isinstance(dtype, np.dtype) or dtype.kind not in NUMERIC_KINDS or single:
            return False
    numbers = np.asarray(features, dtype=np.float64)
    return numbers.ndim == 2 and numbers.size > 0 and bool(np.isfinite(numbers).all())


class NeighbourLearner(CloneLearner):
    """Trains nearest neighbours whose search is shared by all refits.

    Predictions are those of the estimator itself, trained on the rows of a refit. It predicts rows whose
    neighbours are not certain, such as rows with ties. Their order is left to rounding where scikit-learn
    searches by brute force, and can depend on which rows are predicted together.
    """

    def __init__(self, estimator: BaseEstimator, *, search_again: bool = False) -> None:
        super().__init__(estimator, search_again=search_again)
        if self.original is not None:
            self.original = _OnFeatures(self.original)

    def represent(self, X: Any, ids: Array) -> Any:  # noqa: ARG002 - as other learners
        """Search the nearest rows of each row."""
        try:
            found = NeighbourRows.search(X, self._estimator)
        except Exception:  # the refits fail in the same way, and report it
            return X
        return X if found is None else found

    def train(self, rows: Rows, seed: int | None) -> Predictor:
        """Remember which rows are trained on."""
        if not isinstance(rows.X, NeighbourRows):
            return super().train(rows, seed)

        def exact() -> Predictor:
            return super(NeighbourLearner, self).train(replace(rows, X=rows.X.take()), seed)

        trained = np.zeros(len(rows.X.nearest), dtype=bool)
        trained[rows.X.rows] = True
        scaler, model = _parts(self._estimator)
        if self.task == "classification":
            check_classification_targets(rows.target)  # as the estimator does
        elif rows.target.dtype.kind not in NUMERIC_KINDS:
            return _OnFeatures(exact())
        if trained.sum() < len(rows.X):  # a row that is drawn twice counts twice
            return _OnFeatures(exact())
        training = None if scaler is None else rows.X.take()
        scaling = _Scaling.of(scaler, training, rows.X.features)
        return _NeighbourPredictor(model, rows, trained, scaling, exact)


class _OnFeatures:
    """A predictor that reads features."""

    def __init__(self, predictor: Predictor) -> None:
        self._predictor = predictor
        self.classes = predictor.classes

    def predict(self, kind: str, X: Any) -> Array:
        """Return predictions of one kind."""
        return self._predictor.predict(kind, X.take() if isinstance(X, NeighbourRows) else X)


class _NeighbourPredictor:
    """Predicts from the nearest rows of those trained on."""

    def __init__(
        self,
        estimator: BaseEstimator,
        rows: Rows,
        trained: NDArray[np.bool_],
        scaling: _Scaling,
        exact: Callable[[], Predictor],
    ) -> None:
        self._number = int(estimator.n_neighbors)
        self._trained, self._scaling = trained, scaling
        self._train_exact = exact
        self.classes: Array | None = None
        values = np.asarray(rows.target)
        if isinstance(estimator, KNeighborsClassifier):
            self.classes, values = np.unique(values, return_inverse=True)
        self._values = np.zeros(len(trained), dtype=values.dtype)
        self._values[rows.X.rows] = values

    @cached_property
    def _exact(self) -> Predictor:
        """The estimator, trained on the same rows."""
        return self._train_exact()

    def predict(self, kind: str, X: NeighbourRows) -> Array:
        """Return predictions of one kind."""
        if kind not in (("value",) if self.classes is None else ("label", "probability")):
            return self._exact.predict(kind, X.take())  # or it says which kinds there are
        nearest, certain = X.among(self._trained, self._number, self._scaling)
        found = self._vote(kind, self._values[nearest])
        if certain.all():
            return found
        rest = np.asarray(self._exact.predict(kind, X[~certain].take()))
        predicted = np.empty((len(X), *rest.shape[1:]), dtype=rest.dtype)
        predicted[certain], predicted[~certain] = found, rest
        return predicted

    def _vote(self, kind: str, values: Array) -> Array:
        if self.classes is None:
            return np.asarray(values.mean(axis=1))
        votes = np.stack([(values == code).sum(axis=1) for code in range(len(self.classes))], 1)
        return self.classes[votes.argmax(axis=1)] if kind == "label" else votes / self._number
