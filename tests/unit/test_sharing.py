"""Rows shared by worker processes: what arrives there is what was sent, read from one file."""

import errno
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import joblib
import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn.linear_model import LogisticRegression

from mlflow_b3.data import table as table_module
from mlflow_b3.data.folds import make_folds
from mlflow_b3.data.losses import resolve_loss
from mlflow_b3.data.table import ModelInputs, prepare
from mlflow_b3.demo import make_clinic
from mlflow_b3.errors import B3Error
from mlflow_b3.measurement import engines, runner
from mlflow_b3.measurement.design import exposures
from mlflow_b3.measurement.engines import CannotShare, NoRoom, share
from mlflow_b3.measurement.refits import Refitter, Resampler, Task
from mlflow_b3.measurement.runner import available_memory, largest_count, table_bytes
from mlflow_b3.refit.sklearn import CloneLearner

N = 20_000
ROWS = np.random.default_rng(0).permutation(N)[: N // 2]


def in_worker(function, *arguments):
    """Return what a function returns in another process."""
    return joblib.Parallel(n_jobs=2)([joblib.delayed(function)(*arguments)])[0]


def data_of(columns=None, **inputs):
    numbers = np.random.default_rng(1).normal(size=(N, 4))
    frame = pd.DataFrame(numbers, columns=list("abcd"))
    frame = frame.assign(**(columns or {}), y=np.arange(N) % 2, g=np.arange(N) // 4)
    return prepare(
        frame, target="y", cluster="g", task="classification", inputs=ModelInputs(**inputs)
    )


def is_mapped(array):
    while array is not None and not isinstance(array, np.memmap):
        array = array.obj if isinstance(array, memoryview) else array.base
    return array is not None


def taken(handle, rows):
    return handle.get().take(rows)


def mapped_columns(handle):
    features = handle.get().features
    return [is_mapped(features[name].to_numpy()) for name in features.columns]


def load_twice(handle):
    return handle.get() is handle.get(), os.getpid()


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Let shared rows lie in a folder of this test's own."""
    monkeypatch.setenv("JOBLIB_TEMP_FOLDER", str(tmp_path))
    return tmp_path


def test_workers_read_columns_from_the_file_and_cannot_write_to_it(folder):
    with share(data_of()) as handle:
        assert all(in_worker(mapped_columns, handle))
        assert not in_worker(lambda h: h.get().features["a"].to_numpy().flags.writeable, handle)
        assert list(folder.glob("mlflow-b3-*")), "in the folder that the user named"
    assert not list(folder.glob("mlflow-b3-*"))


def test_a_process_loads_a_value_once():
    with share(data_of()) as handle:
        same, process = in_worker(load_twice, handle)
    assert same
    assert process != os.getpid()


def test_the_process_that_shares_goes_on_with_the_value_itself():
    data = data_of()
    with share(data) as handle:
        assert handle.get() is data
        assert len(joblib.hash(handle)) == 32, "the handle alone is small"


def test_a_value_whose_sharing_is_over_is_forgotten():
    def known(handle):
        handle.get()
        return len(engines._loaded)

    for _ in range(3):
        with share(data_of()) as handle:
            assert in_worker(known, handle) == 1


def test_the_folder_is_removed_after_an_exception(folder):
    with pytest.raises(ZeroDivisionError), share(data_of()):
        raise ZeroDivisionError
    assert not list(folder.iterdir())


TEXT = [f"word {number % 97}" for number in range(N)]
COLUMNS = {
    "numbers of one dtype": {},
    "32-bit numbers among 64-bit ones": {"e": np.arange(N, dtype=np.float32)},
    "whole numbers and truth values": {"e": np.arange(N), "f": np.arange(N) % 3 == 0},
    "categories, one of them unused": {
        "e": pd.Categorical(
            [f"k{n % 3}" for n in range(N)], categories=["k2", "none", "k0", "k1"], ordered=True
        )
    },
    "text": {"e": TEXT},
    "text with gaps": {"e": pd.Series([None, *TEXT[1:]], dtype="string")},
    "objects": {"e": pd.Series([1, *TEXT[1:]], dtype=object)},
    "nullable numbers": {"e": pd.Series([None, *range(1, N)], dtype="Int64")},
    "Arrow's numbers": {"e": pd.Series([None, *range(1, N)], dtype="int64[pyarrow]")},
    "dates": {"e": pd.date_range("2020-01-01", periods=N, freq="min", tz="Europe/Berlin")},
    "sparse columns": {"e": pd.arrays.SparseArray(np.arange(N) % 50 == 0, dtype="Sparse[bool]")},
}


@pytest.mark.parametrize("columns", COLUMNS.values(), ids=COLUMNS)
@pytest.mark.parametrize("small", [table_module.SMALL, 0], ids=["small table", "large table"])
def test_a_worker_takes_the_rows_that_this_process_takes(columns, small, monkeypatch):
    monkeypatch.setattr(table_module, "SMALL", small)
    data = data_of(columns)
    plain = data.features.iloc[ROWS]
    pd.testing.assert_frame_equal(data.take(ROWS), plain, check_exact=True)
    with share(data) as handle:
        pd.testing.assert_frame_equal(in_worker(taken, handle, ROWS), plain, check_exact=True)


def test_categories_keep_their_order_and_those_without_rows():
    with share(data_of(COLUMNS["categories, one of them unused"])) as handle:
        dtype = in_worker(taken, handle, ROWS[:5])["e"].dtype
    assert dtype.categories.tolist() == ["k2", "none", "k0", "k1"]
    assert dtype.ordered


@pytest.mark.parametrize("small", [table_module.SMALL, 0], ids=["small table", "large table"])
def test_arrays_arrive_as_they_are(small, monkeypatch):
    monkeypatch.setattr(table_module, "SMALL", small)
    data = data_of(as_array=True)
    plain = data.features[ROWS]
    with share(data) as handle:
        for own in (data.take(ROWS), in_worker(taken, handle, ROWS)):
            assert own.dtype == plain.dtype
            assert own.flags.c_contiguous
            assert own.tobytes() == plain.tobytes()


def test_sparse_matrices_arrive_as_they_are():
    matrix = sparse.random(N, 30, density=0.1, format="csr", random_state=0)
    with share(data_of().with_features(matrix)) as handle:
        own = in_worker(taken, handle, ROWS)
    assert own.format == "csr"
    assert (own != matrix[ROWS]).nnz == 0


def test_text_is_read_from_the_file_too():
    with share(data_of({"e": pd.array(TEXT, dtype="string[pyarrow]")})) as handle:
        rest, _ = joblib.load(engines._file(handle.folder))
        assert len(rest) < 5 * N, "less than the text takes"


def test_columns_that_lie_apart_are_read_from_the_file_too():
    numbers = np.arange(8.0 * N).reshape(N, 8)
    with share(numbers[:, ::2]) as handle:
        assert in_worker(lambda h: is_mapped(h.get()), handle)
        assert in_worker(lambda h: h.get().tobytes(), handle) == numbers[:, ::2].tobytes()


def test_functions_of_the_users_script_can_be_shared():
    factor = 3
    with share(lambda x: factor * x) as handle:
        assert in_worker(lambda h: h.get()(2), handle) == 6


def test_what_cannot_be_pickled_is_told_apart(folder):
    with pytest.raises(CannotShare, match="cannot be sent to worker processes: TypeError"):
        share(threading.Lock()).__enter__()
    assert not list(folder.iterdir())


def test_a_full_disk_is_named_with_what_to_do(folder, monkeypatch):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(joblib, "dump", full)
    with pytest.raises(NoRoom, match=r"No space left.*JOBLIB_TEMP_FOLDER.*n_jobs=1") as caught:
        share(data_of()).__enter__()
    assert isinstance(caught.value, B3Error)
    assert not list(folder.iterdir())


def test_a_folder_that_is_not_there_is_named(monkeypatch, tmp_path):
    monkeypatch.setenv("JOBLIB_TEMP_FOLDER", str(tmp_path / "nowhere"))
    with pytest.raises(NoRoom, match="nowhere"):
        share(1).__enter__()


def test_the_folder_of_a_killed_process_is_removed():
    script = """
        import time
        from mlflow_b3.measurement.engines import share
        with share(1) as handle:
            print(handle.folder, flush=True)
            time.sleep(60)
    """
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)], stdout=subprocess.PIPE, text=True
    ) as process:
        shared = Path(process.stdout.readline().strip())
        assert shared.is_dir()
        os.kill(process.pid, signal.SIGKILL)
    for _ in range(100):
        if not shared.exists():
            break
        time.sleep(0.1)
    assert not shared.exists()


