"""Leak shares from reviewed rows: exact when all are, covered by the interval when some are."""

import math
from functools import cache

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from mlflow_b3.errors import InputError
from mlflow_b3.linkage import (
    LeakEstimate,
    ResolvedRows,
    leak_from_resolved_rows,
    leak_from_split_counts,
    leak_truth,
    sample_rows,
)
from mlflow_b3.linkage.leak_sources import split_counts_of
from mlflow_b3.linkage.resolved import SampledRows

pytestmark = pytest.mark.newest


@cache
def linked_table(split, seed=1, entities=1500, K=5):
    """Return true entities, predicted clusters and folds: some entities fall into 2 or 3 parts."""
    rng = np.random.default_rng(seed)
    true = np.repeat(np.arange(entities), 1 + rng.poisson(1.6, entities))
    parts = np.where(rng.random(entities) < split, 2 + rng.poisson(0.3, entities), 1)
    clusters = np.unique(
        true * 100 + (rng.random(len(true)) * parts[true]).astype(int), return_inverse=True
    )[1]
    return true, clusters, rng.integers(0, K, clusters.max() + 1)[clusters]


def all_mates(true):
    """Return what a faultless reviewer finds, for every row."""
    groups = pd.Series(true).groupby(true).groups
    return [[mate for mate in groups[entity] if mate != row] for row, entity in enumerate(true)]


def suspicion(true, clusters, rng):
    """Return scores that see half of the split entities, and suspect some rows wrongly."""
    split = np.array(leak_truth(true, clusters, clusters).split_counts) > 0
    visible = split & (rng.random(true.max() + 1) < 0.5)[true]
    noise = np.where(rng.random(len(true)) < 0.3, rng.beta(0.3, 6, len(true)), 0.0)
    return np.where(visible, rng.beta(1, 1.5, len(true)), noise)


# Six rows: entity a in clusters 0 and 1, b whole in 2, c whole in 3; folds 0 = {0, 3}, 1 = {1, 2}.
CLUSTERS = [0, 0, 1, 2, 2, 3]
FOLDS = [0, 0, 1, 1, 1, 0]
TRUE = list("aaabbc")


def test_a_review_of_all_rows_is_the_truth():
    """Nothing is left to chance, so the interval is the point."""
    estimate = leak_from_resolved_rows(
        range(6), [[1, 2], [0, 2], [0, 1], [4], [3], []], FOLDS, CLUSTERS
    )
    truth = leak_truth(TRUE, FOLDS, CLUSTERS)
    assert (estimate.kind, estimate.method) == ("estimate", "resolved-rows")
    for share, true in ((estimate.train, truth.p0), (estimate.validation, truth.p0_validation)):
        assert share.point == pytest.approx(true)
        assert share.low == pytest.approx(true)
        assert share.high == pytest.approx(true)
    assert truth.p0 == 0.5
    assert estimate.fragments == pytest.approx((1 / 3, 2 / 3, 2 / 3))
    assert LeakEstimate.from_dict(estimate.to_dict()) == estimate


def test_any_splits_can_be_asked_about():
    """Three repeats of five folds, and a single split with rows that are on neither side."""
    true, clusters, _ = linked_table(0.3, entities=150)
    mates, rows = all_mates(true), np.arange(len(true))
    rng = np.random.default_rng(0)
    repeats = []
    for _ in range(3):
        fold = rng.integers(0, 5, clusters.max() + 1)[clusters]
        repeats += [(np.flatnonzero(fold != k), np.flatnonzero(fold == k)) for k in range(5)]
    part = rng.integers(0, 4, clusters.max() + 1)[clusters]
    single = [(np.flatnonzero(part > 1), np.flatnonzero(part == 0))]
    for splits in (repeats, single):
        estimate = leak_from_resolved_rows(rows, mates, splits, clusters)
        truth = leak_truth(true, splits, clusters)
        assert estimate.train.point == pytest.approx(truth.p0)
        assert estimate.validation.point == pytest.approx(truth.p0_validation)


def test_mates_in_the_own_cluster_count_only_where_folds_split_clusters():
    with_own = leak_from_resolved_rows([3, 5], [[4], []], FOLDS, CLUSTERS)
    without = leak_from_resolved_rows([3, 5], [[], []], FOLDS, CLUSTERS)
    assert with_own.to_dict() == without.to_dict()
    broken = [0, 0, 1, 1, 0, 0]
    with pytest.raises(InputError, match="allow_split=True"):
        leak_from_resolved_rows([3, 5], [[4], []], broken, CLUSTERS)
    leaking = leak_from_resolved_rows([3, 5], [[4], []], broken, CLUSTERS, allow_split=True)
    assert leaking.validation.point > 0


