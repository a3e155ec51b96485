"""Logistic regression with random intercepts, against brute force, lme4's known biases and truth."""

import itertools

import numpy as np
import pytest
from published_design import published_sample
from scipy.integrate import quad
from scipy.optimize import minimize
from scipy.special import expit
from scipy.stats import norm
from sklearn.linear_model import LogisticRegression

from mlflow_b3.correlated import likelihood, mixed
from mlflow_b3.correlated.likelihood import Curvature, Intercepts, adaptive_quadrature
from mlflow_b3.correlated.mixed import fit_mixed_logistic
from mlflow_b3.errors import InputError

pytestmark = pytest.mark.newest

METHODS = ("aghq", "laplace", "laplace0")
NO_COLUMNS, NO_PENALTY = np.empty((60, 0)), np.empty((0, 0))


def grouped_sample(seed, groups, size, sd=1.0):
    """Return classes of groups of one size, with one column and an intercept."""
    rng = np.random.default_rng(seed)
    codes = np.repeat(np.arange(groups), size)
    X = np.column_stack([np.ones(len(codes)), rng.normal(size=len(codes))])
    log_odds = 0.5 * X[:, 1] + sd * rng.normal(size=groups)[codes]
    return (rng.random(len(codes)) < expit(log_odds)).astype(float), X, [codes]


@pytest.fixture
def crossed():
    """60 rows of three crossed levels, the largest in the middle."""
    rng = np.random.default_rng(1)
    codes = [np.append(np.arange(k), rng.integers(0, k, 60 - k)) for k in (4, 7, 3)]
    X = np.column_stack([np.ones(60), rng.normal(size=(60, 2))])
    return (rng.random(60) < 0.5).astype(float), X, codes


def slopes(function, at, step=1e-5):
    """Return the derivatives of a function by central differences."""
    return [
        (function(at + step * e) - function(at - step * e)) / (2 * step) for e in np.eye(len(at))
    ]


def test_quadrature_equals_the_integral_over_each_group():
    target, X, codes = grouped_sample(3, 4, 3)
    offset = X @ [0.2, 0.5]
    found = adaptive_quadrature(target, Intercepts(codes), np.array([1.5]), offset=offset)
    total = 0.0
    for group in range(4):
        rows = codes[0] == group
        signs = 2 * target[rows] - 1

        def density(v, rows=rows, signs=signs):
            return norm.pdf(v) * np.prod(expit(signs * (offset[rows] + 1.5 * v)))

        total += np.log(quad(density, -10, 10, epsabs=1e-12)[0])
    assert found.value == pytest.approx(total, abs=1e-6)


def test_laplace_is_close_to_the_integral_over_crossed_levels():
    rng = np.random.default_rng(5)
    codes = [np.repeat([0, 1], 12), np.tile([0, 1], 12)]
    target, sd = (rng.random(24) < 0.5).astype(float), np.array([0.5, 0.3])
    found = likelihood.laplace(
        target, np.empty((24, 0)), Intercepts(codes), sd, penalty=NO_PENALTY, offset=np.zeros(24)
    )
    points, weights = np.polynomial.hermite_e.hermegauss(15)
    total = 0.0
    for picked in itertools.product(range(15), repeat=4):
        v = points[list(picked)]
        log_odds = sd[0] * v[:2][codes[0]] + sd[1] * v[2:][codes[1]]
        chance = np.prod(expit((2 * target - 1) * log_odds))
        total += chance * np.prod(weights[list(picked)] / np.sqrt(2 * np.pi))
    assert found.value == pytest.approx(np.log(total), abs=0.02)


