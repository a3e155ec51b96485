"""The bias without refits: reference numbers, and its limits."""

import fixture_110 as fixture
import numpy as np
import pytest

from mlflow_b3.correlated.formulas import SLOPES, bias_of, fast_bias
from mlflow_b3.correlated.structure import Field, Level, Structure, WorkingModel
from mlflow_b3.correlated.targets import Draws
from mlflow_b3.errors import InputError

pytestmark = pytest.mark.newest


def fast(loss="log", structure=None, model=None, folds=fixture.FOLDS, **options):
    return fast_bias(
        fixture.X,
        fixture.BETA,
        model or fixture.model(),
        structure or fixture.structure(),
        folds,
        loss,
        **options,
    )


def test_the_reference_biases_of_log_loss_are_found():
    same_entity = fixture.structure(entity_new=False)
    assert fast(covariance="mixed").value == pytest.approx(0.0260630132, abs=1e-9)
    assert fast().value == pytest.approx(0.0200318280, abs=1e-9)
    assert fast(structure=same_entity, covariance="mixed").value == pytest.approx(
        0.0082932054, abs=1e-9
    )
    assert fast().error == 0.0


@pytest.mark.parametrize(
    ("loss", "reference", "error"),
    [("zero_one", 0.02189, 0.00010), ("hinge", 0.04437, 0.00019), ("brier", 0.01089, 0.00005)],
)
def test_other_losses_come_to_their_references_within_their_error(loss, reference, error):
    bias = fast(loss, covariance="mixed", draws=8000, seed=1)
    assert abs(bias.value - reference) < 4 * np.hypot(bias.error, error)
    assert bias.error < reference / 20


@pytest.mark.parametrize(
    ("loss", "reference", "error"),
    [("zero_one", 0.0213, 0.0005), ("hinge", 0.0371, 0.0008), ("brier", 0.0091, 0.0002)],
)
def test_other_losses_of_logistic_regression_are_those_of_its_refits(loss, reference, error):
    bias = fast(loss, penalty=np.array([0.0, 1.0, 1.0, 1.0]), draws=4400, seed=1)
    assert abs(bias.value - reference) < 4 * np.hypot(bias.error, error)


@pytest.mark.parametrize("entity_new", [True, False])
@pytest.mark.parametrize("penalty", [None, np.array([0.0, 2.0, 2.0, 2.0])])
def test_the_closed_form_is_what_simulated_samples_give(entity_new, penalty):
    structure = fixture.structure(entity_new=entity_new)
    draws = Draws(fixture.model(), structure, 6).batch(4000)
    chance = 1 / (1 + np.exp(-fixture.MEAN))
    bread = np.diag(np.zeros(4) if penalty is None else penalty)
    scores = np.empty_like(draws.target)
    for training, held in fixture.FOLDS:
        weighted = fixture.X[training] * (chance * (1 - chance))[training, None]
        step = np.linalg.inv(weighted.T @ fixture.X[training] + bread) @ fixture.X[training].T
        scores[:, held] = draws.target[:, training] @ step.T @ fixture.X[held].T
    simulated = bias_of(SLOPES["log"](scores), draws.expected, draws.deployed)
    exact = fast(structure=structure, penalty=penalty)
    assert abs(simulated.value - exact.value) < 4 * simulated.error


def test_a_learner_whose_penalty_lets_it_learn_nothing_has_no_bias():
    assert fast(penalty=np.full(4, 1e9)).value == pytest.approx(0.0, abs=1e-8)


def test_folds_of_whole_groups_of_the_only_level_leave_no_bias():
    structure = Structure(levels=(Level(name="entity", codes=fixture.ENTITY),))
    model = WorkingModel(task="classification", mean=fixture.MEAN, sd=(1.0,), sd_low=(), sd_high=())
    folds = fixture.folds_by(fixture.ENTITY % 5)
    assert fast(structure=structure, model=model, folds=folds).value == 0.0
    zero_one = fast("zero_one", structure=structure, model=model, folds=folds)
    assert abs(zero_one.value) < 4 * zero_one.error


def test_folds_of_whole_entities_leave_the_part_of_the_days():
    whole = fast(folds=fixture.folds_by(fixture.ENTITY % 5)).value
    assert 0 < whole < fast().value


@pytest.mark.parametrize("loss", ["log", "zero_one", "hinge", "brier"])
def test_without_random_effects_there_is_no_bias(loss):
    assert fast(loss, model=fixture.model((0.0, 0.0)), draws=50).value == 0.0


def test_levels_all_observed_again_leave_no_bias():
    structure = fixture.structure(entity_new=False, day_new=False)
    assert fast(structure=structure).value == pytest.approx(0.0, abs=1e-14)


def test_folds_that_leave_rows_out_count_only_those_that_are_validated():
    some = fixture.FOLDS[:3]
    rows = np.concatenate([held for _, held in some])
    parts = [fast(folds=[fold]).value for fold in some]
    assert fast(folds=some).value == pytest.approx(np.mean(parts))
    assert fast("brier", folds=some, draws=100).value != 0.0
    assert len(rows) == 30


@pytest.mark.parametrize("covariance", ["independence", "mixed"])
def test_a_field_of_one_place_for_each_region_is_a_level(covariance):
    regions = Level(name="entity", codes=fixture.ENTITY)
    given = {"task": "classification", "mean": fixture.MEAN, "sd_low": (), "sd_high": ()}
    places = 1e6 * fixture.ENTITY[:, None].astype(float)
    field = fast(
        structure=Structure(field=Field(coordinates=places, regions=regions)),
        model=WorkingModel(**given, sd=(1.0,), reach=1.0),
        covariance=covariance,
        draws=4000,
    )
    level = fast(
        structure=Structure(levels=(regions,)),
        model=WorkingModel(**given, sd=(1.0,)),
        covariance=covariance,
    )
    # the covariance inside regions is simulated, too, and is good to 1/√1000 of itself
    assert abs(field.value - level.value) < 4 * np.hypot(field.error, 0.03 * level.value)


def test_more_rows_than_fit_and_unknown_words_are_refused():
    structure = Structure(levels=(Level(name="entity", codes=np.arange(3001) // 2),))
    with pytest.raises(InputError, match=r'3001 rows are more than the 3000.*engine="full"'):
        fast_bias(np.ones((3001, 1)), np.ones(1), fixture.model(), structure, [], "log")
    with pytest.raises(InputError, match="covariance='none' is not known"):
        fast(covariance="none")
    with pytest.raises(InputError, match="loss='squared' is not known"):
        fast("squared")
