"""The leakage test keeps its level and says what it can and cannot find."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from sklearn.dummy import DummyClassifier
from sklearn.neighbors import KNeighborsClassifier

from mlflow_b3 import InputError, audit, leakage_test
from mlflow_b3.auditing.audit import run_leakage_test
from mlflow_b3.data.folds import Fold
from mlflow_b3.data.losses import resolve_loss
from mlflow_b3.data.table import ModelInputs, prepare
from mlflow_b3.estimation.leakage_test import CROSSED_INFLATION, VARIANCE_INFLATION
from mlflow_b3.measurement.campaign import welch_tasks
from mlflow_b3.measurement.refits import (
    LEAST_DISJOINT_ROWS,
    Refitter,
    Resampler,
    Task,
    disjoint_sizes,
)
from mlflow_b3.refit.sklearn import CloneLearner

pytestmark = pytest.mark.newest

# --- the published form ---------------------------------------------------------------------------


def test_the_published_form_is_the_one_sided_welch_test():
    rng = np.random.default_rng(0)
    without, leaked = rng.normal(0.5, 0.1, 12), rng.normal(0.4, 0.2, 9)
    result = leakage_test(without, leaked, "welch")
    expected = stats.ttest_ind(without, leaked, equal_var=False, alternative="greater")
    assert result.statistic == pytest.approx(expected.statistic)
    assert result.pvalue == pytest.approx(expected.pvalue)
    assert result.effect == pytest.approx(without.mean() - leaked.mean())
    assert (result.units, result.unit) == (21, "folds")


def test_several_outer_folds_are_compared_within_each():
    """Outer folds that differ by 100 would drown any effect in a single Welch test."""
    rng = np.random.default_rng(1)
    strata = np.repeat(np.arange(4), 6)
    base = 100.0 * strata
    without, leaked = base + rng.normal(1, 1, 24), base + rng.normal(0, 1, 24)
    within = leakage_test(without, leaked, "welch", strata=strata)
    assert within.effect == pytest.approx(np.mean(without - leaked))
    assert within.rejected
    assert not leakage_test(without, leaked, "welch").rejected


def test_one_outer_fold_is_the_plain_test():
    rng = np.random.default_rng(2)
    without, leaked = rng.random(8), rng.random(8)
    alone = leakage_test(without, leaked, "welch")
    assert leakage_test(without, leaked, "welch", strata=np.zeros(8)) == alone


@pytest.mark.parametrize("rows", [24, 25, 60, 119, 200, 1000])
def test_no_two_folds_of_the_published_test_share_a_row(rows):
    fold = Fold(training=np.arange(rows, rows + 300), validation=np.arange(rows))
    drawn = resampler(fold)
    draws = [(task, drawn.draw(task)) for task in welch_tasks([fold])]
    sizes = disjoint_sizes(fold)
    assert len(draws) == 2 * sizes.count >= 6
    used = [row for _, draw in draws for row in (*draw.training, *draw.validation)]
    assert len(used) == len(set(used))
    for task, draw in draws:
        assert len(draw.training) == sizes.training
        assert len(draw.validation) == sizes.validation
        assert (draw.validation < rows).all()
        assert (draw.training < rows).all() == (task.purpose == "welch-with")


def test_other_seeds_cut_other_folds():
    fold = Fold(training=np.arange(60, 200), validation=np.arange(60))
    task = Task("welch-with", 0, 0, 0)
    one, two = (replace(resampler(fold), seed=seed).draw(task) for seed in (0, 1))
    assert not np.array_equal(one.training, two.training)


def test_outer_folds_with_too_few_rows_are_left_out_and_none_is_an_error():
    few = Fold(training=np.arange(40, 200), validation=np.arange(LEAST_DISJOINT_ROWS - 1))
    enough = replace(few, validation=np.arange(LEAST_DISJOINT_ROWS))
    assert {task.fold for task in welch_tasks([few, enough])} == {1}
    with pytest.raises(InputError, match=r"at least 24 validation rows.* the largest has 23"):
        welch_tasks([few])


def resampler(fold):
    return Resampler(
        folds=(fold,),
        iid_folds=(),
        clusters=np.zeros(2000, dtype=np.intp),
        exposures=(0.0, 0.5),
        scheme="subset",
        seed=0,
    )


# --- the paired form ------------------------------------------------------------------------------


def test_the_paired_form_is_the_t_test_on_cluster_means_with_a_larger_variance():
    rng = np.random.default_rng(1)
    clusters = np.repeat(np.arange(20), 5)
    without = rng.random(100)
    leaked = without - 0.1 + 0.2 * rng.random(100)
    result = leakage_test(without, leaked, clusters=clusters)
    means = (without - leaked).reshape(20, 5).mean(axis=1)
    plain = stats.ttest_1samp(means, 0, alternative="greater")
    assert (result.units, result.unit) == (20, "clusters")
    inflated = plain.statistic / np.sqrt(VARIANCE_INFLATION)
    assert result.statistic == pytest.approx(inflated)
    assert result.pvalue == pytest.approx(stats.t.sf(inflated, 19))


def test_cross_validation_needs_less_of_it():
    """What models have in common cancels where every row is trained on and validated."""
    rng = np.random.default_rng(8)
    without, leaked = rng.random((2, 40))
    alone, crossed = (leakage_test(without, leaked, crossed=value) for value in (False, True))
    assert alone.effect == crossed.effect
    ratio = (alone.detectable / crossed.detectable) ** 2
    assert ratio == pytest.approx(VARIANCE_INFLATION / CROSSED_INFLATION)


def test_below_ten_clusters_the_rows_are_the_units():
    rng = np.random.default_rng(2)
    without, leaked = rng.random(45), rng.random(45)
    few = leakage_test(without, leaked, clusters=np.arange(45) % 9)
    assert (few.units, few.unit) == (45, "rows")
    assert few == leakage_test(without, leaked)
    assert leakage_test(without, leaked, clusters=np.arange(45) % 10).units == 10


def test_the_effect_is_the_mean_over_rows_unless_clusters_are_very_unequal():
    rng = np.random.default_rng(3)
    clusters = np.repeat(np.arange(12), rng.integers(1, 30, 12))
    without, leaked = rng.random((2, len(clusters)))
    result = leakage_test(without, leaked, clusters=clusters)
    assert result.effect == pytest.approx(np.mean(without - leaked))


def test_a_giant_cluster_does_not_decide_and_single_rows_do_not_dilute():
    """Cap 4: then the 12 clusters with mates are worth 12 equal ones; at 300 they are worth 1.3."""
    sizes = np.array([300, *[4] * 11, *[1] * 30])
    clusters = np.repeat(np.arange(42), sizes)
    difference = np.where(clusters == 0, -1.0, np.where(clusters <= 11, 0.5, 9.0))
    result = leakage_test(difference, np.zeros(len(clusters)), clusters=clusters)
    assert result.units == 12
    assert result.effect == pytest.approx((-1.0 + 11 * 0.5) / 12)


def test_unequal_clusters_do_not_hide_an_effect():
    """Sizes by Zipf's law, the same effect in every cluster with mates; by rows 2% were found."""
    rng = np.random.default_rng(7)
    sizes = np.maximum(1, 120 // np.arange(1, 61))
    clusters = np.repeat(np.arange(60), sizes)
    found = 0
    for _ in range(200):
        noise = rng.normal(0, 0.3, 60)[clusters] + rng.normal(0, 0.5, len(clusters))
        found += leakage_test(0.22 + noise, 0 * noise, clusters=clusters).rejected
    assert found / 200 > 0.5


def test_unequal_clusters_follow_the_matrix_formulas():
    """Error and degrees of freedom against the quadratic form written out."""
    rng = np.random.default_rng(4)
    sizes = np.array([1, 1, 2, 3, 5, 8, 13, 21, 34, 55])
    clusters = np.repeat(np.arange(10), sizes)
    difference = rng.normal(0.3, 1, len(clusters))
    result = leakage_test(difference, np.zeros(len(clusters)), clusters=clusters)
    capped = np.minimum(sizes, 21)  # 34 would make them worth 4.9 equal ones
    w = capped / capped.sum()
    x = np.bincount(clusters, weights=difference) / sizes
    centred = np.eye(10) - np.outer(np.ones(10), w)
    A = centred.T @ np.diag(w**2) @ centred
    error = np.sqrt(VARIANCE_INFLATION * np.sum(w**2) * (x @ A @ x) / np.trace(A))
    freedom = np.trace(A) ** 2 / np.trace(A @ A)
    assert result.statistic == pytest.approx(w @ x / error)
    assert result.pvalue == pytest.approx(stats.t.sf(result.statistic, freedom))
    assert freedom < 7, "some clusters are small"


def test_few_and_very_unequal_clusters_keep_the_level(monkeypatch):
    """Cluster effects of equal size, no inflation; 4000 repetitions, error 0.35%.

    The usual cluster-robust error with G - 1 = 11 degrees of freedom rejects 11% here.
    """
    monkeypatch.setattr("mlflow_b3.estimation.leakage_test.VARIANCE_INFLATION", 1.0)
    rng = np.random.default_rng(5)
    sizes = np.array([2, 2, 2, 2, 2, 2, 5, 5, 10, 20, 30, 40])
    clusters = np.repeat(np.arange(12), sizes)
    rejected = np.mean(
        [
            leakage_test(
                rng.normal(size=12)[clusters], np.zeros(len(clusters)), clusters=clusters
            ).rejected
            for _ in range(4000)
        ]
    )
    assert rejected <= 0.06


def test_folds_show_the_variance_of_the_models_that_their_rows_share():
    """The variance between folds, where it is larger, against the formula written out."""
    rng = np.random.default_rng(9)
    clusters, folds = np.repeat(np.arange(30), 4), np.repeat(np.arange(5), 24)
    difference = rng.normal(size=30)[clusters] + 3.0 * rng.normal(size=5)[folds]
    nothing = np.zeros(120)
    options = {"clusters": clusters, "crossed": True}
    result = leakage_test(difference, nothing, **options, folds=folds)
    between = np.var(difference.reshape(5, 24).mean(axis=1), ddof=1) / 5
    plain = np.var(difference.reshape(30, 4).mean(axis=1), ddof=1) / 30
    freedom = between**2 / (plain**2 / 29 + (between - plain) ** 2 / 4)
    assert between > CROSSED_INFLATION * plain
    assert result.statistic == pytest.approx(difference.mean() / np.sqrt(between))
    assert result.pvalue == pytest.approx(stats.t.sf(result.statistic, freedom))
    assert result.effect == leakage_test(difference, nothing, **options).effect


def test_folds_without_anything_in_common_change_nothing():
    rng = np.random.default_rng(10)
    clusters = np.repeat(np.arange(40), 2)
    without, leaked = rng.random((2, 80))
    alone = leakage_test(without, leaked, clusters=clusters, crossed=True)
    for folds in (np.zeros(80), clusters, np.stack([clusters, np.zeros(80)])):
        assert leakage_test(without, leaked, clusters=clusters, crossed=True, folds=folds) == alone


def test_shared_models_do_not_raise_the_level_where_folds_are_given():
    """2000 repetitions of fold effects as large as the noise of clusters; 5.5%, error 0.51%.

    Without folds 31% are rejected. The limit is four errors away.
    """
    rng = np.random.default_rng(11)
    folds, clusters = np.repeat(np.arange(5), 40), np.arange(200)
    rejected = {"with": 0, "without": 0}
    for _ in range(2000):
        difference = rng.normal(size=200) + rng.normal(size=5)[folds]
        for name, given in (("with", folds), ("without", None)):
            test = leakage_test(
                difference, np.zeros(200), clusters=clusters, crossed=True, folds=given
            )
            rejected[name] += test.rejected
    assert rejected["with"] / 2000 <= 0.055 + 4 * 0.0051
    assert rejected["without"] / 2000 > 0.25


# --- the permutation form -------------------------------------------------------------------------


def test_the_p_value_counts_the_arrangements_that_do_as_well():
    rng = np.random.default_rng(6)
    without, leaked = rng.random(30) + 0.1, rng.random(30)
    paired = leakage_test(without, leaked)
    null = paired.statistic + np.r_[np.full(4, 0.1), np.linspace(-3, -0.1, 95)]
    result = leakage_test(without, leaked, "permutation", null_statistics=null)
    assert result.pvalue == pytest.approx(5 / 100)
    assert result.rejected, "5% is reached"
    assert result.arrangements == 99
    assert (result.statistic, result.effect) == (paired.statistic, paired.effect)
    more = leakage_test(without, leaked, "permutation", null_statistics=np.r_[null, null[:1] + 1])
    assert not more.rejected, "6 of 101"


@pytest.mark.parametrize("count", [19, 57, 99])
def test_an_exchangeable_statistic_is_rejected_at_the_level_of_its_ranks(count):
    """1000 repetitions with an error of 0.7%; 57 arrangements can only reach 2/58."""
    rng = np.random.default_rng(count)
    rejected = 0
    for _ in range(1000):
        difference, null = rng.standard_normal(5), _statistics(rng.standard_normal((count, 5)))
        result = leakage_test(difference, np.zeros(5), "permutation", null_statistics=null)
        rejected += result.rejected
    exact = np.floor(0.05 * (count + 1) + 1e-9) / (count + 1)
    assert rejected / 1000 == pytest.approx(exact, abs=0.02)


def _statistics(differences):
    error = np.std(differences, axis=1, ddof=1) * np.sqrt(VARIANCE_INFLATION / differences.shape[1])
    return differences.mean(axis=1) / error


def test_null_statistics_without_any_spread_still_travel_as_json():
    """An arrangement whose losses differ by the same amount everywhere has an endless statistic."""
    null = [leakage_test([1.0] * 3, [0.0] * 3).statistic] * 19
    result = leakage_test([1.0, 0.0, 1.0], [0.0, 0.0, 0.5], "permutation", null_statistics=null)
    assert result.pvalue == 1.0
    assert "Infinity" not in result.to_json()


# --- what all forms share -------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["paired", "welch"])
def test_the_level_is_kept_under_the_null(method):
    """2000 repetitions: a true 5% is seen above 6.5% in one of 800 tests."""
    rng = np.random.default_rng(2)
    rejected = 0
    for _ in range(2000):
        sample = rng.standard_normal((2, 30))
        rejected += leakage_test(sample[0], sample[1], method).rejected
    assert rejected / 2000 <= 0.065


def test_an_effect_of_the_detectable_size_is_found_in_four_of_five_cases():
    """The welch form, whose variance is not inflated; 1000 repetitions, error 1.3%."""
    rng = np.random.default_rng(3)
    size = leakage_test(rng.standard_normal(2000), rng.standard_normal(2000), "welch").detectable
    scale = np.sqrt(2000 / 25)
    found = np.mean(
        [
            leakage_test(
                rng.standard_normal(25) + size * scale, rng.standard_normal(25), "welch"
            ).rejected
            for _ in range(1000)
        ]
    )
    assert found == pytest.approx(0.8, abs=0.05)


@pytest.mark.parametrize("method", ["paired", "welch", "permutation"])
def test_the_interval_excludes_zero_exactly_when_the_null_is_rejected(method):
    rng = np.random.default_rng(4)
    decisions = []
    for shift in np.linspace(0, 1.5, 12):
        null = {}
        if method == "permutation":
            null["null_statistics"] = _statistics(rng.standard_normal((39, 50)))
        sample = rng.standard_normal((2, 50))
        result = leakage_test(sample[0] + shift, sample[1], method, **null)
        assert (result.interval[0] > 0) == result.rejected
        assert result.interval[0] < result.effect < result.interval[1]
        assert result.detectable > 0
        decisions.append(result.rejected)
    assert set(decisions) == {True, False}


@pytest.mark.parametrize("method", ["paired", "welch"])
def test_losses_that_never_differ_say_nothing(method):
    same = [0.5, 0.5, 0.5, 0.5]
    result = leakage_test(same, same, method)
    assert (result.pvalue, result.effect) == (1.0, 0.0)
    assert not result.rejected


def test_the_same_gain_everywhere_is_a_gain():
    assert leakage_test([1.0, 1.0, 1.0], [0.0, 0.0, 0.0]).rejected


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (([], []), {}, "losses_without has shape .0,.; .* at least 3"),
        (([1], [1]), {}, "losses_without has shape .1,.; .* at least 3"),
        (([1, 2, 3], [1, 2]), {}, "losses_with has shape .2,.; .* at least 3"),
        (([[1, 2, 3]], [1, 2, 3]), {}, "losses_without has shape .1, 3."),
        (([1, 2, 3], [1, 2, 3, 4]), {}, "3 and losses_with 4 values.* use method='welch'"),
        (([1, 2, float("nan")], [1, 2, 3]), {}, "losses_without: 1 of 3 values are not finite"),
        (([1, 2, 3], [1, 2, float("inf")]), {}, "losses_with: 1 of 3 values are not finite"),
        ((["a", "b", "c"], [1, 2, 3]), {}, "losses_without must be a list of numbers"),
        (([1, 2, 3], [1, 2, 3], "t"), {}, "method='t' is not known; use one of 'paired'"),
        (([1, 2, 3], [1, 2, 3], "Welch"), {}, "Did you mean 'welch'"),
        (([1, 2, 3], [1, 2, 4]), {"clusters": [1, 2]}, "clusters has shape .2,.; .* 3 losses"),
        (([1, 2, 3], [1, 2, 4]), {"folds": [1, 2]}, "folds has shape .2,.; .* 3 losses"),
        (([1, 2, 3], [1, 2, 4]), {"strata": [1, 1, 1]}, "strata was given, but method='paired'"),
        (
            ([1, 2, 3], [1, 2, 4], "welch"),
            {"clusters": [1, 1, 1]},
            "clusters was given, but method='welch' does not use it",
        ),
        (
            ([1, 2, 3], [1, 2, 3, 4], "welch"),
            {"strata": [1, 1, 1]},
            "both must have the same rows or strata",
        ),
        (([1, 2, 3], [1, 2, 3], "welch"), {"strata": [1, 1, 2]}, "single value"),
        (([1, 2, 3], [1, 2, 3], "permutation"), {}, "null_statistics is missing"),
        (
            ([1, 2, 3], [1, 2, 3], "permutation"),
            {"null_statistics": [0.0] * 18},
            "null_statistics has shape .18,.; .* at least 19",
        ),
        (
            ([1, 2, 3], [1, 2, 3], "permutation"),
            {"null_statistics": [0.0] * 18 + [float("nan")]},
            "null_statistics: 1 of 19",
        ),
    ],
)
def test_samples_that_cannot_be_tested_are_refused(arguments, options, message):
    with pytest.raises(InputError, match=message):
        leakage_test(*arguments, **options)


