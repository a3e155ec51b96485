"""The command that compares audited models."""

import re
import tempfile
from collections.abc import Iterable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import click

from mlflow_b3.cli_errors import input_errors
from mlflow_b3.cli_options import (
    announce_code,
    audit_options,
    given_options,
    kept_journal,
    require_options,
    subject_options,
)
from mlflow_b3.cli_types import TEXT
from mlflow_b3.errors import InputError

#: A comma between models, after which a URI or an id begins: names of models have commas too.
BETWEEN = re.compile(r",(?=\s*(?:[a-z][a-z0-9+.-]*:/|(?:m-)?[0-9a-f]{32}\s*(?:,|$)|$))")


@click.command(name="compare")
@click.argument("models", nargs=-1)
@click.option("--experiment", type=TEXT, help="Compare the newest audits of this experiment.")
@click.option(
    "--registered-model", type=TEXT, help="Compare the audited versions of this registered model."
)
@click.option(
    "--by",
    type=TEXT,
    default="auto",
    show_default=True,
    help="Rank by e0, or by cvc, cross-validation corrected for correlation; auto takes cvc where all "
    "audits have it and take their cluster ids as right.",
)
@subject_options
@audit_options
@click.option("--output", type=TEXT, help="Also write the table and the plot to this folder.")
@click.option("--record/--no-record", default=True, help="Write to MLflow (the default).")
def compare_command(
    *,
    models: tuple[str, ...],
    experiment: str | None,
    registered_model: str | None,
    by: str | None,
    output: str | None,
    record: bool,
    **options: Any,
) -> None:
    """Rank MODELS by their loss on new clusters, next to their naive scores.

    MODELS are model URIs, or ids of runs, of logged models or of audits; commas between URIs and ids
    will do too. Recorded audits are compared; with --data, --target and --cluster all models are
    audited first, on the same folds.
    """
    with input_errors():
        folder = _folder(output)
        given = given_options(options)
        if "data" not in given:
            given = _explicit(given)
        from mlflow_b3.reporting.comparison import comparison_files, comparison_text
        from mlflow_b3.reporting.files import write_text
        from mlflow_b3.tracking.addresses import where_to_compare
        from mlflow_b3.tracking.comparison import compare, record_comparison

        chosen = _parted(models)
        if "data" in given:
            require_options({name: given.get(name) for name in ("target", "cluster")})
            for model in chosen:
                announce_code(model, given)
            given.update(progress=True, record=record)
        with kept_journal(given) if "data" in given else nullcontext():
            comparison = compare(
                chosen,
                experiment=experiment,
                registered_model=registered_model,
                by=by or "auto",
                **given,
            )
            click.echo(comparison_text(comparison))
            files = {} if folder is None else comparison_files(comparison)
            for name, text in files.items():
                assert folder is not None
                write_text("output", folder / name, text)
            if record:
                run_id = record_comparison(comparison)
                click.echo("\n" + where_to_compare(comparison, run_id))


def _parted(models: Iterable[str]) -> list[str]:
    """Return the models of arguments that may each name several."""
    return [part.strip() for text in models for part in BETWEEN.split(text) if part.strip()]


def _explicit(given: dict[str, Any]) -> dict[str, Any]:
    """Return the options that differ from their defaults, which an entry point cannot leave out."""
    command = click.get_current_context().command
    defaults = {
        parameter.name: parameter.get_default(click.get_current_context())
        for parameter in command.params
    }
    return {name: value for name, value in given.items() if value != defaults.get(name)}


def _folder(output: str | None) -> Path | None:
    if not output:
        return None
    folder = Path(output)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass  # so that a folder that cannot be written to shows before the refits
    except OSError as error:
        raise InputError(f"output={output!r} is not usable as a folder: {error}") from error
    return folder
