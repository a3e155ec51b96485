"""Where a clustering comes from, how wrong it is, and what that says about the leaked share."""

from mlflow_b3.linkage.estimates import LeakEstimate, LeakPrior, LeakShare
from mlflow_b3.linkage.pair_table import PairTable
from mlflow_b3.linkage.quality import leak_from_quality, leak_from_split_rate
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
    "LeakEstimate",
    "LeakPrior",
    "LeakShare",
    "PairTable",
    "ResolvedRows",
    "ReviewSample",
    "Splits",
    "leak_from_partition_samples",
    "leak_from_quality",
    "leak_from_resolved_rows",
    "leak_from_split_counts",
    "leak_from_split_rate",
    "leak_truth",
    "parse_review",
    "read_partition_samples",
    "review_sheet",
    "rows_needed",
    "sample_rows",
    "splink_labelling_pages",
    "split_counts_of",
]
