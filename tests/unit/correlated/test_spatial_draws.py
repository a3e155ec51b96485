"""A field in regions: what new regions share, the clipped spectrum, and simulated samples."""

import pickle

import numpy as np
import pytest
from scipy.special import logit

from mlflow_b3.correlated.field import covariances, regional_field
from mlflow_b3.correlated.formulas import SLOPES, bias_of
from mlflow_b3.correlated.structure import Field, Level, Structure, WorkingModel
from mlflow_b3.correlated.targets import Draws
from mlflow_b3.errors import InputError

pytestmark = pytest.mark.newest

RNG = np.random.default_rng(0)
REGION = Level(name="region", codes=np.repeat(np.arange(12), 9))
# 12 regions of 9 places in a square of 10 by 10
PLACES = np.repeat(RNG.uniform(0, 10, (12, 2)), 9, axis=0) + RNG.uniform(-0.8, 0.8, (108, 2))
FIELD = Field(coordinates=PLACES, regions=REGION)
MEAN = RNG.normal(0, 1, 108)


def model(task="classification", sd=1.2, reach=3.0, **more):
    given = {"mean": MEAN, "sd": (sd,), "sd_low": (), "sd_high": (), "noise": 1.0}
    return WorkingModel(task=task, reach=reach, **{**given, **more})


def test_what_regions_share_is_the_mean_covariance_across_them():
    kernel = covariances(PLACES, PLACES, 1.2, 3.0)
    apart = np.not_equal.outer(REGION.codes, REGION.codes)
    split = regional_field(FIELD, 1.2, 3.0)
    assert split.across == pytest.approx(kernel[apart].mean(), rel=1e-12)
    assert np.diag(kernel) == pytest.approx(1.44)


def test_regions_of_small_extent_lose_nothing_of_their_spectrum():
    kernel = covariances(PLACES, PLACES, 1.2, 3.0)
    split = regional_field(FIELD, 1.2, 3.0)
    assert split.clipped == 0.0
    for rows, root in zip(split.rows, split.roots, strict=True):
        np.testing.assert_allclose(
            root @ root, kernel[np.ix_(rows, rows)] - split.across, atol=1e-12
        )
    np.testing.assert_allclose(split.own_sd**2, 1.44 - split.across, atol=1e-12)


def test_regions_that_lie_in_each_other_lose_a_part_that_is_reported():
    scattered = Field(coordinates=RNG.uniform(0, 10, (108, 2)), regions=REGION)
    split = regional_field(scattered, 1.2, 30.0)
    assert 0 < split.clipped < 0.5
    # what is left is a covariance, and its diagonal is what rows in use have
    for rows, root in zip(split.rows, split.roots, strict=True):
        np.testing.assert_allclose(np.diag(root @ root), split.own_sd[rows] ** 2, atol=1e-12)


def test_rows_may_come_in_any_order():
    order = RNG.permutation(108)
    shuffled = Field(
        coordinates=PLACES[order], regions=Level(name="region", codes=REGION.codes[order])
    )
    first, second = regional_field(FIELD, 1.2, 3.0), regional_field(shuffled, 1.2, 3.0)
    assert second.across == pytest.approx(first.across, rel=1e-12)
    np.testing.assert_allclose(second.own_sd, first.own_sd[order], atol=1e-12)


def test_one_region_is_refused():
    alone = Field(coordinates=PLACES, regions=Level(name="region", codes=np.zeros(108, int)))
    with pytest.raises(InputError, match="there is one region"):
        regional_field(alone, 1.0, 1.0)


def test_simulated_numbers_have_the_covariance_of_the_field_inside_and_its_mean_across():
    draws = Draws(model("regression"), Structure(field=FIELD), 1).batch(6000)
    deviation = draws.expected - MEAN
    empirical = deviation.T @ deviation / len(deviation)
    kernel = covariances(PLACES, PLACES, 1.2, 3.0)
    same = np.equal.outer(REGION.codes, REGION.codes)
    across = regional_field(FIELD, 1.2, 3.0).across
    wanted = np.where(same, kernel, across)
    error = np.sqrt((1.44**2 + wanted**2) / len(deviation))
    assert (np.abs(empirical - wanted) < 5.5 * error).all()  # 5832 pairs
    # in use only the common part is shared
    shared = draws.deployed - MEAN
    assert np.allclose(shared, shared[:, :1])
    assert shared[:, 0].var() == pytest.approx(across, rel=5 * np.sqrt(2 / 6000))


@pytest.mark.parametrize("task", ["classification", "regression"])
def test_means_agree_on_average_even_where_the_spectrum_is_clipped(task):
    scattered = Field(coordinates=RNG.uniform(0, 10, (108, 2)), regions=REGION)
    draws = Draws(model(task, reach=30.0), Structure(field=scattered), 2).batch(4000)
    for difference in (draws.expected - draws.deployed, draws.target - draws.expected):
        per_draw = difference.mean(axis=1)
        assert abs(per_draw.mean()) < 4 * per_draw.std() / np.sqrt(len(per_draw))


def test_a_sample_of_a_field_is_the_same_after_a_journey():
    here = Draws(model(), Structure(field=FIELD), 3)
    there = pickle.loads(pickle.dumps(here))
    np.testing.assert_array_equal(here.draw(4).target, there.draw(4).target)
    np.testing.assert_array_equal(here.batch(2, 3).target[1], there.draw(4).target)


def neighbours(targets, folds):
    """Return log odds by the seven nearest places in training."""
    scores = np.empty(targets.shape)
    distance = np.linalg.norm(PLACES[:, None] - PLACES, axis=2)
    for training, held in folds:
        nearest = training[np.argsort(distance[np.ix_(held, training)], axis=1)[:, :7]]
        scores[:, held] = logit((7 * targets[:, nearest].mean(axis=2) + 0.5) / 8)
    return scores


def test_neighbours_in_random_folds_are_biased_and_in_folds_of_regions_are_not():
    draws = Draws(model(), Structure(field=FIELD), 4).batch(2000)

    def bias(fold_of):
        folds = [
            (np.flatnonzero(fold_of != fold), np.flatnonzero(fold_of == fold))
            for fold in np.unique(fold_of)
        ]
        slopes = SLOPES["log"](neighbours(draws.target, folds))
        return bias_of(slopes, draws.expected, draws.deployed)

    random, whole = bias(RNG.permutation(108) % 9), bias(REGION.codes % 6)
    assert random.value > 10 * random.error
    assert abs(whole.value) < 4 * whole.error


def test_a_field_without_its_numbers_or_with_seen_regions_is_refused():
    with pytest.raises(InputError, match="needs its reach"):
        Draws(model(reach=None), Structure(field=FIELD), 0)
    seen = Field(coordinates=PLACES, regions=Level(name="region", codes=REGION.codes, new=False))
    with pytest.raises(InputError, match="must be new"):
        Draws(model(), Structure(field=seen), 0)
