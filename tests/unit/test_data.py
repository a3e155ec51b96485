"""Tables in: what is read, what is refused and in which words, what is only noted."""

import re
from types import SimpleNamespace

import mlflow
import numpy as np
import pandas as pd
import pytest

from mlflow_b3.data.table import (
    MINIMUM_ROWS,
    ModelInputs,
    digest_table,
    label_clusters,
    prepare,
    read_table,
)
from mlflow_b3.errors import B3Error, InputError, choose, closest

N = 40


def table(**columns):
    """Return 40 rows of 8 clusters, with columns replaced or added."""
    frame = pd.DataFrame(
        {
            "age": np.arange(N, dtype=float),
            "bmi": (np.arange(N) * 7 % 11).astype(float),
            "sick": np.arange(N) % 2,
            "patient": [f"P{number}" for number in np.arange(N) // 5],
        }
    )
    return frame.assign(**columns)


def prepared(frame, *, target="sick", cluster="patient", task="classification", **inputs):
    return prepare(frame, target=target, cluster=cluster, task=task, inputs=ModelInputs(**inputs))


def refusal(*arguments, **options):
    """Return the text with which `prepare` refuses a table."""
    with pytest.raises(InputError) as caught:
        prepared(*arguments, **options)
    return str(caught.value)


def codes(data):
    return [finding.code for finding in data.findings]


# ---------------------------------------------------------------- reading


def test_dataframe_is_taken_as_it_is():
    frame = table()
    assert read_table(frame) is frame


@pytest.mark.parametrize("ending", [".csv", ".CSV", ".parquet", ".pq"])
@pytest.mark.parametrize("kind", [str, lambda path: path], ids=["str", "Path"])
def test_files_are_read_by_their_ending(tmp_path, ending, kind):
    path = tmp_path / f"table{ending}"
    if ending.lower() == ".csv":
        table().to_csv(path, index=False)
    else:
        table().to_parquet(path)
    pd.testing.assert_frame_equal(read_table(kind(path)), table())


def test_mlflow_pandas_dataset_is_read():
    pd.testing.assert_frame_equal(read_table(mlflow.data.from_pandas(table())), table())


def test_unknown_file_ending_is_refused_with_the_known_ones():
    with pytest.raises(InputError, match=r"data='t\.xlsx'.*'\.csv', '\.parquet', '\.pq'"):
        read_table("t.xlsx")


def test_missing_file_is_named_with_the_current_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=rf"data='t\.csv' is not a file.*{tmp_path.name}"):
        read_table("t.csv")


def test_folder_with_a_files_ending_is_not_a_file(tmp_path):
    (tmp_path / "t.csv").mkdir()
    with pytest.raises(InputError, match="is not a file"):
        read_table(tmp_path / "t.csv")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("t.csv", b""),
        ("t.csv", b"a,b\n1,2\n1,2,3\n"),
        ("t.csv", b"a,b\n\xff\xfe,2\n"),
        ("t.parquet", b"this is not parquet"),
    ],
    ids=["empty", "ragged", "not utf-8", "not parquet"],
)
def test_damaged_file_is_named(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=rf"{name}' cannot be read: ."):
        read_table(tmp_path / name)


@pytest.mark.parametrize("data", [None, 3, [[1, 2]], np.ones(3), SimpleNamespace(df="no table")])
def test_other_kinds_of_data_are_refused_with_what_can_be_given(data):
    with pytest.raises(InputError, match=rf"data={type(data).__name__} .*DataFrame.*from_pandas"):
        read_table(data)


# ---------------------------------------------------------------- digest


def test_digest_has_the_36_digits_that_mlflow_can_store():
    assert re.fullmatch("[0-9a-f]{36}", digest_table(table()))


