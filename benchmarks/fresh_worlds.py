"""Thirty-eight more cells for the held-out study: other worlds, sizes, learners and damage.

The cells of `heldout_study.py` have been looked at. These were written down before the estimator was
frozen and were run once afterwards:

    python benchmarks/heldout_study.py --cells fresh --replicates 8 --out fresh.jsonl

Two worlds are unkind to the estimator on purpose: in `rivals` a mate misleads, so that leaked rows raise
the loss, and in `seasons` only mates of the same season help, so that a dose is not the whole story.

Seventeen more, `interval_cells`, are for the two classes in which intervals covered too rarely, with some
ordinary cells as a control. They were written down after the interval had been changed and frozen:

    python benchmarks/heldout_study.py --cells intervals --fresh 1500 --first 100 --replicates 5 --out intervals.jsonl
"""

import zlib
from typing import Any

import numpy as np
from heldout_study import Cell, Rng, knn, lognormal, same, spread
from scipy.special import expit
from sklearn.discriminant_analysis import QuadraticDiscriminantAnalysis
from sklearn.ensemble import (
    ExtraTreesClassifier,
    GradientBoostingClassifier,
    GradientBoostingRegressor,
    RandomForestRegressor,
)
from sklearn.kernel_ridge import KernelRidge
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor


def visits(clusters: np.ndarray, rng: Rng) -> tuple[np.ndarray, np.ndarray]:
    """Seven measurements that persist in a person, and a condition with a hidden cause."""
    n, rows = clusters.max() + 1, len(clusters)
    body, hidden = rng.normal(0, 1, (n, 7)), rng.normal(0, 1.3, n)
    X = body[clusters] + 0.5 * rng.normal(0, 1, (rows, 7))
    score = 0.9 * body[clusters, 0] - 0.6 * body[clusters, 1] * body[clusters, 2] + hidden[clusters]
    return X, (score + 0.7 * rng.logistic(size=rows) > 0.4).astype(int)


def dialects(clusters: np.ndarray, rng: Rng) -> tuple[np.ndarray, np.ndarray]:
    """Three classes; a speaker shifts all features, and prefers a class."""
    n, rows = clusters.max() + 1, len(clusters)
    taste = rng.dirichlet([0.6, 0.6, 0.6], n)
    y = (rng.random(rows)[:, None] > np.cumsum(taste[clusters], axis=1)).sum(1).clip(0, 2)
    centres = np.array([[1, 0, 0, 0, 0], [0, 1, 0, 0, 0], [0, 0, 1, 0, 0]])
    X = centres[y] + 1.1 * rng.normal(0, 1, (n, 5))[clusters] + 0.5 * rng.normal(0, 1, (rows, 5))
    return X, y


def prices(clusters: np.ndarray, rng: Rng) -> tuple[np.ndarray, np.ndarray]:
    """Log-normal prices of products; twelve noisy attributes say which product it is."""
    n, rows = clusters.max() + 1, len(clusters)
    product = rng.normal(0, 1, (n, 12))
    X = product[clusters] + 0.3 * rng.normal(0, 1, (rows, 12))
    log_price = 0.5 * product[:, 0] + 0.3 * product[:, 1] + 0.6 * rng.normal(0, 1, n)
    return X, np.exp(log_price[clusters] + 0.25 * rng.normal(0, 1, rows))


def homes(clusters: np.ndarray, rng: Rng) -> tuple[np.ndarray, np.ndarray]:
    """Few-valued features shared by a household, and a vote that its members mostly share."""
    n, rows = clusters.max() + 1, len(clusters)
    street = rng.integers(0, 6, (n, 3)).astype(float)
    X = np.column_stack([street[clusters], rng.normal(0, 1, (rows, 2))])
    lean = 1.8 * rng.normal(0, 1, n) + 0.3 * (street[:, 0] - 2.5)
    return X, (rng.random(rows) < expit(lean[clusters] + 0.6 * X[:, 3])).astype(int)


def sites(clusters: np.ndarray, rng: Rng) -> tuple[np.ndarray, np.ndarray]:
    """Sites with devices of their own (shift and scale) and a base rate of their own."""
    n, rows = clusters.max() + 1, len(clusters)
    X = rng.normal(0, 1, (rows, 4))
    score = X[:, 0] - X[:, 1] + rng.normal(0, 1.0, n)[clusters]
    y = (rng.random(rows) < expit(score)).astype(int)
    return X * rng.uniform(0.7, 1.4, (n, 4))[clusters] + 0.8 * rng.normal(0, 1, (n, 4))[clusters], y


