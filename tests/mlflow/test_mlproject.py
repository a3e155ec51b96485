"""`mlflow run . -e audit`, `-e compare`, `-e gate`, `-e reproduce`: MLproject and the commands stay in step."""

import re
import runpy
import shlex
import sys
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from click.testing import CliRunner

from mlflow_b3.cli import main
from mlflow_b3.measurement.journal import JournalFolder

ROOT = Path(__file__).parents[2]
PROJECT = yaml.safe_load((ROOT / "MLproject").read_text(encoding="utf-8"))
ENTRY_POINTS = PROJECT["entry_points"]
AUDIT = ENTRY_POINTS["audit"]
DEFAULTS = {name: given["default"] for name, given in AUDIT["parameters"].items()}


def reproduce() -> click.Command:
    """Return the command of the papers' experiments, which is outside of the package."""
    return runpy.run_path(str(ROOT / "examples" / "papers" / "reproduce.py"))["main"]


COMMANDS = {**main.commands, "reproduce": reproduce()}


def options_of(command: str) -> set[str]:
    """Return the options of a command that take a value, without `record` and the switch `full`.

    `mlflow run` has made a run already, and its parameters always have a value.
    """
    return {option.name for option in COMMANDS[command].params} - {"record", "full"}


def arguments(entry: str = "audit", **parameters: str) -> list[str]:
    """Return what MLflow would pass to `python -m mlflow_b3`, quoted as MLflow does it."""
    from mlflow.projects._project_spec import load_project

    entry_point = load_project(str(ROOT)).get_entry_point(entry)
    command = entry_point.compute_command(parameters, None)
    python, dash_m, package, *rest = shlex.split(command)
    assert (python, dash_m, package) == ("python", "-m", "mlflow_b3")
    return rest


@pytest.fixture
def demonstrated(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Put a recorder in the place of the demonstration."""
    calls: list[dict[str, Any]] = []
    monkeypatch.setattr("mlflow_b3.cli._run_demo", lambda _, **options: calls.append(options))
    return calls


@pytest.mark.parametrize("command", ENTRY_POINTS)
def test_every_option_of_a_command_is_a_parameter_and_the_other_way_round(command):
    assert set(ENTRY_POINTS[command]["parameters"]) == options_of(command)


@pytest.mark.parametrize("command", ENTRY_POINTS)
def test_every_parameter_is_passed_to_the_option_of_its_name(command):
    passed = dict(re.findall(r"--([\w-]+) \{(\w+)\}", ENTRY_POINTS[command]["command"]))
    named = options_of(command) - {"model", "models"}  # which have no option in front of them
    assert passed == {name.replace("_", "-"): name for name in named}


@pytest.mark.parametrize("command", ENTRY_POINTS)
def test_every_parameter_is_a_string_with_the_default_of_the_command_line(command):
    """MLflow resolves the type `path` against the caller's folder, and cannot leave out a float."""
    parameters = ENTRY_POINTS[command]["parameters"]
    assert {given["type"] for given in parameters.values()} == {"string"}
    assert all(isinstance(given["default"], str) for given in parameters.values())
    for option in COMMANDS[command].params:
        default = parameters.get(option.name, {}).get("default")
        assert not default or default == str(option.default), option.name


def test_the_command_with_its_defaults_runs_the_demonstration(demonstrated):
    quoted = {name: shlex.quote(default) for name, default in DEFAULTS.items()}
    words = shlex.split(AUDIT["command"].format(**quoted))
    assert words[:3] == ["python", "-m", "mlflow_b3"]
    result = CliRunner().invoke(main, words[3:])
    assert result.exit_code == 0, result.output
    expected = {"method": "auto", "scheme": "subset", "levels": "optimal", "distribution": False}
    assert demonstrated == [{**expected, "test": "paired", "seed": 0, "n_jobs": -1, "full": False}]


def test_mlflow_builds_the_same_command_from_the_defaults(demonstrated):
    result = CliRunner().invoke(main, arguments())
    assert result.exit_code == 0, result.output
    assert len(demonstrated) == 1


@pytest.mark.usefixtures("mlflow_store")
def test_parameters_reach_the_audit_whatever_characters_they_contain(monkeypatch):
    calls = []

    def make_record(model, data, **options):
        calls.append({"model": model, "data": data, **options})
        raise SystemExit(0)

    monkeypatch.setattr("mlflow_b3.tracking.recording.make_record", make_record)
    words = arguments(
        model_uri="models:/clinic@champion",
        data="my visits; rm -rf $HOME.csv",
        target="disease",
        cluster="patient's id",
        cluster_error="0.05,0.15",
        budget="10m",
    )
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 0, result.output
    assert isinstance(calls[0].pop("journal"), JournalFolder)
    assert calls == [
        {
            "model": "models:/clinic@champion",
            "data": "my visits; rm -rf $HOME.csv",
            "target": "disease",
            "cluster": "patient's id",
            "cluster_error": (0.05, 0.15),
            "budget": "10m",
            "method": "auto",
            "scheme": "subset",
            "levels": "optimal",
            "distribution": False,
            "test": "paired",
            "seed": 0,
            "n_jobs": -1,
            "progress": True,
        }
    ]


def test_a_gate_without_a_model_is_a_clear_input_error():
    result = CliRunner().invoke(main, arguments("gate"))
    assert result.exit_code == 2
    assert "model missing: give a registered version, such as models:/name/3." in result.stderr


def test_parameters_reach_the_gate_whatever_characters_they_contain(monkeypatch):
    calls = []

    def gate(model, policy, *, promote):
        calls.append((model, policy, promote))
        raise SystemExit(0)

    monkeypatch.setattr("mlflow_b3.gating.gate.gate", gate)
    words = arguments("gate", model="models:/my clinic/3", policy="a; b.yaml", promote="the 'best'")
    assert CliRunner().invoke(main, words).exit_code == 0
    assert CliRunner().invoke(main, arguments("gate", model="models:/x@y")).exit_code == 0
    assert calls == [
        ("models:/my clinic/3", "a; b.yaml", "the 'best'"),
        ("models:/x@y", None, None),
    ]


def test_the_environment_names_an_exact_python_and_installs_this_package():
    """MLflow's default environment manager asks pyenv for the version, to the last digit."""
    environment = yaml.safe_load((ROOT / PROJECT["python_env"]).read_text(encoding="utf-8"))
    assert re.fullmatch(r"3\.\d+\.\d+", environment["python"])
    assert "." in environment["dependencies"]


def test_the_environments_python_is_one_that_the_package_supports():
    import tomllib

    environment = yaml.safe_load((ROOT / PROJECT["python_env"]).read_text(encoding="utf-8"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    least = re.fullmatch(r">=(\d+)\.(\d+)", project["requires-python"])
    version = tuple(map(int, environment["python"].split(".")))
    assert least is not None
    assert version[:2] >= tuple(map(int, least.groups()))
    assert sys.version_info[:2] >= tuple(map(int, least.groups()))
