"""Folds that keep probable mates together: what they guarantee, save and cost."""

import time

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated_records import linked_records

from mlflow_b3 import InputError
from mlflow_b3.data.folds import make_folds
from mlflow_b3.data.table import ModelInputs, prepare
from mlflow_b3.linkage import leak_curve, leak_safe_folds, leak_truth, purge
from mlflow_b3.linkage.folds import LeakCurve, LeakSafeFolds, purge_mask, safe_groups
from mlflow_b3.linkage.leak import Splits

pytestmark = pytest.mark.newest

# --- a chain of ten clusters of two rows, linked ever more weakly ----------------------------------

CHAIN = np.repeat(np.arange(10), 2)
LINKS = (np.arange(1, 19, 2), np.arange(2, 20, 2), np.linspace(0.9, 0.1, 9))


def test_pairs_from_the_threshold_on_stay_together():
    made = safe_groups(*LINKS, 0.5, CHAIN, max_group=1.0)
    assert made.groups == (0,) * 12 + (1, 1, 2, 2, 3, 3, 4, 4)  # 0.9, 0.8, … 0.5 hold
    assert (made.n_groups, made.cut_pairs, made.raised_to) == (5, 0, None)
    assert made.largest_group == 12 / 20


def test_groups_do_not_snowball():
    made = safe_groups(*LINKS, 0.05, CHAIN, max_group=0.3)
    sizes = np.bincount(made.groups)
    assert sizes.max() == 6
    # clusters 0 to 2 fill a group with the links 0.9 and 0.8, so that 0.7 is the first to be cut
    assert made.raised_to == pytest.approx(0.7)
    assert made.cut_pairs == 3


def test_a_cluster_larger_than_allowed_stays_whole():
    clusters = [0] * 8 + [1, 2]
    made = safe_groups([7, 8], [8, 9], [0.9, 0.8], 0.5, clusters, max_group=0.1)
    assert made.groups == (0,) * 8 + (1, 1)
    assert made.largest_group == 0.8


@settings(deadline=None, max_examples=60)
@given(seed=st.integers(0, 10**6), threshold=st.floats(0.05, 1), max_group=st.floats(0.02, 1))
def test_what_groups_guarantee(seed, threshold, max_group):
    rng = np.random.default_rng(seed)
    clusters = rng.integers(0, 25, 40)
    first, second = np.triu_indices(40, 1)
    keep = rng.random(len(first)) < 0.1
    first, second, p = first[keep], second[keep], rng.random(keep.sum())
    made = safe_groups(first, second, p, threshold, clusters, max_group)
    groups = np.array(made.groups)
    assert all(len(np.unique(groups[clusters == label])) == 1 for label in np.unique(clusters))
    assert np.bincount(groups).max() <= max(max_group * 40, np.bincount(clusters).max())
    apart = groups[first] != groups[second]
    assert made.cut_pairs == (apart & (p >= threshold)).sum()
    assert not (apart & (p > (made.raised_to or threshold))).any()


def test_folds_are_balanced_whole_groups():
    linked = linked_records(noise=0.1)
    made = leak_safe_folds(*linked.pairs, 0.1, 5, linked.clusters)
    Splits.of(made.folds).require_whole(np.array(made.groups))
    assert made.imbalance < 0.01
    assert made.largest_group <= 0.05
    assert LeakSafeFolds.from_dict(made.to_dict()) == made
    assert leak_safe_folds(*linked.pairs, 0.1, 5, linked.clusters) == made
    assert leak_safe_folds(*linked.pairs, 0.1, 5, linked.clusters, seed=1) != made


def test_an_audit_can_be_given_such_folds_and_purged_splits():
    made = leak_safe_folds(*LINKS, 0.5, 2, CHAIN, max_group=1.0)
    frame = pd.DataFrame({"x": np.arange(20.0), "y": np.arange(20.0), "c": CHAIN})
    data = prepare(frame, target="y", cluster="c", task="regression", inputs=ModelInputs())
    folds = make_folds(data, made)
    assert [fold.validation.tolist() for fold in folds] == [
        np.flatnonzero(np.array(made.folds) == fold).tolist() for fold in range(2)
    ]
    purged = make_folds(data, purge(*LINKS, CHAIN % 2, CHAIN, 0.85))
    assert [len(fold.training) for fold in purged] == [8, 8]  # the 0.9 link drops a cluster each
    with pytest.raises(InputError, match="3 rows; these folds were made for 20"):
        next(made.split(np.zeros((3, 1))))


