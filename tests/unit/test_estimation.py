"""Estimators against truths in closed form: curves whose e_0 is known exactly."""

import numpy as np
import pytest
from scipy.stats import binom

from mlflow_b3 import InputError, LossCurve, estimate, search_p0, sensitivity
from mlflow_b3.estimation.bounds import check_shape, secant_limit
from mlflow_b3.estimation.problem import LeakShares, shares_of_cluster_error, unmix

LEVELS = np.linspace(0, 1, 21)


def curve_of(function, p0, *, levels=LEVELS, stderr=1e-6, n_train=100, **options):
    """Return the noise-free curve of a loss that depends on the leaked share p."""
    p = p0 + np.asarray(levels) * (1 - p0)
    return LossCurve(
        injected=levels,
        loss=function(p),
        stderr=np.full(len(p), stderr),
        n_train=n_train,
        **options,
    )


def line(p):
    return 0.4 - 0.2 * p


def parabola(p):
    return 0.2 + 0.25 * (1 - p) ** 2


@pytest.mark.parametrize("p0", [0.0, 0.05, 0.1, 0.3])
@pytest.mark.parametrize(("truth", "e0"), [(line, 0.4), (parabola, 0.45)])
def test_basis_recovers_polynomials_exactly(truth, e0, p0):
    result = estimate(curve_of(truth, p0), p0, "basis", order=2)
    assert result.e0 == pytest.approx(e0, abs=1e-9)
    assert result.residual == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("p0", [0.0, 0.05, 0.1, 0.2])
@pytest.mark.parametrize(("truth", "e0"), [(line, 0.4), (parabola, 0.45)])
def test_the_default_recovers_powers_without_tuning(truth, e0, p0):
    assert estimate(curve_of(truth, p0), p0).e0 == pytest.approx(e0, abs=1e-3)


def test_a_constant_loss_stays_what_it_is_whatever_the_leaked_share():
    for p0 in (0.0, 0.1, 0.4):
        assert estimate(curve_of(lambda p: 0 * p + 0.3, p0), p0).e0 == pytest.approx(0.3, abs=1e-6)


@pytest.mark.parametrize("method", ["auto", "basis"])
@pytest.mark.parametrize("n_train", [20, 100])
def test_the_losses_reproduce_the_curve_through_the_binomial_matrix(method, n_train):
    """b(p) = Σ_j Binom(j; n', p)·e_j, the equation that the papers solve."""
    p0 = 0.1
    result = estimate(curve_of(parabola, p0, n_train=n_train), p0, method)
    assert len(result.losses) == n_train + 1
    assert result.losses[0] == pytest.approx(result.e0)
    for p in (p0, 0.5, 0.9):
        mean = binom.pmf(np.arange(n_train + 1), n_train, p) @ result.losses
        assert mean == pytest.approx(parabola(p), abs=2e-3)


def test_estimates_do_not_need_more_time_or_memory_for_a_million_rows():
    result = estimate(curve_of(parabola, 0.1, n_train=1_000_000), 0.1)
    assert result.e0 == pytest.approx(0.45, abs=1e-3)
    assert len(result.losses) == 1001
    assert result.leaked[-1] == 1_000_000


def mixed_curve(error, truth_validation, loss_training, *, n_training=800, n_validation=200):
    """Return the curve that both-way leakage makes of known losses on true clusters."""
    shares = shares_of_cluster_error(error, n_training, n_validation)
    exhausted = n_validation / n_training
    injected = np.linspace(0, 0.6, 6) * exhausted
    leaked = (1 - injected) * shares.p0 + injected * (1 - shares.p0_validation)
    own, other = truth_validation(leaked), loss_training(injected)
    curve = LossCurve(
        injected=injected,
        loss=(1 - shares.p0_validation) * own + shares.p0_validation * other,
        stderr=np.full(6, 1e-6),
        n_train=n_training,
        exhausted_at=exhausted,
        training_loss=(1 - shares.p0) * other + shares.p0 * own,
    )
    return curve, shares


