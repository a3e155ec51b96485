"""How wrong cluster ids are, and what that says about the leaked share of each fold.

The functions here turn what is known about a record linkage into a `LeakEstimate`, help a person
review rows, and make folds that leak less. Result classes and parts of the theory are in the
modules: `mlflow_b3.linkage.bounds`, `mlflow_b3.linkage.folds` and so on.
"""

import warnings
from importlib import import_module
from typing import Any

from mlflow_b3.linkage.bounds import leak_floor, linkage_error_bound, swoosh_bounds
from mlflow_b3.linkage.calibrate import leak_from_recalibrated_pairs, recalibrate
from mlflow_b3.linkage.cluster import components, correlation_cluster
from mlflow_b3.linkage.folds import leak_curve, leak_safe_folds, purge
from mlflow_b3.linkage.leak import LeakEstimate, leak_truth
from mlflow_b3.linkage.leak_sources import (
    leak_from_pairs,
    leak_from_partition_samples,
    leak_from_quality,
    leak_from_split_counts,
    leak_from_split_rate,
    read_partition_samples,
)
from mlflow_b3.linkage.matching import learn_log_odds, match_and_merge
from mlflow_b3.linkage.pairs import PairTable, from_pairs, from_splink, read_pairs
from mlflow_b3.linkage.resolved import ResolvedRows, leak_from_resolved_rows
from mlflow_b3.linkage.review import (
    parse_review,
    review_sheet,
    rows_needed,
    sample_rows,
    splink_labelling_pages,
)

__all__ = [
    "LeakEstimate",
    "PairTable",
    "ResolvedRows",
    "components",
    "correlation_cluster",
    "from_pairs",
    "from_splink",
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
    "match_and_merge",
    "parse_review",
    "purge",
    "read_pairs",
    "read_partition_samples",
    "recalibrate",
    "review_sheet",
    "rows_needed",
    "sample_rows",
    "splink_labelling_pages",
    "swoosh_bounds",
]

# Names that were exported here in 0.1, and the modules that define them.
_MOVED = {
    "CorrelationClusters": "cluster",
    "ErrorRate": "bounds",
    "Leak": "leak",
    "LeakCurve": "folds",
    "LeakPoint": "folds",
    "LeakPrior": "leak",
    "LeakSafeFolds": "folds",
    "LeakShare": "leak",
    "LinkageErrorBound": "bounds",
    "LossRegression": "rows",
    "MatchMergeBounds": "bounds",
    "MatchModel": "matching",
    "MatchModelSummary": "matching",
    "MergedRecords": "matching",
    "Recalibration": "calibrate",
    "ReviewSample": "review",
    "SafeGroups": "folds",
    "Splits": "leak",
    "SuspiciousRow": "rows",
    "bayes_error": "bounds",
    "collision_error": "bounds",
    "expected_disagreement": "matching",
    "field_frequencies": "bounds",
    "fit_recalibration": "calibrate",
    "from_dedupe": "pairs",
    "from_recordlinkage": "pairs",
    "hit_miss_channel": "bounds",
    "loss_regression": "rows",
    "mi_fano": "bounds",
    "mi_fano_channel": "bounds",
    "printed_fano": "bounds",
    "printed_string_bound": "bounds",
    "purge_mask": "folds",
    "rank_rows": "rows",
    "row_leak_probability": "leak_sources",
    "safe_groups": "folds",
    "shifted_precision": "bounds",
    "split_counts_of": "leak_sources",
    "split_probability": "leak_sources",
    "string_channel": "bounds",
}


def __getattr__(name: str) -> Any:
    if name not in _MOVED:
        raise AttributeError(f"module 'mlflow_b3.linkage' has no attribute {name!r}")
    home = f"mlflow_b3.linkage.{_MOVED[name]}"
    warnings.warn(
        f"mlflow_b3.linkage.{name} moved to {home}.{name}. The old name will be removed in the next "
        "version.",
        DeprecationWarning,
        stacklevel=2,
    )
    return getattr(import_module(home), name)
