"""What evidence says about leak shares, and as what prior an audit uses it."""

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy import optimize, stats

from mlflow_b3.errors import InputError, choose
from mlflow_b3.linkage.splits import Floats
from mlflow_b3.results import Result
from mlflow_b3.wording import percent

KINDS = ("estimate", "upper", "lower", "uncalibrated")
SIDES = ("train", "validation")
#: The largest share that an audit can be asked about.
LARGEST = 0.95
#: Scores that nobody checked are wrong by such a factor: one standard deviation of the logarithm.
UNCHECKED_FACTOR = 3.0
WIDE_FACTOR = 2.0
MOST_FRAGMENTS = 19


@dataclass(frozen=True, kw_only=True)
class LeakShare(Result):
    """The share of rows of one side that leak.

    Attributes
    ----------
    point : float or None
        None where only a bound is known.
    low, high : float
        The ends of the interval.
    """

    point: float | None
    low: float
    high: float

    def __post_init__(self) -> None:
        """Refuse shares that are none."""
        middle = self.low if self.point is None else self.point
        if not 0 <= self.low <= middle <= self.high <= 1:  # NaN fails too
            raise InputError(
                f"low={self.low!r}, point={self.point!r}, high={self.high!r} must lie in [0, 1], in "
                "this order."
            )

    def __str__(self) -> str:
        """Return the share with its interval."""
        if self.low == self.high:
            return percent(self.high)
        ends = f"{percent(self.low)} to {percent(self.high)}"
        return ends if self.point is None else f"{percent(self.point)} ({ends})"


@dataclass(frozen=True, kw_only=True)
class LeakPrior(Result):
    """How likely each leak share is, for weighting a sensitivity curve.

    Attributes
    ----------
    law : {"beta", "log-normal", "range"}
        `range` says nothing about what is likely between its ends.
    low, high : float
        The 2.5 % and 97.5 % quantiles, or the ends of the range.
    first, second : float
        The parameters of the law: a and b of the beta law; the median and the standard deviation of
        the logarithm; the ends of the range.
    """

    law: str
    low: float
    high: float
    first: float
    second: float

    def quantiles(self, chances: Any) -> Floats:
        """Return the shares below which the given chances lie, at most 95 %."""
        u = np.asarray(chances, dtype=float)
        if self.law == "beta":
            shares = stats.beta.ppf(u, self.first, self.second)
        elif self.law == "log-normal":
            shares = self.first * np.exp(self.second * stats.norm.ppf(u))
        else:
            shares = self.first + u * (self.second - self.first)
        return np.asarray(np.minimum(shares, LARGEST), dtype=float)


@dataclass(frozen=True, kw_only=True)
class LeakEstimate(Result):
    """The leak shares of some folds, as far as evidence tells them (pattern `fragments`).

    Attributes
    ----------
    train : LeakShare
        p0: share of the training rows that have a true mate in validation.
    validation : LeakShare
        p0_validation: share of the validation rows that have a true mate in training. This is s,
        the seen share of `estimate_fragments`; neither belongs into the formulas of misplaced rows.
    kind : {"estimate", "upper", "lower", "uncalibrated"}
        An estimate with its confidence interval; an upper limit (no point); a lower limit; or what
        scores say that nobody checked: an order of magnitude.
    method : str
        How it was found.
    level : float
        Confidence of the interval or limit.
    n_folds : float
        K.
    n_labels : int or None
        How many rows or pairs were checked by hand.
    fragments : tuple of float or None
        How entities are split: the share of the entity's rows that are in the row's own cluster,
        for a typical split row each; None when not known. It is the `fragments` of an audit.
    row_probability : tuple of float or None
        r_j: for each row, the probability that it has a true mate in training when validated.
    notes : tuple of str
        What the reader must know, in short sentences.
    wide : bool
        For scores that nobody checked: all plausible pairs were scored, not those of a few blocks.
    """

    train: LeakShare
    validation: LeakShare
    kind: str
    method: str
    level: float
    n_folds: float
    n_labels: int | None = None
    fragments: tuple[float, ...] | None = None
    row_probability: tuple[float, ...] | None = field(default=None, repr=False)
    notes: tuple[str, ...] = ()
    wide: bool = False

    def __post_init__(self) -> None:
        """Refuse a kind that is not known."""
        choose("kind", self.kind, KINDS)

    def __str__(self) -> str:
        """Return what it says in a sentence or two."""
        seen, leaked = (
            {
                "upper": f"at most {percent(share.high)}",
                "lower": f"at least {percent(share.low)}",
            }.get(self.kind, str(share))
            for share in (self.validation, self.train)
        )
        checked = "" if self.n_labels is None else f", {self.n_labels} checked by hand"
        doubt = ""
        if self.kind == "uncalibrated":
            doubt = " Nobody checked these scores: an order of magnitude."
        return (
            f"{seen[0].upper()}{seen[1:]} of the validation rows have a true mate in training, and "
            f"{leaked} of the training rows have one in validation (by {self.method}{checked}; "
            f"{self.n_folds:g} folds, confidence {percent(self.level)}).{doubt}"
        )

    def side(self, name: str = "validation") -> LeakShare:
        """Return the share of one side: "train" or "validation"."""
        return self.train if choose("side", name, SIDES) == "train" else self.validation

    def to_prior(self, side: str = "validation") -> LeakPrior:
        """Return how likely each share of one side is.

        An estimate becomes a beta law with its mean and the width of its interval; scores that
        nobody checked a log-normal law with a standard deviation of log 3 (log 2 where all
        plausible pairs were scored, `wide`), after what they were off by in simulations; a limit
        becomes a range.
        """
        share = self.side(side)
        if self.kind == "uncalibrated" and share.point:
            return uncalibrated_prior(share.point, wide=self.wide)
        if self.kind == "estimate" and share.point is not None and share.high > 0:
            return _beta(share.point, share, self.level)
        return LeakPrior(
            law="range", low=share.low, high=share.high, first=share.low, second=share.high
        )


