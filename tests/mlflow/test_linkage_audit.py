"""Linkage evidence in an audit: where the leaked share comes from, and what it makes of e0."""

import json
import math

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner
from sklearn.model_selection import GroupKFold, KFold
from sklearn.neighbors import KNeighborsClassifier

import mlflow_b3 as b3
from mlflow_b3.auditing.leakage import LinkageArguments, make_claim
from mlflow_b3.auditing.subject import load_subject
from mlflow_b3.cli import main
from mlflow_b3.data.folds import make_folds
from mlflow_b3.estimation.fragments import estimate_fragments, weigh_fragments
from mlflow_b3.linkage import LeakEstimate, ResolvedRows, leak_truth, sample_rows
from mlflow_b3.linkage.leak import LeakShare
from mlflow_b3.tracking.metrics_and_files import metrics_of

pytestmark = pytest.mark.newest

COLUMNS = {"target": "disease", "cluster": "patient_id", "row_id": "record_id"}
MODEL = KNeighborsClassifier(5)
LOSSES = b3.FragmentLosses(loss=0.3, seen_loss=0.2, stderr=0.01, seen_stderr=0.01)


@pytest.fixture(scope="module")
def clinic():
    """60 patients with six records; four in ten are split in two ids."""
    return b3.make_clinic(patients=60, records=6, split_rate=0.4, seed=2)


@pytest.fixture(scope="module")
def frame(clinic):
    return clinic.frame.assign(record_id=[f"R{row:03d}" for row in range(len(clinic.frame))])


@pytest.fixture(scope="module")
def pairs(clinic, frame):
    """Scores that are high for mates, and never checked: some mates were never compared."""
    rng = np.random.default_rng(0)
    i, j = np.triu_indices(len(frame), 1)
    mates = clinic.patients[i] == clinic.patients[j]
    scored = (mates & (rng.random(len(i)) < 0.95)) | (rng.random(len(i)) < 0.002)
    score = np.where(mates, rng.beta(5, 2, len(i)), rng.beta(1, 20, len(i)))[scored]
    ids = frame["record_id"].to_numpy()
    return pd.DataFrame(
        {"unique_id_l": ids[i[scored]], "unique_id_r": ids[j[scored]], "match_probability": score}
    )


@pytest.fixture(scope="module")
def resolved(clinic):
    """Return what a reviewer with free search finds for 120 rows."""
    rows = np.array(sample_rows(len(clinic.patients), 120, seed=1).rows)
    mates = [np.setdiff1d(np.flatnonzero(clinic.patients == clinic.patients[r]), [r]) for r in rows]
    return ResolvedRows.of(rows, mates, len(clinic.patients))


def audit(frame, **arguments):
    return b3.audit(
        MODEL, frame, **{**COLUMNS, "folds": 3, "repeats": 1, "budget": 60, **arguments}
    )


def true_leak(clinic, frame):
    """Return what leaks across the folds that `audit` makes."""
    table = load_subject(MODEL, frame, **COLUMNS).table
    return leak_truth(clinic.patients, make_folds(table, 3, seed=0))


@pytest.fixture(scope="module")
def by_resolved_rows(frame, resolved):
    return audit(frame, resolved_rows=resolved)


def codes(report):
    return {finding.code for finding in report.findings}


def test_resolved_rows_tell_the_leak_shares_of_the_actual_folds(clinic, frame, by_resolved_rows):
    leak = by_resolved_rows.linkage
    assert by_resolved_rows.p0_source == "resolved_rows"
    assert (leak.kind, leak.method, leak.n_labels) == ("estimate", "resolved-rows", 120)
    true = true_leak(clinic, frame)
    assert leak.train.low <= true.p0 <= leak.train.high
    assert leak.validation.low <= true.p0_validation <= leak.validation.high


def test_the_interval_of_e0_contains_the_uncertainty_of_the_share(by_resolved_rows):
    """It is wider than with the same share taken as known."""
    report = by_resolved_rows
    known = next(reading for reading in report.readings if reading.leakage == report.p0)
    low, high = report.e0_interval
    assert report.e0 == pytest.approx(known.e0, abs=0.005)
    assert low <= known.low + 1e-9
    assert high >= known.high - 1e-9
    assert high - low > known.high - known.low


