"""Models ranked by corrected cross-validation: who is best, what is noise, and what CV had said."""

import csv
import io
import math
from dataclasses import replace

import example_reports
import numpy as np
import pytest
from click.testing import CliRunner
from example_reports import COMPARED_CVC, changed, influence, with_cvc
from scipy import stats

import mlflow_b3 as b3
from mlflow_b3.auditing.comparison import compare_reports
from mlflow_b3.cli import main
from mlflow_b3.correlated.report import SpatialField
from mlflow_b3.estimation.influence import Reading
from mlflow_b3.measurement.collecting import CORRELATED_ERRORS
from mlflow_b3.options import NAMED_VALUES
from mlflow_b3.reporting.comparison import (
    comparison_csv,
    comparison_files,
    comparison_tables,
    explain_comparison,
)

pytestmark = pytest.mark.newest

CLUSTERS = 200
DIGESTS = {"rows_digest": "r1", "folds_digest": "f1", "loss": "log"}
SLOPES = np.array([-1.0, -0.5, 0.0, 0.5, 1.0])


def audit(*, cv, bias, psi=None, settings=None, digest="a1b2c3d4e5", reach=0.02, **changes):
    """Return an audit with some CV and CV_c, whose curve rises by the bias from multiple 0 to 1."""
    plain = example_reports.report(settings={**DIGESTS, **(settings or {})}, iid=cv, loco=cv + bias)
    cvc = cv + bias
    numbers = {
        "loss": "log",
        "cvc": cvc,
        "bias": bias,
        "interval": (cvc - reach, cvc + reach),
        "sensitivity": tuple(cvc + bias * SLOPES),
        "bias_error": 0.0,
        "settings": {**COMPARED_CVC.settings, "working_digest": digest},
        **changes,
    }
    report = with_cvc(plain, **numbers)
    own = psi_of(1) if psi is None else psi
    reading = Reading(leakage=0.0, e0=0.3, low=0.26, high=0.34, noise=0.0)
    return changed(report, readings=(reading,), influence=influence(own, readings=1))


def psi_of(seed, size=0.1):
    """Return what each cluster adds to the mean: deviations from it, over the number of clusters."""
    deviations = np.random.default_rng(seed).normal(size=CLUSTERS) * size
    return (deviations - deviations.mean()) / CLUSTERS


#: CV prefers the model that knows more of its groups; CV_c the other one.
FLIPPED = {
    "A": audit(cv=0.657, bias=0.063),
    "B": audit(cv=0.675, bias=0.021),
}


def compared(reports, by="cvc"):
    return compare_reports(reports, by=by)


def only(comparison):
    (difference,) = comparison.differences
    return difference


# --- the ranking ----------------------------------------------------------------------------------


def test_models_are_ranked_by_cvc_next_to_cv():
    comparison = compared(FLIPPED)
    assert comparison.by == "cvc"
    best, other = comparison.contenders
    assert (best.name, best.rank_cvc, best.rank_iid) == ("B", 1, 2)
    assert (other.name, other.rank_cvc, other.rank_iid) == ("A", 2, 1)
    assert (best.cvc, best.cvc_interval) == (pytest.approx(0.696), FLIPPED["B"].cvc.interval)
    assert best.grouped == COMPARED_CVC.grouped
    assert best.moved
    assert only(comparison).flips_iid
    assert best.rank_e0 is None


def test_it_is_said_where_plain_cv_prefers_another_model():
    sentences = explain_comparison(compared(FLIPPED))
    assert sentences[0] == "B has the lowest log loss for new groups of patient_id: CV_c is 0.696."
    assert (
        "Plain CV prefers A (0.657 vs 0.675); for new groups of patient_id B is better "
        "(0.696 vs 0.720)."
    ) in sentences
    assert sentences[-1].startswith(
        "Scores that ignore clusters put 1 of 1 pairs in the opposite order to CV_c"
    )


