"""Which of several audited models is best on new clusters, and what of that is noise."""

import csv
import io
import math
import re
from dataclasses import replace

import numpy as np
import pytest
from example_reports import changed
from scipy import stats
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier
from sklearn.tree import DecisionTreeClassifier

import mlflow_b3 as b3
from mlflow_b3.auditing.comparison import Comparison, compare_reports
from mlflow_b3.estimation.estimate import as_method
from mlflow_b3.estimation.influence import (
    Influence,
    Uncertain,
    corrected_influence,
    curve_gradient,
    difference_interval,
    effective_freedom,
)
from mlflow_b3.estimation.problem import LeakShares, unmix
from mlflow_b3.measurement.collecting import robust_covariance
from mlflow_b3.reporting.comparison import (
    comparison_csv,
    comparison_files,
    comparison_tables,
    comparison_text,
    explain_comparison,
    readable_names,
)

pytestmark = pytest.mark.newest

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
    assert report.influence.share.sum() == pytest.approx(1)


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
    options = {**COLUMNS, "split_rate": 0.2, "budget": 150, "method": "power"}
    report = b3.audit(KNeighborsClassifier(5), clinic.frame, **options)
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
    assert np.array_equal(again.share, influence.share)
    assert np.array_equal(again.ids, influence.ids)
    assert np.array_equal(again.loco, influence.loco)
    assert np.array_equal(again.e0, influence.e0)


# --- the interval of a difference -----------------------------------------------------------------


def known(value, reach, influence=None, noise=0.0, freedom=59.0):
    return Uncertain(
        value=value,
        low=value - reach,
        high=value + reach,
        influence=influence,
        noise=noise,
        freedom=freedom,
    )


def cluster_noise(seed=0, clusters=60):
    """Return what each cluster adds, and half the width of the interval that follows from it."""
    psi = np.random.default_rng(seed).normal(size=clusters) / clusters
    return psi, 2.001 * math.sqrt(1.4 * psi @ psi)


def test_independent_estimates_add_their_variances():
    low, high = difference_interval(known(0.5, 0.03), known(0.2, 0.04), paired=False)
    assert (low, high) == pytest.approx((0.3 - 0.05, 0.3 + 0.05))


def test_several_pairs_at_once_have_wider_intervals():
    low, high = difference_interval(known(0.5, 0.03), known(0.2, 0.04), paired=False, pairs=10)
    wider = stats.t.ppf(1 - 0.025 / 10, 59) / stats.t.ppf(1 - 0.025, 59)
    assert high - low == pytest.approx(wider * 0.1)


def test_noise_that_is_shared_cancels():
    psi, reach = cluster_noise()
    same = known(0.4, reach, psi)
    assert difference_interval(same, same, paired=True) == pytest.approx((0, 0), abs=1e-3)


def test_noise_of_different_clusters_does_not_cancel():
    psi, reach = cluster_noise()
    same = known(0.4, reach, psi)
    _, high = difference_interval(same, same, paired=False)
    assert high == pytest.approx(math.sqrt(2) * reach, rel=1e-3)


def test_noise_of_refits_is_not_shared():
    psi, reach = cluster_noise()
    same = known(0.4, math.hypot(reach, 2.001 * 0.01), psi, noise=0.01)
    _, high = difference_interval(same, same, paired=True)
    assert high == pytest.approx(2.001 * 0.01 * math.sqrt(2), rel=1e-3)


def test_what_extrapolation_adds_to_an_interval_is_not_taken_to_be_shared():
    psi, reach = cluster_noise()
    wide = known(0.4, 2 * reach, psi)
    _, high = difference_interval(wide, wide, paired=True)
    assert high == pytest.approx(reach * math.sqrt(2 * 4 - 2), rel=1e-3)


def test_equal_clusters_have_as_many_degrees_of_freedom_as_clusters_less_one():
    assert effective_freedom(np.full(40, 1 / 40)) == pytest.approx(39)


