"""`CvcReport`: cross-validation, its bias under correlation, and the corrected loss."""

import dataclasses
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from scipy import stats

from mlflow_b3.auditing.extension import LimitedScore, NamedCurve
from mlflow_b3.correlated.structure import Array, Codes, Level, WorkingModel
from mlflow_b3.data.scores import is_greater_better
from mlflow_b3.estimation.bounds import CONFIDENCE
from mlflow_b3.measurement.collecting import by_unit, robust_covariance
from mlflow_b3.measurement.refits import Refits
from mlflow_b3.results import KEPT_APART, Finding, Result

# --- `CvcReport`: cross-validation, its bias under correlation, and the corrected loss

Interval = tuple[float, float]
#: How the names of losses begin that are 1 - score.
_LESS = "1 - "
#: Findings with which no correction is given.
WITHHELD = ("B331", "B332", "B333", "B334", "B342", "B350")
#: The variance between fewer groups than this is estimated badly.
FEW_GROUPS = 20


@dataclass(frozen=True, kw_only=True)
class GroupLevel(Result):
    """A grouping factor as the report shows it.

    Attributes
    ----------
    name : str
        The column.
    groups : int
        Number of groups.
    new : bool
        Whether the model will be used on new groups; otherwise on groups that it has seen.
    sd : float or None
        Standard deviation of its random intercept, on the log odds scale for classes; None if it
        could not be estimated, or for regions of a field.
    interval : tuple of float or None
        95% interval of `sd` by the profile likelihood.
    nested : bool
        Whether each of its groups lies within one group of the level that grouped cross-validation
        leaves out, so that those folds keep it whole too.
    """

    name: str
    groups: int
    new: bool
    sd: float | None = None
    interval: Interval | None = None
    nested: bool = False


@dataclass(frozen=True, kw_only=True)
class SpatialField(Result):
    """A random field as the report shows it.

    Attributes
    ----------
    coordinates : tuple of str
        The columns.
    sd, reach : float
        σ and r of the kernel σ² exp(-d/r), or σ² exp(-(d/r)²).
    interval : tuple of float
        95% interval of σ.
    across : float
        Mean covariance of rows in different regions, which new regions share.
    kernel : {"exponential", "gaussian"}
    """

    coordinates: tuple[str, ...]
    sd: float
    reach: float
    interval: Interval
    across: float
    kernel: str = "exponential"


@dataclass(frozen=True, kw_only=True)
class SlopeLimit(Result):
    """The smallest random slopes of a feature that the check for them would have found.

    Attributes
    ----------
    level, feature : str
        The columns with the groups and with the feature.
    sd : float or None
        The standard deviation of the feature's slopes between groups that is found in 80% of tables like
        this one, if no other feature has random slopes: in units of the target, or log odds for classes,
        for each standard deviation of the feature within groups. None if slopes of no size would be
        found so often, or if groups or their rows are too few for the check.
    bias : float or None
        By how much the correction would be too small with slopes of this standard deviation, to first
        order; None if `sd` is None or the correction is withheld.
    """

    level: str
    feature: str
    sd: float | None = None
    bias: float | None = None


