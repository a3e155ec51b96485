"""The evaluator b3: `mlflow.models.evaluate` audits, and nobody else's evaluation notices."""

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import mlflow
import numpy as np
import pandas as pd
import pytest
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException
from mlflow.models import EvaluationResult, MetricThreshold
from mlflow.models.evaluation import list_evaluators
from mlflow.models.evaluation.base import EvaluationDataset
from mlflow.models.evaluation.validation import ModelValidationFailedException
from sklearn.linear_model import LinearRegression
from sklearn.naive_bayes import GaussianNB

import mlflow_b3
from mlflow_b3 import AuditReport, FitError, InputError, ModelError, SolverError, TrackingError
from mlflow_b3.demo import FEATURES
from mlflow_b3.options import EVALUATOR, options_of
from mlflow_b3.tracking.errors import mlflow_errors
from mlflow_b3.tracking.evaluator import OWN, B3Evaluator
from mlflow_b3.tracking.evaluator_data import model_to_audit, table_to_audit
from mlflow_b3.tracking.metrics_and_files import is_answer, worth

#: A configuration of an audit that takes half a second.
SMALL = {"cluster": "patient_id", "cluster_error": 0.1, "folds": 2, "budget": 40}
#: MLflow's own evaluators and autologging, and the libraries that they import, warn of many things.
MLFLOW_WARNS = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def clinic() -> mlflow_b3.Clinic:
    return mlflow_b3.make_clinic(patients=30, records=4, cluster_error=0.1)


def log(estimator: Any, **options: Any) -> Any:
    """Log a model in a run of its own."""
    with mlflow.start_run():
        return mlflow.sklearn.log_model(
            estimator, name="model", pip_requirements=["scikit-learn"], **options
        )


def log_clinic(clinic: mlflow_b3.Clinic) -> Any:
    X, y = clinic.frame[list(FEATURES)], clinic.frame["disease"]
    return log(GaussianNB().fit(X, y), signature=mlflow.models.infer_signature(X))


@pytest.fixture(scope="module")
def logged(evaluate: Any, clinic: mlflow_b3.Clinic) -> Any:
    """Log the model of most tests."""
    assert evaluate
    return log_clinic(clinic)


@pytest.fixture
def logged_alone(evaluate: Any, clinic: mlflow_b3.Clinic) -> Any:
    """Log a model that no other test evaluates."""
    assert evaluate
    return log_clinic(clinic)


@pytest.fixture(scope="module")
def result(logged: Any, evaluate: Any) -> EvaluationResult:
    """Evaluate the model once by its id."""
    return evaluate(logged.model_uri)


@pytest.fixture(scope="module")
def evaluate(shared_store: str, clinic: mlflow_b3.Clinic) -> Callable[..., EvaluationResult]:
    """Return `mlflow.models.evaluate` on the clinic's records with the evaluator b3."""
    assert shared_store

    def run(model: Any, **changes: Any) -> EvaluationResult:
        call = {
            "data": clinic.frame,
            "targets": "disease",
            "model_type": "classifier",
            "evaluators": "b3",
            "evaluator_config": {"b3": SMALL},
            **changes,
        }
        return mlflow.models.evaluate(model, **call)

    return run


def children(run_id: str) -> list[Any]:
    client = MlflowClient()
    experiment = client.get_run(run_id).info.experiment_id
    return list(client.search_runs([experiment], f"tags.`mlflow.parentRunId` = '{run_id}'"))


# --- the entry point ------------------------------------------------------------------------------


def test_mlflow_finds_the_evaluator_by_its_entry_point():
    """If this fails here alone, the package's metadata are old: pip install it again."""
    assert "b3" in list_evaluators()


