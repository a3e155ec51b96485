"""scikit-learn's networks: routes `hot-start` (from the logged weights) and `last-layer`."""

import warnings
from collections.abc import Callable
from copy import deepcopy
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import issparse
from scipy.special import expit
from sklearn.exceptions import ConvergenceWarning
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import Pipeline
from sklearn.utils import _safe_indexing, check_random_state

from mlflow_b3.data.losses import Predictor
from mlflow_b3.errors import InputError, ModelError
from mlflow_b3.refit.head import as_numbers
from mlflow_b3.refit.learner import Learner, MethodPredictor, Rows, Source
from mlflow_b3.refit.networks import CHECKS, HOT_START, LastLayerLearner, Split, as_predictor
from mlflow_b3.refit.sklearn import CloneLearner, estimator_inputs, estimator_name

Array = NDArray[Any]
#: The routes of these networks besides `clone`.
ROUTES = ("hot-start", "last-layer")
LEAST_EPOCHS = 5
ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "identity": lambda values: values,
    "logistic": expit,
    "tanh": np.tanh,
    "relu": lambda values: np.maximum(values, 0),
}


def is_network(model: Any) -> bool:
    """Return whether an estimator is one of scikit-learn's networks or a pipeline that ends in one."""
    return isinstance(_network(model), (MLPClassifier, MLPRegressor))