def test_where_cv_and_cvc_agree_nothing_is_turned_round():
    text = " ".join(explain_comparison(compared({**FLIPPED, "A": audit(cv=0.7, bias=0.1)})))
    assert "Plain CV prefers" not in text
    assert "in the same order as CV_c" in text


def test_the_best_by_cv_may_be_neither_first_nor_second():
    reports = {**FLIPPED, "C": audit(cv=0.67, bias=0.02), "D": audit(cv=0.65, bias=0.2)}
    text = " ".join(explain_comparison(compared(reports)))
    assert "Plain CV prefers D (0.650 vs 0.670); for new groups of patient_id C is better" in text


def test_without_new_groups_the_words_name_none():
    groups = tuple(replace(group, new=False) for group in COMPARED_CVC.groups)
    reports = {name: audit(cv=0.6, bias=0.1, groups=groups) for name in "AB"}
    assert (
        "with the bias of cross-validation added back" in explain_comparison(compared(reports))[0]
    )


@pytest.mark.parametrize(
    ("claim", "chosen"), [((0.0, 0.0), "cvc"), ((0.05, 0.15), "e0"), (None, "e0")], ids=str
)
def test_auto_takes_cvc_where_ids_are_taken_as_right(claim, chosen):
    reports = {name: changed(report, settings={"claim": claim}) for name, report in FLIPPED.items()}
    assert compared(reports, "auto").by == chosen
    assert compared(reports, "e0").by == "e0"


def test_auto_takes_e0_where_not_all_have_cvc():
    reports = {**FLIPPED, "C": replace(FLIPPED["A"], cvc=None)}
    comparison = compared(reports, "auto")
    assert comparison.by == "e0"
    assert {c.name: c.cvc for c in comparison.contenders} == {
        "A": pytest.approx(0.72),
        "B": pytest.approx(0.696),
        "C": None,
    }


def test_audits_without_cvc_are_refused():
    reports = {**FLIPPED, "C": replace(FLIPPED["A"], cvc=None)}
    with pytest.raises(b3.InputError, match=r"by='cvc': the audits of 'C' have no CV_c\. Audit"):
        compared(reports)


def test_an_unknown_score_is_refused_before_anything_is_read(mlflow_store):
    assert mlflow_store
    with pytest.raises(b3.InputError, match=r"by='cv' is not known; use one of 'auto'"):
        b3.compare(["models:/x/1", "models:/x/2"], by="cv")


def test_models_are_not_audited_for_a_score_that_they_will_not_have():
    with pytest.raises(b3.InputError, match="by='cvc' needs audits with CV_c; add method='cvc'"):
        b3.compare(["a", "b"], "visits.csv", target="y", cluster="g", by="cvc")


# --- who takes part -------------------------------------------------------------------------------


def test_a_withheld_correction_has_no_place():
    finding = b3.Finding(code="B331", message="there are 3 groups.")
    withheld = audit(cv=0.5, bias=0.1, cvc=None, interval=None, findings=(finding,))
    comparison = compared({**FLIPPED, "C": withheld})
    last = comparison.contenders[-1]
    assert (last.name, last.cvc, last.rank_cvc, last.rank_iid) == ("C", None, None, None)
    assert len(comparison.differences) == 1
    assert "CV_c of 'C' is withheld" in comparison.notes[0]
    assert "(B331)" in comparison.notes[0]
    assert explain_comparison(comparison)[0].startswith("Of those whose CV_c is known, B has")


@pytest.mark.parametrize(
    "approximate",
    [
        audit(cv=0.5, bias=0.1, engine="hot", lower_quality=True),
        audit(cv=0.5, bias=0.1, settings={"refit_strength": "lower-bound"}),
    ],
    ids=["engine", "refits"],
)
def test_what_may_miss_a_part_of_the_bias_has_no_place(approximate):
    comparison = compared({**FLIPPED, "C": approximate})
    assert (comparison.contenders[-1].cvc, comparison.contenders[-1].rank_cvc) == (None, None)
    assert {d.worse for d in comparison.differences} == {"A"}
    assert "Models whose corrections may miss part of the bias" in comparison.notes[0]


