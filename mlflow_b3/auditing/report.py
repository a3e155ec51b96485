"""`AuditReport`: everything one audit found, as plain numbers, nested by their origin."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from os import PathLike
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, get_type_hints, overload

from mlflow_b3.auditing.extension import ExtensionReport, extension_report
from mlflow_b3.auditing.groups import GroupScores, turn_groups
from mlflow_b3.auditing.leakage import Leakage, LeakageClaim, recorded_leakage
from mlflow_b3.data.folds import Fold, FoldSummary
from mlflow_b3.data.scores import is_greater_better
from mlflow_b3.estimation.bounds import ShapeCheck
from mlflow_b3.estimation.dose import DoseCurve, DoseSolution
from mlflow_b3.estimation.estimate import LossDistribution
from mlflow_b3.estimation.influence import Influence, Reading
from mlflow_b3.estimation.leakage_test import LeakageTest
from mlflow_b3.estimation.p0 import P0Search
from mlflow_b3.estimation.sensitivity import ExtrapolationPath, Sensitivity
from mlflow_b3.linkage.rows import LossRegression, SuspiciousRow
from mlflow_b3.measurement.collecting import Measurement
from mlflow_b3.measurement.curve import FragmentLosses, LossCurve
from mlflow_b3.measurement.refits import Refits
from mlflow_b3.results import KEPT_APART, Finding, Result

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

    from mlflow_b3.correlated.report import CvcReport

#: The method of audits by dose.
DOSE = "dose"
#: The format of `to_dict`. Format 1 was flat: the fields of all parts beside each other, or in `settings`.
FORMAT = 2

# --- The parts of a report, in the order of an audit: subject, refit, plan, claim, measured, conclusion


@dataclass(frozen=True, kw_only=True)
class SubjectSummary(Result):
    """What was audited: a model, a table and a loss.

    Attributes
    ----------
    model, uri, run_id, model_id
        The audited model, and where MLflow keeps it.
    model_digest : str or None
        Digest of its files as they were when it was loaded.
    task, target, cluster : str
    features : tuple of str
    texts : tuple of str
        Columns that the model takes as text, and that were read from a .csv file as such.
    sample_weight : str or None
        The column that weighted the rows in training.
    loss : str
        The loss or score.
    loss_bound, loss_floor : float or None
        The largest and the smallest possible loss of a row. For a score of which more is better, of
        1 - score.
    loss_ceiling : float or None
        For `squared` and `absolute`: the largest mean loss of predictions inside the range of the
        target. It limits intervals if all measured losses are below it.
    constant_loss : float or None
        The loss, or score, of the best constant prediction; None if it is not known.
    n_rows, n_clusters : int
    n_repeated : int or None
        Clusters with two rows or more; None in reports of earlier versions.
    data_digest : str
        Changes with any value of the table.
    rows_digest : str
        Changes with any target, cluster or order of rows, but not with features: audits with equal
        digests can be compared in pairs.
    training_digest : str or None
        MLflow's own digest of the table, for comparison with the datasets that the model's run logged;
        None if the run logged none of this size.
    data_source : str or None
        The file that the table was read from; None for a table in memory. It is not compared: equal
        tables give equal reports, wherever they came from.
    """

    model: str
    uri: str | None
    run_id: str | None
    model_id: str | None
    model_digest: str | None = None
    task: str
    target: str
    cluster: str
    features: tuple[str, ...]
    texts: tuple[str, ...] = ()
    sample_weight: str | None = None
    loss: str
    loss_bound: float | None
    loss_floor: float | None
    loss_ceiling: float | None = None
    constant_loss: float | None = None
    n_rows: int
    n_clusters: int
    n_repeated: int | None = None
    data_digest: str
    rows_digest: str = ""
    training_digest: str | None = None
    data_source: str | None = field(default=None, compare=False)

    @property
    def greater_is_better(self) -> bool:
        """Whether the numbers of the report are a score of which more is better, such as the AUC."""
        return is_greater_better(self.loss)


@dataclass(frozen=True, kw_only=True)
class RefitSummary(Result):
    """How the model was refitted.

    Attributes
    ----------
    route : str
        The route by which it was refitted.
    strength : {"full", "lower-bound"}
        Whether the refits show all of the bias, or part of the model kept what it learned from all
        rows, so that the losses on new clusters are lower bounds.
    notes : tuple of str
        What was recovered of its training, and what was not.
    options : dict
        The options given for it.
    agreement : float or None
        How far a refit on all rows agrees with the logged model: the overlap of predicted
        probabilities, the share of equal labels, or of explained variance; None if they could not
        be compared.
    """

    route: str
    strength: str = "full"
    notes: tuple[str, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)
    agreement: float | None = None

    @property
    def is_full(self) -> bool:
        """Whether the refits show all of the bias."""
        return self.strength == "full"


@dataclass(frozen=True, kw_only=True)
class PlanSummary(Result):
    """What was settled before the first refit; with the same subject the numbers are the same.

    Attributes
    ----------
    method : str
    method_options : dict
        The options of the method, with their values.
    scheme : str
    n_train : int or None
        Rows of a resampled training set, if given; None for as many as the fold has.
    fragment_sizes : str
        How clusters were broken on purpose, as the audit's argument `fragments`.
    folds_given : bool
        The folds came from a splitter or as lists of rows, which the report does not repeat.
    folds_digest : str
        Changes with any row of any fold: equal digests mean the same folds of the same number of rows.
    repeats : int
        How many assignments of clusters the report's folds consist of.
    n_validated : int
        Clusters with rows in a validation fold.
    fold_threshold, purge_threshold : float or None
        Match probability from which rows of different clusters were kept in one fold, or training
        rows were left out because of the validation rows.
    threshold : float or None
        The loss at which the model fails: given, or that of the best constant prediction.
    threshold_given : bool
        False when the threshold is the loss of the best constant prediction.
    seed : int
    """

    method: str
    method_options: dict[str, Any] = field(default_factory=dict)
    scheme: str
    n_train: int | None = None
    fragment_sizes: str = "uniform"
    folds_given: bool
    folds_digest: str = ""
    repeats: int
    n_validated: int
    fold_threshold: float | None = None
    purge_threshold: float | None = None
    threshold: float | None
    threshold_given: bool
    seed: int


@dataclass(frozen=True, kw_only=True)
class MeasurementSummary(Result):
    """What the refits measured.

    Attributes
    ----------
    loco : float
        Loss on the folds by the noisy cluster ids.
    iid : float
        Loss on folds that ignore clusters.
    curve : LossCurve
        The loss by the share of training rows that were injected from the validation side.
    fragments : FragmentLosses or None
        The losses with clusters that were broken on purpose.
    folds : tuple of FoldSummary
    fits : int
        Refits that were made, failed ones included.
    refits : Refits or None
        How the refits went: how many failed and why, and whether the user stopped them early; None
        in reports of earlier versions.
    measured_at : str or None
        When the last refit ended, in UTC; None in reports of earlier versions.
    """

    loco: float
    iid: float
    curve: LossCurve
    fragments: FragmentLosses | None
    folds: tuple[FoldSummary, ...]
    fits: int = 0
    refits: Refits | None = None
    measured_at: str | None = field(default=None, compare=False)


@dataclass(frozen=True, kw_only=True)
class Conclusion(Result):
    """What follows from the measured losses, and from what was known about the leakage.

    `attest` draws it again, and compares every field.

    Attributes
    ----------
    e0 : float or None
        Loss on new clusters, bias-corrected; None if nothing is known about the leakage, or if it was
        to be bounded by the rows or by linkage evidence and the bound is vacuous.
    e0_interval : tuple of float, or of float and None
        95% interval of e0; over all cluster errors up to 50% if nothing is known. Over all leakage up
        to a limit of 95% confidence, it holds with 90%. The upper end is None if the refits give only
        lower bounds (`refit.strength`); then e0 and inflation are only the part that shows, and tipping
        points are the latest possible ones. It is also None if the evidence does not exclude that all
        validation rows were seen and the loss has no largest value, or if it would be more than ten
        times the largest measured loss: then the extrapolation says nothing about it. It is at most
        the largest possible loss, or `subject.loss_ceiling`.
    e0_secant : float or None
        Lower limit of e0 (one-sided 95%) that holds if the loss curve is convex: a secant with its
        noise subtracted. None unless the measured curve supports convexity
        (`ShapeCheck.supports_convexity`), if nothing is known, and for pattern `fragments`.
        It is no guarantee: nothing is measured to the left of the first level.
    p0 : float or None
        The leaked share used: of training rows (rows), or of validation rows that have mates in
        training (fragments); the middle of a range.
    inflation : float or None
        e0 - loco: how optimistic the score by noisy cluster ids is.
    loco_interval : tuple of float
        95% interval of the loss by the noisy cluster ids, over clusters.
    leaked, losses : tuple or None
        e_j for j leaked rows.
    residual : float or None
        The residual of the fit to the measured curve.
    shape : ShapeCheck
        Whether the measured curve falls, and is convex.
    search : P0Search
        The papers' grid search for p0.
    sensitivity : Sensitivity
        Pattern `rows`, over the cluster error; with `claim.p0_validation` over p0, which then
        belongs to no cluster error.
    fragment_sensitivity : Sensitivity or None
        Pattern `fragments`, over the split rate; None when no cluster has two rows, or with
        `plan.n_train`.
    tipping_p0, tipping_cluster_error, tipping_split_rate : float or None
        The smallest values at which e0 reaches the threshold; None when it does not by 50%
        (rows) or below 100% (split rate). There is no cluster error with
        `claim.p0_validation`.
    test : LeakageTest
        Whether the learner benefits from having seen the validation clusters.
    readings : tuple of Reading
        e0 at the ends and in the middle of what is known about the leakage.
    path : ExtrapolationPath or None
        For pattern `rows`: the loss curve extrapolated to the point without leakage.
    distribution : LossDistribution or None
        If requested: how the losses of rows of new clusters are distributed.
    accurate : bool
        False when a solver's result could not be confirmed.
    sketch_error : float or None
        For the method `sketch`: a bound on the error of sketching as a multiple of e_0.
    e0_guaranteed : float or None
        In records of earlier versions only: the secant without its noise subtracted, and without a
        test that supports convexity. It was above the loss on new clusters in a third of audits.
    dose : DoseSolution or None
        With the method "dose": the loss by the number of a row's mates in training, and what the
        uncertainty of e0 comes from. If nothing is known about the ids, for a cluster error of 10%.
    loco_gap_interval : tuple of float or None
        With the method "dose": 95% interval of loco - iid, from the differences within clusters.
    groups : GroupScores or None
        With `by`: the scores of groups of rows, and their differences.
    """

    e0: float | None
    e0_interval: tuple[float, float | None]
    e0_secant: float | None
    p0: float | None
    inflation: float | None
    loco_interval: tuple[float, float]
    leaked: tuple[int, ...] | None
    losses: tuple[float, ...] | None
    residual: float | None
    shape: ShapeCheck
    search: P0Search
    sensitivity: Sensitivity
    fragment_sensitivity: Sensitivity | None
    tipping_p0: float | None
    tipping_cluster_error: float | None
    tipping_split_rate: float | None
    test: LeakageTest
    readings: tuple[Reading, ...] = ()
    path: ExtrapolationPath | None = None
    distribution: LossDistribution | None = None
    accurate: bool = True
    sketch_error: float | None = None
    e0_guaranteed: float | None = None
    dose: DoseSolution | None = None
    loco_gap_interval: tuple[float, float] | None = None
    groups: GroupScores | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the conclusions as plain values, without groups if there are none."""
        values = super().to_dict()
        if self.groups is None:
            del values["groups"]
        return values


