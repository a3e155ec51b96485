"""Route `clone`: estimators with scikit-learn's interface, including pipelines and searches."""

import inspect
import warnings
from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, clone, is_classifier, is_regressor
from sklearn.exceptions import NotFittedError
from sklearn.frozen import FrozenEstimator
from sklearn.pipeline import Pipeline
from sklearn.utils.validation import check_is_fitted

from mlflow_b3.data.losses import Predictor
from mlflow_b3.data.table import ModelInputs
from mlflow_b3.errors import InputError, ModelError
from mlflow_b3.refit.flavours import find_flavour, libraries_of, load_native
from mlflow_b3.refit.learner import Learner, MethodPredictor, Rows, Source, as_codes

# --- Boosted trees with scikit-learn's interface, prepared for refits
#
# XGBoost, LightGBM and CatBoost are recognised by module names. None is imported here.

LIBRARIES = ("xgboost", "lightgbm", "catboost")
#: Parameters that hold a seed, in scikit-learn and compatible libraries.
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
#: Output settings of CatBoost. Setting two of them at once is an error.
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
    """Return which of the three libraries defines an estimator; None for all others."""
    if isinstance(model, type) or not hasattr(model, "get_params"):
        return None
    found = libraries_of(model)
    return next((name for name in LIBRARIES if name in found), None)


def unfitted(estimator: Any) -> Any:
    """Return an unfitted copy, or one whose next fit replaces the first.

    scikit-learn's `clone` refuses estimators that copy their list arguments, as CatBoost's do.
    """
    try:
        return clone(estimator)
    except RuntimeError:
        return deepcopy(estimator)


def prepare_booster(model: Any) -> Any:
    """Return an unfitted copy that fits quietly, in one thread and without a validation set.

    If early stopping chose the number of rounds, the copy has that number.
    """
    prepare = {
        "xgboost": _prepare_xgboost,
        "lightgbm": _prepare_lightgbm,
        "catboost": _prepare_catboost,
    }
    return prepare[str(library_of(model))](model)


def _prepare_xgboost(model: Any) -> Any:
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
        # set by a fit to several classes, and refused for a resample with two; for more classes the
        # estimator chooses multi:softprob itself, which trains the same trees
        changes["objective"] = "binary:logistic"
        changes.update({name: None for name in ("num_class",) if name in given})
    return clone(model).set_params(**changes)


def _prepare_lightgbm(model: Any) -> Any:
    given = model.get_params(deep=False)
    changes: dict[str, Any] = {name: 1 for name in _LIGHTGBM_THREADS if name in given}
    changes["verbosity" if "verbosity" in given else "verbose"] = -1
    changes.update({name: None for name in _LIGHTGBM_STOPPING if name in given})
    if given.get("objective") in _LIGHTGBM_CLASSES:
        # refused for a resample with two classes; for more the estimator chooses it itself
        changes["objective"] = None
        changes.update({name: None for name in ("num_class", "num_classes") if name in given})
    best = getattr(model, "best_iteration_", None)
    if best:
        changes["n_estimators"] = int(best)
    return clone(model).set_params(**changes)


def _prepare_catboost(model: Any) -> Any:
    given = {name: value for name, value in model.get_params().items() if value is not None}
    for name in (*_CATBOOST_OUTPUT, "thread_count", "allow_writing_files"):
        given.pop(name, None)
    given["random_seed"] = given.pop("random_state", given.get("random_seed", 0))
    if model.is_fitted():
        given["random_seed"] = model.random_seed_
        _remember_columns(model, given)
        if not given.get("eval_fraction"):  # otherwise it stops on a part of its own rows
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
    # by default the learning rate depends on the planned number of iterations
    given.update(iterations=model.tree_count_, learning_rate=model.learning_rate_)


# --- Route `clone`

#: Parameters that hold a search space, in scikit-learn and compatible libraries.
SEARCHED = {"param_grid", "param_distributions", "search_spaces"}


def load(source: Source) -> Any:
    """Load the estimator."""
    return load_native("sklearn", source)


def learner(model: Any, source: Source) -> Learner:
    """Return the learner of an estimator.

    The option `search_again=True` repeats searches over parameters in every refit. Single boosted
    models are passed to the module of their own flavour, which knows more about them. For networks
    there are also the routes `hot-start` and `last-layer`.
    """
    library = library_of(model)
    own = None if library is None else find_flavour([library])
    if own is not None:
        return own[1].learner(model, source)  # type: ignore[no-any-return]
    from mlflow_b3.refit import neighbours, sklearn_network  # avoids a circular import

    if sklearn_network.is_network(model):
        if source.require_route("clone", *sklearn_network.ROUTES) != "clone":
            return sklearn_network.learner(model, source)
    else:
        source.require_route("clone")
    search_again = source.require_options("search_again").get("search_again", False)
    if not isinstance(search_again, bool):
        raise InputError(f"refit_options search_again={search_again!r} must be true or false.")
    found = CloneLearner(model, search_again=search_again)
    if neighbours.can_share_search(found._estimator):
        return neighbours.NeighbourLearner(model, search_again=search_again)
    return found


