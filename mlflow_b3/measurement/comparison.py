"""Losses with and without the validation clusters in small training sets, for the leakage test."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from mlflow_b3.errors import FitError, InputError
from mlflow_b3.folds import Fold
from mlflow_b3.measurement.assembly import FoldLosses, TestLosses, gather_test_losses
from mlflow_b3.measurement.fits import FitCounts, Outcome
from mlflow_b3.measurement.levels import (
    ARRANGEMENTS,
    LEAST_ARRANGEMENTS,
    TEST_FITS,
    fits_within,
    parse_budget,
)
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


def check_test(campaign: "Campaign") -> None:
    """Raise an `InputError` for folds or a number of refits that the test cannot work with."""
    fits, _ = parse_budget(campaign.budget)
    if campaign.test == "welch":
        needed = len(welch_tasks(campaign.folds))
        if fits is not None and fits < needed:
            raise InputError(
                f"budget: {fits} refits for the test are too few for test='welch', which needs "
                f"{needed} on these folds. Give more, or use test='paired'."
            )
        return
    rows = sum(len(fold.validation) for fold in campaign.folds if test_parts(fold))
    if rows < LEAST_ROWS:
        raise InputError(
            "folds: the leakage test trains on some validation rows of a fold and scores the "
            f"others; it needs {LEAST_ROWS} rows in folds with at least two, and there are {rows}."
        )
    if campaign.test == "permutation" and fits is not None:
        _count_arrangements(fits, _fits_per_round(campaign))


def measure_test(campaign: "Campaign", counts: FitCounts) -> tuple[TestLosses, ...]:
    """Run the refits of a leakage test.

    Parameters
    ----------
    campaign : Campaign
        Its `test` says which form, its `budget` what it may cost: by default 150 refits for
        `paired`, spread over the folds, and 99 rearrangements of one round for `permutation`.
        `welch` takes what it needs.
    counts : FitCounts
        Counts the refits.

    Returns
    -------
    tuple of TestLosses
        One; for `permutation`, those of the rearranged rows come after it.
    """
    with campaign.bar() as bar:
        if campaign.test == "welch":
            return (_measure_welch(campaign, counts, bar),)
        if campaign.test == "permutation":
            return _measure_arrangements(campaign, counts, bar)
        fits, seconds = parse_budget(campaign.budget)
        per_round = _fits_per_round(campaign)
        rounds = max(1, (fits or TEST_FITS) // per_round)
        if seconds is not None:
            first = _measure_paired(campaign, counts, 1, bar)
            rounds = _affordable(campaign, counts, seconds) // per_round
            if rounds < 2:
                return (first,)
        return (_measure_paired(campaign, counts, rounds, bar),)


def _fits_per_round(campaign: "Campaign") -> int:
    return max(1, len(paired_tasks(campaign.folds, range(1))))


def _affordable(campaign: "Campaign", counts: FitCounts, seconds: float) -> int:
    """Return how many more refits fit into a time, by the speed of those done."""
    workers = campaign.workers
    speed = counts.seconds / max(1, counts.done)
    return fits_within(seconds - speed * _fits_per_round(campaign), per_fit=speed, workers=workers)


def _measure_paired(
    campaign: "Campaign", counts: FitCounts, rounds: int, bar: "tqdm[Any]"
) -> TestLosses:
    resampler = campaign.resampler()
    collected = [FoldLosses(fold, len(resampler.exposures)) for fold in campaign.folds]

    def collect(outcome: Outcome) -> None:
        collected[outcome.task.fold].add(outcome, resampler)

    tasks = paired_tasks(campaign.folds, range(rounds))
    campaign.run(resampler, tasks, counts, collect, bar)
    return gather_test_losses(collected, campaign.data.clusters)


def _measure_welch(campaign: "Campaign", counts: FitCounts, bar: "tqdm[Any]") -> TestLosses:
    tasks = welch_tasks(campaign.folds)
    means: dict[Task, float] = {}

    def collect(outcome: Outcome) -> None:
        assert outcome.validation is not None
        means[outcome.task] = float(outcome.validation.mean())

    campaign.run(campaign.resampler(), tasks, counts, collect, bar)
    pairs = [
        (means[without], means[leaked], without.fold)
        for without, leaked in zip(tasks[::2], tasks[1::2], strict=True)
        if without in means and leaked in means
    ]
    per_fold = np.bincount([fold for *_, fold in pairs])
    pairs = [pair for pair in pairs if per_fold[pair[2]] > 1]
    if not pairs:
        raise FitError(f"too many refits of the test failed:\n{counts.first_error}")
    without, leaked, folds = (np.array(column) for column in zip(*pairs, strict=True))
    return without, leaked, folds.astype(np.intp)


def _measure_arrangements(
    campaign: "Campaign", counts: FitCounts, bar: "tqdm[Any]"
) -> tuple[TestLosses, ...]:
    """Measure the rows as they are, then with the cluster ids dealt to them anew.

    Every arrangement has the same draws of row numbers, so that the statistic is one function of
    the order of the rows, which is exchangeable under the null hypothesis.
    """
    fits, seconds = parse_budget(campaign.budget)
    per_round = _fits_per_round(campaign)
    count, rounds = ARRANGEMENTS, 1
    if fits is not None:
        count, rounds = _count_arrangements(fits, per_round)
    measured = [_measure_paired(campaign, counts, rounds, bar)]
    if seconds is not None:
        fits = per_round + _affordable(campaign, counts, seconds)
        count, _ = _count_arrangements(fits, per_round)
    rows = np.unique(np.concatenate([_rows(fold) for fold in campaign.folds]))
    for number in range(count):
        key = np.random.SeedSequence(campaign.seed, spawn_key=(number,))
        order = np.arange(campaign.data.n_rows)
        order[rows] = np.random.default_rng(key).permutation(rows)
        data = campaign.data.reordered(order)
        measured.append(_measure_paired(replace(campaign, data=data), counts, rounds, bar))
    return tuple(measured)


def _rows(fold: Fold) -> NDArray[np.intp]:
    return np.concatenate([fold.training, fold.validation])


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
