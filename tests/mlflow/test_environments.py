"""Audits in the environment that a model was logged with."""

import os
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import mlflow
import pytest
import yaml
from click.testing import CliRunner
from mlflow.utils.process import ShellCommandException
from packaging.requirements import Requirement
from sklearn.naive_bayes import GaussianNB

import mlflow_b3
from mlflow_b3.cli import main
from mlflow_b3.demo import FEATURES
from mlflow_b3.errors import InputError, ModelError
from mlflow_b3.refit import environment as environment_module
from mlflow_b3.refit.environment import (
    ModelRequirements,
    own_requirements,
    run_in_model_environment,
)

pytestmark = pytest.mark.newest

HERE = ".".join(map(str, sys.version_info[:3]))


def log(requirements: list[str] | None = None) -> str:
    """Log a small model, and its table next to the store; return the model's URI."""
    clinic = mlflow_b3.make_clinic(patients=20, records=4)
    clinic.frame.to_csv("visits.csv", index=False)
    model = GaussianNB().fit(clinic.frame[list(FEATURES)], clinic.frame["disease"])
    requirements = requirements or ["scikit-learn"]
    with mlflow.start_run():
        info = mlflow.sklearn.log_model(
            model, name="model", pip_requirements=requirements, serialization_format="skops"
        )
    return info.model_uri


def options(uri: str) -> list[str]:
    return f"--model-uri {uri} --data visits.csv --target disease --cluster patient_id".split()


class Environment:
    """Stands in for what MLflow builds: remembers what is run in it."""

    def __init__(self, code: int = 0, complete: bool = True) -> None:
        self.code = code
        self.complete = complete
        self.commands: list[str] = []
        self.variables: dict[str, str] = {}
        self.on_path: list[str] = []
        self.folder: dict[str, str] = {}
        self.interrupted = False

    def prepare_env(self, folder: str, capture_output: bool = False) -> "Environment":
        assert capture_output  # or the installer would write into the report
        texts = ("python_env.yaml", "requirements.txt", "conda.yaml")
        self.folder = {name: (Path(folder) / name).read_text() for name in texts}
        return self

    def get_activate_command(self) -> list[str]:
        return ["source envs/mlflow-1/bin/activate"]

    def execute(self, command: str, variables: Any = None, **given: Any) -> Any:
        if given.get("capture_output"):
            if not self.complete:
                raise ShellCommandException("No package metadata was found for cvxpy")
            return None
        assert given == {"synchronous": False}
        self.commands.append(command)
        self.variables = variables
        first = Path(variables["PYTHONPATH"].split(os.pathsep)[0])
        self.on_path = [path.name for path in first.iterdir()]
        return self

    def wait(self, timeout: float | None = None) -> int:
        if self.interrupted and timeout is None:
            raise KeyboardInterrupt
        return self.code


@pytest.fixture
def environment(mlflow_store: str, monkeypatch: pytest.MonkeyPatch) -> Environment:  # noqa: ARG001
    """Put a stand-in in the place of the environment, and pretend that all programs are there."""
    stand_in = Environment()
    monkeypatch.setattr(environment_module, "_require_tool", lambda _: None)
    monkeypatch.setattr("mlflow.pyfunc.backend.PyFuncBackend", lambda *_, **__: stand_in)
    return stand_in


# --- what is run ----------------------------------------------------------------------------------


def test_the_same_command_is_run_there_without_going_elsewhere_again(environment):
    uri = log()
    arguments = ["audit", *options(uri), "--output", "my report.md", "--env-manager", "uv"]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output
    assert environment.commands == [
        f"exec python -m mlflow_b3 audit {' '.join(options(uri))} --output 'my report.md' "
        "--env-manager uv --env-manager local"
    ]
    assert result.stderr.startswith(f"Preparing the environment of {uri} with uv.")


def test_the_leakage_test_goes_there_too(environment):
    result = CliRunner().invoke(main, ["test", *options(log()), "--env-manager", "virtualenv"])
    assert result.exit_code == 0, result.output
    assert environment.commands[0].startswith("exec python -m mlflow_b3 test --model-uri")


@pytest.mark.parametrize(("code", "exit_code"), [(0, 0), (2, 2), (1, 1), (-9, 137)])
def test_the_exit_code_is_passed_on(environment, code, exit_code):
    environment.code = code
    assert run_in_model_environment(log(), ["audit"], "uv") == exit_code


def test_the_audit_has_our_package_and_the_store_and_nothing_else_of_ours(environment, monkeypatch):
    uri = log()
    monkeypatch.setenv("PYTHONPATH", "mine")
    monkeypatch.setenv("MLFLOW_RUN_ID", "of-mlflow-run")
    run_in_model_environment(uri, ["audit"], "uv")
    variables = environment.variables
    assert environment.on_path == ["mlflow_b3"]
    assert variables["PYTHONPATH"].endswith(f"{os.pathsep}mine")
    assert variables["MLFLOW_TRACKING_URI"] == mlflow.get_tracking_uri()
    assert variables["MLFLOW_RUN_ID"] == "of-mlflow-run"
    assert "MLFLOW_REGISTRY_URI" not in variables


