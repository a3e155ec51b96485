"""The findings that follow from a table alone."""

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from mlflow_b3.findings import Finding
from mlflow_b3.wording import shortened

#: Share of the rows with mates above which a feature counts as the name of a cluster.
IDENTIFYING = 0.9
#: With fewer values than this a feature names no clusters.
FEWEST_NAMES = 10


def table_findings(features: pd.DataFrame, clusters: NDArray[np.intp]) -> list[Finding]:
    """Return what features and clusters show before any refit."""
    found = []
    names = [str(name) for name in features.columns if is_plain(features[name])]
    distinct = {name: features[name].nunique(dropna=False) for name in names}
    constant = [name for name in names if distinct[name] == 1]
    hashes = {name: _hash(features[name]) for name in names}
    first: dict[int, str] = {}
    repeated = [
        name
        for name, value in hashes.items()
        if first.setdefault(value, name) != name and features[name].equals(features[first[value]])
    ]
    if constant or repeated:
        parts = [f"constant: {shortened(constant)}"] if constant else []
        parts += [f"same values as an earlier column: {shortened(repeated)}"] if repeated else []
        found.append(Finding(code="B309", message="; ".join(parts) + ". They are kept."))
    missing = {name: int(features[name].isna().sum()) for name in names}
    missing = {name: count for name, count in missing.items() if count}
    if missing:
        found.append(
            Finding(
                code="B310",
                message=f"missing values are passed to the learner as they are: {missing}.",
            )
        )
    sizes = np.bincount(clusters)
    mates = int(sizes[sizes > 1].sum())
    identifying = [
        name
        for name in names  # d distinct values of n leave at most 2(n-d) rows with a value in common
        if 2 * (len(features) - distinct[name]) >= IDENTIFYING * (mates - missing.get(name, 0))
        and _identifies(features[name], clusters, sizes)
    ]
    if identifying:
        found.append(
            Finding(
                code="B323",
                message=f"{shortened(identifying)}: values repeat within a cluster and hardly ever "
                "between clusters, as a name or a telephone number does. They tell nothing about "
                "new clusters and let the learner recognise known ones; consider leaving them out.",
            )
        )
    singles = int((sizes == 1).sum())
    if 2 * singles > len(sizes):
        found.append(
            Finding(
                code="B311",
                message=f"{singles} of {len(sizes)} clusters have a single row. Such rows tell "
                "nothing about dependency within clusters.",
            )
        )
    return found


def _identifies(
    column: "pd.Series[Any]", clusters: NDArray[np.intp], sizes: NDArray[np.intp]
) -> bool:
    """Return whether a feature's values repeat within clusters but hardly between them.

    Two clusters may share a value: linkage may have split one in two.
    """
    values, _ = pd.factorize(column, use_na_sentinel=True)
    if values.max() + 1 < FEWEST_NAMES:
        return False
    judged = (values >= 0) & (sizes[clusters] > 1)
    repeated = np.bincount(values[values >= 0]) > 1
    if not judged.any() or repeated[values[judged]].mean() < IDENTIFYING:
        return False  # told from the values alone, as for measurements: they hardly repeat at all
    known = values >= 0
    pairs, where, counts = np.unique(
        values[known].astype(np.int64) * len(sizes) + clusters[known],
        return_inverse=True,
        return_counts=True,
    )
    owners = np.bincount(pairs // len(sizes))
    told = (counts[where] > 1) & (owners[values[known]] <= 2)
    return bool(told[judged[known]].mean() >= IDENTIFYING)


def is_plain(column: "pd.Series[Any]") -> bool:
    """Return whether a column holds single values, not lists or arrays."""
    return column.dtype != object or bool(column.map(pd.api.types.is_hashable).all())


def _hash(column: "pd.Series[Any]") -> int:
    """Return a number that equal columns share."""
    try:
        return int(pd.util.hash_pandas_object(column, index=False).sum())
    except (TypeError, ValueError):  # objects of several kinds
        return int(pd.util.hash_pandas_object(column.map(repr), index=False).sum())
