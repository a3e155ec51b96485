"""Collecting the losses of single refits into curves, standard errors and covariances."""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mlflow_b3.data.folds import Fold
from mlflow_b3.data.scores import FEWEST_EFFECTIVE, effective_clusters
from mlflow_b3.errors import FitError, InputError
from mlflow_b3.measurement.curve import SHARPNESS, DoseLoss, FragmentLosses, LossCurve, pooled
from mlflow_b3.measurement.design import DOSES, dose_levels
from mlflow_b3.measurement.doses import DoseLosses
from mlflow_b3.measurement.refits import (
    Draw,
    FitCounts,
    FragmentSizes,
    InjectedRows,
    Outcome,
    Resampler,
    RowFold,
    WholeFold,
    arms_of,
)
from mlflow_b3.results import Result

if TYPE_CHECKING:
    from mlflow_b3.measurement.campaign import Campaign, DoseCampaign


# --- Row means over refits, and the variance of their means over clusters

#: Models that score one cluster are trained on others, so the errors of different clusters are
#: correlated, and the variance of a cross-validated loss is larger than for independent clusters. On
#: simulated clinics (docs/accuracy.md) it is 0.7 to 2 times as large, depending on learner and
#: cluster size.
CORRELATED_ERRORS = 1.4
#: Number of rows of a fold up to which held-back losses are kept row by row.
ROW_BY_ROW = 100_000
#: Number of places up to which small types would save little memory for the time they cost.
FEW_PLACES = 10_000
Array = NDArray[np.float64]
Indices = NDArray[np.integer[Any]]


class Totals:
    """Sums and counts of losses by place and level, in the smallest types that hold them exactly.

    With many places, losses that are whole numbers, such as label errors, take a byte or two instead
    of eight.

    Parameters
    ----------
    places, n_levels : int
    """

    def __init__(self, places: int, n_levels: int) -> None:
        # levels come first, so memory of unused levels is never touched
        dtype = float if places <= FEW_PLACES else np.uint8
        self._sums: NDArray[Any] = np.zeros((n_levels, places), dtype=dtype)
        self._counts: NDArray[Any] = np.zeros((n_levels, places), dtype=dtype)

    @property
    def sums(self) -> NDArray[Any]:
        """A copy of the sums, with one row for each place and one column for each level."""
        return np.ascontiguousarray(self._sums.T)

    @property
    def counts(self) -> NDArray[Any]:
        """A copy of the counts, in the same shape."""
        return np.ascontiguousarray(self._counts.T)

    def at_level(self, level: int) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return the sums and the counts of a level, not copied."""
        return self._sums[level], self._counts[level]

    def add_at(
        self, where: Indices, level: int | Indices, losses: NDArray[Any], counts: Any = 1
    ) -> None:
        """Add a loss, or a sum of several, at each of the given places, which differ at a level."""
        # add in wide types: NumPy 1 adds scalars to bytes as bytes, which overflow silently
        sums = np.add(self._sums[level, where], losses, dtype=float)
        self._sums = _widen(self._sums, sums)
        self._sums[level, where] = sums
        numbers = np.add(self._counts[level, where], counts, dtype=float)
        self._counts = _widen(self._counts, numbers)
        self._counts[level, where] = numbers

    def means_at(self, where: Indices, level: int = 0) -> Array:
        """Return means over refits at some places; NaN at places that were never scored."""
        with np.errstate(invalid="ignore"):
            sums, counts = self._sums[level, where], self._counts[level, where]
            return np.asarray(np.divide(sums, counts, dtype=float))

    @property
    def means(self) -> Array:
        """Means over refits; NaN at places that were never scored."""
        means = np.empty(self._sums.T.shape)
        with np.errstate(invalid="ignore"):
            np.divide(self._sums.T, self._counts.T, out=means, dtype=float)
        return means


def _widen(stored: NDArray[Any], values: NDArray[Any]) -> NDArray[Any]:
    """Return the stored values in a type that can also hold the new values."""
    if stored.dtype.kind == "f" or not values.size:
        return stored
    least, most = float(values.min()), float(values.max())
    whole = values.dtype.kind in "iu" or bool((values == np.floor(values)).all())
    small = whole and least >= 0 and most < 2**32
    needed = np.min_scalar_type(int(most)) if small else np.dtype(float)
    return stored if needed <= stored.dtype else stored.astype(needed)


class RowMeans(Totals):
    """Mean loss of each row over the refits that scored it, by level."""

    def __init__(self, rows: Indices, n_levels: int) -> None:
        super().__init__(len(rows), n_levels)
        self.rows = rows

    def add(self, rows: Indices, level: int, losses: Array) -> None:
        """Add the losses of one refit."""
        self.add_at(np.searchsorted(self.rows, rows), level, losses)


class UnitTotals(Totals):
    """Sums and counts of the losses of each unit's rows, by level.

    Parameters
    ----------
    rows, units : array of int
        Rows in ascending order, and the unit of each.
    n_levels : int

    Attributes
    ----------
    units : array of int
        The unit of each place. Places are rows for up to `ROW_BY_ROW` rows, otherwise units. The
        results are the same apart from rounding, but units need a fraction of the memory.
    """

    def __init__(self, rows: Indices, units: Indices, n_levels: int) -> None:
        self._by_row = len(rows) <= ROW_BY_ROW
        self._places = rows if self._by_row else np.unique(units)
        self.units = units if self._by_row else self._places
        super().__init__(len(self._places), n_levels)

    def add(self, rows: Indices, units: Indices, level: int, losses: Array) -> None:
        """Add the losses of one refit on the given rows and their units."""
        if self._by_row and (rows[1:] > rows[:-1]).all():  # no repeated rows
            self.add_at(np.searchsorted(self._places, rows), level, losses)
            return
        places, where, counts = np.unique(
            rows if self._by_row else units, return_inverse=True, return_counts=True
        )
        sums = np.bincount(where.ravel(), losses, minlength=len(places))
        self.add_at(np.searchsorted(self._places, places), level, sums, counts)


def variance(values: Sequence[float]) -> float:
    """Return the variance of a sample; NaN for a single value."""
    return float(np.var(values, ddof=1)) if len(values) > 1 else float("nan")


def by_unit(values: Array, units: Indices, n_units: int) -> Array:
    """Sum the rows of each unit."""
    sums = np.zeros((n_units, values.shape[1]))
    np.add.at(sums, units, values)
    return sums


def robust_covariance(influence: Array) -> Array:
    """Return 1.4 · G/(G-1) · Σ_g d_g d_gᵀ, where d_g is the influence of unit g on some means."""
    n_units = len(influence)
    factor = CORRELATED_ERRORS * n_units / max(1, n_units - 1)
    return np.asarray(factor * influence.T @ influence)


# --- The losses by dose: how many of a row's own mates are in training


class DoseTotals(Totals):
    """Collects the losses of all rows by the dose of their cluster, over all folds.

    The levels are those of `DOSES`, then `FAR`: rows of T̂ that were left out of training, nearly all
    of whose mates are in training.

    Attributes
    ----------
    whole : Totals
        Losses on the unchanged folds.
    by_row : Totals
        Losses on folds of single rows.
    refits : list of (fold, sums, counts)
        For each refit, its fold, and sums and counts by level of what its losses differ by from
        those of the same rows on the unchanged folds.
    """

    FAR = len(DOSES)

    def __init__(self, n_rows: int) -> None:
        super().__init__(n_rows, self.FAR + 1)
        self.whole = Totals(n_rows, 1)
        self.by_row = Totals(n_rows, 1)
        self.refits: list[tuple[int, Array, Array]] = []

    def add(self, fold: int, draw: Draw, validation: Array, held_back: Array) -> None:
        """Add the losses of one refit. Those on the unchanged folds of its pass must be there."""
        assert draw.levels is not None
        rows = np.concatenate([draw.validation, draw.held_back])
        levels = np.concatenate([draw.levels, np.full(len(held_back), self.FAR)])
        losses = np.concatenate([validation, held_back])
        self.add_at(rows, levels, losses)
        excess = losses - self.whole.means_at(rows)
        known = np.isfinite(excess)
        counts = np.bincount(levels[known], minlength=self.FAR + 1)
        sums = np.bincount(levels[known], excess[known], minlength=self.FAR + 1)
        self.refits.append((fold, sums.astype(float), counts.astype(float)))


# --- The losses with broken clusters: pattern `fragments`

AGAIN, FIRST_DOSE = 1, 2


class SeenLosses:
    """Collects the losses of one fold's rows whose cluster was broken, by the way of breaking."""

    def __init__(self, loco: RowMeans) -> None:
        self.loco = loco
        self._loco_fits: list[float] = []
        self._arms: list[RowMeans] = []
        self._fits: list[list[float]] = []

    def add_whole(self, losses: Array) -> None:
        """Add a refit on the unchanged fold."""
        self._loco_fits.append(float(np.mean(losses)))

    def add(self, rows: Indices, arms: Indices, losses: Array) -> None:
        """Add a refit with broken clusters."""
        whole = self.loco.means_at(np.searchsorted(self.loco.rows, rows))
        for arm in np.unique(arms).tolist():
            while len(self._arms) <= arm:
                self._arms.append(RowMeans(self.loco.rows, 1))
                self._fits.append([])
            own = arms == arm
            self._arms[arm].add(rows[own], 0, losses[own])
            self._fits[arm].append(float(np.mean((losses - whole)[own])))

    def change(self, arm: int) -> Array:
        """Return the change of each row's loss due to breaking; NaN for rows that were never scored."""
        if arm >= len(self._arms):
            return np.full(len(self.loco.rows), np.nan)
        return np.asarray(self._arms[arm].means[:, 0] - self.loco.means[:, 0])

    def fits(self, arm: int) -> int:
        """Return the number of refits in which clusters were broken in this way."""
        return len(self._fits[arm]) if arm < len(self._fits) else 0

    def refit_variance(self, arm: int) -> float:
        """Return the variance over refits of the mean change; NaN for a single refit."""
        return variance(self._fits[arm]) / len(self._fits[arm]) if self.fits(arm) else float("nan")

    @property
    def loco_variance(self) -> float:
        """Variance over refits of the loss on the unchanged fold; 0 for a single refit."""
        if len(self._loco_fits) < 2:
            return 0.0
        return variance(self._loco_fits) / len(self._loco_fits)