def test_elimination_of_the_largest_level_changes_no_number(crossed):
    _, X, codes = crossed
    levels, sd = Intercepts(codes), np.array([1.2, 0.8, 0.4])
    weight, penalty = np.linspace(0.01, 0.25, 60), 0.1 * np.eye(3)
    Z = np.hstack(
        [np.eye(size)[code] for size, code in zip(levels.sizes, levels.codes, strict=True)]
    )
    F = np.hstack([Z * np.repeat(sd, levels.sizes), X])
    full = F.T @ (weight[:, None] * F) + np.diag([1.0] * 14 + [0.1] * 3)
    curvature = Curvature(levels, sd, weight, X, penalty)
    assert curvature.log_determinant == pytest.approx(np.linalg.slogdet(full[:14, :14])[1])
    solved = np.concatenate(curvature.solve(np.arange(14.0), np.ones(3)))
    np.testing.assert_allclose(full @ solved, [*range(14), 1, 1, 1], atol=1e-10)
    variances = np.einsum("ij,jk,ik->i", F[:, :14], np.linalg.inv(full[:14, :14]), F[:, :14])
    np.testing.assert_allclose(curvature.row_variances()[0], variances)
    np.testing.assert_allclose(curvature.information, np.linalg.inv(np.linalg.inv(full)[14:, 14:]))


def test_slopes_of_laplace_with_coefficients_of_the_joint_mode(crossed):
    target, X, codes = crossed
    levels, sd = Intercepts(codes), np.array([0.8, 1.2, 0.4])

    def value(at):
        return likelihood.laplace(target, X, levels, at, penalty=0.1 * np.eye(3))

    np.testing.assert_allclose(
        value(sd).sd_slope, slopes(lambda at: value(at).value, sd), atol=1e-6
    )


def test_slopes_of_laplace_at_given_coefficients(crossed):
    target, X, codes = crossed
    levels, sd, beta = Intercepts(codes), np.array([0.8, 1.2, 0.4]), np.array([0.1, 0.5, -0.3])

    def value(sd, beta):
        return likelihood.laplace(
            target, NO_COLUMNS, levels, sd, penalty=NO_PENALTY, offset=X @ beta
        )

    found = value(sd, beta)
    by_sd = slopes(lambda at: value(at, beta).value, sd)
    by_beta = slopes(lambda at: value(sd, at).value, beta)
    np.testing.assert_allclose(found.sd_slope, by_sd, atol=1e-6)
    np.testing.assert_allclose(X.T @ found.offset_slope, by_beta, atol=1e-6)


def test_slopes_of_the_quadrature(crossed):
    target, X, codes = crossed
    levels, sd, beta = Intercepts(codes[1:2]), np.array([1.2]), np.array([0.1, 0.5, -0.3])

    def value(sd, beta):
        return adaptive_quadrature(target, levels, sd, offset=X @ beta)

    found = value(sd, beta)
    by_sd = slopes(lambda at: value(at, beta).value, sd)
    by_beta = slopes(lambda at: value(sd, at).value, beta)
    np.testing.assert_allclose(found.sd_slope, by_sd, atol=1e-5)
    np.testing.assert_allclose(X.T @ found.offset_slope, by_beta, atol=1e-5)


# Groups, their size, three standard errors of the sd, and how small nAGQ0 finds it at most. The
# standard errors are those of 20 samples of 300 or 100 groups (0.31, 0.14, 0.12), scaled.
@pytest.mark.parametrize(
    ("groups", "size", "tolerance", "biased"),
    [(20_000, 2, 0.12, 0.8), (10_000, 3, 0.07, 0.9), (2_000, 11, 0.08, 1.0)],
)
def test_quadrature_recovers_the_sd_of_small_groups_and_laplace_does_not(
    groups, size, tolerance, biased
):
    sample = grouped_sample(size, groups, size)
    exact = fit_mixed_logistic(*sample, intervals=False)
    quick = fit_mixed_logistic(*sample, method="laplace0", intervals=False)
    assert exact.converged
    assert exact.sd[0] == pytest.approx(1.0, abs=tolerance)
    assert exact.coefficients == pytest.approx([0, 0.5], abs=0.06)
    assert quick.sd[0] < min(exact.sd[0], biased)


def test_variance_components_of_the_published_design_are_those_of_the_prototype():
    """Means of 100 samples there: 0.81 and 0.23; their standard deviation is about 0.8 and 0.4."""
    fits = [
        fit_mixed_logistic(*published_sample(seed), method="laplace0", intervals=False)
        for seed in range(60)
    ]
    entity, day = np.array([fit.sd for fit in fits]).T
    error = np.sqrt(1 / 60 + 1 / 100)
    assert entity.mean() == pytest.approx(0.81, abs=3 * 0.8 * error)
    assert day.mean() == pytest.approx(0.23, abs=3 * 0.4 * error)
    assert np.median(day) < 0.1


