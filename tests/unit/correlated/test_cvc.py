"""`cvc`: cross-validation with its bias added back, from the user's side."""

import json
import warnings

import numpy as np
import pandas as pd
import pytest
from sklearn.compose import ColumnTransformer
from sklearn.dummy import DummyClassifier
from sklearn.ensemble import RandomForestClassifier
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LinearRegression, LogisticRegression, Ridge
from sklearn.model_selection import KFold
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.svm import LinearSVC
from wards import FEATURES, make_wards

from mlflow_b3 import CvcReport, FitError, InputError, InterruptedAudit, cvc
from mlflow_b3.correlated import (
    MixedLogistic,
    WorkingModel,
    group_effect_loss,
    pair_effect_loss,
)

pytestmark = pytest.mark.newest

WARDS = {"target": "outcome", "groups": ["ward", "week"]}
QUICK = {"draws": 60, "budget": 100, "progress": False}


@pytest.fixture(scope="module")
def table():
    return make_wards(seed=1)


@pytest.fixture(scope="module")
def trees(table):
    return cvc(RandomForestClassifier(10), table, **WARDS, loss="log", **QUICK)


def codes(report):
    return [finding.code for finding in report.findings]


def test_the_corrected_loss_is_cross_validation_and_its_bias(trees):
    assert trees.cvc == pytest.approx(trees.cv + trees.bias)
    assert trees.interval[0] < trees.cvc < trees.interval[1]
    assert trees.bias_interval[0] < trees.bias < trees.bias_interval[1]
    assert trees.engine == "full"
    assert trees.new == ("ward", "week")


def test_what_the_groups_share_makes_cross_validation_too_good(trees):
    assert trees.bias > 2 * trees.bias_error > 0


def test_cross_validation_is_that_of_scikit_learn(table):
    report = cvc(LogisticRegression(), table, **WARDS, loss="log", folds=7, progress=False, seed=3)
    X, y = table[FEATURES], table["outcome"]
    losses = np.empty(len(y))
    for training, left in KFold(7, shuffle=True, random_state=3).split(X):
        model = LogisticRegression().fit(X.iloc[training], y.iloc[training])
        chance = model.predict_proba(X.iloc[left])[:, 1]
        losses[left] = -np.log(np.where(y.iloc[left] == "ill", chance, 1 - chance))
    assert report.cv == pytest.approx(losses.mean(), rel=1e-9)
    assert report.engine == "fast"


def test_a_report_survives_json(trees):
    again = CvcReport.from_dict(json.loads(trees.to_json()))
    assert again == trees
    assert again.model is None  # the simulated world is not written down


def test_the_same_seed_gives_the_same_numbers_whatever_the_workers(table, trees):
    again = cvc(RandomForestClassifier(10), table, **WARDS, loss="log", **QUICK, n_jobs=2)
    assert again == trees


def test_another_seed_gives_others(table, trees):
    other = cvc(RandomForestClassifier(10), table, **WARDS, loss="log", **QUICK, seed=1)
    assert other.cvc != trees.cvc


def test_a_model_that_ignores_its_rows_has_no_bias_of_log_loss(table):
    report = cvc(DummyClassifier(strategy="uniform"), table, **WARDS, loss="log", **QUICK)
    assert report.bias == 0


def test_formulas_and_refits_agree(table):
    fast = cvc(LogisticRegression(), table, **WARDS, loss="log", progress=False)
    full = cvc(
        LogisticRegression(), table, **WARDS, loss="log", engine="full", budget=1200, progress=False
    )
    assert (fast.engine, full.engine) == ("fast", "full")
    assert fast.cv == full.cv
    # the formula is a linearisation: exact to first order only
    assert full.bias == pytest.approx(fast.bias, abs=4 * full.bias_error + 0.15 * fast.bias)


@pytest.mark.parametrize("loss", ["zero_one", "log", "brier", "hinge"])
@pytest.mark.parametrize("engine", ["fast", "full"])
def test_every_loss_of_two_classes_can_be_corrected(table, loss, engine):
    model = make_pipeline(StandardScaler(), LogisticRegression())
    report = cvc(model, table, **WARDS, loss=loss, engine=engine, **QUICK)
    assert np.isfinite([report.cv, report.cvc, *report.interval]).all()