def test_mates_may_be_given_by_row():
    by_row = leak_from_resolved_rows([2, 3], {3: [4], 2: [0, 1]}, FOLDS, CLUSTERS)
    in_order = leak_from_resolved_rows([2, 3], [[0, 1], [4]], FOLDS, CLUSTERS)
    assert by_row == in_order


@pytest.mark.parametrize("nothing", [None, math.nan, "", 4])
def test_missing_is_not_none(nothing):
    with pytest.raises(InputError, match=r"for 1 of 2 rows\. An empty list says"):
        leak_from_resolved_rows([2, 3], [[0], nothing], FOLDS, CLUSTERS)


def test_all_problems_with_mates_and_rows_are_named():
    with pytest.raises(InputError, match=r"outside 0 … 5(.|\n)*mates of themselves"):
        leak_from_resolved_rows([2, 3], [[6], [3]], FOLDS, CLUSTERS)
    with pytest.raises(InputError, match=r"must lie in 0 … 5(.|\n)*more than once"):
        leak_from_resolved_rows([2, 2, 9], [[], [], []], FOLDS, CLUSTERS)
    with pytest.raises(InputError, match="mates has 1 entries for 2 rows"):
        leak_from_resolved_rows([2, 3], [[]], FOLDS, CLUSTERS)
    with pytest.raises(InputError, match="parse_review"):
        leak_from_resolved_rows([2], [["r7"]], FOLDS, CLUSTERS)
    with pytest.raises(InputError, match="n=7: clusters has 6 rows"):
        leak_from_resolved_rows([2], [[]], FOLDS, CLUSTERS, 7)


def test_zeros_and_ones_have_the_interval_of_clopper_and_pearson():
    """Up to the 4000 draws: the standard error of such a quantile is about 3% of its distance."""
    for leaks, count in ((0, 40), (1, 40), (7, 60), (60, 60)):
        values = np.repeat([1.0, 0.0], [leaks, count - leaks])
        share = SampledRows.of(None, count, None).share(values, 1.0, 0.95, seed=0)
        exact = stats.binomtest(leaks, count).proportion_ci(0.95, method="exact")
        reach = max(exact.high - share.point, share.point - exact.low)
        assert share.low == pytest.approx(exact.low, abs=0.08 * reach)
        assert share.high == pytest.approx(exact.high, abs=0.08 * reach)


def test_without_a_leak_the_limit_is_that_of_clopper_and_pearson():
    _, clusters, folds = linked_table(0.3)
    estimate = leak_from_resolved_rows(range(100), [[]] * 100, folds, clusters)
    limit = 1 - 0.025 ** (1 / 100)
    assert estimate.validation.point == estimate.validation.low == 0
    # folds are a little uneven, the table is not infinite, and the draws are 4000
    assert estimate.validation.high == pytest.approx(limit, rel=0.1)
    assert estimate.train.high == pytest.approx(limit / 4, rel=0.1)
    assert "Only 0 of 100 reviewed rows" in estimate.notes[0]


@pytest.mark.parametrize(
    ("split", "B", "draws", "scored"),
    [
        (0.3, 200, 200, False),  # a fifth of the rows is split
        (0.3, 50, 100, False),
        (0.09, 200, 100, False),  # a twentieth is
        (0.09, 50, 100, False),
        (0.09, 200, 100, True),
    ],
)
def test_intervals_cover(split, B, draws, scored):
    """Where 95% cover, fewer than 90% do in 1 of 1000 tests of 200 draws, 1 of 90 of 100."""
    true, clusters, folds = linked_table(split)
    mates, truth = all_mates(true), leak_truth(true, folds, clusters)
    scores = suspicion(true, clusters, np.random.default_rng(3)) if scored else None
    hits = np.zeros(2)
    for draw in range(draws):
        sample = sample_rows(len(true), B, scores, seed=draw)
        found = [mates[row] for row in sample.rows]
        estimate = ResolvedRows.of(sample.rows, found, sample.n, sample.strata).leak(
            folds, clusters, seed=draw
        )
        hits += (
            estimate.train.low <= truth.p0 <= estimate.train.high,
            estimate.validation.low <= truth.p0_validation <= estimate.validation.high,
        )
    assert (hits >= 0.9 * draws).all()