# --- The report

T = TypeVar("T")


class Shortcut(Generic[T]):
    """A field of a part of a report, readable as an attribute of the report."""

    def __init__(self, read: Callable[["AuditReport"], T]) -> None:
        """Keep how the field is read."""
        self.read = read

    @overload
    def __get__(self, report: None, owner: type) -> Self: ...

    @overload
    def __get__(self, report: "AuditReport", owner: type) -> T: ...

    def __get__(self, report: "AuditReport | None", owner: type) -> "T | Self":
        """Return the field."""
        return self if report is None else self.read(report)


@dataclass(frozen=True, kw_only=True, repr=False)
class AuditReport(Result):
    """The answer of an audit: whether the score is inflated, by how much, and how sure that is.

    Attributes
    ----------
    subject : SubjectSummary
        The audited model, table and loss.
    refit : RefitSummary
        How the model was trained again.
    plan : PlanSummary
        Method, folds, threshold and seed.
    claim : LeakageClaim
        What was known about the leakage; `p0_source`, `linkage` and `p0_bound` are read from it.
    measured : MeasurementSummary
        `loco`, `iid`, `curve`, `fragments`, `folds` and `refits` are read from it.
    conclusion : Conclusion
        `e0`, `e0_interval`, `inflation`, `sensitivity`, `test` and all other numbers are read from it.
    findings : tuple of Finding
    version : str
        The version of mlflow-b3.
    cvc : CvcReport or None
        With the method "cvc": ordinary cross-validation with its bias added back.
    suspicious : tuple of SuspiciousRow
        The rows that most likely leaked and make the score look better, if the evidence
        distinguishes rows.
    regression : LossRegression or None
        The loss regressed on the rows' leak probability: a check of e0 that needs no refits.
    influence : Influence or None
        How far each cluster moves the scores, for comparing audits of the same clusters. Like
        `splits`, it is kept in a table of its own.
    splits : tuple of Fold or None
        The rows on either side of every fold. `to_dict` leaves them out, `record` writes them to a
        table of their own.
    measurements : Measurement or None
        The measured losses that everything else follows from. `to_dict` leaves them out, `record`
        writes them to a file of their own, from which `attest` draws the conclusions again.

    Examples
    --------
    >>> import mlflow_b3 as b3
    >>> from sklearn.naive_bayes import GaussianNB
    >>> clinic = b3.make_clinic(patients=20, records=4, cluster_error=0.1)
    >>> report = b3.audit(
    ...     GaussianNB(),
    ...     clinic.frame,
    ...     target="disease",
    ...     cluster="patient_id",
    ...     cluster_error=0.1,
    ...     folds=2,
    ...     budget=60,
    ... )
    >>> low, high = report.e0_interval
    >>> low < report.e0 < high
    True
    >>> len(report.curve.injected) == len(report.curve.loss)
    True
    >>> b3.AuditReport.from_dict(report.to_dict()).e0 == report.e0
    True
    >>> report.frame().columns.tolist()
    ['value', 'low', 'high', 'meaning']
    >>> report.plot("sensitivity").get_xlabel()
    'rows with a wrong id (cluster error)'
    """

    subject: SubjectSummary
    refit: RefitSummary
    plan: PlanSummary
    claim: LeakageClaim
    measured: MeasurementSummary
    conclusion: Conclusion
    findings: tuple[Finding, ...]
    version: str
    cvc: "CvcReport | None" = None
    suspicious: tuple[SuspiciousRow, ...] = ()
    regression: LossRegression | None = None
    influence: Influence | None = field(
        default=None, compare=False, repr=False, metadata=KEPT_APART
    )
    splits: tuple[Fold, ...] | None = field(
        default=None, compare=False, repr=False, metadata=KEPT_APART
    )
    measurements: Measurement | None = field(
        default=None, compare=False, repr=False, metadata=KEPT_APART
    )

    e0 = Shortcut(lambda report: report.conclusion.e0)
    e0_interval = Shortcut(lambda report: report.conclusion.e0_interval)
    e0_secant = Shortcut(lambda report: report.conclusion.e0_secant)
    e0_guaranteed = Shortcut(lambda report: report.conclusion.e0_guaranteed)
    p0 = Shortcut(lambda report: report.conclusion.p0)
    p0_source = Shortcut(lambda report: report.claim.source)
    p0_bound = Shortcut(lambda report: report.claim.bound)
    linkage = Shortcut(lambda report: report.claim.linkage)
    loco = Shortcut(lambda report: report.measured.loco)
    loco_interval = Shortcut(lambda report: report.conclusion.loco_interval)
    iid = Shortcut(lambda report: report.measured.iid)
    inflation = Shortcut(lambda report: report.conclusion.inflation)
    curve = Shortcut(lambda report: report.measured.curve)
    fragments = Shortcut(lambda report: report.measured.fragments)
    folds = Shortcut(lambda report: report.measured.folds)
    refits = Shortcut(lambda report: report.measured.refits)
    leaked = Shortcut(lambda report: report.conclusion.leaked)
    losses = Shortcut(lambda report: report.conclusion.losses)
    residual = Shortcut(lambda report: report.conclusion.residual)
    shape = Shortcut(lambda report: report.conclusion.shape)
    search = Shortcut(lambda report: report.conclusion.search)
    sensitivity = Shortcut(lambda report: report.conclusion.sensitivity)
    fragment_sensitivity = Shortcut(lambda report: report.conclusion.fragment_sensitivity)
    threshold = Shortcut(lambda report: report.plan.threshold)
    constant_loss = Shortcut(lambda report: report.subject.constant_loss)
    tipping_p0 = Shortcut(lambda report: report.conclusion.tipping_p0)
    tipping_cluster_error = Shortcut(lambda report: report.conclusion.tipping_cluster_error)
    tipping_split_rate = Shortcut(lambda report: report.conclusion.tipping_split_rate)
    test = Shortcut(lambda report: report.conclusion.test)
    readings = Shortcut(lambda report: report.conclusion.readings)
    path = Shortcut(lambda report: report.conclusion.path)
    distribution = Shortcut(lambda report: report.conclusion.distribution)
    accurate = Shortcut(lambda report: report.conclusion.accurate)
    sketch_error = Shortcut(lambda report: report.conclusion.sketch_error)
    groups = Shortcut(lambda report: report.conclusion.groups)

    @property
    def dose(self) -> DoseCurve | None:
        """The loss by how many rows of its own cluster a row has in training; None for other methods."""
        found = self.conclusion.dose
        return None if found is None else found.curve

    def to_dict(self) -> dict[str, Any]:
        """Return the report as dictionaries, lists, strings, numbers, booleans and None."""
        return {"format": FORMAT, **super().to_dict()}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """Build the report from what `to_dict` returned, in this version or an earlier one."""
        if not isinstance(values, dict):
            return super().from_dict(values)
        form = values.get("format", 1)
        if form == 1:
            return super().from_dict(nest(values))
        if form != FORMAT:
            raise ValueError(
                f"the report has the format {form!r}; this version of mlflow-b3 reads formats 1 and "
                f"{FORMAT}. Install a newer version."
            )
        return super().from_dict({name: values[name] for name in values if name != "format"})

    @classmethod
    def _field_types(cls) -> dict[str, Any]:
        """Return the types of the fields, including those of extensions."""
        return get_type_hints(cls, localns={"CvcReport": extension_report("cvc")})

    @cached_property
    def as_losses(self) -> "AuditReport":
        """The report with 1 - score in place of a score of which more is better; else itself.

        What decides something, such as a headline or a verdict, reads this: less is always better here.
        """
        subject = self.subject
        if not subject.greater_is_better:
            return self
        return replace(
            self,
            subject=replace(
                subject, loss=f"1 - {subject.loss}", constant_loss=turned(subject.constant_loss)
            ),
            plan=replace(self.plan, threshold=turned(self.plan.threshold)),
            measured=turn_measured(self.measured),
            conclusion=turn_conclusion(self.conclusion),
            influence=None if self.influence is None else turn_influence(self.influence),
            cvc=None if self.cvc is None else self.cvc.turned(),
        )

    @cached_property
    def leakage(self) -> Leakage:
        """What was known about the leakage."""
        return recorded_leakage(self.claim)

    @property
    def settings(self) -> "FlatSettings":
        """What was audited and how, by the names of earlier versions."""
        return FlatSettings(self)

    @property
    def extensions(self) -> tuple[ExtensionReport, ...]:
        """What methods have added to e0."""
        return () if self.cvc is None else (self.cvc,)

    @property
    def partial(self) -> bool:
        """Whether the user stopped the audit, so that its numbers rest on only part of its refits."""
        return self.refits is not None and self.refits.partial

    def __str__(self) -> str:
        """Return the answer in about twelve lines; `to_text` has the whole report."""
        from mlflow_b3.reporting.card import IN_PYTHON, summary_of

        return summary_of(self, links=IN_PYTHON)

    def __repr__(self) -> str:
        """Return the answer in three lines."""
        from mlflow_b3.reporting.card import repr_of

        return repr_of(self)

    def _repr_html_(self) -> str:
        """Return the answer as a card, for notebooks."""
        from mlflow_b3.reporting.pages import to_card

        return to_card(self)

    def to_text(self) -> str:
        """Return the whole report in plain words."""
        from mlflow_b3.reporting.pages import to_text

        return to_text(self)

    def frame(self) -> "pd.DataFrame":
        """Return the scores as a table: IID, LOCO and e0, each with its interval.

        Returns
        -------
        DataFrame
            With a row for each score, and the columns `value`, `low`, `high` and `meaning`. What is not
            known is NaN.
        """
        from mlflow_b3.reporting.tables import score_frame

        return score_frame(self)

    @overload
    def plot(self, kind: None = None) -> "list[Axes]": ...

    @overload
    def plot(self, kind: str, ax: "Axes | None" = None) -> "Axes": ...

    def plot(self, kind: str | None = None, ax: "Axes | None" = None) -> "Axes | list[Axes]":
        """Draw a chart of the report, or its main charts side by side.

        Parameters
        ----------
        kind : {"scores", "dose", "sensitivity", "loss"}, optional
            The scores with their intervals; the loss by rows of the same cluster in training; the loss
            on new clusters for every rate of wrong ids, with threshold and tipping point; or the loss
            curve. Without it, all that the page of the report shows.
        ax : matplotlib axes, optional
            Where to draw one chart; without it, on axes of a new figure.

        Returns
        -------
        matplotlib axes, or a list of them
            They can be restyled like any others.
        """
        from mlflow_b3.reporting.charts import plot_report

        return plot_report(self, kind, ax)

    def to_html(self, path: str | PathLike[str] | None = None) -> str:
        """Return the report as one self-contained HTML page, and write it to a file if a path is given.

        Parameters
        ----------
        path : path, optional
            The file to write; an existing one is replaced.

        Returns
        -------
        str
        """
        from mlflow_b3.reporting.document import checked_path, write_text
        from mlflow_b3.reporting.pages import to_html

        file = None if path is None else checked_path("path", path)
        page = to_html(self)
        if file is not None:
            write_text("path", file, page)
        return page

    def to_model_card(self, path: str | PathLike[str] | None = None) -> str:
        """Return the audit as sections of a model card, and write them to a file if a path is given.

        They are Markdown, with the headings of Hugging Face's template and of Mitchell et al. (2019):
        evaluation, caveats and recommendations. Paste them into a model card, or into the description
        of a model in MLflow.

        Parameters
        ----------
        path : path, optional
            The file to write; an existing one is replaced.

        Returns
        -------
        str

        References
        ----------
        Mitchell, M. et al. (2019). Model cards for model reporting. *FAT 2019*.
        doi:10.1145/3287560.3287596.
        """
        from mlflow_b3.reporting.document import checked_path, write_text
        from mlflow_b3.reporting.model_card import to_model_card

        file = None if path is None else checked_path("path", path)
        card = to_model_card(self)
        if file is not None:
            write_text("path", file, card)
        return card


