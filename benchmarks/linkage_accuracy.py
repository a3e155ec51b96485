"""From person records to e0, end to end: what each source says about p0, against the truth.

    python benchmarks/linkage_accuracy.py
    python benchmarks/linkage_accuracy.py --quick

Records are those of examples/person_records.py, linked by Splink (the extra `splink`); clusters are
the components of the pairs with a match probability from 0.9 on, in five folds of whole clusters.
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from sklearn.model_selection import GroupKFold

from mlflow_b3 import linkage

sys.path.append(str(Path(__file__).parents[1] / "examples"))
from person_records import PersonRecords, link_records, make_person_records

NOISE = (0.08, 0.15, 0.25)
THRESHOLD = 0.9
K = 5


@dataclass(frozen=True, kw_only=True)
class Case:
    """Linked records with their truth."""

    noise: float
    seed: int
    records: PersonRecords
    pairs: linkage.PairTable
    clusters: np.ndarray
    folds: np.ndarray
    truth: linkage.Leak


def simulate(noise: float, seed: int) -> Case:
    records = make_person_records(noise=noise, seed=seed)
    scored = link_records(records.identity, seed=seed)
    rows = pd.Series(np.arange(len(records.frame)), index=records.identity["record_id"])
    i, j = (rows[scored[f"record_id_{side}"]].to_numpy() for side in "lr")
    pairs = linkage.PairTable.of(i, j, scored["match_probability"], len(rows))
    clusters = components(pairs)
    folds = whole_folds(clusters, seed)
    truth = linkage.leak_truth(records.persons, folds, clusters)
    return Case(
        noise=noise,
        seed=seed,
        records=records,
        pairs=pairs,
        clusters=clusters,
        folds=folds,
        truth=truth,
    )


def components(pairs: linkage.PairTable) -> np.ndarray:
    i, j, p = pairs
    near = p >= THRESHOLD
    graph = coo_array((np.ones(near.sum()), (i[near], j[near])), shape=(pairs.n, pairs.n))
    return connected_components(graph, directed=False)[1]


def whole_folds(clusters: np.ndarray, seed: int) -> np.ndarray:
    """Assign clusters to folds as the audit does."""
    groups = np.random.default_rng([seed, 0]).permutation(clusters.max() + 1)[clusters]
    folds = np.empty(len(groups), dtype=int)
    for fold, (_, validation) in enumerate(GroupKFold(K).split(groups[:, None], groups=groups)):
        folds[validation] = fold
    return folds


def linked_pairs(labels: np.ndarray) -> int:
    counts = np.unique(labels, axis=0, return_counts=True)[1]
    return int((counts * (counts - 1) // 2).sum())


def linkage_row(case: Case) -> dict[str, float]:
    true, clusters = case.records.persons, case.clusters
    both = np.column_stack([true, clusters])
    i, j, _ = case.pairs
    split = np.array(case.truth.split_counts) > 0
    own = fragment_shares(true, clusters)[split]
    return {
        "records": len(true),
        "scored pairs": len(case.pairs),
        "block recall": float((true[i] == true[j]).sum()) / linked_pairs(true),
        "precision": linked_pairs(both) / linked_pairs(clusters),
        "recall": linked_pairs(both) / linked_pairs(true),
        "split rate": case.truth.split_rate,
        "p0": case.truth.p0,
        "p0_validation": case.truth.p0_validation,
        "ids of a split row's person": 1 + float(np.mean(np.array(case.truth.split_counts)[split])),
        "own share of a split row": float(np.mean(own)),
    }


def fragment_shares(true: np.ndarray, clusters: np.ndarray) -> np.ndarray:
    """Return for each row which share of its person's records is in its own cluster."""
    table = pd.DataFrame({"true": true, "cluster": clusters})
    own = table.groupby(["true", "cluster"])["true"].transform("size")
    return (own / table.groupby("true")["true"].transform("size")).to_numpy()


def print_table(title: str, rows: Iterable[tuple[float, dict[str, float]]]) -> None:
    """Print the mean of each figure over the seeds of a noise level."""
    frame = pd.DataFrame([{"noise": noise, **row} for noise, row in rows])
    means = frame.groupby("noise").mean()
    print(f"\n{title}\n\n| noise | " + " | ".join(means.columns) + " |")
    print("|---" * (len(means.columns) + 1) + "|")
    for noise, row in means.iterrows():
        print(f"| {noise} | " + " | ".join(_number(value) for value in row) + " |")


def _number(value: float) -> str:
    return (
        f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}" if value >= 1 else f"{value:.4f}"
    )


def over_cases(cases: list[Case], row: Callable[[Case], dict[str, float]]) -> list:
    return [(case.noise, row(case)) for case in cases]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--noise", type=float, nargs="+", default=NOISE)
    parser.add_argument("--quick", action="store_true", help="two seeds, few draws")
    options = parser.parse_args()
    started = time.perf_counter()
    seeds = 2 if options.quick else options.seeds
    cases = [simulate(noise, seed) for noise in options.noise for seed in range(seeds)]
    print_table(f"The linkage ({seeds} seeds, means):", over_cases(cases, linkage_row))
    print(f"\nAll of this took {time.perf_counter() - started:.0f} s.")


if __name__ == "__main__":
    main()
