"""Linkage evidence: read for the audited rows, and turned into the leak shares of its folds."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mlflow_b3.claims import EVIDENCE, MATCH_COLUMN, Claim
from mlflow_b3.data import AuditData
from mlflow_b3.errors import InputError, choose
from mlflow_b3.folds import Fold, summarize_folds
from mlflow_b3.linkage.adapters import read_pairs
from mlflow_b3.linkage.estimates import LeakEstimate, uncalibrated_prior
from mlflow_b3.linkage.folds import SafeGroups, purge_mask, safe_groups
from mlflow_b3.linkage.pair_table import PairTable
from mlflow_b3.linkage.pairs import leak_from_pairs
from mlflow_b3.linkage.quality import leak_from_quality
from mlflow_b3.linkage.resolved import ResolvedRows
from mlflow_b3.linkage.review import parse_review
from mlflow_b3.linkage.samples import leak_from_partition_samples, read_partition_samples
from mlflow_b3.linkage.splits import Splits
from mlflow_b3.linkage_arguments import LinkageArguments
from mlflow_b3.wording import not_percentage

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