def fragment_losses(
    folds: Sequence[SeenLosses],
    clusters: NDArray[np.intp],
    units: NDArray[np.intp],
    sizes: FragmentSizes,
) -> tuple[FragmentLosses | None, Array]:
    """Return the effect of breaking clusters on the loss, or None if no cluster could be broken.

    The second element is the influence of each unit on the losses of its covariance, as deviations.

    Let δ_i be the change of the loss of row i when its cluster is broken. e_seen is LOCO plus the
    mean of δ over the scored rows. Every row counts once, as in the score with noisy ids, and rows
    of clusters that cannot be broken have no effect.

    Parameters
    ----------
    folds : sequence of SeenLosses
    clusters, units : array of int
        The cluster of each row, and its sampling unit: the cluster, or the row itself if there are
        few clusters.
    sizes : FragmentSizes
    """
    arms = arms_of(sizes)
    changes = [np.column_stack([fold.change(arm) for arm in range(len(arms))]) for fold in folds]
    scored = np.sum([np.isfinite(change).sum(axis=0) for change in changes], axis=0)
    if not scored[0]:
        return None, np.zeros((int(units.max()) + 1, 0))
    rows = sum(len(fold.loco.rows) for fold in folds)
    loss = sum(float(fold.loco.means.sum()) for fold in folds) / rows
    known = np.maximum(scored, 1)
    mean = np.sum([np.nansum(change, axis=0) for change in changes], axis=0) / known
    influence = np.zeros((int(units.max()) + 1, 1 + len(arms)))
    noise = _fill_missing(
        [[fold.refit_variance(arm) for arm in range(len(arms))] for fold in folds]
    )
    refits = np.zeros(len(arms))
    broken = lasting = 0.0
    for fold, change, own_noise in zip(folds, changes, noise, strict=True):
        own = (fold.loco.means - loss) / rows
        deviation = np.hstack([own, own + np.nan_to_num(change - mean) / known])
        influence += by_unit(deviation, units[fold.loco.rows], len(influence))
        refits += (np.isfinite(change).sum(axis=0) / known) ** 2 * own_noise
        counts = np.unique(clusters[fold.loco.rows], return_counts=True)[1]
        for size, times in zip(*np.unique(counts, return_counts=True), strict=True):
            broken += times * size * sizes.applies(int(size))
            lasting += times * size * sizes.breaks_again(int(size))
    used = np.unique(np.concatenate([units[fold.loco.rows] for fold in folds]))
    covariance = robust_covariance(influence[used])
    covariance[1 + AGAIN, 1 + AGAIN] += refits[AGAIN]
    seen = loss + mean
    kept = [0, 1, 2] if scored[AGAIN] else [0, 1]
    losses = FragmentLosses(
        loss=loss,
        seen_loss=float(seen[0]),
        stderr=float(np.sqrt(sum((len(f.loco.rows) / rows) ** 2 * f.loco_variance for f in folds))),
        seen_stderr=float(np.sqrt(refits[0])),
        again_loss=float(seen[AGAIN]) if scored[AGAIN] else None,
        again_rows=float(lasting / broken),
        doses=tuple(
            DoseLoss(
                fragments=str(arms[arm].sizes),
                seen_loss=float(seen[arm]),
                stderr=float(np.sqrt(covariance[1 + arm, 1 + arm] + refits[arm])),
            )
            for arm in range(FIRST_DOSE, len(arms))
            if scored[arm]
        ),
        covariance=tuple(map(tuple, covariance[np.ix_(kept, kept)].tolist())),
        degrees_of_freedom=max(1, len(used) - 1),
        fits=min(fold.fits(0) for fold in folds if fold.fits(0)),
        broken_rows=float(broken / rows),
    )
    return losses, influence[:, kept]


