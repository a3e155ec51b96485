"""What is known about the leakage, from the user or linkage evidence, and what follows for e0."""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from numbers import Real
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from mlflow_b3.data.folds import Fold, FoldSummary, summarize_folds
from mlflow_b3.data.table import AuditData
from mlflow_b3.errors import InputError, choose
from mlflow_b3.estimation.dose import DoseSolution
from mlflow_b3.estimation.dose_law import cluster_error_of_shares, split_of_seen_share
from mlflow_b3.estimation.estimate import (
    Estimate,
    LossDistribution,
    Method,
    as_range,
    distribution_of,
    estimate_range,
    one_share,
    solve,
)
from mlflow_b3.estimation.fragments import (
    FragmentEstimate,
    estimate_fragments,
    mixture_error,
    mixture_weights,
    seen_share,
    weigh_fragments,
)
from mlflow_b3.estimation.influence import Array, Reading, curve_gradient, curve_influence
from mlflow_b3.estimation.p0 import P0Bound, largest_share
from mlflow_b3.estimation.problem import (
    Extrapolation,
    LeakShares,
    SeenShare,
    shares_of_cluster_error,
    unmix,
)
from mlflow_b3.estimation.sensitivity import ExtrapolationPath, Sensitivity, trace_extrapolation
from mlflow_b3.linkage.folds import LeakSafeFolds, SafeGroups, purge_mask, safe_groups
from mlflow_b3.linkage.leak import LARGEST, LeakEstimate, Splits, uncalibrated_prior
from mlflow_b3.linkage.leak_sources import (
    leak_from_pairs,
    leak_from_partition_samples,
    leak_from_quality,
    read_partition_samples,
)
from mlflow_b3.linkage.pairs import PairTable, read_pairs
from mlflow_b3.linkage.resolved import ResolvedRows
from mlflow_b3.linkage.review import parse_review
from mlflow_b3.measurement.collecting import Measurement, Tail, robust_covariance
from mlflow_b3.measurement.doses import DoseLosses
from mlflow_b3.measurement.refits import UNIFORM, FragmentSizes, breakable
from mlflow_b3.results import Result, not_percentage, percent, read_number, read_share

# --- What is known about the leakage: misplaced rows, split clusters, or nothing

#: A column with the probability that the cluster id of each row is right.
MATCH_COLUMN = "match_column"
#: Linkage evidence that gives the leak shares of the actual folds, by the audit's arguments.
EVIDENCE = ("resolved_rows", "partition_samples", "linkage_quality", "match_probability")
#: Evidence of match probabilities, which nobody has checked.
UNCHECKED = (MATCH_COLUMN, "match_probability")
#: How many equally likely shares stand for what evidence says about the leaked share.
PRIOR_NODES = 400

SPLIT_RATE, CLUSTER_ERROR = "split rate", "cluster error"
Folds = tuple[FoldSummary, ...]
Read = tuple[Reading, Array]


@dataclass(frozen=True, kw_only=True, eq=False)
class Case:
    """What the loss on new clusters is solved from.

    Attributes
    ----------
    measured : Measurement
    folds : tuple of FoldSummary
    method : Method
        How a loss curve is extrapolated.
    bound : float or None
        The largest possible loss.
    """

    measured: Measurement
    folds: Folds
    method: Method
    bound: float | None


@dataclass(frozen=True, kw_only=True)
class Solution:
    """The loss on new clusters under one kind of leakage.

    Attributes
    ----------
    e0 : float or None
        None if nothing is known, or if what is known excludes nothing.
    interval : tuple of float
    p0 : float or None
        The leaked share that e0 is for.
    secant : float or None
        Lower limit of e0 that holds if the loss curve is convex.
    estimate : Estimate or None
        If e0 is read from the loss curve.
    path : ExtrapolationPath or None
        The curve between its first level and e0.
    leaked, losses : tuple or None
        e_j for j leaked rows.
    residual : float or None
        The residual of the fit to the measured curve.
    distribution : LossDistribution or None
    dose : DoseSolution or None
        If e0 is solved from the losses by dose.
    """

    e0: float | None
    interval: tuple[float, float]
    p0: float | None = None
    secant: float | None = None
    estimate: Estimate | None = None
    path: ExtrapolationPath | None = None
    leaked: tuple[int, ...] | None = None
    losses: tuple[float, ...] | None = None
    residual: float | None = None
    distribution: LossDistribution | None = None
    dose: DoseSolution | None = None


@dataclass(frozen=True, kw_only=True)
class Rates:
    """How often ids are wrong, in either way.

    Attributes
    ----------
    cluster_error : float
        Share of the rows with a wrong id.
    split_rate : float
        Share of the rows whose true cluster is split.
    spread : float
        Above 1 if split clusters have more than two parts; see `DoseLaw`.
    """

    cluster_error: float = 0.0
    split_rate: float = 0.0
    spread: float = 1.0