def test_crossed_levels_are_recovered_whichever_comes_first():
    rng = np.random.default_rng(11)
    a, b, x = rng.integers(0, 60, 6000), rng.integers(0, 80, 6000), rng.normal(size=6000)
    log_odds = 0.5 * x + rng.normal(size=60)[a] + 0.5 * rng.normal(size=80)[b]
    target = (rng.random(6000) < expit(log_odds)).astype(float)
    X = np.column_stack([np.ones(6000), x])
    one, other = (fit_mixed_logistic(target, X, codes) for codes in ([a, b], [b, a]))
    assert one.sd == pytest.approx(other.sd[::-1], abs=1e-3)
    assert one.sd_low[0] < 1.0 < one.sd_high[0]
    assert one.sd_low[1] < 0.5 < one.sd_high[1]
    assert one.log_likelihood == pytest.approx(other.log_likelihood, abs=1e-4)
    for level, size in enumerate((60, 80)):
        assert len(one.effects[level]) == size
        assert one.effects[level] == pytest.approx(other.effects[1 - level], abs=1e-3)


def test_nested_levels_are_told_apart():
    """Standard deviations of the estimates over 20 samples are 0.08 and 0.04; three of them pass."""
    rng = np.random.default_rng(12)
    ward = np.repeat(np.arange(600), 12)
    hospital = ward // 10
    effects = rng.normal(size=60)[hospital] + 0.6 * rng.normal(size=600)[ward]
    target = (rng.random(len(ward)) < expit(effects)).astype(float)
    fit = fit_mixed_logistic(target, np.ones((len(ward), 1)), [hospital, ward], intervals=False)
    assert fit.sd[0] == pytest.approx(1.0, abs=0.25)
    assert fit.sd[1] == pytest.approx(0.6, abs=0.13)


def test_no_variance_between_groups_leaves_an_ordinary_logistic_regression():
    rng = np.random.default_rng(2)
    codes, x = np.repeat(np.arange(20), 10), rng.normal(size=200)
    target = np.tile([0.0, 1.0], 100)  # half of every group
    X = np.column_stack([np.ones(200), x])
    plain = LogisticRegression(C=np.inf, solver="newton-cholesky", tol=1e-10).fit(X[:, 1:], target)
    for method in METHODS:
        fit = fit_mixed_logistic(target, X, [codes], method=method)
        assert fit.sd == fit.sd_low == (0.0,)
        assert 0 < fit.sd_high[0] < 1
        assert (fit.converged, fit.separated) == (True, False)
        assert (fit.effects[0] == 0).all()
        expected = [plain.intercept_[0], plain.coef_[0, 0]]
        assert fit.coefficients == pytest.approx(expected, abs=1e-4)


def test_interval_ends_where_the_profile_has_fallen_by_1_92():
    target, X, codes = grouped_sample(4, 60, 5)
    fit = fit_mixed_logistic(target, X, codes)

    def highest(sd):
        def loss(beta):
            levels = Intercepts(codes)
            return -adaptive_quadrature(target, levels, np.array([sd]), offset=X @ beta).value

        return -minimize(loss, fit.coefficients, method="Nelder-Mead").fun

    for end in (fit.sd_low[0], fit.sd_high[0]):
        assert fit.log_likelihood - highest(end) == pytest.approx(1.92, abs=0.03)


def test_intervals_cover_the_sd_as_often_as_they_say():
    covered = 0
    for seed in range(60):
        fit = fit_mixed_logistic(*grouped_sample(100 + seed, 40, 6))
        covered += fit.sd_low[0] <= 1.0 <= fit.sd_high[0]
    assert covered >= 52  # 57 less three standard errors of 60 draws at 95%


def test_ridge_shrinks_coefficients():
    sample = grouped_sample(6, 30, 6)
    free, held = (fit_mixed_logistic(*sample, ridge=r, intervals=False) for r in (0.0, 50.0))
    assert np.linalg.norm(held.coefficients) < np.linalg.norm(free.coefficients) / 1.2
    assert held.log_likelihood < free.log_likelihood


