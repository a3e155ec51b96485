"""Settings that are committed before an audit: nobody can choose them by the result."""

import json
from dataclasses import dataclass, replace
from pathlib import Path

import mlflow
import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner
from evidence_examples import lenient
from example_reports import changed
from gate_examples import audit_files
from mlflow import MlflowClient
from signing import sign_audit
from sklearn.model_selection import GroupKFold
from sklearn.naive_bayes import GaussianNB

import mlflow_b3 as b3
from mlflow_b3 import InputError, ModelError, gate, preregister
from mlflow_b3.cli import main
from mlflow_b3.data.table import ModelInputs, digest_table, prepare, read_table
from mlflow_b3.demo import FEATURES
from mlflow_b3.evidence.document import (
    encode_public_key,
    key_id,
    make_keys,
    open_sealed,
    signing_key,
)
from mlflow_b3.tracking.audits import read_audit
from mlflow_b3.tracking.preregistration import commit_arguments, confirm_preregistration
from mlflow_b3.tracking.recording import audit_and_record

pytestmark = pytest.mark.newest

COLUMNS = {"target": "disease", "cluster": "patient_id"}
SETTINGS = {**COLUMNS, "cluster_error": 0.1, "budget": 100}


# --- which settings are the same ------------------------------------------------------------------


def committed(**arguments):
    return commit_arguments({**COLUMNS, **arguments})


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({}, {"seed": 0}),
        ({}, {"scheme": "subset", "levels": "optimal", "test": "paired", "refit": "auto"}),
        ({}, {"method": "auto", "method_options": {}, "refit_options": {}}),
        ({}, {"p0": "grid"}),
        ({}, {"n_jobs": 7, "backend": "threading", "progress": True}),
        ({"budget": 100}, {"budget": "100"}),
        ({"budget": "2m"}, {"budget": "120s"}),
        ({"p0": (0.1, 0.2)}, {"p0": [0.1, 0.2]}),
        ({"p0": 0}, {"p0": 0.0}),
        ({"p0": 0.25}, {"p0": np.float32(0.25)}),
        ({"seed": 3}, {"seed": np.int64(3)}),
        ({"fragments": "1,1,3"}, {"fragments": [1, 1, 3]}),
        ({"folds": [[0, 1], [2, 3]]}, {"folds": np.array([[0, 1], [2, 3]])}),
        ({"method": "basis"}, {"method": b3.Method(name="basis")}),
        ({}, {"method": "power"}),  # what `auto` stands for
        ({"linkage_quality": {"recall": 1, "precision": 0.5}},) * 2,
    ],
    ids=str,
)
def test_settings_that_make_the_same_audit_are_equal(one, other):
    assert committed(**one) == committed(**other)
    assert json.loads(json.dumps(committed(**one))) == committed(**one)


@pytest.mark.parametrize(
    "changes",
    [
        {"seed": 1},
        {"p0": 0.1},
        {"p0": "mixture"},
        {"p0": (0.1, 0.2)},
        {"p0_validation": 0},
        {"cluster_error": 0.1},
        {"split_rate": 0.1},
        {"fragments": "halves"},
        {"folds": 4},
        {"folds": "balanced"},
        {"folds": [0, 1, 2]},
        {"repeats": 2},
        {"method": "mono"},
        {"method": "dose"},
        {"method": "basis", "method_options": {"order": 4}},
        {"scheme": "replace"},
        {"levels": "uniform"},
        {"test": "welch"},
        {"threshold": 0.3},
        {"distribution": True},
        {"budget": 100},
        {"loss": "log"},
        {"target": "age"},
        {"refit": "clone"},
        {"refit_options": {"search_again": True}},
        {"sample_weight": "w"},
        {"row_id": "id"},
        {"match_probability": "column"},
        {"linkage_quality": {"recall": 0.9}},
    ],
    ids=str,
)
def test_every_setting_that_changes_numbers_counts(changes):
    assert committed(**changes) != committed()


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("folds", "folds.csv"),
        ("resolved_rows", "sheet.csv"),
        ("partition_samples", "samples"),
        ("match_probability", "pairs.parquet"),
    ],
)
def test_a_file_counts_by_its_content_not_by_its_name(tmp_path, name, file):
    first, again, other = (tmp_path / folder / file for folder in ("a", "b", "c"))
    for path, text in ((first, "same"), (again, "same"), (other, "other")):
        path.parent.mkdir()
        path.write_text(text)
    assert committed(**{name: str(first)}) == committed(**{name: again})
    assert committed(**{name: str(first)}) != committed(**{name: str(other)})
    with pytest.raises(InputError, match=f"{name}: .*missing"):
        committed(**{name: str(tmp_path / f"missing-{file}")})


