"""What a method may add to an audit beside e0; audits find it by the method's name."""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from mlflow_b3.estimation.estimate import Method, as_method
from mlflow_b3.results import Finding

if TYPE_CHECKING:
    import pandas as pd

    from mlflow_b3.auditing.comparability import ExtensionScore
    from mlflow_b3.auditing.report import AuditReport
    from mlflow_b3.auditing.subject import Subject
    from mlflow_b3.data.scores import Score
    from mlflow_b3.measurement.campaign import Campaign
    from mlflow_b3.measurement.journal import Journal
    from mlflow_b3.measurement.refits import FitCounts

Budget = int | str | None

# --- During the audit: options, columns, refits, and their place in the report


class Extension(Protocol):
    """A method with its options, and what it adds to an audit.

    An audit calls its methods in the order of their definition here.

    Attributes
    ----------
    takes_ids_as_right : bool
        If nothing is said about the cluster ids, none is taken as wrong.
    """

    takes_ids_as_right: ClassVar[bool]

    @property
    def e0_method(self) -> str | Method:
        """How e0 is estimated, as the user says it."""

    def estimator(self) -> Method:
        """Return the method by which e0 is estimated."""

    def describe(self, cluster: str) -> dict[str, Any]:
        """Return the name of the method and its options, with the defaults of those not given."""

    def check(self, *, n_train: Any) -> None:
        """Refuse arguments of the audit that it cannot be combined with."""

    def read(self, frame: "pd.DataFrame", cluster: str) -> "ExtraColumns":
        """Read the columns of the audited table that it needs."""

    def supports(self, score: "Score") -> bool:
        """Whether it can be used with a score in place of a loss."""

    def rest(self, subject: "Subject", budget: Budget) -> Budget:
        """Return what it leaves of the budget; refuse a subject that it is not for."""

    def plan(
        self,
        model: Any,
        subject: "Subject",
        campaign: "Campaign",
        *,
        budget: Budget,
        refit_options: Mapping[str, Any] | None,
    ) -> "PlannedExtension":
        """Settle its refits before the first refit of the audit."""

    def findings(self, report: "AuditReport", *, taken_as_right: bool) -> list[Finding]:
        """Return what the reader must know about its part of the report."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ExtraColumns:
    """Columns of the audited table that a method reads itself.

    Attributes
    ----------
    frame : DataFrame
        The table, with levels of its index as columns where the method needs them.
    names : tuple of str
        Columns that are features only if the model names them.
    content : object
        What the method read.
    """

    frame: "pd.DataFrame"
    names: tuple[str, ...] = ()
    content: Any = None


class PlannedExtension(Protocol):
    """The refits of an extension, in one audit."""

    @property
    def identity(self) -> dict[str, str]:
        """What its refits follow from, for the journal."""

    def budget_explained(self) -> AbstractContextManager[None]:
        """Add to errors about the budget which part of it is reserved."""

    def run(
        self, report: "AuditReport", journal: "Journal | None", counts: "FitCounts"
    ) -> "AuditReport":
        """Run the refits, and return the report with what they show."""


# --- In a report: what is recorded, shown and compared with limits


@dataclass(frozen=True, kw_only=True)
class NamedCurve:
    """A curve of a report, with the names under which it is recorded."""

    name: str
    axis: str
    x: tuple[float, ...]
    y: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class LimitedScore:
    """A loss, or score, that a gate compares with the limit of e0.

    Attributes
    ----------
    name : str
        What it is called in sentences.
    checks : tuple of str
        Names of the checks against the given limit, and against that of a constant prediction.
    value, interval : float, tuple of float, or None
        None if it is withheld.
    withheld : str
        Why it may be withheld, in a sentence.
    approximate : str
        Why it may be too small; "" if it is not.
    greater : bool
        Whether more is better.
    """

    name: str
    checks: tuple[str, str]
    value: float | None
    interval: tuple[float, float] | None
    withheld: str
    approximate: str
    greater: bool = False


class ExtensionReport(Protocol):
    """What a method has added to the report of an audit.

    Attributes
    ----------
    METRICS : tuple of str
        The names of all metrics that it may have.
    """

    METRICS: ClassVar[tuple[str, ...]]

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What was noticed."""

    def metrics(self, strength: str) -> dict[str, float | None]:
        """Return the metrics to record, with `Settings.refit_strength` of the audit."""

    def parameters(self) -> dict[str, str]:
        """Return the parameters to record."""

    def curve(self) -> NamedCurve:
        """Return its sensitivity curve."""

    def limited(self, strength: str) -> LimitedScore:
        """Return what a gate compares with the limit of e0."""

    def sums(self) -> dict[str, tuple[float | None, float | None]]:
        """Return pairs of numbers that must be equal, by the field of the report."""

    def options_to_share(self, report: "AuditReport") -> dict[str, Any]:
        """Return options to pass on to the next of several audits that are to be compared."""