def test_clusters_are_broken_as_those_that_were_found_split(by_resolved_rows):
    sizes = [float(size) for size in by_resolved_rows.settings.fragments.split(",")]
    assert sizes == pytest.approx(by_resolved_rows.linkage.fragments, rel=1e-4)
    assert all(0 < size < 1 for size in sizes)


def test_fragments_that_are_given_go_before_those_that_were_found(frame, resolved):
    assert audit(frame, resolved_rows=resolved, fragments="halves").settings.fragments == "halves"


def test_the_report_says_where_the_share_comes_from_and_travels_as_json(by_resolved_rows):
    text = by_resolved_rows.to_text()
    assert "By the 120 rows that were resolved by hand" in text
    assert "Leak shares by resolved-rows" in text
    again = b3.AuditReport.from_dict(json.loads(by_resolved_rows.to_json()))
    assert again == by_resolved_rows


def test_losses_of_resolved_rows_check_e0_without_refits(by_resolved_rows):
    regression = by_resolved_rows.regression
    assert regression.n == 120
    assert regression.calibrated
    low, high = by_resolved_rows.e0_interval
    assert regression.interval[0] < high
    assert low < regression.interval[1]


def test_a_reviewer_who_misses_mates_makes_the_share_larger(frame, resolved, by_resolved_rows):
    report = audit(frame, resolved_rows=resolved, reviewer=(0.8, 1.0))
    assert report.p0 == pytest.approx(by_resolved_rows.p0 / 0.8, rel=0.05)


def test_scored_pairs_give_an_order_of_magnitude_and_rows_to_review(clinic, frame, pairs):
    report = audit(frame, match_probability=pairs)
    assert report.p0_source == "match_probability"
    assert report.linkage.kind == "uncalibrated"
    assert "B325" in codes(report)
    low, high = report.settings.claim
    assert high / report.p0 == pytest.approx(3**1.96, rel=0.02) or high == 0.95
    assert report.p0 / low == pytest.approx(3**1.96, rel=0.02)
    first = report.suspicious[0]
    assert first.id == f"R{first.row:03d}"
    assert clinic.patients[first.row] == clinic.patients[first.best_mate]
    assert frame["patient_id"][first.row] != frame["patient_id"][first.best_mate]
    assert first.influence == max(row.influence for row in report.suspicious)
    assert f"{first.id} " in report.to_text()


def test_pairs_and_resolved_rows_rank_rows_by_checked_probabilities(frame, pairs, resolved):
    report = audit(frame, match_probability=pairs, resolved_rows=resolved)
    assert report.p0_source == "resolved_rows"
    assert report.regression.calibrated
    assert report.regression.n == len(frame)
    assert report.suspicious
    assert "B325" not in codes(report)


def test_leak_safe_folds_are_recommended_where_they_help_and_do_help(frame, pairs, resolved):
    before = audit(frame, match_probability=pairs, resolved_rows=resolved)
    (advice,) = [f.message for f in before.findings if f.code == "B324"]
    assert "fold_threshold=0.1" in advice
    assert "by the resolved rows, the seen share falls from" in advice
    after = audit(frame, match_probability=pairs, resolved_rows=resolved, fold_threshold=0.1)
    assert after.settings.fold_threshold == 0.1
    assert after.linkage.validation.point < before.linkage.validation.point / 2
    assert after.linkage.validation.low == 0  # hardly a leaked row is left in the sample
    assert "B326" in codes(after)
    assert not after.suspicious  # the scores that made the folds cannot say what still leaks


def test_scores_that_made_the_folds_do_not_say_what_still_leaks(frame, pairs):
    report = audit(frame, match_probability=pairs, fold_threshold=0.1)
    assert report.p0_source == "none"
    assert report.e0 is None
    assert {"B307", "B326"} <= codes(report)