def test_refits_in_a_worker_give_the_losses_of_refits_here():
    clinic = make_clinic(patients=30, records=4)
    data = prepare(
        clinic.frame,
        target="disease",
        cluster="patient_id",
        task="classification",
        inputs=ModelInputs(),
    )
    folds = make_folds(data, 3)
    refitter = Refitter(
        data=data,
        learner=CloneLearner(LogisticRegression()),
        loss=resolve_loss("log", "classification"),
        resampler=Resampler(
            folds=folds,
            iid_folds=(),
            clusters=data.clusters,
            exposures=exposures(),
            scheme="subset",
            seed=0,
        ),
    )
    tasks = [Task(purpose, 1, 1, 0) for purpose in ("loco", "rows", "fragments", "test-with")]
    with share(refitter) as handle:
        there = in_worker(lambda h: [h.get().run(task) for task in tasks], handle)
    for own, other in zip([refitter.run(task) for task in tasks], there, strict=True):
        assert own.validation.tobytes() == other.validation.tobytes()
        assert own.held_back.tobytes() == other.held_back.tobytes()


# ---------------------------------------------------------------- how many at the same time


@pytest.mark.parametrize(("free", "count"), [(100.0, 8), (6.5, 3), (1.9, 1), (0.1, 1)])
def test_fewer_refits_run_at_a_time_where_memory_is_short(free, count, monkeypatch):
    data = data_of()
    monkeypatch.setattr(runner, "available_memory", lambda: int(free * table_bytes(data.features)))
    assert largest_count(data, 8) == count


