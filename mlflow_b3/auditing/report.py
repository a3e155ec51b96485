"""`AuditReport`: everything one audit found, as plain numbers."""

from dataclasses import dataclass, field
from functools import cached_property
from os import PathLike
from typing import TYPE_CHECKING, Any, Self, get_type_hints

from mlflow_b3.auditing.extension import ExtensionReport, extension_report
from mlflow_b3.auditing.leakage import Leakage, recorded_leakage
from mlflow_b3.data.folds import Fold, FoldSummary
from mlflow_b3.estimation.bounds import ShapeCheck
from mlflow_b3.estimation.estimate import LossDistribution
from mlflow_b3.estimation.influence import Influence, Reading
from mlflow_b3.estimation.leakage_test import LeakageTest
from mlflow_b3.estimation.p0 import P0Bound, P0Search
from mlflow_b3.estimation.sensitivity import ExtrapolationPath, Sensitivity
from mlflow_b3.linkage.leak import LeakEstimate
from mlflow_b3.linkage.rows import LossRegression, SuspiciousRow
from mlflow_b3.measurement.collecting import Measurement
from mlflow_b3.measurement.curve import FragmentLosses, LossCurve
from mlflow_b3.measurement.refits import Refits
from mlflow_b3.results import KEPT_APART, Finding, Result

if TYPE_CHECKING:
    from mlflow_b3.correlated.report import CvcReport


@dataclass(frozen=True, kw_only=True)
class Settings(Result):
    """What was audited and how; with the same data, folds and seed the numbers are the same.

    Attributes
    ----------
    model, uri, run_id, model_id
        The audited model, and where MLflow keeps it.
    model_digest : str or None
        Digest of its files as they were when it was loaded.
    refit : str
        The route by which it was trained again.
    refit_strength : {"full", "lower-bound"}
        Whether the refits show all of the bias, or part of the model kept what it learned from all
        rows, so that the losses on new clusters are lower bounds.
    refit_notes : tuple of str
        What was recovered of its training, and what was not.
    refit_options : dict
        The options given for it.
    refit_agreement : float or None
        How far a refit on all rows agrees with the logged model: the overlap of predicted
        probabilities, the share of equal labels, or of explained variance; None where they could
        not be compared.
    sample_weight : str or None
        The column that weighted the rows in training.
    task, loss, target, cluster, method, scheme : str
    pattern : {"rows", "fragments", "unknown"}
        How cluster ids go wrong, as far as the user said.
    fragments : str
        How clusters were broken on purpose, as the audit's argument of that name.
    claim : tuple of float or None
        The range of leakage given, in the units of the report's `p0_source`.
    claim_centre : float or None
        The value in that range which is most likely, where it is not the middle.
    p0_validation : float or None
        As given with `p0`; None means as many rows leak back as leak into training.
    folds_given : bool
        The folds came from a splitter or as lists of rows, which the report does not repeat.
    folds_digest : str
        Changes with any row of any fold: equal ones are the same folds of the same number of rows.
    rows_digest : str
        Changes with any target, cluster or order of rows, not with features: equal ones can be
        compared in pairs.
    n_validated : int
        Clusters with rows in a validation fold.
    repeats : int
        How many assignments of clusters the report's folds consist of.
    threshold_given : bool
        False when the report's threshold is the loss of the best constant prediction.
    seed : int
    fits : int
        Refits that were made, failed ones included.
    data_digest, version : str
    measured_at : str or None
        When the last refit ended, in UTC; None in reports of earlier versions.
    texts : tuple of str
        Columns that the model takes as text, and that were read from a .csv file as such.
    data_source : str or None
        The file that the table was read from; None for a table in memory. Equal tables make equal
        reports wherever they came from.
    method_options : dict
        The options of the method, with their values.
    n_repeated : int or None
        Clusters with two rows or more; None in reports of earlier versions.
    training_digest : str or None
        MLflow's own digest of the table, for comparison with the datasets that the model's run logged;
        None where the run logged none of this size.
    fold_threshold, purge_threshold : float or None
        Match probability from which rows of different clusters were kept in one fold, or training
        rows were left out because of the validation rows.
    n_train : int or None
        Rows of a resampled training set, where that was chosen; None for as many as the fold has.
    loss_ceiling : float or None
        For `squared` and `absolute`: the largest mean loss of predictions inside the range of the
        target. It limits intervals where all measured losses are below it.
    """

    model: str
    uri: str | None
    run_id: str | None
    model_id: str | None
    refit: str
    task: str
    loss: str
    loss_bound: float | None
    loss_floor: float | None
    target: str
    cluster: str
    features: tuple[str, ...]
    method: str
    scheme: str
    pattern: str
    claim: tuple[float, float] | None
    p0_validation: float | None
    folds_given: bool
    repeats: int
    threshold_given: bool
    seed: int
    fits: int
    n_rows: int
    n_clusters: int
    n_validated: int
    data_digest: str
    version: str
    folds_digest: str = ""
    rows_digest: str = ""
    data_source: str | None = field(default=None, compare=False)
    method_options: dict[str, Any] = field(default_factory=dict)
    fragments: str = "uniform"
    refit_strength: str = "full"
    refit_notes: tuple[str, ...] = ()
    refit_options: dict[str, Any] = field(default_factory=dict)
    refit_agreement: float | None = None
    sample_weight: str | None = None
    fold_threshold: float | None = None
    purge_threshold: float | None = None
    claim_centre: float | None = None
    model_digest: str | None = None
    measured_at: str | None = field(default=None, compare=False)
    texts: tuple[str, ...] = ()
    n_repeated: int | None = None
    training_digest: str | None = None
    n_train: int | None = None
    loss_ceiling: float | None = None

    @property
    def middle(self) -> float:
        """The leakage that e0 is given for, in the units of the claim; 0 without one."""
        if self.claim_centre is not None:
            return self.claim_centre
        return sum(self.claim) / 2 if self.claim else 0.0


