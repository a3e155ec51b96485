"""The commands of the registry's gate: gate, verify, keys and policy."""

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

import click

from mlflow_b3.cli_errors import input_errors
from mlflow_b3.cli_types import TEXT
from mlflow_b3.errors import InputError, choose

if TYPE_CHECKING:
    from mlflow_b3.gating.verdict import Verdict

REFUSED, OPEN = 1, 3
#: The command that 'mlflow-b3 policy FILE' stands for.
SHOW = "show"
#: Where GitHub Actions takes the summary of a job from.
STEP_SUMMARY = "GITHUB_STEP_SUMMARY"

POLICY_OPTION = click.option(
    "--policy",
    type=TEXT,
    help="Policy, a .yaml file. Without it the one that MLFLOW_B3_POLICY names, else the default.",
)

FORMAT_OPTION = click.option(
    "--format",
    "format",
    type=TEXT,
    default="text",
    show_default=True,
    help="What to print: text or json.",
)


@click.command(name="gate")
@click.argument("model")
@POLICY_OPTION
@click.option(
    "--promote", type=TEXT, help="Alias to give to the version, if the verdict allows it."
)
@click.option(
    "--format",
    "format",
    type=TEXT,
    default="text",
    show_default=True,
    help="What to print: text, json, markdown or junit.",
)
@click.option(
    "--output",
    type=TEXT,
    multiple=True,
    help="Also write the verdict to this .txt, .json, .md or .xml (JUnit) file; may be repeated.",
)
def gate_command(
    *,
    model: str,
    policy: str | None,
    promote: str | None,
    format: str | None,  # noqa: A002 - the name of the option
    output: tuple[str | None, ...],
) -> None:
    """Judge whether the registered version MODEL, such as models:/name/3, may be promoted.

    Its recorded audit is held against a policy; nothing is trained. On GitHub Actions the verdict
    is added to the summary of the job.

    Exit codes: 0 it may, 1 it may not (FAIL), 2 usage or input error, 3 it may not, because the
    numbers do not decide (INCONCLUSIVE).
    """
    with input_errors():
        if not model.strip():
            raise InputError("model missing: name a registered version, such as models:/name/3.")
        from mlflow_b3.gating.outputs import FORMATS, verdict_markdown

        printed = FORMATS[choose("format", format or "text", FORMATS)]
        write = _writer([path for path in output if path])
        from mlflow_b3.gating.judging import gate

        verdict = gate(model, policy, promote=promote)
        click.echo(printed(verdict, promote).rstrip("\n"))
        _add_to_job_summary(verdict_markdown(verdict, promote))
        write(verdict, promote)
    sys.exit(_exit_code(verdict))


def _exit_code(verdict: "Verdict") -> int:
    from mlflow_b3.gating.verdict import INCONCLUSIVE

    if verdict.allowed:
        return 0
    return OPEN if verdict.outcome == INCONCLUSIVE else REFUSED


def _writer(outputs: Sequence[str]) -> Callable[["Verdict", str | None], None]:
    """Return what writes a verdict to files; refuse what cannot be written before all else."""
    from mlflow_b3.gating.outputs import ENDINGS, FORMATS
    from mlflow_b3.reporting.files import checked_path, write_text

    paths = []
    for output in outputs:
        if Path(output).suffix not in ENDINGS:
            raise InputError(f"output={output!r} must end in {', '.join(ENDINGS)}.")
        paths.append(checked_path("output", output))
        _check_writable(paths[-1])

    def write(verdict: "Verdict", promote: str | None) -> None:
        for path in paths:
            text = FORMATS[ENDINGS[path.suffix]](verdict, promote)
            write_text("output", path, text.rstrip("\n") + "\n")

    return write


def _check_writable(path: Path) -> None:
    try:
        existed = path.exists()
        with path.open("ab"):
            pass
        if not existed:
            path.unlink()
    except OSError as error:
        raise InputError(f"output={str(path)!r} cannot be written: {error}") from error


def _add_to_job_summary(markdown: str) -> None:
    """Add to the summary of a job on GitHub; a summary that is lost does not change the verdict."""
    path = os.environ.get(STEP_SUMMARY)
    if not path:
        return
    try:
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(f"{markdown}\n")
    except OSError as error:
        click.echo(f"mlflow-b3: {STEP_SUMMARY} cannot be written: {error}", err=True)


@click.command(name="verify")
@click.argument("model")
@POLICY_OPTION
@click.option("--data", type=TEXT, help="Table (.csv or .parquet) that should be the audited one.")
@FORMAT_OPTION
def verify_command(
    *,
    model: str,
    policy: str | None,
    data: str | None,
    format: str | None,  # noqa: A002 - the name of the option
) -> None:
    """Check whether the evidence of the registered version MODEL still holds.

    The signature, the model's files, the audit's files, metrics, tags and table are compared with
    what the audit wrote. Whether the numbers are good enough is for 'mlflow-b3 gate' to say.

    Exit codes: 0 everything holds, 1 something does not, 2 usage or input error.
    """
    with input_errors():
        shown = choose("format", format or "text", ("text", "json"))
        from mlflow_b3.gating.outputs import to_ascii_json, verification_text
        from mlflow_b3.gating.verifying import verify

        found = verify(model, policy, data=data)
        click.echo(to_ascii_json(found.to_dict()) if shown == "json" else verification_text(found))
    sys.exit(0 if found.holds else REFUSED)