def test_a_registry_of_its_own_is_passed_on(environment, monkeypatch, tmp_path):
    uri = log()
    registry = f"sqlite:///{tmp_path}/registry.db"
    monkeypatch.setattr("mlflow.get_registry_uri", lambda: registry)
    run_in_model_environment(uri, ["audit"], "uv")
    assert environment.variables["MLFLOW_REGISTRY_URI"] == registry


def test_ctrl_c_waits_for_the_audit_to_end(environment):
    environment.interrupted = True
    with pytest.raises(KeyboardInterrupt):
        run_in_model_environment(log(), ["audit"], "uv")


def test_an_audit_that_ignores_ctrl_c_is_ended(monkeypatch):
    monkeypatch.setattr(environment_module, "GRACE", 0.2)
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], text=True)
    environment_module._end(process)
    assert process.returncode not in (None, 0)


# --- what is installed ----------------------------------------------------------------------------


def test_our_requirements_stand_next_to_those_of_the_model(environment):
    """Different text, different name: MLflow's own environment of the model is not touched."""
    run_in_model_environment(log(["scikit-learn>1"]), ["audit"], "uv")
    listed = yaml.safe_load(environment.folder["python_env.yaml"])["dependencies"]
    assert listed == ["-r requirements.txt", *map(str, own_requirements())]
    assert "scikit-learn>1" in environment.folder["requirements.txt"]


def test_conda_installs_them_by_pip(environment):
    run_in_model_environment(log(["scikit-learn>1"]), ["audit"], "conda")
    listed = yaml.safe_load(environment.folder["conda.yaml"])["dependencies"]
    (by_pip,) = (part["pip"] for part in listed if isinstance(part, dict))
    assert by_pip[-len(own_requirements()) :] == list(map(str, own_requirements()))
    assert "scikit-learn>1" in by_pip


def test_our_requirements_are_those_of_the_installation_without_extras():
    names = [requirement.name for requirement in own_requirements()]
    assert {"mlflow", "scikit-learn", "pandas"} <= set(names)
    assert not {"pytest", "ruff", "xgboost"} & set(names)


def test_the_lock_of_uv_does_not_keep_ours_out(tmp_path):
    """MLflow would install from the lock alone."""
    (tmp_path / "uv.lock").touch()
    write(tmp_path, "scikit-learn==1.9.1").add([Requirement("tqdm")])
    assert not (tmp_path / "uv.lock").exists()


# --- what goes wrong ------------------------------------------------------------------------------


def write(folder: Path, requirements: str, python: str = HERE) -> ModelRequirements:
    """Write what MLflow writes into a model's folder."""
    content = {"python": python, "dependencies": ["-r requirements.txt"]}
    (folder / "python_env.yaml").write_text(yaml.safe_dump(content))
    (folder / "requirements.txt").write_text(requirements)
    return ModelRequirements(folder, "models:/clinic/1", conda=False)


def write_conda(folder: Path, *dependencies: Any) -> ModelRequirements:
    (folder / "conda.yaml").write_text(yaml.safe_dump({"dependencies": list(dependencies)}))
    return ModelRequirements(folder, "models:/clinic/1", conda=True)


OURS = [Requirement("scikit-learn>=1.7.2"), Requirement("pandas>=2.2"), Requirement("mlflow<4")]


@pytest.mark.parametrize(
    "line",
    ["scikit-learn==1.5.2", "scikit_learn == 1.5.2 --hash=sha256:0 \\", "Scikit-Learn===1.5.2"],
)
def test_a_pinned_version_that_we_cannot_use_is_named_with_ours(tmp_path, line):
    with pytest.raises(ModelError) as caught:
        write(tmp_path, f"mlflow==3.17.2\n# a note\n{line}\n").require_no_conflict(OURS)
    assert "It pins scikit-learn 1.5.2, while mlflow-b3 needs >=1.7.2." in str(caught.value)


def test_every_conflict_is_named_at_once(tmp_path):
    conda = write_conda(tmp_path, "python=3.11.7", "pandas=1.5.3=py_0", {"pip": ["mlflow==4.0"]})
    with pytest.raises(ModelError, match=r"pandas 1\.5\.3, .*>=2\.2; mlflow 4\.0, .* <4\. Log"):
        conda.require_no_conflict(OURS)


