"""The whole flow in Python: from a model and a table to a report."""

import json
import time
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from example_reports import flattened
from learners import Patient
from sklearn.compose import make_column_transformer
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.model_selection import GroupKFold, KFold
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import mlflow_b3 as b3
from mlflow_b3.auditing.findings import audit_findings
from mlflow_b3.measurement.collecting import CORRELATED_ERRORS
from mlflow_b3.measurement.refits import FitCounts
from mlflow_b3.refit import load_model
from mlflow_b3.reporting.headline import headline_of
from mlflow_b3.tracking.metrics_and_files import curves_of

pytestmark = pytest.mark.newest

COLUMNS = {"target": "disease", "cluster": "patient_id", "progress": False}
SMALL = {"folds": 2, "budget": 50}


@pytest.fixture(scope="module")
def clinic():
    return b3.make_clinic(patients=100, records=6, cluster_error=0.1, seed=3)


@pytest.fixture(scope="module")
def report(clinic):
    return b3.audit(KNeighborsClassifier(3), clinic.frame, cluster_error=0.1, **COLUMNS)


@pytest.fixture(scope="module")
def by_curve(clinic):
    """Return the report of an audit that extrapolates the loss curve."""
    options = {**COLUMNS, "cluster_error": 0.1, "method": "power"}
    return b3.audit(KNeighborsClassifier(3), clinic.frame, **options)


def codes(report):
    return {finding.code for finding in report.findings}


def test_the_corrected_loss_is_above_the_loss_on_noisy_clusters_and_near_the_truth(clinic, report):
    truth = clinic.truth(KNeighborsClassifier(3))
    assert report.iid < report.loco < report.e0
    assert report.e0_interval[0] <= truth <= report.e0_interval[1]
    assert abs(report.e0 - truth) < abs(report.loco - truth)
    assert report.e0_secant is None or report.e0_secant < truth
    assert report.inflation == pytest.approx(report.e0 - report.loco)


def test_a_report_survives_json(report):
    assert b3.AuditReport.from_dict(json.loads(report.to_json())) == report


def test_a_report_of_another_format_is_refused(report):
    with pytest.raises(
        ValueError, match="format 3; this version of mlflow-b3 reads formats 1 and 2"
    ):
        b3.AuditReport.from_dict({**report.to_dict(), "format": 3})


def test_a_flat_report_of_format_1_is_read(by_curve):
    """There were no doses then."""
    flat = flattened(by_curve)
    assert (flat["e0"], flat["settings"]["cluster"]) == (by_curve.e0, "patient_id")
    assert b3.AuditReport.from_dict(flat) == by_curve


def test_a_flat_report_with_a_field_that_never_was_is_refused(report):
    with pytest.raises(TypeError, match=r"format 1 has no fields \['settings.e0'\]"):
        b3.AuditReport.from_dict({**flattened(report), "settings": {"e0": 0.1}})


def test_settings_have_the_names_that_they_had_in_format_1(report):
    settings = report.settings
    assert (settings.cluster, settings.refit, settings.claim) == ("patient_id", "clone", (0.1, 0.1))
    assert "folds_digest" in dir(settings)
    with pytest.raises(AttributeError, match="no 'e0'"):
        _ = settings.e0


def test_a_report_of_an_earlier_version_keeps_its_bound_under_the_old_name_only(report):
    old = {**flattened(report), "e0_guaranteed": 0.3}
    del old["e0_secant"]
    read = b3.AuditReport.from_dict(old)
    assert (read.e0_secant, read.e0_guaranteed) == (None, 0.3)
    assert flattened(read) == {**old, "e0_secant": None}


def test_the_test_finds_that_the_learner_profits(report):
    assert report.test.rejected
    assert report.test.units == 100, "clusters, not rows"


def test_the_same_seed_gives_the_same_report_and_another_one_does_not(clinic):
    options = {**COLUMNS, **SMALL, "cluster_error": 0.1}
    first = b3.audit(KNeighborsClassifier(3), clinic.frame, **options)
    assert b3.audit(KNeighborsClassifier(3), clinic.frame, **options) == first
    assert b3.audit(KNeighborsClassifier(3), clinic.frame, seed=1, **options).e0 != first.e0


def test_the_cluster_error_becomes_the_shares_of_the_folds(report):
    """p_T = q·|V̂|/N."""
    assert report.p0 == pytest.approx(0.1 / 5, rel=0.01)
    assert report.p0_source == "cluster_error"


def test_p0_alone_means_as_many_rows_leak_back(clinic, report):
    again = b3.audit(KNeighborsClassifier(3), clinic.frame, p0=report.p0, **COLUMNS)
    assert again.e0 == pytest.approx(report.e0, rel=1e-3)
    one_way = b3.audit(
        KNeighborsClassifier(3), clinic.frame, p0=report.p0, p0_validation=0, **COLUMNS
    )
    assert one_way.e0 < again.e0


def test_the_sensitivity_curve_passes_through_the_estimate(report):
    at = report.sensitivity.error.index(0.1)
    assert report.sensitivity.e0[at] == pytest.approx(report.e0, abs=1e-6)


@pytest.mark.parametrize("rate", [0.3, 0.48])
def test_curves_agree_with_audits_at_other_rates(rate):
    frame, options = b3.make_clinic(cluster_error=0.1).frame, {**COLUMNS, "budget": 25}
    curve = b3.audit(KNeighborsClassifier(5), frame, cluster_error=0.1, **options).sensitivity
    there = b3.audit(KNeighborsClassifier(5), frame, cluster_error=rate, **options)
    low, high = there.e0_interval
    assert curve.e0[curve.error.index(rate)] == pytest.approx(there.e0, abs=0.005 * (high - low))


