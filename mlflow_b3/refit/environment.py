"""Run audits in the environment that a model was logged with, as MLflow does for scoring."""

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import yaml
from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from mlflow_b3.errors import InputError, ModelError, choose
from mlflow_b3.refit.loading import model_info

# --- The requirements of a logged model: read, compared with ours, extended by ours

#: A pinned package in conda's notation: name=version, optionally with a build.
CONDA_PIN = re.compile(r"([\w.\-]+)\s*={1,2}\s*([\w.]+)(=\S+)?")


class ModelRequirements:
    """The requirements of a logged model, for one of MLflow's environment managers.

    Parameters
    ----------
    folder : pathlib.Path
        A copy of the model's folder. It is modified.
    uri : str
        The model in error messages.
    conda : bool
        Whether to use conda.yaml, or python_env.yaml with requirements.txt.
    """

    def __init__(self, folder: Path, uri: str, *, conda: bool) -> None:
        self._folder = folder
        self._uri = uri
        self._conda = conda
        self._file = folder / ("conda.yaml" if conda else "python_env.yaml")
        try:
            self._content: Any = yaml.safe_load(self._file.read_text(encoding="utf-8"))
            self._lists = self._content["dependencies"]
        except (OSError, yaml.YAMLError, KeyError, TypeError) as error:
            raise ModelError(
                f"model={uri!r} was logged without a usable {self._file.name}, which describes its "
                f"environment: {error}. Leave env_manager out."
            ) from error

    def require_python(self, allowed: str) -> None:
        """Raise an error if this package does not run on the model's version of Python."""
        python = self._pins().get("python") if self._conda else self._content.get("python")
        if python and Version(str(python)) not in SpecifierSet(allowed):
            raise ModelError(
                f"model={self._uri!r} was logged with Python {python}; mlflow-b3 needs {allowed}. "
                "Leave env_manager out and audit it here, or log it again with a newer Python."
            )

    def require_no_conflict(self, needed: Sequence[Requirement]) -> None:
        """Raise an error that names all pinned versions that conflict with ours."""
        pins = self._pins()
        conflicts = []
        for ours in needed:
            pinned = pins.get(canonicalize_name(ours.name))
            if pinned and not ours.specifier.contains(pinned, prereleases=True):
                conflicts.append(f"{ours.name} {pinned}, while mlflow-b3 needs {ours.specifier}")
        if conflicts:
            raise ModelError(
                f"model={self._uri!r} cannot be audited in its own environment. It pins "
                f"{'; '.join(conflicts)}. Log the model again with newer versions, or leave "
                "env_manager out and audit it in an environment where it can be loaded."
            )

    def add(self, needed: Sequence[Requirement]) -> None:
        """Add our requirements to those of the model."""
        texts = [str(requirement) for requirement in needed]
        if self._conda:
            pip = [part for part in self._lists if isinstance(part, dict) and "pip" in part]
            if pip:
                pip[0]["pip"] += texts
            else:
                self._lists += ["pip", {"pip": texts}]
        else:
            self._lists += texts
            # MLflow would install from the lock alone; requirements.txt has the same content
            (self._folder / "uv.lock").unlink(missing_ok=True)
        self._file.write_text(yaml.safe_dump(self._content), encoding="utf-8")

    def _pins(self) -> dict[str, str]:
        """Return the exact versions that the model pins, by name."""
        pins: dict[str, str] = {}
        for line in self._lines():
            found = CONDA_PIN.fullmatch(line) if self._conda else None
            if found and _is_version(found[2]):
                pins[canonicalize_name(found[1])] = found[2]
            for name, version in _pinned(line):
                pins[name] = version
        return pins

    def _lines(self) -> Iterator[str]:
        for part in self._lists:
            for line in part.get("pip", []) if isinstance(part, dict) else [part]:
                yield from self._expand(str(line).strip())

    def _expand(self, line: str) -> Iterator[str]:
        """Yield a requirement, or those in the file of a line such as `-r file`."""
        other = re.fullmatch(r"(?:-r|--requirement)[ =]?\s*(\S+)", line)
        if other is None:
            yield line
        elif (self._folder / other[1]).is_file():
            text = (self._folder / other[1]).read_text(encoding="utf-8")
            yield from (row.split(" #")[0].strip() for row in text.splitlines())


def _pinned(line: str) -> Iterator[tuple[str, str]]:
    """Yield the name and version of a requirement such as `numpy==2.1`, if it is one."""
    try:
        requirement = Requirement(line.split(" --")[0].rstrip("\\ "))  # without hashes
    except InvalidRequirement:
        return  # options, URLs and files are left to the installer
    if requirement.marker is not None and not requirement.marker.evaluate():
        return
    for specifier in requirement.specifier:
        if specifier.operator in ("==", "===") and _is_version(specifier.version):
            yield canonicalize_name(requirement.name), specifier.version


def _is_version(text: str) -> bool:
    try:
        Version(text)
    except InvalidVersion:
        return False
    return True