def test_folds_that_were_made_of_scores_are_recognised(frame, pairs):
    table = b3.linkage.read_pairs(pairs, frame["record_id"])
    folds = b3.linkage.leak_safe_folds(*table, 0.1, 3, frame["patient_id"])
    report = audit(frame, match_probability=pairs, folds=folds, repeats=None)
    assert report.p0_source == "none"
    assert report.settings.fold_threshold == 0.1
    assert "B326" in codes(report)
    assert not report.suspicious


def test_purging_costs_training_rows_and_leaves_validation_rows_alone(frame, pairs, resolved):
    plain = audit(frame, match_probability=pairs, resolved_rows=resolved)
    purged = audit(frame, match_probability=pairs, resolved_rows=resolved, purge_threshold=0.2)
    before, after = (
        (sum(f.n_training for f in r.folds), sum(f.n_validation for f in r.folds))
        for r in (plain, purged)
    )
    assert after[0] < before[0]
    assert after[1] == before[1]
    assert purged.linkage.validation.point < plain.linkage.validation.point
    assert "without training rows whose cluster" in purged.to_text().replace("\n  ", " ")


def test_a_column_of_match_probabilities_is_read_as_misplaced_rows(frame):
    sure = frame.assign(link_probability=0.95)
    report = audit(sure, match_probability="link_probability")
    assert report.p0_source == "match_column"
    assert report.settings.pattern == "rows"
    assert report.settings.claim == pytest.approx((0.05 / 3**1.96, 0.05 * 3**1.96), rel=0.01)
    assert report.p0 == pytest.approx(0.05 / 3, rel=0.05)  # three folds
    assert "link_probability" not in report.settings.features
    assert "B325" in codes(report)


def test_published_quality_is_an_upper_limit(frame):
    report = audit(frame, linkage_quality={"recall": 0.9, "precision": 1.0, "recall_pairs": 300})
    assert report.linkage.kind == "upper"
    assert report.settings.claim[0] == 0
    assert "at most" in report.to_text()
    assert "This value assumes half of that limit" in report.to_text().replace("\n  ", " ")


def test_posterior_samples_of_a_linkage_are_read_in(clinic, frame):
    rng = np.random.default_rng(1)
    samples = np.array(
        [np.where(rng.random(360) < 0.02, 1000 + np.arange(360), clinic.patients)] * 5
    )
    table = pd.DataFrame(samples, columns=frame["record_id"])
    report = audit(frame, partition_samples=table)
    assert report.p0_source == "partition_samples"
    assert 0.1 < report.p0 < 0.5
    assert report.suspicious


def test_labels_of_a_clustering_go_straight_into_an_audit(clinic, frame):
    report = b3.audit(
        MODEL,
        frame.drop(columns=["patient_id", "record_id"]),
        target="disease",
        cluster=clinic.patients,
        split_rate=0.0,
        folds=3,
        repeats=1,
        budget=60,
    )
    assert report.settings.n_clusters == 60
    assert report.settings.cluster == "cluster"
    with pytest.raises(b3.InputError, match="one label for each of the 360 rows"):
        audit(frame, cluster=[1, 2, 3], split_rate=0.0)


