"""Corrected cross-validation in the published simulation, next to reference values.

    python benchmarks/cvc_simulation.py --samples 220 --seed 0 --jobs 2

The design is that of Yuval and Rosset (AISTATS 2025), which `tests/unit/correlated/published_simulation.py`
draws. References are runs of a prototype with its own seeds; their standard errors are in brackets, and
the last column is the difference over the error of both. Where a reference has none, it is over ours.

- A: a logistic regression with random intercepts (`MixedLogistic`), which predicts new groups by its
  fixed part. The working model is the truth ("oracle"), the fixed part of the 10-covariate regression
  with the true sd ("known sd") or with its own ("plug-in"), or the recalibrated score of that regression
  without the row's entity ("score"). w is that of one step, or where it says "joint" of refits at the
  joint mode, with the sd of the learner or of the score.
- B: a ridge-penalised logistic regression (`LogisticRegression(C=1)`), refitted to simulated targets.
- C: entities are observed again on a new day; the learner knows the sd and predicts with the entity.
- D: a Gaussian field with regions, of which the model meets new ones. The prototype does not say how
  its regions were placed, so that only truth and w of this run can be compared with each other.
"""

import argparse
import time
from collections.abc import Callable

import numpy as np
from cvc_cases import (
    FAST_DRAWS,
    REFITS,
    SHORT,
    Case,
    Mixed,
    Row,
    again_case,
    again_row,
    field_case,
    field_row,
    published,
    ridge_case,
    ridge_row,
    working_models,
)
from cvc_references import REFERENCES
from joblib import Parallel, delayed

from mlflow_b3.correlated.formulas import fast_bias, joint_bias


def mixed_row(seed: int) -> Row:
    """Return table A of one sample."""
    sample, structure, row = published.published_sample(seed), published.levels(), {}
    chance = published.new_groups_chance(sample)
    learners = {size: Mixed(sample, size) for size in published.SIZES}
    models = working_models(sample, learners[10], learners[10].scores)
    for size, learner in learners.items():
        scores = published.cross_validated(learner.scores, sample.folds)
        design = sample.design(size)
        for loss, short in SHORT.items():
            name = f"{short} {size}"
            cv = float(published.LOSSES[loss](sample.target, scores).mean())
            row[f"{name} CV"] = cv
            use = float(published.LOSSES[loss](chance, scores).mean())
            row[f"{name} GenErr"] = use
            # of the same mean as GenErr - CV, and half its variance
            row[f"{name} bias given effects"] = use - float(
                published.LOSSES[loss](sample.chance, scores).mean()
            )
            for kind, model in models.items():
                bias = fast_bias(
                    design,
                    learner.coefficients,
                    model,
                    structure,
                    sample.folds,
                    loss,
                    covariance="mixed",
                    draws=FAST_DRAWS,
                    seed=seed,
                ).value
                row[f"{name} w {kind}"], row[f"{name} CV_c {kind}"] = bias, cv + bias
            own = learner.whole.sd_
            for kind, at, sd in (
                ("oracle, joint", "oracle", own),
                ("score, joint", "score", own),
                ("score, joint at its sd", "score", models["score"].sd),
            ):
                bias = joint_bias(
                    design,
                    models[at],
                    structure,
                    sample.folds,
                    loss,
                    learner_sd=sd,
                    draws=REFITS,
                    seed=seed,
                ).value
                row[f"{name} w {kind}"], row[f"{name} CV_c {kind}"] = bias, cv + bias
    for kind in ("CV", "CV_c score", "GenErr", "CV_c oracle"):
        values = {size: row[f"CE {size} {kind}"] for size in published.SIZES}
        for one, other in ((10, 2), (10, 7), (7, 2)):
            row[f"CE {one}-{other} {kind}"] = values[one] - values[other]
        for size in published.SIZES:
            row[f"pick {size} {kind}"] = float(min(values, key=values.__getitem__) == size)
    return row


def truth_row(case: Callable[[int], Case], seed: int) -> Row:
    """Return the truth of one sample."""
    return case(seed).truth()


#: The row of each table, and the case of which the truth needs more samples.
TABLES: dict[str, tuple[Callable[[int], Row], Callable[[int], Case] | None]] = {
    "A": (mixed_row, None),
    "B": (ridge_row, ridge_case),
    "C": (again_row, again_case),
    "D": (field_row, field_case),
}


def print_table(table: str, rows: list[Row]) -> None:
    """Print the means of a table next to its references, and then what has none."""
    columns: dict[str, list[float]] = {}
    for row in rows:
        for name, value in row.items():
            columns.setdefault(name, []).append(value)
    means = {name: float(np.mean(values)) for name, values in columns.items()}
    errors = {
        name: float(np.std(values, ddof=1) / np.sqrt(len(values)))
        for name, values in columns.items()
    }
    print("| | ours (SE) | reference (SE) | difference in SE |\n|---|---|---|---|")
    references = {name: rest for group, name, *rest in REFERENCES if group == table}
    for name in (*references, *(name for name in columns if name not in references)):
        ours = f"{means[name]:.4f} ({errors[name]:.4f})"
        if name not in references:
            print(f"| {name} | {ours} | | |")
            continue
        reference, error = references[name]
        apart = (means[name] - reference) / np.hypot(errors[name], error or 0.0)
        shown = "" if error is None else f" ({error:.4f})"
        print(f"| {name} | {ours} | {reference:.4f}{shown} | {apart:+.1f} |")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--samples", type=int, default=220)
    parser.add_argument(
        "--truths", type=int, help="samples for the bias of B, C, D; 15 times as many"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--tables", default="".join(TABLES), help="which of them; by default all")
    given = parser.parse_args()
    truths = given.truths or 15 * given.samples
    run = Parallel(n_jobs=given.jobs)
    for table in given.tables:
        row, case = TABLES[table]
        started = time.perf_counter()
        rows = run(delayed(row)(given.seed + number) for number in range(given.samples))
        if case is not None:
            rows += run(delayed(truth_row)(case, given.seed + number) for number in range(truths))
        print(f"\n## Table {table}\n")
        print_table(table, rows)
        took = (time.perf_counter() - started) / 60
        counted = f"{given.samples} samples" + (f", {truths} for the truth" if case else "")
        print(f"\n{counted}, {took:.1f} minutes", flush=True)


if __name__ == "__main__":
    main()