# --- Run an audit in the environment of a model
#
# MLflow builds the environment with uv, virtualenv or conda from the requirements in the model's
# folder. It receives a copy of that folder with our requirements added. This has two effects:
#
# - One resolution finds versions for both, and keeps the versions that the model pins.
# - MLflow stores the environment under a name of its own. The environment that serves the model is
#   not changed, and the next audit of a model with the same requirements reuses ours.
#
# The package itself is copied to `PYTHONPATH`, so the audit runs with this version.

LOCAL = "local"
#: Where an audit can run: in this process, or in the model's environment, built by this tool.
MANAGERS = (LOCAL, "uv", "virtualenv", "conda")
PACKAGE = "mlflow-b3"
#: Seconds that an interrupted audit has to record that it failed.
GRACE = 15


def run_in_model_environment(uri: str, arguments: Sequence[str], env_manager: str) -> int:
    """Run `mlflow-b3` in the environment that a model was logged with.

    The environment is built on first use, which takes minutes, and then reused. The audit inherits
    the working directory, standard streams, environment variables and tracking store of this
    process.

    Parameters
    ----------
    uri : str
        The model, as `models:/…` or `runs:/…`.
    arguments : sequence of str
        The arguments after `mlflow-b3` on the command line.
    env_manager : {"uv", "virtualenv", "conda"}

    Returns
    -------
    int
        The exit code.
    """
    choose("env_manager", env_manager, MANAGERS[1:])
    _require_tool(env_manager)
    needed = own_requirements()
    model_info(uri)  # raises the usual error if the model does not exist
    with tempfile.TemporaryDirectory(prefix="b3-environment-") as name:
        folder = Path(name)
        model = _download(uri, folder / "model")
        wanted = ModelRequirements(model, uri, conda=env_manager == "conda")
        wanted.require_python(metadata.metadata(PACKAGE)["Requires-Python"] or "")
        wanted.require_no_conflict(needed)
        wanted.add(needed)
        environment = _build(model, uri, env_manager)
        _require_complete(environment, needed)
        package = Path(__file__).parents[1]
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(package, folder / "path" / package.name, ignore=ignored)
        return _run(environment, arguments, folder / "path")


def own_requirements() -> list[Requirement]:
    """Return the requirements of this package, without its extras."""
    try:
        listed = map(Requirement, metadata.requires(PACKAGE) or ())
        return [needed for needed in listed if "extra" not in str(needed.marker)]
    except metadata.PackageNotFoundError as error:
        raise InputError(
            f"env_manager needs {PACKAGE} to be installed (pip install {PACKAGE}), not only to be "
            "on the path: its requirements are read from the installation."
        ) from error


def _require_tool(env_manager: str) -> None:
    """Raise an error if the program that builds the environment is missing."""
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
    """Let MLflow build the environment of a model, or reuse it."""
    from mlflow.exceptions import MlflowException
    from mlflow.models import Model
    from mlflow.pyfunc.backend import PyFuncBackend
    from mlflow.utils.process import ShellCommandException

    settings = Model.load(str(model)).flavors.get("python_function")
    if settings is None:
        raise ModelError(
            f"model={uri!r} has no flavour 'python_function', which MLflow needs to build an "
            "environment. Leave env_manager out."
        )
    backend = PyFuncBackend(settings, env_manager=env_manager)
    try:
        return backend.prepare_env(str(model), capture_output=True)
    except (MlflowException, ShellCommandException, OSError) as error:
        raise ModelError(
            f"the environment of model={uri!r} could not be built by {env_manager}, with the "
            f"requirements of {PACKAGE} added:\n{error}\n"
            "If versions conflict, log the model with newer ones, or leave "
            "env_manager out and audit it in an environment of your own."
        ) from error


def _require_complete(environment: Any, needed: Sequence[Requirement]) -> None:
    """Raise an error for an incomplete environment, which MLflow keeps after an interruption."""
    from mlflow.utils.process import ShellCommandException

    check = "import sys, importlib.metadata as m; [m.version(name) for name in sys.argv[1:]]"
    names = [requirement.name for requirement in needed]
    try:
        environment.execute(_join(["python", "-c", check, *names]), capture_output=True)
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
    command = _join(["python", "-m", "mlflow_b3", *arguments])
    if sys.platform != "win32":
        command = f"exec {command}"  # signals reach the audit, not a shell around it
    process = environment.execute(command, variables, synchronous=False)
    try:
        code = int(process.wait())
    except KeyboardInterrupt:
        _end(process)
        raise
    return code if code >= 0 else 128 - code  # as shells report termination by a signal


def _end(process: "subprocess.Popen[str]") -> None:
    """Wait for a process that also received Ctrl-C. Terminate it if it does not end."""
    try:
        process.wait(GRACE)
    except subprocess.TimeoutExpired:
        process.terminate()
        process.wait()


def _join(words: Sequence[str]) -> str:
    return subprocess.list2cmdline(words) if sys.platform == "win32" else shlex.join(words)
