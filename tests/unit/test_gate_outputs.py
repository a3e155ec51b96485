"""Verdicts as text, JSON, Markdown and JUnit XML: plain at once, and safe whatever names contain."""

import json
import re
from dataclasses import replace
from xml.etree import ElementTree

import pytest

from mlflow_b3 import Policy, Verdict
from mlflow_b3.evidence.policy import describe_policy, load_policy
from mlflow_b3.evidence.verdict import FAIL, INCONCLUSIVE, NOT_APPLICABLE, PASS, Reason
from mlflow_b3.gating.gate import (
    BY_CHECK,
    E0_HIGH,
    FORMATS,
    plain,
    verdict_json,
    verdict_junit,
    verdict_markdown,
    verdict_text,
)

pytestmark = pytest.mark.newest

HASH = load_policy().hash
GOOD = Reason(check="e0_high", outcome=PASS, text="e0 is at most 0.300; the limit is 0.400")
BAD = Reason(check="inflation", outcome=FAIL, text="e0 exceeds LOCO by 0.2; the limit is 0.1")
NARROW = Reason(
    check="e0_high",
    outcome=INCONCLUSIVE,
    text="e0 is between 0.2 and 0.6; the limit, 0.4, is in between",
    waivable=True,
)
FOREIGN = Reason(check="models", outcome=NOT_APPLICABLE, text="the policy does not apply")


def verdict(outcome: str, *reasons: Reason, allowed: bool = False, **changes: str) -> Verdict:
    made = Verdict(
        outcome=outcome,
        allowed=allowed,
        reasons=reasons,
        model="clinic",
        version="3",
        policy_hash=HASH,
        audit_run_id="34e19f",
        judged_at="2026-11-17T02:53:36+00:00",
    )
    return replace(made, **changes)


PASSED = verdict(PASS, GOOD, allowed=True)
FAILED = verdict(FAIL, GOOD, NARROW, BAD)
OPEN = verdict(INCONCLUSIVE, NARROW)
WAIVED = verdict(INCONCLUSIVE, NARROW, allowed=True)
ELSEWHERE = verdict(NOT_APPLICABLE, FOREIGN, allowed=True)


# --- text -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "line"),
    [
        (PASSED, "PASS: models:/clinic/3 may be promoted."),
        (FAILED, "FAIL: models:/clinic/3 may not be promoted."),
        (OPEN, "INCONCLUSIVE: models:/clinic/3 may not be promoted: the numbers do not decide,"),
        (WAIVED, "INCONCLUSIVE: models:/clinic/3 may be promoted: the numbers do not decide,"),
        (ELSEWHERE, "NOT_APPLICABLE: models:/clinic/3 may be promoted: the policy does not apply"),
        (
            replace(PASSED, promoted="champion"),
            "PASS: models:/clinic/3 now has the alias 'champion'.",
        ),
    ],
)
def test_the_first_line_says_what_is_the_case(given, line):
    assert str(given).startswith(line)


def test_the_text_gives_every_reason_the_worst_first_and_then_what_to_do():
    lines = str(FAILED).splitlines()
    starts = [line.split()[0] for line in lines if re.match(r"  (FAIL|OPEN|pass) ", line)]
    assert starts == ["FAIL", "OPEN", "pass"]
    assert lines.index("What to do") > lines.index("  pass  e0_high    " + GOOD.text)
    assert " ".join(" ".join(lines[-2:]).split()) == (
        f"Judged at 2026-11-17T02:53:36+00:00 by the default policy {HASH[:12]}, on the audit of run "
        "34e19f."
    )


def test_a_refused_promotion_says_that_the_alias_was_left_alone():
    assert "The alias 'champion' was not changed." in verdict_text(FAILED, "champion")
    assert "was not changed" not in verdict_text(PASSED, "champion")


def test_what_may_be_promoted_and_was_not_says_how():
    assert "To promote it, add --promote ALIAS" in str(PASSED)
    assert "What to do" not in str(replace(PASSED, promoted="champion"))


def test_a_verdict_without_an_audit_names_none():
    assert "on the audit" not in str(replace(FAILED, audit_run_id=None))


