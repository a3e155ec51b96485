"""Development study of the dose-response estimate: simulate audits once, solve them many times.

    python benchmarks/dose_development.py simulate OUT [first_replicate last_replicate]
    python benchmarks/dose_development.py score OUT

`simulate` measures every cell and replicate and keeps the losses in OUT/*.npz. Two truths are kept
beside them: grouped cross-validation by the true clusters of the same rows (four assignments to
folds), and the loss of the same models on rows of fresh clusters. `score` solves them for several
numbers of refits. RMSE is that against grouped cross-validation; intervals are to cover the mean loss on
fresh clusters over all replicates of a cell.

These cells were looked at while the estimator was chosen. They say nothing about other worlds.
"""

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mlflow_b3.estimation.dose import DoseFit, DoseSolution
from mlflow_b3.estimation.dose_law import DoseLaw
from mlflow_b3.measurement.doses import DoseLosses

FOLDS = 5
#: Doses of the two designs that are compared, in units of a fifteenth of the cluster.
DESIGNS = {"A": ((0, 1, 3), 5), "B": ((0, 1, 2, 3, 5), 4)}
FRESH_ROWS = 2500


# --- Worlds: features, target, true cluster


def sizes_of(kind: str, rng: np.random.Generator) -> np.ndarray:
    """Return the numbers of rows of all clusters."""
    if kind == "ten":
        return np.full(120, 10)
    if kind == "zipf":
        sizes = np.maximum(1, np.round(90 / np.arange(1, 161) ** 0.8)).astype(int)
        return rng.permutation(sizes)
    if kind == "tiny":
        return rng.integers(1, 5, 400)
    if kind == "mixed":
        return 1 + rng.poisson(5, 170)
    if kind == "few":
        return rng.integers(30, 60, 20)
    if kind == "fewest":
        return rng.integers(60, 110, 10)
    if kind == "big":
        return rng.integers(20, 35, 45)
    raise ValueError(kind)