def test_a_feature_that_names_the_cluster_is_found(frame, clinic):
    named = frame.assign(phone=10_000 + clinic.patients)
    report = audit(named, split_rate=0.1)
    (finding,) = [f for f in report.findings if f.code == "B323"]
    assert "'phone'" in finding.message
    assert "B323" not in codes(audit(frame, split_rate=0.1))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"resolved_rows": 1, "split_rate": 0.1}, "split_rate and resolved_rows cannot be given"),
        ({"resolved_rows": 1, "partition_samples": 1}, "give the one you trust most"),
        ({"fold_threshold": 0.1, "folds": [([0], [1])]}, "folds that the audit makes"),
        ({"fold_threshold": 1.5}, "must be a match probability"),
        ({"fold_threshold": 0.1}, "fold_threshold needs a table of scored pairs"),
        ({"match_probability": "a", "purge_threshold": 0.1}, "purge_threshold needs a table"),
        ({"match_probability": "a", "resolved_rows": 1}, "names a column"),
        ({"reviewer": (0.9, 1.0)}, "reviewer needs resolved_rows"),
        ({"linkage_quality": {"precision": 0.9}}, "must contain at least the recall"),
        ({"linkage_quality": {"recall": 0.9, "recal": 1}}, "Did you mean 'recall'"),
        ({"match_probability": "pairs.csv"}, "pairs.csv"),
        ({"match_probability": "nothing"}, "match_probability='nothing' is not a column"),
        ({"row_id": "records"}, "Did you mean 'record_id'"),
        ({"row_id": "patient_id"}, "each row needs an id of its own"),
    ],
)
def test_evidence_that_cannot_be_used_is_refused_before_any_refit(frame, arguments, message):
    with pytest.raises(b3.InputError, match=message.replace("(", r"\(")):
        audit(frame, **arguments)


def test_a_sheet_goes_out_to_a_person_and_comes_back_on_the_command_line(
    clinic, frame, pairs, tmp_path, monkeypatch
):
    """`mlflow-b3 review` writes it, she fills in the mates, and the audit reads it."""
    monkeypatch.chdir(tmp_path)
    frame.to_csv("records.csv", index=False)
    pairs.to_csv("pairs.csv", index=False)
    run = CliRunner().invoke
    arguments = ["--data", "records.csv", "--cluster", "patient_id", "--row-id", "record_id"]
    more = ["--match-probability", "pairs.csv", "--rows", "90", "--output", "sheet.csv"]
    done = run(main, ["review", *arguments, *more, "--expected-split-rate", "0.2"])
    assert done.exit_code == 0, done.output
    assert "90 of 360 rows" in done.output
    assert "246 rows determine that share" in done.output
    again = run(main, ["review", *arguments, *more])
    assert again.exit_code == 2
    assert "may already be filled in" in again.output

    sheet = pd.read_csv("sheet.csv")
    row_of = {name: row for row, name in enumerate(frame["record_id"])}
    found = []
    for name in sheet["record"]:
        row = row_of[name]
        mates = np.setdiff1d(np.flatnonzero(clinic.patients == clinic.patients[row]), [row])
        found.append("; ".join(frame["record_id"][mates]) or "none")
    sheet.assign(mates=found).to_csv("sheet.csv", index=False)
    resolved = b3.linkage.parse_review("sheet.csv", frame["record_id"])
    report = audit(frame, resolved_rows="sheet.csv", match_probability="pairs.csv")
    assert report.linkage.n_labels == len(resolved) == 90
    assert resolved.strata is not None
    share = report.linkage.validation
    assert share.low <= true_leak(clinic, frame).p0_validation <= share.high


def test_an_unfinished_sheet_is_refused(frame, tmp_path):
    sample = sample_rows(len(frame), 30, seed=0)
    path = tmp_path / "sheet.csv"
    b3.linkage.review_sheet(frame, sample, cluster="patient_id", id="record_id", path=path)
    with pytest.raises(b3.InputError, match="30"):
        audit(frame, resolved_rows=path)


# --- the weighting itself ------------------------------------------------------------------------


def test_a_share_that_is_certain_gives_the_unweighted_answer():
    weighted, plain = weigh_fragments(LOSSES, [0.2] * 7), estimate_fragments(LOSSES, seen_share=0.2)
    assert weighted.e0 == pytest.approx(plain.e0)
    assert weighted.interval == pytest.approx(plain.interval)


def test_without_noise_the_interval_holds_the_shares_quantiles():
    """e0 = LOCO + D·s/(1-s) rises with s, so its quantiles are those of s."""
    exact = b3.FragmentLosses(loss=0.3, seen_loss=0.2, stderr=0.0, seen_stderr=0.0)
    shares = np.linspace(0.1, 0.3, 2001)
    weighted = weigh_fragments(exact, shares)
    ends = [0.3 + 0.1 * s / (1 - s) for s in (0.105, 0.2, 0.295)]
    assert (weighted.interval[0], weighted.e0, weighted.interval[1]) == pytest.approx(
        ends, abs=2e-4
    )