@pytest.mark.parametrize("rate", [0.01, 0.02])
def test_curves_of_large_clusters_agree_with_audits_at_small_rates(rate):
    """In clusters of 120 rows it is the first wrong ids that change most."""
    clinic = b3.make_clinic(patients=30, records=120, split_rate=0.2, seed=5)
    frame, options = clinic.frame, {**COLUMNS, "budget": 25}
    curve = b3.audit(KNeighborsClassifier(5), frame, split_rate=0.2, **options).sensitivity
    there = b3.audit(KNeighborsClassifier(5), frame, cluster_error=rate, **options)
    low, high = there.e0_interval
    assert curve.e0[curve.error.index(rate)] == pytest.approx(there.e0, abs=0.02 * (high - low))


def test_the_extrapolation_leads_from_the_measured_losses_to_the_estimate(by_curve):
    report, path = by_curve, by_curve.path
    assert path.loss[0] == pytest.approx(report.e0)
    assert (path.low[0], path.high[0]) == pytest.approx(report.e0_interval)
    assert path.exposure[-1] == 0.0
    assert path.loss[-1] == pytest.approx(path.measured_loss[0], abs=report.curve.stderr[1])
    assert list(path.loss) == sorted(path.loss, reverse=True)
    assert path.measured_exposure == pytest.approx(report.curve.exposure)


def test_the_losses_of_the_folds_make_up_the_score(report):
    rows = [fold.n_validation for fold in report.folds]
    assert np.average([fold.loss for fold in report.folds], weights=rows) == pytest.approx(
        report.loco
    )


def test_the_rows_of_the_folds_are_kept_but_not_in_the_dictionary(report):
    assert [len(fold.validation) for fold in report.splits] == [
        fold.n_validation for fold in report.folds
    ]
    assert "splits" not in report.to_dict()


def test_the_tipping_point_is_where_guessing_is_as_good(clinic, report):
    guessing = 1 - clinic.frame["disease"].value_counts(normalize=True).max()
    assert report.threshold == pytest.approx(guessing)
    tip = report.tipping_cluster_error
    assert np.interp(tip, report.sensitivity.error, report.sensitivity.e0) == pytest.approx(
        guessing
    )


def test_split_patients_are_a_mixture_of_seen_and_new():
    clinic = b3.make_clinic(patients=60, records=6, split_rate=0.5, seed=4)
    options = {**COLUMNS, "split_rate": 0.5, "method": "power"}
    report = b3.audit(KNeighborsClassifier(3), clinic.frame, **options)
    share = report.p0
    losses = report.fragments
    seen = losses.seen_loss + share * losses.saturation * losses.gain  # some are already broken
    mixture = (1 - share) * report.e0 + share * seen
    assert mixture == pytest.approx(report.loco)
    assert report.settings.pattern == "fragments"
    assert report.e0_secant is None


def _grouped(rng, clusters, rows):
    """Return features that tell clusters apart, and the effect of each row's cluster."""
    owner, effect = np.repeat(np.arange(clusters), rows), rng.normal(size=clusters)
    features = rng.normal(size=(clusters, 3))[owner] + 0.3 * rng.normal(size=(len(owner), 3))
    frame = pd.DataFrame(features, columns=["a", "b", "c"]).assign(g=owner)
    return frame, effect[owner]


def test_the_interval_of_a_rating_stays_below_what_ratings_can_be_missed_by():
    """Without the limit the upper end was in the thousands, for ratings from 1 to 5."""
    rng = np.random.default_rng(0)
    frame, effect = _grouped(rng, 30, 8)
    frame["y"] = np.clip(np.round(3 + effect + 0.7 * rng.normal(size=len(frame))), 1, 5)
    report = b3.audit(
        KNeighborsRegressor(3), frame, target="y", cluster="g", cluster_error=0.4, loss="squared"
    )
    assert report.settings.loss_ceiling < 16
    assert report.e0 <= report.e0_interval[1] <= report.settings.loss_ceiling
    assert max(report.sensitivity.high) <= report.settings.loss_ceiling


def test_an_upper_end_that_says_nothing_is_not_given():
    """The log loss of an overconfident model, 12 clusters, 45% wrong ids: 34.5 is a cut-off."""
    rng = np.random.default_rng(1)
    frame, effect = _grouped(rng, 12, 6)
    frame["y"] = (effect + 0.3 * rng.normal(size=len(frame)) > 0).astype(int)
    options = {"target": "y", "cluster": "g", "folds": 5, "budget": 150, "loss": "log"}
    options["method"] = "power"
    report = b3.audit(LogisticRegression(C=1000), frame, cluster_error=0.45, **options)
    assert report.e0_interval[1] is None
    assert b3.AuditReport.from_json(report.to_json()) == report
    small = b3.audit(LogisticRegression(C=0.01), frame, cluster_error=0.05, **options)
    assert small.e0_interval[1] < 2


def test_a_range_is_wider_than_its_middle(clinic, report):
    wide = b3.audit(KNeighborsClassifier(3), clinic.frame, cluster_error=(0.05, 0.15), **COLUMNS)
    assert wide.e0 == pytest.approx(report.e0, abs=1e-9)
    assert wide.e0_interval[1] > report.e0_interval[1]


def test_without_any_rate_no_single_number_is_given(clinic):
    report = b3.audit(KNeighborsClassifier(3), clinic.frame, **COLUMNS, **SMALL)
    assert report.e0 is report.p0 is report.inflation is report.e0_secant is None
    assert report.p0_source == "none"
    assert "B307" in codes(report)
    assert report.e0_interval[0] < report.loco < report.e0_interval[1]