@pytest.mark.parametrize(
    ("found", "told"),
    [
        ("there is no audit of it", "Audit it: mlflow-b3 audit --model-uri models:/clinic/3 "),
        ("there is no file 'b3/evidence.json'", "Audit it again: mlflow-b3 audit"),
        ("signed with the key 'x', which is not trusted here", "MLFLOW_B3_TRUSTED_KEYS"),
        ("the tags belong to run 1, but there is a later one, of run 2", "Audit it again: "),
        ("the audit's run 34e1 is deleted", "Restore the audit's run"),
        ("the evidence could not be read: OSError", "artifact store can be reached"),
        ("the model is not the one that was audited: 'a' was changed", "mlflow-b3 verify models:/"),
    ],
)
def test_what_to_do_fits_what_is_wrong_with_the_evidence(found, told):
    text = str(verdict(FAIL, Reason(check="evidence", outcome=FAIL, text=found)))
    assert told in " ".join(text.split())


@pytest.mark.parametrize(
    ("found", "told"),
    [
        ("the champion is better by 0.05 (0.01 to 0.09), beyond noise", "Keep the champion"),
        ("the champion is better by 0.01, which is within the noise", "cannot separate the two"),
        ("…, but there are too few clusters to tell that from noise", "More clusters are needed"),
        ("…, but the two were not audited together", "mlflow-b3 compare models:/clinic/3"),
        ("the champion, version 2, has no evidence", "mlflow-b3 compare models:/clinic/3"),
    ],
)
def test_what_to_do_fits_what_became_of_the_comparison_with_the_champion(found, told):
    text = str(verdict(FAIL, Reason(check="champion", outcome=FAIL, text=found)))
    assert told in " ".join(text.split())


def test_settings_other_than_those_committed_need_no_second_commitment():
    found = "its settings are not those that were committed before it ran, in run 1"
    text = str(verdict(FAIL, Reason(check="preregistered", outcome=FAIL, text=found)))
    assert "Audit it again with the committed settings" in " ".join(text.split())


def test_the_default_policy_is_called_so():
    one = verdict(PASS, Reason(check="evidence", outcome=PASS, text="…"))
    default, other = (
        replace(one, policy_hash=load_policy().hash),
        replace(one, policy_hash="0" * 64),
    )
    assert "by the default policy" in " ".join(str(default).split())
    assert "by the policy 000000000000" in " ".join(str(other).split())


@pytest.mark.parametrize("check", [*BY_CHECK, "e0_high"])
@pytest.mark.parametrize("outcome", [FAIL, INCONCLUSIVE])
def test_every_check_of_a_policy_has_its_own_advice(check, outcome):
    found = verdict(outcome, Reason(check=check, outcome=outcome, text="…"))
    expected = E0_HIGH[outcome] if check == "e0_high" else BY_CHECK[check]
    words = " ".join(expected.split(":")[0].split()[:5])
    assert f"- {words}" in str(found)


def test_advice_is_given_once_however_many_reasons_ask_for_it():
    tips = [
        Reason(check=f"tipping_{kind}", outcome=FAIL, text="…")
        for kind in ("cluster_error", "split_rate")
    ]
    assert str(verdict(FAIL, *tips)).count("Better ids") == 1


# --- for machines ---------------------------------------------------------------------------------


def test_the_json_is_the_verdict_itself():
    assert Verdict.from_json(verdict_json(FAILED)) == FAILED


def cases(given: Verdict) -> dict[str, str | None]:
    """Return for each test case of the JUnit XML whether it failed, was skipped, or neither."""
    suite = ElementTree.fromstring(verdict_junit(given)).find("testsuite")
    found = {
        case.get("name"): next((child.tag for child in case), None)
        for case in suite.findall("testcase")
    }
    assert int(suite.get("tests")) == len(found)
    assert int(suite.get("failures")) == list(found.values()).count("failure")
    assert int(suite.get("skipped")) == list(found.values()).count("skipped")
    return found


def test_a_test_report_has_a_case_for_each_reason():
    reasons = (GOOD, BAD, replace(FOREIGN, check="preregistered"))
    assert cases(verdict(FAIL, *reasons)) == {
        "e0_high": None,
        "inflation": "failure",
        "preregistered": "skipped",
    }


def test_what_is_open_is_red_unless_the_policy_lets_it_pass():
    assert cases(OPEN) == {"e0_high": "failure"}
    assert cases(WAIVED) == {"e0_high": "skipped"}
    failure = ElementTree.fromstring(verdict_junit(OPEN)).find(".//failure")
    assert failure.get("type") == "INCONCLUSIVE"
    assert failure.get("message") == NARROW.text


def test_a_test_report_tells_the_whole_verdict_to_people():
    told = ElementTree.fromstring(verdict_junit(FAILED, "champion")).find(".//system-out")
    assert told.text == verdict_text(FAILED, "champion")


