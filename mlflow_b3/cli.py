"""The command line: `mlflow-b3 audit | compare | gate | verify | test | review | demo | …`."""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from mlflow_b3.cli_compare import compare_command
from mlflow_b3.cli_errors import INTERRUPTED, input_errors, shown_if_not_recorded
from mlflow_b3.cli_gate import (
    attest_command,
    gate_command,
    keys_command,
    policy_command,
    verify_command,
)
from mlflow_b3.cli_linkage import LINKAGE_NAMES
from mlflow_b3.cli_options import (
    announce_code,
    audit_options,
    given_options,
    kept_journal,
    require_options,
    subject_options,
)
from mlflow_b3.cli_preregister import preregister_command
from mlflow_b3.cli_review import review_command
from mlflow_b3.cli_types import TEXT, WHOLE
from mlflow_b3.errors import InputError, choose
from mlflow_b3.gating.keys import SIGNING_KEY, signing_key
from mlflow_b3.version import __version__

GIVEN = "mlflow_b3.arguments"
#: Commands that run code of a model.
RUNS_MODELS = frozenset({"audit", "test", "compare", "demo"})
#: The file that an audit writes the id of its run to, for the process that signs.
RECORDED = "MLFLOW_B3_RECORDED"


class _Group(click.Group):
    """Commands that run code of a model run without the signing key, in a process of their own."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name, command, rest = super().resolve_command(ctx, args)
        has_key = bool(os.environ.get(SIGNING_KEY, "").strip())
        if name in RUNS_MODELS and has_key and not ctx.resilient_parsing:
            sys.exit(_run_without_key([name, *rest]))
        return name, command, rest


class _Command(click.Command):
    """A command that remembers what it was given, to be run elsewhere with the same."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[GIVEN] = list(args)
        return super().parse_args(ctx, args)


MODEL_OPTION = click.option(
    "--model-uri", type=TEXT, help="MLflow model to audit, such as models:/name/3."
)
ENVIRONMENT_OPTION = click.option(
    "--env-manager",
    type=TEXT,
    default="local",
    show_default=True,
    help="Audit here (local), or in the model's own environment: uv, virtualenv or conda.",
)


@click.group(cls=_Group)
@click.version_option(__version__, prog_name="mlflow-b3")
def main() -> None:
    """Audit MLflow models for scores inflated by leaked dependency between clusters.

    Exit codes: 0 done, 2 usage or input error, 130 stopped by Ctrl-C; of gate and verify also 1, the
    version may not be promoted or its evidence does not hold, and 3, the numbers do not decide.
    """
    # one bar for each of many small files says nothing
    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")


main.add_command(attest_command)
main.add_command(compare_command)
main.add_command(gate_command)
main.add_command(keys_command)
main.add_command(policy_command)
main.add_command(preregister_command)
main.add_command(review_command)
main.add_command(verify_command)


@main.command(name="audit", cls=_Command)
@MODEL_OPTION
@subject_options
@ENVIRONMENT_OPTION
@audit_options
@click.option(
    "--output", type=TEXT, help="Also write the report to this .html, .json, .md or .txt file."
)
@click.option("--record/--no-record", default=True, help="Write the audit to MLflow (the default).")
def audit_command(
    *, record: bool, output: str | None, env_manager: str | None, **options: Any
) -> None:
    """Audit a logged model; without a model, run the embedded demonstration."""
    with input_errors():
        writer = _writer(output)
        subject = {name: options.pop(name) for name in ("model_uri", "data", "target", "cluster")}
        given = given_options(options)
        if not any(subject.values()):
            if not record:
                raise InputError("--no-record needs a model: the demonstration logs one to MLflow.")
            if env_manager not in (None, "local"):
                raise InputError(f"env_manager={env_manager!r} needs a model, whose it would be.")
            _demonstrate(writer, **_demo_options(given))
            return
        require_options(subject)
        _go_where_the_model_lives(subject["model_uri"], env_manager)
        from mlflow_b3.auditing import audit
        from mlflow_b3.tracking.recording import audit_and_record

        run_id = None
        announce_code(subject["model_uri"], given)
        model, data = subject.pop("model_uri"), subject.pop("data")
        with kept_journal(given):
            if record:
                with shown_if_not_recorded():
                    report, run_id = audit_and_record(
                        model, data, **subject, **given, progress=True
                    )
            else:
                report = audit(model, data, **subject, **given, progress=True)
            click.echo(str(report))
            writer(report)
            if run_id is not None:
                if os.environ.get(RECORDED) and not report.partial:
                    Path(os.environ[RECORDED]).write_text(run_id, encoding="ascii")
                from mlflow_b3.tracking.addresses import where_to_look

                click.echo("\n" + where_to_look(run_id))
            if report.partial:  # its journal stays, for the next start to go on with
                sys.exit(INTERRUPTED)


@main.command(name="test", cls=_Command)
@MODEL_OPTION
@subject_options
@ENVIRONMENT_OPTION
@click.option(
    "--method",
    "test",
    type=TEXT,
    default="paired",
    show_default=True,
    help="Form of the test: paired, welch (the published one) or permutation.",
)
def test_command(*, env_manager: str | None, **options: Any) -> None:
    """Run the leakage test alone: does the learner profit from leaked rows?"""
    with input_errors():
        subject = {name: options.pop(name) for name in ("model_uri", "data", "target", "cluster")}
        require_options(subject)
        _go_where_the_model_lives(subject["model_uri"], env_manager)
        from mlflow_b3.leakage_run import run_leakage_test
        from mlflow_b3.reporting.sentences import explain_test

        given = given_options(options)
        announce_code(subject["model_uri"], given)
        model, data = subject.pop("model_uri"), subject.pop("data")
        click.echo(explain_test(run_leakage_test(model, data, **subject, **given, progress=True)))