def test_logistic_regression_is_not_corrected_where_leakage_does_not_matter():
    clinic = b3.make_clinic(cluster_error=0.1, seed=5)
    report = b3.audit(LogisticRegression(), clinic.frame, cluster_error=0.1, **COLUMNS)
    assert abs(report.inflation) < 0.015


def regression_table(seed=0):
    rng = np.random.default_rng(seed)
    ids = np.repeat(np.arange(40), 5)
    place = rng.normal(size=(40, 2))[ids]
    frame = pd.DataFrame(place + 0.1 * rng.normal(size=place.shape), columns=["x1", "x2"])
    frame["site"] = np.where(ids % 2, "north", "south")
    frame["yield"] = 100 * (frame["x1"] + rng.normal(size=40)[ids]) + rng.normal(size=200)
    frame["plot"] = ids
    return frame


@pytest.mark.parametrize("loss", [None, "absolute", lambda y, p: np.abs(y - p) > 50])
def test_regressors_and_losses_far_above_one(loss):
    encoder = make_column_transformer((OneHotEncoder(), ["site"]), (StandardScaler(), ["x1", "x2"]))
    report = b3.audit(
        make_pipeline(encoder, KNeighborsRegressor(3)),
        regression_table(),
        target="yield",
        cluster="plot",
        cluster_error=0.05,
        loss=loss,
        progress=False,
    )
    assert report.iid < report.loco < report.e0


@pytest.mark.parametrize("loss", ["log", "brier", "hinge"])
def test_losses_of_probabilities_and_decision_values(clinic, loss):
    report = b3.audit(
        LogisticRegression(), clinic.frame, cluster_error=0.1, loss=loss, **COLUMNS, **SMALL
    )
    assert report.e0 is not None
    assert (report.threshold is None) == (loss == "hinge"), "no best constant decision value"


def test_string_labels_and_three_classes():
    clinic = b3.make_clinic(patients=30, records=5)
    frame = clinic.frame.assign(disease=pd.qcut(clinic.frame["age"], 3, labels=["a", "b", "c"]))
    frame["disease"] = frame["disease"].astype(str)
    report = b3.audit(
        KNeighborsClassifier(3), frame, cluster_error=0.1, loss="brier", **COLUMNS, **SMALL
    )
    assert 0 <= report.e0 <= 1


def test_files_and_frames_give_the_same_report(clinic, tmp_path):
    clinic.frame.to_parquet(tmp_path / "records.parquet")
    clinic.frame.to_csv(tmp_path / "records.csv", index=False)
    options = {**COLUMNS, **SMALL, "cluster_error": 0.1}
    reports = [
        b3.audit(LogisticRegression(), data, **options)
        for data in (clinic.frame, tmp_path / "records.parquet", str(tmp_path / "records.csv"))
    ]
    assert reports[0] == reports[1]
    assert reports[0].e0 == pytest.approx(reports[2].e0)


def test_folds_that_were_used_are_audited_as_they_are(clinic):
    splits = list(KFold(3, shuffle=True, random_state=0).split(clinic.frame))
    report = b3.audit(
        KNeighborsClassifier(3), clinic.frame, folds=splits, cluster_error=0.1, **COLUMNS
    )
    assert "B313" in codes(report)
    assert report.folds[0].shared_rows > 0.9
    assert report.e0 is None  # nothing was measured without known leakage
    assert report.e0_interval[1] is None
    assert "On new patients    not known" in str(report)


def test_ids_that_never_repeat_give_no_score_on_new_clusters(clinic):
    report = b3.audit(
        KNeighborsClassifier(3),
        clinic.frame.drop_duplicates("patient_id"),
        cluster_error=0.1,
        **{**COLUMNS, **SMALL},
    )
    assert report.e0 is None
    assert report.e0_interval[1] is None


def test_clusters_are_assigned_to_folds_three_times_where_the_budget_allows(clinic, by_curve):
    assert by_curve.settings.repeats == 3
    assert len(by_curve.folds) == 15
    assert by_curve.settings.fits <= 480
    options = {**COLUMNS, "method": "power"}
    small = b3.audit(LogisticRegression(), clinic.frame, budget=120, **options)
    assert (small.settings.repeats, len(small.folds)) == (1, 5)
    twice = b3.audit(LogisticRegression(), clinic.frame, repeats=2, folds=2, budget=100, **options)
    assert len(twice.folds) == 4


def test_by_doses_every_pass_assigns_clusters_to_folds_anew(clinic):
    options = {**COLUMNS, "method": "dose", "cluster_error": 0.1}
    usual = b3.audit(LogisticRegression(), clinic.frame, **options)
    assert 35 <= usual.settings.fits <= 100
    assert len(usual.folds) == 5 * usual.settings.repeats
    least = b3.audit(LogisticRegression(), clinic.frame, budget=10, **options)
    assert (least.settings.fits, least.settings.repeats) == (10, 1)
    assert least.e0_interval[0] < least.e0 < least.e0_interval[1]
    twice = b3.audit(LogisticRegression(), clinic.frame, repeats=2, folds=2, budget=50, **options)
    assert len(twice.folds) == 4


def test_by_doses_the_least_number_of_refits_still_shows_that_leaked_rows_help(clinic):
    """Folds of single rows take the place of the doses that were not measured."""
    least = b3.audit(KNeighborsClassifier(3), clinic.frame, budget=10, cluster_error=0.1, **COLUMNS)
    assert least.settings.fits == 10
    assert least.conclusion.dose.p_value < 0.05
    assert "B304" not in codes(least)
    assert least.conclusion.dose.variance.refits > 0


