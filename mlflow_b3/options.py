"""The registry of options: defines each option once for Python, commands, MLproject and the evaluator."""

import json
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields
from typing import Any

import click

from mlflow_b3.errors import InputError, closest
from mlflow_b3.results import read_number

# --- Types of options: they parse text from the command line; empty text means None


class Share(click.ParamType):  # type: ignore[type-arg]
    """A number or percentage, a range LOW,HIGH of them, or a word; empty text means None."""

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
            return None  # without a share, the audit runs the grid search
        if value.strip() in self.words:
            return value.strip()
        try:
            numbers = tuple(_parse_number(part) for part in value.split(","))
        except ValueError:
            numbers = ()
        if len(numbers) == 1:
            return numbers[0]
        if len(numbers) == 2:
            return numbers[0], numbers[1]
        return self.fail(f"{value!r} is not a number such as 0.1 or 10%, or LOW,HIGH", param, ctx)


class Optional(click.ParamType):  # type: ignore[type-arg]
    """Another type, in which empty text means None: MLproject parameters cannot be omitted."""

    def __init__(self, inner: Callable[[str], Any], name: str) -> None:
        self.inner = inner
        self.name = name

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:  # noqa: ARG002
        """Return the name unchanged: words in it must be typed in lower case."""
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
    """One of several words. Others pass here; the audit refuses them, as in Python."""

    def __init__(self, *choices: str) -> None:
        super().__init__(str, f"[{'|'.join(choices)}]")
        self.choices = choices


def _parse_number(text: str) -> float:
    """Parse a number, which may be a percentage such as 10%."""
    return float(read_number(text))


#: A comma before the next NAME=VALUE; other commas separate the items of a list.
BETWEEN = re.compile(r",(?=[^,=]*=)")


