"""Route `clone`: Spark ML pipelines, refitted through their own estimators."""

import re
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from mlflow_b3.data.losses import Predictor
from mlflow_b3.data.table import ModelInputs
from mlflow_b3.errors import CannotRefit, ModelError
from mlflow_b3.refit.flavours import load_native
from mlflow_b3.refit.learner import FunctionPredictor, Learner, Rows, Source, as_codes

# --- Recover the estimators of the fitted stages of a pipeline

#: Parameters that name input columns of a stage, besides the label and the weights.
INPUTS = ("inputCol", "inputCols", "featuresCol", "offsetCol", "censorCol")
#: Parameters that name output columns of a stage.
OUTPUTS = ("outputCol", "outputCols", "predictionCol", "probabilityCol", "rawPredictionCol")
#: Parameters of an estimator that its model may lack: they affect speed only, or are drawn.
NEGLIGIBLE = {"parallelism", "seed"}


@dataclass(frozen=True, kw_only=True)
class Label:
    """Where the target enters a pipeline.

    Attributes
    ----------
    column : str
        The column that holds it.
    output : str
        The numeric column that the last model learns.
    indexed : bool
        Whether a StringIndexer of the pipeline creates the numbers.
    """

    column: str
    output: str
    indexed: bool


def flatten(model: Any) -> list[Any]:
    """Return the stages of a pipeline, of nested pipelines and of the best models of searches."""
    from pyspark.ml import PipelineModel
    from pyspark.ml.tuning import CrossValidatorModel, TrainValidationSplitModel

    if isinstance(model, (CrossValidatorModel, TrainValidationSplitModel)):
        return flatten(model.bestModel)
    if isinstance(model, PipelineModel):
        return [stage for part in model.stages for stage in flatten(part)]
    return [model]


def searches(model: Any) -> bool:
    """Return whether a pipeline contains a search over parameters."""
    from pyspark.ml import PipelineModel
    from pyspark.ml.tuning import CrossValidatorModel, TrainValidationSplitModel

    if isinstance(model, PipelineModel):
        return any(map(searches, model.stages))
    return isinstance(model, (CrossValidatorModel, TrainValidationSplitModel))


def predictor_position(stages: Sequence[Any]) -> int:
    """Return the position of the last stage that learns a label. Later stages only rename."""
    found = [at for at, stage in enumerate(stages) if _has(stage, "labelCol", "predictionCol")]
    if not found:
        names = [type(stage).__name__ for stage in stages]
        raise CannotRefit(f"no stage of the pipeline learns a label: {names}")
    return found[-1]


def unfitted(stage: Any) -> Any:
    """Return the estimator of a fitted stage with the same parameters, or a copy of a transformer.

    Raises
    ------
    CannotRefit
        If the estimator of a model is not known, or if the model does not store its parameters.
    """
    from pyspark.ml import Model

    if not isinstance(stage, Model):
        return stage.copy()
    name = type(stage).__name__
    estimator_class = _estimator_class(stage)
    if estimator_class is None:
        raise CannotRefit(f"the estimator of its stage {name} is not known")
    estimator = estimator_class()
    lost = {param.name for param in estimator.params if not stage.hasParam(param.name)} - NEGLIGIBLE
    if lost:
        raise CannotRefit(f"its stage {name} does not store {', '.join(sorted(lost))}")
    values = {param.name: value for param, value in stage.extractParamMap().items()}
    return estimator._set(
        **{name: value for name, value in values.items() if estimator.hasParam(name)}
    )


def _estimator_class(stage: Any) -> Any:
    """Return the estimator class of a model, by Spark's naming convention in the same module."""
    from pyspark.ml import Estimator

    name = type(stage).__name__
    module = sys.modules[type(stage).__module__]
    for model, estimator in (
        ("ClassificationModel", "Classifier"),
        ("RegressionModel", "Regressor"),
        ("Model", ""),
    ):
        if name.endswith(model):
            found = getattr(module, name.removesuffix(model) + estimator, None)
            if isinstance(found, type) and issubclass(found, Estimator):
                return found
    return None