def test_the_noise_of_a_few_hospitals_of_unequal_size_is_no_effect_of_mates():
    """No hospital has the size of another one, so noise shows only in how they differ from each other."""
    off = []
    for seed in range(8):
        rng = np.random.default_rng(seed)
        hospital = np.repeat(np.arange(3), (250, 120, 40))
        X = rng.normal(size=(len(hospital), 3)) + rng.normal(size=(3, 3))[hospital]
        sick = X[:, 0] + rng.logistic(size=len(hospital)) + rng.normal(size=3)[hospital] > 0
        frame = pd.DataFrame(X).set_axis(list("abc"), axis=1).assign(disease=sick)
        wrong = rng.random(len(hospital)) < 0.1
        frame["patient_id"] = np.where(wrong, rng.permutation(hospital), hospital)
        report = b3.audit(LogisticRegression(), frame, cluster_error=0.1, seed=seed, **COLUMNS)
        off.append(report.e0 - report.loco)
    assert np.abs(off).max() < 0.15  # 0.31 if each size has a noise of its own


@pytest.mark.parametrize("error", [(0.3 - 0.2, 0.1), float(np.nextafter(0.5, 0)), 1e-300], ids=str)
def test_rates_that_are_as_good_as_the_same_are_one(clinic, error):
    report = b3.audit(LogisticRegression(), clinic.frame, cluster_error=error, **COLUMNS, **SMALL)
    assert np.isfinite(report.e0)