def test_a_table_counts_by_its_content():
    pairs = pd.DataFrame({"a": [1, 2], "b": [3, 4], "probability": [0.5, 0.9]})
    same, other = pairs.copy(), pairs.assign(probability=[0.5, 0.8])
    assert committed(match_probability=pairs) == committed(match_probability=same)
    assert committed(match_probability=pairs) != committed(match_probability=other)
    assert committed(match_probability=pairs) != committed(match_probability=pairs.set_index("a"))


def test_a_trainer_counts_by_its_source(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    source = tmp_path / "b3_committed_trainer.py"
    source.write_text("def train(X, y, ids): ...\n")
    first = committed(trainer="b3_committed_trainer:train")
    assert first["trainer"]["function"] == "b3_committed_trainer:train"
    source.write_text("def train(X, y, ids): return None\n")
    assert committed(trainer="b3_committed_trainer:train") != first


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("loss", lambda y, p: abs(y - p)),
        ("trainer", print),
        ("folds", GroupKFold(3)),
        ("folds", iter([])),
        ("p0", float("nan")),
        ("threshold", float("inf")),
    ],
)
def test_what_has_no_content_cannot_be_committed(name, value):
    with pytest.raises(InputError, match=f"cannot be committed: {name}: .*compared later"):
        committed(**{name: value})


def test_arguments_that_an_audit_does_not_have_are_refused():
    with pytest.raises(InputError, match=r"clusters: an audit has no such argument\. Did you mean"):
        committed(clusters="patient_id")


# --- commitments in MLflow ------------------------------------------------------------------------


@dataclass(frozen=True)
class Version:
    """A registered version, and how to commit and audit it."""

    uri: str
    run_id: str
    model_id: str
    data: Path

    def commit(self, **changes) -> str:
        return preregister(self.uri, self.data, **{**SETTINGS, **changes})

    def audit(self, data=None, **changes) -> str:
        arguments = {**SETTINGS, "n_jobs": 1, "progress": False, **changes}
        return audit_and_record(self.uri, self.data if data is None else data, **arguments)[1]

    def evidence(self, audit_run_id: str):
        return self.document(audit_run_id).preregistration

    def document(self, audit_run_id: str):
        return open_sealed((audit_files(audit_run_id) / "evidence.json").read_bytes(), ()).evidence

    def attest(self, audit_run_id: str):
        """Sign an audit whose numbers are made up, with what was committed before it."""
        client, trusted = MlflowClient(), (encode_public_key(signing_key()),)
        found = confirm_preregistration(
            client,
            client.get_run(audit_run_id),
            self.model_id,
            self.evidence(audit_run_id),
            trusted,
            report=(report := read_audit(audit_run_id)),
            table=prepare(
                read_table(self.data),
                **COLUMNS,
                task=report.subject.task,
                inputs=ModelInputs(columns=report.subject.features, anything=True),
            ),
        )
        sign_audit(audit_run_id, preregistration=found)
        return found

    def commitments(self):
        runs = MlflowClient().search_runs(
            [MlflowClient().get_run(self.run_id).info.experiment_id],
            f"tags.`b3.subject` = '{self.model_id}' and tags.`b3.commitment` LIKE '%'",
            order_by=["attributes.start_time"],
        )
        return list(runs)

    def reason(self, **changes):
        verdict = gate(self.uri, lenient(preregistered=True, **changes))
        (reason,) = [each for each in verdict.reasons if each.check == "preregistered"]
        return reason