def _parse_named_values(text: str) -> dict[str, Any]:
    """Parse one or more NAME=VALUE, separated by commas.

    A value is a number, true, false or text. Texts separated by commas are a list. JSON in brackets is
    a list, too, and its texts may contain commas.
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
            values[name] = _parse_value(value)
        text = rest[0] if rest else ""
    return values


def _parse_value(text: str) -> bool | int | float | str | list[str]:
    items = [item.strip() for item in text.split(",")]
    if "=" in text or (items[1:] and not all(items)):
        raise ValueError
    return items if items[1:] else _parse_scalar(items[0])


def _parse_scalar(text: str) -> bool | int | float | str:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        with suppress(ValueError):
            return kind(text)
    return text


def _parse_folds(text: str) -> int | str:
    return text if text == "balanced" or text.endswith(".csv") else int(text)


TEXT = Optional(str, "TEXT")
FILE = Optional(str, "FILE")
COLUMN = Optional(str, "COLUMN")
YES_NO = Optional(lambda text: click.BOOL.convert(text, None, None), "BOOLEAN")
FOLDS = Optional(_parse_folds, "NUMBER|balanced|FILE")
NUMBER = Optional(_parse_number, "NUMBER")
WHOLE = Optional(int, "INTEGER")
NAMED_VALUES = Optional(_parse_named_values, "NAME=VALUE")


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

#: Where an option applies, in addition to the names of commands.
PYTHON, EVALUATOR, PROJECT = "python", "evaluator", "project"
AUDITS = frozenset({PYTHON, EVALUATOR, PROJECT, "audit", "compare", "preregister"})
AUDITS_AND_TESTS = AUDITS | {"test"}


class _Same:
    """Marks that the command line has the same default as Python."""


@dataclass(frozen=True, kw_only=True)
class Option:
    """One option of an audit.

    Attributes
    ----------
    name : str
        The name in Python and in the evaluator's configuration.
    type : click.ParamType
        The type on the command line.
    help : str
        One sentence.
    group : str
        One of `GROUPS`.
    default : object
        The default in Python.
    command_default : object
        The default on the command line and in MLproject, if it differs.
    changes_numbers : bool
        Whether the value can affect the results of an audit. `mlflow_b3.preregister` commits these
        options.
    where : frozenset of str
        `PYTHON`, `EVALUATOR`, `PROJECT`, and the names of commands.
    inside : str
        The field of one of the `VALUE_OBJECTS` that holds it in Python, such as "design.scheme".
    flag : str
        The name on the command line, if it differs. `NAME/no-NAME` is a switch.
    repeated : bool
        Whether the option may be repeated on the command line.
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
        """The name in MLproject and of the command's argument."""
        return (self.flag or self.name).partition("/")[0]

    @property
    def flags(self) -> str:
        """The flags on the command line."""
        names = (self.flag or self.name).replace("_", "-").split("/")
        return "/".join(f"--{name}" for name in names)

    @property
    def command_line_default(self) -> Any:
        """The default on the command line and in MLproject."""
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
        help="Column with the (noisy) cluster ids.",
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
        help="Share of rows with a wrong cluster id: 0.1, 10% or a range such as 0.05,0.15. It can be "
        "given together with --split-rate, for misplaced rows and split clusters at once.",
    ),
    Option(
        name="split_rate",
        type=Share(),
        group=IDS,
        help="Share of rows whose true cluster was split: 0.2, 20% or a range such as 0.1,0.3. It can "
        "be given together with --cluster-error.",
    ),
    Option(
        name="fragments",
        inside="design.fragments",
        type=Optional(str, "uniform|halves|singles|SIZES"),
        group=IDS,
        help="How clusters split: uniform, halves, singles, or known sizes such as 1,1,3 or 0.1,0.4; by "
        "default as the linkage evidence suggests, or else uniform.",
    ),
    Option(
        name="match_probability",
        type=Optional(str, "FILE|COLUMN"),
        group=LINKAGE,
        help="Table of scored pairs (.csv or .parquet, from Splink or others), or a column with the "
        "probability that a row's cluster id is correct.",
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
        help="Published quality of the linkage, such as recall=0.9,precision=0.95,recall_pairs=300.",
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
        help="With a table of pairs: drop training rows whose cluster has this match probability with "
        "validation rows.",
    ),
    Option(
        name="row_id",
        inside="linkage.row_id",
        type=COLUMN,
        group=LINKAGE,
        help="Column with the ids of rows; it is not a feature.",
        where=AUDITS_AND_TESTS,
    ),
    Option(
        name="loss",
        type=Choice("zero_one", "log", "brier", "hinge", "squared", "absolute", "poisson"),
        group=SCORE,
        help="The first four are for classifiers, the last three for regressors; by default zero_one "
        "and squared. pinball_0.9 is the loss of a predicted quantile.",
        where=AUDITS_AND_TESTS,
    ),
    Option(
        name="scoring",
        type=TEXT,
        group=SCORE,
        help="Score by scikit-learn's name, such as roc_auc, f1 or r2, in place of a loss.",
    ),
    Option(
        name="by",
        type=COLUMN,
        group=SCORE,
        help="Column of groups, such as sex, whose scores are shown and compared too.",
        where=AUDITS - {"compare"},  # where it says by which score models are ranked
    ),
    Option(
        name="threshold",
        type=NUMBER,
        group=SCORE,
        help="Loss or score at which the model fails; by default that of the best constant prediction.",
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
        help="How many times clusters are assigned to folds.",
    ),
    Option(
        name="trainer",
        type=Optional(str, "MODULE:FUNCTION"),
        group=REFITS,
        help="Function that trains the model, for models that cannot be refitted automatically.",
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
        help="How the model is refitted; by default the first of these that it supports.",
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
        help="Audit in this environment (local), or in the model's own.",
        where=frozenset({PROJECT, "audit", "test"}),
    ),
    Option(
        name="budget",
        type=Optional(str, "NUMBER|TIME"),
        group=COST,
        help="Number of refits, at least two for each fold, or a time such as 10m.",  # defaults: measurement/design.py
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
        help="Address of the cluster: tcp://scheduler:8786 for dask, auto or ray://… for ray, a master "
        "such as spark://… for spark.",
        where=AUDITS_AND_TESTS,
    ),
    Option(
        name="fit_timeout",
        inside="running.fit_timeout",
        type=Optional(str, "TIME"),
        group=COST,
        help="Maximum time for one refit, such as 90s or 5m.",
        where=AUDITS_AND_TESTS,
    ),
    Option(
        name="journal",
        type=Optional(str, "PATH|none"),
        changes_numbers=False,
        group=COST,
        help="File or folder that stores finished refits; if the same audit is started again, it "
        "resumes from there. By default commands keep one in the user's cache until the audit is "
        "done; none turns it off.",
    ),
    Option(
        name="method",
        type=Choice(
            *(
                "auto",
                "dose",
                "cvc",
                "power",
                "least-squares",
                "mono",
                "trend2",
                "trend3",
                "trend4",
            ),
            *("trend2+mono", "trend3+mono", "trend4+mono", "basis", "sketch"),
        ),
        default="auto",
        group=EXPERT,
        help="The estimator; dose solves e0 from the loss by how many rows of its own cluster a row has "
        "in training, cvc is auto plus cross-validation corrected for correlation.",
    ),
    Option(
        name="method_options",
        flag="method_option",
        type=NAMED_VALUES,
        repeated=True,
        group=EXPERT,
        help="An option of the method, such as order=3, or groups=patient,day for cvc; may be repeated.",
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
        help="Injected shares: concentrated near 0 (optimal), eleven equally spaced (uniform), or a "
        "number of equally spaced shares.",
    ),
    Option(
        name="n_train",
        inside="design.n_train",
        type=WHOLE,
        group=EXPERT,
        help="With --scheme replace: rows of a resampled training set; by default as many as the "
        "fold's training set.",
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
        help="Also estimate the distribution of the losses of single rows.",
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
        help="Show a progress bar; by default only on a terminal.",
        where=frozenset({PYTHON}),
    ),
)
#: All options by name, in the order of `GROUPS`.
OPTIONS: Mapping[str, Option] = {option.name: option for option in _ENTRIES}


