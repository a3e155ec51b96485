"""The evaluator `b3` of `mlflow.models.evaluate`.

MLflow imports this module, through an entry point, in every evaluation. So everything that only an
audit needs is imported later.
"""

import logging
import math
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from mlflow.models.evaluation import EvaluationResult, ModelEvaluator, list_evaluators

from mlflow_b3.errors import InputError, closest
from mlflow_b3.options import EVALUATOR, IDS, LINKAGE, in_groups, options_of
from mlflow_b3.tracking.errors import mlflow_errors

NAME = "b3"
#: Keys that other evaluators may use too.
ANYONES = ("fragments", "reviewer", "row_id")
#: Keys that no other evaluator is likely to have: a configuration with one of them is for an audit.
OWN = ("cluster", *(name for name in in_groups(IDS, LINKAGE) if name not in ANYONES))
#: Arguments of an audit that are arguments of `mlflow.models.evaluate` here.
ELSEWHERE = {"model": "model", "data": "data", "target": "targets"}
#: The default losses of the model types.
LOSSES = {"classifier": "zero_one", "regressor": "squared"}
#: Findings that the audited model may differ from the logged one; thresholds do not catch that.
OTHER_MODEL = ("B322", "B329")
#: What people write for `cluster`, because other libraries call it so.
SLIPS = tuple(
    word + ending
    for word in ("cluster", "clusters", "group", "groups")
    for ending in ("", "_id", "_ids", "_col", "_column", "_key", "_label", "_labels", "_name")
)
#: How similar a key must be to be taken for one of these.
NEARLY = 0.85
#: Similar keys of other evaluators: a key that starts with a count does not name the clusters.
COUNTS = ("k", "max", "min", "n", "num", "number")
OTHERS = ("split_ratio",)
NO_AUDIT_WANTED = (
    "if these keys are for another evaluator, nest them under its name in evaluator_config."
)
_LOG = logging.getLogger(__name__)


class B3Evaluator(ModelEvaluator):  # type: ignore[misc]
    """Audit the evaluated model for a score inflated by leaked dependency.

    Its configuration holds arguments of `mlflow_b3.audit`; `cluster` is required::

        mlflow.models.evaluate(
            "models:/readmission/3", data, targets="readmitted", model_type="classifier",
            evaluators=["default", "b3"],
            evaluator_config={"b3": {"cluster": "patient_id", "cluster_error": [0.05, 0.15]}},
        )

    The data must be the rows that the model was trained on, or similar rows in similar number, because
    an audit refits the model on them. With a small test set it would audit a weaker model.

    The result has the known metrics `b3/…`, and the files of the audit as artifacts. The audit is
    recorded as a child of the evaluation's run and shown on that run.

    Notes
    -----
    MLflow passes an evaluator its configuration, but not whether it was named. A flat configuration
    without `evaluators` goes to all evaluators. So this one accepts a configuration that has a key of
    `OWN` or is nested under `b3`. If a key is similar to one of these, or one of `SLIPS`, it raises an
    error that lists the valid keys. It declines everything else, which MLflow ignores silently if
    another evaluator accepts.

    MLflow's own evaluators pass all columns to the native model, regardless of its signature, and
    scikit-learn refuses columns that it was not trained with. To use them together with this one, put
    the cluster ids into the index, `data=frame.set_index("patient_id")`, or pass the ids themselves,
    `{"cluster": frame["patient_id"]}`.
    """

    @classmethod
    def can_evaluate(
        cls,
        *,
        model_type: str,  # noqa: ARG003 - any type is fine, the model knows its task
        evaluator_config: Any,
        **kwargs: Any,  # noqa: ARG003 - MLflow's signature
    ) -> bool:
        """Return whether the configuration is for an audit; raise an error if it looks misspelled."""
        config = evaluator_config or {}
        if not isinstance(config, Mapping) or NAME in config or any(key in config for key in OWN):
            return True  # a value that is not a mapping was nested under `b3`
        if any(map(_looks_misspelled, config)):
            with mlflow_errors():
                problems: list[str] = []
                _read_arguments(config, problems)
                problems.append(NO_AUDIT_WANTED)
                raise InputError.from_problems("evaluator b3", problems)
        return False

    def evaluate(
        self,
        *,
        model_type: str,
        dataset: Any,
        run_id: str,
        evaluator_config: Any,
        model: Any = None,
        model_id: str | None = None,
        **kwargs: Any,  # noqa: ARG002 - the user's metrics and artifacts are for other evaluators
    ) -> EvaluationResult:
        """Audit the model, record the audit in MLflow, and return its metrics and files."""
        with mlflow_errors():
            from mlflow_b3.tracking.evaluator_data import (
                model_to_audit,
                recorded_files,
                table_to_audit,
            )
            from mlflow_b3.tracking.metrics_and_files import FOLDER, metrics_of
            from mlflow_b3.tracking.recording import audit_and_record, require_whole

            problems: list[str] = []
            arguments = _read_arguments(evaluator_config, problems)
            scored = arguments.get("loss") is not None or arguments.get("scoring") is not None
            if not scored and model_type in LOSSES:
                arguments["loss"] = LOSSES[model_type]
            audited = model_to_audit(model, arguments.get("trainer"), problems)
            table, target = table_to_audit(dataset, arguments.get("cluster"), problems)
            if problems:
                raise InputError.from_problems("evaluator b3", problems)
            report, child = audit_and_record(
                audited,
                table,
                target=target,
                run_id=run_id,
                mlflow_logs=model_id is not None,  # MLflow logs what it can link to a model
                **arguments,
            )
            require_whole(report)  # thresholds must not apply to a partial audit
            for finding in report.findings:
                if finding.code in OTHER_MODEL:
                    _LOG.warning("%s", finding)
            return EvaluationResult(
                metrics={
                    name: value
                    for name, value in metrics_of(report).items()
                    if value is not None and math.isfinite(value)
                },
                artifacts=recorded_files(child, FOLDER),
                run_id=run_id,
            )


def _looks_misspelled(key: object) -> bool:
    """Return whether a key looks like a misspelling, or another library's name, of one of ours."""
    word = str(key).lower().replace("-", "_")
    if word in OTHERS or word.partition("_")[0] in COUNTS:
        return False
    return bool(get_close_matches(word, (*OWN, *SLIPS), n=1, cutoff=NEARLY))


def _read_arguments(config: Any, problems: list[str]) -> dict[str, Any]:
    """Return the arguments of an audit in a configuration; append errors to `problems`."""
    keys = [option.name for option in options_of(EVALUATOR)]
    if isinstance(config, Mapping) and NAME in config:  # with one evaluator MLflow does not unpack
        beside = set(config) - set(list_evaluators())
        config = config[NAME]
        problems += [
            f"{key!r} is next to {NAME!r} in the configuration; move it into {NAME!r}."
            for key in beside
        ]
    if not isinstance(config, Mapping):
        problems.append(f"the configuration must be a dictionary, not {config!r}.")
        return {}
    unknown = [key for key in config if key not in keys]
    problems += [
        f"{key!r} belongs to mlflow.models.evaluate, as {ELSEWHERE[key]}=."
        if key in ELSEWHERE
        else f"{key!r} is not a key of the configuration.{closest(str(key), keys)}"
        for key in unknown
    ]
    if config.get("cluster") is None:
        problems.append(
            "'cluster' is missing: give the name of the column with the (noisy) cluster ids, or the "
            "label of each row."
        )
    if unknown:
        problems.append(f"valid keys are {', '.join(keys)}.")
    return {key: value for key, value in config.items() if key in keys}