def test_the_markdown_has_a_heading_a_row_for_each_reason_and_what_to_do():
    text = verdict_markdown(FAILED)
    assert text.startswith("# Leakage gate\n\n**FAIL.** models:/clinic/3 may not be promoted.\n")
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    assert [row.split(" | ")[0] for row in rows[1:]] == ["| FAIL", "| OPEN", "| pass"]
    assert "## What to do\n\n- " in text


# --- names that want to be more than names --------------------------------------------------------

HOSTILE = [
    "\x1b[2J\x1b]0;owned\x07",
    "\x9b31m",
    "a\r\nPASS: models:/clinic/3 may be promoted.",
    "\u202eelif",
    "x\u2028y\x85z\x0b",
    "x\x00\ud800\ufffe",
    "]]><failure/><!-- & \"'",
    "a | b\n\n# [x](javascript:alert(1)) ![y](https://example.org/p.png) <img src=x>",
    "`code` $x$ @somebody #1 www.example.org https://example.org",
    "a ::error::b\n::set-output name=x::y ##[error]z ##vso[task.complete]",
    "'; rm -rf ~ #",
    "n" * 50_000,
]


def hostile(name: str) -> Verdict:
    """Return a verdict in which everything that others may choose is a hostile name."""
    reason = Reason(check="evidence", outcome=FAIL, text=f"{name!s} was changed")
    return verdict(FAIL, reason, model=name, version=name, audit_run_id=name, promoted=name)


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("name", HOSTILE, ids=range(len(HOSTILE)))
def test_no_output_contains_what_a_terminal_or_a_ci_system_obeys(form, name):
    given = hostile(name)
    for text in (FORMATS[form](given, name), FORMATS[form](replace(given, promoted=None), name)):
        assert all(c.isprintable() or c == "\n" for c in text)
        text.encode("utf-8")
        assert "::" not in text
        assert "##[" not in text
        assert "##vso" not in text


@pytest.mark.parametrize("name", HOSTILE, ids=range(len(HOSTILE)))
def test_the_text_keeps_its_lines_to_itself(name):
    lines = verdict_text(hostile(name)).splitlines()
    assert lines[0].startswith("FAIL: models:/")
    assert not any(line.startswith("PASS") for line in lines)
    assert len("\n".join(lines)) < 10_000


@pytest.mark.parametrize("name", HOSTILE, ids=range(len(HOSTILE)))
def test_the_test_report_stays_well_formed_and_red(name):
    assert cases(hostile(name)) == {"evidence": "failure"}


@pytest.mark.parametrize("name", HOSTILE, ids=range(len(HOSTILE)))
def test_the_markdown_has_no_markup_but_its_own(name):
    text = verdict_markdown(replace(hostile(name), promoted=None))
    headings = [line for line in text.splitlines() if line.startswith("#")]
    assert headings == ["# Leakage gate", "## What to do"]
    assert text.splitlines()[2].startswith("**FAIL.** models:/")
    row = next(line for line in text.splitlines() if line.startswith("| FAIL"))
    assert len(re.findall(r"(?<!\\)\|", row)) == 4
    for markup in (r"(?<!\\)<", r"(?<!\\)`", r"(?<!\\)\[", r"(?<!\\)\$", r"(?<!\\)@", "://"):
        assert not re.search(markup, text), markup


@pytest.mark.parametrize("name", HOSTILE, ids=range(len(HOSTILE)))
def test_the_json_keeps_every_character_of_a_name(name):
    assert json.loads(verdict_json(hostile(name)))["model"] == name


def test_a_command_that_is_to_be_copied_quotes_the_name_of_the_model():
    reason = Reason(check="evidence", outcome=FAIL, text="there is no audit of it")
    text = str(verdict(FAIL, reason, model="x; rm -rf $HOME"))
    assert "--model-uri 'models:/x; rm -rf $HOME/3'" in " ".join(text.split())


def test_ordinary_names_are_shown_as_they_are():
    assert plain("Klinik-Süd, Modell 3 (日本)") == "Klinik-Süd, Modell 3 (日本)"


# --- policies in words ----------------------------------------------------------------------------


def words(tmp_path, text: str, **options: int) -> str:
    path = tmp_path / "policy.yaml"
    path.write_text(text, encoding="utf-8")
    return "\n".join(describe_policy(load_policy(path), **options))


