"""Clusters to folds: whole clusters by default, given splits as they are."""

import numpy as np
import pandas as pd
import pytest
from sklearn.model_selection import GroupKFold, GroupShuffleSplit, KFold, LeaveOneGroupOut

from mlflow_b3.data.folds import (
    DEFAULT_FOLDS,
    Fold,
    assigns_at_random,
    cross_validates,
    fold_findings,
    make_folds,
    summarize_folds,
)
from mlflow_b3.data.table import ModelInputs, prepare
from mlflow_b3.errors import InputError


def data_of(sizes, target=None):
    """Return a prepared table whose clusters have the given sizes."""
    clusters = np.repeat(np.arange(len(sizes)), sizes)
    frame = pd.DataFrame({"x": np.arange(len(clusters), dtype=float), "cluster": clusters})
    frame["y"] = np.arange(len(clusters)) % 2 if target is None else target
    return prepare(
        frame, target="y", cluster="cluster", task="classification", inputs=ModelInputs()
    )


def refusal(data, folds):
    with pytest.raises(InputError) as caught:
        make_folds(data, folds)
    return str(caught.value)


def validation_sizes(folds):
    return sorted(len(fold.validation) for fold in folds)


def assert_whole_clusters(folds, data):
    assert all(summary.shared_clusters == 0 for summary in summarize_folds(folds, data))
    scored = np.concatenate([fold.validation for fold in folds])
    assert sorted(scored) == list(range(data.n_rows))
    for fold in folds:
        both = np.concatenate([fold.training, fold.validation])
        assert sorted(both) == list(range(data.n_rows))


# ---------------------------------------------------------------- default folds


@pytest.mark.parametrize("clusters", [2, 3, 10])
def test_up_to_ten_clusters_are_left_out_one_at_a_time(clusters):
    data = data_of([10] * clusters)
    folds = make_folds(data)
    assert len(folds) == clusters
    assert [set(data.clusters[fold.validation]) for fold in folds] == [
        {number} for number in range(clusters)
    ]
    assert_whole_clusters(folds, data)


@pytest.mark.parametrize("clusters", [11, 40])
def test_more_than_ten_clusters_make_five_folds(clusters):
    data = data_of([5] * clusters)
    folds = make_folds(data)
    assert len(folds) == DEFAULT_FOLDS == 5
    assert_whole_clusters(folds, data)


def test_folds_are_balanced_by_rows_not_by_clusters():
    data = data_of([40, 40, 40, *[4] * 20])  # 200 rows; 40 in each of five folds is possible
    assert validation_sizes(make_folds(data, 5)) == [40, 40, 40, 40, 40]


def test_rows_of_a_cluster_need_not_be_neighbours():
    target = np.arange(60) % 2
    frame = pd.DataFrame({"x": np.arange(60.0), "y": target, "cluster": np.arange(60) % 12})
    data = prepare(
        frame, target="y", cluster="cluster", task="classification", inputs=ModelInputs()
    )
    assert_whole_clusters(make_folds(data), data)


def test_seed_decides_which_clusters_of_equal_size_go_together():
    data = data_of([5] * 20)
    first, again, other = (make_folds(data, 5, seed=seed) for seed in (0, 0, 1))
    assert all(
        np.array_equal(a.validation, b.validation) for a, b in zip(first, again, strict=True)
    )
    assert not all(
        np.array_equal(a.validation, b.validation) for a, b in zip(first, other, strict=True)
    )
    assert validation_sizes(first) == validation_sizes(other) == [20] * 5


@pytest.mark.parametrize("count", [2, 3, np.int64(4), 12])
def test_number_makes_that_many_folds_of_whole_clusters(count):
    data = data_of([5] * 12)
    folds = make_folds(data, count)
    assert len(folds) == count
    assert_whole_clusters(folds, data)


def test_more_folds_than_clusters_are_refused_with_the_most_possible():
    text = refusal(data_of([10] * 4), 5)
    assert text == "folds=5 is more than the 4 clusters of 'cluster'; use at most 4 folds."


@pytest.mark.parametrize("count", [1, 0, -3, True, False])
def test_fewer_than_two_folds_are_refused(count):
    assert refusal(data_of([10] * 4), count) == f"folds={count!r}: at least two folds are needed."


@pytest.mark.parametrize("folds", [5.0, "group", b"5", object])
def test_anything_else_is_refused_with_what_can_be_given(folds):
    text = refusal(data_of([10] * 4), folds)
    assert f"folds={folds!r} is not usable" in text
    assert "a number, 'balanced', a scikit-learn splitter or a list of (training rows" in text


