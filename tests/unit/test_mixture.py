"""The bound on p0 from the rows themselves: exact cases, its level, and what it refuses."""

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from sklearn.neighbors import KNeighborsClassifier

import mlflow_b3 as b3
from mlflow_b3.auditing.leakage import Misplaced, make_claim
from mlflow_b3.data.folds import Fold, make_folds
from mlflow_b3.data.table import ModelInputs, prepare
from mlflow_b3.errors import InputError
from mlflow_b3.estimation import p0 as p0_module
from mlflow_b3.estimation.p0 import (
    LEAST_ROWS,
    _count_in_sets,
    _largest_share,
    bound_folds,
    design_effect,
    encode,
    largest_share,
    score_sides,
)
from mlflow_b3.reporting.sentences import explain

pytestmark = pytest.mark.newest

TREES = 50  # what users have; other tests make do with fewer
SHARED = Path(os.environ.get("B3_SHARED", Path(__file__).parents[3] / "shared"))


@pytest.fixture(scope="module", autouse=True)
def _whole_forests():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mlflow_b3.estimation.p0.TREES", TREES)
        yield


def sides(leaked, *, training=300, validation=150, shift=8.0, seed=0):
    """Return rows of T̂ and V̂, where the first `leaked` rows of T̂ come from the law of V̂."""
    rng = np.random.default_rng(seed)
    first, second = rng.normal(size=(training, 3)), rng.normal(size=(validation, 3))
    first[:leaked, 0] += shift
    second[:, 0] += shift
    return first, second


# ---------------------------------------------------------------- what the bound says


@pytest.mark.parametrize("leaked", [0, 15, 60])
def test_separated_clusters_are_bounded_near_the_true_share(leaked):
    bound = b3.bound_p0(*sides(leaked))
    share = leaked / 300
    noise = np.sqrt(share / 150 + share / 300)  # of a ratio of two counts, roughly
    assert share <= bound.p0_upper <= share + 3 * noise + 0.03
    assert not bound.vacuous
    assert (bound.n_training, bound.n_validation) == (300, 150)
    assert "one by one" in bound.statement


def test_one_population_cannot_be_bounded():
    bound = b3.bound_p0(*sides(0, shift=0.0))
    assert bound.vacuous
    assert bound.p0_upper > 0.6
    assert "because the clusters are alike or because rows leaked" in bound.statement


def test_the_bound_is_vacuous_when_half_of_the_training_rows_could_have_leaked():
    bounds = [b3.bound_p0(*sides(leaked)) for leaked in (15, 60, 120, 200)]
    assert [bound.vacuous for bound in bounds] == [b.p0_upper >= 0.5 for b in bounds]
    assert not bounds[0].vacuous
    assert bounds[-1].vacuous


def test_the_target_alone_can_tell_the_sides_apart():
    rng = np.random.default_rng(0)
    features = rng.normal(size=(400, 2))
    target = np.repeat(["sick", "well"], 200)
    table = pd.DataFrame(features, columns=["a", "b"]).assign(target=target)
    assert b3.bound_p0(table[:200], table[200:]).p0_upper < 0.05


def test_more_confidence_means_a_larger_bound():
    rows = sides(30)
    bounds = [b3.bound_p0(*rows, confidence=level).p0_upper for level in (0.5, 0.95, 0.999)]
    assert bounds == sorted(set(bounds))


def test_the_same_seed_gives_the_same_bound():
    rows = sides(30, shift=2.0)
    assert b3.bound_p0(*rows, seed=3) == b3.bound_p0(*rows, seed=3)
    assert b3.P0Bound.from_dict(b3.bound_p0(*rows).to_dict()) == b3.bound_p0(*rows)


# ---------------------------------------------------------------- its level


def test_one_set_is_the_exact_test_of_a_random_order():
    """K of M leaked rows above the r-th of |V̂| rows: P(K ≤ k) is hypergeometric."""
    n_training, n_validation, r, k = 400, 100, 40, 12
    share, _ = _largest_share(
        np.array([float(r)]),
        np.array([k]),
        sizes=(n_training, n_validation, n_training),
        level=0.05,
        rng=np.random.default_rng(0),
    )
    # at most k leaked before the r-th validation row: r or more of the first k + r are V̂'s
    m = np.arange(k, n_training)
    chance = stats.hypergeom.sf(r - 1, m + n_validation, n_validation, k + r)
    exact = m[chance > 0.05].max()
    assert share * n_training == pytest.approx(exact, abs=2)  # 5000 draws


