"""Everything that refits need, opened together: workers, a progress bar, a clock and a journal."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from mlflow_b3.measurement.fits import Session
from mlflow_b3.measurement.journal import Journal
from mlflow_b3.measurement.progress import Progress
from mlflow_b3.measurement.refitting import Refitter
from mlflow_b3.measurement.workers import WorkerSettings, open_workers

#: Seconds that a refit may take at least where nobody set a limit, but a time for the whole audit.
SHORTEST_LIMIT = 60.0


@dataclass(frozen=True, kw_only=True)
class Means:
    """With which means refits run.

    Attributes
    ----------
    workers : WorkerSettings
        Where they run; without effect on learners that are not `parallel`.
    fit_timeout : float or None
        Seconds that one refit may take.
    progress : bool or None
        Show a progress bar; None shows it on a terminal only.
    """

    workers: WorkerSettings = field(default_factory=WorkerSettings)
    fit_timeout: float | None = None
    progress: bool | None = None

    @property
    def where(self) -> WorkerSettings:
        """Where refits run: for a limit that somebody set, where it can be enforced for certain."""
        if self.fit_timeout is None or self.workers.backend is not None:
            return self.workers
        return replace(self.workers, backend="loky")

    def seconds_per_fit(self, seconds: float | None) -> float | None:
        """Return how long a refit may take: as told, or as long as all of them, if that is long."""
        return self.fit_timeout or (None if seconds is None else max(seconds, SHORTEST_LIMIT))


@contextmanager
def open_session(
    refitter: Refitter,
    means: Means,
    *,
    journal: Journal | None = None,
    seconds: float | None = None,
    started: float | None = None,
    most: int,
    expected: int,
) -> Iterator[Session]:
    """Get ready to run refits.

    Parameters
    ----------
    refitter : Refitter
    means : Means
    journal : Journal, optional
    seconds : float, optional
        The time after which no refit begins that may be left out.
    started : float, optional
        When that time began, by `time.monotonic`; now by default.
    most, expected : int
        How many refits there may be, and how many there will be at the least.
    """
    started = time.monotonic() if started is None else started
    done_before = 0 if journal is None else journal.refits
    with (
        Progress(means.progress, 0 if seconds else most) as progress,
        open_workers(refitter, means.where, most - done_before) as workers,
    ):
        yield Session(
            resampler=refitter.resampler,
            workers=workers,
            journal=journal,
            progress=progress,
            started=started,
            deadline=None if seconds is None else started + seconds,
            expected=expected,
        )
