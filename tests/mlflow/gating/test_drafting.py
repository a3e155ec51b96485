"""Drafts of policies: they pin what is known of a model, and say what is not."""

from dataclasses import replace

import mlflow
import pytest
import yaml
from gate_examples import Registered, register

import mlflow_b3 as b3
from mlflow_b3.evidence.policy import Pin, Policy, load_policy
from mlflow_b3.gating.drafting import draft_policy

pytestmark = pytest.mark.filterwarnings("ignore:Hint")


@pytest.fixture
def drafted(tmp_path):
    """Return what drafts a policy and reads it as a file."""

    def draft(uri: str) -> Policy:
        path = tmp_path / "policy.yaml"
        path.write_text(draft_policy(uri), encoding="utf-8")
        return load_policy(path)

    return draft


def log_training(version: Registered, frame) -> str:
    dataset = mlflow.data.from_pandas(frame, targets="disease", name="visits")
    with mlflow.start_run(run_id=version.run_id):
        mlflow.log_input(dataset, "training")
    return dataset.digest


def test_the_newest_audit_is_pinned(audited, drafted):
    settings = audited.report.settings
    found = drafted(audited.uri)
    assert found.pins == (
        Pin(
            models="clinic",
            target=("disease",),
            cluster=("patient_id",),
            loss=("zero_one",),
            data=(settings.data_digest,),
        ),
    )
    assert replace(found, pins=()) == load_policy()


def test_the_drafted_policy_lets_that_audit_pass(audited, drafted):
    rules = replace(drafted(audited.uri), signed=False)
    assert b3.gate(audited.uri, rules).outcome == "PASS"
    elsewhere = audited.record(settings={"cluster": "site"})
    assert b3.gate(elsewhere.uri, rules).outcome == "FAIL"


def test_a_table_that_the_training_run_logged_is_pinned_as_that(fresh, clinic, drafted):
    digest = log_training(fresh, clinic.frame)
    settings = {"training_digest": digest}
    version = fresh.record(settings=settings)
    found = drafted(version.uri)
    assert found.pins[0].data == ("training",)
    assert b3.gate(version.uri, replace(found, signed=False)).outcome == "PASS"


def test_another_table_than_that_of_training_is_named_in_a_comment(fresh, clinic):
    log_training(fresh, clinic.frame.head(50))
    text = draft_policy(fresh.record().uri)
    assert "# data: training  # the training run logged 'visits', not the audited table" in text


def test_without_an_audit_nothing_is_pinned_and_nothing_passes(fresh, clinic, drafted):
    log_training(fresh, clinic.frame)
    assert drafted(fresh.uri) == load_policy()
    text = draft_policy(fresh.uri)
    assert "no audit of it can be read, so nothing is pinned yet" in text
    assert "#     target: …  # unknown" in text
    assert "# Columns of the dataset 'visits', which may be features too: 'age'," in text


@pytest.mark.parametrize("name", ["clinic [north]*", "Klinik Süd\u202e", "a\"b'c", "clinic #1 😀"])
def test_any_name_of_a_model_is_matched_by_its_own_pin_alone(shared_store, saved, complete, name):
    assert shared_store
    text = draft_policy(register(saved, complete, name).record().uri)
    (pattern,) = yaml.safe_load(text)["pins"]
    pins = (Pin(models=pattern, target=("x",)),)
    rules = replace(load_policy(), pins=pins)
    assert rules.pin_for(name) is not None
    assert rules.pin_for("clinic north") is None
    assert "\u202e" not in text
