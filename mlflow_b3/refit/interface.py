"""The one interface through which every flavour is refitted."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from mlflow_b3.data import ModelInputs
from mlflow_b3.errors import InputError, ModelError, closest
from mlflow_b3.losses import Predictor

#: What a refit means for the result. `full`: the training is repeated on other rows, so the audit
#: sees all of the bias. `lower-bound`: part of the model keeps what it learned from all rows,
#: validation rows included, so the audit can only show part of the bias.
STRENGTHS = ("full", "lower-bound")


class CannotRefit(ModelError):  # noqa: N818 - reads as what it says
    """Nothing in this model can be trained again; its predictions can still be corrected."""


@dataclass(frozen=True, kw_only=True)
class Rows:
    """The rows that a learner is trained on.

    Attributes
    ----------
    X : DataFrame or array
        Their features, as the learner's `represent` returned them.
    target : numpy.ndarray
        What is predicted.
    ids : numpy.ndarray
        The labels of the rows in the table's index; row numbers for a file.
    weight : numpy.ndarray or None
        Sample weights, where a column with them was named.
    """

    X: Any
    target: NDArray[Any]
    ids: NDArray[Any]
    weight: NDArray[np.float64] | None = None


class Learner(ABC):
    """A training procedure that can be run again on other rows.

    A flavour derives from it and writes `train`. Learners travel to worker processes, so that they
    must be picklable by joblib, unless `parallel` is False.

    Attributes
    ----------
    route : str
        How the refit is done: `clone`, `parameters`, `trainer`, `fresh`, `hot-start`,
        `last-layer`, `head`, or a word of a third party's.
    name : str
        What the report calls the model.
    task : {"classification", "regression"} or None
        None where the model does not say; then the loss and the target do.
    inputs : ModelInputs
        The columns that the model remembers.
    stochastic : bool
        Whether the result depends on `seed` as well as on the rows.
    seed_untried : bool
        `stochastic` was read from a parameter such as `random_state`, which may be without effect.
    strength : {"full", "lower-bound"}
        What the refit means for the result; see `STRENGTHS`.
    used : tuple of str
        Columns that it needs as features, whatever else they are in an audit: groups, for instance.
    weighted : bool
        Whether `train` makes use of sample weights.
    weight_required : bool
        Whether it cannot do without: the model was trained with weights that the rows must bring.
    parallel : bool
        False where refits must stay in one process and run one after another.
    notes : tuple of str
        Sentences for the report: what was recovered from where, and what was not.
    assumed : str or None
        A sentence on what had to be assumed about the training, and how to give it. Then the audit
        goes on only if a refit on the table's rows gives the logged model again.
    original : Predictor or None
        The model as it was logged, to compare refits with; it takes what `represent` returns.
    """

    route: str
    name: str = "model"
    task: str | None = None
    inputs: ModelInputs = ModelInputs()
    stochastic: bool = False
    seed_untried: bool = False
    strength: str = "full"
    used: tuple[str, ...] = ()
    weighted: bool = False
    weight_required: bool = False
    parallel: bool = True
    notes: tuple[str, ...] = ()
    assumed: str | None = None
    original: Predictor | None = None

    @abstractmethod
    def train(self, rows: Rows, seed: int | None) -> Predictor:
        """Train on these rows; `seed=None` keeps the seed that the model was logged with.

        Classifiers are given rows of at least two classes.
        """

    def fit(self, rows: Rows, seed: int | None = None) -> Predictor:
        """Train on these rows, of however many classes."""
        if self.task == "classification" and (rows.target == rows.target[0]).all():
            return ConstantPredictor(rows.target[0])
        return self.train(rows, seed)

    def represent(self, X: Any, ids: NDArray[Any]) -> Any:  # noqa: ARG002 - for those who need it
        """Return the features in the form that `train` and its predictors are given.

        Called once with all rows, for work that does not depend on the training rows.
        """
        return X

    def with_task(self, task: str) -> Self:
        """Return the same learner for a task, which a model that says its own must agree with."""
        other = self.copied()
        other.task = task
        return other

    def copied(self) -> Self:
        """Return a copy that shares everything, the logged model included."""
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        return other

    def with_target(self, target: NDArray[Any]) -> Self:  # noqa: ARG002 - for those who need it
        """Return the same learner, told what is predicted in all rows of the table.

        Called once, after `with_task`, for classes that a resample may lack.
        """
        return self

    def __getstate__(self) -> dict[str, Any]:
        """Leave the logged model behind: workers do not need it."""
        return {**self.__dict__, "original": None}


@dataclass(frozen=True, kw_only=True)
class Source:
    """Where a model comes from, and what is known about its training.

    Attributes
    ----------
    uri : str or None
        Its address in MLflow; None for a bare object.
    flavours : mapping
        The flavours in its MLmodel file, with their settings.
    params : mapping of str to str
        The parameters that were logged with its run and with the model itself.
    options : mapping
        The user's `refit_options`.
    route : str or None
        The route that the user asked for; None leaves the choice to the flavour.
    notes : list of str
        Sentences for the report that loading adds to those of the learner.
    """

    uri: str | None = None
    flavours: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    params: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    route: str | None = None
    notes: list[str] = field(default_factory=list)

    def require_route(self, *routes: str) -> str:
        """Return the route asked for, or the first of those there are; others are an error."""
        if self.route is None:
            return routes[0]
        if self.route not in routes:
            raise InputError(
                f"refit={self.route!r} does not fit this model; use one of "
                f"{', '.join(map(repr, (*routes, 'trainer', 'head')))}."
                + closest(self.route, (*routes, "trainer", "head"))
            )
        return self.route

    def require_options(self, *allowed: str) -> Mapping[str, Any]:
        """Return the options, all of which must be among those allowed."""
        unknown = [name for name in self.options if name not in allowed]
        if unknown:
            raise InputError(
                f"refit_options {', '.join(map(repr, unknown))} not known for this model; "
                + (f"use {', '.join(map(repr, allowed))}." if allowed else "there are none.")
                + "".join(closest(name, allowed) for name in unknown[:1])
            )
        return self.options


@dataclass(frozen=True, kw_only=True)
class AuditedModel:
    """A learner and what is known about where it came from.

    Attributes
    ----------
    learner : Learner
    inputs : ModelInputs
        The columns that the model wants.
    name : str
        What the report calls it.
    uri, run_id, model_id : str or None
        Its address in MLflow, the run and the LoggedModel it belongs to; None for a bare estimator.
    training_rows : int or None
        How many rows it was trained on, where its run says so.
    model_digest : str or None
        Digest of the model's files before they were loaded; None where they cannot be listed.
    before_first_refit : callable or None
        Called when the audit has checked its input, right before its first refit.
    """

    learner: Learner
    inputs: ModelInputs
    name: str
    uri: str | None = None
    run_id: str | None = None
    model_id: str | None = None
    training_rows: int | None = None
    model_digest: str | None = None
    before_first_refit: Callable[[], None] | None = None


class ConstantPredictor:
    """What a classifier can learn from rows of a single class: that class."""

    def __init__(self, label: Any) -> None:
        self.classes: NDArray[Any] | None = np.array([label])

    def predict(self, kind: str, X: Any) -> NDArray[Any]:
        """Predict the one label, with certainty; it has no decision values."""
        assert self.classes is not None
        if kind == "label":
            return np.repeat(self.classes, len(X))
        if kind == "probability":
            return np.ones((len(X), 1))
        raise ModelError("a resample of a single class gives no decision values.")
