"""Which code of a model runs on loading, and loading skops models without pickle."""

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from mlflow_b3.errors import ModelError
from mlflow_b3.refit.flavours import load_by_mlflow
from mlflow_b3.refit.learner import Source

# --- The types that a skops file may contain, beyond those that skops trusts itself
#
# A file names types. For each trusted type, skops imports it, calls it or creates an empty instance,
# and sets its state, all with values from the file. A type is on this list only if none of these
# steps can run code from the values:
#
# - classes that store their state unchanged, or pass it to compiled code as numbers, text or bytes;
# - functions that compute with arrays and call only functions passed to them, which must be on the
#   list too.
#
# The list contains names. A rule such as "everything in scikit-learn, NumPy and SciPy" would be
# wrong: the distributions of `scipy.stats`, common in parameter searches, run text from their state
# as Python code when it is restored.
#
# The list has a limit: compiled code does not check every index. A crafted tree, search tree or
# booster may crash the process or read memory outside itself when it predicts. Refits do not predict
# with the loaded model, except for frozen parts and the route `head`. The comparison of a refit with
# the logged model does, once.

_NAMES: Final = {
    "catboost.core": "CatBoost CatBoostClassifier CatBoostRegressor",
    "collections": "OrderedDict",
    "functools": "partial",
    "lightgbm.basic": "Booster",
    "lightgbm.sklearn": "LGBMClassifier LGBMModel LGBMRegressor",
    "numpy": "dtype mean",
    "scipy._lib.array_api_compat.numpy._aliases": "asarray",
    "scipy.interpolate._bsplines": "BSpline",
    "scipy.sparse._coo": "coo_array coo_matrix",
    "scipy.sparse._csc": "csc_array csc_matrix",
    "scipy.sparse._csr": "csr_array csr_matrix",
    "scipy.sparse._dia": "dia_array dia_matrix",
    "sklearn._loss.link": (
        "HalfLogitLink IdentityLink Interval LogLink LogitLink MultinomialLogit"
    ),
    "sklearn._loss.loss": (
        "AbsoluteError ExponentialLoss HalfBinomialLoss HalfGammaLoss HalfMultinomialLoss "
        "HalfPoissonLoss HalfSquaredError HalfTweedieLoss HalfTweedieLossIdentity HuberLoss "
        "PinballLoss"
    ),
    "sklearn.calibration": "_CalibratedClassifier _SigmoidCalibration _TemperatureScaling",
    "sklearn.compose._column_transformer": "make_column_selector",
    "sklearn.ensemble._hist_gradient_boosting.binning": "_BinMapper",
    "sklearn.ensemble._hist_gradient_boosting.predictor": "TreePredictor",
    "sklearn.feature_selection._mutual_info": "mutual_info_classif mutual_info_regression",
    "sklearn.feature_selection._univariate_selection": ("chi2 f_classif f_regression r_regression"),
    "sklearn.gaussian_process._gpc": "_BinaryGaussianProcessClassifierLaplace",
    "sklearn.gaussian_process.kernels": (
        "CompoundKernel ConstantKernel DotProduct ExpSineSquared Exponentiation Matern "
        "PairwiseKernel Product RBF RationalQuadratic Sum WhiteKernel"
    ),
    "sklearn.impute._iterative": "IterativeImputer _ImputerTriplet",
    "sklearn.metrics._classification": (
        "accuracy_score balanced_accuracy_score brier_score_loss "
        "cohen_kappa_score f1_score fbeta_score jaccard_score log_loss matthews_corrcoef "
        "precision_score recall_score"
    ),
    "sklearn.metrics._dist_metrics": (
        "BrayCurtisDistance CanberraDistance ChebyshevDistance DiceDistance EuclideanDistance "
        "HammingDistance HaversineDistance JaccardDistance MahalanobisDistance ManhattanDistance "
        "MinkowskiDistance RogersTanimotoDistance RussellRaoDistance SEuclideanDistance "
        "SokalSneathDistance"
    ),
    "sklearn.metrics._ranking": "average_precision_score roc_auc_score top_k_accuracy_score",
    "sklearn.metrics._regression": (
        "d2_absolute_error_score explained_variance_score max_error mean_absolute_error "
        "mean_absolute_percentage_error mean_gamma_deviance mean_pinball_loss "
        "mean_poisson_deviance mean_squared_error mean_squared_log_error median_absolute_error "
        "r2_score root_mean_squared_error root_mean_squared_log_error"
    ),
    "sklearn.metrics._scorer": "_CurveScorer _PassthroughScorer _Scorer",
    "sklearn.model_selection._split": (
        "GroupKFold GroupShuffleSplit KFold LeaveOneGroupOut LeaveOneOut LeavePGroupsOut LeavePOut "
        "PredefinedSplit RepeatedKFold RepeatedStratifiedKFold ShuffleSplit StratifiedGroupKFold "
        "StratifiedKFold StratifiedShuffleSplit TimeSeriesSplit _CVIterableWrapper"
    ),
    "sklearn.multiclass": "_ConstantPredictor",
    "sklearn.neighbors._ball_tree": "BallTree BallTree32 BallTree64",
    "sklearn.neighbors._kd_tree": "KDTree KDTree32 KDTree64",
    "sklearn.neural_network._stochastic_optimizers": "AdamOptimizer SGDOptimizer",
    "sklearn.tree._tree": "Tree",
    "sklearn.utils._bunch": "Bunch",
    "sklearn.utils._metadata_requests": "MetadataRequest MethodMetadataRequest",
    "sklearn.utils.validation": "check_array",
    "xgboost.core": "Booster",
    "xgboost.sklearn": "XGBClassifier XGBModel XGBRFClassifier XGBRFRegressor XGBRegressor",
}