def test_a_cluster_with_half_of_the_rows_leaves_few_degrees_of_freedom():
    """As the definition has it: (tr B)²/tr(B²) of the quadratic form that the variance is."""
    share = np.r_[0.5, np.full(11, 0.5 / 11)]
    deviation = (np.eye(12) - share) * (share / np.sqrt(1 - share))[:, None]
    form = deviation @ np.diag(1 / share) @ deviation.T
    freedom = effective_freedom(share)
    assert freedom == pytest.approx(np.trace(form) ** 2 / np.trace(form @ form))
    assert 3 < freedom < 4


def false_rate(share, times=2000):
    """Return how often two models that are equally good differ beyond the noise."""
    rng = np.random.default_rng(1)
    freedom = effective_freedom(share)
    usual = stats.t.ppf(0.975, len(share) - 1) * math.sqrt(len(share) / (len(share) - 1))
    false = 0
    for _ in range(times):
        common, estimates = rng.normal(size=len(share)), []
        for _ in range(2):
            losses = common + rng.normal(size=len(share))
            psi = share * (losses - share @ losses)
            reach = usual * math.sqrt(1.4 * psi @ psi)
            psi = corrected_influence(psi, share)
            estimates.append(known(share @ losses, reach, psi, freedom=freedom))
        low, high = difference_interval(*estimates, paired=True)
        false += low > 0 or high < 0
    return false / times


@pytest.mark.parametrize(
    "share",
    [
        np.full(12, 1 / 12),
        np.full(40, 1 / 40),
        np.r_[0.5, np.full(11, 0.5 / 11)],
        np.r_[0.5, np.full(29, 0.5 / 29)],
    ],
    ids=["12 equal", "40 equal", "half of the rows in 1 of 12", "half of the rows in 1 of 30"],
)
def test_at_most_one_in_twenty_equal_pairs_differs_beyond_the_noise(share):
    assert false_rate(share) < 0.05


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
    (found,) = compare_reports({"logistic": report, "worse": shifted(report)}).differences
    assert (found.better, found.worse) == ("logistic", "worse")
    assert found.difference == pytest.approx(0.3)
    assert found.beyond_noise


def test_where_sensitivity_curves_cross_two_models_change_places(reports):
    report = reports["logistic"]
    errors = report.sensitivity.error
    flat = replace(report.sensitivity, e0=(0.2,) * len(errors))
    rising = replace(report.sensitivity, e0=tuple(0.15 + e for e in errors))
    crossing = compare_reports(
        {"flat": changed(report, sensitivity=flat), "rising": changed(report, sensitivity=rising)}
    )
    assert crossing.differences[0].flips_at == pytest.approx(0.05)
    assert crossing.axis == "cluster error"


def test_where_curves_do_not_cross_it_is_said_how_far_they_were_looked_at(reports):
    report = reports["logistic"]
    above = replace(report.sensitivity, e0=tuple(e0 + 0.1 for e0 in report.sensitivity.e0))
    two = {"a": report, "b": changed(report, sensitivity=above)}
    comparison = compare_reports(two)
    (found,) = comparison.differences
    assert (found.flips_at, found.flips_searched_to) == (None, report.sensitivity.error[-1])
    assert "none up to 50%" in comparison_text(comparison)
    assert "change places is not known" not in comparison_text(comparison)


@pytest.mark.parametrize(
    ("settings", "curve", "why"),
    [
        ({"method": "basis"}, {}, "their sensitivity curves were made in different ways"),
        ({}, {"error": None}, "at least one of the audits has no curve over the cluster error"),
        (
            {},
            {"error": tuple(-e - 1 for e in range(60))},
            "their sensitivity curves have no points in common",
        ),
    ],
)
def test_where_models_change_places_may_not_be_known(reports, settings, curve, why):
    """Without a claim, audits by different methods have comparable scores, but no common curves."""
    report = changed(reports["logistic"], e0=None)
    if curve.get("error"):
        curve = {"error": curve["error"][: len(report.sensitivity.error)]}
    other = changed(
        report,
        settings=settings,
        sensitivity=replace(report.sensitivity, **curve),
    )
    comparison = compare_reports({"a": report, "b": other})
    (found,) = comparison.differences
    assert found.comparable
    assert (found.flips_at, found.flips_searched_to) == (None, None)
    text = " ".join(comparison_text(comparison).split())
    assert "none up to" not in text
    assert f"change places is not known: {why}." in text


