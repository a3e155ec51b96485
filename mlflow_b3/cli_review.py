"""`mlflow-b3 review`: a sheet with sampled rows, for a person who looks up their mates."""

from pathlib import Path
from typing import Any

import click

from mlflow_b3.cli_errors import input_errors
from mlflow_b3.cli_types import NUMBER, TEXT, WHOLE
from mlflow_b3.errors import InputError, closest

ROWS = 300


@click.command(name="review")
@click.option("--data", type=TEXT, help="Table with the rows: a .csv or .parquet file.")
@click.option("--cluster", type=TEXT, help="Column with the (noisy) cluster id.")
@click.option("--row-id", type=TEXT, help="Column with the ids of rows; by default their numbers.")
@click.option(
    "--match-probability",
    type=TEXT,
    help="Table of scored pairs (.csv or .parquet): suspected rows are drawn more often, and likely "
    "mates are shown.",
)
@click.option(
    "--rows", type=WHOLE, default=ROWS, show_default=True, help="How many rows to resolve."
)
@click.option(
    "--expected-split-rate",
    type=NUMBER,
    help="Say how many rows are needed if this share of rows belongs to split clusters.",
)
@click.option("--columns", type=TEXT, help="Columns to show, with commas between; by default all.")
@click.option("--seed", type=WHOLE, default=0, show_default=True, help="Random seed.")
@click.option("--output", type=TEXT, help="The sheet to write: a .csv file.")
def review_command(**options: Any) -> None:
    """Write a sheet with a random sample of rows whose mates a person is to look up.

    Filled in, it is the evidence for mlflow-b3 audit --resolved-rows.
    """
    with input_errors():
        _write_sheet(**options)


def _write_sheet(
    *,
    data: str | None,
    cluster: str | None,
    row_id: str | None,
    match_probability: str | None,
    rows: int | None,
    expected_split_rate: float | None,
    columns: str | None,
    seed: int | None,
    output: str | None,
) -> None:
    from mlflow_b3.data import read_table
    from mlflow_b3.linkage import read_pairs, review_sheet, sample_rows
    from mlflow_b3.linkage.pairs import split_probability

    given = {"data": data, "cluster": cluster, "output": output}
    missing = [name for name, value in given.items() if not value]
    if missing:
        raise InputError(f"{', '.join(missing)} missing: see mlflow-b3 review --help.")
    needed = _check_numbers(rows, expected_split_rate)
    path = _new_file(str(output))
    frame = read_table(str(data)).rename(columns=str)
    named = [str(cluster), *([row_id] if row_id else []), *(columns.split(",") if columns else [])]
    shown = [name.strip() for name in columns.split(",")] if columns else None
    _require_columns(frame, [name.strip() for name in named])
    pairs = scores = None
    if match_probability:
        ids = frame[row_id] if row_id else frame.index
        pairs = read_pairs(match_probability, ids, id_column=row_id, ignore_unknown=True)
        scores = split_probability(*pairs.arrays, frame[str(cluster)])
    sample = sample_rows(len(frame), min(rows or ROWS, len(frame)), scores, seed or 0)
    review_sheet(frame, sample, pairs, cluster=str(cluster), path=path, id=row_id, columns=shown)
    click.echo(
        f"{len(sample.rows)} of {len(frame)} rows are in {path}, in random order. For each, find all "
        "other rows of the same true cluster by free search in the whole table, not among the "
        "candidates only, and write their ids into the column 'mates', or none. Then run\n\n"
        f"  mlflow-b3 audit … --resolved-rows {path}" + (f" --row-id {row_id}" if row_id else "")
    )
    if expected_split_rate is not None:
        click.echo(
            f"\nIf {100 * expected_split_rate:g} % of the rows belong to split clusters, {needed} rows "
            "tell the share to a quarter of itself (95 %)."
        )


def _check_numbers(rows: int | None, split_rate: float | None) -> int | None:
    """Return how many rows are needed, if that is asked; refuse numbers that cannot be."""
    from mlflow_b3.linkage import rows_needed
    from mlflow_b3.wording import not_percentage

    problems = []
    if rows is not None and rows < 1:
        problems.append(f"--rows {rows} must be a whole number from 1.")
    if split_rate is not None and not 0 < split_rate < 1:
        problems.append(
            f"--expected-split-rate {split_rate:g} must lie between 0 and 1."
            f"{not_percentage(split_rate)}"
        )
    if problems:
        raise InputError.from_problems("review", problems)
    return None if split_rate is None else rows_needed(split_rate, 0.25)


def _new_file(output: str) -> Path:
    path = Path(output)
    if path.suffix.lower() != ".csv":
        raise InputError(f"output={output!r} must end in .csv.")
    if path.exists():
        raise InputError(
            f"output={output!r} exists, and may hold answers already; give another name."
        )
    if not path.parent.is_dir():
        raise InputError(f"output={output!r}: the folder {str(path.parent)!r} does not exist.")
    return path


def _require_columns(frame: Any, names: list[str]) -> None:
    problems = [
        f"{name!r} is not a column.{closest(name, frame.columns)}"
        for name in names
        if name not in frame.columns
    ]
    if problems:
        raise InputError.from_problems("data", problems)
