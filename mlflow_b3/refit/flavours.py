"""The registry of flavours: which module refits which. Other packages add theirs by an entry point.

A flavour is a module, or any object, with two functions:

`load(source) → model`
    Load the model from `source.uri`.
`learner(model, source) → Learner`
    Return its learner.

Another package registers its flavour in pyproject.toml::

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
from mlflow_b3.refit.learner import Source

GROUP = "mlflow_b3.refit"
#: Flavour, our module, and its library. The extra with the module's name installs the library.
BUILT_IN = {
    "sklearn": ("mlflow_b3.refit.sklearn", "sklearn"),
    "xgboost": ("mlflow_b3.refit.xgboost", "xgboost"),
    "lightgbm": ("mlflow_b3.refit.lightgbm", "lightgbm"),
    "catboost": ("mlflow_b3.refit.catboost", "catboost"),
    "statsmodels": ("mlflow_b3.refit.statsmodels", "statsmodels"),
    "keras": ("mlflow_b3.refit.keras", "keras"),  # before torch: its models may be torch modules
    "tensorflow": ("mlflow_b3.refit.keras", "keras"),
    "pytorch": ("mlflow_b3.refit.pytorch", "torch"),
    "spark": ("mlflow_b3.refit.spark", "pyspark"),
}
#: Oldest supported versions. Older ones silently lose more of a training.
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
    """Return the first of these flavours that can be refitted, and its module.

    Built-in flavours come first, then those of other packages by name.
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
    """Return the flavour of a model object, by the library of its class."""
    libraries = libraries_of(model)
    for name, (_, library) in BUILT_IN.items():
        if library in libraries:
            return name
    return None


def libraries_of(model: Any) -> set[str]:
    """Return the packages that define the class of an object and its bases."""
    return {cls.__module__.split(".")[0] for cls in type(model).__mro__}


def require_library(library: str, extra: str) -> Any:
    """Import an optional library. If it is missing or too old, name the extra to install."""
    try:
        found = import_module(library)
    except ImportError as error:
        if error.name is not None and error.name.split(".")[0] != library:
            backend = " Keras may need another backend: set KERAS_BACKEND." * (library == "keras")
            raise ModelError(
                f"{library!r} is installed but cannot be imported: {error}.{backend}"
            ) from error
        raise ModelError(
            f"refitting this model needs {library!r}, which is not installed: {error}. "
            f"Install it with: pip install 'mlflow-b3[{extra}]'"
        ) from error
    oldest, present = OLDEST.get(library), str(getattr(found, "__version__", ""))
    if oldest and present and Version(present) < Version(oldest):
        raise ModelError(
            f"{library} {present} is installed, but refits need {oldest} or newer: older versions "
            f"do not store all of a training. Install it with: pip install 'mlflow-b3[{extra}]'"
        )
    return found


def load_native(flavour: str, source: Source) -> Any:
    """Load a model: by skops with trusted types, or else by MLflow."""
    from mlflow_b3.refit.safety import load_skops, stored_by_skops

    if stored_by_skops(flavour, source.flavours.get(flavour, {})):
        return load_skops(flavour, source)
    return load_by_mlflow(flavour, source)


def load_by_mlflow(flavour: str, source: Source) -> Any:
    """Load a model with MLflow's loader of a flavour, which honours MLflow's restrictions."""
    try:
        return import_module(f"mlflow.{flavour}").load_model(source.uri)
    except Exception as error:  # the model's own code may raise anything
        raise cannot_load(source, error) from error


def cannot_load(source: Source, error: Exception) -> ModelError:
    """Return the error for a model that could not be loaded, with advice if there is any."""
    advice = ""
    if isinstance(error, ModuleNotFoundError):
        advice = (
            f". The model needs the module {error.name!r}: run the audit where it can be imported "
            "(PYTHONPATH, or --env-manager for packages), or log the model with code_paths="
        )
    return ModelError(
        f"model={source.uri!r} could not be loaded: {type(error).__name__}: {error}{advice}"
    )
