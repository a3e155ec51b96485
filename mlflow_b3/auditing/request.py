"""The arguments of an audit, checked before anything is read or fitted."""

from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any

import numpy as np

from mlflow_b3.auditing.leakage import Leakage
from mlflow_b3.data.losses import Loss
from mlflow_b3.errors import InputError, check_seed, choose
from mlflow_b3.estimation.hypothesis import TESTS
from mlflow_b3.results import loss_words

SCHEMES = ("subset", "replace")
#: Beyond all losses that numbers can hold.
LARGEST_THRESHOLD = 1e300
LEAST_TRAINING_ROWS = 2


def check_settings(
    claim: Leakage,
    scheme: str,
    test: str,
    seed: Any,
    threshold: float | None,
    distribution: bool,
    *,
    n_train: Any = None,
) -> None:
    """Refuse arguments that no model and no table could make right."""
    if distribution and not (claim.is_known and claim.misplaces):
        raise InputError(
            "distribution=True needs the share of misplaced rows: give p0 or cluster_error."
        )
    choose("scheme", scheme, SCHEMES)
    if n_train is not None:
        _check_n_train(n_train, scheme)
    choose("test", test, TESTS)
    check_seed(seed)
    number = isinstance(threshold, Real) and not isinstance(threshold, bool)
    if threshold is not None and not (number and abs(threshold) < LARGEST_THRESHOLD):
        raise InputError(f"threshold={threshold!r} must be a finite number.")


def check_threshold(threshold: float | None, loss: Loss | None) -> None:
    """Refuse a threshold that the loss can never reach, or always does.

    Parameters
    ----------
    threshold : float or None
    loss : Loss or None
        None where it is not known yet.
    """
    if threshold is None or loss is None or loss.floor is None:
        return
    if loss.floor <= threshold and (loss.bound is None or threshold <= loss.bound):
        return
    if loss.bound is None:
        limits = f"is at least {loss.floor:g}"
    else:
        limits = f"lies between {loss.floor:g} and {loss.bound:.4g}"
    hint = ""
    if loss.bound == 1 and 1 < threshold <= 100:
        hint = f' For a percentage give {threshold / 100:g} or "{threshold:g}%".'
    raise InputError(
        f"threshold={threshold:g} decides nothing: the {loss_words(loss.name)} ({loss.name}) "
        f"{limits}. Give a threshold in that range.{hint}"
    )


def _check_n_train(n_train: Any, scheme: str) -> None:
    whole = isinstance(n_train, Integral) and not isinstance(n_train, bool)
    if not whole or n_train < LEAST_TRAINING_ROWS:
        raise InputError(
            f"n_train={n_train!r} must be a whole number from {LEAST_TRAINING_ROWS}: the rows of a "
            "resampled training set."
        )
    if scheme != "replace":
        raise InputError(
            f"n_train={n_train} needs scheme='replace': without replacement training sets are as "
            "large as the fold allows. Give both, or neither."
        )


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
