"""Simulated samples: reproducible by number, right in mean, and the bias made of them."""

import pickle
from dataclasses import replace

import fixture_110 as fixture
import numpy as np
import pytest
from scipy.special import expit

from mlflow_b3.correlated.formulas import SLOPES, BiasSums, bias_of
from mlflow_b3.correlated.targets import Draws, smoothed_logistic, smoothed_slope
from mlflow_b3.data.losses import CLASSIFICATION
from mlflow_b3.errors import InputError


def test_means_over_normal_noise_are_those_of_the_fixture():
    tau = np.sqrt(1.25)
    np.testing.assert_allclose(
        smoothed_logistic(fixture.MEAN, tau)[:3], [0.68814594, 0.69093851, 0.80587046], atol=1e-8
    )
    np.testing.assert_allclose(
        smoothed_slope(fixture.MEAN, tau)[:3], [0.17434941, 0.17359278, 0.13172329], atol=1e-8
    )


def test_the_slope_is_the_derivative_of_the_mean():
    f, step = np.linspace(-3, 3, 7), 1e-5
    rise = (smoothed_logistic(f + step, 1.3) - smoothed_logistic(f - step, 1.3)) / (2 * step)
    np.testing.assert_allclose(smoothed_slope(f, 1.3), rise, atol=1e-9)


def test_without_noise_the_mean_is_the_logistic_function_itself():
    assert (smoothed_logistic(fixture.MEAN, 0.0) == expit(fixture.MEAN)).all()


def test_a_sample_is_made_by_its_number_alone_wherever_it_is_made():
    here = Draws(fixture.model(), fixture.structure(entity_new=False), 5)
    elsewhere = pickle.loads(pickle.dumps(here))
    batch = here.batch(4, start=2)
    for position, number in enumerate(range(2, 6)):
        draw = elsewhere.draw(number)
        np.testing.assert_array_equal(draw.target, batch.target[position])
        np.testing.assert_allclose(draw.expected, batch.expected[position], rtol=1e-14)
        np.testing.assert_allclose(draw.deployed, batch.deployed[position], rtol=1e-14)


def test_other_seeds_and_numbers_make_other_samples():
    one = Draws(fixture.model(), fixture.structure(), 0)
    two = Draws(fixture.model(), fixture.structure(), 1)
    assert (one.draw(0).expected != one.draw(1).expected).any()
    assert (one.draw(0).expected != two.draw(0).expected).any()


@pytest.mark.parametrize("task", ["classification", "regression"])
@pytest.mark.parametrize("entity_new", [True, False])
def test_targets_and_their_means_agree_on_average(task, entity_new):
    model = fixture.model(task=task, noise=1.0)
    draws = Draws(model, fixture.structure(entity_new=entity_new), 3).batch(4000)
    for difference in (draws.expected - draws.deployed, draws.target - draws.expected):
        per_draw = difference.mean(axis=1)
        assert abs(per_draw.mean()) < 4 * per_draw.std() / np.sqrt(len(per_draw))


def test_given_the_entity_the_mean_in_use_is_the_mean_over_days():
    draws = Draws(fixture.model(), fixture.structure(entity_new=False), 3).batch(20_000)
    row = 17
    shared = draws.deployed[:, row]  # increases with the effect of the entity
    ordered = np.argsort(shared)
    for part in np.array_split(ordered, 5):
        gap = (draws.expected - draws.deployed)[part, row]
        assert abs(gap.mean()) < 4 * gap.std() / np.sqrt(len(part))


def test_levels_all_observed_again_leave_nothing_that_use_does_not_share():
    draws = Draws(fixture.model(), fixture.structure(entity_new=False, day_new=False), 0).batch(5)
    np.testing.assert_array_equal(draws.expected, draws.deployed)


def test_numbers_have_the_variance_of_the_model():
    model = fixture.model(task="regression", noise=2.0)
    draws = Draws(model, fixture.structure(), 0).batch(4000)
    variance = (draws.target - fixture.MEAN).var(axis=0).mean()
    assert variance == pytest.approx(1.0 + 0.25 + 4.0, rel=0.05)


