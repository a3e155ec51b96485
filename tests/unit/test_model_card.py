"""`report.to_model_card`: the sections of a model card on evaluation and caveats."""

import re
from dataclasses import replace

import pytest
from example_reports import (
    SUBJECT,
    audited,
    by_doses,
    changed,
    linked,
    lower_bound,
    report,
    split,
    unknown,
)

from mlflow_b3 import AuditReport, InputError
from mlflow_b3.auditing.groups import GroupScore, GroupScores
from mlflow_b3.reporting.headline import headline_of
from mlflow_b3.reporting.model_card import RATES
from mlflow_b3.reporting.sentences import SOURCES, open_questions

HEADINGS = [
    "## Evaluation",
    "### Testing data, factors and metrics",
    "### Results",
    "## Caveats and recommendations",
]
KINDS = {
    "known rate": report(),
    "by doses": by_doses(),
    "unknown rate": unknown(),
    "split clusters": split(),
    "lower bound": lower_bound(),
    "unchecked scores": linked("match_probability"),
    "with corrected cross-validation": audited(),
}


def plain(card: str) -> str:
    """Return a card without the marks that keep text from being read as markup."""
    return re.sub(r"\\(.)", r"\1", card)


@pytest.mark.parametrize("audit", KINDS.values(), ids=KINDS.keys())
def test_a_card_has_the_answer_the_scores_and_what_is_not_known(audit: AuditReport):
    card = audit.to_model_card()
    assert re.findall(r"^#+ .*$", card, re.MULTILINE) == HEADINGS
    text = plain(card)
    assert headline_of(audit).sentence in text
    assert all(question in text for question in open_questions(audit))
    assert all(finding.message in text for finding in audit.findings)
    assert "It says nothing about fairness between groups, drift" in text
    assert f"{audit.subject.n_rows:,} rows of {audit.subject.n_clusters:,} clusters" in text


def test_an_unknown_score_is_said_to_be_unknown():
    row = next(line for line in unknown().to_model_card().splitlines() if "(e0)" in line)
    assert "unknown" in row
    assert "No rate of wrong ids was given." in unknown().to_model_card()


def test_a_stated_rate_is_not_presented_as_measured():
    assert "stated by the person who ran the audit" in report().to_model_card()


def test_every_source_of_the_rate_has_its_sentence():
    assert RATES.keys() == SOURCES.keys()


def test_the_best_constant_is_shown_if_it_is_known():
    known = changed(report(), constant_loss=0.48)
    assert "| best constant prediction, for comparison | 0.480 |" in known.to_model_card()
    assert "best constant prediction, for comparison" not in report().to_model_card()


def test_scores_of_groups_are_shown_and_not_taken_for_fairness():
    groups = tuple(
        GroupScore(name=name, rows=1000, clusters=100.0, loco=0.25, e0=e0)
        for name, e0 in (("female", 0.28), ("male", 0.32))
    )
    found = GroupScores(by="sex", score="zero_one", groups=groups, differences=())
    card = plain(changed(report(), groups=found).to_model_card())
    assert re.search(r"\| female \|.*0\.280", card)
    assert "fairness beyond the scores of these groups" in card


def test_names_from_tables_cannot_add_markup():
    hostile = replace(report(), subject=replace(SUBJECT, cluster="<img src=x>\n# [a](b) `x`"))
    card = hostile.to_model_card()
    assert "<img" not in card.replace("\\<", "")
    assert re.findall(r"^#+ .*$", card, re.MULTILINE) == HEADINGS


def test_a_card_can_be_written_to_a_file(tmp_path):
    file = tmp_path / "card.md"
    assert report().to_model_card(file) == file.read_text(encoding="utf-8")
    with pytest.raises(InputError, match="is a folder"):
        report().to_model_card(tmp_path)