def test_other_peoples_evaluations_import_none_of_our_statistics():
    program = """
import sys, mlflow.models.evaluation
before = set(sys.modules)
from mlflow_b3.tracking.evaluator import B3Evaluator
assert not B3Evaluator.can_evaluate(model_type="text", evaluator_config={"pos_label": 1})
print(*sorted(set(sys.modules) - before))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert {name for name in done.stdout.split() if not name.startswith("_")} == {
        "mlflow_b3",
        "mlflow_b3.errors",
        "mlflow_b3.options",
        "mlflow_b3.results",
        "mlflow_b3.tracking",
        "mlflow_b3.tracking.errors",
        "mlflow_b3.tracking.evaluator",
        "mlflow_b3.version",
    }


# --- whose configuration it is --------------------------------------------------------------------


@pytest.mark.parametrize(
    "config",
    [
        None,
        {},
        {"log_model_explainability": False, "metric_prefix": "validation_"},
        {"pos_label": 1, "average": "macro", "sample_weights": None},
        {"threshold": 0.5, "seed": 1, "loss": "log"},
    ],
)
def test_it_says_no_to_configurations_that_may_be_anyones(config):
    assert not B3Evaluator.can_evaluate(model_type="classifier", evaluator_config=config)


@pytest.mark.parametrize(
    "config",
    [SMALL, {"cluster_error": 0.1}, {"b3": SMALL}, {"b3": {}}, "patient_id", {"split_rate": 0.2}],
)
@pytest.mark.parametrize("model_type", ["classifier", "regressor", "anything"])
def test_it_says_yes_to_its_own_configuration_for_any_type_of_model(config, model_type):
    assert B3Evaluator.can_evaluate(model_type=model_type, evaluator_config=config)


def test_the_words_that_are_ours_alone_are_arguments_of_an_audit():
    assert set(OWN) <= {option.name for option in options_of(EVALUATOR)}


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("clutser", "cluster"),
        ("clusters", "cluster"),
        ("Cluster_Col", None),
        ("cluster_eror", "cluster_error"),
        ("splitrate", "split_rate"),
        ("group", None),
        ("group_id", None),
    ],
)
def test_a_key_that_is_almost_ours_is_an_error_that_lists_the_valid_ones(key, meant):
    """MLflow would pass over a no in silence, and nobody would notice that nothing was audited."""
    text = refused(
        lambda: B3Evaluator.can_evaluate(model_type="", evaluator_config={key: "patient_id"})
    )
    assert f"{key!r} is not a key of the configuration." in text
    assert "valid keys are cluster, p0," in text
    assert "nest them under its name in evaluator_config" in text
    if meant:
        assert f"Did you mean {meant!r}?" in text


@MLFLOW_WARNS
def test_a_misspelt_configuration_beside_another_evaluator_is_not_passed_over(logged, evaluate):
    config = {"default": {"log_model_explainability": False}, "b3": {"cluster_col": "patient_id"}}
    call = {"evaluators": ["b3", "default"], "evaluator_config": config}
    assert "'cluster' is missing" in refused(lambda: evaluate(logged.model_uri, **call))


@pytest.mark.parametrize(
    "key",
    [
        *("n_clusters", "num_groups", "customer", "subgroup", "group_by", "split_ratio", "p50"),
        *("log_model_explainability", "log_explainer", "explainability_algorithm"),
        *("explainability_nsamples", "explainability_kernel_link", "metric_prefix", "pos_label"),
        *("max_classes_for_multiclass_roc_pr", "average", "sample_weights", "label_list"),
        *("col_mapping", "retriever_k", "ignore_exceptions", "log_metrics_with_dataset_info"),
        *("eval_results_path", "eval_results_mode"),
        *("loss", "seed", "budget", "threshold", "method", "test", "target", "folds", "levels"),
    ],
)
def test_keys_of_other_evaluators_are_none_of_our_business(key):
    assert not B3Evaluator.can_evaluate(model_type="", evaluator_config={key: 3})


@MLFLOW_WARNS
@pytest.mark.parametrize("config", [None, {"log_model_explainability": False}])
def test_an_evaluation_without_our_configuration_is_left_alone(logged, evaluate, clinic, config):
    data = clinic.frame.drop(columns="patient_id")
    uri = logged.model_uri
    result = evaluate(uri, data=data, evaluators=None, evaluator_config=config)
    assert "accuracy_score" in result.metrics
    assert not [name for name in [*result.metrics, *result.artifacts] if name.startswith("b3")]
    assert children(result.run_id) == []


# --- configuration --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("evaluators", "config"),
    [
        ("b3", SMALL),
        ("b3", {"b3": SMALL}),
        ("b3", {"b3": SMALL, "default": {"log_model_explainability": False}}),
        (["b3"], {"b3": SMALL}),
        (None, {"b3": SMALL}),
        (None, SMALL),
    ],
)
def test_the_configuration_may_be_flat_or_nested(logged, evaluate, monkeypatch, evaluators, config):
    given = capture(monkeypatch)
    with pytest.raises(Captured):
        evaluate(logged.model_uri, evaluators=evaluators, evaluator_config=config, model_type="b3")
    assert {key: given[key] for key in SMALL} == SMALL


class Captured(Exception):  # noqa: N818 - it is no error
    """The audit would begin now."""


def capture(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Return what the next audit is given, instead of making it."""
    given: dict[str, Any] = {}

    def instead(model: Any, data: Any, **arguments: Any) -> None:
        given.update(arguments, model=model, data=data)
        raise Captured

    monkeypatch.setattr("mlflow_b3.tracking.recording.audit_and_record", instead)
    return given