def test_without_a_rate_of_wrong_ids_places_change_over_the_leaked_share(reports):
    report = reports["logistic"]
    shares = report.sensitivity.p0
    flat = replace(report.sensitivity, error=None, e0=(0.2,) * len(shares))
    rising = replace(flat, e0=tuple(0.15 + share for share in shares))
    comparison = compare_reports(
        {"flat": changed(report, sensitivity=flat), "rising": changed(report, sensitivity=rising)}
    )
    assert comparison.differences[0].flips_at == pytest.approx(0.05)
    assert "change places at a leaked share p0 of" in comparison_text(comparison)


def test_audits_with_different_leakage_are_compared_as_independent_and_say_so(reports, clinic):
    other = b3.audit(
        LogisticRegression(), clinic.frame, cluster_error=0.02, budget=150, repeats=1, **COLUMNS
    )
    comparison = compare_reports({"nearest": reports["nearest"], "other": other})
    assert not comparison.differences[0].paired
    assert any("different leakage" in note for note in comparison.notes)


def test_audits_of_other_rows_are_compared_as_independent_and_say_so(reports):
    settings = {"rows_digest": "another"}
    other = changed(reports["logistic"], settings=settings)
    comparison = compare_reports({"nearest": reports["nearest"], "other": other})
    assert not comparison.differences[0].paired
    assert any("different rows" in note for note in comparison.notes)


def test_other_folds_of_the_same_rows_are_paired_and_named(reports):
    settings = {"folds_digest": "another"}
    other = changed(reports["logistic"], settings=settings)
    fewer = replace(other, splits=other.splits[:5])  # of the same folds
    assert compare_reports({"nearest": reports["nearest"], "fewer": fewer}).notes == ()
    other = replace(other, splits=other.splits[::-1])
    comparison = compare_reports({"nearest": reports["nearest"], "other": other})
    assert comparison.differences[0].paired
    assert any("folds differ" in note for note in comparison.notes)


def test_an_unknown_e0_has_no_place(reports):
    unknown = changed(reports["stump"], e0=None, inflation=None, readings=())
    comparison = compare_reports({**reports, "stump": unknown})
    last = comparison.contenders[-1]
    assert (last.name, last.e0, last.rank_e0) == ("stump", None, None)
    assert not [d for d in comparison.differences if "stump" in (d.better, d.worse)]
    assert any("'stump' is not known" in note for note in comparison.notes)


def test_a_lower_bound_has_no_place(reports):
    """A model of which only a part was refitted would otherwise look better than it is."""
    settings = {"refit_strength": "lower-bound"}
    bound = changed(reports["stump"], settings=settings, e0_interval=(0.1, None))
    comparison = compare_reports({**reports, "stump": bound})
    last = comparison.contenders[-1]
    assert (last.name, last.e0, last.rank_e0) == ("stump", None, None)
    assert (last.rank_iid, last.rank_loco) == (None, None)
    assert not [d for d in comparison.differences if "stump" in (d.better, d.worse)]
    assert any("only lower bounds" in note for note in comparison.notes)


def test_without_any_e0_the_scores_by_noisy_ids_are_compared(reports):
    unknown = {name: changed(r, e0=None, readings=()) for name, r in reports.items()}
    comparison = compare_reports(unknown)
    assert comparison.by == "loco"
    best = min(reports, key=lambda name: reports[name].loco)
    assert all(d.better == best for d in comparison.differences if best in (d.better, d.worse))
    assert any("makes optimistic" in note for note in comparison.notes)


def test_different_losses_have_no_common_scale(reports):
    settings = {"loss": "log"}
    with pytest.raises(b3.InputError, match=r"different losses .*stump: log"):
        compare_reports({**reports, "stump": changed(reports["stump"], settings=settings)})


def test_one_model_is_no_comparison(reports):
    with pytest.raises(b3.InputError, match="needs two or more"):
        compare_reports({"nearest": reports["nearest"]})


def test_a_comparison_survives_json(reports):
    comparison = compare_reports(reports)
    assert Comparison.from_json(comparison.to_json()) == comparison


def shifted(report, shift=0.3):
    """Return a report of a model that is worse by far."""
    return changed(
        report,
        loco=report.loco + shift,
        loco_interval=tuple(end + shift for end in report.loco_interval),
        e0=report.e0 + shift,
        e0_interval=tuple(end + shift for end in report.e0_interval),
        readings=tuple(
            replace(r, e0=r.e0 + shift, low=r.low + shift, high=r.high + shift)
            for r in report.readings
        ),
    )


