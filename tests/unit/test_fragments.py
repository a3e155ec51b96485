"""Pattern `fragments`: how clusters are broken, and what follows from it, against closed forms."""

import json
from dataclasses import replace
from math import comb

import numpy as np
import pandas as pd
import pytest
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.neighbors import KNeighborsClassifier

import mlflow_b3 as b3
from mlflow_b3 import FragmentLosses, InputError, LossCurve, SeenShare, estimate_fragments
from mlflow_b3.auditing.leakage import make_claim
from mlflow_b3.data.folds import FoldSummary, make_folds, summarize_folds
from mlflow_b3.data.losses import resolve_loss
from mlflow_b3.data.table import ModelInputs, prepare
from mlflow_b3.estimation.fragments import seen_share, tipping_split_rate
from mlflow_b3.estimation.problem import LeakShares, unmix
from mlflow_b3.measurement.collecting import FoldLosses, fragment_losses
from mlflow_b3.measurement.design import exposures
from mlflow_b3.measurement.refits import Refitter, Resampler, Task, breakable, parse_fragments
from mlflow_b3.refit.sklearn import CloneLearner
from mlflow_b3.reporting.pages import to_text
from mlflow_b3.reporting.sentences import explain
from mlflow_b3.reporting.tables import sensitivity_rows

pytestmark = pytest.mark.newest

# --- a learner whose loss is a known function of the dose -----------------------------------------


def loss_at(dose):
    """Return the loss of a row with `dose` rows of its true cluster in training."""
    return 1 / (1 + dose)


class Counts(RegressorMixin, BaseEstimator):
    """Errs by `loss_at` of the number of training rows of the same true cluster (column a)."""

    def fit(self, X, y):  # noqa: ARG002 - the target is a column too
        self.counts_ = X["a"].value_counts()
        return self

    def predict(self, X):
        return X["y"] + loss_at(X["a"].map(self.counts_).fillna(0))


def table(true, ids=None):
    frame = pd.DataFrame({"a": true, "y": np.random.default_rng(0).normal(size=len(true))})
    frame["cluster"], frame["target"] = true if ids is None else ids, frame["y"]
    return prepare(
        frame, target="target", cluster="cluster", task="regression", inputs=ModelInputs()
    )


def make_resampler(data, fragments="uniform", folds=3, seed=0):
    made = make_folds(data, folds, seed=seed)
    return Resampler(
        folds=made,
        iid_folds=made,
        clusters=data.clusters,
        exposures=exposures(),
        scheme="subset",
        seed=seed,
        fragments=parse_fragments(fragments),
    )


def measure(data, fragments="uniform", refits=4, **options):
    """Run the refits of pattern `fragments` only."""
    resampler = make_resampler(data, fragments, **options)
    refitter = Refitter(
        data=data,
        learner=CloneLearner(Counts()),
        loss=resolve_loss("absolute", "regression"),
        resampler=resampler,
    )
    folds = [FoldLosses(fold, len(resampler.exposures)) for fold in resampler.folds]
    numbers = range(len(folds))
    tasks = [Task("loco", number, 0, 0) for number in numbers]
    tasks += [Task("fragments", number, 0, r) for number in numbers for r in range(refits)]
    for outcome in refitter.run_batch(tasks):
        folds[outcome.task.fold].add(outcome, resampler)
    seen = [fold.seen for fold in folds]
    return fragment_losses(seen, data.clusters, data.clusters, resampler.fragments)[0]


def split_in(first, rows):
    """Return the mean loss of the rows of a cluster split in two: each meets the other part."""
    return (first * loss_at(rows - first) + (rows - first) * loss_at(first)) / rows


# --- the dose -------------------------------------------------------------------------------------


@pytest.mark.parametrize("fragments", ["singles", "halves", [2], [0.5], "2"])
def test_rows_meet_the_other_part_of_their_cluster_and_count_one_each(fragments):
    """Of m rows split in (a, m-a), a meet m-a mates and m-a meet a: exact, four refits suffice."""
    first = {"singles": 1, "halves": 3, "2": 2}.get(str(fragments), 2)
    expected = split_in(3 if fragments == [0.5] else first, 6)
    losses = measure(table(np.repeat(np.arange(21), 6)), fragments)
    assert losses.loss == pytest.approx(1.0)
    assert losses.seen_loss == pytest.approx(expected)


