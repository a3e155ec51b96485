"""What the losses by dose say about the loss on new clusters."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise, takewhile

import numpy as np
from scipy import optimize, stats
from scipy.interpolate import PchipInterpolator

from mlflow_b3.auditing.leakage import (
    PRIOR_NODES,
    Folds,
    Leakage,
    Rates,
    Solution,
    mean_shares,
    shares_by_fold,
    whole_range,
)
from mlflow_b3.errors import InputError
from mlflow_b3.estimation.bounds import CONFIDENCE
from mlflow_b3.estimation.dose import DoseCurve, DoseFit, DoseReading, DoseSolution
from mlflow_b3.estimation.dose_law import DoseLaw
from mlflow_b3.estimation.fragments import seen_share
from mlflow_b3.estimation.influence import Array, Reading
from mlflow_b3.estimation.p0 import LARGEST_SHARE
from mlflow_b3.estimation.sensitivity import Point, Sensitivity, join_points
from mlflow_b3.measurement.collecting import Measurement, robust_covariance
from mlflow_b3.measurement.design import dose_levels
from mlflow_b3.measurement.refits import FragmentSizes

#: Rates at which laws of doses are computed for sensitivity curves: over the cluster error, if clusters are
#: larger than `LARGE` rows, and over the split rate, in which laws change less; more if these are too few. In 26
#: audits that were not used for choosing them, e0 of curves was off by 3% of the width of its interval at
#: most, its upper end by 6%.
NODES, MORE_NODES, SPLIT_NODES = 8, 10, 5
LARGE = 30
#: The number of rates at which e0 is computed for a distribution of rates.
PRIOR_RATES = 13
#: The share of validation rows without mates in training below which e0 is an extrapolation.
FEW_UNSEEN = 0.1
#: Refits stop when their share of the variance of e0 is below this.
NEGLIGIBLE = 0.05
#: The cluster error for which that is judged if nothing is known.
USUAL_ERROR = 0.1
#: Numbers of leaked rows for which a loss is given.
LEAKED_STEPS = 25


@dataclass(frozen=True, kw_only=True, eq=False)
class ByDoses:
    """Conclusions from the losses by dose, for one statement about the ids.

    Attributes
    ----------
    measured : Measurement
        With its `doses`.
    claim : Leakage
    folds : tuple of FoldSummary
    fragments : FragmentSizes
        How clusters are split.
    floor, bound : float or None
        The smallest and the largest possible loss.
    errors : tuple of float
        The cluster errors and split rates of the sensitivity curves.
    possible : callable
        Restricts an estimate and its interval to possible losses.
    is_score : bool
        Whether losses are what rows add to a score. Sensitivity curves then say how far they are
        supported.
    by_pairs : bool
        Whether losses are of pairs of rows, so that doses of other rows shift those of all.
    chance : float or None
        The loss of a random ranking, if it is known.
    """

    measured: Measurement
    claim: Leakage
    folds: Folds
    fragments: FragmentSizes
    floor: float | None
    bound: float | None
    errors: tuple[float, ...]
    possible: Callable[[float, tuple[float, float]], Point]
    is_score: bool = False
    by_pairs: bool = False
    chance: float | None = None

    @cached_property
    def fit(self) -> DoseFit:
        """The part of the estimate that does not depend on the ids."""
        assert self.measured.doses is not None
        bounds = (self.floor or 0.0, self.bound)
        return DoseFit(
            self.measured.doses,
            bounds=bounds,
            by_pairs=self.by_pairs,
            chance=self.chance,
            is_mean=not self.is_score,
        )

    @cached_property
    def _laws(self) -> dict[Rates, DoseLaw]:
        return {}

    def law(self, rates: Rates) -> DoseLaw:
        """Return the law of doses at given rates."""
        if rates not in self._laws:
            self._laws[rates] = self._exact_law.at(
                cluster_error=rates.cluster_error,
                split_rate=rates.split_rate,
                spread=rates.spread,
            )
        return self._laws[rates]

    @cached_property
    def _exact_law(self) -> DoseLaw:
        """The law for exact ids, which shares with the others what does not depend on the ids."""
        doses = self.measured.doses
        assert doses is not None
        return DoseLaw(
            doses.sizes,
            dose_levels,
            fragments=self.fragments,
            held_back=doses.held_back_share or None,
            training_share=doses.training_share,
        )

    def rates(self, value: float) -> Rates:
        """Return the rates of wrong ids at a value in the units of the claim."""
        assert self.measured.doses is not None
        return self.claim.rates(value, self.folds, self.measured.doses)

    @cached_property
    def solution(self) -> DoseSolution:
        """The estimate at the middle of what is known, over its range."""
        assert self.measured.doses is not None
        ends = self.claim.ends(self.folds, self.measured.doses)
        return self.fit.estimate(
            self.law(self.rates(self.claim.middle)),
            law_range=None if ends is None else (self.law(ends[0]), self.law(ends[1])),
        )

    def reading(self, rates: Rates) -> DoseReading:
        """Return e0 and its interval at given rates."""
        found = self.fit.reading(self.law(rates))
        return replace(found, e0=self._limited(found.e0))

    def _limited(self, e0: float) -> float:
        """Return the nearest possible mean loss."""
        least = -math.inf if self.floor is None else self.floor
        return min(max(e0, least), math.inf if self.bound is None else self.bound)

    def estimate(self) -> tuple[float, tuple[float, float]]:
        """Return e0 and its interval over what is known."""
        prior = None if self.claim.leak is None else self.claim.leak.to_prior()
        if prior is None or prior.law == "range":
            found = self.solution
            return self._limited(found.e0), found.interval
        chances = (np.arange(PRIOR_NODES) + 0.5) / PRIOR_NODES
        return self._weigh(prior.quantiles(chances))

    def _weigh(self, values: Array) -> tuple[float, tuple[float, float]]:
        """Average over equally likely values: the median of the mixture, and its quantiles."""
        nodes = np.unique(np.quantile(values, np.linspace(0, 1, PRIOR_RATES)))
        read = [self.reading(self.rates(float(value))) for value in nodes]
        middle = _interpolated(nodes, [r.e0 for r in read], values)
        error = np.maximum(_interpolated(nodes, [r.stderr for r in read], values), 1e-12)
        freedom = max(self.fit.degrees_of_freedom, 2.0)

        def below(loss: float, chance: float) -> float:
            return float(np.mean(stats.t.cdf((loss - middle) / error, freedom))) - chance

        reach = 1e3 * float(error.max())
        ends = float(middle.min()) - reach, float(middle.max()) + reach
        tail = (1 - CONFIDENCE) / 2
        low, e0, high = (
            float(optimize.brentq(below, *ends, args=(chance,))) for chance in (tail, 0.5, 1 - tail)
        )
        return self._limited(e0), (self._limited(low), self._limited(high))

    def headline(self, curves: Sequence[Sensitivity]) -> Solution:
        """Return the loss on new clusters; without it, the range of all sensitivity curves."""
        if not self.claim.is_known:
            usual = self.fit.estimate(self.law(Rates(cluster_error=USUAL_ERROR)))
            return Solution(e0=None, interval=whole_range(curves), dose=usual)
        e0, interval = self.estimate()
        if self.claim.excludes_nothing:
            ends = (*interval, *whole_range(curves[:1])) if self.claim.misplaces else interval
            return Solution(e0=None, interval=(min(ends), max(ends)), dose=self.solution)
        leaked, losses = self.leaked_losses(self.solution.curve)
        rates = self.rates(self.claim.middle)
        share = self.claim.leaked_share(rates, self.folds, self.measured.weights)
        return Solution(
            e0=e0,
            interval=interval,
            p0=share,
            leaked=leaked,
            losses=losses,
            dose=self.solution,
        )

    # --- sensitivity curves

    def rows_sensitivity(self) -> Sensitivity:
        """Return e0 over the cluster error, or over p0 with a given p0_validation.

        A stated split rate is the same along the curve.
        """
        return self._by_rows

    @cached_property
    def _by_rows(self) -> Sensitivity:
        if self.claim.p0_validation is not None:
            return self._p0_sensitivity(self.claim.p0_validation)
        beside = self.claim.split_beside
        split = 0.0 if beside is None else sum(beside) / 2
        shares = [
            mean_shares(shares_by_fold(value, self.folds), self.measured.weights).p0
            for value in self.errors
        ]

        def at(error: float) -> Rates:
            return Rates(cluster_error=error, split_rate=split)

        exact = self.claim.values() if self.claim.is_rate and self.claim.misplaces else ()
        return self._trace(shares, at, "rows", exact, self._nodes)

    def _p0_sensitivity(self, back: float) -> Sensitivity:
        """Return e0 over p0; a cluster error would change the given p0_validation too."""
        # beyond these the sides cannot be told apart
        largest = min(0.95 - back, LARGEST_SHARE * (1 - back))
        wanted = [value for value in self.errors if value == 0 or value <= largest]
        shares = [*takewhile(self._is_possible, wanted)]
        read = self._along(shares, self.rates, self.claim.values(), self._nodes)
        return join_points(self._points(read), shares, pattern="rows", error=None)

    def _is_possible(self, p0: float) -> bool:
        """Return whether some share of wrong ids gives this p0."""
        try:
            self.rates(p0)
        except InputError:
            return False
        return True

    def split_sensitivity(self) -> Sensitivity | None:
        """Return e0 over the split rate; None if no cluster has two rows."""
        return self._by_splits

    @cached_property
    def _by_splits(self) -> Sensitivity | None:
        assert self.measured.doses is not None
        if self.measured.doses.sizes.max() < 2:
            return None
        error = 0.0 if self.claim.split_beside is None else self.claim.middle
        shares = [seen_share(rate, self.folds).share for rate in self.errors]

        def at(rate: float) -> Rates:
            return Rates(cluster_error=error, split_rate=rate)

        exact = self.claim.values() if self.claim.is_rate and not self.claim.misplaces else ()
        return self._trace(shares, at, "fragments", exact, SPLIT_NODES)

    def tipping_split_rate(self, threshold: float) -> float | None:
        """Return the smallest split rate at which e0 reaches a threshold."""
        curve = self.split_sensitivity()
        return None if curve is None else curve.tipping_error(threshold)

    def _trace(
        self,
        shares: Sequence[float],
        rates: Callable[[float], Rates],
        pattern: str,
        exact: Sequence[float],
        nodes: int,
    ) -> Sensitivity:
        """Return e0 over the cluster error or the split rate."""
        read = self._along(self.errors, rates, exact, nodes)
        curve = join_points(self._points(read), shares, pattern=pattern, error=self.errors)
        if self.fit.mates_help and curve.e0[-1] >= curve.e0[0]:
            # with more wrong ids the correction is larger, so a lower limit for fewer holds too
            curve = replace(curve, low=tuple(np.maximum.accumulate(curve.low).tolist()))
        if self.is_score:
            unseen = {error: r.unseen for error, r in zip(self.errors, read, strict=True)}
            curve = replace(curve, supported=_supported(unseen))
        return curve

    def _along(
        self,
        values: Sequence[float],
        rates: Callable[[float], Rates],
        exact: Sequence[float],
        nodes: int,
    ) -> list[DoseReading]:
        """Return e0 and its interval along increasing values, from the laws at some of them.

        The `exact` values are among these.
        """
        inside = [value for value in exact if values[0] < value < values[-1]]
        chosen = self.fit.rates_between(values[0], values[-1], nodes, inside)
        if len(chosen) >= len(values):
            chosen = np.array(values)
        return self.fit.readings(lambda value: self.law(rates(value)), chosen.tolist(), values)

    @property
    def _nodes(self) -> int:
        return NODES if self.fit.typical_size <= LARGE else MORE_NODES

    def _points(self, read: Sequence[DoseReading]) -> list[Point]:
        return [self.possible(self._limited(r.e0), (r.low, r.high)) for r in read]

    # --- for comparisons, and for the losses of the papers

    def read(self) -> list[tuple[Reading, Array]]:
        """Return e0 over the range of what is known, and how far each cluster moves it."""
        if not self.claim.is_known or self.claim.is_vacuous:
            return []
        return [self._read(value) for value in self.claim.values()]

    def _read(self, value: float) -> tuple[Reading, Array]:
        rates = self.rates(value)
        read = self.reading(rates)
        influence = self.fit.influence(self.law(rates))[self.measured.units.ids]
        own = float(robust_covariance(influence[:, None])[0, 0])
        noise = math.sqrt(max(0.0, read.stderr**2 - own))
        return (
            Reading(leakage=value, e0=read.e0, low=read.low, high=read.high, noise=noise),
            influence,
        )

    def leaked_losses(self, curve: DoseCurve) -> tuple[tuple[int, ...], tuple[float, ...]]:
        """Return e_j: the loss on new clusters when j of their rows are in training.

        A row of a cluster of M rows then has Binomial(j, (M - 1)/|V̂|) mates there.
        """
        doses = self.measured.doses
        assert doses is not None
        rows = round(float(np.mean([fold.n_validation for fold in self.folds])))
        steps = np.unique(np.linspace(0, rows, LEAKED_STEPS + 1).round().astype(int))
        sizes, counts = np.unique(doses.sizes, return_counts=True)
        shares = sizes * counts / (sizes * counts).sum()
        losses = []
        for leaked in steps.tolist():
            mates = np.arange(min(leaked, int(sizes.max())) + 1)
            apart = np.minimum(1, (sizes - 1) / rows)[:, None]
            chance = np.asarray(stats.binom.pmf(mates, leaked, apart))
            g = np.interp(mates, curve.d, curve.loss)
            total = np.maximum(chance.sum(axis=1), 1e-12)
            losses.append(float(shares @ (chance @ g / total)))
        return tuple(steps.tolist()), tuple(losses)

    @property
    def _usual(self) -> DoseLaw:
        """The law of doses at the middle of what is known, or for a usual cluster error."""
        known = self.claim.is_known
        return self.law(
            self.rates(self.claim.middle) if known else Rates(cluster_error=USUAL_ERROR)
        )

    @property
    def is_enough(self) -> bool:
        """Whether more refits would hardly narrow the interval."""
        parts = self.fit.variance(self._usual)
        return parts.refits < NEGLIGIBLE * (parts.clusters + parts.refits + parts.ids)


def _supported(unseen: Mapping[float, float]) -> float | None:
    """Return the rate at which the share of rows without mates falls below `FEW_UNSEEN`."""
    rates = sorted(unseen)
    for before, rate in pairwise(rates):
        if unseen[rate] < FEW_UNSEEN:
            fall = unseen[before] - unseen[rate]
            part = (unseen[before] - FEW_UNSEEN) / fall if fall > 0 else 0.0
            return before + max(part, 0.0) * (rate - before)
    return None


def _interpolated(nodes: Array, values: Sequence[float], at: Array) -> Array:
    if len(nodes) == 1:
        return np.full(len(at), values[0])
    return np.asarray(PchipInterpolator(nodes, values)(at))
