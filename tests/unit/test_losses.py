"""Losses per row, against numbers done by hand and against scikit-learn's metrics."""

import functools
import pickle

import numpy as np
import pandas as pd
import pytest
from sklearn import metrics

from mlflow_b3.data.losses import (
    CLASSIFICATION,
    REGRESSION,
    check_target,
    constant_loss,
    infer_task,
    loss_ceiling,
    resolve_loss,
)
from mlflow_b3.errors import InputError, ModelError
from mlflow_b3.results import loss_words


class Oracle:
    """A predictor that returns what it was given, whatever it is asked for."""

    def __init__(self, prediction, classes=None):
        self.prediction = np.asarray(prediction)
        self.classes = None if classes is None else np.asarray(classes)

    def predict(self, kind, X):
        del kind, X
        return self.prediction


def losses(name, target, prediction, classes=None):
    loss = {**CLASSIFICATION, **REGRESSION}[name]
    return loss.evaluate(Oracle(prediction, classes), None, np.asarray(target))


def random_problem(labels, seed=0, rows=50):
    """Return targets, probabilities and decision values for the given sorted labels."""
    rng = np.random.default_rng(seed)
    target = np.array([*labels, *rng.choice(labels, rows - len(labels))])
    scores = rng.normal(size=(rows, len(labels)))
    probability = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    return target, probability, scores


LABELS = pytest.mark.parametrize(
    "labels",
    [[0, 1], [-1, 1], [False, True], ["no", "yes"], [0, 1, 2], ["a", "b", "c", "d"]],
    ids=str,
)


# ---------------------------------------------------------------- by hand


@pytest.mark.parametrize(
    ("name", "target", "prediction", "classes", "expected"),
    [
        ("zero_one", [0, 1, 1], [0, 0, 1], [0, 1], [0, 1, 0]),
        ("zero_one", ["a", "b"], ["b", "b"], ["a", "b"], [1, 0]),
        ("log", [0, 1], [[0.25, 0.75], [0.5, 0.5]], [0, 1], [np.log(4), np.log(2)]),
        ("brier", [0, 1], [[0.25, 0.75], [0.5, 0.5]], [0, 1], [0.5625, 0.25]),
        ("brier", ["a"], [[0.0, 1.0, 0.0]], ["a", "b", "c"], [1.0]),
        ("brier", ["a"], [[0.5, 0.25, 0.25]], ["a", "b", "c"], [0.1875]),
        ("hinge", [0, 0, 1, 1], [-2.0, 0.5, 0.5, -1.0], [0, 1], [0, 1.5, 0.5, 2]),
        ("hinge", ["b"], [[1.0, 0.5, -1.0]], ["a", "b", "c"], [1.5]),
        ("squared", [1.0, 2.0], [3.0, 2.5], None, [4.0, 0.25]),
        ("absolute", [1.0, 2.0], [3.0, 2.5], None, [2.0, 0.5]),
        ("poisson", [0.0, 2.0], [1.5, 2.0], None, [3.0, 0.0]),
    ],
)
def test_losses_by_hand(name, target, prediction, classes, expected):
    np.testing.assert_allclose(losses(name, target, prediction, classes), expected, atol=1e-15)


def test_zero_probability_costs_the_bound_of_the_log_loss():
    (value,) = losses("log", [1], [[1.0, 0.0]], [0, 1])
    assert value == CLASSIFICATION["log"].bound == pytest.approx(-np.log(1e-15))


# ---------------------------------------------------------------- against scikit-learn


@LABELS
def test_mean_zero_one_loss_is_that_of_scikit_learn(labels):
    target, probability, _ = random_problem(labels)
    guess = np.asarray(labels)[probability.argmax(axis=1)]
    mean = losses("zero_one", target, guess, labels).mean()
    assert mean == pytest.approx(metrics.zero_one_loss(target, guess))


@LABELS
def test_mean_log_loss_is_that_of_scikit_learn(labels):
    target, probability, _ = random_problem(labels)
    mean = losses("log", target, probability, labels).mean()
    assert mean == pytest.approx(metrics.log_loss(target, probability, labels=labels))


@LABELS
def test_mean_brier_loss_is_half_the_squared_distance_to_the_class(labels):
    target, probability, _ = random_problem(labels)
    truth = np.array([[label == value for label in labels] for value in target], dtype=float)
    mean = losses("brier", target, probability, labels).mean()
    assert mean == pytest.approx(((probability - truth) ** 2).sum(axis=1).mean() / 2)
    if len(labels) == 2:
        usual = metrics.brier_score_loss(target, probability[:, 1], pos_label=labels[1])
        assert mean == pytest.approx(usual)


