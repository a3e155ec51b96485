"""Route `clone` on composed models: searches, calibrated and stacked models, weights, frozen parts."""

import numpy as np
import pandas as pd
import pytest
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import TransformedTargetRegressor
from sklearn.ensemble import (
    HistGradientBoostingClassifier,
    RandomForestClassifier,
    StackingClassifier,
    StackingRegressor,
    VotingClassifier,
)
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import GridSearchCV, RandomizedSearchCV, TunedThresholdClassifierCV
from sklearn.neighbors import KNeighborsClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor

import mlflow_b3 as b3
from mlflow_b3.auditing.subject import load_subject
from mlflow_b3.errors import InputError
from mlflow_b3.refit import load_model
from mlflow_b3.refit.learner import Rows
from mlflow_b3.refit.sklearn import CloneLearner

N = 90
RNG = np.random.default_rng(1)
X = pd.DataFrame(RNG.normal(size=(N, 3)), columns=["age", "bmi", "glucose"])
SCORE = X["age"].to_numpy() + 0.7 * RNG.normal(size=N)
WORDS = np.where(SCORE > 0, "sick", "well")
THREE = np.digitize(SCORE, [-0.5, 0.5])
WEIGHT = RNG.uniform(0.1, 3, size=N)
FRAME = X.assign(y=WORDS, cluster=np.arange(N) // 6, weight=WEIGHT)


def rows(target, weight=None):
    """Return all rows."""
    return Rows(X=X, target=np.asarray(target), ids=np.arange(N), weight=weight)


class Counting(KNeighborsClassifier):
    """Counts how often any copy of it is trained."""

    fits = 0

    def fit(self, X, y):
        """Train, and count."""
        Counting.fits += 1
        return super().fit(X, y)


SEARCH = GridSearchCV(KNeighborsClassifier(), {"n_neighbors": [1, 5, 9]}, cv=3)
FOREST = RandomForestClassifier(5, random_state=0)


@pytest.mark.parametrize(
    "model",
    [
        SEARCH,
        RandomizedSearchCV(
            FOREST, {"max_depth": [1, 2, 3], "min_samples_leaf": [1, 4]}, n_iter=3, random_state=0
        ),
        make_pipeline(StandardScaler(), SEARCH),
        CalibratedClassifierCV(FOREST, cv=3),
        CalibratedClassifierCV(make_pipeline(StandardScaler(), KNeighborsClassifier()), cv=3),
        StackingClassifier([("knn", KNeighborsClassifier()), ("forest", FOREST)], cv=3),
        VotingClassifier([("search", SEARCH), ("forest", FOREST)], voting="soft"),
        TunedThresholdClassifierCV(LogisticRegression(), random_state=0),
        HistGradientBoostingClassifier(max_iter=5, random_state=0),
    ],
    ids=[
        "grid search",
        "randomised search",
        "search in a pipeline",
        "calibrated",
        "calibrated pipeline",
        "stacked",
        "voting with a search",
        "tuned threshold",
        "boosted",
    ],
)
def test_composed_model_is_refitted_bit_for_bit(model):
    original = model.fit(X, WORDS)
    refitted = CloneLearner(original).fit(rows(WORDS))
    np.testing.assert_array_equal(refitted.predict("label", X), original.predict(X))
    np.testing.assert_array_equal(refitted.predict("probability", X), original.predict_proba(X))


@pytest.mark.parametrize(
    "model",
    [
        TransformedTargetRegressor(
            GridSearchCV(Ridge(), {"alpha": [0.1, 10]}), func=np.sinh, inverse_func=np.arcsinh
        ),
        StackingRegressor(
            [("tree", DecisionTreeRegressor(random_state=0))], final_estimator=Ridge()
        ),
    ],
    ids=["transformed target", "stacked regression"],
)
def test_composed_regressor_is_refitted_bit_for_bit(model):
    original = model.fit(X, SCORE)
    refitted = CloneLearner(original).fit(rows(SCORE))
    np.testing.assert_array_equal(refitted.predict("value", X), original.predict(X))


def test_search_is_not_repeated_but_its_choice_is_refitted():
    search = GridSearchCV(Counting(), {"n_neighbors": [1, 5, 9]}, cv=3).fit(X, WORDS)
    learner = CloneLearner(search)
    Counting.fits = 0
    learner.fit(rows(WORDS))
    assert Counting.fits == 1
    assert learner.notes == (
        "refits use the parameters that its search chose; the search is not repeated",
    )


def test_search_in_a_stacked_model_is_repeated_only_when_asked():
    """Its inner folds have searched on their own, so only repeating gives the original again."""
    model = StackingClassifier(
        [("search", GridSearchCV(Counting(), SEARCH.param_grid, cv=3))], cv=2
    )
    original = model.fit(X, WORDS)
    Counting.fits = 0
    CloneLearner(original).fit(rows(WORDS))
    assert Counting.fits == 1 + 2
    again = CloneLearner(original, search_again=True).fit(rows(WORDS))
    np.testing.assert_array_equal(again.predict("probability", X), original.predict_proba(X))


def test_search_is_repeated_when_asked():
    search = GridSearchCV(Counting(), {"n_neighbors": [1, 5, 9]}, cv=3).fit(X, WORDS)
    learner = load_model(search, options={"search_again": True}).learner
    Counting.fits = 0
    learner.fit(rows(WORDS))
    assert Counting.fits == 3 * 3 + 1
    assert learner.notes == ("its search over parameters is repeated in every refit",)


def test_search_that_was_never_made_is_made_in_every_refit():
    learner = CloneLearner(GridSearchCV(Counting(), {"n_neighbors": [1, 5]}, cv=2))
    Counting.fits = 0
    learner.fit(rows(WORDS))
    assert Counting.fits == 2 * 2 + 1
    assert "repeated" in learner.notes[0]


def test_search_within_a_calibrated_model_chooses_anew_as_it_did():
    model = CalibratedClassifierCV(SEARCH, cv=2).fit(X, WORDS)
    learner = CloneLearner(model)
    assert "repeated in every refit" in learner.notes[0]
    np.testing.assert_array_equal(
        learner.fit(rows(WORDS)).predict("probability", X), model.predict_proba(X)
    )


@pytest.mark.parametrize("options", [{"search": True}, {"search_again": "yes"}])
def test_unknown_options_are_errors(options):
    with pytest.raises(InputError, match="refit_options"):
        load_model(LogisticRegression(), options=options)


def test_route_of_another_flavour_is_an_error():
    with pytest.raises(
        InputError, match="refit='fresh' does not fit this model; use one of 'clone'"
    ):
        load_model(LogisticRegression(), refit="fresh")


def test_frozen_part_makes_the_result_a_lower_bound():
    base = RandomForestClassifier(5, random_state=0).fit(X, WORDS)
    learner = CloneLearner(CalibratedClassifierCV(FrozenEstimator(base)).fit(X, WORDS))
    assert learner.strength == "lower-bound"
    assert "frozen" in learner.notes[0]


# ---------------------------------------------------------------- sample weights


@pytest.mark.parametrize(
    ("model", "argument"),
    [
        (LogisticRegression(), "sample_weight"),
        (
            make_pipeline(StandardScaler(), LogisticRegression()),
            "logisticregression__sample_weight",
        ),
        (GridSearchCV(LogisticRegression(), {"C": [0.1, 1]}), "sample_weight"),
        (CalibratedClassifierCV(LogisticRegression()), "sample_weight"),
    ],
    ids=["plain", "pipeline", "search", "calibrated"],
)
def test_weights_reach_the_training(model, argument):
    original = model.fit(X, WORDS, **{argument: WEIGHT})
    learner = CloneLearner(original)
    assert learner.weighted
    weighted = learner.fit(rows(WORDS, WEIGHT)).predict("probability", X)
    np.testing.assert_array_equal(weighted, original.predict_proba(X))
    assert not np.array_equal(weighted, learner.fit(rows(WORDS)).predict("probability", X))


@pytest.mark.parametrize("model", [KNeighborsClassifier(), make_pipeline(KNeighborsClassifier())])
def test_weights_for_a_model_that_takes_none_are_an_error(model):
    with pytest.raises(InputError, match="does not take weights in training"):
        b3.audit(model, FRAME, target="y", cluster="cluster", sample_weight="weight")


def test_audit_trains_with_the_weights_and_does_not_use_them_as_a_feature():
    model = LogisticRegression().fit(X, WORDS, sample_weight=WEIGHT)
    arguments = {"target": "y", "cluster": "cluster", "folds": 3, "budget": 72}
    weighted = b3.audit(model, FRAME, sample_weight="weight", **arguments)
    assert weighted.settings.features == ("age", "bmi", "glucose")
    assert weighted.settings.sample_weight == "weight"
    assert weighted.settings.refit_agreement == 1.0
    plain = b3.audit(model, FRAME, **arguments)
    assert plain.settings.refit_agreement < 1.0
    assert plain.curve.loss != weighted.curve.loss


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        (np.full(N, np.nan), "must hold finite numbers from 0"),
        (np.full(N, -1.0), "must hold finite numbers from 0"),
        (np.zeros(N), "not all of them 0"),
        (["a"] * N, "must hold finite numbers from 0"),
    ],
)
def test_unusable_weights_are_an_error(values, problem):
    with pytest.raises(InputError, match=problem):
        b3.audit(
            LogisticRegression(),
            FRAME.assign(weight=values),
            target="y",
            cluster="cluster",
            sample_weight="weight",
        )