def test_the_bound_of_the_loss_holds_for_weighted_losses():
    weighted = weigh_fragments(LOSSES, [0.1, 0.5, 0.94], bound=0.5)
    assert weighted.interval[1] == 0.5


def test_nothing_to_weigh_is_an_error():
    with pytest.raises(b3.InputError, match="shares is empty"):
        weigh_fragments(LOSSES, [])


# --- what evidence becomes as a prior ------------------------------------------------------------


def leak(point, low, high, kind="estimate"):
    share = LeakShare(point=point, low=low, high=high)
    return LeakEstimate(
        train=share, validation=share, kind=kind, method="test", level=0.95, n_folds=5.0
    )


def test_an_estimate_becomes_a_beta_law_of_its_mean_and_width():
    prior = leak(0.2, 0.16, 0.25).to_prior()
    assert prior.law == "beta"
    assert prior.first / (prior.first + prior.second) == pytest.approx(0.2)
    assert prior.high - prior.low == pytest.approx(0.09)


@pytest.mark.parametrize(
    ("point", "low", "high"),
    [(0.008, 0.0039, 0.0148), (0.0027, 0.0001, 0.0144), (0.008, 0.0079, 0.0081)],
)
def test_a_small_share_stays_as_large_as_it_was_found(point, low, high):
    """Two beta laws have that mean and width; one of them is all but a spike at 0."""
    prior = leak(point, low, high).to_prior()
    assert prior.first / (prior.first + prior.second) == pytest.approx(point)
    assert prior.high == pytest.approx(high, rel=0.05)
    assert prior.quantiles([0.5])[0] > point / 3


def test_the_range_of_a_claim_holds_what_was_found():
    claim = make_claim(evidence="resolved_rows").linked(leak(0.0, 0.0, 0.05))
    assert (claim.low, claim.middle) == (0.0, 0.0)
    assert claim.high >= 0.05


def test_no_leak_seen_is_not_none_there():
    """The law falls from 0 on and reaches the limit with the confidence of the interval."""
    prior = leak(0.0, 0.0, 0.012).to_prior()
    assert prior.quantiles([0.95]) == pytest.approx(0.012, rel=1e-6)
    assert prior.low < 1e-4


def test_unchecked_scores_become_a_law_that_is_wide_on_the_scale_of_factors():
    prior = leak(0.04, 0.03, 0.05, kind="uncalibrated").to_prior()
    assert prior.law == "log-normal"
    assert prior.quantiles([0.5]) == pytest.approx(0.04)
    assert math.log(prior.high / 0.04) == pytest.approx(1.96 * math.log(3), rel=1e-3)


def test_a_limit_becomes_a_range():
    prior = leak(None, 0.0, 0.3, kind="upper").to_prior()
    assert (prior.law, prior.low, prior.high) == ("range", 0.0, 0.3)


def test_pairs_serve_as_evidence_only_where_nothing_better_is_given():
    pairs = LinkageArguments(match_probability=object())
    assert pairs.source(otherwise_known=False) == "match_probability"
    assert pairs.source(otherwise_known=True) is None
    claim = make_claim(split_rate=0.1, evidence=pairs.source(otherwise_known=True))
    assert claim.source == "split_rate"


# --- input that says less than it seems to -------------------------------------------------------


def test_pairs_of_another_table_are_refused(frame, pairs):
    strange = pairs.assign(
        unique_id_l="X" + pairs["unique_id_l"], unique_id_r="X" + pairs["unique_id_r"]
    )
    with pytest.raises(b3.InputError, match=r"none of \d+ has both of its ids .* 'R000'.*'XR"):
        audit(frame, match_probability=strange)


def test_no_pairs_at_all_are_refused(frame, pairs):
    with pytest.raises(b3.InputError, match="contains no pairs"):
        audit(frame, match_probability=pairs.iloc[:0])


