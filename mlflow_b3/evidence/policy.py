"""The policy: what is guarded, what a model must show, and the same in words."""

import hashlib
import json
import math
import re
import sys
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from fnmatch import fnmatchcase
from importlib.resources import files
from os import PathLike
from pathlib import Path
from typing import Any

from mlflow_b3.auditing.report import AuditReport
from mlflow_b3.errors import InputError, closest
from mlflow_b3.evidence.document import key_id, read_public_key
from mlflow_b3.results import CODES, Result, number, percent

# --- The values that a policy may have: each is checked by itself, and what is wrong is said in words

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
        read = {key: _read_pin(key, given[key]) for key in PINNED if key in given}
        problems += [
            f"{place}.{key}: {given[key]!r} {result.text}"
            for key, result in read.items()
            if isinstance(result, Problem)
        ]
        names = {key: names for key, names in read.items() if isinstance(names, tuple)}
        pins.append(Pin(models=pattern, **names))
    return tuple(pins), problems


def _read_pin(key: str, value: Any) -> tuple[str, ...] | Problem:
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


# --- The policy: what is guarded, and what a model must show to be promoted

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

    Examples
    --------
    >>> from mlflow_b3.evidence.policy import load_policy
    >>> policy = load_policy()
    >>> policy.guards_alias("champion"), policy.signed, policy.max_age_days
    (True, True, 180.0)
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
    return files("mlflow_b3.evidence").joinpath("default_policy.yaml").read_text("utf-8")


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


# --- A policy in words: what it guards, and what it demands


def describe_policy(policy: Policy, environment_keys: int = 0) -> list[str]:
    """Return the sentences of a policy.

    Parameters
    ----------
    policy : Policy
    environment_keys : int
        How many keys the environment adds to those of the policy.
    """
    return [
        *_guard(policy),
        *_pins(policy),
        *_limits(policy),
        *_audit(policy),
        *_evidence(policy, environment_keys),
        "What the numbers leave open is "
        + ("refused." if policy.inconclusive == "refuse" else "allowed."),
    ]


def _guard(policy: Policy) -> Iterator[str]:
    guarded = [
        f"the {kind if len(names) == 1 else plural} {_listed(names)}"
        for kind, plural, names in (
            ("alias", "aliases", policy.aliases),
            ("stage", "stages", policy.stages),
        )
        if names
    ]
    models = "all models" if "*" in policy.models else f"the models {_listed(policy.models)}"
    if not guarded or not policy.models:
        yield "It guards nothing: no server refuses any alias or stage because of it."
    else:
        yield f"It guards {' and '.join(guarded)}, whatever their case, on {models}."
    if policy.artifact_roots:
        yield (
            "A server promotes models whose files are in its own artifact roots or in "
            f"{_listed(policy.artifact_roots, 'or')}."
        )


def _pins(policy: Policy) -> Iterator[str]:
    for pin in policy.pins:
        pinned = [_describe_pin(pin, key) for key in PINNED if getattr(pin, key) is not None]
        if pinned:
            yield f"An audit of the models {pin.models!r} must have {', '.join(pinned)}."
        else:
            yield (
                f"For the models {pin.models!r} nothing is pinned: whoever audits chooses the target, "
                "the clusters, the loss and the table."
            )
    if not policy.pins:
        yield (
            "It does not say what must be audited, so nothing passes: name target, cluster and loss of "
            "each model in pins. 'mlflow-b3 policy init models:/name/1' drafts that."
        )
    elif not any(pin.models == "*" for pin in policy.pins):
        yield "Other models are refused, because it does not say what must be audited of them."


def _describe_pin(pin: Pin, key: str) -> str:
    names = getattr(pin, key)
    if key != "data":
        return f"the {key} {_listed(names, 'or')}"
    tables = ["a table that the training run logged"] if TRAINING in names else []
    digests = [name for name in names if name != TRAINING]
    tables += [f"the table with the digest {_listed(digests, 'or')}"] if digests else []
    return " or ".join(tables)


def _audit(policy: Policy) -> Iterator[str]:
    least = [
        f"{count} {what}"
        for count, what in (
            (policy.min_clusters, "clusters"),
            (policy.min_repeated_clusters, "clusters with two rows or more"),
        )
        if count is not None
    ]
    if least:
        yield f"The table must have at least {' and '.join(least)}."
    if policy.refuse_findings:
        named = "; ".join(f"{code}, {CODES[code]}" for code in policy.refuse_findings)
        yield f"These findings refuse a version: {named}."
    else:
        yield "No finding refuses a version."