# --- Scores of which more is better: 1 - score in place of the score, and back


@overload
def turned(value: float) -> float: ...


@overload
def turned(value: None) -> None: ...


def turned(value: float | None) -> float | None:
    """Return 1 - value."""
    return None if value is None else 1.0 - value


def _turn_ends(low: Any, high: Any) -> tuple[Any, Any]:
    return turned(high), turned(low)


def _turn_all(values: tuple[float, ...]) -> tuple[float, ...]:
    return tuple(1.0 - value for value in values)


def turn_measured(measured: MeasurementSummary) -> MeasurementSummary:
    """Return what was measured by doses, with 1 - score in place of each score."""
    curve = measured.curve
    return replace(
        measured,
        loco=turned(measured.loco),
        iid=turned(measured.iid),
        curve=replace(
            curve,
            loss=_turn_all(curve.loss),
            training_loss=curve.training_loss and _turn_all(curve.training_loss),
        ),
        folds=tuple(replace(fold, loss=turned(fold.loss)) for fold in measured.folds),
    )


def turn_conclusion(found: Conclusion) -> Conclusion:
    """Return conclusions by doses, with 1 - score in place of each score.

    How much better a score looks than it is (`inflation`, `loco_gap_interval`, the effect of mates and of
    the leakage test) is the same in both.
    """
    return replace(
        found,
        e0=turned(found.e0),
        e0_interval=_turn_ends(*found.e0_interval),
        loco_interval=_turn_ends(*found.loco_interval),
        losses=found.losses and _turn_all(found.losses),
        sensitivity=_turn_sensitivity(found.sensitivity),
        fragment_sensitivity=found.fragment_sensitivity
        and _turn_sensitivity(found.fragment_sensitivity),
        readings=tuple(
            replace(read, e0=turned(read.e0), low=turned(read.high), high=turned(read.low))
            for read in found.readings
        ),
        dose=found.dose and _turn_dose(found.dose),
        groups=found.groups and turn_groups(found.groups),
    )


