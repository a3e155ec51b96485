"""Accuracy on the simulated clinic: bias, RMSE and coverage against the truth.

    python benchmarks/clinic_accuracy.py --seeds 16 --out results.jsonl
    python benchmarks/clinic_accuracy.py --table results.jsonl

Every line of the output file is one audit; a second run with the same file continues it. The truth
is the loss on 4,000 fresh patients of models trained on folds by the true patients, averaged over
four fold assignments. Cells are bias / RMSE against the truth; the noise of which patients were
simulated is common to all columns. "Paired" takes it out: bias ± standard error against
cross-validation of the same records on folds by the true patients, which is unbiased.
"""

import argparse
import json
from collections import defaultdict
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from joblib import Parallel, delayed
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GroupKFold, cross_val_predict
from sklearn.neighbors import KNeighborsClassifier
from sklearn.tree import DecisionTreeClassifier

import mlflow_b3 as b3

LEARNERS = {
    "k-NN": KNeighborsClassifier(5),
    "tree": DecisionTreeClassifier(random_state=0),
    "logistic": LogisticRegression(),
    "forest": RandomForestClassifier(10, min_samples_leaf=2, random_state=0),
}
ROWS = 2000
CLUSTER_ERRORS = (0.05, 0.1, 0.2)
SPLIT_RATES = (0.1, 0.2, 0.4)
RECORDS = (10, 3)


def scenarios(seeds: range, learners: list[str], patterns: list[str]) -> list[dict[str, Any]]:
    made = []
    for seed, learner in product(seeds, learners):
        made += [
            {"pattern": "rows", "records": 10, "rate": q, "learner": learner, "seed": seed}
            for q in CLUSTER_ERRORS
        ]
        made += [
            {"pattern": "fragments", "records": m, "rate": s, "learner": learner, "seed": seed}
            for m, s in product(RECORDS, SPLIT_RATES)
        ]
    return [case for case in made if case["pattern"] in patterns]


def run(cases: list[dict[str, Any]], fits: int) -> list[dict[str, Any]]:
    """Run the cases of one learner, seed and clinic; they share the truth."""
    done, truths = [], {}
    for case in cases:
        model = LEARNERS[case["learner"]]
        argument = "cluster_error" if case["pattern"] == "rows" else "split_rate"
        rate = {argument: case["rate"]}
        size = {"patients": ROWS // case["records"], "records": case["records"]}
        clinic = b3.make_clinic(**size, **rate, seed=case["seed"])
        if case["records"] not in truths:
            truths[case["records"]] = (
                clinic.truth(model, fresh=4000, seed=case["seed"]),
                clean_score(model, clinic, case["seed"]),
            )
        report = b3.audit(
            model,
            clinic.frame,
            target="disease",
            cluster="patient_id",
            method="power",
            budget=fits,
            seed=case["seed"],
            progress=False,
            **rate,
        )
        one_way = None
        if case["pattern"] == "rows":
            one_way = b3.estimate(report.curve, report.p0).e0
        done.append(
            {
                **case,
                "truth": truths[case["records"]][0],
                "clean": truths[case["records"]][1],
                "iid": report.iid,
                "loco": report.loco,
                "one_way": one_way,
                "e0": report.e0,
                "interval": report.e0_interval,
                "secant": report.e0_secant,
                "p": report.test.pvalue,
                "fits": fits,
                "loco_interval": report.loco_interval,
                "curve": report.curve.to_dict(),
                "fragments": report.fragments and report.fragments.to_dict(),
            }
        )
    return done


def clean_score(model: Any, clinic: b3.Clinic, seed: int) -> float:
    """Return the error rate of folds by the true patients, the same rows as in the audit."""
    X, y = clinic.frame.drop(columns=["disease", "patient_id"]), clinic.frame["disease"]
    rng = np.random.default_rng(seed)
    wrong = []
    for _ in range(4):
        groups = rng.permutation(clinic.patients.max() + 1)[clinic.patients]
        wrong.append(np.mean(cross_val_predict(model, X, y, groups=groups, cv=GroupKFold(5)) != y))
    return float(np.mean(wrong))


def table(results: list[dict[str, Any]]) -> str:
    groups = defaultdict(list)
    for result in results:
        key = (result["pattern"], result["records"], result["learner"], result["rate"])
        groups[key].append(result)
    lines = []
    previous = None
    order = {name: number for number, name in enumerate(LEARNERS)}
    for key in sorted(groups, key=lambda k: (k[0] != "rows", -k[1], order[k[2]], k[3])):
        pattern, records, learner, rate = key
        if (pattern, records) != previous:
            previous = (pattern, records)
            lines += [
                "",
                f"Pattern `{pattern}`, {records} records a patient:",
                "",
                "| learner | rate | truth | IID | LOCO | one-directional | default "
                "| LOCO paired | default paired | coverage | width | seeds |",
                "|---|---|---|---|---|---|---|---|---|---|---|---|",
            ]
        group = groups[key]
        truth = np.array([r["truth"] for r in group])

        def cell(name: str, group=group, truth=truth) -> str:
            if group[0][name] is None:
                return "–"
            error = np.array([r[name] for r in group]) - truth
            return f"{error.mean():+.4f} / {np.sqrt(np.mean(error**2)):.4f}"

        def paired(name: str, group=group) -> str:
            error = np.array([r[name] - r["clean"] for r in group])
            return f"{error.mean():+.4f} ± {np.std(error, ddof=1) / np.sqrt(len(error)):.4f}"

        ends = np.array([r["interval"] for r in group])
        covered = np.mean((ends[:, 0] <= truth) & (truth <= ends[:, 1]))
        lines.append(
            f"| {learner} | {rate} | {truth.mean():.3f} | {cell('iid')} | {cell('loco')} "
            f"| {cell('one_way')} | {cell('e0')} | {paired('loco')} | {paired('e0')} "
            f"| {covered:.2f} "
            f"| {np.mean(ends[:, 1] - ends[:, 0]):.3f} | {len(group)} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=16)
    parser.add_argument("--first-seed", type=int, default=300)
    parser.add_argument("--learners", nargs="+", choices=list(LEARNERS), default=list(LEARNERS))
    parser.add_argument("--patterns", nargs="+", default=["rows", "fragments"])
    parser.add_argument("--fits", type=int, default=480)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("clinic_accuracy.jsonl"))
    parser.add_argument("--table", type=Path, help="print the table of an earlier run only")
    options = parser.parse_args()
    path = options.table or options.out
    results = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    if options.table is None:
        names = ("pattern", "records", "rate", "learner", "seed")
        known = {tuple(r[name] for name in names) for r in results}
        groups = defaultdict(list)
        seeds = range(options.first_seed, options.first_seed + options.seeds)
        for case in scenarios(seeds, options.learners, options.patterns):
            if tuple(case[name] for name in names) not in known:
                groups[case["learner"], case["seed"]].append(case)
        work = Parallel(n_jobs=options.jobs, return_as="generator_unordered")
        with path.open("a") as file:
            for batch in work(delayed(run)(cases, options.fits) for cases in groups.values()):
                results += batch
                file.writelines(json.dumps(result) + "\n" for result in batch)
                file.flush()
    print(table(results))


if __name__ == "__main__":
    main()