def test_misspelt_weight_column_is_named():
    with pytest.raises(InputError, match=r"sample_weight='wieght' is not a column. Did you mean"):
        b3.audit(LogisticRegression(), FRAME, target="y", cluster="cluster", sample_weight="wieght")


# ---------------------------------------------------------------- agreement with the logged model


def test_refit_with_other_parameters_than_the_logged_model_is_found_out():
    """A forest whose depth was changed after training is not the model that was trained."""
    model = DecisionTreeClassifier(random_state=0).fit(X, THREE)
    model.set_params(max_depth=1)
    report = b3.audit(
        model, FRAME.assign(y=THREE), target="y", cluster="cluster", budget=72, folds=3
    )
    assert report.settings.refit_agreement < 0.9
    assert "B322" in {finding.code for finding in report.findings}


def test_agreement_of_a_regressor_is_the_variance_that_it_explains():
    model = Ridge().fit(X, SCORE)
    report = b3.audit(
        model, FRAME.assign(y=SCORE), target="y", cluster="cluster", budget=72, folds=3
    )
    assert report.settings.refit_agreement == 1.0
    assert "B322" not in {finding.code for finding in report.findings}


def test_model_trained_on_an_array_says_that_the_order_of_columns_decided():
    model = LogisticRegression().fit(X.to_numpy(), WORDS)
    frame = FRAME.drop(columns="weight")
    report = b3.audit(model, frame, target="y", cluster="cluster", budget=72, folds=3)
    assert "taken in the order of the table" in " ".join(report.settings.refit_notes)
    assert report.settings.refit_agreement == 1.0


