"""How much leakage to inject, and how many refits to spend on it."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral, Real

from mlflow_b3.errors import InputError, choose
from mlflow_b3.results import Result

#: Designs of levels, with their numbers of levels in an audit.
DESIGNS = {"optimal": 6, "uniform": 11}
#: -x* at a cluster error of about a tenth.
USUAL_DISTANCE = 0.1
LARGEST_EXPOSURE = 0.6
#: Numbers of levels that can be asked for.
FEWEST_LEVELS, MOST_LEVELS = 3, 1000
TEST_PARTS = 5
#: Refits of the leakage test when it is run alone.
TEST_FITS = 150
#: Rearrangements of the permutation test, by default and at least: fewer cannot reach 5%.
ARRANGEMENTS, LEAST_ARRANGEMENTS = 99, 19
DEFAULT_FITS = 480
MOST_REPEATS = 3
#: Shares of the refits that go to broken clusters and to the test; the loss curve has the rest.
SHARES = {"fragments": 0.14, "test": 0.2}
STOCHASTIC_REPEATS = 4


def exposures(
    levels: str | int = "optimal", largest: float = LARGEST_EXPOSURE
) -> tuple[float, ...]:
    """Return the exposures at which an audit measures the loss, from 0 to the largest.

    The exposure is the injected share π of the training rows as a multiple of the largest
    possible one, so it is the share of V̂ that is in T' when V̂ is the smaller side. Levels stop
    at 0.6, because the rows of V̂ that are not injected are needed for scoring. The levels of the
    design "optimal" are 0.6·(i/5)², i = 0 … 5: they crowd at 0, where the curve is extrapolated
    from. Those of "uniform" are eleven at equal distances; a number is as many of these.

    Notes
    -----
    The papers use a uniform grid on [p0, 1] and draw with replacement; with V̂ of a few hundred
    rows that curve turns up near π = 1, because the same few rows are drawn again and again.
    """
    return _level_grid(count_levels(levels), largest, _design(levels))


def parse_levels(levels: object) -> str | int:
    """Return a design of levels by its name, or the number of uniform levels."""
    text = levels.strip() if isinstance(levels, str) else levels
    if isinstance(text, str) and re.fullmatch(r"\d+", text):
        text = int(text)
    if isinstance(text, Integral) and not isinstance(text, bool):
        if FEWEST_LEVELS <= int(text) <= MOST_LEVELS:
            return int(text)
    elif isinstance(text, str) and text in DESIGNS:
        return text
    raise InputError(
        f"levels={levels!r} is not known; use one of {', '.join(map(repr, DESIGNS))}, or a whole "
        f"number from {FEWEST_LEVELS} to {MOST_LEVELS} for as many levels at equal distances."
    )


def count_levels(levels: str | int) -> int:
    """Return how many levels a design has."""
    return DESIGNS[levels] if isinstance(levels, str) else levels


def _design(levels: str | int) -> str:
    return levels if isinstance(levels, str) else "uniform"


def largest_exposure(n_train: int | None, n_validation: int) -> float:
    """Return the largest exposure for training sets of a chosen size, drawn with replacement.

    It is 1, as in the papers, where V̂ is large enough that at most 0.6·|V̂| rows are drawn from
    it, and less where it is not; but 0.6 at least.
    """
    if n_train is None:
        return LARGEST_EXPOSURE
    return min(1.0, LARGEST_EXPOSURE * max(1.0, n_validation / n_train))


@dataclass(frozen=True, kw_only=True)
class LevelPlan(Result):
    """Injected shares π, and how many refits to spend on each.

    Examples
    --------
    >>> import mlflow_b3 as b3
    >>> plan = b3.plan_levels(40, levels=4, design="uniform")
    >>> plan.fits
    (10, 10, 10, 10)
    """

    injected: tuple[float, ...]
    fits: tuple[int, ...]


def plan_levels(
    fits: int, p0: float = 0.1, *, levels: int = 6, largest: float = 1.0, design: str = "optimal"
) -> LevelPlan:
    """Plan which injected shares to measure when the curve is to be read at no leakage.

    Parameters
    ----------
    fits : int
        Refits in all; at least two for each level.
    p0 : float
        The leaked share that is expected; it need not be exact.
    levels : int
    largest : float
        The largest injected share; below 1 where V̂ would be used up.
    design : {"optimal", "uniform"}
        "optimal": π_i = largest·(i/(levels-1))², and refits in proportion to 1/(π + p0/(1-p0)).
        "uniform": equal distances and equal refits, the papers' grid.

    Notes
    -----
    For extrapolation by a polynomial the best levels are Chebyshev points, the refits in
    proportion to the Lagrange weights at the target (Hoel and Levine 1964,
    doi:10.1214/aoms/1177700373). The squares are as good for sums of powers and do not depend on
    a degree; docs/estimators.md has the refits that they save.

    Examples
    --------
    >>> import mlflow_b3 as b3
    >>> plan = b3.plan_levels(100, p0=0.1, levels=4)
    >>> [round(share, 2) for share in plan.injected]
    [0.0, 0.11, 0.44, 1.0]
    >>> plan.fits
    (55, 28, 11, 6)
    """
    choose("design", design, tuple(DESIGNS))
    whole = [isinstance(n, Integral) and not isinstance(n, bool) for n in (fits, levels)]
    if not all(whole) or levels < 2 or fits < 2 * levels:
        raise InputError(
            f"fits={fits!r} and levels={levels!r} must be whole numbers, levels at least 2 and "
            "fits at least twice as many."
        )
    if not 0 <= p0 < 1 or not 0 < largest <= 1:
        raise InputError(f"p0={p0!r} must lie in [0, 1) and largest={largest!r} in (0, 1].")
    injected = _level_grid(levels, largest, design)
    weights = _level_weights(injected, max(p0 / (1 - p0), 0.01), design)
    return LevelPlan(injected=injected, fits=_allocate(fits, weights))


def _level_grid(count: int, largest: float, design: str) -> tuple[float, ...]:
    """Return levels from 0 to the largest, crowded at 0 or at equal distances."""
    exponent = 2 if design == "optimal" else 1
    return tuple(largest * (level / (count - 1)) ** exponent for level in range(count))


def _level_weights(levels: Sequence[float], distance: float, design: str) -> list[float]:
    """Return how much of the refits each level deserves when the target is a distance below 0."""
    return [1 / (level + distance) if design == "optimal" else 1.0 for level in levels]


def _allocate(fits: int, weights: Sequence[float]) -> tuple[int, ...]:
    """Divide refits in proportion to weights, at least two each, none left over."""
    counts = [2] * len(weights)
    for _ in range(fits - sum(counts)):
        neediest = max(range(len(weights)), key=lambda level: weights[level] / counts[level])
        counts[neediest] += 1
    return tuple(counts)


@dataclass(frozen=True, kw_only=True)
class FitPlan:
    """How often each kind of refit is repeated in every fold.

    Attributes
    ----------
    loco : int
        Refits on the fold as it is.
    rows : tuple of int
        Refits at each level of injected leakage, from 0 on or from the first positive one.
    fragments : int
        Refits with broken validation clusters.
    test : int
        Rounds of the leakage test, of one refit on T̂ and one for each part of V̂.
    """

    loco: int
    rows: tuple[int, ...]
    fragments: int
    test: int

    @property
    def fits_per_fold(self) -> int:
        """All refits of a fold, the one that ignores clusters included."""
        return self.loco + 1 + sum(self.rows) + self.fragments + self.test * (1 + TEST_PARTS)


def least_fits(
    *,
    n_folds: int,
    stochastic: bool,
    levels: str | int = "optimal",
    from_zero: bool = False,
    others: int = 0,
) -> int:
    """Return the smallest number of refits that an audit needs, `others` beside the plan's."""
    return n_folds * _least_plan(stochastic, levels, from_zero).fits_per_fold + others