def test_pairs_within_clusters_only_are_no_evidence_that_nothing_leaks(frame, pairs):
    """Splink's predictions above the threshold of its clusters hold no others."""
    home = frame.set_index("record_id")["patient_id"]
    within = home[pairs["unique_id_l"]].to_numpy() == home[pairs["unique_id_r"]].to_numpy()
    with pytest.raises(b3.InputError, match="does not mean that nothing leaks"):
        audit(frame, match_probability=pairs[within])


def test_ids_keep_their_meaning_where_a_file_lost_their_leading_zeros(frame, pairs, tmp_path):
    def numbered(ids):
        return ids.str[1:].str.zfill(5)

    table, scored = tmp_path / "table.csv", tmp_path / "pairs.csv"
    frame.assign(record_id=numbered(frame["record_id"])).to_csv(table, index=False)
    sides = {name: numbered(pairs[name]) for name in ("unique_id_l", "unique_id_r")}
    pairs.assign(**sides).to_csv(scored, index=False)
    by_file = audit(str(table), match_probability=str(scored))
    assert by_file.p0 == pytest.approx(audit(frame, match_probability=pairs).p0)


@pytest.mark.parametrize(
    "quality",
    [
        {"recall": "0.9"},
        {"recall": None},
        {"recall": 0.9, "recall_pairs": float("nan")},
        {"recall": 0.9, "recall_pairs": 0.5},
        {"recall": 0.9, "precision_pairs": "many"},
    ],
)
def test_figures_that_are_no_numbers_are_named(frame, quality):
    with pytest.raises(b3.InputError, match=r"linkage_quality: \w+=.* must be a"):
        audit(frame, linkage_quality=quality)


def test_folds_that_split_clusters_are_audited_with_any_evidence(clinic, frame, pairs):
    folds = KFold(3, shuffle=True, random_state=0)
    sampled = audit(frame, partition_samples=[clinic.patients] * 3, folds=folds)
    assert sampled.linkage.validation.point > 0.9
    assert audit(frame, match_probability=pairs, purge_threshold=0.9, folds=folds).e0 is None


def test_where_all_rows_may_have_leaked_only_the_largest_loss_limits_that_on_new_ones(frame):
    assert audit(frame, linkage_quality={"recall": 0.05}).e0_interval[1] == 1.0
    report = audit(frame, linkage_quality={"recall": 0.05}, loss=lambda y, p: 2.0 * (y != p))
    assert report.e0_interval[1] is None
    assert metrics_of(report)["b3/e0_high"] is None
    assert "with no upper limit" in " ".join(report.to_text().split())
    assert "no upper limit" in report.to_html()


def test_a_recall_that_allows_everything_to_leak_gives_no_estimate(frame):
    report = audit(frame, linkage_quality={"recall": 0.05})
    assert report.linkage.validation.high == 1
    assert (report.e0, report.p0, report.inflation) == (None, None, None)
    text = " ".join(report.to_text().split())
    assert "all validation rows may have records of the same true cluster" in text
    assert "an upper limit if those figures are exact" in text
    assert b3.AuditReport.from_dict(json.loads(report.to_json())) == report


def test_folds_that_let_all_rows_be_seen_give_no_estimate(clinic, frame):
    folds = KFold(3, shuffle=True, random_state=0)
    report = audit(frame, partition_samples=[clinic.patients] * 3, folds=folds)
    assert report.linkage.validation.point > 0.95
    assert report.e0 is None
    assert report.e0_interval[1] == 1.0


def test_suspicion_of_one_cluster_is_too_little_for_a_regression_and_no_error(frame):
    """All refits were done when that was found out."""
    named = ["A"] * 30 + ["B"] * 30 + [f"c{row // 3}" for row in range(300)]
    ids = frame["record_id"].to_numpy()
    scored = pd.DataFrame({"id_1": ids[:30], "id_2": ids[30:60], "p": np.linspace(0.3, 0.6, 30)})
    validation = np.r_[0:30, 60:120]
    training = np.setdiff1d(np.arange(len(frame)), validation)
    report = audit(
        frame.assign(patient_id=named), match_probability=scored, folds=[(training, validation)]
    )
    assert report.regression is None
    assert report.e0 is not None