# --- Which methods add something, and a default for all others


@dataclass(frozen=True, kw_only=True)
class ExtensionHome:
    """Where an extension is implemented, as "module:name"; each part is imported on first use.

    Attributes
    ----------
    method : str
        From the options of the method to an `Extension`.
    report : str
        The class of its part of the report, an `ExtensionReport`.
    score : str
        The `ExtensionScore` by which such reports are ranked.
    """

    method: str
    report: str
    score: str


#: Methods that add something to an audit, by their names.
EXTENSIONS = {
    "cvc": ExtensionHome(
        method="mlflow_b3.correlated.extension:CvcMethod",
        report="mlflow_b3.correlated.report:CvcReport",
        score="mlflow_b3.correlated.ranking:CVC_SCORE",
    )
}


def find_extension(method: str | Method, options: Mapping[str, Any] | None) -> Extension:
    """Return a method with its options, and what it adds to an audit."""
    if isinstance(method, str) and method in EXTENSIONS:
        found: Extension = _imported(EXTENSIONS[method].method)(options)
        return found
    return PlainMethod(method=method, options=dict(options or {}))


def extension_report(name: str) -> type[ExtensionReport]:
    """Return the class of what an extension adds to a report."""
    found: type[ExtensionReport] = _imported(EXTENSIONS[name].report)
    return found


def extension_score(name: str) -> "ExtensionScore":
    """Return the score by which audits with an extension are ranked."""
    found: ExtensionScore = _imported(EXTENSIONS[name].score)
    return found


def _imported(home: str) -> Any:
    module, _, name = home.partition(":")
    return getattr(import_module(module), name)


@dataclass(frozen=True, kw_only=True)
class PlainMethod:
    """A method that estimates e0, and adds nothing."""

    takes_ids_as_right: ClassVar[bool] = False

    method: str | Method
    options: dict[str, Any]

    @property
    def e0_method(self) -> str | Method:
        """The method itself."""
        return self.method

    def estimator(self) -> Method:
        """Return the method itself."""
        return as_method(self.method, **self.options)

    def describe(self, cluster: str) -> dict[str, Any]:  # noqa: ARG002
        """Return the name of the method and its options."""
        made = self.estimator()
        return {"name": made.name, **made.options}

    def check(self, *, n_train: Any) -> None:
        """Refuse nothing."""

    def read(self, frame: "pd.DataFrame", cluster: str) -> ExtraColumns:  # noqa: ARG002
        """Read no columns."""
        return ExtraColumns(frame=frame)

    def supports(self, score: "Score") -> bool:  # noqa: ARG002
        """Whether e0 comes from the losses by dose."""
        return self.method == "auto"

    def rest(self, subject: "Subject", budget: Budget) -> Budget:  # noqa: ARG002
        """Leave all of the budget."""
        return budget

    def plan(self, *_: Any, **__: Any) -> "NothingPlanned":
        """Plan no refits."""
        return NothingPlanned()

    def findings(self, *_: Any, **__: Any) -> list[Finding]:
        """Find nothing."""
        return []


class NothingPlanned:
    """No refits in addition to those of the audit itself."""

    @property
    def identity(self) -> dict[str, str]:
        """Nothing."""
        return {}

    def budget_explained(self) -> AbstractContextManager[None]:
        """Leave errors as they are."""
        return nullcontext()

    def run(
        self,
        report: "AuditReport",
        journal: "Journal | None",  # noqa: ARG002
        counts: "FitCounts",  # noqa: ARG002
    ) -> "AuditReport":
        """Return the report as it is."""
        return report