@dataclass(frozen=True, kw_only=True, repr=False)
class CvcReport(Result):
    """The loss by cross-validation, corrected for what validation rows share with training rows.

    CV_c = CV + w, with w the loss of the same learner where test rows depend on training rows as they
    will in use, less its cross-validated loss, both in a simulated world (Yuval and Rosset, AISTATS
    2025).

    For a score of which more is better, such as the AUC, all of it is in that score's units: w is then
    usually negative.

    Attributes
    ----------
    cv : float
        Mean loss of all rows, each from a model that was trained without its fold; for the AUC, the mean
        over folds.
    cv_interval : tuple of float
        95% interval, over groups, of the loss that cross-validation estimates, bias included.
    cvc : float or None
        CV + w; None if it is withheld, for a reason that the findings name.
    bias : float or None
        w: by how much the cross-validated loss is too small, or the score too large if w is negative.
    bias_interval : tuple of float or None
        95% interval of w over the variance components and the simulation.
    bias_error : float or None
        Standard error of w by the number of draws alone.
    interval : tuple of float or None
        95% interval of CV_c.
    grouped : float or None
        Loss by folds of whole groups of the first of the new levels; None if one of them has no AUC.
    grouped_interval : tuple of float or None
        95% interval over groups.
    grouped_by : str or None
        The level whose groups stay whole.
    groups : tuple of GroupLevel
    field : SpatialField or None
    loss, task : str
        The loss, or the score.
    engine : {"fast", "joint", "full", "hot", "last_layer"}
        How the learner's part in the simulated world was computed.
    lower_quality : bool
        Whether the engine is an approximation that is known to miss part of the bias, or to exceed it.
    working : {"score", "glmm", "given"}
        Where the fixed part of the simulated world comes from.
    slope : float or None
        Slope of the recalibrated score in it; 1 for a well-calibrated score.
    classes : int
        Number of classes, if there are more than two.
    folds : int
        Number of folds of the cross-validation.
    draws : int
        Number of simulated samples.
    n_rows : int
    seed : int
    multipliers, sensitivity : tuple of float
        CV_c if all standard deviations were these multiples of their estimates.
    slopes : tuple of SlopeLimit
        The random slopes that the check would have found; empty if slopes were found, or not checked.
    refits : Refits or None
    findings : tuple of Finding
    settings : dict
        Its inputs: model, target, digests of rows and folds.
    model : WorkingModel or None
        The simulated world, to be given to `cvc` of another candidate as `working`.
    row_losses : array or None
        The cross-validated loss of each row.

    Examples
    --------
    >>> import mlflow_b3 as b3
    >>> from sklearn.naive_bayes import GaussianNB
    >>> clinic = b3.make_clinic(patients=20, records=4)
    >>> report = b3.cvc(GaussianNB(), clinic.frame, target="disease", groups=["patient_id"], draws=20)
    >>> report.n_rows, report.folds, [level.name for level in report.groups]
    (80, 10, ['patient_id'])
    """

    METRICS: ClassVar[tuple[str, ...]] = ("cvc", "cvc_low", "cvc_high", "cvc_bias", "cvc_grouped")

    cv: float
    cv_interval: Interval
    cvc: float | None
    bias: float | None
    bias_interval: Interval | None
    bias_error: float | None
    interval: Interval | None
    grouped: float | None
    grouped_interval: Interval | None
    grouped_by: str | None
    groups: tuple[GroupLevel, ...]
    loss: str
    task: str
    engine: str
    working: str
    folds: int
    draws: int
    n_rows: int
    seed: int
    field: SpatialField | None = None
    lower_quality: bool = False
    slope: float | None = None
    classes: int = 2
    multipliers: tuple[float, ...] = ()
    sensitivity: tuple[float, ...] = ()
    slopes: tuple[SlopeLimit, ...] = ()
    refits: Refits | None = None
    findings: tuple[Finding, ...] = ()
    settings: dict[str, Any] = dataclasses.field(default_factory=dict)
    model: WorkingModel | None = dataclasses.field(
        default=None, repr=False, compare=False, metadata=KEPT_APART
    )
    row_losses: Any = dataclasses.field(
        default=None, repr=False, compare=False, metadata=KEPT_APART
    )

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain values; without `slopes` and `classes` if they say nothing."""
        values = super().to_dict()
        if not self.slopes:
            del values["slopes"]
        if self.classes == 2:
            del values["classes"]
        return values

    @property
    def greater_is_better(self) -> bool:
        """Whether more is better."""
        return is_greater_better(self.loss)

    @property
    def as_losses(self) -> "CvcReport":
        """The report with 1 - score in place of a score of which more is better; else itself."""
        return self.turned() if self.greater_is_better else self

    @property
    def as_shown(self) -> "CvcReport":
        """The report with the score in place of 1 - score; else itself."""
        return self.turned() if self.loss.startswith(_LESS) else self

    def turned(self) -> "CvcReport":
        """Return the report with 1 - score in place of the score, or the other way round."""
        name = self.loss
        return dataclasses.replace(
            self,
            loss=name.removeprefix(_LESS) if name.startswith(_LESS) else _LESS + name,
            cv=1 - self.cv,
            cv_interval=_turned_ends(self.cv_interval),
            cvc=None if self.cvc is None else 1 - self.cvc,
            bias=None if self.bias is None else -self.bias,
            bias_interval=self.bias_interval and (-self.bias_interval[1], -self.bias_interval[0]),
            interval=self.interval and _turned_ends(self.interval),
            grouped=None if self.grouped is None else 1 - self.grouped,
            grouped_interval=self.grouped_interval and _turned_ends(self.grouped_interval),
            sensitivity=tuple(1 - value for value in self.sensitivity),
        )

    @property
    def new(self) -> tuple[str, ...]:
        """The levels of which the model will meet new groups."""
        return tuple(group.name for group in self.groups if group.new)

    def __str__(self) -> str:
        """Return the report in plain words."""
        from mlflow_b3.reporting.cvc import cvc_text

        return cvc_text(self)

    def __repr__(self) -> str:
        """Return the scores on one line."""
        from mlflow_b3.reporting.cvc import cvc_repr

        return cvc_repr(self)

    def _repr_html_(self) -> str:
        """Return the scores as a card, for notebooks."""
        from mlflow_b3.reporting.cvc import cvc_card

        return cvc_card(self)

    # --- As a part of an audit's report: an `ExtensionReport`

    def is_approximate(self, strength: str) -> bool:
        """Whether CV_c may miss part of the bias, because of its engine or of how the model is refitted."""
        return self.lower_quality or strength != "full"

    def metrics(self, strength: str) -> dict[str, float | None]:
        """Return the metrics to record, in the order of `METRICS`."""
        scores = (self.cvc, *(self.interval or (None, None)))
        if self.is_approximate(strength):
            # a value that misses part of the bias must not meet a threshold on CV_c
            scores = (None, None, None)
        return dict(zip(self.METRICS, (*scores, self.bias, self.grouped), strict=True))

    def parameters(self) -> dict[str, str]:
        """Return how cross-validation was corrected."""
        return {
            "cvc_groups": ", ".join(group.name for group in self.groups),
            "cvc_new": ", ".join(self.new) or "none",
            "cvc_coordinates": "" if self.field is None else ", ".join(self.field.coordinates),
            "cvc_engine": self.engine,
            "cvc_working": self.working,
            "cvc_draws": str(self.draws),
        }

    def curve(self) -> NamedCurve:
        """Return CV_c at multiples of the standard deviations."""
        return NamedCurve(name="cvc", axis="sd_multiplier", x=self.multipliers, y=self.sensitivity)

    def limited(self, strength: str) -> LimitedScore:
        """Return CV_c for the limit of a gate: it covers other leaks than e0."""
        codes = ", ".join(dict.fromkeys(finding.code for finding in self.findings))
        why = f"; the findings say why: {codes}" if codes else ""
        approximate = (
            f"CV_c by the engine {self.engine!r} is an approximation that may miss part of the bias"
        )
        return LimitedScore(
            name="CV_c",
            checks=("cvc_low" if self.greater_is_better else "cvc_high", "cvc_constant"),
            value=self.cvc,
            interval=self.interval,
            withheld=f"CV_c, or its interval, is withheld{why}",
            approximate=approximate if self.is_approximate(strength) else "",
            greater=self.greater_is_better,
        )

    def sums(self) -> dict[str, tuple[float | None, float | None]]:
        """Return CV_c, and the sum that it must equal."""
        return {"cvc": (self.cvc, None if self.cvc is None else self.cv + (self.bias or 0))}

    def options_to_share(self, report: Any) -> dict[str, Any]:
        """Return the option that lets another audit share the simulated world of this one."""
        return {} if self.cvc is None else {"working": report}


def _turned_ends(ends: Interval) -> Interval:
    return 1 - ends[1], 1 - ends[0]


# --- The uncertainty of a mean loss if rows of one group are correlated


def group_influence(losses: Array, codes: Codes) -> Array:
    """Return the contribution of each group to the error of the mean loss: Σ_i∈g (l_i - l̄)/n."""
    deviations = (losses - losses.mean()) / len(losses)
    return by_unit(deviations[:, None], codes, int(codes.max()) + 1)[:, 0]


def group_reach(losses: Array, levels: tuple[Level, ...]) -> float:
    """Return half the width of a 95% interval of a mean loss.

    It is the widest interval over all levels, with a variance that is robust to correlation within
    groups and Student's t with one degree of freedom less than groups.
    """
    reaches = []
    for level in levels:
        influence = group_influence(losses, level.codes)
        variance = float(robust_covariance(influence[:, None])[0, 0])
        quantile = float(stats.t.ppf((1 + CONFIDENCE) / 2, max(1, len(influence) - 1)))
        reaches.append(quantile * np.sqrt(variance))
    return float(max(reaches))
