"""Audited models side by side: from MLflow, audited together, on the command line."""

import base64
import json
import zlib
from types import SimpleNamespace

import mlflow
import pytest
from click.testing import CliRunner
from example_reports import report
from mlflow import MlflowClient
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GroupKFold
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.tree import DecisionTreeClassifier
from stores import kept_store

import mlflow_b3 as b3
from mlflow_b3.cli import _split_models, main
from mlflow_b3.demo import FEATURES
from mlflow_b3.reporting.comparison import comparison_files
from mlflow_b3.tracking.comparing import disambiguate, distinct
from mlflow_b3.tracking.recording import audit_and_record
from mlflow_b3.tracking.shown_on_models import TAG, _without_password

pytestmark = pytest.mark.newest

COLUMNS = {"target": "disease", "cluster": "patient_id"}
SMALL = {"cluster_error": 0.1, "budget": 120, "n_jobs": 1, "progress": False}
OPTIONS = ["--target", "disease", "--cluster", "patient_id", "--n-jobs", "1", "--budget", "120"]


@pytest.fixture(scope="module")
def clinic():
    return b3.make_clinic(patients=30, records=4, cluster_error=0.1)


@pytest.fixture(scope="module")
def kept(empty_database, clinic, tmp_path_factory):
    """Log and register two models in named runs, and audit both; a store of either state is kept."""
    X, y = clinic.frame[list(FEATURES)], clinic.frame["disease"]
    uris, runs = [], []
    with kept_store(empty_database, tmp_path_factory.mktemp("compared")) as store:
        for name, model in (("bayes", GaussianNB()), ("logistic", LogisticRegression())):
            with mlflow.start_run(run_name=name) as run:
                info = mlflow.sklearn.log_model(
                    model.fit(X, y), name="model", pip_requirements=["scikit-learn"]
                )
            mlflow.register_model(info.model_uri, "clinic")
            uris.append(info.model_uri)
            runs.append(run.info.run_id)
        store.keep("registered")
        audits = audited(clinic)
        store.keep("audited")
    return SimpleNamespace(store=store, uris=uris, runs=runs, audits=audits)


@pytest.fixture
def shop(kept, clinic, tmp_path, monkeypatch):
    """Return two registered models of named runs, not audited yet."""
    clinic.frame.to_csv(tmp_path / "visits.csv", index=False)
    with kept.store.restored("registered", monkeypatch) as uri:
        monkeypatch.chdir(tmp_path)
        yield SimpleNamespace(
            uri=uri,
            uris=kept.uris,
            runs=kept.runs,
            data=str(tmp_path / "visits.csv"),
            client=MlflowClient(),
        )


@pytest.fixture
def audits(kept, shop):
    """Return the runs of an audit of either version."""
    assert shop
    kept.store.restore("audited")
    return kept.audits


def run(*arguments):
    return CliRunner().invoke(main, ["compare", *arguments])


def audited(clinic):
    """Audit both versions one by one."""
    return [
        audit_and_record(f"models:/clinic/{version}", clinic.frame, **COLUMNS, **SMALL)[1]
        for version in (1, 2)
    ]


def test_recorded_audits_are_compared_by_whatever_names_them(shop, audits):
    by_version = b3.compare(["models:/clinic/1", "models:/clinic/2"])
    assert {c.name for c in by_version.contenders} == {"models:/clinic/1", "models:/clinic/2"}
    for references in (shop.runs, shop.uris, audits, [uri[8:] for uri in shop.uris]):
        comparison = b3.compare(references)
        assert {c.name for c in comparison.contenders} == {"bayes", "logistic"}
        assert {c.audit_run_id for c in comparison.contenders} == set(audits)
        assert comparison.differences[0].paired
    for source in ({"experiment": "test"}, {"registered_model": "clinic"}):
        assert {c.audit_run_id for c in b3.compare(**source).contenders} == set(audits)


@pytest.mark.usefixtures("audits")
def test_models_can_be_given_names(shop):
    comparison = b3.compare({"first": shop.uris[0], "second": shop.uris[1]})
    assert {c.name for c in comparison.contenders} == {"first", "second"}


def test_only_the_newest_audit_of_a_model_is_compared(clinic, audits):
    newer = audited(clinic)
    found = {c.audit_run_id for c in b3.compare(experiment="test").contenders}
    assert found == set(newer)
    assert not found & set(audits)


