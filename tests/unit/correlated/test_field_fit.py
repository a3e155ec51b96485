"""Random fields over places, against random intercepts, brute force and truth."""

import numpy as np
import pytest
from scipy.spatial.distance import cdist
from scipy.special import expit

from mlflow_b3.correlated.field import ClassField, NumberField, NumberProfile, fit_field
from mlflow_b3.correlated.likelihood import Intercepts, laplace
from mlflow_b3.correlated.mixed import fit_mixed_linear
from mlflow_b3.errors import InputError

pytestmark = pytest.mark.newest


def regional_sample(seed, task, regions=12, size=9):
    """Return the spatial design of the prototype: kernel 1.5 exp(-d/3) in a square of 10 by 10."""
    rng = np.random.default_rng(seed)
    places = np.repeat(10 * rng.random((regions, 2)), size, axis=0)
    places += 0.5 * rng.normal(size=places.shape)
    n = len(places)
    kernel = 1.5 * np.exp(-cdist(places, places) / 3) + 1e-9 * np.eye(n)
    x = rng.normal(size=n)
    mean = 0.8 * x + np.linalg.cholesky(kernel) @ rng.normal(size=n)
    chance, noise = rng.random(n), 0.5 * rng.normal(size=n)
    target = mean + noise if task == "regression" else (chance < expit(mean)).astype(float)
    return target, np.column_stack([np.ones(n), x]), places, task


def slopes(function, at, step=1e-5):
    """Return the derivatives of a function by central differences."""
    return [
        (function(at + step * e) - function(at - step * e)) / (2 * step) for e in np.eye(len(at))
    ]


def test_slopes_of_the_likelihood_of_classes():
    target, X, places, _ = regional_sample(1, "classification", size=4)
    field = ClassField(target=target, columns=X, distances=cdist(places, places))
    beta, spread = np.array([0.2, -0.4]), np.array([1.3, np.log(2.0)])
    _, by_beta, by_spread = field.evaluate(beta, spread)
    expected = slopes(lambda at: field.evaluate(at, spread)[0], beta)
    np.testing.assert_allclose(by_beta, expected, atol=1e-5)
    expected = slopes(lambda at: field.evaluate(beta, at)[0], spread)
    np.testing.assert_allclose(by_spread, expected, atol=1e-5)


def test_slopes_of_the_likelihood_of_numbers():
    target, X, places, _ = regional_sample(1, "regression", size=4)
    field = NumberField(target=target, columns=X, distances=cdist(places, places))
    spread = np.array([1.3, np.log(2.0)])
    expected = slopes(lambda at: field.evaluate(np.zeros(0), at)[0], spread)
    np.testing.assert_allclose(field.evaluate(np.zeros(0), spread)[2], expected, atol=1e-6)


def test_places_too_far_apart_to_matter_are_groups_of_classes():
    rng = np.random.default_rng(2)
    codes = np.repeat(np.arange(8), 5)
    target, offset = (rng.random(40) < 0.5).astype(float), rng.normal(size=(40, 1))
    field = ClassField(
        target=target, columns=offset, distances=cdist(1e3 * codes[:, None], 1e3 * codes[:, None])
    )
    by_groups = laplace(
        target,
        np.empty((40, 0)),
        Intercepts([codes]),
        np.array([1.3]),
        penalty=np.empty((0, 0)),
        offset=offset[:, 0],
    )
    value, _, by_spread = field.evaluate(np.ones(1), np.array([1.3, 0.0]))
    assert value == pytest.approx(by_groups.value, abs=1e-6)
    assert by_spread[0] == pytest.approx(by_groups.sd_slope[0], abs=1e-6)