def options_of(place: str) -> list[Option]:
    """Return the options that apply in Python, in MLproject, for the evaluator, or to a command."""
    return [option for option in OPTIONS.values() if place in option.where]


def in_groups(*groups: str) -> list[str]:
    """Return the names of the options in these groups."""
    return [option.name for option in OPTIONS.values() if option.group in groups]


def committed_options() -> list[Option]:
    """Return the options of `mlflow_b3.audit` that affect its results."""
    return [option for option in options_of(PYTHON) if option.changes_numbers]


def check_names(names: Mapping[str, Any], place: str = PYTHON) -> None:
    """Raise an `InputError` for names that are not options."""
    known = [option.name for option in options_of(place)]
    unknown = [name for name in names if name not in known]
    if unknown:
        raise InputError(
            f"{', '.join(unknown)}: an audit has no such argument.{closest(unknown[0], known)}"
        )


# --- Value objects with the less common options of `mlflow_b3.audit`


@dataclass(frozen=True, kw_only=True, eq=False)
class LinkageEvidence:
    """Evidence about the record linkage behind the cluster ids, other than scored pairs.

    Attributes
    ----------
    resolved_rows : path, DataFrame or ResolvedRows, optional
        A sample of rows for which a person looked up all other rows of the same true cluster: the
        filled-in sheet of `mlflow_b3.linkage.review_sheet`. This is the best evidence.
    reviewer : (sensitivity, specificity), optional
        With `resolved_rows`: the share of leaked rows that this person finds, and the share of other
        rows that the person leaves alone. The default is 1 and 1.
    quality : mapping, optional
        Published figures of the linkage, {"recall": 0.9, "precision": 0.95, "recall_pairs": 300}:
        an upper limit on the leak shares. As an argument of `audit` it is `linkage_quality`.
    partition_samples : path, table or array, optional
        Posterior samples of a Bayesian linkage: labels of all rows for each sample.
    fold_threshold : number, optional
        With a pair table in `match_probability`: keep rows with this match probability in one fold,
        which reduces the leak. The same scores then say nothing about the remaining leak.
    purge_threshold : number, optional
        With a pair table: drop training rows whose cluster has this match probability with a
        validation row of the fold.
    row_id : str, optional
        Column with the row ids in the linkage evidence; it is not a feature. The default is the
        table's index.

    Examples
    --------
    Published figures of a linkage instead of scored pairs:

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
    """How the model is refitted.

    Attributes
    ----------
    route : str
        "clone", "parameters", "trainer", "fresh", "hot-start", "last-layer" or "head"; "auto" takes
        the first of these that the model's flavour supports. As an argument of `audit` it is `refit`.
    options : mapping, optional
        Options of the route, such as {"search_again": True} for a grid search; see docs/flavours.md.
        As an argument of `audit` it is `refit_options`.
    sample_weight : str, optional
        Column with the weights of training rows; losses are not weighted.

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
        Draw resampled training sets without replacement at full size, or with replacement as in the
        papers.
    levels : {"optimal", "uniform"} or int
        The injected shares and their numbers of refits: concentrated near 0, from where the curve is
        extrapolated, or eleven equally spaced levels as in the papers. A number is that many equally
        spaced levels.
    n_train : int, optional
        With scheme "replace": the number of rows of a resampled training set, n' in the papers. All
        scores are then those of models trained on that many rows. The default is the size of the
        fold's training set.
    repeats : int, optional
        How many times clusters are assigned to folds, for folds that are made here. The default is
        three if the budget allows it.
    fragments : {"uniform", "halves", "singles"} or sequence of numbers, optional
        How clusters are split for the measurement, which should be how the linkage splits them: at a
        uniformly drawn cut, in halves, or a single row off; or known sizes of fragments, as numbers
        of rows or as shares of the cluster between 0 and 1, drawn with equal probability. A size
        applies to clusters with more rows; clusters to which no size applies stay whole. The default
        follows the linkage evidence, or else is "uniform".
    test : {"paired", "welch", "permutation"}
        The form of the leakage test. `welch` is the published one; `permutation` is exact for a
        stronger null hypothesis and needs about 100 times as many refits. With a budget, the test
        gets about a fifth of it; without one, these two take what they need. Only `paired` supports a
        budget in time; with the other two it must be a number of refits.
    distribution : bool
        Also estimate the distribution of the losses of single rows on new clusters, for losses with
        more than two values and pattern `rows`.

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
    """How refits run, in addition to `n_jobs` and `backend`.

    Attributes
    ----------
    address : str, optional
        Address of the cluster: "tcp://scheduler:8786" for Dask, "auto" or "ray://…" for Ray, a master
        such as "local[4]" or "spark://…" for Spark. The default is the cluster that this process is
        connected to.
    fit_timeout : number or str, optional
        Maximum time for one refit, in seconds or as text such as "5m"; longer refits count as failed.
        The default is the budget if that is a time, but at least a minute; otherwise there is no
        limit.
    progress : bool, optional
        Show a progress bar; by default only on a terminal.

    Examples
    --------
    >>> import mlflow_b3 as b3
    >>> b3.Running(fit_timeout="5m").fit_timeout
    '5m'
    """

    address: str | None = None
    fit_timeout: float | str | None = None
    progress: bool | None = None


