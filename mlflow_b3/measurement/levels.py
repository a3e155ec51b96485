"""How much leakage to inject, and how many refits to spend on it."""

import math
import re
from dataclasses import dataclass

from mlflow_b3.errors import InputError

N_LEVELS = 6
LARGEST_EXPOSURE = 0.6
TEST_PARTS = 5
DEFAULT_FITS = 480
MOST_REPEATS = 3
#: Shares of the refits that go to broken clusters and to the test; the loss curve has the rest.
SHARES = {"fragments": 0.14, "test": 0.2}
STOCHASTIC_REPEATS = 4


def exposures(n_levels: int = N_LEVELS) -> tuple[float, ...]:
    """Return the exposures at which the loss is measured: 0 and 0.6·(i/5)², i = 1 … 5.

    The exposure is the injected share π of the training rows as a multiple of the largest
    possible one, so it is the share of V̂ that is in T' when V̂ is the smaller side. The levels
    crowd at 0, where the curve is extrapolated from, and stop at 0.6, because the rows of V̂ that
    are not injected are needed for scoring.

    Notes
    -----
    The papers use a uniform grid on [p0, 1] and draw with replacement; with V̂ of a few hundred
    rows that curve turns up near π = 1, because the same few rows are drawn again and again.
    """
    last = n_levels - 1
    return tuple(LARGEST_EXPOSURE * (level / last) ** 2 for level in range(n_levels))


@dataclass(frozen=True, kw_only=True)
class FitPlan:
    """How often each kind of refit is repeated in every fold.

    Attributes
    ----------
    loco : int
        Refits on the fold as it is.
    rows : int
        Refits at each positive level of injected leakage.
    fragments : int
        Refits with broken validation clusters.
    test : int
        Rounds of the leakage test, of one refit on T̂ and one for each part of V̂.
    """

    loco: int
    rows: int
    fragments: int
    test: int

    @property
    def fits_per_fold(self) -> int:
        """All refits of a fold, the one that ignores clusters included."""
        levels = self.rows * (N_LEVELS - 1)
        return self.loco + 1 + levels + self.fragments + self.test * (1 + TEST_PARTS)


def least_fits(*, n_folds: int, stochastic: bool) -> int:
    """Return the smallest number of refits that an audit needs."""
    return n_folds * _least_plan(stochastic).fits_per_fold


def _least_plan(stochastic: bool) -> FitPlan:
    return FitPlan(loco=STOCHASTIC_REPEATS if stochastic else 1, rows=2, fragments=2, test=1)


def plan_fits(fits: int | None, *, n_folds: int, stochastic: bool) -> FitPlan:
    """Spread at most this many refits over an audit; None takes 480, or what is needed.

    Raises
    ------
    InputError
        When the refits do not suffice for two at each level and one round of the test.
    """
    least = _least_plan(stochastic)
    loco = least.loco
    needed = n_folds * least.fits_per_fold
    if fits is None:
        fits = max(DEFAULT_FITS, needed)
    if fits < needed:
        raise InputError(
            f"budget={fits} refits is too little for {n_folds} folds, which need at least {needed}; "
            "give more, or use fewer folds."
        )
    extra = fits / n_folds - loco - 1
    test = max(least.test, math.floor(extra * SHARES["test"] / (1 + TEST_PARTS)))
    fragments = max(least.fragments, math.floor(extra * SHARES["fragments"]))
    left = extra - test * (1 + TEST_PARTS) - fragments
    rows = max(least.rows, math.floor(left / (N_LEVELS - 1)))
    while (
        FitPlan(loco=loco, rows=rows, fragments=fragments, test=test).fits_per_fold * n_folds > fits
    ):
        fragments -= 1
    return FitPlan(loco=loco, rows=rows, fragments=fragments, test=test)


def choose_repeats(budget: int | str | None, *, n_folds: int, stochastic: bool) -> int:
    """Return how many assignments of clusters to folds a budget affords, up to three.

    A time is not known in refits before the first of them; it affords one.
    """
    fits, seconds = parse_budget(budget)
    if seconds is not None:
        return 1
    affordable = (fits or DEFAULT_FITS) // least_fits(n_folds=n_folds, stochastic=stochastic)
    return max(1, min(MOST_REPEATS, affordable))


def parse_budget(budget: int | str | None) -> tuple[int | None, float | None]:
    """Return (refits, seconds) of a budget such as 400, "400", "90s", "10m" or "1.5h".

    One of them at the most is a number; both are None when there is no budget.
    """
    if budget is None:
        return None, None
    text = str(budget).strip()
    if re.fullmatch(r"\d+", text) and int(text) > 0 and not isinstance(budget, bool):
        return int(text), None
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smh])", text)
    if match and float(match[1]) > 0:
        return None, float(match[1]) * {"s": 1, "m": 60, "h": 3600}[match[2]]
    raise InputError(
        f"budget={budget!r} is not usable; give a number of refits such as 400, or a time such as "
        '"90s", "10m" or "2h".'
    )


def fits_within(seconds: float, *, per_fit: float, workers: int) -> int:
    """Return how many refits fit into a time, a tenth kept back for everything else."""
    return max(1, math.floor(0.9 * seconds * workers / max(per_fit, 1e-6)))
