"""The axes of plots: which values they show, and where they have ticks."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from mlflow_b3.wording import percent

LARGEST = 1e100


@dataclass(frozen=True, kw_only=True)
class Axis:
    """A range of values with its label.

    Attributes
    ----------
    low, high : float
    label : str
    shares : bool
        Ticks are percentages.
    """

    low: float
    high: float
    label: str = ""
    shares: bool = False

    def part(self, value: float) -> float:
        """Return where a value lies, from 0 to 1; values beyond the ends are moved to them."""
        # halves, so that the width of the largest range is still a number
        width = self.high / 2 - self.low / 2
        return min(1.0, max(0.0, (value / 2 - self.low / 2) / width)) if width > 0 else 0.5

    def holds(self, value: float) -> bool:
        """Return whether a value lies between the ends."""
        return self.low <= value <= self.high

    def ticks(self) -> list[tuple[float, str]]:
        """Return some round values, seven at the most, with their labels."""
        raw = (self.high / 2 - self.low / 2) / 3.5
        if not raw > 0:
            return [(self.low, f"{self.low:g}")]
        size = 10.0 ** math.floor(math.log10(raw))
        step = size * next(round_ for round_ in (1, 2, 2.5, 5, 10) if round_ * size >= raw * 0.999)
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        values = [k * step for k in range(first, last + 1)] if last - first < 20 else [self.low]
        return [(value, self._label(value, step)) for value in values]

    def _label(self, value: float, step: float) -> str:
        if self.shares:
            return percent(value)
        largest = max(abs(self.low), abs(self.high))
        decimals = max(0, math.ceil(-math.log10(step) - 1e-9))
        if not value:
            return "0"
        if largest >= 1e5 or decimals > 4:
            return f"{value:.{max(1, min(9, math.ceil(math.log10(largest / step)) + 2))}g}"
        halves = abs(step * 10**decimals - round(step * 10**decimals)) > 1e-6  # a step of 2.5
        return f"{value:.{decimals + halves}f}"


def axis_for(
    core: Iterable[float | None],
    more: Iterable[float | None] = (),
    *,
    perhaps: float | None = None,
    label: str = "",
    reach: float = 4.0,
) -> Axis:
    """Return an axis that shows all of the `core`, and `more` as far as it is not far away.

    Values beyond `reach` times the width of the core stretch the axis no further, so that one huge
    number cannot hide all others; the one value that is shown `perhaps` then does not stretch it at
    all. Numbers that are not finite are left out.
    """
    inner = finite(core) or [0.0, 1.0]
    low, high = min(inner), max(inner)
    width = max(high - low, 1e-6 * max(abs(low), abs(high))) or 1.0
    least, most = low - reach * width, high + reach * width
    outer = [min(max(value, least), most) for value in finite(more)]
    outer += [value for value in finite([perhaps]) if least <= value <= most]
    low, high = min([low, *outer]), max([high, *outer])
    pad = 0.09 * max(high - low, width)
    return Axis(low=0.0 if 0 <= low < pad else low - pad, high=high + pad, label=label)


def finite(values: Iterable[float | None]) -> list[float]:
    """Return the numbers among values, none of them beyond what can be drawn."""
    return [
        min(max(float(value), -LARGEST), LARGEST)
        for value in values
        if value is not None and math.isfinite(value)
    ]
