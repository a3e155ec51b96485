"""Fixtures for the tests of gates: a pair of keys, one real audit, and versions to tamper with."""

import mlflow
import pytest
from example_reports import changed
from gate_examples import Registered, register
from sklearn.naive_bayes import GaussianNB

import mlflow_b3
from mlflow_b3.demo import FEATURES


@pytest.fixture(autouse=True)
def _no_keys(no_keys):
    """Keep the keys of whoever runs the tests out of all tests of this folder."""


@pytest.fixture(scope="session")
def clinic():
    return mlflow_b3.make_clinic(patients=30, records=4, cluster_error=0.1)


@pytest.fixture(scope="session")
def complete(clinic):
    """Return a real audit, of a bare estimator, that beats the constant answer.

    The wide interval of so small a table does not, so that the loss of the constant is changed.
    """
    options = {"target": "disease", "cluster": "patient_id", "cluster_error": 0.1}
    report = mlflow_b3.audit(
        GaussianNB(), clinic.frame, **options, budget=100, n_jobs=1, progress=False
    )
    return changed(report, constant_loss=0.95)


@pytest.fixture(scope="session")
def saved(clinic, tmp_path_factory):
    """Return the folder of a fitted model, as MLflow saves it."""
    folder = tmp_path_factory.mktemp("saved") / "model"
    model = GaussianNB().fit(clinic.frame[list(FEATURES)], clinic.frame["disease"])
    mlflow.sklearn.save_model(model, folder, pip_requirements=["scikit-learn"])
    return folder


@pytest.fixture
def fresh(shared_store, saved, complete) -> Registered:
    """Return a version of its own for this test, not audited yet."""
    assert shared_store
    return register(saved, complete)


@pytest.fixture
def audited(fresh) -> Registered:
    """Return a version of its own for this test, audited and without a signature."""
    return fresh.record()