#: Modules with one name per floating-point precision.
_PRECISIONS: Final = {"sklearn.metrics._dist_metrics": ("32", "64")}

TRUSTED: Final = frozenset(
    f"{module}.{name}{bits}"
    for module, names in _NAMES.items()
    for name in names.split()
    for bits in _PRECISIONS.get(module, ("",))
)


# --- Models stored by skops: loaded without pickle, by our own list of types
#
# MLflow trusts all types that the MLmodel file lists, which the author of the model chose. It
# therefore loads no skops model if `MLFLOW_ALLOW_PICKLE_DESERIALIZATION` is false. Here the order is:
#
# 1. A file with types of our own list only (`TRUSTED`) is loaded by that list, even under MLflow's
#    restriction: it involves no pickle and no code of the model.
# 2. A file with other types is loaded by MLflow, with a note, unless the restriction is on. Then it
#    is refused.

#: Flavours that MLflow may store by skops, and the setting that names the file.
FILES = {"sklearn": "pickled_model", "lightgbm": "data"}


def stored_by_skops(flavour: str, settings: Mapping[str, Any]) -> bool:
    """Return whether a flavour is stored by skops, by its settings in the MLmodel file."""
    booster = settings.get("model_class") == "lightgbm.basic.Booster"  # LightGBM's own file format
    return flavour in FILES and settings.get("serialization_format") == "skops" and not booster


def skops_flavour(source: Source) -> str | None:
    """Return the first flavour that is stored by skops; None if there is none."""
    for flavour, settings in source.flavours.items():
        if stored_by_skops(flavour, settings):
            return flavour
    return None


def load_skops(flavour: str, source: Source) -> Any:
    """Load a model that is stored by skops.

    Raises
    ------
    ModelError
        If it cannot be loaded, or contains types that are not trusted while MLflow's restriction
        on pickle is on.
    """
    with tempfile.TemporaryDirectory(prefix="b3-model-") as folder:
        try:
            model, unknown = _load_trusted(flavour, source, folder)
        except Exception as error:  # a damaged file may raise anything
            raise ModelError(
                f"model={source.uri!r} could not be loaded: {type(error).__name__}: {error}"
            ) from error
    if not unknown:
        return model
    _require_permission(source, unknown)
    source.notes.append(
        "loading it constructed types that its author declared trusted and this package does not "
        f"know: {', '.join(unknown)}"
    )
    return load_by_mlflow(flavour, source)


def load_skops_function(flavour: str, source: Source) -> Any:
    """Load a model that is stored by skops as an MLflow pyfunc model."""
    import mlflow

    settings = source.flavours.get("python_function", {})
    return mlflow.pyfunc.PyFuncModel(
        model_meta=mlflow.models.Model.load(source.uri),
        model_impl=load_skops(flavour, source),
        predict_fn=settings.get("predict_fn", "predict"),
    )


