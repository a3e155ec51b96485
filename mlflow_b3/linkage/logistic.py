"""Logistic regression on one score, safe where it is not determined."""

from typing import Any

import numpy as np
from scipy.optimize import brentq
from scipy.special import expit, logit
from sklearn.linear_model import LogisticRegression

from mlflow_b3.linkage.splits import Floats

#: Beyond such log-odds a score says no more.
LARGEST_LOGIT = 40.0
#: Newton steps of a refit, and what counts as none.
MOST_STEPS = 50
CONVERGED = 1e-8


def fit_line(score: Floats, match: Floats, weight: Floats) -> tuple[float, float, bool]:
    """Return intercept and slope of the logistic regression, and whether it had to do without."""
    use = weight > 0
    score, match, weight = score[use], match[use], weight[use]
    hits, others = score[match > 0], score[match == 0]
    if not len(hits) or not len(others) or hits.min() >= others.max():
        return _level(score, match, weight), 1.0, True
    model = LogisticRegression(C=np.inf, solver="newton-cholesky", tol=1e-8)
    model.fit(score[:, None], match, sample_weight=weight / weight.mean())
    slope = float(model.coef_[0, 0])
    if slope <= 0:  # scores that tell nothing: one probability for all
        return float(logit(np.average(match, weights=weight))), 0.0, False
    return float(model.intercept_[0]), slope, False


def refit_lines(start: Floats, score: Floats, hits: Floats, others: Floats) -> Floats:
    """Return intercept and slope for many draws at once, from a line that is close.

    Parameters
    ----------
    start : array of float
        Intercept and slope.
    score : array of float
    hits, others : array of float, draws by scores
        Weight of the matches and of the others at each score.
    """
    lines = np.tile(start, (len(hits), 1))
    total = hits + others
    step = np.ones_like(lines)
    for _ in range(MOST_STEPS):
        chance = expit(lines[:, :1] + lines[:, 1:] * score)
        residual, spread = hits - total * chance, total * chance * (1 - chance)
        pull, tilt = residual.sum(axis=1), residual @ score
        a, b, c = spread.sum(axis=1), spread @ score, spread @ score**2
        step = np.column_stack([c * pull - b * tilt, a * tilt - b * pull])
        with np.errstate(divide="ignore", invalid="ignore"):
            step = np.clip(np.nan_to_num(step / (a * c - b * b)[:, None]), -1, 1)
        lines += step
        if np.abs(step).max() < CONVERGED:
            break
    first_hit = np.where(hits > 0, score, np.inf).min(axis=1)
    last_other = np.where(others > 0, score, -np.inf).max(axis=1)
    odd = (first_hit >= last_other) | (lines[:, 1] <= 0) | (np.abs(step).max(axis=1) >= CONVERGED)
    twice, match = np.concatenate([score, score]), np.repeat([1.0, 0.0], len(score))
    for draw in np.flatnonzero(odd):
        weight = np.concatenate([hits[draw], others[draw]])
        lines[draw] = fit_line(twice, match, weight)[:2]
    return lines


def clipped(logit_p: Any) -> Floats:
    """Return log-odds without infinities."""
    values = np.clip(np.asarray(logit_p, dtype=float), -LARGEST_LOGIT, LARGEST_LOGIT)
    return np.asarray(values, dtype=float)


def _level(score: Floats, match: Floats, weight: Floats) -> float:
    """Return the shift of the scores at which as many matches are expected as were found."""
    # half a match more on either side keeps it finite where all or none match
    rate = (np.dot(match, weight) + weight.mean() / 2) / (weight.sum() + weight.mean())

    def excess(shift: float) -> float:
        return float(np.average(expit(score + shift), weights=weight) - rate)

    return float(brentq(excess, -3 * LARGEST_LOGIT, 3 * LARGEST_LOGIT))
