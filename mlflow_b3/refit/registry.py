"""Which module refits which flavour; other packages add theirs by an entry point.

A flavour is a module, or any object, with two functions:

`load(source) → model`
    Load the model from `source.uri`.
`learner(model, source) → Learner`
    Say how it is trained again.

Another package adds one in its pyproject.toml::

    [project.entry-points."mlflow_b3.refit"]
    myflavour = "my_package.my_module"

where `myflavour` is the name of the flavour in MLmodel files.
"""

from collections.abc import Iterable
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any

from packaging.version import Version

from mlflow_b3.errors import ModelError
from mlflow_b3.refit.interface import Source

GROUP = "mlflow_b3.refit"
#: Flavour, our module for it, and its library, which the extra of the module's name installs.
BUILT_IN = {
    "sklearn": ("mlflow_b3.refit.sklearn", "sklearn"),
    "xgboost": ("mlflow_b3.refit.xgboost", "xgboost"),
    "lightgbm": ("mlflow_b3.refit.lightgbm", "lightgbm"),
    "catboost": ("mlflow_b3.refit.catboost", "catboost"),
    "statsmodels": ("mlflow_b3.refit.statsmodels", "statsmodels"),
    "keras": ("mlflow_b3.refit.keras", "keras"),  # before torch, of which its models may be part
    "tensorflow": ("mlflow_b3.refit.keras", "keras"),
    "pytorch": ("mlflow_b3.refit.pytorch", "torch"),
    "spark": ("mlflow_b3.refit.spark", "pyspark"),
}
#: The oldest versions that refits are right with: older ones forget more, and do not say so.
OLDEST = {
    "catboost": "1.2.10",
    "keras": "3.10",
    "lightgbm": "4.7",
    "pyspark": "4.0",
    "statsmodels": "0.14.5",
    "torch": "2.6",
    "xgboost": "3.1",
}


def find_flavour(names: Iterable[str]) -> tuple[str, Any] | None:
    """Return the first flavour among some names that can be refitted, and its module.

    Ours come first, then those of other packages by name.
    """
    present = set(names)
    for name, (module, library) in BUILT_IN.items():
        if name in present:
            require_library(library, module.rsplit(".", 1)[-1])
            return name, import_module(module)
    for entry in sorted(entry_points(group=GROUP), key=lambda entry: entry.name):
        if entry.name in present:
            try:
                return entry.name, entry.load()
            except Exception as error:  # foreign code
                raise ModelError(
                    f"the entry point {entry.value!r} for the flavour {entry.name!r} cannot be "
                    f"loaded: {type(error).__name__}: {error}"
                ) from error
    return None


def flavour_of(model: Any) -> str | None:
    """Return the flavour that a bare object would be logged with, by the library of its class."""
    libraries = libraries_of(model)
    for name, (_, library) in BUILT_IN.items():
        if library in libraries:
            return name
    return None


def libraries_of(model: Any) -> set[str]:
    """Return the packages that the class of an object and its bases come from."""
    return {cls.__module__.split(".")[0] for cls in type(model).__mro__}


def require_library(library: str, extra: str) -> Any:
    """Import an optional library, or say which extra installs it, or a newer version of it."""
    try:
        found = import_module(library)
    except ImportError as error:
        if error.name is not None and error.name.split(".")[0] != library:
            backend = " Keras may want another backend: set KERAS_BACKEND." * (library == "keras")
            raise ModelError(
                f"{library!r} is installed, but cannot be imported: {error}.{backend}"
            ) from error
        raise ModelError(
            f"refitting this model needs {library!r}, which is not installed here: {error}. "
            f"Install it with: pip install 'mlflow-b3[{extra}]'"
        ) from error
    oldest, present = OLDEST.get(library), str(getattr(found, "__version__", ""))
    if oldest and present and Version(present) < Version(oldest):
        raise ModelError(
            f"{library} {present} is installed here, but refits need {oldest} or newer: older ones "
            f"do not keep all of a training. Install it with: pip install 'mlflow-b3[{extra}]'"
        )
    return found


def load_native(flavour: str, source: Source) -> Any:
    """Load a model of a flavour: by skops with types that we trust, or else by MLflow."""
    from mlflow_b3.refit.skops import load_skops, stored_by_skops

    if stored_by_skops(flavour, source.flavours.get(flavour, {})):
        return load_skops(flavour, source)
    return load_by_mlflow(flavour, source)


def load_by_mlflow(flavour: str, source: Source) -> Any:
    """Load a model with MLflow's own loader of a flavour, which honours MLflow's restrictions."""
    try:
        return import_module(f"mlflow.{flavour}").load_model(source.uri)
    except Exception as error:  # loading runs foreign code, which may raise anything
        raise cannot_load(source, error) from error


def cannot_load(source: Source, error: Exception) -> ModelError:
    """Return the error for a model whose loading failed, with what helps where that is known."""
    advice = ""
    if isinstance(error, ModuleNotFoundError):
        advice = (
            f". The model needs the module {error.name!r}: audit where it can be imported "
            "(PYTHONPATH, or --env-manager for packages), or log the model with code_paths="
        )
    return ModelError(
        f"model={source.uri!r} could not be loaded: {type(error).__name__}: {error}{advice}"
    )
