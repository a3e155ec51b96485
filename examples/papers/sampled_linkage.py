"""Posterior samples of both linkage models, put straight into an audit (thesis, chapter 4 to chapter 6)."""

from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from experiment import Outcome, Request, Table, with_error
from linkage_limits import NAMES, distances
from linkage_sampler import categorical_distortion, sample_linkage, string_distortion
from problem import Rows
from sklearn.model_selection import GroupKFold
from sklearn.neighbors import KNeighborsClassifier

import mlflow_b3 as b3
from mlflow_b3 import linkage

PATIENTS, RECORDS = 60, 4
BETA = 0.1
#: Year of birth, district and name.
SIZES = (60, 25, len(NAMES))


def run(request: Request) -> Outcome:
    trials = 1 if request.quick else 10
    cases = [(model, number) for number in range(trials) for model in ("categorical", "string")]
    measure = partial(run_trial, sweeps=100 if request.quick else 600, seed=request.seed)
    done = request.trials(measure, cases, "sampled linkage")
    keys = ("true_leak", "leak", "covered", "truth", "loco", "e0", "beta")
    rows, metrics = [], {}
    for model in ("categorical", "string"):
        own = [row for row in done if row["model"] == model]
        if own:
            rows.append([model, *(with_error([row[key] for row in own]) for key in keys)])
            metrics |= {f"{model}/{key}": float(np.mean([row[key] for row in own])) for key in keys}
    table = Table(
        title="leaked share of validation rows from posterior samples, and the loss on new patients",
        columns=[
            "model",
            "true share",
            "sampled share",
            "interval has it",
            "true loss",
            "LOCO",
            "e0",
            f"β (truth {BETA})",
        ],
        rows=rows,
        note=f"{trials} clinics of {PATIENTS} patients with {RECORDS} records, linked by equal year, district and name; {BETA:.0%} of the fields are "
        "distorted by the model that the sampler assumes, and it knows the number of patients. The loss is that of 5 nearest neighbours, cross-validated by the true patients, by the linked ids, and "
        "corrected by the audit with `partition_samples`. In real data the model is never the true one: see the linkage page.",
    )
    return Outcome(tables=[table], metrics=metrics)


def run_trial(case: tuple[str, int], *, sweeps: int, seed: int) -> dict[str, Any]:
    """Simulate a clinic and its linkage, sample partitions, and audit a model with them."""
    model, number = case
    clinic = b3.make_clinic(patients=PATIENTS, records=RECORDS, cluster_error=0, seed=number)
    rng = np.random.default_rng([seed, number, 43])
    thetas = [np.full(size, 1 / size) for size in SIZES]
    distortions = [categorical_distortion(theta) for theta in thetas]
    if model == "string":
        distortions[2] = string_distortion(thetas[2], distances(), 1.0)
    records = distort(clinic.patients, thetas, distortions, rng)
    ids = pd.DataFrame(records).groupby([0, 1, 2]).ngroup().to_numpy()
    samples, rates = sample_linkage(
        records, thetas, distortions, PATIENTS, sweeps=sweeps, keep=40, seed=[seed, number, 44]
    )
    table = clinic.frame.drop(columns="patient_id").assign(patient_id=ids)
    learner = KNeighborsClassifier(5)
    folds = list(GroupKFold(5).split(table, groups=ids))
    leak = linkage.leak_from_partition_samples(samples, folds, clusters=ids)
    true = linkage.leak_truth(clinic.patients, folds, clusters=ids)
    report = b3.audit(
        learner,
        table,
        target="disease",
        cluster="patient_id",
        partition_samples=samples,
        seed=number,
        n_jobs=1,
        progress=False,
    )
    share = leak.validation
    return {
        "model": model,
        "true_leak": true.p0_validation,
        "leak": share.point,
        "covered": float(share.low <= true.p0_validation <= share.high),
        "truth": grouped_loss(learner, clinic),
        "loco": report.loco,
        "e0": report.e0,
        "beta": float(rates.mean()),
    }


def distort(patients: Rows, thetas: Any, distortions: Any, rng: np.random.Generator) -> Rows:
    """Return the fields of each record: those of its patient, or distorted."""
    columns = []
    for theta, distortion in zip(thetas, distortions, strict=True):
        own = rng.choice(len(theta), size=patients.max() + 1, p=theta)[patients]
        drawn = (rng.random((len(patients), 1)) > distortion[own].cumsum(axis=1)).sum(axis=1)
        lost = rng.random(len(patients)) < BETA
        columns.append(np.where(lost, drawn.clip(max=len(theta) - 1), own))
    return np.column_stack(columns)


def grouped_loss(learner: Any, clinic: b3.Clinic) -> float:
    """Return the error rate by the true patients, over four assignments to folds."""
    X = clinic.frame.drop(columns=["patient_id", "disease"]).to_numpy()
    y, wrong = clinic.frame["disease"].to_numpy(), []
    for seed in range(4):
        splitter = GroupKFold(5, shuffle=True, random_state=seed)
        for training, scored in splitter.split(X, groups=clinic.patients):
            wrong.append(learner.fit(X[training], y[training]).predict(X[scored]) != y[scored])
    return float(np.concatenate(wrong).mean())
