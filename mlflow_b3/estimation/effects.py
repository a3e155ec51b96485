"""Kinds of effects of mates in training on a row's loss, as functions of their number."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Complexes = NDArray[np.complex128]

#: Prior probabilities of steps, saturation and S-shapes, given an effect.
FAMILIES = (0.2, 0.5, 0.3)
#: At how many mates effects step.
STEPS = (1, 2, 3)
#: Doses by which the fastest and the slowest saturating effects and S-shapes have risen, the slowest in
#: units of doses, and how many there are.
SATURATING, SIGMOID = (0.8, 30.0, 6), (0.8, 6.0, 4)
#: P(0), P(1) and P(2) are read off a circle of this radius, at points of which this many are different.
RADIUS, POINTS = 0.01, 6
#: An imaginary part so small that functions of complex numbers have their derivative in theirs.
TINY = 1e-30


@dataclass(frozen=True)
class Effects:
    r"""Functions F(d) of the dose with F(0) = 0 and F(∞) = 1, and their expectations.

    Effects are steps 1[d ≥ k], saturation 1 - e^(-d/s), and S-shapes 1 - (1 + d/s)·e^(-d/s).

    Expectations need no probability of any dose beyond 2: with the generating function G of a law,
    E[e^(-d/s)] = G(e^(-1/s)) and E[d·z^d] = z·G'(z). Derivatives are those of a complex step (Squire and
    Trapp, 1998, doi:10.1137/S003614459631241X), which are exact up to rounding.

    Parameters
    ----------
    unit : float
        The number of doses in which the slowest effects are measured.

    Examples
    --------
    >>> from mlflow_b3.estimation.effects import Effects
    >>> effects = Effects(unit=1.0)
    >>> effects.at([0, 1, 2, 3])[:3].tolist()
    [[0.0, 1.0, 1.0, 1.0], [0.0, 0.0, 1.0, 1.0], [0.0, 0.0, 0.0, 1.0]]
    >>> half_of_two = 0.25 + 0.5 * effects.z + 0.25 * effects.z**2  # of d ~ Binomial(2, 1/2)
    >>> effects.read(half_of_two[None])[0, [0, 1, 2, -2, -1]].round(8).tolist()
    [0.75, 0.25, 0.0, 0.25, 1.0]
    """

    unit: float

    @cached_property
    def prior(self) -> Array:
        """Prior probabilities of the kinds, given an effect."""
        number = np.array([len(STEPS), SATURATING[2], SIGMOID[2]])
        return np.repeat(np.array(FAMILIES) / number, number)

    @cached_property
    def _saturating(self) -> Array:
        first, last, number = SATURATING
        return np.geomspace(first, last * self.unit, number)

    @cached_property
    def _sigmoid(self) -> Array:
        first, last, number = SIGMOID
        return np.geomspace(first, last * self.unit, number)

    def at(self, doses: Any) -> Array:
        """Return F(d), one row for each kind."""
        d = np.asarray(doses, dtype=np.float64)
        steps = [(d >= k) * 1.0 for k in STEPS]
        saturating = [1 - np.exp(-d / s) for s in self._saturating]
        sigmoid = [1 - (1 + d / s) * np.exp(-d / s) for s in self._sigmoid]
        return np.array(steps + saturating + sigmoid)

    # --- expectations, from generating functions

    #: No point is so far inside of the unit circle that large powers vanish.
    radius = 1.0

    @cached_property
    def z(self) -> Complexes:
        """The points at which generating functions are needed."""
        circle = RADIUS * np.exp(-2j * np.pi * np.arange(POINTS // 2 + 1) / POINTS)
        slopes = np.append(np.exp(-1 / self._sigmoid), 1.0) + 1j * TINY
        return np.concatenate([circle, np.exp(-1 / self._saturating), slopes])

    def read(self, generating: Complexes) -> Array:
        """Return E[F(d)] for each kind, P(0) and E[d], one row for each generating function."""
        circle, rest = np.split(generating, [POINTS // 2 + 1], axis=1)
        first = np.fft.irfft(circle, POINTS)[:, : len(STEPS)] / RADIUS ** np.arange(len(STEPS))
        decay, slopes = np.split(rest, [len(self._saturating)], axis=1)
        value, slope = slopes.real, slopes.imag / TINY
        s = self._sigmoid
        kept = value[:, :-1] + np.exp(-1 / s) / s * slope[:, :-1]
        left = np.hstack([np.cumsum(first, axis=1), decay.real, kept])
        return np.hstack([1 - left, first[:, :1], slope[:, -1:]])
