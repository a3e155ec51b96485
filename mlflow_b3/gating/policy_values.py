"""The values that a policy may have: each is checked by itself, and what is wrong is said in words."""

import re
import sys
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from mlflow_b3.errors import InputError, closest
from mlflow_b3.findings import CODES
from mlflow_b3.gating.keys import read_public_key
from mlflow_b3.results import Result

CONSTANT = "constant"
RULES = ("not_worse", "better")
SOURCES = (
    *("p0", "cluster_error", "split_rate", "mixture"),
    *("resolved_rows", "partition_samples", "linkage_quality", "match_probability", "match_column"),
)
#: The value of a pin's `data` that asks for a table which the training run logged.
TRAINING = "training"
PINNED = ("target", "cluster", "loss", "data")
DATA_DIGEST = re.compile("[0-9a-f]{36}")
ROUTES = ("clone", "parameters", "trainer", "fresh", "hot-start", "last-layer", "head")


@dataclass(frozen=True)
class Problem:
    """What is wrong with a value."""

    text: str


@dataclass(frozen=True, kw_only=True)
class Pin(Result):
    """What must have been audited, for the registered models that match a pattern.

    Attributes
    ----------
    models : str
        The pattern.
    target, cluster, loss : tuple of str or None
        The columns and losses of which one must have been used; None for any.
    data : tuple of str or None
        Digests of the tables that count, or "training" for one that the training run logged.
    """

    models: str
    target: tuple[str, ...] | None = None
    cluster: tuple[str, ...] | None = None
    loss: tuple[str, ...] | None = None
    data: tuple[str, ...] | None = None


def folded(text: str) -> str:
    """Return a text without case, accents and look-alike forms of one letter.

    To the databases behind some MLflow servers `Chámpion` is the alias `champion`.
    """
    parts = unicodedata.normalize("NFKD", unicodedata.normalize("NFKD", text).casefold())
    return "".join(part for part in parts if not unicodedata.combining(part))


def matches(name: str, patterns: Iterable[str]) -> bool:
    """Return whether a name matches one of the patterns, in any case and spelling of its letters."""
    return any(fnmatchcase(folded(name), folded(pattern)) for pattern in patterns)


def read_pins(value: Any) -> tuple[tuple[Pin, ...], list[str]]:
    """Return the pins of a policy, and what is wrong with them."""
    if not isinstance(value, Mapping):
        example = '"clinic*": {target: disease, cluster: patient_id}'
        return (), [f"pins: {value!r} must map patterns of models to what is pinned: {example}."]
    pins: list[Pin] = []
    problems: list[str] = []
    for pattern, given in value.items():
        place = f"pins.{pattern}"
        if not isinstance(pattern, str) or not pattern.strip():
            problems.append(
                f"{place}: {pattern!r} must be a pattern of registered models, in quotes."
            )
            continue
        if not isinstance(given, Mapping):
            problems.append(
                f"{place}: {given!r} must be a mapping of {', '.join(PINNED)}; {{}} pins nothing."
            )
            continue
        earlier = [pin.models for pin in pins if matches(pattern, [pin.models])]
        if earlier:
            problems.append(
                f"{place}: {earlier[0]!r}, which stands before it, matches all of its models, and the "
                "first match counts; put the narrower pattern first."
            )
        problems += [
            f"{place}.{key}: unknown key; a pin has {', '.join(PINNED)}."
            + closest(str(key), PINNED)
            for key in given
            if key not in PINNED
        ]
        read = {key: _pinned(key, given[key]) for key in PINNED if key in given}
        problems += [
            f"{place}.{key}: {given[key]!r} {result.text}"
            for key, result in read.items()
            if isinstance(result, Problem)
        ]
        names = {key: names for key, names in read.items() if isinstance(names, tuple)}
        pins.append(Pin(models=pattern, **names))
    return tuple(pins), problems


def _pinned(key: str, value: Any) -> tuple[str, ...] | Problem:
    names = value if isinstance(value, list) else [value]
    if not names or not all(isinstance(name, str) and name for name in names):
        return Problem("must be a text or a list of texts; leave the key out to pin nothing.")
    if key == "data" and not all(n == TRAINING or DATA_DIGEST.fullmatch(n) for n in names):
        return Problem(
            f"must be {TRAINING}, or the 36 hexadecimal digits that the tag b3.data_digest of an audit "
            "has."
        )
    return tuple(names)


def _is_number(value: Any) -> bool:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return (
        number and abs(value) <= sys.float_info.max
    )  # NaN, infinities and endless integers are not


def _patterns(value: Any, folder: Path) -> Any:  # noqa: ARG001
    if isinstance(value, list) and all(isinstance(v, str) and v.strip() for v in value):
        return tuple(value)
    return Problem('must be a list of patterns such as ["champion", "prod-*"].')


def _roots(value: Any, folder: Path) -> Any:
    if not isinstance(value, list) or not all(isinstance(v, str) and v.strip() for v in value):
        return Problem('must be a list of artifact locations such as ["s3://bucket/models"].')
    # a name without a scheme is a folder, beside the policy if it is not absolute
    return tuple(v if ":" in v else str((folder / v).absolute()) for v in value)


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


def _codes(value: Any, folder: Path) -> Any:  # noqa: ARG001
    if not isinstance(value, list):
        return Problem("must be a list of findings' codes such as [B311, B343]; [] refuses none.")
    unknown = [code for code in value if not isinstance(code, str) or code not in CODES]
    if unknown:
        return Problem(
            f"has {unknown[0]!r}, which is no code of a finding; they are B301 to {max(CODES)}."
            + closest(str(unknown[0]), CODES)
        )
    return tuple(value)


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
    "artifact_roots": _roots,
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
    **dict.fromkeys(("max_audits", "min_clusters", "min_repeated_clusters"), _count),
    "refuse_findings": _codes,
    "inconclusive": _one_of("refuse", "allow"),
}
