"""Worlds for the study of average precision, medians, counts, quantiles, scorers of the user's, and a rare class.

They and the cells of `scores_study.py fresh` were written down after everything was chosen on the cells of
`scores_study.py development`, and were run once.
"""

import numpy as np
from heldout_study import Rng
from scipy.special import expit


def claims(clusters: np.ndarray, rng: Rng) -> tuple[np.ndarray, np.ndarray]:
    """One in four policies has a claim; a household has a risk of its own that its features hardly show."""
    n, rows = clusters.max() + 1, len(clusters)
    home = rng.normal(0, 1, (n, 6))
    X = home[clusters] + 0.6 * rng.normal(0, 1, (rows, 6))
    risk = 0.8 * home[:, 0] + 1.2 * rng.normal(0, 1, n) - 1.6
    return X, (rng.random(rows) < expit(risk[clusters])).astype(int)


def plants(clusters: np.ndarray, rng: Rng) -> tuple[np.ndarray, np.ndarray]:
    """Draw a disease of plants of one field: an interaction, and a soil that only the field's place shows."""
    n, rows = clusters.max() + 1, len(clusters)
    place, soil = rng.uniform(0, 1, (n, 2)), 1.5 * rng.normal(0, 1, n)
    leaf = rng.normal(0, 1, (rows, 3))
    X = np.column_stack([place[clusters] + 0.01 * rng.normal(0, 1, (rows, 2)), leaf])
    score = soil[clusters] + leaf[:, 0] * leaf[:, 1] + 0.8 * leaf[:, 2]
    return X, (score + rng.logistic(size=rows) > 0.5).astype(int)


def clips(clusters: np.ndarray, rng: Rng) -> tuple[np.ndarray, np.ndarray]:
    """Frames of a clip are nearly alike, and nearly always have the same label."""
    n, rows = clusters.max() + 1, len(clusters)
    scene = rng.normal(0, 1, (n, 10))
    label = (scene[:, 0] + 0.5 * scene[:, 1] ** 2 + rng.normal(0, 0.8, n) > 0.7).astype(int)
    X = scene[clusters] + 0.3 * rng.normal(0, 1, (rows, 10))
    return X, np.where(rng.random(rows) < 0.08, 1 - label[clusters], label[clusters])


def calls(clusters: np.ndarray, rng: Rng) -> tuple[np.ndarray, np.ndarray]:
    """Draw calls of agents, whose clusters matter little."""
    n, rows = clusters.max() + 1, len(clusters)
    X = rng.normal(0, 1, (rows, 5))
    score = X[:, 0] + 0.7 * X[:, 1] + 0.3 * rng.normal(0, 1, n)[clusters]
    return X, (rng.random(rows) < expit(score - 0.4)).astype(int)


def screening(clusters: np.ndarray, rng: Rng) -> tuple[np.ndarray, np.ndarray]:
    """Three in a hundred rows are positive, most of them of patients with a high risk."""
    n, rows = clusters.max() + 1, len(clusters)
    marker, hidden = rng.normal(0, 1, (n, 4)), rng.normal(0, 1, n)
    X = marker[clusters] + 0.4 * rng.normal(0, 1, (rows, 4))
    risk = 1.1 * marker[:, 0] + 0.5 * marker[:, 1] + 0.9 * hidden - 4.25
    return X, (rng.random(rows) < expit(risk[clusters])).astype(int)


def orders(clusters: np.ndarray, rng: Rng) -> tuple[np.ndarray, np.ndarray]:
    """Numbers of orders of customers, with a rate of their own; the smallest number is 1."""
    n, rows = clusters.max() + 1, len(clusters)
    who = rng.normal(0, 1, (n, 5))
    X = who[clusters] + 0.4 * rng.normal(0, 1, (rows, 5))
    rate = np.exp(1.6 + 0.35 * who[:, 0] + 0.5 * rng.normal(0, 1, n))
    return X, 1.0 + rng.poisson(rate[clusters])


def rents(clusters: np.ndarray, rng: Rng) -> tuple[np.ndarray, np.ndarray]:
    """Rents of flats of one house, with long tails to the right."""
    n, rows = clusters.max() + 1, len(clusters)
    where, level = rng.uniform(0, 1, (n, 3)), 0.35 * rng.normal(0, 1, n)
    size = rng.uniform(0, 1, rows)
    X = np.column_stack([where[clusters] + 0.02 * rng.normal(0, 1, (rows, 3)), size])
    log_rent = 1.5 + 0.5 * where[clusters, 0] + size + level[clusters]
    return X, np.exp(log_rent + 0.2 * rng.standard_t(4, rows))


def yields(clusters: np.ndarray, rng: Rng) -> tuple[np.ndarray, np.ndarray]:
    """Draw yields of plots of one farm: a curve of its weather, and a level of the farm."""
    n, rows = clusters.max() + 1, len(clusters)
    weather, farm = rng.normal(0, 1, (n, 3)), 1.3 * rng.normal(0, 1, n)
    X = np.column_stack(
        [weather[clusters] + 0.1 * rng.normal(0, 1, (rows, 3)), rng.normal(0, 1, rows)]
    )
    mean = 12 + np.sin(2 * weather[clusters, 0]) + farm[clusters] + 0.6 * X[:, 3]
    return X, np.maximum(mean + 0.8 * rng.normal(0, 1, rows), 0.5)


def tides(clusters: np.ndarray, rng: Rng) -> tuple[np.ndarray, np.ndarray]:
    """Draw a linear world, in which clusters matter little."""
    n, rows = clusters.max() + 1, len(clusters)
    X = rng.normal(0, 1, (rows, 5))
    level = 0.4 * rng.normal(0, 1, n)[clusters]
    return X, np.maximum(15 + X @ [1.0, -0.5, 0.5, 0, 0] + level + rng.laplace(0, 0.7, rows), 0.5)
