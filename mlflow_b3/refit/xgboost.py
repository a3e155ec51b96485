"""XGBoost: routes `clone` for scikit-learn estimators, `parameters` for native boosters."""

import ast
import json
import math
import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from sklearn.base import clone

from mlflow_b3.data.table import ModelInputs
from mlflow_b3.errors import InputError, ModelError, closest
from mlflow_b3.refit.boosting import USE_TRAINER, Array, BoostedClone, BoosterLearner, Categories
from mlflow_b3.refit.flavours import load_native
from mlflow_b3.refit.learner import Learner, Source
from mlflow_b3.refit.sklearn import estimator_inputs

# --- Read hyper-parameters from options and from logged text


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


CONSTRAINTS = frozenset({"interaction_constraints", "monotone_constraints"})
#: Alternative names of parameters.
ALIASES = {
    "alpha": "reg_alpha",
    "eta": "learning_rate",
    "lambda": "reg_lambda",
    "min_split_loss": "gamma",
    "nthread": "n_jobs",
    "num_boost_round": "n_estimators",
    "seed": "random_state",
}
#: Parameters that affect training and that a stored model does not keep.
FORGOTTEN = _words(
    "colsample_bylevel colsample_bynode colsample_bytree feature_selector gamma grow_policy "
    "interaction_constraints learning_rate max_bin max_cat_threshold max_cat_to_onehot "
    "max_delta_step max_depth max_leaves min_child_weight missing monotone_constraints "
    "multi_strategy normalize_type one_drop process_type random_state rate_drop refresh_leaf "
    "reg_alpha reg_lambda sample_type sampling_method seed_per_iteration skip_drop subsample top_k "
    "tree_method updater"
)
#: Parameters that a stored model keeps, if its objective has them.
KEPT = _words(
    "base_score booster expectile_alpha huber_slope n_estimators num_class "
    "num_parallel_tree objective quantile_alpha scale_pos_weight tweedie_variance_power"
)
#: Parameters that do not affect training.
TECHNICAL = _words(
    "callbacks device disable_default_eval_metric early_stopping_rounds enable_categorical "
    "eval_metric feature_types importance_type max_cached_hist_node n_jobs validate_parameters "
    "verbosity"
)
NAMES = FORGOTTEN | KEPT | TECHNICAL | set(ALIASES)
#: Parameters whose values are strings. All others are numbers.
WORDS = CONSTRAINTS | _words(
    "booster feature_selector grow_policy multi_strategy normalize_type objective process_type "
    "sample_type sampling_method tree_method updater"
)
#: Parameters that alone do not describe a training.
INCIDENTAL = frozenset({"missing", "random_state", "seed_per_iteration"})
#: Parameters that autologging adds to every run.
AUTOLOGGED = frozenset({"maximize", "num_boost_round", "verbose_eval"})


def read_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the hyper-parameters among the options, given one by one or as `params`."""
    params = options.get("params", {})
    if params == "complete":  # on the command line: no others were set
        params = {}
    if not isinstance(params, Mapping):
        raise InputError(
            f"refit_options params={params!r} must be a mapping of names to values, or 'complete'."
        )
    flat = {name: value for name, value in options.items() if name != "params"}
    unknown = [name for name in (*flat, *params) if name not in NAMES]
    if unknown:
        raise InputError(
            f"refit_options: {', '.join(map(repr, unknown))} is not a hyper-parameter of XGBoost."
            + closest(str(unknown[0]), [*NAMES, "params"])
            + " Give them by name, or as a mapping 'params'."
        )
    read: dict[str, Any] = {}
    for name, value in (*params.items(), *flat.items()):
        known = ALIASES.get(name, str(name))
        if known in read:
            raise InputError(f"refit_options: {name!r} is given twice, also as {known!r}.")
        if known in TECHNICAL:
            continue
        try:
            read[known] = _read(known, value) if isinstance(value, str) else value
        except ValueError as error:
            raise InputError(f"refit_options {name}={value!r} cannot be read: {error}.") from error
    return read


def read_logged(params: Mapping[str, str]) -> dict[str, Any]:
    """Return XGBoost's hyper-parameters among logged ones; None means the default."""
    read: dict[str, Any] = {}
    for name, text in params.items():
        known = ALIASES.get(name, name)
        if name not in NAMES or known in TECHNICAL:
            continue
        try:
            value = _read(known, text)
        except ValueError as error:
            custom = known == "objective"
            raise ModelError(
                f"the run's parameter {name}={text!r} cannot be read"
                + (f": a function is not stored with a model. {USE_TRAINER}" if custom else "; ")
                + ("" if custom else f"give {name} in refit_options.")
            ) from error
        if read.get(known) is not None and value is not None and read[known] != value:
            raise ModelError(
                f"the run has two values of {known}: {read[known]!r} and {value!r}; give {known} in "
                "refit_options."
            )
        read[known] = value if value is not None else read.get(known)
    return read


