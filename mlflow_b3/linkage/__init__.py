"""Where a clustering comes from, how wrong it is, and what that says about the leaked share."""

from mlflow_b3.linkage.bounds import MatchMergeBounds, shifted_precision, swoosh_bounds
from mlflow_b3.linkage.channels import hit_miss_channel, string_channel
from mlflow_b3.linkage.cluster import CorrelationClusters, components, correlation_cluster
from mlflow_b3.linkage.estimates import LeakEstimate, LeakPrior, LeakShare
from mlflow_b3.linkage.floor import leak_floor
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
from mlflow_b3.linkage.printed_bounds import printed_fano, printed_string_bound
from mlflow_b3.linkage.splits import Splits
from mlflow_b3.linkage.swoosh import MergedRecords, match_and_merge
from mlflow_b3.linkage.truth import Leak, leak_truth

__all__ = [
    "CorrelationClusters",
    "ErrorRate",
    "Leak",
    "LeakEstimate",
    "LeakPrior",
    "LeakShare",
    "LinkageErrorBound",
    "MatchMergeBounds",
    "MatchModel",
    "MatchModelSummary",
    "MergedRecords",
    "PairTable",
    "Splits",
    "bayes_error",
    "collision_error",
    "components",
    "correlation_cluster",
    "expected_disagreement",
    "field_frequencies",
    "hit_miss_channel",
    "leak_floor",
    "leak_truth",
    "learn_log_odds",
    "linkage_error_bound",
    "match_and_merge",
    "mi_fano",
    "mi_fano_channel",
    "printed_fano",
    "printed_string_bound",
    "shifted_precision",
    "string_channel",
    "swoosh_bounds",
]