# ---------------------------------------------------------------- given splits


@pytest.mark.parametrize("splitter", [GroupKFold(3), LeaveOneGroupOut(), KFold(4)], ids=str)
def test_splitter_is_asked_with_rows_target_and_clusters(splitter):
    data = data_of([10] * 4)
    folds = make_folds(data, splitter)
    expected = list(splitter.split(np.zeros((40, 1)), data.target, _groups(splitter, data)))
    for fold, (training, validation) in zip(folds, expected, strict=True):
        np.testing.assert_array_equal(fold.training, training)
        np.testing.assert_array_equal(fold.validation, validation)


def _groups(splitter, data):
    return None if isinstance(splitter, KFold) else data.clusters


def test_splitter_that_fails_is_named_with_its_reason():
    text = refusal(data_of([10] * 4), GroupKFold(5))
    assert text.startswith("folds=GroupKFold(n_splits=5")
    assert "cannot split this table: ValueError: Cannot have number of splits n_splits=5" in text


def test_precomputed_splits_are_used_as_they_are_and_sorted():
    folds = make_folds(data_of([10] * 4), [([9, 3, 5], [20, 11]), ([30], [1])])
    assert [fold.training.tolist() for fold in folds] == [[3, 5, 9], [30]]
    assert [fold.validation.tolist() for fold in folds] == [[11, 20], [1]]


def test_one_split_is_enough_when_it_is_given():
    assert len(make_folds(data_of([10] * 4), [(range(30), range(30, 40))])) == 1


def test_splits_may_come_from_a_generator():
    data = data_of([10] * 4)
    folds = make_folds(data, GroupKFold(4).split(data.features, groups=data.clusters))
    assert len(folds) == 4


@pytest.mark.parametrize("kind", [list, np.array, pd.Series])
def test_splits_may_be_masks(kind):
    mask = np.arange(40) < 30
    (fold,) = make_folds(data_of([10] * 4), [(kind(mask), kind(~mask))])
    assert fold.training.tolist() == list(range(30))
    assert fold.validation.tolist() == list(range(30, 40))


@pytest.mark.parametrize(
    ("split", "problem"),
    [
        (([0, 1], [1, 2]), "the same rows are on both sides"),
        (([0, 1], [2, 2]), "a row number occurs twice on one side"),
        (([0, 1], [40]), "row numbers must lie in 0 … 39"),
        (([-1, 1], [2]), "row numbers must lie in 0 … 39"),
        (([0, 1], []), "each side must be a non-empty list of row numbers or a row mask"),
        (([0.0, 1.0], [2]), "each side must be a non-empty list of row numbers or a row mask"),
        (([[0, 1]], [2]), "each side must be a non-empty list of row numbers or a row mask"),
        (([True, False], [2]), "a row mask must have 40 values"),
        (([False] * 40, [True] * 40), "each side must be a non-empty list"),
        (("a", "b"), "each side must be a non-empty list of row numbers or a row mask"),
        (([0], [1], [2]), "3 parts; give"),
        (([0],), "1 parts; give"),
        (7, "cannot unpack|not iterable"),
    ],
)
def test_unusable_split_is_refused_with_its_number(split, problem):
    good = ([0, 1], [2, 3])
    with pytest.raises(InputError, match=f"folds: fold 1: .*({problem})"):
        make_folds(data_of([10] * 4), [good, split])


def test_all_unusable_splits_are_reported_at_once():
    text = refusal(data_of([10] * 4), [([0], [0]), ([0], [1]), ([0], [99])])
    assert text.startswith("folds: 2 problems\n")
    assert "fold 0: the same rows" in text
    assert "fold 2: row numbers" in text


@pytest.mark.parametrize("folds", [[], (), iter(())])
def test_no_split_at_all_is_refused(folds):
    assert refusal(data_of([10] * 4), folds) == "folds: no split was given."


# ---------------------------------------------------------------- overlap and findings


def test_overlap_table_counts_what_the_two_sides_share():
    data = data_of([10, 10, 20])
    # clusters 0 and half of 1 train; the other half of 1 and 5 rows of 2 validate
    (summary,) = summarize_folds(make_folds(data, [(range(15), range(15, 25))]), data)
    assert summary.to_dict() == {
        "n_training": 15,
        "n_validation": 10,
        "clusters_training": 2,
        "clusters_validation": 2,
        "shared_clusters": 1,
        "shared_rows": 0.5,
        "loss": None,
    }


