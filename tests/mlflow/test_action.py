"""`action.yml`: its shell steps run as GitHub runs them, with inputs in variables."""

import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import mlflow
import pytest
import yaml
from sklearn.naive_bayes import GaussianNB

import mlflow_b3 as b3
from mlflow_b3.demo import FEATURES
from mlflow_b3.evidence.document import SIGNING_KEY, TRUSTED_KEYS, make_keys

pytestmark = pytest.mark.newest

ROOT = Path(__file__).parents[2]
ACTION = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
STEPS = {step["name"]: step for step in ACTION["runs"]["steps"]}
EXPRESSION = re.compile(r"\$\{\{\s*inputs\.([\w-]+)\s*(!= '')?\s*\}\}")
#: What GitHub starts for `shell: bash`.
BASH = ["bash", "--noprofile", "--norc", "-eo", "pipefail"]


@pytest.fixture(scope="module")
def clinic(shared_store) -> SimpleNamespace:
    """Register a model, and write its table, a policy and keys to the current folder."""
    folder = Path.cwd()
    frame = b3.make_clinic(patients=30, records=4, cluster_error=0.1).frame
    with mlflow.start_run():
        model = GaussianNB().fit(frame[list(FEATURES)], frame["disease"])
        info = mlflow.sklearn.log_model(model, name="model", pip_requirements=["scikit-learn"])
    mlflow.register_model(info.model_uri, "clinic")
    frame.to_csv(folder / "records.csv", index=False)
    private, _, _ = make_keys(folder)
    (folder / "policy.yaml").write_text(
        "pins: {'*': {target: disease, cluster: patient_id, loss: zero_one}}\n"
        "limits: {e0_high: null}\nevidence: {trusted_keys: [b3.pub]}\n",
        encoding="utf-8",
    )
    return SimpleNamespace(uri=shared_store, key=private.read_text(encoding="utf-8"), folder=folder)


