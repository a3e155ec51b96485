"""`python -m mlflow_b3`, the same as `mlflow-b3`."""

from mlflow_b3.cli import main

main(prog_name="mlflow-b3")
