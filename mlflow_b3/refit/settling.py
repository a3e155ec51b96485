"""Boosted trees with scikit-learn's interface, made ready to be fitted again on other rows.

XGBoost, LightGBM and CatBoost are known by the names of their modules: none is imported here.
"""

from copy import deepcopy
from typing import Any

from sklearn.base import clone

from mlflow_b3.refit.registry import libraries_of

LIBRARIES = ("xgboost", "lightgbm", "catboost")
#: Parameters that hold a seed, in scikit-learn and in libraries like it.
SEEDS = frozenset(
    {
        "random_state",
        "random_seed",
        "seed",
        "bagging_seed",
        "data_random_seed",
        "drop_seed",
        "extra_seed",
        "feature_fraction_seed",
        "objective_seed",
    }
)
#: Parameters that hold the number of rounds.
ROUNDS = frozenset({"n_estimators", "iterations"})
_LIGHTGBM_THREADS = ("n_jobs", "nthread", "nthreads", "num_thread", "num_threads")
_LIGHTGBM_STOPPING = (
    "early_stopping",
    "early_stopping_round",
    "early_stopping_rounds",
    "n_iter_no_change",
)
_LIGHTGBM_CLASSES = ("multiclass", "softmax")
_CATBOOST_ROUNDS = ("iterations", "n_estimators", "num_boost_round", "num_trees")
_CATBOOST_STOPPING = (
    "best_model_min_trees",
    "early_stopping_rounds",
    "od_pval",
    "od_type",
    "od_wait",
    "use_best_model",
)
#: They say where CatBoost writes and prints; two of them at once are an error.
_CATBOOST_OUTPUT = (
    "logging_level",
    "metric_period",
    "save_snapshot",
    "silent",
    "snapshot_file",
    "snapshot_interval",
    "train_dir",
    "verbose",
    "verbose_eval",
)


def library_of(model: Any) -> str | None:
    """Return which of the three libraries an estimator is of; None for all others."""
    if isinstance(model, type) or not hasattr(model, "get_params"):
        return None
    found = libraries_of(model)
    return next((name for name in LIBRARIES if name in found), None)


def unfitted(estimator: Any) -> Any:
    """Return an unfitted copy, or one that forgets its fit when it is fitted again.

    scikit-learn's own `clone` refuses what copies lists that it is given, as CatBoost does.
    """
    try:
        return clone(estimator)
    except RuntimeError:
        return deepcopy(estimator)


def settled(model: Any) -> Any:
    """Return an unfitted copy that fits quietly, in one thread and without a validation set.

    Where early stopping chose the number of rounds, the copy has that number.
    """
    prepare = {"xgboost": _xgboost, "lightgbm": _lightgbm, "catboost": _catboost}
    return prepare[str(library_of(model))](model)


def _xgboost(model: Any) -> Any:
    given = model.get_params(deep=False)
    changes: dict[str, Any] = {name: 1 for name in ("n_jobs", "nthread") if name in given}
    if (given.get("verbosity") or 0) > 1:
        changes["verbosity"] = 1
    if given.get("early_stopping_rounds") is not None:
        changes["early_stopping_rounds"] = None
    if given.get("callbacks"):
        changes["callbacks"] = [
            callback
            for callback in given["callbacks"]
            if type(callback).__name__ != "EarlyStopping"
        ] or None
    best = getattr(model, "best_iteration", None)
    if best is not None:
        changes["n_estimators"] = int(best) + 1
    if given.get("objective") in ("multi:softprob", "multi:softmax"):
        # may be written there by a fit to several classes, and is refused for a resample of two;
        # for more of them the class takes the first by itself, which trains the same trees
        changes["objective"] = "binary:logistic"
        changes.update({name: None for name in ("num_class",) if name in given})
    return clone(model).set_params(**changes)


def _lightgbm(model: Any) -> Any:
    given = model.get_params(deep=False)
    changes: dict[str, Any] = {name: 1 for name in _LIGHTGBM_THREADS if name in given}
    changes["verbosity" if "verbosity" in given else "verbose"] = -1
    changes.update({name: None for name in _LIGHTGBM_STOPPING if name in given})
    if given.get("objective") in _LIGHTGBM_CLASSES:
        # refused for a resample of two; for more of them the class takes it by itself
        changes["objective"] = None
        changes.update({name: None for name in ("num_class", "num_classes") if name in given})
    best = getattr(model, "best_iteration_", None)
    if best:
        changes["n_estimators"] = int(best)
    return clone(model).set_params(**changes)


def _catboost(model: Any) -> Any:
    given = {name: value for name, value in model.get_params().items() if value is not None}
    for name in (*_CATBOOST_OUTPUT, "thread_count", "allow_writing_files"):
        given.pop(name, None)
    given["random_seed"] = given.pop("random_state", given.get("random_seed", 0))
    if model.is_fitted():
        given["random_seed"] = model.random_seed_
        _remember_columns(model, given)
        if not given.get("eval_fraction"):  # else a part of its own rows stops it, every time
            _fix_rounds(model, given)
    return type(model)(**given, logging_level="Silent", thread_count=1, allow_writing_files=False)


def _remember_columns(model: Any, given: dict[str, Any]) -> None:
    for kind in ("cat", "text", "embedding"):
        found = list(getattr(model, f"get_{kind}_feature_indices")())
        if found:
            given[f"{kind}_features"] = found


def _fix_rounds(model: Any, given: dict[str, Any]) -> None:
    trained = model.get_all_params()
    if not trained.get("use_best_model") and model.tree_count_ == trained["iterations"]:
        return
    for name in (*_CATBOOST_ROUNDS, *_CATBOOST_STOPPING, "eta"):
        given.pop(name, None)
    # chosen from the number of iterations that were planned, where it was not given
    given.update(iterations=model.tree_count_, learning_rate=model.learning_rate_)
