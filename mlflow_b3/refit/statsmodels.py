"""statsmodels: route `parameters`, for models built from matrices and from formulas."""

import ast
import inspect
import io
import re
import tokenize
import warnings
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from mlflow_b3.data.losses import Predictor
from mlflow_b3.data.table import ModelInputs
from mlflow_b3.errors import CannotRefit, InputError, ModelError
from mlflow_b3.refit.flavours import load_native
from mlflow_b3.refit.learner import FunctionPredictor, Learner, Rows, Source, as_codes

# --- The design of a model: a matrix or a formula

#: Names of a column of ones. Other constant columns are ordinary features.
CONSTANTS = {"const", "constant", "intercept", "ones"}


@dataclass(frozen=True, kw_only=True)
class MatrixDesign:
    """A matrix of features.

    Attributes
    ----------
    columns : tuple of str or None
        The features in the model's order, including the constant; None for an array.
    count : int
        Their number.
    constant : int or None
        The position of the column of ones, which the table need not have.
    """

    columns: tuple[str, ...] | None
    count: int
    constant: int | None

    def inputs(self, extras: Iterable[str]) -> ModelInputs:
        """Return the columns that the table must have: all but the constant, plus `extras`."""
        count = self.count - (self.constant is not None)
        if self.columns is None:
            return ModelInputs(count=count, as_array=True)
        names = [name for at, name in enumerate(self.columns) if at != self.constant]
        return ModelInputs(columns=tuple(dict.fromkeys([*names, *extras])), count=count)

    def features(self, X: Any) -> Any:
        """Return the matrix for these rows."""
        if self.columns is None:
            X = np.asarray(X, dtype=float)
            if self.constant is None or X.shape[1] == self.count:
                return X
            return np.insert(X, self.constant, 1.0, axis=1)
        if self.constant is not None:
            X = X.assign(**{self.columns[self.constant]: 1.0})
        # statsmodels treats pandas' nullable numbers as objects
        return X[list(self.columns)].reset_index(drop=True).astype(float)

    def model(self, model_class: Any, X: Any, target: NDArray[Any], **keywords: Any) -> Any:
        """Return the model with these rows."""
        return model_class(target, self.features(X), **keywords)


@dataclass(frozen=True, kw_only=True)
class FormulaDesign:
    """A formula that computes features from columns.

    Transformations that depend on the rows (splines, standardisation, the levels of a category) are
    computed again in every refit.

    Attributes
    ----------
    formula : str
        With the untransformed target on its left side.
    target : str
        The name of the target in the formula.
    columns : tuple of str
        The columns on its right side.
    """

    formula: str
    target: str
    columns: tuple[str, ...]

    def inputs(self, extras: Iterable[str]) -> ModelInputs:
        """Return the columns that the table must have: those of the formula, plus `extras`."""
        return ModelInputs(columns=tuple(dict.fromkeys([*self.columns, *extras])))

    def features(self, X: Any) -> Any:
        """Return the columns of the formula for these rows."""
        return X[list(self.columns)].reset_index(drop=True)

    def model(self, model_class: Any, X: Any, target: NDArray[Any], **keywords: Any) -> Any:
        """Return the model with these rows.

        A formula may say `np.log(age)`: statsmodels looks for `np` here.
        """
        frame = self.features(X).assign(**{self.target: target})
        return model_class.from_formula(self.formula, frame, **keywords)


Design = MatrixDesign | FormulaDesign


def read_design(model: Any, *, classify: bool) -> Design:
    """Return the design of a model."""
    formula = getattr(model, "formula", None)
    if formula is not None:
        return _read_formula(formula, model.data.frame, classify=classify)
    exog = model.data.orig_exog
    named = isinstance(exog, pd.DataFrame)
    columns = tuple(str(name) for name in exog.columns) if named else None
    at = model.data.const_idx
    if at is not None and not (
        (model.exog[:, at] == 1).all() and (columns is None or columns[at].lower() in CONSTANTS)
    ):
        at = None
    return MatrixDesign(columns=columns, count=model.exog.shape[1], constant=at)