# --- with the refits ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def clinic():
    """Return 30 patients far apart, each always ill or always well: who saw one knows her label."""
    rng = np.random.default_rng(1)
    patients = np.repeat(np.arange(30), 8)
    place = rng.normal(scale=10, size=(30, 2))[patients] + rng.normal(scale=0.1, size=(240, 2))
    frame = pd.DataFrame(place, columns=["a", "b"])
    return frame.assign(disease=(np.arange(30) % 2)[patients], patient_id=patients)


SUBJECT = {"target": "disease", "cluster": "patient_id", "progress": False}


@pytest.mark.parametrize("test", ["paired", "permutation"])
def test_a_learner_that_profits_is_found(test, clinic):
    model = KNeighborsClassifier(1)
    result = run_leakage_test(model, clinic, **SUBJECT, test=test, folds=3, budget=20 * 18)
    assert result.method == test
    assert (result.units, result.unit) == (30, "clusters")
    assert result.rejected
    assert result.arrangements == (19 if test == "permutation" else None)


def test_the_published_form_cuts_every_outer_fold_into_disjoint_folds(clinic):
    result = run_leakage_test(KNeighborsClassifier(1), clinic, **SUBJECT, test="welch", folds=3)
    assert (result.units, result.unit) == (3 * 2 * 4, "folds")
    assert result.effect > 0.1


