"""The command line: `mlflow-b3 audit | test | demo`."""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import mlflow
import pytest
from click.testing import CliRunner, Result
from example_reports import changed
from mlflow import MlflowClient
from sklearn.naive_bayes import GaussianNB

import mlflow_b3
from mlflow_b3 import AuditReport
from mlflow_b3.cli import has_colours, main
from mlflow_b3.demo import FEATURES, Demo
from mlflow_b3.reporting.pages import to_markdown
from mlflow_b3.tracking.metrics_and_files import worth
from mlflow_b3.tracking.shown_on_models import where_to_look

SMALL = ("--budget", "100", "--n-jobs", "1")


@pytest.fixture(scope="module")
def shop(
    empty_database: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SimpleNamespace]:
    """Set up what a user has before an audit: a store with a logged model, and its table."""
    folder = tmp_path_factory.mktemp("cli")
    shutil.copy(empty_database, folder / "mlflow.db")
    before = mlflow.get_tracking_uri()
    clinic = mlflow_b3.make_clinic(patients=30, records=4, cluster_error=0.1)
    clinic.frame.to_csv(folder / "visits.csv", index=False)
    clinic.frame.to_parquet(folder / "visits.parquet", index=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{folder}/mlflow.db")
        mlflow.set_tracking_uri(f"sqlite:///{folder}/mlflow.db")
        experiment = mlflow.create_experiment("cli", (folder / "files").as_uri())
        patch.setenv("MLFLOW_EXPERIMENT_ID", experiment)
        patch.setattr("mlflow.tracking.fluent._active_experiment_id", experiment)
        with mlflow.start_run():
            info = mlflow.sklearn.log_model(
                GaussianNB().fit(clinic.frame[list(FEATURES)], clinic.frame["disease"]),
                name="model",
                pip_requirements=["scikit-learn"],
            )
        yield SimpleNamespace(
            folder=folder,
            experiment=experiment,
            client=MlflowClient(),
            uri=info.model_uri,
            run_id=info.run_id,
            model_id=info.model_id,
        )
        mlflow.set_tracking_uri(before)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments))


def subject(shop: SimpleNamespace, **changes: str) -> list[str]:
    """Return the four options that say what is audited."""
    options = {
        "model-uri": shop.uri,
        "data": "visits.csv",
        "target": "disease",
        "cluster": "patient_id",
    } | {name.replace("_", "-"): value for name, value in changes.items()}
    return [part for name, value in options.items() for part in (f"--{name}", value)]


def store(shop: SimpleNamespace) -> tuple[list[str], dict[str, float], dict[str, str], list[str]]:
    """Return everything an audit could have changed."""
    runs = shop.client.search_runs([shop.experiment])
    data = shop.client.get_run(shop.run_id).data
    model = shop.client.get_logged_model(shop.model_id)
    return (
        sorted(found.info.run_id for found in runs),
        dict(data.metrics),
        {**data.tags, **model.tags},
        [file.path for file in shop.client.list_artifacts(shop.run_id)],
    )


@pytest.fixture(scope="module")
def unrecorded(shop: SimpleNamespace) -> SimpleNamespace:
    """Audit from Parquet without a trace, before anything else is written to the store."""
    before = store(shop)
    given = subject(shop, data="visits.parquet")
    shares = ("--cluster-error", "0.05,0.15", "--output", "report.json")
    result = run("audit", *given, *shares, *SMALL, "--no-record")
    return SimpleNamespace(result=result, before=before, after=store(shop))


@pytest.fixture(scope="module")
def recorded(shop: SimpleNamespace, unrecorded: SimpleNamespace) -> SimpleNamespace:
    """Audit from CSV, written to MLflow."""
    del unrecorded  # comes first
    result = run("audit", *subject(shop), "--cluster-error", "0.1", *SMALL)
    return SimpleNamespace(result=result, run=shop.client.get_run(shop.run_id))


@pytest.fixture(scope="module")
def report(shop: SimpleNamespace, unrecorded: SimpleNamespace) -> AuditReport:
    assert unrecorded.result.exit_code == 0, unrecorded.result.output
    text = (shop.folder / "report.json").read_text(encoding="utf-8")
    return AuditReport.from_dict(json.loads(text))


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch, report: AuditReport) -> list[dict[str, Any]]:
    """Put a recorder in the place of the audit: what does the command line ask for?"""
    calls: list[dict[str, Any]] = []

    def audit(model: Any, data: Any, **arguments: Any) -> AuditReport:
        calls.append({"model": model, "data": data, **arguments})
        return report

    monkeypatch.setattr("mlflow_b3.auditing.audit.audit", audit)
    return calls


