"""The registry of options: every option of an audit once, for Python, commands, MLproject and the evaluator."""

import json
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields
from typing import Any

import click

from mlflow_b3.errors import InputError, closest
from mlflow_b3.results import read_number

# --- Types of options: they parse a text of the command line, and take an empty one for nothing


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


class Optional(click.ParamType):  # type: ignore[type-arg]
    """Another type, where an empty text is nothing: MLproject parameters cannot be left out."""

    def __init__(self, inner: Callable[[str], Any], name: str) -> None:
        self.inner = inner
        self.name = name

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:  # noqa: ARG002
        """Return the name as it is: words in it must be typed in small letters."""
        return self.name

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


class Choice(Optional):
    """One of some words. Others pass: the audit refuses them as it does in Python."""

    def __init__(self, *choices: str) -> None:
        super().__init__(str, f"[{'|'.join(choices)}]")
        self.choices = choices


def _number(text: str) -> float:
    """Parse a number, which may be a percentage such as 10%."""
    return float(read_number(text))


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
FILE = Optional(str, "FILE")
COLUMN = Optional(str, "COLUMN")
YES_NO = Optional(lambda text: click.BOOL.convert(text, None, None), "BOOLEAN")
FOLDS = Optional(_folds, "NUMBER|balanced|FILE")
NUMBER = Optional(_number, "NUMBER")
WHOLE = Optional(int, "INTEGER")
NAMED_VALUES = Optional(_named_values, "NAME=VALUE")


# --- The registry

REQUIRED = "Required"
IDS = "What you know about the cluster ids"
LINKAGE = "Evidence of record linkage"
SCORE = "How the model is scored"
REFITS = "How it is refitted"
COST = "Cost"
EXPERT = "For experts"
OUTPUT = "Output"
GROUPS = (REQUIRED, IDS, LINKAGE, SCORE, REFITS, COST, EXPERT, OUTPUT)

#: Where an option applies, beside the names of commands.
PYTHON, EVALUATOR, PROJECT = "python", "evaluator", "project"
AUDITS = frozenset({PYTHON, EVALUATOR, PROJECT, "audit", "compare", "preregister"})
AUDITS_AND_TESTS = AUDITS | {"test"}


class _Same:
    """The default of the command line is that of Python."""


@dataclass(frozen=True, kw_only=True)
class Option:
    """One option of an audit.

    Attributes
    ----------
    name : str
        In Python and in the evaluator's configuration.
    type : click.ParamType
        How the command line reads it.
    help : str
        What it is, in a sentence.
    group : str
        One of `GROUPS`.
    default : object
        In Python.
    command_default : object
        On the command line and in MLproject, where it differs.
    changes_numbers : bool
        Whether an audit may say something else with another value. Those that do are committed by
        `mlflow_b3.preregister`.
    where : frozenset of str
        `PYTHON`, `EVALUATOR`, `PROJECT`, and the names of commands.
    inside : str
        Its place in Python, if it is a field of one of the `VALUE_OBJECTS`: "design.scheme".
    flag : str
        The name on the command line, if it is another one. `NAME/no-NAME` is a switch.
    repeated : bool
        Whether the command line takes it several times.
    """

    name: str
    type: click.ParamType  # type: ignore[type-arg]
    help: str
    group: str
    default: Any = None
    command_default: Any = _Same
    changes_numbers: bool = True
    where: frozenset[str] = AUDITS
    inside: str = ""
    flag: str = ""
    repeated: bool = False

    @property
    def parameter(self) -> str:
        """Its name in MLproject, and of the value that a command is given."""
        return (self.flag or self.name).partition("/")[0]

    @property
    def flags(self) -> str:
        """How it is written on the command line."""
        names = (self.flag or self.name).replace("_", "-").split("/")
        return "/".join(f"--{name}" for name in names)

    @property
    def command_line_default(self) -> Any:
        """The default of commands and of MLproject."""
        return self.default if self.command_default is _Same else self.command_default