def told(comparison):
    return " ".join(comparison_text(comparison).split())


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"claim": (0.0, 0.15)}, "different leakage"),
        ({"claim_centre": 0.07}, "around 0.07"),
        ({"method": "mono"}, "different methods"),
        ({"method_options": {"order": 3}}, "order=3"),
        ({"scheme": "replace"}, "scheme replace"),
        ({"cluster": "hospital"}, "different clusters"),
        ({"purge_threshold": 0.5}, "0.5 in purging"),
    ],
)
def test_audits_of_different_questions_are_never_beyond_the_noise(reports, settings, named):
    one, other = reports["logistic"], changed(shifted(reports["logistic"]), settings=settings)
    comparison = compare_reports({"one": one, "other": other})
    (found,) = comparison.differences
    assert found.interval[0] > 0
    flags = found.comparable, found.beyond_noise, found.paired, found.flips_iid
    assert not any(flags)
    assert found.flips_at is None
    assert any(named in note for note in comparison.notes)
    assert "says nothing: these audits are not comparable" in told(comparison)
    assert "beyond the noise" not in told(comparison)


def test_another_law_of_fragments_is_another_question_where_clusters_are_split(reports):
    one = changed(reports["logistic"], settings={"pattern": "fragments"})
    halves = {"one": one, "other": changed(shifted(one), settings={"fragments": "halves"})}
    assert not compare_reports(halves).differences[0].comparable
    rows = {name: changed(report, settings={"pattern": "rows"}) for name, report in halves.items()}
    assert compare_reports(rows).differences[0].comparable


def test_losses_without_a_name_may_be_different_ones(reports):
    one = changed(reports["logistic"], settings={"loss": "<lambda>"})
    comparison = compare_reports({"one": one, "other": shifted(one)})
    assert not comparison.differences[0].beyond_noise
    assert any("Define it with def" in note for note in comparison.notes)


@pytest.mark.parametrize(("what", "value"), [("target", "weight"), ("task", "regression")])
def test_different_targets_and_tasks_are_refused(reports, what, value):
    other = changed(reports["stump"], settings={what: value})
    with pytest.raises(b3.InputError, match=f"different {what}s .*stump: {value}"):
        compare_reports({"nearest": reports["nearest"], "stump": other})


def test_with_few_clusters_noise_between_them_cannot_be_told():
    """Six hospitals say little about a seventh."""
    clinic = b3.make_clinic(patients=6, records=40, cluster_error=0.1, seed=1)
    report = b3.audit(
        LogisticRegression(), clinic.frame, cluster_error=0.1, budget=140, repeats=1, **COLUMNS
    )
    comparison = compare_reports({"logistic": report, "worse": shifted(report, 2.0)})
    (found,) = comparison.differences
    assert found.interval[0] > 0
    assert not found.noise_known
    assert not found.beyond_noise
    assert any("fewer than 10 clusters" in note for note in comparison.notes)
    assert "cannot be determined from so few clusters" in told(comparison)
    assert "beyond the noise" not in told(comparison)


def test_a_single_known_e0_is_no_reason_to_call_its_model_the_best(reports):
    unknown = changed(reports["logistic"], e0=None, readings=(), p0_source="none")
    comparison = compare_reports({"stump": reports["stump"], "logistic": unknown})
    assert comparison.by == "loco"
    assert {c.rank_e0 for c in comparison.contenders} == {None}
    assert "Which model is best on new clusters is not known." in told(comparison)


def test_the_best_is_named_among_those_whose_e0_is_known(reports):
    unknown = changed(reports["stump"], e0=None, readings=())
    comparison = compare_reports({**reports, "stump": unknown})
    assert "Of those whose e0 is known, " in told(comparison)
    assert {c.rank_iid for c in comparison.contenders if c.rank_e0 is None} == {None}


