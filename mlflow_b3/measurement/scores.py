"""Collecting what refits report for a score, and turning it into what each row adds to the score."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mlflow_b3.data.scores import RankScore, Score, ScoreParts, Whole
from mlflow_b3.errors import InputError
from mlflow_b3.measurement.collecting import (
    Array,
    CollectedDoses,
    GroupLosses,
    Measurement,
    RowGroups,
    group_problem,
)
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
        whole, groups = self._whole(self._kept), self._campaign.groups
        alone = replace(self._campaign, groups=None)
        measured = self._assemble(alone, whole, self._score.parts(whole), self._kept)
        measured = replace(measured, iid=self._score_by_rows(measured.iid))
        if groups is None:
            return measured
        kept = self._kept
        if self._pairs:
            kept = [_inside(outcome, self._resampler.draw(outcome.task)) for outcome in kept]
            whole = self._whole(kept)
        numbers = range(len(groups.names))
        found = [self._group(alone, whole, groups, code, kept) for code in numbers]
        return replace(measured, groups=tuple(found))

    @property
    def _pairs(self) -> bool:
        """Whether values of pairs within groups follow those of all pairs."""
        return isinstance(self._score, RankScore)

    def _assemble(
        self,
        campaign: "DoseCampaign",
        whole: Whole,
        parts: ScoreParts,
        kept: Sequence[Outcome],
    ) -> Measurement:
        own = parts.of(whole.rows, whole.values)
        counts = np.bincount(whole.rows, minlength=len(whole.clusters))
        sums = np.bincount(whole.rows, own, minlength=len(whole.clusters))
        means = np.divide(sums, counts, out=np.full(len(counts), np.nan), where=counts > 0)
        collected = CollectedDoses(campaign, self._resampler)
        for outcome in kept:
            draw = self._resampler.draw(outcome.task)
            collected.add(_as_losses(outcome, draw, parts, means))
        return collected.assemble()

    def _group(
        self,
        campaign: "DoseCampaign",
        whole: Whole,
        groups: RowGroups,
        code: int,
        kept: Sequence[Outcome],
    ) -> GroupLosses:
        """Return what rows of a group add to its score."""
        inside = groups.codes[whole.rows] == code
        scored = np.zeros(len(whole.clusters), dtype=bool)
        scored[whole.rows[inside]] = True
        why_not, spread = group_problem(scored, whole.clusters)
        doses = None
        if not why_not:
            own = replace(
                whole,
                rows=whole.rows[inside],
                values=whole.values[inside],
                extra=whole.extra[inside] if len(whole.extra) else whole.extra,
                members=groups.codes == code,
            )
            try:
                self._score.check(whole.target[scored], whole.clusters[scored])
                parts = _within(self._score.parts(own), groups.codes == code, 1 / inside.mean())
                doses = self._assemble(campaign, whole, parts, kept).doses
            except InputError as error:  # such as a class that is rare in this group
                why_not = str(error)
        return GroupLosses(
            by=groups.by,
            name=groups.names[code],
            rows=int(scored.sum()),
            clusters=spread,
            doses=doses,
            why_not=why_not,
        )

    def _score_by_rows(self, linearised: float) -> float:
        """Return the score on folds by rows, without linearising it at the score by clusters.

        Where it is not defined, such as for a class that is never predicted, it stays linearised.
        """
        try:
            return self._score.parts(self._whole(self._kept, by_rows=True)).level
        except InputError:
            return linearised

    def _whole(self, kept: Sequence[Outcome], *, by_rows: bool = False) -> Whole:
        """Return what refits on unchanged folds reported, by clusters or by rows."""
        rows, values, extra = [], [], []
        for outcome in kept:
            kind = outcome.task.kind
            if isinstance(kind, WholeFold) and isinstance(kind, RowFold) == by_rows:
                assert outcome.validation is not None
                assert outcome.held_back is not None
                rows.append(self._resampler.draw(outcome.task).validation)
                values.append(outcome.validation)
                extra.append(outcome.held_back[: len(outcome.validation)])
        data, clusters = self._campaign.data, self._resampler.clusters
        return Whole(
            rows=np.concatenate(rows),
            values=np.concatenate(values),
            extra=np.concatenate(extra),
            target=data.target,
            clusters=clusters,
        )


def _within(parts: ScoreParts, inside: NDArray[np.bool_], factor: float) -> ScoreParts:
    """Return what rows add to the score of a group; rows outside of it add nothing."""
    level = parts.level

    def of(rows: NDArray[np.integer[Any]], values: Array) -> Array:
        own = level + factor * (parts.of(rows, values) - level)
        return np.asarray(np.where(inside[rows], own, level))

    return replace(parts, of=of)


def _inside(outcome: Outcome, draw: Draw) -> Outcome:
    """Return the outcome with the values of pairs within groups in place of those of all pairs."""
    assert outcome.held_back is not None
    count, held = len(draw.validation), len(draw.held_back)
    skipped = held if held else count  # whole folds have values for pairs of all clusters, too
    rest = outcome.held_back[skipped:]
    return replace(outcome, validation=rest[:count], held_back=rest[count:])


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