@pytest.mark.parametrize("error", [0.05, 0.1, 0.2])
def test_both_directions_are_unmixed_exactly(error):
    """The identity of fact F3: the loss is linear in the validation mixture."""
    curve, shares = mixed_curve(error, lambda p: 0.4 - 0.3 * p, lambda share: 0.15 + 0.1 * share)
    options = {"p0_validation": shares.p0_validation, "method": "basis"}
    assert estimate(curve, shares.p0, order=1, **options).e0 == pytest.approx(0.4, abs=1e-9)
    one_way = estimate(curve, shares.p0, method="basis", order=1).e0
    assert one_way < 0.4 - 0.1 * error, "one direction alone leaves part of the bias"


def literal_joint_binomial(curve_loss, sizes, levels_t, levels_v):
    """Solve algorithm 3 as printed: a loss e_jk for j and k leaked rows in training and validation."""
    n_t, n_v = sizes
    rows = []
    for p_t in levels_t:
        for p_v in levels_v:
            rows.append(
                np.outer(
                    binom.pmf(np.arange(n_t + 1), n_t, p_t), binom.pmf(np.arange(n_v + 1), n_v, p_v)
                ).ravel()
            )
    return np.linalg.lstsq(np.array(rows), curve_loss, rcond=None)[0][0]


def test_the_linear_identity_agrees_with_the_literal_algorithm_3_on_small_samples():
    shares = LeakShares(p0=0.1, p0_validation=0.2)

    def own(p):
        return 0.5 - 0.3 * p + 0.1 * p**2

    def other(p):
        return 0.2 + 0.1 * p

    n_t, n_v = 3, 2
    levels_t = shares.p0 + np.linspace(0, 1, n_t + 1) * (1 - shares.p0)
    levels_v = shares.p0_validation + np.linspace(0, 1, n_v + 1) * (1 - shares.p0_validation)
    measured = [(1 - p_v) * own(p_t) + p_v * other(p_t) for p_t in levels_t for p_v in levels_v]
    literal = literal_joint_binomial(np.array(measured), (n_t, n_v), levels_t, levels_v)
    injected = np.linspace(0, 1, 5)
    leaked = (1 - injected) * shares.p0 + injected * (1 - shares.p0_validation)
    p_v, p_t = shares.p0_validation, shares.p0
    curve = LossCurve(
        injected=injected,
        loss=(1 - p_v) * own(leaked) + p_v * other(leaked),
        stderr=np.full(5, 1e-6),
        n_train=100,
        training_loss=(1 - p_t) * other(leaked) + p_t * own(leaked),
    )
    linear = estimate(curve, p_t, "basis", p0_validation=p_v, order=2).e0
    assert linear == pytest.approx(own(0), abs=1e-8)
    assert literal == pytest.approx(linear, abs=1e-6)


def test_without_noise_the_secant_is_the_two_level_bound_of_convex_curves():
    p0 = 0.1
    curve = curve_of(parabola, p0)
    loco, inside = curve.loss[0], curve.loss[-1]
    limit = estimate(curve, p0).secant
    assert limit == pytest.approx((loco - p0 * inside) / (1 - p0), abs=1e-5)
    assert loco < limit < parabola(0)


def test_noise_is_subtracted_from_the_secant_which_may_fall_below_loco():
    curve = curve_of(lambda p: 0.3 * (1 - p) ** 4, 0.02, stderr=0.01, levels=np.linspace(0, 1, 40))
    problem = unmix(curve, LeakShares(p0=0.02))
    part = 0.02 / 0.98
    error = 0.01 * np.hypot(1 + part, part)
    value = curve.loss[0] + part * (curve.loss[0] - curve.loss[-1])
    assert secant_limit(problem) == pytest.approx(value - 1.645 * error, abs=1e-5)
    assert estimate(curve, 0.02).secant < curve.loss[0]


@pytest.mark.parametrize(
    ("truth", "reason"),
    [
        (lambda p: 0.2 + 0.2 * p, "rising"),
        (lambda p: 0.4 - 0.2 * p**3, "concave"),
        (line, "straight: convexity is not rejected, but not supported either"),
        (lambda p: 0.1 + 0.3 * binom.cdf(2, 9, p), "one and two leaked mates change little"),
    ],
)
def test_the_secant_is_withheld_unless_the_curve_supports_convexity(truth, reason):
    levels = np.linspace(0, 0.6, 13)
    result = estimate(curve_of(truth, 0.02, stderr=1e-3, levels=levels), 0.02)
    assert result.secant is None, reason


