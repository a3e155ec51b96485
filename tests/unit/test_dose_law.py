"""The law of doses against counting: ids are damaged, put into folds and dosed, and mates counted."""

import numpy as np
import pytest
from scipy import stats

from mlflow_b3 import InputError
from mlflow_b3.data.folds import balanced_splits
from mlflow_b3.estimation.dose_law import (
    DoseLaw,
    cluster_error_of_shares,
    split_of_seen_share,
)
from mlflow_b3.estimation.effects import Effects
from mlflow_b3.measurement.refits import UNIFORM, parse_fragments

pytestmark = pytest.mark.newest

# --- a reference by counting ----------------------------------------------------------------------


def doses_of(size):
    """Return the injected doses 0, 1 and 3, in units of a fifteenth of a cluster."""
    unit = max(1, round(size / 15))
    return tuple(
        unit * dose for dose in (0, 1, 3) if unit * dose < size and 5 * dose * unit <= 3 * size
    )


def noisy_ids(sizes, rng, *, cluster_error=0.0, split_rate=0.0, fragments=UNIFORM, targets="rows"):
    """Return the true and the noisy cluster of each row: clusters are split, then rows misplaced."""
    true = np.repeat(np.arange(len(sizes)), sizes)
    parts, following, first = true.copy(), len(sizes), np.cumsum(sizes) - sizes
    breakable = np.array([fragments.applies(size) for size in sizes.tolist()])
    chance = split_rate * sizes.sum() / max(1, sizes[breakable].sum())
    for cluster in np.flatnonzero(breakable & (rng.random(len(sizes)) < chance)):
        cut = fragments.draw(int(sizes[cluster]), rng)
        parts[first[cluster] : first[cluster] + cut] = following
        following += 1
    wrong = np.flatnonzero(rng.random(len(true)) < cluster_error)
    ids = parts.copy()
    by_row = parts[rng.integers(0, len(true), len(wrong))]
    ids[wrong] = by_row if targets == "rows" else rng.integers(0, following, len(wrong))
    return true, np.unique(ids, return_inverse=True)[1]


def count_doses(true, ids, folds, rng, *, doses=doses_of):
    """Return noisy size, injected dose (-1 if held back) and true dose of each scored row."""
    size = np.bincount(ids)
    lists = [doses(rows) for rows in size.tolist()]
    lengths = np.array([len(listed) for listed in lists])
    table = np.array([listed + (0,) * (lengths.max() - len(listed)) for listed in lists])
    counted = []
    for training, validation in balanced_splits(ids, folds, int(rng.integers(2**31))):
        start = rng.integers(0, 60, len(size))
        for step in range(lengths.max()):
            dose = table[np.arange(len(size)), (start + step) % lengths]
            rows = validation[np.lexsort((rng.random(len(validation)), ids[validation]))]
            first = np.searchsorted(ids[rows], ids[rows])
            injected = np.arange(len(rows)) - first < dose[ids[rows]]
            scored, moved = rows[~injected], rows[injected]
            order = rng.permutation(training)
            held_back, kept = order[: len(moved)], order[len(moved) :]
            mates = np.bincount(true[np.concatenate([kept, moved])], minlength=true.max() + 1)
            counted += [
                (size[ids[scored]], dose[ids[scored]], mates[true[scored]]),
                (size[ids[held_back]], np.full(len(held_back), -1), mates[true[held_back]]),
            ]
    return np.concatenate([np.stack(part) for part in counted], axis=1)


# --- identities -----------------------------------------------------------------------------------

SIZES = np.array([10] * 60 + [3] * 60 + [25] * 10 + [1] * 20)


def test_without_errors_the_dose_is_the_injected_one():
    law = DoseLaw(SIZES, doses_of)
    for size in (1, 3, 10, 25):
        for dose in doses_of(size):
            expected = np.eye(law.largest_dose + 1)[dose]
            np.testing.assert_allclose(law.validation(size, dose), expected, atol=1e-8)
        np.testing.assert_allclose(law.plain(size)[0], 1, atol=1e-8)


