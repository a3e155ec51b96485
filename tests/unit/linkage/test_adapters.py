"""Pair tables of linkage tools become pairs of rows."""

import numpy as np
import pandas as pd
import pytest

from mlflow_b3 import InputError
from mlflow_b3.linkage import PairTable, from_pairs, from_splink, read_pairs
from mlflow_b3.linkage.pairs import from_dedupe, from_recordlinkage

IDS = ["p7", "p3", "p9"]
TABLE = pd.DataFrame({"id_1": ["p9", "p7"], "id_2": ["p3", "p9"], "probability": [0.25, 0.5]})
SPLINK = pd.DataFrame(
    {
        "match_weight": [1.0, -2.0],
        "match_probability": [2 / 3, 0.2],
        "unique_id_l": ["p7", "p3"],
        "unique_id_r": ["p3", "p9"],
        "surname_l": ["a", "b"],
        "surname_r": ["a", "c"],
    }
)


def listed(pairs):
    assert isinstance(pairs, PairTable)
    return list(
        zip(pairs.first.tolist(), pairs.second.tolist(), pairs.probability.tolist(), strict=True)
    )


# --- any table ------------------------------------------------------------------------------------


def test_ids_become_row_numbers():
    pairs = from_pairs(TABLE, IDS)
    assert listed(pairs) == [(1, 2, 0.25), (0, 2, 0.5)]
    assert pairs.n == 3


def test_columns_can_be_named():
    renamed = TABLE.rename(columns={"id_1": "here", "id_2": "there", "probability": "chance"})
    assert listed(from_pairs(renamed, IDS, ("here", "there", "chance"))) == listed(
        from_pairs(TABLE, IDS)
    )
    with pytest.raises(InputError, match=r"unique_id_l/unique_id_r.*id_1/id_2.*'here', 'there'"):
        from_pairs(renamed, IDS)
    with pytest.raises(InputError, match="no probability under match_probability"):
        from_pairs(TABLE.rename(columns={"probability": "chance"}), IDS)
    with pytest.raises(InputError, match="the table has no 'id_9'"):
        from_pairs(TABLE, IDS, ("id_9", "id_2", "probability"))
    with pytest.raises(InputError, match="must name"):
        from_pairs(TABLE, IDS, ("id_1", "id_2"))


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_files_are_read(tmp_path, suffix):
    path = tmp_path / f"pairs.{suffix}"
    TABLE.to_csv(path, index=False) if suffix == "csv" else TABLE.to_parquet(path)
    assert listed(read_pairs(path, IDS)) == listed(read_pairs(str(path), IDS))
    assert listed(read_pairs(path, IDS)) == listed(from_pairs(TABLE, IDS))
    with pytest.raises(InputError, match="pair table: there is no file"):
        read_pairs(tmp_path / "nothing.csv", IDS)


def test_leading_zeros_of_a_file_are_part_of_the_id(tmp_path):
    path = tmp_path / "pairs.csv"
    path.write_text("id_1,id_2,p\n007,7,0.5\n")
    assert listed(read_pairs(path, ["7", "007"])) == [(0, 1, 0.5)]


@pytest.mark.parametrize(
    "ids", [[12, 5], ["12", "5"], np.array([12, 5]), pd.Index([12.0, 5.0]), pd.Series(["12", "5"])]
)
@pytest.mark.parametrize("kind", [int, str, float])
def test_numbers_and_their_text_are_one_id(ids, kind):
    table = pd.DataFrame({"id_1": [5], "id_2": [12], "p": [0.5]})
    table = table.astype({"id_1": kind, "id_2": kind})
    assert listed(from_pairs(table, ids)) == [(0, 1, 0.5)]


def test_text_is_not_matched_where_it_would_be_ambiguous():
    table = pd.DataFrame({"id_1": ["1"], "id_2": ["2"], "p": [0.5]})
    assert listed(from_pairs(table, [1, "1", "2"])) == [(1, 2, 0.5)]
    with pytest.raises(InputError, match="1 ids are in no row"):
        from_pairs(table, [1, "1", 2])


