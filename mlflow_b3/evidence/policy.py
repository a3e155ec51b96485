"""Policies: what is guarded and what a model must show. Reads them and describes them in words."""

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

# --- The policy

CONSTANT = "constant"
OF_CONSTANT = " of the best constant prediction"
#: The value of a pin's `data` that requires a table logged by the training run.
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
        Allowed columns and losses; None allows any.
    data : tuple of str or None
        Digests of allowed tables, or "training" for a table that the training run logged.
    """

    models: str
    target: tuple[str, ...] | None = None
    cluster: tuple[str, ...] | None = None
    loss: tuple[str, ...] | None = None
    data: tuple[str, ...] | None = None


def folded(text: str) -> str:
    """Return text without case, accents and look-alike letters.

    The databases of some MLflow servers treat `Chámpion` as equal to the alias `champion`.
    """
    parts = unicodedata.normalize("NFKD", unicodedata.normalize("NFKD", text).casefold())
    return "".join(part for part in parts if not unicodedata.combining(part))


def matches(name: str, patterns: Iterable[str]) -> bool:
    """Return whether a name matches a pattern, ignoring case and accents."""
    return any(fnmatchcase(folded(name), folded(pattern)) for pattern in patterns)


@dataclass(frozen=True, kw_only=True)
class Policy(Result):
    """What a version must show before a guarded alias or stage may point to it.

    Attributes
    ----------
    aliases, stages, models : tuple of str
        Patterns of the guarded aliases and stages, and of the registered models they apply to.
    pins : tuple of Pin
        What must have been audited, by registered model. The first match counts; a model without a
        pin is refused.
    artifact_roots : tuple of str
        Artifact locations that a server may open and promote from, in addition to its own.
    e0_high : float, "constant" or None
        Limit on the upper end of the interval of e0, and of CV_c if the audit has it. "constant" is
        the loss of the best constant prediction. With a number, the model must also beat that
        prediction.
    score_low : float or None
        For audits of a score of which more is better, such as the AUC: limit on the lower end of the
        interval of e0. A number in `e0_high` does not apply to them.
    inflation : float or None
        Limit on e0 - LOCO; of such a score, on LOCO - e0.
    tipping_cluster_error, tipping_split_rate : float or None
        The smallest error of the ids at which e0 may reach the limit `e0_high`, or `score_low`.
    champion : {"not_worse", "better"} or None
        How the version must compare, beyond noise, with the version that has `champion_alias`.
    champion_alias : str
    min_clusters, min_repeated_clusters : int or None
        Minimum number of clusters, and of clusters with at least two rows.
    refuse_findings : tuple of str
        Codes of findings that refuse a version.
    signed : bool
        Only evidence signed with a trusted key counts.
    trusted_keys : tuple of str
        Public keys: "ed25519:" followed by base64.
    max_age_days : float or None
    p0_sources, refits : tuple of str or None
        Accepted sources of the leaked share, and accepted routes of refitting; None accepts any.
    preregistered : bool
        The settings of the audit must have been committed before it ran.
    max_audits : int or None
        Maximum number of audits of one model that count: if signatures are required the signed ones,
        otherwise all, failed ones included.
    inconclusive : {"refuse", "allow"}
        What to do if the numbers do not decide.

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
    score_low: float | None = None
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
        """SHA-256 of the policy's content.

        Comments and the order of keys do not change it. The order of pins does, because the first
        match counts.
        """
        values = self.to_dict()
        if self.score_low is None:  # policies of earlier versions keep their hash
            del values["score_low"]
        text = json.dumps(values, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    def applies_to(self, model: str) -> bool:
        """Whether a registered model is guarded."""
        return matches(model, self.models)

    def pin_for(self, model: str) -> Pin | None:
        """Return the pin of a registered model, or None."""
        return next((pin for pin in self.pins if matches(model, [pin.models])), None)

    def guards_alias(self, alias: str) -> bool:
        """Whether an alias is guarded, ignoring case."""
        return matches(alias, self.aliases)

    def guards_stage(self, stage: str) -> bool:
        """Whether a stage is guarded, ignoring case."""
        return matches(stage, self.stages)


# --- The policy file: sections, keys and allowed values

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
class _FileContext:
    """Context of the checks: the folder of the file, and the pins read so far."""

    folder: Path
    patterns: list[str]


def _location(text: str, info: ValidationInfo) -> str:
    # a name without a scheme is a folder; relative ones start at the policy's folder
    reading: Any = info.context
    return text if ":" in text else str((reading.folder / text).absolute())


def _public_key(text: str, info: ValidationInfo) -> str:
    reading: Any = info.context
    try:
        return read_public_key(text, reading.folder)
    except InputError as error:
        raise ValueError(f"has a key that cannot be read: {error}") from None


def _finding_code(code: str) -> str:
    if code not in CODES:
        raise ValueError(
            f"has {code!r}, which is not a finding code; codes are B301 to {max(CODES)}."
            + closest(code, CODES)
        )
    return code


def _require_reachable(pattern: str, info: ValidationInfo) -> str:
    """Refuse a pattern that can never apply because an earlier one matches all of its models."""
    reading: Any = info.context
    earlier = [other for other in reading.patterns if matches(pattern, [other])]
    reading.patterns.append(pattern)
    if earlier:
        raise ValueError(
            f"{earlier[0]!r} comes before it and matches all of its models, and the first match "
            "counts; put the narrower pattern first."
        )
    return pattern


def _as_list(value: Any) -> Any:
    return value if isinstance(value, list) else [value]


# A description completes the sentence "must be …" of an error. Only lists are allowed: a set has no
# order, and the order is part of a policy's hash.
#: Text that is not blank, by the characters that `str.strip` removes.
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
        description="a string or a list of strings; omit the key to pin nothing",
    ),
]