@LABELS
def test_mean_hinge_loss_is_that_of_scikit_learn(labels):
    target, _, scores = random_problem(labels)
    decision = scores[:, 0] if len(labels) == 2 else scores
    signs = np.where(target == labels[-1], 1, -1)  # scikit-learn's binary case wants -1 and 1
    expected = (
        metrics.hinge_loss(signs, decision)
        if len(labels) == 2
        else metrics.hinge_loss(target, decision, labels=labels)
    )
    assert losses("hinge", target, decision, labels).mean() == pytest.approx(expected)


@pytest.mark.parametrize(
    ("name", "metric"),
    [("squared", metrics.mean_squared_error), ("absolute", metrics.mean_absolute_error)],
)
def test_mean_regression_losses_are_those_of_scikit_learn(name, metric):
    rng = np.random.default_rng(0)
    target, value = rng.normal(size=(2, 30))
    assert losses(name, target, value).mean() == pytest.approx(metric(target, value))


def test_targets_of_objects_and_classes_of_strings_compare():
    target = np.array(["no", "yes"], dtype=object)
    np.testing.assert_allclose(
        losses("brier", target, [[1.0, 0.0], [1.0, 0.0]], np.array(["no", "yes"])), [0, 1]
    )


# ---------------------------------------------------------------- classes the model never saw


def test_unseen_class_is_a_plain_error_for_zero_one():
    assert losses("zero_one", ["c"], ["a"], ["a", "b"]) == [1.0]


def test_unseen_class_has_probability_zero():
    assert losses("log", ["c"], [[0.5, 0.5]], ["a", "b"]) == CLASSIFICATION["log"].bound


def test_unseen_class_makes_all_the_mass_of_the_brier_loss_wrong():
    np.testing.assert_allclose(
        losses("brier", ["c", "c"], [[1.0, 0.0], [0.5, 0.5]], ["a", "b"]), [1.0, 0.75]
    )


@pytest.mark.parametrize("decision", [-2.0, 0.0, 2.0])
def test_unseen_class_is_never_free_under_hinge(decision):
    """However sure a binary model is of either class, neither of them is right."""
    assert losses("hinge", ["c"], [decision], ["a", "b"]) >= 1


def test_model_of_one_class_is_right_about_that_class_only():
    np.testing.assert_allclose(losses("brier", ["a", "b"], np.ones((2, 1)), ["a"]), [0.0, 1.0])
    np.testing.assert_allclose(
        losses("log", ["a", "b"], np.ones((2, 1)), ["a"]), [0.0, CLASSIFICATION["log"].bound]
    )


# ---------------------------------------------------------------- bounds


@pytest.mark.parametrize("name", ["zero_one", "log", "brier"])
@LABELS
def test_bounded_losses_keep_within_their_bound(name, labels):
    target, probability, _ = random_problem(labels)
    sure = np.eye(len(labels))[probability.argmin(axis=1)]
    prediction = np.asarray(labels)[sure.argmax(axis=1)] if name == "zero_one" else sure
    values = losses(name, target, prediction, labels)
    assert values.min() >= 0
    assert values.max() == pytest.approx(CLASSIFICATION[name].bound)


@pytest.mark.parametrize("name", ["hinge", "squared", "absolute"])
def test_unbounded_losses_have_no_bound(name):
    assert {**CLASSIFICATION, **REGRESSION}[name].bound is None


# ---------------------------------------------------------------- choosing a loss


@pytest.mark.parametrize(
    ("task", "name"), [("classification", "zero_one"), ("regression", "squared")]
)
def test_default_loss_of_a_task(task, name):
    assert resolve_loss(None, task).name == name


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("zero_one", "label"),
        ("log", "probability"),
        ("brier", "probability"),
        ("hinge", "decision"),
        ("squared", "value"),
        ("absolute", "value"),
    ],
)
def test_named_losses_know_the_prediction_they_need(name, kind):
    task = "classification" if name in CLASSIFICATION else "regression"
    assert resolve_loss(name, task).kind == kind


@pytest.mark.parametrize(
    ("loss", "task", "allowed"),
    [
        ("squared", "classification", ["zero_one", "log", "brier", "hinge"]),
        ("log", "regression", ["squared", "absolute", "poisson"]),
    ],
)
def test_loss_of_the_other_task_is_refused_with_those_that_fit(loss, task, allowed):
    with pytest.raises(InputError) as caught:
        resolve_loss(loss, task)
    assert str(caught.value) == (
        f"loss={loss!r} does not fit a {task} model; use one of {allowed}."
    )


