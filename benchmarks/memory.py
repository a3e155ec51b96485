"""Peak memory of an audit against the size of its table.

A table of 48 columns of standard normal numbers, a target and a cluster, a linear model trained on
it, and the smallest audit of two folds that there is, each with four fifths of the rows in training.
Printed are multiples of the table: the peak of the proportional set size (PSS) summed over the
process and its workers, sampled ten times a second, and the peak resident size of the process alone.
Shared files that are mapped count once. The interpreter with all that it imports counts too; its
size is printed by itself.

    python benchmarks/memory.py --rows 250000 500000 1000000 2000000
"""

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import pandas as pd
from sklearn.linear_model import SGDClassifier

#: Features; with target and cluster the table has 50 columns.
COLUMNS, RECORDS = 48, 5
MEGABYTE = 2**20


def make_table(rows: int) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    numbers = rng.standard_normal((COLUMNS, rows)).T
    frame = pd.DataFrame(numbers, columns=[f"x{number}" for number in range(COLUMNS)], copy=False)
    frame["sick"] = (numbers[:, 0] + rng.standard_normal(rows) > 0).astype(int)
    frame["patient"] = np.arange(rows) // RECORDS
    return frame


class Peak:
    """Samples the memory of this process and all that descend from it."""

    def __init__(self) -> None:
        self.highest = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> "Peak":
        """Start to sample."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop."""
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(0.1):
            self.highest = max(self.highest, sum(map(pss, tree(os.getpid()))))


def tree(process: int) -> list[int]:
    """Return a process and its descendants."""
    found = [process]
    for path in Path(f"/proc/{process}/task").glob("*/children"):
        try:
            children = [int(child) for child in path.read_text().split()]
        except OSError:  # it has ended
            continue
        for child in children:
            found += tree(child)
    return found


def pss(process: int) -> int:
    try:
        for line in Path(f"/proc/{process}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return 1024 * int(line.split()[1])
    except OSError:  # it has ended
        pass
    return 0


def two_of_five_folds(rows: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return two folds of whole patients, each trained on four fifths of the rows."""
    fold = np.arange(rows, dtype=np.int32) // RECORDS % 5
    return [(np.flatnonzero(fold != own), np.flatnonzero(fold == own)) for own in (0, 1)]


def measure(source: str, rows: int, workers: int, backend: str | None = None) -> None:
    """Audit once and print how much memory that took."""
    import mlflow_b3 as b3

    model = SGDClassifier(loss="log_loss", max_iter=1, tol=None, random_state=0)
    names = [f"x{number}" for number in range(COLUMNS)]
    before = pss(os.getpid())
    small = make_table(1000)
    model.fit(small[names], small["sick"])
    data = make_table(rows) if source == "DataFrame" else source
    started = time.perf_counter()
    with Peak() as peak:
        report = b3.audit(
            model,
            data,
            target="sick",
            cluster="patient",
            folds=two_of_five_folds(rows),
            budget=46,
            n_jobs=workers,
            backend=backend,
            progress=False,
        )
    seconds = time.perf_counter() - started
    table = rows * (COLUMNS + 2) * 8
    alone = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(
        f"{rows:>9}  {table / MEGABYTE:>6.0f}  {'file' if source != 'DataFrame' else source:<9}  "
        f"{workers:>6}  {before / MEGABYTE:>6.0f}  {peak.highest / MEGABYTE:>6.0f}  "
        f"{peak.highest / table:>5.2f}  {alone / table:>5.2f}  {report.measured.fits:>5}  "
        f"{seconds:>5.0f}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, nargs="+", default=[250_000, 500_000])
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--sources", nargs="+", default=["DataFrame", "file"])
    parser.add_argument("--backend", help="such as threading; processes by default")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        measure(options.sources[0], options.rows[0], options.workers[0], options.backend)
        return
    print(
        "     rows   table  from       jobs  before    peak  multiples of table  fits  seconds\n"
        "               MB                       MB      MB    PSS    RSS"
    )
    with tempfile.TemporaryDirectory() as folder:
        for rows in options.rows:
            path = Path(folder) / f"{rows}.parquet"
            if "file" in options.sources:
                make_table(rows).to_parquet(path)
            for source in options.sources:
                for workers in options.workers:
                    given = str(path) if source == "file" else source
                    arguments = ["--one", "--rows", rows, "--workers", workers, "--sources", given]
                    arguments += ["--backend", options.backend] if options.backend else []
                    # each in a process of its own: peaks of a process never fall again
                    subprocess.run([sys.executable, __file__, *map(str, arguments)], check=True)
            path.unlink(missing_ok=True)


if __name__ == "__main__":
    main()
