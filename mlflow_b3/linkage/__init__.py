"""Where a clustering comes from, how wrong it is, and what that says about the leaked share."""

from mlflow_b3.linkage.adapters import (
    from_dedupe,
    from_pairs,
    from_recordlinkage,
    from_splink,
    read_pairs,
)
from mlflow_b3.linkage.calibrate import Recalibration, fit_recalibration, recalibrate
from mlflow_b3.linkage.curve import LeakCurve, LeakPoint, leak_curve
from mlflow_b3.linkage.estimates import LeakEstimate, LeakPrior, LeakShare
from mlflow_b3.linkage.folds import (
    LeakSafeFolds,
    SafeGroups,
    leak_safe_folds,
    purge,
    purge_mask,
    safe_groups,
)
from mlflow_b3.linkage.pair_table import PairTable
from mlflow_b3.linkage.pairs import leak_from_pairs, row_leak_probability
from mlflow_b3.linkage.ranking import SuspiciousRow, rank_rows
from mlflow_b3.linkage.recalibrated import leak_from_recalibrated_pairs
from mlflow_b3.linkage.regression import LossRegression, loss_regression
from mlflow_b3.linkage.splits import Splits
from mlflow_b3.linkage.truth import Leak, leak_truth

__all__ = [
    "Leak",
    "LeakCurve",
    "LeakEstimate",
    "LeakPoint",
    "LeakPrior",
    "LeakSafeFolds",
    "LeakShare",
    "LossRegression",
    "PairTable",
    "Recalibration",
    "SafeGroups",
    "Splits",
    "SuspiciousRow",
    "fit_recalibration",
    "from_dedupe",
    "from_pairs",
    "from_recordlinkage",
    "from_splink",
    "leak_curve",
    "leak_from_pairs",
    "leak_from_recalibrated_pairs",
    "leak_safe_folds",
    "leak_truth",
    "loss_regression",
    "purge",
    "purge_mask",
    "rank_rows",
    "read_pairs",
    "recalibrate",
    "row_leak_probability",
    "safe_groups",
]
