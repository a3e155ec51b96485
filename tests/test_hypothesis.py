"""The leakage test keeps its level and says what it can and cannot find."""

import numpy as np
import pytest
from scipy import stats

from mlflow_b3 import InputError, leakage_test


def test_the_published_form_is_the_one_sided_welch_test():
    rng = np.random.default_rng(0)
    without, leaked = rng.normal(0.5, 0.1, 12), rng.normal(0.4, 0.2, 9)
    result = leakage_test(without, leaked, "welch")
    expected = stats.ttest_ind(without, leaked, equal_var=False, alternative="greater")
    assert result.statistic == pytest.approx(expected.statistic)
    assert result.pvalue == pytest.approx(expected.pvalue)
    assert result.effect == pytest.approx(without.mean() - leaked.mean())


def test_the_paired_form_works_on_cluster_means_with_twice_the_variance():
    rng = np.random.default_rng(1)
    clusters = np.repeat(np.arange(20), 5)
    without = rng.random(100)
    leaked = without - 0.1 + 0.2 * rng.random(100)
    result = leakage_test(without, leaked, clusters=clusters)
    means = (without - leaked).reshape(20, 5).mean(axis=1)
    plain = stats.ttest_1samp(means, 0, alternative="greater")
    assert result.units == 20
    assert result.statistic == pytest.approx(plain.statistic / np.sqrt(2))


@pytest.mark.parametrize("method", ["paired", "welch"])
def test_the_level_is_kept_under_the_null(method):
    """2000 repetitions: a true 5 % is seen above 6.5 % in one of 800 tests."""
    rng = np.random.default_rng(2)
    rejected = 0
    for _ in range(2000):
        sample = rng.standard_normal((2, 30))
        rejected += leakage_test(sample[0], sample[1], method).rejected
    assert rejected / 2000 <= 0.065


def test_an_effect_of_the_detectable_size_is_found_in_four_of_five_cases():
    """The welch form, whose variance is not inflated; 1000 repetitions, error 1.3 %."""
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


def test_the_interval_excludes_zero_exactly_when_the_null_is_rejected():
    rng = np.random.default_rng(4)
    for shift in (0.0, 0.3, 0.6):
        result = leakage_test(rng.standard_normal(50) + shift, rng.standard_normal(50))
        assert (result.interval[0] > 0) == result.rejected


def test_losses_that_never_differ_say_nothing():
    result = leakage_test([0, 1, 0, 1], [0, 1, 0, 1])
    assert (result.pvalue, result.effect) == (1.0, 0.0)
    assert not result.rejected


def test_the_same_gain_everywhere_is_a_gain():
    assert leakage_test([1.0, 1.0, 1.0], [0.0, 0.0, 0.0]).rejected


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([1, 2, 3], [1, 2]), "at least 3"),
        (([1, 2, 3], [1, 2, 3, 4]), "use method='welch'"),
        (([1, 2, float("nan")], [1, 2, 3]), "not finite"),
        (([1, 2, 3], [1, 2, 3], "t"), "method='t'"),
    ],
)
def test_samples_that_cannot_be_tested_are_refused(arguments, message):
    with pytest.raises(InputError, match=message):
        leakage_test(*arguments)


def test_clusters_must_match_the_rows():
    with pytest.raises(InputError, match="clusters"):
        leakage_test([1, 2, 3], [1, 2, 4], clusters=[1, 2])
