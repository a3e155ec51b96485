"""What is known about the leakage: claims of the user, and linkage evidence for the folds."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mlflow_b3.data.folds import Fold, FoldSummary, summarize_folds
from mlflow_b3.data.table import AuditData
from mlflow_b3.errors import InputError, choose
from mlflow_b3.estimation.estimate import as_range, one_share
from mlflow_b3.estimation.fragments import seen_share
from mlflow_b3.estimation.p0 import P0Bound
from mlflow_b3.estimation.problem import LeakShares, SeenShare, shares_of_cluster_error
from mlflow_b3.linkage.folds import LeakSafeFolds, SafeGroups, purge_mask, safe_groups
from mlflow_b3.linkage.leak import LARGEST, LeakEstimate, Splits, uncalibrated_prior
from mlflow_b3.linkage.pairs import PairTable, read_pairs
from mlflow_b3.linkage.resolved import ResolvedRows
from mlflow_b3.linkage.review import parse_review
from mlflow_b3.linkage.sources import (
    leak_from_pairs,
    leak_from_partition_samples,
    leak_from_quality,
    read_partition_samples,
)
from mlflow_b3.measurement.refits import UNIFORM, FragmentSizes
from mlflow_b3.results import not_percentage, read_number, read_share

# --- What the user says about the leakage, with its pattern and its source

#: A column with the probability of each row that its cluster id is right.
MATCH_COLUMN = "match_column"
#: Linkage evidence that gives the leak shares of the actual folds, by the audit's arguments.
EVIDENCE = ("resolved_rows", "partition_samples", "linkage_quality", "match_probability")


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A range of leakage of one pattern.

    Attributes
    ----------
    pattern : {"rows", "fragments", "unknown"}
    source : {"p0", "cluster_error", "split_rate", "mixture", "none"} or one of `EVIDENCE`
        The argument it was given by, or `mixture` for p0="mixture".
    low, high : float
        In the units of that argument; of p0 for `mixture`, where they follow from the rows; of the
        seen share s for evidence, where they follow from the folds; of the cluster error for a
        column of match probabilities.
    centre : float or None
        The value that is most likely, where it is not the middle.
    p0_validation : float or None
        With source `p0` or `mixture`: the share of V̂ that belongs to the training side, the same in every
        fold; None means as many rows as leaked the other way.
    leak : LeakEstimate or None
        What linkage evidence says about the leak shares of the folds.
    """

    pattern: str
    source: str
    low: float = 0.0
    high: float = 0.0
    centre: float | None = None
    p0_validation: float | None = None
    leak: LeakEstimate | None = None

    @property
    def middle(self) -> float:
        """The value that an estimate is given for."""
        return (self.low + self.high) / 2 if self.centre is None else self.centre

    @property
    def fragment_sizes(self) -> FragmentSizes:
        """How the evidence says that clusters split; uniformly when it does not."""
        known = None if self.leak is None else self.leak.fragments
        return UNIFORM if known is None else FragmentSizes(law="shares", values=known)

    @property
    def vacuous(self) -> bool:
        """Whether evidence leaves open that all validation rows were seen, or says that they were."""
        if self.leak is None:
            return False
        share = self.leak.validation
        return (share.high if share.point is None else share.point) >= LARGEST

    def shares(self, value: float, folds: Sequence[FoldSummary]) -> list[LeakShares]:
        """Return the leak shares of every fold at a value in the claim's units (rows only).

        A p0 without p0_validation stands for the cluster error that leaks as many rows into
        training on average over the folds.
        """
        if self.pattern == "fragments":
            raise InputError("a claim about split clusters has no shares of misplaced rows.")
        if self.p0_validation is not None:
            return [LeakShares(p0=value, p0_validation=self.p0_validation)] * len(folds)
        if self.source in ("cluster_error", MATCH_COLUMN):
            return shares_by_fold(value, folds)
        error = value / mean_validation_share(folds)
        if error >= 1:
            raise InputError(
                f"p0={value:g} is impossible when as many rows leak back: these folds have "
                f"{mean_validation_share(folds):.0%} of their rows in validation, so every id would "
                "have to be wrong. Give a smaller p0, or p0_validation=0 if rows leak into "
                "training only."
            )
        return shares_by_fold(error, folds)

    def bounded(self, bound: P0Bound, largest: float) -> "Claim":
        """Return a claim of source `mixture` with its range: from 0 to the bound.

        A vacuous bound leaves all that an audit looks at, up to `largest`.
        """
        return replace(self, high=largest if bound.vacuous else bound.p0_upper)

    def linked(self, leak: LeakEstimate) -> "Claim":
        """Return a claim of linkage evidence with the leak shares of the actual folds."""
        # ends of unchecked scores are no interval; what they are off by is
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

    def seen(self, value: float, folds: Sequence[FoldSummary]) -> SeenShare:
        """Return the share of seen validation rows at a value in the claim's units (fragments)."""
        if self.pattern != "fragments":
            raise InputError("a claim about misplaced rows has no share of seen rows.")
        return seen_share(value, folds) if self.leak is None else SeenShare(share=value)