#: The arguments of `mlflow_b3.audit` that are value objects.
VALUE_OBJECTS: Mapping[str, type] = {
    "linkage": LinkageEvidence,
    "refit": RefitOptions,
    "design": Design,
    "running": Running,
}


def flat_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of `mlflow_b3.audit` by option name, with value objects unpacked.

    Raises
    ------
    InputError
        For unknown names, for an argument that should be a value object and is not, and for an option
        that is given both in a value object and by its own name.
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
    """Raise an error if an option is also given by its own name."""
    if not _is_default(option, flat.get(option.name, option.default)):
        raise InputError(
            f"{option.name}={flat[option.name]!r} is given twice: by its own name, and as "
            f"{option.inside}. Give it once."
        )


def _is_default(option: Option, value: Any) -> bool:
    plain = isinstance(value, (str, bool, int))  # == on tables and arrays is not a single bool
    return value is option.default or (plain and value == option.default)


# --- Options of commands, made from the registry


class GroupedOption(click.Option):
    """An option that `--help` shows under the title of its group."""

    def __init__(self, *declarations: Any, group: str, **attributes: Any) -> None:
        super().__init__(*declarations, **attributes)
        self.group = group


class GroupedCommand(click.Command):
    """A command whose options `--help` shows in groups."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options by group, and then those without a group."""
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
    """Return a decorator that adds an option of the registry to a command.

    Parameters
    ----------
    name : str
    *flags : str
        Its flags on this command, if they differ.
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
    """Return a decorator that adds all options of a command from the registry."""

    def decorate(function: Any) -> Any:
        for option in reversed(options_of(command)):
            function = command_option(option.name)(function)
        return function

    return decorate


def given_options(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options given to a command, by their names in Python."""
    given = {name: value for name, value in values.items() if value is not None}
    for option in OPTIONS.values():
        if option.repeated:
            parts = given.pop(option.parameter, ())
            if merged := {key: value for part in parts for key, value in (part or {}).items()}:
                given[option.name] = merged
    return given
