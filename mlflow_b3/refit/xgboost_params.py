"""Reading XGBoost's hyper-parameters from a user's options and from logged text."""

import ast
import re
from collections.abc import Mapping
from typing import Any

from mlflow_b3.errors import InputError, ModelError, closest
from mlflow_b3.refit.boosting import USE_TRAINER


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


CONSTRAINTS = frozenset({"interaction_constraints", "monotone_constraints"})
#: Names that stand for the same parameter.
ALIASES = {
    "alpha": "reg_alpha",
    "eta": "learning_rate",
    "lambda": "reg_lambda",
    "min_split_loss": "gamma",
    "nthread": "n_jobs",
    "num_boost_round": "n_estimators",
    "seed": "random_state",
}
#: Parameters that a stored model forgets and that decide on what it learns.
FORGOTTEN = _words(
    "colsample_bylevel colsample_bynode colsample_bytree feature_selector gamma grow_policy "
    "interaction_constraints learning_rate max_bin max_cat_threshold max_cat_to_onehot "
    "max_delta_step max_depth max_leaves min_child_weight missing monotone_constraints "
    "multi_strategy normalize_type one_drop process_type random_state rate_drop refresh_leaf reg_alpha reg_lambda "
    "sample_type sampling_method seed_per_iteration skip_drop subsample top_k tree_method "
    "updater"
)
#: Parameters that a stored model keeps, as far as its objective has them.
KEPT = _words(
    "base_score booster expectile_alpha huber_slope n_estimators num_class "
    "num_parallel_tree objective quantile_alpha scale_pos_weight tweedie_variance_power"
)
#: Parameters that do not change what is learned.
TECHNICAL = _words(
    "callbacks device disable_default_eval_metric early_stopping_rounds enable_categorical "
    "eval_metric feature_types importance_type max_cached_hist_node n_jobs validate_parameters "
    "verbosity"
)
NAMES = FORGOTTEN | KEPT | TECHNICAL | set(ALIASES)
#: Parameters whose values are words; all others are numbers.
WORDS = CONSTRAINTS | _words(
    "booster feature_selector grow_policy multi_strategy normalize_type objective process_type "
    "sample_type sampling_method tree_method updater"
)
#: They alone do not tell how a model was trained.
UNTELLING = frozenset({"missing", "random_state", "seed_per_iteration"})
#: What autologging writes with the parameters of every training.
AUTOLOGGED = frozenset({"maximize", "num_boost_round", "verbose_eval"})


def read_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the hyper-parameters among the user's options, given one by one or as `params`."""
    params = options.get("params", {})
    if params == "complete":  # the command line's way to say that no others were set
        params = {}
    if not isinstance(params, Mapping):
        raise InputError(
            f"refit_options params={params!r} must be a mapping of names to values, or 'complete'."
        )
    flat = {name: value for name, value in options.items() if name != "params"}
    unknown = [name for name in (*flat, *params) if name not in NAMES]
    if unknown:
        raise InputError(
            f"refit_options: {', '.join(map(repr, unknown))} is no hyper-parameter of XGBoost."
            + closest(str(unknown[0]), [*NAMES, "params"])
            + " Give them by their names, or as a mapping 'params'."
        )
    read: dict[str, Any] = {}
    for name, value in (*params.items(), *flat.items()):
        known = ALIASES.get(name, str(name))
        if known in read:
            raise InputError(f"refit_options: {name!r} is given twice, as {known!r} too.")
        if known in TECHNICAL:
            continue
        try:
            read[known] = _read(known, value) if isinstance(value, str) else value
        except ValueError as error:
            raise InputError(f"refit_options {name}={value!r} cannot be read: {error}.") from error
    return read


def read_logged(params: Mapping[str, str]) -> dict[str, Any]:
    """Return the hyper-parameters of XGBoost among logged ones; None where a default was meant."""
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
    """Return what a value was before it was logged as text: a literal of Python, or a word.

    Raises
    ------
    ValueError
        For the text of an object, such as a function.
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
    """Return the value of a parameter.

    Constraints by the numbers of columns stay text, as XGBoost wants them.
    """
    value = read_value(text)
    if isinstance(value, str) and name not in WORDS:
        raise ValueError(f"{name} is a number")
    by_name = isinstance(value, dict) or (
        isinstance(value, list) and all(isinstance(one, str) for part in value for one in part)
    )
    return text if name in CONSTRAINTS and value is not None and not by_name else value