def _least_plan(stochastic: bool, levels: str | int, from_zero: bool) -> FitPlan:
    rows = (2,) * (count_levels(levels) - (0 if from_zero else 1))
    return FitPlan(loco=STOCHASTIC_REPEATS if stochastic else 1, rows=rows, fragments=2, test=1)


def plan_fits(
    fits: int | None,
    *,
    n_folds: int,
    stochastic: bool,
    levels: str | int = "optimal",
    from_zero: bool = False,
    others: int = 0,
) -> FitPlan:
    """Spread at most this many refits over an audit; None takes 480, or what is needed.

    The refits of the loss curve go to its levels in proportion to 1/(exposure + 0.1) with the
    optimal design, where 0.1 is about how far away the point without leakage is. `from_zero` plans
    for level 0 too, where T' is drawn with replacement and varies. `others` are refits that are made
    beside the plan, and count against the budget.

    Raises
    ------
    InputError
        When the refits do not suffice for two at each level and one round of the test.
    """
    least = _least_plan(stochastic, levels, from_zero)
    loco = least.loco
    needed = n_folds * least.fits_per_fold + others
    if fits is None:
        fits = max(DEFAULT_FITS, needed) + others
    if fits < needed:
        raise InputError(
            f"budget={fits} refits is too little for {n_folds} folds, which need at least {needed}"
            + (" for a learner that draws at random; " if stochastic else "; ")
            + "give more, or use fewer folds."
        )
    extra = (fits - others) // n_folds - loco - 1
    test = max(least.test, math.floor(extra * SHARES["test"] / (1 + TEST_PARTS)))
    fragments = max(least.fragments, math.floor(extra * SHARES["fragments"]))
    rows = max(sum(least.rows), extra - test * (1 + TEST_PARTS) - fragments)
    fragments = min(fragments, extra - rows - test * (1 + TEST_PARTS))
    measured = exposures(levels)[0 if from_zero else 1 :]
    weights = _level_weights(measured, USUAL_DISTANCE, _design(levels))
    return FitPlan(loco=loco, rows=_allocate(rows, weights), fragments=fragments, test=test)