@pytest.mark.parametrize("test", ["paired", "welch", "permutation"])
def test_a_learner_that_ignores_its_rows_never_profits(test, clinic):
    model = DummyClassifier(strategy="constant", constant=1)
    result = run_leakage_test(model, clinic, **SUBJECT, test=test, folds=3, budget=400)
    assert not result.rejected
    if test != "welch":
        assert (result.effect, result.pvalue) == (0.0, 1.0)


@pytest.mark.parametrize(("test", "budget"), [("welch", 100), ("permutation", 640)])
def test_an_audit_can_run_any_form_within_its_budget(test, budget, clinic):
    patients = clinic["patient_id"].to_numpy()
    folds = [(np.flatnonzero(patients >= 15), np.flatnonzero(patients < 15))]
    report = audit(DummyClassifier(), clinic, **SUBJECT, test=test, folds=folds, budget=budget)
    assert report.test.method == test
    assert report.settings.fits <= budget
    if test == "permutation":
        assert 19 <= report.test.arrangements <= 640 // 5 // 6 + 3, "about a fifth"
    words = " ".join(report.to_text().split())
    assert {"welch": "the published form", "permutation": "permutation form"}[test] in words


def test_a_budget_that_cannot_pay_for_the_permutations_is_refused_before_the_first_refit(clinic):
    class NeverFitted(KNeighborsClassifier):
        def fit(self, X, y):  # noqa: ARG002
            raise AssertionError("a refit was made")

    for run, budget in ((run_leakage_test, 300), (audit, 1000)):
        with pytest.raises(InputError, match=r"test='permutation'.* so 360 in all"):
            run(NeverFitted(), clinic, **SUBJECT, test="permutation", folds=3, budget=budget)


