"""Attacks on a gate whose database compares texts by a collation: each is tried, and refused."""

from collections.abc import Iterator
from uuid import uuid4

import mlflow
import pytest
from gated import Gated, gated
from mlflow import MlflowException
from real_services import mariadb

pytestmark = pytest.mark.servers


@pytest.fixture(scope="module")
def gate(tmp_path_factory, report, clinic) -> Iterator[Gated]:
    with (
        mariadb() as backend,
        gated(tmp_path_factory.mktemp("gate"), report, clinic, backend=backend) as running,
    ):
        yield running


def new_name(kind: str = "clinic") -> str:
    return f"{kind} {uuid4().hex[:8]}"


@pytest.fixture(scope="module")
def unaudited(gate) -> str:
    name = new_name()
    gate.register(name)
    return name


@pytest.fixture(scope="module")
def audited(gate) -> tuple[str, str]:
    """Return a model whose audit passes, and the run of the audit."""
    name = new_name()
    _, run = gate.audit(name)
    return name, run


def test_an_audited_version_is_promoted_kept_and_given_out(gate, audited):
    name, _ = audited
    gate.client.set_registered_model_alias(name, "champion", "1")
    assert gate.client.get_model_version_by_alias(name, "CHAMPION").version == "1"
    model_id = gate.client.get_model_version(name, "1").source.removeprefix("models:/")
    path = gate.client.get_logged_model(model_id).artifact_location.partition(":/")[2]
    upload = f"/api/2.0/mlflow-artifacts/artifacts/{path}/MLmodel"
    assert "its files must not change" in gate.send("PUT", upload, b"x").message
    gate.client.delete_registered_model_alias(name, "champion")


@pytest.mark.parametrize("alias", ["champıon", "champiøn", "Chámpion", "CHAMPION", "ｃhampion"])
def test_no_alias_that_the_database_calls_equal_promotes(gate, unaudited, alias):
    assert gate.promote(unaudited, alias=alias).status == 403
    assert gate.aliases(unaudited) == {}


def test_an_alias_of_other_letters_is_not_removed_either(gate, audited):
    asked = {"name": audited[0], "alias": "champıon"}
    assert "write it in ASCII" in gate.call("DELETE", "registered-models/alias", asked).message


def test_a_name_that_the_database_calls_equal_is_guarded(gate, unaudited):
    for name in (f"{unaudited} ", unaudited.replace("i", "ı"), unaudited.upper()):
        assert gate.promote(name).status in (403, 404), name
    source = gate.client.get_model_version(unaudited, "1").source
    other = new_name()
    mlflow.register_model(source, other.replace("i", "ı"))
    for name in (other, other.replace("i", "ı"), other.replace("i", "í")):
        assert gate.promote(name).status == 403, name
    outside = new_name("scratch")
    mlflow.register_model(source, outside)
    gate.client.set_registered_model_alias(outside, "champion", "1")
    rename = {"name": outside, "new_name": f"clınic {outside}"}
    assert gate.call("POST", "registered-models/rename", rename).status == 403


@pytest.mark.parametrize("key", ["b3.evıdence", "b3.audıt_run_id", "b3.e0 ", "ƀ3.e0", "b٣.e0"])
def test_no_tag_key_that_the_database_calls_equal_is_written(gate, audited, key):
    name, run = audited
    run_tag = {"run_id": run, "key": key, "value": "forged"}
    before = gate.client.get_run(run).data.tags
    version_tag = {"name": name, "version": "1", "key": key, "value": "forged"}
    assert gate.call("POST", "model-versions/set-tag", version_tag).status == 403
    assert gate.call("DELETE", "model-versions/delete-tag", version_tag).status == 403
    model_tag = {"name": name, "key": key, "value": "forged"}
    assert gate.call("POST", "registered-models/set-tag", model_tag).status == 403
    new = {"name": new_name(), "tags": [{"key": key, "value": "forged"}]}
    assert gate.call("POST", "registered-models/create", new).status == 403
    if key != "b3.e0 ":
        assert gate.call("POST", "runs/set-tag", run_tag).status == 403
        batch = {"run_id": run, "tags": [{"key": key, "value": "forged"}]}
        assert gate.call("POST", "runs/log-batch", batch).status == 403
        assert gate.call("POST", "runs/delete-tag", run_tag).status == 403
        assert gate.client.get_run(run).data.tags == before


@pytest.mark.parametrize("key", ["b3.subjeçt", "b3.sübject", "B3.SUBJECT", "b3.subject "])
def test_no_run_is_counted_as_an_audit_by_a_key_that_is_only_equal(gate, audited, key):
    """A search for audits would find such a run, and not the tag in it."""
    model_id = gate.client.get_model_version(audited[0], "1").source.removeprefix("models:/")
    experiment = gate.client.get_run(audited[1]).info.experiment_id
    new = {"experiment_id": experiment, "tags": [{"key": key, "value": model_id}]}
    assert gate.call("POST", "runs/create", new).status == 403
    other = gate.client.create_run(experiment).info.run_id
    asked = {"run_id": other, "key": key, "value": model_id}
    assert gate.call("POST", "runs/set-tag", asked).status == 403
    gate.client.set_registered_model_alias(audited[0], "champion", "1")
    gate.client.delete_registered_model_alias(audited[0], "champion")


def test_other_letters_are_fine_where_nothing_is_guarded(gate, audited):
    outside = new_name("scratch")
    source = gate.client.get_model_version(audited[0], "1").source
    mlflow.register_model(source, outside)
    gate.client.set_registered_model_alias(outside, "größte", "1")
    gate.client.set_model_version_tag(outside, "1", "データ", "x")
    run = gate.client.create_run(gate.client.get_run(audited[1]).info.experiment_id)
    gate.client.set_tag(run.info.run_id, "データ", "x")
    with pytest.raises(MlflowException, match="write them in ASCII"):
        gate.client.set_model_version_tag(audited[0], "1", "データ", "x")
