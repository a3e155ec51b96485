"""The registry of options agrees with what uses it."""

import inspect
import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

import mlflow_b3
from mlflow_b3.auditing.request import SCHEMES
from mlflow_b3.cli import main
from mlflow_b3.correlated.cvc import METHOD as CVC
from mlflow_b3.data.losses import CLASSIFICATION, REGRESSION
from mlflow_b3.errors import InputError
from mlflow_b3.estimation.estimate import METHODS
from mlflow_b3.estimation.hypothesis import TESTS
from mlflow_b3.evidence.document import canonical, digest
from mlflow_b3.measurement.runner import CLUSTERS, LOCAL
from mlflow_b3.options import (
    GROUPS,
    OPTIONS,
    PYTHON,
    Choice,
    check_names,
    committed_options,
    options_of,
)
from mlflow_b3.refit.environment import MANAGERS
from mlflow_b3.tracking.preregistration import commit_arguments

COMMANDS = ("audit", "compare", "preregister", "test")


def test_audit_has_the_options_of_the_registry_with_their_defaults():
    parameters = inspect.signature(mlflow_b3.audit).parameters
    required = {"model", "data", "target", "cluster"}
    assert set(parameters) == {option.name for option in options_of(PYTHON)}
    for name in set(parameters) - required:
        assert parameters[name].default == OPTIONS[name].default, name


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("loss", [*CLASSIFICATION, *REGRESSION]),
        ("method", [*METHODS, CVC]),
        ("scheme", SCHEMES),
        ("test", TESTS),
        ("backend", [*LOCAL, *CLUSTERS]),
        ("env_manager", MANAGERS),
    ],
)
def test_the_choices_that_are_shown_are_those_there_are(name, words):
    kind = OPTIONS[name].type
    assert isinstance(kind, Choice)
    assert sorted(kind.choices) == sorted(words)


def test_options_stand_in_the_order_of_their_groups():
    places = [GROUPS.index(option.group) for option in OPTIONS.values()]
    assert places == sorted(places)


@pytest.mark.parametrize("option", OPTIONS.values(), ids=OPTIONS)
def test_every_option_is_described_in_a_sentence(option):
    assert option.help.endswith(".")
    assert option.where


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_has_its_options_of_the_registry(command):
    shown = {each.name for each in main.commands[command].params if isinstance(each, click.Option)}
    assert {option.parameter for option in options_of(command)} <= shown


@pytest.mark.parametrize("command", COMMANDS)
def test_help_shows_options_in_groups(command):
    text = CliRunner().invoke(main, [command, "--help"]).output
    titles = [group for group in GROUPS if any(o.group == group for o in options_of(command))]
    places = [text.index(f"\n{title}:\n") for title in titles]
    assert places == sorted(places)
    assert len(titles) > 4


def test_help_shows_choices():
    text = CliRunner().invoke(main, ["audit", "--help"]).output
    assert "--scheme [subset|replace]" in text
    assert "--folds NUMBER|balanced|FILE" in text


def test_only_how_an_audit_runs_leaves_its_numbers_alone():
    unchanged = {option.name for option in options_of(PYTHON)} - {
        option.name for option in committed_options()
    }
    assert unchanged == {"n_jobs", "backend", "address", "journal", "progress"}


def test_settings_that_were_committed_by_earlier_versions_are_still_found():
    """The hash is that of version 0.1: what is committed, and its defaults, stay as they were."""
    committed = commit_arguments({"target": "y", "cluster": "c"})
    assert digest(canonical(committed).encode()).startswith("85b440dd5b078d4f736336706f7bee54")


def test_a_name_that_no_option_has_is_refused_with_the_closest():
    with pytest.raises(InputError, match=r"no such argument\. Did you mean 'budget'\?"):
        check_names({"buget": 3})


def test_the_registry_imports_nothing_that_uses_it():
    program = (
        "import sys, mlflow_b3.options; print(*sorted(n for n in sys.modules if 'mlflow' in n))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    own = {"mlflow_b3", "mlflow_b3.errors", "mlflow_b3.options", "mlflow_b3.results"}
    assert set(done.stdout.split()) == own | {"mlflow_b3.version"}