def make_claim(
    *,
    p0: Any = None,
    p0_validation: float | None = None,
    cluster_error: Any = None,
    split_rate: Any = None,
    evidence: str | None = None,
) -> Claim:
    """Turn the audit's arguments into one claim; several of them are an error.

    `evidence` is the source among `EVIDENCE`, if there is one; its range follows later.

    Each argument belongs to a pattern (misplaced rows or split clusters), and their shares mean
    different things: mixing them over-corrects wildly.
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
    if len(given) > 1:
        raise InputError(
            f"{' and '.join(given)} cannot be given together: p0 and cluster_error describe "
            "misplaced rows, split_rate and the evidence of a linkage describe split clusters; each "
            "alone says how much leaks. Give the one you trust most."
        )
    if p0_validation is not None:
        if "p0" not in given:
            raise InputError("p0_validation goes with p0; cluster_error and split_rate imply it.")
        p0_validation = one_share("p0_validation", read_number(p0_validation))
    if not given:
        return Claim(pattern="unknown", source="none")
    ((source, value),) = given.items()
    if source == evidence:
        return Claim(pattern="rows" if source == MATCH_COLUMN else "fragments", source=source)
    mixture = source == "p0" and isinstance(value, str) and value == "mixture"
    given_as, value = value, read_share(value)
    if isinstance(given_as, str) and (value is given_as or _has_text(value)) and not mixture:
        raise InputError(
            f'{source}={given_as!r} is not usable; give a share such as 0.1 or "10%", a pair (low, high)'
            + (
                ", or 'grid' when nothing is known, or 'mixture' for a bound from the rows."
                if source == "p0"
                else "."
            )
        )
    if mixture:
        return Claim(pattern="rows", source="mixture", p0_validation=p0_validation)
    low, high = as_range(source, value)
    pattern = "fragments" if source == "split_rate" else "rows"
    return Claim(pattern=pattern, source=source, low=low, high=high, p0_validation=p0_validation)


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
                    f"{name} goes with folds that the audit makes, not with given ones."
                )
            if self.match_probability is None or self.column is not None:
                raise InputError(
                    f"{name} needs a table of scored pairs in match_probability, such as Splink's "
                    "predictions."
                )
        if self.reviewer is not None and self.resolved_rows is None:
            raise InputError(
                "reviewer goes with resolved_rows: it says how well they were resolved."
            )

    @property
    def _folds_given(self) -> bool:
        """Whether the splits are given themselves, not their number or how to make them."""
        if isinstance(self.folds, LeakSafeFolds):
            return True
        return not (isinstance(self.folds, str) or hasattr(self.folds, "split")) and isinstance(
            self.folds, Iterable
        )

    @property
    def safe_threshold(self) -> float | None:
        """The match probability from which the folds keep rows together, given either way."""
        made = isinstance(self.folds, LeakSafeFolds)
        return self.folds.threshold if made else self.fold_threshold

    @property
    def made_of_scores(self) -> bool:
        """Whether scored pairs decided about the folds."""
        return self.safe_threshold is not None or self.purge_threshold is not None

    @property
    def column(self) -> str | None:
        """The column of the audited table that holds the rows' match probability."""
        given = self.match_probability
        is_column = isinstance(given, str) and Path(given).suffix.lower() not in TABLES
        return given if is_column else None

    def source(self, *, otherwise_known: bool) -> str | None:
        """Return the evidence that the leaked share is taken from; several are an error.

        A table of pairs is used for it only where nothing better is given and the folds are not
        made of the same scores: then what is left between folds says nothing.
        """
        names = ("resolved_rows", "partition_samples", "linkage_quality")
        given = [name for name in names if getattr(self, name) is not None]
        if len(given) > 1:
            raise InputError(
                f"{' and '.join(given)} cannot be given together; give the one you trust most: "
                "resolved rows before posterior samples before figures of quality."
            )
        if self.column is not None:
            if given:
                raise InputError(
                    f"match_probability={self.column!r} names a column, which is evidence of its "
                    f"own beside {given[0]}; give one of them."
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
    """What was read of it, by row numbers of the audited table and for its clusters.

    The folds being `made_of_scores`, the scored pairs cannot say what still leaks across them.
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
        """Whether rows count as resolved without mistakes."""
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
                "fold_threshold needs folds that keep groups together; this splitter does not. Use "
                "one such as GroupKFold, or a number of folds."
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

    def settle(self, claim: Claim, folds: Sequence[Fold], table: AuditData) -> Claim:
        """Return a claim with the range that the evidence gives for these folds."""
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
        if claim.source not in EVIDENCE:
            return claim
        leak = self.leak(claim.source, folds, table)
        if leak.kind == "uncalibrated" and not leak.validation.point:
            raise InputError(
                "match_probability: no scored pair leads from the validation rows of a fold to another "
                "cluster in training. That does not say that nothing leaks: pairs that were left out "
                "because they scored low are where it hides. Give all scored pairs, not only those "
                "above a threshold, or better evidence, such as resolved_rows."
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
        # rows that are not audited leak nothing here, and linkage often had more of them
        pairs = read_pairs(
            arguments.match_probability, table.ids, id_column=row_id, ignore_unknown=True
        )
        if not len(pairs):
            raise InputError("match_probability holds no pairs.")
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
            f"reviewer={value!r} must be a pair (sensitivity, specificity) of shares in (0, 1]: of "
            "leaked rows that the reviewer finds, and of others that are left alone."
            + not_percentage([sensitivity, specificity])
        )
    return sensitivity, specificity


def _quality(value: Any) -> Mapping[str, float] | None:
    if value is None:
        return None
    if not isinstance(value, Mapping) or "recall" not in value:
        raise InputError(
            f"linkage_quality={value!r} must name the recall at least: {{'recall': 0.9, 'precision': "
            "0.95, 'recall_pairs': 300}, where recall_pairs is how many true pairs it was found on."
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