@pytest.fixture
def demonstrated(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Put a recorder in the place of the demonstration."""
    calls: list[dict[str, Any]] = []
    monkeypatch.setattr("mlflow_b3.cli._run_demo", lambda _, **options: calls.append(options))
    return calls


# --- audit ----------------------------------------------------------------------------------------


def test_an_audit_from_csv_prints_a_summary(recorded):
    result = recorded.result
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert len(lines) <= 16
    names = ("Reported", "By patient_id", "On new patients", "Tipping point", "Findings", "Report")
    assert all(any(line.startswith(f"  {name}") for line in lines) for name in names)
    assert "If 10% of the rows carry a wrong 'patient_id'." in result.stdout
    assert "\x1b[" not in result.stdout, "no colours in a file"


@pytest.mark.parametrize("off", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_colours_are_for_terminals_whose_users_want_them(off, monkeypatch):
    for name in ("NO_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("sys.stdout", SimpleNamespace(isatty=lambda: True))
    assert has_colours()
    for name, value in off.items():
        monkeypatch.setenv(name, value)
    assert not has_colours()


def test_an_audit_is_written_to_mlflow(recorded):
    assert {"b3/e0", "b3/loco", "b3/gap"} <= set(recorded.run.data.metrics)
    assert recorded.run.data.tags["b3.answer"]


def test_an_audit_says_where_to_look_in_mlflow(shop, recorded):
    child = recorded.run.data.tags["b3.audit_run_id"]
    page = f"http://127.0.0.1:5000/#/experiments/{shop.experiment}/runs"
    start = f"mlflow ui --port 5000 --backend-store-uri sqlite:///{shop.folder}/mlflow.db"
    report = f"{page}/{child}/artifacts/b3/report.html"
    assert recorded.result.stdout.endswith(
        f"  Start MLflow's UI  {start}\n"
        f"  Report             {report}\n"
        f"  All audits         {page}?viewStateShareKey=b3\n"
    )
    assert where_to_look(child) == (
        "Where to look in MLflow\n"
        f"  start the UI:     {start}\n"
        f"  the audited run:  {page}/{shop.run_id}\n"
        f"  this audit:       {page}/{child}\n"
        f"  its report:       {report}\n"
        f"  all audits:       {page}?viewStateShareKey=b3"
    )


def test_progress_goes_to_stderr_so_that_stdout_can_be_kept(recorded):
    assert "Loss by dose" in recorded.result.stderr
    assert "fit/s" not in recorded.result.stdout


def test_no_record_leaves_the_store_untouched(unrecorded):
    assert unrecorded.result.exit_code == 0, unrecorded.result.output
    assert unrecorded.after == unrecorded.before
    assert "All audits" not in unrecorded.result.stdout


def test_an_audit_from_parquet_with_a_range_is_the_audit_of_the_library(shop, report):
    """Same seed, same numbers: the command line adds nothing of its own."""
    assert report.settings.claim == (0.05, 0.15)
    assert report.p0_source == "cluster_error"
    assert report.settings.uri == shop.uri
    assert report.settings.model_id == shop.model_id
    assert report.settings.n_rows == 120
    assert 20 <= report.settings.fits <= 100


def test_output_json_holds_the_whole_report(shop, report):
    text = (shop.folder / "report.json").read_text(encoding="utf-8")
    assert json.loads(text) == report.to_dict()


@pytest.mark.parametrize("ending", ["html", "json", "md", "txt"])
def test_the_ending_of_the_output_decides_on_its_format(shop, called, report, tmp_path, ending):
    path = tmp_path / f"audit.{ending}"
    result = run("audit", *subject(shop), "--no-record", "--output", str(path))
    assert result.exit_code == 0, result.output
    expected = {
        "html": report.to_html(),
        "json": report.to_json(),
        "md": to_markdown(report),
        "txt": report.to_text(),
    }
    assert path.read_text(encoding="utf-8").rstrip("\n") == expected[ending].rstrip("\n")
    assert len(called) == 1


@pytest.mark.parametrize(
    ("option", "text", "argument", "value"),
    [
        ("--cluster-error", "0.1", "cluster_error", 0.1),
        ("--cluster-error", "0.05,0.15", "cluster_error", (0.05, 0.15)),
        ("--cluster-error", "10%", "cluster_error", 0.1),
        ("--cluster-error", "5%,15%", "cluster_error", (0.05, 0.15)),
        ("--threshold", "35%", "threshold", 0.35),
        ("--split-rate", "0.4", "split_rate", 0.4),
        ("--split-rate", "0.3, 0.5", "split_rate", (0.3, 0.5)),
        ("--p0", "0.02", "p0", 0.02),
        ("--p0", "mixture", "p0", "mixture"),
        ("--p0-validation", "0", "p0_validation", 0.0),
        ("--loss", "brier", "loss", "brier"),
        ("--folds", "4", "folds", 4),
        ("--method", "basis", "method", "basis"),
        ("--method", "dose", "method", "dose"),
        ("--method-option", "order=3", "method_options", {"order": 3}),
        (
            "--method-option",
            "smoothing=0.5, grouping=blocks",
            "method_options",
            {"smoothing": 0.5, "grouping": "blocks"},
        ),
        ("--refit", "head", "refit", "head"),
        (
            "--refit-option",
            "search_again=true,epochs=20,learning_rate=0.01",
            "refit_options",
            {"search_again": True, "epochs": 20, "learning_rate": 0.01},
        ),
        ("--trainer", "my_training:train", "trainer", "my_training:train"),
        ("--sample-weight", "weight", "sample_weight", "weight"),
        ("--scheme", "replace", "scheme", "replace"),
        ("--levels", "20", "levels", "20"),
        ("--n-train", "100", "n_train", 100),
        ("--threshold", "0.3", "threshold", 0.3),
        ("--budget", "10m", "budget", "10m"),
        ("--seed", "7", "seed", 7),
        ("--n-jobs", "2", "n_jobs", 2),
    ],
)
def test_options_are_the_arguments_of_audit(shop, called, option, text, argument, value):
    result = run("audit", *subject(shop), "--no-record", option, text)
    assert result.exit_code == 0, result.output
    (arguments,) = called
    assert arguments[argument] == value
    assert arguments["model"] == shop.uri
    assert (arguments["target"], arguments["cluster"]) == ("disease", "patient_id")


def test_options_of_the_method_may_be_repeated(shop, called):
    options = ["--method-option", "groups=5", "--method-option", "smoothing=1e-3"]
    result = run("audit", *subject(shop), "--no-record", "--method", "sketch", *options)
    assert result.exit_code == 0, result.output
    assert called[0]["method_options"] == {"groups": 5, "smoothing": 0.001}


def test_a_trainer_in_the_current_folder_refits_the_model(shop, tmp_path, monkeypatch):
    text = (
        "from sklearn.naive_bayes import GaussianNB\n"
        "def train(X, y, sample_ids):\n    return GaussianNB().fit(X, y)\n"
    )
    (tmp_path / "own_training.py").write_text(text, encoding="utf-8")
    data = str(shop.folder / "visits.csv")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    given = subject(shop, data=data, trainer="own_training:train", output="audit.json")
    result = run("audit", *given, *SMALL, "--no-record", "--full")
    assert result.exit_code == 0, result.output
    report = AuditReport.from_dict(json.loads(Path("audit.json").read_text(encoding="utf-8")))
    assert (report.settings.refit, report.settings.uri) == ("trainer", shop.uri)
    assert "trained by own_training:train" in " ".join(result.output.split())


OPTIONAL = sorted(
    option.opts[0]
    for option in main.commands["audit"].params
    if option.opts[0]
    not in ("--model-uri", "--data", "--target", "--cluster", "--record", "--full")
)


@pytest.mark.parametrize("empty", ["", "  "])
def test_empty_strings_count_as_not_given(shop, called, empty):
    """MLproject parameters cannot be left out, only be empty."""
    nothing = [part for option in OPTIONAL for part in (option, empty)]
    result = run("audit", *subject(shop), "--no-record", *nothing)
    assert result.exit_code == 0, result.output
    (arguments,) = called
    assert set(arguments) == {"model", "data", "target", "cluster", "journal", "progress"}


# --- what goes wrong ------------------------------------------------------------------------------


def refused(result: Result, message: str) -> None:
    """Check that an error is one of input: code 2, the reason on stderr, and no traceback."""
    assert result.exit_code == 2, (result.output, result.exception)
    assert isinstance(result.exception, SystemExit)
    assert message in result.stderr
    assert "Traceback" not in result.output


@pytest.mark.parametrize("missing", ["model_uri", "data", "target", "cluster"])
@pytest.mark.parametrize("command", ["audit", "test"])
def test_a_missing_option_is_named(shop, command, missing):
    refused(run(command, *subject(shop, **{missing: ""})), f"mlflow-b3: {missing} missing")


def test_all_missing_options_are_named_at_once(shop):
    result = run("audit", "--model-uri", shop.uri)
    refused(result, "mlflow-b3: data, target, cluster missing")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--p0", "0.1", "--split-rate", "0.1"], "cannot be given together"),
        (["--p0-validation", "0.1"], "p0_validation needs p0"),
        (["--cluster-error", "1.5"], "cluster_error=1.5 must lie in [0, 1)"),
        (["--cluster-error", "0.2,0.1"], "low before high"),
        (["--cluster-error", "ten"], "'ten' is not a number such as 0.1 or 10%, or LOW,HIGH"),
        (
            ["--cluster-error", "mixture"],
            "'mixture' is not a number such as 0.1 or 10%, or LOW,HIGH",
        ),
        (
            ["--cluster-error", "0.1,0.2,0.3"],
            "'0.1,0.2,0.3' is not a number such as 0.1 or 10%, or LOW,HIGH",
        ),
        (["--split-rate", "nan"], "split_rate=nan must lie in [0, 1)"),
        (["--fragments", "thirds"], "fragments='thirds' is not known"),
        (["--fragments", "0"], "fragments='0' is not usable"),
        (["--split-rate", "0.1", "--fragments", "40,90"], "the largest has"),
        (["--loss", "zero-one"], "Did you mean 'zero_one'?"),
        (["--loss", "squared"], "does not fit a classification model"),
        (["--method", "magic"], "method='magic' is not known"),
        (["--method-option", "order"], "'order' is not of type NAME=VALUE"),
        (["--method-option", "order=3"], "order=3 is not an option of method 'auto'"),
        (["--method", "basis", "--method-option", "order=7"], "needs at least 8 levels"),
        (["--scheme", "bootstrap"], "scheme='bootstrap' is not known"),
        (["--budget", "soon"], "budget='soon' is not usable"),
        (["--budget", "3"], "budget=3 refits is too little: the score by rows needs"),
        (["--folds", "1"], "at least two folds are needed"),
        (["--folds", "many"], "'many' is not of type NUMBER|balanced"),
        (["--threshold", "nan"], "threshold=nan must be a finite number"),
        (["--threshold", "35"], 'For a percentage give 0.35 or "35%".'),
        (["--seed", "-1"], "seed=-1 must be a whole number from 0"),
        (["--n-jobs", "0"], "n_jobs=0 is not usable"),
        (["--output", "report.pdf"], "must end in .html, .json, .md or .txt"),
        (["--output", "nowhere/report.md"], "the folder 'nowhere' does not exist"),
        (["--colour", "blue"], "No such option"),
    ],
)
def test_a_bad_option_is_refused_with_its_reason(shop, options, message):
    refused(run("audit", *subject(shop), "--no-record", "--n-jobs", "1", *options), message)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"target": "desease"}, "target='desease' is not a column. Did you mean 'disease'?"),
        ({"cluster": "patient"}, "cluster='patient' is not a column."),
        ({"data": "visits.xlsx"}, "has an unknown file extension"),
        ({"data": "vists.csv"}, "data='vists.csv' is not a file"),
        ({"model_uri": "models:/nobody/1"}, "model='models:/nobody/1' was not found"),
        ({"model_uri": "models:/nobody@champion"}, "was not found"),
        ({"model_uri": "models:/m-0123456789abcdef"}, "was not found"),
        ({"model_uri": f"runs:/{'0' * 32}/model"}, "was not found"),
        ({"model_uri": "clinic.pkl"}, "is not a model URI"),
    ],
)
@pytest.mark.parametrize("command", ["audit", "test"])
def test_a_subject_that_cannot_be_audited_is_refused_with_its_reason(
    shop, command, changes, message
):
    refused(run(command, *subject(shop, **changes)), message)


def test_a_refused_audit_leaves_no_run_in_mlflow(shop):
    """It was no try: nothing was refitted."""
    before = len(shop.client.search_runs([shop.experiment]))
    refused(run("audit", *subject(shop, cluster="patient")), "is not a column")
    assert len(shop.client.search_runs([shop.experiment])) == before


@pytest.mark.parametrize("option", ["--p0", "--p0-validation", "--cluster-error", "--split-rate"])
def test_a_rate_without_a_model_is_refused(demonstrated, option):
    """The demonstration damages its clinic itself; another rate would be a lie."""
    refused(run("audit", option, "0.1"), "was given without a model")
    assert demonstrated == []


@pytest.mark.parametrize(
    "option", [("--loss", "brier"), ("--folds", "3"), ("--fragments", "halves")]
)
def test_options_that_the_truth_of_the_demonstration_does_not_follow_are_refused(
    demonstrated, option
):
    refused(run("audit", *option), "was given without a model")
    assert demonstrated == []


def test_an_output_that_cannot_be_written_is_refused(shop, called, tmp_path):
    """Here the path is a folder; what matters is that there is no traceback."""
    (tmp_path / "report.md").mkdir()
    given = subject(shop)
    refused(run("audit", *given, "--no-record", "--output", str(tmp_path / "report.md")), "output=")
    assert called == []


# --- test -----------------------------------------------------------------------------------------


def test_the_test_command_prints_what_the_test_says_and_writes_nothing(shop):
    before = store(shop)
    result = run("test", *subject(shop), *SMALL)
    assert result.exit_code == 0, result.output
    assert "he model benefits from leaked rows (p = " in result.stdout
    assert store(shop) == before


def test_empty_strings_count_as_not_given_for_the_test_too(shop, monkeypatch, report):
    calls = []

    def test(model, data, **arguments):
        calls.append({"model": model, "data": data, **arguments})
        return report.test

    monkeypatch.setattr("mlflow_b3.auditing.audit.run_leakage_test", test)
    nothing = [
        part for option in ("--loss", "--folds", "--budget", "--seed") for part in (option, "")
    ]
    assert run("test", *subject(shop), *nothing, "--n-jobs", "1").exit_code == 0
    (arguments,) = calls
    assert set(arguments) == {"model", "data", "target", "cluster", "test", "n_jobs", "progress"}
    assert arguments["test"] == "paired"


def test_the_test_command_runs_other_forms_and_names_those_there_are(shop):
    result = run("test", *subject(shop), *SMALL, "--method", "welch")
    assert result.exit_code == 0, result.output
    assert "It is the published form" in result.stdout
    refused(run("test", *subject(shop), *SMALL, "--method", "t"), "test='t' is not known")


def test_the_test_command_refuses_a_negative_seed(shop):
    refused(run("test", *subject(shop), *SMALL, "--seed", "-1"), "seed=-1")


# --- demo -----------------------------------------------------------------------------------------


@pytest.fixture
def small_clinic(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the demonstration simulate fewer patients, and refit less often."""

    def make_clinic(**arguments: Any) -> mlflow_b3.Clinic:
        clinic = mlflow_b3.make_clinic(patients=30, records=4, **arguments)
        return SmallTruth(**vars(clinic))

    class SmallTruth(mlflow_b3.Clinic):
        def truth(self, model: Any, **arguments: Any) -> float:
            return super().truth(model, **{**arguments, "repeats": 1, "fresh": 20})

    monkeypatch.setattr("mlflow_b3.demo.make_clinic", make_clinic)
    monkeypatch.setattr("mlflow_b3.measurement.design.DEFAULT_FITS", 100)


@pytest.mark.usefixtures("small_clinic")
def test_the_demo_audits_a_simulated_clinic_and_tells_the_truth(shop):
    result = run("demo", "--n-jobs", "1")
    assert result.exit_code == 0, result.output
    text = " ".join(result.stdout.split())
    assert text.startswith(
        "No model was given: auditing a simulated clinic whose true ids are known."
    )
    assert "If 10% of the rows carry a wrong 'patient_id'" in text
    assert "The truth (known here, because the clinic is simulated)" in text
    assert re.search(r"fresh patients: [01]\.\d{3}, (in|out)side the interval of e0\.", text)
    assert "All audits http" in text
    newest = shop.client.search_runs([shop.experiment], order_by=["start_time DESC"])[:2]
    audit, training = newest
    assert training.info.run_name == "clinic-training"
    assert audit.data.tags["mlflow.parentRunId"] == training.info.run_id
    assert training.data.metrics["b3/e0"] == worth(audit.data.metrics["b3/e0"])


def test_an_audit_without_a_model_is_the_demo_and_can_be_written_to_a_file(
    shop, recorded, report, monkeypatch, tmp_path
):
    """Without parameters, `mlflow run . -e audit` does just that."""
    asked = []

    def run_demo(**options):
        asked.append(options)
        child = recorded.run.data.tags["b3.audit_run_id"]
        return Demo(report=report, run_id=child, truth=0.3)

    monkeypatch.setattr("mlflow_b3.demo.run_demo", run_demo)
    result = run("audit", "--budget", "100", "--full", "--output", str(tmp_path / "demo.json"))
    assert result.exit_code == 0, result.output
    assert asked[0]["budget"] == "100"
    assert "error rate on 2000 fresh patients: 0.300" in result.stdout
    assert shop.run_id in result.stdout
    assert json.loads((tmp_path / "demo.json").read_text()) == report.to_dict()


def test_the_demo_command_passes_its_options_on(demonstrated):
    result = run("demo", "--pattern", "fragments", "--seed", "3", "--n-jobs", "1")
    assert result.exit_code == 0, result.output
    assert demonstrated == [{"full": False, "pattern": "fragments", "seed": 3, "n_jobs": 1}]


def test_empty_strings_count_as_not_given_for_the_demo_too(demonstrated):
    result = run("demo", "--seed", "", "--n-jobs", "")
    assert result.exit_code == 0, result.output
    assert demonstrated == [{"full": False, "pattern": "rows"}]


def test_the_demo_refuses_an_unknown_pattern():
    refused(run("demo", "--pattern", "columns"), "'columns' is not one of 'rows', 'fragments'")


def test_the_demo_refuses_a_negative_seed(shop):
    before = store(shop)
    refused(run("demo", "--seed", "-1"), "seed=-1")
    assert store(shop) == before


def test_the_demo_cannot_be_asked_to_leave_no_trace(demonstrated):
    """It logs a model to have one; an option that silently did nothing would mislead."""
    refused(run("audit", "--no-record"), "record")
    assert demonstrated == []


def test_a_demo_says_on_which_side_the_truth_lies(report):
    known = changed(report, e0=0.3, e0_interval=(0.25, 0.35), iid=0.1, loco=0.2)
    near = Demo(report=known, run_id="r", truth=0.32).told_truth()
    far = Demo(report=known, run_id="r", truth=0.4).told_truth()
    assert "error rate on 2000 fresh patients: 0.320, inside the interval of e0." in near
    assert "reported -0.220; by patient_id -0.120; on new patients (e0) -0.020." in near
    assert "0.400, outside the interval of e0." in far


# --- the commands themselves ----------------------------------------------------------------------


@pytest.mark.parametrize("command", ["audit", "demo", "gate", "keys", "test", "verify"])
def test_every_option_has_a_help_text(command):
    given = [each for each in main.commands[command].params if isinstance(each, click.Option)]
    without = [option.name for option in given if not option.help]
    assert without == []
    assert main.commands[command].help


@pytest.mark.parametrize("command", [(), ("audit",), ("demo",), ("test",)])
def test_help_is_printed_with_exit_code_0(command):
    result = run(*command, "--help")
    assert result.exit_code == 0
    assert result.stdout.startswith("Usage: ")


def test_the_exit_codes_are_documented():
    text = " ".join(run("--help").stdout.split())
    assert (
        "Exit codes: 0 done, 2 usage or input error, 130 stopped by Ctrl-C. gate, verify and attest"
        in text
    )


def test_these_commands_exist():
    assert {"audit", "demo", "gate", "keys", "policy", "test", "verify"} <= set(main.commands)


def test_an_unknown_command_is_a_usage_error():
    refused(run("adit"), "No such command 'adit'")


def test_the_package_runs_as_a_module():
    done = subprocess.run(
        [sys.executable, "-m", "mlflow_b3", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout == f"mlflow-b3, version {mlflow_b3.__version__}\n"
    assert done.stderr == ""
