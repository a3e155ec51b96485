"""The influence of each cluster on e_0, and the interval of a difference of two audits."""

import math
from dataclasses import dataclass, replace
from io import StringIO

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats

from mlflow_b3.errors import InputError
from mlflow_b3.estimation.bounds import CONFIDENCE
from mlflow_b3.estimation.estimate import Method, fit_curve
from mlflow_b3.estimation.problem import Extrapolation
from mlflow_b3.estimation.published import PublishedFit
from mlflow_b3.measurement.collecting import CORRELATED_ERRORS
from mlflow_b3.results import Result

# --- The influence of each cluster on e_0, needed to compare two audits of the same clusters

Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Reading(Result):
    """e_0 at one value of the leakage.

    Attributes
    ----------
    leakage : float
        In the units of the claim: cluster error, split rate, p0 or seen share.
    e0, low, high : float
        e_0 at this value, and its 95% interval.
    noise : float
        Standard error of e_0 that does not depend on which clusters were sampled: from refits and
        from which rows happened to leak.
    """

    leakage: float
    e0: float
    low: float
    high: float
    noise: float


@dataclass(frozen=True, kw_only=True, eq=False)
class Influence:
    """The first-order contribution of each cluster to the error of the scores.

    Attributes
    ----------
    unit : {"clusters", "rows"}
        "rows" if there are too few clusters.
    ids : array of int
        Clusters numbered in order of first occurrence in the table, or row numbers.
    share : array
        w: each unit's share of the validated rows.
    loco : array
        ψ of the score with noisy ids, one value for each unit.
    e0 : array
        ψ of e_0, one column for each reading.
    cv : array or None
        ψ of the cross-validated loss that CV_c corrects; None without CV_c, and in older tables.
    """

    unit: str
    ids: NDArray[np.intp]
    share: Array
    loco: Array
    e0: Array
    cv: Array | None = None

    def to_csv(self) -> str:
        """Return the table as CSV text, one line for each unit."""
        columns = {self.unit: self.ids, "share": self.share, "loco": self.loco}
        if self.cv is not None:
            columns["cv"] = self.cv
        columns |= {f"e0_{n + 1}": column for n, column in enumerate(self.e0.T)}
        return pd.DataFrame(columns).to_csv(index=False, lineterminator="\n")

    @classmethod
    def from_csv(cls, text: str) -> "Influence":
        """Parse the text that `to_csv` returned."""
        cells = pd.read_csv(StringIO(text), dtype=str, keep_default_na=False)
        # Python's parser is exact; the default parser of pandas may differ in the last digit
        numbers = np.array(cells.replace("", "nan").to_numpy(dtype=object), dtype=float)
        frame = pd.DataFrame(numbers, columns=cells.columns)
        unit, *scores = map(str, frame.columns)
        readings = [name for name in scores[2:] if name != "cv"]
        if unit not in ("clusters", "rows") or scores[:2] != ["share", "loco"]:
            raise InputError(
                f"influence.csv has the columns {', '.join(map(str, frame.columns))}; it must begin "
                "with clusters or rows, share and loco. Audit the model again."
            )
        if not np.isfinite(numbers).all():
            raise InputError("influence.csv has cells without a number. Audit the model again.")
        return cls(
            unit=unit,
            ids=frame[unit].to_numpy(dtype=np.intp),
            share=frame["share"].to_numpy(dtype=float),
            loco=frame["loco"].to_numpy(dtype=float),
            e0=frame[readings].to_numpy(dtype=float).reshape(len(frame), len(readings)),
            cv=frame["cv"].to_numpy(dtype=float) if "cv" in scores else None,
        )


def curve_influence(problem: Extrapolation, gradient: Array, units: Array) -> Array:
    """Return ψ_g = Σ_l (∂e_0/∂ℓ_l)·d_gl, where d_gl is the part of unit g in the loss ℓ_V at level l.

    Parameters
    ----------
    problem : Extrapolation
    gradient : array
        The result of `curve_gradient`.
    units : array
        The contribution of each unit to the losses on V̂ at every level, followed by those on T̂.
    """
    levels = len(problem.loss)
    own = problem.own * units[:, :levels] - problem.other * units[:, levels:]
    return np.asarray(own @ gradient)


def curve_gradient(problem: Extrapolation, method: Method) -> Array:
    """Return ∂e_0/∂ℓ_l for each level l.

    The papers' methods provide it. For `power` it is a central difference over one standard error of
    the refits at each level, because the average over curves is not linear in the losses.
    """
    if method.name != "power":
        fit = fit_curve(problem, method)
        assert isinstance(fit, PublishedFit)
        return fit.reads
    slopes = []
    for level, step in enumerate(problem.stderr):
        ends = []
        for sign in (1, -1):
            loss = problem.loss.copy()
            loss[level] += sign * step
            ends.append(fit_curve(replace(problem, loss=loss), method).e0)
        slopes.append((ends[0] - ends[1]) / (2 * step))
    return np.array(slopes)


# --- The interval of a difference between two estimates that share part of their noise


