"""The default estimator: one setting for every curve."""

import os
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import binom

from mlflow_b3 import LossCurve, estimate
from mlflow_b3.estimation.power_estimator import LARGEST_AMPLIFICATION, fit_power
from mlflow_b3.estimation.problem import LeakShares, unmix

pytestmark = pytest.mark.newest

X = np.linspace(0, 1, 21)
SHARED = Path(os.environ.get("B3_SHARED", Path(__file__).parents[3] / "shared"))
PUBLISHED = SHARED / "data" / "published"


def curve_of(truth, p0=0.1, noise=1e-3, seed=0, n_train=100, **options):
    rng = np.random.default_rng(seed)
    loss = truth(p0 + X * (1 - p0)) + noise * rng.standard_normal(len(X))
    return LossCurve(
        injected=X, loss=loss, stderr=np.full(len(X), noise), n_train=n_train, **options
    )


def mean_error(truth, p0=0.1, noise=1e-3, runs=20):
    """Return the mean error of e0 and its standard error."""
    errors = [
        estimate(curve_of(truth, p0, noise, seed), p0).e0 - truth(0.0) for seed in range(runs)
    ]
    return np.mean(errors), np.std(errors, ddof=1) / np.sqrt(runs)


@pytest.mark.parametrize(
    "truth",
    [
        lambda p: 0.3 + 0 * p,
        lambda p: 0.3 - 0.09 * p,
        lambda p: 0.28 + 0.03 * p,
        lambda p: 0.3 - 0.05 * p**2,
        lambda p: 0.3 - 0.06 * p + 0.08 * p**2,
    ],
    ids=["constant", "falling", "rising", "bending down", "not monotone"],
)
def test_lines_and_parabolas_are_read_without_bias_whatever_their_direction(truth):
    error, stderr = mean_error(truth)
    assert abs(error) < 4 * stderr + 1e-3


@pytest.mark.parametrize(
    "truth",
    [
        lambda p: 0.2 + 0.15 * np.exp(-12 * p),
        lambda p: 0.2 + 0.1 * np.exp(-2.5 * p),
        lambda p: 0.25 + 0.12 * (1 - p) ** 2,
        lambda p: 0.2 + 0.1 * (1 - p) ** 7 + 0.03 * (1 - p),
    ],
    ids=["fast", "slow", "parabola", "two speeds"],
)
def test_most_of_the_bias_of_falling_curves_is_removed(truth):
    error, _ = mean_error(truth)
    assert abs(error) < 0.3 * (truth(0.0) - truth(0.1))


@pytest.mark.parametrize(
    "truth",
    [lambda p: 0.3 - 0.05 * p**3, lambda p: 0.34 + 0.02 * p - 0.07 * p**3],
    ids=["concave", "rising, then falling"],
)
def test_a_curve_that_no_falling_convex_sum_fits_is_not_read_as_one_with_little_noise(truth):
    """A convex curve through these points would lie 0.014 and 0.02 above the loss on new clusters."""
    error, _ = mean_error(truth, noise=3e-4, runs=5)
    assert abs(error) < 0.008


def test_one_fit_serves_every_leaked_share_and_e0_never_falls_with_it():
    curve = curve_of(lambda p: 0.2 + 0.15 * np.exp(-12 * p), p0=0.0)
    shares = np.linspace(0, 0.6, 31)
    fit = fit_power(unmix(curve, LeakShares(p0=0.0)))
    one = fit.read(-shares / (1 - shares))
    many = [estimate(curve, float(share)).e0 for share in shares]
    assert one == pytest.approx(many, abs=1e-12)
    assert np.all(np.diff(one) >= 0)


def test_a_power_is_amplified_only_so_far():
    """What cannot be seen at p0 = 0.6 must not decide: (1-p0)^-24 would be 3·10⁹."""
    curve = curve_of(lambda p: 0.2 + 0.1 * (1 - p) ** 24, p0=0.0, noise=1e-4)
    rise = estimate(curve, 0.6).e0 - 0.2
    assert 0.3 < rise < 1.2 * LARGEST_AMPLIFICATION * 0.1


def test_the_number_of_training_rows_changes_nothing():
    small, large = (
        curve_of(lambda p: 0.2 + 0.1 * (1 - p) ** 3, n_train=n) for n in (100, 1_000_000)
    )
    assert estimate(small, 0.1).e0 == estimate(large, 0.1).e0
    assert estimate(small, 0.1).interval == estimate(large, 0.1).interval


@pytest.mark.parametrize("factor", [0.25, 4.0])
def test_standard_errors_that_are_wrong_by_a_factor_do_no_harm_on_many_levels(factor):
    truth = curve_of(lambda p: 0.2 + 0.1 * np.exp(-5 * p))
    wrong = LossCurve.from_dict(
        {**truth.to_dict(), "stderr": [factor * error for error in truth.stderr]}
    )
    assert estimate(wrong, 0.1).e0 == pytest.approx(estimate(truth, 0.1).e0, abs=1e-6)


def test_the_losses_e_j_average_to_the_fitted_curve():
    """b(p) = Σ_j Binom(j; n', p)·e_j, as long as no amplification is limited."""
    curve = curve_of(lambda p: 0.2 + 0.1 * (1 - p) ** 2, p0=0.01, n_train=40)
    problem = unmix(curve, LeakShares(p0=0.01))
    fit = fit_power(problem)
    losses = fit.losses(np.arange(41.0), 40)
    p = 0.01 + X * 0.99
    assert binom.pmf(np.arange(41), 40, p[:, None]) @ losses == pytest.approx(fit.at(X), abs=1e-4)


@pytest.mark.skipif(not PUBLISHED.is_dir(), reason="the published curves are not here")
def test_one_default_beats_the_best_hand_tuned_estimator_of_the_papers_on_their_own_curves():
    best = {"heart": 0.0140, "census": 0.0022, "synthetic": 4.35}
    ratios = []
    for name, reference in best.items():
        data = np.load(PUBLISHED / f"{name}.npz")
        p0, truth = float(data["p0"]), float(data["true_e0"])
        injected = np.clip((data["p"] - p0) / (1 - p0), 0, 1)
        stderr = data["loss"].std(axis=1, ddof=1)
        errors = []
        for loss in data["loss"].T:
            curve = LossCurve(
                injected=injected, loss=loss, stderr=stderr, n_train=int(data["n_train"])
            )
            errors.append(abs(estimate(curve, p0).e0 - truth))
        assert np.mean(errors) < np.mean(np.abs(data["loss"][0] - truth)), "LOCO is never better"
        ratios.append(np.mean(errors) / reference)
    assert max(ratios) <= 1.0
    assert np.exp(np.mean(np.log(ratios))) <= 0.75
