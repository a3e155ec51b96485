"""CatBoost: route `clone` for its classifiers and regressors, `parameters` for `CatBoost` itself."""

from typing import Any

from mlflow_b3.data.table import ModelInputs
from mlflow_b3.errors import ModelError
from mlflow_b3.refit.boosting import USE_TRAINER, BoostedClone
from mlflow_b3.refit.flavours import load_native
from mlflow_b3.refit.learner import Learner, Source

CLASSES = ("Logloss", "CrossEntropy", "MultiClass", "MultiClassOneVsAll")
VALUES = (
    "RMSE",
    "MAE",
    "MAPE",
    "Expectile",
    "Huber",
    "LogCosh",
    "LogLinQuantile",
    "Lq",
    "Poisson",
    "Quantile",
    "Tweedie",
)


def load(source: Source) -> Any:
    """Load the model."""
    return load_native("catboost", source)


def learner(model: Any, source: Source) -> Learner:
    """Return the learner of a CatBoost model."""
    import catboost

    estimators = (catboost.CatBoostClassifier, catboost.CatBoostRegressor)
    route = "clone" if isinstance(model, estimators) else "parameters"
    source.require_route(route)
    source.require_options()
    loss = _loss(model)
    if loss is not None and loss not in CLASSES + VALUES:
        raise ModelError(_unusable(loss))
    # these classes train identically and have a method for every kind of prediction
    if route == "parameters" and model.is_fitted():
        convert = catboost.to_classifier if loss in CLASSES else catboost.to_regressor
        model = convert(model)
    elif route == "parameters":
        model = estimators[loss not in CLASSES](**model.get_params())
    return CatBoostLearner(model, route)


class CatBoostLearner(BoostedClone):
    """Trains an unfitted copy of a CatBoost model; see `mlflow_b3.refit.sklearn`."""

    def __init__(self, model: Any, route: str) -> None:
        fitted = model.is_fitted()
        notes = []
        if fitted and model.get_cat_feature_indices():
            names = [model.feature_names_[number] for number in model.get_cat_feature_indices()]
            notes.append(f"categorical columns, from the model itself: {', '.join(names)}")
        super().__init__(
            model,
            fitted=model if fitted else None,
            inputs=_inputs(model) if fitted else ModelInputs(),
            notes=notes,
        )
        self.route = route


def _loss(model: Any) -> str | None:
    """Return the name of the loss; None for a custom loss object."""
    loss = model.get_params().get("loss_function")
    if loss is None:
        loss = model.get_all_params()["loss_function"] if model.is_fitted() else None
    if loss is None:
        return "Logloss" if "Classifier" in type(model).__name__ else "RMSE"
    return loss.split(":")[0] if isinstance(loss, str) else None


def _unusable(loss: str) -> str:
    if loss.startswith("PythonUserDefined"):
        return (
            "the model was trained with a custom loss, which is not stored with it. " + USE_TRAINER
        )
    return (
        f"loss_function={loss!r} is neither classification nor regression of one target, and has no "
        f"loss per row that could be audited; use one of {', '.join(CLASSES + VALUES)}."
    )


def _inputs(model: Any) -> ModelInputs:
    names = tuple(map(str, model.feature_names_))
    if names == tuple(map(str, range(len(names)))):  # CatBoost's names for the columns of an array
        return ModelInputs(count=len(names), as_array=True)
    return ModelInputs(columns=names, count=len(names))