@pytest.mark.parametrize("method", METHODS)
def test_units_of_columns_and_repeated_columns_do_not_matter(method):
    target, X, codes = grouped_sample(8, 30, 6)
    fit = fit_mixed_logistic(target, X, codes, method=method, intervals=False)
    small = fit_mixed_logistic(target, X * [1, 1e-6], codes, method=method, intervals=False)
    twice = fit_mixed_logistic(target, X[:, [0, 1, 1]], codes, method=method, intervals=False)
    assert small.coefficients * [1, 1e-6] == pytest.approx(fit.coefficients, abs=1e-4)
    assert twice.coefficients[[1, 2]] == pytest.approx([fit.coefficients[1] / 2] * 2, abs=1e-4)
    assert small.sd == pytest.approx(fit.sd, abs=1e-3)


def separated_samples():
    rng = np.random.default_rng(9)
    x, codes, days = rng.normal(size=200), np.arange(200) % 20, rng.integers(0, 8, 200)
    X = np.column_stack([np.ones(200), x])
    even = (rng.random(200) < 0.5).astype(float)
    rare = (np.arange(200) < 15).astype(float)
    marked = np.where(rare > 0, 1.0, even)
    return {
        "a column tells the classes": ((x > 0).astype(float), X, [codes]),
        "a value of a column has one class": (marked, np.column_stack([X, rare]), [codes]),
        "the same, levels crossed": (marked, np.column_stack([X, rare]), [codes, days]),
        "each group has one class": ((codes % 2).astype(float), X, [codes]),
        "the same, a level crossed": ((codes % 2).astype(float), X, [codes, days]),
        "there is one class": (np.ones(200), X, [codes]),
    }


@pytest.mark.parametrize("case", separated_samples())
def test_separation_is_flagged_and_estimates_stay_finite(case):
    sample = separated_samples()[case]
    fit = fit_mixed_logistic(*sample)
    assert fit.separated
    assert np.isfinite(fit.coefficients).all()
    assert all(
        low <= sd <= high <= 10
        for low, sd, high in zip(fit.sd_low, fit.sd, fit.sd_high, strict=True)
    )


@pytest.mark.parametrize("seed", range(5))
def test_an_ordinary_sample_is_not_flagged(seed):
    fit = fit_mixed_logistic(*published_sample(seed), intervals=False)
    assert (fit.converged, fit.separated) == (True, False)


@pytest.mark.parametrize("module", [mixed, likelihood])
def test_a_search_that_was_cut_short_is_flagged(module, monkeypatch):
    monkeypatch.setattr(module, "MOST_STEPS", 1)
    fit = fit_mixed_logistic(*published_sample(1), intervals=False)
    assert not fit.converged


def test_the_same_data_give_the_same_numbers():
    one, other = (fit_mixed_logistic(*published_sample(3)) for _ in range(2))
    assert (one.sd, one.sd_low, one.sd_high) == (other.sd, other.sd_low, other.sd_high)
    assert (one.coefficients == other.coefficients).all()


def test_many_groups_of_one_level_are_fine_and_of_crossed_levels_are_refused():
    target, X, codes = grouped_sample(1, 6000, 2)
    many = np.arange(12_000) % 5000
    assert fit_mixed_logistic(target, X, codes, intervals=False).converged
    with pytest.raises(InputError, match=r"levels of 6000, 5000 groups.*merge"):
        fit_mixed_logistic(target, X, [codes[0], many])


def test_wrong_arguments_are_named():
    target, X, codes = grouped_sample(1, 5, 4)
    with pytest.raises(InputError, match="0 and 1"):
        fit_mixed_logistic(target + 1, X, codes)
    with pytest.raises(InputError, match="one level, and codes has 2"):
        fit_mixed_logistic(target, X, codes * 2, method="aghq")
    with pytest.raises(InputError, match="method='reml'"):
        fit_mixed_logistic(target, X, codes, method="reml")
    with pytest.raises(InputError, match="codes is empty"):
        fit_mixed_logistic(target, X, [])
    with pytest.raises(InputError, match=r"codes\[0\]"):
        fit_mixed_logistic(target, X, [codes[0] - 1])
    with pytest.raises(InputError, match="shape"):
        fit_mixed_logistic(target, X[:-1], codes)
    with pytest.raises(InputError, match="missing or infinite"):
        fit_mixed_logistic(target, np.where(X > 0, X, np.nan), codes)