@pytest.mark.parametrize("rates", [{"cluster_error": 1e-5}, {"split_rate": 1e-5}])
def test_laws_are_continuous_where_errors_vanish(rates):
    exact, near = DoseLaw(SIZES, doses_of), DoseLaw(SIZES, doses_of, **rates)
    for size in (1, 3, 10, 25):
        for dose in doses_of(size):
            distance = np.abs(exact.validation(size, dose) - near.validation(size, dose)).sum()
            assert distance < 1e-3
        assert np.abs(exact.held_back(size) - near.held_back(size)).sum() < 1e-3


@pytest.mark.parametrize("targets", ["rows", "clusters"])
@pytest.mark.parametrize("error", [0.0, 0.05, 0.4])
@pytest.mark.parametrize("split", [0.0, 0.2, 0.6])
def test_laws_are_probabilities_of_one_length(error, split, targets):
    law = DoseLaw(SIZES, doses_of, cluster_error=error, split_rate=split, targets=targets)
    for size in (1, 2, 3, 10, 17, 25):  # 2 and 17 are not among the sizes
        laws = [law.validation(size, dose) for dose in doses_of(size)]
        for found in [*laws, law.held_back(size), law.plain(size)]:
            assert len(found) == law.largest_dose + 1
            assert found.min() >= 0
            assert found.sum() == pytest.approx(1, abs=1e-8)


@pytest.mark.parametrize("targets", ["rows", "clusters"])
def test_a_law_at_other_rates_is_that_of_the_same_clusters_from_the_start(targets):
    first = DoseLaw(SIZES, doses_of, cluster_error=0.3, targets=targets)
    first.plain(3)
    rates = {"cluster_error": 0.1, "split_rate": 0.4, "spread": 1.1}
    law, wanted = first.at(**rates), DoseLaw(SIZES, doses_of, targets=targets, **rates)
    for size in (3, 10, 17):
        np.testing.assert_array_equal(law.plain(size), wanted.plain(size))
        np.testing.assert_array_equal(law.held_back(size), wanted.held_back(size))
        np.testing.assert_array_equal(law.validation(size, 1), wanted.validation(size, 1))
    with pytest.raises(InputError, match="split_rate=2"):
        first.at(split_rate=2)


def test_a_seen_share_is_translated_to_the_split_rate_at_which_it_is_seen():
    rate, _ = split_of_seen_share(0.2, SIZES, 0.8)
    law = DoseLaw(SIZES, doses_of, split_rate=rate)
    unseen = [law.plain(size)[0] for size in SIZES.tolist()]
    assert np.average(unseen, weights=SIZES) == pytest.approx(0.8, abs=0.005)


def test_in_folds_of_single_rows_every_mate_is_trained_on_with_the_same_probability():
    exact = DoseLaw(SIZES, doses_of, training_share=0.8)
    size = int(SIZES.max())
    found = exact.row_folds(size)
    wanted = stats.binom.pmf(np.arange(len(found)), size - 1, 0.8)
    np.testing.assert_allclose(found, wanted, atol=1e-7)


def test_more_rows_than_splits_in_two_can_show_are_taken_as_clusters_in_several_parts():
    rate, spread = split_of_seen_share(0.9, SIZES, 0.8)
    assert rate == 1
    law = DoseLaw(SIZES, doses_of, split_rate=rate, spread=spread)
    unseen = [law.plain(size)[0] for size in SIZES.tolist()]
    assert np.average(unseen, weights=SIZES) == pytest.approx(0.1, abs=0.03)
    with pytest.raises(InputError, match=r"share=1\.5"):
        split_of_seen_share(1.5, SIZES, 0.8)
    with pytest.raises(InputError, match=r"spread=0\.5"):
        DoseLaw(SIZES, doses_of, split_rate=1.0, spread=0.5)


def test_shares_of_a_common_error_are_translated_back_to_it():
    assert cluster_error_of_shares(0.1 * 0.2, 0.1 * 0.8, 0.8) == pytest.approx(0.1)
    assert cluster_error_of_shares(0.02, None, 0.8) == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"cluster_error": 1.0}, "cluster_error=1.0"),
        ({"split_rate": -0.1}, "split_rate=-0.1"),
        ({"cluster_error": float("nan")}, "cluster_error=nan"),
        ({"training_share": 1.0}, "training_share=1.0"),
        ({"targets": "patients"}, "targets='patients'"),
    ],
)
def test_what_cannot_be_is_refused(arguments, named):
    with pytest.raises(InputError, match=named):
        DoseLaw(SIZES, doses_of, **arguments)


