"""The command line: `mlflow-b3 audit | compare | gate | verify | attest | test | review | demo | …`.

Options of audits are in `options.py`; those of a single command are beside it.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

import click

from mlflow_b3.errors import B3Error, InputError, InterruptedAudit, TrackingError, choose, closest
from mlflow_b3.evidence.document import RECORDED, SIGNING_KEY, signing_key
from mlflow_b3.options import (
    FILE,
    IDS,
    LINKAGE,
    NUMBER,
    OPTIONS,
    OUTPUT,
    REFITS,
    TEXT,
    WHOLE,
    Choice,
    GroupedCommand,
    GroupedOption,
    command_option,
    command_options,
    given_options,
    in_groups,
)
from mlflow_b3.version import __version__

if TYPE_CHECKING:
    from mlflow_b3.evidence.verdict import Verdict
    from mlflow_b3.tracking.recording import RecordedAudit


# --- Errors

INPUT_ERROR = 2
#: The usual exit code after Ctrl-C.
INTERRUPTED = 130


@contextmanager
def input_errors() -> Iterator[None]:
    """Print errors of the package, MLflow and the system without a traceback, and exit with 2."""
    try:
        yield
    except InterruptedAudit as error:
        _exit_with(str(error), INTERRUPTED)
    except KeyboardInterrupt:
        _exit_with("stopped.", INTERRUPTED)
    except (B3Error, OSError) as error:
        _exit_with(str(error))
    except Exception as error:
        if not _is_mlflow(error):
            raise
        _exit_with(f"MLflow: {error}")


def _is_mlflow(error: Exception) -> bool:
    """Return whether an error is an MLflow exception; does not import MLflow."""
    raised = sys.modules.get("mlflow.exceptions")
    return raised is not None and isinstance(error, raised.MlflowException)


def _exit_with(message: str, code: int = INPUT_ERROR) -> None:
    from mlflow_b3.results import visible

    # names in the message are untrusted and may contain control sequences of a terminal
    text = "\n".join(map(visible, message.splitlines()))
    click.echo(f"mlflow-b3: {text}", err=True)
    sys.exit(code)


@contextmanager
def shown_if_not_recorded() -> Iterator[None]:
    """Print the report of an audit that could not be written to MLflow."""
    try:
        yield
    except TrackingError as error:
        if error.report is not None:
            click.echo(error.report.to_text())
        raise


# --- Shared by the commands that run audits

NO_JOURNAL = "none"
#: As wide as lines are read with ease.
WIDEST = 100
#: A variable that turns colours off, whatever its value (https://no-color.org).
NO_COLOUR = "NO_COLOR"

FULL_OPTION = click.option(
    "--full",
    is_flag=True,
    cls=GroupedOption,
    group=OUTPUT,
    help="Print the whole report instead of a summary.",
)


def summary_or_all(report: Any, run_id: str | None = None, *, full: bool = False) -> str:
    """Return the answer of an audit in about twelve lines, or the whole report, with links."""
    from mlflow_b3.reporting.card import summary_of
    from mlflow_b3.tracking.shown_on_models import links_to, where_to_look

    if full:
        return str(report.to_text()) + ("" if run_id is None else f"\n\n{where_to_look(run_id)}")
    return summary_of(
        report,
        width=min(WIDEST, shutil.get_terminal_size((80, 24)).columns),
        colour=has_colours(),
        links={} if run_id is None else links_to(run_id),
    )


def has_colours() -> bool:
    """Return whether the terminal shows colours, and its user wants them."""
    unwanted = os.environ.get(NO_COLOUR) or os.environ.get("TERM") == "dumb"
    return sys.stdout.isatty() and not unwanted


@contextmanager
def kept_journal(given: dict[str, Any]) -> Iterator[None]:
    """Keep the journal where the options say, or else in the user's cache until the audit is done."""
    if "journal" in given:
        if given["journal"] == NO_JOURNAL:
            del given["journal"]
        yield
        return
    from mlflow_b3.measurement.journal import JournalFolder, usual_folder

    folder = given["journal"] = JournalFolder(usual_folder())
    folder.forget_old()
    yield
    folder.clear()


def announce_code(model_uri: str, given: dict[str, Any]) -> None:
    """Print which code of the model the audit will run."""
    from mlflow_b3.refit.safety import loading_notice

    refit = given.get("refit", OPTIONS["refit"].default)
    notice = loading_notice(model_uri, trainer=given.get("trainer"), refit=refit)
    if notice:
        click.echo(notice, err=True)


