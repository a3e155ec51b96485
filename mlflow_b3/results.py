"""Results as frozen dataclasses that serialise to JSON; coded findings; numbers in words."""

import dataclasses
import json
import types
import typing
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, Self

import numpy as np

# --- Results: frozen dataclasses of plain values that serialise to JSON

#: Metadata of a field that grows with the table. It is stored in a file of its own.
KEPT_APART = {"kept_apart": True}


class Result:
    """Base of the result dataclasses: `to_dict`, `from_dict` and `to_json`."""

    def to_dict(self) -> dict[str, Any]:
        """Return the result as dictionaries, lists, strings, numbers, booleans and None."""
        fields = dataclasses.fields(self)  # type: ignore[arg-type]
        return {
            field.name: _plain(getattr(self, field.name))
            for field in fields
            if not field.metadata.get("kept_apart")
        }

    def to_json(self, indent: int | None = 2) -> str:
        """Return strict JSON. A number that is not finite raises an error."""
        return json.dumps(self.to_dict(), indent=indent, allow_nan=False, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Build a result from the output of `to_json`."""
        return cls.from_dict(json.loads(text, parse_constant=_refuse))

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """Build a result from the output of `to_dict`. Unknown keys raise an error."""
        if not isinstance(values, dict):
            raise TypeError(f"{cls.__name__} is a dictionary, not {values!r}.")
        hints = cls._field_types()
        names = {field.name for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
        unknown = sorted(set(values) - names)
        if unknown:
            raise TypeError(f"{cls.__name__} has no fields {unknown}; it has {sorted(names)}.")
        return cls(**{name: _typed(hints[name], value, name) for name, value in values.items()})

    @classmethod
    def _field_types(cls) -> dict[str, Any]:
        """Return the types of the fields."""
        return typing.get_type_hints(cls)


def _plain(value: Any) -> Any:
    if isinstance(value, Result):
        return value.to_dict()
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    return value


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not a number.")


def _typed(hint: Any, value: Any, name: str) -> Any:
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        if value is None:
            return None
        *others, last = [option for option in typing.get_args(hint) if option is not type(None)]
        for option in others:
            with suppress(TypeError):
                return _typed(option, value, name)
        return _typed(last, value, name)
    if origin is tuple:
        if not isinstance(value, (list, tuple)):
            raise TypeError(f"{name} is a list, not {value!r}.")
        items = typing.get_args(hint)
        if len(items) == 2 and items[1] is Ellipsis:
            return tuple(_typed(items[0], item, name) for item in value)
        pairs = zip(items, value, strict=True)
        return tuple(_typed(item_hint, item, name) for item_hint, item in pairs)
    if isinstance(hint, type) and issubclass(hint, Result):
        return hint.from_dict(value)
    _check_kind(hint, value, name)
    return value


def _check_kind(hint: Any, value: Any, name: str) -> None:
    """Raise a `TypeError` if a value does not have the type of its field."""
    kinds: dict[Any, Any] = {float: Real, int: Integral, str: str, dict: Mapping}
    kind = kinds.get(typing.get_origin(hint) or hint)
    if kind is None:
        return
    if not isinstance(value, kind) or (kind in (Real, Integral) and isinstance(value, bool)):
        raise TypeError(f"{name} is a {kind.__name__}, not {value!r}.")
    if kind is Real:
        float(value)  # raises for a whole number that is too large


# --- Coded findings: what the reader of an audit must know

CODES: dict[str, str] = {
    "B301": "few clusters",
    "B302": "a class is missing from a fold",
    "B303": "one-class resamples",
    "B304": "leaked rows hurt",
    "B305": "the loss curve is not convex",
    "B306": "extrapolation dominates",
    "B307": "the leaked share is not known",
    "B308": "no benefit from leakage was shown",
    "B309": "constant or repeated feature columns",
    "B310": "missing feature values",
    "B311": "single-row clusters",
    "B312": "refits failed",
    "B313": "known clusters are on both sides of a fold",
    "B314": "the loss limit is exceeded",
    "B315": "few refits",
    "B316": "the learner raised warnings",
    "B317": "rows scored unequally often",
    "B318": "the rows do not bound the leaked share",
    "B319": "a solver did not confirm its result",
    "B320": "no distribution of the loss",
    "B321": "the refits show only part of the bias",
    "B322": "refits differ from the logged model",
    "B323": "features that identify clusters",
    "B324": "leakage can be reduced",
    "B325": "unchecked match probabilities",
    "B326": "folds built from match probabilities",
    "B327": "remarks on the linkage evidence",
    "B328": "the losses of suspected rows do not fit",
    "B329": "not the model's training table",
    "B330": "the audit was stopped early",
    "B331": "too few groups to correct cross-validation",
    "B332": "groups or scores separate the classes",
    "B333": "the variance between groups could not be estimated",
    "B334": "one-class folds of cross-validation",
    "B335": "few groups make the correction uncertain",
    "B336": "no variance between groups was found",
    "B337": "the correction is an approximation of lower quality",
    "B338": "whole groups left out score worse than corrected cross-validation",
    "B339": "the correction rests on few simulated samples",
    "B340": "cluster ids are assumed to be correct",
    "B341": "remarks on the model of the correlation",
    "B342": "a group that will be new is a feature of the model",
    "B343": "a feature gives away the target",
    "B344": "rows copied from other clusters",
    "B350": "features have different effects in different groups",
    "B351": "a constant prediction meets the threshold",
    "B352": "time ran out before all planned refits",
    "B353": "scores of smaller models",
    "B354": "different slopes could go unnoticed",
    "B355": "almost all rows have mates in training",
    "B356": "the correction of this score is approximate",
    "B357": "the score is that of one class",
    "B358": "a few clusters decide the score",
}


@dataclass(frozen=True, kw_only=True)
class Finding(Result):
    """One observation of an audit.

    Attributes
    ----------
    code : str
        A key of `CODES`. Its meaning does not change between versions.
    message : str
        The observation, with its numbers, and what to do about it.

    Examples
    --------
    >>> import mlflow_b3 as b3
    >>> finding = b3.Finding(code="B325", message="Resolve 200 rows.")
    >>> finding.title
    'unchecked match probabilities'
    """

    code: str
    message: str

    def __post_init__(self) -> None:
        """Raise a `ValueError` for an undocumented code."""
        if self.code not in CODES:
            raise ValueError(f"finding code {self.code!r} is not in CODES")

    @property
    def title(self) -> str:
        """The short name of the code."""
        return CODES[self.code]

    def __str__(self) -> str:
        """Code, title and message on one line."""
        return f"{self.code} ({self.title}): {self.message}"


# --- Numbers, shares and losses in words

LOSS_WORDS = {
    "zero_one": "error rate",
    "log": "log loss",
    "brier": "Brier score",
    "hinge": "hinge loss",
    "squared": "mean squared error",
    "absolute": "mean absolute error",
    "poisson": "mean Poisson deviance",
    "accuracy": "accuracy",
    "balanced_accuracy": "balanced accuracy",
    "roc_auc": "AUC",
    "roc_auc_ovr": "AUC of one class against the others",
    "roc_auc_ovr_weighted": "weighted AUC of one class against the others",
    "average_precision": "average precision",
    "matthews_corrcoef": "Matthews correlation",
    "r2": "R²",
    "root_mean_squared_error": "root mean squared error",
    "median_absolute_error": "median absolute error",
    **{
        name + ending: words + more
        for name, words in (
            ("precision", "precision"),
            ("recall", "recall"),
            ("f1", "F1 score"),
            ("jaccard", "Jaccard score"),
        )
        for ending, more in (
            ("", ""),
            ("_macro", " averaged over classes"),
            ("_weighted", " averaged over rows"),
        )
    },
}


def number(value: float | None) -> str:
    """Return a loss or share with three decimals, or with three digits if those would be 0."""
    if value is None:
        return "unknown"
    value += 0.0  # without the sign of -0.0
    if abs(value) >= 100:
        return f"{value:.0f}" if abs(value) < 1e6 else f"{value:.2e}"
    return f"{value:.3f}" if 0.0005 <= abs(value) < 100 or value == 0 else f"{value:.3g}"


def signed(difference: float, *, beside: float = 0.0) -> str:
    """Return a difference with its sign, and no more decimals than a score that it stands beside."""
    if abs(difference) < 0.0005 <= abs(beside):
        return "+0.000"
    text = number(difference)
    return text if text.startswith(("-", "+")) else f"+{text}"


def percent(share: float) -> str:
    """Return a share as a percentage. Rounding errors around 0 are removed."""
    return f"{round(100 * share, 9) + 0.0:.3g}%"


def read_number(value: Any) -> Any:
    """Parse a string such as "0.1" or "10%". Return anything else unchanged."""
    if not isinstance(value, str):
        return value
    text = value.strip()
    try:
        return float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        return value


def read_share(value: Any) -> Any:
    """Parse a share or a pair of shares, such as "10%" or "5%,15%"."""
    if isinstance(value, str) and "," in value:
        value = tuple(value.split(","))
    if isinstance(value, (tuple, list)):
        return type(value)(map(read_number, value))
    return read_number(value)


def not_percentage(value: Any) -> str:
    """Return advice for an error message if a share looks like a percentage."""
    return " Give a share, not a percentage." if np.any(np.asarray(value, dtype=float) > 1) else ""


#: How names of scorers of the user's begin, of which more or less is better.
OWN_SCORE, OWN_LOSS = "scorer ", "loss scorer "
#: Between the name of a score and the class that it is about, if the user chose one.
OF_CLASS = " of "
#: How names of losses of predicted quantiles begin; the level follows.
PINBALL = "pinball_"


def pinball_level(name: str) -> float | None:
    """Return the level of the quantile that a loss such as `pinball_0.9` is for; None for others."""
    try:
        level = float(name.removeprefix(PINBALL)) if name.startswith(PINBALL) else 0.0
    except ValueError:
        return None
    return level if 0 < level < 1 else None


def loss_words(name: str) -> str:
    """Return the name of a loss for use in a sentence."""
    level = pinball_level(name)
    if level is not None:
        return f"pinball loss at {level:g}"
    for own, what in ((OWN_SCORE, "score"), (OWN_LOSS, "loss")):
        if name.startswith(own):
            return f"{what} {name.removeprefix(own)!r}"
    start = "1 - " if name.startswith("1 - ") else ""
    base, of, label = name.removeprefix(start).partition(OF_CLASS)
    return start + (LOSS_WORDS[base] + of + label if base in LOSS_WORDS else f"loss {name!r}")


def article(words: str) -> str:
    """Return the article before some words, as they are spoken: an F1 score, an R²."""
    return "an" if words[:1].lower() in "aeiou" or words.startswith(("F1", "R²")) else "a"


def shortened(names: Sequence[str], most: int = 20) -> str:
    """Return quoted names, and the number of those left out."""
    listed = ", ".join(map(repr, names[:most]))
    return listed if len(names) <= most else f"{listed} and {len(names) - most} more"


def visible(text: str) -> str:
    """Return text on one line, with invisible characters made visible.

    Invisible characters, and those that change the direction of text, become `[U+202E]`. Line
    breaks and other white space become spaces.
    """
    return "".join(
        character
        if character.isprintable()
        else " "
        if character.isspace()
        else f"[U+{ord(character):04X}]"
        for character in text
    )


def interval_words(ends: tuple[float, float | None] | None) -> str:
    """Return the ends of an interval. The upper end may be missing."""
    if ends is None:
        return ""
    low, high = ends
    if high is None:
        return f"{number(low)}, no upper limit"
    first = "0" if low == 0 and abs(high) >= 100 else number(low)  # decimals as beside it
    return f"{first} – {number(high)}"