_ENTRIES = (
    Option(
        name="model",
        flag="model_uri",
        type=TEXT,
        group=REQUIRED,
        help="MLflow model to audit, such as models:/name/3.",
        where=frozenset({PYTHON, PROJECT, "audit", "preregister", "test"}),
    ),
    Option(
        name="data",
        type=FILE,
        group=REQUIRED,
        help="Table with the rows: a .csv or .parquet file.",
        where=AUDITS_AND_TESTS - {EVALUATOR},
    ),
    Option(
        name="target",
        type=COLUMN,
        group=REQUIRED,
        help="Column that the model predicts.",
        where=AUDITS_AND_TESTS - {EVALUATOR},
    ),
    Option(
        name="cluster",
        type=COLUMN,
        group=REQUIRED,
        help="Column with the (noisy) cluster id.",
        where=AUDITS_AND_TESTS,
    ),
    Option(
        name="p0",
        type=Share("mixture"),
        group=IDS,
        help="Share of training rows from validation clusters; mixture for a bound from the rows.",
    ),
    Option(
        name="p0_validation",
        type=NUMBER,
        group=IDS,
        help="With --p0: share of validation rows from training clusters; 0 for one direction.",
    ),
    Option(
        name="cluster_error",
        type=Share(),
        group=IDS,
        help="Share of rows with a wrong cluster id.",
    ),
    Option(
        name="split_rate",
        type=Share(),
        group=IDS,
        help="Share of rows whose true cluster was split.",
    ),
    Option(
        name="fragments",
        inside="design.fragments",
        type=Optional(str, "uniform|halves|singles|SIZES"),
        group=IDS,
        help="How clusters split: uniform, halves, singles, or known sizes such as 1,1,3 or 0.1,0.4; by "
        "default as the linkage evidence says, or uniform.",
    ),
    Option(
        name="match_probability",
        type=Optional(str, "FILE|COLUMN"),
        group=LINKAGE,
        help="Table of scored pairs (.csv or .parquet, from Splink or others), or a column with the "
        "probability that a row's cluster id is right.",
    ),
    Option(
        name="resolved_rows",
        inside="linkage.resolved_rows",
        type=FILE,
        group=LINKAGE,
        help="Filled-in review sheet (.csv) made by mlflow-b3 review.",
    ),
    Option(
        name="reviewer",
        inside="linkage.reviewer",
        type=Share(),
        group=LINKAGE,
        help="With --resolved-rows: the reviewer's SENSITIVITY,SPECIFICITY.",
    ),
    Option(
        name="linkage_quality",
        inside="linkage.quality",
        type=NAMED_VALUES,
        group=LINKAGE,
        help="What is known of the linkage: recall=0.9,precision=0.95,recall_pairs=300.",
    ),
    Option(
        name="partition_samples",
        inside="linkage.partition_samples",
        type=FILE,
        group=LINKAGE,
        help="Posterior samples of a Bayesian linkage (.csv or .parquet).",
    ),
    Option(
        name="fold_threshold",
        inside="linkage.fold_threshold",
        type=NUMBER,
        group=LINKAGE,
        help="With a table of pairs: keep rows with this match probability in one fold.",
    ),
    Option(
        name="purge_threshold",
        inside="linkage.purge_threshold",
        type=NUMBER,
        group=LINKAGE,
        help="With a table of pairs: leave out training rows whose cluster has this match "
        "probability with the validation rows.",
    ),
    Option(
        name="row_id",
        inside="linkage.row_id",
        type=COLUMN,
        group=LINKAGE,
        help="Column with the ids of rows; it is no feature.",
        where=AUDITS_AND_TESTS,
    ),
    Option(
        name="loss",
        type=Choice("zero_one", "log", "brier", "hinge", "squared", "absolute"),
        group=SCORE,
        help="The first four are for classifiers, the last two for regressors; by default zero_one "
        "and squared.",
        where=AUDITS_AND_TESTS,
    ),
    Option(
        name="threshold",
        type=NUMBER,
        group=SCORE,
        help="Loss at which the model fails; by default that of the best constant prediction.",
    ),
    Option(
        name="folds",
        type=FOLDS,
        group=SCORE,
        help="Number of folds of whole clusters, balanced, or the folds.csv of another audit.",
        where=AUDITS_AND_TESTS,
    ),
    Option(
        name="repeats",
        inside="design.repeats",
        type=WHOLE,
        group=SCORE,
        help="How many times clusters are assigned to folds anew.",
    ),
    Option(
        name="trainer",
        type=Optional(str, "MODULE:FUNCTION"),
        group=REFITS,
        help="Function that trains the model, for models that cannot be refitted by themselves.",
        where=AUDITS_AND_TESTS,
    ),
    Option(
        name="refit",
        inside="refit.route",
        type=Choice(
            *("auto", "clone", "parameters", "trainer", "fresh", "hot-start", "last-layer", "head")
        ),
        default="auto",
        command_default=None,
        group=REFITS,
        help="How the model is trained again; by default the first of these that it allows.",
        where=AUDITS_AND_TESTS,
    ),
    Option(
        name="refit_options",
        inside="refit.options",
        flag="refit_option",
        type=NAMED_VALUES,
        repeated=True,
        group=REFITS,
        help="An option of the refits, such as search_again=true or epochs=20; may be repeated.",
        where=AUDITS_AND_TESTS,
    ),
    Option(
        name="sample_weight",
        inside="refit.sample_weight",
        type=COLUMN,
        group=REFITS,
        help="Column with the weights of training rows.",
        where=AUDITS_AND_TESTS,
    ),
    Option(
        name="env_manager",
        type=Choice("local", "uv", "virtualenv", "conda"),
        default="local",
        changes_numbers=False,
        group=REFITS,
        help="Audit here (local), or in the model's own environment.",
        where=frozenset({PROJECT, "audit", "test"}),
    ),
    Option(
        name="budget",
        type=Optional(str, "NUMBER|TIME"),
        group=COST,
        help="Number of refits, or a time such as 10m.",
        where=AUDITS_AND_TESTS,
    ),
    Option(
        name="n_jobs",
        type=WHOLE,
        command_default=-1,
        changes_numbers=False,
        group=COST,
        help="Workers; -1 for all cores.",
        where=AUDITS_AND_TESTS,
    ),
    Option(
        name="backend",
        type=Choice("loky", "threading", "sequential", "dask", "ray", "spark"),
        changes_numbers=False,
        group=COST,
        help="Where refits run: on this machine, or on a cluster (the last three).",
        where=AUDITS_AND_TESTS,
    ),
    Option(
        name="address",
        inside="running.address",
        type=TEXT,
        changes_numbers=False,
        group=COST,
        help="Of the cluster: tcp://scheduler:8786 for dask, auto or ray://… for ray, a master such "
        "as spark://… for spark.",
        where=AUDITS_AND_TESTS,
    ),
    Option(
        name="fit_timeout",
        inside="running.fit_timeout",
        type=Optional(str, "TIME"),
        group=COST,
        help="Time that one refit may take, such as 90s or 5m.",
        where=AUDITS_AND_TESTS,
    ),
    Option(
        name="journal",
        type=Optional(str, "PATH|none"),
        changes_numbers=False,
        group=COST,
        help="File, or folder of files, that remembers finished refits: the same audit started again "
        "goes on from there. Commands keep one in the user's cache by default until the audit is "
        "done; none for none.",
    ),
    Option(
        name="method",
        type=Choice(
            *("auto", "cvc", "power", "least-squares", "mono", "trend2", "trend3", "trend4"),
            *("trend2+mono", "trend3+mono", "trend4+mono", "basis", "sketch"),
        ),
        default="auto",
        group=EXPERT,
        help="The estimator; cvc is auto with cross-validation corrected for correlation beside it.",
    ),
    Option(
        name="method_options",
        flag="method_option",
        type=NAMED_VALUES,
        repeated=True,
        group=EXPERT,
        help="An option of the method, such as order=3, or groups=patient,day of cvc; may be repeated.",
    ),
    Option(
        name="scheme",
        inside="design.scheme",
        type=Choice("subset", "replace"),
        default="subset",
        group=EXPERT,
        help="Resample without replacement (subset) or with it (replace).",
    ),
    Option(
        name="levels",
        inside="design.levels",
        type=Optional(str, "optimal|uniform|NUMBER"),
        default="optimal",
        group=EXPERT,
        help="Injected shares near none (optimal), eleven at equal distances (uniform), or a number "
        "of shares at equal distances.",
    ),
    Option(
        name="n_train",
        inside="design.n_train",
        type=WHOLE,
        group=EXPERT,
        help="With --scheme replace: rows of a resampled training set; by default as many as a fold "
        "has.",
    ),
    Option(
        name="test",
        inside="design.test",
        type=Choice("paired", "welch", "permutation"),
        default="paired",
        group=EXPERT,
        help="Form of the leakage test; welch is the published one.",
    ),
    Option(
        name="distribution",
        inside="design.distribution",
        type=YES_NO,
        default=False,
        group=EXPERT,
        help="Also estimate how the losses of single rows are distributed.",
    ),
    Option(
        name="seed",
        type=WHOLE,
        default=0,
        group=EXPERT,
        help="Random seed.",
        where=AUDITS_AND_TESTS,
    ),
    Option(
        name="output",
        type=FILE,
        changes_numbers=False,
        group=OUTPUT,
        help="Also write the report to this .html, .json, .md or .txt file.",
        where=frozenset({PROJECT, "audit"}),
    ),
    Option(
        name="record",
        flag="record/no_record",
        type=click.BOOL,
        default=True,
        changes_numbers=False,
        group=OUTPUT,
        help="Write to MLflow (the default).",
        where=frozenset({"audit", "compare"}),
    ),
    Option(
        name="progress",
        inside="running.progress",
        type=YES_NO,
        changes_numbers=False,
        group=OUTPUT,
        help="Show a progress bar; by default on a terminal only.",
        where=frozenset({PYTHON}),
    ),
)
#: All options by name, in the order of `GROUPS`.
OPTIONS: Mapping[str, Option] = {option.name: option for option in _ENTRIES}


