"""Which of several audited models is best on new clusters, and what of that is noise."""

import math
import re
from dataclasses import replace

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier
from sklearn.tree import DecisionTreeClassifier

import mlflow_b3 as b3
from mlflow_b3.comparing import Comparison, compare_reports
from mlflow_b3.estimation.differences import Uncertain, difference_interval
from mlflow_b3.estimation.influence import Influence, curve_gradient
from mlflow_b3.estimation.methods import as_method
from mlflow_b3.estimation.unmixing import LeakShares, unmix
from mlflow_b3.measurement.accumulation import robust_covariance
from mlflow_b3.reporting.comparison import comparison_files, comparison_text

COLUMNS = {"target": "disease", "cluster": "patient_id", "progress": False, "n_jobs": 1}
LEARNERS = {
    "nearest": KNeighborsClassifier(5),
    "copy": KNeighborsClassifier(5),
    "logistic": LogisticRegression(),
    "stump": DecisionTreeClassifier(max_depth=1, random_state=0),
}


@pytest.fixture(scope="module")
def clinic():
    return b3.make_clinic(patients=80, records=6, cluster_error=0.1, seed=5)


@pytest.fixture(scope="module")
def reports(clinic):
    options = {**COLUMNS, "cluster_error": (0.05, 0.15), "budget": 150, "repeats": 1}
    return {name: b3.audit(model, clinic.frame, **options) for name, model in LEARNERS.items()}


def pair(comparison, one, other):
    (found,) = [d for d in comparison.differences if {d.better, d.worse} == {one, other}]
    return found


# --- what each cluster adds -----------------------------------------------------------------------


def test_what_clusters_add_to_the_score_makes_up_its_interval(reports):
    """The standard error of LOCO is that of the sum over clusters."""
    report = reports["nearest"]
    error = math.sqrt(robust_covariance(report.influence.loco[:, None])[0, 0])
    assert error**2 == pytest.approx(report.curve.covariance[0][0])
    assert report.influence.loco.sum() == pytest.approx(0, abs=1e-12)
    assert len(report.influence.ids) == 80


def test_a_cluster_moves_e0_more_than_the_score_it_is_extrapolated_from(reports):
    influence = reports["nearest"].influence
    assert np.linalg.norm(influence.e0[:, 1]) > np.linalg.norm(influence.loco)
    assert np.corrcoef(influence.e0[:, 1], influence.loco)[0, 1] > 0.9


def test_the_derivative_of_a_polynomial_is_the_weights_it_reads_the_curve_with(reports):
    """Method `basis` is linear in the losses: e_0 = Σ_l w_l·ℓ_l, and w sums to 1."""
    problem = unmix(reports["nearest"].curve, LeakShares(p0=0.02))
    gradient = curve_gradient(problem, as_method("basis", order=1))
    design = np.vander(problem.exposure, 2, increasing=True)
    assert gradient.sum() == pytest.approx(1)
    assert gradient @ design[:, 1] == pytest.approx(problem.target, abs=1e-8)


def test_readings_are_taken_at_the_ends_and_in_the_middle_of_the_claim(reports):
    report = reports["nearest"]
    assert [reading.leakage for reading in report.readings] == pytest.approx([0.05, 0.1, 0.15])
    assert report.readings[1].e0 == pytest.approx(report.e0)
    assert min(r.low for r in report.readings) == pytest.approx(report.e0_interval[0])
    assert max(r.high for r in report.readings) == pytest.approx(report.e0_interval[1])


def test_split_clusters_have_readings_too(clinic):
    report = b3.audit(KNeighborsClassifier(5), clinic.frame, split_rate=0.2, budget=150, **COLUMNS)
    (reading,) = report.readings
    assert (reading.e0, reading.low, reading.high) == pytest.approx(
        (report.e0, *report.e0_interval)
    )
    error = math.sqrt(robust_covariance(report.influence.e0)[0, 0] + reading.noise**2)
    reach = (reading.high - reading.low) / 2
    assert reach / error == pytest.approx(1.99, abs=0.01), "the t quantile of 79 degrees of freedom"


def test_without_a_claim_there_is_only_the_score(clinic):
    report = b3.audit(KNeighborsClassifier(5), clinic.frame, budget=150, **COLUMNS)
    assert report.readings == ()
    assert report.influence.e0.shape == (80, 0)


def test_what_clusters_add_survives_its_table(reports):
    influence = reports["nearest"].influence
    again = Influence.from_csv(influence.to_csv())
    assert again.unit == "clusters"
    assert np.array_equal(again.ids, influence.ids)
    assert np.array_equal(again.loco, influence.loco)
    assert np.array_equal(again.e0, influence.e0)


# --- the interval of a difference -----------------------------------------------------------------


def known(value, reach, influence=None, noise=0.0):
    return Uncertain(
        value=value, low=value - reach, high=value + reach, influence=influence, noise=noise
    )


def test_independent_estimates_add_their_variances():
    low, high = difference_interval(known(0.5, 0.03), known(0.2, 0.04), freedom=50)
    assert (low, high) == pytest.approx((0.3 - 0.05, 0.3 + 0.05))


