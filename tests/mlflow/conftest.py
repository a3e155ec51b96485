"""Fixtures of tests with MLflow."""

from stores import *  # noqa: F403 - fixtures