def test_splits_that_are_given_in_any_form_are_not_made_by_a_threshold(frame, pairs):
    splits = GroupKFold(3).split(frame, groups=frame["patient_id"])
    with pytest.raises(b3.InputError, match="folds that the audit makes, not with given ones"):
        audit(frame, match_probability=pairs, fold_threshold=0.1, folds=splits)


def test_a_splitter_that_ignores_groups_keeps_no_rows_together(frame, pairs):
    with pytest.raises(b3.InputError, match="needs folds that keep groups together"):
        audit(frame, match_probability=pairs, fold_threshold=0.1, folds=KFold(3, shuffle=True))


def test_groups_that_are_too_few_for_the_folds_are_named_as_what_they_are(frame):
    ids = frame["record_id"].to_numpy()
    chain = pd.DataFrame({"id_1": ids[:-1], "id_2": ids[1:], "p": 0.9})
    with pytest.raises(b3.InputError, match=r"'patient_id joined by fold_threshold=0.5'"):
        audit(frame, match_probability=chain, fold_threshold=np.float32(0.5), folds=40, budget=None)


# --- what was learned from people who tried it -----------------------------------------------------


def test_metrics_keep_the_shares_of_the_two_patterns_apart(by_resolved_rows):
    """`b3/p0` counts misplaced rows, as `b3/tipping_p0` does; what linkage tells has its own name."""
    metrics, leak = metrics_of(by_resolved_rows), by_resolved_rows.linkage
    assert metrics["b3/p0"] is None
    assert metrics["b3/seen_share"] == leak.validation.point == by_resolved_rows.p0
    assert metrics["b3/seen_share_low"] == leak.validation.low
    assert metrics["b3/seen_share_high"] == leak.validation.high


def test_the_share_is_also_said_as_a_split_rate(by_resolved_rows):
    text = by_resolved_rows.to_text().replace("\n  ", " ")
    assert "In the table of split rates, this corresponds to" in text


def test_folds_can_be_given_as_a_number_for_each_row(frame, resolved):
    numbers = pd.factorize(frame["patient_id"])[0] % 3
    splits = [(np.flatnonzero(numbers != k), np.flatnonzero(numbers == k)) for k in range(3)]
    by_number, by_split = (
        audit(frame, resolved_rows=resolved, folds=folds, repeats=None)
        for folds in (list(numbers), splits)
    )
    assert by_number == by_split


def test_pairs_of_rows_that_are_not_audited_are_left_out_and_counted(frame, pairs):
    kept = frame.iloc[:300]
    report = audit(kept, match_probability=pairs)
    (text,) = [f.message for f in report.findings if f.code == "B327"]
    assert "name rows that are not in this table" in text


def test_pairs_that_contradict_the_clusters_are_doubted(frame, pairs):
    """Ids that fit by chance: rows were numbered in another order when they were linked."""
    shuffled = frame.assign(record_id=np.roll(frame["record_id"].to_numpy(), 7))
    report = audit(shuffled, match_probability=pairs.assign(match_probability=0.95))
    (text,) = [f.message for f in report.findings if f.code == "B327"]
    assert "check row_id" in text


def test_a_sheet_of_other_clusters_is_doubted(clinic, frame, tmp_path):
    path, sample = tmp_path / "sheet.csv", sample_rows(len(frame), 60, seed=0)
    b3.linkage.review_sheet(frame, sample, cluster="patient_id", id="record_id", path=path)
    sheet = pd.read_csv(path, dtype=str)
    row_of = {name: row for row, name in enumerate(frame["record_id"])}
    sheet["mates"] = [
        "; ".join(
            frame["record_id"][
                (clinic.patients == clinic.patients[row_of[name]]) & (frame["record_id"] != name)
            ]
        )
        for name in sheet["record"]
    ]
    sheet.to_csv(path, index=False)
    same = audit(frame, resolved_rows=path)
    assert not [f for f in same.findings if "another cluster here" in f.message]
    moved = audit(frame.assign(patient_id=frame["patient_id"] + "x"), resolved_rows=path)
    assert [f for f in moved.findings if "100% of the resolved rows" in f.message]


