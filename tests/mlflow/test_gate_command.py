"""`mlflow-b3 gate | verify | keys | policy`, as people and CI systems use them."""

import base64
import json
import os
import stat
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import mlflow
import pytest
from click.testing import CliRunner
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import PERMISSION_DENIED
from sklearn.naive_bayes import GaussianNB

import mlflow_b3 as b3
from mlflow_b3.cli import main
from mlflow_b3.demo import FEATURES
from mlflow_b3.evidence.document import SIGNING_KEY, TRUSTED_KEYS, make_keys, read_public_key
from mlflow_b3.evidence.policy import default_policy_text, load_policy
from mlflow_b3.tracking.metrics_and_files import POLICY
from mlflow_b3.tracking.recording import audit_and_record

pytestmark = pytest.mark.usefixtures("shop")

ROOT = Path(__file__).parents[2]
PINS = "pins: {clinic: {target: disease, cluster: patient_id, loss: zero_one}}\n"
POLICIES = {
    "passes.yaml": f"{PINS}limits: {{e0_high: null}}\n",
    "open.yaml": PINS,
    "fails.yaml": f"{PINS}limits: {{e0_high: 0.1}}\nevidence: {{p0_sources: [resolved_rows]}}\n",
    "waives.yaml": f"{PINS}inconclusive: allow\n",
    "elsewhere.yaml": "guard: {models: [hospital-*]}\n",
    "unsigned.yaml": f"{PINS}limits: {{e0_high: null}}\nevidence: {{signed: false}}\n",
}


@pytest.fixture(scope="module")
def shop(shared_store):
    """Register two versions of a model, of which the first is audited and signed for."""
    folder = Path.cwd()
    clinic = b3.make_clinic(patients=30, records=4, cluster_error=0.1)
    X, y = clinic.frame[list(FEATURES)], clinic.frame["disease"]
    for _ in range(2):
        with mlflow.start_run():
            info = mlflow.sklearn.log_model(
                GaussianNB().fit(X, y), name="model", pip_requirements=["scikit-learn"]
            )
        mlflow.register_model(info.model_uri, "clinic")
    clinic.frame.to_csv(folder / "visits.csv", index=False)
    for name, text in POLICIES.items():
        (folder / name).write_text(text, encoding="utf-8")
    private, public, encoded = make_keys(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(SIGNING_KEY, str(private))
        patch.setenv(TRUSTED_KEYS, str(public))
        patch.delenv(POLICY, raising=False)
        _, audit = audit_and_record(
            "models:/clinic/1",
            str(folder / "visits.csv"),
            target="disease",
            cluster="patient_id",
            cluster_error=0.1,
            budget=100,
            n_jobs=1,
            progress=False,
        )
        assert b3.attest("models:/clinic/1", audit=audit).attested
        yield SimpleNamespace(
            folder=folder,
            uri=shared_store,
            client=MlflowClient(),
            audit=audit,
            public=encoded,
            frame=clinic.frame,
        )


@pytest.fixture(autouse=True)
def _no_job_summary(monkeypatch):
    """Keep tests that run on GitHub from writing to the summary of their own job."""
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)


def run(*arguments):
    return CliRunner().invoke(main, list(arguments))


def said(result) -> str:
    """Return what was printed, as one line."""
    return " ".join(result.output.split())


def gate(*options):
    return run("gate", "models:/clinic/1", *options)


def aliases(shop) -> dict[str, str]:
    found = shop.client.get_registered_model("clinic").aliases
    return {alias: str(version) for alias, version in found.items()}


@contextmanager
def changed(path: Path, content: bytes):
    """Change a file for a while."""
    before = path.read_bytes()
    path.write_bytes(content)
    try:
        yield
    finally:
        path.write_bytes(before)


def model_file(shop) -> Path:
    source = shop.client.get_model_version("clinic", "1").source
    location = shop.client.get_logged_model(source.removeprefix("models:/")).artifact_location
    return Path(location.removeprefix("file://")) / "requirements.txt"


def audit_file(shop, name: str) -> Path:
    location = shop.client.get_run(shop.audit).info.artifact_uri
    return Path(location.removeprefix("file://")) / "b3" / name