@click.command(name="attest")
@click.argument("model")
@click.option(
    "--data",
    type=TEXT,
    help="Audited table (.csv or .parquet). Without it the file that the audit was given.",
)
@click.option("--audit", type=TEXT, help="Run of the audit. Without it the newest of the model.")
@POLICY_OPTION
@FORMAT_OPTION
def attest_command(
    *,
    model: str,
    data: str | None,
    audit: str | None,
    policy: str | None,
    format: str | None,  # noqa: A002 - the name of the option
) -> None:
    """Check the audit of MODEL, such as models:/name/3, and sign it with MLFLOW_B3_SIGNING_KEY.

    Run it where the key is. No model is loaded: the model's files, the table and the audit's files
    are read again, and every conclusion is recomputed from the recorded measurements.

    Exit codes: 0 checked and signed, 1 a check failed and nothing was signed, 2 usage or input error.
    """
    with input_errors():
        shown = choose("format", format or "text", ("text", "json"))
        from mlflow_b3.gating.attesting import attest
        from mlflow_b3.gating.outputs import attestation_text, to_ascii_json

        found = attest(model, data or None, audit=audit or None, policy=policy)
        click.echo(to_ascii_json(found.to_dict()) if shown == "json" else attestation_text(found))
    sys.exit(0 if found.attested else REFUSED)


@click.command(name="keys")
@click.option(
    "--output", type=TEXT, default=".", show_default=True, help="Folder to write the keys to."
)
@click.option("--name", type=TEXT, default="b3", show_default=True, help="Name of the files.")
def keys_command(*, output: str | None, name: str | None) -> None:
    """Make a pair of keys: one that signs audits, and one by which signatures are checked."""
    with input_errors():
        from mlflow_b3.gating.keys import SIGNING_KEY, TRUSTED_KEYS, key_id, make_keys
        from mlflow_b3.gating.outputs import plain

        private, public, encoded = make_keys(Path(output or "."), name or "b3")
        click.echo(
            f"Made the pair {key_id(encoded)}.\n\n"
            f"  {plain(str(private))}  signs audits. Keep it secret and out of the repository.\n"
            f"    Where audits are signed: export {SIGNING_KEY}={quote(plain(str(private)))}\n"
            f"    In CI: put the text of the file into a secret, and the secret into {SIGNING_KEY}\n"
            "    of the job that runs 'mlflow-b3 attest', and of no other.\n\n"
            f"  {plain(str(public))}  checks signatures. Anybody may have it.\n"
            f"    In the policy:  evidence: {{trusted_keys: [{encoded}]}}\n"
            f"    Or where gates and servers run: export {TRUSTED_KEYS}={encoded}"
        )


class _FileOrCommand(click.Group):
    """A group whose first argument may be a file instead of the name of a command."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Name the command that is meant where a file, or nothing, is given."""
        first = args[0] if args else ""
        if first not in (*self.commands, *ctx.help_option_names):
            args = [SHOW, *args]
        return super().parse_args(ctx, args)


@click.group(name="policy", cls=_FileOrCommand, subcommand_metavar="[FILE] | init MODEL")
def policy_command() -> None:
    """Print the default policy; with FILE, check that policy and say what it demands.

    With 'init MODEL', draft a policy that pins what was audited of a registered version.

    Exit codes: 0 it can be used, 2 it cannot.
    """


@policy_command.command(name=SHOW, hidden=True)
@click.argument("file", required=False)
def show_policy_command(*, file: str | None) -> None:
    """Print the default policy; with FILE, check that policy and say what it demands."""
    with input_errors():
        from mlflow_b3.gating.keys import trusted_keys
        from mlflow_b3.gating.outputs import plain, to_list
        from mlflow_b3.gating.policy import default_policy_text, load_policy
        from mlflow_b3.gating.policy_words import describe_policy

        if not file:
            click.echo(default_policy_text().rstrip("\n"))
            return
        policy = load_policy(file)
        added = set(trusted_keys(())) - set(policy.trusted_keys)
        sentences = to_list(describe_policy(policy, len(added)))
        click.echo("\n".join([f"The policy {plain(file)} can be used.", *sentences]))
        click.echo(f"\nIts hash is {policy.hash}.")


@policy_command.command(name="init")
@click.argument("model")
@click.option(
    "--output", type=TEXT, help="File to write; it must not exist. Without it, print the policy."
)
def init_policy_command(*, model: str, output: str | None) -> None:
    """Draft a policy that pins what was audited of the registered version MODEL.

    Target, cluster column, loss and table are those of its newest audit, and the table is compared
    with the datasets that the training run logged. Check the pins before you use the policy.

    Exit codes: 0 it was drafted, 2 usage or input error.
    """
    with input_errors():
        from mlflow_b3.gating.drafting import draft_policy
        from mlflow_b3.gating.outputs import plain

        path = None if not output else Path(output)
        if path is not None and path.exists():
            raise InputError(
                f"output={output!r} exists and is not overwritten; choose another name, or remove it."
            )
        text = draft_policy(model)
        if path is None:
            click.echo(text.rstrip("\n"))
            return
        try:
            with path.open("x", encoding="utf-8") as file:
                file.write(text)
        except OSError as error:
            raise InputError(f"output={output!r} cannot be written: {error}") from error
        click.echo(
            f"Wrote {plain(str(path))}. Check its pins, then see what it demands: "
            f"mlflow-b3 policy {quote(plain(str(path)))}"
        )