@dataclass(frozen=True, kw_only=True)
class LeakageClaim(Result):
    """What was known about the leakage before the first refit, as it is recorded.

    Attributes
    ----------
    pattern : {"rows", "fragments", "unknown"}
        How cluster ids go wrong, as far as the user said.
    source : {"p0", "cluster_error", "split_rate", "mixture", "none"}, or linkage evidence: \
            {"resolved_rows", "partition_samples", "linkage_quality", "match_probability", "match_column"}
    range : tuple of float or None
        The range of leakage given, in the units of the source.
    centre : float or None
        The most likely value in that range, if it is not the middle.
    p0_validation : float or None
        As given with `p0`; None means that as many rows leak back as into training.
    linkage : LeakEstimate or None
        What linkage evidence says about the leak shares of these folds, where it was given.
    bound : P0Bound or None
        The upper bound on p0 that the rows themselves give; None when the leakage was given.
    split_range : tuple of float or None
        The split rates that were given beside a cluster error.
    """

    pattern: str
    source: str
    range: tuple[float, float] | None
    centre: float | None = None
    p0_validation: float | None
    linkage: LeakEstimate | None = None
    bound: P0Bound | None = None
    split_range: tuple[float, float] | None = None

    @property
    def middle(self) -> float:
        """The leakage that e0 is given for, in the units of the source; 0 without a range."""
        if self.centre is not None:
            return self.centre
        return sum(self.range) / 2 if self.range else 0.0


@dataclass(frozen=True, kw_only=True)
class Leakage(ABC):
    """What is known about the leakage, and what follows for the loss on new clusters.

    Everything that differs between kinds of leakage is here; other code does not look at the kind.
    Another kind is another subclass.

    Attributes
    ----------
    source : {"p0", "cluster_error", "split_rate", "mixture", "none"} or one of `EVIDENCE`
        The argument it was given by, or `mixture` for p0="mixture".
    low, high : float
        In the units of that argument; of p0 for `mixture`, where they follow from the rows; of the
        seen share s for evidence, where they follow from the folds; of the cluster error for a
        column of match probabilities.
    centre : float or None
        The most likely value, if it is not the middle.
    """

    #: Its name in records.
    pattern: ClassVar[str]
    #: The unit of tipping points.
    axis: ClassVar[str]
    #: Whether ids may be wrong row by row, so that e0 is read from the loss curve.
    misplaces: ClassVar[bool]
    #: Whether clusters may be split.
    splits: ClassVar[bool]
    #: What ids do, to follow "if cluster identifiers".
    damage: ClassVar[str]
    #: What remains unknown about it.
    open_question: ClassVar[str]

    source: str
    low: float = 0.0
    high: float = 0.0
    centre: float | None = None

    @property
    def middle(self) -> float:
        """The value that the estimate is for."""
        return (self.low + self.high) / 2 if self.centre is None else self.centre

    @property
    def is_known(self) -> bool:
        """Whether anything is known."""
        return True

    @property
    def leak(self) -> LeakEstimate | None:
        """What linkage evidence says about the leak shares of the folds."""
        return None

    @property
    def fragment_sizes(self) -> FragmentSizes:
        """How clusters are split; uniformly without evidence."""
        return UNIFORM

    @property
    def is_vacuous(self) -> bool:
        """Whether evidence leaves open that all validation rows were seen, or says that they were."""
        return False

    @property
    def is_unchecked(self) -> bool:
        """Whether it rests on match probabilities that nobody checked."""
        return self.source in UNCHECKED

    @property
    def asks_rows(self) -> bool:
        """Whether the leaked share is to be bounded by the rows themselves."""
        return False

    @property
    def is_bounded_by_rows(self) -> bool:
        """Whether the range is the bound that the rows themselves give."""
        return False

    @property
    def is_rate(self) -> bool:
        """Whether its values are rates, as on the axis of sensitivity curves, and not shares."""
        return self.source in ("cluster_error", "split_rate", MATCH_COLUMN)

    @property
    def assumes_random_folds(self) -> bool:
        """Whether its share assumes that the parts of a cluster fall into folds at random."""
        return self.source in ("split_rate", "linkage_quality")

    @property
    def p0_validation(self) -> float | None:
        """The share of V̂ that belongs to the training side, where it was given."""
        return None

    def summary(self, bound: P0Bound | None = None) -> LeakageClaim:
        """Return what is known as it is recorded, with the bound that the rows give."""
        return LeakageClaim(
            pattern=self.pattern,
            source=self.source,
            range=(self.low, self.high) if self.is_known else None,
            centre=self.centre,
            p0_validation=self.p0_validation,
            linkage=self.leak and replace(self.leak, row_probability=None),
            bound=bound,
            split_range=self.split_beside,
        )

    def bounded(self, bound: P0Bound, folds: Sequence[Fold]) -> "Leakage":  # noqa: ARG002
        """Return it with the range that a bound by the rows gives, if it is to be bounded by rows."""
        return self

    @property
    def split_beside(self) -> tuple[float, float] | None:
        """The split rates that are stated beside a cluster error."""
        return None

    @property
    def excludes_nothing(self) -> bool:
        """Whether no e0 can be given, because any share may have leaked."""
        return self.is_vacuous

    def leaked_share(self, rates: Rates, folds: Folds, weights: Sequence[float]) -> float:
        """Return p0 at given rates: the leaked share of training rows."""
        return mean_shares(shares_by_fold(rates.cluster_error, folds), weights).p0

    def ends(self, folds: Folds, doses: DoseLosses) -> tuple[Rates, Rates] | None:
        """Return how often ids are wrong at least and at most; None if that is one value."""
        if self.low == self.high:
            return None
        return self.rates(self.low, folds, doses), self.rates(self.high, folds, doses)

    @abstractmethod
    def rates(self, value: float, folds: Folds, doses: DoseLosses) -> Rates:
        """Return how often ids are wrong at a value in the units of the source."""

    @abstractmethod
    def check(
        self, folds: Folds, table: AuditData, sizes: FragmentSizes, n_train: int | None
    ) -> None:
        """Refuse what would otherwise show after hours of refits."""

    @abstractmethod
    def solve(self, case: Case) -> Estimate | FragmentEstimate | None:
        """Estimate the loss on new clusters over the range; None where that cannot be done."""

    @abstractmethod
    def conclude(self, case: Case, curves: Sequence[Sensitivity]) -> Solution:
        """Return the loss on new clusters.

        `curves` are the sensitivity curves for misplaced rows and, where there is one, for split
        clusters.
        """

    @abstractmethod
    def read(self, case: Case) -> list[Read]:
        """Return e0 at the ends and in the middle of the range, and how far each cluster moves it."""

    def distribution(self, case: Case) -> LossDistribution | None:  # noqa: ARG002
        """Return the distribution of the losses of rows of new clusters, where it can be estimated."""
        return None

    @abstractmethod
    def premise(self, cluster: str, *, excludes: bool) -> str:
        """Return what is known as the premise of a sentence, such as "If 10% of the rows …".

        `excludes` is False if what was given excludes nothing.
        """

    def _rate(self) -> str:
        low, high = percent(self.low), percent(self.high)
        return low if self.low == self.high else f"{low} to {high}"

    def values(self) -> list[float]:
        """Return the ends and the middle of the range."""
        return sorted({self.low, self.middle, self.high})


