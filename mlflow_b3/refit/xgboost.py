"""XGBoost: routes `clone` for its classes for scikit-learn, `parameters` for native boosters."""

import json
from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn.base import clone

from mlflow_b3.data import ModelInputs
from mlflow_b3.errors import ModelError
from mlflow_b3.refit.boosting import Array, BoostedClone, BoosterLearner, Categories
from mlflow_b3.refit.interface import Learner, Source
from mlflow_b3.refit.registry import load_native
from mlflow_b3.refit.sklearn import estimator_inputs
from mlflow_b3.refit.xgboost_params import read_options
from mlflow_b3.refit.xgboost_recovery import assumed, recover

#: What an objective makes a booster predict; all others that begin with `reg:` are numbers.
KINDS = {
    "binary:logistic": "binary",
    "binary:logitraw": "margin",
    "binary:hinge": "labels",
    "multi:softprob": "multiclass",
    "multi:softmax": "labels",
    "reg:logistic": "either",
    "count:poisson": "value",
}
SAMPLING = ("subsample", "colsample_bylevel", "colsample_bynode", "colsample_bytree")


def load(source: Source) -> Any:
    """Load the model."""
    return load_native("xgboost", source)


def learner(model: Any, source: Source) -> Learner:
    """Return the learner of a booster or of an estimator of XGBoost's.

    Hyper-parameters are options by their names, or in a mapping `params`.
    """
    import xgboost

    if isinstance(model, xgboost.Booster):
        source.require_route("parameters")
        native = _native(model, source)
        native.assumed = assumed(source)
        return native
    source.require_route("clone")
    if not isinstance(model, (xgboost.XGBClassifier, xgboost.XGBRegressor)):
        raise ModelError(_no_task(type(model).__name__))
    fitted = hasattr(model, "n_features_in_")
    if fitted and _lost_parameters(model):
        stored = _stored_estimator(model, source)
        stored.assumed = assumed(source)
        return stored
    options = read_options(source.options)
    return BoostedClone(
        clone(model).set_params(**options) if options else model,
        fitted=model if fitted else None,
        inputs=estimator_inputs(model),
        categories=_categories(model.get_booster()) if fitted else None,
        notes=[f"from refit_options: {', '.join(sorted(options))}"] if options else (),
    )


def _lost_parameters(model: Any) -> bool:
    """Return whether an estimator was loaded from a file, which keeps no hyper-parameters.

    Loading writes the booster and the base score, which are None where they were not given.
    """
    given = model.get_params()
    return (
        given["n_estimators"] is None
        and given["booster"] is not None
        and given["base_score"] is not None
    )


def _stored_estimator(model: Any, source: Source) -> Learner:
    import xgboost

    booster = model.get_booster()
    forest = isinstance(model, (xgboost.XGBRFClassifier, xgboost.XGBRFRegressor))
    params, notes = recover(booster, source, is_estimator=True, is_forest=forest)
    _kind(params["objective"], booster)
    params.pop("num_class", None)  # the class counts them by itself
    if "c" in (booster.feature_types or ()):
        params.update(enable_categorical=True, feature_types=booster.feature_types)
    estimator = type(model)(**params)
    return BoostedClone(
        estimator,
        fitted=model,
        inputs=estimator_inputs(model),
        categories=_categories(booster),
        notes=[*notes, *_doubts(booster, params), *_stopped_estimator(booster, params)],
    )


def _native(booster: Any, source: Source) -> Learner:
    params, notes = recover(booster, source)
    rounds = int(params.pop("n_estimators"))
    names = booster.feature_names
    count = booster.num_features()
    sampled = any(params.get(name, 1) < 1 for name in SAMPLING)
    return XGBoostLearner(
        booster,
        params={**params, "nthread": 1},
        rounds=rounds,
        kind=_kind(params["objective"], booster),
        n_classes=int(params.get("num_class", 2)),
        inputs=ModelInputs(columns=None if names is None else tuple(names), count=count)
        if names is not None
        else ModelInputs(count=count, as_array=True),
        categories=_categories(booster),
        notes=[*notes, *_doubts(booster, params), *_stopped_booster(booster, rounds)],
        stochastic=sampled or params["booster"] != "gbtree",
    )


