"""The bias of learners that predict with random effects: reference numbers and the fit itself."""

import fixture_110 as fixture
import numpy as np
import pytest
from scipy.optimize import minimize
from sklearn.linear_model import LogisticRegression

from mlflow_b3.correlated.formulas import Refitted, joint_bias, refitted_bias
from mlflow_b3.correlated.structure import Field, Level, Structure
from mlflow_b3.correlated.targets import Draws
from mlflow_b3.errors import InputError

pytestmark = pytest.mark.newest


def joint(loss, structure, **options):
    return joint_bias(fixture.X, fixture.model(), structure, fixture.FOLDS, loss, **options)


@pytest.mark.parametrize(
    ("loss", "entity_new", "reference", "error"),
    [
        ("log", True, 0.0252, 0.0007),
        ("zero_one", True, 0.0209, 0.0005),
        ("log", False, 0.0064, 0.0003),
        ("zero_one", False, 0.0047, 0.0002),
    ],
)
def test_the_reference_biases_are_found_within_their_error(loss, entity_new, reference, error):
    structure = fixture.structure(entity_new=entity_new)
    bias = joint(loss, structure, draws=4400, seed=1)
    assert abs(bias.value - reference) < 4 * np.hypot(bias.error, error)
    assert bias.draws == 4400


@pytest.mark.parametrize("large_first", [True, False])
def test_a_refit_is_the_mode_that_a_general_optimiser_finds(large_first):
    structure = fixture.structure(entity_new=False)
    sd = fixture.SD
    if not large_first:  # whichever level is eliminated
        structure = Structure(levels=structure.levels[::-1])
        sd = fixture.SD[::-1]
    learner = Refitted(fixture.X, sd, structure, np.full(4, 0.1))
    targets = Draws(fixture.model(), fixture.structure(), 0).batch(3).target
    training, held = fixture.FOLDS[2]
    design = np.hstack([fixture.X, np.eye(10)[fixture.ENTITY], 0.5 * np.eye(5)[fixture.DAY]])
    penalty = np.concatenate([np.full(4, 0.1), np.ones(15)])
    for target, scores in zip(
        targets, learner.scores(targets[:, training], training, held), strict=True
    ):

        def objective(effects, target=target):
            t = design[training] @ effects
            return np.logaddexp(0, t).sum() - target[training] @ t + penalty @ effects**2 / 2

        best = minimize(objective, np.zeros(19), method="BFGS", options={"gtol": 1e-7}).x
        best[14:] = 0  # days are new
        np.testing.assert_allclose(scores, design[held] @ best, atol=1e-4)


def test_without_random_effects_it_is_logistic_regression():
    learner = Refitted(fixture.X, (0.0, 0.0), fixture.structure(), np.full(4, 1.0))
    targets = Draws(fixture.model(), fixture.structure(), 0).batch(2).target
    training, held = fixture.FOLDS[0]
    scores = learner.scores(targets[:, training], training, held)
    for target, score in zip(targets, scores, strict=True):
        fitted = LogisticRegression(C=1.0, fit_intercept=False, tol=1e-10).fit(
            fixture.X[training], target[training]
        )
        np.testing.assert_allclose(score, fitted.decision_function(fixture.X[held]), atol=1e-4)


def test_refits_of_penalised_logistic_regression_come_to_their_references():
    learner = Refitted(fixture.X, (0.0, 0.0), fixture.structure(), np.array([0.0, 1.0, 1.0, 1.0]))
    references = {
        "log": (0.0207, 0.0005),
        "zero_one": (0.0213, 0.0005),
        "hinge": (0.0371, 0.0008),
        "brier": (0.0091, 0.0002),
    }
    for loss, (reference, error) in references.items():
        bias = refitted_bias(
            learner, fixture.model(), fixture.structure(), fixture.FOLDS, loss, 4400, 3
        )
        assert abs(bias.value - reference) < 4 * np.hypot(bias.error, error)


def test_separated_targets_leave_scores_finite():
    learner = Refitted(fixture.X, fixture.SD, fixture.structure(), None)
    training, held = fixture.FOLDS[0]
    separated = np.stack([(fixture.X[training, 1] > 0).astype(float), np.ones(len(training))])
    assert np.isfinite(learner.scores(separated, training, held)).all()


def test_without_random_effects_there_is_no_bias():
    bias = joint_bias(
        fixture.X, fixture.model((0.0, 0.0)), fixture.structure(), fixture.FOLDS, "log", draws=22
    )
    assert bias.value == 0.0


def test_effects_of_a_group_that_training_lacks_are_zero():
    structure = Structure(levels=(Level(name="entity", codes=fixture.ENTITY, new=False),))
    learner = Refitted(fixture.X[:, :1], (1.0,), structure, None)
    training, held = fixture.folds_by(fixture.ENTITY)[0]
    scores = learner.scores(np.ones((1, len(training))), training, held)
    np.testing.assert_allclose(scores, scores[0, 0])


def test_what_it_cannot_do_is_refused():
    places = np.zeros((fixture.N, 2))
    field = Field(coordinates=places, regions=Level(name="entity", codes=fixture.ENTITY))
    with pytest.raises(InputError, match=r'supports levels only.*engine="full"'):
        joint("log", Structure(field=field))
    structure = Structure(levels=(Level(name="entity", codes=np.arange(3001) // 2),))
    with pytest.raises(InputError, match="3001 rows"):
        joint_bias(np.ones((3001, 1)), fixture.model(), structure, fixture.FOLDS, "log")


def test_a_learner_without_random_effects_has_the_bias_of_logistic_regression():
    penalty = np.array([0.0, 1.0, 1.0, 1.0])
    bias = joint("brier", fixture.structure(), learner_sd=(0.0, 0.0), penalty=penalty, draws=2200)
    assert abs(bias.value - 0.0091) < 4 * np.hypot(bias.error, 0.0002)