@dataclass(frozen=True, kw_only=True)
class Unknown(Leakage):
    """Nothing is known: e0 could be anything that the sensitivity curves show."""

    pattern = "unknown"
    axis = CLUSTER_ERROR
    misplaces = True
    splits = True
    damage = "are wrong"
    open_question = "Whether single rows are misplaced or clusters are split; both are shown."

    source: str = "none"

    @property
    def is_known(self) -> bool:
        """Nothing is."""
        return False

    @property
    def asks_rows(self) -> bool:
        """The bound is shown, but not used."""
        return True

    def rates(self, *_: Any) -> Rates:
        """Take no id as wrong."""
        return Rates()

    def check(self, *_: Any) -> None:
        """Refuse nothing."""

    def solve(self, *_: Any) -> None:
        """Estimate nothing."""

    def conclude(self, case: Case, curves: Sequence[Sensitivity]) -> Solution:  # noqa: ARG002
        """Return the range of all sensitivity curves."""
        return Solution(e0=None, interval=whole_range(curves))

    def read(self, *_: Any) -> list[Read]:
        """Return no readings."""
        return []

    def premise(self, cluster: str, *, excludes: bool) -> str:  # noqa: ARG002
        """Return the range of the sensitivity curves."""
        return f"If at most half of the rows carry a wrong {cluster!r} or belong to split clusters"