def _turn_sensitivity(curve: Sensitivity) -> Sensitivity:
    low, high = _turn_all(curve.high), _turn_all(curve.low)
    return replace(curve, e0=_turn_all(curve.e0), low=low, high=high, greater=not curve.greater)


def _turn_dose(found: DoseSolution) -> DoseSolution:
    curve = found.curve
    return replace(
        found,
        e0=turned(found.e0),
        interval=_turn_ends(*found.interval),
        loco=turned(found.loco),
        loco_interval=_turn_ends(*found.loco_interval),
        curve=replace(
            curve,
            loss=_turn_all(curve.loss),
            low=_turn_all(curve.high),
            high=_turn_all(curve.low),
        ),
    )


def turn_influence(influence: Influence) -> Influence:
    """Return the influence of clusters on 1 - score."""
    cv = None if influence.cv is None else -influence.cv
    return replace(influence, loco=-influence.loco, e0=-influence.e0, cv=cv)


# --- Format 1, in which all parts were flat: its fields, and where they are now

PARTS: dict[str, type[Result]] = {
    "subject": SubjectSummary,
    "refit": RefitSummary,
    "plan": PlanSummary,
    "claim": LeakageClaim,
    "measured": MeasurementSummary,
    "conclusion": Conclusion,
}
#: Fields of the report that kept their names, by the part that they are in now. Newer fields are not
#: among them: no report of format 1 has any.
OF_REPORT = {
    "subject": ("constant_loss",),
    "plan": ("threshold",),
    "claim": ("linkage",),
    "measured": ("loco", "iid", "curve", "fragments", "folds", "refits"),
    "conclusion": (
        *("e0", "e0_interval", "e0_secant", "e0_guaranteed", "p0", "inflation", "loco_interval"),
        *("leaked", "losses", "residual", "shape", "search", "sensitivity", "fragment_sensitivity"),
        *("tipping_p0", "tipping_cluster_error", "tipping_split_rate", "test", "readings", "path"),
        *("distribution", "accurate", "sketch_error"),
    ),
}
#: The same for fields of its settings.
OF_SETTINGS = {
    "subject": (
        *("model", "uri", "run_id", "model_id", "model_digest", "task", "target", "cluster"),
        *("features", "texts", "sample_weight", "loss", "loss_bound", "loss_floor"),
        *("loss_ceiling", "n_rows", "n_clusters", "n_repeated", "data_digest", "rows_digest"),
        *("training_digest", "data_source"),
    ),
    "plan": (
        *("method", "method_options", "scheme", "n_train", "folds_given", "folds_digest"),
        *("repeats", "n_validated", "fold_threshold", "purge_threshold", "threshold_given", "seed"),
    ),
    "claim": ("pattern", "p0_validation"),
    "measured": ("fits", "measured_at"),
}
#: Where each field of format 1 is now. Those of settings come after a dot.
PLACES: dict[str, tuple[str, ...]] = {
    **{name: (name,) for name in ("findings", "cvc", "suspicious", "regression")},
    **{name: (part, name) for part, names in OF_REPORT.items() for name in names},
    **{f"settings.{name}": (part, name) for part, names in OF_SETTINGS.items() for name in names},
    "p0_source": ("claim", "source"),
    "p0_bound": ("claim", "bound"),
    "settings.claim": ("claim", "range"),
    "settings.claim_centre": ("claim", "centre"),
    "settings.fragments": ("plan", "fragment_sizes"),
    "settings.refit": ("refit", "route"),
    "settings.refit_strength": ("refit", "strength"),
    "settings.refit_notes": ("refit", "notes"),
    "settings.refit_options": ("refit", "options"),
    "settings.refit_agreement": ("refit", "agreement"),
    "settings.version": ("version",),
}


