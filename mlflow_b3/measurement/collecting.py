"""The losses of an audit while its refits come in."""

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from mlflow_b3.errors import FitError, InputError
from mlflow_b3.measurement.assembly import Measurement, assemble
from mlflow_b3.measurement.fold_losses import FoldLosses
from mlflow_b3.measurement.outcomes import FitCounts, Outcome
from mlflow_b3.measurement.resampling import Resampler
from mlflow_b3.measurement.tails import TailLosses

if TYPE_CHECKING:
    from mlflow_b3.measurement.campaign import Campaign

#: Refits at each level of a fold from which on something can be said.
LEAST_FITS = 2


class Collected:
    """Collects outcomes, fold by fold, and puts them together.

    Parameters
    ----------
    campaign : Campaign
    resampler : Resampler
    """

    def __init__(self, campaign: "Campaign", resampler: Resampler) -> None:
        self._campaign = campaign
        self._resampler = resampler
        levels = len(resampler.exposures)
        self._folds = [FoldLosses(fold, levels) for fold in campaign.folds]
        self._tails = TailLosses(campaign.folds, resampler)
        self._iid: list[NDArray[np.float64]] = []

    def add(self, outcome: Outcome) -> None:
        """Add a refit; those on whole folds must come before all others."""
        if outcome.task.purpose == "iid":
            assert outcome.validation is not None
            self._iid.append(outcome.validation)
            return
        self._folds[outcome.task.fold].add(outcome, self._resampler)
        if self._campaign.distribution:
            self._tails.add(outcome)

    @property
    def folds_without_loss(self) -> list[int]:
        """Folds of which no refit as they are has succeeded."""
        return [n for n, fold in enumerate(self._folds) if (fold.loco.counts == 0).any()]

    def start(self, counts: FitCounts) -> None:
        """Go on to resampled refits, which are measured against those on whole folds."""
        if self.folds_without_loss or not self._iid:
            raise FitError(f"all refits on a whole fold failed:\n{counts.first_error}")
        if self._campaign.distribution:
            self._tails.set_thresholds()

    @property
    def complete(self) -> bool:
        """Whether something can be said: every fold has refits at every level, and of the test."""
        if not self._iid or self.folds_without_loss:
            return False
        levels = [count for fold in self._folds for count in fold.fits[1:]]
        tested = any((fold.with_leak.counts > 0).any() for fold in self._folds)
        return min(levels) >= LEAST_FITS and (tested or self._campaign.test != "paired")

    def require_complete(self, counts: FitCounts) -> None:
        """Raise an error where nothing can be said."""
        if any(0 in fold.fits for fold in self._folds):
            raise FitError(f"all refits at one level failed:\n{counts.first_error}")
        if any((fold.validation.counts.sum(axis=0) == 0).any() for fold in self._folds):
            raise InputError(
                f"scheme={self._campaign.scheme!r} leaves no validation rows of a fold to score: "
                "drawing with replacement uses all of them. Use scheme='subset', or fewer folds."
            )

    def assemble(self) -> Measurement:
        """Return the curves with their uncertainty."""
        repeats = self._campaign.repeats
        tails = self._tails.assemble(repeats) if self._campaign.distribution else ()
        return assemble(self._folds, self._iid, self._resampler, repeats, tails)

    def preview(self) -> str | None:
        """Return in a few words what is known so far; None where nothing is."""
        if self._campaign.preview is None or not self.complete:
            return None
        measured = assemble(self._folds, self._iid, self._resampler, self._campaign.repeats)
        return self._campaign.preview(measured)
