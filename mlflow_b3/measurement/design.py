"""The design of an audit: doses or shares of injected leakage, the number of refits, and budgets.

Which rows each refit trains on is in `refits`.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from numbers import Integral, Real

from mlflow_b3.errors import InputError, choose
from mlflow_b3.results import Result

#: Designs, with the number of levels that each has in an audit.
DESIGNS = {"optimal": 6, "uniform": 11}
#: -x* at a cluster error of about a tenth.
USUAL_DISTANCE = 0.1
LARGEST_EXPOSURE = 0.6
#: Allowed numbers of levels.
FEWEST_LEVELS, MOST_LEVELS = 3, 1000
TEST_PARTS = 5
#: Refits of the leakage test if it is run alone.
TEST_FITS = 150
#: Rearrangements of the permutation test: default and minimum. Fewer cannot reach p = 5%.
ARRANGEMENTS, LEAST_ARRANGEMENTS = 99, 19
#: Refits of a default audit with five folds: of a loss curve, and by doses.
DEFAULT_FITS, DEFAULT_DOSE_FITS = 480, 100
MOST_REPEATS = 3
#: Shares of the refits for broken clusters and for the test; the loss curve gets the rest.
SHARES = {"fragments": 0.14, "test": 0.2}
STOCHASTIC_REPEATS = 4


def exposures(
    levels: str | int = "optimal", largest: float = LARGEST_EXPOSURE
) -> tuple[float, ...]:
    """Return the exposures at which an audit measures the loss, from 0 to the largest.

    The exposure is the injected share π of the training rows as a multiple of the largest possible
    one. If V̂ is the smaller side, it is the share of V̂ that is in T'. Levels stop at 0.6, because
    the rows of V̂ that are not injected are needed for scoring. The design "optimal" has the levels
    0.6·(i/5)², i = 0 … 5, which are dense near 0, where the extrapolation starts. The design
    "uniform" has eleven equally spaced levels. A number gives that many equally spaced levels.

    Notes
    -----
    The papers use a uniform grid on [p0, 1] and draw with replacement. If V̂ has a few hundred rows,
    that curve turns up near π = 1, because the same few rows are drawn repeatedly.
    """
    return _level_grid(count_levels(levels), largest, _design(levels))


def parse_levels(levels: object) -> str | int:
    """Parse the `levels` argument: the name of a design, or a number of uniform levels."""
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
        f"number from {FEWEST_LEVELS} to {MOST_LEVELS} for that many equally spaced levels."
    )


def count_levels(levels: str | int) -> int:
    """Return the number of levels of a design."""
    return DESIGNS[levels] if isinstance(levels, str) else levels


def _design(levels: str | int) -> str:
    return levels if isinstance(levels, str) else "uniform"


def largest_exposure(n_train: int | None, n_validation: int) -> float:
    """Return the largest exposure for training sets of a chosen size, drawn with replacement.

    It is 1, as in the papers, if V̂ is large enough that at most 0.6·|V̂| rows are drawn from it.
    Otherwise it is smaller, but at least 0.6.
    """
    if n_train is None:
        return LARGEST_EXPOSURE
    return min(1.0, LARGEST_EXPOSURE * max(1.0, n_validation / n_train))


@dataclass(frozen=True, kw_only=True)
class LevelPlan(Result):
    """Injected shares π, and the number of refits for each.

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
    """Plan the injected shares to measure for an extrapolation to no leakage.

    Parameters
    ----------
    fits : int
        Total number of refits; at least two for each level.
    p0 : float
        The expected leaked share; it need not be exact.
    levels : int
    largest : float
        The largest injected share; below 1 if V̂ would be used up.
    design : {"optimal", "uniform"}
        "optimal": π_i = largest·(i/(levels-1))², and refits in proportion to 1/(π + p0/(1-p0)).
        "uniform": equally spaced levels with equal numbers of refits, the papers' grid.

    Notes
    -----
    For extrapolation by a polynomial the best levels are Chebyshev points, with refits in
    proportion to the Lagrange weights at the target (Hoel and Levine 1964,
    doi:10.1214/aoms/1177700373). The squares are as good for sums of powers and do not depend on a
    degree. docs/estimators.md shows how many refits they save.

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
    """Return levels from 0 to the largest, dense near 0 or equally spaced."""
    exponent = 2 if design == "optimal" else 1
    return tuple(largest * (level / (count - 1)) ** exponent for level in range(count))


def _level_weights(levels: Sequence[float], distance: float, design: str) -> list[float]:
    """Return the weight of each level for a target at the given distance below 0."""
    return [1 / (level + distance) if design == "optimal" else 1.0 for level in levels]


def _allocate(fits: int, weights: Sequence[float]) -> tuple[int, ...]:
    """Allocate all refits in proportion to weights, with at least two for each level."""
    counts = [2] * len(weights)
    for _ in range(fits - sum(counts)):
        neediest = max(range(len(weights)), key=lambda level: weights[level] / counts[level])
        counts[neediest] += 1
    return tuple(counts)


@dataclass(frozen=True, kw_only=True)
class FitPlan:
    """The number of refits of each kind in every fold.

    Attributes
    ----------
    loco : int
        Refits on the unchanged fold.
    rows : tuple of int
        Refits at each level of injected leakage, starting at 0 or at the first positive level.
    fragments : int
        Refits with broken validation clusters.
    test : int
        Rounds of the leakage test. Each has one refit on T̂ and one for each part of V̂.
    """

    loco: int
    rows: tuple[int, ...]
    fragments: int
    test: int

    @property
    def fits_per_fold(self) -> int:
        """Number of refits per fold, including the one that ignores clusters."""
        return self.loco + 1 + sum(self.rows) + self.fragments + self.test * (1 + TEST_PARTS)


def least_fits(
    *,
    n_folds: int,
    stochastic: bool,
    levels: str | int = "optimal",
    from_zero: bool = False,
    others: int = 0,
) -> int:
    """Return the smallest number of refits that an audit needs, including `others` outside the plan."""
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
    """Allocate at most this many refits of an audit; by default 480, or more if needed.

    With the optimal design, the refits of the loss curve go to its levels in proportion to
    1/(exposure + 0.1), where 0.1 is roughly the distance to the point without leakage. With
    `from_zero` the plan includes level 0, for a T' that is drawn with replacement and therefore
    varies there. `others` are refits outside the plan that count against the budget.

    Raises
    ------
    InputError
        If there are not enough refits for two at each level and one round of the test.
    """
    least = _least_plan(stochastic, levels, from_zero)
    loco = least.loco
    needed = n_folds * least.fits_per_fold + others
    if fits is None:
        fits = max(DEFAULT_FITS + others, needed)
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
    """Return the number of assignments of clusters to folds that a budget allows, up to three.

    A budget in time allows one, because the time of a refit is unknown before the first refit.
    """
    fits, seconds = parse_budget(budget)
    if seconds is not None:
        return 1
    least = least_fits(n_folds=n_folds, stochastic=stochastic, levels=levels, from_zero=from_zero)
    return max(1, min(MOST_REPEATS, (fits or DEFAULT_FITS) // least))


def parse_budget(budget: int | str | None) -> tuple[int | None, float | None]:
    """Parse a budget such as 400, "400", "90s", "10m" or "1.5h" into (refits, seconds).

    At most one of them is a number. Both are None if there is no budget.
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
    """Parse a time such as 90, "90s", "10m" or "1.5h" into seconds; None stays None."""
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
    """Return the number of refits that fit into a time, with a tenth reserved for everything else."""
    return max(1, math.floor(0.9 * seconds * workers / max(per_fit, 1e-6)))