def options_of(place: str) -> list[Option]:
    """Return the options that apply in Python, in MLproject, for the evaluator, or to a command."""
    return [option for option in OPTIONS.values() if place in option.where]


def in_groups(*groups: str) -> list[str]:
    """Return the names of the options of some groups."""
    return [option.name for option in OPTIONS.values() if option.group in groups]


def committed_options() -> list[Option]:
    """Return the options of `mlflow_b3.audit` that change its numbers."""
    return [option for option in options_of(PYTHON) if option.changes_numbers]


def check_names(names: Mapping[str, Any], place: str = PYTHON) -> None:
    """Raise an `InputError` for names that no option has."""
    known = [option.name for option in options_of(place)]
    unknown = [name for name in names if name not in known]
    if unknown:
        raise InputError(
            f"{', '.join(unknown)}: an audit has no such argument.{closest(unknown[0], known)}"
        )


# --- Values that hold the rarer options of `mlflow_b3.audit`


@dataclass(frozen=True, kw_only=True, eq=False)
class LinkageEvidence:
    """What is known about the record linkage that made the cluster ids, beside scored pairs.

    Attributes
    ----------
    resolved_rows : path, DataFrame or ResolvedRows, optional
        A sample of rows for which a person has looked up all other rows of the same true cluster:
        the filled-in sheet of `mlflow_b3.linkage.review_sheet`. The best evidence there is.
    reviewer : (sensitivity, specificity), optional
        With `resolved_rows`: how many leaked rows that person finds, and how many others she leaves
        alone; 1 and 1 by default.
    quality : mapping, optional
        Published figures of the linkage, {"recall": 0.9, "precision": 0.95, "recall_pairs": 300}:
        an upper limit on the leak shares. By its own name it is `linkage_quality`.
    partition_samples : path, table or array, optional
        Posterior samples of a Bayesian linkage: labels of all rows for each sample.
    fold_threshold : number, optional
        With a pair table in `match_probability`: keep rows with this match probability in one fold,
        which leaves less to leak. The same scores then say nothing about what still leaks.
    purge_threshold : number, optional
        With a pair table: leave training rows out whose cluster has this match probability with a
        validation row of the fold.
    row_id : str, optional
        Column with the ids of rows that linkage evidence refers to, which is no feature; by default
        the table's index.

    Examples
    --------
    Published figures of a linkage, in place of scored pairs:

    >>> import mlflow_b3 as b3
    >>> b3.LinkageEvidence(quality={"recall": 0.9, "precision": 0.95}).quality["recall"]
    0.9
    """

    resolved_rows: Any = None
    reviewer: tuple[float, float] | None = None
    quality: Mapping[str, float] | None = None
    partition_samples: Any = None
    fold_threshold: float | None = None
    purge_threshold: float | None = None
    row_id: str | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class RefitOptions:
    """How the model is trained again.

    Attributes
    ----------
    route : str
        "clone", "parameters", "trainer", "fresh", "hot-start", "last-layer" or "head"; "auto" takes
        the first of these that the model's flavour allows. By its own name it is `refit`.
    options : mapping, optional
        Options of that, such as {"search_again": True} for a grid search; see docs/flavours.md. By
        its own name it is `refit_options`.
    sample_weight : str, optional
        Column with the weights of rows in training; losses are not weighted.

    Examples
    --------
    >>> import mlflow_b3 as b3
    >>> b3.RefitOptions(options={"search_again": True}).route
    'auto'
    """

    route: str = "auto"
    options: Mapping[str, Any] | None = None
    sample_weight: str | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class Design:
    """How training sets are resampled, and what is measured with them.

    Attributes
    ----------
    scheme : {"subset", "replace"}
        Draw resampled training sets without replacement at full size, or with replacement as the
        papers do.
    levels : {"optimal", "uniform"} or int
        Which injected shares are measured, and how often: crowded near none, where the curve is
        extrapolated from, or eleven at equal distances as in the papers. A number is that many
        levels at equal distances.
    n_train : int, optional
        With scheme "replace": the rows of a resampled training set, the papers' n'. All scores are
        then those of models trained on that many rows. By default as many as the fold has.
    repeats : int, optional
        How many times clusters are assigned to folds anew, for folds that are made here: three
        times where the budget allows it.
    fragments : {"uniform", "halves", "singles"} or sequence of numbers, optional
        How clusters are broken on purpose, which should be how linkage splits them: at a cut
        drawn uniformly, in halves, a single row off; or the sizes of fragments that are known,
        as numbers of rows or as shares of the cluster between 0 and 1, drawn with equal chances.
        A size applies to clusters with more rows; clusters to which none applies stay whole. By
        default as the linkage evidence says, or "uniform".
    test : {"paired", "welch", "permutation"}
        The form of the leakage test. `welch` is the published one; `permutation` is exact for a
        stronger null hypothesis and needs some 100 times as many refits. With a budget the test has
        about a fifth of it; without one these two take what they need. A time is kept by `paired`
        only: with the other two a budget is a number of refits.
    distribution : bool
        Also estimate how the losses of single rows are distributed on new clusters, for losses
        with more than two values and pattern `rows`.

    Examples
    --------
    >>> import mlflow_b3 as b3
    >>> from sklearn.naive_bayes import GaussianNB
    >>> clinic = b3.make_clinic(patients=30, records=4, cluster_error=0.1)
    >>> report = b3.audit(
    ...     GaussianNB(),
    ...     clinic.frame,
    ...     target="disease",
    ...     cluster="patient_id",
    ...     cluster_error=0.1,
    ...     folds=2,
    ...     budget=60,
    ...     design=b3.Design(repeats=1, levels="uniform"),
    ... )
    >>> len(report.curve.loss)
    11
    """

    scheme: str = "subset"
    levels: str | int = "optimal"
    n_train: int | None = None
    repeats: int | None = None
    fragments: Any = None
    test: str = "paired"
    distribution: bool = False