def test_a_uniform_cut_weights_the_doses_by_the_rows_that_meet_them():
    """P(dose = d) = 2(m-d)/(m(m-1)): larger parts hold more rows, and meet less."""
    rows = 6
    expected = sum(2 * (rows - d) / (rows * (rows - 1)) * loss_at(d) for d in range(1, rows))
    assert expected == pytest.approx(np.mean([split_in(a, rows) for a in range(1, rows)]))
    losses = measure(table(np.repeat(np.arange(42), rows)), refits=24)
    breakings = 42 * 6 * 4 / 7  # each cluster once in four refits, four of seven in this way
    spread = np.std([split_in(a, rows) for a in range(1, rows)])
    assert losses.seen_loss == pytest.approx(expected, abs=4 * spread / np.sqrt(breakings))


def test_known_sizes_are_drawn_with_equal_chances():
    expected = np.mean([split_in(1, 6), split_in(4, 6)])
    losses = measure(table(np.repeat(np.arange(42), 6)), [1, 4], refits=24)
    assert losses.seen_loss == pytest.approx(expected, abs=0.01)


def test_every_row_counts_once_whatever_the_size_of_its_cluster():
    sizes = np.tile([2, 4, 10], 14)
    losses = measure(table(np.repeat(np.arange(42), sizes)), "halves", refits=56)
    expected = np.average([split_in(m // 2, m) for m in sizes], weights=sizes)
    assert losses.seen_loss == pytest.approx(expected, abs=0.01)


def test_four_refits_score_every_row_once_except_those_broken_again():
    resampler = make_resampler(table(np.repeat(np.arange(21), 6)))
    draws = [resampler.draw(Task("fragments", 0, 0, replicate)) for replicate in range(4)]
    rows = np.concatenate([d.validation[d.arms != 1] for d in draws])
    again = np.concatenate([d.validation[d.arms == 1] for d in draws])
    assert len(np.unique(rows)) == len(rows)
    assert 0 < len(again) <= 6
    assert len(rows) == len(resampler.folds[0].validation) - 6
    for draw in draws:
        assert not set(draw.training) & set(draw.validation)
        assert len(draw.training) == len(resampler.folds[0].training)


def test_a_single_cluster_is_broken_as_stated_as_long_as_refits_are_few():
    """Leaving one cluster out at a time, two refits swap its two parts."""
    resampler = make_resampler(table(np.repeat(np.arange(3), 8)))
    draws = [resampler.draw(Task("fragments", 0, 0, replicate)) for replicate in range(2)]
    assert all((draw.arms == 0).all() for draw in draws)
    both = np.sort(np.concatenate([draw.validation for draw in draws]))
    assert both.tolist() == resampler.folds[0].validation.tolist()


def test_a_training_side_smaller_than_the_fragment_takes_what_it_can():
    resampler = make_resampler(table(np.repeat([0, 1], [40, 3])), "halves", folds=2)
    fold = int(np.argmax([len(fold.validation) for fold in resampler.folds]))
    draw = resampler.draw(Task("fragments", fold, 0, 0))
    assert len(draw.training) == 3
    assert len(draw.validation) == 20


def test_rows_that_cannot_be_broken_do_not_stand_in_the_way():
    """e_seen is LOCO plus the change, not the mean of the rows that happen to be breakable."""
    clusters = np.concatenate([np.repeat(np.arange(21), 4), np.arange(21, 63)])
    losses = measure(table(clusters), "halves")
    assert losses.broken_rows == pytest.approx(84 / 126)
    assert losses.seen_loss == pytest.approx(1 + (loss_at(2) - 1))


def test_sizes_apply_to_larger_clusters_and_others_stay_whole():
    clusters = np.repeat([0, 1, 2], [2, 3, 5])
    assert breakable(clusters, parse_fragments([3, 4])).tolist() == [2]
    assert breakable(clusters, parse_fragments([0.9])).tolist() == [0, 1, 2]
    sizes, rng = parse_fragments([2, 4]), np.random.default_rng(0)
    assert {sizes.draw(4, rng) for _ in range(20)} == {2}
    assert {sizes.draw(5, rng) for _ in range(20)} == {2, 4}
    assert sizes.draw(2, rng) == 0


def test_shares_are_rounded_at_random_and_leave_a_row_on_either_side():
    rng = np.random.default_rng(0)
    drawn = [parse_fragments([0.25]).draw(6, rng) for _ in range(2000)]
    assert set(drawn) == {1, 2}
    assert np.mean(drawn) == pytest.approx(1.5, abs=4 * 0.5 / np.sqrt(2000))
    assert {parse_fragments([0.01, 0.99]).draw(3, rng) for _ in range(50)} == {1, 2}


@pytest.mark.parametrize(
    ("value", "text"),
    [("uniform", "uniform"), ("1, 1,3", "1,1,3"), ((0.1, 0.4), "0.1,0.4"), (np.array([2]), "2")],
)
def test_the_argument_is_recorded_as_text_that_can_be_read_again(value, text):
    assert str(parse_fragments(value)) == text
    assert parse_fragments(text) == parse_fragments(value)


@pytest.mark.parametrize(
    "value", [[], "", [0], [-1], [1.5], [0.5, 2], [float("nan")], None, [True]]
)
def test_other_sizes_are_refused(value):
    with pytest.raises(
        InputError, match=r"fragments=.*whole numbers of rows from 1, or else shares"
    ):
        parse_fragments(value)


def test_a_misspelt_name_is_corrected():
    with pytest.raises(InputError, match="Did you mean 'halves'"):
        parse_fragments("halfs")


# --- how much the dose matters --------------------------------------------------------------------


def test_the_smallest_and_the_largest_dose_come_with_the_same_refits():
    losses = measure(table(np.repeat(np.arange(42), 6)), refits=8)
    doses = {dose.fragments: dose.seen_loss for dose in losses.doses}
    assert doses == {
        "singles": pytest.approx(split_in(1, 6)),
        "halves": pytest.approx(split_in(3, 6)),
    }
    answer = estimate_fragments(losses, seen_share=0.2)
    singles, halves = (dose.e0 for dose in answer.doses)
    assert losses.loss < singles < answer.e0 < halves
    assert all(dose.stderr >= 0 for dose in losses.doses)


def test_a_dose_that_is_the_stated_one_is_not_measured_twice():
    losses = measure(table(np.repeat(np.arange(42), 6)), "halves")
    assert [dose.fragments for dose in losses.doses] == ["singles"]


# --- clusters that are already broken -------------------------------------------------------------


@pytest.mark.parametrize(("rows", "expected"), [(2, loss_at(1)), (3, loss_at(2))])
def test_breaking_again_gives_all_but_the_rows_own_part_to_training(rows, expected):
    """Two rows cannot be broken twice; three end up alone, with two mates in training."""
    losses = measure(table(np.repeat(np.arange(60), rows)), refits=12)
    assert losses.again_loss == pytest.approx(expected)


def split_table(clusters, rows, split, seed):
    """Return true clusters and ids, a share of the clusters split at a uniform cut."""
    rng = np.random.default_rng(seed)
    true = np.repeat(np.arange(clusters), rows)
    ids = true.copy()
    for number in range(round(split * clusters)):
        own = rng.permutation(np.flatnonzero(true == number))
        ids[own[: rng.integers(1, rows)]] = clusters + number
    return true, ids


def test_the_loss_on_new_clusters_is_recovered_from_clusters_that_are_really_split():
    """Breaking fragments once more overstates the gain; ρ takes most of that out.

    The learner errs by 1 on a new cluster, so LOCO = (1-s) + s·e_seen exactly.
    """
    errors, plain_errors, true_seen = [], [], []
    for seed in range(4):
        true, ids = split_table(200, 6, split=0.4, seed=seed)
        data = table(true, ids)
        losses = measure(data, refits=8, folds=5, seed=seed)
        folds = make_folds(data, 5, seed=seed)
        apart = np.concatenate([np.isin(true[f.validation], true[f.training]) for f in folds])
        share = apart.mean()
        true_seen.append((losses.loss - (1 - share)) / share)
        errors.append(estimate_fragments(losses, seen_share=share).e0 - 1)
        plain = replace(losses, again_loss=None, again_rows=1.0, covariance=None)
        plain_errors.append(estimate_fragments(plain, seen_share=share).e0 - 1)
    expected = np.mean([split_in(a, 6) for a in range(1, 6)])
    assert np.mean(true_seen) == pytest.approx(expected, abs=0.01)
    assert abs(np.mean(errors)) < 0.012
    assert np.mean(plain_errors) > 2 * abs(np.mean(errors)), "more than half of it"


# --- the share of seen rows -----------------------------------------------------------------------


def fold(clusters_training, clusters_validation, n_validation=None):
    return FoldSummary(
        n_training=10 * clusters_training,
        n_validation=n_validation or 10 * clusters_validation,
        clusters_training=clusters_training,
        clusters_validation=clusters_validation,
        shared_clusters=0,
        shared_rows=0.0,
    )


@pytest.mark.parametrize("parts", [2, 3, 5])
def test_with_many_ids_the_share_is_the_split_count_identity(parts):
    """σ·(1 - K^-m) with m = f - 1 other ids."""
    share = seen_share(0.3, [fold(80_000, 20_000)] * 5, parts=parts).share
    assert share == pytest.approx(0.3 * (1 - 5.0 ** (1 - parts)), rel=1e-3)


def test_with_few_ids_they_are_drawn_without_replacement():
    """Three of five ids validate: both others are among the two with probability 1/C(4, 2)."""
    share = seen_share(0.5, [fold(2, 3)], parts=3).share
    assert share == pytest.approx(0.5 * (1 - comb(2, 2) / comb(4, 2)))
    assert seen_share(0.5, [fold(9, 1)], parts=4).share == pytest.approx(0.5)


def test_folds_count_by_their_rows():
    folds = [fold(3, 1, n_validation=10), fold(2, 2, n_validation=90)]
    expected = 0.5 * (0.1 * 1 + 0.9 * 2 / 3)
    assert seen_share(0.5, folds).share == pytest.approx(expected)


@pytest.mark.parametrize("parts", [2, 3])
def test_the_share_holds_for_clusters_of_unequal_size_in_folds_balanced_by_rows(parts):
    """Mean over 60 tables of 40 clusters with 2 to 30 rows, the half of them split."""
    rng = np.random.default_rng(1)
    differences = []
    for _ in range(60):
        true = np.repeat(np.arange(40), np.clip(rng.geometric(0.12, 40) + 2, 3, 30))
        ids = true.copy()
        for number in range(20):
            own = rng.permutation(np.flatnonzero(true == number))
            cuts = np.sort(rng.choice(np.arange(1, len(own)), parts - 1, replace=False))
            for piece, rows in enumerate(np.split(own, cuts)[1:], start=1):
                ids[rows] = 40 * piece + number
        data = table(true, ids)
        folds = make_folds(data, 4, seed=int(rng.integers(1000)))
        seen = [np.isin(true[f.validation], true[f.training]) for f in folds]
        split_rate = np.mean(true < 20)
        stated = seen_share(split_rate, summarize_folds(folds, data), parts=parts).share
        differences.append(np.concatenate(seen).mean() - stated)
    error = np.std(differences) / np.sqrt(60)
    assert np.mean(differences) == pytest.approx(0, abs=4 * error)
    assert error < 0.01


@pytest.mark.parametrize(("rate", "parts"), [(1.0, 2), (-0.1, 2), (float("nan"), 2)])
def test_rates_outside_their_range_are_refused(rate, parts):
    with pytest.raises(InputError, match="split_rate"):
        seen_share(rate, [fold(8, 2)], parts=parts)


@pytest.mark.parametrize("parts", [1, 2.5, True])
def test_a_split_cluster_has_at_least_two_parts(parts):
    with pytest.raises(InputError, match=r"parts=.*whole number from 2"):
        seen_share(0.1, [fold(8, 2)], parts=parts)


# --- the estimate ---------------------------------------------------------------------------------


def test_two_numbers_suffice():
    answer = estimate_fragments(FragmentLosses(loss=0.30, seen_loss=0.20), seen_share=0.25)
    assert answer.e0 == pytest.approx((0.30 - 0.25 * 0.20) / 0.75)
    assert answer.interval == (pytest.approx(answer.e0), pytest.approx(answer.e0))


def test_a_cluster_broken_again_lowers_the_correction():
    """e_seen + s(e_seen - e_again) takes the place of e_seen."""
    losses = FragmentLosses(loss=0.30, seen_loss=0.20, again_loss=0.17)
    assert losses.saturation == pytest.approx(0.3)
    corrected = 0.20 + 0.4 * 0.03
    expected = (0.30 - 0.4 * corrected) / 0.6
    assert estimate_fragments(losses, seen_share=0.4).e0 == pytest.approx(expected)


def test_fragments_that_cannot_be_broken_leave_the_measured_gain_whole():
    """All clusters are pairs: their fragments are single rows, and e_0 = LOCO + s·D exactly."""
    true, ids = split_table(100, 2, split=0.5, seed=0)
    data = table(true, ids)
    losses = measure(data, folds=5)
    assert losses.again_rows == 0
    assert losses.saturation == 1
    folds = make_folds(data, 5)
    seen = np.concatenate([np.isin(true[f.validation], true[f.training]) for f in folds]).mean()
    assert losses.gain == pytest.approx(1 - loss_at(1))
    assert estimate_fragments(losses, seen_share=seen).e0 == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("fragments", "rows", "expected"),
    [
        ("uniform", 6, 1 - 2 / 30),
        ("uniform", 2, 0),
        ("singles", 6, 5 / 6),
        ("halves", 6, 1),
        ([1, 4], 6, (5 + 6) / 12),
        ([3], 6, 0),
        ([0.25], 6, 0.5 * 5 / 6 + 0.5),
    ],
)
def test_the_rows_that_can_be_broken_again_follow_from_the_sizes(fragments, rows, expected):
    """A part of one row cannot be broken; with known sizes, neither can one without a smaller size."""
    assert parse_fragments(fragments).breaks_again(rows) == pytest.approx(expected)


@pytest.mark.parametrize(("again", "rho"), [(0.22, 0.0), (0.05, 1.0), (None, 0.0)])
def test_what_is_left_of_the_gain_lies_between_nothing_and_all_of_it(again, rho):
    assert FragmentLosses(loss=0.3, seen_loss=0.2, again_loss=again).saturation == rho


def test_intervals_cover_the_truth_in_nine_of_ten_cases():
    """With 400 repetitions a true 95% is seen below 92% in one of 200 tests."""
    rng = np.random.default_rng(3)
    e0, seen, again, share = 0.35, 0.22, 0.19, 0.3
    mean = [(1 - share) * e0 + share * seen, (1 - share) * seen + share * again, again]
    covariance = 0.02**2 * np.array([[1, 0.6, 0.5], [0.6, 1, 0.6], [0.5, 0.6, 1]])
    covered = 0
    for _ in range(400):
        drawn = rng.multivariate_normal(mean, covariance)
        drawn[1] += 0.01 * rng.standard_normal()
        losses = FragmentLosses(
            loss=drawn[0],
            seen_loss=drawn[1],
            again_loss=drawn[2],
            seen_stderr=0.01,
            covariance=covariance,
        )
        low, high = estimate_fragments(losses, seen_share=share, bound=1.0).interval
        covered += low <= e0 <= high
    assert covered >= 0.92 * 400


def test_standard_errors_alone_give_the_interval_of_independent_numbers():
    losses = FragmentLosses(loss=0.3, seen_loss=0.2, stderr=0.01, seen_stderr=0.02)
    low, high = estimate_fragments(losses, seen_share=0.5).interval
    error = np.sqrt(0.01**2 + (0.5 * 0.02) ** 2) / 0.5
    assert high - low == pytest.approx(2 * 1.96 * error, rel=1e-3)


def test_the_interval_of_a_range_holds_those_of_all_shares_in_it():
    losses = FragmentLosses(loss=0.3, seen_loss=0.2, again_loss=0.18, stderr=0.02, seen_stderr=0.03)
    low, high = estimate_fragments(losses, seen_share=(0.05, 0.5)).interval
    for share in np.linspace(0.05, 0.5, 10):
        ends = estimate_fragments(losses, seen_share=float(share)).interval
        assert low <= ends[0] + 1e-12
        assert ends[1] <= high + 1e-12


FOLDS = [fold(80, 20)] * 5
APART = 80 / 99


@pytest.mark.parametrize("threshold", [0.31, 0.35, 0.5, 0.62])
def test_the_tipping_split_rate_has_a_closed_form_beyond_half_too(threshold):
    losses = FragmentLosses(loss=0.3, seen_loss=0.2)
    rate = tipping_split_rate(losses, FOLDS, threshold)
    assert rate == pytest.approx((threshold - 0.3) / (threshold - 0.2) / APART)
    share = seen_share(rate, FOLDS)
    assert estimate_fragments(losses, seen_share=share).e0 == pytest.approx(threshold)


@pytest.mark.parametrize("again", [0.195, 0.15, 0.1])
def test_the_tipping_split_rate_allows_for_clusters_that_are_already_broken(again):
    losses = FragmentLosses(loss=0.3, seen_loss=0.2, again_loss=again)
    rate = tipping_split_rate(losses, FOLDS, 0.34)
    share = seen_share(rate, FOLDS)
    assert estimate_fragments(losses, seen_share=share).e0 == pytest.approx(0.34)


def test_there_is_no_tipping_split_rate_where_no_rate_below_one_reaches_the_threshold():
    losses = FragmentLosses(loss=0.3, seen_loss=0.2)
    assert tipping_split_rate(losses, FOLDS, 0.9) is None, "s* = 0.86 needs a rate above 1"
    assert tipping_split_rate(replace(losses, seen_loss=0.3), FOLDS, 0.35) is None
    assert tipping_split_rate(replace(losses, seen_loss=0.4), FOLDS, 0.35) is None
    assert tipping_split_rate(losses, FOLDS, 0.25) == 0.0, "it fails as it is"
    with pytest.raises(InputError, match="threshold=nan"):
        tipping_split_rate(losses, FOLDS, float("nan"))


# --- numbers given by hand ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"loss": float("nan")}, "loss=nan is not finite"),
        ({"seen_loss": None}, "seen_loss=None must be a number"),
        ({"again_loss": float("inf")}, "again_loss=inf is not finite"),
        ({"stderr": -0.1}, "stderr=-0.1 must not be negative"),
        ({"seen_stderr": float("nan")}, "seen_stderr=nan is not finite"),
        ({"covariance": ((1.0, 0.0),)}, "covariance must be a square matrix"),
        ({"covariance": np.eye(3)}, "covariance must be a square matrix"),
        ({"covariance": ((1.0, 0.0), (0.0, float("nan")))}, "covariance has values that are not"),
        ({"covariance": ((-1.0, 0.0), (0.0, 1.0))}, "covariance has a negative variance"),
        ({"degrees_of_freedom": 0}, "degrees_of_freedom=0 must be a positive whole number"),
        ({"fits": 1.5}, "fits=1.5 must be a positive whole number"),
        ({"broken_rows": 0}, r"broken_rows=0.0 must lie in \(0, 1\]"),
    ],
)
def test_losses_that_cannot_be_are_refused(change, message):
    with pytest.raises(InputError, match=f"FragmentLosses: {message}"):
        FragmentLosses(**{"loss": 0.3, "seen_loss": 0.2, **change})