def cheap(monkeypatch):
    """Make the classifier small, so that many runs fit into a test."""
    monkeypatch.setattr("mlflow_b3.estimation.p0.TREES", 10)
    monkeypatch.setattr(p0_module, "DRAWS", 1000)


@pytest.mark.parametrize(("leaked", "sampled"), [(40, 400), (40, 100), (4, 400)])
def test_a_random_order_is_bounded_below_its_share_in_at_most_5_percent(
    leaked, sampled, monkeypatch
):
    """The least favourable case: all other rows of T̂ score lowest. Also for a subsample of T̂."""
    cheap(monkeypatch)
    rng = np.random.default_rng(leaked + sampled)
    missed, runs = 0, 200
    for _ in range(runs):
        scores = np.concatenate([rng.random(leaked), -rng.random(400 - leaked)])
        scores = rng.permutation(scores)[:sampled]
        ranks, counts, _ = _count_in_sets(
            np.concatenate([scores, rng.random(100)]), np.repeat([False, True], [sampled, 100])
        )
        share, _ = _largest_share(
            ranks.astype(float), counts, sizes=(sampled, 100, 400), level=0.05, rng=rng
        )
        missed += share < leaked / 400
    assert missed <= stats.binom.ppf(0.999, runs, 0.05)


def test_the_level_holds_with_scores_that_were_learnt(monkeypatch):
    """Leaked rows cannot be told from V̂, everything else can: the bound is at its tightest."""
    cheap(monkeypatch)
    runs = 60
    below = sum(
        b3.bound_p0(*sides(24, training=120, validation=60, seed=seed), seed=seed).p0_upper < 0.2
        for seed in range(runs)
    )
    assert below <= stats.binom.ppf(0.999, runs, 0.05)


def test_rows_of_a_cluster_may_be_alike_if_they_are_misplaced_one_by_one(monkeypatch):
    """Which rows leaked is what is random, not the rows: no design effect is needed."""
    cheap(monkeypatch)
    runs, below = 60, 0
    for seed in range(runs):
        rng = np.random.default_rng(seed)
        patients = np.repeat(rng.normal(size=(12, 3)), 7, axis=0)
        own = rng.permutation(patients + 0.1 * rng.normal(size=patients.shape))
        own[:, 0] += 8
        others = rng.normal(size=(96, 3))
        bound = b3.bound_p0(np.vstack([others, own[:24]]), own[24:], seed=seed)
        below += bound.p0_upper < 0.2
    assert below <= stats.binom.ppf(0.999, runs, 0.05)


