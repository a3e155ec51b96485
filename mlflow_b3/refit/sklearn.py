"""Route `clone`: estimators with scikit-learn's interface, pipelines and searches included."""

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

from mlflow_b3.data import ModelInputs
from mlflow_b3.errors import InputError, ModelError
from mlflow_b3.losses import Predictor
from mlflow_b3.refit.interface import Learner, Rows, Source
from mlflow_b3.refit.predictors import MethodPredictor, as_codes
from mlflow_b3.refit.registry import find_flavour, load_native
from mlflow_b3.refit.settling import ROUNDS, SEEDS, library_of, settled, unfitted

#: The parameter that holds what a search may choose from, in scikit-learn and libraries like it.
SEARCHED = {"param_grid", "param_distributions", "search_spaces"}


def load(source: Source) -> Any:
    """Load the estimator."""
    return load_native("sklearn", source)


def learner(model: Any, source: Source) -> Learner:
    """Return the learner of an estimator.

    The option `search_again=True` repeats searches over parameters in every refit. Boosted trees
    that stand by themselves go to the module of their own flavour, which knows more about them.
    Networks can also be trained on from their weights, or in their last layer only.
    """
    library = library_of(model)
    own = None if library is None else find_flavour([library])
    if own is not None:
        return own[1].learner(model, source)  # type: ignore[no-any-return]
    from mlflow_b3.refit import sklearn_network  # which makes use of this module

    if sklearn_network.is_network(model):
        if source.require_route("clone", *sklearn_network.ROUTES) != "clone":
            return sklearn_network.learner(model, source)
    else:
        source.require_route("clone")
    search_again = source.require_options("search_again").get("search_again", False)
    if not isinstance(search_again, bool):
        raise InputError(f"refit_options search_again={search_again!r} must be true or false.")
    return CloneLearner(model, search_again=search_again)


class CloneLearner(Learner):
    """Trains an unfitted copy of an estimator, with the same parameters, on other rows.

    Parameters
    ----------
    estimator : estimator with scikit-learn's interface
    search_again : bool
        Repeat searches over parameters in every refit. By default a search that has been made is
        not made again: its choice is refitted.

    Notes
    -----
    Every `random_state` among the parameters, nested ones included, is drawn anew from the seed of
    the refit: the audit is about the training procedure, not about one lucky seed. Every `n_jobs`
    is set to 1, because the audit itself runs the refits in parallel; it does not change results.
    """

    route = "clone"
    _predictor = MethodPredictor
    _arguments: Mapping[str, Any] = {}

    def __init__(self, estimator: BaseEstimator, *, search_again: bool = False) -> None:
        self.task = _task(estimator)
        self.name = estimator_name(estimator)
        self.inputs = estimator_inputs(estimator)
        if hasattr(estimator, "group_columns"):  # what others have not must not change their digest
            self.used = tuple(map(str, estimator.group_columns))
        self.original = self._predictor(estimator) if _fitted(estimator) else None
        copy = with_settled_boosters(unfitted(estimator) if search_again else settle(estimator))
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
        # these refuse words, and numbers with a gap where a resample lacks a class
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
                "refits have the parameters that its search chose; the search is not repeated",
            )
        self.notes += _stopped_early(estimator, parameters)

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
        """Return a copy to be fitted, with its seeds."""
        # it was never fitted, so that this is what clone does, in a fifth of the time; what is frozen
        # would be copied with all that it learned
        frozen = self.strength != "full"
        estimator = unfitted(self._estimator) if frozen else deepcopy(self._estimator)
        if seed is not None and self._seeds:
            rng = np.random.default_rng(seed)
            estimator.set_params(**{name: int(rng.integers(2**31)) for name in self._seeds})
        return estimator


def settle(estimator: Any) -> Any:
    """Return an unfitted copy in which searches that were made are replaced by their choice.

    So are numbers of rounds that boosted trees chose by early stopping. Searches whose choice is not
    known stay: in estimators that were never fitted, and within
    models that fit several copies, such as calibrated ones, and choose in each of them.
    """
    if _is_search(estimator) and hasattr(estimator, "best_params_"):
        best = clone(estimator.estimator).set_params(**estimator.best_params_)
        return settle(getattr(estimator, "best_estimator_", best))
    if library_of(estimator):
        return settled(estimator)
    copy = unfitted(estimator)
    for name, fitted in _fitted_parts(estimator).items():
        if _searches(fitted) or _boosters(fitted):
            copy.set_params(**{name: settle(fitted)})
    return copy