def test_strata_are_weighted_by_their_size():
    """Stratum x stands for 4 rows, y for 2; in x one of two reviewed rows leaks, in y none."""
    estimate = leak_from_resolved_rows(
        [2, 5, 3], [[0, 1], [], []], FOLDS, CLUSTERS, strata=(["x", "x", "y"], {"x": 4, "y": 2})
    )
    assert estimate.validation.point == pytest.approx(4 / 6 * 1 / 2)


def test_wrong_strata_are_refused():
    def leak(strata):
        return leak_from_resolved_rows([2, 3], [[0], []], FOLDS, CLUSTERS, strata=strata)

    with pytest.raises(InputError, match=r"\(labels, \{label: rows\}\)"):
        leak(["x", "y"])
    with pytest.raises(InputError, match="no number of rows is given for"):
        leak((["x", "y"], {"x": 6}))
    with pytest.raises(InputError, match="no row was reviewed in"):
        leak((["x", "x"], {"x": 3, "y": 3}))
    with pytest.raises(InputError, match="5 rows together; the table has 6"):
        leak((["x", "y"], {"x": 3, "y": 2}))
    with pytest.raises(InputError, match="fewer rows than were reviewed"):
        leak((["x", "x"], {"x": 1}))


def test_few_rows_of_a_stratum_are_doubted():
    """One row each of two strata that did not leak says next to nothing."""
    sample = SampledRows.of((["x", "y"], {"x": 500, "y": 500}), 2, 1000)
    share = sample.share(np.zeros(2), 1.0, 0.95, seed=0)
    assert share.high > 0.8


def test_a_stratum_that_was_reviewed_wholly_is_not_doubted():
    labels = ["few"] * 10 + ["rest"] * 100
    sample = SampledRows.of((labels, {"few": 10, "rest": 100}), 110, 110)
    share = sample.share(np.repeat([1.0, 0.0], [4, 106]), 1.0, 0.95, seed=0)
    assert share.low == pytest.approx(share.high)


def test_the_reviewers_mistakes_are_taken_out():
    """σ_obs = 3/6, so σ = (0.5 − 0.1)/(0.8 + 0.9 − 1); leak shares change in proportion."""
    mates = [[1, 2], [0, 2], [0, 1], [4], [3], []]
    plain = leak_from_resolved_rows(range(6), mates, FOLDS, CLUSTERS)
    mended = leak_from_resolved_rows(
        range(6), mates, FOLDS, CLUSTERS, sensitivity=0.8, specificity=0.9
    )
    factor = (0.5 - 0.1) / 0.7 / 0.5
    assert mended.train.point == pytest.approx(plain.train.point * factor)
    assert mended.validation.point == pytest.approx(plain.validation.point * factor)
    assert "sensitivity 0.8" in mended.notes[-1]


def test_a_correction_that_goes_too_far_is_cut_and_said():
    estimate = leak_from_resolved_rows(
        [3, 4, 5, 0], [[4], [3], [], []], FOLDS, CLUSTERS, specificity=0.8
    )
    assert estimate.validation.point == 0
    assert "cut to [0, 1]" in estimate.notes[-1]


def test_a_review_that_says_nothing_is_refused():
    with pytest.raises(InputError, match="sum to 1 or less"):
        leak_from_resolved_rows([5], [[]], FOLDS, CLUSTERS, sensitivity=0.4, specificity=0.6)
    with pytest.raises(InputError, match="sensitivity=nan"):
        leak_from_resolved_rows([5], [[]], FOLDS, CLUSTERS, sensitivity=math.nan)


def test_a_reviewer_with_known_mistakes_gives_unbiased_shares():
    """A reviewer misses a fifth of split rows; 3% of the others get a wrong mate in another cluster."""
    true, clusters, folds = linked_table(0.3)
    mates, truth = all_mates(true), leak_truth(true, folds, clusters)
    split = np.array(truth.split_counts) > 0
    rng, points = np.random.default_rng(8), []
    for draw in range(60):
        rows = sample_rows(len(true), 400, seed=draw).rows
        found = [mates[row] if rng.random() < 0.8 or not split[row] else [] for row in rows]
        for place, row in enumerate(rows.tolist()):
            if not split[row] and rng.random() < 0.03:
                wrong = rng.choice(np.flatnonzero(clusters != clusters[row]))
                found[place] = [*found[place], wrong]
        estimate = leak_from_resolved_rows(
            rows, found, folds, clusters, sensitivity=0.8, specificity=0.97, seed=draw
        )
        points.append(estimate.validation.point)
    error = np.std(points) / math.sqrt(len(points))
    # wrong mates fall into other folds as often as true ones do, up to entities in three parts
    assert np.mean(points) == pytest.approx(truth.p0_validation, abs=3 * error + 0.003)


