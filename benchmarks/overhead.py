"""What an audit costs beside its refits: time per refit, start of workers, scaling, import.

Learners here compute for a fixed time of the processor and predict a constant. How long that takes
alone, in a plain loop in as many processes as the audit has workers, is measured just before each
audit; times refits over workers it is the pure time. Everything else is overhead.

With --large, only GaussianNB on 200,000 rows of 20,000 clusters, learners of 5 ms, and linear regression
on 35 clusters of about 40 rows are audited by each method with its default number of refits, one audit
in each process. Times are those of the processor, and audits and pure refits alternate: on a machine that
others use the lower quartile of the ratios counts. With --before, a folder with an earlier state of the
code, audits of both states alternate too.

    python benchmarks/overhead.py [--seconds 20] [--quick] [--large [--before FOLDER]]
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import joblib
import numpy as np
import pandas as pd
from joblib.externals.loky import get_reusable_executor
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.linear_model import LinearRegression
from sklearn.naive_bayes import GaussianNB

from mlflow_b3 import audit, make_clinic

SUBJECT = {"target": "disease", "cluster": "patient_id", "cluster_error": 0.1}


class Busy(ClassifierMixin, BaseEstimator):
    """Computes for some milliseconds of its process's time; predicts the first label it was shown."""

    def __init__(self, milliseconds=5.0):
        self.milliseconds = milliseconds

    def fit(self, X, y):  # noqa: ARG002 - as learners have it
        """Compute."""
        until = time.thread_time() + self.milliseconds / 1000
        while time.thread_time() < until:
            pass
        self.classes_, self.first_ = np.unique(y), y[0]
        return self

    def predict(self, X):
        """Return the first label."""
        return np.repeat(self.first_, len(X))


def loop(milliseconds, X, y, seconds=2.0):
    """Return the time of one training and prediction, without anything around them."""
    learner, count, started = Busy(milliseconds), 0, time.perf_counter()
    while time.perf_counter() - started < seconds:
        learner.fit(X, y).predict(X)
        count += 1
    return (time.perf_counter() - started) / count


def pure_seconds(table, milliseconds, workers):
    """Return the time of one training and prediction, with so many processes at the same time."""
    X, y = table.drop(columns=["disease", "patient_id"]), table["disease"].to_numpy()
    run = joblib.Parallel(n_jobs=workers)
    run(joblib.delayed(loop)(milliseconds, X, y, 0.1) for _ in range(workers))  # start them
    return statistics.mean(run(joblib.delayed(loop)(milliseconds, X, y) for _ in range(workers)))


def measure(table, milliseconds, workers, budget, **options):
    """Return the time of an audit, and that of its refits alone, spread over the workers."""
    alone = pure_seconds(table, milliseconds, workers)
    get_reusable_executor().shutdown(wait=True)  # so that the audit starts workers of its own
    started = time.perf_counter()
    report = audit(
        Busy(milliseconds),
        table,
        **SUBJECT,
        method="power",  # doses stop early, whatever the budget
        budget=budget,
        n_jobs=workers,
        progress=False,
        **options,
    )
    taken = time.perf_counter() - started
    pure = report.measured.fits * alone / workers
    return taken, pure