def rivals(clusters: np.ndarray, rng: Rng) -> tuple[np.ndarray, np.ndarray]:
    """Labels of a cluster alternate: a mate in training misleads."""
    n, rows = clusters.max() + 1, len(clusters)
    X = rng.normal(0, 1, (n, 4))[clusters] + 0.25 * rng.normal(0, 1, (rows, 4))
    place = np.zeros(rows, dtype=int)
    for cluster in range(n):
        own = np.flatnonzero(clusters == cluster)
        place[own] = rng.permutation(len(own))
    flip = rng.random(rows) < expit(1.2 * X[:, 0]) * 0.3
    return X, ((place + rng.integers(0, 2, n)[clusters]) % 2) ^ flip


def seasons(clusters: np.ndarray, rng: Rng) -> tuple[np.ndarray, np.ndarray]:
    """Numbers that follow cluster and season; only mates of the same season help."""
    n, rows = clusters.max() + 1, len(clusters)
    season = rng.integers(0, 4, rows)
    level = rng.normal(0, 1, (n, 4))
    who = rng.uniform(0, 1, (n, 2))
    X = np.column_stack([who[clusters], 3.0 * season, rng.normal(0, 1, rows)])
    return X, level[clusters, season] + 0.5 * X[:, 3] + 0.4 * rng.normal(0, 1, rows)


def spectra(clusters: np.ndarray, rng: Rng) -> tuple[np.ndarray, np.ndarray]:
    """Forty smooth channels of a specimen, and its concentration with an offset of its own."""
    n, rows = clusters.max() + 1, len(clusters)
    channel = np.linspace(0, 1, 40)
    centre, matrix = rng.uniform(0.2, 0.8, n), rng.normal(0, 0.7, n)
    amount = rng.gamma(3.0, 1.0, rows)
    peak = np.exp(-(((channel - centre[clusters, None]) / 0.1) ** 2))
    X = amount[:, None] * peak + 0.2 * rng.normal(0, 1, (rows, 40))
    return X, amount + matrix[clusters] + 0.2 * rng.normal(0, 1, rows)


def trials(clusters: np.ndarray, rng: Rng) -> tuple[np.ndarray, np.ndarray]:
    """Independent rows: the cluster says nothing."""
    rows = len(clusters)
    X = rng.normal(0, 1, (rows, 6))
    return X, (X[:, 0] * X[:, 1] + X[:, 2] + rng.logistic(size=rows) > 0).astype(int)


