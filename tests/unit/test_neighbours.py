"""Nearest neighbours share one search, and predict what each refit alone would predict."""

import tracemalloc

import numpy as np
import pandas as pd
import pytest
from sklearn.base import is_regressor
from sklearn.decomposition import PCA
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import MaxAbsScaler, MinMaxScaler, RobustScaler, StandardScaler

import mlflow_b3 as b3
from mlflow_b3.errors import PredictionError
from mlflow_b3.refit import neighbours
from mlflow_b3.refit.learner import Rows, Source
from mlflow_b3.refit.neighbours import NeighbourLearner, NeighbourRows
from mlflow_b3.refit.sklearn import CloneLearner, learner

N = 150


def features(kind="smooth"):
    rng = np.random.default_rng(0)
    numbers = rng.standard_normal((N, 3))
    if kind == "ties":
        numbers = numbers.round()
    if kind == "some ties":
        numbers[:20] = numbers[20:40]
    if kind == "far from zero":
        numbers += 1e7
    return pd.DataFrame(numbers, columns=list("abc"))


def targets(model):
    rng = np.random.default_rng(1)
    values = features()["a"] + rng.standard_normal(N)
    if is_regressor(model):
        return values.to_numpy()
    return np.array(["low", "middle", "high"])[np.digitize(values, [-0.5, 0.5])]


def predicted(learner, X, y, training, scored, kind):
    X = learner.represent(X, np.arange(N))
    taken = X.iloc if isinstance(X, pd.DataFrame) else X
    rows = Rows(X=taken[training], target=y[training], ids=training)
    return learner.fit(rows, 0).predict(kind, taken[scored])


MODELS = {
    "one": KNeighborsClassifier(1),
    "five": KNeighborsClassifier(),
    "brute force": KNeighborsClassifier(11, algorithm="brute"),
    "ball tree": KNeighborsClassifier(4, algorithm="ball_tree"),
    "regression": KNeighborsRegressor(7),
    "standardized": make_pipeline(StandardScaler(), KNeighborsClassifier()),
    "without centre": make_pipeline(StandardScaler(with_mean=False), KNeighborsClassifier(2)),
    "in a range": make_pipeline(MinMaxScaler((-1, 2)), KNeighborsClassifier(3)),
    "robust": make_pipeline(RobustScaler(), KNeighborsClassifier(algorithm="brute")),
    "by the largest": make_pipeline(MaxAbsScaler(copy=False), KNeighborsRegressor(4)),
}


@pytest.mark.parametrize("kind", ["smooth", "ties", "some ties", "far from zero"])
@pytest.mark.parametrize("name", MODELS)
def test_predictions_are_those_of_the_estimator_trained_on_the_same_rows(name, kind, monkeypatch):
    monkeypatch.setattr(neighbours, "MOST_TIES", 1.0)
    monkeypatch.setattr(neighbours, "MORE", 15)  # not enough for every row of a small training set
    model = MODELS[name]
    X, y, rng = features(kind), targets(model), np.random.default_rng(2)
    shared, plain = NeighbourLearner(model), CloneLearner(model)
    assert isinstance(shared.represent(X, None), NeighbourRows)
    for share in (0.2, 0.5, 0.8):
        training = np.sort(rng.permutation(N)[: int(share * N)])
        scored = np.setdiff1d(np.arange(N), training)
        kinds = ["value"] if plain.task == "regression" else ["label", "probability"]
        for wanted in kinds:
            args = (X, y, training, scored, wanted)
            found, expected = predicted(shared, *args), predicted(plain, *args)
            if wanted == "value":  # neighbours that are equally far are added up in another order
                assert found == pytest.approx(expected, rel=1e-13)
            else:
                assert np.array_equal(found, expected)


@pytest.mark.parametrize("name", MODELS)
def test_rows_that_are_drawn_twice_count_twice(name):
    model, training = MODELS[name], np.repeat(np.arange(60), 2)
    kind = "value" if is_regressor(model) else "label"
    args = (features(), targets(model), training, np.arange(60, N), kind)
    assert np.array_equal(
        predicted(NeighbourLearner(model), *args), predicted(CloneLearner(model), *args)
    )


def test_too_few_rows_and_other_predictions_raise_what_the_estimator_raises():
    model = KNeighborsClassifier(10)
    y = targets(model)
    for training, kind, error in (
        (np.arange(8), "label", ValueError),
        (np.arange(80), "decision", PredictionError),
    ):
        for learner_of in (NeighbourLearner, CloneLearner):
            with pytest.raises(error, match=r"n_neighbors|decision_function"):
                predicted(learner_of(model), features(), y, training, np.arange(80, N), kind)


