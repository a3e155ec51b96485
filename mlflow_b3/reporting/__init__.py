"""What an audit found, as numbers and in words."""

from mlflow_b3.auditing.report import AuditReport

__all__ = ["AuditReport"]
