"""Resolved rows put match probabilities right."""

import numpy as np
import pytest
from scipy.special import expit, logit
from simulated_records import linked_records

from mlflow_b3 import InputError
from mlflow_b3.linkage import (
    LeakEstimate,
    leak_from_pairs,
    leak_from_recalibrated_pairs,
    leak_safe_folds,
    leak_truth,
    recalibrate,
)
from mlflow_b3.linkage.calibrate import Recalibration, fit_recalibration
from mlflow_b3.linkage.rows import loss_regression

pytestmark = pytest.mark.newest


@pytest.fixture(scope="module")
def linked():
    """Linked records of which all pairs are scored."""
    return linked_records(0, noise=0.1, entities=300, floor=-40)


def draw(linked, count, seed=0):
    rows = np.random.default_rng(seed).choice(len(linked.true), count, replace=False)
    return rows, linked.mates(rows)


def scores(linked):
    return linked.first, linked.second, linked.log_odds


def single_rows(seed, intercept, slope, rows=2000, pairs=20_000):
    """Return pairs of clusters of one row whose matches follow a known line.

    Such matches need not be transitive; only the resolved row's own list is ever looked at.
    """
    rng = np.random.default_rng(seed)
    keys = np.unique(rng.integers(0, rows * rows, pairs))
    first, second = keys // rows, keys % rows
    first, second = first[first < second], second[first < second]
    score = rng.normal(-2, 2, len(first))
    match = rng.random(len(first)) < expit(intercept + slope * score)
    mates = [[] for _ in range(rows)]
    for a, b in zip(first[match].tolist(), second[match].tolist(), strict=True):
        mates[a].append(b)
        mates[b].append(a)
    return first, second, score, mates


def test_a_known_line_is_found():
    lines = []
    for seed in range(20):
        first, second, score, mates = single_rows(seed, -1.0, 0.5)
        rows = np.arange(300)
        found = fit_recalibration(first, second, score, np.arange(2000), rows, mates[:300])
        lines.append((found.intercept, found.slope))
        assert found.missed_share == 0
    error = np.std(lines, axis=0) / np.sqrt(20)
    assert (np.abs(np.mean(lines, axis=0) - [-1.0, 0.5]) < 4 * error).all()


def test_right_probabilities_are_left_alone():
    first, second, score, mates = single_rows(0, 0.0, 1.0)
    found = recalibrate(first, second, score, np.arange(2000), np.arange(2000), mates)
    assert found == pytest.approx(expit(score), abs=0.03)


def test_rows_drawn_unevenly_count_for_what_they_stand_for():
    """Twice the weight is as good as the row twice."""
    first, second, score, mates = single_rows(0, -1.0, 0.5)
    rows = np.arange(200)
    weights = np.where(rows < 50, 2.0, 1.0)
    weighted, plain = (
        fit_recalibration(first, second, score, np.arange(2000), rows, mates[:200], weights=given)
        for given in (weights, None)
    )
    assert weighted.intercept != pytest.approx(plain.intercept, rel=1e-6)
    scaled = fit_recalibration(
        first, second, score, np.arange(2000), rows, mates[:200], weights=7 * weights
    )
    assert scaled.slope == pytest.approx(weighted.slope)


def test_separated_scores_keep_their_slope_and_get_the_right_level():
    """All matches above all others: rows 0 to 39 match rows 40 to 79 one by one."""
    first = np.r_[np.arange(40), np.arange(40)]
    second = np.r_[np.arange(40, 80), np.arange(80, 120)]
    score = np.r_[np.full(40, 1.0), np.full(40, -3.0)]
    mates = [[row + 40] for row in range(40)]
    found = fit_recalibration(first, second, score, np.arange(120), np.arange(40), mates)
    assert found.separated
    assert found.slope == 1
    expected = expit(found.intercept + score).mean()
    assert expected == pytest.approx(0.5)
    assert Recalibration.from_dict(found.to_dict()) == found


