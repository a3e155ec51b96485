"""Refuses arguments of an audit that no model and no table could make right."""

from collections.abc import Mapping
from numbers import Real
from typing import Any

import numpy as np

from mlflow_b3.claims import Claim
from mlflow_b3.errors import InputError, check_seed, choose
from mlflow_b3.hypothesis import TESTS
from mlflow_b3.measurement.levels import DESIGNS

SCHEMES = ("subset", "replace")
#: Beyond all losses that numbers can hold.
LARGEST_THRESHOLD = 1e300


def check_settings(
    claim: Claim,
    scheme: str,
    levels: str,
    test: str,
    seed: Any,
    threshold: float | None,
    distribution: bool,
) -> None:
    """Refuse arguments that no model and no table could make right."""
    if distribution and claim.pattern != "rows":
        raise InputError(
            "distribution=True needs the share of misplaced rows: give p0 or cluster_error."
        )
    choose("scheme", scheme, SCHEMES)
    choose("levels", levels, tuple(DESIGNS))
    choose("test", test, TESTS)
    check_seed(seed)
    number = isinstance(threshold, Real) and not isinstance(threshold, bool)
    if threshold is not None and not (number and abs(threshold) < LARGEST_THRESHOLD):
        raise InputError(f"threshold={threshold!r} must be a finite number.")


def check_kinds(
    method_options: object, refit: object, refit_options: object, distribution: object
) -> None:
    """Refuse values of the wrong kind, such as configuration files hold."""
    problems = [
        f"{name}={value!r} must be a mapping of names to values."
        for name, value in (("method_options", method_options), ("refit_options", refit_options))
        if value is not None and not isinstance(value, Mapping)
    ]
    if not isinstance(refit, str):
        problems.append(f"refit={refit!r} must be the name of a route, such as 'auto'.")
    if not isinstance(distribution, (bool, np.bool_)):
        problems.append(f"distribution={distribution!r} must be True or False.")
    if problems:
        raise InputError.from_problems("audit", problems)