def test_so_can_a_loss_of_the_users_own(table):
    def missed(target, label):
        return 5.0 * ((target == "ill") & (label == "healthy"))

    report = cvc(GaussianNB(), table, **WARDS, loss=missed, **QUICK)
    assert report.engine == "full"
    assert np.isfinite(report.cvc)


def test_models_without_probabilities_are_scored_by_their_decisions(table):
    report = cvc(LinearSVC(), table, **WARDS, loss="hinge", **QUICK)
    assert np.isfinite(report.cvc)


def test_levels_that_are_observed_again_leave_less_bias():
    table = make_wards(seed=2, wards=20, sd=(1.2, 0.8))
    model = KNeighborsClassifier(7)
    new = cvc(model, table, **WARDS, loss="brier", budget=500, progress=False)
    again = cvc(model, table, **WARDS, new=["week"], loss="brier", budget=500, progress=False)
    assert new.cv == again.cv
    assert again.new == ("week",)
    assert again.bias < new.bias
    assert again.grouped_by == "week"


def test_folds_of_whole_groups_leave_no_bias_of_their_level(table):
    by_ward = [int(name[1:]) for name in table["ward"]]
    report = cvc(
        LogisticRegression(),
        table,
        target="outcome",
        groups=["ward"],
        loss="log",
        engine="fast",
        folds=by_ward,
    )
    assert report.bias == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("model", [LinearRegression(), Ridge(5.0)])
def test_regression_is_corrected_by_a_formula(model):
    table = make_wards(seed=4, numbers=True)
    report = cvc(model, table, **WARDS)
    assert report.loss == "squared"
    assert (report.engine, report.bias_error) == ("fast", 0)
    assert report.bias > 0


def test_regression_of_other_kinds_is_refitted():
    table = make_wards(seed=3, numbers=True, wards=20)
    report = cvc(KNeighborsRegressor(3), table, **WARDS, budget=300)
    assert report.engine == "full"
    assert report.bias > 2 * report.bias_error


def test_formulas_and_refits_agree_for_numbers():
    table = make_wards(seed=4, numbers=True)
    fast = cvc(Ridge(5.0), table, **WARDS)
    full = cvc(Ridge(5.0), table, **WARDS, engine="full", working=fast, budget=1200)
    assert full.bias == pytest.approx(fast.bias, abs=4 * full.bias_error)


def test_places_in_regions_are_correlated_by_a_field():
    rng = np.random.default_rng(5)
    centres = rng.uniform(0, 10, (12, 2))
    region = np.repeat(np.arange(12), 9)
    places = centres[region] + rng.normal(0, 0.7, (108, 2))
    distance = np.linalg.norm(places[:, None] - places[None], axis=2)
    field = np.linalg.cholesky(1.5 * np.exp(-distance / 3) + 1e-9 * np.eye(108))
    x = rng.standard_normal((108, 2)) + rng.standard_normal((12, 2))[region]
    odds = 0.5 * x.sum(axis=1) + field @ rng.standard_normal(108)
    table = pd.DataFrame({"a": x[:, 0], "b": x[:, 1], "lon": places[:, 0], "lat": places[:, 1]})
    table["region"], table["y"] = region, rng.random(108) < 1 / (1 + np.exp(-odds))
    report = cvc(
        LogisticRegression(),
        table,
        target="y",
        groups=["region"],
        coordinates=["lon", "lat"],
        loss="log",
        draws=500,
    )
    assert report.field.coordinates == ("lon", "lat")
    assert report.field.kernel == "exponential"
    assert report.field.reach > 0
    assert report.groups[0].sd is None
    assert np.isfinite(report.cvc)
    smooth = cvc(
        LogisticRegression(),
        table,
        target="y",
        groups=["region"],
        coordinates=["lon", "lat"],
        kernel="gaussian",
        loss="log",
        draws=500,
    )
    assert smooth.field.kernel == "gaussian"
    assert smooth.settings["working_digest"] != report.settings["working_digest"]
    assert np.isfinite(smooth.cvc)


def test_candidates_can_share_one_simulated_world(table, trees):
    other = cvc(KNeighborsClassifier(7), table, **WARDS, loss="log", working=trees, **QUICK)
    assert other.settings["working_digest"] == trees.settings["working_digest"]
    assert other.groups == trees.groups


def test_a_report_that_was_read_back_has_no_world_to_share(table, trees):
    with pytest.raises(InputError, match="no simulated world"):
        cvc(GaussianNB(), table, **WARDS, working=CvcReport.from_dict(trees.to_dict()))