def test_a_budget_too_small_for_the_published_form_is_refused(clinic):
    with pytest.raises(InputError, match=r"5 refits .* test='welch', which needs 24"):
        run_leakage_test(DummyClassifier(), clinic, **SUBJECT, test="welch", folds=3, budget=5)


def test_a_time_is_a_budget_too(clinic):
    result = run_leakage_test(
        DummyClassifier(), clinic, **SUBJECT, test="permutation", folds=2, budget="5s"
    )
    assert 19 <= result.arrangements <= 99
    with pytest.raises(InputError, match="test='permutation'"):
        run_leakage_test(
            DummyClassifier(), clinic, **SUBJECT, test="permutation", folds=5, budget="0.001s"
        )


@pytest.mark.parametrize(
    ("run", "test"), [(audit, "welch"), (audit, "permutation"), (run_leakage_test, "welch")]
)
def test_a_time_that_a_form_cannot_keep_is_refused_before_the_model_is_looked_at(run, test, clinic):
    with pytest.raises(InputError, match=f"budget='5m' is a time, which test='{test}' cannot keep"):
        run("no such model", clinic, **SUBJECT, test=test, budget="5m")


def test_small_folds_and_unknown_forms_are_refused(clinic):
    with pytest.raises(InputError, match="test='welch' needs folds with at least 24"):
        run_leakage_test(DummyClassifier(), clinic, **SUBJECT, test="welch", folds=15)
    for run in (audit, run_leakage_test):
        with pytest.raises(InputError, match="test='t' is not known"):
            run(DummyClassifier(), clinic, **SUBJECT, test="t")


