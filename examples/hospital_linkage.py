"""How a hospital finds out what its linkage of records does to the score of a model, step by step.

    pip install "mlflow-b3[splink]"
    python examples/hospital_linkage.py

Records carry no person id: Splink scores pairs of them, and what it links counts as one person.
Where it splits a person in two, records of one person are both in training and in validation. How
many, a clerk finds out by looking up all records of a few persons. The records are simulated, so
that in the end the truth can be told.
"""

import argparse
import importlib.util
import sys
import tempfile
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pandas as pd
from mlflow.models import infer_signature
from person_records import FEATURES, link_records, make_person_records
from sklearn.neighbors import KNeighborsClassifier

import mlflow_b3 as b3
from mlflow_b3 import linkage

K = 5
THRESHOLD, SAFE_THRESHOLD = 0.9, 0.1


def review(table: pd.DataFrame, persons: np.ndarray, sample: Any, pairs: Any, path: Path) -> Any:
    """Write a sheet, do a clerk's work on it, and read it back."""
    linkage.review_sheet(table, sample, pairs, cluster="person_id", id="record_id", path=path)
    sheet, ids = pd.read_csv(path, dtype=str), table["record_id"]
    true = pd.Series(persons, index=ids)
    sheet["mates"] = [
        "; ".join(ids[(persons == true[record]) & (ids != record)]) or "none"
        for record in sheet["record"]
    ]
    sheet.to_csv(path, index=False)
    missed = sheet[sheet["same_cluster"].isna() & (sheet["mates"] != "none")]
    print(f"\n4. A clerk looked up {len(sheet)} records in the whole archive, and wrote all other")
    print("   records of the same person into a sheet. Some that linkage had left alone:\n")
    columns = ["record", "forename", "surname", "birth_date", "postcode", "mates"]
    print(missed[columns].head(3).to_string(index=False))
    return linkage.parse_review(path, ids)


def log_model(model: KNeighborsClassifier, frame: pd.DataFrame, folder: Path) -> str:
    """Log the model as a training run would, and return where MLflow keeps it."""
    mlflow.set_tracking_uri(f"sqlite:///{folder}/mlflow.db")
    mlflow.create_experiment("hospital", artifact_location=(folder / "files").as_uri())
    mlflow.set_experiment("hospital")
    X = frame[list(FEATURES)]
    with mlflow.start_run():
        info = mlflow.sklearn.log_model(
            model.fit(X, frame["disease"]),
            name="model",
            signature=infer_signature(X),
            pip_requirements=["scikit-learn"],
        )
    return info.model_uri


def tell(step: str, leak: linkage.LeakEstimate) -> None:
    share = leak.validation
    ends = f" ({share.low:.1%} to {share.high:.1%})" if leak.kind == "estimate" else ""
    print(
        f"\n{step},\n   {share.point:.1%} of the validation records{ends} are of persons with other "
        "records in training."
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--budget", type=int, default=300, help="most refits of each audit")
    parser.add_argument("--rows", type=int, default=300, help="records that the clerk looks up")
    parser.add_argument("--persons", type=int, default=1500)
    parser.add_argument("--noise", type=float, default=0.15, help="share of fields that are wrong")
    options = parser.parse_args()
    if importlib.util.find_spec("splink") is None:
        sys.exit('This example links records with Splink: pip install "mlflow-b3[splink]"')
    records = make_person_records(persons=options.persons, noise=options.noise, seed=0)
    ids = records.identity["record_id"]
    print(f"1. {len(ids)} records, for example:\n")
    print(records.identity.head(3).to_string(index=False))

    pairs = linkage.from_splink(link_records(records.identity), ids, id_column="record_id")
    i, j, p = pairs
    clusters = linkage.components(pairs.n, i[p >= THRESHOLD], j[p >= THRESHOLD])
    frame = records.frame.assign(person_id=clusters)
    print(
        f"\n2. Splink scored {len(pairs)} pairs. Linked from a match probability of {THRESHOLD}, the"
    )
    print(f"   records seem to be of {frame['person_id'].nunique()} persons.")

    # at the threshold of the clusters these are folds of whole persons, as far as they are known
    folds = linkage.leak_safe_folds(*pairs, THRESHOLD, K, clusters)
    scores = linkage.leak_from_pairs(*pairs, folds.folds, clusters)
    tell("3. If its scores were right, which nobody has checked", scores)

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        table = records.identity.assign(person_id=clusters)
        sample = linkage.sample_rows(len(ids), options.rows, scores.row_probability)
        resolved = review(table, records.persons, sample, pairs, folder / "review.csv")
        leak = resolved.leak(folds.folds, clusters)
        tell("5. By what the clerk found", leak)

        model = KNeighborsClassifier(5, algorithm="brute")
        uri = log_model(model, frame, folder)
        common = {
            "target": "disease",
            "cluster": "person_id",
            "row_id": "record_id",
            "resolved_rows": resolved,
            "match_probability": pairs,
            "budget": options.budget,
        }
        report = b3.audit(uri, frame, **common)
        low, high = report.e0_interval
        print(f"\n6. The model has an error rate of {report.loco:.3f} on folds of linked persons.")
        print(f"   Without what leaked it is {report.e0:.3f} ({low:.3f} to {high:.3f}).")

        safe = linkage.leak_safe_folds(*pairs, SAFE_THRESHOLD, K, clusters)
        left = resolved.leak(safe.folds, clusters)
        tell("7. With folds that keep together what might be one person", left)
        safer = b3.audit(uri, frame, folds=safe, **common)
        low, high = safer.e0_interval
        print(f"   The error rate on them is {safer.loco:.3f}; without what still leaks")
        print(f"   {safer.e0:.3f} ({low:.3f} to {high:.3f}).")
    print(f"\nThe truth, an error rate on records of new persons: {records.truth(model):.3f}")
    print("It lies outside of such an interval in one of twenty hospitals.")


if __name__ == "__main__":
    main()
