"""`gate`: from a version and a policy to a verdict, and to the alias."""

import json

import mlflow
import pytest
from evidence_examples import lenient
from gate_examples import register
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException

import mlflow_b3 as b3
from mlflow_b3 import InputError, TrackingError
from mlflow_b3.gating.archive import Archive
from mlflow_b3.gating.gate import judge_version, next_steps


@pytest.fixture
def alias(audited):
    """Return the version that an alias of the audited model points at."""

    def points_at(name: str = "champion"):
        found = audited.client.get_registered_model(audited.name).aliases.get(name)
        return None if found is None else str(found)

    return points_at


def test_a_version_is_judged_by_a_policy_in_a_file(audited, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pins = "pins: {clinic: {target: disease, cluster: patient_id}}\nevidence: {signed: false}\n"
    (tmp_path / "policy.yaml").write_text(f"{pins}limits: {{e0_high: 0.9}}")
    verdict = b3.gate(audited.uri, policy="policy.yaml")
    assert verdict.outcome == "PASS"
    (tmp_path / "policy.yaml").write_text(f"{pins}limits: {{e0_high: 0.1}}")
    strict = b3.gate(audited.uri, policy="policy.yaml")
    assert (strict.outcome, strict.allowed) == ("FAIL", False)
    assert strict.policy_hash != verdict.policy_hash
    assert [reason.check for reason in strict.decisive] == ["e0_high"]


def test_the_default_policy_asks_for_a_signature(audited):
    verdict = b3.gate(audited.uri)
    assert verdict.outcome == "FAIL"
    assert "signed" in {reason.check for reason in verdict.decisive}


def test_the_verdict_says_all_as_json(audited):
    found = json.loads(audited.judge().to_json())
    assert found["outcome"] == "PASS"
    assert found["model"] == audited.name
    assert found["version"] == audited.version
    checks = [reason["check"] for reason in found["reasons"]]
    assert checks[:5] == ["evidence", "signed", "max_age_days", "max_audits", "preregistered"]
    assert checks[5:9] == ["pins", "min_clusters", "min_repeated_clusters", "findings"]
    assert checks[9:] == ["p0_sources", "refits", "e0_high", "constant"]


def test_an_alias_is_judged_as_the_version_that_it_points_at(audited):
    audited.client.set_registered_model_alias(audited.name, "candidate", audited.version)
    verdict = b3.gate(f"models:/{audited.name}@candidate", lenient())
    assert (verdict.version, verdict.outcome) == (audited.version, "PASS")


def test_a_wide_interval_is_inconclusive_and_may_be_waived(audited):
    e0 = audited.report.e0
    refused = audited.judge(e0_high=e0)
    assert (refused.outcome, refused.allowed) == ("INCONCLUSIVE", False)
    waived = audited.judge(e0_high=e0, inconclusive="allow")
    assert (waived.outcome, waived.allowed) == ("INCONCLUSIVE", True)


def test_a_policy_of_other_models_does_not_apply(fresh):
    verdict = fresh.judge(models=("another-*",))
    assert (verdict.outcome, verdict.allowed) == ("NOT_APPLICABLE", True)
    assert not fresh.judge(models=("CLINIC",)).allowed


@pytest.mark.parametrize("model", ["models:/m-1", "runs:/1/model", "clinic", None, 3])
def test_what_is_no_registered_version_is_an_input_error(shared_store, model):
    assert shared_store
    with pytest.raises(InputError, match="not a registered version"):
        b3.gate(model, lenient())


@pytest.mark.parametrize(
    "model", ["models:/clinic/999", "models:/nobody/1", "models:/clinic@nobody"]
)
def test_a_version_that_is_not_there_is_an_error_that_names_it(audited, model):
    assert audited
    with pytest.raises(TrackingError, match=model):
        b3.gate(model, lenient())


def test_an_error_of_the_store_is_a_fail_not_a_pass(audited, monkeypatch):
    def broken(*_, **__):
        raise MlflowException("the database is away")

    monkeypatch.setattr(MlflowClient, "search_runs", broken)
    assert "MlflowException: the database is away" in audited.refusal()


def test_whatever_goes_wrong_is_a_fail(audited):
    class Broken:
        def __getattr__(self, name):
            raise ZeroDivisionError(name)

    verdict = judge_version(Archive(client=Broken()), lenient(), audited.name, audited.version)
    assert (verdict.outcome, verdict.allowed) == ("FAIL", False)
    assert "ZeroDivisionError" in verdict.reasons[0].text


# --- promotion ------------------------------------------------------------------------------------


def test_a_version_that_passes_is_promoted(audited, alias):
    verdict = b3.gate(audited.uri, lenient(), promote="champion")
    assert (verdict.promoted, alias()) == ("champion", audited.version)


def test_a_version_that_does_not_pass_is_not(audited, alias):
    before = alias()
    verdict = b3.gate(audited.uri, lenient(e0_high=0.1), promote="champion")
    assert (verdict.promoted, verdict.outcome) == (None, "FAIL")
    assert alias() == before != audited.version


def test_where_the_policy_does_not_apply_anything_is_promoted(fresh):
    verdict = b3.gate(fresh.uri, lenient(models=("x",)), promote="free")
    assert (verdict.promoted, verdict.outcome) == ("free", "NOT_APPLICABLE")


@pytest.mark.parametrize("before", [None, "earlier"])
def test_a_model_that_changes_while_it_is_promoted_loses_the_alias(audited, monkeypatch, before):
    client = audited.client
    if before:
        earlier = mlflow.register_model(f"models:/{audited.model_id}", audited.name).version
        client.set_registered_model_alias(audited.name, "champion", earlier)
    given = MlflowClient.set_registered_model_alias

    def meddle(client, name, alias, version):
        monkeypatch.setattr(MlflowClient, "set_registered_model_alias", given)
        (audited.files / "MLmodel").write_text("another")
        given(client, name, alias, version)

    monkeypatch.setattr(MlflowClient, "set_registered_model_alias", meddle)
    verdict = b3.gate(audited.uri, lenient(), promote="champion")
    assert (verdict.outcome, verdict.allowed, verdict.promoted) == ("FAIL", False, None)
    assert "'champion' was restored" in verdict.reasons[-1].text
    points_at = client.get_registered_model(audited.name).aliases.get("champion")
    assert points_at == (earlier if before else None)


def test_an_alias_that_somebody_moved_on_meanwhile_stays_theirs(audited, monkeypatch):
    client = audited.client
    other = mlflow.register_model(f"models:/{audited.model_id}", audited.name).version
    given = MlflowClient.set_registered_model_alias

    def meddle(client, name, alias, version):
        monkeypatch.setattr(MlflowClient, "set_registered_model_alias", given)
        (audited.files / "MLmodel").write_text("another")
        given(client, name, alias, version)
        given(client, name, alias, other)

    monkeypatch.setattr(MlflowClient, "set_registered_model_alias", meddle)
    assert b3.gate(audited.uri, lenient(), promote="champion").outcome == "FAIL"
    assert client.get_registered_model(audited.name).aliases["champion"] == other


# --- beside the champion --------------------------------------------------------------------------


@pytest.fixture
def pair(audited, saved, complete):
    """Return two audited versions of one registered model."""
    return audited, register(saved, complete, audited.name).record()


def champion_reason(version, **changes):
    (reason,) = [r for r in version.judge(**changes).reasons if r.check == "champion"]
    return reason


def test_without_a_champion_anyone_may_become_it(audited):
    reason = champion_reason(audited, champion="better")
    assert (reason.outcome, reason.text) == ("PASS", "no version has the alias 'champion' yet")


def test_the_champion_need_not_beat_itself(audited):
    audited.client.set_registered_model_alias(audited.name, "champion", audited.version)
    assert champion_reason(audited, champion="better").text == "this version is the champion"


@pytest.mark.parametrize("written", ["champion", "Champion"])
def test_a_candidate_is_held_against_the_version_with_the_alias(pair, written):
    """However the alias is written: a name in another case is no way round it."""
    candidate, champion = pair
    champion.client.set_registered_model_alias(champion.name, written, champion.version)
    assert champion_reason(candidate, champion="not_worse").outcome == "PASS"
    assert champion_reason(candidate, champion="better").outcome == "INCONCLUSIVE"


def test_a_policy_names_the_champions_alias(pair):
    candidate, champion = pair
    champion.client.set_registered_model_alias(champion.name, "best", champion.version)
    assert "yet" in champion_reason(candidate, champion="better").text
    assert "noise" in champion_reason(candidate, champion="better", champion_alias="best").text


def test_a_champion_without_evidence_leaves_the_question_open(audited, saved, complete):
    champion = register(saved, complete, audited.name)
    champion.client.set_registered_model_alias(champion.name, "champion", champion.version)
    reason = champion_reason(audited, champion="not_worse")
    assert (reason.outcome, reason.waivable) == ("INCONCLUSIVE", True)
    assert "has no evidence to compare with: there is no audit of it" in reason.text
    assert audited.judge(champion="not_worse", inconclusive="allow").allowed


def test_a_candidate_without_evidence_fails_before_it_is_compared(pair):
    candidate, champion = pair
    champion.client.set_registered_model_alias(champion.name, "champion", champion.version)
    (candidate.files / "MLmodel").write_text("another")
    assert "'MLmodel' was changed" in candidate.refusal(champion="not_worse")


def test_reports_are_compared_as_they_were_signed_not_as_they_are_shown(pair):
    candidate, champion = pair
    champion.client.set_registered_model_alias(champion.name, "champion", champion.version)
    (champion.audit_files / "influence.csv").write_text("clusters,share,loco\n")
    reason = champion_reason(candidate, champion="not_worse")
    assert reason.outcome == "INCONCLUSIVE"
    assert "'influence.csv' was changed" in reason.text
    assert not reason.waivable


def test_a_champion_whose_evidence_is_broken_cannot_be_waived(fresh, saved, complete, signing):
    """Else one request on the champion's record would get a worse version promoted."""
    champion, worse = fresh.record(), register(saved, complete, fresh.name).record()
    rules = {"signed": True, "trusted_keys": (signing,), "inconclusive": "allow"}
    champion.client.set_registered_model_alias(champion.name, "champion", champion.version)
    assert worse.judge(**rules, champion="better").allowed, (
        "the two are equal, and it may be waived"
    )
    champion.client.set_tag(champion.audit_run_id, "b3.refit", "trainer")
    verdict = worse.judge(**rules, champion="better")
    assert (verdict.outcome, verdict.allowed) == ("INCONCLUSIVE", False)
    (reason,) = [reason for reason in verdict.reasons if reason.check == "champion"]
    assert "has evidence that is broken" in reason.text
    assert any("Then audit the champion again" in step for step in next_steps(verdict))
    champion.record()
    assert worse.judge(**rules, champion="better").allowed


def test_a_champion_is_not_compared_by_evidence_that_anybody_can_forge(
    fresh, saved, complete, signing, monkeypatch
):
    candidate, champion = fresh.record(), register(saved, complete, fresh.name)
    monkeypatch.delenv("MLFLOW_B3_SIGNING_KEY")
    champion.record(e0=0.99, e0_interval=(0.98, 0.99))
    champion.client.set_registered_model_alias(champion.name, "champion", champion.version)
    reason = champion_reason(candidate, champion="better", signed=True, trusted_keys=(signing,))
    assert (reason.outcome, reason.waivable) == ("INCONCLUSIVE", True)
    assert "its evidence is not signed" in reason.text
