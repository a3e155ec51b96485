"""LightGBM: routes `clone` for scikit-learn estimators, `parameters` for native boosters."""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from mlflow_b3.data.table import ModelInputs
from mlflow_b3.errors import ModelError
from mlflow_b3.refit.boosting import (
    USE_TRAINER,
    Array,
    BoostedClone,
    BoosterLearner,
    with_categories,
)
from mlflow_b3.refit.flavours import load_native
from mlflow_b3.refit.learner import Learner, Source
from mlflow_b3.refit.sklearn import SEEDS

#: The kind of prediction of each objective.
KINDS = {
    "binary": "binary",
    "multiclass": "multiclass",
    "multiclassova": "multiclass",
    "cross_entropy": "either",
    "regression": "value",
    "regression_l1": "value",
    "huber": "value",
    "fair": "value",
    "poisson": "value",
    "quantile": "value",
    "mape": "value",
    "gamma": "value",
    "tweedie": "value",
}
#: Parameters that refits set themselves or do not use.
OVERRIDDEN = (
    "categorical_feature",
    "early_stopping_round",
    "num_iterations",
    "num_threads",
    "verbosity",
)


def load(source: Source) -> Any:
    """Load the model."""
    return load_native("lightgbm", source)


def learner(model: Any, source: Source) -> Learner:
    """Return the learner of a LightGBM booster or estimator."""
    import lightgbm

    if isinstance(model, lightgbm.Booster):
        source.require_route("parameters")
        source.require_options()
        return _native(model, source)
    source.require_route("clone")
    source.require_options()
    return LightGBMClone(model)


class WithCategories:
    """Restores the category order of a LightGBM model."""

    _known: list[list[Any]]
    _columns: list[int]

    def represent(self, X: Any, ids: NDArray[Any]) -> Any:  # noqa: ARG002 - as learners have it
        """Return the features with the categories that the model knows."""
        if not self._known or not isinstance(X, pd.DataFrame):
            return X
        other = [name for name in X.columns if not pd.api.types.is_numeric_dtype(X[name])]
        coded = [X.columns[index] for index in self._columns]
        for names in (other, coded):
            if len(names) == len(self._known):
                return with_categories(X, dict(zip(names, self._known, strict=True)))
        raise ModelError(
            f"the model was trained with {len(self._known)} columns of dtype category, but the "
            f"table has {len(other)} columns that are not numeric: {other}. Give these the dtype "
            "they had in training."
        )


class LightGBMClone(WithCategories, BoostedClone):
    """Trains an unfitted copy of one of LightGBM's estimators.

    Categorical columns that were passed to `fit` are read from its booster.
    """

    def __init__(self, model: Any) -> None:
        booster = model.booster_ if hasattr(model, "booster_") else None
        self._known = (booster and booster.pandas_categorical) or []
        self._columns = [] if booster is None else list(_categorical(booster.params))
        super().__init__(
            model,
            inputs=None if booster is None else _inputs(booster),
            arguments={"categorical_feature": self._columns} if self._columns else None,
        )


def _native(model: Any, source: Source) -> Learner:
    import lightgbm

    # a booster in memory has the parameters it was given; a stored one has all, by canonical names
    booster = lightgbm.Booster(model_str=model.model_to_string())
    given = {} if model.params == booster.params else model.params
    exact = map(_number, (*source.params.values(), *given.values()))
    params, rounded = _undo_rounding(booster.params, exact)
    notes = [
        "parameters, objective and number of rounds are those stored with the model",
    ]
    if rounded:
        notes.append(
            f"LightGBM stores numbers with six digits: {', '.join(rounded)} may have had more"
        )
    rounds = booster.current_iteration()
    if rounds != params["num_iterations"]:
        notes.append(
            f"it stopped early, before its {params['num_iterations']} rounds; refits use the "
            f"{rounds} rounds it predicts with, and the stopping is not repeated"
        )
    return LightGBMLearner(
        booster,
        columns=list(_categorical(params)),
        known=booster.pandas_categorical or [],
        params={name: value for name, value in params.items() if name not in OVERRIDDEN},
        rounds=rounds,
        kind=_kind(str(params["objective"])),
        n_classes=int(params.get("num_class", 2)),
        inputs=_inputs(booster),
        categories={},
        notes=notes,
        stochastic=_is_random(params),
    )