def test_misspelt_loss_gets_a_suggestion():
    with pytest.raises(InputError, match=r"loss='zero-one' is not known.*mean 'zero_one'\?"):
        resolve_loss("zero-one", "classification")


@pytest.mark.parametrize("loss", [3, 0.5, ["log"], {"log": 1}], ids=str)
def test_loss_that_is_no_name_and_no_function_is_refused(loss):
    with pytest.raises(InputError, match=r"loss=.* is not known; use one of 'zero_one', 'log'"):
        resolve_loss(loss, "classification")


# ---------------------------------------------------------------- own losses


def costly_misses(target, label):
    return np.where(target > label, 5.0, 1.0) * (target != label)


@pytest.mark.parametrize(("task", "kind"), [("classification", "label"), ("regression", "value")])
def test_own_loss_is_given_labels_or_values_and_keeps_its_name(task, kind):
    loss = resolve_loss(costly_misses, task)
    assert (loss.name, loss.kind, loss.bound) == ("costly_misses", kind, None)
    target = np.array([0, 1, 1])
    assert loss.evaluate(Oracle([1, 0, 1]), None, target).tolist() == [1.0, 5.0, 0.0]


def test_own_loss_without_a_name_is_called_after_its_type():
    assert resolve_loss(functools.partial(costly_misses), "regression").name == "partial"


def test_own_loss_can_travel_to_workers():
    loss = pickle.loads(pickle.dumps(resolve_loss(costly_misses, "classification")))
    assert loss.evaluate(Oracle([0]), None, np.array([1])).tolist() == [5.0]


@pytest.mark.parametrize(
    ("result", "shape"),
    [(0.5, r"\(\)"), ([0.5], r"\(1,\)"), ([[0.1, 0.2, 0.3]], r"\(1, 3\)")],
    ids=["a mean", "one row", "a matrix"],
)
def test_own_loss_must_return_one_number_per_row(result, shape):
    loss = resolve_loss(lambda target, prediction: result, "regression")  # noqa: ARG005
    with pytest.raises(ModelError, match=f"'<lambda>' returned shape {shape} for 3 rows"):
        loss.evaluate(Oracle([1.0, 2.0, 3.0]), None, np.arange(3.0))


@pytest.mark.parametrize("bad", [np.inf, -np.inf])
def test_loss_that_is_not_finite_is_counted(bad):
    with pytest.raises(ModelError, match="loss 'squared' is not finite in 2 of 3 rows"):
        losses("squared", [0.0, 0.0, 0.0], [bad, 1.0, bad])


def test_probability_that_is_not_a_number_is_an_error():
    with pytest.raises(ModelError, match=r"the model predicted missing values \(NaN\):\n2 among 4"):
        losses("log", [0, 1], [[0.5, 0.5], [np.nan, np.nan]], [0, 1])


def test_a_column_of_predictions_counts_as_one_per_row():
    """Some regressors return one; numpy would stretch it to a square against the target."""
    assert losses("squared", [1.0, 2.0, 3.0], [[1.0], [2.0], [5.0]]) == pytest.approx([0, 0, 4])


@pytest.mark.parametrize(
    ("name", "prediction"),
    [
        ("zero_one", [0, 1]),
        ("log", [[0.5, 0.5]] * 2),
        ("log", [[0.2, 0.3, 0.5]] * 3),
        ("brier", [[0.2, 0.3, 0.5]] * 3),
        ("hinge", [[0.1, 0.2, 0.3]] * 3),
        ("squared", [1.0, 2.0]),
    ],
    ids=["labels", "rows", "log columns", "brier columns", "hinge columns", "values"],
)
def test_predictions_of_the_wrong_shape_are_a_model_error(name, prediction):
    with pytest.raises(ModelError, match=f"loss {name!r}"):
        losses(name, [0, 1, 1], prediction, [0, 1])


# ---------------------------------------------------------------- the best constant


def test_best_constant_label_is_the_most_frequent_one():
    target = np.array(["a", "b", "b", "c", "b"])
    assert constant_loss(CLASSIFICATION["zero_one"], target, "classification") == pytest.approx(0.4)


@pytest.mark.parametrize("name", ["log", "brier"])
def test_best_constant_probabilities_are_the_class_shares(name):
    target = np.array(["a", "b", "b", "c", "b"])
    best = constant_loss(CLASSIFICATION[name], target, "classification")
    shares = {
        "log": -(0.6 * np.log(0.6) + 2 * 0.2 * np.log(0.2)),
        "brier": (1 - 0.6**2 - 2 * 0.2**2) / 2,
    }
    assert best == pytest.approx(shares[name])


