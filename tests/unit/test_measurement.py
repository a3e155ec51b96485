"""Resampling, refits and the curves put together from them."""

import pickle
import threading
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.dummy import DummyClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.tree import DecisionTreeClassifier

from mlflow_b3 import FitError, InputError
from mlflow_b3.data.folds import make_folds
from mlflow_b3.data.losses import resolve_loss
from mlflow_b3.data.table import ModelInputs, prepare
from mlflow_b3.measurement.campaign import Campaign
from mlflow_b3.measurement.collecting import sharpness_of
from mlflow_b3.measurement.design import (
    choose_repeats,
    exposures,
    fits_within,
    least_fits,
    parse_budget,
    plan_fits,
)
from mlflow_b3.measurement.refits import KINDS, Outcome, Refitter, Resampler, Task, breakable
from mlflow_b3.measurement.runner import Means, WorkerSettings
from mlflow_b3.refit.sklearn import CloneLearner

pytestmark = pytest.mark.newest


def table(clusters=12, rows=5, seed=0):
    rng = np.random.default_rng(seed)
    n_rows = clusters * rows
    frame = pd.DataFrame(rng.normal(size=(n_rows, 3)), columns=list("abc"))
    frame["label"] = (frame["a"] + rng.normal(size=n_rows) > 0).astype(int)
    frame["cluster"] = np.repeat(np.arange(clusters), rows)
    return prepare(
        frame, target="label", cluster="cluster", task="classification", inputs=ModelInputs()
    )


def resampler(data, scheme="subset", seed=0):
    folds = make_folds(data, 3)
    return Resampler(
        folds=folds,
        iid_folds=folds,
        clusters=data.clusters,
        exposures=exposures(),
        scheme=scheme,
        seed=seed,
    )


def campaign(model, data=None, n_jobs=None, backend=None, **options):
    data = table() if data is None else data
    learner = CloneLearner(model)
    return Campaign(
        data=data,
        learner=learner,
        loss=resolve_loss(None, learner.task),
        folds=make_folds(data, 3),
        means=Means(workers=WorkerSettings(n_jobs=n_jobs, backend=backend), progress=False),
        **{"budget": least_fits(n_folds=3, stochastic=learner.stochastic), **options},
    )


@pytest.mark.parametrize("level", range(1, 6))
def test_a_resampled_training_set_is_as_large_as_the_fold_and_has_no_row_twice(level):
    data = table()
    drawn = resampler(data)
    fold = drawn.folds[0]
    for replicate in range(7):
        draw = drawn.draw(Task("rows", 0, level, replicate))
        assert len(draw.training) == len(fold.training) == len(np.unique(draw.training))
        count = KINDS["rows"].count(drawn, Task("rows", 0, level, replicate))
        assert np.isin(draw.training, fold.validation).sum() == count
        assert set(draw.validation) == set(fold.validation) - set(draw.training)
        assert set(draw.held_back) == set(fold.training) - set(draw.training)
        assert len(draw.held_back) == count


def test_every_row_is_scored_equally_often_up_to_one_round():
    data = table()
    drawn = resampler(data)
    fold = drawn.folds[0]
    for level in range(1, 6):
        counts = np.zeros(data.n_rows)
        for replicate in range(20):
            counts[drawn.draw(Task("rows", 0, level, replicate)).validation] += 1
        scored = counts[fold.validation]
        assert np.ptp(scored) <= 20 / 4, "plain random subsets range over more"
        injected = [KINDS["rows"].count(drawn, Task("rows", 0, level, r)) for r in range(20)]
        assert scored.sum() == 20 * len(fold.validation) - sum(injected)


def test_each_subset_by_itself_is_uniform():
    """Every row is injected with the same probability over seeds; 3000 draws, error 0.9%."""
    data = table()
    hits = np.zeros(data.n_rows)
    for seed in range(3000):
        drawn = resampler(data, seed=seed)
        draw = drawn.draw(Task("rows", 0, 5, 1))
        hits[np.setdiff1d(drawn.folds[0].validation, draw.validation)] += 1
    fold = resampler(data).folds[0]
    share = hits[fold.validation] / 3000
    expected = exposures()[5]
    assert np.abs(share - expected).max() < 5 * np.sqrt(expected * (1 - expected) / 3000)