class LightGBMLearner(WithCategories, BoosterLearner):
    """Trains a native LightGBM booster."""

    name = "LightGBM Booster"

    def __init__(
        self, booster: Any, *, columns: list[int], known: list[list[Any]], **settings: Any
    ) -> None:
        self._columns, self._known = columns, known
        super().__init__(booster, **settings)

    def _train(self, params: dict[str, Any], X: Any, label: Array, weight: Array | None) -> Any:
        import lightgbm

        params = {**params, "num_threads": 1, "verbosity": -1}
        rows = lightgbm.Dataset(
            X, label, weight=weight, categorical_feature=self._columns or "auto", params=params
        )
        return lightgbm.train(params, rows, self._rounds)

    def _seeded(self, params: dict[str, Any], seed: int) -> dict[str, Any]:
        kept = {name: value for name, value in params.items() if name not in SEEDS}
        return {**kept, "seed": seed % 2**31}  # all other seeds derive from it

    def _functions(self, booster: Any) -> tuple[Callable[[Any], Array], Callable[[Any], Array]]:
        return (
            lambda X: np.asarray(booster.predict(X)),
            lambda X: np.asarray(booster.predict(X, raw_score=True)),
        )


def _kind(objective: str) -> str:
    if objective in ("custom", "none"):
        raise ModelError(
            f"the model was trained with a custom objective, which is not stored with it. "
            f"{USE_TRAINER}"
        )
    if objective not in KINDS:
        raise ModelError(
            f"objective={objective!r} is neither classification nor regression, and has no loss per "
            f"row that could be audited; use one of {', '.join(KINDS)}."
        )
    return KINDS[objective]


def _inputs(booster: Any) -> ModelInputs:
    names = tuple(booster.feature_name())
    if names == tuple(f"Column_{number}" for number in range(len(names))):  # names of array columns
        return ModelInputs(count=len(names), as_array=True)
    return ModelInputs(columns=names, count=len(names))


def _categorical(params: dict[str, Any]) -> Iterable[int]:
    """Return the positions of the categorical columns."""
    found = params.get("categorical_feature") or params.get("categorical_column") or []
    return [int(number) for number in ([found] if isinstance(found, (int, str)) else found)]


def _number(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        return float("nan")


def _undo_rounding(
    params: dict[str, Any], exact: Iterable[float]
) -> tuple[dict[str, Any], list[str]]:
    """Replace numbers stored with six digits by exact ones, if these are known.

    Also return the names of parameters without a known exact value.
    """
    known = {f"{value:.6g}": value for value in exact if value == value}
    restored, rounded = dict(params), []
    for name, value in params.items():
        if not isinstance(value, float) or len(f"{value:.6e}".split("e")[0].rstrip("0")) < 7:
            continue
        if f"{value:.6g}" in known:
            restored[name] = known[f"{value:.6g}"]
        else:
            rounded.append(name)
    return restored, rounded


def _is_random(params: dict[str, Any]) -> bool:
    """Return whether any parameter makes training random."""
    shares = ("feature_fraction", "feature_fraction_bynode")
    bags = ("bagging_fraction", "pos_bagging_fraction", "neg_bagging_fraction")
    return (
        any(params.get(name, 1) < 1 for name in shares)
        or (params.get("bagging_freq", 0) > 0 and any(params.get(name, 1) < 1 for name in bags))
        or bool(params.get("extra_trees") or params.get("use_quantized_grad"))
        or params.get("boosting") != "gbdt"
        or params.get("data_sample_strategy") == "goss"
    )
