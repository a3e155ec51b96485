"""What follows from a table alone: its clusters, and the findings that need no refit."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.special import gammaincinv, gammaln, xlogy

from mlflow_b3.findings import Finding
from mlflow_b3.results import Result
from mlflow_b3.wording import percent, shortened

#: Share of the rows with mates above which a feature counts as the name of a cluster.
IDENTIFYING = 0.9
#: With fewer values than this a feature names no clusters.
FEWEST_NAMES = 10


#: Share of the rows that one feature must classify right to give away the target.
GIVEN_AWAY = 0.999
#: The same does not count where a constant answer is right more often than this.
BEST_CONSTANT = 0.99
#: Correlation with a numeric target from which on a feature gives it away.
CORRELATION = 0.9999
#: Targets with more values than this have no thresholds; numeric ones are correlated instead.
MOST_CLASSES = 20
#: How likely chance may make a finding about the target or about copies, in one table.
CHANCE = 0.001
#: Values per row up to which the value itself may decide: ten rows share one, on average.
FEW_VALUES = 0.1
#: Rows of a sample that rules out most features before all rows are sorted.
SAMPLE = 4000
#: Share of the rows, or correlation, in a sample that is worth a closer look.
ROUGHLY = 0.99
#: Share of the clusters that must be copies. Fewer hardly move a score.
COPIED = 0.01


@dataclass(frozen=True, kw_only=True)
class TableFacts(Result):
    """What a table shows before any refit.

    Attributes
    ----------
    n_rows, n_clusters : int
    n_repeated : int
        Clusters with two rows or more.
    findings : tuple of Finding
    """

    n_rows: int
    n_clusters: int
    n_repeated: int
    findings: tuple[Finding, ...]


def table_facts(
    features: pd.DataFrame, target: NDArray[Any], clusters: NDArray[np.intp]
) -> TableFacts:
    """Return what features, target and clusters show before any refit.

    Parameters
    ----------
    features : DataFrame
        The columns that the model is given.
    target : array
    clusters : array of int
        The cluster of each row as a whole number from 0, without gaps.
    """
    sizes = np.bincount(clusters)
    return TableFacts(
        n_rows=len(clusters),
        n_clusters=len(sizes),
        n_repeated=int((sizes > 1).sum()),
        findings=tuple(_findings(features, target, clusters, sizes)),
    )


def _findings(
    features: pd.DataFrame,
    target: NDArray[Any],
    clusters: NDArray[np.intp],
    sizes: NDArray[np.intp],
) -> list[Finding]:
    found = []
    outcome = _Outcome(target, clusters)
    rows = _hashes(pd.Series(target, copy=False))
    names, revealing = [], []
    distinct: dict[str, int] = {}
    missing: dict[str, int] = {}
    first: dict[int, str] = {}
    repeated = []
    for name, column in features.items():
        name = str(name)
        hashes = _hashes(column)
        rows = rows * np.uint64(0x9E3779B97F4A7C15) + hashes  # the order of columns matters
        if not is_plain(column):
            continue
        names.append(name)
        codes, values = pd.factorize(column, use_na_sentinel=False)
        distinct[name] = len(values)
        missing[name] = int(column.isna().sum())
        earlier = first.setdefault(int(hashes.sum()), name)
        if earlier != name and column.equals(features[earlier]):
            repeated.append(name)
        if outcome.is_given_away_by(column, codes, len(values), features.shape[1]):
            revealing.append(name)
    constant = [name for name in names if distinct[name] == 1]
    if constant or repeated:
        parts = [f"constant: {shortened(constant)}"] if constant else []
        parts += [f"same values as an earlier column: {shortened(repeated)}"] if repeated else []
        found.append(Finding(code="B309", message="; ".join(parts) + ". They are kept."))
    missing = {name: count for name, count in missing.items() if count}
    if missing:
        found.append(
            Finding(
                code="B310",
                message=f"missing values are passed to the learner as they are: {missing}.",
            )
        )
    mates = int(sizes[sizes > 1].sum())
    identifying = [
        name
        for name in names  # d distinct values of n leave at most 2(n-d) rows with a value in common
        if 2 * (len(features) - distinct[name]) >= IDENTIFYING * (mates - missing.get(name, 0))
        and _identifies(features[name], clusters, sizes)
    ]
    if identifying:
        found.append(
            Finding(
                code="B323",
                message=f"{shortened(identifying)}: values repeat within a cluster and hardly ever "
                "between clusters, as a name or a telephone number does. They tell nothing about "
                "new clusters and let the learner recognise known ones; consider leaving them out.",
            )
        )
    singles = int((sizes == 1).sum())
    if 2 * singles > len(sizes):
        found.append(
            Finding(
                code="B311",
                message=f"{singles} of {len(sizes)} clusters have a single row. Such rows tell "
                "nothing about dependency within clusters.",
            )
        )
    if revealing:
        found.append(
            Finding(
                code="B343",
                message=f"{shortened(revealing)}: the value of one such feature alone says what the target "
                "is. Check that it is known before the target is; leave it out if it is recorded "
                "later or derived from the target.",
            )
        )
    copies = _copies(rows, clusters)
    if copies is not None:
        found.append(
            Finding(
                code="B344",
                message=f"{percent(copies)} of the rows equal a row of another cluster in all features "
                "and in the target, more than chance explains. Either rows were copied under new ids, "
                "or one cluster has several ids. Remove the copies, or give them one id, and audit "
                "again.",
            )
        )
    return found


class _Outcome:
    """The target, prepared once for all features.

    One feature gives away the target if its value alone says what the target is. A target with at
    most `MOST_CLASSES` values, or one that is no number, is a set of classes, and one of these holds:

    - The value of the feature decides. Each row is classified by the majority of the rows of *other*
      clusters with the same value, or by the most frequent class of all where there are none. This
      finds copies of the target under any coding, also with several codes for a class. A name or a
      row number decides nothing: no other cluster has the same value. Missing is a value. A feature
      with more than `FEW_VALUES` values per row is not judged in this way: where rows were copied,
      its values would decide because they name the copies.
    - For numbers and dates, thresholds decide: the axis is cut into one interval for each class at
      most. Rows without a value are classified together.

    Either must classify all rows right, or `GIVEN_AWAY` of them where the best constant is right on
    `BEST_CONSTANT` at most: a tenth of the constant's errors, at the least.

    A numeric target with more values is given away by a Pearson or Spearman correlation of
    `CORRELATION`: what is left unexplained is 0.0002 of the variance, less than the rounding of most
    measurements.

    In small tables a feature may do all this by chance. Rows of one cluster may be alike, so a
    cluster counts once for each class that it has. If N such units have the class sizes n_1, …, n_k
    and the target were shuffled among them, all N! / (n_1! … n_k!) arrangements would be equally
    likely, and a rule with F possible forms that errs on m units fits at most
    F · C(N, m) · (k - 1)^m of them. F is k^d for a feature of d values, and C(d + k - 1, k - 1) · k! · k
    for thresholds and a class for missing values. The quotient, times the number of features, must not exceed `CHANCE`. For
    correlations at least ten units are needed: 2 / 10! is the chance that their order agrees.
    """

    def __init__(self, target: NDArray[Any], clusters: NDArray[np.intp]) -> None:
        values = pd.Series(target, copy=False)
        self.codes, classes = pd.factorize(values, use_na_sentinel=False)
        self.clusters = clusters
        self.n_classes = len(classes)
        sizes = np.bincount(self.codes, minlength=self.n_classes)
        self.majority = int(sizes.argmax())
        self.constant = sizes.max() / len(target)
        pairs = np.unique(clusters.astype(np.int64) * self.n_classes + self.codes)
        self.units = len(pairs)
        units = np.bincount(pairs % self.n_classes)
        self.log_arrangements = float(gammaln(self.units + 1) - gammaln(units + 1).sum())
        numeric = pd.api.types.is_numeric_dtype(values) and values.dtype != bool
        self.numbers = _as_numbers(values) if numeric else None
        rng = np.random.default_rng(0)
        few = len(target) <= SAMPLE
        self.sample = slice(None) if few else rng.choice(len(target), SAMPLE, replace=False)

    @cached_property
    def target_ranks(self) -> NDArray[np.float64]:
        assert self.numbers is not None
        return _ranks(self.numbers)

    def is_given_away_by(
        self, column: "pd.Series[Any]", codes: NDArray[np.intp], n_values: int, n_features: int
    ) -> bool:
        """Return whether a feature, given with the codes of its values, gives away the target."""
        if n_values == 1 or self.n_classes == 1:
            return False
        numbers = _as_numbers(column)
        continuous = self.numbers is not None and self.n_classes > MOST_CLASSES
        if continuous and numbers is not None and self._correlates(numbers):
            return True
        n = len(codes)
        k = self.n_classes
        if n_values <= FEW_VALUES * n and self._may_decide(codes, n_values):
            errors = n - self._right_by_value(codes, n_values)
            if self._is_enough(errors, n_values * np.log(k), n_features):
                return True
        if numbers is None or k > MOST_CLASSES:
            return False
        some = numbers[self.sample]
        if self._right_by_thresholds(some, self.codes[self.sample]) < ROUGHLY * len(some):
            return False
        log_forms = float(gammaln(n_values + k) - gammaln(n_values + 1) + 2 * np.log(k))
        errors = n - self._right_by_thresholds(numbers, self.codes)
        return self._is_enough(errors, log_forms, n_features)

    def _may_decide(self, codes: NDArray[np.intp], n_values: int) -> bool:
        """Return whether the majorities of each value come near enough to look closer."""
        n, k = len(codes), self.n_classes
        if n_values * k > 10 * n:
            return 2 * k <= n
        cells = np.bincount(codes * k + self.codes, minlength=n_values * k)
        return bool(cells.reshape(n_values, k).max(axis=1).sum() >= ROUGHLY * n)

    def _is_enough(self, errors: int, log_forms: float, n_features: int) -> bool:
        share = errors / len(self.codes)
        if errors and (share > 1 - GIVEN_AWAY or self.constant > BEST_CONSTANT):
            return False
        wrong = min(errors, self.units)
        log_misses = (
            gammaln(self.units + 1)
            - gammaln(wrong + 1)
            - gammaln(self.units - wrong + 1)
            + xlogy(wrong, self.n_classes - 1)
        )
        log_chance = np.log(n_features) + log_forms + log_misses - self.log_arrangements
        return bool(log_chance <= np.log(CHANCE))

    def _right_by_value(self, codes: NDArray[np.intp], n_values: int) -> int:
        """Count the rows that others of their value, in other clusters, classify right."""
        k = self.n_classes
        _, where = np.unique(codes.astype(np.int64) * k + self.codes, return_inverse=True)
        counts = np.bincount(where)
        n_clusters = int(self.clusters.max()) + 1
        _, own, sizes = np.unique(
            where.astype(np.int64) * n_clusters + self.clusters,
            return_inverse=True,
            return_counts=True,
        )
        _, mates_of, mates = np.unique(
            codes.astype(np.int64) * n_clusters + self.clusters,
            return_inverse=True,
            return_counts=True,
        )
        for_class = counts[where] - sizes[own]
        others = np.bincount(codes, minlength=n_values)[codes] - mates[mates_of]
        decided = np.where(others == 0, self.codes == self.majority, 2 * for_class > others)
        return int(decided.sum())

    def _right_by_thresholds(self, numbers: NDArray[np.float64], codes: NDArray[np.intp]) -> int:
        """Count the rows that the best thresholds on a number classify right.

        The classes follow each other in the order of their medians. `best[i]` is the number of rows
        right among the first i values if the class at hand is the last one so far.
        """
        k = self.n_classes
        known = ~np.isnan(numbers)
        right = int(np.bincount(codes[~known], minlength=1).max())
        numbers, codes = numbers[known], codes[known]
        if not len(numbers):
            return right
        order = np.argsort(numbers, kind="stable")
        numbers, codes = numbers[order], codes[order]
        ends = np.append(np.flatnonzero(numbers[1:] != numbers[:-1]), len(numbers) - 1) + 1
        middle = [
            np.median(np.flatnonzero(codes == c)) if (codes == c).any() else -1 for c in range(k)
        ]
        best = np.zeros(len(ends) + 1)
        for c in np.argsort(middle, kind="stable"):
            upto = np.concatenate([[0], np.cumsum(codes == c)[ends - 1]])
            best = upto + np.maximum.accumulate(best - upto)
        return right + int(best[-1])

    def _correlates(self, numbers: NDArray[np.float64]) -> bool:
        assert self.numbers is not None
        known = np.isfinite(numbers)
        if self.units < 10 or known.mean() < GIVEN_AWAY:
            return False
        if known.all():
            ranks = self.target_ranks
            x, y = numbers, self.numbers
        else:
            x, y = numbers[known], self.numbers[known]
            ranks = _ranks(y)
        if _correlation(x, y) >= CORRELATION:
            return True
        rows = self.sample if known.all() else slice(None)
        if _correlation(_ranks(x[rows]), _ranks(y[rows])) < ROUGHLY:
            return False
        return _correlation(_ranks(x), ranks) >= CORRELATION


def _ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(pd.Series(values).rank(), dtype=np.float64)


def _correlation(x: NDArray[np.float64], y: NDArray[np.float64]) -> float:
    """Return the absolute correlation; 0 where one of the two does not vary."""
    with np.errstate(all="ignore"):
        x, y = x / (np.abs(x).max() or 1.0), y / (np.abs(y).max() or 1.0)
        x, y = x - x.mean(), y - y.mean()
        found = abs(x @ y) / np.sqrt((x @ x) * (y @ y))
    return float(found) if np.isfinite(found) else 0.0


def _as_numbers(column: "pd.Series[Any]") -> NDArray[np.float64] | None:
    """Return numbers, truth values and times as floating-point numbers; None for anything else."""
    kinds = pd.api.types
    if kinds.is_datetime64_any_dtype(column) or kinds.is_timedelta64_dtype(column):
        numbers = column.astype("int64").to_numpy(dtype=float)
        return np.where(column.isna(), np.nan, numbers)
    if not kinds.is_numeric_dtype(column) or kinds.is_complex_dtype(column):
        return None
    return column.to_numpy(dtype=float, na_value=np.nan)


def _copies(rows: NDArray[np.uint64], clusters: NDArray[np.intp]) -> float | None:
    """Return the share of rows that equal a row of another cluster; None where chance explains it.

    In tables of few columns with few values rows are equal by chance, and how often depends on all
    columns together. What chance looks like is still known. Represent each of the K clusters by one
    of its rows, the one with the smallest hash, which is the same row for a cluster and its copy.
    Without copies the representatives are independent draws from one distribution. If it gives a row
    the probability p_g, the expected number of rows that represent exactly r clusters is

        E N_r = C(K, r) · Σ_g p_g^r (1 - p_g)^(K - r).

    E N_r / C(K, r) are moments of the odds under a positive measure, so they are log-convex:

        (E N_r)² <= a_r · E N_(r-1) · E N_(r+1),   a_r = (r + 1)(K - r + 1) / (r (K - r)),

    whatever the p_g. Where pairs occur by chance, single rows and triples do too. Copies violate
    this: if all clusters are copied once there are pairs and nothing else. A violation counts if it
    is beyond the noise of all three counts (Poisson limits, each with the error probability
    `CHANCE`), and if it concerns at least `COPIED` of the clusters. In a table without chance
    repetitions that finds a copied share of about 4 / sqrt(K).
    """
    order = np.lexsort((rows, clusters))
    starts = np.flatnonzero(np.diff(clusters[order], prepend=-1))
    representatives = rows[order][starts]
    _, counts = np.unique(representatives, return_counts=True)
    n_clusters = len(representatives)
    times = np.bincount(counts, minlength=2)
    if len(times) == 2 or not _exceeds_chance(times, n_clusters):
        return None
    _, where = np.unique(rows, return_inverse=True)
    pairs = np.unique(where.astype(np.int64) * n_clusters + clusters)
    owners = np.bincount(pairs // n_clusters)
    return float((owners[where] > 1).mean())


def _exceeds_chance(times: NDArray[np.intp], n_clusters: int) -> bool:
    """Return whether rows occur exactly r times too often for some r; `times[r]` says how often."""
    r = np.arange(2, min(len(times), n_clusters))
    padded = np.append(times, 0)
    allowed = (r + 1) * (n_clusters - r + 1) / (r * (n_clusters - r))
    bound = np.sqrt(allowed * _at_most(padded[r - 1]) * _at_most(padded[r + 1]))
    excess = padded[r] - bound
    certain = _at_least(padded[r]) > bound
    return bool((certain & (r * excess >= COPIED * n_clusters)).any())


def _at_most(count: NDArray[np.intp]) -> NDArray[np.float64]:
    """Return the upper limit of a Poisson mean."""
    return np.asarray(gammaincinv(count + 1.0, 1 - CHANCE))


def _at_least(count: NDArray[np.intp]) -> NDArray[np.float64]:
    """Return the lower limit of a Poisson mean."""
    return np.where(count > 0, gammaincinv(np.maximum(count, 1.0), CHANCE), 0.0)


def _identifies(
    column: "pd.Series[Any]", clusters: NDArray[np.intp], sizes: NDArray[np.intp]
) -> bool:
    """Return whether a feature's values repeat within clusters but hardly between them.

    Two clusters may share a value: linkage may have split one in two.
    """
    values, _ = pd.factorize(column, use_na_sentinel=True)
    if values.max() + 1 < FEWEST_NAMES:
        return False
    judged = (values >= 0) & (sizes[clusters] > 1)
    repeated = np.bincount(values[values >= 0]) > 1
    if not judged.any() or repeated[values[judged]].mean() < IDENTIFYING:
        return False  # told from the values alone, as for measurements: they hardly repeat at all
    known = values >= 0
    pairs, where, counts = np.unique(
        values[known].astype(np.int64) * len(sizes) + clusters[known],
        return_inverse=True,
        return_counts=True,
    )
    owners = np.bincount(pairs // len(sizes))
    told = (counts[where] > 1) & (owners[values[known]] <= 2)
    return bool(told[judged[known]].mean() >= IDENTIFYING)


def is_plain(column: "pd.Series[Any]") -> bool:
    """Return whether a column holds single values, not lists or arrays."""
    return column.dtype != object or bool(column.map(pd.api.types.is_hashable).all())


def _hashes(column: "pd.Series[Any]") -> NDArray[np.uint64]:
    """Return a number for each value that equal values share."""
    try:
        hashes = pd.util.hash_pandas_object(column, index=False)
    except (TypeError, ValueError):  # objects of several kinds, or lists
        hashes = pd.util.hash_pandas_object(column.map(repr), index=False)
    return np.asarray(hashes, dtype=np.uint64)