def test_with_fewer_than_two_corrections_nothing_is_compared():
    reports = {**FLIPPED, "B": audit(cv=0.6, bias=0.1, cvc=None, interval=None)}
    comparison = compared(reports)
    assert comparison.differences == ()
    assert "Fewer than two models can be compared" in explain_comparison(comparison)[0]


FIELD = SpatialField(coordinates=("x", "y"), sd=1.0, reach=3.0, interval=(0.5, 2.0), across=0.1)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        (
            {"groups": COMPARED_CVC.groups[:1]},
            "different groups ('A': day, patient_id; 'B': patient_id)",
        ),
        (
            {"groups": (COMPARED_CVC.groups[0], replace(COMPARED_CVC.groups[1], new=True))},
            "different new groups ('A': patient_id; 'B': day, patient_id)",
        ),
        ({"field": FIELD}, "different coordinates ('A': none; 'B': x, y)"),
        ({"settings": {"rows_digest": "r2"}}, "different rows"),
    ],
    ids=["groups", "new", "coordinates", "rows"],
)
def test_audits_of_other_questions_are_never_beyond_the_noise(changes, named):
    comparison = compared({**FLIPPED, "B": audit(cv=0.2, bias=0.01, **changes)})
    found = only(comparison)
    assert (found.comparable, found.beyond_noise, found.paired) == (False, False, False)
    assert any(named in note for note in comparison.notes), comparison.notes


def test_the_order_of_levels_is_no_other_question():
    reports = {**FLIPPED, "B": audit(cv=0.675, bias=0.021, groups=COMPARED_CVC.groups[::-1])}
    assert only(compared(reports)).comparable


# --- pairs ----------------------------------------------------------------------------------------


def test_audits_of_the_same_rows_folds_and_seed_are_paired():
    assert only(compared(FLIPPED)).paired
    assert compared(FLIPPED).notes == ()


@pytest.mark.parametrize(
    "changes",
    [
        {"settings": {"folds_digest": "f2"}},
        {"settings": {"seed": 8}},
        {"seed": 8},
        {"folds": 10},
    ],
    ids=str,
)
def test_other_folds_or_seeds_are_compared_as_independent_and_say_so(changes):
    comparison = compared({**FLIPPED, "B": audit(cv=0.675, bias=0.021, **changes)})
    assert only(comparison).comparable
    assert not only(comparison).paired
    assert any("the same folds and the same seed" in note for note in comparison.notes)


@pytest.mark.parametrize("broken", ["influence", "column"])
def test_an_audit_that_does_not_say_what_clusters_add_to_cv_is_named(broken):
    silent = replace(FLIPPED["B"].influence, cv=None) if broken == "column" else None
    comparison = compared({**FLIPPED, "B": replace(FLIPPED["B"], influence=silent)})
    assert not only(comparison).paired
    assert any("'B' do not say what each cluster adds" in note for note in comparison.notes)


def test_in_one_world_the_interval_is_that_of_the_difference_of_clusters():
    """Where both curves rise alike, the standard deviations cancel: t·√(1.4·Σ(ψ_b - ψ_a)²/(1 - w))."""
    ours, theirs = psi_of(1), 0.9 * psi_of(1) + psi_of(2, size=0.02)
    reports = {"A": audit(cv=0.6, bias=0.1, psi=ours), "B": audit(cv=0.61, bias=0.1, psi=theirs)}
    found = only(compared(reports))
    apart = CORRELATED_ERRORS * ((theirs - ours) ** 2).sum() / (1 - 1 / CLUSTERS)
    reach = stats.t.ppf(0.975, CLUSTERS - 1) * math.sqrt(apart)
    assert found.difference == pytest.approx(0.01)
    assert found.interval == pytest.approx((0.01 - reach, 0.01 + reach))
    assert found.beyond_noise


