"""What is said about a cluster that cannot be used; needs no cluster, and none of their libraries."""

import sys

import pytest
from workload import Slow, make_refitter

from mlflow_b3.errors import InputError
from mlflow_b3.measurement.engines import (
    ClusterError,
    Lost,
    compare_versions,
    open_cluster,
    versions,
)


def refuse(match, error=InputError, **options):
    with pytest.raises(error, match=match), open_cluster(make_refitter(Slow()), **options):
        pass


@pytest.mark.parametrize(
    ("backend", "library"), [("dask", "distributed"), ("ray", "ray"), ("spark", "joblibspark")]
)
def test_a_missing_library_is_named_with_the_command_that_installs_it(
    backend, library, monkeypatch
):
    for name in [name for name in sys.modules if name.split(".")[0] == library]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, library, None)
    refuse(rf'pip install "mlflow-b3\[{backend}\]"', backend=backend)


def test_an_unknown_backend_is_refused():
    refuse("Did you mean 'dask'", backend="dusk")


@pytest.mark.parametrize("n_jobs", [0, -2, True])
def test_a_useless_number_of_refits_at_a_time_is_refused(n_jobs):
    refuse("n_jobs=", backend="dask", n_jobs=n_jobs)


def test_workers_with_other_versions_are_refused():
    other = versions() | {"numpy": "0.9.1", "Python": "2.7.18"}
    with pytest.raises(
        ClusterError, match=r"Python 2\.7\.18 on a worker.*numpy 0\.9\.1 on a worker"
    ):
        compare_versions([versions(), other], "backend='dask'")
    last = versions()["numpy"].rpartition(".")[0] + ".99"
    compare_versions([versions() | {"numpy": last}], "backend='dask'")


def test_workers_without_the_package_are_refused():
    lost = Lost("ModuleNotFoundError: No module named 'mlflow_b3'")
    with pytest.raises(ClusterError, match="cannot run mlflow-b3: ModuleNotFoundError"):
        compare_versions([lost], "backend='ray'")
