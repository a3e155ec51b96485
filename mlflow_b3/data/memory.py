"""Memory that large tables give back to the system, and small ones keep."""

import ctypes
import mmap
import os
import tempfile
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

NUMERIC_KINDS = "biuf"
#: glibc keeps freed memory up to twice the largest block that it took back, which counts up to 32 MB.
LARGEST_BLOCK = 31 * 2**20


def temporary_folder() -> str:
    """Return the folder for rows in files: `JOBLIB_TEMP_FOLDER`, or the system's for temporary files."""
    return os.environ.get("JOBLIB_TEMP_FOLDER") or tempfile.gettempdir()


def map_columns(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a table whose numeric columns are mapped from a temporary file, for reading only.

    The system keeps as much of the file in memory as it has room for. The file has no name, and ends
    with the last array that is mapped from it. Without room for it, the table is returned as it is.
    """
    places: dict[np.dtype[Any], list[int]] = {}
    for place, dtype in enumerate(frame.dtypes):
        if isinstance(dtype, np.dtype) and dtype.kind in NUMERIC_KINDS:
            places.setdefault(dtype, []).append(place)
    if os.name != "posix" or not places or frame.empty:
        return frame
    columns: list[Any] = [frame.iloc[:, place] for place in range(frame.shape[1])]
    try:
        for dtype, own in places.items():
            with tempfile.TemporaryFile(dir=temporary_folder()) as file:
                for place in own:
                    np.ascontiguousarray(columns[place].to_numpy()).tofile(file)
                mapped = np.memmap(file, dtype, mode="r", shape=(len(own), len(frame)))
            for place, values in zip(own, np.asarray(mapped), strict=True):
                columns[place] = pd.Series(values, index=frame.index, copy=False)
    except (OSError, ValueError):  # the disk is full; ValueError if only the map shows it
        return frame
    read = pd.DataFrame(dict(enumerate(columns)), index=frame.index, copy=False)
    read.columns = frame.columns
    return read


def mapped_files(features: Any) -> tuple[mmap.mmap, ...]:
    """Return the files from which arrays, or the columns of a table, are mapped for reading."""
    arrays = [features]
    if isinstance(features, pd.DataFrame):
        plain = [isinstance(dtype, np.dtype) for dtype in features.dtypes]
        arrays = [features.iloc[:, place].to_numpy() for place in np.flatnonzero(plain).tolist()]
    found = [mapped for mapped in map(_mapped_file, arrays) if mapped is not None]
    return tuple({id(mapped): mapped for mapped in found}.values())


def _mapped_file(array: NDArray[Any] | None) -> mmap.mmap | None:
    base: Any = array
    while base is not None:
        # only files that are read: changes of a private map would be lost
        if isinstance(base, np.memmap) and base.mode == "r":
            mapped = base._mmap  # type: ignore[attr-defined]
            return mapped if isinstance(mapped, mmap.mmap) else None
        base = base.obj if isinstance(base, memoryview) else getattr(base, "base", None)
    return None


def give_back(mapped: Sequence[mmap.mmap]) -> None:
    """Give the memory of mapped files back; they are read again where they are needed."""
    if hasattr(mmap, "MADV_DONTNEED"):
        for file in mapped:
            file.madvise(mmap.MADV_DONTNEED)


def keep_freed() -> None:
    """Let the C library keep what refits free and ask for again, about 60 MB.

    In the first audit of 200,000 rows in a process, a tenth of the time was spent on getting it anew.
    """
    np.empty(LARGEST_BLOCK, dtype=np.uint8)  # freed at once, and never touched


def trim() -> None:
    """Give freed memory back, which the C library keeps for later if it is in many pieces."""
    malloc_trim = _malloc_trim()
    if malloc_trim is not None:
        malloc_trim(0)


@lru_cache(maxsize=1)
def _malloc_trim() -> Any:
    try:
        return ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):  # another C library than glibc
        return None
