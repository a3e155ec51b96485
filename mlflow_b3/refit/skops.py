"""Models stored by skops: loaded without pickle, and without taking the model's word for it.

MLflow loads such a model too, but constructs whatever types the model's own MLmodel file calls
trusted, which whoever wrote the model could choose; and where
`MLFLOW_ALLOW_PICKLE_DESERIALIZATION` is false it therefore loads none. Here the order is:

1. A file with types of our own list only (see `trusted`) is loaded by that list, whatever MLflow's
   restriction says: no pickle is involved, and no code that the model brings.
2. A file with other types is loaded by MLflow, and a note says so, unless the restriction is on;
   then it is refused.
"""

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mlflow_b3.errors import ModelError
from mlflow_b3.refit.interface import Source
from mlflow_b3.refit.registry import load_by_mlflow
from mlflow_b3.refit.trusted import TRUSTED

#: The flavours that MLflow stores by skops, and the setting that names the file.
FILES = {"sklearn": "pickled_model", "lightgbm": "data"}


def stored_by_skops(flavour: str, settings: Mapping[str, Any]) -> bool:
    """Return whether a flavour's file is one of skops, by the settings in its MLmodel file."""
    booster = settings.get("model_class") == "lightgbm.basic.Booster"  # a file of LightGBM's own
    return flavour in FILES and settings.get("serialization_format") == "skops" and not booster


def skops_flavour(source: Source) -> str | None:
    """Return the flavour of a model that is stored by skops; None if there is none."""
    for flavour, settings in source.flavours.items():
        if stored_by_skops(flavour, settings):
            return flavour
    return None


def load_skops(flavour: str, source: Source) -> Any:
    """Load a model that is stored by skops.

    Raises
    ------
    ModelError
        If it cannot be loaded, or contains types that are not trusted where MLflow's restriction
        on pickle forbids to trust the model's author.
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
        "loading it constructed types that its author calls trusted and this package does not "
        f"know: {', '.join(unknown)}"
    )
    return load_by_mlflow(flavour, source)


def load_skops_function(flavour: str, source: Source) -> Any:
    """Load a model that is stored by skops as MLflow's generic Python function."""
    import mlflow

    settings = source.flavours.get("python_function", {})
    return mlflow.pyfunc.PyFuncModel(
        model_meta=mlflow.models.Model.load(source.uri),
        model_impl=load_skops(flavour, source),
        predict_fn=settings.get("predict_fn", "predict"),
    )


def _load_trusted(flavour: str, source: Source, folder: str) -> tuple[Any, list[str]]:
    """Return the model and nothing, or nothing and the types that are not trusted."""
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
        "trusts the types that the model's author named; do that only for models that you would "
        "also serve."
    )