def refused(run: Callable[[], Any]) -> str:
    """Return the text of the error that MLflow's user gets for what the user did wrong."""
    with pytest.raises(MlflowException) as error:
        run()
    assert error.value.error_code == "INVALID_PARAMETER_VALUE"
    assert isinstance(error.value.__cause__, InputError)
    return str(error.value)


def test_unknown_keys_are_errors_that_name_the_closest_and_all_valid_ones(logged, evaluate):
    config = {"cluster": "patient_id", "clutser_error": 0.1, "buget": 40, "target": "disease"}
    text = refused(lambda: evaluate(logged.model_uri, evaluator_config=config))
    assert (
        "'clutser_error' is not a key of the configuration. Did you mean 'cluster_error'?" in text
    )
    assert "'buget' is not a key of the configuration. Did you mean 'budget'?" in text
    assert "'target' belongs to mlflow.models.evaluate, as targets=." in text
    valid = {option.name for option in options_of(EVALUATOR)}
    listed = text.split("valid keys are ")[1].rstrip(".").split(", ")
    assert set(listed) == valid


@pytest.mark.parametrize("config", [{"cluster_error": 0.1}, {"b3": {}}, {"b3": {"cluster": None}}])
def test_a_missing_cluster_is_named(logged, evaluate, config):
    text = refused(lambda: evaluate(logged.model_uri, evaluator_config=config))
    assert "'cluster' is missing: give the name of the column with the (noisy) cluster ids" in text


def test_a_configuration_that_is_no_dictionary_is_refused(logged, evaluate):
    call = {"evaluators": None, "evaluator_config": {"b3": "patient_id"}, "model_type": "b3"}
    text = refused(lambda: evaluate(logged.model_uri, **call))
    assert "the configuration must be a dictionary, not 'patient_id'." in text


def test_keys_beside_our_name_are_refused(logged, evaluate):
    config = {"b3": SMALL, "budget": 100}
    text = refused(lambda: evaluate(logged.model_uri, evaluator_config=config))
    assert "'budget' is next to 'b3' in the configuration; move it into 'b3'." in text


def test_without_any_configuration_mlflow_itself_answers(logged, evaluate):
    """It does not tell an evaluator whether it was named, so that we cannot say more."""
    with pytest.raises(MlflowException, match="could not be evaluated by any of the registered"):
        evaluate(logged.model_uri, evaluator_config=None)


def test_all_problems_are_told_at_once(evaluate, clinic):
    text = refused(
        lambda: evaluate(
            lambda frame: np.zeros(len(frame)),
            data=clinic.frame.drop(columns="disease"),
            targets=None,
            model_type="b3",
            evaluator_config={"b3": {"cluster_column": "patient_id"}},
        )
    )
    assert text.startswith("evaluator b3: 5 problems")
    for problem in ("'cluster_column' is not", "'cluster' is missing", "no target", "a function"):
        assert problem in text


def test_configurations_can_come_from_json(logged, evaluate):
    config = json.loads(json.dumps({**SMALL, "cluster_error": [0.05, 0.15]}))
    result = evaluate(logged.model_uri, evaluator_config={"b3": config})
    report = AuditReport.from_dict(result.artifacts["b3/audit.json"].content)
    assert report.settings.claim == (0.05, 0.15)


def test_the_model_type_decides_on_the_loss_where_none_is_named(logged, evaluate, monkeypatch):
    for model_type, config, loss in (
        ("classifier", SMALL, "zero_one"),
        ("regressor", SMALL, "squared"),
        ("classifier", {**SMALL, "loss": "log"}, "log"),
        ("anything", SMALL, None),
    ):
        given = capture(monkeypatch)
        with pytest.raises(Captured):
            evaluate(logged.model_uri, model_type=model_type, evaluator_config={"b3": config})
        assert given.get("loss") == loss