def require_options(subject: dict[str, Any]) -> None:
    """Raise an error if an option that every audit needs is missing."""
    missing = [name for name, value in subject.items() if not value]
    if missing:
        raise InputError(
            f"{', '.join(missing)} missing: an audit needs a model, its data, and the names of the "
            "target and cluster columns."
        )


# --- `mlflow-b3 compare`

#: A comma followed by a URI or an id. Other commas belong to names of models.
BETWEEN = re.compile(r",(?=\s*(?:[a-z][a-z0-9+.-]*:/|(?:m-)?[0-9a-f]{32}\s*(?:,|$)|$))")


@click.command(
    name="compare", cls=GroupedCommand, short_help="Rank models by their loss on new clusters."
)
@click.argument("models", nargs=-1)
@click.option("--experiment", type=TEXT, help="Compare the newest audits of this experiment.")
@click.option(
    "--registered-model", type=TEXT, help="Compare the audited versions of this registered model."
)
@click.option(
    "--by",
    type=Choice("auto", "e0", "cvc"),
    default="auto",
    show_default=True,
    help="Rank by e0, or by cvc, cross-validation corrected for correlation; auto takes cvc if all "
    "audits have it and take their cluster ids as correct.",
)
@command_options("compare")
@command_option("output", help="Also write the table and the plot to this folder.")
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

    MODELS are model URIs, or ids of runs, logged models or audits, separated by spaces or commas.
    Recorded audits are compared; with --data, --target and --cluster all models are audited first, on
    the same folds.
    """
    with input_errors():
        folder = _output_folder(output)
        given = given_options(options)
        if "data" not in given:
            given = _non_default(given)
        from mlflow_b3.reporting.comparison import comparison_files, comparison_text
        from mlflow_b3.reporting.document import write_text
        from mlflow_b3.tracking.comparing import compare, record_comparison
        from mlflow_b3.tracking.shown_on_models import where_to_compare

        chosen = _split_models(models)
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


def _split_models(models: Iterable[str]) -> list[str]:
    """Split arguments that name several models."""
    return [part.strip() for text in models for part in BETWEEN.split(text) if part.strip()]


def _non_default(given: dict[str, Any]) -> dict[str, Any]:
    """Return the options that differ from their defaults; `mlflow run` always passes all of them."""
    command = click.get_current_context().command
    defaults = {
        parameter.name: parameter.get_default(click.get_current_context())
        for parameter in command.params
    }
    return {name: value for name, value in given.items() if value != defaults.get(name)}


def _output_folder(output: str | None) -> Path | None:
    if not output:
        return None
    folder = Path(output)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass  # fail before the refits if the folder is not writable
    except OSError as error:
        raise InputError(f"output={output!r} is not a writable folder: {error}") from error
    return folder


# --- `mlflow-b3 gate`, `verify`, `attest`, `keys` and `policy`

REFUSED, OPEN = 1, 3
#: The hidden command behind 'mlflow-b3 policy FILE'.
SHOW = "show"
#: The file with the job summary on GitHub Actions.
STEP_SUMMARY = "GITHUB_STEP_SUMMARY"

POLICY_OPTION = click.option(
    "--policy",
    type=TEXT,
    help="Policy, a .yaml file; by default the one that MLFLOW_B3_POLICY names, or the default policy.",
)

FORMAT_OPTION = click.option(
    "--format",
    "format",
    type=TEXT,
    default="text",
    show_default=True,
    help="What to print: text or json.",
)


@click.command(name="gate", short_help="Decide whether a registered version may be promoted.")
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
    """Decide whether the registered version MODEL, such as models:/name/3, may be promoted.

    Its recorded audit is judged by a policy; nothing is trained. On GitHub Actions the verdict is
    added to the job summary.

    Exit codes: 0 it may, 1 it may not (FAIL), 2 usage or input error, 3 it may not, because the
    numbers do not decide (INCONCLUSIVE).
    """
    with input_errors():
        if not model.strip():
            raise InputError("model missing: give a registered version, such as models:/name/3.")
        from mlflow_b3.gating.gate import FORMATS, verdict_markdown

        printed = FORMATS[choose("format", format or "text", FORMATS)]
        write = _verdict_writer([path for path in output if path])
        from mlflow_b3.gating.gate import gate

        verdict = gate(model, policy, promote=promote)
        click.echo(printed(verdict, promote).rstrip("\n"))
        _add_to_job_summary(verdict_markdown(verdict, promote))
        write(verdict, promote)
    sys.exit(_exit_code(verdict))


def _exit_code(verdict: "Verdict") -> int:
    from mlflow_b3.evidence.verdict import INCONCLUSIVE

    if verdict.allowed:
        return 0
    return OPEN if verdict.outcome == INCONCLUSIVE else REFUSED


def _verdict_writer(outputs: Sequence[str]) -> Callable[["Verdict", str | None], None]:
    """Return a function that writes a verdict to files; check first that they can be written."""
    from mlflow_b3.gating.gate import ENDINGS, FORMATS
    from mlflow_b3.reporting.document import checked_path, write_text

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
    """Add to the job summary on GitHub; errors do not change the verdict."""
    path = os.environ.get(STEP_SUMMARY)
    if not path:
        return
    try:
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(f"{markdown}\n")
    except OSError as error:
        click.echo(f"mlflow-b3: {STEP_SUMMARY} cannot be written: {error}", err=True)


@click.command(name="verify", short_help="Check the evidence of a registered version.")
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
    what the audit wrote. 'mlflow-b3 gate' decides whether the numbers are good enough.

    Exit codes: 0 all checks passed, 1 a check failed, 2 usage or input error.
    """
    with input_errors():
        shown = choose("format", format or "text", ("text", "json"))
        from mlflow_b3.gating.gate import to_ascii_json, verification_text, verify

        found = verify(model, policy, data=data)
        click.echo(to_ascii_json(found.to_dict()) if shown == "json" else verification_text(found))
    sys.exit(0 if found.holds else REFUSED)


