"""Fixtures of tests of evidence, policies and verdicts."""

import pytest


@pytest.fixture(autouse=True)
def _no_keys(no_keys):
    """Keep the keys of whoever runs the tests out of all tests of this folder."""
