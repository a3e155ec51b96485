"""Flavours without a refit of their own: ONNX by a head or a trainer, R by a trainer."""

import mlflow
import numpy as np
import pytest
from mlflow.models import Model, infer_signature
from sklearn.linear_model import LogisticRegression

import mlflow_b3 as b3
from mlflow_b3.errors import ModelError

pytestmark = pytest.mark.flavours
AUDIT = {"target": "y", "cluster": "cluster", "folds": 3, "budget": 72}


def train(X, y, sample_ids):
    """Train what the ONNX file holds."""
    del sample_ids
    return LogisticRegression().fit(X, y)


def as_onnx(model):
    """Write a logistic regression as an ONNX graph."""
    onnx = pytest.importorskip("onnx", reason="needs onnx and onnxruntime")
    pytest.importorskip("onnxruntime", reason="needs onnx and onnxruntime")
    helper, kind = onnx.helper, onnx.TensorProto.FLOAT
    n_features = model.coef_.shape[1]
    weights = helper.make_tensor("w", kind, [n_features, 1], model.coef_.ravel().tolist())
    shift = helper.make_tensor("b", kind, [1], model.intercept_.tolist())
    nodes = [
        helper.make_node("Gemm", ["X", "w", "b"], ["score"]),
        helper.make_node("Sigmoid", ["score"], ["probability"]),
    ]
    graph = helper.make_graph(
        nodes,
        "logistic",
        [helper.make_tensor_value_info("X", kind, [None, n_features])],
        [helper.make_tensor_value_info("probability", kind, [None, 1])],
        [weights, shift],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.usefixtures("mlflow_store")
@pytest.mark.parametrize("form", ["models:/", "runs:/"])
def test_onnx_model_has_a_head_refitted_or_a_trainer(table, form):
    X = table.X.to_numpy(dtype=np.float32)
    graph = as_onnx(LogisticRegression().fit(X, table.binary))
    with mlflow.start_run():
        info = mlflow.onnx.log_model(
            graph, name="model", signature=infer_signature(X), pip_requirements=["onnxruntime"]
        )
    uri = info.model_uri if form == "models:/" else f"runs:/{info.run_id}/model"
    frame = table.frame(table.binary)
    head = b3.audit(uri, frame, **AUDIT)
    assert (head.settings.refit, head.settings.refit_strength) == ("head", "lower-bound")
    assert "onnx model" in head.settings.model
    trained = b3.audit(uri, frame, trainer=train, **AUDIT)
    assert (trained.settings.refit, trained.settings.refit_strength) == ("trainer", "full")


@pytest.mark.usefixtures("mlflow_store")
def test_onnx_model_of_two_columns_is_asked_for_all_rows_at_once(table):
    onnx = pytest.importorskip("onnx", reason="needs onnx and onnxruntime")
    X = table.X.to_numpy(dtype=np.float32)
    graph = as_onnx(LogisticRegression().fit(X, table.binary))
    helper, kind = onnx.helper, onnx.TensorProto.FLOAT
    one = helper.make_tensor("one", kind, [1], [1.0])
    graph.graph.initializer.append(one)
    graph.graph.node.append(helper.make_node("Sub", ["one", "probability"], ["rest"]))
    graph.graph.node.append(helper.make_node("Concat", ["rest", "probability"], ["both"], axis=1))
    del graph.graph.output[:]
    graph.graph.output.append(helper.make_tensor_value_info("both", kind, [None, 2]))
    for named in (False, True):
        example = {"X": X[:3]} if named else X[:3]
        with mlflow.start_run():
            info = mlflow.onnx.log_model(
                graph,
                name="model",
                signature=infer_signature(example),
                pip_requirements=["onnxruntime"],
            )
        report = b3.audit(info.model_uri, table.frame(table.binary), **AUDIT)
        assert report.settings.refit == "head"


@pytest.mark.usefixtures("mlflow_store")
def test_r_model_is_audited_by_a_trainer_and_never_loaded(table, tmp_path):
    Model(flavors={"crate": {"version": "0.1", "model": "crate.bin"}}).save(
        str(tmp_path / "MLmodel")
    )
    with mlflow.start_run() as run:
        mlflow.log_artifact(str(tmp_path / "MLmodel"), "model")
    uri = f"runs:/{run.info.run_id}/model"
    with pytest.raises(
        ModelError, match=r"\['crate'\], which cannot be loaded in Python. Give trainer"
    ):
        b3.audit(uri, table.frame(table.binary), **AUDIT)
    report = b3.audit(uri, table.frame(table.words), trainer=train, **AUDIT)
    assert report.settings.refit == "trainer"