@pytest.mark.parametrize(
    "change",
    [
        lambda f: f.assign(age=f["age"].where(f.index != 3, 3.0000001)),
        lambda f: f.assign(patient=f["patient"].where(f.index != 3, "P9")),
        lambda f: f.assign(age=f["age"].where(f.index != 3)),
        lambda f: f.rename(columns={"age": "Age"}),
        lambda f: f.rename(columns={"age": "bmi", "bmi": "age"}),
        lambda f: f[["bmi", "age", "sick", "patient"]],
        lambda f: f.iloc[::-1],
        lambda f: f.iloc[:-1],
        lambda f: f.drop(columns="bmi"),
        lambda f: f.astype({"sick": "int32"}),
    ],
    ids=[
        "number",
        "string",
        "missing value",
        "name",
        "names exchanged",
        "order of columns",
        "order of rows",
        "row less",
        "column less",
        "dtype",
    ],
)
def test_digest_changes_with(change):
    assert digest_table(change(table())) != digest_table(table())


@pytest.mark.parametrize("index", [np.arange(N) + 100, [f"row {i}" for i in range(N)], [0] * N])
def test_digest_does_not_change_with_the_row_index(index):
    assert digest_table(table().set_index(pd.Index(index))) == digest_table(table())


def test_prepared_data_carry_the_digest_of_the_whole_table():
    assert prepared(table(), columns=("age",)).digest == digest_table(table())


# ---------------------------------------------------------------- features, target, clusters


def test_all_columns_but_target_and_cluster_are_features():
    data = prepared(table())
    assert data.feature_names == ("age", "bmi")
    assert list(data.features.columns) == ["age", "bmi"]
    assert (data.n_rows, data.n_clusters) == (N, 8)
    np.testing.assert_array_equal(data.target, np.arange(N) % 2)


def test_features_have_the_order_and_dtypes_of_the_signature():
    data = prepared(table(), columns=("bmi", "age"), dtypes={"age": "float32", "bmi": "int64"})
    assert data.feature_names == ("bmi", "age")
    assert [str(dtype) for dtype in data.features.dtypes] == ["int64", "float32"]


def test_columns_that_the_signature_does_not_name_are_left_out():
    assert prepared(table(note="x"), columns=("age",)).feature_names == ("age",)


@pytest.mark.parametrize("name", ["patient", "sick"])
def test_target_and_cluster_are_features_where_the_signature_names_them(name):
    assert prepared(table(), columns=("age", name)).feature_names == ("age", name)


def test_model_trained_on_an_array_is_given_an_array():
    data = prepared(table(), count=2, as_array=True)
    assert isinstance(data.features, np.ndarray)
    np.testing.assert_array_equal(data.take(np.array([3, 1])), table()[["age", "bmi"]].iloc[[3, 1]])


def test_take_keeps_the_given_order_of_rows():
    data = prepared(table())
    assert data.take(np.array([5, 2, 9]))["age"].tolist() == [5.0, 2.0, 9.0]


def test_clusters_are_numbered_by_first_appearance_and_keep_their_names():
    data = prepared(table(patient=["z"] * 10 + ["a"] * 20 + ["z"] * 10))
    assert data.names == ("z", "a")
    assert data.clusters.tolist() == [0] * 10 + [1] * 20 + [0] * 10


def test_row_index_does_not_matter():
    shifted = table().set_index(pd.Index(np.arange(N)[::-1]))
    data = prepared(shifted)
    pd.testing.assert_frame_equal(data.features, prepared(table()).features)
    np.testing.assert_array_equal(data.clusters, prepared(table()).clusters)


def test_column_names_that_are_no_strings_become_strings():
    frame = pd.DataFrame({0: np.arange(N), 1: np.arange(N) % 3}).assign(s=table()["sick"], p=1)
    frame["p"] = np.arange(N) // 5
    assert prepared(frame, target="s", cluster="p").feature_names == ("0", "1")


def test_the_users_table_is_not_changed():
    frame = table()
    prepared(frame, columns=("bmi", "age"), dtypes={"age": "float32"})
    pd.testing.assert_frame_equal(frame, table())


