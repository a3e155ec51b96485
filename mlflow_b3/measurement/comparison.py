"""Losses with and without the validation clusters in small training sets, for the leakage test."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from mlflow_b3.errors import FitError, InputError
from mlflow_b3.folds import Fold
from mlflow_b3.measurement.fits import Session, interrupted
from mlflow_b3.measurement.fold_losses import FoldLosses, TestLosses, gather_test_losses
from mlflow_b3.measurement.levels import (
    ARRANGEMENTS,
    LEAST_ARRANGEMENTS,
    TEST_FITS,
    fits_within,
    parse_budget,
)
from mlflow_b3.measurement.outcomes import Outcome
from mlflow_b3.measurement.resampling import LEAST_DISJOINT_ROWS, Task, disjoint_sizes, test_parts

if TYPE_CHECKING:
    from mlflow_b3.measurement.campaign import Campaign

LEAST_ROWS = 3


def paired_tasks(folds: Sequence[Fold], rounds: range) -> list[Task]:
    """Return the refits of some rounds of the paired test: one on T̂, one for each part of V̂."""
    tasks = []
    for number, fold in enumerate(folds):
        parts = range(test_parts(fold))
        for replicate in rounds if parts else ():
            tasks.append(Task("test-without", number, 0, replicate))
            tasks += [Task("test-with", number, part, replicate) for part in parts]
    return tasks


def welch_tasks(folds: Sequence[Fold]) -> list[Task]:
    """Return the refits of the published test: disjoint folds of T̂ and of V̂, each used once.

    Outer folds with too few validation rows are left out.

    Raises
    ------
    InputError
        When no outer fold has enough.
    """
    tasks = [
        Task(purpose, number, part, 0)
        for number, fold in enumerate(folds)
        for part in range(disjoint_sizes(fold).count)
        for purpose in ("welch-without", "welch-with")
    ]
    if not tasks:
        largest = max(len(fold.validation) for fold in folds)
        raise InputError(
            f"test='welch' needs folds with at least {LEAST_DISJOINT_ROWS} validation rows, to cut "
            f"them into disjoint training and validation folds; the largest has {largest}. Use "
            "test='paired', or fewer folds."
        )
    return tasks


def check_test(folds: Sequence[Fold], test: str, budget: int | str | None) -> None:
    """Raise an `InputError` for folds or a number of refits that the test cannot work with."""
    fits, _ = parse_budget(budget)
    if test == "welch":
        needed = len(welch_tasks(folds))
        if fits is not None and fits < needed:
            raise InputError(
                f"budget: {fits} refits for the test are too few for test='welch', which needs "
                f"{needed} on these folds. Give more, or use test='paired'."
            )
        return
    rows = sum(len(fold.validation) for fold in folds if test_parts(fold))
    if rows < LEAST_ROWS:
        raise InputError(
            "folds: the leakage test trains on some validation rows of a fold and scores the "
            f"others; it needs {LEAST_ROWS} rows in folds with at least two, and there are {rows}."
        )
    if test == "permutation" and fits is not None:
        _count_arrangements(fits, _fits_per_round(folds))


def measure_test(
    campaign: "Campaign", session: Session, budget: int | str | None
) -> tuple[TestLosses, ...]:
    """Run the refits of a leakage test.

    Parameters
    ----------
    campaign : Campaign
        Its `test` says which form, on its `tested_folds`.
    session : Session
        Runs and counts the refits.
    budget : int, str or None
        What the test may cost: by default 150 refits for `paired`, spread over the folds, and 99
        rearrangements of one round for `permutation`. `welch` takes what it needs.

    Returns
    -------
    tuple of TestLosses
        One; for `permutation`, those of the rearranged rows come after it.

    Raises
    ------
    InterruptedAudit
        When the user stops it before it can tell anything.
    """
    folds = campaign.tested_folds
    try:
        if campaign.test == "welch":
            return (_measure_welch(folds, session),)
        if campaign.test == "permutation":
            return _measure_arrangements(folds, session, budget)
        fits, seconds = parse_budget(budget)
        per_round = _fits_per_round(folds)
        rounds = max(1, (fits or TEST_FITS) // per_round)
        if seconds is not None:
            first = _measure_paired(folds, session, 1)
            rounds = _affordable(folds, session, seconds) // per_round
            if rounds < 2:
                return (first,)
        return (_measure_paired(folds, session, rounds),)
    except KeyboardInterrupt as interrupt:
        raise interrupted(session) from interrupt


def _fits_per_round(folds: Sequence[Fold]) -> int:
    return max(1, len(paired_tasks(folds, range(1))))


def _affordable(folds: Sequence[Fold], session: Session, seconds: float) -> int:
    """Return how many more refits fit into a time, by the speed of those done."""
    speed = session.counts.seconds / max(1, session.counts.done)
    left = seconds - speed * _fits_per_round(folds)
    return fits_within(left, per_fit=speed, workers=session.workers.count)


def _measure_paired(
    folds: Sequence[Fold], session: Session, rounds: int, arrangement: int = 0
) -> TestLosses:
    resampler = session.resampler
    collected = [FoldLosses(fold, len(resampler.exposures)) for fold in folds]

    def collect(outcome: Outcome) -> None:
        collected[outcome.task.fold].add(outcome, resampler)

    tasks = [replace(task, arrangement=arrangement) for task in paired_tasks(folds, range(rounds))]
    session.run(tasks, collect)
    return gather_test_losses(collected, resampler.clusters)


def _measure_welch(folds: Sequence[Fold], session: Session) -> TestLosses:
    tasks = welch_tasks(folds)
    means: dict[Task, float] = {}

    def collect(outcome: Outcome) -> None:
        assert outcome.validation is not None
        means[outcome.task] = float(outcome.validation.mean())

    session.run(tasks, collect)
    pairs = [
        (means[without], means[leaked], without.fold)
        for without, leaked in zip(tasks[::2], tasks[1::2], strict=True)
        if without in means and leaked in means
    ]
    per_fold = np.bincount([fold for *_, fold in pairs])
    pairs = [pair for pair in pairs if per_fold[pair[2]] > 1]
    if not pairs:
        raise FitError(f"too many refits of the test failed:\n{session.counts.first_error}")
    without, leaked, numbers = (np.array(column) for column in zip(*pairs, strict=True))
    return without, leaked, numbers.astype(np.intp)


def _measure_arrangements(
    folds: Sequence[Fold], session: Session, budget: int | str | None
) -> tuple[TestLosses, ...]:
    """Measure the rows as they are, then with the cluster ids dealt to them anew."""
    fits, seconds = parse_budget(budget)
    per_round = _fits_per_round(folds)
    count, rounds = ARRANGEMENTS, 1
    if fits is not None:
        count, rounds = _count_arrangements(fits, per_round)
    measured = [_measure_paired(folds, session, rounds)]
    if seconds is not None:
        fits = per_round + _affordable(folds, session, seconds)
        count, _ = _count_arrangements(fits, per_round)
    for number in range(1, count + 1):
        try:
            measured.append(_measure_paired(folds, session, rounds, number))
        except KeyboardInterrupt:
            if number <= LEAST_ARRANGEMENTS:
                raise
            break
    return tuple(measured)


def _count_arrangements(fits: int, per_round: int) -> tuple[int, int]:
    """Return how many rearrangements and rounds of each a number of refits affords."""
    rounds = max(1, fits // (per_round * (ARRANGEMENTS + 1)))
    count = min(ARRANGEMENTS, fits // per_round - 1)
    if count < LEAST_ARRANGEMENTS:
        raise InputError(
            f"budget: {fits} refits for the test are too few for test='permutation', which refits "
            f"{per_round} models in each of at least {LEAST_ARRANGEMENTS + 1} arrangements, so "
            f"{per_round * (LEAST_ARRANGEMENTS + 1)} in all. Give more, or use test='paired'."
        )
    return count, rounds