def _read_formula(formula: Any, frame: Any, *, classify: bool) -> FormulaDesign:
    if not isinstance(formula, str) or not isinstance(frame, pd.DataFrame):
        raise ModelError(
            f"the formula of this model is a {type(formula).__name__} on a "
            f"{type(frame).__name__}; only strings on a DataFrame can be refitted. Give a trainer."
        )
    left, _, right = formula.partition("~")
    name = _bare_name(left.strip(), classify=classify)
    if name is None:
        raise ModelError(
            f"the formula predicts {left.strip()!r}, not a column: its predictions are on another "
            "scale than the target of the table. Add a column with the transformed target, train "
            "with its name on the left side of the formula, and audit that column."
        )
    used = [str(column) for column in frame.columns if str(column) in _names(right)]
    if name in used:
        raise ModelError(f"the formula {formula!r} predicts {name!r} from itself.")
    quoted = name if name.isidentifier() else left.strip()
    return FormulaDesign(formula=f"{quoted} ~ {right.strip()}", target=name, columns=tuple(used))


def _bare_name(left: str, *, classify: bool) -> str | None:
    """Return the column on the left side of a formula; None if it is transformed."""
    category = re.fullmatch(r"C\((.+)\)", left)
    if category and classify:  # classes are not transformed
        return _bare_name(category[1].strip(), classify=False)
    quoted = re.fullmatch(r"""Q\((["'])(.+)\1\)|`(.+)`""", left)
    if quoted:
        return quoted[2] or quoted[3]
    return left if left.isidentifier() else None


def _names(right: str) -> set[str]:
    """Return all names and quoted names on the right side of a formula."""
    found = set(re.findall(r"`([^`]+)`", right))
    for token in tokenize.generate_tokens(io.StringIO(right.replace("`", " ")).readline):
        if token.type == tokenize.NAME:
            found.add(token.string)
        elif token.type == tokenize.STRING:
            found.add(token.string.strip("\"'"))
    return found


# --- Recover the training procedure from a results object and its run