def test_measured_losses_survive_json():
    losses = measure(table(np.repeat(np.arange(21), 6)))
    assert FragmentLosses.from_dict(json.loads(losses.to_json())) == losses


# --- shares of one pattern are not those of the other ---------------------------------------------

CURVE = LossCurve(injected=[0, 0.1], loss=[0.3, 0.2], stderr=[0.01, 0.01], n_train=100)
SEEN = SeenShare(share=0.2)


@pytest.mark.parametrize(
    "mix",
    [
        lambda: b3.estimate(CURVE, p0=SEEN),
        lambda: b3.estimate(CURVE, p0=(SEEN, SEEN)),
        lambda: b3.estimate(CURVE, p0=0.1, p0_validation=SEEN),
        lambda: b3.sensitivity(CURVE, [SEEN]),
        lambda: unmix(CURVE, SEEN),
        lambda: unmix(CURVE, [SEEN]),
        lambda: make_claim(p0=SEEN),
        lambda: make_claim(cluster_error=SEEN),
        lambda: make_claim(split_rate=SEEN),
    ],
)
def test_a_share_of_seen_rows_is_refused_by_the_row_formulas(mix):
    with pytest.raises(InputError, match=r"pattern fragments.*estimate_fragments\("):
        mix()


def test_shares_of_misplaced_rows_are_refused_by_the_mixture():
    losses = FragmentLosses(loss=0.3, seen_loss=0.2)
    rows = LeakShares(p0=0.1, p0_validation=0.2)
    with pytest.raises(InputError, match=r"pattern rows.*see seen_share\(\)"):
        estimate_fragments(losses, seen_share=rows)
    with pytest.raises(InputError, match="pattern rows"):
        estimate_fragments(losses, seen_share=(SEEN, rows))


