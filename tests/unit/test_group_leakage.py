"""`assert_no_group_leakage`: a test that fails if a split puts rows of one group on both sides."""

import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn.model_selection import GroupKFold, KFold, ShuffleSplit, StratifiedKFold

from mlflow_b3 import InputError, assert_no_group_leakage

PATIENTS = np.repeat(["ann", "bob", "cid", "dee"], 3)
X = np.zeros((12, 2))


@pytest.mark.parametrize(
    "rows", [X, pd.DataFrame(X), X.tolist(), sparse.csr_array(X)], ids=lambda x: type(x).__name__
)
def test_folds_of_whole_groups_pass(rows):
    assert_no_group_leakage(rows, PATIENTS, GroupKFold(4))


def test_a_failure_names_folds_groups_and_rows():
    with pytest.raises(AssertionError) as caught:
        assert_no_group_leakage(X, PATIENTS, [([0, 1, 3, 4, 9], [2, 5, 6]), ([0, 1], [3, 4])])
    assert str(caught.value).splitlines() == [
        "1 of 2 folds have rows of one group in training and in validation.",
        "  fold 0: 2 groups, with 2 of 3 validation rows: 'ann' (2 rows in training, 1 in validation), "
        "'bob' (2 rows in training, 1 in validation)",
        "Keep the rows of a group together, for example with scikit-learn's GroupKFold.",
    ]


def test_a_long_failure_is_shortened_and_counts_the_rest():
    groups = np.tile(np.arange(20), 10)
    with pytest.raises(AssertionError) as caught:
        assert_no_group_leakage(np.zeros((200, 1)), groups, KFold(10, shuffle=True, random_state=0))
    lines = str(caught.value).splitlines()
    assert lines[0].startswith("10 of 10 folds")
    assert lines[-2] == "  and 5 more folds"
    assert all("more" in line for line in lines[1:6])
    assert len(lines) == 8


def test_the_counts_are_exact():
    """Against a count row by row, on random splits and groups of random sizes."""
    rng = np.random.default_rng(0)
    groups = rng.integers(0, 30, size=80)
    training, validation = next(
        ShuffleSplit(1, test_size=0.2, random_state=0).split(np.zeros((80, 1)))
    )
    leaked = [row for row in validation if groups[row] in set(groups[training])]
    shared = {groups[row] for row in leaked}
    with pytest.raises(AssertionError, match=f"{len(shared)} groups, with {len(leaked)} of 16"):
        assert_no_group_leakage(np.zeros((80, 1)), groups, [(training, validation)])


def test_a_row_on_both_sides_is_leakage_too():
    with pytest.raises(AssertionError, match=r"'ann' \(1 row in training, 1 in validation\)"):
        assert_no_group_leakage(X, PATIENTS, [([0], [0, 3])])


def test_row_masks_are_taken():
    training = PATIENTS == "ann"
    assert_no_group_leakage(X, PATIENTS, [(training, ~training)])


def test_a_splitter_that_stratifies_gets_the_target():
    with pytest.raises(AssertionError, match="3 of 3 folds"):
        assert_no_group_leakage(X, PATIENTS, StratifiedKFold(3), y=np.tile([0, 1], 6))


def test_groups_with_an_index_of_their_own_are_taken_in_order():
    groups = pd.Series(PATIENTS, index=np.arange(12)[::-1])
    assert_no_group_leakage(X, groups, GroupKFold(4))


@pytest.mark.parametrize(
    ("groups", "cv", "told"),
    [
        (PATIENTS[:-1], GroupKFold(4), "groups has 11 values, X has 12 rows"),
        ([None, *PATIENTS[1:]], GroupKFold(4), "groups has 1 missing value; rows without a group"),
        (PATIENTS, 5, r"cv=5 must be a splitter such as KFold\(5\)"),
        (PATIENTS, "loco", "cv='loco' must be a splitter"),
        (PATIENTS, [], "has no splits, so there is nothing to check"),
        (PATIENTS, [([0, 99], [3])], r"cv: fold 0 .* row numbers must lie in 0 … 11"),
        (PATIENTS, [[0, 1, 2]], r"cv: fold 0 is not a pair"),
        (PATIENTS, GroupKFold(9), r"cv=GroupKFold\(.*\) cannot split these rows: ValueError"),
        (PATIENTS, StratifiedKFold(3), "cannot split these rows"),
    ],
)
def test_what_cannot_be_checked_is_an_error_and_no_pass(groups, cv, told):
    with pytest.raises(InputError, match=told):
        assert_no_group_leakage(X, groups, cv)


def test_it_needs_no_mlflow():
    code = (
        "import sys, numpy; from sklearn.model_selection import GroupKFold; import mlflow_b3; "
        "mlflow_b3.assert_no_group_leakage(numpy.zeros((4, 1)), [1, 1, 2, 2], GroupKFold(2)); "
        "sys.exit('mlflow' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
