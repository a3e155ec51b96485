"""Linear regression with random intercepts, against the analysis of variance and dense matrices."""

import numpy as np
import pytest

from mlflow_b3.correlated.likelihood import Intercepts
from mlflow_b3.correlated.mixed import _LinearProblem, fit_mixed_linear
from mlflow_b3.errors import InputError


def balanced(seed, groups=12, size=5, sd=1.0):
    """Return numbers of groups of one size, the intercept and the groups."""
    rng = np.random.default_rng(seed)
    codes = np.repeat(np.arange(groups), size)
    numbers = 3 + sd * rng.normal(size=groups)[codes] + 0.7 * rng.normal(size=len(codes))
    return numbers, np.ones((len(codes), 1)), [codes]


def mean_squares(numbers, groups=12, size=5):
    """Return the mean squares between and within groups."""
    table = numbers.reshape(groups, size)
    within = ((table - table.mean(axis=1, keepdims=True)) ** 2).sum() / (groups * (size - 1))
    return size * table.mean(axis=1).var(ddof=1), within


@pytest.fixture
def crossed():
    """80 rows of three crossed levels, with two columns."""
    rng = np.random.default_rng(4)
    codes = [np.append(np.arange(k), rng.integers(0, k, 80 - k)) for k in (6, 9, 4)]
    X = np.column_stack([np.ones(80), rng.normal(size=(80, 2))])
    effects = rng.normal(size=6)[codes[0]] + 0.8 * rng.normal(size=9)[codes[1]]
    return X @ [1.0, 2.0, 0.0] + effects + rng.normal(size=80), X, codes


@pytest.mark.parametrize("seed", range(4))
def test_balanced_groups_give_the_estimates_of_the_analysis_of_variance(seed):
    sample = balanced(seed)
    between, within = mean_squares(sample[0])
    fit = fit_mixed_linear(*sample)
    assert fit.sd[0] == pytest.approx(np.sqrt((between - within) / 5), rel=1e-4)
    assert fit.noise == pytest.approx(np.sqrt(within), rel=1e-4)
    assert fit.coefficients == pytest.approx([sample[0].mean()], rel=1e-6)
    assert fit.sd_low[0] < fit.sd[0] < fit.sd_high[0]
    assert fit.converged


def test_fewer_differences_between_groups_than_by_chance_give_sd_0():
    numbers, X, codes = balanced(1, sd=0.0)
    numbers = numbers - 0.9 * (np.bincount(codes[0], numbers) / 5 - 3)[codes[0]]
    between, within = mean_squares(numbers)
    assert between < within
    fit = fit_mixed_linear(numbers, X, codes)
    assert fit.sd == fit.sd_low == (0.0,)
    assert 0 < fit.sd_high[0] < 1
    assert fit.noise == pytest.approx(numbers.std(ddof=1))
    assert (fit.effects[0] == 0).all()


def test_likelihood_coefficients_and_effects_are_those_of_dense_matrices(crossed):
    numbers, X, codes = crossed
    fit = fit_mixed_linear(numbers, X, codes)
    V = fit.noise**2 * np.eye(80)
    V += sum(sd**2 * (code[:, None] == code) for sd, code in zip(fit.sd, codes, strict=True))
    inverse = np.linalg.inv(V)
    information = X.T @ inverse @ X
    beta = np.linalg.solve(information, X.T @ inverse @ numbers)
    residual = numbers - X @ beta
    determinants = [np.linalg.slogdet(matrix)[1] for matrix in (V, information, X.T @ X)]
    squares = residual @ inverse @ residual
    value = 77 * np.log(2 * np.pi) + determinants[0] + determinants[1] - determinants[2] + squares
    assert fit.log_likelihood == pytest.approx(-value / 2, abs=1e-3)
    assert fit.coefficients == pytest.approx(beta)
    for level, size in enumerate((6, 9, 4)):
        pulled = (inverse @ residual) @ np.eye(size)[codes[level]]
        assert fit.effects[level] == pytest.approx(fit.sd[level] ** 2 * pulled, abs=1e-6)


def test_slopes_of_the_restricted_likelihood(crossed):
    numbers, X, codes = crossed
    problem = _LinearProblem(target=numbers, columns=X, levels=Intercepts(codes))
    ratio, step, none = np.array([0.5, 0.8, 0.3]), 1e-5, np.zeros(0)
    expected = [
        (
            problem.restricted(none, ratio + step * e)[0]
            - problem.restricted(none, ratio - step * e)[0]
        )
        / (2 * step)
        for e in np.eye(3)
    ]
    np.testing.assert_allclose(problem.restricted(none, ratio)[2], expected, atol=1e-6)


def test_variances_are_recovered_without_bias_and_intervals_cover_them(crossed):
    """Restricted likelihood is all but unbiased for variances; three standard errors of 60 samples."""
    _, X, codes = crossed
    rng = np.random.default_rng(6)
    variances, covered = [], 0
    for _ in range(60):
        effects = 1.5 * rng.normal(size=6)[codes[0]] + rng.normal(size=9)[codes[1]]
        fit = fit_mixed_linear(effects + 2 * rng.normal(size=80), X, codes[:2])
        variances.append([fit.sd[0] ** 2, fit.sd[1] ** 2, fit.noise**2])
        covered += (fit.sd_low[0] <= 1.5 <= fit.sd_high[0]) + (fit.sd_low[1] <= 1 <= fit.sd_high[1])
    error = np.std(variances, axis=0, ddof=1) / np.sqrt(60)
    assert (np.abs(np.mean(variances, axis=0) - [2.25, 1.0, 4.0]) < 3 * error).all()
    assert covered >= 107  # 114 of 120, less three standard errors


def test_units_of_the_target_do_not_matter(crossed):
    numbers, X, codes = crossed
    one, other = (fit_mixed_linear(unit * numbers, X, codes) for unit in (1.0, 1e6))
    for name in ("sd", "sd_low", "sd_high", "noise", "coefficients"):
        assert np.asarray(getattr(other, name)) == pytest.approx(
            1e6 * np.asarray(getattr(one, name)), rel=1e-6
        )
    expected = one.log_likelihood - 77 * np.log(1e6)
    assert other.log_likelihood == pytest.approx(expected, rel=1e-9)


def test_many_rows_and_groups_are_fine():
    rng = np.random.default_rng(7)
    a, b = rng.integers(0, 2000, 20_000), rng.integers(0, 100, 20_000)
    numbers = rng.normal(size=2000)[a] + 0.5 * rng.normal(size=100)[b] + rng.normal(size=20_000)
    fit = fit_mixed_linear(numbers, np.ones((20_000, 1)), [b, a])
    assert fit.sd_low[0] < 0.5 < fit.sd_high[0]
    assert fit.sd[1] == pytest.approx(1.0, abs=0.07)
    assert fit.noise == pytest.approx(1.0, abs=0.02)


def test_a_target_without_noise_is_flagged():
    _, X, codes = balanced(1)
    assert not fit_mixed_linear(codes[0] ** 1.5, X, codes).converged


def test_a_constant_target_has_no_variance():
    numbers, X, codes = balanced(1)
    fit = fit_mixed_linear(np.full_like(numbers, 2.0), X, codes)
    assert fit.sd == (0.0,)
    assert fit.noise == pytest.approx(0.0, abs=1e-5)


def test_more_columns_than_rows_are_refused():
    with pytest.raises(InputError, match="4 independent columns for 4 rows"):
        fit_mixed_linear(np.arange(4.0), np.eye(4), [np.array([0, 0, 1, 1])])