def learner(model: Any, source: Source) -> Learner:
    """Return the learner of a fitted network by one of `ROUTES`.

    A hot start has the option `epochs` (iterations for the solver lbfgs). The default is half of the
    epochs of its own training, at least 5.
    """
    route = source.require_route(*ROUTES)
    network = _network(model)
    _require_fitted(network, route)
    if route == "last-layer":
        source.require_options()
        return NetworkHeadLearner(model)
    usual = max(LEAST_EPOCHS, int(network.n_iter_) // 2)
    given = source.require_options("epochs").get("epochs", usual)
    try:
        epochs = CHECKS["epochs"](given)
    except ValueError as error:
        raise InputError(f"refit_options epochs={given!r} must be {error}.") from error
    return HotStartLearner(model, epochs)


class HotStartLearner(CloneLearner):
    """Trains a copy of a fitted network, starting from its weights.

    Parameters
    ----------
    estimator : MLPClassifier, MLPRegressor or Pipeline
        Fitted. In a pipeline the network is the last step.
    epochs : int
        Passes over all rows; iterations for the solver lbfgs.

    Notes
    -----
    This is `fit` with `warm_start=True` and `max_iter=epochs`; the state of the optimiser is not
    kept. There are three differences. The training never stops early. There are no convergence
    warnings, because few epochs are intended. The rows may lack classes.

    Steps before the network are fitted again, on the given rows alone. The logged weights then
    receive features with a slightly different scale. If a step returns another number of columns,
    the refit fails.
    """

    route = "hot-start"

    def __init__(self, estimator: Any, epochs: int) -> None:
        super().__init__(estimator)
        self.strength = "lower-bound"
        self._epochs = epochs
        network = _network(estimator)
        self._network = deepcopy(network).set_params(
            max_iter=epochs, early_stopping=False, n_iter_no_change=np.inf
        )
        # reset the state of the training: the best loss, which is missing after early stopping, and
        # the optimiser, whose learning rate may have dropped to nothing
        self._network.best_loss_ = np.inf
        vars(self._network).pop("_optimizer", None)
        self.notes += (f"hot-start training with epochs={epochs}", HOT_START)
        if _steps_before(estimator) is not None:
            self.notes += (
                "steps before the network are fitted again in every refit, so its logged weights "
                "receive features with a slightly different scale",
            )
        if network.early_stopping:
            self.notes += (
                "early stopping is not repeated: refits use all rows for training, for all epochs",
            )

    def with_target(self, target: Array) -> Self:
        """Raise an error for classes that the network does not know."""
        _require_classes(getattr(self._network, "classes_", None), target)
        return self

    def train(self, rows: Rows, seed: int | None) -> Predictor:
        """Train a copy on these rows."""
        estimator = self._unfitted(seed)
        weight = rows.weight if self.weighted else None
        before, seeded = _steps_before(estimator), _network(estimator)
        if before is None:
            return MethodPredictor(self._continue(rows.X, rows.target, weight, seeded))
        X = before.fit_transform(rows.X, rows.target)
        network = self._continue(X, rows.target, weight, seeded)
        return MethodPredictor(Pipeline([*before.steps, ("network", network)]))

    def _continue(self, X: Any, target: Array, weight: Array | None, seeded: Any) -> Any:
        """Train a copy of the network further, with the random state of `seeded`."""
        network = deepcopy(self._network)
        if network.solver == "lbfgs":
            return _fit_lbfgs(network, X, target, weight)
        # one generator for all epochs: an int would shuffle the rows identically in each
        generator = check_random_state(deepcopy(seeded.random_state))
        network.set_params(warm_start=False, random_state=generator)
        for _ in range(self._epochs):
            network.partial_fit(X, target, sample_weight=weight)
        return network


class NetworkHeadLearner(LastLayerLearner):
    """Refits the last layer of a fitted network as a logistic or ridge regression.

    Parameters
    ----------
    estimator : MLPClassifier, MLPRegressor or Pipeline
        Fitted. In a pipeline the network is the last step; earlier steps are not refitted.
    """

    def __init__(self, estimator: Any) -> None:
        network = _network(estimator)
        if network.out_activation_ == "exp":
            raise ModelError(
                "refit='last-layer': the outputs of a network with the Poisson loss are exponentials "
                "of its last layer, which a ridge regression cannot replace. Use 'hot-start' or "
                "'clone'."
            )
        self._steps = _steps_before(estimator)
        self._known = getattr(network, "classes_", None)
        split = Split(
            features=lambda matrix: _hidden(network, matrix),
            weight=network.coefs_[-1].T,
            bias=network.intercepts_[-1],
            link="logits",
            width=network.n_features_in_,
            dtype=np.float64,
        )
        super().__init__(split, estimator_name(estimator))
        self.task = "regression" if self._known is None else "classification"
        self.inputs = estimator_inputs(estimator)

    def represent(self, X: Any, ids: Array) -> NDArray[np.float64]:
        """Return the outputs of the last hidden layer for all rows."""
        if self._steps is None:
            return super().represent(X, ids)
        assert self._split is not None
        matrix = self._steps.transform(X)
        if not issparse(matrix):
            matrix = np.asarray(matrix, dtype=np.float64)
        return as_numbers(self._split.features(matrix), len(X))

    def with_target(self, target: Array) -> Self:
        """Take the classes of the output columns from the network."""
        if self._known is None:
            return super().with_target(target)
        assert self._split is not None
        _require_classes(self._known, target)
        other = self.copied()
        other.original = as_predictor(self._split.outputs, "logits", self._known)
        return other

    def __getstate__(self) -> dict[str, Any]:
        """Drop the network and the steps before it."""
        return {**super().__getstate__(), "_steps": None}


def _network(model: Any) -> Any:
    """Return the last step of a pipeline, or the model itself."""
    return model.steps[-1][1] if isinstance(model, Pipeline) else model


def _steps_before(model: Any) -> Any:
    """Return the steps before the last as a pipeline; None if there are none."""
    return model[:-1] if isinstance(model, Pipeline) and len(model.steps) > 1 else None


def _require_fitted(network: Any, route: str) -> None:
    name = type(network).__name__
    if not hasattr(network, "coefs_"):
        raise ModelError(
            f"refit={route!r} needs the weights of a fitted network, but this {name} was never "
            "fitted. Fit it first, or use refit='clone'."
        )
    several = network.out_activation_ != "softmax" and network.n_outputs_ > 1
    if several:
        raise ModelError(
            f"refit={route!r}: this {name} predicts {network.n_outputs_} targets at once; an audit "
            "needs one."
        )


def _require_classes(known: Array | None, target: Array) -> None:
    """Raise an error for classes that a network was not trained on."""
    if known is None:
        return
    new = np.setdiff1d(target, known)
    if len(new):
        raise InputError(
            f"target: the network does not know {', '.join(map(repr, new[:10].tolist()))}; it was "
            f"trained on {', '.join(map(repr, known[:10].tolist()))}. Give the labels of "
            "its training, or use refit='clone'."
        )


def _fit_lbfgs(network: Any, X: Any, target: Array, weight: Array | None) -> Any:
    """Train a network by lbfgs, starting from its weights.

    A warm start needs all classes. For each missing class a copy of the first row is added with
    weight zero, which leaves the objective unchanged.
    """
    lacking = np.setdiff1d(getattr(network, "classes_", target), target)
    if len(lacking):
        weight = np.ones(len(target)) if weight is None else weight
        weight = np.concatenate([weight, np.zeros(len(lacking))])
        X = _safe_indexing(X, np.concatenate([np.arange(len(target)), np.zeros(len(lacking), int)]))
        target = np.concatenate([target, lacking.astype(target.dtype)])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # few iterations are intended
        return network.set_params(warm_start=True).fit(X, target, sample_weight=weight)


def _hidden(network: Any, matrix: Any) -> Any:
    """Return the outputs of the last hidden layer, or the inputs if there is none."""
    activation = ACTIVATIONS[network.activation]
    for coef, intercept in zip(network.coefs_[:-1], network.intercepts_[:-1], strict=True):
        matrix = activation(matrix @ coef + intercept)
    return matrix