def test_in_one_world_the_interval_covers_what_the_standard_deviations_may_be():
    """At 0.6 and 1.5 times the estimates the corrections differ by other amounts."""
    found = only(compared(FLIPPED))
    # multiples of 'day', whose interval is the wider one; the biases differ by 0.042
    low, high = 0.3 / 0.5, 0.75 / 0.5
    at = [0.024 + 0.042 * (times - 1) for times in (low, high)]
    assert found.difference == pytest.approx(0.024)
    # the same clusters cancel, but for the root of what rounding leaves
    assert found.interval == pytest.approx(tuple(at), abs=1e-7)


def test_one_world_narrows_the_interval_of_a_difference():
    ours = audit(cv=0.6, bias=0.1, reach=0.08)
    together = compared({"A": ours, "B": audit(cv=0.62, bias=0.1, reach=0.08)})
    alone = compared({"A": ours, "B": audit(cv=0.62, bias=0.1, reach=0.08, digest="another")})
    assert only(together).beyond_noise
    assert not only(alone).beyond_noise
    assert only(alone).paired, "what clusters add still cancels"


@pytest.mark.parametrize(
    ("working", "digest"),
    [("score", "another"), ("score", None), ("glmm", "b5")],
    ids=str,
)
def test_corrections_by_different_working_models_are_named(working, digest):
    other = audit(cv=0.675, bias=0.021, working=working, digest=digest)
    comparison = compared({**FLIPPED, "B": other})
    (note,) = [note for note in comparison.notes if "one simulated world" in note]
    assert f"'B': working model {working}" in note
    assert only(comparison).comparable
    assert only(comparison).flips_at is None


@pytest.mark.parametrize(
    "changes",
    [
        {"multipliers": (0.0, 1.0), "sensitivity": (0.6, 0.7)},
        {
            "groups": (
                COMPARED_CVC.groups[0],
                replace(COMPARED_CVC.groups[1], sd=0.0, interval=(0.0, 0.3)),
            )
        },
    ],
    ids=["beyond what was simulated", "a standard deviation of 0"],
)
def test_where_the_curve_does_not_reach_each_correction_counts_in_full(changes):
    reports = {
        "A": audit(cv=0.6, bias=0.1, reach=0.05, **changes),
        "B": audit(cv=0.61, bias=0.1, reach=0.05, **changes),
    }
    low, high = only(compared(reports)).interval
    assert high - low > 0.1


def test_the_noise_of_draws_widens_the_interval():
    def width(error):
        reports = {
            "A": audit(cv=0.6, bias=0.1, bias_error=error),
            "B": audit(cv=0.61, bias=0.1, bias_error=error),
        }
        low, high = only(compared(reports)).interval
        return high - low

    assert width(0.01) > width(0.0)
    assert width(0.01) / 2 == pytest.approx(stats.t.ppf(0.975, 199) * 0.01 * math.sqrt(2), rel=0.01)


def test_a_model_does_not_differ_from_itself():
    found = only(compared({"A": FLIPPED["A"], "copy": FLIPPED["A"]}))
    assert found.difference == 0
    assert not found.beyond_noise


def test_models_change_places_at_a_multiple_of_the_standard_deviations():
    """A has the smaller CV and the larger bias: the curves 0.657 + 0.063 m and 0.675 + 0.021 m."""
    comparison = compared(FLIPPED)
    assert comparison.axis == "multiplier of the SDs"
    assert only(comparison).flips_at == pytest.approx(0.018 / 0.042)
    assert only(comparison).flips_searched_to == 2.0
    assert comparison_tables(comparison)[1].rows[0][-1] == "0.429"


# --- how it is shown ------------------------------------------------------------------------------


def test_a_comparison_by_cvc_survives_json():
    comparison = compared(FLIPPED)
    assert b3.Comparison.from_json(comparison.to_json()) == comparison