# --- Doses: how many rows of each validation cluster go into training

#: Rows that are moved into training, as multiples of a unit.
DOSES = (0, 1, 2, 3, 5)
#: A unit is one row for each of this many rows of the cluster, and at least one row.
ROWS_PER_UNIT = 15
#: Doses above one unit leave at least 40% of the cluster's rows to score.
MOST_OF_A_CLUSTER = 0.6
#: Assignments of clusters to folds beyond which the noise of refits is negligible.
MOST_PASSES = 12


@lru_cache(maxsize=4096)
def dose_levels(rows: int) -> tuple[int, ...]:
    """Return the doses of a cluster: how many of its rows are moved into training, by level.

    Level 0 moves none. At least one row is left to score at every level, so a cluster of one row has
    level 0 only.

    Examples
    --------
    >>> from mlflow_b3.measurement.design import dose_levels
    >>> [dose_levels(rows) for rows in (1, 2, 4, 10, 60)]
    [(0,), (0, 1), (0, 1, 2), (0, 1, 2, 3, 5), (0, 4, 8, 12, 20)]
    """
    unit = max(1, round(rows / ROWS_PER_UNIT))
    wanted = ((multiple, unit * multiple) for multiple in DOSES)
    return tuple(
        dose
        for multiple, dose in wanted
        if dose < rows and (multiple <= 1 or dose <= MOST_OF_A_CLUSTER * rows)
    )


