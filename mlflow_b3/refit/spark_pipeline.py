"""From the fitted stages of a Spark pipeline back to the estimators that made them."""

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mlflow_b3.errors import ModelError
from mlflow_b3.refit.interface import CannotRefit

#: Parameters that name columns which a stage reads beside the label and the weights.
INPUTS = ("inputCol", "inputCols", "featuresCol", "offsetCol", "censorCol")
#: Parameters that name columns which a stage adds.
OUTPUTS = ("outputCol", "outputCols", "predictionCol", "probabilityCol", "rawPredictionCol")
#: What an estimator may have that its model forgets: how fast it is, and the seed, which is drawn.
NEGLIGIBLE = {"parallelism", "seed"}


@dataclass(frozen=True, kw_only=True)
class Label:
    """Where the target enters a pipeline.

    Attributes
    ----------
    column : str
        The column of the table's frame that holds it.
    output : str
        The column with numbers that the last model learns from.
    indexed : bool
        A StringIndexer of the pipeline makes the numbers.
    """

    column: str
    output: str
    indexed: bool


def flatten(model: Any) -> list[Any]:
    """Return the stages of a pipeline, of pipelines in it and of what searches chose."""
    from pyspark.ml import PipelineModel
    from pyspark.ml.tuning import CrossValidatorModel, TrainValidationSplitModel

    if isinstance(model, (CrossValidatorModel, TrainValidationSplitModel)):
        return flatten(model.bestModel)
    if isinstance(model, PipelineModel):
        return [stage for part in model.stages for stage in flatten(part)]
    return [model]


def searches(model: Any) -> bool:
    """Return whether there is a search over parameters in a pipeline."""
    from pyspark.ml import PipelineModel
    from pyspark.ml.tuning import CrossValidatorModel, TrainValidationSplitModel

    if isinstance(model, PipelineModel):
        return any(map(searches, model.stages))
    return isinstance(model, (CrossValidatorModel, TrainValidationSplitModel))


def predictor_position(stages: Sequence[Any]) -> int:
    """Return which stage is the last that learns a label; what follows only renames."""
    found = [at for at, stage in enumerate(stages) if _has(stage, "labelCol", "predictionCol")]
    if not found:
        names = [type(stage).__name__ for stage in stages]
        raise CannotRefit(f"no stage of the pipeline learns a label: {names}")
    return found[-1]


def unfitted(stage: Any) -> Any:
    """Return the estimator of a fitted stage, with the same parameters; a transformer as it is.

    Raises
    ------
    CannotRefit
        For a model whose estimator is not known, or that has forgotten parameters of it.
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
        raise CannotRefit(f"its stage {name} has forgotten {', '.join(sorted(lost))}")
    values = {param.name: value for param, value in stage.extractParamMap().items()}
    return estimator._set(
        **{name: value for name, value in values.items() if estimator.hasParam(name)}
    )


def _estimator_class(stage: Any) -> Any:
    """Return the class whose `fit` makes such models: in the same module, by the library's rule."""
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
    """Return whether a transformer looks like what a QuantileDiscretizer leaves behind.

    That is a Bucketizer whose splits are open at both ends; it does not tell who made them.
    """
    if type(stage).__name__ != "Bucketizer":
        return False
    splits = stage.getSplitsArray() if stage.isSet("splitsArray") else [stage.getSplits()]
    return any(numbers[0] == -float("inf") and numbers[-1] == float("inf") for numbers in splits)


def find_label(stages: Sequence[Any], at: int) -> Label:
    """Return where the target enters."""
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
        raise CannotRefit(f"its label {output!r} is made by a {name}, which cannot be followed")
    return Label(column=output, output=output, indexed=False)


def _makes_label(stage: Any, output: str) -> bool:
    return type(stage).__name__ == "RFormulaModel" and stage.getOrDefault("labelCol") == output


def label_texts(stages: Sequence[Any], label: Label) -> list[str] | None:
    """Return the labels of a fitted pipeline in the order of its numbers, where it indexes them."""
    for stage in stages:
        if type(stage).__name__ == "StringIndexerModel":
            outputs = columns_of(stage, OUTPUTS)
            if label.output in outputs:
                return list(stage.labelsArray[outputs.index(label.output)])
    return None


def needed_columns(stages: Sequence[Any], at: int, label: Label) -> tuple[str, ...] | None:
    """Return the columns that the table must hold; None where a stage does not say."""
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
            f"the pipeline begins with vectors, column {features[0]!r}, which a table does not hold. "
            "Log a pipeline that begins with a VectorAssembler, or give a trainer."
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
    """Return the columns that some parameters of a stage name."""
    names: list[str] = []
    for param in params:
        if stage.hasParam(param) and stage.isDefined(param):
            value = stage.getOrDefault(param)
            names += [value] if isinstance(value, str) else list(value)
    return [name for name in names if name]


def _has(stage: Any, *params: str) -> bool:
    return all(stage.hasParam(param) for param in params)