def _fill_missing(variances: list[list[float]]) -> Array:
    """Give folds with a single refit the largest variance of the others, or 0."""
    values = np.array(variances)
    largest = np.max(np.nan_to_num(values), axis=0)
    return np.where(np.isnan(values), largest, values)


# --- Collects the losses of the refits of one fold

#: Per validation row: its losses without and with leakage in small training sets, and its cluster. For
#: the published test: mean losses of disjoint folds, and their outer fold.
TestLosses = tuple[Array, Array, NDArray[np.intp]]


class FoldLosses:
    """Collects the losses of one fold.

    Parameters
    ----------
    fold : Fold
    n_levels : int
        Levels of injected shares.
    doses : DoseTotals, optional
        Collects the losses by dose of all folds.
    """

    def __init__(self, fold: Fold, n_levels: int, doses: DoseTotals | None = None) -> None:
        self.fold = fold
        self.doses = doses
        self.loco = RowMeans(fold.validation, 1)
        self.validation = RowMeans(fold.validation, n_levels)
        self._held_back: UnitTotals | None = None
        self._n_levels = n_levels
        self.seen = SeenLosses(self.loco)
        self.without = RowMeans(fold.validation, 1)
        self.with_leak = RowMeans(fold.validation, 1)
        self._fit_means: list[list[float]] = [[] for _ in range(n_levels)]

    def add(self, outcome: Outcome, resampler: Resampler) -> None:
        """Add one refit. Refits on the unchanged fold must come before all others."""
        draw = outcome.draw or resampler.draw(outcome.task)
        outcome.task.kind.collect(self, outcome, draw, resampler)

    def add_whole(self, outcome: Outcome, draw: Draw) -> None:
        """Add a refit on the unchanged fold."""
        assert outcome.validation is not None
        self.loco.add(draw.validation, 0, outcome.validation)
        if self.doses is not None:
            self.doses.whole.add_at(draw.validation, 0, outcome.validation)
        self.seen.add_whole(outcome.validation)

    def add_level(self, outcome: Outcome, draw: Draw, resampler: Resampler) -> None:
        """Add a refit at a level of the loss curve."""
        assert outcome.validation is not None
        assert outcome.held_back is not None
        level = outcome.task.level
        self.validation.add(draw.validation, level, outcome.validation)
        rows, units = draw.held_back, resampler.units_of(draw.held_back)
        self.held_back(resampler).add(rows, units, level, outcome.held_back)
        self._fit_means[level].append(self._excess(draw.validation, outcome.validation))

    def add_broken(self, outcome: Outcome, draw: Draw) -> None:
        """Add a refit with broken clusters."""
        assert outcome.validation is not None
        assert draw.arms is not None
        self.seen.add(draw.validation, draw.arms, outcome.validation)

    def add_doses(self, outcome: Outcome, draw: Draw) -> None:
        """Add a refit with rotated doses."""
        assert self.doses is not None
        assert outcome.validation is not None
        assert outcome.held_back is not None
        self.doses.add(outcome.task.fold, draw, outcome.validation, outcome.held_back)

    def add_tested(self, outcome: Outcome, draw: Draw, *, leaked: bool) -> None:
        """Add a refit of the leakage test."""
        assert outcome.validation is not None
        side = self.with_leak if leaked else self.without
        side.add(draw.validation, 0, outcome.validation)

    def held_back(self, resampler: Resampler) -> UnitTotals:
        """Return the losses on T̂ ∖ T' by sampling unit."""
        if self._held_back is None:
            rows = self.fold.training
            self._held_back = UnitTotals(rows, resampler.units_of(rows), self._n_levels)
        return self._held_back

    def _excess(self, rows: Indices, losses: Array) -> float:
        """Return a refit's mean loss minus that of the same rows without injected leakage.

        Refits score different rows. The difference removes the effect of which rows they are.
        """
        where = np.searchsorted(self.fold.validation, rows)
        return float(np.mean(losses - self.loco.means_at(where))) if len(rows) else 0.0

    @property
    def fit_variances(self) -> Array:
        """Variance over refits of the mean loss at each level; NaN for a single refit."""
        return np.array([variance(means) for means in self._fit_means])

    @property
    def fits(self) -> tuple[int, ...]:
        """Number of refits at each level."""
        return tuple(len(means) for means in self._fit_means)