def test_infinite_scores_are_usable():
    first, second, score, mates = single_rows(0, 0.0, 1.0)
    score = np.where(score > 4, np.inf, np.where(score < -8, -np.inf, score))
    found = recalibrate(first, second, score, np.arange(2000), np.arange(500), mates[:500])
    assert np.isfinite(found).all()


# --- leak shares ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def estimates():
    """Estimates for 24 linkages from 120 resolved rows each, with their folds."""
    made = []
    for seed in range(24):
        linked = linked_records(seed, noise=0.15, entities=150, floor=-40)
        folds = leak_safe_folds([], [], [], 1, 5, linked.clusters, seed=seed).folds
        found = leak_from_recalibrated_pairs(
            *scores(linked), folds, linked.clusters, *draw(linked, 120, seed), draws=100
        )
        made.append((linked, folds, found))
    return made


def test_shares_on_both_sides_come_out_right_and_their_intervals_cover(estimates):
    """The scores are complete but off.

    The interval is for rows drawn from very many; 120 of 375 are a third of them all, so that it
    covers more often than it says.
    """
    ratios, covered = [], []
    for linked, folds, found in estimates:
        truth = leak_truth(linked.true, folds)
        for share, value in ((found.train, truth.p0), (found.validation, truth.p0_validation)):
            ratios.append(share.point / value)
            covered.append(share.low <= value <= share.high)
    ratios = np.reshape(ratios, (-1, 2))
    error = ratios.std(axis=0) / np.sqrt(len(ratios))
    assert (np.abs(ratios.mean(axis=0) - 1) < 4 * error).all()
    assert np.mean(covered) > 0.9


def test_row_probabilities_serve_the_loss_regression(estimates):
    """Rows that saw a mate lose 0.2 less; the intercept is what the others lose."""
    rng = np.random.default_rng(0)
    off, naive = [], []
    for linked, folds, found in estimates:
        seen = np.array(leak_truth(linked.true, folds).validation_values) > 0
        losses = 0.5 - 0.2 * seen + 0.2 * rng.normal(size=len(seen))
        off.append(loss_regression(losses, found.row_probability, linked.clusters).e0 - 0.5)
        naive.append(losses.mean() - 0.5)
    error = np.std(off) / np.sqrt(len(off))
    assert abs(np.mean(off)) < 4 * error
    assert np.mean(naive) < -10 * error


def test_parts_of_one_entity_are_not_independent(linked):
    """Probabilities that are right one by one are too much together."""
    folds = leak_safe_folds([], [], [], 1, 5, linked.clusters).folds
    rows = np.arange(len(linked.true))
    mates = linked.mates(rows)
    p = recalibrate(*scores(linked), linked.clusters, rows, mates)
    single = leak_from_pairs(linked.first, linked.second, p, folds, linked.clusters)
    together = leak_from_recalibrated_pairs(
        *scores(linked), folds, linked.clusters, rows, mates, draws=100
    )
    truth = leak_truth(linked.true, folds).p0_validation
    assert single.validation.point > 1.08 * truth
    assert together.validation.point == pytest.approx(truth, rel=0.05)


def test_it_says_what_it_is(linked):
    folds = leak_safe_folds([], [], [], 1, 5, linked.clusters).folds
    rows, mates = draw(linked, 200)
    found = leak_from_recalibrated_pairs(
        *scores(linked), folds, linked.clusters, rows, mates, draws=100
    )
    assert (found.kind, found.method, found.n_labels) == ("estimate", "recalibrated-pairs", 200)
    assert found.to_prior().law == "beta"
    assert np.mean(found.row_probability) == pytest.approx(found.validation.point, rel=0.01)
    assert len(found.fragments) == 19
    assert LeakEstimate.from_dict(found.to_dict()) == found
    again = leak_from_recalibrated_pairs(
        *scores(linked), folds, linked.clusters, rows, mates, draws=100
    )
    assert again == found


