"""The policy: what is guarded, what a model must show, and the same in words."""

import hashlib
import json
import math
import reprlib
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from importlib.resources import files
from os import PathLike
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
)

from mlflow_b3.auditing.report import AuditReport
from mlflow_b3.errors import InputError, closest
from mlflow_b3.evidence.document import key_id, read_public_key
from mlflow_b3.reporting.phrases import LONGEST_LINE, shorten
from mlflow_b3.results import CODES, Result, number, percent

# --- The policy: what is guarded, and what a model must show to be promoted

CONSTANT = "constant"
#: The value of a pin's `data` that asks for a table which the training run logged.
TRAINING = "training"
PINNED = ("target", "cluster", "loss", "data")


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


# --- The file of a policy: the keys of each section, and the values that they may have

Source = Literal[
    "p0",
    "cluster_error",
    "split_rate",
    "mixture",
    "resolved_rows",
    "partition_samples",
    "linkage_quality",
    "match_probability",
    "match_column",
]
Route = Literal["clone", "parameters", "trainer", "fresh", "hot-start", "last-layer", "head"]
SOURCES: tuple[str, ...] = get_args(Source)


@dataclass(frozen=True, kw_only=True)
class _Reading:
    """What the checks of a file need beside its values: its folder, and the pins before a pin."""

    folder: Path
    patterns: list[str]


def _location(text: str, info: ValidationInfo) -> str:
    # a name without a scheme is a folder, beside the policy if it is not absolute
    reading: Any = info.context
    return text if ":" in text else str((reading.folder / text).absolute())


def _public_key(text: str, info: ValidationInfo) -> str:
    reading: Any = info.context
    try:
        return read_public_key(text, reading.folder)
    except InputError as error:
        raise ValueError(f"has a key that cannot be read: {error}") from None


def _finding(code: str) -> str:
    if code not in CODES:
        raise ValueError(
            f"has {code!r}, which is no code of a finding; they are B301 to {max(CODES)}."
            + closest(code, CODES)
        )
    return code


def _unmatched(pattern: str, info: ValidationInfo) -> str:
    """Refuse a pattern that would never count, because an earlier one matches all of its models."""
    reading: Any = info.context
    earlier = [other for other in reading.patterns if matches(pattern, [other])]
    reading.patterns.append(pattern)
    if earlier:
        raise ValueError(
            f"{earlier[0]!r}, which stands before it, matches all of its models, and the first match "
            "counts; put the narrower pattern first."
        )
    return pattern


def _as_list(value: Any) -> Any:
    return value if isinstance(value, list) else [value]


# A description completes the sentence "must be …" of an error. Lists are strict: a set has no order,
# and the order is part of a policy's hash.
#: A text that is not blank, by the characters that `str.strip` takes away.
Text = Annotated[str, Field(pattern=r"[^\s\x1c-\x1f]")]
Patterns = Annotated[
    list[Text], Field(description='a list of patterns such as ["champion", "prod-*"]')
]
Number = Annotated[float | None, Field(description="a number or null")]
Share = Annotated[
    Annotated[float, Field(ge=0, le=1)] | None, Field(description="a share from 0 to 1, or null")
]
Count = Annotated[
    Annotated[int, Field(ge=1)] | None, Field(description="a whole number from 1, or null")
]
Flag = Annotated[bool, Field(description="true or false")]
Pinned = Annotated[
    list[Annotated[str, Field(min_length=1)]],
    BeforeValidator(_as_list),
    Field(
        min_length=1,
        description="a text or a list of texts; leave the key out to pin nothing",
    ),
]


class _Section(BaseModel):
    model_config = ConfigDict(
        strict=True, extra="forbid", allow_inf_nan=False, hide_input_in_errors=True
    )


class _Guard(_Section):
    aliases: Patterns
    stages: Patterns
    models: Patterns
    artifact_roots: list[Annotated[Text, AfterValidator(_location)]] = Field(
        description='a list of artifact locations such as ["s3://bucket/models"]'
    )