@dataclass(frozen=True, kw_only=True)
class Misplaced(Leakage):
    """Single rows have a wrong cluster id.

    Attributes
    ----------
    p0_validation : float or None
        With source `p0` or `mixture`: the share of V̂ that belongs to the training side, the same in
        every fold; None means as many rows as leaked the other way.
    bound : P0Bound or None
        With source `mixture`: what the rows themselves say.
    split_beside : tuple of float or None
        With source `cluster_error`: the split rates that were given beside it. Only losses by dose can
        correct for both.
    """

    pattern = "rows"
    axis = CLUSTER_ERROR
    misplaces = True
    splits = False
    damage = "are wrong for single rows"
    open_question = (
        "Whether ids are wrong for single rows, as assumed here. If clusters are split instead, the same "
        "share of rows means something else."
    )

    p0_validation: float | None = None
    bound: P0Bound | None = None
    split_beside: tuple[float, float] | None = None

    @property
    def asks_rows(self) -> bool:
        """Where p0="mixture" was given."""
        return self.is_bounded_by_rows

    @property
    def is_bounded_by_rows(self) -> bool:
        """Where p0="mixture" was given."""
        return self.source == "mixture"

    def bounded(self, bound: P0Bound, folds: Sequence[Fold]) -> "Misplaced":
        """Return it with the range from 0 to the bound.

        A vacuous bound leaves the whole range that an audit considers.
        """
        largest = largest_share(folds, self.p0_validation)
        high = largest if bound.vacuous else bound.p0_upper
        return replace(self, high=high, bound=bound)

    @property
    def excludes_nothing(self) -> bool:
        """Whether the bound by the rows is vacuous."""
        return self.is_bounded_by_rows and self.bound is not None and self.bound.vacuous

    def shares(self, value: float, folds: Sequence[FoldSummary]) -> list[LeakShares]:
        """Return the leak shares of every fold at a value in the units of the source.

        A p0 without p0_validation stands for the cluster error that leaks the same share of rows into
        training, on average over the folds.
        """
        if self.p0_validation is not None:
            return [LeakShares(p0=value, p0_validation=self.p0_validation)] * len(folds)
        if self.is_rate:
            return shares_by_fold(value, folds)
        error = value / mean_validation_share(folds)
        if error >= 1:
            raise InputError(
                f"p0={value:g} is impossible if as many rows leak back: these folds have "
                f"{mean_validation_share(folds):.0%} of their rows in validation, so every id would "
                "have to be wrong. Give a smaller p0, or p0_validation=0 if rows leak only into "
                "training."
            )
        return shares_by_fold(error, folds)

    def rates(self, value: float, folds: Folds, doses: DoseLosses) -> Rates:
        """Return the cluster error that leaks the share of rows that the value stands for."""
        if self.is_rate:
            split = 0.0 if self.split_beside is None else sum(self.split_beside) / 2
            return Rates(cluster_error=value, split_rate=split)
        if self.p0_validation is None:
            return Rates(cluster_error=min(value / mean_validation_share(folds), LARGEST))
        error = cluster_error_of_shares(value, self.p0_validation, doses.training_share)
        return Rates(cluster_error=min(error, LARGEST))

    def ends(self, folds: Folds, doses: DoseLosses) -> tuple[Rates, Rates] | None:
        """Return the smallest and the largest rates, including those of split clusters."""
        if self.split_beside is None:
            return super().ends(folds, doses)
        low, high = (
            Rates(cluster_error=error, split_rate=split)
            for error, split in zip((self.low, self.high), self.split_beside, strict=True)
        )
        return None if low == high else (low, high)

    def check(
        self,
        folds: Folds,
        table: AuditData,  # noqa: ARG002
        sizes: FragmentSizes,  # noqa: ARG002
        n_train: int | None,  # noqa: ARG002
    ) -> None:
        """Refuse shares that are impossible in these folds."""
        self.shares(self.high, folds)

    def solve(self, case: Case, tail: Tail | None = None) -> Estimate:
        """Estimate the loss, or the share of rows in one of its tails, over the range."""

        def problem(value: float) -> Extrapolation:
            return extrapolation_of(case.measured, self.shares(value, case.folds), tail)

        return estimate_range(
            problem,
            self.low,
            self.high,
            mean_shares(self.shares(self.middle, case.folds), case.measured.weights),
            method=case.method,
            bound=case.bound if tail is None else 1.0,
            centre=self.middle,
        )

    def conclude(self, case: Case, curves: Sequence[Sensitivity]) -> Solution:
        """Read e0 from the loss curve, extrapolated to the point without leakage."""
        result = self.solve(case)
        if self.excludes_nothing:
            ends = (*result.interval, *whole_range(curves[:1]))
            return Solution(e0=None, interval=(min(ends), max(ends)))
        path = trace_extrapolation(
            extrapolation_of(case.measured, self.shares(self.middle, case.folds)),
            result.shares,
            method=case.method,
            bound=case.bound,
        )
        return Solution(
            e0=result.e0,
            interval=result.interval,
            p0=result.shares.p0,
            secant=result.secant,
            estimate=result,
            path=path,
        )

    def read(self, case: Case) -> list[Read]:
        """Return e0 at each value by the loss curve."""
        return [self._read(case, value) for value in self.values()]

    def _read(self, case: Case, value: float) -> Read:
        shares = self.shares(value, case.folds)
        problem = extrapolation_of(case.measured, shares)
        mean = mean_shares(shares, case.measured.weights)
        result = solve(problem, mean, method=case.method, bound=case.bound)
        gradient = curve_gradient(problem, case.method)
        influence = curve_influence(problem, gradient, case.measured.units.curve)
        total = float(gradient @ problem.covariance @ gradient)
        return _reading(value, result.e0, result.interval, total, influence), influence

    def distribution(self, case: Case) -> LossDistribution | None:
        """Return the distribution of the loss, threshold by threshold."""
        tails = case.measured.tails
        if not tails:
            return None
        return distribution_of(
            [tail.threshold for tail in tails],
            [self.solve(case, tail) for tail in tails],
            [tail.curve.loss[0] for tail in tails],
        )

    def premise(self, cluster: str, *, excludes: bool) -> str:
        """Return how many rows have a wrong id, or leaked."""
        wrong, rate = f"carry a wrong {cluster!r}", self._rate()
        if self.source == MATCH_COLUMN:
            return (
                f"By match probabilities that nobody checked, {percent(self.middle)} of the rows "
                f"{wrong}, or anything from {rate}. If so"
            )
        if self.source == "cluster_error":
            also = ""
            if self.split_beside is not None:
                split = " to ".join(dict.fromkeys(map(percent, self.split_beside)))
                also = f", and {split} belong to a cluster that was split into two ids"
            if self.high == 0 and not also:
                return f"If every {cluster!r} is right"
            return f"If {rate} of the rows {wrong}{also}"
        known = "If"
        if self.is_bounded_by_rows:
            rate = f"at most {percent(self.high)}"
            if not excludes:
                known = "The rows do not reveal how many of them leaked. If"
                if self.p0_validation is None:
                    return f"{known} at most half of them {wrong} and no cluster was split"
        back = "as many rows leaked back"
        if self.p0_validation is not None:
            back = f"{percent(self.p0_validation)} of the validation rows to its training clusters"
        return (
            f"{known} {rate} of the training rows of a fold belong to its validation clusters, and "
            f"{back}"
        )