def test_mates_outside_the_pair_table_make_it_uncalibrated(linked):
    """What blocking hid from the sampled rows it hid from the others too."""
    folds = leak_safe_folds([], [], [], 1, 5, linked.clusters).folds
    rows, mates = draw(linked, 200)
    scored = linked.log_odds > logit(0.02)
    first, second, score = (part[scored] for part in scores(linked))
    fitted = fit_recalibration(first, second, score, linked.clusters, rows, mates)
    assert fitted.missed_share > 0.05
    found = leak_from_recalibrated_pairs(
        first, second, score, folds, linked.clusters, rows, mates, draws=100
    )
    assert found.kind == "uncalibrated"
    assert "biased low" in found.notes[0]
    assert found.validation.point < leak_truth(linked.true, folds).p0_validation


# --- what is refused ------------------------------------------------------------------------------


def test_too_few_matches_are_refused_with_a_number_of_rows(linked):
    rows, mates = draw(linked, 15)
    with pytest.raises(InputError, match=r"of 15 have a mate .* Resolve about \d+ rows"):
        recalibrate(*scores(linked), linked.clusters, rows, mates)
    with pytest.raises(InputError, match=r"0 of 15 .* or more"):
        recalibrate(*scores(linked), linked.clusters, rows, [[]] * 15)


def test_unusable_arguments_are_refused(linked):
    n = len(linked.true)
    with pytest.raises(InputError, match="2 problems"):
        recalibrate(*scores(linked), linked.clusters, [0, 0, n], [[1], [1], [1]])
    with pytest.raises(InputError, match="weights must be positive"):
        recalibrate(*scores(linked), linked.clusters, [0, 1], [[], []], weights=[1, 0])
    with pytest.raises(InputError, match="1 entries for 2 rows"):
        recalibrate(*scores(linked), linked.clusters, [0, 1], [[]])
    with pytest.raises(InputError, match="1 values are missing"):
        recalibrate([0], [1], [np.nan], [0, 1], [0], [[]])
    with pytest.raises(InputError, match="every pair once"):
        recalibrate([0, 1], [1, 0], [1.0, 2.0], [0, 1], [0], [[1]])
    rows, mates = draw(linked, 100)
    with pytest.raises(InputError, match="draws=10"):
        leak_from_recalibrated_pairs(
            *scores(linked), linked.clusters % 2, linked.clusters, rows, mates, draws=10
        )


def split_couples():
    """Return scored pairs of 300 entities of two rows, all apart, and one split of their rows."""
    rng = np.random.default_rng(0)
    first, second = np.triu_indices(600, 1)
    true = (first // 2 == second // 2) & (first % 2 == 0)
    keep = true | (rng.random(len(first)) < 0.005)
    score = rng.normal(np.where(true, 1.0, -1.0)[keep], 1)
    order = rng.permutation(600)
    return (first[keep], second[keep], score), order[120:], order[:120]


@pytest.mark.parametrize("count", [0, 3])
def test_a_side_with_too_few_resolved_rows_is_refused(count):
    pairs, training, validation = split_couples()
    rows = np.r_[validation[:count], training[:80]]
    with pytest.raises(InputError, match="in validation one in training; at least 5"):
        leak_from_recalibrated_pairs(
            *pairs, [(training, validation)], np.arange(600), rows, (rows ^ 1)[:, None].tolist()
        )


def test_draws_without_a_row_of_one_side_do_no_harm():
    pairs, training, validation = split_couples()
    rows = np.r_[validation[:7], training[:80]]
    found = leak_from_recalibrated_pairs(
        *pairs,
        [(training, validation)],
        np.arange(600),
        rows,
        (rows ^ 1)[:, None].tolist(),
        draws=2000,
    )
    assert 0 < found.validation.low <= found.validation.point <= found.validation.high <= 1