def test_splinks_own_column_names_are_understood(frame, pairs):
    named = pairs.rename(columns={"unique_id_l": "record_id_l", "unique_id_r": "record_id_r"})
    assert audit(frame, match_probability=named).p0 == audit(frame, match_probability=pairs).p0


def test_a_clustering_itself_can_be_the_cluster_argument(clinic, frame):
    i, j = np.triu_indices(len(frame), 1)
    same = clinic.patients[i] == clinic.patients[j]
    made = b3.linkage.correlation_cluster(len(frame), i[same], j[same], np.ones(same.sum()))
    table = frame.drop(columns=["patient_id", "record_id"])
    report = audit(table, cluster=made, row_id=None, split_rate=0.0)
    assert report.settings.n_clusters == 60


def test_a_column_that_is_sure_of_everything_is_no_evidence(frame):
    with pytest.raises(b3.InputError, match="no evidence that every id is right"):
        audit(frame.assign(sure=1.0), match_probability="sure")


def test_an_imperfect_reviewer_does_not_count_as_a_check_of_leak_probabilities(frame, resolved):
    report = audit(frame, resolved_rows=resolved, reviewer=(0.9, 0.99))
    assert not report.regression.calibrated


def test_rows_that_are_never_validated_are_not_suspicious(frame, pairs):
    codes_ = pd.factorize(frame["patient_id"])[0]
    held_out = [(np.flatnonzero(codes_ % 3), np.flatnonzero(codes_ % 3 == 0))]
    report = audit(frame, match_probability=pairs, folds=held_out, repeats=None)
    assert report.suspicious
    assert all(codes_[row.row] % 3 == 0 for row in report.suspicious)


@pytest.fixture
def review(frame, tmp_path, monkeypatch):
    """Return `mlflow-b3 review` of the clinic's records, in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    frame.to_csv("records.csv", index=False)
    common = ["review", "--data", "records.csv", "--cluster", "patient_id", "--output", "sheet.csv"]
    return lambda *more: CliRunner().invoke(main, [*common, *more])


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("--rows", "0", "--rows 0 must be a whole number from 1"),
        ("--rows", "-5", "--rows -5 must be"),
        (
            "--expected-split-rate",
            "20",
            "--expected-split-rate 20 must be between 0 and 1. Give a",
        ),
        ("--expected-split-rate", "0", "--expected-split-rate 0 must be between 0 and 1.\n"),
    ],
)
def test_numbers_of_a_review_are_checked_before_the_sheet_is_written(
    review, tmp_path, option, value, words
):
    done = review(option, value)
    assert done.exit_code == 2
    assert words in done.output
    assert not (tmp_path / "sheet.csv").exists()


def test_a_review_finds_the_ids_of_pairs_under_the_name_of_the_row_ids(review, pairs):
    names = {f"unique_id_{side}": f"record_id_{side}" for side in "lr"}
    pairs.rename(columns=names).assign(town_l="x", town_r="x").to_csv("pairs.csv", index=False)
    done = review("--row-id", "record_id", "--match-probability", "pairs.csv")
    assert done.exit_code == 0, done.output
    assert pd.read_csv("sheet.csv")["candidates"].notna().any()


def test_a_half_filled_sheet_says_what_to_do(review, frame):
    assert review("--row-id", "record_id", "--rows", "40").exit_code == 0
    sheet = pd.read_csv("sheet.csv")
    sheet.assign(mates=["none"] * 30 + [""] * 10).to_csv("sheet.csv", index=False)
    with pytest.raises(b3.InputError, match=r"10 of 40 rows .*delete .*resolved_rows=mlflow_b3\."):
        audit(frame, resolved_rows="sheet.csv")
    finished = b3.linkage.parse_review("sheet.csv", frame["record_id"], allow_unfinished=True)
    assert audit(frame, resolved_rows=finished).linkage.n_labels == 30