class CloneLearner(Learner):
    """Trains an unfitted copy of an estimator with the same parameters.

    Parameters
    ----------
    estimator : estimator with scikit-learn's interface
    search_again : bool
        Repeat searches over parameters in every refit. By default refits use the parameters that a
        fitted search chose.

    Notes
    -----
    Each `random_state` among the parameters, including nested ones, is drawn from the seed of the
    refit: the audit is about the training procedure, not about one lucky seed. Each `n_jobs` is set
    to 1, because the audit itself runs refits in parallel. This does not change results.
    """

    route = "clone"
    _predictor = MethodPredictor
    _arguments: Mapping[str, Any] = {}

    def __init__(self, estimator: BaseEstimator, *, search_again: bool = False) -> None:
        self.task = _task(estimator)
        self.name = estimator_name(estimator)
        self.inputs = estimator_inputs(estimator)
        if hasattr(estimator, "group_columns"):  # set only if present: it is part of the digest
            self.used = tuple(map(str, estimator.group_columns))
        self.original = self._predictor(estimator) if _fitted(estimator) else None
        copy = prepare_boosters(unfitted(estimator) if search_again else fix_choices(estimator))
        parameters = copy.get_params(deep=True)
        self._seeds = tuple(name for name in parameters if _last(name) in SEEDS)
        self.stochastic = self.seed_untried = bool(self._seeds)
        single = {
            name: 1 for name, value in parameters.items() if _last(name) == "n_jobs" and value
        }
        self._estimator = copy.set_params(**single)
        self._weight = _weight_argument(copy)
        self.weighted = self._weight is not None
        parts = [copy, *parameters.values()]
        # XGBoost needs classes 0, 1, …, without gaps for classes that a resample lacks
        self._codes = self.task == "classification" and any(
            library_of(part) == "xgboost" for part in parts
        )
        if any(isinstance(part, FrozenEstimator) for part in parts):
            self.strength = "lower-bound"
            self.notes = (
                "a part of it is frozen: it keeps what it learned from all rows, and only the rest "
                "is trained again",
            )
        elif _searches(copy):
            self.notes = ("its search over parameters is repeated in every refit",)
        elif _searches(estimator):
            self.notes = (
                "refits use the parameters that its search chose; the search is not repeated",
            )
        self.notes += _early_stopping_notes(estimator, parameters)

    def train(self, rows: Rows, seed: int | None) -> Predictor:
        """Train a copy on these rows."""
        estimator = self._unfitted(seed)
        arguments = dict(self._arguments)
        if rows.weight is not None and self._weight is not None:
            arguments[self._weight] = rows.weight
        if self._codes:
            classes, codes = as_codes(rows.target)
            return self._predictor(estimator.fit(rows.X, codes, **arguments), classes, codes=True)
        return self._predictor(estimator.fit(rows.X, rows.target, **arguments))

    def _unfitted(self, seed: int | None) -> Any:
        """Return an unfitted copy with seeds set."""
        # the estimator was never fitted, so a deep copy equals a clone, in a fifth of the time; frozen
        # parts would be copied with all they learned
        frozen = self.strength != "full"
        estimator = unfitted(self._estimator) if frozen else deepcopy(self._estimator)
        if seed is not None and self._seeds:
            rng = np.random.default_rng(seed)
            estimator.set_params(**{name: int(rng.integers(2**31)) for name in self._seeds})
        return estimator


def fix_choices(estimator: Any) -> Any:
    """Return an unfitted copy in which fitted searches are replaced by their best estimator.

    Boosted trees get the number of rounds that early stopping chose. Searches without a known choice
    are kept: those in unfitted estimators, and those in models that fit several copies and search
    in each, such as calibrated ones.
    """
    if _is_search(estimator) and hasattr(estimator, "best_params_"):
        best = clone(estimator.estimator).set_params(**estimator.best_params_)
        return fix_choices(getattr(estimator, "best_estimator_", best))
    if library_of(estimator):
        return prepare_booster(estimator)
    copy = unfitted(estimator)
    for name, fitted in _fitted_parts(estimator).items():
        if _searches(fitted) or _boosters(fitted):
            copy.set_params(**{name: fix_choices(fitted)})
    return copy


def prepare_boosters(estimator: Any) -> Any:
    """Return the estimator with all its boosted trees set to fit quietly, in one thread."""
    if library_of(estimator):
        return prepare_booster(estimator)
    return estimator.set_params(
        **{name: prepare_booster(part) for name, part in _boosters(estimator).items()}
    )


def _boosters(estimator: Any) -> dict[str, Any]:
    """Return the boosted trees in an estimator by parameter name; "" is the estimator itself."""
    if not hasattr(estimator, "get_params") or isinstance(estimator, type):
        return {}
    parts = {"": estimator, **estimator.get_params(deep=True)}
    return {name: part for name, part in parts.items() if library_of(part)}