class _Section(BaseModel):
    model_config = ConfigDict(
        strict=True, extra="forbid", allow_inf_nan=False, hide_input_in_errors=True
    )


class _Guard(_Section):
    aliases: Patterns
    stages: Patterns
    models: Patterns = Field(
        min_length=1, description='a list of patterns such as ["clinic*"]; ["*"] is all models'
    )
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
        description=f"{TRAINING}, or the 36 hexadecimal digits in the tag b3.data_digest of an audit",
    )


class _Limits(_Section):
    e0_high: float | Literal["constant"] | None = Field(description=f"a number, {CONSTANT} or null")
    score_low: float | None = Field(None, description="a number or null")
    inflation: Number
    tipping_cluster_error: Share
    tipping_split_rate: Share
    champion: Literal["not_worse", "better"] | None = Field(
        description="not_worse or better or null"
    )
    champion_alias: str = Field(min_length=1, description="an alias")

    @field_validator("tipping_cluster_error", "tipping_split_rate")
    @classmethod
    def _require_e0_high(cls, value: float | None, info: ValidationInfo) -> float | None:
        limits = info.data.get("e0_high", CONSTANT), info.data.get("score_low")
        if value is not None and limits == (None, None):
            raise ValueError("needs limits.e0_high, the loss to reach.")
        return value


class _Audit(_Section):
    min_clusters: Count
    min_repeated_clusters: Count
    refuse_findings: list[Annotated[str, AfterValidator(_finding_code)]] = Field(
        description="a list of findings' codes such as [B311, B343]; [] refuses none"
    )


class _Evidence(_Section):
    signed: Flag
    # error messages must not repeat a misplaced private key
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
    # a number, because Literal[1] accepts `true`
    version: float = Field(ge=1, le=1, description="1, the version that this package reads")
    guard: _Guard = _section("guard")
    limits: _Limits = _section("limits")
    audit: _Audit = _section("audit")
    evidence: _Evidence = _section("evidence")
    pins: dict[
        Annotated[Text, AfterValidator(_require_reachable)],
        _PinTerms,
    ] = Field(
        description="a mapping of patterns of models to what is pinned: "
        '"clinic*": {target: disease, cluster: patient_id}'
    )
    inconclusive: Literal["refuse", "allow"] = Field(description="refuse or allow")

    @field_validator("limits")
    @classmethod
    def _require_guarded_champion(cls, value: _Limits, info: ValidationInfo) -> _Limits:
        guard, alias = info.data.get("guard"), value.champion_alias
        if guard is not None and value.champion is not None and not matches(alias, guard.aliases):
            raise ValueError(
                f"champion compares with the alias {alias!r}, which anybody can move because it is not "
                "in guard.aliases; add it there."
            )
        return value


# --- Reading a policy file

LONGEST_FILE = 100_000


