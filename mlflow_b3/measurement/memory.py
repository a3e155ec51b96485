"""How many refits fit into memory at the same time."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd

from mlflow_b3.data import AuditData

#: A refit takes a copy of its training rows, and many learners make another one in their own form.
COPIES = 2
SAMPLE = 1000
SYSTEM = Path("/")


def largest_count(data: AuditData, workers: int) -> int:
    """Return how many of so many refits may run at the same time, at least one.

    Parameters
    ----------
    data : AuditData
        The rows in the learner's form.
    workers : int
        How many are wanted.
    """
    free, needed = available_memory(), COPIES * table_bytes(data.features)
    if free is None or not needed:
        return workers
    return max(1, min(workers, free // needed))


def table_bytes(features: Any) -> int:
    """Return how many bytes a table takes, text estimated from its first rows; 0 if it does not say."""
    if isinstance(features, pd.DataFrame):
        usage = features.memory_usage(index=False)
        text = features.iloc[:SAMPLE].select_dtypes(object)
        share = len(features) / max(1, len(text))
        return int(usage.sum() + share * text.memory_usage(index=False, deep=True).sum())
    if hasattr(features, "nbytes"):
        return int(features.nbytes)
    sparse = (getattr(features, name, None) for name in ("data", "indices", "indptr"))
    return sum(int(getattr(part, "nbytes", 0)) for part in sparse)


def available_memory() -> int | None:
    """Return how many bytes this process and its workers may still take; None where it is not known.

    The least of what the machine has and what control groups, such as a container's, allow.
    """
    known = [*_machine(), *_control_groups()]
    return min(known, default=None)


def _machine() -> Iterator[int]:
    meminfo = _text(SYSTEM / "proc/meminfo")
    for line in meminfo.splitlines():
        if line.startswith("MemAvailable:"):
            yield 1024 * int(line.split()[1])
            return
    names = ("SC_AVPHYS_PAGES", "SC_PAGE_SIZE")
    if all(name in getattr(os, "sysconf_names", {}) for name in names):
        pages, size = (os.sysconf(name) for name in names)
        yield pages * size


def _control_groups() -> Iterator[int]:
    root = SYSTEM / "sys/fs/cgroup"
    for line in _text(SYSTEM / "proc/self/cgroup").splitlines():
        _, kind, path = line.split(":", 2)
        if kind not in ("", "memory"):
            continue
        names = ("memory.max", "memory.current", "inactive_file")
        if kind:  # the first version of control groups
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        for folder in {
            root / kind / path.lstrip("/"),
            root / kind,
        }:  # a container sees its own only
            limit, used = (_text(folder / name).strip() for name in names[:2])
            if limit.isdigit() and used.isdigit():
                stat = dict(line.split() for line in _text(folder / "memory.stat").splitlines())
                yield max(0, int(limit) - int(used) + int(stat.get(names[2], 0)))


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
