"""How a statsmodels model was trained, as far as its results object and its run remember."""

import ast
import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from mlflow_b3.errors import InputError, ModelError
from mlflow_b3.refit.interface import CannotRefit, Source

#: The models whose training is known, and what their results forget of the arguments of `fit`.
#: The run's parameters may tell these: autologging writes them.
FORGOTTEN: dict[str, tuple[str, ...]] = {
    "OLS": ("method",),
    "WLS": ("method",),
    "GLM": ("maxiter", "tol"),
    "Logit": (),
    "Probit": (),
    "MNLogit": (),
    "Poisson": (),
    "NegativeBinomial": (),
    "NegativeBinomialP": (),
    "GeneralizedPoisson": (),
    "QuantReg": ("max_iter", "p_tol"),
    "RLM": ("maxiter", "tol", "update_scale"),
    "MixedLM": ("method", "maxiter"),
}
#: The same for the elastic net, whose results are bare parameters.
FORGOTTEN_PENALTY = ("alpha", "L1_wt", "method", "maxiter", "cnvrg_tol", "zero_tol")
#: Entries of `mle_settings` that are no arguments of `fit`, or belong to the rows of the training.
NO_ARGUMENTS = {
    "optimizer",
    "start_params",
    "full_output",
    "disp",
    "fargs",
    "callback",
    "retall",
    "extra_fit_funcs",
    "cov_params_func",
    "alpha_rescaled",
    "bounds",
    "optim_kwds_prelim",
    "qc_verbose",
    "iprint",
}
#: Keywords of a model that hold one value per row, and those that statsmodels fills in itself.
ROW_KEYWORDS = ("weights", "freq_weights", "var_weights", "offset", "exposure", "groups")
OWN_KEYWORDS = (
    "formula",
    "model_spec",
    "design_info",
    "missing_idx",
    "n_trials",
    "exog_re",
    "exog_vc",
)


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A training procedure without its rows.

    Attributes
    ----------
    model_class : type
    keywords : mapping
        Keywords of the model that do not depend on rows, such as the family.
    penalised : bool
        Trained by `fit_regularized` instead of `fit`.
    arguments : mapping
        The arguments of that.
    notes : tuple of str
    """

    model_class: Any
    keywords: Mapping[str, Any]
    penalised: bool
    arguments: Mapping[str, Any]
    notes: tuple[str, ...]

    def fit(self, model: Any) -> Any:
        """Train a model that holds the rows."""
        fit = model.fit_regularized if self.penalised else model.fit
        return fit(**self.arguments)


def recover(results: Any, source: Source) -> Recipe:
    """Return how some results came about."""
    model = results.model
    name = type(model).__name__
    _require_known(results)
    penalised, remembered = _remembered(results)
    keywords = _keywords(model)
    notes = [_told("recovered from the logged object", {"model": name, **keywords, **remembered})]
    arguments = {**remembered, **_quiet(model, penalised)}
    forgotten = FORGOTTEN_PENALTY if penalised and "alpha" not in remembered else FORGOTTEN[name]
    given = _given_arguments(source, model, penalised)
    logged = _logged_arguments(source.params, [each for each in forgotten if each not in given])
    if logged:
        notes.append(_told("taken from the run's parameters", logged))
    if given:
        notes.append(_told("taken from refit_options", given))
    arguments.update({**logged, **given})
    if penalised and "alpha" not in arguments:
        raise ModelError(
            f"{name} was trained by fit_regularized, whose results do not remember the penalty. "
            "Give it, as in refit_options={'fit': {'alpha': 0.1, 'L1_wt': 1.0}}."
        )
    unknown = [each for each in forgotten if each not in arguments]
    if unknown:
        notes.append(f"not known, so as the library has it by default: {', '.join(unknown)}")
    if getattr(results, "cov_type", "nonrobust") != "nonrobust":
        notes.append(
            f"cov_type={results.cov_type!r} is not repeated: predictions do not depend on it"
        )
    return Recipe(
        model_class=type(model),
        keywords=keywords,
        penalised=penalised,
        arguments=arguments,
        notes=tuple(notes),
    )


def _require_known(results: Any) -> None:
    model = results.model
    name = type(model).__name__
    if not type(model).__module__.startswith("statsmodels.") or name not in FORGOTTEN:
        raise CannotRefit(
            f"how a {name} of {type(model).__module__} is trained again is not known; known are "
            f"{', '.join(FORGOTTEN)}. Give a trainer."
        )
    if getattr(model, "endog", None) is None or getattr(model, "exog", None) is None:
        raise ModelError(
            f"this {name} was logged without its data (remove_data=True), and with them it lost how "
            "it was trained. Log it with remove_data=False, give a trainer, or use refit='head'."
        )
    trials = getattr(model, "n_trials", None)
    if trials is not None and np.any(np.asarray(trials) != 1):
        raise CannotRefit("its target is two columns, successes and failures; an audit has one")
    if getattr(results, "k_constr", 0):
        raise CannotRefit("it was trained by fit_constrained, which is not repeated")
    if name == "MixedLM" and (
        model.k_re != 1 or np.any(np.asarray(model.exog_re) != 1) or model.k_vc
    ):
        raise CannotRefit("its random effects are more than one intercept per group")


def _keywords(model: Any) -> dict[str, Any]:
    keywords = {
        name: value
        for name, value in model._get_init_kwds().items()
        if name not in (*ROW_KEYWORDS, *OWN_KEYWORDS) and value is not None
    }
    if hasattr(model, "M"):
        keywords["M"] = model.M  # the norm of a robust model is not among its keywords
    dropped = getattr(model.data, "missing_row_idx", None)
    if dropped is not None and len(dropped):
        keywords["missing"] = "drop"
    return keywords


def _remembered(results: Any) -> tuple[bool, dict[str, Any]]:
    """Return whether a penalty was used, and the arguments that the results remember."""
    settings = getattr(results, "mle_settings", None) or {}
    inner = type(getattr(results, "_results", results)).__name__
    if inner == "RegularizedResults":
        return True, {}
    if getattr(results, "regularized", False):
        return True, {"method": results.method, "refit": True}
    model = results.model
    name = type(model).__name__
    if name == "GLM":
        found: dict[str, Any] = {"method": results.method}
        if "wls_method" in settings:
            found["wls_method"] = settings["wls_method"]
        history = getattr(results, "fit_history", None) or {}
        if not getattr(results, "converged", True) and "iteration" in history:
            found["maxiter"] = history["iteration"]  # it stopped where it had to
        return False, found
    if name == "QuantReg":
        return False, {"q": results.q}
    if name == "RLM":
        return False, {key: results.fit_options[key] for key in ("scale_est", "conv")}
    if name == "MixedLM":
        return False, {"reml": results.method == "REML"}
    if not settings:
        return False, {}
    found = {key: value for key, value in settings.items() if key not in NO_ARGUMENTS}
    found = {key: value for key, value in found.items() if value is not None}
    return str(settings["optimizer"]).startswith("l1"), {"method": settings["optimizer"], **found}


def _quiet(model: Any, penalised: bool) -> dict[str, Any]:
    """Return what keeps `fit` from printing; elsewhere it would be an unknown argument."""
    fit = model.fit_regularized if penalised else model.fit
    return {"disp": 0} if "disp" in inspect.signature(fit).parameters else {}


def _given_arguments(source: Source, model: Any, penalised: bool) -> dict[str, Any]:
    given = source.options.get("fit", {})
    if not isinstance(given, Mapping):
        method = "fit_regularized" if penalised else "fit"
        raise InputError(
            f"refit_options fit={given!r} must be a mapping of arguments of "
            f"{type(model).__name__}.{method}, such as {{'maxiter': 100}}."
        )
    return dict(given)


def _logged_arguments(params: Mapping[str, str], names: list[str]) -> dict[str, Any]:
    found = {}
    for name in names:
        if params.get(name) in (None, "None"):
            continue
        try:
            found[name] = ast.literal_eval(params[name])
        except (ValueError, SyntaxError):
            found[name] = params[name]
    return found


def _told(where: str, what: Mapping[str, Any]) -> str:
    return f"{where}: " + ", ".join(f"{name}={_short(value)}" for name, value in what.items())


def _short(value: Any) -> str:
    if isinstance(value, (str, bool, int, float)):
        return str(value)
    if np.ndim(value) == 0 and np.asarray(value).dtype.kind in "fiu":
        return str(np.asarray(value))
    link = getattr(value, "link", None)
    return type(value).__name__ + ("" if link is None else f" with link {type(link).__name__}")