@dataclass(frozen=True, kw_only=True)
class AuditReport(Result):
    """The answer of an audit: is the score inflated, by how much, and how sure is that.

    Attributes
    ----------
    e0 : float or None
        Loss on new clusters, bias-corrected; None when nothing is known about the leakage, or
        when it was to be bounded by the rows, or by linkage evidence, and the bound is vacuous.
    e0_interval : tuple of float, or of float and None
        95% interval of e0; over all cluster errors up to 50% when nothing is known. Over all
        leakage up to a limit of 95% confidence it holds with 90%. The upper end is None where
        the refits give lower bounds only (`settings.refit_strength`); then e0 and inflation are
        what shows of them, and tipping points are the latest possible ones. It is also None where
        evidence leaves open that all validation rows were seen and the loss has no largest value,
        and where it would be more than ten times the largest measured loss: then the extrapolation
        says nothing about it. It is at most the largest possible loss, or `settings.loss_ceiling`.
    e0_secant : float or None
        Lower limit of e0 (one-sided 95%) that holds if the loss curve is convex: a secant with its
        noise subtracted. None unless the measured curve supports convexity
        (`ShapeCheck.supports_convexity`), where nothing is known, and for pattern `fragments`.
        It is no guarantee: to the left of all levels nothing is measured.
    p0 : float or None
        The leaked share used: of training rows (rows), or of validation rows that have mates in
        training (fragments); the middle of a range.
    p0_source : {"p0", "cluster_error", "split_rate", "mixture", "none"}, or linkage evidence: \
            {"resolved_rows", "partition_samples", "linkage_quality", "match_probability", "match_column"}
    loco, loco_interval
        Loss on the folds by the noisy cluster ids, and its 95 % interval over clusters.
    iid : float
        Loss on folds that ignore clusters.
    inflation : float or None
        e0 - loco: how much too good the score by noisy cluster ids is.
    curve : LossCurve
    leaked, losses : tuple or None
        e_j for j leaked rows.
    residual : float or None
    shape : ShapeCheck
    search : P0Search
    sensitivity : Sensitivity
        Pattern `rows`, over the cluster error; with `settings.p0_validation` over p0, as no
        cluster error stands behind it then.
    fragments : FragmentLosses or None
    fragment_sensitivity : Sensitivity or None
        Pattern `fragments`, over the split rate; None when no cluster has two rows, or with
        `settings.n_train`.
    threshold : float or None
        The loss at which the model fails: given, or that of the best constant prediction.
    constant_loss : float or None
        The loss of the best constant prediction; None for losses whose best constant is not known.
    tipping_p0, tipping_cluster_error, tipping_split_rate : float or None
        The smallest values at which e0 reaches the threshold; None when it does not by 50 %
        (rows) or below 100 % (split rate). There is no cluster error with
        `settings.p0_validation`.
    test : LeakageTest
    folds : tuple of FoldSummary
    findings : tuple of Finding
    settings : Settings
    accurate : bool
        False when a solver's result could not be confirmed.
    sketch_error : float or None
        For the method `sketch`: a bound on the error of sketching as a multiple of e_0.
    distribution : LossDistribution or None
        Where it was asked for: how the losses of rows of new clusters are distributed.
    cvc : CvcReport or None
        With the method "cvc": ordinary cross-validation with its bias added back.
    p0_bound : P0Bound or None
        The upper bound on p0 that the rows themselves give; None when the leakage was given.
    linkage : LeakEstimate or None
        What linkage evidence says about the leak shares of these folds, where it was given.
    suspicious : tuple of SuspiciousRow
        The rows that are most likely leaked and make the score look better, where the evidence
        tells rows apart.
    regression : LossRegression or None
        The loss regressed on the rows' leak probability: a check of e0 that needs no refits.
    path : ExtrapolationPath or None
        For pattern `rows`: the loss curve extrapolated to the point without leakage.
    readings : tuple of Reading
        e0 at the ends and in the middle of what is known about the leakage.
    refits : Refits or None
        How the refits went: how many failed and why, and whether the user stopped them early; None
        in reports of earlier versions.
    e0_guaranteed : float or None
        In records of earlier versions only: the secant without its noise subtracted, and without a
        test that supports convexity. It was above the loss on new clusters in a third of audits.
    influence : Influence or None
        How far each cluster moves the scores, for comparing audits of the same clusters. Like
        `splits` it is kept in a table of its own.
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
    """

    e0: float | None
    e0_interval: tuple[float, float | None]
    e0_secant: float | None
    p0: float | None
    p0_source: str
    loco: float
    loco_interval: tuple[float, float]
    iid: float
    inflation: float | None
    curve: LossCurve
    leaked: tuple[int, ...] | None
    losses: tuple[float, ...] | None
    residual: float | None
    shape: ShapeCheck
    search: P0Search
    sensitivity: Sensitivity
    fragments: FragmentLosses | None
    fragment_sensitivity: Sensitivity | None
    threshold: float | None
    tipping_p0: float | None
    tipping_cluster_error: float | None
    tipping_split_rate: float | None
    test: LeakageTest
    folds: tuple[FoldSummary, ...]
    findings: tuple[Finding, ...]
    settings: Settings
    accurate: bool = True
    sketch_error: float | None = None
    distribution: LossDistribution | None = None
    cvc: "CvcReport | None" = None
    p0_bound: P0Bound | None = None
    linkage: LeakEstimate | None = None
    suspicious: tuple[SuspiciousRow, ...] = ()
    regression: LossRegression | None = None
    path: ExtrapolationPath | None = None
    readings: tuple[Reading, ...] = ()
    constant_loss: float | None = None
    refits: Refits | None = None
    e0_guaranteed: float | None = None
    influence: Influence | None = field(
        default=None, compare=False, repr=False, metadata=KEPT_APART
    )
    splits: tuple[Fold, ...] | None = field(
        default=None, compare=False, repr=False, metadata=KEPT_APART
    )
    measurements: Measurement | None = field(
        default=None, compare=False, repr=False, metadata=KEPT_APART
    )

    def to_dict(self) -> dict[str, Any]:
        """Return the report as dictionaries, lists, strings, numbers, booleans and None."""
        values = super().to_dict()
        if self.e0_guaranteed is None:  # records of earlier versions only have it
            del values["e0_guaranteed"]
        return values

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """Build the report from what `to_dict` returned, in this version or an earlier one."""
        if isinstance(values, dict) and "e0_guaranteed" in values:
            values = {"e0_secant": None, **values}
        return super().from_dict(values)

    @classmethod
    def _field_types(cls) -> dict[str, Any]:
        """Return the types of the fields, those of extensions included."""
        return get_type_hints(cls, localns={"CvcReport": extension_report("cvc")})

    @cached_property
    def leakage(self) -> Leakage:
        """What was known about the leakage."""
        settings = self.settings
        return recorded_leakage(
            pattern=settings.pattern,
            source=self.p0_source,
            claim=settings.claim,
            centre=settings.claim_centre,
            p0_validation=settings.p0_validation,
            leak=self.linkage,
            bound=self.p0_bound,
        )

    @property
    def extensions(self) -> tuple[ExtensionReport, ...]:
        """What methods have added to e0."""
        return () if self.cvc is None else (self.cvc,)

    @property
    def partial(self) -> bool:
        """Whether the user stopped the audit, so that its numbers rest on a part of its refits."""
        return self.refits is not None and self.refits.partial

    def __str__(self) -> str:
        """Return the report in plain words."""
        from mlflow_b3.reporting.pages import to_text

        return to_text(self)

    def to_html(self, path: str | PathLike[str] | None = None) -> str:
        """Return the report as one HTML page that needs nothing else, and write it to a file.

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