@pytest.mark.parametrize(("name", "expected"), [("squared", 13.1875), ("absolute", 2.25)])
def test_best_constant_value_is_the_mean_or_the_median(name, expected):
    target = np.array([0.0, 1.0, 1.0, 9.0])  # mean 2.75, median 1
    assert constant_loss(REGRESSION[name], target, "regression") == pytest.approx(expected)


def test_no_other_constant_beats_the_best():
    target = np.random.default_rng(0).exponential(size=101)
    for name, loss in REGRESSION.items():
        best = constant_loss(loss, target, "regression")
        for value in np.linspace(target.min(), target.max(), 50):
            assert losses(name, target, np.full(101, value)).mean() >= best - 1e-12


@pytest.mark.parametrize(
    ("loss", "task"),
    [("hinge", "classification"), (costly_misses, "classification"), (costly_misses, "regression")],
)
def test_best_constant_of_other_losses_is_not_known(loss, task):
    assert constant_loss(resolve_loss(loss, task), np.array([0, 1, 1]), task) is None


def test_the_ceiling_is_the_mean_loss_of_the_farther_end_of_the_range():
    """Ratings from 1 to 5: 1 and 5 can be missed by 4, 3 by 2."""
    ratings = np.array([1.0, 3.0, 3.0, 5.0])
    assert loss_ceiling(resolve_loss("squared", "regression"), ratings) == (16 + 4 + 4 + 16) / 4
    assert loss_ceiling(resolve_loss("absolute", "regression"), ratings) == (4 + 2 + 2 + 4) / 4


def test_other_losses_have_no_ceiling_by_the_target():
    ratings = np.array([1.0, 3.0, 5.0])
    own = resolve_loss(lambda target, value: np.abs(target - value), "regression")
    assert loss_ceiling(own, ratings) is None
    assert loss_ceiling(resolve_loss("log", "classification"), np.array([0, 1])) is None


# ---------------------------------------------------------------- counts and quantiles


def test_poisson_deviance_and_pinball_loss_are_scikit_learns():
    rng = np.random.default_rng(0)
    target, value = rng.poisson(2.0, 60).astype(float), rng.gamma(4.0, 0.5, 60)
    mean = losses("poisson", target, value).mean()
    assert mean == pytest.approx(metrics.mean_poisson_deviance(target, value))
    for level in (0.1, 0.5, 0.9):
        loss = resolve_loss(f"pinball_{level}", "regression")
        mean = loss.evaluate(Oracle(value), None, target).mean()
        assert mean == pytest.approx(metrics.mean_pinball_loss(target, value, alpha=level))
        best = constant_loss(loss, target, "regression")
        constants = [
            loss.per_row(target, np.full(60, v), None).mean() for v in np.linspace(0, 8, 81)
        ]
        assert best <= min(constants) + 1e-12


def test_names_of_pinball_losses_have_their_level_and_survive_workers():
    loss = pickle.loads(pickle.dumps(resolve_loss("pinball_0.90", "regression")))
    assert loss.name == "pinball_0.9"
    assert loss_words(loss.name) == "pinball loss at 0.9"
    assert infer_task("pinball_0.9", pd.Series([1, 2, 3])) == "regression"
    for name in ("pinball", "pinball_2", "pinball_x"):
        with pytest.raises(InputError, match="needs the level of the quantile, between 0 and 1"):
            resolve_loss(name, "regression")
    with pytest.raises(InputError, match="does not fit a classification model"):
        resolve_loss("pinball_0.9", "classification")


def test_poisson_refuses_negative_targets_and_predictions_that_are_not_positive():
    loss = REGRESSION["poisson"]
    for target, found in (([-1.0, 2.0], "the smallest is -1"), ([0.0, 0.0], "all are 0")):
        with pytest.raises(InputError, match=found):
            check_target(loss, np.array(target))
    check_target(loss, np.array([0.0, 3.0]))
    check_target(REGRESSION["squared"], np.array([-1.0]))
    with pytest.raises(ModelError, match="positive predictions; 1 of 2 are not"):
        losses("poisson", [0.0, 1.0], [0.0, 1.0])


def test_the_ceiling_of_a_pinball_loss_is_at_the_end_that_costs_more():
    """At 0.75, an end below costs 0.75 for each unit, one above 0.25."""
    ratings = np.array([1.0, 3.0, 5.0])
    found = loss_ceiling(resolve_loss("pinball_0.75", "regression"), ratings)
    assert found == pytest.approx((0.25 * 4 + 0.75 * 2 + 0.75 * 4) / 3)
    assert loss_ceiling(REGRESSION["poisson"], ratings) is None