def test_folds_with_a_single_validation_row_are_refused_before_the_first_refit(clinic):
    folds = [(np.arange(1, 240), [0])]
    for run in (audit, run_leakage_test):
        with pytest.raises(InputError, match="needs 3 rows in folds with at least two"):
            run(DummyClassifier(), clinic, **SUBJECT, folds=folds)


def test_rearranging_deals_the_rows_of_the_folds_to_the_clusters_and_nothing_else(
    clinic, monkeypatch
):
    """Rows 200-239 are in no fold and stay; every other row keeps its label when it moves."""
    orders = []

    def measure(folds, session, rounds, arrangement=0):  # noqa: ARG001
        task = Task("test-with", 0, 0, 0, arrangement)
        orders.append(session.resampler.arranged(task, np.arange(240)))
        return np.arange(5.0), np.zeros(5), np.arange(5)

    monkeypatch.setattr("mlflow_b3.measurement.campaign._measure_paired", measure)
    fold = (np.arange(100), np.arange(100, 200))
    model = KNeighborsClassifier(1)
    result = run_leakage_test(model, clinic, **SUBJECT, test="permutation", folds=[fold], seed=3)
    assert result.arrangements == 99
    assert result.pvalue == 1.0, "all statistics are the same"
    original, *others = orders
    assert np.array_equal(original, np.arange(240))
    for order in others:
        assert np.array_equal(np.sort(order), original)
        assert np.array_equal(order[200:], original[200:])
    assert len({order.tobytes() for order in others}) == 99