@dataclass(frozen=True, kw_only=True)
class Split(Leakage):
    """True clusters are split into several ids.

    Attributes
    ----------
    leak : LeakEstimate or None
        What linkage evidence says about the leak shares of the folds.
    """

    pattern = "fragments"
    axis = SPLIT_RATE
    misplaces = False
    splits = True
    damage = "split some true clusters"
    open_question = (
        "Whether the linkage split clusters as the audit does; ids that are wrong for single rows are "
        "not corrected for."
    )

    leak: LeakEstimate | None = None

    @property
    def fragment_sizes(self) -> FragmentSizes:
        """How clusters are split by the evidence; uniformly if it does not say."""
        known = None if self.leak is None else self.leak.fragments
        return UNIFORM if known is None else FragmentSizes(law="shares", values=known)

    @property
    def is_vacuous(self) -> bool:
        """Whether evidence leaves open that all validation rows were seen, or says that they were."""
        if self.leak is None:
            return False
        share = self.leak.validation
        return (share.high if share.point is None else share.point) >= LARGEST

    @property
    def is_unchecked(self) -> bool:
        """Whether it rests on match probabilities that nobody checked."""
        scores = self.leak is not None and self.leak.kind == "uncalibrated"
        return scores or super().is_unchecked

    def linked(self, leak: LeakEstimate) -> "Split":
        """Return it with the leak shares of the actual folds by linkage evidence."""
        # the ends of unchecked scores are not an interval; their prior, which allows for errors, is
        ends = leak.to_prior() if leak.kind == "uncalibrated" else leak.validation
        high = min(ends.high, LARGEST)
        centre = leak.validation.point
        return replace(
            self,
            low=min(ends.low, high),
            high=high,
            centre=None if centre is None else min(centre, LARGEST),
            leak=leak,
        )

    def leaked_share(self, rates: Rates, folds: Folds, weights: Sequence[float]) -> float:  # noqa: ARG002
        """Return the share of validation rows with mates in training."""
        return self.middle if self.leak is not None else seen_share(rates.split_rate, folds).share

    def seen(self, value: float, folds: Sequence[FoldSummary]) -> SeenShare:
        """Return the share of seen validation rows at a value in the units of the source."""
        return seen_share(value, folds) if self.leak is None else SeenShare(share=value)

    def rates(self, value: float, folds: Folds, doses: DoseLosses) -> Rates:  # noqa: ARG002
        """Return the split rate, or the one at which that share of validation rows is seen."""
        if self.leak is None:
            return Rates(split_rate=value)
        rate, spread = split_of_seen_share(value, doses.sizes, doses.training_share)
        return Rates(split_rate=rate, spread=spread)

    def check(
        self,
        folds: Folds,  # noqa: ARG002
        table: AuditData,
        sizes: FragmentSizes,
        n_train: int | None,
    ) -> None:
        """Refuse training sets of another size, and clusters that cannot be broken."""
        if n_train is not None:
            raise InputError(
                f"n_train={n_train} is for misplaced rows (p0 or cluster_error): what split clusters "
                "do is measured in training sets of full size. Leave n_train out."
            )
        if not len(breakable(table.clusters, sizes)):
            largest = int(np.bincount(table.clusters).max())
            raise InputError(
                "split clusters can only be measured with clusters of at least two rows; there are "
                "none."
                if largest == 1
                else f"fragments='{sizes}' breaks no cluster: the largest has {largest} rows. Give "
                "smaller sizes."
            )

    def solve(self, case: Case) -> FragmentEstimate | None:
        """Solve the mixture over a range of shares, or weighted by how likely the evidence makes them."""
        losses = case.measured.fragments
        if losses is None:
            return None
        prior = None if self.leak is None else self.leak.to_prior()
        if prior is None or prior.law == "range":
            ends = self.seen(self.low, case.folds), self.seen(self.high, case.folds)
            return estimate_fragments(losses, seen_share=ends, bound=case.bound)
        chances = (np.arange(PRIOR_NODES) + 0.5) / PRIOR_NODES
        return weigh_fragments(losses, prior.quantiles(chances).tolist(), bound=case.bound)

    def conclude(self, case: Case, curves: Sequence[Sensitivity]) -> Solution:  # noqa: ARG002
        """Solve e0 from the mixture of rows with and without mates in training."""
        mixture = self.solve(case)
        if mixture is None:
            raise InputError(f"{self.source} needs clusters with two rows or more; there are none.")
        if self.is_vacuous:
            return Solution(e0=None, interval=mixture.interval)
        share = mixture.seen_share if self.leak is None else self.middle
        return Solution(e0=mixture.e0, interval=mixture.interval, p0=share)

    def read(self, case: Case) -> list[Read]:
        """Return e0 at each value by the mixture; nothing where evidence excludes nothing."""
        return [] if self.is_vacuous else [self._read(case, value) for value in self.values()]

    def _read(self, case: Case, value: float) -> Read:
        losses, units = case.measured.fragments, case.measured.units.fragments
        assert losses is not None
        share = self.seen(value, case.folds).share
        result = estimate_fragments(losses, seen_share=share, bound=case.bound)
        influence = np.asarray(units @ mixture_weights(losses, share)[: units.shape[1]])
        total = mixture_error(losses, share) ** 2
        return _reading(value, result.e0, result.interval, total, influence), influence

    def premise(self, cluster: str, *, excludes: bool) -> str:  # noqa: ARG002
        """Return how many rows are of split clusters, or have mates in training."""
        if self.leak is None:
            return f"If {self._rate()} of the rows belong to a cluster that was split into two ids"
        return f"{self._evidence(self.leak)}, {self._found(self.leak, excludes)}. If so"

    def _evidence(self, leak: LeakEstimate) -> str:
        checked = "" if leak.n_labels is None else f"{leak.n_labels} "
        return {
            "resolved_rows": f"By the {checked}rows that were resolved by hand",
            "partition_samples": "By the posterior samples of the linkage",
            "linkage_quality": "By the recall of the linkage",
            "match_probability": "By match probabilities that nobody checked, as an order of magnitude",
        }[self.source]

    def _found(self, leak: LeakEstimate, excludes: bool) -> str:
        mates = "have records of the same true cluster in training"
        if not excludes:
            return f"all validation rows may {mates}, or so many that nothing is known about the others"
        seen, point = f"of the validation rows {mates}", leak.validation.point
        if point is None:
            return f"at most {percent(self.high)} {seen}"
        return f"{percent(point)} ({percent(self.low)} to {percent(self.high)}) {seen}"


def recorded_leakage(claim: LeakageClaim) -> Leakage:
    """Return what was known about the leakage, as a report recorded it."""
    if claim.range is None:
        return Unknown(source=claim.source)
    low, high = claim.range
    known: dict[str, Any] = {"source": claim.source, "low": low, "high": high}
    known["centre"] = claim.centre
    if claim.pattern == Misplaced.pattern:
        return Misplaced(
            **known,
            p0_validation=claim.p0_validation,
            bound=claim.bound,
            split_beside=claim.split_range,
        )
    if claim.pattern == Split.pattern:
        return Split(**known, leak=claim.linkage)
    return Unknown(source=claim.source)


