"""The policy: what is guarded, and what a model must show to be promoted."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from importlib.resources import files
from os import PathLike
from pathlib import Path
from typing import Any

from mlflow_b3.errors import InputError, closest
from mlflow_b3.gating.policy_values import CHECKS, Pin, Problem, folded, matches, read_pins
from mlflow_b3.results import Result

__all__ = ["Pin", "Policy", "default_policy_text", "folded", "load_policy"]

LONGEST_FILE = 100_000


@dataclass(frozen=True, kw_only=True)
class Policy(Result):
    """What a version must show before a guarded alias or stage may point at it.

    Attributes
    ----------
    aliases, stages, models : tuple of str
        Patterns of what is guarded, and of the registered models it is guarded on.
    pins : tuple of Pin
        What must have been audited, by registered model. The first that matches counts; a model
        without one is refused.
    artifact_roots : tuple of str
        Artifact locations that a server may open and promote from, beside its own.
    e0_high : float, "constant" or None
        Limit on the upper end of e0's interval, and of that of CV_c where there is one; "constant"
        is the loss of the best constant answer. With a number, the constant must be beaten too.
    inflation : float or None
        Limit on e0 - LOCO.
    tipping_cluster_error, tipping_split_rate : float or None
        The least error of the ids at which e0 may reach the limit `e0_high`.
    champion : {"not_worse", "better"} or None
        How the version must compare with the one that has `champion_alias`, beyond noise.
    champion_alias : str
    min_clusters, min_repeated_clusters : int or None
        The least number of clusters, and of clusters with two rows or more.
    refuse_findings : tuple of str
        Codes of the findings that refuse a version.
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
    pins: tuple[Pin, ...]
    artifact_roots: tuple[str, ...]
    e0_high: float | str | None
    inflation: float | None
    tipping_cluster_error: float | None
    tipping_split_rate: float | None
    champion: str | None
    champion_alias: str
    min_clusters: int | None
    min_repeated_clusters: int | None
    refuse_findings: tuple[str, ...]
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
        """SHA-256 of the policy's content; comments and the order of keys do not change it.

        The order of pins does, because the first one that matches counts.
        """
        text = json.dumps(self.to_dict(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    def applies_to(self, model: str) -> bool:
        """Whether a registered model is guarded."""
        return matches(model, self.models)

    def pin_for(self, model: str) -> Pin | None:
        """Return what must have been audited of a registered model; None if nothing is said."""
        return next((pin for pin in self.pins if matches(model, [pin.models])), None)

    def guards_alias(self, alias: str) -> bool:
        """Whether an alias is guarded, whatever its case."""
        return matches(alias, self.aliases)

    def guards_stage(self, stage: str) -> bool:
        """Whether a stage is guarded, whatever its case."""
        return matches(stage, self.stages)


def load_policy(policy: "Policy | str | PathLike[str] | None" = None) -> Policy:
    """Read a policy from a YAML file; None is the policy that comes with the package.

    What a file leaves out is as in the default policy. All its errors are reported at once.
    """
    if isinstance(policy, Policy):
        return policy
    basis = _parse(default_policy_text(), "the default policy")
    if policy is None:
        return _build(basis, {}, "the default policy", Path())
    if not isinstance(policy, (str, PathLike)):
        raise InputError(f"policy={policy!r} must be a Policy or the path of a YAML file.")
    path = Path(policy)
    try:
        if path.stat().st_size > LONGEST_FILE:
            raise InputError(f"policy={str(path)!r} is larger than {LONGEST_FILE} bytes.")
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise InputError(
            f"policy={str(path)!r} cannot be read in the folder {str(Path.cwd())!r}: {error}"
        ) from error
    name = f"policy {str(path)!r}"
    return _build(basis, _parse(text, name), name, path.parent)


def default_policy_text() -> str:
    """Return the file of the policy that comes with the package, with its comments."""
    return files("mlflow_b3.gating").joinpath("default_policy.yaml").read_text("utf-8")


def _parse(text: str, name: str) -> dict[str, Any]:
    import yaml

    try:
        values = yaml.load(text, Loader=_unique_keys(yaml))
    except (yaml.YAMLError, ValueError, TypeError, RecursionError) as error:
        # values that look like dates or numbers and are none, keys that are lists, endless nesting
        raise InputError(f"{name} is not YAML that can be read: {error}") from error
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
    "guard": ("aliases", "stages", "models", "artifact_roots"),
    "limits": (
        *("e0_high", "inflation", "tipping_cluster_error", "tipping_split_rate"),
        *("champion", "champion_alias"),
    ),
    "audit": ("min_clusters", "min_repeated_clusters", "refuse_findings"),
    "evidence": (
        *("signed", "trusted_keys", "max_age_days", "p0_sources", "refits"),
        *("preregistered", "max_audits"),
    ),
}


def _build(basis: Mapping[str, Any], given: Mapping[str, Any], name: str, folder: Path) -> Policy:
    problems: list[str] = []
    allowed = ("version", *SECTIONS, "pins", "inconclusive")
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
    pins, wrong_pins = read_pins(given.get("pins", basis["pins"]))
    checked = {key: CHECKS[key](value, folder) for key, value in values.items()}
    places = {key: f"{section}.{key}" for section, keys in SECTIONS.items() for key in keys}
    problems += [
        f"{places.get(key, key)}: {values[key]!r} {result.text}"
        for key, result in checked.items()
        if isinstance(result, Problem)
    ]
    problems += wrong_pins
    problems += [
        f"limits.{key}: {values[key]!r} needs limits.e0_high, the loss to reach."
        for key in ("tipping_cluster_error", "tipping_split_rate")
        if values[key] is not None and values["e0_high"] is None
    ]
    if problems:
        raise InputError.from_problems(name, problems)
    checked["pins"] = pins
    policy = Policy(**{field.name: checked[field.name] for field in fields(Policy)})
    if policy.champion is not None and not policy.guards_alias(policy.champion_alias):
        raise InputError(
            f"{name}: limits.champion compares with the alias {policy.champion_alias!r}, which anybody may "
            "move as long as guard.aliases does not name it; add it there."
        )
    return policy


def _unknown(prefix: str, given: Mapping[Any, Any], allowed: Sequence[str]) -> list[str]:
    return [
        f"{prefix}{key}: unknown key; {prefix.rstrip('.') or 'a policy'} has {', '.join(allowed)}."
        + closest(str(key), allowed)
        for key in given
        if key not in allowed
    ]