@pytest.fixture
def version(shared_store, clinic, tmp_path) -> Version:
    assert shared_store
    X, y = clinic.frame[list(FEATURES)], clinic.frame["disease"]
    with mlflow.start_run() as run:
        info = mlflow.sklearn.log_model(
            GaussianNB().fit(X, y), name="model", pip_requirements=["scikit-learn"]
        )
    registered = mlflow.register_model(info.model_uri, "committed")
    path = tmp_path / "records.csv"
    clinic.frame.to_csv(path, index=False)
    uri = f"models:/committed/{registered.version}"
    return Version(uri=uri, run_id=run.info.run_id, model_id=info.model_id, data=path)


@pytest.fixture
def quick(monkeypatch, complete):
    """Let an audit find at once what the real one has found: what is committed does not depend on it."""

    def audit(audited, data, **_):
        settings = {
            "uri": audited.uri,
            "run_id": audited.run_id,
            "model_id": audited.model_id,
            "model_digest": audited.model_digest,
            "data_digest": digest_table(read_table(data)),
        }
        return changed(complete, settings=settings)

    monkeypatch.setattr("mlflow_b3.tracking.recording.audit", audit)


def test_a_commitment_is_a_run_below_that_of_the_model(version):
    committed = version.commit()
    (run,) = version.commitments()
    client = MlflowClient()
    parent = client.get_run(version.run_id)
    assert run.info.run_name == f"{parent.info.run_name} (b3 commitment)"
    assert run.info.status == "FINISHED"
    assert run.data.tags["mlflow.parentRunId"] == version.run_id
    assert run.data.tags["b3.commitment"] == committed
    document = json.loads((audit_files(run.info.run_id) / "commitment.json").read_text())
    assert document["signature"] is None
    content = document["commitment"]
    assert (content["subject"], content["settings"]["seed"]) == (version.model_id, 0)
    shown = f"{committed} {content['committed_at']}"
    assert parent.data.tags["b3.preregistered"] == shown
    assert client.get_logged_model(version.model_id).tags["b3.preregistered"] == shown


def test_the_same_settings_have_the_same_hash_by_whatever_name(version, clinic):
    by_version = version.commit()
    assert by_version == preregister(f"models:/{version.model_id}", version.data, **SETTINGS)
    assert by_version == preregister(f"runs:/{version.run_id}/model", str(version.data), **SETTINGS)
    assert by_version == preregister(version.uri, pd.read_csv(version.data), **SETTINGS)
    labels = clinic.frame["patient_id"].to_numpy()
    assert by_version != version.commit(cluster=labels)


@pytest.mark.usefixtures("quick")
def test_an_audit_with_the_committed_settings_says_so(version):
    committed = version.commit()
    audit = version.audit(n_jobs=2, seed=0)
    (run,) = version.commitments()
    found = version.evidence(audit)
    assert found["committed_at"] < version.document(audit).issued_at
    del found["committed_at"]
    assert found == {
        "hash": committed,
        "commitment_run_id": run.info.run_id,
        "matched": True,
        "signed_by": None,
        "commitments": 1,
        "same_table": True,
    }
    reason = version.reason()
    assert reason.outcome == "PASS"
    assert reason.text.startswith("its settings were committed beforehand, at 20")


@pytest.mark.usefixtures("quick")
def test_without_a_commitment_the_evidence_has_none(version):
    assert version.evidence(version.audit()) is None
    assert version.reason().text == "its settings were not committed before it ran"
    assert gate(version.uri, lenient(preregistered=True)).outcome == "FAIL"
    assert gate(version.uri, lenient()).outcome == "PASS"


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    "changes",
    [{"seed": 1}, {"cluster_error": 0.05}, {"cluster_error": None, "p0": 0.02}, {"loss": "log"}],
    ids=str,
)
def test_an_audit_with_other_settings_does_not_match(version, changes):
    version.commit()
    found = version.evidence(version.audit(**changes))
    assert found["matched"] is False
    assert found["commitments"] == 1
    reason = version.reason()
    assert reason.outcome == "FAIL"
    told = f"its settings are not those that were committed before it ran, in run {found['commitment_run_id']}"
    assert reason.text == told