def extrapolation_of(
    measured: Measurement, shares: Sequence[LeakShares], tail: Tail | None = None
) -> Extrapolation:
    """Return the problem of extrapolating the loss curve, or one of its tails, at given shares."""
    curves = measured if tail is None else tail
    if not curves.fold_curves:  # a curve that follows from the losses by dose
        return unmix(curves.curve, mean_shares(shares, measured.weights))
    return unmix(curves.curve, shares, fold_curves=curves.fold_curves, weights=measured.weights)


def whole_range(curves: Sequence[Sensitivity]) -> tuple[float, float]:
    """Return the smallest lower end and the largest upper end of sensitivity curves."""
    return min(min(curve.low) for curve in curves), max(max(curve.high) for curve in curves)


def _reading(
    value: float, e0: float, ends: tuple[float, float], total: float, influence: Array
) -> Reading:
    variance = float(robust_covariance(influence[:, None])[0, 0])
    noise = math.sqrt(max(0.0, total - variance))
    return Reading(leakage=value, e0=e0, low=ends[0], high=ends[1], noise=noise)


# --- What the user says about the leakage


def make_claim(
    *,
    p0: Any = None,
    p0_validation: float | None = None,
    cluster_error: Any = None,
    split_rate: Any = None,
    evidence: str | None = None,
) -> Leakage:
    """Turn the audit's arguments into what is known; more than one of them is an error.

    `evidence` is the source among `EVIDENCE`, if there is one; its range follows later.

    Each argument belongs to a pattern (misplaced rows or split clusters), and their shares mean
    different things: confusing them leads to a wildly excessive correction.
    """
    if isinstance(p0, str) and p0 == "grid":
        p0 = None
    given: dict[str, Any] = {
        name: value
        for name, value in (
            ("p0", p0),
            ("cluster_error", cluster_error),
            ("split_rate", split_rate),
            (evidence, evidence),
        )
        if name is not None and value is not None
    }
    both = set(given) == {"cluster_error", "split_rate"}
    if len(given) > 1 and not both:
        raise InputError(
            f"{' and '.join(given)} cannot be given together: each of them says how much leaks. Give the "
            "one you trust most. Only cluster_error and split_rate can be combined: some rows are "
            "misplaced, and some clusters are split."
        )
    if p0_validation is not None:
        if "p0" not in given:
            raise InputError(
                "p0_validation needs p0; cluster_error and split_rate imply it. Leave it out, or give p0."
            )
        p0_validation = one_share("p0_validation", read_number(p0_validation))
    if not given:
        return Unknown()
    if both:
        split = _read_range("split_rate", given.pop("split_rate"))
        low, high = _read_range("cluster_error", given.pop("cluster_error"))
        return Misplaced(source="cluster_error", low=low, high=high, split_beside=split)
    ((source, value),) = given.items()
    if source == evidence:
        return Misplaced(source=source) if source == MATCH_COLUMN else Split(source=source)
    if source == "p0" and isinstance(value, str) and value == "mixture":
        return Misplaced(source="mixture", p0_validation=p0_validation)
    low, high = _read_range(source, value)
    if source == "split_rate":
        return Split(source=source, low=low, high=high)
    return Misplaced(source=source, low=low, high=high, p0_validation=p0_validation)


def _read_range(source: str, given_as: Any) -> tuple[float, float]:
    value = read_share(given_as)
    if isinstance(given_as, str) and (value is given_as or _has_text(value)):
        raise InputError(
            f'{source}={given_as!r} is not usable; give a share such as 0.1 or "10%", a pair (low, high)'
            + (
                ", or 'grid' when nothing is known, or 'mixture' for a bound from the rows."
                if source == "p0"
                else "."
            )
        )
    return as_range(source, value)


def _has_text(value: Any) -> bool:
    return isinstance(value, tuple) and any(isinstance(part, str) for part in value)


def mean_validation_share(folds: Sequence[FoldSummary]) -> float:
    """Return |V̂|/N, the mean over folds weighted by validation rows."""
    sizes = np.array([fold.n_validation for fold in folds], dtype=float)
    total = np.array([fold.n_training + fold.n_validation for fold in folds], dtype=float)
    return float(np.dot(sizes / sizes.sum(), sizes / total))


def shares_by_fold(cluster_error: float, folds: Sequence[FoldSummary]) -> list[LeakShares]:
    """Return the leak shares of every fold under a uniform cluster error."""
    return [
        shares_of_cluster_error(cluster_error, fold.n_training, fold.n_validation) for fold in folds
    ]


def mean_shares(shares: Sequence[LeakShares], weights: Sequence[float]) -> LeakShares:
    """Return the mean of the folds' shares, weighted by validation rows."""
    return LeakShares(
        p0=float(np.dot([share.p0 for share in shares], weights)),
        p0_validation=float(np.dot([share.p0_validation for share in shares], weights)),
    )


# --- What an audit is told about the linkage, before any table is read

TABLES = (".csv", ".parquet", ".pq")