# --- models ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["id", "run", "version", "alias", "object"])
def test_every_form_of_a_logged_model_is_audited_as_the_model_it_is(
    logged, evaluate, monkeypatch, form
):
    version = mlflow.register_model(logged.model_uri, "clinic").version
    MlflowClient().set_registered_model_alias("clinic", "champion", version)
    forms = {
        "id": logged.model_uri,
        "run": f"runs:/{logged.run_id}/model",
        "version": "models:/clinic/1",
        "alias": "models:/clinic@champion",
        "object": mlflow.pyfunc.load_model("models:/clinic/1"),
    }
    given = capture(monkeypatch)
    with pytest.raises(Captured):
        evaluate(forms[form])
    assert given["model"] == logged.model_uri
    # MLflow writes metrics where it knows the model's id
    assert given["mlflow_logs"] == (form in ("id", "object"))


def test_a_model_that_is_not_in_the_store_is_audited_as_the_object_it_is(
    evaluate, clinic, tmp_path
):
    X, y = clinic.frame[list(FEATURES)], clinic.frame["disease"]
    mlflow.sklearn.save_model(
        GaussianNB().fit(X, y), tmp_path / "saved", pip_requirements=["scikit-learn"]
    )
    result = evaluate(str(tmp_path / "saved"))
    assert result.metrics["b3/refit_agreement"] == pytest.approx(1)
    assert run_metrics(result.run_id) == answers(result)


def test_a_model_whose_logged_model_was_deleted_is_still_an_object(logged, monkeypatch):
    loaded = mlflow.pyfunc.load_model(logged.model_uri)
    monkeypatch.setattr(loaded._model_meta, "model_id", "m-of-another-server")
    problems: list[str] = []
    assert isinstance(model_to_audit(loaded, None, problems), GaussianNB)
    assert problems == []


def constant(X: Any, y: Any, sample_ids: Any) -> Any:  # noqa: ARG001 - as trainers are called
    return GaussianNB().fit(X, y)


@pytest.mark.parametrize("model", [None, lambda frame: np.zeros(len(frame))])
def test_predictions_and_functions_need_a_trainer(evaluate, clinic, model):
    call: dict[str, Any] = {"data": clinic.frame.assign(guess=0)}
    if model is None:
        call["predictions"] = "guess"
    text = refused(lambda: evaluate(model, **call))
    what = (
        "predictions alone cannot be audited" if model is None else "a function, which can predict"
    )
    assert what in text
    assert "add 'trainer': 'module:function' to the configuration" in text
    config = {"b3": {**SMALL, "trainer": constant}}
    result = evaluate(model, **call, evaluator_config=config)
    assert run_metrics(result.run_id) == answers(result)


def test_a_model_in_an_environment_of_its_own_is_not_loaded_here(logged):
    from mlflow.pyfunc import _ServedPyFuncModel

    client = SimpleNamespace(invoke=None)
    served = _ServedPyFuncModel(
        mlflow.models.Model.load(logged.model_uri), client, server_pid=0, env_manager="uv"
    )
    problems: list[str] = []
    assert model_to_audit(served, None, problems) is None
    assert "env_manager='uv' runs the model in another process" in problems[0]
    assert "`mlflow-b3 audit --env-manager uv`" in problems[0]
    assert model_to_audit(served, "module:function", problems) == logged.model_uri
    assert len(problems) == 1


# --- data -----------------------------------------------------------------------------------------


def test_rows_keep_their_order_and_their_index(clinic):
    frame = clinic.frame.sample(frac=1, random_state=0)
    dataset = EvaluationDataset(frame, targets="disease")
    problems: list[str] = []
    table, target = table_to_audit(dataset, "patient_id", problems)
    assert (target, problems) == ("disease", [])
    pd.testing.assert_frame_equal(table[frame.columns], frame)


def test_an_mlflow_dataset_brings_its_target(logged, evaluate, clinic, monkeypatch):
    given = capture(monkeypatch)
    data = mlflow.data.from_pandas(clinic.frame, targets="disease", name="clinic")
    with pytest.raises(Captured):
        evaluate(logged.model_uri, data=data, targets=None)
    assert given["target"] == "disease"
    assert len(given["data"]) == len(clinic.frame)


def test_the_cluster_column_is_no_feature(result):
    settings = AuditReport.from_dict(result.artifacts["b3/audit.json"].content).settings
    assert (settings.target, settings.cluster) == ("disease", "patient_id")
    assert settings.features == tuple(FEATURES)


