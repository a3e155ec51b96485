"""Held-out study of e0: is it better than no correction, in worlds that nothing was chosen on?

Every cell is a world, a learner, a loss and a kind of damage to the cluster ids. In every replicate a table
is drawn, its ids are damaged, and the public `audit` is run with the rate that was applied. There are two
truths: the loss on fresh clusters of models that were trained on four fifths of the true clusters of the same
table, and grouped cross-validation of the table by its true ids, over three assignments to folds.

    python benchmarks/heldout_study.py --replicates 12 --methods dose power --out results.jsonl
    python benchmarks/heldout_study.py --summary results.jsonl

Cells that were not used when this estimator was looked at the last time (`fresh_worlds.py`):

    python benchmarks/heldout_study.py --cells fresh --replicates 8 --out fresh.jsonl

How much refits matter, and a wrong rate, on eleven of the cells:

    python benchmarks/heldout_study.py --some --first 500 --replicates 4 --budgets 10 30 60 100 480 --out budgets.jsonl
    python benchmarks/heldout_study.py --some --first 500 --replicates 4 --told right half double range --out told.jsonl
"""

import argparse
import json
import math
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from joblib import Parallel, delayed
from scipy.special import expit
from sklearn.base import clone
from sklearn.ensemble import (
    ExtraTreesRegressor,
    HistGradientBoostingClassifier,
    RandomForestClassifier,
)
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import GroupKFold
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor

import mlflow_b3 as b3

Rng = np.random.Generator
#: Clusters of the fresh sample that the truth is measured on.
FRESH = 400
#: Assignments of the true clusters to folds that the truth by true ids is averaged over.
ASSIGNMENTS = 3
#: Cells of the studies of budgets and of wrong rates: one of each kind but `ranges`, two that are balanced.
SOME = (
    "wards 150x8 knn9 q0.1",
    "voices 90x12 tree q0.2",
    "wards 150x8 logistic q0.1",
    "copies 400x1-4 knn1 q0.1",
    "voices lognormal knn3 q0.1",
    "voices 24x26 knn5 q0.1",
    "shops 140x7 near q0.05",
    "rare 160x8 knn7 brier q0.1",
    "votes 130x9 knn5 q0.1",
    "wards 150x8 knn9 split0.2",
    "voices 90x12 tree both",
)


# --- Worlds: cluster sizes, and rows of given clusters


def same(count: int, rows: int) -> Callable[[Rng], np.ndarray]:
    """Return sizes that are all equal."""
    return lambda _: np.full(count, rows)


def spread(count: int, least: int, most: int) -> Callable[[Rng], np.ndarray]:
    """Return sizes that are uniform between two ends."""
    return lambda rng: rng.integers(least, most + 1, count)


def lognormal(count: int, median: float, sigma: float) -> Callable[[Rng], np.ndarray]:
    """Return skewed sizes with a few large clusters."""
    return lambda rng: np.clip(
        np.exp(rng.normal(math.log(median), sigma, count)).round(), 1, 150
    ).astype(int)


def wards(clusters: np.ndarray, rng: Rng) -> tuple[np.ndarray, np.ndarray]:
    """Labels with a ward's own log-odds, which two of six features hint at."""
    n = clusters.max() + 1
    risk, habit = rng.normal(0, 1.5, n), rng.normal(0, 1, (n, 2))
    X = rng.normal(0, 1, (len(clusters), 6))
    X[:, :2] = habit[clusters] + 0.4 * rng.normal(0, 1, (len(clusters), 2))
    score = risk[clusters] + 0.8 * X[:, 2] - 0.5 * X[:, 3]
    return X, (rng.random(len(clusters)) < expit(score)).astype(int)


def voices(clusters: np.ndarray, rng: Rng) -> tuple[np.ndarray, np.ndarray]:
    """One label for a whole cluster, and eight features that mostly say who it is."""
    n = clusters.max() + 1
    label = (rng.random(n) < 0.45).astype(int)
    who = rng.normal(0, 1, (n, 8)) + 0.5 * label[:, None] * (np.arange(8) < 3)
    X = who[clusters] + 0.8 * rng.normal(0, 1, (len(clusters), 8))
    return X, label[clusters]


