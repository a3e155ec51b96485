"""Random slopes, which corrections with random intercepts do not see."""

import json

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LinearRegression, LogisticRegression, Ridge
from sklearn.neighbors import KNeighborsClassifier

import mlflow_b3 as b3
from mlflow_b3.correlated.slopes import LEVEL, POWER, examine_slopes
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


def codes(report):
    return {finding.code for finding in report.findings}


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
    assert "B350" in codes(report)
    assert report.cvc is report.bias is None
    assert report.grouped > report.cv
    same = b3.cvc(model, world(1, rows=15, classes=classes), target="y", groups="group")
    assert same.cvc is not None


# --- Slopes that the check could not have seen


def detectable(frame):
    features, target = frame[["a", "b", "c", "d"]], frame["y"].to_numpy(dtype=float)
    scores = features.to_numpy() @ np.array([0.8, -0.5, 0, 0])
    level = Level(name="group", codes=frame["group"].to_numpy())
    return examine_slopes(target, features, scores, level, 0)


@pytest.mark.parametrize(("classes", "groups", "rows"), [(False, 30, 10), (True, 30, 10)])
def test_slopes_of_the_detectable_sd_are_found_in_four_of_five_tables(classes, groups, rows):
    found, tried = 0, 40
    for seed in range(tried):
        test = detectable(world(seed, groups=groups, rows=rows, classes=classes))
        if test.rejected:
            tried -= 1
            continue
        sd = dict(test.detectable)["a"]
        frame = with_slopes(seed, sd, groups=groups, rows=rows, classes=classes)
        found += detectable(frame).rejected
    error = np.sqrt(POWER * (1 - POWER) / tried)
    assert abs(found / tried - POWER) <= 3 * error


def with_slopes(seed, sd, *, groups, rows, classes):
    """Return the features of `world` with random slopes of one of them, within groups."""
    frame = world(seed, groups=groups, rows=rows, classes=classes)
    rng = np.random.default_rng([seed, 1])
    within = frame["a"] - frame.groupby("group")["a"].transform("mean")
    within /= np.sqrt(np.mean(within**2))
    effects = rng.normal(size=groups) + np.outer(within, sd * rng.normal(size=groups))
    mean = 0.8 * frame["a"] - 0.5 * frame["b"] + effects[np.arange(len(frame)), frame["group"]]
    noise = rng.logistic(size=len(frame)) if classes else rng.normal(size=len(frame))
    return frame.assign(y=(mean + noise > 0).astype(int) if classes else mean + noise)


def test_more_rows_show_smaller_slopes():
    few = dict(detectable(world(1, groups=30, rows=10)).detectable)
    many = dict(detectable(world(1, groups=60, rows=30)).detectable)
    assert all(many[name] < few[name] / 2 for name in "abcd")


@pytest.mark.parametrize("rows", [10, 5])
def test_slopes_of_a_classifier_are_found_in_a_small_sample_or_could_pass_unseen(rows):
    reports = [
        b3.cvc(
            LogisticRegression(),
            world(seed, groups=300 // rows, rows=rows, slope=0.7, classes=True),
            target="y",
            groups="group",
            loss="log",
        )
        for seed in range(4)
    ]
    assert all(codes(report) & {"B350", "B354"} for report in reports)
    unseen = [report for report in reports if "B354" in codes(report)]
    assert unseen
    for report in unseen:
        assert all(limit.sd > 0.7 for limit in report.slopes)
        assert max(limit.bias for limit in report.slopes) > report.bias / 3
        message = next(f.message for f in report.findings if f.code == "B354")
        assert "no evidence of equal slopes" in message


@pytest.mark.parametrize(("model", "classes"), [(Ridge(), False), (LogisticRegression(), True)])
def test_many_large_groups_would_have_shown_slopes_that_matter(model, classes):
    frame = world(1, groups=80, rows=30, classes=classes)
    report = b3.cvc(model, frame, target="y", groups="group")
    assert report.cvc is not None
    assert codes(report).isdisjoint({"B350", "B354"})
    assert [limit.feature for limit in report.slopes] == ["a", "b", "c", "d"]
    assert max(limit.bias for limit in report.slopes) < report.bias / 3


def test_groups_that_are_too_small_for_the_check_say_so():
    frame = world(0, groups=100, rows=2)
    report = b3.cvc(Ridge(), frame, target="y", groups="group")
    assert {limit.sd for limit in report.slopes} == {None}
    assert "B354" in codes(report)
    assert "however much they differ" in str(report)


def test_features_that_do_not_vary_within_groups_have_no_slopes_to_miss():
    frame = world(0)
    means = frame.groupby("group")[["a", "b", "c", "d"]].transform("mean")
    report = b3.cvc(Ridge(), frame.assign(**means), target="y", groups="group")
    assert report.slopes == ()
    assert "B354" not in codes(report)


def test_what_slopes_add_to_the_bias_of_least_squares_is_the_exact_amount():
    """Σ H_ij Cov_ij over cross-validated rows, with the covariance of slopes."""
    frame = world(3, groups=30, rows=10)
    features, group = frame[["a", "b", "c", "d"]].to_numpy(), frame["group"].to_numpy()
    report = b3.cvc(LinearRegression(), frame, target="y", groups="group", folds=group_free(frame))
    design = np.column_stack([np.ones(len(frame)), features])
    exact = np.zeros(4)
    within = features - frame.groupby("group")[["a", "b", "c", "d"]].transform("mean").to_numpy()
    within /= np.sqrt(np.mean(within**2, axis=0))
    same = np.equal.outer(group, group)
    for fold in range(10):
        held = np.asarray(group_free(frame)) == fold
        hat = design[held] @ np.linalg.pinv(design[~held])
        for place in range(4):
            covariance = np.outer(within[held, place], within[~held, place])
            exact[place] += 2 * np.sum(hat * covariance * same[np.ix_(held, ~held)]) / len(frame)
    added = [limit.bias / limit.sd**2 for limit in report.slopes]
    # one hat matrix of all rows stands for those of the folds
    assert added == pytest.approx(exact, rel=0.15)


def group_free(frame):
    """Return ten folds, each with one row of every group."""
    return (np.arange(len(frame)) % 10).tolist()


def test_the_record_keeps_which_slopes_could_pass_unseen():
    frame = world(2, slope=0.7, classes=True)
    report = b3.cvc(LogisticRegression(), frame, target="y", groups="group", loss="log")
    kept = json.loads(report.to_json())
    assert kept["slopes"][0].keys() == {"level", "feature", "sd", "bias"}
    assert b3.CvcReport.from_json(report.to_json()).slopes == report.slopes
    older = {name: value for name, value in kept.items() if name != "slopes"}
    assert b3.CvcReport.from_dict(older).to_dict() == older


def test_nearest_neighbours_with_eight_groups_get_no_correction():
    frame = world(0, groups=8, rows=20, classes=True)
    report = b3.cvc(KNeighborsClassifier(5), frame, target="y", groups="group", draws=20)
    assert "B331" in codes(report)
    assert report.cvc is report.interval is None
    assert "withheld" in str(report)
    assert report.grouped is not None
