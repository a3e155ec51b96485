"""Leak shares from pair probabilities: exact when they are, and never out of order."""

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated_records import linked_records

from mlflow_b3 import InputError
from mlflow_b3.linkage import LeakEstimate, PairTable, leak_from_pairs, leak_truth
from mlflow_b3.linkage.leak_sources import row_leak_probability

# --- a hand case: entity a is split in clusters 0 and 1, entity b in 2 and 3, c is whole ----------

TRUE = ["a", "a", "a", "b", "b", "c"]
CLUSTERS = [0, 0, 1, 2, 3, 4]
FOLDS = [0, 0, 1, 0, 0, 1]


def complete_pairs(true):
    true = np.asarray(true)
    first, second = np.triu_indices(len(true), 1)
    return first, second, (true[first] == true[second]).astype(float)


def random_case(rng, rows=30):
    true = rng.integers(0, 10, rows)
    clusters = true * 3 + rng.integers(0, 3, rows)  # linkage splits, it does not merge
    folds = rng.permutation(30)[clusters] % 4
    folds[clusters == clusters[0]], folds[clusters == clusters[-1]] = 0, 1
    return true, clusters, folds


def test_certain_and_complete_pairs_give_the_truth_of_the_hand_case():
    found = leak_from_pairs(*complete_pairs(TRUE), FOLDS, CLUSTERS)
    # fold 0 validates 4 rows, two of them (a, a) with a mate among the 2 of training; fold 1
    # validates 2 rows, one of them (a) with mates among the 4 of training
    assert found.validation.point == pytest.approx((2 / 4 + 1 / 2) / 2)
    assert found.train.point == pytest.approx((1 / 2 + 2 / 4) / 2)
    assert found.row_probability == (1, 1, 1, 0, 0, 0)


@pytest.mark.parametrize("seed", range(5))
def test_certain_and_complete_pairs_give_the_truth(seed):
    rng = np.random.default_rng(seed)
    true, clusters, folds = random_case(rng)
    found = leak_from_pairs(*complete_pairs(true), folds, clusters)
    truth = leak_truth(true, folds, clusters)
    for share, value in ((found.train, truth.p0), (found.validation, truth.p0_validation)):
        assert [share.low, share.point, share.high] == pytest.approx([value] * 3)
    repeated = np.random.default_rng(seed + 100).permutation(30)[clusters] % 3
    splits = [
        (np.flatnonzero(f != k), np.flatnonzero(f == k))
        for f in (folds, repeated)
        for k in np.unique(f)
    ]
    again = leak_from_pairs(*complete_pairs(true), splits, clusters)
    assert again.train.point == pytest.approx(leak_truth(true, splits).p0)
    assert again.validation.point == pytest.approx(leak_truth(true, splits).p0_validation)


def side_by_hand(first, second, p, own, other, weights, clusters):
    """Return low, point, product over pairs and high by plain loops."""
    totals = np.zeros(4)
    n = len(clusters)
    for split in range(own.shape[1]):
        for row in range(n):
            scores, votes = [], {}
            for a, b, chance in zip(first, second, p, strict=True):
                if row not in (a, b):
                    continue
                mate = b if row == a else a
                if own[row, split] and other[mate, split]:
                    scores.append(chance)
                    votes[clusters[mate]] = max(votes.get(clusters[mate], 0), chance)
            values = (
                max(scores, default=0),
                1 - np.prod([1 - vote for vote in votes.values()]),
                1 - np.prod([1 - score for score in scores]),
                min(1, sum(scores)),
            )
            totals += weights[split] * np.array(values) / n
    return totals


@settings(deadline=None, max_examples=60)
@given(seed=st.integers(0, 10**6), levels=st.sampled_from([(0, 1), (0, 0.3, 0.9, 1), None]))
def test_largest_then_votes_then_product_then_sum(seed, levels):
    rng = np.random.default_rng(seed)
    _, clusters, folds = random_case(rng, rows=12)
    first, second = np.triu_indices(12, 1)
    keep = rng.random(len(first)) < 0.5
    first, second = first[keep], second[keep]
    p = rng.random(len(first)) if levels is None else rng.choice(levels, len(first))
    found = leak_from_pairs(first, second, p, folds, clusters)
    validation = folds[:, None] == np.unique(folds)
    for share, own in ((found.train, ~validation), (found.validation, validation)):
        weights = len(folds) / own.sum(axis=0) / own.shape[1]
        low, point, product, high = side_by_hand(first, second, p, own, ~own, weights, clusters)
        assert [share.low, share.point, share.high] == pytest.approx([low, point, high])
        assert share.low <= share.point <= product + 1e-12 <= high + 2e-12