def nest(flat: dict[str, Any]) -> dict[str, Any]:
    """Return a report of format 1 as one of format 2."""
    settings = flat.get("settings")
    if not isinstance(settings, dict):
        raise TypeError(f"the settings of a report must be a dictionary, not {settings!r}.")
    given = {name: value for name, value in flat.items() if name not in ("settings", "format")}
    given |= {f"settings.{name}": value for name, value in settings.items()}
    unknown = sorted(set(given) - set(PLACES))
    if unknown:
        raise TypeError(f"a report of format 1 has no fields {unknown}.")
    if "e0_guaranteed" in given:  # recorded before there was a secant
        given.setdefault("e0_secant", None)
    nested: dict[str, Any] = {part: {} for part in PARTS}
    for name, value in given.items():
        *part, field_name = PLACES[name]
        (nested[part[0]] if part else nested)[field_name] = value
    return nested


class FlatSettings:
    """The settings of a report by the names that they had in format 1.

    For code that was written for earlier versions: `report.settings.cluster` is
    `report.subject.cluster`.
    """

    def __init__(self, report: AuditReport) -> None:
        """Read from a report."""
        self._report = report

    def __getattr__(self, name: str) -> Any:
        """Return a setting."""
        place = PLACES.get(f"settings.{name}")
        if place is None:
            raise AttributeError(f"the settings of a report have no {name!r}.")
        value: Any = self._report
        for step in place:
            value = getattr(value, step)
        return value

    def __dir__(self) -> list[str]:
        """Return the names of all settings."""
        return [name.removeprefix("settings.") for name in PLACES if name.startswith("settings.")]
