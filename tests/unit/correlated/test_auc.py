"""Corrected cross-validation of the area under the ROC curve."""

import json

import numpy as np
import pytest
from fixture_110 import DAY, ENTITY, MEAN, SD, model, structure
from scipy.special import expit
from sklearn.dummy import DummyClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import fbeta_score, get_scorer, make_scorer, roc_auc_score
from sklearn.model_selection import KFold
from sklearn.naive_bayes import GaussianNB
from sklearn.svm import LinearSVC
from test_many_classes import with_three_classes
from wards import FEATURES, make_wards

from mlflow_b3 import CvcReport, InputError, cvc
from mlflow_b3.correlated.formulas import PairSums
from mlflow_b3.correlated.targets import Draws

pytestmark = pytest.mark.newest

WARDS = {"target": "outcome", "groups": ["ward", "week"]}
QUICK = {"draws": 60, "budget": 100, "progress": False, "folds": 5}


@pytest.fixture(scope="module")
def table():
    return make_wards(seed=2, wards=20)


@pytest.fixture(scope="module")
def report(table):
    return cvc(GaussianNB(), table, **WARDS, scoring="roc_auc", **QUICK)


def area(target, score):
    ones = target.sum()
    if not 0 < ones < len(target):
        return np.nan
    order = np.greater.outer(score, score) + np.equal.outer(score, score) / 2
    return target @ order @ (1.0 - target) / (ones * (len(target) - ones))


# --- The bias in the simulated world


@pytest.mark.parametrize("again", [False, True], ids=["new entities", "entities observed again"])
def test_the_bias_is_the_true_one_of_nearest_neighbours(again):
    """The truth is the AUC of the rows themselves, less that of targets with new effects."""
    rng = np.random.default_rng(5)
    fold_of = np.arange(110) // 22
    apart = np.abs(MEAN[:, None] - MEAN[None]) + 2.0 * (ENTITY[:, None] != ENTITY[None])
    splits = [(np.flatnonzero(fold_of != k), np.flatnonzero(fold_of == k)) for k in range(5)]
    near = [train[np.argsort(apart[np.ix_(held, train)])[:, :9]] for train, held in splits]
    made = Draws(model(), structure(entity_new=not again), 0)
    sums = PairSums(made, [held for _, held in splits], [1], np.full((1, 5), 0.2))
    for number in range(500):
        k = number % 5
        sums.add(k, made.draw(number).target[near[k]].mean(axis=1)[:, None], number)
    truth = []
    for _ in range(500):
        entity, day = (
            sd * rng.normal(size=(2, codes.max() + 1))[:, codes]
            for sd, codes in zip(SD, (ENTITY, DAY), strict=True)
        )
        if again:
            entity[1] = entity[0]
        own, other = (rng.random((2, 110)) < expit(MEAN + entity + day)).astype(float)
        scores = [own[rows].mean(axis=1) for rows in near]
        truth.append(
            np.mean(
                [
                    area(own[held], score) - area(other[held], score)
                    for (_, held), score in zip(splits, scores, strict=True)
                ]
            )
        )
    assert np.isfinite(truth).all()
    error = np.hypot(np.std(truth) / np.sqrt(len(truth)), sums.bias().error)
    assert sums.bias().value == pytest.approx(np.mean(truth), abs=3.5 * error)
    assert again or sums.bias().value > 4 * error  # so the comparison can fail


def test_a_ranking_that_ignores_its_rows_has_no_bias():
    made = Draws(model(), structure(), 0)
    folds = [np.flatnonzero(np.arange(110) % 5 == k) for k in range(5)]
    sums = PairSums(made, folds, [1], np.full((1, 5), 0.2))
    for number in range(20):
        sums.add(number % 5, MEAN[folds[number % 5]][:, None], number)
    assert sums.bias().value == pytest.approx(0, abs=1e-12)


def test_more_targets_follow_the_effects_of_their_sample():
    made, rows = Draws(model(sd=(2.0, 0.5)), structure(day_new=False), 0), np.arange(110)
    drawn = made.draw(3)
    given, deployed = made.more_targets(3, 400, rows)
    assert np.abs(given.mean(axis=0) - drawn.expected).max() < 0.13
    assert np.abs(deployed.mean(axis=0) - drawn.deployed).max() < 0.13
    rest = deployed - drawn.deployed  # rows of one entity share its new effect
    assert np.mean(rest[:, 0] * rest[:, 10]) > 0.03
    assert abs(np.mean(rest[:, 0] * rest[:, 1])) < 0.03


# --- From the user's side


def test_all_numbers_are_those_of_an_auc(report):
    assert report.greater_is_better
    assert 0.5 < report.cv < 1
    assert report.bias < 0
    assert report.cvc == pytest.approx(report.cv + report.bias)
    assert report.bias_interval[0] < report.bias < report.bias_interval[1]
    assert report.interval[0] < report.cvc < report.interval[1] <= 1
    assert report.sensitivity[0] == pytest.approx(report.cv)
    assert report.sensitivity[-1] < report.cvc