def test_claims_of_one_pattern_have_no_shares_of_the_other():
    assert not hasattr(make_claim(split_rate=0.1), "shares")
    assert not hasattr(make_claim(cluster_error=0.1), "seen")


@pytest.mark.parametrize("share", [1.0, -0.1, float("nan"), "0.2", (0.3, 0.2), (0.1, 0.2, 0.3)])
def test_seen_shares_lie_between_0_and_1(share):
    with pytest.raises(InputError, match="seen_share="):
        estimate_fragments(FragmentLosses(loss=0.3, seen_loss=0.2), seen_share=share)


# --- the whole flow -------------------------------------------------------------------------------

COLUMNS = {"target": "disease", "cluster": "patient_id", "progress": False, "folds": 4}


@pytest.fixture(scope="module")
def clinic():
    return b3.make_clinic(patients=60, records=6, split_rate=0.3, fragments="singles", seed=4)


def test_an_audit_breaks_clusters_as_it_is_told_and_says_so(clinic):
    report = b3.audit(
        KNeighborsClassifier(3),
        clinic.frame,
        split_rate=(0.2, 0.4),
        fragments="singles",
        budget=120,
        method="power",
        **COLUMNS,
    )
    assert report.settings.fragments == "singles"
    (halves,) = report.fragments.doses
    assert halves.fragments == "halves"
    assert (
        "This holds if clusters split with one row breaking off; it would be about"
        in explain(report)[0]
    )
    assert explain(report)[0].endswith("if they split in halves.")
    share = seen_share(0.3, report.folds)
    assert report.p0 == pytest.approx(share.share)
    again = estimate_fragments(report.fragments, seen_share=share, bound=1.0)
    assert report.e0 == pytest.approx(again.e0)
    assert b3.AuditReport.from_dict(json.loads(report.to_json())) == report


