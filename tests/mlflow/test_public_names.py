"""What `import mlflow_b3` offers, and what it does not drag in."""

import json
import subprocess
import sys
from importlib import import_module, metadata

import pytest

import mlflow_b3
from mlflow_b3 import linkage

HEAVY = ("mlflow", "sklearn", "pandas", "scipy")

#: Modules of the statistics, in the order in which the probe imports them.
STATISTICS = (
    "mlflow_b3.linkage",
    "mlflow_b3.estimation.estimate",
    "mlflow_b3.estimation.leakage_test",
    "mlflow_b3.measurement.campaign",
    "mlflow_b3.auditing.conclusions",
    "mlflow_b3.reporting.pages",
    "mlflow_b3.auditing.audit",
)

PROBE = """
import importlib, json, sys
seen = {}
for name in sys.argv[1:]:
    importlib.import_module(name)
    seen[name] = sorted({module.partition(".")[0] for module in sys.modules})
print(json.dumps(seen))
"""


@pytest.fixture(scope="module")
def imported() -> dict[str, list[str]]:
    """Top-level modules in a fresh interpreter after each import, one after the other."""
    done = subprocess.run(
        [sys.executable, "-c", PROBE, "mlflow_b3", *STATISTICS],
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", mlflow_b3.__all__)
def test_every_public_name_resolves(name):
    assert getattr(mlflow_b3, name) is not None


def test_public_names_are_sorted_and_unique():
    assert mlflow_b3.__all__ == sorted(set(mlflow_b3.__all__))


def test_every_public_name_has_a_home():
    """`__version__` is imported at once, `linkage` is a package; others are looked up when used."""
    others = ("__version__", "linkage")
    assert sorted(mlflow_b3._HOMES) == [name for name in mlflow_b3.__all__ if name not in others]


@pytest.mark.parametrize(("name", "home"), sorted(mlflow_b3._HOMES.items()))
def test_the_home_of_a_name_is_where_it_is_defined(name, home):
    value = getattr(import_module(f"mlflow_b3.{home}"), name)
    assert value is getattr(mlflow_b3, name)
    assert value.__module__ == f"mlflow_b3.{home}"


def test_public_functions_are_not_hidden_by_modules_of_the_same_name():
    """`mlflow_b3.sensitivity` stays the function after `mlflow_b3.estimation` is imported."""
    for name in ("audit", "estimate", "leakage_test", "record", "search_p0", "sensitivity"):
        assert callable(getattr(mlflow_b3, name))


def test_dir_lists_the_public_names():
    assert dir(mlflow_b3) == sorted(mlflow_b3.__all__)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="'mlflow_b3' has no attribute 'adit'"):
        _ = mlflow_b3.adit


@pytest.mark.parametrize("heavy", HEAVY)
def test_importing_the_package_imports_nothing_heavy(imported, heavy):
    assert heavy not in imported["mlflow_b3"]


@pytest.mark.parametrize("module", STATISTICS)
def test_statistics_never_import_mlflow(imported, module):
    """Audits of bare estimators need no tracking server, and estimation none at all."""
    assert "mlflow" not in imported[module]


@pytest.mark.parametrize("name", linkage.__all__)
def test_every_public_name_of_linkage_resolves(name):
    assert getattr(linkage, name) is not None


@pytest.mark.parametrize(("name", "home"), sorted(linkage._MOVED.items()))
def test_a_name_that_left_linkage_still_works_and_says_where_it_is(name, home):
    with pytest.warns(DeprecationWarning, match=rf"moved to mlflow_b3\.linkage\.{home}\.{name}\."):
        value = getattr(linkage, name)
    assert value is getattr(import_module(f"mlflow_b3.linkage.{home}"), name)
    assert value.__module__ == f"mlflow_b3.linkage.{home}"
    assert name not in linkage.__all__


def test_an_unknown_name_of_linkage_is_an_attribute_error():
    with pytest.raises(AttributeError, match=r"'mlflow_b3\.linkage' has no attribute 'leek'"):
        _ = linkage.leek


def test_every_error_is_a_b3_error():
    for name in ("FitError", "InputError", "ModelError", "SolverError", "TrackingError"):
        assert issubclass(getattr(mlflow_b3, name), mlflow_b3.B3Error)


def test_the_installed_version_is_the_version_of_the_package():
    assert metadata.version("mlflow-b3") == mlflow_b3.__version__
