"""The arguments of an audit as plain values, equal where the audits would be the same."""

import dataclasses
import inspect
import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from mlflow_b3.auditing import audit
from mlflow_b3.correlated.in_audit import METHOD, take_world
from mlflow_b3.correlated.options import CvcOptions
from mlflow_b3.correlated.summary import digest_model
from mlflow_b3.data import digest_table
from mlflow_b3.errors import InputError, closest
from mlflow_b3.estimation.methods import as_method
from mlflow_b3.gating.sealing import canonical, digest
from mlflow_b3.linkage_arguments import TABLES
from mlflow_b3.measurement.breaking import parse_fragments
from mlflow_b3.measurement.levels import parse_budget, parse_levels
from mlflow_b3.refit.stored_code import StoredCode
from mlflow_b3.refit.trainer import import_function
from mlflow_b3.wording import read_number, read_share

#: They change how an audit runs, not what it finds.
INDIFFERENT = ("n_jobs", "backend", "address", "journal", "progress")
#: What is committed apart: the model and the table, by their digests.
APART = ("model", "data")
#: Longer lists are committed by their digest.
LONGEST_LIST = 50


def commit_arguments(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return all arguments of an audit that change its numbers, defaults filled in.

    Files and tables stand for their content. The cluster labels are part of the table.

    Parameters
    ----------
    arguments : mapping
        Those of `mlflow_b3.audit` by name, without the model and the data; `cluster` is the name of
        the column.

    Raises
    ------
    InputError
        For what has no content that could be compared later, such as a function; all at once.
    """
    known = inspect.signature(audit).parameters
    unknown = [name for name in arguments if name not in known]
    if unknown:
        raise InputError(
            f"{', '.join(unknown)}: an audit has no such argument.{closest(unknown[0], known)}"
        )
    values = {name: arguments.get(name, known[name].default) for name in known}
    for name in (*INDIFFERENT, *APART):
        del values[name]
    values = _alike(values)
    committed, problems = {}, []
    for name, value in values.items():
        try:
            committed[name] = _plain(_contents(name, value))
        except (_NoContentError, OSError) as error:
            problems.append(f"{name}: {error}")
    if problems:
        raise InputError.from_problems("the settings of the audit cannot be committed", problems)
    return committed


class _NoContentError(Exception):
    """A value has no content that could be compared with another one."""


def _alike(values: dict[str, Any]) -> dict[str, Any]:
    """Write in one way what can be written in several."""
    options = values.pop("method_options") or {}
    method = _method(values.pop("method"), options, values.pop("cluster"))
    fragments, p0 = values["fragments"], read_share(values["p0"])
    return {
        **values,
        "cluster_error": read_share(values["cluster_error"]),
        "split_rate": read_share(values["split_rate"]),
        "p0_validation": read_number(values["p0_validation"]),
        "threshold": read_number(values["threshold"]),
        "method": method,
        "budget": parse_budget(values["budget"]),
        "levels": parse_levels(values["levels"]),
        "fragments": None if fragments is None else str(parse_fragments(fragments)),
        "p0": None if isinstance(p0, str) and p0 == "grid" else p0,
        "refit_options": values["refit_options"] or None,
    }


def _method(method: Any, options: Mapping[str, Any], cluster: str) -> dict[str, Any]:
    """Return a method by its name and its options, with the defaults of those not given."""
    if isinstance(method, str) and method == METHOD:
        own = dict(options)
        world = digest_model(take_world(own))
        chosen = CvcOptions.from_mapping(own, cluster).to_dict()
        return {"name": METHOD, **chosen, **({} if world is None else {"working": world})}
    made = as_method(method, **options)
    return {"name": made.name, **made.options}


def _contents(name: str, value: Any) -> Any:
    """Let a text that names a file, or a function, stand for what is in there."""
    if name == "trainer" and isinstance(value, str):
        import_function(value)
        path = getattr(sys.modules[value.partition(":")[0]], "__file__", None)
        if path is None:
            raise _NoContentError(f"{value!r} has no source file.")
        return {"function": value, "code": Path(path)}
    if isinstance(value, StoredCode):
        return {"function": value.function, "code": dict(value.files)}
    always = name in ("resolved_rows", "partition_samples")
    by_ending = {"match_probability": TABLES, "folds": (".csv",)}.get(name, ())
    if isinstance(value, str) and (always or Path(value).suffix.lower() in by_ending):
        return Path(value)
    return value


def _plain(value: Any) -> Any:
    if isinstance(value, (np.generic, np.ndarray)):
        value = value.tolist()
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float) and math.isfinite(value):
        return int(value) if value.is_integer() else value
    if isinstance(value, Path):
        return {"sha256": digest(value.read_bytes())}
    if isinstance(value, (pd.DataFrame, pd.Series)):
        labels = value.index.to_frame(index=False)
        table = value.to_frame() if isinstance(value, pd.Series) else value
        return {"table": digest_table(table.rename(columns=str)), "labels": digest_table(labels)}
    if isinstance(value, Mapping):
        return {str(name): _plain(item) for name, item in value.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        named = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        return {type(value).__name__: _plain(named)}
    if isinstance(value, (list, tuple)):
        items = [_plain(item) for item in value]
        if len(items) <= LONGEST_LIST:
            return items
        return {"items": len(items), "sha256": digest(canonical(items).encode())}
    raise _NoContentError(
        f"{value!r} has no content that could be compared later; give a name, a number, a table or a "
        "file."
    )
