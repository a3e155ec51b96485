"""The refits on the table's own target: cross-validation, and folds of whole groups."""

from dataclasses import dataclass

import numpy as np

from mlflow_b3.correlated.refits import CvcRefitter
from mlflow_b3.correlated.structure import Array
from mlflow_b3.errors import FitError
from mlflow_b3.measurement.fits import Session
from mlflow_b3.measurement.outcomes import Outcome
from mlflow_b3.measurement.resampling import Task


@dataclass(frozen=True, kw_only=True)
class RealRefits:
    """What refits on the table's own target say.

    Attributes
    ----------
    losses : array (n,)
        Cross-validated loss of each row.
    grouped : array (n,)
        Its loss by the model that was trained without its group.
    scores : array (n,)
        Its score by the model that was trained without its group in the score's folds.
    one_class : int
        Refits of cross-validation whose training rows had a single class.
    """

    losses: Array
    grouped: Array
    scores: Array
    one_class: int


def run_real_refits(
    session: Session, refitter: CvcRefitter, grouped_folds: int, score_folds: range
) -> RealRefits:
    """Run cross-validation, and the folds of whole groups.

    Parameters
    ----------
    session : Session
    refitter : CvcRefitter
    grouped_folds : int
        How many of the resampler's folds, from the first, give the score by whole groups.
    score_folds : range
        Those that give the scores.
    """
    resampler, n_rows = refitter.resampler, refitter.data.n_rows
    needed = sorted({*range(grouped_folds), *score_folds})
    tasks = [Task("cv", fold, 0, 0) for fold in range(len(resampler.iid_folds))]
    tasks += [Task("grouped", fold, 0, 0) for fold in needed]
    losses, grouped, scores = (np.full(n_rows, np.nan) for _ in range(3))
    single = []

    def collect(outcome: Outcome) -> None:
        task = outcome.task
        assert outcome.validation is not None
        if task.purpose == "cv":
            losses[resampler.iid_folds[task.fold].validation] = outcome.validation
            single.append(outcome.one_class)
            return
        rows = resampler.folds[task.fold].validation
        if task.fold < grouped_folds:
            grouped[rows] = outcome.validation
        if task.fold in score_folds:
            assert outcome.held_back is not None
            scores[rows] = outcome.held_back

    session.run(tasks, collect)
    if not (np.isfinite(losses).all() and np.isfinite(grouped).all() and np.isfinite(scores).all()):
        raise FitError(f"a refit on a whole fold failed:\n{session.counts.first_error}")
    return RealRefits(losses=losses, grouped=grouped, scores=scores, one_class=sum(single))
