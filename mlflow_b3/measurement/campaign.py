"""All refits of one audit: planned within a budget, run, and collected."""

import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from mlflow_b3.data.folds import Fold, RowParts
from mlflow_b3.data.losses import Loss
from mlflow_b3.data.scores import Score
from mlflow_b3.data.table import AuditData
from mlflow_b3.errors import FitError, InputError
from mlflow_b3.measurement.collecting import (
    Collected,
    CollectedDoses,
    FoldLosses,
    Measurement,
    RowGroups,
    TestLosses,
    gather_test_losses,
)
from mlflow_b3.measurement.design import (
    ARRANGEMENTS,
    DEFAULT_FITS,
    LEAST_ARRANGEMENTS,
    STOCHASTIC_REPEATS,
    TEST_FITS,
    DosePlan,
    FitPlan,
    count_row_folds,
    exposures,
    fits_within,
    largest_exposure,
    least_fits,
    parse_budget,
    plan_fits,
)
from mlflow_b3.measurement.journal import Journal
from mlflow_b3.measurement.refits import (
    LEAST_DISJOINT_ROWS,
    UNIFORM,
    FitCounts,
    FragmentSizes,
    Outcome,
    Refitter,
    Resampler,
    Task,
    breakable,
    disjoint_sizes,
    test_parts,
)
from mlflow_b3.measurement.runner import Means, Session, interrupted, open_session
from mlflow_b3.measurement.scores import CollectedScores
from mlflow_b3.refit.learner import Learner

# --- Losses with and without validation clusters in small training sets, for the leakage test

LEAST_ROWS = 3


def paired_tasks(folds: Sequence[Fold], rounds: range) -> list[Task]:
    """Return the refits of the given rounds of the paired test: one on T̂, one for each part of V̂."""
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
        If no outer fold has enough.
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
    """Raise an `InputError` if the folds or the number of refits are too small for the test."""
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
        Its `test` selects the form of the test, which runs on its `tested_folds`.
    session : Session
        Runs and counts the refits.
    budget : int, str or None
        Budget of the test. The default is 150 refits for `paired`, spread over the folds, and 99
        rearrangements of one round for `permutation`. `welch` runs as many refits as it needs.

    Returns
    -------
    tuple of TestLosses
        One element; for `permutation`, followed by those of the rearranged rows.

    Raises
    ------
    InterruptedAudit
        If the user stops the test before it has a result.
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
            rounds = _affordable_fits(folds, session, seconds) // per_round
            if rounds < 2:
                return (first,)
        return (_measure_paired(folds, session, rounds),)
    except KeyboardInterrupt as interrupt:
        raise interrupted(session) from interrupt


def _fits_per_round(folds: Sequence[Fold]) -> int:
    return max(1, len(paired_tasks(folds, range(1))))


def _affordable_fits(folds: Sequence[Fold], session: Session, seconds: float) -> int:
    """Return how many more refits fit into a time, given the speed of those done."""
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
    session.run(tasks, collect, doing="Leakage test")
    return gather_test_losses(collected, resampler.clusters)