def with_settled_boosters(estimator: Any) -> Any:
    """Return the estimator with all boosted trees in it made to fit quietly and in one thread."""
    if library_of(estimator):
        return settled(estimator)
    return estimator.set_params(
        **{name: settled(part) for name, part in _boosters(estimator).items()}
    )


def _boosters(estimator: Any) -> dict[str, Any]:
    """Return the boosted trees in an estimator by the parameter that holds them, "" for itself."""
    if not hasattr(estimator, "get_params") or isinstance(estimator, type):
        return {}
    parts = {"": estimator, **estimator.get_params(deep=True)}
    return {name: part for name, part in parts.items() if library_of(part)}


def _stopped_early(estimator: Any, parameters: dict[str, Any]) -> tuple[str, ...]:
    """Say where early stopping, which refits cannot repeat, has left a number of rounds."""
    if _searches(estimator):
        return ()
    before = estimator.get_params(deep=True)
    return tuple(
        f"refits have the {value} rounds that its early stopping chose ({name}); the stopping is "
        "not repeated"
        for name, value in parameters.items()
        if _last(name) in ROUNDS and before.get(name) != value
    )


def _fitted_parts(estimator: Any) -> dict[str, Any]:
    """Return the fitted parts of a composed estimator, by the parameter that holds them."""
    if isinstance(estimator, Pipeline):
        return dict(estimator.steps)
    parts = dict(getattr(estimator, "named_estimators_", {}))  # stacked and voting models
    for name in estimator.get_params(deep=False) if hasattr(estimator, "get_params") else ():
        if hasattr(getattr(estimator, f"{name}_", None), "get_params"):
            parts[name] = getattr(estimator, f"{name}_")
    return parts


def _is_search(part: Any) -> bool:
    """Return whether this is a search over parameters, made or not, of whatever library."""
    if not hasattr(part, "get_params") or isinstance(part, type):
        return False
    names = set(part.get_params(deep=False))
    return "estimator" in names and bool(names & SEARCHED)


def _searches(estimator: Any) -> bool:
    """Return whether there is a search over parameters anywhere in an estimator."""
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
    """Return the name under which `fit` takes sample weights; None if it does not."""
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
            # what scikit-learn 1.8 refuses, 1.7 only warns about
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
        f"{type(estimator).__name__} is neither a classifier nor a regressor; only those have a "
        "loss on new rows that can be audited."
    )


def _last(name: str) -> str:
    return name.rsplit("__", 1)[-1]


def estimator_name(estimator: Any) -> str:
    """Return what an estimator is called: its class, or the classes of its steps."""
    steps = getattr(estimator, "steps", None)
    if steps:
        return " → ".join(type(step).__name__ for _, step in steps)
    return type(estimator).__name__


def estimator_inputs(estimator: Any) -> ModelInputs:
    """Return the columns that a (fitted) estimator remembers from its training."""
    count = _remembered(estimator, "n_features_in_")
    names = _remembered(estimator, "feature_names_in_")
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
    """Return the categories that boosted trees of scikit-learn told by the dtype of columns."""
    first = estimator.steps[0][1] if isinstance(estimator, Pipeline) else estimator
    categorical, names = (
        _remembered(first, attribute) for attribute in ("is_categorical_", "feature_names_in_")
    )
    if categorical is None or names is None or len(names) != len(categorical):
        return None
    # private, and the only place that holds them; without it the values of the table are taken
    encoder = getattr(getattr(first, "_preprocessor", None), "named_transformers_", {}).get(
        "encoder"
    )
    chosen = [str(name) for name, is_one in zip(names, categorical, strict=True) if is_one]
    known = getattr(encoder, "categories_", [()] * len(chosen))
    return {name: tuple(values) for name, values in zip(chosen, known, strict=False)} or None


def _remembered(estimator: Any, attribute: str) -> Any:
    try:  # a pipeline asks its first step, which may not have the attribute
        return getattr(estimator, attribute, None)
    except (AttributeError, ValueError):
        return None
