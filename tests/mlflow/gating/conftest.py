"""Fixtures for the tests of gates: a pair of keys, one real audit, and versions to tamper with."""

from dataclasses import dataclass

import mlflow
import pytest
from example_reports import changed
from gate_examples import Registered, register
from signing import sign_audit
from sklearn.naive_bayes import GaussianNB
from stores import KeptStore, kept_store

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
    """Return a real audit, of a bare estimator, that beats the best constant prediction.

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


@dataclass(frozen=True)
class Gated:
    """A store with one registered version, as it was before and after its audit was recorded."""

    store: KeptStore
    fresh: Registered
    audited: Registered


@pytest.fixture(scope="session")
def gated(empty_database, saved, complete, tmp_path_factory) -> Gated:
    """Register and record once, which takes a second; tests get the store back as it was."""
    with kept_store(empty_database, tmp_path_factory.mktemp("gated")) as store:
        fresh = register(saved, complete)
        store.keep("fresh")
        audited = fresh.record()
        store.keep("audited")
    return Gated(store=store, fresh=fresh, audited=audited)


@pytest.fixture
def fresh(gated, monkeypatch) -> Registered:
    """Return the only version in a store, not audited yet."""
    with gated.store.restored("fresh", monkeypatch):
        yield gated.fresh


@pytest.fixture
def audited(gated, monkeypatch) -> Registered:
    """Return the only version in a store, audited, and signed where the environment has a key."""
    with gated.store.restored("audited", monkeypatch):
        sign_audit(gated.audited.audit_run_id)
        yield gated.audited
