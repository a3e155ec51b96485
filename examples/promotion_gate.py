"""A registry in which a model becomes the champion with signed evidence, or not at all.

    python examples/promotion_gate.py

Two versions of a model are trained on the clinic's records, audited, and held against a policy: at most
0.35 errors on patients the model has never seen. The policy pins what must be audited, so that nobody can
choose a column or a table that looks better. The first, which looks far better when cross-validation
ignores patients, is refused; a tag that says otherwise does not help it. The second becomes the champion.
Then somebody puts the files of the first in the place of the second's, which any user of an MLflow server may
do, and the gate notices.
"""

import argparse
import logging
import os
import tempfile
import warnings
from pathlib import Path

os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")

import mlflow
from mlflow import MlflowClient
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier

import mlflow_b3 as b3
from mlflow_b3.evidence.document import make_keys

POLICY = """\
pins: {readmission: {target: disease, cluster: patient_id, loss: zero_one, data: training}}
limits: {e0_high: 0.35}
evidence: {trusted_keys: [b3.pub]}
"""
NAME = "readmission"


def register_models(clinic: b3.Clinic) -> None:
    """Train two versions and register them; the first relies on having seen a patient before."""
    X, y = clinic.frame.drop(columns=["disease", "patient_id"]), clinic.frame["disease"]
    for model in (KNeighborsClassifier(5, algorithm="brute"), LogisticRegression()):
        with mlflow.start_run(run_name=type(model).__name__):
            dataset = mlflow.data.from_pandas(clinic.frame, targets="disease", name="records")
            mlflow.log_input(dataset, context="training")
            info = mlflow.sklearn.log_model(
                model.fit(X, y),
                name="model",
                serialization_format="cloudpickle",
                pip_requirements=["scikit-learn"],
            )
        mlflow.register_model(info.model_uri, NAME)


def audit_versions(clinic: b3.Clinic, budget: int) -> None:
    """Audit both versions, then check and sign the audits.

    Here both happen in one process. Keep the key away from where models run: sign in another job.
    """
    for version in (1, 2):
        report = b3.audit(
            f"models:/{NAME}/{version}",
            clinic.frame,
            target="disease",
            cluster="patient_id",
            cluster_error=0.1,
            budget=budget,
            progress=False,
        )
        b3.record(report)
        assert b3.attest(f"models:/{NAME}/{version}", clinic.frame).attested
        low, high = report.e0_interval
        print(
            f"version {version}, {report.subject.model}\n  error rate ignoring patients "
            f"{report.iid:.3f}, on new patients {report.e0:.3f} ({low:.3f} to {high:.3f})"
        )


def swap_files() -> None:
    """Put the first version's model in the place of the second's."""
    client = MlflowClient()
    first, second = (client.get_model_version(NAME, version).source for version in ("1", "2"))
    with tempfile.TemporaryDirectory() as folder:
        files = Path(mlflow.artifacts.download_artifacts(first, dst_path=folder))
        client.log_model_artifact(second.removeprefix("models:/"), str(files / "model.pkl"))


def show_gate() -> None:
    """Judge both versions, try to get around the gate, and look at the evidence."""
    client = MlflowClient()
    print("\n--- version 1\n")
    print(b3.gate(f"models:/{NAME}/1", promote="champion"))

    print("\n--- version 1, after somebody has set its tag b3.e0 to 0.01\n")
    client.set_model_version_tag(NAME, "1", "b3.e0", "0.01")
    verdict = b3.gate(f"models:/{NAME}/1", promote="champion")
    print(f"{verdict.outcome}: {verdict.decisive[0].text}")

    print("\n--- version 2\n")
    print(b3.gate(f"models:/{NAME}/2", promote="champion"))
    print(f"\naliases now: {client.get_registered_model(NAME).aliases}")

    print("\n--- version 2, after somebody has swapped its files\n")
    swap_files()
    print(b3.verify(f"models:/{NAME}@champion"))
    verdict = b3.gate(f"models:/{NAME}@champion")
    print(f"\nMay it stay the champion? {verdict.outcome}: {verdict.decisive[0].text}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--budget", type=int, default=300, help="most refits of each version")
    given = parser.parse_args()
    logging.getLogger("mlflow").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")  # MLflow's, on whole numbers and pickles
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        mlflow.set_tracking_uri(f"sqlite:///{folder}/mlflow.db")
        mlflow.create_experiment("clinic", artifact_location=(folder / "files").as_uri())
        mlflow.set_experiment("clinic")
        private, _, _ = make_keys(folder)
        (folder / "policy.yaml").write_text(POLICY, encoding="utf-8")
        os.environ["MLFLOW_B3_SIGNING_KEY"] = str(private)
        os.environ["MLFLOW_B3_POLICY"] = str(folder / "policy.yaml")
        clinic = b3.make_clinic(cluster_error=0.1, seed=1)
        register_models(clinic)
        audit_versions(clinic, given.budget)
        show_gate()


if __name__ == "__main__":
    main()
