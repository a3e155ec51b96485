"""Bounds on precision, recall and leak shares, against simulations and closed forms."""

from collections import Counter

import numpy as np
import pytest

from mlflow_b3 import InputError
from mlflow_b3.linkage import LeakEstimate, components, leak_floor, leak_truth, swoosh_bounds
from mlflow_b3.linkage.bounds import MatchMergeBounds, collision_error, shifted_precision

# --- the shift of precision -----------------------------------------------------------------------


@pytest.mark.parametrize("true_share", [0.3, 0.01, 1e-4])
@pytest.mark.parametrize(("hits", "false_hits"), [(0.9, 0.2), (0.8, 0.001), (0.5, 0.5)])
def test_shifted_precision_is_bayes_rule(hits, false_hits, true_share):
    labelled = 0.5
    precision = labelled * hits / (labelled * hits + (1 - labelled) * false_hits)
    direct = true_share * hits / (true_share * hits + (1 - true_share) * false_hits)
    assert shifted_precision(precision, labelled, true_share) == pytest.approx(direct)


def test_the_printed_form_of_the_shift_is_the_same():
    p, cv, cx = 0.97, 0.4, 0.002
    printed = cx * (1 - cv) * p / (cv * (1 - cx) + (cx - cv) * p)
    assert shifted_precision(p, cv, cx) == pytest.approx(printed)
    assert shifted_precision(p, cv, cv) == pytest.approx(p)
    assert (shifted_precision(0, cv, cx), shifted_precision(1, cv, cx)) == (0, 1)


def test_shares_that_are_none_are_refused_together():
    with pytest.raises(InputError, match="3 problems"):
        shifted_precision(1.2, 0, float("nan"))


# --- match-and-merge ------------------------------------------------------------------------------

SIZE, HITS, FALSE_HITS = 4, 0.8, 2e-4


def linked(rng, entities=60):
    """Return rows whose pairs match by chance, and the precision and recall of their components."""
    true = np.repeat(np.arange(entities), SIZE)
    i, j = np.triu_indices(len(true), 1)
    same = true[i] == true[j]
    match = rng.random(len(i)) < np.where(same, HITS, FALSE_HITS)
    clusters = components(len(true), i[match], j[match])
    together = clusters[i] == clusters[j]
    right = (together & same).sum()
    return {
        "clusters": clusters,
        "pairs": (i[match], j[match]),
        "right": (match & same).sum(),
        "precision": right / together.sum(),
        "recall": right / same.sum(),
        "true_share": same.mean(),
    }


def test_the_limits_hold_as_often_as_they_say():
    """At most 5% of 300 draws may miss, with a standard error of 1.3%.

    The recall of matches is missed that often; the others less, since shares near 1 have wide
    limits, and clusters hold more than the matches.
    """
    rng = np.random.default_rng(0)
    missed = Counter()
    labels, reviewed, draws = 20_000, 200, 300
    for _ in range(draws):
        data = linked(rng)
        n_matched = len(data["pairs"][0])
        hits = (rng.binomial(300, HITS), 300)
        right = rng.hypergeometric(data["right"], n_matched - data["right"], reviewed)
        common = {"clusters": data["clusters"], "matched": data["pairs"], "matches": hits}
        direct = swoosh_bounds(**common, precision_sample=(right, reviewed))
        many = (rng.binomial(labels, HITS), labels)
        shifted = swoosh_bounds(
            **{**common, "matches": many},
            nonmatches=(rng.binomial(labels, FALSE_HITS), labels),
            true_share=data["true_share"],
        )
        part = direct.n_matched / direct.n_together
        share = data["true_share"]
        expected = share * HITS / (share * HITS + (1 - share) * FALSE_HITS)
        missed["matched"] += direct.precision_low / part > data["right"] / n_matched
        missed["shifted"] += shifted.precision_low / part > expected
        missed["precision"] += direct.precision_low > data["precision"]
        missed["precision by g"] += shifted.precision_low > data["precision"]
        missed["match recall"] += direct.recall_low > HITS
        missed["recall"] += direct.recall_low > data["recall"]
    tolerance = 3 * np.sqrt(0.05 * 0.95 / draws)
    assert {name: count for name, count in missed.items() if count / draws > 0.05 + tolerance} == {}
    assert missed["recall"] == 0  # components find pairs that do not match directly


def test_a_review_of_matches_tells_the_true_share():
    data = linked(np.random.default_rng(1), entities=150)
    n_matched = len(data["pairs"][0])
    bounds = swoosh_bounds(
        data["clusters"],
        n_matched,
        (8_000, 10_000),
        precision_sample=(data["right"], n_matched),
    )
    # 900 true pairs match with probability .8: standard error 1.7%
    assert bounds.true_share == pytest.approx(data["true_share"], rel=0.05)
    assert bounds.method == "reviewed matches"
    assert bounds.match_recall == pytest.approx(HITS)
    assert MatchMergeBounds.from_dict(bounds.to_dict()) == bounds