def test_rows_of_model_and_structure_must_agree():
    short = replace(fixture.model(), mean=fixture.MEAN[:-1])
    with pytest.raises(InputError, match="109 rows and the structure 110"):
        Draws(short, fixture.structure(), 0)


@pytest.mark.parametrize("loss", ["log", "brier", "hinge", "zero_one"])
def test_slopes_are_the_losses_of_one_class_less_those_of_the_other(loss):
    score = np.linspace(-3, 3, 12)
    chance, classes = expit(score), np.array([0, 1])
    prediction = {
        "probability": np.column_stack([1 - chance, chance]),
        "decision": score,
        "label": (score >= 0).astype(int),
    }[CLASSIFICATION[loss].kind]
    ones = np.ones(len(score), dtype=int)
    of_zero = CLASSIFICATION[loss].per_row(0 * ones, prediction, classes).astype(float)
    of_one = CLASSIFICATION[loss].per_row(ones, prediction, classes).astype(float)
    rest = SLOPES[loss](score) - (of_zero - of_one)
    np.testing.assert_allclose(rest, rest[0], atol=1e-12)  # constants do not matter


def shrunken(targets, folds):
    """Return scores of a learner: the mean of the entity in training, as a number."""
    same = fixture.ENTITY[:, None] == fixture.ENTITY
    scores = np.empty(targets.shape)
    for training, validation in folds:
        weight = same[np.ix_(validation, training)]
        scores[:, validation] = targets[:, training] @ (weight / weight.sum(1, keepdims=True)).T
    return scores


def test_one_fold_per_draw_agrees_with_all_folds_in_every_draw():
    draws = Draws(fixture.model(), fixture.structure(), 8).batch(6600)
    slopes = shrunken(draws.target, fixture.FOLDS)
    whole = bias_of(slopes, draws.expected, draws.deployed)
    sums = BiasSums(len(fixture.FOLDS))
    for number in range(len(slopes)):
        fold = number % len(fixture.FOLDS)
        rows = fixture.FOLDS[fold][1]
        sums.add(
            fold, slopes[number, rows], draws.expected[number, rows], draws.deployed[number, rows]
        )
    single = sums.bias()
    assert single.draws == 6600
    assert whole.value > 10 * whole.error
    assert abs(single.value - whole.value) < 4 * np.hypot(single.error, whole.error)
    # 11 times fewer refits, and far less than √11 times the error
    assert single.error < 2.5 * whole.error


def test_the_error_of_the_bias_is_its_spread_over_repetitions():
    repeated = []
    for seed in range(60):
        draws = Draws(fixture.model(), fixture.structure(), seed).batch(66)
        slopes, sums = shrunken(draws.target, fixture.FOLDS), BiasSums(11)
        for number, slope in enumerate(slopes):
            rows = fixture.FOLDS[number % 11][1]
            sums.add(
                number % 11, slope[rows], draws.expected[number, rows], draws.deployed[number, rows]
            )
        repeated.append(sums.bias())
    spread = np.std([bias.value for bias in repeated], ddof=1)
    error = np.sqrt(np.mean([bias.error**2 for bias in repeated]))
    # the standard deviation of 60 values is known to 1/√120 = 9%
    assert spread == pytest.approx(error, rel=0.3)


def test_folds_of_different_sizes_count_by_their_rows():
    sums = BiasSums(2)
    for sign in (1.0, -1.0):
        sums.add(0, np.full(3, sign), np.full(3, sign), np.zeros(3))
        sums.add(1, np.full(1, sign), np.zeros(1), np.zeros(1))
    assert sums.bias().value == pytest.approx(0.75 * 2)  # 2 = B/(B - 1)


def test_a_fold_with_one_draw_is_refused():
    sums = BiasSums(2)
    sums.add(0, np.ones(1), np.ones(1), np.ones(1))
    assert not sums.ready
    with pytest.raises(InputError, match="draw 4 samples"):
        sums.bias()
    with pytest.raises(InputError, match="draws=1"):
        bias_of(np.ones((1, 2)), np.ones((1, 2)), np.ones((1, 2)))
