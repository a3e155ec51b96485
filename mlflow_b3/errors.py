"""Every exception of the package, and how a wrong value is refused.

The tree:

    B3Error
    ├── InputError (a ValueError)               an argument or a table cannot be used
    ├── ModelError                              a model cannot be loaded, refitted or used to predict
    │   ├── PredictionError                     it lacks the kind of prediction that the loss needs
    │   └── CannotRefit                         no part of it can be trained again
    ├── FitError                                too many refits failed
    ├── InterruptedAudit (a KeyboardInterrupt)  the user stopped the audit before it had a result
    ├── SolverError                             no solver found a solution
    ├── TrackingError                           an audit could not be written to MLflow
    └── EvidenceError                           evidence is unreadable, unsigned or of another model

A wrong value is refused with an `InputError`. Its message has four parts: the argument, the value
received, the values allowed, and what to do. `choose` and `check_seed` write such messages, `closest`
adds a "Did you mean", and `InputError.from_problems` reports all problems at once.
"""

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from numbers import Integral
from typing import Any


class B3Error(Exception):
    """Base class of all errors that this package raises on purpose.

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
    """An argument or a table cannot be used. The message says what to do.

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
        """Report all problems with one subject in one error."""
        if len(problems) == 1:
            return cls(f"{subject}: {problems[0]}")
        listed = "\n".join(f"  - {problem}" for problem in problems)
        return cls(f"{subject}: {len(problems)} problems\n{listed}")


class ModelError(B3Error):
    """A model cannot be loaded or refitted, or lacks the prediction that a loss needs.

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
    """A model lacks the kind of prediction that a loss needs, for any rows."""


class CannotRefit(ModelError):  # noqa: N818 - reads as a sentence where it is raised
    """No part of a model can be trained again. Its predictions can still be corrected."""


class FitError(B3Error):
    """Too many refits of an audit failed for its numbers to be meaningful.

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
    """The user stopped an audit before it had a result.

    Examples
    --------
    Code that handles Ctrl-C handles this error, too:

    >>> import mlflow_b3 as b3
    >>> issubclass(b3.InterruptedAudit, KeyboardInterrupt)
    True
    """


class SolverError(B3Error):
    """No solver found losses that fit the curve. Another method will.

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
    """An audit could not be written to MLflow. If it was complete, `report` holds it.

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
    """Evidence of an audit is unreadable, not signed as required, or about something else.

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
    """Return a "Did you mean" sentence for a misspelt name, or an empty string."""
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
    """Raise an `InputError` unless `seed` is a whole number from 0."""
    if isinstance(seed, bool) or not isinstance(seed, Integral) or seed < 0:
        raise InputError(f"seed={seed!r} must be a whole number from 0.")