# --- the verdict, its exit code and promotion -----------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "outcome", "exit_code"),
    [
        ("passes.yaml", "PASS", 0),
        ("waives.yaml", "INCONCLUSIVE", 0),
        ("elsewhere.yaml", "NOT_APPLICABLE", 0),
        ("fails.yaml", "FAIL", 1),
        ("open.yaml", "INCONCLUSIVE", 3),  # this small clinic has wide intervals
        ("", "FAIL", 1),  # the default policy does not say what must be audited
    ],
)
def test_the_exit_code_is_that_of_the_verdict(policy, outcome, exit_code):
    result = gate("--policy", policy)
    assert result.exit_code == exit_code, result.output
    assert result.stdout.startswith(f"{outcome}: models:/clinic/1 may ")
    assert ("What to do" in result.stdout) or exit_code == 0
    assert "Traceback" not in result.output


def test_a_version_without_an_audit_fails_and_is_told_to_be_audited():
    result = run("gate", "models:/clinic/2")
    assert result.exit_code == 1
    assert "FAIL evidence there is no audit of it" in said(result)
    assert "Audit it: mlflow-b3 audit --model-uri models:/clinic/2" in said(result)


def test_what_passes_is_promoted(shop):
    try:
        result = gate("--policy", "passes.yaml", "--promote", "champion")
        assert result.exit_code == 0
        assert result.stdout.startswith("PASS: models:/clinic/1 now has the alias 'champion'.")
        assert aliases(shop) == {"champion": "1"}
        by_alias = run("gate", "models:/clinic@champion", "--policy", "passes.yaml")
        assert by_alias.stdout.startswith("PASS: models:/clinic/1 may be promoted.")
    finally:
        shop.client.delete_registered_model_alias("clinic", "champion")


@pytest.mark.parametrize("policy", ["fails.yaml", ""])
def test_what_does_not_pass_is_not_promoted(shop, policy):
    result = gate("--policy", policy, "--promote", "champion")
    assert result.exit_code in (1, 3)
    assert "The alias 'champion' was not changed." in said(result)
    assert aliases(shop) == {}


def test_a_server_that_refuses_what_the_policy_here_allows_has_the_last_word(monkeypatch):
    def refuse(*_):
        raise MlflowException("mlflow-b3 gate: no", error_code=PERMISSION_DENIED)

    monkeypatch.setattr(MlflowClient, "set_registered_model_alias", refuse)
    result = gate("--policy", "passes.yaml", "--promote", "champion")
    assert result.exit_code == 1
    assert result.stdout.startswith("FAIL: models:/clinic/1 may not be promoted. The alias")
    assert "FAIL server the server refused the alias 'champion': mlflow-b3 gate: no" in said(result)
    assert "ask its administrator" in said(result)


def test_an_alias_that_mlflow_does_not_take_is_an_input_error(shop):
    result = gate("--policy", "passes.yaml", "--promote", "latest")
    assert result.exit_code == 2
    assert "latest" in result.stderr
    assert aliases(shop) == {}


def test_the_policy_may_come_from_the_environment(monkeypatch):
    monkeypatch.setenv(POLICY, "fails.yaml")
    assert gate().exit_code == 1
    assert b3.gate("models:/clinic/1").outcome == "FAIL"
    assert gate("--policy", "passes.yaml").exit_code == 0


def test_evidence_of_a_key_that_nobody_trusts_fails(monkeypatch):
    monkeypatch.delenv(TRUSTED_KEYS)
    result = gate("--policy", "passes.yaml")
    assert result.exit_code == 1
    assert "the evidence is not signed with a trusted key" in said(result)


def test_a_changed_model_file_fails(shop):
    with changed(model_file(shop), b"scikit-learn\nevil\n"):
        result = gate("--policy", "passes.yaml", "--promote", "champion")
    assert result.exit_code == 1
    assert "'requirements.txt' was changed" in said(result)
    assert "mlflow-b3 verify models:/clinic/1" in said(result)
    assert aliases(shop) == {}


# --- outputs --------------------------------------------------------------------------------------