def test_of_rows_that_are_nearly_all_single_the_interval_is_hardly_wider_than_that_of_loco():
    """Mates that an audit assumes, of which there are none, tell nothing about how rows vary together."""
    rng = np.random.default_rng(0)
    n = 300
    frame = pd.DataFrame(rng.normal(size=(n, 3)), columns=list("abc"))
    frame["disease"] = frame["a"] + rng.logistic(size=n) > 0
    frame["patient_id"] = np.where(np.arange(n) < 280, np.arange(n), np.arange(n) // 2)
    for error in (0.1, 0.11, 0.12):
        found = b3.audit(KNeighborsClassifier(), frame, cluster_error=error, **COLUMNS)
        low, high = found.e0_interval
        loco_low, loco_high = found.loco_interval
        assert high - low < 1.3 * (loco_high - loco_low)


def test_the_gap_between_the_scores_by_clusters_and_by_rows_has_an_interval(report):
    low, high = report.conclusion.loco_gap_interval
    assert 0 < low < report.loco - report.iid < high


def test_the_gap_of_pure_noise_is_seldom_beyond_its_interval(clinic):
    """Both scores are then those of guessing. P(more than 3 of 12) is 0.002 at 5%."""
    beyond = 0
    for seed in range(12):
        rng = np.random.default_rng(seed)
        noise = clinic.frame.assign(disease=rng.integers(2, size=len(clinic.frame)))
        report = b3.audit(
            KNeighborsClassifier(3), noise, cluster_error=0.1, budget=10, seed=seed, **COLUMNS
        )
        low, high = report.conclusion.loco_gap_interval
        beyond += not low <= 0 <= high
    assert beyond <= 3


def test_a_splitter_can_be_given(clinic):
    report = b3.audit(LogisticRegression(), clinic.frame, folds=GroupKFold(2), budget=50, **COLUMNS)
    assert len(report.folds) == 2


def test_few_clusters_are_left_out_one_at_a_time_and_named_as_few(clinic):
    frame = clinic.frame.assign(patient_id=np.arange(len(clinic.frame)) % 4)
    report = b3.audit(LogisticRegression(), frame, cluster_error=0.1, **COLUMNS)
    assert len(report.folds) == 4
    assert report.settings.fits <= 100
    assert "B301" in codes(report)
    assert "rough (e0)" in str(report)
    assert report.loco_interval[0] >= report.e0_interval[0]
    assert report.loco_interval[1] <= report.e0_interval[1]


@pytest.mark.parametrize(("tail", "decided"), [(0.0, False), (2.0, True)])
def test_a_few_clusters_that_decide_a_squared_loss_are_told(clinic, tail, decided):
    """Costs of patients are log-normal: those of a few are most of the squared error."""
    rng = np.random.default_rng(0)
    patient = clinic.frame["patient_id"].factorize()[0]
    level = rng.normal(size=patient.max() + 1)
    costs = np.exp(tail * level)[patient] + rng.normal(size=len(patient))
    frame = clinic.frame.assign(disease=costs)
    report = b3.audit(LinearRegression(), frame, cluster_error=0.1, budget=10, **COLUMNS)
    assert ("B358" in codes(report)) is decided
    absolute = b3.audit(LogisticRegression(), clinic.frame, cluster_error=0.1, budget=10, **COLUMNS)
    assert "B358" not in codes(absolute), "an error rate has a largest value"


def test_where_all_ids_are_right_nothing_is_pulled_anywhere(clinic):
    report = b3.audit(LogisticRegression(), clinic.frame, cluster_error=0, budget=10, **COLUMNS)
    assert report.e0 == pytest.approx(report.loco)
    assert "pulled" not in str(report) + report.to_text()


def test_two_clusters_have_an_answer_that_nobody_can_rely_on(clinic):
    frame = clinic.frame.assign(patient_id=np.arange(len(clinic.frame)) % 2)
    report = b3.audit(LogisticRegression(), frame, cluster_error=0.1, **COLUMNS)
    assert headline_of(report).word == "Cannot tell"


@pytest.mark.parametrize("clusters", [6, 10])
@pytest.mark.parametrize("budget", [10, 11])
def test_ten_refits_are_enough_where_one_cluster_at_a_time_is_left_out_by_default(
    clinic, clusters, budget
):
    frame = clinic.frame.assign(patient_id=np.arange(len(clinic.frame)) % clusters)
    report = b3.audit(LogisticRegression(), frame, cluster_error=0.1, budget=budget, **COLUMNS)
    assert len(report.folds) == 5
    assert report.settings.fits == 10
    with pytest.raises(b3.InputError, match="Give at least 10"):
        b3.audit(LogisticRegression(), frame, cluster_error=0.1, budget=9, **COLUMNS)


@pytest.mark.parametrize(
    "known",
    [
        {"cluster_error": 0.1},
        {"cluster_error": 0.05, "split_rate": 0.2},
        {},
        {"scoring": "roc_auc"},
    ],
    ids=str,
)
def test_all_single_row_clusters_are_said_to_tell_nothing(clinic, known):
    frame = clinic.frame.assign(patient_id=np.arange(len(clinic.frame)))
    report = b3.audit(LogisticRegression(), frame, budget=10, **known, **COLUMNS)
    assert report.e0 is None
    assert "No cluster has a second row" in headline_of(report).sentence
    assert "B311" in codes(report)
    assert report.fragments is None


def test_single_row_clusters_cannot_be_split(clinic):
    frame = clinic.frame.assign(patient_id=np.arange(len(clinic.frame)))
    with pytest.raises(b3.InputError, match="at least two rows"):
        b3.audit(LogisticRegression(), frame, split_rate=0.1, **COLUMNS, **SMALL)


def test_the_papers_scheme_with_replacement_works_too(clinic):
    report = b3.audit(
        KNeighborsClassifier(3), clinic.frame, cluster_error=0.1, scheme="replace", **COLUMNS
    )
    assert report.curve.exhausted_at == pytest.approx(1.0)
    assert report.e0 > report.loco


def test_the_papers_protocol_has_its_own_training_size_and_levels(clinic):
    """Sixty rows drawn with replacement, 20 levels at equal distances, trend4+mono."""
    report = b3.audit(
        KNeighborsClassifier(3),
        clinic.frame,
        p0=0.05,
        p0_validation=0,
        scheme="replace",
        n_train=60,
        levels=20,
        method="trend4+mono",
        folds=3,
        **COLUMNS,
    )
    assert report.curve.n_train == report.settings.n_train == 60
    assert np.diff(report.curve.injected) == pytest.approx(report.curve.injected[1])
    assert len(report.curve.injected) == 20
    assert report.loco == report.curve.loss[0]
    assert report.accurate
    assert report.fragments is None
    assert "B353" in codes(report)
    full = b3.audit(KNeighborsClassifier(3), clinic.frame, p0=0.05, folds=3, **COLUMNS)
    assert report.loco > full.loco  # smaller training sets, worse models
    assert report.iid > full.iid


def test_least_squares_in_an_audit_names_what_would_work_before_the_first_refit(clinic):
    with pytest.raises(b3.InputError, match=r"n_train=4, levels=6") as caught:
        b3.audit(
            KNeighborsClassifier(3),
            clinic.frame,
            cluster_error=0.1,
            method="least-squares",
            **COLUMNS,
        )
    assert "'power', 'basis' or 'trend4+mono'" in str(caught.value)
    report = b3.audit(
        KNeighborsClassifier(3),
        clinic.frame,
        cluster_error=0.1,
        method="least-squares",
        scheme="replace",
        n_train=4,
        levels=6,
        **COLUMNS,
    )
    assert len(report.losses) == 5


def test_basis_is_a_method_of_the_audit(clinic):
    report = b3.audit(
        KNeighborsClassifier(3), clinic.frame, cluster_error=0.1, method="basis", **COLUMNS
    )
    assert report.settings.method == "basis"
    assert report.e0 > report.loco


def test_the_options_of_a_method_are_recorded(clinic):
    report = b3.audit(
        KNeighborsClassifier(3),
        clinic.frame,
        cluster_error=0.1,
        method="sketch",
        method_options={"groups": 4},
        **COLUMNS,
    )
    options = {"groups": 4, "grouping": "means", "smoothing": 0.1, "objective": "norm"}
    assert report.settings.method_options == options
    assert "sketch (groups 4, grouping means" in report.to_text().replace("\n  ", " ")
    assert report.accurate
    assert report.sketch_error > 0
    assert b3.AuditReport.from_dict(report.to_dict()) == report
    given = b3.Method(name="sketch", groups=4)
    again = b3.audit(
        KNeighborsClassifier(3), clinic.frame, cluster_error=0.1, method=given, **COLUMNS
    )
    assert again == report


def test_a_method_that_cannot_work_shows_before_the_first_refit(clinic):
    class Untouched(KNeighborsClassifier):
        def fit(self, X, y):  # noqa: ARG002 - the signature is scikit-learn's
            raise AssertionError("refitted")

    for method, options, message in (
        ("basis", {"order": 7}, "at least 8 levels"),
        ("trend2", {"order": 2}, "only smoothing, objective"),
        ("mono", {}, "'basis', 'sketch' or 'power'"),
    ):
        frame = clinic.frame if method != "mono" else pd.concat([clinic.frame] * 6)
        with pytest.raises(b3.InputError, match=message):
            b3.audit(Untouched(), frame, method=method, method_options=options, **COLUMNS)


def test_a_time_is_a_budget(clinic):
    options = {**COLUMNS, "cluster_error": 0.1, "folds": 2}
    report = b3.audit(KNeighborsClassifier(3), clinic.frame, budget="3s", **options)
    assert report.settings.fits >= 40


class Tiring(Patient):
    """Takes longer from the fifth fit on."""

    fits = 0

    def fit(self, X, y):
        Tiring.fits += 1
        time.sleep(0.5 if Tiring.fits > 4 else 0.02)
        return super().fit(X, y)


class Refused(KNeighborsClassifier):
    """Must not be trained."""

    def fit(self, X, y):  # noqa: ARG002 - the signature is scikit-learn's
        raise AssertionError("refitted")


@pytest.mark.parametrize(
    ("method", "folds", "budget", "told"),
    [
        ("power", 3, 59, "need at least 60"),
        ("power", None, 99, "need at least 100"),
        ("power", [([0], [1])] * 4, 79, "need at least 80"),
        ("dose", 3, 5, "Give at least 6"),
        ("dose", None, 9, "Give at least 10"),
    ],
)
def test_a_budget_that_is_too_small_is_refused_before_anything_is_fitted(
    clinic, method, folds, budget, told
):
    options = {**COLUMNS, "method": method, "folds": folds, "budget": budget}
    with pytest.raises(b3.InputError, match=f"budget={budget} refits is too little.*{told}"):
        b3.audit(Refused(), clinic.frame, **options)


@pytest.mark.parametrize(
    "options",
    [
        {"budget": 19, "method": "power"},
        {"budget": 59, "folds": 3, "method": "power"},
        {"budget": 5, "folds": 3, "method": "dose"},
        {"budget": "x"},
    ],
)
def test_a_budget_that_suits_no_table_is_refused_before_the_model_is_loaded(options):
    with pytest.raises(b3.InputError, match="budget="):
        b3.audit("models:/nowhere/1", "nowhere.csv", **COLUMNS, **options)


@pytest.mark.parametrize("budget", [46, 50, 73])
def test_a_budget_is_never_exceeded(clinic, budget):
    """Two folds of a fifth of the rows: rows alone are split in five, which is three folds more."""
    rows = np.arange(len(clinic.frame))
    folds = [(rows[rows % 5 != n], rows[rows % 5 == n]) for n in (0, 1)]
    options = {**COLUMNS, "cluster_error": 0.1, "folds": folds, "budget": budget}
    assert b3.audit(KNeighborsClassifier(3), clinic.frame, **options).settings.fits <= budget


def test_a_time_that_the_first_refits_show_to_be_too_short_is_refused_at_once(clinic):
    options = {**COLUMNS, "cluster_error": 0.1, "folds": 2, "n_jobs": 1}
    started = time.monotonic()
    with pytest.raises(
        b3.InputError, match=r"budget='3s' is too short: a refit takes about 0\..*m'"
    ):
        b3.audit(Patient(0.5), clinic.frame, budget="3s", method="power", **options)
    assert time.monotonic() - started < 3, "at least 30 refits would take 15 s"
    with pytest.raises(b3.InputError, match=r"budget='1s' is too short.*at least 4 are needed"):
        b3.audit(Patient(0.5), clinic.frame, budget="1s", method="dose", **options)


def test_a_report_says_where_the_time_ended_before_all_planned_refits(report):
    counts = FitCounts(planned=480, done=300)
    (finding,) = [f for f in audit_findings(report, counts) if f.code == "B352"]
    assert "after 300 of 480 planned refits" in str(finding)
    assert "B352" not in codes(report)


def test_work_stops_when_the_time_is_over(clinic):
    """Later refits are slower than the first ones, which promised to be fast enough."""
    options = {**COLUMNS, "cluster_error": 0.1, "folds": 2, "n_jobs": 1}
    started = time.monotonic()
    with pytest.raises(b3.InputError, match="budget='4s' is too short"):
        b3.audit(Tiring(), clinic.frame, budget="4s", method="power", **options)
    assert time.monotonic() - started < 6


def test_by_doses_there_is_an_answer_when_the_time_is_over(clinic):
    options = {**COLUMNS, "cluster_error": 0.1, "folds": 2, "n_jobs": 1, "method": "dose"}
    report = b3.audit(Patient(0.1), clinic.frame, budget="2s", **options)
    assert 4 <= report.refits.done < report.refits.planned
    assert report.refits.planned > 80, "all passes, not only those that were begun"
    assert report.e0_interval[0] < report.e0 < report.e0_interval[1]
    assert "B352" in codes(report)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"threshold": 35}, r'error rate \(zero_one\) lies between 0 and 1.* give 0.35 or "35%"'),
        ({"threshold": 35, "loss": "zero_one"}, "lies between 0 and 1"),
        ({"threshold": -0.1, "loss": "brier"}, r"Brier score \(brier\) lies between 0 and 1"),
        ({"threshold": 40, "loss": "log"}, "lies between 0 and 34.54"),
        ({"threshold": "a third"}, "threshold='a third' must be a finite number"),
    ],
)
def test_a_threshold_that_the_loss_cannot_reach_is_refused(clinic, options, message):
    with pytest.raises(b3.InputError, match=message):
        b3.audit(KNeighborsClassifier(3), clinic.frame, **COLUMNS, **options)