def load_policy(policy: "Policy | str | PathLike[str] | None" = None) -> Policy:
    """Read a policy from a YAML file; None is the default policy of the package.

    Keys that the file omits have the values of the default policy. All errors in the file are
    reported at once.
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
    """Return the YAML text of the default policy, with its comments."""
    return files("mlflow_b3.evidence").joinpath("default_policy.yaml").read_text("utf-8")


def _parse(text: str, name: str) -> dict[str, Any]:
    import yaml

    try:
        values = yaml.load(text, Loader=_strict_loader(yaml))
    except yaml.MarkedYAMLError as error:
        # the line itself is not shown: it may hold a key
        mark = error.problem_mark
        where = f" in line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise InputError(f"{name} is not valid YAML: {error.problem}{where}.") from None
    except (yaml.YAMLError, ValueError, TypeError, RecursionError) as error:
        # malformed dates and numbers, keys that are lists, excessive nesting
        raise InputError(f"{name} is not valid YAML: {error}") from None
    if values is None:
        values = {}
    if not isinstance(values, dict):
        raise InputError(f"{name} must be a mapping of keys to values.")
    return values


def _strict_loader(yaml: Any) -> Any:
    """Return a loader that rejects duplicate keys, of which YAML would keep the last."""

    class Loader(yaml.SafeLoader):  # type: ignore[misc]
        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            seen = set()
            for key, _ in node.value:
                if key.value in seen:
                    mark = key.start_mark
                    raise yaml.constructor.ConstructorError(
                        None, None, f"the key {key.value!r} occurs twice", mark
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
        file = _File.model_validate(values, context=_FileContext(folder=folder, patterns=[]))
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


# --- Errors of a policy file, in words


def _problems(error: ValidationError, values: Mapping[str, Any]) -> list[str]:
    found: dict[tuple[str, bool], str] = {}
    for wrong in error.errors(include_url=False):
        loc = wrong["loc"]
        unknown = wrong["type"] in ("extra_forbidden", "invalid_key")
        pattern = loc[0] == "pins" and loc[2:] == ("[key]",) and not unknown
        # deeper parts of the path are items of a list, or one of the types that a key may have
        path = loc[: 2 if loc[0] in SECTIONS or pattern else 3 if loc[0] == "pins" else 1]
        place = ".".join(map(str, path))
        if unknown:
            text = _unknown_key(path)
        elif pattern:
            text = _message(wrong, "a quoted pattern of registered models", "")
        else:
            text = _wrong_value(wrong, path, values)
        found.setdefault((place, pattern), f"{place}: {text}")
    return list(found.values())


def _parent(path: Sequence[int | str]) -> tuple[str, type[_Section]]:
    """Return the section that the last key of a path belongs to."""
    if len(path) == 1:
        return "a policy", _File
    return ("a pin", _PinTerms) if path[0] == "pins" else (str(path[0]), _MODELS[str(path[0])])


def _unknown_key(path: Sequence[int | str]) -> str:
    owner, model = _parent(path)
    keys = tuple(model.model_fields)
    return f"unknown key; {owner} has {', '.join(keys)}.{closest(str(path[-1]), keys)}"


def _wrong_value(wrong: Any, path: Sequence[int | str], values: Any) -> str:
    for part in path:
        # the path has every key as text
        values = values.get(part, wrong["input"]) if isinstance(values, Mapping) else wrong["input"]
    if path[0] == "pins" and len(path) == 2:
        terms = f"a mapping of {', '.join(PINNED)}; {{}} pins nothing"
        return _message(wrong, terms, _show_value(values))
    field = _parent(path)[1].model_fields[str(path[-1])]
    return _message(wrong, field.description or "", _show_value(values) if field.repr else "")


def _message(wrong: Any, allowed: str, shown: str) -> str:
    if wrong["type"] == "value_error":
        return f"{shown} {wrong['ctx']['error']}".lstrip()
    hint = ""
    with suppress(ValueError):
        if wrong["type"] == "float_type" and isinstance(wrong["input"], str):
            hint = f" YAML reads this as a string; write {float(wrong['input'])!r}."
    return f"{shown} must be {allowed}.{hint}".lstrip()


_shortener = reprlib.Repr()
_shortener.maxlevel = 3
_shortener.maxstring = _shortener.maxother = 80


def _show_value(value: Any) -> str:
    """Return a value as in YAML, shortened: nested aliases make a small file expand without end."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    try:
        return shorten(_shortener.repr(value), LONGEST_LINE)
    except ValueError:  # a number with more digits than Python prints
        return "the number"


# --- A policy in words


def odd_rules(policy: Policy) -> list[str]:
    """Return a warning for each rule that is allowed but hardly meant."""
    found = []
    if not policy.aliases:
        found.append("guard.aliases is empty, so a server lets any version have any alias.")
    for name, limit in (("e0_high", policy.e0_high), ("inflation", policy.inflation)):
        if isinstance(limit, float) and limit < 0:
            found.append(
                f"limits.{name} is negative ({number(limit)}), which hardly any audit can be below: no loss "
                "of this package is negative."
            )
    return found


