"""Means and covariances of 0/1 targets, against reference numbers and simulation."""

import fixture_110 as fixture
import numpy as np
import pytest

from mlflow_b3.correlated.formulas import moments
from mlflow_b3.correlated.structure import Field, Level, Structure, WorkingModel
from mlflow_b3.correlated.targets import Draws

pytestmark = pytest.mark.newest


def test_the_reference_covariances_are_found():
    found = moments(fixture.model(), fixture.structure())
    np.testing.assert_allclose(found.mean[:3], [0.68814594, 0.69093851, 0.80587046], atol=1e-8)
    np.testing.assert_allclose(found.slope[:3], [0.17434941, 0.17359278, 0.13172329], atol=1e-8)
    np.testing.assert_allclose(  # itself, same entity, same day, both
        found.covariance[0, [0, 10, 1, 50]],
        [0.04025169, 0.03391930, 0.00763897, 0.04425288],
        atol=1e-8,
    )


@pytest.mark.parametrize("sd", [(1.0, 0.5), (0.0, 0.0), (2.0, 0.0)])
def test_a_target_has_the_variance_of_a_bernoulli_variable(sd):
    found = moments(fixture.model(sd), fixture.structure())
    variance = np.diag(found.covariance) + found.slope
    np.testing.assert_allclose(variance, found.mean * (1 - found.mean), atol=1e-14)


def test_rows_that_share_nothing_have_no_covariance_at_all():
    found = moments(fixture.model(), fixture.structure())
    apart = np.not_equal.outer(fixture.ENTITY, fixture.ENTITY) & np.not_equal.outer(
        fixture.DAY, fixture.DAY
    )
    assert (found.covariance[apart] == 0).all()
    assert (found.covariance[~apart] > 0).all()


def test_without_random_effects_there_is_no_covariance():
    assert not moments(fixture.model((0.0, 0.0)), fixture.structure()).covariance.any()


def test_new_levels_leave_the_whole_covariance_in_excess_and_seen_ones_none():
    new = moments(fixture.model(), fixture.structure())
    seen = moments(fixture.model(), fixture.structure(entity_new=False, day_new=False))
    np.testing.assert_array_equal(new.excess, new.covariance)
    np.testing.assert_allclose(seen.excess, 0.0, atol=1e-15)


@pytest.mark.parametrize("entity_new", [True, False])
def test_covariances_are_those_of_simulated_samples(entity_new):
    structure = fixture.structure(entity_new=entity_new)
    found = moments(fixture.model(), structure)
    draws = Draws(fixture.model(), structure, 4).batch(20_000)
    excess = draws.expected - draws.deployed
    for row, other in [(0, 10), (0, 1), (0, 50), (3, 13), (7, 7)]:
        product = excess[:, row] * draws.expected[:, other]
        error = product.std() / np.sqrt(len(product))
        assert abs(product.mean() - found.excess[row, other]) < 4 * error


def test_a_field_of_regions_without_reach_is_a_level_of_regions():
    # at one place for each region, and regions far apart, the field is a random intercept
    regions = Level(name="region", codes=np.arange(60) // 6)
    places = np.column_stack([1e6 * regions.codes, np.zeros(60)])
    mean = fixture.MEAN[:60]
    given = {"task": "classification", "mean": mean, "sd": (1.2,), "sd_low": (), "sd_high": ()}
    field = moments(
        WorkingModel(**given, reach=1.0),
        Structure(field=Field(coordinates=places, regions=regions)),
    )
    level = moments(WorkingModel(**given), Structure(levels=(regions,)))
    np.testing.assert_allclose(field.mean, level.mean, atol=1e-12)
    np.testing.assert_allclose(field.slope, level.slope, atol=1e-12)
    # 2000 samples of products whose standard deviation is at most 1/4
    np.testing.assert_allclose(field.excess, level.excess, atol=5 * 0.25 / np.sqrt(2000))
    assert (field.excess[level.excess == 0] == 0).all()
    np.testing.assert_allclose(field.covariance, field.excess, atol=1e-12)