@click.command(name="attest", short_help="Check the audit of a version and sign it.")
@click.argument("model")
@click.option(
    "--data",
    type=TEXT,
    help="Audited table (.csv or .parquet); by default the file that the audit read.",
)
@click.option(
    "--audit",
    type=TEXT,
    help="Run of the audit; needed if several complete audits of the model are not signed.",
)
@click.option(
    "--digest",
    type=TEXT,
    help="With --audit: SHA-256 of the audit's evidence, as mlflow-b3 audit --handover wrote it. A "
    "record that was changed since then is not signed.",
)
@POLICY_OPTION
@FORMAT_OPTION
def attest_command(
    *,
    model: str,
    data: str | None,
    audit: str | None,
    digest: str | None,
    policy: str | None,
    format: str | None,  # noqa: A002 - the name of the option
) -> None:
    """Check the audit of MODEL, such as models:/name/3, and sign it with MLFLOW_B3_SIGNING_KEY.

    Run it where the key is. No model is loaded: the model's files, the table and the audit's files
    are read again, and every conclusion is recomputed from the recorded measurements. That these were
    measured with this model cannot be checked: give --audit and --digest as the audit handed them on.

    Exit codes: 0 checked and signed, 1 a check failed and nothing was signed, 2 usage or input error.
    """
    with input_errors():
        shown = choose("format", format or "text", ("text", "json"))
        from mlflow_b3.gating.attesting import attest
        from mlflow_b3.gating.gate import attestation_text, to_ascii_json

        found = attest(
            model, data or None, audit=audit or None, digest=digest or None, policy=policy
        )
        click.echo(to_ascii_json(found.to_dict()) if shown == "json" else attestation_text(found))
    sys.exit(0 if found.attested else REFUSED)


@click.command(name="keys", short_help="Make a key pair that signs audits.")
@click.option(
    "--output", type=TEXT, default=".", show_default=True, help="Folder to write the keys to."
)
@click.option("--name", type=TEXT, default="b3", show_default=True, help="Name of the files.")
def keys_command(*, output: str | None, name: str | None) -> None:
    """Make a key pair: a private key to sign audits, and a public key to verify signatures."""
    with input_errors():
        from mlflow_b3.evidence.document import SIGNING_KEY, TRUSTED_KEYS, key_id, make_keys
        from mlflow_b3.gating.gate import plain

        private, public, encoded = make_keys(Path(output or "."), name or "b3")
        click.echo(
            f"Made the key pair {key_id(encoded)}.\n\n"
            f"  {plain(str(private))}  signs audits. Keep it secret and out of the repository.\n"
            f"    Where audits are signed: export {SIGNING_KEY}={quote(plain(str(private)))}\n"
            f"    In CI: store the text of the file as a secret, and pass it as {SIGNING_KEY}\n"
            "    only to the job that runs 'mlflow-b3 attest'.\n\n"
            f"  {plain(str(public))}  verifies signatures. It is public.\n"
            f"    In the policy:  evidence: {{trusted_keys: [{encoded}]}}\n"
            f"    Or where gates and servers run: export {TRUSTED_KEYS}={encoded}"
        )


