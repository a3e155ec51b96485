"""The command that commits the settings of an audit before it runs."""

from typing import Any

import click

from mlflow_b3.cli_errors import input_errors
from mlflow_b3.cli_options import audit_options, given_options, require_options, subject_options
from mlflow_b3.cli_types import TEXT


@click.command(name="preregister")
@click.option(
    "--model-uri", type=TEXT, help="MLflow model that will be audited, such as models:/name/3."
)
@subject_options
@audit_options
def preregister_command(**options: Any) -> None:
    """Commit the settings of an audit before it runs; mlflow-b3 audit with the same options finds them.

    The model's files, the table and all options that change the numbers count, by their content.
    """
    with input_errors():
        subject = {name: options.pop(name) for name in ("model_uri", "data", "target", "cluster")}
        require_options(subject)
        from mlflow_b3.gating.keys import SIGNING_KEY, signing_key
        from mlflow_b3.tracking.preregistration import preregister

        model, data = subject.pop("model_uri"), subject.pop("data")
        committed = preregister(model, data, **subject, **given_options(options))
        click.echo(f"Committed the settings of an audit of {model}: {committed}")
        if signing_key() is None:
            click.echo(
                f"Not signed: set {SIGNING_KEY} where a policy asks for signatures.", err=True
            )
