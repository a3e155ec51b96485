"""The options of corrected cross-validation, checked with all problems named at once."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from numbers import Integral
from typing import Any

from mlflow_b3.errors import InputError, closest
from mlflow_b3.results import Result

ENGINES = ("auto", "fast", "joint", "full", "hot", "last_layer")
#: Engines of which it is known that they miss part of the bias, or exceed it.
LOWER_QUALITY = ("hot", "last_layer")
WORKING = ("auto", "score", "glmm")
DRAWS = 400
LEAST_DRAWS = 20


@dataclass(frozen=True, kw_only=True)
class CvcOptions(Result):
    """How the bias of cross-validation is computed.

    Attributes
    ----------
    groups : tuple of str
        Columns by whose values rows are correlated; with coordinates the one that names the region.
    new : tuple of str
        Those of which the model will meet new values; all by default.
    coordinates : tuple of str
        Columns with the places of rows, for a random field.
    engine : {"auto", "fast", "joint", "full", "hot", "last_layer"}
    working : {"auto", "score", "glmm"}
    draws : int
        Simulated samples.
    epochs : int or None
        For the engine "hot": how often a network sees the rows of a simulated sample.
    """

    groups: tuple[str, ...] = ()
    new: tuple[str, ...] = ()
    coordinates: tuple[str, ...] = ()
    engine: str = "auto"
    working: str = "auto"
    draws: int = DRAWS
    epochs: int | None = None

    @classmethod
    def from_mapping(cls, given: Mapping[str, Any] | None, cluster: str | None = None) -> Any:
        """Check options as users give them.

        Parameters
        ----------
        given : mapping
            By the names of the attributes; lists may be single words.
        cluster : str, optional
            A column that is one of the groups in any case, and new.
        """
        values, known = dict(given or {}), [field.name for field in fields(cls)]
        problems = [
            f"{name!r} is no option of method 'cvc'; use {', '.join(known)}.{closest(name, known)}"
            for name in values
            if name not in known
        ]
        names = {
            name: _names(name, values.get(name), problems)
            for name in ("groups", "new", "coordinates")
        }
        groups = names["groups"]
        if cluster is not None and cluster not in groups:
            groups = (cluster, *groups)
        new = groups if values.get("new") is None else names["new"]
        if not new and groups:
            problems.append(
                "new=[] would mean that the model meets no new groups, so that there is nothing to "
                f"correct; leave it out for all of {list(groups)}, or name some of them."
            )
        if cluster is not None and new and cluster not in new:
            problems.append(
                f"new={list(new)} must contain the audited cluster {cluster!r}: the audit asks for the "
                "loss on new ones. Name another column as cluster, or use mlflow_b3.cvc."
            )
        problems += _problems(groups, new, names["coordinates"], values)
        if problems:
            raise InputError.from_problems("cvc", problems)
        return cls(
            groups=groups,
            new=new,
            coordinates=names["coordinates"],
            engine=values.get("engine", "auto"),
            working=values.get("working", "auto"),
            draws=int(values.get("draws", DRAWS)),
            epochs=None if values.get("epochs") is None else int(values["epochs"]),
        )


def _names(option: str, value: Any, problems: list[str]) -> tuple[str, ...]:
    """Return a list of columns, whatever form it has; a text may hold several, between commas."""
    if value is None:
        return ()
    listed = [part.strip() for part in value.split(",")] if isinstance(value, str) else value
    if not isinstance(listed, Sequence) or not all(
        isinstance(name, str) and name for name in listed
    ):
        problems.append(f"{option}={value!r} must be a list of names of columns.")
        return ()
    repeated = sorted({name for name in listed if list(listed).count(name) > 1})
    if repeated:
        problems.append(f"{option} names {', '.join(map(repr, repeated))} more than once.")
    return tuple(dict.fromkeys(listed))


def _problems(
    groups: tuple[str, ...],
    new: tuple[str, ...],
    coordinates: tuple[str, ...],
    values: Mapping[str, Any],
) -> list[str]:
    found = []
    if not groups:
        found.append(
            "groups=[] names no column; give those by whose values rows are correlated, such as "
            "groups=['patient', 'day']."
        )
    unknown = [name for name in new if name not in groups]
    if unknown and groups:
        found.append(f"new={list(new)} must be among groups={list(groups)}.")
    if coordinates and len(groups) > 1:
        found.append(
            f"coordinates={list(coordinates)} need a single group, the column of the region; "
            f"groups={list(groups)}."
        )
    if set(coordinates) & set(groups):
        found.append(f"coordinates={list(coordinates)} are columns of groups too.")
    for name, allowed in (("engine", ENGINES), ("working", WORKING)):
        value = values.get(name, allowed[0])
        if value not in allowed:
            found.append(
                f"{name}={value!r} is unknown; use one of {', '.join(allowed)}."
                + (closest(value, allowed) if isinstance(value, str) else "")
            )
    draws = values.get("draws", DRAWS)
    if not _is_whole(draws) or draws < LEAST_DRAWS:
        found.append(f"draws={draws!r} must be a whole number from {LEAST_DRAWS}.")
    epochs = values.get("epochs")
    if epochs is not None and (not _is_whole(epochs) or epochs < 1):
        found.append(f"epochs={epochs!r} must be a whole number from 1.")
    if epochs is not None and values.get("engine") != "hot":
        found.append(f"epochs={epochs!r} is for engine='hot' only.")
    return found


def _is_whole(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)