#: Supported models, and the arguments of `fit` that their results do not store. The run's
#: parameters may have them: autologging logs them.
NOT_STORED: dict[str, tuple[str, ...]] = {
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
#: The same for the elastic net, whose results store only coefficients.
NOT_STORED_PENALTY = ("alpha", "L1_wt", "method", "maxiter", "cnvrg_tol", "zero_tol")
#: Entries of `mle_settings` that are not arguments of `fit`, or depend on the training rows.
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
#: Keywords of a model with one value per row, and those that statsmodels sets itself.
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
        Whether it was trained by `fit_regularized` instead of `fit`.
    arguments : mapping
        The arguments of that method.
    notes : tuple of str
    """

    model_class: Any
    keywords: Mapping[str, Any]
    penalised: bool
    arguments: Mapping[str, Any]
    notes: tuple[str, ...]

    def fit(self, model: Any) -> Any:
        """Train a model, which holds the rows."""
        fit = model.fit_regularized if self.penalised else model.fit
        return fit(**self.arguments)


def recover(results: Any, source: Source) -> Recipe:
    """Return the training procedure of a results object."""
    model = results.model
    name = type(model).__name__
    _require_known(results)
    penalised, stored = _stored_arguments(results)
    keywords = _keywords(model)
    notes = [_note("recovered from the logged object", {"model": name, **keywords, **stored})]
    arguments = {**stored, **_quiet(model, penalised)}
    lost = NOT_STORED_PENALTY if penalised and "alpha" not in stored else NOT_STORED[name]
    given = _given_arguments(source, model, penalised)
    logged = _logged_arguments(source.params, [each for each in lost if each not in given])
    if logged:
        notes.append(_note("taken from the run's parameters", logged))
    if given:
        notes.append(_note("taken from refit_options", given))
    arguments.update({**logged, **given})
    if penalised and "alpha" not in arguments:
        raise ModelError(
            f"{name} was trained by fit_regularized, whose results do not store the penalty. "
            "Give it, as in refit_options={'fit': {'alpha': 0.1, 'L1_wt': 1.0}}."
        )
    unknown = [each for each in lost if each not in arguments]
    if unknown:
        notes.append(f"not known, so set to the library's default: {', '.join(unknown)}")
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
    if not type(model).__module__.startswith("statsmodels.") or name not in NOT_STORED:
        raise CannotRefit(
            f"a {name} of {type(model).__module__} cannot be refitted; known are "
            f"{', '.join(NOT_STORED)}. Give a trainer."
        )
    if getattr(model, "endog", None) is None or getattr(model, "exog", None) is None:
        raise ModelError(
            f"this {name} was logged without its data (remove_data=True), and therefore without its "
            "training procedure. Log it with remove_data=False, give a trainer, or use refit='head'."
        )
    trials = getattr(model, "n_trials", None)
    if trials is not None and np.any(np.asarray(trials) != 1):
        raise CannotRefit("its target has two columns, successes and failures; an audit needs one")
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


def _stored_arguments(results: Any) -> tuple[bool, dict[str, Any]]:
    """Return whether a penalty was used, and the arguments that the results store."""
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
            found["maxiter"] = history["iteration"]  # it reached the limit
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
    """Return the argument that keeps `fit` from printing, if it has one."""
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


def _note(origin: str, values: Mapping[str, Any]) -> str:
    return f"{origin}: " + ", ".join(f"{name}={_short(value)}" for name, value in values.items())


def _short(value: Any) -> str:
    if isinstance(value, (str, bool, int, float)):
        return str(value)
    if np.ndim(value) == 0 and np.asarray(value).dtype.kind in "fiu":
        return str(np.asarray(value))
    link = getattr(value, "link", None)
    return type(value).__name__ + ("" if link is None else f" with link {type(link).__name__}")


# --- The flavour: route `parameters`

WEIGHTS = ("weights", "freq_weights", "var_weights")
SYMMETRIC_LINKS = ("Logit", "Probit", "Cauchy")
COLUMNS = ("offset", "exposure", "groups")
#: Largest difference of predictions, relative to their range, that counts as the same training.
TOLERANCE = 1e-4


def load(source: Source) -> Any:
    """Load the results."""
    return load_native("statsmodels", source)


def learner(model: Any, source: Source) -> "StatsmodelsLearner":
    """Return the learner of a results object.

    The option `fit` is a mapping of arguments of `fit` or `fit_regularized` that the results do not
    store. The options `offset`, `exposure` and `groups` name the columns that hold these.
    """
    source.require_route("parameters")
    options = source.require_options("fit", *COLUMNS)
    if not hasattr(model, "model") or not hasattr(model, "params"):
        raise CannotRefit(
            f"{type(model).__name__} is not a result of a statsmodels fit; give the result of fit()."
        )
    columns = {name: options[name] for name in COLUMNS if name in options}
    for name, column in columns.items():
        if not isinstance(column, str):
            raise InputError(f"refit_options {name}={column!r} must be the name of a column.")
    return StatsmodelsLearner(model, source, columns)


class StatsmodelsLearner(Learner):
    """Builds the same model on other rows and fits it with the same arguments.

    Parameters
    ----------
    results : statsmodels results
        With their training data. A refit on these must reproduce the predictions.
    source : Source
    columns : mapping of str to str
        The columns that hold the offset, the exposure or the groups.
    """

    route = "parameters"

    def __init__(self, results: Any, source: Source, columns: Mapping[str, str]) -> None:
        model = results.model
        self._recipe = recover(results, source)
        kind = type(model).__name__
        family = self._recipe.keywords.get("family")
        self.name = kind if family is None else f"{kind} ({type(family).__name__})"
        classes = _classes(model)
        self.task = "regression" if classes is None else "classification"
        self._multiclass = kind == "MNLogit"
        self._positive = _positive_level(model.endog_names) if kind == "GLM" else None
        self._symmetric = family is None or type(family.link).__name__ in SYMMETRIC_LINKS
        self._design = read_design(model, classify=classes is not None)
        self._columns = dict(columns)
        own = _row_keywords(model)
        self._weight, self._same_weight = _weight_keyword(model, own)
        self.weighted = self._weight is not None
        self.weight_required = self._weight in own and self._weight not in self._same_weight
        self._require_columns(own)
        self.inputs = self._design.inputs(self._columns.values())
        self.notes = (*self._recipe.notes, *self._own_notes(), self._verify(results, own))
        self.original = self._predictor(results, classes)

    def represent(self, X: Any, ids: NDArray[Any]) -> Any:  # noqa: ARG002
        """Check that the table has columns that a signature may not name."""
        missing = [name for name in self._columns.values() if name not in X]
        if missing:
            raise InputError(
                f"refit_options name the columns {missing}, which the model's signature leaves out. "
                "Log the model with a signature that has them, or without one."
            )
        return X

    def train(self, rows: Rows, seed: int | None) -> Predictor:  # noqa: ARG002 - no randomness
        """Fit the model to these rows."""
        classes, target = self._coded(rows.target)
        keywords: dict[str, Any] = {
            name: np.full(len(target), value) for name, value in self._same_weight.items()
        }
        if self._weight is not None and rows.weight is not None:
            keywords[self._weight] = rows.weight
        for name, column in self._columns.items():
            keywords[name] = rows.X[column].to_numpy()
        return self._predictor(self._fit(rows.X, target, keywords), classes)

    def _fit(self, X: Any, target: NDArray[Any], keywords: Mapping[str, Any]) -> Any:
        recipe = self._recipe
        keywords = {**deepcopy(dict(recipe.keywords)), **keywords}  # families store their rows
        return recipe.fit(self._design.model(recipe.model_class, X, target, **keywords))

    def _coded(self, target: NDArray[Any]) -> tuple[NDArray[Any] | None, NDArray[Any]]:
        if self.task == "regression":
            return None, np.asarray(target, dtype=float)
        classes, codes = as_codes(target)
        if self._multiclass:
            return classes, codes
        if len(classes) > 2:
            raise ModelError(f"{self.name} has two classes; the target has {list(classes)}.")
        if self._positive in _texts(classes[0]):
            return classes[::-1], 1 - codes
        known = classes.dtype.kind in "biuf" or self._positive in _texts(classes[1])
        if not self._symmetric and not known:
            raise ModelError(
                f"{self.name} has a link that treats its two classes differently, and it is not known "
                f"which of {list(classes)} was coded as 1. Code the target as 0 and 1."
            )
        return classes, codes

    def _predictor(self, results: Any, classes: NDArray[Any] | None) -> Predictor:
        def predict(X: Any, **options: Any) -> NDArray[Any]:
            for name in ("offset", "exposure"):
                if name in self._columns:
                    options[name] = X[self._columns[name]].to_numpy()
            return np.asarray(results.predict(self._design.features(X), **options))

        if classes is None:
            return FunctionPredictor({"value": predict}, name=self.name)

        def decide(X: Any) -> NDArray[Any]:
            return predict(X, which="linear")

        return FunctionPredictor.from_probabilities(
            predict, classes, name=self.name, decision=None if self._multiclass else decide
        )

    def _require_columns(self, own: Mapping[str, Any]) -> None:
        """Raise an error if an offset, an exposure or groups are missing or not used."""
        for name in COLUMNS:
            if name in own and name not in self._columns:
                raise ModelError(
                    f"{self.name} was trained with {name}, one value per row, which the table must "
                    f"hold. Name its column: refit_options={{{name!r}: '…'}}."
                )
            if name in self._columns and name not in own:
                raise InputError(
                    f"refit_options {name}={self._columns[name]!r}: {self.name} was trained "
                    f"without {name}. Leave it out."
                )
        if self._columns and self._design.inputs(()).as_array:
            raise ModelError(
                f"{self.name} was trained on an array, whose columns have no names, so none can "
                f"be the {' or '.join(self._columns)}. Train it on a DataFrame, or give a trainer."
            )

    def _own_notes(self) -> list[str]:
        notes = []
        if getattr(self._design, "constant", None) is not None:
            notes.append("a column of ones is added to the features, as in the model")
        if self.task == "classification":
            notes.append(
                f"the model gives the probability of {self._positive!r}"
                if self._positive is not None
                else "classes are coded 0, 1, … in sorted order"
            )
        for name, column in self._columns.items():
            notes.append(f"{name} of the rows is taken from column {column!r}")
        if self.weight_required:
            notes.append(f"sample weights replace the {self._weight} of the model")
        return notes

    def _verify(self, results: Any, own: Mapping[str, Any]) -> str:
        """Refit on the model's own rows and compare predictions. Return a note."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                refitted = self._fit_own_rows(results.model, own)
        except Exception as error:  # numerical failures of all kinds
            raise ModelError(
                f"{self.name} cannot be trained again even on its own rows: "
                f"{type(error).__name__}: {error}"
            ) from error
        before, after = np.asarray(results.predict()), np.asarray(refitted.predict())
        scale = max(np.ptp(before), 1e-9 * np.abs(before).max(), 1e-300)
        gap = float(np.abs(before - after).max() / scale)
        if not gap <= TOLERANCE:
            raise ModelError(
                f"{self.name}, trained again on its own rows with the known arguments, "
                f"predicts other values (largest difference {gap:.2g} of their range). Give the "
                "missing arguments of fit, as in refit_options={'fit': {'maxiter': 100}}, "
                "or a trainer."
            )
        return "trained again on its own rows it predicts the same" + (
            "" if gap == 0 else f", up to {gap:.1g} of the range of its predictions"
        )

    def _fit_own_rows(self, model: Any, own: Mapping[str, Any]) -> Any:
        if isinstance(self._design, FormulaDesign):
            frame = model.data.frame
            used = [name for name in (self._design.target, *self._design.columns) if name in frame]
            complete = frame[frame[used].notna().all(axis=1).to_numpy()]
            if len(complete) == len(model.endog):
                return self._fit(complete, model.endog, own)
        keywords = {**deepcopy(dict(self._recipe.keywords)), **own}
        return self._recipe.fit(type(model)(model.endog, model.exog, **keywords))


def _classes(model: Any) -> NDArray[Any] | None:
    """Return the classes of a classifier; None for a regressor."""
    kind = type(model).__name__
    if kind == "MNLogit":
        return _as_numbers([model._ynames_map[code] for code in sorted(model._ynames_map)])
    binomial = type(getattr(model, "family", None)).__name__ == "Binomial"
    if not (kind in ("Logit", "Probit") or (kind == "GLM" and binomial)):
        return None
    if not np.isin(model.endog, (0, 1)).all():
        return None  # shares are values, not classes
    if _positive_level(model.endog_names) is None:
        return np.array([0, 1])
    return _as_numbers([_level(name) for name in reversed(model.endog_names)])


def _as_numbers(labels: Sequence[str]) -> NDArray[Any]:
    """Convert labels that statsmodels turned into strings back to numbers, if they were numbers."""
    try:
        return np.array(labels, dtype=float).astype(int)
    except ValueError:
        return np.array(labels)


def _texts(label: Any) -> tuple[str, ...]:
    """Return the possible names of a class in a formula. 0 and 1 may have been booleans."""
    return (str(label), str(bool(label))) if label in (0, 1) else (str(label),)


def _positive_level(names: Any) -> str | None:
    """Return the class whose probability a formula with a categorical target models."""
    return _level(names[0]) if isinstance(names, list) and len(names) == 2 else None


def _level(name: str) -> str:
    found = re.fullmatch(r".*\[(?:T\.)?(.*)\]", name)
    return found[1] if found else name


def _row_keywords(model: Any) -> dict[str, NDArray[Any]]:
    """Return the keywords with one value per row that affect the fit."""
    found = {}
    for name, value in model._get_init_kwds().items():
        if name in ROW_KEYWORDS and value is not None:
            array = np.asarray(value)
            neutral = 0 if name == "offset" else 1
            if name == "groups" or np.any(array != neutral):
                found[name] = array
    return found


def _weight_keyword(
    model: Any, own: Mapping[str, NDArray[Any]]
) -> tuple[str | None, dict[str, float]]:
    """Return the keyword for sample weights, and weights that are equal for all rows.

    Frequency and variance weights of a GLM give the same predictions. Only standard errors differ.
    """
    possible = [name for name in WEIGHTS if name in model._get_init_kwds()]
    varying = [name for name in possible if name in own and np.ptp(own[name]) > 0]
    if len(varying) > 1:
        raise ModelError(
            f"{type(model).__name__} was trained with {' and '.join(varying)}; one column of sample "
            "weights can replace only one of them. Give a trainer."
        )
    same = {name: own[name].flat[0] for name in possible if name in own and name not in varying}
    return next(iter([*varying, *possible]), None), same