def test_unknown_ids_are_counted_and_shown():
    with pytest.raises(InputError, match="2 ids are in no row of the audited table: 'p9', 'p7'"):
        from_pairs(TABLE, ["p3", "p4"])
    some = from_pairs(TABLE, ["p3", "p9"], ignore_unknown=True)
    assert listed(some) == [(0, 1, 0.25)]
    assert some.n == 2
    assert some.left_out == 1
    assert from_pairs(TABLE, IDS).left_out == 0


def test_ids_must_be_unique_and_there():
    with pytest.raises(InputError, match="2 problems") as error:
        from_pairs(TABLE, ["p3", "p3", None])
    assert "more than once: 'p3'" in str(error.value)
    with pytest.raises(InputError, match="1 ids of the pair table are missing"):
        from_pairs(TABLE.assign(id_1=["p9", None]), IDS)
    with pytest.raises(InputError, match="1 values of 'probability' are not numbers"):
        from_pairs(TABLE.assign(probability=["0.5", "high"]), IDS)
    with pytest.raises(InputError, match="1 match probabilities"):
        from_pairs(TABLE.assign(probability=[0.5, 1.5]), IDS)


# --- Splink ---------------------------------------------------------------------------------------


def test_predictions_of_splink_are_read():
    assert listed(from_splink(SPLINK, IDS)) == [(0, 1, 2 / 3), (1, 2, 0.2)]
    weights = from_splink(SPLINK.drop(columns="match_probability"), IDS)
    assert weights.probability == pytest.approx([2 / 3, 0.2])


def test_a_splink_dataframe_is_asked_for_its_table():
    class SplinkDataFrame:
        def as_pandas_dataframe(self):
            return SPLINK

    assert listed(read_pairs(SplinkDataFrame(), IDS)) == listed(from_splink(SPLINK, IDS))


@pytest.mark.flavours
def test_splink_itself():
    pytest.importorskip("splink")
    from splink import DuckDBAPI, Linker, SettingsCreator, block_on
    from splink import comparison_library as cl

    people = pd.DataFrame(
        {
            "unique_id": [11, 12, 13, 14],
            "name": ["ann", "ann", "bob", "bob"],
            "town": ["x", "x", "x", "y"],
        }
    )
    settings = SettingsCreator(
        link_type="dedupe_only",
        comparisons=[cl.ExactMatch("name"), cl.ExactMatch("town")],
        blocking_rules_to_generate_predictions=[block_on("name"), block_on("town")],
    )
    api = DuckDBAPI()
    predictions = Linker(api.register(people), settings).inference.predict()
    pairs = read_pairs(predictions, people["unique_id"])
    assert set(zip(pairs.first.tolist(), pairs.second.tolist(), strict=True)) == {
        (0, 1),
        (0, 2),
        (1, 2),
        (2, 3),
    }


def test_splink_may_call_its_ids_otherwise():
    renamed = SPLINK.rename(columns={"unique_id_l": "person_l", "unique_id_r": "person_r"})
    assert listed(from_splink(renamed, IDS, id_column="person")) == listed(from_splink(SPLINK, IDS))
    with pytest.raises(InputError, match="unique_id_column_name"):
        from_splink(renamed, IDS)


def named(table, name):
    return table.rename(columns={f"unique_id_{side}": f"{name}_{side}" for side in "lr"})


def test_the_name_of_the_ids_of_splink_may_be_that_of_the_rows():
    """Where it is not, it does no harm."""
    expected = listed(from_splink(SPLINK, IDS))
    assert listed(read_pairs(named(SPLINK, "person"), IDS, id_column="person")) == expected
    assert listed(read_pairs(SPLINK, IDS, id_column="person")) == expected
    assert listed(read_pairs(TABLE, IDS, id_column="person")) == listed(from_pairs(TABLE, IDS))
    both = SPLINK.assign(person_l=["p3", "p9"], person_r=["p9", "p7"])
    assert listed(read_pairs(both, IDS, id_column="person")) == [(1, 2, 2 / 3), (0, 2, 0.2)]


@pytest.mark.parametrize("left_out", ["match_probability", "match_weight"])
def test_the_only_columns_of_two_sides_hold_the_ids(left_out):
    alone = named(SPLINK, "person").drop(columns=["surname_l", "surname_r", left_out])
    alone = alone.assign(source_dataset_l="a", source_dataset_r="a", gamma_l=1)
    pairs = read_pairs(alone, IDS)
    assert (pairs.first.tolist(), pairs.second.tolist()) == ([0, 1], [1, 2])


