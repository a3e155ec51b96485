"""Parts of the thesis' experiments that live with them, in examples/papers: densities, matching, and the sampler."""

import importlib
from pathlib import Path

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score

from mlflow_b3 import linkage

pytestmark = pytest.mark.newest

PAPERS = Path(__file__).parents[3] / "examples" / "papers"


@pytest.fixture
def papers(monkeypatch):
    """Return the modules of examples/papers by name."""
    monkeypatch.syspath_prepend(PAPERS)
    return importlib.import_module


def test_kernel_densities_cluster_bars_that_cross(papers):
    """As in figure 2.1, where k-means and spectral clustering fail, though they know the number of clusters."""
    scores = papers("crossing_clusters").run_trial(("cross", [0, 0]))
    assert scores["kernel densities"] > 0.7
    assert scores["classifier ratio"] > 0.7
    assert max(scores["k-means"], scores["spectral"]) < 0.5


def test_kernel_densities_and_a_classifier_agree_on_the_density_ratio(papers):
    """|x - x'| of two normal clusters at distance 3: log P1/P0 is known."""
    crossing = papers("crossing_clusters")
    rng = np.random.default_rng(0)
    truth = rng.integers(2, size=2000)
    points = rng.normal(size=(2000, 1)) + 3 * truth[:, None]
    labelled, same = crossing.draw_pairs(points, truth, rng)
    edges = np.array([[0.5], [3.0]])
    near, far = np.exp(-(edges[:, 0] ** 2) / 4), np.exp(-((edges[:, 0] - 3) ** 2) / 4)
    expected = np.log(near) - np.log(far / 2 + np.exp(-((edges[:, 0] + 3) ** 2) / 4) / 2)
    # 2,500 pairs of either kind, smoothed over a twentieth of their spread: 0.2 is four standard errors
    np.testing.assert_allclose(crossing.kernel_log_odds(labelled, same, edges), expected, atol=0.2)


def test_the_sign_constrained_regression_is_logistic_where_its_signs_agree(papers):
    fit = papers("match_and_merge").constrained_logistic
    rng = np.random.default_rng(1)
    features = rng.normal(size=(2000, 3))
    same = rng.random(2000) < 1 / (1 + np.exp(-(features @ [2.0, 1.0, -1.0] - 0.5)))
    weights = fit(features, same)
    assert (weights[1:] >= 0).all()
    assert weights[3] == 0  # it would speak against a match
    free = LogisticRegression(C=1e3, tol=1e-10, max_iter=1000).fit(features[:, :2], same)
    expected = np.r_[free.intercept_, free.coef_[0]]
    np.testing.assert_allclose(weights[:3], expected, atol=1e-3)


def test_similarities_are_levenshteins(papers):
    found = papers("match_and_merge").similarities(["kitten", "sitting", "kitten", "mitten"])
    assert found[0, 1] == pytest.approx(1 - 3 / 7)
    assert found[0, 3] == pytest.approx(1 - 1 / 6)
    assert found[0, 2] == 1
    np.testing.assert_allclose(found, found.T)


def test_components_are_what_match_and_merge_gives_for_sets_of_records(papers):
    """Theorem 6: records are sets, merged by union, and match if any two of their elements do."""
    module = papers("match_and_merge")
    people, _ = module.make_people(40, np.random.default_rng(2))
    i, j, compared = module.compare_all(people)
    match = compared.sum(axis=1) > 1.2
    pairs = {(int(a), int(b)) for a, b in zip(i[match], j[match], strict=True)}
    merged = linkage.match_and_merge(
        [{row} for row in range(len(people))],
        match=lambda x, y: any((min(a, b), max(a, b)) in pairs for a in x for b in y),
        merge=lambda x, y: x | y,
    )
    components = linkage.components(len(people), i[match], j[match])
    assert adjusted_rand_score(merged.labels, components) == 1


def test_minhash_finds_the_records_of_an_entity(papers):
    pytest.importorskip("datasketch", reason="blocking by MinHash needs datasketch")
    module = papers("match_and_merge")
    records, truth = module.make_records(20, np.random.default_rng(0))
    i, j, score = module.minhash_pairs(records, seed=0)
    # of one entity: 0.58/1.42 = 0.41, of two: 0.09/1.91 = 0.05; 128 hashes have a standard error of 0.04
    assert score[truth[i] == truth[j]].mean() == pytest.approx(0.41, abs=0.02)
    clusters = linkage.components(len(truth), i[score > 0.25], j[score > 0.25])
    assert normalized_mutual_info_score(truth, clusters) == pytest.approx(1)


