"""From a sample of rows to a sheet, through a person's hands and a spreadsheet, and back."""

import math
from itertools import pairwise

import numpy as np
import pandas as pd
import pytest

from mlflow_b3.errors import InputError
from mlflow_b3.linkage import (
    PairTable,
    leak_truth,
    parse_review,
    review_sheet,
    rows_needed,
    sample_rows,
    splink_labelling_pages,
)

FRAME = pd.DataFrame(
    {
        "patient": ["a 1", "a 2", "a 3", "b,1", "007", "12"],
        "name": ["Ann", "Ann", "Anne", "Bob", "Bond", "Zoë"],
        "found": ["A", "A", "A2", "B", "C", "D"],
    }
)
PAIRS = PairTable.of([0, 0, 2, 4], [1, 2, 3, 5], [0.99, 0.4, 0.012, 0.5], n=6)


def everything(**options):
    return review_sheet(
        FRAME, sample_rows(6, 6), PAIRS, cluster="found", id="patient", **options
    ).set_index("record", drop=False)


def filled(mates, **changes):
    """Return a sheet of all rows, with some cells of `mates` and `none` in all others."""
    sheet = everything()
    sheet["mates"] = [mates.get(record, "none") for record in sheet["record"]]
    return sheet.assign(**changes)


def mates_by_row(resolved):
    return {
        row: found.tolist()
        for row, found in zip(resolved.rows.tolist(), resolved.mates, strict=True)
        if len(found)
    }


def test_rows_needed_is_the_formula():
    """(1.96/0.25)²·(1 − σ)/σ, rounded up."""
    assert [rows_needed(rate, 0.25) for rate in (0.2, 0.1, 0.05)] == [246, 554, 1168]
    assert rows_needed(0.2, 0.25, level=0.8) < 246
    with pytest.raises(InputError, match=r"split_rate=0(.|\n)*delta=nan"):
        rows_needed(0, math.nan)


def test_rows_are_drawn_once_each_and_in_random_order():
    sample = sample_rows(1000, 300, seed=4)
    assert len(np.unique(sample.rows)) == 300
    assert np.abs(np.corrcoef(sample.rows, np.arange(300))[0, 1]) < 3 / math.sqrt(300)
    assert sample.strata == (("all",) * 300, {"all": 1000})
    assert not np.array_equal(sample.rows, sample_rows(1000, 300, seed=5).rows)


def test_scores_make_strata_that_are_sampled_unevenly():
    """Rows without a score keep more than half of their share: that is where leaks hide."""
    rng = np.random.default_rng(0)
    scores = np.where(rng.random(5000) < 0.6, 0.0, rng.beta(0.3, 4, 5000))
    sample = sample_rows(5000, 200, scores)
    drawn = {name: sample.stratum.count(name) for name in sample.sizes}
    assert sum(sample.sizes.values()) == 5000
    assert sum(drawn.values()) == 200
    rate = {name: drawn[name] / sample.sizes[name] for name in drawn}
    assert rate["none"] < rate["low"] < rate["middle"] < rate["high"]
    assert drawn["none"] > 100 * sample.sizes["none"] / 5000
    ranges = [scores[sample.rows[np.array(sample.stratum) == name]] for name in drawn]
    assert all(a.max() < b.min() for a, b in pairwise(ranges))


@pytest.mark.parametrize("scores", [np.zeros(50), np.full(50, 0.3), [0.0] * 49 + [1.0]])
def test_scores_without_variety_do_no_harm(scores):
    sample = sample_rows(50, 20, scores)
    assert len(np.unique(sample.rows)) == 20
    assert sum(sample.sizes.values()) == 50


def test_a_sample_may_be_the_whole_table():
    sample = sample_rows(40, 40, np.linspace(0, 1, 40))
    assert sorted(sample.rows) == list(range(40))


