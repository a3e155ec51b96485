"""The options of the command line, defined once for all commands."""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import click

from mlflow_b3.errors import InputError
from mlflow_b3.results import read_number

# --- The types of the command line's options, for which an empty text is nothing


class Share(click.ParamType):  # type: ignore[type-arg]
    """A number or percentage, a range LOW,HIGH of them, or a word; an empty text is nothing."""

    name = "SHARE"

    def __init__(self, *words: str) -> None:
        self.words = words

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float | tuple[float, float] | str | None:
        """Parse the text."""
        if not isinstance(value, str):
            return value  # type: ignore[no-any-return]
        if not value.strip() or value.strip() == "grid":
            return None  # the grid search is what is done when nothing is known
        if value.strip() in self.words:
            return value.strip()
        try:
            numbers = tuple(_number(part) for part in value.split(","))
        except ValueError:
            numbers = ()
        if len(numbers) == 1:
            return numbers[0]
        if len(numbers) == 2:
            return numbers[0], numbers[1]
        return self.fail(f"{value!r} is not a number such as 0.1 or 10%, or LOW,HIGH", param, ctx)


def _number(text: str) -> float:
    """Parse a number, which may be a percentage such as 10%."""
    return float(read_number(text))


class Optional(click.ParamType):  # type: ignore[type-arg]
    """Another type, where an empty text is nothing: MLproject parameters cannot be left out."""

    def __init__(self, inner: Callable[[str], Any], name: str) -> None:
        self.inner = inner
        self.name = name

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Parse the text."""
        if not isinstance(value, str):
            return value
        if not value.strip():
            return None
        try:
            return self.inner(value)
        except ValueError:
            return self.fail(f"{value!r} is not of type {self.name}", param, ctx)


#: A comma after which the next NAME=VALUE begins; other commas are between the items of a list.
BETWEEN = re.compile(r",(?=[^,=]*=)")


def _named_values(text: str) -> dict[str, Any]:
    """Parse NAME=VALUE, or several with commas between them.

    A value is a number, true, false or a text. Several texts with commas between them are a list, and
    so is JSON in brackets, in which texts may have commas of their own.
    """
    values: dict[str, Any] = {}
    while text:
        name, equals, text = (part.strip() for part in text.partition("="))
        if not (name and equals) or "," in name:
            raise ValueError
        if text.startswith("["):
            values[name], end = json.JSONDecoder().raw_decode(text)
            nothing, *rest = text[end:].split(",", 1)
            if nothing.strip():
                raise ValueError
        else:
            value, *rest = BETWEEN.split(text, 1)
            values[name] = _value(value)
        text = rest[0] if rest else ""
    return values


def _value(text: str) -> bool | int | float | str | list[str]:
    items = [item.strip() for item in text.split(",")]
    if "=" in text or (items[1:] and not all(items)):
        raise ValueError
    return items if items[1:] else _number_or_text(items[0])


def _number_or_text(text: str) -> bool | int | float | str:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        with suppress(ValueError):
            return kind(text)
    return text


def _folds(text: str) -> int | str:
    return text if text == "balanced" or text.endswith(".csv") else int(text)


TEXT = Optional(str, "TEXT")
YES_NO = Optional(lambda text: click.BOOL.convert(text, None, None), "BOOLEAN")
FOLDS = Optional(_folds, "NUMBER|balanced|FILE")
NUMBER = Optional(_number, "NUMBER")
WHOLE = Optional(int, "INTEGER")
NAMED_VALUES = Optional(_named_values, "NAME=VALUE")


# --- The options of the command line that say what is known about the linkage

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


# --- Options of the command line that several commands have

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
    from mlflow_b3.measurement.journal import JournalFolder, usual_folder

    folder = given["journal"] = JournalFolder(usual_folder())
    folder.forget_old()
    yield
    folder.clear()


def announce_code(model_uri: str, given: dict[str, Any]) -> None:
    """Say what code of the model's own the audit will run."""
    from mlflow_b3.refit.safety import loading_notice

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