@pytest.mark.usefixtures("quick")
def test_an_audit_of_other_rows_does_not_match(version, clinic):
    version.commit()
    other = clinic.frame.assign(age=clinic.frame["age"] + 1)
    assert version.evidence(version.audit(other))["matched"] is False
    assert version.evidence(version.audit(pd.read_csv(version.data)))["matched"] is True


def test_a_table_that_is_exchanged_after_it_was_looked_at_does_not_match(
    version, complete, monkeypatch, quick
):
    assert quick is None
    version.commit()
    from mlflow_b3.tracking import recording

    given = recording.audit

    def exchange(audited, data, **arguments):
        frame = pd.read_csv(data)
        frame.assign(age=0.0).to_csv(data, index=False)
        return given(audited, data, **arguments)

    monkeypatch.setattr(recording, "audit", exchange)
    assert complete
    assert version.evidence(version.audit())["matched"] is False


@pytest.mark.usefixtures("quick")
def test_a_model_that_is_changed_after_the_commitment_does_not_match(version):
    version.commit()
    location = MlflowClient().get_logged_model(version.model_id).artifact_location
    (Path(location.removeprefix("file://")) / "NOTES").write_text("another")
    assert version.evidence(version.audit())["matched"] is False


@pytest.mark.usefixtures("quick")
def test_a_commitment_of_another_model_is_not_of_this_one(version, saved, complete):
    from gate_examples import register

    other = register(saved, complete)
    preregister(other.uri, version.data, **SETTINGS)
    assert version.evidence(version.audit()) is None


def test_a_commitment_that_was_made_while_the_audit_ran_does_not_count(version, monkeypatch, quick):
    assert quick is None
    from mlflow_b3.tracking import recording

    find = recording.find_preregistration

    def late(*arguments):
        version.commit()
        return find(*arguments)

    monkeypatch.setattr(recording, "find_preregistration", late)
    found = version.evidence(version.audit())
    assert (found["matched"], found["commitments"]) == (False, 1)
    assert found["committed_at"] is None


@pytest.mark.usefixtures("quick")
def test_a_commitment_after_the_audit_changes_nothing(version):
    audit = version.audit()
    version.commit()
    assert version.evidence(audit) is None
    assert version.reason().outcome == "FAIL"


@pytest.mark.usefixtures("quick")
def test_to_commit_many_settings_and_use_one_is_told(version):
    for seed in range(3):
        version.commit(seed=seed)
    version.commit(seed=0)
    assert version.evidence(version.audit(seed=2))["commitments"] == 3
    reason = version.reason()
    assert reason.outcome == "PASS"
    assert reason.text.endswith("; 3 different settings were committed for this model")
    MlflowClient().delete_run(version.commitments()[1].info.run_id)
    assert version.evidence(version.audit(seed=2))["commitments"] == 3, "deleted ones count"


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("how", ["edited", "backdated", "removed", "deleted", "tag"])
def test_a_commitment_that_was_tampered_with_does_not_count(version, how):
    version.commit()
    (run,) = version.commitments()
    document = audit_files(run.info.run_id) / "commitment.json"
    text = document.read_text()
    if how == "edited":
        document.write_text(text.replace('"seed": 0', '"seed": 1'))
    if how == "backdated":
        document.write_text(text.replace('"committed_at": "2', '"committed_at": "9'))
    if how == "removed":
        document.unlink()
    if how == "deleted":
        MlflowClient().delete_run(run.info.run_id)
    if how == "tag":
        MlflowClient().set_tag(run.info.run_id, "b3.commitment", "0" * 64)
    assert version.evidence(version.audit())["matched"] is False