def test_groups_are_no_features(table, trees):
    assert trees.settings["target"] == "outcome"
    model = RandomForestClassifier(5).fit(table[FEATURES], table["outcome"])
    assert np.isfinite(cvc(model, table, **WARDS, **QUICK).cvc)


# -- withheld rather than wrong


def test_too_few_groups_are_told_and_nothing_is_corrected(table):
    small = table[table["ward"].isin(["w0", "w1", "w2", "w3"])]
    report = cvc(GaussianNB(), small, target="outcome", groups=["ward"], **QUICK)
    assert codes(report) == ["B331"]
    assert report.cvc is report.bias is report.interval is None
    assert np.isfinite([report.cv, report.grouped]).all()
    assert "'ward' has 4 groups" in report.findings[0].message


def test_few_groups_are_told_and_corrected(trees):
    assert codes(trees).count("B335") == 2


def test_groups_of_one_class_each_separate_it():
    table = make_wards(seed=6)
    table["outcome"] = np.where(table["ward"].str[1:].astype(int) % 2 == 0, "ill", "healthy")
    report = cvc(GaussianNB(), table, target="outcome", groups=["ward"], **QUICK)
    assert "B332" in codes(report)
    assert report.cvc is None


def test_a_score_that_separates_the_classes_is_told():
    table = make_wards(seed=6)
    table["age"] = np.where(table["outcome"] == "ill", 5.0, -5.0) + 0.1 * table["age"]
    report = cvc(LogisticRegression(), table, target="outcome", groups=["ward"], **QUICK)
    assert "B332" in codes(report)
    assert report.cvc is None


def test_a_model_of_the_correlation_that_was_not_found_is_told(table, monkeypatch):
    from dataclasses import replace

    from mlflow_b3.correlated import working

    fit = working.fit_mixed_logistic
    monkeypatch.setattr(
        working,
        "fit_mixed_logistic",
        lambda *args, **options: replace(fit(*args, **options), converged=False),
    )
    report = cvc(GaussianNB(), table, **WARDS, **QUICK)
    assert "B333" in codes(report)
    assert report.cvc is None


def test_folds_whose_training_rows_have_one_class_are_told(table):
    rare = table.copy()
    rare["outcome"] = "healthy"
    rare.loc[:1, "outcome"] = "ill"
    folds = np.where(np.arange(len(rare)) < 2, 0, np.arange(len(rare)) % 4 + 1)
    report = cvc(GaussianNB(), rare, target="outcome", groups=["ward"], folds=list(folds), **QUICK)
    assert "B334" in codes(report)
    assert report.cvc is None


def test_no_variance_between_groups_is_told():
    table = make_wards(seed=7, wards=30, sd=(0.0, 0.0))
    report = cvc(LogisticRegression(), table, target="outcome", groups=["ward"], loss="log")
    assert "B336" in codes(report) or report.groups[0].interval[0] == 0
    assert report.bias == pytest.approx(0, abs=0.02)
    assert report.bias_interval[1] > report.bias


def test_losses_that_are_not_affine_in_numbers_are_refused():
    with pytest.raises(InputError, match="loss='absolute' has no correction"):
        cvc(LinearRegression(), make_wards(numbers=True), **WARDS, loss="absolute")


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"groups": []}, "names no column"),
        ({"groups": ["wards"]}, "'wards' is not a column. Did you mean 'ward'"),
        ({"groups": ["ward"], "new": ["week"]}, "must be among groups"),
        ({"groups": ["ward"], "engine": "quick"}, "engine='quick' is unknown"),
        ({"groups": ["ward"], "draws": 1}, "draws=1 must be"),
        ({"groups": ["ward"], "working": "magic"}, "working='magic' is unknown"),
        ({"groups": ["ward"], "folds": 1}, "folds=1 must be"),
        ({"groups": ["ward"], "kernel": "gaussian"}, "kernel='gaussian' is for a field"),
        ({"groups": ["ward"], "kernel": "flat"}, "kernel='flat' is unknown"),
        ({"groups": ["ward", "week"], "coordinates": ["age"]}, "need a single group"),
        ({"groups": ["ward", "outcome_copy"]}, "has the same value in all rows"),
        ({"groups": ["row"]}, "different value in every row"),
        ({"groups": ["ward"], "engine": "joint"}, "engine='joint' is for"),
        ({"groups": ["ward"], "budget": 30}, "Give 35 or more"),
    ],
)
def test_bad_arguments_are_refused_with_a_way_out(table, options, told):
    frame = table.assign(outcome_copy=1, row=np.arange(len(table)))
    if options["groups"] == ["row"]:
        frame = frame.drop(columns="ward")  # a text that would be a feature
    with pytest.raises(InputError, match=told):
        cvc(GaussianNB(), frame, target="outcome", progress=False, **options)