def test_good_scores_make_a_sample_worth_more():
    """At the same number of rows; scores see half of the leaks (figures: 3 s.e. below the gain)."""
    rng = np.random.default_rng(1)
    leaks = rng.random(4000) < 0.04
    scores = np.where(leaks & (rng.random(4000) < 0.6), rng.beta(2, 2, 4000), 0.0)
    scores = np.where(~leaks & (rng.random(4000) < 0.2), rng.beta(0.5, 8, 4000), scores)
    errors = {}
    for name, given in (("uniform", None), ("scored", scores)):
        points = []
        for seed in range(300):
            sample = sample_rows(4000, 200, given, seed=seed)
            labels, values = np.array(sample.stratum), leaks[sample.rows]
            points.append(
                sum(size / 4000 * values[labels == h].mean() for h, size in sample.sizes.items())
            )
        errors[name] = np.std(points)
        assert np.mean(points) == pytest.approx(leaks.mean(), abs=3 * errors[name] / 300**0.5)
    assert errors["scored"] < 0.9 * errors["uniform"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((5, 6), "B=6 rows of n=5"),
        ((5, 0), "B=0"),
        ((5, 2, [0.1]), "one score for each of 5 rows"),
        ((5, 2, [0.1, 0.2, math.nan, -1, 0]), "2 are missing, negative or infinite"),
        ((50, 10, np.linspace(0, 1, 50)), "too few for 4 strata"),
    ],
)
def test_samples_that_cannot_be_drawn_are_refused(arguments, words):
    with pytest.raises(InputError, match=words):
        sample_rows(*arguments)


def test_a_sheet_shows_the_record_its_cluster_and_candidates():
    sheet = everything(most=1)
    assert list(sheet.columns) == [
        *("record", "stratum", "rows_in_stratum", "cluster", "name"),
        *("same_cluster", "candidates", "mates", "comment"),
    ]
    row = sheet.loc["a 1"]
    assert row[["stratum", "rows_in_stratum", "cluster", "name"]].tolist() == ["all", 6, "A", "Ann"]
    assert row["same_cluster"] == "a 2"
    assert row["candidates"] == "a 3 (0.4)"  # a 2 is in the same cluster already
    assert sheet.loc["a 3", "candidates"] == "a 1 (0.4)"  # the best only: b,1 has 0.012
    assert (sheet["mates"] == "").all()


def test_a_sheet_goes_through_a_file_and_back(tmp_path):
    sheet = everything(path=tmp_path / "sheet.csv")
    again = pd.read_csv(tmp_path / "sheet.csv", dtype=str, keep_default_na=False)
    again.loc[again["record"].isin(["a 1", "a 2"]), "mates"] = "a 3"  # not their own cluster
    again.loc[again["record"] == "a 3", "mates"] = "a 1 ;a 2"
    again["mates"] = again["mates"].replace("", "none")
    again.to_csv(tmp_path / "filled.csv", index=False)
    resolved = parse_review(tmp_path / "filled.csv", FRAME["patient"])
    assert resolved.rows.tolist() == [FRAME["patient"].tolist().index(r) for r in sheet["record"]]
    assert mates_by_row(resolved) == {0: [2], 1: [2], 2: [0, 1]}
    assert resolved.strata == (("all",) * 6, {"all": 6})
    estimate = resolved.leak([0, 0, 1, 1, 0, 1], FRAME["found"])
    truth = leak_truth(list("aaabcd"), [0, 0, 1, 1, 0, 1])
    assert estimate.validation.point == pytest.approx(truth.p0_validation)


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-8", "cp1252"])
@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_files_that_spreadsheets_wrote_are_understood(tmp_path, encoding, separator):
    """Leading zeros lost, words in capitals, spaces, empty lines at the end."""
    sheet = filled({"007": " 12.0", "12": "7;", "a 1": "a 3\na 2", "b,1": " NONE "}, comment="é")
    sheet["record"] = sheet["record"].replace("007", "7")
    text = sheet.rename(columns={"mates": " Mates "}).to_csv(index=False, sep=separator)
    path = tmp_path / "excel.csv"
    path.write_bytes((text + separator * 8 + "\r\n").encode(encoding))
    resolved = parse_review(path, FRAME["patient"])
    assert len(resolved) == 6
    assert mates_by_row(resolved) == {0: [1, 2], 4: [5], 5: [4]}