def test_what_is_no_model_in_mlflow_cannot_be_committed(shared_store, clinic):
    assert shared_store
    with pytest.raises(InputError, match="log it to MLflow"):
        preregister(GaussianNB(), clinic.frame, **SETTINGS)
    with pytest.raises(ModelError, match="not found"):
        preregister("models:/nobody/1", clinic.frame, **SETTINGS)


def test_a_loss_of_ones_own_is_refused_before_anything_is_written(version):
    with pytest.raises(InputError, match="loss"):
        version.commit(loss=lambda y, p: abs(y - p))
    assert version.commitments() == []


# --- signed ---------------------------------------------------------------------------------------


@pytest.mark.usefixtures("quick")
def test_a_signed_commitment_counts_where_signatures_are_asked_for(version, signing):
    version.commit()
    assert version.attest(version.audit())["signed_by"] == key_id(signing)
    assert version.reason(signed=True, trusted_keys=(signing,)).outcome == "PASS"


@pytest.mark.usefixtures("quick")
def test_an_unsigned_one_does_not(version, keys, monkeypatch):
    version.commit()
    monkeypatch.setenv("MLFLOW_B3_SIGNING_KEY", str(keys.private))
    found = version.attest(version.audit())
    assert (found["matched"], found["signed_by"]) == (True, None)
    reason = version.reason(signed=True, trusted_keys=(keys.public,))
    assert reason.outcome == "FAIL"
    assert "but not signed with a trusted key" in reason.text


@pytest.mark.usefixtures("quick")
def test_of_two_commitments_the_signed_one_counts(version, keys, monkeypatch):
    version.commit()
    monkeypatch.setenv("MLFLOW_B3_SIGNING_KEY", str(keys.private))
    version.commit()
    assert version.attest(version.audit())["signed_by"] == key_id(keys.public)


@pytest.mark.usefixtures("quick")
def test_a_commitment_signed_with_a_foreign_key_does_not_count(
    version, keys, monkeypatch, tmp_path
):
    stranger, _, _ = make_keys(tmp_path / "stranger")
    monkeypatch.setenv("MLFLOW_B3_SIGNING_KEY", str(stranger))
    version.commit()
    monkeypatch.setenv("MLFLOW_B3_SIGNING_KEY", str(keys.private))
    assert version.attest(version.audit())["matched"] is False


@pytest.mark.parametrize(
    ("changes", "contradicted"),
    [
        ({}, []),
        ({"settings": {"seed": 7}}, ["seed", "folds"]),
        ({"settings": {"data_digest": "d" * 36}}, ["the table"]),
        ({"settings": {"folds_digest": "d" * 16}}, ["folds"]),
        ({"settings": {"loss": "log"}}, ["loss"]),
        ({"claim": {"range": (0.0, 0.01)}}, ["what was known about the ids"]),
    ],
    ids=str,
)
def test_a_report_that_contradicts_the_commitment_does_not_match_it(
    version, signing, quick, monkeypatch, changes, contradicted
):
    """The hash in unsigned evidence is a claim: anybody can write that of another audit."""
    assert signing
    assert quick is None
    from mlflow_b3.tracking import recording

    found = recording.audit

    def claims(*given, **options):
        report = changed(found(*given, **options), settings=changes.get("settings", {}))
        return replace(report, claim=replace(report.claim, **changes.get("claim", {})))

    monkeypatch.setattr(recording, "audit", claims)
    monkeypatch.setattr(recording.Preregistration, "as_evidence", as_if_of_the_table)
    version.commit()
    confirmed = version.attest(version.audit())
    assert confirmed["contradicted"] == contradicted
    assert confirmed["matched"] is (contradicted == [])
    assert confirmed["not_compared"] == ["budget"]


