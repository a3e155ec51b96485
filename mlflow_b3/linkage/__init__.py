"""Where a clustering comes from, how wrong it is, and what that says about the leaked share."""

from mlflow_b3.linkage.adapters import (
    from_dedupe,
    from_pairs,
    from_recordlinkage,
    from_splink,
    read_pairs,
)
from mlflow_b3.linkage.bounds import MatchMergeBounds, shifted_precision, swoosh_bounds
from mlflow_b3.linkage.calibrate import Recalibration, fit_recalibration, recalibrate
from mlflow_b3.linkage.channels import hit_miss_channel, string_channel
from mlflow_b3.linkage.cluster import CorrelationClusters, components, correlation_cluster
from mlflow_b3.linkage.curve import LeakCurve, LeakPoint, leak_curve
from mlflow_b3.linkage.estimates import LeakEstimate, LeakPrior, LeakShare
from mlflow_b3.linkage.floor import leak_floor
from mlflow_b3.linkage.folds import (
    LeakSafeFolds,
    SafeGroups,
    leak_safe_folds,
    purge,
    purge_mask,
    safe_groups,
)
from mlflow_b3.linkage.information import (
    ErrorRate,
    LinkageErrorBound,
    bayes_error,
    collision_error,
    field_frequencies,
    linkage_error_bound,
    mi_fano,
    mi_fano_channel,
)
from mlflow_b3.linkage.log_odds import (
    MatchModel,
    MatchModelSummary,
    expected_disagreement,
    learn_log_odds,
)
from mlflow_b3.linkage.pair_table import PairTable
from mlflow_b3.linkage.pairs import leak_from_pairs, row_leak_probability, split_probability
from mlflow_b3.linkage.printed_bounds import printed_fano, printed_string_bound
from mlflow_b3.linkage.quality import leak_from_quality, leak_from_split_rate
from mlflow_b3.linkage.ranking import SuspiciousRow, rank_rows
from mlflow_b3.linkage.recalibrated import leak_from_recalibrated_pairs
from mlflow_b3.linkage.regression import LossRegression, loss_regression
from mlflow_b3.linkage.resolved import ResolvedRows, leak_from_resolved_rows
from mlflow_b3.linkage.review import parse_review
from mlflow_b3.linkage.review_sample import ReviewSample, rows_needed, sample_rows
from mlflow_b3.linkage.samples import leak_from_partition_samples, read_partition_samples
from mlflow_b3.linkage.sheet_layout import review_sheet
from mlflow_b3.linkage.splink_pages import splink_labelling_pages
from mlflow_b3.linkage.split_counts import leak_from_split_counts, split_counts_of
from mlflow_b3.linkage.splits import Splits
from mlflow_b3.linkage.swoosh import MergedRecords, match_and_merge
from mlflow_b3.linkage.truth import Leak, leak_truth

__all__ = [
    "CorrelationClusters",
    "ErrorRate",
    "Leak",
    "LeakCurve",
    "LeakEstimate",
    "LeakPoint",
    "LeakPrior",
    "LeakSafeFolds",
    "LeakShare",
    "LinkageErrorBound",
    "LossRegression",
    "MatchMergeBounds",
    "MatchModel",
    "MatchModelSummary",
    "MergedRecords",
    "PairTable",
    "Recalibration",
    "ResolvedRows",
    "ReviewSample",
    "SafeGroups",
    "Splits",
    "SuspiciousRow",
    "bayes_error",
    "collision_error",
    "components",
    "correlation_cluster",
    "expected_disagreement",
    "field_frequencies",
    "fit_recalibration",
    "from_dedupe",
    "from_pairs",
    "from_recordlinkage",
    "from_splink",
    "hit_miss_channel",
    "leak_curve",
    "leak_floor",
    "leak_from_pairs",
    "leak_from_partition_samples",
    "leak_from_quality",
    "leak_from_recalibrated_pairs",
    "leak_from_resolved_rows",
    "leak_from_split_counts",
    "leak_from_split_rate",
    "leak_safe_folds",
    "leak_truth",
    "learn_log_odds",
    "linkage_error_bound",
    "loss_regression",
    "match_and_merge",
    "mi_fano",
    "mi_fano_channel",
    "parse_review",
    "printed_fano",
    "printed_string_bound",
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
    "shifted_precision",
    "splink_labelling_pages",
    "split_counts_of",
    "split_probability",
    "string_channel",
    "swoosh_bounds",
]