def test_a_threshold_of_a_named_loss_is_refused_before_the_model_is_loaded():
    with pytest.raises(b3.InputError, match=r"squared\) is at least 0\. Give a threshold in that"):
        b3.audit("models:/nowhere/1", "no.csv", threshold=-1, loss="squared", **COLUMNS)


def test_percentages_are_understood_and_a_threshold_above_the_constant_is_a_finding(clinic):
    options = {**COLUMNS, **SMALL, "cluster_error": "10%"}
    report = b3.audit(KNeighborsClassifier(3), clinic.frame, threshold="90%", **options)
    assert report.threshold == 0.9
    assert report.settings.claim == (0.1, 0.1)
    assert "B351" in codes(report)
    assert headline_of(report).word == "Inflated", "whatever the threshold"
    sensible = b3.audit(KNeighborsClassifier(3), clinic.frame, threshold=0.3, **options)
    assert "B351" not in codes(sensible)


def test_data_that_cannot_tell_are_headed_so(clinic):
    """One row a cluster, three clusters, a copy of the target among the features, no rate."""
    frame, rng = clinic.frame, np.random.default_rng(0)
    model = LogisticRegression()
    visits = {**COLUMNS, "cluster": np.arange(len(frame)), "folds": 2, "budget": 60}
    noise = frame.assign(disease=rng.integers(2, size=len(frame)))
    copied = frame.assign(copy=frame["disease"])
    for audited, options in (
        (frame.drop(columns="patient_id"), visits),
        (noise.drop(columns="patient_id"), {**visits, "cluster": np.arange(len(frame)) % 3}),
        (copied, {**visits, "cluster": "patient_id", "cluster_error": 0.1}),
        (noise, {**visits, "cluster": "patient_id", "threshold": 0.99}),
    ):
        report = b3.audit(model, audited, **options)
        assert headline_of(report).word == "Cannot tell", headline_of(report)


