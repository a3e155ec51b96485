"""What code of its own a logged model runs when it is loaded, as far as its MLmodel file tells."""

from collections.abc import Mapping
from typing import Any

from mlflow_b3.refit.skops import stored_by_skops
from mlflow_b3.refit.trusted import TRUSTED

ADVICE = "Audit only models that you would also serve."
#: Flavours whose files are data, read by their library's own parser.
DATA_ONLY = {"catboost", "onnx", "xgboost"}


def loading_notice(uri: str, *, trainer: Any = None, refit: str = "auto") -> str | None:
    """Return a sentence on what an audit of a logged model will run, before it does.

    None where a trainer was given, so that nothing is loaded, and for a model that is not found,
    about which loading will have more to say.
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
        tags = {}  # the model has outlived its run
    if "b3.trainer" in tags and refit in ("auto", "trainer"):
        return (
            f"Refits of {uri} run the trainer stored with its run ({tags['b3.trainer']}). {ADVICE}"
        )
    reasons = code_run_by_loading(info.flavors)
    if reasons:
        return f"Loading {uri} runs code that it brings ({'; '.join(reasons)}). {ADVICE}"
    return f"Loading {uri} runs no code that it brings."


def code_run_by_loading(flavours: Mapping[str, Mapping[str, Any]]) -> tuple[str, ...]:
    """Return what in a model is, or may be, run as code when it is loaded; nothing if it is data.

    What is not known to be data counts as code.

    Parameters
    ----------
    flavours : mapping
        The flavours of an MLmodel file, with their settings.
    """
    function = flavours.get("python_function", {})
    native = {name: conf for name, conf in flavours.items() if name != "python_function"}
    reasons = [reason for name, conf in native.items() for reason in _native_reasons(name, conf)]
    if native and not reasons and all(stored_by_skops(*item) for item in native.items()):
        return ()  # our loader of these does not look at the model's files of code
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
        said = f"skops, with types that its author calls trusted: {', '.join(unknown)}"
        return [said] if unknown else []
    if name in DATA_ONLY or named == "lightgbm.basic.Booster":
        foreign = named and named.split(".")[0] != name
        return [f"a class that is not of {name}, {named}"] if foreign else []
    if name in ("sklearn", "lightgbm"):
        return [str(conf.get("serialization_format", "pickle"))]
    if name == "statsmodels":
        return ["pickle"]
    if name == "pytorch":
        return ["PyTorch files, which are read by pickle"]
    return [f"{name} files, which are not known to be only data"]
