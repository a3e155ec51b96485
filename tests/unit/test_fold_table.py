"""The rows of every fold as a table that others can repeat a split from."""

import numpy as np
import pytest
from sklearn.neighbors import KNeighborsClassifier

import mlflow_b3 as b3
from mlflow_b3.data.folds import Fold, digest_folds, fold_table, load_folds, read_fold_table

FOLDS = (
    Fold(training=np.array([0, 1, 2]), validation=np.array([4, 5])),
    Fold(training=np.array([4, 5]), validation=np.array([0, 1, 2])),
)


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "folds.csv"
    path.write_text(fold_table(FOLDS, 6))
    return path


def test_each_row_is_trained_on_validated_on_or_neither():
    assert fold_table(FOLDS, 6).splitlines() == [
        "row,fold_1,fold_2",
        "0,T,V",
        "1,T,V",
        "2,T,V",
        "3,-,-",
        "4,V,T",
        "5,V,T",
    ]


def test_the_table_reads_back_into_the_same_folds(path):
    splits = read_fold_table(path).split(np.zeros(6))
    for fold, (training, validation) in zip(FOLDS, splits, strict=True):
        assert training.tolist() == fold.training.tolist()
        assert validation.tolist() == fold.validation.tolist()


def test_the_digest_changes_with_any_row_and_with_the_side():
    moved = (Fold(training=np.array([0, 1, 2, 4]), validation=np.array([5])), FOLDS[1])
    swapped = tuple(Fold(training=fold.validation, validation=fold.training) for fold in FOLDS)
    assert len({digest_folds(folds) for folds in (FOLDS, moved, swapped)}) == 3
    assert digest_folds(FOLDS) == digest_folds(tuple(FOLDS))


def test_only_the_path_of_a_table_is_read(path):
    assert load_folds(5) == 5
    assert load_folds("balanced") == "balanced"
    assert load_folds(str(path)).n_rows == 6
    assert load_folds(path).n_rows == 6


def test_folds_of_another_table_are_refused(path):
    clinic = b3.make_clinic(patients=20, records=3)
    with pytest.raises(b3.InputError, match="it has 6 rows, the data have 60"):
        b3.audit(
            KNeighborsClassifier(3),
            clinic.frame,
            target="disease",
            cluster="patient_id",
            folds=path,
        )


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("row,side\n0,T\n", "has a column 'row' and columns 'fold_1'"),
        ("row,fold_1\n1,T\n2,V\n", "must count the rows of the data from 0"),
        ("row,fold_1\n0,T\n1,train\n", r"has cells \['train'\]; allowed are T"),
        ("", "cannot be read"),
    ],
)
def test_a_table_that_is_no_table_of_folds_is_refused(tmp_path, text, problem):
    path = tmp_path / "folds.csv"
    path.write_text(text)
    with pytest.raises(b3.InputError, match=problem):
        read_fold_table(path)


def test_a_missing_table_is_refused(tmp_path):
    with pytest.raises(b3.InputError, match="cannot be read"):
        read_fold_table(tmp_path / "none.csv")
