"""The intercept of loss on leak probability is e0, and the assumption behind it is tested."""

import numpy as np
import pytest

from mlflow_b3 import InputError
from mlflow_b3.linkage.rows import LossRegression, loss_regression

E0, GAP = 0.4, 0.15


def simulate(seed, *, harder=0.0, entities=600):
    """Return losses, r, clusters and control of rows of which some are poorly recorded.

    Two in five entities have a probable mate: in their own fold for one in five of these, in
    training otherwise. `harder` is what a poor record adds to the loss by itself.
    """
    rng = np.random.default_rng(seed)
    clusters = np.repeat(np.arange(entities), rng.integers(1, 6, entities))
    poor = np.where(rng.random(entities) < 0.4, rng.random(entities), 0.0)
    own = rng.random(entities) < 0.2
    r, control = np.where(own, 0, poor), np.where(own, poor, 0)
    leaked = rng.random(entities) < r
    mean = E0 - GAP * leaked + harder * poor + 0.1 * rng.normal(size=entities)
    losses = mean[clusters] + 0.3 * rng.normal(size=len(clusters))
    return losses, r[clusters], clusters, control[clusters]


@pytest.fixture(scope="module")
def under_the_assumption():
    made = [simulate(seed) for seed in range(300)]
    return [loss_regression(y, r, c, control=control) for y, r, c, control in made]


def test_the_intercept_is_the_loss_of_rows_that_saw_no_mate(under_the_assumption):
    e0 = np.array([found.e0 for found in under_the_assumption])
    error = e0.std() / np.sqrt(len(e0))
    assert abs(e0.mean() - E0) < 4 * error
    e_seen = np.array([found.e_seen for found in under_the_assumption])
    assert abs(e_seen.mean() - (E0 - GAP)) < 4 * e_seen.std() / np.sqrt(len(e_seen))
    naive = np.mean([found.mean_loss for found in under_the_assumption])
    assert naive < E0 - 10 * error  # what the regression puts right


def test_its_interval_covers_as_often_as_it_says(under_the_assumption):
    covered = np.mean([f.interval[0] <= E0 <= f.interval[1] for f in under_the_assumption])
    assert abs(covered - 0.95) < 4 * np.sqrt(0.95 * 0.05 / 300)


def test_the_standard_error_is_the_spread_over_data(under_the_assumption):
    spread = np.std([found.e0 for found in under_the_assumption])
    stated = np.mean([found.e0_stderr for found in under_the_assumption])
    assert stated == pytest.approx(spread, rel=4 / np.sqrt(2 * 300))


def test_the_assumption_is_seldom_rejected_when_it_holds(under_the_assumption):
    rejected = np.mean([found.holds is False for found in under_the_assumption])
    assert abs(rejected - 0.05) < 4 * np.sqrt(0.05 * 0.95 / 300)


def test_the_control_shows_that_poor_records_are_harder():
    """As much harder as seen ones gain: the leak hides it from the line, not from the control."""
    rejected = {True: [], False: []}
    for seed in range(100):
        y, r, clusters, control = simulate(seed, harder=GAP)
        for given in (True, False):
            found = loss_regression(y, r, clusters, control=control if given else None)
            rejected[given].append(found.assumption_pvalue < 0.05)
    assert np.mean(rejected[True]) > 0.5
    assert np.mean(rejected[False]) < 0.2


def test_resolved_rows_compare_split_with_whole_ones():
    rng = np.random.default_rng(0)
    leaked = rng.random(300) < 0.2
    losses = np.where(leaked, 0.1, 0.5) + 0.1 * rng.normal(size=300)
    found = loss_regression(losses, leaked.astype(float), np.arange(300))
    assert found.e0 == pytest.approx(losses[~leaked].mean())
    assert found.e_seen == pytest.approx(losses[leaked].mean())
    assert found.gap == pytest.approx(found.e0 - found.e_seen)
    assert (found.holds, found.curvature, found.assumption_pvalue) == (None, None, None)
    assert "was not tested" in found.statement


def test_curvature_alone_never_says_that_the_assumption_holds():
    y, r, clusters, control = simulate(0)
    alone = loss_regression(y, r, clusters)
    assert alone.curvature is not None
    assert alone.assumption_pvalue > 0.05
    assert alone.holds is None
    both = loss_regression(y, r, clusters, control=control)
    assert both.holds is True
    assert "Nothing speaks against" in both.statement


def test_the_statement_warns_of_what_is_not_known():
    y, r, clusters, control = simulate(0, harder=0.6)
    found = loss_regression(y, r, clusters, control=control, calibrated=False)
    assert found.holds is False
    assert "Do not rely on it" in found.statement
    assert "not checked" in found.statement
    assert LossRegression.from_dict(found.to_dict()) == found


def test_tiny_leak_probabilities_change_units_only():
    y, r, clusters, control = simulate(1)
    whole, tiny = (
        loss_regression(y, scale * r, clusters, control=scale * control) for scale in (1, 1e-4)
    )
    assert tiny.e0 == pytest.approx(whole.e0)
    assert tiny.assumption_pvalue == pytest.approx(whole.assumption_pvalue)


def test_all_problems_are_told_at_once():
    with pytest.raises(InputError, match="4 problems") as error:
        loss_regression([0.1, np.nan], [0.5, 1.5], [0, 1], control=[0.1])
    for words in ("1 losses are missing", "leak_probability must lie", "control has", "2 clusters"):
        assert words in str(error.value)
    with pytest.raises(InputError, match="it must vary"):
        loss_regression(np.arange(20.0), np.full(20, 0.2), np.arange(20))
    with pytest.raises(InputError, match="all clusters but one"):
        loss_regression(np.arange(20.0), [1.0] + [0.0] * 19, np.arange(20))
