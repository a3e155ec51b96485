"""The loss on new entities from losses and leak probabilities alone, with its assumption tested."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from mlflow_b3.errors import InputError
from mlflow_b3.linkage.splits import Floats, Rows, as_codes
from mlflow_b3.results import Result

LEVEL = 0.95
#: From this chance level down the assumption counts as refuted.
ALPHA = 0.05
FEWEST_CLUSTERS = 10


@dataclass(frozen=True, kw_only=True)
class LossRegression(Result):
    """Loss against leak probability, one value for each validated row.

    Attributes
    ----------
    e0, e_seen : float
        Mean loss of rows without and with a mate in training.
    gap : float
        e0 - e_seen: what a seen entity gains.
    e0_stderr, e_seen_stderr, gap_stderr : float
        Clusters are what varies.
    interval : tuple of float
        95 % for e0.
    mean_loss : float
        What the leaked score says.
    n, n_clusters : int
        Rows and clusters.
    control : float or None
        Change of the loss from probable mates that were validated together with the row and so
        leaked nothing: 0 when the assumption holds. None when no control was given.
    curvature : float or None
        Coefficient of r²: 0 when the assumption holds. None when r only takes two values.
    assumption_pvalue : float or None
        Of both being 0; None when nothing could be tested.
    holds : bool or None
        Whether the assumption survived its test at 5 %.
    calibrated : bool
        Whether the leak probabilities were checked.
    statement : str
        The result in words.
    """

    e0: float
    e_seen: float
    gap: float
    e0_stderr: float
    e_seen_stderr: float
    gap_stderr: float
    interval: tuple[float, float]
    mean_loss: float
    n: int
    n_clusters: int
    control: float | None
    curvature: float | None
    assumption_pvalue: float | None
    holds: bool | None
    calibrated: bool
    statement: str


def loss_regression(
    losses: Any,
    leak_probability: Any,
    clusters: Any,
    *,
    control: Any = None,
    calibrated: bool = True,
) -> LossRegression:
    """Return the mean loss of rows without mates in training: the intercept of loss on r.

    Parameters
    ----------
    losses : array of float
        Loss of each row when it was validated.
    leak_probability : array of float
        r_j, calibrated: the `row_probability` of `leak_from_recalibrated_pairs`, or 0 and 1 for
        the resolved rows of a sample, with and without mates in training.
    clusters : sequence
        The cluster of each row, for the standard errors. Groups that keep probable mates together
        (`safe_groups`) are more honest than predicted clusters.
    control : array of float, optional
        `row_leak_probability(..., same_side=True)` with the same probabilities.
    calibrated : bool
        Whether somebody checked the leak probabilities. With unchecked ones e0 is not to be relied
        on, and the result says so.

    Notes
    -----
    If a row's loss depends on its record only through whether it leaked,

        E[loss_j | r_j] = (1 - r_j)·e_0 + r_j·e_seen,

    a line that is e_0 at r = 0. No leak share is needed, and no refits: an independent check of the
    audit's e_0. Standard errors allow for clusters (Liang and Zeger, doi:10.1093/biomet/73.1.13,
    with the factor G/(G-1)·(n-1)/(n-k)); intervals use t with G - 1 degrees of freedom.

    The assumption fails when poor records, which linkage tends to split, are also hard to predict;
    then e_0 is off by the difference in difficulty. Two things show it: rows with a probable mate
    in *their own* fold are split records too but saw nothing in training, so that the coefficient
    of `control` is 0 under the assumption; and the line has no curvature in r. Both are tested
    together, by a Wald test against F(q, G-1). Where r is 0 or 1 only the control can tell.
    """
    y, r, other, codes = _checked(losses, leak_probability, clusters, control)
    n_clusters = int(codes.max()) + 1
    line = np.column_stack([np.ones_like(r), r])
    (e0, slope), covariance = _fit(line, y, codes)
    to_seen = np.array([1.0, 1.0])
    stderr = float(np.sqrt(covariance[0, 0]))
    reach = float(stats.t.ppf((1 + LEVEL) / 2, n_clusters - 1)) * stderr
    effects, pvalue = _assumption(line, y, codes, r, other)
    holds = None if pvalue is None else pvalue >= ALPHA
    return LossRegression(
        e0=float(e0),
        e_seen=float(e0 + slope),
        gap=float(-slope),
        e0_stderr=stderr,
        e_seen_stderr=float(np.sqrt(to_seen @ covariance @ to_seen)),
        gap_stderr=float(np.sqrt(covariance[1, 1])),
        interval=(float(e0) - reach, float(e0) + reach),
        mean_loss=float(y.mean()),
        n=len(y),
        n_clusters=n_clusters,
        control=effects.get("control"),
        curvature=effects.get("curvature"),
        assumption_pvalue=pvalue,
        holds=holds,
        calibrated=calibrated,
        statement=_statement(float(e0), reach, float(y.mean()), pvalue, calibrated),
    )


def _checked(
    losses: Any, leak_probability: Any, clusters: Any, control: Any
) -> tuple[Floats, Floats, Floats | None, Rows]:
    y = np.asarray(losses, dtype=float)
    if y.ndim != 1 or not len(y):
        raise InputError("losses must hold one number for each row.")
    codes = as_codes("clusters", clusters, len(y))
    problems = []
    if not np.isfinite(y).all():
        problems.append(f"{int((~np.isfinite(y)).sum())} losses are missing or infinite.")
    r = np.asarray(leak_probability, dtype=float)
    other = None if control is None else np.asarray(control, dtype=float)
    for name, values in (("leak_probability", r), ("control", other)):
        if values is None:
            continue
        if values.shape != y.shape:
            problems.append(f"{name} has {values.shape} values; there are {len(y)} losses.")
        elif not ((values >= 0) & (values <= 1)).all():
            problems.append(f"{name} must lie in [0, 1] everywhere.")
    if not problems and np.ptp(r) == 0:
        problems.append(f"leak_probability is {r[0]:g} for every row; it must vary.")
    if codes.max() + 1 < FEWEST_CLUSTERS:
        problems.append(f"{codes.max() + 1} clusters; at least {FEWEST_CLUSTERS} are needed.")
    if problems:
        raise InputError.from_problems("loss_regression", problems)
    return y, r, other, codes


def _assumption(
    line: Floats, y: Floats, codes: Rows, r: Floats, other: Floats | None
) -> tuple[dict[str, float], float | None]:
    """Return what should be 0, and the chance of seeing that much if it is."""
    extra = {}
    if other is not None and np.ptp(other) > 0:
        extra["control"] = other
    if len(np.unique(r)) > 2:
        extra["curvature"] = r**2
    names = [name for name, column in extra.items() if _adds(line, column)]
    if not names:
        return {}, None
    design = np.column_stack([line, *(extra[name] for name in names)])
    if np.linalg.matrix_rank(design) < design.shape[1]:
        return {}, None
    coefficients, covariance = _fit(design, y, codes)
    tested, spread = coefficients[2:], covariance[2:, 2:]
    wald = float(tested @ np.linalg.pinv(spread) @ tested) / len(names)
    pvalue = float(stats.f.sf(wald, len(names), int(codes.max())))
    return dict(zip(names, tested.tolist(), strict=True)), pvalue


def _adds(design: Floats, column: Floats) -> bool:
    rest = column - design @ np.linalg.lstsq(design, column, rcond=None)[0]
    return bool(np.linalg.norm(rest) > 1e-9 * np.linalg.norm(column))


def _fit(design: Floats, y: Floats, codes: Rows) -> tuple[Floats, Floats]:
    """Return least squares and their covariance when rows of a cluster go together."""
    bread: NDArray[Any] = np.linalg.inv(design.T @ design)
    coefficients = bread @ (design.T @ y)
    scores = design * (y - design @ coefficients)[:, None]
    sums = np.column_stack([np.bincount(codes, weights=column) for column in scores.T])
    groups, (n, k) = len(sums), design.shape
    factor = groups / (groups - 1) * (n - 1) / (n - k)
    return coefficients, factor * bread @ (sums.T @ sums) @ bread


def _statement(
    e0: float, reach: float, mean_loss: float, pvalue: float | None, calibrated: bool
) -> str:
    words = [
        f"Rows without mates in training lose {e0:.4g} ± {reach:.2g} (95 %) on average, where the "
        f"score says {mean_loss:.4g}."
    ]
    if pvalue is None:
        words.append("Whether poorly linked records are harder to predict could not be tested.")
    elif pvalue < ALPHA:
        words.append(
            "Do not rely on it: poorly linked records differ in loss for reasons other than the "
            f"leak (p = {_rounded(pvalue)})."
        )
    else:
        words.append(
            "Nothing speaks against its assumption that poorly linked records are as hard to "
            f"predict as others (p = {_rounded(pvalue)})."
        )
    if not calibrated:
        words.append("The leak probabilities were not checked; take it as a hint.")
    return " ".join(words)


def _rounded(pvalue: float) -> str:
    return f"{pvalue:.2g}" if pvalue >= 1e-4 and math.isfinite(pvalue) else "below 0.0001"