def test_the_secant_is_seldom_above_the_truth():
    """It was in most repetitions, when convexity needed not to be rejected only."""
    rng = np.random.default_rng(0)
    levels = 0.6 * (np.arange(6) / 5) ** 2
    kinds = [
        lambda p: 0.2 + 0.2 * np.exp(-2 * p),
        lambda p: 0.1 + 0.3 * binom.cdf(1, 9, p),
        lambda p: 0.1 + 0.3 * binom.cdf(2, 9, p),
        lambda p: 0.3 - 0.2 * p,
        lambda p: 0.2 + 0.1 * p,
    ]
    for truth in kinds:
        above = 0
        for _ in range(100):
            exact = curve_of(truth, 0.02, stderr=0.003, levels=levels)
            noisy = exact.loss + rng.normal(0, 0.003, 6)
            covariance = np.full((6, 6), 0.015**2)
            shift = rng.normal(0, 0.015)
            curve = LossCurve(**{**vars(exact), "loss": noisy + shift, "covariance": covariance})
            limit = estimate(curve, 0.02).secant
            above += limit is not None and limit > truth(0)
        assert above <= 10


def test_a_rising_curve_is_followed_downwards():
    result = estimate(curve_of(lambda p: 0.2 + 0.2 * p, 0.1, stderr=1e-3), 0.1)
    assert result.e0 == pytest.approx(0.2, abs=0.01)


def test_shape_scores_have_the_sign_of_slope_and_curvature():
    shape = check_shape(unmix(curve_of(parabola, 0.1, stderr=1e-3), LeakShares(p0=0.1)))
    assert shape.slope_z < -2 < 2 < shape.curvature_z


def test_the_sensitivity_curve_rises_and_meets_the_estimate():
    curve = curve_of(parabola, 0.1, stderr=1e-3)
    shares = [0.0, 0.05, 0.1, 0.2, 0.4]
    result = sensitivity(curve, shares)
    assert list(result.e0) == sorted(result.e0)
    assert result.e0[2] == pytest.approx(estimate(curve, 0.1).e0)
    assert all(
        lo <= mid <= hi for lo, mid, hi in zip(result.low, result.e0, result.high, strict=True)
    )


def test_the_sensitivity_curve_has_no_jumps():
    """The set of powers changes with p0; the estimate must not notice."""
    curve = curve_of(lambda p: 0.2 + 0.3 * (1 - p) ** 6, 0.1, stderr=2e-3)
    values = np.array(sensitivity(curve, np.linspace(0, 0.3, 61)).e0)
    steps = np.diff(values)
    assert steps.max() < 4 * np.median(steps) + 0.01


def test_the_tipping_point_of_a_line_is_where_it_crosses():
    """b(π) = 0.38 - 0.18π gives e_0(p0) = 0.38 + 0.18·p0/(1-p0)."""
    curve = curve_of(line, 0.1)
    result = sensitivity(curve, np.linspace(0, 0.5, 501))
    threshold = 0.38 + 0.18 * 0.25 / 0.75
    assert result.tipping_point(threshold) == pytest.approx(0.25, abs=2e-3)
    assert result.tipping_point(0.9) is None
    assert result.tipping_point(0.1) == 0.0
    with pytest.raises(InputError, match="threshold"):
        result.tipping_point(float("nan"))


def test_a_range_of_p0_widens_the_interval_to_both_ends():
    curve = curve_of(parabola, 0.1, stderr=1e-3)
    middle, whole = estimate(curve, 0.1), estimate(curve, (0.05, 0.15))
    assert whole.e0 == pytest.approx(middle.e0)
    assert whole.interval[0] == estimate(curve, 0.05).interval[0] < middle.interval[0]
    assert whole.interval[1] == estimate(curve, 0.15).interval[1] > middle.interval[1]
    assert whole.secant == estimate(curve, 0.05).secant


def test_e0_and_its_interval_stay_within_the_largest_possible_loss():
    result = estimate(curve_of(parabola, 0.1), 0.6, bound=1.0)
    assert result.e0 <= 1.0
    assert result.interval[1] <= 1.0


