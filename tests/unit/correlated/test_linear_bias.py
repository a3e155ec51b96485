"""The bias under squared loss: reference numbers, and the exact identity behind them."""

import fixture_110 as fixture
import numpy as np
import pytest

from mlflow_b3.correlated.formulas import SLOPES, bias_of, linear_bias
from mlflow_b3.correlated.structure import Field, Level, Structure, WorkingModel
from mlflow_b3.correlated.targets import Draws
from mlflow_b3.errors import InputError

pytestmark = pytest.mark.newest

MODEL = fixture.model(task="regression", noise=1.0)
SAME = [np.equal.outer(codes, codes) for codes in (fixture.ENTITY, fixture.DAY)]
COVARIANCE = SAME[0] + 0.25 * SAME[1] + np.eye(fixture.N)
# the intercept is penalised in the reference numbers of ridge
LEARNERS = {
    "least squares": ({}, 2.207514343, 0.252073180, 0.082099562),
    "ridge": ({"penalty": np.full(4, 5.0)}, 2.199300588, 0.242260864, 0.079199424),
    "generalised": ({"covariance": "mixed"}, 2.150563837, 0.293441439, 0.096690654),
}


def hat_matrix(options):
    """Return the map from targets to cross-validated predictions, without the package."""
    hat = np.zeros((fixture.N, fixture.N))
    mixed = "covariance" in options
    for training, held in fixture.FOLDS:
        own = COVARIANCE[np.ix_(training, training)] if mixed else np.eye(len(training))
        scored = np.linalg.solve(own, fixture.X[training])
        bread = fixture.X[training].T @ scored + np.diag(options.get("penalty", np.zeros(4)))
        hat[np.ix_(held, training)] = fixture.X[held] @ np.linalg.solve(bread, scored.T)
    return hat


@pytest.mark.parametrize("learner", LEARNERS)
def test_the_reference_biases_are_found(learner):
    options, _, new, same_entity = LEARNERS[learner]
    bias = linear_bias(fixture.X, MODEL, fixture.structure(), fixture.FOLDS, **options)
    assert bias.value == pytest.approx(new, abs=1e-9)
    assert (bias.error, bias.draws) == (0.0, 0)
    structure = fixture.structure(entity_new=False)
    bias = linear_bias(fixture.X, MODEL, structure, fixture.FOLDS, **options)
    assert bias.value == pytest.approx(same_entity, abs=1e-9)


@pytest.mark.parametrize("learner", LEARNERS)
@pytest.mark.parametrize("entity_new", [True, False])
def test_cross_validation_plus_the_bias_is_the_expected_loss_in_use(learner, entity_new):
    options, cross_validated, *_ = LEARNERS[learner]
    hat = hat_matrix(options)
    missed = fixture.MEAN - hat @ fixture.MEAN
    spread = np.diag(hat @ COVARIANCE @ hat.T) + np.diag(COVARIANCE)
    use = np.zeros_like(COVARIANCE) if entity_new else 1.0 * SAME[0]
    cv = np.mean(missed**2 + spread - 2 * (hat * COVARIANCE).sum(axis=1))
    generalisation = np.mean(missed**2 + spread - 2 * (hat * use).sum(axis=1))
    structure = fixture.structure(entity_new=entity_new)
    bias = linear_bias(fixture.X, MODEL, structure, fixture.FOLDS, **options)
    assert cv == pytest.approx(cross_validated, abs=1e-9)
    assert cv + bias.value == pytest.approx(generalisation, abs=1e-10)


@pytest.mark.parametrize("entity_new", [True, False])
def test_the_closed_form_is_what_simulated_samples_give(entity_new):
    structure = fixture.structure(entity_new=entity_new)
    draws = Draws(MODEL, structure, 2).batch(4000)
    predicted = draws.target @ hat_matrix({}).T
    simulated = bias_of(SLOPES["squared"](predicted), draws.expected, draws.deployed)
    exact = linear_bias(fixture.X, MODEL, structure, fixture.FOLDS)
    assert abs(simulated.value - exact.value) < 4 * simulated.error


def test_folds_of_whole_groups_of_the_only_level_leave_no_bias():
    structure = Structure(levels=(Level(name="entity", codes=fixture.ENTITY),))
    folds = fixture.folds_by(fixture.ENTITY % 5)
    model = WorkingModel(
        task="regression", mean=fixture.MEAN, sd=(1.0,), sd_low=(), sd_high=(), noise=1.0
    )
    assert linear_bias(fixture.X, model, structure, folds).value == 0.0


def test_a_field_of_one_place_for_each_region_is_a_level():
    regions = Level(name="entity", codes=fixture.ENTITY)
    places = 1e6 * fixture.ENTITY[:, None].astype(float)
    given = {"task": "regression", "mean": fixture.MEAN, "sd_low": (), "sd_high": (), "noise": 1.0}
    field = linear_bias(
        fixture.X,
        WorkingModel(**given, sd=(1.0,), reach=1.0),
        Structure(field=Field(coordinates=places, regions=regions)),
        fixture.FOLDS,
        covariance="mixed",
    )
    level = linear_bias(
        fixture.X,
        WorkingModel(**given, sd=(1.0,)),
        Structure(levels=(regions,)),
        fixture.FOLDS,
        covariance="mixed",
    )
    assert field.value == pytest.approx(level.value, abs=1e-10)


def test_more_rows_than_fit_are_refused():
    structure = Structure(levels=(Level(name="entity", codes=np.arange(3001) // 2),))
    with pytest.raises(InputError, match=r'3001 rows are more than the 3000.*engine="full"'):
        linear_bias(np.ones((3001, 1)), MODEL, structure, fixture.FOLDS)