def test_a_second_row_of_the_same_cluster_is_no_second_witness():
    clusters, folds = [0, 1, 1], [0, 1, 1]
    one = leak_from_pairs([0], [1], [0.4], folds, clusters)
    two = leak_from_pairs([0, 0], [1, 2], [0.4, 0.4], folds, clusters)
    assert one.row_probability[0] == two.row_probability[0] == pytest.approx(0.4)
    apart = leak_from_pairs([0, 0], [1, 2], [0.4, 0.4], folds, [0, 1, 2])
    assert apart.row_probability[0] == pytest.approx(1 - 0.6**2)


def test_row_probabilities_are_means_over_the_splits_that_validate_the_row():
    splits = [([1, 2], [0]), ([2, 3], [0, 1]), ([0], [2])]
    found = leak_from_pairs([0], [1], [0.5], splits, [0, 1, 2, 3])
    assert found.row_probability == pytest.approx((0.25, 0, 0, 0))
    r = row_leak_probability([0], [1], [0.5], splits, [0, 1, 2, 3])
    assert r == pytest.approx(found.row_probability)


def test_the_control_counts_mates_that_were_validated_together():
    i, j, p = [0, 0, 1], [1, 2, 3], [0.3, 0.6, 0.9]
    clusters, folds = [0, 1, 2, 2], [0, 0, 1, 1]
    assert row_leak_probability(i, j, p, folds, clusters) == pytest.approx([0.6, 0.9, 0.6, 0.9])
    control = row_leak_probability(i, j, p, folds, clusters, same_side=True)
    assert control == pytest.approx([0.3, 0.3, 0, 0])


def test_fragments_are_those_of_probable_pairs():
    """A row of a cluster of 3 and a row of a cluster of 1 see 3/4 and 1/4 of their entity."""
    found = leak_from_pairs([0, 3], [3, 4], [0.9, 0.0], [0, 0, 0, 1, 1], [0, 0, 0, 1, 2])
    assert set(found.fragments) == {0.25, 0.75}
    assert leak_from_pairs([], [], [], [0, 1], [0, 1]).fragments is None


def test_it_says_what_it_is():
    found = leak_from_pairs([0], [2], [0.2], [0, 0, 1], [0, 0, 1])
    assert (found.kind, found.method, found.wide) == ("uncalibrated", "pairs", False)
    assert any("not a confidence interval" in note for note in found.notes)
    assert any("folds made with the same scores" in note for note in found.notes)
    assert found.to_prior().law == "log-normal"
    checked = leak_from_pairs([0], [2], [0.2], [0, 0, 1], [0, 0, 1], calibrated=True, wide=True)
    assert (checked.kind, checked.wide) == ("estimate", True)
    assert LeakEstimate.from_dict(checked.to_dict()) == checked


def test_folds_that_split_clusters_are_refused_unless_that_is_meant():
    with pytest.raises(InputError, match="allow_split=True"):
        leak_from_pairs([0], [1], [1.0], [0, 1], [0, 0])
    assert leak_from_pairs([0], [1], [1.0], [0, 1], [0, 0], allow_split=True).train.point == 1


def test_on_simulated_records_it_is_an_order_of_magnitude():
    linked = linked_records(noise=0.1)
    folds = np.random.default_rng(0).integers(0, 5, linked.clusters.max() + 1)[linked.clusters]
    found = leak_from_pairs(*linked.pairs, folds, linked.clusters)
    truth = leak_truth(linked.true, folds)
    assert 1 / 3 < found.train.point / truth.p0 < 3
    assert 1 / 3 < found.validation.point / truth.p0_validation < 3


def test_a_million_pairs_and_fifteen_splits_take_seconds():
    rng = np.random.default_rng(0)
    n = 100_000
    pairs = PairTable.of(
        rng.integers(0, n // 2, 10**6), rng.integers(n // 2, n, 10**6), rng.random(10**6) ** 8, n
    )
    clusters = np.arange(n) // 2
    splits = []
    for _ in range(3):
        folds = rng.integers(0, 5, n // 2)[clusters]
        splits += [(np.flatnonzero(folds != k), np.flatnonzero(folds == k)) for k in range(5)]
    start = time.perf_counter()
    leak_from_pairs(*pairs, splits, clusters)
    assert time.perf_counter() - start < 30  # about 5 s; slow machines are allowed for