def run(step: str, folder: Path, uri: str = "", **inputs: str) -> SimpleNamespace:
    """Run a step of the action as GitHub would, and return what it left behind."""
    given = {name: each.get("default", "") for name, each in ACTION["inputs"].items()}
    given |= {name.replace("_", "-"): value for name, value in inputs.items()}

    def value(found: re.Match[str]) -> str:
        text = given[found[1]]
        return str(text != "").lower() if found[2] else text

    variables = {
        name: EXPRESSION.sub(value, text) for name, text in STEPS[step].get("env", {}).items()
    }
    script = folder / "step.sh"
    script.write_text(STEPS[step]["run"], encoding="utf-8")
    files = {name: folder / name for name in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY")}
    for file in files.values():
        file.touch()
    inherited = {k: v for k, v in os.environ.items() if k not in (SIGNING_KEY, TRUSTED_KEYS)}
    done = subprocess.run(
        [*BASH, script],
        capture_output=True,
        text=True,
        timeout=300,
        env=inherited
        | {
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "RUNNER_TEMP": str(folder),
            "MLFLOW_TRACKING_URI": uri,
        }
        | {name: str(file) for name, file in files.items()}
        | variables,
    )
    outputs = files["GITHUB_OUTPUT"].read_text(encoding="utf-8").splitlines()
    return SimpleNamespace(
        code=done.returncode,
        said=done.stdout + done.stderr,
        summary=files["GITHUB_STEP_SUMMARY"].read_text(encoding="utf-8"),
        outputs=dict(line.split("=", 1) for line in outputs),
    )


def test_audit_attest_and_gate_follow_each_other(clinic, tmp_path):
    """The two-job pattern: no step but the signing one sees the key."""
    for job in ("audit", "promote"):
        (tmp_path / job).mkdir()
    audit = run(
        "Audit",
        tmp_path / "audit",
        clinic.uri,
        model="models:/clinic/1",
        data="records.csv",
        target="disease",
        cluster="patient_id",
        cluster_error="0.1",
        options="--budget\n40\n--n-jobs\n1",
    )
    assert audit.code == 0, audit.said
    assert "## Evaluation" in audit.summary
    assert "This audit is not signed." in audit.summary
    assert Path(audit.outputs["report"]).read_text(encoding="utf-8").startswith("<!DOCTYPE html>")

    # meanwhile somebody else records an audit of the same model
    options = {"target": "disease", "cluster": "patient_id", "cluster_error": 0.1, "budget": 40}
    b3.record(b3.audit("models:/clinic/1", "records.csv", **options, n_jobs=1, progress=False))

    promote = tmp_path / "promote"
    early = run("Gate", promote, clinic.uri, model="models:/clinic/1", policy="policy.yaml")
    assert early.code == 1, early.said
    assert early.outputs["verdict"] == "FAIL"

    signed = run(
        "Attest",
        promote,
        clinic.uri,
        model="models:/clinic/1",
        data="records.csv",
        signing_key=clinic.key,
        audit_run_id=audit.outputs["audit-run-id"],
        audit_digest=audit.outputs["audit-digest"],
    )
    assert signed.code == 0, signed.said
    assert f"the audit of run {audit.outputs['audit-run-id']}" in " ".join(signed.said.split())
    assert "## Attestation" in signed.summary
    assert "ATTESTED" in signed.summary
    assert clinic.key not in signed.summary + signed.said

    gate = run(
        "Gate",
        promote,
        clinic.uri,
        model="models:/clinic/1",
        policy="policy.yaml",
        promote="champion",
    )
    assert gate.code == 0, gate.said
    assert gate.outputs["verdict"] == "PASS"
    assert "PASS" in gate.summary
    assert Path(gate.outputs["junit"]).exists()


def test_a_version_that_does_not_exist_fails_the_step(clinic, tmp_path):
    done = run("Attest", tmp_path, clinic.uri, model="models:/clinic/9", signing_key=clinic.key)
    assert done.code == 2, done.said


@pytest.mark.parametrize("command", ["audit", "gate"])
def test_the_key_is_refused_where_it_does_not_belong(tmp_path, command):
    done = run("Check the inputs", tmp_path, command=command, signing_key="secret")
    assert done.code == 2
    assert "signing-key is for attest only" in done.said
    assert run("Check the inputs", tmp_path, command=command).code == 0
    passed_on = {"audit_run_id": "a" * 32, "audit_digest": "d" * 64}
    attest = {"command": "attest", "signing_key": "secret", **passed_on}
    assert run("Check the inputs", tmp_path, **attest).code == 0


@pytest.mark.parametrize("missing", ["audit_run_id", "audit_digest"])
def test_nothing_is_signed_that_the_audit_step_did_not_hand_on(tmp_path, missing):
    """An output that the first job forgot to pass on is empty here."""
    passed_on = {"audit_run_id": "a" * 32, "audit_digest": "d" * 64} | {missing: ""}
    done = run("Check the inputs", tmp_path, command="attest", signing_key="secret", **passed_on)
    assert done.code == 2
    assert "attest needs audit-run-id and audit-digest" in done.said


def test_an_unknown_command_is_refused(tmp_path):
    assert run("Check the inputs", tmp_path, command="promote").code == 2


def test_texts_of_inputs_are_never_part_of_a_script():
    for step in STEPS.values():
        assert "${{" not in step.get("run", "")


def test_every_input_is_used_and_every_used_input_exists():
    used = set(re.findall(r"inputs\.([\w-]+)", (ROOT / "action.yml").read_text(encoding="utf-8")))
    assert used == ACTION["inputs"].keys()


def test_only_the_signing_step_has_the_key():
    holders = [
        name for name, step in STEPS.items() if "${{ inputs.signing-key }}" in str(step.get("env"))
    ]
    assert holders == ["Attest"]


def test_outputs_come_from_steps_that_exist():
    ids = {step.get("id") for step in STEPS.values()}
    for output in ACTION["outputs"].values():
        assert re.fullmatch(r"\$\{\{ steps\.(\w+)\.outputs\.[\w-]+ \}\}", output["value"])[1] in ids


def test_a_text_of_an_input_is_no_command(tmp_path):
    done = run("Gate", tmp_path, "sqlite:///x.db", model="$(touch owned); `touch owned`")
    assert done.code == 2
    assert not Path("owned").exists()
    assert not (tmp_path / "owned").exists()