@pytest.mark.parametrize(
    "target",
    [
        np.where(np.arange(N) % 2, "yes", "no"),
        pd.Categorical(np.where(np.arange(N) % 2, "yes", "no")),
        pd.array(np.arange(N) % 2 == 0, dtype="boolean"),
        pd.array(np.arange(N) % 3, dtype="Int64"),
    ],
    ids=["strings", "categorical", "nullable boolean", "nullable integer"],
)
def test_classes_may_be_of_any_kind(target):
    assert len(set(prepared(table(sick=target)).target)) == len(set(target))


# ---------------------------------------------------------------- refused columns


@pytest.mark.parametrize(
    ("argument", "name"),
    [("target", "sik"), ("cluster", "pateint")],
)
def test_misspelt_target_or_cluster_gets_a_suggestion_and_the_columns(argument, name):
    text = refusal(table(), **{argument: name})
    meant = "sick" if argument == "target" else "patient"
    assert f"{argument}={name!r} is not a column. Did you mean {meant!r}?" in text
    assert "The columns are 'age', 'bmi', 'sick', 'patient'." in text


def test_absent_target_without_a_similar_name_gets_no_suggestion():
    assert "Did you mean" not in refusal(table(), target="xyzzy")


def test_list_of_columns_is_cut_after_twenty():
    wide = table(**{f"x{number}": 1.0 for number in range(30)})
    assert "'x15' and 14 more." in refusal(wide, target="outcome")


def test_missing_and_misspelt_features_are_named_one_by_one():
    text = refusal(table(), columns=("agee", "height", "bmi"))
    assert text.startswith("data: 2 problems\n")
    assert "the model's feature 'agee' is not a column. Did you mean 'age'?" in text
    assert "the model's feature 'height' is not a column.\n" in text + "\n"


def test_all_problems_are_reported_at_once():
    bad = table(
        age=[np.inf] * 3 + [0.0] * (N - 3),
        patient=[None] * 2 + ["a"] * (N - 2),
        sick=[np.nan] + [1.0] * (N - 1),
    )
    text = refusal(bad, columns=("age", "bmi", "glucose"), dtypes={"bmi": "datetime64[x]"})
    for part in (
        "data: 5 problems",
        "feature 'age' is infinite in 3 rows",
        "feature 'bmi' has dtype float64, which cannot become the datetime64[x]",
        "feature 'glucose' is not a column",
        "target 'sick' is missing in 1 rows",
        "cluster 'patient' is missing in 2 rows",
    ):
        assert part in text


def test_duplicated_column_names_are_refused():
    frame = table()
    doubled = pd.concat([frame, frame[["bmi"]]], axis=1)
    assert "column names ['bmi'] occur more than once" in refusal(doubled)


def test_a_csv_file_with_two_columns_of_one_name_is_refused(tmp_path):
    """Pandas would call the second one bmi.1, and it would become a feature."""
    frame = table()
    path = tmp_path / "visits.csv"
    pd.concat([frame, frame[["bmi"]]], axis=1).to_csv(path, index=False)
    assert "column names ['bmi'] occur more than once" in refusal(read_table(path))


def test_a_csv_file_with_columns_without_names_is_read(tmp_path):
    path = tmp_path / "visits.csv"
    path.write_text(",sick,\n0,1,2\n")
    assert list(read_table(path).columns) == ["Unnamed: 0", "sick", "Unnamed: 2"]


def test_names_that_are_equal_as_strings_are_duplicates():
    frame = table()
    frame[1], frame["1"] = 0.0, 1.0
    assert "column names ['1'] occur more than once" in refusal(frame)


def test_target_and_cluster_must_differ():
    text = refusal(table(), cluster="sick")
    assert "target and cluster are the same column, 'sick'" in text