class _PolicyGroup(click.Group):
    """A group whose first argument may be a file instead of a command name."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Insert the command `show` if a file, or nothing, is given."""
        first = args[0] if args else ""
        if first not in (*self.commands, *ctx.help_option_names):
            args = [SHOW, *args]
        return super().parse_args(ctx, args)


@click.group(
    name="policy",
    cls=_PolicyGroup,
    subcommand_metavar="[FILE] | init MODEL",
    short_help="Print, check or draft a policy.",
)
def policy_command() -> None:
    """Print the default policy; with FILE, check that policy and describe it.

    With 'init MODEL', draft a policy that pins the settings of a registered version's audit.

    Exit codes: 0 the policy is valid, 2 it is not.
    """


@policy_command.command(name=SHOW, hidden=True)
@click.argument("file", required=False)
def show_policy_command(*, file: str | None) -> None:
    """Print the default policy; with FILE, check that policy and describe it."""
    with input_errors():
        from mlflow_b3.evidence.document import trusted_keys
        from mlflow_b3.evidence.policy import default_policy_text, describe_policy, load_policy
        from mlflow_b3.gating.gate import plain
        from mlflow_b3.reporting.document import bulleted

        if not file:
            click.echo(default_policy_text().rstrip("\n"))
            return
        policy = load_policy(file)
        added = set(trusted_keys(())) - set(policy.trusted_keys)
        click.echo(f"The policy {plain(file)} is valid.")
        click.echo(bulleted(map(plain, describe_policy(policy, len(added)))))
        click.echo(f"\nIts hash is {policy.hash}.")


@policy_command.command(name="init")
@click.argument("model")
@click.option(
    "--output", type=TEXT, help="File to write; it must not exist. By default, print the policy."
)
def init_policy_command(*, model: str, output: str | None) -> None:
    """Draft a policy that pins the settings of the newest audit of the registered version MODEL.

    Target, cluster column, loss and table are pinned, and the table is compared with the datasets that
    the training run logged. Check the pins before you use the policy.

    Exit codes: 0 done, 2 usage or input error.
    """
    with input_errors():
        from mlflow_b3.gating.drafting import draft_policy
        from mlflow_b3.gating.gate import plain

        path = None if not output else Path(output)
        if path is not None and path.exists():
            raise InputError(
                f"output={output!r} exists and is not overwritten; choose another name or remove it."
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
            f"Wrote {plain(str(path))}. Check its pins, then see what it requires: "
            f"mlflow-b3 policy {quote(plain(str(path)))}"
        )


# --- `mlflow-b3 preregister`


@click.command(
    name="preregister",
    cls=GroupedCommand,
    short_help="Commit the settings of an audit before it runs.",
)
@command_options("preregister")
def preregister_command(**options: Any) -> None:
    """Commit the settings of an audit before it runs; mlflow-b3 audit with the same options finds them.

    The commitment covers the contents of the model's files and of the table, and all options that
    affect the numbers.
    """
    with input_errors():
        subject = {name: options.pop(name) for name in ("model_uri", "data", "target", "cluster")}
        require_options(subject)
        from mlflow_b3.evidence.document import SIGNING_KEY, signing_key
        from mlflow_b3.tracking.preregistration import preregister

        model, data = subject.pop("model_uri"), subject.pop("data")
        committed = preregister(model, data, **subject, **given_options(options))
        click.echo(f"Committed the settings of an audit of {model}: {committed}")
        if signing_key() is None:
            click.echo(f"Not signed: set {SIGNING_KEY} if a policy requires signatures.", err=True)


# --- `mlflow-b3 review`

ROWS = 300