def test_several_columns_of_two_sides_are_not_guessed_at():
    with pytest.raises(InputError, match=r"'person', 'surname'\. Name .*id_column, or row_id"):
        read_pairs(named(SPLINK, "person"), IDS)


def test_ids_of_several_datasets_need_their_source():
    table = SPLINK.assign(
        unique_id_l=[1, 1],
        unique_id_r=[1, 2],
        source_dataset_l=["a", "a"],
        source_dataset_r=["b", "b"],
    )
    with pytest.raises(InputError, match=r"1 unique ids occur in several source datasets"):
        from_splink(table, [1, 2, 3])
    ids = [("b", 2), ("a", 1), ("b", 1)]
    assert listed(from_splink(table, ids)) == [(1, 2, 2 / 3), (0, 1, 0.2)]
    assert listed(read_pairs(table, pd.MultiIndex.from_tuples(ids))) == [(1, 2, 2 / 3), (0, 1, 0.2)]
    with pytest.raises(InputError, match="give the unique ids alone"):
        from_splink(SPLINK, ids)


def test_sources_do_not_matter_where_ids_tell_rows_apart():
    table = SPLINK.assign(source_dataset_l=["a", "b"], source_dataset_r=["b", "c"])
    assert listed(from_splink(table, IDS)) == listed(from_splink(SPLINK, IDS))


# --- dedupe and recordlinkage ---------------------------------------------------------------------


def test_scored_pairs_of_dedupe_are_read():
    scored = np.array(
        [(("p9", "p3"), 0.25), (("p7", "p9"), 0.5)], dtype=[("pairs", "U8", 2), ("score", "f4")]
    )
    assert listed(from_dedupe(scored, IDS)) == listed(from_pairs(TABLE, IDS))
    assert listed(read_pairs(scored, IDS)) == listed(from_pairs(TABLE, IDS))


def test_clusters_of_dedupe_are_no_pairs():
    with pytest.raises(InputError, match=r"deduper\.score\(deduper\.pairs\(data\)\)"):
        from_dedupe([(("p9", "p3"), (0.9, 0.8))], IDS)


def test_probabilities_of_recordlinkage_are_read():
    index = pd.MultiIndex.from_tuples([("p9", "p3"), ("p7", "p9")])
    scores = pd.Series([0.25, 0.5], index=index)
    for given in (scores, scores.to_frame()):
        assert listed(from_recordlinkage(given, IDS)) == listed(from_pairs(TABLE, IDS))
        assert listed(read_pairs(given, IDS)) == listed(from_pairs(TABLE, IDS))
    with pytest.raises(InputError, match="Similarities of fields are not probabilities"):
        from_recordlinkage(pd.DataFrame({"name": scores, "dob": scores}), IDS)
    with pytest.raises(InputError, match="MultiIndex of two records"):
        from_recordlinkage(pd.Series([0.5]), IDS)


# --- whatever comes -------------------------------------------------------------------------------


def test_checked_pairs_pass_through():
    pairs = from_pairs(TABLE, IDS)
    assert read_pairs(pairs, IDS) is pairs
    with pytest.raises(InputError, match="pairs refer to 3 rows; the audited table has 2"):
        read_pairs(pairs, IDS[:2])


def test_other_things_are_refused():
    with pytest.raises(InputError, match="pairs=int is not valid"):
        read_pairs(7, IDS)


@pytest.mark.parametrize("name", ["pairs.csv", "pairs.parquet"])
def test_a_file_that_holds_no_table_is_an_error_in_words(tmp_path, name):
    path = tmp_path / name
    path.write_bytes(b"")
    with pytest.raises(InputError, match=r"pair table: .* cannot be read"):
        read_pairs(path, ["a", "b"])


def test_all_columns_of_a_strange_table_are_named():
    table = pd.DataFrame([range(8)], columns=list("ABCDEFGH"))
    with pytest.raises(InputError, match="'A', 'B', 'C', 'D', 'E', 'F', 'G', 'H'"):
        read_pairs(table, ["a", "b"])
