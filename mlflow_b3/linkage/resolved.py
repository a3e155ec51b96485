"""Leak shares from rows whose mates somebody looked up: the evidence that needs no model."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from mlflow_b3.errors import InputError, check_seed
from mlflow_b3.linkage.estimates import LeakEstimate, typical_fragments
from mlflow_b3.linkage.looked_up import checked_mates, checked_rows, count_unreturned
from mlflow_b3.linkage.reviewer import check_reviewer, corrected_share, correction_notes
from mlflow_b3.linkage.row_ids import id_text, label_texts
from mlflow_b3.linkage.row_means import SampledRows, check_level
from mlflow_b3.linkage.splits import Floats, Mask, Rows, Splits, as_codes

#: With fewer leaking rows than this the point says little.
FEW_LEAKS = 5


@dataclass(frozen=True, kw_only=True, eq=False)
class ResolvedRows:
    """Rows for which every mate was looked up: all other rows of the same true entity.

    Attributes
    ----------
    rows : array of int
        Row numbers from 0, each once.
    mates : tuple of array of int
        For each of these rows, the numbers of every other row of its entity that was found; an
        empty array says that there is none.
    n : int
        Number of rows of the table.
    strata : (tuple of stratum of each row, mapping of stratum to rows of the table) or None
        How the rows were sampled; None for uniformly.
    noted_clusters : tuple of str or None
        The predicted cluster of each row when the sheet was made, as it is written there; None when
        not known.
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
        """Check what was looked up; see `leak_from_resolved_rows` for the arguments."""
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
        """Return what these rows say about the leak shares; see `leak_from_resolved_rows`."""
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
        """How many rows of the table each of these stands for, 1 on average."""
        sample = SampledRows.of(self.strata, len(self), self.n)
        return sample.weights * len(self)

    def seen(self, folds: Any) -> Floats:
        """Return how often each of these rows had a mate in training when it was validated."""
        splits = Splits.of(folds, self.n)
        validated = splits.validation[self.rows]
        met = _present(self, splits.training) & validated
        return np.asarray(met.sum(axis=1) / np.maximum(1, validated.sum(axis=1)))

    def pairs(self) -> tuple[Rows, Rows]:
        """Return each mate found with the place of its row among `rows`: (places, mates)."""
        lengths = [len(found) for found in self.mates]
        places = np.repeat(np.arange(len(self.rows)), lengths)
        flat = np.concatenate([*self.mates, np.zeros(0, dtype=np.intp)])
        return places.astype(np.intp), flat.astype(np.intp)

    def changed_clusters(self, clusters: Any) -> float | None:
        """Return the share of these rows whose cluster is not that of the sheet any more.

        `clusters` are the labels of every row of the table, compared as text; 12, 12.0 and "012"
        are one. None where the sheet does not say them. Mates hold whatever the clusters are now,
        but a large share suggests a sheet of another table, or ids of a wrong column.
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

        Mates in the row's own cluster need not be listed and do not count: that of `clusters`, for
        every row of the table, or else the one noted on the sheet.
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
        """Return m_i: how many other predicted clusters hold mates of each row."""
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

    For each of B rows drawn at random somebody finds every row of the same entity, with free search
    over the whole table. A list of candidates is no substitute: what it does not hold is what leaks
    (in simulations it hid a quarter to a half of p0).

    Parameters
    ----------
    rows : sequence of int
        The reviewed rows, numbered from 0, each once.
    mates : sequence of sequences of int, or mapping of row to sequence of int
        For each reviewed row every mate found. An empty list says that there is none; None or NaN
        says that nobody looked, and is refused. Mates in the row's own predicted cluster count only
        where folds split clusters. Only mates that are listed count: mates of mates do not.
    folds : array of int, or sequence of (training rows, validation rows), or Splits
    clusters : sequence
        ĉ(i): the predicted cluster of every row of the table.
    n : int, optional
        Number of rows of the table; it must be that of `clusters`.
    strata : (sequence, mapping), optional
        For rows not sampled uniformly: the stratum of each reviewed row, and the number of rows of
        the table in each stratum, as `ReviewSample.strata` holds them.
    level : float
        Confidence of the intervals.
    sensitivity, specificity : float
        How well the reviewer works, row by row: of the rows whose entity has rows in other
        predicted clusters, the share for which such mates are found; of the other rows, the share
        for which none is reported. Both are taken as known.
    seed : int
    allow_split : bool
        Accept folds that have rows of one cluster on both sides.

    Returns
    -------
    LeakEstimate
        kind `estimate`, method `resolved-rows`.

    Notes
    -----
    With v_i what row i adds to p0 (see `Leak`), p0 = Σ_h (N_h/n)·v̄_h, and p0_validation likewise.
    `SampledRows.share` says how intervals are made; they presume that leaks which the sample does
    not hold touch no more folds than those which it holds, or than a single mate does.

    Reviewer's error changes the split rate σ, the share of rows with mates in other clusters:
    σ = (σ_obs − (1 − specificity))/(sensitivity + specificity − 1), after Rogan and Gladen
    (doi:10.1093/oxfordjournals.aje.a112510); the leak shares change in proportion, since the mean
    of v_i over the rows found split is kept.
    """
    predicted = as_codes("clusters", clusters)
    if n is not None and n != len(predicted):
        raise InputError(f"n={n!r}: clusters has {len(predicted)} rows, and must have n of them.")
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
    """Return v_i of both sides, and the most that a single mate can make of them."""
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
    """Return whether each reviewed row has a mate on a side of each split."""
    places, mates = resolved.pairs()
    present = np.zeros((len(resolved), side.shape[1]), dtype=bool)
    np.logical_or.at(present, places, side[mates])
    return present


def _fragments(
    resolved: ResolvedRows, clusters: Rows, split: Mask, sample: SampledRows
) -> tuple[float, ...] | None:
    """Return typical shares of an entity's rows in the row's own cluster, over split rows."""
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
            f"Only {leaks} of {len(touched)} reviewed rows are split: use the upper limit rather than "
            "the point, and review more rows if it is too high."
        )
    if contradictions:
        notes.append(
            f"{contradictions} reviewed rows are listed as mates of others but do not list them: one "
            "or the other was looked up wrongly."
        )
    return notes