def test_when_nothing_is_known_both_patterns_are_shown_with_intervals_and_tipping_points(clinic):
    options = {**COLUMNS, "budget": 120, "method": "power"}
    report = b3.audit(KNeighborsClassifier(3), clinic.frame, **options)
    axes = [axis for axis, _ in sensitivity_rows(report)]
    assert axes == ["cluster error", "split rate"]
    for _, rows in sensitivity_rows(report):
        assert all(low <= e0 <= high for _, e0, low, high in rows)
    text = to_text(report)
    assert "What each cluster error would mean" in text
    assert "What each split rate would mean" in text
    words = " ".join(text.split())
    assert "of the rows carried a wrong id" in words
    assert "rows belonged to split clusters" in words
    assert "At a split rate of 20% it would be about" in words
    rate = report.tipping_split_rate
    if rate is not None and rate <= 0.5:
        grid = report.fragment_sensitivity.tipping_error(report.threshold)
        assert grid == pytest.approx(rate, abs=0.005)


def test_sizes_larger_than_every_cluster_are_refused_before_the_first_refit(clinic):
    with pytest.raises(InputError, match="fragments='9' breaks no cluster: the largest has 6 rows"):
        b3.audit(KNeighborsClassifier(3), clinic.frame, split_rate=0.1, fragments=[9], **COLUMNS)


def test_a_clinic_can_be_split_by_single_records(clinic):
    sizes = clinic.frame["patient_id"].value_counts()
    assert set(sizes) == {1, 5, 6}