def test_missing_values_are_the_learners_business(clinic):
    frame = clinic.frame.copy()
    frame.loc[::7, "bmi"] = np.nan
    with pytest.raises(b3.FitError, match="NaN"):
        b3.audit(LogisticRegression(), frame, cluster_error=0.1, **COLUMNS, **SMALL)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"cluster_error": 1.2}, b3.InputError, "cluster_error=1.2"),
        ({"p0": 0.1, "split_rate": 0.1}, b3.InputError, "cannot be given together"),
        (
            {"cluster_error": 0.1, "split_rate": 0.1, "method": "power"},
            b3.InputError,
            "needs method='dose', not 'power'",
        ),
        ({"p0": 0.6}, b3.InputError, "impossible"),
        ({"method": "T4"}, b3.InputError, "method='T4'"),
        ({"scheme": "both"}, b3.InputError, "scheme='both'"),
        ({"levels": 2}, b3.InputError, "levels=2"),
        ({"n_train": 50}, b3.InputError, "n_train=50 needs scheme='replace'"),
        ({"n_train": 1.5, "scheme": "replace"}, b3.InputError, "n_train=1.5"),
        ({"n_train": 9999, "scheme": "replace"}, b3.InputError, "more than the"),
        (
            {"n_train": 50, "scheme": "replace", "split_rate": 0.1},
            b3.InputError,
            "n_train=50 is for misplaced rows",
        ),
        ({"n_train": 50, "scheme": "replace", "method": "cvc"}, b3.InputError, "method='cvc'"),
        ({"loss": "squared"}, b3.InputError, "does not fit a classification model"),
        ({"loss": "logg"}, b3.InputError, "Did you mean 'log'"),
        ({"seed": -1}, b3.InputError, "seed=-1"),
        ({"threshold": float("nan")}, b3.InputError, "threshold"),
        ({"folds": 1}, b3.InputError, "at least two folds"),
        ({"repeats": 0}, b3.InputError, "repeats=0"),
        ({"repeats": 2, "folds": [([0], [1])]}, b3.InputError, "would change nothing"),
        ({"folds": 1000}, b3.InputError, "more than the 100 clusters"),
        ({"target": "disase"}, b3.InputError, "Did you mean 'disease'"),
    ],
)
def test_bad_arguments_are_refused_before_the_first_refit(clinic, options, error, message):
    with pytest.raises(error, match=message):
        b3.audit(KNeighborsClassifier(3), clinic.frame, **{**COLUMNS, **options})


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"method_options": 3}, "method_options=3 must be a mapping"),
        ({"refit_options": 3}, "refit_options=3 must be a mapping"),
        ({"refit": 3}, "refit=3 must be the name of a route"),
        ({"distribution": "yes", "cluster_error": 0.1}, "distribution='yes' must be True or False"),
        ({"backend": "x", **SMALL}, "backend='x'"),
    ],
)
def test_values_of_the_wrong_kind_are_refused(clinic, options, problem):
    with pytest.raises(b3.InputError, match=problem):
        b3.audit(KNeighborsClassifier(3), clinic.frame, **COLUMNS, **options)


@pytest.mark.parametrize(("rows", "told"), [(600, False), (700, False), (2000, True), (100, True)])
def test_a_table_of_another_size_than_that_of_training_is_named(clinic, rows, told):
    model = replace(load_model(KNeighborsClassifier(3)), training_rows=rows)
    report = b3.audit(model, clinic.frame, cluster_error=0.1, **COLUMNS, **SMALL)
    assert ("B329" in codes(report)) == told


def test_a_model_that_is_neither_classifier_nor_regressor_is_refused(clinic):
    with pytest.raises(b3.ModelError, match="neither a classifier nor a regressor"):
        b3.audit(StandardScaler(), clinic.frame, **COLUMNS)


def test_a_model_without_probabilities_says_which_losses_work(clinic):
    from sklearn.svm import LinearSVC

    with pytest.raises(b3.ModelError, match="losses that work with it"):
        b3.audit(LinearSVC(), clinic.frame, loss="log", cluster_error=0.1, **COLUMNS, **SMALL)


def test_a_linear_regression_of_a_linear_truth_needs_no_correction():
    frame = regression_table()
    frame["yield"] = 3 * frame["x1"] + np.random.default_rng(0).normal(size=200)
    report = b3.audit(
        LinearRegression(),
        frame.drop(columns="site"),
        target="yield",
        cluster="plot",
        cluster_error=0.1,
        progress=False,
    )
    assert abs(report.inflation) < 0.05 * report.loco


