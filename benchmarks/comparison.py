"""Do intervals of differences between two models hold, and what does pairing gain?

Clinics are simulated anew; on each, two learners are audited together, and the interval of the
difference of their e0 is held against the difference of their error rates on fresh patients.

    python benchmarks/comparison.py --clinics 100
"""

import argparse
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from itertools import pairwise

import numpy as np
from sklearn.base import ClassifierMixin
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.tree import DecisionTreeClassifier

import mlflow_b3 as b3
from mlflow_b3.auditing.comparison import compare_reports

LEARNERS: dict[str, ClassifierMixin] = {
    "3 neighbours": KNeighborsClassifier(3),
    "25 neighbours": KNeighborsClassifier(25),
    "tree": DecisionTreeClassifier(max_depth=4, random_state=0),
    "naive Bayes": GaussianNB(),
    "logistic": LogisticRegression(),
}
CASES = {
    "rows, q = 0.1": {"cluster_error": 0.1},
    "rows, q = 0.05 to 0.15": {"cluster_error": (0.05, 0.15)},
    "fragments, 0.3": {"split_rate": 0.3},
}


def one_clinic(task: tuple[str, int]) -> list[tuple[str, str, bool, bool, bool, float, float]]:
    case, seed = task
    claim = CASES[case]
    ((name, value),) = claim.items()
    rate = float(np.mean(value))
    clinic = b3.make_clinic(patients=100, records=6, seed=1000 + seed, **{name: rate})
    reports, truth = {}, {}
    for learner, model in LEARNERS.items():
        reports[learner] = b3.audit(
            model,
            clinic.frame,
            target="disease",
            cluster="patient_id",
            budget=150,
            repeats=1,
            n_jobs=1,
            progress=False,
            **claim,
        )
        truth[learner] = clinic.truth(model, seed=seed)
    rows = []
    names = list(LEARNERS)
    for a, b in pairwise(names):
        pair = {a: reports[a], b: reports[b]}
        alone = {name: replace(report, influence=None) for name, report in pair.items()}
        (paired,) = compare_reports(pair).differences
        (unpaired,) = compare_reports(alone).differences
        true = truth[paired.worse] - truth[paired.better]
        covers = paired.interval[0] <= true <= paired.interval[1]
        widths = [d.interval[1] - d.interval[0] for d in (paired, unpaired)]
        rows.append(
            (case, f"{a} / {b}", covers, paired.beyond_noise, unpaired.beyond_noise, *widths)
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clinics", type=int, default=60)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    tasks = [(case, seed) for case in CASES for seed in range(options.clinics)]
    with ProcessPoolExecutor(options.workers) as pool:
        found = [row for rows in pool.map(one_clinic, tasks) for row in rows]
    print("| case | pair | covers | beyond noise | unpaired | width | unpaired width |")
    print("|---|---|---|---|---|---|---|")
    for key in dict.fromkeys((row[0], row[1]) for row in found):
        own = [row[2:] for row in found if (row[0], row[1]) == key]
        means = np.mean(np.array(own, dtype=float), axis=0)
        shares = " | ".join(f"{100 * mean:.0f}%" for mean in means[:3])
        print(f"| {key[0]} | {key[1]} | {shares} | {means[3]:.3f} | {means[4]:.3f} |")


if __name__ == "__main__":
    main()