def test_several_pairs_at_once_have_wider_intervals():
    low, high = difference_interval(known(0.5, 0.03), known(0.2, 0.04), freedom=50, widening=1.4)
    assert high - low == pytest.approx(1.4 * 0.1)


def test_noise_that_is_shared_cancels():
    shared = np.random.default_rng(0).normal(size=60) / 60
    reach = 2.001 * math.sqrt(robust_covariance(shared[:, None])[0, 0])
    same = known(0.4, reach, shared)
    assert difference_interval(same, same, freedom=59) == pytest.approx((0, 0), abs=1e-3)


def test_noise_of_refits_is_not_shared():
    shared = np.random.default_rng(0).normal(size=60) / 60
    variance = robust_covariance(shared[:, None])[0, 0]
    reach = 2.001 * math.sqrt(variance + 0.01**2)
    same = known(0.4, reach, shared, noise=0.01)
    _, high = difference_interval(same, same, freedom=59)
    assert high == pytest.approx(2.001 * 0.01 * math.sqrt(2), rel=1e-3)


def test_what_extrapolation_adds_to_an_interval_is_not_taken_to_be_shared():
    shared = np.random.default_rng(0).normal(size=60) / 60
    reach = 2.001 * math.sqrt(robust_covariance(shared[:, None])[0, 0])
    wide = known(0.4, 2 * reach, shared)
    _, high = difference_interval(wide, wide, freedom=59)
    assert high == pytest.approx(reach * math.sqrt(2 * 4 - 2), rel=1e-3)


def test_a_paired_interval_holds_the_true_difference_in_nineteen_of_twenty_cases():
    """Two means of correlated cluster values, 2000 times; ±1.5 % is three Monte-Carlo errors."""
    rng = np.random.default_rng(1)
    n, held = 40, 0
    for _ in range(2000):
        common = rng.normal(size=n)
        values = [common + 0.5 * rng.normal(size=n), 0.3 + common + 0.5 * rng.normal(size=n)]
        estimates = []
        for x in values:
            psi = (x - x.mean()) / n / math.sqrt(1.4)  # without the factor for cross-validation
            reach = 2.0227 * math.sqrt(robust_covariance(psi[:, None])[0, 0])
            estimates.append(known(x.mean(), reach, psi))
        low, high = difference_interval(estimates[1], estimates[0], freedom=n - 1)
        held += low <= 0.3 <= high
        assert high - low < 0.75
    assert held / 2000 == pytest.approx(0.95, abs=0.015)


# --- comparisons ----------------------------------------------------------------------------------


def test_models_are_ranked_by_their_loss_on_new_clusters(reports):
    comparison = compare_reports(reports)
    losses = [c.e0 for c in comparison.contenders]
    assert losses == sorted(losses)
    assert [c.rank_e0 for c in comparison.contenders[:2]] == [1, 2]
    assert {c.name: c.iid for c in comparison.contenders} == {n: r.iid for n, r in reports.items()}


def test_the_ranking_flips_where_a_learner_lives_on_leakage(reports):
    """Ignoring clusters, nearest neighbours look best; on new patients they are not."""
    comparison = compare_reports(reports)
    naive = min(comparison.contenders, key=lambda c: c.iid)
    assert naive.name in ("nearest", "copy")
    assert naive.rank_iid == 1
    assert naive.rank_e0 > 1
    assert naive.moved
    assert pair(comparison, "nearest", "logistic").flips_iid


def test_a_model_does_not_differ_from_itself(reports):
    same = pair(compare_reports(reports), "nearest", "copy")
    assert same.difference == 0
    assert not same.beyond_noise
    assert same.paired
    assert not same.flips_iid
    assert same.flips_at is None


def test_models_that_share_a_rank_have_the_same_place(reports):
    places = {c.name: c.rank_e0 for c in compare_reports(reports).contenders}
    assert places["nearest"] == places["copy"]


@pytest.mark.parametrize(("one", "other"), [("nearest", "copy"), ("nearest", "logistic")])
def test_pairing_narrows_the_interval(reports, one, other):
    two = {name: reports[name] for name in (one, other)}
    alone = {name: replace(report, influence=None) for name, report in two.items()}
    (paired,) = compare_reports(two).differences
    (unpaired,) = compare_reports(alone).differences
    widths = [d.interval[1] - d.interval[0] for d in (paired, unpaired)]
    assert paired.paired
    assert not unpaired.paired
    assert paired.difference == unpaired.difference
    assert widths[0] < 0.9 * widths[1]


def test_a_clear_difference_is_beyond_the_noise(reports):
    """A model that errs in every third case against one that hardly errs."""
    report = reports["logistic"]
    shift = 0.3
    worse = replace(
        report,
        e0=report.e0 + shift,
        e0_interval=tuple(end + shift for end in report.e0_interval),
        readings=tuple(
            replace(r, e0=r.e0 + shift, low=r.low + shift, high=r.high + shift)
            for r in report.readings
        ),
    )
    (found,) = compare_reports({"logistic": report, "worse": worse}).differences
    assert (found.better, found.worse) == ("logistic", "worse")
    assert found.difference == pytest.approx(shift)
    assert found.beyond_noise