def test_missing_groups_are_refused(table):
    table = table.assign(ward=table["ward"].where(table.index > 2))
    with pytest.raises(InputError, match="'ward' has 3 missing values"):
        cvc(GaussianNB(), table, target="outcome", groups=["week", "ward"])


# -- interrupted and resumed


def test_ctrl_c_leaves_what_is_known(table, stop_at):
    stop_at(80)
    report = cvc(GaussianNB(), table, **WARDS, draws=200, progress=False)
    assert report.refits.partial
    assert report.draws < 200
    assert np.isfinite(report.cvc)


def test_too_early_there_is_nothing_to_say(table, stop_at):
    stop_at(5)
    with pytest.raises(InterruptedAudit):
        cvc(GaussianNB(), table, **WARDS, progress=False)


@pytest.mark.parametrize("number", [5, 40])
def test_with_a_journal_the_next_start_goes_on(table, stop_at, tmp_path, number):
    whole = cvc(GaussianNB(), table, **WARDS, **QUICK)
    made = stop_at(number)
    path = tmp_path / "journal"
    try:
        first = cvc(GaussianNB(), table, **WARDS, **QUICK, journal=path)
        assert first.refits.partial
    except InterruptedAudit:
        pass
    before = len(made)
    again = cvc(GaussianNB(), table, **WARDS, **QUICK, journal=path)
    assert again == whole
    assert len(made) - before == whole.refits.done - (before - 1)


def test_a_journal_of_other_groups_is_refused(table, tmp_path):
    path = tmp_path / "journal"
    cvc(GaussianNB(), table, **WARDS, **QUICK, journal=path)
    with pytest.raises(InputError, match="cvc"):
        cvc(GaussianNB(), table, target="outcome", groups=["ward"], **QUICK, journal=path)


# -- models that know the groups


def test_a_mixed_model_is_refitted_at_its_joint_mode(table):
    model = MixedLogistic(groups=["ward", "week"])
    report = cvc(model, table, **WARDS, loss="log", progress=False)
    assert report.engine == "joint"
    assert report.bias > 2 * report.bias_error
    full = cvc(model, table, **WARDS, loss="log", engine="full", budget=200, progress=False)
    # full refits estimate the standard deviations again, joint ones keep them
    assert full.bias == pytest.approx(report.bias, abs=4 * full.bias_error + 0.3 * report.bias)


def test_a_mixed_model_may_use_the_effects_of_groups_it_meets_again():
    table = make_wards(seed=2, wards=10, sd=(2.0, 0.5))
    model = MixedLogistic(groups=["ward", "week"], effects=["ward"])
    report = cvc(model, table, **WARDS, new=["week"], loss="log", draws=100, progress=False)
    assert report.engine == "joint"
    assert report.cvc < report.grouped or report.bias < 0.1
    without = MixedLogistic(groups=["ward", "week"])
    other = cvc(without, table, **WARDS, new=["week"], loss="log", budget=60, progress=False)
    assert other.engine == "full"
    assert report.cv < other.cv


# -- shortcuts for networks


@pytest.fixture(scope="module")
def network(table):
    model = MLPClassifier((6,), max_iter=60, random_state=0, learning_rate_init=0.01)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return model.fit(table[FEATURES], table["outcome"])


@pytest.fixture(scope="module")
def fully_trained(table, network):
    return cvc(network, table, **WARDS, loss="log", **QUICK)


@pytest.mark.parametrize("engine", ["hot", "last_layer"])
def test_networks_can_be_trained_for_a_while_or_in_part_which_is_said_to_be_worse(
    table, network, fully_trained, engine
):
    report = cvc(network, table, **WARDS, loss="log", engine=engine, **QUICK)
    assert report.engine == engine
    assert report.lower_quality
    assert "B337" in codes(report)
    assert np.isfinite(report.cvc)
    # only simulated targets are trained on by the shortcut
    assert report.cv == fully_trained.cv
    assert not fully_trained.lower_quality