def test_targets_and_parameters_that_the_estimator_refuses_are_refused():
    as_objects = np.array([0, 1] * (N // 2), dtype=object)
    never = KNeighborsClassifier(leaf_size=0)
    for model, y, error in (
        (KNeighborsClassifier(), as_objects, "Unknown label type"),
        (never, targets(never), "leaf_size"),
    ):
        for learner_of in (NeighbourLearner, CloneLearner):
            with pytest.raises(ValueError, match=error):
                predicted(
                    learner_of(model), features(), y, np.arange(80), np.arange(80, N), "label"
                )


def test_wide_tables_take_little_memory():
    """Distances are computed for a part of the rows at a time."""
    wide = pd.DataFrame(np.random.default_rng(0).standard_normal((2000, 15)))
    model = make_pipeline(StandardScaler(), KNeighborsClassifier())
    learner, y = NeighbourLearner(model), np.arange(2000) % 2
    X = learner.represent(wide, np.arange(2000))
    rows = Rows(X=X[np.arange(1000)], target=y[:1000], ids=np.arange(1000))
    tracemalloc.start()
    learner.fit(rows, 0).predict("label", X[np.arange(1000, 2000)])
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 60 * 2**20


@pytest.mark.parametrize(
    "model",
    [
        make_pipeline(PCA(2), KNeighborsClassifier()),
        make_pipeline(MinMaxScaler(clip=True), KNeighborsClassifier()),
        make_pipeline(StandardScaler(), PCA(2), KNeighborsClassifier()),
        KNeighborsClassifier(weights="distance"),
        KNeighborsClassifier(metric="manhattan"),
        KNeighborsClassifier(p=1),
    ],
    ids=["rotation", "clipping", "three steps", "weights", "metric", "p"],
)
def test_the_search_is_not_shared_where_distances_depend_on_more_than_the_rows(model):
    assert type(learner(model, Source())) is CloneLearner


@pytest.mark.parametrize(
    "X",
    [
        features().astype("float32"),
        features().assign(d="text"),
        features().assign(d=np.nan),
        features("ties"),
    ],
    ids=["single precision", "text", "missing values", "many ties"],
)
def test_other_tables_are_searched_in_every_refit(X):
    assert NeighbourLearner(KNeighborsClassifier()).represent(X, None) is X


def test_so_many_neighbours_that_a_list_of_them_takes_gigabytes_are_searched_in_every_refit():
    X = pd.DataFrame(np.random.default_rng(0).standard_normal((3000, 2)))
    assert NeighbourRows.search(X, KNeighborsClassifier(5)) is not None
    assert NeighbourRows.search(X, KNeighborsClassifier(400)) is None


def test_a_pipeline_with_predictions_of_its_own_keeps_them():
    class Opposite(Pipeline):
        def predict(self, X):
            return 1 - super().predict(X)

    model = Opposite([("scale", StandardScaler()), ("model", KNeighborsClassifier())])
    assert not isinstance(learner(model, Source()), NeighbourLearner)


def test_many_features_are_searched_in_every_refit_after_a_scaler():
    wide = pd.DataFrame(np.random.default_rng(0).standard_normal((N, 16)))
    model = make_pipeline(StandardScaler(), KNeighborsClassifier())
    assert NeighbourLearner(model).represent(wide, None) is wide
    assert isinstance(NeighbourLearner(KNeighborsClassifier()).represent(wide, None), NeighbourRows)


@pytest.mark.parametrize("steps", [(), (StandardScaler(),)], ids=["alone", "after a scaler"])
def test_an_audit_has_the_numbers_of_one_whose_refits_search_alone(steps, monkeypatch):
    clinic = b3.make_clinic(patients=60, records=5, cluster_error=0.1).frame
    X, y = clinic.drop(columns=["disease", "patient_id"]), clinic["disease"]
    model = make_pipeline(*steps, KNeighborsClassifier()) if steps else KNeighborsClassifier()
    model.fit(X, y)
    options = {"target": "disease", "cluster": "patient_id", "cluster_error": 0.1, "n_jobs": 1}
    shared = b3.audit(model, clinic, **options)
    monkeypatch.setattr(neighbours, "can_share_search", lambda _: False)
    plain = b3.audit(model, clinic, **options)
    assert shared.refit.route == plain.refit.route == "clone"
    assert shared.refit.agreement == plain.refit.agreement == 1
    assert (shared.e0, shared.e0_interval, shared.iid) == (plain.e0, plain.e0_interval, plain.iid)
