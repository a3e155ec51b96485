"""The values that a policy may have: each is checked by itself, and what is wrong is said in words."""

import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlflow_b3.errors import InputError
from mlflow_b3.gating.keys import read_public_key

CONSTANT = "constant"
RULES = ("not_worse", "better")
SOURCES = (
    *("p0", "cluster_error", "split_rate", "mixture"),
    *("resolved_rows", "partition_samples", "linkage_quality", "match_probability", "match_column"),
)
ROUTES = ("clone", "parameters", "trainer", "fresh", "hot-start", "last-layer", "head")


@dataclass(frozen=True)
class Problem:
    """What is wrong with a value."""

    text: str


def _is_number(value: Any) -> bool:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return (
        number and abs(value) <= sys.float_info.max
    )  # NaN, infinities and endless integers are not


def _patterns(value: Any, folder: Path) -> Any:  # noqa: ARG001
    if isinstance(value, list) and all(isinstance(v, str) and v.strip() for v in value):
        return tuple(value)
    return Problem('must be a list of patterns such as ["champion", "prod-*"].')


def _limit(value: Any, folder: Path) -> Any:  # noqa: ARG001
    if value is None or value == CONSTANT:
        return value
    return float(value) if _is_number(value) else _no_number(value, f", {CONSTANT}")


def _number(value: Any, folder: Path) -> Any:  # noqa: ARG001
    if value is None:
        return None
    return float(value) if _is_number(value) else _no_number(value)


def _no_number(value: Any, other: str = "") -> Problem:
    hint = ""
    with suppress(ValueError):
        if isinstance(value, str):
            hint = f" YAML reads this as a text; write {float(value)!r}."
    return Problem(f"must be a number{other} or null.{hint}")


def _share(value: Any, folder: Path) -> Any:
    found = _number(value, folder)
    if isinstance(found, float) and not 0 <= found <= 1:
        return Problem("must be a share from 0 to 1, or null.")
    return found


def _days(value: Any, folder: Path) -> Any:
    found = _number(value, folder)
    if isinstance(found, float) and found <= 0:
        return Problem("must be a number of days above 0, or null.")
    return found


def _flag(value: Any, folder: Path) -> Any:  # noqa: ARG001
    return value if isinstance(value, bool) else Problem("must be true or false.")


def _count(value: Any, folder: Path) -> Any:  # noqa: ARG001
    if value is None or (isinstance(value, int) and not isinstance(value, bool) and value > 0):
        return value
    return Problem("must be a whole number from 1, or null.")


def _one_of(*words: str | None) -> Any:
    def check(value: Any, folder: Path) -> Any:  # noqa: ARG001
        named = " or ".join("null" if word is None else word for word in words)
        return value if value in words else Problem(f"must be {named}.")

    return check


def _some_of(words: Sequence[str]) -> Any:
    def check(value: Any, folder: Path) -> Any:  # noqa: ARG001
        if value is None:
            return None
        if isinstance(value, list) and value and all(v in words for v in value):
            return tuple(value)
        return Problem(f"must be null or a list of some of {', '.join(words)}.")

    return check


def _alias(value: Any, folder: Path) -> Any:  # noqa: ARG001
    return value if isinstance(value, str) and value else Problem("must be an alias.")


def _keys(value: Any, folder: Path) -> Any:
    if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
        return Problem("must be a list of public keys or of .pub files.")
    try:
        return tuple(read_public_key(key, folder) for key in value)
    except InputError as error:
        return Problem(f"has a key that cannot be read: {error}")


CHECKS = {
    **dict.fromkeys(("aliases", "stages", "models"), _patterns),
    "e0_high": _limit,
    "inflation": _number,
    **dict.fromkeys(("tipping_cluster_error", "tipping_split_rate"), _share),
    "champion": _one_of(*RULES, None),
    "champion_alias": _alias,
    **dict.fromkeys(("signed", "preregistered"), _flag),
    "trusted_keys": _keys,
    "max_age_days": _days,
    "p0_sources": _some_of(SOURCES),
    "refits": _some_of(ROUTES),
    "max_audits": _count,
    "inconclusive": _one_of("refuse", "allow"),
}
