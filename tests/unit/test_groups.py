"""Scores of groups of rows: `by`."""

from dataclasses import replace

import numpy as np
import pytest
from sklearn.metrics import average_precision_score, roc_auc_score
from sklearn.model_selection import GroupKFold, KFold
from sklearn.neighbors import KNeighborsClassifier

import mlflow_b3 as b3
from mlflow_b3.auditing.conclusions import recompute
from mlflow_b3.measurement.collecting import Measurement

CLINIC = b3.make_clinic(patients=80, records=6, cluster_error=0.1, seed=5)
X = CLINIC.frame.drop(columns=["disease", "patient_id"])
Y, GROUPS = CLINIC.frame["disease"], CLINIC.frame["patient_id"]
SEX = np.where(CLINIC.patients % 2 == 0, "f", "m")


def audit(y=Y, by=SEX, **options):
    given = {"cluster_error": 0.1, "budget": 40, "progress": False, "n_jobs": 1, **options}
    return b3.audit(KNeighborsClassifier(), X, y, groups=GROUPS, by=by, **given)


@pytest.fixture(scope="module")
def report():
    return audit()


def test_groups_have_the_scores_of_their_rows(report):
    losses = np.zeros(len(Y))
    for values, fold in zip(report.measurements.row_losses, report.splits, strict=True):
        losses[fold.validation] += values / report.plan.repeats
    found = report.groups
    assert (found.by, found.score, [group.name for group in found.groups]) == (
        "group",
        "e0",
        ["f", "m"],
    )
    for group in found.groups:
        own = losses[group.name == SEX]
        assert group.rows == len(own)
        assert group.loco == pytest.approx(own.mean())
        assert group.e0_interval[0] < group.e0 < group.e0_interval[1]
        assert group.inflation == pytest.approx(group.e0 - group.loco)
        assert group.inflation_interval[0] < group.inflation < group.inflation_interval[1]


def test_the_mean_over_groups_is_near_the_whole(report):
    """Effects are shrunk group by group, so e0 of all rows is not exactly the mean of groups."""
    weights = [group.rows / len(Y) for group in report.groups.groups]
    assert np.dot(weights, [g.loco for g in report.groups.groups]) == pytest.approx(report.loco)
    assert np.dot(weights, [g.e0 for g in report.groups.groups]) == pytest.approx(
        report.e0, abs=0.03
    )


def test_random_groups_do_not_differ_and_hard_ones_do(report):
    (difference,) = report.groups.differences
    assert not difference.beyond_noise
    # labels of half of the patients are coins
    coins = np.random.default_rng(1).integers(0, 2, len(Y))
    hard = audit(np.where(SEX == "m", coins, X["bmi"] > 0).astype(int))
    (difference,) = hard.groups.differences
    assert difference.beyond_noise
    assert difference.difference < 0
    assert difference.interval[1] < 0


def test_scores_of_groups_are_in_their_units(report):
    found = audit(scoring="accuracy").groups
    for ours, theirs in zip(found.groups, report.groups.groups, strict=True):
        assert ours.loco == pytest.approx(1 - theirs.loco)
        assert ours.e0 == pytest.approx(1 - theirs.e0)
        assert ours.inflation == pytest.approx(theirs.inflation)
    f1 = audit(scoring="f1")
    assert all(0 < group.e0 < 1 for group in f1.groups.groups)
    assert f1.groups.groups[0].loco != f1.groups.groups[1].loco


@pytest.mark.parametrize("name", ["roc_auc", "average_precision"])
def test_rows_are_ranked_within_their_group(name):
    found = audit(scoring=name, cv=GroupKFold(3))
    metric = {"roc_auc": roc_auc_score, "average_precision": average_precision_score}[name]
    scores = {"f": [], "m": []}
    for training, validation in GroupKFold(3).split(X, Y, GROUPS):
        model = KNeighborsClassifier().fit(X.iloc[training], Y.iloc[training])
        chance, target = model.predict_proba(X.iloc[validation])[:, 1], Y.iloc[validation]
        for sex, own in scores.items():
            inside = SEX[validation] == sex
            own.append((metric(target[inside], chance[inside]), inside.sum()))
    for group in found.groups.groups:
        values, rows = np.array(scores[group.name]).T
        # folds of the AUC weigh by their pairs, not by their rows
        assert group.loco == pytest.approx(values @ rows / rows.sum(), abs=0.01)
        assert group.e0_interval[0] < group.e0 < group.e0_interval[1]
    assert len(found.groups.differences) == 1


