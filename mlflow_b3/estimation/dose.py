"""The loss on new clusters from losses at known doses: own mates in training, added on purpose.

The dose d of a scored row is the number of rows of its true cluster in training, g(d) the mean loss
of rows with dose d, and e_0 = g(0) the loss on new clusters. With noisy ids doses are not seen, but
their law is known (`DoseLaw`). With γ(d) = g(d) - g(0) and L a law, a mean loss is e_0 + L·γ. So

* the score on unchanged folds is LOCO = e_0 + L_0·γ, and e_0 = LOCO - L_0·γ;
* rows of a validation cluster with m of its rows moved into training have L_m, held-back rows of
  training clusters L_h, and the difference to the loss of the *same rows* in unchanged folds is
  y = δ + (L - L_0)·γ + noise. δ is what a different mix of clusters in training does to all rows.

Only such differences within rows are used for γ, so that clusters that are harder than others cancel.
γ is averaged over kinds of effects: none, a step at the first, second or third mate, saturation at
several rates, and S-shapes, each of unknown size and sign. Kinds are weighted by the marginal likelihood
of the differences. Where these are within their noise, "no effect" keeps its weight and e_0 shrinks
towards LOCO. The interval also covers, as far as they leave them open, kinds that were improbable
beforehand.

The constants below were chosen on the cells of benchmarks/dose_development.py. Other values that were
tried changed the mean ratio RMSE(e_0)/RMSE(LOCO) there by 0.02 at most. `NO_EFFECT` and `MISFIT` are set
so that no cell is clearly worse than LOCO, at the price of a little of the mean gain.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import optimize, stats
from scipy.interpolate import CubicSpline

from mlflow_b3.errors import InputError
from mlflow_b3.estimation.effects import Effects
from mlflow_b3.measurement.collecting import CORRELATED_ERRORS
from mlflow_b3.measurement.doses import DoseLosses
from mlflow_b3.measurement.refits import FEW_CLUSTERS
from mlflow_b3.results import Result

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

Array = NDArray[np.float64]
Integers = NDArray[np.intp]

#: Prior probability that mates in training have no effect, for the estimate. It is above one half
#: because a correction for nothing is worse than none. The interval is for even odds.
NO_EFFECT = 0.7
#: Prior standard deviations of the largest effect, as shares of how large effects can be.
AMPLITUDES = (0.02, 0.06, 0.2, 0.6, 1.5)
#: Prior standard deviations of δ, as shares of LOCO.
COMPOSITIONS = (0.0, 0.03)
#: The same for losses of pairs of rows: the doses of other rows shift those of all.
PAIR_SHIFTS = (*COMPOSITIONS, 0.1, 0.3)
#: What laws and a common γ leave unexplained, as a share of LOCO: the standard deviation of
#: independent errors of the mean differences that more clusters do not reduce.
MISFIT = 0.025
#: Variances of levels are shrunk towards their mean as if this many more clusters had shown it.
BORROWED = 10
#: The largest factor by which shared training sets enlarge the variance over clusters: the upper end
#: of what simulated clinics showed (see `CORRELATED_ERRORS`).
MOST_CORRELATED = 2.0
#: If the laws at other rates predict an interval worse than by this share of its width, laws at more rates are
#: used; how often their number is increased.
ROUGH, REFINEMENTS = 0.1, 3
#: With laws at fewer rates, too little is left to predict one of them.
ENOUGH_TO_PREDICT = 7
#: Rates that differ by less than this share of a range of rates are the same.
SAME_RATE = 1e-6
#: Doses of the curve up to which every dose has a point.
EVERY_DOSE = 10


class Law(Protocol):
    """What is needed of `DoseLaw`: P(d) by the number of rows of the noisy cluster."""

    def validation(self, size: int, dose: int) -> Array:
        """Return the law of rows of validation clusters with `dose` rows moved into training."""

    def held_back(self, size: int) -> Array:
        """Return the law of held-back rows of training clusters."""

    def plain(self, size: int) -> Array:
        """Return the law of validation rows of unchanged folds."""

    def row_folds(self, size: int) -> Array:
        """Return the law of rows in folds of single rows."""

    def expecting(self, effects: Effects) -> "Law":
        """Return the same law with expectations for probabilities: E[F(d)] by kind, P(0) and E[d]."""


# --- What is concluded


@dataclass(frozen=True, kw_only=True)
class DoseCurve(Result):
    """The mean loss g(d) of rows with d other rows of their own cluster in training.

    `report.dose` of an audit with the method "dose". The loss on new clusters is e_0 = g(0).

    Attributes
    ----------
    d : tuple of int
        The dose: how many other rows of its true cluster a row has in training. Increasing, from 0.
    loss : tuple of float
        g(d).
    low, high : tuple of float
        The interval of each g(d). They are for one dose at a time.

    Examples
    --------
    >>> import mlflow_b3 as b3
    >>> curve = b3.DoseCurve(
    ...     d=(0, 1, 2, 3),
    ...     loss=(0.34, 0.29, 0.25, 0.22),
    ...     low=(0.30, 0.25, 0.21, 0.18),
    ...     high=(0.39, 0.33, 0.29, 0.26),
    ... )
    >>> curve.frame()
       d  loss   low  high
    0  0  0.34  0.30  0.39
    1  1  0.29  0.25  0.33
    2  2  0.25  0.21  0.29
    3  3  0.22  0.18  0.26
    """

    d: tuple[int, ...]
    loss: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]

    def frame(self) -> "pd.DataFrame":
        """Return the curve as a table with a row for each dose.

        Returns
        -------
        DataFrame
            With the columns `d`, `loss`, `low` and `high`.
        """
        import pandas as pd

        return pd.DataFrame({"d": self.d, "loss": self.loss, "low": self.low, "high": self.high})

    def plot(self, ax: "Axes | None" = None) -> "Axes":
        """Draw the curve with its interval, and mark e_0 at the dose 0.

        Parameters
        ----------
        ax : matplotlib axes, optional
            Where to draw; without it, on axes of a new figure.

        Returns
        -------
        matplotlib axes

        Examples
        --------
        >>> import mlflow_b3 as b3
        >>> curve = b3.DoseCurve(
        ...     d=(0, 1, 2), loss=(0.34, 0.29, 0.25), low=(0.3, 0.25, 0.21), high=(0.39, 0.33, 0.29)
        ... )
        >>> ax = curve.plot()
        >>> ax.get_ylabel()
        'loss'
        """
        from matplotlib import pyplot as plt
        from matplotlib.ticker import MaxNLocator

        if ax is None:
            _, ax = plt.subplots(layout="constrained")
        (line,) = ax.plot(self.d, self.loss, marker="o", label="loss, with its 95% interval")
        ax.fill_between(self.d, self.low, self.high, color=line.get_color(), alpha=0.2, linewidth=0)
        ax.plot(self.d[0], self.loss[0], marker="D", color="C1", linestyle="none", label="e0")
        ax.set_xlabel("other rows of the same cluster in training")
        ax.set_ylabel("loss")
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
        ax.legend()
        return ax


@dataclass(frozen=True, kw_only=True)
class VarianceParts(Result):
    """Where the squared standard error of e_0 comes from.

    Attributes
    ----------
    clusters : float
        Which clusters were sampled, for validation and for training. More clusters narrow it.
    refits : float
        Which rows were injected and held back, folds, and randomness of the learner. More refits
        narrow it.
    ids : float
        The shape of the effect between dose 0 and the doses that were measured, and the range of the
        rates if one was given. Better ids narrow it, because fewer mates go unnoticed. More clusters or
        refits can narrow it too, because they show the shape.
    """

    clusters: float
    refits: float
    ids: float


@dataclass(frozen=True, kw_only=True)
class DoseSolution(Result):
    """The loss on new clusters.

    Attributes
    ----------
    e0 : float
    interval : tuple of float
    stderr : float
    loco : float
        The score with noisy ids.
    loco_interval : tuple of float
        Interval of LOCO's own expectation, without regard to leakage.
    variance : VarianceParts
        Its parts sum to the square of `stderr`.
    curve : DoseCurve
    no_effect : float
        Posterior probability that mates in training have no effect.
    effect : float
        How much less rows lose that have nearly all mates in training: g(0) - g(held-back rows).
    p_value : float
        One-sided test, paired within rows, of no such effect.
    shrunk : bool
        True if "no effect" is more probable than all effects together: what was measured is within its
        noise, and e_0 was pulled towards LOCO.
    unseen : float
        Share of the validation rows of unchanged folds without any mate in training. Below about 0.1
        an effect of the first mates may be complete before anything is measured; e_0 then stays near
        LOCO and the interval is wide.
    effective_clusters : float
        (Σ M)² / Σ M² over the rows M of noisy clusters.
    refits : int
    """

    e0: float
    interval: tuple[float, float]
    stderr: float
    loco: float
    loco_interval: tuple[float, float]
    variance: VarianceParts
    curve: DoseCurve
    no_effect: float
    effect: float
    p_value: float
    shrunk: bool
    unseen: float
    effective_clusters: float
    refits: int


@dataclass(frozen=True, kw_only=True)
class DoseReading(Result):
    """e_0 under one law.

    Attributes
    ----------
    e0, low, high, stderr : float
    unseen : float
        Share of the validation rows without mates in training.
    """

    e0: float
    low: float
    high: float
    stderr: float
    unseen: float


def estimate_doses(
    losses: DoseLosses,
    law: Law,
    *,
    law_range: tuple[Law, Law] | None = None,
    bounds: tuple[float, float | None] = (0.0, 1.0),
    level: float = 0.95,
) -> DoseSolution:
    """Estimate the loss on new clusters.

    Parameters
    ----------
    losses : DoseLosses
    law : Law
        What is known about the ids.
    law_range : tuple of two laws, optional
        Laws at both ends of a range of rates. The interval then covers the intervals at both ends.
    bounds : tuple
        Smallest and largest possible loss; None for no largest.
    level : float

    Examples
    --------
    >>> import numpy as np
    >>> from mlflow_b3.estimation.dose import estimate_doses
    >>> from mlflow_b3.estimation.dose_law import DoseLaw
    >>> from mlflow_b3.measurement.doses import DoseLosses
    >>> law = DoseLaw([8] * 50, lambda size: (0, 1), cluster_error=0.1)
    >>> g = 0.2 + 0.1 * 0.5 ** np.arange(law.largest_dose + 1)  # losses at 0, 1, 2, ... mates
    >>> whole = law.plain(8) @ g
    >>> laws = [law.validation(8, 0), law.validation(8, 1), law.held_back(8), law.row_folds(8)]
    >>> level = np.array(laws) @ g
    >>> scores = np.array([8, 7, 4, 8])[:, None] * np.ones((1, 50), dtype=int)
    >>> losses = DoseLosses(
    ...     sizes=np.full(50, 8),
    ...     doses=np.array([[0], [1]]) * np.ones((1, 50), dtype=int),
    ...     differences=(level - whole)[:, None] * scores,
    ...     counts=scores,
    ...     loco=np.full((1, 50), whole),
    ...     folds=np.arange(50)[None] % 5,
    ...     training_share=0.8,
    ...     held_back_share=law.held_back_share,
    ...     refits=15,
    ... )
    >>> found = estimate_doses(losses, law)
    >>> round(found.loco, 2), round(found.e0, 2)  # e_0 is 0.3
    (0.27, 0.29)
    """
    return DoseFit(losses, bounds=bounds, level=level).estimate(law, law_range=law_range)


class DoseFit:
    """The part of the estimate that does not depend on the law, for use with many laws.

    Parameters
    ----------
    losses, bounds, level
        As in `estimate_doses`.
    by_pairs : bool
        Whether losses are of pairs of rows, so that the doses of other rows shift those of all.
    chance : float or None
        The loss of a random ranking. Estimates are not larger, unless LOCO is: that would be an
        artefact of the extrapolation, as no model ranks new clusters the wrong way round.
    is_mean : bool
        Whether losses are means over rows, which clusters without any error then limit. Scores such
        as F1 and AUC depend on the rarer class, so that they do not.
    """

    def __init__(
        self,
        losses: DoseLosses,
        *,
        bounds: tuple[float, float | None] = (0.0, 1.0),
        level: float = 0.95,
        by_pairs: bool = False,
        chance: float | None = None,
        is_mean: bool = True,
    ) -> None:
        if not 0 < level < 1:
            raise InputError(f"level={level!r} must lie between 0 and 1.")
        if bounds[1] is not None and bounds[1] <= bounds[0]:
            raise InputError(f"bounds={bounds!r} must be a smaller and a larger number.")
        self.losses, self.bounds, self.level, self.is_mean = losses, bounds, level, is_mean
        self._cells = _Cells.of(losses, bounds)
        self._worst = bounds[1] if chance is None else max(chance, self._cells.loco)
        shifted = np.ones(len(self._cells.level))
        if by_pairs:  # in folds of single rows both rows of a pair have the same dose
            shifted = np.where(self._cells.level == losses.by_row, 0.0, 1.0)
        deviations = PAIR_SHIFTS if by_pairs else COMPOSITIONS
        self._noises = [_Noise.of(self._cells, tau, shifted) for tau in deviations]
        freedom = max(self._cells.effective - 1, min(2, len(self._cells.share) - 1))
        self._quantile = float(stats.t.ppf((1 + level) / 2, freedom))

    def estimate(self, law: Law, *, law_range: tuple[Law, Law] | None = None) -> DoseSolution:
        """Return the estimate under a law, or under a law and the ends of a range around it."""
        cells = self._cells
        laws = _Laws.of(self.losses, cells, law)
        doses = self._curve_doses(law)
        unseen, held = laws.x0[:-2], laws.held[:-2]
        functionals = np.vstack([unseen, unseen - cells.effects.at(doses).T, -held])
        (found,) = _Posterior.of_each(cells, laws.x[None], functionals[None], self._noises)
        parts = self._variance(found, laws)
        e0 = self._clipped(cells.loco + float(found.mean[0]))
        stderr = math.sqrt(sum(parts))
        low, high = self._interval(e0, stderr, laws)
        ids = parts[2]
        if law_range is not None:
            ends = [self.reading(end) for end in law_range]
            low, high = min(low, *(r.low for r in ends)), max(high, *(r.high for r in ends))
            spread = max(r.e0 for r in ends) - min(r.e0 for r in ends)
            ids += spread**2 / 12
            stderr = math.sqrt(parts[0] + parts[1] + ids)
        curve = self._curve(found, laws, doses)
        return DoseSolution(
            e0=e0,
            interval=(low, high),
            stderr=stderr,
            loco=cells.loco,
            loco_interval=self._interval(
                cells.loco, math.sqrt(CORRELATED_ERRORS * cells.level_variance), laws
            ),
            variance=VarianceParts(clusters=parts[0], refits=parts[1], ids=ids),
            curve=curve,
            no_effect=found.no_effect,
            effect=-float(found.mean[-1]),
            p_value=cells.p_value,
            shrunk=found.no_effect > 0.5,
            unseen=laws.unseen,
            effective_clusters=cells.effective,
            refits=self.losses.refits,
        )

    def reading(self, law: Law) -> DoseReading:
        """Return e_0 and its interval under a law."""
        laws = _Laws.of(self.losses, self._cells, law)
        return self._reading(self._posterior(laws), laws)

    def readings(
        self, law: Callable[[float], Law], known: Sequence[float], at: Sequence[float]
    ) -> list[DoseReading]:
        """Return e_0 and its interval along a rate, from the laws at some rates.

        Between these, laws are interpolated; see `rates_between`. e_0 itself bends where the weights of kinds
        change, and where it is limited. Laws bend where a rate is so high that no cluster can have a certain
        true size any more. Where laws cannot be predicted from those at other rates, more of them are used.

        Parameters
        ----------
        law : callable
            Returns the law at a rate.
        known : sequence of float
            Rates whose laws are used, in ascending order.
        at : sequence of float
            The rates for which e_0 is returned, in ascending order.
        """

        def read(rate: float) -> _Laws:
            return _Laws.of(self.losses, self._cells, law(rate))

        rates, laws = [*known], [read(rate) for rate in known]
        if [*at] == rates:
            return self._read_all(laws)
        for _ in range(REFINEMENTS):
            more = self._between_rough(rates, laws)
            if not more:
                break
            found = dict(zip(rates, laws, strict=True)) | {rate: read(rate) for rate in more}
            rates = sorted(found)
            laws = [found[rate] for rate in rates]
        return self._read_all(_Laws.between(laws, self._law_scale(rates), self._law_scale(at)))

    def _between_rough(self, rates: Sequence[float], laws: "Sequence[_Laws]") -> list[float]:
        """Return the middles beside rates at which the laws at the other rates give another interval."""
        if len(rates) < ENOUGH_TO_PREDICT:
            return []
        place = self._law_scale(rates)
        predicted, every = [], np.arange(len(rates))
        for inner in every[1:-1]:
            rest = every != inner
            weights = CubicSpline(place[rest], np.eye(len(rates))[rest])(place[inner])
            predicted.append(_Laws.sum(laws, weights))
        rough = set()
        read = zip(every[1:-1], self._read_all(laws)[1:-1], self._read_all(predicted), strict=True)
        for inner, is_, would_be in read:
            off = max(
                abs(is_.e0 - would_be.e0),
                abs(is_.low - would_be.low),
                abs(is_.high - would_be.high),
            )
            if off > ROUGH * (is_.high - is_.low):
                rough |= {inner - 1, inner}
        middles = [np.expm1((place[left] + place[left + 1]) / 2) for left in sorted(rough)]
        return [float(middle) / self.typical_size for middle in middles]

    def _read_all(self, laws: "Sequence[_Laws]") -> list[DoseReading]:
        x, x0 = np.array([own.x for own in laws]), np.array([own.x0 for own in laws])
        found = _Posterior.of_each(self._cells, x, x0[:, None, :-2], self._noises)
        return [self._reading(*pair) for pair in zip(found, laws, strict=True)]

    def rates_between(
        self, first: float, last: float, number: int, exact: Sequence[float] = ()
    ) -> Array:
        """Return rates from whose laws those of all rates between the first and the last follow.

        Laws change where a wrong id is one more for a whole cluster: they are smooth in log(1 + M·rate), with
        M rows in a typical cluster. On this scale they are interpolated by cubic splines between nodes of
        Chebyshev.

        Parameters
        ----------
        first, last : float
        number : int
            Of nodes.
        exact : sequence of float
            Rates that are among those returned, unless they are as good as the same. Nodes close to them
            give way.
        """
        low, high = self._law_scale([first, last]).tolist()
        places = (low + high) / 2 - (high - low) / 2 * np.cos(np.linspace(0, np.pi, number))[1:-1]
        far = np.abs(places[:, None] - self._law_scale(exact)).min(axis=1, initial=np.inf)
        apart = np.expm1(places[far > (high - low) / number / 4]) / self.typical_size
        inner = np.unique([*apart, *exact])
        gaps = np.diff(self._law_scale([first, *inner]))
        before_last = high - self._law_scale(inner) > SAME_RATE * (high - low)
        kept = inner[(gaps > SAME_RATE * (high - low)) & before_last]
        return np.array([first, *kept, last])

    def _law_scale(self, rates: ArrayLike) -> Array:
        return np.log1p(self.typical_size * np.asarray(rates, dtype=np.float64))

    def _posterior(self, laws: "_Laws") -> "_Posterior":
        """Return the posterior of e_0 less LOCO."""
        x, x0 = laws.x[None], laws.x0[None, None, :-2]
        (found,) = _Posterior.of_each(self._cells, x, x0, self._noises)
        return found

    def _reading(self, found: "_Posterior", laws: "_Laws") -> DoseReading:
        e0 = self._clipped(self._cells.loco + float(found.mean[0]))
        stderr = math.sqrt(sum(self._variance(found, laws)))
        low, high = self._interval(e0, stderr, laws)
        return DoseReading(e0=e0, low=low, high=high, stderr=stderr, unseen=laws.unseen)

    def variance(self, law: Law) -> VarianceParts:
        """Return where the squared standard error of e_0 comes from."""
        laws = _Laws.of(self.losses, self._cells, law)
        clusters, refits, ids = self._variance(self._posterior(laws), laws)
        return VarianceParts(clusters=clusters, refits=refits, ids=ids)

    @property
    def typical_size(self) -> float:
        """The number of rows of the cluster of a typical row."""
        return self._cells.typical_size

    @property
    def loco(self) -> float:
        """The score with noisy ids."""
        return self._cells.loco

    @property
    def loco_influence(self) -> Array:
        """The first-order contributions of the clusters to the error of LOCO."""
        return self._cells.influence

    @property
    def degrees_of_freedom(self) -> float:
        """Degrees of freedom of the standard errors."""
        return self._cells.effective - 1

    @property
    def mates_help(self) -> bool:
        """Whether the test shows that mates in training lower the loss (one-sided, 5%)."""
        return self._cells.p_value <= 1 - self.level

    def influence(self, law: Law) -> Array:
        """Return the first-order contributions of the clusters to the error of e_0."""
        found = self._posterior(_Laws.of(self.losses, self._cells, law))
        return np.asarray(self._cells.influence + found.weights[0] @ self._cells.influence_y)

    def _variance(
        self, found: "_Posterior", laws: "_Laws", of: int = 0
    ) -> tuple[float, float, float]:
        """Return the variance from clusters, from refits and from unknown doses."""
        sampling = self._cells.sampling.at(found.weights[of])
        if len(self._cells.share) < FEW_CLUSTERS:  # covariances of so few cancel by chance
            sampling = max(sampling, self._cells.level_variance)
        least, most = (CORRELATED_ERRORS - 1) * sampling, (MOST_CORRELATED - 1) * sampling
        sampling += min(max(self._cells.training_variance, least), most)
        sampling *= laws.hidden_dependence
        refits = min(self._cells.refits.at(found.weights[of]), sampling)
        return sampling - refits, refits, float(found.shape[of])

    def _clipped(self, loss: float) -> float:
        least, most = self.bounds[0], self._worst
        return max(loss, least) if most is None else min(max(loss, least), most)

    def _interval(self, value: float, stderr: float, laws: "_Laws") -> tuple[float, float]:
        """Return an interval on the logit scale of bounded losses, else on the log scale.

        Where no row has a loss, the standard error is 0 and says nothing: see `_without_errors`.
        """
        reach = self._quantile * stderr
        least, most = self.bounds
        above = value - least
        if most is None:
            above = max(above, 1e-12)
            factor = math.exp(min(reach / above, 30))
            low, high = least + above / factor, least + above * factor
        else:
            x = min(max(above / (most - least), 1e-3), 1 - 1e-3)
            centre, step = math.log(x / (1 - x)), reach / (most - least) / (x * (1 - x))
            ends = (1 / (1 + math.exp(-(centre + s * min(step, 30)))) for s in (-1, 1))
            low, high = (least + (most - least) * end for end in ends)
        if self._cells.loco <= least:
            high = max(high, self._without_errors(laws.unseen))
        return min(low, value), max(high, value)

    def _without_errors(self, unseen: float) -> float:
        """Return the upper limit of a loss of which no validation row has any; the lower one is 0.

        n clusters without errors are improbable if a larger share of clusters has one: (1 - share)^n is
        half of 1 - level at the limit, about 3.7/n for 95%. The loss is at most that share of the
        largest one. Rows with mates in training say nothing about new clusters, so only the share
        `unseen` of the effective number of clusters counts.
        """
        least, most = self.bounds
        if most is None or self._worst is None:
            return least
        if not self.is_mean:
            return self._worst
        clusters = max(self._cells.effective * unseen, 1e-9)
        share = 1 - math.pow((1 - self.level) / 2, 1 / clusters)
        return min(least + (most - least) * share, self._worst)

    def _curve_doses(self, law: Law) -> Integers:
        """Return every dose up to ten, then about ten more to the largest common dose."""
        laws = [law.held_back(size) for size in self._cells.sizes.tolist()]
        held = np.zeros(max(map(len, laws)))
        for share, of_size in zip(self._cells.size_share, laws, strict=True):
            held[: len(of_size)] += share * of_size
        above = 1 - np.cumsum(held)
        largest = int(np.argmax(above < 0.005)) if (above < 0.005).any() else held.size - 1
        every = np.arange(min(largest, EVERY_DOSE) + 1)
        more = np.round(np.geomspace(EVERY_DOSE, max(largest, EVERY_DOSE), 10)).astype(np.intp)
        return np.unique(np.concatenate([every, more[more <= largest]]))

    def _curve(self, found: "_Posterior", laws: "_Laws", doses: Integers) -> DoseCurve:
        places = range(1, len(doses) + 1)
        loss = [self._clipped(self._cells.loco + float(found.mean[k])) for k in places]
        errors = [math.sqrt(sum(self._variance(found, laws, k))) for k in places]
        ends = [self._interval(*pair, laws) for pair in zip(loss, errors, strict=True)]
        return DoseCurve(
            d=tuple(int(d) for d in doses),
            loss=tuple(loss),
            low=tuple(low for low, _ in ends),
            high=tuple(high for _, high in ends),
        )


# --- Means of differences by stratum of sizes and level, and their covariance over clusters


def _stratum(size: int) -> int:
    """Return the stratum: sizes 1, 2, 3, 4-5, 6-11, 12-23, and so on."""
    return size if size <= 3 else 4 if size <= 5 else 5 + int(math.log2(size / 6))


def _strata(different: NDArray[Any], size: Integers) -> Integers:
    """Return the stratum of each cluster, from the different sizes and the place of its own among them.

    Few clusters are one stratum: the noise of one with a single cluster cannot be seen.
    """
    if len(size) < FEW_CLUSTERS:
        return np.zeros(len(size), dtype=np.intp)
    return np.array([_stratum(number) for number in different.tolist()], dtype=np.intp)[size]


@dataclass(frozen=True, eq=False)
class _Quadratic:
    """A variance as a function of the weights w that the differences have beside LOCO.

    It is the sum over clusters of (a + w·B)²/n + Σ w²·c, kept in its coefficients of w: there are many
    weights, and many more clusters than cells.
    """

    constant: float
    linear: Array  # (cells,)
    square: Array  # (cells, cells)

    @classmethod
    def of(cls, a: Array, B: Array, n: Array | float = 1.0, c: Array | float = 0.0) -> "_Quadratic":
        divided = a / n
        square = (B / n) @ B.T
        square[np.diag_indices(len(B))] += c
        return cls(float(divided @ a), 2 * B @ divided, square)

    def at(self, weights: Array) -> float:
        """Return the variance at some weights."""
        return max(self.constant + float((self.linear + self.square @ weights) @ weights), 0.0)


@dataclass(frozen=True, eq=False)
class _Cells:
    """Mean differences y of all cells (stratum by level), their covariance and influences."""

    level: Integers  # (cells,)
    y: Array
    covariance: Array
    influence_y: Array  # (cells, clusters)
    share: Array  # (clusters,): of the rows behind LOCO
    loco: float
    influence: Array  # of LOCO
    effective: float
    typical: float  # LOCO above the least possible loss
    typical_size: float  # rows of the cluster of a typical row
    scale: float  # how large effects can be
    effects: Effects
    training_variance: float  # of LOCO, over sets of training clusters
    sampling: _Quadratic  # variance over clusters of LOCO and differences
    refits: _Quadratic  # variance over refits of the same
    sizes: Integers  # the different sizes of clusters
    first: Integers  # (sizes,): the first cluster of each size
    size_share: Array  # (sizes,): sums of `share`
    size_weight: Array  # (cells, sizes): share of the clusters of each size in a cell
    p_value: float

    @property
    def level_variance(self) -> float:
        """Variance of LOCO over clusters."""
        return float((self.influence**2).sum())

    @classmethod
    def of(cls, losses: DoseLosses, bounds: tuple[float, float | None]) -> "_Cells":
        sizes = losses.sizes.astype(float)
        seen = np.isfinite(losses.loco)
        passes = seen.sum(axis=0)
        own = np.where(seen, losses.loco, 0).sum(axis=0) / np.maximum(passes, 1)
        share = np.where(passes > 0, sizes, 0)
        share = share / share.sum()
        loco = float(share @ own)
        n = int((passes > 0).sum())
        influence = share * (own - loco) * math.sqrt(n / (n - 1))
        different, first, size = np.unique(losses.sizes, return_index=True, return_inverse=True)
        strata = _strata(different, size)
        noise = _row_noise(losses)
        effective = float(1 / (share**2).sum())
        typical_size = float(np.median(np.repeat(sizes, losses.sizes)))
        parts = [_Part.of(losses, inside) for inside in _places(strata)]
        cells = np.cumsum([0, *(len(part.level) for part in parts)])
        blocks = [slice(*ends) for ends in pairwise(cells.tolist())]
        influence_y = np.zeros((cells[-1], len(sizes)))
        size_weight = np.zeros((cells[-1], len(different)))
        of_refits = np.zeros((cells[-1], len(sizes)))
        spread = np.zeros(cells[-1])
        for part, block in zip(parts, blocks, strict=True):
            influence_y[block, part.clusters] = part.weight * part.residual
            of_refits[block, part.clusters] = -math.sqrt(noise) * part.weight
            spread[block] = noise * (part.weight**2 / part.scores).sum(axis=1)
            for row, weight in zip(size_weight[block], part.weight, strict=True):
                row += np.bincount(size[part.clusters], weight, len(different))

        return cls(
            level=np.concatenate([part.level for part in parts]),
            y=np.concatenate([part.y for part in parts]),
            covariance=_covariance(parts, blocks, sizes, effective),
            influence_y=influence_y,
            share=share,
            loco=loco,
            influence=influence,
            effective=effective,
            typical=max(loco - bounds[0], 1e-9),
            typical_size=typical_size,
            scale=_scale(loco, bounds),
            # in units of a fifteenth of a typical cluster, or of one row
            effects=Effects(max(1.0, typical_size / 15)),
            training_variance=_training_variance(losses),
            sampling=_Quadratic.of(influence, influence_y),
            refits=_Quadratic.of(
                math.sqrt(noise) * share, of_refits, np.maximum(passes * sizes, 1), spread
            ),
            sizes=different,
            first=first,
            size_share=np.bincount(size, share).astype(float),
            size_weight=size_weight,
            p_value=_paired_test(losses, effective),
        )


def _places(values: Integers) -> list[Integers]:
    """Return the places of each different value, in ascending order of the values."""
    order = np.argsort(values, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(values[order])) + 1)


@dataclass(frozen=True, eq=False)
class _Part:
    """The cells of one stratum. No cluster is in two strata."""

    clusters: Integers
    level: Integers  # (cells,)
    scores: Integers  # (cells, clusters), at least 1
    weight: Array  # (cells, clusters)
    residual: Array  # (cells, clusters): means less y
    y: Array  # (cells,)

    @classmethod
    def of(cls, losses: DoseLosses, clusters: Integers) -> "_Part":
        counts = losses.counts[:, clusters]
        level = np.flatnonzero(counts.any(axis=1))
        counts = counts[level]
        weight = counts / counts.sum(axis=1, keepdims=True)
        scores = np.maximum(counts, 1)
        mean = losses.differences[level[:, None], clusters] / scores
        mean[counts == 0] = 0
        y = np.einsum("kc,kc->k", weight, mean)
        return cls(clusters, level, scores, weight, mean - y[:, None], y)


def _scale(loco: float, bounds: tuple[float, float | None]) -> float:
    """Return how large effects can be: LOCO, or the largest standard deviation of a bounded loss."""
    least, most = bounds
    above = max(loco - least, 1e-9)
    return above if most is None else math.sqrt(above * max(most - loco, 1e-9))


def _covariance(
    parts: Sequence[_Part], blocks: Sequence[slice], sizes: Array, effective: float
) -> Array:
    """Return the covariance of cell means over clusters, pooled over strata.

    The covariance of a cluster's means at levels i and j is R_ij·(a + b/M). R is pooled over all
    clusters; its variances and its correlations are shrunk towards their means, because levels that
    vary little by chance must not get large weights. a and b are fitted to squares.
    """
    n_levels = 1 + max(int(part.level.max(initial=0)) for part in parts)
    r, known = np.zeros((n_levels, len(sizes))), np.zeros((n_levels, len(sizes)))
    for part in parts:
        inside = part.weight > 0
        number = inside.sum(axis=1)
        places = part.level[:, None], part.clusters
        spare = inside & (number > 1)[:, None]
        factor = np.sqrt(number / np.maximum(number - 1, 1))[:, None]
        r[places], known[places] = np.where(spare, part.residual * factor, 0), spare
    number = known.sum(axis=1)
    square = _pooled((r**2).sum(axis=1), number)
    where = known > 0
    ratio = (r**2 / square[:, None])[where]
    design = np.stack([np.ones_like(r), np.broadcast_to(1 / sizes, r.shape)])[:, where].T
    a, b = optimize.nnls(design, ratio)[0] if ratio.size else (1.0, 0.0)
    per_cluster = a + b / sizes if a + b > 0 else np.ones_like(sizes)
    scaled = r / np.sqrt(per_cluster)
    deviation = np.sqrt(_pooled((scaled**2).sum(axis=1), number))
    pairs = known @ known.T
    correlation = scaled @ scaled.T / np.maximum(pairs, 1) / np.outer(deviation, deviation)
    np.fill_diagonal(pairs, 0)
    common = float((pairs * correlation).sum() / max(pairs.sum(), 1))
    trust = pairs * effective / len(sizes)
    trust = trust / (trust + n_levels)
    correlation = trust * correlation + (1 - trust) * common
    np.fill_diagonal(correlation, 1)
    values, vectors = np.linalg.eigh(correlation)
    correlation = (vectors * np.maximum(values, 0.02)) @ vectors.T
    R = correlation * np.outer(deviation, deviation)
    covariance = np.zeros((blocks[-1].stop, blocks[-1].stop))
    for part, block in zip(parts, blocks, strict=True):
        weight, levels = part.weight, np.ix_(part.level, part.level)
        covariance[block, block] = (weight * per_cluster[part.clusters]) @ weight.T * R[levels]
    return covariance


def _pooled(squares: Array, number: Array) -> Array:
    """Return variances of levels, shrunk towards their mean as by `BORROWED` more clusters."""
    typical = max(float(squares.sum() / max(number.sum(), 1)), 1e-300)
    return np.asarray((squares + BORROWED * typical) / (number + BORROWED))


def _training_variance(losses: DoseLosses) -> float:
    """Return the variance of LOCO over sets of training clusters; 0 with fewer than two passes.

    Clusters in one fold share a model, and from pass to pass that model changes with the training
    clusters that are left out, a share 1 - t of all. So what the losses of different clusters of a
    fold have in common, beyond each cluster's own mean, has the variance σ² of a random subset. If each
    training cluster adds its part to the loss, sets of other clusters vary by t/(1 - t)·σ². Learners
    that change a lot with few rows do not add up like that, and σ² is noisy: `DoseFit` bounds it.
    """
    passes = len(losses.loco)
    if passes < 2 or not np.isfinite(losses.loco).all():
        return 0.0
    sizes = losses.sizes.astype(float)
    deviation = sizes * (losses.loco - losses.loco.mean(axis=0))
    common = pairs = together = 0.0
    for own, folds in zip(deviation, losses.folds, strict=True):
        total, rows = np.bincount(folds, own), np.bincount(folds, sizes)
        common += float((total**2).sum() - (own**2).sum())
        pairs += float((rows**2).sum() - (sizes**2).sum())
        together += float((rows**2).sum()) / (len(losses.loco) * sizes.sum() ** 2)
    if pairs <= 0:
        return 0.0
    # deviations from the mean over passes keep this share of σ²; two clusters meet again by chance
    kept = (1 - 1 / passes) ** 2 + (passes - 1) / passes**2 * together
    return max(common / pairs / kept, 0.0) * (1 - together) / together


def _row_noise(losses: DoseLosses) -> float:
    """Return the variance of a row's loss between refits, from whole refits of the same clusters.

    With a single pass, dose 0 of the rotated refits takes the place of a second one. Without those, folds
    of single rows do, around their mean difference: clusters differ in what mates give away, so the
    variance is then too large rather than too small.
    """
    seen = np.isfinite(losses.loco)
    passes = seen.sum(axis=0)
    if (passes > 1).any():
        mean = np.where(seen, losses.loco, 0).sum(axis=0) / np.maximum(passes, 1)
        squares = np.where(seen, (losses.loco - mean) ** 2, 0).sum(axis=0)
        return float((squares * losses.sizes).sum() / (passes[passes > 1] - 1).sum())
    level = 0 if losses.counts[0].any() else losses.by_row
    again = losses.counts[level] > 0
    if not again.any():
        return 0.0
    difference = losses.differences[level][again] / losses.counts[level][again]
    if level:
        difference = difference - difference.mean()
    return float((difference**2 / 2 * losses.sizes[again]).mean())


def _paired_test(losses: DoseLosses, effective: float) -> float:
    """Return the p-value of the test that rows with nearly all mates in training lose no less.

    They are the held-back rows, against dose 0; without rotated refits those in folds of single rows,
    against whole refits.
    """
    rotated = losses.counts[0] > 0
    seen = losses.held_back if rotated.any() else losses.by_row
    both = (losses.counts[seen] > 0) & (rotated | (seen == losses.by_row))
    if both.sum() < 3:
        return 1.0
    means = losses.differences[:, both] / np.maximum(losses.counts[:, both], 1)
    gain = means[0] - means[seen]
    weight = losses.counts[seen][both] / losses.counts[seen][both].sum()
    mean = float(weight @ gain)
    n = len(gain)
    variance = float((weight**2 * (gain - mean) ** 2).sum()) * n / (n - 1) * CORRELATED_ERRORS
    if variance <= 0:
        return 1.0 if mean <= 0 else 0.0
    return float(stats.t.sf(mean / math.sqrt(variance), max(effective - 1, 2)))


# --- Laws of the cells


@dataclass(frozen=True, eq=False)
class _Laws:
    """Expectations of effects under the laws of the cells.

    Attributes
    ----------
    x : array, cells by kinds
        Under the law of each cell, less those under the law of its rows in unchanged folds.
    x0, held : array
        Under the laws behind LOCO and of held-back rows, followed by P(0) and E[d].
    """

    x: Array
    x0: Array
    held: Array

    @classmethod
    def of(cls, losses: DoseLosses, cells: _Cells, law: Law) -> "_Laws":
        law = law.expecting(cells.effects)
        sizes, first = cells.sizes, cells.first
        plain, held, rows = (
            np.array([law_of(size) for size in sizes.tolist()])
            for law_of in (law.plain, law.held_back, law.row_folds)
        )
        x = []
        for level, shares in zip(cells.level.tolist(), cells.size_weight, strict=True):
            at = np.flatnonzero(shares)
            if level < losses.held_back:
                doses = losses.doses[level, first[at]]
                pairs = zip(sizes[at].tolist(), doses.tolist(), strict=True)
                own = np.array([law.validation(*pair) for pair in pairs])
            else:
                own = (held if level == losses.held_back else rows)[at]
            x.append(shares[at] @ (own - plain[at])[:, :-2])
        return cls(x=np.array(x), x0=cells.size_share @ plain, held=cells.size_share @ held)

    @classmethod
    def between(cls, known: "Sequence[_Laws]", place: Array, wanted: Array) -> "list[_Laws]":
        """Return the laws at some places, interpolated between those at others."""
        weights = CubicSpline(place, np.eye(len(place)))(wanted)
        return [cls.sum(known, own) for own in weights]

    @classmethod
    def sum(cls, laws: "Sequence[_Laws]", weights: Array) -> "_Laws":
        """Return a weighted sum of laws: shares remain shares, and mean doses positive."""
        x, x0, held = (
            np.tensordot(weights, [getattr(law, name) for law in laws], 1)
            for name in ("x", "x0", "held")
        )
        for expected in (x0, held):
            np.clip(expected[:-1], 0, 1, out=expected[:-1])
            expected[-1] = max(expected[-1], 0.0)
        return cls(x=x, x0=x0, held=held)

    @property
    def unseen(self) -> float:
        """The share of rows without mates in training."""
        return min(max(float(self.x0[-2]), 0.0), 1.0)

    @property
    def hidden_dependence(self) -> float:
        """Pairs of true mates over pairs of true mates with the same id.

        Rows of one true cluster vary together; a sum over noisy clusters sees that only where they share
        an id. A held-back row has its mates of the same id in training, beside those that a validation
        row has: the difference of the mean doses is the number of mates with the same id.
        """
        apart, together = float(self.x0[-1]), float(self.held[-1] - self.x0[-1])
        # where almost no row has mates, both are rounding errors; mates apart that vary as one add no
        # more than their number
        most = min(10.0, 1 + 10 * apart)
        return min(1 + apart / max(together, 1e-9), most) if apart > 1e-9 else 1.0


# --- The effect of mates


@dataclass(frozen=True, eq=False)
class _Noise:
    """The covariance of y beside the effect of mates, for one prior standard deviation of δ."""

    covariance: Array
    log_determinant: float
    white_y: Array

    @classmethod
    def of(cls, cells: _Cells, tau: float, shifted: Array) -> "_Noise":
        """Return it for δ with a standard deviation of `tau` times LOCO, which shifts some cells."""
        noise = cells.covariance + np.eye(len(cells.y)) * (MISFIT * cells.typical) ** 2
        noise += (tau * cells.typical) ** 2 * np.outer(shifted, shifted)
        white_y = np.asarray(np.linalg.solve(noise, cells.y), dtype=float)
        return cls(noise, float(np.linalg.slogdet(noise)[1]), white_y)


@dataclass(frozen=True, eq=False)
class _Posterior:
    """Linear functionals of γ, averaged over all kinds and scales of effects.

    For a kind F with γ = -A·F and A ~ N(0, a²), the differences are y = A·f + noise with f = -E[F] of its
    cell, so A
    has a normal posterior in closed form, and its evidence is that of a regression with one
    coefficient. Student's t in place of the normal evidence, with the effective number of clusters less
    one as degrees of freedom, allows for the estimated covariance.

    If nearly all rows have mates in training, y says little about kinds that are complete at the first
    mates: its likelihood is the same for all sizes of their effects. How far e_0 is from LOCO is then
    left to the prior probability of a kind, which the interval must not depend on. `shape` is the mean
    square distance from the estimate, for even odds, or, if that is larger, for the kind for which it is
    largest. A kind counts alone by its marginal likelihood, relative to the largest one, and by the
    part of the prior variance of its effect that remains.
    """

    mean: Array  # (functionals,)
    shape: Array  # mean square distance from the truth, less what sampling y adds to it
    weights: Array  # (functionals, cells): derivative of the mean by y
    no_effect: float

    @classmethod
    def of_each(
        cls, cells: _Cells, x: Array, functional: Array, noises: Sequence[_Noise]
    ) -> "list[_Posterior]":
        """Return the posterior for each of several laws.

        Parameters
        ----------
        cells : _Cells
        x : array, laws by cells by kinds
        functional : array, laws by functionals by kinds
            The functionals of -F.
        noises : sequence of _Noise
        """
        y, V, n = cells.y, cells.covariance, len(cells.y)
        f, prior = -x, cells.effects.prior
        variances = (np.array(AMPLITUDES)[:, None, None] * cells.scale) ** 2
        degrees = max(cells.effective - 1, 3)

        def fit(squares: Any) -> Any:
            return -0.5 * (degrees + n) * np.log1p(squares / degrees)

        null, evidence, amount, left, white = [], [], [], [], []
        for noise in noises:
            white_y, white_f = noise.white_y, np.linalg.solve(noise.covariance, f)
            constant, square = -0.5 * noise.log_determinant, float(y @ white_y)
            # amplitudes by laws by kinds
            grown = 1 + variances * (f * white_f).sum(axis=1)
            remaining, seen = variances / grown, white_y @ f
            A = remaining * seen
            null.append(constant + fit(square))
            evidence.append(constant - 0.5 * np.log(grown) + fit(square - A * seen))
            amount.append(A)
            left.append(remaining)
            white.append(white_f)
        # noises by amplitudes by laws by kinds
        logs, log_null = np.array(evidence) + np.log(prior / len(AMPLITUDES)), np.array(null)
        top = np.maximum(logs.max(axis=(0, 1, 3)), log_null.max())
        effects = np.exp(logs - top[:, None])
        none = np.exp(log_null[:, None] - top).sum(axis=0)
        amounts, remaining = np.array(amount), np.array(left)

        def averaged(no_effect: float) -> tuple[Array, Array]:
            total = (1 - no_effect) * effects.sum(axis=(0, 1, 3)) + no_effect * none
            return (1 - no_effect) * effects / total[:, None], no_effect * none / total

        p, p_null = averaged(NO_EFFECT)
        mean = (functional @ (p * amounts).sum(axis=(0, 1))[..., None])[..., 0]
        weights = sum(
            (functional * share[:, None]) @ white_f.swapaxes(1, 2)
            for share, white_f in zip((p * remaining).sum(axis=1), white, strict=True)
        )
        squares = amounts**2 + remaining

        def distance(share: Array) -> Array:
            """Return the mean square distance from the estimate for shares of effects, by kind."""
            first, second, total = (
                (share * values).sum(axis=(0, 1))[:, None] for values in (amounts, squares, 1.0)
            )
            away = functional**2 * second - 2 * mean[..., None] * functional * first
            return np.asarray(away + mean[..., None] ** 2 * total)

        # the interval is for even odds, and for each kind alone as far as y leaves it open
        even, even_null = averaged(0.5)
        most = np.maximum(none, (effects.sum(axis=(0, 1)) / prior).max(axis=1))
        square = distance(even).sum(axis=2) + even_null[:, None] * mean**2
        alone = effects / prior / most[:, None] * remaining / variances
        square = np.maximum(square, distance(alone).max(axis=2))
        sampled = ((weights @ V) * weights).sum(axis=2)
        shape = np.maximum(square - sampled, 0)
        parts = zip(mean, shape, weights, p_null.tolist(), strict=True)
        return [cls(*part) for part in parts]