def test_where_sensitivity_curves_cross_two_models_change_places(reports):
    report = reports["logistic"]
    errors = report.sensitivity.error
    flat = replace(report.sensitivity, e0=(0.2,) * len(errors))
    rising = replace(report.sensitivity, e0=tuple(0.15 + e for e in errors))
    crossing = compare_reports(
        {"flat": replace(report, sensitivity=flat), "rising": replace(report, sensitivity=rising)}
    )
    assert crossing.differences[0].flips_at == pytest.approx(0.05)
    assert crossing.axis == "cluster error"


def test_audits_with_different_leakage_are_compared_as_independent_and_say_so(reports, clinic):
    other = b3.audit(
        LogisticRegression(), clinic.frame, cluster_error=0.02, budget=150, repeats=1, **COLUMNS
    )
    comparison = compare_reports({"nearest": reports["nearest"], "other": other})
    assert not comparison.differences[0].paired
    assert any("different leakage" in note for note in comparison.notes)


def test_audits_of_other_rows_are_compared_as_independent_and_say_so(reports):
    settings = replace(reports["logistic"].settings, data_digest="another")
    other = replace(reports["logistic"], settings=settings)
    comparison = compare_reports({"nearest": reports["nearest"], "other": other})
    assert not comparison.differences[0].paired
    assert any("other rows" in note for note in comparison.notes)


def test_other_folds_of_the_same_rows_are_paired_and_named(reports):
    settings = replace(reports["logistic"].settings, folds_digest="another")
    other = replace(reports["logistic"], settings=settings)
    comparison = compare_reports({"nearest": reports["nearest"], "other": other})
    assert comparison.differences[0].paired
    assert any("folds differ" in note for note in comparison.notes)


def test_an_unknown_e0_has_no_place(reports):
    unknown = replace(reports["stump"], e0=None, inflation=None, readings=())
    comparison = compare_reports({**reports, "stump": unknown})
    last = comparison.contenders[-1]
    assert (last.name, last.e0, last.rank_e0) == ("stump", None, None)
    assert not [d for d in comparison.differences if "stump" in (d.better, d.worse)]
    assert any("'stump' is not known" in note for note in comparison.notes)


def test_a_lower_bound_has_no_place(reports):
    """A model of which only a part was refitted would otherwise look better than it is."""
    settings = replace(reports["stump"].settings, refit_strength="lower-bound")
    bound = replace(reports["stump"], settings=settings, e0_interval=(0.1, None))
    comparison = compare_reports({**reports, "stump": bound})
    last = comparison.contenders[-1]
    assert (last.name, last.e0, last.rank_e0) == ("stump", None, None)
    assert any("lower bound only" in note for note in comparison.notes)


def test_without_any_e0_the_scores_by_noisy_ids_are_compared(reports):
    unknown = {name: replace(r, e0=None, readings=()) for name, r in reports.items()}
    comparison = compare_reports(unknown)
    assert comparison.by == "loco"
    best = min(reports, key=lambda name: reports[name].loco)
    assert all(d.better == best for d in comparison.differences if best in (d.better, d.worse))
    assert any("too good" in note for note in comparison.notes)


def test_different_losses_have_no_common_scale(reports):
    settings = replace(reports["stump"].settings, loss="log")
    with pytest.raises(b3.InputError, match=r"different losses .*stump: log"):
        compare_reports({**reports, "stump": replace(reports["stump"], settings=settings)})


def test_one_model_is_no_comparison(reports):
    with pytest.raises(b3.InputError, match="needs two or more"):
        compare_reports({"nearest": reports["nearest"]})


def test_a_comparison_survives_json(reports):
    comparison = compare_reports(reports)
    assert Comparison.from_json(comparison.to_json()) == comparison


# --- as text and page -----------------------------------------------------------------------------


def test_the_text_says_who_is_best_and_what_of_it_is_noise(reports):
    text = comparison_text(compare_reports(reports))
    assert "has the lowest error rate on new clusters" in text
    assert "within the noise" in text
    assert "Ignoring clusters, nearest looks best" in text
    assert "pairs the other way round than e0" in " ".join(text.split())


def test_every_form_names_every_model(reports):
    files = comparison_files(compare_reports(reports))
    assert set(files) == {f"comparison.{ending}" for ending in ("csv", "html", "json", "md", "svg")}
    for text in files.values():
        assert all(name in text for name in LEARNERS)


def test_hostile_names_inject_nothing(reports):
    hostile = '"><script>alert(1)</script>'
    files = comparison_files(
        compare_reports({hostile: reports["nearest"], "b\u202eb": reports["stump"]})
    )
    for ending in ("html", "svg", "md"):
        assert not re.search(r"(?<!\\)<script", files[f"comparison.{ending}"])
        assert "\u202e" not in files[f"comparison.{ending}"]
