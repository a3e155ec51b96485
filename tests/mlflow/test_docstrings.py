"""The examples in the docstrings of public names run, and give what they say."""

import doctest
import sys
from types import ModuleType

import pytest

import mlflow_b3
from mlflow_b3 import linkage
from mlflow_b3.evidence.document import SIGNING_KEY, make_keys

pytestmark = pytest.mark.newest

#: No example: it needs a linker of Splink, which is an optional extra.
WITHOUT = {"splink_labelling_pages"}


def public(package: ModuleType) -> list[str]:
    """Return the names of a package's functions and classes that need an example."""
    return sorted({*package.__all__} - {"__version__", "linkage"} - WITHOUT)


def run(package: ModuleType, name: str) -> None:
    value = getattr(package, name)
    home = sys.modules[value.__module__]
    tests = doctest.DocTestFinder().find(value, name, home, globs={})
    assert sum(len(test.examples) for test in tests), f"the docstring of {name} has no examples"
    failures: list[str] = []
    for test in tests:
        doctest.DocTestRunner(verbose=False).run(test, out=failures.append)
    assert not failures, "".join(failures)


@pytest.mark.usefixtures("shared_store")
@pytest.mark.parametrize("name", public(mlflow_b3))
def test_examples_of_the_package_run(name, tmp_path, monkeypatch):
    if name == "attest":
        monkeypatch.setenv(SIGNING_KEY, str(make_keys(tmp_path)[0]))
    run(mlflow_b3, name)


@pytest.mark.parametrize("name", public(linkage))
def test_examples_of_linkage_run(name):
    run(linkage, name)
