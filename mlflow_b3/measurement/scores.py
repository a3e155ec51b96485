"""Collecting what refits report for a score, and turning it into what each row adds to the score."""

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from mlflow_b3.data.scores import Score, ScoreParts, Whole
from mlflow_b3.measurement.collecting import Array, CollectedDoses, Measurement
from mlflow_b3.measurement.refits import Draw, Outcome, Resampler, RowFold, WholeFold

if TYPE_CHECKING:
    from mlflow_b3.measurement.campaign import DoseCampaign


class CollectedScores(CollectedDoses):
    """Collects the outcomes of an audit by doses for a score that is no mean over rows.

    What each row adds to the score follows from all refits on unchanged folds, so outcomes are kept, and
    become losses when a measurement is assembled.

    Parameters
    ----------
    campaign : DoseCampaign
    resampler : Resampler
    score : Score
    """

    def __init__(self, campaign: "DoseCampaign", resampler: Resampler, score: Score) -> None:
        super().__init__(campaign, resampler)
        self._score = score
        self._kept: list[Outcome] = []

    def add(self, outcome: Outcome) -> None:
        """Keep a refit; count those on unchanged folds."""
        self._kept.append(replace(outcome, draw=None))
        if isinstance(outcome.task.kind, WholeFold):
            draw = self._resampler.draw(outcome.task)
            super().add(_without_rest(outcome, draw))

    def assemble(self) -> Measurement:
        """Return the measurement in which the losses are what rows add to the score."""
        parts, means = self._parts()
        collected = CollectedDoses(self._campaign, self._resampler)
        for outcome in self._kept:
            draw = self._resampler.draw(outcome.task)
            collected.add(_as_losses(outcome, draw, parts, means))
        return collected.assemble()

    def _parts(self) -> tuple[ScoreParts, Array]:
        """Return what rows add, and its mean over the refits on unchanged folds."""
        rows, values, extra = [], [], []
        for outcome in self._kept:
            if isinstance(outcome.task.kind, WholeFold) and not isinstance(
                outcome.task.kind, RowFold
            ):
                assert outcome.validation is not None
                assert outcome.held_back is not None
                rows.append(self._resampler.draw(outcome.task).validation)
                values.append(outcome.validation)
                extra.append(outcome.held_back)
        data, clusters = self._campaign.data, self._resampler.clusters
        whole = Whole(
            rows=np.concatenate(rows),
            values=np.concatenate(values),
            extra=np.concatenate(extra),
            target=data.target,
            clusters=clusters,
        )
        parts = self._score.parts(whole)
        own = parts.of(whole.rows, whole.values)
        counts = np.bincount(whole.rows, minlength=len(clusters))
        sums = np.bincount(whole.rows, own, minlength=len(clusters))
        means = np.divide(sums, counts, out=np.full(len(counts), np.nan), where=counts > 0)
        return parts, means


def _without_rest(outcome: Outcome, draw: Draw) -> Outcome:
    """Leave out values that follow those of the rows."""
    assert outcome.held_back is not None
    return replace(outcome, held_back=outcome.held_back[: len(draw.held_back)], draw=draw)


def _as_losses(outcome: Outcome, draw: Draw, parts: ScoreParts, means: Array) -> Outcome:
    """Return the outcome with what each row adds to the score, without rows that have no value."""
    outcome = _without_rest(outcome, draw)
    assert outcome.validation is not None
    assert outcome.held_back is not None
    validation = parts.of(draw.validation, outcome.validation)
    held_back = parts.of(draw.held_back, outcome.held_back)
    if isinstance(outcome.task.kind, WholeFold):
        if isinstance(outcome.task.kind, RowFold):
            before = means[draw.validation]
            validation = before + parts.shared * (validation - before)
            validation = np.where(np.isfinite(validation), validation, before)
            validation = np.where(np.isfinite(validation), validation, parts.level)
        return replace(outcome, validation=validation, held_back=held_back)
    scored, kept = np.isfinite(validation), np.isfinite(held_back)
    assert draw.levels is not None
    draw = replace(
        draw,
        validation=draw.validation[scored],
        levels=draw.levels[scored],
        held_back=draw.held_back[kept],
    )
    return replace(outcome, validation=validation[scored], held_back=held_back[kept], draw=draw)