def test_the_number_of_injected_rows_is_right_on_average_however_small_the_fold():
    """20 validation rows: 2.4% of them is half a row."""
    drawn = resampler(table())
    for level in range(1, 6):
        counts = [KINDS["rows"].count(drawn, Task("rows", 0, level, r)) for r in range(600)]
        wanted = exposures()[level] * len(drawn.folds[0].validation)
        assert np.ptp(counts) <= 1
        assert np.mean(counts) == pytest.approx(wanted, abs=4 * 0.5 / np.sqrt(600))


def test_drawing_with_replacement_is_binomial_as_in_the_papers():
    data = table(clusters=30, rows=10)
    drawn = resampler(data, scheme="replace")
    fold = drawn.folds[0]
    counts = [
        np.isin(drawn.draw(Task("rows", 0, 5, replicate)).training, fold.validation).sum()
        for replicate in range(400)
    ]
    share, size = exposures()[5], len(fold.training)
    assert np.mean(counts) == pytest.approx(size * share, rel=0.02)
    assert np.var(counts) == pytest.approx(size * share * (1 - share), rel=0.3)


def test_breaking_clusters_moves_part_of_each_and_scores_the_rest():
    data = table()
    drawn = resampler(data)
    fold = drawn.folds[0]
    for replicate in range(6):
        draw = drawn.draw(Task("fragments", 0, 0, replicate))
        moved = np.intersect1d(draw.training, fold.validation)
        assert len(draw.training) == len(fold.training)
        assert set(data.clusters[moved]) == set(data.clusters[draw.validation])
        assert not set(moved) & set(draw.validation)
    halves = [set(data.clusters[drawn.draw(Task("fragments", 0, 0, r)).validation]) for r in (0, 1)]
    assert halves[0] | halves[1] == set(data.clusters[fold.validation])
    assert not halves[0] & halves[1], "two replicates break every cluster once"


def test_the_cut_of_a_broken_cluster_is_uniform():
    data = table(rows=5)
    drawn = resampler(data)
    sizes = []
    for replicate in range(800):
        draw = drawn.draw(Task("fragments", 0, 0, replicate))
        stated = draw.validation[draw.arms == 0]
        sizes += np.unique(data.clusters[stated], return_counts=True)[1].tolist()
    shares = np.bincount(sizes, minlength=5)[1:] / len(sizes)
    assert shares == pytest.approx([0.25] * 4, abs=0.05)


def test_the_test_trains_on_one_side_only():
    data = table(clusters=12, rows=10)
    drawn = resampler(data)
    fold = drawn.folds[0]
    without = drawn.draw(Task("test-without", 0, 0, 0))
    assert set(without.training) <= set(fold.training)
    parts = [drawn.draw(Task("test-with", 0, part, 0)) for part in range(5)]
    assert sorted(np.concatenate([part.validation for part in parts])) == list(fold.validation)
    for part in parts:
        assert set(part.training) <= set(fold.validation) - set(part.validation)
        assert len(part.training) == len(without.training)


def test_steps_of_a_rotation_are_the_same_whether_their_orders_are_kept_or_drawn_again():
    data = table(clusters=30, rows=6)
    tasks = [Task("doses", fold, step, 0) for step in range(5) for fold in range(3)]
    kept = resampler(data)
    for task in tasks:
        once, again = kept.draw(task), resampler(data).draw(task)
        for name in ("training", "validation", "held_back", "levels"):
            np.testing.assert_array_equal(getattr(once, name), getattr(again, name))
    assert len(pickle.dumps(kept)) == len(pickle.dumps(resampler(data)))


def outcome_of(model, data, task):
    learner = CloneLearner(model)
    loss = resolve_loss(None, learner.task)
    return Refitter(data=data, learner=learner, loss=loss, resampler=resampler(data)).run(task)