def copies(clusters: np.ndarray, rng: Rng) -> tuple[np.ndarray, np.ndarray]:
    """Draw near copies of one record for each person, with a label of the person's own."""
    n = clusters.max() + 1
    who, label = rng.normal(0, 1, (n, 4)), rng.random(n)
    X = who[clusters] + 0.05 * rng.normal(0, 1, (len(clusters), 4))
    odds = expit(1.2 * who[:, 0])
    y = (label < odds).astype(int)[clusters]
    flip = rng.random(len(clusters)) < 0.05
    return X, np.where(flip, 1 - y, y)


def shops(clusters: np.ndarray, rng: Rng) -> tuple[np.ndarray, np.ndarray]:
    """Draw numbers with an offset of each shop, which its place gives away; noise with heavy tails."""
    n = clusters.max() + 1
    place, offset = rng.uniform(0, 10, (n, 2)), rng.normal(0, 1.2, n)
    X = np.column_stack(
        [
            place[clusters] + 0.03 * rng.normal(0, 1, (len(clusters), 2)),
            rng.normal(0, 1, (len(clusters), 3)),
        ]
    )
    y = (
        offset[clusters]
        + X[:, 2]
        + 0.3 * place[clusters, 0]
        + 0.5 * rng.standard_t(4, len(clusters))
    )
    return X, y


def drifts(clusters: np.ndarray, rng: Rng) -> tuple[np.ndarray, np.ndarray]:
    """Draw numbers that wander within a cluster over time; the features are time and two habits."""
    n, rows = clusters.max() + 1, len(clusters)
    time_ = rng.random(rows)
    habit = rng.normal(0, 1, (n, 2))
    level, slope = rng.normal(0, 1, n), rng.normal(0, 1.5, n)
    X = np.column_stack(
        [time_, habit[clusters] + 0.1 * rng.normal(0, 1, (rows, 2)), rng.normal(0, 1, rows)]
    )
    y = level[clusters] + slope[clusters] * time_ + 0.7 * X[:, 3] + 0.6 * rng.normal(0, 1, rows)
    return X, y


def rings(clusters: np.ndarray, rng: Rng) -> tuple[np.ndarray, np.ndarray]:
    """Clusters that differ in features only: knowing a cluster does not help."""
    n = clusters.max() + 1
    X = rng.normal(0, 1, (n, 5))[clusters] + rng.normal(0, 1, (len(clusters), 5))
    radius = np.hypot(X[:, 0], X[:, 1])
    return X, (rng.random(len(clusters)) < expit(2 * (radius - 1.6))).astype(int)


def genes(clusters: np.ndarray, rng: Rng) -> tuple[np.ndarray, np.ndarray]:
    """Sixty features, weak signals, families that resemble each other."""
    n = clusters.max() + 1
    family = rng.normal(0, 1, (n, 60))
    X = 0.7 * family[clusters] + rng.normal(0, 1, (len(clusters), 60))
    score = 0.35 * X[:, :6].sum(1) + 1.2 * (family @ (rng.normal(0, 1, 60) / 8))[clusters]
    return X, (rng.random(len(clusters)) < expit(score)).astype(int)


def pairs_needed(clusters: np.ndarray, rng: Rng) -> tuple[np.ndarray, np.ndarray]:
    """One mate tells little, several tell much: labels of a cluster are noisy votes."""
    n = clusters.max() + 1
    who = rng.normal(0, 1, (n, 3))
    lean = np.where(rng.random(n) < 0.5, 0.75, 0.25)
    X = who[clusters] + 0.15 * rng.normal(0, 1, (len(clusters), 3))
    return X, (rng.random(len(clusters)) < lean[clusters]).astype(int)


def rare(clusters: np.ndarray, rng: Rng) -> tuple[np.ndarray, np.ndarray]:
    """Labels of which about one in eight is positive, with a cluster's own risk."""
    n = clusters.max() + 1
    risk, hint = rng.normal(-2.6, 1.4, n), rng.normal(0, 1, (n, 3))
    X = np.column_stack(
        [
            hint[clusters] + 0.3 * rng.normal(0, 1, (len(clusters), 3)),
            rng.normal(0, 1, (len(clusters), 2)),
        ]
    )
    return X, (rng.random(len(clusters)) < expit(risk[clusters] + X[:, 3])).astype(int)