def test_the_residual_of_polynomials_is_the_same_for_every_p0():
    """Fact F2: another p0 relabels the axis, and polynomials stay polynomials."""
    rng = np.random.default_rng(0)
    curve = LossCurve(
        injected=LEVELS,
        loss=parabola(LEVELS) + 0.01 * rng.standard_normal(21),
        stderr=np.full(21, 0.01),
        n_train=100,
    )
    search = search_p0(curve, "basis", order=7)
    assert np.ptp(search.residual) < 1e-9
    assert search.flat
    assert search.estimated is None
    assert "does not tell p0" in search.statement
    assert search.identified == (0.0, 0.99)
    e0 = [estimate(curve, p, "basis", order=7).e0 for p in (0.0, 0.5)]
    assert abs(e0[1] - e0[0]) > 1, "the same residual goes with very different losses"


def test_the_bounded_loss_excludes_large_p0():
    curve = curve_of(lambda p: 0.1 + 0.8 * (1 - p) ** 2, 0.05, stderr=1e-3)
    search = search_p0(curve, bound=1.0)
    assert 0.05 < search.identified[1] < 0.5


@pytest.mark.parametrize("p0", [1.0, -0.1, float("nan"), "many", (0.2, 0.1), (0.1, 0.2, 0.3)])
def test_impossible_shares_are_refused(p0):
    with pytest.raises(InputError, match="p0"):
        estimate(curve_of(line, 0.1), p0)


def test_shares_that_leave_nothing_to_tell_apart_are_refused():
    with pytest.raises(InputError, match="add up to 1"):
        LeakShares(p0=0.5, p0_validation=0.5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "powr"}, "Did you mean 'power'"),
        ({"method": "basis", "order": 30}, "at least 31 levels"),
        ({"method": "basis", "order": -1}, "order=-1"),
        ({"p0_validation": 0.1}, "training_loss"),
    ],
)
def test_options_that_cannot_work_say_what_to_do(options, message):
    with pytest.raises(InputError, match=message):
        estimate(curve_of(line, 0.1), 0.1, **options)


def test_one_level_is_not_a_curve():
    curve = LossCurve(injected=[0.0], loss=[0.3], stderr=[0.01], n_train=10)
    with pytest.raises(InputError, match="at least two"):
        estimate(curve, 0.1)


def test_the_secant_needs_two_levels_only():
    curve = LossCurve(injected=[0.0, 1.0], loss=[0.3, 0.1], stderr=[1e-6, 1e-6], n_train=10)
    limit = secant_limit(unmix(curve, LeakShares(p0=0.2)))
    assert limit == pytest.approx((0.3 - 0.2 * 0.1) / 0.8, abs=1e-5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"injected": [0, 0.5, 0.2]}, "increase"),
        ({"injected": [0, 0.2, 0.2]}, "average repeated"),
        ({"injected": [0, 0.5, 1.2]}, r"\[0, 1\]"),
        ({"loss": [0.3, float("nan"), 0.1]}, "not finite"),
        ({"loss": [0.3, 0.1]}, "2 values for 3 levels"),
        ({"loss": ["a", "b", "c"]}, "sequence of numbers"),
        ({"stderr": [0.1, -0.1, 0.1]}, "negative"),
        ({"n_train": 0}, "n_train=0"),
        ({"exhausted_at": 0.0}, "exhausted_at"),
        ({"sharpness": 0}, "sharpness"),
        ({"covariance": [[1.0]]}, "covariance"),
    ],
)
def test_a_curve_that_cannot_be_is_refused(change, message):
    numbers = {"injected": [0, 0.5, 1], "loss": [0.3, 0.2, 0.1], "stderr": [0.1] * 3, "n_train": 9}
    with pytest.raises(InputError, match=message):
        LossCurve(**{**numbers, **change})


def test_all_problems_of_a_curve_are_named_at_once():
    with pytest.raises(InputError, match="2 problems"):
        LossCurve(injected=[0, 2], loss=[0.3, 0.2], stderr=[0.1, 0.1], n_train=0)


def test_the_bound_stays_within_the_largest_possible_loss():
    result = estimate(curve_of(parabola, 0.1), 0.8, bound=1.0)
    assert result.secant <= 1.0


def test_candidates_are_0_1_over_n_and_so_on():
    assert search_p0(curve_of(parabola, 0.1, n_train=20)).p0 == pytest.approx(np.arange(20) / 20)
    assert len(search_p0(curve_of(parabola, 0.1, n_train=5000)).p0) == 100