def test_a_class_that_is_rare_in_a_group_gives_the_group_no_score():
    rare = np.where((SEX == "m") & (CLINIC.patients > 12), 0, Y)
    for name in ("roc_auc", "recall", "average_precision"):
        groups = {group.name: group for group in audit(rare, scoring=name).groups.groups}
        assert groups["f"].e0 is not None
        assert groups["m"].e0 is None
        assert "too few clusters: the class 1 is spread over" in groups["m"].why_not


def test_groups_are_recorded_shown_and_concluded_again(report):
    read = b3.AuditReport.from_json(report.to_json())
    assert read.groups == report.groups
    measured = Measurement.from_json(report.measurements.to_json())
    assert [group.name for group in measured.groups] == ["f", "m"]
    assert recompute(report).groups == report.groups
    text = report.to_text()
    assert "error rate by group" in text
    assert "beyond noise" in text


def test_the_scores_of_groups_are_a_sentence_wherever_an_answer_is_shown(report):
    first, second = (f"{group.e0:.3f}" for group in report.groups.groups)
    told = (
        f"By group, e0: f {first}, m {second}; no difference beyond the noise; e0 of small groups is "
        "shrunk towards LOCO"
    )
    assert report.groups.sentence == told
    assert told in " ".join(str(report).split())
    assert told in report._repr_html_()
    assert (
        "shrunk towards LOCO" in report.to_text()[report.to_text().index("error rate by group") :]
    )


def test_groups_can_be_read_when_printed(report):
    shown = repr(report.groups).splitlines()
    assert report.groups.sentence in shown[0]
    assert shown[1].startswith("  f: 240 rows, loco=")
    different = replace(report.groups.differences[0], difference=-0.1, beyond_noise=True)
    found = replace(report.groups, differences=(different,))
    assert "; beyond the noise: f - m (-0.100)" in found.sentence
    many = replace(report.groups, differences=(different,) * 5)
    assert many.sentence.count("f - m") == 3
    assert "and 2 more" in many.sentence


def test_without_groups_nothing_is_recorded():
    found = audit(by=None)
    assert found.groups is None
    assert "groups" not in found.to_dict()["conclusion"]


def test_small_groups_have_no_scores_but_a_reason():
    some = np.where(CLINIC.patients < 6, "few", SEX)
    found = audit(by=some).groups
    few = {group.name: group for group in found.groups}["few"]
    assert few.e0 is None
    assert "clusters (effective number), fewer than 10" in few.why_not
    assert "few not known" in found.sentence
    assert few.why_not in repr(found)


def test_a_column_of_the_table_makes_groups():
    frame = CLINIC.frame.assign(ward=(CLINIC.patients % 3).astype(float))
    found = b3.audit(
        KNeighborsClassifier(),
        frame,
        target="disease",
        cluster="patient_id",
        by="ward",
        budget=40,
        progress=False,
    )
    assert found.groups.score == "loco"
    assert len(found.groups.differences) == 3
    assert found.groups.groups[0].e0 is None
    assert "ward" in found.subject.features


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"by": "agee"}, "by='agee' is not a column of the table. Did you mean 'age'"),
        ({"by": "sexx"}, "by='sexx' is not a column of the table. The columns are 'age', "),
        (
            {"scoring": "f1", "cv": KFold(5)},
            r"the folds have rows of one cluster on both.*GroupKFold",
        ),
        ({"by": SEX[:5]}, "by has 5 labels, but the table has 480 rows"),
        ({"by": np.arange(480)}, "has 480 different values; it needs 2 to 20"),
        ({"by": SEX, "method": "power", "budget": None}, "by needs method='dose', not 'power'"),
    ],
)
def test_groups_that_cannot_be_scored_are_refused(options, message):
    with pytest.raises(b3.InputError, match=message):
        audit(**options)