def test_bounds_hold_over_thresholds(papers):
    module = papers("match_and_merge")
    rng = np.random.default_rng(3)
    people, truth = module.make_people(150, rng)
    i, j, compared = module.compare_all(people)
    curve = module.sweep(truth, i, j, compared.sum(axis=1), np.linspace(0.6, 1.6, 9), rng)
    assert all(row["precision_low"] <= row["precision"] + 1e-9 for row in curve)
    assert all(row["recall_low"] <= row["recall"] + 1e-9 for row in curve)


# --- The sampler


def simulated(papers, entities, records, beta, seed):
    """Return fields of records, their entities, the entities' values and the model."""
    sampler = papers("linkage_sampler")
    rng = np.random.default_rng(seed)
    thetas = [np.full(size, 1 / size) for size in (30, 20, 12)]
    distortions = [sampler.categorical_distortion(theta) for theta in thetas]
    values = np.column_stack([rng.integers(len(theta), size=entities) for theta in thetas])
    own = rng.integers(entities, size=records)
    drawn = np.column_stack([rng.integers(len(theta), size=records) for theta in thetas])
    fields = np.where(rng.random((records, 3)) < beta, drawn, values[own])
    return fields, own, values, thetas, distortions


def test_with_known_entities_the_sampler_has_the_exact_error(papers):
    """Given the entities and β, Λ is sampled exactly; 4 standard errors of 300 records and 100 samples."""
    sampler = papers("linkage_sampler")
    fields, own, values, thetas, distortions = simulated(papers, 50, 300, 0.4, 0)
    samples, rates = sampler.sample_linkage(
        fields, thetas, distortions, 50, sweeps=400, keep=100, known=values, prior=(1.0, 1.0)
    )
    chance = np.ones((300, 50))
    for f, distortion in enumerate(distortions):
        chance *= sampler.channel(distortion, 0.4)[values[:, f]][:, fields[:, f]].T
    chance /= chance.sum(axis=1, keepdims=True)
    exact = 1 - chance[np.arange(300), own].mean()
    assert (samples != own).mean() == pytest.approx(exact, abs=4 * 0.5 / np.sqrt(300) / 2)
    assert rates.mean() == pytest.approx(0.4, abs=4 * np.sqrt(0.24 / 900))


def test_without_known_entities_the_sampler_finds_the_partition(papers):
    sampler = papers("linkage_sampler")
    fields, own, _, thetas, distortions = simulated(papers, 30, 120, 0.05, 1)
    samples, rates = sampler.sample_linkage(fields, thetas, distortions, 30, sweeps=200, keep=20)
    assert np.mean([adjusted_rand_score(own, sample) for sample in samples]) > 0.85
    assert rates.mean() == pytest.approx(0.05, abs=0.04)  # 4 standard errors of 360 fields


def test_samples_go_straight_into_an_estimate_of_the_leak(papers):
    sampler = papers("linkage_sampler")
    fields, own, _, thetas, distortions = simulated(papers, 30, 120, 0.1, 2)
    ids = np.unique(fields, axis=0, return_inverse=True)[1].ravel()
    folds = ids % 3
    samples, _ = sampler.sample_linkage(fields, thetas, distortions, 30, sweeps=200, keep=40)
    leak = linkage.leak_from_partition_samples(samples, folds, clusters=ids)
    true = linkage.leak_truth(own, folds, clusters=ids).p0_validation
    assert true > 0.2
    assert leak.validation.point == pytest.approx(true, abs=0.12)


def test_strings_are_distorted_to_strings_nearby(papers):
    limits, sampler = papers("linkage_limits"), papers("linkage_sampler")
    distances = limits.distances()
    emma, ella = limits.NAMES.index("Emma"), limits.NAMES.index("Ella")
    assert distances[emma, ella] == 2
    theta = np.full(len(limits.NAMES), 1 / len(limits.NAMES))
    distortion = sampler.string_distortion(theta, distances, 1.0)
    np.testing.assert_allclose(distortion.sum(axis=1), 1)
    np.testing.assert_allclose(sampler.string_distortion(theta, distances, 0.0), 1 / 20)
    assert distortion[emma, ella] > distortion[emma, limits.NAMES.index("Elizabeth")]
