"""Corrected cross-validation of more than two classes."""

import json

import numpy as np
import pytest
from fixture_110 import DAY, ENTITY, SD, structure
from scipy.special import expit, softmax
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.svm import LinearSVC
from wards import make_wards

from mlflow_b3 import CvcReport, InputError, cvc
from mlflow_b3.correlated import WorkingModel
from mlflow_b3.correlated.classes import fit_mixed_softmax
from mlflow_b3.correlated.formulas import BiasSums
from mlflow_b3.correlated.mixed import fit_mixed_logistic
from mlflow_b3.correlated.structure import Structure
from mlflow_b3.correlated.targets import Draws, smoothed_logistic, smoothed_softmax
from mlflow_b3.correlated.working import Scaling

pytestmark = pytest.mark.newest

WARDS = {"target": "outcome", "groups": ["ward", "week"]}
QUICK = {"draws": 60, "budget": 100, "progress": False}


def world(mean):
    return WorkingModel(task="classification", mean=mean, sd=SD, sd_low=SD, sd_high=SD)


def with_three_classes(frame, seed=0, sd=1.2):
    rng = np.random.default_rng(seed)
    ward = np.unique(frame["ward"], return_inverse=True)[1]
    log_odds = np.column_stack([frame["age"], frame["pressure"], 0 * frame["age"]])
    log_odds += sd / np.sqrt(2) * rng.normal(size=(ward.max() + 1, 3))[ward]
    below = softmax(log_odds, axis=1).cumsum(axis=1)[:, :-1]
    number = (rng.random(len(frame))[:, None] >= below).sum(axis=1)
    return frame.assign(outcome=np.array(["calm", "ill", "well"])[number])


@pytest.fixture(scope="module")
def table():
    return with_three_classes(make_wards(seed=1))


@pytest.fixture(scope="module")
def report(table):
    return cvc(GaussianNB(), table, **WARDS, loss="log", **QUICK)


# --- Two classes are a special case


@pytest.mark.parametrize("codes", [[ENTITY], [ENTITY, DAY]], ids=["one level", "crossed"])
def test_for_two_classes_the_fit_is_that_of_logistic_regression(codes):
    rng = np.random.default_rng(3)
    score = rng.normal(size=110)
    chance = expit(0.3 + score + rng.normal(size=10)[ENTITY] + 0.5 * rng.normal(size=5)[DAY])
    target = (rng.random(110) < chance).astype(int)
    design = np.column_stack([np.ones(110), score])
    known = fit_mixed_logistic(target, design, codes, method="laplace")
    found = fit_mixed_softmax(target, 2, np.column_stack([-score / 2, score / 2]), codes)
    assert found.log_likelihood == pytest.approx(known.log_likelihood, abs=1e-6)
    for name in ("sd", "sd_low", "sd_high"):
        assert getattr(found, name) == pytest.approx(getattr(known, name), abs=2e-3)
    a, b, slope = found.coefficients
    assert (b - a, slope) == pytest.approx(tuple(known.coefficients), abs=1e-4)


@pytest.mark.parametrize("sd", [0.0, 0.5, 2.0])
def test_for_two_classes_the_mean_over_effects_is_that_of_the_logistic_function(sd):
    log_odds = np.linspace(-3, 3, 13)
    both = smoothed_softmax(np.column_stack([0 * log_odds, log_odds]), sd)
    assert both[:, 1] == pytest.approx(smoothed_logistic(log_odds, sd), abs=1e-14)


def test_for_two_classes_the_bias_from_classes_is_that_from_the_loss_decrease():
    rng = np.random.default_rng(0)
    by_class, by_decrease = BiasSums(1), BiasSums(1)
    for _ in range(5):
        losses, expected = rng.random((7, 2)), rng.random(7)
        deployed = np.full(7, 0.4)
        both = [np.column_stack([1 - each, each]) for each in (expected, deployed)]
        by_class.add(0, -losses, *both)
        by_decrease.add(0, losses[:, 0] - losses[:, 1], expected, deployed)
    assert by_class.bias().value == pytest.approx(by_decrease.bias().value)
    assert by_class.bias().error == pytest.approx(by_decrease.bias().error)