def gather_test_losses(folds: Sequence[FoldLosses], clusters: NDArray[np.intp]) -> TestLosses:
    """Return the losses of the leakage test, row by row, with the row's cluster.

    A row that is validated in several folds counts once, with its mean losses.
    """
    rows = np.concatenate([fold.fold.validation for fold in folds])
    without = np.concatenate([fold.without.means[:, 0] for fold in folds])
    with_leak = np.concatenate([fold.with_leak.means[:, 0] for fold in folds])
    scored = np.isfinite(without) & np.isfinite(with_leak)
    used, where, times = np.unique(rows[scored], return_inverse=True, return_counts=True)
    without, with_leak = (
        np.bincount(where, losses[scored], minlength=len(used)) / times
        for losses in (without, with_leak)
    )
    return without, with_leak, clusters[used]


# --- Curves, standard errors and covariances from the losses of single refits


@dataclass(frozen=True, kw_only=True)
class Tail:
    """The share of rows with a loss above a threshold, as a loss curve."""

    threshold: float
    curve: LossCurve
    fold_curves: tuple[LossCurve, ...]


@dataclass(frozen=True, kw_only=True)
class UnitLosses:
    """The influence of each sampling unit on the measured losses.

    Attributes
    ----------
    unit : {"clusters", "rows"}
        "rows" if there are few clusters.
    ids : array of int
        The number of each validated cluster or row.
    share : array
        Each unit's share of the validated rows.
    curve : array
        Its contribution to the deviations of the losses of the curve, followed by those of held-back
        rows.
    fragments : array
        The same for the losses with broken clusters, one column for each row of their covariance.
    """

    unit: str
    ids: NDArray[np.intp]
    share: Array
    curve: Array
    fragments: Array


@dataclass(frozen=True, kw_only=True, eq=False)
class RowGroups:
    """Groups of rows with scores of their own.

    Attributes
    ----------
    by : str
        What the groups are of, such as "sex".
    names : tuple of str
    codes : array of int
        The number of each row's group; -1 for rows without one.
    """

    by: str
    names: tuple[str, ...]
    codes: NDArray[np.intp]