def test_a_worker_sends_a_bit_for_each_label_error_and_no_rows_that_can_be_drawn_again():
    data = table(clusters=300, rows=20)
    outcome = outcome_of(DecisionTreeClassifier(random_state=0), data, Task("doses", 0, 1, 0))
    sent = pickle.dumps(outcome, protocol=5)
    assert len(sent) < len(outcome.validation) + 500
    received = pickle.loads(sent)
    for name in ("validation", "held_back"):
        np.testing.assert_array_equal(getattr(received, name), getattr(outcome, name), strict=True)
    assert outcome.draw is not None
    assert received.draw is None


@pytest.mark.parametrize("losses", [[0.0, 0.5, 1.0], [2.0], [np.nan, 1.0], []])
def test_a_worker_sends_other_losses_unchanged(losses):
    outcome = Outcome(task=Task("loco", 0, 0, 0), validation=np.array(losses), held_back=None)
    received = pickle.loads(pickle.dumps(outcome))
    np.testing.assert_array_equal(received.validation, outcome.validation, strict=True)
    assert received.held_back is None


def test_single_row_clusters_cannot_be_broken():
    assert breakable(np.array([0, 1, 1, 2, 3, 3, 3])).tolist() == [1, 3]


def test_levels_crowd_at_zero_and_leave_rows_to_score():
    levels = exposures()
    assert levels[0] == 0
    assert levels[-1] == 0.6
    assert np.all(np.diff(np.diff(levels)) > 0)


@pytest.mark.parametrize("fits", [100, 137, 420, 1000, 2500])
@pytest.mark.parametrize("stochastic", [False, True])
def test_a_plan_never_exceeds_its_budget_and_wastes_little(fits, stochastic):
    fits = max(fits, least_fits(n_folds=5, stochastic=stochastic))
    plan = plan_fits(fits, n_folds=5, stochastic=stochastic)
    used = 5 * plan.fits_per_fold
    assert fits - 35 <= used <= fits


def test_a_budget_below_the_least_is_refused_before_the_first_refit():
    with pytest.raises(InputError, match="need at least 69"):
        campaign(DummyClassifier(strategy="most_frequent"), budget=20).measure()


@pytest.mark.parametrize(
    ("budget", "repeats"), [(None, 3), (480, 3), (250, 2), (100, 1), ("10m", 1)]
)
def test_the_budget_decides_how_often_clusters_are_assigned_anew(budget, repeats):
    assert choose_repeats(budget, n_folds=5, stochastic=False) == repeats


def test_without_a_budget_many_folds_get_what_they_need():
    assert plan_fits(None, n_folds=50, stochastic=False).fits_per_fold * 50 > 480


@pytest.mark.parametrize(
    ("budget", "expected"),
    [
        (None, (None, None)),
        (400, (400, None)),
        ("400", (400, None)),
        ("90s", (None, 90)),
        ("10m", (None, 600)),
        ("1.5h", (None, 5400)),
    ],
)
def test_budgets_are_refits_or_times(budget, expected):
    assert parse_budget(budget) == expected


@pytest.mark.parametrize("budget", [0, -5, "10 days", "", "m", True, 1.5])
def test_other_budgets_are_refused(budget):
    with pytest.raises(InputError, match="budget"):
        parse_budget(budget)


def test_a_time_becomes_refits_by_their_speed():
    assert fits_within(60, per_fit=0.5, workers=2) == 216
    assert fits_within(-1, per_fit=0.5, workers=2) == 1


def test_the_number_of_workers_does_not_change_a_digit():
    model = DecisionTreeClassifier(random_state=0, max_features=2)
    one = campaign(model).measure()[0]
    two = campaign(model, n_jobs=2, backend="loky").measure()[0]
    assert one.curve == two.curve
    assert one.fragments == two.fragments
    assert (one.loco, one.iid) == (two.loco, two.iid)
    assert all(
        np.array_equal(a, b) for a, b in zip(*one.test_losses, *two.test_losses, strict=True)
    )


@pytest.mark.parametrize(
    "options", [{"n_jobs": 2, "backend": "loky"}, {"n_jobs": 2, "backend": "threading"}]
)
def test_a_learner_that_is_not_parallel_runs_here_whatever_the_number_of_workers(options):
    threads = []

    class OneProcess(CloneLearner):
        parallel = False

        def train(self, rows, seed):
            threads.append(threading.current_thread())
            return super().train(rows, seed)

    planned = campaign(LogisticRegression())
    means = Means(workers=WorkerSettings(**options), progress=False)
    alone = replace(planned, learner=OneProcess(LogisticRegression()), means=means)
    assert alone.measure()[0].curve == planned.measure()[0].curve
    assert set(threads) == {threading.current_thread()}