#: Most folds of single rows.
MOST_ROW_FOLDS = 10


def count_row_folds(folds: float) -> int:
    """Return the number of folds of single rows: as many as folds of clusters, two to ten."""
    return min(MOST_ROW_FOLDS, max(2, round(folds)))


@dataclass(frozen=True, kw_only=True)
class DosePlan:
    """The refits of an audit by doses.

    Attributes
    ----------
    steps : tuple of int
        For each pass, the number of refits of every fold in which doses are rotated. Each pass has
        one more refit of every fold, without any injected row.
    """

    steps: tuple[int, ...]

    @property
    def passes(self) -> int:
        """Number of passes; each has folds of its own where clusters are assigned at random."""
        return len(self.steps)


def plan_doses(
    budget: int | None, *, n_folds: int, n_iid: int, slots: int, passes: int | None = None
) -> DosePlan:
    """Divide a number of refits into passes over the folds.

    A complete pass has, for every fold, one refit on the unchanged fold and one for each slot of the
    rotation, so that each cluster has each of its doses once. A budget below one pass shortens the
    rotation. Every refit contains clusters at every dose, so even a short rotation measures them all.
    Refits that are left over become a pass without rotation: another assignment to folds makes the
    score steadier.

    Parameters
    ----------
    budget : int or None
        None is 100, or one complete pass if that is more.
    n_folds, n_iid : int
        Folds of clusters in a pass, and folds of rows, which have one refit each.
    slots : int
        The number of doses of the clusters that have the most.
    passes : int, optional
        The number of passes; by default as many as the budget has room for.

    Raises
    ------
    InputError
        If the budget does not suffice for one refit of every fold.

    Examples
    --------
    >>> from mlflow_b3.measurement.design import plan_doses
    >>> plan_doses(None, n_folds=5, n_iid=5, slots=5).steps
    (5, 5, 5, 0)
    >>> plan_doses(20, n_folds=5, n_iid=5, slots=5).steps
    (2,)
    """
    whole = n_folds * (1 + slots)
    if budget is None:
        budget = max(DEFAULT_DOSE_FITS, n_iid + whole)
    left = budget - n_iid
    if left < n_folds:
        raise InputError(
            f"budget={budget} refits is too little: the score by rows needs {n_iid} and the score by "
            f"clusters {n_folds}, one for each fold. Give at least {n_iid + n_folds}, or use fewer folds."
        )
    if passes is not None:
        if left < passes * n_folds:
            raise InputError(
                f"budget={budget} refits is too little for repeats={passes}, which needs at least "
                f"{n_iid + passes * n_folds}: one for each fold."
            )
        return DosePlan(steps=(min(left // (passes * n_folds) - 1, slots),) * passes)
    steps = [slots] * min(left // whole, MOST_PASSES)
    rest = (left - len(steps) * whole) // n_folds - 1
    if not steps or (rest >= 0 and len(steps) < MOST_PASSES):
        steps.append(max(rest, 0))
    return DosePlan(steps=tuple(steps))