def test_split_counts_are_the_other_clusters_with_mates():
    counts = split_counts_of([2, 0, 5], [[0, 1, 3], [1, 2], []], CLUSTERS)
    assert counts.tolist() == [2, 1, 0]


def test_split_counts_give_leak_shares_for_any_number_of_folds():
    """M ∈ {0, 1}: p0 = σ/K and p0_validation = σ(1 − 1/K), the mean over random folds."""
    rng, sigma = np.random.default_rng(2), 0.25
    clusters, true = np.arange(800), np.arange(800)
    true[:100] = true[100:200]  # 200 of 800 rows are split in two
    for K in (2, 5, 10):
        estimate = leak_from_split_counts((np.arange(800) < 200).astype(int), K)
        assert estimate.train.point == pytest.approx(sigma / K)
        assert estimate.validation.point == pytest.approx(sigma * (1 - 1 / K))
        seen = [leak_truth(true, rng.integers(0, K, 800), clusters) for _ in range(60)]
        for share, values in (
            (estimate.train, [leak.p0 for leak in seen]),
            (estimate.validation, [leak.p0_validation for leak in seen]),
        ):
            assert np.mean(values) == pytest.approx(share.point, abs=3 * np.std(values) / 60**0.5)


def test_split_counts_hold_for_entities_in_many_parts():
    true, clusters, _ = linked_table(0.5)
    counts = leak_truth(true, clusters, clusters).split_counts
    estimate = leak_from_split_counts(counts, 4)
    rng = np.random.default_rng(4)
    folds = [rng.integers(0, 4, clusters.max() + 1)[clusters] for _ in range(30)]
    seen = [leak_truth(true, fold, clusters) for fold in folds]
    for share, values in (
        (estimate.train, [leak.p0 for leak in seen]),
        (estimate.validation, [leak.p0_validation for leak in seen]),
    ):
        assert np.mean(values) == pytest.approx(share.point, abs=3 * np.std(values) / 30**0.5)


@pytest.mark.parametrize(
    ("m", "K", "words"),
    [
        ([0, -1], 5, "must not be negative"),
        ([0.5], 5, "whole number"),
        ([], 5, "whole number"),
        ([0, 1], 1, "K=1 must be a number above 1"),
        ([0, 1], math.nan, "K=nan"),
    ],
)
def test_wrong_split_counts_are_refused(m, K, words):
    with pytest.raises(InputError, match=words):
        leak_from_split_counts(m, K)


def test_rows_that_do_not_list_those_that_list_them_are_counted():
    """Row 2 lists 0 and 1; 0 lists 2, but 1 and 5 say that they have no mates."""
    rows, mates = [2, 0, 1, 5, 3], [[0, 1, 5], [2], [], [], [0, 4]]
    assert ResolvedRows.of(rows, mates, 6).contradictions() == 3  # 1, 5, and 0 for row 3
    note = "3 reviewed rows are listed as mates of others but do not list them"
    assert note in leak_from_resolved_rows(rows, mates, FOLDS, CLUSTERS).notes[-1]


def test_mates_of_the_own_cluster_need_not_be_listed_both_ways():
    rows, mates = [0, 1], [[1], []]
    resolved = ResolvedRows.of(rows, mates, 6, noted_clusters=["A", "A"])
    assert resolved.contradictions() == resolved.contradictions(CLUSTERS) == 0
    assert ResolvedRows.of(rows, mates, 6).contradictions() == 1
    assert ResolvedRows.of(rows, mates, 6).contradictions(range(6)) == 1
    notes = leak_from_resolved_rows(rows, mates, FOLDS, CLUSTERS).notes
    assert not any("do not list them" in note for note in notes)


def test_noted_clusters_are_one_for_each_row():
    with pytest.raises(InputError, match="noted_clusters has 1 labels for 2 rows"):
        ResolvedRows.of([0, 1], [[], []], 6, noted_clusters=["A"])
    assert ResolvedRows.of([0, 1], [[], []], 6).changed_clusters(CLUSTERS) is None