def describe_policy(policy: Policy, environment_keys: int = 0) -> list[str]:
    """Describe a policy, one sentence for each rule.

    Parameters
    ----------
    policy : Policy
    environment_keys : int
        Number of keys that the environment adds to those of the policy.
    """
    return [
        *_describe_guard(policy),
        *(f"Warning: {text}" for text in odd_rules(policy)),
        *_describe_pins(policy),
        *_describe_limits(policy),
        *_describe_audit(policy),
        *_describe_evidence(policy, environment_keys),
        "A version is "
        + ("refused" if policy.inconclusive == "refuse" else "allowed")
        + " if the numbers do not decide.",
    ]


def _describe_guard(policy: Policy) -> Iterator[str]:
    guarded = [
        f"the {kind if len(names) == 1 else plural} {_join_names(names)}"
        for kind, plural, names in (
            ("alias", "aliases", policy.aliases),
            ("stage", "stages", policy.stages),
        )
        if names
    ]
    models = "all models" if "*" in policy.models else f"the models {_join_names(policy.models)}"
    if not guarded or not policy.models:
        yield "It guards nothing: a server with this policy refuses no alias or stage."
    else:
        yield f"It guards {' and '.join(guarded)}, ignoring case, on {models}."
    if policy.artifact_roots:
        yield (
            "A server promotes models with files in its own artifact roots or in "
            f"{_join_names(policy.artifact_roots, 'or')}."
        )


def _describe_pins(policy: Policy) -> Iterator[str]:
    for pin in policy.pins:
        pinned = [_describe_pin(pin, key) for key in PINNED if getattr(pin, key) is not None]
        if pinned:
            yield f"An audit of the models {pin.models!r} must have {', '.join(pinned)}."
        else:
            yield (
                f"Nothing is pinned for the models {pin.models!r}: the person who runs the audit "
                "chooses the target, the clusters, the loss and the table."
            )
    if not policy.pins:
        yield (
            "It does not say what must be audited, so nothing passes: add target, cluster and loss of "
            "each model to pins. 'mlflow-b3 policy init models:/name/1' writes a draft."
        )
    elif not any(pin.models == "*" for pin in policy.pins):
        yield "Models without a pin are refused."


def _describe_pin(pin: Pin, key: str) -> str:
    names = getattr(pin, key)
    if key != "data":
        return f"the {key} {_join_names(names, 'or')}"
    tables = ["a table that the training run logged"] if TRAINING in names else []
    digests = [name for name in names if name != TRAINING]
    tables += [f"the table with the digest {_join_names(digests, 'or')}"] if digests else []
    return " or ".join(tables)


def _describe_audit(policy: Policy) -> Iterator[str]:
    least = [
        f"{count} {what}"
        for count, what in (
            (policy.min_clusters, "clusters"),
            (policy.min_repeated_clusters, "clusters with at least two rows"),
        )
        if count is not None
    ]
    if least:
        yield f"The table must have at least {' and at least '.join(least)}."
    if policy.refuse_findings:
        named = "; ".join(f"{code}, {CODES[code]}" for code in policy.refuse_findings)
        yield f"A version with one of these findings is refused: {named}."
    else:
        yield "No version is refused because of a finding."


def _describe_limits(policy: Policy) -> Iterator[str]:
    limit = policy.e0_high
    words = (
        f"the loss{OF_CONSTANT}" if limit == CONSTANT else number(limit)  # type: ignore[arg-type]
    )
    if limit is not None:
        yield (
            f"The upper end of the 95% interval of e0 must be at most {words}. The same limit applies "
            "to CV_c if the audit has it."
        )
    if limit not in (None, CONSTANT):
        yield f"Both must also be at most the loss{OF_CONSTANT}."
    if policy.score_low is not None:
        yield (
            "Of a score of which more is better, the lower end of the 95% interval of e0 must be at least "
            f"{number(policy.score_low)}; an audit of a loss does not pass."
        )
    if policy.inflation is not None:
        yield f"e0 may exceed LOCO by at most {number(policy.inflation)}."
    for name, least in (
        ("cluster error", policy.tipping_cluster_error),
        ("split rate", policy.tipping_split_rate),
    ):
        if least is not None:
            side = f"below {words}" if limit is not None else f"above {number(policy.score_low)}"
            yield f"e0 must stay {side} up to a {name} of {percent(least)}."
    if policy.champion is not None:
        rule = {
            "not_worse": "must not be worse, beyond noise, than",
            "better": "must be better, beyond noise, than",
        }[policy.champion]
        yield f"A version {rule} the version with the alias {policy.champion_alias!r}."
    limits = (limit, policy.score_low, policy.inflation, policy.champion)
    if all(value is None for value in limits):
        yield "It sets no limit on the results: any audit passes."


