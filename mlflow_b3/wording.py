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
    """Return a loss or share with three decimals, or three digits where that says nothing."""
    if value is None:
        return "unknown"
    return f"{value:.3f}" if 0.01 <= abs(value) < 100 or value == 0 else f"{value:.3g}"


def percent(share: float) -> str:
    """Return a share as a percentage, without what rounding left of 0."""
    return f"{round(100 * share, 9) + 0.0:.3g} %"


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
    """Return the ends of an interval; the upper one may not be known."""
    if ends is None:
        return ""
    low, high = ends
    return f"{number(low)} or more" if high is None else f"{number(low)} – {number(high)}"