def test_too_few_rows_are_refused_with_the_least_number():
    text = refusal(table().iloc[: MINIMUM_ROWS - 1])
    assert (
        f"{MINIMUM_ROWS - 1} rows are too few to audit; at least {MINIMUM_ROWS} are needed." in text
    )


def test_least_number_of_rows_is_enough():
    assert prepared(table().iloc[:MINIMUM_ROWS]).n_rows == MINIMUM_ROWS


def test_empty_table_is_refused():
    assert "0 rows are too few" in refusal(table().iloc[:0])


def test_table_of_target_and_cluster_only_is_refused():
    assert "no column besides target and cluster" in refusal(table()[["sick", "patient"]])


def test_number_of_unnamed_features_must_be_that_of_training():
    text = refusal(table(), count=3, as_array=True)
    assert "trained on 3 unnamed features, but the table has 2 columns" in text
    assert "'age', 'bmi'" in text


def test_missing_target_values_are_counted():
    assert "target 'sick' is missing in 4 rows" in refusal(table(sick=[None] * 4 + [0, 1] * 18))


def test_constant_target_is_refused():
    assert "target 'sick' has the same value in every row" in refusal(table(sick=1))


def test_target_of_a_regressor_must_be_numeric():
    text = refusal(table(), target="patient", cluster="sick", task="regression")
    assert re.search(r"target 'patient' has dtype \w+, but the model is a regressor", text)


def test_target_of_a_regressor_must_be_finite():
    text = refusal(table(sick=[np.inf, *range(N - 1)]), task="regression")
    assert "target 'sick' has infinite values" in text


def test_missing_cluster_ids_are_counted_with_what_to_do():
    text = refusal(table(patient=[None, np.nan, *["a", "b"] * 19]))
    assert "cluster 'patient' is missing in 2 rows; give each such row an id of its own" in text


def test_empty_text_is_no_cluster_id():
    text = refusal(table(patient=["", " ", *["a", "b"] * 19]))
    assert "cluster 'patient' is empty text in 2 rows, which would be one cluster" in text


def test_one_cluster_is_not_enough():
    assert "cluster 'patient' has a single value" in refusal(table(patient="P1"))


@pytest.mark.parametrize("infinite", [np.inf, -np.inf])
@pytest.mark.parametrize("dtype", ["float64", "float32", "Float64"])
def test_infinite_features_are_counted(infinite, dtype):
    column = pd.array([infinite] * 2 + [0.0] * (N - 2), dtype=dtype)
    assert "feature 'age' is infinite in 2 rows" in refusal(table(age=column))


def test_infinite_values_outside_the_models_features_do_not_matter():
    assert prepared(table(note=np.inf), columns=("age",)).n_rows == N


@pytest.mark.parametrize("value", [[1, 2], np.array([1, 2]), {"a": 1}])
def test_nested_features_are_refused(value):
    column = pd.Series([value] * N, dtype=object)
    assert "feature 'age' holds lists or arrays" in refusal(table(age=column))


def test_nested_values_outside_the_models_features_do_not_matter():
    column = pd.Series([[1, 2]] * N, dtype=object)
    assert prepared(table(note=column), columns=("age",)).n_rows == N