def test_labelled_pairs_prove_little_where_matches_are_rare():
    """One true pair in 1,250: 500 labels of each kind prove nothing, 200 reviewed matches do."""
    clusters = np.repeat(np.arange(500), 2)
    common = {"clusters": clusters, "matched": 500, "matches": (400, 500)}
    shifted = swoosh_bounds(**common, nonmatches=(0, 500), true_share=8e-4)
    direct = swoosh_bounds(**common, precision_sample=(198, 200))
    assert shifted.match_precision == 1
    assert shifted.precision_low < 0.15
    assert direct.precision_low > 0.95
    assert shifted.recall_low == direct.recall_low == pytest.approx(0.769, abs=0.001)


def test_clusters_with_pairs_that_do_not_match_are_worth_less():
    """A cluster of a chain: two of its three pairs match."""
    bounds = swoosh_bounds([0, 0, 0, 1], ([0, 1], [1, 2]), (9, 10), precision_sample=(1000, 1000))
    assert (bounds.n_matched, bounds.n_together, bounds.n_pairs) == (2, 3, 6)
    assert bounds.precision_low == pytest.approx(2 / 3, abs=0.01)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"matched": ([0], [2])}, "1 of them in different clusters"),
        ({"matched": 3}, "3 pairs, 0 of them"),
        ({"matched": 0}, "at least one matched pair"),
        ({"matched": "all"}, "two lists of rows"),
        ({"matched": (0, 1)}, "lists of equal length"),
        ({"matches": (3, 2)}, "matches="),
        ({"matches": (3, float("inf"))}, "matches="),
        ({"matches": 0.8}, "matches=0.8"),
        ({"matches": (0.5, 2)}, "two whole numbers"),
        ({"precision_sample": (0, 0)}, "precision_sample="),
        ({"precision_sample": None}, "give precision_sample"),
        ({"true_share": 0.1}, "either"),
        ({"level": 1.0}, "level=1.0"),
        ({"clusters": [0, 0, None, 1]}, "clusters is missing in 1"),
        ({"precision_sample": None, "nonmatches": (0, 9), "true_share": 0.0}, "true_share=0.0"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(change, text):
    usable = {
        "clusters": [0, 0, 1, 1],
        "matched": 2,
        "matches": (8, 10),
        "precision_sample": (9, 10),
    }
    with pytest.raises(InputError, match=text):
        swoosh_bounds(**{**usable, **change})


# --- the floor ------------------------------------------------------------------------------------


def test_the_floor_is_what_errors_without_merging_must_split():
    floor = leak_floor(0.8, 0.5, 0.1, 5)
    assert floor.kind == "lower"
    assert floor.train.low == pytest.approx(0.3 / 5)
    assert floor.validation.low == pytest.approx(0.3 * 4 / 5)
    assert floor.train.point is None
    assert floor.validation.high == 1
    assert LeakEstimate.from_dict(floor.to_dict()) == floor


def test_merging_everything_leaks_nothing_and_the_floor_knows():
    true = np.repeat(np.arange(10), 3)
    merged = leak_truth(true, true % 5, np.zeros(30))
    assert set(merged.split_counts) == {0}
    assert (merged.p0, merged.p0_validation) == (0, 0)
    floor = leak_floor(1.0, 1.0, 1.0, 5)
    assert (floor.train.low, floor.validation.low) == (0, 0)


def test_a_linkage_that_never_merges_leaks_more_than_the_floor():
    """Rows whose key is of one entity only are joined, others stay alone: nothing else is safe."""
    rng = np.random.default_rng(0)
    entities, keys, folds = 100, 150, 5
    true = np.repeat(np.arange(entities), 3)
    leaks = []
    for _ in range(100):
        key = rng.integers(0, keys, entities)
        shared = np.bincount(key, minlength=keys)[key] > 1
        clusters = np.where(shared[true], entities + np.arange(len(true)), true)
        fold = rng.integers(0, folds, entities + len(true))[clusters]
        leak = leak_truth(true, fold, clusters)
        leaks.append((leak.p0, leak.p0_validation, leak.split_rate))
    error = collision_error([np.full(keys, 1 / keys)], 0.0, entities).error
    floor = leak_floor(1.0, error, 0.0, folds)
    p0, p0_validation, split_rate = np.mean(leaks, axis=0)
    assert split_rate == pytest.approx(1 - (1 - 1 / keys) ** (entities - 1), abs=0.03)
    assert 0.25 < error < split_rate
    assert 0.05 < floor.train.low < p0
    assert 0.2 < floor.validation.low < p0_validation


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"mate_rate": 1.1}, "mate_rate=1.1"),
        ({"error": float("nan")}, "error=nan"),
        ({"merge_rate_high": -1}, "merge_rate_high=-1"),
        ({"K": 1}, "K=1"),
        ({"K": 1, "level": 0, "error": 2}, "3 problems"),
    ],
)
def test_shares_that_make_no_floor_are_refused(change, text):
    with pytest.raises(InputError, match=text):
        leak_floor(**{"mate_rate": 0.5, "error": 0.5, "merge_rate_high": 0.1, "K": 5, **change})