# --- Damage to the ids


def misplace(clusters: np.ndarray, rate: float, rng: Rng) -> np.ndarray:
    """Give a share of the rows the id of another row, drawn at random."""
    wrong = rng.random(len(clusters)) < rate
    ids = clusters.copy()
    ids[wrong] = clusters[rng.integers(len(clusters), size=int(wrong.sum()))]
    return ids


def split(clusters: np.ndarray, rate: float, rng: Rng) -> np.ndarray:
    """Split clusters with two rows or more at a uniform cut until a share of all rows is in split ones."""
    ids, new = clusters.copy(), clusters.max() + 1
    sizes = np.bincount(clusters)
    done, wanted = 0, rate * len(clusters)
    for cluster in rng.permutation(np.flatnonzero(sizes > 1)):
        if done + sizes[cluster] / 2 > wanted:
            break
        rows = rng.permutation(np.flatnonzero(clusters == cluster))
        ids[rows[: rng.integers(1, len(rows))]] = new
        new += 1
        done += sizes[cluster]
    return ids


@dataclass(frozen=True)
class Cell:
    """One cell of the study."""

    name: str
    kind: str
    world: Callable[[np.ndarray, Rng], tuple[np.ndarray, np.ndarray]]
    sizes: Callable[[Rng], np.ndarray]
    learner: Any
    loss: str
    error: float = 0.0
    split: float = 0.0
    told: dict[str, Any] = field(default_factory=dict)
    #: Separates the random numbers of cells; the first 37 cells share theirs.
    key: tuple[int, ...] = (7, 1018)

    @property
    def known(self) -> dict[str, Any]:
        """What the audit is told about the ids."""
        if self.told:
            return self.told
        given = {"cluster_error": self.error, "split_rate": self.split}
        return {name: value for name, value in given.items() if value}

    def told_as(self, how: str) -> dict[str, Any]:
        """Return what the audit is told: the right rates, half or double of them, or the range between."""
        if how == "right":
            return self.known
        if how == "range":
            return {name: (rate / 2, 2 * rate) for name, rate in self.known.items()}
        factor = {"half": 0.5, "double": 2.0}[how]
        return {name: factor * rate for name, rate in self.known.items()}


def knn(k: int) -> Any:
    return make_pipeline(StandardScaler(), KNeighborsClassifier(k))


