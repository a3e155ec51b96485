"""What the refits of an audit follow from, in words: two audits with the same have the same refits."""

import functools
import hashlib
import inspect
import json
import platform
import sys
import sysconfig
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import cloudpickle
import joblib
import pandas as pd

from mlflow_b3.data import AuditData
from mlflow_b3.errors import InputError
from mlflow_b3.fold_table import digest_folds
from mlflow_b3.planning import Plan
from mlflow_b3.refit.stored_code import StoredCode
from mlflow_b3.subject import Subject
from mlflow_b3.version import __version__

#: Libraries that draw random numbers or train whatever the model is.
ALWAYS = ("numpy", "pandas", "sklearn")
OWN = __name__.split(".")[0]


def identify(plan: Plan, levels: str | int, test: str) -> dict[str, str]:
    """Return everything that the outcome of a refit follows from, beside its task.

    The leaked share, the method and the budget are not among it: audits that differ in them share
    refits.

    Raises
    ------
    InputError
        For a model that cannot be told from others.
    """
    # journals of earlier versions have no n_train
    own_size = {} if plan.n_train is None else {"n_train": str(plan.n_train)}
    return (
        own_size
        | identify_subject(plan.subject)
        | {
            "folds": digest_folds(plan.folds),
            "scheme": plan.scheme,
            "levels": str(levels),
            "fragments": str(plan.fragments),
            "seed": str(plan.seed),
            "test": test,
        }
    )


def identify_subject(subject: Subject) -> dict[str, str]:
    """Return what says which model is refitted on which rows, with which loss."""
    learner, loss = subject.learner, subject.loss
    options = json.dumps(subject.options, sort_keys=True, default=str)
    own_loss = getattr(loss.per_row, "function", None)
    return {
        "data": subject.table.digest,
        "row ids": _digest_ids(subject.table.ids),
        "columns": _short(json.dumps(_columns(subject.table))),
        "target": subject.table.target_name,
        "cluster": subject.table.cluster_name,
        "sample_weight": str(subject.sample_weight),
        "model": f"{subject.audited.name} {_digest_model(subject.audited.model_digest, learner)}",
        "refit": f"{learner.route} {options}",
        "code": _digest_code([*_parts(learner), own_loss]),
        "loss": loss.name,
        "versions": _versions(_parts(learner)),
    }


def _short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _digest_ids(ids: Any) -> str:
    try:
        numbers = pd.util.hash_array(ids)
    except TypeError:  # labels that cannot be hashed
        return _short("\x1f".join(map(repr, ids.tolist())))
    return hashlib.sha256(numbers.tobytes()).hexdigest()[:16]


def _digest_model(of_files: str | None, learner: Any) -> str:
    if of_files is not None:
        return of_files[:16]
    try:
        return str(joblib.hash(learner))[:16]
    except Exception:  # objects of others, which pickle cannot take
        pass
    try:
        return hashlib.sha256(cloudpickle.dumps(learner)).hexdigest()[:16]
    except Exception as error:
        raise InputError(
            f"journal: {learner.name} cannot be told from other models, because it cannot be written "
            f"down ({error}). Audit a logged model, or leave the journal out."
        ) from error


def _parts(learner: Any) -> list[Any]:
    """Return the objects that a learner is made of, estimators within others included."""
    found = [*vars(learner).values(), getattr(learner, "code", None)]
    for value in list(found):
        if hasattr(value, "get_params") and not inspect.isclass(value):
            found += value.get_params(deep=True).values()
    return found


def _columns(table: AuditData) -> list[str]:
    """Return the names of the features, with the categories that the table's digest leaves out."""
    features = table.features
    if not isinstance(features, pd.DataFrame):
        return [*table.feature_names]
    return [
        f"{name} {_categories(dtype)}"
        for name, dtype in zip(table.feature_names, features.dtypes, strict=True)
    ]


def _categories(dtype: Any) -> str:
    if not isinstance(dtype, pd.CategoricalDtype):
        return str(dtype)
    return f"{dtype.ordered} {_short(repr([*dtype.categories]))}"


def _digest_code(objects: Iterable[Any]) -> str:
    """Digest what the user's own functions and classes do: their source, and what they refer to."""
    told: list[str] = []
    for value in objects:
        _tell(value, told, set())
    return _short("\n".join(sorted(set(told))))


def _tell(value: Any, told: list[str], seen: set[int]) -> None:
    """Add the source of a function, class or module of the user's, and of what it refers to."""
    if id(value) in seen or value is None:
        return
    seen.add(id(value))
    if isinstance(value, StoredCode):
        told.append(repr(value))
        return
    if isinstance(value, functools.partial):
        told.append(repr((value.args, sorted(value.keywords.items()))))
        _tell(value.func, told, seen)
        return
    kinds = (inspect.isfunction, inspect.isclass, inspect.ismodule)
    code = value if any(kind(value) for kind in kinds) else type(value)
    if not _is_users(code):
        return
    with suppress(OSError, TypeError):  # typed into a shell
        told.append(inspect.getsource(code))
    if inspect.isclass(code):
        for base in code.__mro__[1:]:
            _tell(base, told, seen)
    if inspect.isfunction(code):
        _tell_references(code, told, seen)


def _tell_references(function: Any, told: list[str], seen: set[int]) -> None:
    """Add what a function takes from outside: defaults, closures and names of its module."""
    try:
        outside = inspect.getclosurevars(function)
    except (TypeError, ValueError):
        return
    given = {"defaults": function.__defaults__, "keywords": function.__kwdefaults__}
    for name, value in {**outside.globals, **outside.nonlocals, **given}.items():
        if inspect.isfunction(value) or inspect.isclass(value) or inspect.ismodule(value):
            _tell(value, told, seen)
            continue
        with suppress(Exception):  # what cannot be pickled cannot be told from others
            told.append(f"{name} {joblib.hash(value)}")


def _is_users(code: Any) -> bool:
    """Return whether a function, class or module is neither ours nor installed."""
    name = code.__name__ if inspect.ismodule(code) else code.__module__
    file = getattr(sys.modules.get(name), "__file__", None)
    installed = tuple(sysconfig.get_path(path) for path in ("stdlib", "purelib", "platlib"))
    return file is not None and not file.startswith(installed) and name.split(".")[0] != OWN


def _versions(parts: Iterable[Any]) -> str:
    names = {type(part).__module__.split(".")[0] for part in parts} | set(ALWAYS)
    versions = {name: getattr(sys.modules.get(name), "__version__", None) for name in sorted(names)}
    python = ".".join(platform.python_version_tuple()[:2])
    known = [f"{name} {version}" for name, version in versions.items() if version]
    return ", ".join([f"mlflow-b3 {__version__}", f"Python {python}", *known])
