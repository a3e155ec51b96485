"""The exceptions of the package, all of them a `B3Error`."""

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from numbers import Integral
from typing import Any


class B3Error(Exception):
    """Base class of every error this package raises on purpose."""


class InputError(B3Error, ValueError):
    """An argument or a table cannot be used; the text says what to do about it."""

    @classmethod
    def from_problems(cls, subject: str, problems: Sequence[str]) -> "InputError":
        """Put every problem found with one subject into one error."""
        if len(problems) == 1:
            return cls(f"{subject}: {problems[0]}")
        listed = "\n".join(f"  - {problem}" for problem in problems)
        return cls(f"{subject}: {len(problems)} problems\n{listed}")


class ModelError(B3Error):
    """A model cannot be loaded, refitted or asked for the prediction that a loss needs."""


class PredictionError(ModelError):
    """A model has no prediction of the kind that a loss needs, on whatever rows."""


class FitError(B3Error):
    """Too many of an audit's refits failed for its numbers to mean anything."""


class InterruptedAudit(B3Error, KeyboardInterrupt):  # noqa: N818 - the user did it
    """The user stopped an audit before anything could be said."""


class SolverError(B3Error):
    """No solver found the losses that fit a curve; another method will."""


class TrackingError(B3Error):
    """An audit could not be written to MLflow; where it was complete, `report` holds it."""

    def __init__(self, message: str, report: Any = None) -> None:
        super().__init__(message)
        self.report = report


class EvidenceError(B3Error):
    """Evidence of an audit cannot be read, is not signed as it must be, or is of something else."""


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