def _limits(policy: Policy) -> Iterator[str]:
    limit = policy.e0_high
    words = (
        "the loss of the best constant answer" if limit == CONSTANT else number(limit)  # type: ignore[arg-type]
    )
    if limit is not None:
        yield (
            f"The upper end of e0's 95 % interval must be at most {words}. So must that of CV_c, where an "
            "audit has it."
        )
    if limit not in (None, CONSTANT):
        yield "Both must also be at most the loss of the best constant answer."
    if policy.inflation is not None:
        yield f"e0 may exceed the score by the ids as they are by at most {number(policy.inflation)}."
    for name, least in (
        ("cluster error", policy.tipping_cluster_error),
        ("split rate", policy.tipping_split_rate),
    ):
        if least is not None:
            yield f"Up to a {name} of {percent(least)}, e0 must stay below {words}."
    if policy.champion is not None:
        rule = {
            "not_worse": "must not be worse, beyond noise, than",
            "better": "must be better, beyond noise, than",
        }[policy.champion]
        yield f"A version {rule} the one that has the alias {policy.champion_alias!r}."
    if limit is None and policy.inflation is None and policy.champion is None:
        yield "It sets no limit on the results: any audit will do."


def _evidence(policy: Policy, environment_keys: int) -> Iterator[str]:
    count = len(policy.trusted_keys) + environment_keys
    if policy.signed and not count:
        yield (
            "Only signed audits count, and no key is trusted yet, so nothing passes: name public keys in "
            "evidence.trusted_keys or in MLFLOW_B3_TRUSTED_KEYS."
        )
    elif policy.signed:
        ids = ", ".join(map(key_id, policy.trusted_keys))
        named = [f"the policy's ({ids})"] if ids else []
        named += [f"{environment_keys} of MLFLOW_B3_TRUSTED_KEYS"] if environment_keys else []
        yield f"Only audits signed with a trusted key count: {' and '.join(named)}."
    else:
        yield "Unsigned audits count: whoever may write to MLflow can make one up."
    if policy.max_age_days is not None:
        yield f"An audit counts for {policy.max_age_days:g} days."
    if policy.p0_sources is not None:
        yield f"The leaked share must come from {_listed(policy.p0_sources, 'or')}."
    if policy.refits is not None:
        yield f"The model must have been trained again by {_listed(policy.refits, 'or')}."
    if policy.preregistered:
        yield "The settings of the audit must have been committed before it ran."
    if policy.max_audits is not None:
        times = "once" if policy.max_audits == 1 else f"{policy.max_audits} times"
        yield f"A model may have been audited {times} at the most."


def _listed(names: Sequence[str], last: str = "and") -> str:
    quoted = [repr(name) for name in names]
    return quoted[0] if len(quoted) == 1 else f"{', '.join(quoted[:-1])} {last} {quoted[-1]}"


# --- The loss that a policy lets a model have

OF_CONSTANT = " of the best constant answer"


def is_known(value: float | None) -> bool:
    """Whether a value is a number; comparisons with NaN would all be false."""
    return value is not None and math.isfinite(value)


def limit_of(policy: Policy, report: AuditReport) -> float | None:
    """Return the loss that e0 and CV_c must stay below; None where it is not known."""
    if policy.e0_high == CONSTANT:
        return report.constant_loss
    return None if policy.e0_high is None else float(policy.e0_high)


def limits_of(policy: Policy, report: AuditReport) -> Iterator[tuple[bool, float | None, str]]:
    """Yield the losses that e0 and CV_c must stay below, each with its words.

    The first value says whether it is the best constant's beside a numeric limit: a limit that no
    useful model would miss must not replace the comparison with no model at all.
    """
    if policy.e0_high is None:
        return
    limit = limit_of(policy, report)
    yield False, limit, "" if limit is None else limit_words(policy, limit)
    if policy.e0_high != CONSTANT:
        constant = report.constant_loss
        yield True, constant, "" if constant is None else f"{number(constant)}{OF_CONSTANT}"


def limit_words(policy: Policy, limit: float) -> str:
    """Return the limit with where it comes from."""
    return number(limit) + (OF_CONSTANT if policy.e0_high == CONSTANT else "")


def unknown_limit(report: AuditReport) -> str:
    """Return why there is nothing to hold the loss against."""
    return f"the loss of the best constant answer is not known for the loss {report.settings.loss}"
