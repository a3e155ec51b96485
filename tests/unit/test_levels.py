"""Which injected shares are measured, and how often."""

import numpy as np
import pytest

from mlflow_b3 import plan_levels
from mlflow_b3.errors import InputError
from mlflow_b3.measurement.design import exposures, largest_exposure, parse_levels, plan_fits

pytestmark = pytest.mark.newest


def test_the_optimal_design_crowds_levels_and_refits_where_the_curve_is_extrapolated_from():
    plan = plan_levels(1000, 0.1)
    assert plan.injected == pytest.approx([0, 0.04, 0.16, 0.36, 0.64, 1.0])
    assert sum(plan.fits) == 1000
    wanted = 1 / (np.array(plan.injected) + 0.1 / 0.9)
    assert np.array(plan.fits) == pytest.approx(1000 * wanted / wanted.sum(), abs=1)


def test_the_uniform_design_is_the_papers_grid():
    plan = plan_levels(200, 0.1, levels=20, design="uniform")
    assert np.diff(plan.injected) == pytest.approx(1 / 19)
    assert set(plan.fits) == {10}


def test_levels_can_stop_before_the_validation_rows_are_used_up():
    assert plan_levels(60, largest=0.3).injected[-1] == 0.3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"fits": 11}, "fits=11"),
        ({"fits": 100, "levels": 1}, "levels=1"),
        ({"fits": 100.5}, "fits=100.5"),
        ({"fits": 100, "p0": 1.0}, "p0=1.0"),
        ({"fits": 100, "p0": float("nan")}, "p0=nan"),
        ({"fits": 100, "largest": 0.0}, "largest=0.0"),
        ({"fits": 100, "design": "optimum"}, "optimal"),
    ],
)
def test_impossible_plans_are_refused_with_what_is_allowed(arguments, message):
    with pytest.raises(InputError, match=message):
        plan_levels(**arguments)


@pytest.mark.parametrize("design", ["optimal", "uniform"])
def test_an_audit_spends_every_refit_of_its_curve_and_two_at_least_on_each_level(design):
    plan = plan_fits(1000, n_folds=5, stochastic=False, levels=design)
    assert len(plan.rows) == len(exposures(design)) - 1
    assert min(plan.rows) >= 2
    assert plan.fits_per_fold == 200
    assert (plan.rows[0] > plan.rows[-1] + 1) == (design == "optimal")


def test_drawing_with_replacement_spends_its_budget_on_level_0_too():
    plan = plan_fits(200, n_folds=5, stochastic=False, from_zero=True)
    assert len(plan.rows) == len(exposures())
    assert plan.rows[0] == max(plan.rows)
    assert 5 * plan.fits_per_fold <= 200


@pytest.mark.parametrize("given", [20, "20", " 20 ", np.int64(20)])
def test_a_number_of_levels_is_as_many_at_equal_distances(given):
    levels = parse_levels(given)
    assert levels == 20
    assert np.diff(exposures(levels, 1.0)) == pytest.approx(1 / 19)
    assert len(set(plan_fits(500, n_folds=5, stochastic=False, levels=levels).rows)) <= 2


@pytest.mark.parametrize("wrong", [2, 1001, True, 20.0, "optimum", "", None])
def test_levels_that_cannot_be_are_refused_with_what_is_allowed(wrong):
    with pytest.raises(InputError, match="'optimal', 'uniform', or a whole number from 3 to 1000"):
        parse_levels(wrong)


def test_small_training_sets_leave_enough_validation_rows_for_levels_up_to_1():
    assert largest_exposure(100, 300) == 1.0
    assert largest_exposure(100, 120) == pytest.approx(0.72)
    assert largest_exposure(400, 100) == largest_exposure(None, 100) == 0.6
