"""The mixture bound on p0 over the folds of an audit."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from mlflow_b3.data import AuditData
from mlflow_b3.estimation.leakage_share import LARGEST_SHARE
from mlflow_b3.estimation.mixture import LEAST_ROWS, P0Bound, bound_sides
from mlflow_b3.folds import Fold, Rows
from mlflow_b3.table_findings import is_plain

CONFIDENCE = 0.95


def bound_folds(
    data: AuditData, folds: Sequence[Fold], *, p0_validation: float | None = None, seed: int = 0
) -> P0Bound:
    """Bound the p0 of an audit: the mean over folds, weighted by validation rows.

    Each fold is bounded at level 1 - 0.05/folds, so that all bounds hold together with 95 %
    confidence; then their mean bounds the mean, which is what an audit calls p0, whether or not
    rows leak alike in all folds. A fold with too few rows counts with the bound 1.

    Parameters
    ----------
    data : AuditData
        Its cluster id is no feature here, even if the model uses it: the id is what may be wrong.
    folds : sequence of Fold
        Of one assignment of clusters.
    p0_validation : float, optional
        p_V; by default as many rows leak back, p_V = p_T·|T̂|/|V̂|. As a fold's bound U holds for
        p_T/(1-p_V), it becomes U·(1-p_V) or U/(1 + U·|T̂|/|V̂|).
    seed : int

    Notes
    -----
    The bound is vacuous when it is not below `largest_share`.
    """
    rows = _columns(data)
    sizes = np.array([[len(fold.training), len(fold.validation)] for fold in folds], dtype=float)
    weights = sizes[:, 1] / sizes[:, 1].sum()
    level = 1 - (1 - CONFIDENCE) / len(folds)
    seeds = np.random.SeedSequence(seed).generate_state(len(folds))
    upper, shares = np.ones(len(folds)), np.zeros(len(folds))
    gaps = {n: c.isna().to_numpy(dtype=bool) for n, c in rows.items() if c.hasnans}
    for number, fold in enumerate(folds):
        sides = (fold.training, fold.validation)
        empty = [name for name, gap in gaps.items() if all(gap[side].all() for side in sides)]
        known = {name: column for name, column in rows.items() if name not in empty}
        if sizes[number].min() >= LEAST_ROWS and known:
            bound = bound_sides(
                partial(_taken, known, sides),
                (len(fold.training), len(fold.validation)),
                confidence=level,
                seed=int(seeds[number]),
            )
            upper[number], shares[number] = bound.p0_upper, bound.threshold_share
    if p0_validation is None:
        upper = upper / (1 + upper * sizes[:, 0] / sizes[:, 1])
    else:
        upper = upper * (1 - p0_validation)
    mean = float(weights @ upper)
    return P0Bound(
        p0_upper=mean,
        confidence=CONFIDENCE,
        threshold_share=float(weights @ shares),
        n_training=int(sizes[:, 0].sum()),
        n_validation=int(sizes[:, 1].sum()),
        design_effect=1.0,
        vacuous=mean >= largest_share(folds, p0_validation),
    )


def largest_share(folds: Sequence[Fold], p0_validation: float | None = None) -> float:
    """Return the largest p0 that an audit considers without evidence.

    Where as many rows leak back it is that of wrong ids on half of all rows, the mean of |V̂|/2N
    over folds, at which sensitivity curves end; else the half of the training rows at which
    `search_p0` ends, for p_T/(1-p_V).
    """
    if p0_validation is not None:
        return LARGEST_SHARE * (1 - p0_validation)
    sizes = np.array([[len(fold.training), len(fold.validation)] for fold in folds], dtype=float)
    return float(sizes[:, 1] @ (sizes[:, 1] / sizes.sum(axis=1)) / sizes[:, 1].sum() / 2)


def _columns(data: AuditData) -> dict[str, "pd.Series[Any]"]:
    """Return features and target by name, without the cluster id and without lists or arrays."""
    features = data.features
    framed = isinstance(features, pd.DataFrame)
    columns = {
        name: features.iloc[:, place] if framed else pd.Series(features[:, place])
        for place, name in enumerate(data.feature_names)
        if name not in (data.cluster_name, data.target_name)
    }
    columns = {name: column for name, column in columns.items() if is_plain(column)}
    return {**columns, data.target_name: pd.Series(data.target)}


def _taken(
    columns: dict[str, "pd.Series[Any]"], sides: tuple[Rows, Rows], side: int, rows: Rows
) -> pd.DataFrame:
    """Return some rows of one side of a fold."""
    chosen = sides[side][rows]
    return pd.DataFrame({name: column.iloc[chosen] for name, column in columns.items()})
