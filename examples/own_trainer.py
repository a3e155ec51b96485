"""Audit a model that MLflow can only ask for predictions, without and with its training function.

    python examples/own_trainer.py

A forest is logged as a Python function, as models of one's own are. At first an audit can only refit
a linear head on its predictions, which have seen every record: it shows next to nothing. Then the
training function is stored with the run, and the same audit sees the whole bias.
"""

import argparse
import tempfile

import mlflow
import pandas as pd
from mlflow.models import infer_signature

import mlflow_b3 as b3

FEATURES = ["age", "bmi", "glucose", "pressure", "cholesterol"]


def train(X, y, sample_ids):  # noqa: ARG001 - all is in the table
    """Train the forest; its imports stand here, so that the function can be stored alone."""
    from sklearn.ensemble import RandomForestClassifier

    return RandomForestClassifier(30, min_samples_leaf=2, random_state=0).fit(X, y)


class OwnModel(mlflow.pyfunc.PythonModel):
    """What MLflow knows of the model: that it predicts."""

    def __init__(self, inner):
        self.inner = inner

    def predict(self, context, model_input: pd.DataFrame, params=None):  # noqa: ARG002
        """Return probabilities."""
        return self.inner.predict_proba(model_input)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--budget", type=int, default=200)
    parser.add_argument("--n-jobs", type=int, default=-1)
    given = parser.parse_args()
    clinic = b3.make_clinic(patients=100, records=8, cluster_error=0.1, seed=0)
    X, y = clinic.frame[FEATURES], clinic.frame["disease"].to_numpy()
    with tempfile.TemporaryDirectory() as folder:
        mlflow.set_tracking_uri(f"sqlite:///{folder}/mlflow.db")
        mlflow.create_experiment("own", artifact_location=f"file://{folder}/files")
        mlflow.set_experiment("own")
        with mlflow.start_run() as run:
            model = mlflow.pyfunc.log_model(
                name="model",
                python_model=OwnModel(train(X, y, None)),
                signature=infer_signature(X),
                pip_requirements=["scikit-learn"],
            )
        options = {
            "target": "disease",
            "cluster": "patient_id",
            "cluster_error": 0.1,
            "budget": given.budget,
            "n_jobs": given.n_jobs,
        }
        head = b3.audit(model.model_uri, clinic.frame, **options)
        b3.log_trainer(train, run_id=run.info.run_id)
        whole = b3.audit(model.model_uri, clinic.frame, **options)
    truth = clinic.truth(train(X, y, None))
    print(f"by a head:      at least {head.e0_interval[0]:.3f} errors on new patients")
    low, high = whole.e0_interval
    print(f"by its trainer: {whole.e0:.3f} ({low:.3f} to {high:.3f})")
    print(f"the truth:      {truth:.3f}")


if __name__ == "__main__":
    main()
