"""Single rows: regression of losses on leak probabilities, and a ranking for review."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

from mlflow_b3.errors import InputError, choose
from mlflow_b3.linkage.leak import Floats, Rows, as_codes
from mlflow_b3.linkage.pairs import PairTable
from mlflow_b3.linkage.resolved import DirectedPairs
from mlflow_b3.results import Result

# --- The loss on new entities from losses and leak probabilities, with a test of its assumption

LEVEL = 0.95
#: The assumption counts as refuted below this p-value.
ALPHA = 0.05
FEWEST_CLUSTERS = 10
#: A coefficient is not determined above this condition number.
WORST_CONDITION = 1e10


@dataclass(frozen=True, kw_only=True)
class LossRegression(Result):
    """A regression of losses of validated rows on their leak probabilities.

    Attributes
    ----------
    e0, e_seen : float
        Mean loss of rows without and with a mate in training.
    gap : float
        e0 - e_seen: the gain from having seen an entity in training.
    e0_stderr, e_seen_stderr, gap_stderr : float
        Standard errors over clusters.
    interval : tuple of float
        95% interval of e0.
    mean_loss : float
        Mean loss of all rows, including leaked ones.
    n, n_clusters : int
        Numbers of rows and clusters.
    control : float or None
        Effect on the loss of probable mates in the same validation fold, which cannot leak: 0 if
        the assumption holds. None if no control was given.
    curvature : float or None
        Coefficient of r²: 0 if the assumption holds. None if r takes only two values.
    assumption_pvalue : float or None
        p-value of the test that both are 0; None if nothing could be tested.
    holds : bool or None
        False if the test refutes the assumption at 5%, True if it passes a test with a control.
        None without a control, because curvature alone has very little power.
    calibrated : bool
        Whether the leak probabilities were checked.
    statement : str
        The result in a few sentences.
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
    """Estimate the loss of rows without mates in training by regression on r.

    Parameters
    ----------
    losses : array of float
        Loss of each row when it was validated.
    leak_probability : array of float
        r_j, calibrated: the `row_probability` of `leak_from_recalibrated_pairs`, or, for resolved
        rows, 1 with and 0 without mates in training.
    clusters : sequence
        The cluster of each row, for the standard errors. Groups that keep probable mates together
        (`folds.safe_groups`) give better standard errors than predicted clusters.
    control : array of float, optional
        `row_leak_probability(..., same_side=True)` with the same probabilities.
    calibrated : bool
        Whether the leak probabilities were checked. Otherwise e0 is not reliable, and the result
        says so.

    Notes
    -----
    If a row's loss depends on its record only through whether it leaked,

        E[loss_j | r_j] = (1 - r_j)·e_0 + r_j·e_seen,

    a line with intercept e_0. This needs neither a leak share nor refits, and is therefore an
    independent check of the audit's e_0. Standard errors are jackknifed over clusters (MacKinnon,
    Nielsen and Webb, doi:10.1002/jae.2969); intervals use t with G - 1 degrees of freedom.

    The assumption fails if poor records, which linkage tends to split, are also hard to predict. The
    error of e_0 is then the difference in difficulty. Two coefficients are 0 under the assumption:
    that of `control`, because rows with a probable mate in *their own* fold are also split records,
    but had no mate in training; and that of r². A Wald test against F(q, G-1) tests both. In
    simulations of 600 clusters, it rejected in 5.4% of the cases if the assumption held. If the
    additional loss of poor records was as large as the gain of seen records, it rejected in 70% with
    a control and in 7% by curvature alone; the error of e_0 was a twentieth of that gain.
    """
    y, r, other, codes = _checked(losses, leak_probability, clusters, control)
    n_clusters = int(codes.max()) + 1
    line = np.column_stack([np.ones_like(r), r])
    fitted = _fit(line, y, codes)
    if fitted is None:
        raise InputError(
            "loss_regression: the leak probability is the same in all clusters but one; more rows "
            "with probable mates are needed."
        )
    (e0, slope), covariance = fitted
    to_seen = np.array([1.0, 1.0])
    stderr = float(np.sqrt(covariance[0, 0]))
    reach = float(stats.t.ppf((1 + LEVEL) / 2, n_clusters - 1)) * stderr
    effects, pvalue = _assumption(line, y, codes, r, other)
    refuted = pvalue is not None and pvalue < ALPHA
    holds = False if refuted else True if "control" in effects else None
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
        statement=_statement(len(y), float(e0), reach, float(y.mean()), pvalue, holds, calibrated),
    )