@click.command(name="review", short_help="Write a sheet of random rows to resolve by hand.")
@command_option("data")
@command_option("cluster")
@command_option("row_id", help="Column with the ids of rows; by default their numbers.")
@command_option(
    "match_probability",
    type=FILE,
    help="Table of scored pairs (.csv or .parquet): suspicious rows are drawn more often, and likely "
    "mates are shown.",
)
@click.option(
    "--rows", type=WHOLE, default=ROWS, show_default=True, help="Number of rows to resolve."
)
@click.option(
    "--expected-split-rate",
    type=NUMBER,
    help="Print how many rows are needed if this share of rows belongs to split clusters.",
)
@click.option("--columns", type=TEXT, help="Columns to show, separated by commas; by default all.")
@command_option("seed")
@command_option("output", help="The sheet to write: a .csv file.")
def review_command(**options: Any) -> None:
    """Write a review sheet: a random sample of rows for which a person looks up the mates.

    A mate is another row of the same true cluster. The filled-in sheet is the evidence for mlflow-b3
    audit --resolved-rows.
    """
    with input_errors():
        _write_review_sheet(**options)


def _write_review_sheet(
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
    from mlflow_b3.data.table import read_table
    from mlflow_b3.linkage.leak_sources import split_probability
    from mlflow_b3.linkage.pairs import read_pairs
    from mlflow_b3.linkage.review import review_sheet, sample_rows

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
        f"{len(sample.rows)} of {len(frame)} rows are in {path}, in random order. For each row, find all "
        "other rows of the same true cluster. Search the whole table, not only the candidates. Write "
        "their ids into the column 'mates', or none. Then run\n\n"
        f"  mlflow-b3 audit … --resolved-rows {path}" + (f" --row-id {row_id}" if row_id else "")
    )
    if expected_split_rate is not None:
        click.echo(
            f"\nIf {100 * expected_split_rate:g}% of the rows belong to split clusters, {needed} rows "
            "determine that share to within a quarter of its value (95%)."
        )


