"""Fixtures for the tests of gates: a pair of keys, one real audit, and versions to tamper with."""

from dataclasses import replace
from types import SimpleNamespace

import mlflow
import pytest
from gate_examples import Registered, register
from sklearn.naive_bayes import GaussianNB

import mlflow_b3
from mlflow_b3.demo import FEATURES
from mlflow_b3.evidence.document import SIGNING_KEY, make_keys


@pytest.fixture(autouse=True)
def _no_keys(monkeypatch):
    """Keep the keys and the policy of whoever runs the tests out of them."""
    for name in ("MLFLOW_B3_SIGNING_KEY", "MLFLOW_B3_TRUSTED_KEYS", "MLFLOW_B3_POLICY"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="session")
def keys(tmp_path_factory):
    """Return a pair of keys: the path of the signing key, and the public key."""
    private, _, public = make_keys(tmp_path_factory.mktemp("keys"))
    return SimpleNamespace(private=private, public=public)


@pytest.fixture
def signing(keys, monkeypatch):
    """Sign what is recorded; return the public key."""
    monkeypatch.setenv(SIGNING_KEY, str(keys.private))
    return keys.public


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
    return replace(report, constant_loss=0.95)


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
