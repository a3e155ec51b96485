"""Shares and percentages: told apart in errors, and written."""

from typing import Any

import numpy as np


def not_percentage(value: Any) -> str:
    """Return advice for an error about a share, where it looks like a percentage."""
    return " Give a share, not a percentage." if np.any(np.asarray(value, dtype=float) > 1) else ""


def percent(share: float) -> str:
    """Return a share as a percentage, without what rounding left of 0."""
    return f"{round(100 * share, 9) + 0.0:.3g} %"
