"""The registry of options agrees with what uses it."""

import inspect
import subprocess
import sys
from dataclasses import fields

import click
import pytest
from click.testing import CliRunner
from sklearn.naive_bayes import GaussianNB

import mlflow_b3
from mlflow_b3.auditing.extension import EXTENSIONS
from mlflow_b3.auditing.report import DOSE
from mlflow_b3.auditing.request import SCHEMES
from mlflow_b3.cli import main
from mlflow_b3.data.losses import CLASSIFICATION, REGRESSION
from mlflow_b3.errors import InputError
from mlflow_b3.estimation.estimate import METHODS
from mlflow_b3.estimation.leakage_test import TESTS
from mlflow_b3.evidence.document import canonical, digest
from mlflow_b3.measurement.runner import CLUSTERS, LOCAL
from mlflow_b3.options import (
    GROUPS,
    OPTIONS,
    PYTHON,
    VALUE_OBJECTS,
    Choice,
    Design,
    LinkageEvidence,
    RefitOptions,
    Running,
    check_names,
    committed_options,
    flat_options,
    options_of,
)
from mlflow_b3.refit.environment import MANAGERS
from mlflow_b3.tracking.preregistration import commit_arguments, make_commitment

COMMANDS = ("audit", "compare", "preregister", "test")


def test_audit_has_the_options_of_the_registry_with_their_defaults():
    """Each is a parameter, or a field of a value that a parameter takes."""
    parameters = inspect.signature(mlflow_b3.audit).parameters
    assert len(parameters) <= 28
    places = {}
    for name, parameter in parameters.items():
        if name == "y":  # in Python only, in place of a column
            continue
        if name in VALUE_OBJECTS:
            held = VALUE_OBJECTS[name]()
            places |= {f"{name}.{field.name}": getattr(held, field.name) for field in fields(held)}
        elif parameter.kind is not parameter.VAR_KEYWORD:
            places[name] = None if parameter.default is parameter.empty else parameter.default
    assert places == {
        (option.inside or option.name): option.default for option in options_of(PYTHON)
    }


VALUES = {
    "linkage": LinkageEvidence(
        resolved_rows="sheet.csv", reviewer=(0.9, 1.0), quality={"recall": 0.9}, row_id="id"
    ),
    "refit": RefitOptions(route="clone", options={"epochs": 3}, sample_weight="weight"),
    "design": Design(scheme="replace", levels=5, test="welch", distribution=True),
    "running": Running(address="auto", fit_timeout="5m", progress=False),
}
FLAT = {
    "resolved_rows": "sheet.csv",
    "reviewer": (0.9, 1.0),
    "linkage_quality": {"recall": 0.9},
    "row_id": "id",
    "refit": "clone",
    "refit_options": {"epochs": 3},
    "sample_weight": "weight",
    "scheme": "replace",
    "levels": 5,
    "test": "welch",
    "distribution": True,
    "address": "auto",
    "fit_timeout": "5m",
    "progress": False,
}


def test_values_hold_options_that_have_names_of_their_own():
    assert flat_options(VALUES) == FLAT
    assert flat_options(FLAT) == FLAT
    assert flat_options({"budget": 40, "design": Design(), "running": None}) == {"budget": 40}


def test_values_and_names_may_be_mixed_but_not_for_one_option():
    design = Design(scheme="replace")
    flat = {"scheme": "replace", "n_train": 30}
    assert flat_options({"design": design, "n_train": 30}) == flat
    with pytest.raises(InputError, match=r"scheme='subsets' is given twice: .* as design\.scheme"):
        flat_options({"design": design, "scheme": "subsets"})


@pytest.mark.parametrize("name", ["linkage", "design", "running"])
def test_something_else_in_the_place_of_a_value_is_refused(name):
    with pytest.raises(InputError, match=rf"{name}=3 is not usable; give \w+\(\w+=…\)"):
        flat_options({name: 3})


def test_an_audit_takes_values():
    clinic = mlflow_b3.make_clinic(patients=12, records=4)
    given = {"target": "disease", "cluster": "patient_id", "cluster_error": 0.1, "budget": 60}
    given |= {"folds": 2}
    one, other = (
        mlflow_b3.audit(GaussianNB(), clinic.frame, **given, **options).to_dict()
        for options in (
            {"design": Design(repeats=1, levels=3), "running": Running(progress=False)},
            {"repeats": 1, "levels": 3, "progress": False},
        )
    )
    del one["measured"]["measured_at"], other["measured"]["measured_at"]
    assert one == other


def test_an_audit_refuses_names_that_no_option_has():
    with pytest.raises(InputError, match=r"sceme: .* Did you mean 'scheme'\?"):
        mlflow_b3.audit(GaussianNB(), None, target="y", cluster="c", sceme="replace")


def test_committed_settings_are_the_same_in_values_and_by_name():
    frame = mlflow_b3.make_clinic(patients=4, records=2).frame
    columns = {"target": "disease", "cluster": "patient_id"}
    one, other = (
        make_commitment("m-1", "digest", None, frame, {**columns, **options})
        for options in ({"refit": RefitOptions(route="clone")}, {"refit": "clone"})
    )
    assert one.hash == other.hash


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("loss", [*CLASSIFICATION, *REGRESSION]),
        ("method", [*METHODS, *EXTENSIONS, DOSE]),
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