# --- The simulated world


@pytest.mark.parametrize("count", [3, 5])
def test_means_over_effects_are_those_of_simulated_ones(count):
    rng = np.random.default_rng(1)
    log_odds = rng.normal(size=(1, count))
    drawn = softmax(log_odds + 1.5 / np.sqrt(2) * rng.normal(size=(100_000, count)), axis=1)
    error = drawn.std(axis=0).max() / np.sqrt(len(drawn))
    assert smoothed_softmax(log_odds, 1.5)[0] == pytest.approx(drawn.mean(axis=0), abs=5 * error)


def test_log_odds_of_any_two_classes_differ_between_groups_by_the_standard_deviation():
    made = Draws(world(np.zeros((110, 3))), structure(), 0).batch(400)
    log_odds = np.log(made.expected)
    for one, other in ((0, 1), (0, 2), (1, 2)):
        found = float((log_odds[..., one] - log_odds[..., other]).std())
        assert found == pytest.approx(np.hypot(*SD), rel=0.05)


def test_targets_have_the_chances_of_their_classes():
    mean = np.tile([0.0, 1.0, -1.0], (110, 1))
    made = Draws(world(mean), structure(), 0).batch(400)
    shares = [np.mean(made.target == number) for number in range(3)]
    assert shares == pytest.approx(smoothed_softmax(mean[:1], np.hypot(*SD))[0], abs=0.02)
    assert made.expected.mean(axis=(0, 1)) == pytest.approx(shares, abs=0.02)


@pytest.mark.parametrize("again", [False, True], ids=["new entities", "entities observed again"])
def test_the_bias_is_the_true_one_of_nearest_neighbours(again):
    """The truth is the error rate of targets with new effects, less that of the rows themselves."""
    rng = np.random.default_rng(5)
    features = rng.normal(size=(110, 4))
    mean = features @ rng.normal(size=(4, 3)) / 2
    apart = ((features[:, None] - features[None]) ** 2).sum(axis=2)
    apart += 5.0 * (ENTITY[:, None] != ENTITY[None])  # neighbours are often of the same entity
    made, fold_of = Draws(world(mean), structure(entity_new=not again), 0), np.arange(110) // 22
    splits = [(np.flatnonzero(fold_of != k), np.flatnonzero(fold_of == k)) for k in range(5)]
    near = [train[np.argsort(apart[np.ix_(held, train)])[:, :9]] for train, held in splits]
    sums, truth = BiasSums(5), []

    def wrong(target, k):
        counts = np.stack([(target[near[k]] == c).sum(axis=1) for c in range(3)], axis=1)
        return (counts.argmax(axis=1)[:, None] != np.arange(3)).astype(float)

    for number in range(1000):
        drawn, k = made.draw(number), number % 5
        held = splits[k][1]
        sums.add(k, -wrong(drawn.target, k), drawn.expected[held], drawn.deployed[held])
    for _ in range(1500):
        effects = [
            sd / np.sqrt(2) * rng.normal(size=(2, codes.max() + 1, 3))[:, codes]
            for sd, codes in zip(SD, (ENTITY, DAY), strict=True)
        ]
        if again:
            effects[0][1] = effects[0][0]
        chances = softmax(mean + effects[0] + effects[1], axis=2)
        own, other = (rng.random((2, 110, 1)) >= chances.cumsum(axis=2)[..., :-1]).sum(axis=2)
        rows = np.concatenate([wrong(own, k) for k in range(5)])
        held = np.concatenate([split[1] for split in splits])
        at = np.arange(110)
        truth.append(np.mean(rows[at, other[held]] - rows[at, own[held]]))
    error = np.hypot(np.std(truth) / np.sqrt(len(truth)), sums.bias().error)
    assert sums.bias().value == pytest.approx(np.mean(truth), abs=3.5 * error)
    assert again or sums.bias().value > 4 * error  # so the comparison can fail