def cells() -> list[Cell]:
    tree, forest = (
        DecisionTreeClassifier(min_samples_leaf=3, random_state=0),
        RandomForestClassifier(25, random_state=0),
    )
    boosted = HistGradientBoostingClassifier(max_iter=25, min_samples_leaf=10)
    logistic = make_pipeline(StandardScaler(), LogisticRegression(max_iter=300))
    near = KNeighborsRegressor(4, weights="distance")
    trees = ExtraTreesRegressor(20, random_state=0)
    branch = DecisionTreeRegressor(min_samples_leaf=2, random_state=0)
    made = []
    for error in (0.05, 0.1, 0.2):
        made += [
            Cell(
                f"wards 150x8 knn9 q{error}",
                "balanced",
                wards,
                same(150, 8),
                knn(9),
                "zero_one",
                error,
            ),
            Cell(
                f"voices 90x12 tree q{error}",
                "balanced",
                voices,
                same(90, 12),
                tree,
                "zero_one",
                error,
            ),
        ]
    made += [
        Cell(
            "voices 90x12 forest q0.1 brier", "balanced", voices, same(90, 12), forest, "brier", 0.1
        ),
        Cell("wards 150x8 boosted q0.1", "balanced", wards, same(150, 8), boosted, "zero_one", 0.1),
        Cell("wards 150x8 logistic q0.1", "null", wards, same(150, 8), logistic, "zero_one", 0.1),
        Cell("rings 120x9 knn5 q0.2", "null", rings, same(120, 9), knn(5), "zero_one", 0.2),
        Cell("rings 120x9 tree split0.3", "null", rings, same(120, 9), tree, "zero_one", 0, 0.3),
        Cell(
            "copies 400x1-4 knn1 q0.05", "tiny", copies, spread(400, 1, 4), knn(1), "zero_one", 0.05
        ),
        Cell(
            "copies 400x1-4 knn1 q0.1", "tiny", copies, spread(400, 1, 4), knn(1), "zero_one", 0.1
        ),
        Cell("copies 500x2 tree split0.3", "tiny", copies, same(500, 2), tree, "zero_one", 0, 0.3),
        Cell("wards 450x1-3 knn5 q0.1", "tiny", wards, spread(450, 1, 3), knn(5), "zero_one", 0.1),
        Cell(
            "voices lognormal knn3 q0.1",
            "unequal",
            voices,
            lognormal(120, 6, 1.0),
            knn(3),
            "zero_one",
            0.1,
        ),
        Cell(
            "voices lognormal tree split0.2",
            "unequal",
            voices,
            lognormal(120, 6, 1.0),
            tree,
            "zero_one",
            0,
            0.2,
        ),
        Cell(
            "shops lognormal trees q0.1",
            "unequal",
            shops,
            lognormal(130, 6, 1.0),
            trees,
            "squared",
            0.1,
        ),
        Cell(
            "genes 3-30 logistic q0.1",
            "unequal",
            genes,
            spread(70, 3, 30),
            logistic,
            "zero_one",
            0.1,
        ),
        Cell("voices 24x26 knn5 q0.1", "few", voices, same(24, 26), knn(5), "zero_one", 0.1),
        Cell("voices 24x26 tree split0.2", "few", voices, same(24, 26), tree, "zero_one", 0, 0.2),
        Cell("drifts 20x40 branch q0.1", "few", drifts, same(20, 40), branch, "absolute", 0.1),
        Cell("shops 140x7 near q0.05", "regression", shops, same(140, 7), near, "squared", 0.05),
        Cell("shops 140x7 near q0.2", "regression", shops, same(140, 7), near, "squared", 0.2),
        Cell(
            "drifts 110x9 near split0.3",
            "regression",
            drifts,
            same(110, 9),
            near,
            "squared",
            0,
            0.3,
        ),
        Cell("drifts 110x9 ridge q0.1", "null", drifts, same(110, 9), Ridge(), "squared", 0.1),
        Cell(
            "rare 160x8 knn7 brier q0.1", "probabilities", rare, same(160, 8), knn(7), "brier", 0.1
        ),
        Cell(
            "rare 160x8 naive log q0.1",
            "probabilities",
            rare,
            same(160, 8),
            GaussianNB(),
            "log",
            0.1,
        ),
        Cell(
            "wards 150x8 boosted log q0.1",
            "probabilities",
            wards,
            same(150, 8),
            boosted,
            "log",
            0.1,
        ),
        Cell(
            "votes 130x9 knn5 q0.1", "S-shaped", pairs_needed, same(130, 9), knn(5), "zero_one", 0.1
        ),
        Cell(
            "votes 130x9 knn15 q0.2",
            "S-shaped",
            pairs_needed,
            same(130, 9),
            knn(15),
            "zero_one",
            0.2,
        ),
        Cell(
            "wards 150x8 knn9 split0.2", "splits", wards, same(150, 8), knn(9), "zero_one", 0, 0.2
        ),
        Cell(
            "voices 90x12 forest split0.5",
            "splits",
            voices,
            same(90, 12),
            forest,
            "zero_one",
            0,
            0.5,
        ),
        Cell(
            "voices 90x12 tree both", "mixtures", voices, same(90, 12), tree, "zero_one", 0.05, 0.2
        ),
        Cell(
            "wards 150x8 knn9 both", "mixtures", wards, same(150, 8), knn(9), "zero_one", 0.05, 0.2
        ),
        Cell(
            "wards 150x8 knn9 range",
            "ranges",
            wards,
            same(150, 8),
            knn(9),
            "zero_one",
            0.14,
            0,
            {"cluster_error": (0.05, 0.15)},
        ),
        Cell(
            "voices 90x12 tree range",
            "ranges",
            voices,
            same(90, 12),
            tree,
            "zero_one",
            0.06,
            0,
            {"cluster_error": (0.05, 0.15)},
        ),
    ]
    return made


