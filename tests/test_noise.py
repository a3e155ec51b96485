"""The noise of a curve, judged by the curve itself."""

import numpy as np
import pytest

from mlflow_b3 import LossCurve, estimate
from mlflow_b3.errors import InputError
from mlflow_b3.estimation.noise import noise_of, noise_scale

X = np.linspace(0, 1, 100)
TRUTH = 0.2 + 0.1 * (1 - X) ** 6


def test_the_roughness_of_a_curve_tells_by_what_factor_standard_errors_are_wrong():
    """The root mean square of about 92 normal residuals has a standard error of 7 %."""
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