@dataclass(frozen=True, kw_only=True, eq=False)
class LinkageArguments:
    """What an audit is told about the linkage; see `mlflow_b3.audit`."""

    match_probability: Any = None
    resolved_rows: Any = None
    reviewer: Any = None
    linkage_quality: Any = None
    partition_samples: Any = None
    fold_threshold: float | None = None
    purge_threshold: float | None = None
    folds: Any = None

    def __post_init__(self) -> None:
        """Refuse what no table could make right."""
        for name in ("fold_threshold", "purge_threshold"):
            value = getattr(self, name)
            if value is None:
                continue
            if isinstance(value, bool) or not (isinstance(value, Real) and 0 < float(value) <= 1):
                hint = not_percentage(value) if isinstance(value, Real) else ""
                raise InputError(f"{name}={value!r} must be a match probability in (0, 1].{hint}")
            if self._folds_given:
                raise InputError(
                    f"{name} works only with folds that the audit makes, not with given ones. Leave one of "
                    "them out."
                )
            if self.match_probability is None or self.column is not None:
                raise InputError(
                    f"{name} needs a table of scored pairs in match_probability, such as Splink's "
                    "predictions."
                )
        if self.reviewer is not None and self.resolved_rows is None:
            raise InputError(
                "reviewer needs resolved_rows: it says how well these were resolved. Give both, or neither."
            )

    @property
    def _folds_given(self) -> bool:
        """Whether the splits themselves are given, not their number or how to make them."""
        if isinstance(self.folds, LeakSafeFolds):
            return True
        return not (isinstance(self.folds, str) or hasattr(self.folds, "split")) and isinstance(
            self.folds, Iterable
        )

    @property
    def safe_threshold(self) -> float | None:
        """The match probability from which the folds keep rows together, however it was given."""
        made = isinstance(self.folds, LeakSafeFolds)
        return self.folds.threshold if made else self.fold_threshold

    @property
    def made_of_scores(self) -> bool:
        """Whether the folds were made from scored pairs."""
        return self.safe_threshold is not None or self.purge_threshold is not None

    @property
    def column(self) -> str | None:
        """The column of the audited table that holds the rows' match probability."""
        given = self.match_probability
        is_column = isinstance(given, str) and Path(given).suffix.lower() not in TABLES
        return given if is_column else None

    def source(self, *, otherwise_known: bool) -> str | None:
        """Return the evidence that the leaked share is taken from; more than one is an error.

        A table of pairs is used only if nothing better is given and the folds are not made from the
        same scores: otherwise the pairs that are left between folds say nothing.
        """
        names = ("resolved_rows", "partition_samples", "linkage_quality")
        given = [name for name in names if getattr(self, name) is not None]
        if len(given) > 1:
            raise InputError(
                f"{' and '.join(given)} cannot be given together; give the one you trust most: "
                "resolved rows first, then posterior samples, then figures of linkage quality."
            )
        if self.column is not None:
            if given:
                raise InputError(
                    f"match_probability={self.column!r} names a column, which is evidence of the leaked "
                    f"share, as {given[0]} is; give only one of them."
                )
            return MATCH_COLUMN
        if given:
            return given[0]
        if self.match_probability is None or self.made_of_scores or otherwise_known:
            return None
        return "match_probability"


# --- Linkage evidence: read for the audited rows, and turned into the leak shares of its folds

QUALITIES = ("recall", "precision", "recall_pairs", "precision_pairs")
#: The threshold of leak-safe folds that is recommended; lower ones snowball.
SAFE_THRESHOLD = 0.1
#: The largest cluster error that a column of match probabilities is read as.
MOST_ERROR = 0.5