def _checked(
    losses: Any, leak_probability: Any, clusters: Any, control: Any
) -> tuple[Floats, Floats, Floats | None, Rows]:
    y = np.asarray(losses, dtype=float)
    if y.ndim != 1 or not len(y):
        raise InputError("losses must have one number for each row.")
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
    """Return the coefficients that should be 0, and the p-value of the test that they are."""
    extra = {}
    if other is not None and np.ptp(other) > 0:
        extra["control"] = other
    if len(np.unique(r)) > 2:
        extra["curvature"] = r**2
    if not extra:
        return {}, None
    fitted = _fit(np.column_stack([line, *extra.values()]), y, codes)
    if fitted is None:
        return {}, None
    coefficients, covariance = fitted
    tested, spread = coefficients[2:], covariance[2:, 2:]
    wald = float(tested @ np.linalg.pinv(spread, hermitian=True) @ tested) / len(extra)
    pvalue = float(stats.f.sf(wald, len(extra), int(codes.max())))
    return dict(zip(extra, tested.tolist(), strict=True)), pvalue


def _fit(design: Floats, y: Floats, codes: Rows) -> tuple[Floats, Floats] | None:
    """Return least-squares coefficients and their jackknife covariance over clusters.

    None if a coefficient depends on a single cluster.
    """
    scale = np.abs(design).max(axis=0)
    design = design / scale
    count, k = int(codes.max()) + 1, design.shape[1]
    products = np.zeros((count, k, k))
    for a in range(k):
        for b in range(k):
            products[:, a, b] = np.bincount(codes, weights=design[:, a] * design[:, b])
    whole = products.sum(axis=0)
    without = whole - products
    if np.linalg.cond(without).max() > WORST_CONDITION:
        return None
    coefficients = np.linalg.solve(whole, design.T @ y)
    scores = design * (y - design @ coefficients)[:, None]
    sums = np.column_stack([np.bincount(codes, weights=column) for column in scores.T])
    changes = np.linalg.solve(without, sums[:, :, None])[:, :, 0]
    covariance = (count - 1) / count * changes.T @ changes
    return coefficients / scale, covariance / np.outer(scale, scale)


def _statement(
    n: int,
    e0: float,
    reach: float,
    mean_loss: float,
    pvalue: float | None,
    holds: bool | None,
    calibrated: bool,
) -> str:
    words = [
        f"By the losses of {n} rows alone, those without mates in training lose {e0:.3g} ± "
        f"{reach:.2g} (95%) on average, where all of them lose {mean_loss:.3g}."
    ]
    if holds is None or pvalue is None:
        words.append(
            "Whether poorly linked records are harder to predict was not tested: that needs rows "
            "with probable mates in their own fold."
        )
    elif not holds:
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
        words.append(
            "The leak probabilities were not checked, or miss mates that were never scored; take it "
            "as a hint."
        )
    return " ".join(words)


def _rounded(pvalue: float) -> str:
    return f"{pvalue:.2g}" if pvalue >= 1e-4 else "below 0.0001"


# --- Which rows to review first

ORDERS = ("influence", "probability")


@dataclass(frozen=True, kw_only=True)
class SuspiciousRow(Result):
    """A row that may have a mate in training.

    Attributes
    ----------
    id : str
        The id of the row, or its number if no ids were given.
    row : int
        Row number from 0.
    leak_probability : float
        r_j.
    loss : float
    influence : float
        How much the row improves the score; see `rank_rows`.
    best_mate : int or None
        The most probable mate in another predicted cluster.
    mate_id : str or None
    mate_probability : float or None
    """

    id: str
    row: int
    leak_probability: float
    loss: float
    influence: float
    best_mate: int | None = None
    mate_id: str | None = None
    mate_probability: float | None = None


