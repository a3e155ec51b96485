"""Random slopes, which corrections with random intercepts do not see."""

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.neighbors import KNeighborsClassifier

import mlflow_b3 as b3
from mlflow_b3.correlated.slopes import LEVEL, examine_slopes
from mlflow_b3.correlated.structure import Level

pytestmark = pytest.mark.newest

#: Effects that are the same in all groups.
BENT = {
    "product": lambda features: 0.8 * features[:, 0] * features[:, 1],
    "square": lambda features: 0.5 * features[:, 1] ** 2,
    "wave": lambda features: 1.5 * np.sin(2 * features[:, 0]),
}


def world(seed, *, groups=30, rows=10, slope=0.0, classes=False, bent=None):
    """Return a table in which groups differ by an intercept, and in the slopes of two features.

    With a nonlinear effect, groups differ in their features too.
    """
    rng = np.random.default_rng(seed)
    group = np.repeat(np.arange(groups), rows)
    features = rng.normal(size=(len(group), 4))
    if bent is not None:
        features += rng.normal(size=(groups, 4))[group]
    slopes = np.array([0.8, -0.5, 0, 0]) + slope * rng.normal(size=(groups, 4)) * [1, 1, 0, 0]
    mean = (features * slopes[group]).sum(axis=1) + rng.normal(size=groups)[group]
    if bent is not None:
        mean += BENT[bent](features)
    noise = rng.logistic(size=len(group)) if classes else rng.normal(size=len(group))
    frame = pd.DataFrame(features, columns=["a", "b", "c", "d"])
    frame["y"] = (mean + noise > 0).astype(int) if classes else mean + noise
    return frame.assign(group=group)


def rejections(repetitions, **options):
    found = 0
    for seed in range(repetitions):
        frame = world(seed, **options)
        features, target = frame[["a", "b", "c", "d"]], frame["y"].to_numpy(dtype=float)
        scores = features.to_numpy() @ np.array([0.8, -0.5, 0, 0])
        level = Level(name="group", codes=frame["group"].to_numpy())
        found += examine_slopes(target, features, scores, level, 0).rejected
    return found / repetitions


@pytest.mark.parametrize("classes", [False, True])
def test_equal_slopes_are_seldom_called_different(classes):
    error = np.sqrt(LEVEL * (1 - LEVEL) / 60)
    assert rejections(60, classes=classes) <= LEVEL + 3 * error


@pytest.mark.parametrize("bent", sorted(BENT))
@pytest.mark.parametrize("classes", [False, True])
def test_nonlinear_effects_that_are_the_same_everywhere_are_not_called_slopes(classes, bent):
    """Products were called slopes in 75 to 100% of such tables."""
    error = np.sqrt(LEVEL * (1 - LEVEL) / 30)
    assert rejections(30, groups=20, rows=40, classes=classes, bent=bent) <= LEVEL + 3 * error


@pytest.mark.parametrize("bent", sorted(BENT))
def test_random_slopes_are_found_beside_nonlinear_effects(bent):
    assert rejections(20, slope=0.7, bent=bent) >= 0.6


@pytest.mark.parametrize(("classes", "slope"), [(False, 0.7), (True, 1.5)])
def test_random_slopes_are_found(classes, slope):
    assert rejections(20, classes=classes, slope=slope) >= 0.7


def test_features_of_two_values_bend_nowhere():
    """Their squares and bends repeat the feature itself."""
    frame = world(0, slope=2.0).assign(c=lambda table: table["d"] > 0)
    level = Level(name="group", codes=frame["group"].to_numpy())
    target = frame["y"].to_numpy(dtype=float)
    test = examine_slopes(target, frame[["a", "b", "c"]], 0 * target, level, 0)
    assert test.rejected
    assert test.feature in {"a", "b"}


def test_features_that_do_not_vary_within_groups_have_no_slopes():
    frame = world(0).assign(a=lambda table: table["group"], b=1.0, c="x", d=np.nan)
    level = Level(name="group", codes=frame["group"].to_numpy())
    target = frame["y"].to_numpy(dtype=float)
    assert examine_slopes(target, frame[["a", "b", "c", "d"]], 0 * target, level, 0) is None


@pytest.mark.parametrize(("model", "classes"), [(Ridge(), False), (LogisticRegression(), True)])
def test_no_correction_is_given_under_random_slopes(model, classes):
    """It found a third (ridge) or a sixth (logistic regression) of the bias."""
    frame = world(1, slope=2.0, rows=15, classes=classes)
    report = b3.cvc(model, frame, target="y", groups="group")
    assert "B350" in {finding.code for finding in report.findings}
    assert report.cvc is report.bias is None
    assert report.grouped > report.cv
    same = b3.cvc(model, world(1, rows=15, classes=classes), target="y", groups="group")
    assert same.cvc is not None


def test_nearest_neighbours_with_eight_groups_get_no_correction():
    frame = world(0, groups=8, rows=20, classes=True)
    report = b3.cvc(KNeighborsClassifier(5), frame, target="y", groups="group", draws=20)
    assert "B331" in {finding.code for finding in report.findings}
    assert report.cvc is None