@dataclass(frozen=True, kw_only=True, eq=False)
class Uncertain:
    """An estimate with its 95% interval and the sources of its noise.

    Attributes
    ----------
    value, low, high : float
    freedom : float
        Degrees of freedom of its noise.
    noise : float
        Standard error of the noise that it shares with no other estimate.
    influence : array or None
        ψ: the contribution of each cluster to its error, corrected by `corrected_influence`; None
        if unknown.
    """

    value: float
    low: float
    high: float
    freedom: float
    noise: float = 0.0
    influence: Array | None = None

    @property
    def variance(self) -> float:
        """Variance over clusters plus that of its own noise."""
        return self.noise**2 + _covariance(self, self)


def corrected_influence(influence: Array, shares: Array) -> Array:
    """Return ψ_g/√(1 - w_g), where w_g is the share of rows in cluster g.

    A cluster pulls the mean towards itself, so on average its deviation is too small by √(1 - w_g)
    (CR2, doi:10.1080/07350015.2016.1247004).
    """
    return np.asarray(influence / np.sqrt(1 - shares))


def effective_freedom(shares: Array) -> float:
    """Return the degrees of freedom of a variance over clusters of unequal size.

    They are those of Bell and McCaffrey for the mean over rows (doi:10.1162/REST_a_00552). With w_g
    the share of rows in cluster g, and c_g² = w_g²/(1 - w_g), they are

        1 / (Σ_g w_g² + (Σ_g c_g²)² - Σ_g c_g⁴),

    which equals G - 1 for G equal clusters, and is less if a few clusters hold many rows.
    """
    squares = shares**2 / (1 - shares)
    return float(1 / ((shares**2).sum() + squares.sum() ** 2 - (squares**2).sum()))


def difference_interval(
    a: Uncertain, b: Uncertain, *, paired: bool, pairs: int = 1
) -> tuple[float, float]:
    """Return the interval of a - b.

    Let w be the distance from an estimate to the relevant end of its interval, t·s the part of it
    that is noise of clusters and refits, and ρ the correlation of the two estimates. Then

        lower = a - b - √(w_a² + w_b² - 2ρ·n_a·n_b),   n = min(w, t·s),

    and likewise for the upper end. Only noise is treated as shared; what extrapolation adds to
    either interval is not. The root is at least that of the noise alone, with n = w = t·s.

    Parameters
    ----------
    a, b : Uncertain
    paired : bool
        Whether their influences are of the same clusters; otherwise ρ = 0.
    pairs : int
        Number of differences whose intervals should hold simultaneously (Bonferroni).

    Notes
    -----
    The table shows false differences between two equally good models, in per cent of 8000 simulated
    comparisons each (Monte-Carlo error at most 0.5 before, 0.25 here). Losses differ more between
    clusters than within. "Before" is G/(G-1)·Σψ² with G - 1 degrees of freedom. Clusters are
    independent in the simulation, so the factor 1.4 for cross-validation leads to 2 instead of 5.

    ===========================================  ======  =====
    clusters                                     before  here
    ===========================================  ======  =====
    12 or 40, equal                              2.2     2.2
    12, one with half of the rows                11.3    2.4
    30, one with half of the rows                16.7    2.1
    30, one with a fifth                         3.4     2.4
    30, two with a third each                    21.7    4.5
    30, log-normal sizes, σ = 1                  4.5     3.0
    30, log-normal sizes, σ = 1.5                10.8    3.4
    100, geometric sizes, 8 rows on average      2.3     2.2
    ===========================================  ======  =====

    References
    ----------
    .. [1] Zou, G. Y. and Donner, A. (2008). Construction of confidence limits about effect
       measures: a general approach. Statistics in Medicine 27(10). doi:10.1002/sim.3095.
    .. [2] Imbens, G. W. and Kolesár, M. (2016). Robust standard errors in small samples: some
       practical advice. Review of Economics and Statistics 98(4). doi:10.1162/REST_a_00552.
    """
    gap = a.value - b.value
    alone, noises = [], []
    for estimate in (a, b):
        quantile = _quantile(estimate.freedom, pairs)
        alone.append(quantile / _quantile(estimate.freedom, 1))
        noises.append(quantile * math.sqrt(estimate.variance))
    scale = math.sqrt(a.variance * b.variance)
    correlation = _covariance(a, b) / scale if paired and scale > 0 else 0.0

    def root(widths: list[float], shared: list[float]) -> float:
        square = widths[0] ** 2 + widths[1] ** 2 - 2 * correlation * shared[0] * shared[1]
        return math.sqrt(max(0.0, square))

    def reach(*distances: float) -> float:
        widths = [factor * distance for factor, distance in zip(alone, distances, strict=True)]
        return max(root(widths, list(map(min, widths, noises))), root(noises, noises))

    return (
        gap - reach(a.value - a.low, b.high - b.value),
        gap + reach(a.high - a.value, b.value - b.low),
    )


def _quantile(freedom: float, pairs: int) -> float:
    return float(stats.t.ppf(1 - (1 - CONFIDENCE) / 2 / pairs, freedom))


def _covariance(a: Uncertain, b: Uncertain) -> float:
    """Return the covariance of two estimates over clusters."""
    if a.influence is None or b.influence is None:
        return 0.0
    return CORRELATED_ERRORS * float(a.influence @ b.influence)