def test_a_comparison_of_an_earlier_version_still_reads():
    values = compared({n: replace(r, cvc=None) for n, r in FLIPPED.items()}, "e0").to_dict()
    del values["new"]
    for contender in values["contenders"]:
        for name in ("cvc", "cvc_interval", "grouped", "rank_cvc"):
            del contender[name]
    assert b3.Comparison.from_dict(values).contenders[0].cvc is None


def test_the_table_has_cvc_grouped_cv_and_cv():
    ranking, differences = comparison_tables(compared(FLIPPED))
    assert ranking.header[2:] == ("CV_c", "95% interval", "grouped CV", "CV (place)", "e0")
    assert ranking.rows[0][:6] == ("1", "B", "0.696", "0.676 – 0.716", "0.260", "0.675 (2)")
    assert differences.caption.startswith("Differences of CV_c")


def test_every_form_shows_cvc():
    files = comparison_files(compared(FLIPPED))
    for name in ("comparison.html", "comparison.md", "comparison.svg"):
        assert "0.696" in files[name], name
    assert "by folds of whole groups" in files["comparison.html"]


def test_the_csv_file_has_columns_for_cvc_that_are_empty_without_it():
    def rows(by, **changes):
        reports = {name: changed(report, **changes) for name, report in FLIPPED.items()}
        return list(csv.DictReader(io.StringIO(comparison_csv(compared(reports, by)))))

    best = rows("cvc")[0]
    assert float(best["cvc"]) == pytest.approx(0.696)
    assert float(best["cvc_low"]) < float(best["cvc"]) < float(best["cvc_high"])
    assert (best["rank_cvc"], float(best["grouped"])) == ("1", 0.26)
    none = rows("e0", cvc=None)[0]
    assert {none[name] for name in ("cvc", "cvc_low", "cvc_high", "rank_cvc")} == {""}


def test_names_of_levels_inject_nothing():
    groups = (replace(COMPARED_CVC.groups[0], name="<script>alert(1)</script>"),)
    reports = {name: audit(cv=0.6, bias=0.1, groups=groups) for name in "AB"}
    assert "<script>" not in comparison_files(compared(reports))["comparison.html"]


# --- options of the command line ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("groups=patient,day", {"groups": ["patient", "day"]}),
        ("groups=patient", {"groups": "patient"}),
        ("groups=patient, day,engine=full", {"groups": ["patient", "day"], "engine": "full"}),
        ("draws=900,new=patient,day", {"draws": 900, "new": ["patient", "day"]}),
        ('groups=["a, b","c=d"],draws=9', {"groups": ["a, b", "c=d"], "draws": 9}),
        ('groups=["patient"]', {"groups": ["patient"]}),
        ("order=3,smoothing=0.1", {"order": 3, "smoothing": 0.1}),
    ],
)
def test_options_may_be_lists(text, values):
    assert NAMED_VALUES.convert(text, None, None) == values


@pytest.mark.parametrize(
    "text",
    ["groups", "=patient", "groups=a,,b", "groups=a,", "a=b=c", 'groups=["a"', 'groups=["a"]b'],
)
def test_what_is_no_option_is_refused(text):
    result = CliRunner().invoke(main, ["audit", "--method-option", text])
    assert result.exit_code == 2
    assert "is not of type NAME=VALUE" in result.stderr


def test_the_command_passes_the_score_on(monkeypatch):
    calls = []

    def compare(models, **options):
        calls.append((models, options["by"]))
        raise SystemExit(0)

    monkeypatch.setattr("mlflow_b3.tracking.comparing.compare", compare)
    for words in (["--by", "cvc"], ["--by", ""], []):
        assert CliRunner().invoke(main, ["compare", "models:/x/1", *words]).exit_code == 0
    assert calls == [(["models:/x/1"], by) for by in ("cvc", "auto", "auto")]
