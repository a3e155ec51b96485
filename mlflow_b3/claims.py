"""What the user says about the leakage, with its pattern and its source."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from mlflow_b3.errors import InputError
from mlflow_b3.estimation.estimates import as_range, one_share
from mlflow_b3.estimation.fragments import seen_share
from mlflow_b3.estimation.mixture import P0Bound
from mlflow_b3.estimation.shares import SeenShare
from mlflow_b3.estimation.unmixing import LeakShares, shares_of_cluster_error
from mlflow_b3.folds import FoldSummary
from mlflow_b3.linkage.estimates import LARGEST, LeakEstimate
from mlflow_b3.measurement.breaking import UNIFORM, FragmentSizes
from mlflow_b3.wording import read_number, read_share

#: A column with the probability of each row that its cluster id is right.
MATCH_COLUMN = "match_column"
#: Linkage evidence that gives the leak shares of the actual folds, by the audit's arguments.
EVIDENCE = ("resolved_rows", "partition_samples", "linkage_quality", "match_probability")


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A range of leakage of one pattern.

    Attributes
    ----------
    pattern : {"rows", "fragments", "unknown"}
    source : {"p0", "cluster_error", "split_rate", "mixture", "none"} or one of `EVIDENCE`
        The argument it was given by, or `mixture` for p0="mixture".
    low, high : float
        In the units of that argument; of p0 for `mixture`, where they follow from the rows; of the
        seen share s for evidence, where they follow from the folds; of the cluster error for a
        column of match probabilities.
    centre : float or None
        The value that is most likely, where it is not the middle.
    p0_validation : float or None
        With source `p0` or `mixture`: the share of V̂ that belongs to the training side, the same in every
        fold; None means as many rows as leaked the other way.
    leak : LeakEstimate or None
        What linkage evidence says about the leak shares of the folds.
    """

    pattern: str
    source: str
    low: float = 0.0
    high: float = 0.0
    centre: float | None = None
    p0_validation: float | None = None
    leak: LeakEstimate | None = None

    @property
    def middle(self) -> float:
        """The value that an estimate is given for."""
        return (self.low + self.high) / 2 if self.centre is None else self.centre

    @property
    def fragment_sizes(self) -> FragmentSizes:
        """How the evidence says that clusters split; uniformly when it does not."""
        known = None if self.leak is None else self.leak.fragments
        return UNIFORM if known is None else FragmentSizes(law="shares", values=known)

    @property
    def vacuous(self) -> bool:
        """Whether evidence leaves open that all validation rows were seen, or says that they were."""
        if self.leak is None:
            return False
        share = self.leak.validation
        return (share.high if share.point is None else share.point) >= LARGEST

    def shares(self, value: float, folds: Sequence[FoldSummary]) -> list[LeakShares]:
        """Return the leak shares of every fold at a value in the claim's units (rows only).

        A p0 without p0_validation stands for the cluster error that leaks as many rows into
        training on average over the folds.
        """
        if self.pattern == "fragments":
            raise InputError("a claim about split clusters has no shares of misplaced rows.")
        if self.p0_validation is not None:
            return [LeakShares(p0=value, p0_validation=self.p0_validation)] * len(folds)
        if self.source in ("cluster_error", MATCH_COLUMN):
            return shares_by_fold(value, folds)
        error = value / mean_validation_share(folds)
        if error >= 1:
            raise InputError(
                f"p0={value:g} is impossible when as many rows leak back: these folds have "
                f"{mean_validation_share(folds):.0%} of their rows in validation, so every id would "
                "have to be wrong. Give a smaller p0, or p0_validation=0 if rows leak into "
                "training only."
            )
        return shares_by_fold(error, folds)

    def bounded(self, bound: P0Bound, largest: float) -> "Claim":
        """Return a claim of source `mixture` with its range: from 0 to the bound.

        A vacuous bound leaves all that an audit looks at, up to `largest`.
        """
        return replace(self, high=largest if bound.vacuous else bound.p0_upper)

    def linked(self, leak: LeakEstimate) -> "Claim":
        """Return a claim of linkage evidence with the leak shares of the actual folds."""
        # ends of unchecked scores are no interval; what they are off by is
        ends = leak.to_prior() if leak.kind == "uncalibrated" else leak.validation
        high = min(ends.high, LARGEST)
        centre = leak.validation.point
        return replace(
            self,
            low=min(ends.low, high),
            high=high,
            centre=None if centre is None else min(centre, LARGEST),
            leak=leak,
        )

    def seen(self, value: float, folds: Sequence[FoldSummary]) -> SeenShare:
        """Return the share of seen validation rows at a value in the claim's units (fragments)."""
        if self.pattern != "fragments":
            raise InputError("a claim about misplaced rows has no share of seen rows.")
        return seen_share(value, folds) if self.leak is None else SeenShare(share=value)


