"""Log-odds learnt from labelled pairs, against densities that are known."""

import numpy as np
import pandas as pd
import pytest
from scipy.special import logit
from sklearn.naive_bayes import GaussianNB
from sklearn.svm import LinearSVC

from mlflow_b3 import InputError
from mlflow_b3.linkage import components, correlation_cluster, learn_log_odds
from mlflow_b3.linkage.matching import MatchModel, MatchModelSummary, expected_disagreement

PRIOR = 0.001


def case_control(n1=4_000, n0=4_000, seed=0):
    """Return features N(±1, 1) of matches and other pairs: log P1/P0 = 2·(x1 + x2)."""
    rng = np.random.default_rng(seed)
    labels = np.r_[np.ones(n1, dtype=bool), np.zeros(n0, dtype=bool)]
    x = rng.normal(np.where(labels, 1.0, -1.0)[:, None], 1.0, (n1 + n0, 2))
    return pd.DataFrame(x, columns=["name", "birth"]), labels


def truth(x):
    return 2 * np.asarray(x).sum(axis=1) + logit(PRIOR)


@pytest.mark.parametrize(("n1", "n0"), [(4_000, 4_000), (1_000, 8_000)])
def test_log_odds_are_those_of_the_prior_whatever_share_was_labelled(n1, n0):
    """Standard errors of slope and intercept are about .1 for 8,000 pairs with log-odds of sd 3-5."""
    features, labels = case_control(n1, n0)
    model = learn_log_odds(features, labels, prior=PRIOR)
    fresh, _ = case_control(500, 500, seed=1)
    error = model.log_odds(fresh) - truth(fresh)
    assert abs(error.mean()) < 0.3
    assert np.sqrt((error**2).mean()) < 0.5
    assert model.shift == pytest.approx(logit(PRIOR) - logit(n1 / (n1 + n0)))


def test_a_calibrated_model_has_slope_one_and_beats_the_base_line():
    features, labels = case_control()
    summary = learn_log_odds(features, labels, prior=PRIOR).summary
    assert summary.calibration_slope == pytest.approx(1, abs=0.1)  # standard error .03
    assert summary.calibration_intercept == pytest.approx(0, abs=0.2)
    assert summary.log_loss < 0.3 * summary.baseline_log_loss
    assert summary.baseline_log_loss == pytest.approx(np.log(2))
    assert (summary.n_matches, summary.n_nonmatches, summary.folds) == (4_000, 4_000, 5)
    assert MatchModelSummary.from_dict(summary.to_dict()) == summary


def test_too_much_freedom_shows_in_the_calibration_slope():
    """Boosting on 200 pairs of pure noise: log-odds far from 0 that mean nothing."""
    rng = np.random.default_rng(0)
    x, labels = rng.normal(size=(200, 5)), np.arange(200) % 2 == 0
    summary = learn_log_odds(x, labels, prior=0.5, model="boosting").summary
    assert summary.calibration_slope < 0.5
    assert summary.log_loss > summary.baseline_log_loss


def test_boosting_takes_missing_values_and_logistic_regression_refuses_them():
    features, labels = case_control(500, 500)
    features.iloc[::7, 0] = np.nan
    model = learn_log_odds(features, labels, prior=PRIOR, model="boosting")
    assert np.isfinite(model.log_odds(features)).all()
    as_gaps = features.astype("Float64").mask(features.isna(), pd.NA)
    assert (model.log_odds(as_gaps) == model.log_odds(features)).all()
    for table in (features, as_gaps):
        with pytest.raises(InputError, match=r"missing in 143 pairs.*boosting"):
            learn_log_odds(table, labels, prior=PRIOR)


def test_an_estimator_of_ones_own():
    features, labels = case_control()
    model = learn_log_odds(features.to_numpy(), labels, prior=PRIOR, model=GaussianNB())
    error = model.log_odds(features.to_numpy()) - truth(features)
    assert np.median(np.abs(error)) < 0.3
    assert model.summary.model == "GaussianNB"
    with pytest.raises(InputError, match="predict_proba"):
        learn_log_odds(features, labels, prior=PRIOR, model=LinearSVC())
    with pytest.raises(InputError, match="must have fit"):
        learn_log_odds(features, labels, prior=PRIOR, model=GaussianNB)


def test_columns_are_found_by_name():
    features, labels = case_control(200, 200)
    model = learn_log_odds(features, labels, prior=PRIOR)
    turned = features[["birth", "name"]].assign(other=1)
    assert (model.log_odds(turned) == model.log_odds(features)).all()
    with pytest.raises(InputError, match=r"lacks the columns \['birth'\]"):
        model.log_odds(features[["name"]])
    with pytest.raises(InputError, match="has 3 columns"):
        model.log_odds(np.ones((2, 3)))