@pytest.mark.parametrize("name", ["sick", "patient"])
def test_nested_target_or_cluster_is_refused(name):
    assert repr(name) in refusal(table(**{name: pd.Series([[1], [2]] * (N // 2), dtype=object)}))


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        (["tall"] * N, "float64"),
        ([np.nan] + [1.0] * (N - 1), "int64"),
        (np.arange(N) + 0.5, "int64"),
        (np.arange(N) + 2**40, "int32"),
        (["yes", "no"] * (N // 2), "bool"),
    ],
    ids=["words to numbers", "missing to integer", "fraction", "overflow", "words to truth values"],
)
def test_values_that_do_not_fit_the_signatures_dtype_are_refused(values, dtype):
    """A cast that changes values would audit another model than the logged one."""
    text = refusal(table(age=values), columns=("age",), dtypes={"age": dtype})
    assert "feature 'age' has dtype" in text
    assert f"cannot become the {dtype} of the model's signature" in text


# ---------------------------------------------------------------- findings


def test_ordinary_table_gives_no_findings():
    assert prepared(table()).findings == ()


def test_constant_and_repeated_features_are_kept_and_noted():
    data = prepared(table(one=1.0, empty=np.nan, again=table()["age"]))
    assert data.feature_names == ("age", "bmi", "one", "empty", "again")
    message = {finding.code: finding.message for finding in data.findings}["B309"]
    assert message == (
        "constant: 'one', 'empty'; same values as an earlier column: 'again'. They are kept."
    )


def test_same_values_in_another_order_are_not_repeated():
    assert codes(prepared(table(back=table()["age"].to_numpy()[::-1]))) == []


def test_missing_features_are_passed_on_and_counted():
    data = prepared(table(age=[np.nan] * 3 + [*range(N - 3)]))
    assert codes(data) == ["B310"]
    assert "{'age': 3}" in data.findings[0].message
    assert data.features["age"].isna().sum() == 3


@pytest.mark.parametrize(
    ("patients", "noted"),
    [(range(N), ["B311"]), ([*range(20)] * 2, [])],
    ids=["every row its own", "pairs"],
)
def test_mostly_single_row_clusters_are_noted(patients, noted):
    assert codes(prepared(table(patient=[*patients]))) == noted


# ---------------------------------------------------------------- errors


def test_input_errors_are_value_errors_and_belong_to_the_package():
    assert issubclass(InputError, ValueError)
    assert issubclass(InputError, B3Error)


def test_single_problem_stands_on_one_line():
    assert str(InputError.from_problems("data", ["is late."])) == "data: is late."


def test_several_problems_are_listed():
    text = str(InputError.from_problems("data", ["is late.", "is short."]))
    assert text == "data: 2 problems\n  - is late.\n  - is short."


def test_closest_suggests_a_similar_name_or_nothing():
    assert closest("patiant_id", ["patient_id", "age"]) == " Did you mean 'patient_id'?"
    assert closest("q", ["patient_id", "age"]) == ""


def test_choose_returns_an_allowed_word():
    assert choose("scheme", "subset", ("subset", "replace")) == "subset"


@pytest.mark.parametrize("value", ["subsets", 3, None, ["subset"]])
def test_choose_names_argument_value_and_allowed_words(value):
    with pytest.raises(InputError) as caught:
        choose("scheme", value, ("subset", "replace"))
    text = str(caught.value)
    assert text.startswith(f"scheme={value!r} is not known; use one of 'subset', 'replace'.")
    assert text.endswith("Did you mean 'subset'?") == (value == "subsets")


def test_labels_of_clusters_stay_with_their_rows():
    frame = table()
    labelled, name = label_clusters(frame, frame["patient"])
    assert labelled[name].tolist() == frame["patient"].tolist()
    shuffled = frame.sample(frac=1, random_state=0)
    with pytest.raises(InputError, match="its labels may belong to other rows"):
        label_clusters(shuffled, frame["patient"])
    labelled, name = label_clusters(shuffled, frame["patient"].to_numpy())
    assert labelled[name].tolist() == frame["patient"].tolist()


def test_clusters_may_be_a_level_of_the_index():
    frame = table()
    labelled, name = label_clusters(frame.set_index("patient"), "patient")
    assert (name, labelled["patient"].tolist()) == ("patient", frame["patient"].tolist())
    both, _ = label_clusters(frame.set_index(["patient", frame.index + 7]), "patient")
    assert both.index.tolist() == (frame.index + 7).tolist()
    as_column, _ = label_clusters(frame.set_index("patient", drop=False), "patient")
    assert as_column["patient"].tolist() == frame["patient"].tolist()