def test_the_verdict_can_be_printed_for_machines(shop):
    verdict = b3.Verdict.from_json(gate("--policy", "fails.yaml", "--format", "json").stdout)
    assert (verdict.outcome, verdict.audit_run_id) == ("FAIL", shop.audit)
    assert gate("--policy", "open.yaml", "--format", "markdown").stdout.startswith(
        "# Leakage gate\n\n**INCONCLUSIVE.** "
    )
    root = ElementTree.fromstring(gate("--policy", "open.yaml", "--format", "junit").stdout)
    assert root.get("failures") == "1"


def test_the_verdict_is_written_to_files_by_their_endings(tmp_path):
    files = [tmp_path / f"gate{ending}" for ending in (".txt", ".json", ".md", ".xml")]
    outputs = (word for file in files for word in ("--output", str(file)))
    result = gate("--policy", "open.yaml", *outputs)
    assert result.exit_code == 3
    text, as_json, markdown, junit = (file.read_text(encoding="utf-8") for file in files)
    assert text.startswith("INCONCLUSIVE: ")
    assert json.loads(as_json)["outcome"] == "INCONCLUSIVE"
    assert markdown.startswith("# Leakage gate\n\n**INCONCLUSIVE.** ")
    assert ElementTree.fromstring(junit).tag == "testsuites"


def test_on_github_the_verdict_is_added_to_the_summary_of_the_job(tmp_path, monkeypatch):
    summary = tmp_path / "summary.md"
    summary.write_text("# Tests\n\n", encoding="utf-8")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    assert gate("--policy", "open.yaml").exit_code == 3
    assert gate("--policy", "passes.yaml").exit_code == 0
    text = summary.read_text(encoding="utf-8")
    assert text.startswith("# Tests\n\n# Leakage gate\n\n**INCONCLUSIVE.** ")
    assert "\n\n# Leakage gate\n\n**PASS.** " in text


def test_a_summary_that_cannot_be_written_does_not_change_the_verdict(tmp_path, monkeypatch):
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "nowhere" / "summary.md"))
    result = gate("--policy", "passes.yaml")
    assert result.exit_code == 0
    assert "GITHUB_STEP_SUMMARY cannot be written" in result.stderr


@pytest.mark.parametrize(
    ("output", "told"),
    [
        ("nowhere/gate.json", "the folder 'nowhere' does not exist"),
        (".", "must end in .txt, .json, .md, .xml"),
        ("gate.pdf", "must end in .txt, .json, .md, .xml"),
        ("folder.xml", "is a folder"),
        (f"{'n' * 300}.json", "File name too long"),
    ],
)
def test_an_output_that_cannot_be_written_fails_before_anything_is_promoted(shop, output, told):
    (shop.folder / "folder.xml").mkdir(exist_ok=True)
    given = ["--output", "good.json", "--output", output]
    result = gate("--policy", "passes.yaml", "--promote", "champion", *given)
    assert result.exit_code == 2
    assert told in result.stderr
    assert aliases(shop) == {}
    assert not (shop.folder / "good.json").exists()


# --- what cannot be judged ------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["gate", "verify"])
@pytest.mark.parametrize(
    ("model", "told"),
    [
        ("models:/clinic@nobody", "alias nobody not found"),
        ("models:/hospital/1", "name=hospital, version=1) not found"),
        ("models:/clinic/99", "version=99) not found"),
        ("models:/clinic", "is not a registered version"),
        ("models:/m-0123456789abcdef0123456789abcdef", "is not a registered version"),
        ("runs:/0123/model", "is not a registered version"),
        ("clinic", "is not a registered version"),
        ("", "a registered version"),
    ],
)
def test_what_is_no_registered_version_is_an_input_error(command, model, told):
    result = run(command, model)
    assert result.exit_code == 2
    assert told in result.stderr
    assert result.stdout == ""