@dataclass(frozen=True, kw_only=True, eq=False)
class Evidence:
    """The linkage evidence of an audit, by row numbers of its table.

    If the folds are `made_of_scores`, the scored pairs cannot say what still leaks across them.
    """

    clusters: NDArray[np.intp]
    pairs: PairTable | None = None
    resolved: ResolvedRows | None = None
    reviewer: tuple[float, float] = (1.0, 1.0)
    quality: Mapping[str, float] | None = None
    samples: NDArray[np.intp] | None = None
    fold_threshold: float | None = None
    purge_threshold: float | None = None
    made_of_scores: bool = False

    @property
    def reviewer_is_right(self) -> bool:
        """Whether the reviewer is assumed to make no mistakes."""
        return self.reviewer == (1.0, 1.0)

    @cached_property
    def suspected_groups(self) -> SafeGroups:
        """Clusters joined with their probable mates, as leak-safe folds would keep them."""
        assert self.pairs is not None
        return safe_groups(*self.pairs.arrays, SAFE_THRESHOLD, self.clusters)

    def regrouped(self, table: AuditData) -> AuditData:
        """Return the table with the groups that folds must keep together."""
        if self.fold_threshold is None:
            return table
        assert self.pairs is not None
        made = safe_groups(*self.pairs.arrays, self.fold_threshold, table.clusters)
        grouped = table.regrouped(np.array(made.groups, dtype=np.intp))
        name = f"{table.cluster_name} joined by fold_threshold={self.fold_threshold:g}"
        return replace(grouped, cluster_name=name)

    def require_kept(self, folds: Sequence[Fold], grouped: AuditData) -> None:
        """Refuse folds of a splitter that does not keep together what `regrouped` joined."""
        if self.fold_threshold is None:
            return
        if any(fold.shared_clusters for fold in summarize_folds(tuple(folds), grouped)):
            raise InputError(
                "fold_threshold needs folds that keep groups together, which this splitter does not "
                "do. Use one such as GroupKFold, or a number of folds."
            )

    def purged(self, folds: Sequence[Fold], table: AuditData) -> tuple[Fold, ...]:
        """Return the folds without training rows that are linked to their validation rows."""
        if self.purge_threshold is None:
            return tuple(folds)
        assert self.pairs is not None
        splits = Splits.of(folds, table.n_rows)
        dropped = purge_mask(
            *self.pairs.arrays, splits, table.clusters, self.purge_threshold, allow_split=True
        )
        kept = tuple(
            replace(fold, training=fold.training[~dropped[fold.training, number]])
            for number, fold in enumerate(folds)
        )
        empty = [number for number, fold in enumerate(kept) if not len(fold.training)]
        if empty:
            raise InputError(
                f"purge_threshold={self.purge_threshold:g} leaves no training rows in folds {empty}; "
                "give a larger one, or fewer folds."
            )
        return kept

    def settle(self, claim: Leakage, folds: Sequence[Fold], table: AuditData) -> Leakage:
        """Return what is known, with the range that the evidence gives for these folds."""
        if claim.source == MATCH_COLUMN:
            assert table.match_probability is not None
            error = float(np.mean(1 - table.match_probability))
            if not error:
                raise InputError(
                    "match_probability is 1 in every row, which is no evidence that every id is right."
                )
            prior = uncalibrated_prior(error)
            high = min(prior.high, MOST_ERROR)
            return replace(claim, low=min(prior.low, high), high=high, centre=min(error, high))
        if not isinstance(claim, Split) or claim.source not in EVIDENCE:
            return claim
        leak = self.leak(claim.source, folds, table)
        if leak.kind == "uncalibrated" and not leak.validation.point:
            raise InputError(
                "match_probability: no scored pair links a validation row of a fold to another cluster in "
                "training. That does not mean that nothing leaks: it may hide in pairs that were left out "
                "because of a low score. Give all scored pairs, not only those above a threshold, or "
                "better evidence, such as resolved_rows."
            )
        return claim.linked(leak)

    def leak(self, source: str, folds: Sequence[Fold], table: AuditData) -> LeakEstimate:
        """Return the leak shares of some folds by one source of evidence."""
        splits = Splits.of(folds, table.n_rows, by_rows=True)
        if source == "resolved_rows":
            assert self.resolved is not None
            sensitivity, specificity = self.reviewer
            return self.resolved.leak(
                splits,
                table.clusters,
                sensitivity=sensitivity,
                specificity=specificity,
                allow_split=True,
            )
        if source == "partition_samples":
            return leak_from_partition_samples(
                self.samples, splits, clusters=table.clusters, allow_split=True
            )
        if source == "linkage_quality":
            assert self.quality is not None
            return leak_from_quality(
                self.quality["recall"],
                self.quality.get("precision"),
                table.clusters,
                splits.n_folds,
                _pairs(self.quality, "recall_pairs"),
                precision_n=_pairs(self.quality, "precision_pairs"),
            )
        assert self.pairs is not None
        return leak_from_pairs(*self.pairs.arrays, splits, table.clusters, allow_split=True)


def read_evidence(
    arguments: LinkageArguments, table: AuditData, row_id: str | None = None
) -> Evidence:
    """Read the evidence that an audit was given, for the rows of its table."""
    pairs = resolved = samples = None
    if arguments.match_probability is not None and arguments.column is None:
        # linkage often covers more rows; those that are not audited cannot leak here
        pairs = read_pairs(
            arguments.match_probability, table.ids, id_column=row_id, ignore_unknown=True
        )
        if not len(pairs):
            raise InputError("match_probability contains no pairs.")
    if arguments.resolved_rows is not None:
        given = arguments.resolved_rows
        resolved = given if isinstance(given, ResolvedRows) else parse_review(given, table.ids)
    if arguments.partition_samples is not None:
        samples = read_partition_samples(
            arguments.partition_samples, table.ids.tolist(), ignore_unknown=True
        )
    return Evidence(
        clusters=table.clusters,
        pairs=pairs,
        resolved=resolved,
        reviewer=_reviewer(arguments.reviewer),
        quality=_quality(arguments.linkage_quality),
        samples=samples,
        fold_threshold=arguments.fold_threshold,
        purge_threshold=arguments.purge_threshold,
        made_of_scores=arguments.made_of_scores,
    )


def _reviewer(value: Any) -> tuple[float, float]:
    if value is None:
        return 1.0, 1.0
    try:
        sensitivity, specificity = (float(part) for part in value)
    except (TypeError, ValueError):
        sensitivity = specificity = float("nan")
    if not (0 < sensitivity <= 1 and 0 < specificity <= 1):
        raise InputError(
            f"reviewer={value!r} must be a pair (sensitivity, specificity) of shares in (0, 1]: the share "
            "of leaked rows that the reviewer finds, and the share of others that are left alone."
            + not_percentage([sensitivity, specificity])
        )
    return sensitivity, specificity


def _quality(value: Any) -> Mapping[str, float] | None:
    if value is None:
        return None
    if not isinstance(value, Mapping) or "recall" not in value:
        raise InputError(
            f"linkage_quality={value!r} must contain at least the recall: {{'recall': 0.9, 'precision': "
            "0.95, 'recall_pairs': 300}, where recall_pairs is the number of true pairs it was measured on."
        )
    for name, number in value.items():
        choose("linkage_quality", name, QUALITIES)
        if (
            isinstance(number, bool)
            or not isinstance(number, Real)
            or not math.isfinite(float(number))
        ):
            raise InputError(f"linkage_quality: {name}={number!r} must be a number.")
    return {str(name): float(number) for name, number in value.items()}


def _pairs(quality: Mapping[str, float], name: str) -> int | None:
    count = quality.get(name)
    if count is None:
        return None
    if count < 1 or not count.is_integer():
        raise InputError(
            f"linkage_quality: {name}={count:g} must be a whole number of pairs from 1."
        )
    return int(count)
