"""Evidence, policies and verdicts. Nothing here imports MLflow."""