def test_a_profile_that_tells_candidates_apart_says_where_the_difference_comes_from():
    """Smoothing makes residuals differ where the noise is as good as none."""
    curve = curve_of(lambda p: 0.1 + 0.8 * (1 - p) ** 8, 0.0, stderr=1e-6, n_train=30)
    search = search_p0(curve, "trend2", p0=[0, 0.2, 0.4], smoothing=1.0, objective="squared")
    assert not search.flat
    assert search.estimated == search.p0_star
    assert "comes from the smoothing" in search.statement


def test_the_identified_set_ends_where_a_convex_curve_would_leave_the_possible_losses():
    """With b(π) = 0.4 - 0.3·π the line reaches 1 at π = -2, which is p0 = 2/3."""
    curve = curve_of(lambda p: 0.4 - 0.3 * p, 0.0, stderr=1e-6)
    assert search_p0(curve, bound=1.0).identified == (0.0, 0.66)
    assert search_p0(curve).identified == (0.0, 0.99), "without a bound nothing is excluded"


def test_both_directions_can_be_searched():
    curve = curve_of(parabola, 0.1, training_loss=np.full(len(LEVELS), 0.1))
    search = search_p0(curve, "basis", p0=[0, 0.1, 0.6], p0_validation=[0, 0.2, 0.5])
    assert search.p0_validation is not None
    assert len(search.p0) == len(search.p0_validation) == 8, "0.6 + 0.5 is no pair"
    assert np.ptp(search.residual) < 1e-9, "and tells as little"
    assert search.flat


@pytest.mark.parametrize(
    "bad", [[], [0.2, 0.1], [0, 0, 0.1], [0, 1.0], [-0.1], [float("nan")], "x"]
)
def test_impossible_candidates_are_refused(bad):
    with pytest.raises(InputError, match=r"increasing sequence of candidates in \[0, 1\)"):
        search_p0(curve_of(parabola, 0.1), p0=bad)


def test_a_sensitivity_curve_of_many_shares_agrees_with_single_estimates():
    rng = np.random.default_rng(6)
    curve = LossCurve(
        injected=LEVELS,
        loss=parabola(LEVELS) + 0.002 * rng.standard_normal(21),
        stderr=np.full(21, 0.002),
        training_loss=np.full(21, 0.1),
        n_train=100,
    )
    shares = np.linspace(0, 0.4, 201)
    for back in (0.0, 0.2):
        whole = sensitivity(curve, shares, p0_validation=back, bound=1.0)
        assert np.all(np.diff(whole.e0) >= 0)
        bare = sensitivity(curve, shares, p0_validation=back, bound=1.0, band=False)
        assert (bare.e0, bare.low, bare.high) == (whole.e0, (), ())
        for index in (0, 37, 120, 200):
            one = estimate(curve, float(shares[index]), p0_validation=back, bound=1.0)
            assert whole.e0[index] == pytest.approx(one.e0, abs=1e-3)
            assert whole.low[index] == pytest.approx(one.interval[0], abs=5e-3)
            assert whole.high[index] == pytest.approx(one.interval[1], abs=5e-3)


def test_an_estimate_says_whether_noise_or_extrapolation_makes_its_interval_wide():
    sharp = curve_of(lambda p: 0.2 + 0.2 * (1 - p) ** 12, 0.2, stderr=1e-3)
    assert estimate(sharp, 0.2, bound=1.0).extrapolated
    noisy = curve_of(line, 0.001, stderr=0.02)
    assert not estimate(noisy, 0.001, bound=1.0).extrapolated


def test_e0_of_a_range_lies_inside_its_interval():
    rng = np.random.default_rng(5)
    for _ in range(50):
        loss = np.sort(rng.random(6))[::-1]
        curve = LossCurve(
            injected=np.linspace(0, 1, 6), loss=loss, stderr=np.full(6, 0.01), n_train=50
        )
        low, high = sorted(rng.uniform(0, 0.4, 2))
        result = estimate(curve, (low, high), bound=1.0)
        assert result.interval[0] <= result.e0 <= result.interval[1]


# ---------------------------------------------------------------- found in review