@dataclass(frozen=True, kw_only=True, eq=False)
class GroupLosses:
    """What was measured in one group of rows.

    Attributes
    ----------
    by, name : str
    rows : int
        Validated rows.
    clusters : float
        The effective number of clusters that they are spread over.
    doses : DoseLosses or None
        What rows of the group add to its mean loss, and other rows nothing, by cluster.
    why_not : str
        Why there is none.
    """

    by: str
    name: str
    rows: int
    clusters: float
    doses: DoseLosses | None
    why_not: str = ""


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """Everything that one audit measured.

    Attributes
    ----------
    curve : LossCurve
        Pooled over the folds, weighted by validation rows.
    fold_curves : tuple of LossCurve
    weights : tuple of float
        Share of the validation rows in each fold.
    fragments : FragmentLosses or None
        None if no cluster could be broken.
    loco, loco_stderr : float
        Mean loss on the unchanged folds, and its standard error over clusters.
    iid : float
        Mean loss on folds that ignore the clusters.
    test_losses : tuple of TestLosses
        One element; for the permutation test, followed by those of the rearranged rows.
    row_losses : tuple of array
        For each fold, the losses of its validation rows without injected leakage.
    units : UnitLosses
        The influence of each cluster on the losses.
    tails : tuple of Tail
        Empty unless the distribution of the loss was requested.
    doses : DoseLosses or None
        The losses by dose, if they were measured. The curve then follows from them.
    groups : tuple of GroupLosses
        Empty unless scores of groups of rows were requested.
    """

    curve: LossCurve
    fold_curves: tuple[LossCurve, ...]
    weights: tuple[float, ...]
    fragments: FragmentLosses | None
    loco: float
    loco_stderr: float
    iid: float
    test_losses: tuple[TestLosses, ...]
    row_losses: tuple[Array, ...]
    units: UnitLosses
    tails: tuple[Tail, ...] = ()
    doses: DoseLosses | None = None
    groups: tuple[GroupLosses, ...] = ()

    def to_json(self) -> str:
        """Return strict JSON from which all conclusions can be recomputed; NaN becomes null."""
        values = {field.name: _as_json(getattr(self, field.name)) for field in fields(self)}
        if not self.groups:
            del values["groups"]
        return json.dumps(values, allow_nan=False, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> "Measurement":
        """Parse the text that `to_json` returned."""
        values = json.loads(text)
        units, losses = values["units"], values["fragments"]
        tails = [
            Tail(
                threshold=tail["threshold"],
                curve=LossCurve.from_dict(tail["curve"]),
                fold_curves=tuple(map(LossCurve.from_dict, tail["fold_curves"])),
            )
            for tail in values["tails"]
        ]
        read: dict[str, Any] = {
            "curve": LossCurve.from_dict(values["curve"]),
            "fold_curves": tuple(map(LossCurve.from_dict, values["fold_curves"])),
            "weights": tuple(values["weights"]),
            "fragments": None if losses is None else FragmentLosses.from_dict(losses),
            "test_losses": tuple(
                (_as_array(without), _as_array(leaked), np.array(groups, dtype=np.intp))
                for without, leaked, groups in values["test_losses"]
            ),
            "row_losses": tuple(map(_as_array, values["row_losses"])),
            "units": UnitLosses(
                unit=units["unit"],
                ids=np.array(units["ids"], dtype=np.intp),
                **{name: _as_array(units[name]) for name in ("share", "curve", "fragments")},
            ),
            "tails": tuple(tails),
        }
        if values.get("doses") is not None:
            read["doses"] = DoseLosses.from_dict(values["doses"])
        read["groups"] = tuple(
            GroupLosses(
                **{**group, "doses": group["doses"] and DoseLosses.from_dict(group["doses"])}
            )
            for group in values.get("groups", ())
        )
        read |= {name: float(values[name]) for name in ("loco", "loco_stderr", "iid")}
        return cls(**read)


def _as_json(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        if value.dtype.kind != "f" or np.isfinite(value).all():
            return value.tolist()
        return np.where(np.isnan(value), np.array(None), value).tolist()
    if isinstance(value, (Result, DoseLosses)):
        return value.to_dict()
    if isinstance(value, (tuple, list)):
        return [_as_json(item) for item in value]
    if isinstance(value, (Tail, UnitLosses, GroupLosses)):
        return {field.name: _as_json(getattr(value, field.name)) for field in fields(value)}
    return value


def _as_array(values: Any) -> Array:
    """Return an array of numbers, with null read as NaN."""
    return np.array(values, dtype=float)


def assemble(
    folds: Sequence[FoldLosses],
    iid_losses: Iterable[Array],
    resampler: Resampler,
    repeats: int = 1,
    tails: tuple[Tail, ...] = (),
) -> Measurement:
    """Turn the collected losses into curves with their uncertainty.

    The uncertainty over the choice of clusters is cluster-robust. Let d_g be the sum of the
    deviations of the rows of cluster g from the mean, divided by the number of rows. Then
    Σ = 1.4 · G/(G-1) · Σ_g d_g d_gᵀ, jointly over levels and both sides. The factor allows for the
    correlation of clusters that are trained on each other (doi:10.1080/01621459.2023.2197686). With
    fewer than ten validated clusters, single rows replace clusters, and the interval is about new
    rows of these clusters.

    Parameters
    ----------
    folds : sequence of FoldLosses
    iid_losses : iterable of array
    resampler : Resampler
    repeats : int
        Number of assignments of clusters to folds.
    tails : tuple of Tail
        Measured in the same audit.
    """
    parts = assemble_curve(folds, resampler, repeats)
    clusters, few = resampler.clusters, resampler.few_clusters
    units = np.arange(len(clusters)) if few else clusters
    fragments, broken = fragment_losses(
        [fold.seen for fold in folds], clusters, units, resampler.fragments
    )
    return Measurement(
        curve=parts.curve,
        fold_curves=parts.fold_curves,
        weights=tuple(float(weight) for weight in parts.weights),
        fragments=fragments,
        loco=_loco(folds, parts, resampler),
        loco_stderr=float(np.sqrt(np.array(parts.curve.covariance)[0, 0])),
        iid=float(np.mean(np.concatenate(list(iid_losses)))),
        test_losses=(gather_test_losses(folds, clusters),),
        row_losses=tuple(fold.loco.means[:, 0] for fold in folds),
        units=UnitLosses(
            unit="rows" if few else "clusters",
            ids=parts.used,
            share=parts.share,
            curve=parts.influence,
            fragments=broken[parts.used],
        ),
        tails=tails,
    )


def assemble_doses(
    folds: Sequence[FoldLosses],
    totals: DoseTotals,
    resampler: Resampler,
    groups: RowGroups | None = None,
) -> Measurement:
    """Turn the losses by dose into a measurement.

    The loss curve over injected shares follows from them: at an exposure x, a row of a cluster with M
    rows has Binomial(M - 1, x) mates in training. Its uncertainty over clusters is that of `assemble`.

    Parameters
    ----------
    folds : sequence of FoldLosses
        The folds of all complete passes.
    totals : DoseTotals
    resampler : Resampler
    groups : RowGroups, optional
        Groups of rows with losses of their own.
    """
    clusters = resampler.clusters
    doses = _dose_losses(folds, totals, resampler)
    validated = np.isfinite(doses.loco).any(axis=0)
    levels = doses.at_exposures(resampler.exposures)
    share = np.where(validated, doses.sizes, 0) / doses.sizes[validated].sum()
    mean = levels @ share
    far, scored = doses.differences[doses.held_back], doses.counts[doses.held_back]
    far_mean = far.sum() / max(1, scored.sum())
    losses = np.hstack(
        [(levels - mean[:, None]).T * share[:, None]]
        + [
            ((far - far_mean * scored) / max(1, scored.sum()))[:, None]
            + (share * (levels[0] - mean[0]))[:, None]
        ]
        * len(mean)
    )
    used = np.flatnonzero(validated)
    influence = losses[used]
    n_train = float(np.mean([len(fold.fold.training) for fold in folds]))
    n_validation = float(np.mean([len(fold.fold.validation) for fold in folds]))
    exhausted = min(1.0, n_validation / n_train)
    fits = max(1, len(totals.refits) // len(np.unique([fold for fold, *_ in totals.refits] or [0])))
    curve = LossCurve(
        injected=tuple(exposure * exhausted for exposure in resampler.exposures),
        loss=tuple(mean.tolist()),
        stderr=tuple(_refit_errors(doses, totals, resampler).tolist()),
        n_train=round(n_train),
        fits=(fits,) * len(mean),
        exhausted_at=exhausted,
        training_loss=(float(mean[0] + far_mean),) * len(mean),
        covariance=tuple(map(tuple, robust_covariance(influence).tolist())),
        degrees_of_freedom=max(1, len(used) - 1),
        sharpness=sharpness_of(clusters),
    )
    sizes = np.array([len(fold.fold.validation) for fold in folds])
    return Measurement(
        curve=curve,
        fold_curves=(),
        weights=tuple((sizes / sizes.sum()).tolist()),
        fragments=None,
        loco=float(mean[0]),
        loco_stderr=float(np.sqrt(np.array(curve.covariance)[0, 0])),
        iid=float(totals.by_row.sums.sum() / totals.by_row.counts.sum()),
        test_losses=(_far_losses(totals, clusters),),
        row_losses=tuple(fold.loco.means[:, 0] for fold in folds),
        units=UnitLosses(
            unit="clusters",
            ids=used,
            share=share[used],
            curve=influence,
            fragments=np.zeros((len(used), 0)),
        ),
        doses=doses,
        groups=() if groups is None else _group_losses(folds, totals, resampler, groups),
    )


def _group_losses(
    folds: Sequence[FoldLosses], totals: DoseTotals, resampler: Resampler, groups: RowGroups
) -> tuple[GroupLosses, ...]:
    """Return what rows add to the mean loss of their group: L + n/n_g·(loss - L), other rows L."""
    whole = totals.whole.means[:, 0]
    found = []
    for code in range(len(groups.names)):
        scored = (groups.codes == code) & np.isfinite(whole)
        why_not, spread = group_problem(scored, resampler.clusters)
        doses = None
        if not why_not:
            mean = float(whole[scored].mean())
            factor = np.where(groups.codes == code, np.isfinite(whole).sum() / scored.sum(), 0.0)

            def change(
                sums: Array, counts: Array, mean: float = mean, factor: Array = factor
            ) -> Array:
                return np.asarray(factor * (sums - mean * counts) + mean * counts)

            doses = _dose_losses(folds, totals, resampler, change)
        found.append(
            GroupLosses(
                by=groups.by,
                name=groups.names[code],
                rows=int(scored.sum()),
                clusters=spread,
                doses=doses,
                why_not=why_not,
            )
        )
    return tuple(found)


def group_problem(scored: NDArray[np.bool_], clusters: Indices) -> tuple[str, float]:
    """Return why a group has no scores of its own, and how many clusters it is spread over."""
    if not scored.any():
        return "no row of it was validated", 0.0
    spread = effective_clusters(scored, clusters)
    few = f"it is spread over {spread:.1f} clusters (effective number), fewer than {FEWEST_EFFECTIVE:g}"
    return (few if spread < FEWEST_EFFECTIVE else ""), spread


def by_pass(
    validation: Sequence[Indices], losses: Sequence[Array], n_rows: int
) -> tuple[Array, Indices]:
    """Return the loss of each row in whole refits, and its fold, by pass: folds that do not overlap.

    Rows that are in no validation fold of a pass have NaN and -1.
    """
    whole: list[Array] = []
    numbers: list[Indices] = []
    for number, (rows, own) in enumerate(zip(validation, losses, strict=True)):
        if not whole or np.isfinite(whole[-1][rows]).any():
            whole.append(np.full(n_rows, np.nan))
            numbers.append(np.full(n_rows, -1, dtype=np.intp))
        whole[-1][rows] = own
        numbers[-1][rows] = number
    return np.stack(whole), np.stack(numbers)


def _dose_losses(
    folds: Sequence[FoldLosses],
    totals: DoseTotals,
    resampler: Resampler,
    change: Callable[[Array, Array], Array] = lambda sums, counts: sums,  # noqa: ARG005
) -> DoseLosses:
    clusters = resampler.clusters
    whole, numbers = by_pass(
        [fold.fold.validation for fold in folds],
        [fold.loco.means[:, 0] for fold in folds],
        len(clusters),
    )
    levels = [totals.at_level(level) for level in range(totals.FAR + 1)]
    levels.append(totals.by_row.at_level(0))
    sizes = np.bincount(clusters)
    training = [len(fold.fold.training) for fold in folds]
    rotated = len(totals.refits)
    possible = max(1.0, rotated * float(np.mean(training)))
    held_back = float(levels[totals.FAR][1].sum()) / possible
    return DoseLosses.from_rows(
        clusters=clusters,
        doses=[dose_levels(size) for size in sizes.tolist()],
        sums=[change(*own) for own in levels],
        counts=[counts for _, counts in levels],
        whole=change(whole, np.ones(1)),
        folds=numbers,
        training_share=float(
            np.mean(
                [n / (n + len(f.fold.validation)) for n, f in zip(training, folds, strict=True)]
            )
        ),
        held_back_share=held_back,
        refits=rotated + round(sum(f.loco.counts.mean() for f in folds)),
    )


def _refit_errors(doses: DoseLosses, totals: DoseTotals, resampler: Resampler) -> Array:
    """Return the standard errors over refits of the losses at the exposures of the curve.

    Refits differ in the rows that they move, and by chance. The variance between refits of the mean
    change at each level is divided by their number.
    """
    if len(totals.refits) < 2:
        return np.zeros(len(resampler.exposures))
    sums = np.array([own for _, own, _ in totals.refits])
    counts = np.array([number for *_, number in totals.refits])
    scored = counts > 0
    means = np.divide(sums, counts, out=np.zeros_like(sums), where=scored)
    number = scored.sum(axis=0)
    centre = means.sum(axis=0) / np.maximum(number, 1)
    squares = np.where(scored, (means - centre) ** 2, 0).sum(axis=0)
    noise = squares / np.maximum(number - 1, 1) / np.maximum(number, 1)
    typical = int(np.median(np.repeat(doses.sizes, doses.sizes)))
    like = int(np.argmin(np.abs(doses.sizes - typical)))
    weights = doses.interpolation(like, resampler.exposures)
    change = weights - np.eye(weights.shape[1])[0]
    return np.asarray(np.sqrt(change**2 @ noise))


def _far_losses(totals: DoseTotals, clusters: NDArray[np.intp]) -> TestLosses:
    """Return the losses of rows in unchanged folds, and with nearly all their mates in training."""
    both = zip(totals.at_level(totals.FAR), totals.by_row.at_level(0), strict=True)
    sums, counts = (np.add(far, single, dtype=float) for far, single in both)
    without = totals.whole.means[:, 0]
    rows = np.flatnonzero((counts > 0) & np.isfinite(without))
    return without[rows], np.asarray(sums[rows] / counts[rows]), clusters[rows]


def _loco(folds: Sequence[FoldLosses], parts: "Curves", resampler: Resampler) -> float:
    if resampler.n_train is not None:  # one sample of T̂ per fold is noisy; level 0 has many
        return parts.curve.loss[0]
    return float(np.dot(parts.weights, [fold.loco.means.mean() for fold in folds]))


@dataclass(frozen=True, kw_only=True)
class Curves:
    """The pooled loss curve and the curves of the folds.

    `influence` is that of each unit in `used`, and `share` is its share of the validated rows.
    """

    curve: LossCurve
    fold_curves: tuple[LossCurve, ...]
    weights: Array
    used: NDArray[np.intp]
    share: Array
    influence: Array


def assemble_curve(folds: Sequence[FoldLosses], resampler: Resampler, repeats: int) -> Curves:
    """Return the curves of one loss; see `assemble`."""
    clusters, few = resampler.clusters, resampler.few_clusters
    sizes = np.array([len(fold.fold.validation) for fold in folds])
    weights = sizes / sizes.sum()
    lines = [_held_back_line(fold, resampler) for fold in folds]
    curves = tuple(
        _fold_curve(fold, line, resampler) for fold, line in zip(folds, lines, strict=True)
    )
    mean = np.array(pooled([curve.loss for curve in curves], list(weights)))
    rows = np.zeros(resampler.n_units, dtype=np.intp)
    parts = np.zeros((resampler.n_units, 2 * len(mean)))
    for fold, line, weight in zip(folds, lines, weights, strict=True):
        parts += weight * _influence(fold, line, resampler, None if few else mean)
        rows += np.bincount(resampler.units_of(fold.fold.validation), minlength=resampler.n_units)
    used = np.flatnonzero(rows)
    influence = parts[used]
    covariance = robust_covariance(influence)
    curve = _pool(
        curves, weights, covariance, max(1, len(used) - 1), sharpness_of(clusters), repeats
    )
    return Curves(
        curve=curve,
        fold_curves=curves,
        weights=weights,
        used=used,
        share=rows[used] / rows.sum(),
        influence=influence,
    )


def sharpness_of(clusters: NDArray[np.intp]) -> int:
    """Return the highest power in the loss curve, from the cluster sizes.

    A row with m - 1 others in its cluster meets J ~ Binomial(m - 1, r) of them in training at
    exposure r, so its expected loss is a polynomial of degree m - 1 in 1 - r. The 95% quantile of
    the cluster size over rows is used for m. The result is at most 25.
    """
    sizes = np.bincount(clusters)[clusters]
    return int(np.clip(np.quantile(sizes, 0.95) - 1, 1, SHARPNESS))


def _held_back_line(fold: FoldLosses, resampler: Resampler) -> tuple[Array, Array]:
    """Fit a line to the loss on T̂ ∖ T' over the levels; return it and its linear map.

    T̂ ∖ T' is empty at level 0 if T' is all of T̂, and small at low levels. The loss there is nearly
    linear, so a line through all levels, weighted by rows, is sufficient.
    """
    exposure = np.array(resampler.exposures)
    held = fold.held_back(resampler)
    counts = held.counts.sum(axis=0).astype(float)
    mean = np.divide(held.sums.sum(axis=0), counts, out=np.zeros_like(counts), where=counts > 0)
    design = np.column_stack([np.ones_like(exposure), exposure])
    weighted = design * counts[:, None]
    hat = design @ np.linalg.pinv(weighted.T @ design) @ weighted.T
    return hat @ mean, hat


def _fold_curve(fold: FoldLosses, line: tuple[Array, Array], resampler: Resampler) -> LossCurve:
    n_train = resampler.n_train or len(fold.fold.training)
    n_validation = len(fold.fold.validation)
    exhausted = 1.0 if resampler.scheme == "replace" else min(1.0, n_validation / n_train)
    variances = fold.fit_variances
    variances[0] = 0.0 if np.isnan(variances[0]) else variances[0]
    known = variances[1:][np.isfinite(variances[1:])]  # failures may leave one refit at a level
    variances[np.isnan(variances)] = known.max() if known.size else 0.0
    return LossCurve(
        injected=tuple(exposure * exhausted for exposure in resampler.exposures),
        loss=tuple(np.nanmean(fold.validation.means, axis=0)),
        stderr=tuple(np.sqrt(variances / np.array(fold.fits))),
        n_train=n_train,
        fits=fold.fits,
        exhausted_at=exhausted,
        training_loss=tuple(line[0]),
    )


def _influence(
    fold: FoldLosses, line: tuple[Array, Array], resampler: Resampler, mean: Array | None
) -> Array:
    """Return the influence of each unit on the losses and held-back losses of a fold, as deviations.

    Deviations are from the mean of all folds, or from the mean of the fold if rows are the units.
    """
    means = fold.validation.means
    centre = np.nanmean(means, axis=0) if mean is None else mean
    scored = np.isfinite(means).sum(axis=0)
    deviation = np.nan_to_num(means - centre) / np.maximum(scored, 1)
    own = by_unit(deviation, resampler.units_of(fold.validation.rows), resampler.n_units)
    held = fold.held_back(resampler)
    totals = np.maximum(held.counts.sum(axis=0), 1)
    ratio = held.sums.sum(axis=0) / totals
    deviation = ((held.sums - ratio * held.counts) / totals) @ line[1].T
    other = by_unit(deviation, held.units, resampler.n_units)
    return np.hstack([own, other])


def _pool(
    curves: Sequence[LossCurve],
    weights: Array,
    covariance: Array,
    freedom: int,
    sharpness: int,
    repeats: int,
) -> LossCurve:
    shares = list(weights)
    variance = pooled(
        [[error**2 for error in c.stderr or ()] for c in curves], [w**2 for w in shares]
    )
    return LossCurve(
        injected=pooled([c.injected for c in curves], shares),
        loss=pooled([c.loss for c in curves], shares),
        stderr=tuple(np.sqrt(variance)),
        n_train=round(sum(w * c.n_train for w, c in zip(shares, curves, strict=True))),
        fits=tuple(
            repeats * min(c.fits[level] for c in curves if c.fits) for level in range(len(variance))
        ),
        exhausted_at=min(1.0, float(np.dot(shares, [c.exhausted_at for c in curves]))),
        training_loss=pooled([c.training_loss or () for c in curves], shares),
        covariance=tuple(map(tuple, covariance.tolist())),
        degrees_of_freedom=freedom,
        sharpness=sharpness,
    )


# --- Shares of rows whose loss exceeds a threshold, by level

#: Thresholds are these quantiles of the rows' losses on the unchanged folds.
QUANTILES = (0.1, 0.25, 0.5, 0.75, 0.9, 0.95)


class TailLosses:
    """Collects the losses 1[loss > threshold] of an audit's refits for several thresholds."""

    def __init__(self, folds: Sequence[Fold], resampler: Resampler) -> None:
        self._folds = folds
        self._resampler = resampler
        self._first: list[Outcome] = []
        self._collected: dict[float, list[FoldLosses]] = {}

    def add(self, outcome: Outcome) -> None:
        """Add one refit. Refits on whole folds are kept until the thresholds are known."""
        if isinstance(outcome.task.kind, WholeFold):
            self._first.append(outcome)
        elif isinstance(outcome.task.kind, InjectedRows):
            self._add(outcome)

    def set_thresholds(self) -> None:
        """Choose the thresholds from the losses on whole folds; none if losses take only two values."""
        losses = np.concatenate([o.validation for o in self._first if o.validation is not None])
        if len(np.unique(losses)) < 3:
            return
        levels = len(self._resampler.exposures)
        for threshold in np.unique(np.quantile(losses, QUANTILES)):
            self._collected[float(threshold)] = [FoldLosses(f, levels) for f in self._folds]
        for outcome in self._first:
            self._add(outcome)

    def _add(self, outcome: Outcome) -> None:
        assert outcome.validation is not None
        assert outcome.held_back is not None
        for threshold, folds in self._collected.items():
            above = replace(
                outcome,
                validation=(outcome.validation > threshold).astype(float),
                held_back=(outcome.held_back > threshold).astype(float),
            )
            folds[outcome.task.fold].add(above, self._resampler)

    def assemble(self, repeats: int) -> tuple[Tail, ...]:
        """Return the curves of all thresholds."""
        tails = []
        for threshold, folds in self._collected.items():
            parts = assemble_curve(folds, self._resampler, repeats)
            tails.append(
                Tail(threshold=threshold, curve=parts.curve, fold_curves=parts.fold_curves)
            )
        return tuple(tails)


# --- The losses of an audit while its refits run

#: Refits that each level of a fold needs for a result.
LEAST_FITS = 2


class Collected:
    """Collects outcomes by fold and assembles the measurement.

    Parameters
    ----------
    campaign : Campaign
    resampler : Resampler
    """

    def __init__(self, campaign: "Campaign", resampler: Resampler) -> None:
        self._campaign = campaign
        self._resampler = resampler
        levels = len(resampler.exposures)
        self._folds = [FoldLosses(fold, levels) for fold in campaign.folds]
        self._tails = TailLosses(campaign.folds, resampler)
        self._iid: list[NDArray[np.float64]] = []

    def add(self, outcome: Outcome) -> None:
        """Add a refit. Refits on whole folds must come before all others."""
        if isinstance(outcome.task.kind, RowFold):
            assert outcome.validation is not None
            self._iid.append(outcome.validation)
            return
        self._folds[outcome.task.fold].add(outcome, self._resampler)
        if self._campaign.distribution:
            self._tails.add(outcome)

    @property
    def folds_without_loss(self) -> list[int]:
        """Folds without a successful refit on the unchanged fold."""
        return [n for n, fold in enumerate(self._folds) if (fold.loco.counts == 0).any()]

    def start(self, counts: FitCounts) -> None:
        """Prepare for resampled refits, which are compared with those on whole folds."""
        if self.folds_without_loss or not self._iid:
            raise FitError(f"all refits on a whole fold failed:\n{counts.first_error}")
        if self._campaign.distribution:
            self._tails.set_thresholds()

    @property
    def complete(self) -> bool:
        """Whether there are enough refits for a result: at every level of every fold, and of the test."""
        if not self._iid or self.folds_without_loss:
            return False
        levels = [count for fold in self._folds for count in fold.fits[1:]]
        tested = any((fold.with_leak.counts > 0).any() for fold in self._folds)
        return min(levels) >= LEAST_FITS and (tested or self._campaign.test != "paired")

    def require_complete(self, counts: FitCounts) -> None:
        """Raise an error if there are not enough refits for a result."""
        if any(0 in fold.fits for fold in self._folds):
            raise FitError(f"all refits at one level failed:\n{counts.first_error}")
        if any((fold.validation.counts.sum(axis=0) == 0).any() for fold in self._folds):
            raise InputError(
                f"scheme={self._campaign.scheme!r} leaves no validation rows of a fold to score: "
                "drawing with replacement uses all of them. Use scheme='subset', or fewer folds."
            )

    def assemble(self) -> Measurement:
        """Return the curves with their uncertainty."""
        repeats = self._campaign.repeats
        tails = self._tails.assemble(repeats) if self._campaign.distribution else ()
        return assemble(self._folds, self._iid, self._resampler, repeats, tails)

    def preview(self) -> str | None:
        """Return a short text about the result so far, or None if there is none yet."""
        if self._campaign.preview is None or not self.complete:
            return None
        measured = assemble(self._folds, self._iid, self._resampler, self._campaign.repeats)
        return self._campaign.preview(measured)


class CollectedDoses:
    """Collects the outcomes of an audit by doses, and assembles the measurement.

    Parameters
    ----------
    campaign : DoseCampaign
    resampler : Resampler
    """

    def __init__(self, campaign: "DoseCampaign", resampler: Resampler) -> None:
        self._campaign = campaign
        self._resampler = resampler
        self._totals = DoseTotals(campaign.data.n_rows)
        self._folds = [FoldLosses(fold, 1, self._totals) for fold in campaign.folds]

    def add(self, outcome: Outcome) -> None:
        """Add a refit. Refits on the unchanged folds of a pass come before its other refits."""
        if isinstance(outcome.task.kind, RowFold):
            assert outcome.validation is not None
            rows = (outcome.draw or self._resampler.draw(outcome.task)).validation
            self._totals.by_row.add_at(rows, 0, outcome.validation)
        else:
            self._folds[outcome.task.fold].add(outcome, self._resampler)

    @property
    def folds_without_loss(self) -> list[int]:
        """Folds of the first pass without a successful refit on the unchanged fold."""
        first = len(self._folds) // self._campaign.repeats
        return [n for n, fold in enumerate(self._folds[:first]) if (fold.loco.counts == 0).any()]

    @property
    def complete(self) -> bool:
        """Whether there is a score by clusters and one by rows."""
        return bool(self._totals.by_row.counts.any()) and not self.folds_without_loss

    def require_complete(self, counts: FitCounts) -> None:
        """Raise an error if there is no score by clusters, or none by rows."""
        if not self.complete:
            raise FitError(f"all refits on a whole fold failed:\n{counts.first_error}")

    def assemble(self) -> Measurement:
        """Return the losses by dose with their uncertainty, and the loss curve that they imply."""
        per_pass = len(self._folds) // self._campaign.repeats
        scored = [not (fold.loco.counts == 0).any() for fold in self._folds]
        passes = [all(scored[n : n + per_pass]) for n in range(0, len(scored), per_pass)]
        done = per_pass * (passes.index(False) if False in passes else len(passes))
        groups = self._campaign.groups
        return assemble_doses(self._folds[:done], self._totals, self._resampler, groups)

    def preview(self) -> str | None:
        """Return a short text about the result so far, or None if there is none yet."""
        if self._campaign.preview is None or not self.complete:
            return None
        return self._campaign.preview(self.assemble())