class _PinTerms(_Section):
    target: Pinned = []
    cluster: Pinned = []
    loss: Pinned = []
    data: Annotated[
        list[Annotated[str, Field(pattern=f"^({TRAINING}|[0-9a-f]{{36}})$")]],
        BeforeValidator(_as_list),
    ] = Field(
        [],
        min_length=1,
        description=f"{TRAINING}, or the 36 hexadecimal digits that the tag b3.data_digest of an audit "
        "has",
    )


class _Limits(_Section):
    e0_high: float | Literal["constant"] | None = Field(description=f"a number, {CONSTANT} or null")
    inflation: Number
    tipping_cluster_error: Share
    tipping_split_rate: Share
    champion: Literal["not_worse", "better"] | None = Field(
        description="not_worse or better or null"
    )
    champion_alias: str = Field(min_length=1, description="an alias")

    @field_validator("tipping_cluster_error", "tipping_split_rate")
    @classmethod
    def _needs_a_loss(cls, value: float | None, info: ValidationInfo) -> float | None:
        if value is not None and info.data.get("e0_high", CONSTANT) is None:
            raise ValueError("needs limits.e0_high, the loss to reach.")
        return value


class _Audit(_Section):
    min_clusters: Count
    min_repeated_clusters: Count
    refuse_findings: list[Annotated[str, AfterValidator(_finding)]] = Field(
        description="a list of findings' codes such as [B311, B343]; [] refuses none"
    )


class _Evidence(_Section):
    signed: Flag
    # a private key in the wrong place must not be repeated
    trusted_keys: list[Annotated[str, AfterValidator(_public_key)]] = Field(
        repr=False, description="a list of public keys or of .pub files"
    )
    max_age_days: Annotated[float, Field(gt=0)] | None = Field(
        description="a number of days above 0, or null"
    )
    p0_sources: Annotated[list[Source], Field(min_length=1)] | None = Field(
        description=f"null or a list of some of {', '.join(SOURCES)}"
    )
    refits: Annotated[list[Route], Field(min_length=1)] | None = Field(
        description=f"null or a list of some of {', '.join(get_args(Route))}"
    )
    preregistered: Flag
    max_audits: Count


_MODELS: dict[str, type[_Section]] = {
    "guard": _Guard,
    "limits": _Limits,
    "audit": _Audit,
    "evidence": _Evidence,
}
#: The sections of a file, and the keys of each.
SECTIONS = {name: tuple(model.model_fields) for name, model in _MODELS.items()}


def _section(name: str) -> Any:
    return Field(repr=False, description=f"a mapping of {', '.join(SECTIONS[name])}")


class _File(_Section):
    # a number, because Literal[1] takes `true` for 1
    version: float = Field(ge=1, le=1, description="1, the version that this package reads")
    guard: _Guard = _section("guard")
    limits: _Limits = _section("limits")
    audit: _Audit = _section("audit")
    evidence: _Evidence = _section("evidence")
    pins: dict[
        Annotated[Text, AfterValidator(_unmatched)],
        _PinTerms,
    ] = Field(
        description="a mapping of patterns of models to what is pinned: "
        '"clinic*": {target: disease, cluster: patient_id}'
    )
    inconclusive: Literal["refuse", "allow"] = Field(description="refuse or allow")

    @field_validator("limits")
    @classmethod
    def _guards_the_champion(cls, value: _Limits, info: ValidationInfo) -> _Limits:
        guard, alias = info.data.get("guard"), value.champion_alias
        if guard is not None and value.champion is not None and not matches(alias, guard.aliases):
            raise ValueError(
                f"champion compares with the alias {alias!r}, which anybody may move as long as "
                "guard.aliases does not name it; add it there."
            )
        return value


# --- From a file to the policy

LONGEST_FILE = 100_000


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
    except yaml.MarkedYAMLError as error:
        # without the line itself, which may hold a key
        mark = error.problem_mark
        where = f" in line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise InputError(f"{name} is not YAML that can be read: {error.problem}{where}.") from None
    except (yaml.YAMLError, ValueError, TypeError, RecursionError) as error:
        # values that look like dates or numbers and are none, keys that are lists, endless nesting
        raise InputError(f"{name} is not YAML that can be read: {error}") from None
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