def test_places_too_far_apart_to_matter_are_groups_of_numbers():
    rng = np.random.default_rng(3)
    codes = np.repeat(np.arange(20), 4)
    target = rng.normal(size=20)[codes] + rng.normal(size=80)
    places = np.array([0.0, *(10.0 ** np.arange(2, 21))])[codes]
    field = NumberField(
        target=target, columns=np.ones((80, 1)), distances=np.abs(places[:, None] - places)
    )
    by_groups = fit_mixed_linear(target, np.ones((80, 1)), [codes], intervals=False)
    ratio = by_groups.sd[0] / by_groups.noise
    value = field.evaluate(np.zeros(0), np.array([ratio, 0.0]))[0]
    assert value + np.log(80) / 2 == pytest.approx(by_groups.log_likelihood, abs=1e-6)
    beta, noise = field.estimates(np.array([ratio, 0.0]))
    assert beta == pytest.approx(by_groups.coefficients)
    assert noise == pytest.approx(by_groups.noise)


def test_profile_of_numbers_agrees_with_their_likelihood():
    target, X, places, _ = regional_sample(2, "regression")
    fit = fit_field(target, X, places, "regression")
    field = NumberField(target=target, columns=X, distances=cdist(places, places))
    spread = np.array([fit.sd / fit.noise, np.log(fit.reach)])
    profile = NumberProfile(field, fit.reach, fit.noise)
    height = field.evaluate(np.zeros(0), spread)[0]
    assert profile(fit.sd) == pytest.approx(height, abs=1e-4)
    assert height - profile(fit.sd_low) == pytest.approx(1.92, abs=0.05)
    assert height - profile(fit.sd_high) == pytest.approx(1.92, abs=0.05)


def test_a_field_of_numbers_is_recovered():
    """The data tell σ²/r (0.5) well, σ (1.22) and r (3) roughly; medians of 15 samples."""
    fits = [fit_field(*regional_sample(seed, "regression")) for seed in range(15)]
    assert all(fit.converged and not fit.capped for fit in fits)
    assert np.median([fit.sd**2 / fit.reach for fit in fits]) == pytest.approx(0.5, abs=0.2)
    assert np.median([fit.noise for fit in fits]) == pytest.approx(0.5, abs=0.15)
    assert np.median([fit.coefficients[1] for fit in fits]) == pytest.approx(0.8, abs=0.06)
    assert np.median([fit.sd for fit in fits]) == pytest.approx(1.22, abs=0.4)


def test_a_field_of_classes_is_recovered_roughly():
    """108 classes tell little: σ is found too small, as by GPBoost, and intervals say how little."""
    fits = [fit_field(*regional_sample(seed, "classification")) for seed in range(15)]
    assert all(fit.converged and not fit.separated for fit in fits)
    assert 0.5 < np.median([fit.sd for fit in fits]) < 1.5
    assert np.median([fit.coefficients[1] for fit in fits]) == pytest.approx(0.8, abs=0.25)
    assert sum(fit.sd_low <= np.sqrt(1.5) <= fit.sd_high for fit in fits) >= 12


def test_more_classes_tell_more():
    fit = fit_field(*regional_sample(3, "classification", regions=30, size=12))
    assert fit.sd_low < np.sqrt(1.5) < fit.sd_high < 5
    assert fit.sd_low > 0


def test_places_that_do_not_matter_leave_no_field():
    rng = np.random.default_rng(5)
    places, X = rng.random((120, 2)), np.ones((120, 1))
    for task, target in (
        ("classification", np.tile([0.0, 1.0], 60)),
        ("regression", rng.normal(size=120)),
    ):
        fit = fit_field(target, X, places, task)
        assert fit.sd_low == 0.0
        assert not fit.capped


def test_one_class_at_each_place_is_flagged():
    rng = np.random.default_rng(6)
    centres = 100 * rng.random((20, 2))
    codes = np.repeat(np.arange(20), 8)
    target = (codes % 2).astype(float)
    fit = fit_field(target, np.ones((160, 1)), centres[codes], "classification")
    assert fit.capped
    assert fit.sd == pytest.approx(5.0)


