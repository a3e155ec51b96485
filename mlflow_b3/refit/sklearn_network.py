"""scikit-learn's networks: trained on from their logged weights, or in their last layer only."""

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
#: The routes of these networks beside `clone`.
ROUTES = ("hot-start", "last-layer")
LEAST_EPOCHS = 5
ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "identity": lambda values: values,
    "logistic": expit,
    "tanh": np.tanh,
    "relu": lambda values: np.maximum(values, 0),
}


def is_network(model: Any) -> bool:
    """Return whether an estimator is one of scikit-learn's networks, or a pipeline to one."""
    return isinstance(_network(model), (MLPClassifier, MLPRegressor))


def learner(model: Any, source: Source) -> Learner:
    """Return the learner of a fitted network by one of `ROUTES`.

    The option of a hot start is `epochs`, how often it sees all rows (for the solver lbfgs, its
    iterations); by default half as often as in its own training, at least 5.
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
    """Trains a copy of a fitted network on other rows, from the weights it has.

    Parameters
    ----------
    estimator : MLPClassifier, MLPRegressor or Pipeline
        Fitted; in a pipeline the network is the last step.
    epochs : int
        How often the network sees all rows; for the solver lbfgs, its iterations.

    Notes
    -----
    The weights are what `fit` with `warm_start=True` and `max_iter=epochs` would give: the state of
    the optimiser is not taken over. It differs in three ways. Nothing stops the training early. Few
    epochs are meant, so that no warning tells that it has not converged. The rows may lack classes.

    Steps before the network are fitted anew, on the given rows alone. The logged weights then meet
    features that are scaled a little differently from those they were learned on. Steps that give
    another number of columns on these rows make the refit fail.
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
        # what the training has left: its best loss, which is missing after early stopping, and the
        # optimiser, which may have slowed down to nothing
        self._network.best_loss_ = np.inf
        vars(self._network).pop("_optimizer", None)
        self.notes += (f"hot-start training with epochs={epochs}", HOT_START)
        if _steps_before(estimator) is not None:
            self.notes += (
                "steps before the network are fitted anew in every refit, so that its logged weights "
                "meet features of a slightly different scale",
            )
        if network.early_stopping:
            self.notes += ("early stopping is not repeated: all rows train, for all epochs",)

    def with_target(self, target: Array) -> Self:
        """Require classes that the network knows."""
        _require_classes(getattr(self._network, "classes_", None), target)
        return self

    def train(self, rows: Rows, seed: int | None) -> Predictor:
        """Train a copy on these rows."""
        estimator = self._unfitted(seed)
        weight = rows.weight if self.weighted else None
        before, seeded = _steps_before(estimator), _network(estimator)
        if before is None:
            return MethodPredictor(self._continued(rows.X, rows.target, weight, seeded))
        X = before.fit_transform(rows.X, rows.target)
        network = self._continued(X, rows.target, weight, seeded)
        return MethodPredictor(Pipeline([*before.steps, ("network", network)]))

    def _continued(self, X: Any, target: Array, weight: Array | None, seeded: Any) -> Any:
        """Return a copy of the network that was trained on; its randomness is that of another."""
        network = deepcopy(self._network)
        if network.solver == "lbfgs":
            return _minimised(network, X, target, weight)
        # one generator for all epochs: a number would shuffle the rows the same way in each
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
        Fitted; in a pipeline the network is the last step. Steps before it stay as they are.
    """

    def __init__(self, estimator: Any) -> None:
        network = _network(estimator)
        if network.out_activation_ == "exp":
            raise ModelError(
                "refit='last-layer': the outputs of a network with the Poisson loss are exponentials "
                "of its last layer, for which a ridge regression does not stand. Use 'hot-start' or "
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
        """Return what the last hidden layer makes of all rows."""
        if self._steps is None:
            return super().represent(X, ids)
        assert self._split is not None
        matrix = self._steps.transform(X)
        if not issparse(matrix):
            matrix = np.asarray(matrix, dtype=np.float64)
        return as_numbers(self._split.features(matrix), len(X))

    def with_target(self, target: Array) -> Self:
        """Take the classes of the output columns from the network, which knows them."""
        if self._known is None:
            return super().with_target(target)
        assert self._split is not None
        _require_classes(self._known, target)
        other = self.copied()
        other.original = as_predictor(self._split.outputs, "logits", self._known)
        return other

    def __getstate__(self) -> dict[str, Any]:
        """Leave the steps behind too."""
        return {**super().__getstate__(), "_steps": None}


def _network(model: Any) -> Any:
    """Return the last step of a pipeline, or the model itself."""
    return model.steps[-1][1] if isinstance(model, Pipeline) else model


def _steps_before(model: Any) -> Any:
    """Return the steps before the last as a pipeline; None where there are none."""
    return model[:-1] if isinstance(model, Pipeline) and len(model.steps) > 1 else None


def _require_fitted(network: Any, route: str) -> None:
    name = type(network).__name__
    if not hasattr(network, "coefs_"):
        raise ModelError(
            f"refit={route!r} starts from the weights of a fitted network, and this {name} was never "
            "fitted. Fit it first, or use refit='clone'."
        )
    several = network.out_activation_ != "softmax" and network.n_outputs_ > 1
    if several:
        raise ModelError(
            f"refit={route!r}: this {name} predicts {network.n_outputs_} targets at once; an audit is "
            "about one."
        )


def _require_classes(known: Array | None, target: Array) -> None:
    """Refuse classes that a network was not trained to tell apart."""
    if known is None:
        return
    new = np.setdiff1d(target, known)
    if len(new):
        raise InputError(
            f"target: the network does not know {', '.join(map(repr, new[:10].tolist()))}; it was "
            f"trained to tell {', '.join(map(repr, known[:10].tolist()))} apart. Give the labels of "
            "its training, or use refit='clone'."
        )


def _minimised(network: Any, X: Any, target: Array, weight: Array | None) -> Any:
    """Train a network by lbfgs from the weights it has.

    A warm start wants all classes. For each that these rows lack, a copy of the first row stands in
    with weight zero, which leaves the sums that are minimised as they are.
    """
    lacking = np.setdiff1d(getattr(network, "classes_", target), target)
    if len(lacking):
        weight = np.ones(len(target)) if weight is None else weight
        weight = np.concatenate([weight, np.zeros(len(lacking))])
        X = _safe_indexing(X, np.concatenate([np.arange(len(target)), np.zeros(len(lacking), int)]))
        target = np.concatenate([target, lacking.astype(target.dtype)])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # few iterations are meant
        return network.set_params(warm_start=True).fit(X, target, sample_weight=weight)


def _hidden(network: Any, matrix: Any) -> Any:
    """Return the outputs of the last hidden layer; the inputs where there is none."""
    activation = ACTIVATIONS[network.activation]
    for coef, intercept in zip(network.coefs_[:-1], network.intercepts_[:-1], strict=True):
        matrix = activation(matrix @ coef + intercept)
    return matrix
