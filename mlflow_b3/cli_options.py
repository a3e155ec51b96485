"""Options of the command line that several commands have."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import click

from mlflow_b3.cli_linkage import linkage_options
from mlflow_b3.cli_types import FOLDS, NAMED_VALUES, NUMBER, TEXT, WHOLE, YES_NO, Share
from mlflow_b3.errors import InputError

Decorated = Callable[..., Any]
NO_JOURNAL = "none"

SHARED_OPTIONS = [
    click.option("--data", type=TEXT, help="Table with the rows: a .csv or .parquet file."),
    click.option("--target", type=TEXT, help="Column that the model predicts."),
    click.option("--cluster", type=TEXT, help="Column with the (noisy) cluster id."),
    click.option(
        "--loss",
        type=TEXT,
        help="zero_one, log, brier or hinge for classifiers; squared or absolute for regressors.",
    ),
    click.option(
        "--folds",
        type=FOLDS,
        help="Number of folds of whole clusters, balanced, or the folds.csv of another audit.",
    ),
    click.option("--budget", type=TEXT, help="Number of refits, or a time such as 10m."),
    click.option(
        "--refit",
        type=TEXT,
        help="clone, parameters, trainer, fresh, hot-start, last-layer or head; by default the "
        "first of them that the model allows.",
    ),
    click.option(
        "--refit-option",
        type=NAMED_VALUES,
        multiple=True,
        help="An option of the refits, such as search_again=true or epochs=20; may be repeated.",
    ),
    click.option("--trainer", type=TEXT, help="Function that trains the model: module:function."),
    click.option("--sample-weight", type=TEXT, help="Column with the weights of training rows."),
    click.option("--row-id", type=TEXT, help="Column with the ids of rows; it is no feature."),
    click.option("--seed", type=WHOLE, default=0, show_default=True, help="Random seed."),
    click.option(
        "--n-jobs", type=WHOLE, default=-1, show_default=True, help="Workers; -1 for all cores."
    ),
    click.option(
        "--backend",
        type=TEXT,
        help="Where refits run: loky, threading or sequential on this machine, or on a cluster: "
        "dask, ray or spark.",
    ),
    click.option(
        "--address",
        type=TEXT,
        help="Of the cluster: tcp://scheduler:8786 for dask, auto or ray://… for ray, a master such "
        "as spark://… for spark.",
    ),
    click.option(
        "--fit-timeout", type=TEXT, help="Time that one refit may take, such as 90s or 5m."
    ),
]

LEAKAGE_OPTIONS = [
    click.option(
        "--p0",
        type=Share("mixture"),
        help="Share of training rows from validation clusters; mixture for a bound from the rows.",
    ),
    click.option(
        "--p0-validation",
        type=NUMBER,
        help="With --p0: share of validation rows from training clusters; 0 for one direction.",
    ),
    click.option("--cluster-error", type=Share(), help="Share of rows with a wrong cluster id."),
    click.option("--split-rate", type=Share(), help="Share of rows whose true cluster was split."),
    click.option(
        "--fragments",
        type=TEXT,
        help="How clusters split: uniform, halves, singles, or known sizes such as 1,1,3 or 0.1,0.4; by "
        "default as the linkage evidence says, or uniform.",
    ),
]

AUDIT_OPTIONS = [
    click.option(
        "--method",
        type=TEXT,
        default="auto",
        show_default=True,
        help="auto, power, least-squares, mono, trend2-4, trend2+mono-trend4+mono, basis or sketch; cvc for "
        "auto with cross-validation that is corrected for correlation beside it.",
    ),
    click.option(
        "--method-option",
        type=NAMED_VALUES,
        multiple=True,
        help="An option of the method, such as order=3, or groups=patient,day of cvc; may be repeated.",
    ),
    click.option(
        "--scheme",
        type=TEXT,
        default="subset",
        show_default=True,
        help="Resample without replacement (subset) or with it (replace).",
    ),
    click.option(
        "--levels",
        type=TEXT,
        default="optimal",
        show_default=True,
        help="Injected shares near none (optimal), eleven at equal distances (uniform), or a number "
        "of shares at equal distances.",
    ),
    click.option(
        "--n-train",
        type=WHOLE,
        help="With --scheme replace: rows of a resampled training set; by default as many as a fold "
        "has.",
    ),
    click.option(
        "--test",
        type=TEXT,
        default="paired",
        show_default=True,
        help="Form of the leakage test: paired, welch or permutation.",
    ),
    click.option(
        "--repeats", type=WHOLE, help="How many times clusters are assigned to folds anew."
    ),
    click.option("--threshold", type=NUMBER, help="Loss at which the model fails."),
    click.option(
        "--journal",
        type=TEXT,
        help="File, or folder of files, that remembers finished refits: the same audit started again "
        "goes on from there. By default one in the user's cache until the audit is done; none for "
        "none.",
    ),
    click.option(
        "--distribution",
        type=YES_NO,
        default=False,
        show_default=True,
        help="Also estimate how the losses of single rows are distributed.",
    ),
]


def _decorate(
    function: Decorated, options: Sequence[Callable[[Decorated], Decorated]]
) -> Decorated:
    for option in reversed(options):
        function = option(function)
    return function


def subject_options(function: Decorated) -> Decorated:
    """Add what every command that trains models needs."""
    return _decorate(function, SHARED_OPTIONS)


def audit_options(function: Decorated) -> Decorated:
    """Add what audits need: where the leaked share comes from, and how they are done."""
    return _decorate(linkage_options(_decorate(function, AUDIT_OPTIONS)), LEAKAGE_OPTIONS)


def given_options(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options that were given, with those of the form NAME=VALUE put together."""
    given = {name: value for name, value in options.items() if value is not None}
    for subject in ("method", "refit"):
        parts = given.pop(f"{subject}_option", ())
        if merged := {key: value for part in parts for key, value in (part or {}).items()}:
            given[f"{subject}_options"] = merged
    return given


@contextmanager
def kept_journal(given: dict[str, Any]) -> Iterator[None]:
    """Let audits keep journals where they are told to, else in the cache until they are done."""
    if "journal" in given:
        if given["journal"] == NO_JOURNAL:
            del given["journal"]
        yield
        return
    from mlflow_b3.journals import JournalFolder, usual_folder

    folder = given["journal"] = JournalFolder(usual_folder())
    folder.forget_old()
    yield
    folder.clear()


def announce_code(model_uri: str, given: dict[str, Any]) -> None:
    """Say what code of the model's own the audit will run."""
    from mlflow_b3.refit.foreign_code import loading_notice

    refit = given.get("refit", "auto")
    notice = loading_notice(model_uri, trainer=given.get("trainer"), refit=refit)
    if notice:
        click.echo(notice, err=True)


def require_options(subject: dict[str, Any]) -> None:
    """Refuse a call without what every audit needs."""
    missing = [name for name, value in subject.items() if not value]
    if missing:
        raise InputError(
            f"{', '.join(missing)} missing: an audit needs a model, its data, and the names of the "
            "target and cluster columns."
        )