def test_how_long_a_hot_start_trains_can_be_said(table, network):
    short = cvc(network, table, **WARDS, loss="log", engine="hot", epochs=1, **QUICK)
    longer = cvc(network, table, **WARDS, loss="log", engine="hot", epochs=15, **QUICK)
    assert short.bias < longer.bias


def test_models_that_have_no_shortcut_say_so(table):
    with pytest.raises(InputError, match="refit='hot-start' does not fit this model"):
        cvc(GaussianNB(), table, **WARDS, engine="hot")


# -- a world that another model gives


def test_groups_of_a_given_world_may_be_listed_in_another_order(table, trees):
    given = {"target": "outcome", "loss": "log", "working": trees, **QUICK}
    one = cvc(GaussianNB(), table, groups=["ward", "week"], **given)
    other = cvc(GaussianNB(), table, groups=["week", "ward"], **given)
    sds = {group.name: group.sd for group in one.groups}
    assert sds == {group.name: group.sd for group in other.groups}
    assert one.working == "given"
    assert one.slope is None
    assert one.settings["working_digest"] == other.settings["working_digest"]


@pytest.mark.parametrize(
    ("changed", "groups", "told"),
    [
        (
            lambda table: table,
            ["ward"],
            r"the groups \['ward', 'week'\]; these rows have \['ward'\]",
        ),
        (
            lambda table: table.sample(frac=1, random_state=0),
            ["ward", "week"],
            "belongs to other rows",
        ),
        (lambda table: table[:-12], ["ward", "week"], "144 rows and the table 132"),
    ],
)
def test_a_world_of_other_groups_or_rows_is_refused(table, trees, changed, groups, told):
    with pytest.raises(InputError, match=told):
        cvc(GaussianNB(), changed(table), target="outcome", groups=groups, working=trees)


def test_a_world_made_by_hand_must_have_as_many_standard_deviations_as_groups(table):
    world = WorkingModel(
        task="classification", mean=np.zeros(len(table)), sd=(1.0,), sd_low=(0.5,), sd_high=(2.0,)
    )
    by_hand = cvc(GaussianNB(), table, target="outcome", groups=["ward"], working=world, **QUICK)
    assert by_hand.groups[0].sd == 1.0
    with pytest.raises(InputError, match="working has 1 standard deviations"):
        cvc(GaussianNB(), table, **WARDS, working=world)


# -- what a review found


def test_a_loss_of_the_users_own_with_the_name_of_another_is_still_the_users(table):
    def zero_one(target, label):
        return 10.0 * (target != label)

    def tenfold(target, label):
        return 10.0 * (target != label)

    one, other = (
        cvc(LogisticRegression(), table, **WARDS, loss=f, **QUICK) for f in (zero_one, tenfold)
    )
    assert one.bias == other.bias
    assert one.engine == "full"


def test_variance_that_may_have_been_missed_is_in_the_upper_end():
    table = make_wards(seed=8, wards=15, sd=(0.0, 0.0))
    report = cvc(
        KNeighborsClassifier(15),
        table,
        target="outcome",
        groups=["ward"],
        budget=60,
        progress=False,
    )
    if report.groups[0].sd < 0.05:
        assert report.bias_interval[1] > 0.002


def test_a_column_that_is_constant_in_a_fold_needs_refits(table):
    rare = table.assign(rare=(np.arange(len(table)) == 3).astype(float))
    report = cvc(LogisticRegression(C=np.inf), rare, **WARDS, loss="log", **QUICK)
    assert report.engine == "full"
    assert np.isfinite(report.cvc)


def test_no_new_groups_leave_nothing_to_correct(table):
    with pytest.raises(InputError, match=r"new=\[\] would mean that the model meets no new groups"):
        cvc(GaussianNB(), table, **WARDS, new=[])


def test_the_target_is_no_group(table):
    with pytest.raises(InputError, match="target 'outcome' is among groups"):
        cvc(GaussianNB(), table, target="outcome", groups=["ward", "outcome"])


def test_units_of_the_target_change_nothing():
    table = make_wards(seed=4, numbers=True)
    small = table.assign(outcome=table["outcome"] * 1e-7)
    one, other = (
        cvc(KNeighborsRegressor(3), frame, **WARDS, budget=80, progress=False)
        for frame in (table, small)
    )
    assert other.bias == pytest.approx(one.bias * 1e-14, rel=1e-3)
    assert other.interval[1] == pytest.approx(one.interval[1] * 1e-14, rel=1e-2)


