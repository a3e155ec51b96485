"""From person records to e0, end to end: what each source says about p0, against the truth.

    python benchmarks/linkage_accuracy.py
    python benchmarks/linkage_accuracy.py --quick

Records are those of examples/person_records.py, linked by Splink (the extra `splink`); clusters are
the components of the pairs with a match probability from 0.9 on, in five folds of whole clusters.
Reviewers are simulated: they find every record of a person, or those that linkage lists as
candidates only. Figures are means over seeds, and over draws of the reviewed rows.
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.special import logit
from sklearn.ensemble import RandomForestClassifier
from sklearn.model_selection import GroupKFold, cross_val_predict
from sklearn.neighbors import KNeighborsClassifier

import mlflow_b3 as b3
from mlflow_b3 import linkage

sys.path.append(str(Path(__file__).parents[1] / "examples"))
from person_records import FEATURES, PersonRecords, link_records, make_person_records

NOISE = (0.08, 0.15, 0.25)
THRESHOLD = 0.9
SAFE_THRESHOLDS = (0.5, 0.1, 0.05)
K = 5
REVIEWED = (100, 300)
LEARNERS = {
    "k-NN": KNeighborsClassifier(5),
    "forest": RandomForestClassifier(10, min_samples_leaf=2, random_state=0),
}
Row = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Case:
    """Linked records with their truth."""

    noise: float
    seed: int
    records: PersonRecords
    pairs: linkage.PairTable
    clusters: np.ndarray
    folds: np.ndarray
    truth: linkage.leak.Leak
    scores: linkage.LeakEstimate

    def review(self, sample: linkage.review.ReviewSample, *, listed_only: bool = False) -> Any:
        """Look up the mates of sampled rows; `listed_only` passes over what was never scored."""
        true, (first, second, _) = self.records.persons, self.pairs
        mates = []
        for row in sample.rows.tolist():
            found = np.flatnonzero(true == true[row])
            if listed_only:
                partners = np.concatenate([second[first == row], first[second == row]])
                own = self.clusters[found] == self.clusters[row]
                found = found[own | np.isin(found, partners)]
            mates.append(found[found != row])
        return linkage.ResolvedRows.of(sample.rows, mates, sample.n, sample.strata)

    def sample(self, rows: int, seed: int, *, stratified: bool) -> linkage.review.ReviewSample:
        """Draw rows for review, by what the match probabilities say if `stratified`."""
        scores = self.scores.row_probability if stratified else None
        return linkage.sample_rows(self.pairs.n, rows, scores, seed)


def simulate(noise: float, seed: int) -> Case:
    records = make_person_records(noise=noise, seed=seed)
    scored = link_records(records.identity, seed=seed)
    pairs = linkage.from_splink(scored, records.identity["record_id"], id_column="record_id")
    i, j, p = pairs
    near = p >= THRESHOLD
    clusters = np.asarray(linkage.components(pairs.n, i[near], j[near]))
    folds = whole_folds(clusters, seed)
    return Case(
        noise=noise,
        seed=seed,
        records=records,
        pairs=pairs,
        clusters=clusters,
        folds=folds,
        truth=linkage.leak_truth(records.persons, folds, clusters),
        scores=linkage.leak_from_pairs(*pairs, folds, clusters),
    )


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


def quality(true: np.ndarray, clusters: np.ndarray) -> tuple[float, float]:
    """Return recall and precision of clusters, in pairs of records."""
    right = linked_pairs(np.column_stack([true, clusters]))
    return right / linked_pairs(true), right / linked_pairs(clusters)


def clusterings(case: Case) -> list[Row]:
    """Return what other clusterings of the same scores leak."""
    i, j, p = case.pairs
    log_odds = logit(np.clip(p, 1e-9, 1 - 1e-9))
    labels = {f"components from {THRESHOLD}": case.clusters}
    made = {}
    for missing in (0.0, -3.0):
        found = linkage.correlation_cluster(case.pairs.n, i, j, log_odds, missing)
        name = f"correlation clustering, {missing:g} for other pairs"
        labels[name], made[name] = np.array(found.labels), found
    rows = []
    for name, clusters in labels.items():
        recall, precision = quality(case.records.persons, clusters)
        truth = linkage.leak_truth(case.records.persons, whole_folds(clusters, case.seed))
        gap = made[name].gap / made[name].cost if name in made else np.nan
        rows.append(
            {
                "clusters": name,
                "recall": recall,
                "precision": precision,
                "p0": truth.p0,
                "p0_validation": truth.p0_validation,
                "gap to the optimum": gap,
            }
        )
    return rows


def describe(case: Case) -> list[Row]:
    true = case.records.persons
    i, j, _ = case.pairs
    recall, precision = quality(case.records.persons, case.clusters)
    ids = 1 + np.array(case.truth.split_counts)
    table = pd.DataFrame({"true": true, "cluster": case.clusters})
    own = table.groupby(["true", "cluster"])["true"].transform("size")
    return [
        {
            "records": len(true),
            "scored pairs": len(case.pairs),
            "block recall": float((true[i] == true[j]).sum()) / linked_pairs(true),
            "recall": recall,
            "precision": precision,
            "split rate": case.truth.split_rate,
            "p0": case.truth.p0,
            "p0_validation": case.truth.p0_validation,
            "ids of a split row's person": float(ids[ids > 1].mean()),
            "records under its own id": float(own[ids > 1].mean()),
        }
    ]


def sources(case: Case) -> list[Row]:
    """Return what each source says about the leak shares of the folds."""
    recall, precision = quality(case.records.persons, case.clusters)
    rng = np.random.default_rng([case.seed, 2])
    checked = 300
    counted = rng.binomial(checked, recall) / checked
    sample = case.sample(checked, case.seed, stratified=True)
    rows, listed = case.review(sample), case.review(sample, listed_only=True)
    inputs = (case.folds, case.clusters)
    said = {
        "match probabilities": case.scores,
        "300 resolved rows": rows.leak(*inputs),
        "the same, candidates only": listed.leak(*inputs),
        "recall and precision": linkage.leak_from_quality(recall, precision, case.clusters, K),
        "recall of 300 pairs": linkage.leak_from_quality(
            counted, None, case.clusters, K, recall_n=checked
        ),
        "split rate, in two": linkage.leak_from_split_rate(case.truth.split_rate, K),
        "split rate, in two to five": linkage.leak_from_split_rate(
            case.truth.split_rate, K, m_max=4
        ),
    }
    made: list[Row] = []
    for source, leak in said.items():
        row: Row = {"source": source, "kind": leak.kind}
        for name, share, true in (
            ("p0", leak.train, case.truth.p0),
            ("p0_validation", leak.validation, case.truth.p0_validation),
        ):
            row |= {
                name: true,
                f"{name} said": np.nan if share.point is None else share.point,
                f"{name} low": share.low,
                f"{name} high": share.high,
                f"{name} held": float(share.low <= true <= share.high),
            }
        made.append(row)
    return made


def coverage(case: Case, draws: int) -> list[Row]:
    """Return errors and coverage of intervals from resolved rows, one line for each draw."""
    made = []
    ways = [("uniform", False), ("stratified", False), ("stratified, candidates only", True)]
    for (way, listed_only), reviewed in product(ways, REVIEWED):
        for draw in range(draws):
            seed = 1000 * case.seed + draw
            sample = case.sample(reviewed, seed, stratified=way != "uniform")
            leak = case.review(sample, listed_only=listed_only).leak(case.folds, case.clusters)
            row: Row = {"sample": way, "rows": reviewed}
            for name, share, true in (
                ("p0", leak.train, case.truth.p0),
                ("p0_validation", leak.validation, case.truth.p0_validation),
            ):
                row |= {
                    f"{name} bias": share.point / true - 1,
                    f"{name} RMSE": (share.point / true - 1) ** 2,
                    f"{name} width": (share.high - share.low) / true,
                    f"{name} coverage": float(share.low <= true <= share.high),
                }
            made.append(row)
    return made


def levers(case: Case) -> list[Row]:
    """Return what leak-safe folds and purging leave of the leak, and what they cost."""
    curve = linkage.leak_curve(
        *case.pairs,
        K,
        case.clusters,
        SAFE_THRESHOLDS,
        leak=lambda folds: linkage.leak_truth(case.records.persons, folds),
        seed=case.seed,
    )
    return [
        {
            "lever": point.lever,
            "threshold": THRESHOLD if point.threshold is None else point.threshold,
            "p0": point.train.point,
            "p0_validation": point.validation.point,
            "largest group": point.largest_group,
            "imbalance": point.imbalance,
            "training rows dropped": point.rows_dropped,
        }
        for point in curve.points
    ]


def audits(case: Case, learners: list[str], fits: int) -> list[Row]:
    """Return how far e0 with 300 resolved rows is from the truth."""
    resolved = case.review(case.sample(300, case.seed, stratified=True))
    frame = case.records.frame.assign(person_id=case.clusters)
    made = []
    for name in learners:
        model = LEARNERS[name]
        report = b3.audit(
            model,
            frame,
            target="disease",
            cluster="person_id",
            row_id="record_id",
            resolved_rows=resolved,
            match_probability=case.pairs,
            method="power",
            budget=fits,
            seed=case.seed,
            progress=False,
        )
        e0, (low, high) = report.e0, report.e0_interval
        truth, clean = case.records.truth(model, seed=case.seed), clean_score(model, case)
        made.append(
            {
                "learner": name,
                "truth": truth,
                "LOCO bias": report.loco - truth,
                "e0 bias": e0 - truth,
                "LOCO RMSE": (report.loco - truth) ** 2,
                "e0 RMSE": (e0 - truth) ** 2,
                "LOCO paired": report.loco - clean,
                "e0 paired": e0 - clean,
                "coverage": float(low <= truth <= high),
                "width": high - low,
            }
        )
    return made


def clean_score(model: Any, case: Case) -> float:
    """Return the error rate of folds by the true persons, the same rows as in the audit."""
    X, y, true = case.records.frame[list(FEATURES)], case.records.frame["disease"], case.records
    rng = np.random.default_rng(case.seed)
    wrong = []
    for _ in range(12):  # one assignment of persons to folds moves it by 0.004
        groups = rng.permutation(true.persons.max() + 1)[true.persons]
        wrong.append(np.mean(cross_val_predict(model, X, y, groups=groups, cv=GroupKFold(K)) != y))
    return float(np.mean(wrong))


def print_table(
    title: str, cases: Iterable[Case], rows: Callable[[Case], list[Row]], keys: Iterable[str] = ()
) -> None:
    """Print the mean of each figure for each noise level and key.

    Squares become roots, and paired differences get their standard error.
    """
    lines = pd.DataFrame([{"noise": case.noise, **row} for case in cases for row in rows(case)])
    groups = lines.groupby(["noise", *keys], sort=False)
    means, errors = groups.mean().reset_index(), groups.sem(numeric_only=True).reset_index()
    for name in means.columns:
        if name.endswith("RMSE"):
            means[name] = np.sqrt(means[name])
        elif name.endswith("paired"):
            means[name] = [
                f"{m:+.4f} ± {e:.4f}" for m, e in zip(means[name], errors[name], strict=True)
            ]
    print(f"\n{title}\n\n| " + " | ".join(means.columns) + " |\n|" + "---|" * len(means.columns))
    for row in means.itertuples(index=False):
        print("| " + " | ".join(_cell(value) for value in row) + " |", flush=True)


def _cell(value: Any) -> str:
    if isinstance(value, str):
        return value
    if np.isnan(value):
        return "–"
    return f"{value:,.0f}" if value >= 100 or float(value).is_integer() else f"{value:.3g}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--draws", type=int, default=200, help="of reviewed rows, over all seeds")
    parser.add_argument("--noise", type=float, nargs="+", default=NOISE)
    parser.add_argument("--learners", nargs="+", choices=list(LEARNERS), default=list(LEARNERS))
    parser.add_argument("--fits", type=int, default=300, help="of each audit")
    parser.add_argument("--quick", action="store_true", help="two seeds, few draws and refits")
    options = parser.parse_args()
    if options.quick:
        options.seeds, options.draws, options.fits = 2, 20, 120
    started = time.perf_counter()
    cases = [simulate(*key) for key in product(options.noise, range(options.seeds))]
    draws = -(-options.draws // options.seeds)
    print_table(f"The linkage ({options.seeds} seeds):", cases, describe)
    print_table("Clusterings of the same scores:", cases, clusterings, ["clusters"])
    print_table("What each source says about the leak shares:", cases, sources, ["source", "kind"])
    print_table(
        f"Intervals from resolved rows ({draws * options.seeds} draws; relative to the truth):",
        cases,
        lambda case: coverage(case, draws),
        ["sample", "rows"],
    )
    print_table(
        "What keeps probable mates together, or leaves them out of training, saves and costs:",
        cases,
        levers,
        ["lever", "threshold"],
    )
    print_table(
        f"e0 with 300 resolved rows ({options.fits} refits):",
        cases,
        lambda case: audits(case, options.learners, options.fits),
        ["learner"],
    )
    print(f"\nAll of this took {time.perf_counter() - started:.0f} s.")


if __name__ == "__main__":
    main()
