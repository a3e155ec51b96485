"""What every experiment of this folder takes and returns.

An experiment is a module with a docstring and a function `run(request)`. It returns an `Outcome`: tables with the
published numbers beside ours, metrics for MLflow, and pictures.
"""

import importlib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from joblib import Parallel, delayed
from matplotlib.figure import Figure
from tqdm import tqdm


class MissingDataError(Exception):
    """The experiment needs a file that was not given, or that is not what it should be."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """What the user asked for; `deadline` is a time of `time.monotonic`."""

    data: Path | None = None
    quick: bool = False
    deadline: float = np.inf
    seed: int = 0
    n_jobs: int = 1

    def file(self, what: str, address: str) -> Path:
        """Return the user's copy of the data, or say where to get it."""
        if self.data is None:
            raise MissingDataError(
                f"this experiment needs {what}. Get it from {address} and name the file: "
                "-P data=FILE (--data FILE without MLflow)."
            )
        if not self.data.exists():
            raise MissingDataError(f"data={str(self.data)!r} does not exist; give {what}.")
        return self.data

    def trials(self, run_one: Callable[..., Any], cases: Sequence[Any], what: str) -> list[Any]:
        """Run trials, `n_jobs` at a time, until all are done or the budget has passed.

        At least one batch is run, whatever the budget. Results do not depend on `n_jobs`.
        """
        done: list[Any] = []
        with Parallel(n_jobs=self.n_jobs) as parallel, tqdm(total=len(cases), desc=what) as bar:
            for first in range(0, len(cases), max(1, self.n_jobs)):
                batch = cases[first : first + max(1, self.n_jobs)]
                done += parallel(delayed(run_one)(case) for case in batch)
                bar.update(len(batch))
                if self.passed():
                    break
        return done

    def steps(self, cases: Sequence[Any], what: str) -> Iterator[Any]:
        """Go through cases with a progress bar, until the budget has passed."""
        for number, case in enumerate(tqdm(cases, desc=what)):
            if number and self.passed():
                return
            yield case

    def passed(self) -> bool:
        """Whether the budget is used up."""
        return time.monotonic() > self.deadline


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table in Markdown, with a title and the sentences that explain its columns."""

    title: str
    columns: Sequence[str]
    rows: Iterable[Sequence[object]]
    note: str = ""

    def __str__(self) -> str:  # noqa: D105 - the table
        lines = [f"**{self.title}**", ""]
        lines += [_line(self.columns), "|---" * len(self.columns) + "|"]
        lines += [_line(row) for row in self.rows]
        return "\n".join([*lines, *(["", self.note] if self.note else [])])


def _line(cells: Iterable[object]) -> str:
    return f"| {' | '.join(map(str, cells))} |"


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What an experiment found."""

    tables: Sequence[Table]
    metrics: dict[str, float] = field(default_factory=dict)
    pictures: dict[str, Figure] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)


def with_error(values: Any, digits: int = 3) -> str:
    """Return a mean and its Monte-Carlo standard error, such as 0.0185 ± 0.0021."""
    values = np.asarray(values, float)
    mean = float(values.mean())
    if len(values) < 2:
        return f"{mean:.{digits}g}"
    error = float(values.std(ddof=1) / np.sqrt(len(values)))
    if error < 1e-6:
        return f"{mean:.{digits}g} ± 0" if abs(mean) > 1e-6 else "0 ± 0"
    decimals = max(0, 1 - int(np.floor(np.log10(error))))
    return f"{mean:.{decimals}f} ± {error:.{decimals}f}"


def needs(module: str, package: str | None = None) -> Any:
    """Import a library that only an experiment uses, or say how to install it."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError:
        raise MissingDataError(
            f"this experiment needs {package or module}: pip install {package or module}"
        ) from None
