"""Means over all rows of a table from a sample of its rows, with intervals that hold for rare events."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from mlflow_b3.errors import InputError
from mlflow_b3.linkage.estimates import LeakShare
from mlflow_b3.linkage.splits import Floats, Rows, as_codes

#: Draws of the weights; the ends of the interval then vary by about 2 % of its width.
DRAWS = 4000
#: Strata with fewer sampled rows than this do not show how their values vary.
FEW_ROWS = 5


@dataclass(frozen=True, kw_only=True, eq=False)
class SampledRows:
    """How many rows of each stratum were sampled, and out of how many.

    Attributes
    ----------
    stratum : array of int
        The stratum of each sampled row, from 0.
    sizes : array of float
        N_h: number of rows of the table in each stratum.
    """

    stratum: Rows
    sizes: Floats

    @classmethod
    def of(cls, strata: Any, count: int, n: int | None) -> Self:
        """Read `strata` for `count` sampled rows of a table of `n`; None stands for a single one.

        Without `n`, the table counts as far larger than the sample.
        """
        if strata is None:
            size = np.inf if n is None else n
            return cls(stratum=np.zeros(count, dtype=np.intp), sizes=np.array([size], dtype=float))
        try:
            labels, given = strata
            labels, given = list(labels), dict(given)
        except (TypeError, ValueError):
            raise InputError(
                f"strata={strata!r} is not usable; give the stratum of each reviewed row, and how many "
                "rows of the table each stratum has: (labels, {label: rows})."
            ) from None
        return cls(stratum=as_codes("strata", labels, count), sizes=_sizes(labels, given, n))

    @property
    def counts(self) -> Floats:
        """n_h: number of sampled rows of each stratum."""
        return np.bincount(self.stratum, minlength=len(self.sizes)).astype(float)

    @property
    def shares(self) -> Floats:
        """N_h/n: the share of the table that each stratum stands for."""
        if len(self.sizes) == 1:
            return np.ones(1)
        return np.asarray(self.sizes / self.sizes.sum())

    @property
    def weights(self) -> Floats:
        """What each sampled row counts in a mean over the table: N_h/(n·n_h)."""
        return np.asarray((self.shares / self.counts)[self.stratum])

    def mean(self, values: Any) -> float:
        """Return the Horvitz–Thompson mean Σ_h (N_h/n)·v̄_h."""
        return float(self.weights @ np.asarray(values, dtype=float))

    def share(self, values: Floats, largest: float, level: float, seed: int) -> LeakShare:
        """Return the mean of values in [0, largest] over the table, with its interval.

        The rows of a stratum are weighted at random (Dirichlet weights, the Bayesian bootstrap),
        and the means over the table have quantiles. For the upper end the sample gets one more row
        with the largest value, for the lower end one with 0, in the stratum where a row weighs most
        (and in strata with fewer than five sampled rows). Deviations shrink by √(1 − n_h/N_h), so
        that what was counted fully is not doubted.

        Notes
        -----
        For values 0 and 1 and a single stratum the ends are those of Clopper and Pearson
        (doi:10.1093/biomet/26.4.404); for other values those of Learned-Miller and Thomas
        (arXiv:1905.06208; a proof of a like bound: Phan, Thomas and Learned-Miller, ICML 2021); for
        rare events in several strata those of Fay and Feuer (doi:10.1002/(SICI)1097-0258(19970415)
        16:7<791::AID-SIM500>3.0.CO;2-#). A percentile bootstrap of the rows covers less: it knows
        nothing of events that the sample does not hold.
        """
        point = self.mean(values)
        rngs = np.random.default_rng(seed).spawn(2)
        tail = (1 - level) / 2
        low = float(np.quantile(self._draws(values, 0.0, rngs[0]), tail))
        high = float(np.quantile(self._draws(values, largest, rngs[1]), 1 - tail))
        point = min(point, 1.0)
        return LeakShare(
            point=point, low=min(max(low, 0.0), point), high=max(min(high, 1.0), point)
        )

    def _draws(self, values: Floats, extra: float, rng: np.random.Generator) -> Floats:
        """Draw means over the table, with a row of value `extra` added where it counts."""
        counts, total = self.counts, np.zeros(DRAWS)
        unsure = np.sqrt(np.maximum(0.0, 1 - counts / self.sizes))
        heaviest = int(np.argmax(np.where(unsure > 0, self.shares / counts, -1.0)))
        for h, (share, doubt) in enumerate(zip(self.shares, unsure, strict=True)):
            # Dirichlet weights of equal values add up to one weight: a draw per distinct value.
            held, often = np.unique(values[self.stratum == h], return_counts=True)
            middle = float(held @ often) / counts[h]
            if h == heaviest or counts[h] < FEW_ROWS:
                held, often = np.append(held, extra), np.append(often, 1)
            drawn = rng.dirichlet(often.astype(float), DRAWS) @ held
            total += share * (middle + doubt * (drawn - middle))
        return total


def check_level(level: float) -> None:
    """Refuse a confidence that is none."""
    if not 0 < level < 1:
        raise InputError(f"level={level!r} must lie between 0 and 1, as 0.95.")


def _sizes(labels: list[Any], given: Mapping[Any, Any], n: int | None) -> Floats:
    """Return N_h in the order in which the strata first appear among the sampled rows."""
    seen = dict.fromkeys(labels)
    problems = []
    if set(seen) - set(given):
        problems.append(
            f"no number of rows is given for {sorted(map(str, set(seen) - set(given)))}."
        )
    empty = [label for label in given if label not in seen and given[label]]
    if empty:
        problems.append(
            f"no row was reviewed in {sorted(map(str, empty))}; nothing is known about their rows. "
            "Review some of them, or sample again without these strata."
        )
    if not problems:
        sizes = np.array([given[label] for label in seen], dtype=float)
        counts = np.array([labels.count(label) for label in seen])
        if not (sizes >= counts).all():
            problems.append("a stratum has fewer rows than were reviewed in it.")
        elif n is not None and sizes.sum() != n:
            problems.append(f"they have {sizes.sum():g} rows together; the table has {n}.")
    if problems:
        raise InputError.from_problems("strata", problems)
    return sizes
