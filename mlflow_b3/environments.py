"""Audits in the environment that a model was logged with, as MLflow does it for scoring.

MLflow builds the environment, by uv, virtualenv or conda, from the requirements in the model's
folder. It is given a copy of that folder in which our own requirements stand next to the model's,
so that

- one resolution finds versions for both, and the versions that the model pins are the ones taken;
- the environment has a name of its own among those that MLflow keeps: the one that serves the model
  stays as it is, and the next audit of a model with the same requirements finds ours again.

The package itself goes along as a copy on `PYTHONPATH`: the audit is run by this very version.
"""

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

from mlflow_b3.errors import InputError, ModelError, choose
from mlflow_b3.model_requirements import ModelRequirements
from mlflow_b3.refit.loading import model_info

LOCAL = "local"
#: Where an audit can run: in this process, or in the model's environment, built by one of these.
MANAGERS = (LOCAL, "uv", "virtualenv", "conda")
PACKAGE = "mlflow-b3"
#: Seconds that an interrupted audit has to write down that it failed.
GRACE = 15


def run_in_model_environment(uri: str, arguments: Sequence[str], env_manager: str) -> int:
    """Run `mlflow-b3` with some arguments in the environment that a model was logged with.

    The environment is built on first use, which takes minutes, and kept. The audit has the working
    directory, the standard streams and the environment variables of this process, and MLflow's
    tracking store.

    Parameters
    ----------
    uri : str
        The model, as `models:/…` or `runs:/…`.
    arguments : sequence of str
        What would follow `mlflow-b3` on a command line.
    env_manager : {"uv", "virtualenv", "conda"}

    Returns
    -------
    int
        The exit code.
    """
    choose("env_manager", env_manager, MANAGERS[1:])
    _require_tool(env_manager)
    needed = own_requirements()
    model_info(uri)  # a model that does not exist is named as everywhere else
    with tempfile.TemporaryDirectory(prefix="b3-environment-") as name:
        folder = Path(name)
        model = _download(uri, folder / "model")
        wanted = ModelRequirements(model, uri, conda=env_manager == "conda")
        wanted.require_python(metadata.metadata(PACKAGE)["Requires-Python"] or "")
        wanted.require_no_conflict(needed)
        wanted.add(needed)
        environment = _build(model, uri, env_manager)
        _require_complete(environment, needed)
        package = Path(__file__).parent
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(package, folder / "path" / package.name, ignore=ignored)
        return _run(environment, arguments, folder / "path")


def own_requirements() -> list[Requirement]:
    """Return what this package needs, without its extras."""
    try:
        listed = map(Requirement, metadata.requires(PACKAGE) or ())
        return [needed for needed in listed if "extra" not in str(needed.marker)]
    except metadata.PackageNotFoundError as error:
        raise InputError(
            f"env_manager needs {PACKAGE} to be installed (pip install {PACKAGE}), not only to be "
            "on the path: what it requires is read from the installation."
        ) from error


def _require_tool(env_manager: str) -> None:
    """Raise an error, before anything is built, if the program that would build it is missing."""
    from mlflow.utils.conda import get_conda_bin_executable
    from mlflow.utils.virtualenv import _is_pyenv_available

    found, install = {
        "uv": (shutil.which("uv"), "pip install uv"),
        "virtualenv": (_is_pyenv_available(), "see https://github.com/pyenv/pyenv"),
        "conda": (shutil.which(get_conda_bin_executable("conda")), "see https://conda.io"),
    }[env_manager]
    program = "pyenv" if env_manager == "virtualenv" else env_manager
    if not found:
        raise InputError(
            f"env_manager={env_manager!r} needs the program {program!r}, which is not on the PATH. "
            f"Install it ({install}), or choose another of {', '.join(MANAGERS)}."
        )


def _download(uri: str, folder: Path) -> Path:
    import mlflow
    from mlflow.exceptions import MlflowException

    folder.mkdir()
    try:
        return Path(mlflow.artifacts.download_artifacts(artifact_uri=uri, dst_path=str(folder)))
    except (MlflowException, OSError) as error:
        raise ModelError(f"model={uri!r} could not be downloaded: {error}") from error


def _build(model: Path, uri: str, env_manager: str) -> Any:
    """Let MLflow build the environment of a model's folder, or find it again."""
    from mlflow.exceptions import MlflowException
    from mlflow.models import Model
    from mlflow.pyfunc.backend import PyFuncBackend
    from mlflow.utils.process import ShellCommandException

    settings = Model.load(str(model)).flavors.get("python_function")
    if settings is None:
        raise ModelError(
            f"model={uri!r} has no flavour 'python_function', from which MLflow could build an "
            "environment. Leave env_manager out."
        )
    backend = PyFuncBackend(settings, env_manager=env_manager)
    try:
        return backend.prepare_env(str(model), capture_output=True)
    except (MlflowException, ShellCommandException, OSError) as error:
        raise ModelError(
            f"the environment of model={uri!r} could not be built by {env_manager}, with what "
            f"{PACKAGE} needs added to it:\n{error}\n"
            "If versions contradict each other there, log the model with newer ones, or leave "
            "env_manager out and audit it in an environment of your own."
        ) from error


def _require_complete(environment: Any, needed: Sequence[Requirement]) -> None:
    """Raise an error for an environment whose building was interrupted, which MLflow keeps."""
    from mlflow.utils.process import ShellCommandException

    check = "import sys, importlib.metadata as m; [m.version(name) for name in sys.argv[1:]]"
    names = [requirement.name for requirement in needed]
    try:
        environment.execute(_joined(["python", "-c", check, *names]), capture_output=True)
    except ShellCommandException as error:
        where = " && ".join(environment.get_activate_command())
        raise ModelError(
            f"the environment that {where!r} activates is incomplete, perhaps because building it "
            f"was interrupted: {error}\nRemove it and try again."
        ) from error


def _run(environment: Any, arguments: Sequence[str], path: Path) -> int:
    import mlflow

    variables = {**os.environ, "MLFLOW_TRACKING_URI": mlflow.get_tracking_uri()}
    if mlflow.get_registry_uri() != mlflow.get_tracking_uri():
        variables["MLFLOW_REGISTRY_URI"] = mlflow.get_registry_uri()
    paths = [str(path), os.environ.get("PYTHONPATH", "")]
    variables["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    command = _joined(["python", "-m", "mlflow_b3", *arguments])
    if sys.platform != "win32":
        command = f"exec {command}"  # so that signals reach the audit, not a shell around it
    process = environment.execute(command, variables, synchronous=False)
    try:
        code = int(process.wait())
    except KeyboardInterrupt:
        _end(process)
        raise
    return code if code >= 0 else 128 - code  # as shells report the end by a signal


def _end(process: "subprocess.Popen[str]") -> None:
    """Wait for a process that a terminal's Ctrl-C has reached too; end it if nothing did."""
    try:
        process.wait(GRACE)
    except subprocess.TimeoutExpired:
        process.terminate()
        process.wait()


def _joined(words: Sequence[str]) -> str:
    return subprocess.list2cmdline(words) if sys.platform == "win32" else shlex.join(words)