def test_unknown_memory_limits_nothing(monkeypatch):
    monkeypatch.setattr(runner, "available_memory", lambda: None)
    assert largest_count(data_of(), 8) == 8


def test_size_of_tables():
    assert table_bytes(data_of().features) == 8 * 4 * N
    assert table_bytes(data_of(as_array=True).features) == 8 * 4 * N
    matrix = sparse.random(100, 30, density=0.1, format="csr", random_state=0)
    assert table_bytes(matrix) == 300 * (8 + 4) + 101 * 4
    assert table_bytes(pd.DataFrame({"e": pd.Series(TEXT, dtype=object)})) > 8 * N + 50 * N


def write_files(folder, files):
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


@pytest.mark.parametrize(
    ("files", "free"),
    [
        ({}, 3000 * 1024),
        ({"sys/fs/cgroup/memory.max": "max\n", "sys/fs/cgroup/memory.current": "7\n"}, 3000 * 1024),
        (
            {
                "sys/fs/cgroup/a/memory.max": "2000\n",
                "sys/fs/cgroup/a/memory.current": "1500\n",
                "sys/fs/cgroup/a/memory.stat": "anon 9\ninactive_file 100\n",
            },
            600,
        ),
        (
            {
                "proc/self/cgroup": "4:memory:/b\n1:cpu:/b\n",
                "sys/fs/cgroup/memory/b/memory.limit_in_bytes": "2000\n",
                "sys/fs/cgroup/memory/b/memory.usage_in_bytes": "500\n",
            },
            1500,
        ),
    ],
    ids=["machine", "no limit", "version 2", "version 1"],
)
def test_available_memory_is_the_least_that_machine_and_container_allow(
    files, free, tmp_path, monkeypatch
):
    meminfo = "MemTotal: 9000 kB\nMemAvailable: 3000 kB\n"
    write_files(tmp_path, {"proc/meminfo": meminfo, "proc/self/cgroup": "0::/a\n", **files})
    monkeypatch.setattr(runner, "SYSTEM", tmp_path)
    assert available_memory() == free


def test_this_machine_says_how_much_memory_it_has():
    assert available_memory() > 0