def uncalibrated_prior(point: float, *, wide: bool = False) -> LeakPrior:
    """Return how likely each share is when scores that nobody checked say `point`."""
    return _with_ends("log-normal", point, math.log(WIDE_FACTOR if wide else UNCHECKED_FACTOR))


def typical_fragments(shares: Any, weights: Any = None) -> tuple[float, ...] | None:
    """Return a few shares that stand for the distribution of many: equally likely quantiles.

    Shares of 0 or 1 are no splits and do not count; None when nothing is left.
    """
    values = np.asarray(shares, dtype=float)
    mass = np.ones_like(values) if weights is None else np.asarray(weights, dtype=float)
    keep = (values > 0) & (values < 1) & (mass > 0)
    if not keep.any():
        return None
    order = np.argsort(values[keep])
    values, mass = values[keep][order], mass[keep][order]
    if len(values) <= MOST_FRAGMENTS and weights is None:
        return tuple(values.tolist())
    reached = np.cumsum(mass) / mass.sum()
    chances = (np.arange(MOST_FRAGMENTS) + 0.5) / MOST_FRAGMENTS
    picked = np.minimum(np.searchsorted(reached, chances), len(values) - 1)
    return tuple(values[picked].tolist())


def _with_ends(law: str, first: float, second: float) -> LeakPrior:
    open_ended = LeakPrior(law=law, low=0.0, high=1.0, first=first, second=second)
    low, high = open_ended.quantiles([0.025, 0.975]).tolist()
    return LeakPrior(law=law, low=low, high=high, first=first, second=second)


def _beta(point: float, share: LeakShare, level: float) -> LeakPrior:
    """Return the beta law with a mean and the width of an interval.

    Where no leak at all was seen the mean cannot be kept; then the law falls from 0 on (a = 1/2)
    and reaches the upper limit with the given confidence.
    """
    tails = (1 - level) / 2
    if point <= 0:
        b = optimize.brentq(lambda b: stats.beta.ppf(level, 0.5, b) - share.high, 1e-6, 1e9)
        return _with_ends("beta", 0.5, float(b))
    mean, width = min(point, 1 - 1e-9), share.high - share.low

    def widths(size: Any) -> Floats:
        ends = [stats.beta.ppf(tail, mean * size, (1 - mean) * size) for tail in (tails, 1 - tails)]
        return np.asarray(ends[1] - ends[0])

    # below some size the law shrinks to spikes at 0 and 1, and gets narrow again: start from above
    sizes = np.geomspace(1e9, 0.5, 200)
    wide = widths(sizes)
    reached = np.flatnonzero(wide >= width)
    if not len(reached):
        size = float(sizes[wide.argmax()])
    elif reached[0] == 0:
        size = float(sizes[0])
    else:
        bracket = sizes[reached[0]], sizes[reached[0] - 1]
        size = float(optimize.brentq(lambda size: float(widths(size)) - width, *bracket))
    return _with_ends("beta", mean * size, (1 - mean) * size)
