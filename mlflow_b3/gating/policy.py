"""The policy: what is guarded, and what a model must show to be promoted."""

import hashlib
import json
import math
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from fnmatch import fnmatchcase
from importlib.resources import files
from os import PathLike
from pathlib import Path
from typing import Any

from mlflow_b3.errors import InputError, closest
from mlflow_b3.gating.keys import read_public_key
from mlflow_b3.results import Result

CONSTANT = "constant"
RULES = ("not_worse", "better")
SOURCES = (
    *("p0", "cluster_error", "split_rate", "mixture"),
    *("resolved_rows", "partition_samples", "linkage_quality", "match_probability", "match_column"),
)
ROUTES = ("clone", "parameters", "trainer", "fresh", "hot-start", "last-layer", "head")
LONGEST_FILE = 100_000


@dataclass(frozen=True, kw_only=True)
class Policy(Result):
    """What a version must show before a guarded alias or stage may point at it.

    Attributes
    ----------
    aliases, stages, models : tuple of str
        Patterns of what is guarded, and of the registered models it is guarded on.
    e0_high : float, "constant" or None
        Limit on the upper end of e0's interval; "constant" is the loss of the best constant answer.
    inflation : float or None
        Limit on e0 - LOCO.
    tipping_cluster_error, tipping_split_rate : float or None
        The least error of the ids at which e0 may reach the limit `e0_high`.
    champion : {"not_worse", "better"} or None
        How the version must compare with the one that has `champion_alias`, beyond noise.
    champion_alias : str
    signed : bool
        Only evidence signed by one of the trusted keys counts.
    trusted_keys : tuple of str
        Public keys, "ed25519:" and base64.
    max_age_days : float or None
    p0_sources, refits : tuple of str or None
        Where the leaked share may come from, and the routes of refitting that count; None for any.
    preregistered : bool
        The settings of the audit must have been committed before it ran.
    max_audits : int or None
        How many audits of one model may have been tried.
    inconclusive : {"refuse", "allow"}
        What happens where the numbers decide neither way.
    """

    aliases: tuple[str, ...]
    stages: tuple[str, ...]
    models: tuple[str, ...]
    e0_high: float | str | None
    inflation: float | None
    tipping_cluster_error: float | None
    tipping_split_rate: float | None
    champion: str | None
    champion_alias: str
    signed: bool
    trusted_keys: tuple[str, ...]
    max_age_days: float | None
    p0_sources: tuple[str, ...] | None
    refits: tuple[str, ...] | None
    preregistered: bool
    max_audits: int | None
    inconclusive: str

    @property
    def hash(self) -> str:
        """SHA-256 of the policy's content; comments and the order of keys do not change it."""
        text = json.dumps(self.to_dict(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    def applies_to(self, model: str) -> bool:
        """Whether a registered model is guarded."""
        return _matches(model, self.models)

    def guards_alias(self, alias: str) -> bool:
        """Whether an alias is guarded, whatever its case."""
        return _matches(alias, self.aliases)

    def guards_stage(self, stage: str) -> bool:
        """Whether a stage is guarded, whatever its case."""
        return _matches(stage, self.stages)


def load_policy(policy: "Policy | str | PathLike[str] | None" = None) -> Policy:
    """Read a policy from a YAML file; None is the policy that comes with the package.

    What a file leaves out is as in the default policy. All its errors are reported at once.
    """
    if isinstance(policy, Policy):
        return policy
    basis = _parse(default_policy_text(), "the default policy")
    if policy is None:
        return _build(basis, {}, "the default policy", Path())
    path = Path(policy)
    try:
        if path.stat().st_size > LONGEST_FILE:
            raise InputError(f"policy={str(path)!r} is larger than {LONGEST_FILE} bytes.")
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"policy={str(path)!r} cannot be read: {error}") from error
    name = f"policy {str(path)!r}"
    return _build(basis, _parse(text, name), name, path.parent)


def default_policy_text() -> str:
    """Return the file of the policy that comes with the package, with its comments."""
    return files("mlflow_b3.gating").joinpath("default_policy.yaml").read_text("utf-8")


def _parse(text: str, name: str) -> dict[str, Any]:
    import yaml

    try:
        values = yaml.load(text, Loader=_unique_keys(yaml))
    except yaml.YAMLError as error:
        raise InputError(f"{name} is not YAML: {error}") from error
    if values is None:
        values = {}
    if not isinstance(values, dict):
        raise InputError(f"{name} must be a mapping of keys to values.")
    return values


def _unique_keys(yaml: Any) -> Any:
    """Return a loader that refuses a key that is given twice, of which YAML would keep the last."""

    class Loader(yaml.SafeLoader):  # type: ignore[misc]
        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            seen = set()
            for key, _ in node.value:
                if key.value in seen:
                    mark = key.start_mark
                    raise yaml.constructor.ConstructorError(
                        None, None, f"the key {key.value!r} is given twice", mark
                    )
                seen.add(key.value)
            return super().construct_mapping(node, deep)

    return Loader


SECTIONS = {
    "guard": ("aliases", "stages", "models"),
    "limits": (
        *("e0_high", "inflation", "tipping_cluster_error", "tipping_split_rate"),
        *("champion", "champion_alias"),
    ),
    "evidence": (
        *("signed", "trusted_keys", "max_age_days", "p0_sources", "refits"),
        *("preregistered", "max_audits"),
    ),
}


def _build(basis: Mapping[str, Any], given: Mapping[str, Any], name: str, folder: Path) -> Policy:
    problems: list[str] = []
    allowed = ("version", *SECTIONS, "inconclusive")
    problems += _unknown("", given, allowed)
    if given.get("version", 1) != 1 or isinstance(given.get("version"), bool):
        problems.append(
            f"version: {given['version']!r} is not known; this package reads version 1."
        )
    values: dict[str, Any] = {"inconclusive": given.get("inconclusive", basis["inconclusive"])}
    for section, keys in SECTIONS.items():
        own = given.get(section, {})
        if not isinstance(own, Mapping):
            problems.append(f"{section}: {own!r} must be a mapping of {', '.join(keys)}.")
            own = {}
        problems += _unknown(f"{section}.", own, keys)
        values |= {key: own.get(key, basis[section][key]) for key in keys}
    checked = {key: _CHECKS[key](value, folder) for key, value in values.items()}
    places = {key: f"{section}.{key}" for section, keys in SECTIONS.items() for key in keys}
    problems += [
        f"{places.get(key, key)}: {values[key]!r} {result.text}"
        for key, result in checked.items()
        if isinstance(result, _Problem)
    ]
    if problems:
        raise InputError.from_problems(name, problems)
    policy = Policy(**{field.name: checked[field.name] for field in fields(Policy)})
    needs = [
        f"limits.{key}"
        for key in ("tipping_cluster_error", "tipping_split_rate")
        if getattr(policy, key) is not None and policy.e0_high is None
    ]
    if needs:
        raise InputError(f"{name}: {' and '.join(needs)} needs limits.e0_high, the loss to reach.")
    return policy


def _unknown(prefix: str, given: Mapping[Any, Any], allowed: Sequence[str]) -> list[str]:
    return [
        f"{prefix}{key}: unknown key; {prefix or 'a policy '}has {', '.join(allowed)}."
        + closest(str(key), allowed)
        for key in given
        if key not in allowed
    ]


@dataclass(frozen=True)
class _Problem:
    text: str


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _patterns(value: Any, folder: Path) -> Any:  # noqa: ARG001
    if isinstance(value, list) and all(isinstance(v, str) and v.strip() for v in value):
        return tuple(value)
    return _Problem('must be a list of patterns such as ["champion", "prod-*"].')


def _limit(value: Any, folder: Path) -> Any:  # noqa: ARG001
    if value is None or value == CONSTANT:
        return value
    return float(value) if _is_number(value) else _Problem(f"must be a number, {CONSTANT} or null.")


def _number(value: Any, folder: Path) -> Any:  # noqa: ARG001
    if value is None:
        return None
    return float(value) if _is_number(value) else _Problem("must be a number or null.")


def _share(value: Any, folder: Path) -> Any:
    found = _number(value, folder)
    if isinstance(found, float) and not 0 <= found <= 1:
        return _Problem("must be a share from 0 to 1, or null.")
    return found


def _days(value: Any, folder: Path) -> Any:
    found = _number(value, folder)
    if isinstance(found, float) and found <= 0:
        return _Problem("must be a number of days above 0, or null.")
    return found


def _flag(value: Any, folder: Path) -> Any:  # noqa: ARG001
    return value if isinstance(value, bool) else _Problem("must be true or false.")


def _count(value: Any, folder: Path) -> Any:  # noqa: ARG001
    if value is None or (isinstance(value, int) and not isinstance(value, bool) and value > 0):
        return value
    return _Problem("must be a whole number from 1, or null.")


def _one_of(*words: str | None) -> Any:
    def check(value: Any, folder: Path) -> Any:  # noqa: ARG001
        named = " or ".join("null" if word is None else word for word in words)
        return value if value in words else _Problem(f"must be {named}.")

    return check


def _some_of(words: Sequence[str]) -> Any:
    def check(value: Any, folder: Path) -> Any:  # noqa: ARG001
        if value is None:
            return None
        if isinstance(value, list) and value and all(v in words for v in value):
            return tuple(value)
        return _Problem(f"must be null or a list of some of {', '.join(words)}.")

    return check


def _alias(value: Any, folder: Path) -> Any:  # noqa: ARG001
    return value if isinstance(value, str) and value else _Problem("must be an alias.")


def _keys(value: Any, folder: Path) -> Any:
    if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
        return _Problem("must be a list of public keys or of .pub files.")
    try:
        return tuple(read_public_key(key, folder) for key in value)
    except InputError as error:
        return _Problem(f"has a key that cannot be read: {error}")


_CHECKS = {
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


def _matches(name: str, patterns: Sequence[str]) -> bool:
    """Compare without regard to case and to look-alike forms of one letter."""
    return any(fnmatchcase(_folded(name), _folded(pattern)) for pattern in patterns)


def _folded(text: str) -> str:
    return unicodedata.normalize("NFKC", text).casefold()