def test_probabilities_are_those_of_the_log_odds():
    features, labels = case_control(200, 200)
    model = learn_log_odds(features, labels, prior=PRIOR)
    assert isinstance(model, MatchModel)
    assert logit(model.probability(features)) == pytest.approx(model.log_odds(features))


def test_separated_labels_leave_the_scale_open():
    x = np.r_[np.linspace(1, 2, 20), np.linspace(-2, -1, 20)][:, None]
    model = learn_log_odds(x, x[:, 0] > 0, prior=PRIOR)
    assert model.summary.calibration_slope is None
    assert np.isfinite(model.log_odds(x)).all()


@pytest.mark.parametrize("turned", [False, True])
def test_labels_that_are_separated_but_for_ties_leave_the_scale_open_too(turned):
    """Of three scores the middle one is a match half of the time; its chance is 1/2 in any fold."""
    x = np.repeat([0.0, 1.0, 1.0, 2.0], 50)
    labels = np.repeat([False, False, True, True], 50) != turned

    class Thirds(GaussianNB):
        def predict_proba(self, X):
            return np.column_stack([1 - X[:, 0] / 2, X[:, 0] / 2])

    summary = learn_log_odds(x[:, None], labels, prior=PRIOR, model=Thirds()).summary
    assert summary.calibration_slope is None
    assert summary.calibration_intercept is None


def test_learnt_log_odds_go_straight_into_a_clustering():
    """A partition has fewer errors than the pairs that it is made of, and than their components.

    Entities of eight rows are found without the prior, since their pairs confirm each other.
    """
    features, labels = case_control()
    rng = np.random.default_rng(2)
    true = np.repeat(np.arange(20), 8)
    i, j = np.triu_indices(len(true), 1)
    same = true[i] == true[j]
    model = learn_log_odds(features, labels, prior=same.mean())
    w = model.log_odds(rng.normal(np.where(same, 1.0, -1.0)[:, None], 1.0, (len(i), 2)))

    def wrong(clusters):
        return ((clusters[i] == clusters[j]) != same).mean()

    found = correlation_cluster(len(true), i, j, w)
    without_prior = correlation_cluster(len(true), i, j, w - logit(same.mean()))
    pairs_wrong = ((w > 0) != same).mean()
    assert wrong(np.array(without_prior.labels)) == 0
    assert wrong(np.array(found.labels)) < pairs_wrong
    assert wrong(components(len(true), i[w > 0], j[w > 0])) > pairs_wrong


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"prior": 0}, "prior=0"),
        ({"prior": float("nan")}, "prior=nan"),
        ({"labels": [True, False]}, "there are 4 pairs"),
        ({"labels": [1, 0, 2, 0]}, "True or False"),
        ({"labels": [1, 0, None, 0]}, "True or False"),
        ({"labels": [1, 1, 1, 0]}, "3 matches and 1 other pairs"),
        ({"features": [["a"]] * 4}, "must be numbers"),
        ({"features": [1.0, 2.0]}, "pairs by features"),
        ({"features": [[np.inf]] * 4}, "infinite"),
        ({"model": "logit"}, "Did you mean"),
        ({"seed": 1.5}, "seed=1.5"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(change, text):
    usable = {"features": np.eye(4), "labels": [1, 0, 1, 0], "prior": 0.1}
    with pytest.raises(InputError, match=text):
        learn_log_odds(**{**usable, **change})


# --- the expected disagreement --------------------------------------------------------------------


def test_expected_disagreement_is_what_the_true_clusters_cost():
    """15 rows, Bernoulli(.8) within and Bernoulli(.2) between: the optimum is cheaper."""
    rng = np.random.default_rng(0)
    true = np.repeat(np.arange(3), 5)
    i, j = np.triu_indices(15, 1)
    same = true[i] == true[j]
    step = np.log(4)
    expected = expected_disagreement(
        np.repeat([step, -step], [8, 2]),
        np.repeat([step, -step], [2, 8]),
        same.sum(),
        (~same).sum(),
    )
    assert expected == pytest.approx(0.2 * 105 * step)
    costs, least = [], []
    for _ in range(30):
        w = np.where(rng.random(105) < np.where(same, 0.8, 0.2), step, -step)
        costs.append(np.abs(w[(w > 0) != same]).sum())
        least.append(correlation_cluster(15, i, j, w, max_lp=0).cost)
    error = np.std(costs) / np.sqrt(30)
    assert np.mean(costs) == pytest.approx(expected, abs=3 * error)
    assert np.mean(least) < expected - 3 * error / 2


def test_features_that_say_nothing_have_no_expected_disagreement():
    assert expected_disagreement([0.0], [0.0], 5, 10) == 0


@pytest.mark.parametrize("change", [{"w_match": []}, {"w_nonmatch": [np.nan]}, {"n1": -1}])
def test_scores_that_make_no_sense_are_refused(change):
    with pytest.raises(InputError):
        expected_disagreement(**{"w_match": [1.0], "w_nonmatch": [1.0], "n1": 1, "n0": 1, **change})
