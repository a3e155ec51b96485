"""Posterior samples of linkage tools: read from their files, and counted."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mlflow_b3.errors import InputError
from mlflow_b3.linkage import leak_from_partition_samples, leak_truth, read_partition_samples

pytestmark = pytest.mark.newest

IDS = ["p1", "p2", "p3", "p4", "p5"]
#: Two samples of five records: {p1 p2} {p3} {p4 p5}, then {p1 p2 p3} {p4} {p5}.
SAMPLES = np.array([[0, 0, 1, 2, 2], [0, 0, 0, 1, 2]])
FOLDS = [0, 0, 1, 1, 0]


def same_partitions(first, second):
    return all(
        np.array_equal(a[:, None] == a, b[:, None] == b) for a, b in zip(first, second, strict=True)
    )


def test_shares_are_counted_in_every_sample():
    estimate = leak_from_partition_samples(SAMPLES, FOLDS)
    truths = [leak_truth(sample, FOLDS) for sample in SAMPLES]
    assert estimate.train.point == pytest.approx(np.mean([truth.p0 for truth in truths]))
    assert estimate.validation.point == pytest.approx(
        np.mean([truth.p0_validation for truth in truths])
    )
    # p4 and p5 are apart in sample 0; p3 is apart from p1 and p2 in sample 1.
    assert estimate.row_probability == (0.5, 0.5, 0.5, 0.5, 0.5)
    assert estimate.kind == "estimate"
    assert "as good as their model" in estimate.notes[0]
    assert estimate.fragments is None


def test_intervals_are_quantiles_of_the_samples():
    rng = np.random.default_rng(0)
    samples = rng.integers(0, 60, (200, 80))
    folds = np.arange(80) % 4
    draws = [leak_truth(sample, folds).p0 for sample in samples]
    estimate = leak_from_partition_samples(samples, folds, level=0.8)
    assert (estimate.train.low, estimate.train.high) == pytest.approx(
        tuple(np.quantile(draws, [0.1, 0.9]))
    )


def test_probabilities_are_of_rows_when_they_are_validated():
    """p5 is never validated; the others are once, in two splits of three."""
    splits = [([2, 3, 4], [0, 1]), ([0, 1, 4], [2, 3])]
    estimate = leak_from_partition_samples(SAMPLES, splits)
    assert estimate.row_probability == (0.5, 0.5, 0.5, 0.5, 0.0)


def test_fragments_are_found_with_the_predicted_clusters():
    clusters = ["a", "a", "b", "c", "d"]
    estimate = leak_from_partition_samples(SAMPLES, [0, 0, 1, 1, 0], clusters=clusters)
    # p4, p5: 1/2 each; p1, p2: 2/3 each; p3: 1/3.
    assert set(np.round(estimate.fragments, 3)) == {0.333, 0.5, 0.667}
    with pytest.raises(InputError, match="allow_split=True"):
        leak_from_partition_samples(SAMPLES, [0, 1, 1, 1, 0], clusters=clusters)


def test_wrong_samples_are_refused():
    with pytest.raises(InputError, match="samples by rows"):
        leak_from_partition_samples([0, 1], FOLDS)
    with pytest.raises(InputError, match="missing in samples 1"):
        leak_from_partition_samples([[0, 1.0], [np.nan, 1.0]], [0, 1])


def test_arrays_are_read_as_they_are():
    assert same_partitions(read_partition_samples(SAMPLES + 7, IDS), SAMPLES)
    with pytest.raises(InputError, match="5 columns; there are 4 rows"):
        read_partition_samples(SAMPLES, IDS[:4])


def test_wide_tables_have_a_column_for_each_record(tmp_path):
    wide = pd.DataFrame(SAMPLES, columns=IDS)[IDS[::-1]].assign(iteration=[10, 20])
    wide.to_csv(tmp_path / "wide.csv", index=False)
    wide.to_parquet(tmp_path / "wide.parquet")
    for source in (wide, tmp_path / "wide.csv", str(tmp_path / "wide.parquet")):
        assert same_partitions(read_partition_samples(source, IDS), SAMPLES)


def test_the_matrix_of_blink_is_read_as_r_writes_it(tmp_path):
    """`write.csv(lam.gs, "chain.csv")`: columns V1 … Vn behind the numbers of the rows."""
    (tmp_path / "chain.csv").write_text(
        '"","V1","V2","V3","V4","V5"\n"1",4,4,9,2,2\n"2",1,1,1,5,3\n', encoding="utf-8"
    )
    assert same_partitions(read_partition_samples(tmp_path / "chain.csv", IDS), SAMPLES)


def test_long_tables_have_a_row_for_each_record_and_sample(tmp_path):
    """Samples are put in the order of their numbers, also when those were read as text."""
    rows = [
        (iteration, IDS[row], f"e{entity}")
        for iteration, sample in zip((9, 10), SAMPLES, strict=True)
        for row, entity in enumerate(sample)
    ]
    long = pd.DataFrame(rows, columns=["iteration", "record_id", "entity"])
    shuffled = long.sample(frac=1, random_state=0)
    shuffled.to_csv(tmp_path / "long.csv", index=False)
    for source in (shuffled, tmp_path / "long.csv"):
        assert same_partitions(read_partition_samples(source, IDS), SAMPLES)


def test_ids_are_compared_without_what_readers_of_files_add():
    long = pd.DataFrame({"sample": [1, 1], "record": [1.0, 2.0], "entity": [7, 7]})
    wide = pd.DataFrame([[7, 7]], columns=[1.0, 2.0])
    for table in (long, wide):
        assert read_partition_samples(table, [1, 2]).tolist() == [[0, 0]]
    padded = long.assign(record=["a ", "b"])
    assert read_partition_samples(padded, ["a ", "b"]).tolist() == [[0, 0]]


CHAIN = [
    (0, 0, [["p1", "p2"], ["p3"]]),
    (0, 1, [["p5", "p4"], []]),
    (5, 0, [["p3", "p1", "p2"]]),
    (5, 1, [["p5"], ["p4"]]),
]


@pytest.mark.parametrize("by_entity", [False, True])
def test_the_linkage_chain_of_dblink_is_read(tmp_path, by_entity):
    """A folder for each partition; lists of records, or in older versions a map from entities."""
    kind = pa.list_(pa.list_(pa.string()))
    structures = [structure for *_, structure in CHAIN]
    if by_entity:
        kind = pa.map_(pa.int64(), pa.list_(pa.string()))
        structures = [list(enumerate(structure)) for structure in structures]
    table = pa.table(
        {
            "iteration": pa.array([row[0] for row in CHAIN], pa.int64()),
            "partitionId": pa.array([row[1] for row in CHAIN], pa.int32()),
            "linkageStructure": pa.array(structures, kind),
        }
    )
    pq.write_to_dataset(table, tmp_path / "linkage-chain.parquet", partition_cols=["partitionId"])
    read = read_partition_samples(tmp_path / "linkage-chain.parquet", IDS)
    assert same_partitions(read, SAMPLES)


def test_errors_say_which_samples_and_ids_are_wrong(tmp_path):
    chain = pd.DataFrame(CHAIN, columns=["iteration", "partitionId", "linkageStructure"])
    with pytest.raises(InputError, match="not among ids: p5"):
        read_partition_samples(chain, IDS[:4])
    with pytest.raises(InputError, match="2 do not: p6 in sample 0, p6 in sample 5"):
        read_partition_samples(chain, [*IDS, "p6"])
    twice = pd.concat([chain, chain.iloc[[3]]])
    with pytest.raises(InputError, match="p4 in sample 5, p5 in sample 5"):
        read_partition_samples(twice, IDS)
    with pytest.raises(InputError, match=r"1 of 5 records are not among ids: q1\. A column for"):
        read_partition_samples(pd.DataFrame(SAMPLES, columns=["q1", *IDS[1:]]), IDS)
    with pytest.raises(InputError, match="1 occur more than once: p1"):
        read_partition_samples(SAMPLES, ["p1", "p1", "p2", "p3", "p4"])
    with pytest.raises(InputError, match=r"samples: .*chain.csv' does not exist"):
        read_partition_samples(tmp_path / "chain.csv", IDS)
    (tmp_path / "chain.txt").write_text("", encoding="utf-8")
    with pytest.raises(InputError, match="unknown ending"):
        read_partition_samples(tmp_path / "chain.txt", IDS)


def test_broken_files_and_ragged_samples_are_errors_in_words(tmp_path):
    path = tmp_path / "samples.csv"
    path.write_text("")
    with pytest.raises(InputError, match=r"samples: .* cannot be read"):
        read_partition_samples(path, ["a", "b"])
    with pytest.raises(InputError, match="different numbers of rows"):
        read_partition_samples([[1, 2], [1]], ["a", "b"])


def long_table():
    rows = [(s, IDS[row], entity) for s in (0, 1) for row, entity in enumerate(SAMPLES[s])]
    return pd.DataFrame(rows, columns=["sample", "record", "entity"])


FORMS = {
    "wide": pd.DataFrame(SAMPLES, columns=IDS),
    "long": long_table(),
    "dblink": pd.DataFrame(CHAIN, columns=["iteration", "partitionId", "linkageStructure"]),
}


@pytest.mark.parametrize("form", FORMS)
def test_samples_of_more_records_are_cut_to_the_audited_ones(form):
    """The partition of some rows is that of all of them, restricted."""
    read = read_partition_samples(FORMS[form], ["p4", "p1", "p3"], ignore_unknown=True)
    assert same_partitions(read, SAMPLES[:, [3, 0, 2]])
    with pytest.raises(InputError, match="2 of 5 records are not among ids: p2, p5"):
        read_partition_samples(FORMS[form], ["p4", "p1", "p3"])
    with pytest.raises(InputError, match="p6"):  # it is in no sample
        read_partition_samples(FORMS[form], ["p4", "p6"], ignore_unknown=True)


@pytest.mark.parametrize("form", FORMS)
def test_samples_of_other_records_are_refused_in_any_case(form):
    words = r"5 of 5 records are not among ids: p1, .*Ids are like 0, 1 …: wrong row_id"
    with pytest.raises(InputError, match=words):
        read_partition_samples(FORMS[form], range(300), ignore_unknown=True)


def test_samples_of_many_missing_ids_are_told_in_a_few_words():
    ids = [*IDS, *(f"q{row}" for row in range(500))]
    with pytest.raises(InputError, match="500 of 505 ids have no column: q0, q1") as error:
        read_partition_samples(FORMS["wide"], ids)
    assert len(str(error.value)) < 300