def _measure_welch(folds: Sequence[Fold], session: Session) -> TestLosses:
    tasks = welch_tasks(folds)
    means: dict[Task, float] = {}

    def collect(outcome: Outcome) -> None:
        assert outcome.validation is not None
        means[outcome.task] = float(outcome.validation.mean())

    session.run(tasks, collect, doing="Leakage test")
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
    """Measure the unchanged rows, then the rows with permuted cluster ids."""
    fits, seconds = parse_budget(budget)
    per_round = _fits_per_round(folds)
    count, rounds = ARRANGEMENTS, 1
    if fits is not None:
        count, rounds = _count_arrangements(fits, per_round)
    measured = [_measure_paired(folds, session, rounds)]
    if seconds is not None:
        fits = per_round + _affordable_fits(folds, session, seconds)
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
    """Return how many rearrangements, and rounds of each, a number of refits allows."""
    rounds = max(1, fits // (per_round * (ARRANGEMENTS + 1)))
    count = min(ARRANGEMENTS, fits // per_round - 1)
    if count < LEAST_ARRANGEMENTS:
        raise InputError(
            f"budget: {fits} refits for the test are too few for test='permutation', which refits "
            f"{per_round} models in each of at least {LEAST_ARRANGEMENTS + 1} arrangements, so "
            f"{per_round * (LEAST_ARRANGEMENTS + 1)} in all. Give more, or use test='paired'."
        )
    return count, rounds


# --- All refits of one audit: planned within a budget, run, and collected

#: Number of refits from which on the fastest of them is used to judge a budget.
STEADY = 3
_LOG = logging.getLogger(__name__)
#: Largest number of refits for a budget in time. Beyond it, the noise of refits is negligible beside
#: that of rows.
MOST_FITS = 50_000
#: What refits on whole folds are for.
SCORES = "Scores"


@dataclass(frozen=True, kw_only=True)
class Campaign:
    """The refits of an audit: the learner, the folds, and how to run them.

    Attributes
    ----------
    data, learner, loss, folds
    repeats : int
        Number of assignments of clusters to folds.
    scheme : {"subset", "replace"}
    levels : {"optimal", "uniform"} or int
    n_train : int or None
        Size of a training set that is drawn with replacement; None for the size of T̂.
    seed : int
    fragments : FragmentSizes
        How clusters are broken on purpose.
    budget : int, str or None
        A number of refits, or a time such as "10m".
    distribution : bool
        Whether to measure the distribution of the losses in addition to their mean.
    means : Means
        Where refits run, how long each may take, and how progress is shown.
    test : {"paired", "welch", "permutation"}
        The form of the leakage test. An audit measures "paired" together with the curve.
    before_first_refit : callable or None
        Called once, after all input checks and before the first refit.
    started : float or None
        Start of a budget in time, by `time.monotonic`; by default the first refit.
    preview : callable or None
        Returns a short text about a partial measurement, for the progress bar.
    """

    data: AuditData
    learner: Learner
    loss: Loss
    folds: tuple[Fold, ...]
    repeats: int = 1
    scheme: str = "subset"
    levels: str | int = "optimal"
    n_train: int | None = None
    seed: int = 0
    fragments: FragmentSizes = UNIFORM
    budget: int | str | None = None
    distribution: bool = False
    means: Means = field(default_factory=Means)
    test: str = "paired"
    started: float | None = None
    preview: Callable[[Measurement], str] | None = None
    before_first_refit: Callable[[], None] | None = None

    def measure(self, journal: Journal | None = None) -> tuple[Measurement, FitCounts]:
        """Run every refit of an audit.

        Raises
        ------
        InterruptedAudit
            If the user stops the audit before there is enough to draw conclusions.
        """
        if parse_budget(self.budget)[1] is None:
            self.plan()  # raises for a budget that is too small, before the first refit
        check_test(self.tested_folds, self.test, self._test_budget())
        if self.before_first_refit is not None:
            self.before_first_refit()
        with self.session(journal) as session:
            collected = Collected(self, session.resampler)
            try:
                self._measure_curve(session, collected)
            except KeyboardInterrupt as interrupt:
                if self.test != "paired" or not collected.complete:
                    raise interrupted(session) from interrupt
            collected.require_complete(session.counts)
            measured = collected.assemble()
            if self.test != "paired":
                losses = measure_test(self, session, self._test_budget())
                measured = replace(measured, test_losses=losses)
            session.check_failures()
        return measured, session.counts

    def _measure_curve(self, session: Session, collected: Collected) -> None:
        # unchanged folds come first: all other refits are compared with them
        repeats = STOCHASTIC_REPEATS if self.learner.stochastic else 1
        clock = None if session.deadline is None else _TimeBudget(self, session)

        def collect(outcome: Outcome) -> None:
            collected.add(outcome)
            if clock is not None:
                clock.check(outcome)

        session.run(self._first_tasks(range(repeats)), collect, doing=SCORES, needed=0)
        if clock is not None and collected.folds_without_loss and clock.over:
            raise clock.too_short()
        again = []
        if collected.folds_without_loss:  # every refit of a fold may have failed by chance
            again = [Task("loco", fold, 0, repeats) for fold in collected.folds_without_loss]
            session.run(again, collected.add, doing=SCORES)
        collected.start(session.counts)
        plan = self._find_or_make_plan(session, len(again))
        tasks, _ = self._later_tasks(plan)
        planned = session.counts.planned + len(tasks)
        session.progress.expect(planned, final=self.test == "paired")
        session.run(tasks, collect, doing="Loss curve", needed=0, look=collected.preview)
        if clock is not None and clock.over and not collected.complete:
            raise clock.too_short()

    def _find_or_make_plan(self, session: Session, again: int) -> FitPlan:
        """Return the plan. A plan that depends on this machine's speed is stored in the journal."""
        journal, seconds = session.journal, parse_budget(self.budget)[1]
        if seconds is None or journal is None:
            return self.plan(session, again)
        plan = journal.find_plan(seconds)
        if plan is None:
            plan = self.plan(session, again)
            journal.keep_plan(seconds, plan)
        return plan

    @contextmanager
    def session(self, journal: Journal | None = None) -> Iterator[Session]:
        """Open a session that runs refits."""
        _, seconds = parse_budget(self.budget)
        refitter = Refitter(
            data=self.data,
            learner=self.learner,
            loss=self.loss,
            resampler=self.resampler(),
            seconds_at_most=self.means.seconds_per_fit(seconds),
        )
        with open_session(
            refitter,
            self.means,
            journal=journal,
            seconds=seconds,
            started=self.started,
            most=self.most_fits,
            expected=self.expected_fits,
        ) as session:
            yield session

    @property
    def default_fits(self) -> int:
        """Refits of an audit without a budget."""
        return DEFAULT_FITS

    @property
    def expected_fits(self) -> int:
        """Refits of this audit, as far as they are known before the first one."""
        return parse_budget(self.budget)[0] or self.default_fits

    @property
    def most_fits(self) -> int:
        """Refits that the budget allows."""
        timed = parse_budget(self.budget)[1] is not None
        return MOST_FITS if timed else self.expected_fits

    @property
    def tested_folds(self) -> tuple[Fold, ...]:
        """The folds of the first assignment of clusters, on which a separate test runs."""
        return self.folds[: len(self.folds) // self.repeats]

    def _test_budget(self) -> int | None:
        """Return the refits that the curve leaves for a separate test."""
        fits, _ = parse_budget(self.budget)
        if fits is None:
            return None
        plan = self.plan()
        curve = self._later_tasks(replace(plan, test=0))[0]
        return max(1, fits - len(self._first_tasks(range(plan.loco))) - len(curve))

    @property
    def iid_count(self) -> int:
        """Number of folds of single rows; on average they are as large as the folds of clusters."""
        size = np.mean([len(fold.validation) for fold in self.folds])
        return count_row_folds(self.data.n_rows / float(size))

    def resampler(self) -> Resampler:
        """Return the resampler that draws the rows of every refit."""
        return Resampler(
            folds=self.folds,
            iid_folds=RowParts(self.data.n_rows, self.iid_count, self.seed),
            clusters=self.data.clusters,
            exposures=exposures(self.levels, self._largest_exposure),
            n_train=self.n_train,
            scheme=self.scheme,
            seed=self.seed,
            fragments=self.fragments,
        )

    @property
    def _largest_exposure(self) -> float:
        return largest_exposure(self.n_train, min(len(fold.validation) for fold in self.folds))

    def plan(self, session: Session | None = None, again: int = 0) -> FitPlan:
        """Return the plan. A budget in time is converted to refits by the speed of those done so far.

        Refits on whole folds that ran `again` count against the budget, but never reduce the plan
        below the least number of refits.
        """
        fits, seconds = parse_budget(self.budget)
        design: dict[str, Any] = {
            "n_folds": len(self.folds),
            "stochastic": self.learner.stochastic,
            "levels": self.levels,
            "from_zero": self.scheme == "replace",
            # the plan has one fold of rows per fold of clusters; user-defined folds may need more
            "others": max(0, self.iid_count - len(self.folds)),
        }
        if fits is not None and again:
            fits = max(fits - again, least_fits(**design))
        if seconds is not None and session is not None and session.counts.done:
            counts = session.counts
            left = seconds - (time.monotonic() - session.started)
            speed = counts.seconds / counts.done
            fits = counts.done + fits_within(left, per_fit=speed, workers=session.workers.count)
            fits = max(min(fits, MOST_FITS), least_fits(**design))
        return plan_fits(fits, **design)

    def least_tasks(self) -> int:
        """Return the number of refits that an answer needs, without those of the test."""
        plan = plan_fits(
            None,
            n_folds=len(self.folds),
            stochastic=self.learner.stochastic,
            levels=self.levels,
            from_zero=self.scheme == "replace",
        )
        _, needed = self._later_tasks(replace(plan, test=0))
        return len(self._first_tasks(range(plan.loco))) + needed

    def _first_tasks(self, replicates: range) -> list[Task]:
        loco = [
            Task("loco", fold, 0, replicate)
            for fold in range(len(self.folds))
            for replicate in replicates
        ]
        return loco + [Task("iid", fold, 0, 0) for fold in range(self.iid_count)]

    def _later_tasks(self, plan: FitPlan) -> tuple[list[Task], int]:
        """Return all refits after the first ones, and how many of them an answer needs at least.

        The needed refits come first. The others are interleaved, so that an audit that stops early
        still has even numbers of refits over folds and levels.
        """
        # a bootstrap of T̂ is noisy at level 0 too, T̂ itself is not
        levels = dict(enumerate(plan.rows, start=0 if self.scheme == "replace" else 1))
        placed: list[tuple[bool, float, Task]] = []
        for number, fold in enumerate(self.folds):
            for level, count in levels.items():
                placed += [
                    (replicate >= 2, replicate / count, Task("rows", number, level, replicate))
                    for replicate in range(count)
                ]
            breaks = self.n_train is None  # clusters are broken only for full-size training sets
            if breaks and len(breakable(self.data.clusters[fold.validation], self.fragments)):
                placed += [
                    (
                        replicate >= 2,
                        replicate / plan.fragments,
                        Task("fragments", number, 0, replicate),
                    )
                    for replicate in range(plan.fragments)
                ]
        rounds = plan.test if self.test == "paired" else 0
        for task in paired_tasks(self.folds, range(rounds)):
            placed.append((task.replicate >= 1, task.replicate / rounds, task))
        placed.sort(key=lambda place: place[:2])  # stable: keeps the order of folds and levels
        return [task for *_, task in placed], sum(not late for late, *_ in placed)


@dataclass(frozen=True, kw_only=True)
class DoseCampaign(Campaign):
    """The refits of an audit by doses, in passes over the folds.

    Attributes
    ----------
    passes : DosePlan
        If clusters are assigned to folds at random, `folds` has as many assignments.
    enough : callable or None
        Says after a pass whether more refits would change little.
    score : Score or None
        The score that the losses are for, if it is not their mean.
    groups : RowGroups or None
        Groups of rows with scores of their own.
    """

    passes: DosePlan
    enough: Callable[[Measurement], bool] | None = None
    score: Score | None = None
    groups: RowGroups | None = None

    @property
    def default_fits(self) -> int:
        """Refits of all passes."""
        numbers = range(self.passes.passes)
        return sum(len(self._whole_folds(n)) + len(self._rotations(n)) for n in numbers)

    @property
    def expected_fits(self) -> int:
        """Refits of all passes, which may be fewer than the budget allows."""
        return self.default_fits

    @property
    def most_fits(self) -> int:
        """Refits of all passes."""
        return self.default_fits

    def measure(self, journal: Journal | None = None) -> tuple[Measurement, FitCounts]:
        """Run the refits pass by pass, until all are done, time is up, or more would change little.

        Raises
        ------
        InterruptedAudit
            If the user stops the audit before every fold has a score.
        """
        if self.before_first_refit is not None:
            self.before_first_refit()
        with self.session(journal) as session:
            collected = self._collector(session)
            measured = None
            try:
                measured = self._measure_passes(session, collected)
            except KeyboardInterrupt as interrupt:
                session.counts.planned = max(session.counts.planned, self.default_fits)
                if not collected.complete:
                    raise interrupted(session) from interrupt
            if measured is None:
                measured = collected.assemble()
            session.check_failures()
        return measured, session.counts

    def _collector(self, session: Session) -> CollectedDoses:
        if self.score is None:
            return CollectedDoses(self, session.resampler)
        return CollectedScores(self, session.resampler, self.score)

    def _measure_passes(self, session: Session, collected: CollectedDoses) -> Measurement | None:
        """Run the passes; return what was measured if it was assembled after the last of them."""
        measured = None
        clock = None if session.deadline is None else _TimeBudget(self, session)

        def collect(outcome: Outcome) -> None:
            collected.add(outcome)
            if clock is not None:
                clock.check(outcome)

        for number in range(self.passes.passes):
            session.run(self._whole_folds(number), collect, doing=SCORES, needed=0)
            if number == 0:
                if clock is not None and not collected.complete and clock.over:
                    raise clock.too_short()
                again = [Task("loco", fold, 0, 1) for fold in collected.folds_without_loss]
                if again:  # every refit of a fold may have failed by chance
                    session.run(again, collected.add, doing=SCORES)
                collected.require_complete(session.counts)
            session.run(
                self._rotations(number),
                collect,
                doing="Loss by dose",
                needed=0,
                look=collected.preview,
            )
            if clock is not None and clock.over:
                session.counts.planned = max(session.counts.planned, self.default_fits)
                return None
            if number and self.enough is not None:
                measured = collected.assemble()
                if number + 1 == self.passes.passes or self.enough(measured):
                    break
                measured = None
                self.data.give_back()
        session.progress.expect(session.counts.planned, final=True)
        return measured

    def least_tasks(self) -> int:
        """Return the number of refits that an answer needs: one for each fold."""
        return len(self._whole_folds(0))

    @property
    def _folds_per_pass(self) -> int:
        return len(self.folds) // self.repeats

    def _folds_of(self, number: int) -> range:
        """Return the folds of a pass; given folds are the same in each."""
        first = number * self._folds_per_pass if self.repeats > 1 else 0
        return range(first, first + self._folds_per_pass)

    def _replicate(self, number: int) -> int:
        return 0 if self.repeats > 1 else number

    def _whole_folds(self, number: int) -> list[Task]:
        """Return the refits on unchanged folds, and for the first pass those on folds of rows."""
        replicate = self._replicate(number)
        if replicate and not self.learner.stochastic:
            return []  # the same fold gives the same model
        tasks = [Task("loco", fold, 0, replicate) for fold in self._folds_of(number)]
        if number == 0:
            tasks += [Task("iid", fold, 0, 0) for fold in range(self.iid_count)]
        return tasks

    def _rotations(self, number: int) -> list[Task]:
        replicate = self._replicate(number)
        return [
            Task("doses", fold, step, replicate)
            for step in range(self.passes.steps[number])
            for fold in self._folds_of(number)
        ]


def check_timed_test(test: str, budget: int | str | None) -> None:
    """Raise an `InputError` for a budget in time if the test cannot stop early."""
    if test != "paired" and parse_budget(budget)[1] is not None:
        raise InputError(
            f"budget={budget!r} is a time, which test={test!r} cannot keep: it needs all of its "
            "refits. Give a number of refits, leave the budget out, or use test='paired'."
        )


class _TimeBudget:
    """Detects as early as possible that a budget in time is too short.

    Parameters
    ----------
    campaign : Campaign
    session : Session
        A session with a deadline.
    """

    def __init__(self, campaign: Campaign, session: Session) -> None:
        self._budget, self._session = campaign.budget, session
        self._least = campaign.least_tasks()
        self._fastest = math.inf
        self._seen = 0
        self._warned = False

    @property
    def over(self) -> bool:
        """Whether the deadline has passed."""
        return self._left() <= 0

    def check(self, outcome: Outcome) -> None:
        """Record a refit, and raise an `InputError` if the needed refits would take too long.

        The remaining refits are assumed to be as fast as the fastest so far. After only one or two,
        which may have been slow to start, they are assumed to be twice as fast. If they would take
        too long at the mean speed, a warning is logged once.
        """
        counts = self._session.counts
        if outcome.error is None and counts.done > counts.replayed:
            self._seen += 1
            self._fastest = min(self._fastest, outcome.seconds)
        missing = self._least - counts.done
        if missing <= 0 or not self._seen:
            return
        fastest = self._fastest * (1.0 if self._seen >= STEADY else 0.5)
        if self._time_for(missing, fastest) > self._left():
            raise self.too_short()
        if not self._warned and self._seen >= STEADY:
            expected = self._time_for(missing, counts.seconds / counts.done)
            if expected > self._left():
                self._warned = True
                _LOG.warning(
                    "budget=%r may not suffice: the least number of refits would take %.0f s more, and "
                    "%.0f s are left. The audit stops when the time is up.",
                    *(self._budget, expected, self._left()),
                )

    def too_short(self) -> InputError:
        """Return the error for a budget in time that is too short."""
        counts, workers = self._session.counts, self._session.workers.count
        speed = counts.seconds / max(1, counts.done)
        spent = time.monotonic() - self._session.started
        needed = spent + 1.2 * self._time_for(max(1, self._least - counts.done), speed)
        kept = "" if self._session.journal is None else " Finished refits are in the journal."
        return InputError(
            f"budget={self._budget!r} is too short: a refit takes about {speed:.2g} s, {workers} at a "
            f"time, and at least {self._least} are needed; {counts.done} are done after {spent:.0f} "
            f"s. Give budget='{math.ceil(needed / 60)}m' or more, fewer folds, or more workers "
            f"(n_jobs).{kept}"
        )

    def _left(self) -> float:
        assert self._session.deadline is not None
        return self._session.deadline - time.monotonic()

    def _time_for(self, fits: int, seconds: float) -> float:
        return fits * seconds / self._session.workers.count