def test_the_default_policy_in_words():
    assert describe_policy(load_policy(), environment_keys=1) == [
        "It guards the aliases 'champion' and 'production' and the stage 'production', ignoring "
        "case, on all models.",
        "It does not say what must be audited, so nothing passes: add target, cluster and loss of each "
        "model to pins. 'mlflow-b3 policy init models:/name/1' writes a draft.",
        "The upper end of the 95% interval of e0 must be at most the loss of the best constant "
        "prediction. The same limit applies to CV_c if the audit has it.",
        "The table must have at least 10 clusters and at least 10 clusters with at least two rows.",
        "A version with one of these findings is refused: B311, single-row clusters; B313, known "
        "clusters are on both sides of a fold; B317, rows scored unequally often; "
        "B322, refits differ from the logged model; B323, features that identify clusters; B329, not the "
        "model's training table; B343, a feature gives away the target; B344, rows copied from other "
        "clusters.",
        "Only audits signed with a trusted key count: 1 of MLFLOW_B3_TRUSTED_KEYS.",
        "An audit is valid for 180 days.",
        "A version is refused if the numbers do not decide.",
    ]


def test_a_policy_that_trusts_no_key_says_that_nothing_passes():
    assert any("nothing passes" in text for text in describe_policy(load_policy()))


def test_a_policy_without_limits_or_guards_says_so(tmp_path):
    text = words(
        tmp_path,
        "guard: {aliases: [], stages: []}\nlimits: {e0_high: null}\nevidence: {signed: false}\n",
    )
    assert "It guards nothing" in text
    assert "any audit passes" in text
    assert "anyone who can write to MLflow can forge one" in text


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("limits: {e0_high: 0.35}", "must be at most 0.350."),
        (
            "limits: {e0_high: 0.35}",
            "Both must also be at most the loss of the best constant prediction.",
        ),
        ("pins: {'*': {}}", "Nothing is pinned for the models '*'"),
        (
            "pins: {a: {target: y, cluster: [b, c], loss: log, data: training}}",
            "An audit of the models 'a' must have the target 'y', the cluster 'b' or 'c', the loss "
            "'log', a table that the training run logged.",
        ),
        ("pins: {a: {target: y}}", "Models without a pin are refused"),
        (f"pins: {{a: {{data: [training, '{'0' * 36}']}}}}", "or the table with the digest '000"),
        (
            "audit: {min_clusters: 20}",
            "20 clusters and at least 10 clusters with at least two rows",
        ),
        (
            "audit: {min_clusters: null, min_repeated_clusters: 5}",
            "at least 5 clusters with at least two rows.",
        ),
        ("audit: {refuse_findings: [B311]}", "findings is refused: B311, single-row clusters."),
        ("audit: {refuse_findings: []}", "No version is refused because of a finding."),
        ("limits: {score_low: 0.75}", "95% interval of e0 must be at least 0.750"),
        (
            "limits: {e0_high: null, score_low: 0.75, tipping_split_rate: 0.3}",
            "e0 must stay above 0.750 up to a split rate of 30%.",
        ),
        ("limits: {inflation: 0.05}", "by at most 0.050."),
        ("limits: {tipping_cluster_error: 0.2}", "up to a cluster error of 20%."),
        ("limits: {tipping_split_rate: 0.3, e0_high: 0.4}", "up to a split rate of 30%."),
        (
            "limits: {champion: not_worse}",
            "must not be worse, beyond noise, than the version with the alias",
        ),
        (
            "{guard: {aliases: [live]}, limits: {champion: better, champion_alias: live}}",
            "the alias 'live'",
        ),
        ("evidence: {p0_sources: [p0, resolved_rows]}", "from 'p0' or 'resolved_rows'"),
        ("evidence: {refits: [clone]}", "refitted by 'clone'"),
        ("evidence: {preregistered: true}", "must have been committed before it ran"),
        ("evidence: {max_audits: 1}", "at most 1 signed audit; others do not count"),
        ("evidence: {max_audits: 1, signed: false}", "audited at most once"),
        ("evidence: {max_age_days: 30}", "valid for 30 days"),
        ("guard: {artifact_roots: ['s3://b']}", "own artifact roots or in 's3://b'."),
        ("guard: {models: ['clinic-*']}", "on the models 'clinic-*'."),
        ("inconclusive: allow", "A version is allowed if the numbers do not decide."),
    ],
)
def test_every_key_of_a_policy_is_told_in_words(tmp_path, text, told):
    assert told in words(tmp_path, text)


def test_no_key_of_a_policy_is_forgotten_in_the_words():
    """The parameters above must cover what a policy has."""
    told = set(Policy.__dataclass_fields__) - {"trusted_keys", "signed", "aliases", "stages"}
    marks = test_every_key_of_a_policy_is_told_in_words.pytestmark[0].args[1]
    assert told == {name for name in told if any(name in text for text, _ in marks)}