def test_a_rearranged_refit_takes_features_labels_and_weights_of_the_same_rows(clinic):
    data = prepare(
        clinic.assign(w=np.arange(240.0)),
        target="disease",
        cluster="patient_id",
        task="classification",
        inputs=ModelInputs(),
        sample_weight="w",
    )
    fold = Fold(training=np.arange(200), validation=np.arange(200, 240))
    resampler = Resampler(
        folds=(fold,),
        iid_folds=(fold,),
        clusters=data.clusters,
        exposures=(0.0,),
        scheme="subset",
        seed=1,
    )
    seen = []

    class Looks(CloneLearner):
        def train(self, rows, seed):
            seen.append(rows)
            return super().train(rows, seed)

    learner = Looks(KNeighborsClassifier(1))
    loss = resolve_loss(None, "classification")
    refitter = Refitter(data=data, learner=learner, loss=loss, resampler=resampler)
    refitter.run(Task("loco", 0, 0, 0, 5))
    (rows,) = seen
    order = rows.weight.astype(int)
    assert not np.array_equal(order, np.arange(200))
    assert np.array_equal(rows.target, data.target[order])
    assert np.array_equal(rows.ids, data.ids[order])
    assert np.array_equal(rows.X.to_numpy(), data.take(order).to_numpy())


def _values(table):
    return np.asarray(table.features), table.target
