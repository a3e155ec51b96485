"""Inputs and outputs of the evaluator: the model, the table, and the files of an audit."""

import json
from pathlib import Path, PurePosixPath
from typing import Any

import pandas as pd
from mlflow.models.evaluation import EvaluationArtifact

from mlflow_b3.errors import ModelError

# --- The evaluated model and table, as arguments of an audit

GIVE_TRAINER = (
    "add 'trainer': 'module:function' to the configuration, a function (X, y, sample_ids) → "
    "predictor that trains the model"
)


def model_to_audit(model: Any, trainer: Any, problems: list[str]) -> Any:
    """Return the `model` argument of `mlflow_b3.audit` for the model that MLflow evaluates.

    MLflow passes a loaded model without its URI. Its metadata name the LoggedModel and the run. A
    model without either, such as one from a local folder, is audited as a Python object.

    Parameters
    ----------
    model : mlflow.pyfunc.PyFuncModel or other
    trainer : object
        The `trainer` of the configuration, which replaces the refit of the model itself.
    problems : list of str
        Gets a sentence if the model cannot be refitted.
    """
    metadata = getattr(model, "metadata", None)
    uri = None if metadata is None else _find_uri(metadata)
    if trainer is not None:
        return uri
    if metadata is None:
        what = (
            "predictions alone cannot be audited"
            if model is None
            else "this model is a function, which can predict but cannot be refitted"
        )
        problems.append(f"{what}; evaluate a model logged in MLflow, or {GIVE_TRAINER}.")
        return None
    manager = getattr(model, "env_manager", "local")
    if manager != "local":
        problems.append(
            f"env_manager={manager!r} runs the model in another process, but an audit must load and "
            "refit it in this one. Use env_manager='local', or `mlflow-b3 audit --env-manager "
            f"{manager}`, which runs the whole audit in the model's environment; or {GIVE_TRAINER}."
        )
        return None
    if uri is not None:
        return uri
    try:
        return model.get_raw_model()
    except (AttributeError, NotImplementedError):
        problems.append(
            "the model is not logged in this tracking store, and cannot be refitted by itself; log it "
            f"and evaluate its URI, or {GIVE_TRAINER}."
        )
    return None


def _find_uri(metadata: Any) -> str | None:
    """Return the URI of a loaded model in this tracking store, or None."""
    from mlflow_b3.refit.loading import model_info

    if metadata.model_id:
        uri = f"models:/{metadata.model_id}"
    elif metadata.run_id:  # logged by MLflow 2
        uri = f"runs:/{metadata.run_id}/{metadata.artifact_path}"
    else:
        return None
    try:
        model_info(uri)
    except ModelError:
        return None  # logged elsewhere, or deleted
    return uri


def table_to_audit(dataset: Any, cluster: Any, problems: list[str]) -> tuple[pd.DataFrame, str]:
    """Return the evaluated rows, in order, and the name of the target column.

    Parameters
    ----------
    dataset : mlflow.models.evaluation.base.EvaluationDataset
    cluster : str or sequence
        As in `mlflow_b3.audit`.
    problems : list of str
        Gets a sentence for each problem.
    """
    given, labels = dataset.features_data, dataset.labels_data
    names = [str(name) for name in dataset.feature_names]
    if isinstance(given, pd.DataFrame):
        frame = given
    else:
        frame = pd.DataFrame(given, columns=names)
        if isinstance(cluster, str) and cluster not in names:
            problems.append(
                f"cluster={cluster!r} is a column name, but data is an array; give the label of each "
                "row instead: {'cluster': [...]}."
            )
    target = str(dataset.targets_name or "target")
    while target in frame.columns:
        target += "_"
    if labels is None:
        problems.append("there is no target; pass targets= to mlflow.models.evaluate.")
    elif labels.shape != (len(frame),):
        problems.append(f"targets has the shape {labels.shape}; it must have one value per row.")
    else:
        frame = frame.assign(**{target: labels})
    return frame, target


# --- Files of an audit as artifacts of an `mlflow.models.EvaluationResult`


class TextFile(EvaluationArtifact):  # type: ignore[misc]
    """A text file; its content is the text."""

    def _load_content_from_file(self, local_artifact_path: str) -> Any:
        # MLflow's own class reads and writes in the machine's encoding
        return Path(local_artifact_path).read_text(encoding="utf-8")

    def _save(self, output_artifact_path: str) -> None:
        Path(output_artifact_path).write_text(self.content, encoding="utf-8")


class JsonFile(EvaluationArtifact):  # type: ignore[misc]
    """A complete audit; its content is the dictionary that `AuditReport.from_dict` takes."""

    def _load_content_from_file(self, local_artifact_path: str) -> Any:
        return json.loads(Path(local_artifact_path).read_text(encoding="utf-8"))

    def _save(self, output_artifact_path: str) -> None:
        Path(output_artifact_path).write_text(json.dumps(self.content), encoding="utf-8")


class TableFile(EvaluationArtifact):  # type: ignore[misc]
    """A table; its content is a DataFrame."""

    def _load_content_from_file(self, local_artifact_path: str) -> Any:
        import pandas as pd

        return pd.read_csv(local_artifact_path)

    def _save(self, output_artifact_path: str) -> None:
        self.content.to_csv(output_artifact_path, index=False)


KINDS = {".csv": TableFile, ".html": TextFile, ".json": JsonFile, ".md": TextFile, ".txt": TextFile}


def recorded_files(run_id: str, folder: str) -> dict[str, EvaluationArtifact]:
    """Return the files in a folder of a run by path; each is read on first access."""
    from mlflow import MlflowClient
    from mlflow.tracking.artifact_utils import get_artifact_uri

    return {
        file.path: KINDS[suffix](uri=get_artifact_uri(run_id, file.path))
        for file in MlflowClient().list_artifacts(run_id, folder)
        if (suffix := PurePosixPath(file.path).suffix) in KINDS
    }
