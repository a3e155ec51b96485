"""Numbers, shares and losses in words."""

from collections.abc import Sequence
from typing import Any

import numpy as np

LOSS_WORDS = {
    "zero_one": "error rate",
    "log": "log loss",
    "brier": "Brier score",
    "hinge": "hinge loss",
    "squared": "mean squared error",
    "absolute": "mean absolute error",
}


def number(value: float | None) -> str:
    """Return a loss or share with three decimals, or three digits where those would all be 0."""
    if value is None:
        return "unknown"
    if 100 <= abs(value) < 1e6:
        return f"{value:.0f}"
    return f"{value:.3f}" if 0.0005 <= abs(value) < 100 or value == 0 else f"{value:.3g}"


def signed(difference: float) -> str:
    """Return a difference of scores with its sign."""
    text = number(difference)
    return text if text.startswith("-") else f"+{text}"


def percent(share: float) -> str:
    """Return a share as a percentage, without what rounding left of 0."""
    return f"{round(100 * share, 9) + 0.0:.3g} %"


def read_number(value: Any) -> Any:
    """Return the number that a text such as "0.1" or "10%" stands for, and all else as it is."""
    if not isinstance(value, str):
        return value
    text = value.strip()
    try:
        return float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        return value


def read_share(value: Any) -> Any:
    """Return a share, or a pair of them, given as texts such as "10%" or "5%,15%", as numbers."""
    if isinstance(value, str) and "," in value:
        value = tuple(value.split(","))
    if isinstance(value, (tuple, list)):
        return type(value)(map(read_number, value))
    return read_number(value)


def not_percentage(value: Any) -> str:
    """Return advice for an error about a share, where it looks like a percentage."""
    return " Give a share, not a percentage." if np.any(np.asarray(value, dtype=float) > 1) else ""


def loss_words(name: str) -> str:
    """Return what a loss is called in a sentence."""
    return LOSS_WORDS.get(name, f"loss {name!r}")


def shortened(names: Sequence[str], most: int = 20) -> str:
    """Return names, quoted, and how many more there are."""
    listed = ", ".join(map(repr, names[:most]))
    return listed if len(names) <= most else f"{listed} and {len(names) - most} more"


def visible(text: str) -> str:
    """Return text on one line in which nothing is hidden.

    Characters that cannot be seen, or that change the direction of others, are named as `[U+202E]`;
    line breaks and other white space become spaces.
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
    """Return the ends of an interval; there may be no upper one."""
    if ends is None:
        return ""
    low, high = ends
    return f"{number(low)}, no upper limit" if high is None else f"{number(low)} – {number(high)}"