def test_a_part_says_so(table, stop_at):
    stop_at(80)
    report = cvc(GaussianNB(), table, **WARDS, draws=200, progress=False)
    assert "B330" in codes(report)


def test_linear_regression_finds_the_variance_of_groups_beside_its_own_features():
    table = make_wards(seed=3, numbers=True)
    assert cvc(Ridge(5.0), table, **WARDS).working == "glmm"
    assert cvc(Ridge(5.0), table, **WARDS, working="score").working == "score"
    assert cvc(KNeighborsRegressor(3), table, **WARDS, budget=80).working == "score"


def one_hot(*columns):
    return make_pipeline(
        ColumnTransformer(
            [("ids", OneHotEncoder(handle_unknown="ignore"), list(columns))],
            remainder="passthrough",
        ),
        LogisticRegression(),
    )


def test_a_model_that_knows_new_groups_by_name_is_not_corrected(table):
    model = one_hot("ward").fit(table[[*FEATURES, "ward"]], table["outcome"])
    report = cvc(model, table, **WARDS, loss="log", progress=False)
    assert "B342" in codes(report)
    assert report.cvc is None
    assert report.grouped is not None


def test_groups_that_a_model_knows_and_meets_again_are_left_out_of_its_score():
    table = make_wards(seed=9, wards=12, weeks=10, sd=(1.5, 1.5))
    model = one_hot("ward").fit(table[[*FEATURES, "ward"]], table["outcome"])
    report = cvc(model, table, **WARDS, new=["week"], loss="log", progress=False)
    plain = cvc(LogisticRegression(), table, **WARDS, new=["week"], loss="log", progress=False)
    sds, expected = ([group.sd for group in found.groups] for found in (report, plain))
    assert sds == pytest.approx(expected, rel=0.3)


def test_a_mixed_model_that_does_not_predict_by_new_groups_is_corrected(table):
    report = cvc(MixedLogistic(groups=["ward", "week"]), table, **WARDS, loss="log", draws=60)
    assert "B342" not in codes(report)


def test_levels_within_others_are_told_from_those_that_cross(table):
    nested = table.assign(bed=table["ward"] + "-" + (table.index % 4).astype(str))
    report = cvc(
        LogisticRegression(), nested, target="outcome", groups=["ward", "bed", "week"], loss="log"
    )
    assert [group.nested for group in report.groups] == [False, True, False]
    assert "still share groups of 'week' between" in str(report)


def test_two_columns_that_divide_the_rows_alike_are_refused(table):
    twice = table.assign(again=table["ward"].str.upper())
    with pytest.raises(InputError, match="'ward' and 'again' divide the rows alike"):
        cvc(GaussianNB(), twice, target="outcome", groups=["ward", "again"])


def test_a_budget_is_not_exceeded(table):
    assert cvc(GaussianNB(), table, **WARDS, budget=58, progress=False).refits.done <= 58


def test_gaps_in_features_are_told_by_the_refits(table):
    gaps = table.assign(age=table["age"].where(table.index > 3))
    with pytest.raises(FitError, match="NaN"):
        cvc(LogisticRegression(), gaps, **WARDS, progress=False)


def test_the_formula_for_log_loss_is_taken_where_rows_are_many_or_where_it_is_asked_for(table):
    few = table[table["week"] < 3]  # eighteen rows for each coefficient
    for frame, engine, by_formula in (
        (table, "auto", True),
        (few, "auto", False),
        (few, "fast", True),
    ):
        report = cvc(
            LogisticRegression(),
            frame.drop(columns="week"),
            target="outcome",
            groups=["ward"],
            loss="log",
            engine=engine,
        )
        assert (report.draws == 0) == by_formula


def test_losses_of_networks_need_a_tensor():
    f, y = np.zeros((3, 2)), np.ones((3, 2))
    with pytest.raises(InputError, match="logits=ndarray is not usable; give a tensor"):
        group_effect_loss(f, y, np.arange(2), 1.0)
    with pytest.raises(InputError, match="give a tensor of PyTorch, or of Keras"):
        pair_effect_loss(f, y, 1.0, np.zeros(3))
