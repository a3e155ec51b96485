"""The exceptions of the package, all of them a `B3Error`."""

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from numbers import Integral
from typing import Any


class B3Error(Exception):
    """Base class of every error this package raises on purpose.

    Examples
    --------
    >>> import mlflow_b3 as b3
    >>> try:
    ...     b3.make_clinic(patients=0)
    ... except b3.B3Error as error:
    ...     print(type(error).__name__)
    InputError
    """


class InputError(B3Error, ValueError):
    """An argument or a table cannot be used; the text says what to do about it.

    Examples
    --------
    >>> import mlflow_b3 as b3
    >>> b3.make_clinic(seed=-1)
    Traceback (most recent call last):
        ...
    mlflow_b3.errors.InputError: seed=-1 must be a whole number from 0.
    """

    @classmethod
    def from_problems(cls, subject: str, problems: Sequence[str]) -> "InputError":
        """Put every problem found with one subject into one error."""
        if len(problems) == 1:
            return cls(f"{subject}: {problems[0]}")
        listed = "\n".join(f"  - {problem}" for problem in problems)
        return cls(f"{subject}: {len(problems)} problems\n{listed}")


class ModelError(B3Error):
    """A model cannot be loaded, refitted or asked for the prediction that a loss needs.

    Examples
    --------
    >>> import mlflow_b3 as b3
    >>> clinic = b3.make_clinic(patients=20, records=4)
    >>> try:
    ...     b3.audit("not a model", clinic.frame, target="disease", cluster="patient_id")
    ... except b3.ModelError as error:
    ...     print(error)
    model='not a model' is not a model URI; use 'models:/name/3', 'models:/name@alias', 'models:/m-…' or 'runs:/run_id/path'.
    """


class PredictionError(ModelError):
    """A model has no prediction of the kind that a loss needs, on whatever rows."""


class FitError(B3Error):
    """Too many of an audit's refits failed for its numbers to mean anything.

    Examples
    --------
    >>> import mlflow_b3 as b3
    >>> from sklearn.naive_bayes import GaussianNB
    >>> clinic = b3.make_clinic(patients=20, records=4)
    >>> model = GaussianNB(priors=[0.5, 0.6])  # they must sum to 1
    >>> try:
    ...     b3.audit(model, clinic.frame, target="disease", cluster="patient_id", n_jobs=1)
    ... except b3.FitError as error:
    ...     print(str(error).splitlines()[0])
    3 of 3 refits failed, the first with: ValueError: The sum of the priors should be 1.
    """


class InterruptedAudit(B3Error, KeyboardInterrupt):  # noqa: N818 - the user did it
    """The user stopped an audit before anything could be said.

    Examples
    --------
    Code that handles Ctrl-C handles this error, too:

    >>> import mlflow_b3 as b3
    >>> issubclass(b3.InterruptedAudit, KeyboardInterrupt)
    True
    """


class SolverError(B3Error):
    """No solver found the losses that fit a curve; another method will.

    Examples
    --------
    >>> import mlflow_b3 as b3
    >>> curve = b3.LossCurve(
    ...     injected=[0, 0.3, 1], loss=[0.30, 0.25, 0.20], stderr=[0.004] * 3, n_train=100
    ... )
    >>> try:
    ...     found = b3.estimate(curve, p0=0.1, method="trend2")
    ... except b3.SolverError:
    ...     found = b3.estimate(curve, p0=0.1)
    >>> found.method
    'trend2'
    """


class TrackingError(B3Error):
    """An audit could not be written to MLflow; where it was complete, `report` holds it.

    Examples
    --------
    >>> import mlflow_b3 as b3
    >>> try:
    ...     b3.compare(registered_model="no-such-model")
    ... except b3.TrackingError as error:
    ...     print(error)
    the registered model 'no-such-model' has no audited version.
    """

    def __init__(self, message: str, report: Any = None) -> None:
        super().__init__(message)
        self.report = report


class EvidenceError(B3Error):
    """Evidence of an audit cannot be read, is not signed as it must be, or is of something else.

    Examples
    --------
    >>> import mlflow_b3 as b3
    >>> from mlflow_b3.evidence.document import open_sealed
    >>> try:
    ...     open_sealed(b"not JSON", ())
    ... except b3.EvidenceError as error:
    ...     print(str(error).partition(":")[0])
    the evidence is not JSON
    """


def closest(name: str, candidates: Iterable[str]) -> str:
    """Return a `did you mean` sentence for a misspelt name, or nothing."""
    matches = get_close_matches(name, [str(candidate) for candidate in candidates], n=1)
    return f" Did you mean {matches[0]!r}?" if matches else ""


def choose(argument: str, value: object, allowed: Iterable[str]) -> str:
    """Return `value` if it is one of the `allowed` words, else raise an `InputError`."""
    words = list(allowed)
    if isinstance(value, str) and value in words:
        return value
    raise InputError(
        f"{argument}={value!r} is not known; use one of {', '.join(map(repr, words))}."
        + (closest(value, words) if isinstance(value, str) else "")
    )


def check_seed(seed: object) -> None:
    """Raise an `InputError` for anything but a whole number from 0."""
    if isinstance(seed, bool) or not isinstance(seed, Integral) or seed < 0:
        raise InputError(f"seed={seed!r} must be a whole number from 0.")