def choose_repeats(
    budget: int | str | None,
    *,
    n_folds: int,
    stochastic: bool,
    levels: str | int = "optimal",
    from_zero: bool = False,
) -> int:
    """Return how many assignments of clusters to folds a budget affords, up to three.

    A time is not known in refits before the first of them; it affords one.
    """
    fits, seconds = parse_budget(budget)
    if seconds is not None:
        return 1
    least = least_fits(n_folds=n_folds, stochastic=stochastic, levels=levels, from_zero=from_zero)
    return max(1, min(MOST_REPEATS, (fits or DEFAULT_FITS) // least))


def parse_budget(budget: int | str | None) -> tuple[int | None, float | None]:
    """Return (refits, seconds) of a budget such as 400, "400", "90s", "10m" or "1.5h".

    One of them at the most is a number; both are None when there is no budget.
    """
    if budget is None:
        return None, None
    text = str(budget).strip()
    if re.fullmatch(r"\d+", text) and int(text) > 0 and not isinstance(budget, bool):
        return int(text), None
    seconds = _seconds(text)
    if seconds is not None:
        return None, seconds
    raise InputError(
        f"budget={budget!r} is not usable; give a number of refits such as 400, or a time such as "
        '"90s", "10m" or "2h".'
    )


def parse_seconds(argument: str, value: float | str | None) -> float | None:
    """Return the seconds of a time such as 90, "90s", "10m" or "1.5h"; None of None."""
    if value is None:
        return None
    if isinstance(value, Real) and not isinstance(value, bool) and 0 < value < math.inf:
        return float(value)
    text = str(value).strip()
    seconds = _seconds(text if text[-1:].isalpha() else f"{text}s")
    if seconds is None or isinstance(value, bool):
        raise InputError(
            f"{argument}={value!r} is not usable; give a number of seconds, or a time such as "
            '"90s", "10m" or "2h".'
        )
    return seconds


def _seconds(text: str) -> float | None:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smh])", text)
    if not match or not float(match[1]):
        return None
    return float(match[1]) * {"s": 1, "m": 60, "h": 3600}[match[2]]


def fits_within(seconds: float, *, per_fit: float, workers: int) -> int:
    """Return how many refits fit into a time, a tenth kept back for everything else."""
    return max(1, math.floor(0.9 * seconds * workers / max(per_fit, 1e-6)))
