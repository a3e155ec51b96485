"""How far each cluster moves e_0: what two audits of the same clusters need to be compared."""

from dataclasses import dataclass, replace
from io import StringIO

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from mlflow_b3.errors import InputError
from mlflow_b3.estimation.methods import Method, fit_curve
from mlflow_b3.estimation.published import PublishedFit
from mlflow_b3.estimation.unmixing import Extrapolation
from mlflow_b3.results import Result

Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Reading(Result):
    """e_0 at one value of the leakage.

    Attributes
    ----------
    leakage : float
        In the units of the claim: cluster error, split rate, p0 or seen share.
    e0, low, high : float
        With its 95 % interval at this value.
    noise : float
        Standard error of e_0 that has nothing to do with which clusters were drawn: refits, and
        which rows happened to leak.
    """

    leakage: float
    e0: float
    low: float
    high: float
    noise: float


@dataclass(frozen=True, kw_only=True, eq=False)
class Influence:
    """What each cluster adds to the error of the scores, to first order.

    Attributes
    ----------
    unit : {"clusters", "rows"}
        Rows, where clusters are too few.
    ids : array of int
        Clusters by the order in which they first occur in the table, or rows by their number.
    share : array
        w: the share of the validated rows that each unit has.
    loco : array
        ψ of the score by noisy ids, one for each unit.
    e0 : array
        ψ of e_0, a column for each reading.
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
        """Return a table with a line for each unit."""
        columns = {self.unit: self.ids, "share": self.share, "loco": self.loco}
        if self.cv is not None:
            columns["cv"] = self.cv
        columns |= {f"e0_{n + 1}": column for n, column in enumerate(self.e0.T)}
        return pd.DataFrame(columns).to_csv(index=False, lineterminator="\n")

    @classmethod
    def from_csv(cls, text: str) -> "Influence":
        """Read what `to_csv` returned."""
        cells = pd.read_csv(StringIO(text), dtype=str, keep_default_na=False)
        # Python reads every digit; what pandas does by default may differ in the last one
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
    """Return ψ_g = Σ_l (∂e_0/∂ℓ_l)·d_gl, with d_gl what unit g adds to the loss ℓ_V at level l.

    Parameters
    ----------
    problem : Extrapolation
    gradient : array
        As `curve_gradient` returns it.
    units : array
        What each unit adds to the losses on V̂ at every level and, behind them, on T̂.
    """
    levels = len(problem.loss)
    own = problem.own * units[:, :levels] - problem.other * units[:, levels:]
    return np.asarray(own @ gradient)


def curve_gradient(problem: Extrapolation, method: Method) -> Array:
    """Return ∂e_0/∂ℓ_l for each level l.

    The papers' methods give it themselves. For `power` it is a central difference over one standard
    error of the refits at each level, because the average over curves is not linear in the losses.
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
