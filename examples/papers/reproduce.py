"""Repeat an experiment of the papers by its name, beside the published numbers.

    mlflow run . -e reproduce --env-manager local -P experiment=synthetic
    mlflow run . -e reproduce --env-manager local -P experiment=heart -P data=heart+disease.zip

`list` names them all. Tables are printed; tables, metrics and pictures are recorded in the run.
"""

import ast
import importlib
import sys
import time
from pathlib import Path

import click
import matplotlib as mpl

mpl.use("Agg")

FOLDER = Path(__file__).parent
if str(FOLDER) not in sys.path:  # when it is imported, such as by the program that writes MLproject
    sys.path.insert(0, str(FOLDER))

from experiment import MissingDataError, Outcome, Request  # noqa: E402

from mlflow_b3.errors import InputError  # noqa: E402
from mlflow_b3.measurement.design import parse_seconds  # noqa: E402

#: The experiments in the order of the papers; each is a module of this folder, with _ for -.
EXPERIMENTS = (
    "heart",
    "census",
    "heart-refits",
    "census-refits",
    "parkinson",
    "dota2",
    "synthetic",
    "published-curves",
    "solution-times",
    "conditioning",
    "crossing-clusters",
    "match-and-merge",
    "linkage-limits",
    "sampled-linkage",
    "cvc-simulation",
    "spatial-layouts",
    "network-likelihoods",
    "meta-audit",
)


@click.command(help=__doc__)
@click.option("--experiment", default="list", help="Which one; `list` names them all.")
@click.option("--data", default=None, help="The user's copy of the data, as UCI delivers it.")
@click.option("--quick", default="false", help="`true`: fewer trials and refits, two minutes.")
@click.option("--budget", default=None, help="A time such as 10m; what is done by then is shown.")
@click.option("--seed", default="0", help="Where random numbers start.")
@click.option("--n-jobs", default="1", help="How many trials run at once.")
@click.option("--output", default=None, help="A folder for tables and pictures, beside MLflow.")
def main(
    experiment: str,
    data: str | None,
    quick: str,
    budget: str | None,
    seed: str,
    n_jobs: str,
    output: str | None,
) -> None:
    if experiment == "list":
        for name in EXPERIMENTS:
            click.echo(f"{name:24} {first_line(name)}")
        return
    if experiment not in EXPERIMENTS:
        raise click.UsageError(
            f"experiment={experiment!r} is not known; choose one of {', '.join(EXPERIMENTS)}."
        )
    if quick not in ("true", "false"):
        raise click.UsageError(f"quick={quick!r} is not usable; give true or false.")
    try:
        seconds = parse_seconds("budget", budget or None)
        request = Request(
            data=Path(data) if data else None,
            quick=quick == "true",
            deadline=float("inf") if seconds is None else time.monotonic() + seconds,
            seed=_whole("seed", seed, 0),
            n_jobs=_whole("n_jobs", n_jobs, 1),
        )
        started = time.monotonic()
        outcome = importlib.import_module(experiment.replace("-", "_")).run(request)
    except (MissingDataError, InputError) as error:
        raise click.UsageError(f"{experiment}: {error}") from None
    text = "\n\n".join(map(str, outcome.tables)) + "\n"
    click.echo(f"\n{text}\n{time.monotonic() - started:.0f} seconds")
    if request.passed():
        click.echo("The budget has passed; tables have what was done by then.")
    if output:
        write(outcome, text, Path(output))
    record(experiment, request, outcome, text)


def first_line(name: str) -> str:
    """Return what an experiment is, without importing its libraries."""
    source = (FOLDER / f"{name.replace('-', '_')}.py").read_text(encoding="utf-8")
    return (ast.get_docstring(ast.parse(source)) or "").partition("\n")[0]


def _whole(name: str, value: str, least: int) -> int:
    if not value.isdecimal() or int(value) < least:
        raise click.UsageError(
            f"{name}={value!r} is not usable; give a whole number from {least} on."
        )
    return int(value)


def write(outcome: Outcome, text: str, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tables.md").write_text(text, encoding="utf-8")
    for name, content in outcome.files.items():
        (folder / name).write_text(content, encoding="utf-8")
    for name, figure in outcome.pictures.items():
        figure.savefig(folder / f"{name}.png", dpi=90)


def record(experiment: str, request: Request, outcome: Outcome, text: str) -> None:
    """Write to the run that `mlflow run` has made, or to a new one."""
    import mlflow

    with mlflow.start_run() as run:
        mlflow.set_tag("mlflow.note.content", text)
        quick = str(request.quick).lower()
        mlflow.log_params({"experiment": experiment, "quick": quick, "seed": str(request.seed)})
        mlflow.log_metrics(outcome.metrics)
        mlflow.log_text(text, "tables.md")
        for name, content in outcome.files.items():
            mlflow.log_text(content, name)
        for name, figure in outcome.pictures.items():
            mlflow.log_figure(figure, f"{name}.png")
    click.echo(f"Recorded in run {run.info.run_id}.")


if __name__ == "__main__":
    main()
