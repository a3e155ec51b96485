"""Strategies that make odd tables for audits, and learners that are small enough to refit often."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from hypothesis import strategies as st
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.tree import DecisionTreeClassifier

#: Sizes of tables: none, too few to audit, just enough, and some more.
ROWS = (0, 1, 19, 20, 24, 36, 48)
NAMES = (
    "age",
    "",
    "ρ₀ été",
    "a\x1b[31m\nb",
    "x" * 300,
    0,
    1.5,
    None,
    ("a", 1),
    "target",
    "mlflow/β",
)


class Indifferent(ClassifierMixin, BaseEstimator):
    """Predicts the commonest class, whatever the columns hold."""

    def fit(self, X: Any, y: Any) -> "Indifferent":
        assert len(X) == len(y)
        self.classes_, counts = np.unique(y, return_counts=True)
        self.answer_ = self.classes_[counts.argmax()]
        return self

    def predict(self, X: Any) -> Any:
        return np.repeat(np.asarray([self.answer_]), len(X))


class IndifferentNumber(RegressorMixin, BaseEstimator):
    """Predicts the mean, whatever the columns hold."""

    def fit(self, X: Any, y: Any) -> "IndifferentNumber":
        assert len(X) == len(y)
        self.answer_ = float(np.mean(y))
        return self

    def predict(self, X: Any) -> Any:
        return np.full(len(X), self.answer_)


LEARNERS = {
    "indifferent": Indifferent,
    "indifferent number": IndifferentNumber,
    "tree": lambda: DecisionTreeClassifier(max_depth=2, random_state=0),
    "logistic": lambda: make_pipeline(
        SimpleImputer(), StandardScaler(), LogisticRegression(max_iter=20)
    ),
    "neighbours": lambda: KNeighborsClassifier(3),
    "line": LinearRegression,
    "near numbers": lambda: KNeighborsRegressor(3),
    "boosting": lambda: HistGradientBoostingClassifier(
        max_iter=2, min_samples_leaf=2, early_stopping=False
    ),
}


def _floats(rng: np.random.Generator, n: int) -> Any:
    return rng.normal(size=n)


def _holes(values: Any, rng: np.random.Generator) -> pd.Series:
    series = pd.Series(values)
    series[rng.random(len(series)) < 0.2] = None if series.dtype == object else pd.NA
    return series


def _objects(rng: np.random.Generator, n: int) -> Any:
    things = [1, "1", 1.0, None, True, "é", b"x", (1, 2), np.nan, pd.Timestamp("2020-01-01")]
    column = np.empty(n, dtype=object)
    column[:] = [things[i] for i in rng.integers(len(things), size=n)]
    return column


def _lists(rng: np.random.Generator, n: int) -> Any:
    column = np.empty(n, dtype=object)
    column[:] = [list(range(i)) for i in rng.integers(3, size=n)]
    return column


def _times(rng: np.random.Generator, n: int) -> pd.DatetimeIndex:
    return pd.to_datetime("2020-01-01") + pd.to_timedelta(rng.integers(9, size=n), unit="D")


def _words(rng: np.random.Generator, n: int) -> Any:
    return np.array(["yes", "no", "maybe"], dtype=object)[rng.integers(3, size=n)]


def _categories(rng: np.random.Generator, n: int) -> Any:
    codes = rng.integers(-1, 3, size=n)
    kinds = ["b", "a", "c", "never"]
    return pd.Categorical.from_codes(codes, kinds, ordered=bool(rng.integers(2)))


#: Makers of columns: (generator, number of rows) → values.
COLUMNS = {
    "floats": _floats,
    "floats with holes": lambda rng, n: np.where(rng.random(n) < 0.2, np.nan, rng.normal(size=n)),
    "infinite": lambda rng, n: np.where(rng.random(n) < 0.1, -np.inf, rng.normal(size=n)),
    "huge": lambda rng, n: rng.normal(size=n) * 1e300,
    "tiny": lambda rng, n: rng.normal(size=n) * 5e-324,
    "float32": lambda rng, n: rng.normal(size=n).astype("float32"),
    "float16": lambda rng, n: rng.normal(size=n).astype("float16"),
    "int8": lambda rng, n: rng.integers(-128, 127, size=n).astype("int8"),
    "uint64": lambda rng, n: rng.integers(2**63, 2**64 - 1, size=n, dtype="uint64"),
    "bool": lambda rng, n: rng.random(n) < 0.5,
    "one value": lambda _, n: np.zeros(n),
    "all missing": lambda _, n: np.full(n, np.nan),
    "Int64": lambda rng, n: _holes(pd.array(rng.integers(4, size=n), dtype="Int64"), rng),
    "boolean": lambda rng, n: _holes(pd.array(rng.random(n) < 0.5, dtype="boolean"), rng),
    "Float64": lambda rng, n: _holes(pd.array(rng.normal(size=n), dtype="Float64"), rng),
    "string": lambda rng, n: _holes(pd.array(_words(rng, n), dtype="string"), rng),
    "words": _words,
    "objects": _objects,
    "category": _categories,
    "category of numbers": lambda rng, n: pd.Categorical(rng.integers(3, size=n)),
    "times": _times,
    "times with zone": lambda rng, n: _times(rng, n).tz_localize("Asia/Kathmandu"),
    "timedelta": lambda rng, n: pd.to_timedelta(rng.integers(9, size=n), unit="h"),
    "period": lambda rng, n: pd.PeriodIndex(_times(rng, n), freq="M"),
    "interval": lambda rng, n: pd.cut(pd.Series(rng.random(n)), [-1, 0.3, 0.6, 2]),
    "sparse": lambda rng, n: pd.arrays.SparseArray(rng.integers(2, size=n) * 1.0, fill_value=0.0),
    "complex": lambda rng, n: rng.normal(size=n) + 1j * rng.normal(size=n),
    "lists": _lists,
    "bytes": lambda rng, n: np.array([b"a", b"b"], dtype=object)[rng.integers(2, size=n)],
    "arrow": lambda rng, n: pd.array(rng.integers(4, size=n), dtype="int64[pyarrow]"),
    "decimal": lambda rng, n: _decimals(rng, n),
}


def _decimals(rng: np.random.Generator, n: int) -> Any:
    from decimal import Decimal

    column = np.empty(n, dtype=object)
    column[:] = [Decimal(int(i)) / 4 for i in rng.integers(9, size=n)]
    return column


TARGETS = {
    "two": lambda rng, n: rng.integers(2, size=n),
    "bool": lambda rng, n: rng.random(n) < 0.5,
    "three words": _words,
    "string": lambda rng, n: pd.array(_words(rng, n), dtype="string"),
    "category": lambda rng, n: pd.Categorical(_words(rng, n), ["no", "yes", "maybe", "never"]),
    "many": lambda rng, n: rng.integers(max(n // 2, 1), size=n),
    "rare": lambda _, n: (np.arange(n) == 0).astype(int),
    "float classes": lambda rng, n: rng.integers(2, size=n) * 1.0,
    "Int64": lambda rng, n: pd.array(rng.integers(2, size=n), dtype="Int64"),
    "boolean": lambda rng, n: pd.array(rng.random(n) < 0.5, dtype="boolean"),
    "Float64": lambda rng, n: pd.array(rng.normal(size=n), dtype="Float64"),
    "numbers": _floats,
    "float32": lambda rng, n: rng.normal(size=n).astype("float32"),
    "huge": lambda rng, n: rng.normal(size=n) * 1e200,
    "sparse": COLUMNS["sparse"],
    "one class": lambda _, n: np.zeros(n, dtype=int),
    "missing": COLUMNS["floats with holes"],
    "infinite": COLUMNS["infinite"],
    "objects": _objects,
    "lists": _lists,
    "times": _times,
    "complex": COLUMNS["complex"],
    "arrow": lambda rng, n: pd.array(rng.integers(2, size=n), dtype="int64[pyarrow]"),
    "mixed": lambda rng, n: np.array([0, "0"], dtype=object)[rng.integers(2, size=n)],
    "decimal": _decimals,
}
CLUSTERS = {
    "few": lambda rng, n: rng.integers(4, size=n),
    "many": lambda _, n: np.arange(n) // 3,
    "words": lambda rng, n: np.array([f"p{i}" for i in rng.integers(8, size=n)], dtype=object),
    "floats": lambda rng, n: rng.integers(6, size=n) / 7,
    "missing": COLUMNS["floats with holes"],
    "singles": lambda _, n: np.arange(n),
    "one": lambda _, n: np.zeros(n),
    "two": lambda _, n: np.arange(n) % 2,
    "giant": lambda _, n: np.maximum(np.arange(n) - 0.8 * n, 0).astype(int),
    "one giant and a single": lambda _, n: (np.arange(n) == 0).astype(int),
    "category": _categories,
    "times": lambda rng, n: _times(rng, n).tz_localize("UTC"),
    "Int64": lambda rng, n: pd.array(rng.integers(6, size=n), dtype="Int64"),
    "objects": _objects,
    "tuples": lambda rng, n: pd.Series(
        [(int(i), "a") for i in rng.integers(5, size=n)], dtype=object
    ),
    "lists": _lists,
    "bool": lambda rng, n: rng.random(n) < 0.5,
    "infinite": lambda _, n: np.where(np.arange(n) < n // 2, np.inf, np.arange(n) // 4),
    "interval": COLUMNS["interval"],
    "complex": lambda rng, n: rng.integers(5, size=n) * 1j,
}
WEIGHTS = {
    "ones": lambda _, n: np.ones(n),
    "random": lambda rng, n: rng.random(n),
    "mostly zero": lambda _, n: (np.arange(n) % 5 == 0).astype(float),
    "all zero": lambda _, n: np.zeros(n),
    "negative": lambda _, n: -np.ones(n),
    "huge": lambda _, n: np.full(n, 1e308),
    "missing": COLUMNS["floats with holes"],
    "words": _words,
    "Int64": lambda rng, n: pd.array(rng.integers(1, 3, size=n), dtype="Int64"),
}
INDEXES = {
    "plain": lambda _, n: pd.RangeIndex(n),
    "repeated": lambda rng, n: pd.Index(rng.integers(2, size=n)),
    "two levels": lambda rng, n: pd.MultiIndex.from_arrays(
        [np.arange(n) // 2, rng.integers(2, size=n)], names=["ward", "x"]
    ),
    "times": lambda rng, n: pd.DatetimeIndex(_times(rng, n)),
    "words": lambda rng, n: pd.Index(_words(rng, n)),
    "named as the target": lambda _, n: pd.RangeIndex(n, name="y"),
    "missing": lambda _, n: pd.Index([None] * n, dtype=object),
}


@dataclass(frozen=True)
class Odd:
    """A table and how it is to be audited; its `repr` is what a failing example shows."""

    rows: int
    seed: int
    columns: tuple[tuple[Any, str], ...]
    target: str
    cluster: str
    weight: str | None
    index: str
    learner: str
    options: tuple[tuple[str, Any], ...]

    def frame(self) -> pd.DataFrame:
        rng, n = np.random.default_rng(self.seed), self.rows
        series = [(name, COLUMNS[kind](rng, n)) for name, kind in self.columns]
        series += [("y", TARGETS[self.target](rng, n)), ("id", CLUSTERS[self.cluster](rng, n))]
        if self.weight is not None:
            series.append(("w", WEIGHTS[self.weight](rng, n)))
        made = [pd.Series(values).reset_index(drop=True) for _, values in series]
        frame = pd.concat(made, axis=1)
        frame.columns = pd.Index([name for name, _ in series], dtype=object, tupleize_cols=False)
        frame.index = INDEXES[self.index](rng, n)
        return frame

    def arguments(self) -> dict[str, Any]:
        weight = {} if self.weight is None else {"sample_weight": "w"}
        return {"target": "y", "cluster": "id", **weight, **dict(self.options)}


CLAIMS = (
    {},
    {"cluster_error": 0.1},
    {"cluster_error": (0.05, 0.2)},
    {"split_rate": 0.2},
    {"p0": 0.1},
    {"p0": "mixture"},
)
#: For each task: its learners, its losses, and targets that are nothing special.
TASKS = {
    "classes": (
        ("indifferent", "tree", "logistic", "neighbours", "boosting"),
        ("zero_one", "log", "brier", "hinge"),
        ("two", "three words", "bool"),
    ),
    "numbers": (
        ("indifferent number", "line", "near numbers"),
        ("squared", "absolute"),
        ("numbers", "float32", "many"),
    ),
}


def _mostly(usual: Any, odd: Any) -> st.SearchStrategy[Any]:
    """Draw something usual three times out of four."""
    usual = st.sampled_from(list(usual))
    return st.integers(0, 3).flatmap(lambda n: st.sampled_from(list(odd)) if n == 3 else usual)


@st.composite
def odd_tables(draw: st.DrawFn) -> Odd:
    """Draw a table with a few oddities, not all at once: audits of it often come to an end."""
    learners, losses, targets = TASKS[draw(st.sampled_from(list(TASKS)))]
    columns = st.tuples(_mostly("abcd", NAMES), st.sampled_from(list(COLUMNS)))
    options: dict[str, Any] = dict(draw(st.sampled_from(list(CLAIMS))))
    options["folds"] = draw(_mostly([2], [None, 3, "balanced"]))
    options["loss"] = draw(_mostly([None], losses))
    return Odd(
        rows=draw(_mostly([24, 36, 48], ROWS)),
        seed=draw(st.integers(0, 99)),
        columns=tuple(draw(st.lists(columns, min_size=1, max_size=3, unique_by=lambda c: c[0]))),
        target=draw(_mostly(targets, TARGETS)),
        cluster=draw(_mostly(["few", "many", "words"], CLUSTERS)),
        weight=draw(_mostly([None], WEIGHTS)),
        index=draw(_mostly(["plain"], INDEXES)),
        learner=draw(_mostly(learners, LEARNERS)),
        options=tuple(options.items()),
    )