def may_be_learned(stage: Any) -> bool:
    """Return whether a transformer may come from a QuantileDiscretizer.

    That is a Bucketizer whose splits are open at both ends. It does not store its origin.
    """
    if type(stage).__name__ != "Bucketizer":
        return False
    splits = stage.getSplitsArray() if stage.isSet("splitsArray") else [stage.getSplits()]
    return any(numbers[0] == -float("inf") and numbers[-1] == float("inf") for numbers in splits)


def find_label(stages: Sequence[Any], at: int) -> Label:
    """Return where the target enters the pipeline."""
    output = stages[at].getOrDefault("labelCol")
    for stage in reversed(stages[:at]):
        if output not in columns_of(stage, OUTPUTS) and not _makes_label(stage, output):
            continue
        name = type(stage).__name__
        if name == "StringIndexerModel":
            position = columns_of(stage, OUTPUTS).index(output)
            column = columns_of(stage, INPUTS)[position]
            return Label(column=column, output=output, indexed=True)
        if name == "RFormulaModel" and not stage.getOrDefault("forceIndexLabel"):
            left = stage.getOrDefault("formula").partition("~")[0].strip()
            return Label(column=left, output=output, indexed=False)
        raise CannotRefit(f"its label {output!r} is created by a {name}, which is not supported")
    return Label(column=output, output=output, indexed=False)


def _makes_label(stage: Any, output: str) -> bool:
    return type(stage).__name__ == "RFormulaModel" and stage.getOrDefault("labelCol") == output


def label_texts(stages: Sequence[Any], label: Label) -> list[str] | None:
    """Return the labels in the order of their numbers; None if the pipeline does not index them."""
    for stage in stages:
        if type(stage).__name__ == "StringIndexerModel":
            outputs = columns_of(stage, OUTPUTS)
            if label.output in outputs:
                return list(stage.labelsArray[outputs.index(label.output)])
    return None


def needed_columns(stages: Sequence[Any], at: int, label: Label) -> tuple[str, ...] | None:
    """Return the columns that the table must have; None if a stage does not name them."""
    made: set[str] = set()
    needed: list[str] = []
    for stage in stages[: at + 1]:
        read = _read_columns(stage)
        if read is None:
            return None
        needed += [name for name in read if name not in made and name != label.column]
        made.update(columns_of(stage, OUTPUTS))
        if type(stage).__name__ == "RFormulaModel":
            made.update(columns_of(stage, ("featuresCol", "labelCol")))
    features = columns_of(stages[at], ("featuresCol",))
    if set(features) & set(needed):
        raise ModelError(
            f"the pipeline starts from vectors, column {features[0]!r}, which a table cannot hold. "
            "Log a pipeline that starts with a VectorAssembler, or give a trainer."
        )
    return tuple(dict.fromkeys(needed))


def _read_columns(stage: Any) -> list[str] | None:
    if type(stage).__name__ == "RFormulaModel":
        right = stage.getOrDefault("formula").partition("~")[2]
        names = re.findall(r"[A-Za-z_][A-Za-z0-9_]*|\.", right)
        return None if "." in names else names
    read = columns_of(stage, INPUTS)
    return read or None


def columns_of(stage: Any, params: Sequence[str]) -> list[str]:
    """Return the columns that these parameters of a stage name."""
    names: list[str] = []
    for param in params:
        if stage.hasParam(param) and stage.isDefined(param):
            value = stage.getOrDefault(param)
            names += [value] if isinstance(value, str) else list(value)
    return [name for name in names if name]


def _has(stage: Any, *params: str) -> bool:
    return all(stage.hasParam(param) for param in params)


# --- The flavour: route `clone`

#: Classifiers whose raw predictions are decision values.
WITH_DECISION = {"LogisticRegression", "LinearSVC", "GBTClassifier", "FMClassifier", "OneVsRest"}
WEIGHT = "b3_weight"