def _build(basis: Mapping[str, Any], given: Mapping[str, Any], name: str, folder: Path) -> Policy:
    values = {**basis, **given}
    for section in SECTIONS:
        if isinstance(values[section], dict):
            values[section] = {**basis[section], **values[section]}
    try:
        file = _File.model_validate(values, context=_Reading(folder=folder, patterns=[]))
    except ValidationError as error:
        problems = _problems(error, values)
    else:
        read: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value
            for section in SECTIONS
            for key, value in getattr(file, section)
        }
        pins = [
            Pin(models=models, **{key: tuple(names) for key, names in terms if names})
            for models, terms in file.pins.items()
        ]
        return Policy(
            pins=tuple(pins),
            inconclusive=file.inconclusive,
            **read,
        )
    raise InputError.from_problems(name, problems)


# --- What is wrong with a file, in words


def _problems(error: ValidationError, values: Mapping[str, Any]) -> list[str]:
    found: dict[tuple[str, bool], str] = {}
    for wrong in error.errors(include_url=False):
        loc = wrong["loc"]
        unknown = wrong["type"] in ("extra_forbidden", "invalid_key")
        pattern = loc[0] == "pins" and loc[2:] == ("[key]",) and not unknown
        # what is beneath a key is an item of its list, or one kind of value that it may have
        path = loc[: 2 if loc[0] in SECTIONS or pattern else 3 if loc[0] == "pins" else 1]
        place = ".".join(map(str, path))
        if unknown:
            text = _unknown_key(path)
        elif pattern:
            text = _message(wrong, "a pattern of registered models, in quotes", "")
        else:
            text = _wrong_value(wrong, path, values)
        found.setdefault((place, pattern), f"{place}: {text}")
    return list(found.values())


def _parent(path: Sequence[int | str]) -> tuple[str, type[_Section]]:
    """Return what has the last key of a path."""
    if len(path) == 1:
        return "a policy", _File
    return ("a pin", _PinTerms) if path[0] == "pins" else (str(path[0]), _MODELS[str(path[0])])


def _unknown_key(path: Sequence[int | str]) -> str:
    owner, model = _parent(path)
    keys = tuple(model.model_fields)
    return f"unknown key; {owner} has {', '.join(keys)}.{closest(str(path[-1]), keys)}"


def _wrong_value(wrong: Any, path: Sequence[int | str], values: Any) -> str:
    for part in path:
        # a key that is no text is in the path as a text
        values = values.get(part, wrong["input"]) if isinstance(values, Mapping) else wrong["input"]
    if path[0] == "pins" and len(path) == 2:
        terms = f"a mapping of {', '.join(PINNED)}; {{}} pins nothing"
        return _message(wrong, terms, _shown(values))
    field = _parent(path)[1].model_fields[str(path[-1])]
    return _message(wrong, field.description or "", _shown(values) if field.repr else "")


def _message(wrong: Any, allowed: str, shown: str) -> str:
    if wrong["type"] == "value_error":
        return f"{shown} {wrong['ctx']['error']}".lstrip()
    hint = ""
    with suppress(ValueError):
        if wrong["type"] == "float_type" and isinstance(wrong["input"], str):
            hint = f" YAML reads this as a text; write {float(wrong['input'])!r}."
    return f"{shown} must be {allowed}.{hint}".lstrip()


_short = reprlib.Repr()
_short.maxlevel = 3
_short.maxstring = _short.maxother = 80


def _shown(value: Any) -> str:
    """Return a value as YAML has it, shortened: nested aliases can make a small file endless."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    try:
        return shorten(_short.repr(value), LONGEST_LINE)
    except ValueError:  # a number of more digits than Python writes
        return "the number"


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
            f"The upper end of e0's 95% interval must be at most {words}. So must that of CV_c, where an "
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
    return f"the loss of the best constant answer is not known for the loss {report.subject.loss}"
