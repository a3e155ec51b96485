"""Intervals cover what they claim, in simulations with known truth."""

import numpy as np
import pytest

from mlflow_b3 import LossCurve, estimate, search_p0
from mlflow_b3.data.folds import FoldSummary
from mlflow_b3.estimation.fragments import estimate_fragments, seen_share
from mlflow_b3.measurement.curve import FragmentLosses

pytestmark = pytest.mark.newest

LEVELS = np.array([0, 0.04, 0.16, 0.36, 0.64, 1.0])
TRUTHS = {
    "straight": lambda p: 0.4 - 0.2 * p,
    "constant": lambda p: 0 * p + 0.3,
    "slow": lambda p: 0.2 + 0.2 * (1 - p) ** 3,
    "fast": lambda p: 0.2 + 0.2 * (1 - p) ** 12,
    "two speeds": lambda p: 0.2 + 0.1 * (1 - p) + 0.1 * (1 - p) ** 20,
}
REPEATS = 200


@pytest.mark.parametrize("name", TRUTHS)
@pytest.mark.parametrize("p0", [0.05, 0.1])
def test_intervals_cover_the_truth_in_nine_of_ten_cases(name, p0):
    """With 200 repetitions a true 95% is seen below 90% in one of 700 tests."""
    truth = TRUTHS[name]
    rng = np.random.default_rng(7)
    refits, shared = np.full(6, 0.004), 0.01
    mean = truth(p0 + LEVELS * (1 - p0))
    covered = 0
    for _ in range(REPEATS):
        offset = shared * rng.standard_normal()
        curve = LossCurve(
            injected=LEVELS,
            loss=mean + offset + refits * rng.standard_normal(6),
            stderr=refits,
            n_train=500,
            covariance=np.full((6, 6), shared**2),
            degrees_of_freedom=199,
        )
        low, high = estimate(curve, p0, bound=1.0).interval
        covered += low <= truth(0) <= high
    assert covered >= 0.9 * REPEATS


def test_a_curve_sharper_than_stated_can_escape_the_upper_end_and_a_higher_limit_holds_it():
    """No upper end below the largest loss exists without a limit on the sharpness."""

    def spike(p):
        return 0.2 + 0.3 * (1 - p) ** 80

    def high(sharpness):
        curve = LossCurve(
            injected=LEVELS,
            loss=spike(0.1 + 0.9 * LEVELS),
            stderr=np.full(6, 1e-3),
            n_train=500,
            sharpness=sharpness,
        )
        return estimate(curve, 0.1).interval[1]

    assert high(25) < spike(0) < high(100)


def test_a_covariance_that_was_rounded_can_be_searched():
    """Rounding can make a variance negative."""
    spread = 0.02 * (1 - 0.2 * LEVELS)
    curve = LossCurve(
        injected=LEVELS,
        loss=0.3 - 0.126 * (1 - np.exp(-3 * LEVELS)),
        stderr=np.full(6, 0.002),
        n_train=200,
        covariance=np.outer(spread, spread).round(5),
        degrees_of_freedom=30,
    )
    assert np.linalg.eigvalsh(np.array(curve.covariance))[0] < 0
    assert search_p0(curve, bound=0.31).identified[1] < 0.5


def test_more_noise_over_clusters_means_a_wider_interval():
    def width(shared):
        curve = LossCurve(
            injected=LEVELS,
            loss=0.4 - 0.2 * LEVELS,
            stderr=np.full(6, 1e-3),
            n_train=500,
            covariance=np.full((6, 6), shared**2),
            degrees_of_freedom=100,
        )
        low, high = estimate(curve, 0.1).interval
        return high - low

    assert width(0.03) > width(0.01) > width(0.0)


def test_losses_that_rise_and_fall_together_do_not_pull_the_upper_end_below_their_noise():
    """A curve of 332 ± 100, as few clusters with large squared errors make it."""
    noise = np.array([100.3, 99.8, 93.1, 86.8, 66.7, 62.8])
    levels = np.array([0.0, 0.024, 0.096, 0.216, 0.384, 0.6])
    together = np.array(
        [
            [1.0, 0.99999, 0.9982, 0.9947, 0.9752, 0.9438],
            [0.99999, 1.0, 0.9983, 0.9950, 0.9756, 0.9443],
            [0.9982, 0.9983, 1.0, 0.9954, 0.9801, 0.9497],
            [0.9947, 0.9950, 0.9954, 1.0, 0.9854, 0.9575],
            [0.9752, 0.9756, 0.9801, 0.9854, 1.0, 0.9722],
            [0.9438, 0.9443, 0.9497, 0.9575, 0.9722, 1.0],
        ]
    )
    covariance = np.outer(noise, noise) * together
    curve = LossCurve(
        injected=levels,
        loss=[332.2, 331.2, 317.8, 305.5, 261.4, 249.8],
        stderr=np.full(6, 0.5),
        covariance=covariance,
        degrees_of_freedom=49,
        sharpness=7,
        n_train=240,
    )
    found = estimate(curve, p0=0.0)
    assert found.interval[1] >= found.e0 + 1.9 * noise[0]


def fragment_losses(loss=0.30, seen=0.20, noise=0.01, **change):
    numbers = {
        "loss": loss,
        "seen_loss": seen,
        "seen_stderr": 0.0,
        "covariance": ((noise**2, 0.0), (0.0, noise**2)),
        "degrees_of_freedom": 10_000,
        "fits": 10,
        "broken_rows": 1.0,
    }
    return FragmentLosses(**{**numbers, **change})


def test_the_mixture_of_seen_and_new_rows_is_solved_exactly():
    """LOCO = (1-s)·e_0 + s·e_seen, fact F7."""
    e0, seen, share = 0.37, 0.21, 0.3
    losses = fragment_losses(loss=(1 - share) * e0 + share * seen, seen=seen)
    assert estimate_fragments(losses, seen_share=share).e0 == pytest.approx(e0)


def test_the_mixture_interval_is_that_of_a_linear_combination():
    share = 0.5
    low, high = estimate_fragments(fragment_losses(), seen_share=share).interval
    error = 0.01 * np.sqrt(1 + share**2) / (1 - share)
    assert high - low == pytest.approx(2 * 1.96 * error, rel=1e-3)


def test_a_range_of_split_rates_gives_the_union_of_intervals():
    losses = fragment_losses()
    low, high = estimate_fragments(losses, seen_share=(0.1, 0.4)).interval
    assert low == estimate_fragments(losses, seen_share=0.1).interval[0]
    assert high == estimate_fragments(losses, seen_share=0.4).interval[1]


def fold(clusters_training, clusters_validation):
    return FoldSummary(
        n_training=10 * clusters_training,
        n_validation=10 * clusters_validation,
        clusters_training=clusters_training,
        clusters_validation=clusters_validation,
        shared_clusters=0,
        shared_rows=0.0,
    )


def test_the_other_part_of_a_split_cluster_is_in_training_unless_it_fell_into_the_same_fold():
    assert seen_share(0.2, [fold(80, 20)] * 5).share == pytest.approx(0.2 * 80 / 99)
    assert seen_share(0.2, [fold(9, 1)] * 10).share == pytest.approx(0.2), "leaving one out: always"
