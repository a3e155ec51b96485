"""What an audit is told about the linkage, before any table is read."""

from collections.abc import Iterable
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import Any

from mlflow_b3.claims import MATCH_COLUMN
from mlflow_b3.errors import InputError
from mlflow_b3.linkage.folds import LeakSafeFolds
from mlflow_b3.wording import not_percentage

TABLES = (".csv", ".parquet", ".pq")


@dataclass(frozen=True, kw_only=True, eq=False)
class LinkageArguments:
    """What an audit is told about the linkage; see `mlflow_b3.audit`."""

    match_probability: Any = None
    resolved_rows: Any = None
    reviewer: Any = None
    linkage_quality: Any = None
    partition_samples: Any = None
    fold_threshold: float | None = None
    purge_threshold: float | None = None
    folds: Any = None

    def __post_init__(self) -> None:
        """Refuse what no table could make right."""
        for name in ("fold_threshold", "purge_threshold"):
            value = getattr(self, name)
            if value is None:
                continue
            if isinstance(value, bool) or not (isinstance(value, Real) and 0 < float(value) <= 1):
                hint = not_percentage(value) if isinstance(value, Real) else ""
                raise InputError(f"{name}={value!r} must be a match probability in (0, 1].{hint}")
            if self._folds_given:
                raise InputError(
                    f"{name} goes with folds that the audit makes, not with given ones."
                )
            if self.match_probability is None or self.column is not None:
                raise InputError(
                    f"{name} needs a table of scored pairs in match_probability, such as Splink's "
                    "predictions."
                )
        if self.reviewer is not None and self.resolved_rows is None:
            raise InputError(
                "reviewer goes with resolved_rows: it says how well they were resolved."
            )

    @property
    def _folds_given(self) -> bool:
        """Whether the splits are given themselves, not their number or how to make them."""
        if isinstance(self.folds, LeakSafeFolds):
            return True
        return not (isinstance(self.folds, str) or hasattr(self.folds, "split")) and isinstance(
            self.folds, Iterable
        )

    @property
    def safe_threshold(self) -> float | None:
        """The match probability from which the folds keep rows together, given either way."""
        made = isinstance(self.folds, LeakSafeFolds)
        return self.folds.threshold if made else self.fold_threshold

    @property
    def made_of_scores(self) -> bool:
        """Whether scored pairs decided about the folds."""
        return self.safe_threshold is not None or self.purge_threshold is not None

    @property
    def column(self) -> str | None:
        """The column of the audited table that holds the rows' match probability."""
        given = self.match_probability
        is_column = isinstance(given, str) and Path(given).suffix.lower() not in TABLES
        return given if is_column else None

    def source(self, *, otherwise_known: bool) -> str | None:
        """Return the evidence that the leaked share is taken from; several are an error.

        A table of pairs is used for it only where nothing better is given and the folds are not
        made of the same scores: then what is left between folds says nothing.
        """
        names = ("resolved_rows", "partition_samples", "linkage_quality")
        given = [name for name in names if getattr(self, name) is not None]
        if len(given) > 1:
            raise InputError(
                f"{' and '.join(given)} cannot be given together; give the one you trust most: "
                "resolved rows before posterior samples before figures of quality."
            )
        if self.column is not None:
            if given:
                raise InputError(
                    f"match_probability={self.column!r} names a column, which is evidence of its "
                    f"own beside {given[0]}; give one of them."
                )
            return MATCH_COLUMN
        if given:
            return given[0]
        if self.match_probability is None or self.made_of_scores or otherwise_known:
            return None
        return "match_probability"