@dataclass(frozen=True, kw_only=True, eq=False)
class Running:
    """How refits run, beside their number at a time.

    Attributes
    ----------
    address : str, optional
        Of the cluster: "tcp://scheduler:8786" for Dask, "auto" or "ray://…" for Ray, a master such as
        "local[4]" or "spark://…" for Spark; by default the one that this process is connected to.
    fit_timeout : number or str, optional
        Seconds that one refit may take, or a time such as "5m"; longer ones count as failed. By
        default a refit may take all of a budget in time, a minute at least; else there is no limit.
    progress : bool, optional
        Show a progress bar; by default on a terminal only.

    Examples
    --------
    >>> import mlflow_b3 as b3
    >>> b3.Running(fit_timeout="5m").fit_timeout
    '5m'
    """

    address: str | None = None
    fit_timeout: float | str | None = None
    progress: bool | None = None


#: The arguments of `mlflow_b3.audit` that hold other options.
VALUE_OBJECTS: Mapping[str, type] = {
    "linkage": LinkageEvidence,
    "refit": RefitOptions,
    "design": Design,
    "running": Running,
}


def flat_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments of `mlflow_b3.audit` by the names of options, taken out of value objects.

    Raises
    ------
    InputError
        For names that no option has, for something else in the place of a value object, and for an
        option that is given by its own name too.
    """
    held = {
        name: value
        for name, value in given.items()
        if name in VALUE_OBJECTS and (name != "refit" or isinstance(value, RefitOptions))
    }  # `refit` may also be the route alone
    flat = {name: value for name, value in given.items() if name not in held}
    check_names(flat)
    for name, value in held.items():
        if value is None:
            continue
        kind = VALUE_OBJECTS[name]
        if not isinstance(value, kind):
            raise InputError(
                f"{name}={value!r} is not usable; give {kind.__name__}({fields(kind)[0].name}=…)."
            )
        for option in OPTIONS.values():
            place, _, field = option.inside.partition(".")
            if place == name and not _is_default(option, getattr(value, field)):
                _require_unset(option, flat)
                flat[option.name] = getattr(value, field)
    return flat


def _require_unset(option: Option, flat: Mapping[str, Any]) -> None:
    """Refuse an option that is given by its own name too."""
    if not _is_default(option, flat.get(option.name, option.default)):
        raise InputError(
            f"{option.name}={flat[option.name]!r} is given twice: by its own name, and as "
            f"{option.inside}. Give it once."
        )


def _is_default(option: Option, value: Any) -> bool:
    plain = isinstance(value, (str, bool, int))  # tables and arrays have no single answer
    return value is option.default or (plain and value == option.default)


# --- The options of commands, made of the registry


class GroupedOption(click.Option):
    """An option that `--help` shows under the title of its group."""

    def __init__(self, *declarations: Any, group: str, **attributes: Any) -> None:
        super().__init__(*declarations, **attributes)
        self.group = group


class GroupedCommand(click.Command):
    """A command whose options `--help` shows in groups."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options, group by group, and then those that belong to none."""
        records: dict[str, list[tuple[str, str]]] = {group: [] for group in (*GROUPS, "Options")}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                records[getattr(parameter, "group", "Options")].append(record)
        for group, rows in records.items():
            if rows:
                with formatter.section(group):
                    formatter.write_dl(rows)


