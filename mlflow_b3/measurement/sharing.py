"""Rows for worker processes of this machine: written once, and read from there by all of them."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from pickle import PickleBuffer
from threading import Lock
from typing import Any

import cloudpickle
import numpy as np
from joblib.externals.loky.backend import resource_tracker
from numpy.typing import NDArray

from mlflow_b3.errors import B3Error

#: Bytes from which on an array is a file of its own; smaller ones travel with the rest.
LARGE = 2**16
REST = "value.pickle"

_loaded: dict[str, Any] = {}  # what this process has, by folder
_lock = Lock()


class CannotShare(B3Error):  # noqa: N818 - reads as what it says
    """A value cannot be pickled, so that it must be used where it is."""


class NoRoom(B3Error):  # noqa: N818 - reads as what it says
    """The folder for shared rows cannot be written, or its disk is full."""


@dataclass(frozen=True)
class Shared:
    """A small handle of a shared value, which can be sent to other processes of this machine."""

    folder: str

    def get(self) -> Any:
        """Return the value; a process loads it once, with large arrays as read-only memory maps."""
        with _lock:
            if self.folder not in _loaded:
                for other in [name for name in _loaded if not os.path.isdir(name)]:
                    del _loaded[other]  # its sharing is over
                _loaded[self.folder] = _read(Path(self.folder))
            return _loaded[self.folder]


@contextmanager
def share(value: Any) -> Iterator[Shared]:
    """Share a value with worker processes of this machine for as long as the context lasts.

    Its large arrays, wherever in it they are, become files in a temporary folder, from which any
    number of processes maps them into memory once. This process goes on with the value itself.

    Parameters
    ----------
    value : object
        What cloudpickle can pickle: functions of the user's own script or notebook too.

    Raises
    ------
    CannotShare
        When it cannot be pickled.
    NoRoom
        When the folder has no room for it.

    Notes
    -----
    The folder is made in that of `JOBLIB_TEMP_FOLDER`, or else in the system's for temporary files;
    not in /dev/shm, which is memory. It is removed at the end, also of a process that was killed.
    """
    parent = os.environ.get("JOBLIB_TEMP_FOLDER") or tempfile.gettempdir()
    try:
        folder = tempfile.mkdtemp(prefix="mlflow-b3-", dir=parent)
    except OSError as error:
        raise _no_room(parent, error) from error
    resource_tracker.register(folder, "folder")
    try:
        _write(value, Path(folder))
        with _lock:
            _loaded[folder] = value
        yield Shared(folder)
    finally:
        with _lock:
            _loaded.pop(folder, None)
        shutil.rmtree(folder, ignore_errors=True)
        resource_tracker.unregister(folder, "folder")


def _write(value: Any, folder: Path) -> None:
    try:
        with (folder / REST).open("wb") as file:
            _Pickler(file, folder).dump(value)
    except OSError as error:
        raise _no_room(str(folder), error) from error
    except Exception as error:  # whatever a foreign object raises
        raise CannotShare(
            f"the refits cannot be sent to worker processes: {type(error).__name__}: {error}"
        ) from error


def _no_room(folder: str, error: OSError) -> NoRoom:
    return NoRoom(
        f"the rows that workers share cannot be written to {folder!r}: {error}. Make room there, "
        "name a folder with room in the environment variable JOBLIB_TEMP_FOLDER, or use n_jobs=1."
    )


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Writes large arrays, and large buffers such as those of text, to files of their own."""

    def __init__(self, file: Any, folder: Path) -> None:
        super().__init__(file, protocol=5, buffer_callback=self._keep)
        self._folder = folder
        self._arrays = self._buffers = 0

    def reducer_override(self, obj: Any) -> Any:
        plain = type(obj) in (np.ndarray, np.memmap) and not obj.dtype.hasobject
        if not plain or obj.nbytes < LARGE:
            return super().reducer_override(obj)
        path = self._folder / f"{self._arrays}.npy"
        self._arrays += 1
        np.save(path, obj, allow_pickle=False)
        return _mapped, (str(path),)

    def _keep(self, buffer: PickleBuffer) -> bool:
        """Return whether a buffer stays with the rest."""
        raw = buffer.raw()
        if raw.nbytes < LARGE:
            return True
        (self._folder / f"{self._buffers}.buffer").write_bytes(raw)
        self._buffers += 1
        return False


def _read(folder: Path) -> Any:
    count = len(list(folder.glob("*.buffer")))
    buffers = [np.memmap(folder / f"{number}.buffer", mode="r") for number in range(count)]
    with (folder / REST).open("rb") as file:
        return cloudpickle.load(file, buffers=buffers)


def _mapped(path: str) -> NDArray[Any]:
    return np.asarray(np.load(path, mmap_mode="r"))