@main.command(name="demo")
@click.option(
    "--pattern",
    type=click.Choice(["rows", "fragments"]),
    default="rows",
    show_default=True,
    help="Misplace single records, or split patients in two.",
)
@click.option("--seed", type=WHOLE, default=0, show_default=True, help="Random seed.")
@click.option(
    "--n-jobs", type=WHOLE, default=-1, show_default=True, help="Workers; -1 for all cores."
)
def demo_command(**options: Any) -> None:
    """Simulate a clinic, train and log a model, audit it, and compare with the truth."""
    with input_errors():
        given = {name: value for name, value in options.items() if value is not None}
        _demonstrate(lambda _: None, **given)


def _run_without_key(arguments: list[str]) -> int:
    """Run a command in a process that has no signing key; sign in another one what it recorded.

    This process loads no model and no table. Where the system can, it hides its environment from
    other processes of the same user.
    """
    with input_errors():
        signing_key()  # one that cannot be used costs nothing yet
    _hide_environment()
    command = [sys.executable, "-m", "mlflow_b3"]
    with tempfile.TemporaryDirectory(prefix="mlflow-b3-") as folder:
        recorded = Path(folder) / "run"
        environment = {name: value for name, value in os.environ.items() if name != SIGNING_KEY}
        code = _run([*command, *arguments], {**environment, RECORDED: str(recorded)})
        run_id = recorded.read_text(encoding="ascii")[:100] if recorded.exists() else ""
    if code != 0 or arguments[0] != "audit" or not run_id:
        return code
    with main.commands["audit"].make_context("audit", arguments[1:], resilient_parsing=True) as ctx:
        model, data = ctx.params["model_uri"], ctx.params["data"]
    click.echo()
    return _run([*command, "attest", model, "--data", data, "--audit", run_id], dict(os.environ))


def _run(command: list[str], environment: dict[str, str]) -> int:
    """Run a command to its end; Ctrl-C is its own affair, and so is being asked to end."""
    with subprocess.Popen(command, env=environment) as process:
        before = {
            signal.SIGINT: signal.signal(signal.SIGINT, lambda *_: None),
            signal.SIGTERM: signal.signal(signal.SIGTERM, lambda *_: process.terminate()),
        }
        try:
            return process.wait()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _hide_environment() -> None:
    """Keep other processes of the same user from reading this one's environment, on Linux."""
    import ctypes
    from contextlib import suppress

    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)  # PR_SET_DUMPABLE


def _go_where_the_model_lives(model_uri: str, env_manager: str | None) -> None:
    """Run this command in the model's own environment, if asked to, and exit as it does."""
    from mlflow_b3.environments import LOCAL, MANAGERS, run_in_model_environment

    if choose("env_manager", env_manager or LOCAL, MANAGERS) == LOCAL:
        return
    context = click.get_current_context()
    click.echo(f"Preparing the environment of {model_uri} with {env_manager}.", err=True)
    # of an option that is given twice the last one counts
    arguments = [str(context.info_name), *context.meta[GIVEN], "--env-manager", LOCAL]
    sys.exit(run_in_model_environment(model_uri, arguments, str(env_manager)))


def _demonstrate(writer: Callable[[Any], None], **options: Any) -> None:
    from mlflow_b3.demo import run_demo
    from mlflow_b3.tracking.addresses import where_to_look

    click.echo("No model was given: auditing a simulated clinic whose truth is known.\n")
    demo = run_demo(**options, progress=True)
    click.echo(demo.summary())
    writer(demo.report)
    click.echo("\n" + where_to_look(demo.run_id))


def _demo_options(given: dict[str, Any]) -> dict[str, Any]:
    """Return the options that the demonstration takes; others would silently do nothing."""
    fixed = [
        *("p0", "p0_validation", "cluster_error", "split_rate", "fragments", "loss", "folds"),
        *("refit", "refit_options", "trainer", "sample_weight", "journal", *LINKAGE_NAMES),
    ]
    refused = [name for name in fixed if name in given]
    if refused:
        raise InputError(
            f"{', '.join(refused)} was given without a model; the demonstration knows its own "
            "damage, loss, folds and training. Give model_uri, data, target and cluster, or leave it out."
        )
    return given


def _writer(output: str | None) -> Callable[[Any], None]:
    if not output:
        return lambda _: None
    from mlflow_b3.reporting.files import checked_path, write_text

    ending = Path(output).suffix
    if ending not in (".html", ".json", ".md", ".txt"):
        raise InputError(f"output={output!r} must end in .html, .json, .md or .txt.")
    path = checked_path("output", output)

    def write(report: Any) -> None:
        from mlflow_b3.reporting.text import to_markdown

        texts = {
            ".html": report.to_html,
            ".json": report.to_json,
            ".md": lambda: to_markdown(report),
            ".txt": lambda: str(report),
        }
        write_text("output", path, texts[ending]().rstrip("\n") + "\n")

    return write
