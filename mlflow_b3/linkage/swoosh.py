"""Match-and-merge with a user's own match and merge functions (R-Swoosh)."""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from mlflow_b3.errors import InputError

Record = TypeVar("Record")


@dataclass(frozen=True, kw_only=True)
class MergedRecords(Generic[Record]):
    """Clusters of records, and the record that each was merged into.

    Attributes
    ----------
    labels : tuple of int
        The cluster of each record, from 0 in order of first appearance.
    records : tuple
        The merged record of each cluster.
    comparisons : int
        How often `match` was asked.
    """

    labels: tuple[int, ...]
    records: tuple[Record, ...]
    comparisons: int


def match_and_merge(
    records: Iterable[Record],
    match: Callable[[Record, Record], bool],
    merge: Callable[[Record, Record], Record],
) -> MergedRecords[Record]:
    """Merge records until no two of them match.

    Parameters
    ----------
    records : iterable
        In any form that `match` and `merge` take.
    match : callable
        match(x, y): whether two records, merged ones or not, belong to one entity.
    merge : callable
        merge(x, y): one record with what both say. It must not change its arguments.

    Notes
    -----
    R-Swoosh (Benjelloun et al. 2009, doi:10.1007/s00778-008-0098-x): take a record; if it matches a
    finished one, take that back and put their merger to the records still to do; else it is
    finished. Every merger leaves one record less, so it always ends, after at most n - 1 mergers and
    2n² comparisons, and if `match` is symmetric no two of the merged records match.

    If `match` and `merge` are idempotent, commutative, associative and representative (a merged
    record matches whatever its parts matched: no evidence against), then the clusters do not depend
    on the order of the records, every pair that matches directly is in one cluster, and
    `swoosh_bounds` applies. Otherwise none of the three is guaranteed: say, with a merge that
    averages, another order of records can give other clusters, and a record may end up apart from
    one that it matched.

    With the union of sets as merge, and a match of any two of their elements, the clusters are the
    connected components of the matching pairs: `components` finds those from a list of pairs
    without comparing all.
    """
    for name, function in (("match", match), ("merge", merge)):
        if not callable(function):
            raise InputError(f"{name}={function!r} must be a function of two records.")
    waiting = deque((record, [row]) for row, record in enumerate(records))
    if not waiting:
        raise InputError("records is empty; give at least one record.")
    n, comparisons = len(waiting), 0
    finished: list[tuple[Record, list[int]]] = []
    while waiting:
        record, rows = waiting.popleft()
        for place, (other, other_rows) in enumerate(finished):
            comparisons += 1
            if match(record, other):
                del finished[place]
                waiting.appendleft((merge(record, other), other_rows + rows))
                break
        else:
            finished.append((record, rows))
    finished.sort(key=lambda entry: min(entry[1]))
    labels = [0] * n
    for label, (_, rows) in enumerate(finished):
        for row in rows:
            labels[row] = label
    return MergedRecords(
        labels=tuple(labels),
        records=tuple(record for record, _ in finished),
        comparisons=comparisons,
    )