def _describe_evidence(policy: Policy, environment_keys: int) -> Iterator[str]:
    count = len(policy.trusted_keys) + environment_keys
    if policy.signed and not count:
        yield (
            "Only signed audits count, and no key is trusted yet, so nothing passes: add public keys to "
            "evidence.trusted_keys or to MLFLOW_B3_TRUSTED_KEYS."
        )
    elif policy.signed:
        ids = ", ".join(map(key_id, policy.trusted_keys))
        named = [f"{ids} of the policy"] if ids else []
        named += [f"{environment_keys} of MLFLOW_B3_TRUSTED_KEYS"] if environment_keys else []
        yield f"Only audits signed with a trusted key count: {' and '.join(named)}."
    else:
        yield "Unsigned audits count: anyone who can write to MLflow can forge one."
    if policy.max_age_days is not None:
        yield f"An audit is valid for {policy.max_age_days:g} days."
    if policy.p0_sources is not None:
        yield f"The leaked share must come from {_join_names(policy.p0_sources, 'or')}."
    if policy.refits is not None:
        yield f"The model must have been refitted by {_join_names(policy.refits, 'or')}."
    if policy.preregistered:
        yield "The settings of the audit must have been committed before it ran."
    if policy.max_audits is not None and policy.signed:
        several = "" if policy.max_audits == 1 else "s"
        yield f"A model may have at most {policy.max_audits} signed audit{several}; others do not count."
    elif policy.max_audits is not None:
        times = "once" if policy.max_audits == 1 else f"{policy.max_audits} times"
        yield f"A model may have been audited at most {times}."


def _join_names(names: Sequence[str], last: str = "and") -> str:
    quoted = [repr(name) for name in names]
    return quoted[0] if len(quoted) == 1 else f"{', '.join(quoted[:-1])} {last} {quoted[-1]}"


# --- Limits on the loss


def is_known(value: float | None) -> bool:
    """Whether a value is a finite number; comparisons with NaN are always false."""
    return value is not None and math.isfinite(value)


def limit_of(policy: Policy, report: AuditReport) -> float | None:
    """Return the loss that e0 and CV_c must not exceed; None if it is unknown.

    For a score of which more is better, the score that e0 must not fall below.
    """
    if report.subject.greater_is_better and policy.score_low is not None:
        return policy.score_low
    if policy.e0_high == CONSTANT:
        return report.constant_loss
    if policy.e0_high is None or report.subject.greater_is_better:
        return None
    return float(policy.e0_high)


def limits_of(policy: Policy, report: AuditReport) -> Iterator[tuple[bool, float | None, str]]:
    """Yield each limit on e0 and CV_c: whether it is the second one, its value, and its text.

    With a numeric limit, the loss of the best constant prediction is a second limit. Otherwise a
    generous number would let a model pass that is no better than a constant prediction.
    """
    if report.subject.greater_is_better:
        yield from _score_limits(policy, report)
        return
    if policy.e0_high is None:
        return
    limit = limit_of(policy, report)
    yield False, limit, "" if limit is None else limit_words(policy, limit)
    if policy.e0_high != CONSTANT:
        constant = report.constant_loss
        yield True, constant, "" if constant is None else f"{number(constant)}{OF_CONSTANT}"


def _score_limits(policy: Policy, report: AuditReport) -> Iterator[tuple[bool, float | None, str]]:
    constant = report.constant_loss
    words = "" if constant is None else f"{number(constant)}, that of the best constant prediction"
    if policy.score_low is not None:
        yield False, policy.score_low, number(policy.score_low)
    if policy.e0_high is not None or policy.score_low is not None:
        yield True, constant, words


def limit_words(policy: Policy, limit: float) -> str:
    """Return the limit and its origin in words."""
    return number(limit) + (OF_CONSTANT if policy.e0_high == CONSTANT else "")


def unknown_limit(report: AuditReport) -> str:
    """Return why there is no limit to compare with."""
    return f"the loss{OF_CONSTANT} is unknown for the loss {report.subject.loss}"
