"""The learner of the published simulation, as a classifier of scikit-learn."""

import mlflow
import numpy as np
import pandas as pd
import pytest
from published_design import published_sample
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_predict
from sklearn.pipeline import make_pipeline

from mlflow_b3.correlated.learner import MixedLogistic
from mlflow_b3.correlated.mixed import fit_mixed_logistic
from mlflow_b3.errors import InputError

pytestmark = pytest.mark.newest


def table(seed, columns=3):
    """Return a sample of the published design as a table, its labels words."""
    target, X, (entity, day) = published_sample(seed, columns)
    data = pd.DataFrame(X[:, 1:], columns=[f"x{k}" for k in range(columns)])
    data.insert(0, "entity", [f"patient {code}" for code in entity])
    data["day"] = day
    return data, np.where(target > 0, "yes", "no")


def test_it_is_the_fit_by_laplace_with_a_ridge():
    target, X, codes = published_sample(1, 3)
    data, labels = table(1)
    model = MixedLogistic(groups=("entity", "day")).fit(data, labels)
    fit = fit_mixed_logistic(target, X, codes, ridge=1e-3, method="laplace0", intervals=False)
    assert model.sd_ == pytest.approx(fit.sd)
    assert [*model.intercept_, *model.coef_[0]] == pytest.approx(fit.coefficients)
    assert model.decision_function(data) == pytest.approx(X @ fit.coefficients)
    assert list(model.classes_) == ["no", "yes"]


def test_predictions_contain_the_effects_that_are_named():
    data, labels = table(1)
    plain = MixedLogistic(groups=("entity", "day")).fit(data, labels)
    knowing = MixedLogistic(groups=("entity", "day"), effects=("entity",)).fit(data, labels)
    added = knowing.decision_function(data) - plain.decision_function(data)
    assert added == pytest.approx(knowing.effects_[0][data["entity"]].to_numpy())
    assert np.ptp(added) > 0.5


def test_a_group_that_was_not_seen_has_no_effect():
    data, labels = table(1)
    model = MixedLogistic(groups=("entity", "day"), effects=("entity", "day")).fit(data, labels)
    new = data.assign(entity="patient new", day=99)
    plain = MixedLogistic(groups=("entity", "day")).fit(data, labels)
    assert model.decision_function(new) == pytest.approx(plain.decision_function(data))


def test_standard_deviations_that_are_given_are_kept():
    data, labels = table(2)
    free = MixedLogistic(groups=("entity", "day"), effects=("entity",)).fit(data, labels)
    held = MixedLogistic(groups=("entity", "day"), effects=("entity",), sd=free.sd_)
    assert held.fit(data, labels).decision_function(data) == pytest.approx(
        free.decision_function(data), abs=1e-5
    )
    strong = clone(held).set_params(sd=(3.0, 0.0)).fit(data, labels)
    assert strong.sd_ == (3.0, 0.0)
    assert strong.effects_[0].std() > free.effects_[0].std()
    assert (strong.effects_[1] == 0).all()


def test_predictions_agree_with_each_other():
    data, labels = table(3)
    model = MixedLogistic(groups=("entity", "day")).fit(data, labels)
    chance = model.predict_proba(data)
    assert chance.sum(axis=1) == pytest.approx(1)
    assert (model.predict(data) == model.classes_[chance.argmax(axis=1)]).all()
    assert ((model.decision_function(data) > 0) == (chance[:, 1] > 0.5)).all()
    assert model.score(data, labels) > 0.5


def test_columns_of_an_array_are_named_by_position():
    data, labels = table(3)
    data["entity"] = data["entity"].str[8:].astype(int)
    by_name = MixedLogistic(groups=("entity", "day"), effects=("day",)).fit(data, labels)
    by_place = MixedLogistic(groups=(0, 4), effects=(4,)).fit(data.to_numpy(), labels)
    assert by_place.predict_proba(data.to_numpy()) == pytest.approx(by_name.predict_proba(data))


