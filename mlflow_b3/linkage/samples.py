"""Leak shares from posterior samples of the partition of rows into entities."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from mlflow_b3.errors import InputError
from mlflow_b3.linkage.estimates import LeakEstimate, LeakShare, typical_fragments
from mlflow_b3.linkage.files import reading
from mlflow_b3.linkage.row_ids import id_text
from mlflow_b3.linkage.row_means import check_level
from mlflow_b3.linkage.splits import Floats, Rows, Splits, as_codes
from mlflow_b3.linkage.truth import leaked_values

#: What long tables of samples call their columns.
SAMPLE_NAMES = ("sample", "iteration")
RECORD_NAMES = ("record", "record_id", "rec_id", "id", "unique_id")
ENTITY_NAMES = ("entity", "entity_id", "cluster", "cluster_id", "lambda")
DBLINK_COLUMN = "linkageStructure"
WIDE = " A column for each id is needed, or columns sample, record and entity."


def leak_from_partition_samples(
    samples: Any,
    folds: Any,
    *,
    clusters: Any = None,
    level: float = 0.95,
    allow_split: bool = False,
) -> LeakEstimate:
    """Estimate leak shares from posterior samples of Bayesian record linkage.

    Parameters
    ----------
    samples : array, samples by rows
        Λ[s, i]: the entity of row i in sample s, without burn-in; see `read_partition_samples`.
    folds : array of int, or sequence of (training rows, validation rows), or Splits
    clusters : sequence, optional
        ĉ(i): the predicted cluster of every row; with it, `fragments` is found.
    level : float
        Credibility of the intervals.
    allow_split : bool
        Accept folds that have rows of one cluster on both sides.

    Returns
    -------
    LeakEstimate
        kind `estimate`, method `partition-samples`: the posterior mean with quantiles.

    Notes
    -----
    Exact given the samples: p0 is counted in each as if it were the truth (`leak_truth`). The
    posterior is as good as its model. Where pairs were wrongly taken as independent, 95 % intervals
    of partition posteriors were ±10 % wide in simulations and never held the truth, which was 1.5
    to 5 times as large: check some rows with `leak_from_resolved_rows`.
    """
    check_level(level)
    labels = _codes(samples)
    splits = Splits.of(folds, labels.shape[1])
    predicted = None if clusters is None else as_codes("clusters", clusters, labels.shape[1])
    if predicted is not None:
        splits.require_whole(predicted, allow_split=allow_split)
    draws = np.zeros((2, len(labels)))
    seen = np.zeros(labels.shape[1])
    parts = []
    for draw, entities in enumerate(labels):
        training, validation = leaked_values(entities, splits)
        draws[:, draw] = training.mean(), validation.mean()
        seen += validation / len(labels)
        if predicted is not None:
            parts.append(_parts(entities, predicted))
    validated = splits.validation @ splits.validation_weight
    chance = np.divide(seen, validated, out=np.zeros_like(seen), where=validated > 0)
    shares = [_share(draw, level) for draw in draws]
    return LeakEstimate(
        train=shares[0],
        validation=shares[1],
        kind="estimate",
        method="partition-samples",
        level=level,
        n_folds=splits.n_folds,
        fragments=_fragments(parts),
        row_probability=tuple(np.minimum(chance, 1.0).tolist()),
        notes=(
            f"From {len(labels)} posterior samples, as good as their model; such posteriors can be "
            "far too sure of themselves. Check with some resolved rows.",
        ),
    )


def read_partition_samples(
    source: Any, ids: Sequence[Any], *, ignore_unknown: bool = False
) -> Rows:
    """Read posterior samples of a linkage tool, in the order in which they were drawn.

    Parameters
    ----------
    source : array, DataFrame, or path of a .csv file, or of a .parquet file or folder
        One of: an array of samples by rows. A wide table, a column for each record id and a row for
        each sample; also with columns V1 … Vn in the order of `ids`, as R's `write.csv` writes the
        matrix of `blink::rl.gibbs`. A long table with columns `sample` or `iteration`, `record` and
        `entity`. Or the folder `linkage-chain.parquet` of dblink, with columns `iteration`,
        `partitionId` and `linkageStructure` (lists of record ids, or such lists by entity).
    ids : sequence
        The id of every row of the table, in its order; ids are compared as text.
    ignore_unknown : bool
        Leave out records that are not among ids, instead of refusing them: right where the audited
        rows are some of the rows that were linked. Samples of the partition of all of them are then
        samples of the partition of these; nothing is lost. An array, which names no records, must
        have a column for each of ids.

    Returns
    -------
    array of int, samples by rows
        The entity of each row in each sample, numbered from 0. Samples of the burn-in are included
        where the tool wrote them: leave them out, as in `samples[100:]`.
    """
    texts = [id_text(name) for name in ids]
    repeated = pd.Index(texts)[pd.Index(texts).duplicated()].unique()
    if len(repeated):
        raise InputError(
            f"ids: {len(repeated)} occur more than once: {_some(repeated)}; each row needs its own."
        )
    if isinstance(source, (str, Path)):
        source = _read(Path(source))
    if not isinstance(source, pd.DataFrame):
        return _codes(source, len(texts))
    if DBLINK_COLUMN in source:
        return _from_long(_dblink(source), texts, ignore_unknown)
    columns = {str(name).lower(): name for name in source.columns}
    named = [
        next((columns[name] for name in names if name in columns), None)
        for names in (SAMPLE_NAMES, RECORD_NAMES, ENTITY_NAMES)
    ]
    if None not in named:
        long = source[named]
        long = long.set_axis(["sample", "record", "entity"], axis=1)
        return _from_long(long, texts, ignore_unknown)
    return _from_wide(source, texts, ignore_unknown)


def _codes(samples: Any, n: int | None = None) -> Rows:
    try:
        labels = np.asarray(samples)
    except ValueError:
        raise InputError("samples have different numbers of rows.") from None
    if labels.ndim != 2 or not labels.size:
        raise InputError(f"samples has shape {labels.shape}; samples by rows are needed.")
    if n is not None and labels.shape[1] != n:
        raise InputError(f"samples has {labels.shape[1]} columns; there are {n} rows.")
    coded = np.array([pd.factorize(row)[0] for row in labels], dtype=np.intp)
    wrong = np.flatnonzero((coded < 0).any(axis=1))
    if len(wrong):
        raise InputError(f"samples: entities are missing in samples {_some(wrong)}.")
    return coded


def _read(path: Path) -> pd.DataFrame:
    if not path.exists():
        raise InputError(f"samples: {str(path)!r} does not exist (from {str(Path.cwd())!r}).")
    with reading("samples", path):
        if path.is_dir() or path.suffix.lower() in (".parquet", ".pq"):
            return pd.read_parquet(path)
        if path.suffix.lower() == ".csv":
            return pd.read_csv(path, dtype=str, keep_default_na=False, na_values=["", "NA"])
    raise InputError(f"samples: {str(path)!r} has an unknown ending; use .csv or .parquet.")


def _dblink(chain: pd.DataFrame) -> pd.DataFrame:
    """Return dblink's chain as a long table; entities of different partitions are different."""
    samples, records, entities, entity = [], [], [], 0
    for iteration, structure in zip(chain["iteration"], chain[DBLINK_COLUMN], strict=True):
        for item in structure:
            # Older versions wrote a map of entities to records, newer ones the records only.
            members = item[1] if isinstance(item, tuple) else item
            records.extend(members)
            samples.extend([iteration] * len(members))
            entities.extend([entity] * len(members))
            entity += 1
    return pd.DataFrame({"sample": samples, "record": records, "entity": entities})