def test_a_policy_with_several_errors_lists_all_of_them(shop):
    text = "limit: {}\nguard: {aliases: champion}\nevidence: {signd: true, max_age_days: -3}\n"
    (shop.folder / "wrong.yaml").write_text(text, encoding="utf-8")
    for command in (("gate", "models:/clinic/1", "--policy"), ("policy",)):
        result = run(*command, "wrong.yaml")
        assert result.exit_code == 2
        assert "4 problems" in result.stderr
        assert "limit: unknown key; a policy has version, guard, limits" in result.stderr
        assert "Did you mean 'limits'?" in result.stderr
        assert "evidence.signd: unknown key; evidence has signed" in result.stderr
        assert "Did you mean 'signed'?" in result.stderr
        assert "guard.aliases: 'champion' must be a list of patterns" in result.stderr
        assert "evidence.max_age_days: -3 must be a number of days above 0" in result.stderr


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--policy", "absent.yaml"), "policy='absent.yaml' cannot be read"),
        (("--format", "yaml"), "format='yaml' is not known; use one of 'text', 'json'"),
    ],
)
def test_options_that_cannot_be_used_are_input_errors(options, told):
    for command in ("gate", "verify"):
        result = run(command, "models:/clinic/1", *options)
        assert result.exit_code == 2
        assert told in result.stderr


def test_an_error_cannot_send_commands_to_the_terminal():
    result = run("gate", "models:/\x1b[2J\x9b31m/1")
    assert result.exit_code == 2
    assert all(character.isprintable() or character == "\n" for character in result.stderr)


# --- verify ---------------------------------------------------------------------------------------


def verify(*options):
    return run("verify", "models:/clinic/1", *options)


def outcomes(*options) -> dict[str, str]:
    found = b3.Verification.from_json(verify("--format", "json", *options).stdout)
    assert found.holds == ("FAIL" not in {check.outcome for check in found.checks})
    return {check.check: check.outcome for check in found.checks}


def failures(*options) -> dict[str, str]:
    found = b3.Verification.from_json(verify("--format", "json", *options).stdout)
    return {check.check: check.text for check in found.checks if check.outcome == "FAIL"}


def test_everything_that_was_checked_is_told():
    result = verify()
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("HOLDS: the evidence of models:/clinic/1 is unchanged")
    assert outcomes() == {
        **dict.fromkeys(["evidence", "model_files", "audit_files", "metrics", "settings"], "PASS"),
        **dict.fromkeys(["tags", "data", "newest", "signed"], "PASS"),
        "max_age_days": "PASS",
        **dict.fromkeys(["max_audits", "preregistered"], "NOT_APPLICABLE"),
    }


def test_the_chain_holds_whatever_the_numbers_are():
    assert verify("--policy", "fails.yaml").exit_code == 0


def test_a_table_can_be_held_against_the_audited_one(shop, tmp_path):
    result = verify("--data", "visits.csv")
    assert result.exit_code == 0
    assert "the given table is the audited one" in said(result)
    other = tmp_path / "other.csv"
    shop.frame.iloc[::-1].to_csv(other, index=False)
    result = verify("--data", str(other))
    assert result.exit_code == 1
    assert result.stdout.startswith("BROKEN: one check of the evidence of models:/clinic/1 failed")
    assert "FAIL data the given table has the digest" in said(result)


def test_a_table_that_is_not_there_is_an_input_error():
    result = verify("--data", "absent.csv")
    assert result.exit_code == 2
    assert "data='absent.csv' is not a file" in result.stderr


def test_a_version_without_an_audit_does_not_hold():
    result = run("verify", "models:/clinic/2")
    assert result.exit_code == 1
    assert "FAIL evidence there is no audit of it" in said(result)
    assert "Audit it: mlflow-b3 audit" in said(result)


def test_a_changed_model_file_is_named(shop):
    with changed(model_file(shop), b"scikit-learn\nevil\n"):
        assert failures() == {
            "model_files": "the model is not the one that was audited: 'requirements.txt' was changed"
        }


@pytest.mark.parametrize("name", ["report.html", "audit.json", "plots/scores.svg"])
def test_a_changed_file_of_the_audit_is_named(shop, name):
    with changed(audit_file(shop, name), b"all is well"):
        assert list(failures()) == ["audit_files"]
        assert f"{name!r} was changed" in failures()["audit_files"]


def test_signed_evidence_that_was_edited_is_broken(shop):
    path = envelope_of(shop)
    edited = json.loads(path.read_text(encoding="utf-8"))
    payload = json.loads(base64.b64decode(edited["payload"]))
    payload["predicate"]["results"]["b3/e0_high"] = 0.01
    edited["payload"] = base64.b64encode(json.dumps(payload).encode()).decode()
    with changed(path, json.dumps(edited).encode()):
        assert "signed evidence was changed" in failures()["evidence"]
        assert gate("--policy", "passes.yaml").exit_code == 1