def test_models_are_audited_together_on_the_same_folds(shop, clinic):
    """A learner with randomness of its own affords fewer assignments of clusters; all get those."""
    models = [KNeighborsClassifier(3), DecisionTreeClassifier(splitter="random")]
    comparison = b3.compare(
        models, clinic.frame, **COLUMNS, cluster_error=0.1, budget=250, n_jobs=1, record=False
    )
    assert comparison.differences[0].paired
    assert comparison.notes == ()
    assert shop.client.search_runs(["0"]) == []


def test_estimators_compared_without_recording_leave_no_store_behind(clinic, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    usual = mlflow.get_tracking_uri()
    mlflow.set_tracking_uri("sqlite:///nobody_asked_for.db")
    try:
        b3.compare(
            [KNeighborsClassifier(3), GaussianNB()], clinic.frame, **COLUMNS, **SMALL, record=False
        )
    finally:
        mlflow.set_tracking_uri(usual)
    assert list(tmp_path.iterdir()) == []


def test_the_command_audits_and_records_all_models(shop, tmp_path):
    result = run(
        *shop.uris, "--data", shop.data, *OPTIONS, "--cluster-error", "0.1", "--output", "side"
    )
    assert result.exit_code == 0, result.output
    assert "Ranking by error rate on new clusters" in result.output
    assert "Where to look in MLflow" in result.output
    files = {path.name for path in (tmp_path / "side").iterdir()}
    assert files == {f"comparison.{e}" for e in ("csv", "html", "json", "md", "svg")}
    made = json.loads((tmp_path / "side" / "comparison.json").read_text())
    runs = [c["audit_run_id"] for c in made["contenders"]]
    assert all(shop.client.get_run(r).data.tags["b3.status"] == "current" for r in runs)
    (found,) = shop.client.search_runs(
        [shop.client.get_run(runs[0]).info.experiment_id], "tags.`mlflow.runName` = 'b3-compare'"
    )
    assert found.info.status == "FINISHED"
    assert set(found.data.tags["b3.compared"].split(", ")) == set(runs)
    logged = [file.path for file in shop.client.list_artifacts(found.info.run_id, "b3")]
    assert "b3/comparison.html" in logged


@pytest.mark.usefixtures("audits")
def test_models_may_have_commas_between_them():
    result = run("models:/clinic/1,models:/clinic/2", "--experiment", "", "--no-record")
    assert result.exit_code == 0, result.output
    assert "models:/clinic/1" in result.output


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("models:/a/1,models:/b/2", ["models:/a/1", "models:/b/2"]),
        ("models:/a, b/1 , runs:/x/model,", ["models:/a, b/1", "runs:/x/model"]),
        (
            "models:/late,name/1,models:/late,name@best",
            ["models:/late,name/1", "models:/late,name@best"],
        ),
        (f"{'0' * 32},m-{'a' * 32}", ["0" * 32, f"m-{'a' * 32}"]),
        ("models:/a,0123/1", ["models:/a,0123/1"]),
        (f"models:/a,{'0' * 32}b/1", [f"models:/a,{'0' * 32}b/1"]),
        (" , ", []),
    ],
)
def test_commas_in_the_names_of_models_do_not_part_them(text, parts):
    assert _split_models([text]) == parts


@pytest.mark.parametrize("name", ["a, b", "it's", 'the "new" one', 'it\'s "q" <b>_%'])
def test_registered_models_are_found_whatever_their_name(shop, audits, name):
    for uri in shop.uris:
        mlflow.register_model(uri, name)
    if "'" in name:
        mlflow.register_model(shop.uris[0], name.replace("'", "x"))  # not what was asked for
    result = run("--registered-model", name, "--no-record")
    assert result.exit_code == 0, result.output
    assert f"models:/{name}/2" in result.output
    uris = [f"models:/{name}/{version}" for version in (1, 2)]
    assert {c.audit_run_id for c in b3.compare(uris).contenders} == set(audits)


@pytest.mark.usefixtures("audits")
def test_a_view_of_all_audits_is_left_with_the_experiment_and_never_changed(shop, clinic):
    experiment = shop.client.get_run(shop.runs[0]).info.experiment_id
    view = shop.client.get_experiment(experiment).tags[TAG]
    stored = json.loads(view)
    assert stored["name"] == "b3 audits"
    # MLflow 3.10 knows no names and reads the complete state beside it
    packed = stored["state"].removeprefix("deflate;")
    state = json.loads(zlib.decompress(base64.b64decode(packed)))
    assert {name: stored[name] for name in state} == state
    assert state["orderByKey"] == "metrics.`b3/e0`"
    assert len(view) < 5000, "the longest tag of an experiment"
    shop.client.set_experiment_tag(experiment, TAG, "mine")
    audited(clinic)
    assert shop.client.get_experiment(experiment).tags[TAG] == "mine"


