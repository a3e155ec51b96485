"""What audits say, digit by digit, as it was when the files of this folder were written."""

import json
import math
import os
import re
from pathlib import Path

import mlflow
import pytest
from click.testing import CliRunner
from example_reports import flattened
from scenarios import AUDITS, COLUMNS, CURVE, FEATURES, MISPLACED, SMALL, compared, cvc_alone
from sklearn.neighbors import KNeighborsClassifier

import mlflow_b3 as b3
from mlflow_b3.cli import main
from mlflow_b3.evidence.document import open_sealed

HERE = Path(__file__).parent
WRITE = "MLFLOW_B3_WRITE_GOLDEN" in os.environ
# sums of floats in another order differ in their last digits, and solvers by their own tolerance
CLOSE = {"rel_tol": 1e-6, "abs_tol": 1e-9}
#: Versions, clocks and processors change these: the digest is of numbers that were fitted.
CHANGING = {"measured_at", "version", "model_digest", "packages", "judged_at", "working_digest"}
#: Sentences, which may be mended.
WORDING = {"statement", "notes", "refit_notes"}
#: What reports have said only since the files were written; tests of their own pin it.
NEWER_FIELDS, NEWER_FINDINGS = {"slopes"}, {"B354"}
NEWER_NAMES = {"b3_curve/dose"}

pytestmark = pytest.mark.newest


def plain(value):
    """Return a result without what may change, wording, versions and times, or is newer."""
    if isinstance(value, dict):
        if set(value) >= {"code", "message"}:
            return value["code"]
        left_out = CHANGING | WORDING | NEWER_FIELDS
        return {key: plain(item) for key, item in value.items() if key not in left_out}
    if isinstance(value, list):
        return [item for item in map(plain, value) if not is_newer(item)]
    return value


def is_newer(item):
    return isinstance(item, str) and item in NEWER_FINDINGS | NEWER_NAMES


def differences(found, wanted, place=""):
    """Yield where two results differ."""
    if isinstance(wanted, dict) and isinstance(found, dict):
        for key in sorted(set(found) | set(wanted)):
            if key not in found or key not in wanted:
                yield f"{place}/{key}: only {'found' if key in found else 'wanted'}"
            else:
                yield from differences(found[key], wanted[key], f"{place}/{key}")
    elif isinstance(wanted, list) and isinstance(found, list) and len(found) == len(wanted):
        for number, (one, other) in enumerate(zip(found, wanted, strict=True)):
            yield from differences(one, other, f"{place}[{number}]")
    elif isinstance(wanted, float) and isinstance(found, int | float):
        if not math.isclose(found, wanted, **CLOSE):
            yield f"{place}: {found} instead of {wanted}"
    elif found != wanted:
        yield f"{place}: {found!r} instead of {wanted!r}"


def check(name, found):
    file = HERE / f"{name}.json"
    found = json.loads(json.dumps(found))
    if WRITE:
        file.write_text(json.dumps(found, sort_keys=True) + "\n", "utf-8")
    wanted = json.loads(file.read_text("utf-8"))
    assert list(differences(plain(found), plain(wanted))) == []


@pytest.mark.parametrize("name", AUDITS)
def test_an_audit_gives_the_numbers_it_gave(name):
    """The files have format 1, which was flat: they are compared as they were written."""
    check(f"audit_{name}", without_later_fields(flattened(AUDITS[name]())))


def test_corrected_cross_validation_gives_the_numbers_it_gave():
    check("cvc", cvc_alone().to_dict())


def test_a_comparison_gives_the_numbers_it_gave():
    check("comparison", compared().to_dict())


@pytest.mark.parametrize("name", AUDITS)
def test_a_report_that_was_written_can_still_be_read(name):
    written = json.loads((HERE / f"audit_{name}.json").read_text("utf-8"))
    report = b3.AuditReport.from_dict(written)
    assert without_later_fields(json.loads(json.dumps(flattened(report)))) == written
    assert b3.AuditReport.from_json(report.to_json()) == report


def without_later_fields(flat):
    """Leave out what format 1 wrote only where there was a value."""
    return {key: item for key, item in flat.items() if (key, item) != ("e0_guaranteed", None)}


def test_every_command_has_the_options_it_had():
    """The wording of the help may be mended; options and commands are what scripts rely on."""
    options = {}
    for path in command_paths(main):
        text = CliRunner().invoke(main, [*path, "--help"], terminal_width=200).output
        options[" ".join(path)] = sorted(set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]+", text)))
    check("commands", options)


def command_paths(command, path=()):
    yield path
    for name, inner in sorted(getattr(command, "commands", {}).items()):
        yield from command_paths(inner, (*path, name))


def test_an_audit_is_recorded_judged_and_named_as_it_was(mlflow_store):
    """An audit from the command line, and what an unsigned one comes to at the gate."""
    assert mlflow_store
    client = mlflow.MlflowClient()
    model = KNeighborsClassifier(3).fit(MISPLACED.frame[FEATURES], MISPLACED.frame["disease"])
    with mlflow.start_run() as trained:
        info = mlflow.sklearn.log_model(
            model,
            name="nearest",
            pip_requirements=["scikit-learn"],
            serialization_format="cloudpickle",
        )
    mlflow.register_model(info.model_uri, "clinic")
    MISPLACED.frame.to_csv("clinic.csv", index=False)
    options = {"model-uri": "models:/clinic/1", "data": "clinic.csv", "cluster-error": 0.1, **SMALL}
    options |= {"target": COLUMNS["target"], "cluster": COLUMNS["cluster"], **CURVE}
    given = [f"--{name}={value}" for name, value in options.items()]
    result = CliRunner().invoke(main, ["audit", *given])
    assert result.exit_code == 0, result.output
    run = client.get_run(trained.info.run_id)
    audit = client.get_run(run.data.tags["b3.audit_run_id"])
    names = {
        "run": names_on(client, run),
        "audit": names_on(client, audit),
        "model": sorted(client.get_logged_model(info.model_id).tags),
        "version": sorted(client.get_model_version("clinic", "1").tags),
    }
    check("names", names)
    verdict = b3.gate("models:/clinic/1").to_dict()
    reasons = [{key: reason[key] for key in ("check", "outcome")} for reason in verdict["reasons"]]
    check("verdict", {"outcome": verdict["outcome"], "reasons": reasons})


def names_on(client, run):
    return {
        "metrics": sorted(key for key in run.data.metrics if key.startswith("b3")),
        "params": sorted(key for key in run.data.params if key.startswith("b3")),
        "tags": sorted(key for key in run.data.tags if key.startswith("b3")),
        "files": sorted(files_below(client, run.info.run_id, "b3")),
    }


def files_below(client, run_id, folder):
    for item in client.list_artifacts(run_id, folder):
        if item.is_dir:
            yield from files_below(client, run_id, item.path)
        else:
            yield item.path


@pytest.mark.parametrize("form", ["format_1", "format_2"])
def test_evidence_that_was_signed_still_verifies(form):
    """Signed by a key that nobody has any more, in today's format and in that of version 0.1."""
    kept = json.loads((HERE / "evidence.json").read_text("utf-8"))
    opened = open_sealed(kept[form].encode(), (kept["public_key"],))
    assert opened.signed_by is not None
    assert opened.evidence.results == kept["results"]
