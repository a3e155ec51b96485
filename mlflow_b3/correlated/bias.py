"""The bias of cross-validation from simulated samples, and its Monte-Carlo error."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.special import expit

from mlflow_b3.correlated.structure import Array
from mlflow_b3.errors import InputError

#: L(0, s) - L(1, s) of each loss, by the score: log odds, the margin for hinge, the number for squared.
SLOPES: dict[str, Callable[[Array], Array]] = {
    "log": lambda score: score,
    "zero_one": lambda score: np.where(score >= 0, 2.0, 0.0),
    "hinge": lambda score: np.maximum(0.0, 1.0 + score) - np.maximum(0.0, 1.0 - score),
    "brier": lambda score: np.asarray(2.0 * expit(score)),
    "squared": lambda score: 2.0 * score,
}


@dataclass(frozen=True, kw_only=True)
class Bias:
    """By how much the cross-validated loss is too small.

    Attributes
    ----------
    value : float
        w; may be negative, and is not cut off.
    error : float
        Its standard error by the number of draws; 0 for a closed form.
    draws : int
        Simulated samples; 0 for a closed form.
    """

    value: float
    error: float
    draws: int


class BiasSums:
    """The bias from draws of which each refits one fold only.

    Parameters
    ----------
    n_folds : int

    Notes
    -----
    In fold k, with its own B_k draws,

        z_b = (1/n_k) Σ_i (L₂(s_bi) - mean_b L₂(s_bi)) (μ_bi - m_bi),  w_k = B_k/(B_k - 1) mean(z_b),

    where L₂(s) = L(0, s) - L(1, s). Folds are weighted by their rows. For as many refits this has a
    smaller error than refitting all folds in fewer draws, whose folds are correlated.
    """

    def __init__(self, n_folds: int) -> None:
        self._slopes: list[list[Array]] = [[] for _ in range(n_folds)]
        self._excess: list[list[Array]] = [[] for _ in range(n_folds)]

    def add(self, fold: int, slope: Array, expected: Array, deployed: Array) -> None:
        """Take the validation rows of one fold in one draw: L₂(s), μ and m."""
        self._slopes[fold].append(np.asarray(slope, dtype=float))
        self._excess[fold].append(np.asarray(expected - deployed, dtype=float))

    @property
    def draws(self) -> int:
        """Draws taken so far."""
        return sum(map(len, self._slopes))

    @property
    def ready(self) -> bool:
        """Every fold has the two draws that it needs."""
        return all(len(draws) > 1 for draws in self._slopes)

    def bias(self) -> Bias:
        """Return the bias and its error."""
        if not self.ready:
            fewest = min(map(len, self._slopes))
            raise InputError(
                f"draws={self.draws}: a fold has {fewest}, and each of {len(self._slopes)} folds "
                f"needs 2 or more; draw {2 * len(self._slopes)} samples at least."
            )
        parts = [
            _mean_and_error(np.stack(slopes), np.stack(excess))
            for slopes, excess in zip(self._slopes, self._excess, strict=True)
        ]
        sizes = np.array([len(slopes[0]) for slopes in self._slopes], dtype=float)
        values, errors = np.array(parts).T
        weights = sizes / sizes.sum()
        return Bias(
            value=float(weights @ values),
            error=float(np.sqrt(weights**2 @ errors**2)),
            draws=self.draws,
        )


def bias_of(slopes: Array, expected: Array, deployed: Array) -> Bias:
    """Return the bias from draws in which every fold was refitted.

    Parameters
    ----------
    slopes : array (draws, n)
        L₂(s) of each row, by the model that was trained without its fold.
    expected, deployed : array (draws, n)
        μ and m of `Draw`.
    """
    if len(slopes) < 2:
        raise InputError(f"draws={len(slopes)}: two or more are needed.")
    value, error = _mean_and_error(slopes, np.asarray(expected - deployed))
    return Bias(value=value, error=error, draws=len(slopes))


def _mean_and_error(slopes: Array, excess: Array) -> tuple[float, float]:
    """Return B/(B - 1) mean(z_b) and its standard error."""
    count = len(slopes)
    per_draw = ((slopes - slopes.mean(axis=0)) * excess).mean(axis=1) * count / (count - 1)
    return float(per_draw.mean()), float(per_draw.std(ddof=1) / np.sqrt(count))