def test_the_evidence_that_the_audit_left_is_checked_too(shop):
    path = audit_file(shop, "evidence.json")
    with changed(path, path.read_bytes().replace(b'"b3/e0_high": 0.', b'"b3/e0_high": 0.0')):
        assert "'b3.evidence'" in failures()["tags"]


def envelope_of(shop) -> Path:
    """Return the file of the signed evidence, which is in a run of its own."""
    run = shop.client.get_run(shop.audit)
    (attestation,) = shop.client.search_runs(
        [run.info.experiment_id], f"tags.`b3.attests` = '{shop.audit}'"
    )
    folder = Path(attestation.info.artifact_uri.removeprefix("file://")) / "b3"
    return folder / "evidence.dsse.json"


def test_a_changed_tag_of_the_version_is_named(shop):
    before = shop.client.get_model_version("clinic", "1").tags["b3.e0"]
    shop.client.set_model_version_tag("clinic", "1", "b3.e0", "0.001")
    try:
        assert "b3.e0" in failures()["tags"]
        assert gate("--policy", "passes.yaml").exit_code == 1
    finally:
        shop.client.set_model_version_tag("clinic", "1", "b3.e0", before)


def test_the_gate_writes_down_what_it_said(shop):
    gate("--policy", "fails.yaml")
    version = shop.client.get_model_version("clinic", "1")
    policy = load_policy("fails.yaml").hash[:12]
    assert version.tags["b3.verdict"].startswith(f"FAIL, policy {policy}, 20")
    assert shop.client.get_run(version.run_id).data.tags["b3.verdict"] == version.tags["b3.verdict"]


def test_unsigned_evidence_is_broken_only_where_the_policy_counts_signed_evidence_alone(
    monkeypatch,
):
    monkeypatch.delenv(TRUSTED_KEYS)
    assert list(failures()) == ["signed"]
    assert "not signed" in failures()["signed"]
    assert failures("--policy", "unsigned.yaml") == {}


def test_old_evidence_is_broken(shop):
    (shop.folder / "short.yaml").write_text("evidence: {max_age_days: 1.0e-6}\n", encoding="utf-8")
    assert list(failures("--policy", "short.yaml")) == ["max_age_days"]


def test_a_verification_prints_itself():
    assert str(b3.verify("models:/clinic/1")).startswith("HOLDS: ")


# --- metrics: kept to the end of the file, because MLflow keeps what was logged once ---------------


def test_a_metric_that_was_logged_again_is_named(shop):
    run_id = shop.client.get_model_version("clinic", "1").run_id
    honest = shop.client.get_run(run_id).data.metrics["b3/e0"]
    shop.client.log_metric(run_id, "b3/e0", 0.01)
    try:
        told = failures()["metrics"]
        assert (
            told == f"the model's run {run_id} shows results that are not those of the audit: b3/e0"
        )
    finally:
        shop.client.log_metric(run_id, "b3/e0", honest)
    assert failures() == {}


# --- keys and policies ----------------------------------------------------------------------------


def test_a_pair_of_keys_is_made_and_explained(tmp_path):
    result = run("keys", "--output", str(tmp_path / "new"), "--name", "ci")
    assert result.exit_code == 0
    private, public = tmp_path / "new" / "ci.pem", tmp_path / "new" / "ci.pub"
    assert "Keep it secret and out of the repository." in result.stdout
    assert f"export MLFLOW_B3_SIGNING_KEY={private}" in result.stdout
    assert "store the text of the file as a secret" in result.stdout
    assert public.read_text(encoding="ascii").startswith("-----BEGIN PUBLIC KEY-----")
    encoded = read_public_key(str(public))
    assert f"evidence: {{trusted_keys: [{encoded}]}}" in result.stdout
    assert f"export MLFLOW_B3_TRUSTED_KEYS={encoded}" in result.stdout
    assert "PRIVATE" not in result.output
    if os.name == "posix":
        assert stat.S_IMODE(private.stat().st_mode) == 0o600
    policy = tmp_path / "policy.yaml"
    policy.write_text(f"evidence: {{trusted_keys: [{encoded}]}}", encoding="utf-8")
    assert load_policy(policy).trusted_keys == (encoded,)


