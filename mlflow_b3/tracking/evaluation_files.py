"""The files of an audit as artifacts of an `mlflow.models.EvaluationResult`."""

import json
from pathlib import Path, PurePosixPath
from typing import Any

from mlflow.models.evaluation import EvaluationArtifact


class TextFile(EvaluationArtifact):  # type: ignore[misc]
    """A report to read; its content is the text."""

    def _load_content_from_file(self, local_artifact_path: str) -> Any:
        # MLflow's own class reads and writes in the machine's encoding
        return Path(local_artifact_path).read_text(encoding="utf-8")

    def _save(self, output_artifact_path: str) -> None:
        Path(output_artifact_path).write_text(self.content, encoding="utf-8")


class JsonFile(EvaluationArtifact):  # type: ignore[misc]
    """An audit in full; its content is the dictionary that `AuditReport.from_dict` takes."""

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
    """Return the files in a folder of a run by their paths; each is read when it is asked for."""
    from mlflow import MlflowClient
    from mlflow.tracking.artifact_utils import get_artifact_uri

    return {
        file.path: KINDS[suffix](uri=get_artifact_uri(run_id, file.path))
        for file in MlflowClient().list_artifacts(run_id, folder)
        if (suffix := PurePosixPath(file.path).suffix) in KINDS
    }
