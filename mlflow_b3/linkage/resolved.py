"""Leak shares from resolved rows: rows whose mates were looked up by a person."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from mlflow_b3.errors import InputError, check_seed
from mlflow_b3.linkage.leak import (
    Floats,
    LeakEstimate,
    LeakShare,
    Mask,
    Rows,
    Splits,
    as_codes,
    typical_fragments,
)
from mlflow_b3.linkage.pairs import id_text, label_texts
from mlflow_b3.results import not_percentage

# --- Checks of reviewed rows and their mates


def checked_rows(rows: Any, n: int) -> Rows:
    """Check the numbers of reviewed rows: each may occur once."""
    numbers = np.asarray(rows)
    if numbers.ndim != 1 or not len(numbers):
        raise InputError("rows must list the numbers of the reviewed rows; it is empty.")
    if not np.issubdtype(numbers.dtype, np.integer):
        raise InputError(
            "rows must be whole numbers from 0; parse_review converts ids to row numbers."
        )
    problems = []
    if numbers.min() < 0 or numbers.max() >= n:
        problems.append(f"row numbers must lie in 0 … {n - 1}.")
    twice = len(numbers) - len(np.unique(numbers))
    if twice:
        problems.append(f"{twice} are given more than once; list each row once.")
    if problems:
        raise InputError.from_problems("rows", problems)
    return numbers.astype(np.intp)


def checked_mates(rows: Rows, mates: Any, n: int) -> tuple[Rows, ...]:
    """Return the mates of each reviewed row, sorted; a missing list is an error."""
    if isinstance(mates, Mapping):
        listed: Sequence[Any] = [mates.get(row) for row in rows.tolist()]
    else:
        listed = list(mates)
    if len(listed) != len(rows):
        raise InputError(
            f"mates has {len(listed)} entries for {len(rows)} rows; give one for each."
        )
    missing = sum(isinstance(item, str) or not isinstance(item, Iterable) for item in listed)
    if missing:
        raise InputError(
            f"mates is missing, or is not a list, for {missing} of {len(rows)} rows. An empty list says "
            "that the row was reviewed and has no mates. Leave out rows that were not reviewed, if "
            "they are a random part of the sample."
        )
    lists = [list(item) for item in listed]
    flat = np.asarray([mate for found in lists for mate in found])
    if len(flat) and not (flat.ndim == 1 and np.issubdtype(flat.dtype, np.integer)):
        raise InputError(
            "mates must be whole numbers from 0; parse_review converts ids to row numbers."
        )
    flat = flat.astype(np.intp)
    places = np.repeat(np.arange(len(rows)), [len(found) for found in lists])
    problems = []
    outside = len(np.unique(places[(flat < 0) | (flat >= n)]))
    if outside:
        problems.append(f"{outside} rows have mates outside 0 … {n - 1}.")
    own = len(np.unique(places[flat == rows[places]]))
    if own:
        problems.append(f"{own} rows are listed as mates of themselves; list other rows only.")
    if problems:
        raise InputError.from_problems("mates", problems)
    pairs = np.unique(np.column_stack([places, flat]), axis=0)
    ends = np.cumsum(np.bincount(pairs[:, 0], minlength=len(rows)))[:-1]
    return tuple(np.split(pairs[:, 1], ends))


def count_unreturned(rows: Rows, places: Rows, mates: Rows, home: Rows) -> int:
    """Return the number of reviewed rows that another row lists as a mate, but not vice versa.

    `places` and `mates` are the pairs of `ResolvedRows`. Rows with the same `home` need not be
    listed.
    """
    order = np.argsort(rows)
    found = order[np.minimum(np.searchsorted(rows, mates, sorter=order), len(rows) - 1)]
    both = rows[found] == mates
    here, there = places[both], found[both]
    returned = np.isin(here * len(rows) + there, there * len(rows) + here)
    return len(np.unique(there[~returned & (home[here] != home[there])]))


# --- Correction of leak shares for errors of the reviewer


def check_reviewer(sensitivity: float, specificity: float) -> None:
    """Check the rates of a reviewer: they must be informative."""
    problems = [
        f"{name}={rate!r} must lie in [0, 1].{not_percentage(rate)}"
        for name, rate in (("sensitivity", sensitivity), ("specificity", specificity))
        if not 0 <= rate <= 1
    ]
    if not problems and sensitivity + specificity <= 1:
        problems.append(
            f"sensitivity={sensitivity!r} and specificity={specificity!r} sum to 1 or less: such a "
            "review carries no information about which rows leak."
        )
    if problems:
        raise InputError.from_problems("reviewer", problems)


def corrected_share(
    share: LeakShare, split_rate: float, sensitivity: float, specificity: float
) -> LeakShare:
    """Correct a share for errors of the reviewer."""
    power = sensitivity + specificity - 1
    assert share.point is not None
    per_split = share.point / split_rate if split_rate > 0 else 0.0

    def without_errors(value: float, most: float) -> float:
        return min(max((value - per_split * (1 - specificity)) / power, 0.0), most)

    point = without_errors(share.point, min(per_split, 1.0))
    return LeakShare(
        point=point,
        low=min(without_errors(share.low, 1.0), point),
        high=max(without_errors(share.high, 1.0), point),
    )


def correction_notes(split_rate: float, sensitivity: float, specificity: float) -> list[str]:
    """Return notes about the correction, and whether it was truncated."""
    power = sensitivity + specificity - 1
    rate = (split_rate - (1 - specificity)) / power
    notes = [
        f"Corrected for a reviewer of sensitivity {sensitivity:g}, specificity {specificity:g}."
    ]
    if not 0 <= rate <= 1:
        notes.append(
            f"The corrected split rate, {rate:.3g}, was cut to [0, 1]: the observed number of split "
            "rows does not fit the sensitivity and specificity, which may be wrong."
        )
    return notes


# --- Votes: the best score of each row with each predicted cluster on the other side


@dataclass(frozen=True, kw_only=True, eq=False)
class Votes:
    """The best score of each row with each predicted cluster, and the scores behind it.

    Attributes
    ----------
    row, cluster : array of int
        The row, and the predicted cluster of its possible mates; every combination once.
    best : array of float
        The largest score of the row's pairs with that cluster.
    pair_row, pair_score : array
        Row and score of every pair behind the votes.
    """

    row: Rows
    cluster: Rows
    best: Floats
    pair_row: Rows
    pair_score: Floats


@dataclass(frozen=True, kw_only=True, eq=False)
class DirectedPairs:
    """Every pair in both directions, sorted by row and by the cluster of the mate.

    Attributes
    ----------
    row, mate : array of int
    score : array of float
        Probabilities, or an increasing function of them.
    cluster : array of int
        Predicted cluster of the mate.
    """

    row: Rows
    mate: Rows
    score: Floats
    cluster: Rows

    @classmethod
    def of(
        cls, first: Rows, second: Rows, score: Floats, clusters: Rows, *, within: bool = False
    ) -> Self:
        """Convert pairs to directed pairs; pairs within a cluster only if `within`."""
        if not within:
            across = clusters[first] != clusters[second]
            first, second, score = first[across], second[across], score[across]
        row, mate = np.concatenate([first, second]), np.concatenate([second, first])
        order = np.lexsort([clusters[mate], row])
        row, mate = row[order], mate[order]
        both = np.concatenate([score, score])[order]
        return cls(row=row, mate=mate, score=both, cluster=clusters[mate])

    def votes(self, own: Mask, other: Mask) -> Votes:
        """Return the votes of clusters on the other side for the rows of one side."""
        use = np.flatnonzero(own[self.row] & other[self.mate])
        row, cluster, score = self.row[use], self.cluster[use], self.score[use]
        if not len(use):
            return Votes(row=row, cluster=cluster, best=score, pair_row=row, pair_score=score)
        changes = (row[1:] != row[:-1]) | (cluster[1:] != cluster[:-1])
        starts = np.concatenate([[0], np.flatnonzero(changes) + 1])
        return Votes(
            row=row[starts],
            cluster=cluster[starts],
            best=np.maximum.reduceat(score, starts),
            pair_row=row,
            pair_score=score,
        )


def any_match(rows: Rows, probability: Floats, n: int) -> Floats:
    """Return 1 - Π(1 - p) over the values of each of n rows."""
    with np.errstate(divide="ignore"):  # a certain match: log 0
        misses = np.log1p(-probability)
    return np.asarray(-np.expm1(np.bincount(rows, weights=misses, minlength=n)))


# --- Means over a table from a sample of its rows, with intervals that are valid for rare events

#: Draws of the weights. The ends of the interval then vary by about 2% of its width.
DRAWS = 4000
#: Strata with fewer sampled rows do not show the variation of their values.
FEW_ROWS = 5


@dataclass(frozen=True, kw_only=True, eq=False)
class SampledRows:
    """The strata of sampled rows, and their sizes in the table.

    Attributes
    ----------
    stratum : array of int
        The stratum of each sampled row, from 0.
    sizes : array of float
        N_h: number of rows of the table in each stratum.
    """

    stratum: Rows
    sizes: Floats

    @classmethod
    def of(cls, strata: Any, count: int, n: int | None) -> Self:
        """Read `strata` for `count` sampled rows of a table of `n` rows; None is a single stratum.

        Without `n`, the table is assumed to be far larger than the sample.
        """
        if strata is None:
            size = np.inf if n is None else n
            return cls(stratum=np.zeros(count, dtype=np.intp), sizes=np.array([size], dtype=float))
        try:
            labels, given = strata
            labels, given = list(labels), dict(given)
        except (TypeError, ValueError):
            raise InputError(
                f"strata={strata!r} is not valid. Give the stratum of each reviewed row, and the number "
                "of rows of the table in each stratum: (labels, {label: rows})."
            ) from None
        return cls(stratum=as_codes("strata", labels, count), sizes=_sizes(labels, given, n))

    @property
    def counts(self) -> Floats:
        """n_h: number of sampled rows of each stratum."""
        return np.bincount(self.stratum, minlength=len(self.sizes)).astype(float)

    @property
    def shares(self) -> Floats:
        """N_h/n: the share of the table in each stratum."""
        if len(self.sizes) == 1:
            return np.ones(1)
        return np.asarray(self.sizes / self.sizes.sum())

    @property
    def weights(self) -> Floats:
        """Weight of each sampled row in a mean over the table: N_h/(n·n_h)."""
        return np.asarray((self.shares / self.counts)[self.stratum])

    def mean(self, values: Any) -> float:
        """Return the Horvitz–Thompson mean Σ_h (N_h/n)·v̄_h."""
        return float(self.weights @ np.asarray(values, dtype=float))

    def share(self, values: Floats, largest: float, level: float, seed: int) -> LeakShare:
        """Return the mean of values in [0, largest] over the table, with its interval.

        The ends are quantiles of the mean under random Dirichlet weights of the rows of each stratum
        (the Bayesian bootstrap). For the upper end, a row with the largest value is added to the
        sample; for the lower end, a row with 0. It is added to the stratum with the largest weight
        of a row, and to strata with fewer than five sampled rows. Deviations are multiplied by
        √(1 − n_h/N_h): a stratum that was sampled completely adds no uncertainty.

        Notes
        -----
        For values 0 and 1 and a single stratum, the interval is that of Clopper and Pearson
        (doi:10.1093/biomet/26.4.404); for other values, that of Learned-Miller and Thomas
        (arXiv:1905.06208; a similar bound is proven by Phan, Thomas and Learned-Miller, ICML 2021);
        for rare events in several strata, that of Fay and Feuer
        (doi:10.1002/(SICI)1097-0258(19970415)16:7<791::AID-SIM500>3.0.CO;2-#). A percentile
        bootstrap of the rows has lower coverage: it ignores events that are not in the sample.
        """
        point = self.mean(values)
        rngs = np.random.default_rng(seed).spawn(2)
        tail = (1 - level) / 2
        low = float(np.quantile(self._draws(values, 0.0, rngs[0]), tail))
        high = float(np.quantile(self._draws(values, largest, rngs[1]), 1 - tail))
        point = min(point, 1.0)
        return LeakShare(
            point=point, low=min(max(low, 0.0), point), high=max(min(high, 1.0), point)
        )

    def _draws(self, values: Floats, extra: float, rng: np.random.Generator) -> Floats:
        """Draw means over the table, with a row of value `extra` added to the sample."""
        counts, total = self.counts, np.zeros(DRAWS)
        unsure = np.sqrt(np.maximum(0.0, 1 - counts / self.sizes))
        heaviest = int(np.argmax(np.where(unsure > 0, self.shares / counts, -1.0)))
        for h, (share, doubt) in enumerate(zip(self.shares, unsure, strict=True)):
            # Dirichlet weights of equal values add up: one weight per distinct value is enough.
            held, often = np.unique(values[self.stratum == h], return_counts=True)
            middle = float(held @ often) / counts[h]
            if h == heaviest or counts[h] < FEW_ROWS:
                held, often = np.append(held, extra), np.append(often, 1)
            drawn = rng.dirichlet(often.astype(float), DRAWS) @ held
            total += share * (middle + doubt * (drawn - middle))
        return total


def check_level(level: float) -> None:
    """Check that a confidence level is in (0, 1)."""
    if not 0 < level < 1:
        raise InputError(f"level={level!r} must lie between 0 and 1, for example 0.95.")


def _sizes(labels: list[Any], given: Mapping[Any, Any], n: int | None) -> Floats:
    """Return N_h in the order in which the strata first appear among the sampled rows."""
    seen = dict.fromkeys(labels)
    problems = []
    if set(seen) - set(given):
        problems.append(
            f"no number of rows is given for {sorted(map(str, set(seen) - set(given)))}."
        )
    empty = [label for label in given if label not in seen and given[label]]
    if empty:
        problems.append(
            f"no row was reviewed in {sorted(map(str, empty))}, so nothing is known about these strata. "
            "Review some of their rows, or sample again without these strata."
        )
    if not problems:
        sizes = np.array([given[label] for label in seen], dtype=float)
        counts = np.array([labels.count(label) for label in seen])
        if not (sizes >= counts).all():
            problems.append("a stratum has fewer rows than were reviewed in it.")
        elif n is not None and sizes.sum() != n:
            problems.append(f"they have {sizes.sum():g} rows together; the table has {n}.")
    if problems:
        raise InputError.from_problems("strata", problems)
    return sizes


# --- Leak shares from resolved rows

#: With fewer split rows, the point estimate is unreliable.
FEW_LEAKS = 5


@dataclass(frozen=True, kw_only=True, eq=False)
class ResolvedRows:
    """Rows whose mates, all other rows of the same true entity, were looked up.

    Attributes
    ----------
    rows : array of int
        Row numbers from 0, each once.
    mates : tuple of array of int
        For each of these rows, the row numbers of all mates; empty if it has none.
    n : int
        Number of rows of the table.
    strata : (tuple of stratum of each row, mapping of stratum to rows of the table) or None
        How the rows were sampled; None if uniformly.
    noted_clusters : tuple of str or None
        The predicted cluster of each row as written on the review sheet; None if unknown.

    Examples
    --------
    >>> from mlflow_b3 import linkage
    >>> resolved = linkage.ResolvedRows.of(rows=[1, 3, 5], mates=[[0, 2], [4], []], n=6)
    >>> len(resolved)
    3
    >>> leak = resolved.leak(folds=[0, 0, 1, 1, 1, 0], clusters=[0, 0, 1, 2, 2, 3])
    >>> round(leak.validation.point, 2)
    0.33
    """

    rows: Rows
    mates: tuple[Rows, ...]
    n: int
    strata: tuple[tuple[Any, ...], Mapping[Any, int]] | None = None
    noted_clusters: tuple[str, ...] | None = None

    def __len__(self) -> int:
        """Return the number of reviewed rows."""
        return len(self.rows)

    @classmethod
    def of(
        cls, rows: Any, mates: Any, n: int, strata: Any = None, noted_clusters: Any = None
    ) -> Self:
        """Check resolved rows; see `leak_from_resolved_rows` for the arguments."""
        numbers = checked_rows(rows, n)
        found = checked_mates(numbers, mates, n)
        if strata is not None:
            SampledRows.of(strata, len(numbers), n)
            strata = (tuple(strata[0]), dict(strata[1]))
        noted = None if noted_clusters is None else tuple(map(id_text, noted_clusters))
        if noted is not None and len(noted) != len(numbers):
            raise InputError(
                f"noted_clusters has {len(noted)} labels for {len(numbers)} rows; give one for each."
            )
        return cls(rows=numbers, mates=found, n=n, strata=strata, noted_clusters=noted)

    def leak(
        self,
        folds: Any,
        clusters: Any,
        *,
        level: float = 0.95,
        sensitivity: float = 1.0,
        specificity: float = 1.0,
        seed: int = 0,
        allow_split: bool = False,
    ) -> LeakEstimate:
        """Estimate leak shares from these rows; see `leak_from_resolved_rows`."""
        return leak_from_resolved_rows(
            self.rows,
            self.mates,
            folds,
            clusters,
            self.n,
            self.strata,
            level=level,
            sensitivity=sensitivity,
            specificity=specificity,
            seed=seed,
            allow_split=allow_split,
        )

    @property
    def weights(self) -> Floats:
        """Weight of each row in a mean over the table, 1 on average."""
        sample = SampledRows.of(self.strata, len(self), self.n)
        return sample.weights * len(self)

    def seen(self, folds: Any) -> Floats:
        """Return how often each of these rows had a mate in training when it was validated."""
        splits = Splits.of(folds, self.n)
        validated = splits.validation[self.rows]
        met = _present(self, splits.training) & validated
        return np.asarray(met.sum(axis=1) / np.maximum(1, validated.sum(axis=1)))

    def pairs(self) -> tuple[Rows, Rows]:
        """Return each mate with the index of its row in `rows`: (places, mates)."""
        lengths = [len(found) for found in self.mates]
        places = np.repeat(np.arange(len(self.rows)), lengths)
        flat = np.concatenate([*self.mates, np.zeros(0, dtype=np.intp)])
        return places.astype(np.intp), flat.astype(np.intp)

    def changed_clusters(self, clusters: Any) -> float | None:
        """Return the share of these rows whose cluster is not the one on the review sheet.

        `clusters` are the labels of every row of the table, compared as text; 12, 12.0 and "012"
        are equal. The result is None if the sheet has no clusters. Mates remain valid if clusters
        change, but a large share suggests the sheet of another table, or the wrong column of ids.
        """
        if self.noted_clusters is None:
            return None
        labels = np.asarray(clusters, dtype=object)
        if labels.shape != (self.n,):
            raise InputError(f"clusters has shape {labels.shape}; the table has {self.n} rows.")
        before, now = label_texts(self.noted_clusters), label_texts(labels[self.rows])
        return float(np.mean([old != new for old, new in zip(before, now, strict=True)]))

    def contradictions(self, clusters: Any = None) -> int:
        """Return how many of these rows are listed as mates of others but do not list them.

        Mates in the row's own cluster need not be listed and do not count. `clusters` are the
        labels of every row of the table; by default, the clusters on the review sheet are used.
        """
        if clusters is not None:
            home = as_codes("clusters", clusters, self.n)[self.rows]
        elif self.noted_clusters is not None:
            home = as_codes("noted_clusters", list(self.noted_clusters))
        else:
            home = np.arange(len(self))
        places, mates = self.pairs()
        return count_unreturned(self.rows, places, mates, home)

    def split_counts(self, clusters: Rows) -> Rows:
        """Return m_i: the number of other predicted clusters with mates of each row."""
        places, mates = self.pairs()
        elsewhere = clusters[mates] != clusters[self.rows[places]]
        others = np.unique(np.column_stack([places, clusters[mates]])[elsewhere], axis=0)
        return np.bincount(others[:, 0], minlength=len(self)).astype(np.intp)


def leak_from_resolved_rows(
    rows: Any,
    mates: Any,
    folds: Any,
    clusters: Any,
    n: int | None = None,
    strata: Any = None,
    *,
    level: float = 0.95,
    sensitivity: float = 1.0,
    specificity: float = 1.0,
    seed: int = 0,
    allow_split: bool = False,
) -> LeakEstimate:
    """Estimate leak shares from a random sample of rows whose mates were looked up.

    For each of B randomly drawn rows, a reviewer finds every row of the same entity by free search
    of the whole table. A list of candidates is not enough: mates that are not on the list are the
    ones that leak. In simulations, a list hid a quarter to a half of p0.

    Parameters
    ----------
    rows : sequence of int
        The reviewed rows, numbered from 0, each once.
    mates : sequence of sequences of int, or mapping of row to sequence of int
        All mates of each reviewed row. An empty list means that the row has no mates. None or NaN
        means that the row was not reviewed, and is an error. Mates in the row's own predicted
        cluster only matter if folds split clusters. Mates of mates are not inferred.
    folds : array of int, or sequence of (training rows, validation rows), or Splits
    clusters : sequence
        ĉ(i): the predicted cluster of every row of the table.
    n : int, optional
        Number of rows of the table; it must be that of `clusters`.
    strata : (sequence, mapping), optional
        If rows were not sampled uniformly: the stratum of each reviewed row, and the number of rows
        of the table in each stratum, as in `ReviewSample.strata`.
    level : float
        Confidence of the intervals.
    sensitivity, specificity : float
        Error rates of the reviewer, by row. Sensitivity: of the rows whose entity has rows in other
        predicted clusters, the share for which such mates are found. Specificity: of the other
        rows, the share for which none are reported. Both are treated as known.
    seed : int
    allow_split : bool
        Accept folds with rows of one cluster on both sides.

    Returns
    -------
    LeakEstimate
        Its kind is "estimate", its method "resolved-rows".

    Notes
    -----
    With v_i the contribution of row i to p0 (see `Leak`), p0 = Σ_h (N_h/n)·v̄_h; p0_validation is
    analogous. Intervals are described in `SampledRows.share`. They assume that leaks outside the
    sample affect no more folds than those in the sample, or than a single mate does.

    Errors of the reviewer change the split rate σ, the share of rows with mates in other clusters:
    σ = (σ_obs − (1 − specificity))/(sensitivity + specificity − 1), after Rogan and Gladen
    (doi:10.1093/oxfordjournals.aje.a112510). The leak shares change in proportion: the mean of v_i
    over split rows is kept.

    Examples
    --------
    >>> from mlflow_b3 import linkage
    >>> folds, clusters = [0, 0, 1, 1, 1, 0], [0, 0, 1, 2, 2, 3]
    >>> leak = linkage.leak_from_resolved_rows(
    ...     rows=[1, 3, 5], mates=[[0, 2], [4], []], folds=folds, clusters=clusters
    ... )
    >>> leak.kind, leak.n_labels, round(leak.validation.point, 2)
    ('estimate', 3, 0.33)
    """
    predicted = as_codes("clusters", clusters)
    if n is not None and n != len(predicted):
        raise InputError(f"n={n!r}: clusters has {len(predicted)} rows; both must agree.")
    check_level(level)
    check_reviewer(sensitivity, specificity)
    check_seed(seed)
    splits = Splits.of(folds, len(predicted))
    splits.require_whole(predicted, allow_split=allow_split)
    resolved = ResolvedRows.of(rows, mates, len(predicted), strata)
    sample = SampledRows.of(resolved.strata, len(resolved), resolved.n)
    values, most = _values(resolved, splits)
    split = resolved.split_counts(predicted) > 0
    touched = split | (values > 0).any(axis=0)
    shares, notes = [], _notes(touched, resolved.contradictions(predicted))
    for side in (0, 1):
        largest = max(most[side], float(values[side].max()))
        share = sample.share(values[side], largest, level, seed)
        shares.append(corrected_share(share, sample.mean(touched), sensitivity, specificity))
    if sensitivity + specificity < 2:
        notes += correction_notes(sample.mean(touched), sensitivity, specificity)
    return LeakEstimate(
        train=shares[0],
        validation=shares[1],
        kind="estimate",
        method="resolved-rows",
        level=level,
        n_folds=splits.n_folds,
        n_labels=len(resolved),
        fragments=_fragments(resolved, predicted, split, sample),
        notes=tuple(notes),
    )


def _values(resolved: ResolvedRows, splits: Splits) -> tuple[Floats, tuple[float, float]]:
    """Return v_i of both sides, and their largest values with a single mate."""
    training = _present(resolved, splits.validation) & splits.training[resolved.rows]
    validation = _present(resolved, splits.training) & splits.validation[resolved.rows]
    values = np.stack(
        [training @ splits.training_weight, validation @ splits.validation_weight]
    ).astype(float)
    most = [
        float((splits.validation @ weight).max())
        for weight in (splits.training_weight, splits.validation_weight)
    ]
    return values, (most[0], most[1])


def _present(resolved: ResolvedRows, side: Mask) -> Mask:
    """Return whether each reviewed row has a mate on one side of each split."""
    places, mates = resolved.pairs()
    present = np.zeros((len(resolved), side.shape[1]), dtype=bool)
    np.logical_or.at(present, places, side[mates])
    return present


def _fragments(
    resolved: ResolvedRows, clusters: Rows, split: Mask, sample: SampledRows
) -> tuple[float, ...] | None:
    """Return typical shares of an entity's rows in the row's own cluster, for split rows."""
    places, mates = resolved.pairs()
    elsewhere = clusters[mates] != clusters[resolved.rows[places]]
    others = np.bincount(places[elsewhere], minlength=len(resolved))
    own = np.bincount(clusters)[clusters[resolved.rows]]
    weights = None if resolved.strata is None else sample.weights[split]
    return typical_fragments((own / (own + others))[split], weights)


def _notes(touched: Mask, contradictions: int) -> list[str]:
    leaks, notes = int(touched.sum()), []
    if leaks < FEW_LEAKS:
        notes.append(
            f"Only {leaks} of {len(touched)} reviewed rows are split. Use the upper limit instead of "
            "the point estimate, and review more rows if it is too high."
        )
    if contradictions:
        notes.append(
            f"{contradictions} reviewed rows are listed as mates of others but do not list them: one "
            "of the two entries is wrong."
        )
    return notes