def load(source: Source) -> Any:
    """Load the pipeline, in the session of the user or in a small one."""
    session()
    return load_native("spark", source)


def learner(model: Any, source: Source) -> "SparkLearner":
    """Return the learner of a fitted pipeline, or of a single fitted model."""
    source.require_route("clone")
    source.require_options()
    return SparkLearner(model)


def session() -> Any:
    """Return the active session, or start a small and quiet one in this process."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    active = SparkSession.getActiveSession()
    if active is not None:
        return active
    if SparkContext._active_spark_context is not None:  # the user's, in another thread
        return SparkSession.builder.getOrCreate()
    builder = SparkSession.builder.master("local[1]").appName("mlflow-b3")
    for name, value in {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "1",
    }.items():
        builder = builder.config(name, value)
    try:
        with _quiet():
            started = builder.getOrCreate()
    except Exception as error:  # no Java, or one that is too old
        raise ModelError(
            f"this model needs Spark, which could not be started: {type(error).__name__}: {error}. "
            "Install Java 17 or later, or start a SparkSession before the audit."
        ) from error
    started.sparkContext.setLogLevel("ERROR")
    return started


class SparkLearner(Learner):
    """Fits the estimators of a pipeline's stages, with the same parameters.

    Feature stages that were fitted (indexers, scalers, components) are fitted again, like the last
    model. Stages after the last model, such as an IndexToString, are left out.

    Parameters
    ----------
    model : fitted pipeline or model of pyspark.ml

    Notes
    -----
    Rows are in one partition. Results therefore do not depend on the session.
    """

    route = "clone"
    parallel = False

    def __init__(self, model: Any) -> None:
        stages = flatten(model)
        at = predictor_position(stages)
        self._label = find_label(stages, at)
        self._stages = [unfitted(stage) for stage in stages[: at + 1]]
        last = self._stages[-1]
        self.name = " → ".join(type(stage).__name__ for stage in self._stages)
        self.task = _task(last)
        columns = needed_columns(stages, at, self._label)
        self.inputs = ModelInputs(columns=columns, count=None if columns is None else len(columns))
        self.stochastic = any(_seed_holder(stage) is not None for stage in self._stages)
        self.weighted = last.hasParam("weightCol")
        self.weight_required = self.weighted and bool(_weight_column(last))
        if any(map(may_be_learned, self._stages)):
            self.strength = "lower-bound"
        self.notes = tuple(self._own_notes(model))
        self.original = self._predictor(stages[: at + 1], self._original_classes(stages))

    def train(self, rows: Rows, seed: int | None) -> Predictor:
        """Fit all estimators to these rows."""
        from pyspark.ml import Pipeline

        classes, target = self._coded(rows.target)
        frame = rows.X.assign(**{self._label.column: target})
        stages = [stage.copy() for stage in self._stages]
        if seed is not None:
            rng = np.random.default_rng(seed)
            for part in filter(None, map(_seed_holder, stages)):
                part._set(seed=int(rng.integers(2**31)))
        if rows.weight is not None:
            column = _weight_column(stages[-1]) or WEIGHT
            stages[-1].setWeightCol(column)
            frame = frame.assign(**{column: rows.weight})
        with _quiet():
            fitted = flatten(Pipeline(stages=stages).fit(_as_spark(frame)))
        texts = label_texts(fitted, self._label)
        if classes is not None and texts is not None:
            by_text = {_text(label): label for label in classes}
            classes = np.array([by_text[text] for text in texts], dtype=classes.dtype)
        return self._predictor(fitted, classes)

    def _coded(self, target: NDArray[Any]) -> tuple[NDArray[Any] | None, Any]:
        """Return the classes, and the target as strings to index or as numbers."""
        if self.task == "regression":
            return None, np.asarray(target, dtype=float)
        classes, codes = as_codes(target)
        if self._label.indexed:
            return classes, [_text(label) for label in target]
        return classes, codes.astype(float)

    def _predictor(self, stages: Sequence[Any], classes: NDArray[Any] | None) -> Predictor:
        from pyspark.ml import PipelineModel

        last = stages[-1]
        pipeline = PipelineModel(stages=list(stages))

        def output(param: str, X: Any) -> NDArray[np.float64]:
            return _column(pipeline, X, last.getOrDefault(param))

        if classes is None:
            values = {"value": lambda X: output("predictionCol", X)}
            return FunctionPredictor(values, name=self.name)

        def decide(X: Any) -> NDArray[np.float64]:
            raw = output("rawPredictionCol", X)
            return raw[:, 1] if raw.shape[1] == 2 else raw

        functions = {"label": lambda X: classes[output("predictionCol", X).astype(int)]}
        if last.hasParam("probabilityCol"):
            functions["probability"] = lambda X: output("probabilityCol", X)
        if type(self._stages[-1]).__name__ in WITH_DECISION:
            functions["decision"] = decide
        return FunctionPredictor(functions, classes, name=self.name)

    def _original_classes(self, stages: Sequence[Any]) -> NDArray[Any] | None:
        if self.task == "regression":
            return None
        texts = label_texts(stages, self._label)
        if texts is not None:
            return np.array(texts)
        last = stages[len(self._stages) - 1]
        count = len(last.models) if hasattr(last, "models") else last.numClasses
        return np.arange(count)

    def _own_notes(self, model: Any) -> Iterator[str]:
        yield "estimators and their parameters are those of the fitted stages"
        yield "refits run one after another in the Spark session, for any n_jobs"
        if self.stochastic:
            yield (
                "rows are in one Spark partition: the random draws of a model trained on "
                "several are not repeated exactly"
            )
        if searches(model):
            yield "refits use the parameters that its search chose; the search is not repeated"
        if any(map(may_be_learned, self._stages)):
            yield (
                "a Bucketizer keeps its splits: if they come from a QuantileDiscretizer, which the "
                "pipeline does not store, they were learned from all rows"
            )
        if self.task == "classification" and not self._label.indexed:
            yield "classes are coded 0, 1, … in sorted order"
        if self.weight_required:
            yield f"sample weights replace the column {_weight_column(self._stages[-1])!r}"


def _task(last: Any) -> str:
    classifier = type(last).__module__ == "pyspark.ml.classification"
    return "classification" if classifier or "Classif" in type(last).__name__ else "regression"


def _seed_holder(stage: Any) -> Any:
    """Return the stage or its inner classifier, whichever has a seed; None if neither has."""
    inner = stage.getClassifier() if stage.hasParam("classifier") else stage
    return inner if inner.hasParam("seed") else None


def _weight_column(stage: Any) -> str | None:
    return stage.getOrDefault("weightCol") or None if stage.isDefined("weightCol") else None


def _text(label: Any) -> str:
    """Return a label as Spark writes it, which is what a StringIndexer sorts and counts."""
    return str(label).lower() if isinstance(label, (bool, np.bool_)) else str(label)


def _as_spark(frame: pd.DataFrame) -> Any:
    plain = frame.assign(
        **{
            str(name): frame[name].astype(object)
            for name in frame.columns
            if isinstance(frame[name].dtype, pd.CategoricalDtype)
        }
    )
    return session().createDataFrame(plain.reset_index(drop=True)).coalesce(1)


def _column(pipeline: Any, X: Any, name: str) -> NDArray[np.float64]:
    """Return one output column of a fitted pipeline for these rows."""
    with _quiet():
        rows = pipeline.transform(_as_spark(X)).select(name).collect()
    if len(rows) != len(X):
        raise ModelError(
            f"the pipeline drops {len(X) - len(rows)} of {len(X)} rows that it cannot handle "
            "(handleInvalid='skip'), so they have no loss. Use 'keep', or drop them first."
        )
    values = [row[0] for row in rows]
    vectors = bool(values) and hasattr(values[0], "toArray")
    return np.array([value.toArray() for value in values] if vectors else values, dtype=float)


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress PySpark's warnings about versions of pandas."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="PySpark does not yet fully support pandas")
        yield