def test_the_search_in_both_directions_fits_every_pair_by_itself():
    x = np.linspace(0, 1, 6)
    curve = LossCurve(
        injected=x,
        loss=0.2 + 0.3 * (1 - x) ** 2,
        stderr=np.full(6, 0.001),
        n_train=100,
        training_loss=0.1 + 0.2 * x**2,
    )
    one = search_p0(curve, p0=[0, 0.1, 0.2])
    two = search_p0(curve, p0=[0, 0.1, 0.2], p0_validation=[0, 0.3])
    assert two.p0_validation is not None
    same = [r for r, v in zip(two.residual, two.p0_validation, strict=True) if v == 0]
    assert same == pytest.approx(one.residual)


def test_clusters_of_three_rows_allow_a_convex_curve():
    x = np.linspace(0, 1, 6)
    curve = LossCurve(
        injected=x,
        loss=0.2 + 0.3 * (1 - x) ** 2,
        stderr=np.full(6, 0.001),
        n_train=100,
        sharpness=2,
    )
    assert estimate(curve, 0.2).e0 == pytest.approx(0.2 + 0.3 / 0.8**2, abs=0.01)


def test_a_bounded_loss_is_never_estimated_below_zero():
    x = np.linspace(0, 1, 6)
    curve = LossCurve(injected=x, loss=0.02 + 0.3 * x, stderr=np.full(6, 0.002), n_train=100)
    result = estimate(curve, 0.2, bound=1.0)
    assert result.e0 == 0.0
    assert 0.0 <= result.interval[0] <= result.interval[1]
    assert min(sensitivity(curve, [0.0, 0.1, 0.2], bound=1.0).e0) == 0.0
    assert estimate(curve, 0.2).e0 < 0, "a loss without a bound may be anything"


@pytest.mark.parametrize("bound", [0, -1, float("nan"), float("inf"), True, "1"])
def test_a_bound_must_be_a_possible_loss(bound):
    curve = curve_of(parabola, 0.1)
    for call in (estimate, search_p0, sensitivity):
        arguments = () if call is search_p0 else (0.1,) if call is estimate else ([0.1],)
        with pytest.raises(InputError, match="must be the largest possible loss"):
            call(curve, *arguments, bound=bound)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"covariance": np.full((6, 6), np.nan)}, "covariance has values that are not finite"),
        ({"covariance": -np.eye(6)}, "covariance has a negative variance"),
        ({"covariance": np.eye(5)}, "covariance must be a square matrix with"),
        ({"covariance": "x"}, "covariance must be a square matrix with"),
        ({"degrees_of_freedom": 0}, "degrees_of_freedom=0 must be a whole number from 1"),
        ({"degrees_of_freedom": float("nan")}, "degrees_of_freedom=nan"),
        ({"sharpness": float("nan")}, "sharpness=nan must be a whole number from 1"),
    ],
)
def test_a_covariance_that_cannot_be_is_refused(options, message):
    x = np.linspace(0, 1, 6)
    with pytest.raises(InputError, match=message):
        LossCurve(injected=x, loss=0.3 - 0.1 * x, stderr=0.01 + 0 * x, n_train=50, **options)


def test_levels_that_are_perfectly_correlated_are_fine():
    x = np.linspace(0, 0.5, 6)
    curve = LossCurve(
        injected=x,
        loss=0 * x,
        stderr=0 * x,
        n_train=50,
        exhausted_at=0.5,
        fits=(10,) * 6,
        covariance=np.full((6, 6), 1e-4),
        degrees_of_freedom=3,
    )
    assert np.isfinite(estimate(curve, 0.0).interval).all()


@pytest.mark.parametrize(("method", "within"), [("basis", 1e-9), ("auto", 1e-3)])
def test_rows_that_leak_into_validation_only_are_taken_out_linearly(method, within):
    """Direction T → V: LOCO = (1-p_V)·e_0 + p_V·ℓ_T, whatever the curve does."""
    levels = np.array([0, 0.04, 0.16, 0.36, 0.64, 1.0])
    own, other, share = 0.3 - 0.1 * levels, np.full(6, 0.12), 0.25
    curve = LossCurve(
        injected=levels,
        loss=(1 - share) * own + share * other,
        training_loss=other,
        stderr=np.full(6, 1e-4),
        n_train=100,
    )
    options = {"order": 1} if method == "basis" else {}
    result = estimate(curve, 0.0, method, p0_validation=share, **options)
    assert result.e0 == pytest.approx(0.3, abs=within)
