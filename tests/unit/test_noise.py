"""The noise of a curve, judged by the curve itself."""

import numpy as np
import pytest

from mlflow_b3 import LossCurve, estimate
from mlflow_b3.errors import InputError
from mlflow_b3.estimation.problem import noise_of, noise_scale, smooth_errors

pytestmark = pytest.mark.newest

X = np.linspace(0, 1, 100)
TRUTH = 0.2 + 0.1 * (1 - X) ** 6


def test_the_roughness_of_a_curve_tells_by_what_factor_standard_errors_are_wrong():
    """The root mean square of about 92 normal residuals has a standard error of 7%."""
    rng = np.random.default_rng(0)
    loss = TRUTH + 0.004 * rng.standard_normal(100)
    for stated in (0.002, 0.004, 0.008):
        scale = noise_scale(X, loss, np.full(100, stated))
        assert stated * scale == pytest.approx(0.004, rel=0.2)


def test_with_few_levels_stated_errors_are_believed():
    assert noise_scale(X[::20], TRUTH[::20], np.full(5, 0.1)) == 1.0


def test_noise_that_grows_along_the_curve_is_seen_to_grow():
    rng = np.random.default_rng(1)
    noise = np.linspace(0.001, 0.01, 100)
    found = noise_of(X, TRUTH + noise * rng.standard_normal(100))
    assert found[5] < 0.004 < 0.007 < found[-5]


@pytest.mark.parametrize("method", ["auto", "basis"])
def test_a_curve_needs_no_standard_errors(method):
    rng = np.random.default_rng(2)
    truth = 0.2 + 0.1 * (1 - 0.1 - 0.9 * X) ** 2
    curve = LossCurve(injected=X, loss=truth + 0.001 * rng.standard_normal(100), n_train=100)
    result = estimate(curve, 0.1, method)
    assert result.e0 == pytest.approx(0.3, abs=0.003)
    assert result.interval[0] <= 0.3 <= result.interval[1]
    assert LossCurve.from_dict(curve.to_dict()) == curve


def test_too_few_levels_for_judging_the_noise_is_an_error_that_says_so():
    curve = LossCurve(injected=[0, 0.5, 1], loss=[0.3, 0.2, 0.1], n_train=100)
    with pytest.raises(InputError, match="no stderr; give stderr, or measure at least 5"):
        estimate(curve, 0.1)


def test_understated_errors_widen_the_interval_of_a_rough_curve():
    rng = np.random.default_rng(3)
    loss = TRUTH + 0.01 * rng.standard_normal(100)
    widths = []
    for stated in (0.001, 0.01):
        curve = LossCurve(injected=X, loss=loss, stderr=np.full(100, stated), n_train=100)
        low, high = estimate(curve, 0.1).interval
        widths.append(high - low)
    assert widths[0] == pytest.approx(widths[1], rel=0.05)


def _skewed(rng, levels=24, refits=20):
    """Return mean losses and standard errors of lognormal losses around a falling curve."""
    exposure = np.linspace(0, 1, levels)
    scale = (0.2 + 5 * (1 - exposure) ** 10)[:, None]
    losses = scale * rng.lognormal(-0.7, 1.2, (levels, refits))
    return exposure, losses.mean(axis=1), losses.std(axis=1, ddof=1) / np.sqrt(refits)


def test_standard_errors_that_go_with_skewed_losses_are_smoothed():
    exposure, loss, stderr = _skewed(np.random.default_rng(3))
    smooth = smooth_errors(exposure, loss, stderr, np.full(24, 20.0))
    assert np.abs(np.diff(np.log(smooth), 2)).max() < np.abs(np.diff(np.log(stderr), 2)).max() / 4
    assert smooth.max() / smooth.min() <= 10 * (1 + 1e-9)


def test_standard_errors_that_do_not_go_with_the_losses_are_left_alone():
    rng = np.random.default_rng(0)
    stderr = 0.004 * rng.uniform(0.5, 2, 100)
    changed = 0
    for _ in range(200):
        loss = TRUTH + stderr * rng.standard_normal(100)
        changed += not np.array_equal(smooth_errors(X, loss, stderr, np.ones(100)), stderr)
    assert changed <= 20  # a test at 5%: 10 on average, give or take 3
    few = stderr[:6]
    assert np.array_equal(smooth_errors(X[:6], TRUTH[:6], few, np.ones(6)), few)


def test_skewed_losses_no_longer_make_standard_errors_worse_than_none():
    """The papers' synthetic case: least squares on 15 rows, squared loss, 24 levels of 20 refits."""
    rng = np.random.default_rng(5)
    exposure = np.linspace(0, 1, 24)
    errors, uncorrected = [], []
    for _ in range(30):
        fits = [[_synthetic_loss(0.1 + 0.9 * x, rng) for _ in range(20)] for x in exposure]
        loss, spread = np.mean(fits, axis=1), np.std(fits, axis=1, ddof=1)
        curve = LossCurve(injected=exposure, loss=loss, stderr=spread / np.sqrt(20), n_train=15)
        errors.append(estimate(curve, 0.1).e0 - 35.33)
        uncorrected.append(loss[0] - 35.33)
    assert np.linalg.norm(errors) < np.linalg.norm(uncorrected)


def _synthetic_loss(leaked, rng):
    """Return the expected loss on slope 2 of a line fitted to rows of slope 1 and 2."""
    inside = rng.random(15) < leaked
    x = rng.uniform(-1, 1, 15) * np.where(inside, 10, 1)
    y = x * np.where(inside, 2, 1) + 0.5 * rng.standard_normal(15)
    slope, intercept = np.polyfit(x, y, 1)
    return intercept**2 + (slope - 2) ** 2 * 100 / 3 + 0.25