def test_tables_that_pandas_read_from_a_workbook_are_understood():
    """Ids as numbers, some as 12.0 since other cells of the column are empty."""
    sheet = pd.DataFrame(
        {
            "record": [11, 12, 13],
            "mates": [12.0, 11.0, "-"],
            "stratum": "all",
            "rows_in_stratum": 4.0,
        }
    )
    resolved = parse_review(sheet, [11, 12, 13, 14])
    assert mates_by_row(resolved) == {0: [1], 1: [0]}
    assert resolved.noted_clusters is None  # the sheet has none


def test_commas_separate_ids_that_hold_none():
    sheet = pd.DataFrame(
        {"record": ["x", "y"], "mates": ["y, z", "x"], "stratum": "all", "rows_in_stratum": 3}
    )
    assert mates_by_row(parse_review(sheet, ["x", "y", "z"])) == {0: [1, 2], 1: [0]}
    assert mates_by_row(parse_review(filled({"a 1": "b,1; a 3"}), FRAME["patient"])) == {0: [2, 3]}


def test_rows_left_to_review_are_counted():
    sheet = filled({"a 1": "", "12": "  "})
    with pytest.raises(InputError, match="2 of 6 rows have nothing in `mates` yet"):
        parse_review(sheet, FRAME["patient"])
    resolved = parse_review(sheet, FRAME["patient"], allow_unfinished=True)
    assert sorted(resolved.rows) == [1, 2, 3, 4]
    with pytest.raises(InputError, match="6 of 6 rows"):
        parse_review(everything(), FRAME["patient"], allow_unfinished=True)


def test_a_stratum_without_a_finished_row_is_refused():
    sheet = filled({"12": ""}).assign(rows_in_stratum=5)
    sheet.loc["12", ["stratum", "rows_in_stratum"]] = ["other", 1]
    with pytest.raises(InputError, match=r"no row was reviewed in \['other'\]"):
        parse_review(sheet, FRAME["patient"], allow_unfinished=True)


def test_all_mistakes_on_a_sheet_are_named_at_once():
    sheet = filled({"a 1": "a 9; a 2; q", "a 2": "a 2", "12": "none; a 1", "b,1": ""})
    sheet = pd.concat([sheet, sheet.loc[["007"]], sheet.loc[["12"]].assign(record="zz")])
    with pytest.raises(InputError) as error:
        parse_review(sheet, FRAME["patient"])
    for words in (
        "1 of 8 records are not in the table: 'zz'.\n",
        "2 mates are not in the table: 'a 9' of 'a 1', 'q' of 'a 1'.",
        "1 records are listed as mates of themselves: 'a 2'",
        "2 records have both ids and `none` in `mates`: '12', 'zz'",
        "1 records occur more than once: '007'",
        "1 of 8 rows have nothing",
    ):
        assert words in str(error.value)


def test_sheets_of_another_kind_are_refused(tmp_path):
    with pytest.raises(
        InputError, match="review sheet: it has no columns 'mates'; it has 'record', 'maets'"
    ):
        parse_review(pd.DataFrame({"record": [1], "maets": [2]}), [1, 2])
    with pytest.raises(InputError, match="no rows"):
        parse_review(pd.DataFrame({"record": [], "mates": []}), [1, 2])
    with pytest.raises(InputError, match=r"review sheet: .*none.csv' is not a file here"):
        parse_review(tmp_path / "none.csv", [1, 2])
    with pytest.raises(InputError, match="copy `stratum`"):
        parse_review(filled({}, rows_in_stratum=[1, 2, 3, 4, 5, 6]), FRAME["patient"])


