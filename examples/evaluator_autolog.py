"""A training script as many have one, with the audit as one more evaluator of MLflow.

    python examples/evaluator_autolog.py

MLflow logs the training by itself (autologging) and evaluates the model on the clinic's records,
with its own metrics and with an audit. Then a threshold on `b3/e0`, the error rate on patients the
model has never seen, decides whether the model may be used; the accuracy alone would let it pass.
"""

import argparse
import logging
import os
import tempfile
import warnings

os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")

import mlflow
from mlflow.models import MetricThreshold
from mlflow.models.evaluation.validation import ModelValidationFailedException
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import mlflow_b3 as b3

LIMIT = 0.3  # the error rate that the clinic accepts


def make_model():
    return make_pipeline(StandardScaler(), KNeighborsClassifier(5))


def train_and_evaluate(clinic: b3.Clinic, budget: int):
    """Train as ever, then evaluate with MLflow's own evaluator and with the audit."""
    # in the index, as MLflow's own evaluator would hand a column of ids to the model
    records = clinic.frame.set_index("patient_id")
    mlflow.sklearn.autolog()
    with mlflow.start_run(run_name="knn"):
        make_model().fit(records.drop(columns="disease"), records["disease"])
        return mlflow.models.evaluate(
            f"models:/{mlflow.last_logged_model().model_id}",
            records,
            targets="disease",
            model_type="classifier",
            evaluators=["default", "b3"],
            evaluator_config={
                "default": {"log_model_explainability": False},
                "b3": {"cluster": "patient_id", "cluster_error": 0.1, "budget": budget},
            },
        )


def show(result) -> None:
    """Print what the evaluation found, and what it left in MLflow."""
    metrics = result.metrics
    print(f"accuracy on the training records:   {metrics['accuracy_score']:.3f}")
    print(f"error rate ignoring patients:       {metrics['b3/iid']:.3f}")
    print(f"error rate by noisy patient ids:    {metrics['b3/loco']:.3f}")
    low, high = metrics["b3/e0_low"], metrics["b3/e0_high"]
    print(f"error rate on new patients (e0):    {metrics['b3/e0']:.3f} ({low:.3f} to {high:.3f})")
    client = mlflow.MlflowClient()
    run = client.get_run(result.run_id)
    audits = client.search_runs(
        [run.info.experiment_id], f"tags.`mlflow.parentRunId` = '{result.run_id}'"
    )
    runs = client.search_runs([run.info.experiment_id])
    print(f"\nruns in MLflow: {', '.join(sorted(run.info.run_name for run in runs))}")
    print(f"audits of this run: {len(audits)}; refits that were logged as runs: {len(runs) - 2}")
    print(f"files of the audit: {', '.join(sorted(n for n in result.artifacts if 'b3/' in n))}")


def decide(result) -> None:
    """Let MLflow hold the evaluation against two thresholds."""
    for name, threshold in (
        ("accuracy_score", MetricThreshold(threshold=1 - LIMIT, greater_is_better=True)),
        ("b3/e0", MetricThreshold(threshold=LIMIT, greater_is_better=False)),
    ):
        try:
            mlflow.validate_evaluation_results({name: threshold}, result)
            print(f"{name}: passed")
        except ModelValidationFailedException as error:
            print(f"{name}: failed. {error}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--budget", type=int, default=200)
    given = parser.parse_args()
    logging.getLogger("mlflow").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")  # MLflow's, on whole numbers and pickles
    clinic = b3.make_clinic(patients=100, records=8, cluster_error=0.1, seed=0)
    with tempfile.TemporaryDirectory() as folder:
        mlflow.set_tracking_uri(f"sqlite:///{folder}/mlflow.db")
        mlflow.create_experiment("clinic", artifact_location=f"file://{folder}/files")
        mlflow.set_experiment("clinic")
        result = train_and_evaluate(clinic, given.budget)
        mlflow.sklearn.autolog(disable=True)
        show(result)
        print(f"\nMay it be used, if {LIMIT} errors are accepted?")
        decide(result)
    truth = clinic.truth(make_model())
    print(f"\nThe truth (error rate on fresh patients): {truth:.3f}")


if __name__ == "__main__":
    main()
