"""The options of the command line that say what is known about the linkage."""

from collections.abc import Callable
from typing import Any

import click

from mlflow_b3.cli_types import NAMED_VALUES, NUMBER, TEXT, Share

_OPTIONS = [
    click.option(
        "--match-probability",
        type=TEXT,
        help="Table of scored pairs (.csv or .parquet, from Splink or others), or a column with the "
        "probability that a row's cluster id is right.",
    ),
    click.option(
        "--resolved-rows",
        type=TEXT,
        help="Filled-in review sheet (.csv) made by mlflow-b3 review.",
    ),
    click.option(
        "--reviewer",
        type=Share(),
        help="With --resolved-rows: the reviewer's SENSITIVITY,SPECIFICITY.",
    ),
    click.option(
        "--linkage-quality",
        type=NAMED_VALUES,
        help="What is known of the linkage: recall=0.9,precision=0.95,recall_pairs=300.",
    ),
    click.option(
        "--partition-samples",
        type=TEXT,
        help="Posterior samples of a Bayesian linkage (.csv or .parquet).",
    ),
    click.option(
        "--fold-threshold",
        type=NUMBER,
        help="With a table of pairs: keep rows with this match probability in one fold.",
    ),
    click.option(
        "--purge-threshold",
        type=NUMBER,
        help="With a table of pairs: leave out training rows whose cluster has this match "
        "probability with the validation rows.",
    ),
]
LINKAGE_NAMES = (
    *("match_probability", "resolved_rows", "reviewer", "linkage_quality", "partition_samples"),
    *("fold_threshold", "purge_threshold"),
)


def linkage_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options to a command."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function
