"""The bias at other standard deviations, against recomputation."""

from dataclasses import replace

import fixture_110 as fixture
import numpy as np
import pytest

from mlflow_b3.correlated.formulas import fast_bias, linear_bias, moments
from mlflow_b3.correlated.structure import Field, Level, Structure, WorkingModel
from mlflow_b3.correlated.working import Scaling

pytestmark = pytest.mark.newest


def scaled(sd, *, model=None, structure=None, folds=fixture.FOLDS):
    """Return the factor by which the bias changes."""
    model, structure = model or fixture.model(), structure or fixture.structure()
    return Scaling(structure, folds).factor(model)(replace(model, sd=tuple(sd)))


def recomputed(sd, loss="log"):
    given = (fixture.structure(), fixture.FOLDS, loss)
    before, after = (
        fast_bias(fixture.X, fixture.BETA, fixture.model(which), *given, draws=4000).value
        for which in (fixture.SD, sd)
    )
    return after / before


@pytest.mark.parametrize("entity_new", [True, False])
@pytest.mark.parametrize("sd", [(0.5, 0.25), (2.0, 0.5), (1.0, 0.0)])
def test_the_factor_is_that_of_the_summed_covariance_of_pairs_in_different_folds(entity_new, sd):
    structure = fixture.structure(entity_new=entity_new)
    apart = np.not_equal.outer(fixture.ROWS % 11, fixture.ROWS % 11)
    before, after = (
        moments(fixture.model(which), structure).excess[apart].sum() for which in (fixture.SD, sd)
    )
    assert scaled(sd, structure=structure) == pytest.approx(after / before, rel=1e-6)


@pytest.mark.parametrize("factor", [0.5, 0.75, 1.25, 1.5, 2.0])
def test_multiples_of_all_standard_deviations_are_close_to_recomputation(factor):
    sd = (factor * 1.0, factor * 0.5)
    assert scaled(sd) == pytest.approx(recomputed(sd), rel=0.02)
    assert scaled(sd) == pytest.approx(recomputed(sd, "zero_one"), rel=0.1)


@pytest.mark.parametrize("factor", [0.0, 0.5, 0.75, 1.25, 1.5, 2.0])
@pytest.mark.parametrize("level", [0, 1])
def test_one_standard_deviation_alone_is_close_to_recomputation(factor, level):
    sd = tuple(factor * own if at == level else own for at, own in enumerate(fixture.SD))
    assert scaled(sd) == pytest.approx(recomputed(sd), rel=0.06)
    assert scaled(sd) == pytest.approx(recomputed(sd, "zero_one"), rel=0.15)


def test_the_same_standard_deviations_change_nothing_and_none_leave_no_bias():
    assert scaled(fixture.SD) == 1.0
    assert scaled((0.0, 0.0)) == 0.0


def test_where_hardly_anything_varies_a_world_is_simulated_in_which_it_does():
    scaling = Scaling(fixture.structure(), fixture.FOLDS)
    found = replace(fixture.model(), sd_low=(0.0, 0.0), sd_high=(2.0, 1.0))
    assert scaling.world(found) is found
    nothing = replace(found, sd=(0.0, 0.0), sd_high=(1.0, 0.8))
    simulated = scaling.world(nothing)
    assert simulated.sd == (0.5, 0.4)
    factor = scaling.factor(simulated)
    assert factor(nothing) == 0
    assert factor(replace(nothing, sd=(1.0, 0.8))) > 1


def test_where_nothing_can_leak_nothing_is_scaled():
    seen = fixture.structure(entity_new=False, day_new=False)
    assert scaled((1.0, 1.0), structure=seen) == 1
    alone = Structure(levels=(Level(name="entity", codes=fixture.ENTITY),))
    folds = fixture.folds_by(fixture.ENTITY)
    assert scaled((2.0,), model=fixture.model((1.0,)), structure=alone, folds=folds) == 1


def test_for_one_level_of_numbers_it_is_exact():
    alone = Structure(levels=(Level(name="entity", codes=fixture.ENTITY),))
    before, after = (
        linear_bias(
            fixture.X, fixture.model((sd,), task="regression", noise=1.0), alone, fixture.FOLDS
        ).value
        for sd in (1.0, 1.7)
    )
    model = fixture.model((1.0,), task="regression", noise=1.0)
    factor = scaled((1.7,), model=model, structure=alone)
    assert factor == pytest.approx(1.7**2, rel=1e-12)
    assert factor == pytest.approx(after / before, rel=1e-12)


def test_many_rows_are_read_off_a_grid_with_the_same_result():
    rng = np.random.default_rng(1)
    mean, codes = rng.normal(0, 2, 1500), rng.permutation(1500) // 5
    model = WorkingModel(task="classification", mean=mean, sd=(1.0,), sd_low=(), sd_high=())
    structure = Structure(levels=(Level(name="entity", codes=codes),))
    folds = fixture.folds_by(np.arange(1500) % 5)
    apart = np.not_equal.outer(np.arange(1500) % 5, np.arange(1500) % 5)
    before, after = (
        moments(
            WorkingModel(task="classification", mean=mean, sd=(sd,), sd_low=(), sd_high=()),
            structure,
        )
        .excess[apart]
        .sum()
        for sd in (1.0, 1.6)
    )
    factor = scaled((1.6,), model=model, structure=structure, folds=folds)
    assert factor == pytest.approx(after / before, rel=1e-4)


def test_a_field_of_one_place_for_each_region_is_a_level():
    regions = Level(name="entity", codes=fixture.ENTITY)
    places = 1e6 * fixture.ENTITY[:, None].astype(float)
    given = {"task": "classification", "mean": fixture.MEAN, "sd_low": (), "sd_high": ()}
    field = scaled(
        (1.5,),
        model=WorkingModel(**given, sd=(1.0,), reach=1.0),
        structure=Structure(field=Field(coordinates=places, regions=regions)),
    )
    level = scaled(
        (1.5,), model=WorkingModel(**given, sd=(1.0,)), structure=Structure(levels=(regions,))
    )
    # both sums are of 400 samples of ten regions, on common random numbers
    assert field == pytest.approx(level, rel=4 * np.sqrt(2 / 4000))


def test_a_mixed_learner_keeps_its_own_standard_deviations_while_those_of_the_rows_vary():
    before, after = (
        fast_bias(
            fixture.X,
            fixture.BETA,
            fixture.model(sd),
            fixture.structure(),
            fixture.FOLDS,
            "log",
            covariance="mixed",
            learner_sd=fixture.SD,
        ).value
        for sd in (fixture.SD, (2.0, 1.0))
    )
    assert before == pytest.approx(0.0260630132, abs=1e-9)
    assert after / before == pytest.approx(scaled((2.0, 1.0)), rel=0.02)