def _check_numbers(rows: int | None, split_rate: float | None) -> int | None:
    """Return the number of rows needed for an expected split rate; check both numbers."""
    from mlflow_b3.linkage.review import rows_needed
    from mlflow_b3.results import not_percentage

    problems = []
    if rows is not None and rows < 1:
        problems.append(f"--rows {rows} must be a whole number from 1.")
    if split_rate is not None and not 0 < split_rate < 1:
        problems.append(
            f"--expected-split-rate {split_rate:g} must be between 0 and 1."
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
            f"output={output!r} exists and may already be filled in; choose another name."
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


# --- `mlflow-b3`, `audit`, `test` and `demo`

GIVEN = "mlflow_b3.arguments"
#: Commands that run code of a model.
RUNS_MODELS = frozenset({"audit", "test", "compare", "demo"})


class _KeylessGroup(click.Group):
    """Runs commands that execute code of a model in a process without the signing key."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name, command, rest = super().resolve_command(ctx, args)
        has_key = bool(os.environ.get(SIGNING_KEY, "").strip())
        if name in RUNS_MODELS and has_key and not ctx.resilient_parsing:
            sys.exit(_run_without_key([name, *rest]))
        return name, command, rest


class _RepeatableCommand(GroupedCommand):
    """A command that stores its arguments, to be run again in another environment."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[GIVEN] = list(args)
        return super().parse_args(ctx, args)


@click.group(cls=_KeylessGroup)
@click.version_option(__version__, prog_name="mlflow-b3")
def main() -> None:
    """Audit MLflow models for scores inflated by leaked dependency between clusters.

    Exit codes: 0 done, 2 usage or input error, 130 stopped by Ctrl-C. gate, verify and attest also
    have 1: the version may not be promoted, or a check of its evidence failed. gate also has 3: the
    numbers do not decide.
    """
    # a progress bar for each of many small files is useless
    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")


main.add_command(attest_command)
main.add_command(compare_command)
main.add_command(gate_command)
main.add_command(keys_command)
main.add_command(policy_command)
main.add_command(preregister_command)
main.add_command(review_command)
main.add_command(verify_command)


@main.command(name="audit", cls=_RepeatableCommand, short_help="Audit a logged model.")
@command_options("audit")
@FULL_OPTION
@click.option(
    "--handover",
    type=FILE,
    cls=GroupedOption,
    group=OUTPUT,
    help="Also write the audit's run and the digest of its evidence to this .json file, for mlflow-b3 "
    "attest --audit RUN --digest SHA256.",
)
def audit_command(
    *,
    record: bool,
    output: str | None,
    full: bool,
    handover: str | None,
    env_manager: str | None,
    **options: Any,
) -> None:
    """Audit a logged model; without a model, run the built-in demo."""
    with input_errors():
        writer = _report_writer(output)
        hand_over = _handover_writer(handover, record=record)
        subject = {name: options.pop(name) for name in ("model_uri", "data", "target", "cluster")}
        given = given_options(options)
        if not any(subject.values()):
            if not record:
                raise InputError("--no-record needs a model: the demo always logs one to MLflow.")
            if env_manager not in (None, "local"):
                raise InputError(f"env_manager={env_manager!r} needs a model; give model_uri.")
            if handover:
                raise InputError(f"handover={handover!r} needs a model; give model_uri.")
            _run_demo(writer, full=full, **_demo_options(given))
            return
        require_options(subject)
        _run_in_model_environment(subject["model_uri"], env_manager)
        from mlflow_b3.auditing.audit import audit
        from mlflow_b3.tracking.recording import make_record

        made = None
        announce_code(subject["model_uri"], given)
        model, data = subject.pop("model_uri"), subject.pop("data")
        with kept_journal(given):
            if record:
                with shown_if_not_recorded():
                    made = make_record(model, data, **subject, **given, progress=True)
                    report = made.report
            else:
                report = audit(model, data, **subject, **given, progress=True)
            click.echo(summary_or_all(report, None if made is None else made.run_id, full=full))
            writer(report)
            if made is not None and not report.partial:
                hand_over(made)
            if report.partial:  # the journal stays, so the next start can resume
                sys.exit(INTERRUPTED)


@main.command(name="test", cls=_RepeatableCommand, short_help="Run only the leakage test.")
@command_options("test")
@command_option("test", "--method", "test")
def test_command(*, env_manager: str | None, **options: Any) -> None:
    """Run only the leakage test: does the model benefit from leaked rows?"""
    with input_errors():
        subject = {name: options.pop(name) for name in ("model_uri", "data", "target", "cluster")}
        require_options(subject)
        _run_in_model_environment(subject["model_uri"], env_manager)
        from mlflow_b3.auditing.audit import run_leakage_test
        from mlflow_b3.reporting.sentences import explain_test

        given = given_options(options)
        announce_code(subject["model_uri"], given)
        model, data = subject.pop("model_uri"), subject.pop("data")
        click.echo(explain_test(run_leakage_test(model, data, **subject, **given, progress=True)))


@main.command(name="demo", short_help="Audit a model of a simulated clinic.")
@click.option(
    "--pattern",
    type=click.Choice(["rows", "fragments"]),
    default="rows",
    show_default=True,
    help="Misplace single records, or split patients in two.",
)
@command_option("seed")
@command_option("n_jobs")
@FULL_OPTION
def demo_command(*, full: bool, **options: Any) -> None:
    """Simulate a clinic, train and log a model, audit it, and compare with the truth."""
    with input_errors():
        given = {name: value for name, value in options.items() if value is not None}
        _run_demo(lambda _: None, full=full, **given)


def _run_without_key(arguments: list[str]) -> int:
    """Run a command in a process without the signing key; sign its audit in another process.

    This process loads no model and no table. If the system can, it hides its environment from other
    processes of the same user.
    """
    with input_errors():
        signing_key()  # an invalid key fails before the audit
    _hide_environment()
    command = [sys.executable, "-m", "mlflow_b3"]
    with tempfile.TemporaryDirectory(prefix="mlflow-b3-") as folder:
        recorded = Path(folder) / "recorded.json"
        environment = {name: value for name, value in os.environ.items() if name != SIGNING_KEY}
        code = _run([*command, *arguments], {**environment, RECORDED: str(recorded)})
        handed = _read_handover(recorded)
    if code != 0 or arguments[0] != "audit" or handed is None:
        return code
    with main.commands["audit"].make_context("audit", arguments[1:], resilient_parsing=True) as ctx:
        model, data = ctx.params["model_uri"], ctx.params["data"]
    click.echo()
    attest = ["attest", model, "--data", data, "--audit", handed[0], "--digest", handed[1]]
    return _run([*command, *attest], dict(os.environ))


def _handover_writer(output: str | None, *, record: bool) -> Callable[["RecordedAudit"], None]:
    """Return a function that writes the run and the digest of an audit for the process that signs."""
    from mlflow_b3.reporting.document import checked_path, write_text

    path = None
    if output:
        if not record:
            raise InputError(
                f"handover={output!r} needs an audit that is recorded: drop --no-record."
            )
        if Path(output).suffix != ".json":
            raise InputError(f"handover={output!r} must end in .json.")
        path = checked_path("handover", output)
        _check_writable(path)

    def write(made: "RecordedAudit") -> None:
        text = json.dumps({"audit_run_id": made.run_id, "digest": made.digest or ""}) + "\n"
        if os.environ.get(RECORDED):
            Path(os.environ[RECORDED]).write_text(text, encoding="ascii")
        if path is not None and made.digest is None:
            raise InputError(
                f"handover={output!r} was not written: the audit of run {made.run_id} has no evidence to "
                "sign, because the model's files cannot be read or were changed meanwhile."
            )
        if path is not None:
            write_text("handover", path, text)

    return write


def _read_handover(path: Path) -> tuple[str, str] | None:
    """Return run and digest of the audit that a process without the key recorded; None without one.

    The model's code ran in that process, and may have written anything.
    """
    if not path.exists():
        return None
    try:
        values = json.loads(path.read_bytes()[:1000])
        found = str(values["audit_run_id"]), str(values["digest"])
    except (ValueError, KeyError, TypeError):
        return None
    return found if all(re.fullmatch(r"[0-9a-f]*", text) for text in found) else None


def _run(command: list[str], environment: dict[str, str]) -> int:
    """Run a command to its end; leave Ctrl-C to it, and forward SIGTERM."""
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
    """On Linux, prevent other processes of the user from reading this one's environment."""
    import ctypes
    from contextlib import suppress

    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)  # PR_SET_DUMPABLE