def rank_rows(
    leak_probability: Any,
    losses: Any,
    *,
    pairs: PairTable | None = None,
    clusters: Any = None,
    ids: Any = None,
    most: int = 50,
    by: str = "influence",
) -> tuple[SuspiciousRow, ...]:
    """Return the most suspicious rows for review.

    Parameters
    ----------
    leak_probability : array of float
        r_j of every row, for example `row_probability` of a `LeakEstimate`.
    losses : array of float
        Loss of every row when it was validated.
    pairs : PairTable, optional
        Used to find the most probable mate of each row.
    clusters : sequence, optional
        Predicted clusters. If given, mates in the row's own cluster, which do not leak, are ignored.
    ids : sequence, optional
        The id of every row.
    most : int
        Number of rows to return.
    by : {"influence", "probability"}

    Notes
    -----
    influence_j = r_j·(mean loss - loss_j)/n: to first order, the increase of the mean loss if the row
    is left out, times the probability that the row leaked. Rows that improve the score and probably
    leaked come first; a leaked row with a large loss has a negative influence. The influence is not
    the effect of the mate in training on the row's loss, which would need a refit. Influences do not
    add up to the bias of the score; use the audit to estimate it. Rows with r = 0 are never listed.
    """
    choose("by", by, ORDERS)
    r, loss = np.asarray(leak_probability, dtype=float), np.asarray(losses, dtype=float)
    _check(r, loss, most)
    influence = r * (loss.mean() - loss) / len(loss)
    ranks = influence if by == "influence" else r
    order = np.lexsort([-r, -ranks])
    order = order[r[order] > 0][:most]
    mates, chances = _best_mates(pairs, clusters, len(r))
    names = range(len(r)) if ids is None else ids
    return tuple(
        SuspiciousRow(
            id=str(names[row]),
            row=row,
            leak_probability=float(r[row]),
            loss=float(loss[row]),
            influence=float(influence[row]),
            best_mate=int(mates[row]) if mates[row] >= 0 else None,
            mate_id=str(names[mates[row]]) if mates[row] >= 0 else None,
            mate_probability=float(chances[row]) if mates[row] >= 0 else None,
        )
        for row in order.tolist()
    )


def _check(r: Floats, loss: Floats, most: int) -> None:
    problems = []
    if r.ndim != 1 or r.shape != loss.shape or not len(r):
        problems.append(
            f"leak_probability has shape {r.shape} and losses {loss.shape}; one of each is needed for "
            "every row."
        )
    if not ((r >= 0) & (r <= 1)).all():
        problems.append("leak_probability must lie in [0, 1] everywhere.")
    if not np.isfinite(loss).all():
        problems.append(f"{int((~np.isfinite(loss)).sum())} losses are missing or infinite.")
    if isinstance(most, bool) or not isinstance(most, (int, np.integer)) or most < 1:
        problems.append(f"most={most!r} must be a whole number, 1 or more.")
    if problems:
        raise InputError.from_problems("rank_rows", problems)


def _best_mates(pairs: PairTable | None, clusters: Any, n: int) -> tuple[Rows, Floats]:
    mates, chances = np.full(n, -1, dtype=np.intp), np.zeros(n)
    if pairs is None:
        return mates, chances
    if pairs.n != n:
        raise InputError(f"pairs refer to {pairs.n} rows; there are {n}.")
    codes = np.arange(n) if clusters is None else as_codes("clusters", clusters, n)
    both = DirectedPairs.of(pairs.first, pairs.second, pairs.probability, codes)
    order = np.argsort(both.score, kind="stable")
    mates[both.row[order]] = both.mate[order]  # the last one, the most probable, wins
    chances[both.row[order]] = both.score[order]
    return mates, chances