def test_keys_that_exist_are_not_replaced(tmp_path):
    run("keys", "--output", str(tmp_path))
    before = (tmp_path / "b3.pem").read_bytes()
    result = run("keys", "--output", str(tmp_path))
    assert result.exit_code == 2
    assert "choose another name or folder" in result.stderr
    assert (tmp_path / "b3.pem").read_bytes() == before


def test_the_default_policy_is_printed_as_a_file_that_can_be_used(tmp_path):
    result = run("policy")
    assert result.exit_code == 0
    assert result.stdout == default_policy_text()
    path = tmp_path / "policy.yaml"
    path.write_text(result.stdout, encoding="utf-8")
    assert load_policy(path) == load_policy()


def test_a_policy_that_can_be_used_is_told_in_words(tmp_path, monkeypatch):
    monkeypatch.delenv(TRUSTED_KEYS, raising=False)
    path = tmp_path / "policy.yaml"
    path.write_text("limits: {e0_high: 0.35}\n", encoding="utf-8")
    result = run("policy", str(path))
    assert result.exit_code == 0
    assert result.stdout.startswith(f"The policy {path} is valid.\n  - It guards ")
    assert "must be at most 0.350" in said(result)
    assert "no key is trusted yet, so nothing passes" in said(result)
    assert f"Its hash is {load_policy(path).hash}." in result.stdout


def test_init_prints_a_policy_that_pins_what_was_audited(tmp_path, monkeypatch):
    result = run("policy", "init", "models:/clinic/1")
    assert result.exit_code == 0, result.output
    path = tmp_path / "policy.yaml"
    path.write_text(result.stdout, encoding="utf-8")
    (pin,) = load_policy(path).pins
    assert (pin.models, pin.target, pin.cluster) == ("clinic", ("disease",), ("patient_id",))
    monkeypatch.chdir(tmp_path)
    told = run("policy", "policy.yaml")
    assert "An audit of the models 'clinic' must have the target 'disease'" in said(told)


def test_init_writes_a_file_that_is_not_there_yet(tmp_path):
    path = tmp_path / "policy.yaml"
    result = run("policy", "init", "models:/clinic/1", "--output", str(path))
    assert result.exit_code == 0, result.output
    assert f"mlflow-b3 policy {path}" in said(result)
    before = path.read_bytes()
    again = run("policy", "init", "models:/clinic/1", "--output", str(path))
    assert again.exit_code == 2
    assert "is not overwritten" in again.stderr
    assert path.read_bytes() == before


@pytest.mark.parametrize("model", ["models:/nobody/1", "models:/clinic/77", "runs:/1/model", "x"])
def test_init_needs_a_registered_version(model, tmp_path):
    path = tmp_path / "policy.yaml"
    result = run("policy", "init", model, "--output", str(path))
    assert result.exit_code == 2
    assert model in result.stderr
    assert not path.exists()


def test_init_says_which_file_cannot_be_written(tmp_path):
    result = run("policy", "init", "models:/clinic/1", "--output", str(tmp_path / "no" / "p.yaml"))
    assert result.exit_code == 2
    assert "cannot be written" in result.stderr


def test_the_help_of_policy_names_both_of_its_uses():
    text = said(run("policy", "--help"))
    assert "[FILE] | init MODEL" in text
    assert "show" not in text.split("Commands:")[1]


# --- as an MLflow project -------------------------------------------------------------------------


def test_mlflow_run_shows_the_verdict_and_fails_with_it(shop):
    """MLflow ends with 1 whatever the command's exit code was; the verdict is in the output."""
    words = ["-m", "mlflow", "run", str(ROOT), "-e", "gate", "--env-manager", "local"]
    given = ["-P", "model=models:/clinic/1", "-P", f"policy={shop.folder / 'fails.yaml'}"]
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    done = subprocess.run(
        [sys.executable, *words, *given],
        capture_output=True,
        text=True,
        env=environment,
        timeout=120,
    )
    assert done.returncode == 1
    assert "FAIL: models:/clinic/1 may not be promoted." in done.stdout