def command_option(name: str, *flags: str, **changes: Any) -> Callable[[Any], Any]:
    """Return the decorator that gives an option of the registry to a command.

    Parameters
    ----------
    name : str
    *flags : str
        Its names there, if they are others.
    **changes
        Attributes of `click.Option` that differ from the registry.
    """
    option = OPTIONS[name]
    default = option.command_line_default
    attributes: dict[str, Any] = {"type": option.type, "help": option.help, "group": option.group}
    if option.repeated:
        attributes["multiple"] = True
    elif default is not None:
        attributes |= {"default": default, "show_default": option.type is not click.BOOL}
    declared = flags or (option.flags,)
    return click.option(*declared, cls=GroupedOption, **{**attributes, **changes})


def command_options(command: str) -> Callable[[Any], Any]:
    """Return the decorator that gives a command all of its options in the registry."""

    def decorate(function: Any) -> Any:
        for option in reversed(options_of(command)):
            function = command_option(option.name)(function)
        return function

    return decorate


def given_options(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that a command was given, by their names in Python."""
    given = {name: value for name, value in values.items() if value is not None}
    for option in OPTIONS.values():
        if option.repeated:
            parts = given.pop(option.parameter, ())
            if merged := {key: value for part in parts for key, value in (part or {}).items()}:
                given[option.name] = merged
    return given