# --- One replicate


def draw(cell: Cell, seed: int, fresh_clusters: int = FRESH) -> tuple[Any, ...]:
    """Draw audited and fresh clusters together, so that both come from one world."""
    rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=cell.key))
    audited = cell.sizes(rng)
    draws = 1 + fresh_clusters // len(audited)
    fresh = np.concatenate([cell.sizes(rng) for _ in range(draws)])[:fresh_clusters]
    sizes = np.concatenate([audited, fresh])
    clusters = np.repeat(np.arange(len(sizes)), sizes)
    X, y = cell.world(clusters, rng)
    own = clusters < len(audited)
    return X[own], y[own], clusters[own], X[~own], y[~own], rng


def losses_of(name: str, model: Any, X: np.ndarray, y: np.ndarray) -> np.ndarray:
    if name in ("squared", "absolute"):
        error = model.predict(X) - y
        return error**2 if name == "squared" else np.abs(error)
    if name == "zero_one":
        return (model.predict(X) != y).astype(float)
    chance = model.predict_proba(X)[np.arange(len(y)), y]
    if name == "log":
        return -np.log(np.clip(chance, 1e-15, 1))
    return (1 - chance) ** 2


def grouped(cell: Cell, X: np.ndarray, y: np.ndarray, clusters: np.ndarray) -> float:
    """Cross-validate on folds by the true clusters, over several assignments to folds."""
    total = 0.0
    for assignment in range(ASSIGNMENTS):
        folds = GroupKFold(5, shuffle=True, random_state=assignment)
        for training, validation in folds.split(X, y, clusters):
            model = clone(cell.learner).fit(X[training], y[training])
            total += losses_of(cell.loss, model, X[validation], y[validation]).sum()
    return float(total / ASSIGNMENTS / len(y))


def replicate(
    cell: Cell,
    number: int,
    methods: list[str],
    budgets: list[int | None],
    told: list[str],
    fresh_clusters: int = FRESH,
) -> list[dict[str, Any]]:
    warnings.simplefilter("ignore")
    X, y, clusters, X_new, y_new, rng = draw(cell, number, fresh_clusters)
    values = []
    for training, _ in GroupKFold(5).split(X, y, clusters):
        model = clone(cell.learner).fit(X[training], y[training])
        values.append(losses_of(cell.loss, model, X_new, y_new).mean())
    by_true_ids = grouped(cell, X, y, clusters)
    ids = split(clusters, cell.split, rng) if cell.split else clusters
    ids = misplace(ids, cell.error, rng) if cell.error else ids
    order = rng.permutation(len(y))
    table = pd.DataFrame(X, columns=[f"x{i}" for i in range(X.shape[1])])
    table["y"], table["id"] = y, ids
    table = table.iloc[order].reset_index(drop=True)
    found = []
    for method, budget, how in product(methods, budgets, told):
        given = dict(cell.told_as(how))
        if method == "power" and len(given) > 1:
            given.pop("cluster_error")  # one pattern only
        started = time.process_time()
        report = b3.audit(
            cell.learner,
            table,
            target="y",
            cluster="id",
            loss=cell.loss,
            method=method,
            budget=budget,
            seed=number,
            progress=False,
            **given,
        )
        low, high = report.e0_interval
        found.append(
            {
                "cell": cell.name,
                "kind": cell.kind,
                "replicate": number,
                "method": method,
                "budget": budget,
                "told": how,
                "truth": float(np.mean(values)),
                "grouped": by_true_ids,
                "loco": report.loco,
                "iid": report.iid,
                "loco_low": report.loco_interval[0],
                "loco_high": report.loco_interval[1],
                "e0": report.e0,
                "low": low,
                "high": high,
                "error": cell.error,
                "split": cell.split,
                "refits": report.refits.done,
                "seconds": time.process_time() - started,
            }
        )
    return found


def rows(path: Path) -> Iterator[dict[str, Any]]:
    for line in path.read_text().splitlines():
        yield json.loads(line)


