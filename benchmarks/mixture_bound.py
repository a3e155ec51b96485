"""The mixture bound on p0: how far above the truth it lies, and how often below.

    python benchmarks/mixture_bound.py heart.csv --runs 200

`heart.csv` holds the UCI Heart Disease data with the hospital in column `country`. Patients of one
hospital are moved at random to the others, so that they are a known share p0 of those; the bound is
not told. In the simulations a normal law in four dimensions is shifted in one of them.
"""

import argparse
from pathlib import Path

import numpy as np
import pandas as pd
from joblib import Parallel, delayed

from mlflow_b3.estimation.p0 import P0Bound, bound_p0

SHARES = (0.0, 0.05, 0.1, 0.2)
SHIFTS = (1.0, 2.0, 3.0, 5.0)
ROWS = (480, 240)
CLUSTERS = 40


def moved(table: pd.DataFrame, hospital: str, share: float, seed: int) -> tuple[float, P0Bound]:
    """Return the true share of a hospital's patients in the others, and its bound."""
    own = (table["country"] == hospital).to_numpy()
    rows = table.drop(columns="country")
    others, patients = rows[~own], rows[own]
    patients = patients.iloc[np.random.default_rng([seed, 1]).permutation(len(patients))]
    leaked = round(share * len(others) / (1 - share))
    training = pd.concat([others, patients[:leaked]])
    return leaked / len(training), bound_p0(training, patients[leaked:], seed=seed)


def shifted(shift: float, share: float, seed: int, alike: float = 0.0) -> tuple[float, P0Bound]:
    """Return the share and the bound of normal rows, in clusters of `alike` rows if not 0."""
    rng = np.random.default_rng([seed, 2])
    n_training, n_validation = ROWS
    leaked = round(share * n_training)
    validation = rng.normal(size=(n_validation + leaked, 4))
    if alike:
        centres = rng.normal(size=(CLUSTERS, 4))
        chosen = rng.integers(CLUSTERS, size=len(validation))
        validation = np.sqrt(1 - alike) * validation + np.sqrt(alike) * centres[chosen]
    validation[:, 0] += shift
    training = rng.normal(size=(n_training, 4))
    training[:leaked] = validation[:leaked]
    return leaked / n_training, bound_p0(training, validation[leaked:], seed=seed)


def line(name: str, results: list[tuple[float, P0Bound]]) -> str:
    truth = np.array([truth for truth, _ in results])
    upper = np.array([bound.p0_upper for _, bound in results])
    return (
        f"| {name} | {truth.mean():.3f} | {upper.mean():.3f} | {np.mean(upper - truth):.3f} "
        f"| {np.mean(upper < truth):.3f} | {len(results)} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("heart", type=Path, nargs="?", help="table of the hospitals")
    parser.add_argument("--hospital", default="hungarian", help="the validation cluster")
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--shift-runs", type=int, help="runs of each simulation; a quarter if left")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--n-jobs", type=int, default=1)
    options = parser.parse_args()
    work = Parallel(n_jobs=options.n_jobs)
    print("| rows | true p0 | mean bound | mean excess | below the truth | runs |")
    print("|---|---|---|---|---|---|", flush=True)
    if options.heart is not None:
        table = pd.read_csv(options.heart)
        seeds = range(options.seed, options.seed + options.runs)
        for share in SHARES:
            results = work(delayed(moved)(table, options.hospital, share, s) for s in seeds)
            print(line(f"heart, {options.hospital}", results), flush=True)
    few = options.runs // 4 if options.shift_runs is None else options.shift_runs
    seeds = range(options.seed, options.seed + few)
    for shift in SHIFTS:
        for share in (0.0, 0.1) if few else ():
            results = work(delayed(shifted)(shift, share, s) for s in seeds)
            print(line(f"normal, shifted by {shift:g}", results), flush=True)
    if few:
        results = work(delayed(shifted)(5.0, 0.1, s, 0.8) for s in seeds)
        print(line(f"normal, shifted by 5, {CLUSTERS} clusters", results), flush=True)


if __name__ == "__main__":
    main()