class XGBoostLearner(BoosterLearner):
    """Trains a native XGBoost booster."""

    name = "XGBoost Booster"

    def __init__(self, booster: Any, **settings: Any) -> None:
        self._types = booster.feature_types if "c" in (booster.feature_types or ()) else None
        self._missing = settings["params"].pop("missing", np.nan)
        super().__init__(booster, **settings)

    def _train(self, params: dict[str, Any], X: Any, label: Array, weight: Array | None) -> Any:
        import xgboost

        return xgboost.train(params, self._matrix(X, label, weight), self._rounds)

    def _seeded(self, params: dict[str, Any], seed: int) -> dict[str, Any]:
        return {**params, "random_state": seed % 2**31}

    def _functions(self, booster: Any) -> tuple[Callable[[Any], Array], Callable[[Any], Array]]:
        return (
            lambda X: np.asarray(booster.predict(self._matrix(X))),
            lambda X: np.asarray(booster.predict(self._matrix(X), output_margin=True)),
        )

    def _matrix(self, X: Any, label: Array | None = None, weight: Array | None = None) -> Any:
        import xgboost

        return xgboost.DMatrix(
            X,
            label,
            weight=weight,
            missing=self._missing,
            feature_types=self._types,
            enable_categorical=self._types is not None,
            nthread=1,
        )


def _kind(objective: str, booster: Any) -> str:
    outputs = json.loads(booster.save_config())["learner"]["learner_model_param"]["num_target"]
    if int(outputs) > 1:
        raise ModelError(f"the model predicts {outputs} numbers for a row; losses need one.")
    kind = KINDS.get(objective, "value" if objective.startswith("reg:") else None)
    if kind is None:
        raise ModelError(_no_task(f"objective={objective!r}"))
    return kind


def _no_task(what: str) -> str:
    return (
        f"{what} is neither classification nor regression, and has no loss per row that could be "
        f"audited; objectives that have are reg:*, {', '.join(KINDS)}."
    )


def _categories(booster: Any) -> Categories:
    """Return the columns with categories; XGBoost keeps the categories from version 3.1 on."""
    names, types = booster.feature_names, booster.feature_types
    if names is None or "c" not in (types or ()):
        return {}
    known: dict[str, Any] = {
        name: None for name, kind in zip(names, types, strict=True) if kind == "c"
    }
    if hasattr(booster, "get_categories"):
        stored = booster.get_categories(export_to_arrow=True).to_arrow()
        known.update({name: values.to_pylist() for name, values in stored if values is not None})
    return known


def _doubts(booster: Any, params: dict[str, Any]) -> list[str]:
    """Say what may have been lost without a trace."""
    score = json.loads(booster.save_config())["learner"]["learner_model_param"]["base_score"]
    guessed = params["objective"] == "reg:squarederror" and "base_score" not in params
    if guessed and float(score.strip("[]").split(",")[0]) == 0.5:
        return [
            "its base score is exactly 0.5, as an objective of one's own leaves it: if it was "
            "trained with one, this refit is wrong, and needs a trainer"
        ]
    return []


def _stopped_estimator(booster: Any, params: dict[str, Any]) -> list[str]:
    if booster.attr("best_iteration") is None:
        return []
    dart = "; with dart, later rounds have changed the weights of these, and refits lack that"
    return [
        f"refits have the {params['n_estimators']} rounds that its early stopping chose; the "
        f"stopping is not repeated{dart if params['booster'] == 'dart' else ''}"
    ]


def _stopped_booster(booster: Any, rounds: int) -> list[str]:
    best = booster.attr("best_iteration")
    if best is None:
        return []
    return [
        f"it stopped early, with {int(best) + 1} rounds best; refits have {rounds}, as many as "
        f"MLflow predicts with. num_boost_round={int(best) + 1} in refit_options takes the best"
    ]