def test_arrays_take_the_labels_of_their_rows(evaluate, clinic):
    X, y = clinic.frame[list(FEATURES)].to_numpy(), clinic.frame["disease"].to_numpy()
    model = log(GaussianNB().fit(X, y)).model_uri
    text = refused(lambda: evaluate(model, data=X, targets=y, feature_names=list(FEATURES)))
    assert "cluster='patient_id' is a column name, but data is an array" in text
    config = {**SMALL, "cluster": clinic.frame["patient_id"].tolist()}
    result = evaluate(model, data=X, targets=y, evaluator_config={"b3": config})
    assert "b3/e0" in result.metrics


def test_targets_need_one_value_for_each_row(clinic):
    features = clinic.frame[list(FEATURES)].to_numpy()
    two = EvaluationDataset(features, targets=np.zeros((len(features), 2)))
    problems: list[str] = []
    table_to_audit(two, clinic.frame["patient_id"].tolist(), problems)
    assert problems == ["targets has the shape (120, 2); it must have one value per row."]


def test_a_feature_may_be_called_target(clinic):
    array = clinic.frame[["age", "bmi"]].to_numpy()
    dataset = EvaluationDataset(array, targets=array[:, 0], feature_names=["target", "bmi"])
    table, target = table_to_audit(dataset, ["a"] * len(array), [])
    assert (list(table.columns), target) == (["target", "bmi", "target_"], "target_")


def test_regressors_are_audited_by_their_squared_error(evaluate, clinic):
    X = clinic.frame[["bmi", "glucose"]]
    model = log(LinearRegression().fit(X, clinic.frame["age"]))
    result = evaluate(model.model_uri, targets="age", model_type="regressor")
    report = AuditReport.from_dict(result.artifacts["b3/audit.json"].content)
    assert report.settings.loss == "squared"
    assert result.metrics["b3/e0"] == report.e0


# --- results --------------------------------------------------------------------------------------


def answers(result: Any) -> dict[str, float]:
    """Return the metrics that the run of an evaluation gets from us."""
    return {name: worth(value) for name, value in result.metrics.items() if is_answer(name)}


def run_metrics(run_id: str) -> dict[str, float]:
    return dict(MlflowClient().get_run(run_id).data.metrics)


def test_the_result_has_the_known_metrics_and_the_files(result, tmp_path):
    report = AuditReport.from_dict(result.artifacts["b3/audit.json"].content)
    assert result.metrics["b3/e0"] == report.e0
    assert result.metrics["b3/loco"] == report.loco
    assert "b3/seen_share" not in result.metrics  # of the other pattern
    assert all(np.isfinite(value) for value in result.metrics.values())
    assert isinstance(result.artifacts["b3/curves.csv"].content, pd.DataFrame)
    assert "# " in result.artifacts["b3/report.md"].content
    assert "</html>" in result.artifacts["b3/report.html"].content

    result.save(str(tmp_path / "result"))
    again = EvaluationResult.load(str(tmp_path / "result"))
    assert again.metrics == result.metrics
    assert again.artifacts.keys() == result.artifacts.keys()
    for name, artifact in result.artifacts.items():
        same = again.artifacts[name]
        assert (same.uri, type(same)) == (artifact.uri, type(artifact))
        if isinstance(artifact.content, pd.DataFrame):
            pd.testing.assert_frame_equal(same.content, artifact.content)
        else:
            assert same.content == artifact.content


def lower_is_better(**limits: float) -> dict[str, MetricThreshold]:
    return {"b3/e0": MetricThreshold(greater_is_better=False, **limits)}


def test_thresholds_on_e0_pass_and_fail(result):
    e0 = result.metrics["b3/e0"]
    mlflow.validate_evaluation_results(lower_is_better(threshold=e0 + 0.01), result)
    with pytest.raises(ModelValidationFailedException, match="b3/e0 value threshold check failed"):
        mlflow.validate_evaluation_results(lower_is_better(threshold=e0 - 0.01), result)
    better = EvaluationResult({**result.metrics, "b3/e0": e0 - 0.1}, {})
    change = lower_is_better(min_absolute_change=0.05)
    mlflow.validate_evaluation_results(change, better, result)
    with pytest.raises(
        ModelValidationFailedException, match="minimum absolute change check failed"
    ):
        mlflow.validate_evaluation_results(change, result, better)