def read_value(text: str) -> Any:
    """Parse a value that was logged as text: a Python literal or a word.

    Raises
    ------
    ValueError
        For the representation of an object, such as a function.
    """
    if text in ("nan", "inf", "-inf"):
        return float(text)
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        if re.fullmatch(r"[\w:.+@-]*", text):
            return text
        raise ValueError(f"{text!r} is neither a literal nor a word") from None


def _read(name: str, text: str) -> Any:
    """Parse the value of a parameter.

    Constraints by column numbers remain text, as XGBoost needs them.
    """
    value = read_value(text)
    if isinstance(value, str) and name not in WORDS:
        raise ValueError(f"{name} is a number")
    by_name = isinstance(value, dict) or (
        isinstance(value, list) and all(isinstance(one, str) for part in value for one in part)
    )
    return text if name in CONSTRAINTS and value is not None and not by_name else value


# --- Recover the hyper-parameters of a stored model, which keeps only a few
#
# Those it keeps (objective, rounds, base score, …) are read from it. All others come from the options
# or, if not given, from the parameters of the run.

DEFAULT_DEPTH = 6
#: Number of rounds whose trees are checked for their depth.
CHECKED_ROUNDS = 50


def recover(
    booster: Any, source: Source, *, is_estimator: bool = False, is_forest: bool = False
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the training parameters, with rounds as `n_estimators`, and notes on their origin.

    Parameters
    ----------
    booster : xgboost.Booster
        The stored booster.
    source : Source
        With the parameters of the run and the options.
    is_estimator, is_forest : bool
        Whether it is a scikit-learn estimator of XGBoost, and whether it is a random forest, whose
        `n_estimators` are the trees of a single round.

    Raises
    ------
    ModelError
        If nothing is known about the missing parameters, or if the logged parameters cannot be
        those of this model.
    """
    options, logged = read_options(source.options), read_logged(source.params)
    autologged = set(source.params) >= AUTOLOGGED
    known = (set(logged) | set(options)) & (FORGOTTEN - INCIDENTAL)
    if not known and not autologged and "params" not in source.options:
        raise ModelError(_no_parameters(source))
    kept = kept_by(booster, is_estimator=is_estimator, is_forest=is_forest)
    _require_agreement(logged, options, kept, booster, is_estimator)
    used = {name: value for name, value in logged.items() if name in FORGOTTEN - set(options)}
    params = {**kept, **used, **options, "objective": kept["objective"]}
    params = {name: value for name, value in params.items() if value is not None}
    _require_depth(params, booster)
    return params, _notes(used, options, kept, autologged)


def assumed(source: Source) -> str | None:
    """Return what is assumed unless autologging or the user gave all parameters."""
    if set(source.params) >= AUTOLOGGED or "params" in source.options:
        return None
    return (
        "XGBoost does not store hyper-parameters with a model, and those that were neither logged "
        "with the run nor given were assumed to be its defaults. Give all others in "
        "refit_options={'params': {…}}; on the command line give them one by one, with --refit-option "
        "params=complete to confirm that these are all"
    )


def kept_by(booster: Any, *, is_estimator: bool, is_forest: bool) -> dict[str, Any]:
    """Return the parameters that a stored booster keeps."""
    learner = json.loads(booster.save_config())["learner"]
    model, trees = learner["learner_model_param"], learner["gradient_booster"]
    kept: dict[str, Any] = {"objective": learner["objective"]["name"], "booster": trees["name"]}
    for own in learner["objective"].values():
        if isinstance(own, dict):
            kept.update({name: _single(read_value(text)) for name, text in own.items()})
    forest = trees.get("gbtree", trees).get("gbtree_model_param", {}).get("num_parallel_tree")
    if forest is not None:
        kept["num_parallel_tree"] = int(forest)
    kept["n_estimators"] = booster.num_boosted_rounds()
    if is_estimator and booster.attr("best_iteration") is not None:
        kept["n_estimators"] = int(booster.attr("best_iteration")) + 1
    if is_forest:
        kept["n_estimators"] = kept.pop("num_parallel_tree")
    if int(model["num_class"]) > 1:
        kept["num_class"] = int(model["num_class"])
    if model.get("boost_from_average") == "0":  # otherwise it was estimated from the rows
        kept["base_score"] = _single(read_value(model["base_score"]))
    return kept


def _single(value: Any) -> Any:
    return value[0] if isinstance(value, list) and len(value) == 1 else value


def _require_agreement(
    logged: Mapping[str, Any],
    options: Mapping[str, Any],
    kept: Mapping[str, Any],
    booster: Any,
    is_estimator: bool,
) -> None:
    """Raise an error if logged parameters contradict the stored model."""
    for name in ("objective", "num_class", "booster"):
        if name in options and options[name] is not None and options[name] != kept.get(name):
            raise InputError(
                f"refit_options {name}={options[name]!r}, but the model was trained with "
                f"{kept.get(name)!r}."
            )
    wrong = []
    for name in sorted((KEPT & set(logged)) - set(options)):
        value, own = logged[name], kept.get(name)
        if value is None or own is None or _same(value, own):
            continue
        if name == "n_estimators":
            stopped = booster.attr("best_iteration") is not None
            if stopped and value >= booster.num_boosted_rounds():
                continue
        if name == "objective" and is_estimator and str(own).startswith("multi:"):
            continue  # the estimator chose it when it was fitted
        wrong.append(f"{name}={value!r}, but the model has {own!r}")
    if wrong:
        raise ModelError(
            f"the parameters logged with its run are not those of this model: {'; '.join(wrong)}. "
            "Give the right ones in refit_options."
        )


def _same(value: Any, own: Any) -> bool:
    if isinstance(value, (int, float)) and isinstance(own, (int, float)):
        return math.isclose(value, own, rel_tol=1e-6, abs_tol=1e-12)
    return str(value) == str(own)


def _require_depth(params: Mapping[str, Any], booster: Any) -> None:
    """Raise an error if trees of the stored model exceed the depth."""
    allowed = params.get("max_depth", DEFAULT_DEPTH)
    if params["booster"] == "gblinear" or not allowed:
        return
    trees = booster[: min(CHECKED_ROUNDS, booster.num_boosted_rounds())].get_dump()
    depth = max(len(line) - len(line.lstrip("\t")) for tree in trees for line in tree.split("\n"))
    if depth > allowed:
        raise ModelError(
            f"max_depth={allowed} (XGBoost's default is {DEFAULT_DEPTH}) is not what this model was "
            f"trained with: it has trees of depth {depth}. Give the right hyper-parameters in "
            "refit_options."
        )


def _no_parameters(source: Source) -> str:
    where = f"the run of {source.uri!r}" if source.uri else "it"
    return (
        "XGBoost does not store hyper-parameters such as max_depth and learning_rate with a model, "
        f"and none were logged with {where}: the training cannot be repeated. Give them, in "
        "Python with refit_options={'params': {'max_depth': 3, 'learning_rate': 0.1}}, on the command "
        "line with --refit-option max_depth=3 --refit-option learning_rate=0.1. params={} selects "
        "XGBoost's defaults. To log them next time, use mlflow.xgboost.autolog()."
    )


def _notes(
    used: Mapping[str, Any], options: Mapping[str, Any], kept: Mapping[str, Any], autologged: bool
) -> tuple[str, ...]:
    """Return notes on the origin of each parameter."""
    notes = [f"from the model itself: {_listed(kept, options)}"]
    given = {name: value for name, value in used.items() if value is not None}
    if given:
        notes.append(f"from the run's parameters: {_listed(given)}")
    if options:
        notes.append(f"from refit_options: {_listed(options)}")
    if autologged:
        notes.append("all other hyper-parameters are XGBoost's defaults, as autologging shows")
    else:
        notes.append(
            "all other hyper-parameters are XGBoost's defaults; it is not known whether the model had "
            "others"
        )
    return tuple(notes)


def _listed(params: Mapping[str, Any], without: Mapping[str, Any] | None = None) -> str:
    excluded = without or {}
    return ", ".join(f"{name}={params[name]!r}" for name in sorted(params) if name not in excluded)


# --- The flavour: routes `clone` and `parameters`

#: The kind of prediction of each objective. All others that begin with `reg:` predict numbers.
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
    """Return the learner of an XGBoost booster or estimator.

    Hyper-parameters are options by name, or in a mapping `params`.
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

    Loading sets the booster and the base score, which are otherwise None unless given.
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
    params.pop("num_class", None)  # the estimator counts classes itself
    if "c" in (booster.feature_types or ()):
        params.update(enable_categorical=True, feature_types=booster.feature_types)
    estimator = type(model)(**params)
    return BoostedClone(
        estimator,
        fitted=model,
        inputs=estimator_inputs(model),
        categories=_categories(booster),
        notes=[*notes, *_objective_notes(booster, params), *_stopped_estimator(booster, params)],
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
        notes=[*notes, *_objective_notes(booster, params), *_stopped_booster(booster, rounds)],
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
        raise ModelError(f"the model predicts {outputs} numbers per row; losses need one.")
    kind = KINDS.get(objective, "value" if objective.startswith("reg:") else None)
    if kind is None:
        raise ModelError(_no_task(f"objective={objective!r}"))
    return kind


def _no_task(what: str) -> str:
    return (
        f"{what} is neither classification nor regression, and has no loss per row that could be "
        f"audited; use one of reg:*, {', '.join(KINDS)}."
    )


def _categories(booster: Any) -> Categories:
    """Return the categorical columns. XGBoost stores their categories from version 3.1 on."""
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


def _objective_notes(booster: Any, params: dict[str, Any]) -> list[str]:
    """Return notes on what may have been lost silently."""
    score = json.loads(booster.save_config())["learner"]["learner_model_param"]["base_score"]
    guessed = params["objective"] == "reg:squarederror" and "base_score" not in params
    if guessed and float(score.strip("[]").split(",")[0]) == 0.5:
        return [
            "its base score is exactly 0.5, as after training with a custom objective: if it had "
            "one, this refit is wrong; give a trainer"
        ]
    return []


def _stopped_estimator(booster: Any, params: dict[str, Any]) -> list[str]:
    if booster.attr("best_iteration") is None:
        return []
    dart = "; with dart, later rounds changed the weights of these, which refits do not repeat"
    return [
        f"refits use the {params['n_estimators']} rounds that its early stopping chose; the "
        f"stopping is not repeated{dart if params['booster'] == 'dart' else ''}"
    ]


def _stopped_booster(booster: Any, rounds: int) -> list[str]:
    best = booster.attr("best_iteration")
    if best is None:
        return []
    return [
        f"it stopped early, and {int(best) + 1} rounds were best; refits use {rounds}, as "
        f"MLflow predicts with these. num_boost_round={int(best) + 1} in refit_options selects the best"
    ]
