"""Measured losses: the curve over injected leakage, and the losses with broken clusters."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from numbers import Integral
from typing import TYPE_CHECKING, Any

from mlflow_b3.errors import InputError
from mlflow_b3.results import Result

if TYPE_CHECKING:
    import pandas as pd

Matrix = tuple[tuple[float, ...], ...]
SHARPNESS = 25


@dataclass(frozen=True, kw_only=True)
class LossCurve(Result):
    """The mean loss b(π) on V̂ ∖ T' at several injected shares π of leaked rows.

    Attributes
    ----------
    injected : tuple of float
        π: the share of the training rows T' that was drawn from V̂ on purpose. Increasing, in
        [0, 1].
    loss : tuple of float
        b(π): mean loss on the rows of V̂ that are not in T'.
    stderr : tuple of float, optional
        Standard errors of `loss` over the refits; 0 if refits involve no randomness. Without them
        the noise is estimated from the roughness of the curve, which needs five levels.
    n_train : int
        n', the number of rows in T'.
    fits : tuple of int, optional
        Refits at each level, per fold of one assignment of clusters to folds.
    exhausted_at : float
        The injected share at which all of V̂ would be in T': |V̂|/n' if T' is drawn without
        replacement and V̂ is the smaller side, else 1.
    training_loss : tuple of float, optional
        Mean loss on T̂ ∖ T' at the same levels and from the same refits. Required for leakage in
        both directions.
    covariance : matrix, optional
        Covariance of `loss`, or of `loss` followed by `training_loss`, over the choice of the
        clusters (or rows), beyond `stderr`.
    degrees_of_freedom : int, optional
        Degrees of freedom of `covariance`: the number of clusters (or rows) minus one.
    sharpness : int
        The highest power k in the curve: no part of it falls over less than 1/k of its range.

    Examples
    --------
    >>> import mlflow_b3 as b3
    >>> curve = b3.LossCurve(
    ...     injected=[0, 0.1, 0.3, 0.6, 1],
    ...     loss=[0.30, 0.28, 0.25, 0.22, 0.20],
    ...     stderr=[0.004] * 5,
    ...     n_train=100,
    ... )
    >>> round(b3.estimate(curve, p0=0.1).e0, 2)
    0.33
    """

    injected: tuple[float, ...]
    loss: tuple[float, ...]
    stderr: tuple[float, ...] | None = None
    n_train: int
    fits: tuple[int, ...] | None = None
    exhausted_at: float = 1.0
    training_loss: tuple[float, ...] | None = None
    covariance: Matrix | None = None
    degrees_of_freedom: int | None = None
    sharpness: int = SHARPNESS

    def __post_init__(self) -> None:
        """Convert the numbers to plain floats, and report all problems at once."""
        problems: list[str] = []
        for name in ("injected", "loss", "stderr", "training_loss"):
            values = getattr(self, name)
            if values is not None:
                object.__setattr__(self, name, _numbers(name, values, problems))
        if self.fits is not None:
            object.__setattr__(self, "fits", tuple(int(count) for count in self.fits))
        if not problems:
            problems += self._problems()
        if problems:
            raise InputError.from_problems("LossCurve", problems)

    def _problems(self) -> list[str]:
        problems = []
        levels = len(self.injected)
        for name in ("loss", "stderr", "training_loss", "fits"):
            values = getattr(self, name)
            if values is not None and len(values) != levels:
                problems.append(f"{name} has {len(values)} values for {levels} levels.")
        if levels == 0:
            problems.append("there is no level; measure at π = 0 and at least one more.")
        if any(not 0 <= share <= 1 for share in self.injected):
            problems.append(
                f"injected={self.injected} must lie in [0, 1]; give shares, not percentages."
            )
        if any(a >= b for a, b in pairwise(self.injected)):
            problems.append(
                f"injected={self.injected} must increase; sort the levels and average repeated ones."
            )
        if any(error < 0 for error in self.stderr or ()):
            problems.append(f"stderr={self.stderr} must not be negative; give standard errors.")
        if not _is_positive_integer(self.n_train):
            problems.append(f"n_train={self.n_train!r} must be a positive whole number.")
        if not 0 < self.exhausted_at <= 1:
            problems.append(f"exhausted_at={self.exhausted_at!r} must lie in (0, 1].")
        if not _is_positive_integer(self.sharpness):
            problems.append(f"sharpness={self.sharpness!r} must be a whole number from 1.")
        if self.degrees_of_freedom is not None and not _is_positive_integer(
            self.degrees_of_freedom
        ):
            problems.append(
                f"degrees_of_freedom={self.degrees_of_freedom!r} must be a whole number from 1."
            )
        if self.covariance is not None:
            allowed = {levels} if self.training_loss is None else {levels, 2 * levels}
            matrix = _matrix(self.covariance, allowed, problems)
            object.__setattr__(self, "covariance", matrix)
        return problems

    @property
    def exposure(self) -> tuple[float, ...]:
        """The injected share as a multiple of the largest possible one."""
        return tuple(share / self.exhausted_at for share in self.injected)

    def frame(self) -> "pd.DataFrame":
        """Return the curve as a table with a row for each level.

        Returns
        -------
        DataFrame
            With the columns `injected`, `exposure`, `loss` and `stderr`, which is NaN where it is not
            known.
        """
        import pandas as pd

        columns = {"injected": self.injected, "exposure": self.exposure, "loss": self.loss}
        errors = self.stderr or [float("nan")] * len(self.loss)
        return pd.DataFrame({**columns, "stderr": errors})


def _numbers(name: str, values: Any, problems: list[str]) -> tuple[float, ...]:
    try:
        numbers = tuple(float(value) for value in values)
    except (TypeError, ValueError):
        problems.append(f"{name} must be a sequence of numbers.")
        return ()
    if not all(map(math.isfinite, numbers)):
        problems.append(f"{name} has values that are not finite; measure those levels again.")
    return numbers


@dataclass(frozen=True, kw_only=True)
class DoseLoss(Result):
    """e_seen with clusters broken in another way, to show its dependence on the dose.

    Attributes
    ----------
    fragments : str
        How clusters were broken: "singles" (a single row breaks off) or "halves".
    seen_loss, stderr : float

    Examples
    --------
    >>> import mlflow_b3 as b3
    >>> dose = b3.DoseLoss(fragments="singles", seen_loss=0.24, stderr=0.01)
    >>> losses = b3.FragmentLosses(loss=0.30, seen_loss=0.22, doses=[dose])
    >>> found = b3.estimate_fragments(losses, seen_share=0.2)
    >>> round(found.doses[0].e0, 3)
    0.315
    """

    fragments: str
    seen_loss: float
    stderr: float


@dataclass(frozen=True, kw_only=True)
class FragmentLosses(Result):
    """The effect of splitting clusters on the loss: pattern `fragments`.

    Two numbers suffice: `FragmentLosses(loss=0.30, seen_loss=0.22)`.

    Attributes
    ----------
    loss : float
        LOCO: the mean loss on the unchanged folds.
    seen_loss : float
        e_seen: the mean loss on validation rows whose cluster was broken in two on purpose, with
        the other part in training.
    stderr, seen_stderr : float
        Standard errors of `loss` and `seen_loss` over the refits, or their whole uncertainty if
        there is no `covariance`.
    again_loss : float, optional
        The mean loss with clusters broken twice: the row's part is scored and all others are in
        training. Parts that cannot be broken again are broken once. It shows the effect of breaking
        a cluster that is already a fragment.
    again_rows : float
        β: share of the rows of a broken cluster whose part can be broken again.
    doses : tuple of DoseLoss
        e_seen for fragments of other sizes.
    covariance : matrix, optional
        Covariance of (`loss`, `seen_loss`), or of these and `again_loss`, over the choice of the
        clusters, beyond the standard errors.
    degrees_of_freedom : int, optional
        Degrees of freedom of `covariance`; infinite by default.
    fits : int, optional
        Refits with broken clusters, per fold.
    broken_rows : float
        Share of the validation rows whose cluster could be broken.

    Notes
    -----
    In an audit, `seen_loss` is `loss` plus the mean change of the scored rows due to breaking. If
    every cluster can be broken, that equals their mean loss. If some clusters cannot be broken and
    their rows are easier or harder than the others, that difference does not enter.

    Examples
    --------
    >>> import mlflow_b3 as b3
    >>> losses = b3.FragmentLosses(loss=0.30, seen_loss=0.22)
    >>> round(b3.estimate_fragments(losses, seen_share=0.2).e0, 2)
    0.32
    """

    loss: float
    seen_loss: float
    stderr: float = 0.0
    seen_stderr: float = 0.0
    again_loss: float | None = None
    again_rows: float = 1.0
    doses: tuple[DoseLoss, ...] = ()
    covariance: Matrix | None = None
    degrees_of_freedom: int | None = None
    fits: int | None = None
    broken_rows: float = 1.0

    def __post_init__(self) -> None:
        """Convert the numbers to plain floats, and report all problems at once."""
        problems: list[str] = []
        for name in (
            "loss",
            "seen_loss",
            "stderr",
            "seen_stderr",
            "again_loss",
            "again_rows",
            "broken_rows",
        ):
            value = getattr(self, name)
            if value is None and name == "again_loss":
                continue
            try:
                object.__setattr__(self, name, float(value))
            except (TypeError, ValueError):
                problems.append(f"{name}={value!r} must be a number.")
                continue
            if not math.isfinite(getattr(self, name)):
                problems.append(f"{name}={value!r} is not finite; measure it again.")
            elif name.endswith("stderr") and value < 0:
                problems.append(f"{name}={value!r} must not be negative.")
        if not problems and not 0 < self.broken_rows <= 1:
            problems.append(f"broken_rows={self.broken_rows!r} must lie in (0, 1].")
        if not problems and not 0 <= self.again_rows <= 1:
            problems.append(f"again_rows={self.again_rows!r} must lie in [0, 1].")
        for name in ("degrees_of_freedom", "fits"):
            value = getattr(self, name)
            if value is not None and not _is_positive_integer(value):
                problems.append(f"{name}={value!r} must be a positive whole number.")
        if self.covariance is not None:
            sizes = {2} if self.again_loss is None else {2, 3}
            object.__setattr__(self, "covariance", _matrix(self.covariance, sizes, problems))
        if problems:
            raise InputError.from_problems("FragmentLosses", problems)

    @property
    def gain(self) -> float:
        """LOCO - e_seen: the gain of a row from mates in training."""
        return self.loss - self.seen_loss

    @property
    def saturation(self) -> float:
        """ρ: the part of the gain that fragments show when they are broken again, from 0 to 1.

        ρ = 1 - β + (e_seen - e_again)/(LOCO - e_seen). Fragments that cannot be broken are not
        among the broken clusters, so they do not lower the measured gain.
        """
        left = 0.0
        if self.again_loss is not None and self.gain != 0:
            left = (self.seen_loss - self.again_loss) / self.gain
        return min(1.0, max(0.0, 1 - self.again_rows + left))


def _is_positive_integer(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= 1


def _matrix(values: Any, sizes: set[int], problems: list[str]) -> Matrix:
    try:
        matrix = tuple(tuple(float(value) for value in row) for row in values)
    except (TypeError, ValueError):
        matrix = ()
    if any(len(side) not in sizes or len(side) != len(matrix) for side in (matrix, *matrix)):
        problems.append(f"covariance must be a square matrix with {sorted(sizes)} rows.")
    elif not all(math.isfinite(value) for row in matrix for value in row):
        problems.append("covariance has values that are not finite.")
    elif any(matrix[i][i] < 0 for i in range(len(matrix))):
        problems.append("covariance has a negative variance.")
    return matrix


def pooled(values: Sequence[Sequence[float]], weights: Sequence[float]) -> tuple[float, ...]:
    """Return the weighted mean over folds of one series per fold."""
    return tuple(
        sum(weight * value for weight, value in zip(weights, column, strict=True))
        for column in zip(*values, strict=True)
    )