def fresh_cells() -> list[Cell]:
    scaled = StandardScaler
    tree = DecisionTreeClassifier(max_depth=12, min_samples_leaf=2, random_state=0)
    extra = ExtraTreesClassifier(20, random_state=0)
    boosted = GradientBoostingClassifier(n_estimators=20, max_depth=4, random_state=0)
    logistic = make_pipeline(scaled(), LogisticRegression(C=0.5, max_iter=500))
    svm = make_pipeline(scaled(), SVC(C=3.0, gamma=0.5))
    quadratic = QuadraticDiscriminantAnalysis(reg_param=0.1)
    near = make_pipeline(scaled(), KNeighborsRegressor(3))
    branch = DecisionTreeRegressor(min_samples_leaf=3, random_state=0)
    forest = RandomForestRegressor(15, random_state=0)
    gradual = GradientBoostingRegressor(n_estimators=30, max_depth=4, random_state=0)
    kernel = make_pipeline(scaled(), KernelRidge(alpha=0.3, kernel="rbf", gamma=0.2))

    def cell(
        kind: str,
        world: Any,
        sizes: Any,
        learner: Any,
        what: str,
        loss: str,
        error: float = 0.0,
        split: float = 0.0,
        **told: Any,
    ) -> Cell:
        how = " ".join(f"{name}{value}" for name, value in (("q", error), ("s", split)) if value)
        name = f"{world.__name__} {what} {how}{' range' if told else ''}"
        key = (zlib.crc32(name.encode()),)
        return Cell(name, kind, world, sizes, learner, loss, error, split, told, key)

    return [
        cell("balanced", visits, same(130, 9), knn(7), "130x9 knn7", "zero_one", 0.05),
        cell("balanced", visits, same(130, 9), knn(7), "130x9 knn7", "zero_one", 0.1),
        cell("balanced", visits, same(130, 9), extra, "130x9 extra", "zero_one", 0.1),
        cell("balanced", visits, same(130, 9), svm, "130x9 svm", "zero_one", 0.2),
        cell("balanced", visits, same(130, 9), boosted, "130x9 boosted", "brier", 0.1),
        cell("balanced", dialects, same(100, 11), knn(3), "100x11 knn3", "zero_one", 0.1),
        cell("balanced", dialects, same(100, 11), tree, "100x11 tree", "zero_one", 0.2),
        cell("balanced", dialects, same(100, 11), quadratic, "100x11 quadratic", "log", 0.1),
        cell("no effect", trials, same(120, 9), svm, "120x9 svm", "zero_one", 0.1),
        cell("no effect", trials, spread(150, 2, 12), tree, "2-12 tree", "zero_one", 0.2),
        cell("no effect", sites, same(40, 28), logistic, "40x28 logistic", "zero_one", 0.1),
        cell("no effect", trials, same(120, 9), extra, "120x9 extra", "zero_one", 0.0, 0.3),
        cell("tiny", homes, spread(420, 1, 4), tree, "1-4 tree", "zero_one", 0.1),
        cell("tiny", homes, same(450, 2), knn(1), "450x2 knn1", "zero_one", 0.05),
        cell("tiny", homes, spread(420, 1, 4), extra, "1-4 extra", "zero_one", 0.0, 0.4),
        cell("tiny", prices, spread(380, 1, 5), near, "1-5 near", "absolute", 0.1),
        cell("unequal", visits, lognormal(140, 5, 1.1), extra, "skewed extra", "zero_one", 0.1),
        cell("unequal", homes, lognormal(140, 5, 1.1), knn(5), "skewed knn5", "zero_one", 0.2),
        cell("unequal", prices, lognormal(120, 6, 1.0), forest, "skewed forest", "absolute", 0.1),
        cell("unequal", dialects, spread(80, 2, 28), knn(5), "2-28 knn5", "zero_one", 0.0, 0.3),
        cell("few", visits, same(22, 40), knn(7), "22x40 knn7", "zero_one", 0.05),
        cell("few", sites, spread(28, 20, 50), boosted, "28 sites boosted", "zero_one", 0.1),
        cell("few", spectra, same(24, 35), kernel, "24x35 kernel", "squared", 0.0, 0.3),
        cell("large", visits, same(45, 30), extra, "45x30 extra", "zero_one", 0.05),
        cell("large", homes, spread(40, 25, 45), tree, "25-45 tree", "zero_one", 0.1),
        cell("regression", prices, same(120, 8), near, "120x8 near", "absolute", 0.1),
        cell("regression", prices, same(120, 8), gradual, "120x8 gradual", "squared", 0.2),
        cell("regression", spectra, same(110, 9), kernel, "110x9 kernel", "squared", 0.1),
        cell("regression", seasons, same(110, 9), branch, "110x9 branch", "squared", 0.1),
        cell("regression", seasons, same(110, 9), near, "110x9 near", "absolute", 0.0, 0.3),
        cell("mates mislead", rivals, same(120, 8), knn(1), "120x8 knn1", "zero_one", 0.1),
        cell("mates mislead", rivals, same(120, 8), extra, "120x8 extra", "zero_one", 0.0, 0.3),
        cell("splits", visits, same(130, 9), extra, "130x9 extra", "zero_one", 0.0, 0.2),
        cell("splits", dialects, same(100, 11), svm, "100x11 svm", "zero_one", 0.0, 0.5),
        cell("mixtures", visits, same(130, 9), knn(7), "130x9 knn7", "zero_one", 0.05, 0.2),
        cell("mixtures", homes, spread(150, 3, 11), tree, "3-11 tree", "zero_one", 0.1, 0.1),
        cell(
            "ranges",
            visits,
            same(130, 9),
            extra,
            "130x9 extra",
            "zero_one",
            0.08,
            cluster_error=(0.03, 0.15),
        ),
        cell(
            "ranges",
            dialects,
            same(100, 11),
            knn(3),
            "100x11 knn3",
            "zero_one",
            0.0,
            0.3,
            split_rate=(0.1, 0.4),
        ),
    ]


# --- Cells for the intervals


def frames(clusters: np.ndarray, rng: Rng) -> tuple[np.ndarray, np.ndarray]:
    """Frames of films that hardly change, and one label for most frames of a film."""
    n, rows = clusters.max() + 1, len(clusters)
    film = rng.normal(0, 1, (n, 8))
    label = (film[:, 0] + 0.5 * film[:, 1] ** 2 + 1.5 * rng.normal(0, 1, n) > 0.5).astype(int)
    X = film[clusters] + 0.03 * rng.normal(0, 1, (rows, 8))
    return X, label[clusters] ^ (rng.random(rows) < 0.08)


def tanks(clusters: np.ndarray, rng: Rng) -> tuple[np.ndarray, np.ndarray]:
    """Draw yields of tanks: they follow the settings of a tank, the hour, and what else differs between tanks."""
    n, rows = clusters.max() + 1, len(clusters)
    setting, hour = rng.uniform(-1, 1, (n, 3)), rng.uniform(0, 1, rows)
    X = np.column_stack([setting[clusters] + 0.05 * rng.normal(0, 1, (rows, 3)), hour])
    y = 3 + np.sin(3 * setting[:, 0]) + setting[:, 1] * setting[:, 2] + 0.9 * rng.normal(0, 1, n)
    return X, y[clusters] - 0.8 * hour + 0.4 * rng.normal(0, 1, rows)


