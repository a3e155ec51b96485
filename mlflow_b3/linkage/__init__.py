"""Where a clustering comes from, how wrong it is, and what that says about the leaked share."""

from mlflow_b3.linkage.adapters import (
    from_dedupe,
    from_pairs,
    from_recordlinkage,
    from_splink,
    read_pairs,
)
from mlflow_b3.linkage.calibrate import (
    Recalibration,
    fit_recalibration,
    leak_from_recalibrated_pairs,
    recalibrate,
)
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
from mlflow_b3.linkage.quality import leak_from_quality, leak_from_split_rate
from mlflow_b3.linkage.ranking import SuspiciousRow, rank_rows
from mlflow_b3.linkage.regression import LossRegression, loss_regression
from mlflow_b3.linkage.resolved import ResolvedRows, leak_from_resolved_rows
from mlflow_b3.linkage.review import parse_review, review_sheet
from mlflow_b3.linkage.review_sample import ReviewSample, rows_needed, sample_rows
from mlflow_b3.linkage.samples import leak_from_partition_samples, read_partition_samples
from mlflow_b3.linkage.splink_pages import splink_labelling_pages
from mlflow_b3.linkage.split_counts import leak_from_split_counts, split_counts_of
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
    "ResolvedRows",
    "ReviewSample",
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
    "leak_from_partition_samples",
    "leak_from_quality",
    "leak_from_recalibrated_pairs",
    "leak_from_resolved_rows",
    "leak_from_split_counts",
    "leak_from_split_rate",
    "leak_safe_folds",
    "leak_truth",
    "loss_regression",
    "parse_review",
    "purge",
    "purge_mask",
    "rank_rows",
    "read_pairs",
    "read_partition_samples",
    "recalibrate",
    "review_sheet",
    "row_leak_probability",
    "rows_needed",
    "safe_groups",
    "sample_rows",
    "splink_labelling_pages",
    "split_counts_of",
]