def test_folds_of_whole_groups_leave_no_bias_to_scale():
    mean = np.random.default_rng(0).normal(size=(110, 3))
    folds, mixed = (
        [(np.flatnonzero(codes % 2 != k), np.flatnonzero(codes % 2 == k)) for k in range(2)]
        for codes in (ENTITY, np.arange(110) // 11)
    )
    entities = Structure(levels=structure().levels[:1])
    one = WorkingModel(task="classification", mean=mean, sd=(1.0,), sd_low=(1.0,), sd_high=(1.0,))
    assert Scaling(entities, folds).excess(one) == pytest.approx(0, abs=1e-12)
    assert Scaling(entities, mixed).excess(one) > 0


# --- From the user's side


def test_a_correction_is_given_for_three_classes(report):
    assert report.cvc == pytest.approx(report.cv + report.bias)
    assert report.interval[0] < report.cvc < report.interval[1]
    assert (report.engine, report.classes, report.working) == ("full", 3, "score")
    assert report.bias > 2 * report.bias_error > 0


def test_the_score_is_that_of_scikit_learn(table, report):
    from sklearn.metrics import log_loss
    from sklearn.model_selection import KFold, cross_val_predict

    X = table[["age", "pressure", "ward_mean"]]
    folds = KFold(10, shuffle=True, random_state=0)
    chances = cross_val_predict(GaussianNB(), X, table["outcome"], cv=folds, method="predict_proba")
    assert report.cv == pytest.approx(log_loss(table["outcome"], chances))


def test_the_report_survives_json_and_says_how_many_classes(report):
    assert CvcReport.from_dict(json.loads(report.to_json())) == report
    assert "log odds of each of 3 classes" in str(report)
    assert "odds of one class against another" in str(report)


@pytest.mark.parametrize(
    ("model", "loss"),
    [
        (LogisticRegression(), "zero_one"),
        (KNeighborsClassifier(7), "brier"),
        (LinearSVC(), "hinge"),
    ],
    ids=["zero_one", "brier", "hinge"],
)
def test_every_loss_of_classes_can_be_corrected(table, model, loss):
    found = cvc(model, table, **WARDS, loss=loss, **QUICK)
    assert np.isfinite([found.cv, found.cvc, *found.interval]).all()


def test_candidates_can_share_a_world(table, report):
    other = cvc(KNeighborsClassifier(15), table, **WARDS, loss="log", **QUICK, working=report)
    assert other.settings["working_digest"] == report.settings["working_digest"]
    two = table[table["outcome"] != "calm"]
    with pytest.raises(InputError, match="working is for 3 classes"):
        cvc(GaussianNB(), two, **WARDS, **QUICK, working=report)


def test_a_class_that_training_rows_lack_withholds_the_correction(table):
    rare = table.assign(outcome=table["outcome"].where(table.index > 0, "rare"))
    found = cvc(GaussianNB(), rare, **WARDS, **QUICK)
    assert found.cvc is None
    assert "training rows lack a class" in str(found)


def test_groups_of_two_rows_are_reported(table):
    pairs = table.drop(columns="ward").assign(pair=np.arange(len(table)) // 2)
    found = cvc(GaussianNB(), pairs, target="outcome", groups=["pair"], **QUICK)
    assert "B341" in [finding.code for finding in found.findings]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"engine": "fast"}, "engine='fast' has no formula for the 3 classes"),
        ({"engine": "joint"}, "engine='joint' has no formula for the 3 classes"),
        ({"working": "glmm"}, "working='glmm' is for two classes or numbers"),
    ],
)
def test_what_has_no_correction_for_three_classes_is_refused(table, options, told):
    with pytest.raises(InputError, match=told):
        cvc(LogisticRegression(), table, **WARDS, **options)


def test_fields_of_three_classes_are_refused(table):
    with pytest.raises(InputError, match=r"coordinates=.* are for two classes or numbers"):
        cvc(
            GaussianNB(),
            table,
            target="outcome",
            groups=["ward"],
            coordinates=["age", "pressure"],
        )


def test_too_many_classes_are_refused(table):
    many = table.assign(outcome=[f"c{number % 24}" for number in range(len(table))])
    with pytest.raises(InputError, match="24 classes; corrected cross-validation is for 2 to 20"):
        cvc(GaussianNB(), many, **WARDS)