def _load_trusted(flavour: str, source: Source, folder: str) -> tuple[Any, list[str]]:
    """Return the model and an empty list, or None and the types that are not trusted."""
    import mlflow
    import skops.io

    local = mlflow.artifacts.download_artifacts(artifact_uri=source.uri, dst_path=folder)
    file = Path(local) / source.flavours[flavour][FILES[flavour]]
    unknown = sorted(set(skops.io.get_untrusted_types(file=file)) - TRUSTED)
    return (None, unknown) if unknown else (skops.io.load(file, trusted=sorted(TRUSTED)), [])


def _require_permission(source: Source, unknown: list[str]) -> None:
    from mlflow.environment_variables import MLFLOW_ALLOW_PICKLE_DESERIALIZATION

    if MLFLOW_ALLOW_PICKLE_DESERIALIZATION.get():
        return
    raise ModelError(
        f"model={source.uri!r} contains types that are not known to be harmless: "
        f"{', '.join(unknown)}. With MLFLOW_ALLOW_PICKLE_DESERIALIZATION=true, MLflow loads it and "
        "trusts the types that the model's author declared; do that only for models that you would "
        "also serve."
    )


# --- Which code of a logged model runs on loading, according to its MLmodel file

ADVICE = "Audit only models that you would also serve."
#: Flavours whose files contain only data.
DATA_ONLY = {"catboost", "onnx", "xgboost"}


def loading_notice(uri: str, *, trainer: Any = None, refit: str = "auto") -> str | None:
    """Return a sentence on the code of a logged model that an audit will run.

    None if a trainer was given, because then nothing is loaded, and for a model that is not found,
    because loading will raise an error.
    """
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException

    from mlflow_b3.errors import ModelError
    from mlflow_b3.refit.loading import model_info

    if trainer is not None:
        return None
    try:
        info = model_info(uri)
        tags = MlflowClient().get_run(info.run_id).data.tags if info.run_id else {}
    except ModelError:
        return None
    except (MlflowException, OSError):
        tags = {}  # the run was deleted
    if "b3.trainer" in tags and refit in ("auto", "trainer"):
        return (
            f"Refits of {uri} run the trainer stored with its run ({tags['b3.trainer']}). {ADVICE}"
        )
    reasons = code_run_by_loading(info.flavors)
    if reasons:
        return f"Loading {uri} runs code that it brings ({'; '.join(reasons)}). {ADVICE}"
    return f"Loading {uri} runs no code that it brings."


def code_run_by_loading(flavours: Mapping[str, Mapping[str, Any]]) -> tuple[str, ...]:
    """Return the parts of a model that may run code on loading; empty if it is only data.

    Anything that is not known to be data counts as code.

    Parameters
    ----------
    flavours : mapping
        The flavours of an MLmodel file, with their settings.
    """
    function = flavours.get("python_function", {})
    native = {name: conf for name, conf in flavours.items() if name != "python_function"}
    reasons = [reason for name, conf in native.items() for reason in _native_reasons(name, conf)]
    if native and not reasons and all(stored_by_skops(*item) for item in native.items()):
        return ()  # our skops loader ignores the model's code files
    loader = str(function.get("loader_module", ""))
    if not native and loader.startswith("mlflow.pyfunc.model"):
        reasons.append("cloudpickle")
    elif loader and not loader.startswith("mlflow."):
        reasons.append(f"its own loader, {loader}")
    settings = [function, *native.values()]
    if any(conf.get("model_code_path") for conf in settings):
        reasons.append("a model defined by a Python file")
    if any(conf.get("code") for conf in settings):
        reasons.append("Python files logged with it")
    if not native and not reasons:
        reasons.append("a format that is not known to be only data")
    return tuple(dict.fromkeys(reasons))


def _native_reasons(name: str, conf: Mapping[str, Any]) -> list[str]:
    named = str(conf.get("model_class", ""))
    if stored_by_skops(name, conf):
        unknown = sorted(set(conf.get("skops_trusted_types") or ()) - TRUSTED)
        reason = f"skops, with types that its author declared trusted: {', '.join(unknown)}"
        return [reason] if unknown else []
    if name in DATA_ONLY or named == "lightgbm.basic.Booster":
        foreign = named and named.split(".")[0] != name
        return [f"a class that is not from {name}, {named}"] if foreign else []
    if name in ("sklearn", "lightgbm"):
        return [str(conf.get("serialization_format", "pickle"))]
    if name == "statsmodels":
        return ["pickle"]
    if name == "pytorch":
        return ["PyTorch files, which are read by pickle"]
    return [f"{name} files, which are not known to be only data"]