def test_model_that_was_never_trained_has_nothing_to_agree_with():
    report = b3.audit(
        LogisticRegression(), FRAME, target="y", cluster="cluster", budget=72, folds=3
    )
    assert report.settings.refit_agreement is None


def test_a_model_that_was_never_logged_is_not_called_that():
    model = LogisticRegression().fit(X, WORDS)
    report = b3.audit(model, FRAME, target="y", cluster="cluster", budget=72, folds=3)
    text = " ".join(report.to_text().split())
    assert "it agrees with the fitted model that was given in 100% of its predictions" in text
    assert "logged model" not in text


def test_classes_that_were_matched_by_agreement_may_be_swapped_and_the_report_says_so():
    """A model of 0 and 1 agrees with "well" and "sick" in either order."""
    coded = LogisticRegression().fit(X, (WORDS == "well").astype(int))
    report = b3.audit(coded, FRAME, target="y", cluster="cluster", budget=72, folds=3)
    text = " ".join(report.to_text().split())
    assert "0 as 'sick', 1 as 'well': check that the labels are not swapped" in text
    assert "in 100% of its predictions, by that reading of its classes" in text


# ---------------------------------------------------------------- does the seed matter?


@pytest.mark.parametrize(
    ("model", "matters"),
    [
        (LogisticRegression(random_state=3), False),
        (make_pipeline(StandardScaler(), LogisticRegression()), False),
        (HistGradientBoostingClassifier(max_iter=5), False),
        (RandomForestClassifier(5), True),
        (DecisionTreeClassifier(max_features=1), True),
    ],
    ids=["logistic", "pipeline", "boosting", "forest", "tree"],
)
def test_a_random_state_is_randomness_only_where_it_changes_predictions(model, matters):
    subject = load_subject(model, FRAME, target="y", cluster="cluster")
    assert subject.learner.stochastic == matters


def test_a_deterministic_learner_with_a_seed_makes_no_copies_of_refits():
    fitted = []

    class Counted(LogisticRegression):
        def fit(self, X, y):
            fitted.append(len(X))
            return super().fit(X, y)

    options = {"target": "y", "cluster": "cluster", "folds": 3, "repeats": 1, "cluster_error": 0.1}
    options["method"] = "power"
    report = b3.audit(Counted(), FRAME, budget=60, **options)
    assert report.settings.fits <= 60, "69 would be needed by a learner that draws at random"
    tried = 2
    assert len(fitted) == report.settings.fits + tried
    with pytest.raises(InputError, match="need at least 69 for a learner that draws at random"):
        b3.audit(RandomForestClassifier(5), FRAME, budget=60, **options)


def test_network_of_scikit_learn_is_refitted_with_the_logged_seed():
    model = MLPClassifier((4,), max_iter=30, random_state=3)
    with pytest.warns(UserWarning, match="Maximum iterations"):
        original = model.fit(X, THREE)
    with pytest.warns(UserWarning, match="Maximum iterations"):
        refitted = CloneLearner(original).fit(rows(THREE))
    np.testing.assert_array_equal(refitted.predict("probability", X), original.predict_proba(X))
