"""Fixtures of tests of evidence, policies and verdicts."""

import pytest


@pytest.fixture(autouse=True)
def _no_keys(monkeypatch):
    """Keep the keys and the policy of whoever runs the tests out of them."""
    for name in ("MLFLOW_B3_SIGNING_KEY", "MLFLOW_B3_TRUSTED_KEYS", "MLFLOW_B3_POLICY"):
        monkeypatch.delenv(name, raising=False)
