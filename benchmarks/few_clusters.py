"""Is e0 better than no correction with three to nine clusters, most of them of unequal size?

Worlds are those of `fresh_worlds.py` that played no part when the estimate for few clusters was changed, with other
sizes and learners. The truth is cross-validation by the true ids, one cluster left out at a time.

    python benchmarks/few_clusters.py --replicates 4 --methods dose power --out few.jsonl
    python benchmarks/few_clusters.py --summary few.jsonl
"""

import argparse
import json
import math
import warnings
from collections import defaultdict
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from fresh_worlds import dialects, frames, habits, homes, tanks
from heldout_study import Cell, draw, geometric, knn, losses_of, misplace
from sklearn.base import clone
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor

import mlflow_b3 as b3

SIZES = (
    (70, 40, 25),
    (150, 90, 60, 20),
    (30, 30, 30, 30, 30),
    (80, 60, 40, 40, 25, 15),
    (60, 50, 40, 30, 25, 20, 12, 8),
    (15,) * 9,
    (120, 80, 70, 50, 45, 40, 30, 20, 10),
)
RATES = (0.05, 0.1, 0.2)


def cells() -> list[Cell]:
    forest = RandomForestClassifier(25, random_state=0)
    tree = DecisionTreeClassifier(min_samples_leaf=5, random_state=0)
    branch = DecisionTreeRegressor(min_samples_leaf=4, random_state=0)
    logistic = make_pipeline(StandardScaler(), LogisticRegression(C=0.5, max_iter=500))
    near = make_pipeline(StandardScaler(), KNeighborsRegressor(4))
    worlds = (
        (habits, "zero_one", (knn(7), forest)),
        (dialects, "zero_one", (knn(3), tree)),
        (frames, "zero_one", (logistic, knn(1))),
        (homes, "brier", (knn(9), forest)),
        (tanks, "squared", (near, branch)),
    )
    made = []
    for number, (sizes, (world, loss, learners)) in enumerate(product(SIZES, worlds)):
        learner, rate = learners[number % 2], RATES[number % 3]
        name = f"{world.__name__} {len(sizes)} clusters of {max(sizes)} rows or less, q{rate}"
        draw_sizes = lambda _, sizes=sizes: np.array(sizes)  # noqa: E731
        key = (123, number)
        made.append(Cell(name, world.__name__, world, draw_sizes, learner, loss, rate, key=key))
    return made


def replicate(cell: Cell, number: int, methods: list[str]) -> list[dict[str, Any]]:
    X, y, clusters, _, _, rng = draw(cell, number, 2)
    total = 0.0
    for own in np.unique(clusters):
        inside = clusters == own
        model = clone(cell.learner).fit(X[~inside], y[~inside])
        total += losses_of(cell.loss, model, X[inside], y[inside]).sum()
    table = pd.DataFrame(X).add_prefix("x")
    table["y"], table["id"] = y, misplace(clusters, cell.error, rng)
    given = {"loss": cell.loss, "cluster_error": cell.error, "seed": number, "progress": False}
    found = []
    for method in methods:
        report = b3.audit(cell.learner, table, target="y", cluster="id", method=method, **given)
        low, high = report.e0_interval
        row = {"cell": cell.name, "kind": cell.kind, "replicate": number, "method": method}
        scores = {"truth": total / len(y), "loco": report.loco, "e0": report.e0}
        found.append(row | scores | {"low": low, "high": high, "refits": report.refits.done})
    return found


def summarize(path: Path) -> None:
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    print("| method | world | audits | e0 / LOCO (worst) | above 1.15 | covers | refits |")
    for method in dict.fromkeys(row["method"] for row in rows):
        for kind in (*dict.fromkeys(row["kind"] for row in rows), None):
            own = [r for r in rows if r["method"] == method and kind in (None, r["kind"])]
            by_cell: dict[str, list[dict[str, Any]]] = defaultdict(list)
            for row in own:
                by_cell[row["cell"]].append(row)
            ratios = []
            for part in by_cell.values():
                off, before = (
                    sum((row[name] - row["truth"]) ** 2 for row in part) for name in ("e0", "loco")
                )
                ratios.append(math.sqrt(max(off, 1e-12) / max(before, 1e-12)))
            covered = sum(
                r["low"] <= r["truth"] <= (math.inf if r["high"] is None else r["high"])
                for r in own
            )
            refits = np.mean([row["refits"] for row in own])
            print(
                f"| {method} | {kind or 'all'} | {len(own)} | {geometric(ratios):.2f} ({max(ratios):.2f}) | "
                f"{sum(r > 1.15 for r in ratios)} of {len(ratios)} | {covered} | {refits:.0f} |"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--replicates", type=int, default=4)
    parser.add_argument("--methods", nargs="+", default=["dose"])
    parser.add_argument("--out", type=Path, default=Path("few.jsonl"))
    parser.add_argument("--summary", type=Path)
    given = parser.parse_args()
    if given.summary:
        summarize(given.summary)
        return
    warnings.simplefilter("ignore")
    with given.out.open("a") as file:
        for number, cell in product(range(given.replicates), cells()):
            for row in replicate(cell, number, given.methods):
                file.write(json.dumps(row) + "\n")
            file.flush()
    summarize(given.out)


if __name__ == "__main__":
    main()