class Opaque(mlflow.pyfunc.PythonModel):
    """A model that can only predict, which gets a lower bound."""

    def predict(self, context, model_input: pd.DataFrame, params=None):  # noqa: ARG002
        return (model_input["glucose"] > 0).astype(int).to_numpy()


def log_opaque(frame: pd.DataFrame) -> str:
    signature = mlflow.models.infer_signature(frame[list(FEATURES)])
    with mlflow.start_run():
        info = mlflow.pyfunc.log_model(
            name="model", python_model=Opaque(), signature=signature, pip_requirements=["mlflow"]
        )
    return str(info.model_uri)


@pytest.mark.parametrize("why", ["nothing is known about the ids", "the refit is a lower bound"])
def test_a_threshold_on_an_unknown_e0_fails(logged, evaluate, clinic, why):
    if why.startswith("nothing"):
        config = {key: value for key, value in SMALL.items() if key != "cluster_error"}
        result = evaluate(logged.model_uri, evaluator_config={"b3": config})
    else:
        result = evaluate(log_opaque(clinic.frame))
        assert result.metrics["b3/refit_full"] == 0
    assert "b3/e0" not in result.metrics
    assert "b3/loco" in result.metrics
    with pytest.raises(ModelValidationFailedException, match="b3/e0 was missing"):
        mlflow.validate_evaluation_results(lower_is_better(threshold=1.0), result)


# --- what is left in MLflow -----------------------------------------------------------------------


def points(run_id: str, names: Any) -> dict[str, int]:
    client = MlflowClient()
    return {name: len(client.get_metric_history(run_id, name)) for name in names}


@pytest.mark.parametrize("form", ["id", "run"])
def test_each_metric_is_written_once(logged_alone, evaluate, form):
    """MLflow writes the metrics of models whose id is in their address, and we those of others."""
    logged = logged_alone
    result = evaluate(logged.model_uri if form == "id" else f"runs:/{logged.run_id}/model")
    once = dict.fromkeys(result.metrics, 1)
    (child,) = children(result.run_id)
    shown = once if form == "id" else {name: 1 for name in once if is_answer(name)}
    assert points(result.run_id, run_metrics(result.run_id)) == shown
    assert {n: 1 for n in run_metrics(child.info.run_id) if n.startswith("b3/")} == once
    on_model = MlflowClient().get_logged_model(logged.model_id).metrics
    assert Counter(metric.key for metric in on_model) == shown
    source = result.run_id if form == "id" else child.info.run_id
    assert {metric.run_id for metric in on_model} == {source}


def test_the_audit_is_a_child_of_the_evaluation_which_shows_it(logged_alone, evaluate):
    result = evaluate(logged_alone.model_uri)
    (child,) = children(result.run_id)
    run = MlflowClient().get_run(result.run_id)
    assert (run.info.status, child.info.status) == ("FINISHED", "FINISHED")
    assert run.data.tags["b3.audit_run_id"] == child.info.run_id
    shown, own = (
        {file.path for file in MlflowClient().list_artifacts(run_id, "b3") if not file.is_dir}
        for run_id in (result.run_id, child.info.run_id)
    )
    assert own >= result.artifacts.keys() >= shown == {"b3/report.html"}
    model = MlflowClient().get_logged_model(logged_alone.model_id)
    assert model.tags["b3.audit_run_id"] == child.info.run_id


@MLFLOW_WARNS
@pytest.mark.parametrize("ids", ["in the index", "apart"])
def test_mlflows_own_evaluators_run_beside_it(logged_alone, evaluate, clinic, ids):
    """They hand all columns to scikit-learn's models, so that the ids must not be one of them."""
    records = clinic.frame.set_index("patient_id")
    ours = SMALL
    if ids == "apart":
        ours = {**SMALL, "cluster": records.index.tolist()}
        records = records.reset_index(drop=True)
    result = evaluate(
        logged_alone.model_uri,
        data=records,
        evaluators=["default", "b3"],
        evaluator_config={"default": {"log_model_explainability": False}, "b3": ours},
    )
    assert {"accuracy_score", "b3/e0"} <= result.metrics.keys()
    names = [name for name in result.metrics if name.startswith("b3/")]
    assert points(result.run_id, names) == dict.fromkeys(names, 1)


