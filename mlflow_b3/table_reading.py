"""Tables in: read, given their cluster column, and fingerprinted."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from mlflow_b3.errors import InputError
from mlflow_b3.row_copies import SMALL

#: What the cluster column is called when labels are given instead of its name.
LABELLED = "cluster"
#: Rows that are worked on at a time, where all at once would take as much memory as the table.
CHUNK = 100_000
#: A large file is read in so many parts.
PARTS = 16


def read_table(data: Any, texts: Sequence[str] = ()) -> pd.DataFrame:
    """Return `data` as a DataFrame.

    Parameters
    ----------
    data : DataFrame, path of a .csv or .parquet file, or an MLflow pandas dataset
    texts : sequence of str
        Columns that hold text. Where a .csv file makes numbers of them, they are read again.
    """
    if isinstance(data, pd.DataFrame):
        return data
    if isinstance(data, (str, Path)):
        return _with_texts(Path(data), _read_file(Path(data)), texts)
    frame = getattr(data, "df", None)  # mlflow.data.PandasDataset
    if isinstance(frame, pd.DataFrame):
        return frame
    raise InputError(
        f"data={type(data).__name__} cannot be read; give a pandas DataFrame, the path of a "
        ".csv or .parquet file, or a dataset made by mlflow.data.from_pandas."
    )


def label_clusters(frame: pd.DataFrame, cluster: Any) -> tuple[pd.DataFrame, str]:
    """Return the table and the name of its cluster column.

    Labels that are given as such become a column, and so does a level of the index that is named.
    """
    if isinstance(cluster, str):
        in_index = cluster not in frame.columns and cluster in frame.index.names
        return frame.reset_index(level=cluster) if in_index else frame, cluster
    if isinstance(cluster, pd.Series) and not cluster.index.equals(frame.index):
        raise InputError(
            "cluster is a Series whose index is not that of the table, so that its labels may belong "
            "to other rows; give cluster.to_numpy() if they are in the order of the rows."
        )
    labels = np.asarray(getattr(cluster, "labels", cluster))
    if labels.shape != (len(frame),):
        raise InputError(
            f"cluster={type(cluster).__name__} of shape {labels.shape} is not usable; give the name "
            f"of a column, or one label for each of the {len(frame)} rows."
        )
    name = LABELLED
    while name in frame.columns:
        name += "_"
    labelled = frame.copy(deep=False)
    labelled[name] = labels
    return labelled, name


def _with_texts(path: Path, frame: pd.DataFrame, texts: Sequence[str]) -> pd.DataFrame:
    """Read columns of a .csv file again that are texts and became numbers: "007" became 7."""
    numbers = [
        name
        for name in texts
        if name in frame.columns and pd.api.types.is_numeric_dtype(frame[name])
    ]
    if not numbers or path.suffix.lower() != ".csv":
        return frame
    again = pd.read_csv(path, usecols=numbers, dtype=dict.fromkeys(numbers, str))
    return frame.assign(**{name: again[name].to_numpy() for name in numbers})


def _read_file(path: Path) -> pd.DataFrame:
    readers = {".csv": pd.read_csv, ".parquet": _read_parquet, ".pq": _read_parquet}
    reader = readers.get(path.suffix.lower())
    if reader is None:
        raise InputError(f"data={str(path)!r} has an unknown ending; use one of {list(readers)}.")
    if not path.is_file():
        raise InputError(
            f"data={str(path)!r} is not a file here (the current folder is {str(Path.cwd())!r})."
        )
    try:
        return reader(path)  # type: ignore[no-any-return, operator]
    except (ValueError, OSError) as error:  # pyarrow's and pandas' parser errors are ValueErrors
        raise InputError(f"data={str(path)!r} cannot be read: {error}") from error


def _read_parquet(path: Path) -> pd.DataFrame:
    """Read a file, a large one some columns at a time: all at once would take three times its size."""
    import pyarrow  # type: ignore[import-untyped]
    from pyarrow import parquet

    if path.stat().st_size <= SMALL:
        return pd.read_parquet(path)
    names = parquet.read_schema(path).names
    groups = [names[first::PARTS] for first in range(min(PARTS, len(names)))]
    if len(set(names)) < len(names) or any("." in name for name in names):
        return pd.read_parquet(path)  # which column a name stands for is not plain
    parts = [pd.read_parquet(path, columns=group) for group in groups]
    pyarrow.default_memory_pool().release_unused()
    columns = {str(name): part[name] for part in parts for name in part.columns}
    read = pd.DataFrame({name: columns[name] for name in names if name in columns}, copy=False)
    read.columns = pd.Index(
        [columns[name].name for name in names if name in columns], name=parts[0].columns.name
    )
    return read


def digest_table(frame: pd.DataFrame) -> str:
    """Return 36 hexadecimal digits over names, dtypes, values and their order.

    The row labels do not count. 36 is the longest digest that MLflow stores.
    """
    sha = hashlib.sha256()
    for name, dtype in zip(frame.columns, frame.dtypes, strict=True):
        sha.update(f"{name}\x1f{dtype}\x1e".encode())
    # pandas hashes row by row, but what it takes the values of an Arrow column for depends on
    # whether any of all its rows is missing
    arrow = any(isinstance(dtype, pd.ArrowDtype) for dtype in frame.dtypes)
    step = len(frame) if arrow else CHUNK
    for start in range(0, len(frame), max(1, step)):
        part = frame.iloc[start : start + step]
        plain = part.assign(
            **{str(name): part[name].map(repr) for name in part if part[name].dtype == object}
        )  # pandas would mix up 1 and "1", and cannot hash lists
        sha.update(pd.util.hash_pandas_object(plain, index=False).to_numpy().tobytes())
    return sha.hexdigest()[:36]
