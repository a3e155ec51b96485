"""The evaluator `b3` of `mlflow.models.evaluate`.

MLflow imports this module, by an entry point, in everybody's evaluations: what an audit needs is
imported when there is one.
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
#: Words that others may use too.
ANYONES = ("fragments", "reviewer", "row_id")
#: Keys that no other evaluator is likely to have: a configuration with one of them is meant for us.
OWN = ("cluster", *(name for name in in_groups(IDS, LINKAGE) if name not in ANYONES))
#: Arguments of an audit that `mlflow.models.evaluate` has an argument of its own for.
ELSEWHERE = {"model": "model", "data": "data", "target": "targets"}
#: The losses that an audit takes for the model types by itself, if the model does not contradict.
LOSSES = {"classifier": "zero_one", "regressor": "squared"}
#: Findings that the audited model may not be the logged one, which a threshold does not see.
OTHER_MODEL = ("B322", "B329")
#: What people write for `cluster`, after other libraries.
SLIPS = tuple(
    word + ending
    for word in ("cluster", "clusters", "group", "groups")
    for ending in ("", "_id", "_ids", "_col", "_column", "_key", "_label", "_labels", "_name")
)
#: How like one of these a key must be to be taken for it.
NEARLY = 0.85
#: Words of others that are like ours: what begins with a count does not name the clusters.
COUNTS = ("k", "max", "min", "n", "num", "number")
OTHERS = ("split_ratio",)
NO_AUDIT_WANTED = (
    "if these keys are for another evaluator, nest them under its name in evaluator_config."
)
_LOG = logging.getLogger(__name__)


class B3Evaluator(ModelEvaluator):  # type: ignore[misc]
    """Audits the evaluated model for a score that is inflated by leaked dependency.

    Its configuration are the arguments of `mlflow_b3.audit`, `cluster` at least::

        mlflow.models.evaluate(
            "models:/readmission/3", data, targets="readmitted", model_type="classifier",
            evaluators=["default", "b3"],
            evaluator_config={"b3": {"cluster": "patient_id", "cluster_error": [0.05, 0.15]}},
        )

    The data must be the rows that the model was trained on, or others like them in number and kind: an
    audit trains the model again on them. A small test set would be an audit of a smaller model.

    The result has the metrics `b3/…` that are known and the files of the audit as artifacts. The
    audit is recorded as a child of the evaluation's run, and shown on that run.

    Notes
    -----
    MLflow gives an evaluator its configuration, but not whether it was named. A flat configuration
    without `evaluators` goes to all evaluators. So this one says yes where its configuration has a
    key of `OWN`, or is nested under `b3`. Where a key is nearly one of these, or one of `SLIPS`, it
    raises the error that lists the keys there are. To anything else it says no, which MLflow passes
    over in silence if another evaluator says yes.

    MLflow's own evaluators hand all columns to the native model, whatever its signature says, and
    scikit-learn refuses columns that it was not trained with. Beside them, keep the cluster ids in
    the index, `data=frame.set_index("patient_id")`, or give the ids themselves,
    `{"cluster": frame["patient_id"]}`.
    """

    @classmethod
    def can_evaluate(
        cls,
        *,
        model_type: str,  # noqa: ARG003 - any word will do, the model knows its task
        evaluator_config: Any,
        **kwargs: Any,  # noqa: ARG003 - as MLflow wants it
    ) -> bool:
        """Return whether the configuration is meant for an audit; raise where it nearly is."""
        config = evaluator_config or {}
        if not isinstance(config, Mapping) or NAME in config or any(key in config for key in OWN):
            return True  # what is no mapping was nested under our name
        if any(map(_nearly_ours, config)):
            with mlflow_errors():
                problems: list[str] = []
                _arguments(config, problems)
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
        **kwargs: Any,  # noqa: ARG002 - metrics and artifacts of the user's are for other evaluators
    ) -> EvaluationResult:
        """Audit the model, record the audit in MLflow, and return its metrics and files."""
        with mlflow_errors():
            from mlflow_b3.tracking.evaluation import model_to_audit, recorded_files, table_to_audit
            from mlflow_b3.tracking.metrics_and_files import FOLDER, metrics_of
            from mlflow_b3.tracking.recording import audit_and_record, require_whole

            problems: list[str] = []
            arguments = _arguments(evaluator_config, problems)
            if arguments.get("loss") is None and model_type in LOSSES:
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
            require_whole(report)  # thresholds would take its numbers for those of an audit
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


def _nearly_ours(key: object) -> bool:
    """Return whether a key is a slip of the pen, or another library's word, for one of ours."""
    word = str(key).lower().replace("-", "_")
    if word in OTHERS or word.partition("_")[0] in COUNTS:
        return False
    return bool(get_close_matches(word, (*OWN, *SLIPS), n=1, cutoff=NEARLY))


def _arguments(config: Any, problems: list[str]) -> dict[str, Any]:
    """Return the arguments of an audit in a configuration; note what is wrong with it."""
    keys = [option.name for option in options_of(EVALUATOR)]
    if isinstance(config, Mapping) and NAME in config:  # MLflow unpacks it only for several names
        beside = set(config) - set(list_evaluators())
        config = config[NAME]
        problems += [f"{key!r} stands beside {NAME!r} in the configuration." for key in beside]
    if not isinstance(config, Mapping):
        problems.append(f"its configuration must be a dictionary, not {config!r}.")
        return {}
    unknown = [key for key in config if key not in keys]
    problems += [
        f"{key!r} is given to mlflow.models.evaluate as {ELSEWHERE[key]}=."
        if key in ELSEWHERE
        else f"{key!r} is not a key of its configuration.{closest(str(key), keys)}"
        for key in unknown
    ]
    if config.get("cluster") is None:
        problems.append(
            "'cluster' is missing: name the column with the (noisy) cluster id, or give the label of "
            "each row."
        )
    if unknown:
        problems.append(f"the keys there are: {', '.join(keys)}.")
    return {key: value for key, value in config.items() if key in keys}
