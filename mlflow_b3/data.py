"""A table as an audit needs it: checked with all problems named at once, and taken apart."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from mlflow_b3.errors import InputError, closest
from mlflow_b3.findings import Finding
from mlflow_b3.row_copies import RowCopies, select_columns
from mlflow_b3.table_checks import (
    MINIMUM_ROWS,
    as_categories,
    cast_features,
    cluster_problems,
    is_text,
    read_ids,
    read_matches,
    read_weights,
    shape_problems,
    target_problems,
    value_problems,
)
from mlflow_b3.table_findings import table_facts
from mlflow_b3.table_reading import CHUNK, LABELLED, digest_table, label_clusters, read_table
from mlflow_b3.wording import shortened

__all__ = [
    "LABELLED",
    "MINIMUM_ROWS",
    "AuditData",
    "ModelInputs",
    "digest_table",
    "label_clusters",
    "prepare",
    "read_table",
]


@dataclass(frozen=True, kw_only=True)
class ModelInputs:
    """What a model wants to be given, as far as it says so.

    Attributes
    ----------
    columns : tuple of str or None
        Names of the feature columns in the model's order; None when it does not say.
    dtypes : mapping of str to str
        The dtype that the model's signature gives a column; of columns of text also the training
        dataset that its run logged, where there is no signature.
    categories : mapping of str to tuple
        The categories of columns that the fitted model knows as categorical.
    count : int or None
        Number of features, known even for models trained on bare arrays.
    as_array : bool
        The model was trained on an array without column names and is given one again.
    anything : bool
        A function of the user's takes whatever values, and all columns, or none, where those named
        above are not there.
    """

    columns: tuple[str, ...] | None = None
    dtypes: Mapping[str, str] | None = None
    categories: Mapping[str, tuple[Any, ...]] | None = None
    count: int | None = None
    as_array: bool = False
    anything: bool = False

    @property
    def texts(self) -> tuple[str, ...]:
        """The columns that held text in training."""
        return tuple(name for name, dtype in (self.dtypes or {}).items() if is_text(dtype))


@dataclass(frozen=True, kw_only=True)
class AuditData:
    """A checked table: features, target and cluster of every row.

    Attributes
    ----------
    features : pandas.DataFrame or numpy.ndarray
        What the learner is trained on, one row per record.
    target : numpy.ndarray
        What it predicts.
    clusters : numpy.ndarray
        The cluster of each row as a whole number from 0.
    labels : sequence
        The cluster id as it stood in the table, by that number.
    digest : str
        36 characters that change with any value, name or order in the table.
    ids : numpy.ndarray
        The id of each row: from the column that was named for it, or the table's index.
    match_probability : numpy.ndarray or None
        For each row, the probability that its cluster id is right, where a column holds it.
    weight : numpy.ndarray or None
        The sample weight of each row, for training; losses are not weighted.
    dtypes : tuple of str
        How columns differ in type from what the model says of its training.
    """

    features: Any
    target: NDArray[Any]
    clusters: NDArray[np.intp]
    labels: Any
    target_name: str
    cluster_name: str
    feature_names: tuple[str, ...]
    digest: str
    findings: tuple[Finding, ...]
    ids: NDArray[Any]
    weight: NDArray[np.float64] | None = None
    match_probability: NDArray[np.float64] | None = None
    dtypes: tuple[str, ...] = ()

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return len(self.target)

    @property
    def n_clusters(self) -> int:
        """Number of distinct cluster ids."""
        return len(self.labels)

    @property
    def n_repeated(self) -> int:
        """Number of clusters with two rows or more."""
        return int((np.bincount(self.clusters) > 1).sum())

    @property
    def names(self) -> tuple[str, ...]:
        """The cluster ids as texts, by their number."""
        return tuple(map(str, self.labels))

    @property
    def rows_digest(self) -> str:
        """16 digits that change with any target, cluster or order: what pairs of audits share."""
        numeric = np.issubdtype(self.target.dtype, np.number) or self.target.dtype == bool
        sha = hashlib.sha256(np.asarray(self.clusters, dtype="<i8").tobytes())
        for start in range(0, self.n_rows, CHUNK):
            part = self.target[start : start + CHUNK]
            texts = map(str, (part.astype(float) if numeric else part).tolist())
            sha.update((("\x1f" if start else "") + "\x1f".join(texts)).encode())
        return sha.hexdigest()[:16]

    def take(self, rows: NDArray[np.integer]) -> Any:
        """Return the features of some rows, in the given order, as one copy of them."""
        return self._copies.take(rows)

    def as_taken(self) -> "AuditData":
        """Return all rows as `take` would: learners that want another layout copy them no more."""
        return self.with_features(self._copies.whole())

    @cached_property
    def _copies(self) -> RowCopies:
        return RowCopies(self.features)

    def __getstate__(self) -> dict[str, Any]:
        """Leave behind what the features give again: views of them would travel as copies."""
        return {name: value for name, value in self.__dict__.items() if name != "_copies"}

    def with_features(self, features: Any) -> "AuditData":
        """Return the same rows with their features in another form."""
        return replace(self, features=features)

    def regrouped(self, groups: NDArray[np.intp]) -> "AuditData":
        """Return the same rows with other clusters, given as whole numbers from 0."""
        return replace(self, clusters=groups, labels=range(int(groups.max()) + 1))


def prepare(
    frame: pd.DataFrame,
    *,
    target: str,
    cluster: str,
    task: str,
    inputs: ModelInputs,
    sample_weight: str | None = None,
    row_id: str | None = None,
    match_probability: str | None = None,
    others: Sequence[str] = (),
    used: Sequence[str] = (),
) -> AuditData:
    """Check a table against a model and split it into features, target and clusters.

    Every problem with the columns is collected and reported in one `InputError`.

    Parameters
    ----------
    frame : DataFrame
    target, cluster : str
        Names of the target column and of the (noisy) cluster id column. They are features only
        where the model's signature names them.
    task : {"classification", "regression"}
    inputs : ModelInputs
        The columns, order and dtypes that the model was trained with.
    sample_weight : str, optional
        Name of the column with sample weights; it is no feature.
    row_id, match_probability : str, optional
        Names of the columns with the ids of rows and with the probability that their cluster id is
        right; they are no features.
    others : sequence of str
        Further columns that are features only where the model names them.
    used : sequence of str
        Columns that the learner needs as features, whatever else they are.
    """
    frame = frame.copy(deep=False)
    frame.columns = frame.columns.map(str)
    problems = shape_problems(frame, target, cluster)
    given = (sample_weight, row_id, match_probability)
    roles = [target, cluster, *others, *(name for name in given if name is not None)]
    roles = [name for name in roles if name not in used]
    names = _feature_names(frame, roles, inputs, problems)
    present = [name for name in names if name in frame.columns]
    problems += target_problems(frame, target, task) + cluster_problems(frame, cluster)
    problems += [] if inputs.anything else value_problems(frame, present)
    weight = None if sample_weight is None else read_weights(frame, sample_weight, problems)
    ids = read_ids(frame, row_id, problems)
    matches = (
        None if match_probability is None else read_matches(frame, match_probability, problems)
    )
    features = select_columns(frame, present)
    notes: list[str] = []
    if present:
        features = as_categories(features, inputs.categories or {}, notes)
        features = cast_features(features, inputs.dtypes or {}, problems, notes)
    if problems:
        raise InputError.from_problems("data", problems)
    features.index = pd.RangeIndex(len(frame))
    codes, labels = pd.factorize(frame[cluster], sort=False)
    target_values = frame[target].to_numpy()
    return AuditData(
        features=features.to_numpy() if inputs.as_array else features,
        target=target_values,
        clusters=np.asarray(codes, dtype=np.intp),
        labels=labels,
        target_name=target,
        cluster_name=cluster,
        feature_names=tuple(present),
        digest=digest_table(frame),
        findings=table_facts(features, target_values, codes).findings,
        ids=ids,
        weight=weight,
        match_probability=matches,
        dtypes=tuple(notes),
    )


def _feature_names(
    frame: pd.DataFrame, roles: Sequence[str], inputs: ModelInputs, problems: list[str]
) -> list[str]:
    others = [str(name) for name in frame.columns if name not in roles]
    absent = [name for name in inputs.columns or () if name not in frame.columns]
    if inputs.columns is not None and not (absent and inputs.anything):
        problems += [
            f"the model's feature {name!r} is not a column.{closest(name, others)}"
            for name in absent
        ]
        return list(inputs.columns)
    if inputs.anything:
        return others
    if inputs.count is not None and inputs.count != len(others):
        problems.append(
            f"the model was trained on {inputs.count} unnamed features, but the table has "
            f"{len(others)} columns beside target and cluster: {shortened(others)}. Keep just "
            "the features, in the order of training."
        )
    if not others:
        problems.append("there is no column beside target and cluster to predict from.")
    return others