def fragments(seed):
    """Return a fold in which six clusters of V̂ left half of their rows in T̂, with their ids."""
    rng = np.random.default_rng(seed)
    ids = np.repeat(np.arange(24), 6)
    own = rng.normal(size=(24, 3))[ids] + 0.2 * rng.normal(size=(len(ids), 3)) + [8, 0, 0]
    broken = rng.choice(24, 6, replace=False)
    gone = np.isin(ids, broken) & (np.arange(len(ids)) % 2 == 0)
    others = rng.normal(size=(102, 3))
    clusters = ([*(100 + np.arange(102) // 6), *(200 + ids[gone])], ids[~gone])
    return np.vstack([others, own[gone]]), own[~gone], clusters, gone.sum() / (102 + gone.sum())


def test_rows_misplaced_together_need_their_ids(monkeypatch):
    """Mates of a leaked row that are in T̂ too make it look like T̂: they must be held out."""
    cheap(monkeypatch)
    runs, below = 40, 0
    for seed in range(runs):
        training, validation, clusters, share = fragments(seed)
        bound = b3.bound_p0(training, validation, seed=seed, clusters=clusters)
        assert bound.design_effect > 1
        assert "together" in bound.statement or bound.vacuous
        below += bound.p0_upper < share
    assert below <= stats.binom.ppf(0.999, runs, 0.05)


def test_the_design_effect_is_that_of_whole_clusters():
    """Clusters of 5 that are wholly inside or outside count for one row each."""
    ids = np.repeat(np.arange(40), 5)
    whole = (ids % 2 == 0)[:, None]
    assert design_effect(whole, ids) == pytest.approx(5)
    mixed = np.random.default_rng(0).random((200, 1)) < 0.5
    assert design_effect(mixed, ids) < 1.5
    assert design_effect(whole, np.arange(200)) == 1


# ---------------------------------------------------------------- leakage in both directions


@pytest.mark.parametrize(("p_t", "p_v"), [(0.05, 0.2), (0.1, 0.3), (0.3, 0.6)])
def test_the_ratio_of_the_sides_is_smallest_where_only_validation_clusters_are(p_t, p_v):
    x = np.linspace(0, 50, 1001)
    ratio = ((1 - p_t) * x + p_t) / (p_v * x + 1 - p_v)
    assert (np.diff(ratio) > 0).all()
    assert ratio[0] == pytest.approx(p_t / (1 - p_v))
    assert ratio[0] >= p_t


def test_rows_that_leak_back_only_raise_the_bound():
    training, validation = sides(30)
    strangers = np.random.default_rng(1).normal(size=(50, 3))
    bound = b3.bound_p0(training, np.vstack([validation, strangers]))
    p_v = 50 / 200
    assert bound.p0_upper >= 0.1 / (1 - p_v)


# ---------------------------------------------------------------- what it is given


def test_mixed_columns_with_missing_values_are_understood():
    rng = np.random.default_rng(0)
    table = pd.DataFrame(
        {
            "number": rng.normal(size=200),
            "whole": pd.array([1, 2, None, 4] * 50, dtype="Int64"),
            "flag": rng.random(200) < 0.5,
            "text": np.where(np.arange(200) < 100, "north", "south"),
            "when": pd.date_range("2020-01-01", periods=200),
            "kind": pd.Categorical(["a", "b"] * 100),
            "odd": [1, "x", None, 2.5] * 50,
        }
    )
    table.loc[::7, ["number", "text"]] = None
    assert b3.bound_p0(table[:100], table[100:]).p0_upper < 0.2


def test_that_values_are_missing_is_information():
    """Hospitals differ in what they leave out."""
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"a": rng.normal(size=200), "b": rng.normal(size=200)})
    table.loc[100:, "a"] = None
    assert b3.bound_p0(table[:100], table[100:]).p0_upper < 0.1


def test_codes_do_not_depend_on_the_side():
    """Codes by order of appearance would give the sides away where every text is new."""
    table = pd.DataFrame({"name": [f"n{i}" for i in np.random.default_rng(0).permutation(400)]})
    assert b3.bound_p0(table[:200], table[200:]).vacuous
    both = encode(table[:200], table[200:])
    assert sorted(both[:, 0]) == list(range(400))
    assert (encode(table[200:], table[:200]) == np.roll(both, 200, axis=0)).all()


def test_tied_scores_do_not_favour_a_side():
    constant = np.zeros((90, 1))
    ranks = score_sides(
        constant, np.repeat([False, True], [60, 30]), None, np.random.default_rng(0)
    )
    assert len(np.unique(ranks)) == 90


def test_columns_may_come_in_another_order():
    training, validation = (pd.DataFrame(side, columns=list("abc")) for side in sides(30))
    assert b3.bound_p0(training, validation[list("cab")]) == b3.bound_p0(training, validation)


def test_long_tables_are_sampled(monkeypatch):
    monkeypatch.setattr(p0_module, "MOST_ROWS", 100)
    bound = b3.bound_p0(*sides(60, training=600, validation=300))
    assert 0.1 <= bound.p0_upper < 0.35
    assert (bound.n_training, bound.n_validation) == (600, 300)


TABLE = pd.DataFrame(np.random.default_rng(0).normal(size=(40, 2)), columns=["a", "b"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((TABLE[: LEAST_ROWS - 1], TABLE), "training has 19 rows; a bound on p0 needs at least 20"),
        ((TABLE, TABLE[:3]), "validation has 3 rows"),
        ((TABLE, TABLE.rename(columns={"b": "c"})), r"\['b', 'c'\] are on one side only"),
        ((TABLE, TABLE[["a"]]), r"\['b'\] are on one side only"),
        ((TABLE[["a", "a"]], TABLE[["a", "a"]]), "the same columns, each once"),
        ((TABLE.assign(b=np.nan), TABLE.assign(b=None)), r"columns \['b'\] have no value"),
        ((TABLE[[]], TABLE[[]]), "have no columns"),
        ((TABLE["a"], TABLE), "training has 1 dimensions"),
    ],
    ids=str,
)
def test_rows_that_cannot_be_compared_are_refused(arguments, message):
    with pytest.raises(InputError, match=message):
        b3.bound_p0(*arguments)


@pytest.mark.parametrize("confidence", [0, 1, 1.5, -1, np.nan])
def test_confidence_must_lie_between_0_and_1(confidence):
    with pytest.raises(InputError, match=r"confidence=.* must lie between 0 and 1"):
        b3.bound_p0(TABLE, TABLE, confidence=confidence)


@pytest.mark.parametrize(
    ("clusters", "message"),
    [
        (([0] * 40,), "must be a pair"),
        (([0] * 40, [1] * 39), "must be a pair"),
        (([0] * 40, [1] * 40), "at least two"),
        (([0] * 40, [0, 1] * 20), "no id on both sides"),
        (([0] * 40, [1, None] * 20), "an id for every row"),
    ],
    ids=["one", "short", "single", "shared", "missing"],
)
def test_clusters_must_name_both_sides(clusters, message):
    with pytest.raises(InputError, match=message):
        b3.bound_p0(TABLE, TABLE, clusters=clusters)


# ---------------------------------------------------------------- folds and audits


def clinic_data(**options):
    clinic = b3.make_clinic(patients=60, records=10, **options)
    inputs = ModelInputs()
    return clinic, prepare(
        clinic.frame, target="disease", cluster="patient_id", task="classification", inputs=inputs
    )


def test_folds_are_bounded_in_both_directions():
    """U bounds p_T/(1-p_V); with as many rows back, p_T = U/(1 + U·|T̂|/|V̂|) at most."""
    clinic, data = clinic_data(cluster_error=0.1, seed=2)
    folds = make_folds(data, 3)
    bound = bound_folds(data, folds)
    one_way = bound_folds(data, folds, p0_validation=0.0)
    assert bound.p0_upper < one_way.p0_upper
    assert bound_folds(data, folds, p0_validation=0.2).p0_upper == pytest.approx(
        0.8 * one_way.p0_upper
    )
    # rows whose true patient has most records on the other side
    leaked = []
    for fold in folds:
        kept = pd.Series(np.isin(np.arange(data.n_rows), fold.validation))
        home = kept.groupby(clinic.patients).transform("mean") > 0.5
        leaked.append(np.mean(home[fold.training]))
    assert bound.p0_upper >= np.mean(leaked) > 0


def test_the_cluster_id_is_never_a_feature_of_the_bound():
    """The id is what may be wrong: leaked rows would look like training rows by it."""
    _, data = clinic_data(seed=0)
    ids = np.asarray(data.clusters)
    with_id = replace(
        data,
        features=data.features.assign(patient_id=ids),
        feature_names=(*data.feature_names, "patient_id"),
    )
    folds = make_folds(data, 3)
    assert bound_folds(with_id, folds) == bound_folds(data, folds)


def test_a_fold_of_few_rows_is_not_bounded():
    _, data = clinic_data(seed=0)
    few, many = np.arange(10), np.arange(10, 600)
    folds = make_folds(data, [(many, few)])
    bound = bound_folds(data, folds, p0_validation=0.0)
    assert (bound.p0_upper, bound.vacuous) == (1.0, True)


def test_an_audit_considers_wrong_ids_on_half_of_all_rows_or_half_of_the_training_rows():
    _, data = clinic_data(seed=0)
    folds = make_folds(data, [(np.arange(100, 600), np.arange(100))])
    assert largest_share(folds) == pytest.approx(100 / 600 / 2)
    assert largest_share(folds, 0.0) == 0.5


def test_mixture_is_a_claim_about_rows_whose_range_follows_from_the_rows():
    claim = make_claim(p0="mixture")
    assert claim == Misplaced(source="mixture")
    bound = b3.P0Bound(
        p0_upper=0.04,
        confidence=0.95,
        threshold_share=0.3,
        n_training=80,
        n_validation=20,
        design_effect=1.0,
        vacuous=False,
    )
    folds = [Fold(training=np.arange(20, 100), validation=np.arange(20))]
    assert claim.bounded(bound, folds).high == 0.04
    assert claim.bounded(replace(bound, p0_upper=0.5, vacuous=True), folds).high == 0.1
    assert make_claim(p0="mixture", p0_validation=0).p0_validation == 0
    with pytest.raises(InputError, match="cluster_error cannot be given together"):
        make_claim(p0="mixture", cluster_error=0.1)


SMALL = {"folds": 3, "repeats": 2, "budget": 120, "progress": False}
NAMES = {"target": "disease", "cluster": "patient_id"}


@pytest.fixture(scope="module")
def clinic():
    return b3.make_clinic(patients=60, records=10, cluster_error=0.05, seed=5)


def test_an_audit_can_take_its_p0_from_the_rows(clinic):
    report = b3.audit(KNeighborsClassifier(3), clinic.frame, p0="mixture", **NAMES, **SMALL)
    bound = report.p0_bound
    assert not bound.vacuous
    assert report.p0_source == "mixture"
    assert report.settings.pattern == "rows"
    assert report.settings.claim == (0.0, bound.p0_upper)
    assert report.p0 == pytest.approx(bound.p0_upper / 2, rel=1e-3)
    assert report.e0_interval[0] <= report.loco <= report.e0 <= report.e0_interval[1]
    text = explain(report)
    assert text[0].startswith("If at most ")
    assert "it holds with 90%" in text[0]
    assert "if half of that limit leaked" in text[1]
    assert text[-1] == bound.statement
    assert b3.AuditReport.from_dict(report.to_dict()) == report


def test_an_audit_that_is_told_nothing_shows_the_bound_without_using_it(clinic):
    report = b3.audit(KNeighborsClassifier(3), clinic.frame, **NAMES, **SMALL)
    assert report.p0_source == "none"
    assert report.e0 is None
    assert report.p0_bound is not None
    assert explain(report)[-1] == report.p0_bound.statement


def test_an_audit_that_is_told_a_rate_needs_no_bound(clinic):
    options = {**SMALL, "repeats": 1, "budget": 60}
    report = b3.audit(KNeighborsClassifier(3), clinic.frame, cluster_error=0.05, **NAMES, **options)
    assert report.p0_bound is None


def test_a_vacuous_bound_gives_no_single_number():
    """One row a patient, all from one population: nothing tells leaked rows apart."""
    clinic = b3.make_clinic(patients=300, records=1, seed=1)
    report = b3.audit(KNeighborsClassifier(3), clinic.frame, p0="mixture", **NAMES, **SMALL)
    assert report.p0_bound.vacuous
    assert report.p0_source == "mixture"
    assert (report.e0, report.p0, report.inflation, report.e0_secant) == (None,) * 4
    curve = report.sensitivity
    assert report.e0_interval[0] <= min(curve.low)
    assert report.e0_interval[1] >= max(curve.high)
    codes = {finding.code for finding in report.findings}
    assert "B318" in codes
    assert "B307" not in codes
    text = explain(report)
    assert text[0].startswith("How well this model does on new clusters is not known.")
    assert "The rows do not reveal how many of them leaked. If at most half of them" in text[0]
    assert text[-1] == report.p0_bound.statement


# ---------------------------------------------------------------- real hospitals


def test_hospitals_are_told_apart():
    """Cleveland's patients moved to the other hospitals until they are a tenth of them."""
    path = SHARED / "data" / "heart.csv"
    if not path.exists():
        pytest.skip(f"{path} is not here")
    table = pd.read_csv(path)
    own = table["country"] == "cleveland"
    rows = table.drop(columns="country")
    patients = rows[own].sample(frac=1, random_state=0)
    leaked = round((~own).sum() / 9)
    training = pd.concat([rows[~own], patients[:leaked]])
    bound = b3.bound_p0(training, patients[leaked:])
    assert 0.1 <= bound.p0_upper < 0.22
