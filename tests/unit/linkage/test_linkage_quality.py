"""Leak shares from one published figure: bounds that hold, and how loose they are."""

import math

import numpy as np
import pytest

from mlflow_b3.errors import InputError
from mlflow_b3.linkage import leak_from_quality, leak_from_split_rate, leak_truth


def falling_apart(split, seed=0, entities=1000):
    """Return true entities and clusters of a linkage that splits some entities and merges others."""
    rng = np.random.default_rng(seed)
    true = np.repeat(np.arange(entities), 1 + rng.poisson(1.6, entities))
    broken = rng.random(entities) < split
    clusters = 2 * true + (broken[true] & (rng.random(len(true)) < 0.5))
    merged = rng.random(2 * entities) < 0.03
    return true, np.where(merged[clusters], clusters - clusters % 20, clusters)


def pair_counts(labels):
    sizes = np.unique(labels, return_counts=True)[1]
    return int((sizes * (sizes - 1) // 2).sum())


def quality(true, clusters):
    both = pair_counts(true * 10_000 + clusters)
    return both / pair_counts(true), both / pair_counts(clusters)


# Clusters of 4, 2 and 1 rows: 7 pairs.
CLUSTERS = ["a", "a", "a", "a", "b", "b", "c"]


def test_the_bound_is_the_formula():
    """FN = 0.9·7·(1 − 0.7)/0.7 = 2.7 missed pairs of 7 rows, in 5 folds."""
    bound = leak_from_quality(0.7, 0.9, CLUSTERS, 5)
    assert bound.kind == "upper"
    assert bound.train.point is None
    assert bound.train.low == 0
    assert bound.train.high == pytest.approx(2 * 2.7 / (7 * 5))
    assert bound.validation.high == pytest.approx(2 * 2.7 * 0.8 / 7)
    assert "Recall is treated as exact" in " ".join(bound.notes)
    assert bound.to_prior().law == "range"


def test_the_bound_never_exceeds_all_rows():
    assert leak_from_quality(0.05, 1.0, CLUSTERS, 5).validation.high == 1


def test_a_perfect_linkage_leaks_nothing():
    assert leak_from_quality(1.0, 1.0, CLUSTERS, 5).validation.high == 0


@pytest.mark.parametrize(("split", "K"), [(0.1, 5), (0.3, 5), (0.3, 2.5)])
def test_the_bound_holds_on_average_over_random_folds(split, K):
    """The mean of the true shares over 40 draws of folds stays below, and is of the same size."""
    true, clusters = falling_apart(split)
    recall, precision = quality(true, clusters)
    assert precision < 1
    bound = leak_from_quality(recall, precision, clusters, K)
    rng, seen = np.random.default_rng(1), []
    for _ in range(40):
        chance = rng.random(clusters.max() + 1)[clusters]
        fold = chance < 1 / K
        seen.append(leak_truth(true, [(np.flatnonzero(~fold), np.flatnonzero(fold))], clusters))
    for share, values in (
        (bound.train, [leak.p0 for leak in seen]),
        (bound.validation, [leak.p0_validation for leak in seen]),
    ):
        assert np.mean(values) <= share.high <= 2.5 * np.mean(values)


def test_the_limit_of_a_measured_recall_holds():
    """Recall measured on 100 true pairs: 95% of the limits must exceed the bound of exact recall."""
    true, clusters = falling_apart(0.3)
    recall, precision = quality(true, clusters)
    exact = leak_from_quality(recall, precision, clusters, 5).train.high
    rng = np.random.default_rng(3)
    hits = 0
    for _ in range(400):
        limit = leak_from_quality(
            rng.binomial(100, recall) / 100,
            rng.binomial(200, precision) / 200,
            clusters,
            5,
            100,
            precision_n=200,
        )
        hits += limit.train.high >= exact
    assert hits / 400 >= 0.95 - 3 * math.sqrt(0.95 * 0.05 / 400)


def test_precision_counts_as_one_unless_it_was_measured():
    worst = leak_from_quality(0.7, None, CLUSTERS, 5, 300)
    assert leak_from_quality(0.7, 0.9, CLUSTERS, 5, 300) == worst
    assert leak_from_quality(0.7, 0.9, CLUSTERS, 5, 300, precision_n=10**6).train.high < (
        worst.train.high
    )
    assert worst.n_labels == 300
    z = 1.6449  # Wilson's lower limit of 210/300, one-sided
    recall = (0.7 + z**2 / 600 - z * math.sqrt(0.7 * 0.3 / 300 + (z / 600) ** 2)) / (1 + z**2 / 300)
    assert worst.train.high == pytest.approx(2 * 7 * (1 - recall) / recall / 35, rel=1e-4)


def test_clusters_without_pairs_have_no_recall():
    with pytest.raises(InputError, match="nothing was linked"):
        leak_from_quality(0.9, 0.9, range(10), 5)


def test_all_wrong_figures_are_named_at_once():
    with pytest.raises(InputError, match=r"4 problems(.|\n)*recall=nan(.|\n)*precision=0"):
        leak_from_quality(math.nan, 0, CLUSTERS, 5, 0, precision_n=2.5)
    with pytest.raises(InputError, match="without a precision"):
        leak_from_quality(0.9, None, CLUSTERS, 5, 100, precision_n=50)


def test_a_split_rate_gives_a_point_where_entities_have_two_parts_at_most():
    estimate = leak_from_split_rate(0.2, 5)
    assert estimate.train.point == pytest.approx(0.04)
    assert estimate.validation.point == pytest.approx(0.16)
    assert estimate.validation.low == estimate.validation.high


def test_more_parts_and_ranges_give_ranges():
    """p0 ∈ [0.1/5, 0.2·(1 − 0.8³)], p0_validation ∈ [0.1·0.8, 0.2·(1 − 5⁻³)]."""
    estimate = leak_from_split_rate((0.1, 0.2), 5, 3)
    assert estimate.train.point is None
    assert (estimate.train.low, estimate.train.high) == pytest.approx((0.02, 0.2 * (1 - 0.8**3)))
    assert (estimate.validation.low, estimate.validation.high) == pytest.approx(
        (0.08, 0.2 * (1 - 1 / 125))
    )
    assert estimate.to_prior().law == "range"


@pytest.mark.parametrize("m", [1, 2, 3])
def test_the_ends_are_reached_when_all_split_rows_have_as_many_parts(m):
    rng = np.random.default_rng(m)
    true = np.repeat(np.arange(300), m + 1)  # every row is split into m + 1 clusters
    folds = [rng.integers(0, 4, len(true)) for _ in range(40)]
    seen = [leak_truth(true, fold, np.arange(len(true))) for fold in folds]
    estimate = leak_from_split_rate(1.0, 4, m)
    for share, values in (
        (estimate.train, [leak.p0 for leak in seen]),
        (estimate.validation, [leak.p0_validation for leak in seen]),
    ):
        assert np.mean(values) == pytest.approx(share.high, abs=3 * np.std(values) / 40**0.5)


@pytest.mark.parametrize("rate", [-0.1, 1.2, math.nan, (0.3, 0.2), "0.2", True, (0.1, 0.2, 0.3)])
def test_split_rates_that_are_none_are_refused(rate):
    with pytest.raises(InputError, match="split_rate="):
        leak_from_split_rate(rate, 5)


def test_wrong_parts_and_levels_are_refused():
    with pytest.raises(InputError, match="m_max=0"):
        leak_from_split_rate(0.2, 5, 0)
    with pytest.raises(InputError, match="level=95"):
        leak_from_split_rate(0.2, 5, level=95)


def test_percentages_are_recognised():
    with pytest.raises(
        InputError, match=r"recall=90 .* not a percentage(.|\n)*precision=99 .* not"
    ):
        leak_from_quality(90, 99, CLUSTERS, 5)
    with pytest.raises(InputError, match=r"split_rate=20 .* Give a share, not a percentage"):
        leak_from_split_rate(20, 5)
    with pytest.raises(InputError, match=r"split_rate=-1") as error:
        leak_from_split_rate(-1, 5)
    assert "percentage" not in str(error.value)


def test_numbers_of_pairs_have_no_name_that_an_audit_calls_otherwise():
    with pytest.raises(InputError, match="number of pairs behind the recall, 0, must") as error:
        leak_from_quality(0.9, None, CLUSTERS, 5, 0)
    assert "recall_n" not in str(error.value)
    with pytest.raises(InputError, match="pairs behind the precision, 50, was given without"):
        leak_from_quality(0.9, None, CLUSTERS, 5, 100, precision_n=50)