def _early_stopping_notes(estimator: Any, parameters: dict[str, Any]) -> tuple[str, ...]:
    """Return notes on numbers of rounds that early stopping chose. Refits do not repeat it."""
    if _searches(estimator):
        return ()
    before = estimator.get_params(deep=True)
    return tuple(
        f"refits use the {value} rounds that its early stopping chose ({name}); the stopping is "
        "not repeated"
        for name, value in parameters.items()
        if _last(name) in ROUNDS and before.get(name) != value
    )


def _fitted_parts(estimator: Any) -> dict[str, Any]:
    """Return the fitted parts of a composite estimator, by parameter name."""
    if isinstance(estimator, Pipeline):
        return dict(estimator.steps)
    parts = dict(getattr(estimator, "named_estimators_", {}))  # stacking and voting
    for name in estimator.get_params(deep=False) if hasattr(estimator, "get_params") else ():
        if hasattr(getattr(estimator, f"{name}_", None), "get_params"):
            parts[name] = getattr(estimator, f"{name}_")
    return parts


def _is_search(part: Any) -> bool:
    """Return whether this is a search over parameters, fitted or not, of any library."""
    if not hasattr(part, "get_params") or isinstance(part, type):
        return False
    names = set(part.get_params(deep=False))
    return "estimator" in names and bool(names & SEARCHED)


def _searches(estimator: Any) -> bool:
    """Return whether an estimator contains a search over parameters."""
    if not hasattr(estimator, "get_params") or isinstance(estimator, type):
        return False
    return any(map(_is_search, [estimator, *estimator.get_params(deep=True).values()]))


def _fitted(estimator: Any) -> bool:
    try:
        check_is_fitted(estimator)
    except (NotFittedError, TypeError):
        return False
    return True


def _weight_argument(estimator: Any) -> str | None:
    """Return the argument of `fit` for sample weights; None if there is none."""
    if isinstance(estimator, Pipeline):
        last, step = estimator.steps[-1]
        inner = _weight_argument(step)
        return None if inner is None else f"{last}__{inner}"
    arguments = inspect.signature(estimator.fit).parameters
    if "sample_weight" in arguments:
        return "sample_weight"
    passed_on = any(argument.kind is argument.VAR_KEYWORD for argument in arguments.values())
    inner = getattr(estimator, "estimator", getattr(estimator, "regressor", None))
    return _weight_argument(inner) if passed_on and hasattr(inner, "fit") else None


def _task(estimator: Any) -> str:
    if isinstance(estimator, type):
        name = estimator.__name__
        raise ModelError(f"{name} is a class; give an instance of it, such as {name}().")
    try:
        with warnings.catch_warnings():
            # scikit-learn 1.7 warns where 1.8 raises
            warnings.simplefilter("error", DeprecationWarning)
            if is_classifier(estimator):
                return "classification"
            if is_regressor(estimator):
                return "regression"
    except (AttributeError, TypeError, DeprecationWarning) as error:
        raise ModelError(
            f"{type(estimator).__name__} has fit and get_params but is not a scikit-learn "
            f"estimator: {error}"
        ) from error
    raise ModelError(
        f"{type(estimator).__name__} is neither a classifier nor a regressor; only these have a "
        "loss on new rows that can be audited."
    )


def _last(name: str) -> str:
    return name.rsplit("__", 1)[-1]


def estimator_name(estimator: Any) -> str:
    """Return the class name of an estimator, or those of its steps."""
    steps = getattr(estimator, "steps", None)
    if steps:
        return " → ".join(type(step).__name__ for _, step in steps)
    return type(estimator).__name__


def estimator_inputs(estimator: Any) -> ModelInputs:
    """Return the columns that a fitted estimator stores."""
    count = _attribute(estimator, "n_features_in_")
    names = _attribute(estimator, "feature_names_in_")
    if names is not None:
        return ModelInputs(
            columns=tuple(str(name) for name in names),
            count=len(names),
            categories=_categories(estimator),
        )
    if count is not None:
        return ModelInputs(count=int(count), as_array=True)
    return ModelInputs()


def _categories(estimator: Any) -> dict[str, tuple[Any, ...]] | None:
    """Return the categories that scikit-learn's boosted trees inferred from column dtypes."""
    first = estimator.steps[0][1] if isinstance(estimator, Pipeline) else estimator
    categorical, names = (
        _attribute(first, attribute) for attribute in ("is_categorical_", "feature_names_in_")
    )
    if categorical is None or names is None or len(names) != len(categorical):
        return None
    # a private attribute, but the only place; without it the values of the table are used
    encoder = getattr(getattr(first, "_preprocessor", None), "named_transformers_", {}).get(
        "encoder"
    )
    chosen = [str(name) for name, is_one in zip(names, categorical, strict=True) if is_one]
    known = getattr(encoder, "categories_", [()] * len(chosen))
    return {name: tuple(values) for name, values in zip(chosen, known, strict=False)} or None


def _attribute(estimator: Any, attribute: str) -> Any:
    try:  # pipelines delegate to their first step, which may lack it
        return getattr(estimator, attribute, None)
    except (AttributeError, ValueError):
        return None