def make_large(rows=200_000, columns=10):
    """Return a table with clusters of ten rows on average."""
    rng = np.random.default_rng(0)
    cluster = rng.integers(0, rows // 10, rows)
    numbers = rng.standard_normal((rows, columns))
    numbers += 0.5 * rng.standard_normal((rows // 10, columns))[cluster]
    table = pd.DataFrame(numbers, columns=[f"x{number}" for number in range(columns)])
    table["disease"] = (numbers[:, 0] + rng.standard_normal(rows) > 0).astype(int)
    table["patient_id"] = cluster
    return table


def processor_seconds(learner, table, repeats):
    """Return the lower quartile of times of one training on four fifths, and prediction of the rest."""
    X, y = table.drop(columns=["disease", "patient_id"]), table["disease"].to_numpy()
    split, times = len(X) * 4 // 5, []
    training, validation = X.iloc[:split], X.iloc[split:]
    for _ in range(repeats):
        started = time.process_time()
        learner.fit(training, y[:split]).predict(validation)
        times.append(time.process_time() - started)
    return float(np.quantile(times, 0.25))


def make_few_clusters():
    """Return a table with 35 clusters of 14 to 66 rows."""
    rng = np.random.default_rng(0)
    cluster = np.repeat(np.arange(35), rng.integers(14, 67, 35))
    numbers = rng.standard_normal((len(cluster), 4)) + rng.standard_normal((35, 4))[cluster]
    table = pd.DataFrame(numbers, columns=[f"x{number}" for number in range(4)])
    noise = rng.standard_normal(35)[cluster] + rng.standard_normal(len(cluster))
    table["disease"], table["patient_id"] = numbers[:, 0] + noise, cluster
    return table


def small_clinic():
    return make_clinic(patients=100, records=4, cluster_error=0.1, seed=0).frame


CASES = {
    "GaussianNB, 200,000 rows": (GaussianNB, make_large, {}),
    "5 ms, 400 rows": (Busy, small_clinic, {}),
    "linear regression, 35 clusters": (LinearRegression, make_few_clusters, {}),
    "the same, split clusters too": (LinearRegression, make_few_clusters, {"split_rate": 0.2}),
}


def audit_once(name, method):
    """Print the processor time of one audit, that of its refits alone, and their number."""
    make_learner, make_table, options = CASES[name]
    learner, table = make_learner(), make_table()
    audit(
        GaussianNB(), small_clinic(), **SUBJECT, method=method, budget=100, progress=False
    )  # warm up
    started = time.process_time()
    report = audit(learner, table, **SUBJECT, **options, method=method, n_jobs=1, progress=False)
    taken = time.process_time() - started
    fits = report.measured.fits
    print(taken, fits * processor_seconds(learner, table, 20), fits)


def compare_methods(repeats, before):
    """Print what audits cost beside their refits, by learner, method and state of the code."""
    states = {"now": Path(__file__).parents[1]}
    if before is not None:
        states = {"before": Path(before), **states}
    print(
        "learner | method | code | refits | pure seconds | seconds beside | ratio (lower quartile)"
    )
    for name, (*_, options) in CASES.items():
        for method in ("dose",) if options else ("dose", "power"):
            found = {state: [] for state in states}
            for _ in range(repeats):
                for state, folder in states.items():
                    ran = subprocess.run(
                        [sys.executable, __file__, "--one", name, method],
                        env={**os.environ, "PYTHONPATH": str(folder)},
                        check=True,
                        capture_output=True,
                        text=True,
                    )
                    found[state].append([float(word) for word in ran.stdout.split()])
            for state, rows in found.items():
                taken, pure, fits = np.array(rows).T
                numbers = [
                    np.quantile(values, 0.25) for values in (pure, taken - pure, taken / pure)
                ]
                print(
                    f"{name} | {method} | {state} | {fits[0]:.0f} | "
                    + " | ".join(f"{number:.2f}" for number in numbers),
                    flush=True,
                )


def imports(modules, repeats=5):
    """Return the median time that Python takes to import some modules, in a process of its own."""
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        subprocess.run([sys.executable, "-c", f"import {modules}"], check=True)
        times.append(time.perf_counter() - started)
    return statistics.median(times)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=20, help="length of the long audits")
    parser.add_argument("--quick", action="store_true", help="shorter, to see that it works")
    parser.add_argument("--large", action="store_true", help="each method on a large table")
    parser.add_argument("--before", help="an earlier state of the code, to compare with")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        audit_once(*args.one)
        return
    if args.large:
        compare_methods(1 if args.quick else 4, args.before)
        return
    seconds = 3 if args.quick else args.seconds
    table = make_clinic(patients=100, records=4, cluster_error=0.1, seed=0).frame
    cores = os.cpu_count() or 1

    print(f"{cores} cores, a table of {len(table)} rows")
    print("ms a refit | workers | refits | seconds | pure | ratio")
    for milliseconds in (1, 5, 20):
        for workers in (1, cores):
            budget = max(300, int(seconds * workers * 1000 / milliseconds))
            taken, pure = measure(table, milliseconds, workers, budget)
            print(
                f"{milliseconds:10} | {workers:7} | {budget:6} | {taken:7.2f} | {pure:5.2f} | "
                f"{taken / pure:5.3f}",
                flush=True,
            )
    print("\nthe default budget of the loss curve, 480 refits of 20 ms, start of workers included")
    one = measure(table, 20, 1, 480)
    all_ = measure(table, 20, cores, 480)
    print(f"1 worker {one[0] / one[1]:.3f}, {cores} workers {all_[0] / all_[1]:.3f}")

    print("\nscaling from 1 worker to all: time of one over time of all, 5 ms a refit")
    budget = int(seconds * 1000 / 5)
    alone = measure(table, 5, 1, budget, backend="loky")[0]
    together = measure(table, 5, cores, budget, backend="loky")[0]
    print(f"{alone / together:.2f} with {cores} workers")

    print("\na journal: time with it over time without, 1 worker")
    for milliseconds in (1, 5):
        budget = int(seconds * 1000 / milliseconds / 2)
        without = measure(table, milliseconds, 1, budget)[0]
        with tempfile.TemporaryDirectory() as folder:
            kept = measure(table, milliseconds, 1, budget, journal=Path(folder) / "journal")[0]
        print(f"{milliseconds} ms a refit: {kept / without:.3f}")

    print("\nimport, seconds beyond `import mlflow`")
    base = imports("mlflow")
    for modules in (
        "mlflow, mlflow_b3",
        "mlflow, mlflow_b3.cli",
        "mlflow, mlflow_b3.tracking.evaluator",
    ):
        print(f"import {modules}: {imports(modules) - base:+.3f} (mlflow itself {base:.2f})")


if __name__ == "__main__":
    main()
