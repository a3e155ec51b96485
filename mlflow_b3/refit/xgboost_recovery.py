"""The hyper-parameters of a stored XGBoost model, which has lost most of them.

What it still knows (objective, rounds, base score, …) is taken from it. All others come from the
user's options, or else from the parameters logged with the run.
"""

import json
import math
from collections.abc import Mapping
from typing import Any

from mlflow_b3.errors import InputError, ModelError
from mlflow_b3.refit.interface import Source
from mlflow_b3.refit.xgboost_params import (
    AUTOLOGGED,
    FORGOTTEN,
    KEPT,
    UNTELLING,
    read_logged,
    read_options,
    read_value,
)

DEFAULT_DEPTH = 6
LOOKED_AT = 50  # trees


def recover(
    booster: Any, source: Source, *, is_estimator: bool = False, is_forest: bool = False
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the parameters to train with, rounds as `n_estimators`, and where they come from.

    Parameters
    ----------
    booster : xgboost.Booster
        As it was stored.
    source : Source
        With the parameters of the run, and the user's options.
    is_estimator, is_forest : bool
        Whether it was logged by one of XGBoost's classes for scikit-learn, and by one of a random
        forest, whose `n_estimators` are trees of a single round.

    Raises
    ------
    ModelError
        Where nothing is known about what the model has lost, or what was logged cannot have been
        the parameters of this model.
    """
    options, logged = read_options(source.options), read_logged(source.params)
    autologged = set(source.params) >= AUTOLOGGED
    told = (set(logged) | set(options)) & (FORGOTTEN - UNTELLING)
    if not told and not autologged and "params" not in source.options:
        raise ModelError(_nothing_known(source))
    kept = kept_by(booster, is_estimator=is_estimator, is_forest=is_forest)
    _require_agreement(logged, options, kept, booster, is_estimator)
    used = {name: value for name, value in logged.items() if name in FORGOTTEN - set(options)}
    params = {**kept, **used, **options, "objective": kept["objective"]}
    params = {name: value for name, value in params.items() if value is not None}
    _require_depth(params, booster)
    return params, _notes(used, options, kept, autologged)


def assumed(source: Source) -> str | None:
    """Return what is assumed where neither autologging nor the user says that all is known."""
    if set(source.params) >= AUTOLOGGED or "params" in source.options:
        return None
    return (
        "XGBoost does not store hyper-parameters with a model, and those that were neither logged "
        "with the run nor given were assumed to be its defaults. Give all that were not, by "
        "refit_options={'params': {…}}; on the command line one by one, and --refit-option "
        "params=complete to say that these are all"
    )


def kept_by(booster: Any, *, is_estimator: bool, is_forest: bool) -> dict[str, Any]:
    """Return the parameters that a stored booster still knows."""
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
    if model.get("boost_from_average") == "0":  # else it was estimated from the rows
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
    """Refuse logged parameters that the stored model contradicts: they are another model's."""
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
            continue  # the class chose it by itself, when it saw the labels
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
    """Refuse a depth that the trees of the stored model exceed."""
    allowed = params.get("max_depth", DEFAULT_DEPTH)
    if params["booster"] == "gblinear" or not allowed:
        return
    trees = booster[: min(LOOKED_AT, booster.num_boosted_rounds())].get_dump()
    depth = max(len(line) - len(line.lstrip("\t")) for tree in trees for line in tree.split("\n"))
    if depth > allowed:
        raise ModelError(
            f"max_depth={allowed} (XGBoost's default is {DEFAULT_DEPTH}) is not what this model was "
            f"trained with: it has trees of depth {depth}. Give the right hyper-parameters in "
            "refit_options."
        )


def _nothing_known(source: Source) -> str:
    where = f"the run of {source.uri!r}" if source.uri else "it"
    return (
        "XGBoost does not store hyper-parameters such as max_depth and learning_rate with a model, "
        f"and none were logged with {where}: it cannot be trained again as it was. Give them, in "
        "Python by refit_options={'params': {'max_depth': 3, 'learning_rate': 0.1}}, on the command "
        "line by --refit-option max_depth=3 --refit-option learning_rate=0.1; params={} takes "
        "XGBoost's defaults on purpose. Next time mlflow.xgboost.autolog() logs them."
    )


def _notes(
    used: Mapping[str, Any], options: Mapping[str, Any], kept: Mapping[str, Any], autologged: bool
) -> tuple[str, ...]:
    """Say which parameter came from where."""
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
            "all other hyper-parameters are XGBoost's defaults; whether the model had others is not "
            "known"
        )
    return tuple(notes)


def _listed(params: Mapping[str, Any], without: Mapping[str, Any] | None = None) -> str:
    left_out = without or {}
    return ", ".join(f"{name}={params[name]!r}" for name in sorted(params) if name not in left_out)