def test_purging_drops_whole_training_clusters_linked_to_validation():
    folds, clusters = [0, 0, 1, 1, 1], [0, 0, 1, 1, 2]
    drop = purge_mask([0], [2], [0.4], folds, clusters, 0.3)
    assert drop.T.tolist() == [[False, False, True, True, False], [True, True, False, False, False]]
    assert not purge_mask([0], [2], [0.4], folds, clusters, 0.5).any()


def test_purged_splits_have_no_probable_pair_across():
    linked = linked_records(noise=0.1)
    plain = leak_safe_folds([], [], [], 1, 5, linked.clusters)
    first, second, p = linked.pairs
    for training, validation in purge(first, second, p, plain.folds, linked.clusters, 0.1):
        across = np.isin(first, training) & np.isin(second, validation)
        across |= np.isin(second, training) & np.isin(first, validation)
        assert p[across].max() < 0.1


# --- what they save -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def curves():
    """Curves with the truth of four simulated linkages at each of two noise levels."""
    made = {}
    for noise in (0.05, 0.1):
        for seed in range(4):
            linked = linked_records(seed, noise=noise)
            made[noise, seed] = leak_curve(
                *linked.pairs,
                5,
                linked.clusters,
                leak=lambda folds, linked=linked: leak_truth(linked.true, folds),
            )
    return made


def mean_leak(curves, lever, place, side="train"):
    """Return the leak left at one threshold, as a share of that without a lever."""
    left = [
        getattr(curve.of(lever)[place], side).point / getattr(curve.of("none")[0], side).point
        for curve in curves.values()
    ]
    return np.mean(left)


@pytest.mark.parametrize("lever", ["folds", "purging"])
def test_lower_thresholds_leak_less(curves, lever):
    left = [mean_leak(curves, lever, place) for place in range(4)]  # 0.5, 0.1, 0.05, 0.01
    assert left == sorted(left, reverse=True)
    assert left[0] < 0.85
    assert left[1] < 0.55
    assert left[3] < 0.4


def test_validation_rows_leak_less_too(curves):
    assert mean_leak(curves, "folds", 1, "validation") < 0.55


def test_scores_claim_more_than_is_saved(curves):
    """The mass left falls faster than the leak: it must not be read as one."""
    for lever in ("folds", "purging"):
        claimed = np.mean([curve.of(lever)[1].score_mass_left for curve in curves.values()])
        assert claimed < mean_leak(curves, lever, 1)


def test_the_price_is_told(curves):
    for curve in curves.values():
        folds, purging = curve.of("folds"), curve.of("purging")
        assert [point.threshold for point in folds] == [0.5, 0.1, 0.05, 0.01]
        assert [p.n_groups for p in folds] == sorted((p.n_groups for p in folds), reverse=True)
        dropped = [point.rows_dropped for point in purging]
        assert 0 < dropped[0] < dropped[1] < dropped[2] < dropped[3]
        assert {point.rows_dropped for point in folds} == {0.0}
        assert LeakCurve.from_dict(curve.to_dict()) == curve


def test_without_labels_no_leak_share_is_given():
    curve = leak_curve(*LINKS, 2, CHAIN, [0.5], max_group=1.0)
    assert not curve.measured
    assert {point.train for point in curve.points} == {None}
    assert curve.of("none")[0].score_mass_left == 1


# --- what is refused ------------------------------------------------------------------------------


def test_unusable_arguments_are_refused():
    with pytest.raises(InputError, match=r"threshold=0 must lie in \(0, 1\]"):
        safe_groups(*LINKS, 0, CHAIN)
    with pytest.raises(InputError, match="max_group=nan"):
        safe_groups(*LINKS, 0.5, CHAIN, float("nan"))
    with pytest.raises(InputError, match="more than the 5 groups"):
        leak_safe_folds(*LINKS, 0.5, 6, CHAIN, max_group=1.0)
    with pytest.raises(InputError, match="K=1"):
        leak_safe_folds(*LINKS, 0.5, 1, CHAIN)
    with pytest.raises(InputError, match="no training rows are left in split 0; raise it"):
        purge([0, 0], [1, 2], [0.9, 0.9], [0, 1, 1], [0, 1, 2], 0.5)
    with pytest.raises(InputError, match="thresholds is empty"):
        leak_curve(*LINKS, 2, CHAIN, [])


def test_a_million_pairs_take_seconds_even_when_groups_snowball():
    rng = np.random.default_rng(0)
    n = 100_000
    pairs = rng.integers(0, n // 2, 10**6), rng.integers(n // 2, n, 10**6), rng.random(10**6)
    start = time.perf_counter()
    made = leak_safe_folds(*pairs, 0.05, 5, np.arange(n) // 2)
    assert made.largest_group <= 0.05
    assert time.perf_counter() - start < 30  # about 4 s; slow machines are allowed for