def test_columns_of_a_table_are_found_in_any_order():
    data, labels = table(3)
    model = MixedLogistic(groups=("entity", "day"), effects=("day",)).fit(data, labels)
    assert (model.predict_proba(data[data.columns[::-1]]) == model.predict_proba(data)).all()


def test_it_can_be_cloned_searched_and_put_in_a_pipeline():
    data, labels = table(4)
    model = MixedLogistic(groups=("entity", "day"))
    assert clone(model).get_params() == model.get_params()
    search = GridSearchCV(model, {"ridge": [1e-3, 10.0]}, cv=3, scoring="neg_log_loss")
    assert search.fit(data, labels).best_params_["ridge"] in (1e-3, 10.0)
    assert make_pipeline("passthrough", model).fit(data, labels).predict(data).shape == (110,)


def test_mlflow_saves_and_loads_it(tmp_path):
    data, labels = table(4)
    model = MixedLogistic(groups=("entity", "day"), effects=("entity",)).fit(data, labels)
    mlflow.sklearn.save_model(
        model, tmp_path / "model", serialization_format="cloudpickle", pip_requirements=[]
    )
    loaded = mlflow.sklearn.load_model(str(tmp_path / "model"))
    assert (loaded.predict_proba(data) == model.predict_proba(data)).all()


def test_folds_that_a_column_separates_give_finite_scores():
    data, _ = table(5)
    labels = (data["x0"] > 0).astype(int)
    model = MixedLogistic(groups=("entity", "day")).fit(data, labels)
    assert np.isfinite(model.decision_function(data)).all()
    assert model.score(data, labels) == 1.0


def test_cross_validation_of_the_published_design_is_that_of_the_prototype():
    """Cross-entropy of 6000 samples there: 0.6333, at the true sd; three standard errors of 40."""
    losses = []
    for seed in range(40):
        data, labels = table(seed, columns=10)
        model = MixedLogistic(groups=("entity", "day"), sd=(1.0, 0.5))
        folds = [(np.flatnonzero(k != 0), np.flatnonzero(k == 0)) for k in _eleven(seed)]
        chance = cross_val_predict(model, data, labels, cv=folds, method="predict_proba")
        losses.append(-np.log(np.where(labels == "yes", chance[:, 1], chance[:, 0])).mean())
    error = np.std(losses, ddof=1) / np.sqrt(40)
    assert np.mean(losses) == pytest.approx(0.6333, abs=3 * error)


def _eleven(seed):
    order = np.random.default_rng(seed).permutation(110) % 11
    return [order - fold for fold in range(11)]


def test_wrong_arguments_are_named():
    data, labels = table(1)
    with pytest.raises(InputError, match="groups is empty"):
        MixedLogistic().fit(data, labels)
    with pytest.raises(InputError, match=r"effects names \['week'\]"):
        MixedLogistic(groups=("day",), effects=("week",)).fit(data, labels)
    with pytest.raises(InputError, match=r"sd=\(1.0,\)"):
        MixedLogistic(groups=("entity", "day"), sd=(1.0,)).fit(data, labels)
    with pytest.raises(InputError, match=r"lacks the columns \['week'\]"):
        MixedLogistic(groups=("week",)).fit(data, labels)
    with pytest.raises(InputError, match="1 class"):
        MixedLogistic(groups=("day",)).fit(data, np.zeros(110))
    with pytest.raises(InputError, match=r"\['day'\] name no group"):
        MixedLogistic(groups=("day",)).fit(data.drop(columns="entity").assign(day=None), labels)
    model = MixedLogistic(groups=("entity", "day")).fit(data, labels)
    with pytest.raises(InputError, match="takes 5 columns"):
        model.predict(data[["entity", "day"]])
    with pytest.raises(NotFittedError):
        MixedLogistic(groups=("day",)).predict(data)
