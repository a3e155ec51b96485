"""Where a clustering comes from, how wrong it is, and what that says about the leaked share."""

from mlflow_b3.linkage.cluster import CorrelationClusters, components, correlation_cluster
from mlflow_b3.linkage.estimates import LeakEstimate, LeakPrior, LeakShare
from mlflow_b3.linkage.log_odds import (
    MatchModel,
    MatchModelSummary,
    expected_disagreement,
    learn_log_odds,
)
from mlflow_b3.linkage.pair_table import PairTable
from mlflow_b3.linkage.splits import Splits
from mlflow_b3.linkage.swoosh import MergedRecords, match_and_merge
from mlflow_b3.linkage.truth import Leak, leak_truth

__all__ = [
    "CorrelationClusters",
    "Leak",
    "LeakEstimate",
    "LeakPrior",
    "LeakShare",
    "MatchModel",
    "MatchModelSummary",
    "MergedRecords",
    "PairTable",
    "Splits",
    "components",
    "correlation_cluster",
    "expected_disagreement",
    "leak_truth",
    "learn_log_odds",
    "match_and_merge",
]