def summarize(path: Path) -> None:
    groups: dict[tuple[str, Any, str], dict[str, list[dict[str, Any]]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for row in rows(path):
        groups[row["method"], row["budget"], row["told"]][row["cell"]].append(row)
    for (method, budget, told), by_cell in groups.items():
        print(f"\n{method}, budget {budget}, told {told}")
        ratios, own_ratios, covered, total, widths = [], [], 0, 0, []
        kinds: dict[str, list[Any]] = defaultdict(list)
        print(
            f"{'cell':34} {'n':>3} {'truth':>7} {'LOCO':>8} {'rmse':>7} {'e0 bias':>8} {'rmse':>7} {'ratio':>6} {'true ids':>8} {'cover':>6} {'width':>7} {'/loco':>6} {'fits':>5}"
        )
        for name, found in by_cell.items():
            t, own_t, loco, e0 = (
                np.array([row[key] for row in found], dtype=float)
                for key in ("truth", "grouped", "loco", "e0")
            )
            low = np.array([row["low"] for row in found])
            high = np.array([np.inf if row["high"] is None else row["high"] for row in found])
            rmse_loco, rmse = (float(np.sqrt(np.mean((x - t) ** 2))) for x in (loco, e0))
            ratio, inside = rmse / rmse_loco, (low <= t) & (t <= high)
            own_ratio = math.sqrt(np.mean((e0 - own_t) ** 2) / np.mean((loco - own_t) ** 2))
            own = np.array([row["loco_high"] - row["loco_low"] for row in found])
            width = float(np.median(high - low)), float(np.median((high - low) / own))
            ratios.append(ratio)
            own_ratios.append(own_ratio)
            covered, total = covered + int(inside.sum()), total + len(inside)
            if 0 < found[0]["error"] <= 0.1 and not found[0]["split"]:
                widths.append(width[1])
            kinds[found[0]["kind"]].append((ratio, own_ratio, inside))
            fits = np.mean([row["refits"] for row in found])
            print(
                f"{name:34} {len(found):3} {t.mean():7.3f} {np.mean(loco - t):+8.3f} {rmse_loco:7.4f} {np.mean(e0 - t):+8.3f} {rmse:7.4f} {ratio:6.2f} {own_ratio:8.2f} {inside.mean():6.2f} {width[0]:7.3f} {width[1]:6.2f} {fits:5.0f}"
            )
        floors = [known_bias(found) for found in by_cell.values()]
        print(f"by true ids, if the mean bias of LOCO were known: {geometric(floors):.3f}")
        for name, of in (("new clusters", ratios), ("by true ids", own_ratios)):
            print(
                f"{name}: geometric mean {np.exp(np.mean(np.log(of))):.3f}, worst {max(of):.2f}, above 1.15: {sum(r > 1.15 for r in of)} of {len(of)}"
            )
        print(
            f"coverage {covered}/{total} = {covered / total:.3f}; median width / LOCO's at cluster error <= 0.1: {np.median(widths):.2f}"
        )
        for kind, parts in kinds.items():
            inside = np.concatenate([part for *_, part in parts])
            print(
                f"  {kind:14} ratio {np.exp(np.mean([math.log(r) for r, *_ in parts])):.2f}  by true ids {np.exp(np.mean([math.log(r) for _, r, _ in parts])):.2f}  coverage {inside.mean():.2f} of {len(inside)}"
            )


def known_bias(found: list[dict[str, Any]]) -> float:
    """Return the ratio of RMSEs of a LOCO whose mean bias in the cell is known, and of LOCO itself.

    No correction of a single audit can do better on average, except by finding out which rows leaked: it is sd/√(sd² + bias²),
    with the bias corrected for the noise of its own estimate.
    """
    off = np.array([row["loco"] - row["grouped"] for row in found])
    if len(off) < 2:
        return 1.0
    variance = float(off.var(ddof=1))
    square = max(float(off.mean()) ** 2 - variance / len(off), 0.0)
    return math.sqrt(variance / (variance + square))


def geometric(values: list[float]) -> float:
    return math.exp(np.mean(np.log(values)))


def compare(path: Path) -> None:
    """Print one line for each method, budget and statement of the rate.

    RMSEs are divided by that of LOCO in the same audit, and by that of LOCO in the audit of the replicate that
    made the most refits, which is the same for all lines.
    """
    found = list(rows(path))
    best: dict[tuple[str, int], dict[str, Any]] = {}
    for row in found:
        key = row["cell"], row["replicate"]
        if key not in best or row["refits"] > best[key]["refits"]:
            best[key] = row
    groups: dict[tuple[str, Any, str], list[dict[str, Any]]] = defaultdict(list)
    for row in found:
        groups[row["method"], row["budget"], row["told"]].append(row)
    print(
        "\n| method, budget, told | audits | by true ids (worst) | above 1.15 | against one LOCO | new clusters (worst) | coverage, true ids | coverage, new clusters | width | refits |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|")
    for name, audits in groups.items():
        ratios: dict[str, list[float]] = defaultdict(list)
        for cell in dict.fromkeys(row["cell"] for row in audits):
            part = [row for row in audits if row["cell"] == cell]
            one = [best[cell, row["replicate"]] for row in part]
            for key, truth, other in (
                ("own", "grouped", part),
                ("one", "grouped", one),
                ("new", "truth", part),
            ):
                far = sum((row["e0"] - row[truth]) ** 2 for row in part)
                ratios[key].append(
                    math.sqrt(far / sum((row["loco"] - row[truth]) ** 2 for row in other))
                )
        high = [math.inf if row["high"] is None else row["high"] for row in audits]
        covered = {
            truth: sum(
                row["low"] <= row[truth] <= end for row, end in zip(audits, high, strict=True)
            )
            for truth in ("grouped", "truth")
        }
        widths = [
            (end - row["low"]) / (row["loco_high"] - row["loco_low"])
            for row, end in zip(audits, high, strict=True)
        ]
        own, one, new = (ratios[key] for key in ("own", "one", "new"))
        print(
            f"| {', '.join(map(str, name))} | {len(audits)} | {geometric(own):.2f} ({max(own):.2f}) | {sum(r > 1.15 for r in own)} of {len(own)} "
            f"| {geometric(one):.2f} ({max(one):.2f}) | {geometric(new):.2f} ({max(new):.2f}) "
            f"| {covered['grouped']} | {covered['truth']} | {np.median(widths):.2f} | {np.mean([row['refits'] for row in audits]):.0f} |"
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--replicates", type=int, default=12)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--methods", nargs="+", default=["dose"])
    parser.add_argument("--budgets", nargs="+", default=["default"])
    parser.add_argument(
        "--told", nargs="+", choices=("right", "half", "double", "range"), default=["right"]
    )
    parser.add_argument("--only", default="")
    parser.add_argument("--cells", choices=("first", "fresh", "intervals"), default="first")
    parser.add_argument("--fresh", type=int, default=FRESH, help="clusters of the fresh sample")
    parser.add_argument("--some", action="store_true", help="eleven cells of all kinds")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("heldout.jsonl"))
    parser.add_argument("--summary", type=Path)
    given = parser.parse_args()
    if given.summary:
        summarize(given.summary)
        compare(given.summary)
        return
    wrong_rates = given.told != ["right"]
    budgets = [None if budget == "default" else int(budget) for budget in given.budgets]
    if given.cells == "fresh":
        from fresh_worlds import fresh_cells as chosen
    elif given.cells == "intervals":
        from fresh_worlds import interval_cells as chosen
    else:
        chosen = cells
    work = [
        delayed(replicate)(cell, number, given.methods, budgets, given.told, given.fresh)
        for number in range(given.first, given.first + given.replicates)
        for cell in chosen()
        if given.only in cell.name and (not given.some or cell.name in SOME)
        if not (wrong_rates and cell.told)  # these are told a range anyway
    ]
    with given.out.open("a") as file:
        for found in Parallel(given.jobs, return_as="generator_unordered")(work):
            for row in found:
                file.write(json.dumps(row) + "\n")
            file.flush()
    summarize(given.out)
    compare(given.out)


if __name__ == "__main__":
    main()