def test_an_open_run_takes_the_audits_of_several_evaluations(logged_alone, evaluate):
    """Nothing is lost: the run shows the newest, and each audit keeps a run of its own."""
    logged = logged_alone
    with mlflow.start_run() as outer, mlflow.start_run(nested=True) as run:
        results = [
            evaluate(logged.model_uri, evaluator_config={"b3": {**SMALL, "seed": seed}})
            for seed in (0, 1)
        ]
        # the files of a result are those of its own audit
        kept = [result.artifacts["b3/audit.json"].content for result in results]
        assert [content["plan"]["seed"] for content in kept] == [0, 1]
        assert mlflow.active_run().info.run_id == run.info.run_id
    assert {result.run_id for result in results} == {run.info.run_id}
    assert len(children(run.info.run_id)) == 2
    assert len(children(outer.info.run_id)) == 1  # the nested run alone
    e0 = [result.metrics["b3/e0"] for result in results]
    assert e0[0] != e0[1]
    assert run_metrics(run.info.run_id)["b3/e0"] == e0[1]
    on_model = MlflowClient().get_logged_model(logged.model_id).metrics
    assert sorted(m.value for m in on_model if m.key == "b3/e0") == pytest.approx(sorted(e0))


def test_curves_do_not_follow_the_active_model(logged, evaluate):
    """MLflow links what its client logs to the active model, which the evaluated one is."""
    with mlflow.set_active_model(model_id=logged.model_id):
        evaluate(f"runs:/{logged.run_id}/model")
        assert mlflow.get_active_model_id() == logged.model_id
    evaluate(logged.model_uri)
    on_model = MlflowClient().get_logged_model(logged.model_id).metrics
    assert not [metric.key for metric in on_model if metric.key.startswith("b3_curve")]


@MLFLOW_WARNS
def test_autologging_does_not_log_the_refits(logged, evaluate):
    client = MlflowClient()
    experiment = client.get_run(logged.run_id).info.experiment_id
    before = {run.info.run_id for run in client.search_runs([experiment])}
    mlflow.sklearn.autolog(log_models=False)
    try:
        result = evaluate(logged.model_uri)
    finally:
        mlflow.sklearn.autolog(disable=True)
    (child,) = children(result.run_id)
    after = {run.info.run_id for run in client.search_runs([experiment])}
    assert after - before == {result.run_id, child.info.run_id}


def test_an_audit_that_is_refused_is_an_error_of_mlflows_and_leaves_no_child(logged, evaluate):
    config = {"b3": {**SMALL, "cluster": "pateint_id"}}
    with mlflow.start_run() as run:
        text = refused(lambda: evaluate(logged.model_uri, evaluator_config=config))
    assert "cluster='pateint_id' is not a column. Did you mean 'patient_id'?" in text
    assert children(run.info.run_id) == []
    assert run_metrics(run.info.run_id) == {}


# --- errors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (InputError("x"), "INVALID_PARAMETER_VALUE"),
        (ModelError("x"), "BAD_REQUEST"),
        (FitError("x"), "INVALID_STATE"),
        (SolverError("x"), "INTERNAL_ERROR"),
        (TrackingError("x"), "INTERNAL_ERROR"),
    ],
)
def test_our_errors_reach_mlflow_with_their_text_their_cause_and_a_code(error, code):
    with pytest.raises(MlflowException, match=r"^x$") as raised, mlflow_errors():
        raise error
    assert raised.value.error_code == code
    assert raised.value.__cause__ is error


def test_an_error_of_tracking_keeps_the_code_that_mlflow_gave_it():
    def write() -> None:
        try:
            raise MlflowException("no such run", error_code=404)
        except MlflowException as error:
            raise TrackingError("the audit could not be written") from error

    with pytest.raises(MlflowException) as raised, mlflow_errors():
        write()
    assert raised.value.error_code == raised.value.__cause__.__cause__.error_code


def test_other_errors_pass_as_they_are():
    with pytest.raises(KeyError), mlflow_errors():
        raise KeyError("x")


def test_a_score_is_audited_by_its_name(logged_alone, evaluate):
    found = evaluate(logged_alone.model_uri, evaluator_config={"b3": {**SMALL, "scoring": "f1"}})
    metrics = found.metrics
    assert metrics["b3/e0_low"] < metrics["b3/e0"] < metrics["b3/e0_high"]
    assert metrics["b3/inflation"] == pytest.approx(metrics["b3/loco"] - metrics["b3/e0"])