def habits(clusters: np.ndarray, rng: Rng) -> tuple[np.ndarray, np.ndarray]:
    """Choices of persons with a habit of their own, which half of the features hint at."""
    n, rows = clusters.max() + 1, len(clusters)
    person, habit = rng.normal(0, 1, (n, 3)), rng.normal(0, 1.6, n)
    X = rng.normal(0, 1, (rows, 6))
    X[:, :3] = person[clusters] + 0.6 * X[:, :3]
    score = habit[clusters] + 0.8 * X[:, 4] - 0.5 * person[clusters, 0]
    return X, (rng.random(rows) < expit(score)).astype(int)


def arms(clusters: np.ndarray, rng: Rng) -> tuple[np.ndarray, np.ndarray]:
    """Arms of a trial, allocated in equal numbers within each block: a mate most likely has another one."""
    n, rows = clusters.max() + 1, len(clusters)
    arm = np.zeros(rows, dtype=int)
    for cluster in range(n):
        own = np.flatnonzero(clusters == cluster)
        arm[own] = rng.permutation(np.arange(len(own)) + rng.integers(3)) % 3
    block = rng.normal(0, 1, (n, 3))[clusters] + 0.2 * rng.normal(0, 1, (rows, 3))
    return np.column_stack([block, 0.7 * arm + rng.normal(0, 1, rows)]), arm


def ranks(clusters: np.ndarray, rng: Rng) -> tuple[np.ndarray, np.ndarray]:
    """Ranks within a contest, from 0 to 1, and a rough measurement of strength."""
    n, rows = clusters.max() + 1, len(clusters)
    strength = rng.normal(0, 1, rows)
    rank = np.zeros(rows)
    for cluster in range(n):
        own = np.flatnonzero(clusters == cluster)
        rank[own] = np.argsort(np.argsort(strength[own])) / max(len(own) - 1, 1)
    contest = rng.normal(0, 1, (n, 3))[clusters] + 0.1 * rng.normal(0, 1, (rows, 3))
    return np.column_stack([contest, 0.4 * strength + 0.5 * rng.normal(0, 1, rows)]), rank


def interval_cells() -> list[Cell]:
    tree = DecisionTreeClassifier(min_samples_leaf=4, random_state=0)
    near = make_pipeline(StandardScaler(), KNeighborsRegressor(4))
    branch = DecisionTreeRegressor(min_samples_leaf=4, random_state=0)

    def cell(
        kind: str, world: Any, sizes: Any, learner: Any, what: str, loss: str, q: float, s: float
    ) -> Cell:
        name = f"{world.__name__} {what} q{q} s{s}"
        return Cell(name, kind, world, sizes, learner, loss, q, s, {}, (zlib.crc32(name.encode()),))

    error, large, small = "zero_one", "large", "mates mislead"
    return [
        cell(large, frames, same(40, 30), knn(1), "40x30 knn1", error, 0.1, 0.0),
        cell(large, frames, spread(38, 25, 45), tree, "25-45 tree", error, 0.05, 0.0),
        cell(large, tanks, spread(40, 25, 45), near, "25-45 near", "absolute", 0.1, 0.0),
        cell(large, tanks, same(42, 30), branch, "42x30 branch", "squared", 0.1, 0.0),
        cell(large, habits, same(44, 28), knn(5), "44x28 knn5", error, 0.1, 0.0),
        cell(large, habits, spread(40, 25, 45), tree, "25-45 tree", error, 0.15, 0.0),
        cell(large, trials, same(40, 30), knn(9), "40x30 knn9", error, 0.1, 0.0),
        cell(small, arms, same(140, 6), knn(1), "140x6 knn1", error, 0.1, 0.0),
        cell(small, arms, same(120, 9), tree, "120x9 tree", error, 0.0, 0.3),
        cell(small, arms, spread(160, 3, 9), knn(5), "3-9 knn5", error, 0.1, 0.0),
        cell(small, ranks, same(130, 7), near, "130x7 near", "absolute", 0.1, 0.0),
        cell(small, ranks, spread(150, 3, 9), branch, "3-9 branch", "squared", 0.0, 0.3),
        cell("control", habits, same(120, 9), knn(9), "120x9 knn9", error, 0.1, 0.0),
        cell("control", habits, same(120, 8), tree, "120x8 tree", error, 0.2, 0.0),
        cell("control", tanks, same(110, 8), near, "110x8 near", "absolute", 0.1, 0.0),
        cell("control", frames, spread(300, 1, 5), knn(1), "1-5 knn1", error, 0.1, 0.0),
        cell("control", trials, same(120, 9), tree, "120x9 tree", error, 0.1, 0.0),
    ]