def _run_in_model_environment(model_uri: str, env_manager: str | None) -> None:
    """With --env-manager, run this command in the model's own environment, and exit like it."""
    from mlflow_b3.refit.environment import LOCAL, MANAGERS, run_in_model_environment

    if choose("env_manager", env_manager or LOCAL, MANAGERS) == LOCAL:
        return
    context = click.get_current_context()
    click.echo(f"Preparing the environment of {model_uri} with {env_manager}.", err=True)
    # if an option occurs twice, the last one counts
    arguments = [str(context.info_name), *context.meta[GIVEN], "--env-manager", LOCAL]
    sys.exit(run_in_model_environment(model_uri, arguments, str(env_manager)))


def _run_demo(writer: Callable[[Any], None], *, full: bool, **options: Any) -> None:
    from mlflow_b3.demo import run_demo

    click.echo("No model was given: auditing a simulated clinic whose true ids are known.\n")
    demo = run_demo(**options, progress=True)
    click.echo(summary_or_all(demo.report, demo.run_id, full=full))
    click.echo(f"\n{demo.told_truth()}")
    writer(demo.report)


def _demo_options(given: dict[str, Any]) -> dict[str, Any]:
    """Return the options of the demo; raise an error for others, which would have no effect."""
    fixed = [*in_groups(IDS, LINKAGE, REFITS), "loss", "folds", "journal"]
    refused = [name for name in fixed if name in given]
    if refused:
        raise InputError(
            f"{', '.join(refused)} was given without a model, but the demo has its own damage, loss, "
            "folds and training. Give model_uri, data, target and cluster, or omit it."
        )
    return given


def _report_writer(output: str | None) -> Callable[[Any], None]:
    if not output:
        return lambda _: None
    from mlflow_b3.reporting.document import checked_path, write_text

    ending = Path(output).suffix
    if ending not in (".html", ".json", ".md", ".txt"):
        raise InputError(f"output={output!r} must end in .html, .json, .md or .txt.")
    path = checked_path("output", output)

    def write(report: Any) -> None:
        from mlflow_b3.reporting.pages import to_markdown

        texts = {
            ".html": report.to_html,
            ".json": report.to_json,
            ".md": lambda: to_markdown(report),
            ".txt": report.to_text,
        }
        write_text("output", path, texts[ending]().rstrip("\n") + "\n")

    return write