def test_the_score_is_the_mean_over_folds(table, report):
    X, y = table[FEATURES], table["outcome"] == "ill"
    found, weights = [], []
    for training, held in KFold(5, shuffle=True, random_state=0).split(X):
        fitted = GaussianNB().fit(X.iloc[training], y.iloc[training])
        found.append(roc_auc_score(y.iloc[held], fitted.predict_proba(X.iloc[held])[:, 1]))
        weights.append((y.iloc[held].sum() / y.sum() + (~y.iloc[held]).sum() / (~y).sum()) / 2)
    assert report.cv == pytest.approx(np.average(found, weights=weights))
    assert report.cv == pytest.approx(np.mean(found), abs=0.01)


def test_its_interval_is_wider_than_that_of_independent_rows(table, report):
    y = table["outcome"] == "ill"
    least = 1.96 * np.sqrt((1 / y.sum() + 1 / (~y).sum()) / 12)  # of a random ranking
    assert report.cv_interval[1] - report.cv > 0.7 * least


def test_the_report_says_that_more_is_better(report):
    text = str(report)
    assert "(AUC); for new groups of" in text
    assert "larger is better" in report._repr_html_()
    again = CvcReport.from_dict(json.loads(report.to_json()))
    assert again == report
    assert report.as_losses.cvc == pytest.approx(1 - report.cvc)
    assert report.as_losses.as_shown == report


def test_a_constant_guess_has_one_half(table):
    guess = cvc(DummyClassifier(), table, **WARDS, scoring="roc_auc", **QUICK)
    assert (guess.cv, guess.bias) == (pytest.approx(0.5), 0)


def test_scorers_and_decision_values_are_accepted(table):
    found = cvc(LinearSVC(), table, **WARDS, scoring=get_scorer("roc_auc"), **QUICK)
    assert np.isfinite(found.cvc)
    assert found.loss == "roc_auc"


def test_the_accuracy_is_the_error_rate_turned_round(table):
    options = {**WARDS, "progress": False}
    found = cvc(LogisticRegression(), table, **options, scoring="accuracy")
    known = cvc(LogisticRegression(), table, **options, loss="zero_one")
    assert found.cvc == pytest.approx(1 - known.cvc)
    assert found.bias == pytest.approx(-known.bias)
    assert found.interval[0] == pytest.approx(1 - known.interval[1])


def test_negated_losses_are_losses(table):
    options = {**WARDS, "progress": False}
    found = cvc(LogisticRegression(), table, **options, scoring="neg_log_loss")
    assert found == cvc(LogisticRegression(), table, **options, loss="log")


def test_three_classes_have_an_area_for_each_against_the_others(table):
    three = with_three_classes(table)
    found = cvc(GaussianNB(), three, **WARDS, scoring="roc_auc_ovr", **QUICK)
    assert found.cvc == pytest.approx(found.cv + found.bias)
    assert found.bias < 0
    assert found.classes == 3


def test_a_fold_of_one_class_has_no_area(table):
    options = {**QUICK, "folds": 40, "budget": 300}
    with pytest.raises(InputError, match=r"rows of one class only, so it has no AUC\. Use fewer"):
        cvc(GaussianNB(), table.iloc[:200], **WARDS, scoring="roc_auc", **options)


def test_groups_of_one_class_leave_grouped_cross_validation_out(table):
    ill = table.assign(
        outcome=np.where(table["ward"].isin(["w0", "w1", "w2"]), "ill", table["outcome"])
    )
    options = {**QUICK, "budget": 300}
    by_ward = cvc(
        GaussianNB(), ill, target="outcome", groups=["ward"], scoring="roc_auc", **options
    )
    assert by_ward.cv > 0.5
    assert by_ward.grouped is None or 0 < by_ward.grouped < 1
    assert "whole" not in str(by_ward) or by_ward.grouped is not None


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"scoring": "f1"}, "scoring='f1' has no correction. Use 'roc_auc'"),
        ({"scoring": "average_precision"}, "scoring='average_precision' has no correction"),
        ({"scoring": "roc_auc", "loss": "log"}, "both say how the model is scored"),
        ({"scoring": "roc_auc", "engine": "fast"}, "engine='fast' has no formula for scoring='roc"),
        ({"scoring": make_scorer(fbeta_score, beta=2)}, "has no correction"),
    ],
)
def test_what_has_no_correction_is_refused(table, options, told):
    with pytest.raises(InputError, match=told):
        cvc(LogisticRegression(), table, **WARDS, **options)


def test_a_rare_class_is_refused(table):
    rare = table.assign(outcome=np.where(table["ward"].isin(["w0", "w1"]), "ill", "healthy"))
    with pytest.raises(InputError, match="would rest on too few clusters"):
        cvc(GaussianNB(), rare, **WARDS, scoring="roc_auc", **QUICK)