def clinic(cluster: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    n = cluster.max() + 1
    state = rng.normal(size=(n, 5))
    hidden = rng.normal(size=n) * 4.0
    X = state[cluster] + 0.2 * rng.normal(size=(len(cluster), 5))
    score = X @ np.array([3.0, -2.0, 1.4, 0, 0]) + hidden[cluster] + rng.logistic(size=len(cluster))
    return X, (score > 0).astype(int)


def intercept(cluster: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Half of the features belong to the cluster, half to the row; a random intercept."""
    n = cluster.max() + 1
    X = rng.normal(size=(len(cluster), 6))
    X[:, :3] = rng.normal(size=(n, 3))[cluster] + 0.4 * X[:, :3]
    score = X[:, 3] + 0.7 * X[:, 0] + 1.5 * rng.normal(size=n)[cluster]
    return X, (score + rng.logistic(size=len(cluster)) > 0).astype(int)


def duplicates(cluster: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Let records repeat their cluster almost exactly, and the labels too."""
    n = cluster.max() + 1
    state = rng.normal(size=(n, 4))
    label = (state[:, 0] + 1.2 * rng.normal(size=n) > 0).astype(int)
    flip = rng.random(len(cluster)) < 0.05
    return state[cluster] + 0.02 * rng.normal(size=(len(cluster), 4)), label[cluster] ^ flip


def wide(cluster: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    n = cluster.max() + 1
    X = rng.normal(size=(len(cluster), 50)) + 0.7 * rng.normal(size=(n, 50))[cluster]
    score = X[:, :5].sum(1) * 0.5 + 1.5 * rng.normal(size=n)[cluster]
    return X, (score + rng.logistic(size=len(cluster)) > 0).astype(int)


def null(cluster: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    X = rng.normal(size=(len(cluster), 5))
    return X, (X[:, 0] - X[:, 1] + rng.logistic(size=len(cluster)) > 0).astype(int)


def regression(cluster: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    n = cluster.max() + 1
    X = rng.normal(size=(n, 5))[cluster] + 0.3 * rng.normal(size=(len(cluster), 5))
    y = X[:, 0] + np.sin(2 * X[:, 1]) + rng.normal(size=n)[cluster]
    return X, y + 0.5 * rng.normal(size=len(cluster))


def heavy(cluster: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    n = cluster.max() + 1
    X = rng.normal(size=(n, 4))[cluster] + 0.3 * rng.normal(size=(len(cluster), 4))
    y = X[:, 0] + rng.standard_t(3, size=n)[cluster]
    return X, y + 0.7 * rng.standard_t(3, size=len(cluster))


def multiple(cluster: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Four classes, of which a cluster prefers one."""
    n = cluster.max() + 1
    X = rng.normal(size=(n, 4))[cluster] + 0.4 * rng.normal(size=(len(cluster), 4))
    W = np.array([[1, -1, 0, 0], [0, 1, -1, 0], [0, 0, 1, -1], [0.5, 0, 0, -0.5]]).T
    score = X @ W + 2.0 * rng.normal(size=(n, 4))[cluster]
    return X, np.argmax(score + rng.gumbel(size=score.shape), axis=1)


WORLDS: dict[str, Callable[..., tuple[np.ndarray, np.ndarray]]] = {
    f.__name__: f for f in (clinic, intercept, duplicates, wide, null, regression, heavy, multiple)
}


# --- Learners: fit on rows, return the losses of other rows


class Problem:
    """All rows of one replicate, its own first, then those of fresh clusters."""

    def __init__(self, X: np.ndarray, y: np.ndarray, n: int, learner: str, loss: str) -> None:
        self.X, self.y, self.n, self.learner, self.loss = X, y, n, learner, loss
        self.classes = int(y.max()) + 1 if y.dtype.kind == "i" else 0
        if "nn" in learner:
            own = X[:n]
            self.distance = ((X**2).sum(1)[:, None] + (own**2).sum(1)[None] - 2 * X @ own.T).astype(
                np.float32
            )

    def losses(self, train: np.ndarray, score: np.ndarray, seed: int) -> np.ndarray:
        """Fit on some rows and return the losses of others."""
        y, P = self.y[score], self._predict(train, score, seed)
        if not self.classes:
            return (y - P) ** 2
        if self.loss == "zero_one":
            return (np.argmax(P, axis=1) != y).astype(float)
        if self.loss == "brier":
            return ((P - np.eye(self.classes)[y]) ** 2).sum(1)
        return -np.log(np.clip(P[np.arange(len(y)), y], 0.01, 1))

    def _predict(self, train: np.ndarray, score: np.ndarray, seed: int) -> np.ndarray:
        if self.learner.endswith("nn"):
            k = int(self.learner[:-2])
            near = self.distance[np.ix_(score, train)]
            nearest = train[
                near.argmin(1)[:, None] if k == 1 else np.argpartition(near, k, axis=1)[:, :k]
            ]
            if not self.classes:
                return self.y[nearest].mean(1)
            return np.eye(self.classes)[self.y[nearest]].mean(1)
        model = make_model(self.learner, seed, bool(self.classes))
        model.fit(self.X[train], self.y[train])
        if not self.classes:
            return np.asarray(model.predict(self.X[score]))
        P = np.zeros((len(score), self.classes))
        P[:, model.classes_] = model.predict_proba(self.X[score])
        return P


def make_model(name: str, seed: int, classify: bool) -> Any:
    from sklearn.ensemble import (
        GradientBoostingClassifier,
        GradientBoostingRegressor,
        RandomForestClassifier,
        RandomForestRegressor,
    )
    from sklearn.linear_model import LogisticRegression, Ridge
    from sklearn.naive_bayes import GaussianNB
    from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor

    if name == "tree":
        tree = DecisionTreeClassifier if classify else DecisionTreeRegressor
        return tree(min_samples_leaf=3, random_state=seed)
    if name == "forest":
        forest = RandomForestClassifier if classify else RandomForestRegressor
        return forest(15, random_state=seed)
    if name == "boosting":
        boost = GradientBoostingClassifier if classify else GradientBoostingRegressor
        return boost(n_estimators=25, max_depth=4, learning_rate=0.3, random_state=seed)
    if name == "logistic":
        return LogisticRegression(C=1.0, max_iter=200)
    if name == "ridge":
        return Ridge(1.0)
    return GaussianNB()


# --- Damage of ids


def damage(true: np.ndarray, q: float, split: float, rng: np.random.Generator) -> np.ndarray:
    ids = true.copy()
    following = ids.max() + 1
    if split:
        for c in np.unique(true):
            own = rng.permutation(np.flatnonzero(true == c))
            if len(own) > 1 and rng.random() < split:
                ids[own[: rng.integers(1, len(own))]] = following
                following += 1
    wrong = rng.random(len(ids)) < q
    ids[wrong] = rng.permutation(ids)[wrong] if q else ids[wrong]
    return np.unique(ids, return_inverse=True)[1]


# --- Measurement: whole folds and rotated doses


def doses_of(size: int, base: tuple[int, ...]) -> list[int]:
    unit = max(1, round(size / 15))
    return [unit * b for b in base if unit * b < size and (unit * b <= 0.6 * size or b <= 1)]


def assign_folds(ids: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    size = np.bincount(ids)
    fold, load = np.empty(len(size), int), np.zeros(FOLDS)
    order = rng.permutation(len(size))
    rank = np.minimum(size[order] // (2 * np.median(size) + 1), 9)
    for c in order[np.argsort(-rank, kind="stable")]:
        k = int(np.argmin(load + rng.random(FOLDS) * 1e-3))
        fold[c] = k
        load[k] += size[c]
    return fold


def measure(
    problem: Problem, ids: np.ndarray, base: tuple[int, ...], passes: int, rng: np.random.Generator
) -> dict[str, np.ndarray]:
    """Return losses by pass, level and row, with the last level for rows held back."""
    size = np.bincount(ids)
    doses = [doses_of(int(s), base) for s in size]
    J, n = max(map(len, doses)), len(ids)
    sums, counts = np.zeros((passes, J + 1, n)), np.zeros((passes, J + 1, n))
    whole, folds = np.zeros((passes, n)), np.zeros((passes, len(size)), int)
    held = []
    for p in range(passes):
        folds[p] = assign_folds(ids, rng)
        of_row = folds[p][ids]
        for k in range(FOLDS):
            train, valid = np.flatnonzero(of_row != k), np.flatnonzero(of_row == k)
            whole[p, valid] = problem.losses(train, valid, int(rng.integers(2**31)))
            groups = [valid[ids[valid] == c] for c in np.unique(ids[valid])]
            start = rng.integers(0, 1000, len(groups))
            for step in range(J):
                inject, score, level = [], [], []
                for g, rows in enumerate(groups):
                    own = doses[ids[rows[0]]]
                    j = int(start[g] + step) % len(own)
                    r = rng.permutation(rows)
                    inject.append(r[: own[j]])
                    score.append(r[own[j] :])
                    level.append(np.full(len(rows) - own[j], j))
                inj, sc, lev = map(np.concatenate, (inject, score, level))
                seen = counts[:, J, train].sum(0) + rng.random(len(train))
                out = train[np.argsort(seen)[: len(inj)]]
                T = np.concatenate([np.setdiff1d(train, out), inj])
                scored = np.concatenate([sc, out])
                losses = problem.losses(T, scored, int(rng.integers(2**31)))
                np.add.at(sums[p], (lev, sc), losses[: len(sc)])
                np.add.at(counts[p], (lev, sc), 1)
                sums[p, J, out] += losses[len(sc) :]
                counts[p, J, out] += 1
                held.append(len(out) / len(train))
    return {
        "sums": sums.astype(np.float32),
        "counts": counts.astype(np.uint8),
        "whole": whole.astype(np.float32),
        "folds": folds.astype(np.uint8),
        "held_back": np.array(np.mean(held)),
    }


# --- Cells


@dataclass(frozen=True)
class Cell:
    """A world, sizes of clusters, a learner, a loss, and how the ids are damaged."""

    world: str
    sizes: str
    learner: str
    q: float = 0.0
    split: float = 0.0
    loss: str = "zero_one"

    @property
    def name(self) -> str:
        """Name of the files."""
        return f"{self.world}-{self.sizes}-{self.learner}-q{self.q:g}-s{self.split:g}-{self.loss}"


CELLS = [
    Cell("clinic", "ten", "5nn", 0.05),
    Cell("clinic", "ten", "5nn", 0.1),
    Cell("clinic", "ten", "5nn", 0.2),
    Cell("clinic", "ten", "tree", 0.1),
    Cell("clinic", "ten", "tree", 0.0, 0.3),
    Cell("clinic", "ten", "logistic", 0.2),
    Cell("clinic", "ten", "logistic", 0.0, 0.3),
    Cell("clinic", "ten", "5nn", 0.0, 0.2),
    Cell("clinic", "ten", "5nn", 0.05, 0.2),
    Cell("clinic", "zipf", "5nn", 0.1),
    Cell("clinic", "zipf", "tree", 0.2),
    Cell("clinic", "tiny", "1nn", 0.1),
    Cell("clinic", "tiny", "tree", 0.0, 0.5),
    Cell("clinic", "mixed", "forest", 0.1),
    Cell("clinic", "few", "tree", 0.1),
    Cell("clinic", "fewest", "5nn", 0.1),
    Cell("duplicates", "mixed", "1nn", 0.1),
    Cell("duplicates", "ten", "3nn", 0.1),
    Cell("duplicates", "ten", "1nn", 0.0, 0.3),
    Cell("intercept", "ten", "tree", 0.2),
    Cell("intercept", "zipf", "nb", 0.1),
    Cell("intercept", "big", "5nn", 0.1),
    Cell("intercept", "ten", "boosting", 0.1),
    Cell("wide", "mixed", "logistic", 0.1),
    Cell("wide", "mixed", "5nn", 0.2, 0.0, "brier"),
    Cell("null", "ten", "tree", 0.1),
    Cell("null", "ten", "5nn", 0.2),
    Cell("null", "mixed", "tree", 0.0, 0.3),
    Cell("regression", "ten", "5nn", 0.1, 0.0, "squared"),
    Cell("regression", "mixed", "tree", 0.0, 0.3, "squared"),
    Cell("regression", "ten", "ridge", 0.2, 0.0, "squared"),
    Cell("heavy", "mixed", "5nn", 0.1, 0.0, "squared"),
    Cell("multiple", "ten", "5nn", 0.1, 0.0, "log"),
    Cell("multiple", "mixed", "forest", 0.05, 0.2, "log"),
]


def simulate(cell: Cell, replicate: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng([CELLS.index(cell), replicate, 7])
    sizes = sizes_of(cell.sizes, rng)
    own = np.repeat(np.arange(len(sizes)), sizes)
    more = [own + 0]
    rows = 0
    while rows < FRESH_ROWS:  # fresh clusters have the same law of sizes
        again = sizes_of(cell.sizes, rng)
        more.append(np.repeat(np.arange(len(again)), again) + more[-1].max() + 1)
        rows += int(again.sum())
    cluster = np.concatenate(more)
    X, y = WORLDS[cell.world](cluster, rng)
    n = len(own)
    problem = Problem(X, y, n, cell.learner, cell.loss)
    fresh = np.arange(n, len(cluster))
    grouped, outside = [], []
    for _ in range(4):
        fold = assign_folds(own, rng)[own]
        losses = np.zeros(n)
        for k in range(FOLDS):
            train, valid = np.flatnonzero(fold != k), np.flatnonzero(fold == k)
            both = problem.losses(train, np.concatenate([valid, fresh]), int(rng.integers(2**31)))
            losses[valid] = both[: len(valid)]
            outside.append(both[len(valid) :].mean())
        grouped.append(losses.mean())
    ids = damage(own, cell.q, cell.split, rng)
    out: dict[str, np.ndarray] = {
        "ids": ids.astype(np.int32),
        "true": own.astype(np.int32),
        "grouped": np.array(np.mean(grouped)),
        "fresh": np.array(np.mean(outside)),
        "top": np.array(y.max()),
    }
    for name, (base, passes) in DESIGNS.items():
        for key, value in measure(problem, ids, base, passes, rng).items():
            out[f"{name}_{key}"] = value
    return out


def simulate_all(folder: Path, first: int, last: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for replicate in range(first, last):
        for cell in CELLS:
            path = folder / f"{cell.name}-{replicate}.npz"
            if path.exists():
                continue
            start = time.process_time()
            out = simulate(cell, replicate)
            out["seconds"] = np.array(time.process_time() - start)
            np.savez_compressed(path, **out)


# --- Scoring

#: Refits: whole assignments to folds, complete rotations, further steps of a rotation.
BUDGETS = {10: (1, 0, 1), 30: (3, 0, 3), 60: (6, 1, 1), 95: (9, 2, 0)}
DOSES = DESIGNS["B"][0]


def part_of(stored: dict[str, np.ndarray], whole: int, rotations: int, steps: int) -> DoseLosses:
    """Return what a smaller number of refits would have measured."""
    ids = stored["ids"]
    doses = [doses_of(int(size), DOSES) for size in np.bincount(ids)]
    sums, counts = (stored[f"B_{name}"].astype(float) for name in ("sums", "counts"))
    rng = np.random.default_rng(1)
    first = rng.integers(0, 1000, len(doses))
    kept = np.zeros(counts.shape[1:], dtype=bool)
    for step in range(steps):  # each cluster at one more of its doses
        level = np.array([(first[c] + step) % len(own) for c, own in enumerate(doses)])[ids]
        kept[level, np.arange(len(ids))] = True
    kept[-1] = rng.random(len(ids)) < steps / len(DOSES)
    none = np.zeros((1, len(ids)))  # no folds of single rows in this study
    return DoseLosses.from_rows(
        clusters=ids,
        doses=doses,
        sums=np.vstack([sums[:rotations].sum(axis=0) + sums[rotations] * kept, none]),
        counts=np.vstack([counts[:rotations].sum(axis=0) + counts[rotations] * kept, none]),
        training_share=1 - 1 / FOLDS,
        held_back_share=0.0,
        whole=np.concatenate([stored["B_whole"], stored["A_whole"]])[:whole],
        folds=np.concatenate([stored["B_folds"], stored["A_folds"]])[:whole, ids],
        refits=FOLDS * (whole + rotations * len(DOSES) + steps),
    )


def class_of(cell: Cell) -> str:
    if cell.world == "null":
        return "no effect"
    if cell.sizes in ("few", "fewest"):
        return "few clusters"
    if cell.loss != "zero_one":
        return cell.loss
    return "splits, mixtures" if cell.split else cell.sizes


def score_all(folder: Path) -> None:
    found: dict[int, dict[Cell, list[tuple[float, float, DoseSolution]]]] = {b: {} for b in BUDGETS}
    for cell in CELLS:
        top = {"zero_one": 1.0, "brier": 2.0}.get(cell.loss)
        for path in sorted(folder.glob(f"{cell.name}-*.npz")):
            stored = dict(np.load(path))
            law = DoseLaw(
                np.bincount(stored["ids"]),
                lambda size: doses_of(size, DOSES),
                cluster_error=cell.q,
                split_rate=cell.split,
                held_back=float(stored["B_held_back"]),
            )
            for budget, parts in BUDGETS.items():
                fit = DoseFit(part_of(stored, *parts), bounds=(0.0, top))
                truths = float(stored["grouped"]), float(stored["fresh"])
                found[budget].setdefault(cell, []).append((*truths, fit.estimate(law)))
    for budget, cells in found.items():
        print_table(budget, cells)


def print_table(budget: int, cells: dict[Cell, list[tuple[float, float, DoseSolution]]]) -> None:
    rows: dict[str, list[tuple[float, float, list[bool], float]]] = {}
    for cell, audits in cells.items():
        grouped = np.array([truth for truth, _, _ in audits])
        fresh = float(np.mean([truth for _, truth, _ in audits]))
        e0, loco = (np.array([getattr(e, name) for *_, e in audits]) for name in ("e0", "loco"))
        ratios = [
            float(np.sqrt(np.mean((e0 - t) ** 2) / np.mean((loco - t) ** 2)))
            for t in (grouped, fresh)
        ]
        covered = [e.interval[0] <= fresh <= e.interval[1] for *_, e in audits]
        widths = [np.ptp(e.interval) / np.ptp(e.loco_interval) for *_, e in audits]
        for name in (class_of(cell), "all"):
            row = (ratios[0], ratios[1], covered, float(np.median(widths)))
            rows.setdefault(name, []).append(row)
    print(
        f"\n{budget} refits\n{'class':18s} cells  RMSE ratio (worst)  fresh (worst)  coverage  width"
    )
    for name, found in sorted(rows.items(), key=lambda item: item[0] == "all"):
        near, far = (np.array([row[k] for row in found]) for k in (0, 1))
        covered = [x for row in found for x in row[2]]
        print(
            f"{name:18s} {len(found):5d}  {np.exp(np.log(near).mean()):10.2f} ({near.max():.2f})"
            f"  {np.exp(np.log(far).mean()):7.2f} ({far.max():.2f})  {np.mean(covered):8.3f}"
            f"  {np.median([row[3] for row in found]):5.2f}"
        )


if __name__ == "__main__":
    if sys.argv[1] == "simulate":
        span = [int(x) for x in sys.argv[3:5]] or [0, 12]
        simulate_all(Path(sys.argv[2]), *span)
    else:
        score_all(Path(sys.argv[2]))