def test_the_project_run_of_a_comparison_holds_it_and_no_audit(shop, monkeypatch):
    """`mlflow run -e compare` has made one run; each audit still has its own."""
    tags = {"mlflow.project.entryPoint": "compare"}
    experiment = shop.client.get_run(shop.runs[0]).info.experiment_id
    project = shop.client.create_run(experiment, tags=tags).info.run_id
    monkeypatch.setenv("MLFLOW_RUN_ID", project)
    result = run(*shop.uris, "--data", shop.data, *OPTIONS, "--cluster-error", "0.1")
    assert result.exit_code == 0, result.output
    found = shop.client.get_run(project)
    assert found.info.status == "RUNNING", "MLflow ends it"
    assert found.data.metrics == {}
    assert len(found.data.tags["b3.compared"].split(", ")) == 2


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ([], "nothing was given"),
        (["models:/clinic/1", "--experiment", "test"], "models and experiment was given"),
        (["models:/clinic/1", "models:/clinic/2"], "has no audit. Audit it first"),
        (["models:/clinic/1", "--cluster-error", "0.1"], "cluster_error is for new audits"),
        (["models:/clinic/1", "--data", "visits.csv"], "target, cluster missing"),
        (["--registered-model", "o'hara"], "has no audited version"),
        (["models:/clinic/1", "--output", "visits.csv"], "is not a writable folder"),
        (["--experiment", "nowhere"], "experiment='nowhere' was not found"),
        (["--experiment", "test"], "has no current audits"),
        (["--registered-model", "clinic"], "has no audited version"),
        (
            ["--experiment", "test", "--data", "visits.csv", *OPTIONS],
            "experiment selects recorded audits",
        ),
        (["0" * 32, "models:/clinic/1"], "was not found"),
        (["models:/nothing/1", "models:/clinic/1"], "was not found"),
    ],
)
def test_what_cannot_be_compared_is_refused_with_advice(shop, arguments, problem):
    assert shop
    result = run(*arguments)
    assert result.exit_code == 2
    assert problem in result.output


def test_an_estimator_needs_data(shop):
    assert shop
    with pytest.raises(b3.InputError, match="give data, target and cluster"):
        b3.compare([GaussianNB(), LogisticRegression()])


def test_an_audit_that_cannot_be_read_is_named(shop, audits):
    shop.client.log_text(audits[0], "{}", "b3/audit.json")
    with pytest.raises(b3.TrackingError, match=f"the audit of run {audits[0]} cannot be read"):
        b3.compare(audits)


def test_a_deleted_audit_is_not_compared_without_a_word(shop, audits):
    shop.client.delete_run(audits[0])
    for reference in ("models:/clinic/1", shop.uris[0], shop.runs[0], audits[0]):
        with pytest.raises(b3.TrackingError, match=f"run {audits[0]}, was deleted; restore it"):
            b3.compare([reference, "models:/clinic/2"])
    with pytest.raises(b3.TrackingError, match="was deleted"):
        b3.compare(registered_model="clinic")


def test_names_are_told_apart_whatever_they_are():
    assert distinct(["x", "x", "x (1)"]) == ["x (2)", "x (3)", "x (1)"]
    assert distinct(["a", "b"]) == ["a", "b"]


@pytest.fixture
def two_models(shop, clinic):
    """Log and audit two models in one run."""
    assert shop
    X, y = clinic.frame[list(FEATURES)], clinic.frame["disease"]
    with mlflow.start_run(run_name="both"):
        infos = [
            mlflow.sklearn.log_model(model.fit(X, y), name=name, pip_requirements=["scikit-learn"])
            for name, model in (("bayes", GaussianNB()), ("logistic", LogisticRegression()))
        ]
    for info in infos:
        audit_and_record(info.model_uri, clinic.frame, **COLUMNS, **SMALL)
    return [info.model_uri for info in infos]