def clusters_of(sizes, seed=0):
    """Return a table with clusters of these sizes."""
    clinic = b3.make_clinic(patients=2, records=sum(sizes), seed=seed)
    ids = np.repeat(np.arange(len(sizes)), sizes)
    return clinic.frame.head(sum(sizes)).assign(patient_id=ids)


@pytest.mark.parametrize("count", [10, 12])
def test_whole_clusters_left_out_one_at_a_time_still_vary(count):
    """Each fold holds one cluster; deviations are from the mean of all folds, not of its own."""
    frame = clusters_of([12] * count)
    from sklearn.model_selection import LeaveOneGroupOut

    report = b3.audit(
        LogisticRegression(), frame, cluster_error=0.1, folds=LeaveOneGroupOut(), **COLUMNS
    )
    wrong = []
    X, y = frame.drop(columns=["disease", "patient_id"]), frame["disease"].to_numpy()
    for fold in LeaveOneGroupOut().split(X, y, frame["patient_id"]):
        model = LogisticRegression().fit(X.iloc[fold[0]], y[fold[0]])
        wrong.append(np.mean(model.predict(X.iloc[fold[1]]) != y[fold[1]]))
    stderr = np.std(wrong, ddof=1) / np.sqrt(count)
    assert report.loco == pytest.approx(np.mean(wrong))
    from scipy import stats

    reach = stats.t.ppf(0.975, count - 1) * stderr * np.sqrt(CORRELATED_ERRORS)
    assert report.loco_interval[1] - report.loco == pytest.approx(reach)


@pytest.mark.parametrize("sizes", [[1, 30, 30, 30], [3, 3, 40, 40], [100, 10, 10, 10], [2] * 12])
@pytest.mark.parametrize("rate", [{"cluster_error": 0.1}, {"split_rate": 0.1}, {"p0": 0.01}, {}])
def test_tiny_and_unequal_clusters_are_audited(sizes, rate):
    report = b3.audit(KNeighborsClassifier(1), clusters_of(sizes), **rate, budget=120, **COLUMNS)
    assert "B312" not in codes(report)
    assert np.isfinite(report.e0_interval).all()
    assert report.e0_interval[0] <= report.e0_interval[1]


def test_one_validation_cluster_gives_an_interval_over_its_rows():
    frame = clusters_of([10] * 12)
    split = [(np.arange(10, 120), np.arange(10))]
    for rate in ({"cluster_error": 0.1}, {"split_rate": 0.1}):
        report = b3.audit(
            KNeighborsRegressor(3), frame, folds=split, **rate, loss="squared", **COLUMNS
        )
        low, high = report.e0_interval
        assert low < report.e0 < high
        assert "B301" in codes(report)
        report.to_json()


def test_a_constant_answer_is_audited(clinic):
    from sklearn.dummy import DummyClassifier

    report = b3.audit(
        DummyClassifier(strategy="most_frequent"),
        clinic.frame,
        cluster_error=0.1,
        **COLUMNS,
        **SMALL,
    )
    assert report.e0 == pytest.approx(report.loco, abs=0.01), "up to which rows are scored"


def test_the_table_of_rates_and_the_headline_agree_for_one_direction(clinic):
    report = b3.audit(KNeighborsClassifier(3), clinic.frame, p0=0.02, p0_validation=0, **COLUMNS)
    assert np.interp(0.02, report.sensitivity.p0, report.sensitivity.e0) == pytest.approx(
        report.e0, abs=1e-3
    )


def test_with_a_fixed_share_of_validation_rows_the_curve_is_over_p0(clinic):
    """The shares of no cluster error: they would have to grow together."""
    options = {"p0": 0.02, "p0_validation": 0.1, "budget": 120, "repeats": 1, "method": "power"}
    report = b3.audit(KNeighborsClassifier(3), clinic.frame, threshold=0.0, **options, **COLUMNS)
    assert report.sensitivity.error is None
    assert report.sensitivity.p0[:3] == (0.0, 0.01, 0.02)
    assert report.sensitivity.p0[-1] == 0.45, "half of the training rows that are not of others"
    assert (report.tipping_p0, report.tipping_cluster_error) == (0.0, None)
    assert curves_of(report)["b3_curve/sensitivity"][-1][0] == 450
    assert b3.AuditReport.from_dict(report.to_dict()) == report


def test_by_doses_that_curve_ends_where_all_ids_would_be_wrong(clinic):
    options = {"p0": 0.02, "p0_validation": 0.1, "budget": 50, "method": "dose"}
    report = b3.audit(KNeighborsClassifier(3), clinic.frame, **options, **COLUMNS)
    assert report.sensitivity.error is None
    assert report.sensitivity.p0[:3] == (0.0, 0.01, 0.02)
    assert 0.3 < report.sensitivity.p0[-1] < 0.45
    assert report.sensitivity.e0[2] == pytest.approx(report.e0, abs=1e-6)


def test_a_loss_is_never_said_to_be_below_zero():
    rng = np.random.default_rng(0)
    frame = regression_table()
    frame["yield"] = np.where(rng.random(200) < 0.01, 100.0, 0.0) + 0.1 * rng.random(200)
    report = b3.audit(
        KNeighborsRegressor(3),
        frame.drop(columns="site"),
        target="yield",
        cluster="plot",
        cluster_error=0.1,
        progress=False,
        **SMALL,
    )
    assert report.loco_interval[0] >= 0
    assert report.e0_interval[0] >= 0
    assert min(report.sensitivity.low) >= 0