@pytest.mark.parametrize(
    ("rates", "apart"),
    [
        # two mates stay together only if neither is misplaced
        ({"cluster_error": 0.1}, 1 - 0.9**2),
        ({"cluster_error": 0.3}, 1 - 0.7**2),
        # a uniform cut leaves two of ten mates in different parts with chance 11/27
        ({"split_rate": 0.3}, 0.3 * 11 / 27),
    ],
)
def test_the_mean_dose_is_that_of_pairs_of_mates_on_different_sides(rates, apart):
    rng = np.random.default_rng(1)
    _, ids = noisy_ids(np.full(2000, 10), rng, **rates)
    law, sizes = DoseLaw(np.bincount(ids), doses_of, **rates), np.bincount(ids)
    means = [
        law.plain(size) @ np.arange(law.largest_dose + 1) for size in range(1, sizes.max() + 1)
    ]
    mean = np.average(np.array(means)[sizes - 1], weights=sizes)
    # the realised share of 2,000 clusters that are split has a standard deviation of 3.4%
    assert mean == pytest.approx(9 * apart * 0.8, rel=0.04)


@pytest.mark.parametrize("rate", [0.1, 0.3, 0.6])
def test_stated_split_rates_hold_even_if_no_size_looks_like_a_fragment(rate):
    law = DoseLaw([10] * 200, doses_of, split_rate=rate)
    # the other part is one of the clusters of ten rows, in training with chance 1600/1990
    assert law.plain(10)[0] == pytest.approx(1 - rate * 1600 / 1990, abs=1e-3)
    assert law.plain(10)[10] == pytest.approx(rate * 1600 / 1990, abs=0.01)


def test_sizes_in_steps_change_laws_less_than_another_sample_of_clusters_does(monkeypatch):
    rng = np.random.default_rng(1)
    true = np.round(np.exp(rng.normal(4.6, 0.5, 120))).astype(int)
    _, ids = noisy_ids(true, rng, cluster_error=0.02)
    sizes = np.bincount(ids)
    stepped = DoseLaw(sizes, doses_of, cluster_error=0.02)
    monkeypatch.setattr("mlflow_b3.estimation.dose_law.EXACT_SIZE", 400)
    exact = DoseLaw(sizes, doses_of, cluster_error=0.02)
    resampled = DoseLaw(rng.choice(sizes, len(sizes)), doses_of, cluster_error=0.02)
    large = np.unique(sizes[sizes > 100]).tolist()

    def distance(one, other):
        differences = [one.validation(size, 0) - other.validation(size, 0) for size in large]
        return np.abs(differences).sum(axis=1).mean() / 2

    assert distance(stepped, exact) < distance(resampled, exact)


# --- against counting -----------------------------------------------------------------------------

BALANCED, TINY = np.full(1000, 10), np.repeat([2, 3, 4], 700)
ZIPF, FEW = np.maximum(1, (60 / np.arange(1, 21) ** 0.7).astype(int)).repeat(20), np.full(12, 40)


@pytest.mark.parametrize("targets", ["rows", "clusters"])
@pytest.mark.parametrize("rates", [{}, {"cluster_error": 0.2}, {"split_rate": 0.4}])
def test_expectations_are_sums_over_probabilities(rates, targets):
    law, effects = DoseLaw(SIZES, doses_of, targets=targets, **rates), Effects(unit=2.0)
    expecting, doses = law.expecting(effects), np.arange(law.largest_dose + 1)
    for size in (1, 3, 10, 17, 25):  # 17 is not among the sizes
        pairs = [
            (law.plain(size), expecting.plain(size)),
            (law.held_back(size), expecting.held_back(size)),
            (law.row_folds(size), expecting.row_folds(size)),
            *(
                (law.validation(size, dose), expecting.validation(size, dose))
                for dose in doses_of(size)
            ),
        ]
        for chances, found in pairs:
            wanted = [*(effects.at(doses) @ chances), chances[0], doses @ chances]
            # improbable terms that are dropped count as the largest dose there, and as none in E[d]
            np.testing.assert_allclose(found[:-1], wanted[:-1], atol=1e-5)
            np.testing.assert_allclose(found[-1], wanted[-1], atol=1e-3)