def _from_long(table: pd.DataFrame, ids: list[str], ignore_unknown: bool) -> Rows:
    if table.isna().any(axis=None):
        raise InputError(f"samples: {int(table.isna().any(axis=1).sum())} lines have gaps.")
    codes, names = pd.factorize(table["record"])
    texts = np.array([id_text(name) for name in names], dtype=object)
    found = pd.Index(ids).get_indexer(pd.Index(texts))
    _check_known(texts[found >= 0], texts[found < 0], ids, ignore_unknown)
    rows = found[codes]
    table, rows = table[rows >= 0], rows[rows >= 0]
    numbers = pd.to_numeric(table["sample"], errors="coerce")  # read from text, 10 is after 9
    order = table["sample"] if numbers.isna().any() else numbers
    samples, drawn = pd.factorize(order, sort=True)
    counts = np.bincount(samples * len(ids) + rows, minlength=len(drawn) * len(ids))
    wrong = np.argwhere(counts.reshape(len(drawn), len(ids)) != 1)
    if len(wrong):
        where = [f"{ids[row]} in sample {drawn[sample]}" for sample, row in wrong[:5]]
        raise InputError(
            f"samples: every record must occur once in every sample; {len(wrong)} do not: "
            f"{', '.join(where)}{' …' if len(wrong) > 5 else ''}."
        )
    labels = np.empty((len(drawn), len(ids)), dtype=np.intp)
    labels[samples, rows] = pd.factorize(table["entity"])[0]
    return _codes(labels)


