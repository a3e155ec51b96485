"""Audits in MLflow: runs, metrics, artifacts and tags."""