def test_lower_bounds_take_part_in_no_difference_of_scores_by_ids(reports):
    one = changed(reports["nearest"], e0=None, readings=())
    bound = changed(
        reports["stump"], settings={"refit_strength": "lower-bound"}, e0=None, readings=()
    )
    comparison = compare_reports({"one": one, "two": one, "bound": bound})
    assert [(d.better, d.worse) for d in comparison.differences] == [("one", "two")]
    assert any("'bound' there are only lower bounds" in note for note in comparison.notes)
    alone = compare_reports({"one": one, "bound": bound})
    assert alone.differences == ()
    assert "Fewer than two models can be compared" in told(alone)
    assert "pair" not in told(alone)
    assert "Differences" not in told(alone)


def test_a_note_on_an_unknown_e0_says_why_it_is_not_known(reports):
    vacuous = changed(reports["stump"], e0=None, readings=())
    silent = changed(vacuous, p0_source="none", settings={"claim": None})
    notes = compare_reports({**reports, "vacuous": vacuous, "silent": silent}).notes
    assert any("'vacuous' is not known: what was given" in note for note in notes)
    assert any("'silent' is not known: nothing says" in note for note in notes)


def test_an_audit_that_does_not_say_what_clusters_add_is_named(reports):
    first = replace(reports["nearest"], influence=None)
    comparison = compare_reports({"first": first, "b": reports["stump"], "c": reports["logistic"]})
    assert any("audits of 'first' do not say" in note for note in comparison.notes)
    assert not any("same rows" in note for note in comparison.notes)
    assert pair(comparison, "b", "c").paired
    assert not pair(comparison, "first", "c").paired


def test_a_damaged_table_of_what_clusters_add_is_refused(reports):
    influence = reports["nearest"].influence
    with pytest.raises(b3.InputError, match="cells without a number"):
        Influence.from_csv(replace(influence, loco=influence.loco * np.nan).to_csv())
    with pytest.raises(b3.InputError, match="must begin with clusters or rows, share and loco"):
        Influence.from_csv("clusters,loco\n0,0.1\n")


# --- as text and page -----------------------------------------------------------------------------


def test_the_text_says_who_is_best_and_what_of_it_is_noise(reports):
    text = comparison_text(compare_reports(reports))
    assert "has the lowest error rate on new clusters" in text
    assert "within the noise" in text
    assert "Ignoring clusters, nearest looks best" in text
    assert "pairs in the opposite order to e0" in " ".join(text.split())


def test_a_tie_is_not_called_a_lead(reports):
    report = reports["logistic"]
    tied = compare_reports({"one": report, "two": report, "three": report, "bad": shifted(report)})
    sentences = explain_comparison(tied)
    assert sentences[0].startswith("one, two and three have the same lowest error rate")
    assert sentences[1] == "one is better than bad beyond the noise."
    assert "lead" not in " ".join(sentences)
    assert [row[4] for row in comparison_tables(tied)[1].rows].count("equal") == 3
    alone = explain_comparison(compare_reports({"one": report, "two": report}))
    assert alone[0].startswith("one and two have the same lowest error rate on new clusters")
    assert "lead" not in " ".join(alone)


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


def test_long_names_stay_different(reports):
    name = "models:/" + "x" * 90
    names = [f"{name}/1", f"{name}/2", f"{name}{'y' * 20}", f"{name}z{'y' * 20}"]
    comparison = compare_reports(dict(zip(names, reports.values(), strict=True)))
    shown = readable_names(comparison)
    assert len({c.name for c in shown.contenders}) == 4
    assert all(len(c.name) < 70 for c in shown.contenders)
    assert [c.e0 for c in shown.contenders] == [c.e0 for c in comparison.contenders]
    assert "Ignoring clusters, " in told(comparison)
    assert all(c.name in comparison_files(comparison)["comparison.svg"] for c in shown.contenders)


def test_a_spreadsheet_finds_no_formulas_in_names(reports):
    names = ("=1+1", "+1", "-1", "@SUM(1)", "\tx", "plain")
    comparison = compare_reports(dict.fromkeys(names, reports["nearest"]))
    rows = list(csv.DictReader(io.StringIO(comparison_csv(comparison))))
    assert {row["name"] for row in rows} == {"'=1+1", "'+1", "'-1", "'@SUM(1)", "'\tx", "plain"}
    assert all(float(row["e0"]) == reports["nearest"].e0 for row in rows)