def test_an_audit_that_was_recorded_afterwards_never_counts_as_committed(
    version, signing, quick, monkeypatch
):
    """Nothing shows that the audit began after the commitment."""
    assert quick is None
    monkeypatch.setattr("mlflow_b3.tracking.recording.find_preregistration", lambda *_: None)
    version.commit()
    found = version.attest(version.audit())
    assert (found["hash"], found["matched"]) == (None, False)
    reason = version.reason(signed=True, trusted_keys=(signing,))
    assert reason.outcome == "FAIL"
    assert reason.text.startswith("its record does not say that its settings were committed")


def as_if_of_the_table(self, report):
    """Claim that the committed table was audited, whatever was."""
    assert report
    return {"hash": self.hash, "matched": True, "same_table": True, "commitments": 1}


# --- tries ----------------------------------------------------------------------------------------


def tried(version, **changes):
    verdict = gate(version.uri, lenient(**changes))
    (reason,) = [each for each in verdict.reasons if each.check == "max_audits"]
    return reason


def test_audits_that_failed_were_killed_or_deleted_were_tried_too(version, monkeypatch, quick):
    assert quick is None
    from mlflow_b3.tracking import recording

    works = recording.audit
    for error in (ValueError("out of memory"), KeyboardInterrupt()):

        def breaks(model, *_, error=error, **__):
            model.before_first_refit()
            raise error

        monkeypatch.setattr(recording, "audit", breaks)
        with pytest.raises(type(error)):
            version.audit()
    monkeypatch.setattr(recording, "audit", works)
    MlflowClient().delete_run(version.audit())
    version.commit()
    version.audit()
    assert "4 audits of this model" in tried(version).text
    assert tried(version, max_audits=3).outcome == "FAIL"
    assert tried(version, max_audits=4).outcome == "PASS"


def test_a_failed_audit_is_not_shown_as_one(version, monkeypatch, quick):
    assert quick is None
    from mlflow_b3.tracking import recording
    from mlflow_b3.tracking.audits import current_audits, find_audit

    good = version.audit()

    def breaks(model, *_, **__):
        model.before_first_refit()
        raise ValueError("out of memory")

    monkeypatch.setattr(recording, "audit", breaks)
    with pytest.raises(ValueError, match="out of memory"):
        version.audit()
    client = MlflowClient()
    assert find_audit(client, version.uri) == good
    experiment = client.get_run(version.run_id).info.experiment_id
    mine = [
        run
        for run in current_audits(client, experiment)
        if client.get_run(run).data.tags["b3.subject"] == version.model_id
    ]
    assert mine == [good]
    assert gate(version.uri, lenient()).outcome == "PASS"


# --- the command line -----------------------------------------------------------------------------


def options(version, *more):
    return [
        *("--model-uri", version.uri, "--data", str(version.data), "--target", "disease"),
        *("--cluster", "patient_id", "--cluster-error", "0.1", "--budget", "100", *more),
    ]


def test_the_command_commits_what_the_command_audits(version):
    """The whole way, with real refits."""
    done = CliRunner().invoke(main, ["preregister", *options(version)])
    assert done.exit_code == 0, done.output
    assert f"Committed the settings of an audit of {version.uri}: {version.commit()}" in done.output
    assert "Not signed" in done.output
    done = CliRunner().invoke(main, ["audit", *options(version, "--n-jobs", "1")])
    assert done.exit_code == 0, done.output
    assert version.reason().outcome == "PASS"


@pytest.mark.parametrize("missing", ["--data", "--cluster"])
def test_the_command_needs_what_an_audit_needs(version, missing):
    given = options(version)
    del given[given.index(missing) : given.index(missing) + 2]
    done = CliRunner().invoke(main, ["preregister", *given])
    assert done.exit_code == 2
    assert f"{missing.strip('-')} missing" in done.output


def test_the_command_has_the_options_of_the_audit():
    names = {
        command: {parameter.name for parameter in main.commands[command].params}
        for command in ("audit", "preregister")
    }
    assert names["audit"] - names["preregister"] == {
        *("output", "handover", "full", "record", "env_manager")
    }
    assert names["preregister"] <= names["audit"]