def test_another_seed_gives_other_numbers():
    assert campaign(LogisticRegression()).measure()[0].curve != (
        campaign(LogisticRegression(), seed=1).measure()[0].curve
    )


def test_a_learner_that_ignores_its_rows_has_a_flat_curve_without_noise():
    data = table()
    model = DummyClassifier(strategy="constant", constant=1)
    measured = campaign(model, data).measure()[0]
    error = np.mean(data.target != 1)
    assert measured.loco == pytest.approx(error)
    assert measured.iid == pytest.approx(error)
    assert measured.curve.loss[1:3] == pytest.approx([error] * 2, abs=0.1)
    assert measured.curve.stderr == pytest.approx([0] * 6, abs=1e-12), "same rows, same losses"


class SeenBefore(ClassifierMixin, BaseEstimator):
    """Knows the label of a row exactly when a row of its cluster (column a) was in training."""

    def fit(self, X, y):
        self.classes_ = np.unique(y)
        self.known_ = set(X["a"])
        return self

    def predict(self, X):
        return np.where(X["a"].isin(self.known_), X["label"], 1 - X["label"])


def oracle_table(clusters=40, rows=4):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"a": np.repeat(np.arange(clusters), rows)})
    frame["label"] = rng.integers(0, 2, len(frame))
    frame["cluster"] = frame["a"]
    frame["target"] = frame["label"]
    return prepare(
        frame, target="target", cluster="cluster", task="classification", inputs=ModelInputs()
    )


def test_the_curve_of_a_learner_that_remembers_clusters_is_known_in_closed_form():
    """A row is wrong unless one of its three mates is in training: b(x) = (1-x)³, nearly."""
    measured = campaign(SeenBefore(), oracle_table(), budget=900).measure()[0]
    exposure = np.array(measured.curve.exposure)
    noise = np.array(measured.curve.stderr)
    assert measured.loco == 1.0
    assert np.all(np.abs(measured.curve.loss - (1 - exposure) ** 3) < 5 * noise + 0.02)
    held_back = (exposure * measured.curve.exhausted_at) ** 3
    assert measured.curve.training_loss == pytest.approx(held_back, abs=0.03), "a line through π³"
    assert measured.curve.sharpness == 3
    assert measured.fragments is not None
    assert measured.fragments.seen_loss == 0.0


def test_the_sharpness_follows_from_the_cluster_sizes():
    assert sharpness_of(np.repeat(np.arange(10), 4)) == 3
    assert sharpness_of(np.arange(10)) == 1
    assert sharpness_of(np.zeros(500, int)) == 25


class Moody(ClassifierMixin, BaseEstimator):
    """Fails on a share of all training sets."""

    def __init__(self, share=0.0):
        self.share = share

    def fit(self, X, y):
        mood = abs(float(X["a"].sum())) * 1e4 % 1
        if mood < self.share:
            raise RuntimeError("in a bad mood\n    because\n    ^^^^^^^")
        self.classes_ = np.unique(y)
        return self

    def predict(self, X):
        return np.ones(len(X), dtype=int)


def test_a_few_failed_refits_are_counted_and_left_out():
    measured, counts = campaign(Moody(0.04), table(seed=3), budget=300).measure()
    assert 0 < counts.failed <= 0.1 * counts.done
    assert "in a bad mood" in counts.first_error
    assert np.isfinite(measured.curve.loss).all()


def test_many_failed_refits_stop_the_audit_with_the_first_traceback():
    with pytest.raises(
        FitError, match="refits failed, the first with: RuntimeError: in a bad mood\\n\\nTraceback"
    ):
        campaign(Moody(1.0)).measure()


@pytest.mark.parametrize("n_jobs", [0, 1.5, "two", True])
def test_a_number_of_workers_that_means_nothing_is_refused(n_jobs):
    with pytest.raises(InputError, match="n_jobs"):
        campaign(LogisticRegression(), n_jobs=n_jobs).measure()