def _from_wide(table: pd.DataFrame, ids: list[str], ignore_unknown: bool) -> Rows:
    names, known = [id_text(name) for name in table.columns], set(ids)
    kept = [
        place
        for place, name in enumerate(names)
        if name in known or not (name.lower() in SAMPLE_NAMES or name.startswith("Unnamed: "))
    ]
    names, table = [names[place] for place in kept], table.iloc[:, kept]
    if names == [f"V{place + 1}" for place in range(len(ids))]:
        return _codes(table.to_numpy(), len(ids))
    held = [name in known for name in names]
    found = [name for name in names if name in known]
    strange = [name for name in names if name not in known]
    _check_known(found, strange, ids, ignore_unknown, WIDE)
    missing = sorted(known - set(found))
    if missing or len(found) != len(ids):
        raise InputError(
            f"samples: {len(missing)} of {len(ids)} ids have no column: {_some(missing)}; "
            f"{len(found) - len(set(found))} have more than one.{WIDE}"
        )
    return _codes(table.loc[:, held].set_axis(found, axis=1)[ids].to_numpy())


def _check_known(
    known: Any, strange: Any, ids: list[str], ignore_unknown: bool, needed: str = ""
) -> None:
    """Refuse records that are not among ids, or all of them not being there."""
    if not len(strange) or (ignore_unknown and len(known)):
        return
    cause = ""
    if len(strange) > len(known):
        cause = f" Ids are like {_some(ids, 2)}: wrong row_id, or samples of another table?"
    raise InputError(
        f"samples: {len(strange)} of {len(strange) + len(known)} records are not among ids: "
        f"{_some(strange)}.{cause}{needed}"
    )


def _some(values: Any, most: int = 5) -> str:
    listed = [str(value) for value in list(values)[:most]]
    return (", ".join(listed) or "none") + (" …" if len(values) > most else "")


def _share(draws: Floats, level: float) -> LeakShare:
    low, high = np.quantile(draws, [(1 - level) / 2, (1 + level) / 2]).tolist()
    point = min(float(draws.mean()), 1.0)
    return LeakShare(point=point, low=min(low, point), high=min(max(high, point), 1.0))


def _parts(entities: Rows, clusters: Rows) -> tuple[Floats, Rows]:
    """Return the distinct shares of an entity's rows in the row's own cluster, and how often."""
    _, part, sizes = np.unique(
        entities * (int(clusters.max()) + 1) + clusters, return_inverse=True, return_counts=True
    )
    shares = sizes[part] / np.bincount(entities)[entities]
    values, counts = np.unique(shares, return_counts=True)
    return values, counts.astype(np.intp)


def _fragments(parts: list[tuple[Floats, Rows]]) -> tuple[float, ...] | None:
    if not parts:
        return None
    values, counts = (np.concatenate(column) for column in zip(*parts, strict=True))
    return typical_fragments(values, counts)