def make_claim(
    *,
    p0: Any = None,
    p0_validation: float | None = None,
    cluster_error: Any = None,
    split_rate: Any = None,
    evidence: str | None = None,
) -> Claim:
    """Turn the audit's arguments into one claim; several of them are an error.

    `evidence` is the source among `EVIDENCE`, if there is one; its range follows later.

    Each argument belongs to a pattern (misplaced rows or split clusters), and their shares mean
    different things: mixing them over-corrects wildly.
    """
    if isinstance(p0, str) and p0 == "grid":
        p0 = None
    given: dict[str, Any] = {
        name: value
        for name, value in (
            ("p0", p0),
            ("cluster_error", cluster_error),
            ("split_rate", split_rate),
            (evidence, evidence),
        )
        if name is not None and value is not None
    }
    if len(given) > 1:
        raise InputError(
            f"{' and '.join(given)} cannot be given together: p0 and cluster_error describe "
            "misplaced rows, split_rate and the evidence of a linkage describe split clusters; each "
            "alone says how much leaks. Give the one you trust most."
        )
    if p0_validation is not None:
        if "p0" not in given:
            raise InputError("p0_validation goes with p0; cluster_error and split_rate imply it.")
        p0_validation = one_share("p0_validation", read_number(p0_validation))
    if not given:
        return Claim(pattern="unknown", source="none")
    ((source, value),) = given.items()
    if source == evidence:
        return Claim(pattern="rows" if source == MATCH_COLUMN else "fragments", source=source)
    mixture = source == "p0" and isinstance(value, str) and value == "mixture"
    given_as, value = value, read_share(value)
    if isinstance(given_as, str) and (value is given_as or _has_text(value)) and not mixture:
        raise InputError(
            f'{source}={given_as!r} is not usable; give a share such as 0.1 or "10%", a pair (low, high)'
            + (
                ", or 'grid' when nothing is known, or 'mixture' for a bound from the rows."
                if source == "p0"
                else "."
            )
        )
    if mixture:
        return Claim(pattern="rows", source="mixture", p0_validation=p0_validation)
    low, high = as_range(source, value)
    pattern = "fragments" if source == "split_rate" else "rows"
    return Claim(pattern=pattern, source=source, low=low, high=high, p0_validation=p0_validation)


def _has_text(value: Any) -> bool:
    return isinstance(value, tuple) and any(isinstance(part, str) for part in value)


def mean_validation_share(folds: Sequence[FoldSummary]) -> float:
    """Return |V̂|/N, the mean over folds weighted by validation rows."""
    sizes = np.array([fold.n_validation for fold in folds], dtype=float)
    total = np.array([fold.n_training + fold.n_validation for fold in folds], dtype=float)
    return float(np.dot(sizes / sizes.sum(), sizes / total))


def shares_by_fold(cluster_error: float, folds: Sequence[FoldSummary]) -> list[LeakShares]:
    """Return the leak shares of every fold under a uniform cluster error."""
    return [
        shares_of_cluster_error(cluster_error, fold.n_training, fold.n_validation) for fold in folds
    ]


def mean_shares(shares: Sequence[LeakShares], weights: Sequence[float]) -> LeakShares:
    """Return the mean of the folds' shares, weighted by validation rows."""
    return LeakShares(
        p0=float(np.dot([share.p0 for share in shares], weights)),
        p0_validation=float(np.dot([share.p0_validation for share in shares], weights)),
    )
