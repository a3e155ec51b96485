"""Large tables are not copied more often than needed, and give what small ones give."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier
from sklearn.utils import check_array

import mlflow_b3 as b3
from mlflow_b3.data import table as table_module
from mlflow_b3.data.folds import Fold, digest_folds
from mlflow_b3.data.memory import map_columns, mapped_files
from mlflow_b3.data.table import ModelInputs, RowCopies, digest_table, prepare, read_table
from mlflow_b3.demo import FEATURES, make_clinic
from mlflow_b3.measurement import collecting
from mlflow_b3.measurement.collecting import RowMeans, UnitTotals, by_unit

N = 200
COLUMNS = {"target": "disease", "cluster": "patient_id"}


@pytest.fixture
def _large(monkeypatch):
    """Treat every table as a large one."""
    monkeypatch.setattr(table_module, "SMALL", 0)


def table(order="F"):
    numbers = np.array(np.random.default_rng(0).normal(size=(N, 5)), order=order)
    frame = pd.DataFrame(numbers, columns=list("abcde"), copy=False)
    return frame.assign(y=np.arange(N) % 2, g=np.arange(N) // 4)


def prepared(frame, **inputs):
    return prepare(
        frame, target="y", cluster="g", task="classification", inputs=ModelInputs(**inputs)
    )


# ---------------------------------------------------------------- one copy of rows


@pytest.mark.usefixtures("_large")
@pytest.mark.parametrize("columns", [None, ("b", "c", "d"), ("d", "a", "e")], ids=str)
def test_features_are_the_users_own_columns(columns):
    frame = table()
    data = prepared(frame, columns=columns)
    for name in columns or "abcde":
        assert np.shares_memory(data.features[name].to_numpy(), frame[name].to_numpy())
    assert list(frame.columns) == [*"abcde", "y", "g"], "the user's table stays as it was"


@pytest.mark.usefixtures("_large")
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.int64, bool])
def test_rows_are_copied_once_in_the_order_that_scikit_learn_asks_for(order, dtype):
    frame = table(order).astype(dict.fromkeys("abcde", dtype))
    data = prepared(frame)
    rows = np.array([7, 3, 150, 3])
    taken = data.take(rows)
    pd.testing.assert_frame_equal(taken, data.features.iloc[rows], check_exact=True)
    if dtype == np.float64:
        checked = check_array(taken, order="C", dtype=np.float64)
        assert np.shares_memory(checked, taken.to_numpy())


@pytest.mark.usefixtures("_large")
@pytest.mark.parametrize("loss", ["zero_one", "log"])
def test_large_tables_give_the_numbers_of_small_ones(loss, monkeypatch):
    clinic = make_clinic(patients=30, records=4)
    X, y = clinic.frame[list(FEATURES)], clinic.frame["disease"]
    for model in (LogisticRegression().fit(X.to_numpy(), y), KNeighborsClassifier(3).fit(X, y)):
        loss = "zero_one" if isinstance(model, KNeighborsClassifier) else loss
        large = b3.audit(model, clinic.frame, loss=loss, budget=120, **COLUMNS)
        with monkeypatch.context() as patch:
            patch.setattr(table_module, "SMALL", 2**25)
            small = b3.audit(model, clinic.frame, loss=loss, budget=120, **COLUMNS)
        assert large == small, "bit for bit"


@pytest.mark.usefixtures("_large")
def test_a_table_with_columns_of_many_kinds_is_left_to_pandas():
    frame = table().assign(f=pd.Categorical(np.arange(N) % 3, categories=[2, 9, 0, 1]))
    data = prepared(frame)
    taken = data.take(np.array([5, 4]))
    assert taken["f"].dtype == frame["f"].dtype
    pd.testing.assert_frame_equal(taken, data.features.iloc[[5, 4]])


# ---------------------------------------------------------------- memory that is given back


def saved(tmp_path, kind):
    clinic = make_clinic(patients=30, records=4).frame
    path = tmp_path / f"clinic.{kind}"
    clinic.to_parquet(path) if kind == "parquet" else clinic.to_csv(path, index=False)
    return path


@pytest.mark.usefixtures("_large")
@pytest.mark.parametrize("kind", ["parquet", "csv"])
def test_a_large_file_is_mapped_and_gives_the_numbers_of_a_table_in_memory(
    kind, tmp_path, monkeypatch
):
    path, model = saved(tmp_path, kind), KNeighborsClassifier(3)
    assert mapped_files(read_table(path))
    large = b3.audit(model, path, cluster_error=0.1, **COLUMNS)
    monkeypatch.setattr(table_module, "SMALL", 2**25)
    assert not mapped_files(read_table(path))
    small = b3.audit(model, path, cluster_error=0.1, **COLUMNS)
    assert (large.e0, large.loco, large.iid) == (small.e0, small.loco, small.iid)
    assert large.subject.data_digest == small.subject.data_digest


@pytest.mark.usefixtures("_large")
def test_models_that_write_into_what_they_predict_are_compared_with_refits_of_mapped_rows(tmp_path):
    class Careless(LogisticRegression):
        def predict_proba(self, X):
            X.iloc[0, 0] *= 1.0
            return super().predict_proba(X)

    path, names = saved(tmp_path, "parquet"), list(FEATURES)
    assert mapped_files(read_table(path))
    frame = pd.read_parquet(path)
    model = Careless(max_iter=1000).fit(frame[names], frame["disease"])
    report = b3.audit(model, path, loss="log", budget=10, cluster_error=0.1, **COLUMNS)
    assert report.refit.agreement == pytest.approx(1)


def test_rows_of_a_mapped_file_are_there_again_after_their_memory_was_given_back(tmp_path):
    frame = table()
    frame.to_parquet(tmp_path / "t.parquet")
    data = prepared(read_table(tmp_path / "t.parquet"))
    rows = np.array([7, 3, 150, 3])
    for _ in range(2):
        data.give_back()
        pd.testing.assert_frame_equal(
            data.take(rows), prepared(frame).take(rows), check_names=False
        )


def test_what_was_changed_in_a_private_map_is_not_given_back(tmp_path):
    """The file does not have it."""
    np.zeros((4, 3)).tofile(tmp_path / "numbers")
    private = np.memmap(tmp_path / "numbers", dtype=float, mode="c", shape=(4, 3))
    private[2, 1] = 5
    taken = RowCopies(private).take(np.arange(4))
    assert RowCopies(private).mapped == ()
    assert taken[2, 1] == private[2, 1] == 5


def test_without_room_for_a_file_a_table_stays_in_memory(monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    frame = table()
    monkeypatch.setattr("tempfile.TemporaryFile", full)
    assert map_columns(frame) is frame


# ---------------------------------------------------------------- reading and digests

KINDS = {
    "a": np.arange(N, dtype=float),
    "b": pd.array([None, *range(1, N)], dtype="Int64"),
    "c": pd.array([None, *range(1, N)], dtype="int64[pyarrow]"),
    "d": pd.Categorical([f"k{n % 3}" for n in range(N)], categories=["k2", "x", "k1", "k0"]),
    "e": [f"text {n % 7}" for n in range(N)],
    "f": pd.Series([None, *map(str, range(1, N))], dtype=object),
    "g": pd.Series([1, "1", *range(2, N)], dtype=object),
    "h": pd.date_range("2020-01-01", periods=N, tz="UTC"),
    "i": pd.arrays.SparseArray(np.arange(N) % 9 == 0),
    "j": pd.array([None, *map(str, range(1, N))], dtype="string"),
}


@pytest.mark.parametrize("names", [*KINDS, "abdefghij"])
def test_digest_does_not_depend_on_how_many_rows_are_hashed_at_a_time(names, monkeypatch):
    frame = pd.DataFrame({name: KINDS[name] for name in names})
    whole = digest_table(frame)
    monkeypatch.setattr(table_module, "CHUNK", 7)
    assert digest_table(frame) == whole


def test_digests_are_those_of_earlier_versions():
    assert digest_table(table().round(3)) == "cd3f564e687fb2e53ed538c95ed9e0b09c1c"
    assert prepared(table()).rows_digest == "ad4e0b9e128cd2cd"
    assert prepared(table().assign(y=list("ab") * (N // 2))).rows_digest == "af2eaecd1e435811"


@pytest.mark.parametrize("target", [[0, 1] * 100, [0.5, 1.0] * 100, ["a", "b"] * 100], ids=repr)
def test_digest_of_rows_does_not_depend_on_how_many_are_read_at_a_time(target, monkeypatch):
    data = prepared(table()).with_features(None)
    object.__setattr__(data, "target", np.array(target))
    whole = data.rows_digest
    monkeypatch.setattr(table_module, "CHUNK", 7)
    assert data.rows_digest == whole


FILES = {
    "plain": pd.DataFrame({n: v for n, v in KINDS.items() if n not in "gi"}),
    "named index": table().set_index(pd.Index(np.arange(N) // 2, name="visit")),
    "numbered columns": pd.DataFrame(np.eye(40)),
    "dots in names": pd.DataFrame({"a.b": [1.0, 2.0], "a": [3.0, 4.0]}),
    "named columns": table().rename_axis(columns="measurements"),
}


@pytest.mark.usefixtures("_large")
@pytest.mark.parametrize("frame", FILES.values(), ids=FILES)
def test_a_file_read_in_parts_is_the_file(frame, tmp_path):
    frame.to_parquet(tmp_path / "t.parquet")
    whole = pd.read_parquet(tmp_path / "t.parquet")
    pd.testing.assert_frame_equal(read_table(tmp_path / "t.parquet"), whole, check_exact=True)


# ---------------------------------------------------------------- folds and losses


def test_row_numbers_of_folds_take_four_bytes_and_have_the_same_digest():
    rows = np.arange(10)
    fold = Fold(training=rows[3:], validation=rows[:3])
    assert fold.training.dtype == fold.validation.dtype == np.int32
    wide = SimpleNamespace(training=rows[3:], validation=rows[:3])
    assert digest_folds([fold]) == digest_folds([wide])


def test_row_numbers_beyond_32_bits_stay_as_they_are():
    fold = Fold(training=np.array([2**31]), validation=np.array([0]))
    assert fold.training.tolist() == [2**31]


def test_losses_that_are_whole_numbers_take_a_byte_until_they_need_more(monkeypatch):
    monkeypatch.setattr("mlflow_b3.measurement.collecting.FEW_PLACES", 0)
    means = RowMeans(np.arange(3), 2)
    for _ in range(300):
        means.add(np.array([0, 2]), 0, np.array([1.0, 0.0]))
    assert means.sums.dtype == means.counts.dtype == np.uint16
    assert means.sums[:, 0].tolist() == [300, 0, 0]
    means.add(np.array([1]), 1, np.array([0.25]))
    assert means.sums.dtype == float
    np.testing.assert_array_equal(means.means, [[1, np.nan], [np.nan, 0.25], [0, np.nan]])


@pytest.mark.parametrize("loss", [-1.0, 2.0**40, 1e300, 0.5], ids=str)
@pytest.mark.parametrize("few", [0, 10])
def test_other_losses_are_kept_as_they_are(loss, few, monkeypatch):
    monkeypatch.setattr("mlflow_b3.measurement.collecting.FEW_PLACES", few)
    means = RowMeans(np.arange(2), 1)
    means.add(np.arange(2), 0, np.array([loss, 1.0]))
    assert means.means[:, 0].tolist() == [loss, 1.0]


@pytest.mark.parametrize("whole", [True, False])
def test_losses_summed_by_cluster_are_those_summed_row_by_row(whole, monkeypatch):
    rng = np.random.default_rng(0)
    rows, clusters = np.arange(0, 400, 2), np.repeat(np.arange(40), 5)
    by_row = UnitTotals(rows, clusters, 3)
    monkeypatch.setattr(collecting, "ROW_BY_ROW", 0)
    by_cluster = UnitTotals(rows, clusters, 3)
    for level in (1, 2, 1):
        chosen = np.sort(rng.choice(200, 60, replace=False))
        losses = rng.integers(0, 3, 60).astype(float) if whole else rng.normal(size=60)
        for totals in (by_row, by_cluster):
            totals.add(rows[chosen], clusters[chosen], level, losses)
    assert by_cluster.sums.shape == (40, 3)
    summed = by_unit(by_row.sums.astype(float), by_row.units, 40)
    np.testing.assert_allclose(by_cluster.sums, summed, rtol=0, atol=1e-12)
    counted = by_unit(by_row.counts.astype(float), by_row.units, 40)
    np.testing.assert_array_equal(by_cluster.counts, counted)


def test_an_audit_that_sums_by_cluster_has_the_numbers_of_one_that_does_not(monkeypatch):
    clinic = make_clinic(patients=30, records=4)
    model = LogisticRegression()
    row_by_row = b3.audit(model, clinic.frame, loss="log", budget=120, **COLUMNS)
    monkeypatch.setattr(collecting, "ROW_BY_ROW", 0)
    by_cluster = b3.audit(model, clinic.frame, loss="log", budget=120, **COLUMNS)
    assert by_cluster.curve.loss == row_by_row.curve.loss
    np.testing.assert_allclose(by_cluster.curve.covariance, row_by_row.curve.covariance, rtol=1e-9)
