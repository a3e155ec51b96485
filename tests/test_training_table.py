"""How many rows a model was trained on, as far as its run says so."""

from types import SimpleNamespace

import mlflow
import pandas as pd
import pytest
from mlflow import MlflowClient

from mlflow_b3.refit.training_table import training_rows


def run_with(frame, context):
    with mlflow.start_run() as run:
        mlflow.log_input(mlflow.data.from_pandas(frame), context=context)
    return run.info.run_id


@pytest.mark.usefixtures("mlflow_store")
@pytest.mark.filterwarnings("ignore:Hint")
def test_a_training_table_that_was_logged_is_counted():
    frame = pd.DataFrame({"a": [1.0, 2.0, 3.0]})
    assert training_rows(run_with(frame, "training")) == 3
    assert training_rows(run_with(frame, "audit")) is None
    assert training_rows("0" * 32) is None
    assert training_rows(None) is None


@pytest.mark.parametrize(
    ("profile", "rows"),
    [
        ('{"num_rows": 7}', 7),
        ('{"features_shape": [30, 2]}', 30),
        ("{}", None),
        ("[]", None),
        ("nonsense", None),
        (None, None),
    ],
)
def test_profiles_of_any_kind_are_read_or_passed_over(monkeypatch, profile, rows):
    tag = SimpleNamespace(key="mlflow.data.context", value="train")
    given = SimpleNamespace(dataset=SimpleNamespace(profile=profile), tags=[tag])
    run = SimpleNamespace(inputs=SimpleNamespace(dataset_inputs=[given]))
    monkeypatch.setattr(MlflowClient, "get_run", lambda *_: run)
    assert training_rows("1") == rows