@pytest.mark.parametrize(
    ("ids", "words"),
    [
        (["a;b", "c"], "semicolon"),
        (["None", "c"], "mean `none`"),
        (["", "c"], "are empty"),
        ([None, "c"], "are empty"),
        (["c", "c"], "more than once"),
    ],
)
def test_ids_that_would_not_survive_are_refused(ids, words):
    frame = pd.DataFrame({"id": ids, "found": [1, 2]})
    with pytest.raises(InputError, match=words):
        review_sheet(frame, sample_rows(2, 2), cluster="found", id="id")


def test_sheets_that_cannot_be_laid_out_are_refused():
    sample = sample_rows(6, 3)
    with pytest.raises(InputError, match=r"no columns 'fuond'\. Did you mean 'found'"):
        review_sheet(FRAME, sample, cluster="fuond")
    for name in ("comment", "Cluster"):  # capitals do not count when the sheet is read back
        with pytest.raises(InputError, match=f"named '{name}'"):
            review_sheet(FRAME.assign(**{name: ""}), sample, cluster="found")
    with pytest.raises(InputError, match="5 rows; the sample was drawn from 6"):
        review_sheet(FRAME.iloc[:5], sample, cluster="found")
    kept = review_sheet(FRAME.assign(comment=""), sample, cluster="found", columns=["name"])
    assert "patient" not in kept


def test_large_tables_are_laid_out_quickly():
    rng = np.random.default_rng(0)
    n = 100_000
    frame = pd.DataFrame({"found": rng.integers(0, 40_000, n)})
    pairs = PairTable.of(*_distinct(rng, n), rng.random(300_000), n=n)
    sheet = review_sheet(frame, sample_rows(n, 500), pairs, cluster="found")
    assert len(parse_review(sheet.assign(mates="none"), frame.index)) == 500


def _distinct(rng, n):
    first = rng.integers(0, n, 300_000)
    return first, (first + rng.integers(1, n, 300_000)) % n


@pytest.mark.flavours
def test_splink_writes_a_labelling_page_for_each_record(tmp_path):
    splink = pytest.importorskip("splink")
    library = pytest.importorskip("splink.comparison_library")
    frame = pd.DataFrame(
        {"unique_id": [f"r {i}" for i in range(6)], "first": list("aabbcc"), "last": list("xxyyzz")}
    )
    settings = splink.SettingsCreator(
        link_type="dedupe_only",
        comparisons=[library.ExactMatch("first"), library.ExactMatch("last")],
        blocking_rules_to_generate_predictions=[splink.block_on("first")],
    )
    linker = splink.Linker(splink.DuckDBAPI().register(frame), settings)
    pages = splink_labelling_pages(linker, ["r 1", "r 4"], tmp_path / "pages")
    assert [page.name for page in pages] == ["0001-r_1.html", "0002-r_4.html"]
    assert '"unique_id_l": "r 0"' in pages[0].read_text(encoding="utf-8")
    with pytest.raises(InputError, match='1 ids with a quote: "O\'Neil"'):
        splink_labelling_pages(linker, ["O'Neil"], tmp_path)


def test_pages_need_a_linker_of_splink(tmp_path):
    with pytest.raises(InputError, match="linker=object"):
        splink_labelling_pages(object(), ["r 1"], tmp_path)


@pytest.mark.parametrize("text", ["", 'record,mates\n1,"2\n', "record,mates\n1,none\n2,none,3,4\n"])
def test_a_broken_file_is_an_error_in_words(tmp_path, text):
    path = tmp_path / "sheet.csv"
    path.write_text(text)
    with pytest.raises(InputError, match=r"review sheet: .*sheet.csv' cannot be read"):
        parse_review(path, [1, 2, 3])