def findings(folds, data, task="classification"):
    found = fold_findings(make_folds(data, folds), data, task)
    return {finding.code: finding.message for finding in found}


def test_folds_of_whole_clusters_give_no_findings():
    assert findings(None, data_of([5] * 12)) == {}


def test_clusters_on_both_sides_are_noted_with_the_worst_fold():
    data = data_of([10] * 4)
    found = findings([(range(10, 40), range(10)), (range(15), range(15, 40))], data)
    assert "in 1 of 2 folds" in found["B313"]
    assert "up to 20% of the validation rows" in found["B313"]


def test_rows_scored_never_or_twice_are_counted():
    data = data_of([10] * 4)
    found = findings([(range(10, 40), range(10)), (range(20, 40), range(20))], data)
    assert found["B317"] == "20 rows are in no validation fold, others in 1 to 2."


def test_every_repeat_assigns_all_clusters_anew():
    data = data_of([10] * 12)
    folds = make_folds(data, 3, repeats=2)
    assert len(folds) == 6
    first, second = (
        sorted(map(tuple, (f.validation for f in part))) for part in (folds[:3], folds[3:])
    )
    assert first != second
    for part in (folds[:3], folds[3:]):
        assert sorted(np.concatenate([fold.validation for fold in part])) == list(range(120))
    assert "B317" not in findings([(f.training, f.validation) for f in folds], data)


@pytest.mark.parametrize(
    ("sizes", "folds", "random"),
    [
        ([10] * 12, None, True),
        ([10] * 12, 4, True),
        ([10] * 12, 12, False),
        ([10] * 4, None, False),
        ([10] * 12, GroupKFold(3), False),
        ([10] * 12, [([0], [1])], False),
    ],
)
def test_repeating_helps_only_where_chance_decides(sizes, folds, random):
    assert assigns_at_random(data_of(sizes), folds) is random


def test_shuffled_group_splits_may_repeat_rows():
    data = data_of([10] * 4)
    found = findings(GroupShuffleSplit(5, test_size=1, random_state=0), data)
    assert "B317" in found
    assert "B313" not in found


def test_class_that_occurs_in_one_cluster_only_vanishes_from_training():
    rare = np.where(np.arange(40) < 5, "rare", np.where(np.arange(40) % 2, "a", "b"))
    found = findings(None, data_of([10] * 4, rare))
    assert found["B302"].startswith("in folds [0] a class occurs in validation but not in training")


def test_values_of_a_regression_target_are_no_classes():
    assert findings(None, data_of([10] * 4, np.arange(40.0)), task="regression") == {}


def test_folds_are_plain_values():
    fold = Fold(training=np.array([1]), validation=np.array([2]))
    with pytest.raises(AttributeError):
        fold.training = np.array([3])


def test_cross_validation_validates_every_row_that_it_trains_on():
    data = data_of([10] * 4)
    folds = make_folds(data)
    assert cross_validates(folds)
    assert not cross_validates(folds[:1])
    assert not cross_validates(folds[:3])


# ---------------------------------------------------------------- unequal clusters


@pytest.mark.parametrize(
    ("sizes", "folds"),
    [
        ([303, 262, 130, 46], [176, 262, 303]),  # the two small ones go together
        ([50, 50, 50, 50], [50, 50, 50, 50]),
        ([1000, 10, 10, 10], [30, 1000]),  # nothing better exists
        ([20] * 40, [80] * 10),
    ],
)
def test_balanced_leaves_out_several_small_clusters_at_a_time(sizes, folds):
    data = data_of(sizes)
    made = make_folds(data, "balanced")
    assert validation_sizes(made) == folds
    assert_whole_clusters(made, data)


def test_balanced_folds_are_repeated_only_where_chance_decides():
    assert assigns_at_random(data_of([20] * 40), "balanced")
    assert not assigns_at_random(data_of([50] * 4), "balanced")


def test_clusters_of_all_different_sizes_are_still_assigned_anew():
    """The largest first leaves chance no choice; later assignments are a little less even."""
    data = data_of(list(range(10, 40)))
    folds = make_folds(data, 5, repeats=3)
    assignments = [
        frozenset(tuple(fold.validation) for fold in folds[start : start + 5])
        for start in (0, 5, 10)
    ]
    assert len(set(assignments)) == 3
    sizes = [len(fold.validation) for fold in folds]
    assert max(sizes) < 1.2 * min(sizes)