@pytest.mark.parametrize(
    "requirements",
    [
        "scikit-learn==1.9.1\npandas==3.1",
        "scikit-learn==1.5.2 ; python_version < '3'",
        "scikit-learn<1.6",  # the installer decides, and says why
        "--extra-index-url https://example.org\ngit+https://example.org/x.git\n-c constraints.txt",
        "scikit-learn==1.5.*",
    ],
)
def test_what_is_not_a_pin_is_left_to_the_installer(tmp_path, requirements):
    write(tmp_path, requirements).require_no_conflict(OURS)


def test_a_model_of_an_older_python_is_refused(tmp_path):
    message = r"was logged with Python 3\.9\.18; mlflow-b3 needs >=3\.11\."
    with pytest.raises(ModelError, match=message):
        write(tmp_path, "", python="3.9.18").require_python(">=3.11")
    with pytest.raises(ModelError, match=message):
        write_conda(tmp_path, "python=3.9.18", "pip").require_python(">=3.11")
    write(tmp_path, "", python="3.11").require_python(">=3.11")
    write_conda(tmp_path, "pip").require_python(">=3.11")


def test_a_model_without_these_files_is_refused(tmp_path):
    with pytest.raises(ModelError, match=r"logged without a usable python_env\.yaml"):
        ModelRequirements(tmp_path, "models:/clinic/1", conda=False)


@pytest.mark.parametrize(
    ("manager", "program"), [("uv", "uv"), ("virtualenv", "pyenv"), ("conda", "conda")]
)
def test_a_program_that_is_missing_is_named_before_anything_is_done(monkeypatch, manager, program):
    monkeypatch.setattr(shutil, "which", lambda _: None)
    monkeypatch.setattr(environment_module, "_download", None)
    with pytest.raises(InputError, match=f"env_manager='{manager}' needs the program '{program}'"):
        run_in_model_environment("models:/clinic/1", ["audit"], manager)


def test_an_environment_that_cannot_be_built_says_why(environment, monkeypatch):
    def fail(*_: Any, **__: Any) -> None:
        raise ShellCommandException("you require pandas<2 and pandas>=2.2")

    monkeypatch.setattr(environment, "prepare_env", fail)
    with pytest.raises(
        ModelError, match=r"could not be built by uv.*\n.*pandas<2 and pandas>=2\.2"
    ):
        run_in_model_environment(log(), ["audit"], "uv")


def test_an_environment_whose_building_was_interrupted_is_not_used(environment):
    environment.complete = False
    with pytest.raises(ModelError, match=r"envs/mlflow-1/bin/activate' activates is incomplete"):
        run_in_model_environment(log(), ["audit"], "uv")
    assert environment.commands == []


def test_the_package_must_be_installed(environment, monkeypatch):
    def missing(_: str) -> None:
        raise metadata.PackageNotFoundError

    monkeypatch.setattr(metadata, "requires", missing)
    with pytest.raises(InputError, match="pip install mlflow-b3"):
        run_in_model_environment("models:/clinic/1", ["audit"], "uv")
    assert environment.commands == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--env-manager", "pixi"], "env_manager='pixi' is not known; use one of 'local', 'uv'"),
        (["--env-manager", "uv", "--model-uri", "models:/nobody/1"], "was not found"),
        (["--env-manager", "uv", "--model-uri", "clinic.pkl"], "is not a model URI"),
    ],
)
def test_input_errors_are_those_of_an_audit_here(environment, arguments, message):
    result = CliRunner().invoke(main, ["audit", *options("models:/m-0"), *arguments])
    assert result.exit_code == 2, result.output
    assert message in result.stderr
    assert environment.commands == []


def test_the_demonstration_has_no_environment_of_its_own():
    result = CliRunner().invoke(main, ["audit", "--env-manager", "uv"])
    assert result.exit_code == 2
    assert "env_manager='uv' needs a model" in result.stderr


# --- for real -------------------------------------------------------------------------------------


@pytest.mark.flavours
@pytest.mark.usefixtures("mlflow_store")
def test_an_audit_runs_in_an_environment_built_by_uv(tmp_path, monkeypatch):
    pytest.importorskip("uv", reason="needs uv, which comes with the extra test")
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
    monkeypatch.setenv("MLFLOW_ENV_ROOT", str(tmp_path / "envs"))
    pins = [f"{name}=={metadata.version(name)}" for name in ("scikit-learn", "numpy", "skops")]
    uri = log([*pins, "humanize"])  # of no use, except that it shows where the audit ran
    given = [*options(uri), "--budget", "20", "--n-jobs", "1", "--env-manager", "uv"]
    done = subprocess.run(
        [sys.executable, "-m", "mlflow_b3", "test", *given],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "in small training sets" in done.stdout
    assert "runs no code that it brings" in done.stderr
    (built,) = (tmp_path / "envs").iterdir()
    assert list(built.glob("lib/*/site-packages/humanize"))
    assert not list(built.glob("lib/*/site-packages/mlflow_b3*"))