@pytest.mark.parametrize("lost", [["stratum"], ["rows_in_stratum"], ["stratum", "rows_in_stratum"]])
def test_a_sheet_that_lost_its_strata_is_not_taken_for_a_uniform_sample(lost):
    sheet = filled({}).drop(columns=lost)
    with pytest.raises(InputError, match=f"has lost '{lost[0]}'.*ResolvedRows.of"):
        parse_review(sheet, FRAME["patient"])


def test_a_sheet_with_two_columns_of_mates_is_refused():
    sheet = pd.DataFrame([[1, "none", "2"]], columns=["record", "mates", "mates"])
    with pytest.raises(InputError, match="has columns 'mates' twice"):
        parse_review(sheet, [1, 2, 3])


def test_a_sheet_of_another_table_is_told_in_a_few_words():
    """Hundreds of unknown ids are one problem, not hundreds."""
    sheet = pd.concat([filled({"a 1": "a 2; a 3"})] * 50, ignore_index=True)
    sheet = sheet.assign(record=[f"r{row}" for row in range(300)])
    with pytest.raises(InputError, match=r"300 of 300 records are not in the table: 'r0'") as error:
        parse_review(sheet, range(900))
    assert "'r4', …. Ids of the table are like '0', '1', …: wrong row_id, or" in str(error.value)
    assert "100 mates are not in the table: 'a 2' of 'r" in str(error.value)
    assert len(str(error.value).splitlines()) == 3


def test_lines_that_were_not_done_can_be_deleted_from_the_end():
    """The strata stay those of the table, and the first rows of a random order are a sample."""
    frame = pd.DataFrame({"found": np.arange(400)})
    scores = np.linspace(0, 1, 400) * (np.arange(400) % 2)
    sheet = review_sheet(frame, sample_rows(400, 80, scores), cluster="found")
    sheet.loc[:49, "mates"] = "none"
    with pytest.raises(
        InputError, match=r"30 of 80 rows .* delete the unfinished lines from its end"
    ):
        parse_review(sheet, frame.index)
    cut = parse_review(sheet.iloc[:50], frame.index)
    kept = parse_review(sheet, frame.index, allow_unfinished=True)
    assert len(cut) == 50
    assert cut.strata == kept.strata
    assert cut.noted_clusters == kept.noted_clusters


def test_an_empty_sheet_is_not_to_be_cut():
    with pytest.raises(InputError, match="6 of 6 rows") as error:
        parse_review(everything(), FRAME["patient"])
    assert "delete" not in str(error.value)


def test_a_stratum_whose_lines_were_all_deleted_is_missed():
    sheet = filled({}).assign(rows_in_stratum=5).drop(index="12")
    with pytest.raises(InputError, match=r"'all' have 5 rows together; the table has 6.*copy them"):
        parse_review(sheet, FRAME["patient"])


def test_the_clusters_of_the_sheet_are_remembered():
    resolved = parse_review(filled({"12": ""}), FRAME["patient"], allow_unfinished=True)
    labels = FRAME["found"].to_numpy()
    assert resolved.noted_clusters == tuple(labels[resolved.rows])
    assert resolved.changed_clusters(labels) == 0
    assert resolved.changed_clusters(pd.Series(list("AAABCZ"), dtype="category")) == 1 / 5
    with pytest.raises(InputError, match=r"clusters has shape \(5,\); the table has 6 rows"):
        resolved.changed_clusters(labels[:5])


@pytest.mark.parametrize("kind", [int, float, str, object])
def test_clusters_are_compared_whatever_a_file_made_of_them(tmp_path, kind):
    frame = FRAME.assign(found=[1, 1, 2, 3, 4, 5])
    path = tmp_path / "sheet.csv"
    review_sheet(frame, sample_rows(6, 6), cluster="found", id="patient", path=path)
    pd.read_csv(path).assign(mates="none").astype({"cluster": float}).to_csv(path, index=False)
    resolved = parse_review(path, frame["patient"])
    assert resolved.changed_clusters(frame["found"].astype(kind)) == 0
    assert resolved.changed_clusters(1 + frame["found"]) == 1
