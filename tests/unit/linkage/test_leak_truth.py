"""What leaks across folds whose true entities are known, and the folds it is counted in."""

import numpy as np
import pytest

from mlflow_b3.data.folds import Fold
from mlflow_b3.errors import InputError
from mlflow_b3.linkage import PairTable, leak_truth
from mlflow_b3.linkage.leak import LeakShare, Splits, typical_fragments


def test_six_rows_by_hand():
    """Ann's rows are 0, 1 and 2, of which linkage gave the last an id of its own."""
    true = ["Ann", "Ann", "Ann", "Bob", "Bob", "Eve"]
    clusters = [7, 7, 8, 9, 9, 5]
    folds = [0, 0, 1, 1, 0, 0]
    folds[4] = 1  # Bob's rows share a fold, as his cluster does
    leak = leak_truth(true, folds, clusters)
    # fold 0 = {0, 1, 5}, fold 1 = {2, 3, 4}; training on one, validating on the other
    assert leak.p0 == pytest.approx((1 / 3 + 2 / 3) / 2)
    assert leak.p0_validation == pytest.approx((2 / 3 + 1 / 3) / 2)
    assert leak.training_values == pytest.approx((1, 1, 1, 0, 0, 0))
    assert leak.validation_values == pytest.approx((1, 1, 1, 0, 0, 0))
    assert leak.split_counts == (1, 1, 1, 0, 0, 0)
    assert leak.split_rate == 0.5


def test_the_shares_are_the_means_of_the_rows_values():
    rng = np.random.default_rng(0)
    leak = leak_truth(rng.integers(0, 40, 200), rng.integers(0, 5, 200))
    assert leak.p0 == pytest.approx(np.mean(leak.training_values))
    assert leak.p0_validation == pytest.approx(np.mean(leak.validation_values))


@pytest.mark.parametrize("K", [2, 5, 10])
def test_entities_split_in_two_leak_by_the_split_count_identity(K):
    """p0 = σ/K and p0_validation = σ(1 - 1/K), on average over random folds."""
    rng = np.random.default_rng(K)
    true = np.repeat(np.arange(300), 4)
    split = np.isin(true, rng.choice(300, 60, replace=False))
    clusters = np.where(split & (np.arange(1200) % 4 < 2), true + 300, true)
    rate = split.mean()
    shares = []
    for _ in range(200):
        folds = rng.integers(0, K, 600)[clusters]
        leak = leak_truth(true, folds, clusters)
        shares.append((leak.p0, leak.p0_validation))
    assert leak.split_rate == rate == 0.2
    error = np.std(shares, axis=0) / np.sqrt(len(shares))
    expected = np.array([rate / K, rate * (1 - 1 / K)])
    # folds of unequal size weigh rows unequally, which is of the order of 1/clusters
    assert (np.abs(np.mean(shares, axis=0) - expected) <= 3 * error + 0.002 * expected).all()


def test_everything_merged_leaks_nothing():
    """Folds of whole clusters need two of them; here the second has the other entities."""
    leak = leak_truth([0, 0, 1, 1, 2, 2], [0, 0, 0, 0, 1, 1], [0, 0, 0, 0, 1, 1])
    assert (leak.p0, leak.p0_validation, leak.split_rate) == (0, 0, 0)


# --- splits ---------------------------------------------------------------------------------------


def test_folds_come_as_numbers_pairs_or_folds_and_mean_the_same():
    numbers = np.array([0, 0, 1, 1, 2, 2])
    pairs = [(np.flatnonzero(numbers != k), np.flatnonzero(numbers == k)) for k in range(3)]
    folds = [Fold(training=training, validation=validation) for training, validation in pairs]
    first, second, third = Splits.of(numbers), Splits.of(pairs, 6), Splits.of(folds, 6)
    for other in (second, third):
        assert (other.training == first.training).all()
        assert (other.validation == first.validation).all()
    assert Splits.of(first) is first
    assert first.n_folds == pytest.approx(3)
    assert Splits.of(np.array(["b", "b", "a"])).n_rows == 3