def test_a_column_that_tells_the_classes_is_flagged():
    _, X, places, task = regional_sample(4, "classification")
    target = (X[:, 1] > 0).astype(float)
    assert fit_field(target, X, places, task, intervals=False).separated


def test_the_same_data_give_the_same_numbers():
    for task in ("classification", "regression"):
        one, other = (fit_field(*regional_sample(7, task)) for _ in range(2))
        assert (one.sd, one.reach, one.sd_high) == (other.sd, other.reach, other.sd_high)


def test_wrong_arguments_are_named():
    target, X, places, _ = regional_sample(1, "classification")
    with pytest.raises(InputError, match="task='ranking'"):
        fit_field(target, X, places, "ranking")
    with pytest.raises(InputError, match="coordinates has the shape"):
        fit_field(target, X, places[:-1], "classification")
    with pytest.raises(InputError, match="different places"):
        fit_field(target, X, np.zeros_like(places), "classification")
    with pytest.raises(InputError, match="0 and 1"):
        fit_field(target + 1, X, places, "classification")
    with pytest.raises(InputError, match=r"1501 rows.*sample"):
        fit_field(np.zeros(1501), np.ones((1501, 1)), np.arange(1501.0), "regression")


# --- The Gaussian kernel


def test_the_gaussian_kernel_is_fitted_as_its_likelihood_says():
    """Brute force over σ/noise and reach: the restricted likelihood with exp(-(d/r)²) has its peak at the fit."""
    target, X, places, _ = regional_sample(3, "regression")
    found = fit_field(target, X, places, "regression", kernel="gaussian", intervals=False)
    squares = (cdist(places, places) / found.reach) ** 2

    def likelihood(sd, noise, stretch):
        covariance = sd**2 * np.exp(-squares / stretch**2) + noise**2 * np.eye(len(target))
        inverse = np.linalg.inv(covariance)
        information = X.T @ inverse @ X
        beta = np.linalg.solve(information, X.T @ inverse @ target)
        residual = target - X @ beta
        determinants = np.linalg.slogdet(covariance)[1] + np.linalg.slogdet(information)[1]
        return -(residual @ inverse @ residual + determinants) / 2

    best = likelihood(found.sd, found.noise, 1.0)
    for sd, noise, stretch in ((1.1, 1, 1), (0.9, 1, 1), (1, 1.1, 1), (1, 1, 1.1), (1, 1, 0.9)):
        assert likelihood(sd * found.sd, noise * found.noise, stretch) < best + 1e-6


def test_the_kernel_that_made_the_rows_is_more_likely():
    """Mean over six samples of a Gaussian field; by either kernel alone the sign could be chance."""
    gains = []
    for seed in range(6):
        rng = np.random.default_rng(seed)
        places = np.repeat(10 * rng.random((12, 2)), 9, axis=0) + 0.7 * rng.normal(size=(108, 2))
        kernel = 1.5 * np.exp(-((cdist(places, places) / 2) ** 2)) + 1e-9 * np.eye(108)
        target = np.linalg.cholesky(kernel) @ rng.normal(size=108) + 0.2 * rng.normal(size=108)
        fits = [
            fit_field(target, np.ones((108, 1)), places, "regression", kernel=name, intervals=False)
            for name in ("gaussian", "exponential")
        ]
        gains.append(fits[0].log_likelihood - fits[1].log_likelihood)
    assert np.mean(gains) > 2


def test_classes_can_have_a_gaussian_kernel():
    target, X, places, _ = regional_sample(5, "classification")
    found = fit_field(target, X, places, "classification", kernel="gaussian", intervals=False)
    assert 0 < found.reach <= cdist(places, places).max()
    assert found.converged


def test_an_unknown_kernel_is_refused():
    target, X, places, task = regional_sample(1, "regression", size=4)
    with pytest.raises(InputError, match="kernel='gauss'"):
        fit_field(target, X, places, task, kernel="gauss")