def test_models_of_one_run_keep_their_names_in_whatever_order(two_models):
    expected = dict(zip(("both (bayes)", "both (logistic)"), two_models, strict=True))
    for uris in (two_models, two_models[::-1]):
        comparison = b3.compare(uris)
        assert {c.name: c.uri for c in comparison.contenders} == expected
        files = comparison_files(comparison)
        assert all(name in text for name in expected for text in files.values())


def test_names_say_as_much_as_is_needed_to_tell_models_apart(mlflow_store):
    assert mlflow_store
    client = MlflowClient()
    models = [client.create_logged_model("1", name=name).model_id for name in ("a", "a", "b")]

    def of(model_id, audit=None):
        settings = {"model_id": model_id}
        return ("run", report(settings=settings), audit)

    def names(*audits):
        return disambiguate(audits)

    assert names(of(models[0]), of(models[2])) == ["run (a)", "run (b)"]
    start = [f"run ({model_id[:10]})" for model_id in models]
    assert names(*map(of, models)) == start
    assert names(of("m-gone00001"), of("m-other0001")) == ["run (m-gone0000)", "run (m-other000)"]
    same = names(of(models[0], "0123456789"), of(models[0], "9876543210"))
    assert same == ["run (audit 01234567)", "run (audit 98765432)"]
    assert names(of(None), of(None)) == ["run", "run"], "numbers follow"
    assert names(of(None)) == ["run"]


def test_folds_that_can_be_read_once_serve_all_models(shop, clinic):
    assert shop
    splits = GroupKFold(4).split(clinic.frame, groups=clinic.frame["patient_id"])
    comparison = b3.compare(
        [GaussianNB(), KNeighborsClassifier(3)],
        clinic.frame,
        **COLUMNS,
        **SMALL,
        folds=splits,
        record=False,
    )
    assert comparison.differences[0].paired


def test_all_cores_are_used_by_default(shop, monkeypatch):
    given = {}

    def note(*_, **arguments):
        given.update(arguments)
        raise b3.InputError("enough")

    monkeypatch.setattr("mlflow_b3.tracking.comparing._audit_together", note)
    run(*shop.uris, "--data", shop.data, "--target", "disease", "--cluster", "patient_id")
    assert given["n_jobs"] == -1


def test_an_audit_that_mlflow_does_not_take_is_saved_and_compared(shop, monkeypatch, caplog):
    def refuse(*_, **__):
        raise OSError("connection refused")

    monkeypatch.setattr(MlflowClient, "log_inputs", refuse)
    result = run(*shop.uris, "--data", shop.data, *OPTIONS, "--cluster-error", "0.1", "--no-record")
    assert result.exit_code == 0, result.output
    comparison = b3.compare(shop.uris, shop.data, **COLUMNS, **SMALL)
    assert "connection refused" in caplog.text
    folders = [text.partition("record('")[2].partition("'")[0] for text in caplog.messages]
    assert len([f for f in folders if f]) == 2
    monkeypatch.undo()
    assert comparison.differences[0].paired


@pytest.mark.usefixtures("audits")
def test_a_comparison_that_cannot_be_written_leaves_a_failed_run(shop, monkeypatch):

    def refuse(*_, **__):
        raise OSError("the disk is full")

    monkeypatch.setattr(MlflowClient, "log_artifacts", refuse)
    result = run(*shop.uris)
    assert result.exit_code == 2
    assert "the comparison could not be written to MLflow: the disk is full" in result.output
    (made,) = shop.client.search_runs(["1"], "tags.`mlflow.runName` = 'b3-compare'")
    assert made.info.status == "FAILED"


def test_versions_that_were_registered_after_their_audit_are_compared(shop, audits):
    for uri in shop.uris:
        mlflow.register_model(uri, "late")
    comparison = b3.compare(registered_model="late")
    assert {c.name for c in comparison.contenders} == {"models:/late/1", "models:/late/2"}
    assert {c.audit_run_id for c in comparison.contenders} == set(audits)


def test_models_whose_names_have_spaces_can_be_named(shop, clinic):
    for uri in shop.uris:
        mlflow.register_model(uri, "my model")
    audited(clinic)
    result = run("models:/my model/1", "models:/my model/2", "--no-record")
    assert result.exit_code == 0, result.output


def test_addresses_are_shown_without_passwords():
    assert _without_password("https://me:secret@host:5000/x") == "https://host:5000/x"
    assert _without_password("postgresql://me:p@ss@db/mlflow") == "postgresql://db/mlflow"
    assert _without_password("sqlite:////data/a.db") == "sqlite:////data/a.db"
