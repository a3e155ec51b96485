"""The mixture bound on p0 over the folds of an audit."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from mlflow_b3.data import AuditData
from mlflow_b3.estimation.leakage_share import LARGEST_SHARE
from mlflow_b3.estimation.mixture import LEAST_ROWS, P0Bound, bound_p0
from mlflow_b3.folds import Fold
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
    rows = _rows(data)
    sizes = np.array([[len(fold.training), len(fold.validation)] for fold in folds], dtype=float)
    weights = sizes[:, 1] / sizes[:, 1].sum()
    level = 1 - (1 - CONFIDENCE) / len(folds)
    seeds = np.random.SeedSequence(seed).generate_state(len(folds))
    upper, shares = np.ones(len(folds)), np.zeros(len(folds))
    for number, fold in enumerate(folds):
        used = np.concatenate([fold.training, fold.validation])
        known = rows.loc[:, rows.iloc[used].notna().any()]
        if sizes[number].min() >= LEAST_ROWS and len(known.columns):
            bound = bound_p0(
                known.iloc[fold.training],
                known.iloc[fold.validation],
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


def _rows(data: AuditData) -> pd.DataFrame:
    """Return features and target, without the cluster id and without columns that are empty."""
    features = pd.DataFrame(data.features).set_axis(list(data.feature_names), axis=1)
    features = features.drop(columns=data.cluster_name, errors="ignore")
    features = features[[name for name in features.columns if is_plain(features[name])]]
    target = pd.Series(data.target, index=features.index, name=data.target_name)
    together = pd.concat([features.drop(columns=data.target_name, errors="ignore"), target], axis=1)
    filled = together.notna().any()
    return together.loc[:, filled]