def test_expectations_know_no_largest_dose():
    sizes = np.full(20, 300)
    held = DoseLaw(sizes, doses_of).expecting(Effects(unit=20.0)).held_back(300)
    exact = DoseLaw(sizes, doses_of)
    assert held[-1] == pytest.approx(299 * (1 - exact.held_back_share), rel=0.01)
    assert held[-1] > 2 * exact.largest_dose


WORLDS = 3


def compare(sizes, *, folds=5, targets="rows", **rates):
    """Return counted and expected laws of validation and held-back rows, averaged over worlds.

    Counted laws are of rows; expected laws are those of the same rows' sizes and injected doses.
    """
    rng = np.random.default_rng(5)
    counted, expected = [], []
    for _ in range(WORLDS):
        true, ids = noisy_ids(sizes, rng, targets=targets, **rates)
        law = DoseLaw(
            np.bincount(ids), doses_of, training_share=1 - 1 / folds, targets=targets, **rates
        )
        size, dose, mates = count_doses(true, ids, folds, rng)
        mates = np.minimum(mates, law.largest_dose)
        pairs, rows = np.unique(np.stack([size, dose]), axis=1, return_counts=True)
        laws = [law.held_back(m) if d < 0 else law.validation(m, d) for m, d in pairs.T.tolist()]
        for side in (dose >= 0, dose < 0):
            part = (pairs[1] >= 0) == (dose[side][0] >= 0)
            counted.append(np.bincount(mates[side], minlength=200) / side.sum())
            mixed = np.average(np.array(laws)[part], axis=0, weights=rows[part])
            expected.append(np.append(mixed, np.zeros(199 - law.largest_dose)))
    found, wanted = np.array(counted).reshape(-1, 2, 200), np.array(expected).reshape(-1, 2, 200)
    return found.mean(axis=0), wanted.mean(axis=0)


CASES = {
    "misplaced": (BALANCED, {"cluster_error": 0.1}),
    "many misplaced": (BALANCED, {"cluster_error": 0.4}),
    "ten folds": (BALANCED, {"cluster_error": 0.2, "folds": 10}),
    "split": (BALANCED, {"split_rate": 0.3}),
    "split in halves": (BALANCED, {"split_rate": 0.3, "fragments": parse_fragments("halves")}),
    "split off singles": (BALANCED, {"split_rate": 0.3, "fragments": parse_fragments("singles")}),
    "split in shares": (BALANCED, {"split_rate": 0.3, "fragments": parse_fragments([0.2, 0.35])}),
    "split and misplaced": (BALANCED, {"split_rate": 0.3, "cluster_error": 0.1}),
    "tiny, misplaced": (TINY, {"cluster_error": 0.2}),
    "tiny, split": (TINY, {"split_rate": 0.3}),
    "zipf, misplaced": (ZIPF, {"cluster_error": 0.1}),
    "zipf, misplaced by cluster": (ZIPF, {"cluster_error": 0.1, "targets": "clusters"}),
    "zipf, split": (ZIPF, {"split_rate": 0.3}),
    "few, misplaced": (FEW, {"cluster_error": 0.1}),
}
#: What approximations and the estimated true sizes may change a probability by.
MODEL_ERROR = 0.01
#: What they may change the mean dose by, as a share of it. That of validation rows depends on which
#: of a few large clusters happen to be split.
VALIDATION_MEAN_ERROR, HELD_BACK_MEAN_ERROR = 0.1, 0.03


@pytest.mark.parametrize("case", CASES)
def test_laws_are_those_of_counted_doses(case):
    sizes, options = CASES[case]
    counted, expected = compare(sizes, **options)
    # at worst, all rows of a cluster have the same dose
    error = np.sqrt(expected * (1 - expected) / (WORLDS * len(sizes)))
    near = np.abs(counted - expected) < MODEL_ERROR + 3 * error
    assert near[0].all()
    # held-back rows have nearly all their mates in training: single doses of theirs are as uncertain
    # as single true sizes
    assert near[1, 0]
    validation, held_back = np.stack([expected, counted]).swapaxes(0, 1) @ np.arange(200)
    assert validation[0] == pytest.approx(validation[1], rel=VALIDATION_MEAN_ERROR)
    assert held_back[0] == pytest.approx(held_back[1], rel=HELD_BACK_MEAN_ERROR)