def test_splits_count_equally_or_by_their_validation_rows():
    """By rows, p0_validation is the share of all validation rows, as a pooled score needs it."""
    true, folds = [0, 0, 1, 2, 3, 4], [0, 1, 1, 1, 1, 1]
    assert leak_truth(true, folds).p0_validation == pytest.approx((1 + 1 / 5) / 2)
    by_rows = Splits.of(np.array(folds), by_rows=True)
    assert by_rows.weights == pytest.approx([1 / 6, 5 / 6])
    assert leak_truth(true, by_rows).p0_validation == pytest.approx(2 / 6)


def test_a_held_out_part_has_as_many_folds_as_its_share_says():
    assert Splits.of([([0, 1, 2], [3])], 4).n_folds == pytest.approx(4)


@pytest.mark.parametrize(
    ("folds", "message"),
    [
        ("five", "Give a fold number for each row"),
        (3, "Give a fold number for each row"),
        ([0, 0, 0, 0], "only one fold"),
        ([0, 1], "folds has 2 rows; there are 4"),
        ([([0, 1], [])], "split 0 has no validation rows"),
        ([([0, 1], [1, 2])], "a row is on both sides"),
        ([([0], [1], [2])], "must be \\(training rows, validation rows\\)"),
        ([([0], [9])], "row numbers must lie in 0 … 3"),
    ],
)
def test_folds_that_are_none_are_refused(folds, message):
    with pytest.raises(InputError, match=message):
        Splits.of(folds, 4)


def test_folds_that_split_a_predicted_cluster_are_refused_unless_that_is_meant():
    splits, clusters = Splits.of(np.array([0, 1, 1])), np.array([0, 0, 1])
    with pytest.raises(InputError, match="1 predicted clusters have rows on both sides"):
        splits.require_whole(clusters)
    splits.require_whole(clusters, allow_split=True)


def test_missing_labels_are_refused():
    with pytest.raises(InputError, match="true is missing in 1 rows"):
        leak_truth(["Ann", None, "Bob"], [0, 1, 1])
    with pytest.raises(InputError, match="clusters has 2 labels; there are 3 rows"):
        leak_truth(["Ann", "Ann", "Bob"], [0, 1, 1], [0, 1])


# --- pairs, shares and fragments --------------------------------------------------------------------


def test_a_pair_counts_once_with_its_larger_probability():
    pairs = PairTable.of([0, 1, 2], [1, 0, 3], [0.2, 0.9, 0.4])
    assert pairs.first.tolist() == [0, 2]
    assert pairs.second.tolist() == [1, 3]
    assert pairs.probability.tolist() == [0.9, 0.4]
    assert (len(pairs), pairs.n) == (2, 4)


def test_all_that_is_wrong_with_pairs_is_said_at_once():
    with pytest.raises(InputError, match="3 problems") as error:
        PairTable.of([0, 1, 7], [0, 2, 1], [0.5, np.nan, 50.0], 3)
    for words in ("row numbers must lie in 0 … 2", "same row twice", "2 match probabilities"):
        assert words in str(error.value)
    with pytest.raises(InputError, match="equal length"):
        PairTable.of([0, 1], [1], [0.5])
    with pytest.raises(InputError, match="whole numbers"):
        PairTable.of(["a"], ["b"], [0.5])


def test_no_pairs_at_all_are_pairs():
    assert len(PairTable.of([], [], [], 5)) == 0


def test_a_share_outside_its_interval_is_none():
    for values in ((0.5, 0.6, 0.7), (0.5, 0.1, 1.2), (float("nan"), 0.0, 1.0)):
        point, low, high = values
        with pytest.raises(InputError, match="in this order"):
            LeakShare(point=point, low=low, high=high)


def test_a_few_fragments_stand_for_many():
    """Equally likely quantiles: their mean is near that of all."""
    shares = np.random.default_rng(0).beta(2, 3, 5000)
    typical = typical_fragments(shares)
    assert len(typical) == 19
    assert np.mean(typical) == pytest.approx(shares.mean(), abs=0.01)
    assert typical_fragments([0.0, 1.0]) is None
    assert typical_fragments([0.25, 0.75]) == (0.25, 0.75)


def test_fragments_count_by_their_weights():
    typical = typical_fragments([0.2, 0.8], [3, 1])
    assert np.mean(np.array(typical) == 0.2) == pytest.approx(0.75, abs=0.05)
